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
static int run_trial(const struct trial *t, int as_threads)
{
    int status;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(20);
        if (!freopen("/dev/null", "w", stderr))
            _exit(99);
        if (as_threads)
            ku_fault_set(t->spec);
        status = as_threads ? ku_comm_threads(3, NULL, use_job, NULL)
                            : kumi_launch(use_process, (void *)(uintptr_t)t, 3);
        _exit(-status);
    }
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void try_all(const char *kind, int as_threads, int most)
{
    int n_failed = 0;
    for (int n = 1; n <= most; n++) {
        char spec[32];
        struct trial t = {.spec = spec, .victim = n % 3};
        snprintf(spec, sizeof spec, "%s:%d", kind, n);
        int code = run_trial(&t, as_threads);
        if (code < 0 || code > 14)
            fail_msg("%s: exit code %d", spec, code);
        n_failed += code != 0;
    }
    assert_true(n_failed > 3);
}

static void test_threads(void **state)
{
    (void)state;
    try_all("mem", 1, 40);
    try_all("os", 1, 10);
}

static void test_processes(void **state)
{
    (void)state;
    try_all("mem", 0, 15);
    try_all("os", 0, 15);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_threads),
                                       cmocka_unit_test(test_processes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
