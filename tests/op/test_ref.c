/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor op device */
/*
 * The ref device: every op of the table in all float dtypes; values that are known from elsewhere
 * (the other tests hold everything against ref); and what it refuses.
 */
#include "device/step_scalars.h"
#include "op/check.h"
#include "op/schedule.h"

static void test_table(void **state)
{
    static const enum kumi_dtype dtype[] = {KUMI_F64, KUMI_BF16, KUMI_F32, KUMI_F16};
    struct op_devices devs = {1, {{1, {ref_device()}}}, {0}};
    (void)state;
    check_table(&devs, dtype, 4);
    device_close(&devs.of[0].dev[0]);
}

/* -- known values
 * ---------------------------------------------------------------------------------- */

/* A call of one row, in f64, with operands' values replaced: NULL keeps those of the row. */
static struct op_result run_values(const struct op_row *row, const double *const *value)
{
    struct op_device ref = ref_device();
    struct op_call c;
    call_parse(row, KUMI_F64, &c);
    for (int k = 0; k < c.n_in; k++)
        for (int64_t i = 0; value[k] && i < count_of(&c.in[k]); i++)
            ku_store_f64(c.in[k].data, c.in[k].dtype, i, value[k][i]);
    struct op_result r = call_run(&ref, &c, 0);
    call_fini(&c);
    return r;
}
static void expect_known(const char *what, double got, double want)
{
    if (!(fabs(got - want) <= 1e-15 + 1e-13 * fabs(want)))
        fail_msg("%s: %.17g, expected %.17g", what, got, want);
}

struct known {
    struct op_row row;
    const double *in[KU_MAX_IN];
    int out;
    const double *want;
};
#define LIST(...) ((const double[]){__VA_ARGS__})
#define REPORT(t) LIST(0, 0, 0.003, 0, 1, 0.25, t, 0)

static const struct known known_table[] = {
    /* math.erf and math.tanh of Python 3.11 */
    {{"act", "act=gelu_tanh", "x:n5", 1},
     {LIST(-5, -1, 0.5, 1, 3)},
     0,
     LIST(-2.2917961972623857e-07, -0.15880800939172324, 0.34571400982514394, 0.84119199060827676,
          2.9963626079182268)},
    {{"act", "act=gelu_erf", "x:n5", 1},
     {LIST(-5, -1, 0.5, 1, 3)},
     0,
     LIST(-1.4332578593401202e-06, -0.15865525393145707, 0.34573123063700656, 0.84134474606854293,
          2.9959503059051098)},
    {{"act", "act=silu", "x:n3", 1},
     {LIST(-1, 0, 2)},
     0,
     LIST(-0.26894142136999512, 0, 1.7615941559557649)},
    {{"glu", "act=silu", "x:n2 x:n2", 1},
     {LIST(-1, 2), LIST(3, 0.5)},
     0,
     LIST(-0.80682426410998536, 0.88079707797788243)},
    {{"rms_norm", "eps=0.75", "x:n1c4 f:c4", 2},
     {LIST(1, 2, 4, 8), LIST(2, 1, 1, 0)},
     0,
     LIST(0.42640143271122088, 0.42640143271122088, 0.85280286542244177, 0)},
    /* cosine and sine of 3 and of 3 / 100, and those of a million and of ten thousand */
    {{"rope", "", "x:n1t1c4 i9:n1", 1},
     {LIST(1, 0, 0, 1), LIST(3)},
     0,
     LIST(-0.98999249660044545, -0.029995500202495661, 0.14112000805986722, 0.99955003374898754)},
    {{"rope", "", "x:n1t1c4 i9:n1", 1},
     {LIST(1, 0, 0, 1), LIST(1000000)},
     0,
     LIST(0.93675212753314474, 0.30561438888825215, -0.34999350217129294, -0.95215536825901481)},
    /* at length 8 theta is 10000 (2 8 / 4 - 1)^2: cosine and sine of 3 and of 3 / 300; up to 4 as
     * above */
    {{"rope", "rope_type=dynamic factor=2 original=4", "x:n1t1c4 i9:n1 i9:n1", 1},
     {LIST(1, 0, 0, 1), LIST(3), LIST(8)},
     0,
     LIST(-0.98999249660044545, -0.0099998333341666645, 0.14112000805986722, 0.99995000041666526)},
    {{"rope", "rope_type=dynamic factor=2 original=4", "x:n1t1c4 i9:n1 i9:n1", 1},
     {LIST(1, 0, 0, 1), LIST(3), LIST(4)},
     0,
     LIST(-0.98999249660044545, -0.029995500202495661, 0.14112000805986722, 0.99955003374898754)},
    {{"act", "act=relu", "x:n3", 1}, {LIST(-2, 0, 3)}, 0, LIST(0, 0, 3)},
    /* x w + b by hand: the weight is [k, f], with trans [f, k] */
    {{"linear", "", "x:n2c2 x:c2f3 f:f3", 1},
     {LIST(1, 2, 3, 4), LIST(1, 2, 3, 4, 5, 6), LIST(10, 20, 30)},
     0,
     LIST(19, 32, 45, 29, 46, 63)},
    {{"linear", "trans=1", "x:n2c2 x:f3c2", 1},
     {LIST(1, 2, 3, 4), LIST(1, 2, 3, 4, 5, 6)},
     0,
     LIST(5, 11, 17, 11, 25, 39)},
    /* mean 4, variance 9.5 */
    {{"layer_norm", "eps=0.5", "x:n1c4 f:c4 f:c4", 3},
     {LIST(1, 2, 4, 9), LIST(2, 2, 2, 2), LIST(1, 0, 0, 0)},
     0,
     LIST(1 - 1.8973665961010275, -1.2649110640673518, 0, 3.1622776601683795)},
    /* equal scores: a running mean of v = 1, 3, 8 */
    {{"attention", "causal=1", "x:n1t3,3h1d1 k", 2},
     {LIST(0, 5, 1, 0, 6, 3, 0, 7, 8), NULL},
     0,
     LIST(1, 2, 4)},
    {{"attention", "causal=1", "x:n1t3,3h1d1 k", 2},
     {LIST(0, 5, 1, 0, 6, 3, 0, 7, 8), NULL},
     1,
     LIST(0, 0.69314718055994531, 1.0986122886681098)},
    /* equal scores: means of the values that are seen; v = 3, 6, 12 beside 4, 8, 100 */
    {{"attention_kv", "", "x:n2t1h1r2d1 x:n2s3h1d1 x:n2s3h1d1 i4:n2 k", 2},
     {LIST(0, 0, 0, 0), NULL, LIST(3, 6, 12, 4, 8, 100), LIST(3, 2)},
     0,
     LIST(7, 7, 6, 6)},
    {{"attention_kv", "causal=1", "x:n1t2h1d1 x:n1s4h1d1 x:n1s4h1d1 i5:n1s4 k", 2},
     {LIST(0, 0), NULL, LIST(1, 2, 4, 12), LIST(3, 3, 3, 9)},
     0,
     LIST(7. / 3, 12)},
    {{"attention_kv", "", "x:n1t2h1d1 x:n1s2h1d1 x:n1s2h1d1 i5:n1 k", 2},
     {LIST(1, 1), NULL, LIST(1, 2), LIST(0)},
     0,
     LIST(0, 0)},
    /* uniform over 4 seen of 5; the third target is ignored */
    {{"softmax_xent", "", "x:n3v5/4 t4:n3", 2},
     {LIST(2, 2, 2, 2, 99, 0, 0, 0, 0, 99, 0, 0, 0, 0, 99), LIST(0, 3, -100)},
     0,
     LIST(1.3862943611198906, 1.3862943611198906, 0)},
    {{"embedding", "", "x:v3c2 i3:n2", 1},
     {LIST(1, 2, 3, 4, 5, 6), LIST(2, 0)},
     0,
     LIST(5, 6, 1, 2)},
    {{"add_rows", "", "x:n2t2c1 x:p3c1", 1},
     {LIST(1, 2, 3, 4), LIST(10, 20, 30)},
     0,
     LIST(11, 22, 13, 24)},
    /* a query at position 1, and one at 5, behind all keys; heads before keys */
    {{"attention_kv", "causal=1 positions=1", "x:n2t1h1d1 x:n2h1s3d1 x:n2h1s3d1 i5:n2 k", 2},
     {LIST(0, 0), NULL, LIST(3, 6, 12, 4, 8, 99), LIST(1, 5)},
     0,
     LIST(4.5, 37)},
    {{"pick", "index=1", "x:n1t2p3c2", 1},
     {LIST(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)},
     0,
     LIST(3, 4, 9, 10)},
    /* two heads of two tokens; the second token of the second sample has no place */
    {{"cache_write", "", "x:n2h2s3d1 x:n2t2h2d1 i3:n2", 1},
     {LIST(1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6), LIST(10, 20, 30, 40, 50, 60, 70, 80), LIST(0, 2)},
     0,
     LIST(10, 30, 3, 20, 40, 6, 1, 2, 50, 4, 5, 60)},
    {{"scale", "value=-2.5", "x:n3", 1}, {LIST(1, -2, 0)}, 0, LIST(-2.5, 5, -0.0)},
    /* sin 1, cos 1, sin 0.01, cos 0.01 */
    {{"sinusoid", "rows=2 d_model=4 dtype=f64", "", 1},
     {NULL},
     0,
     LIST(0, 1, 0, 1, 0.8414709848078965, 0.5403023058681398, 0.009999833334166664,
          0.9999500004166653)},
    {{"select", "", "x:n2t3c1 i3:n2", 1}, {LIST(1, 2, 3, 4, 5, 6), LIST(2, 1)}, 0, LIST(3, 5)},
    /* torch.optim's single-tensor formulas in Python: g 0.5, scale 0.25, wd 0.1 */
    {{"adamw", "weight_decay=0.1 eps=1e-8 beta2=0.99", "f:c1 f:c1 p:c1 f:c1 r:w8", 3},
     {LIST(1.5), LIST(-0.125), LIST(0.0625), LIST(0.5), REPORT(4)},
     0,
     LIST(1.5002452706701324)},
    {{"adam", "weight_decay=0.1 eps=1e-8 beta2=0.99", "f:c1 f:c1 p:c1 f:c1 r:w8", 3},
     {LIST(1.5), LIST(-0.125), LIST(0.0625), LIST(0.5), REPORT(4)},
     0,
     LIST(1.5005881424976404)},
    {{"adam", "weight_decay=0.1 eps=1e-8 beta2=0.99", "f:c1 f:c1 p:c1 f:c1 r:w8", 3},
     {LIST(1.5), LIST(-0.125), LIST(0.0625), LIST(0.5), REPORT(4)},
     2,
     LIST(0.062631249999999999)},
    {{"sgd", "weight_decay=0.1 momentum=0.9", "f:c1 f:c1 f:c1 r:w8", 2},
     {LIST(1.5), LIST(-0.125), LIST(0.5), REPORT(2)},
     0,
     LIST(1.4995125)},
    {{"sgd", "weight_decay=0.1 momentum=0.9", "f:c1 f:c1 f:c1 u:w8", 2},
     {LIST(1.5), LIST(-0.125), LIST(0.5), REPORT(1)},
     1,
     LIST(0.275)},
    {{"sgd", "weight_decay=0.1 momentum=0.9 nesterov=1", "f:c1 f:c1 f:c1 r:w8", 2},
     {LIST(1.5), LIST(-0.125), LIST(0.5), REPORT(2)},
     0,
     LIST(1.4987362500000001)},
};

static void test_known(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof known_table / sizeof known_table[0]; i++) {
        const struct known *k = &known_table[i];
        struct op_result r = run_values(&k->row, k->in);
        const struct ku_view *v = &r.out[k->out];
        for (int64_t j = 0; j < count_of(v); j++)
            expect_known(k->row.op, at(v, j), k->want[j]);
        result_fini(&r);
    }
}

/* Dropout keeps the right share, scales it, and looks at the global index alone. */
static void test_dropout(void **state)
{
    static const struct op_row row = {"dropout", "p=0.3", "x:n100c211 k", 1};
    struct op_device ref = ref_device();
    struct op_call c;
    int64_t n_kept = 0;
    (void)state;
    call_parse(&row, KUMI_F64, &c);
    struct op_result r = call_run(&ref, &c, 0);
    int64_t n = count_of(&r.out[0]);
    for (int64_t i = 0; i < n; i++) {
        uint32_t word = ku_random_u32(UINT64_C(0x123456789a), 7, 42, (uint64_t)i);
        int is_kept = (double)(word >> 8) * 0x1p-24 >= 0.3;
        expect_known("dropout", at(&r.out[0], i), is_kept ? at(&c.in[0], i) / 0.7 : 0);
        n_kept += is_kept;
    }
    /* six standard deviations of a binomial */
    assert_true(fabs((double)n_kept - 0.7 * (double)n) < 6 * sqrt(0.21 * (double)n));
    result_fini(&r);
    call_fini(&c);
}

/* Initial values do not feel the vocabulary's padding, which is zero. */
static void test_normal(void **state)
{
    static const struct op_row row = {"random_normal", "std=0.5 value=1", "f:v5c4/3 k", 1};
    struct op_device ref = ref_device();
    struct op_call c;
    (void)state;
    call_parse(&row, KUMI_F64, &c);
    struct op_result r = call_run(&ref, &c, 0);
    for (int64_t v = 0; v < 5; v++)
        for (int64_t j = 0; j < 4; j++) {
            double z =
                (double)ku_random_normal(UINT64_C(0x123456789a), 0, 42, (uint64_t)(3 * v + j));
            expect_known("random_normal", at(&r.out[0], 4 * v + j), j < 3 ? 1 + 0.5 * z : 0);
        }
    result_fini(&r);
    call_fini(&c);
}

/* -- scalars
 * ---------------------------------------------------------------------------------------- */

static void test_schedules(void **state)
{
    static const struct {
        const char *attrs;
        int64_t u;
        double lr;
    } row[] = {
        /* nanoGPT's get_lr in Python */
        {"schedule=cosine lr=6e-4 min_lr=6e-5 warmup=10 decay=100", 0, 5.4545454545454539e-05},
        {"schedule=cosine lr=6e-4 min_lr=6e-5 warmup=10 decay=100", 9, 5.4545454545454537e-04},
        {"schedule=cosine lr=6e-4 min_lr=6e-5 warmup=10 decay=100", 10, 6e-4},
        {"schedule=cosine lr=6e-4 min_lr=6e-5 warmup=10 decay=100", 50, 3.768850079700712e-4},
        {"schedule=cosine lr=6e-4 min_lr=6e-5 warmup=10 decay=100", 99, 6.0164476704844146e-05},
        {"schedule=cosine lr=6e-4 min_lr=6e-5 warmup=10 decay=100", 500, 6e-5},
        {"lr=0.5 warmup=3 warmup_lr=0.1", 0, 0.2},
        {"lr=0.5 warmup=3 warmup_lr=0.1", 2, 0.4},
        {"lr=0.5 warmup=3 warmup_lr=0.1", 3, 0.5},
        {"schedule=linear lr=1 min_lr=0.2 warmup=2 decay=10", 6, 0.6},
        {"schedule=linear lr=1 min_lr=0.2 warmup=2 decay=10", 11, 0.2},
        {"schedule=step lr=1 gamma=0.5 step_size=3 warmup=1", 6, 0.5},
        {"schedule=step lr=1 gamma=0.5 step_size=3 warmup=1", 7, 0.25},
        /* PyTorch's StepLR(step_size=2, gamma=0.5) and CosineAnnealingLR(T_max=4), stepped after
           each epoch of 5 updates */
        {"schedule=step lr=1 gamma=0.5 step_size=2 period=5", 9, 1},
        {"schedule=step lr=1 gamma=0.5 step_size=2 period=5", 10, 0.5},
        {"schedule=step lr=1 gamma=0.5 step_size=2 period=5", 24, 0.25},
        {"schedule=cosine lr=1 decay=4 period=5", 4, 1},
        {"schedule=cosine lr=1 decay=4 period=5", 14, 0.5},
        {"schedule=cosine lr=1 decay=4 period=5", 20, 0},
        {"lr=0.5 warmup=3 warmup_lr=0.1 period=5", 9, 0.3},
        {"schedule=wsd lr=1 min_lr=0.2 decay=10 step_size=4 period=3", 26, 0.6},
        {"schedule=inverse_sqrt lr=1 warmup=4", 15, 0.5},
        {"schedule=inverse_sqrt lr=1", 3, 0.5},
        {"schedule=wsd lr=1 min_lr=0.2 decay=10 step_size=4", 5, 1},
        {"schedule=wsd lr=1 min_lr=0.2 decay=10 step_size=4", 8, 0.6},
        {"schedule=wsd lr=1 min_lr=0.2 decay=10 step_size=4", 20, 0.2},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_attrs a;
        parse_attrs(row[i].attrs, &a);
        expect_known(row[i].attrs, ku_schedule_lr(&a, row[i].u), row[i].lr);
    }
}

/* Sum of squares 36 at 2^-3 over 4 tokens: scale0 = 2, norm 12; clip 3 takes a quarter. */
static void test_step_scalars(void **state)
{
    static const struct op_row row = {"step_scalars", "clip=3 shift=3 lr=0.5",
                                      "e:w74 e:w72 c:w1 c:w1", 2};
    static const struct {
        double sumsq, loss;
        int64_t n_bad;
        double apply;
    } cases[] = {
        {36, 10, 0, 1}, {36, 10, 1, 0}, {36, (double)NAN, 0, 0}, {(double)INFINITY, 10, 0, 0}};
    struct op_device ref = ref_device();
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct op_call c;
        struct ku_exact sum;
        call_parse(&row, KUMI_F64, &c);
        ku_exact_zero(&sum);
        ku_exact_add(&sum, cases[i].sumsq);
        memcpy(c.in[0].data, &sum, sizeof sum);
        ((int64_t *)c.in[0].data)[KU_EXACT_WORDS + 1] = cases[i].n_bad;
        ku_exact_zero(&sum);
        ku_exact_add(&sum, cases[i].loss);
        memcpy(c.in[1].data, &sum, sizeof sum);
        *(int64_t *)c.in[2].data = 4, *(int64_t *)c.in[3].data = 6;
        struct op_result r = call_run(&ref, &c, 0);
        const double *report = r.out[0].data;
        expect_known("apply", report[KU_REPORT_APPLY], cases[i].apply);
        expect_known("count", at(&r.out[1], 0), 6 + cases[i].apply);
        expect_known("update", report[KU_REPORT_UPDATE], 7);
        expect_known("tokens", report[KU_REPORT_TOKENS], 4);
        expect_known("lr", report[KU_REPORT_LR], 0.5);
        if (cases[i].apply != 0) {
            expect_known("loss", report[KU_REPORT_LOSS], 2.5);
            expect_known("norm", report[KU_REPORT_NORM], 12);
            expect_known("scale", report[KU_REPORT_SCALE], 2 * 3 / (12 + 1e-6));
        }
        result_fini(&r);
        call_fini(&c);
    }
}

/* -- the device
 * -------------------------------------------------------------------------------------- */

static void test_find(void **state)
{
    (void)state;
    assert_ptr_equal(ku_device_find("ref"), &ku_device_ref);
    assert_ptr_equal(ku_device_find("cpu"), &ku_device_cpu);
    assert_null(ku_device_find("tpu"));
    assert_null(ku_device_find(""));
}

/* Binds a row after `spoil`, which must be refused with a text that has `word`. */
static void refuse(const char *op, const char *attrs, const char *operands, int n_out,
                   void (*spoil)(struct ku_call *), const char *word)
{
    struct op_row row = {op, attrs, operands, n_out};
    struct op_call c;
    struct ku_kernel *kernel = NULL;
    call_parse(&row, KUMI_F32, &c);
    struct ku_call k = {.op = c.op, .n_in = c.n_in, .n_out = c.n_out, .attr = &c.attr};
    memcpy(k.in, c.in, sizeof k.in);
    memcpy(k.out, c.out, sizeof k.out);
    for (int o = 0; o < c.n_out; o++) {
        int pair = ku_op_pair(ku_ops[c.op].inout, o);
        k.out[o].data = pair >= 0 ? c.in[pair].data : NULL;
    }
    spoil(&k);
    assert_int_equal(ku_device_ref.bind(NULL, &k, &kernel),
                     k.op == KU_OP_convert ? KUMI_EBUG : KUMI_EINVAL);
    assert_null(kernel);
    if (strstr(ku_err_get()->text, word) == NULL)
        fail_msg("%s: \"%s\" does not speak of %s", op, ku_err_get()->text, word);
    call_fini(&c);
}
static void spoil_nothing(struct ku_call *k)
{
    (void)k;
}
static void spoil_dtype(struct ku_call *k)
{
    k->in[0].dtype = KUMI_I32;
}
static void spoil_out(struct ku_call *k)
{
    k->out[0].dtype = KUMI_U8;
}
static void spoil_count(struct ku_call *k)
{
    k->n_in = 1;
}
static void spoil_accumulate(struct ku_call *k)
{
    k->accumulate = 1;
}
static void spoil_place(struct ku_call *k)
{
    k->out[0].data = NULL;
}
static void spoil_start(struct ku_call *k)
{
    k->in[0].start[0] = 100;
}
static void spoil_op(struct ku_call *k)
{
    k->op = KU_OP_convert;
}

static void test_refused(void **state)
{
    (void)state;
    refuse("linear", "", "x:n2c3 x:c3f4", 1, spoil_dtype, "input 0 is i32");
    refuse("linear", "", "x:n2c3 x:c3f4", 1, spoil_out, "output 0 is u8");
    refuse("linear", "", "x:n2c3 x:c3f4", 1, spoil_count, "1 inputs");
    refuse("linear", "", "x:n2c3 x:c3f4", 1, spoil_accumulate, "accumulate");
    refuse("embedding", "", "x:v3c3 i3:n4", 1, spoil_dtype, "embedding");
    refuse("adamw", "", "f:c3 f:c3 p:c3 x:c3 r:w8", 3, spoil_place, "in place");
    refuse("sumsq", "", "x:z300 e:w73", 1, spoil_start, "4096");
    refuse("trust_sums", "", "x:z300 x:z300 E:w144", 1, spoil_start, "4096");
    refuse("factor_norms", "rows=3 cols=5 count=15", "f:z15 f:z15 p:a3 p:b5 d:w1 r:w8 E:w144", 1,
           spoil_start, "4096");
    refuse("lamb", "", "f:c3 f:c3 p:c3 r:w8 d:w2", 1, spoil_place, "in place");
    refuse("dropout", "p=1", "x:n3 k", 1, spoil_nothing, "p=1");
    refuse("dropout", "p=-0.1", "x:n3 k", 1, spoil_nothing, "p=-0.1");
    refuse("act", "", "x:n3", 1, spoil_op, "convert");
}

/* Types that inference refuses, so that no device sees them. */
static void test_misfits(void **state)
{
    static const struct {
        const char *op, *operand[5], *word;
    } row[] = {
        {"layer_norm", {"n3c0", "c0", "c0"}, "last dim"},
        {"layer_norm", {"n3c4", "c5", "c4"}, "gain and bias"},
        {"attention", {"n1t2,3h2d0", "w4", NULL}, "width >= 1"},
        {"attention", {"n1t2g2h2d3", "w4", NULL}, "takes qkv"},
        {"attention_kv", {"n1t2h2d3", "n1s2h2d3", "n1s2h2d3", "n1"}, "control port"},
        {"attention_kv", {"n1t2h4d3", "n1s2h2d3", "n1s2h2d3", "w4"}, "heads and width"},
        {"attention_kv", {"n1t2h2d3", "n1s2h2d3", "n1s3h2d3", "w4"}, "shape of k"},
        {"attention_kv", {"n1t2h2d3", "n1s2h2d3", "n1s2h2d3", "n2", "w4"}, "lengths must be i32"},
        {"rope", {"n1t2d3", NULL}, "even width"},
        {"rope", {"n1t2d4", "n1", NULL}, "positions are i32"},
        {"rms_norm", {"n3c4", "c5", NULL}, "gain"},
        {"pick", {"n3t4", NULL}, "index of a part"},
        {"cache_write", {"n2h3s4d5", "n2t1h2d5", "n2", NULL}, "for a cache"},
        {"cache_write", {"n2h3s4d5", "n2t1h3d5", "n2", NULL}, "positions are i32"},
        {"linear", {"n3c4", "c5f2", NULL}, "contracted"},
        {"add", {"n3c4", "n4c3", NULL}, "one shape"},
        {"dropout", {"n3", NULL, NULL}, "1 inputs"},
        {"top_k", {"n3v4", "n3"}, "targets are i32"},
        {"trust_sums", {"n3c4", "n4c3", "w144"}, "differ in shape"},
        {"trust_sums", {"n3c4", "n3c4", "w144"}, "two exact sums"},
        {"trust_norms", {"w144"}, "whole exact sums"},
        {"lars", {"n3", "n3", "n3", "w8", "w2"}, "two f64"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_type in[5], out[KU_MAX_OUT];
        int n = 0, op = ku_op_find(row[i].op);
        for (; n < 5 && row[i].operand[n]; n++)
            in[n] = (struct ku_type){KUMI_F32, parse_shape(row[i].operand[n])};
        assert_int_equal(ku_op_infer(op, &ku_attrs_default, n, in, ku_ops[op].min_out, out),
                         KUMI_EINVAL);
        if (strstr(ku_err_get()->text, row[i].word) == NULL)
            fail_msg("%s: \"%s\" does not speak of %s", row[i].op, ku_err_get()->text, row[i].word);
    }
}

static int n_letters(const char *from, const char *to)
{
    for (const char *c = from; c < to; c++)
        assert_non_null(strchr("fiuwds*", *c));
    return (int)(to - from);
}

/* Every row says which operands it takes. Optimizers, and they alone, have state. */
static void test_rows(void **state)
{
    static const char is_optimizer[KU_N_OPS] = {
#define KU_OP(...)
#define KU_OPTIMIZER(name, ...) [KU_OP_##name] = 1,
#include "op/ops.def"
#undef KU_OP
    };
    (void)state;
    for (int op = 1; op < KU_N_OPS; op++) {
        const struct ku_op_info *info = &ku_ops[op];
        const char *in = info->operands, *out = strchr(in, '>');
        print_message("%s\n", info->name);
        assert_true((out == NULL) == (op == KU_OP_convert));
        if (out) {
            assert_int_equal(n_letters(in, out), info->max_in);
            assert_int_equal(n_letters(out + 1, in + strlen(in)), info->max_out);
        }
        assert_int_equal(info->state[0] != NULL, is_optimizer[op]);
        if (is_optimizer[op])
            assert_true(info->traits & KU_OP_UPDATE);
        if (info->traits & KU_OP_OVERWRITE)
            assert_true(ku_op_pair(info->inout, 0) >= 0);
    }
}

static void count_call(void *ctx)
{
    ++*(int *)ctx;
}

/* The hook is called while a kernel runs, not only at its end. */
static void test_hook(void **state)
{
    static const struct op_row row = {"linear", "", "x:n64c64 x:c64f64", 1};
    struct op_call c;
    struct ku_kernel *kernel;
    int n_calls = 0;
    (void)state;
    call_parse(&row, KUMI_F32, &c);
    c.out[0] = view_make(KUMI_F32, &c.out[0].shape);
    struct ku_call k = {.op = c.op, .n_in = 2, .n_out = 1, .attr = &c.attr};
    memcpy(k.in, c.in, sizeof k.in);
    k.out[0] = c.out[0];
    assert_int_equal(ku_device_ref.bind(NULL, &k, &kernel), KUMI_OK);
    assert_int_equal(ku_device_ref.launch(NULL, kernel, count_call, &n_calls), KUMI_OK);
    assert_true(n_calls >= 4); /* 2^18 products, 2^16 between two calls */
    ku_device_ref.unbind(NULL, kernel);
    call_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),     cmocka_unit_test(test_known),
        cmocka_unit_test(test_dropout),   cmocka_unit_test(test_normal),
        cmocka_unit_test(test_schedules), cmocka_unit_test(test_step_scalars),
        cmocka_unit_test(test_find),      cmocka_unit_test(test_refused),
        cmocka_unit_test(test_misfits),   cmocka_unit_test(test_rows),
        cmocka_unit_test(test_hook),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
