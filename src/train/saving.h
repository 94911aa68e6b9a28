/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_SAVING_H
#define KU_TRAIN_SAVING_H

#include "base/err.h"
#include "train/trainer.h"

/*
 * Asynchronous checkpoints, written while training continues. Between two updates the state does
 * not change, so each rank's writing thread copies its part directly from the arenas. Before an
 * instruction overwrites a tensor of the state, a write barrier in exec waits until all writing
 * threads have copied it. The threads copy in the order of the updates; with a staging buffer they
 * copy ahead of the disk.
 *
 *     start   create the folder; the thread of each rank begins
 *     poll    once per step: when all threads are done, rank 0's thread commits the checkpoint
 *     wait    until it is committed
 *
 * All calls are collective and made by the rank's main thread. A failure on any rank is the result
 * on all ranks (KUMI_ESTORAGE, KUMI_ENOMEM); earlier checkpoints stay valid and the job continues.
 */
struct ku_saving;
/*
 * Create for the trainer's lifetime, with the staging buffer that the trainer planned. Collective.
 */
KU_STATUS ku_saving_create(struct ku_trainer *t, struct ku_saving **s);
/*
 * Collective; NULL is allowed. A pending checkpoint is abandoned.
 */
void ku_saving_destroy(struct ku_saving *s);

/*
 * Begin to write the current state. No checkpoint may be pending.
 *
 *   desc     as for ku_trainer_save; what it points to must stay valid until the checkpoint ends
 *   status   < 0: this rank could not prepare desc
 */
KU_STATUS ku_saving_start(struct ku_saving *s, const struct ku_ckpt_desc *desc, int status);
/* 1 from a successful start until poll or wait has returned the result. */
bool ku_saving_is_pending(const struct ku_saving *s);
/* The result of the pending checkpoint, if it has ended, which ku_saving_is_pending tells. */
KU_STATUS ku_saving_poll(struct ku_saving *s);
KU_STATUS ku_saving_wait(struct ku_saving *s); /* 0 if none is pending */

#endif
