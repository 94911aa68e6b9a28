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

static bool is_zero(const unsigned char *at, size_t bytes)
{
    uint64_t word[CELL / 8] = {0}, any = 0;
    memcpy(word, at, bytes);
    for (int i = 0; i < CELL / 8; i++)
        any |= word[i];
    return any == 0;
}

static size_t cell_bytes(size_t extent, size_t cell)
{
    return extent - cell * CELL < CELL ? extent - cell * CELL : CELL;
}

/*
 * The runs of the longest beginning of the data whose body fits into a frame. *data_bytes: of their
 * cells.
 */
static uint32_t find_runs(const unsigned char *data, size_t bytes, struct run *run, size_t *extent,
                          size_t *data_bytes)
{
    const size_t most =
        bytes < KU_SPARSE_MAX_EXTENT_BYTES ? bytes : (size_t)KU_SPARSE_MAX_EXTENT_BYTES;
    uint32_t n = 0;
    size_t cell = 0, sum = 0;
    for (; cell * CELL < most; cell++) {
        const size_t each = cell_bytes(most, cell);
        if (is_zero(data + cell * CELL, each))
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

size_t ku_sparse_encode(const void *data, size_t bytes, void *body, size_t *extent)
{
    struct run run[MAX_RUNS];
    const unsigned char *from = data;
    unsigned char *to = (unsigned char *)body + HEAD;
    size_t sum;
    const uint32_t n = find_runs(from, bytes, run, extent, &sum);
    const uint64_t head[2] = {*extent, n};
    const size_t all = HEAD + n * sizeof *run + sum;
    if (all > *extent / 8 * 7)
        return 0;
    memcpy(body, head, sizeof head);
    memcpy(to, run, n * sizeof *run);
    to += n * sizeof *run;
    for (uint32_t i = 0; i < n; i++) {
        const size_t at = (size_t)run[i].first * CELL;
        const size_t end = at + (size_t)run[i].cells * CELL;
        const size_t length = (end < *extent ? end : *extent) - at;
        memcpy(to, from + at, length);
        to += length;
    }
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

void ku_sparse_expand(const void *body, void *to)
{
    const unsigned char *runs = (const unsigned char *)body + HEAD, *from;
    unsigned char *out = to;
    uint64_t head[2], done = 0;
    memcpy(head, body, sizeof head);
    from = runs + head[1] * sizeof(struct run);
    for (uint64_t i = 0; i < head[1]; i++) {
        struct run run;
        memcpy(&run, runs + i * sizeof run, sizeof run);
        const uint64_t at = (uint64_t)run.first * CELL, end = at + (uint64_t)run.cells * CELL;
        const uint64_t length = (end < head[0] ? end : head[0]) - at;
        memset(out + done, 0, at - done);
        memcpy(out + at, from, length);
        from += length;
        done = at + length;
    }
    memset(out + done, 0, head[0] - done);
}
