/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_SUM_H
#define KU_COMM_SUM_H

#include "base/err.h"
#include "kumi/comm.h"
#include "kumi/dtype.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * out[i] = out2[i] = a[i] op b[i], rounded to the dtype. An output may be an input, at the same
 * offset. out2 NULL: one output.
 */
typedef void ku_pair(void *out, void *out2, const void *a, const void *b, int64_t count);
enum ku_pair_op { KU_PAIR_SUM, KU_PAIR_MIN, KU_PAIR_MAX, KU_PAIR_PROD, KU_N_PAIRS };
struct ku_sum_kernels {
    ku_pair *pair[KUMI_N_DTYPES][KU_N_PAIRS];
};
/*
 * One table per instruction set. All give the same bits, because a pair is one rounded operation.
 */
extern const struct ku_sum_kernels ku_sum_base, ku_sum_avx2, ku_sum_avx512;
const struct ku_sum_kernels *ku_sum_choose(void); /* slow (cpuid): once per job */

/*
 * Reduce n_src arrays by the neighbour tree over their order, and store the result in n_dst arrays.
 * A dst may be a src (the same array, at the same offset). Cache-blocked: each source is read once
 * and each destination written once.
 *
 * Between hosts the sources are nodes of the tree (comm/tree.h), and the result may be one. Host 1
 * of 3 finishes the tree over 6 ranks from its own two copies and one node of each other host:
 *
 *     source    node 01    copy 2    copy 3    node 45
 *     first     0          2         3         4          6
 *     in_wire   1          0         0         1
 *
 * The bits are those of the tree over the 6 copies.
 */
struct ku_sum {
    int n_src, n_dst;
    const void *const *src; /* each `count` elements of dtype (see in_wire), aligned to it */
    void *const *dst;       /* any alignment */
    int64_t count;
    /* wire != dtype: data is f32, and every leaf and node rounds to wire (bf16 or f16). */
    enum kumi_dtype dtype, wire;
    enum kumi_reduce reduce; /* premul_sum: the sources are scaled already */
    /*
     * Added to the sum last, in dtype, with one more rounding. May be a dst. NULL: none.
     */
    const void *addend;
    int divide; /* avg: number of ranks; else 0 */
    /*
     * The last n_streamed dst bypass the caches and are fenced on return. None of them is a src.
     */
    int n_streamed;
    /*
     * [n_src + 1]: source i is the node over leaves first[i] to first[i + 1] - 1. The sources lie
     * in the order of their leaves without gaps. Each but the last has a power of two of leaves,
     * and each begins at a multiple, counted from first[0], of a power of two that is at least its
     * number of leaves. NULL: one leaf each.
     */
    const int32_t *first;
    /* [n_src]: whether source i is stored in the wire dtype, rounded already. NULL: none is. */
    const bool *in_wire;
    /*
     * The result is a node that travels or waits for others: dst are stored in the wire dtype. No
     * addend, no divide. A dst may then begin where a src in a wider dtype begins. The other way
     * round, a dst in dtype must not overlap a src in a narrower wire dtype.
     */
    bool is_node;
};
void ku_sum(const struct ku_sum_kernels *k, const struct ku_sum *s);
/*
 * out[i] = (dtype)(scale * in[i]) for floating types. In place is allowed; any alignment.
 */
void ku_sum_scale(void *out, const void *in, int64_t count, enum kumi_dtype dtype, double scale);
/* 0 if the reduction exists for this dtype, else KUMI_EINVAL */
KU_STATUS ku_sum_check(enum kumi_dtype dtype, enum kumi_dtype wire, enum kumi_reduce reduce);

#endif
