/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_INEFFECTIVE_KEYS_H
#define KU_TRAIN_INEFFECTIVE_KEYS_H

#include "train/session.h"

/* What a configuration says without being wrong, and without doing what its author may expect. */

/* The given keys that have no effect (effect.def), "a.b (c.d is x; it is for y z), ..", appended to
 * out. Returns how many. */
int ku_effect_list(const struct ku_session *s, struct ku_str *out);

/*
 * One line on stderr for each of: keys without effect; a learning rate that is 0 in all steps; a
 * warm-up that the run does not outlast; a schedule whose end is the checkpoint's, where the run
 * has another length. The length of the run and the schedule must be known (ku_session_open_data).
 */
void ku_effect_warn(const struct ku_session *s);

#endif
