/* SPDX-License-Identifier: Apache-2.0 */
#include "config/keys.h"

#include <stddef.h>
#include <string.h>

#include "base/err.h"
#include "base/str.h"

#define RANGE       KU_RANGE
#define AT_LEAST(n) KU_RANGE(n, 0)
#define WORDS       KU_WORDS
#define ANY         KU_ANY
const struct ku_key ku_keys[] = {
#define KEY(section, key, type, value, allowed, mark, visibility, help)                            \
    {#section,                                                                                     \
     #key,                                                                                         \
     KU_TYPE_##type,                                                                               \
     value,                                                                                        \
     allowed,                                                                                      \
     KU_KEY_##mark,                                                                                \
     KU_KEY_##visibility,                                                                          \
     help,                                                                                         \
     offsetof(struct ku_config, section##_##key)},
#include "config/keys.def"
#undef KEY
};
const int ku_n_keys = sizeof ku_keys / sizeof ku_keys[0];

const struct ku_key *ku_key_find(const char *path)
{
    const size_t n = strcspn(path, ".");
    for (int i = 0; i < ku_n_keys && path[n]; i++) {
        const struct ku_key *key = &ku_keys[i];
        const size_t bytes = strlen(key->name);
        const char *name = path + n + 1;
        if (strlen(key->section) == n && memcmp(key->section, path, n) == 0 &&
            strncmp(key->name, name, bytes) == 0 && strchr(".", name[bytes]))
            return key;
    }
    return NULL;
}

json_t *ku_key_default(const struct ku_key *key)
{
    return json_loads(key->value, JSON_DECODE_ANY, NULL);
}

double ku_key_default_number(const char *path)
{
    const struct ku_key *key = ku_key_find(path);
    KU_ASSERT(key != NULL && key->type == KU_TYPE_NUM);
    return ku_text_number(key->value, NULL);
}

bool ku_key_is_nullable(const struct ku_key *key)
{
    return strcmp(key->value, "null") == 0;
}
