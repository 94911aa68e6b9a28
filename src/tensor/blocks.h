/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TENSOR_BLOCKS_H
#define KU_TENSOR_BLOCKS_H

#include <stdint.h>

/*
 * Partition of a flattened tensor over n ranks (ZeRO).
 *
 * The tensor is cut into b = ceil(count / block_count) canonical chunks. Each rank owns, in rank
 * order, floor(b / n) consecutive chunks, and one more if (rank - first_block) mod n < b mod n.
 * From tensor to tensor `first_block` advances by b mod n, so the totals of two ranks differ by at
 * most one chunk.
 *
 *     7 chunks, n = 4, first_block = 2
 *     chunk   0   1   2   3   4   5   6
 *     rank    0   0   1   2   2   3   3        ranks 2, 3 and 0 own the extra chunks
 *
 *   block_count   elements per chunk; 0: single elements (a plain even split)
 *   first_block   >= 0
 *   begin, end    the rank's half-open range of elements; begin == end if it owns none
 *
 * O(1). The ranges of ranks 0 … n-1 are consecutive and cover [0, count).
 */
void ku_blocks_range(int64_t count, int64_t block_count, int64_t first_block, int n, int rank,
                     int64_t *begin, int64_t *end);
/*
 * The max number of elements that a rank owns. O(1).
 */
int64_t ku_blocks_max(int64_t count, int64_t block_count, int64_t first_block, int n);
/*
 * The rank that owns element `at` (0 <= at < count). O(log n).
 */
int ku_blocks_owner(int64_t count, int64_t block_count, int64_t first_block, int n, int64_t at);

#endif
