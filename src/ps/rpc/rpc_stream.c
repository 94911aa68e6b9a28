/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/rpc/client.h"

#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

/*
 * A client's bidirectional stream: four batches on one completion queue, each waited for by its
 * tag.
 *
 *     BEGIN   metadata; waited for at the end alone
 *     END     the status, whenever the stream ends
 *     SEND    one message or the half-close; of the sending thread
 *     RECV    one message; of the receiving thread
 *
 * A message that cannot be sent or received means that the stream is over: END tells why.
 */
#define STATUS_NS KU_RPC_SECOND
enum tag { BEGIN, END, SEND, RECV, N_TAGS };

struct ku_rpc_stream {
    struct ku_rpc_channel *channel;
    const char *path;
    grpc_completion_queue *cq;
    grpc_call *call;
    char tag[N_TAGS];           /* their addresses are the tags */
    bool is_pending[N_TAGS];    /* SEND: of the sending thread; RECV: of the receiving one */
    grpc_byte_buffer *sending;  /* of the sending thread */
    grpc_byte_buffer *received; /* of the receiving thread */
    bool has_initial, has_closed;
    grpc_metadata_array initial;
    pthread_mutex_t lock; /* over END: end and is_pending[END] */
    struct ku_rpc_end end;
};

static void start(struct ku_rpc_stream *s, enum tag tag, const grpc_op *op, size_t n)
{
    grpc_call_error error = grpc_call_start_batch(s->call, op, n, &s->tag[tag], NULL);
    KU_ASSERT(error == GRPC_CALL_OK);
    s->is_pending[tag] = true;
}

/* 1: the batch has succeeded, 0: it has failed, -1: it is under way. */
static int await(struct ku_rpc_stream *s, enum tag tag, gpr_timespec deadline)
{
    grpc_event e = grpc_completion_queue_pluck(s->cq, &s->tag[tag], deadline, NULL);
    if (e.type != GRPC_OP_COMPLETE)
        return -1;
    s->is_pending[tag] = false;
    if (tag == SEND && s->sending) {
        grpc_byte_buffer_destroy(s->sending);
        s->sending = NULL;
    }
    return e.success ? 1 : 0;
}

int ku_rpc_stream_open(struct ku_rpc_channel *ch, const char *path, bool wait,
                       struct ku_rpc_stream **stream)
{
    struct ku_rpc_stream *s = ku_calloc(1, sizeof *s);
    if (s == NULL)
        return KUMI_ENOMEM;
    s->channel = ch;
    s->path = path;
    s->cq = ku_rpc_cq_take(ch);
    s->call = ku_rpc_call_create(ch, path, s->cq, gpr_inf_future(GPR_CLOCK_MONOTONIC));
    grpc_metadata_array_init(&s->initial);
    pthread_mutex_init(&s->lock, NULL);
    const grpc_op begin = ku_rpc_begin_op(ch, wait), end = ku_rpc_end_op(&s->end);
    start(s, BEGIN, &begin, 1);
    start(s, END, &end, 1);
    *stream = s;
    return KUMI_OK;
}

/*
 * The status with which the stream has ended; KUMI_OK: the server has finished with success. gRPC
 * holds it back while a message has not been received, which the other thread may not do any more:
 * after a while the call is cancelled, and that is its status.
 */
static int status_of(struct ku_rpc_stream *s, gpr_timespec deadline)
{
    pthread_mutex_lock(&s->lock);
    bool is_there = !s->is_pending[END] || await(s, END, ku_rpc_deadline(STATUS_NS)) >= 0;
    if (!is_there) {
        grpc_call_cancel(s->call, NULL);
        is_there = await(s, END, deadline) >= 0;
    }
    pthread_mutex_unlock(&s->lock);
    if (!is_there)
        return KU_ERR(KUMI_ETIMEDOUT, "rpc: %s%s: no status before the deadline",
                      s->channel->address.text, s->path);
    return ku_rpc_from_code(s->end.code, &s->end.trailing, s->channel->address.text, s->path,
                            &s->end.text);
}

static int late(const struct ku_rpc_stream *s, const char *what, int64_t timeout_ns)
{
    return KU_ERR(KUMI_ETIMEDOUT, "rpc: %s%s: %s within %.3f s", s->channel->address.text, s->path,
                  what, (double)timeout_ns / 1e9);
}

/* The stream has ended, and takes no message. */
static int over(struct ku_rpc_stream *s, gpr_timespec deadline)
{
    KU_TRY(status_of(s, deadline));
    return KU_ERR(KUMI_EPEER, "rpc: %s%s: the server has finished the stream",
                  s->channel->address.text, s->path);
}

/* Wait for the SEND batch. */
static int await_sent(struct ku_rpc_stream *s, gpr_timespec deadline, int64_t timeout_ns)
{
    const int sent = await(s, SEND, deadline);
    if (sent == 1)
        return KUMI_OK;
    return sent < 0 ? late(s, "the server did not read a message", timeout_ns) : over(s, deadline);
}

/*
 * Whether the status is there. A stream that was idle reads it here: a message to a server that has
 * ended would fail, and gRPC would drop the connection with the status unread. A look takes one
 * event of the process, and of a server that has ended each connection has one, so one look may
 * take that of another connection. Looks do not sleep: for a deadline of now, which gRPC rounds up,
 * each would take a millisecond of every message.
 */
static bool has_ended(struct ku_rpc_stream *s)
{
    enum { N_LOOKS = 4 };
    pthread_mutex_lock(&s->lock);
    bool is = !s->is_pending[END];
    for (int i = 0; i < N_LOOKS && !is; i++)
        is = await(s, END, gpr_inf_past(GPR_CLOCK_MONOTONIC)) >= 0;
    pthread_mutex_unlock(&s->lock);
    return is;
}

int ku_rpc_stream_send(struct ku_rpc_stream *s, struct ku_rpc_buf *b, int64_t timeout_ns)
{
    const gpr_timespec deadline = ku_rpc_deadline(timeout_ns);
    if (s->is_pending[SEND])
        KU_TRY(await_sent(s, deadline, timeout_ns));
    KU_ASSERT(!s->has_closed);
    if (has_ended(s)) {
        ku_rpc_buf_fini(b);
        return over(s, deadline);
    }
    s->sending = ku_rpc_buf_take(b);
    const grpc_op op = {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = s->sending};
    start(s, SEND, &op, 1);
    return await_sent(s, deadline, timeout_ns);
}

int ku_rpc_stream_close_send(struct ku_rpc_stream *s, int64_t timeout_ns)
{
    const gpr_timespec deadline = ku_rpc_deadline(timeout_ns);
    const grpc_op op = {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};
    if (s->is_pending[SEND])
        KU_TRY(await_sent(s, deadline, timeout_ns));
    if (s->has_closed)
        return KUMI_OK;
    s->has_closed = true;
    start(s, SEND, &op, 1);
    return await_sent(s, deadline, timeout_ns);
}

int ku_rpc_stream_recv(struct ku_rpc_stream *s, struct ku_rpc_msg *m, bool *is_end,
                       int64_t timeout_ns)
{
    const gpr_timespec deadline = ku_rpc_deadline(timeout_ns);
    *is_end = false;
    if (!s->is_pending[RECV]) {
        grpc_op op[2] = {{.op = GRPC_OP_RECV_MESSAGE}, {.op = GRPC_OP_RECV_INITIAL_METADATA}};
        op[0].data.recv_message.recv_message = &s->received;
        op[1].data.recv_initial_metadata.recv_initial_metadata = &s->initial;
        start(s, RECV, op, s->has_initial ? 1 : 2);
        s->has_initial = true;
    }
    if (await(s, RECV, deadline) < 0)
        return late(s, "no message", timeout_ns);
    if (s->received == NULL) {
        KU_TRY(status_of(s, deadline));
        *is_end = true;
        memset(m, 0, sizeof *m);
        return KUMI_OK;
    }
    grpc_byte_buffer *bb = s->received;
    s->received = NULL;
    return ku_rpc_msg_init(m, bb);
}

void ku_rpc_stream_cancel(struct ku_rpc_stream *s)
{
    grpc_call_cancel(s->call, NULL);
}

void ku_rpc_stream_destroy(struct ku_rpc_stream *s)
{
    if (s == NULL)
        return;
    if (s->is_pending[END])
        ku_rpc_stream_cancel(s);
    for (int tag = 0; tag < N_TAGS; tag++)
        if (s->is_pending[tag])
            (void)await(s, (enum tag)tag, gpr_inf_future(GPR_CLOCK_MONOTONIC));
    if (s->received)
        grpc_byte_buffer_destroy(s->received);
    ku_rpc_end_fini(&s->end);
    grpc_metadata_array_destroy(&s->initial);
    grpc_call_unref(s->call);
    ku_rpc_cq_give(s->channel, s->cq);
    pthread_mutex_destroy(&s->lock);
    ku_free(s);
}
