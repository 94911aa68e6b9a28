/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CONFIG_OPTIMIZER_H
#define KU_CONFIG_OPTIMIZER_H

#include <stdbool.h>

#include "base/err.h"
#include "pass/pass.h"
#include "config/config.h"

/*
 * The optimizer config: translates the sections optimizer, schedule and precision (loss scale) to
 * the compiler's attributes. Order of calls for one set of attributes: ku_rule_optimizer,
 * ku_rule_schedule, the caller's values that count steps or epochs, ku_rule_args.
 */

/* The factor of optimizer.lr for this batch: optimizer.lr_scaling (Goyal et al. 2017); 1 if
 * null. */
double ku_rule_lr_factor(const struct ku_config *c, int64_t global_batch);
/* Sets the optimizer, its attributes, and the selections decay and adapt. Patterns are borrowed. */
void ku_rule_optimizer(const struct ku_config *c, int64_t global_batch, struct ku_compile_opts *o);
/* optimizer.groups as [c->optimizer_groups.n], freed with ku_free, patterns borrowed; NULL: no
 * memory. */
struct ku_update_group *ku_rule_groups(const struct ku_config *c);
/* Sets the schedule and its attributes, except those that count steps or epochs. */
void ku_rule_schedule(const struct ku_config *c, struct ku_attrs *a);
/* Whether the schedule starts from optimizer.lr and its scaling, not from a rate of its own. */
bool ku_rule_reads_lr(const struct ku_config *c);
/* Whether the schedule has an end that neither decay_steps nor total_num_steps gives. */
bool ku_rule_needs_end(const struct ku_config *c);
/*
 * Set the schedule's arguments (op/schedule.h). Call last: reads a->lr, a->schedule and a->decay.
 *
 *   milestone   [c->schedule_milestones.n], in the schedule's unit (updates or epochs)
 */
void ku_rule_args(const struct ku_config *c, const int64_t *milestone, struct ku_attrs *a);
/*
 * Set the loss scale of *a; the scaler's attributes are already set.
 *
 *   scale   NaN: dynamic with compute f16, else none; 0: dynamic; else a static scale
 *
 * Errors: EINVAL, invalid attributes or scale.
 */
KU_STATUS ku_rule_loss_scale(enum kumi_dtype compute, double scale, struct ku_attrs *a);
/* Sets loss scaler and scale from the section precision. Errors: EINVAL. */
KU_STATUS ku_rule_scaler(const struct ku_config *c, struct ku_compile_opts *o);
/* Checks conditions between keys of these sections. Errors: EINVAL. */
KU_STATUS ku_rule_check(const struct ku_config *c);

#endif
