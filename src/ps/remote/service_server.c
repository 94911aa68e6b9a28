/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/remote/service_server.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "ps/remote/layout_message.h"
#include "ps/remote/service_messages.h"
#include "ps/rpc/rpc_limits.h"

enum { CONNECT, LAYOUT, PUSH, PULL, STATUS, SNAPSHOT, DRAIN, N_METHODS };
enum { AHEAD = 4 /* frames of a pull that wait to be sent: enough to keep a connection busy */ };
#define GRACE_NS (30 * INT64_C(1000000000)) /* for workers to read the last frames and the status */

struct server;
/* A stream of a worker, or a snapshot that is waited for. */
struct stream {
    struct stream *next; /* list of the server */
    struct server *server;
    struct ku_rpc_call *call;
    int method;
    struct ku_ps_hello from;
    bool is_known; /* from is set: it counts as presence */
    bool is_ended; /* the end of the run was sent */
    /* push: a complete step that is to be acknowledged; -1: none */
    int64_t acked, complete;
    uint64_t number; /* of its last record */
    /* pull */
    bool is_pulling;
    struct ku_ps_selection what;
    uint32_t *row; /* its rows */
    int64_t step, seen;
    int64_t since; /* frames leave out what has not changed after this update; -1: nothing */
    int64_t whole; /* the update of the last complete answer, of the whole space; -1: none */
    size_t offset; /* in the answer */
    /* snapshot */
    int64_t version;
};

struct server {
    const struct ku_ps_server_opts *o;
    struct ku_ps_service *service;
    struct ku_rpc_server *rpc;
    struct ku_rpc_method method[N_METHODS];
    const struct ku_remote_layout *layout; /* the engine's */
    int server, n_servers;
    char *out;            /* directory of the run */
    pthread_mutex_t lock; /* protects the list and the streams; held while frames are made */
    pthread_cond_t changed;
    struct stream *stream;
    uint64_t n_events; /* updates, and what else may let a stream go on */
    bool is_stopping, has_threads;
    pthread_t syncer, puller;
};

/* -- streams ---------------------------------------------------------------------------------- */

static int add_stream(struct server *s, struct ku_rpc_call *call)
{
    struct stream *x = ku_calloc(1, sizeof *x);
    if (x == NULL)
        return KUMI_ENOMEM;
    *x = (struct stream){.server = s,
                         .call = call,
                         .method = ku_rpc_method_index(call),
                         .version = -1,
                         .acked = -1,
                         .complete = -1,
                         .seen = -1,
                         .since = -1,
                         .whole = -1};
    ku_rpc_set_data(call, x);
    pthread_mutex_lock(&s->lock);
    x->next = s->stream;
    s->stream = x;
    pthread_mutex_unlock(&s->lock);
    return KUMI_OK;
}

static int on_open(void *ctx, struct ku_rpc_call *call)
{
    return add_stream(ctx, call);
}

static void on_close(void *ctx, struct ku_rpc_call *call, int status)
{
    struct server *s = ctx;
    struct stream *x = ku_rpc_get_data(call);
    (void)status;
    if (x == NULL)
        return;
    pthread_mutex_lock(&s->lock);
    struct stream **at = &s->stream;
    while (*at != x)
        at = &(*at)->next;
    *at = x->next;
    pthread_mutex_unlock(&s->lock);
    if (x->is_known)
        ku_ps_leave(s->service, &x->from);
    ku_free(x->row);
    ku_free(x);
}

/*
 * A worker that connects again has one stream of a method: an older one, also of a process before
 * it, whose peer may not read, would hold its frames. lock is held.
 */
static void end_older(const struct stream *x, const struct ku_ps_hello *from)
{
    for (struct stream *old = x->server->stream; old; old = old->next) {
        if (old == x || old->method != x->method || !old->is_known ||
            old->from.worker != from->worker || old->from.incarnation > from->incarnation)
            continue;
        old->is_pulling = false;
        old->complete = -1;
        ku_rpc_abort(old->call,
                     KU_ERR(KUMI_EPEER, "ps: worker %d has opened another stream", from->worker));
    }
}

/* The first message of a stream says whose it is; others say the same. */
static int identify(struct stream *x, const uint64_t *field)
{
    const struct ku_ps_hello from = {.worker = (int32_t)field[KU_PS_F_WORKER],
                                     .incarnation = field[KU_PS_F_INCARNATION]};
    if (x->is_known && from.worker == x->from.worker && from.incarnation == x->from.incarnation)
        return KUMI_OK;
    if (x->is_known)
        return KU_ERR(KUMI_EINVAL,
                      "ps: a stream of worker %d, incarnation %llu, has a message of worker %d, "
                      "incarnation %llu",
                      x->from.worker, (unsigned long long)x->from.incarnation, from.worker,
                      (unsigned long long)from.incarnation);
    KU_TRY(ku_ps_join(x->server->service, &from)); /* before it ends a stream of the worker */
    pthread_mutex_lock(&x->server->lock);
    end_older(x, &from);
    x->from = from;
    x->is_known = true;
    pthread_mutex_unlock(&x->server->lock);
    return KUMI_OK;
}

/* -- push ------------------------------------------------------------------------------------- */

static int send_fields(struct ku_rpc_call *call, const uint64_t *field, uint32_t n)
{
    struct ku_rpc_buf b;
    KU_TRY(ku_ps_message_put(field, n, 0, 0, &b, NULL));
    const int status = ku_rpc_send(call, &b);
    ku_rpc_buf_fini(&b);
    return status;
}

static int acknowledge(struct ku_rpc_call *call, int64_t step)
{
    uint64_t field[KU_PS_N_FRAME] = {[KU_PS_F_STEP] = (uint64_t)step};
    return send_fields(call, field, KU_PS_N_FRAME);
}

/* A frame's data, checked, contiguous; freed with ku_free. */
static int take_data(const struct stream *x, const uint64_t *field, struct ku_proto_in *in,
                     void **data, size_t *bytes)
{
    *bytes = in->left;
    if (*bytes > KU_PS_FRAME_BYTES)
        return KU_ERR(KUMI_EINVAL, "ps: worker %d: a frame of %zu bytes; at most %d",
                      x->from.worker, *bytes, KU_PS_FRAME_BYTES);
    *data = ku_malloc(*bytes);
    if (*data == NULL)
        return KUMI_ENOMEM;
    int status = ku_proto_take(in, *data, *bytes);
    const uint64_t is = status == KUMI_OK ? ku_hash64(*data, *bytes) : 0;
    if (status == KUMI_OK && is != field[KU_PS_F_CHECKSUM])
        status = KU_ERR(KUMI_EINPUT,
                        "ps: worker %d: a frame of step %lld is damaged: checksum %016llx, sent "
                        "%016llx",
                        x->from.worker, (long long)field[KU_PS_F_STEP], (unsigned long long)is,
                        (unsigned long long)field[KU_PS_F_CHECKSUM]);
    if (status < 0)
        ku_free(*data);
    return status;
}

static int on_push(void *ctx, struct ku_rpc_call *call, struct ku_rpc_msg *m)
{
    struct server *s = ctx;
    struct stream *x = ku_rpc_get_data(call);
    uint64_t field[KU_PS_N_FRAME], number = 0;
    struct ku_proto_in in;
    void *data = NULL;
    size_t bytes = 0;
    bool is_complete = false;
    KU_TRY(ku_ps_message_get(m, field, KU_PS_N_FRAME, KU_PS_F_DATA, &in));
    KU_TRY(identify(x, field));
    KU_TRY(take_data(x, field, &in, &data, &bytes));
    const int64_t step = (int64_t)field[KU_PS_F_STEP];
    const struct ku_ps_piece piece = {.step = step,
                                      .offset = field[KU_PS_F_OFFSET],
                                      .data = data,
                                      .bytes = bytes,
                                      .is_sparse = field[KU_PS_F_SPARSE] != 0};
    const int status = ku_ps_push(s->service, &x->from, &piece, &number, &is_complete);
    ku_free(data);
    KU_TRY(status);
    if (!is_complete)
        return KUMI_OK;
    pthread_mutex_lock(&s->lock);
    if (step > x->acked) {
        x->complete = x->acked = step;
        x->number = number;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return KUMI_OK;
}

/* The last record that a step waits for; 0: none does. lock is held. */
static uint64_t awaited(const struct server *s)
{
    uint64_t number = 0;
    for (const struct stream *x = s->stream; x; x = x->next)
        if (x->method == PUSH && x->complete >= 0 && x->number > number)
            number = x->number;
    return number;
}

/* Acknowledges steps whose records are on the disk up to `number`. lock is held. */
static void acknowledge_all(struct server *s, uint64_t number, int status)
{
    for (struct stream *x = s->stream; x; x = x->next) {
        if (x->method != PUSH || x->complete < 0 || x->number > number)
            continue;
        const int sent = status < 0 ? status : acknowledge(x->call, x->complete);
        x->complete = -1;
        if (sent < 0)
            ku_rpc_finish(x->call, sent, NULL);
    }
}

static void *syncer_main(void *arg)
{
    struct server *s = arg;
    pthread_mutex_lock(&s->lock);
    for (uint64_t number; !s->is_stopping;) {
        while ((number = awaited(s)) == 0 && !s->is_stopping)
            pthread_cond_wait(&s->changed, &s->lock);
        pthread_mutex_unlock(&s->lock);
        const int status = number ? ku_ps_sync(s->service, number) : KUMI_OK;
        pthread_mutex_lock(&s->lock);
        acknowledge_all(s, number, status);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* -- pull ------------------------------------------------------------------------------------- */

static int send_part(struct stream *x, const struct ku_ps_pulled *p, const void *data)
{
    const uint64_t field[KU_PS_N_FRAME] = {[KU_PS_F_STEP] = (uint64_t)x->step,
                                           [KU_PS_F_OFFSET] =
                                               x->offset + (x->what.n_rows ? 0 : x->what.offset),
                                           [KU_PS_F_CHECKSUM] = ku_hash64(data, p->bytes),
                                           [KU_PS_F_VERSION] = (uint64_t)p->seen,
                                           [KU_PS_F_SPARSE] = p->is_sparse};
    struct ku_rpc_buf b;
    void *at;
    KU_TRY(ku_ps_message_put(field, KU_PS_N_FRAME, KU_PS_F_DATA, p->bytes, &b, &at));
    memcpy(at, data, p->bytes);
    const int status = ku_rpc_send(x->call, &b);
    ku_rpc_buf_fini(&b);
    return status;
}

/* The next frame; *is_there: its update is. lock is held. */
static int send_next(struct server *s, struct stream *x, bool *is_there)
{
    struct ku_ps_pulled p = {
        .step = x->step, .what = &x->what, .since = x->since, .offset = x->offset, .seen = -1};
    unsigned char *data = ku_malloc(KU_PS_FRAME_BYTES);
    int status = data ? ku_ps_pull(s->service, &x->from, &p, data) : KUMI_ENOMEM;
    *is_there = status == KUMI_OK && p.seen >= 0;
    if (*is_there && x->offset > 0 && p.seen != x->seen) {
        x->offset = 0; /* the update before is gone, and the worker has parts of it */
        x->since = -1;
    } else if (*is_there) {
        status = send_part(x, &p, data);
        x->seen = p.seen;
        x->offset += p.extent;
    }
    ku_free(data);
    return status;
}

/* Whether the pull is of the whole space. */
static bool is_whole(const struct server *s, const struct stream *x)
{
    return x->what.n_rows == 0 && x->what.bytes == s->layout->pull_bytes[s->server];
}

/* Sends frames while the queue has room. lock is held. */
static void pump(struct server *s, struct stream *x)
{
    bool is_there = true;
    int status = KUMI_OK;
    while (status == KUMI_OK && is_there && x->is_pulling && ku_rpc_n_queued(x->call) < AHEAD) {
        status = send_next(s, x, &is_there);
        if (status < 0 || !is_there || x->offset < ku_ps_selection_bytes(&x->what))
            continue;
        x->is_pulling = false;
        x->whole = is_whole(s, x) ? x->seen : -1;
        ku_rpc_next(x->call);
    }
    if (status < 0) {
        x->is_pulling = false;
        ku_rpc_finish(x->call, status, NULL);
    }
}

/* What a request asks for, of the stream. Nothing reads it meanwhile: no pull is under way. */
static int select_what(struct server *s, struct stream *x, const uint64_t *field,
                       struct ku_proto_in *rows)
{
    const size_t bytes = rows->left, each = sizeof *x->row;
    ku_free(x->row);
    x->row = NULL;
    if (bytes % each)
        return KU_ERR(KUMI_EINVAL, "ps: worker %d: row numbers in %zu bytes; each has %zu",
                      x->from.worker, bytes, each);
    if (bytes > 0 && bytes <= KU_PS_MAX_ROWS * each) { /* else ku_ps_select refuses them */
        x->row = ku_malloc(bytes);
        if (x->row == NULL)
            return KUMI_ENOMEM;
        KU_TRY(ku_proto_take(rows, x->row, bytes));
    }
    x->what = (struct ku_ps_selection){.offset = field[KU_PS_F_OFFSET],
                                       .bytes = field[KU_PS_F_BYTES],
                                       .row_bytes = field[KU_PS_F_ROW_BYTES],
                                       .row = x->row,
                                       .n_rows = bytes / each};
    return ku_ps_select(s->service, &x->from, &x->what);
}

static int on_pull(void *ctx, struct ku_rpc_call *call, struct ku_rpc_msg *m)
{
    struct server *s = ctx;
    struct stream *x = ku_rpc_get_data(call);
    uint64_t field[KU_PS_N_FRAME];
    struct ku_proto_in rows;
    KU_TRY(ku_ps_message_get(m, field, KU_PS_N_FRAME, KU_PS_F_ROWS, &rows));
    KU_TRY(identify(x, field));
    KU_TRY(select_what(s, x, field, &rows));
    pthread_mutex_lock(&s->lock);
    x->step = (int64_t)field[KU_PS_F_STEP];
    x->offset = 0;
    x->since = field[KU_PS_F_SPARSE] && is_whole(s, x) ? x->whole : -1;
    x->seen = x->whole = -1;
    x->is_pulling = true;
    s->n_events++;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return KU_RPC_HOLD;
}

static void on_sent(void *ctx, struct ku_rpc_call *call, int n_queued)
{
    struct server *s = ctx;
    struct stream *x = ku_rpc_get_data(call);
    if (n_queued >= AHEAD || x->method != PULL)
        return;
    pthread_mutex_lock(&s->lock);
    if (x->is_pulling)
        pump(s, x);
    pthread_mutex_unlock(&s->lock);
}

/* Ends the snapshots whose checkpoint is complete; all when the run ends. lock is held. */
static void end_snapshots(struct server *s)
{
    struct ku_ps_state state;
    const int status = ku_ps_state(s->service, &state);
    for (struct stream *x = s->stream; x; x = x->next) {
        if (x->method != SNAPSHOT || x->version < 0 ||
            (status == KUMI_OK && state.saved < x->version))
            continue;
        const uint64_t field[KU_PS_N_STATE] = {[KU_PS_S_VERSION] = (uint64_t)state.saved};
        struct ku_rpc_buf b = {0};
        int made = status;
        if (made == KUMI_OK)
            made = ku_ps_message_put(field, KU_PS_N_STATE, 0, 0, &b, NULL);
        x->version = -1;
        ku_rpc_finish(x->call, made, made == KUMI_OK ? &b : NULL);
    }
}

/* The first stream becomes the last one. lock is held. */
static void rotate(struct server *s)
{
    struct stream *first = s->stream, **end = &s->stream;
    while (*end)
        end = &(*end)->next;
    if (first == NULL || first->next == NULL)
        return;
    s->stream = first->next;
    first->next = NULL;
    *end = first;
}

static void *puller_main(void *arg)
{
    struct server *s = arg;
    uint64_t seen = 0;
    pthread_mutex_lock(&s->lock);
    while (!s->is_stopping) {
        while (s->n_events == seen && !s->is_stopping)
            pthread_cond_wait(&s->changed, &s->lock);
        seen = s->n_events;
        for (struct stream *x = s->stream; x; x = x->next)
            if (x->method == PULL && x->is_pulling)
                pump(s, x);
        rotate(s); /* the next update may begin before the last ones have had their turn */
        end_snapshots(s);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static void on_changed(void *ctx)
{
    struct server *s = ctx;
    pthread_mutex_lock(&s->lock);
    s->n_events++;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* -- unary calls ------------------------------------------------------------------------------ */

static int reply(struct ku_rpc_call *call, const uint64_t *field, uint32_t n, uint32_t data_field,
                 const char *text)
{
    struct ku_rpc_buf b;
    void *at = NULL;
    const size_t bytes = data_field ? strlen(text) : 0;
    KU_TRY(ku_ps_message_put(field, n, data_field, bytes, &b, &at));
    if (bytes)
        memcpy(at, text, bytes);
    ku_rpc_finish(call, KUMI_OK, &b);
    return KUMI_OK;
}

static int on_connect(void *ctx, struct ku_rpc_call *call, struct ku_rpc_msg *m)
{
    struct server *s = ctx;
    uint64_t field[KU_PS_N_REQUEST];
    struct ku_ps_welcome w;
    KU_TRY(ku_ps_message_get(m, field, KU_PS_N_REQUEST, 0, NULL));
    const struct ku_ps_hello in = {.worker = (int32_t)field[KU_PS_Q_WORKER],
                                   .incarnation = field[KU_PS_Q_INCARNATION],
                                   .layout = field[KU_PS_Q_LAYOUT],
                                   .begin = (int64_t)field[KU_PS_Q_BEGIN]};
    KU_TRY(ku_ps_connect(s->service, &in, &w));
    const uint64_t out[KU_PS_N_REPLY] = {[KU_PS_R_LAYOUT] = w.layout,
                                         [KU_PS_R_SERVER] = (uint64_t)w.server,
                                         [KU_PS_R_N_SERVERS] = (uint64_t)w.n_servers,
                                         [KU_PS_R_N_WORKERS] = (uint64_t)w.n_workers,
                                         [KU_PS_R_MODE] = (uint64_t)w.engine.mode,
                                         [KU_PS_R_STALENESS] = (uint64_t)w.engine.staleness,
                                         [KU_PS_R_BACKUP] = (uint64_t)w.engine.backup,
                                         [KU_PS_R_VERSION] = (uint64_t)w.version,
                                         [KU_PS_R_BEGIN] = (uint64_t)w.begin,
                                         [KU_PS_R_PUSH_BYTES] = w.push_bytes,
                                         [KU_PS_R_PUSH_PAYLOAD] = w.push_payload,
                                         [KU_PS_R_PULL_BYTES] = w.pull_bytes,
                                         [KU_PS_R_INCARNATION] = w.incarnation,
                                         [KU_PS_R_TAKES_SPARSE] = 1,
                                         [KU_PS_R_TAKES_RANGES] = 1};
    return reply(call, out, KU_PS_N_REPLY, KU_PS_R_NUMERICS, w.numerics);
}

static int on_layout(void *ctx, struct ku_rpc_call *call, struct ku_rpc_msg *m)
{
    const struct server *s = ctx;
    struct ku_rpc_buf b;
    (void)m;
    KU_TRY(ku_ps_layout_put(s->layout, s->server, &b));
    ku_rpc_finish(call, KUMI_OK, &b);
    return KUMI_OK;
}

static int on_status(void *ctx, struct ku_rpc_call *call, struct ku_rpc_msg *m)
{
    const struct server *s = ctx;
    struct ku_ps_state x;
    (void)m;
    KU_TRY(ku_ps_state(s->service, &x));
    const uint64_t out[KU_PS_N_STATE] = {[KU_PS_S_SERVER] = (uint64_t)x.server,
                                         [KU_PS_S_N_SERVERS] = (uint64_t)x.n_servers,
                                         [KU_PS_S_N_WORKERS] = (uint64_t)x.n_workers,
                                         [KU_PS_S_N_CONNECTED] = (uint64_t)x.n_present,
                                         [KU_PS_S_MODE] = (uint64_t)x.mode,
                                         [KU_PS_S_VERSION] = (uint64_t)x.version,
                                         [KU_PS_S_SAVED] = (uint64_t)x.saved,
                                         [KU_PS_S_PUSHES] = x.pushes,
                                         [KU_PS_S_REPEATED] = x.repeated,
                                         [KU_PS_S_REFUSED] = x.refused,
                                         [KU_PS_S_PUSHED_BYTES] = x.pushed_bytes,
                                         [KU_PS_S_PULLED_BYTES] = x.pulled_bytes,
                                         [KU_PS_S_JOURNAL_RECORDS] = x.journal_records,
                                         [KU_PS_S_DROPPED] = x.dropped};
    return reply(call, out, KU_PS_N_STATE, 0, NULL);
}

/* Answered by the pull thread when the checkpoint is complete. */
static int on_snapshot(void *ctx, struct ku_rpc_call *call, struct ku_rpc_msg *m)
{
    struct server *s = ctx;
    struct ku_ps_state state;
    (void)m;
    KU_TRY(ku_ps_state(s->service, &state));
    if (state.server != 0)
        return KU_ERR(KUMI_EINVAL, "ps: server %d: server 0 takes snapshots", state.server);
    if (state.version == 0)
        return KU_ERR(KUMI_EINVAL, "ps: no update yet, so there is nothing to save");
    KU_TRY(add_stream(s, call));
    struct stream *x = ku_rpc_get_data(call);
    pthread_mutex_lock(&s->lock);
    x->version = state.version;
    pthread_mutex_unlock(&s->lock);
    if (state.saved < state.version)
        ku_ps_want_saving(s->service);
    on_changed(s);
    return KU_RPC_HOLD;
}

static int on_drain(void *ctx, struct ku_rpc_call *call, struct ku_rpc_msg *m)
{
    const struct server *s = ctx;
    struct ku_ps_state x;
    (void)m;
    KU_TRY(ku_ps_state(s->service, &x));
    const uint64_t out[KU_PS_N_STATE] = {[KU_PS_S_VERSION] = (uint64_t)x.version};
    kill(getpid(), SIGTERM); /* the run heeds it: its job ends as on any stop signal */
    return reply(call, out, KU_PS_N_STATE, 0, NULL);
}

/* -- the run ---------------------------------------------------------------------------------- */

/* The addresses of this server; the caller frees text[i]. */
static int name_addresses(const struct server *s, const char *const *from, int n, char **text)
{
    for (int i = 0; i < n; i++) {
        const char *colon = strrchr(from[i], ':');
        const bool is_path = strncmp(from[i], "unix:", 5) == 0;
        char *end = NULL;
        const long port = is_path || colon == NULL ? 0 : strtol(colon + 1, &end, 10);
        if (!s->o->spreads || s->n_servers == 1)
            text[i] = ku_strdup(from[i]);
        else if (is_path)
            text[i] = ku_asprintf("%s-%d", from[i], s->server);
        else if (port == 0 || *end)
            text[i] = ku_strdup(from[i]);
        else
            text[i] = ku_asprintf("%.*s:%ld", (int)(colon - from[i]), from[i], port + s->server);
        if (text[i] == NULL)
            return KUMI_ENOMEM;
    }
    return KUMI_OK;
}

static int listen_on(struct server *s, struct ku_rpc_server_opts *o)
{
    char *text[KU_RPC_MAX_LISTEN] = {NULL};
    int status;
    if (o->n_listen == 0) {
        o->n_listen = 1;
        text[0] = ku_asprintf("unix:%s/server-%d.sock", s->out, s->server);
        status = text[0] ? KUMI_OK : KUMI_ENOMEM;
    } else {
        status = name_addresses(s, o->listen, o->n_listen, text);
    }
    o->listen = (const char *const *)text;
    if (status == KUMI_OK)
        status = ku_rpc_server_create(o, &s->rpc);
    for (int i = 0; i < KU_RPC_MAX_LISTEN; i++)
        ku_free(text[i]);
    return status;
}

/* Recovery is done. From the service's thread. */
static int on_opened(void *ctx)
{
    struct server *s = ctx;
    struct ku_rpc_server_opts o = s->o->rpc;
    o.method = s->method;
    o.n_methods = N_METHODS;
    o.ctx = s;
    KU_TRY(listen_on(s, &o));
    if (s->o->listening)
        s->o->listening(s->o->ctx, s->rpc);
    return KUMI_OK;
}

static int attach(void *ctx, const struct ku_run_served *served)
{
    struct server *s = ctx;
    s->layout = ku_remote_engine_layout(served->engine);
    s->server = ku_remote_engine_server(served->engine);
    s->n_servers = served->job->n;
    s->out = ku_strdup(served->out);
    if (s->out == NULL)
        return KUMI_ENOMEM;
    if (pthread_create(&s->syncer, NULL, syncer_main, s) != 0)
        return KU_ERR(KUMI_ENOMEM, "ps: cannot start a thread");
    if (pthread_create(&s->puller, NULL, puller_main, s) != 0) {
        pthread_mutex_lock(&s->lock);
        s->is_stopping = true;
        pthread_cond_broadcast(&s->changed);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->syncer, NULL);
        return KU_ERR(KUMI_ENOMEM, "ps: cannot start a thread");
    }
    s->has_threads = true;
    return ku_ps_attach(s->service, served);
}

/*
 * Ends the streams of workers, a step that is to be acknowledged first. Returns whether there are
 * any. lock is held.
 */
static bool end_streams(struct server *s, int status)
{
    bool has_any = false;
    for (struct stream *x = s->stream; x; x = x->next) {
        has_any |= x->is_known;
        if (!x->is_known || x->is_ended || x->complete >= 0)
            continue;
        x->is_ended = true;
        x->is_pulling = false;
        ku_rpc_finish(x->call, status, NULL);
    }
    return has_any;
}

/*
 * All streams end with what the run ends with. A worker that computes has idle streams: the status
 * waits in its socket, and its next call gets it, also when this process has ended.
 */
static void say_goodbye(struct server *s)
{
    const int64_t until_ns = ku_clock_ns() + GRACE_NS;
    struct ku_ps_state state;
    const int status = ku_ps_state(s->service, &state);
    KU_ASSERT(status < 0);
    for (bool is_waiting = true; is_waiting && ku_clock_ns() < until_ns;) {
        on_changed(s);
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        pthread_mutex_lock(&s->lock);
        is_waiting = end_streams(s, status);
        pthread_mutex_unlock(&s->lock);
    }
}

static void detach(void *ctx, struct ku_remote_engine *e)
{
    struct server *s = ctx;
    ku_ps_quiesce(s->service);
    if (s->rpc) {
        say_goodbye(s);
        ku_rpc_server_stop(s->rpc, 0);
    }
    if (s->has_threads) {
        pthread_mutex_lock(&s->lock);
        s->is_stopping = true;
        pthread_cond_broadcast(&s->changed);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->syncer, NULL);
        pthread_join(s->puller, NULL);
    }
    ku_rpc_server_destroy(s->rpc);
    s->rpc = NULL;
    ku_free(s->out);
    s->out = NULL;
    ku_ps_detach(s->service, e);
}

static void saved(void *ctx, int64_t version)
{
    struct server *s = ctx;
    ku_ps_saved(s->service, version);
    on_changed(s);
}

/* Ends the snapshots that wait for a checkpoint up to this one, with the error record. */
static void not_saved(void *ctx, int64_t version)
{
    struct server *s = ctx;
    pthread_mutex_lock(&s->lock);
    for (struct stream *x = s->stream; x; x = x->next) {
        if (x->method != SNAPSHOT || x->version < 0 || x->version > version)
            continue;
        x->version = -1;
        ku_rpc_finish(x->call, ku_err_get()->status, NULL);
    }
    pthread_mutex_unlock(&s->lock);
}

static bool wants_saving(void *ctx)
{
    struct server *s = ctx;
    return ku_ps_wants_saving(s->service);
}

static void set_methods(struct server *s)
{
    /*
     * A worker opens a stream when it has a message for it, and computes between later ones. That
     * of pulls has no deadline then: without a stream the worker would be away.
     */
    const struct ku_rpc_method stream = {.is_stream = true,
                                         .idle_ns = INT64_MAX,
                                         .open = on_open,
                                         .sent = on_sent,
                                         .close = on_close};
    const struct ku_rpc_method method[N_METHODS] = {
        [CONNECT] = {.path = KU_PS_SERVICE "Connect", .message = on_connect},
        [LAYOUT] = {.path = KU_PS_SERVICE "Layout", .message = on_layout},
        [PUSH] = stream,
        [PULL] = stream,
        [STATUS] = {.path = KU_PS_SERVICE "Status", .message = on_status},
        [SNAPSHOT] = {.path = KU_PS_SERVICE "Snapshot", .message = on_snapshot, .close = on_close},
        [DRAIN] = {.path = KU_PS_SERVICE "Drain", .message = on_drain}};
    memcpy(s->method, method, sizeof method);
    s->method[PUSH].path = KU_PS_SERVICE "Push", s->method[PUSH].message = on_push;
    s->method[PUSH].idle_ns = KU_RPC_UNUSED_NS;
    s->method[PULL].path = KU_PS_SERVICE "Pull", s->method[PULL].message = on_pull;
}

int ku_ps_serve(const struct kumi_train_options *options, const struct ku_ps_server_opts *o,
                struct kumi_train_result *result)
{
    struct server s = {.o = o};
    struct ku_ps_opts service = o->service;
    struct ku_run_server run = {.attach = attach,
                                .detach = detach,
                                .saved = saved,
                                .not_saved = not_saved,
                                .wants_saving = wants_saving,
                                .ctx = &s};
    service.opened = on_opened;
    service.changed = on_changed;
    service.ctx = &s;
    set_methods(&s);
    KU_TRY(ku_ps_service_create(&service, &s.service));
    pthread_mutex_init(&s.lock, NULL);
    pthread_cond_init(&s.changed, NULL);
    const int status = ku_run_server_rank(options, &run, result);
    pthread_cond_destroy(&s.changed);
    pthread_mutex_destroy(&s.lock);
    ku_ps_service_destroy(s.service);
    return status;
}
