/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/recovery.h"

#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"

static int damage(const struct ku_ps_record *r, const char *what)
{
    return KU_ERR(KUMI_EINPUT, "journal: %s: damaged at byte %llu: %s", r->file,
                  (unsigned long long)r->at, what);
}

static bool is_equal(const struct ku_ps_identity *a, const struct ku_ps_identity *b)
{
    return a->layout == b->layout && a->server == b->server && a->n_servers == b->n_servers &&
           a->n_workers == b->n_workers && a->is_sync == b->is_sync;
}

/* The first segment sets the ledger; a later one repeats it. */
static int take_segment(struct ku_ps_plan *p, const struct ku_ps_record *r)
{
    const bool is_first = p->base < 0;
    if (is_first) {
        p->base = p->ledger.version = r->version;
        p->identity = r->identity;
    }
    if (!is_equal(&p->identity, &r->identity) || r->version != p->ledger.version)
        return damage(r, "the segment belongs to another journal");
    for (int w = 0; w < r->identity.n_workers && w < p->ledger.n_workers; w++) {
        struct ku_ps_worker *x = &p->ledger.worker[w];
        const uint64_t incarnation = (uint64_t)ku_ps_record_word(r, 3 + 2 * (size_t)w);
        const int64_t next = ku_ps_record_word(r, 4 + 2 * (size_t)w);
        if (is_first)
            x->incarnation = incarnation, x->next = next;
        if (x->incarnation != incarnation || x->next != next)
            return damage(r, "the segment does not continue the one before");
        if (is_first)
            p->next[w] = next;
    }
    return KUMI_OK;
}

/* The records of a worker's open step are dropped, or settled. */
static void settle(struct ku_ps_plan *p, int worker, bool is_dropped)
{
    for (uint32_t i = p->open[worker]; i < p->n_pushed; i++)
        if (p->pushed[i].worker == worker)
            p->pushed[i].is_dropped |= is_dropped;
    p->open[worker] = p->n_pushed;
}

static int take_push(struct ku_ps_plan *p, const struct ku_ps_record *r)
{
    bool is_new;
    if (ku_ps_ledger_check(&p->ledger, r->worker, r->incarnation, r->step, r->offset, r->extent,
                           &is_new) < 0)
        return damage(r, "a push that was not to be taken");
    if (!is_new)
        return KUMI_OK;
    KU_TRY(KU_GROW(&p->pushed, p->n_pushed, &p->cap_pushed));
    if (p->ledger.worker[r->worker].received == 0)
        p->open[r->worker] = p->n_pushed;
    p->pushed[p->n_pushed++] = (struct ku_ps_pushed){.number = r->number, .worker = r->worker};
    ku_ps_ledger_note(&p->ledger, r->worker, r->offset, r->extent);
    return KUMI_OK;
}

static int add_choice(struct ku_ps_plan *p, int n, const int32_t *worker)
{
    KU_TRY(KU_GROW(&p->choice, p->n_choices, &p->cap_choices));
    struct ku_ps_choice *x = &p->choice[p->n_choices];
    x->worker = ku_calloc((size_t)n, sizeof *x->worker);
    if (x->worker == NULL)
        return KUMI_ENOMEM;
    memcpy(x->worker, worker, (size_t)n * sizeof *worker);
    x->n = n;
    p->n_choices++;
    return KUMI_OK;
}

static int take_update(struct ku_ps_plan *p, const struct ku_ps_record *r)
{
    const int n = (int)(r->bytes / 16);
    const bool is_covered = r->version <= p->version;
    struct ku_ps_ledger *l = &p->ledger;
    int32_t worker[KU_REMOTE_MAX_WORKERS];
    int64_t step[KU_REMOTE_MAX_WORKERS];
    if (r->version != l->version + 1)
        return damage(r, "an update is missing before it");
    for (int k = 0; k < n; k++) {
        const int64_t w = ku_ps_record_word(r, 2 * (size_t)k);
        if (w < 0 || w >= l->n_workers ||
            l->worker[w].next != ku_ps_record_word(r, 2 * (size_t)k + 1))
            return damage(r, "an update applies a push of another step");
        if (!is_covered && !ku_ps_ledger_is_complete(l, (int)w))
            return KU_ERR(KUMI_ENOCKPT,
                          "journal: %s: no longer has a push of update %lld, which a checkpoint "
                          "covered; restore that checkpoint, or move the journal away",
                          r->file, (long long)r->version);
        worker[k] = (int32_t)w, step[k] = l->worker[w].next;
        if (!is_covered)
            p->needed[w] = step[k] + 1;
        settle(p, (int)w, is_covered);
    }
    for (int w = 0; w < l->n_workers && l->is_sync; w++) /* late ones */
        settle(p, w, true);
    ku_ps_ledger_apply(l, r->version, n, worker, step);
    for (int w = 0; w < l->n_workers && is_covered; w++)
        p->next[w] = l->worker[w].next;
    return is_covered ? KUMI_OK : add_choice(p, n, worker);
}

static int take_worker(struct ku_ps_plan *p, const struct ku_ps_record *r)
{
    struct ku_ps_ledger *l = &p->ledger;
    bool is_new;
    if (r->worker >= l->n_workers)
        return damage(r, "an unknown worker");
    if (!ku_ps_ledger_is_complete(l, r->worker) ||
        (r->step >= 0 && r->step <= l->worker[r->worker].next))
        settle(p, r->worker, true);
    if (ku_ps_ledger_meet(l, r->worker, r->incarnation, &is_new) < 0)
        return damage(r, "an older incarnation");
    if (r->step >= 0)
        ku_ps_ledger_discard(l, r->worker, r->step);
    if (!is_new)
        ku_ps_ledger_bar(l, r->worker);
    return KUMI_OK;
}

static int visit(void *ctx, const struct ku_ps_record *r)
{
    struct ku_ps_plan *p = ctx;
    switch (r->kind) {
    case KU_PS_SEGMENT:
        return take_segment(p, r);
    case KU_PS_PUSH:
    case KU_PS_ROWS:
        return take_push(p, r);
    case KU_PS_UPDATE:
        return take_update(p, r);
    case KU_PS_WORKER:
        return take_worker(p, r);
    }
    return KUMI_EBUG;
}

static int measure(void *ctx, const struct ku_ps_record *r)
{
    struct ku_ps_extent *x = ctx;
    if (r->kind == KU_PS_SEGMENT && x->base < 0) {
        x->identity = r->identity;
        x->base = x->last = r->version;
    } else if (r->kind == KU_PS_UPDATE) {
        x->last = r->version;
    }
    return KUMI_OK;
}

int ku_ps_journal_measure(const char *dir, struct ku_ps_extent *x, struct ku_ps_end *end)
{
    *x = (struct ku_ps_extent){.base = -1, .last = -1};
    return ku_ps_journal_read(dir, measure, x, end);
}

static int check_extent(const struct ku_ps_extent *x, const char *dir, int64_t version,
                        const struct ku_ps_identity *identity)
{
    if (x->base > version)
        return KU_ERR(KUMI_ENOCKPT,
                      "journal: %s: begins after update %lld, but the newest usable checkpoint is "
                      "of update %lld; restore a later checkpoint, or move the journal away",
                      dir, (long long)x->base, (long long)version);
    if (!is_equal(&x->identity, identity))
        return KU_ERR(KUMI_EMISMATCH,
                      "journal: %s: of another run: layout %016llx, %d workers, server %d of %d; "
                      "this one: %016llx, %d, %d of %d; continue with the same configuration and "
                      "servers, or move the journal away to lose updates %lld to %lld",
                      dir, (unsigned long long)x->identity.layout, x->identity.n_workers,
                      x->identity.server, x->identity.n_servers,
                      (unsigned long long)identity->layout, identity->n_workers, identity->server,
                      identity->n_servers, (long long)version + 1, (long long)x->last);
    return KUMI_OK;
}

static int allocate(struct ku_ps_plan *p, const struct ku_ps_space *space)
{
    const size_t n = (size_t)p->identity.n_workers;
    KU_TRY(ku_ps_ledger_init(&p->ledger, (int)n, p->identity.is_sync, p->version, space));
    p->next = ku_calloc(n, sizeof *p->next);
    p->needed = ku_calloc(n, sizeof *p->needed);
    p->open = ku_calloc(n, sizeof *p->open);
    for (size_t w = 0; p->next && w < n; w++)
        p->next[w] = p->version;
    return p->next && p->needed && p->open ? KUMI_OK : KUMI_ENOMEM;
}

int ku_ps_plan_read(const char *dir, int64_t version, const struct ku_ps_identity *identity,
                    const struct ku_ps_space *space, struct ku_ps_plan *p)
{
    struct ku_ps_extent x;
    *p = (struct ku_ps_plan){.version = version, .base = -1, .identity = *identity};
    KU_TRY(ku_ps_journal_measure(dir, &x, &p->end));
    KU_TRY(allocate(p, space));
    if (x.base < 0 || x.last < version || (x.last == version && !is_equal(&x.identity, identity))) {
        if (x.base >= 0)
            KU_MESSAGE(WARN, "kumi: %s: ends at update %lld, before the checkpoint: begun anew",
                       dir, (long long)x.last);
        return KUMI_OK;
    }
    KU_TRY(check_extent(&x, dir, version, identity));
    KU_TRY(ku_ps_journal_read(dir, visit, p, NULL));
    for (int w = 0; w < identity->n_workers; w++)
        if (ku_ps_ledger_is_complete(&p->ledger, w))
            p->needed[w] = p->ledger.worker[w].next + 1;
    return KUMI_OK;
}

void ku_ps_plan_fini(struct ku_ps_plan *p)
{
    for (uint32_t i = 0; i < p->n_choices; i++)
        ku_free(p->choice[i].worker);
    ku_free(p->choice);
    ku_free(p->pushed);
    ku_free(p->open);
    ku_free(p->next);
    ku_free(p->needed);
    ku_ps_ledger_fini(&p->ledger);
    *p = (struct ku_ps_plan){0};
}
