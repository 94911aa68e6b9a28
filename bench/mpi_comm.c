/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives of an MPI library for comparison with `kumi bench comm`: one JSON object per line
 * with the same fields, measured in the same way. Calls start together after a barrier, and the
 * slowest rank counts.
 *
 *   mpicc -O2 -o mpi_comm mpi_comm.c
 *   mpi_comm [max bytes]      of one rank's vector, f32
 */
#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RUNS = 2001 };
enum kind { BARRIER, ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, SEND_RECV, N_KINDS };
static const char *const name[N_KINDS] = {"barrier",    "all_reduce", "reduce_scatter",
                                          "all_gather", "broadcast",  "send_recv"};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* bytes: of the whole vector, which every rank reduces or has gathered at the end. */
static void once(enum kind kind, float *a, float *b, long bytes, int rank, int n)
{
    int count = (int)(bytes / 4), part = count / n;
    switch (kind) {
    case BARRIER:
        MPI_Barrier(MPI_COMM_WORLD);
        break;
    case ALL_REDUCE:
        MPI_Allreduce(MPI_IN_PLACE, a, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case REDUCE_SCATTER:
        MPI_Reduce_scatter_block(a, b, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case ALL_GATHER:
        MPI_Allgather(a, part, MPI_FLOAT, b, part, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case BROADCAST:
        MPI_Bcast(a, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
        break;
    case SEND_RECV: /* round trip: half of it is one way */
        if (rank == 0) {
            MPI_Send(a, count, MPI_FLOAT, 1, 0, MPI_COMM_WORLD);
            MPI_Recv(b, count, MPI_FLOAT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else if (rank == 1) {
            MPI_Recv(b, count, MPI_FLOAT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(a, count, MPI_FLOAT, 0, 0, MPI_COMM_WORLD);
        }
        break;
    case N_KINDS:
        break;
    }
}

static void measure(enum kind kind, float *a, float *b, long bytes, int rank, int n)
{
    static double us[MAX_RUNS];
    long runs = (1L << 29) / (bytes + 4096);
    int batch = bytes <= 64 && n == 2 ? 10 : 1; /* one call is shorter than two clock reads */
    runs = runs > MAX_RUNS ? MAX_RUNS : runs < 7 ? 7 : runs;
    if (n > 2 && runs > 101) /* ranks that spin on shared cores take ms */
        runs = 101;
    for (long i = -runs / 10 - 2; i < runs; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double begin = MPI_Wtime();
        for (int k = 0; k < batch; k++)
            once(kind, a, b, bytes, rank, n);
        if (i >= 0)
            us[i] = (MPI_Wtime() - begin) * 1e6 / batch / (kind == SEND_RECV ? 2 : 1);
    }
    qsort(us, (size_t)runs, sizeof us[0], by_value);
    double mine[2] = {us[runs / 2], us[runs - 1 - runs / 100]}, most[2];
    MPI_Allreduce(mine, most, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (rank > 0)
        return;
    printf("{\"collective\":\"%s\",\"memory\":\"private\",\"bytes\":%ld,\"ranks\":%d,"
           "\"median_us\":%.3f,\"p99_us\":%.3f,\"gbps\":%.4f,\"runs\":%ld}\n",
           name[kind], bytes, n, most[0], most[1], (double)bytes / most[0] * 1e-3, runs);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const long sizes[] = {8, 64L << 10, 1L << 20, 64L << 20, 256L << 20};
    long most = argc > 1 ? strtol(argv[1], NULL, 10) : 256L << 20;
    int rank, n;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    float *a = malloc((size_t)most + 64), *b = malloc((size_t)most + 64);
    if (a == NULL || b == NULL)
        MPI_Abort(MPI_COMM_WORLD, 1);
    memset(a, 0, (size_t)most + 64);
    memset(b, 0, (size_t)most + 64);
    measure(BARRIER, a, b, 0, rank, n);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && sizes[i] <= most; i++)
        for (int kind = ALL_REDUCE; kind < N_KINDS; kind++)
            if (n == 2 || kind == ALL_REDUCE)
                measure((enum kind)kind, a, b, sizes[i], rank, n);
    free(a);
    free(b);
    MPI_Finalize();
    return 0;
}
