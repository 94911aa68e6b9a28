/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor op device */
/* Optimizers and schedules against PyTorch in f64 (tools/fixtures/optim/make.py), on ref. */
#include "device/scalars.h"
#include "op/check.h"

enum { N_STEPS = 10, N_MATRIX = 15, N_VECTOR = 4, N_ALL = N_MATRIX + N_VECTOR };

struct optimizer_row {
    int op;
    const char *attrs;
    double want[N_ALL];
};
static const struct optimizer_row optimizers[] = {
#define OPTIMIZER(name, attrs, ...) {KU_OP_##name, attrs, {__VA_ARGS__}},
#include "../fixtures/optim/optimizers.h"
#undef OPTIMIZER
};

/* (learning rate, momentum) of each update, closed by a negative one. */
enum { MAX_FIGURES = 80 };
struct schedule_row {
    const char *attrs;
    double want[MAX_FIGURES];
};
static const struct schedule_row schedules[] = {
#define SCHEDULE(attrs, ...) {attrs, {__VA_ARGS__, -1}},
#include "../fixtures/optim/schedules.h"
#undef SCHEDULE
};

static void expect_figure(const char *what, int i, double got, double want)
{
    if (!(fabs(got - want) <= 1e-12 * fmax(1e-3, fabs(want))))
        fail_msg("%s: figure %d: %.17g, PyTorch has %.17g", what, i, got, want);
}

/* The generator's value(). */
static double formula(int tensor, int64_t i)
{
    return ((double)((37 * (i + 1) + 101 * tensor) % 211) - 105) / 64;
}

/* One parameter, its optimizer's tensors and what a step gives it. */
struct param {
    double p[N_MATRIX], m[N_MATRIX], v[N_MATRIX], g[N_MATRIX], report[KU_REPORT_WORDS], norms[2];
    int64_t trust[2 * KU_EXACT_WORDS];
    int64_t n;
};

static struct ku_view view_of(void *data, enum kumi_dtype dtype, int64_t n)
{
    struct ku_view v = {.data = data, .dtype = dtype, .shape = ku_shape_of("c", &n)};
    v.logical[0] = n;
    return v;
}

/* Runs op on operands by letter: p m v g (the parameter's), r report, t trust, n norms. */
static void run(int op, const struct ku_attrs *a, struct param *x, const char *operands)
{
    struct ku_call c = {.op = op, .attr = a, .n_out = ku_ops[op].min_out};
    struct ku_kernel *kernel;
    for (const char *o = operands; *o; o++)
        c.in[c.n_in++] = *o == 'p'   ? view_of(x->p, KUMI_F64, x->n)
                         : *o == 'm' ? view_of(x->m, KUMI_F64, x->n)
                         : *o == 'v' ? view_of(x->v, KUMI_F64, x->n)
                         : *o == 'g' ? view_of(x->g, KUMI_F64, x->n)
                         : *o == 'r' ? view_of(x->report, KUMI_F64, KU_REPORT_WORDS)
                         : *o == 't' ? view_of(x->trust, KUMI_I64, 2 * KU_EXACT_WORDS)
                                     : view_of(x->norms, KUMI_F64, 2);
    for (int i = 0; i < c.n_out; i++) {
        int pair = ku_op_pair(ku_ops[op].inout, i);
        c.out[i] = pair >= 0 ? c.in[pair] : view_of(x->norms, KUMI_F64, 2);
    }
    if (ku_device_ref.bind(NULL, &c, &kernel) < 0)
        fail_msg("%s: %s", ku_ops[op].name, ku_err_get()->text);
    assert_int_equal(ku_device_ref.launch(NULL, kernel, NULL, NULL), KUMI_OK);
    ku_device_ref.unbind(NULL, kernel);
}

/* As the update pass has them: a vector is not adapted. */
static void update(int op, const struct ku_attrs *a, struct param *x, int is_vector)
{
    memset(x->trust, 0, sizeof x->trust);
    if (op == KU_OP_lars && !is_vector) {
        run(KU_OP_trust_sums, a, x, "pgt");
        run(KU_OP_trust_norms, a, x, "t");
        run(op, a, x, "pmgrn");
    } else if (op == KU_OP_lamb && !is_vector) {
        run(KU_OP_lamb_moments, a, x, "pmvgrt");
        run(KU_OP_trust_norms, a, x, "t");
        run(op, a, x, "pmvrn");
    } else if (op == KU_OP_lars || op == KU_OP_sgd) {
        run(KU_OP_sgd, a, x, "pmgr");
    } else {
        run(op == KU_OP_lamb ? KU_OP_adamw : op, a, x, "pmvgr");
    }
}

static void check_optimizer(const struct optimizer_row *row)
{
    struct ku_attrs a;
    struct param x[2] = {{.n = N_MATRIX}, {.n = N_VECTOR}};
    char what[200];
    parse_attrs(row->attrs, &a);
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < x[k].n; i++)
            x[k].p[i] = formula(k, i);
    for (int step = 0; step < N_STEPS; step++)
        for (int k = 0; k < 2; k++) {
            double scale = 0.25; /* gradients arrive as sums */
            for (int64_t i = 0; i < x[k].n; i++)
                x[k].g[i] = formula(2 * step + k + 2, i) / scale;
            x[k].report[KU_REPORT_LR] = ku_schedule_lr(&a, step);
            x[k].report[KU_REPORT_APPLY] = 1;
            x[k].report[KU_REPORT_SCALE] = scale;
            x[k].report[KU_REPORT_UPDATE] = step + 1;
            update(row->op, &a, &x[k], k);
        }
    snprintf(what, sizeof what, "%s %s", ku_ops[row->op].name, row->attrs);
    for (int i = 0; i < N_ALL; i++)
        expect_figure(what, i, i < N_MATRIX ? x[0].p[i] : x[1].p[i - N_MATRIX], row->want[i]);
}

static void test_optimizers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof optimizers / sizeof optimizers[0]; i++)
        check_optimizer(&optimizers[i]);
}

static void test_schedules(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof schedules / sizeof schedules[0]; i++) {
        struct ku_attrs a;
        parse_attrs(schedules[i].attrs, &a);
        for (int u = 0; schedules[i].want[2 * u] >= 0; u++) {
            expect_figure(schedules[i].attrs, 2 * u, ku_schedule_lr(&a, u),
                          schedules[i].want[2 * u]);
            expect_figure(schedules[i].attrs, 2 * u + 1, ku_schedule_momentum(&a, 0.9, u),
                          schedules[i].want[2 * u + 1]);
        }
    }
}

/* Past its end a schedule stays where it came to. */
static void test_ends(void **state)
{
    static const char *const row[] = {"schedule=one_cycle lr=0.1 decay=20 cycle_momentum=1",
                                      "schedule=one_cycle lr=0.1 decay=1",
                                      "schedule=one_cycle lr=0.1 decay=9 pct_start=1",
                                      "schedule=polynomial lr=0.1 decay=10 power=2 min_lr=0.01"};
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_attrs a;
        parse_attrs(row[i], &a);
        double last = ku_schedule_lr(&a, a.decay);
        assert_true(last >= 0 && last < 0.1 + 1e-9);
        expect_figure(row[i], 0, ku_schedule_lr(&a, 1000 * a.decay), last);
        assert_true(isfinite(ku_schedule_momentum(&a, 0.9, 1000 * a.decay)));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_optimizers),
                                       cmocka_unit_test(test_schedules),
                                       cmocka_unit_test(test_ends)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
