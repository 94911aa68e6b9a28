/* SPDX-License-Identifier: Apache-2.0 */
/* links: base */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <math.h>

#include "base/math/random.h"

/* Random123's own vectors for philox4x32-10. */
static void test_known_answers(void **state)
{
    static const struct {
        uint32_t counter[4], key[2], word[4];
    } row[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    (void)state;
    for (int i = 0; i < 3; i++) {
        const uint32_t *c = row[i].counter, *k = row[i].key;
        uint64_t seed = (uint64_t)k[1] << 32 | k[0], block = (uint64_t)c[1] << 32 | c[0];
        struct ku_philox r = ku_philox(seed, c[2], c[3], block);
        assert_memory_equal(r.word, row[i].word, sizeof r.word);
    }
}

static void test_elements(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 64; i++) {
        uint64_t index = i % 2 ? i : UINT64_MAX - i;
        assert_int_equal(ku_random_u32(5, 6, 7, index),
                         ku_philox(5, 6, 7, index / 4).word[index % 4]);
    }
    assert_true(ku_random_uniform(0) == 0.0f);
    assert_true(ku_random_uniform(UINT32_MAX) == 1 - 0x1p-24f);
    assert_true(ku_random_uniform(0x80000000u) == 0.5f);
}

/* Moments of 2^16 normals, within five standard errors of their estimates; and their pairing. */
static void test_normal(void **state)
{
    enum { N = 1 << 16 };
    const struct ku_normals of = {.seed = 42, .stream = 1, .std = 1};
    const struct ku_normals far = {.seed = UINT64_MAX, .step = 3, .stream = 9, .std = 1};
    double sum[5] = {0}, cross = 0, before = 0;
    (void)state;
    for (uint64_t i = 0; i < N; i++) {
        double x = (double)ku_random_normal(42, 0, 1, i), power = 1;
        for (int m = 1; m <= 4; m++)
            sum[m] += power *= x;
        cross += x * before;
        before = x;
    }
    double error = 1 / sqrt(N);
    assert_true(fabs(sum[1] / N) < 5 * error);
    assert_true(fabs(sum[2] / N - 1) < 5 * error * sqrt(2));
    assert_true(fabs(sum[3] / N) < 5 * error * sqrt(15));
    assert_true(fabs(sum[4] / N - 3) < 5 * error * sqrt(96));
    assert_true(fabs(cross / N) < 5 * error);
    for (uint64_t first = 0; first < 9; first++) /* a run is its elements, wherever it is cut */
        for (int64_t count = 0; count < 9; count++) {
            float run[9];
            for (int i = 0; i < 9; i++)
                run[i] = -99;
            ku_random_normals(&of, first, count, run);
            for (int64_t i = 0; i < 9; i++)
                assert_true(run[i] ==
                            (i < count ? ku_random_normal(42, 0, 1, first + (uint64_t)i) : -99.0f));
        }
    static float run[5000]; /* whole batches and what is left of them: vector code and scalar */
    for (int first = 0; first < 3; first++) {
        memset(run, 0, sizeof run);
        ku_random_normals(&far, (UINT64_C(1) << 34) - 7 + (uint64_t)first, 4321, run);
        for (int i = 0; i < 5000; i++)
            assert_true(run[i] == (i < 4321 ? ku_random_normal(UINT64_MAX, 3, 9,
                                                               (UINT64_C(1) << 34) - 7 +
                                                                   (uint64_t)(first + i))
                                            : 0));
    }
    for (uint64_t i = 0; i < 1 << 16; i += 2) { /* what it is, by the library's functions */
        double u = ((double)ku_random_u32(4, 0, 1, i) + 0.5) / 4294967296.0;
        double angle = 2 * acos(-1) * ((double)ku_random_u32(4, 0, 1, i + 1) / 4294967296.0);
        double x = sqrt(-2 * log(u)) * cos(angle), y = sqrt(-2 * log(u)) * sin(angle);
        double bound = 0x1p-24 + 0x1p-50; /* one rounding to f32, and f64's few */
        assert_true(fabs((double)ku_random_normal(4, 0, 1, i) - x) <= bound * fabs(x) + 1e-15);
        assert_true(fabs((double)ku_random_normal(4, 0, 1, i + 1) - y) <= bound * fabs(y) + 1e-15);
    }
    for (uint64_t i = 0; i < 32; i += 2) {
        uint32_t a = ku_random_u32(42, 0, 1, i), b = ku_random_u32(42, 0, 1, i + 1);
        double x = (double)ku_random_normal(42, 0, 1, i),
               y = (double)ku_random_normal(42, 0, 1, i + 1);
        double radius2 = -2 * log(((double)a + 0.5) / 4294967296.0);
        assert_true(fabs(x * x + y * y - radius2) < 1e-5 * radius2);
        double turn = atan2(y, x) / (2 * acos(-1));
        double apart = turn - (double)b / 4294967296.0;
        assert_true(fabs(apart - rint(apart)) < 1e-6);
    }
}

/* The mean and the standard deviation are applied to a normal that is already rounded to f32. */
static void test_scaled(void **state)
{
    static const struct {
        double mean, std;
    } row[] = {{0, 0.02}, {1.5, 0.3}, {-0.25, 1e-3}, {7, 0}};
    (void)state;
    for (size_t r = 0; r < sizeof row / sizeof *row; r++) {
        const struct ku_normals of = {77, 5, 3, row[r].mean, row[r].std};
        float out[1000];
        ku_random_normals(&of, 13, 1000, out);
        for (uint64_t i = 0; i < 1000; i++) {
            float z = ku_random_normal(77, 5, 3, 13 + i);
            assert_true(out[i] == (float)(row[r].mean + row[r].std * (double)z));
        }
    }
}

/* Checkpoints rely on these values staying what they are. */
static void test_pinned(void **state)
{
    static const uint32_t normal[4] = {0x3f78eac9, 0xbf2bd1cd, 0x3d558768, 0x3f44c7ae};
    static const uint64_t order[6] = {790826, 518470, 926503, 188529, 481922, 872806};
    struct ku_permutation p;
    (void)state;
    for (uint64_t i = 0; i < 4; i++) {
        float x = ku_random_normal(1337, 0, 1, i);
        uint32_t u;
        memcpy(&u, &x, 4);
        assert_int_equal(u, normal[i]);
    }
    ku_permutation_init(&p, 1000003, 1337, 0);
    for (uint64_t i = 0; i < 6; i++)
        assert_int_equal(ku_permutation_at(&p, i), order[i]);
}

static void check_bijection(uint64_t n, uint64_t seed, uint64_t epoch)
{
    struct ku_permutation p;
    unsigned char *seen = calloc(n, 1);
    assert_non_null(seen);
    ku_permutation_init(&p, n, seed, epoch);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t at = ku_permutation_at(&p, i);
        assert_true(at < n);
        if (seen[at]++)
            fail_msg("n = %llu: %llu twice", (unsigned long long)n, (unsigned long long)at);
    }
    free(seen);
}

static void test_permutation(void **state)
{
    static const uint64_t large[] = {1000,  1023,  1024,  1025,   4095,   4096,
                                     65535, 65536, 65537, 100003, 262143, 262145};
    struct ku_permutation p, q;
    (void)state;
    for (uint64_t n = 1; n <= 300; n++)
        check_bijection(n, n * 31, n % 5);
    for (size_t i = 0; i < sizeof large / sizeof large[0]; i++)
        check_bijection(large[i], 1, i);
    /* Beyond what can be counted: inside the range, and no two of a run alike. */
    static const uint64_t huge[] = {(UINT64_C(1) << 62) + 1, UINT64_C(1) << 63, UINT64_MAX};
    for (int h = 0; h < 3; h++) {
        uint64_t at[200];
        ku_permutation_init(&p, huge[h], 9, 9);
        for (int i = 0; i < 200; i++) {
            at[i] = ku_permutation_at(&p, i % 2 ? (uint64_t)i : huge[h] - 1 - (uint64_t)i);
            assert_true(at[i] < huge[h]);
            for (int j = 0; j < i; j++)
                assert_true(at[i] != at[j]);
        }
    }
    /* Epochs and seeds differ; few points stay where they are (one is expected). */
    ku_permutation_init(&p, 10000, 1, 0);
    ku_permutation_init(&q, 10000, 1, 1);
    int n_same = 0, n_fixed = 0;
    for (uint64_t i = 0; i < 10000; i++) {
        n_same += ku_permutation_at(&p, i) == ku_permutation_at(&q, i);
        n_fixed += ku_permutation_at(&p, i) == i;
    }
    assert_true(n_same < 12 && n_fixed < 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answers), cmocka_unit_test(test_elements),
        cmocka_unit_test(test_normal),        cmocka_unit_test(test_scaled),
        cmocka_unit_test(test_pinned),        cmocka_unit_test(test_permutation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
