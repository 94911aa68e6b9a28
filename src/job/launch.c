/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The launcher.
 *
 *     create the segment ─> fork the guard ─> fork n ranks ─> sigtimedwait loop ─> release
 *                                                              reap, forward signals
 *
 * It moves no data and owns no thread. When it dies, the kernel sends SIGKILL to the ranks
 * (PDEATHSIG). Their children are killed by the guard: it blocks in a read on a pipe whose only
 * other end the launcher holds, and on end of file it kills the ranks' process group. A guard that
 * was killed is replaced.
 *
 * A rank fails if it ends with a code other than 0, unless it ended by the signal that asked the
 * job to stop. Ranks of kumi print the reason for a code of docs/reference/exit-codes.md
 * themselves. For other programs the launcher names the first rank that failed and counts the
 * others.
 */
#include "job/launch.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/os/ipc.h"
#include "base/os/process.h"
#include "base/log.h"
#include "job/pin.h"
#include "job/private.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    /*
     * From a failure to SIGKILL. The kernel may take the other half of the 1 s in which the job
     * ends.
     */
    GRACE_NS = 500 * 1000 * 1000
};

struct launch {
    const struct ku_job_client *client;
    char *const *argv;
    int (*fn)(void *arg);
    void *arg;
    int n, n_alive, threads, port;
    int is_kumi;                  /* argv is kumi itself */
    pid_t *pid;                   /* 0: has ended */
    pid_t group, launcher, guard; /* guard 0: none */
    struct ku_segment *seg;
    int segment_fd, guard_fd, exec_fd[2];
    uint64_t job_id;
    sigset_t waited, old;
    int code;              /* exit code of the first failure */
    int n_failed, n_named; /* ranks that failed before kill_ns; 1: a failure was printed */
    /*
     * A rank ended by first_signal. The others may take their time.
     */
    int is_stopped;
    int first_signal; /* stop signal */
    int64_t first_ns, kill_ns;
    struct ku_pin *pin;
};

int ku_launch_parse_n(const char *text, int *n)
{
    char *end;
    if (!strcmp(text, "auto")) {
        int cpus = ku_os_n_cpus();
        *n = cpus < KU_MAX_LOCAL ? cpus : KU_MAX_LOCAL;
        return 0;
    }
    errno = 0;
    long x = strtol(text, &end, 10);
    if (errno || end == text || *end || x < 1 || x > KU_MAX_LOCAL)
        return KU_ERR(KUMI_EINVAL, "rank count: -n: %s; give a number from 1 to %d, or auto", text,
                      KU_MAX_LOCAL);
    *n = (int)x;
    return 0;
}

/*
 * A free port of the loopback interface, for programs that open their own connection there. kumi
 * does not bind it.
 */
static int pick_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), port = 29500;
    if (fd < 0)
        return port;
    if (!bind(fd, (const struct sockaddr *)&a, sizeof a) &&
        !getsockname(fd, (struct sockaddr *)&a, &len))
        port = ntohs(a.sin_port);
    ku_os_close(fd);
    return port;
}

static void set_number(const char *name, long long value)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", value);
    setenv(name, text, 1);
}

static void set_environment(const struct launch *l, int rank)
{
    char id[24];
    snprintf(id, sizeof id, "%016llx", (unsigned long long)l->job_id);
    setenv("KUMI_JOB", id, 1);
    set_number("KUMI_RANK", rank);
    set_number("KUMI_WORLD_SIZE", l->n);
    set_number("KUMI_CONTROL_FD", l->segment_fd);
    set_number("KUMI_THREADS", l->threads);
    set_number("RANK", rank);
    set_number("WORLD_SIZE", l->n);
    set_number("LOCAL_RANK", rank);
    set_number("LOCAL_WORLD_SIZE", l->n);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_number("MASTER_PORT", l->port);
}

/*
 * Runs in the new process. Never returns.
 */
static void become_rank(const struct launch *l, int rank)
{
    setpgid(0, l->group);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != l->launcher)
        _exit(128 + SIGKILL);
    ku_os_close(l->guard_fd);
    if (isatty(0)) { /* a background process group that reads its terminal is stopped */
        int null = ku_os_open("/dev/null", O_RDONLY, 0);
        if (null >= 0)
            dup2(null, 0);
    }
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

static int start_guard(struct launch *l)
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
static void tell_guard(const struct launch *l)
{
    KU_IGNORE(ku_os_write_full(l->guard_fd, &l->group, sizeof l->group),
              "reap_guard replaces a guard that was killed");
}

static void end_guard(struct launch *l)
{
    if (l->guard > 0) {
        kill(l->guard, SIGKILL); /* SIGKILL works also if it is stopped */
        waitpid(l->guard, NULL, 0);
        ku_os_close(l->guard_fd);
    }
    l->guard = 0;
    l->guard_fd = -1;
}

static void reap_guard(struct launch *l)
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

static int start_ranks(struct launch *l)
{
    int why = 0;
    if (ku_os_pipe(l->exec_fd) < 0)
        return KU_ERR(KUMI_ENOMEM, "launch: pipe: %s", strerror(errno));
    fflush(NULL); /* else every rank prints the buffered output */
    for (int r = 0; r < l->n; r++) {
        pid_t pid = ku_os_fork();
        if (pid == 0)
            become_rank(l, r);
        if (pid < 0)
            return KU_ERR(KUMI_ENOMEM, "launch: rank %d of %d: %s; start fewer ranks", r, l->n,
                          strerror(errno));
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
static bool is_stop(const struct launch *l, int rank, int status)
{
    uint32_t state = atomic_load(&ku_segment_line(l->seg, rank)->state);
    if (!WIFSIGNALED(status) && WEXITSTATUS(status) == -KUMI_ESTOPPED)
        return l->first_signal || state == KU_RANK_LEFT;
    return l->first_signal && code_of(status) == 128 + l->first_signal;
}

/* Make the stop the root cause, for ranks that still wait for the one that ended. */
static void note_stop(struct launch *l, int status)
{
    l->is_stopped = 1;
    l->code = l->code ? l->code : -KUMI_ESTOPPED;
    if (code_of(status) == -KUMI_ESTOPPED) /* the rank has printed it */
        return;
    KU_ERR_SCOPE(KUMI_ESTOPPED, KUMI_SCOPE_JOB, "stopped: signal %d (%s)", l->first_signal,
                 strsignal(l->first_signal));
    if (ku_segment_abort(l->seg, ku_err_get(), -1)) {
        atomic_store(&l->seg->root_said, 1);
        ku_log_line("kumi: %s", ku_err_get()->text);
    }
}

/*
 * Print the root cause. If the root cause was set without being printed, it replaces this thread's
 * record.
 */
static void name_failure(struct launch *l)
{
    struct kumi_error root;
    atomic_store(&l->seg->root_said, 1);
    l->n_named = 1;
    if (ku_segment_root(l->seg, &root) < 0)
        ku_err_put(&root);
    ku_err_print();
    ku_flight_dump(l->seg, l->client);
}

/*
 * Record the failure of a rank. It becomes the root cause unless a rank has set one.
 */
static void blame(struct launch *l, int rank, int status)
{
    char how[64];
    int64_t now = ku_clock_ns();
    int code = WIFSIGNALED(status) ? 0 : WEXITSTATUS(status);
    int is_own = ku_exit_is_ours(code);
    l->n_failed += !l->kill_ns || now < l->kill_ns;
    l->kill_ns = l->kill_ns ? l->kill_ns : now + GRACE_NS;
    if (!l->code)
        l->code = WIFSIGNALED(status) ? -KUMI_EPEER : code;
    if (code)
        snprintf(how, sizeof how, "ended with exit code %d", code);
    else
        snprintf(how, sizeof how, "killed by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    KU_IGNORE(ku_err_death(l->seg, l->client, rank, is_own ? -code : KUMI_EPEER, how),
              "it writes the record of the abort");
    ku_segment_abort(l->seg, ku_err_get(), rank);
    if (!(is_own && l->is_kumi) && !atomic_load(&l->seg->root_said))
        name_failure(l);
}

static void reap(struct launch *l)
{
    for (int r = 0; r < l->n; r++) {
        int status;
        if (!l->pid[r] || waitpid(l->pid[r], &status, WNOHANG) != l->pid[r])
            continue;
        l->pid[r] = 0;
        l->n_alive--;
        if (status && is_stop(l, r, status))
            note_stop(l, status);
        else if (status)
            blame(l, r, status);
    }
    reap_guard(l);
}

static void forward(struct launch *l, int sig)
{
    for (int r = 0; r < l->n; r++)
        if (l->pid[r] && !atomic_load(&ku_segment_line(l->seg, r)->heeds_stop))
            kill(l->pid[r], sig);
}

static void take_signal(struct launch *l, int sig)
{
    int64_t now = ku_clock_ns();
    if (!l->first_signal) {
        l->first_signal = sig;
        l->first_ns = now;
        atomic_store(&l->seg->stop, (uint32_t)sig);
        forward(l, sig);
    } else if (now - l->first_ns >= 1000000000) {
        KU_ERR_SCOPE(KUMI_ESTOPPED, KUMI_SCOPE_JOB, "stopped: a second signal %d (%s)", sig,
                     strsignal(sig));
        if (ku_segment_abort(l->seg, ku_err_get(), -1)) {
            atomic_store(&l->seg->root_said, 1);
            ku_err_print();
        }
        l->code = 128 + sig;
        l->kill_ns = now;
    }
}

/* Run until the last rank has ended. */
static void watch(struct launch *l)
{
    struct timespec slice = {.tv_nsec = KU_SLEEP_NS};
    while (l->n_alive) {
        int sig = sigtimedwait(&l->waited, NULL, &slice);
        if (sig == SIGINT || sig == SIGTERM || sig == SIGHUP)
            take_signal(l, sig);
        reap(l);
        if (atomic_load(&l->seg->abort_word) && !l->kill_ns && !l->is_stopped)
            l->kill_ns = ku_clock_ns() + GRACE_NS;
        if (l->kill_ns && ku_clock_ns() >= l->kill_ns)
            kill(-l->group, SIGKILL);
    }
    if (l->n_named && l->n_failed > 1)
        ku_log_line("kumi: %d more of the %d ranks failed", l->n_failed - 1, l->n);
}

static int exit_code(const struct launch *l)
{
    struct kumi_error root;
    if (l->code >= 128)
        return l->code;
    /* the program's own code says more than "a rank died" */
    if (l->code && (!ku_segment_root(l->seg, &root) || root.status == KUMI_EPEER))
        return l->code;
    int status = ku_segment_root(l->seg, &root);
    return status < 0 ? -status : l->code;
}

static int prepare(struct launch *l, const struct ku_launch_opts *opts)
{
    int cpus = ku_os_n_cpus();
    struct ku_env_job env;
    if (l->n < 1 || l->n > KU_MAX_LOCAL)
        return KU_ERR(KUMI_EINVAL, "rank count: -n: %d; give a number from 1 to %d", l->n,
                      KU_MAX_LOCAL);
    if (ku_env_job(&env) == 0 && env.n > 1)
        return KU_ERR(KUMI_EINVAL,
                      "rank count: -n: %d, but the environment (%s) says %d; use one of the two",
                      l->n, env.launcher, env.n);
    l->threads = opts && opts->threads > 0 ? opts->threads : cpus / l->n > 0 ? cpus / l->n : 1;
    l->port = pick_port();
    l->launcher = getpid();
    l->segment_fd = l->guard_fd = l->exec_fd[0] = l->exec_fd[1] = -1;
    if (getrandom(&l->job_id, sizeof l->job_id, 0) != (ssize_t)sizeof l->job_id)
        l->job_id = (uint64_t)ku_clock_ns() ^ (uint64_t)getpid() << 40;
    l->pid = ku_calloc((size_t)l->n, sizeof *l->pid);
    if (!l->pid)
        return KUMI_ENOMEM;
    if (!(opts && opts->no_pin) && l->n * l->threads <= cpus)
        l->pin = ku_pin_create(l->n, l->threads);
    return ku_segment_create(l->client, l->n, l->job_id, &l->segment_fd, &l->seg);
}

static void release(struct launch *l)
{
    int fds[] = {l->segment_fd, l->exec_fd[0], l->exec_fd[1]};
    if (l->n_alive || l->kill_ns || l->first_signal) { /* also kills the ranks' children */
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
}

static int launch(struct launch *l, const struct ku_launch_opts *opts, int *code)
{
    struct timespec now = {0};
    sigset_t ours;
    sigemptyset(&ours);
    sigaddset(&ours, SIGCHLD);
    sigaddset(&ours, SIGPIPE); /* from a write to a killed guard, or of a message */
    sigaddset(&ours, SIGXFSZ);
    ku_os_stop_signals(&l->waited);
    sigorset(&l->waited, &l->waited, &ours);
    sigprocmask(SIG_BLOCK, &l->waited, &l->old);
    int status = prepare(l, opts);
    KU_TRY_OUT(status);
    KU_TRY_OUT(start_guard(l));
    KU_TRY_OUT(start_ranks(l));
    watch(l);
    *code = exit_code(l);
out:
    release(l);
    while (sigtimedwait(&ours, NULL, &now) > 0) /* the caller must not receive them */
        continue;
    sigprocmask(SIG_SETMASK, &l->old, NULL);
    return status;
}

int ku_launch(const struct ku_job_client *client, char *const *argv, int n,
              const struct ku_launch_opts *opts, int *code)
{
    struct launch l = {
        .client = client, .argv = argv, .n = n, .is_kumi = strcmp(argv[0], KU_LAUNCH_SELF) == 0};
    return launch(&l, opts, code);
}

static int n_threads(void)
{
    char **names;
    int n;
    if (ku_os_list("/proc/self/task", &names, &n) < 0)
        return 0;
    ku_free(names);
    return n;
}

int ku_launch_function(const struct ku_job_client *client, int (*fn)(void *arg), void *arg, int n)
{
    struct launch l = {.client = client, .fn = fn, .arg = arg, .n = n, .is_kumi = 1};
    struct kumi_error error;
    int code = 0;
    if (n_threads() > 1)
        return KU_ERR(KUMI_EINVAL,
                      "launch: this process has %d threads, and fork() keeps only one; launch "
                      "before starting threads, or use kumi run",
                      n_threads());
    KU_TRY(launch(&l, NULL, &code));
    if (!code)
        return 0;
    error = *ku_err_get();
    if (error.status != -code)
        return KU_ERR(-code, "launch: a rank ended with exit code %d", code);
    return ku_err_put(&error);
}
