/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/remote/link.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/cond.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "ps/remote/service_messages.h"
#include "remote/sparse.h"

#define SECOND INT64_C(1000000000)
enum { FIRST_BACK_OFF_MS = 20, MAX_BACK_OFF_MS = 1000 };

/* Bytes of a step that the worker has pushed; `data` is unchanged until flush. */
struct range {
    size_t offset, bytes;
    const unsigned char *data;
};

struct peer {
    struct ku_ps_link *link;
    int number;
    const char *address;
    struct ku_rpc_channel *channel;
    size_t payload, pull_bytes;
    /* push; lock protects what the caller and the thread share */
    pthread_t pusher;
    struct range *range;
    uint32_t n_ranges, cap_ranges;
    size_t queued;       /* bytes of the ranges */
    int64_t step, acked; /* of the ranges; the last one that was acknowledged */
    struct ku_rpc_stream *push;
    bool takes_sparse;   /* the server does */
    unsigned char *body; /* [KU_SPARSE_MAX_BYTES] */
    /* pull */
    pthread_t puller;
    unsigned char *into; /* NULL: no pull is under way */
    /* What the stream's last answer was written to, unchanged since; NULL: no answer is complete */
    const unsigned char *image;
    bool asks_changes;     /* the pull under way is relative to it */
    unsigned char *pulled; /* [KU_SPARSE_MAX_BYTES] */
    int64_t pull_step, *seen;
    struct ku_rpc_stream *pull;
    bool has_pusher, has_puller;
};

struct ku_ps_link {
    struct ku_remote_link link;
    struct ku_ps_link_opts o;
    struct peer *peer; /* [n_servers] */
    char *numerics;
    uint64_t incarnation, layout;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_ending;
    int status; /* < 0: the link is dead */
    struct kumi_error error;
};

/* The servers name a worker that is away or hung after timeout_ns; this worker waits for that. */
static int64_t answer_ns(const struct ku_ps_link *l)
{
    return l->o.timeout_ns + l->o.timeout_ns / 4 + 2 * SECOND;
}

/* -- connecting ------------------------------------------------------------------------------- */

static void fail(struct ku_ps_link *l, int status)
{
    pthread_mutex_lock(&l->lock);
    if (l->status == KUMI_OK) {
        l->status = status;
        l->error = *ku_err_get();
    }
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

/* lock is held. */
static int failure_of(const struct ku_ps_link *l)
{
    return l->status < 0 ? ku_err_put(&l->error) : KUMI_OK;
}

/* Whether a call may succeed when it is repeated: no connection, a full disk, a busy server. */
static bool is_passing(int status)
{
    return status == KUMI_EPEER || status == KUMI_ESTORAGE || status == KUMI_EBUSY ||
           status == KUMI_ENOMEM;
}

/* Tries again with back-off, until a deadline. */
struct patience {
    int64_t since_ns;
    int back_off_ms;
    bool is_told;
};

/*
 * Waits before the next attempt. Returns an error: the last one, if it is final; a time-out; that
 * of another thread of the link, or KUMI_ESTOPPED at its end.
 */
static int wait_again(struct peer *p, struct patience *x, int status)
{
    struct ku_ps_link *l = p->link;
    const struct kumi_error error = *ku_err_get();
    if (!is_passing(status))
        return status;
    const int64_t now = ku_clock_ns();
    if (x->since_ns == 0)
        x->since_ns = now, x->back_off_ms = FIRST_BACK_OFF_MS;
    if (now - x->since_ns > l->o.timeout_ns)
        return KU_ERR(KUMI_ETIMEDOUT, "ps: worker %d: server %d (%s): no answer for %.1f s: %.200s",
                      l->o.worker, p->number, p->address, (double)l->o.timeout_ns * 1e-9,
                      error.text);
    if (!x->is_told && now - x->since_ns > SECOND)
        KU_LOG(TRAIN, WARN, "worker %d waits for server %d: %s", l->o.worker, p->number,
               error.text);
    x->is_told |= now - x->since_ns > SECOND;
    const int64_t until_ns = ku_clock_ns() + x->back_off_ms * INT64_C(1000000);
    pthread_mutex_lock(&l->lock);
    while (!l->is_ending && l->status == KUMI_OK && ku_cond_wait(&l->changed, &l->lock, until_ns))
        ;
    const int ended = l->is_ending ? KUMI_ESTOPPED : failure_of(l);
    pthread_mutex_unlock(&l->lock);
    x->back_off_ms = x->back_off_ms * 2 < MAX_BACK_OFF_MS ? x->back_off_ms * 2 : MAX_BACK_OFF_MS;
    return ended;
}

/* Connect, once. */
static int say_hello(struct peer *p, uint64_t layout, int64_t begin, uint64_t *field,
                     char **numerics)
{
    const struct ku_ps_link *l = p->link;
    const uint64_t request[KU_PS_N_REQUEST] = {[KU_PS_Q_WORKER] = (uint64_t)l->o.worker,
                                               [KU_PS_Q_INCARNATION] = l->incarnation,
                                               [KU_PS_Q_LAYOUT] = layout,
                                               [KU_PS_Q_BEGIN] = (uint64_t)begin};
    struct ku_rpc_buf b;
    struct ku_rpc_msg m = {0};
    struct ku_proto_in text;
    if (ku_rpc_channel_wait(p->channel, SECOND / 4) < 0) /* without a call nothing connects */
        return KU_ERR(KUMI_EPEER, "%.300s", ku_err_get()->text);
    KU_TRY(ku_ps_message_put(request, KU_PS_N_REQUEST, 0, 0, &b, NULL));
    int status = ku_rpc_unary(p->channel, KU_PS_SERVICE "Connect", &b, 10 * SECOND, false, &m);
    if (status == KUMI_ETIMEDOUT)
        return KU_ERR(KUMI_EPEER, "%.300s", ku_err_get()->text);
    KU_TRY(status);
    status = ku_ps_message_get(&m, field, KU_PS_N_REPLY, KU_PS_R_NUMERICS, &text);
    if (status == KUMI_OK && numerics) {
        const size_t bytes = text.left;
        *numerics = ku_calloc(bytes + 1, 1);
        status = *numerics ? ku_proto_take(&text, *numerics, bytes) : KUMI_ENOMEM;
    }
    ku_rpc_msg_fini(&m);
    return status;
}

static int check_reply(const struct peer *p, const uint64_t *field)
{
    const struct ku_ps_link *l = p->link;
    if (field[KU_PS_R_SERVER] == (uint64_t)p->number &&
        field[KU_PS_R_N_SERVERS] == (uint64_t)l->o.n_servers)
        return KUMI_OK;
    return KU_ERR(KUMI_EINVAL,
                  "--servers: %s is server %llu of %llu, not %d of %d; give all servers in their "
                  "order",
                  p->address, (unsigned long long)field[KU_PS_R_SERVER],
                  (unsigned long long)field[KU_PS_R_N_SERVERS], p->number, l->o.n_servers);
}

/* Connect until the server answers. */
static int meet(struct peer *p, uint64_t layout, int64_t begin, uint64_t *field, char **numerics)
{
    struct patience x = {0};
    for (;;) {
        const int status = say_hello(p, layout, begin, field, numerics);
        if (status == KUMI_OK)
            return check_reply(p, field);
        KU_TRY(wait_again(p, &x, status));
    }
}

/* Asks server 0 for the numerics keys, and takes an incarnation above those before. */
static int ask(struct ku_ps_link *l)
{
    uint64_t field[KU_PS_N_REPLY];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    l->incarnation = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
    KU_TRY(meet(&l->peer[0], 0, -1, field, &l->numerics));
    if ((uint64_t)l->o.worker >= field[KU_PS_R_N_WORKERS])
        return KU_ERR(KUMI_EINVAL, "--worker: %d; the servers have %llu workers, from 0",
                      l->o.worker, (unsigned long long)field[KU_PS_R_N_WORKERS]);
    if (l->incarnation <= field[KU_PS_R_INCARNATION])
        l->incarnation = field[KU_PS_R_INCARNATION] + 1;
    return KUMI_OK;
}

/* The buffers are as large as this worker's layout says: no size is taken from a server. */
static int check_layout(const struct peer *p, const struct ku_remote_layout *layout,
                        const uint64_t *field)
{
    const struct {
        const char *what;
        uint64_t its, own;
    } row[] = {{"layout", field[KU_PS_R_LAYOUT], layout->checksum},
               {"bytes of a push", field[KU_PS_R_PUSH_BYTES], layout->push_bytes[p->number]},
               {"payload of a push", field[KU_PS_R_PUSH_PAYLOAD], layout->push_payload[p->number]},
               {"bytes of a pull", field[KU_PS_R_PULL_BYTES], layout->pull_bytes[p->number]}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        if (row[i].its != row[i].own)
            return KU_ERR(
                KUMI_EMISMATCH,
                "ps: worker %d: server %d (%s): %s: %llu, of this worker %llu; start both "
                "with the same configuration",
                p->link->o.worker, p->number, p->address, row[i].what,
                (unsigned long long)row[i].its, (unsigned long long)row[i].own);
    return KUMI_OK;
}

/* Server 0 first: it knows which steps all servers have. */
static int join_servers(struct ku_ps_link *l, const struct ku_remote_layout *layout)
{
    uint64_t field[KU_PS_N_REPLY];
    int64_t begin = -1;
    for (int s = 0; s < l->o.n_servers; s++) {
        struct peer *p = &l->peer[s];
        KU_TRY(meet(p, l->layout, begin, field, NULL));
        KU_TRY(check_layout(p, layout, field));
        p->payload = layout->push_payload[s];
        p->pull_bytes = layout->pull_bytes[s];
        p->takes_sparse = field[KU_PS_R_TAKES_SPARSE] != 0;
        if (s == 0) {
            begin = (int64_t)field[KU_PS_R_BEGIN];
            l->link.first_step = begin;
        }
        p->acked = begin - 1;
    }
    return KUMI_OK;
}

/*
 * A server that was started anew has what it acknowledged before it is asked: while this thread
 * opens one stream, acknowledgements arrive on the other. Beyond that it may have the one step that
 * is under way. In async and ssp a server without its journal counts the steps of every worker from
 * the number of updates, which is larger: it would take the next pushes for repeated ones.
 */
static int meet_again(struct peer *p)
{
    uint64_t field[KU_PS_N_REPLY];
    pthread_mutex_lock(&p->link->lock);
    const int64_t acked = p->acked;
    pthread_mutex_unlock(&p->link->lock);
    KU_TRY(say_hello(p, p->link->layout, -1, field, NULL));
    KU_TRY(check_reply(p, field));
    const int64_t begin = (int64_t)field[KU_PS_R_BEGIN];
    if (begin > acked + 2 && field[KU_PS_R_MODE] != KU_REMOTE_SYNC)
        return KU_ERR(KUMI_EINPUT,
                      "ps: server %d (%s) has begun anew without its journal, at step %lld of "
                      "worker %d, whose last step is %lld; start the worker again",
                      p->number, p->address, (long long)begin, p->link->o.worker, (long long)acked);
    if (begin > acked)
        return KUMI_OK;
    return KU_ERR(KUMI_EINPUT,
                  "ps: server %d (%s) has lost step %lld of worker %d, which it had acknowledged; "
                  "start the worker again",
                  p->number, p->address, (long long)acked, p->link->o.worker);
}

static int open_stream(struct peer *p, const char *path, struct ku_rpc_stream **stream)
{
    KU_TRY(meet_again(p));
    return ku_rpc_stream_open(p->channel, path, false, stream);
}

static void drop(struct peer *p, struct ku_rpc_stream **stream)
{
    pthread_mutex_lock(&p->link->lock);
    struct ku_rpc_stream *x = *stream;
    *stream = NULL;
    pthread_mutex_unlock(&p->link->lock);
    ku_rpc_stream_destroy(x);
}

/* Makes a stream known to destroy, which cancels it. */
static int publish(struct peer *p, struct ku_rpc_stream **to, struct ku_rpc_stream *stream)
{
    pthread_mutex_lock(&p->link->lock);
    const bool is_ending = p->link->is_ending;
    *to = is_ending ? NULL : stream;
    pthread_mutex_unlock(&p->link->lock);
    if (is_ending)
        ku_rpc_stream_destroy(stream);
    return is_ending ? KUMI_ESTOPPED : KUMI_OK;
}

/* -- pushing ---------------------------------------------------------------------------------- */

static int send_frame(struct peer *p, int64_t step, size_t offset, const unsigned char *data,
                      size_t bytes, bool is_sparse)
{
    const uint64_t field[KU_PS_N_FRAME] = {[KU_PS_F_WORKER] = (uint64_t)p->link->o.worker,
                                           [KU_PS_F_INCARNATION] = p->link->incarnation,
                                           [KU_PS_F_STEP] = (uint64_t)step,
                                           [KU_PS_F_OFFSET] = offset,
                                           [KU_PS_F_CHECKSUM] = ku_hash64(data, bytes),
                                           [KU_PS_F_SPARSE] = is_sparse};
    struct ku_rpc_buf b;
    void *at;
    KU_TRY(ku_ps_message_put(field, KU_PS_N_FRAME, KU_PS_F_DATA, bytes, &b, &at));
    memcpy(at, data, bytes);
    const int status = ku_rpc_stream_send(p->push, &b, p->link->o.timeout_ns);
    ku_rpc_buf_fini(&b);
    return status;
}

static int send_range(struct peer *p, int64_t step, const struct range *r)
{
    for (size_t at = 0, extent; at < r->bytes; at += extent) {
        const size_t left = r->bytes - at;
        const size_t bytes =
            p->takes_sparse ? ku_sparse_encode(r->data + at, left, p->body, &extent) : 0;
        if (bytes) {
            KU_TRY(send_frame(p, step, r->offset + at, p->body, bytes, true));
            continue;
        }
        extent = left < KU_PS_FRAME_BYTES ? left : KU_PS_FRAME_BYTES;
        KU_TRY(send_frame(p, step, r->offset + at, r->data + at, extent, false));
    }
    return KUMI_OK;
}

static int await_reply(struct peer *p, int64_t step)
{
    uint64_t field[KU_PS_N_FRAME];
    struct ku_rpc_msg m = {0};
    bool is_end = false;
    do {
        KU_TRY(ku_rpc_stream_recv(p->push, &m, &is_end, answer_ns(p->link)));
        if (is_end)
            return KU_ERR(KUMI_EPEER, "ps: server %d ended the stream", p->number);
        const int status = ku_ps_message_get(&m, field, KU_PS_N_FRAME, 0, NULL);
        ku_rpc_msg_fini(&m);
        KU_TRY(status);
    } while ((int64_t)field[KU_PS_F_STEP] < step);
    return KUMI_OK;
}

/* Whether all servers but 0 have acknowledged the step. lock is held. */
static bool others_have(const struct ku_ps_link *l, int64_t step)
{
    for (int s = 1; s < l->o.n_servers; s++)
        if (l->peer[s].acked < step)
            return false;
    return true;
}

/* The next range of the step, when it may be sent; false: the link ends. lock is held. */
static bool next_range(struct peer *p, uint32_t at, struct range *r)
{
    struct ku_ps_link *l = p->link;
    for (;;) {
        if (l->is_ending || l->status < 0)
            return false;
        const bool is_last = at + 1 == p->n_ranges && p->queued == p->payload;
        if (at < p->n_ranges && (!is_last || p->number != 0 || others_have(l, p->step)))
            break;
        pthread_cond_wait(&l->changed, &l->lock);
    }
    *r = p->range[at];
    return true;
}

static int open_push(struct peer *p)
{
    struct ku_rpc_stream *stream;
    if (p->push)
        return KUMI_OK;
    KU_TRY(open_stream(p, KU_PS_SERVICE "Push", &stream));
    return publish(p, &p->push, stream);
}

/*
 * Sends the ranges of a step as they come, and awaits the acknowledgement. The stream is opened
 * when there is a range that may be sent: the server waits for its first message, not for long.
 */
static int push_step(struct peer *p)
{
    struct ku_ps_link *l = p->link;
    struct range r;
    size_t sent = 0;
    for (uint32_t at = 0; sent < p->payload; at++) {
        pthread_mutex_lock(&l->lock);
        const bool is_there = next_range(p, at, &r);
        const int64_t step = p->step;
        pthread_mutex_unlock(&l->lock);
        if (!is_there)
            return KUMI_ESTOPPED;
        KU_TRY(open_push(p));
        KU_TRY(send_range(p, step, &r));
        sent += r.bytes;
    }
    KU_TRY(await_reply(p, p->step));
    pthread_mutex_lock(&l->lock);
    p->acked = p->step;
    p->n_ranges = 0;
    p->queued = 0;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    return KUMI_OK;
}

static void *pusher_main(void *arg)
{
    struct peer *p = arg;
    struct ku_ps_link *l = p->link;
    struct patience x = {0};
    for (;;) {
        pthread_mutex_lock(&l->lock);
        while (!l->is_ending && l->status == KUMI_OK && p->n_ranges == 0)
            pthread_cond_wait(&l->changed, &l->lock);
        const bool is_over = l->is_ending || l->status < 0;
        pthread_mutex_unlock(&l->lock);
        if (is_over)
            return NULL;
        int status = push_step(p);
        if (status == KUMI_OK) {
            x = (struct patience){0};
            continue;
        }
        const struct kumi_error error = *ku_err_get();
        drop(p, &p->push);
        ku_err_put(&error);
        status = wait_again(p, &x, status);
        if (status < 0) {
            fail(l, status);
            return NULL;
        }
    }
}

/* -- pulling ---------------------------------------------------------------------------------- */

/* The data of a frame, at p->into + at; *extent: the bytes that it stands for. */
static int take_data(struct peer *p, struct ku_proto_in *data, const uint64_t *field, size_t at,
                     size_t *extent)
{
    const bool is_sparse = field[KU_PS_F_SPARSE] != 0;
    const size_t bytes = data->left, left = p->pull_bytes - at;
    unsigned char *to = is_sparse ? p->pulled : p->into + at;
    if (bytes == 0 || bytes > (is_sparse ? (size_t)KU_SPARSE_MAX_BYTES : left))
        return KU_ERR(KUMI_EBUG, "ps: server %d: a frame of %zu bytes, at %zu of %zu", p->number,
                      bytes, at, p->pull_bytes);
    KU_TRY(ku_proto_take(data, to, bytes));
    if (ku_hash64(to, bytes) != field[KU_PS_F_CHECKSUM])
        return KU_ERR(KUMI_EPEER, "ps: server %d: a frame of a pull is damaged", p->number);
    *extent = bytes;
    if (!is_sparse)
        return KUMI_OK;
    KU_TRY(ku_sparse_check(to, bytes, extent));
    if (*extent > left || !p->asks_changes)
        return KU_ERR(KUMI_EBUG, "ps: server %d: changes of %zu bytes, at %zu of %zu", p->number,
                      *extent, at, p->pull_bytes);
    ku_sparse_merge(to, p->into + at);
    return KUMI_OK;
}

static int take_frame(struct peer *p, const struct ku_rpc_msg *m, size_t *at, int64_t *seen)
{
    uint64_t field[KU_PS_N_FRAME];
    struct ku_proto_in data;
    size_t extent;
    KU_TRY(ku_ps_message_get(m, field, KU_PS_N_FRAME, KU_PS_F_DATA, &data));
    if (field[KU_PS_F_OFFSET] == 0) {
        p->asks_changes = p->asks_changes && *at == 0; /* again: parts of another update are in */
        *at = 0, *seen = (int64_t)field[KU_PS_F_VERSION];
    }
    if (field[KU_PS_F_OFFSET] != *at || (int64_t)field[KU_PS_F_VERSION] != *seen)
        return KU_ERR(KUMI_EBUG, "ps: server %d sends bytes %llu of update %lld, after %zu of %lld",
                      p->number, (unsigned long long)field[KU_PS_F_OFFSET],
                      (long long)field[KU_PS_F_VERSION], *at, (long long)*seen);
    KU_TRY(take_data(p, &data, field, *at, &extent));
    *at += extent;
    return KUMI_OK;
}

static int pull_once(struct peer *p, int64_t *seen)
{
    const struct ku_ps_link *l = p->link;
    struct ku_rpc_stream *stream;
    struct ku_rpc_buf b;
    struct ku_rpc_msg m = {0};
    bool is_end = false;
    if (p->pull == NULL) {
        KU_TRY(open_stream(p, KU_PS_SERVICE "Pull", &stream));
        KU_TRY(publish(p, &p->pull, stream));
    }
    p->asks_changes = p->image == p->into;
    p->image = NULL;
    const uint64_t field[KU_PS_N_FRAME] = {[KU_PS_F_WORKER] = (uint64_t)l->o.worker,
                                           [KU_PS_F_INCARNATION] = l->incarnation,
                                           [KU_PS_F_STEP] = (uint64_t)p->pull_step,
                                           [KU_PS_F_SPARSE] = p->asks_changes};
    KU_TRY(ku_ps_message_put(field, KU_PS_N_FRAME, 0, 0, &b, NULL));
    const int sent = ku_rpc_stream_send(p->pull, &b, l->o.timeout_ns);
    ku_rpc_buf_fini(&b);
    KU_TRY(sent);
    for (size_t at = 0; at < p->pull_bytes;) {
        KU_TRY(ku_rpc_stream_recv(p->pull, &m, &is_end, answer_ns(l)));
        if (is_end)
            return KU_ERR(KUMI_EPEER, "ps: server %d ended the stream", p->number);
        const int status = take_frame(p, &m, &at, seen);
        ku_rpc_msg_fini(&m);
        KU_TRY(status);
    }
    p->image = p->into;
    return KUMI_OK;
}

static int pull_until_there(struct peer *p, int64_t *seen)
{
    struct patience x = {0};
    for (;;) {
        const int status = pull_once(p, seen);
        if (status == KUMI_OK)
            return KUMI_OK;
        const struct kumi_error error = *ku_err_get();
        p->image = NULL;
        drop(p, &p->pull);
        ku_err_put(&error);
        KU_TRY(wait_again(p, &x, status));
    }
}

static void *puller_main(void *arg)
{
    struct peer *p = arg;
    struct ku_ps_link *l = p->link;
    for (;;) {
        pthread_mutex_lock(&l->lock);
        while (!l->is_ending && l->status == KUMI_OK && p->into == NULL)
            pthread_cond_wait(&l->changed, &l->lock);
        const bool is_over = l->is_ending || l->status < 0;
        pthread_mutex_unlock(&l->lock);
        if (is_over)
            return NULL;
        int64_t seen = -1;
        const int status = pull_until_there(p, &seen);
        if (status < 0) {
            fail(l, status);
            return NULL;
        }
        pthread_mutex_lock(&l->lock);
        *p->seen = seen;
        p->into = NULL;
        pthread_cond_broadcast(&l->changed);
        pthread_mutex_unlock(&l->lock);
    }
}

/* -- the worker's calls ----------------------------------------------------------------------- */

static int start_threads(struct ku_ps_link *l)
{
    for (int s = 0; s < l->o.n_servers; s++) {
        struct peer *p = &l->peer[s];
        p->has_pusher = pthread_create(&p->pusher, NULL, pusher_main, p) == 0;
        p->has_puller = p->has_pusher && pthread_create(&p->puller, NULL, puller_main, p) == 0;
        if (!p->has_puller)
            return KU_ERR(KUMI_ENOMEM, "ps: worker %d: cannot start a thread", l->o.worker);
    }
    return KUMI_OK;
}

static int link_connect(void *link, const struct ku_remote_layout *layout, const char **numerics)
{
    struct ku_ps_link *l = link;
    if (l->numerics == NULL)
        KU_TRY(ask(l));
    *numerics = l->numerics;
    if (layout == NULL)
        return KUMI_OK;
    KU_ASSERT(l->layout == 0 && layout->n_servers == l->o.n_servers);
    l->layout = layout->checksum;
    KU_TRY(join_servers(l, layout));
    return start_threads(l);
}

static int link_push(void *link, int server, int64_t step, size_t offset, const void *data,
                     size_t bytes)
{
    struct ku_ps_link *l = link;
    struct peer *p = &l->peer[server];
    pthread_mutex_lock(&l->lock);
    int status = failure_of(l);
    if (status == KUMI_OK)
        status = KU_GROW(&p->range, p->n_ranges, &p->cap_ranges);
    if (status == KUMI_OK) {
        KU_ASSERT(p->n_ranges == 0 || p->step == step);
        KU_ASSERT(bytes <= p->payload - p->queued);
        p->step = step;
        p->range[p->n_ranges++] = (struct range){offset, bytes, data};
        p->queued += bytes;
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    return status;
}

static int link_flush(void *link)
{
    struct ku_ps_link *l = link;
    pthread_mutex_lock(&l->lock);
    for (int s = 0; s < l->o.n_servers; s++)
        while (l->status == KUMI_OK && l->peer[s].n_ranges > 0)
            pthread_cond_wait(&l->changed, &l->lock);
    const int status = failure_of(l);
    pthread_mutex_unlock(&l->lock);
    return status;
}

static int link_pull(void *link, int server, int64_t step, void *data, int64_t *seen)
{
    struct ku_ps_link *l = link;
    struct peer *p = &l->peer[server];
    pthread_mutex_lock(&l->lock);
    const int status = failure_of(l);
    if (status == KUMI_OK) {
        KU_ASSERT(p->into == NULL);
        p->into = data;
        p->pull_step = step;
        p->seen = seen;
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    return status;
}

static int link_wait(void *link)
{
    struct ku_ps_link *l = link;
    pthread_mutex_lock(&l->lock);
    for (int s = 0; s < l->o.n_servers; s++)
        while (l->status == KUMI_OK && l->peer[s].into)
            pthread_cond_wait(&l->changed, &l->lock);
    const int status = failure_of(l);
    pthread_mutex_unlock(&l->lock);
    return status;
}

/* Ends the threads. */
static void link_stop(void *link)
{
    struct ku_ps_link *l = link;
    pthread_mutex_lock(&l->lock);
    l->is_ending = true;
    for (int s = 0; l->peer && s < l->o.n_servers; s++) {
        if (l->peer[s].push)
            ku_rpc_stream_cancel(l->peer[s].push);
        if (l->peer[s].pull)
            ku_rpc_stream_cancel(l->peer[s].pull);
    }
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    for (int s = 0; l->peer && s < l->o.n_servers; s++) {
        struct peer *p = &l->peer[s];
        if (p->has_pusher)
            pthread_join(p->pusher, NULL);
        if (p->has_puller)
            pthread_join(p->puller, NULL);
        p->has_pusher = p->has_puller = false;
    }
}

static const struct ku_remote_link_ops ops = {.name = "grpc",
                                              .connect = link_connect,
                                              .push = link_push,
                                              .flush = link_flush,
                                              .pull = link_pull,
                                              .wait = link_wait,
                                              .stop = link_stop,
                                              .awaits = true};

int ku_ps_link_create(const struct ku_ps_link_opts *o, struct ku_ps_link **out)
{
    struct ku_ps_link *l = ku_calloc(1, sizeof *l);
    if (l == NULL)
        return KUMI_ENOMEM;
    l->o = *o;
    l->link = (struct ku_remote_link){.ops = &ops, .ctx = l, .worker = o->worker, .out = o->out};
    pthread_mutex_init(&l->lock, NULL);
    ku_cond_init(&l->changed);
    l->peer = ku_calloc((size_t)o->n_servers, sizeof *l->peer);
    int status = l->peer ? KUMI_OK : KUMI_ENOMEM;
    for (int s = 0; s < o->n_servers && status == KUMI_OK; s++) {
        const struct ku_rpc_channel_opts channel = {
            .address = o->server[s], .security = o->security, .max_back_off_ns = SECOND};
        l->peer[s].link = l;
        l->peer[s].number = s;
        l->peer[s].address = o->server[s];
        status = ku_rpc_channel_create(&channel, &l->peer[s].channel);
        l->peer[s].body = ku_malloc(KU_SPARSE_MAX_BYTES);
        l->peer[s].pulled = ku_malloc(KU_SPARSE_MAX_BYTES);
        if (status == KUMI_OK && (l->peer[s].body == NULL || l->peer[s].pulled == NULL))
            status = KUMI_ENOMEM;
    }
    if (status < 0) {
        const struct kumi_error error = *ku_err_get();
        ku_ps_link_destroy(l);
        return ku_err_put(&error);
    }
    *out = l;
    return KUMI_OK;
}

void ku_ps_link_destroy(struct ku_ps_link *l)
{
    if (l == NULL)
        return;
    link_stop(l);
    for (int s = 0; l->peer && s < l->o.n_servers; s++) {
        struct peer *p = &l->peer[s];
        ku_rpc_stream_destroy(p->push);
        ku_rpc_stream_destroy(p->pull);
        ku_rpc_channel_destroy(p->channel);
        ku_free(p->range);
        ku_free(p->body);
        ku_free(p->pulled);
    }
    ku_free(l->peer);
    ku_free(l->numerics);
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    ku_free(l);
}

const struct ku_remote_link *ku_ps_link_of(const struct ku_ps_link *l)
{
    return &l->link;
}
