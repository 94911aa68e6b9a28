/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of strings, and parameter groups: [{"match": "*.bias", "weight_decay": 0, "lr_mult":
 * 2}]. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "config/config.h"

int ku_list_read(struct ku_list *list, const json_t *v)
{
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    list->item = ku_calloc(n + 1, sizeof *list->item);
    if (list->item == NULL)
        return KUMI_ENOMEM;
    list->is_word = json_is_string(v);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_string(item))
            return 1;
        list->item[i] = ku_strdup(json_string_value(item));
        if (list->item[i] == NULL)
            return KUMI_ENOMEM;
        list->n = (int)i + 1;
    }
    return KUMI_OK;
}

void ku_list_fini(struct ku_list *list)
{
    for (int k = 0; k < list->n; k++)
        ku_free(list->item[k]);
    ku_free(list->item);
}

struct group_key {
    const char *name;
    size_t offset;
    double least, most;
};
static const struct group_key keys[] = {
#define X(name, least, most) {#name, offsetof(struct ku_group, name), least, most},
    KU_GROUP_KEYS(X)
#undef X
};
enum { N_GROUP_KEYS = sizeof keys / sizeof keys[0] };

static int read_number(const struct ku_config *cfg, const char *path, const struct group_key *key,
                       const json_t *value, struct ku_group *group)
{
    char wanted[96];
    const double x = json_is_number(value) ? json_number_value(value) : (double)NAN;
    if (x >= key->least && x <= key->most) {
        memcpy((char *)group + key->offset, &x, sizeof x);
        return KUMI_OK;
    }
    snprintf(wanted, sizeof wanted, "a number from %.15g to %.15g", key->least, key->most);
    return ku_config_refuse(cfg, path, value, wanted);
}

static int read_key(const struct ku_config *cfg, const char *path, const char *name,
                    const json_t *value, struct ku_group *group)
{
    static const char *const known[] = {"match", "lr_mult", "weight_decay", "betas", "eps"};
    if (strcmp(name, "match") == 0) {
        int status = ku_list_read(&group->match, value);
        return status > 0 || (status == KUMI_OK && group->match.n == 0)
                   ? ku_config_refuse(cfg, path, value, "a pattern or a list of patterns")
                   : status;
    }
    if (strcmp(name, "betas") == 0) {
        if (json_array_size(value) != 2)
            return ku_config_refuse(cfg, path, value, "two numbers in [0, 1)");
        for (int i = N_GROUP_KEYS - 2; i < N_GROUP_KEYS; i++)
            KU_TRY(read_number(cfg, path, &keys[i],
                               json_array_get(value, (size_t)(i - N_GROUP_KEYS + 2)), group));
        return KUMI_OK;
    }
    for (int i = 0; i < N_GROUP_KEYS - 2; i++)
        if (strcmp(keys[i].name, name) == 0)
            return read_number(cfg, path, &keys[i], value, group);
    return ku_config_refuse_unknown(cfg, path, name, known, sizeof known / sizeof known[0]);
}

static int read_group(const struct ku_config *cfg, const char *path, const json_t *value,
                      struct ku_group *group)
{
    const char *name;
    json_t *x;
    char at[256];
    if (!json_is_object(value))
        return ku_config_refuse(cfg, path, value, "a group is an object");
    for (int i = 0; i < N_GROUP_KEYS; i++) {
        const double none = (double)NAN;
        memcpy((char *)group + keys[i].offset, &none, sizeof none);
    }
    json_object_foreach((json_t *)(uintptr_t)value, name, x)
    {
        snprintf(at, sizeof at, "%s.%.100s", path, name);
        KU_TRY(read_key(cfg, at, name, x, group));
    }
    return group->match.n
               ? KUMI_OK
               : ku_config_refuse(cfg, path, value, "give \"match\", a pattern of parameter names");
}

int ku_config_read_groups(const struct ku_config *cfg, const char *path, const json_t *value,
                          struct ku_groups *groups)
{
    const size_t n = json_array_size(value);
    char at[128];
    if (!json_is_array(value))
        return ku_config_refuse(cfg, path, value, "a list of groups");
    groups->item = ku_calloc(n + 1, sizeof *groups->item);
    if (groups->item == NULL)
        return KUMI_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        groups->n = (int)i + 1;
        snprintf(at, sizeof at, "%.100s[%zu]", path, i);
        KU_TRY(read_group(cfg, at, json_array_get(value, i), &groups->item[i]));
    }
    return KUMI_OK;
}

void ku_groups_fini(struct ku_groups *groups)
{
    for (int i = 0; i < groups->n; i++)
        ku_list_fini(&groups->item[i].match);
    ku_free(groups->item);
}
