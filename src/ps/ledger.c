/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/ledger.h"

#include <string.h>

#include "base/err.h"
#include "base/mem.h"

int ku_ps_ledger_init(struct ku_ps_ledger *l, int n_workers, bool is_sync, int64_t version,
                      const struct ku_ps_space *space)
{
    *l = (struct ku_ps_ledger){
        .n_workers = n_workers,
        .is_sync = is_sync,
        .version = version,
        .space = *space,
        .payload = ku_remote_bytes_in(space->part, space->n_parts, 0, space->bytes)};
    l->worker = ku_calloc((size_t)n_workers, sizeof *l->worker);
    if (l->worker == NULL)
        return KUMI_ENOMEM;
    for (int w = 0; w < n_workers; w++)
        l->worker[w].next = version;
    return KUMI_OK;
}

void ku_ps_ledger_fini(struct ku_ps_ledger *l)
{
    for (int w = 0; l->worker && w < l->n_workers; w++)
        ku_free(l->worker[w].range);
    ku_free(l->worker);
    *l = (struct ku_ps_ledger){0};
}

bool ku_ps_ledger_is_complete(const struct ku_ps_ledger *l, int worker)
{
    return l->worker[worker].received == l->payload;
}

int64_t ku_ps_ledger_begin(const struct ku_ps_ledger *l, int worker)
{
    return l->worker[worker].next + ku_ps_ledger_is_complete(l, worker);
}

static void clear(struct ku_ps_worker *x)
{
    x->n_ranges = 0;
    x->received = 0;
}

int ku_ps_ledger_check_new(const struct ku_ps_ledger *l, int worker, uint64_t incarnation)
{
    if (worker < 0 || worker >= l->n_workers)
        return KU_ERR(KUMI_EINVAL, "ps: worker %d is unknown; there are %d, from 0", worker,
                      l->n_workers);
    if (incarnation == 0)
        return KU_ERR(KUMI_EINVAL, "ps: worker %d: incarnation 0; give a number above 0", worker);
    if (incarnation > INT64_MAX) /* the next process takes a larger one */
        return KU_ERR(KUMI_EINVAL, "ps: worker %d: incarnation %llu; give a number below 2^63",
                      worker, (unsigned long long)incarnation);
    if (incarnation < l->worker[worker].incarnation)
        return KU_ERR(KUMI_EINVAL,
                      "ps: worker %d: incarnation %llu was replaced by %llu; end the older process",
                      worker, (unsigned long long)incarnation,
                      (unsigned long long)l->worker[worker].incarnation);
    return KUMI_OK;
}

int ku_ps_ledger_check_known(const struct ku_ps_ledger *l, int worker, uint64_t incarnation)
{
    KU_TRY(ku_ps_ledger_check_new(l, worker, incarnation));
    if (incarnation != l->worker[worker].incarnation)
        return KU_ERR(KUMI_EINVAL, "ps: worker %d: incarnation %llu has not connected", worker,
                      (unsigned long long)incarnation);
    return KUMI_OK;
}

int ku_ps_ledger_meet(struct ku_ps_ledger *l, int worker, uint64_t incarnation, bool *is_new)
{
    KU_TRY(ku_ps_ledger_check_new(l, worker, incarnation));
    struct ku_ps_worker *x = &l->worker[worker];
    *is_new = incarnation > x->incarnation;
    if (*is_new && !ku_ps_ledger_is_complete(l, worker))
        clear(x);
    x->incarnation = incarnation;
    return KUMI_OK;
}

void ku_ps_ledger_discard(struct ku_ps_ledger *l, int worker, int64_t begin)
{
    if (l->worker[worker].next >= begin)
        clear(&l->worker[worker]);
}

void ku_ps_ledger_bar(struct ku_ps_ledger *l, int worker)
{
    l->worker[worker].barred = l->worker[worker].incarnation;
}

/* The number of ranges that end before `at`. */
static uint32_t find(const struct ku_ps_worker *x, size_t at)
{
    uint32_t low = 0, high = x->n_ranges;
    while (low < high) {
        const uint32_t mid = low + (high - low) / 2;
        if (x->range[mid].end < at)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static int check_range(const struct ku_ps_ledger *l, int worker, size_t offset, size_t bytes)
{
    if (offset % KU_PS_ALIGN_BYTES || bytes == 0 || offset > l->space.bytes ||
        bytes > l->space.bytes - offset)
        return KU_ERR(KUMI_EINVAL,
                      "ps: worker %d pushes bytes %zu to %zu of %zu; a range lies within, and "
                      "begins at a multiple of %d",
                      worker, offset, offset + bytes, l->space.bytes, KU_PS_ALIGN_BYTES);
    return KUMI_OK;
}

static int check_step(const struct ku_ps_ledger *l, int worker, int64_t step)
{
    const struct ku_ps_worker *x = &l->worker[worker];
    const int64_t wanted = l->is_sync ? l->version : x->next;
    if (step < 0)
        return KU_ERR(KUMI_EINVAL, "ps: worker %d pushes step %lld, which is negative", worker,
                      (long long)step);
    if (step > wanted)
        return KU_ERR(KUMI_EINVAL,
                      "ps: worker %d pushes step %lld, which is in the future: this server expects "
                      "step %lld",
                      worker, (long long)step, (long long)wanted);
    return KUMI_OK;
}

int ku_ps_ledger_check(struct ku_ps_ledger *l, int worker, uint64_t incarnation, int64_t step,
                       size_t offset, size_t bytes, bool *is_new)
{
    *is_new = false;
    KU_TRY(ku_ps_ledger_check_known(l, worker, incarnation));
    struct ku_ps_worker *x = &l->worker[worker];
    KU_TRY(check_range(l, worker, offset, bytes));
    KU_TRY(check_step(l, worker, step));
    if (step < x->next)
        return KUMI_OK;
    KU_ASSERT(step == x->next);
    if (incarnation == x->barred)
        return KU_ERR(KUMI_ENUMERIC,
                      "ps: worker %d: incarnation %llu has pushed what is not finite, and pushes "
                      "no more; connect with a larger one",
                      worker, (unsigned long long)incarnation);
    const uint32_t at = find(x, offset + 1);
    if (at < x->n_ranges && x->range[at].begin <= offset && x->range[at].end >= offset + bytes)
        return KUMI_OK;
    if (at < x->n_ranges && x->range[at].begin < offset + bytes)
        return KU_ERR(KUMI_EINVAL,
                      "ps: worker %d pushes bytes %zu to %zu of step %lld, part of which is there; "
                      "repeat whole ranges",
                      worker, offset, offset + bytes, (long long)step);
    KU_TRY(KU_GROW(&x->range, x->n_ranges, &x->cap_ranges));
    *is_new = true;
    return KUMI_OK;
}

void ku_ps_ledger_note(struct ku_ps_ledger *l, int worker, size_t offset, size_t bytes)
{
    struct ku_ps_worker *x = &l->worker[worker];
    uint32_t at = find(x, offset);
    const bool joins = at < x->n_ranges && x->range[at].end == offset;
    x->received += ku_remote_bytes_in(l->space.part, l->space.n_parts, offset, offset + bytes);
    if (joins) {
        x->range[at].end += bytes;
    } else {
        KU_ASSERT(x->n_ranges < x->cap_ranges);
        memmove(x->range + at + 1, x->range + at, (x->n_ranges - at) * sizeof *x->range);
        x->range[at] = (struct ku_ps_range){offset, offset + bytes};
        x->n_ranges++;
    }
    if (at + 1 < x->n_ranges && x->range[at].end == x->range[at + 1].begin) {
        x->range[at].end = x->range[at + 1].end;
        memmove(x->range + at + 1, x->range + at + 2, (x->n_ranges - at - 2) * sizeof *x->range);
        x->n_ranges--;
    }
}

static void advance(struct ku_ps_worker *x, int64_t next)
{
    if (x->next >= next)
        return;
    x->next = next;
    clear(x);
}

void ku_ps_ledger_apply(struct ku_ps_ledger *l, int64_t version, int n, const int32_t *worker,
                        const int64_t *step)
{
    l->version = version;
    for (int k = 0; k < n; k++)
        advance(&l->worker[worker[k]], step[k] + 1);
    for (int w = 0; w < l->n_workers && l->is_sync; w++) { /* late pushes are dropped */
        l->dropped += l->worker[w].next < version;
        advance(&l->worker[w], version);
    }
}
