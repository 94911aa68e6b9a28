/* SPDX-License-Identifier: Apache-2.0 */
/* links: job base */
/* The n-th allocation or system call of a process with pretended hosts fails: it ends with a
 * reason, or none is needed, and nothing hangs. */
#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/os/os.h"
#include "base/os/socket.h"
#include "job/control.h"
#include "job/job.h"
#include "job/private.h"
#include "job_client.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TIMEOUT_NS = 200 * 1000 * 1000 };

/* A connection, a question and a stop signal; each may be lost by the fault. */
static int use_job(struct ku_job *job, void *arg)
{
    const struct ku_dial_head head = {.from = job->rank, .to = (job->rank + 2) % job->n};
    const int64_t deadline = ku_clock_ns() + TIMEOUT_NS;
    struct ku_doorbell *doorbell = NULL;
    struct ku_dial_head got;
    struct ku_progress p;
    int fd = -1, taken = -1, status = 0;
    (void)arg;
    KU_TRY(ku_doorbell_open(job->seg->job_id, job->host, job->local_rank, &doorbell));
    KU_TRY_OUT(ku_control_dial(job, &head, TIMEOUT_NS, &fd));
    if (job->rank == 1)
        ku_segment_stop(job->seg, SIGTERM);
    while (ku_control_ask(job, head.to, &p) == 0 && ku_clock_ns() < deadline)
        usleep(1000);
    while (ku_doorbell_take(doorbell, &got, &taken) == 0 && ku_clock_ns() < deadline)
        usleep(1000);
    while (!ku_job_stop(job) && !status && ku_clock_ns() < deadline) {
        usleep(1000);
        status = ku_job_look(job, NULL);
    }
out:
    if (fd >= 0)
        ku_os_close(fd);
    if (taken >= 0)
        ku_os_close(taken);
    ku_doorbell_close(doorbell);
    return status;
}

/* Runs a trial in a child: its exit code, or -1 if it hung or crashed. */
static int run_trial(const char *spec)
{
    int status = 0;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        if (!freopen("/dev/null", "w", stderr))
            _exit(99);
        ku_fault_set(spec);
        const struct ku_job_opts opts = {.hosts = "2,1,1", .join_timeout_ns = TIMEOUT_NS};
        status = ku_job_threads(&client, 4, &opts, use_job, NULL);
        exit(-status); /* leaks are looked for */
    }
    assert_true(pid > 0 && waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_nth(void **state)
{
    static const char *const kinds[] = {"mem", "os"};
    (void)state;
    for (int k = 0; k < 2; k++) {
        int n_failed = 0;
        for (int n = 1; n < 400; n += n < 30 ? 1 : n / 10) { /* the later ones are the same again */
            char spec[32];
            snprintf(spec, sizeof spec, "%s:%d", kinds[k], n);
            int code = run_trial(spec);
            if (code != 0 && (code < 2 || code > 14))
                fail_msg("%s: exit code %d", spec, code);
            n_failed += code != 0;
        }
        assert_true(n_failed > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_nth)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
