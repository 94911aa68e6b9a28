/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor op device */
/* Shapes of tiles for many caches: they fit, and results do not depend on them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/math/random.h"
#include "device/cpu/cpu.h"
#include "device/cpu/tiling.h"
#include "device/device.h"
#include "sample.h"
#include "tensor/dtype.h"

static const int64_t l1s[] = {32 << 10, 48 << 10};
static const int64_t l2s[] = {256 << 10, 512 << 10, 1 << 20, 2 << 20};
static const int64_t l3s[] = {0, 8 << 20, 32 << 20, 105 << 20};
#define COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))
enum { N_CACHES = COUNT(l1s) * COUNT(l2s) * COUNT(l3s) };

static struct ku_caches caches_at(int i)
{
    return (struct ku_caches){.l1d_bytes = l1s[i % 2],
                              .l2_bytes = l2s[i / 2 % 4],
                              .l3_bytes = l3s[i / 8],
                              .l3_cores = l3s[i / 8] ? 4 : 1};
}

static const struct {
    int mr, step;
} kernels[] = {{4, 1}, {6, 1}, {14, 1}, {28, 1}, {32, 16}};

static void check_product(const struct ku_caches *c, const struct ku_product_shape *s)
{
    const struct ku_product_tiling t = ku_product_tiling(c, s);
    const int64_t step = 84 % s->mr ? 3 * s->mr : 84;
    assert_true(t.rows > 0 && t.rows % s->mr == 0);
    assert_true(t.cols == KU_TILE_COLS ||
                ((t.cols == KU_TILE_WIDE_COLS || t.cols == KU_TILE_WIDE_COLS / 2) && s->step > 1));
    assert_true(t.chunk_units >= KU_TILE_MIN_CHUNK && t.chunk_units % KU_TILE_MIN_CHUNK == 0);
    assert_true(t.cols * t.chunk_units * 4 <= c->l2_bytes / 4);
    const int64_t sums = t.cols == KU_TILE_COLS ? c->l2_bytes / 4 : c->l2_bytes / 2;
    assert_true(t.cols * t.rows * 4 <= sums || t.rows == step);
    assert_true(t.cols * t.chunk_units <= KU_TILE_COLS * KU_TILE_CHUNK);
    assert_true(t.rows <= KU_TILE_ROWS);
    if (t.keeps_a)
        assert_true(t.rows * s->n_units * 4 <= c->l2_bytes || t.rows > s->m);
}

static void products_fit(void **state)
{
    static const int64_t sizes[] = {1, 63, 512, 768, 2048, 3072, 50304};
    (void)state;
    for (int i = 0; i < N_CACHES; i++)
        for (int k = 0; k < COUNT(kernels); k++)
            for (int j = 0; j < COUNT(sizes) * COUNT(sizes) * COUNT(sizes); j++) {
                const struct ku_caches c = caches_at(i);
                struct ku_product_shape s = {.m = sizes[j % 7],
                                             .n = sizes[j / 7 % 7],
                                             .n_units = sizes[j / 49],
                                             .mr = kernels[k].mr,
                                             .step = kernels[k].step};
                for (s.n_threads = 1; s.n_threads <= 16; s.n_threads *= 4)
                    for (int bytes = 2; bytes <= 8; bytes *= 2) {
                        s.result_bytes = s.m * s.n * bytes;
                        check_product(&c, &s);
                    }
            }
}

/* The table of tiling.c, and the shapes of a product whose a comes from L3. */
static void shapes_of_a_cache(void **state)
{
    static const struct {
        int64_t l2_bytes;
        struct ku_product_shape s;
        struct ku_product_tiling want;
    } rows[] = {
        {256 << 10, {4096, 768, 768, 14, 1, 1, 0}, {252, 64, 256, 0}},
        {512 << 10, {4096, 768, 768, 14, 1, 1, 0}, {504, 64, 512, 0}},
        {1 << 20, {4096, 768, 768, 14, 1, 1, 0}, {840, 64, 1024, 0}},
        {2 << 20, {4096, 768, 768, 14, 1, 1, 0}, {840, 64, 1024, 0}},
        {2 << 20, {512, 768, 256, 32, 16, 1, 0}, {576, 64, 1024, 1}},
        {2 << 20, {512, 768, 384, 32, 16, 1, 0}, {576, 64, 128, 1}},
        {2 << 20, {512, 768, 1536, 32, 16, 1, 0}, {576, 384, 128, 0}},
        {2 << 20, {512, 3072, 384, 32, 16, 1, 6 << 20}, {576, 192, 128, 1}},
        {2 << 20, {768, 768, 256, 32, 16, 1, 5 << 20}, {768, 192, 128, 1}},
        {2 << 20, {512, 3072, 384, 14, 1, 1, 6 << 20}, {588, 64, 1024, 1}},
        {256 << 10, {512, 768, 1536, 32, 16, 1, 0}, {192, 64, 128, 0}},
        {64 << 10, {512, 768, 1536, 32, 16, 1, 0}, {96, 64, 128, 0}},
        {1 << 20, {512, 768, 768, 14, 1, 8, 0}, {252, 64, 1024, 0}},
        {1 << 20, {0, 768, 768, 14, 1, 1, 0}, {84, 64, 1024, 1}},
    };
    (void)state;
    for (int i = 0; i < COUNT(rows); i++) {
        const struct ku_caches c = {.l1d_bytes = 32 << 10, .l2_bytes = rows[i].l2_bytes};
        const struct ku_product_tiling t = ku_product_tiling(&c, &rows[i].s);
        const struct ku_product_tiling *w = &rows[i].want;
        if (t.rows != w->rows || t.cols != w->cols || t.chunk_units != w->chunk_units ||
            t.keeps_a != w->keeps_a)
            fail_msg("row %d: %d x %d, %d, %d", i, (int)t.rows, (int)t.cols, (int)t.chunk_units,
                     t.keeps_a);
    }
}

static void others_fit(void **state)
{
    (void)state;
    for (int i = 0; i < N_CACHES; i++) {
        const struct ku_caches c = caches_at(i);
        const struct ku_slide_tiling t = ku_slide_tiling(&c);
        assert_true(t.copy_units * 4 <= c.l2_bytes / 2 && t.copy_units <= KU_SLIDE_COPY_UNITS);
        assert_true(t.chunk_units * KU_TILE_COLS * 4 <= c.l2_bytes / 4);
        assert_true(ku_stream_bytes(&c) >= c.l2_bytes / 2 && ku_stream_bytes(&c) <= 16 << 20);
    }
}

static void detected(void **state)
{
    (void)state;
    const struct ku_caches *c = ku_caches_here();
    assert_ptr_equal(c, ku_caches_here());
    assert_true(c->l1d_bytes >= 4 << 10 && c->l2_bytes >= 64 << 10);
    assert_true(c->l3_bytes >= 0 && c->l3_cores >= 1);
}

static struct ku_view view_without_data(enum kumi_dtype dtype, const char *names,
                                        const int64_t *count)
{
    struct ku_view v = {.dtype = dtype, .shape = ku_shape_of(names, count)};
    for (int d = 0; d < v.shape.ndim; d++)
        v.logical[d] = v.shape.dim[d].count;
    return v;
}
static struct ku_view view(enum kumi_dtype dtype, const char *names, const int64_t *count)
{
    struct ku_view v = view_without_data(dtype, names, count);
    const int64_t n = ku_shape_count(&v.shape);
    v.data = ku_calloc((size_t)n + 1, kumi_dtype_bytes(dtype));
    assert_non_null(v.data);
    for (int64_t i = 0; i < n; i++)
        ku_store_f64(
            v.data, dtype, i,
            2 * (double)ku_random_uniform(ku_random_u32(7, 1, (uint32_t)names[0], (uint64_t)i)) -
                1);
    return v;
}

/* Operands of one op: names and counts of two inputs and the result. */
struct call_case {
    int op, trans, pad;
    const char *name[3];
    int64_t count[3][4];
};
static const struct call_case calls[] = {
    {KU_OP_linear, 0, 0, {"tc", "cf", "tf"}, {{300, 1400}, {1400, 200}, {300, 200}}},
    {KU_OP_linear, 1, 0, {"tc", "fc", "tf"}, {{300, 2800}, {140, 2800}, {300, 140}}},
    {KU_OP_linear_dx, 0, 0, {"tf", "cf", "tc"}, {{300, 1400}, {200, 1400}, {300, 200}}},
    {KU_OP_linear_dw, 0, 0, {"tc", "tf", "cf"}, {{1500, 300}, {1500, 130}, {300, 130}}},
    {KU_OP_conv2d,
     0,
     1,
     {"nyxc", "fchw", "nyxf"},
     {{6, 20, 20, 130}, {40, 130, 3, 3}, {6, 20, 20, 40}}},
    {KU_OP_conv2d_dx,
     0,
     1,
     {"nyxf", "fchw", "nyxc"},
     {{6, 20, 20, 130}, {130, 40, 3, 3}, {6, 20, 20, 40}}},
    {KU_OP_conv2d_dw,
     0,
     1,
     {"nyxc", "nyxf", "fchw"},
     {{6, 20, 20, 40}, {6, 20, 20, 48}, {48, 40, 3, 3}}},
};

static void launch(const struct ku_caches *caches, enum ku_isa isa, int n_threads,
                   struct ku_call *c)
{
    const struct ku_device_opts o = {.n_threads = n_threads, .isa = isa, .caches = caches};
    struct ku_op_case oc = {.op = c->op, .n_in = c->n_in, .n_out = c->n_out, .attr = c->attr};
    struct ku_target_op t;
    struct ku_kernel *kernel;
    void *dev;
    for (int i = 0; i < c->n_in; i++)
        oc.in[i] = (struct ku_type){c->in[i].dtype, c->in[i].shape};
    oc.out[0] = (struct ku_type){c->out[0].dtype, c->out[0].shape};
    assert_int_equal(ku_device_cpu.open(&o, &dev), 0);
    assert_int_equal(ku_device_cpu.query(NULL, &oc, &t), 0);
    c->workspace = ku_malloc_aligned(64, t.workspace_bytes + 64);
    assert_non_null(c->workspace);
    memset(c->workspace, 0xff, t.workspace_bytes);
    assert_int_equal(ku_device_cpu.bind(dev, c, &kernel), 0);
    assert_int_equal(ku_device_cpu.launch(dev, kernel, NULL, NULL), 0);
    ku_device_cpu.unbind(dev, kernel);
    ku_device_cpu.close(dev);
    ku_free(c->workspace);
}

static void check_bits(const struct call_case *row, enum kumi_dtype dtype, enum ku_isa isa)
{
    static const struct ku_caches odd[] = {{16 << 10, 64 << 10, 0, 1},
                                           {32 << 10, 256 << 10, 1 << 20, 1},
                                           {48 << 10, 2 << 20, 32 << 20, 4},
                                           {1 << 20, 64 << 20, 1 << 30, 64}};
    struct ku_attrs a = ku_attrs_default;
    struct ku_call c = {.op = row->op, .n_in = 2, .n_out = 1, .attr = &a};
    const int is_dw = row->op == KU_OP_linear_dw || row->op == KU_OP_conv2d_dw;
    a.trans = row->trans;
    a.pad_h = a.pad_w = row->pad;
    a.kernel_h = a.kernel_w = row->pad ? 3 : a.kernel_h;
    a.in_h = a.in_w = row->pad ? 20 : a.in_h;
    c.in[0] = view(dtype, row->name[0], row->count[0]);
    c.in[1] = view(dtype, row->name[1], row->count[1]);
    c.out[0] = view(is_dw ? KUMI_F32 : dtype, row->name[2], row->count[2]);
    const size_t bytes = (size_t)ku_shape_count(&c.out[0].shape) * kumi_dtype_bytes(c.out[0].dtype);
    void *first = ku_malloc(bytes);
    assert_non_null(first);
    launch(NULL, isa, 1, &c);
    memcpy(first, c.out[0].data, bytes);
    for (int i = 0; i < COUNT(odd); i += sample_count(1, 2)) {
        memset(c.out[0].data, 0xff, bytes);
        launch(&odd[i], isa, 1 + i % 2, &c);
        assert_memory_equal(c.out[0].data, first, bytes);
    }
    ku_free(first), ku_free(c.in[0].data), ku_free(c.in[1].data), ku_free(c.out[0].data);
}

static void caches_keep_bits(void **state)
{
    const int first = ku_cpu_isa() < KU_ISA_AVX2 ? (int)ku_cpu_isa() : KU_ISA_AVX2;
    (void)state;
    for (int i = 0; i < COUNT(calls); i++)
        for (int isa = sample_count(first, (int)ku_cpu_isa()); isa <= (int)ku_cpu_isa(); isa++)
            for (int bf16 = 0; bf16 < 2; bf16++)
                check_bits(&calls[i], bf16 ? KUMI_BF16 : KUMI_F32, (enum ku_isa)isa);
}

static void regroup(void *group, int64_t n_units)
{
    (void)group, (void)n_units;
}

/*
 * A weight gradient whose lines do not fit in panels of matrix tiles takes the kernel of pairs, in
 * tiles as well. On every machine: the kernels are bound, not run.
 */
static void wide_windows_have_tiles(void **state)
{
    static const struct ku_gemm_micro matrix = {.mr = 32, .nr = 32, .step = 16, .regroup = regroup};
    static const struct ku_isa_pairs pairs = {.gemm = {.mr = 14, .nr = 64, .step = 1}};
    static const int64_t dilation[] = {1, 8, 9, 12, 20};
    const struct ku_device_opts o = {.n_threads = 1, .isa = KU_ISA_BASE};
    void *dev;
    (void)state;
    assert_int_equal(ku_device_cpu.open(&o, &dev), 0);
    struct ku_cpu *cpu = dev;
    cpu->gemm_bf16 = &matrix, cpu->pairs = &pairs;
    for (int i = 0; i < COUNT(dilation); i++) {
        struct ku_attrs a = ku_attrs_default;
        struct ku_call c = {.op = KU_OP_conv2d_dw, .n_in = 2, .n_out = 1, .attr = &a};
        struct ku_kernel *kernel;
        a.kernel_h = a.kernel_w = 3;
        a.pad_h = a.pad_w = a.dilation_h = a.dilation_w = dilation[i];
        a.in_h = a.in_w = 40;
        c.in[0] = view_without_data(KUMI_BF16, "nyxc", (int64_t[]){8, 40, 40, 64});
        c.in[1] = view_without_data(KUMI_BF16, "nyxf", (int64_t[]){8, 40, 40, 256});
        c.out[0] = view_without_data(KUMI_F32, "fchw", (int64_t[]){256, 64, 3, 3});
        assert_int_equal(ku_device_cpu.bind(dev, &c, &kernel), 0);
        assert_ptr_equal(kernel->product.slim, dilation[i] > 8 ? &pairs.gemm : NULL);
        assert_true(kernel->phase[0].n_tiles > 1);
        ku_device_cpu.unbind(dev, kernel);
    }
    ku_device_cpu.close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_fit),     cmocka_unit_test(shapes_of_a_cache),
        cmocka_unit_test(others_fit),       cmocka_unit_test(detected),
        cmocka_unit_test(caches_keep_bits), cmocka_unit_test(wide_windows_have_tiles)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
