/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PLAN_PLAN_H
#define KU_PLAN_PLAN_H

#include "kumi/run.h"
#include "sim/roofline.h"
#include "train/session.h"

/* The programs of a configuration on n ranks of one host, compiled as a run compiles them: what the
 * readers behind `kumi plan` have in common. */
struct ku_plan {
    struct ku_session s;
    struct ku_program *program[KU_N_PROGS]; /* of the batch shape that maps most: */
    int shape;
    size_t arena_bytes[KU_N_ARENAS]; /* what a run maps */
    size_t loader_bytes;             /* rows read ahead, a rank */
    uint64_t rank_bytes, host_bytes; /* a rank's own; all ranks and what they share */
    uint64_t table_bytes;            /* page tables of all ranks, 8 bytes a page */
};
/* more: settings over the user's, NULL-terminated; NULL: none. watch: of a line that covers more
 * than this plan; NULL: a line of its own. Nothing to finish on failure. */
int ku_plan_init(struct ku_plan *p, const struct kumi_settings *settings, int n_ranks,
                 const char *const *more, const struct ku_watch *watch);
void ku_plan_fini(struct ku_plan *p);

/* The machine's limits for the plan's cores; what is not kept is measured, and kept. */
int ku_plan_limits(const struct ku_plan *p, struct ku_limits *out);
/* Loss positions of a step, padding counted. */
int64_t ku_plan_tokens(const struct ku_plan *p);
/* The batch, or the batch shapes and the one that is shown. */
void ku_plan_print_batch(const struct ku_plan *p, struct ku_str *out);
/* "0W3 linear_dw h.0.mlp.c_fc": phase and micro-batch, what, where. */
void ku_plan_print_instr(const struct ku_program *p, uint32_t at, struct ku_str *out);

#endif
