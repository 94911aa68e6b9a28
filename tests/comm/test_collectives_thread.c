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
    return suite_run(job, *(int *)arg);
}

static void test_suite(void **state)
{
    static const int ranks[] = {1, 2, 3, 4, 5, 7, 8};
    (void)state;
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
#if defined(__SANITIZE_THREAD__)
        int is_long = 0; /* 20 times slower, and races do not depend on the count */
        if (ranks[i] > 5)
            continue;
#else
        int is_long = ranks[i] == 2 || ranks[i] == 3;
#endif
        assert_int_equal(ku_comm_threads(ranks[i], NULL, run, &is_long), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_suite)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
