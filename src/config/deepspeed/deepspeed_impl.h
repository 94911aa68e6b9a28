/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CONFIG_DEEPSPEED_DEEPSPEED_IMPL_H
#define KU_CONFIG_DEEPSPEED_DEEPSPEED_IMPL_H

#include "config/deepspeed.h"

/* What the files that translate a DeepSpeed configuration share. */

enum ku_ds_type {
    KU_DS_INT,
    KU_DS_NUM,
    KU_DS_BOOL,
    KU_DS_TEXT,
    KU_DS_LIST,
    KU_DS_PAIR,
    KU_DS_BLOCK,
    KU_DS_ANY
};
struct ku_ds_row { /* deepspeed.def says what the columns mean */
    const char *block, *of, *key;
    enum ku_ds_type type;
    const char *value, *allowed, *aliases;
    enum ku_ds_verdict verdict;
    const char *target, *help;
};
struct ku_ds_block {
    const char *block;
    int is_checked;
    const char *gate;
};
struct ku_ds_choice {
    const char *block, *name, *target, *help;
};
extern const struct ku_ds_row ku_ds_rows[];
extern const struct ku_ds_block ku_ds_blocks[];
extern const struct ku_ds_choice ku_ds_choices[];
extern const int ku_ds_n_rows, ku_ds_n_blocks, ku_ds_n_choices;

/* Whether `word` is one of the words of a text, letters of either case alike if any_case. */
int ku_ds_has_word(const char *words, const char *word, int any_case);
/* "c.json:3:5: <key as written>". */
const char *ku_ds_place(const struct ku_config *cfg, const char *spelled, char out[KU_WHERE_BYTES]);
int ku_ds_refuse(const struct ku_config *cfg, const char *spelled, const json_t *value,
                 const char *wanted); /* KUMI_EINVAL */
/* The value of a key by its full name, default or given; NULL: there is none. Borrowed. */
const struct ku_ds_item *ku_ds_find(const struct ku_deepspeed *ds, const char *key);
/* What the configuration itself says of "section.key"; NULL: nothing. Borrowed. */
json_t *ku_ds_own(const struct ku_config *cfg, const char *path);

/* deepspeed_value.c */
/* The default of a row. New reference. */
json_t *ku_ds_default(const struct ku_ds_row *row);
/* The value as the row's type has it (5e8 is an integer). New reference. Errors: KUMI_EINVAL. */
int ku_ds_read(const struct ku_config *cfg, const struct ku_ds_row *row, const char *spelled,
               const json_t *v, json_t **value);
/* What the Hugging Face trainer fills in for "auto". New reference. */
int ku_ds_fill(const struct ku_config *cfg, const struct ku_ds_row *row, const char *spelled,
               int is_checked, json_t **value);
/* What a target's `way` makes of a value. New reference; NULL: nothing is set. */
json_t *ku_ds_convert(const char *way, const json_t *value);

/* deepspeed_target.c: what an item's value does, by the targets that are named. is_choice: words
 * count whatever the value; is_present: the item's block was given. */
int ku_ds_apply(struct ku_config *cfg, uint32_t item, const char *targets, const char *fallback,
                int is_choice, int is_present);
int ku_ds_settle(struct ku_config *cfg); /* when all have been seen */
/* deepspeed_rules.c: what no single key shows. Errors: KUMI_EINVAL. */
int ku_ds_check_rules(const struct ku_config *cfg);

#endif
