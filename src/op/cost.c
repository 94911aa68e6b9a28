/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cost of an op from its local types: FLOPs and the minimum number of bytes moved. Input of the
 * roofline and the simulator.
 */
#include <math.h>

#include "op/op.h"
#include "op/window.h"

#define COST(name)                                                                                 \
    ku_cost_fn ku_cost_##name;                                                                     \
    struct ku_cost ku_cost_##name(const struct ku_attrs *a, int accumulate, int n_in,              \
                                  const struct ku_type *in, int n_out, const struct ku_type *out)

static double count_of(const struct ku_type *t)
{
    return (double)ku_shape_count(&t->shape);
}
static double bytes_of(int n, const struct ku_type *t)
{
    double bytes = 0;
    for (int i = 0; i < n; i++)
        bytes += count_of(&t[i]) * (double)kumi_dtype_bytes(t[i].dtype);
    return bytes;
}

/* Reads the operands and writes the results; an accumulator is read too. */
static double moved(int accumulate, int n_in, const struct ku_type *in, int n_out,
                    const struct ku_type *out)
{
    return bytes_of(n_in, in) + (accumulate ? 2 : 1) * bytes_of(n_out, out);
}

COST(elementwise)
{
    (void)a;
    return (struct ku_cost){n_in ? count_of(&in[0]) : count_of(&out[0]),
                            moved(accumulate, n_in, in, n_out, out)};
}

/* Reads and writes the smaller of source and result. */
COST(copy)
{
    (void)a, (void)accumulate, (void)n_out;
    double x = bytes_of(1, &in[n_in > 1]), y = bytes_of(1, &out[0]);
    return (struct ku_cost){0, 2 * (x < y ? x : y)};
}

/* Reads only the rows that are indexed. */
COST(rows)
{
    (void)a, (void)accumulate, (void)n_in, (void)n_out;
    return (struct ku_cost){count_of(&out[0]), 2 * bytes_of(1, &out[0]) + bytes_of(1, &in[1])};
}

/*
 * Writes the whole table, zeros in rows without an index; adding to a table reads and writes at
 * most one row per index.
 */
COST(rows_dw)
{
    (void)a;
    const double table = bytes_of(n_out, out);
    const double rows = count_of(&in[1]) * (double)kumi_dtype_bytes(out[0].dtype);
    return (struct ku_cost){count_of(&in[1]),
                            bytes_of(n_in, in) + (accumulate ? 2 * fmin(rows, table) : table)};
}

/*
 * 2 m k n FLOPs: the matrices hold m k, k n and m n elements in some order; their product is (m k
 * n)^2.
 */
COST(linear)
{
    (void)a;
    double flops = 2 * sqrt(count_of(&in[0]) * count_of(&in[1]) * count_of(&out[0]));
    return (struct ku_cost){flops, moved(accumulate, n_in, in, n_out, out)};
}

/*
 * Forward: the products q.k and p.v. Backward: both again, and three products for the gradients.
 * Causally masked keys and keys of other segments are counted.
 */
COST(attention)
{
    (void)a;
    const struct ku_shape *qkv = &in[n_out == 2 ? 0 : 1].shape;
    double t = (double)qkv->dim[1].count;
    double product = 2 * (double)qkv->dim[0].count * (double)qkv->dim[3].count * t * t *
                     (double)qkv->dim[4].count;
    return (struct ku_cost){product * (n_out == 2 ? 2 : 5),
                            moved(accumulate, n_in, in, n_out, out)};
}

/* 2 FLOPs per element of the weight and pixel of the result, padding included. */
COST(conv2d)
{
    const struct ku_type *w = out[0].shape.dim[1].name == 'i' ? &out[0] : &in[1];
    int64_t h = ku_window_extent(a->in_h, a->kernel_h, a->stride_h, a->pad_h, a->dilation_h);
    int64_t width = ku_window_extent(a->in_w, a->kernel_w, a->stride_w, a->pad_w, a->dilation_w);
    double pixels = (double)in[0].shape.dim[0].count * (double)h * (double)width;
    return (struct ku_cost){2 * pixels * count_of(w), moved(accumulate, n_in, in, n_out, out)};
}

/*
 * As attention, for separate operands. Keys masked by lengths or segments are counted.
 */
COST(attention_kv)
{
    (void)a;
    const struct ku_type *q = &in[n_out == 2 ? 0 : 3];
    const struct ku_dim *k = q[1].shape.dim;
    double product = 2 * count_of(q) * (double)k[k[1].name == q->shape.dim[2].name ? 2 : 1].count;
    return (struct ku_cost){product * (n_out == 2 ? 2 : 5),
                            moved(accumulate, n_in, in, n_out, out)};
}
