/* SPDX-License-Identifier: Apache-2.0 */
/* Parameter groups (optimizer attributes per name pattern) and exponential moving averages. */
#include <string.h>

#include "base/err.h"
#include "base/str.h"
#include "pass/update.h"

static bool matches(const struct ku_update_group *group, const char *name)
{
    for (int i = 0; group->match[i]; i++)
        if (ku_str_glob(group->match[i], name))
            return 1;
    return 0;
}

struct ku_attrs ku_update_attrs(const struct ku_graph *g, const struct ku_compile_opts *o,
                                ku_id tensor)
{
    struct ku_attrs a = o->rule;
    ku_update_scaler_attrs(&ku_attrs_default, &a); /* attributes of other nodes */
    a.clip_value = 0;
    int has_decay = ku_update_selects(g, tensor, o->decay, o->decay_patterns), at = 0;
    while (at < o->n_groups && !matches(&o->groups[at], g->tensor[tensor].name))
        at++;
    for (int i = 0; at < o->n_groups && i < o->groups[at].n_set; i++) {
        const size_t offset = o->groups[at].set[i].offset;
        memcpy((char *)&a + offset, &o->groups[at].set[i].value, sizeof(double));
        has_decay |= offset == offsetof(struct ku_attrs, weight_decay);
    }
    if (!has_decay)
        a.weight_decay = 0;
    return a;
}

int ku_update_check_groups(const struct ku_graph *g, const struct ku_compile_opts *o)
{
    for (int at = 0; at < o->n_groups; at++)
        for (int i = 0; o->groups[at].match[i]; i++) {
            const char *pattern = o->groups[at].match[i], *example = "";
            int found = 0;
            for (ku_id t = 1; t < g->n_tensors && !found; t++)
                if (g->tensor[t].kind == KU_T_PARAM) {
                    example = g->tensor[t].name;
                    found = ku_str_glob(pattern, example);
                }
            if (!found)
                return KU_ERR(KUMI_EINVAL,
                              "optimizer.groups: group %d: match: %.200s: no parameter name "
                              "matches; a name is for example %.200s",
                              at, pattern, example);
        }
    return KUMI_OK;
}

int ku_update_average(struct ku_graph *g, const struct ku_compile_opts *o, ku_id tensor, ku_id grad,
                      ku_id report)
{
    struct ku_attrs a = ku_attrs_default;
    const struct ku_shape shape = g->shape[g->tensor[tensor].shape];
    if (o->rule.ema == 0)
        return KUMI_OK;
    a.ema = o->rule.ema;
    a.ema_warmup = o->rule.ema_warmup;
    ku_id average =
        ku_update_own(g, tensor, "ema", KU_T_OPTIMIZER, ku_update_wide(g, tensor), &shape);
    ku_id p = average ? ku_update_read_next(g, tensor, grad) : 0;
    if (p == 0)
        return ku_err_get()->status;
    ku_id node = ku_update_once(g, (struct ku_make){.op = KU_OP_ema,
                                                    .n_in = 3,
                                                    .in = {g->tensor[average].value, p, report},
                                                    .attr = &a,
                                                    .path = g->tensor[tensor].name,
                                                    .source = ku_update_source(g, tensor)});
    if (node == 0)
        return ku_err_get()->status;
    g->tensor[average].next = ku_out(g, node, 0);
    return KUMI_OK;
}
