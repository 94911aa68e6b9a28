/* SPDX-License-Identifier: Apache-2.0 */
/* links: comm job tensor base */
/*
 * Nodes of the neighbour tree: the cover of a set of leaves against all nodes, level by level; and
 * sums over nodes against the sum over the leaves, bit by bit.
 */
#include "base/math/random.h"
#include "comm/sum.h"
#include "comm/tree.h"
#include "tensor/dtype.h"
#include "unit/reductions.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

enum { MAX_LEAVES = 64, MAX_NODES = 2 * MAX_LEAVES };

/* Every node of the tree over n leaves, as the rule is written. Returns their number. */
static int all_nodes(int n, struct ku_tree_node *node)
{
    struct ku_tree_node level[MAX_LEAVES];
    int n_nodes = 0, n_level = n;
    for (int i = 0; i < n; i++)
        node[n_nodes++] = level[i] = (struct ku_tree_node){i, 1};
    for (; n_level > 1; n_level = (n_level + 1) / 2) {
        for (int i = 0; i < n_level / 2; i++) {
            level[i].first = level[2 * i].first;
            level[i].count = level[2 * i].count + level[2 * i + 1].count;
            node[n_nodes++] = level[i];
        }
        if (n_level % 2)
            level[n_level / 2] = level[n_level - 1];
    }
    return n_nodes;
}

static uint64_t leaves_of(struct ku_tree_node node)
{
    return (node.count == 64 ? UINT64_MAX : (UINT64_C(1) << node.count) - 1) << node.first;
}

/* Maximal nodes in `set` by trial of all nodes, in ascending order */
static int naive_cover(int n, uint64_t set, struct ku_tree_node *cover)
{
    struct ku_tree_node node[MAX_NODES];
    int n_nodes = all_nodes(n, node), n_cover = 0;
    for (int first = 0; first < n; first++) {
        int best = -1;
        for (int i = 0; i < n_nodes; i++) {
            uint64_t leaves = leaves_of(node[i]);
            if (!(leaves & UINT64_C(1) << first) || leaves & ~set)
                continue;
            if (best < 0 || node[i].count > node[best].count)
                best = i;
        }
        if (best >= 0 && node[best].first == first)
            cover[n_cover++] = node[best];
    }
    return n_cover;
}

static void check_cover(int n, const struct ku_tree_node *run, int n_runs, uint64_t set)
{
    struct ku_tree_node got[MAX_NODES], want[MAX_NODES];
    int n_want = naive_cover(n, set, want);
    assert_int_equal(ku_tree_cover(n, run, n_runs, got, MAX_NODES), n_want);
    assert_memory_equal(got, want, (size_t)n_want * sizeof *got);
}

static void test_cover_of_sets(void **state)
{
    (void)state;
    for (int n = 1; n <= 11; n++) {
        for (uint64_t set = 0; set < UINT64_C(1) << n; set++) {
            struct ku_tree_node run[MAX_LEAVES], single[MAX_LEAVES];
            int n_runs = 0, n_single = 0;
            for (int i = 0; i < n; i++) {
                if (!(set >> i & 1))
                    continue;
                single[n_single++] = (struct ku_tree_node){i, 1};
                if (n_runs && run[n_runs - 1].first + run[n_runs - 1].count == i)
                    run[n_runs - 1].count++;
                else
                    run[n_runs++] = (struct ku_tree_node){i, 1};
            }
            check_cover(n, run, n_runs, set);
            check_cover(n, single, n_single, set);
        }
    }
}

static void test_cover_of_runs(void **state)
{
    (void)state;
    for (int n = 1; n <= MAX_LEAVES; n += n < 40 ? 1 : 4) {
        for (int first = 0; first < n; first++) {
            for (int count = 1; first + count <= n; count++) {
                struct ku_tree_node run = {first, count}, node[MAX_NODES];
                check_cover(n, &run, 1, leaves_of(run));
                int bound = ku_tree_cover_bound(count);
                assert_true(ku_tree_cover(n, &run, 1, node, MAX_NODES) <= bound);
            }
        }
    }
}

/* Nodes of a host with L of n = 32 L ranks, at most; with L a power of two it is one */
static void test_cover_of_hosts(void **state)
{
    static const int want[] = {0, 1, 1, 2, 1, 3, 2, 3, 1, 4, 3, 4, 2};
    struct ku_tree_node node[KU_TREE_RUN_NODES];
    (void)state;
    for (int count = 1; count <= 12; count++) {
        int most = 0;
        for (int h = 0; h < 32; h++) {
            struct ku_tree_node run = {h * count, count};
            int n = ku_tree_cover(32 * count, &run, 1, node, KU_TREE_RUN_NODES);
            most = n > most ? n : most;
        }
        assert_int_equal(most, want[count]);
    }
}

/* Trees of up to 2^31 - 1 leaves: the nodes are aligned, cover the run, and are few. */
static void test_cover_of_large(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 20000; i++) {
        struct ku_philox r = ku_philox(5, 0, 0, i);
        int32_t n = (int32_t)(r.word[0] >> (1 + i % 31)) + (i % 31 != 0);
        int32_t first = (int32_t)(r.word[1] % (uint32_t)n);
        int32_t count = (int32_t)(r.word[2] % (uint32_t)(n - first)) + 1;
        if (i % 3 == 0)
            count = n - first;
        struct ku_tree_node run = {first, count}, node[KU_TREE_RUN_NODES];
        int n_nodes = ku_tree_cover(n, &run, 1, node, KU_TREE_RUN_NODES);
        assert_true(n_nodes <= ku_tree_cover_bound(count));
        for (int k = 0; k < n_nodes; k++) {
            uint32_t at = (uint32_t)node[k].first, size = (uint32_t)node[k].count;
            assert_int_equal(at, first);
            int is_full = (size & (size - 1)) == 0 && at % size == 0;
            assert_true(is_full || ((int32_t)(at + size) == n && (at == 0 || size < (at & -at))));
            first += node[k].count;
        }
        assert_int_equal(first, run.first + count);
    }
}

/* ---- Sums over nodes ---- */

enum { COUNT = 1100, MAX_SRC = 40 }; /* one block of f32 and a part of one */
static _Alignas(64) unsigned char leaf[MAX_SRC][COUNT * 8], part[MAX_SRC][COUNT * 8];
static _Alignas(64) unsigned char flat[COUNT * 8], got[2][COUNT * 8 + 64];

static const struct ku_sum_kernels *kernels;

/* A tree in the making: its leaves, and the sources into which it is cut */
struct cut {
    struct ku_sum sum; /* dtype, wire, reduce, divide, count */
    uint32_t seed, n_draws;
    int n_src;
    const void *src[MAX_SRC];
    int32_t first[MAX_SRC + 1];
    bool in_wire[MAX_SRC];
};

static uint32_t draw(struct cut *c, uint32_t n)
{
    return ku_random_u32(11, 0, c->seed, c->n_draws++) % n;
}

/* Store the node over leaves first to first + n - 1 as a source in the wire dtype. */
static void add_node(struct cut *c, int first, int n)
{
    const void *from[MAX_SRC];
    void *to = part[c->n_src];
    struct ku_sum s = c->sum;
    for (int i = 0; i < n; i++)
        from[i] = leaf[first + i];
    s.n_src = n;
    s.src = from;
    s.n_dst = 1;
    s.dst = &to;
    s.divide = 0;
    s.is_node = 1;
    ku_sum(kernels, &s);
    c->src[c->n_src] = to;
    c->in_wire[c->n_src] = 1;
    c->first[c->n_src++] = first;
}

/* Cut the node over n leaves into sources at random: down to copies, or nodes that came by wire. */
static void cut_node(struct cut *c, int first, int n)
{
    if (n == 1 && draw(c, 2)) {
        c->src[c->n_src] = leaf[first];
        c->in_wire[c->n_src] = 0;
        c->first[c->n_src++] = first;
        return;
    }
    if (n == 1 || draw(c, 3) == 0) {
        add_node(c, first, n);
        return;
    }
    int left = 1;
    while (2 * left < n)
        left *= 2;
    cut_node(c, first, left);
    cut_node(c, first + left, n - left);
}

/* The root over random sources, plain, with an addend, past the caches, and as a node. */
static void check_cut(struct cut *c, int n)
{
    void *to[2] = {got[0], got[1]};
    struct ku_sum s = c->sum;
    size_t each = kumi_dtype_bytes(s.dtype), bytes = (size_t)s.count * each;
    c->n_src = 0;
    cut_node(c, 0, n);
    c->first[c->n_src] = n;
    s.n_src = c->n_src;
    s.src = c->src;
    s.first = c->first;
    s.in_wire = s.wire != s.dtype || draw(c, 2) ? c->in_wire : NULL;
    s.dst = to;
    for (s.n_dst = 1; s.n_dst <= 2; s.n_dst++) {
        for (s.n_streamed = 0; s.n_streamed <= s.n_dst; s.n_streamed++) {
            to[1] = got[1] + (draw(c, 2) ? each : 1);
            ku_sum(kernels, &s);
            for (int d = 0; d < s.n_dst; d++)
                assert_memory_equal(to[d], flat, bytes);
        }
    }
    s.n_dst = 1;
    s.n_streamed = 0;
    if (s.wire == s.dtype || s.divide)
        return;
    s.is_node = 1; /* stored in the wire dtype, it is the root before it widens */
    ku_sum(kernels, &s);
    ku_convert(got[1], s.dtype, got[0], s.wire, s.count);
    assert_memory_equal(got[1], flat, bytes);
}

static void test_sums_over_nodes(void **state)
{
    static const void *src[MAX_SRC];
    uint32_t seed = 0;
    (void)state;
    for (int i = 0; i < N_REDUCTIONS; i++) {
        struct cut c = {.sum = {.count = COUNT}};
        void *to = flat;
        if (!reduction_set(i, 1, &c.sum))
            continue;
        for (int r = 0; r < MAX_SRC; r++) {
            src[r] = leaf[r];
            reduction_fill(leaf[r], c.sum.dtype, COUNT, 17, r);
        }
        for (int n = 1; n <= MAX_SRC; n += n < 18 ? 1 : 11) {
            reduction_set(i, n, &c.sum);
            struct ku_sum s = c.sum;
            s.n_src = n;
            s.src = src;
            s.n_dst = 1;
            s.dst = &to;
            ku_sum(kernels, &s);
            for (int k = 0; k < 3; k++) {
                c.seed = seed++;
                c.n_draws = 0;
                check_cut(&c, n);
            }
        }
    }
}

/* The addend comes after the root, whatever the sources. */
static void test_addend_over_nodes(void **state)
{
    const void *src[MAX_SRC];
    void *to = flat;
    (void)state;
    for (int r = 0; r < MAX_SRC; r++) {
        src[r] = leaf[r];
        reduction_fill(leaf[r], KUMI_F32, COUNT, 19, r);
    }
    for (int w = 0; w < 3; w++) {
        for (int n = 2; n < 18; n++) {
            struct cut c = {.seed = (uint32_t)(1000 + 20 * w + n)};
            c.sum = (struct ku_sum){.count = COUNT,
                                    .wire = reduction_type[w].wire,
                                    .addend = leaf[MAX_SRC - 1],
                                    .n_src = n,
                                    .src = src,
                                    .n_dst = 1,
                                    .dst = &to};
            ku_sum(kernels, &c.sum);
            void *to2 = got[0];
            struct ku_sum s = c.sum;
            c.sum.addend = NULL;
            cut_node(&c, 0, n);
            c.first[c.n_src] = n;
            s.n_src = c.n_src;
            s.src = c.src;
            s.first = c.first;
            s.in_wire = c.in_wire;
            s.dst = &to2;
            ku_sum(kernels, &s);
            assert_memory_equal(got[0], flat, COUNT * sizeof(float));
        }
    }
}

/* A node is kept in the memory of a wider copy of the same elements. */
static void test_node_in_place(void **state)
{
    const void *src[MAX_SRC];
    void *to = got[0];
    (void)state;
    for (int n = 1; n <= 8; n++) {
        for (int at = 0; at < n; at++) {
            for (int r = 0; r < n; r++) {
                src[r] = leaf[r];
                reduction_fill(leaf[r], KUMI_F32, COUNT, 31, r);
            }
            struct ku_sum s = {.n_src = n,
                               .src = src,
                               .n_dst = 1,
                               .dst = &to,
                               .count = COUNT,
                               .wire = KUMI_BF16,
                               .is_node = 1};
            to = got[0];
            ku_sum(kernels, &s);
            to = leaf[at];
            ku_sum(kernels, &s);
            assert_memory_equal(leaf[at], got[0], COUNT * 2);
        }
    }
}

/* 5,000 leaves, in half blocks; against the rule, level by level. Sources may begin anywhere. */
static void test_many_leaves(void **state)
{
    enum { N = 5000 };
    static float x[N][3], sums[3];
    static const void *src[N];
    static int32_t first[N + 1];
    (void)state;
    void *to = sums;
    for (int r = 0; r < N; r++) {
        reduction_fill(x[r], KUMI_F32, 3, 23, r);
        src[r] = x[r];
        first[r] = 8192 + r;
    }
    first[N] = 8192 + N;
    struct ku_sum s = {.n_src = N, .n_dst = 1, .src = src, .dst = &to, .count = 3, .first = first};
    ku_sum(kernels, &s);
    for (int n = N; n > 1; n = (n + 1) / 2) {
        for (int i = 0; i < n / 2; i++)
            for (int k = 0; k < 3; k++)
                x[i][k] = x[2 * i][k] + x[2 * i + 1][k];
        if (n % 2)
            memcpy(x[n / 2], x[n - 1], sizeof x[0]);
    }
    assert_memory_equal(sums, x[0], sizeof x[0]);
}

/* The deepest stack: nodes of 2^30, 2^29, ..., 1 leaves. In every dtype's block size. */
static void test_deepest_tree(void **state)
{
    enum { N = 31 };
    static float x[N][COUNT], want[COUNT], sums[COUNT];
    const void *src[N];
    int32_t first[N + 1];
    void *to = sums;
    (void)state;
    for (int r = 0; r < N; r++) {
        reduction_fill(x[r], KUMI_F32, COUNT, 29, r);
        src[r] = x[r];
        first[r] = (int32_t)(INT32_MAX - (UINT32_C(0x7fffffff) >> r));
    }
    first[N] = INT32_MAX;
    struct ku_sum s = {
        .n_src = N, .n_dst = 1, .src = src, .dst = &to, .count = COUNT, .first = first};
    for (int w = 0; w < 2; w++) {
        s.wire = reduction_type[w].wire;
        ku_sum(kernels, &s);
        for (int r = N - 1; r >= 0; r--) {
            for (int i = 0; i < COUNT; i++) {
                float leaf_value = w ? ku_bf16_to_f32(ku_bf16_from_f32(x[r][i])) : x[r][i];
                float sum = r == N - 1 ? leaf_value : leaf_value + want[i];
                want[i] = w ? ku_bf16_to_f32(ku_bf16_from_f32(sum)) : sum;
            }
        }
        for (int i = 0; i < COUNT; i++)
            assert_true((isnan(want[i]) && isnan(sums[i])) ||
                        memcmp(&want[i], &sums[i], sizeof sums[i]) == 0);
    }
}

int main(void)
{
    kernels = ku_sum_choose();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cover_of_sets),   cmocka_unit_test(test_cover_of_runs),
        cmocka_unit_test(test_cover_of_hosts),  cmocka_unit_test(test_cover_of_large),
        cmocka_unit_test(test_sums_over_nodes), cmocka_unit_test(test_addend_over_nodes),
        cmocka_unit_test(test_node_in_place),   cmocka_unit_test(test_many_leaves),
        cmocka_unit_test(test_deepest_tree)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
