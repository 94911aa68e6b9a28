/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/direct.h"

#include <pthread.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"

/* Of one worker */
struct end {
    struct ku_remote_direct *d;
    struct ku_remote_link link;
};
/* Of one server */
struct desk {
    struct ku_remote_direct *d;
    struct ku_remote_engine *engine;
    int n_stopping; /* calls that stop the engine and do not hold the lock */
    struct ku_remote_events then;
};

struct ku_remote_direct {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* an engine was attached, a version made, or all failed */
    int n_workers, n_servers, n_attached, n_left, status;
    uint64_t n_events;
    char *numerics;    /* of the run; NULL: none were given */
    char *out;         /* likewise: OUT/workers */
    struct end *end;   /* [n_workers] */
    struct desk *desk; /* [n_servers] */
};

static int dead(const struct ku_remote_direct *d)
{
    return KU_ERR(d->status, "ps: another worker or server of this process failed");
}

/* Waits until all servers are attached. */
static int meet(struct ku_remote_direct *d)
{
    pthread_mutex_lock(&d->lock);
    while (d->n_attached < d->n_servers && d->status == KUMI_OK)
        pthread_cond_wait(&d->changed, &d->lock);
    const int status = d->status < 0 ? dead(d) : KUMI_OK;
    pthread_mutex_unlock(&d->lock);
    return status;
}

static int join_servers(void *link, const struct ku_remote_layout *layout, const char **numerics)
{
    struct end *x = link;
    KU_TRY(meet(x->d));
    const uint64_t is = ku_remote_engine_layout(x->d->desk[0].engine)->checksum;
    if (layout && layout->checksum != is)
        return KU_ERR(
            KUMI_EMISMATCH,
            "ps: worker %d: model or configuration differ from the servers' "
            "(layout %016llx, of the servers %016llx); start both with the same configuration",
            x->link.worker, (unsigned long long)layout->checksum, (unsigned long long)is);
    *numerics = x->d->numerics;
    x->link.out = x->d->out;
    return KUMI_OK;
}

static int push(void *link, int server, int64_t step, size_t offset, const void *data, size_t bytes)
{
    struct end *x = link;
    KU_TRY(meet(x->d));
    return ku_remote_receive(x->d->desk[server].engine, x->link.worker, step, offset, data, bytes);
}

static int flush(void *link)
{
    (void)link;
    return KUMI_OK;
}

static int pull(void *link, int server, int64_t step, void *data, int64_t *seen)
{
    struct end *x = link;
    struct ku_remote_direct *d = x->d;
    KU_TRY(meet(d));
    for (;;) {
        struct ku_remote_engine *e = d->desk[server].engine;
        pthread_mutex_lock(&d->lock);
        const uint64_t before = d->n_events;
        pthread_mutex_unlock(&d->lock);
        KU_TRY(ku_remote_read(e, x->link.worker, step, 0, data,
                              ku_remote_engine_layout(e)->pull_bytes[server], seen));
        if (*seen >= 0)
            return KUMI_OK;
        pthread_mutex_lock(&d->lock);
        while (d->n_events == before && d->status == KUMI_OK)
            pthread_cond_wait(&d->changed, &d->lock);
        const int status = d->status < 0 ? dead(d) : KUMI_OK;
        pthread_mutex_unlock(&d->lock);
        KU_TRY(status);
    }
}

static const struct ku_remote_link_ops direct_ops = {.name = "direct",
                                                     .connect = join_servers,
                                                     .push = push,
                                                     .flush = flush,
                                                     .pull = pull,
                                                     .wait = flush};

static void on_version(void *ctx, int64_t version)
{
    struct desk *x = ctx;
    pthread_mutex_lock(&x->d->lock);
    x->d->n_events++;
    pthread_cond_broadcast(&x->d->changed);
    pthread_mutex_unlock(&x->d->lock);
    if (x->then.on_version)
        x->then.on_version(x->then.ctx, version);
}

static int on_apply(void *ctx, int64_t version, int n, const int32_t *worker, const int64_t *step)
{
    const struct desk *x = ctx;
    return x->then.on_apply ? x->then.on_apply(x->then.ctx, version, n, worker, step) : KUMI_OK;
}

static int next(void *ctx, int64_t version, int32_t *worker)
{
    const struct desk *x = ctx;
    return x->then.next ? x->then.next(x->then.ctx, version, worker) : 0;
}

int ku_remote_direct_create(int n_workers, int n_servers, struct ku_remote_direct **out)
{
    struct ku_remote_direct *d = ku_calloc(1, sizeof *d);
    if (d == NULL)
        return KUMI_ENOMEM;
    d->n_workers = n_workers, d->n_servers = n_servers;
    d->end = ku_calloc((size_t)n_workers, sizeof *d->end);
    d->desk = ku_calloc((size_t)n_servers, sizeof *d->desk);
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->changed, NULL);
    if (d->end == NULL || d->desk == NULL) {
        ku_remote_direct_destroy(d);
        return KUMI_ENOMEM;
    }
    for (int w = 0; w < n_workers; w++)
        d->end[w] = (struct end){d, {.ops = &direct_ops, .ctx = &d->end[w], .worker = w}};
    for (int s = 0; s < n_servers; s++)
        d->desk[s].d = d;
    *out = d;
    return KUMI_OK;
}

void ku_remote_direct_destroy(struct ku_remote_direct *d)
{
    if (d == NULL)
        return;
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->lock);
    ku_free(d->numerics);
    ku_free(d->out);
    ku_free(d->end);
    ku_free(d->desk);
    ku_free(d);
}

void ku_remote_direct_attach(struct ku_remote_direct *d, struct ku_remote_engine *e,
                             const char *numerics, const char *out,
                             const struct ku_remote_events *events)
{
    struct desk *x = &d->desk[ku_remote_engine_server(e)];
    const struct ku_remote_events own = {.ctx = x,
                                         .on_version = on_version,
                                         .on_apply = on_apply,
                                         .next = events && events->next ? next : NULL};
    x->then = events ? *events : (struct ku_remote_events){0};
    ku_remote_engine_watch(e, &own);
    pthread_mutex_lock(&d->lock);
    x->engine = e;
    if (ku_remote_engine_server(e) == 0 && numerics)
        d->numerics = ku_strdup(numerics);
    if (ku_remote_engine_server(e) == 0 && out)
        d->out = ku_asprintf("%s/workers", out);
    d->n_attached++;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
}

const struct ku_remote_link *ku_remote_direct_link(struct ku_remote_direct *d, int worker)
{
    return &d->end[worker].link;
}

/* Waits until every worker has made its last call. */
static void linger(struct ku_remote_direct *d)
{
    pthread_mutex_lock(&d->lock);
    while (d->n_left < d->n_workers)
        pthread_cond_wait(&d->changed, &d->lock);
    pthread_mutex_unlock(&d->lock);
}

void ku_remote_direct_detach(struct ku_remote_direct *d, struct ku_remote_engine *e)
{
    struct desk *x = &d->desk[ku_remote_engine_server(e)];
    linger(d);
    pthread_mutex_lock(&d->lock);
    x->engine = NULL;
    while (x->n_stopping > 0)
        pthread_cond_wait(&d->changed, &d->lock);
    pthread_mutex_unlock(&d->lock);
}

void ku_remote_direct_leave(struct ku_remote_direct *d)
{
    pthread_mutex_lock(&d->lock);
    d->n_left++;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
}

/* The engine is not destroyed meanwhile: detach waits. */
static void stop(struct desk *x, int status)
{
    pthread_mutex_t *const lock = &x->d->lock;
    pthread_mutex_lock(lock);
    struct ku_remote_engine *const e = x->engine;
    x->n_stopping += e != NULL;
    pthread_mutex_unlock(lock);
    if (e == NULL)
        return;
    ku_remote_stop(e, status);
    pthread_mutex_lock(lock);
    x->n_stopping--;
    pthread_cond_broadcast(&x->d->changed);
    pthread_mutex_unlock(lock);
}

void ku_remote_direct_fail(struct ku_remote_direct *d, int status)
{
    pthread_mutex_lock(&d->lock);
    d->status = d->status < 0 ? d->status : status;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    for (int s = 0; s < d->n_servers; s++)
        stop(&d->desk[s], status);
}
