/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public trainer's `set`: what a configuration can say, a program of its own can. Under each
 * set of numerics keys all layouts end with one digest, which is also that of kumi_train under a
 * configuration with the same keys.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "app/api_options.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/os/os.h"
#include "config/keys.h"
#include "kumi/comm.h"
#include "kumi/data.h"
#include "kumi/launch.h"
#include "kumi/model.h"
#include "kumi/run.h"
#include "kumi/trainer.h"
#include "nn/builder.h"

enum { N = 8, T = 9, VOCAB = 64, N_STEPS = 6, MOST = 16 };
#define MODEL "\"n_layer\":3,\"n_head\":3,\"n_embd\":12,\"n_positions\":9,\"vocab_size\":64"

static char dir[64], text_path[96], digest_path[96];

/* Of every run here; what they learn is in `rule`. */
static const char *const common[] = {"train.seed=5", "train.virtual_shards=4", "train.steps=6",
                                     "train.clip_norm=0.5"};
static const struct {
    const char *set[6];
} rule[] = {
    {{"optimizer.type=lion", "optimizer.lr=1e-3", "schedule.type=wsd", "schedule.step_size=3",
      "optimizer.groups=[{\"match\":[\"*.bias\",\"ln_*\"],\"weight_decay\":0,\"lr_mult\":2}]",
      "train.ema=0.9"}},
    {{"optimizer.type=adafactor", "optimizer.lr=1e-2", "schedule.type=one_cycle"}},
    {{"optimizer.type=lamb", "precision.compute=bf16", "optimizer.weight_decay=0.1",
      "optimizer.decay=all", "schedule.type=polynomial", "schedule.power=2"}},
    {{"optimizer.type=rmsprop", "optimizer.centered=true", "optimizer.momentum=0.5",
      "train.micro_batch=1", "train.label_smoothing=0.1"}},
    {{"precision.modules=[{\"match\":\"mlp\",\"compute\":\"bf16\",\"param\":\"bf16\",\"output\":"
      "\"f32\"},"
      "{\"match\":\"wte\",\"reduce\":\"bf16\"}]"}},
};
static const struct {
    int n;
    const char *set[4];
} layout[] = {
    {1, {NULL}},
    {2, {"memory.recompute=selective", "parallel.bucket_mb=0.001"}},
    {2, {"parallel.share_host_state=false", "parallel.zero=2", "memory.recompute=full"}},
    {4,
     {"parallel.share_host_state=false", "parallel.strategy=HYBRID_SHARD", "parallel.shard=2",
      "parallel.persist_below=0"}},
    {1, {"memory.recompute={\"budget_gib\": 1}", "parallel.overlap=false"}},
};

static struct job {
    const char *set[2 * MOST];
    int n;
} job;

static void add_sets(const char *const *set, size_t n)
{
    for (size_t i = 0; i < n && set[i]; i++)
        job.set[job.n++] = set[i];
}

static int create(struct kumi_comm *world, const struct kumi_trainer_options *o,
                  struct kumi_trainer **trainer)
{
    struct kumi_graph *graph = NULL;
    struct kumi_gpt2 config;
    kumi_gpt2_defaults(&config);
    config.n_layer = 3, config.n_head = 3, config.n_embd = 12, config.n_positions = T,
    config.vocab_size = VOCAB;
    int status = kumi_graph_create(&graph);
    if (status == 0)
        status = kumi_gpt2_build(graph, &config, &(struct kumi_shape_of_batch){.n = N, .t = T});
    if (status == 0)
        status = kumi_trainer_create(world, graph, o, trainer);
    kumi_graph_destroy(graph);
    return status;
}

static int run(struct kumi_comm *world, struct kumi_trainer *trainer, const struct kumi_data *data)
{
    int32_t tokens[N * T], targets[N * T];
    const struct kumi_batch batch[] = {{"tokens", tokens}, {"targets", targets}};
    char digest[72];
    int status = 0;
    for (int step = 0; step < N_STEPS && status == 0; step++) {
        status = kumi_data_train_batch(data, step, 0, N, tokens, targets);
        if (status == 0)
            status = kumi_trainer_step(trainer, batch, 2, NULL);
    }
    if (status == 0)
        status = kumi_trainer_digest(trainer, digest);
    if (status < 0)
        return status;
    return kumi_comm_rank(world) == 0 && ku_os_replace(digest_path, digest, strlen(digest)) < 0;
}

static int rank_main(void *arg)
{
    const char *path = text_path;
    const struct kumi_data_options o = {.train = &path,
                                        .n_train = 1,
                                        .seq_len = T,
                                        .vocab_size = VOCAB,
                                        .global_batch = N,
                                        .seed = 5};
    struct kumi_comm *world;
    struct kumi_trainer *trainer = NULL;
    struct kumi_data *data = NULL;
    (void)arg;
    int status = kumi_comm_join(NULL, &world);
    if (status < 0)
        return status;
    status = kumi_data_open(&o, &data);
    if (status == 0)
        status = create(world, &(struct kumi_trainer_options){.set = job.set}, &trainer);
    if (status == 0)
        status = run(world, trainer, data);
    if (status < 0)
        fprintf(stderr, "%s\n", kumi_last_error()->text);
    kumi_trainer_destroy(trainer);
    kumi_data_close(data);
    kumi_comm_leave(world);
    return status;
}

static void of_program(size_t r, size_t l, char digest[72])
{
    char *text;
    size_t bytes;
    job = (struct job){0};
    add_sets(common, sizeof common / sizeof common[0]);
    add_sets(rule[r].set, sizeof rule[r].set / sizeof rule[r].set[0]);
    add_sets(layout[l].set, sizeof layout[l].set / sizeof layout[l].set[0]);
    if (kumi_launch(rank_main, NULL, layout[l].n) != 0)
        fail_msg("rule %zu, layout %zu", r, l);
    assert_int_equal(ku_os_slurp(digest_path, 100, &text, &bytes), 0);
    assert_int_equal(bytes, 71);
    memcpy(digest, text, 71);
    digest[71] = '\0';
    free(text);
}

/* The same keys in the command's words, on one rank. */
static void of_configuration(size_t r, char digest[72])
{
    char config[96], out[96], json[512];
    struct kumi_train_result result;
    snprintf(config, sizeof config, "%s/config.json", dir);
    snprintf(out, sizeof out, "%s/run-%zu", dir, r);
    int n = snprintf(json, sizeof json,
                     "{\"model\":{\"model_type\":\"gpt2\"," MODEL "},\"data\":{\"train\":\"%s\","
                     "\"seq_len\":9,\"val_fraction\":0},\"train\":{\"global_batch\":8}}",
                     text_path);
    assert_int_equal(ku_os_replace(config, json, (size_t)n), 0);
    job = (struct job){0};
    add_sets(common, sizeof common / sizeof common[0]);
    add_sets(rule[r].set, sizeof rule[r].set / sizeof rule[r].set[0]);
    const struct kumi_train_options o = {.settings = {config, job.set, job.n}, .out = out};
    if (kumi_train(&o, &result) < 0)
        fail_msg("%s", kumi_last_error()->text);
    assert_int_equal(kumi_ckpt_digest(out, 0, digest), 0);
}

static void as_a_configuration(void **state)
{
    char first[sizeof rule / sizeof rule[0]][72], other[72];
    (void)state;
    for (size_t r = 0; r < sizeof rule / sizeof rule[0]; r++) {
        of_configuration(r, first[r]);
        for (size_t l = 0; l < sizeof layout / sizeof layout[0]; l++) {
            of_program(r, l, other);
            if (strcmp(first[r], other) != 0)
                fail_msg("rule %zu, layout %zu: %s, not %s", r, l, other, first[r]);
        }
        for (size_t k = 0; k < r; k++) /* the keys were heard */
            assert_string_not_equal(first[k], first[r]);
    }
}

/* Options of a run that contradict each other: refused before anything is written. */
static void refuses_runs(void **state)
{
    static char long_path[600];
    static const struct {
        struct kumi_train_options o;
        const char *part;
    } row[] = {
        {{.overwrite = 1, .resume = 1}, "overwrite and resume exclude each other"},
        {{.overwrite = 1, .resume = 2}, "overwrite and resume exclude each other"},
        {{.is_trial = 1, .resume = 1}, "a timed run saves no state"},
        {{.resume_step = 5}, "a step needs resume 1"},
        {{.resume = 2, .resume_step = 5}, "a step needs resume 1"},
        {{.resume = 1, .resume_step = -5}, "resume_step -5"},
        {{.out = long_path}, "a path of 599 bytes; at most 511"},
    };
    char out[96];
    struct stat st;
    (void)state;
    memset(long_path, 'x', sizeof long_path - 1);
    snprintf(out, sizeof out, "%s/refused", dir);
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct kumi_train_options o = row[i].o;
        struct kumi_train_result result;
        o.settings.config = "none.json";
        o.out = o.out ? o.out : out;
        assert_int_equal(kumi_train(&o, &result), KUMI_EINVAL);
        if (strstr(kumi_last_error()->text, row[i].part) == NULL)
            fail_msg("row %zu: %s", i, kumi_last_error()->text);
    }
    assert_int_equal(ku_os_stat(out, &st), -1);
}

static void refuses(void **state)
{
    static const struct {
        const char *set, *part;
    } row[] = {
        {"optimizer.type=adamax", "optimizer.type: \"adamax\""},
        {"parallel.zero=4", "parallel.zero: 4"},
        {"parallel.shard=2", "parallel.shard: 2; replicate x shard must be 1, the number of ranks"},
        {"memory.recompute=sometimes", "memory.recompute: \"sometimes\""},
        {"memory.recompute={\"budget_gib\": 1e-6}", "with all layers recomputed a rank needs"},
        {"optimizer.groups=[{\"match\":\"*\",\"weightdecay\":0}]", "did you mean weight_decay?"},
        {"optimizer.lrr=1", "optimizer.lrr: unknown"},
        {"train.eval_every=5", "trainer: set: train.eval_every=5: not a key of a trainer; it takes "
                               "those that kumi/trainer.h names"},
        {"parallel.transport=thread",
         "trainer: set: parallel.transport=thread: not a key of a trainer"},
        {"parallel.gather_16bit_on_save=true",
         "trainer: set: parallel.gather_16bit_on_save=true: not a key of a trainer"},
        {"data.seq_len=5", "not a key of a trainer"},
        {"checkpoint.every=5", "not a key of a trainer"},
        {"optimizer", "not a key of a trainer"},
        {"train.virtual_shards=3", "train.global_batch: 8 is no multiple of virtual_shards"},
        {"schedule.type=linear", "trainer: schedule.type: linear: the schedule needs an end"},
        {"schedule.type=warmup_decay_lr", "the schedule needs an end"},
        {"schedule.per=epoch", "it counts epochs, but a trainer has only steps"},
        {"schedule.warmup_steps=1ep", "it counts epochs, but a trainer has only steps"},
    };
    struct kumi_comm *world;
    (void)state;
    assert_int_equal(kumi_comm_join(NULL, &world), 0);
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        const char *const set[] = {row[i].set, NULL};
        struct kumi_trainer *trainer = NULL;
        int status = create(world, &(struct kumi_trainer_options){.set = set}, &trainer);
        int wanted = strstr(row[i].set, "e-6") ? KUMI_ENOMEM : KUMI_EINVAL;
        if (status != wanted || strstr(kumi_last_error()->text, row[i].part) == NULL)
            fail_msg("%s: %d, %s", row[i].set, status, kumi_last_error()->text);
        assert_null(trainer);
    }
    kumi_comm_leave(world);
}

static struct ku_graph *graph_of(void)
{
    struct kumi_graph *graph;
    struct ku_graph *taken;
    struct kumi_gpt2 config;
    kumi_gpt2_defaults(&config);
    config.n_layer = 1, config.n_head = 3, config.n_embd = 12, config.n_positions = T,
    config.vocab_size = VOCAB;
    assert_int_equal(kumi_graph_create(&graph), 0);
    assert_int_equal(kumi_gpt2_build(graph, &config, &(struct kumi_shape_of_batch){.n = N, .t = T}),
                     0);
    assert_int_equal(ku_builder_take(graph, &taken), 0);
    kumi_graph_destroy(graph);
    return taken;
}

static const char *const frozen[] = {"wte.*", "ln_f.*", NULL};
static const char *const member_keys[] = {"optimizer.type=lamb",
                                          "optimizer.lr=0.1",
                                          "optimizer.betas=[0.8, 0.99]",
                                          "optimizer.eps=1e-6",
                                          "optimizer.weight_decay=0.3",
                                          "optimizer.momentum=0.7",
                                          "optimizer.nesterov=true",
                                          "optimizer.trust_coefficient=0.01",
                                          "optimizer.min_coeff=0.1",
                                          "optimizer.max_coeff=3",
                                          "train.clip_norm=0.25",
                                          "schedule.warmup_steps=3",
                                          "schedule.type=cosine",
                                          "schedule.decay_steps=9",
                                          "schedule.min_lr=0.001",
                                          "train.micro_batch=2",
                                          "train.virtual_shards=4",
                                          "precision.compute=f16",
                                          "precision.loss_scale=128",
                                          "parallel.device=ref",
                                          "train.threads=2",
                                          "train.seed=11",
                                          "train.freeze=[\"wte.*\", \"ln_f.*\"]",
                                          NULL};

/* Every member of the options is the key of the same meaning, with the same default. */
static void members(void **state)
{
    static const char *const defaults[] = {"train.seed=0", "train.clip_norm=0", "train.threads=1",
                                           NULL};
    const struct kumi_trainer_options options[] = {{.set = member_keys},
                                                   {.optimizer = "lamb",
                                                    .lr = 0.1,
                                                    .beta1 = 0.8,
                                                    .beta2 = 0.99,
                                                    .eps = 1e-6,
                                                    .weight_decay = 0.3,
                                                    .momentum = 0.7,
                                                    .nesterov = 1,
                                                    .trust_coefficient = 0.01,
                                                    .min_coeff = 0.1,
                                                    .max_coeff = 3,
                                                    .clip_norm = 0.25,
                                                    .warmup_steps = 3,
                                                    .decay_steps = 9,
                                                    .min_lr = 0.001,
                                                    .micro_batch = 2,
                                                    .virtual_shards = 4,
                                                    .precision = "f16",
                                                    .device = "ref",
                                                    .threads = 2,
                                                    .seed = 11,
                                                    .freeze = frozen,
                                                    .loss_scale = 128},
                                                   {.set = defaults},
                                                   {0}};
    struct ku_session s[4];
    struct ku_graph *graph = graph_of();
    struct ku_str names = {0};
    (void)state;
    memset(s, 0, sizeof s);
    for (int i = 0; i < 4; i++)
        if (ku_api_configure(&options[i], graph, 1, &s[i]) < 0)
            fail_msg("%d: %s", i, ku_err_get()->text);
    for (int i = 0; i < 4; i += 2) {
        ku_config_compare(s[i].numerics, s[i + 1].numerics, &names);
        assert_string_equal(ku_str_get(&names), "");
        assert_int_equal(s[i].cfg.train_threads, s[i + 1].cfg.train_threads);
    }
    assert_true(ku_config_compare(s[0].numerics, s[2].numerics, &names) > 20);
    ku_str_fini(&names);
    for (int i = 0; i < 4; i++)
        ku_session_fini(&s[i]);
    ku_graph_destroy(graph);
}

/* Members with wrong values are refused as their keys are. */
static void refuses_members(void **state)
{
    static const char *const freeze[] = {"wte.*", "\xff", NULL};
    static const struct {
        struct kumi_trainer_options o;
        const char *text;
    } row[] = {
        {{.lr = (double)NAN}, "config: trainer options: optimizer.lr: nan; give a finite number"},
        {{.beta2 = (double)INFINITY},
         "config: trainer options: optimizer.betas: inf; give a finite number"},
        {{.clip_norm = -1},
         "config: trainer options: train.clip_norm: -1.0; a number from 0 to 1e+30"},
        {{.lr = -0.5}, "config: trainer options: optimizer.lr: -0.5; a number from 0 to 1e+30"},
        {{.micro_batch = -2},
         "config: trainer options: train.micro_batch: -2; an integer from 1 to 1000000000"},
        {{.seed = UINT64_MAX}, "trainer: seed: 18446744073709551615; give a number from 0 to 9e18"},
        {{.precision = "fp8"},
         "config: trainer options: precision.compute: \"fp8\"; one of: f32 bf16 f16 f64"},
        {{.freeze = freeze},
         "config: trainer options: train.freeze: \xff; the string is not UTF-8"},
        {{.nesterov = 1},
         "config: trainer options: optimizer.nesterov: true; it needs "
         "optimizer.momentum above 0 and dampening 0"},
    };
    struct ku_graph *graph = graph_of();
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_session s = {0};
        assert_int_equal(ku_api_configure(&row[i].o, graph, 1, &s), KUMI_EINVAL);
        assert_string_equal(ku_err_get()->text, row[i].text);
        ku_session_fini(&s);
    }
    ku_graph_destroy(graph);
}

/* `set` takes the keys that the table marks for programs, and no other. */
static void visibility(void **state)
{
    struct ku_graph *graph = graph_of();
    (void)state;
    for (int i = 0; i < ku_n_keys; i++) {
        struct ku_session s = {0};
        char key[128];
        const char *const set[] = {key, NULL};
        snprintf(key, sizeof key, "%s.%s=[[]]", ku_keys[i].section, ku_keys[i].name);
        const struct kumi_trainer_options o = {.set = set};
        assert_int_equal(ku_api_configure(&o, graph, 1, &s), KUMI_EINVAL);
        if ((strstr(ku_err_get()->text, "not a key of a trainer") != NULL) !=
            (ku_keys[i].visibility == KU_KEY_COMMAND))
            fail_msg("%s: %s", key, ku_err_get()->text);
        ku_session_fini(&s);
    }
    ku_graph_destroy(graph);
}

#define MUST(x)                                                                                    \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            fprintf(stderr, "%s: %s\n", #x, kumi_last_error()->text);                              \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

/* Averages that are asked for are there, and each rank reads those of all; of none the trainer says
 * so, and goes on. arg: a setting of private state, or NULL. */
static int averages_main(void *arg)
{
    const char *const set[] = {"train.ema=0.5", "optimizer.lr=1e-2",
                               arg ? "parallel.host_state=private" : NULL, arg, NULL};
    static int32_t tokens[N * T], targets[N * T];
    const struct kumi_batch batch[] = {{"tokens", tokens}, {"targets", targets}};
    struct kumi_comm *world;
    struct kumi_trainer *trainer;
    float weight[2][12], average[12];
    double loss[2];
    for (int i = 0; i < N * T; i++)
        tokens[i] = i * 5 % VOCAB, targets[i] = (i * 5 + 5) % VOCAB;
    MUST(kumi_comm_join(NULL, &world) == 0);
    MUST(create(world, &(struct kumi_trainer_options){.set = set}, &trainer) == 0);
    MUST(kumi_trainer_take_ema(trainer) == KUMI_EINVAL); /* before the first update */
    for (int step = 0; step < 3; step++)
        MUST(kumi_trainer_step(trainer, batch, 2, NULL) == 0);
    MUST(kumi_trainer_evaluate(trainer, batch, 2, &loss[0]) == 0);
    MUST(kumi_trainer_read(trainer, "ln_f.weight", weight[0], 12) == 0);
    MUST(kumi_trainer_read(trainer, "ln_f.weight.ema", average, 12) == 0);
    MUST(kumi_trainer_take_ema(trainer) == 0);
    MUST(kumi_trainer_read(trainer, "ln_f.weight", weight[1], 12) == 0);
    MUST(memcmp(weight[1], average, sizeof average) == 0);
    MUST(memcmp(weight[1], weight[0], sizeof average) != 0);
    MUST(kumi_trainer_evaluate(trainer, batch, 2, &loss[1]) == 0);
    MUST(loss[0] != loss[1]);
    kumi_trainer_destroy(trainer);
    MUST(create(world, &(struct kumi_trainer_options){.set = &set[2]}, &trainer) == 0);
    MUST(kumi_trainer_step(trainer, batch, 2, NULL) == 0);
    MUST(kumi_trainer_take_ema(trainer) == KUMI_EINVAL);
    MUST(strstr(kumi_last_error()->text, "train.ema") != NULL);
    MUST(kumi_trainer_step(trainer, batch, 2, NULL) == 0);
    kumi_trainer_destroy(trainer);
    kumi_comm_leave(world);
    return 0;
}

static void averages(void **state)
{
    static char sharded[] = "parallel.zero=2";
    (void)state;
    assert_int_equal(kumi_launch(averages_main, NULL, 1), 0);
    assert_int_equal(kumi_launch(averages_main, NULL, 2), 0);
    assert_int_equal(kumi_launch(averages_main, sharded, 2), 0);
}

/* What lies in a file or in blocks reads as what lies in memory. */
static void reading(void **state)
{
    static const char *const where[][4] = {
        {NULL},
        {"memory.offload.params=file", "memory.offload.optimizer=file", NULL, NULL},
        {"parallel.share_host_state=false", "parallel.zero=3", "parallel.persist_below=0", NULL}};
    static const char *const name[] = {"wte.weight", "wte.weight.exp_avg", "ln_f.weight"};
    static int32_t tokens[N * T], targets[N * T];
    const struct kumi_batch batch[] = {{"tokens", tokens}, {"targets", targets}};
    static float first[3][VOCAB * 12], value[VOCAB * 12];
    struct kumi_comm *world;
    char path[128];
    (void)state;
    snprintf(path, sizeof path, "memory.offload.path=%s", dir);
    for (int i = 0; i < N * T; i++)
        tokens[i] = i * 5 % VOCAB, targets[i] = (i * 5 + 5) % VOCAB;
    assert_int_equal(kumi_comm_join(NULL, &world), 0);
    for (size_t i = 0; i < sizeof where / sizeof where[0]; i++) {
        const char *set[5] = {where[i][0], where[i][1], where[i][2], NULL, NULL};
        struct kumi_trainer *trainer;
        if (i == 1)
            set[2] = path;
        if (create(world, &(struct kumi_trainer_options){.set = set}, &trainer) < 0 ||
            kumi_trainer_step(trainer, batch, 2, NULL) < 0)
            fail_msg("%zu: %s", i, kumi_last_error()->text);
        for (int k = 0; k < 3; k++) {
            const int64_t count = k < 2 ? VOCAB * 12 : 12;
            if (kumi_trainer_read(trainer, name[k], value, count) < 0)
                fail_msg("%zu: %s", i, kumi_last_error()->text);
            if (i == 0)
                memcpy(first[k], value, sizeof value);
            assert_memory_equal(value, first[k], (size_t)count * sizeof *value);
        }
        kumi_trainer_destroy(trainer);
    }
    kumi_comm_leave(world);
}

static void faults(void **state)
{
    static const char *const set[] = {"memory.recompute={\"budget_gib\": 1}", "train.ema=0.5",
                                      NULL};
    struct kumi_comm *world;
    int status = KUMI_ENOMEM;
    (void)state;
    assert_int_equal(kumi_comm_join(NULL, &world), 0);
    for (int64_t at = 1; status == KUMI_ENOMEM; at += 1 + at / 8) {
        char spec[32];
        struct kumi_trainer *trainer = NULL;
        snprintf(spec, sizeof spec, "mem:%lld", (long long)at);
        ku_fault_set(spec);
        status = create(world, &(struct kumi_trainer_options){.set = set}, &trainer);
        ku_fault_set(NULL);
        assert_true((status == 0) == (trainer != NULL));
        kumi_trainer_destroy(trainer);
    }
    assert_int_equal(status, 0);
    kumi_comm_leave(world);
}

static int setup(void **state)
{
    char text[700];
    (void)state;
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)((i * 7 + i / 13) % VOCAB);
    strcpy(dir, "/tmp/kumi-test-XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(text_path, sizeof text_path, "%s/text", dir);
    snprintf(digest_path, sizeof digest_path, "%s/digest", dir);
    return ku_os_replace(text_path, text, sizeof text);
}

static int teardown(void **state)
{
    (void)state;
    return ku_os_rmtree(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_a_configuration),
                                       cmocka_unit_test(refuses),
                                       cmocka_unit_test(refuses_runs),
                                       cmocka_unit_test(members),
                                       cmocka_unit_test(refuses_members),
                                       cmocka_unit_test(visibility),
                                       cmocka_unit_test(averages),
                                       cmocka_unit_test(reading),
                                       cmocka_unit_test(faults)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
