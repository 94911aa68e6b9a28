/* SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>

#include "base/mem.h"
#include "base/os/os.h"
#include "base/os/process.h"
#include "base/os/socket.h"
#include "cli/ps/ps.h"
#include "ps/rpc/rpc_limits.h"

static KU_STATUS split(char *list, const char **texts, int *n)
{
    for (*n = 0; list; ++*n) {
        char *comma = strchr(list, ',');
        if (*n == KU_RPC_MAX_LISTEN)
            return KU_ERR(KUMI_EINVAL, "ps: --listen: more than %d addresses",
                          (int)KU_RPC_MAX_LISTEN);
        texts[*n] = list;
        list = comma ? comma + 1 : NULL;
        if (comma)
            *comma = '\0';
    }
    return KUMI_OK;
}

int ps_server_opts(const struct ps_server_options *o, const char *otherwise, const char **texts,
                   char **copy, struct ku_rpc_server_opts *rpc)
{
    enum { MAX_CONNECTIONS = 1 << 20 };
    *copy = ku_strdup(o->listen ? o->listen : otherwise);
    if (*copy == NULL)
        return KUMI_ENOMEM;
    memset(rpc, 0, sizeof *rpc);
    KU_TRY(split(*copy, texts, &rpc->n_listen));
    if (o->max_connections < 0 || o->max_connections > MAX_CONNECTIONS)
        return KU_ERR(KUMI_EINVAL, "ps: --max-connections: %lld; give 1 to %d",
                      (long long)o->max_connections, (int)MAX_CONNECTIONS);
    if (o->threads < 0 || o->threads > KU_RPC_MAX_THREADS)
        return KU_ERR(KUMI_EINVAL, "ps: --threads: %lld; give 1 to %d", (long long)o->threads,
                      (int)KU_RPC_MAX_THREADS);
    rpc->listen = texts;
    rpc->n_threads = (int)o->threads;
    rpc->limits.connections = (int)o->max_connections;
    rpc->security = (struct ku_rpc_security){
        .cert = o->cert, .key = o->key, .ca = o->ca, .token_file = o->token_file};
    return KUMI_OK;
}

int ps_serve_until_stopped(struct ku_rpc_server *s, int n_addresses)
{
    struct signalfd_siginfo signal = {0};
    sigset_t stops;
    ku_os_stop_signals(&stops);
    int fd = ku_os_signalfd(-1, &stops);
    if (fd < 0)
        return KU_ERR(KUMI_ESTORAGE, "ps: signals: %s", ku_os_why());
    for (int i = 0; i < n_addresses; i++)
        printf("listening on %s\n", ku_rpc_server_address(s, i));
    int status = cli_write("", 0);
    while (status == KUMI_OK && signal.ssi_signo == 0)
        if (ku_os_await(fd, POLLIN, -1) > 0)
            (void)ku_os_read(fd, &signal, sizeof signal);
    ku_os_close(fd);
    ku_rpc_server_stop(s, KU_RPC_SECOND);
    return status < 0 ? status : (int)signal.ssi_signo;
}
