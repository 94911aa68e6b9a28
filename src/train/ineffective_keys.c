/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reports given keys that have no effect. Each row of ineffective_keys.def names a key, a facet of
 * the configuration and the facet's values with which the key has an effect:
 *
 *   EFFECT("optimizer.momentum", optimizer, "sgd lars rmsprop", "")
 *
 *   optimizer.type adamw, optimizer.momentum 0.9  ->  "optimizer.momentum (optimizer.type: adamw;
 *                                                     it is for sgd lars rmsprop)"
 *
 * A key counts as given if its value is not the default. Warnings about the schedule follow.
 */
#include "train/ineffective_keys.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/json/json.h"
#include "base/term.h"
#include "op/schedule.h"
#include "train/dataset_text.h"
#include "config/deepspeed.h"
#include "config/optimizer.h"

static const char *yes_or_no(int is_so)
{
    return is_so ? "yes" : "no";
}
static const char *zero_or_more(double x)
{
    return x > 0 ? "above 0" : "0";
}

static const char *kind_word(const struct ku_session *s)
{
    return s->graph ? "the program's" : ku_dataset_kind(&s->cfg, &s->model);
}
static const char *files_word(const struct ku_session *s)
{
    const struct ku_list *list[] = {&s->cfg.data_train, &s->cfg.data_val};
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < list[i]->n; k++)
            if (ku_str_glob("*.bin", list[i]->item[k]))
                return ".bin";
    return "none ends in .bin";
}
static const char *crop_word(const struct ku_session *s)
{
    return s->cfg.data_crop;
}
static const char *val_word(const struct ku_session *s)
{
    return s->cfg.data_val.n > 0 ? "given" : "null";
}
static const char *workers_word(const struct ku_session *s)
{
    return zero_or_more((double)s->cfg.data_workers);
}
static const char *family_word(const struct ku_session *s)
{
    return s->graph ? "the program's" : ku_model_type(&s->model);
}
static const char *ema_word(const struct ku_session *s)
{
    return zero_or_more(s->cfg.train_ema);
}
static const char *optimizer_word(const struct ku_session *s)
{
    return s->cfg.optimizer_type;
}
static const char *weight_decay_word(const struct ku_session *s)
{
    return zero_or_more(s->cfg.optimizer_weight_decay);
}
static const char *schedule_word(const struct ku_session *s)
{
    return s->cfg.schedule_type;
}
static const char *warmup_word(const struct ku_session *s)
{
    return zero_or_more((double)s->cfg.schedule_warmup_steps.n);
}
static const char *compute_word(const struct ku_session *s)
{
    return s->cfg.precision_compute;
}
static const char *scaler_word(const struct ku_session *s)
{
    const double scale = s->cfg.precision_loss_scale;
    const int is_f16 = strcmp(s->cfg.precision_compute, "f16") == 0;
    if (scale == 0 || (isnan(scale) && is_f16))
        return s->cfg.precision_scaler;
    return isnan(scale) ? "none" : "fixed";
}
static const char *file_tier_word(const struct ku_session *s)
{
    const struct ku_offload_key *k = &s->cfg.memory_offload;
    return yes_or_no(k->optimizer == KU_OFFLOAD_FILE || k->params == KU_OFFLOAD_FILE ||
                     k->activations == KU_OFFLOAD_FILE);
}
static const char *any_tier_word(const struct ku_session *s)
{
    const struct ku_offload_key *k = &s->cfg.memory_offload;
    return yes_or_no(k->optimizer || k->params || k->activations);
}
static const char *offload_optimizer_word(const struct ku_session *s)
{
    return ku_tier_name(s->cfg.memory_offload.optimizer);
}
static const char *device_word(const struct ku_session *s)
{
    return s->cfg.parallel_device;
}
/*
 * The ZeRO stage that the compiler gets. State that the host's ranks share is not partitioned.
 */
static const char *zero_word(const struct ku_session *s)
{
    static const char *const stage[] = {"0", "1", "2", "3"};
    if (s->sharding.zero > 0 && s->cfg.parallel_share_host_state)
        return "without effect under parallel.share_host_state true";
    return stage[s->sharding.zero];
}
static const char *zero_or_offload_word(const struct ku_session *s)
{
    return yes_or_no(strcmp(zero_word(s), "3") == 0 || s->cfg.memory_offload.params);
}
static const char *depths_word(const struct ku_session *s)
{
    return yes_or_no(json_array_size(json_object_get(s->cfg.model, "depths")) > 0);
}

static const struct facet {
    const char *name, *label;
    const char *(*word)(const struct ku_session *s);
} facets[] = {
    {"kind", "data.kind", kind_word},
    {"files", "data files", files_word},
    {"crop", "data.crop", crop_word},
    {"val", "data.val", val_word},
    {"workers", "data.workers", workers_word},
    {"family", "model.model_type", family_word},
    {"ema", "train.ema", ema_word},
    {"optimizer", "optimizer.type", optimizer_word},
    {"weight_decay", "optimizer.weight_decay", weight_decay_word},
    {"schedule", "schedule.type", schedule_word},
    {"warmup", "schedule.warmup_steps", warmup_word},
    {"compute", "precision.compute", compute_word},
    {"scaler", "loss scaling", scaler_word},
    {"file_tier", "offload to files", file_tier_word},
    {"any_tier", "offload", any_tier_word},
    {"offload_optimizer", "memory.offload.optimizer", offload_optimizer_word},
    {"device", "parallel.device", device_word},
    {"zero", "parallel.zero", zero_word},
    {"zero_or_offload", "parallel.zero 3 or memory.offload.params", zero_or_offload_word},
    {"depths", "model.depths given", depths_word},
};
enum { N_FACETS = sizeof facets / sizeof facets[0] };

static const struct effect {
    const char *path, *facet, *words, *value;
} effects[] = {
#define EFFECT(path, facet, words, value) {path, #facet, words, value},
#include "train/ineffective_keys.def"
#undef EFFECT
};
enum { N_EFFECTS = sizeof effects / sizeof effects[0] };

static const struct facet *facet_of(const struct effect *e)
{
    int i = 0;
    while (i < N_FACETS && strcmp(facets[i].name, e->facet) != 0)
        i++;
    KU_ASSERT(i < N_FACETS);
    return &facets[i];
}

static bool has_word(const char *words, const char *word)
{
    const size_t bytes = strlen(word);
    for (const char *p = words; *p; p += strcspn(p, " "), p += *p == ' ')
        if (strcspn(p, " ") == bytes && memcmp(p, word, bytes) == 0)
            return 1;
    return 0;
}

/*
 * Whether the user has set the key to another value than the default. Keys that come from a
 * DeepSpeed section are excluded; `kumi help deepspeed` covers them.
 */
static bool is_given(const struct ku_config *c, const struct effect *e)
{
    const json_t *v = ku_json_at(c->root, e->path);
    struct ku_config_key key = {.value = e->value};
    char where[KU_WHERE_BYTES];
    if (v == NULL || json_is_null(v) || ku_deepspeed_where(c, e->path, where))
        return 0;
    if (e->value == NULL)
        return 1;
    const int is_known = e->value[0] || ku_config_find(e->path, &key);
    KU_ASSERT(is_known);
    json_t *own = json_loads(key.value, JSON_DECODE_ANY, NULL);
    const int is_default = own && ku_config_is_same(own, v);
    json_decref(own);
    return !is_default;
}

int ku_effect_list(const struct ku_session *s, struct ku_str *out)
{
    int n = 0;
    for (int i = 0; i < N_EFFECTS; i++) {
        const struct effect *e = &effects[i];
        const int is_not = e->words[0] == '!';
        if (!is_given(&s->cfg, e))
            continue;
        const struct facet *f = facet_of(e);
        const char *word = f->word(s);
        if (has_word(e->words + is_not, word) != is_not)
            continue;
        ku_str_add(out, "%s%s (%s: %s", n++ ? ", " : "", e->path, f->label, word);
        if (!is_not && strcmp(e->words, "yes") != 0 && strcmp(e->words, "no") != 0)
            ku_str_add(out, "; it is for %s", e->words);
        ku_str_add(out, ")");
    }
    return n;
}

/*
 * A resumed run uses the schedule end of its checkpoint. Warn if the run now has another length.
 */
static void warn_end(const struct ku_session *s, const struct ku_attrs *a)
{
    const int64_t length = ku_session_schedule_length(s);
    const int has_end =
        a->schedule == KU_SCHED_LINEAR || a->schedule == KU_SCHED_COSINE ||
        a->schedule == KU_SCHED_WSD || a->schedule == KU_SCHED_ONE_CYCLE ||
        a->schedule == KU_SCHED_POLYNOMIAL ||
        ((a->schedule == KU_SCHED_WARMUP_DECAY_LR || a->schedule == KU_SCHED_WARMUP_COSINE_LR) &&
         s->cfg.schedule_total_num_steps == KU_NULL);
    const char *unit = strcmp(s->cfg.schedule_per, "epoch") == 0 ? "epoch" : "step";
    if (!has_end || s->cfg.schedule_decay_steps.n >= 0 || a->decay == length)
        return;
    ku_term_line(
        "kumi: schedule.decay_steps: the schedule still ends at %s %lld, as in the checkpoint; "
        "the run now ends at %s %lld, with learning rate %g; schedule.decay_steps=%lld with "
        "--allow-change moves the end",
        unit, (long long)a->decay, unit, (long long)length,
        ku_schedule_lr(a, s->n_steps > 0 ? s->n_steps - 1 : 0), (long long)length);
}

static void warn_schedule(const struct ku_session *s)
{
    enum { LOOKS = 1000 };
    struct ku_compile_opts o;
    const int64_t n = s->n_steps;
    double most = 0;
    if (ku_session_compile_opts(s, &o) < 0 || n < 1)
        return;
    const struct ku_attrs *a = &o.rule;
    for (int64_t i = 0; i < (n < LOOKS ? n : LOOKS); i++)
        most = fmax(most, ku_schedule_lr(a, n <= LOOKS ? i : i * (n / LOOKS)));
    most = fmax(most, ku_schedule_lr(a, n - 1));
    const int has_own = a->schedule >= KU_SCHED_WARMUP_LR;
    const double warmup =
        (double)a->period * (has_own ? a->args.v[KU_WARMUP_STEPS] : (double)a->warmup);
    if (most <= 0)
        ku_term_line(
            "kumi: schedule: the learning rate is 0 in all %lld steps, so nothing is trained; "
            "see optimizer.lr and the keys of schedule.type %s",
            (long long)n, s->cfg.schedule_type);
    else if (warmup >= (double)n && a->schedule != KU_SCHED_NOAM)
        ku_term_line(
            "kumi: schedule.%s: the warm-up takes %g steps, the run %lld: the learning rate "
            "ends at %g before it reaches its peak",
            has_own ? "warmup_num_steps" : "warmup_steps", warmup, (long long)n, most);
    warn_end(s, a);
}

void ku_effect_warn(const struct ku_session *s)
{
    struct ku_str keys = {0};
    const int n = ku_effect_list(s, &keys);
    if (n > 0)
        ku_term_line("kumi: config: %s no effect: %s", n == 1 ? "this key has" : "these keys have",
                     ku_str_get(&keys));
    ku_str_fini(&keys);
    warn_schedule(s);
}
