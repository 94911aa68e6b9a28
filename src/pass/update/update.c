/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Builds phase O, the end of the step:
 *
 *   1. The gradient of each use is completed by one `convert`: accumulated over mb and vs, then
 *      reduced over the data-parallel ranks (with mb_outer, over mb last). Loss and metrics
 *      likewise.
 *   2. The uses of a tied parameter are added in use order.
 *   3. sumsq nodes compute the exact gradient norm and the counts of non-finite elements (stats).
 *   4. step_scalars makes the report: loss, norm, learning rate and whether the step applies.
 *   5. The optimizer writes the next state.
 */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/math/exact.h"
#include "base/mem.h"
#include "base/str.h"
#include "ir/placement_rules.h"
#include "pass/precision_rules.h"
#include "pass/update.h"

/* Every mesh axis: no value is partial after a `convert` in O. */
enum { ALL_AXES = (1 << KU_N_AXES) - 1 };

static ku_id convert(struct ku_graph *g, ku_id value, const struct ku_attrs *a, const char *path)
{
    ku_id node = ku_graph_node(g, &(struct ku_make){.op = KU_OP_convert,
                                                    .phase = KU_PH_O,
                                                    .n_in = 1,
                                                    .in = {value},
                                                    .attr = a,
                                                    .path = path});
    return node && ku_place_complete(g, node) == KUMI_OK ? ku_out(g, node, 0) : 0;
}

static ku_id complete(struct ku_graph *g, ku_id value, int axes, enum ku_node_reduce reduce,
                      int wire, int by_micro, const char *path)
{
    struct ku_attrs a = ku_attrs_default;
    a.axes = axes;
    a.reduce = reduce;
    a.wire = wire;
    a.by_micro = by_micro;
    return convert(g, value, &a, path);
}

ku_id ku_update_sum_over(struct ku_graph *g, ku_id value, int axes, const char *path)
{
    struct ku_attrs a = ku_attrs_default;
    a.axes = axes;
    return convert(g, value, &a, path);
}

const int ku_update_division[KU_N_DIVISIONS] = {1 << KU_AX_TPI, 1 << KU_AX_TP, 0};

int ku_update_divided_by(const struct ku_graph *g, ku_id grad)
{
    const int axes = ku_layout_axes(&g->layout[g->value[grad].layout], KU_S) & KU_TP_AXES;
    return axes >> KU_AX_TPI & 1 ? 1 << KU_AX_TPI : axes;
}

ku_id ku_update_sum_divided(struct ku_graph *g, ku_id sums, int axis, const char *path)
{
    const int divided = axis == 1 << KU_AX_TPI ? KU_TP_AXES : axis;
    const int axes = ku_layout_axes(&g->layout[g->value[sums].layout], KU_P) & KU_TP_AXES;
    return axes & ~divided ? ku_update_sum_over(g, sums, axes & ~divided, path) : sums;
}

ku_id ku_update_once(struct ku_graph *g, struct ku_make m)
{
    m.phase = KU_PH_O;
    ku_id node = ku_graph_node(g, &m);
    return node && ku_place_node(g, node) == KUMI_OK ? node : 0;
}

ku_id ku_update_source(const struct ku_graph *g, ku_id tensor)
{
    ku_id first = g->tensor[tensor].first_use;
    return first ? g->node[g->use[first].node].source : 0;
}

/* The wire dtype of a gradient; -1: its own dtype. */
static int wire_of(const struct ku_graph *g, const struct ku_compile_opts *o, ku_id tensor,
                   ku_id grad)
{
    const enum kumi_dtype wire = ku_precision_wire(g, o, tensor);
    return g->value[grad].dtype == KUMI_F32 && wire != KUMI_F32 ? (int)wire : -1;
}

/*
 * The complete gradient of a use. Where tensor-parallel ranks have parts of it (parallel.sp; along
 * tpi, of key and value heads that they share), they add them up last: then the sums over
 * micro-batches and data-parallel ranks are the same tree in every layout. 0 on failure.
 */
static ku_id gradient_of_use(struct ku_graph *g, const struct ku_compile_opts *o, ku_id tensor,
                             ku_id grad)
{
    const char *path = g->tensor[tensor].name;
    const int parts = ku_layout_axes(&g->layout[g->value[grad].layout], KU_P) & KU_TP_AXES;
    const ku_id sum = complete(g, grad, ALL_AXES & ~parts, KU_REDUCE_SUM,
                               wire_of(g, o, tensor, grad), g->mesh.mb_outer, path);
    return sum && parts ? ku_update_sum_over(g, sum, parts, path) : sum;
}

/* The complete gradient of a parameter, summed over its uses in use order; 0 on failure. next: see
 * chain_uses. */
static ku_id gradient(struct ku_graph *g, const struct ku_compile_opts *o, ku_id tensor,
                      const ku_id *next)
{
    ku_id sum = 0;
    for (ku_id u = g->tensor[tensor].first_use; u; u = next[u]) {
        if (g->use[u].grad == 0)
            continue;
        ku_id part = gradient_of_use(g, o, tensor, g->use[u].grad);
        if (part && sum) {
            ku_id node = ku_update_once(g, (struct ku_make){.op = KU_OP_add,
                                                            .n_in = 2,
                                                            .in = {sum, part},
                                                            .path = g->tensor[tensor].name,
                                                            .source = ku_update_source(g, tensor)});
            part = node ? ku_out(g, node, 0) : 0;
        }
        if (part == 0)
            return 0;
        sum = part;
    }
    return sum;
}

/* Per use the next use of the same tensor, 0 = none; NULL: no memory. */
static ku_id *chain_uses(const struct ku_graph *g)
{
    ku_id *next = ku_calloc(g->n_uses, sizeof *next);
    ku_id *first = ku_calloc(g->n_tensors, sizeof *first);
    for (ku_id u = g->n_uses - 1; u > 0 && next && first; u--) {
        next[u] = first[g->use[u].tensor];
        first[g->use[u].tensor] = u;
    }
    int is_whole = next && first;
    ku_free(first);
    if (!is_whole)
        ku_free(next);
    return is_whole ? next : NULL;
}

/* Completes loss and metrics: the outputs that forward leaves partial. */
static int complete_outputs(struct ku_graph *g)
{
    for (uint32_t i = 0; i < g->n_outputs; i++) {
        const struct ku_value *v = &g->value[g->output[i].value];
        if (!ku_layout_has(&g->layout[v->layout], KU_P))
            continue;
        int is_max = strncmp(g->output[i].name, "metric.max.", 11) == 0;
        ku_id done = complete(g, g->output[i].value, ALL_AXES,
                              is_max ? KU_REDUCE_MAX : KU_REDUCE_SUM, -1, 0, g->output[i].name);
        if (done == 0)
            return ku_err_get()->status;
        g->output[i].value = done;
    }
    return KUMI_OK;
}

ku_id ku_update_own(struct ku_graph *g, ku_id param, const char *suffix, enum ku_tensor_kind kind,
                    enum kumi_dtype dtype, const struct ku_shape *shape)
{
    char name[KU_NAME_BYTES];
    snprintf(name, sizeof name, "%s%s%s", param ? g->tensor[param].name : "", param ? "." : "",
             suffix);
    ku_id t = ku_graph_tensor(g, name, kind, dtype, shape);
    if (t && param) {
        g->tensor[t].of = param;
        g->tensor[t].file_rows = g->tensor[param].file_rows;
        g->value[g->tensor[t].value].layout = g->value[g->tensor[param].value].layout;
    }
    return t;
}

bool ku_update_selects(const struct ku_graph *g, ku_id tensor, int decay,
                       const char *const *patterns)
{
    int64_t dim[KU_MAX_DIMS];
    switch ((enum ku_decay)decay) {
    case KU_DECAY_ALL:
        return 1;
    case KU_DECAY_MATRICES:
        return ku_tensor_file_shape(g, tensor, dim) >= 2;
    case KU_DECAY_PATTERNS:
        for (int i = 0; patterns[i]; i++)
            if (ku_str_glob(patterns[i], g->tensor[tensor].name))
                return 1;
    }
    return 0;
}

int ku_update_begin(struct ku_graph *g, const struct ku_compile_opts *o, int op,
                    struct ku_update_node *u)
{
    const char *const *own = ku_ops[op].state;
    struct ku_shape shape = g->shape[g->tensor[u->tensor].shape];
    struct ku_attrs first = ku_attrs_default;
    u->copy = g->tensor[u->tensor].copy;
    u->state[0] = u->tensor;
    u->attr = ku_update_attrs(g, o, u->tensor);
    u->attr.dtype = u->copy ? g->tensor[u->copy].dtype : -1;
    first.value = op == KU_OP_adagrad ? o->initial_accumulator_value : 0;
    ku_id init = ku_graph_attr(g, &first);
    if (init == 0)
        return ku_err_get()->status;
    for (u->n_own = 0; u->n_own < KU_MAX_STATE && own[u->n_own]; u->n_own++) {
        ku_id t = ku_update_own(g, u->tensor, own[u->n_own], KU_T_OPTIMIZER,
                                ku_update_wide(g, u->tensor), &shape);
        if (t == 0)
            return ku_err_get()->status;
        g->tensor[t].init_attr = init;
        u->state[u->n_own + 1] = t;
    }
    return KUMI_OK;
}

int ku_update_element(struct ku_graph *g, const struct ku_compile_opts *o, int op, ku_id tensor,
                      ku_id grad, ku_id report)
{
    struct ku_update_node u = {.tensor = tensor, .grad = grad, .report = report};
    KU_TRY(ku_update_begin(g, o, op, &u));
    struct ku_make m = {.op = op,
                        .source = ku_update_source(g, tensor),
                        .attr = &u.attr,
                        .n_in = u.n_own + 3,
                        .n_out = u.n_own + 1 + (u.copy != 0),
                        .path = g->tensor[tensor].name};
    m.in[0] = ku_update_read(g, tensor, grad);
    for (int i = 1; i <= u.n_own; i++)
        m.in[i] = g->tensor[u.state[i]].value;
    m.in[u.n_own + 1] = grad;
    m.in[u.n_own + 2] = report;
    ku_id node = m.in[0] ? ku_update_once(g, m) : 0;
    if (node == 0)
        return ku_err_get()->status;
    for (int i = 1; i <= u.n_own; i++)
        g->tensor[u.state[i]].next = ku_out(g, node, i);
    if (u.copy)
        g->tensor[u.copy].next = ku_out(g, node, u.n_own + 1);
    return ku_update_write(g, o, tensor, ku_out(g, node, 0));
}

int ku_update_elementwise(struct ku_graph *g, const struct ku_compile_opts *o, const ku_id *grad,
                          ku_id n_params, ku_id report)
{
    for (ku_id t = 1; t < n_params; t++)
        if (grad[t])
            KU_TRY(ku_update_element(g, o, o->optimizer, t, grad[t], report));
    return KUMI_OK;
}

/* The builder of each optimizer; NULL: the op is none. */
static ku_update_fn *const builder_of[KU_N_OPS] = {
#define KU_OP(...)
#define KU_OPTIMIZER(name, s0, s1, s2, update, ...) [KU_OP_##name] = ku_update_##update,
#include "op/ops.def"
#undef KU_OP
};

/*
 * The gradient as `sumsq` reads it. One that several tensor-parallel ranks hold would be counted
 * once per rank, beside others that are split: each rank reads its own blocks. 0 on failure.
 */
static ku_id count_once(struct ku_graph *g, ku_id grad, const char *path)
{
    struct ku_attrs a = ku_attrs_default;
    struct ku_layout l = g->layout[g->value[grad].layout];
    if (ku_mesh_tp(&g->mesh) > 1) /* on tp of one rank too: sums of tensors split along it are P */
        a.axes = ku_layout_axes(&l, KU_C) & (1 << KU_AX_TP | ku_mesh_wide(&g->mesh, KU_TP_AXES));
    if (a.axes == 0)
        return grad;
    for (int axis = 0; axis < KU_N_AXES; axis++)
        if (a.axes >> axis & 1)
            l.at[axis].kind = KU_Z;
    ku_id layout = ku_graph_layout(g, &l);
    ku_id node = ku_graph_node(g, &(struct ku_make){.op = KU_OP_convert,
                                                    .phase = KU_PH_O,
                                                    .n_in = 1,
                                                    .in = {grad},
                                                    .attr = &a,
                                                    .path = path});
    if (layout == 0 || node == 0)
        return 0;
    g->value[ku_out(g, node, 0)].layout = layout;
    return ku_out(g, node, 0);
}

/* stats: the exact sum of squares of all gradients, then one count of non-finite elements per
 * gradient. */
static ku_id statistics(struct ku_graph *g, const ku_id *grad, ku_id n_params)
{
    struct ku_attrs a = ku_attrs_default;
    for (ku_id t = 1; t < n_params; t++)
        a.words += grad[t] != 0;
    a.words += KU_EXACT_WORDS;
    ku_id node =
        ku_update_once(g, (struct ku_make){.op = KU_OP_stats_zero, .attr = &a, .path = "norm"});
    a = ku_attrs_default;
    for (ku_id t = 1; t < n_params && node; t++) {
        if (grad[t] == 0)
            continue;
        ku_id own = count_once(g, grad[t], g->tensor[t].name);
        if (own == 0)
            return 0;
        a.chunk = g->tensor[t].chunk;
        node = ku_update_once(g, (struct ku_make){.op = KU_OP_sumsq,
                                                  .n_in = 2,
                                                  .in = {own, ku_out(g, node, 0)},
                                                  .attr = &a,
                                                  .path = g->tensor[t].name,
                                                  .source = ku_update_source(g, t)});
        a.index++;
    }
    ku_id stats = node ? ku_out(g, node, 0) : 0;
    if (stats && ku_layout_has(&g->layout[g->value[stats].layout], KU_P))
        stats = complete(g, stats, ALL_AXES, KU_REDUCE_SUM, -1, 0, "norm");
    return stats;
}

/* The shift of the loss_seed node: backward starts at 2^-shift. */
static int64_t loss_shift(const struct ku_graph *g)
{
    for (ku_id n = 1; n < g->n_nodes; n++)
        if (g->node[n].op == KU_OP_loss_seed)
            return g->attr[g->node[n].attr].shift;
    return 0;
}

static int report_and_optimize(struct ku_graph *g, const struct ku_compile_opts *o, ku_id *grad,
                               ku_id n_params)
{
    int64_t one = 1;
    struct ku_shape word = ku_shape_of("w", &one);
    struct ku_attrs a = o->rule;
    a.shift = loss_shift(g);
    ku_id count = ku_update_own(g, 0, "update", KU_T_COUNTER, KUMI_I64, &word);
    ku_id stats = statistics(g, grad, n_params), scaler = ku_update_scaler_state(g, o);
    if (count == 0 || stats == 0)
        return ku_err_get()->status;
    ku_id node =
        ku_update_once(g, (struct ku_make){.op = KU_OP_step_scalars,
                                           .n_in = 4 + (scaler != 0),
                                           .in = {stats, ku_graph_find_output(g, "loss_sum"),
                                                  ku_graph_find_output(g, "loss_valid"),
                                                  g->tensor[count].value, scaler},
                                           .attr = &a,
                                           .path = "norm"});
    if (node == 0)
        return ku_err_get()->status;
    g->tensor[count].next = ku_out(g, node, 1);
    KU_TRY(ku_graph_output(g, "report", ku_out(g, node, 0)));
    KU_TRY(ku_graph_output(g, "stats", stats));
    ku_id report = ku_out(g, node, 0);
    KU_TRY(ku_update_scaler(g, o, report));
    KU_TRY(ku_update_clip_values(g, o, grad, n_params, report));
    KU_ASSERT(o->optimizer > KU_OP_NONE && o->optimizer < KU_N_OPS && builder_of[o->optimizer]);
    KU_TRY(builder_of[o->optimizer](g, o, grad, n_params, report));
    for (ku_id t = 1; t < n_params; t++)
        if (grad[t])
            KU_TRY(ku_update_average(g, o, t, grad[t], report));
    return KUMI_OK;
}

int ku_pass_update(struct ku_graph *g, const struct ku_compile_opts *o, const struct ku_target *t)
{
    (void)t;
    KU_TRY(complete_outputs(g));
    if (!o->is_training) {
        ku_id loss = ku_graph_find_output(g, "loss_sum"),
              valid = ku_graph_find_output(g, "loss_valid");
        if (loss == 0)
            return KUMI_OK; /* inference: logits only */
        ku_id node = ku_update_once(
            g, (struct ku_make){
                   .op = KU_OP_loss_scalars, .n_in = 2, .in = {loss, valid}, .path = "loss"});
        return node ? ku_graph_output(g, "report", ku_out(g, node, 0)) : ku_err_get()->status;
    }
    KU_TRY(ku_update_check_groups(g, o));
    KU_TRY(ku_update_track(g, o));
    ku_id n_params = g->n_tensors;
    ku_id *grad = ku_calloc(n_params, sizeof *grad), *next = chain_uses(g);
    int status = grad && next ? KUMI_OK : KUMI_ENOMEM;
    for (ku_id p = 1; p < n_params && status == KUMI_OK; p++)
        if (g->tensor[p].kind == KU_T_PARAM && g->tensor[p].trainable && g->tensor[p].used) {
            grad[p] = gradient(g, o, p, next);
            status = grad[p] ? KUMI_OK : ku_err_get()->status;
        }
    if (status == KUMI_OK && o->remote.update_by != KU_UPDATE_WORKER)
        status = report_and_optimize(g, o, grad, n_params);
    if (status == KUMI_OK)
        status = ku_update_cut(g, o);
    ku_free(grad);
    ku_free(next);
    return status;
}
