/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Detection of the launcher by its environment variables. One row per launcher, the most specific
 * first. The first complete row wins; rows are never mixed (mpirun inside Slurm sets both).
 *
 *     rank          0 1 2 3 │ 4 5 6 7     ranks are numbered host by host, so the host of rank 6 is
 *     local rank    0 1 2 3 │ 0 1 2 3     known by its first rank, 6 - 2 = 4
 */
#include "base/env.h"
#include "base/err.h"
#include "base/hash.h"
#include "job/private.h"
#include "job/slurm.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct row {
    const char *name, *proof, *rank, *n, *local_rank, *local_n, *host_index;
    /* Variables that identify a job of one user on one host; unset ones are skipped */
    const char *job_id[3];
};
enum { KUMI, TORCHRUN, PLAIN, OPENMPI, MPICH, SLURM, N_ROWS };
static const struct row rows[N_ROWS] = {
    [KUMI] = {"kumi",
              "KUMI_JOB",
              "KUMI_RANK",
              "KUMI_WORLD_SIZE",
              "KUMI_LOCAL_RANK",
              "KUMI_LOCAL_WORLD_SIZE",
              "GROUP_RANK",
              {"KUMI_JOB"}},
    [TORCHRUN] = {"torchrun",
                  "TORCHELASTIC_RUN_ID",
                  "RANK",
                  "WORLD_SIZE",
                  "LOCAL_RANK",
                  "LOCAL_WORLD_SIZE",
                  "GROUP_RANK",
                  {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT"}},
    [PLAIN] = {"RANK and WORLD_SIZE",
               "RANK",
               "RANK",
               "WORLD_SIZE",
               "LOCAL_RANK",
               "LOCAL_WORLD_SIZE",
               "GROUP_RANK",
               {"MASTER_ADDR", "MASTER_PORT", "KUMI_RENDEZVOUS"}},
    [OPENMPI] = {"openmpi",
                 "OMPI_COMM_WORLD_RANK",
                 "OMPI_COMM_WORLD_RANK",
                 "OMPI_COMM_WORLD_SIZE",
                 "OMPI_COMM_WORLD_LOCAL_RANK",
                 "OMPI_COMM_WORLD_LOCAL_SIZE",
                 NULL,
                 {"OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"}},
    /* `srun --mpi=pmi2` sets PMI_RANK and PMI_SIZE too, but nothing about the host. */
    [MPICH] = {"mpich",
               "MPI_LOCALRANKID",
               "PMI_RANK",
               "PMI_SIZE",
               "MPI_LOCALRANKID",
               "MPI_LOCALNRANKS",
               NULL,
               {"PMI_JOBID"}},
    [SLURM] = {"slurm",
               "SLURM_STEP_ID",
               "SLURM_PROCID",
               "SLURM_NTASKS",
               "SLURM_LOCALID",
               NULL, /* of SLURM_STEP_TASKS_PER_NODE */
               "SLURM_NODEID",
               {"SLURM_JOB_ID", "SLURM_STEP_ID"}},
};

static const char *value_of(const char *name)
{
    return name ? ku_env(name) : NULL;
}

/*
 * What the number of ranks comes from. In the shell of salloc, a step of one task, SLURM_NTASKS is
 * that of the allocation.
 */
static const char *count_source(const struct row *row)
{
    static const char *const of_step = "SLURM_STEP_NUM_TASKS";
    return row == &rows[SLURM] && value_of(of_step) ? of_step : row->n;
}

/* What the number of ranks on this host comes from, for messages */
static const char *local_source(const struct row *row)
{
    return row->local_n ? row->local_n : "SLURM_STEP_TASKS_PER_NODE";
}

static bool is_complete(const struct row *row)
{
    return value_of(row->proof) && value_of(row->rank) && value_of(count_source(row));
}

/* Parse an integer in [low, high]. */
static int number_of(const struct row *row, const char *name, int low, int high, int *out)
{
    const char *text = value_of(name);
    char *end;
    errno = 0;
    long x = strtol(text, &end, 10);
    if (errno || *end || end == text || x < low || x > high)
        return KU_ERR(KUMI_EINVAL, "job: %s: %s (launcher: %s); give a number from %d to %d", name,
                      text, row->name, low, high);
    *out = (int)x;
    return 0;
}

/*
 * Hash of the job's id. Without an id the parent process identifies the job on this host, because a
 * launcher starts all ranks of a host from one process.
 */
static uint64_t job_id_of(const struct row *row, int *is_of_parent)
{
    char text[512];
    int len = snprintf(text, sizeof text, "%s", row->name), found = 0;
    for (size_t i = 0; i < sizeof row->job_id / sizeof *row->job_id; i++) {
        const char *value = value_of(row->job_id[i]);
        if (value && len < (int)sizeof text)
            len += snprintf(text + len, sizeof text - (size_t)len, ".%s", value), found = 1;
    }
    if (!found)
        len = snprintf(text, sizeof text, "%s.parent.%ld", row->name, (long)getppid());
    *is_of_parent = !found;
    return ku_hash64(text, len < (int)sizeof text ? (size_t)len : sizeof text - 1);
}

/* The step's tasks on this node, by the list of all nodes' tasks. */
static int read_slurm(const struct row *row, struct ku_env_job *out)
{
    const char *list = value_of("SLURM_STEP_TASKS_PER_NODE");
    struct ku_slurm_tasks tasks;
    if (!list || out->host_index < 0)
        return 0;
    KU_TRY(ku_slurm_read_tasks(list, out->host_index, &tasks));
    if (tasks.n_total != out->n)
        return KU_ERR(KUMI_EINVAL,
                      "job: slurm: SLURM_STEP_TASKS_PER_NODE: %.80s, which is %d tasks, but %s is "
                      "%d; start one step with srun",
                      list, tasks.n_total, count_source(row), out->n);
    out->local_n = tasks.n_here;
    if (out->rank < tasks.n_before || out->rank >= tasks.n_before + tasks.n_here)
        return KU_ERR(KUMI_EINVAL,
                      "job: slurm: rank %d is on node %d, which would have ranks %d to %d; ranks "
                      "are numbered host by host: srun -m block",
                      out->rank, out->host_index, tasks.n_before,
                      tasks.n_before + tasks.n_here - 1);
    return 0;
}

static int read_local(const struct row *row, struct ku_env_job *out)
{
    out->local_n = out->n; /* without a local count: all of them */
    if (value_of(row->host_index))
        KU_TRY(number_of(row, row->host_index, 0, out->n - 1, &out->host_index));
    if (value_of(row->local_n))
        KU_TRY(number_of(row, row->local_n, 1, out->n, &out->local_n));
    else if (row == &rows[SLURM])
        KU_TRY(read_slurm(row, out));
    if (out->local_n > KU_MAX_LOCAL)
        return KU_ERR(KUMI_EINVAL, "job: %s: %d ranks on this host; one host takes 1 to %d",
                      row->name, out->local_n, KU_MAX_LOCAL);
    out->local_rank = out->rank;
    if (value_of(row->local_rank))
        KU_TRY(number_of(row, row->local_rank, 0, out->local_n - 1, &out->local_rank));
    else if (out->local_n < out->n)
        return KU_ERR(KUMI_EINVAL,
                      "job: %s: %s: %d of %d ranks, but %s is not set; set both or neither",
                      row->name, local_source(row), out->local_n, out->n, row->local_rank);
    const int first = out->rank - out->local_rank;
    if (first < 0 || first + out->local_n > out->n)
        return KU_ERR(KUMI_EINVAL,
                      "job: %s: rank %d of %d is local rank %d of %d; ranks are numbered host by "
                      "host: mpirun --map-by slot, srun -m block; without a local count (%s) all "
                      "ranks are on this host",
                      row->name, out->rank, out->n, out->local_rank, out->local_n,
                      local_source(row));
    return 0;
}

static void name_host(struct ku_env_job *out)
{
    char name[256] = "";
    const char *own = value_of("KUMI_HOST");
    if (!own && gethostname(name, sizeof name - 1) < 0)
        name[0] = '\0';
    snprintf(out->host_name, sizeof out->host_name, "%.*s", KU_HOST_NAME_BYTES - 1,
             own       ? own
             : name[0] ? name
                       : "localhost");
}

enum { PORTS = 16, FIRST_PORT = 20000, N_PORTS = 12000 }; /* below those that systems give away */

/*
 * Where the hosts of the job meet. MASTER_PORT is the program's own; the 16 ports after it are
 * tried in turn. Slurm has no port: the job's id chooses one.
 */
static int find_root(const struct row *row, struct ku_env_job *out)
{
    const char *given = value_of("KUMI_RENDEZVOUS"), *master = value_of("MASTER_ADDR");
    const char *nodes = value_of("SLURM_STEP_NODELIST");
    char node[KU_HOST_NAME_BYTES];
    int port = 0, bytes = 0;
    if (given) {
        bytes = snprintf(out->root, sizeof out->root, "%s", given);
    } else if (master && value_of("MASTER_PORT")) {
        KU_TRY(number_of(row, "MASTER_PORT", 1, 65535 - PORTS, &port));
        bytes = snprintf(out->root, sizeof out->root,
                         strchr(master, ':') ? "[%s]:%d+%d" : "%s:%d+%d", master, port + 1, PORTS);
    } else if (row == &rows[SLURM] && nodes) {
        KU_TRY(ku_slurm_first_node(nodes, node));
        port = FIRST_PORT + (int)(out->world_id % N_PORTS);
        snprintf(out->root, sizeof out->root, "%s:%d+%d", node, port, PORTS);
    }
    if (bytes >= (int)sizeof out->root)
        return KU_ERR(KUMI_EINVAL, "job: %s: %.80s..: longer than %d bytes",
                      given ? "KUMI_RENDEZVOUS" : "MASTER_ADDR", out->root, KU_ROOT_BYTES - 1);
    return 0;
}

/*
 * What keeps the sockets of hosts apart that are one machine, beside the host's name. Only where
 * nothing else does it is the first rank: ranks that are not numbered host by host then do not find
 * each other, and say so at their deadline instead of at once.
 */
static uint64_t host_of(const struct row *row, const struct ku_env_job *job)
{
    if (value_of("KUMI_HOST") || row == &rows[OPENMPI] || row == &rows[MPICH])
        return 0;
    return (uint64_t)(job->host_index >= 0 ? job->host_index : job->rank - job->local_rank) + 1;
}

static int read_row(const struct row *row, struct ku_env_job *out)
{
    int is_of_parent;
    KU_TRY(number_of(row, count_source(row), 1, 1 << 24, &out->n));
    KU_TRY(number_of(row, row->rank, 0, out->n - 1, &out->rank));
    out->launcher = row->name;
    KU_TRY(read_local(row, out));
    if (row == &rows[KUMI] && value_of("KUMI_CONTROL_FD"))
        KU_TRY(number_of(row, "KUMI_CONTROL_FD", 0, 1 << 20, &out->control_fd));
    out->job_id = job_id_of(row, &is_of_parent);
    out->world_id = is_of_parent && out->local_n < out->n ? 0 : out->job_id;
    if (out->local_n < out->n) {
        out->job_id = ku_hash64_mix(out->job_id, host_of(row, out));
        KU_TRY(find_root(row, out));
    }
    return 0;
}

/* Variables that contradict each other, where the table alone would take one side in silence. */
static int check_rivals(const struct row *row, const struct ku_env_job *job)
{
    for (int i = OPENMPI; row == &rows[PLAIN] && i <= MPICH; i++) {
        int n, rank;
        if (!is_complete(&rows[i]))
            continue;
        KU_TRY(number_of(&rows[i], rows[i].n, 1, 1 << 24, &n));
        KU_TRY(number_of(&rows[i], rows[i].rank, 0, n - 1, &rank));
        if (n != job->n || rank != job->rank)
            return KU_ERR(KUMI_EINVAL,
                          "job: two launchers: RANK %d of WORLD_SIZE %d, but %s says rank %d of "
                          "%d; unset RANK and WORLD_SIZE, or start without %s",
                          job->rank, job->n, rows[i].name, rank, n, rows[i].name);
    }
    return 0;
}

/* No row is complete. A rank that lacks one variable is not a job of its own. */
static int check_incomplete(void)
{
    const char *n = value_of("PMI_SIZE"), *rank = value_of("RANK"), *size = value_of("WORLD_SIZE");
    if (rank && !size)
        return KU_ERR(KUMI_EINVAL,
                      "job: RANK is %.20s, but WORLD_SIZE is not set; set both or neither", rank);
    if (!rank && size && strcmp(size, "1") != 0)
        return KU_ERR(KUMI_EINVAL,
                      "job: WORLD_SIZE is %.20s, but RANK is not set; set both or neither", size);
    if (value_of("PMI_RANK") && n && strcmp(n, "1") != 0)
        return KU_ERR(KUMI_EINVAL,
                      "job: PMI_RANK is set, PMI_SIZE is %.20s, but MPI_LOCALRANKID is not set, so "
                      "which ranks share a host is unknown; start with srun, with mpiexec of "
                      "MPICH, or set RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE",
                      n);
    return 0;
}

int ku_env_job(struct ku_env_job *out)
{
    *out = (struct ku_env_job){
        .launcher = "none", .n = 1, .local_n = 1, .control_fd = -1, .host_index = -1};
    name_host(out);
    for (int i = 0; i < N_ROWS; i++)
        if (is_complete(&rows[i])) {
            KU_TRY(read_row(&rows[i], out));
            return check_rivals(&rows[i], out);
        }
    return check_incomplete();
}
