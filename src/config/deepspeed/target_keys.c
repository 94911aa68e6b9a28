/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Applies items to kumi's keys. Each target word gives a setting (key, value, implied or given).
 * ku_ds_settle then compares all settings with the keys of the configuration:
 *
 *     configuration's key    given setting               implied setting
 *     absent                 the setting applies         the setting applies
 *     equal                  the setting applies         the configuration applies
 *     different              the item is refused         the configuration applies
 *     set by a report        the configuration applies, also with null
 *
 * Reports that plan a configuration under other layouts set keys that a given setting sets, too.
 */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "config/deepspeed/deepspeed_impl.h"

enum { MAX_TARGET_BYTES = 256 };

/* One parsed word of a target (syntax: deepspeed.def). */
struct target {
    char path[MAX_TARGET_BYTES], after[MAX_TARGET_BYTES]; /* way or word */
    const char *usual;                                    /* the part after '#'; "": none */
    int is_implied, is_inverse, has_word;
};

static void take_apart(const char *text, struct target *t)
{
    *t = (struct target){0};
    for (; *text == '?' || *text == '!' || *text == '@'; text++) {
        t->is_implied |= *text == '?';
        t->is_inverse |= *text == '!';
    }
    const size_t n = strcspn(text, ":=#"), end = strcspn(text, "#");
    snprintf(t->path, sizeof t->path, "%.*s", (int)n, text);
    t->has_word = text[n] == '=';
    if (n < end)
        snprintf(t->after, sizeof t->after, "%.*s", (int)(end - n - 1), text + n + 1);
    t->usual = text[end] ? text + end + 1 : "";
}

/* The value for the target key; NULL: it is not set. New reference. */
static json_t *wanted(const struct target *t, const json_t *value, int is_choice)
{
    if (json_is_null(value))
        return NULL;
    if (!t->has_word)
        return ku_ds_convert(t->after, value);
    if (!is_choice && json_is_true(value) == t->is_inverse)
        return NULL;
    json_t *word = json_loads(t->after, JSON_DECODE_ANY, NULL);
    return word ? word : json_string(t->after);
}

/* Gives an item the verdict refused, with the message before + path: value + after. */
static int refuse(struct ku_ds_item *item, const char *before, const char *path, const json_t *v,
                  const char *after)
{
    char *text = ku_json_print(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15));
    json_decref(item->effect);
    item->effect = NULL;
    int status = ku_ds_say(item, KU_DS_REFUSED,
                           ku_asprintf("%s%s: %s%s", before, path, text ? text : "", after));
    ku_free(text);
    return status;
}

static int show(struct ku_ds_item *item, const char *path, json_t *v)
{
    if (item->effect == NULL)
        item->effect = json_object();
    return json_object_set(item->effect, path, v) == 0
               ? KUMI_OK
               : KU_ERR(KUMI_ENOMEM, "deepspeed: %s: no memory", path);
}

/* Records a setting of a key. Given settings override implied ones; of two given settings, one with
 * '!' overrides the other, else the second is refused. */
static int set(struct ku_deepspeed *ds, uint32_t at, const struct target *t, json_t *v)
{
    struct ku_ds_item *item = &ds->item[at];
    const int is_implied = t->is_implied || item->source != KU_DS_FILE;
    KU_TRY(show(item, t->path, v));
    for (uint32_t i = 0; i < ds->n_sets; i++) {
        struct ku_ds_set *s = &ds->set[i];
        if (strcmp(s->path, t->path) != 0)
            continue;
        if (ku_config_is_same(s->value, v) || (is_implied && !s->is_implied))
            return KUMI_OK;
        if (!s->is_implied && !t->is_inverse)
            return refuse(item, "another key sets ", t->path, s->value, "; give one of the two");
        json_decref(s->value);
        s->value = json_incref(v);
        s->item = at;
        s->is_implied = is_implied;
        return KUMI_OK;
    }
    KU_TRY(KU_GROW(&ds->set, ds->n_sets, &ds->cap_sets));
    ds->set[ds->n_sets] = (struct ku_ds_set){
        .path = ku_strdup(t->path), .value = json_incref(v), .item = at, .is_implied = is_implied};
    return ds->set[ds->n_sets++].path ? KUMI_OK : KUMI_ENOMEM;
}

/* An item of the form key=word with value false: refused if the configuration gives that word. */
static int deny(struct ku_config *cfg, struct ku_ds_item *item, const struct target *t)
{
    json_t *own = ku_ds_own(cfg, t->path);
    const char *word = json_string_value(own);
    return word && t->has_word && !t->is_implied && !t->is_inverse && item->source == KU_DS_FILE &&
                   strcmp(word, t->after) == 0
               ? refuse(item, "it contradicts ", t->path, own, "; give one of the two")
               : KUMI_OK;
}

static int apply_one(struct ku_config *cfg, uint32_t at, struct target *t, const char *fallback,
                     int is_choice, int is_present)
{
    struct ku_ds_item *item = &cfg->deepspeed->item[at];
    const struct ku_key *key = ku_key_find(t->path);
    const int is_given = item->source != KU_DS_DEFAULT;
    json_t *v = wanted(t, item->value, is_choice), *usual = NULL;
    const char *word = json_string_value(v);
    int status = KUMI_OK;
    if (v == NULL)
        return deny(cfg, item, t);
    if (key == NULL ||
        (key->type == KU_TYPE_ENUM && word && ku_str_find_word(key->allowed.words, word) < 0)) {
        usual = json_loads(fallback, JSON_DECODE_ANY, NULL);
        if (!t->is_implied && is_given && !ku_config_is_same(usual, item->value) &&
            !(word && strcmp(word, t->usual) == 0))
            status = refuse(item, "not supported in this build: ", t->path, v, "");
    } else if (is_given || (is_present && key->mark != KU_KEY_LAYOUT)) {
        status = set(cfg->deepspeed, at, t, v);
    }
    json_decref(usual);
    json_decref(v);
    return status;
}

int ku_ds_apply(struct ku_config *cfg, uint32_t at, const char *targets, const char *fallback,
                int is_choice, int is_present)
{
    struct ku_ds_item *item = &cfg->deepspeed->item[at];
    struct target t;
    char words[MAX_TARGET_BYTES * 2], *rest = words;
    snprintf(words, sizeof words, "%s", targets);
    item->verdict = KU_DS_APPLIED;
    for (char *word; item->verdict != KU_DS_REFUSED && (word = strsep(&rest, " ")) != NULL;) {
        take_apart(word, &t);
        KU_TRY(apply_one(cfg, at, &t, fallback, is_choice, is_present));
    }
    if (item->verdict == KU_DS_APPLIED && item->effect == NULL) {
        item->verdict = KU_DS_NO_EFFECT;
        item->why = item->source == KU_DS_DEFAULT ? NULL : ku_strdup("as without it");
    }
    return KUMI_OK;
}

/* Compares a setting with the configuration's key of that path. */
static int settle(const struct ku_config *cfg, struct ku_ds_item *item, struct ku_ds_set *s)
{
    char place[KU_WHERE_BYTES], text[KU_WHERE_BYTES + 64];
    const bool is_over = ku_config_is_over(cfg, s->path);
    json_t *own = ku_ds_own(cfg, s->path);
    if (own == NULL && !is_over)
        return KUMI_OK;
    s->is_own = is_over || s->is_implied;
    if (own && ku_config_is_same(own, s->value))
        return KUMI_OK;
    snprintf(text, sizeof text, " (%s); give one of the two, or equal values",
             ku_config_place(cfg, s->path, place));
    if (!s->is_own)
        KU_TRY(refuse(item, "it contradicts ", s->path, own, text));
    else if (item->source == KU_DS_DEFAULT)
        item->verdict = KU_DS_NO_EFFECT; /* its effect shows the final value */
    json_decref(s->value);
    s->value = own ? json_incref(own) : json_null();
    return KUMI_OK;
}

/* Compares the settings with the configuration's own keys, which override implied settings and
 * contradict others. */
int ku_ds_settle(struct ku_config *cfg)
{
    struct ku_deepspeed *ds = cfg->deepspeed;
    json_t *value;
    for (uint32_t i = 0; i < ds->n_sets; i++)
        KU_TRY(settle(cfg, &ds->item[ds->set[i].item], &ds->set[i]));
    for (uint32_t i = 0; i < ds->n_items; i++)
        for (uint32_t k = 0; k < ds->n_sets; k++) {
            value = json_object_get(ds->item[i].effect, ds->set[k].path);
            if (value && value != ds->set[k].value)
                KU_TRY(show(&ds->item[i], ds->set[k].path, ds->set[k].value));
        }
    return KUMI_OK;
}
