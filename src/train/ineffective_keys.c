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
 * Of a key with several rows the first that holds gives the reason. A key counts as given if its
 * value is not the default. Warnings about the schedule follow.
 */
#include "train/ineffective_keys.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/json/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "op/schedule.h"
#include "config/deepspeed.h"
#include "config/keys.h"
#include "config/optimizer.h"
#include "config/precision_policy.h"

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
    return s->graph ? "the program's" : ku_batch_source_of(&s->cfg, &s->model)->kind(&s->cfg);
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
/* The schedules that have the key, and take optimizer.lr without it. */
static const char *warmup_max_lr_word(const struct ku_session *s)
{
    const char *type = s->cfg.schedule_type;
    const bool has_key = strcmp(type, "warmup_lr") == 0 || strcmp(type, "warmup_decay_lr") == 0;
    return has_key && !ku_rule_reads_lr(&s->cfg) ? "given" : "null";
}
static const char *momentum_word(const struct ku_session *s)
{
    const bool is_cycled =
        strcmp(s->cfg.schedule_type, "one_cycle") == 0 && s->cfg.schedule_cycle_momentum;
    return is_cycled ? "above 0" : zero_or_more(s->cfg.optimizer_momentum);
}
static const char *compute_word(const struct ku_session *s)
{
    return ku_precision_narrowest(&s->cfg);
}
static const char *scaler_word(const struct ku_session *s)
{
    const double scale = s->cfg.precision_loss_scale;
    const int is_f16 = strcmp(ku_precision_narrowest(&s->cfg), "f16") == 0;
    if (scale == 0 || (isnan(scale) && is_f16))
        return s->cfg.precision_scaler;
    return isnan(scale) ? "none" : "fixed";
}
static const char *file_offload_word(const struct ku_session *s)
{
    const struct ku_offload_key *k = &s->cfg.memory_offload;
    return yes_or_no(k->optimizer == KU_OFFLOAD_FILE || k->params == KU_OFFLOAD_FILE ||
                     k->activations == KU_OFFLOAD_FILE);
}
static const char *any_offload_word(const struct ku_session *s)
{
    const struct ku_offload_key *k = &s->cfg.memory_offload;
    return yes_or_no(k->optimizer || k->params || k->activations);
}
static const char *offload_optimizer_word(const struct ku_session *s)
{
    return ku_offload_target_name(s->cfg.memory_offload.optimizer);
}
static const char *device_word(const struct ku_session *s)
{
    return s->cfg.parallel_device;
}
/*
 * The ZeRO stage that the compiler gets. State that the host's ranks share is not partitioned.
 */
/* Whether ranks share the state that parallel.zero would divide. */
static bool is_shared(const struct ku_session *s)
{
    return s->sharding.zero > 0 && s->sharding.shard == 1 && ku_host_state_is_shared(&s->cfg);
}
static const char *zero_word(const struct ku_session *s)
{
    static const char *const stage[] = {"0", "1", "2", "3"};
    if (is_shared(s))
        return "without effect under parallel.host_state: shared";
    return stage[s->sharding.zero];
}
/* "shared" only where a stage could partition the state that the ranks share. */
static const char *host_state_word(const struct ku_session *s)
{
    return is_shared(s) ? "shared" : "private";
}
static const char *zero_or_offload_word(const struct ku_session *s)
{
    return yes_or_no(strcmp(zero_word(s), "3") == 0 || s->cfg.memory_offload.params);
}
static const char *depths_word(const struct ku_session *s)
{
    return yes_or_no(json_array_size(json_object_get(s->cfg.model, "depths")) > 0);
}

static const char *tp_word(const struct ku_session *s)
{
    return s->sharding.tp > 1 || s->cfg.parallel_tp_exact != KU_NULL ? "above 1" : "1";
}
static const char *sp_word(const struct ku_session *s)
{
    return s->sharding.tp > 1 && s->cfg.parallel_sp ? "true" : "false";
}
static const char *pp_word(const struct ku_session *s)
{
    return s->sharding.pp > 1 ? "above 1" : "1";
}
static const char *pp_schedule_word(const struct ku_session *s)
{
    return s->sharding.pp > 1 ? s->cfg.parallel_pp_schedule : "none";
}
static const char *ps_workers_word(const struct ku_session *s)
{
    return s->cfg.ps_workers == KU_NULL ? "null" : "given";
}
static const char *ps_mode_word(const struct ku_session *s)
{
    static const char *const mode[] = {"sync", "async", "ssp"};
    return s->cfg.ps_workers == KU_NULL ? "none" : mode[s->cfg.ps_mode];
}
static const char *ps_compression_word(const struct ku_session *s)
{
    static const char *const form[] = {"none", "int8", "int8_stochastic", "topk"};
    return form[s->cfg.ps_workers == KU_NULL ? 0 : s->cfg.ps_compression];
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
    {"warmup_max_lr", "schedule.warmup_max_lr", warmup_max_lr_word},
    {"momentum", "optimizer.momentum", momentum_word},
    {"compute", "precision.compute", compute_word},
    {"scaler", "loss scaling", scaler_word},
    {"file_offload", "offload to files", file_offload_word},
    {"any_offload", "offload", any_offload_word},
    {"offload_optimizer", "memory.offload.optimizer", offload_optimizer_word},
    {"device", "parallel.device", device_word},
    {"zero", "parallel.zero", zero_word},
    {"host_state", "parallel.host_state", host_state_word},
    {"tp", "parallel.tp", tp_word},
    {"sp", "parallel.sp", sp_word},
    {"pp", "parallel.pp", pp_word},
    {"pp_schedule", "parallel.pp_schedule", pp_schedule_word},
    {"zero_or_offload", "parallel.zero 3 or memory.offload.params", zero_or_offload_word},
    {"depths", "model.depths given", depths_word},
    {"ps_workers", "ps.workers", ps_workers_word},
    {"ps_mode", "ps.mode", ps_mode_word},
    {"ps_compression", "ps.compression", ps_compression_word},
};
enum { N_FACETS = sizeof facets / sizeof facets[0] };

static const struct effect {
    const char *path, *facet, *words, *value;
} effects[] = {
#define EFFECT(path, facet, words, value) {path, #facet, words, value},
#include "config/ineffective_keys.def"
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

/*
 * Whether the user has set the key to another value than the default. Keys that come from a
 * DeepSpeed section are excluded; `kumi help deepspeed` covers them.
 */
static bool is_given(const struct ku_config *c, const struct effect *e)
{
    const json_t *v = ku_json_at(c->root, e->path);
    const struct ku_key *key = ku_key_find(e->path);
    char where[KU_WHERE_BYTES];
    if (v == NULL || json_is_null(v) || ku_deepspeed_where(c, e->path, where))
        return 0;
    if (e->value == NULL)
        return 1;
    KU_ASSERT(e->value[0] || key);
    json_t *own = e->value[0] ? json_loads(e->value, JSON_DECODE_ANY, NULL) : ku_key_default(key);
    const int is_default = own && ku_config_is_same(own, v);
    json_decref(own);
    return !is_default;
}

/* Adds why the key of a row has no effect: "parallel.zero: 0; it is for 3". False: it has one. */
static bool add_reason(const struct ku_session *s, const struct effect *e, struct ku_str *out)
{
    const int is_not = e->words[0] == '!';
    const struct facet *f = facet_of(e);
    const char *word = f->word(s);
    if ((ku_str_find_word(e->words + is_not, word) >= 0) != is_not)
        return false;
    ku_str_add(out, "%s: %s", f->label, word);
    if (!is_not && strcmp(e->words, "yes") != 0 && strcmp(e->words, "no") != 0)
        ku_str_add(out, "; it is for %s", e->words);
    return true;
}

/* The same of all rows of a key. */
static bool add_reason_of(const struct ku_session *s, const char *path, struct ku_str *out)
{
    for (int i = 0; i < N_EFFECTS; i++)
        if (strcmp(effects[i].path, path) == 0 && add_reason(s, &effects[i], out))
            return true;
    return false;
}

int ku_effect_list(const struct ku_session *s, struct ku_str *out)
{
    int n = 0;
    for (int i = 0; i < N_EFFECTS; i++) {
        const char *path = effects[i].path;
        struct ku_str reason = {0};
        if (i > 0 && strcmp(effects[i - 1].path, path) == 0)
            continue;
        if (is_given(&s->cfg, &effects[i]) && add_reason_of(s, path, &reason))
            ku_str_add(out, "%s%s (%s)", n++ ? ", " : "", path, ku_str_get(&reason));
        ku_str_fini(&reason);
    }
    return n;
}

void ku_effect_deepspeed(const struct ku_session *s)
{
    const char *path;
    json_t *value;
    for (uint32_t i = 0; s->cfg.deepspeed && i < s->cfg.deepspeed->n_items; i++) {
        struct ku_ds_item *item = &s->cfg.deepspeed->item[i];
        struct ku_str reason = {0};
        int n_effects = 0;
        json_object_foreach(item->effect, path, value)
        {
            ku_str_add(&reason, reason.bytes ? ", " : "");
            n_effects += !add_reason_of(s, path, &reason);
        }
        if (item->verdict == KU_DS_APPLIED && n_effects == 0) {
            item->verdict = KU_DS_NO_EFFECT;
            ku_free(item->why);
            item->why = ku_strdup(ku_str_get(&reason));
        }
        ku_str_fini(&reason);
    }
}

/*
 * A resumed run uses the schedule end of its checkpoint. Warn if the run now has another length.
 */
static void warn_end(const struct ku_session *s, const struct ku_attrs *a)
{
    const int64_t length = ku_session_schedule_length(s);
    const char *unit = strcmp(s->cfg.schedule_per, "epoch") == 0 ? "epoch" : "step";
    if (!ku_rule_needs_end(&s->cfg) || a->decay == length)
        return;
    KU_MESSAGE(
        WARN,
        "kumi: schedule.decay_steps: the schedule still ends at %s %lld, as in the checkpoint; "
        "the run now ends at %s %lld, with learning rate %g; schedule.decay_steps=%lld with "
        "--allow-change moves the end",
        unit, (long long)a->decay, unit, (long long)length,
        ku_schedule_lr(a, s->n_steps > 0 ? s->n_steps - 1 : 0), (long long)length);
}

/*
 * A final decay that is longer than what follows the warm-up starts below the peak.
 */
static void warn_decay(const struct ku_session *s, const struct ku_attrs *a)
{
    const int64_t left = a->decay - a->warmup;
    const char *unit = strcmp(s->cfg.schedule_per, "epoch") == 0 ? "epoch" : "step";
    if (a->schedule == KU_SCHED_WSD && left > 0 && left < a->step_size)
        KU_MESSAGE(WARN,
                   "kumi: schedule.step_size: the final decay takes %lld %ss, but %lld follow the "
                   "warm-up: it starts at learning rate %g, not at %g; give %lld or fewer",
                   (long long)a->step_size, unit, (long long)left,
                   ku_schedule_lr(a, a->warmup * a->period), a->lr, (long long)left);
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
        KU_MESSAGE(
            WARN,
            "kumi: schedule: the learning rate is 0 in all %lld steps, so nothing is trained; "
            "see optimizer.lr and the keys of schedule.type %s",
            (long long)n, s->cfg.schedule_type);
    else if (warmup >= (double)n && a->schedule != KU_SCHED_NOAM)
        KU_MESSAGE(WARN,
                   "kumi: schedule.%s: the warm-up takes %g steps, the run %lld: the learning rate "
                   "ends at %g before it reaches its peak",
                   has_own ? "warmup_num_steps" : "warmup_steps", warmup, (long long)n, most);
    warn_decay(s, a);
    warn_end(s, a);
}

void ku_effect_warn(const struct ku_session *s)
{
    struct ku_str keys = {0};
    const int n = ku_effect_list(s, &keys);
    if (n > 0)
        KU_MESSAGE(WARN, "kumi: config: %s no effect: %s",
                   n == 1 ? "this key has" : "these keys have", ku_str_get(&keys));
    ku_str_fini(&keys);
    warn_schedule(s);
}
