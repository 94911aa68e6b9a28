/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies the keys of the sections optimizer and schedule to the attributes of the compiler. The
 * arguments of a schedule go to a->args, at the indices of op/schedule.h.
 */
#include "config/optimizer.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "config/keys.h"
#include "config/precision_policy.h"
#include "op/loss_scaler.h"
#include "op/schedule.h"

static bool is_word(const char *key, const char *word)
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

/* A selection of parameters, "matrices", "all" or patterns, as enum ku_decay. */
static int choice(const struct ku_list *list, const char *const **patterns)
{
    *patterns = (const char *const *)list->item;
    if (list->is_word && is_word(list->item[0], "matrices"))
        return KU_DECAY_MATRICES;
    return list->is_word && is_word(list->item[0], "all") ? KU_DECAY_ALL : KU_DECAY_PATTERNS;
}

struct ku_update_group *ku_rule_groups(const struct ku_config *c)
{
    const struct ku_groups *from = &c->optimizer_groups;
    struct ku_update_group *to = ku_calloc((size_t)from->n + 1, sizeof *to);
    for (int i = 0; to && i < from->n; i++) {
        const struct ku_group *g = &from->item[i];
        to[i].match = (const char *const *)g->match.item;
        const struct {
            size_t offset;
            double value;
        } key[] = {{offsetof(struct ku_attrs, lr_mult), g->lr_mult},
                   {offsetof(struct ku_attrs, weight_decay), g->weight_decay},
                   {offsetof(struct ku_attrs, eps), g->eps},
                   {offsetof(struct ku_attrs, beta1), g->betas.v[0]},
                   {offsetof(struct ku_attrs, beta2), g->betas.v[1]}};
        for (size_t k = 0; k < sizeof key / sizeof key[0]; k++)
            if (!isnan(key[k].value)) {
                to[i].set[to[i].n_set].offset = key[k].offset;
                to[i].set[to[i].n_set++].value = key[k].value;
            }
    }
    return to;
}

/* RMSProp has one op per combination of state tensors. */
static int optimizer_of(const struct ku_config *c)
{
    const int has_momentum = c->optimizer_momentum > 0 || is_word(c->schedule_type, "one_cycle");
    if (!is_word(c->optimizer_type, "rmsprop"))
        return ku_op_find(c->optimizer_type);
    if (has_momentum)
        return c->optimizer_centered ? KU_OP_rmsprop_both : KU_OP_rmsprop_momentum;
    return c->optimizer_centered ? KU_OP_rmsprop_centered : KU_OP_rmsprop;
}

void ku_rule_optimizer(const struct ku_config *c, int64_t global_batch, struct ku_compile_opts *o)
{
    struct ku_attrs *a = &o->rule;
    a->eps = c->optimizer_eps;
    o->optimizer = optimizer_of(c);
    if (o->optimizer == KU_OP_adafactor) {
        const double f32 = 0x1p-23, f64 = 0x1p-52;
        a->eps = !isnan(c->optimizer_eps1) ? c->optimizer_eps1 : o->compute == KUMI_F64 ? f64 : f32;
    }
    a->beta2_decay = c->optimizer_beta2_decay;
    a->eps2 = c->optimizer_eps2;
    a->clip_threshold = c->optimizer_clip_threshold;
    o->initial_accumulator_value = c->optimizer_initial_accumulator_value;
    a->lr = c->optimizer_lr * ku_rule_lr_factor(c, global_batch);
    a->beta1 = c->optimizer_betas.v[0];
    a->beta2 = c->optimizer_betas.v[1];
    a->bias_correction = c->optimizer_bias_correction;
    a->weight_decay = c->optimizer_weight_decay;
    a->momentum = c->optimizer_momentum;
    a->dampening = c->optimizer_dampening;
    a->nesterov = c->optimizer_nesterov;
    a->alpha = c->optimizer_alpha;
    a->lr_decay = c->optimizer_lr_decay;
    a->ema = c->train_ema;
    a->ema_warmup = c->train_ema_warmup;
    a->trust_coefficient = c->optimizer_trust_coefficient;
    a->min_coeff = c->optimizer_min_coeff;
    a->max_coeff = c->optimizer_max_coeff;
    o->decay = choice(&c->optimizer_decay, &o->decay_patterns);
    o->adapt = choice(&c->optimizer_adapt, &o->adapt_patterns);
}

static int schedule_of(const struct ku_config *c)
{
    int i = 0;
    while (ku_attr_schedules[i] && !is_word(ku_attr_schedules[i], c->schedule_type))
        i++;
    return i;
}

int ku_rule_loss_scale(enum kumi_dtype compute, double scale, struct ku_attrs *a)
{
    if (isnan(scale) && compute != KUMI_F16) {
        a->loss_scale = 0;
        return KUMI_OK;
    }
    if (!isnan(scale) && scale != 0) {
        a->scaler = KU_LOSS_SCALE_STATIC;
        a->loss_scale = (double)(float)scale; /* the seed of backward is f32 */
    }
    return ku_scaler_check(a);
}

int ku_rule_scaler(const struct ku_config *c, struct ku_compile_opts *o)
{
    const int is_torch = is_word(c->precision_scaler, "torch");
    struct ku_attrs *a = &o->rule;
    a->scaler = is_torch ? KU_LOSS_SCALE_PYTORCH : KU_LOSS_SCALE_DEEPSPEED;
    a->scale_window = c->precision_window != KU_NULL ? c->precision_window : is_torch ? 2000 : 1000;
    a->hysteresis = c->precision_hysteresis;
    a->consecutive_hysteresis = c->precision_consecutive_hysteresis;
    a->min_scale = c->precision_min_scale;
    a->growth_factor = c->precision_growth_factor;
    a->backoff_factor = c->precision_backoff_factor;
    a->loss_scale = ldexp(1, (int)c->precision_initial_scale_power);
    enum kumi_dtype compute;
    KU_TRY(ku_dtype_parse(ku_precision_narrowest(c), &compute));
    return ku_rule_loss_scale(compute, c->precision_loss_scale, a);
}

/* Whether the schedule changes momentum or betas. ds_one_cycle changes only betas, as DeepSpeed. */
static bool is_cycling(const struct ku_config *c)
{
    static const char *const with_betas[] = {"adamw", "adam", "lamb", "lion"};
    if (is_word(c->schedule_type, "one_cycle"))
        return 1;
    for (size_t i = 0; i < sizeof with_betas / sizeof with_betas[0]; i++)
        if (is_word(c->optimizer_type, with_betas[i]))
            return is_word(c->schedule_type, "ds_one_cycle");
    return 0;
}

void ku_rule_schedule(const struct ku_config *c, struct ku_attrs *a)
{
    a->schedule = schedule_of(c);
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
    a->cycle_momentum = c->schedule_cycle_momentum && is_cycling(c);
    a->base_momentum = c->schedule_base_momentum;
    a->max_momentum = c->schedule_max_momentum;
}

bool ku_rule_reads_lr(const struct ku_config *c)
{
    switch ((enum ku_schedule)schedule_of(c)) {
    case KU_SCHED_LR_RANGE_TEST:
    case KU_SCHED_DS_ONE_CYCLE:
        return false;
    case KU_SCHED_WARMUP_LR:
    case KU_SCHED_WARMUP_DECAY_LR:
        return isnan(c->schedule_warmup_max_lr);
    case KU_SCHED_CONSTANT:
    case KU_SCHED_LINEAR:
    case KU_SCHED_COSINE:
    case KU_SCHED_STEP:
    case KU_SCHED_INVERSE_SQRT:
    case KU_SCHED_WSD:
    case KU_SCHED_ONE_CYCLE:
    case KU_SCHED_NOAM:
    case KU_SCHED_MULTI_STEP:
    case KU_SCHED_POLYNOMIAL:
    case KU_SCHED_WARMUP_COSINE_LR:
        return true;
    }
    return true;
}

bool ku_rule_needs_end(const struct ku_config *c)
{
    const int schedule = schedule_of(c);
    const bool has_total =
        ku_schedule_is_deepspeed(schedule) && c->schedule_total_num_steps != KU_NULL;
    return ku_schedule_has_end(schedule) && !has_total && c->schedule_decay_steps.n < 0;
}

void ku_rule_args(const struct ku_config *c, const int64_t *milestone, struct ku_attrs *a)
{
    const int64_t first = c->schedule_cycle_first_step_size, total = c->schedule_total_num_steps;
    const int64_t second = c->schedule_cycle_second_step_size, steps = c->schedule_warmup_num_steps;
    double *v = a->args.v;
    a->args = (struct ku_args){{0}};
    if (a->schedule == KU_SCHED_MULTI_STEP) {
        for (int i = 0; i < c->schedule_milestones.n; i++)
            v[i] = (double)milestone[i];
    } else if (a->schedule == KU_SCHED_LR_RANGE_TEST) {
        v[KU_RANGE_MIN_LR] = c->schedule_lr_range_test_min_lr;
        v[KU_RANGE_STEP_SIZE] = (double)c->schedule_lr_range_test_step_size;
        v[KU_RANGE_STEP_RATE] = c->schedule_lr_range_test_step_rate;
        v[KU_RANGE_STAIRCASE] = c->schedule_lr_range_test_staircase;
    } else if (a->schedule == KU_SCHED_DS_ONE_CYCLE) {
        v[KU_CYCLE_MIN_LR] = c->schedule_cycle_min_lr;
        v[KU_CYCLE_MAX_LR] = c->schedule_cycle_max_lr;
        v[KU_CYCLE_FIRST_SIZE] = (double)first;
        v[KU_CYCLE_SECOND_SIZE] = (double)(second == KU_NULL ? first : second);
        v[KU_CYCLE_DECAY_SIZE] = (double)c->schedule_decay_step_size;
        v[KU_CYCLE_DECAY_LR] = c->schedule_decay_lr_rate;
        v[KU_CYCLE_MIN_MOM] = c->schedule_cycle_min_mom;
        v[KU_CYCLE_MAX_MOM] = c->schedule_cycle_max_mom;
        v[KU_CYCLE_DECAY_MOM] = c->schedule_decay_mom_rate;
    } else if (ku_schedule_is_deepspeed(a->schedule)) {
        const int is_cosine = a->schedule == KU_SCHED_WARMUP_COSINE_LR;
        const double max = c->schedule_warmup_max_lr;
        v[KU_WARMUP_MIN] = is_cosine ? c->schedule_warmup_min_ratio : c->schedule_warmup_min_lr;
        v[KU_WARMUP_MAX] = is_cosine ? c->schedule_cos_min_ratio : isnan(max) ? a->lr : max;
        v[KU_WARMUP_STEPS] = steps < 2 ? 2 : (double)steps;
        v[KU_WARMUP_IS_LINEAR] = is_word(c->schedule_warmup_type, "linear");
        v[KU_WARMUP_TOTAL] = (double)(total == KU_NULL ? a->decay : total);
    }
}

/* With adafactor the eps of a group takes the place of optimizer.eps1, and has its range. */
static int check_groups(const struct ku_config *c)
{
    const struct ku_allowed *eps1 = &ku_key_find("optimizer.eps1")->allowed;
    for (int i = 0; i < c->optimizer_groups.n && is_word(c->optimizer_type, "adafactor"); i++) {
        char path[64], wanted[96];
        if (!(c->optimizer_groups.item[i].eps < eps1->min)) /* NaN: not given */
            continue;
        snprintf(path, sizeof path, "optimizer.groups[%d].eps", i);
        snprintf(wanted, sizeof wanted, "with adafactor it replaces eps1: a number from %g to %g",
                 eps1->min, eps1->max);
        const json_t *group = json_array_get(ku_json_at(c->root, "optimizer.groups"), (size_t)i);
        return ku_config_refuse(c, path, json_object_get(group, "eps"), wanted);
    }
    return KUMI_OK;
}

int ku_rule_check(const struct ku_config *c)
{
    const int is_cycle = is_word(c->schedule_type, "one_cycle");
    const int is_ds_cycle = is_word(c->schedule_type, "ds_one_cycle");
    const int has_momentum = c->optimizer_momentum > 0 || (is_cycle && c->schedule_cycle_momentum);
    const int is_dynamic =
        c->precision_loss_scale == 0 ||
        (isnan(c->precision_loss_scale) && is_word(ku_precision_narrowest(c), "f16"));
    const struct ku_config_rule rule[] = {
        {is_dynamic && c->precision_window == 0, "precision.window", "at least 1 step"},
        {is_dynamic && c->precision_min_scale <= 0, "precision.min_scale", "a number above 0"},
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
        {ku_schedule_is_deepspeed(schedule_of(c)) && c->schedule_warmup_steps.n != 0,
         "schedule.warmup_steps", "DeepSpeed's schedules warm up by keys of their own; use 0"},
        {is_ds_cycle && isnan(c->schedule_cycle_min_lr), "schedule.cycle_min_lr",
         "ds_one_cycle needs it"},
        {is_ds_cycle && isnan(c->schedule_cycle_max_lr), "schedule.cycle_max_lr",
         "ds_one_cycle needs it"},
    };
    KU_TRY(ku_config_check_rules(c, rule, sizeof rule / sizeof rule[0]));
    return check_groups(c);
}
