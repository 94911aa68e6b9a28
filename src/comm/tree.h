/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_TREE_H
#define KU_COMM_TREE_H

#include <stdint.h>

/*
 * The neighbour tree over n leaves, and the nodes of it that a set of leaves can compute.
 *
 * Neighbours are paired level by level; an odd node is carried up. The nodes of level k therefore
 * begin at multiples of 2^k and have 2^k leaves, except the last of a level, which may have fewer.
 * For n = 7, with the nodes that leaves 1 to 6 contain marked:
 *
 *     level 3                    0123456
 *     level 2         0123                  [456]
 *     level 1     01        [23]        45         6
 *     level 0   0   [1]   2     3     4    5     6
 *
 * A node is named by its leaves: 6 is the same node at levels 0 and 1, and its value is the same.
 * The sum over a node's leaves by themselves, in the order of their own tree, is the node's value:
 * it begins at a multiple of a power of two that is at least its number of leaves.
 */
struct ku_tree_node {
    int32_t first, count; /* leaves first to first + count - 1 */
};

/* A run of m leaves, anywhere, contains at most 2 floor(log2(m + 1)) maximal nodes. */
enum { KU_TREE_RUN_NODES = 2 * 31 };

/*
 * The maximal nodes of the n-leaf tree that lie wholly in a set of leaves, in ascending order.
 *
 *   n      >= 1
 *   run    [n_runs], the set as disjoint runs of leaves in ascending order; a run has one leaf or
 *          more, and may begin where the one before ends
 *   node   [cap]
 *
 * Returns the number of nodes. They cover the set. When sets unite, the maximal nodes of the union
 * are combinations of those of the sets; the union of all leaves has one, the root.
 */
int ku_tree_cover(int32_t n, const struct ku_tree_node *run, int n_runs, struct ku_tree_node *node,
                  int cap);
/* The bound above: nodes in a run of `count` leaves, at most */
int ku_tree_cover_bound(int32_t count);

#endif
