/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks a DeepSpeed configuration along the table deepspeed.def: every row of a section becomes an
 * item with a value, its source (file, default, auto) and a verdict. Applied rows add settings of
 * kumi's keys (target_keys.c). The settings are merged after the whole walk, so that the table of
 * verdicts can be printed even if some keys are refused.
 */
#include "config/deepspeed.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/err.h"
#include "base/json/hjson.h"
#include "base/mem.h"
#include "base/log.h"
#include "config/deepspeed/deepspeed_impl.h"

enum { CHECKED = 1, OPEN = 0 };
#define RANGE KU_RANGE
#define WORDS KU_WORDS
#define ANY   KU_ANY
#define DS_BLOCK(section, key, aliases, kind, gate)                                                \
    {#section, "", #key, KU_DS_BLOCK, "null", ANY, aliases, KU_DS_APPLIED, "", "", kind, gate},
#define DS_TYPE(section, type, target, help)                                                       \
    {#section, "",   #type, KU_DS_CHOICE,                                                          \
     "null",   ANY,  "",    sizeof target > 1 ? KU_DS_APPLIED : KU_DS_REFUSED,                     \
     target,   help, 0,     ""},
#define DS(section, of, key, type, value, allowed, aliases, verdict, target, help)                 \
    {#section, of, #key, KU_DS_##type, value, allowed, aliases, KU_DS_##verdict, target,           \
     help,     0,  ""},
const struct ku_ds_row ku_ds_rows[] = {
#include "config/deepspeed/deepspeed.def"
};
const int ku_ds_n_rows = sizeof ku_ds_rows / sizeof ku_ds_rows[0];

#define STAGE "zero_optimization.stage" /* its row precedes the keys of stage 3 */
enum { MAX_KEY_BYTES = 256, MAX_NAMES = 256 };

/* The section that is being walked. */
struct walk {
    const char *name;            /* "zero_optimization" */
    const struct ku_ds_row *row; /* of the section; that of the whole file has empty texts */
    json_t *object;              /* NULL: not given */
    const char *spelled;         /* "zero_optimization.", as spelled in the file */
    const char *of;              /* value of "type", which selects the rows; "": all rows */
    int is_off;                  /* the section is switched off by its gate key */
    int is_void;       /* its "type" is absent or not supported: its keys are not checked */
    int is_child_void; /* the same for sections inside it */
};

/* The place of a key for messages, "c.json:3:5: <key as spelled>". Returns out. */
static const char *place_of(const struct ku_config *cfg, const char *spelled,
                            char out[KU_WHERE_BYTES])
{
    const struct ku_deepspeed *ds = cfg->deepspeed;
    char path[MAX_KEY_BYTES + 16], at[KU_WHERE_BYTES];
    int line, column;
    if (ds->doc.name) {
        ku_json_where(&ds->doc, spelled, 0, &line, &column);
        snprintf(out, KU_WHERE_BYTES, "%.200s:%d:%d%s%.200s", ds->doc.name, line ? line : 1,
                 column ? column : 1, *spelled ? ": " : "", spelled);
    } else {
        snprintf(path, sizeof path, "deepspeed.%.200s", spelled);
        snprintf(out, KU_WHERE_BYTES, "%.280s: %.200s", ku_config_place(cfg, path, at), path);
    }
    return out;
}

int ku_ds_refuse(const struct ku_config *cfg, const char *spelled, const json_t *value,
                 const char *format, ...)
{
    const size_t as_written = JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15);
    char at[KU_WHERE_BYTES], wanted[1024], *text = value ? ku_json_print(value, as_written) : NULL;
    va_list args;
    va_start(args, format);
    vsnprintf(wanted, sizeof wanted, format, args);
    va_end(args);
    int status = KU_ERR(KUMI_EINVAL, "config: %s: %.80s; %s", place_of(cfg, spelled, at),
                        text ? text : "missing", wanted);
    ku_free(text);
    return status;
}

int ku_ds_say(struct ku_ds_item *item, enum ku_ds_verdict verdict, char *why)
{
    ku_free(item->why);
    item->verdict = verdict;
    item->why = why;
    return why ? KUMI_OK : KUMI_ENOMEM;
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
    *item = (struct ku_ds_item){.key = ku_asprintf("%s%s%s", w->name, *w->name ? "." : "", key),
                                .spelled = ku_asprintf("%s%s", w->spelled, spelled),
                                .value = value};
    *out = item;
    return item->key && item->spelled ? KUMI_OK : KUMI_ENOMEM;
}

static bool is_of(const struct walk *w, const struct ku_ds_row *row)
{
    return row->type != KU_DS_CHOICE && strcmp(row->section, w->name) == 0 &&
           (*row->of == '\0' || ku_str_find_word(row->of, w->of) >= 0);
}

/* How a name spells the row's key: '=' the key or an alias, '-' a deprecated alias, '+' a key that
 * excludes it; 0: another key. */
static char spelling(const struct ku_ds_row *row, const char *name)
{
    const size_t bytes = strlen(name);
    if (strcmp(row->key, name) == 0)
        return '=';
    for (const char *p = row->aliases; *p; p += strcspn(p, " "), p += *p == ' ') {
        const char sign = *p == '-' || *p == '+' ? *p : '=';
        const char *word = p + (sign != '=');
        if (strcspn(word, " ") == bytes && memcmp(word, name, bytes) == 0)
            return sign;
    }
    return 0;
}

static int refuse_both(const struct ku_config *cfg, const struct walk *w, const char *old,
                       const char *new)
{
    char spelled[MAX_KEY_BYTES * 2];
    snprintf(spelled, sizeof spelled, "%s%s", w->spelled, old);
    return ku_ds_refuse(cfg, spelled, json_object_get(w->object, old),
                        "Cannot provide deprecated parameter '%s' and replacing parameter '%s' "
                        "together; leave the first out",
                        old, new);
}

/* Finds the value of the row's key and the spelling used. Two spellings at once are refused with
 * DeepSpeed's message. */
static int look_up(const struct ku_config *cfg, const struct walk *w, const struct ku_ds_row *row,
                   const char **name, json_t **value)
{
    const char *found = NULL, *replacing = NULL, *key;
    json_t *v;
    *name = row->key;
    *value = NULL;
    json_object_foreach(w->object, key, v)
    {
        const char sign = spelling(row, key);
        if (sign == '+')
            replacing = key;
        else if (sign && found)
            return strcmp(key, row->key) == 0 ? refuse_both(cfg, w, found, key)
                                              : refuse_both(cfg, w, key, found);
        else if (sign) {
            *name = found = key;
            *value = v;
        }
    }
    return found && replacing ? refuse_both(cfg, w, found, replacing) : KUMI_OK;
}

/* Whether a value means off: null, false, "none" or {"enabled": false}. */
static bool is_off(const json_t *v)
{
    const json_t *enabled = json_object_get(v, "enabled");
    const char *word = json_string_value(v);
    return json_is_null(v) || json_is_false(v) || (word && strcmp(word, "none") == 0) ||
           (enabled && !json_is_true(enabled));
}

static int decide(struct ku_config *cfg, const struct walk *w, const struct ku_ds_row *row,
                  uint32_t at)
{
    struct ku_ds_item *item = &cfg->deepspeed->item[at];
    int64_t stage = 3;
    item->verdict = KU_DS_NO_EFFECT;
    if (w->is_off)
        return ku_ds_say(item, KU_DS_NO_EFFECT,
                         ku_asprintf("%s.%s is %s", w->name, w->row->gate,
                                     strcmp(w->row->gate, "enabled") == 0 ? "false" : "\"none\""));
    if (strncmp(row->key, "stage3_", 7) == 0)
        stage = json_integer_value(ku_ds_find(cfg->deepspeed, STAGE)->value);
    if (stage != 3)
        return ku_ds_say(item, KU_DS_NO_EFFECT, ku_asprintf(STAGE " is %lld", (long long)stage));
    if (row->verdict == KU_DS_APPLIED && *row->target == '\0')
        return KUMI_OK; /* "type": see take_choice */
    if (row->verdict == KU_DS_APPLIED)
        return ku_ds_apply(cfg, at, row->target, row->value, 0, w->object != NULL);
    json_t *usual = ku_ds_default(row);
    const bool is_usual = ku_config_is_same(usual, item->value) || is_off(item->value);
    json_decref(usual);
    return ku_ds_say(item, is_usual ? KU_DS_NO_EFFECT : row->verdict,
                     ku_strdup(is_usual && row->verdict == KU_DS_REFUSED ? "off" : row->help));
}

static int walk_block(struct ku_config *cfg, struct walk *w);

/* Walks a member that is a section. */
static int take_block(struct ku_config *cfg, const struct walk *w, const struct ku_ds_row *row,
                      const char *name, json_t *v)
{
    char section[MAX_KEY_BYTES * 2], spelled[MAX_KEY_BYTES * 2];
    json_t *made = NULL;
    snprintf(section, sizeof section, "%s%s%s", w->name, *w->name ? "." : "", row->key);
    snprintf(spelled, sizeof spelled, "%s%s", w->spelled, name);
    if (json_is_boolean(v) && strcmp(section, "zero_optimization") == 0)
        v = made = json_pack("{s:i}", "stage", json_is_true(v)); /* older form: a boolean */
    if (v && json_is_null(v))
        v = NULL;
    if (v == NULL && *w->of) /* a type without params has their defaults */
        v = made = json_object();
    if (v && !json_is_object(v))
        return ku_ds_refuse(cfg, spelled, v, "an object");
    snprintf(spelled, sizeof spelled, "%s%s.", w->spelled, name);
    int status = walk_block(cfg, &(struct walk){.name = section,
                                                .row = row,
                                                .object = v,
                                                .spelled = spelled,
                                                .of = w->of,
                                                .is_void = w->is_child_void});
    json_decref(made);
    return status;
}

static int take_row(struct ku_config *cfg, const struct walk *w, const struct ku_ds_row *row)
{
    struct ku_deepspeed *ds = cfg->deepspeed;
    struct ku_ds_item *item;
    enum ku_ds_source source = KU_DS_FILE;
    const char *name;
    char spelled[MAX_KEY_BYTES * 2];
    json_t *v, *value = NULL;
    KU_TRY(look_up(cfg, w, row, &name, &v));
    if (row->type == KU_DS_BLOCK)
        return take_block(cfg, w, row, name, v);
    snprintf(spelled, sizeof spelled, "%s%s", w->spelled, name);
    if (v == NULL || json_is_null(v)) {
        source = KU_DS_DEFAULT;
        value = ku_ds_default(row);
    } else if (row->type != KU_DS_ANY && json_is_string(v) &&
               strcmp(json_string_value(v), "auto") == 0) {
        source = KU_DS_AUTO;
        KU_TRY(ku_ds_fill(cfg, row, spelled, w->row->is_checked, &value));
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
    const char *type = json_string_value(json_object_get(w->object, "type"));
    const struct ku_ds_row *c = NULL;
    const char *names[MAX_NAMES];
    int n = 0;
    for (int i = 0; i < ku_ds_n_rows; i++) {
        const struct ku_ds_row *row = &ku_ds_rows[i];
        if (row->type != KU_DS_CHOICE || strcmp(row->section, w->name) != 0)
            continue;
        names[n++] = row->key;
        if (type && strcasecmp(type, row->key) == 0)
            c = row;
    }
    if (n == 0)
        return KUMI_OK;
    w->is_child_void = c == NULL || *c->target == '\0';
    w->of = c ? c->key : "";
    if (type == NULL)
        return KUMI_OK;                  /* no type: DeepSpeed has no optimizer or scheduler */
    const uint32_t at = ds->n_items - 1; /* of "type" */
    if (c && *c->target)
        return ku_ds_apply(cfg, at, c->target, "null", 1, 1);
    const char *near = c ? NULL : ku_str_nearest(type, names, n);
    return ku_ds_say(&ds->item[at], KU_DS_REFUSED,
                     near ? ku_asprintf("did you mean %s?", near)
                          : ku_strdup(c ? c->help : "it is unknown"));
}

/* Handles a member: no error if a row has its name or alias; otherwise it is unknown. */
static int take_unknown(struct ku_config *cfg, const struct walk *w, const char *key, json_t *v)
{
    struct ku_ds_item *item;
    const char *names[MAX_NAMES];
    char spelled[MAX_KEY_BYTES], text[MAX_KEY_BYTES], at[KU_WHERE_BYTES];
    int n = 0;
    for (int i = 0; i < ku_ds_n_rows && !w->is_void; i++) {
        const struct ku_ds_row *row = &ku_ds_rows[i];
        const char sign = is_of(w, row) ? spelling(row, key) : 0;
        if (sign == '=' || sign == '-')
            return KUMI_OK;
        if (is_of(w, row) && n < MAX_NAMES)
            names[n++] = row->key;
    }
    const char *near = ku_str_nearest(key, names, n);
    snprintf(text, sizeof text, "unknown key%s%s%s", near ? "; did you mean " : "",
             near ? near : "", near ? "?" : "");
    if (w->is_void || (!w->row->is_checked && !cfg->deepspeed->is_strict)) {
        KU_TRY(add_item(cfg->deepspeed, w, key, key, json_incref(v), &item));
        return ku_ds_say(item, w->is_void ? KU_DS_NO_EFFECT : KU_DS_UNKNOWN,
                         ku_strdup(w->is_void ? "of a type that is not used" : text));
    }
    snprintf(spelled, sizeof spelled, "%s%.200s", w->spelled, key);
    return KU_ERR(KUMI_EINVAL, "config: %s: %s%s%s", place_of(cfg, spelled, at), text,
                  *w->of ? " of type " : "", w->of);
}

static int walk_block(struct ku_config *cfg, struct walk *w)
{
    const char *key;
    json_t *v;
    for (int i = 0; i < ku_ds_n_rows && !w->is_void; i++) {
        if (!is_of(w, &ku_ds_rows[i]))
            continue;
        KU_TRY(take_row(cfg, w, &ku_ds_rows[i]));
        if (strcmp(ku_ds_rows[i].key, "type") == 0)
            KU_TRY(take_choice(cfg, w));
        if (strcmp(ku_ds_rows[i].key, w->row->gate) == 0)
            w->is_off = is_off(cfg->deepspeed->item[cfg->deepspeed->n_items - 1].value);
    }
    json_object_foreach(w->object, key, v)
    {
        KU_TRY(take_unknown(cfg, w, key, v));
    }
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
    return json_is_object(ds->root)
               ? KUMI_OK
               : ku_ds_refuse(cfg, "", ds->root, "a DeepSpeed configuration is an object");
}

static int walk_document(struct ku_config *cfg, const json_t *document)
{
    static const struct ku_ds_row whole = {.gate = ""};
    KU_TRY(open_document(cfg, document));
    KU_TRY(walk_block(
        cfg,
        &(struct walk){
            .name = "", .row = &whole, .object = cfg->deepspeed->root, .spelled = "", .of = ""}));
    KU_TRY(ku_ds_check_rules(cfg));
    return ku_ds_settle(cfg);
}

int ku_deepspeed_translate(struct ku_config *cfg, ku_model_width *width)
{
    json_t *v = json_object_get(cfg->root, "deepspeed");
    json_t *strict = json_object_get(cfg->root, "deepspeed_strict");
    int status = KUMI_OK;
    if (strict && !json_is_boolean(strict))
        return ku_config_refuse(cfg, "deepspeed_strict", strict, "true or false");
    if (v && !json_is_null(v)) {
        cfg->deepspeed = ku_calloc(1, sizeof *cfg->deepspeed);
        if (cfg->deepspeed == NULL)
            return KUMI_ENOMEM;
        cfg->deepspeed->width = width;
        cfg->deepspeed->is_strict = json_is_true(strict);
        status = walk_document(cfg, v);
    }
    json_object_del(cfg->root, "deepspeed");
    json_object_del(cfg->root, "deepspeed_strict");
    return status;
}

int ku_deepspeed_merge(struct ku_config *cfg)
{
    const struct ku_deepspeed *ds = cfg->deepspeed;
    const struct ku_ds_item *first = NULL;
    int n = 0;
    for (uint32_t i = 0; ds && i < ds->n_items; i++)
        if (ds->item[i].verdict == KU_DS_REFUSED && n++ == 0)
            first = &ds->item[i];
    if (n > 1)
        return ku_ds_refuse(cfg, first->spelled, first->value,
                            "%.400s; %d more refused: see --explain-deepspeed", first->why, n - 1);
    if (n > 0)
        return ku_ds_refuse(cfg, first->spelled, first->value, "%s", first->why);
    for (uint32_t i = 0; ds && i < ds->n_sets; i++)
        KU_TRY(ku_config_set(cfg, ds->set[i].path, json_incref(ds->set[i].value)));
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
        if (!ds->set[i].is_own && strcmp(ds->set[i].path, path) == 0)
            return place_of(cfg, ds->item[ds->set[i].item].spelled, out);
    return NULL;
}

void ku_deepspeed_warn(const struct ku_config *cfg)
{
    const struct ku_deepspeed *ds = cfg->deepspeed;
    char at[KU_WHERE_BYTES];
    for (uint32_t i = 0; ds && i < ds->n_items; i++)
        if (ds->item[i].verdict == KU_DS_UNKNOWN)
            KU_MESSAGE(WARN, "kumi: %s: %s DeepSpeed ignores it, too",
                       place_of(cfg, ds->item[i].spelled, at), ds->item[i].why);
}
