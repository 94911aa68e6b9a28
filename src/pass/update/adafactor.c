/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adafactor (Shazeer & Stern 2018). A tensor whose checkpoint shape is a matrix, or several
 * matrices (dims before the last two), has a mean of squares per row and per column, row_var and
 * col_var; any other tensor has one per element, variance. Three passes over each tensor with two
 * small reductions over ranks between them:
 *
 *     factor_sums(g)                   exact sums per row and column; one vector for all tensors
 *                                      -- reduced over ranks --
 *     factor_means(row_var, col_var)   row_var' and col_var', whole, on every rank
 *     factor_norms(p, g)               |p|^2 and |update|^2; one vector for all tensors
 *                                      -- reduced over ranks --
 *     adafactor(p, g)                  p'
 *     derive                           stores row_var' and col_var'
 *
 * Of a tensor that tensor-parallel ranks divide each adds the squares of its slice; row_var and
 * col_var are whole on every rank, so both vectors are reduced over axes tp and tpi, too, before
 * the sums of whole tensors are added.
 *
 * Every rank reads row_var and col_var before it starts the second reduction, and each rank writes
 * its owned shard after it, so host-shared state has no race.
 */
#include <string.h>

#include "base/err.h"
#include "base/math/exact.h"
#include "base/mem.h"
#include "pass/update.h"

struct item {
    struct ku_update_node u;
    int is_factored;
    ku_id var[3]; /* row_var', col_var', 1 / mean; or variance' */
};
struct adafactor {
    struct ku_graph *g;
    const struct ku_compile_opts *o;
    ku_id report, norms;
    struct item *item; /* [n] */
    int n;
    int64_t n_words; /* words of the vector of row and column sums */
};

/* Creates row_var or col_var: one dim with the rows or columns of all matrices. seen: the count
 * without padding. */
static ku_id own_factor(struct ku_graph *g, ku_id tensor, const char *suffix, char name,
                        int64_t count, int64_t seen)
{
    struct ku_shape shape = {.ndim = 1, .dim = {{count, seen, name}}};
    ku_id t = ku_update_own(g, tensor, suffix, KU_T_OPTIMIZER, ku_update_wide(g, tensor), &shape);
    if (t == 0)
        return 0;
    struct ku_layout l = g->layout[g->value[g->tensor[t].value].layout];
    l.at[KU_AX_TP] = l.at[KU_AX_TPI] = (struct ku_place){.kind = KU_C}; /* whole on each rank */
    const ku_id layout = ku_graph_layout(g, &l);
    g->value[g->tensor[t].value].layout = layout;
    g->tensor[t].file_rows = 0;
    return layout ? t : 0;
}

static int begin(struct adafactor *l, ku_id tensor, ku_id grad)
{
    struct ku_graph *g = l->g;
    struct item *x = &l->item[l->n];
    const struct ku_shape shape = g->shape[g->tensor[tensor].shape];
    int64_t dim[KU_MAX_DIMS], n_matrices = 1;
    int ndim = ku_tensor_file_shape(g, tensor, dim);
    *x = (struct item){.u = {.tensor = tensor, .grad = grad, .report = l->report},
                       .is_factored = ndim >= 2};
    x->u.copy = g->tensor[tensor].copy;
    x->u.attr = ku_update_attrs(g, l->o, tensor);
    x->u.attr.dtype = x->u.copy ? g->tensor[x->u.copy].dtype : -1;
    x->u.attr.index = l->n++;
    x->u.attr.count = ku_shape_seen(&shape);
    if (!x->is_factored) {
        x->u.state[1] = ku_update_own(g, tensor, ku_ops[KU_OP_adafactor_vector].state[0],
                                      KU_T_OPTIMIZER, ku_update_wide(g, tensor), &shape);
        return x->u.state[1] ? KUMI_OK : ku_err_get()->status;
    }
    const int64_t seen = shape.dim[0].seen, padded = shape.dim[0].count;
    if (seen) /* only a first dim is padded */
        dim[0] = dim[0] / seen * padded;
    for (int d = 0; d < ndim - 2; d++)
        n_matrices *= dim[d];
    const int64_t rows = dim[ndim - 2], cols = dim[ndim - 1];
    x->u.attr.rows = rows;
    x->u.attr.cols = cols;
    x->u.attr.rows_seen = ndim == 2 && padded ? rows / padded * seen : rows;
    x->u.attr.first_word = l->n_words;
    l->n_words += 2 * n_matrices * (rows + cols);
    const int64_t all_rows = n_matrices * rows, all_cols = n_matrices * cols;
    const int is_long = ndim > 2; /* then the padding consists of whole matrices */
    x->u.state[1] = own_factor(g, tensor, ku_ops[KU_OP_adafactor].state[0], 'R', all_rows,
                               padded ? all_rows / padded * seen : all_rows);
    x->u.state[2] = own_factor(g, tensor, ku_ops[KU_OP_adafactor].state[1], 'Q', all_cols,
                               is_long && padded ? all_cols / padded * seen : all_cols);
    return x->u.state[1] && x->u.state[2] ? KUMI_OK : ku_err_get()->status;
}

static ku_id make(struct adafactor *l, const struct item *x, struct ku_make m)
{
    m.attr = &x->u.attr;
    m.path = l->g->tensor[x->u.tensor].name;
    m.source = ku_update_source(l->g, x->u.tensor);
    return ku_update_once(l->g, m);
}
static ku_id zeros(struct adafactor *l, int64_t words, const char *path)
{
    struct ku_attrs a = ku_attrs_default;
    a.words = words;
    ku_id node =
        ku_update_once(l->g, (struct ku_make){.op = KU_OP_stats_zero, .attr = &a, .path = path});
    return node ? ku_out(l->g, node, 0) : 0;
}

/* Adds the sums of rows and columns of the tensors that are divided up to an axis. */
static ku_id add_factors(struct adafactor *l, int axis, ku_id factors)
{
    for (int i = 0; i < l->n && factors; i++) {
        const struct item *x = &l->item[i];
        if (!x->is_factored || ku_update_divided_by(l->g, x->u.grad) != axis)
            continue;
        factors = ku_update_sum_divided(l->g, factors, axis, "factors");
        const ku_id node = factors == 0
                               ? 0
                               : make(l, x,
                                      (struct ku_make){.op = KU_OP_factor_sums,
                                                       .n_in = 3,
                                                       .in = {x->u.grad, l->report, factors}});
        factors = node ? ku_out(l->g, node, 0) : 0;
    }
    return factors;
}

static int make_factors(struct adafactor *l)
{
    struct ku_graph *g = l->g;
    ku_id factors = l->n_words ? zeros(l, l->n_words, "factors") : 0, node;
    if (l->n_words == 0)
        return KUMI_OK;
    for (int k = 0; k < KU_N_DIVISIONS; k++)
        factors = add_factors(l, ku_update_division[k], factors);
    factors = factors ? ku_update_sum_divided(g, factors, 0, "factors") : 0;
    for (int i = 0; i < l->n && factors; i++) {
        struct item *x = &l->item[i];
        if (!x->is_factored)
            continue;
        node = make(l, x,
                    (struct ku_make){.op = KU_OP_factor_means,
                                     .n_in = 4,
                                     .in = {factors, g->tensor[x->u.state[1]].value,
                                            g->tensor[x->u.state[2]].value, l->report}});
        for (int k = 0; k < 3 && node; k++)
            x->var[k] = ku_out(g, node, k);
        if (node == 0)
            return ku_err_get()->status;
    }
    return factors ? KUMI_OK : ku_err_get()->status;
}

/* Adds the sums of squares of a tensor and its update; of a vector also makes its variance. */
static ku_id add_norms(struct adafactor *l, struct item *x, ku_id trust)
{
    struct ku_graph *g = l->g;
    const ku_id p = ku_update_read(g, x->u.tensor, x->u.grad), own = x->u.state[1];
    struct ku_make m = {.op = KU_OP_factor_norms,
                        .n_in = 7,
                        .in = {p, x->u.grad, x->var[0], x->var[1], x->var[2], l->report, trust}};
    if (!x->is_factored)
        m = (struct ku_make){.op = KU_OP_variance_norms,
                             .n_in = 5,
                             .in = {p, g->tensor[own].value, x->u.grad, l->report, trust}};
    const ku_id node = p ? make(l, x, m) : 0;
    if (node && !x->is_factored)
        x->var[0] = g->tensor[own].next = ku_out(g, node, 0);
    return node ? ku_out(g, node, !x->is_factored) : 0;
}

static int make_norms(struct adafactor *l)
{
    struct ku_graph *g = l->g;
    ku_id trust = zeros(l, 2 * KU_EXACT_WORDS * (int64_t)l->n, "trust"), node;
    for (int k = 0; k < KU_N_DIVISIONS && trust; k++) {
        const int axis = ku_update_division[k];
        for (int i = 0; i < l->n && trust; i++)
            if (ku_update_divided_by(g, l->item[i].u.grad) == axis) {
                trust = ku_update_sum_divided(g, trust, axis, "trust");
                trust = trust ? add_norms(l, &l->item[i], trust) : 0;
            }
    }
    trust = trust ? ku_update_sum_divided(g, trust, 0, "trust") : 0;
    if (trust == 0)
        return ku_err_get()->status;
    node = ku_update_once(
        g, (struct ku_make){.op = KU_OP_trust_norms, .n_in = 1, .in = {trust}, .path = "trust"});
    l->norms = node ? ku_out(g, node, 0) : 0;
    return l->norms ? KUMI_OK : ku_err_get()->status;
}

static int apply(struct adafactor *l, struct item *x)
{
    struct ku_graph *g = l->g;
    const ku_id p = ku_update_read(g, x->u.tensor, x->u.grad);
    struct ku_make m = {.op = KU_OP_adafactor_vector,
                        .n_in = 5,
                        .in = {p, x->var[0], x->u.grad, l->report, l->norms}};
    if (x->is_factored)
        m = (struct ku_make){
            .op = KU_OP_adafactor,
            .n_in = 7,
            .in = {p, x->u.grad, x->var[0], x->var[1], x->var[2], l->report, l->norms}};
    m.n_out = 1 + (x->u.copy != 0);
    ku_id node = p ? make(l, x, m) : 0;
    if (node == 0)
        return ku_err_get()->status;
    KU_TRY(ku_update_write(g, l->o, x->u.tensor, ku_out(g, node, 0)));
    if (x->u.copy)
        g->tensor[x->u.copy].next = ku_out(g, node, 1);
    for (int k = 0; k < 2 && x->is_factored; k++) {
        const ku_id own = x->u.state[k + 1];
        node = make(l, x,
                    (struct ku_make){
                        .op = KU_OP_derive, .n_in = 2, .in = {x->var[k], g->tensor[own].value}});
        if (node == 0)
            return ku_err_get()->status;
        g->tensor[own].next = ku_out(g, node, 0);
    }
    return KUMI_OK;
}

int ku_update_adafactor(struct ku_graph *g, const struct ku_compile_opts *o, const ku_id *grad,
                        ku_id n_params, ku_id report)
{
    struct adafactor l = {.g = g, .o = o, .report = report};
    int status = KUMI_OK;
    l.item = ku_calloc(n_params, sizeof *l.item);
    if (l.item == NULL)
        return KUMI_ENOMEM;
    for (ku_id t = 1; t < n_params; t++)
        if (grad[t])
            KU_TRY_OUT(begin(&l, t, grad[t]));
    KU_TRY_OUT(make_factors(&l));
    if (l.n)
        KU_TRY_OUT(make_norms(&l));
    for (int i = 0; i < l.n; i++)
        KU_TRY_OUT(apply(&l, &l.item[i]));
out:
    ku_free(l.item);
    return status;
}
