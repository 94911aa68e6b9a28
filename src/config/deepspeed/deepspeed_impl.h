/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CONFIG_DEEPSPEED_DEEPSPEED_IMPL_H
#define KU_CONFIG_DEEPSPEED_DEEPSPEED_IMPL_H

#include "base/err.h"
#include "config/deepspeed.h"
#include "config/keys.h"

/*
 * Shared by the files that translate a DeepSpeed configuration.
 *
 *     deepspeed.c    walks the configuration, one item per table row
 *     values.c       reads values, fills "auto", converts values for kumi's keys
 *     target_keys.c  collects the settings of kumi's keys
 *     consistency.c  conditions between keys, batch relation
 *     table.c        prints the items
 */

enum ku_ds_type {
    KU_DS_INT,
    KU_DS_NUM,
    KU_DS_BOOL,
    KU_DS_TEXT,
    KU_DS_LIST,
    KU_DS_PAIR,
    KU_DS_ANY,
    KU_DS_BLOCK, /* a section */
    KU_DS_CHOICE /* a value of the section's "type" */
};
struct ku_ds_row { /* a row of deepspeed.def */
    const char *section, *of, *key;
    enum ku_ds_type type;
    const char *value;
    struct ku_allowed allowed;
    const char *aliases;
    enum ku_ds_verdict verdict;
    const char *target, *help;
    int is_checked; /* BLOCK */
    const char *gate;
};
extern const struct ku_ds_row ku_ds_rows[];
extern const int ku_ds_n_rows;

/* KUMI_EINVAL with the place, the value and what is wanted. */
KU_STATUS ku_ds_refuse(const struct ku_config *cfg, const char *spelled, const json_t *value,
                       const char *format, ...) __attribute__((format(printf, 4, 5)));
/* Sets an item's verdict and reason, whose memory it takes over. NULL: KUMI_ENOMEM. */
KU_STATUS ku_ds_say(struct ku_ds_item *item, enum ku_ds_verdict verdict, char *why);
/* The item of a key by its full name; NULL: none so far. Borrowed. */
const struct ku_ds_item *ku_ds_find(const struct ku_deepspeed *ds, const char *key);
/* The value of kumi's key "section.key" in the configuration; NULL: absent or null. Borrowed. */
json_t *ku_ds_own(const struct ku_config *cfg, const char *path);

/* values.c */
/* The default of a row. New reference. */
json_t *ku_ds_default(const struct ku_ds_row *row);
/* Checks a value and converts it to the row's type (5e8 is an integer). New reference. Errors:
 * EINVAL. */
KU_STATUS ku_ds_read(const struct ku_config *cfg, const struct ku_ds_row *row, const char *spelled,
                     const json_t *v, json_t **value);
/* The value of "auto", as Hugging Face's trainer fills it in, which may move a key of cfg to the
 * DeepSpeed key. New reference. */
KU_STATUS ku_ds_fill(struct ku_config *cfg, const struct ku_ds_row *row, const char *spelled,
                     int is_checked, json_t **value);
/* Converts a value by a target's `way`. New reference; NULL: the key is not set. */
json_t *ku_ds_convert(const char *way, const json_t *value);

/* target_keys.c: applies an item to its targets. is_choice: key=word applies whatever the value;
 * is_present: the item's section is given. */
KU_STATUS ku_ds_apply(struct ku_config *cfg, uint32_t item, const char *targets,
                      const char *fallback, int is_choice, int is_present);
/* Compares the settings with the configuration, after all items. */
KU_STATUS ku_ds_settle(struct ku_config *cfg);
/* consistency.c: checks conditions between keys. Errors: EINVAL. */
KU_STATUS ku_ds_check_rules(const struct ku_config *cfg);

#endif
