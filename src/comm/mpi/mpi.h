/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_MPI_MPI_H
#define KU_COMM_MPI_MPI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/*
 * The engine `mpi` (comm/net.h, ku_net_mpi) and what else kumi wants of an MPI library. A make
 * of MPI is a plug-in, libkumi-mpi-<make>.so, loaded when it is first needed:
 *
 *     the folder KUMI_PLUGINS, if it is set; else
 *     the folder of libkumi.so or of the program, kumi/ in it, ../<lib>/kumi beside it; else
 *     <lib>/kumi of the configured prefix
 *
 * The launcher's variables tell which make started this rank; KUMI_MPI=MAKE overrides them. A rank
 * that the launcher of one make has started is alone in another make's MPI_COMM_WORLD. So rank and
 * count are compared with those of the job.
 */
enum ku_mpi_make { KU_MPI_OPENMPI, KU_MPI_MPICH, KU_N_MPI_MAKES };
const char *ku_mpi_make_name(enum ku_mpi_make make); /* "openmpi", "mpich": as in KUMI_MPI */

/* A rank's place in the job, as the launcher's variables have it */
struct ku_mpi_place {
    const char *launcher; /* in messages */
    int rank, n;
};
/*
 * Send a blob of rank 0 to all ranks, before they know each other's addresses. MPI is started if it
 * is not.
 *
 *   blob    rank 0: given; others: set on success
 *   bytes   1 to KU_MPI_BLOB_BYTES, equal on all ranks
 *
 * Collective over the ranks of the launcher. Blocks: at most timeout_ns after MPI's start, which
 * has no deadline of its own.
 * Errors: KUMI_EINVAL (no plug-in, or not the launcher's make), EPEER, ETIMEDOUT.
 */
enum { KU_MPI_BLOB_BYTES = 65536 };
KU_STATUS ku_mpi_broadcast(const struct ku_mpi_place *place, void *blob, size_t bytes,
                           int64_t timeout_ns);

/*
 * Version of a make's library, for `kumi info`: 1; 0: there is no plug-in; -1: it cannot be loaded,
 * and the text says why. Loads the library without starting MPI.
 */
int ku_mpi_library(enum ku_mpi_make make, char *text, size_t cap);

#endif
