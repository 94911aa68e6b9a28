/* SPDX-License-Identifier: Apache-2.0 */
/* Dump, comparison and documentation of a configuration, from the JSON that config.c checked. */
#include <stdio.h>
#include <string.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "config/keys.h"

/* The value as the user gave it, else the default. New reference. */
static json_t *value_of(const struct ku_config *cfg, const struct ku_key *key)
{
    json_t *v = json_object_get(json_object_get(cfg->root, key->section), key->name);
    return v ? json_incref(v) : ku_key_default(key);
}

json_t *ku_config_dump(const struct ku_config *cfg)
{
    json_t *root = json_object();
    json_object_set(root, "model", cfg->model);
    for (int i = 0; i < ku_n_keys; i++) {
        json_t *section = json_object_get(root, ku_keys[i].section);
        if (section == NULL) {
            section = json_object();
            json_object_set_new(root, ku_keys[i].section, section);
        }
        json_object_set_new(section, ku_keys[i].name, value_of(cfg, &ku_keys[i]));
    }
    return root;
}

static bool is_numerics(const struct ku_config *cfg, const struct ku_key *k)
{
    return k->mark == KU_KEY_NUMERICS ||
           (k->mark == KU_KEY_TP && cfg->parallel_tp_exact == KU_NULL);
}

/* Whether a key decides no bit, as nothing is divided or pushed: its default counts. */
enum { SYNC = 0, SSP = 2, TOPK = 3 /* words of ps.mode and ps.compression */ };
static bool is_idle(const struct ku_config *cfg, const struct ku_key *key)
{
    static const char *const name[] = {"loss_parallel", "sp", "plan", "tp_reduce"};
    for (size_t i = 0; i < sizeof name / sizeof name[0]; i++)
        if (cfg->parallel_tp == 1 && cfg->parallel_tp_exact == KU_NULL &&
            strcmp(key->name, name[i]) == 0)
            return true;
    if (strcmp(key->section, "ps") != 0)
        return false;
    return cfg->ps_workers == KU_NULL ||
           (cfg->ps_mode != SSP && strcmp(key->name, "staleness") == 0) ||
           (cfg->ps_mode != SYNC && strcmp(key->name, "backup") == 0) ||
           (cfg->ps_compression != TOPK && strcmp(key->name, "topk") == 0);
}

static json_t *flat(const struct ku_config *cfg, bool is_all)
{
    json_t *keys = json_object();
    char name[128];
    json_object_set(keys, "model", cfg->model);
    for (int i = 0; i < ku_n_keys; i++) {
        if (!is_all && !is_numerics(cfg, &ku_keys[i]))
            continue;
        snprintf(name, sizeof name, "%s.%s", ku_keys[i].section, ku_keys[i].name);
        json_object_set_new(keys, name,
                            !is_all && is_idle(cfg, &ku_keys[i]) ? ku_key_default(&ku_keys[i])
                                                                 : value_of(cfg, &ku_keys[i]));
    }
    return keys;
}

json_t *ku_config_numerics(const struct ku_config *cfg)
{
    return flat(cfg, 0);
}

json_t *ku_config_keys(const struct ku_config *cfg)
{
    return flat(cfg, 1);
}

bool ku_config_is_same(const json_t *a, const json_t *b)
{
    const char *name;
    json_t *value;
    if (json_is_real(a) || json_is_real(b))
        return json_is_number(a) && json_is_number(b) &&
               json_number_value(a) == json_number_value(b);
    if (json_is_array(a) && json_is_array(b)) {
        size_t n = json_array_size(a), same = 0;
        while (same < n && ku_config_is_same(json_array_get(a, same), json_array_get(b, same)))
            same++;
        return same == n && n == json_array_size(b);
    }
    if (!json_is_object(a) || !json_is_object(b))
        return json_equal(a, b);
    json_object_foreach((json_t *)(uintptr_t)a, name, value)
    {
        if (!ku_config_is_same(value, json_object_get(b, name)))
            return 0;
    }
    return json_object_size(a) == json_object_size(b);
}

/* The differences, and what is said before the value of each side: "was ", "is " */
struct changes {
    struct ku_str *out;
    const char *const *side;
};
static int add_change(const struct changes *c, const char *name, const json_t *was,
                      const json_t *is);

/* Adds the members that differ: "model.n_layer (was 2, is 3)". Returns their number. */
static int add_members(const struct changes *c, const char *name, const json_t *was,
                       const json_t *is)
{
    json_t *all = json_copy((json_t *)(uintptr_t)was), *value;
    const char *key;
    int n = 0;
    json_object_update_missing(all, (json_t *)(uintptr_t)is);
    json_object_foreach(all, key, value)
    {
        const json_t *old = json_object_get(was, key), *now = json_object_get(is, key);
        if (ku_config_is_same(old, now))
            continue;
        char *path = ku_asprintf("%s.%s", name, key);
        n += path ? add_change(c, path, old, now) : 1;
        ku_free(path);
    }
    json_decref(all);
    return n;
}

/* Adds a key with both values. Returns the number of differing keys. */
static int add_change(const struct changes *c, const char *name, const json_t *was,
                      const json_t *is)
{
    if (json_is_object(was) && json_is_object(is))
        return add_members(c, name, was, is);
    const size_t as_written = JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15);
    char *old = was ? ku_json_print(was, as_written) : NULL,
         *now = is ? ku_json_print(is, as_written) : NULL;
    ku_str_add(c->out, "%s%s (%s%.60s, %s%.60s)", c->out->bytes ? ", " : "", name, c->side[0],
               old ? old : "unset", c->side[1], now ? now : "unset");
    ku_free(old);
    ku_free(now);
    return 1;
}

/* The value of "section.key"; if absent (written by an older version), its default. New reference;
 * NULL: no such key. */
static json_t *value_in(const json_t *keys, const char *name)
{
    json_t *v = json_object_get(keys, name);
    const struct ku_key *key = v ? NULL : ku_key_find(name);
    return key ? ku_key_default(key) : json_incref(v);
}

static int compare_key(const struct changes *c, const char *name, const json_t *was,
                       const json_t *is)
{
    json_t *old = value_in(was, name), *now = value_in(is, name);
    int n = !old || !now || !ku_config_is_same(old, now) ? add_change(c, name, old, now) : 0;
    json_decref(old);
    json_decref(now);
    return n;
}

int ku_config_compare(const json_t *was, const json_t *is, struct ku_str *out)
{
    static const char *const side[] = {"was ", "is "};
    return ku_config_compare_sides(was, is, side, out);
}

int ku_config_compare_sides(const json_t *was, const json_t *is, const char *const side[2],
                            struct ku_str *out)
{
    const struct changes c = {out, side};
    const char *name;
    json_t *value;
    int n = 0;
    json_object_foreach((json_t *)(uintptr_t)is, name, value)
    {
        n += compare_key(&c, name, was, is);
    }
    json_object_foreach((json_t *)(uintptr_t)was, name, value)
    {
        if (json_object_get(is, name) == NULL)
            n += compare_key(&c, name, was, is);
    }
    return n;
}

void ku_config_help(int is_markdown, struct ku_str *out)
{
    const char *section = "";
    for (int i = 0; i < ku_n_keys; i++) {
        const struct ku_key *k = &ku_keys[i];
        const char *words = k->allowed.words;
        if (strcmp(section, k->section) != 0 && is_markdown)
            ku_str_add(out, "\n## `%s`\n\n| key | default | kind | what |\n|---|---|---|---|\n",
                       k->section);
        section = k->section;
        const char *mark = k->mark == KU_KEY_LAYOUT ? "layout" : "numerics";
        if (is_markdown)
            ku_str_add(out, "| `%s` | `%s` | %s | %s", k->name, k->value, mark, k->help);
        else
            ku_str_add(out, "  %s.%-*s %-12s %-8s %s", k->section, (int)(27 - strlen(k->section)),
                       k->name, k->value, mark, k->help);
        ku_str_add(out, "%s%s%s%s\n", words ? " (" : "", words ? words : "", words ? ")" : "",
                   is_markdown ? " |" : "");
    }
}
