/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters without a master. What is stored in 16 bits is read in f32 by the optimizer, whose
 * state is f32, and rounded when it is stored again, to nearest or stochastically:
 *
 *     p bf16 ── widen ──> f32 ── adamw, sgd, .. ──> f32 ── cast or stochastic_round ──> p' bf16
 *
 * What lies between is one parameter's (of ZeRO's blocks: the rank's), while its update runs.
 */
#include "base/err.h"
#include "pass/update.h"

static int is_narrow(const struct ku_graph *g, ku_id tensor)
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

/* The step's control port; models without a random op have none yet. */
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
