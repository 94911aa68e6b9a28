/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PASS_PASS_H
#define KU_PASS_PASS_H

#include <stddef.h>

#include "base/err.h"
#include "base/progress.h"
#include "ir/graph.h"
#include "ir/program.h"
#include "op/dtype_rule.h"
#include "op/target.h"
#include "op/tensor_plan.h"
#include "tensor/dtype.h"

/*
 * The compiler: passes that rewrite one graph, then passes that build one program per rank class.
 *
 *     graph ── inference, precision, vocabulary, slices, placement, autodiff, update, zero,
 *       |      recompute, offload, bucket, fuse   each followed by the verifier (ku_graph_verify)
 *       v
 *     lower     nodes become instructions over numbered buffers with live ranges
 *     stream    offloaded tensors are read into staging buffers and written back
 *     memory    every buffer gets an arena and an offset
 *       v
 *     program ── exec runs it; plan and graph report on it
 *
 * Phases of nodes: A once per step from state alone; F forward, I input gradient and W weight
 * gradient per micro-batch; O once per step at its end (reductions, optimizer).
 * The subfolders hold one subject each: place, grad, update, state (ZeRO, buckets, offload), remat
 * (activation checkpointing), fuse, lower. compile.c has the list of passes.
 */

/* Which tensors are offloaded, and through which staging buffers. All zero: none. */
struct ku_offload {
    uint8_t optimizer, params,
        activations;      /* enum ku_offload_target: the offload target of each kind */
    double ratio;         /* 0 .. 1: share of the optimizer state to offload, by elements */
    int buffer_count;     /* staging buffers alive at once, of about buffer_bytes each */
    int64_t buffer_bytes; /* exceeded when a tensor that cannot be split needs more */
};

/*
 * Where phase O runs: on each rank; or on the servers of a parameter server, to which workers push
 * their parts of all gradients (update/remote.c).
 */
enum ku_update_by { KU_UPDATE_HERE, KU_UPDATE_WORKER, KU_UPDATE_SERVER };
struct ku_remote_opts {
    int update_by;   /* enum ku_update_by */
    int n_servers;   /* ranks of the servers' job */
    int is_single;   /* an update applies the push of one worker; else of all */
    int compression; /* enum ku_remote_form: of gradients that are pushed */
    double topk;     /* its elements of a chunk: a number from 1, or below 1 a fraction */
};

/* Options of the passes: those that define the bits of a result first, then the parallel layout and
 * memory options, which must leave every bit equal. */
struct ku_compile_opts {
    /* numerics */
    enum kumi_dtype compute; /* f32, bf16, f16 (with f32 master and sums), f64 (device ref) */
    enum kumi_dtype grads;   /* of parameter gradients and their sums; f32 or narrower */
    enum kumi_dtype reduce;  /* wire dtype of f32 gradients: each operand and sum rounds to it */
    int no_master; /* parameters read in `compute` are stored in it, without an f32 master */
    int stochastic_rounding;     /* of the updates of parameters without a master */
    const char *const *keep_f32; /* patterns of module paths that compute in f32; NULL = none */
    const struct ku_precision_rules *modules; /* dtypes by module; NULL = none */
    struct ku_mesh mesh;  /* ranks, virtual shards per rank, micro-batches per shard */
    int split_vocabulary; /* axis tp must split it; 0: where only the loss reads the logits */
    int whole_vocabulary; /* axis tp leaves it whole */
    int tp_exact;         /* slices of the sums over dims that axis tp may cut; 0: one per rank */
    enum kumi_dtype tp_reduce; /* of parts of products between the ranks of axis tp: f32 or bf16 */
    struct ku_tp_plan plan;    /* styles of modules on axis tp; borrowed */
    int sequence; /* axis tp splits activations between the layers along the sequence */
    /* Axis pp: the order of work, the layers of each stage, and the coordinate to lower for; NULL,
     * NULL, 0: one stage. */
    const struct ku_pp_schedule *schedule;
    const int *stage_layers; /* [n_stages of the schedule] */
    int pp;
    int is_training;              /* 0: forward, loss and metrics only */
    struct ku_remote_opts remote; /* `mesh` is the workers' on both sides */
    const char *const
        *freeze;   /* patterns of parameters without gradient, NULL-terminated; NULL = none */
    int optimizer; /* KU_OP_adamw, KU_OP_sgd, .. */
    struct ku_attrs rule; /* optimizer config: optimizer, schedule and clipping (op/attr.h) */
    int decay;            /* which parameters get weight decay: enum ku_decay */
    const char *const *decay_patterns;
    int adapt; /* which parameters lars and lamb scale by their norms: enum ku_decay */
    const char *const *adapt_patterns;
    const struct ku_update_group *groups; /* [n_groups]; the first match of a parameter applies */
    int n_groups;
    double initial_accumulator_value; /* of adagrad */
    /* parallel layout and memory */
    int64_t bucket_bytes, first_bucket_bytes;
    int64_t gather_bucket_bytes; /* of all-gathers; 0: no limit */
    int overlap;                 /* collectives start as soon as their operands are complete */
    int zero;                    /* ZeRO stage, 0 to 3: what is partitioned over mesh axis shard */
    /* ZeRO stage 3 */
    const char *const *wrap; /* patterns of modules gathered as a unit; NULL: repeated layers */
    int prefetch;            /* units gathered ahead of the one in use */
    int keep_gathered;       /* gather once per step instead of for forward and for backward */
    int reshard_group;       /* ranks that partition a unit between forward and backward; 0: all */
    int64_t persist_below;   /* parameters with fewer elements are not partitioned */
    int64_t max_live;        /* max elements of gathered parameters alive at once; 0: no limit */
    /* activation checkpointing (remat/recompute.c) */
    int sequence_gathered;              /* keep sequences gathered for a layer until its backward */
    int recompute;                      /* enum ku_recompute, of all units */
    int64_t recompute_every;            /* full: consecutive units per checkpoint; 0 = 1 */
    const char *const *recompute_match; /* patterns of module paths to recompute; NULL = all */
    const unsigned char *recompute_level; /* per unit, overrides `recompute`; NULL = no override */
    struct ku_offload offload;
    struct ku_watch watch;
};
enum ku_recompute { KU_RECOMPUTE_NONE, KU_RECOMPUTE_SELECTIVE, KU_RECOMPUTE_FULL, KU_N_RECOMPUTE };

/* One graph pass. needs, gives: KU_HAS_* masks that hold before it and that it adds. */
struct ku_pass {
    const char *name;
    uint32_t needs, gives;
    int training_only;
    int (*run)(struct ku_graph *g, const struct ku_compile_opts *o, const struct ku_target *t);
};

/* Before the passes: refuse patterns of the options that select nothing. Errors: KUMI_EINVAL. */
KU_STATUS ku_check_selections(const struct ku_graph *g, const struct ku_compile_opts *o);
/* Whether train.freeze selects a parameter. */
bool ku_is_frozen(const struct ku_compile_opts *o, const char *parameter);
KU_STATUS ku_pass_inference(struct ku_graph *g, const struct ku_compile_opts *o,
                            const struct ku_target *t);
KU_STATUS ku_pass_precision(struct ku_graph *g, const struct ku_compile_opts *o,
                            const struct ku_target *t);
KU_STATUS ku_pass_vocabulary(struct ku_graph *g, const struct ku_compile_opts *o,
                             const struct ku_target *t);
KU_STATUS ku_pass_slices(struct ku_graph *g, const struct ku_compile_opts *o,
                         const struct ku_target *t);
KU_STATUS ku_pass_placement(struct ku_graph *g, const struct ku_compile_opts *o,
                            const struct ku_target *t);
KU_STATUS ku_pass_autodiff(struct ku_graph *g, const struct ku_compile_opts *o,
                           const struct ku_target *t);
KU_STATUS ku_pass_update(struct ku_graph *g, const struct ku_compile_opts *o,
                         const struct ku_target *t);
/* Part of fuse (fuse/batch_norm.c): batch norm with ReLU and residual sum. */
KU_STATUS ku_fuse_batch_norm(struct ku_graph *g);
/* Part of update (update/running_statistics.c): phase O updates batch norm's running statistics. */
KU_STATUS ku_update_track(struct ku_graph *g, const struct ku_compile_opts *o);
KU_STATUS ku_pass_zero(struct ku_graph *g, const struct ku_compile_opts *o,
                       const struct ku_target *t);
/* The number of neighbouring ranks that partition a gathered unit between forward and backward; 0:
 * reshard_group does not apply. */
int ku_zero_group(const struct ku_compile_opts *o);
/* Adds an all-gather (a `convert` in O) for each tensor that the update leaves in shards and
 * forward reads whole. Shards of shared memory need none. */
KU_STATUS ku_zero_gather(struct ku_graph *g);
KU_STATUS ku_pass_recompute(struct ku_graph *g, const struct ku_compile_opts *o,
                            const struct ku_target *t);
KU_STATUS ku_pass_offload(struct ku_graph *g, const struct ku_compile_opts *o,
                          const struct ku_target *t);
KU_STATUS ku_pass_bucket(struct ku_graph *g, const struct ku_compile_opts *o,
                         const struct ku_target *t);
KU_STATUS ku_pass_fuse(struct ku_graph *g, const struct ku_compile_opts *o,
                       const struct ku_target *t);
/* Program passes (lower/lower.c, lower/stream.c, memory.c), in this order. */
KU_STATUS ku_pass_lower(const struct ku_graph *g, const struct ku_compile_opts *o,
                        const struct ku_target *t, struct ku_program *p);
KU_STATUS ku_pass_stream(struct ku_program *p, const struct ku_compile_opts *o);
KU_STATUS ku_pass_memory(struct ku_program *p);

/*
 * Run the graph passes in place, each followed by the verifier.
 *
 *   t            target description, or NULL
 *   stop_after   name of the last pass to run; "build": none; NULL: all
 */
KU_STATUS ku_compile_graph(struct ku_graph *g, const struct ku_compile_opts *o,
                           const struct ku_target *t, const char *stop_after);
KU_STATUS ku_compile_program(const struct ku_graph *g, const char *name,
                             const struct ku_compile_opts *o, const struct ku_target *t,
                             struct ku_program **program);
/*
 * Compile the program that makes the initial state in new memory, which is zero.
 *
 *   is_load   0: initialise all tensors; 1: only the derived tensors, from loaded parameters
 */
KU_STATUS ku_compile_init(const struct ku_graph *g, int is_load, const struct ku_compile_opts *o,
                          const struct ku_target *t, struct ku_program **program);
/* Names of the graph passes in order, after "build"; NULL-terminated. For help and --after. */
const char *const *ku_pass_names(void);

#endif
