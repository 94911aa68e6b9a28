/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CONFIG_DEEPSPEED_H
#define KU_CONFIG_DEEPSPEED_H

#include "config/config.h"

/*
 * A DeepSpeed configuration beside kumi's: the top-level key "deepspeed", an object or the path of
 * a file (base/json/hjson.h). deepspeed.def is the one list of its keys. It is translated to keys
 * of kumi's own, which pass through the same checks as those that a user writes; what the
 * configuration itself says has to agree. A key that DeepSpeed gives a default counts with that
 * default where it decides numbers, and where it is layout with kumi's.
 */
enum ku_ds_source { KU_DS_FILE, KU_DS_DEFAULT, KU_DS_AUTO };
enum ku_ds_verdict { KU_DS_APPLIED, KU_DS_NO_EFFECT, KU_DS_REFUSED, KU_DS_UNKNOWN };
struct ku_ds_item {
    char *key;     /* "zero_optimization.stage", by its own name */
    char *spelled; /* as it stands in the file, for its place */
    json_t *value;
    enum ku_ds_source source;
    enum ku_ds_verdict verdict;
    json_t *effect; /* {"parallel.zero": 2}, what counts now; NULL: nothing */
    char *why;      /* of the verdict; NULL: nothing to say */
};
struct ku_ds_set { /* a key that takes its value from here */
    char *path;
    json_t *value;
    uint32_t item;
    int is_implied; /* gives way */
};
struct ku_deepspeed {
    struct ku_json doc; /* the file; name NULL: the object stands in kumi's configuration */
    json_t *root;
    ku_model_width *width; /* fills "auto" in; NULL: nothing does */
    int is_strict;         /* "deepspeed_strict": a key that DeepSpeed ignores is an error */
    struct ku_ds_item *item;
    struct ku_ds_set *set;
    uint32_t n_items, n_sets, cap_items, cap_sets;
};

/*
 * Takes "deepspeed" and "deepspeed_strict" out of cfg->root and translates what they say into
 * cfg->deepspeed. Without the key nothing happens.
 *
 * Errors: KUMI_EINVAL: what is wrong in any build: a file that cannot be read, a type, an unknown
 * key in a block that DeepSpeed checks, keys that contradict each other.
 */
int ku_deepspeed_translate(struct ku_config *cfg, ku_model_width *width);
/* Puts the keys that it sets into cfg->root. Errors: KUMI_EINVAL: a key is refused, or contradicts
 * the configuration. */
int ku_deepspeed_merge(struct ku_config *cfg);
void ku_deepspeed_destroy(struct ku_deepspeed *ds);

/* "ds.json:3:5: optimizer.params.lr", where the key at `path` comes from; NULL: not from here. */
const char *ku_deepspeed_where(const struct ku_config *cfg, const char *path,
                               char out[KU_WHERE_BYTES]);
/* A line on stderr for each key that DeepSpeed ignores. */
void ku_deepspeed_warn(const struct ku_config *cfg);

/* The batch as DeepSpeed solves it. */
struct ku_ds_batch {
    int64_t train, micro, accumulation;
};
/*
 * Holds train.{global_batch, micro_batch, accumulation} against DeepSpeed's relation,
 * train_batch_size = train_micro_batch_size_per_gpu * gradient_accumulation_steps * n_ranks.
 * Errors: KUMI_EINVAL with DeepSpeed's sentence, the rank count seen and what would fit.
 */
int ku_deepspeed_batch(const struct ku_config *cfg, int n_ranks, struct ku_ds_batch *batch);

/* Every key with its default and what it becomes. is_markdown: tables, one a block. */
void ku_deepspeed_help(int is_markdown, struct ku_str *out);
/* What became of each key; is_all: also of those that nobody gave. */
void ku_deepspeed_print(const struct ku_deepspeed *ds, const char *name, int is_all,
                        struct ku_str *out);
/* The same as JSON, of all keys. Owned by the caller; NULL: no memory. */
json_t *ku_deepspeed_json(const struct ku_deepspeed *ds);

#endif
