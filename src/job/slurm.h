/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_JOB_SLURM_H
#define KU_JOB_SLURM_H

#include "base/err.h"
#include "job/hosts.h"

/* Slurm's compressed lists, as its variables hold them. */

/* Where a node's tasks stand among those of a step that are numbered node by node (-m block). */
struct ku_slurm_tasks {
    int n_before, n_here, n_total;
};
/*
 * Read SLURM_STEP_TASKS_PER_NODE, "2(x3),1": three nodes with two tasks, then one with one.
 *
 *   node   SLURM_NODEID, from 0
 *
 * Errors: KUMI_EINVAL (syntax; no such node; more tasks than a job takes).
 */
KU_STATUS ku_slurm_read_tasks(const char *list, int node, struct ku_slurm_tasks *tasks);
/*
 * The first name of SLURM_STEP_NODELIST: "n01" of "n[01-03,7],m4", "r1n2" of "r[1-2]n[2-3]".
 *
 * Errors: KUMI_EINVAL (syntax; a name longer than KU_HOST_NAME_BYTES - 1).
 */
KU_STATUS ku_slurm_first_node(const char *list, char name[KU_HOST_NAME_BYTES]);

#endif
