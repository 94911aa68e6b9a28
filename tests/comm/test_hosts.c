/* SPDX-License-Identifier: Apache-2.0 */
/* links: job base */
/* tsan */
/* Pretended hosts in one process: they meet, fail together, pass signals, questions and
 * connections on. Ranks are threads; each host has its own segment and bridge. */
#include "base/clock.h"
#include "base/err.h"
#include "base/os/os.h"
#include "base/os/socket.h"
#include "job/control.h"
#include "job/job.h"
#include "job/private.h"
#include "job_client.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Usual: 2 ms. */
static const int64_t LIMIT_NS = INT64_C(40000000000);

struct shared {
    const char *hosts;
    int n;                      /* ranks */
    _Atomic int n_here, n_done; /* ranks that came to a point */
    _Atomic int64_t struck_ns;
    _Atomic int status[64];
    char text[64][440];
    int culprit;
};

#define TEST(condition)                                                                            \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return KU_ERR(KUMI_EBUG, "test: line %d: %s (rank %d)", __LINE__, #condition,          \
                          job->rank);                                                              \
    } while (0)

static int check_table(struct ku_job *job, void *arg)
{
    const struct shared *s = arg;
    const struct ku_host_row *row = ku_job_hosts(job);
    const char *at = s->hosts;
    int first = 0;
    char name[64];
    for (int h = 0; h < job->n_hosts; h++) {
        const int n = (int)strtol(at, NULL, 10);
        TEST(row[h].first_rank == first && row[h].n_ranks == n && row[h].port);
        snprintf(name, sizeof name, "host%d", h);
        TEST(strcmp(row[h].name, name) == 0);
        for (int r = first; r < first + n; r++)
            TEST(ku_job_host_of(job, r) == h);
        first += n;
        at = strchr(at, ',') ? strchr(at, ',') + 1 : at;
    }
    TEST(first == job->n);
    TEST(job->first_rank == row[job->host].first_rank && job->local_n == row[job->host].n_ranks);
    TEST(job->rank == job->first_rank + job->local_rank);
    return 0;
}

/* The ranks of all hosts */
static int run(const char *hosts, int (*fn)(struct ku_job *, void *), struct shared *s)
{
    s->n = 0;
    for (const char *at = hosts; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        s->n += (int)strtol(at, NULL, 10);
    s->hosts = hosts;
    return ku_job_threads(&client, s->n, &(struct ku_job_opts){.hosts = hosts}, fn, s);
}

static const char *const layouts[] = {"1,1", "2,2", "3,2", "1,3", "2,1,1", "1,2,3,1", "1,1,1,2,1"};
enum { N_LAYOUTS = sizeof layouts / sizeof *layouts };

static void test_join(void **state)
{
    (void)state;
    for (int i = 0; i < N_LAYOUTS; i++) {
        struct shared s = {.hosts = layouts[i]};
        if (run(layouts[i], check_table, &s) < 0)
            fail_msg("%s: %s", layouts[i], ku_err_get()->text);
    }
}

/* Ranks look until there is a root cause, as in a wait. */
static int await_root(struct ku_job *job)
{
    const int64_t deadline = ku_clock_ns() + LIMIT_NS;
    while (ku_clock_ns() < deadline) {
        KU_TRY(ku_job_look(job, NULL));
        usleep(500);
    }
    return KU_ERR(KUMI_EBUG, "test: rank %d: no root cause came", job->rank);
}

static void note(struct shared *s, struct ku_job *job, int status)
{
    s->status[job->rank] = status;
    memcpy(s->text[job->rank], ku_err_get()->text, sizeof s->text[0]);
}

/* One rank fails; all get its error. */
static int fail_one(struct ku_job *job, void *arg)
{
    struct shared *s = arg;
    atomic_store(&job->priv->line->state, KU_RANK_JOINED);
    KU_TRY(meet_at(&s->n_here, job->n, LIMIT_NS));
    int status;
    if (job->rank == s->culprit) {
        s->struck_ns = ku_clock_ns();
        KU_ERR_SCOPE(KUMI_ENUMERIC, KUMI_SCOPE_JOB, "loss: rank %d: not finite", job->rank);
        status = ku_job_fail(job);
    } else {
        status = await_root(job);
    }
    note(s, job, status);
    KU_TRY(meet_at(&s->n_done, job->n, LIMIT_NS));
    atomic_store(&job->priv->line->state, KU_RANK_LEFT);
    return status;
}

static void test_abort(void **state)
{
    (void)state;
    for (int i = 0; i < N_LAYOUTS; i++)
        for (int culprit = 0; culprit < 2; culprit++) {
            struct shared s = {.culprit = culprit ? (int)strlen(layouts[i]) / 2 : 0};
            assert_int_equal(run(layouts[i], fail_one, &s), KUMI_ENUMERIC);
            assert_true(ku_clock_ns() - s.struck_ns < LIMIT_NS);
            char expected[64];
            snprintf(expected, sizeof expected, "loss: rank %d: not finite", s.culprit);
            for (int r = 0; r < s.n_here; r++) {
                assert_int_equal(s.status[r], KUMI_ENUMERIC);
                assert_string_equal(s.text[r], expected);
            }
        }
}

/* All ranks fail at once, each with an error of its own: one of them is the job's. */
static int fail_all(struct ku_job *job, void *arg)
{
    struct shared *s = arg;
    atomic_store(&job->priv->line->state, KU_RANK_JOINED);
    KU_TRY(meet_at(&s->n_here, job->n, LIMIT_NS));
    KU_ERR_SCOPE(KUMI_ENUMERIC, KUMI_SCOPE_JOB, "loss: rank %d: not finite", job->rank);
    int status = ku_job_fail(job);
    note(s, job, status);
    KU_TRY(meet_at(&s->n_done, job->n, LIMIT_NS));
    atomic_store(&job->priv->line->state, KU_RANK_LEFT);
    return status;
}

static void test_abort_all(void **state)
{
    (void)state;
    for (int i = 0; i < N_LAYOUTS; i++) {
        struct shared s = {.culprit = -1};
        assert_int_equal(run(layouts[i], fail_all, &s), KUMI_ENUMERIC);
        for (int r = 1; r < s.n_here; r++)
            assert_string_equal(s.text[r], s.text[0]);
    }
}

/* A rank ends without a word: its host notices, the others are told. */
static int end_one(struct ku_job *job, void *arg)
{
    struct shared *s = arg;
    atomic_store(&job->priv->line->state, KU_RANK_JOINED);
    KU_TRY(meet_at(&s->n_here, job->n, LIMIT_NS));
    if (job->rank == s->culprit)
        return -57;
    int status = await_root(job);
    note(s, job, status);
    atomic_store(&job->priv->line->state, KU_RANK_LEFT);
    return status;
}

static void test_end(void **state)
{
    (void)state;
    for (int i = 0; i < N_LAYOUTS; i++) {
        struct shared s = {.culprit = 1};
        assert_true(run(layouts[i], end_one, &s) < 0);
        assert_int_equal(s.n_here, s.n);
        for (int r = 0; r < s.n_here; r++) {
            if (r == s.culprit)
                continue;
            assert_int_equal(s.status[r], KUMI_EPEER);
            if (!strstr(s.text[r], "rank died: rank 1 on host host") ||
                !strstr(s.text[r], "exit code 57"))
                fail_msg("%s: rank %d: %s", layouts[i], r, s.text[r]);
        }
    }
}

/* The bridge of a host is gone without BYE, as after a kill of its first rank. */
static int lose_host(struct ku_job *job, void *arg)
{
    struct shared *s = arg;
    atomic_store(&job->priv->line->state, KU_RANK_JOINED);
    KU_TRY(meet_at(&s->n_here, job->n, LIMIT_NS));
    if (job->host == s->culprit) {
        s->status[job->rank] = 1;
        if (job->local_rank == 0)
            ku_service_kill(job);
        return meet_at(&s->n_done, job->n, LIMIT_NS);
    }
    int status = await_root(job);
    note(s, job, status);
    KU_TRY(meet_at(&s->n_done, job->n, LIMIT_NS));
    atomic_store(&job->priv->line->state, KU_RANK_LEFT);
    return status;
}

static void test_lost(void **state)
{
    (void)state;
    for (int i = 0; i < N_LAYOUTS; i++)
        for (int culprit = 0; culprit < 2; culprit++) {
            struct shared s = {.culprit = culprit};
            char expected[64];
            assert_true(run(layouts[i], lose_host, &s) < 0);
            assert_int_equal(s.n_here, s.n);
            snprintf(expected, sizeof expected, "on host host%d: killed or crashed", culprit);
            for (int r = 0; r < s.n_here; r++)
                if (s.status[r] != 1 && (s.status[r] != KUMI_EPEER || !strstr(s.text[r], expected)))
                    fail_msg("%s: rank %d: %d %s", layouts[i], r, s.status[r], s.text[r]);
        }
}

static int stop_one(struct ku_job *job, void *arg)
{
    struct shared *s = arg;
    const int64_t deadline = ku_clock_ns() + LIMIT_NS;
    KU_TRY(meet_at(&s->n_here, job->n, LIMIT_NS));
    if (job->rank == job->n - 1)
        ku_segment_stop(job->seg, SIGTERM);
    while (!ku_job_stop(job) && ku_clock_ns() < deadline)
        usleep(500);
    TEST(ku_job_stop(job) == SIGTERM);
    return meet_at(&s->n_done, job->n, LIMIT_NS);
}

static void test_stop(void **state)
{
    (void)state;
    for (int i = 0; i < N_LAYOUTS; i++) {
        struct shared s = {.culprit = -1};
        if (run(layouts[i], stop_one, &s) < 0)
            fail_msg("%s: %s", layouts[i], ku_err_get()->text);
    }
}

/* Every rank asks all others. */
static int ask_all(struct ku_job *job, void *arg)
{
    struct shared *s = arg;
    const int64_t deadline = ku_clock_ns() + LIMIT_NS;
    atomic_store(&job->priv->line->state, KU_RANK_JOINED);
    for (int i = 0; i <= job->rank; i++)
        ku_job_tick(job);
    atomic_store(&job->priv->line->awaits, (uint32_t)(job->rank + 1) % (uint32_t)job->n + 1);
    ku_flight_add(job->priv->flight, KU_FLIGHT_START, 0, (uint64_t)job->rank, 7, 0);
    KU_TRY(meet_at(&s->n_here, job->n, LIMIT_NS));
    for (int r = 0; r < job->n; r++)
        for (int again = 0; again < 3; again++) {
            struct ku_progress p;
            char last[64];
            while (ku_control_ask(job, r, &p) == 0 && ku_clock_ns() < deadline)
                usleep(200);
            TEST(ku_clock_ns() < deadline);
            snprintf(last, sizeof last, "operation %d (work 7)", r);
            TEST(p.progress == (uint64_t)r + 1 && p.state == KU_RANK_JOINED);
            TEST(p.awaits == (r + 1) % job->n && strcmp(p.last, last) == 0);
        }
    return meet_at(&s->n_done, job->n, LIMIT_NS);
}

static void test_ask(void **state)
{
    (void)state;
    for (int i = 0; i < N_LAYOUTS; i++) {
        struct shared s = {.culprit = -1};
        if (run(layouts[i], ask_all, &s) < 0)
            fail_msg("%s: %s", layouts[i], ku_err_get()->text);
    }
}

static int read_byte(int fd, int64_t deadline, uint8_t *out)
{
    while (ku_clock_ns() < deadline) {
        ssize_t n = ku_os_tcp_recv(fd, out, 1);
        if (n == 1)
            return 0;
        if (n == 0)
            return -1;
        ku_os_await(fd, POLLIN, 50);
    }
    return -1;
}

/* Every rank dials all ranks of other hosts, sends a byte with the hellos, and takes what comes. */
static int dial_all(struct ku_job *job, void *arg)
{
    struct shared *s = arg;
    struct ku_doorbell *doorbell;
    const int64_t deadline = ku_clock_ns() + LIMIT_NS;
    int fd[64], n = 0, taken = 0, far = job->n - job->local_n;
    KU_TRY(ku_doorbell_open(job->seg->job_id, job->host, job->local_rank, &doorbell));
    KU_TRY(meet_at(&s->n_here, job->n, LIMIT_NS));
    for (int r = 0; r < job->n; r++) {
        const struct ku_dial_head head = {
            .from = job->rank, .to = r, .slot = 3, .lane = (uint32_t)r, .stream = 77};
        const uint8_t byte = (uint8_t)(job->rank * 16 + r);
        if (ku_job_host_of(job, r) == job->host)
            continue;
        KU_TRY(ku_control_dial(job, &head, LIMIT_NS, &fd[n]));
        TEST(ku_os_tcp_send(fd[n++], &byte, 1) == 1);
    }
    while (taken < far && ku_clock_ns() < deadline) {
        struct ku_dial_head head;
        uint8_t byte;
        int got;
        ku_os_await(ku_doorbell_fd(doorbell), POLLIN, 50);
        while (ku_doorbell_take(doorbell, &head, &got) > 0) {
            TEST(head.to == job->rank && head.slot == 3 && head.stream == 77 &&
                 head.lane == (uint32_t)job->rank);
            TEST(read_byte(got, deadline, &byte) == 0);
            TEST(byte == (uint8_t)(head.from * 16 + job->rank));
            ku_os_close(got);
            taken++;
        }
    }
    TEST(taken == far);
    int status = meet_at(&s->n_done, job->n, LIMIT_NS);
    for (int i = 0; i < n; i++)
        ku_os_close(fd[i]);
    ku_doorbell_close(doorbell);
    return status;
}

static void test_dial(void **state)
{
    (void)state;
    for (int i = 0; i < N_LAYOUTS; i++) {
        struct shared s = {.culprit = -1};
        if (run(layouts[i], dial_all, &s) < 0)
            fail_msg("%s: %s", layouts[i], ku_err_get()->text);
    }
}

/* More connections than a doorbell's queue holds, as a rule 10, come in the order of the dials. */
static int dial_many(struct ku_job *job, void *arg)
{
    enum { N = 50 };
    struct shared *s = arg;
    struct ku_doorbell *doorbell;
    const int64_t deadline = ku_clock_ns() + LIMIT_NS;
    int fd;
    KU_TRY(ku_doorbell_open(job->seg->job_id, job->host, job->local_rank, &doorbell));
    KU_TRY(meet_at(&s->n_here, job->n, LIMIT_NS));
    for (uint64_t i = 0; i < N && job->rank == 0; i++) {
        const struct ku_dial_head head = {.to = 1, .stream = i};
        KU_TRY(ku_control_dial(job, &head, LIMIT_NS, &fd));
        ku_os_close(fd);
    }
    KU_TRY(meet_at(&s->n_done, job->n, LIMIT_NS));
    for (uint64_t i = 0; i < N && job->rank == 1;) {
        struct ku_dial_head head;
        TEST(ku_clock_ns() < deadline);
        ku_os_await(ku_doorbell_fd(doorbell), POLLIN, 50);
        while (ku_doorbell_take(doorbell, &head, &fd) > 0) {
            ku_os_close(fd);
            TEST(head.stream == i++);
        }
    }
    ku_doorbell_close(doorbell);
    return 0;
}

static void test_dial_order(void **state)
{
    struct shared s = {.culprit = -1};
    (void)state;
    if (run("1,1", dial_many, &s) < 0)
        fail_msg("%s", ku_err_get()->text);
}

/* Three levels of the tree; the farthest host stops all, and asks the other end. */
static int large(struct ku_job *job, void *arg)
{
    const int64_t deadline = ku_clock_ns() + LIMIT_NS;
    struct ku_progress p;
    KU_TRY(check_table(job, arg));
    if (job->rank == job->n - 1)
        ku_segment_stop(job->seg, SIGINT);
    while (ku_control_ask(job, (job->rank + job->n / 2) % job->n, &p) == 0 &&
           ku_clock_ns() < deadline)
        usleep(2000);
    while (!ku_job_stop(job) && ku_clock_ns() < deadline)
        usleep(2000);
    TEST(ku_job_stop(job) == SIGINT);
    TEST(ku_clock_ns() < deadline);
    return 0;
}

static void test_large(void **state)
{
    char hosts[2 * 300];
    const int n = 64;
    (void)state;
    for (int i = 0; i < n; i++)
        memcpy(hosts + 2 * i, i < n - 1 ? "1," : "1", 2);
    struct shared s = {.culprit = -1};
    if (run(hosts, large, &s) < 0)
        fail_msg("%s", ku_err_get()->text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_join),       cmocka_unit_test(test_abort),
        cmocka_unit_test(test_abort_all),  cmocka_unit_test(test_end),
        cmocka_unit_test(test_lost),       cmocka_unit_test(test_stop),
        cmocka_unit_test(test_ask),        cmocka_unit_test(test_dial),
        cmocka_unit_test(test_dial_order), cmocka_unit_test(test_large)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
