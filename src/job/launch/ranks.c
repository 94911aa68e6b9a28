/* SPDX-License-Identifier: Apache-2.0 */
#include "job/launch/ranks.h"

#include "base/clock.h"
#include "base/env.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/os/ipc.h"
#include "base/os/process.h"
#include "job/private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    /*
     * From a failure to SIGKILL. The kernel may take the other half of the 1 s in which the job
     * ends.
     */
    GRACE_NS = 500 * 1000 * 1000
};

static void set_number(const char *name, long long value)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", value);
    setenv(name, text, 1);
}

static void set_text(const char *name, const char *value)
{
    if (value)
        setenv(name, value, 1);
}

static void set_environment(const struct ku_ranks *l, int local)
{
    char id[24];
    for (int i = 0; l->env && l->env[i]; i++)
        putenv(l->env[i]);
    snprintf(id, sizeof id, "%016llx",
             (unsigned long long)(l->world_id ? l->world_id : l->seg->job_id));
    setenv("KUMI_JOB", id, 1);
    set_number("KUMI_RANK", l->first_rank + local);
    set_number("KUMI_WORLD_SIZE", l->n_job);
    set_number("KUMI_LOCAL_RANK", local);
    set_number("KUMI_LOCAL_WORLD_SIZE", l->n);
    set_number("KUMI_CONTROL_FD", l->segment_fd);
    set_number("KUMI_THREADS", l->threads);
    set_text("KUMI_HOST", l->pretends ? l->host : NULL);
    set_text("KUMI_RENDEZVOUS", l->root);
    set_text("KUMI_SECRET", l->secret);
    set_number("RANK", l->first_rank + local);
    set_number("WORLD_SIZE", l->n_job);
    set_number("LOCAL_RANK", local);
    set_number("LOCAL_WORLD_SIZE", l->n);
    set_number("GROUP_RANK", l->host_index);
    set_number("GROUP_WORLD_SIZE", l->n_hosts);
    setenv("MASTER_ADDR", l->master, 1);
    set_number("MASTER_PORT", l->port);
}

/*
 * Standard files of a rank. A background process group that reads its terminal is stopped; ranks of
 * an agent get no input.
 */
static void set_files(const struct ku_ranks *l, int local)
{
    if (l->std || isatty(0)) {
        int null = ku_os_open("/dev/null", O_RDONLY, 0);
        if (null >= 0)
            dup2(null, 0);
    }
    if (l->std) {
        dup2(l->std[local][0], 1);
        dup2(l->std[local][1], 2);
    }
}

/*
 * Runs in the new process. Never returns.
 */
static void become_rank(const struct ku_ranks *l, int rank)
{
    setpgid(0, l->group);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != l->launcher)
        _exit(128 + SIGKILL);
    ku_os_close(l->guard_fd);
    set_files(l, rank);
    ku_pin_apply(l->pin, rank);
    set_environment(l, rank);
    sigprocmask(SIG_SETMASK, &l->old, NULL);
    if (l->fn) {
        ku_os_close(l->exec_fd[1]);
        int result = l->fn(l->arg);
        fflush(NULL);
        exit(result < 0 ? -result : result);
    }
    ku_os_keep_on_exec(l->segment_fd, 1);
    execvp(l->argv[0], l->argv);
    int why = errno;
    KU_IGNORE(ku_os_write_full(l->exec_fd[1], &why, sizeof why), "the process ends");
    _exit(127);
}

/*
 * The guard process. Each read gives the ranks' process group; at the end of file the launcher is
 * dead.
 */
static void guard(int fd)
{
    pid_t group = 0, next;
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    setpgid(0, 0);
    while (ku_os_read_full(fd, &next, sizeof next) == (ssize_t)sizeof next)
        group = next;
    if (group > 0)
        kill(-group, SIGKILL);
    _exit(0);
}

static int start_guard(struct ku_ranks *l)
{
    int p[2];
    if (ku_os_pipe(p) < 0)
        return KU_ERR(KUMI_ENOMEM, "launch: pipe: %s", strerror(errno));
    pid_t pid = ku_os_fork();
    if (pid == 0) {
        ku_os_close(p[1]);
        guard(p[0]);
    }
    ku_os_close(p[0]);
    if (pid < 0) {
        ku_os_close(p[1]);
        return KU_ERR(KUMI_ENOMEM, "launch: guard process: %s", strerror(errno));
    }
    l->guard = pid;
    l->guard_fd = p[1];
    return 0;
}

/* The write fails if the guard was killed (SIGPIPE is blocked). reap_guard replaces it. */
static void tell_guard(const struct ku_ranks *l)
{
    KU_IGNORE(ku_os_write_full(l->guard_fd, &l->group, sizeof l->group),
              "reap_guard replaces a guard that was killed");
}

static void end_guard(struct ku_ranks *l)
{
    if (l->guard > 0) {
        kill(l->guard, SIGKILL); /* SIGKILL works also if it is stopped */
        waitpid(l->guard, NULL, 0);
        ku_os_close(l->guard_fd);
    }
    l->guard = 0;
    l->guard_fd = -1;
}

static void reap_guard(struct ku_ranks *l)
{
    if (l->guard <= 0 || waitpid(l->guard, NULL, WNOHANG) != l->guard)
        return;
    ku_os_close(l->guard_fd);
    l->guard = 0;
    l->guard_fd = -1;
    if (start_guard(l) < 0) {
        KU_LOG(LAUNCH, WARN,
               "%s: it was killed and cannot be replaced; if the launcher is killed too, children "
               "of the ranks keep running",
               ku_err_get()->text);
        return;
    }
    KU_LOG(LAUNCH, WARN, "the guard process was killed; another has taken its place");
    tell_guard(l);
}

int ku_ranks_start(struct ku_ranks *l)
{
    int why = 0;
    KU_TRY(start_guard(l));
    if (ku_os_pipe(l->exec_fd) < 0)
        return KU_ERR(KUMI_ENOMEM, "launch: pipe: %s", strerror(errno));
    fflush(NULL); /* else every rank prints the buffered output */
    for (int r = 0; r < l->n; r++) {
        pid_t pid = ku_os_fork();
        if (pid == 0)
            become_rank(l, r);
        if (pid < 0)
            return KU_ERR(KUMI_ENOMEM, "launch: rank %d of %d: %s; start fewer ranks",
                          l->first_rank + r, l->n_job, strerror(errno));
        if (!l->group) {
            l->group = pid;
            tell_guard(l);
        }
        setpgid(pid, l->group);
        l->pid[r] = pid;
        l->n_alive++;
    }
    ku_os_close(l->exec_fd[1]);
    l->exec_fd[1] = -1;
    if (l->argv && ku_os_read_full(l->exec_fd[0], &why, sizeof why) == (ssize_t)sizeof why)
        return KU_ERR(KUMI_EINVAL, "launch: %s: %s; give a program that can be executed",
                      l->argv[0], strerror(why));
    return 0;
}

/* The exit code of a rank, as a shell reports it */
static int code_of(int status)
{
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/*
 * Whether a rank ended because it was asked to: by the forwarded signal, or as a training run that
 * has saved its state.
 */
static bool is_stop(const struct ku_ranks *l, int rank, int status)
{
    uint32_t state = atomic_load(&ku_segment_line(l->seg, rank)->state);
    if (!WIFSIGNALED(status) && WEXITSTATUS(status) == -KUMI_ESTOPPED)
        return l->stops.first || state == KU_RANK_LEFT;
    const int sig = code_of(status) - 128;
    return sig > 0 && sig < 32 && l->stops.asked >> sig & 1;
}

/* Make the stop the root cause, for ranks that still wait for the one that ended. */
static void note_stop(struct ku_ranks *l, int status)
{
    l->is_stopped = 1;
    l->code = l->code ? l->code : -KUMI_ESTOPPED;
    if (code_of(status) == -KUMI_ESTOPPED) /* the rank has printed it */
        return;
    KU_ERR_SCOPE(KUMI_ESTOPPED, KUMI_SCOPE_JOB, "stopped: signal %d (%s)", l->stops.first,
                 strsignal(l->stops.first));
    if (ku_segment_abort(l->seg, ku_err_get(), -1)) {
        atomic_store(&l->seg->root_said, 1);
        if (l->say)
            l->say(l, 1);
        else
            ku_log_line("kumi: %s", ku_err_get()->text);
    }
}

/*
 * Print the root cause. If the root cause was set without being printed, it replaces this thread's
 * record.
 */
static void name_failure(struct ku_ranks *l)
{
    struct kumi_error root;
    atomic_store(&l->seg->root_said, 1);
    l->n_named = 1;
    if (ku_segment_root(l->seg, &root) < 0)
        ku_err_put(&root);
    if (l->say)
        l->say(l, 0);
    else
        ku_err_print();
    ku_flight_dump(l->seg, l->client);
}

/* Record the death of a rank, in a job of several hosts with the host's name. */
static void record_death(struct ku_ranks *l, int local, int status, const char *how)
{
    char last[160];
    KU_IGNORE(ku_err_death(l->seg, l->client, local, status, how), "it writes the record");
    if (l->n_hosts == 1)
        return;
    ku_flight_last(l->seg, l->client, local, last, sizeof last);
    KU_ERR_SCOPE(status, KUMI_SCOPE_JOB, "rank died: rank %d on host %s: %s%s%s",
                 l->first_rank + local, l->host, how, last[0] ? "; its last operation: " : "",
                 last);
}

/*
 * Record the failure of a rank. It becomes the root cause unless a rank has set one. status 0: it
 * died, but how is unknown.
 */
static void blame(struct ku_ranks *l, int rank, int status)
{
    char how[64];
    int64_t now = ku_clock_ns();
    int code = WIFSIGNALED(status) ? 0 : WEXITSTATUS(status);
    int is_own = ku_exit_is_ours(code);
    l->n_failed += !l->kill_ns || now < l->kill_ns;
    l->kill_ns = l->kill_ns ? l->kill_ns : now + GRACE_NS;
    if (!l->code)
        l->code = code ? code : -KUMI_EPEER;
    if (code)
        snprintf(how, sizeof how, "ended with exit code %d", code);
    else if (status == 0)
        snprintf(how, sizeof how, "killed or crashed");
    else
        snprintf(how, sizeof how, "killed by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    record_death(l, rank, is_own ? -code : KUMI_EPEER, how);
    const bool is_root = ku_segment_abort(l->seg, ku_err_get(), l->first_rank + rank);
    if (is_own && l->is_kumi)
        return;
    if (!is_root)
        l->is_unnamed = true;
    else if (!atomic_load(&l->seg->root_said))
        name_failure(l);
}

/*
 * A rank that sets the root cause prints it afterwards, and other ranks may end in between. So the
 * launcher prints the cause of another process only after the last rank has ended.
 */
static void name_at_end(struct ku_ranks *l)
{
    if (l->n_alive == 0 && l->is_unnamed && !atomic_load(&l->seg->root_said))
        name_failure(l);
}

static void reap(struct ku_ranks *l, int r)
{
    int status;
    if (!l->pid[r] || waitpid(l->pid[r], &status, WNOHANG) != l->pid[r])
        return;
    l->pid[r] = 0;
    l->n_alive--;
    l->ended[r] = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    if (l->reaped)
        l->reaped(l, r);
    if (r == l->dying)
        l->dying = -1;
    else if (status && is_stop(l, r, status))
        note_stop(l, status);
    else if (status)
        blame(l, r, status);
}

/*
 * A rank that was killed gives up its life mutex at once, but can be reaped, and its connections
 * close, only when its memory is free: 50 ms for each GiB. No rank may be there to find it.
 */
static void find_death(struct ku_ranks *l)
{
    for (int r = 0; r < l->n && !atomic_load(&l->seg->abort_word) && !l->kill_ns; r++) {
        int status = 0;
        if (!l->pid[r] || l->stops.first || !ku_segment_find_death(ku_segment_line(l->seg, r)))
            continue;
        for (int i = 0; i < 5 && status == 0; i++) {
            usleep(1000); /* its main thread may not have ended yet */
            status = ku_os_exit_status(l->pid[r]);
        }
        l->dying = r;
        blame(l, r, status);
    }
}

void ku_ranks_reap(struct ku_ranks *l, pid_t first)
{
    for (int r = 0; r < l->n && first > 0; r++)
        if (l->pid[r] == first)
            reap(l, r);
    for (int r = 0; r < l->n; r++)
        reap(l, r);
    name_at_end(l);
    reap_guard(l);
}

static void forward(struct ku_ranks *l, int sig)
{
    for (int r = 0; r < l->n; r++)
        if (l->pid[r] && !atomic_load(&ku_segment_line(l->seg, r)->heeds_stop))
            kill(l->pid[r], sig);
}

void ku_ranks_kill(struct ku_ranks *l, int sig)
{
    KU_ERR_SCOPE(KUMI_ESTOPPED, KUMI_SCOPE_JOB, "stopped: a second signal %d (%s)", sig,
                 strsignal(sig));
    if (ku_segment_abort(l->seg, ku_err_get(), -1)) {
        atomic_store(&l->seg->root_said, 1);
        if (!l->say) /* of an agent: the launcher prints it */
            ku_err_print();
    }
    l->second_signal = sig;
    l->kill_ns = ku_clock_ns();
}

void ku_ranks_signal(struct ku_ranks *l, int sig)
{
    const enum ku_stop meaning = ku_stops_take(&l->stops, sig, ku_clock_ns());
    if (meaning == KU_STOP_ASKS) {
        ku_segment_stop(l->seg, sig);
        forward(l, sig);
    } else if (meaning == KU_STOP_ENDS) {
        ku_ranks_kill(l, sig);
    }
}

void ku_ranks_end(struct ku_ranks *l, const struct kumi_error *error, int culprit)
{
    if (ku_segment_abort(l->seg, error, culprit))
        atomic_store(&l->seg->root_said, 1);
    l->kill_ns = l->kill_ns ? l->kill_ns : ku_clock_ns() + GRACE_NS;
}

void ku_ranks_check(struct ku_ranks *l)
{
    find_death(l);
    if (atomic_load(&l->seg->abort_word) && !l->kill_ns && !l->is_stopped)
        l->kill_ns = ku_clock_ns() + GRACE_NS;
    if (l->kill_ns && ku_clock_ns() >= l->kill_ns)
        kill(-l->group, SIGKILL);
}

int ku_ranks_code(const struct ku_ranks *l)
{
    struct kumi_error root;
    if (l->second_signal)
        return 128 + l->second_signal;
    const int status = ku_segment_root(l->seg, &root);
    const int local = ku_segment_culprit(l->seg) - l->first_rank;
    if (status == KUMI_EPEER && local >= 0 && local < l->n && l->ended[local])
        return l->ended[local];
    return status < 0 ? -status : l->code;
}

int ku_ranks_prepare(struct ku_ranks *l)
{
    const int cpus = ku_os_n_cpus(), given = ku_env_threads();
    uint64_t job_id;
    l->launcher = getpid();
    l->dying = -1;
    KU_TRY(ku_env_check_threads());
    if (l->pinning == KU_PIN_AUTO)
        KU_TRY(ku_pin_setting(&l->pinning));
    if (l->n < 1 || l->n > KU_MAX_LOCAL)
        return KU_ERR(KUMI_EINVAL, "rank count: -n: %d; give a number from 1 to %d", l->n,
                      KU_MAX_LOCAL);
    if (l->threads <= 0)
        l->threads = given ? given : cpus / l->n > 0 ? cpus / l->n : 1;
    if (getrandom(&job_id, sizeof job_id, 0) != (ssize_t)sizeof job_id)
        job_id = (uint64_t)ku_clock_ns() ^ (uint64_t)getpid() << 40;
    l->pid = ku_calloc((size_t)l->n, sizeof *l->pid);
    l->ended = ku_calloc((size_t)l->n, sizeof *l->ended);
    if (!l->pid || !l->ended)
        return KUMI_ENOMEM;
    l->pin = ku_pin_create(l->pinning, l->n, l->threads);
    KU_TRY(ku_segment_create(l->client, l->n, job_id, &l->segment_fd, &l->seg));
    ku_segment_set_ranks(l->seg, l->first_rank, l->n_job);
    return 0;
}

void ku_ranks_release(struct ku_ranks *l, int is_killed)
{
    int fds[] = {l->segment_fd, l->exec_fd[0], l->exec_fd[1]};
    if (l->n_alive || l->kill_ns || l->stops.first || is_killed) { /* and the ranks' children */
        if (l->group > 0)
            kill(-l->group, SIGKILL);
        for (int r = 0; r < l->n; r++)
            if (l->pid && l->pid[r])
                waitpid(l->pid[r], NULL, 0);
    }
    end_guard(l);
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0)
            ku_os_close(fds[i]);
    ku_pin_destroy(l->pin);
    ku_segment_unmap(l->seg);
    ku_free(l->pid);
    ku_free(l->ended);
}

static void own_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGCHLD);
    sigaddset(set, SIGPIPE); /* from a write to a killed guard, or of a message */
    sigaddset(set, SIGXFSZ);
}

void ku_ranks_block(struct ku_ranks *l)
{
    sigset_t ours;
    l->segment_fd = l->guard_fd = l->exec_fd[0] = l->exec_fd[1] = -1;
    own_signals(&ours);
    ku_os_stop_signals(&l->waited);
    sigorset(&l->waited, &l->waited, &ours);
    sigprocmask(SIG_BLOCK, &l->waited, &l->old);
}

void ku_ranks_unblock(struct ku_ranks *l)
{
    struct timespec now = {0};
    sigset_t ours;
    own_signals(&ours);
    while (sigtimedwait(&ours, NULL, &now) > 0) /* the caller must not receive them */
        continue;
    sigprocmask(SIG_SETMASK, &l->old, NULL);
}
