/* SPDX-License-Identifier: Apache-2.0 */
/* kumi ps status, snapshot, drain */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/ps/ps.h"
#include "ps/remote/service_messages.h"
#include "ps/rpc/rpc_limits.h"
#include "ps/remote/link.h"

/* Calls a method without arguments. field: [KU_PS_N_STATE] out. */
static int call(const char *address, const struct ps_client_options *o, const char *path,
                int64_t timeout_ns, uint64_t *field)
{
    const struct ku_rpc_channel_opts opts = {.address = address, .security = ps_client_security(o)};
    struct ku_rpc_channel *channel = NULL;
    struct ku_rpc_msg m = {0};
    struct ku_rpc_buf b;
    KU_TRY(ku_rpc_channel_create(&opts, &channel));
    int status = ku_rpc_buf_init(&b, 0);
    if (status == KUMI_OK)
        status = ku_rpc_unary(channel, path, &b, timeout_ns, false, &m);
    if (status == KUMI_OK) {
        status = ku_ps_message_get(&m, field, KU_PS_N_STATE, 0, NULL);
        ku_rpc_msg_fini(&m);
    }
    const struct kumi_error error = *ku_err_get();
    ku_rpc_channel_destroy(channel);
    return status < 0 ? ku_err_put(&error) : KUMI_OK;
}

static void print_state(const uint64_t *x, const char *address, int as_json)
{
    static const char *const mode[] = {"sync", "async", "ssp"};
    const char *name = x[KU_PS_S_MODE] < 3 ? mode[x[KU_PS_S_MODE]] : "?";
    const long long v[] = {(long long)x[KU_PS_S_SERVER],      (long long)x[KU_PS_S_N_SERVERS],
                           (long long)x[KU_PS_S_VERSION],     (long long)x[KU_PS_S_SAVED],
                           (long long)x[KU_PS_S_N_CONNECTED], (long long)x[KU_PS_S_N_WORKERS],
                           (long long)x[KU_PS_S_PUSHES],      (long long)x[KU_PS_S_REPEATED],
                           (long long)x[KU_PS_S_REFUSED],     (long long)x[KU_PS_S_PUSHED_BYTES],
                           (long long)x[KU_PS_S_PULLED_BYTES]};
    if (as_json)
        printf("{\"server\": %lld, \"servers\": %lld, \"address\": \"%s\", \"mode\": \"%s\", "
               "\"updates\": %lld, \"saved\": %lld, \"connected\": %lld, \"workers\": %lld, "
               "\"pushes\": %lld, \"repeated\": %lld, \"refused\": %lld, \"pushed_bytes\": %lld, "
               "\"pulled_bytes\": %lld}\n",
               v[0], v[1], address, name, v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9], v[10]);
    else
        printf(
            "server %lld of %lld at %s: %s, %lld updates, checkpoint %lld, %lld of %lld workers; "
            "pushes %lld, repeated %lld, refused %lld\n",
            v[0], v[1], address, name, v[2], v[3], v[4], v[5], v[6], v[7], v[8]);
}

int ps_cmd_status(struct cli *c)
{
    struct ps_client_options o = {0};
    const char *texts[KU_REMOTE_MAX_SERVERS];
    char *copy = NULL;
    int n = 0, as_json = 0;
    uint64_t field[KU_PS_N_STATE];
    const struct cli_option option[] = {
        {"json", CLI_FLAG, "print one JSON object per server", &as_json}, PS_CLIENT_OPTIONS(o)};
    if (!CLI_PARSE(c, option, 0, 0))
        return c->code;
    int status = ps_client_servers(c, &o, texts, &n, &copy);
    for (int s = 0; s < n && status == KUMI_OK; s++) {
        status = call(texts[s], &o, KU_PS_SERVICE "Status", 10 * KU_RPC_SECOND, field);
        if (status == KUMI_OK)
            print_state(field, texts[s], as_json);
    }
    ku_free(copy);
    return cli_end(status, 0);
}

/* Asks server 0. */
static int ask_first(struct cli *c, const char *path, const char *what)
{
    struct ps_client_options o = {0};
    const char *texts[KU_REMOTE_MAX_SERVERS];
    char *copy = NULL;
    int n = 0;
    uint64_t field[KU_PS_N_STATE];
    const struct cli_option option[] = {PS_CLIENT_OPTIONS(o)};
    if (!CLI_PARSE(c, option, 0, 0))
        return c->code;
    int status = ps_client_servers(c, &o, texts, &n, &copy);
    if (status == KUMI_OK)
        status = call(texts[0], &o, path, 600 * KU_RPC_SECOND, field);
    if (status == KUMI_OK)
        printf("%s %lld\n", what, (long long)field[KU_PS_S_VERSION]);
    ku_free(copy);
    return cli_end(status, 0);
}

int ps_cmd_snapshot(struct cli *c)
{
    return ask_first(c, KU_PS_SERVICE "Snapshot", "checkpoint of update");
}

int ps_cmd_drain(struct cli *c)
{
    return ask_first(c, KU_PS_SERVICE "Drain", "ends after update");
}
