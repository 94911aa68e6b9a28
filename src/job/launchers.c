/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Detection of the launcher by its environment variables. One row per launcher, the most specific
 * first. The first complete row wins; rows are never mixed (mpirun inside Slurm sets both).
 */
#include "base/env.h"
#include "base/err.h"
#include "base/hash.h"
#include "job/private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct row {
    const char *name, *proof, *rank, *n, *local_rank, *local_n;
    /* Variables that identify a job of one user on one host; unset ones are skipped */
    const char *job_id[3];
};
static const struct row rows[] = {
    {"kumi",
     "KUMI_JOB",
     "KUMI_RANK",
     "KUMI_WORLD_SIZE",
     "KUMI_RANK",
     "KUMI_WORLD_SIZE",
     {"KUMI_JOB"}},
    {"torchrun",
     "TORCHELASTIC_RUN_ID",
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "LOCAL_WORLD_SIZE",
     {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT"}},
    {"RANK and WORLD_SIZE",
     "RANK",
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "LOCAL_WORLD_SIZE",
     {"MASTER_ADDR", "MASTER_PORT"}},
    {"openmpi",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     {"OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"}},
    {"mpich",
     "PMI_RANK",
     "PMI_RANK",
     "PMI_SIZE",
     "MPI_LOCALRANKID",
     "MPI_LOCALNRANKS",
     {"PMI_JOBID"}},
    {"slurm",
     "SLURM_STEP_ID",
     "SLURM_PROCID",
     "SLURM_NTASKS",
     "SLURM_LOCALID",
     NULL,
     {"SLURM_JOB_ID", "SLURM_STEP_ID"}},
};

static const char *value_of(const char *name)
{
    return name ? ku_env(name) : NULL;
}

/* Parse an integer in [low, high]. */
static int number_of(const struct row *row, const char *name, int low, int high, int *out)
{
    const char *text = value_of(name);
    char *end;
    errno = 0;
    long x = strtol(text, &end, 10);
    if (errno || *end || end == text || x < low || x > high)
        return KU_ERR(KUMI_EINVAL, "job: %s: %s (as %s sets it); give a number from %d to %d", name,
                      text, row->name, low, high);
    *out = (int)x;
    return 0;
}

/*
 * Hash of the job's id. Without an id the parent process identifies the job, because a launcher
 * starts all ranks of a host from one process.
 */
static uint64_t job_id_of(const struct row *row)
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
    return ku_hash64(text, len < (int)sizeof text ? (size_t)len : sizeof text - 1);
}

static int read_row(const struct row *row, struct ku_env_job *out)
{
    KU_TRY(number_of(row, row->n, 1, 1 << 24, &out->n));
    KU_TRY(number_of(row, row->rank, 0, out->n - 1, &out->rank));
    out->launcher = row->name;
    out->local_rank = out->rank;
    out->local_n = out->n;
    if (value_of(row->local_n))
        KU_TRY(number_of(row, row->local_n, 1, out->n, &out->local_n));
    if (out->local_n != out->n)
        return KU_ERR(
            KUMI_EINVAL,
            "job: %s: %d ranks, %d of them on this host; all ranks of a job must run on one host",
            row->name, out->n, out->local_n);
    if (out->n > KU_MAX_LOCAL)
        return KU_ERR(KUMI_EINVAL, "job: %s: %d ranks; one host takes 1 to %d", row->name, out->n,
                      KU_MAX_LOCAL);
    if (value_of(row->local_rank)) {
        KU_TRY(number_of(row, row->local_rank, 0, out->n - 1, &out->local_rank));
        if (out->local_rank != out->rank)
            return KU_ERR(
                KUMI_EINVAL,
                "job: %s: rank %d is local rank %d; all ranks of a job must run on one host",
                row->name, out->rank, out->local_rank);
    }
    if (row == rows && value_of("KUMI_CONTROL_FD"))
        KU_TRY(number_of(row, "KUMI_CONTROL_FD", 0, 1 << 20, &out->control_fd));
    out->job_id = job_id_of(row);
    return 0;
}

int ku_env_job(struct ku_env_job *out)
{
    *out = (struct ku_env_job){.launcher = "none", .n = 1, .local_n = 1, .control_fd = -1};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (value_of(rows[i].proof) && value_of(rows[i].rank) && value_of(rows[i].n))
            return read_row(&rows[i], out);
    return 0;
}
