/* SPDX-License-Identifier: Apache-2.0 */
/* links: comm job tensor base */
/* A rank that the system gives no socket says so, with the code of what is lacking: no peer died.
 */
#include "base/err.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/os/ipc.h"
#include "comm/area.h"
#include "comm/private.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* What this process holds open, and nothing more. */
static void no_more_files(void)
{
    int fd = dup(0);
    struct rlimit now = {(rlim_t)fd, (rlim_t)fd};
    if (fd < 0) /* so it is already */
        return;
    close(fd);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &now), 0);
}

struct row {
    const char *name, *fault; /* KUMI_FAULT */
    int rank, is_full, is_taken;
    int status;
    const char *text;
};

static const struct row rows[] = {
    {"rank 0: no socket", "os:1", 0, 0, 0, KUMI_ESTORAGE, "join: socket @kumi."},
    {"rank 0: no name", "os:2", 0, 0, 0, KUMI_ESTORAGE, "Input/output error"},
    {"rank 1: no connection", "os:1", 1, 0, 1, KUMI_ESTORAGE, "join: socket @kumi."},
    {"rank 1: unknown user of rank 0", "os:2", 1, 0, 1, KUMI_ESTORAGE, "Input/output error"},
    {"rank 1: attempts before rank 0 listens do not count as calls", "os:1", 1, 0, 0,
     KUMI_ETIMEDOUT, "rank 0 of 2 did not connect in time"},
    {"rank 0: the name is taken", NULL, 0, 0, 1, KUMI_EINVAL, "is a job with the same id still"},
    {"rank 1 does not connect", NULL, 1, 0, 0, KUMI_ETIMEDOUT,
     "rank 0 of 2 did not connect in time"},
    {"rank 0: no file more", NULL, 0, 1, 0, KUMI_ENOMEM, "Too many open files; raise the limit"},
    {"rank 1: no file more", NULL, 1, 1, 0, KUMI_ENOMEM, "Too many open files; raise the limit"},
};

static void refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct row *r = &rows[i];
        struct ku_env_job env = {.launcher = "test",
                                 .rank = r->rank,
                                 .n = 2,
                                 .local_rank = r->rank,
                                 .local_n = 2,
                                 .control_fd = -1,
                                 .job_id = 0x7e57000000000000 + (uint64_t)getpid() * 16 + i};
        struct ku_segment *seg = NULL;
        int *sockets = NULL, n = 0, taken = -1;
        char name[KU_SOCKET_NAME_BYTES];
        ku_rendezvous_name(&env, name);
        if (r->is_taken)
            assert_true((taken = ku_os_local_listen(name, 1)) >= 0);
        if (r->is_full) /* stays so */
            no_more_files();
        ku_fault_set(r->fault);
        int status = ku_rendezvous(&ku_comm_client, &env, 20000000, &seg, &sockets, &n);
        if (r->fault &&
            r->status == KUMI_ETIMEDOUT) /* the first call that counts is still to come */
            assert_true(ku_fault_is_due(KU_FAULT_OS));
        ku_fault_set(NULL);
        if (status != r->status || strstr(ku_err_get()->text, r->text) == NULL)
            fail_msg("%s: %d, %s", r->name, status, ku_err_get()->text);
        assert_null(seg);
        ku_free(sockets);
        if (taken >= 0)
            close(taken);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(refusals)};
    int spare[8]; /* LeakSanitizer opens files, after the limit was lowered */
    for (size_t i = 0; i < sizeof spare / sizeof *spare; i++)
        assert_true((spare[i] = dup(0)) >= 0);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (size_t i = 0; i < sizeof spare / sizeof *spare; i++)
        close(spare[i]);
    return failed;
}
