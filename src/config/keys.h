/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CONFIG_KEYS_H
#define KU_CONFIG_KEYS_H

#include <stdbool.h>

#include "config/config.h"

/*
 * The table of keys (keys.def) and the types of their values (key_types.def). A new key is a row of
 * the first; a new type is a row of the second and a reader in key_types.c.
 */
enum ku_key_type {
#define TYPE(name, member, null, reader, finisher) KU_TYPE_##name,
#include "config/key_types.def"
#undef TYPE
};
struct ku_allowed {
    double min, max;
    const char *words; /* of an ENUM or CHOICE, separated by blanks; else NULL, or what is wanted */
};
#define KU_RANGE(min, max)                                                                         \
    {                                                                                              \
        min, max, NULL                                                                             \
    }
#define KU_WORDS(words)                                                                            \
    {                                                                                              \
        0, 0, words                                                                                \
    }
#define KU_ANY                                                                                     \
    {                                                                                              \
        0, 0, NULL                                                                                 \
    }
/* TP: layout with parallel.tp_exact, else numerics. */
enum ku_key_mark { KU_KEY_NUMERICS, KU_KEY_LAYOUT, KU_KEY_TP };
enum ku_key_visibility { KU_KEY_PROGRAM, KU_KEY_COMMAND };
struct ku_key {
    const char *section, *name;
    enum ku_key_type type;
    const char *value; /* default, JSON text */
    struct ku_allowed allowed;
    enum ku_key_mark mark;
    enum ku_key_visibility visibility;
    const char *help;
    size_t offset; /* of the member of struct ku_config */
};
extern const struct ku_key ku_keys[];
extern const int ku_n_keys;

/* The row of "section.key"; a longer path finds the object key that contains it. NULL: none. */
const struct ku_key *ku_key_find(const char *path);
/* The default of a key. New reference; NULL: no memory. */
json_t *ku_key_default(const struct ku_key *key);
/* The default of a key of type NUM. */
double ku_key_default_number(const char *path);
/* Whether null is a value of the key. */
bool ku_key_is_nullable(const struct ku_key *key);

/*
 * Check a value and store it in its member. Every wrong value is refused by ku_config_refuse with
 * the value and what is wanted. Errors: EINVAL, ENOMEM; the member can be finished in any case.
 */
KU_STATUS ku_key_store(struct ku_config *cfg, const struct ku_key *key, const json_t *value);
/* Frees what a member owns. */
void ku_key_fini(struct ku_config *cfg, const struct ku_key *key);

#endif
