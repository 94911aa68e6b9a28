/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PLAN_VOLUME_TABLE_H
#define KU_PLAN_VOLUME_TABLE_H

#include "plan/plan.h"
#include "sim/volume.h"

/* Communication volumes of the parallel layout, as text and as JSON. */
void ku_plan_print_volumes(const struct ku_plan *p, struct ku_str *out);
json_t *ku_plan_volumes_json(const struct ku_plan *p);

#endif
