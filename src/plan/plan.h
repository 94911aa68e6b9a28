/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PLAN_PLAN_H
#define KU_PLAN_PLAN_H

#include "base/err.h"
#include "comm/far_cost.h"
#include "job/launch/hostlist.h"
#include "kumi/run.h"
#include "sim/between_hosts.h"
#include "sim/roofline.h"
#include "train/session.h"

/*
 * `kumi plan`: the programs of a configuration on n ranks, compiled exactly as for a
 * run, and reports about them.
 *
 *                  ku_plan_init
 *                       │  struct ku_plan: session, programs, bytes per arena
 *       ┌───────────────┼──────────────────┬────────────────┐
 *   memory_table    memory_picture     roofline_table     stages
 *   text, JSON      panels, one per    minimum time       one plan per ZeRO stage,
 *   + advice        arena              by op              table and bar chart
 *   volume_table    picture: canvas                       stages_picture
 *
 * layouts_table makes a plan for each parallel layout. ranks/ compiles the programs on its own, as
 * it needs their graph, and draws which rank has what. mesh_table and schedule_table, with its
 * picture, need no programs; estimate.c needs no plan: it estimates from the number of
 * parameters alone. No report needs a device; data files are needed only where they decide the
 * batch shapes.
 */
/* Bytes that a rank sends in a step: of each kind the maximum over the coordinates of axis pp. */
struct ku_sent_bytes {
    double data, tp, messages; /* collectives as rings; between coordinates */
};
struct ku_plan {
    struct ku_session s;
    const struct ku_limits *limits; /* see program; NULL: memory decides */
    /* Of the batch shape and coordinate of axis pp that map the most memory, or, with limits, take
     * the longest at the roofline. */
    struct ku_program *program[KU_N_PROGS];
    int shape;
    size_t arena_bytes[KU_N_ARENAS]; /* mapped by a run */
    size_t other_bytes[KU_N_ARENAS]; /* needed by the programs other than training */
    struct ku_host_ranks *host;      /* [n_hosts]; NULL: one host */
    int n_hosts, max_local;          /* ranks of the largest host */
    struct ku_step_bytes step;       /* what all ranks move in a step of this shape */
    struct ku_sent_bytes sent;       /* in a step of this shape */
    size_t exchange_bytes;           /* chunks of exchanges between hosts, per rank of that host */
    size_t inbox_bytes;              /* of other hosts for a checkpoint, per rank, at most */
    size_t loader_bytes;             /* of rows read ahead, per rank */
    uint64_t rank_bytes, host_bytes; /* a rank's own; those of the largest host */
    uint64_t table_bytes;            /* page tables of all ranks: 8 bytes per page */
};
/*
 * Read the settings and the batch shapes; nothing is compiled. ku_plan_compile follows.
 * Nothing needs to be finished on failure, of either.
 *
 *   more    settings that override the user's, as ku_settings_configure takes them; NULL: none
 */
KU_STATUS ku_plan_open(struct ku_plan *p, const struct kumi_settings *settings, int n_ranks,
                       const char *const *more);
/*
 * Compile the programs of all batch shapes.
 *
 *   watch         of a progress line that covers several plans; NULL: a line of its own
 *   other_bytes   [KU_N_ARENAS] of a plan whose programs other than training are the same: only
 *                 training is compiled; NULL: all
 */
KU_STATUS ku_plan_compile(struct ku_plan *p, const struct ku_watch *watch,
                          const size_t *other_bytes);
/* Both; all programs. */
KU_STATUS ku_plan_init(struct ku_plan *p, const struct kumi_settings *settings, int n_ranks,
                       const char *const *more, const struct ku_watch *watch);
/*
 * The same for one of several alternatives.
 *
 *   refusal   out: why the settings refuse it, or memory.recompute's budget does, to be freed with
 *             ku_free, and p is empty; NULL: p is compiled
 */
KU_STATUS ku_plan_try(struct ku_plan *p, const struct kumi_settings *settings, int n_ranks,
                      const char *const *more, const struct ku_watch *watch, char **refusal);
/* The two and both, for the ranks of these hosts. */
KU_STATUS ku_plan_open_hosts(struct ku_plan *p, const struct kumi_settings *settings,
                             const struct ku_hostlist *hosts);
KU_STATUS ku_plan_init_hosts(struct ku_plan *p, const struct kumi_settings *settings,
                             const struct ku_hostlist *hosts);
/* ku_plan_open_hosts of hosts that are named, or listed in a file, of which n_ranks ranks are used,
 * 0: all slots; with both NULL ku_plan_open of n_ranks ranks. */
KU_STATUS ku_plan_open_at(struct ku_plan *p, const struct kumi_settings *settings,
                          const char *hosts, const char *hostfile, int n_ranks);
void ku_plan_fini(struct ku_plan *p);

/* The coordinate of axis pp of p->program. */
int ku_plan_coordinate(const struct ku_plan *p);
/*
 * The machine's limits for the plan's cores. Missing ones are measured and stored.
 */
KU_STATUS ku_plan_limits(const struct ku_plan *p, struct ku_limits *out);
/* Bytes that are mapped but unused at the peak. */
size_t ku_plan_unused_bytes(const struct ku_memory_report *r);
/* Append "0W3 linear_dw h.0.mlp.c_fc": stage, phase, micro-batch, op, module path. */
void ku_plan_print_instr(const struct ku_program *p, uint32_t at, struct ku_str *out);

#endif
