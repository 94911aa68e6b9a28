/* SPDX-License-Identifier: Apache-2.0 */
/* What a push may say: numbers that are not finite, in each form, dense and as rows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "remote/contents.h"
#include "remote/sparse.h"
#include "tensor/blocks.h"

#define DENSE(wire_, n)                                                                            \
    {                                                                                              \
        .name = #wire_, .dtype = KUMI_F32, .wire = KUMI_##wire_, .count = n                        \
    }
enum { INT8 = 6, TOPK, N_ENTRIES, SPACE = 16384 };
static struct ku_remote_entry entry[N_ENTRIES] = {
    DENSE(F32, 1300),
    DENSE(BF16, 40),
    DENSE(F16, 40),
    DENSE(F32, 0),
    DENSE(F64, 20),
    DENSE(I64, 144),
    {.name = "int8", .wire = KUMI_F32, .form = KU_REMOTE_INT8, .count = 5000},
    {.name = "topk", .wire = KUMI_F32, .form = KU_REMOTE_TOPK, .topk = 3, .count = 4100}};
static struct ku_remote_part part[N_ENTRIES];
static unsigned char space[SPACE], body[KU_SPARSE_MAX_BYTES];

/* The parts one after another; of the f32 tensor this server has the elements from 4,096 on. */
static size_t lay_out(void)
{
    size_t at = 0;
    for (int i = 0; i < N_ENTRIES; i++) {
        const int64_t begin = i == 0 ? KU_BLOCK_COUNT : 0;
        part[i] = (struct ku_remote_part){begin, begin + entry[i].count, at};
        at += (ku_remote_wire_bytes(&entry[i], entry[i].count) + 63) & ~(size_t)63;
    }
    assert_true(at <= SPACE);
    return at;
}

/* Zeros, and valid indices of topk: 0, 1, 2 of both chunks. */
static void clear(void)
{
    const size_t each = ku_remote_record_bytes(&entry[TOPK], KU_BLOCK_COUNT);
    memset(space, 0, sizeof space);
    for (int chunk = 0; chunk < 2; chunk++)
        for (uint16_t i = 0; i < 3; i++)
            memcpy(space + part[TOPK].offset + (size_t)chunk * each + 12 + 2 * i, &i, 2);
}

static int check(const struct ku_contents *c, size_t offset, size_t bytes, bool is_sparse)
{
    struct ku_contents_range r = {3, 7, offset, bytes, space + offset, is_sparse};
    size_t extent;
    if (is_sparse) {
        assert_true(ku_sparse_encode(space + offset, bytes, body, &extent) > 0);
        assert_int_equal(extent, bytes);
        r.data = body;
    }
    return ku_contents_check(c, &r);
}

static void not_finite(void **state)
{
    static const struct {
        int entry;
        size_t at; /* bytes of its part */
        uint32_t bits;
        int bytes;
        const char *text; /* NULL: it is taken */
    } row[] = {
        {0, 0, 0x7fc00000, 4, "element 4096 of F32 is NaN"},
        {0, 28, 0xff800000, 4, "push of worker 3 for step 7: element 4103 of F32 is infinite"},
        {0, 1299 * 4, 0x7f800001, 4, "element 5395 of F32 is NaN"},
        {0, 64, 0x7f7fffff, 4, NULL},
        {1, 78, 0x7f80, 2, "element 39 of BF16 is infinite"},
        {1, 2, 0xffc1, 2, "element 1 of BF16 is NaN"},
        {1, 4, 0x7c00, 2, NULL},
        {2, 4, 0x7c00, 2, "element 2 of F16 is infinite"},
        {2, 6, 0xfe00, 2, "element 3 of F16 is NaN"},
        {2, 8, 0x7bff, 2, NULL},
        {4, 4, 0x7ff00001, 4, "element 0 of F64 is NaN"},
        {4, 0, 0x7ff00000, 4, NULL},
        {5, 8 * 68, 1, 4, "element 0 of I64 is infinite"}, /* exact sums */
        {5, 8 * 142, 2, 4, "element 1 of I64 is NaN"},
        {5, 8 * 143, 2, 4, NULL},
        {5, 8 * 67, 0x7fc00000, 4, NULL},
        {INT8, 0, 0x7fc00000, 4, "the scale of the chunk from element 0 of int8 is NaN"},
        {INT8, 4100, 0x7f800000, 4, "the scale of the chunk from element 4096 of int8 is infinite"},
        {INT8, 4100, 0x7c000000, 4, "the scale of the chunk from element 4096 of int8 is infinite"},
        {INT8, 4100, 0x7bffffff, 4, NULL},
        {INT8, 4, 0x7fc00000, 4, NULL}, /* elements */
        {TOPK, 8, 0x7fc00000, 4, "element 2 of topk is NaN"},
        {TOPK, 20, 0x7f800000, 4, "element 4096 of topk is infinite"},
        {TOPK, 8, 0x7f000000, 4, NULL},
    };
    (void)state;
    const size_t all = lay_out();
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        for (int form = 0; form < 4; form++) {
            const bool is_sparse = form & 1, has_topk = form < 2;
            const struct ku_remote_layout l = {.n_push = has_topk ? N_ENTRIES : TOPK,
                                               .push = entry};
            struct ku_contents c = {&l, part, has_topk, true};
            const size_t bytes = has_topk ? all : part[TOPK].offset;
            if (!has_topk && row[i].entry == TOPK)
                continue;
            clear();
            memcpy(space + part[row[i].entry].offset + row[i].at, &row[i].bits,
                   (size_t)row[i].bytes);
            const int status = check(&c, 0, bytes, is_sparse);
            if (status != (row[i].text ? KUMI_ENUMERIC : KUMI_OK) ||
                (row[i].text && !strstr(ku_err_get()->text, row[i].text)))
                fail_msg("row %zu, form %d: %d %s", i, form, status, ku_err_get()->text);
            /* beside the number: from the next part on */
            const size_t next = row[i].entry < TOPK ? part[row[i].entry + 1].offset : 0;
            if (next && next < bytes)
                assert_int_equal(check(&c, next, bytes - next, false), 0);
            c.is_finite = false;
            assert_int_equal(check(&c, 0, bytes, is_sparse), 0);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(not_finite)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
