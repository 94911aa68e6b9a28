/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_ARENA_H
#define KU_COMM_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct ku_job;
struct ku_guard;

/*
 * Owned buffers: an arena is memory that all ranks of the host map. It is one sealed memfd with a
 * common range (one copy per host) and one part per rank. A process maps it once, so ranks as
 * threads share the mapping.
 *
 *     | common | part of rank 0 | part of rank 1 | …
 *
 * Each range is aligned to 2 MiB if it is that large, else to a page.
 */
struct ku_arena {
    uint32_t id;
    int n_local;
    size_t common_bytes, part_bytes; /* as requested, rounded up to pages */
    size_t part_off, part_stride;    /* part of local rank r: base + part_off + r * part_stride */
    size_t bytes;
    unsigned char *base;
    struct ku_guard *guard; /* of this process's mapping; NULL: always accessible */
};

enum { KU_MAX_ARENAS = 256 };
#define KU_PRIVATE       UINT64_MAX  /* not in an arena: peers cannot access it */
#define KU_ARENA_COMMON  UINT32_C(1) /* ku_ref.flags: `off` is in the common range of all ranks */
#define KU_ARENA_PRIVATE UINT32_C(2) /* ku_ref.flags: `ptr` is this rank's own memory */

/*
 * Where a buffer is. The same record on every rank refers to that rank's own copy.
 */
struct ku_ref {
    uint32_t arena, flags;
    size_t off;
    void *ptr; /* with KU_ARENA_PRIVATE */
};

/*
 * Create an arena of zeros. Collective over the job, with equal sizes.
 *
 *   common_bytes, part_bytes   either may be 0
 *   name                       in messages and /proc/PID/maps ("kumi-<name>")
 *   arena                      owned by the job; borrowed
 *
 * On return the pages of the caller's part and of its equal share of the common range are
 * populated. Huge pages are used where the system grants them.
 *
 * Blocks: until all ranks have called it.
 * Errors: KUMI_ENOMEM, EMISMATCH; the job's root cause.
 */
KU_STATUS ku_arena_create(struct ku_job *job, const char *name, size_t common_bytes,
                          size_t part_bytes, const struct ku_arena **arena);
/*
 * Make the mapping inaccessible except between begin and end of its guard (base/os/guard.h). For
 * tests. Collective.
 */
KU_STATUS ku_arena_guard(struct ku_job *job, const struct ku_arena *arena);
/*
 * Unmap the arena. No rank may use it any more. Collective.
 */
KU_STATUS ku_arena_destroy(struct ku_job *job, const struct ku_arena *arena);

static inline unsigned char *ku_arena_part(const struct ku_arena *a, int local)
{
    return a->base + a->part_off + (size_t)local * a->part_stride;
}
static inline unsigned char *ku_arena_common(const struct ku_arena *a)
{
    return a->base;
}

#endif
