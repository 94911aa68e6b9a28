/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CKPT_SNAPSHOT_RETENTION_H
#define KU_CKPT_SNAPSHOT_RETENTION_H

#include "ckpt/snapshot/snapshot.h"

/*
 * Decides which snapshots of a directory are kept. Only verified snapshots count towards
 * checkpoint.keep, so that damaged ones never displace good ones.
 *
 * Verification reads every byte, too slow for each commit. This process verifies each snapshot that
 * it finds once, and does not verify those that it wrote or resumed from. It stores the checksum of
 * the manifest; afterwards a snapshot counts while its manifest has that checksum and its files
 * have the sizes in the manifest.
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
/* Record a snapshot as verified. If memory is short, it is verified again later. */
void ku_ckpt_verified_add(struct ku_ckpt_verified *verified, const struct ku_ckpt *c);

/*
 * Remove the snapshots that are older than the newest `keep` verified ones, except `step`, which
 * was just written. A damaged snapshot gives one warning. A snapshot that cannot be removed or
 * verified is kept, with a warning.
 *
 *   verified   NULL: verify all
 */
void ku_ckpt_prune(const char *dir, int64_t step, int keep, struct ku_ckpt_verified *verified);

#endif
