/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_REDUCTIONS_H
#define TESTS_UNIT_REDUCTIONS_H

#include "base/math/random.h"
#include "comm/sum.h"
#include "tensor/dtype.h"

#include <math.h>

/* The dtypes and wires that differ in how a node is stored or rounded */
static const struct {
    enum kumi_dtype dtype, wire;
} reduction_type[] = {{KUMI_F32, KUMI_F32},   {KUMI_F32, KUMI_BF16}, {KUMI_F32, KUMI_F16},
                      {KUMI_BF16, KUMI_BF16}, {KUMI_F16, KUMI_F16},  {KUMI_F64, KUMI_F64},
                      {KUMI_I32, KUMI_I32}};
enum {
    N_REDUCTION_TYPES = sizeof reduction_type / sizeof *reduction_type,
    N_REDUCTIONS = N_REDUCTION_TYPES * KUMI_N_REDUCES
};

/*
 * Reduction number `i` of the product of types and reductions, in `sum`; avg is one over n ranks.
 * Returns whether it exists.
 */
static bool reduction_set(int i, int n, struct ku_sum *sum)
{
    enum kumi_reduce reduce = (enum kumi_reduce)(i / N_REDUCTION_TYPES);
    sum->dtype = reduction_type[i % N_REDUCTION_TYPES].dtype;
    sum->wire = reduction_type[i % N_REDUCTION_TYPES].wire;
    sum->reduce = reduce;
    sum->divide = reduce == KUMI_AVG ? n : 0;
    return ku_dtype_is_float(sum->dtype) || (reduce != KUMI_AVG && reduce != KUMI_PREMUL_SUM);
}

/* One rank's copy: numbers whose sums round at every node, and a few that are none */
static void reduction_fill(void *at, enum kumi_dtype dtype, int64_t count, uint64_t seed, int rank)
{
    for (int64_t i = 0; i < count; i++) {
        double x = (double)ku_random_normal(seed, 0, (uint32_t)rank, (uint64_t)i) * 8;
        if (ku_dtype_is_float(dtype) && i % 61 == 60)
            x = rank % 3 ? -0.0 : (double)INFINITY;
        if (ku_dtype_is_float(dtype) && i % 67 == 66 && rank % 5 == 1)
            x = (double)NAN;
        ku_store_f64(at, dtype, i, x);
    }
}

#endif
