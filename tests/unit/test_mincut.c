/* SPDX-License-Identifier: Apache-2.0 */
/* links: pass base */
/* Least cuts of small random graphs against all partitions; and the cut nearest to the sink. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/math/random.h"
#include "pass/remat/mincut.h"

enum { MAX_VERTICES = 9, MAX_EDGES = 40 };
struct edge {
    uint32_t from, to;
    int64_t capacity;
};

/* Over all sets that hold vertex 1 and not vertex 0: the least capacity into one, and the smallest
 * that has it. */
static int64_t by_hand(const struct edge *e, int n_edges, uint32_t n, uint32_t *smallest)
{
    int64_t best = INT64_MAX;
    for (uint32_t set = 2; set < 1u << n; set += 4)
        for (uint32_t s = set; s < set + 2; s += 2) {
            int64_t cut = 0;
            for (int i = 0; i < n_edges; i++)
                if (!(s >> e[i].from & 1) && (s >> e[i].to & 1))
                    cut += e[i].capacity;
            int is_smaller = __builtin_popcount(s) < __builtin_popcount(*smallest);
            if (cut < best || (cut == best && is_smaller)) {
                best = cut;
                *smallest = s;
            }
        }
    return best;
}

static void random_graphs(void **state)
{
    (void)state;
    int n_nontrivial = 0;
    for (uint32_t seed = 0; seed < 400; seed++) {
        struct edge e[MAX_EDGES];
        uint32_t n = 3 + seed % (MAX_VERTICES - 2), smallest = 0;
        int n_edges = (int)(ku_random_u32(3, seed, 0, 0) % MAX_EDGES);
        unsigned char side[MAX_VERTICES];
        struct ku_cut *cut;
        assert_int_equal(ku_cut_create(n, MAX_EDGES, &cut), 0);
        for (int i = 0; i < n_edges; i++) {
            e[i].from = ku_random_u32(3, seed, 1, (uint64_t)i) % n;
            e[i].to = ku_random_u32(3, seed, 2, (uint64_t)i) % n;
            e[i].capacity = ku_random_u32(3, seed, 3, (uint64_t)i) % 7;
            ku_cut_edge(cut, e[i].from, e[i].to, e[i].capacity);
        }
        int64_t least = by_hand(e, n_edges, n, &smallest);
        assert_int_equal(ku_cut_solve(cut, 0, 1, side), least);
        for (uint32_t v = 0; v < n; v++)
            assert_int_equal(side[v], smallest >> v & 1);
        n_nontrivial += least > 0 && __builtin_popcount(smallest) > 1;
        ku_cut_destroy(cut);
    }
    assert_true(n_nontrivial > 50);
}

static void cannot_be_cut(void **state)
{
    (void)state;
    struct ku_cut *cut;
    unsigned char side[3];
    assert_int_equal(ku_cut_create(3, 2, &cut), 0);
    ku_cut_edge(cut, 0, 2, KU_CUT_INFINITE);
    ku_cut_edge(cut, 2, 1, KU_CUT_INFINITE);
    assert_true(ku_cut_solve(cut, 0, 1, side) >= KU_CUT_INFINITE);
    ku_cut_destroy(cut);
}

/* Depth is no recursion: a chain of a million. */
static void long_chain(void **state)
{
    (void)state;
    enum { N = 1000000 };
    struct ku_cut *cut;
    static unsigned char side[N];
    assert_int_equal(ku_cut_create(N, N, &cut), 0);
    for (uint32_t v = 2; v < N - 1; v++)
        ku_cut_edge(cut, v, v + 1, v == 777777 ? 3 : 4);
    ku_cut_edge(cut, 0, 2, 9);
    ku_cut_edge(cut, N - 1, 1, 9);
    assert_int_equal(ku_cut_solve(cut, 0, 1, side), 3);
    assert_int_equal(side[777777], 0);
    assert_int_equal(side[777778], 1);
    ku_cut_destroy(cut);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_graphs),
                                       cmocka_unit_test(cannot_be_cut),
                                       cmocka_unit_test(long_chain)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
