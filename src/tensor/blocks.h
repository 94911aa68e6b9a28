/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TENSOR_BLOCKS_H
#define KU_TENSOR_BLOCKS_H

#include <stdint.h>

/*
 * Who keeps which elements of a flattened tensor: cut into b = ceil(count / block_count) blocks,
 * each of n ranks keeps, in rank order, floor(b / n) of them, and one more if (rank - first_block)
 * mod n < b mod n. `first_block` runs on from tensor to tensor by b mod n, so totals are equal to
 * one block.
 *
 *   block_count   elements of a block; 0: single elements (a plain even cut)
 *   first_block   >= 0
 *   begin, end    the rank's half-open range of elements; begin == end when it keeps none
 *
 * O(1). The ranges of ranks 0 … n-1 follow each other and cover [0, count).
 */
void ku_blocks_range(int64_t count, int64_t block_count, int64_t first_block, int n, int rank,
                     int64_t *begin, int64_t *end);
/* The rank that keeps element `at` (0 <= at < count). O(log n). */
int ku_blocks_owner(int64_t count, int64_t block_count, int64_t first_block, int n, int64_t at);

#endif
