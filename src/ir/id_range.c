/* SPDX-License-Identifier: Apache-2.0 */
#include "ir/id_range.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"

/* Index of the operand that holds ids, and the allowed range; -1: the node has none. */
static int rule_of(const struct ku_graph *g, const struct ku_node *node, struct ku_ids_rule *rule)
{
    if (node->n_in < 2)
        return -1;
    const struct ku_value *x = &g->value[ku_in(g, node, 0)];
    const struct ku_shape *s = &g->shape[x->shape];
    switch (node->op) {
    case KU_OP_embedding:
        rule->below = s->dim[0].seen;
        snprintf(rule->use, sizeof rule->use, "rows of %.300s",
                 x->tensor ? g->tensor[x->tensor].name : "the table");
        return 1;
    case KU_OP_softmax_xent:
    case KU_OP_xent_finish:
    case KU_OP_top_k:
        rule->below = s->dim[s->ndim - 1].seen;
        rule->is_target = 1;
        rule->ignore = g->attr[node->attr].ignore;
        snprintf(rule->use, sizeof rule->use, "classes");
        return node->op == KU_OP_xent_finish ? 3 : 1;
    case KU_OP_select:
        rule->below = s->dim[1].count;
        snprintf(rule->use, sizeof rule->use, "rows of %c", s->dim[1].name);
        return 1;
    case KU_OP_attention_kv:
        rule->below = (int64_t)1 << 31;
        snprintf(rule->use, sizeof rule->use, "positions");
        return g->attr[node->attr].positions ? 3 : -1;
    default:
        return -1;
    }
}

static const char *port_of(const struct ku_graph *g, ku_id value)
{
    for (uint32_t i = 0; i < g->n_inputs; i++)
        if (g->input[i].value == value && g->value[value].dtype == KUMI_I32)
            return g->input[i].name;
    return NULL;
}

static bool is_known(const struct ku_ids *ids, const struct ku_ids_rule *rule)
{
    for (int i = 0; i < ids->n; i++)
        if (strcmp(ids->rule[i].port, rule->port) == 0 && ids->rule[i].below == rule->below &&
            ids->rule[i].is_target == rule->is_target && ids->rule[i].ignore == rule->ignore)
            return 1;
    return 0;
}

int ku_ids_list(const struct ku_graph *g, struct ku_ids *ids)
{
    uint32_t cap = 0, n = 0;
    *ids = (struct ku_ids){0};
    for (ku_id id = 1; id < g->n_nodes; id++) {
        struct ku_ids_rule rule = {.below = 0};
        int operand = rule_of(g, &g->node[id], &rule);
        const char *port = operand < 0 ? NULL : port_of(g, ku_in(g, &g->node[id], operand));
        if (port == NULL)
            continue;
        snprintf(rule.port, sizeof rule.port, "%s", port);
        if (is_known(ids, &rule))
            continue;
        if (KU_GROW(&ids->rule, n, &cap) < 0) {
            ku_ids_fini(ids);
            return KUMI_ENOMEM;
        }
        ids->rule[n++] = rule;
        ids->n = (int)n;
    }
    return KUMI_OK;
}

void ku_ids_fini(struct ku_ids *ids)
{
    ku_free(ids->rule);
    *ids = (struct ku_ids){0};
}

/* The position of the element is printed as "n=3 t=17". */
static int refuse(const struct ku_ids_rule *rule, const struct ku_shape *shape, int64_t element,
                  int32_t number)
{
    struct ku_str at = {0};
    char ignored[80] = "";
    int64_t left = element, each = ku_shape_count(shape);
    for (int d = 0; d < shape->ndim; d++) {
        each /= shape->dim[d].count;
        ku_str_add(&at, "%s%c=%lld", d ? " " : "", shape->dim[d].name, (long long)(left / each));
        left %= each;
    }
    if (rule->is_target && rule->ignore < 0)
        snprintf(ignored, sizeof ignored, "; negative targets do not count");
    else if (rule->is_target)
        snprintf(ignored, sizeof ignored, "; negative targets and %lld do not count",
                 (long long)rule->ignore);
    int status =
        KU_ERR(KUMI_EINVAL, "trainer: port %.80s: %s: %d; %.120s are 0 to %lld%s", rule->port,
               ku_str_get(&at), (int)number, rule->use, (long long)rule->below - 1, ignored);
    ku_str_fini(&at);
    return status;
}

/* Free of branches, so that compilers vectorize it. */
static bool is_any_outside(const struct ku_ids_rule *rule, const int32_t *data, int64_t count)
{
    const uint32_t below = (uint32_t)rule->below;
    unsigned outside = 0;
    for (int64_t i = 0; i < count; i++)
        outside |= (uint32_t)data[i] >= below;
    return (int)outside;
}

int ku_ids_check(const struct ku_ids *ids, const char *port, const struct ku_shape *shape,
                 const int32_t *data, int64_t first, int64_t n)
{
    for (int r = 0; r < ids->n; r++) {
        const struct ku_ids_rule *rule = &ids->rule[r];
        if (strcmp(rule->port, port) != 0)
            continue;
        const int64_t row = ku_shape_count(shape) / (shape->ndim ? shape->dim[0].count : 1);
        if (!is_any_outside(rule, data, n * row))
            continue;
        for (int64_t i = 0; i < n * row; i++) {
            int is_ignored = rule->is_target && (data[i] < 0 || data[i] == rule->ignore);
            if (!is_ignored && (data[i] < 0 || data[i] >= rule->below))
                return refuse(rule, shape, first * row + i, data[i]);
        }
    }
    return KUMI_OK;
}
