/* SPDX-License-Identifier: Apache-2.0 */
#include "op/attention.h"

#include "base/err.h"

static bool is_same_dim(const struct ku_shape *a, int i, const struct ku_shape *b, int j)
{
    return a->dim[i].count == b->dim[j].count && a->dim[i].name == b->dim[j].name;
}

/* Strides of an operand [samples, tokens, heads, .., width] or [samples, heads, tokens, width]. */
static struct ku_attn_rows rows_of(const struct ku_shape *const *in, int operand, int heads)
{
    const struct ku_dim *dim = in[operand]->dim;
    struct ku_attn_rows r = {.operand = operand, .ld = 1};
    for (int d = 2; d < in[operand]->ndim; d++)
        r.ld *= dim[d].count;
    r.per_sample = dim[1].count * r.ld;
    r.per_head = dim[in[operand]->ndim - 1].count;
    if (heads == 1) {
        r.ld = r.per_head;
        r.per_head *= dim[2].count;
    }
    return r;
}

/* The dim of k that has the name of q's heads: 1 or 2. */
static int heads_of(const struct ku_shape *q, const struct ku_shape *k)
{
    return k->dim[1].name == q->dim[2].name ? 1 : 2;
}

/*
 * Operands of attention: qkv, segments?, control. Of attention_dx: do, qkv, o, lse, segments?,
 * control.
 */
static struct ku_attention of_packed(int op, int n_in, const struct ku_shape *const *in)
{
    const int is_dx = op == KU_OP_attention_dx, qkv = is_dx, masks = is_dx ? 4 : 1;
    const struct ku_dim *dim = in[qkv]->dim;
    const int64_t one = dim[3].count * dim[4].count; /* elements of q, k or v per token */
    struct ku_attention a = {.n_samples = dim[0].count,
                             .n_queries = dim[1].count,
                             .n_keys = dim[1].count,
                             .n_heads = dim[3].count,
                             .group = 1,
                             .width = dim[4].count,
                             .k_heads = 3,
                             .lse = is_dx ? 3 : -1,
                             .positions = -1,
                             .lengths = -1,
                             .segments = n_in - 1 > masks ? masks : -1,
                             .control = n_in - 1};
    a.q = a.k = a.v = rows_of(in, qkv, 3);
    a.k.first = one;
    a.v.first = 2 * one;
    a.o = a.d_o = (struct ku_attn_rows){-1, 0, dim[1].count * one, one, a.width};
    a.o.operand = is_dx ? 2 : -1;
    a.d_o.operand = is_dx ? 0 : -1;
    return a;
}

/*
 * Operands of attention_kv: q, k, v, positions?, lengths?, segments?, control. attention_kv_dx has
 * do, o, lse before them.
 */
static struct ku_attention of_separate(int op, const struct ku_attrs *attr, int n_in,
                                       const struct ku_shape *const *in)
{
    const int is_dx = op == KU_OP_attention_kv_dx, q = is_dx ? 3 : 0;
    const struct ku_shape *x = in[q], *k = in[q + 1];
    const int heads = heads_of(x, k), masks = q + 3 + (attr->positions != 0);
    struct ku_attention a = {.n_samples = x->dim[0].count,
                             .n_queries = x->dim[1].count,
                             .n_keys = k->dim[3 - heads].count,
                             .n_heads = k->dim[heads].count,
                             .group = x->ndim == 5 ? x->dim[3].count : 1,
                             .width = k->dim[3].count,
                             .k_heads = heads,
                             .lse = is_dx ? 2 : -1,
                             .positions = attr->positions ? q + 3 : -1,
                             .lengths = -1,
                             .segments = -1,
                             .control = n_in - 1};
    a.q = rows_of(in, q, 2);
    a.k = rows_of(in, q + 1, heads);
    a.v = rows_of(in, q + 2, heads);
    a.o = a.d_o = a.q;
    a.o.operand = is_dx ? 1 : -1;
    a.d_o.operand = is_dx ? 0 : -1;
    for (int i = masks; i < n_in - 1; i++)
        if (in[i]->ndim == 1)
            a.lengths = i;
        else
            a.segments = i;
    return a;
}

struct ku_attention ku_attention_of(int op, const struct ku_attrs *attr, int n_in,
                                    const struct ku_shape *const *in)
{
    if (op == KU_OP_attention || op == KU_OP_attention_dx)
        return of_packed(op, n_in, in);
    return of_separate(op, attr, n_in, in);
}

static int misfit(const char *what, const struct ku_type *t)
{
    char text[160];
    return KU_ERR(KUMI_EINVAL, "op: attention_kv: %s: got %s %s", what, kumi_dtype_name(t->dtype),
                  ku_shape_print(&t->shape, text, sizeof text));
}

/* Checks positions [n], lengths [n], segments [n, s] and the control port, which is last. */
static int check_masks(const struct ku_attrs *a, int n_in, const struct ku_type *in)
{
    const struct ku_shape *q = &in[0].shape, *k = &in[1].shape;
    const int keys = 3 - heads_of(q, k), first = 3 + (a->positions != 0);
    int n_lengths = 0, n_segments = 0;
    if (first > 3 && (n_in < 5 || in[3].dtype != KUMI_I32 || in[3].shape.ndim != 1 ||
                      !is_same_dim(&in[3].shape, 0, k, 0)))
        return misfit("positions must be i32 [samples] and follow v", &in[3]);
    for (int i = first; i < n_in - 1; i++) {
        const struct ku_shape *m = &in[i].shape;
        if (in[i].dtype != KUMI_I32 || m->ndim < 1 || m->ndim > 2 || !is_same_dim(m, 0, k, 0) ||
            (m->ndim == 2 && !is_same_dim(m, 1, k, keys)))
            return misfit("lengths must be i32 [samples], segments i32 [samples, keys]", &in[i]);
        n_lengths += m->ndim == 1;
        n_segments += m->ndim == 2;
        if (n_lengths > 1 || n_segments > 1)
            return misfit("takes at most one operand of lengths and one of segments", &in[i]);
        if (m->ndim == 2 && (first > 3 || q->dim[1].count > k->dim[keys].count))
            return misfit("segments need a key for every query, and no positions", &in[0]);
    }
    if (in[n_in - 1].dtype != KUMI_I64)
        return misfit("the control port must be the last operand", &in[n_in - 1]);
    return KUMI_OK;
}

static int check_operands(const struct ku_attrs *a, int n_in, const struct ku_type *in)
{
    const struct ku_shape *q = &in[0].shape, *k = &in[1].shape;
    if (q->ndim < 4 || q->ndim > 5 || q->dim[q->ndim - 1].count < 1)
        return misfit("q needs [samples, queries, heads, (queries' heads each,) width >= 1]",
                      &in[0]);
    if (k->ndim != 4 || !is_same_dim(q, 0, k, 0) || !is_same_dim(q, 2, k, heads_of(q, k)) ||
        !is_same_dim(q, q->ndim - 1, k, 3))
        return misfit("k needs [samples, keys, heads, width], or heads before keys, with q's "
                      "samples, heads and width",
                      &in[1]);
    if (!ku_shape_is_equal(k, &in[2].shape))
        return misfit("v needs the shape of k", &in[2]);
    if (in[1].dtype != in[0].dtype || in[2].dtype != in[0].dtype)
        return misfit("q, k and v need one dtype", &in[in[1].dtype != in[0].dtype ? 1 : 2]);
    if (a->causal && !a->positions && q->dim[1].count > k->dim[3 - heads_of(q, k)].count)
        return misfit("causal attention needs a key for every query", &in[0]);
    return check_masks(a, n_in, in);
}

ku_infer_fn ku_infer_attention_kv;
int ku_infer_attention_kv(const struct ku_attrs *a, int n_in, const struct ku_type *in,
                          struct ku_type *out)
{
    const struct ku_shape *q = &in[0].shape;
    KU_TRY(check_operands(a, n_in, in));
    out[0] = in[0];
    out[1].dtype = in[0].dtype == KUMI_F64 ? KUMI_F64 : KUMI_F32;
    struct ku_shape *lse = &out[1].shape; /* heads before queries */
    lse->dim[lse->ndim++] = q->dim[0];
    for (int d = 2; d < q->ndim - 1; d++)
        lse->dim[lse->ndim++] = q->dim[d];
    lse->dim[lse->ndim++] = q->dim[1];
    return KUMI_OK;
}

ku_infer_fn ku_infer_attention_kv_dx;
int ku_infer_attention_kv_dx(const struct ku_attrs *a, int n_in, const struct ku_type *in,
                             struct ku_type *out)
{
    KU_TRY(check_operands(a, n_in - 3, in + 3));
    for (int i = 0; i < 2; i++) /* do, o */
        if (!ku_shape_is_equal(&in[i].shape, &in[3].shape))
            return misfit("do and o need the shape of q", &in[i]);
    for (int i = 0; i < 3; i++)
        out[i] = in[3 + i];
    return KUMI_OK;
}
