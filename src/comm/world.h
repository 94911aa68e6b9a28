/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_WORLD_H
#define KU_COMM_WORLD_H

#include "base/err.h"
#include "job/job.h"

/*
 * A job with its world communicator. On return from ku_comm_join all ranks have joined.
 */

/*
 * Join the job that the environment describes (ku_job_open), and create its world.
 *
 *   opts   NULL: defaults
 *   job    set on success; ku_comm_leave frees it
 *
 * Collective. Blocks: at most join_timeout_ns, then for the ranks that have connected.
 * Errors: those of ku_job_open; KUMI_EINVAL (transport, chaos); the job's root cause.
 */
KU_STATUS ku_comm_join(const struct ku_job_opts *opts, struct ku_job **job);
/*
 * Leave the job and free it. Takes NULL. Collective: a rank that still waits for this one reports
 * KUMI_EMISMATCH.
 */
KU_STATUS ku_comm_leave(struct ku_job *job);
/*
 * Run fn on n ranks that are threads of this process, each with its own job (transport `thread`);
 * with opts->hosts on pretended hosts.
 * The function joins before fn and leaves after it. A rank whose fn fails has left the job. Returns
 * 0 when every fn returned 0; else the root cause, or without one the status of the lowest failed
 * rank.
 */
KU_STATUS ku_comm_threads(int n, const struct ku_job_opts *opts,
                          int (*fn)(struct ku_job *job, void *arg), void *arg);

/*
 * The ranks that compete with this one for CPUs, and their number of CPUs. Hosts on one kernel are
 * counted together where their ranks may run on the same CPUs.
 */
void ku_comm_cores(const struct ku_job *job, int *n_ranks, int *n_cpus);

/*
 * What carries messages between the hosts: "tcp over eth0 10.0.0.1", with this host's interface and
 * address, or "mpi (openmpi): …"; on one host "shm".
 */
void ku_comm_describe(const struct ku_job *job, char *text, size_t cap);

#endif
