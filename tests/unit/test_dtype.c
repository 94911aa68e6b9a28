/* SPDX-License-Identifier: Apache-2.0 */
/* links: tensor base */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include <float.h>
#include <math.h>

#include "base/err.h"
#include "base/math/random.h"
#include "tensor/dtype.h"

static uint32_t bits32(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}
static float float32(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}

static void test_table(void **state)
{
    static const struct {
        enum kumi_dtype dtype;
        const char *name;
        size_t bytes;
        int is_float;
    } row[] = {{KUMI_F32, "f32", 4, 1}, {KUMI_F64, "f64", 8, 1}, {KUMI_BF16, "bf16", 2, 1},
               {KUMI_F16, "f16", 2, 1}, {KUMI_I64, "i64", 8, 0}, {KUMI_I32, "i32", 4, 0},
               {KUMI_U16, "u16", 2, 0}, {KUMI_U8, "u8", 1, 0}};
    (void)state;
    assert_int_equal(sizeof row / sizeof row[0], KUMI_N_DTYPES);
    for (int i = 0; i < KUMI_N_DTYPES; i++) {
        enum kumi_dtype d = KUMI_N_DTYPES;
        assert_string_equal(kumi_dtype_name(row[i].dtype), row[i].name);
        assert_int_equal(kumi_dtype_bytes(row[i].dtype), row[i].bytes);
        assert_int_equal(ku_dtype_is_float(row[i].dtype), row[i].is_float);
        assert_int_equal(ku_dtype_parse(row[i].name, &d), KUMI_OK);
        assert_int_equal(d, row[i].dtype);
    }
    static const char *const wrong[] = {"", "F32", "f3", "f321", "float", "?"};
    for (int i = 0; i < 6; i++) {
        enum kumi_dtype d = KUMI_I32;
        assert_int_equal(ku_dtype_parse(wrong[i], &d), KUMI_EINVAL);
        assert_int_equal(d, KUMI_I32);
        assert_non_null(strstr(kumi_last_error()->text, "one of f32 f64"));
    }
    assert_int_equal(kumi_dtype_bytes(KUMI_N_DTYPES), 0);
    assert_int_equal(kumi_dtype_bytes((enum kumi_dtype) - 1), 0);
    assert_string_equal(kumi_dtype_name((enum kumi_dtype)99), "?");
}

/* The value of a small float from its fields: the definition, not the code. */
static double value_of(uint32_t x, int mantissa_bits, int exponent_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1, top = (1 << exponent_bits) - 1;
    int exponent = (int)(x >> mantissa_bits) & top;
    double mantissa = (double)(x & ((1u << mantissa_bits) - 1));
    double sign = x >> (mantissa_bits + exponent_bits) ? -1 : 1;
    if (exponent == top)
        return mantissa != 0 ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0)
        return sign * ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * ldexp(mantissa + ldexp(1, mantissa_bits), exponent - bias - mantissa_bits);
}

static void test_all_halves(void **state)
{
    (void)state;
    for (uint32_t x = 0; x < 65536; x++) {
        float f16 = ku_f16_to_f32((uint16_t)x), bf16 = ku_bf16_to_f32((uint16_t)x);
        double f16_value = value_of(x, 10, 5), bf16_value = value_of(x, 7, 8);
        uint32_t quiet = isnan(f16_value) ? x | 0x200 : x;
        uint32_t bf16_quiet = isnan(bf16_value) ? x | 0x40 : x;
        assert_true(isnan(f16_value) ? isnan(f16) : (double)f16 == f16_value);
        assert_true(isnan(bf16_value) ? isnan(bf16) : (double)bf16 == bf16_value);
        assert_int_equal(bits32(f16) >> 31, x >> 15);
        assert_int_equal(ku_f16_from_f32(f16), quiet);
        assert_int_equal(ku_bf16_from_f32(bf16), bf16_quiet);
        assert_int_equal(ku_f16_from_f32(float32(bits32(f16))), quiet);
    }
}

/* Between each two neighbours: just below the middle, the middle (to even), just above. */
static void test_rounding(void **state)
{
    (void)state;
    for (uint32_t sign = 0; sign <= 0x8000; sign += 0x8000)
        for (uint32_t x = 0; x < 0x7c00; x++) {
            double low = value_of(x, 10, 5), high = x == 0x7bff ? 65536.0 : value_of(x + 1, 10, 5);
            float middle = (float)((low + high) / 2), s = sign ? -1.0f : 1.0f;
            uint32_t even = x & 1 ? x + 1 : x;
            assert_int_equal(ku_f16_from_f32(s * middle), sign | even);
            assert_int_equal(ku_f16_from_f32(s * nextafterf(middle, 0)), sign | x);
            assert_int_equal(ku_f16_from_f32(s * nextafterf(middle, INFINITY)), sign | (x + 1));
        }
    for (uint32_t sign = 0; sign <= 0x8000; sign += 0x8000)
        for (uint32_t x = 0; x < 0x7f80; x++) {
            uint32_t middle = x << 16 | 0x8000, s = sign << 16;
            uint32_t even = x & 1 ? x + 1 : x;
            assert_int_equal(ku_bf16_from_f32(float32(s | middle)), sign | even);
            assert_int_equal(ku_bf16_from_f32(float32(s | (middle - 1))), sign | x);
            assert_int_equal(ku_bf16_from_f32(float32(s | (middle + 1))), sign | (x + 1));
        }
}

/* Rounded once: f64 values that f32 would first move onto a tie. */
static void test_store(void **state)
{
    static const struct {
        enum kumi_dtype dtype;
        double x, stored;
    } row[] = {
        {KUMI_F32, 1 + 0x1p-24, 1},
        {KUMI_F32, 1 + 0x1p-24 + 0x1p-50, 1 + 0x1p-23},
        {KUMI_F32, 1e39, (double)INFINITY},
        {KUMI_F64, 0.1, 0.1},
        {KUMI_BF16, 1 + 0x1p-8, 1},
        {KUMI_BF16, 1 + 0x1p-8 + 0x1p-40, 1 + 0x1p-7},
        {KUMI_BF16, 1 + 0x3p-8 - 0x1p-40, 1 + 0x1p-7},
        {KUMI_BF16, -1 - 0x1p-8 - 0x1p-40, -1 - 0x1p-7},
        {KUMI_BF16, 1e39, (double)INFINITY},
        {KUMI_BF16, 0x1p-134 + 0x1p-180, 0x1p-133},
        {KUMI_BF16, 0x1p-134, 0},
        {KUMI_F16, 1 + 0x1p-11, 1},
        {KUMI_F16, 1 + 0x1p-11 + 0x1p-45, 1 + 0x1p-10},
        {KUMI_F16, 65519.99999999, 65504},
        {KUMI_F16, 65520, (double)INFINITY},
        {KUMI_F16, 0x1p-25, 0},
        {KUMI_F16, 0x1p-25 + 0x1p-70, 0x1p-24},
        {KUMI_F16, -1e-300, -0.0},
        {KUMI_I64, 1e19, 0x1p63},
        {KUMI_I64, -1e19, -0x1p63},
        {KUMI_I64, -2.9, -2},
        {KUMI_I32, 3e9, 2147483647},
        {KUMI_I32, -3e9, -2147483648.0},
        {KUMI_I32, 2147483647.5, 2147483647},
        {KUMI_I32, (double)NAN, 0},
        {KUMI_U16, 65536, 65535},
        {KUMI_U16, -1, 0},
        {KUMI_U16, 2.5, 2},
        {KUMI_U8, (double)INFINITY, 255},
        {KUMI_U8, 254.9, 254},
        {KUMI_U8, (double)NAN, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        uint64_t room[4] = {0};
        ku_store_f64(room, row[i].dtype, 2, row[i].x);
        double x = ku_load_f64(room, row[i].dtype, 2);
        if (memcmp(&x, &row[i].stored, 8) != 0)
            fail_msg("%s: %a is stored as %a, not %a", kumi_dtype_name(row[i].dtype), row[i].x, x,
                     row[i].stored);
    }
}

static void test_convert(void **state)
{
    (void)state;
    /* bf16 <-> f32, odd counts; the vector path against the single one. */
    float f[131], back[131];
    uint16_t h[131];
    for (int i = 0; i < 131; i++)
        f[i] = float32(ku_random_u32(1, 2, 3, (uint64_t)i));
    f[5] = NAN, f[6] = INFINITY, f[7] = -0.0f;
    for (int n = 0; n <= 131; n += 13) {
        memset(h, 0x77, sizeof h);
        ku_convert(h, KUMI_BF16, f, KUMI_F32, n);
        ku_convert(back, KUMI_F32, h, KUMI_BF16, n);
        for (int i = 0; i < n; i++) {
            assert_int_equal(h[i], ku_bf16_from_f32(f[i]));
            assert_int_equal(bits32(back[i]), (uint32_t)h[i] << 16);
        }
        assert_true(n == 131 || h[n] == 0x7777);
    }
    /* Wide integers to floats, rounded once; f64 in between would make a tie of the first two. */
    static const struct {
        int64_t x;
        float f32;
    } row[] = {{(INT64_C(1) << 60) + (INT64_C(1) << 36) + 1, 0x1.000002p60f},
               {-(INT64_C(1) << 60) - (INT64_C(1) << 36) - 1, -0x1.000002p60f},
               {(INT64_C(1) << 60) + (INT64_C(1) << 36), 0x1p60f},
               {INT64_MAX, 0x1p63f},
               {INT64_MIN, -0x1p63f},
               {0, 0},
               {16777217, 16777216}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        float out;
        ku_convert(&out, KUMI_F32, &row[i].x, KUMI_I64, 1);
        assert_true(out == row[i].f32);
    }
    /* Every pair of types keeps small whole numbers. */
    for (int from = 0; from < KUMI_N_DTYPES; from++)
        for (int to = 0; to < KUMI_N_DTYPES; to++) {
            uint64_t a[16], b[16];
            for (int i = 0; i < 16; i++)
                ku_store_f64(a, (enum kumi_dtype)from, i, i * 16);
            ku_convert(b, (enum kumi_dtype)to, a, (enum kumi_dtype)from, 16);
            for (int i = 0; i < 16; i++)
                assert_true(ku_load_f64(b, (enum kumi_dtype)to, i) == i * 16);
        }
}

static double value16(enum kumi_dtype d, uint16_t x)
{
    return ku_load_f64(&x, d, 0);
}
static uint16_t round16(enum kumi_dtype d, float x, uint32_t word)
{
    uint16_t to = 0x7777;
    ku_round_random(&to, d, &x, &word, 1);
    return to;
}

/* What a dtype holds stays, whatever the word; everything else goes to one of its neighbours. */
static void test_stochastic_neighbours(void **state)
{
    static const enum kumi_dtype dtype[] = {KUMI_BF16, KUMI_F16};
    static const uint32_t word[] = {0, 1, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff};
    (void)state;
    for (int k = 0; k < 2; k++)
        for (uint32_t x = 0; x < 65536; x++) {
            const float f = (float)value16(dtype[k], (uint16_t)x);
            for (int w = 0; w < 6; w++) {
                const uint16_t r = round16(dtype[k], f, word[w]);
                if (isnan(f))
                    assert_true(isnan(value16(dtype[k], r)));
                else
                    assert_int_equal(r, x);
            }
            const double next = isfinite(f) ? value16(dtype[k], (uint16_t)(x + 1)) : (double)NAN;
            const float middle = (float)(((double)f + next) / 2);
            if (!isfinite(next) || (double)middle == (double)f || (double)middle == next)
                continue;
            assert_int_equal(round16(dtype[k], middle, 0), x + 1);
            assert_int_equal(round16(dtype[k], middle, 0x7fffffff), x + 1);
            assert_int_equal(round16(dtype[k], middle, 0x80000000), x);
            assert_int_equal(round16(dtype[k], middle, 0xffffffff), x);
        }
}

/*
 * Unbiased: over all words that can tell numbers apart the mean is x exactly; over n words of the
 * generator a share of [0, 1] is off by more than sqrt(log(2 / p) / (2 n)) with probability p at
 * most (Hoeffding 1963, theorem 2); p = 1e-9.
 */
static void test_stochastic_mean(void **state)
{
    static const float x[] = {1.0001f,   -3.14159265f,   0x1.fedcbap-14f, 0x1.23456p-15f,
                              1e-7f,     -0x1.8002p-25f, 65503.3f,        0x1.000002p3f,
                              0.123456f, -1e-3f};
    enum { N = 65536, SHIFT = 16 };
    const double most = sqrt(log(2e9) / (2.0 * N));
    (void)state;
    for (size_t i = 0; i < sizeof x / sizeof x[0]; i++)
        for (int k = 0; k < 2; k++) {
            const enum kumi_dtype d = k ? KUMI_F16 : KUMI_BF16;
            const double down = value16(d, round16(d, x[i], 0xffffffff)),
                         up = value16(d, round16(d, x[i], 0)), gap = up - down;
            double every = 0, drawn = 0;
            for (uint32_t r = 0; r < N; r++) {
                every += value16(d, round16(d, x[i], r << SHIFT)) - down;
                drawn += value16(d, round16(d, x[i], ku_random_u32(5, 6, 7, r))) - down;
            }
            const double share = ((double)x[i] - down) / gap;
            assert_true(gap != 0 && share > 0 && share < 1);
            /* 16 bits of a word are all of bf16's; f16 may want more of them below 2^-14 */
            assert_true(fabs(every / N / gap - share) <= (k ? 1.0 / N : 0));
            assert_true(fabs(drawn / N / gap - share) <= most);
        }
}

static void test_through(void **state)
{
    float x[600], way[600];
    uint16_t h[600];
    (void)state;
    for (int k = 0; k < 2; k++)
        for (int n = 0; n <= 600; n += 120) {
            for (int i = 0; i < 600; i++)
                x[i] = ku_random_normal(1, 2, 3, (uint64_t)i);
            ku_convert(h, k ? KUMI_F16 : KUMI_BF16, x, KUMI_F32, 600);
            ku_convert(way, KUMI_F32, h, k ? KUMI_F16 : KUMI_BF16, 600);
            float last = n < 600 ? x[n] : 0;
            ku_round_through(x, k ? KUMI_F16 : KUMI_BF16, n);
            assert_memory_equal(x, way, (size_t)n * sizeof *x);
            assert_true(n == 600 || x[n] == last);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),    cmocka_unit_test(test_all_halves),
        cmocka_unit_test(test_rounding), cmocka_unit_test(test_store),
        cmocka_unit_test(test_convert),  cmocka_unit_test(test_stochastic_neighbours),
        cmocka_unit_test(test_through),  cmocka_unit_test(test_stochastic_mean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
