/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kumi ps run: workers and servers of a training as processes of this host.
 *
 *     this process ──┬── launcher of the servers ──── server 0 .. S-1 (one job: they end together)
 *                    ├── worker 0
 *                    └── worker n-1
 *
 * Servers that were killed are started again, at most --restarts times: they recover, and the
 * workers connect again. A worker that was killed is started again at most --worker-restarts times;
 * after that the others go on without it, or the servers end the run when they wait for it in vain.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/env.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/os/process.h"
#include "cli/ps/ps.h"
#include "kumi/launch.h"
#include "ps/remote/link.h"
#include "ps/run_directory.h"

struct run {
    struct cli *c;
    int64_t n_workers, n_servers, restarts, worker_restarts;
    struct ps_train_options train;
    char **serve; /* command lines */
    char **worker;
    uint32_t n_serve, n_worker;
    char *workers, *list, number[16]; /* workers: the setting */
    char own_out[KU_RUN_PATH_BYTES];  /* of the directory that was not given */
    pid_t servers, *pid;              /* of the launcher; [n_workers]; 0: ended */
    int n_alive, n_done;              /* workers; those that have seen the end of the training */
    int failed;                       /* code of the first worker that ended for good; 0: none */
};

static int add(char ***argv, uint32_t *n, const char *text)
{
    char **more = ku_realloc(*argv, *n + 2, sizeof *more);
    if (more == NULL)
        return KUMI_ENOMEM;
    *argv = more;
    more[*n] = (char *)(uintptr_t)text;
    more[++*n] = NULL;
    return KUMI_OK;
}

static int add_all(char ***argv, uint32_t *n, const char *const *text)
{
    for (; *text; text++)
        KU_TRY(add(argv, n, *text));
    return KUMI_OK;
}

/* The command lines of servers and workers. */
static int make_lines(struct run *r)
{
    struct cli *c = r->c;
    struct ku_str list = {0};
    for (int64_t s = 0; s < r->n_servers; s++)
        ku_str_add(&list, "%sunix:%s/server-%lld.sock", s ? "," : "", r->train.out, (long long)s);
    r->list = ku_strdup(ku_str_get(&list));
    ku_str_fini(&list);
    if (r->list == NULL)
        return KUMI_ENOMEM;
    const char *const serve[] = {"/proc/self/exe", "serve", c->arg[0], "--out", r->train.out, NULL};
    const char *const worker[] = {"/proc/self/exe", "worker",  c->arg[0], "--servers",  r->list,
                                  "--worker",       r->number, "--out",   r->train.out, NULL};
    KU_TRY(add_all(&r->serve, &r->n_serve, serve));
    KU_TRY(add_all(&r->worker, &r->n_worker, worker));
    for (int i = 0; i < c->n_list; i++) {
        const char *const set[] = {"--set", c->list[i], NULL};
        KU_TRY(add_all(&r->serve, &r->n_serve, set));
        KU_TRY(add_all(&r->worker, &r->n_worker, set));
    }
    if (r->train.journal_sync) {
        const char *const sync[] = {"--journal-sync", r->train.journal_sync, NULL};
        KU_TRY(add_all(&r->serve, &r->n_serve, sync));
    }
    return r->train.keeps ? add(&r->serve, &r->n_serve, "--keep-journal") : KUMI_OK;
}

/* In a child: ends with this process, and has its own signals again. */
static void begin_child(const sigset_t *old)
{
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    sigprocmask(SIG_SETMASK, old, NULL);
}

static int start_servers(struct run *r, const sigset_t *old)
{
    r->servers = ku_os_fork();
    if (r->servers < 0)
        return KU_ERR(KUMI_ENOMEM, "kumi ps run: fork: %s", ku_os_why());
    if (r->servers > 0)
        return KUMI_OK;
    begin_child(old);
    int code;
    const int status = kumi_launch_program(r->serve, (int)r->n_servers, 0, &code);
    fflush(stdout);
    _exit(status < 0 ? cli_end(status, 0) : code);
}

static int start_worker(struct run *r, int w, const sigset_t *old)
{
    snprintf(r->number, sizeof r->number, "%d", w);
    r->pid[w] = ku_os_fork();
    if (r->pid[w] < 0) {
        r->pid[w] = 0;
        return KU_ERR(KUMI_ENOMEM, "kumi ps run: fork: %s", ku_os_why());
    }
    if (r->pid[w] == 0) {
        begin_child(old);
        execv(r->worker[0], r->worker);
        _exit(2);
    }
    r->n_alive++;
    return KUMI_OK;
}

static int code_of(int status)
{
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void describe(int status, char text[64])
{
    if (WIFEXITED(status))
        snprintf(text, 64, "ended with exit code %d", WEXITSTATUS(status));
    else
        snprintf(text, 64, "was killed by signal %d", WTERMSIG(status));
}

/* The job ended because a server died, and not by its own decision. */
static bool may_restart(int code)
{
    return code == -KUMI_EPEER || code == 128 + SIGKILL;
}

static int reap_worker(struct run *r, int w, int status, const sigset_t *old)
{
    char text[64];
    r->pid[w] = 0;
    r->n_alive--;
    r->n_done += code_of(status) == 0;
    if (code_of(status) == 0)
        return KUMI_OK;
    describe(status, text);
    const bool again = WIFSIGNALED(status) && r->worker_restarts > 0;
    KU_MESSAGE(WARN, "kumi: worker %d %s%s", w, text, again ? "; it is started again" : "");
    if (again) {
        r->worker_restarts--;
        return start_worker(r, w, old);
    }
    if (r->failed == 0)
        r->failed = WIFSIGNALED(status) ? -KUMI_EPEER : code_of(status);
    return KUMI_OK;
}

/* Returns whether the run goes on; else *code is the servers' exit code. */
static bool reap_servers(struct run *r, int status, const sigset_t *old, int *code)
{
    *code = code_of(status);
    r->servers = 0;
    if (!may_restart(*code) || r->restarts == 0)
        return false;
    r->restarts--;
    KU_MESSAGE(WARN, "kumi: the servers are started again; %lld restarts are left",
               (long long)r->restarts);
    const int failed = start_servers(r, old);
    *code = -failed;
    return failed == KUMI_OK;
}

static void end_workers(const struct run *r, int sig)
{
    for (int w = 0; w < (int)r->n_workers; w++)
        if (r->pid[w])
            kill(r->pid[w], sig);
}

/* Reaps what has ended; returns whether the run goes on. */
static bool reap(struct run *r, const sigset_t *old, int *code)
{
    int status, failed;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        if (pid == r->servers && !reap_servers(r, status, old, code))
            return false;
        for (int w = 0; w < (int)r->n_workers; w++)
            if (pid == r->pid[w] && (failed = reap_worker(r, w, status, old)) < 0) {
                *code = -failed;
                return false;
            }
    }
    return true;
}

static int supervise(struct run *r, const sigset_t *stops, const sigset_t *old)
{
    const struct timespec slice = {.tv_nsec = 50000000};
    int code = 0;
    bool is_asked = false, is_deserted = false;
    while (reap(r, old, &code)) {
        int sig = sigtimedwait(stops, NULL, &slice);
        if (sig <= 0 && r->n_alive + r->n_done == 0 && !is_asked) {
            KU_MESSAGE(WARN, "kumi: no worker is left; the servers are stopped");
            sig = SIGTERM;
            is_deserted = true;
        }
        is_asked |= sig > 0 && sig != SIGCHLD;
        if (sig > 0 && sig != SIGCHLD && r->servers)
            kill(r->servers, sig);
    }
    return is_deserted && code == -KUMI_ESTOPPED ? r->failed : code;
}

/* Workers end by themselves once the servers have told them so. */
static void wait_workers(struct run *r, int code)
{
    const struct timespec slice = {.tv_nsec = 20000000};
    int status;
    for (int i = 0; r->n_alive > 0; i++) {
        if ((i == 0 && code != 0 && code != -KUMI_ESTOPPED) || i == 250)
            end_workers(r, SIGTERM);
        if (i == 500)
            end_workers(r, SIGKILL);
        for (int w = 0; w < (int)r->n_workers; w++)
            if (r->pid[w] && waitpid(r->pid[w], &status, WNOHANG) == r->pid[w]) {
                r->pid[w] = 0;
                r->n_alive--;
            }
        nanosleep(&slice, NULL);
    }
}

static int run_all(struct run *r)
{
    sigset_t stops, old;
    int code = 0, status = KUMI_OK;
    ku_os_stop_signals(&stops);
    sigaddset(&stops, SIGCHLD);
    sigprocmask(SIG_BLOCK, &stops, &old);
    status = start_servers(r, &old);
    for (int w = 0; w < (int)r->n_workers && status == KUMI_OK; w++)
        status = start_worker(r, w, &old);
    if (status == KUMI_OK)
        code = supervise(r, &stops, &old);
    else if (r->servers > 0)
        kill(r->servers, SIGTERM);
    wait_workers(r, status < 0 ? 1 : code);
    return status < 0 ? cli_end(status, 0) : code;
}

/* The servers' sockets are in the run directory. */
static int check_out(const struct run *r)
{
    enum { MAX_PATH = sizeof((struct sockaddr_un *)0)->sun_path - 1 };
    char name[32];
    const int n = snprintf(name, sizeof name, "/server-%lld.sock", (long long)r->n_servers - 1);
    if (strchr(r->train.out, ','))
        return KU_ERR(KUMI_EINVAL,
                      "kumi ps run: --out: %.200s: the servers' sockets are in this directory, and "
                      "a list of addresses has commas between them; give a path without one",
                      r->train.out);
    if (strlen(r->train.out) > (size_t)(MAX_PATH - n))
        return KU_ERR(KUMI_EINVAL,
                      "kumi ps run: --out: %.60s..: %zu bytes; the servers' sockets are in this "
                      "directory, and the path of a socket is short: give one of at most %d",
                      r->train.out, strlen(r->train.out), (int)MAX_PATH - n);
    return KUMI_OK;
}

/* What the configuration and the options say is checked once, before there are processes. */
static int prepare(struct run *r)
{
    struct cli *c = r->c;
    struct kumi_settings settings;
    struct ku_remote_engine_opts engine;
    char threads[16];
    const int share = ku_os_n_cpus() / (int)r->n_workers;
    r->workers = ku_asprintf("ps.workers=%lld", (long long)r->n_workers);
    if (r->workers == NULL)
        return KUMI_ENOMEM;
    c->list[c->n_list++] = r->workers;
    if (!cli_settings(c, NULL, 0, &settings))
        return KUMI_EINVAL;
    KU_TRY(ku_run_remote_of(&settings, &engine));
    if (r->train.out == NULL) {
        KU_TRY(ku_ps_directory_make(c->arg[0], r->own_out));
        r->train.out = r->own_out;
    }
    KU_TRY(check_out(r));
    snprintf(threads, sizeof threads, "%d", share > 0 ? share : 1);
    KU_TRY(ku_env_default("KUMI_THREADS", threads));
    return make_lines(r);
}

int ps_cmd_run(struct cli *c)
{
    struct run r = {.c = c, .n_servers = 1, .restarts = 3};
    const struct cli_option option[] = {
        {"n", CLI_INT, "workers", &r.n_workers},
        {"s", CLI_INT, "servers (default 1)", &r.n_servers},
        {"set", CLI_LIST, "section.key=value, overrides the file; repeatable", NULL},
        {"out", CLI_TEXT,
         "run directory; a run that is there continues (default: runs/<config>-<time>)",
         &r.train.out},
        {"restarts", CLI_INT, "times that servers are started again (default 3)", &r.restarts},
        {"worker-restarts", CLI_INT, "times that workers are started again (default 0)",
         &r.worker_restarts},
        {"journal-sync", CLI_TEXT, "when pushes are on the disk: every (default), group:MS, none",
         &r.train.journal_sync},
        {"keep-journal", CLI_FLAG, "keep all of the journal, for kumi ps replay", &r.train.keeps},
    };
    if (!CLI_PARSE(c, option, 1, 1))
        return c->code;
    if (r.n_workers < 1 || r.n_workers > KU_REMOTE_MAX_WORKERS || r.n_servers < 1 ||
        r.n_servers > KU_REMOTE_MAX_SERVERS)
        return cli_usage("kumi ps run: -n %lld, -s %lld; give 1 to %d workers and 1 to %d servers",
                         (long long)r.n_workers, (long long)r.n_servers, KU_REMOTE_MAX_WORKERS,
                         KU_REMOTE_MAX_SERVERS);
    if (r.restarts < 0 || r.worker_restarts < 0)
        return cli_usage("kumi ps run: --restarts, --worker-restarts: give 0 or more");
    r.pid = ku_calloc((size_t)r.n_workers, sizeof *r.pid);
    const int status = r.pid ? prepare(&r) : KUMI_ENOMEM;
    const int code = status < 0 ? cli_end(status, 0) : run_all(&r);
    if (r.train.out == r.own_out && code != 0)
        ku_ps_directory_drop(r.own_out);
    ku_free(r.serve);
    ku_free(r.worker);
    ku_free(r.workers);
    ku_free(r.list);
    ku_free(r.pid);
    return code;
}
