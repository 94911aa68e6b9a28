/* SPDX-License-Identifier: Apache-2.0 */
/* links: comm job tensor base */
/* Ranks as processes that die, stop, leave or are stopped, and what the others and the launcher
 * make of it. */
#include "suite.h"

#include "base/clock.h"
#include "base/os/process.h"
#include "comm/private.h"
#include "comm/world.h"
#include "job/launch.h"
#include "kumi/launch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Usual: 50 ms (one sleep) after a death, 2 s after a rank was stopped, 10 ms to end. */
static const int64_t LIMIT_NS = INT64_C(60000000000);

/* Seen by the test and all ranks. */
struct shared {
    _Atomic int64_t struck_ns;     /* when the fault happened */
    _Atomic int64_t noticed_ns[8]; /* when a rank's wait returned */
    _Atomic int status[8];
    char text[8][440];
    _Atomic int pid[8];
    _Atomic int joined;
    int victim, form, calls;
    bool is_poll; /* in place of waits */
};

static struct shared *make_shared(void)
{
    void *at = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                    -1, 0);
    assert_true(at != MAP_FAILED);
    return at;
}

/* A SIGKILL from outside, at no particular place in the code. */
static void strike_later(struct shared *s)
{
    pid_t victim = getpid();
    if (fork())
        return;
    usleep((useconds_t)(s->calls * 377 % 5000));
    s->struck_ns = ku_clock_ns();
    kill(victim, SIGKILL);
    _exit(0);
}

/* All-reduces until something fails; the victim strikes itself at its n-th. */
static int run_until_fault(void *arg)
{
    struct shared *s = arg;
    struct ku_job *job;
    /* the default where no time-out is awaited: a busy machine must not cause one */
    struct ku_job_opts opts = {.timeout_ns = s->form == 1 ? 2000000000 : 0};
    float *x = calloc(100000, sizeof *x);
    int status = ku_comm_join(&opts, &job);
    if (status < 0)
        return status;
    s->pid[job->rank] = getpid();
    s->joined++;
    for (int i = 0; !status; i++) {
        if (job->rank == s->victim && i == s->calls) {
            s->struck_ns = ku_clock_ns();
            if (s->form == 0)
                raise(SIGKILL);
            else if (s->form == 1)
                raise(SIGSTOP);
            else if (s->form == 4)
                strike_later(s);
            else
                exit(s->form == 2 ? 0 : 57);
        }
        struct ku_coll coll = {
            .kind = KU_COLL_ALL_REDUCE, .in = x, .out = x, .count = i % 2 ? 1 : 100000};
        status = (s->is_poll ? suite_poll : ku_coll_run)(job->world, &coll);
    }
    s->noticed_ns[job->rank] = ku_clock_ns();
    s->status[job->rank] = status;
    memcpy(s->text[job->rank], ku_err_get()->text, sizeof s->text[0]);
    free(x);
    KU_IGNORE(ku_comm_leave(job), "the first failure is returned");
    return status;
}

struct fault_row {
    int form, n, victim, status;
    const char *says;
    bool is_poll;
};

static void test_faults(void **state)
{
    static const struct fault_row rows[] = {
        {0, 2, 1, KUMI_EPEER, "rank 1: killed", false},
        {0, 4, 0, KUMI_EPEER, "rank 0: killed", false},
        {0, 8, 5, KUMI_EPEER, "rank 5: killed", false},
        {1, 3, 2, KUMI_ETIMEDOUT, "time-out: rank 2", false},
        {1, 3, 0, KUMI_ETIMEDOUT, "is stopped: kill -CONT", true},
        {2, 3, 1, KUMI_EMISMATCH, "rank 1 left the job", false},
        {2, 3, 1, KUMI_EMISMATCH, "rank 1 left the job", true},
        {4, 2, 0, KUMI_EPEER, "rank 0: killed", false},
        {4, 4, 2, KUMI_EPEER, "rank 2: killed", false},
        {3, 3, 1, KUMI_EPEER, "rank 1: ended with exit code 57", false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct fault_row *row = &rows[i];
        for (int calls = 1; calls < 40; calls += row->form == 0 || row->form == 4 ? 13 : 50) {
            struct shared *s = make_shared();
            s->victim = row->victim, s->form = row->form, s->calls = calls;
            s->is_poll = row->is_poll;
            int status = kumi_launch(run_until_fault, s, row->n);
            int64_t end = ku_clock_ns();
            assert_int_equal(status, row->form == 3 ? -57 : row->status);
            for (int r = 0; r < row->n; r++) {
                if (r == row->victim)
                    continue;
                assert_int_equal(s->status[r], row->status);
                assert_true(s->noticed_ns[r] - s->struck_ns < LIMIT_NS);
                if (!strstr(s->text[r], row->says))
                    fail_msg("rank %d: \"%s\" lacks \"%s\"", r, s->text[r], row->says);
                assert_true(strstr(s->text[r], "last operation") || row->form == 2);
            }
            for (int r = 0; r < row->n; r++)
                assert_true(kill(s->pid[r], 0) < 0 && errno == ESRCH);
            assert_true(end - s->struck_ns < LIMIT_NS);
            munmap(s, sizeof *s);
        }
    }
}

/* Rank 0 has set the root cause, and prints it only after the other ranks were reaped. */
static int print_late(void *arg)
{
    struct shared *s = arg;
    struct ku_job *job;
    KU_TRY(ku_comm_join(NULL, &job));
    s->pid[job->rank] = getpid();
    s->joined++;
    if (job->rank > 0) {
        KU_IGNORE(ku_job_await_cause(job, LIMIT_NS), "the test looks at what is printed");
        exit(57);
    }
    while (s->joined < job->n)
        usleep(500);
    KU_ERR_SCOPE(KUMI_EMISMATCH, KUMI_SCOPE_JOB, "late: the cause");
    ku_segment_abort(job->seg, ku_err_get(), 0);
    for (int r = 1; r < job->n; r++)
        while (kill(s->pid[r], 0) == 0)
            usleep(500);
    if (!atomic_exchange(&job->seg->root_said, 1))
        ku_err_print();
    s->calls = 1;
    exit(-KUMI_EMISMATCH);
}

/* The root cause is printed once, and ranks that end because of it are not counted as failures. */
static void test_printed_late(void **state)
{
    struct shared *s = make_shared();
    char text[512];
    (void)state;
    /* A rank has 0.5 s to end after the first failure; on a busy machine rank 0 may be killed. */
    for (int i = 0; i < 20 && !s->calls; i++) {
        FILE *file = tmpfile();
        const int old = dup(2);
        assert_true(file && old >= 0 && dup2(fileno(file), 2) == 2);
        s->joined = 0;
        const int status = kumi_launch(print_late, s, 4);
        assert_int_equal(dup2(old, 2), 2);
        close(old);
        assert_int_equal(status, KUMI_EMISMATCH);
        rewind(file);
        text[fread(text, 1, sizeof text - 1, file)] = '\0';
        fclose(file);
    }
    assert_true(s->calls);
    assert_string_equal(text, "kumi: error: late: the cause\n");
    munmap(s, sizeof *s);
}

static int describe(struct ku_job *job, void *arg)
{
    const struct {
        struct ku_coll coll;
        const char *is;
    } rows[] = {{{.kind = KU_COLL_BARRIER, .name = ""}, "barrier (work 0 of comm world)"},
                {{.kind = KU_COLL_BARRIER, .name = "h.3"}, "h.3: barrier (work 0 of comm world)"},
                {{.kind = KU_COLL_ALL_REDUCE, .name = ""},
                 "all_reduce f32 x 0 sum (work 0 of comm world)"}};
    (void)arg;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct ku_work work;
        char text[160];
        KU_TRY(ku_work_init(&work, job->world, &rows[i].coll));
        ku_work_describe(&work, text, sizeof text);
        assert_string_equal(text, rows[i].is);
    }
    return 0;
}

/* A message names the collective also where the program's instruction has no name. */
static void test_names(void **state)
{
    (void)state;
    assert_int_equal(ku_comm_threads(1, NULL, describe, NULL), 0);
}

static int run_forever(void *arg)
{
    struct shared *s = arg;
    struct ku_job *job;
    KU_TRY(ku_comm_join(NULL, &job));
    s->pid[job->rank] = getpid();
    s->joined++;
    if (s->form == 1)
        KU_TRY(ku_job_heed_signals(job));
    for (;;) {
        int64_t stop = ku_job_stop(job), any = 0;
        struct ku_coll coll = {.kind = KU_COLL_ALL_REDUCE,
                               .dtype = KUMI_I64,
                               .reduce = KUMI_MAX,
                               .in = &stop,
                               .out = &any,
                               .count = 1};
        int status = ku_coll_run(job->world, &coll);
        if (status < 0)
            return status;
        if (any && s->form == 1) {
            status = ku_comm_leave(job);
            return status < 0 ? status : KUMI_ESTOPPED;
        }
    }
}

/* Running: neither gone nor a zombie that its new parent has yet to reap. */
static int is_running(int pid)
{
    char path[64], line[256] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "r");
    if (!f)
        return 0;
    size_t n = fread(line, 1, sizeof line - 1, f);
    fclose(f);
    const char *state = n ? strrchr(line, ')') : NULL;
    return state && state[2] != 'Z' && state[2] != 'X';
}

static int wait_gone(const struct shared *s, int n)
{
    int64_t from = ku_clock_ns();
    int n_left = n;
    while (n_left && ku_clock_ns() - from < LIMIT_NS) {
        n_left = 0;
        for (int r = 0; r < n; r++)
            n_left += is_running(s->pid[r]);
        usleep(5000);
    }
    return n_left;
}

/* A launcher of its own process, which the test then strikes. */
static pid_t start_launcher(struct shared *s, int n)
{
    pid_t pid = fork();
    if (pid == 0)
        _exit(-kumi_launch(run_forever, s, n));
    while (s->joined < n)
        usleep(1000);
    usleep(20000);
    return pid;
}

static void test_launcher_killed(void **state)
{
    struct shared *s = make_shared();
    (void)state;
    pid_t pid = start_launcher(s, 4);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(wait_gone(s, 4), 0);
    munmap(s, sizeof *s);
}

static void test_signals(void **state)
{
    int status;
    (void)state;
    struct shared *s = make_shared();
    s->form = 1; /* heeded: all ranks leave at one step */
    pid_t pid = start_launcher(s, 3);
    kill(pid, SIGTERM);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), -KUMI_ESTOPPED);
    s->form = 0; /* not heeded: passed on, and the ranks end by it; none of them failed */
    s->joined = 0;
    pid = start_launcher(s, 3);
    kill(pid, SIGTERM);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(WEXITSTATUS(status), -KUMI_ESTOPPED);
    munmap(s, sizeof *s);
}

/*
 * A rank that is stopped in the free of `x` may not have read its flags for the last time. The
 * other member returns only when it has, so the next comm of the slot, without that rank, is safe
 * from it.
 */
static int free_beside_stopped(void *arg)
{
    struct shared *s = arg;
    struct ku_job *job;
    struct ku_comm *even, *x, *y;
    KU_TRY(ku_comm_join(NULL, &job));
    const int me = job->rank;
    s->pid[me] = getpid();
    KU_TRY(ku_comm_split(job->world, me % 2, me, "even", &even));
    KU_TRY(ku_comm_split(job->world, me < 2 ? 0 : -1, me, "x", &x));
    s->joined += me == 1;
    if (me == 0) {
        while (!s->joined || !atomic_load(&ku_segment_line(job->seg, 1)->asleep))
            usleep(100);
        kill(s->pid[1], SIGSTOP);
        while (!ku_os_is_stopped(s->pid[1]))
            usleep(100);
        if (fork() == 0) {
            usleep(200000);
            kill(s->pid[1], SIGCONT);
            _exit(0);
        }
    }
    KU_TRY(ku_comm_destroy(x));
    if (me != 1) {
        KU_TRY(ku_comm_split(even, 0, me, "y", &y));
        for (int i = 0; i < 2 * KU_RING; i++) {
            float sum[2] = {1, 2};
            const struct ku_coll coll = {
                .kind = KU_COLL_ALL_REDUCE, .in = sum, .out = sum, .count = 2};
            KU_TRY(ku_coll_run(y, &coll));
        }
        KU_TRY(ku_comm_destroy(y));
    }
    return ku_comm_leave(job);
}

static void test_free_waits(void **state)
{
    struct shared *s = make_shared();
    (void)state;
    assert_int_equal(kumi_launch(free_beside_stopped, s, 3), 0);
    munmap(s, sizeof *s);
}

static int run_argument(void *arg)
{
    (void)arg;
    return 0;
}

static void test_refusals(void **state)
{
    static const char *const bad[] = {"0", "-1", "100000", "x", "", "3x", "1e3"};
    char *const missing[] = {(char *)(uintptr_t) "/nonexistent/program", NULL};
    int n, code;
    (void)state;
    assert_int_equal(kumi_launch(run_argument, NULL, 0), KUMI_EINVAL);
    assert_int_equal(kumi_launch(run_argument, NULL, 100000), KUMI_EINVAL);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(ku_launch_parse_n(bad[i], &n), KUMI_EINVAL);
    assert_int_equal(ku_launch_parse_n("512", &n), 0);
    assert_int_equal(n, 512);
    assert_int_equal(ku_launch_parse_n("auto", &n), 0);
    assert_int_equal(ku_launch(&ku_comm_client, missing, 2, NULL, &code), KUMI_EINVAL);
    assert_non_null(strstr(ku_err_get()->text, "/nonexistent/program"));
    setenv("RANK", "1", 1);
    setenv("WORLD_SIZE", "4", 1);
    assert_int_equal(kumi_launch(run_argument, NULL, 2), KUMI_EINVAL);
    assert_non_null(strstr(ku_err_get()->text, "the environment (RANK and WORLD_SIZE) says 4"));
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
}

static void test_exit_codes(void **state)
{
    static const int codes[] = {0, 1, 3, 57, 255};
    int code;
    (void)state;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        char script[128];
        snprintf(script, sizeof script,
                 "test $RANK.$WORLD_SIZE.$LOCAL_RANK.$LOCAL_WORLD_SIZE != 1.2.1.2 || exit %d",
                 codes[i]);
        char shell[] = "/bin/sh", flag[] = "-c";
        char *const argv[] = {shell, flag, script, NULL};
        assert_int_equal(ku_launch(&ku_comm_client, argv, 2, NULL, &code), 0);
        assert_int_equal(code, codes[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),           cmocka_unit_test(test_faults),
        cmocka_unit_test(test_launcher_killed), cmocka_unit_test(test_signals),
        cmocka_unit_test(test_refusals),        cmocka_unit_test(test_exit_codes),
        cmocka_unit_test(test_printed_late),    cmocka_unit_test(test_free_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
