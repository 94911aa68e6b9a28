/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CKPT_SNAPSHOT_PROVENANCE_H
#define KU_CKPT_SNAPSHOT_PROVENANCE_H

#include "base/cpu/cpu_features.h"
#include "base/err.h"
#include "ckpt/snapshot/snapshot.h"

/* The bits of a state depend on these besides the numerics keys: instruction set, build, data. */
struct ku_origin {
    char isa[16], build[160], data[65]; /* data: its fingerprint; "": none */
};
/* Provenance of this program with this data; and that of a checkpoint. */
void ku_origin_here(enum ku_isa isa, const char *data_fingerprint, struct ku_origin *o);
void ku_origin_of(const struct ku_ckpt *c, struct ku_origin *o);
/*
 * Versions of kumi, compiler and libc for the manifest. NULL: no memory.
 */
json_t *ku_origin_libraries(void);
/*
 * Compare the checkpoint's provenance with the current one.
 *
 *   what   [400] out: differences of instruction set and build, with both values, or ""
 *
 * Errors: KUMI_EINVAL: the data differ.
 */
KU_STATUS ku_origin_compare(const struct ku_origin *was, const struct ku_origin *is,
                            const char *path, char what[400]);

#endif
