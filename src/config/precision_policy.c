/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks and prints the section precision. The roundings are defined in op/dtype_rule.def
 * and pass/precision.c.
 */
#include "config/precision_policy.h"

#include <string.h>

#include "base/err.h"
#include "op/dtype_rule.h"

static bool is_word(const char *word, const char *is)
{
    return word && strcmp(word, is) == 0;
}

static size_t bytes_of(const char *word)
{
    enum kumi_dtype d = KUMI_F32;
    return word && ku_dtype_parse(word, &d) == KUMI_OK ? kumi_dtype_bytes(d) : 0;
}

static bool is_narrow(const char *word)
{
    return bytes_of(word) < bytes_of("f32");
}

const char *ku_precision_narrowest(const struct ku_config *c)
{
    const char *narrowest = c->precision_compute;
    for (int i = 0; i < c->precision_modules.rules.n; i++) {
        const int dtype = c->precision_modules.rules.rule[i].dtype[KU_ROLE_COMPUTE];
        if (dtype == KUMI_F16 || (dtype == KUMI_BF16 && !is_narrow(narrowest)))
            narrowest = kumi_dtype_name((enum kumi_dtype)dtype);
    }
    return narrowest;
}

/* Whether a module's parameters have no master. */
static bool has_narrow_params(const struct ku_config *c)
{
    bool has = !c->precision_master && is_narrow(ku_precision_narrowest(c));
    for (int i = 0; i < c->precision_modules.rules.n; i++)
        has |= c->precision_modules.rules.rule[i].dtype[KU_ROLE_PARAM] > KUMI_F64;
    return has;
}

int ku_precision_check(const struct ku_config *c)
{
    const char *compute = c->precision_compute, *params = c->precision_params,
               *grads = c->precision_grads, *reduce = c->precision_reduce;
    const bool is_f64 = is_word(compute, "f64");
    const struct ku_config_rule rule[] = {
        {params && !is_word(params, compute) && !(c->precision_master && is_word(params, "f32")),
         "precision.params",
         "parameters are stored in precision.compute, with a master in f32 beside it; leave it "
         "out"},
        {c->precision_stochastic_rounding && !has_narrow_params(c), "precision.stochastic_rounding",
         "it is for precision.master false and precision.compute bf16 or f16; use false"},
        {is_f64 && c->precision_modules.rules.n > 0, "precision.modules",
         "with precision.compute f64 the whole model is f64; leave it out"},
        {is_f64 && !is_word(grads, "f32"), "precision.grads",
         "with precision.compute f64 gradients are f64; leave it out"},
        {is_f64 && reduce && !is_word(reduce, "f32"), "precision.reduce",
         "with precision.compute f64 gradients travel in f64; leave it out"},
        {reduce && !is_word(reduce, grads) && !is_word(grads, "f32"), "precision.reduce",
         "gradients of 16 bits travel as they are; give precision.grads f32, or leave it out"},
    };
    KU_TRY(ku_config_check_rules(c, rule, sizeof rule / sizeof rule[0]));
    return ku_modules_check(c);
}

int ku_precision_opts(const struct ku_config *c, struct ku_compile_opts *o)
{
    KU_TRY(ku_dtype_parse(c->precision_compute, &o->compute));
    KU_TRY(ku_dtype_parse(c->precision_grads, &o->grads));
    o->reduce = o->grads;
    if (c->precision_reduce)
        KU_TRY(ku_dtype_parse(c->precision_reduce, &o->reduce));
    o->no_master = !c->precision_master;
    o->stochastic_rounding = c->precision_stochastic_rounding;
    o->keep_f32 = (const char *const *)c->precision_keep_f32.item;
    o->modules = &c->precision_modules.rules;
    return KUMI_OK;
}

void ku_precision_print(const struct ku_config *c, struct ku_str *out)
{
    const char *grads = c->precision_grads, *reduce = c->precision_reduce;
    ku_str_add(out, "%s", c->precision_compute);
    if (!c->precision_master && bytes_of(c->precision_compute) < bytes_of("f32"))
        ku_str_add(out, ", no master%s",
                   c->precision_stochastic_rounding ? ", updates rounded stochastically" : "");
    if (!is_word(grads, "f32"))
        ku_str_add(out, ", gradients %s", grads);
    if (reduce && !is_word(reduce, grads))
        ku_str_add(out, ", gradients reduced in %s", reduce);
    for (int i = 0; i < c->precision_keep_f32.n; i++)
        ku_str_add(out, "%s%s", i ? " " : ", f32: ", c->precision_keep_f32.item[i]);
    ku_modules_print(&c->precision_modules, out);
}

void ku_precision_help(int as_markdown, struct ku_str *out)
{
    static const char *const name[] = {
        [KU_PREC_COMPUTE] = "compute", [KU_PREC_F32] = "f32", [KU_PREC_AS_READ] = "as read"};
    if (as_markdown)
        ku_str_add(out, "| op | precision | |\n|---|---|---|\n");
    for (int cls = KU_PREC_COMPUTE; cls <= KU_PREC_AS_READ; cls++)
        for (int op = 0; op < KU_N_OPS; op++)
            if ((int)ku_op_precision[op].cls == cls)
                ku_str_add(out, as_markdown ? "| `%s` | %s | %s |\n" : "%-20s %-8s %s\n",
                           ku_ops[op].name, name[cls], ku_op_precision[op].help);
    if (!as_markdown)
        ku_str_add(out,
                   "\ncompute: operands and result in precision.compute; f32: computed in f32, the "
                   "result in the dtype of\nwhat is read, statistics and losses f32; as read: the "
                   "result has the dtype of what is read.\nModules of precision.keep_f32 read and "
                   "write f32 throughout; those of precision.modules have dtypes of their own.\n");
}
