/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PS_RECOVERY_H
#define KU_PS_RECOVERY_H

#include "ps/journal.h"
#include "train/remote_update.h"

/* What a journal is of, and how far it goes, whatever its layout. */
struct ku_ps_extent {
    struct ku_ps_identity identity; /* of its first segment */
    int64_t base, last;             /* updates before its first record, -1: none; its last update */
};
/* end: as of ku_ps_journal_read, whose errors it has. */
KU_STATUS ku_ps_journal_measure(const char *dir, struct ku_ps_extent *extent,
                                struct ku_ps_end *end);

/*
 * What a journal holds beyond a checkpoint of update c:
 *
 *     ledger   after its last record: the service goes on with it
 *     next     per worker the first step that no update up to c applied: the engine begins there
 *     needed   per worker one more than the last step whose push an update after c applied, or that
 *              is complete. A push that an update did not wait for (sync with backup) is not needed
 *     choice   per update after c the workers whose pushes it applied
 *     pushed   the records to push again, in order: of pushes that an update after c applied, or
 *              that are still awaited; not those that were applied before, dropped or discarded
 */
struct ku_ps_choice {
    int32_t *worker; /* [n] */
    int n;
};
struct ku_ps_pushed {
    uint64_t number; /* of the record */
    int32_t worker;
    bool is_dropped;
};
struct ku_ps_plan {
    int64_t version, base; /* c; updates before the first record, -1: there is no record */
    struct ku_ps_identity identity;
    struct ku_ps_ledger ledger;
    int64_t *next, *needed; /* [n_workers] */
    struct ku_ps_choice *choice;
    uint32_t n_choices, cap_choices;
    struct ku_ps_pushed *pushed;
    uint32_t n_pushed, cap_pushed;
    uint32_t *open; /* [n_workers] first of `pushed` that may belong to the worker's open step */
    struct ku_ps_end end;
};
/*
 * Read the journal of a folder.
 *
 *   version, identity, space   of the run
 *   plan                       out; freed by ku_ps_plan_fini, also after an error
 *
 * Errors: KUMI_EMISMATCH (another layout, where the journal goes beyond the checkpoint), ENOCKPT
 * (it begins after the checkpoint), EINPUT (damage), ESTORAGE, ENOMEM.
 */
KU_STATUS ku_ps_plan_read(const char *dir, int64_t version, const struct ku_ps_identity *identity,
                          const struct ku_ps_space *space, struct ku_ps_plan *plan);
void ku_ps_plan_fini(struct ku_ps_plan *p);

#endif
