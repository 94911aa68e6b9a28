/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/service.h"

#include <string.h>

#include "base/clock.h"
#include "base/cond.h"
#include "base/err.h"
#include "base/mem.h"
#include "ps/service_private.h"
#include "remote/sparse.h"

int ku_ps_service_create(const struct ku_ps_opts *o, struct ku_ps_service **out)
{
    struct ku_ps_service *s = ku_calloc(1, sizeof *s);
    if (s == NULL)
        return KUMI_ENOMEM;
    s->o = *o;
    pthread_mutex_init(&s->lock, NULL);
    ku_cond_init(&s->changed);
    *out = s;
    return KUMI_OK;
}

void ku_ps_service_destroy(struct ku_ps_service *s)
{
    if (s == NULL)
        return;
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    ku_free(s);
}

/* lock is held. */
static int check_open(const struct ku_ps_service *s)
{
    char none;
    int64_t seen;
    if (s->engine && s->is_open && !s->is_stopping)
        return KUMI_OK;
    if (s->engine) /* what it was stopped with */
        KU_TRY(ku_remote_read(s->engine, 0, 0, 0, &none, 0, &seen));
    return KU_ERR(KUMI_EPEER, "ps: server %d is %s", s->server,
                  s->is_stopping ? "stopping" : "not ready yet");
}

static int check_layout(const struct ku_ps_service *s, const struct ku_ps_hello *in)
{
    const uint64_t is = s->layout->checksum;
    if (in->layout == 0 || in->layout == is)
        return KUMI_OK;
    return KU_ERR(KUMI_EMISMATCH,
                  "ps: worker %d: model or configuration differ from the servers' (layout %016llx, "
                  "of the servers %016llx); start both with the same configuration",
                  in->worker, (unsigned long long)in->layout, (unsigned long long)is);
}

/*
 * A new incarnation: what the older one left incomplete is discarded, and on servers other than 0
 * what server 0 does not have completely. lock is held.
 */
static int meet(struct ku_ps_service *s, const struct ku_ps_hello *in)
{
    struct ku_ps_ledger *l = &s->ledger;
    bool is_new = false;
    if (s->server == 0 && in->begin >= 0)
        return KU_ERR(KUMI_EINVAL,
                      "ps: worker %d begins at step %lld; server 0 decides the step, give -1",
                      in->worker, (long long)in->begin);
    KU_TRY(ku_ps_ledger_check_new(l, in->worker, in->incarnation));
    if (in->incarnation > l->worker[in->worker].incarnation)
        KU_TRY(ku_ps_journal_worker(s->journal, in->worker, in->incarnation, in->begin));
    KU_TRY(ku_ps_ledger_meet(l, in->worker, in->incarnation, &is_new));
    if (!is_new)
        return KUMI_OK;
    if (in->begin >= 0)
        ku_ps_ledger_discard(l, in->worker, in->begin);
    if (!ku_ps_ledger_is_complete(l, in->worker))
        ku_remote_discard(s->engine, in->worker, l->worker[in->worker].next);
    return KUMI_OK;
}

static int greet(struct ku_ps_service *s, const struct ku_ps_hello *in, struct ku_ps_welcome *out)
{
    KU_TRY(check_open(s));
    KU_TRY(check_layout(s, in));
    if (in->layout)
        KU_TRY(meet(s, in));
    const bool has_worker = in->worker >= 0 && in->worker < s->ledger.n_workers;
    *out = (struct ku_ps_welcome){
        .layout = s->layout->checksum,
        .server = s->server,
        .n_servers = s->layout->n_servers,
        .n_workers = s->layout->n_workers,
        .engine = s->engine_opts,
        .version = s->ledger.version,
        .begin = has_worker ? ku_ps_ledger_begin(&s->ledger, in->worker) : -1,
        .incarnation = has_worker ? s->ledger.worker[in->worker].incarnation : 0,
        .push_bytes = s->layout->push_bytes[s->server],
        .push_payload = s->layout->push_payload[s->server],
        .pull_bytes = s->layout->pull_bytes[s->server],
        .numerics = s->numerics};
    return KUMI_OK;
}

int ku_ps_connect(struct ku_ps_service *s, const struct ku_ps_hello *in, struct ku_ps_welcome *out)
{
    pthread_mutex_lock(&s->lock);
    const int status = greet(s, in, out);
    s->state.refused += status < 0;
    pthread_mutex_unlock(&s->lock);
    return status;
}

/*
 * A push is not finite: nothing of the step stays, here and in the journal, and the incarnation
 * pushes no more. The error record says why, and stays. lock is held.
 */
static int refuse(struct ku_ps_service *s, const struct ku_ps_hello *from, int64_t step)
{
    const struct kumi_error why = *ku_err_get();
    KU_TRY(ku_ps_journal_worker(s->journal, from->worker, from->incarnation, step));
    ku_ps_ledger_discard(&s->ledger, from->worker, step);
    ku_ps_ledger_bar(&s->ledger, from->worker);
    ku_remote_discard(s->engine, from->worker, step);
    return ku_err_put(&why);
}

static void note_progress(struct ku_ps_service *s, int worker)
{
    s->present[worker].awaited_ns = ku_clock_ns();
    s->present[worker].n_ranges++;
}

/* lock is held. */
static int take(struct ku_ps_service *s, const struct ku_ps_hello *from,
                const struct ku_ps_piece *p, size_t extent)
{
    bool is_new;
    KU_TRY(check_open(s));
    KU_TRY(ku_ps_ledger_check(&s->ledger, from->worker, from->incarnation, p->step, p->offset,
                              extent, &is_new));
    s->state.repeated += !is_new;
    if (!is_new)
        return KUMI_OK;
    KU_TRY(ku_remote_check(s->engine, from->worker, p->step, p->offset, extent));
    const int contents = ku_remote_check_contents(s->engine, from->worker, p->step, p->offset,
                                                  p->data, extent, p->is_sparse);
    KU_TRY(contents == KUMI_ENUMERIC ? refuse(s, from, p->step) : contents);
    const int logged = ku_ps_journal_push(s->journal, from->worker, from->incarnation, p->step,
                                          p->offset, p->data, p->bytes, p->is_sparse);
    if (logged == KUMI_ESTORAGE) /* others wait for space, not for this worker */
        note_progress(s, from->worker);
    KU_TRY(logged);
    if (p->is_sparse)
        KU_TRY(
            ku_remote_receive_sparse(s->engine, from->worker, p->step, p->offset, p->data, extent));
    else
        KU_TRY(ku_remote_receive(s->engine, from->worker, p->step, p->offset, p->data, p->bytes));
    ku_ps_ledger_note(&s->ledger, from->worker, p->offset, extent);
    note_progress(s, from->worker);
    s->state.pushes++;
    s->state.pushed_bytes += p->bytes;
    return KUMI_OK;
}

static int check_piece(const struct ku_ps_hello *from, const struct ku_ps_piece *p, size_t *extent)
{
    *extent = p->bytes;
    if (p->bytes > KU_PS_MAX_BODY_BYTES)
        return KU_ERR(KUMI_EINVAL, "ps: worker %d pushes a range of %zu bytes; at most %d",
                      from->worker, p->bytes, KU_PS_MAX_BODY_BYTES);
    return p->is_sparse ? ku_sparse_check(p->data, p->bytes, extent) : KUMI_OK;
}

int ku_ps_push(struct ku_ps_service *s, const struct ku_ps_hello *from,
               const struct ku_ps_piece *piece, uint64_t *number, bool *is_complete)
{
    size_t extent;
    int status = check_piece(from, piece, &extent);
    pthread_mutex_lock(&s->lock);
    if (status == KUMI_OK)
        status = take(s, from, piece, extent);
    if (status == KUMI_OK) {
        *number = ku_ps_journal_last(s->journal);
        *is_complete = piece->step < ku_ps_ledger_begin(&s->ledger, from->worker);
    }
    s->state.refused += status < 0;
    pthread_mutex_unlock(&s->lock);
    return status;
}

int ku_ps_sync(struct ku_ps_service *s, uint64_t number)
{
    return ku_ps_journal_sync(s->journal, number, false);
}

/* A run that ends still answers pulls. lock is held. */
static int check_from(const struct ku_ps_service *s, const struct ku_ps_hello *from)
{
    if (s->engine == NULL || !s->is_open)
        return check_open(s);
    return ku_ps_ledger_check_known(&s->ledger, from->worker, from->incarnation);
}

int ku_ps_select(struct ku_ps_service *s, const struct ku_ps_hello *from, struct ku_ps_selection *x)
{
    pthread_mutex_lock(&s->lock);
    int status = check_from(s, from);
    if (status == KUMI_OK)
        status = ku_ps_selection_check(x, from->worker, s->layout->pull_bytes[s->server]);
    s->state.refused += status < 0;
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* Bytes as they are. */
static int read_dense(struct ku_ps_service *s, int worker, struct ku_ps_pulled *x,
                      unsigned char *data)
{
    const size_t all = ku_ps_selection_bytes(x->what);
    int64_t seen;
    KU_ASSERT(x->offset < all);
    for (x->bytes = 0; x->bytes < KU_PS_MAX_BODY_BYTES && x->offset + x->bytes < all;) {
        const size_t room = KU_PS_MAX_BODY_BYTES - x->bytes;
        size_t bytes;
        const size_t at = ku_ps_selection_find(x->what, x->offset + x->bytes, &bytes);
        bytes = bytes < room ? bytes : room;
        KU_TRY(ku_remote_read(s->engine, worker, x->step, at, data + x->bytes, bytes, &seen));
        if (x->bytes > 0 && seen != x->seen) /* an update has come between */
            seen = -1;
        x->seen = seen;
        if (seen < 0)
            return KUMI_OK;
        x->bytes += bytes;
    }
    x->extent = x->bytes;
    return KUMI_OK;
}

static int read_part(struct ku_ps_service *s, int worker, struct ku_ps_pulled *x, void *data)
{
    const struct ku_remote_change_read r = {worker, x->step, x->since, x->offset};
    x->is_sparse = false;
    if (x->since >= 0) {
        KU_TRY(ku_remote_read_changes(s->engine, &r, data, &x->bytes, &x->extent, &x->seen));
        x->is_sparse = x->seen >= 0 && x->bytes > 0;
        if (x->seen < 0 || x->is_sparse)
            return KUMI_OK;
    }
    return read_dense(s, worker, x, data);
}

int ku_ps_pull(struct ku_ps_service *s, const struct ku_ps_hello *from, struct ku_ps_pulled *x,
               void *data)
{
    pthread_mutex_lock(&s->lock);
    const int status = check_from(s, from);
    s->state.refused += status < 0;
    pthread_mutex_unlock(&s->lock);
    KU_TRY(status);
    KU_ASSERT(x->since < 0 || x->what->bytes == s->layout->pull_bytes[s->server]);
    KU_TRY(read_part(s, from->worker, x, data));
    pthread_mutex_lock(&s->lock);
    s->state.pulled_bytes += x->seen >= 0 ? x->bytes : 0;
    pthread_mutex_unlock(&s->lock);
    return KUMI_OK;
}

int ku_ps_join(struct ku_ps_service *s, const struct ku_ps_hello *from)
{
    pthread_mutex_lock(&s->lock);
    const int status = check_from(s, from);
    if (status == KUMI_OK) {
        s->present[from->worker].count++;
        s->present[from->worker].was_here = true;
    }
    s->state.refused += status < 0;
    pthread_mutex_unlock(&s->lock);
    return status;
}

void ku_ps_leave(struct ku_ps_service *s, const struct ku_ps_hello *from)
{
    pthread_mutex_lock(&s->lock);
    if (s->present && --s->present[from->worker].count == 0)
        s->present[from->worker].gone_ns = ku_clock_ns();
    pthread_mutex_unlock(&s->lock);
}

void ku_ps_want_saving(struct ku_ps_service *s)
{
    atomic_store(&s->wants_saving, true);
}

int ku_ps_state(struct ku_ps_service *s, struct ku_ps_state *out)
{
    pthread_mutex_lock(&s->lock);
    const int status = check_open(s);
    if (status == KUMI_OK) {
        *out = s->state;
        out->server = s->server;
        out->n_servers = s->layout->n_servers;
        out->n_workers = s->layout->n_workers;
        out->mode = s->engine_opts.mode;
        out->version = s->done;
        out->dropped = s->ledger.dropped;
        out->journal_records = ku_ps_journal_last(s->journal);
        out->n_present = 0;
        for (int w = 0; w < s->layout->n_workers; w++)
            out->n_present += s->present[w].count > 0;
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}
