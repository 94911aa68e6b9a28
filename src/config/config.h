/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CONFIG_CONFIG_H
#define KU_CONFIG_CONFIG_H

#include <jansson.h>
#include <stdint.h>

#include "base/json/json.h"
#include "base/str.h"

/*
 * A run's configuration: one JSON file (docs/reference/configuration.md) and --set options over it.
 * keys.def is the one list of keys; the struct below has a member section_key for each. null is
 * KU_NULL, NaN, NULL, or n < 0.
 */
#define KU_NULL INT64_MIN
struct ku_list {
    char **item;    /* NULL-terminated; NULL = null */
    int n, is_word; /* is_word: one string, not in a list */
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
/* Keys of a parameter group, but match: NaN = not given. betas: two. */
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
/* memory.recompute. A budget is for the solver (train/recompute_budget.h), and the rule is
 * then none. */
enum ku_recompute_rule { KU_REC_NONE, KU_REC_SELECTIVE, KU_REC_FULL, KU_REC_BUDGET };
struct ku_recompute_key {
    enum ku_recompute_rule rule;
    int64_t every;     /* full: units of a group */
    double budget_gib; /* budget: of a rank */
    struct ku_list match;
};

/* memory.offload: where things lie, as enum ku_tier; io as enum ku_aio_kind. */
enum { KU_OFFLOAD_NONE, KU_OFFLOAD_HOST, KU_OFFLOAD_FILE };
struct ku_offload_key {
    int optimizer, params, activations, io, pin;
    char *path;                        /* NULL: none */
    int64_t buffer_count, buffer_size; /* elements */
    double ratio;
};
/* parallel.reshard_after_forward: true, false, or the ranks of a group. */
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
    struct ku_deepspeed *deepspeed; /* where the key "deepspeed" stood; NULL */
    json_t *model;      /* the section as it stands: Hugging Face's keys, {"path": DIR}, or both */
    json_t *root;       /* file and --set together, as the user wrote them */
    struct ku_json doc; /* the file: positions */
    const char *const *set; /* borrowed */
    int n_sets;
};

/*
 * The width of the configured model, by which DeepSpeed sizes buckets that are "auto"
 * (ku_model_hidden_size); *width 0: the model has none.
 */
typedef int ku_model_width(const struct ku_config *cfg, int64_t *width);

/*
 * Reads a file and options.
 *
 *   set   n_sets texts "section.key=value"; the value is JSON, else a string
 *
 *   width  NULL: DeepSpeed's "auto" sizes are refused
 *
 * Errors: KUMI_EINVAL: one line with file:line:column (or the --set), the key, the value, what is
 * allowed or the nearest key.
 */
int ku_config_load(const char *path, const char *const *set, int n_sets, ku_model_width *width,
                   struct ku_config *cfg);
/* From text; name is for messages. */
int ku_config_parse(const char *name, const char *text, size_t bytes, const char *const *set,
                    int n_sets, ku_model_width *width, struct ku_config *cfg);
/* The two halves of these: what the user wrote, with a DeepSpeed configuration translated but not
 * yet counted; and everything checked. A failed second half leaves what there is to fini. */
int ku_config_begin(const char *name, const char *text, size_t bytes, const char *const *set,
                    int n_sets, ku_model_width *width, struct ku_config *cfg);
int ku_config_open(const char *path, const char *const *set, int n_sets, ku_model_width *width,
                   struct ku_config *cfg);
int ku_config_finish(struct ku_config *cfg);
void ku_config_fini(struct ku_config *cfg);

/* Where the configuration has a key, for messages: "file:line:column", or a --set. */
enum { KU_WHERE_BYTES = 512 };
const char *ku_config_place(const struct ku_config *cfg, const char *path,
                            char out[KU_WHERE_BYTES]);
/* The same, or the key of a DeepSpeed configuration that its value comes from. */
const char *ku_config_where(const struct ku_config *cfg, const char *path,
                            char out[KU_WHERE_BYTES]);
/* KUMI_EINVAL for a key that is wrong in a way the table cannot see: "config: file:line:column:
 * path: value; wanted". */
int ku_config_refuse(const struct ku_config *cfg, const char *path, const json_t *value,
                     const char *wanted);
int ku_config_refuse_unknown(const struct ku_config *cfg, const char *path, const char *word,
                             const char *const *names, int n);
/* config_groups.c: optimizer.groups. What was read is the caller's also on failure. */
int ku_config_read_groups(const struct ku_config *cfg, const char *path, const json_t *value,
                          struct ku_groups *groups);
void ku_groups_fini(struct ku_groups *groups);
/* config_offload.c: memory.offload. What was read is the caller's also on failure. */
int ku_config_read_offload(const struct ku_config *cfg, const char *path, const json_t *value,
                           struct ku_offload_key *key);
/* A string or a list of strings: 1: it is none. */
int ku_list_read(struct ku_list *list, const json_t *value);
void ku_list_fini(struct ku_list *list);
/* All keys with their values, defaults included, in the table's order. Owned by the caller; NULL:
 * no memory. */
json_t *ku_config_dump(const struct ku_config *cfg);
/* The numerics keys alone, under "section.key"; with the model. */
json_t *ku_config_numerics(const struct ku_config *cfg);
/* What differs between two of the above, "a (was 1, is 2), b (..)", into out, which is empty at
 * entry. Returns how many. Of objects the members count, as "model.n_layer". 1 and 1.0 are equal. A
 * key that one of them lacks has its default there, so that older checkpoints compare; one that is
 * not in the table differs. */
int ku_config_compare(const json_t *was, const json_t *is, struct ku_str *out);
/* One line a key: for `kumi help config` and the document. is_markdown: rows of a table, per
 * section. */
void ku_config_help(int is_markdown, struct ku_str *out);

/* What the table says of "section.key", or of the object key that a longer path leads into. Returns
 * whether there is such a key. */
struct ku_config_key {
    const char *value, *words; /* default as JSON text; words of an ENUM, else NULL */
    int is_layout;
};
int ku_config_find(const char *path, struct ku_config_key *key);
/* As json_equal, but 1 and 1.0 are one number. */
int ku_config_is_same(const json_t *a, const json_t *b);

/* Steps of a span, given the steps of an epoch. */
int64_t ku_span_steps(struct ku_span span, int64_t steps_per_epoch);

#endif
