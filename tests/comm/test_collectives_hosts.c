/* SPDX-License-Identifier: Apache-2.0 */
/* links: comm job tensor base */
/* tsan */
/*
 * The conformance suite on several pretended hosts: ranks as threads, whose hosts meet over
 * loopback TCP. What is a shared-memory collective on one host goes through the exchange between
 * hosts here, with the same results.
 */
#include "suite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

struct run {
    const struct suite_share *share;
    _Atomic uint64_t n_refused; /* connections of all ranks that were closed */
};

static int run(struct ku_job *job, void *arg)
{
    struct run *r = arg;
    struct ku_net_stats stats;
    const int status = suite_run(job, r->share);
    job->comm->net->ops->stats(job->comm->net, &stats);
    r->n_refused += stats.n_refused;
    return status;
}

static int ranks_of(const char *hosts)
{
    int n = 0;
    for (char *end; *hosts; hosts = *end ? end + 1 : end)
        n += (int)strtol(hosts, &end, 10);
    return n;
}

static void run_suite(const struct ku_job_opts *opts, struct suite_share *share)
{
    struct run r = {.share = share};
    const bool is_doubled = opts->chaos && strstr(opts->chaos, "double=");
    const int status = ku_comm_threads(ranks_of(opts->hosts), opts, run, &r);
    if (status)
        print_message("hosts %s, chaos %s: %s\n", opts->hosts, opts->chaos ? opts->chaos : "none",
                      ku_err_get()->text);
    assert_int_equal(status, 0);
    assert_int_equal(r.n_refused > 0, is_doubled);
    share->turn++;
}

static void test_layouts(void **state)
{
    static const char *const hosts[] = {"1,1",
                                        "2,2",
                                        "1,3",
                                        "2,3",
                                        "1,1,1",
                                        "2,2,2",
                                        "4,4",
                                        "1,1,1,1",
                                        "3,3",
                                        "1,2,1",
                                        "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1"};
    struct suite_share share = {480 * (sample_is_short() ? 3 : 1),
                                sample_is_short() ? 80000 : INT64_MAX, 0};
    (void)state;
    if (sample_races_only()) /* small counts are quick, so there are more of them */
        share = (struct suite_share){80, 1100, 0};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i += (size_t)sample_count(1, 2)) {
        if (sample_races_only() && ranks_of(hosts[i]) > 4)
            continue;
        run_suite(&(struct ku_job_opts){.hosts = hosts[i]}, &share);
    }
}

/*
 * Messages that arrive late, and in another order than the flags of the host; short transfers;
 * connections that are opened twice
 */
static void test_chaos(void **state)
{
    static const struct ku_job_opts rows[] = {
        {.hosts = "1,1", .chaos = "delay=100us,jitter=300us,seed=1"},
        {.hosts = "2,2", .chaos = "jitter=200us,double=1,seed=2"},
        {.hosts = "1,3", .chaos = "short=5000"},
        {.hosts = "1,1,1", .chaos = "jitter=100us,short=777,double=2,seed=3"},
        {.hosts = "2,1,2", .chaos = "delay=50us,jitter=100us,short=70001,seed=4"},
        {.hosts = "1,1,1,1", .chaos = "jitter=300us,seed=5"},
    };
    struct suite_share share = {1600, 80000, 0};
    (void)state;
    if (sample_races_only())
        share = (struct suite_share){800, 1100, 0};
    for (size_t i = 0; i < (sample_is_short() ? 3 : sizeof rows / sizeof *rows); i++)
        run_suite(&rows[i], &share);
}

/* A gather that needs one more section than a stage has cache lines */
enum { LARGE_HOST = 241, SMALL_HOSTS = 16, BLOCK = 25 };

static int gather(struct ku_job *job, void *arg)
{
    int64_t block[BLOCK], *all = malloc((size_t)job->n * sizeof block);
    const struct ku_coll coll = {.kind = KU_COLL_ALL_GATHER,
                                 .dtype = KUMI_I64,
                                 .wire = KUMI_I64,
                                 .in = block,
                                 .out = all,
                                 .count = BLOCK};
    (void)arg;
    for (int i = 0; i < BLOCK; i++)
        block[i] = (int64_t)job->rank * BLOCK + i;
    int status = all ? ku_coll_run(job->world, &coll) : KUMI_ENOMEM;
    for (int64_t i = 0; i < (int64_t)job->n * BLOCK && !status; i++)
        if (all[i] != i)
            status = KU_ERR(KUMI_EBUG, "element %lld is %lld", (long long)i, (long long)all[i]);
    free(all);
    return status;
}

static void test_many_sections(void **state)
{
    char hosts[8 + 2 * SMALL_HOSTS];
    int bytes = snprintf(hosts, sizeof hosts, "%d", LARGE_HOST);
    (void)state;
    if (sample_races_only())
        skip();
    for (int i = 0; i < SMALL_HOSTS; i++)
        bytes += snprintf(hosts + bytes, sizeof hosts - (size_t)bytes, ",1");
    const struct ku_job_opts opts = {.hosts = hosts};
    assert_int_equal(ku_coll_piece_count(LARGE_HOST * (1 + SMALL_HOSTS), 8), 7);
    const int status = ku_comm_threads(LARGE_HOST + SMALL_HOSTS, &opts, gather, NULL);
    if (status)
        print_message("hosts %s: %s\n", hosts, ku_err_get()->text);
    assert_int_equal(status, 0);
}

static void test_piece_count(void **state)
{
    static const struct {
        int n, each;
        int64_t count;
    } row[] = {{1, 4, 65536}, {3, 4, 21840}, {4096, 8, 8},   {4097, 8, 7},
               {4097, 1, 63}, {32768, 8, 1}, {32769, 8, 0},  {65536, 4, 1},
               {65537, 4, 0}, {16384, 8, 2}, {262144, 1, 1}, {262145, 1, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        assert_int_equal(ku_coll_piece_count(row[i].n, row[i].each), row[i].count);
}

/* A reduce sends the sums to the root's host alone; an all-reduce sends them to all. */
enum { WIDE = 3 << 16 };
struct sent {
    float in[WIDE], out[4][WIDE];
    _Atomic uint64_t bytes[2];
    int root;
};

static int count_sent(struct ku_job *job, void *arg)
{
    static const enum ku_coll_kind kind[] = {KU_COLL_ALL_REDUCE, KU_COLL_REDUCE};
    struct sent *sent = arg;
    for (int i = 0; i < 2; i++) {
        const struct ku_coll coll = {.kind = kind[i],
                                     .dtype = KUMI_F32,
                                     .wire = KUMI_F32,
                                     .in = sent->in,
                                     .out = sent->out[job->rank],
                                     .count = WIDE,
                                     .root = sent->root};
        const uint64_t before = ku_job_far_bytes(job);
        struct ku_work w;
        KU_TRY(ku_work_init(&w, job->world, &coll));
        KU_TRY(ku_work_start(&w));
        KU_TRY(ku_work_wait(&w));
        sent->bytes[i] += ku_job_far_bytes(job) - before;
    }
    return 0;
}

static void test_reduce_bytes(void **state)
{
    static const struct {
        const char *hosts;
        int n_hosts, root;
    } row[] = {{"1,1,1,1", 4, 2}, {"2,2", 2, 1}, {"1,1", 2, 0}};
    static struct sent sent;
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const struct ku_job_opts opts = {.hosts = row[i].hosts};
        const uint64_t scatter = (uint64_t)(row[i].n_hosts - 1) * WIDE * sizeof(float);
        sent.bytes[0] = sent.bytes[1] = 0;
        sent.root = row[i].root;
        assert_int_equal(ku_comm_threads(ranks_of(row[i].hosts), &opts, count_sent, &sent), 0);
        assert_int_equal(sent.bytes[0], 2 * scatter);
        assert_int_equal(sent.bytes[1], scatter + scatter / (uint64_t)row[i].n_hosts);
    }
}

/* A rank that receives a broadcast puts nothing of its own output into its stage. */
static int count_staged(struct ku_job *job, void *arg)
{
    struct sent *sent = arg;
    const struct ku_coll coll = {.kind = KU_COLL_BROADCAST,
                                 .dtype = KUMI_F32,
                                 .wire = KUMI_F32,
                                 .out = sent->out[job->rank],
                                 .count = WIDE,
                                 .root = sent->root};
    const uint64_t before = ku_job_staged_bytes(job);
    KU_TRY(ku_coll_run(job->world, &coll));
    sent->bytes[job->rank == sent->root] += ku_job_staged_bytes(job) - before;
    return 0;
}

static void test_broadcast_bytes(void **state)
{
    static struct sent sent;
    (void)state;
    for (int i = 0; i < 2; i++) {
        const struct ku_job_opts opts = {.hosts = i ? "2,2" : "1,1"};
        sent.bytes[0] = sent.bytes[1] = 0;
        sent.root = 1;
        assert_int_equal(ku_comm_threads(i ? 4 : 2, &opts, count_staged, &sent), 0);
        assert_int_equal(sent.bytes[0], 0);
        assert_int_equal(sent.bytes[1], WIDE * sizeof(float));
    }
}

/* Fingerprints tell roots of the largest jobs apart. */
static void test_roots(void **state)
{
    (void)state;
    for (int bit = 0; bit < 24; bit++) {
        const struct ku_coll low = {.kind = KU_COLL_REDUCE, .dtype = KUMI_F32, .wire = KUMI_F32};
        struct ku_coll other = low;
        other.root = 1 << bit;
        assert_int_equal(ku_coll_what(&other) ^ ku_coll_what(&low), UINT64_C(1) << (24 + bit));
    }
}

/* A receive that is posted when the job fails: its memory is freed, as AddressSanitizer sees. */
static int leave_receive(struct ku_job *job, void *arg)
{
    _Atomic int *is_posted = arg;
    float x = 0;
    const struct ku_coll receive = {
        .kind = KU_COLL_RECV, .dtype = KUMI_F32, .out = &x, .count = 1, .root = 1};
    struct ku_work w;
    if (job->rank == 1) {
        while (!*is_posted)
            KU_TRY(ku_job_check(job));
        KU_IGNORE(KU_ERR(KUMI_EINPUT, "test: nothing is sent"), "it becomes the root cause");
        return ku_job_fail(job);
    }
    KU_TRY(ku_work_init(&w, job->world, &receive));
    KU_TRY(ku_work_start(&w));
    KU_TRY(ku_work_test(&w));
    *is_posted = 1;
    return ku_work_wait(&w);
}

static void test_left_receive(void **state)
{
    const struct ku_job_opts opts = {.threads = 1, .hosts = "1,1", .timeout_ns = 40000000000};
    _Atomic int is_posted = 0;
    (void)state;
    assert_int_equal(ku_comm_threads(2, &opts, leave_receive, &is_posted), KUMI_EINPUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layouts),       cmocka_unit_test(test_chaos),
        cmocka_unit_test(test_many_sections), cmocka_unit_test(test_piece_count),
        cmocka_unit_test(test_reduce_bytes),  cmocka_unit_test(test_roots),
        cmocka_unit_test(test_left_receive),  cmocka_unit_test(test_broadcast_bytes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
