/* SPDX-License-Identifier: Apache-2.0 */
#include "train/rule.h"

#include <math.h>
#include <string.h>

#include "base/err.h"

static int is_word(const char *key, const char *word)
{
    return strcmp(key, word) == 0;
}

double ku_rule_lr_factor(const struct ku_config *c, int64_t global_batch)
{
    const struct ku_lr_scaling *s = &c->optimizer_lr_scaling;
    if (s->rule == KU_SCALING_NONE)
        return 1;
    double ratio = (double)global_batch / (double)s->base_batch;
    return s->rule == KU_SCALING_SQRT ? sqrt(ratio) : ratio;
}

/* "matrices", "all", or patterns. */
static int choice(const struct ku_list *list, const char *const **patterns)
{
    *patterns = (const char *const *)list->item;
    if (list->is_word && is_word(list->item[0], "matrices"))
        return KU_DECAY_MATRICES;
    return list->is_word && is_word(list->item[0], "all") ? KU_DECAY_ALL : KU_DECAY_PATTERNS;
}

void ku_rule_optimizer(const struct ku_config *c, int64_t global_batch, struct ku_compile_opts *o)
{
    struct ku_attrs *a = &o->rule;
    o->optimizer = ku_op_find(c->optimizer_type);
    a->lr = c->optimizer_lr * ku_rule_lr_factor(c, global_batch);
    a->beta1 = c->optimizer_betas.v[0];
    a->beta2 = c->optimizer_betas.v[1];
    a->eps = c->optimizer_eps;
    a->bias_correction = c->optimizer_bias_correction;
    a->weight_decay = c->optimizer_weight_decay;
    a->momentum = c->optimizer_momentum;
    a->dampening = c->optimizer_dampening;
    a->nesterov = c->optimizer_nesterov;
    a->trust_coefficient = c->optimizer_trust_coefficient;
    a->min_coeff = c->optimizer_min_coeff;
    a->max_coeff = c->optimizer_max_coeff;
    o->decay = choice(&c->optimizer_decay, &o->decay_patterns);
    o->adapt = choice(&c->optimizer_adapt, &o->adapt_patterns);
}

void ku_rule_schedule(const struct ku_config *c, struct ku_attrs *a)
{
    for (int i = 0; ku_attr_schedules[i]; i++)
        if (is_word(ku_attr_schedules[i], c->schedule_type))
            a->schedule = i;
    a->warmup_lr = c->schedule_warmup_start_lr;
    a->min_lr = c->schedule_min_lr;
    a->gamma = c->schedule_gamma;
    a->power = c->schedule_power;
    a->d_model = c->schedule_d_model == KU_NULL ? 1 : c->schedule_d_model;
    a->pct_start = c->schedule_pct_start;
    a->div_factor = c->schedule_div_factor;
    a->final_div_factor = c->schedule_final_div_factor;
    a->three_phase = c->schedule_three_phase;
    a->anneal = is_word(c->schedule_anneal, "linear") ? KU_ANNEAL_LINEAR : KU_ANNEAL_COS;
    a->cycle_momentum = a->schedule == KU_SCHED_ONE_CYCLE && c->schedule_cycle_momentum;
    a->base_momentum = c->schedule_base_momentum;
    a->max_momentum = c->schedule_max_momentum;
}

void ku_rule_milestones(const int64_t at[KU_MAX_MILESTONES], struct ku_attrs *a)
{
    int64_t *const to[KU_MAX_MILESTONES] = {&a->milestone1, &a->milestone2, &a->milestone3,
                                            &a->milestone4, &a->milestone5, &a->milestone6};
    for (int i = 0; i < KU_MAX_MILESTONES; i++)
        *to[i] = at[i];
}

int ku_rule_check(const struct ku_config *c)
{
    const int is_cycle = is_word(c->schedule_type, "one_cycle");
    const int has_momentum = c->optimizer_momentum > 0 || (is_cycle && c->schedule_cycle_momentum);
    const struct {
        int is_wrong;
        const char *path, *wanted;
    } rule[] = {
        {c->optimizer_nesterov && (!has_momentum || c->optimizer_dampening != 0),
         "optimizer.nesterov", "it needs optimizer.momentum above 0 and dampening 0"},
        {c->optimizer_min_coeff > c->optimizer_max_coeff, "optimizer.min_coeff",
         "it exceeds optimizer.max_coeff"},
        {is_word(c->schedule_type, "noam") && c->schedule_d_model == KU_NULL, "schedule.d_model",
         "noam needs the model's width"},
        {is_word(c->schedule_type, "multi_step") && c->schedule_milestones.n == 0,
         "schedule.milestones", "multi_step needs at least one"},
        {is_cycle && c->schedule_warmup_steps.n != 0, "schedule.warmup_steps",
         "one_cycle warms up for schedule.pct_start of its steps; use 0"},
    };
    for (size_t i = 0; i < sizeof rule / sizeof rule[0]; i++)
        if (rule[i].is_wrong)
            return ku_config_refuse(c, rule[i].path, ku_json_at(c->root, rule[i].path),
                                    rule[i].wanted);
    return KUMI_OK;
}
