/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ZeRO stage 3: partitioned parameters are gathered where they are read. The parameters of a unit
 * (a module that `wrap` matches) are gathered together:
 *
 *     in a unit                  for forward and again for backward of every micro-batch
 *     in no unit, keep_gathered  once per step, in phase A
 *     reshard_group g            forward gathers all shards; the rank retains Z(g), its shard among
 *                                g neighbours; backward gathers within these g ranks
 *
 * A gather is a `convert` Z -> whole with the unit's path; lowering decides when it starts
 * (lower/gather.c).
 */
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "ir/placement_rules.h"
#include "ir/state.h"
#include "ir/uses.h"
#include "pass/pipe/block_schedule.h"
#include "pass/unit.h"
#include "pass/zero.h"

/* The unit of a tensor: its outermost module that matches `wrap`; without `wrap`, its repeated
 * layer; "" = none. */
static const char *unit_of(const struct ku_compile_opts *o, const char *tensor,
                           char out[KU_NAME_BYTES])
{
    size_t bytes = o->wrap ? 0 : ku_unit_bytes(tensor);
    const char *dot = o->wrap ? strchr(tensor, '.') : NULL;
    for (; dot && bytes == 0; dot = strchr(dot + 1, '.')) {
        memcpy(out, tensor, (size_t)(dot - tensor));
        out[dot - tensor] = '\0';
        for (int i = 0; o->wrap[i]; i++)
            if (ku_str_glob(o->wrap[i], out))
                bytes = (size_t)(dot - tensor);
    }
    memcpy(out, tensor, bytes);
    out[bytes] = '\0';
    return out;
}

static bool is_parameter(const struct ku_tensor *x)
{
    return x->kind == KU_T_PARAM || x->kind == KU_T_DERIVED;
}

bool ku_zero_is_partitioned(const struct ku_graph *g, const struct ku_compile_opts *o, ku_id tensor)
{
    const struct ku_tensor *x = &g->tensor[tensor];
    return o->zero == 3 && is_parameter(x) &&
           ku_shape_count(&g->shape[x->shape]) >= o->persist_below;
}

static bool is_backward(int phase)
{
    return phase == KU_PH_I || phase == KU_PH_W;
}

/* Makes the forward or backward nodes of a stage that read `from` read `to` (0: unchanged). Returns
 * the number of reads. */
static int redirect(struct ku_graph *g, const struct ku_readers *r, ku_id from, ku_id to, int stage,
                    int of_backward)
{
    int n_reads = 0;
    for (uint32_t e = ku_readers_of(r, from); e; e = r->entry[e].next) {
        const struct ku_node *node = &g->node[r->entry[e].node];
        if (is_backward(node->phase) != of_backward || node->phase == KU_PH_O ||
            node->stage != stage)
            continue;
        for (int i = 0; i < node->n_in; i++)
            if (ku_in(g, node, i) == from) {
                n_reads++;
                g->refs[node->in + (uint32_t)i] = to ? to : from;
            }
    }
    return n_reads;
}

int ku_zero_group(const struct ku_compile_opts *o)
{
    return ku_state_is_sharded(&o->mesh) && o->zero == 3 ? o->reshard_group : 0;
}

ku_id ku_zero_slice(struct ku_graph *g, const struct ku_compile_opts *o, ku_id whole)
{
    struct ku_layout l = g->layout[g->value[whole].layout];
    l.at[KU_AX_SHARD] = (struct ku_place){KU_Z, (uint16_t)o->reshard_group};
    ku_id layout = ku_graph_layout(g, &l);
    const struct ku_node def = g->node[g->value[whole].def];
    ku_id node = ku_graph_node(g, &(struct ku_make){.op = KU_OP_convert,
                                                    .phase = KU_PH_F,
                                                    .n_in = 1,
                                                    .in = {whole},
                                                    .path = g->name[def.path],
                                                    .stage = def.stage});
    if (layout == 0 || node == 0)
        return 0;
    g->value[ku_out(g, node, 0)].layout = layout;
    return ku_out(g, node, 0);
}

/* Adds a gather of `from`. layout: the placement before partitioning. 0 on failure. */
static ku_id gather(struct ku_graph *g, ku_id from, int phase, int stage, const char *unit,
                    ku_id layout)
{
    ku_id node = ku_graph_node(g, &(struct ku_make){.op = KU_OP_convert,
                                                    .phase = phase,
                                                    .n_in = 1,
                                                    .in = {from},
                                                    .path = unit,
                                                    .stage = stage,
                                                    .is_silent = 1});
    if (node == 0)
        return 0;
    g->value[ku_out(g, node, 0)].layout = layout;
    return ku_out(g, node, 0);
}

/* Each stage of a pipeline gathers what it reads. readers: of the graph before the first gather was
 * added. */
static int gather_reads(struct ku_graph *g, const struct ku_compile_opts *o, ku_id tensor,
                        int stage, ku_id layout, const struct ku_readers *readers)
{
    char name[KU_NAME_BYTES];
    ku_id value = g->tensor[tensor].value, of = g->tensor[tensor].of, whole = 0;
    const char *unit = unit_of(o, g->tensor[of ? of : tensor].name, name);
    int is_once = unit[0] == '\0' || o->keep_gathered;
    for (int backward = 0; backward < 2; backward++) {
        if (redirect(g, readers, value, 0, stage, backward) == 0)
            continue;
        int phase = is_once ? KU_PH_A : backward ? KU_PH_I : KU_PH_F;
        ku_id from = value;
        if (phase == KU_PH_I && whole && ku_zero_group(o))
            from = ku_zero_slice(g, o, whole);
        if (from && (whole == 0 || !is_once))
            whole = gather(g, from, phase, stage, unit, layout);
        if (from == 0 || whole == 0)
            return ku_err_get()->status;
        redirect(g, readers, value, whole, stage, backward);
    }
    return KUMI_OK;
}

int ku_zero_gather_params(struct ku_graph *g, const struct ku_compile_opts *o, const ku_id *whole)
{
    ku_id n_nodes = g->n_nodes;
    const int n_stages = o->schedule ? o->schedule->n_stages : 1;
    struct ku_readers readers;
    int status = ku_readers_init(&readers, g);
    for (ku_id t = 1; t < g->n_tensors && status == KUMI_OK; t++)
        for (int s = 0; s < n_stages && status == KUMI_OK && ku_zero_is_partitioned(g, o, t); s++)
            status = gather_reads(g, o, t, s, whole[t], &readers);
    ku_readers_fini(&readers);
    KU_TRY(status);
    return g->n_nodes > n_nodes ? ku_graph_sort(g) : KUMI_OK;
}
