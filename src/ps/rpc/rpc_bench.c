/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/rpc/rpc_bench.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "ps/rpc/bench_bare.h"
#include "ps/rpc/bench_stats.h"

enum { MAX_ROUNDS = 64 };

/* This layer's service: its method names are those of the bare one. */
struct own {
    const struct ku_rpc_bench_opts *o;
    char *parameters, *received; /* [frame_bytes] of server and client */
    int n_left;                  /* frames of the stream; one stream at a time */
    struct ku_rpc_server *server;
    struct ku_rpc_channel *channel;
};

static int on_push(void *ctx, struct ku_rpc_call *call, struct ku_rpc_msg *m)
{
    (void)ctx, (void)call, (void)m;
    return KUMI_OK;
}

static void send_frames(struct own *s, struct ku_rpc_call *call)
{
    enum { AHEAD = 2 };
    int status = KUMI_OK;
    while (status == KUMI_OK && s->n_left > 0 && ku_rpc_n_queued(call) < AHEAD) {
        struct ku_rpc_buf b;
        status = ku_rpc_buf_init(&b, (size_t)s->o->frame_bytes);
        if (status == KUMI_OK) {
            memcpy(b.data, s->parameters, b.bytes);
            status = ku_rpc_send(call, &b);
            ku_rpc_buf_fini(&b);
            s->n_left--;
        }
    }
    if (status < 0 || s->n_left == 0)
        ku_rpc_finish(call, status, NULL);
}

static int on_stream(void *ctx, struct ku_rpc_call *call, struct ku_rpc_msg *m)
{
    struct own *s = ctx;
    (void)m;
    s->n_left = s->o->frames;
    send_frames(s, call);
    return KU_RPC_HOLD;
}

static void on_sent(void *ctx, struct ku_rpc_call *call, int n_queued)
{
    (void)n_queued;
    send_frames(ctx, call);
}

static const struct ku_rpc_method methods[] = {
    {.path = "/Push", .message = on_push},
    {.path = "/Stream", .is_stream = true, .message = on_stream, .sent = on_sent},
};

static int push_own(struct own *s, const void *data, size_t bytes)
{
    struct ku_rpc_buf b;
    struct ku_rpc_msg m;
    KU_TRY(ku_rpc_buf_copy(&b, data, bytes));
    KU_TRY(ku_rpc_unary(s->channel, "/Push", &b, KU_RPC_IDLE_NS, false, &m));
    ku_rpc_msg_fini(&m);
    return KUMI_OK;
}

static int stream_own(struct own *s, size_t *bytes)
{
    struct ku_rpc_stream *stream;
    struct ku_rpc_buf b = {0};
    struct ku_rpc_msg m;
    bool is_end = false;
    KU_TRY(ku_rpc_stream_open(s->channel, "/Stream", false, &stream));
    int status = ku_rpc_stream_send(stream, &b, KU_RPC_IDLE_NS);
    while (status == KUMI_OK && !is_end) {
        status = ku_rpc_stream_recv(stream, &m, &is_end, KU_RPC_IDLE_NS);
        if (status == KUMI_OK && !is_end) {
            ku_rpc_msg_read(&m, 0, s->received, m.bytes);
            *bytes += m.bytes;
            ku_rpc_msg_fini(&m);
        }
    }
    ku_rpc_stream_destroy(stream);
    return status;
}

/* One turn of pushes: their times in us. */
static int time_pushes(struct own *own, struct ku_bare *bare, int kind, double *us)
{
    const struct ku_rpc_bench_opts *o = own->o;
    for (int i = 0; i < o->pushes; i++) {
        const int64_t begin = ku_clock_ns();
        if (kind == KU_RPC_BENCH_OWN)
            KU_TRY(push_own(own, own->parameters, (size_t)o->push_bytes));
        else
            ku_bare_push(bare, own->parameters, (size_t)o->push_bytes);
        us[i] = 1e-3 * (double)(ku_clock_ns() - begin);
    }
    return KUMI_OK;
}

static int time_stream(struct own *own, struct ku_bare *bare, int kind, double *per_s,
                       double *per_cpu_s)
{
    const double cpu = ku_bench_cpu_s();
    const int64_t begin = ku_clock_ns();
    size_t bytes = 0;
    if (kind == KU_RPC_BENCH_OWN)
        KU_TRY(stream_own(own, &bytes));
    else
        bytes = kind == KU_RPC_BENCH_BARE ? ku_bare_stream(bare) : ku_bare_echo(bare);
    KU_ASSERT(bytes == (size_t)own->o->frames * (size_t)own->o->frame_bytes);
    *per_s = (double)bytes / (1e-9 * (double)(ku_clock_ns() - begin));
    *per_cpu_s = (double)bytes / (ku_bench_cpu_s() - cpu);
    return KUMI_OK;
}

static int take_turns(struct own *own, struct ku_bare *bare, double *us, struct ku_rpc_bench *out)
{
    enum { P50, P99, RATE, CPU, N };
    static const double rank[] = {[P50] = 0.5, [P99] = 0.99};
    double v[KU_RPC_BENCH_KINDS][N][MAX_ROUNDS];
    const int rounds = own->o->rounds;
    for (int kind = 0; kind < KU_RPC_BENCH_KINDS; kind++) /* connections, memory */
        KU_TRY(time_pushes(own, bare, kind, us));
    for (int r = 0; r < rounds; r++)
        for (int kind = 0; kind < KU_RPC_BENCH_KINDS; kind++) {
            KU_TRY(time_pushes(own, bare, kind, us));
            v[kind][P50][r] = ku_bench_quantile(us, own->o->pushes, rank[P50]);
            v[kind][P99][r] = ku_bench_quantile(us, own->o->pushes, rank[P99]);
            KU_TRY(time_stream(own, bare, kind, &v[kind][RATE][r], &v[kind][CPU][r]));
        }
    for (int kind = 0; kind < KU_RPC_BENCH_KINDS; kind++) {
        out->p50_us[kind] = ku_bench_quantile(v[kind][P50], rounds, 0.5);
        out->p99_us[kind] = ku_bench_quantile(v[kind][P99], rounds, 0.5);
        out->bytes_per_s[kind] = ku_bench_quantile(v[kind][RATE], rounds, 0.5);
        out->bytes_per_cpu_s[kind] = ku_bench_quantile(v[kind][CPU], rounds, 0.5);
    }
    return KUMI_OK;
}

static int open_own(struct own *s)
{
    struct ku_rpc_server_opts server = {.listen = &s->o->address,
                                        .n_listen = 1,
                                        .method = methods,
                                        .n_methods = 2,
                                        .ctx = s,
                                        .n_threads = 1};
    server.limits.message_bytes = (size_t)s->o->push_bytes + 64;
    KU_TRY(ku_rpc_server_create(&server, &s->server));
    const struct ku_rpc_channel_opts client = {.address = ku_rpc_server_address(s->server, 0),
                                               .message_bytes = (size_t)s->o->frame_bytes + 64};
    return ku_rpc_channel_create(&client, &s->channel);
}

int ku_rpc_bench_run(const struct ku_rpc_bench_opts *o, struct ku_rpc_bench *out)
{
    const size_t bytes = (size_t)(o->frame_bytes > o->push_bytes ? o->frame_bytes : o->push_bytes);
    struct own own = {.o = o};
    struct ku_bare bare = {0};
    int status = KUMI_OK;
    KU_ASSERT(o->rounds >= 1 && o->rounds <= MAX_ROUNDS && o->pushes >= 1 && o->frames >= 1);
    double *us = ku_calloc((size_t)o->pushes, sizeof *us);
    own.parameters = ku_calloc(1, bytes);
    own.received = ku_calloc(1, bytes);
    if (us == NULL || own.parameters == NULL || own.received == NULL)
        KU_TRY_OUT(KUMI_ENOMEM);
    KU_TRY_OUT(open_own(&own));
    KU_TRY_OUT(ku_bare_init(&bare, o->address, (size_t)o->frame_bytes, o->frames));
    KU_TRY_OUT(take_turns(&own, &bare, us, out));
out:
    ku_bare_fini(&bare);
    ku_rpc_channel_destroy(own.channel);
    ku_rpc_server_destroy(own.server);
    ku_free(own.parameters);
    ku_free(own.received);
    ku_free(us);
    return status;
}
