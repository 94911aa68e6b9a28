/* SPDX-License-Identifier: Apache-2.0 */
/* links: base job */
#include "base/env.h"
#include "base/err.h"
#include "fuzz.h"
#include "job/private.h"

#include <stdlib.h>
#include <string.h>

/*
 * What a launcher may leave in the environment: lines of a letter, which chooses a variable, and
 * its value. Refused, or a place in the job that the hosts' ranks can have. The corpora
 * have indices of `name`: a new variable stands last.
 */
static const char *const name[] = {"KUMI_JOB",
                                   "KUMI_RANK",
                                   "KUMI_WORLD_SIZE",
                                   "KUMI_LOCAL_RANK",
                                   "KUMI_LOCAL_WORLD_SIZE",
                                   "KUMI_CONTROL_FD",
                                   "KUMI_HOST",
                                   "KUMI_RENDEZVOUS",
                                   "KUMI_THREADS",
                                   "GROUP_RANK",
                                   "TORCHELASTIC_RUN_ID",
                                   "TORCHELASTIC_RESTART_COUNT",
                                   "RANK",
                                   "WORLD_SIZE",
                                   "LOCAL_RANK",
                                   "LOCAL_WORLD_SIZE",
                                   "MASTER_ADDR",
                                   "MASTER_PORT",
                                   "OMPI_COMM_WORLD_RANK",
                                   "OMPI_COMM_WORLD_SIZE",
                                   "OMPI_COMM_WORLD_LOCAL_RANK",
                                   "OMPI_COMM_WORLD_LOCAL_SIZE",
                                   "OMPI_MCA_ess_base_jobid",
                                   "PMIX_NAMESPACE",
                                   "MPI_LOCALRANKID",
                                   "MPI_LOCALNRANKS",
                                   "PMI_RANK",
                                   "PMI_SIZE",
                                   "PMI_JOBID",
                                   "SLURM_STEP_ID",
                                   "SLURM_JOB_ID",
                                   "SLURM_PROCID",
                                   "SLURM_NTASKS",
                                   "SLURM_LOCALID",
                                   "SLURM_NODEID",
                                   "SLURM_STEP_TASKS_PER_NODE",
                                   "SLURM_STEP_NODELIST",
                                   "SLURM_STEP_NUM_TASKS"};
enum { N_NAMES = sizeof name / sizeof *name, FIRST = '0', TEXT_MAX = 8192 };

static void check(const struct ku_env_job *job)
{
    KU_ASSERT(job->n >= 1 && job->rank >= 0 && job->rank < job->n);
    KU_ASSERT(job->local_n >= 1 && job->local_n <= KU_MAX_LOCAL);
    KU_ASSERT(job->local_rank >= 0 && job->local_rank < job->local_n);
    const int first = job->rank - job->local_rank;
    KU_ASSERT(first >= 0 && first + job->local_n <= job->n);
    KU_ASSERT(job->host_index >= -1 && job->host_index < job->n);
    KU_ASSERT(job->host_name[0] &&
              strnlen(job->host_name, KU_HOST_NAME_BYTES) < KU_HOST_NAME_BYTES);
    KU_ASSERT(strnlen(job->root, KU_ROOT_BYTES) < KU_ROOT_BYTES);
    KU_ASSERT(job->control_fd >= -1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char text[TEXT_MAX], *save = NULL;
    struct ku_env_job job;
    if (bytes >= sizeof text)
        return 0;
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    for (size_t i = 0; i < N_NAMES; i++)
        unsetenv(name[i]);
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        KU_ASSERT(setenv(name[(unsigned char)(line[0] - FIRST) % N_NAMES], line + 1, 1) == 0);
    const int status = ku_env_job(&job), threads = ku_env_check_threads();
    KU_ASSERT(threads == 0 || threads == KUMI_EINVAL);
    KU_ASSERT(status == 0 || (status == KUMI_EINVAL && ku_err_get()->text[0]));
    if (status == 0)
        check(&job);
    return 0;
}
