/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/blocks.h"

#include "base/err.h"

/* Number of ranks of [0, rank) in the ring interval [first, first + len) mod n, with len < n. */
static int64_t n_extra_before(int64_t first, int64_t len, int64_t n, int64_t rank)
{
    int64_t straight_end = first + len < n ? first + len : n;
    int64_t wrapped_end = first + len - n; /* part that wraps around to 0 */
    int64_t count = 0;
    if (rank > first)
        count += (rank < straight_end ? rank : straight_end) - first;
    if (wrapped_end > 0)
        count += rank < wrapped_end ? rank : wrapped_end;
    return count;
}

void ku_blocks_range(int64_t count, int64_t block_count, int64_t first_block, int n, int rank,
                     int64_t *begin, int64_t *end)
{
    KU_ASSERT(count >= 0 && block_count >= 0 && first_block >= 0 && n > 0 && rank >= 0 && rank < n);
    int64_t block = block_count ? block_count : 1;
    int64_t n_blocks = count / block + (count % block != 0);
    int64_t each = n_blocks / n, extra = n_blocks % n, first = first_block % n;
    int64_t b = each * rank + n_extra_before(first, extra, n, rank);
    int64_t e = each * (rank + 1) + n_extra_before(first, extra, n, rank + 1);
    *begin = b >= n_blocks ? count : b * block;
    *end = e >= n_blocks ? count : e * block;
}

int64_t ku_blocks_max(int64_t count, int64_t block_count, int64_t first_block, int n)
{
    KU_ASSERT(count >= 0 && block_count >= 0 && first_block >= 0 && n > 0);
    int64_t block = block_count ? block_count : 1;
    int64_t n_blocks = count / block + (count % block != 0);
    int64_t each = n_blocks / n, extra = n_blocks % n;
    /* the last chunk, which may be shorter, counts if a single rank has the max and owns it */
    int is_short = extra == 1 ? each == 0 || first_block % n == n - 1 : extra == 0 && n == 1;
    return (each + (extra > 0)) * block - (is_short ? n_blocks * block - count : 0);
}

int ku_blocks_owner(int64_t count, int64_t block_count, int64_t first_block, int n, int64_t at)
{
    KU_ASSERT(at >= 0 && at < count);
    int low = 0, high = n - 1;
    while (low < high) { /* the first rank whose range ends after `at` */
        int64_t begin, end;
        int mid = low + (high - low) / 2;
        ku_blocks_range(count, block_count, first_block, n, mid, &begin, &end);
        if (end > at)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}
