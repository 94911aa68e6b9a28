/* SPDX-License-Identifier: Apache-2.0 */
/* links: comm job tensor base */
/* tsan */
#include "suite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static int run(struct ku_job *job, void *arg)
{
    return suite_run(job, arg);
}

static void test_suite(void **state)
{
    struct suite_share share = {30 * (sample_is_short() ? 3 : 1), INT64_MAX, 0};
    (void)state;
    if (sample_races_only()) /* 20 times slower, and races do not depend on the count */
        share.max_count = 100;
    for (int n = 1; n <= (sample_races_only() ? 5 : 8); n++, share.turn++)
        assert_int_equal(ku_comm_threads(n, NULL, run, &share), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_suite)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
