/* SPDX-License-Identifier: Apache-2.0 */
/* links: op tensor base */
/* Attributes that the text of a graph may give and no op can have are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/err.h"
#include "op/op.h"

#define HUGE_WORD "9223372036854775807"

struct operand {
    enum kumi_dtype dtype;
    const char *names; /* NULL: none; "": a scalar */
    int64_t count[4];
};

/* "contract=-1 outs=2" */
static void set_attrs(struct ku_attrs *a, const char *text)
{
    char name[32], value[32];
    int used;
    *a = ku_attrs_default;
    for (; sscanf(text, " %31[^=]=%31s%n", name, value, &used) == 2; text += used)
        assert_int_equal(ku_attrs_set(a, name, value), KUMI_OK);
}

static const struct {
    const char *op, *attrs;
    struct operand in[7];
    int status;
} attributes[] = {
    {"linear", "", {{KUMI_F32, "nc", {3, 4}}, {KUMI_F32, "cf", {4, 2}}}, KUMI_OK},
    {"linear",
     "contract=-1 outs=3",
     {{KUMI_F32, "nc", {3, 4}}, {KUMI_F32, "cf", {4, 2}}},
     KUMI_EINVAL},
    {"linear",
     "contract=4294967297",
     {{KUMI_F32, "nc", {3, 4}}, {KUMI_F32, "cf", {4, 2}}},
     KUMI_EINVAL},
    {"linear_dx",
     "contract=-1 outs=2 trans=1",
     {{KUMI_F32, "fg", {2, 3}}, {KUMI_F32, "f", {2}}},
     KUMI_EINVAL},
    {"linear_dx",
     "contract=-1 outs=2",
     {{KUMI_F32, "fg", {2, 3}}, {KUMI_F32, "f", {2}}},
     KUMI_EINVAL},
    {"linear_dw", "contract=-1", {{KUMI_F32, "n", {3}}, {KUMI_F32, "ncd", {3, 4, 5}}}, KUMI_EINVAL},
    {"linear_db", "outs=-1", {{KUMI_F32, "nc", {3, 4}}}, KUMI_EINVAL},
    {"linear_db", "outs=0", {{KUMI_F32, "nc", {3, 4}}}, KUMI_EINVAL},
    {"bias_add", "outs=-1", {{KUMI_F32, "nc", {3, 4}}}, KUMI_EINVAL},
    {"bias_add", "outs=9", {{KUMI_F32, "nc", {3, 4}}}, KUMI_EINVAL},
    {"add_rows_dw",
     "outs=-1 rows=3 rows_seen=3 row_name=118",
     {{KUMI_F32, "nc", {3, 4}}},
     KUMI_EINVAL},
    {"rms_norm_dg",
     "",
     {{KUMI_F32, "", {0}}, {KUMI_F32, "", {0}}, {KUMI_F32, "", {0}}},
     KUMI_EINVAL},
    {"layer_norm_dgb",
     "",
     {{KUMI_F32, "", {0}}, {KUMI_F32, "", {0}}, {KUMI_F32, "", {0}}, {KUMI_F32, "", {0}}},
     KUMI_EINVAL},
    {"sumsq", "", {{KUMI_F32, "z", {300}}, {KUMI_I64, "w", {73}}}, KUMI_OK},
    {"sumsq", "index=-80", {{KUMI_F32, "z", {300}}, {KUMI_I64, "w", {73}}}, KUMI_EINVAL},
    {"sumsq", "index=" HUGE_WORD, {{KUMI_F32, "z", {300}}, {KUMI_I64, "w", {73}}}, KUMI_EINVAL},
    {"factor_sums",
     "rows=3 cols=4 rows_seen=3",
     {{KUMI_F32, "nc", {3, 4}}, {KUMI_F64, "w", {8}}, {KUMI_I64, "w", {14}}},
     KUMI_OK},
    {"factor_sums",
     "rows=4294967296 cols=4294967296 rows_seen=1",
     {{KUMI_F32, "nc", {3, 4}}, {KUMI_F64, "w", {8}}, {KUMI_I64, "w", {14}}},
     KUMI_EINVAL},
    {"factor_sums",
     "rows=" HUGE_WORD " cols=1 rows_seen=1",
     {{KUMI_F32, "nc", {0, 4}}, {KUMI_F64, "w", {8}}, {KUMI_I64, "w", {14}}},
     KUMI_EINVAL},
    {"factor_sums",
     "rows=3 cols=4 rows_seen=3 first_word=" HUGE_WORD,
     {{KUMI_F32, "nc", {3, 4}}, {KUMI_F64, "w", {8}}, {KUMI_I64, "w", {14}}},
     KUMI_EINVAL},
    {"factor_norms",
     "rows=3 cols=5 count=15",
     {{KUMI_F32, "z", {15}},
      {KUMI_F32, "z", {15}},
      {KUMI_F32, "a", {3}},
      {KUMI_F32, "b", {5}},
      {KUMI_F64, "w", {1}},
      {KUMI_F64, "w", {8}},
      {KUMI_I64, "w", {144}}},
     KUMI_OK},
    {"factor_norms",
     "rows=3 cols=5 count=15 index=" HUGE_WORD,
     {{KUMI_F32, "z", {15}},
      {KUMI_F32, "z", {15}},
      {KUMI_F32, "a", {3}},
      {KUMI_F32, "b", {5}},
      {KUMI_F64, "w", {1}},
      {KUMI_F64, "w", {8}},
      {KUMI_I64, "w", {144}}},
     KUMI_EINVAL},
    {"conv2d_dx",
     "in_h=" HUGE_WORD " in_w=4 pad_h=2",
     {{KUMI_F32, "nyxf", {1, 4, 4, 2}}, {KUMI_F32, "fihw", {2, 3, 1, 1}}},
     KUMI_EINVAL},
    {"unflatten", "in_h=-2 in_w=-3", {{KUMI_F32, "nc", {2, 12}}}, KUMI_EINVAL},
    {"unflatten", "in_h=4294967297 in_w=4294967296", {{KUMI_F32, "nc", {2, 0}}}, KUMI_EINVAL},
};

static void test_attributes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++) {
        struct ku_type in[7], out[KU_MAX_OUT];
        struct ku_attrs a;
        int n = 0, op = ku_op_find(attributes[i].op);
        assert_int_not_equal(op, KU_OP_NONE);
        for (; n < 7 && attributes[i].in[n].names; n++)
            in[n] =
                (struct ku_type){attributes[i].in[n].dtype,
                                 ku_shape_of(attributes[i].in[n].names, attributes[i].in[n].count)};
        set_attrs(&a, attributes[i].attrs);
        int status = ku_op_infer(op, &a, n, in, ku_ops[op].min_out, out);
        if (status != attributes[i].status)
            fail_msg("%s %s: %d", attributes[i].op, attributes[i].attrs, status);
    }
}

/* The product of any of the dims is bounded, also where another dim is empty. */
static void test_shapes(void **state)
{
    static const struct {
        int64_t count[3];
        int status;
    } rows[] = {{{0, 1 << 20, 1 << 20}, KUMI_OK},
                {{0, INT64_C(1) << 40, INT64_C(1) << 40}, KUMI_EINVAL},
                {{INT64_C(1) << 40, INT64_C(1) << 40, 0}, KUMI_EINVAL},
                {{1, INT64_C(1) << 48, 1}, KUMI_OK}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct ku_shape s = ku_shape_of("abc", rows[i].count);
        assert_int_equal(ku_shape_check(&s, "s"), rows[i].status);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_attributes),
                                       cmocka_unit_test(test_shapes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
