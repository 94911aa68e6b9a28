/* SPDX-License-Identifier: Apache-2.0 */
/* Type inference of Adafactor's ops. */
#include "base/math/exact.h"
#include "op/type.h"

static bool is_product(int64_t a, int64_t b, int64_t product)
{
    int64_t is;
    return !__builtin_mul_overflow(a, b, &is) && is == product;
}

static bool is_matrix(const struct ku_attrs *a, int64_t *each)
{
    const int64_t most = (int64_t)1 << 48; /* the limit of a shape */
    return a->rows > 0 && a->cols > 0 && !__builtin_mul_overflow(a->rows, a->cols, each) &&
           *each <= most;
}

/*
 * Checks that x is a whole number of rows x cols matrices and that factors has two words for each
 * row and column.
 */
static int check_factors(const struct ku_attrs *a, const char *op, const struct ku_type *x,
                         const struct ku_type *factors)
{
    const int64_t count = ku_shape_count(&x->shape);
    int64_t each;
    if (!is_matrix(a, &each) || a->rows_seen < 1 || a->rows_seen > a->rows || count % each != 0)
        return misfit(op, "is not a whole number of matrices", x);
    if (factors->dtype != KUMI_I64 || factors->shape.ndim != 1 || a->first_word < 0 ||
        a->first_word > factors->shape.dim[0].count - 2 * count / each * (a->rows + a->cols))
        return misfit(op, "factors needs two i64 per row and column", factors);
    return KUMI_OK;
}
static int check_sums(const struct ku_attrs *a, const char *op, const struct ku_type *t,
                      enum kumi_dtype dtype, int64_t words)
{
    if (t->dtype != dtype || t->shape.ndim != 1 || a->index < 0 || a->count < 1 ||
        a->index >= t->shape.dim[0].count / words)
        return misfit(op, "needs two sums or norms per tensor, and its count", t);
    return KUMI_OK;
}
/* Checks the factors of x: row_var, col_var, 1 / mean. */
static int check_vars(const struct ku_attrs *a, const char *op, const struct ku_type *x,
                      const struct ku_type *var)
{
    const int64_t count = ku_shape_count(&x->shape);
    int64_t each;
    if (!is_matrix(a, &each) || !is_product(ku_shape_count(&var[0].shape), a->cols, count) ||
        !is_product(ku_shape_count(&var[1].shape), a->rows, count) ||
        !is_product(ku_shape_count(&var[2].shape), each, count))
        return misfit(op, "rows, columns and matrices differ from the parameter's", x);
    return KUMI_OK;
}

INFER(factor_sums)
{
    (void)n_in;
    out[0] = in[2];
    return check_factors(a, "factor_sums", &in[0], &in[2]);
}
INFER(factor_means)
{
    const int64_t n = a->rows > 0 ? ku_shape_count(&in[1].shape) / a->rows : 0;
    (void)n_in;
    if (a->rows < 1 || a->cols < 1 || ku_shape_count(&in[1].shape) != n * a->rows ||
        !is_product(n, a->cols, ku_shape_count(&in[2].shape)))
        return misfit("factor_means", "rows and columns are not those of whole matrices", &in[1]);
    out[0] = in[1];
    out[1] = in[2];
    out[2].dtype = KUMI_F64;
    out[2].shape = ku_shape_of("w", &n);
    return KUMI_OK;
}
INFER(factor_norms)
{
    (void)n_in;
    if (!ku_shape_is_equal(&in[0].shape, &in[1].shape))
        return misfit("factor_norms", "parameter and gradient differ in shape", &in[1]);
    KU_TRY(check_vars(a, "factor_norms", &in[0], &in[2]));
    out[0] = in[6];
    return check_sums(a, "factor_norms", &in[6], KUMI_I64, 2 * KU_EXACT_WORDS);
}
static void results(const struct ku_attrs *a, const struct ku_type *p, struct ku_type *out)
{
    out[0] = out[1] = *p;
    out[1].dtype = wanted(a, p->dtype);
}
INFER(adafactor)
{
    (void)n_in;
    if (!ku_shape_is_equal(&in[0].shape, &in[1].shape))
        return misfit("adafactor", "parameter and gradient differ in shape", &in[1]);
    KU_TRY(check_vars(a, "adafactor", &in[0], &in[2]));
    results(a, &in[0], out);
    return check_sums(a, "adafactor", &in[6], KUMI_F64, 2);
}
INFER(variance_norms)
{
    (void)n_in;
    for (int i = 1; i < 3; i++)
        if (!ku_shape_is_equal(&in[i].shape, &in[0].shape))
            return misfit("variance_norms", "variance and gradient have the parameter's shape",
                          &in[i]);
    out[0] = in[1];
    out[1] = in[4];
    return check_sums(a, "variance_norms", &in[4], KUMI_I64, 2 * KU_EXACT_WORDS);
}
INFER(adafactor_vector)
{
    (void)n_in;
    for (int i = 1; i < 3; i++)
        if (!ku_shape_is_equal(&in[i].shape, &in[0].shape))
            return misfit("adafactor_vector", "variance and gradient have the parameter's shape",
                          &in[i]);
    results(a, &in[0], out);
    return check_sums(a, "adafactor_vector", &in[4], KUMI_F64, 2);
}
