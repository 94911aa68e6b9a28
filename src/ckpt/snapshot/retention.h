/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CKPT_SNAPSHOT_RETENTION_H
#define KU_CKPT_SNAPSHOT_RETENTION_H

#include "ckpt/snapshot/snapshot.h"

/*
 * Which snapshots of a folder stay. Only those that verify count, so damaged ones never push out
 * good ones.
 *
 * To verify is to read every byte, which is too much to do at each commit. This process does it
 * once for each snapshot that it finds, and not at all for those that it wrote or resumed from. It
 * remembers the checksum of the manifest; from then on a snapshot counts while its manifest has
 * that checksum and its files have the lengths that the manifest says.
 */
struct ku_ckpt_verified_one {
    int64_t step;
    uint64_t manifest_sum;
    int is_good;
};
struct ku_ckpt_verified {
    struct ku_ckpt_verified_one *one; /* [n] */
    uint32_t n, cap;
};
void ku_ckpt_verified_fini(struct ku_ckpt_verified *verified);
/* Remember that every byte of a snapshot is good. A failure only costs a later read. */
void ku_ckpt_verified_add(struct ku_ckpt_verified *verified, const struct ku_ckpt *c);

/*
 * Remove the snapshots that are older than the newest `keep` that verify; never `step`, which was
 * written a moment ago. A damaged snapshot is named in one warning. What cannot be removed or
 * verified stays, with a warning.
 */
void ku_ckpt_prune(const char *dir, int64_t step, int keep, struct ku_ckpt_verified *verified,
                   struct ku_ckpt_tick tick);

#endif
