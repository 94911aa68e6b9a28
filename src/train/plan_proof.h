/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_PLAN_PROOF_H
#define KU_TRAIN_PLAN_PROOF_H

#include "check/check.h"
#include "train/trainer.h"

/*
 * The options of the check of a program compiled with `o`.
 *
 *   model   after pass precision
 *   wire    out: what check->wire points to, freed with ku_free
 */
KU_STATUS ku_trainer_check_opts(const struct ku_compile_opts *o, enum ku_check_kind kind,
                                const struct ku_graph *model, struct ku_check_opts *check,
                                signed char **wire);

/*
 * Check the programs of a batch shape (check/check.h).
 *
 *   graph    as nn built it
 *   o        as they were compiled
 *   program  [pp][KU_N_PROGS] of every coordinate of axis pp; NULL: not checked
 *   report   by KU_PROG_*; set on success
 *
 * Errors: KUMI_EPLAN, a program is wrong, with the rule; KUMI_ENOMEM.
 */
KU_STATUS ku_trainer_prove(const struct ku_graph *graph, const struct ku_compile_opts *o,
                           const struct ku_target *target, const struct ku_program *const *program,
                           struct ku_check_report report[KU_N_PROGS]);

/*
 * The same for a job of which this process has compiled the programs of one coordinate of axis pp:
 * compiles those of the others.
 *
 *   which   bits 1 << KU_PROG_*, as `own` was compiled
 *   hash    out [pp][KU_N_PROGS]: ku_program_hash of each
 */
KU_STATUS ku_trainer_prove_job(const struct ku_graph *graph, const struct ku_compile_opts *o,
                               const struct ku_target *target, unsigned which,
                               const struct ku_program *const own[KU_N_PROGS], uint64_t *hash,
                               struct ku_check_report report[KU_N_PROGS]);

#endif
