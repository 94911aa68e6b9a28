/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives against the memory roofline: an owned all-reduce is compared with a loop on the same
 * cores and the same memory that reads slice r of all copies and stores to all copies, without any
 * synchronisation.
 */
#include "comm/bench.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "comm/private.h"
#include "tensor/blocks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SAMPLES = 2001, COUNT_LINE = 16 };

struct bench {
    struct ku_job *job;
    const struct ku_arena *arena;
    float *private_memory;
    struct ku_bench_row *rows;
    int n_rows, cap;
    double ns[MAX_SAMPLES];
};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static struct ku_bench_row *add_row(struct bench *b, const char *what, const char *how,
                                    int64_t bytes, int n)
{
    struct ku_bench_row *row = b->n_rows < b->cap ? &b->rows[b->n_rows++] : NULL;
    if (!row)
        return NULL;
    qsort(b->ns, (size_t)n, sizeof *b->ns, by_value);
    *row = (struct ku_bench_row){
        .bytes = bytes, .p50_ns = b->ns[n / 2], .p99_ns = b->ns[n - 1 - n / 100]};
    row->gb_s = bytes ? (double)bytes / row->p50_ns : 0;
    snprintf(row->what, sizeof row->what, "%s", what);
    snprintf(row->how, sizeof row->how, "%s", how);
    return row;
}

/* The same traffic without flags: slice of all copies in, sum to all copies. */
static void bare_sum(struct bench *b, int64_t count)
{
    struct ku_job *job = b->job;
    const void *src[KU_MAX_LOCAL];
    void *dst[KU_MAX_LOCAL];
    int64_t begin, end;
    ku_blocks_range(count, COUNT_LINE, 0, job->n, job->rank, &begin, &end);
    for (int i = 0; i < job->n; i++)
        src[i] = dst[i] = ku_arena_part(b->arena, i) + begin * 4;
    struct ku_sum s = {
        .n_src = job->n, .n_dst = job->n, .src = src, .dst = dst, .count = end - begin};
    ku_sum(job->priv->kernels, &s);
}

static int samples_of(int64_t bytes)
{
    int64_t n = (INT64_C(1) << 29) / (bytes + 4096);
    return (int)(n > MAX_SAMPLES ? MAX_SAMPLES : n < 7 ? 7 : n);
}

/* One work, timed n times after a warm-up; ends with every rank at the same place. */
static int time_work(struct bench *b, const struct ku_coll *coll, int n)
{
    struct ku_work w;
    KU_TRY(ku_work_init(&w, b->job->world, coll));
    for (int i = -n / 10 - 2; i < n; i++) {
        int64_t from = ku_clock_ns();
        KU_TRY(ku_work_start(&w));
        KU_TRY(ku_work_wait(&w));
        if (i >= 0)
            b->ns[i] = (double)(ku_clock_ns() - from);
    }
    return ku_coll_run(b->job->world, &(struct ku_coll){.kind = KU_COLL_BARRIER});
}

static int time_small(struct bench *b)
{
    float x[2] = {0};
    struct ku_coll coll = {.kind = KU_COLL_BARRIER};
    /* A barrier takes less than two looks at the clock: time batches of ten. */
    for (int kind = 0; kind < 2; kind++) {
        struct ku_work w;
        KU_TRY(ku_work_init(&w, b->job->world, &coll));
        for (int i = -100; i < MAX_SAMPLES; i++) {
            int64_t from = ku_clock_ns();
            for (int k = 0; k < 10; k++) {
                KU_TRY(ku_work_start(&w));
                KU_TRY(ku_work_wait(&w));
            }
            if (i >= 0)
                b->ns[i] = (double)(ku_clock_ns() - from) / 10;
        }
        add_row(b, kind ? "all_reduce" : "barrier", "inline", kind ? 8 : 0, MAX_SAMPLES);
        coll = (struct ku_coll){.kind = KU_COLL_ALL_REDUCE, .in = x, .out = x, .count = 2};
    }
    return 0;
}

static int time_size(struct bench *b, int64_t bytes)
{
    int n = samples_of(bytes);
    struct ku_ref ref = {.arena = b->arena->id};
    struct ku_coll_part part = {.in = ref, .out = ref, .count = bytes / 4, .block_count = 4096};
    struct ku_coll coll = {.kind = KU_COLL_ALL_REDUCE, .part = &part, .n_parts = 1};
    for (int i = -2; i < n; i++) {
        int64_t from = ku_clock_ns();
        bare_sum(b, bytes / 4);
        if (i >= 0)
            b->ns[i] = (double)(ku_clock_ns() - from);
    }
    const struct ku_bench_row *bare = add_row(b, "sum alone", "owned", bytes, n);
    KU_TRY(time_work(b, &coll, n));
    struct ku_bench_row *row = add_row(b, "all_reduce", "owned", bytes, n);
    if (row && bare)
        row->ratio = bare->p50_ns / row->p50_ns;
    coll.kind = KU_COLL_REDUCE_SCATTER;
    KU_TRY(time_work(b, &coll, n));
    add_row(b, "reduce_scatter", "owned", bytes, n);
    coll = (struct ku_coll){.kind = KU_COLL_ALL_REDUCE,
                            .in = b->private_memory,
                            .out = b->private_memory,
                            .count = bytes / 4};
    KU_TRY(time_work(b, &coll, n));
    add_row(b, "all_reduce", "private", bytes, n);
    return 0;
}

int ku_bench_comm(struct ku_job *job, int64_t max_bytes, struct ku_bench_row *rows, int cap)
{
    struct bench *b = ku_calloc(1, sizeof *b);
    int status = 0;
    if (!b)
        return KUMI_ENOMEM;
    if (max_bytes <= 0)
        max_bytes = 64 << 20;
    b->job = job;
    b->rows = rows;
    b->cap = cap;
    b->private_memory = ku_calloc((size_t)max_bytes, 1);
    status = b->private_memory ? 0 : KUMI_ENOMEM;
    if (!status)
        status = ku_arena_create(job, "bench", 0, (size_t)max_bytes, &b->arena);
    if (!status)
        status = time_small(b);
    for (int64_t bytes = 4096; bytes <= max_bytes && !status; bytes *= 4)
        status = time_size(b, bytes);
    if (b->arena && !ku_job_has_failed(job))
        ku_arena_destroy(job, b->arena);
    int n = b->n_rows;
    ku_free(b->private_memory);
    ku_free(b);
    return status < 0 ? status : n;
}
