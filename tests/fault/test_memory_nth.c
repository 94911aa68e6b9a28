/* SPDX-License-Identifier: Apache-2.0 */
/* links: exec device ir comm job tensor base */
/* The n-th allocation of two ranks that create their arenas fails: both report it, never a mismatch
 * of collectives. */
#include "base/err.h"
#include "base/fault.h"
#include "comm/world.h"
#include "exec/arenas.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>

enum { MAX_ALLOCATIONS = 32 };

static int create(struct ku_job *job, void *arg)
{
    struct ku_program program = {
        .arena_bytes = {
            [KU_AR_STATE] = 4096, [KU_AR_SHARD] = 4096, [KU_AR_WIRE] = 4096, [KU_AR_FILE] = 4096}};
    const struct ku_program *all = &program;
    const struct ku_offload_file_opts target = {.path = arg, .io = KU_AIO_THREADS};
    struct ku_memory *m;
    KU_TRY(ku_memory_create(job, &ku_device_ref, NULL, &all, 1, &target, &m));
    ku_memory_destroy(m);
    return KUMI_OK;
}

static void test_allocations(void **state)
{
    char folder[] = "/var/tmp";
    int n_failed = 0;
    (void)state;
    for (int n = 1; n <= MAX_ALLOCATIONS; n++) {
        char spec[32];
        snprintf(spec, sizeof spec, "mem:%d", n);
        ku_fault_set(spec);
        int status = ku_comm_threads(2, NULL, create, folder);
        ku_fault_set(NULL);
        if (status != KUMI_OK && status != KUMI_ENOMEM)
            fail_msg("%s: %d: %s", spec, status, ku_err_get()->text);
        n_failed += status != KUMI_OK;
    }
    assert_in_range(n_failed, 10, MAX_ALLOCATIONS - 1); /* all calls were tried */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_allocations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
