/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cover of a run, from its begin: each node is the largest that begins there and does not pass
 * the run's end. Sizes first grow with the alignment of the position, then shrink towards the end.
 * A larger node that contains one of them begins before the run or ends after it.
 */
#include "comm/tree.h"

#include "base/err.h"

/* Leaves of the largest node of the tree that begins at `at` and ends at `end` or before */
static int64_t node_at(int64_t n, int64_t at, int64_t end)
{
    int64_t size = 1;
    while (at % (2 * size) == 0 && size < end - at && (at + 2 * size <= end || end == n))
        size *= 2;
    return size < end - at ? size : end - at;
}

int ku_tree_cover(int32_t n, const struct ku_tree_node *run, int n_runs, struct ku_tree_node *node,
                  int cap)
{
    int n_nodes = 0;
    int64_t covered = 0; /* leaves before this one are in a node or outside of the set */
    KU_ASSERT(n >= 1 && n_runs >= 0);
    for (int i = 0; i < n_runs;) {
        int64_t at = run[i].first, end = at;
        KU_ASSERT(at >= covered);
        for (; i < n_runs && run[i].first == end; i++) {
            KU_ASSERT(run[i].count > 0);
            end += run[i].count;
        }
        KU_ASSERT(end <= n);
        covered = end;
        while (at < end) {
            int64_t count = node_at(n, at, end);
            KU_ASSERT(n_nodes < cap);
            node[n_nodes++] = (struct ku_tree_node){(int32_t)at, (int32_t)count};
            at += count;
        }
    }
    return n_nodes;
}

int ku_tree_cover_bound(int32_t count)
{
    int bits = 0;
    for (int64_t m = (int64_t)count + 1; m > 1; m /= 2)
        bits++;
    return count <= 1 ? count : 2 * bits;
}
