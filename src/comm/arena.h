/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_ARENA_H
#define KU_COMM_ARENA_H

#include <stddef.h>
#include <stdint.h>

struct ku_job;

/*
 * Owned buffers: memory of one class that all ranks of the host see. One sealed memfd with a common
 * range (one copy for the host) and every rank's own part, mapped once per process, so ranks as
 * threads share the mapping.
 *
 *     common | part of rank 0 | part of rank 1 | …       each 2 MiB-aligned when that large, else
 * page-aligned
 */
struct ku_arena {
    uint32_t id;
    int n_local;
    size_t common_bytes, part_bytes; /* as asked for, rounded up to pages */
    size_t part_off, part_stride;    /* part of local rank r: base + part_off + r * part_stride */
    size_t bytes;
    unsigned char *base;
};

enum { KU_MAX_ARENAS = 256 };
#define KU_PRIVATE UINT64_MAX /* "no arena": memory that peers do not see; staged */
#define KU_ARENA_COMMON                                                                            \
    UINT32_C(1) /* ku_ref.flags: offset in the common range, the same bytes for every rank */
#define KU_ARENA_PRIVATE UINT32_C(2) /* ku_ref.flags: `ptr` is this rank's own memory */

/* Where a buffer is: the same record on every rank names each rank's own copy. */
struct ku_ref {
    uint32_t arena, flags;
    size_t off;
    void *ptr; /* with KU_ARENA_PRIVATE */
};

/*
 * Make an arena. Collective over the job, with equal sizes.
 *
 *   common_bytes, part_bytes   either may be 0
 *   name                       for messages and /proc/PID/maps ("kumi-<name>")
 *   arena                      owned by the job; borrowed
 *
 * The caller's part is populated on return (the common range by local rank 0, an equal share each),
 * zero. Huge pages are tried silently. Blocks: until all ranks called it. Errors: KUMI_ENOMEM,
 * EMISMATCH, and the job's root cause.
 */
int ku_arena_create(struct ku_job *job, const char *name, size_t common_bytes, size_t part_bytes,
                    const struct ku_arena **arena);
/* Collective. Nobody may use it any more. */
int ku_arena_destroy(struct ku_job *job, const struct ku_arena *arena);

static inline unsigned char *ku_arena_part(const struct ku_arena *a, int local)
{
    return a->base + a->part_off + (size_t)local * a->part_stride;
}
static inline unsigned char *ku_arena_common(const struct ku_arena *a)
{
    return a->base;
}

#endif
