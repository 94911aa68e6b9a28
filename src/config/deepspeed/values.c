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

/* DeepSpeed's own message for a wrong value; NULL: none. */
static const char *own_words(const struct ku_ds_row *row, const json_t *v, char out[256])
{
    if (strcmp(row->key, "communication_data_type") == 0) {
        snprintf(out, 256,
                 "Invalid communication_data_type. Supported data types: ['fp16', 'bf16', 'fp32']. "
                 "Got: %.60s",
                 json_is_string(v) ? json_string_value(v) : "no string");
        return out;
    }
    if (strcmp(row->section, "fp16") == 0 && strcmp(row->key, "loss_scale") == 0)
        return json_is_boolean(v) ? "fp16.loss_scale must be a number, not bool"
                                  : "fp16.loss_scale must be a finite number >= 0";
    return NULL;
}

static bool has_range(const struct ku_ds_row *row)
{
    return row->allowed.min < row->allowed.max;
}

static int refuse_type(const struct ku_config *cfg, const struct ku_ds_row *row,
                       const char *spelled, const json_t *v)
{
    static const char *const name[] = {"an integer", "a number",    "true or false", "a string",
                                       "a list",     "two numbers", "a value"};
    char text[256], words[256];
    const char *own = own_words(row, v, words);
    if (row->allowed.words)
        snprintf(text, sizeof text, "one of: %.200s", row->allowed.words);
    else if (has_range(row))
        snprintf(text, sizeof text, "%s from %.15g to %.15g", name[row->type], row->allowed.min,
                 row->allowed.max);
    else
        snprintf(text, sizeof text, "%s", name[row->type]);
    return ku_ds_refuse(cfg, spelled, v, own ? own : text);
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
    json_t *mutable = (json_t *)(uintptr_t)v;
    int64_t whole = 0;
    int is_good = 1;
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
        is_good =
            json_is_string(v) && (row->allowed.words == NULL ||
                                  ku_str_find_word(row->allowed.words, json_string_value(v)) >= 0);
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
    if (!is_good)
        return refuse_type(cfg, row, spelled, v);
    if (*value == NULL)
        *value = json_incref(mutable);
    return KUMI_OK;
}

static int fill_by_width(const struct ku_config *cfg, const struct ku_ds_row *row,
                         const char *spelled, json_t **value)
{
    int64_t h = 0;
    if (cfg->deepspeed->width)
        KU_TRY(cfg->deepspeed->width(cfg, &h));
    if (h <= 0 || h > INT32_MAX)
        return KU_ERR(KUMI_EINVAL,
                      "config: deepspeed: %s: \"auto\": The model's config file has neither "
                      "`hidden_size` nor `hidden_sizes` entry, therefore it's not possible to "
                      "automatically fill it out; give a number",
                      spelled);
    *value = json_integer(strcmp(row->key, "reduce_bucket_size") == 0 ? h * h
                          : strcmp(row->key, "stage3_prefetch_bucket_size") == 0
                              ? (int64_t)(0.9 * (double)(h * h))
                              : 10 * h);
    return KUMI_OK;
}

/* The configuration's value of a key, else its default. New reference. */
static json_t *own_or_default(const struct ku_config *cfg, const char *path)
{
    json_t *own = ku_ds_own(cfg, path);
    const struct ku_key *key = ku_key_find(path);
    return own ? json_incref(own) : key ? ku_key_default(key) : json_null();
}

static bool is_stage_3(const struct ku_config *cfg)
{
    int64_t stage = 0;
    ku_json_int(ku_json_at(cfg->deepspeed->root, "zero_optimization.stage"), &stage);
    return stage == 3;
}

static json_t *first_own(const struct ku_config *cfg, const char *a, const char *b)
{
    json_t *own = ku_ds_own(cfg, a);
    return json_incref(own ? own : ku_ds_own(cfg, b));
}

/* The learning rate: DeepSpeed's, else the configuration's. */
static json_t *fill_lr(const struct ku_config *cfg)
{
    const struct ku_ds_item *lr = ku_ds_find(cfg->deepspeed, "optimizer.params.lr");
    return lr ? json_incref(lr->value) : own_or_default(cfg, "optimizer.lr");
}

int ku_ds_fill(const struct ku_config *cfg, const struct ku_ds_row *row, const char *spelled,
               int is_checked, json_t **value)
{
    const char *eq = strchr(row->target, '=');
    const int is_switch = strcmp(row->key, "enabled") == 0;
    const int is_stage3 = strncmp(row->key, "stage3_pre", 10) == 0 ||
                          strcmp(row->key, "stage3_param_persistence_threshold") == 0;
    *value = NULL;
    if (*row->target == '@') {
        *value = own_or_default(cfg, row->target + 1);
    } else if (is_switch && eq) { /* fp16, bf16: on if precision.compute has it */
        json_t *compute = ku_ds_own(cfg, "precision.compute");
        *value = json_boolean(compute && json_is_string(compute) &&
                              strcmp(json_string_value(compute), eq + 1) == 0);
    } else if (is_switch || (strcmp(row->section, "amp") == 0)) {
        *value = ku_ds_default(row);
    } else if (strcmp(row->key, "warmup_min_lr") == 0) {
        *value = json_integer(0);
    } else if (strcmp(row->key, "warmup_max_lr") == 0) {
        *value = fill_lr(cfg);
    } else if (strcmp(row->key, "warmup_num_steps") == 0) {
        *value = first_own(cfg, "schedule.warmup_num_steps", "schedule.warmup_steps");
        *value = *value ? *value : json_integer(0);
    } else if (strcmp(row->key, "total_num_steps") == 0) {
        *value = first_own(cfg, "schedule.total_num_steps", "train.steps");
        *value = *value ? *value : json_null(); /* the length of the run */
    } else if (strcmp(row->key, "reduce_bucket_size") == 0 || (is_stage3 && is_stage_3(cfg))) {
        KU_TRY(fill_by_width(cfg, row, spelled, value));
    } else if (is_checked) {
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

static json_t *word_of(const char *const (*words)[2], const json_t *value)
{
    const char *word = json_string_value(value);
    for (; (*words)[0]; words++)
        if (word && strcmp((*words)[0], word) == 0)
            return json_string((*words)[1]);
    return NULL;
}

json_t *ku_ds_convert(const char *way, const json_t *value)
{
    static const char *const dtypes[][2] = {
        {"fp16", "f16"}, {"bf16", "bf16"}, {"fp32", "f32"}, {NULL, NULL}};
    static const char *const devices[][2] = {
        {"none", "none"}, {"cpu", "host"}, {"nvme", "file"}, {NULL, NULL}};
    const double x = json_number_value(value);
    if (strcmp(way, "dtype") == 0)
        return word_of(dtypes, value);
    if (strcmp(way, "device") == 0)
        return word_of(devices, value);
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
