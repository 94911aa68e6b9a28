/* SPDX-License-Identifier: Apache-2.0 */
/* links: comm job tensor base */
/* tsan */
/*
 * The conformance suite on several pretended hosts: ranks as threads, whose hosts meet over
 * loopback TCP. What is a shared-memory collective on one host goes through the exchange between
 * hosts here, with the same results.
 */
#include "suite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

static int run(struct ku_job *job, void *arg)
{
    return suite_run(job, arg);
}

static int ranks_of(const char *hosts)
{
    int n = 0;
    for (char *end; *hosts; hosts = *end ? end + 1 : end)
        n += (int)strtol(hosts, &end, 10);
    return n;
}

static void test_layouts(void **state)
{
    static const char *const hosts[] = {"1,1",   "2,2", "1,3",     "2,3", "1,1,1",
                                        "2,2,2", "4,4", "1,1,1,1", "3,3", "1,2,1"};
    struct suite_share share = {120 * (sample_is_short() ? 3 : 1), INT64_MAX};
    (void)state;
    if (sample_races_only()) /* small counts are quick, so there are more of them */
        share = (struct suite_share){20, 1100};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        if (sample_races_only() && ranks_of(hosts[i]) > 4)
            continue;
        const struct ku_job_opts opts = {.hosts = hosts[i]};
        const int status = ku_comm_threads(ranks_of(hosts[i]), &opts, run, &share);
        if (status)
            print_message("hosts %s: %s\n", hosts[i], ku_err_get()->text);
        assert_int_equal(status, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_layouts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
