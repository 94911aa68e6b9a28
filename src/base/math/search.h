/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_MATH_SEARCH_H
#define KU_BASE_MATH_SEARCH_H

#include <stddef.h>
#include <stdint.h>

/*
 * Index of the last of n records whose key is at most `value`; 0 if there is none. Binary search.
 *
 *   key     the key of record 0; keys ascend
 *   stride  bytes from a record to the next
 *
 *     const struct part *p = &x->part[ku_search(&x->part->first, sizeof *x->part, x->n_parts, i)];
 */
static inline size_t ku_search(const int64_t *key, size_t stride, size_t n, int64_t value)
{
    size_t low = 0, high = n;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (*(const int64_t *)(const void *)((const char *)key + middle * stride) <= value)
            low = middle;
        else
            high = middle;
    }
    return low;
}

#endif
