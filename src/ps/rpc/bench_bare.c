/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/rpc/bench_bare.h"

#include <grpc/byte_buffer.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum { MAX_MESSAGE = 64 << 20 };

static void must(grpc_call_error error)
{
    KU_ASSERT(error == GRPC_CALL_OK);
}

/* The next event of the server: its tag is `tag`. False: the queue is at its end. */
static bool next(struct ku_bare *b, const void *tag)
{
    grpc_event e = grpc_completion_queue_next(b->cq, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    KU_ASSERT(e.type == GRPC_QUEUE_SHUTDOWN || e.tag == tag);
    return e.type == GRPC_OP_COMPLETE && e.success;
}

static void batch(struct ku_bare *b, grpc_call *call, const grpc_op *op, size_t n)
{
    must(grpc_call_start_batch(call, op, n, call, NULL));
    (void)next(b, call);
}

static grpc_byte_buffer *message_of(grpc_slice slice)
{
    return grpc_raw_byte_buffer_create(&slice, 1);
}

static void send_one(struct ku_bare *b, grpc_call *call, grpc_byte_buffer *out)
{
    const grpc_op op = {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = out};
    batch(b, call, &op, 1);
    grpc_byte_buffer_destroy(out);
}

static grpc_byte_buffer *recv_one(struct ku_bare *b, grpc_call *call)
{
    grpc_byte_buffer *in = NULL;
    const grpc_op op = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &in};
    batch(b, call, &op, 1);
    return in;
}

/* The reply with metadata and status in one batch. */
static void answer_push(struct ku_bare *b, grpc_call *call)
{
    grpc_byte_buffer *out = message_of(grpc_empty_slice());
    grpc_byte_buffer_destroy(recv_one(b, call));
    const grpc_op op[] = {{.op = GRPC_OP_SEND_INITIAL_METADATA},
                          {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = out},
                          {.op = GRPC_OP_SEND_STATUS_FROM_SERVER}};
    batch(b, call, op, 3);
    grpc_byte_buffer_destroy(out);
}

/* Frames of the same memory, or those of the client. */
static void answer_stream(struct ku_bare *b, grpc_call *call, bool is_echo)
{
    const grpc_op begin = {.op = GRPC_OP_SEND_INITIAL_METADATA},
                  end = {.op = GRPC_OP_SEND_STATUS_FROM_SERVER};
    grpc_byte_buffer *in;
    batch(b, call, &begin, 1);
    if (!is_echo)
        grpc_byte_buffer_destroy(recv_one(b, call));
    for (int i = 0; !is_echo && i < b->n_frames; i++)
        send_one(b, call, message_of(b->frame));
    while (is_echo && (in = recv_one(b, call)))
        send_one(b, call, in);
    batch(b, call, &end, 1);
}

static void answer(struct ku_bare *b, grpc_call *call, grpc_slice method)
{
    int cancelled;
    const grpc_op close = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER,
                           .data.recv_close_on_server.cancelled = &cancelled};
    if (grpc_slice_str_cmp(method, "/Push") == 0)
        answer_push(b, call);
    else
        answer_stream(b, call, grpc_slice_str_cmp(method, "/Echo") == 0);
    batch(b, call, &close, 1);
}

static void *serve(void *ctx)
{
    struct ku_bare *b = ctx;
    for (;;) {
        grpc_call *call = NULL;
        grpc_call_details details;
        grpc_metadata_array metadata;
        grpc_call_details_init(&details);
        grpc_metadata_array_init(&metadata);
        must(grpc_server_request_call(b->server, &call, &details, &metadata, b->cq, b->cq, b));
        const bool is_call = next(b, b);
        if (is_call)
            answer(b, call, details.method);
        if (call)
            grpc_call_unref(call);
        grpc_call_details_destroy(&details);
        grpc_metadata_array_destroy(&metadata);
        if (!is_call)
            return NULL;
    }
}

int ku_bare_init(struct ku_bare *b, const char *address, size_t frame_bytes, int n_frames)
{
    grpc_arg arg = ku_rpc_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, MAX_MESSAGE);
    const grpc_channel_args args = {1, &arg};
    struct ku_rpc_address at;
    char text[KU_RPC_MAX_ADDRESS + 8];
    memset(b, 0, sizeof *b);
    KU_TRY(ku_rpc_address_parse(address, &at));
    ku_rpc_runtime_init();
    b->n_frames = n_frames;
    b->frame = grpc_slice_malloc(frame_bytes);
    memset(GRPC_SLICE_START_PTR(b->frame), 1, frame_bytes);
    b->server = grpc_server_create(&args, NULL);
    b->cq = grpc_completion_queue_create_for_next(NULL);
    b->client_cq = grpc_completion_queue_create_for_pluck(NULL);
    grpc_server_register_completion_queue(b->server, b->cq, NULL);
    grpc_server_credentials *own = grpc_insecure_server_credentials_create();
    snprintf(text, sizeof text, "%s%s", at.text, at.is_unix ? ".bare" : "");
    const int port = grpc_server_add_http2_port(b->server, text, own);
    grpc_server_credentials_release(own);
    if (!at.is_unix) {
        ku_rpc_address_set_port(&at, (uint16_t)port);
        snprintf(text, sizeof text, "%s", at.text);
    }
    grpc_server_start(b->server);
    grpc_channel_credentials *creds = grpc_insecure_credentials_create();
    b->channel = grpc_channel_create(text, creds, &args);
    grpc_channel_credentials_release(creds);
    if (port <= 0 || pthread_create(&b->thread, NULL, serve, b) != 0)
        return KU_ERR(KUMI_ESTORAGE, "rpc: bench: %s: no server with gRPC alone", text);
    return KUMI_OK;
}

void ku_bare_fini(struct ku_bare *b)
{
    if (b->server == NULL)
        return;
    grpc_completion_queue *last = grpc_completion_queue_create_for_pluck(NULL);
    grpc_channel_destroy(b->channel);
    grpc_server_shutdown_and_notify(b->server, last, b);
    grpc_server_cancel_all_calls(b->server);
    if (b->thread) /* which has ended its last call, and is refused the next one */
        pthread_join(b->thread, NULL);
    (void)grpc_completion_queue_pluck(last, b, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    grpc_server_destroy(b->server);
    grpc_completion_queue *all[] = {b->cq, b->client_cq, last};
    for (int i = 0; i < 3; i++) {
        grpc_completion_queue_shutdown(all[i]);
        grpc_completion_queue_destroy(all[i]);
    }
    grpc_slice_unref(b->frame);
    ku_rpc_runtime_fini();
}

/* The client's side: operations of a call, each waited for by its own tag. */
enum { BEGIN, SEND, RECV, END, N_OPS };
struct client {
    struct ku_bare *b;
    grpc_call *call;
    char tag[N_OPS];
};
static void start(struct client *c, int tag, const grpc_op *op)
{
    must(grpc_call_start_batch(c->call, op, 1, &c->tag[tag], NULL));
}
static void await(struct client *c, int tag)
{
    (void)grpc_completion_queue_pluck(c->b->client_cq, &c->tag[tag],
                                      gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
}

/*
 * A stream on which the client sends n frames, the next one while the last one comes back, and
 * takes what comes.
 */
static size_t client(struct ku_bare *b, const char *path, int n, grpc_slice frame)
{
    struct client c = {.b = b};
    grpc_byte_buffer *in = NULL, *out;
    grpc_metadata_array initial;
    struct ku_rpc_end end = {0};
    size_t bytes = 0;
    c.call = grpc_channel_create_call(b->channel, NULL, GRPC_PROPAGATE_DEFAULTS, b->client_cq,
                                      grpc_slice_from_static_string(path), NULL,
                                      gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    grpc_metadata_array_init(&initial);
    const grpc_op begin = {.op = GRPC_OP_SEND_INITIAL_METADATA},
                  half = {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT},
                  first = {.op = GRPC_OP_RECV_INITIAL_METADATA,
                           .data.recv_initial_metadata.recv_initial_metadata = &initial},
                  recv = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &in},
                  last = ku_rpc_end_op(&end);
    start(&c, BEGIN, &begin);
    await(&c, BEGIN);
    for (int i = 0; i == 0 || in; i++) {
        if (in)
            bytes += grpc_byte_buffer_length(in);
        if (in)
            grpc_byte_buffer_destroy(in);
        in = NULL;
        out = i < n ? message_of(frame) : NULL;
        const grpc_op send = {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = out};
        if (i <= n)
            start(&c, SEND, out ? &send : &half);
        if (i == 0) {
            start(&c, BEGIN, &first);
            await(&c, BEGIN);
        }
        start(&c, RECV, &recv);
        if (i <= n)
            await(&c, SEND);
        if (out)
            grpc_byte_buffer_destroy(out);
        await(&c, RECV);
    }
    start(&c, END, &last);
    await(&c, END);
    KU_ASSERT(end.code == GRPC_STATUS_OK);
    ku_rpc_end_fini(&end);
    grpc_metadata_array_destroy(&initial);
    grpc_call_unref(c.call);
    return bytes;
}

/* As ku_rpc_unary: one batch. */
void ku_bare_push(struct ku_bare *b, const void *data, size_t bytes)
{
    const gpr_timespec never = gpr_inf_future(GPR_CLOCK_MONOTONIC);
    grpc_slice request = grpc_slice_from_copied_buffer(data, bytes);
    grpc_call *call =
        grpc_channel_create_call(b->channel, NULL, GRPC_PROPAGATE_DEFAULTS, b->client_cq,
                                 grpc_slice_from_static_string("/Push"), NULL, never, NULL);
    grpc_metadata_array initial;
    struct ku_rpc_end end = {0};
    grpc_byte_buffer *out = message_of(request), *in = NULL;
    grpc_metadata_array_init(&initial);
    const grpc_op op[] = {{.op = GRPC_OP_SEND_INITIAL_METADATA},
                          {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = out},
                          {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT},
                          {.op = GRPC_OP_RECV_INITIAL_METADATA,
                           .data.recv_initial_metadata.recv_initial_metadata = &initial},
                          {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &in},
                          ku_rpc_end_op(&end)};
    must(grpc_call_start_batch(call, op, 6, call, NULL));
    (void)grpc_completion_queue_pluck(b->client_cq, call, never, NULL);
    KU_ASSERT(end.code == GRPC_STATUS_OK && in);
    ku_rpc_end_fini(&end);
    grpc_byte_buffer_destroy(in);
    grpc_byte_buffer_destroy(out);
    grpc_slice_unref(request);
    grpc_metadata_array_destroy(&initial);
    grpc_call_unref(call);
}

size_t ku_bare_stream(struct ku_bare *b)
{
    return client(b, "/Stream", 1, grpc_empty_slice());
}

size_t ku_bare_echo(struct ku_bare *b)
{
    return client(b, "/Echo", b->n_frames, b->frame);
}
