/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor op device */
/* Matrix products of the cpu device against f64, on every instruction set that this CPU has, and on
 * emulated matrix tiles where it has none. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/math/random.h"
#include "device/cpu/cpu.h"
#include "device/cpu/simd.h"
#include "device/device.h"
#include "tensor/dtype.h"

#include "sample.h"
#include "unit/tiles.h"

#include "device/cpu/gemm/amx_body.h"
#include "device/cpu/gemm/amx_thin_body.h"

/* Products of bf16 through tiles in C. */
static const struct ku_gemm_micro emulated = {.mr = AMX_MR,
                                              .nr = AMX_NR,
                                              .step = AMX_SIDE,
                                              .run_parts = amx_parts,
                                              .run = amx_micro,
                                              .end = amx_end,
                                              .peak = amx_peak,
                                              .peak_flops = AMX_PEAK_FLOPS,
                                              .regroup = amx_regroup,
                                              .thin = amx_thin,
                                              .thin_rows = AMX_THIN_ROWS,
                                              .is_thin_turned = 1};

struct product_case {
    int64_t m, k, n;
    int trans, bias, act, n_out;
};
static const struct product_case cases[] = {
    {1, 1, 1, 0, 0, 0, 1},      {1, 5, 3, 1, 1, 0, 1},       {3, 1, 7, 0, 1, 0, 1},
    {13, 17, 31, 0, 0, 0, 1},   {14, 16, 32, 1, 0, 0, 1},    {15, 33, 65, 0, 1, 0, 2},
    {85, 64, 129, 1, 1, 2, 2},  {100, 1024, 40, 0, 0, 0, 1}, {33, 1025, 70, 1, 1, 3, 1},
    {29, 2049, 33, 0, 1, 1, 2}, {600, 48, 48, 0, 1, 0, 1},   {7, 3000, 5, 1, 0, 0, 1},
    {0, 5, 4, 0, 1, 0, 1},      {4, 0, 6, 0, 1, 0, 1},       {5, 3, 0, 1, 0, 0, 1},
    {9, 33, 130, 0, 1, 3, 2},   {31, 70, 129, 1, 0, 0, 1},   {64, 95, 33, 0, 0, 0, 1},
    {16, 1024, 65, 1, 1, 0, 1}, {23, 7000, 3, 0, 0, 0, 1},   {65, 65, 65, 0, 1, 0, 1},
    {509, 96, 100, 0, 0, 2, 2}, {130, 2, 65056, 1, 0, 0, 1}, /* streamed past the caches */
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

static struct ku_view view(enum kumi_dtype dtype, const char *names, const int64_t *count)
{
    struct ku_view v = {.dtype = dtype, .shape = ku_shape_of(names, count)};
    int64_t n = ku_shape_count(&v.shape);
    for (int d = 0; d < v.shape.ndim; d++)
        v.logical[d] = v.shape.dim[d].count;
    v.data = ku_calloc((size_t)n + 1, kumi_dtype_bytes(dtype));
    assert_non_null(v.data);
    for (int64_t i = 0; i < n; i++)
        ku_store_f64(
            v.data, dtype, i,
            2 * (double)ku_random_uniform(ku_random_u32(7, 1, (uint32_t)names[0], (uint64_t)i)) -
                1);
    return v;
}
static double at(const struct ku_view *v, int64_t i)
{
    return ku_load_f64(v->data, v->dtype, i);
}
static double eps_of(enum kumi_dtype d)
{
    return d == KUMI_BF16 ? 0x1p-8 : 0x1p-24;
}

static void run_on(const struct ku_device_ops *ops, void *dev, struct ku_call *c)
{
    struct ku_op_case oc = {.op = c->op, .n_in = c->n_in, .n_out = c->n_out, .attr = c->attr};
    for (int i = 0; i < c->n_in; i++)
        oc.in[i] = (struct ku_type){c->in[i].dtype, c->in[i].shape};
    for (int i = 0; i < c->n_out; i++)
        oc.out[i] = (struct ku_type){c->out[i].dtype, c->out[i].shape};
    struct ku_target_op t;
    struct ku_kernel *kernel;
    assert_int_equal(ops->query(NULL, &oc, &t), 0);
    c->workspace = ku_malloc_aligned(64, t.workspace_bytes + 64);
    memset(c->workspace, 0xff, t.workspace_bytes); /* garbage, NaN as f32 */
    assert_int_equal(ops->bind(dev, c, &kernel), 0);
    assert_int_equal(ops->launch(dev, kernel, NULL, NULL), 0);
    ops->unbind(dev, kernel);
    ku_free(c->workspace);
}
static void run(void *dev, struct ku_call *c)
{
    run_on(&ku_device_cpu, dev, c);
}

/* A result in f64: rows of `a` times columns of `b`, of `depth` elements each. */
struct truth {
    int64_t count, depth;
    double *sum, *sum_abs;
};
/* Element k of row i of the left factor, or of column i of the right one, is at[i * line + k *
 * step]. */
struct factor {
    const double *at;
    int64_t n, line, step;
};

/* Elements of a view in f64; free with ku_free. */
static double *widened(const struct ku_view *v)
{
    int64_t n = ku_shape_count(&v->shape);
    double *x = ku_calloc((size_t)n + 1, sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++)
        x[i] = at(v, i);
    return x;
}

SAMPLE_UNCHECKED static struct truth truth_of(struct factor a, struct factor b, int64_t depth,
                                              const double *bias)
{
    struct truth t = {.count = a.n * b.n, .depth = depth};
    t.sum = ku_calloc((size_t)t.count + 1, sizeof *t.sum);
    t.sum_abs = ku_calloc((size_t)t.count + 1, sizeof *t.sum_abs);
    assert_true(t.sum && t.sum_abs);
    for (int64_t i = 0; i < a.n; i++)
        for (int64_t j = 0; j < b.n; j++) {
            const double *x = a.at + i * a.line, *y = b.at + j * b.line;
            double sum = bias ? bias[j] : 0, sum_abs = fabs(sum);
            for (int64_t k = 0; k < depth; k++) {
                double product = x[k * a.step] * y[k * b.step];
                sum += product, sum_abs += fabs(product);
            }
            t.sum[i * b.n + j] = sum, t.sum_abs[i * b.n + j] = sum_abs;
        }
    return t;
}
static void truth_fini(struct truth *t)
{
    ku_free(t->sum), ku_free(t->sum_abs);
}

/* A case in one dtype: its operands, and the truth of its results. */
struct product {
    const struct product_case *p;
    struct ku_attrs attrs;
    struct ku_view x, w, bias, dy;
    struct truth y, dx, dw;
};

static void product_init(struct product *o, const struct product_case *p, enum kumi_dtype dtype)
{
    const int64_t m = p->m, n = p->n, k = p->k, trans = p->trans;
    *o = (struct product){.p = p, .attrs = ku_attrs_default};
    o->attrs.trans = p->trans;
    o->x = view(dtype, "tc", (int64_t[]){m, k});
    o->w = trans ? view(dtype, "fc", (int64_t[]){n, k}) : view(dtype, "cf", (int64_t[]){k, n});
    o->bias = view(dtype, "f", (int64_t[]){n});
    o->dy = view(dtype, "tf", (int64_t[]){m, n});
    double *x = widened(&o->x), *w = widened(&o->w), *b = widened(&o->bias), *dy = widened(&o->dy);
    struct factor x_tokens = {x, m, k, 1}, x_channels = {x, k, 1, k}, dy_tokens = {dy, m, n, 1},
                  dy_features = {dy, n, 1, n}, w_features = {w, n, trans ? k : 1, trans ? 1 : n},
                  w_channels = {w, k, trans ? 1 : n, trans ? k : 1};
    o->y = truth_of(x_tokens, w_features, k, p->bias ? b : NULL);
    o->dx = truth_of(dy_tokens, w_channels, n, NULL);
    o->dw = trans ? truth_of(dy_features, x_channels, m, NULL)
                  : truth_of(x_channels, dy_features, m, NULL);
    ku_free(x), ku_free(w), ku_free(b), ku_free(dy);
}
static void product_fini(struct product *o)
{
    struct ku_view *v[] = {&o->x, &o->w, &o->bias, &o->dy};
    for (int i = 0; i < 4; i++)
        ku_free(v[i]->data);
    truth_fini(&o->y), truth_fini(&o->dx), truth_fini(&o->dw);
}

/* Emulated: products of bf16 pass through tiles in C, those of f32 are not checked again. */
struct device {
    char name[32];
    void *dev;
    int is_emulated;
};

/* A result to be written: of NaN. */
static struct ku_view unwritten(const struct ku_view *like, enum kumi_dtype dtype)
{
    struct ku_view v = *like;
    size_t bytes = ((size_t)ku_shape_count(&v.shape) + 1) * kumi_dtype_bytes(dtype);
    v.dtype = dtype;
    v.data = ku_malloc(bytes);
    assert_non_null(v.data);
    memset(v.data, 0xff, bytes);
    return v;
}

/* |got - sum| <= (depth + 2) eps32 sum|ab| + one rounding of the result. times 2: dw was added to
 * itself, which is one more rounding. */
static void expect(const struct device *d, const char *what, const struct ku_view *out,
                   const struct truth *t, int times)
{
    const double slack = times * eps_of(out->dtype), depth = (double)(t->depth + 2) * 0x1p-24;
    for (int64_t i = 0; i < t->count; i++) {
        double got = at(out, i), want = times * t->sum[i], sum_abs = times * t->sum_abs[i];
        double bound = depth * sum_abs + slack * (fabs(want) + sum_abs * 0x1p-10) + 1e-37;
        if (!(fabs(got - want) <= bound))
            fail_msg("%s: %s: element %lld: %.9g, expected %.9g within %.3g", d->name, what,
                     (long long)i, got, want, bound);
    }
}

static void check_linear(const struct device *d, const struct product *o)
{
    const struct product_case *p = o->p;
    struct ku_attrs a = o->attrs;
    a.act = p->act;
    struct ku_call c = {.op = KU_OP_linear, .n_in = 2 + p->bias, .n_out = p->n_out, .attr = &a};
    c.in[0] = o->x, c.in[1] = o->w, c.in[2] = o->bias;
    for (int i = 0; i < p->n_out; i++)
        c.out[i] = unwritten(&o->dy, o->x.dtype);
    run(d->dev, &c);
    const struct ku_view *raw = &c.out[p->n_out - 1];
    if (p->act == 0 || p->n_out == 2)
        expect(d, "linear", raw, &o->y, 1);
    for (int64_t i = 0; i < p->m * p->n && p->n_out == 2 && p->act == KU_ACT_RELU; i++)
        assert_true(at(&c.out[0], i) == fmax(at(raw, i), 0));
    for (int i = 0; i < c.n_out; i++)
        ku_free(c.out[i].data);
}

static void check_gradients(const struct device *d, const struct product *o)
{
    struct ku_view dx = unwritten(&o->x, o->x.dtype), dw = unwritten(&o->w, KUMI_F32);
    struct ku_call c = {.op = KU_OP_linear_dx, .n_in = 2, .n_out = 1, .attr = &o->attrs};
    c.in[0] = o->dy, c.in[1] = o->w, c.out[0] = dx;
    run(d->dev, &c);
    c.op = KU_OP_linear_dw;
    c.in[0] = o->x, c.in[1] = o->dy, c.out[0] = dw;
    run(d->dev, &c);
    c.accumulate = 1; /* twice: dw doubles */
    run(d->dev, &c);
    expect(d, "linear_dx", &dx, &o->dx, 1);
    expect(d, "linear_dw", &dw, &o->dw, 2);
    ku_free(dx.data), ku_free(dw.data);
}

static struct device device_open(enum ku_isa isa, int n_threads)
{
    struct ku_device_opts o = {.n_threads = n_threads, .isa = isa};
    struct device d = {.dev = NULL};
    assert_int_equal(ku_device_cpu.open(&o, &d.dev), 0);
    snprintf(d.name, sizeof d.name, "%s", ku_cpu_isa_name(isa));
    return d;
}

static struct device emulated_open(int n_threads)
{
    struct device d = device_open(KU_ISA_AMX, n_threads);
    struct ku_cpu *cpu = d.dev;
    cpu->gemm_bf16 = &emulated;
    cpu->slim_bf16 = NULL; /* as where tiles exist: it goes with another kernel */
    snprintf(d.name, sizeof d.name, "emulated tiles");
    d.is_emulated = 1;
    return d;
}

/* One truth serves all devices. */
static void check_case(const struct device *device, int n, int i, enum kumi_dtype dtype)
{
    struct product o;
    product_init(&o, &cases[i], dtype);
    for (int d = 0; d < n; d++) {
        if (device[d].is_emulated && dtype != KUMI_BF16)
            continue;
        check_linear(&device[d], &o);
        if (cases[i].bias == 0 || i % 2)
            check_gradients(&device[d], &o);
    }
    product_fini(&o);
}

static void every_case(void **state)
{
    struct device device[KU_ISA_AMX + 2];
    int n = 0;
    float sink[16] = {1};
    (void)state;
    for (int isa = KU_ISA_BASE; isa <= (int)ku_cpu_isa(); isa++)
        device[n++] = device_open((enum ku_isa)isa, 2);
    device[n++] = emulated_open(1);
    for (int i = 0; i < N_CASES; i++)
        for (int bf16 = 0; bf16 < 2; bf16++)
            check_case(device, n, i, bf16 ? KUMI_BF16 : KUMI_F32);
    for (int d = 0; d < n; d++)
        ku_device_cpu.close(device[d].dev);
    emulated.peak(1, sink);
}

/* Where libraries split the contraction over threads: 4,096 tokens, width 48. */
static void threads_keep_bits(void **state)
{
    (void)state;
    enum { TOKENS = 4096, WIDTH = 48, N = WIDTH * WIDTH };
    struct ku_attrs a = ku_attrs_default;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        enum kumi_dtype dtype = bf16 ? KUMI_BF16 : KUMI_F32;
        float first[N];
        for (int n_threads = 1; n_threads <= 3; n_threads++) {
            struct ku_device_opts o = {.n_threads = n_threads, .isa = KU_ISA_AMX};
            void *dev;
            struct ku_call c = {.op = KU_OP_linear_dw, .n_in = 2, .n_out = 1, .attr = &a};
            c.in[0] = view(dtype, "tc", (int64_t[]){TOKENS, WIDTH});
            c.in[1] = view(dtype, "tf", (int64_t[]){TOKENS, WIDTH});
            c.out[0] = view(KUMI_F32, "cf", (int64_t[]){WIDTH, WIDTH});
            assert_int_equal(ku_device_cpu.open(&o, &dev), 0);
            run(dev, &c);
            if (n_threads == 1)
                memcpy(first, c.out[0].data, sizeof first);
            assert_memory_equal(first, c.out[0].data, sizeof first);
            ku_device_cpu.close(dev);
            ku_free(c.in[0].data), ku_free(c.in[1].data), ku_free(c.out[0].data);
        }
    }
}

/* One op, order of the weight and dtype; the columns fill tiles and do not. */
static void check_rows(const struct device *d, int is_dx, int trans, enum kumi_dtype dtype,
                       int64_t n_k, int64_t n_cols)
{
    static const int n_rows[] = {1, 2, 3, 8, 9, 16, 17, 23, 32, 47, 64};
    enum { ROWS = 100 };
    struct ku_attrs a = ku_attrs_default;
    a.trans = trans;
    struct ku_call c = {
        .op = is_dx ? KU_OP_linear_dx : KU_OP_linear, .n_in = 2, .n_out = 1, .attr = &a};
    c.in[0] = view(dtype, "tc", (int64_t[]){ROWS, n_k});
    c.in[1] = (trans != is_dx) ? view(dtype, "fc", (int64_t[]){n_cols, n_k})
                               : view(dtype, "cf", (int64_t[]){n_k, n_cols});
    c.out[0] = view(dtype, "tf", (int64_t[]){ROWS, n_cols});
    run(d->dev, &c);
    void *all = c.out[0].data;
    c.out[0] = view(dtype, "tf", (int64_t[]){ROWS, n_cols});
    for (size_t r = 0; r < sizeof n_rows / sizeof n_rows[0]; r++) {
        struct ku_call few = c;
        few.in[0].shape.dim[0].count = few.out[0].shape.dim[0].count = n_rows[r];
        run(d->dev, &few);
        if (memcmp(c.out[0].data, all, (size_t)(n_rows[r] * n_cols) * kumi_dtype_bytes(dtype)) != 0)
            fail_msg("%s: %s %s, trans %d, [%d, %lld] x [%lld, %lld]: other bits than of %d rows",
                     d->name, is_dx ? "linear_dx" : "linear", kumi_dtype_name(dtype), trans,
                     n_rows[r], (long long)n_k, (long long)n_k, (long long)n_cols, (int)ROWS);
    }
    ku_free(c.in[0].data), ku_free(c.in[1].data), ku_free(c.out[0].data), ku_free(all);
}

/* Row i of a product does not depend on the other rows: many rows in tiles, few as they lie. */
static void rows_keep_bits(void **state)
{
    static const int64_t sizes[][2] = {{531, 149}, {256, 448}};
    struct device device[] = {device_open(KU_ISA_AVX512BF16, 2), device_open(KU_ISA_AMX, 2),
                              emulated_open(2)};
    (void)state;
    for (int d = 0; d < 3; d++) {
        for (int i = 0; i < 16; i++) {
            const enum kumi_dtype dtype = i >> 2 & 1 ? KUMI_BF16 : KUMI_F32;
            const int64_t *size = sizes[i >> 3];
            if (dtype == KUMI_BF16 || d == 0)
                check_rows(&device[d], i & 1, i >> 1 & 1, dtype, size[0], size[1]);
        }
        ku_device_cpu.close(device[d].dev);
    }
}

/* A view of elements with eleven bits: products of two are exact. */
static struct ku_view coarse_view(const char *names, const int64_t *count)
{
    struct ku_view v = view(KUMI_F32, names, count);
    for (int64_t i = 0; i < ku_shape_count(&v.shape); i++)
        ku_store_f64(v.data, KUMI_F32, i, nearbyint(at(&v, i) * 1024) / 1024);
    return v;
}

/* Element (row, col) of x[.., n] w[n, ..] by the neighbour tree, of n products from `first` on. */
static float tree_sum(const struct ku_call *c, int64_t row, int64_t col, int64_t first, int64_t n)
{
    const int64_t k = c->in[0].shape.dim[1].count, cols = c->in[1].shape.dim[1].count;
    int64_t left = 1; /* the largest node of them: a power of two */
    if (n == 1)
        return (float)(at(&c->in[0], row * k + first) * at(&c->in[1], first * cols + col));
    while (2 * left < n)
        left *= 2;
    return tree_sum(c, row, col, first, left) + tree_sum(c, row, col, first + left, n - left);
}
static void check_tree(const char *name, const struct ku_call *c, int64_t rows, int64_t cols)
{
    const int64_t n = c->in[0].shape.dim[1].count;
    for (int64_t i = 0; i < rows * cols; i++)
        if (((const float *)c->out[0].data)[i] != tree_sum(c, i / cols, i % cols, 0, n))
            fail_msg("%s: %lld slices: not the sum by the tree", name, (long long)n);
}

/* Slices of one product each, which is exact: what is rounded are the sums of the tree. */
static void trees_of_slices(void **state)
{
    static const int64_t n_slices[] = {2, 3, 5, 6, 7, 12, 96, 127, 128};
    enum { ROWS = 37, COLS = 97, N = sizeof n_slices / sizeof n_slices[0] };
    (void)state;
    for (int i = 0; i < N; i++) {
        struct ku_attrs a = ku_attrs_default;
        struct ku_call c = {.op = KU_OP_linear, .n_in = 2, .n_out = 1, .attr = &a};
        a.slices = n_slices[i];
        c.in[0] = coarse_view("tf", (int64_t[]){ROWS, n_slices[i]});
        c.in[1] = coarse_view("fc", (int64_t[]){n_slices[i], COLS});
        c.out[0] = view(KUMI_F32, "tc", (int64_t[]){ROWS, COLS});
        run_on(&ku_device_ref, NULL, &c);
        check_tree("ref", &c, ROWS, COLS);
        for (int isa = KU_ISA_BASE; isa <= (int)ku_cpu_isa(); isa++) {
            struct device d = device_open((enum ku_isa)isa, 2);
            memset(c.out[0].data, 0xff, ROWS * COLS * sizeof(float));
            run(d.dev, &c);
            check_tree(d.name, &c, ROWS, COLS);
            ku_device_cpu.close(d.dev);
        }
        ku_free(c.in[0].data), ku_free(c.in[1].data), ku_free(c.out[0].data);
    }
}

static void refusals(void **state)
{
    (void)state;
    struct ku_device_opts o = {.n_threads = 1};
    struct ku_attrs a = ku_attrs_default;
    struct ku_kernel *kernel = NULL;
    void *dev;
    assert_int_equal(ku_device_cpu.open(&o, &dev), 0);
    struct ku_call c = {.op = KU_OP_linear, .n_in = 2, .n_out = 1, .attr = &a};
    c.in[0] = view(KUMI_F64, "tc", (int64_t[]){2, 3});
    c.in[1] = view(KUMI_F64, "cf", (int64_t[]){3, 4});
    c.out[0] = view(KUMI_F64, "tf", (int64_t[]){2, 4});
    assert_int_equal(ku_device_cpu.bind(dev, &c, &kernel), KUMI_EINVAL);
    assert_string_equal(
        kumi_last_error()->text,
        "device cpu: linear: input 0 is f64; it computes f32, bf16 and f16; use device ref");
    c.in[0].dtype = KUMI_F32; /* smaller than what is there */
    c.out[0].dtype = KUMI_F32;
    c.in[1].dtype = KUMI_BF16;
    assert_int_equal(ku_device_cpu.bind(dev, &c, &kernel), KUMI_EINVAL);
    assert_string_equal(kumi_last_error()->text,
                        "device cpu: linear: second operand is bf16; it takes f32");
    c.op = KU_OP_convert;
    assert_int_equal(ku_device_cpu.bind(dev, &c, &kernel), KUMI_EBUG);
    assert_null(kernel);
    ku_free(c.in[0].data), ku_free(c.in[1].data), ku_free(c.out[0].data);
    ku_device_cpu.close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_case), cmocka_unit_test(threads_keep_bits),
        cmocka_unit_test(rows_keep_bits), cmocka_unit_test(trees_of_slices),
        cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
