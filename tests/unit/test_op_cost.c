/* SPDX-License-Identifier: Apache-2.0 */
/* links: op tensor base */
/* FLOPs and bytes of ops, counted by hand; of a result that is added to as well. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "op/op.h"

struct operand {
    enum kumi_dtype dtype;
    const char *names;
    int64_t count[3];
};

static void read_types(const struct operand *o, int n, struct ku_type *out)
{
    for (int i = 0; i < n; i++)
        out[i] = (struct ku_type){o[i].dtype, ku_shape_of(o[i].names, o[i].count)};
}

static const struct {
    const char *name;
    int op, accumulate, n_in;
    struct operand in[2], out;
    double flops, bytes;
} costs[] = {
    /* 6 ids; 6 rows of 8 read, and written */
    {"embedding",
     KU_OP_embedding,
     0,
     2,
     {{KUMI_F32, "vc", {100, 8}}, {KUMI_I32, "nt", {2, 3}}},
     {KUMI_F32, "ntc", {2, 3, 8}},
     48,
     6 * 4 + 2 * 48 * 4},
    /* ids, dy and all 100 rows */
    {"embedding_dw",
     KU_OP_embedding_dw,
     0,
     2,
     {{KUMI_I32, "nt", {2, 3}}, {KUMI_BF16, "ntc", {2, 3, 8}}},
     {KUMI_F32, "vc", {100, 8}},
     48,
     6 * 4 + 48 * 2 + 800 * 4},
    /* ids, dy and 6 rows, read and written */
    {"embedding_dw, added",
     KU_OP_embedding_dw,
     1,
     2,
     {{KUMI_I32, "nt", {2, 3}}, {KUMI_BF16, "ntc", {2, 3, 8}}},
     {KUMI_F32, "vc", {100, 8}},
     48,
     6 * 4 + 48 * 2 + 2 * 48 * 4},
    /* a table of 4 rows: no more than it has */
    {"embedding_dw, added to a small table",
     KU_OP_embedding_dw,
     1,
     2,
     {{KUMI_I32, "nt", {2, 3}}, {KUMI_BF16, "ntc", {2, 3, 8}}},
     {KUMI_F32, "vc", {4, 8}},
     48,
     6 * 4 + 48 * 2 + 2 * 32 * 4},
    {"linear_dw",
     KU_OP_linear_dw,
     0,
     2,
     {{KUMI_F32, "nc", {5, 8}}, {KUMI_F32, "nd", {5, 2}}},
     {KUMI_F32, "cd", {8, 2}},
     2 * 5 * 8 * 2,
     (40 + 10 + 16) * 4},
    {"linear_dw, added",
     KU_OP_linear_dw,
     1,
     2,
     {{KUMI_F32, "nc", {5, 8}}, {KUMI_F32, "nd", {5, 2}}},
     {KUMI_F32, "cd", {8, 2}},
     2 * 5 * 8 * 2,
     (40 + 10 + 2 * 16) * 4},
};

static void test_costs(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof costs / sizeof *costs; i++) {
        struct ku_type in[2], out;
        read_types(costs[i].in, costs[i].n_in, in);
        read_types(&costs[i].out, 1, &out);
        struct ku_cost c = ku_ops[costs[i].op].cost(&ku_attrs_default, costs[i].accumulate,
                                                    costs[i].n_in, in, 1, &out);
        if (c.flops != costs[i].flops || c.bytes != costs[i].bytes)
            fail_msg("%s: %g FLOPs, %g bytes", costs[i].name, c.flops, c.bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_costs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
