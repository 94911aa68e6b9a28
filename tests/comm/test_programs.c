/* SPDX-License-Identifier: Apache-2.0 */
/* links: comm job tensor base */
/* tsan */
/* Collectives as compiled programs use them: parts in arenas, works started again and again,
 * several in flight. */
#include "suite.h"

#include "base/clock.h"
#include "base/math/random.h"
#include "comm/collective_bench.h"
#include "comm/private.h"
#include "tensor/blocks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <time.h>
#include <cmocka.h>

enum { N_PARTS = 100, STEPS = 5, BLOCK = 32, ARENA_BYTES = 1 << 18 };

struct bucket {
    struct ku_coll_part part[N_PARTS];
    int64_t count[N_PARTS], total;
};

/* Parts of odd sizes, blocks running on from part to part as the update pass numbers them. */
static void lay_parts(struct bucket *b, const struct ku_arena *a, int n)
{
    size_t at = 0;
    int64_t first = 0;
    b->total = 0;
    for (int i = 0; i < N_PARTS; i++) {
        int64_t count = (i * 37) % 301;
        struct ku_ref ref = {.arena = a->id, .off = at};
        b->part[i] = (struct ku_coll_part){
            .in = ref, .out = ref, .count = count, .first_block = first, .block_count = BLOCK};
        if (i % 3 == 0) {
            b->part[i].has_addend = 1;
            b->part[i].addend = (struct ku_ref){.arena = a->id, .off = ARENA_BYTES / 2 + at};
        }
        first = (first + (count + BLOCK - 1) / BLOCK) % n;
        b->count[i] = count;
        b->total += count;
        at += (size_t)(count + 15) / 16 * 64;
    }
    assert_true(at <= ARENA_BYTES / 2);
}

static float value(int rank, int part, int64_t i, int step)
{
    return (float)((rank * 7 + part + i * 3 + step) % 64);
}

/* What a reduction adds to the sum of a part, on every rank the same. */
static float addend(const struct bucket *b, int part, int64_t i)
{
    return b->part[part].has_addend ? (float)(part + i % 8) : 0;
}

static float *at_part(const struct ku_job *job, const struct ku_arena *a, const struct bucket *b,
                      int part)
{
    return (float *)(void *)(ku_arena_part(a, job->local_rank) + b->part[part].in.off);
}

/* What a reduce-scatter shows: the elements so far, and their sum, of each part. */
struct seen {
    int64_t count[N_PARTS];
    double sum[N_PARTS];
    int is_whole; /* every look but a part's last is at whole blocks */
};

static void see(void *ctx, int part, void *sum, int64_t count)
{
    struct seen *s = ctx;
    s->is_whole &= s->count[part] % BLOCK == 0;
    s->count[part] += count;
    for (int64_t i = 0; i < count; i++)
        s->sum[part] += (double)((const float *)sum)[i];
}

/* The blocks that this rank keeps, each element once. */
static int check_seen(const struct ku_job *job, const struct bucket *b, const struct seen *s,
                      int step)
{
    for (int p = 0; p < N_PARTS; p++) {
        int64_t begin, end;
        double want = 0;
        ku_blocks_range(b->count[p], BLOCK, b->part[p].first_block, job->n, job->rank, &begin,
                        &end);
        for (int64_t i = begin; i < end; i++)
            for (int r = 0; r < job->n; r++)
                want += (double)value(r, p, i, step) + (r == 0 ? (double)addend(b, p, i) : 0);
        if (s->count[p] != end - begin || s->sum[p] != want || !s->is_whole) {
            printf("step %d part %d: saw %lld of %lld, %g of %g, whole %d\n", step, p,
                   (long long)s->count[p], (long long)(end - begin), s->sum[p], want, s->is_whole);
            return -70;
        }
    }
    return 0;
}

static int run_parts(struct ku_job *job, void *arg)
{
    struct bucket b;
    struct seen seen;
    const struct ku_arena *a;
    struct ku_work reduce, scatter, gather, cast;
    (void)arg;
    SUITE_TRY(ku_arena_create(job, "grad", 0, ARENA_BYTES, &a));
    lay_parts(&b, a, job->n);
    for (int p = 0; p < N_PARTS; p++)
        for (int64_t i = 0; i < b.count[p]; i++)
            at_part(job, a, &b, p)[ARENA_BYTES / 2 / sizeof(float) + (size_t)i] = addend(&b, p, i);
    struct ku_coll coll = {
        .kind = KU_COLL_ALL_REDUCE, .dtype = KUMI_F32, .part = b.part, .n_parts = N_PARTS};
    SUITE_TRY(ku_work_init(&reduce, job->world, &coll));
    coll.kind = KU_COLL_REDUCE_SCATTER;
    coll.see = see;
    coll.see_ctx = &seen;
    SUITE_TRY(ku_work_init(&scatter, job->world, &coll));
    coll.kind = KU_COLL_ALL_GATHER;
    SUITE_TRY(ku_work_init(&gather, job->world, &coll));
    coll.kind = KU_COLL_BROADCAST;
    coll.root = job->n - 1;
    SUITE_TRY(ku_work_init(&cast, job->world, &coll));
    for (int step = 0; step < STEPS; step++) {
        for (int form = 0; form < 3; form++) {
            for (int p = 0; p < N_PARTS; p++)
                for (int64_t i = 0; i < b.count[p]; i++)
                    at_part(job, a, &b, p)[i] = value(job->rank, p, i, step);
            struct ku_work *w = form == 0 ? &reduce : form == 1 ? &scatter : &cast;
            seen = (struct seen){.is_whole = 1};
            SUITE_TRY(ku_work_start(w));
            SUITE_TRY(ku_work_wait(w));
            if (form == 1) {
                SUITE_TRY(check_seen(job, &b, &seen, step));
                SUITE_TRY(ku_work_start(&gather));
                SUITE_TRY(ku_work_wait(&gather));
            }
            for (int p = 0; p < N_PARTS; p++) {
                for (int64_t i = 0; i < b.count[p]; i++) {
                    float want = 0;
                    for (int r = 0; r < job->n; r++)
                        want += value(r, p, i, step);
                    if (form < 2)
                        want += addend(&b, p, i);
                    if (form == 2)
                        want = value(job->n - 1, p, i, step);
                    if (at_part(job, a, &b, p)[i] != want) {
                        printf("form %d step %d part %d element %lld: %g, expected %g\n", form,
                               step, p, (long long)i, (double)at_part(job, a, &b, p)[i],
                               (double)want);
                        return -70;
                    }
                }
            }
        }
    }
    return 0;
}

static void test_parts(void **state)
{
    (void)state;
    for (int n = 1; n <= 8; n++)
        assert_int_equal(ku_comm_threads(n, NULL, run_parts, NULL), 0);
}

/*
 * Rows of 7 chunks, each divided over the ranks, whose shards lie dense in buffers of their own: a
 * reduce-scatter of the rows, then an all-gather back.
 */
static int run_rows(struct ku_job *job, void *arg)
{
    enum { ROWS = 3, CHUNKS = 7, CHUNK = 5, COUNT = CHUNKS * CHUNK };
    const struct ku_arena *a;
    struct ku_coll_part part[2][ROWS];
    const size_t own = ROWS * COUNT * sizeof(float), again = 2 * own;
    (void)arg;
    SUITE_TRY(ku_arena_create(job, "rows", 0, ARENA_BYTES, &a));
    float *whole = (float *)(void *)ku_arena_part(a, job->local_rank);
    for (int k = 0; k < ROWS; k++)
        for (int gathers = 0; gathers < 2; gathers++) {
            struct ku_coll_part *p = &part[gathers][k];
            const size_t at = (size_t)k * COUNT * sizeof(float);
            *p = (struct ku_coll_part){
                .count = COUNT, .block_count = CHUNK, .kept = KU_KEPT_OUT, .row = k};
            p->in = (struct ku_ref){.arena = a->id, .off = at};
            p->out = (struct ku_ref){.arena = a->id, .off = own};
            if (gathers) {
                p->kept = KU_KEPT_IN;
                p->in = p->out;
                p->out.off = again + at;
            }
        }
    for (int i = 0; i < ROWS * COUNT; i++)
        whole[i] = value(job->rank, 0, i, 0);
    for (int gathers = 0; gathers < 2; gathers++)
        SUITE_TRY(ku_coll_run(
            job->world,
            &(struct ku_coll){.kind = gathers ? KU_COLL_ALL_GATHER : KU_COLL_REDUCE_SCATTER,
                              .dtype = KUMI_F32,
                              .wire = KUMI_F32,
                              .part = part[gathers],
                              .n_parts = ROWS}));
    for (int i = 0; i < ROWS * COUNT; i++) {
        float want = 0;
        for (int r = 0; r < job->n; r++)
            want += value(r, 0, i, 0);
        if (whole[again / sizeof(float) + (size_t)i] != want) {
            printf("n %d element %d: %g, expected %g\n", job->n, i,
                   (double)whole[again / sizeof(float) + (size_t)i], (double)want);
            return -70;
        }
    }
    return 0;
}

static void test_rows(void **state)
{
    (void)state;
    for (int n = 1; n <= 8; n++)
        assert_int_equal(ku_comm_threads(n, NULL, run_rows, NULL), 0);
}

/* The tree, the slow way: pair neighbours level by level, an odd one carried up. */
static float tree(float *x, int n)
{
    while (n > 1) {
        for (int i = 0; i < n / 2; i++)
            x[i] = x[2 * i] + x[2 * i + 1];
        if (n % 2)
            x[n / 2] = x[n - 1];
        n = (n + 1) / 2;
    }
    return x[0];
}

static int run_order(struct ku_job *job, void *arg)
{
    enum { COUNT = 5000 };
    float *x = ku_malloc(COUNT * sizeof *x), *y = ku_malloc(COUNT * sizeof *y);
    int status = x && y ? 0 : -70;
    (void)arg;
    for (int i = 0; i < COUNT && !status; i++)
        x[i] = ku_random_normal(1, 0, (uint32_t)job->rank, (uint64_t)i);
    if (!status)
        status = ku_coll_run(
            job->world,
            &(struct ku_coll){.kind = KU_COLL_ALL_REDUCE, .in = x, .out = y, .count = COUNT});
    for (int i = 0; i < COUNT && !status; i++) {
        float leaf[KU_MAX_LOCAL] = {0};
        for (int r = 0; r < job->n; r++)
            leaf[r] = ku_random_normal(1, 0, (uint32_t)r, (uint64_t)i);
        float want = tree(leaf, job->n);
        if (memcmp(&want, &y[i], sizeof want)) {
            printf("n %d element %d: %a, expected %a\n", job->n, i, (double)y[i], (double)want);
            status = -70;
        }
    }
    ku_free(x);
    ku_free(y);
    return status;
}

static void test_canonical_order(void **state)
{
    (void)state;
    for (int n = 1; n <= 11; n++)
        assert_int_equal(ku_comm_threads(n, NULL, run_order, NULL), 0);
}

/* Three comms over the ranks, works on each started in another order on each rank, 20 deep: more
 * than the ring of arrivals. */
static int run_many(struct ku_job *job, void *arg)
{
    enum { DEEP = 20 };
    struct ku_comm *c[3] = {job->world, NULL, NULL};
    struct ku_work w[3][DEEP];
    int64_t x[3][DEEP][20];
    (void)arg;
    SUITE_TRY(ku_comm_split(job->world, 0, -job->rank, "reversed", &c[1]));
    SUITE_TRY(ku_comm_split(job->world, job->rank % 2, job->rank, "parity", &c[2]));
    for (int k = 0; k < 3; k++) {
        int m = (k + job->rank) % 3;
        for (int i = 0; i < DEEP; i++) {
            for (int e = 0; e < 20; e++)
                x[m][i][e] = job->rank + i * 100 + e;
            struct ku_coll coll = {.kind = KU_COLL_ALL_REDUCE,
                                   .dtype = KUMI_I64,
                                   .in = x[m][i],
                                   .out = x[m][i],
                                   .count = i % 2 ? 20 : 4};
            SUITE_TRY(ku_work_init(&w[m][i], c[m], &coll));
            SUITE_TRY(ku_work_start(&w[m][i]));
        }
    }
    for (int k = 0; k < 3; k++) {
        int m = (2 * job->rank + k) % 3;
        for (int i = DEEP - 1; i >= 0; i--) {
            SUITE_TRY(ku_work_wait(&w[m][i]));
            int64_t want = 0;
            for (int r = 0; r < job->n; r++)
                want += m == 2 && r % 2 != job->rank % 2 ? 0 : r + i * 100 + 3;
            if (x[m][i][3] != want) {
                printf("comm %d work %d: %lld, expected %lld\n", m, i, (long long)x[m][i][3],
                       (long long)want);
                return -70;
            }
        }
    }
    SUITE_TRY(ku_comm_destroy(c[2]));
    SUITE_TRY(ku_comm_destroy(c[1]));
    /* Slots are used again, with numbers that go on. */
    for (int i = 0; i < 100; i++) {
        struct ku_comm *again;
        SUITE_TRY(ku_comm_split(job->world, 0, i % 2 ? job->rank : -job->rank, "again", &again));
        SUITE_TRY(ku_comm_destroy(again));
    }
    return 0;
}

static void test_many_in_flight(void **state)
{
    (void)state;
    for (int n = 1; n <= 5; n++)
        assert_int_equal(ku_comm_threads(n, NULL, run_many, NULL), 0);
}

static int run_mesh(struct ku_job *job, void *arg)
{
    struct ku_comm *row, *column;
    int64_t x = job->rank;
    (void)arg;
    SUITE_TRY(ku_comm_mesh(job, "tp", job->rank / 2 * 2, 1, 2, &row));
    SUITE_TRY(ku_comm_mesh(job, "dp", job->rank % 2, 2, 3, &column));
    if (row->list || column->list || row->slot == column->slot)
        return -70;
    struct ku_coll coll = {
        .kind = KU_COLL_ALL_REDUCE, .dtype = KUMI_I64, .in = &x, .out = &x, .count = 1};
    SUITE_TRY(ku_coll_run(row, &coll));
    SUITE_TRY(ku_coll_run(column, &coll));
    if (x != 15)
        return -70;
    if (ku_comm_mesh(job, "bad", 0, 1, 99, &row) != KUMI_EINVAL)
        return -70;
    return 0;
}

static void test_mesh(void **state)
{
    (void)state;
    assert_int_equal(ku_comm_threads(6, NULL, run_mesh, NULL), 0);
}

/* Waits 20 ms a flag; a computation with progress between its tiles ends after the collective. */
static int run_overlap(struct ku_job *job, void *arg)
{
    enum { COUNT = 4096 };
    const int64_t deadline_ns = INT64_C(120000000000); /* usual: 40 ms */
    int64_t *waited = arg;                             /* ns; bytes moved meanwhile */
    const struct ku_arena *a;
    struct ku_work w;
    SUITE_TRY(ku_arena_create(job, "x", 0, COUNT * 4, &a));
    struct ku_ref ref = {.arena = a->id};
    struct ku_coll_part part = {.in = ref, .out = ref, .count = COUNT};
    struct ku_coll coll = {.kind = KU_COLL_ALL_REDUCE, .part = &part, .n_parts = 1};
    for (int overlaps = 0; overlaps < 2; overlaps++) {
        const int64_t moved_ns = ku_job_moved_ns(job), begin_ns = ku_clock_ns();
        SUITE_TRY(ku_work_init(&w, job->world, &coll));
        for (int step = 0; step < 3; step++) {
            SUITE_TRY(ku_work_start(&w));
            const struct timespec tile = {.tv_nsec = 500000};
            for (int is_done = 0; overlaps && !is_done;) {
                nanosleep(&tile, NULL);
                is_done = ku_work_test(&w);
                if (is_done < 0 || ku_clock_ns() - begin_ns > deadline_ns)
                    return -70;
            }
            SUITE_TRY(ku_work_wait(&w));
        }
        if (job->rank == 0 && !overlaps) {
            waited[0] = ku_clock_ns() - begin_ns;
            waited[1] = ku_job_moved_ns(job) - moved_ns;
        }
    }
    return 0;
}

static void test_overlap_hides_delay(void **state)
{
    int64_t waited[2] = {0, 1};
    struct ku_job_opts opts = {.chaos = "delay=20ms"};
    (void)state;
    /* Again if the rank was descheduled while it moved 16 KiB, which takes about 20 us. */
    for (int i = 0; i < 10 && waited[1] > waited[0] / 2; i++) {
        assert_int_equal(ku_comm_threads(2, &opts, run_overlap, waited), 0);
        assert_true(waited[0] >= 3 * 2 * 20000000LL * 9 / 10); /* two flags a step */
    }
    assert_in_range(waited[1], 1, waited[0] / 2); /* without the delays */
}

static int run_suite(struct ku_job *job, void *arg)
{
    return suite_run(job, arg);
}

static void test_suite_under_jitter(void **state)
{
    struct ku_job_opts opts = {.chaos = "jitter=20us,seed=7"};
    struct suite_share share = {10, 100, 0};
    (void)state;
    assert_int_equal(ku_comm_threads(3, &opts, run_suite, &share), 0);
}

/*
 * A transport that finds every other set of `done` flags incomplete. So the first of the works that
 * wait for the ring does not arrive, and the next one could.
 */
static _Thread_local struct {
    uint64_t ready;
    unsigned n_asked;
    bool is_out_of_order;
} late;

static int late_arrive(struct ku_comm *comm, enum ku_flag flag, uint64_t number)
{
    if (flag == KU_FLAG_READY) {
        late.is_out_of_order |= number != late.ready + 1;
        late.ready = number;
    }
    return ku_transport_shm.arrive(comm, flag, number);
}

static int late_arrived(struct ku_comm *comm, enum ku_flag flag, uint64_t number, int *missing)
{
    if (flag == KU_FLAG_DONE && late.n_asked++ % 2 == 0)
        return 1;
    return ku_transport_shm.arrived(comm, flag, number, missing);
}

static int run_arrivals(struct ku_job *job, void *arg)
{
    enum { N_WORKS = 8 * KU_RING };
    struct ku_transport transport = ku_transport_shm;
    struct ku_work w[N_WORKS];
    const struct ku_coll barrier = {.kind = KU_COLL_BARRIER};
    (void)arg;
    transport.arrive = late_arrive;
    transport.arrived = late_arrived;
    late.ready = job->world->priv->seq;
    job->comm->transport = &transport;
    for (int i = 0; i < N_WORKS; i++) {
        SUITE_TRY(ku_work_init(&w[i], job->world, &barrier));
        SUITE_TRY(ku_work_start(&w[i]));
    }
    for (int i = 0; i < N_WORKS; i++)
        SUITE_TRY(ku_work_wait(&w[i]));
    job->comm->transport = &ku_transport_shm;
    return late.is_out_of_order ? -70 : 0;
}

static void test_arrivals_in_order(void **state)
{
    (void)state;
    assert_int_equal(ku_comm_threads(2, NULL, run_arrivals, NULL), 0);
}

/*
 * Rank 0 fills the ring with broadcasts that it does not wait for, then waits for a message, which
 * rank 1 sends after a broadcast of its own: that needs the ring.
 */
static int run_posted(struct ku_job *job, void *arg)
{
    int32_t x = 0;
    (void)arg;
    for (int i = 0; i <= KU_RING; i++) {
        const int root = i == KU_RING;
        const struct ku_coll send = {.kind = job->rank ? KU_COLL_SEND : KU_COLL_RECV,
                                     .dtype = KUMI_I32,
                                     .root = 1 - job->rank,
                                     .in = &x,
                                     .out = &x,
                                     .count = 1};
        const struct ku_coll broadcast = {
            .kind = KU_COLL_BROADCAST, .dtype = KUMI_I32, .root = root, .out = &x, .count = 1};
        if (root && job->rank == 0)
            SUITE_TRY(ku_coll_run(job->world, &send));
        x = job->rank == root ? i + 1 : -1;
        SUITE_TRY(ku_coll_run(job->world, &broadcast));
        if (x != i + 1)
            return -70;
        if (root && job->rank == 1)
            SUITE_TRY(ku_coll_run(job->world, &send));
    }
    return 0;
}

static void test_posted_then_message(void **state)
{
    const struct ku_job_opts opts = {.timeout_ns = 20000000000};
    (void)state;
    assert_int_equal(ku_comm_threads(2, &opts, run_posted, NULL), 0);
}

/* No message arrives early, however the receiver looks while it is sent. */
struct sent {
    _Atomic int64_t at_ns;
    _Atomic int n_received;
};

static int run_delayed(struct ku_job *job, void *arg)
{
    enum { N_MESSAGES = 100 };
    const int64_t delay_ns = 2000000;
    struct sent *s = arg;
    for (int i = 0; i < N_MESSAGES; i++) {
        int32_t x = i;
        int status;
        struct ku_work w;
        const struct ku_coll coll = {.kind = job->rank ? KU_COLL_RECV : KU_COLL_SEND,
                                     .dtype = KUMI_I32,
                                     .root = 1 - job->rank,
                                     .in = &x,
                                     .out = &x,
                                     .count = 1};
        SUITE_TRY(ku_work_init(&w, job->world, &coll));
        while (job->rank == 0 && s->n_received < i)
            usleep(50);
        if (job->rank == 0)
            s->at_ns = ku_clock_ns();
        SUITE_TRY(ku_work_start(&w));
        while ((status = ku_work_test(&w)) == 0)
            continue;
        SUITE_TRY(status);
        if (job->rank == 1 && ku_clock_ns() - s->at_ns < delay_ns)
            return -70;
        s->n_received += job->rank;
    }
    return 0;
}

static void test_delay_of_messages(void **state)
{
    const struct ku_job_opts opts = {.chaos = "delay=2ms"};
    struct sent s = {0};
    (void)state;
    assert_int_equal(ku_comm_threads(2, &opts, run_delayed, &s), 0);
}

/* Messages to and from two peers in flight at once, eager ones and others, waited for backwards. */
static float message_value(int from, int to, int i)
{
    return (float)(i * 16 + from * 4 + to);
}

static int run_messages(struct ku_job *job, void *arg)
{
    enum { N_MESSAGES = 60, COUNT = 40 };
    struct ku_work w[N_MESSAGES][2][2];
    float data[N_MESSAGES][2][2][COUNT];
    (void)arg;
    for (int i = 0; i < N_MESSAGES; i++)
        for (int at = 0; at < 4; at++) {
            const int k = at / 2, is_recv = at % 2, peer = (job->rank + 1 + k) % 3;
            const struct ku_coll coll = {.kind = is_recv ? KU_COLL_RECV : KU_COLL_SEND,
                                         .root = peer,
                                         .in = data[i][k][is_recv],
                                         .out = data[i][k][is_recv],
                                         .count = i % 7 ? 1 + i % 24 : COUNT};
            for (int e = 0; e < COUNT; e++)
                data[i][k][is_recv][e] = is_recv ? -1 : message_value(job->rank, peer, i);
            SUITE_TRY(ku_work_init(&w[i][k][is_recv], job->world, &coll));
            SUITE_TRY(ku_work_start(&w[i][k][is_recv]));
            if (i % 8 == 0)
                SUITE_TRY(ku_job_progress(job));
        }
    for (int i = N_MESSAGES - 1; i >= 0; i--)
        for (int at = 0; at < 4; at++) {
            const int k = at / 2, is_recv = at % 2, peer = (job->rank + 1 + k) % 3;
            SUITE_TRY(ku_work_wait(&w[i][k][is_recv]));
            for (int e = 0; is_recv && e < w[i][k][is_recv].total; e++)
                if (data[i][k][is_recv][e] != message_value(peer, job->rank, i))
                    return -70;
        }
    return job->world->priv->p2p ? -70 : 0;
}

static void test_many_messages(void **state)
{
    (void)state;
    assert_int_equal(ku_comm_threads(3, NULL, run_messages, NULL), 0);
}

/* Fewer bytes than ranks: a block has an element all the same. */
static int run_bench(struct ku_job *job, void *arg)
{
    const struct ku_bench_comm_opts opts = {.only = "all_gather", .bytes = 4};
    struct ku_bench_comm_row rows[KU_BENCH_COMM_ROWS];
    const int n = ku_bench_comm(job, &opts, rows);
    (void)arg;
    return n < 0 ? n : n == 2 ? 0 : -70; /* owned and private memory */
}

static void test_bench_of_many(void **state)
{
    (void)state;
    assert_int_equal(ku_comm_threads(20, NULL, run_bench, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_canonical_order),
        cmocka_unit_test(test_many_in_flight),
        cmocka_unit_test(test_mesh),
        cmocka_unit_test(test_overlap_hides_delay),
        cmocka_unit_test(test_suite_under_jitter),
        cmocka_unit_test(test_arrivals_in_order),
        cmocka_unit_test(test_posted_then_message),
        cmocka_unit_test(test_bench_of_many),
        cmocka_unit_test(test_many_messages),
        cmocka_unit_test(test_delay_of_messages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
