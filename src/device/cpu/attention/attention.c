/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention: chooses the inner loop and cuts the call into tiles.
 *
 *     one query, no dropout     (sample, head of keys)            decode_body.h
 *     short bf16 sequences      several heads                     short_body.h
 *     forward                   (sample, query head, queries)     attn_body.h; bf16:
 *     backward                  (sample, head of keys)            dot_pairs_body.h, tiles_body.h
 */
#include <math.h>

#include "base/err.h"
#include "device/cpu/cpu.h"
#include "op/attention.h"
#include "tensor/dtype.h"

static struct ku_attention geometry(const struct ku_kernel *k)
{
    const struct ku_shape *shape[KU_MAX_IN];
    for (int i = 0; i < k->call.n_in; i++)
        shape[i] = &k->call.in[i].shape;
    return ku_attention_of(k->call.op, &k->attr, k->call.n_in, shape);
}
static const void *row_of(const struct ku_kernel *k, const struct ku_attn_rows *rows,
                          int64_t sample, int64_t head)
{
    return ku_cpu_at(&k->call.in[rows->operand], ku_attn_at(rows, sample, 0, head));
}

/* head: index of the query head. */
static void describe(const struct ku_kernel *k, int64_t sample, int64_t head, int thread,
                     struct ku_attn_tile *t, struct ku_dropout *drop)
{
    const struct ku_attention *a = &k->attention;
    const struct ku_view *in = k->call.in, *keys = &in[a->k.operand];
    const int32_t *position = a->positions < 0 ? NULL : in[a->positions].data;
    *t = (struct ku_attn_tile){.q = row_of(k, &a->q, sample, head),
                               .k = row_of(k, &a->k, sample, head / a->group),
                               .v = row_of(k, &a->v, sample, head / a->group),
                               .dtype = in[a->q.operand].dtype,
                               .t = a->n_queries,
                               .s = a->n_keys,
                               .d = a->width,
                               .ld_q = a->q.ld,
                               .ld_k = a->k.ld,
                               .ld_o = a->o.ld,
                               .n_seen = a->n_keys,
                               .offset = ku_attn_offset(a, position, sample),
                               .n_heads = a->group,
                               .causal = k->attr.causal != 0,
                               .scratch = ku_cpu_scratch(k, thread),
                               .pool = k->cpu->pool,
                               .thread = thread};
    t->scale = (float)(k->attr.scale != 0 ? k->attr.scale : 1 / sqrt((double)a->width));
    if (a->lengths >= 0) {
        int64_t length = ((const int32_t *)in[a->lengths].data)[sample];
        t->n_seen = length < 0 ? 0 : length < t->s ? length : t->s;
    }
    if (a->segments >= 0)
        t->segment = (const int32_t *)in[a->segments].data + sample * t->s;
    if (k->attr.p > 0) {
        const int dim = a->k_heads;
        int64_t row = (in[a->q.operand].start[0] + sample) * keys->logical[dim] + keys->start[dim];
        const struct ku_view *q =
            &in[a->q.operand]; /* of the heads of a group a rank may have some */
        const bool is_grouped = q->shape.ndim == 5 && a->k_heads != 3;
        const int64_t group = is_grouped ? q->logical[3] : 1, first = is_grouped ? q->start[3] : 0;
        row = (row + head / a->group) * group + first + head % a->group;
        t->drop = drop;
        t->drop_first = (uint64_t)row * (uint64_t)(t->t * t->s);
    }
}

static int check_attention(struct ku_kernel *k, const struct ku_attention *a)
{
    const char *name = ku_ops[k->call.op].name;
    const enum kumi_dtype dtype = k->call.in[a->q.operand].dtype;
    KU_TRY(ku_cpu_check_all(k));
    for (int i = 0; i < k->call.n_in; i++)
        if (ku_dtype_is_float(k->call.in[i].dtype) && i != a->lse)
            KU_TRY(ku_cpu_check(k, "an operand", &k->call.in[i], dtype));
    if (a->lse >= 0)
        KU_TRY(ku_cpu_check(k, "log-sum-exp", &k->call.in[a->lse], KUMI_F32));
    if (a->width > KU_ATTN_MAX_WIDTH)
        return KU_ERR(KUMI_EINVAL, "device cpu: %s: head width %lld; at most %d: use more heads",
                      name, (long long)a->width, KU_ATTN_MAX_WIDTH);
    if (a->n_queries > INT32_MAX / 2 || a->n_keys > INT32_MAX / 2)
        return KU_ERR(KUMI_EINVAL, "device cpu: %s: %lld queries, %lld keys; at most 2^30", name,
                      (long long)a->n_queries, (long long)a->n_keys);
    if (!(k->attr.p >= 0 && k->attr.p < 1))
        return KU_ERR(KUMI_EINVAL, "device cpu: %s: p=%g; give 0 <= p < 1", name, k->attr.p);
    return KUMI_OK;
}

/* The loops of bf16; NULL: those of all dtypes. */
static const struct ku_attn_bf16 *loops_bf16(const struct ku_kernel *k)
{
    const struct ku_attention *a = &k->attention;
    return k->call.in[a->q.operand].dtype == KUMI_BF16 && a->width % 2 == 0 ? k->cpu->attn_bf16
                                                                            : NULL;
}

static void tile_attention(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_attention a = k->attention;
    const int64_t n_heads = a.n_heads * a.group, row = tile / k->n_slices;
    const int64_t sample = row / n_heads, head = row % n_heads;
    struct ku_attn_tile t;
    struct ku_dropout drop = ku_cpu_dropout(k);
    describe(k, sample, head, thread, &t, &drop);
    /* causal: the last queries see the most keys; the longest tiles start first */
    t.q0 = (k->n_slices - 1 - tile % k->n_slices) * k->per_tile;
    t.out = ku_cpu_at(&k->call.out[0], ku_attn_at(&a.o, sample, 0, head));
    t.lse = (float *)k->call.out[1].data + ku_attn_lse_at(&a, sample, head);
    const struct ku_attn_bf16 *bf16 = loops_bf16(k);
    (bf16 ? bf16->forward : k->cpu->ops->attn_forward)(&t);
}
/* One query, all query heads that share a head of keys. */
static void tile_decode(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_attention a = k->attention;
    const int64_t sample = tile / a.n_heads, head = tile % a.n_heads * a.group;
    struct ku_attn_tile t;
    describe(k, sample, head, thread, &t, NULL);
    if (t.causal && t.offset + 1 < t.n_seen)
        t.n_seen = t.offset + 1;
    t.out = ku_cpu_at(&k->call.out[0], ku_attn_at(&a.o, sample, 0, head));
    t.lse = (float *)k->call.out[1].data + ku_attn_lse_at(&a, sample, head);
    k->cpu->ops->attn_decode(&t);
}
static bool is_decode(const struct ku_kernel *k, const struct ku_attention *a)
{
    return a->n_queries == 1 && a->segments < 0 && k->attr.p == 0 &&
           a->group * (a->width + 8) * 2 * (int64_t)sizeof(float) <= KU_CPU_SCRATCH_BYTES;
}

/* Gradients of one head of keys and of the query heads that share it. */
static void describe_dx(const struct ku_kernel *k, int64_t pair, int thread, struct ku_attn_tile *t,
                        struct ku_dropout *drop)
{
    const struct ku_attention *a = &k->attention;
    const int64_t sample = pair / a->n_heads, key_head = pair % a->n_heads;
    const int64_t head = key_head * a->group;
    const struct ku_view *out = k->call.out;
    const int is_packed = k->call.n_out == 1;
    describe(k, sample, head, thread, t, drop);
    t->d_out = row_of(k, &a->d_o, sample, head);
    t->o = row_of(k, &a->o, sample, head);
    t->lse = (float *)k->call.in[a->lse].data + ku_attn_lse_at(a, sample, head);
    t->dq = ku_cpu_at(&out[0], ku_attn_at(&a->q, sample, 0, head));
    t->dk = ku_cpu_at(&out[is_packed ? 0 : 1], ku_attn_at(&a->k, sample, 0, key_head));
    t->dv = ku_cpu_at(&out[is_packed ? 0 : 2], ku_attn_at(&a->v, sample, 0, key_head));
    t->sum =
        (float *)k->call.workspace + pair * a->group * ku_attn_sum_count(a->n_queries, a->width);
}
static void tile_attention_dx(const struct ku_kernel *k, int64_t tile, int thread)
{
    struct ku_attn_tile t;
    struct ku_dropout drop = ku_cpu_dropout(k);
    describe_dx(k, tile, thread, &t, &drop);
    const struct ku_attn_bf16 *bf16 = loops_bf16(k);
    (bf16 ? bf16->backward : k->cpu->ops->attn_backward)(&t);
}

/*
 * Few queries and keys: a tile takes several heads, so that its work exceeds the cost of scheduling
 * it.
 */
static bool is_short(const struct ku_kernel *k)
{
    const struct ku_attention *a = &k->attention;
    return loops_bf16(k) && k->cpu->pairs && a->segments < 0 && a->n_queries <= KU_ATTN_SHORT &&
           a->n_keys <= KU_ATTN_SHORT;
}
static void bind_short(struct ku_kernel *k, ku_cpu_tile_fn *fn, int64_t n_heads)
{
    const struct ku_attention *a = &k->attention;
    k->count = a->n_samples * n_heads;
    k->per_tile = 1 + (1 << 16) / (a->n_queries * a->n_keys * a->width + 1);
    ku_cpu_phase(k, fn, ku_cpu_tiles(k->count, k->per_tile));
}
/*
 * Prefetches the rows of a head of the next sample, which are too far apart for the hardware
 * prefetcher. Inline, because gcc drops calls of a function that only prefetches.
 */
static inline __attribute__((always_inline)) void fetch_next(const struct ku_kernel *k,
                                                             const void *x,
                                                             const struct ku_attn_rows *rows,
                                                             int64_t sample, int64_t n)
{
    if (sample + 1 == k->attention.n_samples)
        return;
    for (int64_t i = 0; i < n; i++) {
        const char *at = (const char *)x + 2 * (rows->per_sample + i * rows->ld);
        for (int64_t b = 0; b < 2 * k->attention.width; b += 64)
            __builtin_prefetch(at + b, 0, 2);
    }
}
static void tile_short(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_attention *a = &k->attention;
    const int64_t n_heads = a->n_heads * a->group;
    struct ku_attn_tile t;
    struct ku_dropout drop = ku_cpu_dropout(k);
    int64_t from, n;
    ku_cpu_range(k, tile, &from, &n);
    for (int64_t i = from; i < from + n; i++) {
        const int64_t sample = i / n_heads, head = i % n_heads;
        describe(k, sample, head, thread, &t, &drop);
        t.out = ku_cpu_at(&k->call.out[0], ku_attn_at(&a->o, sample, 0, head));
        t.lse = (float *)k->call.out[1].data + ku_attn_lse_at(a, sample, head);
        fetch_next(k, t.q, &a->q, sample, t.t);
        fetch_next(k, t.k, &a->k, sample, t.s);
        fetch_next(k, t.v, &a->v, sample, t.s);
        fetch_next(k, t.out, &a->o, sample, t.t);
        k->cpu->pairs->attn_short_forward(&t);
    }
}
static void tile_short_dx(const struct ku_kernel *k, int64_t tile, int thread)
{
    struct ku_attn_tile t;
    struct ku_dropout drop = ku_cpu_dropout(k);
    int64_t from, n;
    ku_cpu_range(k, tile, &from, &n);
    for (int64_t i = from; i < from + n; i++) {
        const int64_t sample = i / k->attention.n_heads;
        describe_dx(k, i, thread, &t, &drop);
        const void *queries[] = {t.q, t.o, t.d_out, t.dq}, *keys[] = {t.k, t.v, t.dk, t.dv};
        for (int x = 0; x < 4; x++) {
            fetch_next(k, queries[x], x % 3 ? &k->attention.o : &k->attention.q, sample, t.t);
            fetch_next(k, keys[x], &k->attention.k, sample, t.s);
        }
        k->cpu->pairs->attn_short_backward(&t);
    }
}

int ku_cpu_bind_attention(struct ku_kernel *k)
{
    const struct ku_attention a = k->attention = geometry(k);
    KU_TRY(check_attention(k, &a));
    KU_TRY(ku_cpu_check(k, "o", &k->call.out[0], k->call.in[a.q.operand].dtype));
    KU_TRY(ku_cpu_check(k, "log-sum-exp", &k->call.out[1], KUMI_F32));
    if (is_decode(k, &a)) {
        ku_cpu_phase(k, tile_decode, a.n_samples * a.n_heads);
        return KUMI_OK;
    }
    if (is_short(k)) {
        bind_short(k, tile_short, a.n_heads * a.group);
        return KUMI_OK;
    }
    const struct ku_attn_bf16 *bf16 = loops_bf16(k);
    k->per_tile = bf16 ? bf16->queries : k->cpu->ops->gemm.nr;
    k->n_slices = ku_cpu_tiles(a.n_queries, k->per_tile);
    ku_cpu_phase(k, tile_attention, a.n_samples * a.n_heads * a.group * k->n_slices);
    return KUMI_OK;
}
int ku_cpu_bind_attention_kv(struct ku_kernel *k)
{
    return ku_cpu_bind_attention(k);
}

size_t ku_cpu_workspace_attention(const struct ku_op_case *c)
{
    if (c->op == KU_OP_attention || c->op == KU_OP_attention_kv)
        return 0;
    const struct ku_shape *shape[KU_MAX_IN];
    for (int i = 0; i < c->n_in; i++)
        shape[i] = &c->in[i].shape;
    const struct ku_attention a = ku_attention_of(c->op, c->attr, c->n_in, shape);
    return (size_t)(a.n_samples * a.n_heads * a.group * ku_attn_sum_count(a.n_queries, a.width)) *
           sizeof(float);
}
int ku_cpu_bind_attention_dx(struct ku_kernel *k)
{
    const struct ku_attention a = k->attention = geometry(k);
    KU_TRY(check_attention(k, &a));
    for (int o = 0; o < k->call.n_out; o++)
        KU_TRY(ku_cpu_check(k, "a gradient", &k->call.out[o], k->call.in[a.q.operand].dtype));
    if (is_short(k))
        bind_short(k, tile_short_dx, a.n_heads);
    else
        ku_cpu_phase(k, tile_attention_dx, a.n_samples * a.n_heads);
    return KUMI_OK;
}
int ku_cpu_bind_attention_kv_dx(struct ku_kernel *k)
{
    return ku_cpu_bind_attention_dx(k);
}
