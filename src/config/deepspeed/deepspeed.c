/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks a DeepSpeed configuration along the table deepspeed.def: every row of a section becomes an
 * item with a value, its source (file, default, auto) and a verdict. Applied rows add settings of
 * kumi's keys (target_keys.c). The settings are merged after the whole walk, so that the table of
 * verdicts can be printed even if some keys are refused.
 */
#include "config/deepspeed.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/err.h"
#include "base/json/hjson.h"
#include "base/mem.h"
#include "base/term.h"
#include "config/deepspeed/deepspeed_impl.h"

#define DS_BLOCK(block, kind, gate)
#define DS_TYPE(block, type, target, help)
#define DS(block, of, key, type, value, allowed, aliases, verdict, target, help)                   \
    {#block, of, #key, KU_DS_##type, value, allowed, aliases, KU_DS_##verdict, target, help},
const struct ku_ds_row ku_ds_rows[] = {
#include "config/deepspeed/deepspeed.def"
};
#undef DS
#undef DS_TYPE
#undef DS_BLOCK
enum { CHECKED = 1, OPEN = 0 };
#define DS_BLOCK(block, kind, gate) {#block, kind, gate},
#define DS_TYPE(block, type, target, help)
#define DS(block, of, key, type, value, allowed, aliases, verdict, target, help)
const struct ku_ds_block ku_ds_blocks[] = {
#include "config/deepspeed/deepspeed.def"
};
#undef DS_TYPE
#undef DS_BLOCK
#define DS_BLOCK(block, kind, gate)
#define DS_TYPE(block, type, target, help) {#block, #type, target, help},
const struct ku_ds_choice ku_ds_choices[] = {
#include "config/deepspeed/deepspeed.def"
};
const int ku_ds_n_rows = sizeof ku_ds_rows / sizeof ku_ds_rows[0];
const int ku_ds_n_blocks = sizeof ku_ds_blocks / sizeof ku_ds_blocks[0];
const int ku_ds_n_choices = sizeof ku_ds_choices / sizeof ku_ds_choices[0];

#define STAGE "zero_optimization.stage" /* its row precedes the keys of stage 3 */
enum { MAX_KEY_BYTES = 256, MAX_NAMES = 256 };

/* The section that is being walked. */
struct walk {
    const struct ku_ds_block *block;
    const json_t *object; /* NULL: not given */
    const char *spelled;  /* "zero_optimization.", as spelled in the file */
    const char *of;       /* value of "type", which selects the rows; "": all rows */
    int is_off;           /* the section is switched off by its gate key */
    int is_void;          /* its "type" is absent or not supported: its keys are not checked */
    int is_child_void;    /* the same for sections inside it */
};

bool ku_ds_has_word(const char *words, const char *word, int any_case)
{
    const size_t bytes = strlen(word);
    for (const char *p = words; *p; p += *p == ' ') {
        const size_t n = strcspn(p, " ");
        if (n == bytes && (any_case ? strncasecmp(p, word, n) == 0 : memcmp(p, word, n) == 0))
            return 1;
        p += n;
    }
    return 0;
}

const char *ku_ds_place(const struct ku_config *cfg, const char *spelled, char out[KU_WHERE_BYTES])
{
    const struct ku_deepspeed *ds = cfg->deepspeed;
    char path[MAX_KEY_BYTES + 16], at[KU_WHERE_BYTES];
    int line, column;
    if (ds->doc.name) {
        ku_json_where(&ds->doc, spelled, 0, &line, &column);
        snprintf(out, KU_WHERE_BYTES, "%.200s:%d:%d: %.200s", ds->doc.name, line ? line : 1,
                 column ? column : 1, spelled);
    } else {
        snprintf(path, sizeof path, "deepspeed.%.200s", spelled);
        snprintf(out, KU_WHERE_BYTES, "%.280s: %.200s", ku_config_place(cfg, path, at), path);
    }
    return out;
}

int ku_ds_refuse(const struct ku_config *cfg, const char *spelled, const json_t *value,
                 const char *wanted)
{
    const size_t as_written = JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15);
    char at[KU_WHERE_BYTES], *text = value ? ku_json_print(value, as_written) : NULL;
    int status = KU_ERR(KUMI_EINVAL, "config: %s: %.80s; %s", ku_ds_place(cfg, spelled, at),
                        text ? text : "missing", wanted);
    ku_free(text);
    return status;
}

const struct ku_ds_item *ku_ds_find(const struct ku_deepspeed *ds, const char *key)
{
    for (uint32_t i = 0; i < ds->n_items; i++)
        if (strcmp(ds->item[i].key, key) == 0)
            return &ds->item[i];
    return NULL;
}

json_t *ku_ds_own(const struct ku_config *cfg, const char *path)
{
    json_t *v = ku_json_at(cfg->root, path);
    return v == NULL || json_is_null(v) ? NULL : v;
}

/* Adds an item; takes over the reference of value. */
static int add_item(struct ku_deepspeed *ds, const struct walk *w, const char *key,
                    const char *spelled, json_t *value, struct ku_ds_item **out)
{
    if (value == NULL || KU_GROW(&ds->item, ds->n_items, &ds->cap_items) < 0) {
        json_decref(value);
        return KU_ERR(KUMI_ENOMEM, "deepspeed: %s: no memory", key);
    }
    struct ku_ds_item *item = &ds->item[ds->n_items++];
    const char *block = w->block->block;
    *item = (struct ku_ds_item){.key = ku_asprintf("%s%s%s", block, *block ? "." : "", key),
                                .spelled = ku_asprintf("%s%s", w->spelled, spelled),
                                .value = value};
    *out = item;
    return item->key && item->spelled ? KUMI_OK : KUMI_ENOMEM;
}

static int say_why(struct ku_ds_item *item, enum ku_ds_verdict verdict, const char *why)
{
    item->verdict = verdict;
    item->why = *why ? ku_strdup(why) : NULL;
    return *why && item->why == NULL ? KUMI_ENOMEM : KUMI_OK;
}

static bool is_of(const struct walk *w, const struct ku_ds_row *row)
{
    return strcmp(row->block, w->block->block) == 0 &&
           (*row->of == '\0' || ku_ds_has_word(row->of, w->of, 0));
}

/* Finds the value under the row's key or an alias, and the spelling used. Two spellings at once are
 * refused with DeepSpeed's message. */
static int look_up(const struct ku_config *cfg, const struct walk *w, const struct ku_ds_row *row,
                   char name[MAX_KEY_BYTES], json_t **value)
{
    char words[MAX_KEY_BYTES], spelled[MAX_KEY_BYTES * 2], text[MAX_KEY_BYTES * 2], *rest = words;
    *value = json_object_get(w->object, row->key);
    snprintf(name, MAX_KEY_BYTES, "%s", row->key);
    snprintf(words, sizeof words, "%s", row->aliases);
    for (char *word; (word = strsep(&rest, " ")) != NULL;) {
        const char sign = *word;
        word += sign == '-' || sign == '+';
        json_t *v = *word ? json_object_get(w->object, word) : NULL;
        if (v == NULL)
            continue;
        if (*value) {
            const char *old = sign == '+' ? name : word, *new = sign == '+' ? word : name;
            snprintf(spelled, sizeof spelled, "%s%s", w->spelled, old);
            snprintf(text, sizeof text,
                     "Cannot provide deprecated parameter '%s' and replacing parameter '%s' "
                     "together; leave the first out",
                     old, new);
            return ku_ds_refuse(cfg, spelled, sign == '+' ? *value : v, text);
        }
        if (sign == '+')
            continue;
        *value = v;
        snprintf(name, MAX_KEY_BYTES, "%s", word);
    }
    return KUMI_OK;
}

/* Whether a value means off: null, false or {"enabled": false}. */
static bool is_off(const json_t *v)
{
    return json_is_null(v) || json_is_false(v) ||
           (json_is_object(v) && !json_is_true(json_object_get(v, "enabled")) &&
            json_object_get(v, "enabled"));
}

static int decide(struct ku_config *cfg, const struct walk *w, const struct ku_ds_row *row,
                  uint32_t at)
{
    struct ku_ds_item *item = &cfg->deepspeed->item[at];
    char text[MAX_KEY_BYTES];
    if (w->is_off) {
        snprintf(text, sizeof text, "%s.%s is %s", w->block->block, w->block->gate,
                 strcmp(w->block->gate, "enabled") == 0 ? "false" : "\"none\"");
        return say_why(item, KU_DS_NO_EFFECT, text);
    }
    if (strncmp(row->key, "stage3_", 7) == 0) {
        const int64_t stage = json_integer_value(ku_ds_find(cfg->deepspeed, STAGE)->value);
        snprintf(text, sizeof text, STAGE " is %lld", (long long)stage);
        if (stage != 3)
            return say_why(item, KU_DS_NO_EFFECT, text);
    }
    if (row->verdict == KU_DS_APPLIED && *row->target == '\0')
        return say_why(item, KU_DS_NO_EFFECT, ""); /* "type": see take_choice */
    if (row->verdict == KU_DS_APPLIED)
        return ku_ds_apply(cfg, at, row->target, row->value, 0, w->object != NULL);
    if (row->verdict == KU_DS_REFUSED) {
        json_t *usual = ku_ds_default(row);
        const int is_usual = ku_config_is_same(usual, item->value) || is_off(item->value);
        json_decref(usual);
        return is_usual ? say_why(item, KU_DS_NO_EFFECT, "off")
                        : say_why(item, KU_DS_REFUSED, row->help);
    }
    return say_why(item, KU_DS_NO_EFFECT, row->help);
}

static int walk_block(struct ku_config *cfg, const char *name, const char *spelled,
                      const json_t *object, const char *of, int is_void);

/* Walks a member that is a section. */
static int take_block(struct ku_config *cfg, const struct walk *w, const struct ku_ds_row *row,
                      const char *name, json_t *v)
{
    char block[MAX_KEY_BYTES * 2], spelled[MAX_KEY_BYTES * 2];
    const char *parent = w->block->block;
    json_t *old = NULL;
    snprintf(block, sizeof block, "%s%s%s", parent, *parent ? "." : "", row->key);
    snprintf(spelled, sizeof spelled, "%s%s", w->spelled, name);
    if (json_is_boolean(v) && strcmp(block, "zero_optimization") == 0)
        v = old = json_pack("{s:i}", "stage", json_is_true(v)); /* older form: a boolean */
    if (v && json_is_null(v))
        v = NULL;
    if (v == NULL && *w->of) /* a type without params has their defaults */
        v = old = json_object();
    if (v && !json_is_object(v))
        return ku_ds_refuse(cfg, spelled, v, "an object");
    snprintf(spelled, sizeof spelled, "%s%s.", w->spelled, name);
    int status = walk_block(cfg, block, spelled, v, w->of, w->is_child_void);
    json_decref(old);
    return status;
}

static int take_row(struct ku_config *cfg, const struct walk *w, const struct ku_ds_row *row)
{
    struct ku_deepspeed *ds = cfg->deepspeed;
    struct ku_ds_item *item;
    enum ku_ds_source source = KU_DS_FILE;
    char name[MAX_KEY_BYTES], spelled[MAX_KEY_BYTES * 2];
    json_t *v, *value = NULL;
    KU_TRY(look_up(cfg, w, row, name, &v));
    if (row->type == KU_DS_BLOCK)
        return take_block(cfg, w, row, name, v);
    snprintf(spelled, sizeof spelled, "%s%s", w->spelled, name);
    if (v == NULL || json_is_null(v)) {
        source = KU_DS_DEFAULT;
        value = ku_ds_default(row);
    } else if (row->type != KU_DS_ANY && json_is_string(v) &&
               strcmp(json_string_value(v), "auto") == 0) {
        source = KU_DS_AUTO;
        KU_TRY(ku_ds_fill(cfg, row, spelled, w->block->is_checked, &value));
    } else {
        KU_TRY(ku_ds_read(cfg, row, spelled, v, &value));
    }
    KU_TRY(add_item(ds, w, row->key, name, value, &item));
    item->source = source;
    return decide(cfg, w, row, ds->n_items - 1);
}

/* Handles the key "type" of a section, which selects the rows that follow. */
static int take_choice(struct ku_config *cfg, struct walk *w)
{
    struct ku_deepspeed *ds = cfg->deepspeed;
    const json_t *type = json_object_get(w->object, "type");
    const struct ku_ds_choice *c = NULL;
    const char *names[MAX_NAMES], *near;
    char key[MAX_KEY_BYTES], text[MAX_KEY_BYTES];
    int n = 0;
    for (int i = 0; i < ku_ds_n_choices; i++) {
        if (strcmp(ku_ds_choices[i].block, w->block->block) != 0)
            continue;
        names[n++] = ku_ds_choices[i].name;
        if (json_is_string(type) && strcasecmp(json_string_value(type), names[n - 1]) == 0)
            c = &ku_ds_choices[i];
    }
    if (n == 0)
        return KUMI_OK;
    w->is_child_void = c == NULL || *c->target == '\0';
    w->of = c ? c->name : "";
    if (!json_is_string(type))
        return KUMI_OK; /* no type: DeepSpeed has no optimizer or scheduler */
    snprintf(key, sizeof key, "%s.type", w->block->block);
    const uint32_t at = (uint32_t)(ku_ds_find(ds, key) - ds->item);
    if (c && *c->target)
        return ku_ds_apply(cfg, at, c->target, "null", 1, 1);
    near = c ? NULL : ku_str_nearest(json_string_value(type), names, n);
    snprintf(text, sizeof text, "%s%s%s",
             c      ? c->help
             : near ? "did you mean "
                    : "it is not here",
             near ? near : "", near ? "?" : "");
    ku_free(ds->item[at].why);
    return say_why(&ds->item[at], KU_DS_REFUSED, text);
}

/* Handles a member: no error if a row has its name or alias; otherwise it is unknown. */
static int take_unknown(struct ku_config *cfg, const struct walk *w, const char *key, json_t *v)
{
    struct ku_ds_item *item;
    const char *names[MAX_NAMES];
    char spelled[MAX_KEY_BYTES], text[MAX_KEY_BYTES];
    int n = 0;
    for (int i = 0; i < ku_ds_n_rows; i++) {
        const struct ku_ds_row *row = &ku_ds_rows[i];
        char words[MAX_KEY_BYTES], *rest = words;
        if (!is_of(w, row) || w->is_void)
            continue;
        snprintf(words, sizeof words, "%s", row->aliases);
        for (char *word; (word = strsep(&rest, " ")) != NULL;)
            if (*word != '+' && strcmp(*word == '-' ? word + 1 : word, key) == 0)
                return KUMI_OK;
        if (strcmp(row->key, key) == 0)
            return KUMI_OK;
        if (n < MAX_NAMES)
            names[n++] = row->key;
    }
    const char *near = ku_str_nearest(key, names, n);
    snprintf(spelled, sizeof spelled, "%s%.200s", w->spelled, key);
    snprintf(text, sizeof text, "unknown key%s%s%s", near ? "; did you mean " : "",
             near ? near : "", near ? "?" : "");
    if (w->is_void || (!w->block->is_checked && !cfg->deepspeed->is_strict)) {
        KU_TRY(add_item(cfg->deepspeed, w, key, key, json_incref(v), &item));
        return w->is_void ? say_why(item, KU_DS_NO_EFFECT, "of a type that is not used")
                          : say_why(item, KU_DS_UNKNOWN, text);
    }
    char at[KU_WHERE_BYTES];
    return KU_ERR(KUMI_EINVAL, "config: %s: %s%s%s", ku_ds_place(cfg, spelled, at), text,
                  w->of && *w->of ? " of type " : "", w->of ? w->of : "");
}

/* Whether a gate key's value switches the section off. */
static bool is_no(const json_t *v)
{
    return json_is_false(v) || (json_is_string(v) && strcmp(json_string_value(v), "none") == 0);
}

static int walk_block(struct ku_config *cfg, const char *name, const char *spelled,
                      const json_t *object, const char *of, int is_void)
{
    struct walk w = {.object = object, .spelled = spelled, .of = of, .is_void = is_void};
    const char *key;
    json_t *v;
    for (int i = 0; i < ku_ds_n_blocks; i++)
        if (strcmp(ku_ds_blocks[i].block, name) == 0)
            w.block = &ku_ds_blocks[i];
    KU_ASSERT(w.block != NULL);
    for (int i = 0; i < ku_ds_n_rows; i++) {
        if (!is_of(&w, &ku_ds_rows[i]) || is_void)
            continue;
        KU_TRY(take_row(cfg, &w, &ku_ds_rows[i]));
        if (strcmp(ku_ds_rows[i].key, "type") == 0)
            KU_TRY(take_choice(cfg, &w));
        if (strcmp(ku_ds_rows[i].key, w.block->gate) == 0)
            w.is_off = is_no(cfg->deepspeed->item[cfg->deepspeed->n_items - 1].value);
    }
    json_object_foreach((json_t *)(uintptr_t)object, key, v) KU_TRY(take_unknown(cfg, &w, key, v));
    return KUMI_OK;
}

static int open_document(struct ku_config *cfg, const json_t *v)
{
    struct ku_deepspeed *ds = cfg->deepspeed;
    if (json_is_object(v)) {
        ds->root = json_incref((json_t *)(uintptr_t)v);
        return KUMI_OK;
    }
    if (!json_is_string(v))
        return ku_config_refuse(cfg, "deepspeed", v, "the path of a file, or an object");
    KU_TRY(ku_hjson_load(json_string_value(v), &ds->doc));
    ds->root = json_incref(ds->doc.root);
    return json_is_object(ds->root) ? KUMI_OK : ku_ds_refuse(cfg, "", ds->root, "an object");
}

int ku_deepspeed_translate(struct ku_config *cfg, ku_model_width *width)
{
    json_t *v = json_incref(json_object_get(cfg->root, "deepspeed"));
    json_t *strict = json_incref(json_object_get(cfg->root, "deepspeed_strict"));
    int status = KUMI_OK;
    if (strict && !json_is_boolean(strict))
        status = ku_config_refuse(cfg, "deepspeed_strict", strict, "true or false");
    if (status == KUMI_OK && v && !json_is_null(v)) {
        cfg->deepspeed = ku_calloc(1, sizeof *cfg->deepspeed);
        status = cfg->deepspeed ? open_document(cfg, v) : KUMI_ENOMEM;
        if (status == KUMI_OK) {
            cfg->deepspeed->width = width;
            cfg->deepspeed->is_strict = json_is_true(strict);
            status = walk_block(cfg, "", "", cfg->deepspeed->root, "", 0);
        }
        if (status == KUMI_OK)
            status = ku_ds_check_rules(cfg);
        if (status == KUMI_OK)
            status = ku_ds_settle(cfg);
    }
    json_object_del(cfg->root, "deepspeed");
    json_object_del(cfg->root, "deepspeed_strict");
    json_decref(strict);
    json_decref(v);
    return status;
}

int ku_deepspeed_merge(struct ku_config *cfg)
{
    const struct ku_deepspeed *ds = cfg->deepspeed;
    const struct ku_ds_item *first = NULL;
    char text[KU_WHERE_BYTES];
    int n = 0;
    for (uint32_t i = 0; ds && i < ds->n_items; i++)
        if (ds->item[i].verdict == KU_DS_REFUSED && n++ == 0)
            first = &ds->item[i];
    if (n > 1)
        snprintf(text, sizeof text, "%.400s; %d more refused: see --explain-deepspeed", first->why,
                 n - 1);
    if (n > 0)
        return ku_ds_refuse(cfg, first->spelled, first->value, n > 1 ? text : first->why);
    for (uint32_t i = 0; ds && i < ds->n_sets; i++)
        KU_TRY(ku_json_set(cfg->root, ds->set[i].path, json_incref(ds->set[i].value)));
    return KUMI_OK;
}

void ku_deepspeed_destroy(struct ku_deepspeed *ds)
{
    if (ds == NULL)
        return;
    for (uint32_t i = 0; i < ds->n_items; i++) {
        ku_free(ds->item[i].key);
        ku_free(ds->item[i].spelled);
        ku_free(ds->item[i].why);
        json_decref(ds->item[i].value);
        json_decref(ds->item[i].effect);
    }
    for (uint32_t i = 0; i < ds->n_sets; i++) {
        ku_free(ds->set[i].path);
        json_decref(ds->set[i].value);
    }
    ku_free(ds->item);
    ku_free(ds->set);
    json_decref(ds->root);
    ku_json_fini(&ds->doc);
    ku_free(ds);
}

const char *ku_deepspeed_where(const struct ku_config *cfg, const char *path,
                               char out[KU_WHERE_BYTES])
{
    const struct ku_deepspeed *ds = cfg->deepspeed;
    for (uint32_t i = 0; ds && i < ds->n_sets; i++)
        if (strcmp(ds->set[i].path, path) == 0)
            return ku_ds_place(cfg, ds->item[ds->set[i].item].spelled, out);
    return NULL;
}

void ku_deepspeed_warn(const struct ku_config *cfg)
{
    const struct ku_deepspeed *ds = cfg->deepspeed;
    char at[KU_WHERE_BYTES];
    for (uint32_t i = 0; ds && i < ds->n_items; i++)
        if (ds->item[i].verdict == KU_DS_UNKNOWN)
            ku_term_line("kumi: %s: %s DeepSpeed ignores it, too",
                         ku_ds_place(cfg, ds->item[i].spelled, at), ds->item[i].why);
}
