/* SPDX-License-Identifier: Apache-2.0 */
/* links: pass base */
/* Offsets of random rectangles against a walk over all of them, and how steps grow with a stack. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "pass/space.h"

struct rectangle {
    uint32_t first, last;
    size_t bytes, align, offset;
};

static uint64_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

static int by_offset(const void *a, const void *b)
{
    const struct rectangle *x = *(const struct rectangle *const *)a,
                           *y = *(const struct rectangle *const *)b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* The lowest offset for r[n] beside those before it. */
static size_t by_hand(const struct rectangle *r, int n, size_t base)
{
    const struct rectangle *x = &r[n], **alive = malloc((size_t)(n + 1) * sizeof *alive);
    int n_alive = 0;
    size_t at = base;
    assert_non_null(alive);
    for (int i = 0; i < n; i++)
        if (r[i].bytes && r[i].first <= x->last && x->first <= r[i].last)
            alive[n_alive++] = &r[i];
    qsort(alive, (size_t)n_alive, sizeof *alive, by_offset);
    for (int i = 0; i < n_alive && x->bytes; i++)
        if (alive[i]->offset < at + x->bytes && alive[i]->offset + alive[i]->bytes > at)
            at = (alive[i]->offset + alive[i]->bytes + x->align - 1) & ~(x->align - 1);
    free(alive);
    return at;
}

static void check_offsets(struct rectangle *list, int n, uint32_t n_times, size_t base, int seed)
{
    struct ku_space *space;
    assert_int_equal(ku_space_create(n_times, base, &space), 0);
    for (int i = 0; i < n; i++) {
        struct rectangle *x = &list[i];
        assert_int_equal(ku_space_place(space, x->first, x->last, x->bytes, x->align, &x->offset),
                         0);
        const size_t expected = by_hand(list, i, base);
        if (x->offset != expected)
            fail_msg("seed %d, rectangle %d: at %zu, expected %zu", seed, i, x->offset, expected);
    }
    ku_space_destroy(space);
}

/* Short and long lives, sizes that fall, rise or come in any order, two alignments. */
static void random_rectangles(void **state)
{
    enum { N = 400 };
    struct rectangle list[N];
    (void)state;
    for (int seed = 1; seed <= 60; seed++) {
        uint64_t r = (uint64_t)seed;
        const uint32_t n_times = 1 + (uint32_t)next_random(&r) % (seed % 3 ? 3000 : 40);
        for (int i = 0; i < N; i++) {
            struct rectangle *x = &list[i];
            const uint32_t length = next_random(&r) % 2 ? n_times : 1 + n_times / 50;
            const size_t units = seed % 3 == 0   ? (size_t)(N - i) / 40 + 1
                                 : seed % 3 == 1 ? (size_t)i / 40
                                                 : next_random(&r) % 20;
            x->align = next_random(&r) % 8 == 0 ? 4096 : 64;
            x->bytes = units * x->align;
            x->first = (uint32_t)next_random(&r) % n_times;
            x->last = x->first + (uint32_t)next_random(&r) % length;
            x->last = x->last < n_times ? x->last : n_times - 1;
        }
        check_offsets(list, N, n_times, seed % 4 == 0 ? 8192 : 0, seed);
    }
}

/* What a step of n layers does, `n_micro` times: activations of several sizes from forward to
 * backward, temporaries, and gradients, some to the end. Returns how many there are. */
enum { A_LAYER = 8, N_SIZES = 4 };
static int make_stack(struct rectangle *list, uint32_t n_layers, uint32_t n_micro)
{
    static const size_t size[N_SIZES] = {9216, 4096, 1024, 128};
    const uint32_t each = 2 * A_LAYER * n_layers, end = n_micro * each;
    int n = 0;
    for (uint32_t s = 0; s < N_SIZES; s++)
        for (uint32_t u = 0; u < n_micro; u++)
            for (uint32_t i = 0; i < n_layers * A_LAYER; i++) {
                const uint32_t k = i % A_LAYER, kind = (k + s) % 3;
                const uint32_t backward = (u + 1) * each - 1 - i;
                const uint32_t first = kind == 0 ? u * each + i : backward;
                const uint32_t last = kind == 0   ? backward
                                      : kind == 1 ? backward + (k + s) % 3
                                      : k % 2     ? end - 1
                                                  : backward + each;
                list[n++] = (struct rectangle){first, last < end ? last : end - 1, size[s], 64, 0};
            }
    return n;
}

static void stacks(void **state)
{
    static struct rectangle list[2 * 20 * A_LAYER * N_SIZES];
    (void)state;
    for (uint32_t n_micro = 1; n_micro <= 2; n_micro++) {
        const int n = make_stack(list, 20, n_micro);
        check_offsets(list, n, n_micro * 20 * 2 * A_LAYER, 0, (int)n_micro);
    }
}

static uint64_t steps_of(uint32_t n_layers, uint32_t n_micro)
{
    struct rectangle *list = malloc((size_t)n_layers * n_micro * A_LAYER * N_SIZES * sizeof *list);
    struct ku_space *space;
    assert_non_null(list);
    const int n = make_stack(list, n_layers, n_micro);
    assert_int_equal(ku_space_create(n_micro * 2 * A_LAYER * n_layers, 0, &space), 0);
    for (int i = 0; i < n; i++)
        assert_int_equal(
            ku_space_place(space, list[i].first, list[i].last, list[i].bytes, 64, &list[i].offset),
            0);
    const uint64_t steps = ku_space_steps(space);
    ku_space_destroy(space);
    free(list);
    return steps;
}

static void grows_with_layers(void **state)
{
    (void)state;
    for (uint32_t n_micro = 1; n_micro <= 4; n_micro += 3)
        for (uint32_t n = 100; n <= 200; n *= 2) {
            const uint64_t once = steps_of(n, n_micro), twice = steps_of(2 * n, n_micro);
            if (10 * twice > 26 * once)
                fail_msg("%u layers, %u micro-batches: %llu steps; twice as many: %llu", n, n_micro,
                         (unsigned long long)once, (unsigned long long)twice);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_rectangles),
                                       cmocka_unit_test(stacks),
                                       cmocka_unit_test(grows_with_layers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
