/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/sparse.h"

#include <stdbool.h>
#include <string.h>

#include "base/err.h"

enum { CELL = KU_SPARSE_CELL_BYTES, HEAD = KU_SPARSE_HEAD_BYTES, MAX_RUNS = 16384 };

struct run {
    uint32_t first, cells;
};
_Static_assert(sizeof(struct run) == 8, "no padding");

static size_t cell_bytes(size_t extent, size_t cell)
{
    return extent - cell * CELL < CELL ? extent - cell * CELL : CELL;
}

/*
 * The runs of the longest beginning of the data whose body fits into a frame. *data_bytes: of their
 * cells.
 */
static uint32_t find_runs(const struct ku_sparse_source *s, size_t bytes, struct run *run,
                          size_t *extent, size_t *data_bytes)
{
    const size_t most =
        bytes < KU_SPARSE_MAX_EXTENT_BYTES ? bytes : (size_t)KU_SPARSE_MAX_EXTENT_BYTES;
    uint32_t n = 0;
    size_t cell = 0, sum = 0;
    for (; cell * CELL < most; cell++) {
        const size_t each = cell_bytes(most, cell);
        if (!s->travels(s->ctx, cell * CELL, each))
            continue;
        const bool joins = n && run[n - 1].first + run[n - 1].cells == cell;
        if ((!joins && n == MAX_RUNS) ||
            HEAD + (n + !joins) * sizeof *run + sum + each > KU_SPARSE_MAX_BYTES)
            break;
        if (!joins)
            run[n++] = (struct run){.first = (uint32_t)cell};
        run[n - 1].cells++;
        sum += each;
    }
    *extent = cell * CELL < most ? cell * CELL : most;
    *data_bytes = sum;
    return n;
}

int ku_sparse_build(const struct ku_sparse_source *s, size_t bytes, void *body, size_t *body_bytes,
                    size_t *extent)
{
    struct run run[MAX_RUNS];
    unsigned char *to = (unsigned char *)body + HEAD;
    size_t sum;
    const uint32_t n = find_runs(s, bytes, run, extent, &sum);
    const uint64_t head[2] = {*extent, n};
    const size_t all = HEAD + n * sizeof *run + sum;
    *body_bytes = all > *extent / 8 * 7 ? 0 : all;
    if (*body_bytes == 0)
        return KUMI_OK;
    memcpy(body, head, sizeof head);
    memcpy(to, run, n * sizeof *run);
    to += n * sizeof *run;
    for (uint32_t i = 0; i < n; i++) {
        const size_t at = (size_t)run[i].first * CELL;
        const size_t end = at + (size_t)run[i].cells * CELL;
        const size_t length = (end < *extent ? end : *extent) - at;
        KU_TRY(s->read(s->ctx, at, length, to));
        to += length;
    }
    return KUMI_OK;
}

/* Data in memory */
struct memory {
    const unsigned char *data;
};

static bool is_not_zero(void *ctx, size_t at, size_t bytes)
{
    const struct memory *from = ctx;
    uint64_t word[CELL / 8] = {0}, any = 0;
    memcpy(word, from->data + at, bytes);
    for (int i = 0; i < CELL / 8; i++)
        any |= word[i];
    return any != 0;
}

static int copy(void *ctx, size_t at, size_t bytes, void *to)
{
    const struct memory *from = ctx;
    memcpy(to, from->data + at, bytes);
    return KUMI_OK;
}

size_t ku_sparse_encode(const void *data, size_t bytes, void *body, size_t *extent)
{
    struct memory from = {data};
    const struct ku_sparse_source s = {&from, is_not_zero, copy};
    size_t all;
    const int status = ku_sparse_build(&s, bytes, body, &all, extent);
    KU_ASSERT(status == KUMI_OK);
    return all;
}

int ku_sparse_check(const void *body, size_t bytes, size_t *extent)
{
    const unsigned char *at = body;
    uint64_t head[2], end = 0, sum = 0;
    if (bytes < HEAD || bytes > KU_SPARSE_MAX_BYTES)
        return KU_ERR(KUMI_EINVAL, "ps: rows: %zu bytes; give %d to %d", bytes, HEAD,
                      KU_SPARSE_MAX_BYTES);
    memcpy(head, at, sizeof head);
    if (head[0] == 0 || head[0] > KU_SPARSE_MAX_EXTENT_BYTES)
        return KU_ERR(KUMI_EINVAL, "ps: rows: of %llu bytes; give 1 to %d",
                      (unsigned long long)head[0], KU_SPARSE_MAX_EXTENT_BYTES);
    if (head[1] > (bytes - HEAD) / sizeof(struct run))
        return KU_ERR(KUMI_EINVAL, "ps: rows: %llu runs do not fit into %zu bytes",
                      (unsigned long long)head[1], bytes);
    const uint64_t n_cells = (head[0] + CELL - 1) / CELL;
    for (uint64_t i = 0; i < head[1]; i++) {
        struct run run;
        memcpy(&run, at + HEAD + i * sizeof run, sizeof run);
        if (run.first < end || run.cells == 0 || run.first >= n_cells ||
            run.cells > n_cells - run.first)
            return KU_ERR(KUMI_EINVAL,
                          "ps: rows: run %llu has cells %u to %llu, after cell %llu, of %llu; runs "
                          "ascend, and do not overlap",
                          (unsigned long long)i, run.first,
                          (unsigned long long)run.first + run.cells, (unsigned long long)end,
                          (unsigned long long)n_cells);
        end = (uint64_t)run.first + run.cells;
        sum += (uint64_t)run.cells * CELL;
    }
    if (end == n_cells && head[1])
        sum -= n_cells * CELL - head[0];
    if (HEAD + head[1] * sizeof(struct run) + sum != bytes)
        return KU_ERR(KUMI_EINVAL, "ps: rows: %zu bytes, of which the runs need %llu", bytes,
                      (unsigned long long)(HEAD + head[1] * sizeof(struct run) + sum));
    *extent = head[0];
    return KUMI_OK;
}

bool ku_sparse_next(const void *body, struct ku_sparse_run *x)
{
    const unsigned char *runs = (const unsigned char *)body + HEAD;
    uint64_t head[2];
    struct run run;
    memcpy(head, body, sizeof head);
    if (x->next == head[1])
        return false;
    x->data = x->next ? x->data + x->bytes : runs + head[1] * sizeof run;
    memcpy(&run, runs + x->next++ * sizeof run, sizeof run);
    x->at = (size_t)run.first * CELL;
    const size_t end = x->at + (size_t)run.cells * CELL;
    x->bytes = (end < head[0] ? end : head[0]) - x->at;
    return true;
}

static void write_cells(const void *body, unsigned char *out, bool has_zeros)
{
    struct ku_sparse_run x = {0};
    uint64_t extent;
    size_t done = 0;
    memcpy(&extent, body, sizeof extent);
    for (; ku_sparse_next(body, &x); done = x.at + x.bytes) {
        if (has_zeros)
            memset(out + done, 0, x.at - done);
        memcpy(out + x.at, x.data, x.bytes);
    }
    if (has_zeros)
        memset(out + done, 0, extent - done);
}

void ku_sparse_expand(const void *body, void *to)
{
    write_cells(body, to, true);
}

void ku_sparse_merge(const void *body, void *to)
{
    write_cells(body, to, false);
}
