/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_STEP_TIMES_H
#define KU_TRAIN_STEP_TIMES_H

#include "exec/exec.h"

/*
 * What a trial leaves: every rank's step times, in DIR/rank-R.json as
 * {"rank", "unit", "items", "step_ms", "exposed_comm_ms", "wait_ms", "data_ms"}, an array of
 * numbers each, in the order of the steps. items: what the step's loss counted, of all ranks, in
 * units "tokens" or "samples". step_ms holds data_ms; wait_ms is part of exposed_comm_ms.
 */
struct ku_trial;
int ku_trial_create(int64_t n_steps, struct ku_trial **trial); /* KUMI_ENOMEM */
void ku_trial_destroy(struct ku_trial *trial);                 /* NULL is fine */
/* Of one more step; those behind n_steps are dropped. NULL: nothing happens. */
void ku_trial_note(struct ku_trial *trial, const struct ku_exec_times *times, int64_t data_ns,
                   int64_t items);
/* KUMI_ESTORAGE, ENOMEM. */
int ku_trial_write(const struct ku_trial *trial, int rank, const char *unit, const char *dir);

#endif
