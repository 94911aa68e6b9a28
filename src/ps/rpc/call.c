/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/rpc/private.h"

#include <grpc/support/alloc.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/process.h"

/*
 * A call of the server. gRPC takes operations in batches; each batch ends as one event with its tag
 * on the completion queue of the call's thread. At most one batch of each kind is under way:
 *
 *     slot    a new call: it becomes one, and the thread is armed with another slot
 *     CLOSE   from the beginning to the end of the call: over, for whatever reason
 *     RECV    one message; the next is asked for when the service has consumed it
 *     SEND    one message of the queue, the reply with the status, or the status
 *
 * Callbacks are made from events alone, so one at a time. The call is freed by the last event,
 * after CLOSE and with no batch under way. A batch that cannot be started is a bug of this file.
 */

static void start(struct ku_rpc_call *c, enum ku_rpc_tag_kind kind, const grpc_op *op, size_t n)
{
    c->n_pending++;
    grpc_call_error error = grpc_call_start_batch(c->grpc, op, n, &c->tag[kind], NULL);
    KU_ASSERT(error == GRPC_CALL_OK);
}

/* allowed_ns: as the method has it */
static int64_t deadline_of(const struct ku_rpc_call *c, int64_t allowed_ns)
{
    const int64_t allowed = allowed_ns ? allowed_ns : c->server->limits.idle_ns;
    return allowed == INT64_MAX ? INT64_MAX : ku_clock_ns() + allowed;
}

static void start_recv(struct ku_rpc_call *c) /* with the lock */
{
    const grpc_op op = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &c->received};
    if (c->is_reading || c->is_over || c->is_finished || c->has_ended)
        return;
    c->is_reading = true;
    c->recv_ns = deadline_of(c, c->has_message ? c->method->idle_ns : c->method->first_ns);
    start(c, KU_RPC_TAG_RECV, &op, 1);
}

static grpc_slice text_slice(const char *text)
{
    return grpc_slice_from_static_buffer(text, strlen(text));
}

/* Start the next operation that sends, if none is under way. With the lock. */
static void pump(struct ku_rpc_call *c)
{
    grpc_op op[3] = {{0}};
    size_t n = 0;
    grpc_slice text;
    if (c->is_sending || c->is_over || c->has_status || (c->n_queued == 0 && !c->is_finished))
        return;
    if (!c->has_sent_initial)
        op[n++].op = GRPC_OP_SEND_INITIAL_METADATA;
    c->has_sent_initial = true;
    if (c->n_queued > 0) {
        c->sending = c->queue[c->first];
        c->first = (c->first + 1) % KU_RPC_MAX_QUEUED;
        c->n_queued--;
    } else {
        c->sending = c->reply;
        c->reply = NULL;
        c->has_status = true;
    }
    if (c->sending) {
        c->sending_bytes = grpc_byte_buffer_length(c->sending);
        op[n].op = GRPC_OP_SEND_MESSAGE;
        op[n++].data.send_message.send_message = c->sending;
    }
    if (c->has_status) {
        op[n].op = GRPC_OP_SEND_STATUS_FROM_SERVER;
        op[n].data.send_status_from_server.status = c->code;
        if (c->text[0]) {
            text = text_slice(c->text);
            c->trailing.key = text_slice(KU_RPC_STATUS_KEY);
            c->trailing.value = text_slice(c->number);
            op[n].data.send_status_from_server.status_details = &text;
            op[n].data.send_status_from_server.trailing_metadata_count = 1;
            op[n].data.send_status_from_server.trailing_metadata = &c->trailing;
        }
        n++;
    }
    c->is_sending = true;
    c->send_ns = deadline_of(c, c->method ? c->method->send_ns : 0);
    start(c, KU_RPC_TAG_SEND, op, n);
}

/* End the call, once; text: of a status < 0. With the lock. */
static void finish(struct ku_rpc_call *c, int status, grpc_status_code code, const char *text)
{
    if (c->is_finished)
        return;
    c->is_finished = true;
    c->status = c->status ? c->status : status;
    c->code = code;
    c->recv_ns = INT64_MAX;
    if (status < 0) {
        snprintf(c->text, sizeof c->text, "%s", text);
        snprintf(c->number, sizeof c->number, "%d", status);
    }
    pump(c);
}

int ku_rpc_send(struct ku_rpc_call *c, struct ku_rpc_buf *b)
{
    int status = KUMI_OK;
    pthread_mutex_lock(&c->lock);
    if (c->is_over || c->is_finished)
        status = KU_ERR(KUMI_EPEER, "rpc: %s: %s: the call is over", c->peer, c->path);
    else if (c->n_queued == KU_RPC_MAX_QUEUED)
        status = KU_ERR(KUMI_EBUSY, "rpc: %s: %s: %d messages wait to be sent", c->peer, c->path,
                        c->n_queued);
    if (status == KUMI_OK) {
        c->queue[(c->first + c->n_queued++) % KU_RPC_MAX_QUEUED] = ku_rpc_buf_take(b);
        pump(c);
    }
    pthread_mutex_unlock(&c->lock);
    return status;
}

void ku_rpc_next(struct ku_rpc_call *c)
{
    pthread_mutex_lock(&c->lock);
    start_recv(c);
    pthread_mutex_unlock(&c->lock);
}

void ku_rpc_finish(struct ku_rpc_call *c, int status, struct ku_rpc_buf *reply)
{
    struct ku_rpc_buf empty = {0};
    if (status < 0 && status != KUMI_ESTOPPED) /* the end of a run is no failure */
        ku_rpc_say(c->server, c->peer, c->path, "%s", ku_err_get()->text);
    pthread_mutex_lock(&c->lock);
    if (!c->is_finished && status == KUMI_OK && !c->method->is_stream)
        c->reply = ku_rpc_buf_take(reply ? reply : &empty);
    finish(c, status, ku_rpc_code(status), ku_err_get()->text);
    pthread_mutex_unlock(&c->lock);
    if (reply)
        ku_rpc_buf_fini(reply);
}

/* A batch that waits for the peer fails, and with it the call closes. */
void ku_rpc_abort(struct ku_rpc_call *c, int status)
{
    ku_rpc_finish(c, status, NULL);
    pthread_mutex_lock(&c->lock);
    const bool is_over = c->is_over;
    pthread_mutex_unlock(&c->lock);
    if (!is_over)
        grpc_call_cancel_with_status(c->grpc, ku_rpc_code(status), ku_err_get()->text, NULL);
}

int ku_rpc_n_queued(struct ku_rpc_call *c)
{
    pthread_mutex_lock(&c->lock);
    int n = c->n_queued;
    pthread_mutex_unlock(&c->lock);
    return n;
}

void ku_rpc_set_data(struct ku_rpc_call *c, void *data)
{
    c->data = data;
}
void *ku_rpc_get_data(struct ku_rpc_call *c)
{
    return c->data;
}
const char *ku_rpc_peer(const struct ku_rpc_call *c)
{
    return c->peer;
}
int ku_rpc_method_index(const struct ku_rpc_call *c)
{
    return (int)(c->method - c->server->method);
}

/* What a callback has returned. */
static void take_result(struct ku_rpc_call *c, int result)
{
    if (result < 0) {
        ku_rpc_finish(c, result, NULL);
    } else if (result == KUMI_OK) {
        if (c->method->is_stream)
            ku_rpc_next(c);
        else
            ku_rpc_finish(c, KUMI_OK, NULL);
    }
}

static void on_end(struct ku_rpc_call *c)
{
    c->has_ended = true;
    if (!c->method->is_stream) { /* a larger one has ended the call with RESOURCE_EXHAUSTED */
        int status = KU_ERR(KUMI_EINVAL, "rpc: %s: no message of at most %zu bytes came", c->path,
                            c->server->limits.message_bytes);
        ku_rpc_finish(c, status, NULL);
        return;
    }
    c->is_told = true;
    int result = c->method->end ? c->method->end(c->server->ctx, c) : KUMI_OK;
    if (result < 0 || c->method->end == NULL)
        ku_rpc_finish(c, result, NULL);
}

static void on_message(struct ku_rpc_call *c, grpc_byte_buffer *bb)
{
    struct ku_rpc_msg m;
    int status = ku_rpc_msg_init(&m, bb);
    if (status == KUMI_OK) {
        ku_rpc_conn_credit(c->conn, m.bytes, 0);
        c->is_told = true;
        status = c->method->message(c->server->ctx, c, &m);
        ku_rpc_msg_fini(&m);
    }
    take_result(c, status);
}

static void on_recv(struct ku_rpc_call *c, int success)
{
    grpc_byte_buffer *bb = c->received;
    c->received = NULL;
    pthread_mutex_lock(&c->lock);
    c->is_reading = false;
    c->has_message |= bb != NULL;
    c->recv_ns = INT64_MAX;
    const bool is_wanted = success && !c->is_over && !c->is_finished;
    pthread_mutex_unlock(&c->lock);
    if (bb && is_wanted)
        on_message(c, bb);
    else if (bb)
        grpc_byte_buffer_destroy(bb);
    else if (is_wanted)
        on_end(c);
}

static void on_sent(struct ku_rpc_call *c, int success)
{
    pthread_mutex_lock(&c->lock);
    ku_rpc_conn_credit(c->conn, 0, c->sending_bytes);
    if (c->sending)
        grpc_byte_buffer_destroy(c->sending);
    c->sending = NULL;
    c->sending_bytes = 0;
    c->is_sending = false;
    c->send_ns = INT64_MAX;
    const bool is_last = c->has_status || c->is_over;
    const int n = c->n_queued;
    if (success)
        pump(c);
    pthread_mutex_unlock(&c->lock);
    if (success && !is_last && c->method && c->method->sent)
        c->method->sent(c->server->ctx, c, n);
}

static void unlink_call(struct ku_rpc_call *c)
{
    struct ku_rpc_server *s = c->server;
    pthread_mutex_lock(&s->lock);
    if (c->next)
        c->next->prev = c->prev;
    if (c->prev)
        c->prev->next = c->next;
    else
        s->calls = c->next;
    s->n_calls--;
    if (c->conn)
        ku_rpc_conn_end(s, c->conn);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void ku_rpc_call_free(struct ku_rpc_call *c)
{
    for (; c->n_queued > 0; c->n_queued--, c->first = (c->first + 1) % KU_RPC_MAX_QUEUED)
        grpc_byte_buffer_destroy(c->queue[c->first]);
    if (c->reply)
        grpc_byte_buffer_destroy(c->reply);
    if (c->grpc)
        grpc_call_unref(c->grpc);
    grpc_call_details_destroy(&c->details);
    grpc_metadata_array_destroy(&c->metadata);
    pthread_mutex_destroy(&c->lock);
    ku_free(c);
}

/* After every event: the last one ends the call. */
static void end_if_over(struct ku_rpc_call *c)
{
    pthread_mutex_lock(&c->lock);
    c->n_pending--;
    const bool is_last = c->is_over && c->n_pending == 0;
    const int status = c->status < 0 ? c->status : c->has_status ? KUMI_OK : KUMI_EPEER;
    pthread_mutex_unlock(&c->lock);
    if (!is_last)
        return;
    if (c->is_late)
        ku_rpc_say(c->server, c->peer, c->path, "ended on its deadline");
    else if (c->method && !c->is_told && c->is_cancelled)
        ku_rpc_say(c->server, c->peer, c->path, "cancelled before a message of at most %zu bytes",
                   c->server->limits.message_bytes);
    if (c->is_told && c->method->close)
        c->method->close(c->server->ctx, c, status);
    unlink_call(c);
    ku_rpc_call_free(c);
}

static void on_close(struct ku_rpc_call *c)
{
    pthread_mutex_lock(&c->lock);
    c->is_over = true;
    c->recv_ns = c->send_ns = INT64_MAX;
    pthread_mutex_unlock(&c->lock);
}

/* ---- New calls ---- */

static const struct ku_rpc_method *find_method(const struct ku_rpc_server *s, grpc_slice path)
{
    for (int i = 0; i < s->n_methods; i++)
        if (grpc_slice_str_cmp(path, s->method[i].path) == 0)
            return &s->method[i];
    return NULL;
}

/* The path as text for messages. The peer has chosen it, and forges no line of the log with it. */
static void name_path(struct ku_rpc_call *c)
{
    const size_t bytes = GRPC_SLICE_LENGTH(c->details.method);
    const uint8_t *from = GRPC_SLICE_START_PTR(c->details.method);
    for (size_t i = 0; i < bytes && i + 1 < sizeof c->path; i++)
        c->path[i] = from[i] >= ' ' && from[i] < 0x7f ? (char)from[i] : '?';
}

static void name_call(struct ku_rpc_call *c)
{
    char *peer = grpc_call_get_peer(c->grpc);
    name_path(c);
    c->conn = ku_rpc_conn_begin(c->server, peer);
    const bool is_lost = c->conn == NULL && strncmp(peer, "fd:", 3) == 0;
    snprintf(c->peer, sizeof c->peer, "%s",
             c->conn   ? c->conn->peer
             : is_lost ? "a closed connection"
                       : peer);
    gpr_free(peer);
}

static void link_call(struct ku_rpc_call *c, int *n_calls)
{
    struct ku_rpc_server *s = c->server;
    pthread_mutex_lock(&s->lock);
    c->next = s->calls;
    if (s->calls)
        s->calls->prev = c;
    s->calls = c;
    *n_calls = ++s->n_calls;
    if (!s->is_watched)
        ku_os_ring(s->wake);
    pthread_mutex_unlock(&s->lock);
}

/* End a call before the service knows of it: its message is not read. */
static void refuse(struct ku_rpc_call *c, grpc_status_code code, const char *text)
{
    struct ku_rpc_server *s = c->server;
    ku_rpc_say(s, c->peer, c->path, "refused: %s", text);
    pthread_mutex_lock(&s->lock);
    s->refused++;
    pthread_mutex_unlock(&s->lock);
    pthread_mutex_lock(&c->lock);
    finish(c, code == GRPC_STATUS_RESOURCE_EXHAUSTED ? KUMI_EBUSY : KUMI_EINVAL, code, text);
    pthread_mutex_unlock(&c->lock);
}

/* As gRPC counts them (RFC 9113, 6.5.2). Its own limit does not hold for CONTINUATION frames. */
static size_t metadata_bytes(const struct ku_rpc_call *c)
{
    enum { ENTRY = 32 };
    size_t bytes = 0;
    for (size_t i = 0; i < c->metadata.count; i++)
        bytes += GRPC_SLICE_LENGTH(c->metadata.metadata[i].key) +
                 GRPC_SLICE_LENGTH(c->metadata.metadata[i].value) + ENTRY;
    return bytes;
}

/* Whether the call may be; else it is refused. */
static bool is_admitted(struct ku_rpc_call *c, const struct ku_rpc_method *method, int n_calls)
{
    struct ku_rpc_server *s = c->server;
    const size_t bytes = metadata_bytes(c);
    char text[200];
    if (bytes > (size_t)s->limits.metadata_bytes) {
        snprintf(text, sizeof text, "%zu bytes of metadata; at most %d are allowed", bytes,
                 s->limits.metadata_bytes);
        refuse(c, GRPC_STATUS_RESOURCE_EXHAUSTED, text);
    } else if (!ku_rpc_is_authorized(&s->secrets, &c->metadata)) {
        refuse(c, GRPC_STATUS_UNAUTHENTICATED, "the token is missing or wrong");
    } else if (n_calls > s->limits.calls) {
        snprintf(text, sizeof text, "%d calls are under way; try again later", n_calls - 1);
        refuse(c, GRPC_STATUS_RESOURCE_EXHAUSTED, text);
    } else if (method == NULL) {
        snprintf(text, sizeof text, "unknown method; this server has %s%s", s->method[0].path,
                 s->n_methods > 1 ? " and others" : "");
        refuse(c, GRPC_STATUS_UNIMPLEMENTED, text);
    } else if (!ku_rpc_conn_use(s, c->conn)) {
        snprintf(text, sizeof text, "%d calls in a second of this connection; try again later",
                 s->limits.call_rate);
        refuse(c, GRPC_STATUS_RESOURCE_EXHAUSTED, text);
    } else {
        return true;
    }
    return false;
}

static void begin(struct ku_rpc_call *c)
{
    const grpc_op close = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER,
                           .data.recv_close_on_server.cancelled = &c->is_cancelled};
    struct ku_rpc_server *s = c->server;
    const struct ku_rpc_method *method = find_method(s, c->details.method);
    int n_calls, result = KUMI_OK;
    name_call(c);
    link_call(c, &n_calls);
    pthread_mutex_lock(&c->lock);
    start(c, KU_RPC_TAG_CLOSE, &close, 1);
    pthread_mutex_unlock(&c->lock);
    if (!is_admitted(c, method, n_calls))
        return;
    c->method = method;
    if (method->is_stream && method->open) {
        c->is_told = true;
        result = method->open(s->ctx, c);
    }
    if (result < 0)
        ku_rpc_finish(c, result, NULL);
    else if (result == KUMI_OK)
        ku_rpc_next(c);
}

int ku_rpc_thread_arm(struct ku_rpc_thread *t)
{
    struct ku_rpc_call *c = ku_calloc(1, sizeof *c);
    if (c == NULL)
        return KUMI_ENOMEM;
    c->server = t->server;
    c->thread = t;
    c->recv_ns = c->send_ns = INT64_MAX;
    pthread_mutex_init(&c->lock, NULL);
    grpc_call_details_init(&c->details);
    grpc_metadata_array_init(&c->metadata);
    for (int i = 0; i < KU_RPC_N_TAGS; i++)
        c->tag[i] = (struct ku_rpc_tag){c, (enum ku_rpc_tag_kind)i};
    t->slot = c;
    grpc_call_error error = grpc_server_request_call(t->server->grpc, &c->grpc, &c->details,
                                                     &c->metadata, t->cq, t->cq, &t->slot_tag);
    KU_ASSERT(error == GRPC_CALL_OK);
    return KUMI_OK;
}

/* A new call is there; without memory for the next slot it is dropped, and its slot used again. */
static void on_slot(struct ku_rpc_thread *t, int success)
{
    struct ku_rpc_call *c = t->slot;
    t->slot = NULL;
    if (success && ku_rpc_thread_arm(t) == KUMI_OK) {
        begin(c);
        return;
    }
    if (success)
        grpc_call_cancel_with_status(c->grpc, GRPC_STATUS_RESOURCE_EXHAUSTED, "out of memory",
                                     NULL);
    ku_rpc_call_free(c);
    if (success && ku_rpc_thread_arm(t) < 0)
        ku_rpc_say(t->server, "server", "", "out of memory: a thread takes no more calls");
}

static void on_shut(struct ku_rpc_server *s)
{
    pthread_mutex_lock(&s->lock);
    s->is_shut = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void on_event(struct ku_rpc_call *c, enum ku_rpc_tag_kind kind, int success)
{
    switch (kind) {
    case KU_RPC_TAG_RECV:
        on_recv(c, success);
        break;
    case KU_RPC_TAG_SEND:
        on_sent(c, success);
        break;
    case KU_RPC_TAG_CLOSE:
        on_close(c);
        break;
    case KU_RPC_N_TAGS:
        break;
    }
    end_if_over(c);
}

void *ku_rpc_thread_main(void *thread)
{
    struct ku_rpc_thread *t = thread;
    for (;;) {
        grpc_event e = grpc_completion_queue_next(t->cq, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        struct ku_rpc_tag *tag = e.tag;
        if (e.type == GRPC_QUEUE_SHUTDOWN)
            return NULL;
        if (e.type != GRPC_OP_COMPLETE)
            continue;
        if (tag == &t->slot_tag)
            on_slot(t, e.success);
        else if (tag->call == NULL)
            on_shut(t->server);
        else
            on_event(tag->call, tag->kind, e.success);
    }
}
