/* SPDX-License-Identifier: Apache-2.0 */
#include "op/op.h"

#include <string.h>

#include "base/err.h"

#define KU_OP(name, min_in, max_in, min_out, max_out, traits, map, sum, inout, alias, grad, infer, \
              cost, operands, workspace)                                                           \
    ku_infer_fn ku_infer_##infer;                                                                  \
    ku_cost_fn ku_cost_##cost;
#include "op/ops.def"
#undef KU_OP

#define ROW(name, s0, s1, s2, min_in, max_in, min_out, max_out, traits, map, sum, inout, alias,    \
            grad, infer, cost, operands, workspace)                                                \
    [KU_OP_##name] = {                                                                             \
        #name, min_in, max_in, min_out,          max_out,        traits,   map,         sum,       \
        inout, alias,  grad,   ku_infer_##infer, ku_cost_##cost, operands, {s0, s1, s2}},
const struct ku_op_info ku_ops[KU_N_OPS] = {
    [KU_OP_NONE] = {.name = "none",
                    .map = "",
                    .sum = "",
                    .inout = "",
                    .alias = "",
                    .grad = "",
                    .operands = ""},
#define KU_OP(name, ...)                            ROW(name, NULL, NULL, NULL, __VA_ARGS__)
#define KU_OPTIMIZER(name, s0, s1, s2, update, ...) ROW(name, s0, s1, s2, __VA_ARGS__)
#include "op/ops.def"
#undef KU_OP
};
#undef ROW

int ku_op_find(const char *name)
{
    for (int op = 1; op < KU_N_OPS; op++)
        if (strcmp(ku_ops[op].name, name) == 0)
            return op;
    return KU_OP_NONE;
}

int ku_op_infer(int op, const struct ku_attrs *a, int n_in, const struct ku_type *in, int n_out,
                struct ku_type *out)
{
    KU_ASSERT(op > KU_OP_NONE && op < KU_N_OPS);
    const struct ku_op_info *info = &ku_ops[op];
    if (n_in < info->min_in || n_in > info->max_in)
        return KU_ERR(KUMI_EINVAL, "op: %s: %d inputs; takes %d to %d", info->name, n_in,
                      info->min_in, info->max_in);
    if (n_out < info->min_out || n_out > info->max_out)
        return KU_ERR(KUMI_EINVAL, "op: %s: %d outputs; has %d to %d", info->name, n_out,
                      info->min_out, info->max_out);
    struct ku_type all[KU_MAX_OUT] = {0};
    KU_TRY(info->infer(a, n_in, in, all));
    for (int i = 0; i < n_out; i++) {
        KU_TRY(ku_shape_check(&all[i].shape, info->name));
        out[i] = all[i];
    }
    return KUMI_OK;
}

int ku_op_pair(const char *pairs, int out)
{
    for (const char *p = pairs; *p; p++)
        if (p[0] == '0' + out && p[1] == '=')
            return p[2] - '0';
    return -1;
}
