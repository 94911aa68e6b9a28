/* SPDX-License-Identifier: Apache-2.0 */
/* links: comm job tensor base */
/* tsan */
/* The conformance suite of networks over the engine tcp, plain and through chaos, with ranks as
 * threads and as processes. */
#include "net_suite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static const struct engine engines[] = {
    {.name = "tcp", .is_tcp = true},
    {.name = "tcp over Unix pairs"},
    {.name = "doubled connections", .is_doubled = true},
    {.name = "short transfers", .chaos = "short=5000"},
    {.name = "delays", .is_tcp = true, .chaos = "delay=300us,jitter=400us,seed=3"},
};
enum { N_ENGINES = sizeof engines / sizeof *engines };

static void run_bodies(int (*run)(const struct engine *, int, net_body *, void *))
{
    int n_before = n_descriptors();
    for (int e = 0; e < N_ENGINES; e++)
        for (int b = 0; b < N_NET_BODIES; b++) {
            int status = run(&engines[e], net_bodies[b].n, net_bodies[b].body, NULL);
            if (status)
                fail_msg("%s, %s of %d ranks: %d", engines[e].name, net_bodies[b].name,
                         net_bodies[b].n, status);
        }
    assert_int_equal(n_descriptors(), n_before);
}

static void test_threads(void **state)
{
    (void)state;
    run_bodies(run_threads);
}

static void test_processes(void **state)
{
    (void)state;
    run_bodies(run_processes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_processes),
                                       cmocka_unit_test(test_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
