/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Activation checkpointing (Chen et al. 2016; Korthikanti et al. 2022): backward recomputes values
 * instead of storing them.
 *
 *   units       the repeated layers, by module path up to the first number ("h.3");
 *               recompute_every = k joins k consecutive units with the same stem to a group
 *   full        a group is recomputed from its inputs
 *   selective   attention, and the ops that the op table marks cheap (norms, activations, dropout,
 *               sums), are recomputed
 *
 * Both levels are one problem. Given are inputs, state, results of nodes that may not run again and
 * values that leave a full group. A minimum cut in bytes between these and the values that backward
 * reads decides which other values to store:
 *
 *     2v ── bytes(v) ──> 2v+1       cut: v is stored
 *     source ── inf ──> 2v           v cannot be recomputed
 *     2u+1 ── inf ──> 2v             v is recomputed from u
 *     2v+1 ── inf ──> sink           backward reads v
 *
 * Clones are placed where backward first reads them and have the same random stream. They repeat no
 * collective but one: a sequence that is gathered for a layer (parallel.sp) is gathered again for
 * the layer's backward, whatever the level, unless the options say to keep it. So all bits are
 * equal.
 */
#include "pass/remat/recompute.h"
#include "pass/zero.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "pass/remat/mincut.h"
#include "pass/unit.h"

enum {
    MIN_SHARE = 16 /* results below 1/16 of the operand's bytes (statistics) are always stored */
};

struct remat {
    struct ku_graph *g;
    const struct ku_compile_opts *o;
    ku_id n_nodes, n_values;
    ku_id *unit, *group; /* per node: names, 0 = none */
    ku_id *number;       /* per name: the unit's number, from 1 in node order */
    ku_id *unit_name;    /* per number */
    int n_units;
    unsigned char *level;          /* per node */
    unsigned char *may, *wanted;   /* per node: may be recomputed; is, in phase W (1) or I (2) */
    unsigned char *given, *needed; /* per value: stored in any case; read by backward */
    unsigned char *crosses;        /* per value: a node of another stage reads it */
    ku_id *gather;       /* per value gathered in forward: its all-gather in backward (ZeRO-3) */
    ku_id *first, *next; /* per state value: those of all stages, a chain; 0 = none */
    ku_id *slice;        /* per gathered value: its local shard (reshard_group), 0 = none */
    unsigned char *side; /* [2 n_values] sides of the cut, by vertex */
    ku_id *clone;        /* per value: its recomputed copy */
};

static void fini(struct remat *r)
{
    ku_free(r->unit);
    ku_free(r->group);
    ku_free(r->number);
    ku_free(r->level);
    ku_free(r->given);
    ku_free(r->side);
    ku_free(r->clone);
    ku_free(r->gather);
    ku_free(r->slice);
    ku_free(r->first);
}

static bool is_forward(const struct ku_graph *g, ku_id value)
{
    const struct ku_value *v = &g->value[value];
    return v->role == KU_TEMP && g->node[v->def].phase == KU_PH_F;
}
/* Whether `value` is a gathered parameter (ZeRO-3); backward has its own gather. */
static bool is_gather(const struct ku_graph *g, ku_id value)
{
    const struct ku_node *def = &g->node[g->value[value].def];
    return g->value[value].role == KU_TEMP && def->op == KU_OP_convert &&
           g->value[ku_in(g, def, 0)].role == KU_STATE;
}
static bool is_backward(const struct ku_node *n)
{
    return n->op != KU_OP_NONE && (n->phase == KU_PH_I || n->phase == KU_PH_W);
}

static struct ku_type local_type(const struct ku_graph *g, ku_id value)
{
    const struct ku_value *v = &g->value[value];
    struct ku_type t = {.dtype = (enum kumi_dtype)v->dtype};
    struct ku_coord first = {0};
    ku_local_shape(&g->mesh, &g->shape[v->shape], &g->layout[v->layout], &first, &t.shape);
    return t;
}
static int64_t bytes_of(const struct ku_graph *g, ku_id value)
{
    struct ku_type t = local_type(g, value);
    return ku_shape_count(&t.shape) * (int64_t)kumi_dtype_bytes(t.dtype);
}

/* The node that makes the last operand of `n`: a node without a path belongs to its unit. */
static ku_id last_operand(const struct ku_graph *g, ku_id n)
{
    ku_id last = 0;
    for (int i = 0; i < g->node[n].n_in; i++) {
        ku_id def = g->value[ku_in(g, &g->node[n], i)].def;
        if (def > last)
            last = def;
    }
    return last;
}

/* Sets units and groups of all forward nodes, and numbers the units. */
static int name_units(struct remat *r)
{
    struct ku_graph *g = r->g;
    char text[KU_NAME_BYTES + 32];
    for (ku_id n = 1; n < r->n_nodes; n++) {
        int64_t every = r->o->recompute_every > 0 ? r->o->recompute_every : 1;
        const char *path = g->name[g->node[n].path];
        int bytes = (int)ku_unit_bytes(path), stem = bytes;
        while (stem > 0 && path[stem - 1] != '.')
            stem--;
        if (path[0] == '\0') {
            r->unit[n] = r->unit[last_operand(g, n)];
            r->group[n] = r->group[last_operand(g, n)];
        }
        if (bytes == 0 || g->node[n].phase != KU_PH_F)
            continue;
        snprintf(text, sizeof text, "%.*s", bytes, path);
        r->unit[n] = ku_graph_name(g, text);
        path = g->name[g->node[n].path];
        snprintf(text, sizeof text, "%.*s/%lld", stem, path,
                 strtoll(path + stem, NULL, 10) / every);
        r->group[n] = ku_graph_name(g, text);
        if (!r->unit[n] || !r->group[n])
            return KUMI_ENOMEM;
    }
    r->number = ku_calloc(2 * (size_t)g->n_names + 1, sizeof *r->number);
    if (r->number == NULL)
        return KUMI_ENOMEM;
    r->unit_name = r->number + g->n_names;
    for (ku_id n = 1; n < r->n_nodes; n++)
        if (r->unit[n] && r->number[r->unit[n]] == 0) {
            r->number[r->unit[n]] = (ku_id)++r->n_units;
            r->unit_name[r->n_units] = r->unit[n];
        }
    return KUMI_OK;
}

static bool is_matched(const struct ku_compile_opts *o, const char *path)
{
    for (int i = 0; o->recompute_match && o->recompute_match[i]; i++)
        if (ku_str_glob(o->recompute_match[i], path))
            return 1;
    return o->recompute_match == NULL;
}

/* The level of a node. all: the level of every unit, -1: as the options say. */
static int level_of(const struct remat *r, ku_id n, int all)
{
    const struct ku_compile_opts *o = r->o;
    if (!is_matched(o, r->g->name[r->g->node[n].path]))
        return KU_RECOMPUTE_NONE;
    int level = all >= 0                           ? all
                : o->recompute_level && r->unit[n] ? o->recompute_level[r->number[r->unit[n]] - 1]
                                                   : o->recompute;
    return level == KU_RECOMPUTE_FULL && r->group[n] == 0 ? KU_RECOMPUTE_NONE : level;
}

static bool is_cheap(const struct ku_graph *g, ku_id n)
{
    const struct ku_node *node = &g->node[n];
    int64_t read = 0, made = 0;
    if ((ku_ops[node->op].traits & KU_OP_SELECTIVE) || node->op == KU_OP_convert)
        return 1;
    for (int i = 0; i < node->n_in; i++)
        read = bytes_of(g, ku_in(g, node, i)) > read ? bytes_of(g, ku_in(g, node, i)) : read;
    for (int i = 0; i < node->n_out; i++)
        made = bytes_of(g, ku_out(g, n, i)) > made ? bytes_of(g, ku_out(g, n, i)) : made;
    return (ku_ops[node->op].traits & KU_OP_CHEAP) && made >= read / MIN_SHARE;
}

/* Whether a node is a collective: a convert other than one from C to R, which is nothing. */
static bool moves_data(const struct ku_graph *g, ku_id n)
{
    const struct ku_node *node = &g->node[n];
    if (node->op != KU_OP_convert)
        return false;
    const struct ku_layout *from = &g->layout[g->value[ku_in(g, node, 0)].layout],
                           *to = &g->layout[g->value[ku_out(g, n, 0)].layout];
    for (int a = 0; a < KU_N_AXES; a++)
        if (from->at[a].kind != to->at[a].kind &&
            !(from->at[a].kind == KU_C && to->at[a].kind == KU_R))
            return true;
    return false;
}

/* Whether a node gathers a sequence of which the tensor-parallel ranks have parts. */
static bool is_sequence_gather(const struct ku_graph *g, ku_id n)
{
    const struct ku_node *node = &g->node[n];
    if (node->op != KU_OP_convert || node->phase != KU_PH_F)
        return false;
    const struct ku_value *from = &g->value[ku_in(g, node, 0)], *to = &g->value[ku_out(g, n, 0)];
    const struct ku_place at = g->layout[from->layout].at[KU_AX_TP];
    return at.kind == KU_S && g->shape[from->shape].dim[at.dim].name == 't' &&
           g->layout[to->layout].at[KU_AX_TP].kind != KU_S;
}

/* Whether backward may gather again: a clone belongs to the stage of its original. */
static bool may_gather_again(const struct remat *r, ku_id n)
{
    return (!r->o->sequence_gathered || r->level[n] == KU_RECOMPUTE_FULL) &&
           !r->crosses[ku_out(r->g, n, 0)];
}

static bool may_run_again(const struct remat *r, ku_id n)
{
    const struct ku_node *node = &r->g->node[n];
    const unsigned never = KU_OP_EFFECT | KU_OP_UPDATE;
    if (is_sequence_gather(r->g, n))
        return may_gather_again(r, n);
    if (node->phase != KU_PH_F || node->op == KU_OP_NONE || moves_data(r->g, n) ||
        (ku_ops[node->op].traits & never))
        return 0;
    return r->level[n] == KU_RECOMPUTE_FULL ||
           (r->level[n] == KU_RECOMPUTE_SELECTIVE && is_cheap(r->g, n));
}

static int analyse(struct remat *r, int all)
{
    const struct ku_graph *g = r->g;
    memset(r->given, 0, 2 * (size_t)r->n_values);
    memset(r->wanted, 0, r->n_nodes);
    for (ku_id n = 1; n < r->n_nodes; n++) {
        r->level[n] = (unsigned char)level_of(r, n, all);
        r->may[n] = (unsigned char)may_run_again(r, n);
    }
    for (ku_id v = 1; v < r->n_values; v++)
        r->given[v] = (unsigned char)(!is_forward(g, v) || is_gather(g, v));
    for (ku_id n = 1; n < r->n_nodes; n++)
        for (int i = 0; i < g->node[n].n_in && g->node[n].op != KU_OP_NONE; i++) {
            ku_id v = ku_in(g, &g->node[n], i), def = g->value[v].def;
            if (is_forward(g, v) && r->crosses[v])
                r->given[v] = 1; /* another stage of the pipeline receives it */
            if (is_backward(&g->node[n]) && !r->given[v])
                r->needed[v] = 1;
            else if (g->node[n].phase == KU_PH_F && is_forward(g, v) &&
                     r->level[def] == KU_RECOMPUTE_FULL && r->group[n] != r->group[def] &&
                     !(r->may[def] && is_sequence_gather(g, def)))
                r->given[v] = 1; /* the value leaves its group */
        }
    return KUMI_OK;
}

/* Vertices: 0 source, 1 sink, 2 v and 2 v + 1 the ends of value v's edge. */
static int cut(struct remat *r)
{
    const struct ku_graph *g = r->g;
    struct ku_cut *c = NULL;
    uint32_t n_edges = 3 * r->n_values;
    for (ku_id n = 1; n < r->n_nodes; n++)
        n_edges += (uint32_t)g->node[n].n_in * g->node[n].n_out;
    KU_TRY(ku_cut_create(2 * r->n_values, n_edges, &c));
    for (ku_id v = 1; v < r->n_values; v++) {
        if (r->given[v])
            continue;
        ku_id def = g->value[v].def;
        ku_cut_edge(c, 2 * v, 2 * v + 1, bytes_of(g, v));
        if (!r->may[def])
            ku_cut_edge(c, 0, 2 * v, KU_CUT_INFINITE);
        for (int i = 0; r->may[def] && i < g->node[def].n_in; i++) {
            ku_id u = ku_in(g, &g->node[def], i);
            if (!r->given[u])
                ku_cut_edge(c, 2 * u + 1, 2 * v, KU_CUT_INFINITE);
        }
        if (r->needed[v])
            ku_cut_edge(c, 2 * v + 1, 1, KU_CUT_INFINITE);
    }
    int64_t kept = ku_cut_solve(c, 0, 1, r->side);
    KU_ASSERT(kept < KU_CUT_INFINITE);
    ku_cut_destroy(c);
    return KUMI_OK;
}

static bool is_again(const struct remat *r, ku_id v)
{
    return v < r->n_values && !r->given[v] && r->side[2 * v];
}

/* Marks the nodes to recompute, readers before the nodes that they read. */
static void want(struct remat *r)
{
    const struct ku_graph *g = r->g;
    for (ku_id n = 1; n < r->n_nodes; n++)
        for (int i = 0; is_backward(&g->node[n]) && i < g->node[n].n_in; i++) {
            ku_id v = ku_in(g, &g->node[n], i);
            if (is_again(r, v))
                r->wanted[g->value[v].def] |= g->node[n].phase == KU_PH_I ? 2 : 1;
        }
    for (ku_id n = r->n_nodes - 1; n > 0; n--)
        for (int i = 0; r->wanted[n] && i < g->node[n].n_in; i++) {
            ku_id v = ku_in(g, &g->node[n], i);
            if (is_again(r, v))
                r->wanted[g->value[v].def] |= r->wanted[n];
        }
}

static int init(struct remat *r, struct ku_graph *g, const struct ku_compile_opts *o)
{
    *r = (struct remat){.g = g, .o = o, .n_nodes = g->n_nodes, .n_values = g->n_values};
    r->unit = ku_calloc(g->n_nodes, sizeof *r->unit);
    r->group = ku_calloc(g->n_nodes, sizeof *r->group);
    r->level = ku_calloc(3 * (size_t)g->n_nodes, 1);
    r->given = ku_calloc(3 * (size_t)g->n_values, 1);
    r->side = ku_calloc(2 * (size_t)g->n_values, 1);
    r->clone = ku_calloc(g->n_values, sizeof *r->clone);
    r->gather = ku_calloc(g->n_values, sizeof *r->gather);
    r->slice = ku_calloc(g->n_values, sizeof *r->slice);
    r->first = ku_calloc(2 * (size_t)g->n_values, sizeof *r->first);
    if (!r->unit || !r->group || !r->level || !r->given || !r->side || !r->clone || !r->gather ||
        !r->slice || !r->first)
        return KUMI_ENOMEM;
    r->next = r->first + g->n_values;
    r->may = r->level + g->n_nodes;
    r->wanted = r->may + g->n_nodes;
    r->needed = r->given + g->n_values;
    r->crosses = r->needed + g->n_values;
    for (ku_id n = 1; n < g->n_nodes; n++)
        for (int i = 0; i < g->node[n].n_in && g->node[n].op != KU_OP_NONE; i++) {
            const ku_id v = ku_in(g, &g->node[n], i), def = g->value[v].def;
            r->crosses[v] |= def && g->node[def].stage != g->node[n].stage;
        }
    return name_units(r);
}

/* The state value that a chain of gathers and slices (ku_zero_slice) starts from. */
static ku_id gathered_state(const struct ku_graph *g, ku_id value)
{
    while (g->value[value].role != KU_STATE && g->node[g->value[value].def].op == KU_OP_convert)
        value = ku_in(g, &g->node[g->value[value].def], 0);
    return value;
}

/* Replaces *value, a parameter gathered in forward, by its gather in backward. */
static int gathered(struct remat *r, ku_id *value)
{
    struct ku_graph *g = r->g;
    const struct ku_node forward = g->node[g->value[*value].def];
    ku_id state = ku_in(g, &forward, 0);
    if (r->gather[*value] == 0) {
        struct ku_attrs a = g->attr[forward.attr];
        ku_id from = state;
        if (ku_zero_group(r->o) && forward.phase == KU_PH_F) {
            from = r->slice[*value] ? r->slice[*value] : ku_zero_slice(g, r->o, *value);
            r->slice[*value] = from;
        }
        if (from == 0)
            return ku_err_get()->status;
        ku_id made = ku_graph_node(g, &(struct ku_make){.op = KU_OP_convert,
                                                        .phase = KU_PH_I,
                                                        .n_in = 1,
                                                        .in = {from},
                                                        .attr = &a,
                                                        .path = g->name[forward.path],
                                                        .stage = forward.stage});
        if (made == 0)
            return ku_err_get()->status;
        r->gather[*value] = ku_out(g, made, 0);
        g->value[r->gather[*value]].layout = g->value[*value].layout;
    }
    *value = r->gather[*value];
    return KUMI_OK;
}

static int clone_node(struct remat *r, ku_id n)
{
    struct ku_graph *g = r->g;
    struct ku_node old = g->node[n];
    struct ku_make m = {.op = old.op,
                        .phase = r->wanted[n] & 2 ? KU_PH_I : KU_PH_W,
                        .n_in = old.n_in,
                        .n_out = old.n_out,
                        .attr = &(struct ku_attrs){0},
                        .path = g->name[old.path],
                        .source = old.source,
                        .stream = old.stream};
    struct ku_attrs a = g->attr[old.attr];
    m.attr = &a;
    for (int i = 0; i < old.n_in; i++) {
        ku_id v = ku_in(g, &old, i);
        m.in[i] = is_again(r, v) ? r->clone[v] : v;
        if (is_forward(g, v) && is_gather(g, v))
            KU_TRY(gathered(r, &m.in[i]));
    }
    ku_id made = ku_graph_node(g, &m);
    if (made == 0)
        return ku_err_get()->status;
    g->node[made].stage = old.stage;
    for (int i = 0; i < old.n_out; i++) {
        ku_id v = g->refs[old.out + (uint32_t)i];
        r->clone[v] = ku_out(g, made, i);
        g->value[r->clone[v]].layout = g->value[v].layout;
    }
    return KUMI_OK;
}

/* Makes ReLU's gradient read the result instead of the operand: both are positive at the same
 * elements, and the result has other readers, so it is stored anyway. */
static int read_results_of_relu(struct ku_graph *g)
{
    ku_id *result = ku_calloc(g->n_values, sizeof *result); /* per operand of a ReLU: its result */
    if (result == NULL)
        return KUMI_ENOMEM;
    for (ku_id n = 1; n < g->n_nodes; n++) {
        const struct ku_node *node = &g->node[n];
        if (node->op == KU_OP_act && node->phase == KU_PH_F &&
            g->attr[node->attr].act == KU_ACT_RELU && result[ku_in(g, node, 0)] == 0)
            result[ku_in(g, node, 0)] = ku_out(g, n, 0);
        else if (node->op == KU_OP_act_dx && g->attr[node->attr].act == KU_ACT_RELU &&
                 result[ku_in(g, node, 1)])
            g->refs[node->in + 1] = result[ku_in(g, node, 1)];
    }
    ku_free(result);
    return KUMI_OK;
}

/* Finds the gather in backward of each one in forward: that of the same stage. */
static void pair_gathers(struct remat *r)
{
    const struct ku_graph *g = r->g;
    for (ku_id n = 1; n < r->n_nodes; n++) {
        const ku_id v = g->node[n].op == KU_OP_convert ? ku_out(g, n, 0) : 0;
        if (v && g->node[n].phase == KU_PH_F && is_gather(g, v)) {
            r->next[v] = r->first[gathered_state(g, v)];
            r->first[gathered_state(g, v)] = v;
        }
    }
    for (ku_id n = 1; n < r->n_nodes; n++) {
        if (!is_backward(&g->node[n]) || g->node[n].op != KU_OP_convert)
            continue;
        for (ku_id v = r->first[gathered_state(g, ku_out(g, n, 0))]; v; v = r->next[v])
            if (g->node[g->value[v].def].stage == g->node[n].stage)
                r->gather[v] = ku_out(g, n, 0);
    }
}

static int rewrite(struct remat *r)
{
    struct ku_graph *g = r->g;
    for (ku_id n = r->n_nodes - 1; n > 0; n--)
        if (g->node[n].op == KU_OP_convert)
            r->slice[ku_in(g, &g->node[n], 0)] = ku_out(g, n, 0);
    pair_gathers(r);
    for (ku_id n = 1; n < r->n_nodes; n++)
        if (r->wanted[n])
            KU_TRY(clone_node(r, n));
    for (ku_id n = 1; n < r->n_nodes; n++)
        for (int i = 0; is_backward(&g->node[n]) && i < g->node[n].n_in; i++) {
            ku_id *v = &g->refs[g->node[n].in + (uint32_t)i];
            if (is_again(r, *v))
                *v = r->clone[*v];
        }
    return ku_graph_sort(g);
}

int ku_pass_recompute(struct ku_graph *g, const struct ku_compile_opts *o,
                      const struct ku_target *t)
{
    (void)t;
    const bool is_none = o->recompute == KU_RECOMPUTE_NONE && o->recompute_level == NULL;
    if (is_none && (!o->sequence || o->sequence_gathered))
        return KUMI_OK;
    struct remat r;
    if (!is_none)
        KU_TRY(read_results_of_relu(g));
    int status = init(&r, g, o);
    if (status == KUMI_OK)
        status = analyse(&r, -1);
    if (status == KUMI_OK)
        status = cut(&r);
    if (status == KUMI_OK) {
        want(&r);
        status = rewrite(&r);
    }
    fini(&r);
    return status;
}

static double work_of(const struct ku_graph *g, ku_id n)
{
    const struct ku_node *node = &g->node[n];
    struct ku_type in[KU_MAX_IN], out[KU_MAX_OUT];
    for (int i = 0; i < node->n_in; i++)
        in[i] = local_type(g, ku_in(g, node, i));
    for (int i = 0; i < node->n_out; i++)
        out[i] = local_type(g, ku_out(g, n, i));
    struct ku_cost c =
        ku_ops[node->op].cost(&g->attr[node->attr], 0, node->n_in, in, node->n_out, out);
    return c.flops > c.bytes * KU_FLOP_PER_BYTE ? c.flops : c.bytes * KU_FLOP_PER_BYTE;
}

/* Adds up per unit the bytes of stored values (read by backward or a clone, and not recomputed) and
 * the cost of recomputation. */
static void add_up(struct remat *r, int level, struct ku_recompute_unit *unit)
{
    const struct ku_graph *g = r->g;
    memset(r->needed, 0, r->n_values);
    for (ku_id n = 1; n < r->n_nodes; n++)
        for (int i = 0; (r->wanted[n] || is_backward(&g->node[n])) && i < g->node[n].n_in; i++)
            r->needed[ku_in(g, &g->node[n], i)] = 1;
    for (ku_id v = 1; v < r->n_values; v++) {
        ku_id u = is_forward(g, v) ? r->unit[g->value[v].def] : 0;
        if (u && r->needed[v] && !is_again(r, v))
            unit[r->number[u] - 1].bytes[level] += (double)bytes_of(g, v);
    }
    for (ku_id n = 1; n < r->n_nodes; n++)
        if (r->wanted[n] && r->unit[n])
            unit[r->number[r->unit[n]] - 1].work[level] += work_of(g, n);
}

int ku_recompute_measure(struct ku_graph *g, const struct ku_compile_opts *o,
                         struct ku_recompute_unit **unit, int *n)
{
    struct remat r;
    struct ku_recompute_unit *list = NULL;
    KU_TRY(read_results_of_relu(g));
    int status = init(&r, g, o);
    if (status == KUMI_OK) {
        list = ku_calloc((size_t)r.n_units + 1, sizeof *list);
        status = list ? KUMI_OK : KUMI_ENOMEM;
    }
    for (int level = 0; level < KU_N_RECOMPUTE && status == KUMI_OK; level++) {
        status = analyse(&r, level);
        if (status == KUMI_OK)
            status = cut(&r);
        want(&r);
        add_up(&r, level, list);
    }
    for (int i = 0; i < r.n_units && status == KUMI_OK; i++)
        list[i].name = g->name[r.unit_name[i + 1]];
    *n = r.n_units;
    *unit = list;
    if (status < 0) {
        ku_free(list);
        *unit = NULL;
    }
    fini(&r);
    return status;
}
