/* SPDX-License-Identifier: Apache-2.0 */
/* links: app plan infer train remote run model config */
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
        {"{\"modules\":[{\"match\":[\"h.*.mlp\",\"wte\"],\"param\":\"bf16\",\"compute\":\"bf16\","
         "\"output\":\"f32\"},"
         "{\"match\":\"attn\",\"reduce\":\"f16\",\"compute\":\"f16\",\"cast_inputs\":false}],"
         "\"stochastic_rounding\":true}",
         "f32, h.*.mlp wte: param bf16 compute bf16 output f32, attn: compute f16 reduce f16, "
         "inputs as they are",
         KUMI_F32, KUMI_F32, KUMI_F32, 0},
        {"{\"compute\":\"bf16\",\"grads\":\"bf16\",\"modules\":[{\"match\":\"wte\",\"reduce\":"
         "\"bf16\",\"buffer\":\"f16\"}]}",
         "bf16, gradients bf16, wte: reduce bf16 buffer f16", KUMI_BF16, KUMI_BF16, KUMI_BF16, 0},
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

/* Combinations of the keys that nothing computes: one line with path, value, pattern and reason. */
static void test_refused(void **state)
{
    static const struct {
        const char *precision, *want;
    } row[] = {
        {"\"modules\":{}", "precision.modules: {}; a list of rules"},
        {"\"modules\":[7]", "precision.modules[0]: 7; a rule is an object"},
        {"\"modules\":[{\"compute\":\"bf16\"}]", "give \"match\", a pattern of module paths"},
        {"\"modules\":[{\"match\":[],\"compute\":\"bf16\"}]",
         "precision.modules[0].match: []; a pattern"},
        {"\"modules\":[{\"match\":\"a\"}]",
         "give at least one of param, compute, reduce, output, buffer"},
        {"\"modules\":[{\"match\":\"a\",\"ouput\":\"f32\"}]", "output"},
        {"\"modules\":[{\"match\":\"a\",\"compute\":\"f64\"}]",
         "precision.modules[0].compute: \"f64\"; one of: f32 bf16 f16"},
        {"\"modules\":[{\"match\":\"a\",\"compute\":\"f8\"}]",
         "precision.modules[0].compute: \"f8\"; one of: f32 bf16 f16"},
        {"\"modules\":[{\"match\":\"a\",\"buffer\":\"i64\"}]",
         "precision.modules[0].buffer: \"i64\"; one of: f32 bf16 f16"},
        {"\"modules\":[{\"match\":\"a\",\"output\":\"f32\",\"cast_inputs\":false}]",
         "cast_inputs is for rules that give compute"},
        {"\"modules\":[{\"match\":\"a\",\"compute\":\"f32\",\"cast_inputs\":1}]",
         "precision.modules[0].cast_inputs: 1; true or false"},
        {"\"modules\":[{\"match\":\"a\",\"compute\":\"bf16\"},{\"match\":\"h.*.mlp\",\"param\":"
         "\"bf16\"}]",
         "precision.modules[1].param: \"bf16\"; of \"h.*.mlp\": these modules compute in f32;"},
        {"\"compute\":\"bf16\",\"modules\":[{\"match\":\"a\",\"param\":\"f16\"}]",
         "precision.modules[0].param: \"f16\"; of \"a\": these modules compute in bf16;"},
        {"\"grads\":\"bf16\",\"modules\":[{\"match\":\"a\",\"reduce\":\"f32\"}]",
         "precision.modules[0].reduce: \"f32\"; of \"a\": precision.grads is bf16, and gradients "
         "of 16 bits travel as they are"},
        {"\"stochastic_rounding\":true,\"modules\":[{\"match\":\"a\",\"compute\":\"bf16\"}]",
         "precision.stochastic_rounding: true; it is for"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_config c;
        char text[400];
        snprintf(
            text, sizeof text,
            "{\"model\":{\"model_type\":\"gpt2\"},\"data\":{\"train\":\"a\"},\"precision\":{%s}}",
            row[i].precision);
        const int status =
            ku_config_parse("c.json", text, strlen(text), NULL, 0, ku_model_hidden_size, &c);
        if (status != KUMI_EINVAL || strstr(ku_err_get()->text, row[i].want) == NULL)
            fail_msg("%s: %d: %s", row[i].precision, status, ku_err_get()->text);
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
                                       cmocka_unit_test(test_options),
                                       cmocka_unit_test(test_refused), cmocka_unit_test(test_help)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
