/* SPDX-License-Identifier: Apache-2.0 */
/* Section precision, modules: [{"match": "h.*.mlp", "compute": "bf16", "output": "f32"}]. */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "config/precision_policy.h"

/* Refuses a dtype of rule i: path, value, the rule's first pattern, and why. */
static int refuse(const struct ku_config *c, int i, enum ku_precision_role role, const char *why)
{
    char path[64], wanted[320];
    const struct ku_precision_rule *rule = &c->precision_modules.rules.rule[i];
    json_t *word = json_string(kumi_dtype_name((enum kumi_dtype)rule->dtype[role]));
    snprintf(path, sizeof path, "precision.modules[%d].%s", i, ku_precision_roles[role]);
    snprintf(wanted, sizeof wanted, "of \"%.120s\": %s", rule->match[0], why);
    const int status = ku_config_refuse(c, path, word, wanted);
    json_decref(word);
    return status;
}

int ku_modules_check(const struct ku_config *c)
{
    enum kumi_dtype whole, grads;
    char why[160];
    KU_TRY(ku_dtype_parse(c->precision_compute, &whole));
    KU_TRY(ku_dtype_parse(c->precision_grads, &grads));
    for (int i = 0; i < c->precision_modules.rules.n; i++) {
        const int *dtype = c->precision_modules.rules.rule[i].dtype;
        const int compute = dtype[KU_ROLE_COMPUTE] >= 0 ? dtype[KU_ROLE_COMPUTE] : (int)whole;
        const int param = dtype[KU_ROLE_PARAM], reduce = dtype[KU_ROLE_REDUCE];
        if (param > KUMI_F32 && param != compute) {
            snprintf(why, sizeof why,
                     "these modules compute in %s; a parameter is stored in f32, or in that alone",
                     kumi_dtype_name((enum kumi_dtype)compute));
            return refuse(c, i, KU_ROLE_PARAM, why);
        }
        if (reduce >= 0 && grads != KUMI_F32 && reduce != (int)grads) {
            snprintf(why, sizeof why,
                     "precision.grads is %s, and gradients of 16 bits travel as they are",
                     kumi_dtype_name(grads));
            return refuse(c, i, KU_ROLE_REDUCE, why);
        }
    }
    return KUMI_OK;
}

void ku_modules_print(const struct ku_modules_key *key, struct ku_str *out)
{
    for (int i = 0; i < key->rules.n; i++) {
        const struct ku_precision_rule *rule = &key->rules.rule[i];
        for (int k = 0; k < key->match[i].n; k++)
            ku_str_add(out, "%s%s", k ? " " : ", ", rule->match[k]);
        const char *before = ": ";
        for (int role = 0; role < KU_N_ROLES; role++) {
            if (rule->dtype[role] < 0)
                continue;
            ku_str_add(out, "%s%s %s", before, ku_precision_roles[role],
                       kumi_dtype_name((enum kumi_dtype)rule->dtype[role]));
            before = " ";
        }
        if (!rule->casts_inputs)
            ku_str_add(out, ", inputs as they are");
    }
}
