/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The conformance suite of collectives: run by every rank of a job, whatever its transport. Inputs
 * are small whole numbers, so every result is exactly representable and compared with ==. Each
 * function returns 0 or prints what differs and returns -70.
 */
#ifndef KU_TEST_COMM_SUITE_H
#define KU_TEST_COMM_SUITE_H

#include "base/err.h"
#include "base/mem.h"
#include "comm/coll.h"
#include "comm/private.h"
#include "comm/world.h"
#include "base/math/random.h"
#include "tensor/blocks.h"
#include "tensor/dtype.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "sample.h"

enum { GUARD_BYTES = 64, GUARD = 0xA5, MAX_RANKS = 32 };

static const enum kumi_dtype suite_dtypes[] = {KUMI_F32, KUMI_F64, KUMI_BF16, KUMI_F16,
                                               KUMI_I64, KUMI_I32, KUMI_U8};
enum { N_SUITE_DTYPES = sizeof suite_dtypes / sizeof *suite_dtypes };

struct suite {
    struct ku_job *job;
    struct ku_comm *c;
    const struct ku_arena *arena; /* owned memory: in at 0, out at half */
    enum kumi_dtype dtype;
    enum kumi_reduce reduce;
    int64_t count;
    int is_owned, in_place, shift; /* shift: elements by which buffers are off their alignment */
};

/* Element i of rank r's input: whole, small, not symmetric in r and i; periodic in i. */
enum { PERIOD = 56 };
static inline double input_of(int rank, int64_t i, enum kumi_reduce reduce)
{
    if (reduce == KUMI_PROD)
        return (double)(1 + (rank + i) % 2);
    return (double)((rank * 5 + i * 3 + i / 7) % 8);
}

static inline double oracle_of(const struct suite *s, int n, int64_t i)
{
    double x = s->reduce == KUMI_PROD  ? 1
               : s->reduce == KUMI_MIN ? 1e9
               : s->reduce == KUMI_MAX ? -1e9
                                       : 0;
    for (int r = 0; r < n; r++) {
        double v = input_of(r, i, s->reduce);
        if (s->reduce == KUMI_PROD)
            x *= v;
        else if (s->reduce == KUMI_MIN)
            x = v < x ? v : x;
        else if (s->reduce == KUMI_MAX)
            x = v > x ? v : x;
        else
            x += s->reduce == KUMI_PREMUL_SUM ? v * (r + 1) * 0.5 : v;
    }
    if (s->reduce == KUMI_AVG)
        x = s->dtype == KUMI_F64 ? x / n : (double)((float)x / (float)n);
    if (s->dtype == KUMI_U8)
        x = (double)((int64_t)x & 0xff);
    return x;
}

/* Elements first .. of rank r's input: one period, then copies of it. */
static inline void fill_input(const struct suite *s, void *at, int rank, int64_t first,
                              int64_t count)
{
    const size_t each = kumi_dtype_bytes(s->dtype);
    for (int64_t i = 0; i < count && i < PERIOD; i++)
        ku_store_f64(at, s->dtype, i, input_of(rank, first + i, s->reduce));
    for (int64_t i = PERIOD; i < count; i += PERIOD)
        memcpy((char *)at + (size_t)i * each, at,
               (size_t)(count - i < PERIOD ? count - i : PERIOD) * each);
}

static inline int differs(const struct suite *s, const char *what, const void *out, int64_t i,
                          double want)
{
    unsigned char expected[8] = {0};
    size_t each = kumi_dtype_bytes(s->dtype);
    ku_store_f64(expected, s->dtype, 0, want);
    if (!memcmp((const unsigned char *)out + (size_t)i * each, expected, each))
        return 0;
    printf(
        "%s %s reduce %d count %lld %s%s shift %d, n %d rank %d: element %lld is %g, expected %g\n",
        what, kumi_dtype_name(s->dtype), (int)s->reduce, (long long)s->count,
        s->is_owned ? "owned" : "private", s->in_place ? " in place" : "", s->shift, s->c->n,
        s->c->me, (long long)i, ku_load_f64(out, s->dtype, i), want);
    fflush(stdout);
    return -70;
}

/* Elements [at, at + count) of out: rank r's input from `first` on, or for r < 0 the reduction. */
static inline int check_values(const struct suite *s, const char *what, const void *out, int64_t at,
                               int64_t count, int rank, int64_t first)
{
    const size_t each = kumi_dtype_bytes(s->dtype);
    double want[PERIOD];
    unsigned char block[PERIOD * 8] = {0};
    for (int k = 0; k < PERIOD; k++) {
        want[k] =
            rank < 0 ? oracle_of(s, s->c->n, first + k) : input_of(rank, first + k, s->reduce);
        ku_store_f64(block, s->dtype, k, want[k]);
    }
    for (int64_t i = 0; i < count; i += PERIOD) {
        const int64_t n = count - i < PERIOD ? count - i : PERIOD;
        if (memcmp((const char *)out + (size_t)(at + i) * each, block, (size_t)n * each) == 0)
            continue;
        for (int64_t k = 0; k < n; k++)
            if (differs(s, what, out, at + i + k, want[k]))
                return -70;
    }
    return 0;
}

/* ku_coll_run by a loop of polls */
static inline int suite_poll(struct ku_comm *comm, const struct ku_coll *coll)
{
    struct ku_work w;
    struct ku_waiter waiter = {0};
    int status;
    KU_TRY(ku_work_init(&w, comm, coll));
    KU_TRY(ku_work_start(&w));
    while ((status = ku_work_poll(&w, &waiter)) == 0)
        usleep(100);
    return status < 0 ? status : 0;
}

/* Buffers of a case, from the arena or the heap, with guard bytes after them. */
struct buffers {
    unsigned char *in, *out, *heap_in, *heap_out;
    size_t in_bytes, out_bytes;
};

static inline int make_buffers(const struct suite *s, struct buffers *b, int64_t in_count,
                               int64_t out_count)
{
    size_t each = kumi_dtype_bytes(s->dtype), shift = (size_t)s->shift * each;
    memset(b, 0, sizeof *b);
    b->in_bytes = (size_t)in_count * each;
    b->out_bytes = (size_t)out_count * each;
    if (s->is_owned) {
        b->in = ku_arena_part(s->arena, s->job->local_rank) + shift;
        b->out = ku_arena_part(s->arena, s->job->local_rank) + s->arena->part_bytes / 2 + shift;
    } else {
        b->heap_in = ku_malloc_aligned(64, b->in_bytes + shift + GUARD_BYTES);
        b->heap_out = ku_malloc_aligned(64, b->out_bytes + shift + GUARD_BYTES);
        if (!b->heap_in || !b->heap_out)
            return KUMI_ENOMEM;
        b->in = b->heap_in + shift;
        b->out = b->heap_out + shift;
    }
    memset(b->out, GUARD, b->out_bytes + GUARD_BYTES);
    return 0;
}

static inline int check_guard(const struct suite *s, const struct buffers *b, const char *what)
{
    for (int i = 0; i < GUARD_BYTES; i++) {
        if (b->out[b->out_bytes + (size_t)i] != GUARD) {
            printf("%s %s count %lld n %d: wrote %d bytes past the end\n", what,
                   kumi_dtype_name(s->dtype), (long long)s->count, s->c->n, i + 1);
            return -70;
        }
    }
    return 0;
}

static inline void drop_buffers(struct buffers *b)
{
    ku_free(b->heap_in);
    ku_free(b->heap_out);
}

static inline int run_case(const struct suite *s, enum ku_coll_kind kind, int root, const void *in,
                           void *out, const int64_t *counts)
{
    struct ku_coll coll = {.kind = kind,
                           .dtype = s->dtype,
                           .wire = s->dtype,
                           .reduce = s->reduce,
                           .root = root,
                           .scale = (s->c->me + 1) * 0.5,
                           .in = in,
                           .out = out,
                           .count = counts ? 0 : s->count,
                           .counts = counts};
    return ku_coll_run(s->c, &coll);
}

/* all_reduce and reduce to every third root. */
static inline int suite_vector_reduce(const struct suite *s, int root)
{
    struct buffers b;
    const char *what = root < 0 ? "all_reduce" : "reduce";
    int status = make_buffers(s, &b, s->count, s->count);
    if (status < 0)
        return status;
    fill_input(s, b.in, s->c->me, 0, s->count);
    if (s->in_place)
        memcpy(b.out, b.in, b.in_bytes);
    status = run_case(s, root < 0 ? KU_COLL_ALL_REDUCE : KU_COLL_REDUCE, root < 0 ? 0 : root,
                      s->in_place ? b.out : b.in, b.out, NULL);
    if (!status && (root < 0 || root == s->c->me)) {
        status = check_values(s, what, b.out, 0, s->count, -1, 0);
        if (!status)
            status = check_guard(s, &b, what);
    }
    if (!status && s->is_owned)
        status = ku_coll_run(
            s->c, &(struct ku_coll){.kind = KU_COLL_BARRIER}); /* peers look at the buffers */
    drop_buffers(&b);
    return status;
}

static inline int64_t block_count(const struct suite *s, const int64_t *counts, int r)
{
    return counts ? counts[r] : s->count;
}
static inline int64_t block_first(const struct suite *s, const int64_t *counts, int r)
{
    int64_t at = 0;
    for (int i = 0; i < r; i++)
        at += block_count(s, counts, i);
    return at;
}

static inline int suite_reduce_scatter(const struct suite *s, const int64_t *counts)
{
    struct buffers b;
    int n = s->c->n, me = s->c->me;
    int64_t all = block_first(s, counts, n), first = block_first(s, counts, me),
            mine = block_count(s, counts, me);
    int status = make_buffers(s, &b, all, mine);
    if (status < 0)
        return status;
    fill_input(s, b.in, me, 0, all);
    unsigned char *out = s->in_place ? b.in + (size_t)first * kumi_dtype_bytes(s->dtype) : b.out;
    status = run_case(s, KU_COLL_REDUCE_SCATTER, 0, b.in, out, counts);
    if (!status)
        status = check_values(s, "reduce_scatter", out, 0, mine, -1, first);
    if (!status)
        status = check_guard(s, &b, "reduce_scatter");
    drop_buffers(&b);
    return status;
}

/* all_gather (root < 0) and gather. */
static inline int suite_gather(const struct suite *s, int root, const int64_t *counts)
{
    struct buffers b;
    int n = s->c->n, me = s->c->me, has_out = root < 0 || root == me;
    int64_t all = block_first(s, counts, n), first = block_first(s, counts, me),
            mine = block_count(s, counts, me);
    int status = make_buffers(s, &b, mine, all);
    if (status < 0)
        return status;
    int is_in_place = s->in_place && has_out;
    unsigned char *in = is_in_place ? b.out + (size_t)first * kumi_dtype_bytes(s->dtype) : b.in;
    fill_input(s, in, me, first, mine);
    status = run_case(s, root < 0 ? KU_COLL_ALL_GATHER : KU_COLL_GATHER, root < 0 ? 0 : root, in,
                      b.out, counts);
    for (int r = 0; r < n && has_out; r++) {
        int64_t from = block_first(s, counts, r);
        if (!status)
            status = check_values(s, root < 0 ? "all_gather" : "gather", b.out, from,
                                  block_count(s, counts, r), r, from);
    }
    if (!status && has_out)
        status = check_guard(s, &b, "gather");
    if (!status && s->is_owned)
        status = ku_coll_run(s->c, &(struct ku_coll){.kind = KU_COLL_BARRIER});
    drop_buffers(&b);
    return status;
}

static inline int suite_scatter(const struct suite *s, int root, const int64_t *counts)
{
    struct buffers b;
    int n = s->c->n, me = s->c->me, am_root = root == me;
    int64_t all = block_first(s, counts, n), first = block_first(s, counts, me),
            mine = block_count(s, counts, me);
    int status = make_buffers(s, &b, all, mine);
    if (status < 0)
        return status;
    fill_input(s, b.in, root, 0, all);
    unsigned char *out =
        s->in_place && am_root ? b.in + (size_t)first * kumi_dtype_bytes(s->dtype) : b.out;
    status = run_case(s, KU_COLL_SCATTER, root, am_root ? b.in : NULL, out, counts);
    if (!status)
        status = check_values(s, "scatter", out, 0, mine, root, first);
    if (!status)
        status = check_guard(s, &b, "scatter");
    drop_buffers(&b);
    return status;
}

static inline int suite_broadcast(const struct suite *s, int root)
{
    struct buffers b;
    int status = make_buffers(s, &b, 0, s->count);
    if (status < 0)
        return status;
    if (s->c->me == root)
        fill_input(s, b.out, root, 0, s->count);
    status = run_case(s, KU_COLL_BROADCAST, root, NULL, b.out, NULL);
    if (!status)
        status = check_values(s, "broadcast", b.out, 0, s->count, root, 0);
    if (!status)
        status = check_guard(s, &b, "broadcast");
    drop_buffers(&b);
    return status;
}

/* What rank `from` sends to rank `to` in the v form. */
static inline int64_t exchange_count(const struct suite *s, int from, int to)
{
    return (s->count + from * 3 + to) % (s->count + 2);
}

static inline int suite_all_to_all(const struct suite *s, int is_v)
{
    struct buffers b;
    int n = s->c->n, me = s->c->me;
    int64_t send[MAX_RANKS], recv[MAX_RANKS], n_send = 0, n_recv = 0;
    for (int r = 0; r < n; r++) {
        n_send += send[r] = is_v ? exchange_count(s, me, r) : s->count;
        n_recv += recv[r] = is_v ? exchange_count(s, r, me) : s->count;
    }
    int status = make_buffers(s, &b, n_send, n_recv);
    if (status < 0)
        return status;
    unsigned char *in = s->in_place && !is_v ? b.out : b.in;
    size_t each = kumi_dtype_bytes(s->dtype);
    int64_t at = 0;
    for (int r = 0; r < n; at += send[r++])
        fill_input(s, in + (size_t)at * each, me * 16 + r, 0, send[r]);
    struct ku_coll coll = {.kind = KU_COLL_ALL_TO_ALL,
                           .dtype = s->dtype,
                           .in = in,
                           .out = b.out,
                           .count = is_v ? 0 : s->count,
                           .counts = is_v ? send : NULL,
                           .recv_counts = is_v ? recv : NULL};
    status = ku_coll_run(s->c, &coll);
    at = 0;
    for (int r = 0; r < n; at += recv[r++])
        if (!status)
            status = check_values(s, "all_to_all", b.out, at, recv[r], r * 16 + me, 0);
    if (!status)
        status = check_guard(s, &b, "all_to_all");
    drop_buffers(&b);
    return status;
}

/* A ring of messages, both directions at once, received before sent. */
static inline int suite_p2p(const struct suite *s)
{
    struct buffers b;
    struct ku_work w[4];
    int n = s->c->n, me = s->c->me, right = (me + 1) % n, left = (me + n - 1) % n;
    int status = make_buffers(s, &b, s->count, 2 * s->count);
    if (status < 0)
        return status;
    size_t each = kumi_dtype_bytes(s->dtype);
    fill_input(s, b.in, me, 0, s->count);
    struct ku_coll op[4] = {
        {.kind = KU_COLL_RECV, .root = left, .out = b.out},
        {.kind = KU_COLL_RECV, .root = right, .out = b.out + (size_t)s->count * each},
        {.kind = KU_COLL_SEND, .root = right, .in = b.in},
        {.kind = KU_COLL_SEND, .root = left, .in = b.in}};
    for (int i = 0; i < 4 && !status; i++) {
        op[i].dtype = s->dtype;
        op[i].count = s->count;
        status = ku_work_init(&w[i], s->c, &op[i]);
        if (!status)
            status = ku_work_start(&w[i]);
    }
    for (int i = 0; i < 4 && !status; i++)
        status = ku_work_wait(&w[i]);
    if (!status)
        status = check_values(s, "recv", b.out, 0, s->count, left, 0);
    if (!status)
        status = check_values(s, "recv", b.out, s->count, s->count, right, 0);
    drop_buffers(&b);
    return status;
}

#define SUITE_TRY(call)                                                                            \
    do {                                                                                           \
        int suite_status = (call);                                                                 \
        if (suite_status < 0) {                                                                    \
            if (suite_status != -70)                                                               \
                printf("%s: %s\n", #call, ku_err_get()->text);                                     \
            return suite_status;                                                                   \
        }                                                                                          \
    } while (0)

static inline int suite_moves(struct suite *s)
{
    int64_t counts[MAX_RANKS];
    int n = s->c->n, root = (int)(s->count % n);
    for (int r = 0; r < n; r++)
        counts[r] = (s->count * (r + 1) + r) % (2 * s->count + 1);
    SUITE_TRY(suite_gather(s, -1, NULL));
    SUITE_TRY(suite_gather(s, -1, counts));
    SUITE_TRY(suite_gather(s, root, NULL));
    SUITE_TRY(suite_gather(s, root, counts));
    SUITE_TRY(suite_scatter(s, root, NULL));
    SUITE_TRY(suite_scatter(s, root, counts));
    SUITE_TRY(suite_broadcast(s, root));
    SUITE_TRY(suite_all_to_all(s, 0));
    SUITE_TRY(suite_all_to_all(s, 1));
    SUITE_TRY(suite_p2p(s));
    return 0;
}

static inline int suite_reductions(struct suite *s)
{
    int64_t counts[MAX_RANKS];
    int n = s->c->n;
    for (int r = 0; r < n; r++)
        counts[r] = (s->count * (n - r) + 2 * r) % (2 * s->count + 1);
    SUITE_TRY(suite_reduce_scatter(s, NULL));
    SUITE_TRY(suite_reduce_scatter(s, counts));
    return 0;
}

/*
 * The matrix: kind x dtype x reduction x count x {owned, private} x {in place, not} x {aligned, off
 * by an element}. A row is one dtype, reduction, count and form; all kinds run in it.
 */
static inline int suite_row(struct suite *s, int row, int64_t count)
{
    const int form = row % 8, r = row / 8 % KUMI_N_REDUCES;
    s->dtype = suite_dtypes[row / 8 / KUMI_N_REDUCES];
    s->is_owned = form & 1;
    s->in_place = form >> 1 & 1;
    s->shift = form >> 2;
    s->reduce = (enum kumi_reduce)r;
    if ((r == KUMI_AVG || r == KUMI_PREMUL_SUM) && !ku_dtype_is_float(s->dtype))
        return 0;
    /* count < 0: vectors of so many bytes, or so many over all ranks */
    s->count = count < 0 ? -count / (int64_t)kumi_dtype_bytes(s->dtype) + 1 : count;
    SUITE_TRY(suite_vector_reduce(s, -1));
    SUITE_TRY(suite_vector_reduce(s, (int)((s->count + 1) % s->c->n)));
    if (count < 0)
        s->count = s->count / s->c->n + 1;
    SUITE_TRY(suite_reductions(s));
    if (r == KUMI_SUM)
        SUITE_TRY(suite_moves(s));
    return 0;
}

/*
 * The first message to every rank, from the one before it, is eager: the sender goes on to a
 * barrier, and the receiver receives it after that.
 */
static inline int suite_first_message(struct suite *s)
{
    const int n = s->c->n, me = s->c->me;
    double out = me, in = -1;
    const struct ku_coll op[] = {
        {.kind = KU_COLL_SEND, .dtype = KUMI_F64, .root = (me + 1) % n, .in = &out, .count = 1},
        {.kind = KU_COLL_BARRIER},
        {.kind = KU_COLL_RECV,
         .dtype = KUMI_F64,
         .root = (me + n - 1) % n,
         .out = &in,
         .count = 1}};
    for (size_t i = 0; i < sizeof op / sizeof *op; i++)
        SUITE_TRY(ku_coll_run(s->c, &op[i]));
    return in == (me + n - 1) % n ? 0 : -70;
}

/*
 * Small broadcasts whose roots go on at once, in every order with works that wait: each row is a
 * work, started up to six ahead of the first that is not waited for. Values name work and root.
 */
static inline int suite_posted(struct suite *s, int n_works)
{
    enum { AHEAD = 6, COUNT = 5 };
    static const enum ku_coll_kind other[] = {KU_COLL_BARRIER, KU_COLL_ALL_REDUCE,
                                              KU_COLL_BROADCAST};
    struct ku_work w[AHEAD];
    float x[AHEAD][COUNT] = {{0}};
    const int n = s->c->n, me = s->c->me;
    for (int i = 0; i < n_works + AHEAD; i++) {
        struct ku_work *at = &w[i % AHEAD];
        float *value = x[i % AHEAD];
        if (i >= AHEAD) {
            SUITE_TRY(ku_work_wait(at));
            for (int k = 0; at->coll.kind != KU_COLL_BARRIER && k < COUNT; k++)
                if (value[k] != (float)((i - AHEAD) * 8 + at->coll.root)) {
                    printf("posted: work %d: rank %d has %g\n", i - AHEAD, me, (double)value[k]);
                    return -70;
                }
        }
        if (i >= n_works)
            continue;
        /* Runs of one root, longer than the ring, then of changing ones. */
        uint32_t random = ((uint32_t)i + 1) * 2654435761u >> 16;
        int root = i / 100 % 2 ? (int)(random % (uint32_t)n) : i / 40 % n;
        struct ku_coll c = {.kind = i % 100 < 40 ? KU_COLL_BROADCAST : other[random / 64 % 3],
                            .count = COUNT,
                            .reduce = KUMI_MAX,
                            .in = value,
                            .out = value};
        c.root = c.kind == KU_COLL_BROADCAST ? root : 0;
        if (c.kind == KU_COLL_BARRIER)
            c.count = 0;
        for (int k = 0; k < COUNT; k++)
            value[k] = me == c.root ? (float)(i * 8 + c.root) : -1;
        SUITE_TRY(ku_work_init(at, s->c, &c));
        SUITE_TRY(ku_work_start(at));
    }
    return 0;
}

/*
 * Works in flight at once whose stages different ranks fill. A rank that fills none in a work
 * leaves its own stage alone, because others may still read the work before from it.
 */
enum { FLIGHT_COUNT = 3 << 16 }; /* three pieces of f32 */
static inline float flight_value(int round, int work, int rank)
{
    return (float)(round * 1024 + work * 64 + rank + 1);
}

static inline int suite_flight_round(struct suite *s, int round, float *x)
{
    enum { N_WORKS = 4 };
    const int n = s->c->n, me = s->c->me;
    const int64_t block = FLIGHT_COUNT / 2;
    float *data[N_WORKS] = {x, x + FLIGHT_COUNT, x + FLIGHT_COUNT + n * block};
    float *in = data[2] + FLIGHT_COUNT, *parts = in + block;
    data[3] = parts + n * block;
    const struct ku_coll coll[N_WORKS] = {
        {.kind = KU_COLL_BROADCAST, .out = data[0], .count = FLIGHT_COUNT},
        {.kind = KU_COLL_GATHER, .in = in, .out = data[1], .count = block},
        {.kind = KU_COLL_BROADCAST, .out = data[2], .count = FLIGHT_COUNT, .root = 1 % n},
        {.kind = KU_COLL_SCATTER, .in = parts, .out = data[3], .count = block, .root = n - 1}};
    struct ku_work w[N_WORKS];
    for (int i = 0; i < FLIGHT_COUNT; i++)
        for (int k = 0; k < 3; k += 2)
            data[k][i] = me == coll[k].root ? flight_value(round, k, me) : -1;
    for (int64_t i = 0; i < block; i++)
        in[i] = flight_value(round, 1, me);
    for (int64_t i = 0; i < n * block; i++)
        parts[i] = flight_value(round, 3, (int)(i / block));
    for (int i = 0; i < N_WORKS; i++) {
        SUITE_TRY(ku_work_init(&w[i], s->c, &coll[i]));
        SUITE_TRY(ku_work_start(&w[i]));
    }
    for (int i = 0; i < N_WORKS; i++)
        SUITE_TRY(ku_work_wait(&w[i]));
    for (int k = 0; k < N_WORKS; k++) {
        const int64_t count = k != 1 ? coll[k].count : me == coll[k].root ? n * block : 0;
        for (int64_t i = 0; i < count; i++) {
            const int from = k == 1 ? (int)(i / block) : k == 3 ? me : coll[k].root;
            if (data[k][i] == flight_value(round, k, from))
                continue;
            printf("in flight: round %d work %d, n %d rank %d: element %lld is %g, expected %g\n",
                   round, k, n, me, (long long)i, (double)data[k][i],
                   (double)flight_value(round, k, from));
            return -70;
        }
    }
    return 0;
}

static inline int suite_flight(struct suite *s, int n_rounds)
{
    const int64_t block = FLIGHT_COUNT / 2;
    float *x = ku_malloc((size_t)(2 * FLIGHT_COUNT + 2 * (s->c->n + 1) * block) * sizeof *x);
    int status = x ? 0 : KUMI_ENOMEM;
    for (int round = 0; round < n_rounds && !status; round++)
        status = suite_flight_round(s, round, x);
    ku_free(x);
    return status;
}

/*
 * The communicators of a job. Those that are not the world are of some of its ranks, or in another
 * order; several of a kind work at once. With 6 ranks:
 *
 *     REVERSED   5 4 3 2 1 0            PARTS    5 4 3 | 2 1 0     halves of the reversed one
 *     PARITY     0 2 4 | 1 3 5          SOME     0 2 3 5           the others have none
 *     ROWS       0 1 | 2 3 | 4 5        COLUMNS  0 2 4 | 1 3 5     the axes of a mesh
 */
enum suite_comm {
    SUITE_WORLD,
    SUITE_REVERSED,
    SUITE_PARTS,
    SUITE_PARITY,
    SUITE_SOME,
    SUITE_ROWS,
    SUITE_COLUMNS,
    N_SUITE_COMMS
};

/* Sets c to NULL on a rank that is not a member. */
static inline int suite_comm_create(struct ku_job *job, enum suite_comm which, struct ku_comm **c)
{
    const int rank = job->rank, n = job->n, width = n % 2 == 0 ? 2 : n % 3 == 0 ? 3 : 1;
    struct ku_comm *parent;
    *c = NULL;
    switch (which) {
    case SUITE_WORLD:
        *c = job->world;
        return 0;
    case SUITE_REVERSED:
        return ku_comm_split(job->world, 0, n - rank, "reversed", c);
    case SUITE_PARTS:
        KU_TRY(ku_comm_split(job->world, 0, n - rank, "reversed", &parent));
        KU_TRY(ku_comm_split(parent, parent->me < (n + 1) / 2, 0, "part", c));
        return ku_comm_destroy(parent);
    case SUITE_PARITY:
        return ku_comm_split(job->world, rank % 2, 0, "parity", c);
    case SUITE_SOME:
        return ku_comm_split(job->world, rank % 3 == 1 ? -1 : 0, 0, "some", c);
    case SUITE_ROWS:
        return ku_comm_mesh(job, "row", rank / width * width, 1, width, c);
    case SUITE_COLUMNS:
        return ku_comm_mesh(job, "column", rank % width, width, n / width, c);
    case N_SUITE_COMMS:
        break;
    }
    return KUMI_EINVAL;
}

/*
 * One row of the matrix in so many, by the seed (sample.h), equally on all ranks: on the world, and
 * a sixteenth of that on a third of the other communicators; the next job takes the next third.
 * Every row on the world, and a sixteenth on all other communicators, for 1 to 8 ranks as processes
 * and as threads:
 *
 *     KUMI_TEST_ALL=1 ctest --test-dir build -j 2 -R comm.test_collectives
 */
struct suite_share {
    int one_in;
    int64_t max_count;
    int turn; /* number of this job among those of the test */
};

static inline int suite_takes(const struct suite_share *share, enum suite_comm which, int n, int at,
                              int64_t count)
{
    const uint32_t all = which == SUITE_WORLD ? 1 : 16;
    const uint32_t one_in = all * (sample_is_all() ? 1 : (uint32_t)share->one_in);
    return (sample_is_all() || (count < 0 ? -count : count) <= share->max_count) &&
           ku_random_u32(sample_seed(), (uint32_t)n, (uint32_t)which, (uint64_t)at) % one_in == 0;
}

static inline int suite_run_on(struct suite *s, enum suite_comm which,
                               const struct suite_share *share)
{
    enum { N_ROWS = N_SUITE_DTYPES * KUMI_N_REDUCES * 8 };
    const int n = s->c->n;
    const int64_t counts[] = {0, 1, 3, n - 1, n, n + 1, 63, 65, 1023, 1025, 70001, -(9 << 19)};
    enum { N_COUNTS = sizeof counts / sizeof *counts };
    SUITE_TRY(suite_first_message(s));
    const bool is_short = which != SUITE_WORLD || share->max_count < FLIGHT_COUNT;
    SUITE_TRY(suite_posted(s, is_short ? 120 : 600));
    SUITE_TRY(suite_flight(s, is_short ? 1 : sample_count(8, 2)));
    for (int at = 0; at < N_COUNTS * N_ROWS; at++)
        if (suite_takes(share, which, n, at, counts[at / N_ROWS]))
            SUITE_TRY(suite_row(s, at % N_ROWS, counts[at / N_ROWS]));
    return 0;
}

static inline int suite_run(struct ku_job *job, const struct suite_share *share)
{
    struct suite s = {.job = job};
    if (job->n > MAX_RANKS)
        return -70;
    SUITE_TRY(ku_arena_create(job, "suite", 0, 64 << 20, &s.arena));
    for (enum suite_comm which = SUITE_WORLD; which < N_SUITE_COMMS; which++) {
        if (which != SUITE_WORLD && !sample_is_all() && ((int)which + share->turn) % 3)
            continue;
        SUITE_TRY(suite_comm_create(job, which, &s.c));
        if (s.c)
            SUITE_TRY(suite_run_on(&s, which, share));
        if (which != SUITE_WORLD)
            SUITE_TRY(ku_comm_destroy(s.c));
    }
    return 0;
}

#endif
