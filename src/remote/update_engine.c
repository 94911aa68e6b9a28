/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine of one server: takes pushes, decides which of them an update applies, sums these, and
 * runs the program of phase O.
 *
 *     transport threads    ku_remote_receive ──> slot of the worker ──┐       ┌──> ku_remote_read
 *     ku_remote_serve            choose ──> sum into the ports ──> step ──> version + 1
 *
 * A slot holds one push. With several servers all apply the same pushes in the same order: where
 * the order is open (async, ssp, backup), server 0 chooses among its complete slots, and the others
 * wait until they have the same pushes. Norms over several servers are therefore exact in every
 * mode.
 *
 * In async and ssp a worker gets the parameters as they were when it was allowed to begin its
 * step: the next update copies them first, until the worker's push is complete, since one that was
 * started again reads them once more. Hence the order of pushes alone gives all bits, on any
 * number of servers. Where a worker was excluded from the staleness bound and included again (ssp),
 * the moment also decides with which parameters others begin; a replay of logged pushes does not
 * depend on it.
 *
 * `lock` protects the slots, version and failure. `state` is held for writing while an update runs
 * and its changes are noted, and for reading while parameters are copied. A reader may hold locks
 * of its transport, so it does not wait for an update.
 */
#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>

#include "base/clock.h"
#include "base/cond.h"
#include "base/err.h"
#include "base/mem.h"
#include "comm/coll.h"
#include "comm/consensus.h"
#include "comm/sum.h"
#include "exec/exec.h"
#include "ir/state.h"
#include "remote/changes.h"
#include "remote/compress.h"
#include "remote/contents.h"
#include "remote/sparse.h"
#include "tensor/blocks.h"
#include "tensor/dtype.h"
#include "train/remote_update.h"
#include "train/trainer.h"

/* The push of one worker: of `step`, complete if all bytes of it are in. */
struct slot {
    unsigned char *data; /* [push_bytes] */
    int64_t step;        /* of the bytes in it */
    int64_t next;    /* the first step that may be pushed: those below were applied or dropped */
    size_t received; /* 0: empty */
    /*
     * Async, ssp: what the worker begins step `next` with. begins: the update after which it may,
     * -1: not yet; the state itself until the next update copies it to `kept`.
     */
    int64_t begins;
    bool is_kept;
    unsigned char *kept; /* [pull_bytes] */
    bool is_excluded;    /* ssp: the staleness bound does not include it */
    bool is_to_be;       /* is_excluded, as asked of server 0 */
};

struct ku_remote_engine {
    struct ku_trainer *t;
    const struct ku_remote_layout *layout;
    struct ku_remote_engine_opts o;
    struct ku_remote_events events;
    const struct ku_sum_kernels *kernels;
    int server, n_workers;
    size_t payload;
    struct slot *slot;               /* [n_workers] */
    float *decoded;                  /* [n_workers][KU_BLOCK_COUNT] of compressed pushes */
    struct ku_remote_extent *extent; /* [n_extents] of the push space */
    uint32_t n_extents;
    struct ku_contents contents;
    struct ku_remote_part *push; /* [n_push] this server's */
    struct ku_remote_part *pull; /* [n_pull] */
    struct ku_range *port;       /* [n_push] input ports */
    struct ku_range *source;     /* [n_pull] state tensors; bytes 0: the report */
    double report[KU_REPORT_WORDS];
    struct ku_remote_changes *changes; /* NULL: nothing may rest */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a slot is complete, or stop */
    pthread_rwlock_t state;
    int64_t version;
    int status; /* < 0: it failed */
    struct kumi_error error;
    bool is_stopped;
    bool is_asked; /* server 0: ku_remote_ask */
};

/*
 * What the servers do next, equal on all of them: an update, a change of is_excluded, or to count
 * what has come.
 */
struct choice {
    int32_t counts;
    int32_t n;       /* pushes that the update applies; 0: none */
    int32_t changed; /* the worker whose is_excluded changes; -1: none */
    int32_t worker[KU_REMOTE_MAX_WORKERS];
};

const struct ku_remote_layout *ku_remote_engine_layout(const struct ku_remote_engine *e)
{
    return e->layout;
}

int ku_remote_engine_server(const struct ku_remote_engine *e)
{
    return e->server;
}

void ku_remote_engine_watch(struct ku_remote_engine *e, const struct ku_remote_events *events)
{
    e->events = *events;
}

/*
 * Copy the bytes of the pull space that a part, with the gap after it, and [offset, offset + bytes)
 * have in common.
 */
static int copy_part(const struct ku_remote_engine *e, uint32_t i, size_t offset, size_t bytes,
                     unsigned char *data)
{
    const struct ku_remote_part *part = &e->pull[i];
    const size_t all =
        (size_t)(part->end - part->begin) * kumi_dtype_bytes(e->layout->pull[i].wire);
    const size_t from = part->offset > offset ? part->offset : offset;
    const size_t to = part->offset + all < offset + bytes ? part->offset + all : offset + bytes;
    const size_t gap = -(part->offset + all) % KU_SPARSE_CELL_BYTES;
    for (size_t at = part->offset + all; at < part->offset + all + gap; at++)
        if (at >= offset && at < offset + bytes)
            data[at - offset] = 0;
    if (from >= to)
        return KUMI_OK;
    if (e->source[i].bytes == 0) {
        memcpy(data + (from - offset), (const char *)e->report + (from - part->offset), to - from);
        return KUMI_OK;
    }
    struct ku_range r = e->source[i];
    r.at += from - part->offset;
    r.bytes = to - from;
    return ku_range_read(r, data + (from - offset));
}

static int copy_space(const struct ku_remote_engine *e, size_t offset, size_t bytes,
                      unsigned char *data)
{
    const uint32_t n = e->layout->n_pull;
    for (uint32_t i = ku_remote_part_at(e->pull, n, offset);
         i < n && e->pull[i].offset < offset + bytes; i++)
        KU_TRY(copy_part(e, i, offset, bytes, data));
    return KUMI_OK;
}

static int copy_now(const void *ctx, size_t offset, size_t bytes, void *to)
{
    return copy_space(ctx, offset, bytes, to);
}

/* Statistics of batch norm are means over all shards, and some workers do not have all of them. */
static int check_opts(const struct ku_remote_engine *e)
{
    const struct ku_program *p = e->t->program[KU_PROG_TRAIN];
    const struct ku_remote_engine_opts *o = &e->o;
    if (o->backup < 0 || o->backup >= e->n_workers)
        return KU_ERR(KUMI_EINVAL, "ps.backup: %d; %d workers: at most %d late ones", o->backup,
                      e->n_workers, e->n_workers - 1);
    if (o->staleness < 0)
        return KU_ERR(KUMI_EINVAL, "ps.staleness: %d; at least 0", o->staleness);
    for (uint32_t i = 0; i < p->n_instrs && o->backup > 0; i++)
        if (p->instr[i].kind == KU_COMPUTE && p->instr[i].op == KU_OP_batch_norm_track)
            return KU_ERR(KUMI_EINVAL,
                          "ps.backup: %d; batch norm %s keeps means over the samples of all "
                          "workers; set ps.backup to 0",
                          o->backup, p->name_of[p->instr[i].path]);
    return KUMI_OK;
}

/* Whether an update can do without a push that is not finite, and is not skipped for it. */
static bool refuses_nonfinite(const struct ku_remote_engine *e)
{
    const bool can_do_without = e->o.mode != KU_REMOTE_SYNC || e->o.backup > 0;
    return can_do_without && !e->o.skips && isnan(ku_trainer_loss_scale(e->t));
}

static int find_memory(struct ku_remote_engine *e)
{
    const struct ku_remote_layout *l = e->layout;
    const struct ku_program *p = e->t->program[KU_PROG_TRAIN];
    e->contents.layout = l;
    e->contents.part = e->push;
    e->contents.is_finite = refuses_nonfinite(e);
    for (uint32_t i = 0; i < l->n_push; i++) {
        e->push[i] = ku_remote_part_of(l, true, i, e->server);
        e->contents.has_topk |= l->push[i].form == KU_REMOTE_TOPK;
        e->port[i] = ku_exec_port(e->t->exec[KU_PROG_TRAIN], 1, l->push[i].name);
        KU_ASSERT(e->port[i].bytes >=
                  (size_t)(e->push[i].end - e->push[i].begin) * kumi_dtype_bytes(l->push[i].dtype));
    }
    for (uint32_t i = 0; i < l->n_pull; i++) {
        e->pull[i] = ku_remote_part_of(l, false, i, e->server);
        for (uint32_t s = 0; s < p->n_states; s++)
            if (strcmp(p->name_of[p->state[s].name], l->pull[i].name) == 0)
                e->source[i] = ku_memory_state(e->t->memory, &p->state[s]);
        if (e->source[i].memory)
            e->source[i].bytes =
                (size_t)(e->pull[i].end - e->pull[i].begin) * kumi_dtype_bytes(l->pull[i].dtype);
    }
    return KUMI_OK;
}

static int allocate(struct ku_remote_engine *e)
{
    const struct ku_remote_layout *l = e->layout;
    KU_TRY(ku_remote_extents(l, e->server, &e->extent, &e->n_extents));
    e->decoded = ku_calloc((size_t)e->n_workers * KU_BLOCK_COUNT, sizeof *e->decoded);
    e->slot = ku_calloc((size_t)e->n_workers, sizeof *e->slot);
    e->push = ku_calloc(l->n_push + 1, sizeof *e->push);
    e->pull = ku_calloc(l->n_pull + 1, sizeof *e->pull);
    e->port = ku_calloc(l->n_push + 1, sizeof *e->port);
    e->source = ku_calloc(l->n_pull + 1, sizeof *e->source);
    if (!e->decoded || !e->slot || !e->push || !e->pull || !e->port || !e->source)
        return KUMI_ENOMEM;
    for (int w = 0; w < e->n_workers; w++) {
        e->slot[w].data = ku_calloc(l->push_bytes[e->server] + 1, 1);
        e->slot[w].next = e->slot[w].step = e->o.version;
        if (e->layout->is_single)
            e->slot[w].kept = ku_calloc(l->pull_bytes[e->server] + 1, 1);
        e->slot[w].begins = e->o.version;
        if (e->slot[w].data == NULL || (e->layout->is_single && e->slot[w].kept == NULL))
            return KUMI_ENOMEM;
    }
    return KUMI_OK;
}

int ku_remote_engine_create(struct ku_trainer *t, const struct ku_remote_engine_opts *o,
                            struct ku_remote_engine **out)
{
    struct ku_remote_engine *e = ku_calloc(1, sizeof *e);
    KU_ASSERT(t->remote != NULL && t->remote->n_servers == t->job->n);
    KU_ASSERT(t->remote->is_single == (o->mode != KU_REMOTE_SYNC));
    if (e == NULL)
        return KUMI_ENOMEM;
    e->t = t;
    e->layout = t->remote;
    e->o = *o;
    e->server = t->job->rank;
    e->n_workers = t->remote->n_workers;
    e->payload = t->remote->push_payload[e->server];
    e->version = o->version;
    e->kernels = ku_sum_choose();
    pthread_mutex_init(&e->lock, NULL);
    ku_cond_init(&e->changed);
    pthread_rwlock_init(&e->state, NULL);
    int status = check_opts(e);
    if (status == KUMI_OK)
        status = allocate(e);
    if (status == KUMI_OK)
        status = find_memory(e);
    if (status == KUMI_OK)
        status = ku_remote_changes_create(e->layout, e->server, &e->changes);
    if (status == KUMI_OK && e->changes)
        status = ku_remote_changes_note(e->changes, e->version, copy_now, e);
    if (status < 0) {
        ku_remote_engine_destroy(e);
        return status;
    }
    *out = e;
    return KUMI_OK;
}

void ku_remote_engine_destroy(struct ku_remote_engine *e)
{
    if (e == NULL)
        return;
    for (int w = 0; e->slot && w < e->n_workers; w++) {
        ku_free(e->slot[w].data);
        ku_free(e->slot[w].kept);
    }
    ku_free(e->slot);
    ku_remote_changes_destroy(e->changes);
    ku_free(e->extent);
    ku_free(e->decoded);
    ku_free(e->push);
    ku_free(e->pull);
    ku_free(e->port);
    ku_free(e->source);
    pthread_rwlock_destroy(&e->state);
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
    ku_free(e);
}

/* -- transport threads ------------------------------------------------------------------------ */

/* lock is held. */
static int failure_of(const struct ku_remote_engine *e)
{
    return e->status < 0 ? KU_ERR(e->status, "%s", e->error.text) : KUMI_OK;
}

/* A push that came after the update it was for: dropped. lock is held. */
static bool is_late(const struct ku_remote_engine *e, int worker, int64_t step)
{
    return step < e->slot[worker].next && e->o.mode == KU_REMOTE_SYNC && e->o.backup > 0;
}

/* Whether bytes of a push may arrive. lock is held. */
static int check_step(const struct ku_remote_engine *e, int worker, int64_t step, size_t counted)
{
    const struct slot *x = &e->slot[worker];
    KU_TRY(failure_of(e));
    if (is_late(e, worker, step))
        return KUMI_OK;
    if (step < x->next || (x->received > 0 && step != x->step))
        return KU_ERR(KUMI_EINVAL, "ps: worker %d pushes step %lld; server %d expects step %lld",
                      worker, (long long)step, e->server,
                      (long long)(x->received ? x->step : x->next));
    if (x->received + counted > e->payload)
        return KU_ERR(KUMI_EINVAL, "ps: worker %d pushes more than the %zu bytes of step %lld",
                      worker, e->payload, (long long)step);
    return KUMI_OK;
}

static int check_range(const struct ku_remote_engine *e, int worker, size_t offset, size_t bytes)
{
    const size_t space = e->layout->push_bytes[e->server];
    if (worker < 0 || worker >= e->n_workers)
        return KU_ERR(KUMI_EINVAL, "ps: worker %d; there are %d", worker, e->n_workers);
    if (offset > space || bytes > space - offset)
        return KU_ERR(KUMI_EINVAL, "ps: bytes %zu to %zu of a push of %zu bytes", offset,
                      offset + bytes, space);
    return KUMI_OK;
}

int ku_remote_check(struct ku_remote_engine *e, int worker, int64_t step, size_t offset,
                    size_t bytes)
{
    KU_TRY(check_range(e, worker, offset, bytes));
    pthread_mutex_lock(&e->lock);
    const int status = check_step(
        e, worker, step, ku_remote_bytes_in(e->extent, e->n_extents, offset, offset + bytes));
    pthread_mutex_unlock(&e->lock);
    return status;
}

int ku_remote_check_contents(const struct ku_remote_engine *e, int worker, int64_t step,
                             size_t offset, const void *data, size_t bytes, bool is_sparse)
{
    const struct ku_contents_range r = {worker, step, offset, bytes, data, is_sparse};
    return ku_contents_check(&e->contents, &r);
}

/* bytes: of the push; a body stands for them if is_sparse. */
static int receive(struct ku_remote_engine *e, int worker, int64_t step, size_t offset,
                   const void *data, size_t bytes, bool is_sparse)
{
    KU_TRY(check_range(e, worker, offset, bytes));
    struct slot *x = &e->slot[worker];
    unsigned char *at = x->data + offset;
    pthread_mutex_lock(&e->lock);
    const size_t counted = ku_remote_bytes_in(e->extent, e->n_extents, offset, offset + bytes);
    const int status = check_step(e, worker, step, counted);
    const bool is_dropped = status == KUMI_OK && is_late(e, worker, step);
    if (status == KUMI_OK && !is_dropped)
        x->step = step;
    pthread_mutex_unlock(&e->lock);
    if (status < 0 || is_dropped)
        return status;
    if (is_sparse)
        ku_sparse_expand(data, at);
    else
        memcpy(at, data, bytes); /* the slot is not read before it is complete */
    pthread_mutex_lock(&e->lock);
    if (x->step == step && x->next <= step) {
        x->received += counted;
        if (x->received == e->payload)
            pthread_cond_broadcast(&e->changed);
    }
    pthread_mutex_unlock(&e->lock);
    return KUMI_OK;
}

int ku_remote_receive(struct ku_remote_engine *e, int worker, int64_t step, size_t offset,
                      const void *data, size_t bytes)
{
    return receive(e, worker, step, offset, data, bytes, false);
}

int ku_remote_receive_sparse(struct ku_remote_engine *e, int worker, int64_t step, size_t offset,
                             const void *body, size_t extent)
{
    return receive(e, worker, step, offset, body, extent, true);
}

void ku_remote_discard(struct ku_remote_engine *e, int worker, int64_t step)
{
    pthread_mutex_lock(&e->lock);
    struct slot *x = &e->slot[worker];
    if (x->received > 0 && x->step >= step && x->next <= x->step) {
        KU_ASSERT(e->server != 0 || x->received < e->payload);
        x->received = 0;
    }
    pthread_mutex_unlock(&e->lock);
}

/*
 * Whether `step`, any number that a peer has sent, is at most `staleness` steps ahead of every
 * worker in the bound. lock is held.
 */
static bool is_within_bound(const struct ku_remote_engine *e, int64_t step)
{
    for (int w = 0; w < e->n_workers; w++)
        if (!e->slot[w].is_excluded && step > e->slot[w].next + e->o.staleness)
            return false;
    return true;
}

/* Whether a worker may begin a step. lock is held. */
static bool is_ready(const struct ku_remote_engine *e, int worker, int64_t step)
{
    if (e->o.mode == KU_REMOTE_SYNC)
        return e->version >= step;
    return e->slot[worker].next >= step &&
           (e->o.mode == KU_REMOTE_ASYNC || is_within_bound(e, step));
}

void ku_remote_begin_at(struct ku_remote_engine *e, const int64_t *step)
{
    for (int w = 0; w < e->n_workers; w++) {
        KU_ASSERT(e->slot[w].received == 0 && !e->slot[w].is_kept);
        e->slot[w].next = e->slot[w].step = step[w];
    }
    for (int w = 0; w < e->n_workers; w++)
        e->slot[w].begins = is_ready(e, w, step[w]) ? e->version : -1;
}

void ku_remote_exclude(struct ku_remote_engine *e, int worker, bool is_excluded)
{
    KU_ASSERT(e->server == 0 && worker >= 0 && worker < e->n_workers);
    pthread_mutex_lock(&e->lock);
    e->slot[worker].is_to_be = is_excluded;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

/* The parameters with which a worker begins a step. */
struct readable {
    const struct ku_remote_engine *e;
    const unsigned char *kept; /* NULL: they are the state */
    size_t offset;             /* of the bytes that are read from them */
    int64_t since;
};

static int read_some(void *ctx, size_t at, size_t bytes, void *to)
{
    const struct readable *r = ctx;
    if (r->kept == NULL)
        return copy_space(r->e, r->offset + at, bytes, to);
    memcpy(to, r->kept + r->offset + at, bytes);
    return KUMI_OK;
}

static bool has_changed(void *ctx, size_t at, size_t bytes)
{
    const struct readable *r = ctx;
    (void)bytes;
    return ku_remote_has_changed(r->e->changes, r->offset + at, r->since);
}

/* *seen as ku_remote_read. `state` is held. */
static int find_readable(struct ku_remote_engine *e, int worker, int64_t step, struct readable *r,
                         int64_t *seen)
{
    pthread_mutex_lock(&e->lock);
    const struct slot *x = &e->slot[worker];
    const int status = failure_of(e);
    *seen = status < 0 || !is_ready(e, worker, step) ? -1
            : e->layout->is_single                   ? x->begins
                                                     : e->version;
    *r = (struct readable){.e = e, .kept = x->is_kept ? x->kept : NULL};
    pthread_mutex_unlock(&e->lock);
    return status;
}

/* Holds `state`; false: an update does, whose end on_version tells. *status: of the engine. */
static bool begin_read(struct ku_remote_engine *e, int *status)
{
    if (pthread_rwlock_tryrdlock(&e->state) == 0)
        return true;
    pthread_mutex_lock(&e->lock);
    *status = failure_of(e);
    pthread_mutex_unlock(&e->lock);
    return false;
}

int ku_remote_read(struct ku_remote_engine *e, int worker, int64_t step, size_t offset, void *data,
                   size_t bytes, int64_t *seen)
{
    const size_t space = e->layout->pull_bytes[e->server];
    struct readable r;
    int status;
    *seen = -1;
    if (worker < 0 || worker >= e->n_workers)
        return KU_ERR(KUMI_EINVAL, "ps: worker %d; there are %d", worker, e->n_workers);
    if (offset > space || bytes > space - offset)
        return KU_ERR(KUMI_EINVAL, "ps: bytes %zu to %zu of a pull of %zu bytes", offset,
                      offset + bytes, space);
    if (!begin_read(e, &status))
        return status;
    status = find_readable(e, worker, step, &r, seen);
    if (*seen >= 0)
        status = read_some(&r, offset, bytes, data);
    pthread_rwlock_unlock(&e->state);
    return status;
}

/*
 * What has not changed between `since` and the last update has not changed between `since` and the
 * update that the worker begins with, which is not before `since`.
 */
int ku_remote_read_changes(struct ku_remote_engine *e, const struct ku_remote_change_read *x,
                           void *body, size_t *body_bytes, size_t *extent, int64_t *seen)
{
    const size_t space = e->layout->pull_bytes[e->server];
    struct readable r;
    int status;
    KU_ASSERT(x->worker >= 0 && x->worker < e->n_workers && x->offset < space);
    KU_ASSERT(x->offset % KU_SPARSE_CELL_BYTES == 0);
    *body_bytes = 0;
    *seen = -1;
    if (!begin_read(e, &status))
        return status;
    status = find_readable(e, x->worker, x->step, &r, seen);
    r.offset = x->offset;
    r.since = x->since;
    if (*seen >= x->since && x->since >= 0 && e->changes)
        status = ku_sparse_build(&(struct ku_sparse_source){&r, has_changed, read_some},
                                 space - x->offset, body, body_bytes, extent);
    pthread_rwlock_unlock(&e->state);
    return status;
}

/* -- the server's thread ---------------------------------------------------------------------- */

static bool is_complete(const struct ku_remote_engine *e, int worker)
{
    const struct slot *x = &e->slot[worker];
    return x->received == e->payload && x->next <= x->step;
}

void ku_remote_awaited(struct ku_remote_engine *e, bool *is_awaited)
{
    const bool is_sync = e->o.mode == KU_REMOTE_SYNC, is_ssp = e->o.mode == KU_REMOTE_SSP;
    bool has_complete = false;
    int64_t waiting = -1; /* the largest step that may not begin yet */
    pthread_mutex_lock(&e->lock);
    for (int w = 0; w < e->n_workers; w++) {
        has_complete |= is_complete(e, w);
        if (e->slot[w].begins < 0 && !e->slot[w].is_excluded && e->slot[w].next > waiting)
            waiting = e->slot[w].next;
    }
    for (int w = 0; w < e->n_workers; w++) {
        const struct slot *x = &e->slot[w];
        const bool holds = waiting - x->next > e->o.staleness && !x->is_excluded;
        is_awaited[w] = !is_complete(e, w) && ((is_sync && has_complete) || (is_ssp && holds));
    }
    pthread_mutex_unlock(&e->lock);
}

void ku_remote_ask(struct ku_remote_engine *e)
{
    KU_ASSERT(e->server == 0);
    pthread_mutex_lock(&e->lock);
    e->is_asked = true;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

/* The slots that the next update may apply. lock is held. */
static bool choose(struct ku_remote_engine *e, struct choice *c)
{
    const bool is_sync = e->o.mode == KU_REMOTE_SYNC;
    const int wanted = is_sync ? e->n_workers - e->o.backup : 1;
    int first;
    c->n = e->events.next ? e->events.next(e->events.ctx, e->version + 1, c->worker) : 0;
    if (c->n > 0) {
        for (int k = 0; k < c->n; k++)
            if (!is_complete(e, c->worker[k]))
                return false;
        return true;
    }
    for (int k = 0; k < e->n_workers; k++) /* async: turn by turn among those that are complete */
        if (is_complete(e, first = is_sync ? k : (int)((e->version + k) % e->n_workers)) &&
            (!is_sync || e->slot[first].step >= e->version) && (is_sync || c->n == 0))
            c->worker[c->n++] = first;
    return c->n >= wanted;
}

/* The largest next step in the bound; without workers there, of those that return to it. */
static int64_t fastest_of(const struct ku_remote_engine *e)
{
    int64_t fastest = -1, returning = -1;
    for (int w = 0; w < e->n_workers; w++) {
        const struct slot *x = &e->slot[w];
        if (!x->is_excluded && x->next > fastest)
            fastest = x->next;
        if (!x->is_to_be && x->next > returning)
            returning = x->next;
    }
    return fastest < 0 ? returning : fastest;
}

/* The worker that can be excluded or included now; -1: none. lock is held. */
static int changing(const struct ku_remote_engine *e)
{
    const int64_t fastest = e->o.mode == KU_REMOTE_SSP ? fastest_of(e) : 0;
    for (int w = 0; w < e->n_workers && e->o.mode == KU_REMOTE_SSP; w++) {
        const struct slot *x = &e->slot[w];
        if (x->is_to_be != x->is_excluded && (x->is_to_be || fastest - x->next <= e->o.staleness))
            return w;
    }
    return -1;
}

/* lock is held. */
static bool choose_next(struct ku_remote_engine *e, struct choice *c)
{
    c->n = 0;
    c->counts = e->is_asked;
    e->is_asked = false;
    c->changed = c->counts ? -1 : changing(e);
    return c->counts || c->changed >= 0 || choose(e, c);
}

/* Waits for a while. lock is held. Returns false if the engine was stopped, or the job failed. */
static bool wait_a_while(struct ku_remote_engine *e, int *status)
{
    enum { SLICE_NS = 20000000 };
    (void)ku_cond_wait(&e->changed, &e->lock, ku_clock_ns() + SLICE_NS);
    ku_job_tick(e->t->job);
    *status = ku_job_progress(e->t->job);
    return !e->is_stopped && *status == KUMI_OK;
}

/* Waits until this server has all pushes of a choice. */
static int wait_for(struct ku_remote_engine *e, const struct choice *c)
{
    int status = KUMI_OK, n = 0;
    pthread_mutex_lock(&e->lock);
    do
        for (n = 0; n < c->n && is_complete(e, c->worker[n]);)
            n++;
    while (n < c->n && wait_a_while(e, &status));
    pthread_mutex_unlock(&e->lock);
    return status;
}

/* lock is held. */
static bool is_interrupted(const struct ku_remote_engine *e)
{
    return e->is_stopped || ku_job_stop(e->t->job) ||
           (e->server == 0 && e->events.pauses && e->events.pauses(e->events.ctx));
}

static int tell_choice(const struct ku_remote_engine *e, const struct choice *c)
{
    int64_t step[KU_REMOTE_MAX_WORKERS];
    for (int k = 0; k < c->n; k++)
        step[k] = e->slot[c->worker[k]].step;
    return e->events.on_apply
               ? e->events.on_apply(e->events.ctx, e->version + 1, c->n, c->worker, step)
               : KUMI_OK;
}

static const struct choice nothing = {.changed = -1};

static bool is_nothing(const struct choice *c)
{
    return c->n == 0 && c->changed < 0 && !c->counts;
}

/* What comes next; nothing: the engine was stopped. Collective. */
static int next_choice(struct ku_remote_engine *e, struct choice *c)
{
    int status = KUMI_OK;
    pthread_mutex_lock(&e->lock);
    *c = nothing;
    while (e->server == 0 && !is_interrupted(e) && !choose_next(e, c) && wait_a_while(e, &status))
        ;
    if (is_interrupted(e))
        *c = nothing;
    pthread_mutex_unlock(&e->lock);
    KU_TRY(status);
    if (e->server == 0 && c->n > 0)
        KU_TRY(tell_choice(e, c));
    if (e->t->job->n > 1) {
        KU_TRY(ku_agree_bytes(e->t->job, c, offsetof(struct choice, worker)));
        KU_TRY(ku_agree_bytes(e->t->job, c->worker, (size_t)c->n * sizeof *c->worker));
    }
    return wait_for(e, c);
}

/* As sum_entry, chunk by chunk, of what the records decode to. */
static void sum_compressed(struct ku_remote_engine *e, const struct choice *c, uint32_t i,
                           float *to)
{
    const struct ku_remote_entry *x = &e->layout->push[i];
    const struct ku_remote_part part = e->push[i];
    const void *src[KU_REMOTE_MAX_WORKERS];
    bool in_wire[KU_REMOTE_MAX_WORKERS] = {false};
    size_t at = part.offset;
    for (int64_t first = part.begin; first < part.end; first += KU_BLOCK_COUNT) {
        const int64_t left = part.end - first, n = left < KU_BLOCK_COUNT ? left : KU_BLOCK_COUNT;
        void *dst = to + (first - part.begin);
        for (int k = 0; k < c->n; k++) {
            float *decoded = e->decoded + (size_t)k * KU_BLOCK_COUNT;
            ku_compress_decode(x, n, e->slot[c->worker[k]].data + at, decoded);
            src[k] = decoded;
        }
        ku_sum(e->kernels, &(struct ku_sum){.n_src = c->n,
                                            .n_dst = 1,
                                            .src = src,
                                            .dst = &dst,
                                            .count = n,
                                            .dtype = x->dtype,
                                            .wire = x->wire,
                                            .reduce = x->reduce,
                                            .in_wire = in_wire});
        at += ku_remote_record_bytes(x, n);
    }
}

/* One entry of the chosen pushes, summed in the order of the workers into its port. */
static int sum_entry(struct ku_remote_engine *e, const struct choice *c, uint32_t i)
{
    const struct ku_remote_entry *x = &e->layout->push[i];
    const void *src[KU_REMOTE_MAX_WORKERS];
    bool in_wire[KU_REMOTE_MAX_WORKERS];
    struct ku_mapping map;
    const struct ku_remote_part part = e->push[i];
    struct ku_range r = e->port[i];
    if (part.begin == part.end)
        return KUMI_OK;
    r.bytes = (size_t)(part.end - part.begin) * kumi_dtype_bytes(x->dtype);
    KU_TRY(ku_range_map(r, KU_ACCESS_WRITE, &map));
    if (x->form != KU_REMOTE_DENSE) {
        sum_compressed(e, c, i, map.data);
        return ku_range_unmap(&map);
    }
    for (int k = 0; k < c->n; k++) {
        src[k] = e->slot[c->worker[k]].data + part.offset;
        in_wire[k] = x->wire != x->dtype;
    }
    ku_sum(e->kernels, &(struct ku_sum){.n_src = c->n,
                                        .n_dst = 1,
                                        .src = src,
                                        .dst = &map.data,
                                        .count = part.end - part.begin,
                                        .dtype = x->dtype,
                                        .wire = x->wire,
                                        .reduce = x->reduce,
                                        .in_wire = in_wire});
    return ku_range_unmap(&map);
}

/* Workers that waited and may begin do so with the parameters as they are now. lock is held. */
static void begin_ready(struct ku_remote_engine *e)
{
    for (int w = 0; w < e->n_workers; w++)
        if (e->slot[w].begins < 0 && is_ready(e, w, e->slot[w].next))
            e->slot[w].begins = e->version;
}

/* Excludes a worker, or includes it again. */
static void apply_change(struct ku_remote_engine *e, int worker)
{
    pthread_mutex_lock(&e->lock);
    e->slot[worker].is_excluded = !e->slot[worker].is_excluded;
    begin_ready(e);
    pthread_mutex_unlock(&e->lock);
}

/* Collective. */
static int count_pushes(struct ku_remote_engine *e)
{
    const struct ku_remote_events *on = &e->events;
    int64_t n[KU_REMOTE_MAX_WORKERS] = {0};
    if (e->server != 0 && on->count)
        on->count(on->ctx, n);
    KU_TRY(ku_agree_sum(e->t->job, n, e->n_workers));
    if (e->server == 0 && on->counted)
        on->counted(on->ctx, n);
    return KUMI_OK;
}

/* The slots of a choice are empty again; late ones in sync mode too. */
static void release(struct ku_remote_engine *e, const struct choice *c)
{
    const int64_t done = e->version;
    for (int k = 0; k < c->n; k++) {
        struct slot *x = &e->slot[c->worker[k]];
        x->next = x->step + 1;
        x->received = 0;
        x->begins = -1;
        x->is_kept = false;
    }
    e->version = done + 1;
    begin_ready(e);
    for (int w = 0; w < e->n_workers && e->o.mode == KU_REMOTE_SYNC; w++)
        if (e->slot[w].next <= done) {
            e->slot[w].next = done + 1;
            e->slot[w].received = 0;
        }
}

/* Async, ssp: copies the parameters for the workers that may read them. `state` is held. */
static int keep(struct ku_remote_engine *e)
{
    for (int w = 0; w < e->n_workers && e->layout->is_single; w++) {
        struct slot *x = &e->slot[w];
        pthread_mutex_lock(&e->lock);
        const bool is_due = x->begins >= 0 && !x->is_kept && !is_complete(e, w);
        pthread_mutex_unlock(&e->lock);
        if (!is_due)
            continue;
        KU_TRY(copy_space(e, 0, e->layout->pull_bytes[e->server], x->kept));
        pthread_mutex_lock(&e->lock);
        x->is_kept = true;
        pthread_mutex_unlock(&e->lock);
    }
    return KUMI_OK;
}

static int update(struct ku_remote_engine *e, const struct choice *c)
{
    const double *report;
    int status = KUMI_OK;
    if (e->server != 0)
        KU_TRY(tell_choice(e, c));
    for (uint32_t i = 0; i < e->layout->n_push; i++)
        KU_TRY(sum_entry(e, c, i));
    pthread_rwlock_wrlock(&e->state);
    status = keep(e);
    if (status == KUMI_OK)
        status = ku_trainer_step(e->t, e->version, &report);
    if (status == KUMI_OK && e->changes)
        status = ku_remote_changes_note(e->changes, e->version + 1, copy_now, e);
    if (status == KUMI_OK) {
        memcpy(e->report, report, sizeof e->report);
        pthread_mutex_lock(&e->lock);
        release(e, c);
        pthread_mutex_unlock(&e->lock);
    }
    pthread_rwlock_unlock(&e->state);
    return status;
}

static void fail(struct ku_remote_engine *e, int status)
{
    pthread_mutex_lock(&e->lock);
    if (e->status == KUMI_OK) {
        e->status = status;
        e->error = *ku_err_get();
    }
    pthread_mutex_unlock(&e->lock);
    if (e->events.on_version)
        e->events.on_version(e->events.ctx, -1);
}

int ku_remote_serve(struct ku_remote_engine *e, int64_t n_updates)
{
    struct choice *c = ku_calloc(1, sizeof *c);
    int status = c ? KUMI_OK : KUMI_ENOMEM;
    while (status == KUMI_OK && e->version < n_updates) {
        status = next_choice(e, c);
        if (status < 0 || is_nothing(c) || e->is_stopped)
            break;
        if (c->counts)
            status = count_pushes(e);
        else if (c->changed >= 0)
            apply_change(e, c->changed);
        else
            status = update(e, c);
        if (status == KUMI_OK && e->events.on_version)
            e->events.on_version(e->events.ctx, e->version);
    }
    ku_free(c);
    pthread_mutex_lock(&e->lock);
    const int stopped = status == KUMI_OK ? failure_of(e) : KUMI_OK; /* by ku_remote_stop */
    pthread_mutex_unlock(&e->lock);
    if (status < 0)
        fail(e, status);
    status = status < 0 ? status : stopped;
    if (status < 0 && status != KUMI_ESTOPPED && e->t->job->n > 1)
        status = ku_job_fail(e->t->job); /* the other servers wait for this one */
    return status;
}

void ku_remote_stop(struct ku_remote_engine *e, int status)
{
    pthread_mutex_lock(&e->lock);
    e->is_stopped = true;
    if (status < 0 && e->status == KUMI_OK) {
        e->status = status;
        e->error = *ku_err_get();
    }
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    if (e->events.on_version)
        e->events.on_version(e->events.ctx, -1);
}

const double *ku_remote_report(const struct ku_remote_engine *e, int64_t *version)
{
    *version = e->version;
    return e->report;
}
