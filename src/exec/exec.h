/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_EXEC_EXEC_H
#define KU_EXEC_EXEC_H

#include "comm/coll.h"
#include "device/device.h"
#include "exec/offload_target.h"
#include "ir/program.h"

/*
 * Runs programs. Memory is made once for all programs of a job, as large as their plans say;
 * loading binds every instruction to a kernel or a collective; a step is a loop over instructions
 * that neither allocates nor decides anything.
 */

/* A rank's arenas: state shared by the host's ranks, windows that peers address, and private
 * memory. */
struct ku_memory {
    struct ku_job *job;
    const struct ku_arena *host, *shard, *wire, *offload; /* NULL when no program has any */
    struct ku_tier_file *file;                            /* likewise */
    unsigned char *base[KU_N_ARENAS];                     /* this rank's view; of the file none */
    size_t bytes[KU_N_ARENAS];
};
/*
 * The arenas for these programs: each the largest that one of them needs. Collective over the job.
 * Private memory is backed and zero on return. Errors: KUMI_ENOMEM, those of ku_tier_file_open, and
 * the job's root cause.
 *
 *   tier   where arena `file` is to lie; NULL: no program has one
 */
int ku_memory_create(struct ku_job *job, const struct ku_program *const *program, int n_programs,
                     const struct ku_tier_opts *tier, struct ku_memory **memory);
void ku_memory_destroy(struct ku_memory *memory); /* collective; NULL is fine */
/* Where a tensor of the state lies, that is in no file. */
static inline void *ku_memory_state(const struct ku_memory *m, const struct ku_program_state *s)
{
    return m->base[s->arena] + s->offset;
}

/*
 * Binds a program. Every rank of the job loads the same programs in the same order: their
 * communication is compared (KUMI_EMISMATCH). comms: NULL when the job has one rank. Borrows all
 * arguments.
 */
struct ku_exec;
/* The communicators of the data-parallel axes. */
struct ku_exec_comms {
    struct ku_comm *dp;                /* of all data-parallel ranks */
    struct ku_comm *replicate, *shard; /* of one axis, where both have more than one rank */
    struct ku_comm *group; /* of neighbours on axis shard, where parameters are kept in groups */
};
int ku_exec_load(struct ku_memory *memory, const struct ku_program *program,
                 const struct ku_device_ops *ops, void *device, const struct ku_exec_comms *comms,
                 struct ku_exec **exec);
void ku_exec_unload(struct ku_exec *exec); /* NULL is fine */
/* One run. Errors: the job's root cause; KUMI_EDEVICE. */
int ku_exec_run(struct ku_exec *exec);
/* The same, and `see` gets each computation's results as soon as they are there: to find faults. */
typedef void ku_exec_see(void *ctx, const struct ku_instr *instr, const struct ku_view *out);
int ku_exec_run_seen(struct ku_exec *exec, ku_exec_see *see, void *ctx);
/* Runs from now on ask `gate` before each instruction that writes a parameter, buffer or optimizer
 * tensor; it may wait, and < 0 ends the run. NULL: no longer. */
typedef int ku_exec_gate(void *ctx, uint32_t instr);
void ku_exec_set_gate(struct ku_exec *exec, ku_exec_gate *gate, void *ctx);
/* Runs from now on note the clock before each instruction and at the end: stamp [n_instrs + 1] ns;
 * NULL: no longer. */
void ku_exec_stamp(struct ku_exec *exec, int64_t *stamp);
/* A port's memory, and its bytes if wanted; NULL if the program has none of this name. */
void *ku_exec_port(const struct ku_exec *exec, int is_input, const char *name, size_t *bytes);

/* Where the time of the last run went. */
struct ku_exec_times {
    int64_t run_ns;
    int64_t exposed_ns; /* in waits of communication: what computation did not hide */
    int64_t wait_ns;    /* of that, in which nothing moved because other ranks were not there */
    int64_t tier_ns;    /* in waits and copies of what memory.offload reads and writes */
    int64_t once_ns;    /* behind the last micro-batch, without waits: norm, clipping, update */
};
struct ku_exec_times ku_exec_times(const struct ku_exec *exec);

#endif
