/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PS_LEDGER_H
#define KU_PS_LEDGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "train/remote_update.h"

/*
 * Which bytes of which push a server of a parameter server has: the reason why a push is applied
 * once, however often it is sent. A push is identified by (worker, incarnation, step, range).
 *
 *     step < next                  applied or dropped: acknowledged again, without effect
 *     step = next, range in it     received: likewise
 *     step = next, range new       to be taken
 *     step = next, barred          refused: the step was, and nothing of it is here; other
 *                                  servers may have parts, which a new incarnation discards
 *     step > next                  refused: a worker pulls before it pushes again
 *     incarnation < the known one  refused: the worker was started again
 *
 * The ledger has no lock and no file. The service (ps/service.h) calls it for live pushes, and the
 * recovery for those of the journal, so both decide alike.
 */
struct ku_ps_range {
    size_t begin, end;
};
struct ku_ps_worker {
    uint64_t incarnation;      /* 0: it has not connected yet */
    uint64_t barred;           /* an incarnation whose push was refused for good; 0: none */
    int64_t next;              /* the first step that is neither applied nor dropped */
    struct ku_ps_range *range; /* [n_ranges] of step `next`: sorted, disjoint, not adjacent */
    uint32_t n_ranges, cap_ranges;
    size_t received; /* bytes of parts in the ranges; the payload: the step is complete */
};
/* The push space of a server. Gaps between parts may be sent, and count for nothing. */
struct ku_ps_space {
    size_t bytes;
    const struct ku_remote_extent *part; /* [n_parts] borrowed by the ledger */
    uint32_t n_parts;
};
struct ku_ps_ledger {
    int n_workers;
    bool is_sync;    /* step t of all workers is part of update t + 1 */
    int64_t version; /* number of updates that are decided */
    struct ku_ps_space space;
    size_t payload; /* bytes of the parts */
    struct ku_ps_worker *worker;
    uint64_t dropped; /* pushes that an update was done without, whether they came later or not */
};

enum { KU_PS_ALIGN_BYTES = 64 /* of the first byte of a range: parts begin there */ };

/* All workers begin with step `version`. Errors: KUMI_ENOMEM. */
KU_STATUS ku_ps_ledger_init(struct ku_ps_ledger *l, int n_workers, bool is_sync, int64_t version,
                            const struct ku_ps_space *space);
void ku_ps_ledger_fini(struct ku_ps_ledger *l);
bool ku_ps_ledger_is_complete(const struct ku_ps_ledger *l, int worker);
/* The first step that the server does not have completely. */
int64_t ku_ps_ledger_begin(const struct ku_ps_ledger *l, int worker);

/*
 * Whether a worker may connect with this incarnation, and whether it is the one that has. Errors:
 * KUMI_EINVAL (no such worker; incarnation 0, or 2^63 and above, after which there would be none;
 * a later one is known; check_known: it has not connected).
 */
KU_STATUS ku_ps_ledger_check_new(const struct ku_ps_ledger *l, int worker, uint64_t incarnation);
KU_STATUS ku_ps_ledger_check_known(const struct ku_ps_ledger *l, int worker, uint64_t incarnation);
/*
 * A worker connects. A new incarnation discards what an older one left incomplete.
 *
 *   is_new   out: the incarnation was not known
 *
 * Errors: those of ku_ps_ledger_check_new.
 */
KU_STATUS ku_ps_ledger_meet(struct ku_ps_ledger *l, int worker, uint64_t incarnation, bool *is_new);
/* Discard a push of a step from `begin` on, also a complete one. */
void ku_ps_ledger_discard(struct ku_ps_ledger *l, int worker, int64_t begin);
/* The incarnation of a worker pushes no more. Its open push was discarded. */
void ku_ps_ledger_bar(struct ku_ps_ledger *l, int worker);
/*
 * Whether a push is to be taken. After 0 with *is_new, ku_ps_ledger_note cannot fail.
 *
 *   is_new   out: false: it is acknowledged without effect
 *
 * Errors: KUMI_EINVAL (worker, incarnation, range, step), ENUMERIC (barred), ENOMEM; nothing
 * changed.
 */
KU_STATUS ku_ps_ledger_check(struct ku_ps_ledger *l, int worker, uint64_t incarnation, int64_t step,
                             size_t offset, size_t bytes, bool *is_new);
void ku_ps_ledger_note(struct ku_ps_ledger *l, int worker, size_t offset, size_t bytes);
/* Update `version` is decided, and applies the push of `worker` for `step`. */
void ku_ps_ledger_apply(struct ku_ps_ledger *l, int64_t version, int n, const int32_t *worker,
                        const int64_t *step);

#endif
