/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MPI's start, and what of the process loading and starting it must not change.
 *
 *     signals      MPI_Init starts threads of the library. They block all signals, so that a stop
 *                  signal reaches kumi's service thread. Handlers that MPI sets are taken back.
 *     UCX          UCX_ERROR_SIGNALS= and UCX_MEM_EVENTS=no: no handlers and no hooks in malloc and
 *                  mmap. UCX reads them when it is loaded. Values that the user gives count.
 *     arithmetic   the floating-point environment, on which results depend: initialisers of
 *                  libraries that are compiled for speed flush denormals to zero
 */
#include "base/clock.h"
#include "base/env.h"
#include "base/err.h"
#include "comm/mpi/private.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int ku_mpi_keep(struct ku_mpi_kept *k)
{
    sigset_t all;
    KU_TRY(ku_env_default("UCX_ERROR_SIGNALS", ""));
    KU_TRY(ku_env_default("UCX_MEM_EVENTS", "no"));
    memset(k, 0, sizeof *k);
    for (int s = 1; s < NSIG; s++)
        sigaction(s, NULL, &k->action[s]); /* sets nothing for the C library's own signals */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &k->mask);
    fegetenv(&k->arithmetic);
    return 0;
}

void ku_mpi_restore(const struct ku_mpi_kept *k)
{
    struct sigaction now;
    for (int s = 1; s < NSIG; s++)
        if (sigaction(s, NULL, &now) == 0 && now.sa_handler != k->action[s].sa_handler)
            sigaction(s, &k->action[s], NULL);
    fesetenv(&k->arithmetic);
    pthread_sigmask(SIG_SETMASK, &k->mask, NULL);
}

int ku_mpi_failed(const struct ku_mpi_table *table, const char *what, int error)
{
    char why[256];
    table->error_text(error, why, sizeof why);
    return KU_ERR(KUMI_EPEER, "mpi: %s: %s: %s", table->make, what, why);
}

static int check_place(const struct ku_mpi_table *table, const struct ku_mpi_place *place)
{
    const struct ku_mpi_process *p = table->process;
    char version[96];
    if (p->rank == place->rank && p->n == place->n)
        return 0;
    table->library(version, sizeof version);
    return KU_ERR(KUMI_EINVAL,
                  "mpi: %s started rank %d of %d, which is rank %d of %d in MPI_COMM_WORLD of the "
                  "plug-in %s (%s); start the job with the launcher of that MPI, or set KUMI_MPI",
                  place->launcher, place->rank, place->n, p->rank, p->n, table->make, version);
}

/* Call join, or broadcast with a blob, until it is done. */
static int wait_for(const struct ku_mpi_table *table, void *blob, size_t bytes, int64_t timeout_ns)
{
    const char *what = blob ? "broadcast at the start" : "MPI_Comm_idup";
    const int64_t end_ns = ku_clock_ns() + timeout_ns;
    for (int is_done = 0;;) {
        int error = blob ? table->broadcast(blob, (int)bytes, &is_done) : table->join(&is_done);
        if (error)
            return ku_mpi_failed(table, what, error);
        if (is_done)
            return 0;
        if (ku_clock_ns() > end_ns)
            return KU_ERR(KUMI_ETIMEDOUT,
                          "mpi: %s: %s: not all of %d ranks took part within %.0f s; see whether "
                          "one has ended",
                          table->make, what, table->process->n, (double)timeout_ns * 1e-9);
        usleep(100);
    }
}

int ku_mpi_start(const struct ku_mpi_table *table, const struct ku_mpi_place *place,
                 int64_t timeout_ns)
{
    struct ku_mpi_process *p = table->process;
    struct ku_mpi_kept kept;
    KU_ASSERT(place->n >= 1 && place->rank >= 0 && place->rank < place->n);
    if (p->phase == KU_MPI_FAILED)
        return KU_ERR(KUMI_EINVAL,
                      "mpi: %s: an earlier job of this process failed, and MPI cannot "
                      "be started twice; start a new process",
                      table->make);
    if (p->phase == KU_MPI_OPEN)
        return KU_ERR(KUMI_EINVAL,
                      "mpi: %s: another job of this process uses it; MPI gives a "
                      "process one rank",
                      table->make);
    p->phase = KU_MPI_IN_USE;
    KU_TRY(ku_mpi_keep(&kept));
    const char *pmi_fd = ku_env("HYDI_CONTROL_FD") ? ku_env("PMI_FD") : NULL;
    p->pmi_fd = pmi_fd && strcmp(table->make, "mpich") == 0 ? (int)strtol(pmi_fd, NULL, 10) : 0;
    int error = table->start();
    ku_mpi_restore(&kept);
    if (error)
        return ku_mpi_failed(table, "MPI_Init_thread", error);
    KU_TRY(check_place(table, place));
    return wait_for(table, NULL, 0, timeout_ns);
}

int ku_mpi_broadcast_by(const struct ku_mpi_table *table, const struct ku_mpi_place *place,
                        void *blob, size_t bytes, int64_t timeout_ns)
{
    KU_ASSERT(blob && bytes >= 1 && bytes <= KU_MPI_BLOB_BYTES);
    KU_TRY(ku_mpi_start(table, place, timeout_ns));
    return wait_for(table, blob, bytes, timeout_ns);
}

void ku_mpi_end_broadcast(const struct ku_mpi_table *table, bool has_failed)
{
    if (table->process->phase == KU_MPI_IN_USE && !has_failed)
        table->process->phase = KU_MPI_CLOSED;
}
