/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DEVICE_REF_REF_H
#define KU_DEVICE_REF_REF_H

#include "device/device.h"
#include "op/slices.h"
#include "tensor/dtype.h"

/*
 * The reference device: the definition of every op, as plain loops. Operands of any float dtype are
 * widened to f64, arithmetic is f64, and a result is rounded once, to the dtype of its view; the
 * accumulate form is round(out + value). The comment above each kernel is its definition.
 *
 *     y[i] = round(f(x[i], ..))    ku_ref_put(out, i, f(ku_ref_get(in, i), ..))
 *
 * Other devices are tested against it (tests/op). One file per family of ops, as in cpu/.
 */

/* Calls the executor's hook between parts of the work, so that communication progresses. */
struct ku_ref_poll {
    void (*hook)(void *); /* NULL: none */
    void *ctx;
    int64_t work; /* elements read since the last call of the hook */
};
/* 2^16 elements take 0.1 to 0.3 ms. */
enum { KU_REF_POLL_WORK = 1 << 16 };
static inline void ku_ref_worked(struct ku_ref_poll *poll, int64_t n_elements)
{
    poll->work += n_elements;
    if (poll->work >= KU_REF_POLL_WORK) {
        poll->work = 0;
        if (poll->hook)
            poll->hook(poll->ctx);
    }
}

/* One function per op; a missing kernel is a link error. */
#define KU_OP(name, ...) void ku_ref_##name(const struct ku_call *c, struct ku_ref_poll *poll);
#include "op/ops.def"
#undef KU_OP

/* Bytes of workspace by family: the matrices of attention, the frequencies of rope. */
#define KU_OP(name, min_in, max_in, min_out, max_out, traits, map, sum, inout, alias, grad, infer, \
              cost, operands, workspace)                                                           \
    ku_workspace_fn ku_ref_workspace_##workspace;
#include "op/ops.def"
#undef KU_OP

/* ku_device_ops.add_squares */
void ku_ref_add_squares(void *dev, const struct ku_view *x, int64_t *stats, int64_t word);

static inline double ku_ref_get(const struct ku_view *v, int64_t i)
{
    if (v->dtype == KUMI_F32)
        return (double)((const float *)v->data)[i];
    if (v->dtype == KUMI_F64)
        return ((const double *)v->data)[i];
    return ku_load_f64(v->data, v->dtype, i);
}
static inline void ku_ref_put(const struct ku_view *v, int64_t i, double x)
{
    ku_store_f64(v->data, v->dtype, i, x);
}
/* Writes a result of an op with an accumulate form. */
static inline void ku_ref_result(const struct ku_call *c, int out, int64_t i, double x)
{
    ku_ref_put(&c->out[out], i, c->accumulate ? ku_ref_get(&c->out[out], i) + x : x);
}
static inline int64_t ku_ref_count(const struct ku_view *v)
{
    return ku_shape_count(&v->shape);
}
/* Product of dims [from, to). */
static inline int64_t ku_ref_extent(const struct ku_view *v, int from, int to)
{
    int64_t n = 1;
    for (int d = from; d < to; d++)
        n *= v->shape.dim[d].count;
    return n;
}
/* A tensor as rows of its last dim. */
struct ku_ref_rows {
    int64_t n, width;
};
static inline struct ku_ref_rows ku_ref_rows(const struct ku_view *v)
{
    int last = v->shape.ndim - 1;
    return (struct ku_ref_rows){ku_ref_extent(v, 0, last), v->shape.dim[last].count};
}
/* Whether a target takes part in the loss. */
static inline bool ku_ref_is_valid(const struct ku_call *c, int32_t target)
{
    return target >= 0 && target != c->attr->ignore;
}
/*
 * A sum in slices (op/slices.h): the slices' sums come in order and are rounded to `dtype`, as are
 * sums of two of them.
 */
struct ku_ref_tree {
    enum kumi_dtype dtype; /* f32 or f64 */
    int64_t n_slices, n;   /* sums of all, and added so far */
    double node[KU_SLICES_LEVELS];
};
void ku_ref_tree_add(struct ku_ref_tree *t, double sum);

/*
 * Sum of term(ctx, row, column) over the rows of a result's column: all, or by slices of their
 * tokens (ku_slices_of_tokens of operand 0).
 */
typedef double ku_ref_term(const struct ku_call *c, int64_t row, int64_t column);
double ku_ref_sum_rows(const struct ku_call *c, int64_t n_rows, int64_t column, ku_ref_term *term);

/* The flat index of local element i in the logical tensor of the extents `whole`. */
int64_t ku_ref_global_index(const struct ku_view *v, int64_t i, const int64_t *whole);
/* Dropout's factor for the element of this global index: 0, or 1 / (1 - p). */
double ku_ref_keep(const struct ku_call *c, uint64_t index);
/* An activation (enum ku_act) and its derivative. */
double ku_ref_activate(int act, double x);
double ku_ref_slope(int act, double x);

#endif
