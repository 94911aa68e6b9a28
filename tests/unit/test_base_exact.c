/* SPDX-License-Identifier: Apache-2.0 */
/* links: base */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <float.h>
#include <math.h>

#include "base/math/exact.h"
#include "base/math/random.h"

/*
 * The oracle: one bit an array element, weight 2^(i - 1074), two's complement, rippled by hand; its
 * value is handed to strtod and strtof (correctly rounded in glibc) as hexadecimal text.
 */
enum { BITS = 2400, BIAS = 1074 };
struct big {
    unsigned char bit[BITS];
};

static void big_negate(struct big *b)
{
    int carry = 1;
    for (int i = 0; i < BITS; i++) {
        int x = !b->bit[i] + carry;
        b->bit[i] = x & 1;
        carry = x >> 1;
    }
}

static void big_add(struct big *b, double x)
{
    struct big term = {{0}};
    int exponent, carry = 0;
    uint64_t significand = (uint64_t)ldexp(frexp(fabs(x), &exponent), 53);
    for (int i = 0; i < 53; i++) /* of a subnormal the low bits are zeros below the array */
        if (significand >> i & 1)
            term.bit[exponent - 53 + BIAS + i] = 1;
    if (x < 0)
        big_negate(&term);
    for (int i = 0; i < BITS; i++) {
        int sum = b->bit[i] + term.bit[i] + carry;
        b->bit[i] = sum & 1;
        carry = sum >> 1;
    }
}

static const char *big_text(const struct big *b)
{
    static char text[BITS / 4 + 32];
    struct big m = *b;
    char *p = text;
    if (m.bit[BITS - 1]) {
        *p++ = '-';
        big_negate(&m);
    }
    p += sprintf(p, "0x");
    for (int i = BITS - 4; i >= 0; i -= 4)
        *p++ =
            "0123456789abcdef"[m.bit[i + 3] * 8 + m.bit[i + 2] * 4 + m.bit[i + 1] * 2 + m.bit[i]];
    sprintf(p, "p-%d", BIAS);
    return text;
}

static uint64_t bits64(double x)
{
    uint64_t u;
    memcpy(&u, &x, 8);
    return u;
}
static uint32_t bits32(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

static void expect_oracle(const double *x, int n, const char *what)
{
    struct ku_exact a;
    struct big b = {{0}};
    ku_exact_zero(&a);
    for (int i = 0; i < n; i++) {
        ku_exact_add(&a, x[i]);
        big_add(&b, x[i]);
    }
    const char *text = big_text(&b);
    double f64 = strtod(text, NULL);
    float f32 = strtof(text, NULL);
    if (bits64(ku_exact_round(&a)) != bits64(f64))
        fail_msg("%s: f64: %a, not %a", what, ku_exact_round(&a), f64);
    if (bits32(ku_exact_round_f32(&a)) != bits32(f32))
        fail_msg("%s: f32: %a, not %a", what, (double)ku_exact_round_f32(&a), (double)f32);
}

/* Sums whose value is known; also held against the oracle. */
static void test_known(void **state)
{
    static const struct {
        const char *what;
        double x[6], f64;
        float f32;
    } row[] = {
        {"nothing", {0}, 0, 0},
        {"cancellation", {1e308, 1, -1e308}, 1, 1},
        {"cancellation to subnormal", {1e300, 0x1p-1074, -1e300}, 0x1p-1074, 0},
        {"negative", {-1, -2, -0x1p-40}, -3 - 0x1p-40, -3},
        {"overflow on the way only", {DBL_MAX, DBL_MAX, -DBL_MAX}, DBL_MAX, INFINITY},
        {"overflow", {DBL_MAX, DBL_MAX}, HUGE_VAL, INFINITY},
        {"negative overflow", {-DBL_MAX, -DBL_MAX}, -HUGE_VAL, -INFINITY},
        {"largest", {DBL_MAX, 0x1p969}, DBL_MAX, INFINITY},
        {"half an ulp past the largest", {DBL_MAX, 0x1p970}, HUGE_VAL, INFINITY},
        {"just below that", {DBL_MAX, 0x1p970, -0x1p-1074}, DBL_MAX, INFINITY},
        {"tie to even, down", {1, 0x1p-53}, 1, 1},
        {"tie to even, up", {1, 0x1p-52, 0x1p-53}, 1 + 0x1p-51, 1},
        {"a tie broken far below", {1, 0x1p-53, 0x1p-1074}, 1 + 0x1p-52, 1},
        {"a tie broken from below", {1, 0x1p-53, -0x1p-1074}, 1, 1},
        {"carry into the next binade", {2, -0x1p-54}, 2, 2},
        {"least", {0x1p-1074}, 0x1p-1074, 0},
        {"subnormal becomes normal", {0x1p-1022, -0x1p-1074, 0x1p-1074}, 0x1p-1022, 0},
        {"f32: tie to even", {1, 0x1p-24}, 1 + 0x1p-24, 1},
        {"f32: tie broken below f64", {1, 0x1p-24, 0x1p-80}, 1 + 0x1p-24, 1 + 0x1p-23f},
        {"f32: no tie, f64 says tie", {1, 0x1p-24, -0x1p-80}, 1 + 0x1p-24, 1},
        {"f32: half an ulp past the largest", {0x1.fffffep127, 0x1p103}, 0x1.ffffffp127, INFINITY},
        {"f32: just below", {0x1.fffffep127, 0x1p103, -0x1p-1000}, 0x1.ffffffp127, FLT_MAX},
        {"f32: half the least, tie", {0x1p-150}, 0x1p-150, 0},
        {"f32: half the least and more", {0x1p-150, 0x1p-1074}, 0x1p-150, 0x1p-149f},
        {"f32: below half the least", {-0x1p-151}, -0x1p-151, -0.0f},
        {"f32: subnormal tie", {0x1p-149, 0x1p-150}, 0x1.8p-149, 0x1p-148f},
        {"f32: subnormal to normal", {0x1p-126, -0x1p-151}, 0x1p-126 - 0x1p-151, 0x1p-126f},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_exact a;
        ku_exact_zero(&a);
        ku_exact_add_f64(&a, row[i].x, 6);
        if (bits64(ku_exact_round(&a)) != bits64(row[i].f64) ||
            bits32(ku_exact_round_f32(&a)) != bits32(row[i].f32))
            fail_msg("%s: %a and %a, not %a and %a", row[i].what, ku_exact_round(&a),
                     (double)ku_exact_round_f32(&a), row[i].f64, (double)row[i].f32);
        expect_oracle(row[i].x, 6, row[i].what);
    }
}

/* Any finite bit pattern in [-2^most, 2^most], all exponents alike. */
static double nasty(uint64_t i, int most)
{
    struct ku_philox r = ku_philox(7, 0, 0, i);
    int exponent = (int)(r.word[0] % (unsigned)(most + 1023));
    uint64_t u = (uint64_t)(r.word[1] & 0x800fffffu) << 32 | r.word[2];
    double x;
    if (r.word[3] % 8 == 0)
        u &= UINT64_C(0x80000000000fffff); /* long runs of zeros */
    if (r.word[3] % 8 == 1)
        u |= UINT64_C(0x000fffffffffff00); /* and of ones */
    u |= (uint64_t)exponent << 52;
    memcpy(&x, &u, 8);
    return x;
}

static void test_oracle(void **state)
{
    static const int range[] = {1024, 1000, 128, 0, -120, -900, -1020};
    (void)state;
    for (int r = 0; r < 7; r++)
        for (int n = 1; n <= 64; n = n * 2 + 1) {
            double x[64];
            for (int i = 0; i < n; i++) {
                x[i] = nasty((uint64_t)(r * 1000 + n * 70 + i), range[r]);
                if (i % 3 == 2)
                    x[i] = -x[i - 2]; /* what is left is small against what was added */
            }
            expect_oracle(x, n, "random");
        }
}

/* Orders, parts, mergers, unnormalised or not, and word-wise sums over ranks: equal words. */
static void test_order(void **state)
{
    enum { N = 3000 };
    static double x[N];
    struct ku_exact first;
    (void)state;
    for (int i = 0; i < N; i++)
        x[i] = nasty((uint64_t)i, 1000);
    ku_exact_zero(&first);
    ku_exact_add_f64(&first, x, N);
    ku_exact_normalize(&first);
    for (uint64_t trial = 0; trial < 12; trial++) {
        struct ku_permutation p;
        struct ku_exact part[5], all;
        ku_permutation_init(&p, N, 3, trial);
        for (int k = 0; k < 5; k++)
            ku_exact_zero(&part[k]);
        for (uint64_t i = 0; i < N; i++) {
            ku_exact_add(&part[i * i % 5], x[ku_permutation_at(&p, i)]);
            if (i % 701 == trial)
                ku_exact_normalize(&part[i % 5]);
        }
        ku_exact_zero(&all);
        if (trial % 2) {
            for (int k = 0; k < 5; k++)
                ku_exact_merge(&all, &part[(k + (int)trial) % 5]);
        } else {
            int64_t *sum = (int64_t *)&all;
            for (int k = 0; k < 5; k++)
                for (int w = 0; w < KU_EXACT_WORDS; w++)
                    sum[w] += ((const int64_t *)&part[k])[w];
        }
        ku_exact_normalize(&all);
        assert_memory_equal(&all, &first, sizeof all);
    }
}

/* Doubling reaches counts that single adds cannot: limbs must be carried before they overflow. */
static void test_many(void **state)
{
    static const double seed[] = {0x1.fffffffffffffp0, -0x1.fffffffffffffp0, 0x1.fffffffffffffp31,
                                  DBL_MIN};
    (void)state;
    for (int s = 0; s < 4; s++) {
        struct ku_exact a;
        ku_exact_zero(&a);
        ku_exact_add(&a, seed[s]);
        for (int i = 0; i < 60; i++) {
            struct ku_exact b = a;
            ku_exact_merge(&a, &b);
        }
        assert_true(bits64(ku_exact_round(&a)) == bits64(seed[s] * 0x1p60));
    }
    /* A sum that says it is full is normalised by the next add, at no cost in bits. */
    struct ku_exact a, b;
    ku_exact_zero(&a);
    ku_exact_add(&a, 3);
    ku_exact_add(&a, -0x1p32);
    b = a;
    a.n_adds = (1 << 30) - 1;
    ku_exact_add(&a, 0x1.8p-1000);
    assert_int_equal(a.n_adds, 0);
    ku_exact_add(&b, 0x1.8p-1000);
    ku_exact_normalize(&b);
    assert_memory_equal(&a, &b, sizeof a);
}

static void test_special(void **state)
{
    static const struct {
        double x[3], sum;
    } row[] = {{{1, HUGE_VAL, 2}, HUGE_VAL},
               {{1, -HUGE_VAL, DBL_MAX}, -HUGE_VAL},
               {{HUGE_VAL, -HUGE_VAL, 0}, (double)NAN},
               {{(double)NAN, 1, 2}, (double)NAN},
               {{(double)NAN, HUGE_VAL, HUGE_VAL}, (double)NAN}};
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_exact a;
        ku_exact_zero(&a);
        ku_exact_add_f64(&a, row[i].x, 3);
        double sum = ku_exact_round(&a);
        assert_int_equal(ku_exact_is_finite(&a), 0);
        assert_true(isnan(row[i].sum) ? isnan(sum) && isnan(ku_exact_round_f32(&a))
                                      : sum == row[i].sum);
        struct ku_exact b;
        ku_exact_zero(&b);
        assert_int_equal(ku_exact_is_finite(&b), 1);
        ku_exact_merge(&b, &a);
        ku_exact_normalize(&b);
        assert_int_equal(ku_exact_is_finite(&b), 0);
    }
}

static void test_f32_array(void **state)
{
    float x[97];
    struct ku_exact a, b;
    (void)state;
    ku_exact_zero(&a);
    ku_exact_zero(&b);
    for (int i = 0; i < 97; i++) {
        x[i] = ku_random_normal(1, 2, 3, (uint64_t)i) * (i % 7 ? 1.0f : 1e-40f);
        ku_exact_add(&b, (double)x[i]);
    }
    ku_exact_add_f32(&a, x, 97);
    ku_exact_add_f32(&a, x, 0);
    assert_memory_equal(&a, &b, sizeof a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known),   cmocka_unit_test(test_oracle),
        cmocka_unit_test(test_order),   cmocka_unit_test(test_many),
        cmocka_unit_test(test_special), cmocka_unit_test(test_f32_array),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
