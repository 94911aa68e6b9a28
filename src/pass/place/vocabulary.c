/* SPDX-License-Identifier: Apache-2.0 */
#include "pass/place/vocabulary.h"

#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "pass/pass.h"
#include "pass/place/tensor_parallel.h"

/* The index of this dim in a shape; -1: none. */
static int find_dim(const struct ku_shape *s, const struct ku_dim *dim)
{
    const int d = ku_shape_find(s, dim->name);
    return d >= 0 && s->dim[d].count == dim->count && s->dim[d].seen == dim->seen ? d : -1;
}

static const struct ku_shape *shape_of(const struct ku_graph *g, ku_id value)
{
    return &g->shape[g->value[value].shape];
}

static bool reads(const struct ku_graph *g, const struct ku_node *n, const struct ku_dim *dim)
{
    for (int i = 0; i < n->n_in; i++)
        if (find_dim(shape_of(g, ku_in(g, n, i)), dim) >= 0)
            return true;
    return false;
}

/* Whether an op reads v as classes or keeps it, and makes no other dim of it, as flatten does. */
static bool is_able(int op)
{
    const struct ku_op_info *info = &ku_ops[op];
    return op == KU_OP_softmax_xent || op == KU_OP_xent_finish || op == KU_OP_top_k ||
           strcmp(info->map, "*") == 0 || strchr(info->map, 'v') || strchr(info->sum, 'v') ||
           strcmp(info->sum, "*") == 0;
}

bool ku_vocabulary_can_grow(const struct ku_graph *g, const struct ku_dim *dim)
{
    bool is_of_table = false;
    if (dim->name != 'v')
        return false;
    for (ku_id t = 1; t < g->n_tensors; t++)
        if (find_dim(&g->shape[g->tensor[t].shape], dim) > 0)
            return false;
    for (uint32_t i = 0; i < g->n_inputs; i++)
        if (find_dim(shape_of(g, g->input[i].value), dim) >= 0)
            return false;
    for (uint32_t i = 0; i < g->n_outputs; i++)
        if (find_dim(shape_of(g, g->output[i].value), dim) >= 0)
            return false;
    for (ku_id n = 1; n < g->n_nodes; n++) {
        const struct ku_node *node = &g->node[n];
        if (node->op == KU_OP_NONE || node->phase != KU_PH_F || !reads(g, node, dim))
            continue;
        if (!is_able(node->op))
            return false;
        is_of_table = is_of_table || node->op == KU_OP_embedding;
    }
    return is_of_table;
}

/* The shapes of values and tensors with another count of a dim. to: [n_shapes] */
static int grow_shapes(struct ku_graph *g, const struct ku_dim *dim, int64_t count, ku_id *to)
{
    const ku_id n_shapes = g->n_shapes;
    for (ku_id s = 1; s < n_shapes; s++) {
        struct ku_shape shape = g->shape[s];
        const int d = find_dim(&shape, dim);
        to[s] = s;
        if (d < 0)
            continue;
        shape.dim[d].count = count;
        KU_TRY(ku_shape_check(&shape, "padded vocabulary"));
        to[s] = ku_graph_shape(g, &shape);
        if (to[s] == 0)
            return KUMI_ENOMEM;
    }
    for (ku_id v = 1; v < g->n_values; v++)
        g->value[v].shape = to[g->value[v].shape];
    for (ku_id t = 1; t < g->n_tensors; t++)
        g->tensor[t].shape = to[g->tensor[t].shape];
    return KUMI_OK;
}

/* Gives a dim another count in the whole graph. */
static int grow(struct ku_graph *g, const struct ku_dim *dim, int64_t count)
{
    KU_ASSERT(count > dim->count && dim->seen > 0 && dim->seen <= dim->count);
    ku_id *to = ku_calloc(g->n_shapes, sizeof *to);
    int status = to ? grow_shapes(g, dim, count, to) : KUMI_ENOMEM;
    ku_free(to);
    for (ku_id n = 1; n < g->n_nodes && status == KUMI_OK; n++) {
        struct ku_attrs a = g->attr[g->node[n].attr];
        if (a.row_name != dim->name || a.rows != dim->count || a.rows_seen != dim->seen)
            continue;
        a.rows = count;
        g->node[n].attr = ku_graph_attr(g, &a);
        if (g->node[n].attr == 0)
            status = KUMI_ENOMEM;
    }
    return status;
}

/* The min multiple of 128, as models pad, and of `parts` from `count` on. */
static int64_t padded(int64_t count, int64_t parts)
{
    int64_t multiple = 128;
    while (multiple % parts)
        multiple += 128;
    const int64_t result = (count + multiple - 1) / multiple * multiple;
    KU_ASSERT(result >= count && result % 128 == 0 && result % parts == 0);
    return result;
}

/* Whether some vocabulary has no equal parts, so that the choice of the plan matters. */
static bool is_needed(const struct ku_graph *g, int parts)
{
    for (ku_id t = 1; t < g->n_tensors; t++) {
        const struct ku_dim *first = &g->shape[g->tensor[t].shape].dim[0];
        if (g->tensor[t].kind == KU_T_PARAM && first->count % parts &&
            ku_vocabulary_can_grow(g, first))
            return true;
    }
    return false;
}

int ku_pass_vocabulary(struct ku_graph *g, const struct ku_compile_opts *o,
                       const struct ku_target *t)
{
    const int parts = o->tp_exact ? o->tp_exact : ku_mesh_tp(&o->mesh);
    struct ku_tensor_plan *p;
    int status = KUMI_OK;
    (void)t;
    if (parts == 1 || !is_needed(g, parts))
        return KUMI_OK;
    KU_TRY(ku_tensor_plan_choose(g, o, &p));
    for (ku_id x = 1; x < g->n_tensors && status == KUMI_OK; x++) {
        const struct ku_dim first = g->shape[g->tensor[x].shape].dim[0];
        if (g->tensor[x].kind == KU_T_PARAM && ku_tensor_letter(p, x) == 'v' && first.name == 'v' &&
            first.count % parts)
            status = grow(g, &first, padded(first.count, parts));
    }
    ku_tensor_plan_destroy(p);
    return status;
}
