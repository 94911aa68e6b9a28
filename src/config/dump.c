/* SPDX-License-Identifier: Apache-2.0 */
/* Dump, comparison and documentation of a configuration, from the JSON that config.c checked. */
#include <stdio.h>
#include <string.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "config/config.h"

struct row {
    const char *section, *key, *type, *value, *mark, *help, *words;
};
#define WORDS_INT(most)       NULL
#define WORDS_NUM(most)       NULL
#define WORDS_BOOL(most)      NULL
#define WORDS_TEXT(most)      NULL
#define WORDS_LIST(most)      NULL
#define WORDS_SPAN(most)      NULL
#define WORDS_PAIR(most)      NULL
#define WORDS_SPANS(most)     NULL
#define WORDS_SCALING(most)   NULL
#define WORDS_NUMBERS(most)   NULL
#define WORDS_RECOMPUTE(most) NULL
#define WORDS_OFFLOAD(most)   NULL
#define WORDS_RESHARD(most)   NULL
#define WORDS_GROUPS(most)    NULL
#define WORDS_SCALE(most)     NULL
#define WORDS_ENUM(most)      most
static const struct row table[] = {
#define KEY(section, key, type, value, least, most, mark, help)                                    \
    {#section, #key, #type, value, #mark, help, WORDS_##type(most)},
#include "config/keys.def"
#undef KEY
};
enum { N_KEYS = sizeof table / sizeof table[0] };

/* The value as the user gave it, else the default. New reference. */
static json_t *value_of(const struct ku_config *cfg, const struct row *row)
{
    json_t *v = json_object_get(json_object_get(cfg->root, row->section), row->key);
    return v ? json_incref(v) : json_loads(row->value, JSON_DECODE_ANY, NULL);
}

json_t *ku_config_dump(const struct ku_config *cfg)
{
    json_t *root = json_object();
    json_object_set(root, "model", cfg->model);
    for (int i = 0; i < N_KEYS; i++) {
        json_t *section = json_object_get(root, table[i].section);
        if (section == NULL) {
            section = json_object();
            json_object_set_new(root, table[i].section, section);
        }
        json_object_set_new(section, table[i].key, value_of(cfg, &table[i]));
    }
    return root;
}

json_t *ku_config_numerics(const struct ku_config *cfg)
{
    json_t *keys = json_object();
    char name[128];
    json_object_set(keys, "model", cfg->model);
    for (int i = 0; i < N_KEYS; i++) {
        if (strcmp(table[i].mark, "NUMERICS") != 0)
            continue;
        snprintf(name, sizeof name, "%s.%s", table[i].section, table[i].key);
        json_object_set_new(keys, name, value_of(cfg, &table[i]));
    }
    return keys;
}

/* See ku_config_is_same. */
static bool is_same(const json_t *a, const json_t *b)
{
    const char *name;
    json_t *value;
    if (json_is_real(a) || json_is_real(b))
        return json_is_number(a) && json_is_number(b) &&
               json_number_value(a) == json_number_value(b);
    if (json_is_array(a) && json_is_array(b)) {
        size_t n = json_array_size(a), same = 0;
        while (same < n && is_same(json_array_get(a, same), json_array_get(b, same)))
            same++;
        return same == n && n == json_array_size(b);
    }
    if (!json_is_object(a) || !json_is_object(b))
        return json_equal(a, b);
    json_object_foreach((json_t *)(uintptr_t)a, name, value)
    {
        if (!is_same(value, json_object_get(b, name)))
            return 0;
    }
    return json_object_size(a) == json_object_size(b);
}

static int add_change(struct ku_str *out, const char *name, const json_t *was, const json_t *is);

/* Adds the members that differ: "model.n_layer (was 2, is 3)". Returns their number. */
static int add_members(struct ku_str *out, const char *name, const json_t *was, const json_t *is)
{
    json_t *all = json_copy((json_t *)(uintptr_t)was), *value;
    const char *key;
    int n = 0;
    json_object_update_missing(all, (json_t *)(uintptr_t)is);
    json_object_foreach(all, key, value)
    {
        const json_t *old = json_object_get(was, key), *now = json_object_get(is, key);
        if (is_same(old, now))
            continue;
        char *path = ku_asprintf("%s.%s", name, key);
        n += path ? add_change(out, path, old, now) : 1;
        ku_free(path);
    }
    json_decref(all);
    return n;
}

/* Adds a key with both values. Returns the number of differing keys. */
static int add_change(struct ku_str *out, const char *name, const json_t *was, const json_t *is)
{
    if (json_is_object(was) && json_is_object(is))
        return add_members(out, name, was, is);
    const size_t as_written = JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15);
    char *old = was ? ku_json_print(was, as_written) : NULL,
         *now = is ? ku_json_print(is, as_written) : NULL;
    ku_str_add(out, "%s%s (was %.60s, is %.60s)", out->bytes ? ", " : "", name, old ? old : "unset",
               now ? now : "unset");
    ku_free(old);
    ku_free(now);
    return 1;
}

/* The value of "section.key"; if absent (written by an older version), its default. New reference;
 * NULL: no such key. */
static json_t *value_in(const json_t *keys, const char *name)
{
    json_t *v = json_object_get(keys, name);
    for (int i = 0; i < N_KEYS && v == NULL; i++) {
        size_t n = strlen(table[i].section);
        if (strncmp(name, table[i].section, n) == 0 && name[n] == '.' &&
            strcmp(name + n + 1, table[i].key) == 0)
            return json_loads(table[i].value, JSON_DECODE_ANY, NULL);
    }
    return json_incref(v);
}

static int compare_key(const char *name, const json_t *was, const json_t *is, struct ku_str *out)
{
    json_t *old = value_in(was, name), *now = value_in(is, name);
    int n = !old || !now || !is_same(old, now) ? add_change(out, name, old, now) : 0;
    json_decref(old);
    json_decref(now);
    return n;
}

int ku_config_compare(const json_t *was, const json_t *is, struct ku_str *out)
{
    const char *name;
    json_t *value;
    int n = 0;
    json_object_foreach((json_t *)(uintptr_t)is, name, value)
    {
        n += compare_key(name, was, is, out);
    }
    json_object_foreach((json_t *)(uintptr_t)was, name, value)
    {
        if (json_object_get(is, name) == NULL)
            n += compare_key(name, was, is, out);
    }
    return n;
}

void ku_config_help(int is_markdown, struct ku_str *out)
{
    const char *section = "";
    for (int i = 0; i < N_KEYS; i++) {
        const struct row *r = &table[i];
        if (strcmp(section, r->section) != 0 && is_markdown)
            ku_str_add(out, "\n## `%s`\n\n| key | default | kind | what |\n|---|---|---|---|\n",
                       r->section);
        section = r->section;
        const char *mark = strcmp(r->mark, "LAYOUT") == 0 ? "layout" : "numerics";
        if (is_markdown)
            ku_str_add(out, "| `%s` | `%s` | %s | %s%s%s%s |\n", r->key, r->value, mark, r->help,
                       r->words ? " (" : "", r->words ? r->words : "", r->words ? ")" : "");
        else
            ku_str_add(out, "  %s.%-*s %-12s %-8s %s%s%s%s\n", r->section,
                       (int)(27 - strlen(r->section)), r->key, r->value, mark, r->help,
                       r->words ? " (" : "", r->words ? r->words : "", r->words ? ")" : "");
    }
}

int ku_config_find(const char *path, struct ku_config_key *key)
{
    char name[256];
    for (int i = 0; i < N_KEYS; i++) {
        const struct row *row = &table[i];
        size_t n = (size_t)snprintf(name, sizeof name, "%s.%s", row->section, row->key);
        if (strncmp(name, path, n) != 0 || (path[n] != '\0' && path[n] != '.'))
            continue;
        *key = (struct ku_config_key){row->value, path[n] ? NULL : row->words,
                                      strcmp(row->mark, "LAYOUT") == 0};
        return 1;
    }
    return 0;
}

bool ku_config_is_same(const json_t *a, const json_t *b)
{
    return is_same(a, b);
}
