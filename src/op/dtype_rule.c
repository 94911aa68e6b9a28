/* SPDX-License-Identifier: Apache-2.0 */
#include "op/dtype_rule.h"

#include <string.h>

const struct ku_op_precision ku_op_precision[KU_N_OPS] = {
#define KU_PRECISION(op, cls, operands, help) [KU_OP_##op] = {KU_PREC_##cls, operands, help},
#include "op/dtype_rule.def"
#undef KU_PRECISION
};

bool ku_op_is_compute(int op, int operand)
{
    const char *operands = ku_op_precision[op].operands;
    return operands && operand < 10 && strchr(operands, '0' + operand) != NULL;
}
