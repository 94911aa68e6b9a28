/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_EXEC_ARENAS_H
#define KU_EXEC_ARENAS_H

#include "base/err.h"
#include "comm/coll.h"
#include "device/device.h"
#include "exec/offload_target.h"
#include "ir/program.h"

struct ku_guard;

/*
 * The arenas of a rank: state shared by the ranks of the host, buffers that peers address, and
 * private memory. They belong to the device. Kernels and collectives address them; the host names a
 * range (a port, a state tensor, a part of a checkpoint) and copies or maps it:
 *
 *     ku_exec_port ────┐               ┌── ku_range_read, _write    copy, the file arena too
 *     ku_memory_state ─┼── ku_range ───┤
 *     ku_trainer_port ─┘               └── ku_range_map … _unmap    in place: no copy on CPUs
 *
 * With KUMI_PROTECT_ARENAS in the environment the arenas in memory are inaccessible except while a
 * range of them is mapped, and during each instruction (ku_memory_begin, ku_memory_end). A
 * forgotten map then ends the process.
 */
struct ku_memory {
    struct ku_job *job;
    const struct ku_device_ops *ops;
    void *device;
    const struct ku_arena *host, *shard, *wire, *gather, *offload; /* NULL if no program needs it */
    struct ku_offload_file *file;                                  /* likewise */
    unsigned char *base[KU_N_ARENAS]; /* the device's address; NULL for the file arena */
    size_t bytes[KU_N_ARENAS];
    int mesh_rank; /* whose coordinate on the mesh programs run with: job->rank, or a worker's */
    int is_protected;
    struct ku_guard *guard[KU_N_ARENAS]; /* NULL unless protected */
};
/*
 * Creates the arenas for these programs. Each is as large as the largest need of a program. Private
 * memory is backed and zero on return.
 *
 *   target   folder and method for the file arena; NULL: no program has one
 *
 * Collective: over the job. Borrows ops and device.
 * Errors: KUMI_ENOMEM, those of ku_offload_file_open, and the job's root cause.
 */
KU_STATUS ku_memory_create(struct ku_job *job, const struct ku_device_ops *ops, void *device,
                           const struct ku_program *const *program, int n_programs,
                           const struct ku_offload_file_opts *target, struct ku_memory **memory);
void ku_memory_destroy(struct ku_memory *memory); /* collective; NULL is allowed */

/* Bytes [at, at + bytes) of an arena; bytes 0: none. */
struct ku_range {
    const struct ku_memory *memory;
    int arena, rank; /* rank: local rank whose part it is; others' only of arenas with parts */
    size_t at, bytes;
};
struct ku_range ku_memory_state(const struct ku_memory *m, const struct ku_program_state *s);
struct ku_range ku_memory_buffer(const struct ku_memory *m, const struct ku_buffer *b);

/* A range that the host may access at `data` until unmap; data NULL: nothing is mapped. */
struct ku_mapping {
    struct ku_range range;
    int access; /* enum ku_access */
    void *data;
};
/*
 * Map and unmap ranges outside of runs, or what a run does not use meanwhile. Not the file arena.
 * An empty range maps to NULL; unmapping it does nothing. After an error nothing is mapped.
 * Errors: those of the device. Threads: any.
 */
KU_STATUS ku_range_map(struct ku_range range, int access, struct ku_mapping *map);
KU_STATUS ku_range_unmap(struct ku_mapping *map);
/* All n, each with its own range. */
KU_STATUS ku_ranges_map(const struct ku_range *range, int n, int access, struct ku_mapping *map);
KU_STATUS ku_ranges_unmap(struct ku_mapping *map, int n);
/* Copy all bytes of a range of any arena. Errors: KUMI_ESTORAGE, those of the device. */
KU_STATUS ku_range_read(struct ku_range range, void *to);
KU_STATUS ku_range_write(struct ku_range range, const void *from);

/* The arenas are accessible to kernels and collectives between the two calls, which nest. */
void ku_memory_begin(const struct ku_memory *m);
void ku_memory_end(const struct ku_memory *m);

#endif
