/* SPDX-License-Identifier: Apache-2.0 */
#include "pass/place/user_plan.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "pass/pass.h"

enum { MAX_MODULES = 1024 /* that are compared with a pattern that matches none */ };

static bool is_parameter(const struct ku_graph *g, ku_id t)
{
    return g->tensor[t].kind == KU_T_PARAM;
}

static void module_of(const struct ku_graph *g, ku_id t, char out[KU_NAME_BYTES])
{
    const char *name = g->tensor[t].name, *dot = strrchr(name, '.');
    snprintf(out, KU_NAME_BYTES, "%.*s", dot ? (int)(dot - name) : 0, name);
}

static int refuse_pattern(const struct ku_graph *g, const char *match)
{
    static const char *const none[1];
    char(*module)[KU_NAME_BYTES] = ku_calloc(MAX_MODULES, sizeof *module);
    const char **names = ku_calloc(MAX_MODULES, sizeof *names);
    int n = 0;
    for (ku_id t = 1; t < g->n_tensors && n < MAX_MODULES && module && names; t++)
        if (is_parameter(g, t)) {
            module_of(g, t, module[n]);
            names[n] = module[n];
            n++;
        }
    const char *near = ku_str_nearest(match, n ? names : none, n);
    const int status = KU_ERR(
        KUMI_EINVAL,
        "placement: parallel.plan: \"%.160s\" matches no module with parameters%s%.160s%s", match,
        near ? "; did you mean \""
        : n  ? "; the first is \""
             : "",
        near ? near
        : n  ? names[0]
             : "",
        near ? "\"?"
        : n  ? "\""
             : "");
    ku_free(module);
    ku_free(names);
    return status;
}

int ku_styles_create(const struct ku_graph *g, const struct ku_compile_opts *o, struct ku_styles *s)
{
    char module[KU_NAME_BYTES];
    *s = (struct ku_styles){.g = g, .o = o};
    s->style = ku_calloc(g->n_tensors, 1);
    s->why = ku_calloc(g->n_tensors, sizeof *s->why);
    if (s->style == NULL || s->why == NULL)
        return KUMI_ENOMEM;
    for (ku_id t = 1; t < g->n_tensors && o->plan.n; t++)
        if (is_parameter(g, t))
            s->style[t] = (unsigned char)ku_tp_plan_of_tensor(&o->plan, g->tensor[t].name);
    for (int i = 0; i < o->plan.n; i++) {
        bool is_used = false;
        for (ku_id t = 1; t < g->n_tensors && !is_used; t++) {
            module_of(g, t, module);
            is_used = is_parameter(g, t) && ku_tp_rule_matches(&o->plan.rule[i], module);
        }
        if (!is_used)
            return refuse_pattern(g, o->plan.rule[i].match);
    }
    return KUMI_OK;
}

void ku_styles_fini(struct ku_styles *s)
{
    ku_free(s->style);
    ku_free(s->why);
}

enum ku_tp_style ku_styles_of(const struct ku_styles *s, ku_id tensor)
{
    return (enum ku_tp_style)s->style[tensor];
}

/* The linear that reads a tensor as its weight (operand 1), or any of its module for a bias; 0. */
static ku_id linear_of(const struct ku_styles *s, ku_id tensor, int operand)
{
    const struct ku_graph *g = s->g;
    for (ku_id u = 1; u < g->n_uses; u++)
        if (g->use[u].tensor == tensor && g->node[g->use[u].node].op == KU_OP_linear &&
            g->use[u].operand == operand)
            return g->use[u].node;
    return 0;
}

/* The first dim of the weight that the input lacks, or has; one of heads or inner width before
 * others. */
static char letter_of(const struct ku_styles *s, ku_id node, bool is_contracted)
{
    const struct ku_graph *g = s->g;
    const struct ku_node *n = &g->node[node];
    const struct ku_shape *x = &g->shape[g->value[ku_in(g, n, 0)].shape],
                          *w = &g->shape[g->value[ku_in(g, n, 1)].shape];
    char letter = 0;
    for (int d = 0; d < w->ndim; d++) {
        const char name = w->dim[d].name;
        const bool is_first = letter == 0 || (strchr("hfv", name) && !strchr("hfv", letter));
        if ((ku_shape_find(x, name) >= 0) == is_contracted && is_first)
            letter = name;
    }
    return letter;
}

char ku_styles_letter(const struct ku_styles *s, ku_id tensor, char letter)
{
    const struct ku_shape *shape = &s->g->shape[s->g->tensor[tensor].shape];
    switch (ku_styles_of(s, tensor)) {
    case KU_TP_DEFAULT:
    case KU_N_TP_STYLES:
        return letter;
    case KU_TP_SEQ:
    case KU_TP_REPLICATE:
        return 0;
    case KU_TP_VOCAB:
        return ku_shape_find(shape, 'v') >= 0 ? 'v' : 0;
    case KU_TP_COL:
    case KU_TP_COL_GATHER:
    case KU_TP_ROW:
        break;
    }
    const ku_id weight = linear_of(s, tensor, 1), node = weight ? weight : linear_of(s, tensor, 2);
    if (node == 0)
        return 0;
    letter = letter_of(s, node, ku_styles_of(s, tensor) == KU_TP_ROW);
    return ku_shape_find(shape, letter) >= 0 ? letter : 0;
}

void ku_styles_note(struct ku_styles *s, ku_id tensor, ku_id node, const char *what)
{
    if (s->why[tensor].what == NULL)
        s->why[tensor] = (struct ku_why){what, node};
}

static int refuse(const struct ku_styles *s, ku_id t, const char *why, const char *where)
{
    return KU_ERR(KUMI_EINVAL, "placement: parallel.plan: %s: %s over axis tp: %s%s%s",
                  s->g->tensor[t].name, ku_tp_style_name(s->style[t]), where, where[0] ? " " : "",
                  why);
}

/* Whether a style divides this parameter: not the bias of a row-parallel layer. */
static bool divides(const struct ku_styles *s, ku_id t)
{
    switch (ku_styles_of(s, t)) {
    case KU_TP_ROW:
        return linear_of(s, t, 2) == 0;
    case KU_TP_COL:
    case KU_TP_COL_GATHER:
    case KU_TP_VOCAB:
        return true;
    case KU_TP_DEFAULT:
    case KU_TP_SEQ:
    case KU_TP_REPLICATE:
    case KU_N_TP_STYLES:
        break;
    }
    return false;
}

int ku_styles_check(const struct ku_styles *s, const char *letter)
{
    const struct ku_graph *g = s->g;
    for (ku_id t = 1; t < g->n_tensors; t++) {
        const struct ku_why *why = &s->why[t];
        if (!is_parameter(g, t))
            continue;
        if (s->style[t] == KU_TP_SEQ && !s->o->sequence)
            return refuse(s, t, "needs parallel.sp true", "");
        if (s->style[t] == KU_TP_VOCAB && s->o->whole_vocabulary)
            return refuse(s, t, "parallel.loss_parallel is false; give one of them", "");
        if (!divides(s, t) || letter[t])
            continue;
        if (s->style[t] == KU_TP_VOCAB && why->what == NULL)
            return refuse(s, t, "has no vocabulary", "");
        if (why->what == NULL)
            return refuse(s, t, "is no weight or bias of a linear layer", "");
        return refuse(s, t, why->what,
                      g->name[g->node[why->node].path][0] ? g->name[g->node[why->node].path]
                                                          : ku_ops[g->node[why->node].op].name);
    }
    return KUMI_OK;
}
