/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_OP_TENSOR_PLAN_H
#define KU_OP_TENSOR_PLAN_H

#include <stdbool.h>

/*
 * The user's tensor-parallel plan (parallel.plan): a style for the modules whose paths match a
 * pattern, as the plan of PyTorch's parallelize_module. Modules that match none follow the default
 * plan (pass/place/tensor_parallel.h).
 *
 *     col          the weight is divided along a dim of the result, which stays divided
 *     col_gather   the same, and the result is gathered whole
 *     row          the weight is divided along what it contracts; the result is summed
 *     vocab        a table or output layer is divided along the vocabulary
 *     seq          parameters are whole, activations the rank's part of the sequence (parallel.sp)
 *     replicate    parameters and activations are whole
 */
enum ku_tp_style {
    KU_TP_DEFAULT,
    KU_TP_COL,
    KU_TP_ROW,
    KU_TP_VOCAB,
    KU_TP_SEQ,
    KU_TP_COL_GATHER,
    KU_TP_REPLICATE,
    KU_N_TP_STYLES
};
struct ku_tp_rule {
    char *match; /* a pattern; one without a dot matches the last name of a path too */
    int style;
};
struct ku_tp_plan {
    struct ku_tp_rule *rule; /* [n] */
    int n;
};
const char *ku_tp_style_name(int style); /* "col", .. */

bool ku_tp_rule_matches(const struct ku_tp_rule *rule, const char *module);
/* The rule of a module: of several that match that of the longest pattern. -1: none. */
int ku_tp_plan_find(const struct ku_tp_plan *plan, const char *module);
/* The style of the module of a parameter, its name without the last part. */
enum ku_tp_style ku_tp_plan_of_tensor(const struct ku_tp_plan *plan, const char *name);

#endif
