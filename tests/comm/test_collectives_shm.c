/* SPDX-License-Identifier: Apache-2.0 */
/* links: comm job tensor base */
#include "suite.h"

#include "kumi/launch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static int run(void *arg)
{
    struct ku_job *job;
    int status = ku_comm_join(NULL, &job);
    if (status < 0)
        return status;
    status = suite_run(job, *(int *)arg);
    int left = ku_comm_leave(job);
    return status < 0 ? status : left;
}

static void test_suite(void **state)
{
    static const int ranks[] = {1, 2, 3, 4, 5, 7, 8};
    (void)state;
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        int is_long = ranks[i] == 4;
        assert_int_equal(kumi_launch(run, &is_long, ranks[i]), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_suite)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
