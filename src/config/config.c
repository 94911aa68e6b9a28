/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a configuration: parses the file, applies --set, merges a DeepSpeed configuration, then
 * checks every key by its row of keys.def and stores it in struct ku_config. Rules between keys are
 * checked last.
 */
#include "config/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/arg.h"
#include "base/err.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "config/deepspeed.h"
#include "config/keys.h"
#include "config/optimizer.h"
#include "config/precision_policy.h"

enum { MAX_CONFIG_BYTES = 16 << 20, MAX_PATH_BYTES = 256, MAX_KEYS = 256 };

static const char *const sections[] = {"model",    "data",      "train",  "optimizer",
                                       "schedule", "precision", "memory", "parallel",
                                       "ps",       "checkpoint"};
enum { N_SECTIONS = sizeof sections / sizeof sections[0] };

const char *ku_config_place(const struct ku_config *o, const char *path, char out[KU_WHERE_BYTES])
{
    int line, column;
    size_t bytes = strlen(path);
    for (int i = o->n_sets - 1; i >= 0; i--) {
        size_t n = strcspn(o->set[i], "="); /* also matches a parent or child */
        size_t common = n < bytes ? n : bytes;
        char next = n < bytes ? path[common] : o->set[i][common];
        if (strncmp(o->set[i], path, common) == 0 && (n == bytes || next == '.' || next == '[')) {
            snprintf(out, KU_WHERE_BYTES, "--set %.200s", o->set[i]);
            return out;
        }
    }
    if (o->doc.text == NULL) { /* a program's options */
        snprintf(out, KU_WHERE_BYTES, "%.200s", o->doc.name);
        return out;
    }
    ku_json_where(&o->doc, path, 0, &line, &column);
    snprintf(out, KU_WHERE_BYTES, "%.200s:%d:%d", o->doc.name, line ? line : 1,
             column ? column : 1);
    return out;
}

const char *ku_config_where(const struct ku_config *o, const char *path, char out[KU_WHERE_BYTES])
{
    const char *key = ku_deepspeed_where(o, path, out);
    return key ? key : ku_config_place(o, path, out);
}

int ku_config_refuse(const struct ku_config *o, const char *path, const json_t *v,
                     const char *wanted)
{
    const size_t as_written = JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15); /* 0.9 */
    char at[KU_WHERE_BYTES], *text = v ? ku_json_print(v, as_written) : NULL;
    int status = KU_ERR(KUMI_EINVAL, "config: %s: %s%s%.80s; %s", ku_config_where(o, path, at),
                        path, *path ? ": " : "", text ? text : "missing", wanted);
    ku_free(text);
    return status;
}

int ku_config_refuse_int(const struct ku_config *o, const char *path, int64_t value,
                         const char *wanted)
{
    json_t *v = json_integer(value);
    int status = ku_config_refuse(o, path, v, wanted);
    json_decref(v);
    return status;
}

int ku_config_refuse_unknown(const struct ku_config *o, const char *path, const char *word,
                             const char *const *names, int n)
{
    char at[KU_WHERE_BYTES];
    const char *near = ku_str_nearest(word, names, n);
    return KU_ERR(KUMI_EINVAL, "config: %s: %s: unknown key%s%s%s", ku_config_where(o, path, at),
                  path, near ? "; did you mean " : "; see `kumi help config`", near ? near : "",
                  near ? "?" : "");
}

int ku_config_find_name(const struct ku_config *o, const char *path, const char *name,
                        const char *const *names, int n)
{
    for (int i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return ku_config_refuse_unknown(o, path, name, names, n);
}

int ku_config_check_rules(const struct ku_config *o, const struct ku_config_rule *rule, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (rule[i].is_wrong)
            return ku_config_refuse(o, rule[i].path, ku_json_at(o->root, rule[i].path),
                                    rule[i].wanted);
    return KUMI_OK;
}

static int check_section(const struct ku_config *o, const char *section, json_t *object)
{
    const char *names[MAX_KEYS], *key;
    json_t *value;
    char path[MAX_PATH_BYTES];
    int n = 0;
    if (!json_is_object(object))
        return ku_config_refuse(o, section, object, "a section is an object");
    for (int i = 0; i < ku_n_keys; i++)
        if (strcmp(ku_keys[i].section, section) == 0 && n < MAX_KEYS)
            names[n++] = ku_keys[i].name;
    json_object_foreach(object, key, value)
    {
        snprintf(path, sizeof path, "%s.%.200s", section, key);
        KU_TRY(ku_config_find_name(o, path, key, names, n));
    }
    return KUMI_OK;
}

static int check_sections(const struct ku_config *o, json_t *root)
{
    const char *name;
    json_t *value;
    json_object_foreach(root, name, value)
    {
        KU_TRY(ku_config_find_name(o, name, name, sections, N_SECTIONS));
        if (strcmp(name, "model") != 0)
            KU_TRY(check_section(o, name, value));
        else if (!json_is_object(value))
            return ku_config_refuse(o, name, value, "a section is an object");
    }
    return KUMI_OK;
}

static int apply_sets(json_t *root, const char *const *set, int n_sets)
{
    for (int i = 0; i < n_sets; i++) {
        const char *eq = strchr(set[i], '=');
        char path[MAX_PATH_BYTES];
        if (eq == NULL || eq == set[i] || (size_t)(eq - set[i]) >= sizeof path)
            return KU_ERR(KUMI_EINVAL, "config: --set %.200s: not of the form section.key=value",
                          set[i]);
        memcpy(path, set[i], (size_t)(eq - set[i]));
        path[eq - set[i]] = '\0';
        json_t *value = json_loads(eq + 1, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
        if (value == NULL)
            value = json_string(eq + 1);
        if (value == NULL)
            return KU_ERR(KUMI_EINVAL, "config: --set %.200s: the value is not UTF-8", set[i]);
        int status = ku_json_set(root, path, value);
        if (status == KUMI_EINVAL)
            return KU_ERR(
                KUMI_EINVAL,
                "config: --set %.200s: the path passes through a value that is not an object",
                set[i]);
        KU_TRY(status);
    }
    return KUMI_OK;
}

/* Pairs of keys with the same meaning: a --set of one removes the other from the file. If --set
 * gives both, they are checked as two keys of a file are. */
static const char *const either[][2] = {{"train.steps", "train.epochs"},
                                        {"parallel.zero", "parallel.strategy"},
                                        {"parallel.host_state", "parallel.share_host_state"}};

static bool is_set(const char *const *set, int n_sets, const char *path)
{
    for (int i = 0; i < n_sets; i++)
        if (strncmp(set[i], path, strlen(path)) == 0 && set[i][strlen(path)] == '=')
            return 1;
    return 0;
}

static int drop_others(json_t *root, const char *const *set, int n_sets)
{
    for (size_t i = 0; i < sizeof either / sizeof either[0]; i++)
        for (int k = 0; k < 2; k++) {
            const char *path = either[i][k], *other = either[i][!k];
            const json_t *v = ku_json_at(root, path);
            const struct ku_key *key = ku_key_find(other);
            if (v && !json_is_null(v) && ku_json_at(root, other) && is_set(set, n_sets, path) &&
                !is_set(set, n_sets, other))
                KU_TRY(ku_json_set(root, other, ku_key_default(key)));
        }
    return KUMI_OK;
}

/* Checks conditions between keys. */
static int check_together(const struct ku_config *cfg)
{
    const struct ku_config_rule rule[] = {
        {cfg->train_steps != KU_NULL && cfg->train_epochs != KU_NULL, "train.epochs",
         "train.steps is given too; give one of them"},
        {strcmp(cfg->precision_compute, "f64") == 0 && strcmp(cfg->parallel_device, "ref") != 0,
         "precision.compute", "f64 is computed by parallel.device \"ref\" alone"},
        {cfg->checkpoint_staging_mb != 0 && !cfg->checkpoint_async, "checkpoint.staging_mb",
         "it is for checkpoint.async true; use 0"},
        {cfg->data_segments && cfg->data_kind && strcmp(cfg->data_kind, "text") != 0 &&
             strcmp(cfg->data_kind, "jsonl") != 0,
         "data.segments", "it is for data.kind text and jsonl; use false"},
        {cfg->data_weights.n > 0 && cfg->data_kind && strcmp(cfg->data_kind, "text") != 0,
         "data.weights", "it is for data.kind text; leave it out"},
        {cfg->data_weights.n > 0 && cfg->data_weights.n != cfg->data_train.n, "data.weights",
         "give one for each entry of data.train"},
    };
    return ku_config_check_rules(cfg, rule, sizeof rule / sizeof rule[0]);
}

static int store_keys(struct ku_config *cfg)
{
    for (int i = 0; i < ku_n_keys; i++) {
        const struct ku_key *key = &ku_keys[i];
        json_t *given = json_object_get(json_object_get(cfg->root, key->section), key->name);
        json_t *value = given ? json_incref(given) : ku_key_default(key);
        int status = value ? ku_key_store(cfg, key, value)
                           : KU_ERR(KUMI_ENOMEM, "config: %s: no memory", key->name);
        json_decref(value);
        KU_TRY(status);
    }
    return KUMI_OK;
}

int ku_config_start(const char *name, struct ku_config *cfg)
{
    *cfg = (struct ku_config){.doc.name = ku_strdup(name), .root = json_object()};
    if (cfg->doc.name && cfg->root)
        return KUMI_OK;
    ku_config_fini(cfg);
    return KU_ERR(KUMI_ENOMEM, "config: no memory");
}

int ku_config_override(struct ku_config *cfg, const char *const *set, int n_sets)
{
    KU_ASSERT(cfg->set == NULL);
    cfg->set = ku_calloc((size_t)n_sets + 1, sizeof *cfg->set);
    if (cfg->set == NULL)
        return KUMI_ENOMEM;
    for (; cfg->n_sets < n_sets; cfg->n_sets++) {
        cfg->set[cfg->n_sets] = ku_strdup(set[cfg->n_sets]);
        if (cfg->set[cfg->n_sets] == NULL)
            return KUMI_ENOMEM;
    }
    KU_TRY(apply_sets(cfg->root, set, n_sets));
    return drop_others(cfg->root, set, n_sets);
}

int ku_config_set(struct ku_config *cfg, const char *path, json_t *value)
{
    if (value == NULL)
        return KU_ERR(KUMI_ENOMEM, "config: %s: no memory", path);
    return ku_json_set(cfg->root, path, value);
}

int ku_config_set_int(struct ku_config *cfg, const char *path, int64_t value)
{
    return ku_config_set(cfg, path, json_integer(value));
}

int ku_config_set_bool(struct ku_config *cfg, const char *path, int value)
{
    return ku_config_set(cfg, path, json_boolean(value));
}

static int check_finite(const struct ku_config *cfg, const char *path, double value)
{
    char at[KU_WHERE_BYTES];
    return isfinite(value) ? KUMI_OK
                           : KU_ERR(KUMI_EINVAL, "config: %s: %s: %g; give a finite number",
                                    ku_config_place(cfg, path, at), path, value);
}

int ku_config_set_number(struct ku_config *cfg, const char *path, double value)
{
    KU_TRY(check_finite(cfg, path, value));
    return ku_config_set(cfg, path, json_real(value));
}

int ku_config_set_pair(struct ku_config *cfg, const char *path, double first, double second)
{
    KU_TRY(check_finite(cfg, path, first));
    KU_TRY(check_finite(cfg, path, second));
    return ku_config_set(cfg, path, json_pack("[f, f]", first, second));
}

static int check_text(const struct ku_config *cfg, const char *path, const char *text)
{
    const unsigned char *at = (const unsigned char *)text, *end = at + strlen(text);
    char place[KU_WHERE_BYTES];
    return ku_utf8_valid(at, end) == (size_t)(end - at)
               ? KUMI_OK
               : KU_ERR(KUMI_EINVAL, "config: %s: %s: %.80s; the string is not UTF-8",
                        ku_config_place(cfg, path, place), path, text);
}

int ku_config_set_text(struct ku_config *cfg, const char *path, const char *value)
{
    KU_TRY(check_text(cfg, path, value));
    return ku_config_set(cfg, path, json_string(value));
}

int ku_config_set_list(struct ku_config *cfg, const char *path, const char *const *list)
{
    json_t *array = json_array();
    int status = KUMI_OK;
    for (int i = 0; list[i] && status == KUMI_OK; i++) {
        status = check_text(cfg, path, list[i]);
        if (status == KUMI_OK && json_array_append_new(array, json_string(list[i])) < 0)
            status = KU_ERR(KUMI_ENOMEM, "config: %s: no memory", path);
    }
    if (status == KUMI_OK)
        return ku_config_set(cfg, path, array);
    json_decref(array);
    return status;
}

bool ku_config_is_over(const struct ku_config *cfg, const char *path)
{
    const int first = cfg->n_sets - cfg->n_over;
    return cfg->n_over > 0 && is_set((const char *const *)cfg->set + first, cfg->n_over, path);
}

/* ku_config_begin; *cfg is all zero but for n_over. */
static int begin(const char *name, const char *text, size_t bytes, const char *const *set,
                 int n_sets, ku_model_width *width, struct ku_config *cfg)
{
    KU_TRY(ku_arg_list("config", "settings.set", set, n_sets));
    KU_ASSERT(cfg->n_over <= n_sets);
    KU_TRY(ku_json_parse(name, text, bytes, &cfg->doc));
    cfg->root = json_incref(cfg->doc.root);
    int status = json_is_object(cfg->root)
                     ? ku_config_override(cfg, set, n_sets)
                     : ku_config_refuse(cfg, "", cfg->root, "a configuration is an object");
    if (status == KUMI_OK)
        status = ku_deepspeed_translate(cfg, width);
    if (status < 0)
        ku_config_fini(cfg);
    return status;
}

int ku_config_begin(const char *name, const char *text, size_t bytes, const char *const *set,
                    int n_sets, ku_model_width *width, struct ku_config *cfg)
{
    memset(cfg, 0, sizeof *cfg);
    return begin(name, text, bytes, set, n_sets, width, cfg);
}

int ku_config_finish(struct ku_config *cfg)
{
    KU_TRY(ku_deepspeed_merge(cfg));
    KU_TRY(check_sections(cfg, cfg->root));
    KU_TRY(store_keys(cfg));
    cfg->model = json_object_get(cfg->root, "model");
    if (cfg->model == NULL)
        return ku_config_refuse(cfg, "model", NULL,
                                "give a model: {\"model_type\":\"gpt2\",..} or {\"path\":DIR}");
    if (cfg->data_train.n == 0)
        return ku_config_refuse(cfg, "data.train", NULL, "give the training files");
    KU_TRY(check_together(cfg));
    KU_TRY(ku_precision_check(cfg));
    return ku_rule_check(cfg);
}

int ku_config_parse(const char *name, const char *text, size_t bytes, const char *const *set,
                    int n_sets, ku_model_width *width, struct ku_config *cfg)
{
    KU_TRY(ku_config_begin(name, text, bytes, set, n_sets, width, cfg));
    int status = ku_config_finish(cfg);
    if (status < 0)
        ku_config_fini(cfg);
    return status;
}

/* ku_config_open; *cfg is all zero but for n_over. */
static int open_file(const char *path, const char *const *set, int n_sets, ku_model_width *width,
                     struct ku_config *cfg)
{
    struct ku_json doc;
    if (path == NULL)
        return KU_ERR(KUMI_EINVAL, "config: no file is given; name one, as in configs/");
    KU_TRY(ku_json_load(path, MAX_CONFIG_BYTES, &doc));
    int status = begin(path, doc.text, doc.bytes, set, n_sets, width, cfg);
    ku_json_fini(&doc);
    return status;
}

int ku_config_open(const char *path, const char *const *set, int n_sets, ku_model_width *width,
                   struct ku_config *cfg)
{
    memset(cfg, 0, sizeof *cfg);
    return open_file(path, set, n_sets, width, cfg);
}

int ku_config_load(const char *path, const char *const *set, int n_sets, ku_model_width *width,
                   struct ku_config *cfg)
{
    return ku_config_load_over(path, set, n_sets, 0, width, cfg);
}

int ku_config_load_over(const char *path, const char *const *set, int n_sets, int n_over,
                        ku_model_width *width, struct ku_config *cfg)
{
    *cfg = (struct ku_config){.n_over = n_over};
    KU_TRY(open_file(path, set, n_sets, width, cfg));
    int status = ku_config_finish(cfg);
    if (status < 0)
        ku_config_fini(cfg);
    return status;
}

void ku_config_fini(struct ku_config *cfg)
{
    for (int i = 0; i < ku_n_keys; i++)
        ku_key_fini(cfg, &ku_keys[i]);
    ku_deepspeed_destroy(cfg->deepspeed);
    for (int i = 0; i < cfg->n_sets; i++)
        ku_free(cfg->set[i]);
    ku_free(cfg->set);
    json_decref(cfg->root);
    ku_json_fini(&cfg->doc);
    memset(cfg, 0, sizeof *cfg);
}

int64_t ku_span_steps(struct ku_span span, int64_t steps_per_epoch)
{
    int64_t steps;
    if (!span.is_epochs || span.n < 0)
        return span.n;
    return __builtin_mul_overflow(span.n, steps_per_epoch, &steps) ? INT64_MAX : steps;
}
