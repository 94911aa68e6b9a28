/* SPDX-License-Identifier: Apache-2.0 */
/* links: op tensor base */
/* The loss scaler against an installed DeepSpeed's DynamicLossScaler, over 10,000 steps of seeded
 * overflows (tools/fixtures/deepspeed/make.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/err.h"
#include "op/loss_scale.h"
#include "../fixtures/deepspeed/checksum.h"

static const struct {
    struct {
        double first, least;
        int window, hysteresis, is_consecutive;
        double rate;
    } rule;
    int n;
    uint64_t sum[CHECKSUM_BLOCKS];
} row[] = {
#include "../fixtures/deepspeed/loss_scale.h"
};

static uint64_t draw(uint64_t *state) /* Vigna's splitmix64 */
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static int run(size_t i)
{
    const struct ku_loss_scale_rule rule = {.policy = KU_LOSS_SCALE_DEEPSPEED,
                                            .window = row[i].rule.window,
                                            .hysteresis = row[i].rule.hysteresis,
                                            .is_consecutive = row[i].rule.is_consecutive,
                                            .least = row[i].rule.least};
    char what[32];
    struct checksum c = {.want = row[i].sum, .what = what};
    struct ku_loss_scale s;
    uint64_t seed = 1;
    int is_over = 0;
    snprintf(what, sizeof what, "row %zu", i);
    assert_int_equal(ku_loss_scale_start(&rule, row[i].rule.first, &s), KUMI_OK);
    for (int step = 0; step < row[i].n; step++) {
        const double x = (double)(draw(&seed) >> 11) * 0x1p-53, rate = row[i].rule.rate;
        const int overflow = x < (step / 97 % 11 == 5 ? 8 * rate : rate);
        is_over = ku_loss_scale_next(&rule, &s, overflow, &s) < 0;
        if (is_over)
            checksum_line(&c, "raised\n");
        else
            checksum_line(&c, "%d %.17g %d %d %d\n", overflow, s.scale, (int)s.left,
                          (int)s.last_overflow, (int)s.step);
        assert_true(!is_over || step == row[i].n - 1);
    }
    checksum_end(&c);
    assert_true(is_over == (row[i].n < CHECKSUM_STEPS));
    return is_over;
}

static void test_scaler(void **state)
{
    size_t n = sizeof row / sizeof row[0];
    int raised = 0;
    (void)state;
    for (size_t i = 0; i < n; i++)
        raised += run(i);
    assert_true(raised > 0 && raised < (int)n - 3); /* both ends are seen */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_scaler)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
