/* SPDX-License-Identifier: Apache-2.0 */
/* links: op tensor base */
/* Which runs of a contraction are the slices of a sum, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/err.h"
#include "op/slices.h"

static struct ku_shape weight(const int64_t *count)
{
    return ku_shape_of("abcd", count);
}

static void contractions(void **state)
{
    static const struct {
        int op;
        int64_t contract, outs, trans, slices, dim;
        int64_t count[4];
        struct ku_slices want;
    } cases[] = {
        {KU_OP_linear, 1, 3, 0, 4, 0, {8, 3, 5, 2}, {4, 1, 2}},
        {KU_OP_linear, 2, 2, 0, 2, 1, {3, 8, 5, 2}, {2, 3, 4}}, /* inner of two */
        {KU_OP_linear, 3, 1, 0, 2, 1, {3, 8, 5, 2}, {2, 3, 20}},
        {KU_OP_linear, 2, 2, 1, 4, 2, {3, 5, 8, 7}, {4, 1, 14}},
        {KU_OP_linear, 1, 3, 0, 4, 2, {8, 3, 4, 2}, {0}}, /* a result: columns */
        {KU_OP_linear_dx, 1, 3, 0, 4, 2, {8, 3, 4, 2}, {4, 3, 2}},
        {KU_OP_linear_dx, 1, 3, 1, 4, 1, {3, 4, 2, 8}, {4, 3, 2}},
        {KU_OP_linear_dx, 1, 3, 0, 4, 0, {8, 3, 4, 2}, {0}},
        {KU_OP_linear_dx, 1, 3, 0, 1, 2, {8, 3, 4, 2}, {1, 3, 8}}, /* the last level of ranks */
        {KU_OP_linear, 1, 3, 0, 3, 0, {12, 3, 5, 2}, {3, 1, 4}},
        {KU_OP_linear_dx, 1, 3, 0, 12, 2, {8, 3, 24, 2}, {12, 3, 4}},
        {KU_OP_linear, 1, 3, 0, 0, 0, {8, 3, 4, 2}, {0}},
        {KU_OP_linear, 2, 2, 0, 4, 1, {0, 8, 4, 2}, {0}}, /* nothing to add */
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct ku_shape w = weight(cases[i].count);
        struct ku_attrs a = ku_attrs_default;
        struct ku_slices got;
        a.contract = cases[i].contract, a.outs = cases[i].outs, a.trans = cases[i].trans;
        a.slices = cases[i].slices, a.slice_dim = cases[i].dim;
        assert_int_equal(ku_slices_of(cases[i].op, &a, &w, &got), 0);
        assert_memory_equal(&got, &cases[i].want, sizeof got);
    }
}

static void refused(void **state)
{
    static const int64_t slices[] = {-1, 3, 5, 16, 256};
    const struct ku_shape w = weight((const int64_t[]){8, 3, 5, 2});
    (void)state;
    for (size_t i = 0; i < sizeof slices / sizeof slices[0]; i++) {
        struct ku_attrs a = ku_attrs_default;
        struct ku_slices got = {9, 9, 9};
        a.outs = 3, a.slices = slices[i];
        assert_int_equal(ku_slices_of(KU_OP_linear, &a, &w, &got), KUMI_EINVAL);
        assert_non_null(strstr(ku_err_get()->text, "of dim a with 8 elements"));
        assert_int_equal(ku_slices_of_last(&a, &w, &got), KUMI_EINVAL);
    }
}

static void last(void **state)
{
    const struct ku_shape x = ku_shape_of("nv", (const int64_t[]){3, 64});
    struct ku_attrs a = ku_attrs_default;
    struct ku_slices got;
    (void)state;
    assert_int_equal(ku_slices_of_last(&a, &x, &got), 0);
    assert_true(got.n == 1 && got.run == 64);
    a.slices = 16;
    assert_int_equal(ku_slices_of_last(&a, &x, &got), 0);
    assert_true(got.n == 16 && got.outer == 1 && got.run == 4);
}

/* Rows by tokens: of norms, and of a bias that is whole. */
static void tokens(void **state)
{
    const struct ku_shape x = ku_shape_of("ntc", (const int64_t[]){3, 8, 5}),
                          images = ku_shape_of("nyc", (const int64_t[]){3, 8, 5});
    struct ku_attrs a = ku_attrs_default;
    struct ku_slices got;
    (void)state;
    assert_int_equal(ku_slices_of_tokens(KU_OP_rms_norm_dg, &a, &x, &got), 0);
    assert_int_equal(got.n, 0);
    a.slices = 4;
    assert_int_equal(ku_slices_of_tokens(KU_OP_rms_norm_dg, &a, &x, &got), 0);
    assert_true(got.n == 4 && got.outer == 3 && got.run == 2);
    assert_int_equal(ku_slices_of_tokens(KU_OP_rms_norm_dg, &a, &images, &got), 0);
    assert_int_equal(got.n, 0);
    assert_int_equal(ku_slices_of_tokens(KU_OP_linear_db, &a, &x, &got), 0);
    assert_int_equal(got.n, 4);
    a.slice_dim = 1; /* the columns of the weight, and the bias with them */
    assert_int_equal(ku_slices_of_tokens(KU_OP_linear_db, &a, &x, &got), 0);
    assert_int_equal(got.n, 0);
    a.slice_dim = 0, a.slices = 16;
    assert_int_equal(ku_slices_of_tokens(KU_OP_linear_db, &a, &x, &got), 0);
    assert_int_equal(got.n, 0);
}

/*
 * Slices make the nodes of the neighbour tree: of two that add up, the first begins at a multiple
 * of twice its count, a power of two, and the second has at most as many. What a rank may have,
 * `each` slices, are nodes.
 */
static void tree(void **state)
{
    (void)state;
    for (int n = 1; n <= KU_MAX_SLICES; n++) {
        int first[KU_SLICES_LEVELS + 1] = {0}, n_nodes = 0, n_whole = 0;
        const int each = n & -n;
        for (int s = 0; s < n; s++) {
            int at = ku_slices_node(s);
            assert_true(at == n_nodes && at < KU_SLICES_LEVELS);
            first[at] = s, n_nodes = at + 1;
            n_whole += each == 1;
            for (int f = ku_slices_folds(n, s); f > 0; f--) {
                const int left = first[at] - first[at - 1], right = s + 1 - first[at];
                assert_true((left & (left - 1)) == 0 && right <= left);
                assert_int_equal(first[at - 1] % (2 * left), 0);
                n_nodes = at--;
                n_whole += first[at] % each == 0 && s + 1 - first[at] == each;
            }
        }
        assert_true(n_nodes == 1 && first[0] == 0);
        assert_int_equal(n_whole, n / each);
    }
}

/* No chunk has elements of two runs. */
static void chunks(void **state)
{
    (void)state;
    assert_int_equal(ku_slices_chunk(4096 * 3), 4096);
    assert_int_equal(ku_slices_chunk(8192), 4096);
    assert_int_equal(ku_slices_chunk(96), 32);
    assert_int_equal(ku_slices_chunk(7), 1);
    assert_int_equal(ku_slices_chunk(0), 4096);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contractions), cmocka_unit_test(refused), cmocka_unit_test(last),
        cmocka_unit_test(tokens),       cmocka_unit_test(tree),    cmocka_unit_test(chunks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
