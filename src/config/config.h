/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CONFIG_CONFIG_H
#define KU_CONFIG_CONFIG_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json/json.h"
#include "base/str.h"

/*
 * A run's configuration: a JSON file (docs/reference/configuration.md), overridden by --set
 * options.
 *
 *     file ── json_parse ──┐
 *     --set ───────────────┴─> root ── deepspeed: translate, merge ──> root ── keys.def ──> struct
 *
 * keys.def is the only list of keys; struct ku_config has a member section_key for each of them. A
 * null value is KU_NULL, NaN, NULL, or n < 0. Every message names its place: file:line:column or
 * the --set. The other files of this folder translate sections for the compiler: optimizer.c
 * (optimizer, schedule, loss scale), precision_policy.c, sharding.c (ZeRO), batch_relation.c.
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
/* Keys of a parameter group except match; NaN = not given. "betas" gives beta1 and beta2. */
#define KU_GROUP_KEYS(X)                                                                           \
    X(lr_mult, 0, 1e30)                                                                            \
    X(weight_decay, 0, 1e30) X(eps, 0, 1) X(beta1, 0, 0.9999999) X(beta2, 0, 0.9999999)
struct ku_group {
    struct ku_list match;
#define X(name, least, most) double name;
    KU_GROUP_KEYS(X)
#undef X
};
struct ku_groups {
    struct ku_group *item; /* [n] */
    int n;
};
enum ku_scaling_rule { KU_SCALING_NONE, KU_SCALING_LINEAR, KU_SCALING_SQRT };
struct ku_lr_scaling {
    enum ku_scaling_rule rule;
    int64_t base_batch;
};
/* memory.recompute. KU_REC_BUDGET is resolved by train/recompute_budget.h. */
enum ku_recompute_rule { KU_REC_NONE, KU_REC_SELECTIVE, KU_REC_FULL, KU_REC_BUDGET };
struct ku_recompute_key {
    enum ku_recompute_rule rule;
    int64_t every;     /* full: units per checkpoint */
    double budget_gib; /* budget: GiB per rank */
    struct ku_list match;
};

/* memory.offload: offload targets with the values of enum ku_tier; io: enum ku_aio_kind. */
enum { KU_OFFLOAD_NONE, KU_OFFLOAD_HOST, KU_OFFLOAD_FILE };
struct ku_offload_key {
    int optimizer, params, activations, io, pin;
    char *path;                        /* NULL: none */
    int64_t buffer_count, buffer_size; /* elements */
    double ratio;
};
/* parallel.reshard_after_forward: true, false, or a number of ranks. */
enum { KU_RESHARD_ALL = 0, KU_RESHARD_NONE = 1 };

#define KU_KEY_INT       int64_t
#define KU_KEY_NUM       double
#define KU_KEY_BOOL      int
#define KU_KEY_TEXT      char *
#define KU_KEY_ENUM      char *
#define KU_KEY_LIST      struct ku_list
#define KU_KEY_SPAN      struct ku_span
#define KU_KEY_PAIR      struct ku_pair
#define KU_KEY_SPANS     struct ku_spans
#define KU_KEY_SCALING   struct ku_lr_scaling
#define KU_KEY_NUMBERS   struct ku_numbers
#define KU_KEY_RECOMPUTE struct ku_recompute_key
#define KU_KEY_OFFLOAD   struct ku_offload_key
#define KU_KEY_RESHARD   int64_t
#define KU_KEY_GROUPS    struct ku_groups
#define KU_KEY_SCALE     double /* NaN: null; 0: "dynamic" */
struct ku_config {
#define KEY(section, key, type, value, least, most, mark, help) KU_KEY_##type section##_##key;
#include "config/keys.def"
#undef KEY
    struct ku_deepspeed *deepspeed; /* from the key "deepspeed"; NULL: none */
    json_t *model;          /* section as given: Hugging Face's keys, {"path": DIR}, or both */
    json_t *root;           /* file and --set merged, as given */
    struct ku_json doc;     /* the file, with positions */
    const char *const *set; /* borrowed */
    int n_sets;
};

/* Callback: the model's hidden size, from which DeepSpeed derives "auto" bucket sizes
 * (ku_model_hidden_size). *width 0: the model has none. */
typedef int ku_model_width(const struct ku_config *cfg, int64_t *width);

/*
 * Read and check a configuration file and options.
 *
 *   set     [n_sets] strings "section.key=value", value JSON or else a string; borrowed until
 *           ku_config_fini
 *   width   NULL: DeepSpeed's "auto" bucket sizes are refused
 *
 * Errors: EINVAL, one line with file:line:column (or the --set), the key, the value, and the
 * allowed values or the nearest key.
 */
KU_STATUS ku_config_load(const char *path, const char *const *set, int n_sets,
                         ku_model_width *width, struct ku_config *cfg);
/* The same from a JSON text; name: for messages. */
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
KU_STATUS ku_config_refuse_unknown(const struct ku_config *cfg, const char *path, const char *word,
                                   const char *const *names, int n);
/* parameter_groups.c: reads optimizer.groups. The caller owns *groups, also on failure. */
KU_STATUS ku_config_read_groups(const struct ku_config *cfg, const char *path, const json_t *value,
                                struct ku_groups *groups);
void ku_groups_fini(struct ku_groups *groups);
/* offload_path.c: reads memory.offload. The caller owns *key, also on failure. */
KU_STATUS ku_config_read_offload(const struct ku_config *cfg, const char *path, const json_t *value,
                                 struct ku_offload_key *key);
/* Reads a string or a list of strings. Returns 1 if the value is neither. */
KU_STATUS ku_list_read(struct ku_list *list, const json_t *value);
void ku_list_fini(struct ku_list *list);
/* All keys with their values, including defaults, in table order. New reference; NULL: no
 * memory. */
json_t *ku_config_dump(const struct ku_config *cfg);
/* The numerics keys, as "section.key", and the model. New reference. */
json_t *ku_config_numerics(const struct ku_config *cfg);
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
/* One line per key for `kumi help config`; is_markdown: one table per section, for the document. */
void ku_config_help(int is_markdown, struct ku_str *out);

/* Looks up "section.key"; a longer path finds the object key that contains it. Returns whether it
 * exists. */
struct ku_config_key {
    const char *value, *words; /* default as JSON text; words of an ENUM, else NULL */
    int is_layout;
};
int ku_config_find(const char *path, struct ku_config_key *key);
/* Whether two values are equal; unlike json_equal, 1 equals 1.0. */
bool ku_config_is_same(const json_t *a, const json_t *b);

/* A span in steps. INT64_MAX on overflow; negative (null) values are returned unchanged. */
int64_t ku_span_steps(struct ku_span span, int64_t steps_per_epoch);

#endif
