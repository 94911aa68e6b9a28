/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor data */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "data/sampler.h"

#define DROP  KU_LAST_DROP
#define WRAP  KU_LAST_WRAP
#define SHORT KU_LAST_SHORT

static const struct {
    int64_t n_samples, global_batch;
    enum ku_last_batch last;
    int64_t steps, last_positions; /* of an epoch: steps, and valid positions of the last */
} rows[] = {{10, 5, DROP, 2, 5},     {10, 5, WRAP, 2, 5},    {10, 5, SHORT, 2, 5},
            {11, 5, DROP, 2, 5},     {11, 5, WRAP, 3, 5},    {11, 5, SHORT, 3, 1},
            {14, 5, DROP, 2, 5},     {14, 5, SHORT, 3, 4},   {3, 5, WRAP, 1, 5},
            {1, 7, WRAP, 1, 7},      {3, 5, SHORT, 1, 3},    {1, 1, DROP, 1, 1},
            {100, 1, DROP, 100, 1},  {64, 64, SHORT, 1, 64}, {1000, 7, DROP, 142, 7},
            {1000, 7, SHORT, 143, 6}};

/* Every epoch has each sample as often as the rule says, in another order; numbers run through. */
static void epochs_have_their_samples(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int shuffle = 0; shuffle < 2; shuffle++) {
            struct ku_sampler s;
            int64_t n = rows[i].n_samples, batch = rows[i].global_batch, number = 0, moved = 0;
            assert_int_equal(ku_sampler_init(&s, n, batch, rows[i].last, shuffle, 1337), 0);
            assert_int_equal(s.steps_per_epoch, rows[i].steps);
            for (int64_t epoch = 0; epoch < 3; epoch++) {
                int *seen = calloc((size_t)n, sizeof *seen);
                for (int64_t k = 0; k < rows[i].steps; k++) {
                    int64_t step = epoch * rows[i].steps + k, valid = ku_sampler_batch(&s, step);
                    assert_int_equal(ku_sampler_epoch(&s, step), epoch);
                    assert_int_equal(valid, k + 1 < rows[i].steps ? batch : rows[i].last_positions);
                    for (int64_t p = 0; p < batch; p++) {
                        int64_t sample = ku_sampler_at(&s, step, p);
                        assert_int_equal(ku_sampler_number(&s, step, p), p < valid ? number : -1);
                        if (p >= valid) {
                            assert_int_equal(sample, -1);
                            continue;
                        }
                        number++;
                        assert_in_range(sample, 0, n - 1);
                        seen[sample]++;
                        moved += sample != (k * batch + p) % n;
                    }
                }
                int64_t positions = (rows[i].steps - 1) * batch + rows[i].last_positions,
                        least = positions / n, more = 0;
                for (int64_t j = 0; j < n; j++) {
                    assert_in_range(seen[j], least, least + 1);
                    more += seen[j] - least;
                }
                assert_int_equal(more, positions % n);
                free(seen);
            }
            assert_true(shuffle ? n < 10 || moved > 0 : moved == 0);
        }
}

static void seeds_and_epochs_give_other_orders(void **state)
{
    struct ku_sampler a, b;
    int other_seed = 0, other_epoch = 0;
    (void)state;
    assert_int_equal(ku_sampler_init(&a, 1000, 10, KU_LAST_DROP, 1, 1), 0);
    assert_int_equal(ku_sampler_init(&b, 1000, 10, KU_LAST_DROP, 1, 2), 0);
    for (int64_t step = 0; step < 100; step++)
        for (int64_t p = 0; p < 10; p++) {
            other_seed += ku_sampler_at(&a, step, p) != ku_sampler_at(&b, step, p);
            other_epoch += ku_sampler_at(&a, step, p) != ku_sampler_at(&a, step + 100, p);
        }
    assert_true(other_seed > 950 && other_epoch > 950);
}

static void large_numbers_are_exact(void **state)
{
    struct ku_sampler s;
    int64_t n_steps;
    (void)state;
    assert_int_equal(ku_sampler_init(&s, INT64_MAX, 3, KU_LAST_SHORT, 0, 0), 0);
    assert_int_equal(s.steps_per_epoch, INT64_MAX / 3 + 1);
    assert_int_equal(ku_sampler_at(&s, INT64_MAX / 3, 0), INT64_MAX - 1);
    assert_int_equal(ku_sampler_batch(&s, INT64_MAX / 3), 1);
    assert_int_equal(ku_sampler_init(&s, INT64_MAX, INT64_MAX - 1, KU_LAST_WRAP, 0, 0),
                     KUMI_EINVAL);
    assert_int_equal(ku_sampler_init(&s, 1000, 10, KU_LAST_DROP, 0, 0), 0);
    assert_int_equal(ku_sampler_steps(&s, 7, &n_steps), 0);
    assert_int_equal(n_steps, 700);
    assert_int_equal(ku_sampler_steps(&s, INT64_MAX / 100 + 1, &n_steps), KUMI_EINVAL);
    assert_int_equal(ku_sampler_steps(&s, -1, &n_steps), KUMI_EINVAL);
}

static void refuses_an_empty_epoch(void **state)
{
    struct ku_sampler s;
    enum ku_last_batch last;
    (void)state;
    assert_int_equal(ku_sampler_init(&s, 4, 5, KU_LAST_DROP, 0, 0), KUMI_EINVAL);
    assert_string_equal(ku_err_get()->text,
                        "batch: train.global_batch: 5, but only 4 samples, so data.last_batch drop "
                        "leaves no batch; give at most 4, or wrap or short");
    assert_int_equal(ku_last_batch_parse("wrap", &last), 0);
    assert_int_equal(last, KU_LAST_WRAP);
    assert_int_equal(ku_last_batch_parse("Drop", &last), KUMI_EINVAL);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {cmocka_unit_test(epochs_have_their_samples),
                                              cmocka_unit_test(seeds_and_epochs_give_other_orders),
                                              cmocka_unit_test(large_numbers_are_exact),
                                              cmocka_unit_test(refuses_an_empty_epoch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
