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

/* Whether the operand is read in precision.compute. */
bool ku_op_is_compute(int op, int operand);
/* Whether the operand is the activation of an op of another class, whose dtype the result has. */
bool ku_op_is_activation(int op, int operand);

/* What a rule of precision.modules gives a dtype for. */
enum ku_precision_role {
    KU_ROLE_PARAM,   /* storage of parameters that are read in `compute` */
    KU_ROLE_COMPUTE, /* operands and results of ops */
    KU_ROLE_REDUCE,  /* wire of gradients */
    KU_ROLE_OUTPUT,  /* activations that ops of other modules read */
    KU_ROLE_BUFFER,  /* storage of running statistics */
    KU_N_ROLES
};
extern const char *const ku_precision_roles[KU_N_ROLES]; /* "param", "compute", .. */
struct ku_precision_rule {
    const char *const *match; /* patterns of module paths, NULL-terminated */
    int dtype[KU_N_ROLES];    /* f32, bf16 or f16; -1: as in the whole model */
    bool casts_inputs;        /* with a compute dtype: all activations that enter are cast to it */
};
struct ku_precision_rules {
    struct ku_precision_rule *rule; /* [n]; the first that matches counts */
    int n;
};

#endif
