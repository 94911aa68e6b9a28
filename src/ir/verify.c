/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verifier, run after every pass (rules: ku_graph_verify in ir/graph.h). For each node it
 * checks operands; then, unless the node's fingerprint is that of the last successful check, the
 * inferred types and, after placement, the inferred placements. Last come the rules over the whole
 * graph: gradients of uses and versions of the state.
 */
#include <string.h>

#include "base/err.h"
#include "base/hash.h"
#include "base/mem.h"
#include "ir/graph.h"
#include "ir/placement_rules.h"

static int broken(const struct ku_graph *g, ku_id node, const char *rule)
{
    const struct ku_node *n = &g->node[node];
    return KU_ERR(KUMI_EBUG, "verify: node %u (%s %s): %s", node, ku_ops[n->op].name,
                  g->name[n->path], rule);
}

/*
 * 1 if a node of phase `read` may read a result of phase `made`: an earlier phase, or the same one.
 * I and W count as one phase.
 */
static bool is_before(int made, int read)
{
    static const int turn[KU_N_PHASES] = {
        [KU_PH_A] = 0, [KU_PH_F] = 1, [KU_PH_I] = 2, [KU_PH_W] = 2, [KU_PH_O] = 3};
    return turn[made] <= turn[read];
}

static int verify_operands(const struct ku_graph *g, ku_id id)
{
    const struct ku_node *n = &g->node[id];
    if (n->op >= KU_N_OPS || n->phase >= KU_N_PHASES)
        return broken(g, id, "no such op or phase");
    for (int i = 0; i < n->n_in; i++) {
        ku_id v = ku_in(g, n, i);
        if (v == 0 || v >= g->n_values)
            return broken(g, id, "an operand is not a value");
        ku_id def = g->value[v].def;
        if (g->value[v].role != KU_TEMP)
            continue;
        if (def == 0 || g->node[def].op == KU_OP_NONE)
            return broken(g, id, "an operand is never defined");
        if (!is_before(g->node[def].phase, n->phase) ||
            (g->node[def].phase == n->phase && def >= id))
            return broken(g, id, "an operand is used before its definition");
    }
    for (int i = 0; i < n->n_out; i++) {
        const struct ku_value *v = &g->value[ku_out(g, id, i)];
        if (v->def != id || v->result != i)
            return broken(g, id, "a result does not name its node");
    }
    return KUMI_OK;
}

static int verify_types(const struct ku_graph *g, ku_id id)
{
    const struct ku_node *n = &g->node[id];
    struct ku_type in[KU_MAX_IN], out[KU_MAX_OUT];
    for (int i = 0; i < n->n_in; i++)
        in[i] = ku_type_of(g, ku_in(g, n, i));
    if (ku_op_infer(n->op, &g->attr[n->attr], n->n_in, in, n->n_out, out) < 0)
        return broken(g, id, ku_err_get()->text);
    for (int i = 0; i < n->n_out; i++) {
        struct ku_type t = ku_type_of(g, ku_out(g, id, i));
        if (t.dtype != out[i].dtype || !ku_shape_is_equal(&t.shape, &out[i].shape))
            return broken(g, id, "a result's type does not follow from its operands");
    }
    return KUMI_OK;
}

/*
 * A convert that adds to stats leaves canonical chunks, of a slice perhaps: the chunks of each rank
 * give a partial sum of squares.
 */
static int verify_convert(const struct ku_graph *g, ku_id id)
{
    const struct ku_node *n = &g->node[id];
    if ((n->n_in > 1) != (n->n_out > 1))
        return broken(g, id, "stats must be both an operand and a result");
    if (ku_place_check_convert(g, id) < 0)
        return broken(g, id, ku_err_get()->text);
    if (n->n_in == 1)
        return KUMI_OK;
    if (g->attr[n->attr].by_micro && n->n_in > 2)
        return broken(g, id, "adds both the previous sum and another use");
    const struct ku_layout *x = &g->layout[g->value[ku_out(g, id, 0)].layout];
    struct ku_layout stats = g->layout[g->value[ku_in(g, n, 1)].layout];
    for (int axis = 0; axis < KU_N_AXES; axis++)
        if (x->at[axis].kind == KU_Z || (KU_TP_AXES >> axis & 1 && x->at[axis].kind == KU_S))
            stats.at[axis].kind = KU_P;
    if (!ku_layout_has(x, KU_Z) ||
        !ku_layout_is_equal(&g->layout[g->value[ku_out(g, id, 1)].layout], &stats))
        return broken(g, id,
                      "sums squares of a value that is not in blocks, or the sum is not partial");
    if (n->n_in > 2 && g->value[ku_in(g, n, 2)].layout != g->value[ku_out(g, id, 0)].layout)
        return broken(g, id, "the addend and the sum differ in placement");
    return KUMI_OK;
}

static int verify_placement(const struct ku_graph *g, ku_id id)
{
    const struct ku_node *n = &g->node[id];
    struct ku_layout out[KU_MAX_OUT];
    if (n->op == KU_OP_convert)
        return verify_convert(g, id);
    for (int i = 0; i < n->n_in && n->phase != KU_PH_O; i++)
        if (ku_layout_has(&g->layout[g->value[ku_in(g, n, i)].layout], KU_Z))
            return broken(g, id, "reads blocks that have not been gathered");
    if (ku_place_infer(g, id, out) < 0)
        return broken(g, id, ku_err_get()->text);
    for (int i = 0; i < n->n_out; i++)
        if (!ku_layout_is_equal(&g->layout[g->value[ku_out(g, id, i)].layout], &out[i]))
            return broken(g, id, "a result's placement does not follow from the op's rule");
    return KUMI_OK;
}

/* Whether a gradient is the sum over axis tp that autodiff makes of slices (join_slices). */
static bool is_joined(const struct ku_graph *g, ku_id grad)
{
    const struct ku_node *scale = &g->node[g->value[grad].def];
    const ku_id sum = scale->op == KU_OP_scale ? g->value[ku_in(g, scale, 0)].def : 0;
    return sum && g->node[sum].op == KU_OP_convert &&
           (g->attr[g->node[sum].attr].axes & ~KU_TP_AXES) == 0;
}

/* After autodiff, until state is partitioned: a use's gradient has the dual placement. */
static int verify_dual(const struct ku_graph *g, const struct ku_use *use)
{
    const struct ku_node *n = &g->node[use->node];
    if (use->grad == 0 || n->op == KU_OP_NONE || use->operand >= n->n_in)
        return KUMI_OK;
    const struct ku_layout *l = &g->layout[g->value[ku_in(g, n, use->operand)].layout],
                           *grad = &g->layout[g->value[use->grad].layout];
    for (int axis = 0; axis < KU_N_AXES; axis++) {
        struct ku_place p = ku_place_dual(l->at[axis]);
        if (KU_TP_AXES >> axis & 1 &&
            is_joined(g, use->grad)) /* parts of a sum in slices, added up */
            p = (struct ku_place){.kind = KU_C};
        if (p.kind != grad->at[axis].kind || p.dim != grad->at[axis].dim)
            return KU_ERR(KUMI_EBUG,
                          "verify: node %u (%s %s): axis %s: the gradient of %s is not placed as "
                          "the dual of the use",
                          use->node, ku_ops[n->op].name, g->name[n->path], ku_axis_name(axis),
                          g->tensor[use->tensor].name);
    }
    return KUMI_OK;
}

/*
 * After placement: what a step starts from is no partial sum, and in blocks only once the update
 * pass has built the phase that reads them.
 */
static int verify_sources(const struct ku_graph *g)
{
    for (ku_id t = 1; t < g->n_tensors; t++) {
        const struct ku_layout *l = &g->layout[g->value[g->tensor[t].value].layout];
        if (ku_layout_has(l, KU_P) || (ku_layout_has(l, KU_Z) && !(g->has & KU_HAS_UPDATE)))
            return KU_ERR(KUMI_EBUG, "verify: %s: state is a partial sum, or in blocks too early",
                          g->tensor[t].name);
    }
    for (uint32_t i = 0; i < g->n_inputs; i++) {
        const struct ku_layout *l = &g->layout[g->value[g->input[i].value].layout];
        const bool is_cut = g->input[i].pushed.is_pushed && (g->has & KU_HAS_UPDATE);
        if (ku_layout_has(l, KU_P) || (ku_layout_has(l, KU_Z) && !is_cut))
            return KU_ERR(KUMI_EBUG, "verify: port %s is a partial sum or in blocks",
                          g->input[i].name);
    }
    return KUMI_OK;
}

/* After the update pass: a partial sum in the next state or in an output is not complete, but for
 * what a worker pushes, which is partial over data-parallel ranks. */
static int verify_complete(const struct ku_graph *g)
{
    for (ku_id t = 1; t < g->n_tensors; t++)
        if (ku_layout_has(&g->layout[g->value[g->tensor[t].next].layout], KU_P))
            return KU_ERR(KUMI_EBUG, "verify: %s: its next version is a partial sum",
                          g->tensor[t].name);
    for (uint32_t i = 0; i < g->n_outputs; i++)
        if (ku_layout_axes(&g->layout[g->value[g->output[i].value].layout], KU_P) &
            ~(g->output[i].pushed.is_pushed ? KU_DP_AXES : 0))
            return KU_ERR(KUMI_EBUG, "verify: output %s is a partial sum", g->output[i].name);
    return KUMI_OK;
}

/*
 * After the update pass: every trainable tensor in use gets a new version, and no node reads the
 * old version after it is overwritten.
 */
static int verify_state(const struct ku_graph *g)
{
    ku_id *writer = ku_calloc(g->n_values, sizeof *writer);
    if (writer == NULL)
        return KUMI_ENOMEM;
    int status = KUMI_OK;
    for (ku_id id = 1; id < g->n_nodes && status == KUMI_OK; id++) {
        const struct ku_node *n = &g->node[id];
        if (n->op == KU_OP_NONE)
            continue;
        for (int i = 0; i < n->n_in && status == KUMI_OK; i++)
            if (writer[ku_in(g, n, i)])
                status = broken(g, id, "reads a value whose bytes an earlier node overwrote");
        for (int i = 0; i < n->n_out; i++) {
            int pair = ku_op_pair(ku_ops[n->op].inout, i);
            if (pair >= 0)
                writer[ku_in(g, n, pair)] = id;
        }
    }
    ku_free(writer);
    for (ku_id t = 1; t < g->n_tensors && status == KUMI_OK; t++) {
        const struct ku_tensor *x = &g->tensor[t];
        if ((g->has & KU_HAS_GRADIENTS) && x->kind == KU_T_PARAM && x->trainable && x->used &&
            x->next == x->value)
            status =
                KU_ERR(KUMI_EBUG, "verify: %s: trainable and used, but no op updates it", x->name);
    }
    return status;
}

/* Hash of everything that verification of a node's types and placements depends on. */
static uint64_t fingerprint(const struct ku_graph *g, ku_id id)
{
    const struct ku_node *n = &g->node[id];
    uint32_t word[3 + 3 * (KU_MAX_IN + KU_MAX_OUT)];
    int at = 0;
    KU_ASSERT(n->n_in <= KU_MAX_IN && n->n_out <= KU_MAX_OUT);
    word[at++] = (g->has & KU_HAS_PLACEMENT) | (uint32_t)n->phase << 8 | (uint32_t)n->op << 16;
    word[at++] = (uint32_t)n->n_in << 16 | n->n_out;
    word[at++] = n->attr;
    for (int i = 0; i < n->n_in + n->n_out; i++) {
        const struct ku_value *v =
            &g->value[i < n->n_in ? ku_in(g, n, i) : ku_out(g, id, i - n->n_in)];
        word[at++] = v->dtype;
        word[at++] = v->shape;
        word[at++] = v->layout;
    }
    return ku_hash64(word, (size_t)at * sizeof *word);
}

static int verify_gradients(const struct ku_graph *g)
{
    unsigned char *has = ku_calloc(g->n_tensors, 1);
    int status = has ? KUMI_OK : KUMI_ENOMEM;
    for (ku_id u = 1; u < g->n_uses && status == KUMI_OK; u++) {
        has[g->use[u].tensor] |= g->use[u].grad != 0;
        if ((g->has & KU_HAS_PLACEMENT) && !(g->has & KU_HAS_ZERO))
            status = verify_dual(g, &g->use[u]);
    }
    for (ku_id t = 1; t < g->n_tensors && status == KUMI_OK; t++)
        if (g->tensor[t].kind == KU_T_PARAM && g->tensor[t].trainable && g->tensor[t].used &&
            !has[t])
            status = KU_ERR(KUMI_EBUG, "verify: %s: this trainable tensor has no gradient",
                            g->tensor[t].name);
    ku_free(has);
    return status;
}

int ku_graph_verify(struct ku_graph *g)
{
    for (ku_id id = 1; id < g->n_nodes; id++) {
        if (g->node[id].op == KU_OP_NONE)
            continue;
        KU_TRY(verify_operands(g, id));
        uint64_t now = fingerprint(g, id);
        if (g->node[id].verified == now)
            continue;
        KU_TRY(verify_types(g, id));
        if (g->has & KU_HAS_PLACEMENT)
            KU_TRY(verify_placement(g, id));
        g->node[id].verified = now;
    }
    if (g->has & KU_HAS_GRADIENTS)
        KU_TRY(verify_gradients(g));
    if (g->has & KU_HAS_PLACEMENT)
        KU_TRY(verify_sources(g));
    if ((g->has & KU_HAS_UPDATE) && (g->has & KU_HAS_PLACEMENT))
        KU_TRY(verify_complete(g));
    return g->has & KU_HAS_UPDATE ? verify_state(g) : KUMI_OK;
}
