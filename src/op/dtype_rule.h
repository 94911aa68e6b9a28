/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_OP_DTYPE_RULE_H
#define KU_OP_DTYPE_RULE_H

#include <stdbool.h>

#include "op/op.h"

/* Compute precision of the model ops. dtype_rule.def defines the classes. */
enum ku_precision_class {
    KU_PREC_NONE, /* not a forward op */
    KU_PREC_COMPUTE,
    KU_PREC_F32,
    KU_PREC_AS_READ
};
struct ku_op_precision {
    enum ku_precision_class cls;
    const char *operands, *help;
};
extern const struct ku_op_precision ku_op_precision[KU_N_OPS];

/* 1 if the operand is read in precision.compute. */
bool ku_op_is_compute(int op, int operand);

#endif
