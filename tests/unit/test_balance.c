/* SPDX-License-Identifier: Apache-2.0 */
/* links: base pass */
/* Layers into pipeline stages by cost: against all divisions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/math/random.h"
#include "pass/pipe/layer_stages.h"

enum { MAX = 10 };

struct load {
    double most, squares;
};

static struct load load_of(const struct ku_balance *b, const int *count)
{
    double work[MAX] = {0};
    struct load x = {0};
    for (int k = 0, at = 0; k < b->n_stages; k++) {
        for (int i = 0; i < count[k]; i++)
            work[b->rank_of[k]] += b->layer[at++];
        work[b->rank_of[k]] += k == b->n_stages - 1 ? b->end : 0;
    }
    for (int r = 0; r < MAX; r++) {
        x.most = work[r] > x.most ? work[r] : x.most;
        x.squares += work[r] * work[r];
    }
    return x;
}

/* The best of all divisions with count[0 .. k - 1] as they are. */
static void search(const struct ku_balance *b, int k, int left, int *count, struct load *best)
{
    const int is_last = k == b->n_stages - 1;
    for (count[k] = is_last ? left : 1; count[k] <= left; count[k]++) {
        if (!is_last) {
            search(b, k + 1, left - count[k], count, best);
            continue;
        }
        const struct load x = load_of(b, count);
        if (count[k] < 1 && !(k && b->end > 0))
            continue;
        if (best->most < 0 || x.most < best->most * (1 - 1e-9) ||
            (x.most < best->most * (1 + 1e-9) && x.squares < best->squares))
            *best = x;
    }
}

static void check_division(const struct ku_balance *b, const int *count)
{
    int sum = 0;
    for (int k = 0; k < b->n_stages; k++) {
        assert_true(count[k] >= (k && k == b->n_stages - 1 && b->end > 0 ? 0 : 1));
        sum += count[k];
    }
    assert_int_equal(sum, b->n_layers);
}

/* One stage on each coordinate: the best division. */
static void is_best(void **state)
{
    static const int alone[MAX] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    (void)state;
    for (uint32_t seed = 1; seed <= 300; seed++) {
        double layer[MAX];
        int count[MAX], all[MAX];
        struct ku_balance b = {.layer = layer, .rank_of = alone};
        b.n_layers = 1 + (int)(ku_random_u32(seed, 0, 0, 0) % (MAX - 1));
        b.n_stages = 1 + (int)(ku_random_u32(seed, 0, 0, 1) % (uint32_t)b.n_layers);
        b.end = (double)(ku_random_u32(seed, 0, 0, 2) % 8);
        for (int i = 0; i < b.n_layers; i++)
            layer[i] = 1 + (double)(ku_random_u32(seed, 0, 1, (uint64_t)i) % 6);
        struct load best = {.most = -1};
        search(&b, 0, b.n_layers, all, &best);
        assert_int_equal(ku_balance(&b, count), 0);
        check_division(&b, count);
        const struct load got = load_of(&b, count);
        assert_true(got.most <= best.most * (1 + 1e-9));
        assert_true(got.squares <= best.squares * (1 + 1e-9));
    }
}

/* Two stages on each coordinate, in turn or as a V: the work of coordinates counts. */
static void several_stages(void **state)
{
    static const int in_turn[] = {0, 1, 0, 1}, v[] = {0, 1, 1, 0};
    double layer[MAX];
    int count[MAX];
    (void)state;
    for (int i = 0; i < MAX; i++)
        layer[i] = 1;
    struct ku_balance b = {
        .n_layers = 8, .n_stages = 4, .layer = layer, .end = 3, .rank_of = in_turn};
    assert_int_equal(ku_balance(&b, count), 0);
    check_division(&b, count);
    assert_true(load_of(&b, count).most <= 6);
    b.rank_of = v;
    assert_int_equal(ku_balance(&b, count), 0);
    check_division(&b, count);
    assert_true(load_of(&b, count).most <= 6);
}

/* GPT-2 124M, whose output layer costs 5.4 layers, alone in the last of four stages. */
static void output_layer(void **state)
{
    static const int alone[] = {0, 1, 2, 3};
    double layer[12];
    int count[4];
    (void)state;
    for (int i = 0; i < 12; i++)
        layer[i] = 1;
    struct ku_balance b = {
        .n_layers = 12, .n_stages = 4, .layer = layer, .end = 5.4, .rank_of = alone};
    assert_int_equal(ku_balance(&b, count), 0);
    assert_memory_equal(count, ((int[]){4, 4, 4, 0}), sizeof count);
    b.n_stages = 2;
    assert_int_equal(ku_balance(&b, count), 0);
    assert_memory_equal(count, ((int[]){9, 3}), 2 * sizeof *count);
    b.n_stages = 4, b.end = 0; /* nothing follows the layers */
    assert_int_equal(ku_balance(&b, count), 0);
    assert_memory_equal(count, ((int[]){3, 3, 3, 3}), sizeof count);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(is_best), cmocka_unit_test(several_stages),
                                       cmocka_unit_test(output_layer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
