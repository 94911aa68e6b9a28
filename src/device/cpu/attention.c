/* SPDX-License-Identifier: Apache-2.0 */
/* Attention: tiles forward are (sample, head, 32 queries), backward (sample, head); attn_body.h. */
#include <math.h>

#include "base/err.h"
#include "device/cpu/cpu.h"

/* qkv is [n, t, 3, h, d] */
static void describe(const struct ku_kernel *k, const struct ku_view *qkv, int64_t sample,
                     int64_t head, int thread, struct ku_attn_tile *a, struct ku_dropout *drop)
{
    const struct ku_shape *s = &qkv->shape;
    const int64_t t = s->dim[1].count, h = s->dim[3].count, d = s->dim[4].count;
    *a = (struct ku_attn_tile){.dtype = qkv->dtype,
                               .t = t,
                               .d = d,
                               .ld = 3 * h * d,
                               .ld_o = h * d,
                               .causal = k->attr.causal != 0,
                               .scratch = ku_cpu_scratch(k, thread),
                               .pool = k->cpu->pool,
                               .thread = thread};
    int64_t q = sample * t * a->ld + head * d;
    a->q = ku_cpu_at(qkv, q);
    a->k = ku_cpu_at(qkv, q + h * d);
    a->v = ku_cpu_at(qkv, q + 2 * h * d);
    a->scale = (float)(k->attr.scale != 0 ? k->attr.scale : 1 / sqrt((double)d));
    if (k->attr.p > 0) {
        *drop = ku_cpu_dropout(k);
        a->drop = drop;
        a->drop_first =
            (uint64_t)((qkv->start[0] + sample) * qkv->logical[3] + qkv->start[3] + head) *
            (uint64_t)(t * t);
    }
}

static int check_attention(struct ku_kernel *k, const struct ku_view *qkv)
{
    const struct ku_shape *s = &qkv->shape;
    KU_TRY(ku_cpu_check_all(k));
    if (s->ndim != 5 || s->dim[2].count != 3)
        return KU_ERR(KUMI_EINVAL, "device cpu: %s: qkv needs [samples, tokens, 3, heads, width]",
                      ku_ops[k->call.op].name);
    if (s->dim[4].count > KU_ATTN_MAX_WIDTH)
        return KU_ERR(KUMI_EINVAL, "device cpu: %s: head width %lld; at most %d, use more heads",
                      ku_ops[k->call.op].name, (long long)s->dim[4].count, KU_ATTN_MAX_WIDTH);
    if (s->dim[1].count > INT32_MAX)
        return KU_ERR(KUMI_EINVAL, "device cpu: %s: %lld tokens; at most 2^31 - 1",
                      ku_ops[k->call.op].name, (long long)s->dim[1].count);
    if (!(k->attr.p >= 0 && k->attr.p < 1))
        return KU_ERR(KUMI_EINVAL, "device cpu: %s: p=%g; 0 <= p < 1", ku_ops[k->call.op].name,
                      k->attr.p);
    k->count = ku_shape_count(s) == 0 ? 0 : s->dim[0].count * s->dim[3].count;
    return KUMI_OK;
}

static int in_pairs(const struct ku_kernel *k, const struct ku_attn_tile *a)
{
    return k->cpu->pairs && a->dtype == KUMI_BF16 && a->d % 2 == 0;
}

static void tile_attention(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *qkv = &k->call.in[0], *o = &k->call.out[0];
    const int64_t h = qkv->shape.dim[3].count, head = tile / k->n_slices;
    struct ku_attn_tile a;
    struct ku_dropout drop;
    describe(k, qkv, head / h, head % h, thread, &a, &drop);
    /* causal: the last queries see the most keys; the longest tiles first */
    a.q0 = (k->n_slices - 1 - tile % k->n_slices) * k->per_tile;
    a.out = ku_cpu_at(o, head / h * a.t * a.ld_o + head % h * a.d);
    a.lse = (float *)k->call.out[1].data + head * a.t;
    (in_pairs(k, &a) ? k->cpu->pairs->attn_forward : k->cpu->ops->attn_forward)(&a);
}
int ku_cpu_bind_attention(struct ku_kernel *k)
{
    const struct ku_view *qkv = &k->call.in[0];
    KU_TRY(check_attention(k, qkv));
    KU_TRY(ku_cpu_check(k, "o", &k->call.out[0], qkv->dtype));
    KU_TRY(ku_cpu_check(k, "log-sum-exp", &k->call.out[1], KUMI_F32));
    k->per_tile = k->cpu->ops->gemm.nr;
    k->n_slices = ku_cpu_tiles(qkv->shape.dim[1].count, k->per_tile);
    ku_cpu_phase(k, tile_attention, k->count * k->n_slices);
    return KUMI_OK;
}

static void tile_attention_dx(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *qkv = &k->call.in[1], *dqkv = &k->call.out[0];
    const int64_t h = qkv->shape.dim[3].count, sample = tile / h, head = tile % h;
    struct ku_attn_tile a;
    struct ku_dropout drop;
    describe(k, qkv, sample, head, thread, &a, &drop);
    int64_t at = sample * a.t * a.ld_o + head * a.d, q = sample * a.t * a.ld + head * a.d;
    a.d_out = ku_cpu_at(&k->call.in[0], at);
    a.o = ku_cpu_at(&k->call.in[2], at);
    a.lse = (float *)k->call.in[3].data + tile * a.t;
    a.dq = ku_cpu_at(dqkv, q);
    a.dk = ku_cpu_at(dqkv, q + a.ld_o);
    a.dv = ku_cpu_at(dqkv, q + 2 * a.ld_o);
    a.sum = (float *)k->call.workspace + tile * ku_attn_sum_count(a.t, a.d);
    (in_pairs(k, &a) ? k->cpu->pairs->attn_backward : k->cpu->ops->attn_backward)(&a);
}
size_t ku_cpu_workspace_attention_dx(const struct ku_op_case *c)
{
    const struct ku_shape *s = &c->in[1].shape;
    return (size_t)(s->dim[0].count * s->dim[3].count *
                    ku_attn_sum_count(s->dim[1].count, s->dim[4].count)) *
           sizeof(float);
}
int ku_cpu_bind_attention_dx(struct ku_kernel *k)
{
    const struct ku_view *qkv = &k->call.in[1];
    KU_TRY(check_attention(k, qkv));
    KU_TRY(ku_cpu_check(k, "do", &k->call.in[0], qkv->dtype));
    KU_TRY(ku_cpu_check(k, "o", &k->call.in[2], qkv->dtype));
    KU_TRY(ku_cpu_check(k, "log-sum-exp", &k->call.in[3], KUMI_F32));
    KU_TRY(ku_cpu_check(k, "dqkv", &k->call.out[0], qkv->dtype));
    ku_cpu_phase(k, tile_attention_dx, k->count);
    return KUMI_OK;
}
