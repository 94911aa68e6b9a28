/* SPDX-License-Identifier: Apache-2.0 */
/* links: app plan infer train remote run model config base */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/err.h"
#include "config/batch_relation.h"

/* n ranks, then B, micro_batch, accumulation, V as given (0: null) and as resolved, and k. */
static void test_resolves(void **state)
{
    static const struct {
        int n;
        int64_t given[4], is[4], k;
    } row[] = {
        {1, {16, 0, 0, 0}, {16, 16, 1, 1}, 1},
        {4, {16, 0, 0, 0}, {16, 4, 1, 4}, 1},
        {3, {12, 0, 0, 0}, {12, 4, 1, 3}, 1},
        {2, {16, 4, 0, 0}, {16, 4, 2, 2}, 2},
        {2, {16, 0, 4, 0}, {16, 2, 4, 2}, 4},
        {2, {16, 4, 2, 0}, {16, 4, 2, 2}, 2},
        {2, {0, 4, 0, 0}, {8, 4, 1, 2}, 1}, /* weak scaling: micro_batch alone */
        {8, {0, 4, 0, 0}, {32, 4, 1, 8}, 1},
        {2, {0, 4, 3, 0}, {24, 4, 3, 2}, 3},
        {1, {16, 1, 0, 8}, {16, 1, 16, 8}, 2}, /* one virtual shard structure on 1, 2, 4, 8 ranks */
        {2, {16, 1, 0, 8}, {16, 1, 8, 8}, 2},
        {4, {16, 1, 0, 8}, {16, 1, 4, 8}, 2},
        {8, {16, 1, 0, 8}, {16, 1, 2, 8}, 2},
        {1, {12, 0, 0, 3}, {12, 4, 3, 3}, 1},
        {3, {12, 0, 0, 3}, {12, 4, 1, 3}, 1},
        {3, {12, 0, 0, 6}, {12, 2, 2, 6}, 1},
        {1, {16, 0, 8, 4}, {16, 2, 8, 4}, 2},
        {1, {1, 0, 0, 0}, {1, 1, 1, 1}, 1},
        {2, {1 << 30, 0, 0, 0}, {1 << 30, 1 << 29, 1, 2}, 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_batch b = {.n_ranks = row[i].n,
                             .global_batch = row[i].given[0],
                             .micro_batch = row[i].given[1],
                             .accumulation = row[i].given[2],
                             .virtual_shards = row[i].given[3]};
        assert_int_equal(ku_batch_resolve(&b), KUMI_OK);
        const int64_t is[4] = {b.global_batch, b.micro_batch, b.accumulation, b.virtual_shards};
        assert_memory_equal(is, row[i].is, sizeof is);
        assert_int_equal(b.k, row[i].k);
    }
}

/* Without a number of samples every admissible rank count has micro-batches of one. */
static void test_in_tokens(void **state)
{
    (void)state;
    for (int v = 1; v <= 24; v++)
        for (int n = 1; n <= v; n++) {
            struct ku_batch b = {.n_ranks = n, .is_in_tokens = 1, .virtual_shards = v};
            if (!ku_batch_is_admissible(v, n))
                continue;
            assert_int_equal(ku_batch_resolve(&b), KUMI_OK);
            assert_int_equal(b.global_batch, v);
            assert_int_equal(b.micro_batch, 1);
            assert_int_equal(b.k, 1);
        }
    struct ku_batch twice = {.n_ranks = 3, .is_in_tokens = 1, .accumulation = 2};
    assert_int_equal(ku_batch_resolve(&twice), KUMI_OK);
    assert_int_equal(twice.global_batch, 6);
    assert_int_equal(twice.k, 2);
    struct ku_batch stored = {.n_ranks = 2, .is_in_tokens = 1, .global_batch = 16}; /* a resume */
    assert_int_equal(ku_batch_resolve(&stored), KUMI_OK);
    assert_int_equal(stored.micro_batch, 8);
}

static const struct refusal {
    int n;
    int64_t given[4];
    const char *text;
} refusals[] = {
    {4,
     {2, 0, 0, 0},
     "batch: train.global_batch: 2 is less than virtual_shards = 4; give at least 4, or fewer "
     "ranks"},
    {3,
     {16, 0, 0, 0},
     "batch: train.global_batch: 16 is no multiple of virtual_shards = 3; nearest: 15, 18"},
    {2,
     {16, 3, 0, 0},
     "batch: train.global_batch: 16 is no multiple of virtual_shards x micro_batch = 6; "
     "nearest: 12, 18"},
    {1,
     {16, 0, 3, 0},
     "batch: train.global_batch: 16 is no multiple of virtual_shards x k = 3; nearest: 15, 18"},
    {1,
     {16, 0, 6, 4},
     "batch: train.accumulation: 6 is no multiple of virtual_shards / ranks = 4; nearest: 4, "
     "8"},
    {1,
     {16, 0, 2, 4},
     "batch: train.accumulation: 2 is no multiple of virtual_shards / ranks = 4; nearest: 4"},
    {2,
     {16, 4, 3, 0},
     "batch: train.accumulation: 3 contradicts global_batch 16 = 2 ranks x micro_batch 4 x "
     "accumulation; it would be 2"},
    {2,
     {12, 0, 0, 3},
     "batch: train.virtual_shards: 3 on 2 ranks; each rank takes a power of two of them: use "
     "1, 3 ranks, or virtual_shards 2 or 4"},
    {3,
     {16, 0, 0, 8},
     "batch: train.virtual_shards: 8 on 3 ranks; each rank takes a power of two of them: use "
     "1, 2, 4, 8 ranks, or virtual_shards 6 or 12"},
    {2,
     {12, 0, 0, 12}, /* 6 each */
     "batch: train.virtual_shards: 12 on 2 ranks; each rank takes a power of two of them: use "
     "1, 3, 6, 12 ranks, or virtual_shards 8 or 16"},
    {4,
     {16, 0, 0, 2},
     "batch: train.virtual_shards: 2 on 4 ranks; each rank takes a power of two of them: use "
     "1, 2 ranks, or virtual_shards 4"},
    {1, {0, 0, 0, 0}, "batch: neither train.global_batch nor train.micro_batch is given; give one"},
    {0, {16, 0, 0, 0}, "batch: ranks: 0; at least 1"},
    {1, {-1, 0, 0, 0}, "batch: train.global_batch: -1; from 1 to 2^30"},
    {1, {16, (1 << 30) + 1, 0, 0}, "batch: train.micro_batch: 1073741825; from 1 to 2^30"},
    {1,
     {0, 1 << 30, 1 << 30, 1}, /* 2^60 */
     "batch: virtual_shards 1 x micro_batch 1073741824 x k 1073741824 exceeds 2^30 samples; "
     "give smaller values"},
    {1,
     {0, 1 << 30, 1 << 30, 1 << 20}, /* 2^80 in all: must not wrap */
     "batch: virtual_shards 1048576 x micro_batch 1073741824 x k 1024 exceeds 2^30 samples; "
     "give smaller values"},
};

/* Shards of a rank are its micro-batches then, for each rank count that divides them. */
static void test_free_order(void **state)
{
    static const struct {
        int n;
        int64_t shards, k; /* given; 0: not */
    } row[] = {{1, 12, 24}, {2, 12, 12}, {3, 12, 8}, {4, 12, 6}, {12, 12, 2}, {4, 0, 6}};
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_batch b = {.n_ranks = row[i].n,
                             .is_free = 1,
                             .global_batch = 48,
                             .micro_batch = 2,
                             .virtual_shards = row[i].shards};
        assert_int_equal(ku_batch_resolve(&b), KUMI_OK);
        const int64_t is[5] = {b.global_batch, b.micro_batch, b.accumulation, b.virtual_shards,
                               b.k};
        assert_memory_equal(is, ((int64_t[]){48, 2, row[i].k, row[i].n, row[i].k}), sizeof is);
    }
    struct ku_batch b = {.n_ranks = 5, .is_free = 1, .global_batch = 48, .virtual_shards = 12};
    assert_int_equal(ku_batch_resolve(&b), KUMI_EINVAL);
    assert_string_equal(ku_err_get()->text,
                        "batch: train.virtual_shards: 12 is no multiple of ranks = 5; nearest: "
                        "10, 15");
}

static void test_refuses(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        struct ku_batch b = {.n_ranks = refusals[i].n,
                             .global_batch = refusals[i].given[0],
                             .micro_batch = refusals[i].given[1],
                             .accumulation = refusals[i].given[2],
                             .virtual_shards = refusals[i].given[3]};
        const struct ku_batch before = b;
        assert_int_equal(ku_batch_resolve(&b), KUMI_EINVAL);
        assert_string_equal(ku_err_get()->text, refusals[i].text);
        assert_memory_equal(&b, &before, sizeof b); /* nothing is changed */
    }
}

/* Whatever small numbers are given: an answer fulfils the relation and keeps what was given, has
 * the largest micro_batch, and a refusal is right: no choice of the free numbers would do. */
static int has_answer(const struct ku_batch *b)
{
    for (int64_t v = 1; v <= 12; v++)
        for (int64_t m = 1; m <= 12; m++)
            for (int64_t k = 1; k <= 12; k++)
                if (v == (b->virtual_shards ? b->virtual_shards : b->n_ranks) &&
                    ku_batch_is_admissible(v, b->n_ranks) &&
                    (!b->micro_batch || m == b->micro_batch) &&
                    (!b->global_batch || v * m * k == b->global_batch) &&
                    (!b->accumulation || k * v / b->n_ranks == b->accumulation))
                    return 1;
    return 0;
}

static void test_all_small(void **state)
{
    int n_ok = 0, n_refused = 0;
    (void)state;
    for (int i = 0; i < 6 * 13 * 6 * 6 * 7; i++) {
        struct ku_batch b = {.n_ranks = 1 + i % 6,
                             .global_batch = i / 6 % 13,
                             .micro_batch = i / 78 % 6,
                             .accumulation = i / 468 % 6,
                             .virtual_shards = i / 2808 % 7};
        const struct ku_batch given = b;
        if (!b.global_batch && !b.micro_batch)
            continue;
        if (ku_batch_resolve(&b) < 0) {
            assert_false(has_answer(&given));
            n_refused++;
            continue;
        }
        n_ok++;
        assert_true(has_answer(&given));
        assert_true(ku_batch_is_admissible(b.virtual_shards, b.n_ranks));
        assert_int_equal(b.global_batch, b.virtual_shards * b.micro_batch * b.k);
        assert_int_equal(b.global_batch, b.n_ranks * b.micro_batch * b.accumulation);
        assert_true(!given.global_batch || given.global_batch == b.global_batch);
        assert_true(!given.micro_batch || given.micro_batch == b.micro_batch);
        assert_true(!given.accumulation || given.accumulation == b.accumulation);
        assert_true(!given.virtual_shards || given.virtual_shards == b.virtual_shards);
        assert_true(given.micro_batch || given.accumulation || b.k == 1); /* the largest */
    }
    assert_true(n_ok > 500 && n_refused > 500); /* the table reaches both */
}

static void test_admissible(void **state)
{
    static const struct {
        int64_t v, n;
        int is;
    } row[] = {{1, 1, 1}, {3, 1, 1}, {8, 1, 1}, {8, 2, 1},  {8, 4, 1},  {8, 8, 1},  {8, 16, 0},
               {8, 3, 0}, {3, 3, 1}, {3, 2, 0}, {12, 3, 1}, {12, 6, 1}, {12, 2, 0}, {12, 4, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        assert_int_equal(ku_batch_is_admissible(row[i].v, row[i].n), row[i].is);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resolves),   cmocka_unit_test(test_in_tokens),
        cmocka_unit_test(test_free_order), cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_all_small),  cmocka_unit_test(test_admissible)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
