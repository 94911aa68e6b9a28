/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CONFIG_DEEPSPEED_H
#define KU_CONFIG_DEEPSPEED_H

#include "base/err.h"
#include "config/config.h"

/*
 * A DeepSpeed configuration inside kumi's: the top-level key "deepspeed", an object or the path of
 * a file (base/json/hjson.h). It is translated to kumi's keys, which pass the same checks as keys
 * that a user writes.
 *
 *     "deepspeed": {"zero_optimization": {"stage": 2}}  ──>  parallel.zero = 2
 *
 *     translate   every row of deepspeed.def becomes an item with value, source and verdict;
 *                 applied items collect settings of kumi's keys
 *     merge       the settings enter the configuration; refused items become an error
 *
 * A kumi key that the configuration itself gives must have an equal value, except for implied
 * settings, which it overrides; the settings of a report override all (ku_config_load_over). For an
 * absent DeepSpeed key its DeepSpeed default applies if the kumi key is NUMERICS and its section is
 * given; otherwise kumi's default.
 */
enum ku_ds_source { KU_DS_FILE, KU_DS_DEFAULT, KU_DS_AUTO };
enum ku_ds_verdict { KU_DS_APPLIED, KU_DS_NO_EFFECT, KU_DS_REFUSED, KU_DS_UNKNOWN };
struct ku_ds_item {
    char *key;     /* "zero_optimization.stage", without aliases */
    char *spelled; /* as spelled in the file, to find its position */
    json_t *value;
    enum ku_ds_source source;
    enum ku_ds_verdict verdict;
    json_t *effect; /* {"parallel.zero": 2}, the resulting values; NULL: none */
    char *why;      /* reason of the verdict; NULL: none */
};
struct ku_ds_set { /* a setting of one of kumi's keys */
    char *path;
    json_t *value;
    uint32_t item;
    int is_implied; /* overridden by the configuration and by given keys */
    bool is_own;    /* the value is the configuration's, and messages name its place */
};
struct ku_deepspeed {
    struct ku_json doc; /* the file; name NULL: an object inside kumi's configuration */
    json_t *root;
    ku_model_width *width; /* resolves "auto" sizes; NULL: they are refused */
    int is_strict;         /* "deepspeed_strict": a key that DeepSpeed ignores is an error */
    struct ku_ds_item *item;
    struct ku_ds_set *set;
    uint32_t n_items, n_sets, cap_items, cap_sets;
};

/*
 * Remove "deepspeed" and "deepspeed_strict" from cfg->root and translate them to cfg->deepspeed.
 * Does nothing without the key.
 *
 * Errors: EINVAL, an unreadable file, a wrong type, an unknown key in a section that DeepSpeed
 * checks, keys that contradict each other.
 */
KU_STATUS ku_deepspeed_translate(struct ku_config *cfg, ku_model_width *width);
/* Writes the settings to cfg->root. Errors: EINVAL, a key is refused or contradicts the
 * configuration. */
KU_STATUS ku_deepspeed_merge(struct ku_config *cfg);
void ku_deepspeed_destroy(struct ku_deepspeed *ds);

/* The DeepSpeed key that gave `path` its value, "ds.json:3:5: optimizer.params.lr"; NULL: none, or
 * the configuration gave it. Returns out. */
const char *ku_deepspeed_where(const struct ku_config *cfg, const char *path,
                               char out[KU_WHERE_BYTES]);
/* One message for each key that DeepSpeed ignores. */
void ku_deepspeed_warn(const struct ku_config *cfg);

/* Batch sizes as DeepSpeed derives them. */
struct ku_ds_batch {
    int64_t train, micro, accumulation;
};
/*
 * Check train.{global_batch, micro_batch, accumulation} by DeepSpeed's relation
 * train_batch_size = train_micro_batch_size_per_gpu * gradient_accumulation_steps * n_ranks and
 * derive missing values. KU_DEFAULT_GLOBAL_BATCH applies if a size is "auto" and none is given.
 *
 * Errors: EINVAL, with DeepSpeed's message, the rank count and values that fit.
 */
KU_STATUS ku_deepspeed_batch(const struct ku_config *cfg, int n_ranks, struct ku_ds_batch *batch);

/* Prints all keys with their default and kumi's key. is_markdown: one table per section. */
void ku_deepspeed_help(int is_markdown, struct ku_str *out);
/* Prints the verdict of each key; is_all: also of keys that are not given. */
void ku_deepspeed_print(const struct ku_deepspeed *ds, const char *name, int is_all,
                        struct ku_str *out);
/* The same as JSON, for all keys. New reference; NULL: no memory. */
json_t *ku_deepspeed_json(const struct ku_deepspeed *ds);

#endif
