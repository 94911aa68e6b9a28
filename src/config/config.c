/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a configuration: parses the file, applies --set, merges a DeepSpeed configuration, then
 * checks every key against the table from keys.def and stores it at its offset in struct ku_config.
 * Rules between keys are checked last.
 */
#include "config/config.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arg.h"
#include "base/err.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "config/deepspeed.h"
#include "config/alternatives.h"
#include "config/precision_policy.h"
#include "config/optimizer.h"

enum { MAX_CONFIG_BYTES = 16 << 20, MAX_PATH_BYTES = 256 };

enum key_type {
    T_INT,
    T_NUM,
    T_BOOL,
    T_TEXT,
    T_ENUM,
    T_LIST,
    T_SPAN,
    T_PAIR,
    T_SPANS,
    T_SCALING,
    T_NUMBERS,
    T_RECOMPUTE,
    T_OFFLOAD,
    T_RESHARD,
    T_GROUPS,
    T_SCALE
};
enum key_mark { NUMERICS, LAYOUT };
struct key_row {
    const char *section, *key;
    enum key_type type;
    const char *value;
    double least, most;
    const char *words; /* of an enum */
    enum key_mark mark;
    const char *help;
    size_t offset;
};
/* The column `most` is the list of values of an ENUM, and a number for other types. */
#define MOST_INT(most)       (most), NULL
#define MOST_NUM(most)       (most), NULL
#define MOST_BOOL(most)      (most), NULL
#define MOST_TEXT(most)      (most), NULL
#define MOST_LIST(most)      (most), NULL
#define MOST_SPAN(most)      (most), NULL
#define MOST_PAIR(most)      (most), NULL
#define MOST_SPANS(most)     (most), NULL
#define MOST_SCALING(most)   (most), NULL
#define MOST_NUMBERS(most)   (most), NULL
#define MOST_RECOMPUTE(most) (most), NULL
#define MOST_OFFLOAD(most)   (most), NULL
#define MOST_RESHARD(most)   (most), NULL
#define MOST_GROUPS(most)    (most), NULL
#define MOST_SCALE(most)     (most), NULL
#define MOST_ENUM(most)      0, (most)
static const struct key_row table[] = {
#define KEY(section, key, type, value, least, most, mark, help)                                    \
    {#section, #key,  T_##type,                                                                    \
     value,    least, MOST_##type(most),                                                           \
     mark,     help,  offsetof(struct ku_config, section##_##key)},
#include "config/keys.def"
#undef KEY
};
enum { N_KEYS = sizeof table / sizeof table[0] };
static const char *const sections[] = {"model",     "data",   "train",    "optimizer", "schedule",
                                       "precision", "memory", "parallel", "checkpoint"};
enum { N_SECTIONS = sizeof sections / sizeof sections[0] };

const char *ku_config_place(const struct ku_config *o, const char *path, char out[KU_WHERE_BYTES])
{
    int line, column;
    size_t bytes = strlen(path);
    for (int i = o->n_sets - 1; i >= 0; i--) {
        size_t n = strcspn(o->set[i], "="); /* also matches a parent or child */
        size_t least = n < bytes ? n : bytes;
        char next = n < bytes ? path[least] : o->set[i][least];
        if (strncmp(o->set[i], path, least) == 0 && (n == bytes || next == '.' || next == '[')) {
            snprintf(out, MAX_PATH_BYTES + 64, "--set %.200s", o->set[i]);
            return out;
        }
    }
    ku_json_where(&o->doc, path, 0, &line, &column);
    snprintf(out, MAX_PATH_BYTES + 64, "%.200s:%d:%d", o->doc.name, line ? line : 1,
             column ? column : 1);
    return out;
}

const char *ku_config_where(const struct ku_config *o, const char *path, char out[KU_WHERE_BYTES])
{
    const char *theirs = ku_deepspeed_where(o, path, out);
    return theirs ? theirs : ku_config_place(o, path, out);
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

int ku_config_refuse_unknown(const struct ku_config *o, const char *path, const char *word,
                             const char *const *names, int n)
{
    char at[KU_WHERE_BYTES];
    const char *near = ku_str_nearest(word, names, n);
    return KU_ERR(KUMI_EINVAL, "config: %s: %s: unknown key%s%s%s", ku_config_where(o, path, at),
                  path, near ? "; did you mean " : "; see `kumi help config`", near ? near : "",
                  near ? "?" : "");
}

static bool is_word_of(const char *words, const char *word)
{
    size_t bytes = strlen(word);
    for (const char *p = words; *p; p += *p == ' ') {
        size_t n = strcspn(p, " ");
        if (n == bytes && memcmp(p, word, n) == 0)
            return 1;
        p += n;
    }
    return 0;
}

static const char *range_text(const struct key_row *row, char out[160])
{
    if (row->type == T_ENUM)
        snprintf(out, 160, "one of: %s%s", row->words,
                 strcmp(row->value, "null") == 0 ? " (or null)" : "");
    else
        snprintf(out, 160, "%s from %.15g to %.15g", row->type == T_INT ? "an integer" : "a number",
                 row->least, row->most);
    return out;
}

/* Refuses the value of an ENUM; for a name of another system the message tells the alternative. */
static int refuse_word(const struct ku_config *o, const struct key_row *row, const char *path,
                       const json_t *v)
{
    char text[160], wanted[256];
    const char *known = json_is_string(v) ? ku_known_elsewhere(path, json_string_value(v)) : NULL;
    snprintf(wanted, sizeof wanted, "%s%s%s", known ? known : "", known ? "; " : "",
             range_text(row, text));
    return ku_config_refuse(o, path, v, wanted);
}

static int set_span(struct ku_span *span, const json_t *v)
{
    const char *text = json_string_value(v);
    if (text) {
        char *end;
        errno = 0;
        span->n = strtoll(text, &end, 10);
        span->is_epochs = 1;
        return *text < '1' || *text > '9' || strcmp(end, "ep") != 0 || errno == ERANGE;
    }
    return ku_json_int(v, &span->n) < 0 || span->n < 0;
}

/* Ascending spans, all in steps or all in epochs. Returns 1 if they are not. */
static int set_spans(struct ku_spans *spans, const json_t *v)
{
    size_t n = json_array_size(v);
    if (!json_is_array(v) || n > KU_MAX_SPANS)
        return 1;
    for (size_t i = 0; i < n; i++) {
        struct ku_span *s = &spans->item[i];
        if (set_span(s, json_array_get(v, i)) || s->n < 1 ||
            (i && (s->n <= s[-1].n || s->is_epochs != s[-1].is_epochs)))
            return 1;
    }
    spans->n = (int)n;
    return 0;
}

static int set_scaling(struct ku_lr_scaling *s, const json_t *v)
{
    const char *rule = json_string_value(json_object_get(v, "rule"));
    s->rule = rule && strcmp(rule, "linear") == 0 ? KU_SCALING_LINEAR
              : rule && strcmp(rule, "sqrt") == 0 ? KU_SCALING_SQRT
                                                  : KU_SCALING_NONE;
    return s->rule == KU_SCALING_NONE || json_object_size(v) != 2 ||
           ku_json_int(json_object_get(v, "base_batch"), &s->base_batch) < 0 || s->base_batch < 1;
}

/* A string, or an object with exactly one of policy, every and budget_gib, and optionally match.
 * Each key counts 1 and a valid value 4, so that a correct object counts 5. */
static int set_recompute(struct ku_recompute_key *r, const json_t *v)
{
    const json_t *policy = json_is_object(v) ? json_object_get(v, "policy") : v,
                 *every = json_object_get(v, "every"), *budget = json_object_get(v, "budget_gib"),
                 *match = json_object_get(v, "match");
    static const char *const words[] = {"none", "selective", "full", NULL};
    const char *word = json_string_value(policy);
    int n_ways = (policy != NULL) + (every != NULL) + (budget != NULL);
    for (int i = 0; word && words[i]; i++)
        if (strcmp(words[i], word) == 0) {
            r->rule = (enum ku_recompute_rule)i;
            n_ways += 4;
        }
    r->every = 1;
    if (every) {
        r->rule = KU_REC_FULL;
        n_ways +=
            ku_json_int(every, &r->every) == 0 && r->every >= 1 && r->every <= 1000000 ? 4 : 0;
    }
    if (budget) {
        r->rule = KU_REC_BUDGET;
        r->budget_gib = json_number_value(budget);
        n_ways += json_is_number(budget) && r->budget_gib > 0 ? 4 : 0;
    }
    if (n_ways != 5 || (json_is_object(v) && json_object_size(v) != 1 + (size_t)(match != NULL)))
        return 1;
    return match ? ku_list_read(&r->match, match) : KUMI_OK;
}

static int set_number(const struct ku_config *o, const struct key_row *row, const char *path,
                      const json_t *v, void *member)
{
    char text[160];
    int64_t whole = 0;
    double real = json_is_number(v) ? json_number_value(v) : (double)NAN;
    int is_whole = row->type == T_INT || row->type == T_RESHARD;
    if (is_whole && ku_json_int(v, &whole) < 0)
        real = (double)NAN;
    if (!(real >= row->least && real <= row->most))
        return ku_config_refuse(o, path, v, range_text(row, text));
    if (is_whole)
        *(int64_t *)member = whole;
    else
        *(double *)member = real;
    return KUMI_OK;
}

/* precision.loss_scale; "dynamic" is stored as 0. */
static int set_scale(const struct ku_config *o, const char *path, const json_t *v, double *scale)
{
    const char *word = json_string_value(v);
    *scale = json_number_value(v);
    if (word ? strcmp(word, "dynamic") == 0 : *scale > 0 && *scale <= 0x1p126)
        return KUMI_OK;
    return ku_config_refuse(o, path, v, "\"dynamic\", or a number above 0");
}

static int set_pair(const struct ku_config *o, const struct key_row *row, const char *path,
                    const json_t *v, struct ku_pair *pair)
{
    for (size_t i = 0; i < 2; i++) {
        const json_t *x = json_array_size(v) == 2 ? json_array_get(v, i) : NULL;
        pair->v[i] = json_is_number(x) ? json_number_value(x) : -1;
        if (!(pair->v[i] >= row->least && pair->v[i] <= row->most))
            return ku_config_refuse(o, path, v, "two numbers in [0, 1)");
    }
    return KUMI_OK;
}

static int set_numbers(const struct ku_config *o, const struct key_row *row, const char *path,
                       const json_t *v, struct ku_numbers *list)
{
    char wanted[128];
    size_t n = json_array_size(v);
    snprintf(wanted, sizeof wanted, "a list of numbers from %.15g to %.15g", row->least, row->most);
    if (n == 0)
        return ku_config_refuse(o, path, v, wanted);
    list->v = ku_calloc(n, sizeof *list->v);
    if (list->v == NULL)
        return KUMI_ENOMEM;
    list->n = (int)n;
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(v, i);
        list->v[i] = json_is_number(x) ? json_number_value(x) : (double)NAN;
        if (!(list->v[i] >= row->least && list->v[i] <= row->most))
            return ku_config_refuse(o, path, v, wanted);
    }
    return KUMI_OK;
}

/* Stores null, for keys whose default is null. */
static void set_null(const struct key_row *row, void *member)
{
    switch (row->type) {
    case T_INT:
        *(int64_t *)member = KU_NULL;
        return;
    case T_NUM:
    case T_SCALE:
        *(double *)member = (double)NAN;
        return;
    case T_SPAN:
        ((struct ku_span *)member)->n = -1;
        return;
    case T_BOOL:
    case T_TEXT:
    case T_ENUM:
    case T_LIST:
    case T_PAIR:
    case T_SPANS:
    case T_SCALING:
    case T_NUMBERS:
    case T_RECOMPUTE:
    case T_OFFLOAD:
    case T_RESHARD:
    case T_GROUPS:
        return; /* already zero */
    }
}

/* true, false, or a number of ranks. */
static int set_reshard(const struct ku_config *o, const struct key_row *row, const char *path,
                       const json_t *v, int64_t *to)
{
    if (!json_is_boolean(v))
        return set_number(o, row, path, v, to);
    *to = json_is_true(v) ? KU_RESHARD_ALL : KU_RESHARD_NONE;
    return KUMI_OK;
}

static int set_interval(const struct ku_config *o, const struct key_row *row, const char *path,
                        const json_t *v, struct ku_span *span)
{
    if (set_span(span, v) == 0 && (double)span->n >= row->least)
        return KUMI_OK;
    return ku_config_refuse(o, path, v,
                            row->least > 0 ? "a number of steps, at least 1, or \"10ep\""
                                           : "a number of steps, or \"10ep\"");
}

static int set_member(const struct ku_config *o, const struct key_row *row, const json_t *v,
                      struct ku_config *cfg)
{
    char path[MAX_PATH_BYTES];
    void *member = (char *)cfg + row->offset;
    snprintf(path, sizeof path, "%s.%s", row->section, row->key);
    if (json_is_null(v)) {
        if (strcmp(row->value, "null") != 0)
            return ku_config_refuse(o, path, v, "null is not allowed here");
        set_null(row, member);
        return KUMI_OK;
    }
    switch (row->type) {
    case T_INT:
    case T_NUM:
        return set_number(o, row, path, v, member);
    case T_SCALE:
        return set_scale(o, path, v, member);
    case T_PAIR:
        return set_pair(o, row, path, v, member);
    case T_NUMBERS:
        return set_numbers(o, row, path, v, member);
    case T_GROUPS:
        return ku_config_read_groups(o, path, v, member);
    case T_OFFLOAD:
        return ku_config_read_offload(o, path, v, member);
    case T_RESHARD:
        return set_reshard(o, row, path, v, member);
    case T_BOOL:
        if (!json_is_boolean(v))
            return ku_config_refuse(o, path, v, "true or false");
        *(int *)member = json_is_true(v);
        return KUMI_OK;
    case T_ENUM:
        if (!json_is_string(v) || !is_word_of(row->words, json_string_value(v)))
            return refuse_word(o, row, path, v);
        __attribute__((fallthrough));
    case T_TEXT:
        if (!json_is_string(v))
            return ku_config_refuse(o, path, v, "a string");
        *(char **)member = ku_strdup(json_string_value(v));
        return *(char **)member ? KUMI_OK : KUMI_ENOMEM;
    case T_LIST: {
        int status = ku_list_read(member, v);
        return status > 0 ? ku_config_refuse(o, path, v, "a string or a list of strings") : status;
    }
    case T_SPAN:
        return set_interval(o, row, path, v, member);
    case T_SPANS:
        return set_spans(member, v)
                   ? ku_config_refuse(o, path, v,
                                      "at most 16 numbers of steps, or all as \"10ep\", ascending")
                   : KUMI_OK;
    case T_SCALING:
        return set_scaling(member, v)
                   ? ku_config_refuse(o, path, v,
                                      "{\"rule\": \"linear\" or \"sqrt\", \"base_batch\": 256}")
                   : KUMI_OK;
    case T_RECOMPUTE: {
        int status = set_recompute(member, v);
        return status > 0 ? ku_config_refuse(o, path, v,
                                             "\"none\", \"selective\", \"full\", {\"every\": 2}, "
                                             "{\"budget_gib\": 4} or {\"policy\": \"full\", "
                                             "\"match\": [\"h.*\"]}")
                          : status;
    }
    }
    return KUMI_OK;
}

static int check_section(const struct ku_config *o, const char *section, json_t *object)
{
    const char *names[N_KEYS], *key;
    json_t *value;
    char path[MAX_PATH_BYTES];
    int n = 0;
    if (!json_is_object(object))
        return ku_config_refuse(o, section, object, "a section is an object");
    for (int i = 0; i < N_KEYS; i++)
        if (strcmp(table[i].section, section) == 0)
            names[n++] = table[i].key;
    json_object_foreach(object, key, value)
    {
        int known = 0;
        for (int i = 0; i < n; i++)
            known |= strcmp(names[i], key) == 0;
        snprintf(path, sizeof path, "%s.%.200s", section, key);
        if (!known)
            return ku_config_refuse_unknown(o, path, key, names, n);
    }
    return KUMI_OK;
}

static int check_sections(const struct ku_config *o, json_t *root)
{
    const char *name;
    json_t *value;
    if (!json_is_object(root))
        return ku_config_refuse(o, "", root, "a configuration is an object");
    json_object_foreach(root, name, value)
    {
        int known = 0;
        for (int i = 0; i < N_SECTIONS; i++)
            known |= strcmp(sections[i], name) == 0;
        if (!known)
            return ku_config_refuse_unknown(o, name, name, sections, N_SECTIONS);
        if (strcmp(name, "model") == 0 ? !json_is_object(value) : 0)
            return ku_config_refuse(o, name, value, "a section is an object");
        if (strcmp(name, "model") != 0)
            KU_TRY(check_section(o, name, value));
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
                                        {"parallel.zero", "parallel.strategy"}};

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
            if (v && !json_is_null(v) && ku_json_at(root, other) && is_set(set, n_sets, path) &&
                !is_set(set, n_sets, other))
                KU_TRY(ku_json_set(root, other, json_null()));
        }
    return KUMI_OK;
}

/* Checks conditions between keys. */
static int check_together(const struct ku_config *cfg)
{
    const struct {
        int is_wrong;
        const char *path, *wanted;
    } rule[] = {
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
    for (size_t i = 0; i < sizeof rule / sizeof rule[0]; i++)
        if (rule[i].is_wrong)
            return ku_config_refuse(cfg, rule[i].path, ku_json_at(cfg->root, rule[i].path),
                                    rule[i].wanted);
    return KUMI_OK;
}

static int read_keys(struct ku_config *cfg)
{
    const struct ku_config *o = cfg;
    for (int i = 0; i < N_KEYS; i++) {
        const struct key_row *row = &table[i];
        json_t *v = json_object_get(json_object_get(cfg->root, row->section), row->key),
               *own = NULL;
        if (v == NULL)
            v = own = json_loads(row->value, JSON_DECODE_ANY, NULL);
        int status =
            v ? set_member(o, row, v, cfg) : KU_ERR(KUMI_EBUG, "config: %s: default", row->key);
        json_decref(own);
        KU_TRY(status);
    }
    cfg->model = json_object_get(cfg->root, "model");
    if (cfg->model == NULL)
        return ku_config_refuse(o, "model", NULL,
                                "give a model: {\"model_type\":\"gpt2\",..} or {\"path\":DIR}");
    if (cfg->data_train.n == 0)
        return ku_config_refuse(o, "data.train", NULL, "give the training files");
    KU_TRY(check_together(cfg));
    KU_TRY(ku_precision_check(cfg));
    return ku_rule_check(cfg);
}

int ku_config_begin(const char *name, const char *text, size_t bytes, const char *const *set,
                    int n_sets, ku_model_width *width, struct ku_config *cfg)
{
    memset(cfg, 0, sizeof *cfg);
    KU_TRY(ku_arg_list("config", "settings.set", set, n_sets));
    KU_TRY(ku_json_parse(name, text, bytes, &cfg->doc));
    cfg->set = set;
    cfg->n_sets = n_sets;
    cfg->root = json_incref(cfg->doc.root);
    int status = KUMI_OK;
    if (!json_is_object(cfg->root))
        status = ku_config_refuse(cfg, "", cfg->root, "a configuration is an object");
    if (status == KUMI_OK)
        status = apply_sets(cfg->root, set, n_sets);
    if (status == KUMI_OK)
        status = drop_others(cfg->root, set, n_sets);
    if (status == KUMI_OK)
        status = ku_deepspeed_translate(cfg, width);
    if (status < 0)
        ku_config_fini(cfg);
    return status;
}

int ku_config_finish(struct ku_config *cfg)
{
    KU_TRY(ku_deepspeed_merge(cfg));
    KU_TRY(check_sections(cfg, cfg->root));
    return read_keys(cfg);
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

int ku_config_open(const char *path, const char *const *set, int n_sets, ku_model_width *width,
                   struct ku_config *cfg)
{
    struct ku_json doc;
    memset(cfg, 0, sizeof *cfg);
    if (path == NULL)
        return KU_ERR(KUMI_EINVAL, "config: no file is given; name one, as in configs/");
    KU_TRY(ku_json_load(path, MAX_CONFIG_BYTES, &doc));
    int status = ku_config_begin(path, doc.text, doc.bytes, set, n_sets, width, cfg);
    ku_json_fini(&doc);
    return status;
}

int ku_config_load(const char *path, const char *const *set, int n_sets, ku_model_width *width,
                   struct ku_config *cfg)
{
    KU_TRY(ku_config_open(path, set, n_sets, width, cfg));
    int status = ku_config_finish(cfg);
    if (status < 0)
        ku_config_fini(cfg);
    return status;
}

void ku_config_fini(struct ku_config *cfg)
{
    for (int i = 0; i < N_KEYS; i++) {
        void *member = (char *)cfg + table[i].offset;
        if (table[i].type == T_TEXT || table[i].type == T_ENUM)
            ku_free(*(char **)member);
        if (table[i].type == T_NUMBERS)
            ku_free(((struct ku_numbers *)member)->v);
        if (table[i].type == T_LIST)
            ku_list_fini(member);
        if (table[i].type == T_RECOMPUTE)
            ku_list_fini(&((struct ku_recompute_key *)member)->match);
        if (table[i].type == T_OFFLOAD)
            ku_free(((struct ku_offload_key *)member)->path);
        if (table[i].type == T_GROUPS)
            ku_groups_fini(member);
    }
    ku_deepspeed_destroy(cfg->deepspeed);
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
