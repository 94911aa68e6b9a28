/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_SUM_H
#define KU_COMM_SUM_H

#include "kumi/comm.h"
#include "kumi/dtype.h"

#include <stdint.h>

/* out[i] = out2[i] = a[i] op b[i], rounded to the dtype. An output may be an input, not shifted;
 * out2 NULL: one output. */
typedef void ku_pair(void *out, void *out2, const void *a, const void *b, int64_t count);
enum ku_pair_op { KU_PAIR_SUM, KU_PAIR_MIN, KU_PAIR_MAX, KU_PAIR_PROD, KU_N_PAIRS };
struct ku_sum_kernels {
    ku_pair *pair[KUMI_N_DTYPES][KU_N_PAIRS];
};
/* One table per instruction set; all give the same bits (a pair is one rounded operation). */
extern const struct ku_sum_kernels ku_sum_base, ku_sum_avx2, ku_sum_avx512;
const struct ku_sum_kernels *ku_sum_choose(void); /* slow (cpuid): once per job */

/*
 * Reduce n_src arrays by the neighbour tree over their order and store the result in n_dst arrays.
 * A dst may be a src (wholly, not shifted). Cache-blocked: each source is read once, each
 * destination written once.
 */
struct ku_sum {
    int n_src, n_dst;
    const void *const *src; /* each `count` elements of dtype, aligned to it */
    void *const *dst;       /* any alignment */
    int64_t count;
    enum kumi_dtype dtype,
        wire; /* wire != dtype: f32 data, every leaf and node rounds to bf16 or f16 */
    enum kumi_reduce reduce; /* premul_sum: sources are scaled already */
    const void *addend;      /* added to a sum, in dtype, rounded once more, last; may be a dst.
                                NULL: nothing */
    int divide;              /* avg: by this many ranks; else 0 */
    int n_streamed;          /* the last so many dst bypass the caches and are fenced on return;
                                none of them is a src */
};
void ku_sum(const struct ku_sum_kernels *k, const struct ku_sum *s);
/* out[i] = (dtype)(scale * in[i]): in place allowed; any alignment. Floating types. */
void ku_sum_scale(void *out, const void *in, int64_t count, enum kumi_dtype dtype, double scale);
/* 0 if the reduction exists for this dtype. KUMI_EINVAL. */
int ku_sum_check(enum kumi_dtype dtype, enum kumi_dtype wire, enum kumi_reduce reduce);

#endif
