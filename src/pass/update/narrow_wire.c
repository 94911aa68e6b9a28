/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters without a master. The optimizer widens a 16-bit parameter to f32, its state is f32,
 * and the result is rounded when it is stored, to nearest or stochastically:
 *
 *     p bf16 ── widen ──> f32 ── adamw, sgd, .. ──> f32 ── cast or stochastic_round ──> p' bf16
 *
 * The f32 values exist for one parameter at a time (with ZeRO: for the rank's shard of it).
 */
#include "base/err.h"
#include "pass/update.h"

static bool is_narrow(const struct ku_graph *g, ku_id tensor)
{
    return kumi_dtype_bytes((enum kumi_dtype)g->tensor[tensor].dtype) < kumi_dtype_bytes(KUMI_F32);
}

enum kumi_dtype ku_update_wide(const struct ku_graph *g, ku_id tensor)
{
    return is_narrow(g, tensor) ? KUMI_F32 : (enum kumi_dtype)g->tensor[tensor].dtype;
}

static ku_id widen(struct ku_graph *g, ku_id tensor, ku_id value, ku_id grad)
{
    if (!is_narrow(g, tensor))
        return value;
    ku_id node = ku_update_once(g, (struct ku_make){.op = KU_OP_widen,
                                                    .n_in = 2,
                                                    .in = {value, grad},
                                                    .path = g->tensor[tensor].name,
                                                    .source = ku_update_source(g, tensor)});
    return node ? ku_out(g, node, 0) : 0;
}

ku_id ku_update_read(struct ku_graph *g, ku_id tensor, ku_id grad)
{
    return widen(g, tensor, g->tensor[tensor].value, grad);
}

ku_id ku_update_read_next(struct ku_graph *g, ku_id tensor, ku_id grad)
{
    return widen(g, tensor, g->tensor[tensor].next, grad);
}

/* The step's control port, created if the model has no random op. */
static ku_id control(struct ku_graph *g)
{
    const int64_t words = KU_CONTROL_WORDS;
    const struct ku_shape shape = ku_shape_of("w", &words);
    ku_id port = ku_graph_find_input(g, "control");
    return port ? port : ku_graph_input(g, "control", KUMI_I64, &shape);
}

int ku_update_write(struct ku_graph *g, const struct ku_compile_opts *o, ku_id tensor, ku_id value)
{
    struct ku_attrs a = ku_attrs_default;
    struct ku_make m = {.op = KU_OP_cast,
                        .n_in = 1,
                        .in = {value},
                        .attr = &a,
                        .path = g->tensor[tensor].name,
                        .source = ku_update_source(g, tensor)};
    g->tensor[tensor].next = value;
    if (!is_narrow(g, tensor))
        return KUMI_OK;
    a.dtype = g->tensor[tensor].dtype;
    if (o->stochastic_rounding) {
        m.op = KU_OP_stochastic_round;
        m.in[m.n_in++] = control(g);
        if (m.in[1] == 0)
            return ku_err_get()->status;
    }
    ku_id node = ku_update_once(g, m);
    if (node == 0)
        return ku_err_get()->status;
    g->tensor[tensor].next = ku_out(g, node, 0);
    return KUMI_OK;
}
