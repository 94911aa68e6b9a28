/* SPDX-License-Identifier: Apache-2.0 */
/* The public trainer, data and checkpoints: a loop of one's own, stopped and resumed by another
 * number of ranks, ends with the bits of the uninterrupted one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <unistd.h>

#include "base/err.h"
#include "base/os/os.h"
#include "comm/api/api.h"
#include "comm/consensus.h"
#include "comm/world.h"
#include "kumi/comm.h"
#include "kumi/data.h"
#include "kumi/launch.h"
#include "kumi/model.h"
#include "kumi/trainer.h"

enum { N = 8, T = 9, VOCAB = 64 };

static struct plan {
    char dir[64], text[96], digest[96];
    const char *save, *load; /* folders */
    const char *precision;
    const char *const *set;
    int64_t from, to, expect_from;
    double lr;
    int want; /* status of the load */
    int n_layer, keep;
} plan;

static int create(struct kumi_comm *world, struct kumi_trainer **trainer)
{
    struct kumi_graph *graph;
    struct kumi_gpt2 config;
    struct kumi_trainer_options o = {.lr = plan.lr,
                                     .clip_norm = 1,
                                     .virtual_shards = 4,
                                     .seed = 3,
                                     .precision = plan.precision,
                                     .set = plan.set};
    kumi_gpt2_defaults(&config);
    config.n_layer = plan.n_layer, config.n_head = 3, config.n_embd = 12, config.n_positions = T,
    config.vocab_size = VOCAB;
    int status = kumi_graph_create(&graph);
    if (status < 0)
        return status;
    status = kumi_gpt2_build(graph, &config, &(struct kumi_shape_of_batch){.n = N, .t = T});
    if (status == 0)
        status = kumi_trainer_create(world, graph, &o, trainer);
    kumi_graph_destroy(graph);
    return status;
}

static int open_data(struct kumi_data **data)
{
    const char *path = plan.text;
    struct kumi_data_options o = {.train = &path,
                                  .n_train = 1,
                                  .val_fraction = 0.2,
                                  .seq_len = T,
                                  .vocab_size = VOCAB,
                                  .global_batch = N,
                                  .last_batch = "short",
                                  .seed = 5};
    return kumi_data_open(&o, data);
}

/* A load that failed leaves the trainer at its own step. */
static int check_first_step(struct kumi_trainer *trainer, const struct kumi_batch *batch)
{
    struct kumi_metrics m;
    int status = kumi_trainer_step(trainer, batch, 2, &m);
    return status < 0 ? status : m.step == 0 ? 0 : 4;
}

static int run(struct kumi_comm *world, struct kumi_trainer *trainer, const struct kumi_data *data)
{
    int32_t tokens[N * T], targets[N * T];
    const struct kumi_batch batch[] = {{"tokens", tokens}, {"targets", targets}};
    int64_t step = 0;
    char digest[72];
    if (plan.load) {
        int status = kumi_trainer_load(trainer, plan.load, &step);
        if (status != plan.want)
            return status < 0 ? status : 1;
        if (status < 0) {
            status = kumi_data_train_batch(data, 0, 0, N, tokens, targets);
            return status < 0 ? status : check_first_step(trainer, batch);
        }
        if (step != plan.expect_from)
            return 2;
    }
    for (; step < plan.to; step++) {
        int status = kumi_data_train_batch(data, step, 0, N, tokens, targets);
        if (status == 0)
            status = kumi_trainer_step(trainer, batch, 2, NULL);
        if (status < 0)
            return status;
    }
    int status = plan.save ? kumi_trainer_save(trainer, plan.save, plan.keep) : 0;
    if (status < 0 || (status = kumi_trainer_digest(trainer, digest)) < 0)
        return status;
    return kumi_comm_rank(world) == 0 && ku_os_replace(plan.digest, digest, strlen(digest)) < 0;
}

static int rank_main(void *arg)
{
    struct kumi_comm *world;
    struct kumi_trainer *trainer = NULL;
    struct kumi_data *data = NULL;
    (void)arg;
    int status = kumi_comm_join(NULL, &world);
    if (status < 0)
        return status;
    status = open_data(&data);
    if (status == 0)
        status = create(world, &trainer);
    if (status == 0)
        status = run(world, trainer, data);
    if (status < 0)
        fprintf(stderr, "%s\n", kumi_last_error()->text);
    kumi_trainer_destroy(trainer);
    kumi_data_close(data);
    kumi_comm_leave(world);
    return status;
}

static void launch(int n_ranks, char digest[72])
{
    char *text;
    size_t bytes;
    assert_int_equal(kumi_launch(rank_main, NULL, n_ranks), 0);
    if (digest == NULL)
        return;
    assert_int_equal(ku_os_slurp(plan.digest, 100, &text, &bytes), 0);
    assert_int_equal(bytes, 71);
    memcpy(digest, text, 71);
    digest[71] = '\0';
    free(text);
}

static void setup_plan(void)
{
    char text[700];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)((i * 7 + i / 13) % VOCAB);
    plan = (struct plan){.lr = 1e-2, .to = 7, .n_layer = 1, .keep = 1};
    strcpy(plan.dir, "/tmp/kumi-test-XXXXXX");
    assert_non_null(mkdtemp(plan.dir));
    snprintf(plan.text, sizeof plan.text, "%s/text", plan.dir);
    snprintf(plan.digest, sizeof plan.digest, "%s/digest", plan.dir);
    assert_int_equal(ku_os_replace(plan.text, text, sizeof text), 0);
}

static void resume_in(const char *precision)
{
    char whole[72], resumed[72], folder[96], empty[96];
    setup_plan();
    plan.precision = precision;
    snprintf(folder, sizeof folder, "%s/checkpoints", plan.dir);
    snprintf(empty, sizeof empty, "%s/none", plan.dir);
    launch(1, whole);
    plan.save = folder, plan.to = 3;
    launch(2, resumed);
    assert_string_not_equal(whole, resumed);
    plan.load = folder, plan.save = NULL, plan.expect_from = 3, plan.to = 7;
    launch(4, resumed);
    assert_string_equal(whole, resumed);
    plan.n_layer = 2, plan.want = KUMI_EINPUT; /* another model: the tensors differ */
    launch(2, NULL);
    plan.n_layer = 1;
    plan.lr = 2e-2, plan.want = KUMI_EINVAL; /* other options: refused by name */
    launch(2, NULL);
    plan.load = empty, plan.want = KUMI_ENOCKPT;
    launch(2, NULL);
    ku_os_rmtree(plan.dir);
}

static void resumed_elsewhere(void **state)
{
    (void)state;
    resume_in(NULL);
    resume_in("f16"); /* with its loss scaler */
}

/* The options of the checkpoint before a damaged one are compared, not those of the damaged one. */
static void resumed_past_damage(void **state)
{
    char folder[96], weights[160], *bytes;
    size_t n;
    (void)state;
    setup_plan();
    snprintf(folder, sizeof folder, "%s/checkpoints", plan.dir);
    plan.save = folder, plan.keep = 0, plan.to = 3;
    launch(2, NULL);
    plan.lr = 2e-2, plan.to = 5;
    launch(2, NULL);
    snprintf(weights, sizeof weights, "%s/step-00000005/model/model.safetensors", folder);
    assert_int_equal(ku_os_slurp(weights, 1 << 20, &bytes, &n), 0);
    bytes[n - 1] ^= 4;
    assert_int_equal(ku_os_replace(weights, bytes, n), 0);
    free(bytes);
    plan.load = folder, plan.save = NULL, plan.want = KUMI_EINVAL;
    launch(2, NULL);
    ku_os_rmtree(plan.dir);
}

/* Checkpoints that are all damaged are another status than none at all, in tensors or before. */
static void all_damaged(void **state)
{
    char folder[96], weights[160], manifest[160], *bytes;
    size_t n;
    (void)state;
    setup_plan();
    snprintf(folder, sizeof folder, "%s/checkpoints", plan.dir);
    snprintf(weights, sizeof weights, "%s/step-00000003/model/model.safetensors", folder);
    snprintf(manifest, sizeof manifest, "%s/step-00000003/manifest.json", folder);
    plan.save = folder, plan.to = 3;
    launch(1, NULL);
    plan.load = folder, plan.save = NULL, plan.want = KUMI_EINPUT;
    assert_int_equal(ku_os_slurp(weights, 1 << 20, &bytes, &n), 0);
    bytes[n - 1] ^= 4;
    assert_int_equal(ku_os_replace(weights, bytes, n), 0);
    free(bytes);
    launch(1, NULL);
    assert_int_equal(ku_os_replace(manifest, "", 0), 0);
    launch(2, NULL);
    ku_os_rmtree(plan.dir);
}

/*
 * Saves on pretended hosts, whose directories are what each host calls its own: host 1's is a link.
 * One host that does not see rank 0's directory is named on all ranks, and the trainer goes on. A
 * directory is checked at its first save only.
 */
static int save_rank(struct ku_job *job, void *arg)
{
    struct kumi_comm *world;
    struct kumi_trainer *t = NULL;
    char dir[2][96], want[200];
    const char *error = "";
    (void)arg;
    if (ku_comm_api_wrap(job->world, &world) < 0)
        return 1;
    for (int i = 0; i < 2; i++)
        snprintf(dir[i], sizeof dir[i], "%s/%s%d", plan.dir, job->host ? "link" : "real", i);
    int status = create(world, &t);
    if (status == KUMI_OK && kumi_trainer_save(t, dir[0], 0) != KUMI_EINVAL)
        status = KU_ERR(KUMI_EINPUT, "saved where host1 sees nothing");
    if (status == KUMI_OK) {
        error = kumi_last_error()->text;
        snprintf(want, sizeof want,
                 "checkpoint directory: %s: 1 of the 2 hosts cannot see it: host1;", dir[0]);
        status =
            strncmp(error, want, strlen(want)) == 0 ? KUMI_OK : KU_ERR(KUMI_EINPUT, "%s", error);
    }
    for (int i = 0; i < 2 && status == KUMI_OK; i++) {
        status = kumi_trainer_save(t, dir[1], 0);
        if (status == KUMI_OK && job->rank == 2 && i == 0 && unlink(dir[1]) < 0)
            status = KU_ERR(KUMI_ESTORAGE, "%s: no link", dir[1]);
    }
    kumi_trainer_destroy(t);
    free(world);
    return ku_agree_local(job, status);
}

static void saved_where_hosts_see(void **state)
{
    const struct ku_job_opts hosts = {.hosts = "2,2"};
    char real[96], there[160];
    (void)state;
    setup_plan();
    snprintf(real, sizeof real, "%s/real1", plan.dir);
    snprintf(there, sizeof there, "%s/link1", plan.dir);
    assert_int_equal(symlink(real, there), 0);
    if (ku_comm_threads(4, &hosts, save_rank, NULL) < 0)
        fail_msg("%s", kumi_last_error()->text);
    snprintf(there, sizeof there, "%s/step-00000000/manifest.json", real);
    assert_int_equal(access(there, R_OK), 0);
    ku_os_rmtree(plan.dir);
}

/* What a step says of the scale: nothing where there is none. */
static int scaled(void *arg)
{
    struct kumi_comm *world;
    struct kumi_trainer *trainer = NULL;
    struct kumi_metrics m;
    int32_t tokens[N * T] = {0};
    const struct kumi_batch batch[] = {{"tokens", tokens}, {"targets", tokens}};
    (void)arg;
    int status = kumi_comm_join(NULL, &world);
    if (status < 0)
        return status;
    status = create(world, &trainer);
    if (status == 0)
        status = kumi_trainer_step(trainer, batch, 2, &m);
    const int is_f16 = plan.precision != NULL;
    if (status == 0 &&
        (!m.applied || (is_f16 ? m.loss_scale != 65536 : m.loss_scale == m.loss_scale)))
        status = 3;
    kumi_trainer_destroy(trainer);
    kumi_comm_leave(world);
    return status;
}
static void loss_scale(void **state)
{
    (void)state;
    setup_plan();
    for (int i = 0; i < 2; i++) {
        plan.precision = i ? "f16" : NULL;
        assert_int_equal(kumi_launch(scaled, NULL, 2), 0);
    }
    ku_os_rmtree(plan.dir);
}

/* Steps that overflow at the min scale are steps, and have metrics. */
static int spent(void *arg)
{
    struct kumi_comm *world;
    struct kumi_trainer *trainer = NULL;
    int32_t tokens[N * T] = {0};
    const struct kumi_batch batch[] = {{"tokens", tokens}, {"targets", tokens}};
    (void)arg;
    int status = kumi_comm_join(NULL, &world);
    if (status < 0)
        return status;
    status = create(world, &trainer);
    for (int step = 0; step < 2 && status == 0; step++) {
        struct kumi_metrics m = {.step = -1, .applied = 1};
        if (kumi_trainer_step(trainer, batch, 2, &m) != KUMI_ENUMERIC || m.step != step ||
            m.applied || m.update != 0 || m.tokens != N * T || m.loss_scale != 0x1p40)
            status = 3;
    }
    kumi_trainer_destroy(trainer);
    kumi_comm_leave(world);
    return status;
}
static void min_loss_scale(void **state)
{
    static const char *const set[] = {"precision.initial_scale_power=40",
                                      "precision.min_scale=1099511627776", "precision.hysteresis=1",
                                      NULL};
    (void)state;
    setup_plan();
    plan.precision = "f16", plan.set = set;
    assert_int_equal(kumi_launch(spent, NULL, 2), 0);
    ku_os_rmtree(plan.dir);
}

/* Rank 1 has gone: a loop that takes no notice of the status of a step gets it again. */
static int step_alone(void *arg)
{
    struct kumi_comm *world;
    struct kumi_trainer *trainer = NULL;
    int32_t tokens[N * T] = {0};
    const struct kumi_batch batch[] = {{"tokens", tokens}, {"targets", tokens}};
    (void)arg;
    int status = kumi_comm_join(NULL, &world);
    if (status == 0)
        status = create(world, &trainer);
    if (status < 0)
        return status;
    if (kumi_comm_rank(world) == 1)
        exit(0);
    for (int i = 0; i < 3 && (status == 0 || status == KUMI_EMISMATCH); i++) {
        const int before = status;
        status = kumi_trainer_step(trainer, batch, 2, NULL);
        if (before && status != before)
            status = 3;
    }
    kumi_trainer_destroy(trainer);
    kumi_comm_leave(world);
    return status;
}
static void step_after_failure(void **state)
{
    (void)state;
    setup_plan();
    assert_int_equal(kumi_launch(step_alone, NULL, 2), KUMI_EMISMATCH);
    ku_os_rmtree(plan.dir);
}

/* Metrics of a batch x [N, 3] whose large elements cancel: the exact values, however x is split.
 * Those of a scope have names without it, and one may have the name of the loss. */
enum { WIDTH = 3 };
static int build_metrics(struct kumi_graph *g)
{
    const int64_t classes = 2;
    kumi_value x = kumi_input(g, "x", KUMI_F32, "nc", (int64_t[]){N, WIDTH});
    kumi_value y = kumi_input(g, "y", KUMI_I32, "n", (int64_t[]){N});
    kumi_value weight =
        kumi_param(g, "w", "cv", (int64_t[]){WIDTH, classes}, &(struct kumi_init){.mean = 2});
    kumi_value z = kumi_linear(g, x, "head", &(struct kumi_linear){.weight = weight});
    kumi_graph_metric(g, "sum", x, KUMI_METRIC_SUM);
    kumi_graph_enter(g, "enc");
    kumi_graph_metric(g, "mean", x, KUMI_METRIC_MEAN);
    kumi_graph_leave(g);
    kumi_graph_metric(g, "loss", x, KUMI_METRIC_MEAN);
    kumi_graph_metric(g, "weight", weight, KUMI_METRIC_MEAN);
    kumi_graph_metric(g, "max", x, KUMI_METRIC_MAX);
    kumi_graph_metric(g, "per_target", x, KUMI_METRIC_PER_TARGET);
    return kumi_loss_cross_entropy(g, z, y, -100);
}

static int expect_metrics(const struct kumi_trainer *t, int is_eval, double sum, double max)
{
    static const char *const name[] = {"sum", "mean", "loss", "weight", "max", "per_target"};
    const double mean = sum / (N * WIDTH), want[] = {sum, mean, mean, 2, max, sum / (N - 2)};
    for (size_t i = 0; i < sizeof name / sizeof name[0]; i++) {
        double got;
        if (kumi_trainer_metric(t, name[i], is_eval, &got) < 0 || got != want[i]) {
            fprintf(stderr, "%s of %s: %.17g, expected %.17g\n", name[i],
                    is_eval ? "the evaluation" : "the step", got, want[i]);
            return 3;
        }
    }
    return 0;
}

static int metric_main(void *arg)
{
    struct kumi_comm *world;
    struct kumi_graph *g = NULL;
    struct kumi_trainer *t = NULL;
    float x[2][N * WIDTH];
    int32_t y[N];
    double loss, sum[2] = {0};
    (void)arg;
    for (int i = 0; i < N * WIDTH; i++) { /* multiples of 1/4; all at most -1 in x[1] */
        x[0][i] = (float)(i * 7 % 11) * 0.25f;
        x[1][i] = -1 - x[0][i];
        sum[0] += (double)x[0][i], sum[1] += (double)x[1][i];
    }
    sum[0] -= (double)x[0][4] + (double)x[0][19];
    x[0][4] = 0x1p60f, x[0][19] = -0x1p60f;
    for (int i = 0; i < N; i++)
        y[i] = i % 4 == 1 ? -100 : i % 2;
    int status = kumi_comm_join(NULL, &world);
    if (status < 0)
        return status;
    status = kumi_graph_create(&g);
    if (status == 0)
        status = build_metrics(g);
    if (status == 0)
        status = kumi_trainer_create(
            world, g, &(struct kumi_trainer_options){.lr = 1e-30, .virtual_shards = 4}, &t);
    if (status == 0 && kumi_trainer_metric(t, "sum", 0, &loss) != KUMI_EINVAL)
        status = 4;                              /* no step yet */
    for (int i = 0; i < 2 && status == 0; i++) { /* nothing is left of the batch before */
        const struct kumi_batch batch[] = {{"x", x[i]}, {"y", y}};
        status = kumi_trainer_evaluate(t, batch, 2, &loss);
        if (status == 0)
            status = kumi_trainer_step(t, batch, 2, NULL);
        if (status == 0)
            status = expect_metrics(t, 0, sum[i], i ? -1 : 0x1p60);
        if (status == 0)
            status = expect_metrics(t, 1, sum[i], i ? -1 : 0x1p60);
    }
    if (status == 0) /* the evaluation of another batch leaves the step's */
        status = kumi_trainer_evaluate(t, (struct kumi_batch[]){{"x", x[0]}, {"y", y}}, 2, &loss);
    if (status == 0)
        status = expect_metrics(t, 0, sum[1], -1);
    if (status == 0)
        status = expect_metrics(t, 1, sum[0], 0x1p60);
    if (status < 0)
        fprintf(stderr, "%s\n", kumi_last_error()->text);
    kumi_trainer_destroy(t);
    kumi_graph_destroy(g);
    kumi_comm_leave(world);
    return status;
}

static void metrics_by_value(void **state)
{
    (void)state;
    for (int n = 1; n <= 4; n *= 2)
        assert_int_equal(kumi_launch(metric_main, NULL, n), 0);
}

static void rows_are_samples(void **state)
{
    struct kumi_data *data;
    int32_t all[2][N * T], part[2][N * T];
    (void)state;
    setup_plan();
    assert_int_equal(open_data(&data), 0);
    int64_t per_epoch = kumi_data_steps_per_epoch(data), n_val = kumi_data_n_val(data);
    assert_int_equal(per_epoch, (62 + N - 1) / N); /* 560 tokens: 62 samples */
    assert_int_equal(n_val, 15);                   /* 140 */
    for (int64_t step = 0; step < 2 * per_epoch; step++) {
        int n_rows = 0;
        assert_int_equal(kumi_data_train_batch(data, step, 0, N, all[0], all[1]), 0);
        for (int64_t row = 0; row < N; row++) { /* equal on every reader of the row */
            assert_int_equal(kumi_data_train_batch(data, step, row, 1, part[0], part[1]), 0);
            assert_memory_equal(part[0], all[0] + row * T, T * 4);
            assert_memory_equal(part[1], all[1] + row * T, T * 4);
            n_rows += part[1][0] >= 0;
            for (int t = 0; t + 1 < T && part[1][0] >= 0; t++)
                assert_int_equal(part[1][t], part[0][t + 1]);
        }
        assert_int_equal(n_rows, step % per_epoch == per_epoch - 1 ? 62 % N : N);
    }
    assert_int_equal(kumi_data_val_batch(data, 12, N, all[0], all[1]), 0);
    for (int row = 0; row < N; row++)
        assert_int_equal(all[1][row * T] >= 0, row < 3);
    assert_int_equal(kumi_data_train_batch(data, 0, 1, N, all[0], all[1]), KUMI_EINVAL);
    assert_string_equal(kumi_last_error()->text, "data: rows 1 to 9; a batch has 8");
    kumi_data_close(data);
    ku_os_rmtree(plan.dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resumed_elsewhere), cmocka_unit_test(resumed_past_damage),
        cmocka_unit_test(all_damaged),       cmocka_unit_test(loss_scale),
        cmocka_unit_test(min_loss_scale),    cmocka_unit_test(metrics_by_value),
        cmocka_unit_test(rows_are_samples),  cmocka_unit_test(saved_where_hosts_see),
        cmocka_unit_test(step_after_failure)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
