/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_OP_TYPE_H
#define KU_OP_TYPE_H

#include "base/err.h"
#include "op/op.h"

/* Shared by the type inference files in op/type/. */
#define INFER(name)                                                                                \
    ku_infer_fn ku_infer_##name;                                                                   \
    int ku_infer_##name(const struct ku_attrs *a, int n_in, const struct ku_type *in,              \
                        struct ku_type *out)

/* KUMI_EINVAL: what the op requires, and what it got. */
static inline KU_STATUS misfit(const char *op, const char *what, const struct ku_type *t)
{
    char text[160];
    return KU_ERR(KUMI_EINVAL, "op: %s: %s: got %s %s", op, what, kumi_dtype_name(t->dtype),
                  ku_shape_print(&t->shape, text, sizeof text));
}

/* f64 stays f64 (for the reference device); sums and statistics of all other dtypes are f32. */
static inline enum kumi_dtype wide(enum kumi_dtype d)
{
    return d == KUMI_F64 ? KUMI_F64 : KUMI_F32;
}
/* The dtype that attribute dtype asks for, or `otherwise`. */
static inline enum kumi_dtype wanted(const struct ku_attrs *a, enum kumi_dtype otherwise)
{
    return a->dtype >= 0 ? (enum kumi_dtype)a->dtype : otherwise;
}

#endif
