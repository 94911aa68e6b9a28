/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CONFIG_CONFIG_H
#define KU_CONFIG_CONFIG_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json/json.h"
#include "base/str.h"
#include "ir/graph.h"
#include "op/dtype_rule.h"
#include "op/tensor_plan.h"

/*
 * A run's configuration: a JSON file (docs/reference/configuration.md), overridden by --set
 * options.
 *
 *     file ── json_parse ────────────┐
 *     --set ─────────────────────────┼─> root ── keys.def: check, store ──> struct
 *     deepspeed: translate ─> setters┤
 *     options of a program ─> setters┘
 *
 * keys.def is the only list of keys; struct ku_config has a member section_key for each of them. A
 * null value is KU_NULL, NaN, NULL, or n < 0 (key_types.def). Every message names its place:
 * file:line:column or the --set. keys.c has the table, key_types.c the readers. optimizer.c
 * (optimizer, schedule, loss scale), precision_policy.c, sharding.c (ZeRO) and batch_relation.c
 * translate sections for the compiler.
 */
#define KU_NULL INT64_MIN
struct ku_list {
    char **item;    /* NULL-terminated; NULL = null */
    int n, is_word; /* is_word: a single string, not a list */
};
struct ku_span {
    int64_t n; /* steps, or epochs */
    int is_epochs;
};
struct ku_pair {
    double v[2];
};
enum { KU_MAX_SPANS = 16 };
struct ku_spans {
    int n;
    struct ku_span item[KU_MAX_SPANS]; /* ascending */
};
struct ku_numbers {
    double *v; /* [n]; NULL = null */
    int n;
};
/* optimizer.groups: keys that parameters whose names match have of their own; NaN: not given. */
struct ku_group {
    struct ku_list match;
    double lr_mult, weight_decay, eps;
    struct ku_pair betas;
};
struct ku_groups {
    struct ku_group *item; /* [n] */
    int n;
};
/* precision.modules: the rules, and the lists that their patterns stand in. */
struct ku_modules_key {
    struct ku_precision_rules rules;
    struct ku_list *match; /* [rules.n] */
};
enum ku_scaling_rule { KU_SCALING_NONE, KU_SCALING_LINEAR, KU_SCALING_SQRT };
struct ku_lr_scaling {
    enum ku_scaling_rule rule;
    int64_t base_batch;
};
/* memory.recompute. KU_REC_BUDGET is resolved by ku_session_solve_recompute. */
enum ku_recompute_rule { KU_REC_NONE, KU_REC_SELECTIVE, KU_REC_FULL, KU_REC_BUDGET };
struct ku_recompute_key {
    enum ku_recompute_rule rule;
    int64_t every;     /* full: units per checkpoint */
    double budget_gib; /* budget: GiB per rank */
    struct ku_list match;
};

/* memory.offload: enum ku_offload_target, of each kind of data; io: enum ku_aio_kind. */
struct ku_offload_key {
    int optimizer, params, activations, io, pin;
    char *path;                        /* NULL: none */
    int64_t buffer_count, buffer_size; /* elements */
    double ratio;
};
/* parallel.reshard_after_forward: true, false, or a number of ranks. */
enum { KU_RESHARD_ALL = 0, KU_RESHARD_NONE = 1 };

#define TYPE(name, member, null, reader, finisher) typedef member ku_key_##name;
#include "config/key_types.def"
#undef TYPE
struct ku_config {
#define KEY(section, key, type, value, allowed, mark, visibility, help)                            \
    ku_key_##type section##_##key;
#include "config/keys.def"
#undef KEY
    struct ku_deepspeed *deepspeed; /* from the key "deepspeed"; NULL: none */
    json_t *model;      /* section as given: Hugging Face's keys, {"path": DIR}, or both */
    json_t *root;       /* file and --set merged, as given */
    struct ku_json doc; /* the file, with positions */
    char **set;         /* [n_sets] of --set, for messages */
    int n_sets, n_over; /* the last n_over of set also override the DeepSpeed configuration */
};

/* Callback: the model's hidden size, from which DeepSpeed derives "auto" bucket sizes
 * (ku_model_hidden_size). *width 0: the model has none. */
typedef int ku_model_width(const struct ku_config *cfg, int64_t *width);

/*
 * Read and check a configuration file and options.
 *
 *   set     [n_sets] strings "section.key=value", value JSON or else a string
 *   width   NULL: DeepSpeed's "auto" bucket sizes are refused
 *
 * Errors: EINVAL, one line with file:line:column (or the --set), the key, the value, and the
 * allowed values or the nearest key.
 */
KU_STATUS ku_config_load(const char *path, const char *const *set, int n_sets,
                         ku_model_width *width, struct ku_config *cfg);
/*
 * The same for a report that plans a configuration under settings of its own. The last n_over of
 * the settings also override the DeepSpeed configuration, which a --set may not contradict.
 */
KU_STATUS ku_config_load_over(const char *path, const char *const *set, int n_sets, int n_over,
                              ku_model_width *width, struct ku_config *cfg);
/* The same as ku_config_load from a JSON text; name: for messages. */
KU_STATUS ku_config_parse(const char *name, const char *text, size_t bytes, const char *const *set,
                          int n_sets, ku_model_width *width, struct ku_config *cfg);
/* The two halves of these. begin, open: parse, apply --set, translate the DeepSpeed configuration
 * without merging it. finish: merge it and check everything; if it fails, the caller still calls
 * ku_config_fini. */
KU_STATUS ku_config_begin(const char *name, const char *text, size_t bytes, const char *const *set,
                          int n_sets, ku_model_width *width, struct ku_config *cfg);
KU_STATUS ku_config_open(const char *path, const char *const *set, int n_sets,
                         ku_model_width *width, struct ku_config *cfg);
KU_STATUS ku_config_finish(struct ku_config *cfg);
/*
 * A configuration without a file: start, give values with the setters, override, finish. A setter
 * records a value as a line of a file does, and finish checks and stores it by the key's row.
 *
 *   name   in place of "file:line:column" in messages
 *   path   "section.key"
 *
 * Errors: EINVAL (a number that is not finite, a string that is not UTF-8), ENOMEM.
 */
KU_STATUS ku_config_start(const char *name, struct ku_config *cfg);
KU_STATUS ku_config_set_int(struct ku_config *cfg, const char *path, int64_t value);
KU_STATUS ku_config_set_bool(struct ku_config *cfg, const char *path, int value);
KU_STATUS ku_config_set_number(struct ku_config *cfg, const char *path, double value);
KU_STATUS ku_config_set_pair(struct ku_config *cfg, const char *path, double first, double second);
KU_STATUS ku_config_set_text(struct ku_config *cfg, const char *path, const char *value);
/* list: NULL-terminated */
KU_STATUS ku_config_set_list(struct ku_config *cfg, const char *path, const char *const *list);
/* Any value, also of a member of a key; takes the reference. NULL: ENOMEM. */
KU_STATUS ku_config_set(struct ku_config *cfg, const char *path, json_t *value);
/* Applies --set options; of two keys with the same meaning the one that is set replaces the
 * other. Once per configuration. */
KU_STATUS ku_config_override(struct ku_config *cfg, const char *const *set, int n_sets);
/* Whether one of the last n_over settings gives the key. */
bool ku_config_is_over(const struct ku_config *cfg, const char *path);
void ku_config_fini(struct ku_config *cfg);

/* The place of a key for messages: "file:line:column", or the --set. Returns out. */
enum { KU_WHERE_BYTES = 512 };
const char *ku_config_place(const struct ku_config *cfg, const char *path,
                            char out[KU_WHERE_BYTES]);
/* The same, or the place of the DeepSpeed key that the value comes from. */
const char *ku_config_where(const struct ku_config *cfg, const char *path,
                            char out[KU_WHERE_BYTES]);
/* Sets the error "config: file:line:column: path: value; wanted". Returns KUMI_EINVAL. */
KU_STATUS ku_config_refuse(const struct ku_config *cfg, const char *path, const json_t *value,
                           const char *wanted);
/* The same for a number that was derived from the given values. */
KU_STATUS ku_config_refuse_int(const struct ku_config *cfg, const char *path, int64_t value,
                               const char *wanted);
KU_STATUS ku_config_refuse_unknown(const struct ku_config *cfg, const char *path, const char *word,
                                   const char *const *names, int n);
/* The index of a name, or a refusal that names the nearest. */
KU_STATUS ku_config_find_name(const struct ku_config *cfg, const char *path, const char *name,
                              const char *const *names, int n);
/* A condition between keys that a configuration breaks if is_wrong; the message names `path`. */
struct ku_config_rule {
    int is_wrong;
    const char *path, *wanted;
};
/* Refuses the first broken rule. */
KU_STATUS ku_config_check_rules(const struct ku_config *cfg, const struct ku_config_rule *rule,
                                size_t n);
/* All keys with their values, including defaults, in table order. New reference; NULL: no
 * memory. */
json_t *ku_config_dump(const struct ku_config *cfg);
/* The numerics keys, as "section.key", and the model; all keys. New references. */
json_t *ku_config_numerics(const struct ku_config *cfg);
json_t *ku_config_keys(const struct ku_config *cfg);
/*
 * Compare two sets of numerics keys. Writes the differences to out, "a (was 1, is 2), b (..)".
 * Objects are compared by member ("model.n_layer"); 1 and 1.0 are equal. A missing key has its
 * default, so that older checkpoints compare; a missing key that is not in the table differs.
 *
 *   out   empty at entry
 *
 * Returns the number of differences.
 */
int ku_config_compare(const json_t *was, const json_t *is, struct ku_str *out);
/* The same with other words than "was " and "is " before the values of the two */
int ku_config_compare_sides(const json_t *was, const json_t *is, const char *const side[2],
                            struct ku_str *out);
/* One line per key for `kumi help config`; is_markdown: one table per section, for the document. */
void ku_config_help(int is_markdown, struct ku_str *out);

/* Whether two values are equal; unlike json_equal, 1 equals 1.0. */
bool ku_config_is_same(const json_t *a, const json_t *b);

/* A span in steps. INT64_MAX on overflow; negative (null) values are returned unchanged. */
int64_t ku_span_steps(struct ku_span span, int64_t steps_per_epoch);

#endif
