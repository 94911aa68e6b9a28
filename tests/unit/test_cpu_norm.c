/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor op device */
/* Batch norm with ReLU and a residual sum in one kernel gives the bits of the separate ones,
 * forward and backward, on every device and instruction set. */
#include "op/check.h"

static struct op_result run_like(const struct op_device *d, int op, const struct ku_attrs *a,
                                 int n_out, const struct ku_view *const *in)
{
    struct op_call c = {.op = op, .n_out = n_out, .attr = *a};
    for (; in[c.n_in]; c.n_in++)
        c.in[c.n_in] = view_clone(in[c.n_in]);
    snprintf(c.text, sizeof c.text, "%s", ku_ops[op].name);
    call_infer(&c);
    struct op_result r = call_run(d, &c, 0);
    call_fini(&c);
    return r;
}
#define RUN(op, n_out, ...)                                                                        \
    run_like(d, KU_OP_##op, &a, n_out, (const struct ku_view *const[]){__VA_ARGS__, NULL})

static void check_forward(const struct op_device *d, enum kumi_dtype dtype, int has_r)
{
    static const struct op_row row[2] = {
        {"batch_norm", "act=relu", "x:n70c131 m:c131 v:c131 f:c131 f:c131", 1},
        {"batch_norm", "act=relu", "x:n70c131 m:c131 v:c131 f:c131 f:c131 x:n70c131", 1}};
    struct op_call c;
    call_parse(&row[has_r], dtype, &c);
    struct op_result fused = call_run(d, &c, 0);
    struct ku_attrs a = c.attr;
    a.act = KU_ACT_NONE;
    struct op_result z = RUN(batch_norm, 1, &c.in[0], &c.in[1], &c.in[2], &c.in[3], &c.in[4]);
    struct op_result sum = has_r ? RUN(add, 1, &z.out[0], &c.in[5]) : RUN(cast, 1, &z.out[0]);
    a.act = KU_ACT_RELU;
    struct op_result y = RUN(act, 1, &sum.out[0]);
    expect_bits(d->name, c.text, &fused, &y);
    result_fini(&fused);
    result_fini(&z);
    result_fini(&sum);
    result_fini(&y);
    call_fini(&c);
}

static void check_backward(const struct op_device *d, enum kumi_dtype dtype)
{
    static const struct op_row row = {"batch_norm_dsums", "",
                                      "x:n300c131 x:n300c131 m:c131 v:c131 x:n300c131", 4};
    struct op_call c;
    call_parse(&row, dtype, &c);
    struct op_result fused = call_run(d, &c, 0);
    struct ku_attrs a = c.attr;
    a.act = KU_ACT_RELU;
    struct op_result dz = RUN(act_dx, 1, &c.in[0], &c.in[4]);
    struct op_result sums = RUN(batch_norm_dsums, 3, &dz.out[0], &c.in[1], &c.in[2], &c.in[3]);
    struct op_result whole = {4, {sums.out[0], sums.out[1], sums.out[2], dz.out[0]}};
    expect_bits(d->name, c.text, &fused, &whole);
    result_fini(&fused);
    result_fini(&dz);
    result_fini(&sums);
    call_fini(&c);
}

/* Results of more than 4 MiB on whole cache lines go past the caches, in place they cannot. */
static void check_streamed(const struct op_device *d, const struct op_row *row,
                           enum kumi_dtype dtype)
{
    struct op_call c;
    call_parse(row, dtype, &c);
    struct op_result in_place = call_run(d, &c, 1), r = {.n = c.n_out};
    struct ku_call k = {.op = c.op, .n_in = c.n_in, .n_out = c.n_out, .attr = &c.attr};
    struct ku_op_case query = {.op = c.op, .n_in = c.n_in, .n_out = c.n_out, .attr = &c.attr};
    struct ku_target_op answer;
    struct ku_kernel *kernel;
    for (int i = 0; i < c.n_in; i++) {
        k.in[i] = c.in[i];
        query.in[i] = (struct ku_type){c.in[i].dtype, c.in[i].shape};
    }
    for (int o = 0; o < c.n_out; o++) {
        r.out[o] = c.out[o];
        r.out[o].data = ku_malloc_aligned(64, bytes_of(&c.out[o]));
        assert_non_null(r.out[o].data);
        k.out[o] = r.out[o];
    }
    assert_int_equal(d->ops->query(d->dev, &query, &answer), KUMI_OK);
    k.workspace = ku_malloc_aligned(64, answer.workspace_bytes);
    assert_non_null(k.workspace);
    assert_int_equal(d->ops->bind(d->dev, &k, &kernel), KUMI_OK);
    assert_int_equal(d->ops->launch(d->dev, kernel, NULL, NULL), KUMI_OK);
    expect_bits(d->name, c.text, &r, &in_place);
    d->ops->unbind(d->dev, kernel);
    ku_free(k.workspace);
    result_fini(&r);
    result_fini(&in_place);
    call_fini(&c);
}

static void check_device(struct op_device d)
{
    for (int bf16 = 0; bf16 < 2; bf16++) {
        enum kumi_dtype dtype = bf16 ? KUMI_BF16 : KUMI_F32;
        check_forward(&d, dtype, 0);
        check_forward(&d, dtype, 1);
        check_backward(&d, dtype);
    }
    device_close(&d);
}
static void test_ref(void **state)
{
    (void)state;
    check_device(ref_device());
}
static void test_cpu(void **state)
{
    (void)state;
    for (enum ku_isa isa = KU_ISA_BASE; isa <= ku_cpu_isa(); isa++)
        check_device(device_open(&ku_device_cpu, isa, 2));
}
static void test_streamed(void **state)
{
    static const struct op_row row[] = {
        {"batch_norm", "act=relu", "x:n8300c128 m:c128 v:c128 f:c128 f:c128", 1},
        {"batch_norm", "act=relu", "x:n70000c32 m:c32 v:c32 f:c32 f:c32", 1},
        {"batch_norm_dsums", "", "x:n17000c128 x:n17000c128 m:c128 v:c128 x:n17000c128", 4}};
    static const enum kumi_dtype dtype[] = {KUMI_F32, KUMI_BF16, KUMI_BF16};
    struct op_device d = device_open(&ku_device_cpu, ku_cpu_isa(), 2);
    (void)state;
    for (int i = 0; i < 3; i++)
        check_streamed(&d, &row[i], dtype[i]);
    device_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ref), cmocka_unit_test(test_cpu),
                                       cmocka_unit_test(test_streamed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
