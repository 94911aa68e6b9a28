/* SPDX-License-Identifier: Apache-2.0 */
/* kumi ps status, snapshot, drain */
#include <stdio.h>
#include <string.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "base/utf8.h"
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

static KU_STATUS print_json(const uint64_t *x, const char *mode, const char *address)
{
    KU_TRY(ku_utf8_check("--servers", address));
    json_t *o = json_pack(
        "{s:I, s:I, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "server",
        (json_int_t)x[KU_PS_S_SERVER], "servers", (json_int_t)x[KU_PS_S_N_SERVERS], "address",
        address, "mode", mode, "updates", (json_int_t)x[KU_PS_S_VERSION], "saved",
        (json_int_t)x[KU_PS_S_SAVED], "connected", (json_int_t)x[KU_PS_S_N_CONNECTED], "workers",
        (json_int_t)x[KU_PS_S_N_WORKERS], "pushes", (json_int_t)x[KU_PS_S_PUSHES], "repeated",
        (json_int_t)x[KU_PS_S_REPEATED], "refused", (json_int_t)x[KU_PS_S_REFUSED], "dropped",
        (json_int_t)x[KU_PS_S_DROPPED], "pushed_bytes", (json_int_t)x[KU_PS_S_PUSHED_BYTES],
        "pulled_bytes", (json_int_t)x[KU_PS_S_PULLED_BYTES]);
    char *text = ku_json_print(o, 0);
    json_decref(o);
    if (text == NULL)
        return KU_ERR(KUMI_ENOMEM, "memory: no memory for a line of output");
    puts(text);
    ku_free(text);
    return KUMI_OK;
}

static KU_STATUS print_state(const uint64_t *x, const char *address, int as_json)
{
    static const char *const mode[] = {"sync", "async", "ssp"};
    const char *name = x[KU_PS_S_MODE] < 3 ? mode[x[KU_PS_S_MODE]] : "?";
    if (as_json)
        return print_json(x, name, address);
    printf("server %lld of %lld at %s: %s, %lld updates, checkpoint %lld, %lld of %lld workers; "
           "pushes %lld, repeated %lld, refused %lld, dropped %lld\n",
           (long long)x[KU_PS_S_SERVER], (long long)x[KU_PS_S_N_SERVERS], address, name,
           (long long)x[KU_PS_S_VERSION], (long long)x[KU_PS_S_SAVED],
           (long long)x[KU_PS_S_N_CONNECTED], (long long)x[KU_PS_S_N_WORKERS],
           (long long)x[KU_PS_S_PUSHES], (long long)x[KU_PS_S_REPEATED],
           (long long)x[KU_PS_S_REFUSED], (long long)x[KU_PS_S_DROPPED]);
    return KUMI_OK;
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
    const int status = ps_client_servers(c, &o, texts, &n, &copy);
    int code = cli_end(status, 0);
    for (int s = 0; s < n && status == KUMI_OK; s++) { /* also those after one that is down */
        int answer = call(texts[s], &o, KU_PS_SERVICE "Status", 10 * KU_RPC_SECOND, field);
        if (answer == KUMI_OK)
            answer = print_state(field, texts[s], as_json);
        const int failed = cli_end(answer, 0);
        code = code ? code : failed;
    }
    ku_free(copy);
    return code;
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
