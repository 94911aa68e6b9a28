/* SPDX-License-Identifier: Apache-2.0 */
/* links: comm job tensor base */
/*
 * What ranks of several pretended hosts make of one that hangs, works on, or leaves while the
 * others wait. Ranks are threads. A wait for another host has 3 s more than the time-out, one for a
 * rank that waits for another host 6 s more.
 */
#include "base/clock.h"
#include "base/err.h"
#include "comm/coll.h"
#include "comm/private.h"
#include "comm/world.h"
#include "job/job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Until a wait that nothing ends fails the test */
static const int64_t LIMIT_NS = INT64_C(40000000000);
enum { N_MANY = 1000, N_SENT = 1 << 15, N_SLOW = 4 << 20 };

enum call { BARRIER, BROADCAST, MESSAGE };
struct row {
    const char *hosts;
    int n;
    enum call call;
    int silent; /* the rank that does not take part */
    int busy_ms;
};

static int n_of(const char *hosts)
{
    int n = 0;
    for (char *end; *hosts; hosts = *end ? end + 1 : end)
        n += (int)strtol(hosts, &end, 10);
    return n;
}

/* Stand still, or work, until the job fails. */
static int await_failure(struct ku_job *job, bool works)
{
    const int64_t until = ku_clock_ns() + LIMIT_NS;
    while (!ku_job_has_failed(job) && ku_clock_ns() < until) {
        usleep(5000);
        if (works)
            ku_job_tick(job);
    }
    KU_TRY(ku_job_root(job));
    KU_IGNORE(KU_ERR(KUMI_EBUG, "test: rank %d: no time-out came", job->rank), "it is raised");
    return ku_job_fail(job);
}

static int call(struct ku_job *job, const struct row *row)
{
    static const enum ku_coll_kind kind[] = {KU_COLL_BARRIER, KU_COLL_BROADCAST, KU_COLL_RECV};
    float x[N_MANY] = {0};
    const struct ku_coll coll = {.kind = kind[row->call],
                                 .in = x,
                                 .out = x,
                                 .count = row->call == BARRIER ? 0 : N_MANY,
                                 .root = row->call == BARRIER ? 0 : row->silent};
    return ku_coll_run(job->world, &coll);
}

/* A rank hangs. The others wait for it, directly or not; of a message, all but rank 0 work. */
static int hang_one(struct ku_job *job, void *arg)
{
    const struct row *row = arg;
    if (job->rank == row->silent)
        return await_failure(job, false);
    if (row->call == MESSAGE && job->rank > 0)
        return await_failure(job, true);
    return call(job, row);
}

/* A job of its own thread, since jobs wait for seconds: the status, and the root cause in text. */
struct run {
    pthread_t thread;
    struct ku_job_opts opts;
    int n;
    int (*each)(struct ku_job *job, void *arg);
    void *arg;
    int status;
    char text[sizeof ku_err_get()->text];
};
static void *run_one(void *arg)
{
    struct run *r = arg;
    r->status = ku_comm_threads(r->n, &r->opts, r->each, r->arg);
    snprintf(r->text, sizeof r->text, "%s", r->status < 0 ? ku_err_get()->text : "");
    return NULL;
}
static void run_all(struct run *r, size_t n)
{
    for (size_t i = 0; i < n; i++)
        assert_int_equal(pthread_create(&r[i].thread, NULL, run_one, &r[i]), 0);
    for (size_t i = 0; i < n; i++)
        pthread_join(r[i].thread, NULL);
}

static struct run run_of(const struct row *row, int (*each)(struct ku_job *job, void *arg))
{
    assert_int_equal(row->n, n_of(row->hosts));
    return (struct run){.opts = {.threads = 1, .hosts = row->hosts, .timeout_ns = 1000000000},
                        .n = row->n,
                        .each = each,
                        .arg = (void *)(uintptr_t)row};
}

static void test_hung(void **state)
{
    static const struct row rows[] = {{"1,1", 2, BROADCAST, 0, 0},     {"1,2", 3, BROADCAST, 0, 0},
                                      {"1,1,1,1", 4, BROADCAST, 0, 0}, {"2,2", 4, BARRIER, 3, 0},
                                      {"1,1,1,1", 4, BARRIER, 2, 0},   {"2,2", 4, MESSAGE, 3, 0}};
    enum { N = sizeof rows / sizeof *rows };
    struct run run[N];
    (void)state;
    for (int i = 0; i < N; i++)
        run[i] = run_of(&rows[i], hang_one);
    run_all(run, N);
    for (int i = 0; i < N; i++) {
        char says[64];
        snprintf(says, sizeof says, "time-out: rank %d on host host", rows[i].silent);
        if (run[i].status != KUMI_ETIMEDOUT || !strstr(run[i].text, says) ||
            strstr(run[i].text, "does not answer"))
            fail_msg("row %d: %d \"%s\" lacks \"%s\"", i, run[i].status, run[i].text, says);
    }
}

/* A rank comes late, and works until then: none that waits for it times out. */
static int delay_one(struct ku_job *job, void *arg)
{
    const struct row *row = arg;
    if (job->rank == row->silent)
        for (int64_t until = ku_clock_ns() + row->busy_ms * INT64_C(1000000);
             ku_clock_ns() < until && !ku_job_has_failed(job);) {
            usleep(5000);
            ku_job_tick(job);
        }
    return call(job, row);
}

/*
 * Rank 1 moves the bytes of a large work between other things, at most 512 KiB each time: twice
 * 16 MiB take 6.4 s.
 */
static int move_slowly(struct ku_job *job, void *arg)
{
    float *x = arg;
    const struct ku_coll coll = {.kind = KU_COLL_ALL_REDUCE,
                                 .in = x + job->rank * N_SLOW,
                                 .out = x + job->rank * N_SLOW,
                                 .count = N_SLOW};
    struct ku_work w;
    int status = 0;
    KU_TRY(ku_work_init(&w, job->world, &coll));
    KU_TRY(ku_work_start(&w));
    while (job->rank == 1 && (status = ku_work_test(&w)) == 0)
        usleep(100000);
    return status < 0 ? status : ku_work_wait(&w);
}

static void test_busy(void **state)
{
    static const struct row rows[] = {{"2,2", 4, BARRIER, 0, 9000},
                                      {"2,2", 4, BARRIER, 1, 6000},
                                      {"1,1,1,1", 4, BARRIER, 0, 6000}};
    enum { N = sizeof rows / sizeof *rows };
    struct run run[N + 1];
    float *x = calloc(2 * N_SLOW, sizeof *x);
    (void)state;
    assert_non_null(x);
    for (int i = 0; i < N; i++)
        run[i] = run_of(&rows[i], delay_one);
    run[N] = run_of(&(const struct row){"1,1", 2, BARRIER, 0, 0}, move_slowly);
    run[N].arg = x;
    run_all(run, N + 1);
    free(x);
    for (int i = 0; i <= N; i++)
        if (run[i].status < 0)
            fail_msg("row %d: %s", i, run[i].text);
}

enum leaving { OF_WORLD, OF_COMM, LARGE, TO_RECEIVER, TO_WORLD_RECEIVER, N_LEAVING };

/* Rank 1 leaves, or returns, while the others wait: on the world, on another comm, in a receive. */
static int leave_one(struct ku_job *job, void *arg)
{
    const enum leaving form = *(const enum leaving *)arg;
    const bool receives = form == TO_RECEIVER || form == TO_WORLD_RECEIVER;
    struct ku_comm *c;
    float x[N_MANY] = {0};
    KU_TRY(ku_comm_split(job->world, 0, job->rank, "other", &c));
    if (job->rank == 1)
        return 0;
    if (receives && job->rank > 0)
        return await_failure(job, true);
    const struct ku_coll coll = {.kind = receives ? KU_COLL_RECV : KU_COLL_ALL_REDUCE,
                                 .in = x,
                                 .out = x,
                                 .count = form == LARGE ? N_MANY : 10,
                                 .root = receives ? 1 : 0};
    return ku_coll_run(form == OF_WORLD || form == TO_WORLD_RECEIVER ? job->world : c, &coll);
}

static void test_leaver(void **state)
{
    enum leaving form[N_LEAVING];
    struct run run[N_LEAVING];
    const int64_t from = ku_clock_ns();
    (void)state;
    for (int i = 0; i < N_LEAVING; i++) {
        form[i] = (enum leaving)i;
        run[i] = (struct run){.opts = {.threads = 1, .hosts = "1,1,1", .timeout_ns = LIMIT_NS},
                              .n = 3,
                              .each = leave_one,
                              .arg = &form[i]};
    }
    run_all(run, N_LEAVING);
    for (int i = 0; i < N_LEAVING; i++)
        if (run[i].status != KUMI_EMISMATCH || !strstr(run[i].text, "rank 1 left the job"))
            fail_msg("form %d: %d %s", i, run[i].status, run[i].text);
    assert_true(ku_clock_ns() - from < LIMIT_NS);
}

/* A rank that has sent what it has to send may leave before its receiver comes. */
static int leave_message(struct ku_job *job, void *arg)
{
    float *x = arg;
    struct ku_coll coll = {.kind = KU_COLL_SEND, .in = x, .root = 0, .count = N_SENT};
    if (job->rank == 0) {
        usleep(500000);
        coll =
            (struct ku_coll){.kind = KU_COLL_RECV, .out = x + N_SENT, .root = 1, .count = N_SENT};
    }
    return ku_coll_run(job->world, &coll);
}

static void test_left_message(void **state)
{
    const struct ku_job_opts opts = {.threads = 1, .hosts = "1,1", .timeout_ns = LIMIT_NS};
    float *x = calloc(2 * N_SENT, sizeof *x);
    (void)state;
    assert_non_null(x);
    for (int i = 0; i < N_SENT; i++)
        x[i] = (float)i;
    assert_int_equal(ku_comm_threads(2, &opts, leave_message, x), 0);
    assert_memory_equal(x, x + N_SENT, N_SENT * sizeof *x);
    free(x);
}

/* The first message of two ranks: the sender goes on to a barrier before the receiver receives. */
static int send_first(struct ku_job *job, void *arg)
{
    const int sender = *(const int *)arg;
    const struct ku_coll barrier = {.kind = KU_COLL_BARRIER};
    float x = (float)job->rank;
    const struct ku_coll message = {.kind = job->rank == sender ? KU_COLL_SEND : KU_COLL_RECV,
                                    .in = &x,
                                    .out = &x,
                                    .root = 1 - job->rank,
                                    .count = 1};
    if (job->rank == sender)
        KU_TRY(ku_coll_run(job->world, &message));
    KU_TRY(ku_coll_run(job->world, &barrier));
    if (job->rank != sender)
        KU_TRY(ku_coll_run(job->world, &message));
    return x == (float)sender ? 0 : KU_ERR(KUMI_EBUG, "test: received %g", (double)x);
}

static void test_first_message(void **state)
{
    const struct ku_job_opts opts = {.threads = 1, .hosts = "1,1", .timeout_ns = 2000000000};
    (void)state;
    for (int sender = 0; sender < 2; sender++)
        if (ku_comm_threads(2, &opts, send_first, &sender) < 0)
            fail_msg("from rank %d: %s", sender, ku_err_get()->text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hung), cmocka_unit_test(test_busy), cmocka_unit_test(test_leaver),
        cmocka_unit_test(test_left_message), cmocka_unit_test(test_first_message)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
