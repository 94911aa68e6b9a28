/* SPDX-License-Identifier: Apache-2.0 */
/* Pushes of which most bytes are zeros: encoded, checked, expanded. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/math/random.h"
#include "base/mem.h"
#include "remote/sparse.h"

/* Sends all of `data` as a worker does; returns the bytes that travel. */
static size_t send(const unsigned char *data, size_t bytes, unsigned char *body, unsigned char *got)
{
    size_t sent = 0;
    memset(got, 0xcc, bytes);
    for (size_t at = 0, extent, is; at < bytes; at += extent) {
        const size_t n = ku_sparse_encode(data + at, bytes - at, body, &extent);
        if (n == 0) {
            extent = bytes - at < KU_SPARSE_MAX_BYTES ? bytes - at : KU_SPARSE_MAX_BYTES;
            memcpy(got + at, data + at, extent);
            sent += extent;
            continue;
        }
        assert_true(n <= KU_SPARSE_MAX_BYTES && extent <= KU_SPARSE_MAX_EXTENT_BYTES);
        assert_true(extent % KU_SPARSE_CELL_BYTES == 0 || at + extent == bytes);
        assert_int_equal(ku_sparse_check(body, n, &is), 0);
        assert_int_equal(is, extent);
        ku_sparse_expand(body, got + at);
        sent += n;
    }
    return sent;
}

/* Rows of an embedding, of any width, some of them touched: the bytes arrive, the zeros do not. */
static void rows(void **state)
{
    static const struct {
        size_t row_bytes, n_rows;
        uint32_t one_in; /* of the rows is touched; 0: none */
    } row[] = {{3072, 10000, 100}, {64, 4096, 7},   {36, 3000, 50},  {4, 3, 1},       {4, 3, 0},
               {192, 1000, 1},     {3072, 8000, 2}, {64, 600000, 0}, {128, 50000, 2}, {100, 1, 0}};
    unsigned char *body = ku_malloc(KU_SPARSE_MAX_BYTES);
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const size_t bytes = row[i].row_bytes * row[i].n_rows;
        unsigned char *data = ku_calloc(bytes, 1), *got = ku_malloc(bytes);
        size_t touched = 0;
        for (size_t r = 0; r < row[i].n_rows; r++)
            if (row[i].one_in && ku_random_u32(5, 0, (uint32_t)i, r) % row[i].one_in == 0) {
                memset(data + r * row[i].row_bytes, 1 + (int)(r % 250), row[i].row_bytes);
                touched += row[i].row_bytes + 128 + 8; /* the cells it begins and ends in, a run */
            }
        const size_t sent = send(data, bytes, body, got);
        assert_memory_equal(got, data, bytes);
        assert_true(sent <= bytes && (row[i].one_in == 1 || bytes < 128 || sent <= touched + 64));
        ku_free(data);
        ku_free(got);
    }
    ku_free(body);
}

/* Cells that a source selects, of data that it reads. */
struct cells {
    const unsigned char *data, *travels; /* [bytes], [cells] */
    int status;
};
static bool travels(void *ctx, size_t at, size_t bytes)
{
    const struct cells *c = ctx;
    assert_true(at % KU_SPARSE_CELL_BYTES == 0 && bytes > 0 && bytes <= KU_SPARSE_CELL_BYTES);
    return c->travels[at / KU_SPARSE_CELL_BYTES];
}
static int copy(void *ctx, size_t at, size_t bytes, void *to)
{
    const struct cells *c = ctx;
    memcpy(to, c->data + at, bytes);
    return c->status;
}

/* What changed is written over what was there, and nothing else; errors of reads are passed on. */
static void merged(void **state)
{
    enum { BYTES = 3 * 64 * 1000 + 20, CELLS = BYTES / 64 + 1 };
    unsigned char *data = ku_malloc(BYTES), *was = ku_malloc(BYTES), *got = ku_malloc(BYTES);
    unsigned char *flag = ku_malloc(CELLS), *body = ku_malloc(KU_SPARSE_MAX_BYTES);
    (void)state;
    for (uint32_t one_in = 1; one_in < 2000; one_in = one_in * 3 + 1) {
        for (size_t i = 0; i < BYTES; i++)
            was[i] = got[i] = data[i] = (unsigned char)ku_random_u32(1, 0, one_in, i);
        for (size_t c = 0; c < CELLS; c++) {
            flag[c] = ku_random_u32(2, 0, one_in, c) % one_in == 0;
            for (size_t i = c * 64; flag[c] && i < c * 64 + 64 && i < BYTES; i++)
                data[i] = (unsigned char)(was[i] + 1 + i % 200);
        }
        struct cells from = {data, flag, 0};
        const struct ku_sparse_source s = {&from, travels, copy};
        size_t n, extent, is;
        assert_int_equal(ku_sparse_build(&s, BYTES, body, &n, &extent), 0);
        assert_true((n == 0) == (one_in == 1));
        if (n == 0)
            continue;
        assert_int_equal(ku_sparse_check(body, n, &is), 0);
        assert_true(is == extent && extent == BYTES);
        ku_sparse_merge(body, got);
        assert_memory_equal(got, data, BYTES);
        from.status = KUMI_EPEER;
        assert_int_equal(ku_sparse_build(&s, BYTES, body, &n, &extent), KUMI_EPEER);
    }
    ku_free(data), ku_free(was), ku_free(got), ku_free(flag), ku_free(body);
}

/* Any bytes: what is refused has one line that says why. */
static void refused(void **state)
{
    static const struct {
        size_t bytes;
        uint64_t extent, runs;
        uint32_t pair[4];
        const char *text;
    } row[] = {
        {16, 1 << 20, 0, {0}, ""},
        {16, 1, 0, {0}, ""},
        {16 + 8 + 64, 640, 1, {9, 1}, ""},
        {16 + 8 + 10, 74, 1, {1, 1}, ""}, /* the last cell has 10 bytes */
        {16 + 16 + 128, 640, 2, {3, 1, 4, 1}, ""},
        {15, 64, 0, {0}, "15 bytes; give 16 to"},
        {16, 0, 0, {0}, "of 0 bytes"},
        {16, (16 << 20) + 1, 0, {0}, "of 16777217 bytes; give 1 to 16777216"},
        {16, UINT64_MAX, 0, {0}, "of 18446744073709551615 bytes"},
        {24, 640, 2, {0, 1}, "2 runs do not fit into 24 bytes"},
        {24, 640, UINT64_MAX, {0, 1}, "do not fit"},
        {16 + 8 + 64, 640, 1, {10, 1}, "run 0 has cells 10 to 11, after cell 0, of 10"},
        {16 + 8 + 64, 640, 1, {9, 2}, "run 0 has cells 9 to 11"},
        {16 + 8 + 64, 640, 1, {1, UINT32_MAX}, "run 0 has cells 1 to 4294967296"},
        {16 + 8 + 64, 640, 1, {1, 0}, "run 0 has cells 1 to 1"},
        {16 + 16 + 128, 640, 2, {3, 1, 3, 1}, "run 1 has cells 3 to 4, after cell 4"},
        {16 + 16 + 128, 640, 2, {5, 1, 3, 1}, "run 1 has cells 3 to 4, after cell 6"},
        {16 + 8 + 63, 640, 1, {9, 1}, "87 bytes, of which the runs need 88"},
        {16 + 8 + 64, 74, 1, {1, 1}, "88 bytes, of which the runs need 34"},
        {16 + 8, 640, 0, {0}, "24 bytes, of which the runs need 16"},
    };
    unsigned char body[256];
    size_t extent;
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const uint64_t head[2] = {row[i].extent, row[i].runs};
        memset(body, 7, sizeof body);
        memcpy(body, head, sizeof head);
        memcpy(body + 16, row[i].pair, sizeof row[i].pair);
        const int is = ku_sparse_check(body, row[i].bytes, &extent);
        const char *text = is < 0 ? ku_err_get()->text : "";
        if ((is < 0) != (row[i].text[0] != '\0') || strstr(text, row[i].text) == NULL)
            fail_msg("row %zu: %d %s", i, is, text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows), cmocka_unit_test(merged),
                                       cmocka_unit_test(refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
