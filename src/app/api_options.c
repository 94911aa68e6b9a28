/* SPDX-License-Identifier: Apache-2.0 */
#include "app/api_options.h"

#include <math.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "op/schedule.h"
#include "model/model.h"
#include "config/optimizer.h"

/* Number of samples of the global batch. */
static int batch_of(const struct ku_graph *g, int64_t *n)
{
    *n = 0;
    for (uint32_t i = 0; i < g->n_inputs; i++) {
        const struct ku_shape *s = &g->shape[g->value[g->input[i].value].shape];
        int dim = ku_shape_find(s, 'n');
        if (dim < 0)
            continue;
        if (dim > 0)
            return KU_ERR(KUMI_EINVAL, "trainer: port %s: n is dimension %d; samples come first",
                          g->input[i].name, dim);
        if (*n && *n != s->dim[dim].count)
            return KU_ERR(KUMI_EINVAL, "trainer: port %s: %lld samples; another port has %lld",
                          g->input[i].name, (long long)s->dim[dim].count, (long long)*n);
        *n = s->dim[dim].count;
    }
    return *n ? KUMI_OK
              : KU_ERR(KUMI_EINVAL, "trainer: no port has a dim n: nothing to share among ranks");
}

/*
 * Keys that `set` may contain: those that the trainer uses. Loop, data and job belong to the
 * program. "+": all keys of the section except those that follow.
 */
static const struct {
    const char *section, *keys;
} taken[] = {{"optimizer", "+"},
             {"schedule", "+"},
             {"precision", "+"},
             {"memory", "+"},
             {"parallel", "+ transport timeout_s "},
             {"train", " micro_batch accumulation virtual_shards steps threads seed clip_norm "
                       "label_smoothing freeze ema ema_warmup "}};

static bool is_taken(const char *set)
{
    size_t n = strcspn(set, "=");
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++) {
        size_t section = strlen(taken[i].section);
        char key[64];
        if (n <= section || strncmp(set, taken[i].section, section) != 0 || set[section] != '.')
            continue;
        snprintf(key, sizeof key, " %.*s ", (int)(n - section - 1), set + section + 1);
        return (taken[i].keys[0] == '+') != (strstr(taken[i].keys, key) != NULL);
    }
    return 0;
}

static int count_sets(const char *const *set, int *n)
{
    for (*n = 0; set && set[*n]; (*n)++)
        if (!is_taken(set[*n]))
            return KU_ERR(KUMI_EINVAL,
                          "trainer: set: %.100s: not a key of a trainer; it takes optimizer, "
                          "schedule, precision, memory, parallel (not transport, timeout_s), and "
                          "train.{micro_batch, accumulation, virtual_shards, steps, threads, seed, "
                          "clip_norm, label_smoothing, freeze, ema, ema_warmup}",
                          set[*n]);
    return KUMI_OK;
}

static json_t *given(double x)
{
    return x != 0 ? json_real(x) : NULL;
}
static json_t *given_count(int64_t n)
{
    return n != 0 ? json_integer(n) : NULL;
}
static json_t *given_text(const char *text)
{
    return text ? json_string(text) : NULL;
}

/*
 * The members of the options as configuration sections. Zeros keep the defaults (s*: omitted if
 * NULL).
 */
static json_t *sections_of(const struct kumi_trainer_options *o, int64_t n)
{
    json_t *freeze = json_array();
    for (int i = 0; o->freeze && o->freeze[i]; i++)
        json_array_append_new(freeze, json_string(o->freeze[i]));
    json_t *train =
        json_pack("{s:I, s:o*, s:o*, s:I, s:f, s:i, s:o}", "global_batch", (json_int_t)n,
                  "micro_batch", given_count(o->micro_batch), "virtual_shards",
                  given_count(o->virtual_shards), "seed", (json_int_t)o->seed, "clip_norm",
                  o->clip_norm, "threads", o->threads != 0 ? o->threads : 1, "freeze", freeze);
    json_t *optimizer = json_pack(
        "{s:o*, s:o*, s:[f, f], s:o*, s:f, s:f, s:f, s:b, s:o*, s:o*, s:o*}", "type",
        given_text(o->optimizer), "lr", given(o->lr), "betas", o->beta1 != 0 ? o->beta1 : 0.9,
        o->beta2 != 0 ? o->beta2 : 0.999, "eps", given(o->eps), "weight_decay", o->weight_decay,
        "momentum", o->momentum, "dampening", o->dampening, "nesterov", o->nesterov != 0,
        "trust_coefficient", given(o->trust_coefficient), "min_coeff", given(o->min_coeff),
        "max_coeff", given(o->max_coeff));
    json_t *schedule =
        json_pack("{s:s, s:I, s:o*, s:f}", "type", o->decay_steps > 0 ? "cosine" : "constant",
                  "warmup_steps", (json_int_t)o->warmup_steps, "decay_steps",
                  given_count(o->decay_steps), "min_lr", o->min_lr);
    return json_pack("{s:{}, s:{s:s}, s:o, s:o, s:o, s:{s:o*, s:o*}, s:{s:o*}}", "model", "data",
                     "train", "of the program", "train", train, "optimizer", optimizer, "schedule",
                     schedule, "precision", "compute", given_text(o->precision), "loss_scale",
                     given(o->loss_scale), "parallel", "device", given_text(o->device));
}

/* Reject values that JSON cannot represent. */
static int check_members(const struct kumi_trainer_options *o)
{
    const struct {
        const char *name;
        double value;
    } member[] = {{"lr", o->lr},
                  {"beta1", o->beta1},
                  {"beta2", o->beta2},
                  {"eps", o->eps},
                  {"weight_decay", o->weight_decay},
                  {"momentum", o->momentum},
                  {"dampening", o->dampening},
                  {"trust_coefficient", o->trust_coefficient},
                  {"min_coeff", o->min_coeff},
                  {"max_coeff", o->max_coeff},
                  {"clip_norm", o->clip_norm},
                  {"min_lr", o->min_lr},
                  {"loss_scale", o->loss_scale}};
    for (size_t i = 0; i < sizeof member / sizeof member[0]; i++)
        if (!isfinite(member[i].value))
            return KU_ERR(KUMI_EINVAL, "trainer: options: %s: %g; give a finite number",
                          member[i].name, member[i].value);
    for (int i = 0; o->freeze && o->freeze[i]; i++) {
        json_t *pattern = json_string(o->freeze[i]);
        if (pattern == NULL)
            return KU_ERR(KUMI_EINVAL, "trainer: options: freeze[%d] is not UTF-8", i);
        json_decref(pattern);
    }
    return KUMI_OK;
}

static int parse(const struct kumi_trainer_options *o, int64_t n, struct ku_config *cfg)
{
    int n_sets, status;
    KU_TRY(check_members(o));
    KU_TRY(count_sets(o->set, &n_sets));
    json_t *root = sections_of(o, n);
    char *text = root ? ku_json_print(root, JSON_REAL_PRECISION(17)) : NULL;
    json_decref(root);
    status = text ? ku_config_parse("trainer options", text, strlen(text), o->set, n_sets,
                                    ku_model_hidden_size, cfg)
                  : KU_ERR(KUMI_ENOMEM, "trainer: no memory for its options");
    ku_free(text);
    cfg->set = NULL; /* borrowed from the caller */
    cfg->n_sets = 0;
    return status;
}

/* A trainer counts steps and no epochs, and a decaying schedule needs an end. */
static int check_schedule(const struct ku_config *c)
{
    const struct ku_span *span[] = {&c->schedule_warmup_steps, &c->schedule_decay_steps,
                                    &c->schedule_step_size};
    int has_epochs = strcmp(c->schedule_per, "epoch") == 0;
    struct ku_attrs a = ku_attrs_default;
    for (int i = 0; i < 3; i++)
        has_epochs |= span[i]->is_epochs;
    for (int i = 0; i < c->schedule_milestones.n; i++)
        has_epochs |= c->schedule_milestones.item[i].is_epochs;
    if (has_epochs)
        return KU_ERR(KUMI_EINVAL, "trainer: set: schedule: it counts epochs, and a trainer has "
                                   "steps alone; give steps");
    ku_rule_schedule(c, &a);
    int has_total =
        (a.schedule == KU_SCHED_WARMUP_DECAY_LR || a.schedule == KU_SCHED_WARMUP_COSINE_LR) &&
        c->schedule_total_num_steps != KU_NULL;
    int ends = a.schedule == KU_SCHED_LINEAR || a.schedule == KU_SCHED_COSINE ||
               a.schedule == KU_SCHED_WSD || a.schedule == KU_SCHED_ONE_CYCLE ||
               a.schedule == KU_SCHED_POLYNOMIAL || a.schedule == KU_SCHED_WARMUP_DECAY_LR ||
               a.schedule == KU_SCHED_WARMUP_COSINE_LR;
    if (ends && !has_total && c->schedule_decay_steps.n < 0 && c->train_steps == KU_NULL)
        return KU_ERR(KUMI_EINVAL,
                      "trainer: schedule.type: %s: the schedule needs an end: give "
                      "schedule.decay_steps, or the length of the run as train.steps",
                      c->schedule_type);
    return KUMI_OK;
}

/* The numerics keys for checkpoints, without data and model, which belong to the program. */
static int note_numerics(struct ku_session *s)
{
    const char *key;
    json_t *value;
    void *next;
    s->numerics = ku_config_numerics(&s->cfg);
    if (s->numerics == NULL)
        return KU_ERR(KUMI_ENOMEM, "trainer: no memory for its options");
    json_object_foreach_safe(s->numerics, next, key, value)
    {
        if (strcmp(key, "model") == 0 || strncmp(key, "data.", 5) == 0)
            json_object_del(s->numerics, key);
    }
    json_object_set_new(s->numerics, "train.micro_batch", json_integer(s->batch.micro_batch));
    if (!s->batch.is_free) /* else it follows from the number of ranks */
        json_object_set_new(s->numerics, "train.virtual_shards",
                            json_integer(s->batch.virtual_shards));
    if (s->cfg.schedule_decay_steps.n < 0 && s->n_steps > 0)
        json_object_set_new(s->numerics, "schedule.decay_steps", json_integer(s->n_steps));
    return KUMI_OK;
}

static int64_t or_zero(int64_t key)
{
    return key == KU_NULL ? 0 : key;
}

int ku_api_configure(const struct kumi_trainer_options *o, const struct ku_graph *graph,
                     int n_ranks, struct ku_session *s)
{
    int64_t n;
    KU_TRY(batch_of(graph, &n));
    KU_TRY(parse(o, n, &s->cfg));
    KU_TRY(check_schedule(&s->cfg));
    s->graph = graph;
    s->groups = ku_rule_groups(&s->cfg);
    if (s->groups == NULL)
        return KUMI_ENOMEM;
    KU_TRY(ku_sharding_resolve(&s->cfg, n_ranks, &s->sharding));
    s->batch = (struct ku_batch){.n_ranks = n_ranks,
                                 .is_free = strcmp(s->cfg.parallel_order, "free") == 0,
                                 .global_batch = n,
                                 .micro_batch = or_zero(s->cfg.train_micro_batch),
                                 .virtual_shards = or_zero(s->cfg.train_virtual_shards),
                                 .accumulation = or_zero(s->cfg.train_accumulation)};
    KU_TRY(ku_batch_resolve(&s->batch));
    s->seq_len = 1;
    s->n_steps = or_zero(s->cfg.train_steps);
    return note_numerics(s);
}
