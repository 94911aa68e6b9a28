/* SPDX-License-Identifier: Apache-2.0 */
/* links: op tensor base */
/*
 * The scaler beside restatements of the two published algorithms, line for line as their sources
 * have them, over 10,000 steps of seeded overflows each.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "base/err.h"
#include "op/loss_scale.h"

enum { STEPS = 10000 };

/* class DynamicLossScaler(LossScalerBase), attribute by attribute; raises: returns 1. */
struct theirs {
    double cur_scale, scale_factor, min_scale;
    long cur_iter, last_overflow_iter, scale_window, delayed_shift, cur_hysteresis;
    int consecutive_hysteresis;
};

static int update_scale(struct theirs *self, int overflow)
{
    if (overflow) {
        if (self->delayed_shift == 1 || self->cur_hysteresis == 1) {
            if (self->cur_scale == self->min_scale)
                return 1;
            double next = self->cur_scale / self->scale_factor;
            self->cur_scale = next > self->min_scale ? next : self->min_scale;
        } else {
            self->cur_hysteresis -= 1;
        }
        self->last_overflow_iter = self->cur_iter;
    } else {
        if (self->consecutive_hysteresis)
            self->cur_hysteresis = self->delayed_shift;
        long stable_interval = (self->cur_iter - self->last_overflow_iter) - 1;
        if (stable_interval > 0 && stable_interval % self->scale_window == 0) {
            if (!self->consecutive_hysteresis)
                self->cur_hysteresis = self->delayed_shift;
            self->cur_scale *= self->scale_factor;
        }
    }
    self->cur_iter += 1;
    return 0;
}

/* amp_update_scale, one step. */
struct torch_scaler {
    float current_scale;
    int growth_tracker;
};

static void amp_update_scale(struct torch_scaler *t, double growth_factor, double backoff_factor,
                             int growth_interval, int found_inf)
{
    if (found_inf) {
        t->current_scale = (float)((double)t->current_scale * backoff_factor);
        t->growth_tracker = 0;
        return;
    }
    int successful = t->growth_tracker + 1;
    if (successful == growth_interval) {
        float new_scale = (float)((double)t->current_scale * growth_factor);
        if (isfinite(new_scale))
            t->current_scale = new_scale;
        t->growth_tracker = 0;
    } else {
        t->growth_tracker = successful;
    }
}

static uint64_t draw(uint64_t *state) /* Vigna's splitmix64 */
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Overflows come singly with one rate and in bursts with another, so that windows fill and
 * hysteresis runs out. */
static int overflows(uint64_t *seed, int step, double rate)
{
    const double x = (double)(draw(seed) >> 11) * 0x1p-53;
    return x < ((step / 97) % 11 == 5 ? 8 * rate : rate);
}

static void test_deepspeed(void **state)
{
    static const struct {
        double first, least, rate;
        int window, hysteresis, is_consecutive;
    } row[] = {
        {65536, 1, 0.001, 1000, 2, 0},  {65536, 1, 0.02, 10, 2, 0}, {65536, 1, 0.02, 10, 2, 1},
        {4294967296, 1, 0.05, 5, 1, 0}, {65536, 128, 0.1, 1, 4, 0}, {65536, 128, 0.1, 1, 4, 1},
        {1024, 0.25, 0.05, 20, 3, 0},   {3, 0.7, 0.01, 50, 2, 1},   {65536, 1, 0, 1000, 2, 0},
        {0.5, 1, 0.2, 2, 1, 1},         {1, 1, 0.5, 1000, 8, 1},
    };
    int raised = 0, grew = 0, fell = 0;
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        const struct ku_loss_scale_rule rule = {.policy = KU_LOSS_SCALE_DEEPSPEED,
                                                .window = row[i].window,
                                                .hysteresis = row[i].hysteresis,
                                                .is_consecutive = row[i].is_consecutive,
                                                .least = row[i].least};
        struct theirs t = {.cur_scale = row[i].first,
                           .scale_factor = 2,
                           .min_scale = row[i].least,
                           .last_overflow_iter = -1,
                           .scale_window = row[i].window,
                           .delayed_shift = row[i].hysteresis,
                           .cur_hysteresis = row[i].hysteresis,
                           .consecutive_hysteresis = row[i].is_consecutive};
        struct ku_loss_scale s;
        uint64_t seed = i + 1;
        assert_int_equal(ku_loss_scale_start(&rule, row[i].first, &s), KUMI_OK);
        for (int step = 0; step < STEPS; step++) {
            const int overflow = overflows(&seed, step, row[i].rate);
            const double was = s.scale;
            if (update_scale(&t, overflow)) {
                const struct ku_loss_scale before = s;
                assert_int_equal(ku_loss_scale_next(&rule, &s, overflow, &s), KUMI_ENUMERIC);
                assert_memory_equal(&before, &s, sizeof s);
                assert_non_null(strstr(ku_err_get()->text,
                                       "Current loss scale already at minimum - cannot decrease "
                                       "scale anymore. Exiting run."));
                raised++;
                t.cur_scale *= 64; /* both go on from above */
                s.scale *= 64;
                continue;
            }
            assert_int_equal(ku_loss_scale_next(&rule, &s, overflow, &s), KUMI_OK);
            assert_true(s.scale == t.cur_scale);
            assert_int_equal(s.left, t.cur_hysteresis);
            assert_int_equal(s.last_overflow, t.last_overflow_iter);
            assert_int_equal(s.step, t.cur_iter);
            grew += s.scale > was;
            fell += s.scale < was;
            if (s.scale > 0x1p40) { /* out of any real run */
                t.cur_scale = 65536;
                s.scale = 65536;
            }
        }
    }
    assert_true(raised > 10 && grew > 1000 && fell > 1000); /* all of it was seen */
}

static void test_pytorch(void **state)
{
    static const struct {
        float first;
        double growth, backoff, rate;
        int window;
    } row[] = {
        {65536, 2, 0.5, 0.0005, 2000}, {65536, 2, 0.5, 0.02, 10}, {1, 1.001, 0.999, 0.1, 3},
        {1e30F, 1.7, 0.3, 0.2, 2},     {3e38F, 2, 0.5, 0, 1},     {1e-40F, 2, 0.5, 0.3, 2},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        const struct ku_loss_scale_rule rule = {.policy = KU_LOSS_SCALE_PYTORCH,
                                                .window = row[i].window,
                                                .growth = row[i].growth,
                                                .backoff = row[i].backoff};
        struct torch_scaler t = {.current_scale = row[i].first};
        struct ku_loss_scale s;
        uint64_t seed = i + 77;
        assert_int_equal(ku_loss_scale_start(&rule, (double)row[i].first, &s), KUMI_OK);
        for (int step = 0; step < STEPS; step++) {
            const int overflow = overflows(&seed, step, row[i].rate);
            amp_update_scale(&t, row[i].growth, row[i].backoff, row[i].window, overflow);
            assert_int_equal(ku_loss_scale_next(&rule, &s, overflow, &s), KUMI_OK);
            assert_true(s.scale == (double)t.current_scale);
            assert_int_equal(s.good, t.growth_tracker);
            assert_int_equal(s.step, step + 1);
        }
    }
}

/* By hand: two overflows of which the first is forgiven, then a window. */
static void test_steps(void **state)
{
    static const struct {
        int overflow;
        double scale;
        int left;
    } row[] = {{0, 8, 2}, {1, 8, 1}, {1, 4, 1}, {0, 4, 1}, {0, 4, 1}, {0, 8, 2},
               {0, 8, 2}, {1, 8, 1}, {0, 8, 1}, {1, 4, 1}, {1, 2, 1}, {1, 1, 1}};
    const struct ku_loss_scale_rule rule = {.window = 2, .hysteresis = 2, .least = 1};
    struct ku_loss_scale s;
    (void)state;
    assert_int_equal(ku_loss_scale_start(&rule, 8, &s), KUMI_OK);
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        assert_int_equal(ku_loss_scale_next(&rule, &s, row[i].overflow, &s), KUMI_OK);
        assert_true(s.scale == row[i].scale);
        assert_int_equal(s.left, row[i].left);
    }
    assert_int_equal(ku_loss_scale_next(&rule, &s, 1, &s), KUMI_ENUMERIC);
    const struct ku_loss_scale_rule fixed = {.policy = KU_LOSS_SCALE_STATIC};
    assert_int_equal(ku_loss_scale_start(&fixed, 1024, &s), KUMI_OK);
    assert_int_equal(ku_loss_scale_next(&fixed, &s, 1, &s), KUMI_OK);
    assert_true(s.scale == 1024 && s.step == 1);
}

static void test_bad(void **state)
{
    const struct ku_loss_scale_rule good = {.window = 1, .hysteresis = 1, .least = 1},
                                    torch = {.policy = KU_LOSS_SCALE_PYTORCH, .window = 1};
    const struct {
        struct ku_loss_scale_rule rule;
        double first;
        const char *text;
    } row[] = {
        {good, 0, "loss scale: the first scale: 0; a number above 0"},
        {good, (double)INFINITY, "loss scale: the first scale: inf; a number above 0"},
        {good, (double)NAN, "loss scale: the first scale: nan; a number above 0"},
        {{.window = 0, .hysteresis = 1, .least = 1}, 1, "loss scale: window: 0; at least 1 step"},
        {{.window = 1, .hysteresis = 0, .least = 1}, 1, "loss scale: hysteresis: 0; at least 1"},
        {{.window = 1, .hysteresis = 1, .least = 0},
         1,
         "loss scale: min_scale: 0; a number above 0"},
        {torch, 1, "loss scale: growth: 0; above 1"},
        {{.policy = KU_LOSS_SCALE_PYTORCH, .window = 1, .growth = 2, .backoff = 1},
         1,
         "loss scale: backoff: 1; between 0 and 1"},
    };
    struct ku_loss_scale s;
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        assert_int_equal(ku_loss_scale_start(&row[i].rule, row[i].first, &s), KUMI_EINVAL);
        assert_string_equal(ku_err_get()->text, row[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_deepspeed),
        cmocka_unit_test(test_pytorch),
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_bad),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
