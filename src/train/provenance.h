/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_PROVENANCE_H
#define KU_TRAIN_PROVENANCE_H

#include "base/cpu_features.h"
#include "ckpt/snapshot/snapshot.h"

/* What a state's bits rest on beside the numerics keys: instruction set, build, data. */
struct ku_origin {
    char isa[16], build[160], data[65]; /* data: the fingerprint; "": none */
};
/* Of this program with that data. */
void ku_origin_here(enum ku_isa isa, const char *data_fingerprint, struct ku_origin *o);
void ku_origin_of(const struct ku_ckpt *c, struct ku_origin *o);
/* For the manifest: kumi, compiler, libc. NULL: no memory. */
json_t *ku_origin_libraries(void);
/*
 * Hold here against the checkpoint's.
 *
 *   what   [400]: what differs of instruction set and build, with both values, or ""
 *
 * Errors: KUMI_EINVAL: other data.
 */
int ku_origin_compare(const struct ku_origin *was, const struct ku_origin *is, const char *path,
                      char what[400]);

#endif
