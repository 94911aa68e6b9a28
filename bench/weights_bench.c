/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads a directory of weights into memory that n processes share, like {"path": DIR}, compared
 * with dd of the same files, in alternation: weights_bench DIR [RANKS [ROUNDS]]. The memory is f32
 * and populated in every process before, like the state of a run. The files are dropped from the
 * page cache before each load.
 */
#define _DEFAULT_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/os/ipc.h"
#include "ckpt/weights.h"

enum { MOST_RANKS = 64 };

static void fail(const char *what)
{
    fprintf(stderr, "weights_bench: %s: %s\n", what, ku_err_get()->text);
    exit(1);
}

static void forget(const struct ku_st_set *set)
{
    for (int i = 0; i < set->n; i++) {
        int fd = open(set->file[i].path, O_RDONLY);
        fsync(fd);
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
}

/*
 * Assign memory to every tensor, as f32. Returns the bytes.
 */
static size_t place(struct ku_weights *w, unsigned char *memory)
{
    size_t bytes = 0;
    for (int i = 0; i < w->n; i++) {
        w->tensor[i].dtype = KUMI_F32;
        w->tensor[i].data = memory + bytes;
        bytes += ((size_t)ku_ckpt_tensor_count(&w->tensor[i]) * 4 + 63) & ~(size_t)63;
    }
    return bytes;
}

/* Peak MiB of this process without the memory that the ranks share. */
static double own_mib(void)
{
    char line[256];
    double kib, peak = 0, shared = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f)) {
        peak = sscanf(line, "VmHWM: %lf", &kib) == 1 ? kib : peak;
        shared = sscanf(line, "RssShmem: %lf", &kib) == 1 ? kib : shared;
    }
    if (f)
        fclose(f);
    return (peak - shared) / 1024;
}

/* Measurements of the ranks. */
struct shared {
    _Atomic int n_ready;
    struct {
        int64_t begin_ns, end_ns, cpu_ns;
        double own_mib;
    } rank[MOST_RANKS];
};

static void rank_main(const char *dir, unsigned char *memory, size_t bytes, int rank, int n_ranks,
                      struct shared *s)
{
    struct ku_weights w;
    struct timespec cpu[2];
    ku_os_populate(memory, bytes);
    for (s->n_ready++; s->n_ready < n_ranks;)
        usleep(1000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu[0]);
    s->rank[rank].begin_ns = ku_clock_ns();
    if (ku_weights_open(dir, NULL, 0, NULL, &w) < 0)
        fail("open");
    place(&w, memory);
    if (ku_weights_read(&w, rank, n_ranks) < 0)
        fail("read");
    ku_weights_close(&w);
    s->rank[rank].end_ns = ku_clock_ns();
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu[1]);
    s->rank[rank].cpu_ns =
        (cpu[1].tv_sec - cpu[0].tv_sec) * INT64_C(1000000000) + cpu[1].tv_nsec - cpu[0].tv_nsec;
    s->rank[rank].own_mib = own_mib();
    _exit(0);
}

/*
 * Seconds from the first rank's begin to the last rank's end; the maximum CPU seconds and MiB of a
 * rank.
 */
static double load(const char *dir, unsigned char *memory, size_t bytes, int n_ranks,
                   struct shared *s, double *cpu, double *mib)
{
    pid_t pid[MOST_RANKS];
    int64_t begin_ns = INT64_MAX, end_ns = 0;
    s->n_ready = 0;
    for (int i = 0; i < n_ranks; i++)
        if ((pid[i] = fork()) == 0)
            rank_main(dir, memory, bytes, i, n_ranks, s);
    *cpu = *mib = 0;
    for (int i = 0; i < n_ranks; i++) {
        int status = 0;
        if (waitpid(pid[i], &status, 0) != pid[i] || status != 0)
            exit(1);
        begin_ns = s->rank[i].begin_ns < begin_ns ? s->rank[i].begin_ns : begin_ns;
        end_ns = s->rank[i].end_ns > end_ns ? s->rank[i].end_ns : end_ns;
        double seconds = (double)s->rank[i].cpu_ns * 1e-9, own = s->rank[i].own_mib;
        *cpu = seconds > *cpu ? seconds : *cpu;
        *mib = own > *mib ? own : *mib;
    }
    return (double)(end_ns - begin_ns) * 1e-9;
}

static double dd(const struct ku_st_set *set, const char *flag)
{
    int64_t begin = ku_clock_ns();
    for (int i = 0; i < set->n; i++) {
        char text[4096];
        snprintf(text, sizeof text, "dd 'if=%s' of=/dev/null bs=4M %s 2>/dev/null",
                 set->file[i].path, flag);
        if (system(text) != 0)
            exit(1);
    }
    return (double)(ku_clock_ns() - begin) * 1e-9;
}

int main(int argc, char **argv)
{
    struct ku_weights w;
    int n_ranks = argc > 2 ? atoi(argv[2]) : 2, rounds = argc > 3 ? atoi(argv[3]) : 3;
    if (argc < 2 || rounds < 1 || n_ranks < 1 || n_ranks > MOST_RANKS) {
        fprintf(stderr, "usage: weights_bench DIR [RANKS, 1 to %d [ROUNDS]]\n", MOST_RANKS);
        return 2;
    }
    if (ku_weights_open(argv[1], NULL, 0, NULL, &w) < 0)
        fail("open");
    size_t bytes = place(&w, NULL), file_bytes = 0;
    unsigned char *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct shared *own =
        mmap(NULL, sizeof *own, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || own == MAP_FAILED)
        return 1;
    for (int i = 0; i < w.set.n; i++)
        file_bytes += w.set.file[i].file_bytes;
    double gb = (double)file_bytes * 1e-9;
    printf("# GB/s, %.3f GB, %d ranks: load (CPU s and own MiB of a rank), dd, dd direct\n", gb,
           n_ranks);
    for (int i = 0; i < rounds; i++) {
        double cpu, mib;
        forget(&w.set);
        double l = load(argv[1], memory, bytes, n_ranks, own, &cpu, &mib);
        forget(&w.set);
        double buffered = dd(&w.set, "");
        forget(&w.set);
        double direct = dd(&w.set, "iflag=direct");
        printf("%.2f (%.1f, %.0f) %.2f %.2f\n", gb / l, cpu, mib, gb / buffered, gb / direct);
        fflush(stdout);
    }
    ku_weights_close(&w);
    return 0;
}
