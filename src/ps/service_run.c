/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The service and the run that it belongs to: attach, events of the engine, recovery.
 *
 *     attach   read the journal ─> begin there ─> watch the engine ─> start the feeder ─> return
 *     run      updates, in the order of the journal          ^
 *     feeder   pushes the journal's records, each one when its worker's push before is applied
 *              ─> all updates of the journal are done: opened
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/cond.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/str.h"
#include "comm/consensus.h"
#include "ps/journal_record.h"
#include "ps/service_private.h"

enum { SLICE_NS = 50 * 1000 * 1000 };

/* Waits for a change, at most a slice. lock is held. */
static void wait_a_slice(struct ku_ps_service *s)
{
    (void)ku_cond_wait(&s->changed, &s->lock, ku_clock_ns() + SLICE_NS);
}

/* -- events of the engine --------------------------------------------------------------------- */

/* Where pushes alone do not say which of them an update applies. */
static bool has_open_order(const struct ku_ps_service *s)
{
    return s->engine_opts.mode != KU_REMOTE_SYNC || s->engine_opts.backup > 0;
}

/* Logs a decision. While the disk is full it waits. lock is held. */
static int log_update(struct ku_ps_service *s)
{
    const int64_t deadline_ns = ku_clock_ns() + s->timeout_ns / 2;
    bool is_told = false;
    for (;;) {
        const int status = ku_ps_journal_update(s->journal, s->applying.version, s->applying.n,
                                                s->applying.worker, s->applying.step);
        if (status != KUMI_ESTORAGE || s->is_stopping || ku_clock_ns() > deadline_ns)
            return status;
        if (!is_told)
            KU_MESSAGE(WARN, "kumi: %s; update %lld waits for space", ku_err_get()->text,
                       (long long)s->applying.version);
        is_told = true;
        wait_a_slice(s);
    }
}

static int on_apply(void *ctx, int64_t version, int n, const int32_t *worker, const int64_t *step)
{
    struct ku_ps_service *s = ctx;
    int status = KUMI_OK;
    uint64_t number = 0;
    pthread_mutex_lock(&s->lock);
    s->applying.version = version;
    s->applying.n = n;
    memcpy(s->applying.worker, worker, (size_t)n * sizeof *worker);
    memcpy(s->applying.step, step, (size_t)n * sizeof *step);
    if (version > s->ledger.version && s->journal) {
        status = log_update(s);
        if (status == KUMI_OK)
            ku_ps_ledger_apply(&s->ledger, version, n, worker, step);
        number = ku_ps_journal_last(s->journal);
    }
    pthread_mutex_unlock(&s->lock);
    if (status == KUMI_OK && number && s->server == 0 && has_open_order(s))
        status = ku_ps_journal_sync(s->journal, number, true); /* before anything depends on it */
    return status;
}

static void on_version(void *ctx, int64_t version)
{
    struct ku_ps_service *s = ctx;
    pthread_mutex_lock(&s->lock);
    if (version < 0) {
        s->is_stopping = true;
    } else {
        s->done = version;
        for (int k = 0; k < s->applying.n; k++)
            s->applied[s->applying.worker[k]] = s->applying.step[k] + 1;
        for (int w = 0; w < s->layout->n_workers && s->engine_opts.mode == KU_REMOTE_SYNC; w++)
            s->applied[w] = version;
    }
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (s->o.changed)
        s->o.changed(s->o.ctx);
}

static void count(void *ctx, int64_t *n)
{
    struct ku_ps_service *s = ctx;
    pthread_mutex_lock(&s->lock);
    for (int w = 0; w < s->layout->n_workers; w++)
        n[w] = s->present[w].n_ranges;
    pthread_mutex_unlock(&s->lock);
}

static void counted(void *ctx, const int64_t *n)
{
    struct ku_ps_service *s = ctx;
    pthread_mutex_lock(&s->lock);
    s->counted_ns = ku_clock_ns();
    for (int w = 0; w < s->layout->n_workers; w++) {
        if (n[w] != s->present[w].n_elsewhere)
            s->present[w].awaited_ns = s->counted_ns;
        s->present[w].n_elsewhere = n[w];
    }
    pthread_mutex_unlock(&s->lock);
}

/* Without lock: the plan does not change. */
static int next(void *ctx, int64_t version, int32_t *worker)
{
    const struct ku_ps_service *s = ctx;
    const int64_t at = version - s->plan.version - 1;
    if (at < 0 || at >= s->plan.n_choices)
        return 0;
    const struct ku_ps_choice *c = &s->plan.choice[at];
    memcpy(worker, c->worker, (size_t)c->n * sizeof *worker);
    return c->n;
}

static bool pauses(void *ctx)
{
    struct ku_ps_service *s = ctx;
    return atomic_load(&s->wants_saving);
}

/* -- recovery --------------------------------------------------------------------------------- */

/* Of one reading of the journal: the next of plan.pushed. */
struct feeding {
    struct ku_ps_service *s;
    uint32_t at;
};

/* Whether the push of a worker for `step` may be given to the engine; false: the run stops. */
static bool await_turn(struct ku_ps_service *s, int worker, int64_t step)
{
    pthread_mutex_lock(&s->lock);
    while (!s->is_stopping && s->applied[worker] < step)
        wait_a_slice(s);
    const bool is_stopping = s->is_stopping;
    pthread_mutex_unlock(&s->lock);
    return !is_stopping;
}

static int feed(void *ctx, const struct ku_ps_record *r)
{
    struct feeding *f = ctx;
    const struct ku_ps_plan *p = &f->s->plan;
    if (f->at == p->n_pushed)
        return KUMI_ESTOPPED;
    if (r->number != p->pushed[f->at].number)
        return KUMI_OK;
    if (p->pushed[f->at++].is_dropped)
        return KUMI_OK;
    if (!await_turn(f->s, r->worker, r->step))
        return KUMI_ESTOPPED;
    if (r->kind == KU_PS_ROWS)
        return ku_remote_receive_sparse(f->s->engine, r->worker, r->step, r->offset, r->body,
                                        r->extent);
    return ku_remote_receive(f->s->engine, r->worker, r->step, r->offset, r->body, r->bytes);
}

static int feed_all(struct ku_ps_service *s)
{
    struct feeding f = {.s = s};
    int status = s->plan.n_pushed ? ku_ps_journal_read(s->dir, feed, &f, NULL) : KUMI_OK;
    if (status < 0 && status != KUMI_ESTOPPED)
        return status;
    pthread_mutex_lock(&s->lock);
    while (!s->is_stopping && s->done < s->target)
        wait_a_slice(s);
    const bool is_stopping = s->is_stopping;
    s->is_open = !is_stopping;
    for (int w = 0; w < s->layout->n_workers; w++)
        s->present[w].gone_ns = s->present[w].awaited_ns = ku_clock_ns();
    pthread_mutex_unlock(&s->lock);
    return is_stopping || s->o.opened == NULL ? KUMI_OK : s->o.opened(s->o.ctx);
}

/* The workers that are away for the whole deadline; *first is one of them. lock is held. */
static int n_away(const struct ku_ps_service *s, int *first)
{
    const int64_t now = ku_clock_ns();
    int n = 0;
    for (int w = s->layout->n_workers - 1; w >= 0; w--)
        if (s->present[w].count == 0 && now - s->present[w].gone_ns > s->timeout_ns) {
            *first = w;
            n++;
        }
    return n;
}

/*
 * A worker that is connected, and that others have waited for since the deadline, in which no new
 * range of its push has come; -1: none. A hung process keeps its connection. On server 0, to which
 * a push is completed last, and which asks the others meanwhile: it may be on its way to them. What
 * counts is how long nothing had come when they answered. lock is held.
 */
static int find_hung(struct ku_ps_service *s)
{
    const int64_t now = ku_clock_ns(), often_ns = s->timeout_ns / 16;
    const bool is_alone = s->layout->n_servers == 1;
    bool is_awaited[KU_REMOTE_MAX_WORKERS], asks = false;
    if (s->server != 0 || s->engine_opts.mode == KU_REMOTE_ASYNC)
        return -1;
    ku_remote_awaited(s->engine, is_awaited);
    for (int w = 0; w < s->layout->n_workers; w++) {
        struct ku_ps_presence *x = &s->present[w];
        const int64_t step = s->ledger.worker[w].next;
        if (x->count == 0 || !is_awaited[w] || x->awaited != step)
            x->awaited_ns = now;
        x->awaited = step;
        if ((is_alone ? now : s->counted_ns) - x->awaited_ns > s->timeout_ns)
            return w;
        asks |= !is_alone && now - x->awaited_ns > often_ns;
    }
    if (asks && now - s->asked_ns > often_ns) {
        s->asked_ns = now;
        ku_remote_ask(s->engine);
    }
    return -1;
}

/*
 * Reports a worker that has disconnected, and when it is back. With ssp the others go on without
 * it; with sync and no backup they wait. lock is held.
 */
static void follow_connections(struct ku_ps_service *s)
{
    enum { PATIENCE_NS = 1000 * 1000 * 1000 }; /* a connection that was lost is made again */
    const bool is_ssp = s->engine_opts.mode == KU_REMOTE_SSP;
    for (int w = 0; w < s->layout->n_workers; w++) {
        struct ku_ps_presence *x = &s->present[w];
        const int64_t gone_ns = ku_clock_ns() - x->gone_ns; /* or not started yet */
        const bool is_away =
            x->count == 0 && gone_ns > (x->was_here ? (int64_t)PATIENCE_NS : s->timeout_ns);
        if (is_away == x->is_told || (x->is_told && x->count == 0))
            continue;
        x->is_told = is_away;
        if (is_ssp)
            ku_remote_exclude(s->engine, w, is_away);
        if (!is_away)
            KU_MESSAGE(INFO, "kumi: ps: worker %d is back", w);
        else if (is_ssp)
            KU_MESSAGE(WARN, "kumi: ps: worker %d is away, and the others go on without it", w);
        else
            KU_MESSAGE(WARN,
                       "kumi: ps: worker %d is away, and the others wait for it; without it the "
                       "servers end in %.0f s (parallel.timeout_s)",
                       w, (double)(s->timeout_ns - gone_ns) * 1e-9);
    }
}

static int stopped_for_hung(const struct ku_ps_service *s, int worker, int64_t step)
{
    return KU_ERR(KUMI_ETIMEDOUT,
                  "ps: worker %d is connected, but its push of step %lld, which others wait for, "
                  "is not complete, and nothing of it has come for %.1f s (parallel.timeout_s); "
                  "start it again, and the servers, which continue from there",
                  worker, (long long)step, (double)s->timeout_ns * 1e-9);
}

static int stopped_for_away(const struct ku_ps_service *s, int first, int n)
{
    return KU_ERR(KUMI_ETIMEDOUT,
                  "ps: worker %d has not been connected for %.1f s (parallel.timeout_s)%s; start "
                  "it again, and the servers, which continue from there",
                  first, (double)s->timeout_ns * 1e-9, n > 1 ? ", nor have others" : "");
}

/*
 * Follows the connections of the workers, and ends the run when so many are away for so long that
 * no update can come, or when others wait so long for one that is connected.
 */
static void watch_workers(struct ku_ps_service *s)
{
    const int n = s->layout->n_workers;
    const bool waits = s->engine_opts.mode == KU_REMOTE_SYNC && s->engine_opts.backup == 0;
    const int spare = s->engine_opts.mode == KU_REMOTE_SYNC ? s->engine_opts.backup : n - 1;
    int first = -1, away = 0, hung = -1;
    pthread_mutex_lock(&s->lock);
    while (!s->is_stopping && (away = n_away(s, &first)) <= spare && (hung = find_hung(s)) < 0) {
        if ((waits || s->engine_opts.mode == KU_REMOTE_SSP) && n > 1 && s->server == 0)
            follow_connections(s);
        wait_a_slice(s);
    }
    const bool is_stopping = s->is_stopping;
    const int64_t step = hung >= 0 ? s->present[hung].awaited : 0;
    pthread_mutex_unlock(&s->lock);
    if (!is_stopping)
        ku_remote_stop(s->engine, hung >= 0 ? stopped_for_hung(s, hung, step)
                                            : stopped_for_away(s, first, away));
}

static void *feeder_main(void *arg)
{
    struct ku_ps_service *s = arg;
    const int status = feed_all(s);
    if (status < 0)
        ku_remote_stop(s->engine, status);
    else if (s->journal)
        watch_workers(s);
    return NULL;
}

/* Files of a journal that the checkpoint has overtaken. */
static int remove_old(struct ku_ps_service *s)
{
    struct ku_ps_end *end = &s->plan.end;
    for (uint32_t i = end->first; i && i <= end->last && s->plan.base < 0; i++) {
        char *path = ku_ps_journal_file(s->dir, i);
        if (path == NULL)
            return KUMI_ENOMEM;
        const int failed = ku_os_unlink(path);
        if (failed)
            KU_ERR(KUMI_ESTORAGE, "journal: %s: cannot be removed: %s", path, ku_os_why());
        ku_free(path);
        if (failed)
            return KUMI_ESTORAGE;
    }
    if (s->plan.base < 0)
        *end = (struct ku_ps_end){.next_number = 1};
    return KUMI_OK;
}

/*
 * What server 0 tells the others about its journal:
 *
 *     per worker   plan.needed, plan.next
 *     target       number of updates
 *     reach        updates that the servers can do again without the workers: in sync those whose
 *                  pushes are complete; where the order is open, those that were decided
 */
struct known {
    int64_t *needed, *next; /* [n_workers] */
    int64_t target, reach;
};

/* The update that must be done before this server has pushed its journal again (await_turn). */
static int64_t last_awaited(const struct ku_ps_service *s)
{
    const struct ku_ps_ledger *l = &s->plan.ledger;
    int64_t update = l->version;
    for (int w = 0; w < l->n_workers && !has_open_order(s); w++) {
        const int64_t step = l->worker[w].next - (l->worker[w].received == 0);
        update = w == 0 || step > update ? step : update;
    }
    return update;
}

static int64_t reach_of(const struct ku_ps_service *s)
{
    const struct ku_ps_ledger *l = &s->plan.ledger;
    int64_t reach = l->version;
    for (int w = 0; w < l->n_workers && !has_open_order(s); w++) {
        const int64_t begin = ku_ps_ledger_begin(l, w);
        reach = w == 0 || begin < reach ? begin : reach;
    }
    return reach;
}

#define MOVE_ALL "move the journals of all servers away to continue from the newest checkpoint"

/* This journal has all that server 0 needs, and needs nothing that server 0 lacks. */
static int check_known(const struct ku_ps_service *s, const struct known *k)
{
    const struct ku_ps_plan *p = &s->plan;
    for (int w = 0; w < p->ledger.n_workers; w++)
        if (p->next[w] != k->next[w])
            return KU_ERR(KUMI_EINPUT,
                          "journal: %s: at the checkpoint of update %lld worker %d begins step "
                          "%lld, but step %lld in the journal of server 0: one of the two was "
                          "moved away, or does not reach the checkpoint; " MOVE_ALL,
                          s->dir, (long long)p->version, w, (long long)p->next[w],
                          (long long)k->next[w]);
    for (int w = 0; w < p->ledger.n_workers; w++)
        if (ku_ps_ledger_begin(&p->ledger, w) < k->needed[w])
            return KU_ERR(KUMI_EINPUT,
                          "journal: %s: lacks the push of worker %d for step %lld, which server 0 "
                          "has: the disk lost what --journal-sync none had not written; " MOVE_ALL,
                          s->dir, w, (long long)k->needed[w] - 1);
    if (last_awaited(s) > k->reach)
        return KU_ERR(KUMI_EINPUT,
                      "journal: %s: ends at update %lld, but that of server 0 at update %lld: the "
                      "disk of server 0 lost what --journal-sync none had not written; " MOVE_ALL,
                      s->dir, (long long)p->ledger.version, (long long)k->target);
    return KUMI_OK;
}

/*
 * What the updates of server 0 need, and what it has completely, all others have (ps/service.h),
 * and they do not go beyond it, or disks have lost something. Agrees on the number of updates to
 * repeat. Collective.
 */
static int agree(struct ku_ps_service *s, struct ku_job *job)
{
    const size_t n = (size_t)s->layout->n_workers;
    int64_t *word = ku_calloc(2 * n + 2, sizeof *word);
    if (word == NULL)
        return KUMI_ENOMEM;
    memcpy(word, s->plan.needed, n * sizeof *word);
    memcpy(word + n, s->plan.next, n * sizeof *word);
    word[2 * n] = s->plan.ledger.version;
    word[2 * n + 1] = reach_of(s);
    int status = ku_agree_bytes(job, word, (2 * n + 2) * sizeof *word);
    const struct known k = {word, word + n, word[2 * n], word[2 * n + 1]};
    s->target = k.target;
    if (status == KUMI_OK && s->server != 0)
        status = check_known(s, &k);
    ku_free(word);
    return status;
}

static int read_journal(struct ku_ps_service *s, const struct ku_run_served *x)
{
    const struct ku_ps_identity identity = {.layout = s->layout->checksum,
                                            .server = s->server,
                                            .n_servers = s->layout->n_servers,
                                            .n_workers = s->layout->n_workers,
                                            .is_sync = x->opts->mode == KU_REMOTE_SYNC};
    const struct ku_ps_journal_opts o = {.dir = s->dir,
                                         .identity = identity,
                                         .ledger = &s->ledger,
                                         .sync = s->o.sync,
                                         .group_ms = s->o.group_ms,
                                         .segment_bytes = s->o.segment_bytes,
                                         .keeps = s->o.keeps};
    s->space.bytes = s->layout->push_bytes[s->server];
    KU_TRY(ku_remote_extents(s->layout, s->server, &s->extent, &s->space.n_parts));
    s->space.part = s->extent;
    KU_TRY(ku_ps_plan_read(s->dir, x->opts->version, &identity, &s->space, &s->plan));
    KU_TRY(agree(s, x->job));
    if (s->o.replayed == NULL)
        KU_TRY(remove_old(s));
    s->ledger = s->plan.ledger;
    s->plan.ledger = (struct ku_ps_ledger){0};
    s->ledger.dropped = 0; /* since the start, as what else is counted */
    for (int w = 0; w < identity.n_workers; w++)
        s->applied[w] = s->plan.next[w];
    ku_remote_begin_at(s->engine, s->plan.next);
    return s->o.replayed ? KUMI_OK : ku_ps_journal_open(&o, &s->plan.end, &s->journal);
}

int ku_ps_attach(void *service, const struct ku_run_served *x)
{
    struct ku_ps_service *s = service;
    const struct ku_remote_events events = {.ctx = s,
                                            .on_version = on_version,
                                            .on_apply = on_apply,
                                            .next = next,
                                            .pauses = pauses,
                                            .count = count,
                                            .counted = counted};
    s->layout = ku_remote_engine_layout(x->engine);
    s->server = ku_remote_engine_server(x->engine);
    s->engine = x->engine;
    s->engine_opts = *x->opts;
    s->done = x->opts->version;
    s->state.saved = x->opts->version ? x->opts->version : -1;
    s->timeout_ns = x->timeout_ns;
    s->numerics = ku_strdup(x->numerics);
    s->dir = ku_asprintf("%s/server-%d", s->o.replayed ? s->o.replayed : x->out, s->server);
    if (s->o.replayed == NULL) {
        ku_free(s->dir);
        s->dir = ku_asprintf("%s/journal/server-%d", x->out, s->server);
    }
    s->present = ku_calloc((size_t)s->layout->n_workers, sizeof *s->present);
    s->applied = ku_calloc((size_t)s->layout->n_workers, sizeof *s->applied);
    if (!s->numerics || !s->dir || !s->present || !s->applied)
        return KUMI_ENOMEM;
    KU_TRY(read_journal(s, x));
    if (s->server == 0 && s->target > s->done)
        KU_MESSAGE(WARN, "kumi: %s: repeating updates %lld to %lld from the journal", x->out,
                   (long long)s->done + 1, (long long)s->target);
    ku_remote_engine_watch(s->engine, &events);
    s->has_feeder = pthread_create(&s->feeder, NULL, feeder_main, s) == 0;
    return s->has_feeder ? KUMI_OK : KU_ERR(KUMI_ENOMEM, "ps: cannot start a thread");
}

void ku_ps_quiesce(struct ku_ps_service *s)
{
    pthread_mutex_lock(&s->lock);
    s->is_stopping = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (s->has_feeder)
        pthread_join(s->feeder, NULL);
    s->has_feeder = false;
}

/* Logs the bytes of server 0 since its start, and the pushes that it dropped. */
static void tell_traffic(const struct ku_ps_service *s)
{
    char pushed[16], pulled[16];
    const char *const in = ku_text_bytes(s->state.pushed_bytes, pushed);
    const char *const out = ku_text_bytes(s->state.pulled_bytes, pulled);
    if (s->server == 0 && s->journal && s->state.pushes + s->state.repeated > 0)
        KU_MESSAGE(INFO, "kumi: ps: server 0 received %s of gradients and sent %s of parameters",
                   in + strspn(in, " "), out + strspn(out, " "));
    if (s->server == 0 && s->ledger.dropped > 0)
        KU_MESSAGE(INFO, "kumi: ps: %llu pushes were late and dropped (ps.backup)",
                   (unsigned long long)s->ledger.dropped);
}

void ku_ps_detach(void *service, struct ku_remote_engine *e)
{
    struct ku_ps_service *s = service;
    KU_ASSERT(s->engine == NULL || s->engine == e);
    ku_ps_quiesce(s);
    pthread_mutex_lock(&s->lock);
    tell_traffic(s);
    ku_ps_journal_close(s->journal);
    s->journal = NULL;
    s->engine = NULL;
    ku_free(s->present);
    s->present = NULL;
    pthread_mutex_unlock(&s->lock);
    ku_ps_plan_fini(&s->plan);
    ku_ps_ledger_fini(&s->ledger);
    ku_free(s->applied);
    ku_free(s->extent);
    s->extent = NULL;
    ku_free(s->numerics);
    ku_free(s->dir);
    s->applied = NULL, s->numerics = s->dir = NULL;
}

void ku_ps_saved(void *service, int64_t version)
{
    struct ku_ps_service *s = service;
    pthread_mutex_lock(&s->lock);
    const bool is_open = s->is_open && s->journal; /* the feeder has read all segments */
    const uint64_t number = is_open ? ku_ps_journal_last(s->journal) : 0;
    s->state.saved = version;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    /* Without the lock, so that the last segment has little to sync when it is closed. */
    if (!is_open || ku_ps_journal_sync(s->journal, number, true) < 0)
        return; /* a journal that has failed ends the run with its next record */
    pthread_mutex_lock(&s->lock);
    ku_ps_journal_cover(s->journal, version);
    pthread_mutex_unlock(&s->lock);
    ku_ps_journal_remove_covered(s->journal);
}

bool ku_ps_wants_saving(void *service)
{
    struct ku_ps_service *s = service;
    return atomic_exchange(&s->wants_saving, false);
}
