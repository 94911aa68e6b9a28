/* SPDX-License-Identifier: Apache-2.0 */
#include "op/dtype_rule.h"

#include <string.h>

const struct ku_op_precision ku_op_precision[KU_N_OPS] = {
#define KU_PRECISION(op, cls, operands, help) [KU_OP_##op] = {KU_PREC_##cls, operands, help},
#include "op/dtype_rule.def"
#undef KU_PRECISION
};

const char *const ku_precision_roles[KU_N_ROLES] = {"param", "compute", "reduce", "output",
                                                    "buffer"};

static bool is_listed(int op, int operand)
{
    const char *operands = ku_op_precision[op].operands;
    return operands && operand < 10 && strchr(operands, '0' + operand) != NULL;
}

bool ku_op_is_compute(int op, int operand)
{
    return ku_op_precision[op].cls == KU_PREC_COMPUTE && is_listed(op, operand);
}

bool ku_op_is_activation(int op, int operand)
{
    return ku_op_precision[op].cls != KU_PREC_COMPUTE && is_listed(op, operand);
}
