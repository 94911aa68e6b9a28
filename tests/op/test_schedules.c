/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor op device */
/* The formulas of docs/reference/configuration.md, "Schedules", said again, update by update; and
 * warm-up beside Hugging Face's. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "device/step_scalars.h"
#include "op/check.h"
#include "op/schedule.h"

/* Of all rows below. */
#define LR    0.02
#define MIN   0.002
#define START 0.001
#define PI    3.14159265358979323846
enum { W = 7, D = 60, S = 9, WIDTH = 64, N = 90 };
#define COMMON                                                                                     \
    "lr=0.02 min_lr=0.002 warmup_lr=0.001 warmup=7 decay=60 step_size=9 gamma=0.5 power=2"

static double ratio(int u)
{
    return fmin(1, (double)(u - W) / (D - W));
}
static double constant(int u)
{
    (void)u;
    return LR;
}
static double linear(int u)
{
    return LR + (MIN - LR) * ratio(u);
}
static double cosine(int u)
{
    return MIN + (LR - MIN) * (1 + cos(PI * ratio(u))) / 2;
}
static double polynomial(int u)
{
    return MIN + (LR - MIN) * pow(1 - ratio(u), 2);
}
static double step(int u)
{
    return LR * pow(0.5, (u - W) / S); /* whole numbers: rounded down */
}
static double multi_step(int u)
{
    return LR * pow(0.5, (u >= 20) + (u >= 50));
}
static double inverse_sqrt(int u)
{
    return LR * sqrt((double)W / (u + 1));
}
static double wsd(int u)
{
    return u < D - S ? LR : LR + (MIN - LR) * fmin(1, (double)(u - (D - S)) / S);
}
static double noam(int u)
{
    return LR / sqrt(WIDTH) * fmin(1 / sqrt(u + 1), (u + 1) * pow(W, -1.5));
}

static const struct {
    const char *attrs;
    double (*after)(int u);
    int has_warmup;
} rows[] = {
    {COMMON " schedule=constant", constant, 1},
    {COMMON " schedule=linear", linear, 1},
    {COMMON " schedule=cosine", cosine, 1},
    {COMMON " schedule=polynomial", polynomial, 1},
    {COMMON " schedule=step", step, 1},
    {COMMON " schedule=multi_step args=20,50", multi_step, 1},
    {COMMON " schedule=inverse_sqrt", inverse_sqrt, 1},
    {COMMON " schedule=wsd", wsd, 1},
    {COMMON " schedule=noam d_model=64", noam, 0},
};

static void test_formulas(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct ku_attrs a = ku_attrs_default;
        parse_attrs(rows[i].attrs, &a);
        for (int u = 0; u < N; u++) {
            double want = rows[i].has_warmup && u < W ? START + (LR - START) * (u + 1) / (W + 1)
                                                      : rows[i].after(u);
            double got = ku_schedule_lr(&a, u);
            if (!(fabs(got - want) <= 1e-14 * LR))
                fail_msg("%s: update %d: %.17g, the formula gives %.17g", rows[i].attrs, u, got,
                         want);
        }
    }
}

/* Hugging Face's get_*_schedule_with_warmup has lr u / w: one part in w + 1 later, and lr in the
 * same update; from there on linear and cosine are the same. */
static void test_beside_hugging_face(void **state)
{
    struct ku_attrs a = ku_attrs_default;
    (void)state;
    parse_attrs("lr=0.02 warmup=7 decay=60 schedule=linear", &a);
    for (int u = 0; u < N; u++) {
        double theirs = u < W ? LR * u / W : LR * fmax(0, (double)(D - u) / (D - W));
        double ours = ku_schedule_lr(&a, u);
        assert_true(u < W ? ours > theirs && ours - theirs <= LR / (W + 1) * (1 + 1e-12)
                          : fabs(ours - theirs) <= 1e-14 * LR);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formulas),
        cmocka_unit_test(test_beside_hugging_face),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
