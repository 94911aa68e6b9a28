/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The launcher of one host.
 *
 *     create the segment ─> fork the guard ─> fork n ranks ─> sigtimedwait loop ─> release
 *                                                              reap, forward signals
 */
#include "job/launch.h"

#include "base/err.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/os/process.h"
#include "job/launch/ranks.h"
#include "job/private.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { DEFAULT_PORT = 29500 /* torchrun's */ };

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

/* kumi does not bind it. */
int ku_launch_pick_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), port = DEFAULT_PORT;
    if (fd < 0)
        return port;
    if (!bind(fd, (const struct sockaddr *)&a, sizeof a) &&
        !getsockname(fd, (struct sockaddr *)&a, &len))
        port = ntohs(a.sin_port);
    ku_os_close(fd);
    return port;
}

int ku_launch_check_env(int n, int n_hosts)
{
    struct ku_env_job env;
    if (ku_env_job(&env) == 0 && env.n > 1 && (n_hosts == 1 || env.local_n > 1))
        return KU_ERR(KUMI_EINVAL,
                      "rank count: -n: %d, but the environment (%s) says %d; use one of the two", n,
                      env.launcher, env.n);
    return 0;
}

static int check_n(int n)
{
    if (n < 1 || n > KU_MAX_LOCAL)
        return KU_ERR(KUMI_EINVAL, "rank count: -n: %d; give a number from 1 to %d", n,
                      KU_MAX_LOCAL);
    return 0;
}

int ku_launch_check(int n)
{
    KU_TRY(check_n(n));
    return ku_launch_check_env(n, 1);
}

/* Run until the last rank has ended. */
static void watch(struct ku_ranks *l)
{
    const struct timespec slice = {.tv_nsec = KU_SLEEP_NS}, now = {0};
    while (l->n_alive) {
        siginfo_t info = {0};
        int sig = sigtimedwait(&l->waited, &info, &slice);
        if (sig < 0) /* it was stopped and continued: which rank ended first is still known */
            sig = sigtimedwait(&l->waited, &info, &now);
        if (ku_os_is_stop_signal(sig))
            ku_ranks_signal(l, sig);
        ku_ranks_reap(l, sig == SIGCHLD ? info.si_pid : 0);
        ku_ranks_check(l);
    }
    if (l->n_named && l->n_failed > 1)
        ku_log_line("kumi: %d more of the %d ranks failed", l->n_failed - 1, l->n);
}

static int launch(struct ku_ranks *l, int *code)
{
    ku_ranks_block(l);
    int status = ku_launch_check_env(l->n, l->n_hosts);
    if (!status)
        status = ku_ranks_prepare(l);
    if (!status)
        status = ku_ranks_start(l);
    if (!status) {
        watch(l);
        *code = ku_ranks_code(l);
    }
    ku_ranks_release(l, 0);
    ku_ranks_unblock(l);
    return status;
}

/* The place of n ranks that are the whole job. */
static struct ku_ranks one_host(const struct ku_job_client *client, int n)
{
    return (struct ku_ranks){.client = client,
                             .n = n,
                             .n_job = n,
                             .n_hosts = 1,
                             .master = "127.0.0.1",
                             .port = ku_launch_pick_port()};
}

int ku_launch(const struct ku_job_client *client, char *const *argv, int n,
              const struct ku_launch_opts *opts, int *code)
{
    static const struct ku_launch_node alone = {.n_nodes = 1};
    return ku_launch_node(client, argv, n, &alone, opts, code);
}

int ku_launch_node(const struct ku_job_client *client, char *const *argv, int n,
                   const struct ku_launch_node *node, const struct ku_launch_opts *opts, int *code)
{
    struct ku_ranks l = one_host(client, n);
    char root[KU_ROOT_BYTES], id[KU_ROOT_BYTES + 32], host[KU_HOST_NAME_BYTES] = "";
    const int is_v6 = node->master && strchr(node->master, ':') != NULL;
    KU_TRY(check_n(n));
    if (node->n_nodes < 1 || node->n_nodes > KU_MAX_HOSTS)
        return KU_ERR(KUMI_EINVAL, "nodes: --nnodes: %d; give a number from 1 to %d", node->n_nodes,
                      KU_MAX_HOSTS);
    if (node->rank < 0 || node->rank >= node->n_nodes)
        return KU_ERR(KUMI_EINVAL, "nodes: --node-rank: %d; give a number from 0 to %d", node->rank,
                      node->n_nodes - 1);
    if (node->port < 0 || node->port > 65535 - 16)
        return KU_ERR(KUMI_EINVAL, "nodes: --master-port: %d; give a number from 1 to %d",
                      node->port, 65535 - 16);
    if (node->n_nodes > 1 && !node->master)
        return KU_ERR(
            KUMI_EINVAL,
            "nodes: --nnodes: %d, but no --master-addr; give the address of the node with "
            "--node-rank 0",
            node->n_nodes);
    l.argv = argv;
    l.is_kumi = strcmp(argv[0], KU_LAUNCH_SELF) == 0;
    l.threads = opts ? opts->threads : 0;
    l.first_rank = n * node->rank;
    l.n_job = n * node->n_nodes;
    l.host_index = node->rank;
    l.n_hosts = node->n_nodes;
    l.host = gethostname(host, sizeof host - 1) == 0 ? host : "?";
    if (node->master)
        l.master = node->master;
    if (node->n_nodes > 1 || node->port)
        l.port = node->port ? node->port : DEFAULT_PORT;
    if (node->n_nodes > 1) {
        if (snprintf(root, sizeof root, is_v6 ? "[%s]:%d+16" : "%s:%d+16", node->master,
                     l.port + 1) >= (int)sizeof root)
            return KU_ERR(KUMI_EINVAL, "nodes: --master-addr: %.80s..: too long", node->master);
        int bytes = snprintf(id, sizeof id, "%s %d", root, l.n_job);
        l.root = root;
        l.world_id = ku_hash64(id, (size_t)bytes);
    }
    return launch(&l, code);
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

/* A thread that was joined stays in /proc until it has run once more: on busy cores some ms. */
enum { JOINED_MS = 200 };

int ku_launch_function(const struct ku_job_client *client, int (*fn)(void *arg), void *arg, int n)
{
    struct ku_ranks l = one_host(client, n);
    struct kumi_error error;
    int code = 0;
    int n_now = n_threads();
    for (int ms = 0; n_now > 1 && ms < JOINED_MS; ms++) {
        usleep(1000);
        n_now = n_threads();
    }
    if (n_now > 1)
        return KU_ERR(KUMI_EINVAL,
                      "launch: this process has %d threads, and fork() keeps only one; launch "
                      "before starting threads, or use kumi run",
                      n_now);
    l.fn = fn;
    l.arg = arg;
    l.is_kumi = 1;
    KU_TRY(launch(&l, &code));
    if (!code)
        return 0;
    error = *ku_err_get();
    if (error.status != -code)
        return KU_ERR(-code, "launch: a rank ended with exit code %d", code);
    return ku_err_put(&error);
}
