/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values of DeepSpeed keys: type and range checks, "auto" as Hugging Face's trainer resolves it,
 * and conversion to the units of kumi's keys.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "config/deepspeed/deepspeed_impl.h"

json_t *ku_ds_default(const struct ku_ds_row *row)
{
    return json_loads(row->value, JSON_DECODE_ANY, NULL);
}

static bool has_range(const struct ku_ds_row *row)
{
    return row->allowed.min < row->allowed.max;
}

/* Refuses a value with DeepSpeed's own message, where it has one. */
static int refuse_type(const struct ku_config *cfg, const struct ku_ds_row *row,
                       const char *spelled, const json_t *v)
{
    static const char *const name[] = {"an integer", "a number",    "true or false", "a string",
                                       "a list",     "two numbers", "a value"};
    if (strcmp(row->key, "communication_data_type") == 0)
        return ku_ds_refuse(cfg, spelled, v,
                            "Invalid communication_data_type. Supported data types: ['fp16', "
                            "'bf16', 'fp32']. Got: %.60s",
                            json_is_string(v) ? json_string_value(v) : "no string");
    if (strcmp(row->section, "fp16") == 0 && strcmp(row->key, "loss_scale") == 0)
        return ku_ds_refuse(cfg, spelled, v, "fp16.loss_scale must be a %s",
                            json_is_boolean(v) ? "number, not bool" : "finite number >= 0");
    if (row->allowed.words)
        return ku_ds_refuse(cfg, spelled, v, "one of: %.200s", row->allowed.words);
    if (has_range(row))
        return ku_ds_refuse(cfg, spelled, v, "%s from %.15g to %.15g", name[row->type],
                            row->allowed.min, row->allowed.max);
    return ku_ds_refuse(cfg, spelled, v, "%s", name[row->type]);
}

static bool is_within(const struct ku_ds_row *row, double x)
{
    return !has_range(row) || (x >= row->allowed.min && x <= row->allowed.max);
}

/* A boolean as DeepSpeed's pydantic models read it: true, 1 and "true" are equal. -1: no
 * boolean. */
static int truth(const json_t *v)
{
    const char *word = json_string_value(v);
    if (json_is_boolean(v))
        return json_is_true(v);
    if (json_is_integer(v) && (json_integer_value(v) & ~(json_int_t)1) == 0)
        return (int)json_integer_value(v);
    return word && strcasecmp(word, "true") == 0    ? 1
           : word && strcasecmp(word, "false") == 0 ? 0
                                                    : -1;
}

int ku_ds_read(const struct ku_config *cfg, const struct ku_ds_row *row, const char *spelled,
               const json_t *v, json_t **value)
{
    const char *word = json_string_value(v), *words = row->allowed.words;
    int64_t whole = 0;
    bool is_good = 1;
    *value = NULL;
    switch (row->type) {
    case KU_DS_INT:
        is_good = ku_json_int(v, &whole) == 0 && is_within(row, (double)whole);
        *value = is_good ? json_integer(whole) : NULL;
        break;
    case KU_DS_NUM:
        is_good = json_is_number(v) && is_within(row, json_number_value(v));
        break;
    case KU_DS_BOOL:
        is_good = truth(v) >= 0;
        *value = is_good ? json_boolean(truth(v)) : NULL;
        break;
    case KU_DS_TEXT:
        is_good = word && (words == NULL || ku_str_find_word(words, word) >= 0);
        break;
    case KU_DS_PAIR:
        is_good = json_array_size(v) == 2 && json_is_number(json_array_get(v, 0)) &&
                  json_is_number(json_array_get(v, 1));
        break;
    case KU_DS_LIST:
        is_good = json_is_array(v);
        break;
    case KU_DS_ANY:
    case KU_DS_BLOCK:
    case KU_DS_CHOICE:
        break;
    }
    if (is_good && *value == NULL)
        *value = json_incref((json_t *)(uintptr_t)v);
    return is_good ? KUMI_OK : refuse_type(cfg, row, spelled, v);
}

/*
 * Keys with an "auto" of their own:
 *
 *   own         keys of the configuration; the first that is given has the value; NULL: none;
 *               '>': the key is 0 from then on, as the DeepSpeed key has its value
 *   otherwise   the value without them, JSON text; NULL: per_h2 * h^2 + per_h * h for a model of
 *               width h
 */
static const struct automatic {
    const char *key, *own, *otherwise;
    double per_h2, per_h;
} automatic[] = {
    {"warmup_min_lr", NULL, "0", 0, 0},
    {"warmup_max_lr", NULL, "null", 0, 0}, /* optimizer.lr, scaled by optimizer.lr_scaling */
    {"warmup_num_steps", "schedule.warmup_num_steps >schedule.warmup_steps", "0", 0, 0},
    {"total_num_steps", "schedule.total_num_steps train.steps", "null", 0, 0},
    {"reduce_bucket_size", NULL, NULL, 1, 0},
    {"stage3_prefetch_bucket_size", NULL, NULL, 0.9, 0},
    {"stage3_param_persistence_threshold", NULL, NULL, 0, 10},
};

static int fill_by_table(struct ku_config *cfg, const struct automatic *a, const char *spelled,
                         json_t **value)
{
    char words[128], *rest = a->own ? words : NULL;
    int64_t h = 0;
    snprintf(words, sizeof words, "%s", a->own ? a->own : "");
    for (char *path; *value == NULL && (path = strsep(&rest, " ")) != NULL;) {
        const bool is_moved = *path == '>';
        *value = json_incref(ku_ds_own(cfg, path + is_moved));
        if (*value && is_moved && ku_config_set_int(cfg, path + 1, 0) < 0) {
            json_decref(*value);
            return KUMI_ENOMEM;
        }
    }
    if (*value == NULL && a->otherwise)
        *value = json_loads(a->otherwise, JSON_DECODE_ANY, NULL);
    if (*value || a->otherwise)
        return KUMI_OK;
    if (cfg->deepspeed->width)
        KU_TRY(cfg->deepspeed->width(cfg, &h));
    if (h <= 0 || h > INT32_MAX)
        return KU_ERR(KUMI_EINVAL,
                      "config: deepspeed: %s: \"auto\": The model's config file has neither "
                      "`hidden_size` nor `hidden_sizes` entry, therefore it's not possible to "
                      "automatically fill it out; give a number",
                      spelled);
    *value = json_integer((json_int_t)(a->per_h2 * (double)(h * h) + a->per_h * (double)h));
    return KUMI_OK;
}

/* NULL: the key has no "auto" of its own; those of stage 3 have one in stage 3 alone. */
static const struct automatic *find_automatic(const struct ku_config *cfg, const char *key)
{
    int64_t stage = 0;
    ku_json_int(ku_json_at(cfg->deepspeed->root, "zero_optimization.stage"), &stage);
    for (size_t i = 0; i < sizeof automatic / sizeof automatic[0]; i++)
        if (strcmp(automatic[i].key, key) == 0)
            return strncmp(key, "stage3_", 7) == 0 && stage != 3 ? NULL : &automatic[i];
    return NULL;
}

/* The configuration's value of a key, else its default. New reference. */
static json_t *own_or_default(const struct ku_config *cfg, const char *path)
{
    json_t *own = ku_ds_own(cfg, path);
    const struct ku_key *key = ku_key_find(path);
    return own ? json_incref(own) : key ? ku_key_default(key) : json_null();
}

int ku_ds_fill(struct ku_config *cfg, const struct ku_ds_row *row, const char *spelled,
               int is_checked, json_t **value)
{
    const char *eq = strchr(row->target, '='), *compute;
    const struct automatic *a = find_automatic(cfg, row->key);
    const bool is_switch = strcmp(row->key, "enabled") == 0;
    *value = NULL;
    if (*row->target == '@') {
        *value = own_or_default(cfg, row->target + 1);
    } else if (is_switch && eq) { /* fp16, bf16: on if precision.compute has it */
        compute = json_string_value(ku_ds_own(cfg, "precision.compute"));
        *value = json_boolean(compute && strcmp(compute, eq + 1) == 0);
    } else if (a) {
        KU_TRY(fill_by_table(cfg, a, spelled, value));
    } else if (is_switch || is_checked || strcmp(row->section, "amp") == 0) {
        *value = ku_ds_default(row); /* DeepSpeed drops the key */
    } else {
        json_t *word = json_string("auto");
        int status = ku_ds_refuse(cfg, spelled, word,
                                  "nothing fills this key in; give a value, or leave it out");
        json_decref(word);
        return status;
    }
    return *value ? KUMI_OK : KU_ERR(KUMI_ENOMEM, "deepspeed: %s: no memory", spelled);
}

/* The word of `to` at the place that the value has in `from`. NULL: in none. */
static json_t *translate(const json_t *value, const char *from, const char *to)
{
    const char *word = json_string_value(value);
    int at = word ? ku_str_find_word(from, word) : -1;
    for (; at > 0; at--)
        to += strcspn(to, " ") + 1;
    return at < 0 ? NULL : json_stringn(to, strcspn(to, " "));
}

json_t *ku_ds_convert(const char *way, const json_t *value)
{
    const double x = json_number_value(value);
    if (strcmp(way, "dtype") == 0)
        return translate(value, "fp16 bf16 fp32", "f16 bf16 f32");
    if (strcmp(way, "device") == 0)
        return translate(value, "none cpu nvme", "none host file");
    if (strcmp(way, "mib") == 0) /* elements of 4 bytes: 2^18 per MiB */
        return json_real(x / 0x1p18);
    if (strcmp(way, "scale") == 0)
        return x == 0 ? json_string("dynamic") : json_real(x);
    if (strcmp(way, "first") == 0 || strcmp(way, "second") == 0)
        return json_incref(json_array_get(value, *way == 's'));
    if (strcmp(way, "group") == 0) /* a group of one rank: no hybrid sharding */
        return x > 1 ? json_integer((json_int_t)x) : NULL;
    KU_ASSERT(*way == '\0');
    return json_incref((json_t *)(uintptr_t)value);
}
