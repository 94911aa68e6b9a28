/* SPDX-License-Identifier: Apache-2.0 */
#include "op/tensor_plan.h"

#include <stdio.h>
#include <string.h>

#include "base/str.h"

enum { MODULE_BYTES = 320 };

const char *ku_tp_style_name(int style)
{
    static const char *const name[KU_N_TP_STYLES] = {"default", "col",        "row",      "vocab",
                                                     "seq",     "col_gather", "replicate"};
    return style >= 0 && style < KU_N_TP_STYLES ? name[style] : "?";
}

bool ku_tp_rule_matches(const struct ku_tp_rule *rule, const char *module)
{
    const char *dot = strrchr(module, '.');
    return ku_str_glob(rule->match, module) ||
           (dot && strchr(rule->match, '.') == NULL && ku_str_glob(rule->match, dot + 1));
}

/* Whether rule a stands before b: a longer pattern, of equal ones the last in byte order. */
static bool is_before(const struct ku_tp_rule *a, const struct ku_tp_rule *b)
{
    const size_t n = strlen(a->match), m = strlen(b->match);
    return n != m ? n > m : strcmp(a->match, b->match) > 0;
}

int ku_tp_plan_find(const struct ku_tp_plan *plan, const char *module)
{
    int best = -1;
    for (int i = 0; i < plan->n; i++)
        if (ku_tp_rule_matches(&plan->rule[i], module) &&
            (best < 0 || is_before(&plan->rule[i], &plan->rule[best])))
            best = i;
    return best;
}

enum ku_tp_style ku_tp_plan_of_tensor(const struct ku_tp_plan *plan, const char *name)
{
    char module[MODULE_BYTES];
    const char *dot = strrchr(name, '.');
    snprintf(module, sizeof module, "%.*s", dot ? (int)(dot - name) : 0, name);
    const int i = plan->n ? ku_tp_plan_find(plan, module) : -1;
    return i < 0 ? KU_TP_DEFAULT : (enum ku_tp_style)plan->rule[i].style;
}
