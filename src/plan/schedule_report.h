/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PLAN_SCHEDULE_REPORT_H
#define KU_PLAN_SCHEDULE_REPORT_H

#include "base/err.h"
#include "pass/pipe/block_schedule.h"

/*
 * A pipeline schedule in time: schedule_table.c prints it, schedule_picture.c draws it. A unit of
 * time is the mean cost of an F; with unit costs that of each F, I and W, and transfers take none.
 * The optimizer begins on all coordinates at the makespan; its time is not modelled.
 */
struct ku_plan_schedule {
    const struct ku_pp_schedule *s;
    const char *name;
    const int *layers;                /* [n_stages] */
    const struct ku_stage_cost *cost; /* [n_stages] in units; NULL: unit costs */
    double *held;                     /* [n_ranks] most bytes between the blocks of a rank */
    double *begin, *end;              /* per block of the schedule */
    int64_t *reader;                  /* per block: on another coordinate, or KU_NO_BLOCK */
    double *idle;                     /* [n_ranks] share of the span */
    double makespan, span;
    double bubble, joint_bubble; /* shares of the span, and of the makespan */
};
/* "F12", or with several stages on a coordinate "3F12": stage, kind, micro-batch. */
void ku_schedule_label(const struct ku_pp_schedule *s, const struct ku_block *b, char out[24]);
/* What a unit of time is, for headings. */
const char *ku_schedule_units(const struct ku_plan_schedule *t);
/* path: as ku_picture_write takes it. */
KU_STATUS ku_plan_schedule_draw(const struct ku_plan_schedule *t, const char *path);

#endif
