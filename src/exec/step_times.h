/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_EXEC_STEP_TIMES_H
#define KU_EXEC_STEP_TIMES_H

#include "base/err.h"
#include "exec/exec.h"

/*
 * Result of a timed run: the step times of each rank, in DIR/rank-R.json as {"rank", "unit",
 * "items", "step_ms", "exposed_comm_ms", "wait_ms", "data_ms"}. The last five are arrays with one
 * number per step. items: loss positions of the step over all ranks, in units "tokens" or
 * "samples". step_ms includes data_ms; exposed_comm_ms includes wait_ms.
 */
struct ku_step_times;
KU_STATUS ku_step_times_create(int64_t n_steps, struct ku_step_times **times); /* KUMI_ENOMEM */
void ku_step_times_destroy(struct ku_step_times *times);                       /* NULL is allowed */
/*
 * Record one step. Steps beyond n_steps are dropped. times NULL: no effect.
 */
void ku_step_times_note(struct ku_step_times *times, const struct ku_exec_times *step,
                        int64_t data_ns, int64_t items);
/*
 * Write the file. Errors: KUMI_ESTORAGE, ENOMEM.
 */
KU_STATUS ku_step_times_write(const struct ku_step_times *times, int rank, const char *unit,
                              const char *dir);

#endif
