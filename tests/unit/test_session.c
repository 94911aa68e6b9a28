/* SPDX-License-Identifier: Apache-2.0 */
/* links: app plan infer train remote run model config */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "base/err.h"
#include "base/fault.h"
#include "base/os/os.h"
#include "comm/world.h"
#include "train/session.h"

/* A configuration and its data as files without a place on disk. */
struct files {
    int config_fd, text_fd;
    char config[32];
};

static int setup(void **state)
{
    static struct files f;
    static char letters[65 * 9]; /* 64 samples of 8 tokens for training, and a validation split */
    char json[512];
    f.config_fd = ku_os_memfd("config", 0);
    f.text_fd = ku_os_memfd("text", 0);
    memset(letters, 'a', sizeof letters);
    snprintf(json, sizeof json,
             "{\"model\":{\"model_type\":\"gpt2\",\"n_layer\":1,\"n_head\":1,\"n_embd\":4,"
             "\"n_positions\":8,\"vocab_size\":256},\"data\":{\"train\":\"/proc/self/fd/%d\"},"
             "\"train\":{\"steps\":40,\"global_batch\":4},\"schedule\":{\"type\":\"cosine\"}}",
             f.text_fd);
    snprintf(f.config, sizeof f.config, "/proc/self/fd/%d", f.config_fd);
    *state = &f;
    return f.config_fd < 0 || f.text_fd < 0 ||
           ku_os_write_full(f.text_fd, letters, sizeof letters) < 0 ||
           ku_os_write_full(f.config_fd, json, strlen(json)) < 0;
}

static int teardown(void **state)
{
    struct files *f = *state;
    return ku_os_close(f->config_fd) | ku_os_close(f->text_fd);
}

/* Derived values of a checkpoint count for a resume as if they had been given: neither another
 * rank count nor another length bends what follows. */
static void test_resume(void **state)
{
    const struct files *f = *state;
    static const char *const first_set[] = {"train.virtual_shards=null"};
    static const char *const longer[] = {"train.steps=80"};
    static const char *const other[] = {"schedule.decay_steps=80"};
    struct ku_session first = {0}, second = {0};
    struct ku_compile_opts o;
    struct ku_str names = {0};
    assert_int_equal(ku_session_configure(&first, f->config, first_set, 1, NULL, 2), KUMI_OK);
    assert_int_equal(first.batch.virtual_shards, 2);
    assert_int_equal(ku_session_open_data(&first, NULL), KUMI_OK);
    assert_int_equal(first.n_steps, 40);
    assert_int_equal(ku_session_compile_opts(&first, &o), KUMI_OK);
    assert_int_equal(o.rule.decay, 40);

    assert_int_equal(ku_session_configure(&second, f->config, longer, 1, first.numerics, 1),
                     KUMI_OK);
    assert_int_equal(ku_config_compare(first.numerics, second.numerics, &names), 0);
    assert_int_equal(ku_session_open_data(&second, NULL), KUMI_OK);
    assert_int_equal(second.n_steps, 80);
    assert_int_equal(second.batch.virtual_shards, 2);
    assert_int_equal(second.batch.micro_batch, first.batch.micro_batch);
    assert_int_equal(ku_session_compile_opts(&second, &o), KUMI_OK);
    assert_int_equal(o.rule.decay, 40);
    ku_session_fini(&second);

    assert_int_equal(ku_session_configure(&second, f->config, other, 1, first.numerics, 1),
                     KUMI_OK);
    assert_int_equal(ku_config_compare(first.numerics, second.numerics, &names), 1);
    assert_string_equal(ku_str_get(&names), "schedule.decay_steps (was 40, is 80)");
    ku_session_fini(&second);

    assert_int_equal(ku_session_configure(&second, f->config, NULL, 0, first.numerics, 4),
                     KUMI_EINVAL); /* V = 2 stays */
    assert_non_null(strstr(ku_err_get()->text, "virtual_shards: 2 on 4 ranks"));
    ku_session_fini(&second);
    ku_session_fini(&first);
    ku_str_fini(&names);
}

/* schedule.per "epoch": spans are epochs, and the run's length is one, also when resumed. */
static void test_per_epoch(void **state)
{
    const struct files *f = *state;
    static const char *const set[] = {"schedule.per=epoch", "schedule.warmup_steps=2",
                                      "schedule.step_size=3ep"};
    static const char *const longer[] = {"schedule.per=epoch", "schedule.warmup_steps=2",
                                         "schedule.step_size=3ep", "train.steps=80"};
    struct ku_session first = {0}, second = {0};
    struct ku_compile_opts o;
    assert_int_equal(ku_session_configure(&first, f->config, set, 3, NULL, 1), KUMI_OK);
    assert_int_equal(ku_session_open_data(&first, NULL), KUMI_OK);
    int64_t per_epoch = first.source->steps_per_epoch;
    assert_in_range(per_epoch, 2, 39);
    assert_int_equal(ku_session_compile_opts(&first, &o), KUMI_OK);
    assert_int_equal(o.rule.period, per_epoch);
    assert_int_equal(o.rule.warmup, 2);
    assert_int_equal(o.rule.step_size, 3);
    assert_int_equal(o.rule.decay, (40 + per_epoch - 1) / per_epoch);

    assert_int_equal(ku_session_configure(&second, f->config, longer, 4, first.numerics, 1),
                     KUMI_OK);
    assert_int_equal(ku_session_open_data(&second, NULL), KUMI_OK);
    assert_int_equal(ku_session_compile_opts(&second, &o), KUMI_OK);
    assert_int_equal(o.rule.decay, (40 + per_epoch - 1) / per_epoch);
    ku_session_fini(&second);

    /* changed back to steps, the recorded epochs do not count */
    assert_int_equal(ku_session_configure(&second, f->config, NULL, 0, first.numerics, 1), KUMI_OK);
    assert_int_equal(ku_session_open_data(&second, NULL), KUMI_OK);
    assert_int_equal(ku_session_compile_opts(&second, &o), KUMI_OK);
    assert_int_equal(o.rule.period, 1);
    assert_int_equal(o.rule.decay, 40);
    ku_session_fini(&second);
    ku_session_fini(&first);
}

/* Optimizer and schedule, as the compiler is told. */
static void test_rule(void **state)
{
    const struct files *f = *state;
    static const char *const set[] = {
        "optimizer.type=lars",       "optimizer.lr_scaling={\"rule\":\"linear\",\"base_batch\":2}",
        "optimizer.adapt=[\"h.*\"]", "optimizer.trust_coefficient=0.02",
        "schedule.type=multi_step",  "schedule.milestones=[\"1ep\",\"2ep\"]",
        "train.label_smoothing=0.1"};
    struct ku_session s = {0};
    struct ku_compile_opts o;
    struct ku_graph *g;
    int n_losses = 0;
    assert_int_equal(ku_session_configure(&s, f->config, set, 7, NULL, 1), KUMI_OK);
    assert_int_equal(ku_session_open_data(&s, NULL), KUMI_OK);
    assert_int_equal(ku_session_compile_opts(&s, &o), KUMI_OK);
    assert_int_equal(o.optimizer, KU_OP_lars);
    assert_true(o.rule.lr == 2e-3 && o.rule.trust_coefficient == 0.02);
    assert_int_equal(o.adapt, KU_DECAY_PATTERNS);
    assert_string_equal(o.adapt_patterns[0], "h.*");
    assert_int_equal(o.decay, KU_DECAY_MATRICES);
    assert_int_equal(o.rule.schedule, KU_SCHED_MULTI_STEP);
    assert_int_equal((int)o.rule.args.v[0], s.source->steps_per_epoch);
    assert_int_equal((int)o.rule.args.v[1], 2 * s.source->steps_per_epoch);
    assert_int_equal((int)o.rule.args.v[2], 0);
    assert_int_equal(o.rule.cycle_momentum, 0);
    assert_int_equal(ku_session_graph(&s, 0, &g), KUMI_OK);
    for (ku_id n = 1; n < g->n_nodes; n++)
        if (g->node[n].op == KU_OP_softmax_xent) {
            assert_true(g->attr[g->node[n].attr].smoothing == 0.1);
            n_losses++;
        }
    assert_int_equal(n_losses, 1);
    assert_int_equal(ku_batch_is_by_samples(s.source), 0);
    ku_graph_destroy(g);
    ku_session_fini(&s);
}

static void test_refuses(void **state)
{
    const struct files *f = *state;
    static const struct {
        int n;
        const char *set, *text;
    } row[] = {
        {8, "train.seed=1",
         "batch: train.global_batch: 4 is less than virtual_shards = 8; give at least 8, or fewer "
         "ranks"},
        {2, "data.seq_len=9",
         "config: --set data.seq_len=9: data.seq_len: 9; it exceeds the model's n_positions"},
        {2, "parallel.replicate=4",
         "config: --set parallel.replicate=4: parallel.replicate: 4; with parallel.zero 0 all 2 "
         "ranks are replicas"},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_session s = {0};
        assert_int_equal(ku_session_configure(&s, f->config, &row[i].set, 1, NULL, row[i].n),
                         KUMI_EINVAL);
        assert_string_equal(ku_err_get()->text, row[i].text);
        ku_session_fini(&s);
    }
}

static uint64_t ticks(struct ku_job *job)
{
    return atomic_load(&ku_segment_line(job->seg, job->local_rank)->progress);
}

/* A job is ticked when something has advanced; a wait of the opening has a deadline. */
static int wait_for_data(struct ku_job *job, void *arg)
{
    struct ku_session s = {.cfg = {.parallel_timeout_s = 0.1}};
    const struct ku_progress p = ku_session_progress(&s, job);
    uint64_t before = ticks(job);
    int status = KUMI_OK;
    (void)arg;
    for (int i = 0; i < 6; i++) /* rows of a step: 1, 1, 1, 2, 2, 2 */
        assert_int_equal(ku_progress_call(&p, NULL, 1 + (uint64_t)i / 3, 0), KUMI_OK);
    assert_int_equal(ticks(job) - before, 2);
    before = ticks(job);
    assert_int_equal(ku_progress_call(&p, "one", 2, 0), KUMI_OK);
    assert_int_equal(ku_progress_call(&p, "another", 2, 0), KUMI_OK);
    assert_int_equal(ticks(job) - before, 2);
    for (int i = 0; i < 1000 && status == KUMI_OK; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        status = ku_progress_call(&p, "another", 2, 0);
    }
    assert_int_equal(ticks(job) - before, 2);
    return status;
}
static void test_progress(void **state)
{
    (void)state;
    assert_int_equal(ku_comm_threads(1, NULL, wait_for_data, NULL), KUMI_ETIMEDOUT);
    assert_non_null(strstr(ku_err_get()->text, "data: another: no progress for 0.1 s "
                                               "(parallel.timeout_s); continue or end that "
                                               "process"));
}

/* The kind of the data must be one that the model reads. */
static void test_refuses_kinds(void **state)
{
    static const char resnet[] = "model={\"model_type\":\"resnet\",\"depth\":8}";
    static const char mlp[] = "model={\"model_type\":\"mlp\"}";
    static const char seq2seq[] = "model={\"model_type\":\"transformer\"}";
    static const char images[] = "this model reads images; give cifar10, cifar100, folder, tar, "
                                 "idx or npy",
                      pairs[] = "this model translates; give parallel";
    static const struct {
        const char *set[2], *value, *wanted;
    } row[] = {
        {{"data.kind=parallel"},
         "\"parallel\"",
         "it is for translation models; give text or jsonl"},
        {{resnet}, "missing", images},
        {{resnet, "data.kind=text"}, "\"text\"", images},
        {{mlp, "data.kind=parallel"}, "\"parallel\"", images},
        {{seq2seq, "data.kind=text"}, "\"text\"", pairs},
        {{seq2seq, "data.kind=jsonl"}, "\"jsonl\"", pairs},
        {{seq2seq, "data.kind=cifar10"}, "\"cifar10\"", pairs},
    };
    const struct files *f = *state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_session s = {0};
        char text[256];
        const int n = row[i].set[1] ? 2 : 1;
        assert_int_equal(ku_session_configure(&s, f->config, row[i].set, n, NULL, 1), KUMI_EINVAL);
        snprintf(text, sizeof text, ": data.kind: %s; %s", row[i].value, row[i].wanted);
        assert_non_null(strstr(ku_err_get()->text, text));
        ku_session_fini(&s);
    }
}

/* What fills a short batch would count in batch statistics. */
static int create_short(struct ku_job *job, void *arg)
{
    static const char *const set[] = {
        "model={\"model_type\":\"resnet\",\"depth\":8,\"image_size\":8}", "data.kind=cifar10",
        "data.last_batch=short"};
    const struct files *f = arg;
    struct ku_session s = {0};
    int status = ku_session_configure(&s, f->config, set, 3, NULL, 1);
    if (status == KUMI_OK)
        status = ku_session_create_trainer(&s, job);
    ku_session_fini(&s);
    return status;
}
static void test_short_batches(void **state)
{
    assert_int_equal(ku_comm_threads(1, NULL, create_short, *state), KUMI_EINVAL);
    assert_non_null(
        strstr(ku_err_get()->text, "data.last_batch: \"short\"; drop or wrap: batch norm"));
}

/* n_own: a launcher may bind each rank to CPUs of its own, or to those of a NUMA node. */
static void test_threads(void **state)
{
    static const struct {
        int n_ranks, n_cpus, n_own, n_threads;
        const char *set;
    } row[] = {
        {4, 64, 16, 16, "train.threads=null"}, /* Slurm: 4 tasks of 16 CPUs */
        {4, 64, 32, 16, "train.threads=null"}, /* 2 NUMA nodes of 32 CPUs */
        {4, 64, 64, 16, "train.threads=null"},
        {4, 64, 1, 1, "train.threads=null"}, /* bound to one core */
        {1, 64, 64, 64, "train.threads=null"},
        {8, 4, 4, 1, "train.threads=null"},
        {4, 64, 16, 3, "train.threads=3"},
    };
    const struct files *f = *state;
    unsetenv("KUMI_THREADS");
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_session s = {0};
        assert_int_equal(ku_session_configure(&s, f->config, &row[i].set, 1, NULL, 1), KUMI_OK);
        assert_int_equal(ku_session_threads(&s, row[i].n_ranks, row[i].n_cpus, row[i].n_own),
                         row[i].n_threads);
        ku_session_fini(&s);
    }
}

static int create_on_host(struct ku_job *job, void *arg)
{
    const struct files *f = arg;
    const int n_cpus = ku_os_n_cpus(), n_threads = n_cpus < 2 ? 1 : n_cpus / 2;
    struct ku_session s = {0};
    int status = ku_session_configure(&s, f->config, NULL, 0, NULL, 2);
    if (status == KUMI_OK)
        status = ku_session_create_trainer(&s, job);
    if (status == KUMI_OK && s.t->n_threads != n_threads)
        status = KU_ERR(KUMI_EMISMATCH, "%d threads, not %d", s.t->n_threads, n_threads);
    ku_session_fini(&s);
    return status;
}
/* Two hosts on one machine share its cores. */
static void test_threads_of_hosts(void **state)
{
    const struct ku_job_opts opts = {.hosts = "1,1"};
    setenv("KUMI_PIN", "0", 1);
    unsetenv("KUMI_THREADS");
    assert_int_equal(ku_comm_threads(2, &opts, create_on_host, *state), KUMI_OK);
    unsetenv("KUMI_PIN");
}

/* Whether the graph of a session can be built if the n-th allocation fails; *out only if it can. */
static bool is_built(const struct ku_session *s, int n)
{
    char fault[32];
    struct ku_graph *g = NULL;
    snprintf(fault, sizeof fault, "mem:%d", n);
    ku_fault_set(fault);
    const int status = ku_session_graph(s, 0, &g);
    ku_fault_set(NULL);
    assert_int_equal(status, g ? KUMI_OK : KUMI_ENOMEM);
    ku_graph_destroy(g);
    return status == KUMI_OK;
}

/*
 * A graph that cannot be completed is not handed out: its caller would free it again. Label
 * smoothing adds an attribute set, which allocates for some numbers of them.
 */
static void test_graph_memory(void **state)
{
    static const char *const set[] = {"train.label_smoothing=0.1"};
    const struct files *f = *state;
    struct ku_session s = {0};
    struct ku_graph *own = NULL;
    assert_int_equal(ku_session_configure(&s, f->config, set, 1, NULL, 1), KUMI_OK);
    assert_int_equal(ku_session_graph(&s, 0, &own), KUMI_OK);
    s.graph = own;
    for (int more = 0; more < 20; more++) {
        struct ku_attrs a = ku_attrs_default;
        a.lr = more + 2;
        s.cfg.train_label_smoothing = (more + 1) * 0.01;
        assert_int_not_equal(ku_graph_attr(own, &a), 0);
        for (int n = 1; !is_built(&s, n); n++)
            assert_true(n < 1000);
    }
    s.graph = NULL;
    ku_graph_destroy(own);
    ku_session_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_resume),
                                       cmocka_unit_test(test_per_epoch),
                                       cmocka_unit_test(test_rule),
                                       cmocka_unit_test(test_refuses),
                                       cmocka_unit_test(test_short_batches),
                                       cmocka_unit_test(test_threads),
                                       cmocka_unit_test(test_threads_of_hosts),
                                       cmocka_unit_test(test_refuses_kinds),
                                       cmocka_unit_test(test_progress),
                                       cmocka_unit_test(test_graph_memory)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
