/* SPDX-License-Identifier: Apache-2.0 */
/* links: app plan infer train model config */
/* The table of the ops' precision, and what a configuration's section precision becomes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/err.h"
#include "op/dtype_rule.h"
#include "model/model.h"
#include "config/precision_policy.h"

/* Whether some op's gradient is made of this one. */
static int is_of_gradients(const char *name)
{
    char call[64];
    snprintf(call, sizeof call, "=%s(", name);
    for (int op = 1; op < KU_N_OPS; op++)
        if (strstr(ku_ops[op].grad, call))
            return 1;
    return 0;
}

/* Ops of a model are those before what runs once a step. */
static void test_every_op(void **state)
{
    (void)state;
    for (int op = 1; op < KU_OP_convert; op++) {
        const int is_seed = op == KU_OP_loss_seed;
        if (ku_op_precision[op].cls == KU_PREC_NONE && !is_of_gradients(ku_ops[op].name) &&
            !is_seed)
            fail_msg("op %s has no precision: add a row to src/op/dtype_rule.def", ku_ops[op].name);
    }
    for (int op = KU_OP_convert; op < KU_N_OPS; op++)
        assert_int_equal(ku_op_precision[op].cls, KU_PREC_NONE);
    assert_true(ku_op_is_compute(KU_OP_linear, 1));
    assert_false(ku_op_is_compute(KU_OP_linear, 2)); /* the bias */
    assert_false(ku_op_is_compute(KU_OP_layer_norm, 0));
    assert_false(ku_op_is_compute(KU_OP_adamw, 0));
}

static void test_options(void **state)
{
    static const struct {
        const char *precision, *header;
        enum kumi_dtype compute, grads, reduce;
        int no_master;
    } row[] = {
        {"{}", "f32", KUMI_F32, KUMI_F32, KUMI_F32, 0},
        {"{\"compute\":\"bf16\",\"params\":\"f32\"}", "bf16", KUMI_BF16, KUMI_F32, KUMI_F32, 0},
        {"{\"compute\":\"bf16\",\"params\":\"bf16\",\"master\":false}", "bf16, no master",
         KUMI_BF16, KUMI_F32, KUMI_F32, 1},
        {"{\"compute\":\"bf16\",\"master\":false,\"stochastic_rounding\":true,\"grads\":\"bf16\"}",
         "bf16, no master, updates rounded stochastically, gradients bf16", KUMI_BF16, KUMI_BF16,
         KUMI_BF16, 1},
        {"{\"reduce\":\"f16\"}", "f32, gradients reduced in f16", KUMI_F32, KUMI_F32, KUMI_F16, 0},
        {"{\"grads\":\"bf16\",\"reduce\":\"bf16\"}", "f32, gradients bf16", KUMI_F32, KUMI_BF16,
         KUMI_BF16, 0},
        {"{\"compute\":\"bf16\",\"keep_f32\":[\"ln_*\",\"h.0.mlp\"]}", "bf16, f32: ln_* h.0.mlp",
         KUMI_BF16, KUMI_F32, KUMI_F32, 0},
        {"{\"master\":false}", "f32", KUMI_F32, KUMI_F32, KUMI_F32, 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_config c;
        struct ku_compile_opts o = {0};
        struct ku_str header = {0};
        char text[400];
        snprintf(
            text, sizeof text,
            "{\"model\":{\"model_type\":\"gpt2\"},\"data\":{\"train\":\"a\"},\"precision\":%s}",
            row[i].precision);
        if (ku_config_parse("c.json", text, strlen(text), NULL, 0, ku_model_hidden_size, &c) < 0)
            fail_msg("%s: %s", row[i].precision, ku_err_get()->text);
        assert_int_equal(ku_precision_opts(&c, &o), KUMI_OK);
        ku_precision_print(&c, &header);
        assert_string_equal(ku_str_get(&header), row[i].header);
        assert_int_equal(o.compute, row[i].compute);
        assert_int_equal(o.grads, row[i].grads);
        assert_int_equal(o.reduce, row[i].reduce);
        assert_int_equal(o.no_master, row[i].no_master);
        ku_str_fini(&header);
        ku_config_fini(&c);
    }
}

static void test_help(void **state)
{
    (void)state;
    for (int as_markdown = 0; as_markdown < 2; as_markdown++) {
        struct ku_str text = {0};
        ku_precision_help(as_markdown, &text);
        assert_non_null(strstr(ku_str_get(&text), as_markdown ? "| `softmax_xent` | f32 | losses "
                                                              : "softmax_xent         f32      "));
        ku_str_fini(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_op),
                                       cmocka_unit_test(test_options), cmocka_unit_test(test_help)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
