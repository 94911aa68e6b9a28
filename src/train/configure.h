/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_CONFIGURE_H
#define KU_TRAIN_CONFIGURE_H

#include "kumi/run.h"
#include "train/session.h"

/* A session from the settings of kumi/run.h. */

/* KUMI_EINVAL without a file. */
int ku_settings_check(const struct kumi_settings *settings);
/* Configures a session for n ranks of one host, with up to 6 more settings (NULL-terminated; NULL:
 * none). s is zero at entry and is finished on failure. */
int ku_settings_configure(struct ku_session *s, const struct kumi_settings *settings, int n_ranks,
                          const char *const *more);
/* Opens the data where they decide the batch shapes: sentence pairs. */
int ku_session_open_shapes(struct ku_session *s);
/* How the compiler sees the configured device. */
struct ku_target ku_session_target(const struct ku_session *s);

#endif
