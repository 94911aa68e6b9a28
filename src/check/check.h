/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CHECK_CHECK_H
#define KU_CHECK_CHECK_H

#include "base/err.h"
#include "ir/program.h"

/*
 * The static proof over the programs of a job: every rank of a class executes the same list, so one
 * symbolic execution of the list stands for all of them.
 *
 *     believed      the graph after pass precision, the op table with its gradient templates, the
 *                   tables of state and ports of the program, and struct ku_check_opts
 *     derived       backward, the order of gradient sums, and what an update may read
 *     checked       every instruction, operand, collective, offset and live range of the program
 *
 * Files:
 *
 *     model.c       builds forward and backward of every micro-batch as terms: hashes of (op,
 *                   attributes, stream, dtype, operand terms); then the canonical sum of each
 *                   gradient: micro-batches in order, virtual shards by the tree, then ranks
 *     execute.c     executes the instructions once over buffers that hold terms
 *     exchange.c    starts and waits: collectives and transfers of offloaded tensors
 *     live_range.c  live ranges from the instructions themselves, then overlap and arena bounds
 *
 * A buffer holds a term and, per rank axis, whether the term is complete, a partial sum (bit set in
 * `partial`) or valid in the rank's owned chunks only (bit set in `owned`):
 *
 *     linear_dw b9       term t, partial {shard}             a gradient of this rank's samples
 *     reduce_scatter b9  term complete(t), owned {shard}
 *     adamw b1 <- b1 b9  needs: complete(t) is the gradient of b1's tensor; result owned {shard}
 *     all_gather b1      owned {}
 *
 * Normal form: an activation fused into linear or batch norm is a separate act, sums are
 * commutative, recomputed clones have the term of their original.
 *
 * Rank axes are masks, never loops over ranks: the cost is proportional to the instructions.
 */
struct ku_check_opts {
    int is_training;           /* 0: forward only */
    enum kumi_dtype compute;   /* as struct ku_compile_opts */
    enum kumi_dtype grads;     /* dtype of parameter gradients */
    const char *const *freeze; /* patterns of parameters without gradient; NULL: none */
    const signed char *wire;   /* [n_tensors of the graph] wire dtype of gradients, -1: their own;
                                  * NULL: their own for all */
};

/* What was proved. */
struct ku_check_report {
    uint32_t n_instrs, n_collectives, n_terms, n_gradients, n_edges, n_buffers;
    int64_t ns;
};

/*
 * Check a program of a job.
 *
 *   model   the graph after pass precision, not changed; NULL: the terms of the program are not
 *           compared with a model (programs that make the initial state)
 *   report  set on success
 *
 * Errors: KUMI_EPLAN with rank class, instruction, tensor, module path and rule; KUMI_ENOMEM.
 */
KU_STATUS ku_check_program(const struct ku_graph *model, const struct ku_check_opts *o,
                           const struct ku_program *p, struct ku_check_report *report);

#endif
