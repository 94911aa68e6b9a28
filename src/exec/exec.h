/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_EXEC_EXEC_H
#define KU_EXEC_EXEC_H

#include "base/err.h"
#include "comm/coll.h"
#include "exec/arenas.h"

/*
 * Executes programs (ir/program.h). Memory is allocated once for all programs of a job, as large as
 * their memory plans require (arenas.h). Loading binds every instruction to a kernel, a collective
 * or a transfer. A run is a loop over instructions that does not allocate and takes no decisions:
 *
 *     ku_memory_create   arenas for all programs          collective
 *     ku_exec_load       instruction -> bound op          once per program, compares hashes
 *     ku_exec_port       map and fill the input ports
 *     ku_exec_run        COMPUTE      launch kernel; progress collectives between its tiles
 *                        START        start collective    ..  WAIT       wait for it
 *                        OFFLOAD_START   start file I/O      ..  OFFLOAD_WAIT  wait for it
 *     ku_exec_port       map and read the results
 */

/*
 * Binds a program. Every rank of the job loads the same programs in the same order; a hash of their
 * communication is compared (KUMI_EMISMATCH). comms: NULL if the job has one rank. Borrows all
 * arguments.
 */
struct ku_exec;
/* The communicators of this rank. */
struct ku_exec_comms {
    /* By mesh axes, a mask of those with several ranks; NULL: no program needs it. */
    struct ku_comm *on[1 << KU_AX_FIRST_TIME];
    /* Neighbours on axis shard, for parameters sharded within groups. */
    struct ku_comm *group;
    /* All ranks along axis pp, once per channel (KU_X_SEND); NULL: no program needs it. */
    struct ku_comm *channel[KU_MAX_CHANNELS];
    /* The ranks that run the same programs as this one; NULL: all. */
    struct ku_comm *alike;
    int is_alone; /* no other rank does */
};
KU_STATUS ku_exec_load(struct ku_memory *memory, const struct ku_program *program,
                       const struct ku_device_ops *ops, void *device,
                       const struct ku_exec_comms *comms, struct ku_exec **exec);
void ku_exec_unload(struct ku_exec *exec); /* NULL is allowed */
/*
 * Runs the program once. Errors: the job's root cause; KUMI_EDEVICE.
 */
KU_STATUS ku_exec_run(struct ku_exec *exec);
/*
 * The same, with a callback that gets the results of each computation as soon as they are computed,
 * mapped for reading. For debugging.
 */
typedef void ku_exec_see(void *ctx, const struct ku_instr *instr, const struct ku_view *out);
KU_STATUS ku_exec_run_seen(struct ku_exec *exec, ku_exec_see *see, void *ctx);
/*
 * Sets a write barrier: later runs call it before each instruction that writes a parameter, buffer
 * or optimizer tensor. It may block; a result < 0 ends the run. NULL removes it.
 */
typedef int ku_exec_write_barrier(void *ctx, uint32_t instr);
void ku_exec_set_write_barrier(struct ku_exec *exec, ku_exec_write_barrier *write_barrier,
                               void *ctx);
/*
 * Later runs call `notice` after each instruction i with of[i] > 0, with that number. A result < 0
 * ends the run.
 *
 *   of   [n_instrs], borrowed; NULL removes it
 */
typedef int ku_exec_notice(void *ctx, uint32_t number);
void ku_exec_set_notice(struct ku_exec *exec, const uint32_t *of, ku_exec_notice *notice,
                        void *ctx);
/*
 * Later runs store the time before each instruction and at the end in stamp [n_instrs + 1], in ns.
 * NULL stops this.
 */
void ku_exec_stamp(struct ku_exec *exec, int64_t *stamp);
/* A port's memory; bytes 0: the program has no such port. */
struct ku_range ku_exec_port(const struct ku_exec *exec, int is_input, const char *name);
/* The same of a port of the exec's program that ku_program_find_port found; NULL: none. */
struct ku_range ku_exec_port_at(const struct ku_exec *exec, const struct ku_program_port *port);
/* Map n such ports for one access; a port that is NULL has data NULL. */
KU_STATUS ku_exec_map_ports(const struct ku_exec *exec, const struct ku_program_port *const *port,
                            int n, int access, struct ku_mapping *map);

/* Time breakdown of the last run. */
struct ku_exec_times {
    int64_t run_ns;
    int64_t exposed_ns; /* waiting for communication that computation did not hide */
    int64_t wait_ns;    /* part of exposed_ns without any transfer, because other ranks were late */
    int64_t offload_ns; /* waiting for, and copying, data of memory.offload */
    int64_t once_ns;    /* after the last micro-batch, without waits: norm, clipping, update */
};
struct ku_exec_times ku_exec_times(const struct ku_exec *exec);

#endif
