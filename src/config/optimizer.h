/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CONFIG_OPTIMIZER_H
#define KU_CONFIG_OPTIMIZER_H

#include "pass/pass.h"
#include "config/config.h"

/* What a configuration's optimizer and schedule sections say, as the compiler is told. */

/* What optimizer.lr is multiplied by for this batch: optimizer.lr_scaling (Goyal et al. 2017), 1
 * without. */
double ku_rule_lr_factor(const struct ku_config *c, int64_t global_batch);
/* The optimizer, its attributes, which parameters decay and adapt. Patterns stay the
 * configuration's. */
void ku_rule_optimizer(const struct ku_config *c, int64_t global_batch, struct ku_compile_opts *o);
/* optimizer.groups as the compiler is told: [c->optimizer_groups.n], for ku_free; NULL: no memory.
 */
struct ku_update_group *ku_rule_groups(const struct ku_config *c);
/* The schedule and its attributes but those that count steps or epochs. */
void ku_rule_schedule(const struct ku_config *c, struct ku_attrs *a);
/*
 * The schedule's list (op/schedule.h), behind everything else of *a that follows from the sections.
 *
 *   milestone   [c->schedule_milestones.n], as the schedule counts
 */
void ku_rule_args(const struct ku_config *c, const int64_t *milestone, struct ku_attrs *a);
/*
 * The loss scale of *a, whose scaler's rule is there, or none.
 *
 *   scale   NaN: dynamic with compute f16, else none; 0: dynamic; else fixed
 *
 * Errors: KUMI_EINVAL: a rule or a scale that means nothing.
 */
int ku_rule_loss_scale(enum kumi_dtype compute, double scale, struct ku_attrs *a);
/* The same of the section precision. */
int ku_rule_scaler(const struct ku_config *c, struct ku_compile_opts *o);
/* What no single key of the two sections shows. Errors: KUMI_EINVAL. */
int ku_rule_check(const struct ku_config *c);

#endif
