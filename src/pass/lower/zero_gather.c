/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Schedules the all-gathers of ZeRO stage 3. Forward or backward of a micro-batch reads its units
 * in order; each gather starts `prefetch` units before its first read and is waited for there. The
 * buffer is an ordinary buffer of the step: its live range ends at the last read.
 *
 *     units      h.0       h.1       h.2         | h.2       h.1     prefetch 1
 *     starts     h.0 h.1   h.2       h.2         | h.1       h.0
 *     waits      h.0       h.1       h.2         | h.2       h.1
 *
 * The last units of forward or backward start the first ones of what follows, be it backward,
 * the next micro-batch or another block of a pipeline: as many, if the unit's memory is not in use
 * (a stage of one layer begins with the unit that is being read), and no more elements at once than
 * max_live_parameters.
 *
 * Where the ranks of each of several hosts share state, they share this buffer too: a gather writes
 * it when all of them have started it (comm/far/gather.c).
 *
 * Ranks write their owned shards only in O, after all gathers have completed on all ranks.
 *
 * A block of a pipeline gathers the units of its stage, F and I (or B) of each micro-batch anew. A
 * stage that reads a parameter of another one receives its ranks' shards in A, and gathers these.
 *
 * Where a weight is computed from parameters of its layer, W reads units that I has gathered. No
 * gather starts across such a W, as it would take the unit's place before W has read it:
 *
 *     blocks     I2     W2     I3        the units of I3 start in I3
 */
#include "base/err.h"
#include "base/mem.h"
#include "ir/state.h"
#include "pass/lower/lower.h"

static const ku_id *converts(const struct ku_lower *l, uint32_t unit)
{
    return &l->g->refs[l->g->bucket[unit].first];
}

static int phase_of(const struct ku_lower *l, uint32_t unit)
{
    return l->g->node[converts(l, unit)[0]].phase;
}

/* turn: of the block that reads it, this one or the next. */
static int start(struct ku_lower *l, uint32_t unit, uint32_t turn)
{
    const struct ku_graph *g = l->g;
    struct ku_unit_state *s = &l->unit[unit];
    uint32_t n = g->bucket[unit].n;
    const int arena = ku_state_is_common(&g->mesh) ? KU_AR_GATHER : KU_AR_STEP;
    KU_ASSERT(turn >= l->turn && turn <= l->turn + l->next.distance);
    if (s->turn == turn)
        return KUMI_OK;
    struct ku_operand *part = ku_calloc(n, sizeof *part);
    int status = part ? KUMI_OK : KUMI_ENOMEM;
    for (uint32_t i = 0; i < n && status == KUMI_OK; i++) {
        ku_id convert = converts(l, unit)[i], from = ku_in(g, &g->node[convert], 0);
        ku_id to = ku_out(g, convert, 0);
        KU_ASSERT(l->buffer[from] != 0);
        status = ku_lower_settle(l, from);
        if (status < 0)
            break;
        l->reduced[convert] |= (uint8_t)ku_lower_axes(l, converts(l, unit)[0]);
        l->buffer[to] = ku_lower_buffer(l, to, arena, KU_CL_GATHER);
        status = l->buffer[to] ? KUMI_OK : ku_err_get()->status;
        part[i] = ku_lower_operand(l, from, l->buffer[from], g->value[from].layout);
        part[i].out = l->buffer[to];
    }
    if (status == KUMI_OK)
        status = ku_lower_start(l, KU_X_ALL_GATHER, ku_lower_axes(l, converts(l, unit)[0]), 0, NULL,
                                part, n, g->node[converts(l, unit)[0]].path, &s->handle);
    ku_free(part);
    s->turn = turn;
    s->is_waited = 0;
    return status;
}

static ku_id module_of(const struct ku_lower *l, uint32_t unit)
{
    return l->g->node[converts(l, unit)[0]].path;
}

/* Whether a phase, of a stage of the pipeline, reads the unit. */
static bool is_read(const struct ku_lower *l, uint32_t unit, int phase, int stage)
{
    return phase_of(l, unit) == phase &&
           (phase == KU_PH_A ? ku_lower_runs(l, converts(l, unit)[0])
                             : l->g->node[converts(l, unit)[0]].stage == stage);
}

/* Elements of a unit on a rank. */
static int64_t elements_of(const struct ku_lower *l, uint32_t unit)
{
    const struct ku_graph *g = l->g;
    int64_t sum = 0;
    for (uint32_t i = 0; i < g->bucket[unit].n; i++) {
        const struct ku_value *v = &g->value[ku_out(g, converts(l, unit)[i], 0)];
        sum += ku_program_slice_count(&g->mesh, &g->shape[v->shape], &g->layout[v->layout]);
    }
    return sum;
}

/* Whether the unit is read in this block from node `at` on, or has been started for the next. */
static bool is_live(const struct ku_lower *l, uint32_t unit, ku_id at)
{
    const struct ku_unit_state *s = &l->unit[unit];
    return phase_of(l, unit) == KU_PH_A || s->turn == l->turn + l->next.distance ||
           (s->turn == l->turn && s->last_read >= at);
}

/*
 * Whether a unit of the next block may be started while node `at` of this one is lowered. What a
 * group retains of a unit (reshard_group) belongs to a micro-batch, and is there in its block.
 */
static bool may_start(const struct ku_lower *l, uint32_t unit, ku_id at)
{
    const struct ku_graph *g = l->g;
    const ku_id def = g->value[ku_in(g, &g->node[converts(l, unit)[0]], 0)].def;
    int64_t live = elements_of(l, unit);
    if (def && g->node[def].phase != KU_PH_A)
        return false;
    if (is_live(l, unit, at))
        return l->unit[unit].turn != l->turn; /* started for the next block already */
    for (uint32_t u = 0; l->o->max_live && u < l->n_units; u++)
        live += is_live(l, l->unit_order[u], at) ? elements_of(l, l->unit_order[u]) : 0;
    return l->o->max_live == 0 || live <= l->o->max_live;
}

/* Starts the first n modules of the next block. */
static int start_across(struct ku_lower *l, ku_id at, int n)
{
    ku_id module = 0;
    for (uint32_t k = 0; k < l->n_units && l->next.distance; k++) {
        const uint32_t unit = l->unit_order[k];
        if (!is_read(l, unit, l->next.phase, l->next.stage))
            continue;
        if ((module_of(l, unit) != module && n-- == 0) || !may_start(l, unit, at))
            break;
        module = module_of(l, unit);
        KU_TRY(start(l, unit, l->turn + l->next.distance));
    }
    return KUMI_OK;
}

/*
 * Starts gathers from number `first` in reading order: the remaining ones of `module` (one gather
 * per dtype) and those of the next `prefetch` modules that this phase reads, then the next block.
 *
 *   at   the node that is lowered; 0: the block begins
 */
static int start_next(struct ku_lower *l, uint32_t first, int phase, int stage, ku_id module,
                      ku_id at)
{
    int n = l->o->overlap ? l->o->prefetch : 0;
    for (uint32_t k = first; k < l->n_units; k++) {
        uint32_t unit = l->unit_order[k];
        if (!is_read(l, unit, phase, stage))
            continue;
        if (module_of(l, unit) != module && n-- == 0)
            return KUMI_OK;
        module = module_of(l, unit);
        KU_TRY(start(l, unit, l->turn));
    }
    return at && phase != KU_PH_A ? start_across(l, at, n) : KUMI_OK;
}

bool ku_gather_has_units(const struct ku_lower *l, int phase, int stage)
{
    for (uint32_t k = 0; k < l->n_units; k++)
        if (is_read(l, l->unit_order[k], phase, stage))
            return true;
    return false;
}

bool ku_gather_is_read_by_w(const struct ku_lower *l, int stage)
{
    for (uint32_t k = 0; k < l->n_units; k++) {
        const uint32_t unit = l->unit_order[k];
        if (l->unit[unit].is_read_by_w && l->g->node[converts(l, unit)[0]].stage == stage)
            return true;
    }
    return false;
}

int ku_gather_begin(struct ku_lower *l, int phase, int stage)
{
    l->turn++;
    return phase == KU_PH_W ? KUMI_OK : start_next(l, 0, phase, stage, 0, 0);
}

int ku_gather_use(struct ku_lower *l, ku_id convert)
{
    KU_ASSERT(l->unit_of[convert] > 0);
    uint32_t unit = l->unit_of[convert] - 1;
    struct ku_unit_state *s = &l->unit[unit];
    KU_TRY(start(l, unit, l->turn));
    if (s->is_waited)
        return KUMI_OK;
    s->is_waited = 1;
    KU_TRY(start_next(l, s->place + 1, phase_of(l, unit), l->g->node[convert].stage,
                      module_of(l, unit), convert));
    KU_TRY(ku_lower_wait(l, s->handle));
    for (uint32_t i = 0; i < l->g->bucket[unit].n; i++)
        if (l->slice[converts(l, unit)[i]])
            KU_TRY(ku_lower_slice(l, l->slice[converts(l, unit)[i]]));
    return KUMI_OK;
}

bool ku_gather_is_slice(const struct ku_graph *g, ku_id node)
{
    const struct ku_node *n = &g->node[node];
    return n->op == KU_OP_convert && n->phase == KU_PH_F &&
           ku_layout_has(&g->layout[g->value[ku_out(g, node, 0)].layout], KU_Z);
}

/* Finds the slice of each gather (reshard_group); it is partitioned like the parameter. */
static void find_slices(struct ku_lower *l)
{
    const struct ku_graph *g = l->g;
    for (ku_id n = 1; n < g->n_nodes; n++) {
        if (!ku_gather_is_slice(g, n))
            continue;
        ku_id gather = g->value[ku_in(g, &g->node[n], 0)].def;
        l->slice[gather] = n;
        l->owner[ku_out(g, n, 0)] = g->value[ku_in(g, &g->node[gather], 0)].tensor;
    }
}

int ku_gather_init(struct ku_lower *l)
{
    const struct ku_graph *g = l->g;
    l->unit = ku_calloc(g->n_buckets + 1, sizeof *l->unit);
    l->unit_order = ku_calloc(g->n_buckets + 1, sizeof *l->unit_order);
    l->unit_of = ku_calloc(g->n_nodes, sizeof *l->unit_of);
    l->slice = ku_calloc(g->n_nodes, sizeof *l->slice);
    if (!l->unit || !l->unit_order || !l->unit_of || !l->slice)
        return KUMI_ENOMEM;
    find_slices(l);
    for (uint32_t b = 0; b < g->n_buckets; b++)
        for (uint32_t i = 0; i < g->bucket[b].n; i++)
            l->unit_of[converts(l, b)[i]] = b + 1;
    for (ku_id n = 1; n < g->n_nodes; n++) { /* in reading order */
        uint32_t b = l->unit_of[n] - 1;
        if (l->unit_of[n] == 0 || g->node[n].phase == KU_PH_O || converts(l, b)[0] != n)
            continue;
        l->unit[b].place = l->n_units;
        l->unit_order[l->n_units++] = b;
    }
    for (ku_id n = 1; n < g->n_nodes; n++)
        for (int i = 0; i < g->node[n].n_in && g->node[n].op; i++) {
            const ku_id def = g->value[ku_in(g, &g->node[n], i)].def;
            if (def == 0 || l->unit_of[def] == 0)
                continue;
            struct ku_unit_state *s = &l->unit[l->unit_of[def] - 1];
            s->last_read = n;
            s->is_read_by_w |= g->node[n].phase == KU_PH_W && g->node[def].phase != KU_PH_A;
        }
    KU_ASSERT(l->n_units <= g->n_buckets);
    return KUMI_OK;
}

void ku_gather_fini(struct ku_lower *l)
{
    ku_free(l->unit);
    ku_free(l->unit_order);
    ku_free(l->unit_of);
    ku_free(l->slice);
}
