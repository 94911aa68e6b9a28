/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_OP_WINDOW_H
#define KU_OP_WINDOW_H

#include "op/attr.h"
#include "tensor/shape.h"

/*
 * Sliding window of convolution and pooling over images x[n,y,x,c] with result y[n,y,x,f]. Element
 * (i, j) of the window at result (oy, ox) is at this position of x, or in the padding:
 *
 *     (oy stride_h - pad_h + i dilation_h, ox stride_w - pad_w + j dilation_w)
 */
struct ku_window {
    int64_t n, in_h, in_w, c; /* of x */
    int64_t out_h, out_w, f;  /* of y */
    int64_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    int64_t groups, group_c, group_f; /* channels of x and y per group */
};

static inline struct ku_window ku_window_of(const struct ku_attrs *a, const struct ku_shape *x,
                                            const struct ku_shape *y)
{
    return (struct ku_window){.n = x->dim[0].count,
                              .in_h = x->dim[1].count,
                              .in_w = x->dim[2].count,
                              .c = x->dim[3].count,
                              .out_h = y->dim[1].count,
                              .out_w = y->dim[2].count,
                              .f = y->dim[3].count,
                              .kernel_h = a->kernel_h,
                              .kernel_w = a->kernel_w,
                              .stride_h = a->stride_h,
                              .stride_w = a->stride_w,
                              .pad_h = a->pad_h,
                              .pad_w = a->pad_w,
                              .dilation_h = a->dilation_h,
                              .dilation_w = a->dilation_w,
                              .groups = a->groups,
                              .group_c = x->dim[3].count / a->groups,
                              .group_f = y->dim[3].count / a->groups};
}

/*
 * Number of window positions, i.e. the extent of the result, as in PyTorch. 0: the window does not
 * fit.
 */
static inline int64_t ku_window_extent(int64_t in, int64_t kernel, int64_t stride, int64_t pad,
                                       int64_t dilation)
{
    int64_t room = in + 2 * pad - dilation * (kernel - 1) - 1;
    return room < 0 ? 0 : room / stride + 1;
}

#endif
