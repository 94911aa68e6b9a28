/* SPDX-License-Identifier: Apache-2.0 */
/* memory.offload: {"optimizer": "file", "params": "none", "path": DIR, ..}. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "config/config.h"

enum { MAX_PATH = 160 };
static const char *const tiers[] = {"none", "host", "file", NULL};
static const char *const ways[] = {"auto", "io_uring", "threads", NULL};

static int read_word(const struct ku_config *cfg, const char *path, const json_t *v,
                     const char *const *words, const char *wanted, int *out)
{
    const char *word = json_string_value(v);
    for (int i = 0; words[i]; i++)
        if (word && strcmp(words[i], word) == 0) {
            *out = i;
            return KUMI_OK;
        }
    return ku_config_refuse(cfg, path, v, wanted);
}

static int read_member(const struct ku_config *cfg, const char *path, const char *key,
                       const json_t *v, struct ku_offload_key *k)
{
    const struct {
        const char *name;
        int *to;
        const char *const *words;
        const char *wanted;
    } word[] = {
        {"optimizer", &k->optimizer, tiers, "one of: none host file"},
        {"params", &k->params, tiers, "one of: none host file"},
        {"activations", &k->activations, tiers, "one of: none host file"},
        {"io", &k->io, ways, "one of: auto io_uring threads"},
    };
    for (size_t i = 0; i < sizeof word / sizeof word[0]; i++)
        if (strcmp(key, word[i].name) == 0)
            return read_word(cfg, path, v, word[i].words, word[i].wanted, word[i].to);
    if (strcmp(key, "path") == 0) {
        if (!json_is_string(v) || *json_string_value(v) == '\0')
            return ku_config_refuse(cfg, path, v, "a folder on a local disk");
        k->path = ku_strdup(json_string_value(v));
        return k->path ? KUMI_OK : KUMI_ENOMEM;
    }
    if (strcmp(key, "pin") == 0) {
        k->pin = json_is_true(v);
        return json_is_boolean(v) ? KUMI_OK : ku_config_refuse(cfg, path, v, "true or false");
    }
    if (strcmp(key, "ratio") == 0) {
        k->ratio = json_is_number(v) ? json_number_value(v) : -1;
        return k->ratio >= 0 && k->ratio <= 1
                   ? KUMI_OK
                   : ku_config_refuse(cfg, path, v, "a number from 0 to 1");
    }
    int is_count = strcmp(key, "buffer_count") == 0;
    int64_t *to = is_count ? &k->buffer_count : &k->buffer_size;
    int64_t least = is_count ? 1 : 4096, most = is_count ? 64 : INT64_C(1) << 36;
    if (ku_json_int(v, to) < 0 || *to < least || *to > most)
        return ku_config_refuse(cfg, path, v,
                                is_count ? "an integer from 1 to 64"
                                         : "a number of elements from 4096 to 2^36");
    return KUMI_OK;
}

int ku_config_read_offload(const struct ku_config *cfg, const char *path, const json_t *value,
                           struct ku_offload_key *k)
{
    static const char *const names[] = {"optimizer", "params",       "activations", "path", "pin",
                                        "ratio",     "buffer_count", "buffer_size", "io"};
    enum { N_NAMES = sizeof names / sizeof names[0] };
    char member[MAX_PATH];
    const char *key;
    json_t *v;
    *k = (struct ku_offload_key){.pin = 1, .ratio = 1, .buffer_count = 3, .buffer_size = 1 << 24};
    if (!json_is_object(value))
        return ku_config_refuse(
            cfg, path, value, "an object: {\"optimizer\": \"host\"}, or \"file\" with a \"path\"");
    json_object_foreach((json_t *)(uintptr_t)value, key, v)
    {
        int known = 0;
        for (int i = 0; i < N_NAMES; i++)
            known |= strcmp(names[i], key) == 0;
        snprintf(member, sizeof member, "%s.%.100s", path, key);
        if (!known)
            return ku_config_refuse_unknown(cfg, member, key, names, N_NAMES);
        KU_TRY(read_member(cfg, member, key, v, k));
    }
    int to_files = k->optimizer == KU_OFFLOAD_FILE || k->params == KU_OFFLOAD_FILE ||
                   k->activations == KU_OFFLOAD_FILE;
    snprintf(member, sizeof member, "%s.path", path);
    if (to_files && k->path == NULL)
        return ku_config_refuse(cfg, member, NULL, "give a folder on a local disk");
    return KUMI_OK;
}
