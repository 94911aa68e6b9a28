/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The collectives of buckets. With overlap a bucket starts where its last operand is complete; it
 * is waited for where O first reads it.
 *
 * Some buckets also finish during backward, to free the memory of whole gradients: ZeRO stage 2 and
 * up, and hybrid sharding (a reduce-scatter over shards, then an all-reduce over replicas). When a
 * bucket starts, the third last is finished and the second last starts its second collective:
 *
 *     bucket     0               1               2               3
 *     starts     reduce-scatter  reduce-scatter  reduce-scatter  reduce-scatter
 *     finishes                                   0 -> shard      1 -> shard
 *
 * grad_sync: micro reduces every micro-batch: from the second on, the collective adds the local
 * shard of the earlier ones. It finishes before the backward of the next micro-batch, so whole
 * gradients of two micro-batches never exist at once.
 */
#include "base/err.h"
#include "base/math/exact.h"
#include "base/mem.h"
#include "ir/placement_rules.h"
#include "pass/lower/lower.h"

bool ku_bucket_is_gather(const struct ku_graph *g, ku_id node)
{
    return ku_place_is_gather(g, node);
}

static const ku_id *converts(const struct ku_lower *l, uint32_t b)
{
    return &l->g->refs[l->g->bucket[b].first];
}

/* The axes of a bucket's reduce-scatter (result partitioned), and those of its all-reduce. */
static int block_axes(const struct ku_lower *l, uint32_t b)
{
    ku_id to = ku_out(l->g, converts(l, b)[0], 0);
    const struct ku_layout *layout = &l->g->layout[l->g->value[to].layout];
    int axes = ku_lower_axes(l, converts(l, b)[0]);
    for (int a = 0; a < KU_AX_FIRST_TIME; a++)
        if (layout->at[a].kind != KU_Z)
            axes &= ~(1 << a);
    return axes;
}
static int sum_axes(const struct ku_lower *l, uint32_t b)
{
    const int blocks = block_axes(l, b);
    return blocks == 1 << KU_AX_LOCAL ? 0 : ku_lower_axes(l, converts(l, b)[0]) & ~blocks;
}

/*
 * All axes of a bucket's first collective. Where each host shares one copy of the state, one
 * reduction sums over all hosts and leaves on each rank its shard of axis local.
 */
static int first_axes(const struct ku_lower *l, uint32_t b)
{
    const int blocks = block_axes(l, b), sums = sum_axes(l, b);
    return blocks && sums ? blocks : ku_lower_axes(l, converts(l, b)[0]);
}

/* Whether each micro-batch is reduced and added to the local shard (grad_sync: micro). */
static bool is_by_micro(const struct ku_lower *l, uint32_t b)
{
    return (int)l->g->attr[l->g->node[converts(l, b)[0]].attr].by_micro;
}

/* Whether a reduce-scatter over these axes frees the memory of whole gradients (ZeRO stage 2). */
static bool frees_gradients(const struct ku_lower *l, int axes)
{
    return axes >> KU_AX_SHARD & 1 && l->o->zero >= 2;
}

/* Whether the bucket finishes during backward. */
static bool moves_on(const struct ku_lower *l, uint32_t b)
{
    int axes = block_axes(l, b);
    return !ku_bucket_is_gather(l->g, converts(l, b)[0]) &&
           (is_by_micro(l, b) || frees_gradients(l, axes) || (axes && sum_axes(l, b)));
}

/* The stats value that a convert adds squares to: converts precede the chain that begins in A. */
static ku_id stats_of(const struct ku_lower *l, ku_id convert)
{
    ku_id v = ku_in(l->g, &l->g->node[convert], 1);
    v = l->stats[v] ? l->stats[v] : v;
    KU_ASSERT(l->buffer[v] != 0);
    return v;
}

/* The accumulated value whose sum over ranks is `value`. */
static ku_id sum_of(const struct ku_lower *l, ku_id value)
{
    return ku_in(l->g, &l->g->node[l->g->value[value].def], 0);
}

/* Sets the wire dtype of the reduction that was just started. */
static void set_wire(struct ku_lower *l, ku_id convert)
{
    const int64_t wire = l->g->attr[l->g->node[convert].attr].wire;
    if (wire >= 0)
        l->p->instr[l->p->n_instrs - 1].wire = (uint8_t)wire;
}

/* A new buffer for a reduced value: for the local shard if it is partitioned, else for all of
 * it. */
static ku_id keep(struct ku_lower *l, ku_id value, int arena)
{
    ku_id layout = l->g->value[value].layout;
    return ku_layout_has(&l->g->layout[layout], KU_Z)
               ? ku_lower_local_buffer(l, value, layout, arena, KU_CL_GRAD)
               : ku_lower_buffer(l, value, arena, KU_CL_GRAD);
}

/* Gives reduced values separate buffers, so that the memory of the whole gradients becomes free. */
static int keep_reduced(struct ku_lower *l, uint32_t b)
{
    const bool is_read = sum_axes(l, b) || ku_lower_is_summed_over_tp(l, converts(l, b)[0]);
    int arena = is_read ? KU_AR_WIRE : KU_AR_STEP; /* other ranks read it in place */
    for (uint32_t i = 0; i < l->g->bucket[b].n; i++) {
        ku_id convert = converts(l, b)[i], to = ku_out(l->g, convert, 0);
        struct ku_accumulation *f = &l->accumulate[ku_in(l->g, &l->g->node[convert], 0)];
        if (f->by_micro && block_axes(l, b) && sum_axes(l, b) &&
            (f->piece = keep(l, to, KU_AR_WIRE)) == 0)
            return ku_err_get()->status;
        if (f->by_micro && l->mb > 0)
            continue;
        f->kept = keep(l, to, arena);
        if (f->kept == 0)
            return ku_err_get()->status;
        l->p->buffer[f->kept].micro = -1;
    }
    return KUMI_OK;
}

/* The last collective of a micro-batch adds the result of the earlier ones. Uses the bucket's own
 * mb: the all-reduce over replicas may start during the next micro-batch. */
static void add_earlier(const struct ku_lower *l, const struct ku_accumulation *f,
                        struct ku_operand *part)
{
    part->out = f->kept;
    if (f->by_micro && l->bucket[f->bucket].mb > 0)
        part->addend = f->kept;
}

/* The operand of one convert in its bucket's collective, and the stats that it adds to. */
static struct ku_operand part_of(const struct ku_lower *l, ku_id convert, struct ku_operand *stats)
{
    const struct ku_graph *g = l->g;
    const struct ku_node *n = &g->node[convert];
    const struct ku_accumulation *f = &l->accumulate[ku_in(g, n, 0)];
    ku_id to = ku_out(g, convert, 0);
    KU_ASSERT(f->convert == convert && f->sum != 0);
    struct ku_operand part = ku_lower_operand(l, to, f->sum, g->value[to].layout);
    if (f->piece)
        part.out = f->piece;
    else
        add_earlier(l, f, &part);
    if (n->n_in == 1 || (f->by_micro && l->mb < l->n_mb - 1))
        return part;
    if (n->n_in > 2) {
        const struct ku_accumulation *other = &l->accumulate[sum_of(l, ku_in(g, n, 2))];
        part.addend = other->kept ? other->kept : other->sum;
    }
    ku_id v = stats_of(l, convert);
    *stats = ku_lower_operand(l, v, l->buffer[v], g->value[ku_out(g, convert, 1)].layout);
    part.stats_word = KU_EXACT_WORDS + (uint32_t)g->attr[n->attr].index;
    return part;
}

static int start_reduction(struct ku_lower *l, uint32_t b)
{
    const struct ku_graph *g = l->g;
    const ku_id *convert = converts(l, b);
    const uint32_t n = g->bucket[b].n;
    struct ku_operand *part = ku_calloc(n, sizeof *part), stats = {0};
    int blocks = block_axes(l, b), kind = blocks ? KU_X_REDUCE_SCATTER : KU_X_ALL_REDUCE;
    int status = part ? KUMI_OK : KUMI_ENOMEM;
    if (status == KUMI_OK && (frees_gradients(l, blocks) || is_by_micro(l, b)))
        status = keep_reduced(l, b);
    for (uint32_t i = 0; i < n && status == KUMI_OK; i++) {
        part[i] = part_of(l, convert[i], &stats);
        l->reduced[convert[i]] |= (uint8_t)first_axes(l, b);
    }
    if (status == KUMI_OK)
        status = ku_lower_start(
            l, kind, first_axes(l, b), (int)g->attr[g->node[convert[0]].attr].reduce,
            stats.buffer ? &stats : NULL, part, n, g->node[convert[0]].path, &l->bucket[b].handle);
    if (status == KUMI_OK)
        set_wire(l, convert[0]);
    ku_free(part);
    return status;
}

/* Starts the all-reduce of the local shards over replicas. */
static int start_spreading(struct ku_lower *l, uint32_t b)
{
    const struct ku_graph *g = l->g;
    const ku_id *convert = converts(l, b);
    const uint32_t n = g->bucket[b].n;
    struct ku_operand *part = ku_calloc(n, sizeof *part);
    if (part == NULL)
        return KUMI_ENOMEM;
    for (uint32_t i = 0; i < n; i++) {
        const struct ku_accumulation *f = &l->accumulate[ku_in(g, &g->node[convert[i]], 0)];
        ku_id to = ku_out(g, convert[i], 0);
        ku_id from = f->piece ? f->piece : f->kept ? f->kept : f->sum;
        KU_ASSERT(from != 0);
        part[i] = ku_lower_operand(l, to, from, g->value[to].layout);
        l->reduced[convert[i]] |= (uint8_t)sum_axes(l, b);
        if (f->piece)
            add_earlier(l, f, &part[i]);
    }
    int status = ku_lower_start(l, KU_X_ALL_REDUCE, sum_axes(l, b),
                                (int)g->attr[g->node[convert[0]].attr].reduce, NULL, part, n,
                                g->node[convert[0]].path, &l->bucket[b].handle);
    if (status == KUMI_OK)
        set_wire(l, convert[0]);
    ku_free(part);
    return status;
}

/* Starts an all-gather of owned shards, in place. */
static int start_gathers(struct ku_lower *l, const ku_id *convert, uint32_t n, uint32_t *handle)
{
    const struct ku_graph *g = l->g;
    struct ku_operand *part = ku_calloc(n, sizeof *part);
    if (part == NULL)
        return KUMI_ENOMEM;
    for (uint32_t i = 0; i < n; i++) {
        ku_id from = ku_in(g, &g->node[convert[i]], 0);
        KU_ASSERT(l->buffer[from] != 0);
        l->reduced[convert[i]] |= (uint8_t)ku_lower_axes(l, convert[0]);
        part[i] = ku_lower_operand(l, from, l->buffer[from], g->value[from].layout);
    }
    int status = ku_lower_start(l, KU_X_ALL_GATHER, ku_lower_axes(l, convert[0]), 0, NULL, part, n,
                                g->node[convert[0]].path, handle);
    ku_free(part);
    return status;
}

static int start_bucket(struct ku_lower *l, uint32_t b);

/* Starts the buckets of addends first: collectives run in start order, so an addend is complete
 * when its bucket started earlier. */
static int start_addends(struct ku_lower *l, uint32_t b)
{
    const struct ku_graph *g = l->g;
    for (uint32_t i = 0; i < g->bucket[b].n; i++) {
        const struct ku_node *convert = &g->node[converts(l, b)[i]];
        if (convert->n_in < 3)
            continue;
        uint32_t first = (uint32_t)l->accumulate[sum_of(l, ku_in(g, convert, 2))].bucket;
        if (first != b && l->bucket[first].phase == KU_BUCKET_OPEN)
            KU_TRY(start_bucket(l, first));
    }
    return KUMI_OK;
}

static int advance(struct ku_lower *l, uint32_t b)
{
    struct ku_bucket_state *s = &l->bucket[b];
    if (s->phase == KU_BUCKET_DONE)
        return KUMI_OK;
    KU_ASSERT(s->phase != KU_BUCKET_OPEN && s->handle > 0);
    KU_TRY(ku_lower_wait(l, s->handle));
    int is_over = s->phase == KU_BUCKET_SPREADING || block_axes(l, b) == 0 || sum_axes(l, b) == 0 ||
                  ku_bucket_is_gather(l->g, converts(l, b)[0]);
    s->phase = is_over ? KU_BUCKET_DONE : KU_BUCKET_SPREADING;
    return is_over ? KUMI_OK : start_spreading(l, b);
}

/* Makes room for bucket b: of the buckets in flight the oldest finishes and the next advances. */
static int make_way(struct ku_lower *l, uint32_t b)
{
    uint32_t *f = l->in_flight;
    for (int i = 0; i < 3 && is_by_micro(l, b); i++) /* of the previous micro-batch */
        if (f[i] == b + 1) {
            KU_TRY(ku_bucket_finish(l, b));
            f[i] = 0;
        }
    if (f[0])
        KU_TRY(ku_bucket_finish(l, f[0] - 1));
    if (f[1])
        KU_TRY(advance(l, f[1] - 1));
    f[0] = f[1], f[1] = f[2], f[2] = b + 1;
    return KUMI_OK;
}

static int start_bucket(struct ku_lower *l, uint32_t b)
{
    KU_ASSERT(l->bucket[b].phase == KU_BUCKET_OPEN || is_by_micro(l, b));
    if (ku_bucket_is_gather(l->g, converts(l, b)[0])) {
        l->bucket[b].phase = KU_BUCKET_STARTED;
        return start_gathers(l, converts(l, b), l->g->bucket[b].n, &l->bucket[b].handle);
    }
    KU_TRY(start_addends(l, b));
    if (moves_on(l, b))
        KU_TRY(make_way(l, b));
    l->bucket[b].phase = KU_BUCKET_STARTED;
    l->bucket[b].mb = l->mb;
    return start_reduction(l, b);
}

int ku_bucket_finish(struct ku_lower *l, uint32_t b)
{
    if (l->bucket[b].phase == KU_BUCKET_OPEN)
        KU_TRY(start_bucket(l, b));
    while (l->bucket[b].phase != KU_BUCKET_DONE)
        KU_TRY(advance(l, b));
    return KUMI_OK;
}

int ku_bucket_settle(struct ku_lower *l)
{
    for (int i = 0; i < 3; i++) {
        if (l->in_flight[i])
            KU_TRY(ku_bucket_finish(l, l->in_flight[i] - 1));
        l->in_flight[i] = 0;
    }
    return KUMI_OK;
}

/* One rank only: adds a micro-batch's gradient to the earlier ones. */
static int add_alone(struct ku_lower *l, ku_id value)
{
    struct ku_accumulation *f = &l->accumulate[value];
    if (l->mb > 0)
        return ku_lower_accumulate(l, value, f->kept, f->sum, 0);
    f->kept = f->sum;
    return KUMI_OK;
}

int ku_bucket_ready(struct ku_lower *l, ku_id value)
{
    int32_t b = l->accumulate[value].bucket;
    if (l->dp == 1)
        return l->accumulate[value].by_micro ? add_alone(l, value) : KUMI_OK;
    KU_ASSERT(b < 0 || l->bucket[b].n_open > 0);
    if (b < 0 || --l->bucket[b].n_open > 0)
        return KUMI_OK;
    l->bucket[b].n_open = l->g->bucket[b].n; /* for the next micro-batch */
    if (!l->o->overlap && !moves_on(l, (uint32_t)b))
        return KUMI_OK;
    KU_TRY(start_bucket(l, (uint32_t)b));
    return l->o->overlap ? KUMI_OK : ku_bucket_finish(l, (uint32_t)b);
}

int ku_bucket_gather(struct ku_lower *l, ku_id n)
{
    ku_id from = ku_in(l->g, &l->g->node[n], 0);
    int32_t b = l->accumulate[from].bucket;
    uint32_t handle;
    l->buffer[ku_out(l->g, n, 0)] = l->buffer[from];
    if (b >= 0)
        return ku_bucket_finish(l, (uint32_t)b);
    KU_TRY(start_gathers(l, &n, 1, &handle)); /* of the initial state */
    return ku_lower_wait(l, handle);
}
