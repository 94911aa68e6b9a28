/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_INEFFECTIVE_KEYS_H
#define KU_TRAIN_INEFFECTIVE_KEYS_H

#include "train/session.h"

/* Finds settings of a valid configuration that probably do not do what the user expects. */

/*
 * Append the given keys that have no effect (ineffective_keys.def), "a.b (c.d: x; it is for y z),
 * ..", to out. Returns their number.
 */
int ku_effect_list(const struct ku_session *s, struct ku_str *out);

/*
 * Give applied keys of a DeepSpeed configuration that set only keys without effect the verdict "no
 * effect" and the reason. Needs configuration, model and sharding.
 */
void ku_effect_deepspeed(const struct ku_session *s);

/*
 * One message for each of: keys without effect; a learning rate of 0 in all steps; a
 * warm-up that is longer than the run; a schedule end from the checkpoint in a run of another
 * length. Needs the length of the run and the schedule (ku_session_open_data).
 */
void ku_effect_warn(const struct ku_session *s);

#endif
