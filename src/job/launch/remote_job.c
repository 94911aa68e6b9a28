/* SPDX-License-Identifier: Apache-2.0 */
#include "job/launch/remote.h"

#include "base/clock.h"
#include "base/env.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/os/socket.h"
#include "job/private.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

enum {
    PENDING_MAX = 1 << 20, /* bytes of output that wait; then agents are not read */
    WRITE_BYTES = 4096,    /* PIPE_BUF: a pipe that poll calls ready takes them at once */
    WRITES = 64,
    /* Above the ports of services, below those that systems give away. The rendezvous takes the 16
     * after MASTER_PORT. */
    FIRST_PORT = 20000,
    N_PORTS = 12000
};

/* Variables that go to every host. A part of a name that ends in _ stands for all that begin so. */
static const char *const forwarded[] = {
    "KUMI_",       "OMP_",         "MKL_",   "OPENBLAS_", "NCCL_",
    "GLOO_",       "UCX_",         "PYTHON", "PATH",      "LD_LIBRARY_PATH",
    "VIRTUAL_ENV", "CONDA_PREFIX", "LANG",   "LC_ALL",    "TZ"};
/* Those of the job, which each host gets its own of. */
static const char *const own[] = {"KUMI_JOB",
                                  "KUMI_RANK",
                                  "KUMI_WORLD_SIZE",
                                  "KUMI_LOCAL_RANK",
                                  "KUMI_LOCAL_WORLD_SIZE",
                                  "KUMI_CONTROL_FD",
                                  "KUMI_THREADS",
                                  "KUMI_HOST",
                                  "KUMI_RENDEZVOUS",
                                  "KUMI_SECRET"};

static bool is_forwarded(const char *variable)
{
    const size_t bytes = strcspn(variable, "=");
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        if (strlen(own[i]) == bytes && strncmp(variable, own[i], bytes) == 0)
            return 0;
    for (size_t i = 0; i < sizeof forwarded / sizeof forwarded[0]; i++) {
        const size_t n = strlen(forwarded[i]);
        const bool is_prefix = forwarded[i][n - 1] == '_' || strcmp(forwarded[i], "PYTHON") == 0;
        if ((is_prefix ? bytes >= n : bytes == n) && strncmp(variable, forwarded[i], n) == 0)
            return variable[bytes] == '=';
    }
    return 0;
}

static int collect_environment(struct ku_remote *r)
{
    int n = 0;
    while (environ[n])
        n++;
    r->env = ku_calloc((size_t)n + 1, sizeof *r->env);
    if (!r->env)
        return KUMI_ENOMEM;
    for (int i = 0, k = 0; i < n; i++)
        if (is_forwarded(environ[i]))
            r->env[k++] = environ[i];
    return 0;
}

static int random_bytes(void *data, size_t bytes)
{
    if (ku_os_random(data, bytes) < 0)
        return KU_ERR(KUMI_ENOMEM, "launch: random bytes: %s", ku_os_why());
    return 0;
}

/* The name under which all hosts reach host 0. */
static int name_master(struct ku_remote *r)
{
    const struct ku_remote_host *first = &r->host[0];
    const char *at = strrchr(first->slots.name, '@');
    int is_all_here = 1;
    for (int i = 0; i < r->n_hosts; i++)
        is_all_here &= r->host[i].is_here;
    snprintf(r->master, sizeof r->master, "%s",
             is_all_here ? "127.0.0.1"
             : at        ? at + 1
                         : first->slots.name);
    if (!is_all_here && first->is_here && gethostname(r->master, sizeof r->master - 1) < 0)
        return KU_ERR(KUMI_EINVAL, "launch: name of this host: %s", strerror(errno));
    r->master[sizeof r->master - 1] = '\0';
    snprintf(r->root, sizeof r->root, strchr(r->master, ':') ? "[%s]:%d+16" : "%s:%d+16", r->master,
             r->port + 1);
    return 0;
}

static int prepare(struct ku_remote *r, const struct ku_hostlist *list)
{
    uint16_t port;
    char folder[PATH_MAX];
    KU_TRY(ku_env_check_threads());
    KU_TRY(ku_pin_setting(&r->pinning));
    if (r->threads <= 0) /* 0: each host has its own cores, and divides them */
        r->threads = ku_env_threads();
    r->n_hosts = (int)list->n;
    r->n = (int)list->n_slots;
    r->host = ku_calloc((size_t)r->n_hosts, sizeof *r->host);
    r->poll = ku_calloc(3 * (size_t)r->n_hosts + 3, sizeof *r->poll);
    if (!r->host || !r->poll)
        return KUMI_ENOMEM;
    for (int i = 0, rank = 0; i < r->n_hosts; i++) {
        struct ku_remote_host *h = &r->host[i];
        h->slots = list->host[i];
        h->first_rank = rank;
        h->is_here = ku_shell_is_here(&r->shell, h->slots.name);
        h->inherits = h->is_here && r->shell.n_words > 0;
        h->agent = (struct ku_shell_agent){0, -1, -1, -1};
        rank += h->slots.n;
    }
    KU_TRY(random_bytes(&port, sizeof port));
    KU_TRY(random_bytes(&r->world_id, sizeof r->world_id));
    KU_TRY(random_bytes(r->secret, sizeof r->secret));
    r->world_id |= 1; /* 0: none */
    r->port = FIRST_PORT + port % N_PORTS;
    if (!getcwd(folder, sizeof folder))
        return KU_ERR(KUMI_EINVAL, "launch: working folder: %s", strerror(errno));
    r->folder = ku_strdup(folder);
    if (!r->folder)
        return KUMI_ENOMEM;
    if (r->shell.n_words == 0) { /* the hosts share this machine */
        const int cpus = ku_os_n_cpus();
        r->pinning = r->n_hosts > 1 ? KU_PIN_NEVER : r->pinning;
        r->threads = r->threads ? r->threads : cpus / r->n > 0 ? cpus / r->n : 1;
    }
    KU_TRY(name_master(r));
    return collect_environment(r);
}

static void release(struct ku_remote *r)
{
    for (int i = 0; r->host && i < r->n_hosts; i++) {
        ku_wire_fini(&r->host[i].in);
        ku_wire_fini(&r->host[i].out);
        ku_str_fini(&r->host[i].words);
    }
    ku_wire_fini(&r->out);
    ku_wire_fini(&r->err);
    ku_shell_close(&r->shell);
    ku_free(r->host);
    ku_free(r->poll);
    ku_free(r->env);
    ku_free(r->folder);
    ku_free(r);
}

static uint32_t flags_of(const struct ku_remote *r, const struct ku_remote_host *h)
{
    return (r->pinning == KU_PIN_NEVER ? KU_HOST_NO_PIN : 0) |
           (r->pinning == KU_PIN_ALWAYS ? KU_HOST_PIN : 0) | (h->inherits ? KU_HOST_INHERITS : 0) |
           (sigismember(&r->own.old, SIGTERM) == 1 ? KU_HOST_BLOCKS : 0) |
           (r->shell.n_words == 0 ? KU_HOST_PRETENDS : 0) |
           (strcmp(r->argv[0], KU_LAUNCH_SELF) == 0 ? KU_HOST_IS_KUMI : 0);
}

void ku_remote_describe(const struct ku_remote *r, int i, struct ku_host_job *job)
{
    const struct ku_remote_host *h = &r->host[i];
    *job = (struct ku_host_job){.first_rank = h->first_rank,
                                .n_local = h->slots.n,
                                .n = r->n,
                                .host_index = i,
                                .n_hosts = r->n_hosts,
                                .threads = r->threads,
                                .port = r->port,
                                .flags = flags_of(r, h),
                                .world_id = r->world_id,
                                .host = h->slots.name,
                                .master = r->master,
                                .root = r->root,
                                .folder = r->folder,
                                .argv = (char **)(uintptr_t)r->argv,
                                .env = r->env};
    memcpy(job->secret, r->secret, sizeof job->secret);
}

int ku_remote_set_poll(struct ku_remote *r)
{
    const bool is_full =
        ku_wire_pending(&r->out) > PENDING_MAX || ku_wire_pending(&r->err) > PENDING_MAX;
    struct pollfd *p = r->poll;
    for (int i = 0; i < r->n_hosts; i++, p += 3) {
        const struct ku_remote_host *h = &r->host[i];
        p[0] = (struct pollfd){.fd = is_full ? -1 : h->agent.out_fd, .events = POLLIN};
        p[1] = (struct pollfd){.fd = is_full ? -1 : h->agent.err_fd, .events = POLLIN};
        p[2] = (struct pollfd){.fd = ku_wire_pending(&h->out) ? h->agent.in_fd : -1,
                               .events = POLLOUT};
    }
    p[0] = (struct pollfd){.fd = r->signal_fd, .events = POLLIN};
    p[1] = (struct pollfd){.fd = ku_wire_pending(&r->out) ? r->out_fd : -1, .events = POLLOUT};
    p[2] = (struct pollfd){.fd = ku_wire_pending(&r->err) ? r->err_fd : -1, .events = POLLOUT};
    return 3 * r->n_hosts + 3;
}

static bool is_ready(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    return poll(&p, 1, 0) > 0 && p.revents & (POLLOUT | POLLERR | POLLHUP);
}

/* Lines of stderr go to the message callback, which keeps them apart from a progress line. */
static void put_lines(struct ku_remote *r)
{
    for (int i = 0; i < WRITES && ku_wire_pending(&r->err) && is_ready(r->err_fd); i++) {
        const char *from = r->err.buf.text + r->err.at;
        const char *newline = memchr(from, '\n', ku_wire_pending(&r->err));
        KU_ASSERT(newline);
        ku_log_put(from, (size_t)(newline - from) + 1);
        r->err.at += (size_t)(newline - from) + 1;
    }
    ku_wire_compact(&r->err);
}

void ku_remote_put_output(struct ku_remote *r, int out, int err)
{
    for (int i = 0; out && i < WRITES && ku_wire_pending(&r->out) && is_ready(r->out_fd); i++)
        if (ku_wire_flush(&r->out, r->out_fd, WRITE_BYTES) < 0) {
            r->is_out_lost = errno; /* the job goes on; the loss is reported at its end */
            ku_wire_fini(&r->out);
        }
    if (err)
        put_lines(r);
}

int ku_launch_hosts(const struct ku_job_client *client, char *const *argv,
                    const struct ku_launch_hosts *hosts, const struct ku_launch_opts *opts,
                    int *code)
{
    struct ku_hostlist list = {0};
    struct ku_remote *r = ku_calloc(1, sizeof *r);
    int status;
    if (!r)
        return KUMI_ENOMEM;
    r->argv = argv;
    r->out_fd = hosts->out_fd;
    r->err_fd = hosts->err_fd;
    r->signal_fd = -1;
    r->shell.exec_fd[0] = r->shell.exec_fd[1] = -1;
    r->threads = opts ? opts->threads : 0;
    KU_TRY_OUT(ku_hostlist_open(&list, hosts->hosts, hosts->hostfile, hosts->n));
    KU_TRY_OUT(ku_launch_check_env((int)list.n_slots, 1));
    if (list.n > KU_LAUNCH_HOSTS_MAX) {
        status = KU_ERR(KUMI_EINVAL,
                        "launch: %u hosts; agents are started on at most %d; start a larger job "
                        "with srun or mpirun",
                        list.n, KU_LAUNCH_HOSTS_MAX);
        goto out;
    }
    KU_TRY_OUT(ku_shell_open(&r->shell, hosts->rsh, hosts->program));
    if (list.n == 1 && r->shell.n_words > 0 && ku_shell_is_here(&r->shell, list.host[0].name)) {
        status = ku_launch(client, argv, (int)list.n_slots, opts, code); /* this host alone */
    } else {
        KU_TRY_OUT(prepare(r, &list));
        status = ku_remote_run(r, code);
    }
out:
    ku_hostlist_fini(&list);
    release(r);
    return status;
}
