/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor op device */
/*
 * Op loss_scaler beside the pure state machine, over 10,000 steps of seeded overflows each, on both
 * devices; and what the same state means to loss_seed and step_scalars.
 */
#include "device/step_scalars.h"
#include "op/check.h"

enum { STEPS = 10000 };

static struct ku_view words_of(void *data, enum kumi_dtype dtype, int64_t n)
{
    struct ku_view v = {.data = data, .dtype = dtype, .shape = ku_shape_of("w", &n)};
    v.logical[0] = n;
    return v;
}

static void launch(const struct op_device *d, const struct ku_call *c)
{
    struct ku_kernel *kernel;
    if (d->ops->bind(d->dev, c, &kernel) < 0)
        fail_msg("%s: %s: %s", d->name, ku_ops[c->op].name, ku_err_get()->text);
    assert_int_equal(d->ops->launch(d->dev, kernel, NULL, NULL), KUMI_OK);
    d->ops->unbind(d->dev, kernel);
}

static int64_t bits_of(double x)
{
    int64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Bursts, so that hysteresis runs out and windows fill. */
static int overflows(int step, double rate)
{
    const double x = ku_random_u32(5, 0, 9, (uint64_t)step) * 0x1p-32;
    return x < ((step / 97) % 11 == 5 ? 8 * rate : rate);
}

static void expect_words(const char *text, int step, const double *words,
                         const struct ku_loss_scale *s, int64_t skipped)
{
    const double want[] = {
        s->scale,        (double)s->step, (double)s->last_overflow, (double)s->left,
        (double)s->good, (double)skipped, words[KU_SCALER_IS_SPENT]};
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++)
        if (bits_of(words[i]) != bits_of(want[i]))
            fail_msg("%s: step %d: word %zu: %.17g, expected %.17g", text, step, i, words[i],
                     want[i]);
}

/* What backward starts from: the scale times 2^-7, in f32. */
static double seed_of(const struct op_device *d, const struct ku_attrs *rule, double *words)
{
    struct ku_attrs a = *rule;
    float seed = 0;
    a.shift = 7;
    struct ku_call c = {.op = KU_OP_loss_seed, .attr = &a, .n_in = 1, .n_out = 1};
    c.in[0] = words_of(words, KUMI_F64, KU_SCALER_WORDS);
    c.out[0] = (struct ku_view){.data = &seed, .dtype = KUMI_F32};
    launch(d, &c);
    return (double)seed;
}

static int run(const struct op_device *d, const char *text, double rate)
{
    struct ku_attrs a;
    struct ku_loss_scale s;
    double words[KU_SCALER_WORDS] = {0}, report[KU_REPORT_WORDS] = {0};
    int64_t skipped = 0;
    int n_spent = 0;
    parse_attrs(text, &a);
    const struct ku_loss_scale_rule rule = ku_scaler_rule(&a);
    assert_int_equal(ku_scaler_check(&a), KUMI_OK);
    assert_int_equal(ku_loss_scale_start(&rule, a.loss_scale, &s), KUMI_OK);
    struct ku_call c = {.op = KU_OP_loss_scaler, .attr = &a, .n_in = 2, .n_out = 1};
    c.in[0] = c.out[0] = words_of(words, KUMI_F64, KU_SCALER_WORDS);
    c.in[1] = words_of(report, KUMI_F64, KU_REPORT_WORDS);
    for (int step = 0; step < STEPS; step++) {
        const int overflow = overflows(step, rate);
        if (seed_of(d, &a, words) != (double)(float)ldexp(s.scale, -7))
            fail_msg("%s: step %d: seed", text, step);
        report[KU_REPORT_APPLY] = !overflow;
        launch(d, &c);
        skipped += overflow;
        const int is_spent = ku_loss_scale_next(&rule, &s, overflow, &s) < 0;
        assert_int_equal(words[KU_SCALER_IS_SPENT] != 0, is_spent);
        expect_words(text, step, words, &s, skipped);
        if (is_spent) { /* both go on from above */
            words[KU_SCALER_SCALE] = s.scale *= 64;
            n_spent++;
        }
    }
    assert_true(skipped > 0 || rate == 0);
    return n_spent;
}

static void beside_the_machine(void **state)
{
    static const struct {
        const char *attrs;
        double rate;
    } row[] = {
        {"loss_scale=65536", 0.001},
        {"loss_scale=65536 scale_window=10", 0.02},
        {"loss_scale=65536 scale_window=10 consecutive_hysteresis=1", 0.02},
        {"loss_scale=4294967296 scale_window=5 hysteresis=1", 0.05},
        {"loss_scale=65536 scale_window=1 hysteresis=4 min_scale=128", 0.1},
        {"loss_scale=3 scale_window=50 min_scale=0.7 consecutive_hysteresis=1", 0.01},
        {"loss_scale=1 hysteresis=3", 0.05},
        {"loss_scale=65536", 0},
        {"loss_scale=65536 scaler=torch scale_window=2000", 0.0005},
        {"loss_scale=65536 scaler=torch scale_window=7 growth_factor=1.5 backoff_factor=0.3", 0.05},
        {"loss_scale=1000.5 scaler=static", 0.1},
    };
    struct op_device dev[] = {ref_device(), device_open(&ku_device_cpu, KU_ISA_BASE, 2)};
    int n_spent = 0;
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        for (int d = 0; d < 2; d++)
            n_spent += run(&dev[d], row[i].attrs, row[i].rate);
    assert_true(n_spent > 0);
    device_close(&dev[0]);
    device_close(&dev[1]);
}

/* A power of two in the scale leaves no trace: norm, factor and clipping are of what the gradients
 * are without it. */
static void report_is_unscaled(void **state)
{
    static const struct op_row plain = {"step_scalars", "clip=1 shift=3 lr=0.001",
                                        "e:w75 e:w72 c:w1 c:w1", 2},
                               scaled = {"step_scalars", "clip=1 shift=3 lr=0.001 loss_scale=65536",
                                         "e:w75 e:w72 c:w1 c:w1 L:w8", 2};
    struct op_device d = ref_device();
    struct op_call a, b;
    (void)state;
    call_parse(&plain, KUMI_F32, &a);
    call_parse(&scaled, KUMI_F32, &b);
    int64_t *stats[2] = {a.in[0].data, b.in[0].data};
    struct ku_exact sum[2];
    for (int i = 0; i < 2; i++) { /* squares of gradients that the scale has grown */
        ku_exact_zero(&sum[i]);
        ku_exact_add(&sum[i], i ? 1.3 * 0x1p30 : 1.3);
        memset(stats[i], 0, 75 * sizeof *stats[i]);
        memcpy(stats[i], &sum[i], sizeof sum[i]);
    }
    struct op_result x = call_run(&d, &a, 0), y = call_run(&d, &b, 0);
    const double *p = x.out[0].data, *q = y.out[0].data;
    assert_true(p[KU_REPORT_APPLY] == 1 && q[KU_REPORT_APPLY] == 1);
    assert_int_equal(bits_of(p[KU_REPORT_NORM]), bits_of(q[KU_REPORT_NORM]));
    assert_int_equal(bits_of(p[KU_REPORT_SCALE]), bits_of(q[KU_REPORT_SCALE] * 32768));
    assert_int_equal(bits_of(p[KU_REPORT_LOSS]), bits_of(q[KU_REPORT_LOSS]));
    result_fini(&x);
    result_fini(&y);
    call_fini(&a);
    call_fini(&b);
    device_close(&d);
}

static void bad_rules(void **state)
{
    static const char *const row[][2] = {
        {"loss_scale=65536 scale_window=0", "loss scale: window: 0; at least 1 step"},
        {"loss_scale=65536 min_scale=0", "loss scale: min_scale: 0; a number above 0"},
        {"loss_scale=-1 scaler=static", "loss scale: the first scale: -1; a number above 0"},
        {"loss_scale=65536 scaler=torch backoff_factor=1",
         "loss scale: backoff: 1; between 0 and 1"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_attrs a;
        parse_attrs(row[i][0], &a);
        assert_int_equal(ku_scaler_check(&a), KUMI_EINVAL);
        assert_string_equal(ku_err_get()->text, row[i][1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(beside_the_machine),
                                       cmocka_unit_test(report_is_unscaled),
                                       cmocka_unit_test(bad_rules)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
