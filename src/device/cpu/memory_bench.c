/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams over two arrays that exceed the caches. Threads take tiles of 1 MiB:
 *
 *     read    OR of all words         | x x x x x x x x |   in order, or four quarters at once
 *     write   y = constant            | y y y y y y y y |
 *     copy    y = x                   | x x x x x x x x |  | y y y y y y y y |
 *     triad   y = a + 3 b             | a a a a b b b b |  | y y y y - - - - |
 *
 * Hardware prefetch follows a page at a time, so four runs in turn read up to 1.7 times as fast as
 * one. A plain store reads its line first; a non-temporal one does not and bypasses the caches.
 * Loops use 16-byte vectors, which every x86-64 has: memory, not the loop, limits a core (vectors
 * of 64 bytes read 5 % faster).
 */
#include "device/memory_bench.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "device/cpu/bench.h"
#include "device/cpu/cpu.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum {
    ARRAY_BYTES = 128 << 20, /* far more than a core's share of the last-level cache */
    TILE_BYTES = 1 << 20,
    N_TILES = ARRAY_BYTES / TILE_BYTES,
    UNROLL = 4,
    MEETINGS = 16, /* timed together: a reading of the clock takes as long as one */
    MEET_TRIES = 63,
    MEET_NS = 50 * 1000 * 1000, /* no try begins later */
    N_SPINS = 1 << 12
};

typedef float quad __attribute__((vector_size(16), may_alias));
typedef int64_t word_pair __attribute__((vector_size(16), may_alias));

enum stream { READ, WRITE, COPY, TRIAD };
struct memory_job {
    struct ku_pool *pool;
    float *x, *y;
    enum stream kind;
    int is_other;         /* reads: four runs at once; writes: non-temporal stores */
    atomic_llong seen;    /* keeps reads alive */
    atomic_llong arrived; /* of all meetings */
};

static inline void store(quad *to, quad v, int is_past)
{
#if defined(__x86_64__)
    if (is_past) {
        _mm_stream_ps((float *)to, (__m128)v);
        return;
    }
#else
    (void)is_past;
#endif
    *to = v;
}

static inline int64_t read_tile(const float *x, size_t n_runs)
{
    const word_pair *from = (const void *)x;
    const size_t n = TILE_BYTES / sizeof *from / n_runs;
    word_pair seen[UNROLL] = {{0}};
    for (size_t i = 0; i < n; i += UNROLL)
        for (size_t run = 0; run < n_runs; run++)
            for (size_t k = 0; k < UNROLL; k++)
                seen[k] |= from[run * n + i + k];
    seen[0] |= seen[1] | seen[2] | seen[3];
    return seen[0][0] | seen[0][1];
}

static inline void write_tile(float *y, const float *a, const float *b, enum stream kind,
                              int is_past)
{
    const quad *left = (const void *)a, *right = (const void *)b;
    quad *to = (void *)y;
    for (size_t i = 0; i < TILE_BYTES / sizeof *to; i += UNROLL)
        for (size_t k = i; k < i + UNROLL; k++) {
            quad v = {1, 1, 1, 1};
            if (kind == COPY)
                v = left[k];
            if (kind == TRIAD)
                v = left[k] + right[k] * 3.0f;
            store(to + k, v, is_past);
        }
    if (is_past)
        ku_cpu_fence();
}

static void stream_tile(void *ctx, int64_t tile, int thread)
{
    struct memory_job *j = ctx;
    const size_t at = (size_t)tile * (TILE_BYTES / sizeof(float));
    const float *a = j->x + at, *b = a + ARRAY_BYTES / 2 / sizeof(float); /* b: of the triad */
    float *y = j->y + at;
    (void)thread;
    switch (j->kind) { /* constants, so that each loop is compiled by itself */
    case READ:
        atomic_fetch_or(&j->seen, j->is_other ? read_tile(a, 4) : read_tile(a, 1));
        return;
    case WRITE:
        j->is_other ? write_tile(y, a, b, WRITE, 1) : write_tile(y, a, b, WRITE, 0);
        return;
    case COPY:
        j->is_other ? write_tile(y, a, b, COPY, 1) : write_tile(y, a, b, COPY, 0);
        return;
    case TRIAD:
        j->is_other ? write_tile(y, a, b, TRIAD, 1) : write_tile(y, a, b, TRIAD, 0);
        return;
    }
}

static struct ku_spread rate_of(struct memory_job *j, enum stream kind, int is_other)
{
    static const int n_accesses[] = {[READ] = 1, [WRITE] = 1, [COPY] = 2, [TRIAD] = 3};
    const int64_t n_tiles = kind == TRIAD ? N_TILES / 2 : N_TILES;
    int64_t ns[KU_PEAK_TRIES];
    j->kind = kind, j->is_other = is_other;
    for (int i = 0; i < KU_PEAK_TRIES; i++) {
        ns[i] = -ku_clock_ns();
        ku_pool_run(j->pool, n_tiles, stream_tile, j, NULL, NULL);
        ns[i] += ku_clock_ns();
    }
    return ku_spread_of(ns, KU_PEAK_TRIES, (double)(n_accesses[kind] * n_tiles * TILE_BYTES));
}

static struct ku_spread better_of(struct memory_job *j, enum stream kind)
{
    struct ku_spread one = rate_of(j, kind, 0), other = rate_of(j, kind, 1);
    return other.max > one.max ? other : one;
}

/* One tile per thread: a thread that waits in its tile takes no other, so each thread gets one. */
static void meet_tile(void *ctx, int64_t tile, int thread)
{
    struct memory_job *j = ctx;
    const long long n = ku_pool_n_threads(j->pool), at = atomic_fetch_add(&j->arrived, 1);
    (void)tile, (void)thread;
    for (int i = 0; atomic_load(&j->arrived) < (at / n + 1) * n; i++)
        if (i > N_SPINS)
            sched_yield();
}

static struct ku_spread meet(struct memory_job *j)
{
    int64_t ns[MEET_TRIES], begin = ku_clock_ns();
    int n = 0;
    do {
        ns[n] = -ku_clock_ns();
        for (int i = 0; i < MEETINGS; i++)
            ku_pool_run(j->pool, ku_pool_n_threads(j->pool), meet_tile, j, NULL, NULL);
        ns[n++] += ku_clock_ns();
    } while (n < MEET_TRIES && ku_clock_ns() - begin < MEET_NS);
    const struct ku_spread per_s = ku_spread_of(ns, n, MEETINGS);
    return (struct ku_spread){1e9 / per_s.max, 1e9 / per_s.median, 1e9 / per_s.min};
}

int ku_bench_memory(const struct ku_device_opts *opts, struct ku_memory_rates *out)
{
    const struct ku_pool_opts pool = {.n_threads = opts->n_threads,
                                      .n_runnable_threads = opts->n_runnable_threads,
                                      .n_cpus = opts->n_cpus};
    struct memory_job j = {0};
    int status = KUMI_ENOMEM;
    KU_TRY(ku_pool_create(&pool, &j.pool));
    j.x = ku_malloc_aligned(4096, ARRAY_BYTES);
    j.y = ku_malloc_aligned(4096, ARRAY_BYTES);
    if (j.x == NULL || j.y == NULL)
        goto out;
    memset(j.x, 0, ARRAY_BYTES);
    memset(j.y, 0, ARRAY_BYTES);
    *out = (struct ku_memory_rates){.read = better_of(&j, READ),
                                    .write = better_of(&j, WRITE),
                                    .copy = better_of(&j, COPY),
                                    .triad = better_of(&j, TRIAD),
                                    .meet_ns = meet(&j)};
    status = KUMI_OK;
out:
    ku_free(j.x);
    ku_free(j.y);
    ku_pool_destroy(j.pool);
    return status;
}
