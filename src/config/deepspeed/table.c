/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints the translation of a DeepSpeed configuration as text and JSON, and the documentation of
 * all keys from deepspeed.def.
 */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "config/deepspeed/deepspeed_impl.h"

static const char *const source_name[] = {"file", "default", "auto"};
static const char *const verdict_name[] = {"applied", "no effect", "refused", "unknown"};

enum { MAX_WIDTH = 56 };

static void add_value(struct ku_str *out, const json_t *v)
{
    char *text = ku_json_print(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(12));
    ku_str_add(out, "%.60s", text ? text : "");
    ku_free(text);
}

/* Adds "parallel.zero = 2, ..". */
static void add_effect(struct ku_str *out, const struct ku_ds_item *item)
{
    const char *path;
    json_t *v;
    int n = 0;
    json_object_foreach(item->effect, path, v)
    {
        ku_str_add(out, "%s%s = ", n++ ? ", " : "", path);
        add_value(out, v);
    }
}

static bool is_shown(const struct ku_ds_item *item, int is_all)
{
    return is_all || item->source != KU_DS_DEFAULT || item->verdict == KU_DS_APPLIED;
}

/* The columns of an item before its verdict, or, if it is NULL, their heads. */
static void columns(const struct ku_ds_item *item, struct ku_str text[4])
{
    ku_str_add(&text[0], "%s", item ? item->key : "key");
    if (item)
        add_value(&text[1], item->value);
    else
        ku_str_add(&text[1], "value");
    ku_str_add(&text[2], "%s", item ? source_name[item->source] : "source");
    if (item)
        add_effect(&text[3], item);
    else
        ku_str_add(&text[3], "becomes");
}

/* The first pass finds the widths of the columns. */
void ku_deepspeed_print(const struct ku_deepspeed *ds, const char *name, int is_all,
                        struct ku_str *out)
{
    size_t width[4] = {0};
    ku_str_add(out, "%s\n", ds->doc.name ? ds->doc.name : name);
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i <= ds->n_items; i++) {
            const struct ku_ds_item *item = i ? &ds->item[i - 1] : NULL;
            struct ku_str text[4] = {{0}};
            if (item && !is_shown(item, is_all))
                continue;
            columns(item, text);
            for (int c = 0; c < 4; c++) {
                if (text[c].bytes > width[c] && text[c].bytes <= MAX_WIDTH)
                    width[c] = text[c].bytes;
                if (pass)
                    ku_str_add(out, "%-*s  ", (int)width[c], ku_str_get(&text[c]));
                ku_str_fini(&text[c]);
            }
            if (pass)
                ku_str_add(out, "%s%s%s\n", item ? verdict_name[item->verdict] : "verdict",
                           item && item->why ? ": " : "", item && item->why ? item->why : "");
        }
}

json_t *ku_deepspeed_json(const struct ku_deepspeed *ds)
{
    json_t *keys = json_array();
    for (uint32_t i = 0; i < ds->n_items; i++) {
        const struct ku_ds_item *item = &ds->item[i];
        json_t *effect = item->effect ? json_incref(item->effect) : json_object();
        json_t *row = json_pack("{s:s, s:O, s:s, s:o, s:s, s:s*}", "key", item->key, "value",
                                item->value, "source", source_name[item->source], "becomes", effect,
                                "verdict", verdict_name[item->verdict], "why", item->why);
        if (keys == NULL || row == NULL || json_array_append_new(keys, row) < 0) {
            json_decref(keys);
            KU_ERR(KUMI_ENOMEM, "deepspeed: no memory");
            return NULL;
        }
    }
    return keys;
}

/* Adds the keys of a target without its syntax. */
static void add_target(struct ku_str *out, const char *target)
{
    char words[256], *rest = words;
    int n = 0;
    snprintf(words, sizeof words, "%s", target);
    for (char *word; (word = strsep(&rest, " ")) != NULL;) {
        word += strspn(word, "?!@");
        word[strcspn(word, ":#")] = '\0';
        ku_str_add(out, "%s%s", n++ ? ", " : "", word);
    }
}

static void add_row(struct ku_str *out, int is_markdown, const struct ku_ds_row *r)
{
    struct ku_str name = {0}, becomes = {0};
    ku_str_add(&name, "%s%s%s%s", is_markdown ? "" : r->section,
               is_markdown || !*r->section ? "" : ".", r->type == KU_DS_CHOICE ? "type = " : "",
               r->key);
    add_target(&becomes, r->target);
    const char *to = ku_str_get(&becomes), *verdict = verdict_name[r->verdict];
    const char *colon = *r->help ? (*to ? "; " : ": ") : "";
    if (is_markdown)
        ku_str_add(out, "| `%s`%s%s%s | `%s` | %s%s%s%s%s%s |\n", name.text, *r->of ? " (" : "",
                   r->of, *r->of ? ")" : "", r->value, verdict, *to ? ": `" : "", to,
                   *to ? "`" : "", colon, r->help);
    else
        ku_str_add(out, "  %-*s %-12s %s%s%s%s%s\n", MAX_WIDTH, name.text, r->value, verdict,
                   *to ? ": " : "", to, colon, r->help);
    ku_str_fini(&name);
    ku_str_fini(&becomes);
}

static bool is_in(const struct ku_ds_row *row, const char *section, int is_block)
{
    return strcmp(row->section, section) == 0 && (row->type == KU_DS_BLOCK) == is_block;
}

/* Prints the keys of a section, then the sections inside it. */
static void add_section(struct ku_str *out, int is_markdown, const char *section)
{
    char inner[256];
    if (is_markdown)
        ku_str_add(out, "\n### %s%s%s\n\n| key | default | what it becomes |\n|---|---|---|\n",
                   *section ? "`" : "", *section ? section : "At the top", *section ? "`" : "");
    for (int i = 0; i < ku_ds_n_rows; i++)
        if (is_in(&ku_ds_rows[i], section, 0) &&
            (*ku_ds_rows[i].target || ku_ds_rows[i].verdict != KU_DS_APPLIED))
            add_row(out, is_markdown, &ku_ds_rows[i]);
    for (int i = 0; i < ku_ds_n_rows; i++)
        if (is_in(&ku_ds_rows[i], section, 1)) {
            snprintf(inner, sizeof inner, "%s%s%s", section, *section ? "." : "",
                     ku_ds_rows[i].key);
            add_section(out, is_markdown, inner);
        }
}

void ku_deepspeed_help(int is_markdown, struct ku_str *out)
{
    add_section(out, is_markdown, "");
}
