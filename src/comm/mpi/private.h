/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_MPI_PRIVATE_H
#define KU_COMM_MPI_PRIVATE_H

#include <fenv.h>
#include <signal.h>

#include "base/err.h"
#include "comm/mpi/mpi.h"
#include "comm/mpi/mpi_table.h"
#include "comm/net.h"

/* load_library.c */
/* The table of a make's plug-in, which stays loaded. Errors: KUMI_EINVAL (names what was tried). */
KU_STATUS ku_mpi_load(enum ku_mpi_make make, const struct ku_mpi_table **table);
/* The make whose launcher started this rank. Errors: KUMI_EINVAL (what the environment lacks). */
KU_STATUS ku_mpi_find(enum ku_mpi_make *make);

/* start.c */
/*
 * State of the process that code of an MPI library must leave as it was. Between the two calls this
 * thread blocks all signals.
 */
struct ku_mpi_kept {
    fenv_t arithmetic;
    sigset_t mask;
    struct sigaction action[NSIG];
};
KU_STATUS ku_mpi_keep(struct ku_mpi_kept *kept);
void ku_mpi_restore(const struct ku_mpi_kept *kept);
/* Start MPI, compare rank and count with the launcher's, and duplicate MPI_COMM_WORLD. */
KU_STATUS ku_mpi_start(const struct ku_mpi_table *table, const struct ku_mpi_place *place,
                       int64_t timeout_ns);
KU_STATUS ku_mpi_broadcast_by(const struct ku_mpi_table *table, const struct ku_mpi_place *place,
                              void *blob, size_t bytes, int64_t timeout_ns);
/*
 * The job that the broadcast was for has ended, on this rank. A network over MPI has settled it
 * already. Else the end of the process waits for the other ranks and finalizes MPI, unless the job
 * has failed: ranks may be missing then.
 */
void ku_mpi_end_broadcast(const struct ku_mpi_table *table, bool has_failed);
/* Record what MPI said of `what`. Returns KUMI_EPEER. */
KU_STATUS ku_mpi_failed(const struct ku_mpi_table *table, const char *what, int error);

/* rdma.c */
/*
 * The RDMA devices that this process has open, as "uverbs0, uverbs1"; else "none".
 *
 *   folder   of the links to open files: /proc/self/fd, or a test's
 */
void ku_mpi_rdma(const char *folder, char *text, size_t cap);

/* mpi_engine.c: the network of a job over a table, which ku_mpi_load or a test gives */
KU_STATUS ku_mpi_open(const struct ku_mpi_table *table, struct ku_job *job, struct ku_net **net);
extern const struct ku_net_ops ku_net_openmpi, ku_net_mpich;

#endif
