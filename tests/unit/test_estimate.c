/* SPDX-License-Identifier: Apache-2.0 */
/* links: app plan infer train remote run model config */
/* kumi plan --params against Table 1 of Rajbhandari et al. 2020 (arXiv 1910.02054): GB a device,
 * 16-bit gradients. */
#include "test_commands.h"

#include <math.h>
#include <stdlib.h>

/* The paper rounds some figures and truncates others: one unit of the last printed digit. */
static double unit_of(const char *printed)
{
    const char *dot = strchr(printed, '.');
    return dot ? pow(10, -(double)strlen(dot + 1)) : 1;
}

static void table_1(void **state)
{
    static const struct {
        double n_params;
        int ranks;
        const char *gb[3];
    } row[] = {
        {7500000000.0, 1, {"120", "120", "120"}},
        {7500000000.0, 4, {"52.5", "41.3", "30"}},
        {7500000000.0, 16, {"35.6", "21.6", "7.5"}},
        {7500000000.0, 64, {"31.4", "16.6", "1.88"}},
        {7500000000.0, 256, {"30.4", "15.4", "0.47"}},
        {7500000000.0, 1024, {"30.1", "15.1", "0.12"}},
        {128000000000.0, 1, {"2048", "2048", "2048"}},
        {128000000000.0, 4, {"896", "704", "512"}},
        {128000000000.0, 16, {"608", "368", "128"}},
        {128000000000.0, 64, {"536", "284", "32"}},
        {128000000000.0, 256, {"518", "263", "8"}},
        {128000000000.0, 1024, {"513", "257", "2"}},
        {1000000000000.0, 1, {"16000", "16000", "16000"}},
        {1000000000000.0, 4, {"7000", "5500", "4000"}},
        {1000000000000.0, 16, {"4750", "2875", "1000"}},
        {1000000000000.0, 64, {"4187", "2218", "250"}},
        {1000000000000.0, 256, {"4046", "2054", "62.5"}},
        {1000000000000.0, 1024, {"4011", "2013", "15.6"}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct kumi_estimate e = {
            .n_params = row[i].n_params, .grads = "bf16", .n_ranks = row[i].ranks};
        char *text = NULL;
        assert_status(kumi_plan_estimate(&e, 1, &text), KUMI_OK);
        json_t *root = take_json(text);
        for (int stage = 1; stage <= 3; stage++) {
            json_t *s = json_array_get(json_object_get(root, "stages"), (size_t)stage);
            double gb = json_real_value(json_object_get(s, "bytes")) * 1e-9,
                   printed = strtod(row[i].gb[stage - 1], NULL);
            if (fabs(gb - printed) > unit_of(row[i].gb[stage - 1]))
                fail_msg("%g parameters, %d ranks, stage %d: %g, printed %s", row[i].n_params,
                         row[i].ranks, stage, gb, row[i].gb[stage - 1]);
        }
        json_decref(root);
    }
}

static double all_bytes(const struct kumi_estimate *e, int stage)
{
    char *text = NULL;
    assert_status(kumi_plan_estimate(e, 1, &text), KUMI_OK);
    json_t *root = take_json(text);
    json_t *s = json_array_get(json_object_get(root, "stages"), (size_t)stage);
    double bytes = json_real_value(json_object_get(s, "bytes"));
    json_decref(root);
    return bytes;
}

/* Bytes a parameter, by hand. */
static void other_rules(void **state)
{
    static const struct {
        struct kumi_estimate e;
        int stage;
        double bytes;
    } row[] = {{{1e6, NULL, NULL, NULL, 1, 0, 0, NULL}, 0, 18e6}, /* 2 + 4 + (4 + 8) */
               {{1e6, "adam", "f32", NULL, 4, 0, 0, NULL}, 0, 16e6},
               {{1e6, "sgd", "f32", "f32", 4, 0, 0, NULL}, 1, 8e6},
               {{1e6, "momentum", "f16", "f16", 4, 0, 0, NULL}, 1, 6e6},
               {{1e6, "lion", "bf16", NULL, 8, 2, 0, NULL}, 3, 14e6 / 4},
               {{1e6, "adafactor", "bf16", "bf16", 4, 4, 0, NULL}, 3, 8e6},
               {{1e6, NULL, "bf16", "bf16", 4, 0, 1, NULL}, 1, 6e6}}; /* 2 + 2 + 8 / 4 */
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        assert_true(fabs(all_bytes(&row[i].e, row[i].stage) / row[i].bytes - 1) < 1e-12);
}

static void refusals(void **state)
{
    static const struct {
        struct kumi_estimate e;
        const char *says;
    } row[] = {
        {{0, NULL, NULL, NULL, 1, 0, 0, NULL}, "plan: --params: 0; give 1 to 1e18"},
        {{1e6, "adamax", NULL, NULL, 1, 0, 0, NULL},
         "plan: --optimizer: adamax: unknown; give one of adamw, "},
        {{1e6, NULL, "fp8", NULL, 1, 0, 0, NULL},
         "plan: --precision: fp8: unknown; give f32, bf16 or f16"},
        {{1e6, NULL, NULL, "f64", 1, 0, 0, NULL},
         "plan: --grads: f64: unknown; give f32, bf16 or f16"},
        {{1e6, NULL, NULL, NULL, 1, 0, 0, "4"}, "plan: --zero: 4; give 0, 1, 2 or 3"},
        {{1e6, NULL, NULL, NULL, 1, 0, 0, "10"}, "plan: --zero: 10; give 0, 1, 2 or 3"},
        {{1e6, NULL, NULL, NULL, 0, 0, 0, NULL}, "plan: -n: 0, --replicate: 0; give 1 or more"},
        {{1e6, NULL, NULL, NULL, 6, 4, 0, NULL}, "plan: --replicate: 4 does not divide 6 ranks"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        char *text = NULL;
        assert_int_equal(kumi_plan_estimate(&row[i].e, 0, &text), KUMI_EINVAL);
        assert_null(text);
        assert_int_equal(strncmp(ku_err_get()->text, row[i].says, strlen(row[i].says)), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(table_1), cmocka_unit_test(other_rules),
                                       cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
