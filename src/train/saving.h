/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_SAVING_H
#define KU_TRAIN_SAVING_H

#include "train/trainer.h"

/*
 * Checkpoints that are written while training goes on. State is immutable from one update to the
 * next, so each rank's writing thread copies its part from the live arenas; before an instruction
 * writes a tensor of the state (a gate of exec) the rank waits until all who write it to the disk
 * have copied it. The writer follows the order of updates; with staging it copies ahead of the
 * disk.
 *
 *     start   the folder; every rank's thread begins
 *     poll    once a step: when every thread is done, rank 0's gives the checkpoint its name
 *     wait    until that is so
 *
 * All are collective and belong to the rank's main thread. A failure of any rank is every rank's
 * result (KUMI_ESTORAGE, KUMI_ENOMEM), leaves the checkpoints before it whole and does not end the
 * job.
 */
struct ku_saving;
/* For the trainer's life; staging as the trainer planned it. Collective. */
int ku_saving_create(struct ku_trainer *t, struct ku_saving **s);
/* Collective; NULL is fine. What is still being written is given up. */
void ku_saving_destroy(struct ku_saving *s);

/*
 * Begin to write the present state. Nothing may be pending.
 *
 *   desc     as ku_trainer_save; what it points to stays until the checkpoint is over
 *   status   < 0: this rank could not prepare desc
 */
int ku_saving_start(struct ku_saving *s, const struct ku_ckpt_desc *desc, int status);
/* 1 from a start that succeeded until poll or wait said how it ended. */
int ku_saving_is_pending(const struct ku_saving *s);
/* How the pending checkpoint ended, if it did: ku_saving_is_pending tells. */
int ku_saving_poll(struct ku_saving *s);
int ku_saving_wait(struct ku_saving *s); /* 0 without one */

#endif
