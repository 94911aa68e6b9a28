/* SPDX-License-Identifier: Apache-2.0 */
/* links: app plan infer train remote run model config */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "config/config.h"
#include "model/model.h"
#include "config/optimizer.h"

static const char minimal[] = "{\"model\": {\"model_type\": \"gpt2\"},\n \"data\": {\"train\": "
                              "\"a.txt\"}}";

static int parse(const char *text, const char *const *set, int n_sets, struct ku_config *cfg)
{
    return ku_config_parse("c.json", text, strlen(text), set, n_sets, ku_model_hidden_size, cfg);
}

static void test_defaults(void **state)
{
    struct ku_config c;
    (void)state;
    assert_int_equal(parse(minimal, NULL, 0, &c), KUMI_OK);
    assert_int_equal(c.data_train.n, 1);
    assert_string_equal(c.data_train.item[0], "a.txt");
    assert_int_equal(c.data_val.n, 0);
    assert_null(c.data_val.item);
    assert_true(c.data_val_fraction == 0.1);
    assert_string_equal(c.data_tokenizer, "byte");
    assert_null(c.data_format);
    assert_int_equal(c.data_seq_len, KU_NULL);
    assert_null(c.data_weights.v);
    assert_int_equal(c.data_pack, 1);
    assert_int_equal(c.data_segments, 0);
    assert_int_equal(c.data_separator, KU_NULL);
    assert_null(c.data_on_long);
    assert_int_equal(c.data_shuffle, 1);
    assert_string_equal(c.data_last_batch, "drop");
    assert_int_equal(c.train_steps, KU_NULL);
    assert_int_equal(c.train_seed, 1337);
    assert_int_equal(c.train_eval_every.n, 250);
    assert_int_equal(c.train_eval_every.is_epochs, 0);
    assert_int_equal(c.train_verify_every.n, -1);
    assert_int_equal(c.train_freeze.n, 0);
    assert_true(c.optimizer_betas.v[0] == 0.9 && c.optimizer_betas.v[1] == 0.999);
    assert_int_equal(c.optimizer_decay.is_word, 1);
    assert_string_equal(c.optimizer_decay.item[0], "matrices");
    assert_int_equal(c.schedule_decay_steps.n, -1);
    assert_null(c.parallel_isa);
    assert_true(c.parallel_timeout_s == 60);
    assert_int_equal(c.checkpoint_keep, 3);
    ku_config_fini(&c);
}

static void test_values(void **state)
{
    static const char *const set[] = {
        "train.steps=5e3",
        "optimizer.lr=1",
        "train.eval_every=10ep",
        "train.freeze=[\"wte*\", \"h.0.*\"]",
        "optimizer.decay=h.*.weight",
        "data.val=true.txt",
        "data.tokenizer=\"1\"",
        "train.clip_norm=0",
        "data.shuffle=false",
        "parallel.isa=avx2",
        "schedule.step_size=1",
        "train.steps=7", /* the last one counts */
        "data.format=u32",
        "data.val_fraction=0",
        "model.n_layer=3",
        "schedule.type=multi_step",
        "schedule.milestones=[\"2ep\",\"5ep\"]",
        "optimizer.lr_scaling.rule=sqrt",
        "optimizer.lr_scaling.base_batch=64",
        "optimizer.type=lars",
        "data.weights=[0.25]",
        "data.kind=text",
        ("optimizer.groups=[{\"match\":\"*.bias\",\"weight_decay\":0,\"lr_mult\":2},"
         "{\"match\":[\"wte.*\",\"wpe.*\"],\"betas\":[0.8,0.9]}]"),
    };
    struct ku_config c;
    (void)state;
    assert_int_equal(parse(minimal, set, sizeof set / sizeof set[0], &c), KUMI_OK);
    assert_int_equal(c.train_steps, 7);
    assert_true(c.optimizer_lr == 1);
    assert_int_equal(c.train_eval_every.n, 10);
    assert_int_equal(c.train_eval_every.is_epochs, 1);
    assert_int_equal(c.train_freeze.n, 2);
    assert_int_equal(c.train_freeze.is_word, 0);
    assert_string_equal(c.train_freeze.item[1], "h.0.*");
    assert_null(c.train_freeze.item[2]);
    assert_string_equal(c.optimizer_decay.item[0], "h.*.weight");
    assert_string_equal(c.data_val.item[0], "true.txt");
    assert_int_equal(c.data_weights.n, 1);
    assert_true(c.data_weights.v[0] == 0.25);
    assert_string_equal(c.data_tokenizer, "1");
    assert_true(c.train_clip_norm == 0 && c.data_val_fraction == 0);
    assert_int_equal(c.data_shuffle, 0);
    assert_string_equal(c.parallel_isa, "avx2");
    assert_string_equal(c.data_format, "u32");
    assert_int_equal(c.schedule_milestones.n, 2);
    assert_int_equal(c.schedule_milestones.item[1].n, 5);
    assert_int_equal(c.schedule_milestones.item[1].is_epochs, 1);
    assert_int_equal(c.optimizer_groups.n, 2);
    assert_string_equal(c.optimizer_groups.item[0].match.item[0], "*.bias");
    assert_true(c.optimizer_groups.item[0].weight_decay == 0 &&
                isnan(c.optimizer_groups.item[0].eps));
    assert_string_equal(c.optimizer_groups.item[1].match.item[1], "wpe.*");
    struct ku_update_group *g = ku_rule_groups(&c);
    assert_non_null(g);
    assert_int_equal(g[0].n_set, 2);
    assert_int_equal(g[0].set[0].offset, offsetof(struct ku_attrs, lr_mult));
    assert_true(g[0].set[0].value == 2);
    assert_int_equal(g[1].n_set, 2);
    assert_int_equal(g[1].set[1].offset, offsetof(struct ku_attrs, beta2));
    assert_true(g[1].set[1].value == 0.9);
    ku_free(g);
    assert_true(ku_rule_lr_factor(&c, 256) == 2);
    assert_int_equal(json_integer_value(json_object_get(c.model, "n_layer")), 3);
    ku_config_fini(&c);
}

/* A --set of one of two keys for one thing takes the other's place; two --sets are refused below.
 */
static void test_either(void **state)
{
    static const char text[] =
        "{\"model\":{\"model_type\":\"gpt2\"},\"data\":{\"train\":\"a\"},"
        "\"train\":{\"epochs\":3},\"parallel\":{\"strategy\":\"FULL_SHARD\"}}";
    static const char *const steps[] = {"train.steps=5", "parallel.zero=1"};
    static const char *const none[] = {"train.steps=null"};
    static const char *const both[] = {"train.steps=5", "train.epochs=2"};
    struct ku_config c;
    (void)state;
    assert_int_equal(parse(text, steps, 2, &c), KUMI_OK);
    assert_true(c.train_steps == 5 && c.train_epochs == KU_NULL && c.parallel_zero == 1);
    assert_null(c.parallel_strategy);
    ku_config_fini(&c);
    assert_int_equal(parse(text, none, 1, &c), KUMI_OK);
    assert_true(c.train_steps == KU_NULL && c.train_epochs == 3);
    ku_config_fini(&c);
    assert_int_equal(parse(text, both, 2, &c), KUMI_EINVAL);
    assert_non_null(strstr(ku_err_get()->text, "train.steps is given too"));
}

#define MODEL      "{\"model\":{\"model_type\":\"gpt2\"},"
#define GOOD       MODEL "\"data\":{\"train\":\"a\"}"
#define OPTIMIZERS "adamw adam sgd lars lamb adagrad rmsprop lion adafactor"
#define GPT2       "\"data\":{\"train\":\"a\"},\n\"model\":{\"model_type\":\"gpt2\","
static const struct bad {
    const char *json, *set, *text; /* json NULL: the minimal one */
} bad[] = {
    /* JSON */
    {"", NULL, "json: c.json:1:1: '[' or '{' expected near end of file"},
    {"{\"model\": }", NULL, "json: c.json:1:11: unexpected token near '}'"},
    {"[1]", NULL, "config: c.json:1:1: [1]; a configuration is an object"},
    {GOOD ",\n \"train\":{\"steps\":1,\n\"steps\":2}}", NULL,
     "json: c.json:3:7: duplicate object key near '\"steps\"'"},
    {GOOD "} x", NULL, "json: c.json:1:54: end of file expected near 'x'"},
    /* names */
    {GOOD ",\n \"trian\": {}}", NULL,
     "config: c.json:2:2: trian: unknown key; did you mean train?"},
    {GOOD ",\n \"zero_optimization\": {}}", NULL,
     "config: c.json:2:2: zero_optimization: unknown key; see `kumi help config`"},
    {GOOD ",\n \"train\": {\"seed\": 1,\n   \"stesp\": 5}}", NULL,
     "config: c.json:3:4: train.stesp: unknown key; did you mean steps?"},
    {GOOD ",\n \"train\": {\"bogus_thing\": 5}}", NULL,
     "config: c.json:2:12: train.bogus_thing: unknown key; see `kumi help config`"},
    {GOOD ", \"tr\\nain\": 1}", NULL,
     "config: c.json:1:1: tr?ain: unknown key; did you mean train?"},
    {NULL, "trian.steps=5", "config: --set trian.steps=5: trian: unknown key; did you mean train?"},
    {NULL, "train.stesp=5",
     "config: --set train.stesp=5: train.stesp: unknown key; did you mean steps?"},
    {NULL, "train.steps.x=5",
     "config: --set train.steps.x=5: train.steps: {\"x\":5}; an integer "
     "from 1 to 1e+15"},
    {NULL, "data.train.x=5",
     "config: --set data.train.x=5: the path passes through a value that is not an object"},
    {NULL, "data.train[1]=b",
     "config: --set data.train[1]=b: the path passes through a value that is not an object"},
    {NULL, "train.steps", "config: --set train.steps: not of the form section.key=value"},
    {NULL, "=5", "config: --set =5: not of the form section.key=value"},
    {NULL, "train=5", "config: --set train=5: train: 5; a section is an object"},
    {NULL, "model=gpt2", "config: --set model=gpt2: model: \"gpt2\"; a section is an object"},
    {NULL, "data.tokenizer=\xff", "config: --set data.tokenizer=\xff: the value is not UTF-8"},
    /* what must be there */
    {"{\"data\":{\"train\":\"a\"}}", NULL,
     "config: c.json:1:1: model: missing; give a model: {\"model_type\":\"gpt2\",..} or "
     "{\"path\":DIR}"},
    {MODEL "\"data\":{}}", NULL,
     "config: c.json:1:1: data.train: missing; give the training files"},
    {MODEL "\"data\":{\"train\":null}}", NULL,
     "config: c.json:1:40: data.train: missing; give the training files"},
    {MODEL "\"data\":[]}", NULL, "config: c.json:1:32: data: []; a section is an object"},
    /* types */
    {GOOD ",\n\"train\":{\"steps\":\"5\"}}", NULL,
     "config: c.json:2:10: train.steps: \"5\"; an integer from 1 to 1e+15"},
    {NULL, "train.steps=1.5",
     "config: --set train.steps=1.5: train.steps: 1.5; an integer from 1 to 1e+15"},
    {NULL, "train.steps=five",
     "config: --set train.steps=five: train.steps: \"five\"; an integer from 1 to 1e+15"},
    {NULL, "train.steps=true",
     "config: --set train.steps=true: train.steps: true; an integer from 1 to 1e+15"},
    {NULL, "optimizer.lr=fast",
     "config: --set optimizer.lr=fast: optimizer.lr: \"fast\"; a number from 0 to 1e+30"},
    {NULL, "optimizer.lr=nan",
     "config: --set optimizer.lr=nan: optimizer.lr: \"nan\"; a number from 0 to 1e+30"},
    {NULL, "data.shuffle=1", "config: --set data.shuffle=1: data.shuffle: 1; true or false"},
    {NULL, "data.tokenizer=1", "config: --set data.tokenizer=1: data.tokenizer: 1; a string"},
    {NULL, "data.train=[\"a\",1]",
     "config: --set data.train=[\"a\",1]: data.train: [\"a\",1]; a string or a list of strings"},
    {NULL, "optimizer.betas=0.9",
     "config: --set optimizer.betas=0.9: optimizer.betas: 0.9; two numbers from 0 to 0.9999999"},
    {NULL, "optimizer.betas=[0.9,1]",
     "config: --set optimizer.betas=[0.9,1]: optimizer.betas: [0.9,1]; two numbers from 0 to "
     "0.9999999"},
    {NULL, "optimizer.betas=[0.9,0.9,0.9]",
     "config: --set optimizer.betas=[0.9,0.9,0.9]: optimizer.betas: [0.9,0.9,0.9]; two numbers "
     "from 0 to 0.9999999"},
    {NULL, "train.eval_every=1.5",
     "config: --set train.eval_every=1.5: train.eval_every: 1.5; a number of steps, or \"10ep\""},
    {NULL, "train.eval_every=10 ep",
     "config: --set train.eval_every=10 ep: train.eval_every: \"10 ep\"; a number of steps, or "
     "\"10ep\""},
    {NULL, "train.eval_every= 10ep",
     "config: --set train.eval_every= 10ep: train.eval_every: \" 10ep\"; a number of steps, or "
     "\"10ep\""},
    {NULL, "train.eval_every=0ep",
     "config: --set train.eval_every=0ep: train.eval_every: \"0ep\"; a number of steps, or "
     "\"10ep\""},
    {NULL, "train.eval_every=99999999999999999999ep",
     "config: --set train.eval_every=99999999999999999999ep: train.eval_every: "
     "\"99999999999999999999ep\"; a number of steps, or \"10ep\""},
    {NULL, "train.seed=null",
     "config: --set train.seed=null: train.seed: null; null is not "
     "allowed here"},
    /* ranges and words */
    {NULL, "train.steps=0",
     "config: --set train.steps=0: train.steps: 0; an integer from 1 to "
     "1e+15"},
    {NULL, "train.virtual_shards=65537",
     "config: --set train.virtual_shards=65537: train.virtual_shards: 65537; an integer from 1 to "
     "65536"},
    {NULL, "data.val_fraction=1",
     "config: --set data.val_fraction=1: data.val_fraction: 1; a number from 0 to 0.999999"},
    {NULL, "optimizer.lr=-1e-3",
     "config: --set optimizer.lr=-1e-3: optimizer.lr: -0.001; a number from 0 to 1e+30"},
    {NULL, "train.eval_every=-1",
     "config: --set train.eval_every=-1: train.eval_every: -1; a number of steps, or \"10ep\""},
    {NULL, "schedule.step_size=0",
     "config: --set schedule.step_size=0: schedule.step_size: 0; a number of steps, at least 1, or "
     "\"10ep\""},
    {NULL, "schedule.decay_steps=0",
     "config: --set schedule.decay_steps=0: schedule.decay_steps: 0; a number of steps, at least "
     "1, "
     "or \"10ep\""},
    {NULL, "optimizer.type=adamW",
     "config: --set optimizer.type=adamW: optimizer.type: \"adamW\"; one of: " OPTIMIZERS},
    {NULL, "optimizer.type=adam sgd",
     "config: --set optimizer.type=adam sgd: optimizer.type: \"adam sgd\"; one of: " OPTIMIZERS},
    {NULL,
     "optimizer.type=", "config: --set optimizer.type=: optimizer.type: \"\"; one of: " OPTIMIZERS},
    {NULL, "optimizer.groups={}",
     "config: --set optimizer.groups={}: optimizer.groups: {}; a list of groups"},
    {NULL, "optimizer.groups=[1]",
     "config: --set optimizer.groups=[1]: optimizer.groups[0]: 1; a group is an object"},
    {NULL, "optimizer.groups=[{\"lr_mult\":2}]",
     "config: --set optimizer.groups=[{\"lr_mult\":2}]: optimizer.groups[0]: {\"lr_mult\":2}; give "
     "\"match\", a pattern of parameter names"},
    {NULL, "optimizer.groups=[{\"match\":[]}]",
     "config: --set optimizer.groups=[{\"match\":[]}]: optimizer.groups[0].match: []; a pattern or "
     "a "
     "list of patterns"},
    {NULL, "optimizer.groups=[{\"match\":\"a\"},{\"match\":\"b\",\"lr_mul\":2}]",
     "config: --set optimizer.groups=[{\"match\":\"a\"},{\"match\":\"b\",\"lr_mul\":2}]: "
     "optimizer.groups[1].lr_mul: unknown key; did you mean lr_mult?"},
    {NULL, "optimizer.groups=[{\"match\":\"a\",\"eps\":2}]",
     "config: --set optimizer.groups=[{\"match\":\"a\",\"eps\":2}]: optimizer.groups[0].eps: 2; a "
     "number from 0 to 1"},
    {GOOD ",\"optimizer\":{\"type\":\"adafactor\"}}",
     "optimizer.groups=[{\"match\":\"a\",\"eps\":1e-16},{\"match\":\"b\",\"eps\":1e-30}]",
     "config: --set "
     "optimizer.groups=[{\"match\":\"a\",\"eps\":1e-16},{\"match\":\"b\",\"eps\":1e-30}]"
     ": optimizer.groups[1].eps: 1e-30; with adafactor it replaces eps1: a number from 1e-16 to 1"},
    {NULL, "optimizer.groups=[{\"match\":\"a\",\"betas\":[0.9,1]}]",
     "config: --set optimizer.groups=[{\"match\":\"a\",\"betas\":[0.9,1]}]: "
     "optimizer.groups[0].betas: [0.9,1]; two numbers from 0 to 0.9999999"},
    {NULL, "optimizer.groups=[{\"match\":\"a\",\"betas\":0.9}]",
     "config: --set optimizer.groups=[{\"match\":\"a\",\"betas\":0.9}]: "
     "optimizer.groups[0].betas: 0.9; two numbers from 0 to 0.9999999"},
    {NULL, "schedule.type=ds_one_cycle",
     "config: c.json:1:1: schedule.cycle_min_lr: missing; ds_one_cycle needs it"},
    {NULL, "parallel.isa=sse",
     "config: --set parallel.isa=sse: parallel.isa: \"sse\"; one of: base avx2 avx512 avx512bf16 "
     "amx (or null)"},
    {NULL, "parallel.transport=gloo",
     "config: --set parallel.transport=gloo: parallel.transport: \"gloo\"; not implemented; tcp "
     "serves between hosts; one of: auto shm thread tcp mpi"},
    {NULL, "parallel.transport=nccl",
     "config: --set parallel.transport=nccl: parallel.transport: \"nccl\"; not implemented, for "
     "GPUs; shm serves the ranks of one host; one of: auto shm thread tcp mpi"},
    {NULL, "parallel.transport=ucx",
     "config: --set parallel.transport=ucx: parallel.transport: \"ucx\"; one of: auto shm thread "
     "tcp mpi"},
    {NULL, "parallel.device=cuda",
     "config: --set parallel.device=cuda: parallel.device: \"cuda\"; not implemented; one of: cpu "
     "ref"},
    {NULL, "data.format=u64",
     "config: --set data.format=u64: data.format: \"u64\"; one of: u16 u32 (or null)"},
    /* keys that belong together */
    {GOOD ",\n\"train\":{\"steps\":5,\n \"epochs\":2}}", NULL,
     "config: c.json:3:2: train.epochs: 2; train.steps is given too; give one of them"},
    {NULL, "optimizer.nesterov=true",
     "config: --set optimizer.nesterov=true: optimizer.nesterov: true; it needs optimizer.momentum "
     "above 0 and dampening 0"},
    {NULL, "optimizer.min_coeff=20",
     "config: --set optimizer.min_coeff=20: optimizer.min_coeff: 20; it exceeds "
     "optimizer.max_coeff"},
    {NULL, "optimizer.lr_scaling={\"rule\":\"cubic\",\"base_batch\":256}",
     "config: --set optimizer.lr_scaling={\"rule\":\"cubic\",\"base_batch\":256}: "
     "optimizer.lr_scaling: {\"rule\":\"cubic\",\"base_batch\":256}; {\"rule\": \"linear\" or "
     "\"sqrt\", \"base_batch\": 256}"},
    {NULL, "optimizer.lr_scaling.rule=linear",
     "config: --set optimizer.lr_scaling.rule=linear: optimizer.lr_scaling: "
     "{\"rule\":\"linear\"}; {\"rule\": \"linear\" or \"sqrt\", \"base_batch\": 256}"},
    {NULL, "memory.recompute=attention",
     "config: --set memory.recompute=attention: memory.recompute: \"attention\"; \"none\", "
     "\"selective\", \"full\", {\"every\": 2}, {\"budget_gib\": 4} or {\"policy\": \"full\", "
     "\"match\": [\"h.*\"]}"},
    {NULL, "memory.offload=host",
     "config: --set memory.offload=host: memory.offload: \"host\"; an object: "
     "{\"optimizer\": \"host\"}, or \"file\" with a \"path\""},
    {NULL, "memory.offload.activations=file",
     "config: c.json:1:1: memory.offload.path: missing; give a folder "
     "on a local disk"},
    {NULL, "memory.offload.ratio=2",
     "config: --set memory.offload.ratio=2: memory.offload.ratio: 2; a number from 0 to 1"},
    {NULL, "memory.offload.buffer_size=100",
     "config: --set memory.offload.buffer_size=100: memory.offload.buffer_size: 100; an integer "
     "from 4096 to 68719476736"},
    {NULL, "memory.recompute={\"every\":2,\"budget_gib\":1}",
     "config: --set memory.recompute={\"every\":2,\"budget_gib\":1}: memory.recompute: "
     "{\"every\":2,\"budget_gib\":1}; \"none\", \"selective\", \"full\", {\"every\": 2}, "
     "{\"budget_gib\": 4} or {\"policy\": \"full\", \"match\": [\"h.*\"]}"},
    {NULL, "parallel.virtual_stages=9",
     "config: --set parallel.virtual_stages=9: parallel.virtual_stages: 9; an integer from 2 to 8"},
    {NULL, "schedule.type=noam",
     "config: c.json:1:1: schedule.d_model: missing; noam needs the model's width"},
    {NULL, "schedule.type=multi_step",
     "config: c.json:1:1: schedule.milestones: missing; multi_step needs at least one"},
    {NULL, "schedule.milestones=[3,3]",
     "config: --set schedule.milestones=[3,3]: schedule.milestones: [3,3]; at most 16 numbers of "
     "steps, or all as \"10ep\", ascending"},
    {NULL, "schedule.milestones=[3,\"5ep\"]",
     "config: --set schedule.milestones=[3,\"5ep\"]: schedule.milestones: [3,\"5ep\"]; at most 16 "
     "numbers of steps, or all as \"10ep\", ascending"},
    {NULL, "data.weights=0.5",
     "config: --set data.weights=0.5: data.weights: 0.5; a list of numbers from 1e-09 to "
     "1000000000"},
    {NULL, "data.weights=[]",
     "config: --set data.weights=[]: data.weights: []; a list of numbers from 1e-09 to 1000000000"},
    {NULL, "data.weights=[0]",
     "config: --set data.weights=[0]: data.weights: [0]; a list of numbers from 1e-09 to "
     "1000000000"},
    {NULL, "data.weights=[\"1\"]",
     "config: --set data.weights=[\"1\"]: data.weights: [\"1\"]; a list of numbers from 1e-09 to "
     "1000000000"},
    {NULL, "data.weights=[1,2]",
     "config: --set data.weights=[1,2]: data.weights: [1,2]; give one for each entry of "
     "data.train"},
    {"{\"model\":{\"model_type\":\"gpt2\"},\"data\":{\"train\":\"a\",\"kind\":\"jsonl\"}}",
     "data.weights=[1]",
     "config: --set data.weights=[1]: data.weights: [1]; it is for data.kind text; leave it out"},
    {"{\"model\":{\"model_type\":\"gpt2\"},\"data\":{\"train\":\"a\",\"kind\":\"npy\"}}",
     "data.segments=true",
     "config: --set data.segments=true: data.segments: true; it is for data.kind text and jsonl; "
     "use false"},
    {NULL, "data.separator=-1",
     "config: --set data.separator=-1: data.separator: -1; an integer from 0 to 2147483647"},
    {NULL, "data.on_long=split",
     "config: --set data.on_long=split: data.on_long: \"split\"; one of: drop cut error (or null)"},
    {NULL, "precision.compute=f64",
     "config: --set precision.compute=f64: precision.compute: \"f64\"; f64 is computed by "
     "parallel.device \"ref\" alone"},
    {NULL, "precision.params=bf16",
     "config: --set precision.params=bf16: precision.params: \"bf16\"; parameters are stored in "
     "precision.compute, with a master in f32 beside it; leave it out"},
    {NULL, "precision.stochastic_rounding=true",
     "config: --set precision.stochastic_rounding=true: precision.stochastic_rounding: true; it is "
     "for precision.master false and precision.compute bf16 or f16; use false"},
    {NULL, "precision={\"grads\":\"bf16\",\"reduce\":\"f32\"}",
     "config: --set precision={\"grads\":\"bf16\",\"reduce\":\"f32\"}: precision.reduce: \"f32\"; "
     "gradients of 16 bits travel as they are; give precision.grads f32, or leave it out"},
    {NULL, "precision.grads=fp16",
     "config: --set precision.grads=fp16: precision.grads: \"fp16\"; one of: f32 bf16 f16"},
    {NULL, "schedule.per=epochs",
     "config: --set schedule.per=epochs: schedule.per: \"epochs\"; one of: step epoch"},
    {NULL, "checkpoint.staging_mb=64",
     "config: --set checkpoint.staging_mb=64: checkpoint.staging_mb: 64; it is for "
     "checkpoint.async true; use 0"},
    /* the model's keys */
    {NULL, "model={\"model_type\":\"resnet\",\"depth\":19}",
     "config: --set model={\"model_type\":\"resnet\",\"depth\":19}: model.depth: 19; 18, 34, 50, "
     "101 or 152, or 6 n + 2 up to 1202 (20, 32, 44, 56, 110)"},
    {NULL, "model={\"model_type\":\"resnet\",\"shortcut\":\"A\"}",
     "config: --set model={\"model_type\":\"resnet\",\"shortcut\":\"A\"}: model.shortcut: \"A\"; "
     "it needs basic blocks; give B"},
    {NULL, "model={\"model_type\":\"resnet\",\"depths\":[2,0]}",
     "config: --set model={\"model_type\":\"resnet\",\"depths\":[2,0]}: model.depths: [2,0]; 1 to "
     "1000 blocks in each stage"},
    {NULL, "model={\"model_type\":\"resnet\",\"depths\":[]}",
     "config: --set model={\"model_type\":\"resnet\",\"depths\":[]}: model.depths: []; a list of 1 "
     "to 4 stages' blocks"},
    {NULL, "model={\"model_type\":\"resnet\",\"stem\":\"mnist\"}",
     "config: --set model={\"model_type\":\"resnet\",\"stem\":\"mnist\"}: model.stem: \"mnist\"; "
     "one of: imagenet cifar"},
    {"{" GPT2 "\n \"n_layers\":3}}", NULL,
     "config: c.json:3:2: model.n_layers: unknown key; did you mean n_layer?"},
    {"{" GPT2 "\n \"n_embd\":100}}", NULL,
     "config: c.json:3:2: model.n_embd: 100; it must be divisible by n_head, 12"},
    {"{" GPT2 "\n \"hidden_size\":100}}", NULL,
     "config: c.json:3:2: model.hidden_size: 100; it must be divisible by n_head, 12"},
    {"{" GPT2 "\n \"num_hidden_layers\":0}}", NULL,
     "config: c.json:3:2: model.num_hidden_layers: 0; an integer from 1 to 16384, the limit"},
    {"{" GPT2 "\n \"n_embd\":120, \"hidden_size\":768}}", NULL,
     "config: c.json:3:16: model.hidden_size: 768; the key is given under two names with different "
     "values; remove one"},
    {NULL, "model.n_head=0",
     "config: --set model.n_head=0: model.n_head: 0; an integer from 1 to "
     "2^30"},
    {NULL, "model.n_embd=null",
     "config: --set model.n_embd=null: model.n_embd: null; an integer from 1 to 2^30"},
    {NULL, "model.resid_pdrop=1",
     "config: --set model.resid_pdrop=1: model.resid_pdrop: 1; a probability in [0, 1)"},
    {NULL, "model.layer_norm_epsilon=0",
     "config: --set model.layer_norm_epsilon=0: model.layer_norm_epsilon: 0; a number above 0"},
    {NULL, "model.activation_function=swish",
     "config: --set model.activation_function=swish: model.activation_function: \"swish\"; one of: "
     "gelu_new gelu_pytorch_tanh gelu_fast gelu relu"},
    {NULL, "model.tie_word_embeddings=1",
     "config: --set model.tie_word_embeddings=1: model.tie_word_embeddings: 1; true or false"},
    {NULL, "model={\"model_type\":\"mlp\",\"input\":[1,2,3,4]}",
     "config: --set model={\"model_type\":\"mlp\",\"input\":[1,2,3,4]}: model.input: [1,2,3,4]; a "
     "list of 1 to 3 integers from 1 to 2^30"},
    {NULL, "model={\"model_type\":\"mlp\",\"hidden\":[8,0]}",
     "config: --set model={\"model_type\":\"mlp\",\"hidden\":[8,0]}: model.hidden: [8,0]; a list "
     "of "
     "0 to 16 integers from 1 to 2^30"},
    {NULL, "model={\"model_type\":\"mlp\",\"hidden\":8}",
     "config: --set model={\"model_type\":\"mlp\",\"hidden\":8}: model.hidden: 8; a list of 0 to "
     "16 "
     "integers from 1 to 2^30"},
    {NULL, "model.model_type=gpt1",
     "config: --set model.model_type=gpt1: model.model_type: \"gpt1\"; one of: gpt2 llama bert mlp "
     "resnet transformer"},
    {"{\"data\":{\"train\":\"a\"},\"model\":{}}", NULL,
     "config: c.json:1:1: model.model_type: missing; one of: gpt2 llama bert mlp resnet "
     "transformer"},
    {"{\"data\":{\"train\":\"a\"},\"model\":{\"path\":3}}", NULL,
     "config: c.json:1:32: model.path: 3; a directory with config.json and model.safetensors"},
    {"{\"data\":{\"train\":\"a\"},\"model\":{\"model_type\":\"gpt2\",\"path\":\"d\",\"n_layers\":7}"
     "}",
     NULL, "config: c.json:1:63: model.n_layers: unknown key; did you mean n_layer?"},
    {NULL, "model={\"model_type\":\"gpt2\",\"n_layer\":0}",
     "config: --set model={\"model_type\":\"gpt2\",\"n_layer\":0}: model.n_layer: 0; an integer "
     "from 1 to 16384, the limit"},
};

static void test_refuses(void **state)
{
    int n_wrong = 0;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct ku_config c;
        struct ku_model m;
        int status =
            parse(bad[i].json ? bad[i].json : minimal, &bad[i].set, bad[i].set ? 1 : 0, &c);
        if (status == KUMI_OK) {
            status = ku_model_read(&c, &m);
            ku_config_fini(&c);
        }
        if (status == KUMI_EINVAL && strcmp(ku_err_get()->text, bad[i].text) == 0)
            continue;
        print_error("row %zu: %d: %s\n   wanted: %s\n", i, status,
                    status < 0 ? ku_err_get()->text : "accepted", bad[i].text);
        n_wrong++;
    }
    assert_int_equal(n_wrong, 0);
}

static void test_unreadable(void **state)
{
    struct ku_config c;
    (void)state;
    assert_int_equal(ku_config_load("/nonexistent/c.json", NULL, 0, ku_model_hidden_size, &c),
                     KUMI_EINVAL);
    assert_string_equal(ku_err_get()->text, "json: /nonexistent/c.json: cannot be read: No such "
                                            "file or directory");
    assert_int_equal(ku_config_load("/", NULL, 0, ku_model_hidden_size, &c), KUMI_EINVAL);
    assert_non_null(strstr(ku_err_get()->text, "json: /: cannot be read: "));
}

/* Every spelling of Hugging Face, and its defaults. */
static void test_model(void **state)
{
    static const char one[] =
        "{\"data\":{\"train\":\"a\"},\"model\":{\"model_type\":\"gpt2\","
        "\"num_hidden_layers\":2,\"num_attention_heads\":3,\"hidden_size\":12,"
        "\"max_position_embeddings\":7,\"n_inner\":null,\"n_embd\":12,"
        "\"activation_function\":\"gelu\",\"bos_token_id\":5}}";
    struct ku_config c;
    struct ku_model m, again;
    struct ku_graph *g;
    (void)state;
    assert_int_equal(parse(minimal, NULL, 0, &c), KUMI_OK);
    assert_int_equal(ku_model_read(&c, &m), KUMI_OK);
    const struct kumi_gpt2 *gpt2 = m.config;
    assert_int_equal(ku_model_graph(&m, &(struct kumi_shape_of_batch){.n = 1, .t = 64}, &g), 0);
    assert_int_equal(ku_graph_n_params(g), 124439808);
    /* 2 FLOP a weight and token, N without positions, biases and norms; padded vocabulary */
    double weights = 12.0 * 12 * 768 * 768 + 50304.0 * 768;
    assert_true(ku_graph_model_flops(g) == 64 * (6 * weights + 12.0 * 12 * 768 * 64));
    ku_graph_destroy(g);
    assert_int_equal(gpt2->activation, KUMI_GELU_TANH);
    assert_true(gpt2->resid_pdrop == 0.1 && gpt2->tie_word_embeddings == 1);
    ku_model_fini(&m);
    ku_config_fini(&c);
    assert_int_equal(parse(one, NULL, 0, &c), KUMI_OK);
    assert_int_equal(ku_model_read(&c, &m), KUMI_OK);
    gpt2 = m.config;
    assert_int_equal(gpt2->n_layer, 2);
    assert_int_equal(gpt2->n_head, 3);
    assert_int_equal(gpt2->n_embd, 12);
    assert_int_equal(gpt2->n_positions, 7);
    assert_int_equal(gpt2->n_inner, 0);
    assert_int_equal(gpt2->activation, KUMI_GELU);
    char *text = ku_model_print(&m);
    assert_non_null(text);
    assert_int_equal(ku_model_parse("printed", text, strlen(text), &again), KUMI_OK);
    assert_memory_equal(m.config, again.config, sizeof *gpt2);
    ku_free(text);
    ku_model_fini(&again);
    ku_model_fini(&m);
    ku_config_fini(&c);
}

/* What is dumped is complete, parses again, and dumps to the same. */
static void test_mlp(void **state)
{
    static const char text[] =
        "{\"data\":{\"train\":\"a\"},\"model\":{\"model_type\":\"mlp\",\"input\":[4,3],"
        "\"hidden\":[20,9,20],\"activation\":\"gelu\",\"num_labels\":7,\"dropout\":0.25}}";
    struct ku_config c;
    struct ku_model m, again;
    struct ku_graph *g;
    (void)state;
    assert_int_equal(parse(text, NULL, 0, &c), KUMI_OK);
    assert_int_equal(ku_model_read(&c, &m), KUMI_OK);
    assert_int_equal(m.properties.n_classes, 7);
    assert_int_equal(m.properties.max_positions, 0);
    assert_true(m.properties.image[0] == 4 && m.properties.image[1] == 3 &&
                m.properties.image[2] == 1);
    assert_int_equal(ku_model_graph(&m, &(struct kumi_shape_of_batch){.n = 5}, &g), KUMI_OK);
    assert_int_equal(ku_graph_n_params(g), 13 * 20 + 21 * 9 + 10 * 20 + 21 * 7);
    assert_true(ku_graph_find_output(g, "metric.per_target.accuracy") != 0);
    assert_true(ku_graph_find_output(g, "metric.per_target.top5") != 0);
    ku_graph_destroy(g);
    assert_int_equal(
        ku_model_graph(&m, &(struct kumi_shape_of_batch){.n = 5, .is_inference = 1}, &g), KUMI_OK);
    assert_true(ku_graph_find_output(g, "logits") != 0);
    ku_graph_destroy(g);
    char *printed = ku_model_print(&m);
    assert_non_null(printed);
    assert_int_equal(ku_model_parse("printed", printed, strlen(printed), &again), KUMI_OK);
    assert_memory_equal(m.config, again.config, sizeof(struct kumi_mlp));
    ku_free(printed);
    ku_model_fini(&again);
    ku_model_fini(&m);
    ku_config_fini(&c);
}

static void test_dump(void **state)
{
    static const char *const set[] = {"train.eval_every=2ep", "data.val=[\"b\"]"};
    struct ku_config c, again;
    (void)state;
    assert_int_equal(parse(minimal, set, 2, &c), KUMI_OK);
    json_t *dump = ku_config_dump(&c);
    char *text = json_dumps(dump, JSON_COMPACT);
    assert_non_null(strstr(text, "\"eval_every\":\"2ep\""));
    assert_non_null(strstr(text, "\"keep\":3"));
    assert_int_equal(parse(text, NULL, 0, &again), KUMI_OK);
    json_t *second = ku_config_dump(&again);
    char *text2 = json_dumps(second, JSON_COMPACT);
    assert_string_equal(text, text2); /* the order too */
    free(text);
    free(text2);
    json_decref(dump);
    json_decref(second);
    ku_config_fini(&c);
    ku_config_fini(&again);
}

/* Which keys a resume may change; one that moves to the other side has to be thought about. */
static const char *const layout[] = {"data.train",
                                     "data.val",
                                     "data.train_labels",
                                     "data.val_labels",
                                     "data.workers",
                                     "data.prefetch",
                                     "data.on_error",
                                     "data.train_target",
                                     "data.val_target",
                                     "train.steps",
                                     "train.epochs",
                                     "train.accumulation",
                                     "train.eval_every",
                                     "train.eval_tokens",
                                     "train.log_every",
                                     "train.threads",
                                     "train.verify_every",
                                     "train.on_nonfinite",
                                     "memory.recompute",
                                     "memory.offload",
                                     "parallel.zero",
                                     "parallel.pp",
                                     "parallel.pp_schedule",
                                     "parallel.pp_in_flight",
                                     "parallel.pp_activation_gib",
                                     "parallel.pp_flop_per_byte",
                                     "parallel.stages",
                                     "parallel.virtual_stages",
                                     "parallel.strategy",
                                     "parallel.shard",
                                     "parallel.replicate",
                                     "parallel.wrap",
                                     "parallel.reshard_after_forward",
                                     "parallel.prefetch",
                                     "parallel.persist_below",
                                     "parallel.max_live_parameters",
                                     "parallel.bucket_mb",
                                     "parallel.first_bucket_mb",
                                     "parallel.allgather_bucket_mb",
                                     "parallel.gather_16bit_on_save",
                                     "parallel.overlap",
                                     "parallel.transport",
                                     "parallel.host_state",
                                     "parallel.share_host_state",
                                     "parallel.timeout_s",
                                     "ps.workers",
                                     "ps.servers",
                                     "checkpoint.every",
                                     "checkpoint.keep",
                                     "parallel.sp_keep_gathered",
                                     "checkpoint.async",
                                     "checkpoint.staging_mb"};

static void test_numerics(void **state)
{
    struct ku_config c;
    const char *section, *key;
    json_t *keys, *value;
    int n_layout = 0;
    (void)state;
    assert_int_equal(parse(minimal, NULL, 0, &c), KUMI_OK);
    json_t *dump = ku_config_dump(&c), *numerics = ku_config_numerics(&c);
    assert_non_null(json_object_get(numerics, "model"));
    json_object_foreach(dump, section, keys)
    {
        if (strcmp(section, "model") == 0)
            continue;
        json_object_foreach(keys, key, value)
        {
            char name[128];
            int is_layout = 0;
            snprintf(name, sizeof name, "%s.%s", section, key);
            for (size_t i = 0; i < sizeof layout / sizeof layout[0]; i++)
                is_layout |= strcmp(name, layout[i]) == 0;
            n_layout += is_layout;
            assert_int_equal(json_object_get(numerics, name) == NULL, is_layout);
        }
    }
    assert_int_equal(n_layout, sizeof layout / sizeof layout[0]);
    json_decref(dump);
    json_decref(numerics);
    ku_config_fini(&c);
}

static void test_compare(void **state)
{
    static const struct {
        const char *was, *is, *names;
        int n;
    } row[] = {
        {"{\"a\":1,\"b\":[0.9,1]}", "{\"b\":[0.9,1.0],\"a\":1.0}", "", 0},
        {"{\"a\":1}", "{\"a\":2}", "a (was 1, is 2)", 1},
        {"{\"a\":1}", "{\"a\":null}", "a (was 1, is null)", 1},
        {"{\"a\":1,\"gone\":2}", "{\"a\":1,\"new\":2}",
         "new (was unset, is 2), gone (was 2, is unset)", 2},
        {"{\"a\":[1,2]}", "{\"a\":[1]}", "a (was [1,2], is [1])", 1},
        {"{\"a\":[1]}", "{\"a\":[1,2]}", "a (was [1], is [1,2])", 1},
        {"{\"m\":{\"x\":{\"y\":1}}}", "{\"m\":{\"x\":{\"y\":1.0}}}", "", 0},
        {"{\"m\":{\"x\":1}}", "{\"m\":{\"x\":1,\"y\":1}}", "m.y (was unset, is 1)", 1},
        {"{\"m\":{\"x\":1,\"y\":1}}", "{\"m\":{\"x\":1}}", "m.y (was 1, is unset)", 1},
        {"{\"m\":{\"x\":{\"y\":1,\"z\":[1]},\"u\":2}}",
         "{\"m\":{\"x\":{\"y\":2,\"z\":[]},\"u\":2}}",
         "m.x.y (was 1, is 2), m.x.z (was [1], is [])", 2},
        {"{\"m\":{\"x\":1}}", "{\"m\":\"x\"}", "m (was {\"x\":1}, is \"x\")", 1},
        {"{\"a\":true,\"b\":\"s\"}", "{\"a\":false,\"b\":\"t\"}",
         "a (was true, is false), b (was \"s\", is \"t\")", 2},
        {"{\"a\":\"1\"}", "{\"a\":1.0}", "a (was \"1\", is 1.0)", 1},
        /* a key that one side does not have yet has its default there */
        {"{}", "{\"train.label_smoothing\":0}", "", 0},
        {"{}", "{\"train.label_smoothing\":0.1}", "train.label_smoothing (was 0.0, is 0.1)", 1},
        {"{\"data.last_batch\":\"drop\",\"data.kind\":null}", "{}", "", 0},
        {"{\"data.last_batch\":\"wrap\"}", "{}", "data.last_batch (was \"wrap\", is \"drop\")", 1},
        {"{}", "{\"optimizer.betas\":[0.9,0.5]}", "optimizer.betas (was [0.9,0.999], is [0.9,0.5])",
         1},
        {"{}", "{\"train.label\":0,\"train\":0}",
         "train.label (was unset, is 0), train (was unset, is 0)", 2},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_str names = {0};
        json_t *was = json_loads(row[i].was, 0, NULL), *is = json_loads(row[i].is, 0, NULL);
        assert_int_equal(ku_config_compare(was, is, &names), row[i].n);
        assert_string_equal(ku_str_get(&names), row[i].names);
        ku_str_fini(&names);
        json_decref(was);
        json_decref(is);
    }
}

/* A checkpoint of before all keys but the model's is one of their defaults. */
static void test_compare_with_older(void **state)
{
    struct ku_config c;
    struct ku_str names = {0};
    json_t *was = json_object();
    (void)state;
    assert_int_equal(parse(minimal, NULL, 0, &c), KUMI_OK);
    json_t *is = ku_config_numerics(&c);
    json_object_set(was, "model", json_object_get(is, "model"));
    assert_true(json_object_size(is) > 50);
    assert_int_equal(ku_config_compare(was, is, &names), 0);
    assert_int_equal(ku_config_compare(is, was, &names), 0);
    json_object_del(was, "model"); /* has no default */
    assert_int_equal(ku_config_compare(was, is, &names), 1);
    ku_str_fini(&names);
    json_decref(was);
    json_decref(is);
    ku_config_fini(&c);
}

/* Keys that decide no bit beside the others do not count, so they block no resume. */
static void test_compare_idle(void **state)
{
    static const struct {
        const char *was[2], *is[2];
        int n;
    } row[] = {
        {{"ps.mode=async", "ps.backup=1"}, {"ps.staleness=2", "ps.topk=1"}, 0},
        {{"ps.workers=2", "ps.staleness=2"}, {"ps.workers=2", "ps.topk=1"}, 0},
        {{"ps.workers=2", "ps.mode=ssp"}, {"ps.workers=2", "ps.mode=sync"}, 1},
        {{"ps.workers=2", "ps.backup=1"}, {"ps.workers=2", "ps.mode=sync"}, 1},
        {{"ps.workers=2", "ps.mode=async"}, {"ps.mode=async", "ps.workers=null"}, 1},
        {{"parallel.loss_parallel=false"}, {"parallel.sp=true"}, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_str names = {0};
        json_t *side[2];
        for (int k = 0; k < 2; k++) {
            const char *const *set = k ? row[i].is : row[i].was;
            struct ku_config c;
            assert_int_equal(parse(minimal, set, set[1] ? 2 : 1, &c), KUMI_OK);
            side[k] = ku_config_numerics(&c);
            ku_config_fini(&c);
        }
        assert_int_equal(ku_config_compare(side[0], side[1], &names), row[i].n);
        ku_str_fini(&names);
        json_decref(side[0]);
        json_decref(side[1]);
    }
}

static void test_spans(void **state)
{
    (void)state;
    assert_int_equal(ku_span_steps((struct ku_span){250, 0}, 7), 250);
    assert_int_equal(ku_span_steps((struct ku_span){10, 1}, 7), 70);
    assert_int_equal(ku_span_steps((struct ku_span){0, 0}, 7), 0);
    assert_true(ku_span_steps((struct ku_span){-1, 0}, 7) < 0);
    assert_int_equal(ku_span_steps((struct ku_span){INT64_MAX / 2, 1}, 7), INT64_MAX);
}

/* Both forms of the help name every key that a dump has, with its default. */
static void test_help(void **state)
{
    struct ku_config c;
    struct ku_str text = {0}, table = {0};
    const char *section, *key;
    json_t *keys, *value;
    (void)state;
    assert_int_equal(parse(minimal, NULL, 0, &c), KUMI_OK);
    json_t *dump = ku_config_dump(&c);
    ku_config_help(0, &text);
    ku_config_help(1, &table);
    json_object_foreach(dump, section, keys)
    {
        if (strcmp(section, "model") == 0)
            continue;
        json_object_foreach(keys, key, value)
        {
            char name[128];
            snprintf(name, sizeof name, "  %s.%s ", section, key);
            assert_non_null(strstr(ku_str_get(&text), name));
            snprintf(name, sizeof name, "\n| `%s` | `", key);
            assert_non_null(strstr(ku_str_get(&table), name));
        }
    }
    assert_non_null(strstr(ku_str_get(&table), "| `betas` | `[0.9, 0.999]` | numerics |"));
    assert_non_null(strstr(ku_str_get(&table), "| `timeout_s` | `60` | layout |"));
    json_decref(dump);
    ku_str_fini(&text);
    ku_str_fini(&table);
    ku_config_fini(&c);
}

/* The files that the repository brings are right. */
static void test_examples(void **state)
{
    char **names;
    int n;
    (void)state;
    assert_int_equal(ku_os_list(KUMI_SOURCE_DIR "/configs", &names, &n), 0);
    assert_true(n > 0);
    for (int i = 0; i < n; i++) {
        struct ku_config c;
        struct ku_model m;
        char path[512];
        if (strstr(names[i], ".json") == NULL)
            continue; /* a folder */
        snprintf(path, sizeof path, "%s/%s", KUMI_SOURCE_DIR "/configs", names[i]);
        assert_int_equal(ku_config_load(path, NULL, 0, ku_model_hidden_size, &c), KUMI_OK);
        assert_int_equal(ku_model_read(&c, &m), KUMI_OK);
        ku_model_fini(&m);
        ku_config_fini(&c);
    }
    ku_free(names);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_defaults),
                                       cmocka_unit_test(test_either),
                                       cmocka_unit_test(test_values),
                                       cmocka_unit_test(test_refuses),
                                       cmocka_unit_test(test_unreadable),
                                       cmocka_unit_test(test_model),
                                       cmocka_unit_test(test_mlp),
                                       cmocka_unit_test(test_dump),
                                       cmocka_unit_test(test_numerics),
                                       cmocka_unit_test(test_compare),
                                       cmocka_unit_test(test_compare_with_older),
                                       cmocka_unit_test(test_compare_idle),
                                       cmocka_unit_test(test_spans),
                                       cmocka_unit_test(test_help),
                                       cmocka_unit_test(test_examples)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
