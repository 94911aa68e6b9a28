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
    status = suite_run(job, arg);
    int left = ku_comm_leave(job);
    return status < 0 ? status : left;
}

static void test_suite(void **state)
{
    struct suite_share share = {20 * (sample_is_short() ? 10 : 1), INT64_MAX, 0};
    (void)state;
    for (int n = 1; n <= 8; n++, share.turn++)
        assert_int_equal(kumi_launch(run, &share, n), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_suite)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
