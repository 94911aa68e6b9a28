/* SPDX-License-Identifier: Apache-2.0 */
/* links: comm job tensor base */
/* The n-th allocation or system call of a rank fails: the job ends with a reason, on all ranks, and
 * nothing hangs. */
#include "base/err.h"
#include "base/fault.h"
#include "comm/coll.h"
#include "comm/world.h"
#include "kumi/launch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* Everything that allocates: memory, comms with and without lists, messages. */
static int use_job(struct ku_job *job, void *arg)
{
    const struct ku_arena *a;
    struct ku_comm *c;
    struct ku_work in, out;
    int64_t x = job->rank, y = 0;
    (void)arg;
    KU_TRY(ku_arena_create(job, "x", 4096, 4096, &a));
    KU_TRY(ku_comm_split(job->world, 0, job->rank == 1 ? 9 : job->rank, "list", &c));
    struct ku_coll recv = {.kind = KU_COLL_RECV,
                           .dtype = KUMI_I64,
                           .root = (job->rank + 2) % 3,
                           .out = &y,
                           .count = 1};
    struct ku_coll send = {
        .kind = KU_COLL_SEND, .dtype = KUMI_I64, .root = (job->rank + 1) % 3, .in = &x, .count = 1};
    KU_TRY(ku_work_init(&in, job->world, &recv));
    KU_TRY(ku_work_init(&out, job->world, &send));
    KU_TRY(ku_work_start(&in));
    KU_TRY(ku_work_start(&out));
    KU_TRY(ku_work_wait(&in));
    KU_TRY(ku_work_wait(&out));
    KU_TRY(ku_comm_check_hash(c, "test", 1));
    KU_TRY(ku_comm_destroy(c));
    KU_TRY(ku_arena_destroy(job, a));
    return y == (job->rank + 2) % 3 ? 0 : KUMI_EBUG;
}

/*
 * Pretended hosts: a collective that fails after its start ends the job, and calls after it return
 * the root cause. Memory fails from here on.
 */
static int use_hosts(struct ku_job *job, void *arg)
{
    enum { COUNT = 20000 };
    static float data[2][2 * COUNT];
    const struct ku_coll exchange = {.kind = KU_COLL_ALL_TO_ALL,
                                     .dtype = KUMI_F32,
                                     .in = data[job->rank],
                                     .out = data[job->rank],
                                     .count = COUNT};
    const struct ku_coll barrier = {.kind = KU_COLL_BARRIER};
    if (job->rank == 0)
        ku_fault_set(arg);
    for (int i = 0; i < 2; i++) {
        struct ku_work w;
        KU_TRY(ku_work_init(&w, job->world, &exchange));
        KU_TRY(ku_work_start(&w));
        const int status = ku_work_wait(&w);
        if (status < 0 && (!ku_job_has_failed(job) || ku_coll_run(job->world, &barrier) >= 0))
            abort();
        KU_TRY(status);
    }
    return 0;
}

enum form { PROCESSES, THREADS, HOSTS };
struct trial {
    const char *spec;
    int victim;
};

/* One rank as a process; the victim's calls fail. */
static int use_process(void *arg)
{
    const struct trial *t = arg;
    struct ku_job *job;
    int rank = atoi(getenv("RANK"));
    ku_fault_set(rank == t->victim ? t->spec : NULL);
    int status = ku_comm_join(&(struct ku_job_opts){.join_timeout_ns = 300000000}, &job);
    if (status < 0)
        return status;
    status = use_job(job, NULL);
    if (status < 0)
        return ku_job_fail(job);
    return ku_comm_leave(job);
}

/* Runs a trial in a child: its exit code, or -1 if it hung or crashed. */
static int run_trial(const struct trial *t, enum form form)
{
    int status;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(20);
        if (!freopen("/dev/null", "w", stderr))
            _exit(99);
        if (form == THREADS)
            ku_fault_set(t->spec);
        const struct ku_job_opts hosts = {.hosts = "1,1"};
        status = form == HOSTS ? ku_comm_threads(2, &hosts, use_hosts, (void *)(uintptr_t)t->spec)
                 : form == THREADS ? ku_comm_threads(3, NULL, use_job, NULL)
                                   : kumi_launch(use_process, (void *)(uintptr_t)t, 3);
        _exit(-status);
    }
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void try_all(const char *kind, enum form form, int most)
{
    int n_failed = 0;
    for (int n = 1; n <= most; n++) {
        char spec[32];
        struct trial t = {.spec = spec, .victim = n % 3};
        snprintf(spec, sizeof spec, "%s:%d", kind, n);
        int code = run_trial(&t, form);
        if (code < 0 || code > 14)
            fail_msg("%s: exit code %d", spec, code);
        n_failed += code != 0;
    }
    assert_true(n_failed > (form == HOSTS ? 0 : 3));
}

static void test_threads(void **state)
{
    (void)state;
    try_all("mem", THREADS, 40);
    try_all("os", THREADS, 30);
}

static void test_processes(void **state)
{
    (void)state;
    try_all("mem", PROCESSES, 15);
    try_all("os", PROCESSES, 15);
}

static void test_hosts(void **state)
{
    (void)state;
    try_all("mem", HOSTS, 12);
}

/* A batch that finds no memory has started nothing: the rank calls it again, and leaves. */
static int use_batch(const char *spec)
{
    enum { N = 4 };
    struct kumi_comm *world;
    struct kumi_collective sum[N];
    int64_t x[N] = {0};
    for (int i = 0; i < N; i++)
        sum[i] = (struct kumi_collective){
            .kind = KUMI_ALL_REDUCE, .dtype = KUMI_I64, .in = &x[i], .out = &x[i], .count = 1};
    KU_TRY(kumi_comm_join(NULL, &world));
    ku_fault_set(spec);
    const int status = kumi_batch(world, sum, N);
    ku_fault_set(NULL);
    if (status < 0 && status != KUMI_ENOMEM)
        return status;
    KU_TRY(kumi_batch(world, sum, N));
    KU_TRY(kumi_comm_leave(world));
    return status < 0;
}

static void test_batch(void **state)
{
    int n_failed = 0;
    (void)state;
    for (int n = 1; n <= 6; n++) {
        char spec[32];
        int status;
        snprintf(spec, sizeof spec, "mem:%d", n);
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0) {
            alarm(20);
            status = use_batch(spec);
            exit(status < 0 ? 99 : status);
        }
        waitpid(pid, &status, 0);
        assert_true(WIFEXITED(status));
        assert_in_range(WEXITSTATUS(status), 0, 1);
        n_failed += WEXITSTATUS(status);
    }
    assert_int_equal(n_failed, 5); /* the list, and each work */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_threads),
                                       cmocka_unit_test(test_processes),
                                       cmocka_unit_test(test_hosts), cmocka_unit_test(test_batch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
