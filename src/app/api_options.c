/* SPDX-License-Identifier: Apache-2.0 */
#include "app/api_options.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "config/keys.h"
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
              : KU_ERR(KUMI_EINVAL,
                       "trainer: no port has a dim n: nothing to distribute over ranks");
}

/* Whether a key is one of a program's trainer; an unknown one of its sections is refused later. */
static bool is_of_program(const char *set)
{
    char path[128];
    snprintf(path, sizeof path, "%.*s", (int)strcspn(set, "="), set);
    const struct ku_key *key = ku_key_find(path);
    const size_t n = strcspn(path, ".");
    bool has_section = false;
    for (int i = 0; i < ku_n_keys; i++)
        has_section |= ku_keys[i].visibility == KU_KEY_PROGRAM && path[n] == '.' &&
                       strlen(ku_keys[i].section) == n && memcmp(ku_keys[i].section, path, n) == 0;
    return key ? key->visibility == KU_KEY_PROGRAM : has_section;
}

static int count_sets(const char *const *set, int *n)
{
    for (*n = 0; set && set[*n]; (*n)++)
        if (!is_of_program(set[*n]))
            return KU_ERR(KUMI_EINVAL,
                          "trainer: set: %.100s: not a key of a trainer; it takes those that "
                          "kumi/trainer.h names at kumi_trainer_options.set",
                          set[*n]);
    return KUMI_OK;
}

/* Members of the options that set a key; one that is 0 or NULL keeps the key's default. */
enum member_type { M_FLAG, M_INT, M_INT64, M_NUMBER, M_TEXT, M_LIST };
static const struct member {
    const char *path;
    enum member_type type;
    size_t offset;
} members[] = {
#define MEMBER(path, type, name)                                                                   \
    {                                                                                              \
        path, type, offsetof(struct kumi_trainer_options, name)                                    \
    }
    MEMBER("train.micro_batch", M_INT64, micro_batch),
    MEMBER("train.virtual_shards", M_INT, virtual_shards),
    MEMBER("train.freeze", M_LIST, freeze),
    MEMBER("optimizer.type", M_TEXT, optimizer),
    MEMBER("optimizer.lr", M_NUMBER, lr),
    MEMBER("optimizer.eps", M_NUMBER, eps),
    MEMBER("optimizer.weight_decay", M_NUMBER, weight_decay),
    MEMBER("optimizer.momentum", M_NUMBER, momentum),
    MEMBER("optimizer.dampening", M_NUMBER, dampening),
    MEMBER("optimizer.nesterov", M_FLAG, nesterov),
    MEMBER("optimizer.trust_coefficient", M_NUMBER, trust_coefficient),
    MEMBER("optimizer.min_coeff", M_NUMBER, min_coeff),
    MEMBER("optimizer.max_coeff", M_NUMBER, max_coeff),
    MEMBER("schedule.warmup_steps", M_INT64, warmup_steps),
    MEMBER("schedule.decay_steps", M_INT64, decay_steps),
    MEMBER("schedule.min_lr", M_NUMBER, min_lr),
    MEMBER("precision.compute", M_TEXT, precision),
    MEMBER("precision.loss_scale", M_NUMBER, loss_scale),
    MEMBER("parallel.device", M_TEXT, device),
#undef MEMBER
};

static int set_int(struct ku_config *cfg, const char *path, int64_t value)
{
    return value != 0 ? ku_config_set_int(cfg, path, value) : KUMI_OK;
}

static int set_member(struct ku_config *cfg, const struct kumi_trainer_options *o,
                      const struct member *m)
{
    const void *at = (const char *)o + m->offset;
    switch (m->type) {
    case M_FLAG:
        return *(const int *)at ? ku_config_set_bool(cfg, m->path, 1) : KUMI_OK;
    case M_INT:
        return set_int(cfg, m->path, *(const int *)at);
    case M_INT64:
        return set_int(cfg, m->path, *(const int64_t *)at);
    case M_NUMBER: {
        const double x = *(const double *)at;
        return x != 0 ? ku_config_set_number(cfg, m->path, x) : KUMI_OK;
    }
    case M_TEXT: {
        const char *text = *(const char *const *)at;
        return text ? ku_config_set_text(cfg, m->path, text) : KUMI_OK;
    }
    case M_LIST: {
        const char *const *list = *(const char *const *const *)at;
        return list ? ku_config_set_list(cfg, m->path, list) : KUMI_OK;
    }
    }
    return KUMI_OK;
}

/* Members whose default differs from the key's, and keys that no member sets. */
static int set_others(struct ku_config *cfg, const struct kumi_trainer_options *o, int64_t n)
{
    if (o->seed > INT64_MAX) /* above what a key can have */
        return KU_ERR(KUMI_EINVAL, "trainer: seed: %llu; give a number from 0 to 9e18",
                      (unsigned long long)o->seed);
    KU_TRY(ku_config_set(cfg, "model", json_object()));
    KU_TRY(ku_config_set_text(cfg, "data.train", "of the program"));
    KU_TRY(ku_config_set_int(cfg, "train.global_batch", n));
    KU_TRY(ku_config_set_int(cfg, "train.seed", (int64_t)o->seed));
    KU_TRY(ku_config_set_int(cfg, "train.threads", o->threads ? o->threads : 1));
    KU_TRY(ku_config_set_number(cfg, "train.clip_norm", o->clip_norm));
    KU_TRY(ku_config_set_text(cfg, "schedule.type", o->decay_steps > 0 ? "cosine" : "constant"));
    return ku_config_set_pair(cfg, "optimizer.betas", o->beta1 != 0 ? o->beta1 : 0.9,
                              o->beta2 != 0 ? o->beta2 : 0.999);
}

/* A configuration of the options, overridden by options->set. */
static int configure(const struct kumi_trainer_options *o, int64_t n, struct ku_config *cfg)
{
    int n_sets;
    KU_TRY(count_sets(o->set, &n_sets));
    KU_TRY(ku_config_start("trainer options", cfg));
    KU_TRY(set_others(cfg, o, n));
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++)
        KU_TRY(set_member(cfg, o, &members[i]));
    KU_TRY(ku_config_override(cfg, o->set, n_sets));
    return ku_config_finish(cfg);
}

/* A trainer counts steps and no epochs, and a decaying schedule needs an end. */
static int check_schedule(const struct ku_config *c)
{
    const struct ku_span *span[] = {&c->schedule_warmup_steps, &c->schedule_decay_steps,
                                    &c->schedule_step_size};
    int has_epochs = strcmp(c->schedule_per, "epoch") == 0;
    for (int i = 0; i < 3; i++)
        has_epochs |= span[i]->is_epochs;
    for (int i = 0; i < c->schedule_milestones.n; i++)
        has_epochs |= c->schedule_milestones.item[i].is_epochs;
    if (has_epochs)
        return KU_ERR(KUMI_EINVAL, "trainer: set: schedule: it counts epochs, but a trainer has "
                                   "only steps; give steps");
    if (ku_rule_needs_end(c) && c->train_steps == KU_NULL)
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
    KU_TRY(configure(o, n, &s->cfg));
    KU_TRY(check_schedule(&s->cfg));
    s->graph = graph;
    s->groups = ku_rule_groups(&s->cfg);
    if (s->groups == NULL)
        return KUMI_ENOMEM;
    KU_TRY(ku_sharding_resolve(&s->cfg, n_ranks, s->host_ranks, &s->sharding));
    KU_TRY(ku_sharding_share(&s->cfg, s->host_ranks, s->has_even_hosts, &s->sharding));
    s->batch = (struct ku_batch){.n_ranks = n_ranks / (s->sharding.tp * s->sharding.pp),
                                 .is_free = strcmp(s->cfg.parallel_order, "free") == 0,
                                 .global_batch = n,
                                 .micro_batch = or_zero(s->cfg.train_micro_batch),
                                 .virtual_shards = or_zero(s->cfg.train_virtual_shards),
                                 .accumulation = or_zero(s->cfg.train_accumulation)};
    KU_TRY(ku_batch_resolve(&s->batch));
    s->seq_len = 1;
    KU_TRY(ku_batch_source_create(&s->cfg, &s->model, &s->batch, s->seq_len, &s->source));
    s->n_steps = or_zero(s->cfg.train_steps);
    return note_numerics(s);
}
