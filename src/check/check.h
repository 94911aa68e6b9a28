/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CHECK_CHECK_H
#define KU_CHECK_CHECK_H

#include "base/err.h"
#include "ir/program.h"
#include "op/tensor_plan.h"

/*
 * The static proof over the programs of a job: every rank of a class executes the same list, so one
 * symbolic execution of the list stands for all of them.
 *
 *     believed      the graph after pass precision, the op table with its gradient templates, the
 *                   tables of state and ports of the program, and struct ku_check_opts
 *     derived       backward, the order of gradient sums, the norm, the update of every tensor with
 *                   its attributes, and initial values
 *     checked       every instruction, operand, collective, offset and live range of the program
 *
 * Files:
 *
 *     model_terms.c        forward and backward of every micro-batch as terms: hashes of (op,
 *                          attributes, stream, dtype, operand terms); the canonical sum of each
 *                          gradient: micro-batches in order, virtual shards by the tree, ranks
 *     update_terms.c       the end of the step: norm, report, optimizer, derived tensors, averages
 *     initial.c            initial values
 *     execute.c            executes the instructions once over buffers that hold terms
 *     state_terms.c        the state before and after: what may be written, and what must be
 *     transfers.c          sends and receives between the stages of a pipeline
 *     collectives.c        starts and waits of collectives
 *     offload_transfers.c  the same of reads and writes of offload targets
 *     tensor_split.c       the model as the ranks of axis tp divide it
 *     split_collectives.c  collectives that gather or leave parts along a dim
 *     samples.c            the dim along which ranks and micro-batches divide a value
 *     cut.c                the ports at which the step is cut for a parameter server
 *     live_range.c         live ranges from the instructions themselves; overlap; arena bounds
 *
 * A buffer holds a term and, per rank axis, whether the term is complete, a partial sum (bit set in
 * `partial`) or valid in the rank's owned chunks only (bit set in `owned`):
 *
 *     linear_dw b9       term t, partial {shard}             a gradient of this rank's samples
 *     reduce_scatter b9  term complete(t), owned {shard}
 *     adamw b1 <- b1 b9  a term of the update of b1's tensor from complete(t); owned {shard}
 *     all_gather b1      owned {}
 *
 * Normal form: an activation fused into linear or batch norm is a separate act, sums are
 * commutative, recomputed clones have the term of their original.
 *
 * Rank axes are masks, never loops over ranks: the cost is proportional to the instructions.
 */
enum ku_check_kind {
    KU_CHECK_TRAIN,  /* a step of training */
    KU_CHECK_EVAL,   /* loss and metrics, or generation; of the state only caches are written */
    KU_CHECK_INIT,   /* makes the initial state in new memory, which is zero */
    KU_CHECK_DERIVE, /* makes the derived tensors from loaded ones */
};
/* Of a parameter server: the whole step, what a worker runs of it, or phase O on the servers. */
enum ku_check_part { KU_CHECK_WHOLE, KU_CHECK_WORKER, KU_CHECK_SERVER };
struct ku_check_opts {
    enum ku_check_kind kind;
    enum ku_check_part part;
    struct ku_mesh mesh;       /* part: of the workers */
    int is_single;             /* part: an update applies the push of one worker */
    enum kumi_dtype compute;   /* as struct ku_compile_opts, also below */
    enum kumi_dtype grads;     /* dtype of parameter gradients */
    const char *const *freeze; /* patterns of parameters without gradient; NULL: none */
    const signed char *wire;   /* [n_tensors of the graph] wire dtype of gradients, -1: their own;
                                  * NULL: their own for all */
    int optimizer;             /* KU_OP_adamw, .. */
    struct ku_attrs rule;
    int decay, adapt; /* enum ku_decay */
    const char *const *decay_patterns, *const *adapt_patterns;
    const struct ku_update_group *groups;
    int n_groups, stochastic_rounding;
    double initial_accumulator_value;
    struct ku_tp_plan plan;    /* as struct ku_compile_opts */
    int sequence;              /* the ranks of axis tp divide sequences between the layers */
    enum kumi_dtype tp_reduce; /* f32 or bf16 */
};

/* What was proved. */
struct ku_check_report {
    uint32_t n_instrs, n_collectives, n_terms, n_gradients, n_edges, n_buffers;
    int64_t ns;
};

/*
 * Check a program of a job: that of every coordinate of axis pp, which are executed together.
 *
 *   model   the graph after pass slices, not changed
 *   p       [n] by coordinate
 *   report  set on success
 *
 * Errors: KUMI_EPLAN with rank class, instruction, tensor, module path and rule; KUMI_ENOMEM.
 */
KU_STATUS ku_check_programs(const struct ku_graph *model, const struct ku_check_opts *o,
                            const struct ku_program *const *p, int n,
                            struct ku_check_report *report);
/*
 * KUMI_EPLAN unless two programs of a job, of any kind and coordinate, have the same rank axes and
 * every state tensor in the same place. q may have fewer: evaluation has no optimizer state.
 */
KU_STATUS ku_check_same_state(const struct ku_program *p, const struct ku_program *q);
/* The same as ku_check_programs, of a job without a pipeline. */
KU_STATUS ku_check_program(const struct ku_graph *model, const struct ku_check_opts *o,
                           const struct ku_program *p, struct ku_check_report *report);

#endif
