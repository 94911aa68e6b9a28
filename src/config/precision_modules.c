/* SPDX-License-Identifier: Apache-2.0 */
/* Section precision, modules: [{"match": "h.*.mlp", "compute": "bf16", "output": "f32"}]. */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "config/precision_policy.h"

static int read_role(const struct ku_config *cfg, const char *path, const char *name,
                     const json_t *value, struct ku_precision_rule *rule)
{
    static const char *const known[] = {"match",  "param",  "compute",    "reduce",
                                        "output", "buffer", "cast_inputs"};
    enum kumi_dtype dtype;
    int role = 0;
    while (role < KU_N_ROLES && strcmp(ku_precision_roles[role], name) != 0)
        role++;
    if (role == KU_N_ROLES)
        return ku_config_refuse_unknown(cfg, path, name, known, sizeof known / sizeof known[0]);
    const char *word = json_string_value(value);
    if (word == NULL || ku_dtype_parse(word, &dtype) < 0 || dtype == KUMI_F64 ||
        !ku_dtype_is_float(dtype))
        return ku_config_refuse(
            cfg, path, value,
            word && strcmp(word, "f64") == 0
                ? "f32, bf16 or f16; f64 is for a whole model (precision.compute)"
                : "f32, bf16 or f16");
    rule->dtype[role] = (int)dtype;
    return KUMI_OK;
}

static int read_rule(const struct ku_config *cfg, const char *path, const json_t *value,
                     struct ku_precision_rule *rule, struct ku_list *match)
{
    const char *name;
    json_t *x;
    char at[256];
    bool says = false;
    if (!json_is_object(value))
        return ku_config_refuse(cfg, path, value, "a rule is an object");
    for (int role = 0; role < KU_N_ROLES; role++)
        rule->dtype[role] = -1;
    rule->casts_inputs = true;
    json_object_foreach((json_t *)(uintptr_t)value, name, x)
    {
        snprintf(at, sizeof at, "%s.%.100s", path, name);
        if (strcmp(name, "match") == 0) {
            const int status = ku_list_read(match, x);
            if (status > 0 || (status == KUMI_OK && match->n == 0))
                return ku_config_refuse(cfg, at, x, "a pattern of module paths or a list of them");
            KU_TRY(status);
        } else if (strcmp(name, "cast_inputs") == 0) {
            if (!json_is_boolean(x))
                return ku_config_refuse(cfg, at, x, "true or false");
            rule->casts_inputs = json_is_true(x);
        } else {
            KU_TRY(read_role(cfg, at, name, x, rule));
            says = true;
        }
    }
    rule->match = (const char *const *)match->item;
    if (match->n == 0)
        return ku_config_refuse(cfg, path, value, "give \"match\", a pattern of module paths");
    if (!says)
        return ku_config_refuse(cfg, path, value,
                                "give at least one of param, compute, reduce, output, buffer");
    if (!rule->casts_inputs && rule->dtype[KU_ROLE_COMPUTE] < 0)
        return ku_config_refuse(cfg, path, value, "cast_inputs is for rules that give compute");
    return KUMI_OK;
}

int ku_config_read_modules(const struct ku_config *cfg, const char *path, const json_t *value,
                           struct ku_modules_key *key)
{
    const size_t n = json_array_size(value);
    char at[128];
    if (!json_is_array(value))
        return ku_config_refuse(cfg, path, value, "a list of rules");
    key->rules.rule = ku_calloc(n + 1, sizeof *key->rules.rule);
    key->match = ku_calloc(n + 1, sizeof *key->match);
    if (key->rules.rule == NULL || key->match == NULL)
        return KUMI_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        key->rules.n = (int)i + 1;
        snprintf(at, sizeof at, "%.100s[%zu]", path, i);
        KU_TRY(read_rule(cfg, at, json_array_get(value, i), &key->rules.rule[i], &key->match[i]));
    }
    return KUMI_OK;
}

void ku_modules_fini(struct ku_modules_key *key)
{
    for (int i = 0; i < key->rules.n; i++)
        ku_list_fini(&key->match[i]);
    ku_free(key->match);
    ku_free(key->rules.rule);
}

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
