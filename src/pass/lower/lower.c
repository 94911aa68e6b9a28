/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lowers the graph to the flat program of a rank class: phase A, then F and B (= I and W) of every
 * micro-batch, then O. Each value gets a numbered buffer per micro-batch. A `convert` node becomes
 * accumulation over micro-batches, collectives between ranks, or nothing where an axis has one
 * member. Live ranges are set here; the memory pass sets offsets.
 *
 *   accumulate    The k micro-batches of a virtual shard add up in order; an op with an accumulate
 *                 form adds in place. Shards then pair like binary counting: after shard s, as many
 *                 partial sums merge as s has trailing one bits. This is the tree (0,1) (2,3) ..
 *                 with log2(V/dp) partial sums alive.
 *
 *                     shard 0     1           2     3
 *                     s0          s0+s1       s2    (s0+s1)+(s2+s3)
 *
 *   by_micro      The shards of each micro-batch index pair in the same way, ranks reduce that sum,
 *                 and the result is added to the local shard (grad_sync: micro).
 *   concatenate   Each micro-batch writes its slot of the shard's buffer; shards merge as above.
 *   buckets       bucket_collectives.c
 */
#include "pass/lower/lower.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "ir/state.h"

static bool is_micro_phase(int phase)
{
    return phase == KU_PH_F || phase == KU_PH_I || phase == KU_PH_W;
}

static int copy_tables(const struct ku_graph *g, struct ku_program *p)
{
    p->shape = ku_calloc(g->n_shapes, sizeof *p->shape);
    p->layout = ku_calloc(g->n_layouts, sizeof *p->layout);
    p->attr = ku_calloc(g->n_attrs, sizeof *p->attr);
    p->name_of = ku_calloc(g->n_names, sizeof *p->name_of);
    if (!p->shape || !p->layout || !p->attr || !p->name_of)
        return KUMI_ENOMEM;
    memcpy(p->shape, g->shape, g->n_shapes * sizeof *p->shape);
    memcpy(p->layout, g->layout, g->n_layouts * sizeof *p->layout);
    memcpy(p->attr, g->attr, g->n_attrs * sizeof *p->attr);
    p->n_shapes = g->n_shapes, p->n_layouts = g->n_layouts, p->n_attrs = g->n_attrs;
    for (ku_id i = 1; i < g->n_names; i++) {
        p->name_of[i] = ku_strdup(g->name[i]);
        p->n_names = i + 1;
        if (p->name_of[i] == NULL)
            return KUMI_ENOMEM;
    }
    return KUMI_OK;
}

/* State is laid out in tensor order, so that a program with fewer tensors (evaluation) has a prefix
 * of the same plan. */
static int add_state(struct ku_lower *l)
{
    static const uint8_t cls[] = {
        [KU_T_PARAM] = KU_CL_PARAM,     [KU_T_OPTIMIZER] = KU_CL_OPTIMIZER,
        [KU_T_DERIVED] = KU_CL_DERIVED, [KU_T_COUNTER] = KU_CL_COUNTER,
        [KU_T_BUFFER] = KU_CL_BUFFER,   [KU_T_CACHE] = KU_CL_ACTIVATION};
    const struct ku_graph *g = l->g;
    struct ku_program *p = l->p;
    /* per coordinate of axis pp: bytes of its own state */
    size_t used[KU_MAX_PP][KU_N_ARENAS] = {{0}};
    p->state = ku_calloc(g->n_tensors, sizeof *p->state);
    if (p->state == NULL)
        return KUMI_ENOMEM;
    for (ku_id t = 1; t < g->n_tensors; t++) {
        const struct ku_tensor *x = &g->tensor[t];
        const struct ku_state_store store = ku_state_store_of(g, t);
        const ku_id written = ku_state_written(g, t);
        const int arena = store.arena;
        ku_id b = store.is_kept
                      ? ku_lower_local_buffer(l, x->value, store.blocks, arena, cls[x->kind])
                      : ku_lower_buffer(l, x->value, arena, cls[x->kind]);
        if (b == 0)
            return ku_err_get()->status;
        l->buffer[x->value] = l->state[x->next] = b;
        l->state[written] = b;
        l->owner[written] = t;
        p->buffer[b].micro = -1;
        const int pp = l->pipe ? ku_pipe_home(g, l->pipe->s, t) : -1;
        size_t *end = pp < 0 ? &p->arena_bytes[arena] : &used[pp][arena];
        KU_ASSERT(pp < 0 || arena == KU_AR_SHARD || ku_arena_is_offload(arena));
        p->buffer[b].offset = *end;
        size_t align = ku_arena_is_offload(arena) ? KU_OFFLOAD_ALIGN_BYTES : 64;
        KU_TRY(ku_add_size(*end, (p->buffer[b].bytes + align - 1) & ~(align - 1), end));
        if (p->arena_bytes[arena] < *end)
            p->arena_bytes[arena] = *end;
        p->state[p->n_states++] = (struct ku_program_state){.name = x->name_id,
                                                            .shape = x->shape,
                                                            .of = x->of,
                                                            .kind = x->kind,
                                                            .dtype = x->dtype,
                                                            .arena = store.arena,
                                                            .is_kept = store.is_kept,
                                                            .blocks = store.blocks,
                                                            .split = store.split,
                                                            .first_block = x->first_block,
                                                            .pp = (int16_t)pp,
                                                            .offset = p->buffer[b].offset,
                                                            .bytes = p->buffer[b].bytes};
        p->buffer[b].name = p->state[p->n_states - 1].name;
    }
    return KUMI_OK;
}

static struct ku_program_port port_of(const struct ku_lower *l, const struct ku_port *port)
{
    const struct ku_value *v = &l->g->value[port->value];
    return (struct ku_program_port){.name = ku_graph_find_name(l->g, port->name),
                                    .buffer = l->buffer[port->value],
                                    .shape = v->shape,
                                    .layout = v->layout,
                                    .dtype = v->dtype};
}

/* A port's buffer holds the rank's samples of the whole step, in micro-batch order. */
static int add_port_buffer(struct ku_lower *l, ku_id v)
{
    struct ku_program *p = l->p;
    const ku_id layout = l->g->value[v].layout;
    const bool is_kept = ku_layout_has(&l->g->layout[layout], KU_Z);
    ku_id b = is_kept ? ku_lower_local_buffer(l, v, layout, KU_AR_INPUT, KU_CL_INPUT)
                      : ku_lower_buffer(l, v, KU_AR_INPUT, KU_CL_INPUT);
    if (b == 0)
        return ku_err_get()->status;
    l->buffer[v] = b;
    p->buffer[b].micro = -1;
    if (l->g->layout[l->g->value[v].layout].at[KU_AX_MB].kind == KU_S)
        p->buffer[b].bytes *= (size_t)l->n_micro;
    p->buffer[b].offset = p->arena_bytes[KU_AR_INPUT];
    p->arena_bytes[KU_AR_INPUT] += (p->buffer[b].bytes + 63) & ~(size_t)63;
    return KUMI_OK;
}

static int add_inputs(struct ku_lower *l)
{
    struct ku_program *p = l->p;
    p->input = ku_calloc(l->g->n_inputs + 1, sizeof *p->input);
    if (p->input == NULL)
        return KUMI_ENOMEM;
    for (uint32_t i = 0; i < l->g->n_inputs; i++) {
        l->owner[l->g->input[i].value] = l->g->input[i].pushed.tensor;
        KU_TRY(add_port_buffer(l, l->g->input[i].value));
        p->input[p->n_inputs++] = port_of(l, &l->g->input[i]);
    }
    return KUMI_OK;
}

/* Whether this coordinate of axis pp has an output: the stage of a micro-batch's alone. */
static bool has_output(const struct ku_lower *l, ku_id value)
{
    const ku_id def = l->g->value[value].def;
    return def == 0 || !is_micro_phase(l->g->node[def].phase) || ku_lower_runs(l, def);
}

/* Buffers of outputs that have rows for every micro-batch; other outputs have one value per
 * step. */
static int add_output_rows(struct ku_lower *l)
{
    const struct ku_graph *g = l->g;
    for (uint32_t i = 0; i < g->n_outputs; i++) {
        const ku_id v = g->output[i].value, def = g->value[v].def;
        if (def == 0 || l->buffer[v] || !has_output(l, v) ||
            g->layout[g->value[v].layout].at[KU_AX_MB].kind != KU_S)
            continue;
        if (l->n_micro > 1 && g->node[def].op == KU_OP_convert && ku_lower_axes(l, def))
            return KU_ERR(KUMI_EINVAL,
                          "output %s: with parallel.tp it is the result of a collective, of which "
                          "only one micro-batch is kept; output a value that is computed from it",
                          g->output[i].name);
        KU_TRY(add_port_buffer(l, v));
    }
    return KUMI_OK;
}

/* Sets per value: how it accumulates, the parameter that it belongs to (owner), and whether it must
 * be in memory that peers can address (wire). */
static void analyse(struct ku_lower *l)
{
    const struct ku_graph *g = l->g;
    uint32_t n_accumulated = 0;
    for (ku_id v = 1; v < g->n_values; v++)
        l->accumulate[v].bucket = -1;
    for (ku_id u = 1; u < g->n_uses; u++)
        l->owner[g->use[u].grad] = g->use[u].tensor;
    l->owner[0] = 0;
    for (ku_id n = 1; n < g->n_nodes; n++) {
        const struct ku_node *node = &g->node[n];
        if (l->pipe && node->op == KU_OP_convert && node->phase != KU_PH_O &&
            ku_bucket_is_gather(g, n))
            l->wire[ku_in(g, node, 0)] = 1; /* shards that another stage sends */
        if (node->op == KU_OP_convert && node->n_in > 1) {
            ku_id stats = ku_in(g, node, 1);
            l->stats[ku_out(g, n, 1)] = l->stats[stats] ? l->stats[stats] : stats;
        }
        if (node->op == KU_OP_NONE || node->phase != KU_PH_O)
            continue;
        ku_id from = node->n_in ? ku_in(g, node, 0) : 0;
        if (node->op == KU_OP_convert || node->op == KU_OP_add || node->op == KU_OP_clip_value)
            l->owner[ku_out(g, n, 0)] = l->owner[from];
        else if (node->op == KU_OP_widen)
            l->owner[ku_out(g, n, 0)] = ku_lower_owner(l, from);
        else if (from && l->owner[from] && ku_op_pair(ku_ops[node->op].inout, 0) == 0)
            l->owner[ku_out(g, n, 0)] = l->owner[from]; /* an update of a widened parameter */
        if (node->op != KU_OP_convert)
            continue;
        if (is_micro_phase(g->node[g->value[from].def].phase)) {
            l->accumulate[from].convert = n;
            l->accumulate[from].level = &l->level[(size_t)n_accumulated++ * (size_t)l->n_levels];
            l->accumulate[from].is_concat = g->attr[node->attr].concat > 0;
            l->accumulate[from].by_micro = (int)g->attr[node->attr].by_micro;
        } else if ((l->dp > 1 || ku_lower_axes(l, n)) && !ku_bucket_is_gather(g, n))
            l->wire[from] = 1;
    }
    ku_redistribute_analyse(l);
    for (ku_id n = g->n_nodes - 1; n > 0; n--) { /* in-place chains share one buffer */
        const struct ku_node *node = &g->node[n];
        for (int i = 0; node->op != KU_OP_NONE && i < node->n_out; i++) {
            int pair = ku_op_pair(ku_ops[node->op].inout, i);
            if (pair >= 0 && l->wire[ku_out(g, n, i)])
                l->wire[ku_in(g, node, pair)] = 1;
        }
    }
    for (uint32_t b = 0; b < g->n_buckets; b++) {
        l->bucket[b].n_open = g->bucket[b].n;
        for (uint32_t i = 0; i < g->bucket[b].n; i++)
            if (g->node[g->refs[g->bucket[b].first + i]].phase == KU_PH_O)
                l->accumulate[ku_in(g, &g->node[g->refs[g->bucket[b].first + i]], 0)].bucket =
                    (int32_t)b;
    }
}

/* After a shard's last micro-batch (by_micro: after each), merges as many partial sums as the
 * shard's index has trailing one bits. */
static int carry(struct ku_lower *l, ku_id value, int shard)
{
    struct ku_accumulation *f = &l->accumulate[value];
    int level = 0;
    f->sum = *ku_lower_sum(l, value);
    KU_ASSERT(f->convert && f->sum && shard >= 0 && shard < l->n_vs);
    for (; (shard >> level) & 1; level++) {
        KU_ASSERT(f->level[level] != 0);
        KU_TRY(ku_lower_accumulate(l, value, f->level[level], f->sum, 1));
        f->sum = f->level[level];
        f->level[level] = 0;
    }
    if (shard < l->n_vs - 1) {
        KU_ASSERT(level < l->n_levels && f->level[level] == 0);
        f->level[level] = f->sum;
        return KUMI_OK;
    }
    for (; level < l->n_levels; level++)
        if (f->level[level]) { /* an unpaired sum goes up unchanged */
            KU_TRY(ku_lower_accumulate(l, value, f->level[level], f->sum, 1));
            f->sum = f->level[level];
            f->level[level] = 0;
        }
    return ku_bucket_ready(l, value);
}

/* Waits for the collective that completes `value`, if one is on its way. */
int ku_lower_settle(struct ku_lower *l, ku_id value)
{
    const uint32_t handle = l->pending[value];
    l->pending[value] = 0;
    return handle ? ku_lower_wait(l, handle) : KUMI_OK;
}

/* One node of a block, and what it completes. */
static int lower_micro(struct ku_lower *l, ku_id n, int kind)
{
    const struct ku_graph *g = l->g;
    const struct ku_node *node = &g->node[n];
    if (node->op == KU_OP_convert) {
        if (!ku_gather_is_slice(g, n))
            KU_TRY(ku_bucket_is_gather(g, n) ? ku_gather_use(l, n) : ku_redistribute(l, n));
        return KUMI_OK;
    }
    KU_TRY(ku_redistribute_ahead(l, n, kind));
    KU_TRY(ku_lower_compute(l, n));
    for (int i = 0; i < node->n_out; i++) {
        const struct ku_accumulation *f = &l->accumulate[ku_out(g, n, i)];
        if (l->sync[ku_out(g, n, i)])
            KU_TRY(ku_redistribute(l, l->sync[ku_out(g, n, i)]));
        if (f->convert && (f->by_micro || l->mb == l->n_mb - 1))
            KU_TRY(carry(l, ku_out(g, n, i), l->vs));
    }
    return KUMI_OK;
}

static int lower_block(struct ku_lower *l, const struct ku_block *b)
{
    const struct ku_graph *g = l->g;
    struct ku_coord at = {0};
    ku_mesh_micro(&g->mesh, b->micro, &at);
    l->micro = b->micro;
    l->vs = at.at[KU_AX_VS], l->mb = at.at[KU_AX_MB];
    l->phase = b->kind == KU_BL_F ? KU_PH_F : b->kind == KU_BL_I ? KU_PH_I : KU_PH_W;
    if ((b->kind == KU_BL_B || b->kind == KU_BL_W) && g->mesh.mb_outer)
        KU_TRY(ku_bucket_settle(l));
    KU_TRY(ku_messages_begin_block(l, b));
    KU_TRY(ku_gather_begin(l, b->kind == KU_BL_B ? KU_PH_I : l->phase, b->stage));
    for (ku_id n = 1; n < g->n_nodes; n++) {
        const struct ku_node *node = &g->node[n];
        if (node->op == KU_OP_NONE || !ku_lower_is_of_block(node->phase, b->kind) ||
            (l->pipe && node->stage != b->stage))
            continue;
        KU_TRY(lower_micro(l, n, b->kind));
        KU_TRY(ku_messages_send(l, n));
    }
    KU_TRY(ku_redistribute_end(l));
    return ku_messages_end_block(l, b);
}

/* Block i of this coordinate: without a pipeline forward and backward of each micro-batch in turn.
 * false: there is none. */
static bool block_at(const struct ku_lower *l, uint32_t i, struct ku_block *b)
{
    const struct ku_pp_schedule *s = l->pipe ? l->pipe->s : NULL;
    if (s == NULL) {
        *b = (struct ku_block){i % 2 ? KU_BL_B : KU_BL_F, 0, (int32_t)(i / 2)};
        return b->micro < l->n_micro;
    }
    if (i >= s->first[l->o->pp + 1] - s->first[l->o->pp])
        return false;
    *b = s->block[s->first[l->o->pp] + i];
    return true;
}

/* Finds the block after block i that gathers parameters. None if a W before it reads parameters. */
static void find_next(struct ku_lower *l, uint32_t i)
{
    struct ku_block b;
    l->next.distance = 0;
    for (uint32_t k = 1; l->n_units && block_at(l, i + k, &b) && b.micro < l->n_micro; k++) {
        if (b.kind == KU_BL_W && ku_gather_is_read_by_w(l, b.stage))
            return;
        l->next.phase = b.kind == KU_BL_F ? KU_PH_F : KU_PH_I;
        l->next.stage = b.stage;
        if (b.kind != KU_BL_W && ku_gather_has_units(l, l->next.phase, b.stage)) {
            l->next.distance = k;
            return;
        }
    }
}

static int lower_blocks(struct ku_lower *l)
{
    struct ku_block b;
    for (uint32_t i = 0; block_at(l, i, &b); i++) {
        if (b.micro >= l->n_micro)
            continue; /* initial values have one micro-batch and no blocks */
        find_next(l, i);
        KU_TRY(lower_block(l, &b));
    }
    return KUMI_OK;
}

/* A `convert` in O: finishes its bucket, or runs its own all-reduce. The result is in the operand's
 * buffer or in the separate buffer of the local shard. */
int ku_lower_convert(struct ku_lower *l, ku_id n)
{
    const struct ku_graph *g = l->g;
    ku_id from = ku_in(g, &g->node[n], 0), to = ku_out(g, n, 0);
    const struct ku_accumulation *f = &l->accumulate[from];
    KU_TRY(ku_lower_settle(l, from));
    l->buffer[to] = f->convert ? f->sum : l->buffer[from];
    KU_ASSERT(l->buffer[to] != 0);
    if (g->node[n].n_in > 1)
        l->buffer[ku_out(g, n, 1)] = l->buffer[ku_in(g, &g->node[n], 1)];
    if (f->convert && f->by_micro)
        l->buffer[to] = f->kept;
    if (l->dp == 1 && ku_lower_axes(l, n) == 0)
        return KUMI_OK;
    if (!f->convert && ku_layout_has(&g->layout[g->value[to].layout], KU_Z) &&
        !ku_layout_has(&g->layout[g->value[from].layout],
                       KU_P)) /* the local shard of a whole value: no transfer */
        return KUMI_OK;
    if ((!f->convert || f->bucket < 0) && ku_lower_axes(l, n) == 0) /* equal on all ranks */
        return KUMI_OK;
    if (ku_redistribute_is_gradient(l, n))
        return ku_redistribute_gradients(l, n);
    if (f->convert && f->bucket >= 0) {
        KU_TRY(ku_bucket_finish(l, (uint32_t)f->bucket));
        l->buffer[to] = f->kept ? f->kept : f->sum;
        return KUMI_OK;
    }
    uint32_t handle;
    l->reduced[n] |= (uint8_t)ku_lower_axes(l, n);
    KU_TRY(ku_messages_release(l, from)); /* the sum takes its place */
    struct ku_operand part = ku_lower_operand(l, from, l->buffer[to], g->value[to].layout);
    KU_TRY(ku_lower_start(l, KU_X_ALL_REDUCE, ku_lower_axes(l, n),
                          (int)g->attr[g->node[n].attr].reduce, NULL, &part, 1, g->node[n].path,
                          &handle));
    return ku_lower_wait(l, handle);
}

static int lower_once(struct ku_lower *l, int phase)
{
    l->micro = -1;
    l->phase = (uint8_t)phase;
    KU_TRY(ku_messages_begin_once(l, phase));
    if (phase == KU_PH_A)
        KU_TRY(ku_gather_begin(l, KU_PH_A, 0));
    for (ku_id n = 1; n < l->g->n_nodes; n++) {
        const struct ku_node *node = &l->g->node[n];
        if (node->op == KU_OP_NONE || node->phase != phase || !ku_lower_runs(l, n))
            continue;
        if (ku_bucket_is_gather(l->g, n)) {
            KU_TRY(phase == KU_PH_A ? ku_gather_use(l, n) : ku_bucket_gather(l, n));
        } else if (node->op == KU_OP_convert) {
            KU_TRY(ku_lower_convert(l, n));
        } else {
            KU_TRY(ku_lower_compute(l, n));
            for (int i = 0; i < node->n_out; i++)
                KU_TRY(ku_bucket_ready(l, ku_out(l->g, n, i)));
        }
        KU_TRY(ku_messages_send(l, n));
    }
    return KUMI_OK;
}

static int add_outputs(struct ku_lower *l)
{
    struct ku_program *p = l->p;
    p->output = ku_calloc(l->g->n_outputs + 1, sizeof *p->output);
    if (p->output == NULL)
        return KUMI_ENOMEM;
    for (uint32_t i = 0; i < l->g->n_outputs; i++) {
        if (!has_output(l, l->g->output[i].value))
            continue;
        p->output[p->n_outputs] = port_of(l, &l->g->output[i]);
        KU_ASSERT(p->output[p->n_outputs].buffer != 0);
        p->buffer[p->output[p->n_outputs++].buffer].last = p->n_instrs;
    }
    return KUMI_OK;
}

/* Allocates the tree levels of all values that O may complete; NULL: no memory. */
static ku_id *new_levels(const struct ku_lower *l)
{
    size_t n = 1;
    for (ku_id id = 1; id < l->g->n_nodes; id++)
        n += l->g->node[id].op == KU_OP_convert && l->g->node[id].phase == KU_PH_O;
    return ku_calloc(n * (size_t)l->n_levels, sizeof(ku_id));
}

/* Whether a rank of this host updates a part of a tensor that the others read in place, and no
 * gather follows. */
static bool is_left_in_parts(const struct ku_graph *g, ku_id tensor)
{
    const struct ku_state_store s = ku_state_store_of(g, tensor);
    const bool is_written = g->tensor[tensor].next != g->tensor[tensor].value;
    return is_written && s.arena == KU_AR_HOST && s.blocks &&
           !ku_state_is_divided(&g->mesh, &g->layout[s.blocks]);
}

/*
 * Whether a rank writes state that the other ranks of its host read from its arena, and no gather
 * of all data-parallel ranks starts after the write: averages, which follow all updates; a replica
 * of shards. Offloaded state is written back after the computation (offload_stream.c).
 */
static bool is_written_last(const struct ku_lower *l, int dp)
{
    const struct ku_program *p = l->p;
    bool is_ordered = false;
    for (uint32_t at = p->n_instrs; at-- > 0;) {
        const struct ku_instr *i = &p->instr[at];
        is_ordered = is_ordered || (i->kind == KU_START && i->op == KU_X_ALL_GATHER &&
                                    i->group == 0 && (i->axes & dp) == dp);
        for (uint32_t k = i->n_in; i->kind == KU_COMPUTE && k < (uint32_t)i->n_in + i->n_out; k++) {
            const ku_id b = p->operand[i->operand + k].buffer;
            const int arena = p->buffer[b].arena;
            if (b <= p->n_states &&
                (ku_arena_is_offload(arena) || (arena == KU_AR_SHARD && !is_ordered)))
                return true;
        }
    }
    return false;
}

/*
 * The axes over which ranks read state in place that other ranks update: the next step, or after
 * this one a rank that reads the slices of others (digests, checkpoints). Elsewhere the gather
 * after the update orders these accesses. 0: none.
 */
static int axes_of_shared_state(const struct ku_lower *l)
{
    const struct ku_graph *g = l->g;
    const int dp = ku_mesh_wide(&g->mesh, KU_DP_AXES),
              tp = ku_mesh_wide(&g->mesh, KU_TP_AXES | 1 << KU_AX_PP);
    bool is_shared = tp || (ku_state_is_sharded(&g->mesh) && l->o->zero == 3) ||
                     (ku_state_owner_axes(&g->mesh) && is_written_last(l, dp)),
         updates = false;
    for (ku_id t = 1; t < g->n_tensors; t++)
        is_shared = is_shared || is_left_in_parts(g, t);
    for (ku_id n = 1; n < g->n_nodes; n++)
        updates = updates || ku_ops[g->node[n].op].traits & KU_OP_UPDATE;
    return is_shared && updates ? dp | tp : 0;
}

/*
 * The end of lowering. Every rank axis of several ranks on which a convert turns partial sums or
 * shards into another placement got its collective, none was dropped in silence; all sums are at
 * the root of their tree; every bucket is closed.
 */
static void check_complete(const struct ku_lower *l)
{
    const struct ku_graph *g = l->g;
    for (ku_id n = 1; n < g->n_nodes; n++)
        if (g->node[n].op == KU_OP_convert && ku_lower_runs(l, n)) {
            int needed = ku_lower_axes(l, n);
            KU_ASSERT((l->reduced[n] & needed) == needed);
        }
    for (ku_id v = 1; v < g->n_values; v++)
        KU_ASSERT(l->pending[v] == 0);
    for (ku_id v = 1; v < g->n_values; v++)
        for (int level = 0; l->accumulate[v].convert && level < l->n_levels; level++)
            KU_ASSERT(l->accumulate[v].level[level] == 0);
    for (uint32_t b = 0; b < g->n_buckets && l->dp > 1; b++)
        if (g->node[g->refs[g->bucket[b].first]].phase == KU_PH_O &&
            ku_lower_runs(l, g->refs[g->bucket[b].first]))
            KU_ASSERT(l->bucket[b].phase == KU_BUCKET_DONE);
}

static int lower_all(struct ku_lower *l)
{
    KU_ASSERT(l->n_mb > 0 && l->n_vs > 0 && l->dp > 0 && l->n_vs < 1 << l->n_levels);
    KU_ASSERT(l->p->n_instrs == 0 && l->p->n_buffers == 0 && l->p->n_handles == 0);
    KU_TRY(copy_tables(l->g, l->p));
    KU_TRY(add_state(l));
    KU_TRY(add_inputs(l));
    KU_TRY(add_output_rows(l));
    analyse(l);
    KU_TRY(ku_messages_create(l));
    KU_TRY(lower_once(l, KU_PH_A));
    KU_TRY(lower_blocks(l));
    KU_TRY(ku_messages_settle(l));
    KU_TRY(lower_once(l, KU_PH_O));
    for (uint32_t i = 0; i < l->g->n_outputs; i++)
        KU_TRY(ku_lower_settle(l, l->g->output[i].value));
    KU_TRY(ku_messages_settle(l));
    check_complete(l);
    const int axes = axes_of_shared_state(l);
    if (axes) {
        uint32_t handle;
        KU_TRY(ku_lower_start(l, KU_X_BARRIER, axes, 0, NULL, NULL, 0, 1, &handle));
        KU_TRY(ku_lower_wait(l, handle));
    }
    return add_outputs(l);
}

/* Evaluation and initial values run forward blocks alone. */
static int open_pipe(struct ku_lower *l, struct ku_pp_schedule **forward, struct ku_pipe **pipe)
{
    const struct ku_pp_schedule *s = l->o->schedule;
    KU_ASSERT(s && s->n_ranks == l->g->mesh.extent[KU_AX_PP]);
    if (!(l->g->has & KU_HAS_GRADIENTS)) {
        KU_TRY(ku_pp_schedule_forward(s, forward));
        s = *forward;
    }
    KU_ASSERT(s != l->o->schedule || s->n_micro == l->n_micro);
    KU_TRY(ku_pipe_create(l->g, s, pipe));
    l->pipe = *pipe;
    return KUMI_OK;
}

int ku_pass_lower(const struct ku_graph *g, const struct ku_compile_opts *o,
                  const struct ku_target *t, struct ku_program *p)
{
    struct ku_pp_schedule *forward = NULL;
    struct ku_pipe *pipe = NULL;
    struct ku_lower l = {.g = g, .o = o, .target = t, .p = p, .dp = ku_mesh_dp(&g->mesh)};
    l.n_mb = g->mesh.extent[KU_AX_MB];
    l.n_vs = g->mesh.extent[KU_AX_VS];
    l.n_micro = l.n_mb * l.n_vs;
    for (l.n_levels = 1; l.n_vs >> l.n_levels;)
        l.n_levels++;
    l.level = new_levels(&l);
    p->mesh = g->mesh;
    p->pp = o->pp;
    l.buffer = ku_calloc(g->n_values, sizeof *l.buffer);
    l.state = ku_calloc(g->n_values, sizeof *l.state);
    l.owner = ku_calloc(g->n_values, sizeof *l.owner);
    l.wire = ku_calloc(g->n_values, 1);
    l.accumulate = ku_calloc(g->n_values, sizeof *l.accumulate);
    l.bucket = ku_calloc(g->n_buckets + 1, sizeof *l.bucket);
    l.stats = ku_calloc(g->n_values, sizeof *l.stats);
    l.workspace = ku_calloc(g->n_nodes, sizeof *l.workspace);
    l.reduced = ku_calloc(g->n_nodes, sizeof *l.reduced);
    l.sync = ku_calloc(g->n_values, sizeof *l.sync);
    l.sync_turn = ku_calloc(g->n_nodes, sizeof *l.sync_turn);
    l.ahead = ku_calloc(g->n_nodes, sizeof *l.ahead);
    l.pending = ku_calloc(g->n_values, sizeof *l.pending);
    if (g->mesh.mb_outer)
        l.shard_sum = ku_calloc(g->n_values * (size_t)l.n_vs, sizeof *l.shard_sum);
    int status = KUMI_ENOMEM;
    if (l.buffer && l.state && l.owner && l.wire && l.accumulate && l.bucket && l.stats &&
        l.level && l.workspace && l.reduced && l.sync && l.sync_turn && l.ahead && l.pending &&
        (l.shard_sum || !g->mesh.mb_outer))
        status = ku_gather_init(&l);
    if (status == KUMI_OK && g->mesh.extent[KU_AX_PP] > 1)
        status = open_pipe(&l, &forward, &pipe);
    if (status == KUMI_OK)
        status = lower_all(&l);
    ku_messages_destroy(&l);
    ku_pipe_destroy(pipe);
    ku_pp_schedule_destroy(forward);
    ku_gather_fini(&l);
    ku_free(l.buffer);
    ku_free(l.state);
    ku_free(l.owner);
    ku_free(l.wire);
    ku_free(l.accumulate);
    ku_free(l.bucket);
    ku_free(l.stats);
    ku_free(l.level);
    ku_free(l.start);
    ku_free(l.workspace);
    ku_free(l.reduced);
    ku_free(l.sync);
    ku_free(l.sync_turn);
    ku_free(l.ahead);
    ku_free(l.pending);
    ku_free(l.shard_sum);
    return status;
}
