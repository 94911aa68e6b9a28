/* SPDX-License-Identifier: Apache-2.0 */
/* links: comm job tensor base */
/* The reduction kernels: every instruction set gives the bits of the base one; the tree; wires;
 * NaN; blocks and owners. */
#include "base/cpu/cpu_features.h"
#include "base/mem.h"
#include "base/math/random.h"
#include "comm/sum.h"
#include "tensor/blocks.h"
#include "tensor/dtype.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

enum { COUNT = 2501, MAX_SRC = 11 };

static void fill_random(void *at, enum kumi_dtype dtype, uint32_t stream)
{
    for (int64_t i = 0; i < COUNT; i++) {
        double x = (double)ku_random_normal(3, 0, stream, (uint64_t)i) * 8;
        if (dtype == KUMI_U8)
            x = fabs(x);
        ku_store_f64(at, dtype, i, x);
    }
    if (dtype == KUMI_F32) {
        ((float *)at)[7] = NAN;
        ((float *)at)[8] = -0.0F;
        ((float *)at)[9] = INFINITY;
    }
    if (dtype == KUMI_BF16) {
        const uint16_t odd[] = {0x7fc1, 0x7f80, 0xff80, 0x0001, 0x8001, 0x0080, 0x7f7f, 0xff81};
        for (uint32_t i = 0; i < 64; i++) /* each with each, in either half */
            ((uint16_t *)at)[i + i % 2] = odd[stream ? i / 8 : i % 8];
    }
}

static void test_sets_agree(void **state)
{
    static double a[COUNT], b[COUNT], out[COUNT], out2[COUNT], want[COUNT];
    const struct ku_sum_kernels *sets[] = {&ku_sum_avx2, &ku_sum_avx512};
    const enum ku_isa needs[] = {KU_ISA_AVX2, KU_ISA_AVX512};
    (void)state;
    for (int s = 0; s < 2; s++) {
        if (ku_cpu_isa() < needs[s])
            continue;
        for (int d = 0; d < KUMI_N_DTYPES; d++) {
            for (int op = 0; op < KU_N_PAIRS && ku_sum_base.pair[d][op]; op++) {
                fill_random(a, (enum kumi_dtype)d, 0);
                fill_random(b, (enum kumi_dtype)d, 1);
                size_t bytes = COUNT * kumi_dtype_bytes((enum kumi_dtype)d);
                ku_sum_base.pair[d][op](want, NULL, a, b, COUNT);
                sets[s]->pair[d][op](out, out2, a, b, COUNT);
                assert_memory_equal(out, want, bytes);
                assert_memory_equal(out2, want, bytes);
                sets[s]->pair[d][op](b, a, a, b, COUNT); /* in place, crosswise */
                assert_memory_equal(a, want, bytes);
                assert_memory_equal(b, want, bytes);
            }
        }
    }
}

/* Level by level, as the rule is written. */
static void naive_tree(float *x, int n, enum kumi_dtype wire)
{
    for (int i = 0; i < n && wire == KUMI_BF16; i++)
        x[i] = ku_bf16_to_f32(ku_bf16_from_f32(x[i]));
    while (n > 1) {
        for (int i = 0; i < n / 2; i++) {
            x[i] = x[2 * i] + x[2 * i + 1];
            if (wire == KUMI_BF16)
                x[i] = ku_bf16_to_f32(ku_bf16_from_f32(x[i]));
        }
        if (n % 2)
            x[n / 2] = x[n - 1];
        n = (n + 1) / 2;
    }
}

/* One destination, all sources in place, and past the caches to odd addresses: the same bits. */
static void check_forms(const struct ku_sum *like, const float *want)
{
    static float copy[MAX_SRC][COUNT];
    static unsigned char odd[3][COUNT * sizeof(float) + 1];
    void *to[MAX_SRC];
    struct ku_sum s = *like;
    s.dst = to;
    for (int r = 0; r < s.n_src; r++)
        to[r] = memcpy(copy[r], like->src[r], sizeof copy[r]);
    s.src = (const void *const *)to;
    s.n_dst = s.n_src;
    ku_sum(ku_sum_choose(), &s);
    for (int r = 0; r < s.n_src; r++)
        assert_memory_equal(copy[r], want, sizeof copy[r]);
    s.src = like->src;
    for (s.n_dst = 1; s.n_dst <= 3; s.n_dst += 2) {
        for (s.n_streamed = 0; s.n_streamed <= s.n_dst; s.n_streamed++) {
            for (int d = 0; d < s.n_dst; d++)
                to[d] = memset(odd[d] + 1, 7, COUNT * sizeof(float));
            ku_sum(ku_sum_choose(), &s);
            for (int d = 0; d < s.n_dst; d++)
                assert_memory_equal(odd[d] + 1, want, COUNT * sizeof(float));
        }
    }
}

static void test_tree(void **state)
{
    static float src[MAX_SRC][COUNT], dst[2][COUNT], addend[COUNT];
    const void *from[MAX_SRC];
    void *to[2] = {dst[0], dst[1]};
    (void)state;
    for (int r = 0; r < MAX_SRC; r++) {
        from[r] = src[r];
        for (int i = 0; i < COUNT; i++)
            src[r][i] = ku_random_normal(9, 0, (uint32_t)r, (uint64_t)i);
    }
    for (int i = 0; i < COUNT; i++)
        addend[i] = ku_random_normal(9, 0, MAX_SRC, (uint64_t)i);
    for (int n = 1; n <= MAX_SRC; n++) {
        for (int w = 0; w < 4; w++) {
            enum kumi_dtype wire = w % 2 ? KUMI_BF16 : KUMI_F32;
            struct ku_sum s = {.n_src = n,
                               .n_dst = 2,
                               .src = from,
                               .dst = to,
                               .count = COUNT,
                               .wire = wire,
                               .addend = w >= 2 ? addend : NULL};
            ku_sum(ku_sum_choose(), &s);
            for (int i = 0; i < COUNT; i++) {
                float leaf[MAX_SRC] = {0};
                for (int r = 0; r < n; r++)
                    leaf[r] = src[r][i];
                naive_tree(leaf, n, wire);
                leaf[0] += w >= 2 ? addend[i] : 0;
                assert_memory_equal(&dst[0][i], &leaf[0], sizeof(float));
            }
            assert_memory_equal(dst[0], dst[1], sizeof dst[0]);
            check_forms(&s, dst[0]);
        }
    }
}

static void test_nan_wins(void **state)
{
    const float a[2] = {NAN, 1}, b[2] = {1, NAN};
    float out[2];
    (void)state;
    for (int op = KU_PAIR_MIN; op <= KU_PAIR_MAX; op++) {
        ku_sum_base.pair[KUMI_F32][op](out, NULL, a, b, 2);
        assert_true(isnan(out[0]) && isnan(out[1]));
    }
}

/* Against the rule, counted rank by rank. */
static void test_blocks(void **state)
{
    (void)state;
    for (int64_t count = 0; count < 70; count++) {
        for (int64_t block = 0; block < 9; block += 2) {
            for (int64_t first = 0; first < 9; first++) {
                for (int n = 1; n <= 7; n++) {
                    int64_t size = block ? block : 1, n_blocks = (count + size - 1) / size, at = 0,
                            begin, end;
                    for (int r = 0; r < n; r++) {
                        int64_t mine = n_blocks / n + (((r - first) % n + n) % n < n_blocks % n);
                        int64_t until = at + mine * size < count ? at + mine * size : count;
                        ku_blocks_range(count, block, first, n, r, &begin, &end);
                        assert_int_equal(begin, at);
                        assert_int_equal(end, until);
                        for (int64_t i = begin; i < end; i++)
                            assert_int_equal(ku_blocks_owner(count, block, first, n, i), r);
                        at = until;
                    }
                    assert_int_equal(at, count);
                }
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sets_agree),
                                       cmocka_unit_test(test_tree), cmocka_unit_test(test_nan_wins),
                                       cmocka_unit_test(test_blocks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
