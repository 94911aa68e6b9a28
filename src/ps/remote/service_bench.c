/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/remote/service_bench.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "ps/remote/service_messages.h"
#include "ps/remote/service_server.h"
#include "ps/rpc/bench_stats.h"
#include "ps/rpc/rpc_limits.h"
#include "remote/sparse.h"

enum { MAX_ROUNDS = 64, SAMPLES = 16, INPUTS = 10 };
#define WAIT_NS KU_RPC_IDLE_NS

struct bench {
    const struct ku_ps_bench_opts *o;
    char *config, *run; /* of the model that is served */
    /* The server, and what it tells: its lock protects what follows. */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_listening, has_ended;
    int status;
    struct kumi_error error;
    /* The worker. */
    struct ku_rpc_channel *channel;
    struct ku_rpc_stream *push, *pull;
    size_t push_bytes, pull_bytes;
    unsigned char *pushed, *pulled; /* [push_bytes], zeros; [pull_bytes] */
};

/* -- the server ------------------------------------------------------------------------------- */

/* A file of numpy.save with zeros. shape: "16, 10" */
static int write_zeros(const char *dir, const char *name, const char *dtype, const char *shape,
                       size_t bytes)
{
    enum { HEAD = 128 }; /* "\x93NUMPY", version 1.0, u16 bytes of the text, text */
    char *path = ku_asprintf("%s/%s", dir, name);
    char *file = ku_calloc(HEAD + bytes, 1);
    int status = path && file ? KUMI_OK : KUMI_ENOMEM;
    if (status == KUMI_OK) {
        memset(file, ' ', HEAD);
        memcpy(file, "\x93NUMPY\x01\x00\x76\x00", 10);
        const int n =
            snprintf(file + 10, HEAD - 10,
                     "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", dtype, shape);
        file[10 + n] = ' ';
        file[HEAD - 1] = '\n';
        if (ku_os_replace(path, file, HEAD + bytes) < 0)
            status = KU_ERR(KUMI_ESTORAGE, "%s: cannot be written: %s", path, ku_os_why());
    }
    ku_free(path);
    ku_free(file);
    return status;
}

/* A classifier of zeros whose training ends with update `steps`. */
static int write_config(const struct bench *b, const char *hidden, int steps)
{
    char *text = ku_asprintf(
        "{\"model\": {\"model_type\": \"mlp\", \"input\": [%d], \"hidden\": [%s], "
        "\"num_classes\": %d}, \"data\": {\"kind\": \"npy\", \"train\": \"%s/x.npy\", "
        "\"train_labels\": \"%s/y.npy\"}, \"optimizer\": {\"type\": \"sgd\", \"lr\": 0.1, "
        "\"momentum\": 0, \"weight_decay\": 0}, \"train\": {\"steps\": %d, \"global_batch\": 1, "
        "\"micro_batch\": 1, \"threads\": 1, \"log_every\": 0}, \"checkpoint\": {\"every\": 0}, "
        "\"ps\": {\"workers\": 1}}",
        INPUTS, hidden, INPUTS, b->o->dir, b->o->dir, steps);
    int status = text ? KUMI_OK : KUMI_ENOMEM;
    if (text && ku_os_replace(b->config, text, strlen(text)) < 0)
        status = KU_ERR(KUMI_ESTORAGE, "%s: cannot be written: %s", b->config, ku_os_why());
    ku_free(text);
    return status;
}

static void on_listening(void *ctx, struct ku_rpc_server *rpc)
{
    struct bench *b = ctx;
    (void)rpc;
    pthread_mutex_lock(&b->lock);
    b->is_listening = true;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

static void *serve(void *arg)
{
    struct bench *b = arg;
    const struct kumi_train_options run = {.settings.config = b->config, .out = b->run};
    const struct ku_ps_server_opts o = {
        .rpc = {.listen = &b->o->address, .n_listen = 1}, .listening = on_listening, .ctx = b};
    struct kumi_train_result result = {0};
    const int status = ku_ps_serve(&run, &o, &result);
    pthread_mutex_lock(&b->lock);
    b->status = status;
    b->error = *ku_err_get();
    b->has_ended = true;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

/* Returns the status of the server, which ends: its training is complete, or it has failed. */
static int join(struct bench *b)
{
    pthread_join(b->thread, NULL);
    return b->status < 0 ? ku_err_put(&b->error) : KUMI_OK;
}

static int start_server(struct bench *b)
{
    b->is_listening = b->has_ended = false;
    if (pthread_create(&b->thread, NULL, serve, b) != 0)
        return KU_ERR(KUMI_ENOMEM, "ps bench: cannot start a thread");
    pthread_mutex_lock(&b->lock);
    while (!b->is_listening && !b->has_ended)
        pthread_cond_wait(&b->changed, &b->lock);
    const bool is_listening = b->is_listening;
    pthread_mutex_unlock(&b->lock);
    return is_listening ? KUMI_OK : join(b);
}

/* A server that still runs stops as after SIGTERM, which the run heeds while it listens. */
static void stop_server(struct bench *b)
{
    pthread_mutex_lock(&b->lock);
    if (!b->has_ended)
        kill(getpid(), SIGTERM);
    pthread_mutex_unlock(&b->lock);
}

/* -- the worker ------------------------------------------------------------------------------- */

/* layout: 0 asks for it */
static int connect_worker(struct bench *b, uint64_t layout, uint64_t *welcome)
{
    const uint64_t field[KU_PS_N_REQUEST] = {
        [KU_PS_Q_INCARNATION] = 1, [KU_PS_Q_LAYOUT] = layout, [KU_PS_Q_BEGIN] = UINT64_MAX};
    struct ku_rpc_buf buf;
    struct ku_rpc_msg m = {0};
    struct ku_proto_in numerics;
    KU_TRY(ku_ps_message_put(field, KU_PS_N_REQUEST, 0, 0, &buf, NULL));
    KU_TRY(ku_rpc_unary(b->channel, KU_PS_SERVICE "Connect", &buf, WAIT_NS, true, &m));
    const int status = ku_ps_message_get(&m, welcome, KU_PS_N_REPLY, KU_PS_R_NUMERICS, &numerics);
    ku_rpc_msg_fini(&m);
    return status;
}

static int open_worker(struct bench *b)
{
    const struct ku_rpc_channel_opts channel = {.address = b->o->address};
    uint64_t welcome[KU_PS_N_REPLY];
    KU_TRY(ku_rpc_channel_create(&channel, &b->channel));
    KU_TRY(connect_worker(b, 0, welcome));
    KU_TRY(connect_worker(b, welcome[KU_PS_R_LAYOUT], welcome));
    b->push_bytes = welcome[KU_PS_R_PUSH_BYTES];
    b->pull_bytes = welcome[KU_PS_R_PULL_BYTES];
    b->pushed = ku_calloc(b->push_bytes, 1);
    b->pulled = ku_calloc(b->pull_bytes, 1);
    if (b->pushed == NULL || b->pulled == NULL)
        return KUMI_ENOMEM;
    KU_TRY(ku_rpc_stream_open(b->channel, KU_PS_SERVICE "Push", true, &b->push));
    return ku_rpc_stream_open(b->channel, KU_PS_SERVICE "Pull", true, &b->pull);
}

static void close_worker(struct bench *b)
{
    ku_rpc_stream_destroy(b->push);
    ku_rpc_stream_destroy(b->pull);
    ku_rpc_channel_destroy(b->channel);
    b->push = b->pull = NULL;
    b->channel = NULL;
    ku_free(b->pushed);
    ku_free(b->pulled);
    b->pushed = b->pulled = NULL;
}

static int send_frame(struct bench *b, int step, size_t offset, const void *data, size_t bytes,
                      bool is_sparse)
{
    const uint64_t field[KU_PS_N_FRAME] = {[KU_PS_F_INCARNATION] = 1,
                                           [KU_PS_F_STEP] = (uint64_t)step,
                                           [KU_PS_F_OFFSET] = offset,
                                           [KU_PS_F_CHECKSUM] = ku_hash64(data, bytes),
                                           [KU_PS_F_SPARSE] = is_sparse};
    struct ku_rpc_buf buf;
    void *at;
    KU_TRY(ku_ps_message_put(field, KU_PS_N_FRAME, KU_PS_F_DATA, bytes, &buf, &at));
    memcpy(at, data, bytes);
    const int status = ku_rpc_stream_send(b->push, &buf, WAIT_NS);
    ku_rpc_buf_fini(&buf);
    return status;
}

static int receive(struct ku_rpc_stream *s, struct ku_rpc_msg *m)
{
    bool is_end = false;
    KU_TRY(ku_rpc_stream_recv(s, m, &is_end, WAIT_NS));
    return is_end ? KU_ERR(KUMI_EPEER, "ps bench: the server has ended the stream") : KUMI_OK;
}

static int await_acknowledgement(struct bench *b)
{
    struct ku_rpc_msg m = {0};
    const int status = receive(b->push, &m);
    ku_rpc_msg_fini(&m);
    return status;
}

/* A step of zeros as its worker would send it where all of it may be left out. */
static int push_zeros(struct bench *b, int step)
{
    uint64_t body[2] = {0}; /* bytes that it stands for, runs of others: remote/sparse.h */
    for (size_t at = 0; at < b->push_bytes; at += body[0]) {
        const size_t left = b->push_bytes - at;
        body[0] = left < KU_SPARSE_MAX_EXTENT_BYTES ? left : (size_t)KU_SPARSE_MAX_EXTENT_BYTES;
        KU_TRY(send_frame(b, step, at, body, sizeof body, true));
    }
    return await_acknowledgement(b);
}

static int take_frame(struct bench *b, const struct ku_rpc_msg *m, size_t at, size_t *bytes)
{
    uint64_t field[KU_PS_N_FRAME];
    struct ku_proto_in in;
    KU_TRY(ku_ps_message_get(m, field, KU_PS_N_FRAME, KU_PS_F_DATA, &in));
    *bytes = in.left;
    if (field[KU_PS_F_OFFSET] != at || in.left == 0 || in.left > b->pull_bytes - at)
        return KU_ERR(KUMI_EPEER, "ps bench: a frame of %zu bytes at %llu, where %zu is next",
                      in.left, (unsigned long long)field[KU_PS_F_OFFSET], at);
    KU_TRY(ku_proto_take(&in, b->pulled + at, *bytes));
    return ku_hash64(b->pulled + at, *bytes) == field[KU_PS_F_CHECKSUM]
               ? KUMI_OK
               : KU_ERR(KUMI_EINPUT, "ps bench: a frame is damaged");
}

/* All parameters with which a step begins. */
static int pull_all(struct bench *b, int step)
{
    const uint64_t field[KU_PS_N_FRAME] = {
        [KU_PS_F_INCARNATION] = 1, [KU_PS_F_STEP] = (uint64_t)step};
    struct ku_rpc_buf buf;
    struct ku_rpc_msg m = {0};
    KU_TRY(ku_ps_message_put(field, KU_PS_N_FRAME, 0, 0, &buf, NULL));
    int status = ku_rpc_stream_send(b->pull, &buf, WAIT_NS);
    ku_rpc_buf_fini(&buf);
    for (size_t at = 0, bytes; status == KUMI_OK && at < b->pull_bytes; at += bytes) {
        KU_TRY(receive(b->pull, &m));
        status = take_frame(b, &m, at, &bytes);
        ku_rpc_msg_fini(&m);
    }
    return status;
}

/* -- measurements ----------------------------------------------------------------------------- */

/* Rounds of pushes, the first one not measured; each after the update of the one before. */
static int measure_pushes(struct bench *b, struct ku_ps_bench *out)
{
    const int n = b->o->pushes, rounds = b->o->rounds, last = (rounds + 1) * n - 1;
    double p50[MAX_ROUNDS], p99[MAX_ROUNDS];
    double *us = ku_calloc((size_t)n, sizeof *us);
    int status;
    KU_TRY_OUT(us ? KUMI_OK : KUMI_ENOMEM);
    for (int step = 0; step <= last; step++) {
        const int64_t begin_ns = ku_clock_ns();
        KU_TRY_OUT(send_frame(b, step, 0, b->pushed, b->push_bytes, false));
        KU_TRY_OUT(await_acknowledgement(b));
        us[step % n] = 1e-3 * (double)(ku_clock_ns() - begin_ns);
        if (step < last)
            KU_TRY_OUT(pull_all(b, step + 1));
        if (step % n < n - 1 || step < n)
            continue;
        p50[step / n - 1] = ku_bench_quantile(us, n, 0.5);
        p99[step / n - 1] = ku_bench_quantile(us, n, 0.99);
    }
    out->push_bytes = b->push_bytes;
    out->p50_us = ku_bench_quantile(p50, rounds, 0.5);
    out->p99_us = ku_bench_quantile(p99, rounds, 0.5);
out:
    ku_free(us);
    return status;
}

static int measure_pulls(struct bench *b, struct ku_ps_bench *out)
{
    const int rounds = b->o->rounds;
    double rate[MAX_ROUNDS], per_cpu[MAX_ROUNDS];
    KU_TRY(pull_all(b, 0)); /* connection, memory */
    for (int r = 0; r < rounds; r++) {
        const double cpu_s = ku_bench_cpu_s();
        const int64_t begin_ns = ku_clock_ns();
        for (int i = 0; i < b->o->pulls; i++)
            KU_TRY(pull_all(b, 0));
        const double bytes = (double)b->pull_bytes * b->o->pulls;
        rate[r] = bytes / (1e-9 * (double)(ku_clock_ns() - begin_ns));
        per_cpu[r] = bytes / (ku_bench_cpu_s() - cpu_s);
    }
    out->pull_bytes = b->pull_bytes;
    out->bytes_per_s = ku_bench_quantile(rate, rounds, 0.5);
    out->bytes_per_cpu_s = ku_bench_quantile(per_cpu, rounds, 0.5);
    return push_zeros(b, 0); /* the last step of the training */
}

/* Serves a model, and measures until its training is complete. */
static int measure(struct bench *b, const char *name, const char *hidden, int steps,
                   int (*measure_all)(struct bench *, struct ku_ps_bench *),
                   struct ku_ps_bench *out)
{
    b->config = ku_asprintf("%s/%s.json", b->o->dir, name);
    b->run = ku_asprintf("%s/%s", b->o->dir, name);
    int status = b->config && b->run ? write_config(b, hidden, steps) : KUMI_ENOMEM;
    if (status == KUMI_OK)
        status = start_server(b);
    if (status == KUMI_OK) {
        status = open_worker(b);
        if (status == KUMI_OK)
            status = measure_all(b, out);
        const struct kumi_error error = *ku_err_get();
        close_worker(b);
        if (status < 0)
            stop_server(b);
        const int served = join(b);
        status = status < 0 ? ku_err_put(&error) : served;
    }
    ku_free(b->config);
    ku_free(b->run);
    return status;
}

int ku_ps_bench_run(const struct ku_ps_bench_opts *o, struct ku_ps_bench *out)
{
    struct bench b = {.o = o};
    char hidden[64];
    KU_ASSERT(o->rounds >= 1 && o->rounds <= MAX_ROUNDS && o->pushes >= 1 && o->pulls >= 1);
    snprintf(hidden, sizeof hidden, "%d, %d", o->width, 2 * o->width);
    KU_TRY(write_zeros(o->dir, "x.npy", "<f4", "16, 10", SAMPLES * INPUTS * sizeof(float)));
    KU_TRY(write_zeros(o->dir, "y.npy", "|u1", "16,", SAMPLES));
    pthread_mutex_init(&b.lock, NULL);
    pthread_cond_init(&b.changed, NULL);
    int status = measure(&b, "small", "", (o->rounds + 1) * o->pushes, measure_pushes, out);
    if (status == KUMI_OK)
        status = measure(&b, "large", hidden, 1, measure_pulls, out);
    pthread_cond_destroy(&b.changed);
    pthread_mutex_destroy(&b.lock);
    return status;
}
