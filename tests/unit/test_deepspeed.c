/* SPDX-License-Identifier: Apache-2.0 */
/* links: app plan infer train remote run model config */
/*
 * Every key of a DeepSpeed configuration: what it becomes, or why nothing has to be done, or what
 * it is refused with. Keys of kumi's that a build lacks are refused; which those are is looked up,
 * so that a row holds before and after they arrive.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fault.h"
#include "base/mem.h"
#include "kumi/run.h"
#include "config/deepspeed.h"
#include "config/deepspeed/deepspeed_impl.h"
#include "model/model.h"

#define GOOD                                                                                       \
    "{\"model\":{\"model_type\":\"gpt2\",\"n_embd\":32,\"n_head\":4},\"data\":{\"train\":\"a\"}"

/* A configuration with this DeepSpeed object, translated and not yet counted. */
static int begin(const char *more, const char *deepspeed, struct ku_config *cfg)
{
    char *text = ku_asprintf(GOOD "%s,\n\"deepspeed\":%s}", more, deepspeed);
    int status = ku_config_begin("c.json", text, strlen(text), NULL, 0, ku_model_hidden_size, cfg);
    ku_free(text);
    return status;
}

static int whole(const char *more, const char *deepspeed, struct ku_config *cfg)
{
    char *text = ku_asprintf(GOOD "%s,\n\"deepspeed\":%s}", more, deepspeed);
    int status = ku_config_parse("c.json", text, strlen(text), NULL, 0, ku_model_hidden_size, cfg);
    ku_free(text);
    return status;
}

/* Keys that are applied: "path=value" for each of kumi's that they set, parted by blanks. */
#define ADAM(params)  "{\"optimizer\":{\"type\":\"Adam\",\"params\":{" params "}}}"
#define OF(t, params) "{\"optimizer\":{\"type\":\"" t "\",\"params\":{" params "}}}"
#define BY(t, params) "{\"scheduler\":{\"type\":\"" t "\",\"params\":{" params "}}}"
#define ZERO(keys)    "{\"zero_optimization\":{" keys "}}"
#define HALF(keys)    "{\"fp16\":{\"enabled\":true," keys "}}"
static const struct {
    const char *deepspeed, *key, *becomes;
} applied[] = {
    {"{\"train_batch_size\":16}", "train_batch_size", "train.global_batch=16"},
    {"{\"train_batch_size\":1.6e1}", "train_batch_size", "train.global_batch=16"},
    {"{\"train_micro_batch_size_per_gpu\":4}", "train_micro_batch_size_per_gpu",
     "train.micro_batch=4"},
    {"{\"gradient_accumulation_steps\":2}", "gradient_accumulation_steps", "train.accumulation=2"},
    {"{\"steps_per_print\":2000}", "steps_per_print", "train.log_every=2000"},
    {"{\"dataloader_drop_last\":true}", "dataloader_drop_last", "data.last_batch=\"drop\""},
    {"{\"gradient_clipping\":0.5}", "gradient_clipping", "train.clip_norm=0.5"},
    {"{\"communication_data_type\":\"fp32\"}", "communication_data_type",
     "precision.reduce=\"f32\""},
    {"{\"communication_data_type\":\"bf16\"}", "communication_data_type",
     "precision.reduce=\"bf16\""},
    {"{\"communication_data_type\":\"fp16\"}", "communication_data_type",
     "precision.reduce=\"f16\""},
    {"{\"data_types\":{\"grad_accum_dtype\":\"bf16\"}}", "data_types.grad_accum_dtype",
     "precision.grads=\"bf16\""},
    {"{\"data_types\":{\"param_dtype\":\"bf16\"}}", "data_types.param_dtype",
     "precision.params=\"bf16\""},
    /* precision */
    {"{\"fp16\":{\"enabled\":true}}", "fp16.enabled", "precision.compute=\"f16\""},
    {HALF("\"loss_scale\":0"), "fp16.loss_scale", "precision.loss_scale=\"dynamic\""},
    {HALF("\"loss_scale\":1024"), "fp16.loss_scale", "precision.loss_scale=1024.0"},
    {HALF("\"initial_scale_power\":12"), "fp16.initial_scale_power",
     "precision.initial_scale_power=12"},
    {HALF("\"loss_scale_window\":500"), "fp16.loss_scale_window", "precision.window=500"},
    {HALF("\"hysteresis\":4"), "fp16.hysteresis", "precision.hysteresis=4"},
    {HALF("\"consecutive_hysteresis\":true"), "fp16.consecutive_hysteresis",
     "precision.consecutive_hysteresis=true"},
    {HALF("\"min_loss_scale\":2"), "fp16.min_loss_scale", "precision.min_scale=2"},
    {"{\"fp16\":{\"enabled\":true,\"fp16_master_weights_and_grads\":true},"
     "\"zero_optimization\":{\"stage\":1}}",
     "fp16.fp16_master_weights_and_grads", "precision.master=false precision.grads=\"f16\""},
    {"{\"bf16\":{\"enabled\":true}}", "bf16.enabled", "precision.compute=\"bf16\""},
    {"{\"bfloat16\":{\"enabled\":true}}", "bf16.enabled", "precision.compute=\"bf16\""},
    {"{\"bf16\":{\"enabled\":true,\"check_grad_overflow\":true}}", "bf16.check_grad_overflow",
     "train.on_nonfinite=\"skip\""},
    {"{\"bf16\":{\"enabled\":true,\"bf16_master_weights_and_grads\":true},"
     "\"zero_optimization\":{\"stage\":1}}",
     "bf16.bf16_master_weights_and_grads", "precision.master=false precision.grads=\"bf16\""},
    /* optimizers */
    {ADAM(""), "optimizer.type", "optimizer.type=\"adamw\" optimizer.decay=\"all\""},
    {OF("AdamW", ""), "optimizer.type", "optimizer.type=\"adamw\" optimizer.decay=\"all\""},
    {OF("adamw", "\"adam_w_mode\":false"), "optimizer.type", "optimizer.type=\"adamw\""},
    {OF("Lamb", ""), "optimizer.type", "optimizer.type=\"lamb\" optimizer.adapt=\"all\""},
    {OF("SGD", ""), "optimizer.type", "optimizer.type=\"sgd\""},
    {OF("Adagrad", ""), "optimizer.type", "optimizer.type=\"adagrad\""},
    {OF("Lion", ""), "optimizer.type", "optimizer.type=\"lion\""},
    {OF("RMSprop", ""), "optimizer.type", "optimizer.type=\"rmsprop\""},
    {OF("Adafactor", ""), "optimizer.type", "optimizer.type=\"adafactor\""},
    {ADAM("\"adam_w_mode\":false"), "optimizer.params.adam_w_mode", "optimizer.type=\"adam\""},
    {ADAM("\"lr\":3e-5"), "optimizer.params.lr", "optimizer.lr=3e-5"},
    {OF("SGD", ""), "optimizer.params.lr", "optimizer.lr=0.001"}, /* a default that decides */
    {"{\"optimizer\":{\"type\":\"SGD\"}}", "optimizer.params.lr", "optimizer.lr=0.001"},
    {OF("Lion", ""), "optimizer.params.lr", "optimizer.lr=0.001"}, /* not the paper's 1e-4 */
    {OF("Lion", ""), "optimizer.params.betas", "optimizer.betas=[0.9,0.999]"},
    {ADAM("\"betas\":[0.8,0.99]"), "optimizer.params.betas", "optimizer.betas=[0.8,0.99]"},
    {ADAM("\"eps\":1e-6"), "optimizer.params.eps", "optimizer.eps=1e-6"},
    {ADAM("\"weight_decay\":0.1"), "optimizer.params.weight_decay", "optimizer.weight_decay=0.1"},
    {ADAM("\"bias_correction\":false"), "optimizer.params.bias_correction",
     "optimizer.bias_correction=false"},
    {OF("Lamb", "\"max_coeff\":5"), "optimizer.params.max_coeff", "optimizer.max_coeff=5"},
    {OF("Lamb", "\"min_coeff\":0.1"), "optimizer.params.min_coeff", "optimizer.min_coeff=0.1"},
    {OF("SGD", "\"momentum\":0.9"), "optimizer.params.momentum", "optimizer.momentum=0.9"},
    {OF("SGD", "\"dampening\":0.1"), "optimizer.params.dampening", "optimizer.dampening=0.1"},
    {OF("SGD", "\"nesterov\":true"), "optimizer.params.nesterov", "optimizer.nesterov=true"},
    {OF("RMSprop", "\"alpha\":0.9"), "optimizer.params.alpha", "optimizer.alpha=0.9"},
    {OF("RMSprop", "\"centered\":true"), "optimizer.params.centered", "optimizer.centered=true"},
    {OF("Adagrad", "\"lr_decay\":0.1"), "optimizer.params.lr_decay", "optimizer.lr_decay=0.1"},
    {OF("Adagrad", "\"initial_accumulator_value\":0.1"),
     "optimizer.params.initial_accumulator_value", "optimizer.initial_accumulator_value=0.1"},
    {OF("Adafactor", "\"eps\":[1e-8,0.01]"), "optimizer.params.eps",
     "optimizer.eps1=1e-8 optimizer.eps2=0.01"},
    {OF("Adafactor", "\"beta2_decay\":-0.5"), "optimizer.params.beta2_decay",
     "optimizer.beta2_decay=-0.5"},
    {OF("Adafactor", "\"d\":2"), "optimizer.params.d", "optimizer.clip_threshold=2"},
    /* schedules */
    {BY("LRRangeTest", ""), "scheduler.type", "schedule.type=\"lr_range_test\""},
    {BY("OneCycle", ""), "scheduler.type", "schedule.type=\"ds_one_cycle\""},
    {BY("WarmupLR", ""), "scheduler.type", "schedule.type=\"warmup_lr\""},
    {BY("WarmupDecayLR", ""), "scheduler.type", "schedule.type=\"warmup_decay_lr\""},
    {BY("WarmupCosineLR", ""), "scheduler.type", "schedule.type=\"warmup_cosine_lr\""},
    {BY("WarmupLR", "\"warmup_min_lr\":1e-6"), "scheduler.params.warmup_min_lr",
     "schedule.warmup_min_lr=1e-6"},
    {BY("WarmupLR", "\"warmup_max_lr\":1e-2"), "scheduler.params.warmup_max_lr",
     "schedule.warmup_max_lr=1e-2"},
    {BY("WarmupLR", "\"warmup_num_steps\":7"), "scheduler.params.warmup_num_steps",
     "schedule.warmup_num_steps=7"},
    {BY("WarmupDecayLR", "\"warmup_type\":\"linear\""), "scheduler.params.warmup_type",
     "schedule.warmup_type=\"linear\""},
    {BY("WarmupCosineLR", "\"total_num_steps\":70"), "scheduler.params.total_num_steps",
     "schedule.total_num_steps=70"},
    {BY("WarmupCosineLR", "\"warmup_min_ratio\":0.1"), "scheduler.params.warmup_min_ratio",
     "schedule.warmup_min_ratio=0.1"},
    {BY("WarmupCosineLR", "\"cos_min_ratio\":0.1"), "scheduler.params.cos_min_ratio",
     "schedule.cos_min_ratio=0.1"},
    {BY("LRRangeTest", "\"lr_range_test_min_lr\":0.1"), "scheduler.params.lr_range_test_min_lr",
     "schedule.lr_range_test_min_lr=0.1"},
    {BY("LRRangeTest", "\"lr_range_test_step_size\":3"), "scheduler.params.lr_range_test_step_size",
     "schedule.lr_range_test_step_size=3"},
    {BY("LRRangeTest", "\"lr_range_test_step_rate\":2"), "scheduler.params.lr_range_test_step_rate",
     "schedule.lr_range_test_step_rate=2"},
    {BY("LRRangeTest", "\"lr_range_test_staircase\":true"),
     "scheduler.params.lr_range_test_staircase", "schedule.lr_range_test_staircase=true"},
    {BY("OneCycle", "\"cycle_min_lr\":0.1"), "scheduler.params.cycle_min_lr",
     "schedule.cycle_min_lr=0.1"},
    {BY("OneCycle", "\"cycle_max_lr\":0.2"), "scheduler.params.cycle_max_lr",
     "schedule.cycle_max_lr=0.2"},
    {BY("OneCycle", "\"decay_lr_rate\":0.5"), "scheduler.params.decay_lr_rate",
     "schedule.decay_lr_rate=0.5"},
    {BY("OneCycle", "\"cycle_first_step_size\":5"), "scheduler.params.cycle_first_step_size",
     "schedule.cycle_first_step_size=5"},
    {BY("OneCycle", "\"cycle_second_step_size\":6"), "scheduler.params.cycle_second_step_size",
     "schedule.cycle_second_step_size=6"},
    {BY("OneCycle", "\"decay_step_size\":4"), "scheduler.params.decay_step_size",
     "schedule.decay_step_size=4"},
    {BY("OneCycle", "\"cycle_momentum\":false"), "scheduler.params.cycle_momentum",
     "schedule.cycle_momentum=false"},
    {BY("OneCycle", "\"cycle_min_mom\":0.7"), "scheduler.params.cycle_min_mom",
     "schedule.cycle_min_mom=0.7"},
    {BY("OneCycle", "\"cycle_max_mom\":0.8"), "scheduler.params.cycle_max_mom",
     "schedule.cycle_max_mom=0.8"},
    {BY("OneCycle", "\"decay_mom_rate\":0.1"), "scheduler.params.decay_mom_rate",
     "schedule.decay_mom_rate=0.1"},
    /* sharding, offload */
    {ZERO("\"stage\":1"), "zero_optimization.stage", "parallel.zero=1"},
    {"{\"zero_optimization\":true}", "zero_optimization.stage", "parallel.zero=1"},
    {ZERO("\"stage\":3"), "zero_optimization.stage", "parallel.zero=3"},
    {ZERO("\"reduce_bucket_size\":262144"), "zero_optimization.reduce_bucket_size",
     "parallel.bucket_mb=1.0"},
    {ZERO("\"allgather_bucket_size\":524288"), "zero_optimization.allgather_bucket_size",
     "parallel.allgather_bucket_mb=2.0"},
    {ZERO("\"overlap_comm\":false"), "zero_optimization.overlap_comm", "parallel.overlap=false"},
    {ZERO("\"stage\":3,\"stage3_param_persistence_threshold\":9"),
     "zero_optimization.stage3_param_persistence_threshold", "parallel.persist_below=9"},
    {ZERO("\"stage\":3,\"param_persistence_threshold\":9"),
     "zero_optimization.stage3_param_persistence_threshold", "parallel.persist_below=9"},
    {ZERO("\"stage\":3,\"stage3_max_live_parameters\":5e6"),
     "zero_optimization.stage3_max_live_parameters", "parallel.max_live_parameters=5000000"},
    {ZERO("\"stage\":3,\"stage3_gather_16bit_weights_on_model_save\":true"),
     "zero_optimization.stage3_gather_16bit_weights_on_model_save",
     "parallel.gather_16bit_on_save=true"},
    {ZERO("\"stage\":3,\"stage3_gather_fp16_weights_on_model_save\":true"),
     "zero_optimization.stage3_gather_16bit_weights_on_model_save",
     "parallel.gather_16bit_on_save=true"},
    {ZERO("\"zero_hpz_partition_size\":8"), "zero_optimization.zero_hpz_partition_size",
     "parallel.reshard_after_forward=8"},
    {ZERO("\"mics_shard_size\":4"), "zero_optimization.mics_shard_size", "parallel.shard=4"},
    {ZERO("\"cpu_offload\":true"), "zero_optimization.cpu_offload",
     "memory.offload.optimizer=\"host\""},
    {ZERO("\"cpu_offload_params\":true"), "zero_optimization.cpu_offload_param",
     "memory.offload.params=\"host\""},
    {ZERO("\"offload_param\":{\"device\":\"cpu\"}"), "zero_optimization.offload_param.device",
     "memory.offload.params=\"host\""},
    {ZERO("\"offload_param\":{\"device\":\"nvme\",\"nvme_path\":\"/x\"}"),
     "zero_optimization.offload_param.nvme_path", "memory.offload.path=\"/x\""},
    {ZERO("\"offload_optimizer\":{\"device\":\"nvme\"}"),
     "zero_optimization.offload_optimizer.device", "memory.offload.optimizer=\"file\""},
    {ZERO("\"offload_optimizer\":{\"device\":\"nvme\",\"nvme_path\":\"/x\"}"),
     "zero_optimization.offload_optimizer.nvme_path", "memory.offload.path=\"/x\""},
    {ZERO("\"offload_param\":{\"device\":\"cpu\",\"buffer_count\":7}"),
     "zero_optimization.offload_param.buffer_count", "memory.offload.buffer_count=7"},
    {ZERO("\"offload_param\":{\"device\":\"cpu\",\"buffer_size\":65536}"),
     "zero_optimization.offload_param.buffer_size", "memory.offload.buffer_size=65536"},
    {ZERO("\"offload_optimizer\":{\"device\":\"cpu\",\"buffer_count\":6}"),
     "zero_optimization.offload_optimizer.buffer_count", "memory.offload.buffer_count=6"},
    {ZERO("\"stage\":3,\"offload_optimizer\":{\"device\":\"cpu\",\"ratio\":0.5}"),
     "zero_optimization.offload_optimizer.ratio", "memory.offload.ratio=0.5"},
    {"{\"activation_checkpointing\":{\"cpu_checkpointing\":true}}",
     "activation_checkpointing.cpu_checkpointing", "memory.offload.activations=\"host\""},
    {"{\"tensor_parallel\":{\"autotp_size\":4}}", "tensor_parallel.autotp_size", "parallel.tp=4"},
};

/* Whether this build has the key and takes the value there. */
static int takes(const char *path, const json_t *v)
{
    const struct ku_key *key = ku_key_find(path);
    return key && (key->type != KU_TYPE_ENUM || !json_is_string(v) ||
                   ku_str_find_word(key->allowed.words, json_string_value(v)) >= 0);
}

static void full_key(const struct ku_ds_row *row, char key[160])
{
    snprintf(key, 160, "%s%s%s", row->section, *row->section ? "." : "", row->key);
}

static int is_usual(const struct ku_ds_item *item)
{
    int is_same = 0;
    for (int i = 0; i < ku_ds_n_rows; i++) {
        char key[160];
        full_key(&ku_ds_rows[i], key);
        json_t *v = strcmp(key, item->key) == 0 ? ku_ds_default(&ku_ds_rows[i]) : NULL;
        is_same |= v && ku_config_is_same(v, item->value);
        json_decref(v);
    }
    return is_same;
}

static void test_applied(void **state)
{
    int n_applied = 0;
    (void)state;
    for (size_t i = 0; i < sizeof applied / sizeof applied[0]; i++) {
        struct ku_config c;
        char words[512], *rest = words, *word;
        int status = begin("", applied[i].deepspeed, &c);
        if (status < 0)
            print_error("%s\n%s\n", applied[i].deepspeed, ku_err_get()->text);
        assert_int_equal(status, KUMI_OK);
        const struct ku_ds_item *item = ku_ds_find(c.deepspeed, applied[i].key);
        assert_non_null(item);
        snprintf(words, sizeof words, "%s", applied[i].becomes);
        while ((word = strsep(&rest, " ")) != NULL) {
            char *value = strchr(word, '=');
            *value++ = '\0';
            json_t *wanted = json_loads(value, JSON_DECODE_ANY, NULL);
            assert_non_null(wanted);
            if (takes(word, wanted)) {
                json_t *is = json_object_get(item->effect, word);
                if (!ku_config_is_same(is, wanted))
                    print_error("%s: %s\n", applied[i].deepspeed, word);
                assert_true(ku_config_is_same(is, wanted));
                assert_int_equal(item->verdict, KU_DS_APPLIED);
                n_applied++;
            } else if (is_usual(item) || strcmp(value, "\"f32\"") == 0) { /* so without the key */
                assert_int_equal(item->verdict, KU_DS_NO_EFFECT);
            } else {
                if (item->verdict != KU_DS_REFUSED)
                    print_error("%s: not refused\n", applied[i].deepspeed);
                assert_int_equal(item->verdict, KU_DS_REFUSED);
                assert_non_null(strstr(item->why, "not supported in this build: "));
                assert_non_null(strstr(item->why, word));
                assert_int_equal(ku_deepspeed_merge(&c), KUMI_EINVAL);
                json_decref(wanted);
                break; /* the rest of it does not count then */
            }
            json_decref(wanted);
        }
        ku_config_fini(&c);
    }
    assert_true(n_applied > 25);
}

/* A value of the row's type that is not its default. */
static const char *other_value(const struct ku_ds_row *row, char out[64])
{
    switch (row->type) {
    case KU_DS_INT:
        return snprintf(out, 64, "%s", strcmp(row->value, "2") == 0 ? "3" : "2"), out;
    case KU_DS_NUM:
        return snprintf(out, 64, "%s", strcmp(row->value, "0.5") == 0 ? "0.25" : "0.5"), out;
    case KU_DS_BOOL:
        return snprintf(out, 64, "%s", strcmp(row->value, "true") == 0 ? "false" : "true"), out;
    case KU_DS_TEXT: { /* the last of the words */
        const char *last = row->allowed.words ? strrchr(row->allowed.words, ' ') : NULL;
        return snprintf(out, 64, "\"%s\"", last ? last + 1 : "other"), out;
    }
    case KU_DS_LIST:
        return "[\"x\"]";
    case KU_DS_PAIR:
        return "[0.5, 0.75]";
    case KU_DS_BLOCK:
    case KU_DS_CHOICE:
    case KU_DS_ANY:
        return "{\"enabled\": true}";
    }
    return NULL;
}

/* The DeepSpeed object that gives the row's key this value, and what opens its block. */
static char *object_of(const struct ku_ds_row *row, const char *value)
{
    char block[64], *name = block, *rest = block;
    const char *gate = "", *type = *row->of ? row->of : "SGD";
    struct ku_str s = {0};
    int depth = 0;
    for (int i = 0; i < ku_ds_n_rows; i++) {
        char section[160];
        full_key(&ku_ds_rows[i], section);
        if (ku_ds_rows[i].type == KU_DS_BLOCK && strcmp(section, row->section) == 0)
            gate = ku_ds_rows[i].gate;
    }
    if (strncmp(row->section, "scheduler", 9) == 0 && *row->of == '\0')
        type = "WarmupLR";
    snprintf(block, sizeof block, "%s", row->section);
    ku_str_add(&s, "{");
    while (*row->section && (name = strsep(&rest, ".")) != NULL) {
        ku_str_add(&s, "\"%s\":{", name);
        depth++;
        if (depth == 1 && (strcmp(name, "optimizer") == 0 || strcmp(name, "scheduler") == 0) &&
            strcmp(row->key, "type") != 0)
            ku_str_add(&s, "\"type\":\"%.*s\",", (int)strcspn(type, " "), type);
    }
    if (*gate && strcmp(gate, row->key) != 0)
        ku_str_add(&s, "\"%s\":%s,", gate, strcmp(gate, "device") == 0 ? "\"cpu\"" : "true");
    if (strncmp(row->key, "stage3_", 7) == 0)
        ku_str_add(&s, "\"stage\":3,");
    ku_str_add(&s, "\"%s\":%s}", row->key, value);
    for (; depth > 0; depth--)
        ku_str_add(&s, "}");
    assert_int_equal(s.failed, 0);
    return s.text;
}

/* All rows: their default changes nothing, other values do what the row says, other types are
 * errors that name the key. */
static void test_rows(void **state)
{
    (void)state;
    for (int i = 0; i < ku_ds_n_rows; i++) {
        const struct ku_ds_row *row = &ku_ds_rows[i];
        struct ku_config c;
        char key[160], value[64];
        if (row->type == KU_DS_BLOCK || row->type == KU_DS_CHOICE || strcmp(row->key, "type") == 0)
            continue;
        full_key(row, key);
        if (row->verdict == KU_DS_APPLIED) { /* has its row above */
            int n = 0;
            for (size_t k = 0; k < sizeof applied / sizeof applied[0]; k++)
                n += strcmp(applied[k].key, key) == 0;
            if (n == 0)
                print_error("%s: no row in this test\n", key);
            assert_true(n > 0);
        }
        char *usual = object_of(row, row->value), *other = object_of(row, other_value(row, value));
        int status = begin("", usual, &c);
        if (status < 0)
            print_error("%s\n%s\n", usual, ku_err_get()->text);
        assert_int_equal(status, KUMI_OK);
        const struct ku_ds_item *item = ku_ds_find(c.deepspeed, key);
        assert_non_null(item);
        if (row->verdict != KU_DS_APPLIED)
            assert_int_equal(item->verdict, KU_DS_NO_EFFECT);
        ku_config_fini(&c);
        status = begin("", other, &c);
        if (row->verdict == KU_DS_REFUSED && status == KUMI_OK) {
            item = ku_ds_find(c.deepspeed, key);
            assert_int_equal(item->verdict, KU_DS_REFUSED);
            assert_string_equal(item->why, row->help);
            assert_int_equal(ku_deepspeed_merge(&c), KUMI_EINVAL);
            const struct ku_ds_item *first =
                c.deepspeed->item; /* a gate or type may be before it */
            while (first->verdict != KU_DS_REFUSED)
                first++;
            assert_non_null(strstr(ku_err_get()->text, first->key));
            assert_non_null(strstr(ku_err_get()->text, first->why));
        } else if (row->verdict == KU_DS_REFUSED) { /* a rule was there before */
            if (strstr(ku_err_get()->text, key) == NULL)
                print_error("%s\n%s\n", other, ku_err_get()->text);
            assert_non_null(strstr(ku_err_get()->text, key));
        } else if (row->verdict == KU_DS_NO_EFFECT) {
            assert_int_equal(status, KUMI_OK);
            item = ku_ds_find(c.deepspeed, key);
            assert_int_equal(item->verdict, KU_DS_NO_EFFECT);
            assert_int_equal(item->source, KU_DS_FILE);
            assert_string_equal(item->why, row->help);
            assert_null(item->effect);
        }
        if (status == KUMI_OK)
            ku_config_fini(&c);
        if (row->type != KU_DS_ANY) {
            char *wrong = object_of(row, row->type == KU_DS_TEXT ? "1" : "\"x\"");
            assert_int_equal(begin("", wrong, &c), KUMI_EINVAL);
            if (strstr(ku_err_get()->text, key) == NULL)
                print_error("%s\n%s\n", wrong, ku_err_get()->text);
            assert_non_null(strstr(ku_err_get()->text, key));
            ku_free(wrong);
        }
        ku_free(usual);
        ku_free(other);
    }
}

/* Unknown, contradicting and ill-formed: the whole line. */
static const struct {
    const char *more, *deepspeed, *text;
} bad[] = {
    {"", "5", "config: c.json:2:1: deepspeed: 5; the path of a file, or an object"},
    {"", "\"/nowhere/ds.json\"",
     "json: /nowhere/ds.json: cannot be read: No such file or directory"},
    {"", "{\"fp16\":3}", "config: c.json:2:14: deepspeed.fp16: 3; an object"},
    {"", "{\"zero_optimization\":{\"stagee\":1}}",
     "config: c.json:2:35: deepspeed.zero_optimization.stagee: unknown key; did you mean stage?"},
    {"", "{\"zero_optimization\":{\"grad_hooks\":true}}",
     "config: c.json:2:35: deepspeed.zero_optimization.grad_hooks: unknown key"},
    {"", OF("Adam", "\"max_coeff\":1"),
     "config: c.json:2:51: deepspeed.optimizer.params.max_coeff: unknown key of type Adam"},
    {"", "{\"zero_optimization\":{\"stage\":4}}",
     "config: c.json:2:35: deepspeed.zero_optimization.stage: 4; an integer from 0 to 3"},
    {"", "{\"zero_optimization\":{\"stage\":1.5}}",
     "config: c.json:2:35: deepspeed.zero_optimization.stage: 1.5; an integer from 0 to 3"},
    {"", "{\"communication_data_type\":\"int8\"}",
     "config: c.json:2:14: deepspeed.communication_data_type: \"int8\"; Invalid "
     "communication_data_type. Supported data types: ['fp16', 'bf16', 'fp32']. Got: int8"},
    {"", HALF("\"loss_scale\":true"),
     "config: c.json:2:37: deepspeed.fp16.loss_scale: true; fp16.loss_scale must be a number, not "
     "bool"},
    {"", HALF("\"loss_scale_window\":0"),
     "config: c.json:2:37: deepspeed.fp16.loss_scale_window: 0; fp16.loss_scale_window must be > 0 "
     "when dynamic loss scaling is enabled (loss_scale=0)"},
    {"", "{\"fp16\":{\"enabled\":true},\"bf16\":{\"enabled\":true}}",
     "config: c.json:2:22: deepspeed.fp16.enabled: true; bfloat16 and fp16 modes cannot be "
     "simultaneously enabled; give one of them"},
    {"", "{\"bf16\":{},\"bfloat16\":{}}",
     "config: c.json:2:24: deepspeed.bfloat16: {}; Cannot provide deprecated parameter 'bfloat16' "
     "and replacing parameter 'bf16' together; leave the first out"},
    {"", ZERO("\"prefetch_bucket_size\":1,\"stage3_prefetch_bucket_size\":1"),
     "config: c.json:2:35: deepspeed.zero_optimization.prefetch_bucket_size: 1; Cannot provide "
     "deprecated parameter 'prefetch_bucket_size' and replacing parameter "
     "'stage3_prefetch_bucket_size' together; leave the first out"},
    {"", ZERO("\"cpu_offload\":true,\"offload_optimizer\":{\"device\":\"cpu\"}"),
     "config: c.json:2:35: deepspeed.zero_optimization.cpu_offload: true; Cannot provide "
     "deprecated parameter 'cpu_offload' and replacing parameter 'offload_optimizer' together; "
     "leave the first out"},
    {"", ZERO("\"offload_optimizer\":{\"device\":\"cpu\",\"ratio\":0.5}"),
     "config: c.json:2:71: deepspeed.zero_optimization.offload_optimizer.ratio: 0.5; Partial "
     "offloading only supported for ZeRO Stage 3."},
    {"", "{\"steps_per_print\":\"auto\"}",
     "config: c.json:2:14: deepspeed.steps_per_print: \"auto\"; nothing fills this key in; give a "
     "value, or leave it out"},
    {"", OF("Adan", ""),
     "config: c.json:2:27: deepspeed.optimizer.type: \"Adan\"; did you mean Adam?"},
    {"", OF("OneBitAdam", "\"freeze_step\":5"),
     "config: c.json:2:27: deepspeed.optimizer.type: \"OneBitAdam\"; compressed gradients are not "
     "supported; use Adam"},
    {"", "{\"gradient_allreduce_op\":\"sum\"}",
     "config: c.json:2:14: deepspeed.gradient_allreduce_op: \"sum\"; the loss is a mean over the "
     "batch; for sums, scale optimizer.lr or gradient_clipping"},
    /* against the configuration */
    {",\n\"optimizer\":{\"lr\":0.1}", ADAM("\"lr\":0.2"),
     "config: c.json:3:51: deepspeed.optimizer.params.lr: 0.2; it contradicts optimizer.lr: 0.1 "
     "(c.json:2:14); give one of the two, or equal values"},
    /* values of the configuration, which override what the file implies, under their own names */
    {",\n\"optimizer\":{\"lr\":-1}", ADAM("\"lr\":\"auto\""),
     "config: c.json:2:14: optimizer.lr: -1; a number from 0 to 1e+30"},
    {",\n\"optimizer\":{\"eps\":-1}", ADAM(""),
     "config: c.json:2:14: optimizer.eps: -1; a number from 0 to 1"},
    {",\n\"precision\":{\"compute\":\"bf16\"}", "{\"bf16\":{\"enabled\":false}}",
     "config: c.json:3:22: deepspeed.bf16.enabled: false; it contradicts precision.compute: "
     "\"bf16\"; give one of the two"},
    {",\"parallel\":{\"shard\":2}", ZERO("\"mics_shard_size\":4"), NULL},
    {",\"parallel\":{\"reshard_after_forward\":false}", ZERO("\"zero_hpz_partition_size\":8"),
     NULL},
    /* kumi's own checks, under DeepSpeed's name */
    {"", ADAM("\"lr\":-1"),
     "config: c.json:2:51: deepspeed.optimizer.params.lr: optimizer.lr: -1; a number from 0 to "
     "1e+30"},
    {"", ADAM("\"betas\":[0.9,1.5]"),
     "config: c.json:2:51: deepspeed.optimizer.params.betas: optimizer.betas: [0.9,1.5]; two "
     "numbers from 0 to 0.9999999"},
    {"", OF("SGD", "\"nesterov\":true"),
     "config: c.json:2:50: deepspeed.optimizer.params.nesterov: optimizer.nesterov: true; it needs "
     "optimizer.momentum above 0 and dampening 0"},
    {",\"deepspeed_strict\":true", "{\"wandbb\":1}",
     "config: c.json:2:14: deepspeed.wandbb: unknown key; did you mean wandb?"},
    {",\"deepspeed_strict\":1", "{}", "config: c.json:1:76: deepspeed_strict: 1; true or false"},
};

static void test_bad(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct ku_config c;
        int status = whole(bad[i].more, bad[i].deepspeed, &c);
        if (status != KUMI_EINVAL)
            print_error("%s: %d\n", bad[i].deepspeed, status);
        assert_int_equal(status, KUMI_EINVAL);
        if (bad[i].text)
            assert_string_equal(ku_err_get()->text, bad[i].text);
    }
}

/* "auto" is what the Hugging Face trainer makes of it, with the configuration as its arguments. */
static void test_auto(void **state)
{
    static const struct {
        const char *more, *deepspeed, *key, *value;
    } row[] = {
        {",\"train\":{\"global_batch\":24}", "{\"train_batch_size\":\"auto\"}", "train_batch_size",
         "24"},
        {"", "{\"train_batch_size\":\"auto\"}", "train_batch_size", "null"},
        {",\"train\":{\"micro_batch\":3}", "{\"train_micro_batch_size_per_gpu\":\"auto\"}",
         "train_micro_batch_size_per_gpu", "3"},
        {",\"train\":{\"accumulation\":2}", "{\"gradient_accumulation_steps\":\"auto\"}",
         "gradient_accumulation_steps", "2"},
        {",\"train\":{\"clip_norm\":0.25}", "{\"gradient_clipping\":\"auto\"}", "gradient_clipping",
         "0.25"},
        {",\"optimizer\":{\"lr\":0.5}", ADAM("\"lr\":\"auto\""), "optimizer.params.lr", "0.5"},
        {",\"optimizer\":{\"betas\":[0.5,0.6]}", ADAM("\"betas\":\"auto\""),
         "optimizer.params.betas", "[0.5,0.6]"},
        {"", ADAM("\"eps\":\"auto\""), "optimizer.params.eps", "1e-8"},
        {",\"optimizer\":{\"weight_decay\":0.5}", ADAM("\"weight_decay\":\"auto\""),
         "optimizer.params.weight_decay", "0.5"},
        {"", BY("WarmupLR", "\"warmup_min_lr\":\"auto\""), "scheduler.params.warmup_min_lr", "0"},
        {",\"optimizer\":{\"lr\":0.5}", BY("WarmupLR", "\"warmup_max_lr\":\"auto\""),
         "scheduler.params.warmup_max_lr", "null"}, /* optimizer.lr counts, with its scaling */
        {",\"schedule\":{\"warmup_steps\":9}", BY("WarmupLR", "\"warmup_num_steps\":\"auto\""),
         "scheduler.params.warmup_num_steps", "9"},
        {",\"train\":{\"steps\":77}", BY("WarmupDecayLR", "\"total_num_steps\":\"auto\""),
         "scheduler.params.total_num_steps", "77"},
        {",\"precision\":{\"compute\":\"bf16\"}", "{\"bf16\":{\"enabled\":\"auto\"}}",
         "bf16.enabled", "true"},
        {"", "{\"bf16\":{\"enabled\":\"auto\"}}", "bf16.enabled", "false"},
        {"", "{\"fp16\":{\"enabled\":\"auto\"}}", "fp16.enabled", "false"},
        {"", "{\"amp\":{\"enabled\":\"auto\",\"opt_level\":\"auto\"}}", "amp.enabled", "false"},
        {"", ZERO("\"reduce_bucket_size\":\"auto\""), "zero_optimization.reduce_bucket_size",
         "1024"}, /* 32^2 */
        {"", ZERO("\"stage\":3,\"stage3_prefetch_bucket_size\":\"auto\""),
         "zero_optimization.stage3_prefetch_bucket_size", "921"}, /* int(0.9 * 32^2) */
        {"", ZERO("\"stage\":3,\"stage3_param_persistence_threshold\":\"auto\""),
         "zero_optimization.stage3_param_persistence_threshold", "320"}, /* 10 * 32 */
        {"", ZERO("\"stage\":2,\"stage3_prefetch_bucket_size\":\"auto\""),
         "zero_optimization.stage3_prefetch_bucket_size", "50000000"}, /* dropped */
        {"", ZERO("\"sub_group_size\":\"auto\""), "zero_optimization.sub_group_size", "1000000000"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_config c;
        int status = begin(row[i].more, row[i].deepspeed, &c);
        if (status < 0)
            print_error("%s\n%s\n", row[i].deepspeed, ku_err_get()->text);
        assert_int_equal(status, KUMI_OK);
        const struct ku_ds_item *item = ku_ds_find(c.deepspeed, row[i].key);
        json_t *wanted = json_loads(row[i].value, JSON_DECODE_ANY, NULL);
        assert_int_equal(item->source, KU_DS_AUTO);
        if (!ku_config_is_same(wanted, item->value))
            print_error("%s\n", row[i].deepspeed);
        assert_true(ku_config_is_same(wanted, item->value));
        json_decref(wanted);
        assert_int_equal(ku_config_finish(&c), KUMI_OK);
        ku_config_fini(&c);
    }
    struct ku_config c; /* a model without a width */
    const char *text = "{\"model\":{\"model_type\":\"mlp\",\"input\":[4],\"hidden\":[3],"
                       "\"num_classes\":2},\"data\":{\"train\":\"a\"},\"deepspeed\":"
                       "{\"zero_optimization\":{\"reduce_bucket_size\":\"auto\"}}}";
    assert_int_equal(
        ku_config_begin("c.json", text, strlen(text), NULL, 0, ku_model_hidden_size, &c),
        KUMI_EINVAL);
    assert_non_null(strstr(ku_err_get()->text, "neither `hidden_size` nor `hidden_sizes` entry"));
}

/* What the configuration says counts before defaults, and equal values are no contradiction. */
static void test_precedence(void **state)
{
    struct ku_config c;
    (void)state;
    assert_int_equal(whole("", "{}", &c), KUMI_OK);
    assert_true(c.train_clip_norm == 1);
    ku_config_fini(&c);
    assert_int_equal(whole(",\"optimizer\":{\"lr\":0.5,\"decay\":\"matrices\",\"type\":\"adam\"}",
                           ADAM("\"lr\":0.5,\"adam_w_mode\":false"), &c),
                     KUMI_OK);
    assert_true(c.optimizer_lr == 0.5);
    assert_string_equal(c.optimizer_type, "adam");
    assert_string_equal(c.optimizer_decay.item[0], "matrices");
    ku_config_fini(&c);
    assert_int_equal(whole("", ADAM("\"weight_decay\":0.1"), &c), KUMI_OK);
    assert_string_equal(c.optimizer_type, "adamw");
    assert_string_equal(c.optimizer_decay.item[0], "all");
    assert_true(c.optimizer_weight_decay == 0.1 && c.optimizer_lr == 1e-3);
    json_t *dump = ku_config_dump(&c); /* as manifests keep it: kumi's keys alone */
    assert_null(json_object_get(dump, "deepspeed"));
    assert_true(json_number_value(ku_json_at(dump, "optimizer.weight_decay")) == 0.1);
    json_decref(dump);
    ku_config_fini(&c);
    /* a block that is off says nothing */
    assert_int_equal(whole("", "{\"fp16\":{\"enabled\":false,\"hysteresis\":7}}", &c), KUMI_OK);
    ku_config_fini(&c);
    /* so do keys of stage 3 at another one */
    assert_int_equal(whole("", ZERO("\"stage3_param_persistence_threshold\":7"), &c), KUMI_OK);
    ku_config_fini(&c);
    /* "auto" takes the steps over from the key of kumi's own schedules */
    assert_int_equal(whole(",\"schedule\":{\"warmup_steps\":9}",
                           BY("WarmupLR", "\"warmup_num_steps\":\"auto\""), &c),
                     KUMI_OK);
    assert_true(c.schedule_warmup_num_steps == 9 && c.schedule_warmup_steps.n == 0);
    ku_config_fini(&c);
    /* null is no object that contradicts the file's */
    assert_int_equal(whole(",\"memory\":{\"offload\":null}",
                           ZERO("\"offload_optimizer\":{\"device\":\"cpu\"}"), &c),
                     KUMI_OK);
    assert_int_equal(c.memory_offload.optimizer, KU_OFFLOAD_HOST);
    ku_config_fini(&c);
    /* what DeepSpeed reads and does not apply */
    assert_int_equal(whole("",
                           BY("OneCycle", "\"cycle_min_lr\":0.1,\"cycle_max_lr\":0.2,"
                                          "\"cycle_first_stair_count\":2"),
                           &c),
                     KUMI_OK);
    ku_config_fini(&c);
    /* a type that is not there leaves the configuration's optimizer alone */
    assert_int_equal(whole(",\"optimizer\":{\"type\":\"sgd\"}", "{\"optimizer\":{}}", &c), KUMI_OK);
    assert_string_equal(c.optimizer_type, "sgd");
    ku_config_fini(&c);
}

static void test_file(void **state)
{
    static const char text[] = "# comments\n{\n  optimizer: { // unquoted\n    type: \"AdamW\",\n"
                               "    params: { lr: -2, },\n  },\n}\n";
    char path[] = "/tmp/kumi-ds-XXXXXX", wanted[256], setting[64];
    const char *set = setting;
    struct ku_config c;
    int fd = mkstemp(path);
    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
    close(fd);
    snprintf(setting, sizeof setting, "deepspeed=%s", path);
    assert_int_equal(
        ku_config_parse("c.json", GOOD "}", sizeof GOOD, &set, 1, ku_model_hidden_size, &c),
        KUMI_EINVAL);
    snprintf(wanted, sizeof wanted,
             "config: %s:5:15: optimizer.params.lr: optimizer.lr: -2; a number from 0 to 1e+30",
             path);
    assert_string_equal(ku_err_get()->text, wanted);
    unlink(path);
}

/* The relation, with DeepSpeed's sentences. */
static const struct {
    int64_t train, micro, gas;
    int world;
    int64_t want[3]; /* train 0: refused */
    const char *text;
} batches[] = {
    {16, 4, 2, 2, {16, 4, 2}, NULL},
    {16, 4, 0, 2, {16, 4, 2}, NULL},
    {16, 0, 4, 2, {16, 2, 4}, NULL},
    {0, 4, 3, 2, {24, 4, 3}, NULL},
    {16, 0, 0, 4, {16, 4, 1}, NULL},
    {0, 4, 0, 4, {16, 4, 1}, NULL},
    {0,
     0,
     2,
     4,
     {0},
     "Either train_batch_size or train_micro_batch_size_per_gpu needs to be "
     "provided"},
    {256,
     18,
     0,
     7,
     {0},
     "Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
     "gradient_acc_step * world_size 256 != 18 * 2 * 7; world size seen: 7; nearest valid "
     "train_batch_size: 252 or 378"},
    {32,
     4,
     2,
     1,
     {0},
     "Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
     "gradient_acc_step * world_size 32 != 4 * 2 * 1; world size seen: 1 (no -n N, kumi run, "
     "torchrun, mpirun or srun?); nearest valid train_batch_size: 8, or "
     "gradient_accumulation_steps: 8, or run on 4 ranks"},
    {4,
     4,
     0,
     2,
     {0},
     "Gradient accumulation steps: 0 has to be greater than 0; world size seen: 2; nearest "
     "valid train_batch_size: 8, or run on 1 rank"},
    {3,
     0,
     0,
     4,
     {0},
     "Micro batch size per gpu: 0 has to be greater than 0; world size seen: 4; nearest valid "
     "train_batch_size: 4, or run on 3 ranks"},
    {0, 1000000000, 1000000000, 512, {0}, "is too large"},
    {1, 1000000000, 1000000000, 512, {0}, "is too large"},
    {17,
     0,
     2,
     4,
     {0},
     "Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
     "gradient_acc_step * world_size 17 != 2 * 2 * 4; world size seen: 4; nearest valid "
     "train_batch_size: 16 or 24"},
};

static void test_batch(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof batches / sizeof batches[0]; i++) {
        struct ku_config c;
        struct ku_ds_batch b;
        assert_int_equal(whole("", "{}", &c), KUMI_OK);
        c.train_global_batch = batches[i].train ? batches[i].train : KU_NULL;
        c.train_micro_batch = batches[i].micro ? batches[i].micro : KU_NULL;
        c.train_accumulation = batches[i].gas ? batches[i].gas : KU_NULL;
        int status = ku_deepspeed_batch(&c, batches[i].world, &b);
        if (batches[i].text) {
            assert_int_equal(status, KUMI_EINVAL);
            if (strstr(ku_err_get()->text, batches[i].text) == NULL)
                print_error("%s\n", ku_err_get()->text);
            assert_non_null(strstr(ku_err_get()->text, batches[i].text));
        } else {
            assert_int_equal(status, KUMI_OK);
            assert_int_equal(b.train, batches[i].want[0]);
            assert_int_equal(b.micro, batches[i].want[1]);
            assert_int_equal(b.accumulation, batches[i].want[2]);
        }
        ku_config_fini(&c);
    }
}

/* Without a size in the configuration "auto" is that of a run without a DeepSpeed file. */
static void test_batch_auto(void **state)
{
    static const struct {
        const char *deepspeed;
        int64_t want[3]; /* on 2 ranks */
    } row[] = {
        {"{\"train_batch_size\":\"auto\",\"train_micro_batch_size_per_gpu\":\"auto\","
         "\"gradient_accumulation_steps\":\"auto\"}",
         {16, 8, 1}},
        {"{\"train_batch_size\":\"auto\",\"gradient_accumulation_steps\":4}", {16, 2, 4}},
        {"{\"train_batch_size\":\"auto\",\"train_micro_batch_size_per_gpu\":3}", {6, 3, 1}},
        {"{\"train_micro_batch_size_per_gpu\":\"auto\"}", {16, 8, 1}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_config c;
        struct ku_ds_batch b;
        assert_int_equal(whole("", row[i].deepspeed, &c), KUMI_OK);
        if (ku_deepspeed_batch(&c, 2, &b) < 0)
            fail_msg("%s: %s", row[i].deepspeed, ku_err_get()->text);
        assert_int_equal(b.train, row[i].want[0]);
        assert_int_equal(b.micro, row[i].want[1]);
        assert_int_equal(b.accumulation, row[i].want[2]);
        ku_config_fini(&c);
    }
}

/* Short of memory at any point: an error, nothing left behind, and no other answer. */
static void test_memory(void **state)
{
    static const char *const text =
        "{\"train_batch_size\":16,\"bf16\":{\"enabled\":true},\"optimizer\":{\"type\":\"Adam\","
        "\"params\":{\"lr\":0.1}},\"zero_optimization\":{\"reduce_bucket_size\":\"auto\"},\"x\":1}";
    struct ku_config c;
    int status = KUMI_ENOMEM, n = 0;
    (void)state;
    for (int at = 1; status == KUMI_ENOMEM; at += 1 + at / 16, n++) {
        char *config = ku_asprintf(GOOD ",\n\"deepspeed\":%s}", text), fault[32];
        snprintf(fault, sizeof fault, "mem:%d", at);
        ku_fault_set(fault);
        status =
            ku_config_parse("c.json", config, strlen(config), NULL, 0, ku_model_hidden_size, &c);
        ku_fault_set(NULL);
        ku_free(config);
    }
    assert_int_equal(status, KUMI_OK);
    assert_true(n > 20 && c.optimizer_lr == 0.1);
    ku_config_fini(&c);
}

/* The table as text and JSON: also of what is refused, and short of memory. */
static void test_text(void **state)
{
    static const struct {
        const char *set, *error, *part; /* error NULL: none */
    } row[] = {
        {"train.steps=3", NULL, "\nbatch: train_batch_size 32 = "},
        {"deepspeed.optimizer.type=Muon", "; it is not supported; use AdamW",
         "refused: it is not supported; use AdamW\n"},
        {"optimizer.lr=7", "; it contradicts optimizer.lr: 7 (--set optimizer.lr=7); give one",
         "refused: it contradicts optimizer.lr: 7"},
        {"deepspeed.steps_per_print=1e9", NULL, "train.log_every = 1000000000"},
        {"deepspeed.train_batch_size=3", "Gradient accumulation steps: 0 has to be greater than 0",
         "applied\n"},
    };
    char path[] = "/tmp/kumi-ds-XXXXXX";
    const char *set;
    struct kumi_settings s = {.config = path, .n_sets = 1, .set = &set};
    char *text = NULL;
    int fd = mkstemp(path), status = KUMI_ENOMEM;
    (void)state;
    assert_true(fd >= 0);
    FILE *file = fdopen(fd, "w");
    fputs(GOOD ",\"deepspeed\":{\"train_batch_size\":32,\"train_micro_batch_size_per_gpu\":4,"
               "\"optimizer\":{\"type\":\"Adam\",\"params\":{\"lr\":0.1}}}}",
          file);
    fclose(file);
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        for (int as_json = 0; as_json < 2; as_json++) {
            text = NULL;
            set = row[i].set;
            status = kumi_deepspeed_text(&s, 2, 0, as_json, &text);
            assert_int_equal(status, row[i].error ? KUMI_EINVAL : KUMI_OK);
            assert_non_null(text);
            if (row[i].error)
                assert_non_null(strstr(kumi_last_error()->text, row[i].error));
            if (!as_json)
                assert_non_null(strstr(text, row[i].part));
            json_t *json = as_json ? json_loads(text, 0, NULL) : NULL;
            assert_true(!as_json || json_array_size(json_object_get(json, "keys")) > 180);
            assert_true(!as_json || (json_object_get(json, "error") != NULL) == !!row[i].error);
            json_decref(json);
            kumi_text_free(text);
        }
    }
    assert_int_equal(kumi_deepspeed_text(&s, 0, 0, 0, &text), KUMI_EINVAL);
    set = row[0].set;
    status = KUMI_ENOMEM;
    for (int at = 1; status == KUMI_ENOMEM; at += 1 + at / 16) {
        char fault[32];
        text = NULL;
        snprintf(fault, sizeof fault, "mem:%d", at);
        ku_fault_set(fault);
        status = kumi_deepspeed_text(&s, 2, 1, at % 2, &text);
        ku_fault_set(NULL);
        kumi_text_free(text);
    }
    assert_int_equal(status, KUMI_OK);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_applied),    cmocka_unit_test(test_rows),
        cmocka_unit_test(test_bad),        cmocka_unit_test(test_auto),
        cmocka_unit_test(test_file),       cmocka_unit_test(test_batch),
        cmocka_unit_test(test_precedence), cmocka_unit_test(test_memory),
        cmocka_unit_test(test_text),       cmocka_unit_test(test_batch_auto),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
