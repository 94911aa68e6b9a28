/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor op device */
/* Optimizers, averages and schedules against PyTorch in f64 (tools/fixtures/optim/make.py): ref in
 * f64, cpu in f32. */
#include "device/step_scalars.h"
#include "op/check.h"

enum { N_STEPS = 50, N_MATRIX = 15, N_VECTOR = 4, N_ALL = N_MATRIX + N_VECTOR };

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

static const struct {
    double decay, want[N_MATRIX];
} averages[] = {
#define AVERAGE(decay, ...) {decay, {__VA_ARGS__}},
#include "../fixtures/optim/averages.h"
#undef AVERAGE
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
#include "op/schedule.h"
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

/* One parameter, its optimizer's tensors and what a step gives it: in f64 for ref, else f32. */
struct param {
    const struct op_device *d;
    enum kumi_dtype dtype;
    double p[N_MATRIX], s[3][N_MATRIX], g[N_MATRIX], average[N_MATRIX]; /* bytes, of dtype */
    double report[KU_REPORT_WORDS], norms[2], inverse, row[N_MATRIX], col[N_MATRIX];
    int64_t factors[2 * N_MATRIX];
    int64_t trust[2 * KU_EXACT_WORDS];
    int64_t n;
};

static struct ku_view view_of(void *data, enum kumi_dtype dtype, int64_t n)
{
    struct ku_view v = {.data = data, .dtype = dtype, .shape = ku_shape_of("c", &n)};
    v.logical[0] = n;
    return v;
}

/* By letter: p g (the parameter's), 0 1 2 its optimizer's (r c of a matrix of 3 x 5: row_var,
 * col_var; R C: their next, i 1 / mean), a average, report s, t trust, n norms, f factors. */
static struct ku_view operand(struct param *x, char letter)
{
    enum { ROWS = 3, COLS = 5 };
    int64_t dims[2] = {ROWS, COLS};
    struct ku_view v;
    switch (letter) {
    case 'p':
    case 'g':
        v = view_of(letter == 'p' ? x->p : x->g, x->dtype, x->n);
        if (x->n == N_MATRIX)
            v.shape = ku_shape_of("rc", dims), v.logical[0] = ROWS, v.logical[1] = COLS;
        return v;
    case 'a':
        return view_of(x->average, x->dtype, x->n);
    case 'r':
        return view_of(x->s[0], x->dtype, ROWS);
    case 'c':
        return view_of(x->s[1], x->dtype, COLS);
    case 'R':
        return view_of(x->row, x->dtype, ROWS);
    case 'C':
        return view_of(x->col, x->dtype, COLS);
    case 'i':
        return view_of(&x->inverse, KUMI_F64, 1);
    case 's':
        return view_of(x->report, KUMI_F64, KU_REPORT_WORDS);
    case 't':
        return view_of(x->trust, KUMI_I64, 2 * KU_EXACT_WORDS);
    case 'n':
        return view_of(x->norms, KUMI_F64, 2);
    case 'f':
        return view_of(x->factors, KUMI_I64, 2 * (ROWS + COLS));
    default:
        v = view_of(x->s[letter - '0'], x->dtype, x->n);
        if (x->n == N_MATRIX)
            v.shape = ku_shape_of("rc", dims), v.logical[0] = ROWS, v.logical[1] = COLS;
        return v;
    }
}

/* Runs op on operands by letter. */
static void run(int op, const struct ku_attrs *a, struct param *x, const char *operands)
{
    struct ku_call c = {.op = op, .attr = a, .n_out = ku_ops[op].min_out};
    double workspace[64];
    struct ku_kernel *kernel;
    c.workspace = workspace;
    for (const char *o = operands; *o; o++)
        c.in[c.n_in++] = operand(x, *o);
    for (int i = 0; i < c.n_out; i++) {
        int pair = ku_op_pair(ku_ops[op].inout, i);
        c.out[i] = pair >= 0 ? c.in[pair] : operand(x, op == KU_OP_factor_means ? "RCi"[i] : 'n');
    }
    if (x->d->ops->bind(x->d->dev, &c, &kernel) < 0)
        fail_msg("%s: %s", ku_ops[op].name, ku_err_get()->text);
    assert_int_equal(x->d->ops->launch(x->d->dev, kernel, NULL, NULL), KUMI_OK);
    x->d->ops->unbind(x->d->dev, kernel);
}

/* As the update pass has them: a vector is not adapted. */
static void update(int op, const struct ku_attrs *a, struct param *x, int is_vector)
{
    static const char *const plain[] = {"", "p0gs", "p01gs", "p012gs"};
    memset(x->trust, 0, sizeof x->trust);
    if (op == KU_OP_lars && !is_vector) {
        run(KU_OP_trust_sums, a, x, "pgt");
        run(KU_OP_trust_norms, a, x, "t");
        run(op, a, x, "p0gsn");
    } else if (op == KU_OP_lamb && !is_vector) {
        run(KU_OP_lamb_moments, a, x, "p01gst");
        run(KU_OP_trust_norms, a, x, "t");
        run(op, a, x, "p01sn");
    } else if (op == KU_OP_adafactor && !is_vector) {
        memset(x->factors, 0, sizeof x->factors);
        run(KU_OP_factor_sums, a, x, "gsf");
        run(KU_OP_factor_means, a, x, "frcs");
        run(KU_OP_factor_norms, a, x, "pgRCist");
        run(KU_OP_trust_norms, a, x, "t");
        run(op, a, x, "pgRCisn");
        memcpy(x->s[0], x->row, sizeof x->row);
        memcpy(x->s[1], x->col, sizeof x->col);
    } else if (op == KU_OP_adafactor) {
        run(KU_OP_variance_norms, a, x, "p0gst");
        run(KU_OP_trust_norms, a, x, "t");
        run(KU_OP_adafactor_vector, a, x, "p0gsn");
    } else {
        int is = op == KU_OP_lars ? KU_OP_sgd : op == KU_OP_lamb ? KU_OP_adamw : op;
        run(is, a, x, plain[ku_ops[is].min_out - 1]);
    }
}

static struct param param_of(const struct op_device *d, int tensor, double first)
{
    struct param x = {.d = d, .n = tensor ? N_VECTOR : N_MATRIX};
    x.dtype = d->ops == &ku_device_ref ? KUMI_F64 : KUMI_F32;
    for (int64_t i = 0; i < x.n; i++) {
        ku_store_f64(x.p, x.dtype, i, formula(tensor, i));
        for (int s = 0; s < 3; s++)
            ku_store_f64(x.s[s], x.dtype, i, first);
    }
    return x;
}
static void set_step(struct param *x, const struct ku_attrs *a, int tensor, int step)
{
    const double scale = 0.25; /* gradients arrive as sums */
    for (int64_t i = 0; i < x->n; i++)
        ku_store_f64(x->g, x->dtype, i, formula(2 * step + tensor + 2, i) / scale);
    x->report[KU_REPORT_LR] = ku_schedule_lr(a, step);
    x->report[KU_REPORT_APPLY] = 1;
    x->report[KU_REPORT_NORM] = 20; /* at least the gradient's */
    x->report[KU_REPORT_SCALE] = scale;
    x->report[KU_REPORT_UPDATE] = step + 1;
}

/* f64: each figure to 1e-12; f32: all together to 1e-6 of their norm. */
static void expect_figures(const struct param *x, const char *what, const double *want)
{
    double off = 0, norm = 0;
    for (int64_t i = 0; i < x->n; i++) {
        double got = ku_load_f64(x->p, x->dtype, i);
        off += (got - want[i]) * (got - want[i]), norm += want[i] * want[i];
        if (x->dtype == KUMI_F64)
            expect_figure(what, (int)i, got, want[i]);
    }
    if (!(sqrt(off) <= 1e-6 * sqrt(norm)))
        fail_msg("%s: %s: off by %.3g of the norm", x->d->name, what, sqrt(off / norm));
}

static void check_optimizer(const struct op_device *d, const struct optimizer_row *row)
{
    struct ku_attrs a;
    char what[200];
    parse_attrs(row->attrs, &a);
    for (int k = 0; k < 2; k++) {
        a.rows = a.rows_seen = 3, a.cols = 5, a.count = k ? N_VECTOR : N_MATRIX;
        struct param x = param_of(d, k, a.value); /* value: adagrad's first sums */
        for (int step = 0; step < N_STEPS; step++) {
            set_step(&x, &a, k, step);
            update(row->op, &a, &x, k);
        }
        snprintf(what, sizeof what, "%s %s", ku_ops[row->op].name, row->attrs);
        expect_figures(&x, what, row->want + (k ? N_MATRIX : 0));
    }
}

static void check_average(const struct op_device *d, double decay, const double *want)
{
    struct ku_attrs a;
    struct param x = param_of(d, 0, 0);
    parse_attrs("lr=0.1 momentum=0.9", &a);
    a.ema = decay;
    for (int step = 0; step < N_STEPS; step++) {
        set_step(&x, &a, 0, step);
        update(KU_OP_sgd, &a, &x, 0);
        run(KU_OP_ema, &a, &x, "aps");
    }
    memcpy(x.p, x.average, sizeof x.p);
    expect_figures(&x, "average", want);
}

/*
 * Adafactor's sums by row and by column keep small elements, however large the norm is that
 * clipping to 1 divides by: one element is `norm`, the others are norm 2^-30.
 */
static void check_clipped_factors(const struct op_device *d)
{
    static const double norms[] = {1, 0x1p20, 0x1p40, 0x1p60};
    struct ku_attrs a;
    parse_attrs("lr=0.1 clip=1", &a);
    a.rows = a.rows_seen = 3, a.cols = 5, a.count = N_MATRIX;
    for (size_t k = 0; k < sizeof norms / sizeof norms[0]; k++) {
        struct param x = param_of(d, 0, 0);
        const double small = norms[k] * 0x1p-30;
        set_step(&x, &a, 0, 0);
        for (int64_t i = 0; i < x.n; i++)
            ku_store_f64(x.g, x.dtype, i, i == 0 ? norms[k] : small);
        x.report[KU_REPORT_NORM] = norms[k];
        x.report[KU_REPORT_SCALE] = ku_clip_factor(&a, norms[k]);
        run(KU_OP_factor_sums, &a, &x, "gsf");
        run(KU_OP_factor_means, &a, &x, "frcs");
        const double root = small * x.report[KU_REPORT_SCALE], want = root * root;
        for (int64_t i = 1; i < 3; i++) {
            const double row = ku_load_f64(x.row, x.dtype, i), col = ku_load_f64(x.col, x.dtype, i);
            if (!(fabs(row - want) <= 0x1p-20 * want && fabs(col - want) <= 0x1p-20 * want))
                fail_msg("%s: norm %g: row_var %g, col_var %g; it is %g", d->name, norms[k], row,
                         col, want);
        }
    }
}

static void check_device(const struct ku_device_ops *ops)
{
    struct op_device d = device_open(ops, ku_cpu_isa(), 1);
    for (size_t i = 0; i < sizeof optimizers / sizeof optimizers[0]; i++)
        check_optimizer(&d, &optimizers[i]);
    for (size_t i = 0; i < sizeof averages / sizeof averages[0]; i++)
        check_average(&d, averages[i].decay, averages[i].want);
    check_clipped_factors(&d);
    device_close(&d);
}

static void test_optimizers(void **state)
{
    (void)state;
    check_device(&ku_device_ref);
    check_device(&ku_device_cpu);
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

/*
 * DeepSpeed's schedules over 10,000 updates, said again step by step as its documentation and
 * formulas do: a scheduler is made, which sets the first values, and steps after each update.
 */
struct ds {
    double min, max, first, second, decay_size, decay_lr, min_mom, max_mom, decay_mom;
    double steps, total, lr;
    int is_linear;
};
typedef void ds_fn(const struct ds *d, int64_t it, double *lr, double *momentum);

static double ds_gamma(const struct ds *d, int64_t it)
{
    return d->is_linear ? (double)it / d->steps : log((double)it + 1) / log(d->steps);
}
static void ds_warmup(const struct ds *d, int64_t it, double *lr, double *momentum)
{
    double gamma = it < 0 ? 0 : it < (int64_t)d->steps ? ds_gamma(d, it) : 1;
    (void)momentum;
    *lr = d->min + (d->max - d->min) * gamma;
}
static void ds_decay(const struct ds *d, int64_t it, double *lr, double *momentum)
{
    ds_warmup(d, it, lr, momentum);
    if (it >= (int64_t)d->steps) {
        double left = (d->total - (double)it) / (d->total - d->steps);
        *lr = d->min + (d->max - d->min) * (left > 0 ? left : 0);
    }
}
static void ds_cosine(const struct ds *d, int64_t it, double *lr, double *momentum)
{
    double part = ((double)it - d->steps + 1) / (d->total - d->steps);
    (void)momentum;
    if (it < 0)
        *lr = 0;
    else if (it < (int64_t)d->steps)
        *lr = d->lr * (d->min + (1 - d->min) * ds_gamma(d, it));
    else
        *lr = d->lr * (d->max + (1 - d->max) * (0.5 + 0.5 * cos(acos(-1) * (part < 1 ? part : 1))));
}
static void ds_range(const struct ds *d, int64_t it, double *lr, double *momentum)
{
    int64_t at = it + 1, whole = at / (int64_t)d->first;
    (void)momentum;
    *lr = d->min * (1 + d->max * (d->is_linear ? (double)at / d->first : (double)whole));
}
static void ds_cycle(const struct ds *d, int64_t it, double *lr, double *momentum)
{
    const double total = d->first + d->second, at = (double)it + 1;
    if ((double)it < total) {
        double up = at <= d->first ? at / d->first : 1 - (at - d->first) / d->second;
        *lr = d->min + (d->max - d->min) * up;
        *momentum = it < 0 ? d->min_mom : d->max_mom - (d->max_mom - d->min_mom) * up;
    } else {
        double n = d->decay_size > 0 ? ((double)it - total + 1) / d->decay_size : 0;
        *lr = d->min / (1 + d->decay_lr * n);
        *momentum = fmin(d->max_mom * (1 + d->decay_mom * n), 1 - 0x1p-20);
    }
}

static void test_deepspeed(void **state)
{
    static const struct {
        const char *attrs;
        ds_fn *fn;
        struct ds d;
    } row[] = {
        {"schedule=warmup_lr args=0.001,0.1,1000",
         ds_warmup,
         {.min = 1e-3, .max = 0.1, .steps = 1e3}},
        {"schedule=warmup_lr args=0,0.1,2,1", ds_warmup, {.max = 0.1, .steps = 2, .is_linear = 1}},
        {"schedule=warmup_decay_lr args=0.001,0.1,700,1,9000",
         ds_decay,
         {.min = 1e-3, .max = 0.1, .steps = 700, .is_linear = 1, .total = 9000}},
        {"schedule=warmup_decay_lr args=0,0.1,1000,0,20000",
         ds_decay,
         {.max = 0.1, .steps = 1e3, .total = 2e4}},
        {"schedule=warmup_cosine_lr lr=0.3 args=0.1,0.0001,1000,0,8000",
         ds_cosine,
         {.lr = 0.3, .min = 0.1, .max = 1e-4, .steps = 1e3, .total = 8e3}},
        {"schedule=warmup_cosine_lr lr=0.3 args=0,0.01,500,1,10001",
         ds_cosine,
         {.lr = 0.3, .max = 0.01, .steps = 500, .is_linear = 1, .total = 10001}},
        {"schedule=lr_range_test args=0.001,2000,1",
         ds_range,
         {.min = 1e-3, .first = 2000, .max = 1, .is_linear = 1}},
        {"schedule=lr_range_test args=0.001,300,5,1",
         ds_range,
         {.min = 1e-3, .first = 300, .max = 5}},
        {"schedule=ds_one_cycle cycle_momentum=1 args=0.01,0.1,2000,3000,100,0.5,0.8,0.9",
         ds_cycle,
         {.min = 0.01,
          .max = 0.1,
          .first = 2e3,
          .second = 3e3,
          .decay_size = 100,
          .decay_lr = 0.5,
          .min_mom = 0.8,
          .max_mom = 0.9}},
        {"schedule=ds_one_cycle cycle_momentum=1 args=0.01,0.1,400,400,1000,0,0.8,0.9,0.005",
         ds_cycle,
         {.min = 0.01,
          .max = 0.1,
          .first = 400,
          .second = 400,
          .decay_size = 1000,
          .min_mom = 0.8,
          .max_mom = 0.9,
          .decay_mom = 0.005}},
        {"schedule=ds_one_cycle cycle_momentum=1 args=0.01,0.1,400,500,0,9,0.8,0.9,9",
         ds_cycle,
         {.min = 0.01, .max = 0.1, .first = 400, .second = 500, .min_mom = 0.8, .max_mom = 0.9}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_attrs a;
        parse_attrs(row[i].attrs, &a);
        for (int u = 0; u < 10000; u++) {
            double lr = 0, momentum = 0.9;
            row[i].fn(&row[i].d, u - 1, &lr, &momentum);
            expect_figure(row[i].attrs, 2 * u, ku_schedule_lr(&a, u), lr);
            expect_figure(row[i].attrs, 2 * u + 1, ku_schedule_momentum(&a, 0.9, u), momentum);
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optimizers), cmocka_unit_test(test_schedules),
        cmocka_unit_test(test_deepspeed), cmocka_unit_test(test_ends)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
