/* SPDX-License-Identifier: Apache-2.0 */
/* A server of a training, and its workers. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/env.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "cli/ps/ps.h"
#include "ps/remote/link.h"
#include "ps/remote/service_server.h"
#include "ps/rpc/rpc_limits.h"

void ps_print_result(const struct kumi_train_result *r, int is_stopped)
{
    if (r->digest[0] == '\0')
        return; /* not server 0 */
    printf("%s%lld step%s, %lld update%s\n", is_stopped ? "stopped: " : "", (long long)r->step,
           r->step == 1 ? "" : "s", (long long)r->update, r->update == 1 ? "" : "s");
    if (r->checkpoint[0])
        printf("checkpoint: %s\n", r->checkpoint);
    printf("digest: %s\n", r->digest);
}

/*
 * --shard I/N as the environment of a job of N ranks on this host. What tells jobs apart is the
 * directory.
 */
static int take_shard(const char *shard, const char *out)
{
    char text[3][32];
    int i, n, bytes = 0;
    enum { FIRST_PORT = 20000, N_PORTS = 12000 };
    if (sscanf(shard, "%6d/%6d%n", &i, &n, &bytes) != 2 || shard[bytes] || n < 1 || i < 0 || i >= n)
        return KU_ERR(KUMI_EINVAL, "--shard: %.40s; give I/N with I from 0 to N - 1", shard);
    snprintf(text[0], sizeof *text, "%d", i);
    snprintf(text[1], sizeof *text, "%d", n);
    snprintf(text[2], sizeof *text, "%d",
             FIRST_PORT + (int)(ku_hash64(out, strlen(out)) % N_PORTS));
    KU_TRY(ku_env_set("RANK", text[0]));
    KU_TRY(ku_env_set("WORLD_SIZE", text[1]));
    KU_TRY(ku_env_default("MASTER_ADDR", "127.0.0.1"));
    return ku_env_default("MASTER_PORT", text[2]);
}

static void say_listening(void *ctx, struct ku_rpc_server *rpc)
{
    const struct ku_rpc_server_opts *o = ctx;
    const int n = o->n_listen ? o->n_listen : 1; /* one by default */
    for (int i = 0; i < n; i++)
        printf("listening on %s\n", ku_rpc_server_address(rpc, i));
    fflush(stdout);
}

int ps_serve_training(struct cli *c, const struct ps_train_options *train,
                      const struct ps_server_options *server)
{
    struct ku_ps_server_opts o = {.listening = say_listening, .ctx = &o.rpc};
    struct kumi_train_options t = {.out = train->out, .resume = 2};
    struct kumi_train_result result = {0};
    const char *texts[KU_RPC_MAX_LISTEN];
    char *copy = NULL;
    if (train->out == NULL && train->shard)
        return cli_usage("kumi ps serve: --out: give the run directory, the same for all shards");
    if (!cli_settings(c, NULL, 0, &t.settings))
        return c->code;
    int status = train->shard ? take_shard(train->shard, train->out) : KUMI_OK;
    if (status == KUMI_OK && train->journal_sync)
        status = ku_ps_sync_parse(train->journal_sync, &o.service.sync, &o.service.group_ms);
    if (status == KUMI_OK)
        status = ps_server_opts(server, "", texts, &copy, &o.rpc);
    if (server->listen == NULL)
        o.rpc.n_listen = 0;
    if (status == KUMI_OK) /* the run may read data and repeat a journal before it listens */
        status = ku_rpc_server_check(&o.rpc);
    o.spreads = train->shard == NULL;
    o.service.keeps = train->keeps != 0;
    if (status == KUMI_OK)
        status = ku_ps_serve(&t, &o, &result);
    if (status == KUMI_OK || status == KUMI_ESTOPPED)
        ps_print_result(&result, status < 0);
    ku_free(copy);
    return cli_end(status, result.is_reported);
}

int ps_client_servers(const struct cli *c, const struct ps_client_options *o, const char **texts,
                      int *n, char **copy)
{
    if (o->servers == NULL)
        return KU_ERR(KUMI_EINVAL, "kumi %s: --servers: give the servers' addresses",
                      c->command->name);
    *copy = ku_strdup(o->servers);
    if (*copy == NULL)
        return KUMI_ENOMEM;
    *n = 0;
    for (char *list = *copy; list; ++*n) {
        char *comma = strchr(list, ',');
        if (*n == KU_REMOTE_MAX_SERVERS)
            return KU_ERR(KUMI_EINVAL, "--servers: more than %d addresses", KU_REMOTE_MAX_SERVERS);
        texts[*n] = list;
        list = comma ? comma + 1 : NULL;
        if (comma)
            *comma = '\0';
    }
    return KUMI_OK;
}

struct ku_rpc_security ps_client_security(const struct ps_client_options *o)
{
    return (struct ku_rpc_security){
        .cert = o->cert, .key = o->key, .ca = o->ca, .token_file = o->token_file};
}

static int run_worker(const struct kumi_train_options *t, struct ku_ps_link_opts *o)
{
    struct ku_ps_link *link = NULL;
    KU_TRY(ku_ps_link_create(o, &link));
    const int status = ku_run_worker_alone(t, ku_ps_link_of(link), o->n_servers);
    const struct kumi_error error = *ku_err_get();
    ku_ps_link_destroy(link);
    return status < 0 ? ku_err_put(&error) : KUMI_OK;
}

int ps_cmd_worker(struct cli *c)
{
    struct ps_client_options client = {0};
    struct kumi_train_options t = {0};
    const char *texts[KU_REMOTE_MAX_SERVERS];
    char *copy = NULL;
    const char *out = NULL;
    char *state = NULL;
    int64_t worker = -1;
    const struct cli_option option[] = {
        {"worker", CLI_INT, "its number, from 0 (default: RANK, or 0)", &worker},
        {"set", CLI_LIST, "section.key=value, overrides the file; repeatable", NULL},
        {"out", CLI_TEXT, "directory where ps.compression keeps its error feedback", &out},
        PS_CLIENT_OPTIONS(client),
    };
    if (!CLI_PARSE(c, option, 1, 1) || !cli_settings(c, NULL, 0, &t.settings))
        return c->code;
    const char *const rank = worker == -1 ? ku_env("RANK") : NULL;
    char *end = NULL;
    if (worker == -1)
        worker = rank ? strtoll(rank, &end, 10) : 0;
    if (rank && (end == rank || *end || worker < 0 || worker >= KU_REMOTE_MAX_WORKERS))
        return cli_usage("kumi ps worker: RANK: %.40s: no number of a worker; give --worker, or a "
                         "RANK from 0 to %d",
                         rank, KU_REMOTE_MAX_WORKERS - 1);
    if (worker < 0 || worker >= KU_REMOTE_MAX_WORKERS)
        return cli_usage("kumi ps worker: --worker: %lld; give a number from 0 to %d",
                         (long long)worker, KU_REMOTE_MAX_WORKERS - 1);
    struct ku_ps_link_opts o = {
        .server = texts, .worker = (int)worker, .security = ps_client_security(&client)};
    int status = ku_run_timeout_ns(&t.settings, &o.timeout_ns);
    if (status == KUMI_OK)
        status = ps_client_servers(c, &client, texts, &o.n_servers, &copy);
    if (status == KUMI_OK && out) {
        o.out = state = ku_asprintf("%s/workers", out);
        status = state ? KUMI_OK : KUMI_ENOMEM;
    }
    if (status == KUMI_OK)
        status = run_worker(&t, &o);
    ku_free(state);
    ku_free(copy);
    return cli_end(status, 0);
}
