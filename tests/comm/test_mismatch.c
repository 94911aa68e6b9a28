/* SPDX-License-Identifier: Apache-2.0 */
/* links: comm job tensor base */
/* tsan */
/* Ranks that call different things: every rank gets the same root cause, with both sides, before a
 * byte is written. */
#include "suite.h"

#include <time.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

struct row {
    const char *name;
    struct ku_coll rank0, rank1;
    const char *says[2]; /* both in the message */
};

static float data[2][64];
#define BUF0 .in = data[0], .out = data[0]
#define BUF1 .in = data[1], .out = data[1]

static const int64_t counts_a[2] = {1, 3}, counts_b[2] = {2, 2};

static const struct row rows[] = {
    {"kind",
     {.kind = KU_COLL_ALL_REDUCE, .count = 60, BUF0},
     {.kind = KU_COLL_BROADCAST, .count = 60, BUF1},
     {"all_reduce(f32 x 60, sum)", "broadcast(f32 x 60, root 0)"}},
    {"count",
     {.kind = KU_COLL_ALL_REDUCE, .count = 60, BUF0},
     {.kind = KU_COLL_ALL_REDUCE, .count = 61, BUF1},
     {"f32 x 60", "f32 x 61"}},
    {"dtype",
     {.kind = KU_COLL_ALL_REDUCE, .count = 60, BUF0},
     {.kind = KU_COLL_ALL_REDUCE, .dtype = KUMI_I32, .count = 60, BUF1},
     {"f32 x 60", "i32 x 60"}},
    {"reduction",
     {.kind = KU_COLL_ALL_REDUCE, .count = 60, BUF0},
     {.kind = KU_COLL_ALL_REDUCE, .reduce = KUMI_MAX, .count = 60, BUF1},
     {", sum", ", max"}},
    {"root",
     {.kind = KU_COLL_BROADCAST, .count = 60, BUF0},
     {.kind = KU_COLL_BROADCAST, .root = 1, .count = 60, BUF1},
     {"root 0", "root 1"}},
    {"inline",
     {.kind = KU_COLL_ALL_REDUCE, .count = 2, BUF0},
     {.kind = KU_COLL_ALL_REDUCE, .count = 60, BUF1},
     {"f32 x 2", "f32 x 60"}},
    {"posted", /* its root has gone on, to a barrier */
     {.kind = KU_COLL_BROADCAST, .count = 2, BUF0},
     {.kind = KU_COLL_ALL_REDUCE, .count = 2, BUF1},
     {"broadcast(f32 x 2, root 0)", "all_reduce(f32 x 2, sum)"}},
    {"posted count",
     {.kind = KU_COLL_BROADCAST, .count = 2, BUF0},
     {.kind = KU_COLL_BROADCAST, .count = 3, BUF1},
     {"f32 x 2, root 0", "f32 x 3, root 0"}},
    {"posted, then staged",
     {.kind = KU_COLL_BROADCAST, .count = 2, BUF0},
     {.kind = KU_COLL_BROADCAST, .count = 60, BUF1},
     {"f32 x 2, root 0", "f32 x 60, root 0"}},
    {"both posted", /* without a wait: the barrier after it reports */
     {.kind = KU_COLL_BROADCAST, .count = 2, BUF0},
     {.kind = KU_COLL_BROADCAST, .root = 1, .count = 2, BUF1},
     {"root 0", "root 1"}},
    {"v counts",
     {.kind = KU_COLL_ALL_GATHER, .counts = counts_a, .in = data[0], .out = data[0] + 32},
     {.kind = KU_COLL_ALL_GATHER, .counts = counts_b, .in = data[1], .out = data[1] + 32},
     {"all_gather_v", "different counts"}},
    {"all_to_all_v",
     {.kind = KU_COLL_ALL_TO_ALL,
      .counts = counts_a,
      .recv_counts = counts_a,
      .in = data[0],
      .out = data[0] + 32},
     {.kind = KU_COLL_ALL_TO_ALL,
      .counts = counts_b,
      .recv_counts = counts_b,
      .in = data[1],
      .out = data[1] + 32},
     {"all_to_all_v", "expects"}},
    {"barrier",
     {.kind = KU_COLL_BARRIER},
     {.kind = KU_COLL_ALL_REDUCE, .count = 60, BUF1},
     {"barrier", "all_reduce"}},
    {"letter", /* its sender has gone on, to a barrier */
     {.kind = KU_COLL_SEND, .root = 1, .count = 10, BUF0},
     {.kind = KU_COLL_RECV, .root = 0, .count = 11, BUF1},
     {"sends 10 x f32", "receives 11 x f32"}},
    {"letter for a message",
     {.kind = KU_COLL_SEND, .root = 1, .count = 10, BUF0},
     {.kind = KU_COLL_RECV, .root = 0, .count = 40, BUF1},
     {"sends 10 x f32", "receives 40 x f32"}},
    {"message for a letter",
     {.kind = KU_COLL_SEND, .root = 1, .count = 40, BUF0},
     {.kind = KU_COLL_RECV, .root = 0, .count = 10, BUF1},
     {"sends 40 x f32", "receives 10 x f32"}},
    {"message",
     {.kind = KU_COLL_SEND, .root = 1, .count = 40, BUF0},
     {.kind = KU_COLL_RECV, .root = 0, .count = 41, BUF1},
     {"sends 40 x f32", "receives 41 x f32"}},
};

struct outcome {
    const struct row *row;
    struct kumi_error error[2];
    bool has_changed[2]; /* a buffer */
};

static int run_row(struct ku_job *job, void *arg)
{
    struct outcome *o = arg;
    float *mine = data[job->rank];
    for (int i = 0; i < 64; i++)
        mine[i] = (float)(i + 1000 * job->rank);
    int status = ku_coll_run(job->world, job->rank ? &o->row->rank1 : &o->row->rank0);
    if (status == 0)
        status = ku_coll_run(job->world, &(struct ku_coll){.kind = KU_COLL_BARRIER});
    o->error[job->rank] = *ku_err_get();
    for (int i = 0; i < 64; i++)
        o->has_changed[job->rank] |= mine[i] != (float)(i + 1000 * job->rank);
    return status == KUMI_EMISMATCH ? status : -70;
}

static int lose_letter(struct ku_job *job, void *arg)
{
    struct ku_comm *c;
    float x = 1;
    const int sender = *(const int *)arg;
    KU_TRY(ku_comm_split(job->world, 0, -job->rank, "pair", &c));
    if (job->rank == sender)
        KU_TRY(ku_coll_run(
            c, &(struct ku_coll){.kind = KU_COLL_SEND, .root = sender, .in = &x, .count = 1}));
    int status = ku_comm_destroy(c);
    return status ? status : ku_coll_run(job->world, &(struct ku_coll){.kind = KU_COLL_BARRIER});
}

/* An eager message without a receive; freeing the communicator does not lose one. */
static void test_lost_letter(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        const struct ku_job_opts opts = {.threads = 1, .hosts = i / 2 ? "1,1" : NULL};
        int sender = i % 2;
        char says[64];
        assert_int_equal(ku_comm_threads(2, &opts, lose_letter, &sender), KUMI_EMISMATCH);
        snprintf(says, sizeof says, "comm pair: rank %d sent one that rank %d has not", sender,
                 1 - sender);
        assert_non_null(strstr(ku_err_get()->text, says));
    }
}

static int send_ahead(struct ku_job *job, void *arg)
{
    const int n = *(int *)arg, peer = 1 - job->rank;
    for (int i = 0; i < 2 * n; i++) {
        float x = (float)i, y = -1;
        const struct ku_coll coll = {.kind = i < n ? KU_COLL_SEND : KU_COLL_RECV,
                                     .root = peer,
                                     .in = &x,
                                     .out = &y,
                                     .count = 1};
        KU_TRY(ku_coll_run(job->world, &coll));
        if (i >= n && y != (float)(i - n))
            return -70;
    }
    return 0;
}

/* Two eager messages of each rank are on the way before either receives; a third one waits. */
static void test_eager_limit(void **state)
{
    const struct ku_job_opts opts = {.timeout_ns = 300000000};
    int n = 2;
    (void)state;
    assert_int_equal(ku_comm_threads(2, NULL, send_ahead, &n), 0);
    n = 3;
    assert_int_equal(ku_comm_threads(2, &opts, send_ahead, &n), KUMI_ETIMEDOUT);
    assert_non_null(strstr(ku_err_get()->text, "send f32 x 1"));
}

static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct outcome o = {.row = &rows[i]};
        assert_int_equal(ku_comm_threads(2, NULL, run_row, &o), KUMI_EMISMATCH);
        assert_string_equal(o.error[0].text, o.error[1].text);
        if (rows[i].rank0.kind != KU_COLL_SEND && strcmp(rows[i].name, "all_to_all_v") != 0)
            assert_non_null(strstr(o.error[0].text, "comm world, call 1: "));
        for (int k = 0; k < 2; k++) {
            if (!strstr(o.error[0].text, rows[i].says[k]))
                fail_msg("%s: \"%s\" lacks \"%s\"", rows[i].name, o.error[0].text, rows[i].says[k]);
            if (o.has_changed[k])
                fail_msg("%s: rank %d: a buffer has changed", rows[i].name, k);
        }
    }
}

/* Memory that one rank frees, while others free other memory, and sizes with one sum */
static int free_other(struct ku_job *job, void *arg)
{
    const struct ku_arena *a[2];
    (void)arg;
    for (int i = 0; i < 2; i++)
        KU_TRY(ku_arena_create(job, "x", 0, 4096, &a[i]));
    return ku_arena_destroy(job, a[job->rank]);
}

static int guard_other(struct ku_job *job, void *arg)
{
    const struct ku_arena *a[2];
    (void)arg;
    for (int i = 0; i < 2; i++)
        KU_TRY(ku_arena_create(job, "x", 0, 4096, &a[i]));
    return ku_arena_guard(job, a[job->rank]);
}

static int allocate_other(struct ku_job *job, void *arg)
{
    const struct ku_arena *a;
    (void)arg;
    return ku_arena_create(job, "x", job->rank ? 8192 : 0, job->rank ? 0 : 4096, &a);
}

static void test_arenas(void **state)
{
    static int (*const fn[])(struct ku_job * job, void *arg) = {free_other, guard_other,
                                                                allocate_other};
    (void)state;
    for (size_t i = 0; i < sizeof fn / sizeof *fn; i++) {
        assert_int_equal(ku_comm_threads(2, NULL, fn[i], NULL), KUMI_EMISMATCH);
        assert_non_null(strstr(ku_err_get()->text, " alloc or dealloc with another size"));
    }
}

/* In a comm of ranks 2 and 1 the members are 0 and 1; messages name the ranks of the job. */
static const struct row split_rows[] = {
    {"count",
     {.kind = KU_COLL_ALL_REDUCE, .count = 60, BUF0},
     {.kind = KU_COLL_ALL_REDUCE, .count = 61, BUF1},
     {"rank 2 calls all_reduce(f32 x 60", "rank 1 calls all_reduce(f32 x 61"}},
    {"all_to_all_v",
     {.kind = KU_COLL_ALL_TO_ALL,
      .counts = counts_a,
      .recv_counts = counts_a,
      .in = data[0],
      .out = data[0] + 32},
     {.kind = KU_COLL_ALL_TO_ALL,
      .counts = counts_a,
      .recv_counts = counts_a,
      .in = data[1],
      .out = data[1] + 32},
     {"rank 2 sends 3 elements to rank 1", "rank 1 sends 1 elements to rank 2"}},
    {"message",
     {.kind = KU_COLL_SEND, .root = 1, .count = 40, BUF0},
     {.kind = KU_COLL_RECV, .root = 0, .count = 41, BUF1},
     {"rank 2 sends 40 x f32 to rank 1, which", "rank 2 sends 40 x f32 to rank 1, which"}},
};

static int run_split(struct ku_job *job, void *arg)
{
    const struct row *row = arg;
    struct ku_comm *c = NULL;
    KU_TRY(ku_comm_split(job->world, job->rank > 0, -job->rank, "pair", &c));
    if (job->rank > 0)
        KU_TRY(ku_coll_run(c, c->me ? &row->rank1 : &row->rank0));
    return ku_coll_run(job->world, &(struct ku_coll){.kind = KU_COLL_BARRIER});
}

static void test_job_ranks(void **state)
{
    const struct ku_job_opts opts[] = {{.threads = 1}, {.hosts = "1,1,1"}};
    (void)state;
    for (size_t i = 0; i < 2 * sizeof split_rows / sizeof *split_rows; i++) {
        const struct row *row = &split_rows[i / 2];
        if (opts[i % 2].hosts && row->rank0.counts) /* hosts compare hashes of the counts */
            continue;
        assert_int_equal(ku_comm_threads(3, &opts[i % 2], run_split, (void *)(uintptr_t)row),
                         KUMI_EMISMATCH);
        if (!strstr(ku_err_get()->text, row->says[0]) && !strstr(ku_err_get()->text, row->says[1]))
            fail_msg("%s: \"%s\" lacks \"%s\"", row->name, ku_err_get()->text, row->says[0]);
    }
}

static int run_hash(struct ku_job *job, void *arg)
{
    SUITE_TRY(ku_comm_check_hash(job->world, "train", 42));
    if (job->rank == 0)
        *(int *)arg = 1;
    return ku_comm_check_hash(job->world, "train", job->rank == 2 ? 43 : 42);
}

static void test_hash(void **state)
{
    int passed = 0;
    (void)state;
    assert_int_equal(ku_comm_threads(3, NULL, run_hash, &passed), KUMI_EMISMATCH);
    assert_non_null(strstr(ku_err_get()->text, "comm world: program train: rank 0 has "
                                               "000000000000002a, rank 2 has 000000000000002b; "));
    assert_int_equal(passed, 1);
}

/* A rank that leaves, or returns, while the others wait: a mismatch; seen on the world, on another
 * comm, and by a receiver, in waits and in polls. */
static int run_leaver(struct ku_job *job, void *arg)
{
    struct ku_comm *c;
    const int form = *(int *)arg % 3, is_poll = *(int *)arg / 3;
    float x[40] = {0};
    SUITE_TRY(ku_comm_split(job->world, 0, job->rank, "other", &c));
    if (job->rank == 1)
        return 0;
    struct ku_coll coll = {.kind = KU_COLL_ALL_REDUCE, .in = x, .out = x, .count = 40};
    if (form == 2)
        coll = (struct ku_coll){.kind = KU_COLL_RECV, .root = 1, .out = x, .count = 40};
    return (is_poll ? suite_poll : ku_coll_run)(form == 0 ? job->world : c, &coll);
}

static void test_leaving_early(void **state)
{
    (void)state;
    for (int form = 0; form < 6; form++) {
        assert_int_equal(ku_comm_threads(3, NULL, run_leaver, &form), KUMI_EMISMATCH);
        assert_non_null(strstr(ku_err_get()->text, "rank 1 left the job"));
    }
}

static int run_silent(struct ku_job *job, void *arg)
{
    (void)arg;
    if (job->rank == 1) {
        struct ku_comm *c;
        return ku_comm_split(job->world, 0, 0, "never", &c) == KUMI_ETIMEDOUT ? KUMI_ETIMEDOUT
                                                                              : -70;
    }
    while (!ku_job_has_failed(job))
        continue;
    return 0;
}

static void test_time_out(void **state)
{
    struct ku_job_opts opts = {.timeout_ns = 300000000};
    (void)state;
    assert_int_equal(ku_comm_threads(2, &opts, run_silent, NULL), KUMI_ETIMEDOUT);
    assert_non_null(strstr(ku_err_get()->text, "time-out: rank 0"));
}

/* Never stands still for 1 s (usually 10 ms), though the call takes 1.5. */
static int run_slow(struct ku_job *job, void *arg)
{
    (void)arg;
    if (job->rank == 0) {
        for (int i = 0; i < 150; i++) {
            struct timespec t = {.tv_nsec = 10000000};
            nanosleep(&t, NULL);
            ku_job_tick(job);
        }
    }
    return ku_coll_run(job->world, &(struct ku_coll){.kind = KU_COLL_BARRIER});
}

static void test_progress_is_no_time_out(void **state)
{
    struct ku_job_opts opts = {.timeout_ns = 1000000000};
    (void)state;
    assert_int_equal(ku_comm_threads(3, &opts, run_slow, NULL), 0);
}

static int run_chaos(struct ku_job *job, void *arg)
{
    (void)arg;
    for (int i = 0; i < 10; i++) {
        int status = ku_coll_run(job->world, &(struct ku_coll){.kind = KU_COLL_BARRIER});
        if (status)
            return status;
    }
    return 0;
}

static void test_chaos(void **state)
{
    struct ku_job_opts opts = {.timeout_ns = 200000000, .chaos = "drop=1@9"};
    (void)state;
    assert_int_equal(ku_comm_threads(2, &opts, run_chaos, NULL), KUMI_ETIMEDOUT);
    opts = (struct ku_job_opts){.chaos = "corrupt=0@9"};
    assert_int_equal(ku_comm_threads(2, &opts, run_chaos, NULL), KUMI_EMISMATCH);
    opts.chaos = "delay=1us,drop";
    assert_int_equal(ku_comm_threads(1, &opts, run_chaos, NULL), KUMI_EINVAL);
}

struct bad {
    struct ku_coll coll;
    const char *says;
};
static int run_bad(struct ku_job *job, void *arg)
{
    static const int64_t negative[1] = {-1};
    static const struct bad bad[] = {
        {{.kind = KU_COLL_ALL_REDUCE, .count = -1}, "count: -1"},
        {{.kind = KU_COLL_ALL_REDUCE, .count = INT64_MAX}, "count: 9223372036854775807"},
        {{.kind = KU_COLL_BROADCAST, .root = 1, .count = 1}, "root: 1"},
        {{.kind = KU_COLL_SEND, .root = -1, .count = 1}, "peer: -1"},
        {{.kind = KU_COLL_ALL_REDUCE, .dtype = KUMI_U16, .count = 1}, "u16"},
        {{.kind = KU_COLL_ALL_REDUCE, .dtype = KUMI_I32, .reduce = KUMI_AVG, .count = 1},
         "avg of i32"},
        {{.kind = KU_COLL_ALL_REDUCE, .dtype = KUMI_F64, .wire = KUMI_BF16, .count = 1},
         "wire: bf16"},
        {{.kind = KU_COLL_ALL_GATHER, .counts = negative}, "counts[0]: -1"},
        {{.kind = KU_COLL_ALL_TO_ALL, .counts = negative + 0, .count = 0}, "counts"},
        {{.kind = (enum ku_coll_kind)99}, "kind: 99"},
        {{.kind = KU_COLL_ALL_REDUCE, .dtype = (enum kumi_dtype)9}, "dtype: 9"},
    };
    (void)arg;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (ku_coll_run(job->world, &bad[i].coll) != KUMI_EINVAL ||
            !strstr(ku_err_get()->text, bad[i].says)) {
            printf("row %zu: %s\n", i, ku_err_get()->text);
            return -70;
        }
    }
    return 0;
}

static void test_bad_arguments(void **state)
{
    (void)state;
    assert_int_equal(ku_comm_threads(1, NULL, run_bad, NULL), 0);
    assert_int_equal(ku_comm_threads(0, NULL, run_bad, NULL), KUMI_EINVAL);
    assert_int_equal(ku_comm_threads(100000, NULL, run_bad, NULL), KUMI_EINVAL);
}

/* Where a failed collective's frame was, others' variables are now: the next call leaves them be.
 */
static __attribute__((noinline)) int call_again(struct ku_job *job)
{
    volatile unsigned char mine[4096];
    const struct ku_coll barrier = {.kind = KU_COLL_BARRIER};
    for (size_t i = 0; i < sizeof mine; i++)
        mine[i] = 0x5a;
    int status = ku_coll_run(job->world, &barrier);
    for (size_t i = 0; i < sizeof mine; i++)
        if (mine[i] != 0x5a)
            return -70;
    return status;
}

struct dead {
    atomic_int has_joined;
    int again[3]; /* what rank 0's next calls return */
};

static int run_dead(struct ku_job *job, void *arg)
{
    const struct ku_coll barrier = {.kind = KU_COLL_BARRIER};
    struct dead *d = arg;
    if (job->rank == 1) {
        while (!atomic_load(&d->has_joined))
            usleep(100);
        KU_ERR(KUMI_ENUMERIC, "rank 1 gives up");
        return ku_job_fail(job);
    }
    struct ku_work kept; /* compiled once, started again and again */
    SUITE_TRY(ku_work_init(&kept, job->world, &barrier));
    SUITE_TRY(ku_work_start(&kept));
    atomic_store(&d->has_joined, 1);
    int status = ku_work_wait(&kept);
    d->again[0] = call_again(job);
    d->again[1] = call_again(job);
    d->again[2] = ku_work_start(&kept);
    return status;
}

static void test_dead_job(void **state)
{
    struct dead d = {0};
    (void)state;
    assert_int_equal(ku_comm_threads(2, NULL, run_dead, &d), KUMI_ENUMERIC);
    for (int i = 0; i < 3; i++)
        assert_int_equal(d.again[i], KUMI_ENUMERIC);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),      cmocka_unit_test(test_lost_letter),
        cmocka_unit_test(test_hash),      cmocka_unit_test(test_leaving_early),
        cmocka_unit_test(test_time_out),  cmocka_unit_test(test_progress_is_no_time_out),
        cmocka_unit_test(test_chaos),     cmocka_unit_test(test_bad_arguments),
        cmocka_unit_test(test_dead_job),  cmocka_unit_test(test_arenas),
        cmocka_unit_test(test_job_ranks), cmocka_unit_test(test_eager_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
