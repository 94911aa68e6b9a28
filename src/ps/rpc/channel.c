/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/rpc/client.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

/* A client's channel, and unary calls. */

static grpc_channel_credentials *credentials(const struct ku_rpc_channel *ch,
                                             const struct ku_rpc_secrets *s)
{
    grpc_ssl_pem_key_cert_pair pair = {s->key, s->cert};
    if (s->cert == NULL || ch->address.is_unix)
        return grpc_insecure_credentials_create();
    return grpc_ssl_credentials_create_ex(s->ca, &pair, NULL, NULL);
}

static void create_grpc(struct ku_rpc_channel *ch, const struct ku_rpc_channel_opts *o,
                        const struct ku_rpc_secrets *s)
{
    const int64_t keepalive = o->keepalive_ns ? o->keepalive_ns : KU_RPC_KEEPALIVE_NS;
    const int64_t back_off = o->max_back_off_ns ? o->max_back_off_ns : KU_RPC_BACK_OFF_NS;
    grpc_arg args[] = {
        ku_rpc_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH,
                   (int)(o->message_bytes ? o->message_bytes : KU_RPC_MESSAGE_BYTES)),
        ku_rpc_arg(GRPC_ARG_MAX_METADATA_SIZE, KU_RPC_METADATA_BYTES),
        ku_rpc_arg(GRPC_ARG_KEEPALIVE_TIME_MS, (int)(keepalive / 1000000)),
        ku_rpc_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, (int)(keepalive / 2000000)),
        ku_rpc_arg(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
        ku_rpc_arg(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100),
        ku_rpc_arg(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000), /* of an attempt, TLS included */
        ku_rpc_arg(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, (int)(back_off / 1000000)),
        ku_rpc_arg(GRPC_ARG_ENABLE_RETRIES, 0), /* the services know what may be repeated */
        ku_rpc_arg(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
        ku_rpc_arg(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1),
        ku_rpc_arg(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1), /* a connection of its own */
        ku_rpc_arg(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1),
        ku_rpc_arg("", 0),
    };
    grpc_channel_args all = {sizeof args / sizeof *args - 1, args};
    char name[sizeof ch->address.host], key[] = GRPC_SSL_TARGET_NAME_OVERRIDE_ARG;
    if (o->security.server_name) {
        snprintf(name, sizeof name, "%s", o->security.server_name);
        args[all.num_args++] =
            (grpc_arg){.type = GRPC_ARG_STRING, .key = key, .value.string = name};
    }
    grpc_channel_credentials *creds = credentials(ch, s);
    ch->grpc = grpc_channel_create(ch->address.text, creds, &all);
    grpc_channel_credentials_release(creds);
}

static int check_opts(const struct ku_rpc_channel_opts *o)
{
    if (o->message_bytes > INT32_MAX)
        return KU_ERR(KUMI_EINVAL, "rpc: channel: messages of %zu bytes; at most 2^31 - 1",
                      o->message_bytes);
    if (o->security.server_name && strlen(o->security.server_name) > KU_RPC_MAX_ADDRESS - 16)
        return KU_ERR(KUMI_EINVAL, "rpc: channel: the server's name has %zu bytes",
                      strlen(o->security.server_name));
    return KUMI_OK;
}

int ku_rpc_channel_create(const struct ku_rpc_channel_opts *o, struct ku_rpc_channel **out)
{
    struct ku_rpc_secrets secrets = {0};
    int status = KUMI_OK;
    KU_TRY(check_opts(o));
    struct ku_rpc_channel *ch = ku_calloc(1, sizeof *ch);
    if (ch == NULL)
        return KUMI_ENOMEM;
    pthread_mutex_init(&ch->lock, NULL);
    ku_rpc_runtime_init();
    KU_TRY_OUT(ku_rpc_address_parse(o->address, &ch->address));
    KU_TRY_OUT(ku_rpc_secrets_init(&secrets, &o->security));
    KU_TRY_OUT(ku_rpc_check_open(&ch->address, &secrets));
    if (!ch->address.is_unix && ch->address.tcp.port == 0)
        KU_TRY_OUT(KU_ERR(KUMI_EINVAL, "rpc: address: %s: port 0; give the server's", o->address));
    if (secrets.token_bytes > 0) {
        snprintf(ch->bearer, sizeof ch->bearer, "Bearer %s", secrets.token);
        ch->token.key = grpc_slice_from_static_string("authorization");
        ch->token.value = grpc_slice_from_static_buffer(ch->bearer, strlen(ch->bearer));
    }
    create_grpc(ch, o, &secrets);
    *out = ch;
out:
    ku_rpc_secrets_fini(&secrets);
    if (status < 0) {
        struct kumi_error why = *ku_err_get();
        ku_rpc_channel_destroy(ch);
        status = ku_err_put(&why);
    }
    return status;
}

static void end_cq(grpc_completion_queue *cq)
{
    grpc_completion_queue_shutdown(cq);
    grpc_completion_queue_destroy(cq);
}

void ku_rpc_channel_destroy(struct ku_rpc_channel *ch)
{
    if (ch == NULL)
        return;
    while (ch->n_free > 0)
        end_cq(ch->free_cq[--ch->n_free]);
    ku_free(ch->free_cq);
    if (ch->grpc)
        grpc_channel_destroy(ch->grpc);
    memset(ch->bearer, 0, sizeof ch->bearer);
    pthread_mutex_destroy(&ch->lock);
    ku_free(ch);
    ku_rpc_runtime_fini();
}

grpc_completion_queue *ku_rpc_cq_take(struct ku_rpc_channel *ch)
{
    grpc_completion_queue *cq = NULL;
    pthread_mutex_lock(&ch->lock);
    if (ch->n_free > 0)
        cq = ch->free_cq[--ch->n_free];
    pthread_mutex_unlock(&ch->lock);
    return cq ? cq : grpc_completion_queue_create_for_pluck(NULL);
}

void ku_rpc_cq_give(struct ku_rpc_channel *ch, grpc_completion_queue *cq)
{
    pthread_mutex_lock(&ch->lock);
    const int status = KU_GROW(&ch->free_cq, ch->n_free, &ch->cap_free);
    if (status == KUMI_OK)
        ch->free_cq[ch->n_free++] = cq;
    pthread_mutex_unlock(&ch->lock);
    if (status < 0)
        end_cq(cq);
}

int ku_rpc_channel_wait(struct ku_rpc_channel *ch, int64_t timeout_ns)
{
    const gpr_timespec end = ku_rpc_deadline(timeout_ns);
    grpc_connectivity_state state = grpc_channel_check_connectivity_state(ch->grpc, 1);
    grpc_completion_queue *cq = ku_rpc_cq_take(ch);
    bool is_late = false;
    while (state != GRPC_CHANNEL_READY && !is_late) {
        grpc_channel_watch_connectivity_state(ch->grpc, state, end, cq, ch);
        grpc_event e =
            grpc_completion_queue_pluck(cq, ch, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        is_late = !e.success;
        state = grpc_channel_check_connectivity_state(ch->grpc, 1);
    }
    ku_rpc_cq_give(ch, cq);
    return state == GRPC_CHANNEL_READY
               ? KUMI_OK
               : KU_ERR(KUMI_ETIMEDOUT, "rpc: %s: no connection within %.1f s", ch->address.text,
                        (double)timeout_ns / 1e9);
}

grpc_call *ku_rpc_call_create(struct ku_rpc_channel *ch, const char *path,
                              grpc_completion_queue *cq, gpr_timespec deadline)
{
    const grpc_slice method = grpc_slice_from_static_string(path);
    return grpc_channel_create_call(ch->grpc, NULL, GRPC_PROPAGATE_DEFAULTS, cq, method, NULL,
                                    deadline, NULL);
}

grpc_op ku_rpc_begin_op(struct ku_rpc_channel *ch, bool wait)
{
    grpc_op op = {.op = GRPC_OP_SEND_INITIAL_METADATA};
    if (wait)
        op.flags = GRPC_INITIAL_METADATA_WAIT_FOR_READY |
                   GRPC_INITIAL_METADATA_WAIT_FOR_READY_EXPLICITLY_SET;
    if (ch->bearer[0]) {
        op.data.send_initial_metadata.count = 1;
        op.data.send_initial_metadata.metadata = &ch->token;
    }
    return op;
}

grpc_op ku_rpc_end_op(struct ku_rpc_end *end)
{
    grpc_op op = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT};
    grpc_metadata_array_init(&end->trailing);
    end->text = grpc_empty_slice();
    op.data.recv_status_on_client.trailing_metadata = &end->trailing;
    op.data.recv_status_on_client.status = &end->code;
    op.data.recv_status_on_client.status_details = &end->text;
    return op;
}

void ku_rpc_end_fini(struct ku_rpc_end *end)
{
    grpc_slice_unref(end->text);
    grpc_metadata_array_destroy(&end->trailing);
}

int ku_rpc_unary(struct ku_rpc_channel *ch, const char *path, struct ku_rpc_buf *request,
                 int64_t timeout_ns, bool wait, struct ku_rpc_msg *reply)
{
    grpc_metadata_array initial;
    struct ku_rpc_end end = {0};
    grpc_byte_buffer *received = NULL, *sent = ku_rpc_buf_take(request);
    grpc_completion_queue *cq = ku_rpc_cq_take(ch);
    grpc_call *call = ku_rpc_call_create(ch, path, cq, ku_rpc_deadline(timeout_ns));
    grpc_metadata_array_init(&initial);
    const grpc_op op[] = {
        ku_rpc_begin_op(ch, wait),
        {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = sent},
        {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT},
        {.op = GRPC_OP_RECV_INITIAL_METADATA,
         .data.recv_initial_metadata.recv_initial_metadata = &initial},
        {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &received},
        ku_rpc_end_op(&end),
    };
    grpc_call_error error = grpc_call_start_batch(call, op, sizeof op / sizeof *op, call, NULL);
    KU_ASSERT(error == GRPC_CALL_OK);
    /* The call's own deadline ends it. */
    (void)grpc_completion_queue_pluck(cq, call, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    int status = ku_rpc_from_code(end.code, &end.trailing, ch->address.text, path, &end.text);
    if (status == KUMI_OK && received == NULL)
        status = KU_ERR(KUMI_EPEER, "rpc: %s%s: no reply", ch->address.text, path);
    if (status == KUMI_OK) {
        status = ku_rpc_msg_init(reply, received);
        received = NULL;
    }
    if (received)
        grpc_byte_buffer_destroy(received);
    grpc_byte_buffer_destroy(sent);
    ku_rpc_end_fini(&end);
    grpc_metadata_array_destroy(&initial);
    grpc_call_unref(call);
    ku_rpc_cq_give(ch, cq);
    return status;
}
