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

int ps_cmd_serve(struct cli *c);
int ps_cmd_bench(struct cli *c);

#endif
