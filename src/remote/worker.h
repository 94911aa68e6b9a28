/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_REMOTE_WORKER_H
#define KU_REMOTE_WORKER_H

#include "base/err.h"
#include "train/remote_update.h"
#include "train/trainer.h"

/*
 * A worker of a parameter server: a trainer whose step ends with pushes.
 *
 *     ku_remote_begin   pull, write the parameters, compute copies       step = what to do next
 *     fill ports
 *     ku_remote_step    forward, backward; each gradient is pushed when it is complete
 */
struct ku_remote_worker;
/* Of the error feedback of a worker that compresses: zeros are defaults. */
struct ku_remote_worker_opts {
    int64_t save_every; /* steps: it is saved where checkpoints are; 0: never */
    int keep;           /* that many saved ones; 0: all */
};
/*
 * Borrows trainer (compiled with KU_UPDATE_WORKER) and link.
 *
 *   o   NULL: defaults
 *
 * Errors: KUMI_ENOMEM, ESTORAGE.
 */
KU_STATUS ku_remote_worker_create(struct ku_trainer *t, const struct ku_remote_link *link,
                                  const struct ku_remote_worker_opts *o,
                                  struct ku_remote_worker **w);
void ku_remote_worker_destroy(struct ku_remote_worker *w); /* NULL is allowed */
/*
 * Pull the parameters for a step.
 *
 *   step     in: the step that this worker would do next; out: the step to do, a later one if the
 *            servers went on without this worker's last push
 *   report   out: of the last update, KU_REPORT_WORDS; zeros before the first one
 *
 * Blocks until the servers have them. Errors: those of the link.
 */
KU_STATUS ku_remote_begin(struct ku_remote_worker *w, int64_t *step, const double **report);
/* Run the step on filled ports and push its gradients. */
KU_STATUS ku_remote_step(struct ku_remote_worker *w, int64_t step);

#endif
