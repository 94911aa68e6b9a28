/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_COMM_LAUNCHED_H
#define TESTS_COMM_LAUNCHED_H

/*
 * A test program again, as the ranks of jobs on hosts that this machine pretends to be. Ranks are
 * processes, started by `kumi run` over TCP, and over MPI by the launcher of each make that is
 * installed; plain and through chaos.
 *
 *     launched_all(&share, "words")         in a test: a share of the jobs, the first of each kind
 *     launched_is_rank(argc, argv)          in main: it is `PROGRAM rank HOSTS TURN words`, which
 *                                           prints a line "..: fine" and exits with 0
 */
#include "mpi_makes.h"
#include "sample.h"

static inline int launched_n_ranks(const char *hosts)
{
    int n = 0;
    for (char *end; *hosts; hosts = *end ? end + 1 : end)
        n += (int)strtol(hosts, &end, 10);
    return n;
}

static inline void launched_set(const char *name, const char *prefix, int value)
{
    char text[32];
    snprintf(text, sizeof text, "%s%d", prefix, value);
    setenv(name, text, 1);
}

/* A launcher of MPI has started all ranks on one host: which of `hosts` is this rank's? */
static inline void launched_place(const char *hosts)
{
    const int is_openmpi = getenv("OMPI_COMM_WORLD_RANK") != NULL;
    const char *rank = getenv(is_openmpi ? "OMPI_COMM_WORLD_RANK" : "PMI_RANK");
    int host = 0, local = rank ? atoi(rank) : 0;
    char *end;
    int n = (int)strtol(hosts, &end, 10);
    if (!rank) /* of kumi run, which knows hosts */
        return;
    for (; local >= n && *end; host++) {
        local -= n;
        n = (int)strtol(end + 1, &end, 10);
    }
    launched_set("KUMI_HOST", "h", host);
    launched_set(is_openmpi ? "OMPI_COMM_WORLD_LOCAL_RANK" : "MPI_LOCALRANKID", "", local);
    launched_set(is_openmpi ? "OMPI_COMM_WORLD_LOCAL_SIZE" : "MPI_LOCALNRANKS", "", n);
}

static inline int launched_is_rank(int argc, char **argv)
{
    if (argc < 4 || strcmp(argv[1], "rank") != 0)
        return 0;
    launched_place(argv[2]);
    return 1;
}

enum { LAUNCHED_BY_KUMI = N_MPI_MAKES, N_LAUNCHED_BY };
struct launched {
    size_t by; /* the make of MPI, or LAUNCHED_BY_KUMI */
    const char *hosts, *chaos;
    int turn;
};

static inline const char *launched_name(size_t by)
{
    return by == LAUNCHED_BY_KUMI ? "kumi run" : mpi_makes[by].name;
}

static inline int launched_has(size_t by)
{
    if (by != LAUNCHED_BY_KUMI)
        return mpi_has_make(by);
    if (access(KUMI_BINARY_DIR "/kumi", X_OK) == 0)
        return 1;
    print_message("kumi run: the command is not built; skipped\n");
    return 0;
}

/* What stands before the program */
static inline void launched_launcher(const struct launched *job, char *text, size_t cap)
{
    char options[512];
    size_t at = 0;
    if (job->by != LAUNCHED_BY_KUMI) {
        mpi_options(job->by, "tcp,self", options, sizeof options);
        snprintf(text, cap, "%s %s -np %d", mpi_launcher(job->by), options,
                 launched_n_ranks(job->hosts));
        return;
    }
    at += (size_t)snprintf(text, cap, "'" KUMI_BINARY_DIR "/kumi' run --rsh none -H ");
    const char *p = job->hosts;
    for (int host = 0; *p; host++) {
        char *end;
        const int n = (int)strtol(p, &end, 10);
        at += (size_t)snprintf(text + at, cap - at, "%sh%d:%d", host ? "," : "", host, n);
        p = *end ? end + 1 : end;
    }
    snprintf(text + at, cap - at, " --");
}

/*
 * Returns the exit code. Two launchers of Open MPI at once would create and remove one folder, so
 * each has its own.
 */
static inline int launched_run(const struct launched *job, const char *words, char *said,
                               size_t cap)
{
    char self[4096], launcher[8192], command[16384];
    assert_non_null(realpath("/proc/self/exe", self));
    launched_launcher(job, launcher, sizeof launcher);
    snprintf(command, sizeof command,
             MPI_UNSET "unset KUMI_TEST_ALL; dir=$(mktemp -d) || exit 1; KUMI_CHAOS='%s' "
                       "OMPI_MCA_orte_tmpdir_base=$dir OMPI_MCA_mpi_yield_when_idle=1 "
                       "KUMI_PLUGINS='" KUMI_BINARY_DIR
                       "' timeout -k 5 300 %s '%s' rank %s %d %s 2>&1 </dev/null; code=$?; "
                       "rm -rf \"$dir\"; exit $code",
             job->chaos ? job->chaos : "", launcher, self, job->hosts, job->turn, words);
    return run_shell(command, said, cap);
}

/*
 * Every rank is fine; returns what they print, until the next call. MPICH 4.0 may hang in
 * MPI_Finalize; after 5 s its ranks end without it, and its proxy fails.
 */
static inline const char *launched_expect(const struct launched *job, const char *words)
{
    static char said[65536];
    int code = 0;
    for (int i = 0; i < 3; i++) {
        code = launched_run(job, words, said, sizeof said);
        if (!strstr(said, "HYDU_sock_write"))
            break;
    }
    if (code || n_fine(said) != launched_n_ranks(job->hosts))
        fail_msg("%s, hosts %s, chaos %s: exit code %d\n%s", launched_name(job->by), job->hosts,
                 job->chaos ? job->chaos : "none", code, said);
    return said;
}

/* TURN differs from job to job. The first jobs of the launchers, plain and through chaos, have
 * different layouts. */
static inline void launched_all(struct sample *share, const char *words)
{
    static const char *const hosts[] = {"2,2", "1,3", "1,1,1", "1,1", "3,1,2"};
    static const char *const chaos[] = {NULL,
                                        "delay=50us,jitter=200us,short=30000,double=3,seed=3"};
    enum { N_HOSTS = sizeof hosts / sizeof *hosts, N_CHAOS = sizeof chaos / sizeof *chaos };
    for (size_t by = 0; by < N_LAUNCHED_BY; by++) {
        const int has = launched_has(by);
        for (size_t i = 0; has && i < (size_t)N_HOSTS * N_CHAOS; i++) {
            const size_t c = i / N_HOSTS, row = by * N_HOSTS * N_CHAOS + i;
            const struct launched job = {.by = by,
                                         .hosts = hosts[(row + by + c) % N_HOSTS],
                                         .chaos = chaos[c],
                                         .turn = (int)row};
            if (sample_takes(share, (int)row, (int)(by * N_CHAOS + c), -1))
                launched_expect(&job, words);
        }
    }
    sample_end(share, "jobs");
}

#endif
