/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_CONFIGURE_H
#define KU_TRAIN_CONFIGURE_H

#include "base/err.h"
#include "kumi/run.h"
#include "train/session.h"

/* Creates a session from the settings of kumi/run.h. */

/* KUMI_EINVAL without a configuration file. */
KU_STATUS ku_settings_check(const struct kumi_settings *settings);
/* A program has one text for all ranks, so the cost of a plan does not grow with their number. */
enum { KU_MAX_PLANNED = 1 << 20 };
/*
 * Configure a session for n ranks, 1 to KU_MAX_PLANNED, which need not fit on this host. A command
 * may do so several times and calls ku_deepspeed_warn once.
 *
 *   s      all zero at entry but for host_ranks and has_even_hosts; finished on failure
 *   more   up to 16 settings that override the user's, those of a DeepSpeed configuration
 *          included, NULL-terminated; NULL: none
 */
KU_STATUS ku_settings_configure(struct ku_session *s, const struct kumi_settings *settings,
                                int n_ranks, const char *const *more);
/* ps.workers; 0: no parameter server. */
KU_STATUS ku_settings_workers(const struct kumi_settings *settings, int *n);
/*
 * Configure one side of the parameter server of ps.workers, for plans and checks.
 *
 *   update_by   KU_UPDATE_WORKER or KU_UPDATE_SERVER
 */
KU_STATUS ku_settings_configure_side(struct ku_session *s, const struct kumi_settings *settings,
                                     int update_by);
/* Open the data if the batch shapes depend on it (a parallel corpus). */
KU_STATUS ku_session_open_shapes(struct ku_session *s);
/* The compiler's description of the configured device. */
struct ku_target ku_session_target(const struct ku_session *s);

#endif
