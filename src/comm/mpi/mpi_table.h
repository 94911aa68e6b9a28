/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_MPI_MPI_TABLE_H
#define KU_COMM_MPI_MPI_TABLE_H

#include <stddef.h>
#include <stdint.h>

/*
 * One MPI library as a table of functions without MPI's types.
 *
 *     libkumi                          libkumi-mpi-openmpi.so     libkumi-mpi-mpich.so
 *     mpi_engine.c: links, order,          table_plugin.c with        the same file with
 *     limits, errors             ──>   Open MPI's mpi.h      or   MPICH's mpi.h
 *
 * The makes of MPI have different ABIs, so the file is compiled once per make and loaded at run
 * time. It uses no function of libkumi, which a program may link statically or with hidden names.
 * The table is the whole interface, and a test puts one of its own in its place.
 *
 * Functions that return int return 0 or an MPI error code. No function blocks, except start and
 * finish. One thread calls them.
 */
enum { KU_MPI_ABI = 3, KU_MPI_PIECES = 5 };
#define KU_MPI_TABLE "ku_mpi_table" /* the plug-in's one symbol */

/* MPI exists once in a process and cannot be started again after its end. */
enum ku_mpi_phase {
    KU_MPI_IDLE,   /* not started */
    KU_MPI_IN_USE, /* started, and since a broadcast no job has ended without a failure */
    KU_MPI_OPEN,   /* a network uses it */
    KU_MPI_CLOSED, /* the job ended without a failure: the end of the process finalizes MPI */
    KU_MPI_FAILED  /* closed after one: ranks may be missing, and messages left over */
};
struct ku_mpi_process {
    int phase;  /* enum ku_mpi_phase; the engine writes it */
    int pmi_fd; /* socket to hydra, MPICH's launcher, or 0; the engine writes it */
    int rank, n, max_tag;
};
struct ku_mpi_piece {
    void *at;
    size_t bytes;
};
/* A request that is done */
struct ku_mpi_done {
    int index, error; /* error: MPI's code, or 0 */
    uint64_t bytes;   /* received */
};

struct ku_mpi_table {
    uint32_t abi, table_bytes;
    const char *make;               /* "openmpi", "mpich" */
    struct ku_mpi_process *process; /* state of MPI in this process */
    /* The caller has arrays of requests and of scratch memory, with so many bytes an element. */
    size_t request_bytes, scratch_bytes;

    /* First line of the library's version. Works before start. */
    void (*library)(char *text, size_t cap);
    /*
     * Parts of the library that carry messages, as "ch4:ucx" or "pml ob1; btl self, tcp", after
     * start. Empty: it does not tell.
     */
    void (*fabric)(char *text, size_t cap);
    /* Text of an error code */
    void (*error_text)(int error, char *text, size_t cap);
    /*
     * MPI_Init_thread, unless the program has called it; fills *process. Later calls do nothing.
     * Blocks until all ranks of MPI_COMM_WORLD have called it.
     */
    int (*start)(void);
    /*
     * Duplicate MPI_COMM_WORLD, so that no message of the program is taken for one of kumi's.
     * Collective. Call it until *is_done.
     */
    int (*join)(int *is_done);
    /* Send rank 0's blob to all ranks, after join. Collective. Call it until *is_done. */
    int (*broadcast)(void *blob, int bytes, int *is_done);
    /*
     * Send or receive one message of bytes, which lie in up to KU_MPI_PIECES pieces. The request
     * becomes element `index` of the array.
     */
    int (*send)(const struct ku_mpi_piece *piece, int n_pieces, int rank, int tag, void *requests,
                int index);
    int (*recv)(const struct ku_mpi_piece *piece, int n_pieces, int rank, int tag, void *requests,
                int index);
    /*
     * Test the first n requests: done[0 .. *n_done) are those that are done now. They become null
     * requests, which later tests pass over. n = 0 lets MPI move its own bytes.
     */
    int (*test)(void *requests, int n, void *scratch, struct ku_mpi_done *done, int *n_done);
};

#endif
