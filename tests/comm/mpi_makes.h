/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_COMM_MPI_MAKES_H
#define TESTS_COMM_MPI_MAKES_H

/* The makes of MPI, and what starts ranks on this machine with each that is installed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

/* options: %s is the place of the ways of transport */
static const struct mpi_make {
    const char *name, *launcher[2], *options;
} mpi_makes[] = {
    {"openmpi",
     {"mpirun.openmpi", "orterun"},
     "--allow-run-as-root --oversubscribe --bind-to none --mca pml ob1 --mca btl %s "
     "--mca btl_tcp_if_include lo --mca oob_tcp_if_include lo --mca "
     "btl_vader_single_copy_mechanism none"},
    {"mpich", {"mpiexec.hydra", "mpiexec.mpich"}, "-env UCX_TLS %s -env UCX_NET_DEVICES lo"},
};
enum { N_MPI_MAKES = sizeof mpi_makes / sizeof *mpi_makes };

/* What a shell's command begins with so that its ranks are no part of another job */
#define MPI_UNSET "unset PMI_RANK PMI_SIZE OMPI_COMM_WORLD_SIZE PMIX_RANK; "

static inline const char *mpi_launcher(size_t make)
{
    char command[128];
    for (int k = 0; k < 2; k++) {
        snprintf(command, sizeof command, "command -v %s >/dev/null", mpi_makes[make].launcher[k]);
        if (system(command) == 0)
            return mpi_makes[make].launcher[k];
    }
    return NULL;
}

/* Says what is missing. */
static inline int mpi_has_make(size_t make)
{
    char path[4200];
    snprintf(path, sizeof path, KUMI_BINARY_DIR "/libkumi-mpi-%s.so", mpi_makes[make].name);
    if (access(path, R_OK) == 0 && mpi_launcher(make))
        return 1;
    print_message("%s: %s; skipped\n", mpi_makes[make].name,
                  mpi_launcher(make) ? "its plug-in is not built"
                                     : "its launcher is not installed");
    return 0;
}

/* ways: as "tcp,self" */
static inline void mpi_options(size_t make, const char *ways, char *text, size_t cap)
{
    const char *place = strstr(mpi_makes[make].options, "%s");
    snprintf(text, cap, "%.*s%s%s", (int)(place - mpi_makes[make].options), mpi_makes[make].options,
             ways, place + 2);
}

/* Run a shell's command; what it prints is `said`. Returns its exit code, -1 after a signal. */
static inline int run_shell(const char *command, char *said, size_t cap)
{
    FILE *f = popen(command, "r");
    assert_non_null(f);
    const size_t len = fread(said, 1, cap - 1, f);
    while (fgetc(f) != EOF)
        continue;
    said[len] = 0;
    const int status = pclose(f);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Lines "rank R: fine" */
static inline int n_fine(const char *said)
{
    int n = 0;
    for (const char *p = said; (p = strstr(p, ": fine")); p++)
        n++;
    return n;
}

#endif
