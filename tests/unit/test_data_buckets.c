/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor data */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/fault.h"
#include "base/math/random.h"
#include "data/pairs/buckets.h"
#include "data/sampler.h"

#define DROP  KU_LAST_DROP
#define WRAP  KU_LAST_WRAP
#define SHORT KU_LAST_SHORT

enum { N_MAX = 5000 };
static int32_t src[N_MAX], tgt[N_MAX];

/* Lengths like those of sentences: most short, some long, both sides alike. */
static void make_lengths(int64_t n, int longest, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        float a = ku_random_uniform(ku_random_u32(seed, 0, 0, (uint64_t)i)),
              b = ku_random_uniform(ku_random_u32(seed, 0, 1, (uint64_t)i));
        src[i] = 1 + (int32_t)(a * a * (float)(longest - 1));
        tgt[i] = 1 + (int32_t)((0.7F * a * a + 0.3F * b) * (float)(longest - 1));
    }
}

static const struct row {
    int64_t n;
    int longest;
    struct ku_buckets_opts o;
} rows[] = {
    {1000, 50, {8, 0, 800, 4, 0, SHORT, 1, 7}},    {1000, 50, {8, 0, 800, 4, 0, DROP, 1, 7}},
    {1000, 50, {8, 0, 800, 4, 0, WRAP, 1, 7}},     {1000, 50, {8, 0, 800, 4, 8, SHORT, 0, 7}},
    {1000, 50, {1, 64, 0, 2, 0, SHORT, 1, 7}},     {1000, 50, {5, 64, 0, 2, 0, WRAP, 1, 7}},
    {5000, 300, {16, 0, 9000, 6, 4, SHORT, 1, 1}}, {5000, 300, {3, 0, 1200, 1, 0, DROP, 1, 1}},
    {37, 20, {8, 0, 640, 16, 0, SHORT, 1, 3}},     {5, 20, {8, 0, 640, 16, 0, WRAP, 1, 3}},
    {1, 9, {8, 0, 10, 1, 0, SHORT, 1, 3}},         {700, 1, {4, 0, 33, 1, 0, SHORT, 1, 3}},
    {64, 30, {4, 64, 0, 64, 0, DROP, 1, 3}},
};

static struct ku_buckets *create(const struct row *row)
{
    struct ku_buckets *b = NULL;
    make_lengths(row->n, row->longest, row->o.seed);
    if (ku_buckets_create(&row->o, src, tgt, row->n, &b) < 0)
        fail_msg("row %td: %s", row - rows, ku_err_get()->text);
    return b;
}

static void shapes_are_as_asked(void **state)
{
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        const struct ku_buckets_opts *o = &rows[r].o;
        struct ku_buckets *b = create(&rows[r]);
        int64_t len_multiple = o->len_multiple ? o->len_multiple : 1;
        assert_in_range(ku_buckets_n_shapes(b), 1, o->n_shapes_max);
        for (int i = 0; i < ku_buckets_n_shapes(b); i++) {
            struct ku_bucket_shape s = ku_buckets_shape(b, i), before;
            int64_t longer = s.src_len > s.tgt_len ? s.src_len : s.tgt_len;
            assert_true(s.rows > 0 && s.rows % o->multiple == 0);
            assert_int_equal(s.src_len % len_multiple + s.tgt_len % len_multiple, 0);
            if (o->batch_rows)
                assert_int_equal(s.rows, o->batch_rows);
            else
                assert_in_range(s.rows * longer, 1, o->batch_tokens);
            before = ku_buckets_shape(b, i > 0 ? i - 1 : 0);
            assert_true(before.src_len <= s.src_len && before.tgt_len <= s.tgt_len);
        }
        assert_true(ku_buckets_padding(b) >= 0.0 && ku_buckets_padding(b) < 1.0);
        ku_buckets_destroy(b);
    }
}

/* One epoch: how often each sample comes, in a batch that holds it. Numbers go to seen_number. */
static int64_t count_epoch(const struct ku_buckets *b, int64_t epoch, int *seen, char *seen_number)
{
    int64_t n_steps = ku_buckets_steps_per_epoch(b), positions = 0;
    for (int64_t step = epoch * n_steps; step < (epoch + 1) * n_steps; step++) {
        int shape = ku_buckets_shape_at(b, step);
        struct ku_bucket_shape s = ku_buckets_shape(b, shape);
        int64_t valid = ku_buckets_batch(b, step);
        assert_in_range(valid, 1, s.rows);
        positions += valid;
        for (int64_t p = 0; p < s.rows; p++) {
            int64_t sample = ku_buckets_at(b, step, p), number = ku_buckets_number(b, step, p);
            if (p >= valid) {
                assert_true(sample == -1 && number == -1);
                continue;
            }
            assert_in_range(sample, 0, N_MAX - 1);
            assert_true(src[sample] <= s.src_len && tgt[sample] <= s.tgt_len);
            seen[sample]++;
            assert_true(number >= 0 && number < 4 * N_MAX && !seen_number[number]);
            seen_number[number] = 1;
        }
    }
    return positions;
}

static void epochs_have_their_samples(void **state)
{
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        struct ku_buckets *b = create(&rows[r]);
        static char seen_number[4 * N_MAX];
        memset(seen_number, 0, sizeof seen_number);
        int64_t positions = 0;
        for (int64_t epoch = 0; epoch < 3; epoch++) {
            static int seen[N_MAX];
            memset(seen, 0, sizeof seen);
            int64_t n = count_epoch(b, epoch, seen, seen_number), extra = n - rows[r].n;
            assert_true(epoch == 0 || n == positions);
            positions = n;
            for (int64_t i = 0; i < rows[r].n; i++) {
                int least = rows[r].o.last == DROP ? 0 : 1;
                assert_in_range(seen[i], least, extra > 0 ? 1 + (extra + rows[r].n - 1) : 1);
            }
            assert_int_equal(rows[r].o.last == SHORT ? extra : 0, 0);
            assert_true(rows[r].o.last == DROP ? extra <= 0 : extra >= 0);
        }
        for (int64_t i = 0; i < 3 * positions; i++)
            assert_int_equal(seen_number[i], 1); /* each draw has its own number, without a gap */
        ku_buckets_destroy(b);
    }
}

static void order_is_a_function_of_seed_and_epoch(void **state)
{
    (void)state;
    struct row other = rows[0];
    struct ku_buckets *a = create(&rows[0]), *again = create(&rows[0]), *b;
    other.o.seed = 7 + (UINT64_C(1) << 40);
    b = NULL;
    assert_int_equal(ku_buckets_create(&other.o, src, tgt, other.n, &b), 0);
    int64_t n = ku_buckets_steps_per_epoch(a), same_epoch = 0, same_seed = 0, total = 0;
    for (int64_t step = 0; step < n; step++) {
        for (int64_t p = 0; p < ku_buckets_batch(a, step); p++, total++) {
            int64_t sample = ku_buckets_at(a, step, p);
            assert_int_equal(sample, ku_buckets_at(again, step, p));
            int64_t rows_then = ku_buckets_shape(a, ku_buckets_shape_at(a, step + n)).rows;
            same_epoch += p < rows_then && sample == ku_buckets_at(a, step + n, p);
            int64_t rows_b = ku_buckets_shape(b, ku_buckets_shape_at(b, step)).rows;
            same_seed += p < rows_b && sample == ku_buckets_at(b, step, p);
        }
    }
    assert_true(same_epoch < total / 20 && same_seed < total / 20);
    ku_buckets_destroy(a);
    ku_buckets_destroy(again);
    ku_buckets_destroy(b);
}

/* One shape: the sampler's samples, places and numbers. */
static void one_shape_is_the_sampler(void **state)
{
    static const enum ku_last_batch last[] = {DROP, WRAP, SHORT};
    (void)state;
    for (int l = 0; l < 3; l++)
        for (int shuffle = 0; shuffle < 2; shuffle++) {
            struct ku_buckets_opts o = {1, 12, 0, 3, 0, last[l], shuffle, 99};
            struct ku_sampler s;
            struct ku_buckets *b = NULL;
            make_lengths(100, 9, 5);
            assert_int_equal(ku_sampler_init(&s, 100, 12, last[l], shuffle, 99), 0);
            assert_int_equal(ku_buckets_create(&o, src, NULL, 100, &b), 0);
            assert_int_equal(ku_buckets_steps_per_epoch(b), s.steps_per_epoch);
            for (int64_t step = 0; step < 3 * s.steps_per_epoch; step++) {
                assert_int_equal(ku_buckets_batch(b, step), ku_sampler_batch(&s, step));
                for (int64_t p = 0; p < 12; p++) {
                    assert_int_equal(ku_buckets_at(b, step, p), ku_sampler_at(&s, step, p));
                    assert_int_equal(ku_buckets_number(b, step, p), ku_sampler_number(&s, step, p));
                }
            }
            ku_buckets_destroy(b);
        }
}

/* The search against all chains of two and three shapes, for few distinct lengths; rows are 1, so
 * nothing is left over and padding alone decides. */
static int64_t chain_cost(int64_t n, int32_t (*chain)[2], int k)
{
    int64_t cost = 0;
    for (int64_t i = 0; i < n; i++) {
        int c = 0;
        while (c < k && (src[i] > chain[c][0] || tgt[i] > chain[c][1]))
            c++;
        if (c == k)
            return INT64_MAX;
        cost += chain[c][0] + chain[c][1];
    }
    return cost;
}

static void shapes_are_the_best(void **state)
{
    enum { LONGEST = 7, N = 60 };
    (void)state;
    for (uint64_t seed = 0; seed < 6; seed++) {
        struct ku_buckets_opts o = {3, 1, 0, 1, 0, SHORT, 1, 0};
        struct ku_buckets *b = NULL;
        int64_t got = 0, best = INT64_MAX;
        make_lengths(N, LONGEST, seed);
        assert_int_equal(ku_buckets_create(&o, src, tgt, N, &b), 0);
        int32_t c[3][2];
        for (int i = 0; i < ku_buckets_n_shapes(b); i++) {
            c[i][0] = (int32_t)ku_buckets_shape(b, i).src_len;
            c[i][1] = (int32_t)ku_buckets_shape(b, i).tgt_len;
        }
        got = chain_cost(N, c, ku_buckets_n_shapes(b));
        for (int code = 0; code < LONGEST * LONGEST * LONGEST * LONGEST; code++) {
            c[0][0] = 1 + code % LONGEST, c[0][1] = 1 + code / LONGEST % LONGEST;
            c[1][0] = 1 + code / LONGEST / LONGEST % LONGEST;
            c[1][1] = 1 + code / LONGEST / LONGEST / LONGEST;
            c[2][0] = (int32_t)ku_buckets_shape(b, ku_buckets_n_shapes(b) - 1).src_len;
            c[2][1] = (int32_t)ku_buckets_shape(b, ku_buckets_n_shapes(b) - 1).tgt_len;
            if (c[0][0] > c[1][0] || c[0][1] > c[1][1])
                continue;
            int64_t cost = chain_cost(N, c, 3);
            best = cost < best ? cost : best;
        }
        /* The search also charges half a row for what moves up: at most that worse. */
        assert_true(got >= best && got <= best + 2 * LONGEST);
        ku_buckets_destroy(b);
    }
}

static void more_shapes_pad_less(void **state)
{
    double before = 1.0;
    (void)state;
    for (int n = 1; n <= 16; n *= 2) {
        struct row row = rows[6];
        struct ku_buckets *b = NULL;
        row.o.n_shapes_max = n;
        make_lengths(row.n, row.longest, 1);
        assert_int_equal(ku_buckets_create(&row.o, src, tgt, row.n, &b), 0);
        assert_true(ku_buckets_padding(b) < before);
        before = ku_buckets_padding(b);
        struct ku_str s = {0};
        ku_buckets_print(b, &s);
        assert_non_null(strstr(s.text, "% padding"));
        ku_str_fini(&s);
        ku_buckets_destroy(b);
    }
}

static void refusals(void **state)
{
    static const struct {
        int64_t n;
        struct ku_buckets_opts o;
        const char *text;
    } row[] = {
        {10, {0, 4, 0, 1, 0, SHORT, 1, 0}, "batch: 0 shapes; give 1 to 16"},
        {10, {17, 4, 0, 1, 0, SHORT, 1, 0}, "batch: 17 shapes; give 1 to 16"},
        {10,
         {2, 6, 0, 4, 0, SHORT, 1, 0},
         "batch: 6 rows are not a multiple of virtual shards x micro-batches = 4"},
        {10, {2, 0, 0, 1, 0, SHORT, 1, 0}, "batch: 0 tokens; give 1 or more"},
        {10,
         {2, 0, 30, 4, 0, SHORT, 1, 0},
         "batch: 30 tokens cannot hold 4 rows of 9, the longest sample; give at least 36 tokens, "
         "or a lower length limit"},
        {10,
         {2, 64, 0, 1, 0, DROP, 1, 0},
         "batch: 64 rows, but only 10 samples, so data.last_batch drop leaves no batch; give "
         "smaller batches, or wrap or short"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct ku_buckets *b = NULL;
        make_lengths(10, 8, 2);
        src[3] = 9;
        assert_int_equal(ku_buckets_create(&row[i].o, src, tgt, row[i].n, &b), KUMI_EINVAL);
        assert_string_equal(ku_err_get()->text, row[i].text);
        assert_null(b);
    }
    for (int n = 1; n < 6; n++) {
        char fault[16];
        struct ku_buckets *b = NULL;
        make_lengths(rows[0].n, rows[0].longest, 7);
        snprintf(fault, sizeof fault, "mem:%d", n);
        ku_fault_set(fault);
        assert_int_equal(ku_buckets_create(&rows[0].o, src, tgt, rows[0].n, &b), KUMI_ENOMEM);
        ku_fault_set(NULL);
        assert_null(b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(shapes_are_as_asked),
                                       cmocka_unit_test(epochs_have_their_samples),
                                       cmocka_unit_test(order_is_a_function_of_seed_and_epoch),
                                       cmocka_unit_test(one_shape_is_the_sampler),
                                       cmocka_unit_test(shapes_are_the_best),
                                       cmocka_unit_test(more_shapes_pad_less),
                                       cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
