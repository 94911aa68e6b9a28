/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CLI_PS_PS_H
#define KU_CLI_PS_PS_H

#include "cli/cli.h"
#include "ps/rpc/rpc.h"

/*
 * The program kumi-ps, which `kumi ps` executes: one row of ps_commands per sub-command of it, one
 * file each.
 */

/* Options of every server. */
struct ps_server_options {
    const char *listen, *cert, *key, *ca, *token_file;
    int64_t threads, max_connections;
};
#define PS_SERVER_OPTIONS(o)                                                                       \
    {"listen", CLI_TEXT, "addresses, with commas between: unix:PATH, HOST:PORT", &(o).listen},     \
        {"cert", CLI_TEXT, "PEM file of this server's certificate: mutual TLS", &(o).cert},        \
        {"key", CLI_TEXT, "PEM file of its private key", &(o).key},                                \
        {"ca", CLI_TEXT, "PEM file of the certificates that sign the clients'", &(o).ca},          \
        {"token-file", CLI_TEXT, "a token that every call must have", &(o).token_file},            \
        {"threads", CLI_INT, "threads that answer (default 2)", &(o).threads},                     \
    {                                                                                              \
        "max-connections", CLI_INT, "connections at a time (default 1024)", &(o).max_connections   \
    }
/*
 * Fill rpc from them. `texts` holds the addresses, [KU_RPC_MAX_LISTEN] pointers into *copy, which
 * is freed with ku_free.
 *
 *   otherwise   the address without --listen
 */
KU_STATUS ps_server_opts(const struct ps_server_options *o, const char *otherwise,
                         const char **texts, char **copy, struct ku_rpc_server_opts *rpc);
/*
 * Print "listening on ADDRESS" for each address, wait for a stop signal, and stop the server: calls
 * under way may end within 1 s. Returns the signal, or a status < 0.
 */
KU_STATUS ps_serve_until_stopped(struct ku_rpc_server *s, int n_addresses);

/* Options of a server of a training. */
struct ps_train_options {
    const char *out, *shard, *journal_sync;
    int keeps;
};
#define PS_TRAIN_OPTIONS(o)                                                                        \
    {"out", CLI_TEXT,                                                                              \
     "run directory; a run that is there continues (default: runs/<config>-<time>)", &(o).out},    \
        {"shard", CLI_TEXT, "I/N: this process is server I of N", &(o).shard},                     \
        {"journal-sync", CLI_TEXT, "when pushes are on the disk: every (default), group:MS, none", \
         &(o).journal_sync},                                                                       \
    {                                                                                              \
        "keep-journal", CLI_FLAG, "keep all of the journal, for kumi ps replay", &(o).keeps        \
    }
/* Serve the training of the configuration that was parsed. Returns the exit code. */
int ps_serve_training(struct cli *c, const struct ps_train_options *train,
                      const struct ps_server_options *server);
void ps_print_result(const struct kumi_train_result *r, int is_stopped);

/* Options of every client. */
struct ps_client_options {
    const char *servers, *cert, *key, *ca, *token_file;
};
#define PS_CLIENT_OPTIONS(o)                                                                       \
    {"servers", CLI_TEXT, "addresses of all servers in their order, with commas between",          \
     &(o).servers},                                                                                \
        {"cert", CLI_TEXT, "PEM file of this client's certificate: mutual TLS", &(o).cert},        \
        {"key", CLI_TEXT, "PEM file of its private key", &(o).key},                                \
        {"ca", CLI_TEXT, "PEM file of the certificates that sign the servers'", &(o).ca},          \
    {                                                                                              \
        "token-file", CLI_TEXT, "the servers' token", &(o).token_file                              \
    }
/*
 * Split the addresses. texts: [KU_REMOTE_MAX_SERVERS] pointers into *copy, freed with ku_free.
 * Errors: KUMI_EINVAL.
 */
KU_STATUS ps_client_servers(const struct cli *c, const struct ps_client_options *o,
                            const char **texts, int *n, char **copy);
struct ku_rpc_security ps_client_security(const struct ps_client_options *o);

int ps_cmd_serve(struct cli *c);
int ps_cmd_worker(struct cli *c);
int ps_cmd_run(struct cli *c);
int ps_cmd_status(struct cli *c);
int ps_cmd_snapshot(struct cli *c);
int ps_cmd_drain(struct cli *c);
int ps_cmd_replay(struct cli *c);
int ps_cmd_bench(struct cli *c);

#endif
