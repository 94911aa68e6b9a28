/* SPDX-License-Identifier: Apache-2.0 */
/* links: app plan infer train remote run model config */
/* Keys that are given and have no effect: each row of the table, and none in configs/. */
#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/err.h"
#include "op/schedule.h"
#include "config/keys.h"
#include "train/ineffective_keys.h"

static const char gpt2[] = "{\"model\":{\"model_type\":\"gpt2\"},\"data\":{\"train\":\"a.txt\"}}";
static const char pairs[] = "{\"model\":{\"model_type\":\"transformer\"},"
                            "\"data\":{\"train\":\"a\",\"train_target\":\"b\"}}";
static const char image[] = "{\"model\":{\"model_type\":\"resnet\",\"depth\":20},"
                            "\"data\":{\"kind\":\"cifar10\",\"train\":\"a\"}}";

/* The list for a configuration; "" where nothing is without effect. */
static int list(const char *path, const char *text, const char *const *set, int n_sets,
                struct ku_str *out)
{
    struct ku_session s = {0};
    int status = text ? ku_config_parse("c.json", text, strlen(text), set, n_sets,
                                        ku_model_hidden_size, &s.cfg)
                      : ku_config_load(path, set, n_sets, ku_model_hidden_size, &s.cfg);
    if (status == KUMI_OK)
        status = ku_model_read(&s.cfg, &s.model);
    if (status == KUMI_OK)
        status = ku_sharding_resolve(&s.cfg, 4, 0, &s.sharding);
    if (status == KUMI_OK)
        status = ku_effect_list(&s, out);
    ku_model_fini(&s.model);
    ku_config_fini(&s.cfg);
    return status;
}

static const struct row {
    const char *text;
    const char *set[3];
    const char *want;
} rows[] = {
    {gpt2, {"optimizer.momentum=0.9"}, "optimizer.momentum (optimizer.type: adamw; it is for sgd"},
    {gpt2, {"optimizer.momentum=0.9", "optimizer.type=sgd"}, ""},
    {gpt2, {"optimizer.momentum=0.0"}, ""}, /* its default */
    {gpt2,
     {"precision.master=false"},
     "precision.master (precision.compute: f32; it is for bf16 f16)"},
    {gpt2,
     {"precision.master=false", "precision.modules=[{\"match\": \"mlp\", \"compute\": \"bf16\"}]"},
     ""},
    {gpt2,
     {"precision.window=7", "precision.modules=[{\"match\": \"mlp\", \"compute\": \"f16\"}]"},
     ""},
    {gpt2, {"optimizer.betas=[0.5, 0.5]", "optimizer.type=sgd"}, "optimizer.betas ("},
    {gpt2, {"data.crop=random"}, "data.crop (data.kind: text; it is for cifar10"},
    {gpt2, {"data.crop=random", "data.padding=4"}, "data.crop ("},
    {image, {"data.crop=random", "data.padding=4"}, ""},
    {image, {"data.scale=[0.5, 1]"}, "data.scale (data.crop: none; it is for resized)"},
    {image, {"data.tokenizer=gpt2"}, "data.tokenizer (data.kind: cifar10;"},
    {gpt2, {"data.format=u16"}, "data.format (data files: none ends in .bin; it is for .bin)"},
    {gpt2, {"data.format=u16", "data.train=x/*.bin"}, ""},
    {gpt2, {"data.pack=false"}, "data.pack (data.kind: text; it is for jsonl)"},
    {gpt2, {"data.pack=false", "data.train=a.jsonl"}, ""},
    {gpt2, {"data.mlm_probability=0.2"}, "data.mlm_probability (model.model_type: gpt2;"},
    {gpt2, {"schedule.gamma=0.5"}, "schedule.gamma (schedule.type: constant; it is for step"},
    {gpt2, {"schedule.gamma=0.5", "schedule.type=step"}, ""},
    {gpt2, {"schedule.warmup_start_lr=1e-5"}, "schedule.warmup_start_lr (schedule.warmup_steps: 0"},
    {gpt2,
     {"schedule={\"type\": \"noam\", \"d_model\": 8, \"warmup_steps\": 9, "
      "\"warmup_start_lr\": 1e-5}"},
     "schedule.warmup_start_lr (schedule.type: noam)"},
    {gpt2, {"optimizer.lr=2e-3", "schedule.type=lr_range_test"}, "optimizer.lr (schedule.type:"},
    {gpt2, {"optimizer.lr=2e-3", "schedule.type=warmup_lr"}, ""},
    {gpt2,
     {"optimizer.lr=2e-3", "schedule.type=warmup_lr", "schedule.warmup_max_lr=1e-3"},
     "optimizer.lr (schedule.warmup_max_lr: given)"},
    {gpt2,
     {"optimizer.lr_scaling={\"rule\": \"linear\", \"base_batch\": 16}",
      "schedule.type=warmup_decay_lr", "schedule.warmup_max_lr=1e-3"},
     "optimizer.lr_scaling (schedule.warmup_max_lr: given)"},
    {gpt2,
     {"optimizer.dampening=0.1"}, /* two reasons, of which the first is named */
     "optimizer.dampening (optimizer.type: adamw; it is for sgd lars)"},
    {gpt2,
     {"optimizer.dampening=0.1", "optimizer.type=sgd"},
     "optimizer.dampening (optimizer.momentum: 0)"},
    {gpt2, {"optimizer.dampening=0.1", "optimizer.type=sgd", "optimizer.momentum=0.9"}, ""},
    {gpt2, {"optimizer.dampening=0.1", "optimizer.type=sgd", "schedule.type=one_cycle"}, ""},
    {gpt2, {"data.on_error=skip"}, ""},
    {pairs, {"data.on_error=skip"}, "data.on_error (data.kind: parallel)"},
    {gpt2, {"precision.window=5"}, "precision.window (loss scaling: none;"},
    {gpt2, {"precision.window=5", "precision.compute=f16"}, ""},
    {gpt2,
     {"precision.growth_factor=4", "precision.compute=f16"},
     "precision.growth_factor (loss scaling: deepspeed; it is for torch)"},
    {gpt2, {"precision.keep_f32=[\"ln_*\"]"}, "precision.keep_f32 (precision.compute: f32;"},
    {gpt2,
     {"memory.offload={\"ratio\": 0.5}"},
     "memory.offload.ratio (memory.offload.optimizer: none"},
    {gpt2, {"memory.offload={\"path\": \"/x\"}"}, "memory.offload.path (offload to files: no)"},
    {gpt2, {"memory.offload={\"ratio\": 0.5, \"optimizer\": \"host\"}"}, ""},
    {gpt2, {"parallel.prefetch=3"}, "parallel.prefetch (parallel.zero: 0; it is for 3)"},
    {gpt2,
     {"parallel.prefetch=3", "parallel.zero=3"},
     "parallel.prefetch (parallel.zero: without effect under parallel.host_state: shared;"},
    {gpt2, {"parallel.prefetch=3", "parallel.zero=3", "parallel.host_state=private"}, ""},
    {gpt2, {"parallel.prefetch=3", "parallel.zero=3", "parallel.share_host_state=false"}, ""},
    {gpt2, {"parallel.zero=1"}, "parallel.zero (parallel.host_state: shared)"},
    {gpt2, {"parallel.strategy=FULL_SHARD"}, "parallel.strategy (parallel.host_state: shared)"},
    {gpt2,
     {"parallel.zero=2", "parallel.shard=2"},
     ", parallel.shard (parallel.host_state: shared)"},
    {gpt2, {"parallel.zero=0", "parallel.replicate=4"}, ""},
    {gpt2, {"memory.offload={\"optimizer\": \"host\", \"pin\": false}"}, "memory.offload.pin ("},
    {gpt2, {"train.ema_warmup=true"}, "train.ema_warmup (train.ema: 0)"},
    {image, {"model.depths=[2, 2]"}, "model.depth (model.depths given: yes)"},
    {gpt2, {"parallel.loss_parallel=false"}, "parallel.loss_parallel (parallel.tp: 1)"},
    {gpt2, {"parallel.loss_parallel=false", "parallel.tp=2"}, ""},
    {gpt2, {"ps.mode=async"}, "ps.mode (ps.workers: null)"},
    {gpt2, {"ps.mode=async", "ps.workers=4"}, ""},
    {gpt2, {"ps.servers=2"}, "ps.servers (ps.workers: null)"},
    {gpt2, {"ps.staleness=2", "ps.workers=4"}, "ps.staleness (ps.mode: sync; it is for ssp)"},
    {gpt2, {"ps.backup=1", "ps.workers=4", "ps.mode=ssp"}, "ps.backup (ps.mode: ssp; it is for"},
    {gpt2, {"ps.topk=0.5", "ps.workers=4"}, "ps.topk (ps.compression: none; it is for topk)"},
    {gpt2, {"ps.topk=0.5", "ps.compression=topk"}, "ps.compression (ps.workers: null), ps.topk ("},
    {gpt2, {"ps.topk=0.5", "ps.compression=topk", "ps.workers=4"}, ""},
    {gpt2, {"optimizer.alpha=0.5", "schedule.power=2"}, ", schedule.power ("}, /* one line */
};

static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct ku_str out = {0};
        int n_sets = 0;
        while (n_sets < 3 && rows[i].set[n_sets])
            n_sets++;
        int n = list(NULL, rows[i].text, rows[i].set, n_sets, &out);
        if (n < 0)
            fail_msg("row %zu: %s", i, ku_err_get()->text);
        if ((n > 0) != (rows[i].want[0] != '\0') || !strstr(ku_str_get(&out), rows[i].want))
            fail_msg("row %zu: '%s', want '%s'", i, ku_str_get(&out), rows[i].want);
        ku_str_fini(&out);
    }
}

/* Every key of the table is one of the configuration's, or a member of an object. The rows of a key
 * follow each other and have different facets. */
static void test_table(void **state)
{
    static const struct {
        const char *path, *facet, *words;
    } table[] = {
#define EFFECT(path, facet, words, value) {path, #facet, words},
#include "config/ineffective_keys.def"
#undef EFFECT
    };
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        assert_true(table[i].words[0] != '\0');
        if (strncmp(table[i].path, "model.", 6) != 0 && !ku_key_find(table[i].path))
            fail_msg("%s: not in keys.def", table[i].path);
        const bool is_next = i > 0 && strcmp(table[i - 1].path, table[i].path) == 0;
        for (size_t k = 0; k < i; k++) {
            assert_true(is_next || strcmp(table[k].path, table[i].path) != 0);
            assert_false(is_next && strcmp(table[k].path, table[i].path) == 0 &&
                         strcmp(table[k].facet, table[i].facet) == 0);
        }
    }
}

/* The schedules that read schedule.decay_steps are those of which op/schedule.h says an end. */
static void test_schedule_ends(void **state)
{
    char words[160] = "";
    (void)state;
    for (int i = 0; ku_attr_schedules[i]; i++)
        if (ku_schedule_has_end(i)) {
            strcat(words, *words ? " " : "");
            strcat(words, ku_attr_schedules[i]);
        }
    const char *of_table = NULL;
#define EFFECT(path, facet, words, value)                                                          \
    if (strcmp(path, "schedule.decay_steps") == 0)                                                 \
        of_table = words;
#include "config/ineffective_keys.def"
#undef EFFECT
    assert_string_equal(of_table, words);
}

static void test_own_configurations(void **state)
{
    glob_t found;
    (void)state;
    assert_int_equal(glob(KUMI_SOURCE_DIR "/configs/*.json", 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct ku_str out = {0};
        int n = list(found.gl_pathv[i], NULL, NULL, 0, &out);
        if (n != 0)
            fail_msg("%s: %s", found.gl_pathv[i], n < 0 ? ku_err_get()->text : ku_str_get(&out));
        ku_str_fini(&out);
    }
    globfree(&found);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_schedule_ends),
        cmocka_unit_test(test_own_configurations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
