/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures collectives against the memory roofline. Every call starts after a barrier; a row has
 * the times of the slowest rank.
 *
 * Two loops without bookkeeping give the limits, on the same ranks and memory:
 *
 *     small   store a flag, then wait for the flags of all other ranks
 *     large   read slice r of all copies and store to slice r of all copies (2 S bytes per rank)
 */
#include "comm/collective_bench.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/math/sort.h"
#include "comm/private.h"
#include "tensor/blocks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_SAMPLES = 1001,
    MIN_SAMPLES = 5,
    ROW_NS = 25 * 1000 * 1000,      /* about 100 rows in 5 s, plus the rows of slow calls */
    FAR_ROW_NS = 100 * 1000 * 1000, /* connections settle within tens of ms */
    BATCH = 10,                     /* a small call takes less time than reading the clock */
    SMALL_BYTES = 4096,
    MANY = 1000, /* calls of an operation that does not wait, between two clock reads */
    LINE = 64
};
enum memory { OWNED, PRIVATE, PROGRAM, NO_MEMORY };
static const char *const memory_name[] = {"owned", "private", "program", ""};
static const int64_t sizes[] = {8, 64 << 10, 1 << 20, 64 << 20};
enum { N_SIZES = sizeof sizes / sizeof *sizes };

struct bench {
    struct ku_job *job;
    const struct ku_bench_comm_opts *opts;
    const struct ku_arena *arena; /* in, out, one line for a flag */
    unsigned char *private_memory;
    int64_t max_bytes;
    struct ku_bench_comm_row *rows;
    int n_rows;
    double flags_ns, sum_ns[N_SIZES]; /* limits */
    uint64_t flag;
    double ns[MAX_SAMPLES];
};

/* The call that a row measures */
struct call {
    int (*fn)(struct bench *b, const struct call *call);
    int64_t bytes;
    struct ku_work work;
};

static int barrier(struct bench *b)
{
    return ku_coll_run(b->job->world, &(struct ku_coll){.kind = KU_COLL_BARRIER});
}

static int greatest(struct bench *b, double *x, int n)
{
    return ku_coll_run(b->job->world, &(struct ku_coll){.kind = KU_COLL_ALL_REDUCE,
                                                        .dtype = KUMI_F64,
                                                        .reduce = KUMI_MAX,
                                                        .in = x,
                                                        .out = x,
                                                        .count = n});
}

static int time_once(struct bench *b, struct call *call, int batch, double *ns)
{
    KU_TRY(barrier(b));
    int64_t from = ku_clock_ns();
    for (int i = 0; i < batch; i++)
        KU_TRY(call->fn(b, call));
    *ns = (double)(ku_clock_ns() - from) / batch;
    return 0;
}

/* ns[0]: median, ns[1]: 99th percentile, of the slowest rank */
static int time_call(struct bench *b, struct call *call, double ns[2])
{
    int batch = call->bytes < SMALL_BYTES ? BATCH : 1;
    double once = 0, min_ns = 1e18;
    for (int i = 0; i < 3; i++) { /* warm-up; also estimates the time of a call */
        KU_TRY(time_once(b, call, batch, &once));
        min_ns = once < min_ns ? once : min_ns;
    }
    KU_TRY(greatest(b, &min_ns, 1));
    const double row_ns = b->job->n_hosts > 1 ? FAR_ROW_NS : ROW_NS;
    double samples = row_ns / (min_ns * batch + 1);
    int n = samples > MAX_SAMPLES   ? MAX_SAMPLES
            : samples < MIN_SAMPLES ? MIN_SAMPLES
                                    : (int)samples;
    for (int i = 0; i < n; i++)
        KU_TRY(time_once(b, call, batch, &b->ns[i]));
    ku_sort_f64(b->ns, n);
    ns[0] = b->ns[n / 2];
    ns[1] = b->ns[n - 1 - n / 100];
    return greatest(b, ns, 2);
}

static ku_a64 *flag_of(const struct bench *b, int rank)
{
    return (ku_a64 *)(void *)(ku_arena_part(b->arena, rank) + 2 * b->max_bytes);
}

static int bare_flags(struct bench *b, const struct call *call)
{
    struct ku_job *job = b->job;
    (void)call;
    atomic_store(flag_of(b, job->rank), ++b->flag);
    for (int i = 0; i < job->n; i++)
        while (atomic_load(flag_of(b, i)) < b->flag)
            continue;
    return 0;
}

static int bare_sum(struct bench *b, const struct call *call)
{
    struct ku_job *job = b->job;
    const void *src[KU_MAX_LOCAL];
    void *dst[KU_MAX_LOCAL];
    int64_t begin, end;
    ku_blocks_range(call->bytes / 4, LINE / 4, 0, job->n, job->rank, &begin, &end);
    for (int i = 0; i < job->n; i++)
        src[i] = dst[i] = ku_arena_part(b->arena, i) + begin * 4;
    struct ku_sum s = {
        .n_src = job->n, .n_dst = job->n, .src = src, .dst = dst, .count = end - begin};
    ku_sum(job->comm->kernels, &s);
    return 0;
}

static int run_work(struct bench *b, const struct call *call)
{
    struct ku_work *w = (struct ku_work *)(uintptr_t)&call->work;
    (void)b;
    KU_TRY(ku_work_start(w));
    return ku_work_wait(w);
}

/* run_work MANY times; run_none is the same loop without it. */
static int run_many(struct bench *b, const struct call *call)
{
    for (int i = 0; i < MANY; i++)
        KU_TRY(run_work(b, call));
    return 0;
}

static int run_none(struct bench *b, const struct call *call)
{
    struct ku_work *volatile w = (struct ku_work *)(uintptr_t)&call->work;
    (void)b;
    for (int i = 0; i < MANY; i++)
        KU_TRY(w->state == KU_WORK_STARTED ? KUMI_EBUG : 0);
    return 0;
}

/*
 * A round trip between ranks 0 and 1. The others wait at the next barrier.
 */
static int ping_pong(struct bench *b, const struct call *call)
{
    struct ku_coll c = call->work.coll;
    int me = b->job->rank;
    if (me > 1)
        return 0;
    for (int i = 0; i < 2; i++) {
        c.kind = i == me ? KU_COLL_SEND : KU_COLL_RECV;
        KU_TRY(ku_coll_run(b->job->world, &c));
    }
    return 0;
}

/* Bytes that the busiest rank must read and write, divided by the bytes of the vector */
static double least_traffic(enum ku_coll_kind kind, int n)
{
    switch (kind) {
    case KU_COLL_REDUCE_SCATTER:
    case KU_COLL_REDUCE:
        return 1 + 1.0 / n;
    case KU_COLL_GATHER:
    case KU_COLL_SCATTER: /* every rank copies its block */
        return 2.0 / n;
    case KU_COLL_ALL_REDUCE:
    case KU_COLL_ALL_GATHER:
    case KU_COLL_ALL_TO_ALL:
    case KU_COLL_BROADCAST:
    case KU_COLL_SEND:
    case KU_COLL_RECV:
    case KU_COLL_BARRIER:
    case KU_COLL_INTERNAL:
        break;
    }
    return 2;
}

static void add_row(struct bench *b, const char *what, const char *how, const struct call *call,
                    const double ns[2], double limit_ns)
{
    KU_ASSERT(b->n_rows < KU_BENCH_COMM_ROWS);
    struct ku_bench_comm_row *row = &b->rows[b->n_rows++];
    double bytes = (double)call->bytes;
    *row = (struct ku_bench_comm_row){.how = how,
                                      .dtype = call->work.coll.dtype,
                                      .bytes = call->bytes,
                                      .p50_ns = ns[0],
                                      .p99_ns = ns[1],
                                      .gb_s = bytes / ns[0],
                                      .ratio = limit_ns / ns[0]};
    row->elements_s = bytes / (double)kumi_dtype_bytes(row->dtype) / ns[0] * 1e9;
    snprintf(row->what, sizeof row->what, "%s", what);
}

/*
 * The collective that a row measures. It borrows `part`.
 */
static struct ku_coll coll_of(const struct bench *b, enum ku_coll_kind kind, enum memory memory,
                              enum kumi_dtype dtype, int64_t bytes, struct ku_coll_part *part)
{
    struct ku_job *job = b->job;
    int64_t count = bytes / (int64_t)kumi_dtype_bytes(dtype);
    int is_whole = kind == KU_COLL_ALL_REDUCE || kind == KU_COLL_BROADCAST ||
                   kind == KU_COLL_REDUCE || kind == KU_COLL_SEND;
    unsigned char *at =
        memory == PRIVATE ? b->private_memory : ku_arena_part(b->arena, job->local_rank);
    struct ku_coll coll = {.kind = kind, .dtype = dtype};
    if (kind == KU_COLL_BARRIER)
        return coll;
    if (memory == PROGRAM) {
        *part = (struct ku_coll_part){
            .in.arena = b->arena->id, .out.arena = b->arena->id, .count = count};
        coll.part = part;
        coll.n_parts = 1;
        return coll;
    }
    coll.in = at;
    coll.out = kind == KU_COLL_ALL_REDUCE || kind == KU_COLL_BROADCAST ? at : at + b->max_bytes;
    coll.count = is_whole ? count : count / job->n > 0 ? count / job->n : 1;
    coll.root = kind == KU_COLL_SEND ? 1 - job->rank : 0;
    return coll;
}

static int time_kind(struct bench *b, enum ku_coll_kind kind, enum memory memory,
                     enum kumi_dtype dtype, int size)
{
    struct call call = {.fn = kind == KU_COLL_SEND ? ping_pong : run_work};
    const char *what = kind == KU_COLL_SEND ? "ping_pong" : ku_coll_kind_name(kind);
    struct ku_coll_part part;
    double ns[2];
    if ((kind == KU_COLL_SEND && b->job->n == 1) ||
        (b->opts->only && strncmp(what, b->opts->only, strlen(b->opts->only)) != 0) ||
        (b->opts->dtype && strcmp(kumi_dtype_name(dtype), b->opts->dtype) != 0))
        return 0;
    if (memory != NO_MEMORY)
        call.bytes = b->opts->bytes ? b->opts->bytes : sizes[size];
    call.work.coll = coll_of(b, kind, memory, dtype, call.bytes, &part);
    if (kind != KU_COLL_SEND) {
        struct ku_coll coll = call.work.coll;
        KU_TRY(ku_work_init(&call.work, b->job->world, &coll));
    }
    KU_TRY(time_call(b, &call, ns));
    if (kind == KU_COLL_SEND)
        ns[0] /= 2, ns[1] /= 2;
    add_row(b, what, memory_name[memory], &call, ns,
            call.bytes <= KU_INLINE_BYTES ? b->flags_ns
                                          : b->sum_ns[size] * least_traffic(kind, b->job->n) / 2);
    return 0;
}

/*
 * Cost of an operation that moves no data and does not wait: arguments, sequence number, flags,
 * deadline and flight recorder. The cost of the loop is subtracted.
 */
static int time_bookkeeping(struct bench *b)
{
    static const char what[] = "bookkeeping";
    struct call call = {.fn = run_many}, empty = {.fn = run_none};
    struct ku_comm *self = NULL;
    double ns[2], loop_ns[2];
    int status = 0;
    if (b->opts->only && strncmp(what, b->opts->only, strlen(b->opts->only)) != 0)
        return 0;
    KU_TRY(ku_comm_mesh(b->job, "bench", b->job->rank, 1, 1, &self));
    KU_TRY_OUT(ku_work_init(&call.work, self, &(struct ku_coll){.kind = KU_COLL_BARRIER}));
    KU_TRY_OUT(time_call(b, &call, ns));
    KU_TRY_OUT(time_call(b, &empty, loop_ns));
    for (int i = 0; i < 2; i++)
        ns[i] = (ns[i] - loop_ns[i]) / MANY;
    add_row(b, what, memory_name[NO_MEMORY], &call, ns, 0);
out:
    if (!ku_job_has_failed(b->job))
        KU_IGNORE(ku_comm_destroy(self), "the measurement is over");
    return status;
}

/* The limits of one host: rows of several hosts have none. */
static int time_limits(struct bench *b, int n_sizes)
{
    struct call limit = {.fn = bare_flags};
    double ns[2];
    if (b->job->n_hosts > 1)
        return 0;
    if (b->job->comm->may_spin) {
        KU_TRY(time_call(b, &limit, ns));
        b->flags_ns = ns[0];
    }
    limit.fn = bare_sum;
    for (int i = 0; i < n_sizes; i++) {
        limit.bytes = b->opts->bytes ? b->opts->bytes : sizes[i];
        KU_TRY(time_call(b, &limit, ns));
        b->sum_ns[i] = ns[0];
    }
    return 0;
}

static int time_all(struct bench *b)
{
    static const enum ku_coll_kind kinds[] = {
        KU_COLL_ALL_REDUCE, KU_COLL_REDUCE_SCATTER, KU_COLL_REDUCE,
        KU_COLL_ALL_GATHER, KU_COLL_ALL_TO_ALL,     KU_COLL_BROADCAST,
        KU_COLL_GATHER,     KU_COLL_SCATTER,        KU_COLL_SEND};
    int n_sizes = b->opts->bytes ? 1 : N_SIZES;
    KU_TRY(time_limits(b, n_sizes));
    KU_TRY(time_bookkeeping(b));
    KU_TRY(time_kind(b, KU_COLL_BARRIER, NO_MEMORY, KUMI_F32, 0));
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        int n_memories = k < 2 ? 3 : 2, n_dtypes = k < 3 ? 2 : 1; /* with programs; reductions */
        for (int h = 0; h < n_memories; h++)
            for (int d = 0; d < n_dtypes; d++)
                for (int i = 0; i < n_sizes; i++)
                    KU_TRY(time_kind(b, kinds[k], (enum memory)h, d ? KUMI_BF16 : KUMI_F32, i));
    }
    return 0;
}

int ku_bench_comm(struct ku_job *job, const struct ku_bench_comm_opts *opts,
                  struct ku_bench_comm_row *rows)
{
    struct bench *b = ku_calloc(1, sizeof *b);
    int status = 0;
    if (!b)
        return KUMI_ENOMEM;
    b->job = job;
    b->opts = opts;
    b->rows = rows;
    const int64_t bytes = opts->bytes ? opts->bytes : sizes[N_SIZES - 1];
    const int64_t min_bytes = (int64_t)sizeof(float) * job->n; /* a block has an element */
    b->max_bytes = ((bytes > min_bytes ? bytes : min_bytes) + LINE) / LINE * LINE;
    KU_TRY_OUT(opts->bytes < 0 || opts->bytes > INT64_C(1) << 34 || opts->bytes % 4
                   ? KU_ERR(KUMI_EINVAL, "bench: --bytes: %lld; give a multiple of 4 to 16 GiB",
                            (long long)opts->bytes)
                   : 0);
    b->private_memory = ku_calloc((size_t)b->max_bytes, 2);
    KU_TRY_OUT(b->private_memory ? 0 : KUMI_ENOMEM);
    memset(b->private_memory, 0, 2 * (size_t)b->max_bytes); /* populate the pages */
    KU_TRY_OUT(ku_arena_create(job, "bench", 0, 2 * (size_t)b->max_bytes + LINE, &b->arena));
    KU_TRY_OUT(time_all(b));
    status =
        b->n_rows
            ? b->n_rows
            : KU_ERR(KUMI_EINVAL,
                     "bench: %.60s: no collective of this dtype has a name with this prefix; `kumi "
                     "bench comm` lists all",
                     opts->only ? opts->only : "--dtype");
out:
    if (b->arena && !ku_job_has_failed(job))
        KU_IGNORE(ku_arena_destroy(job, b->arena), "the measurement is over");
    ku_free(b->private_memory);
    ku_free(b);
    return status;
}
