/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PASS_PASS_H
#define KU_PASS_PASS_H

#include <stddef.h>

#include "ir/graph.h"
#include "ir/program.h"
#include "op/target.h"
#include "tensor/dtype.h"

/* What lies in tiers (enum ku_tier), and how it comes and goes. All zero: nothing. */
struct ku_offload {
    uint8_t optimizer, params, activations;
    double ratio;         /* of the optimizer's tensors, by elements; the rest stays */
    int buffer_count;     /* windows that are alive at once, of about buffer_bytes each */
    int64_t buffer_bytes; /* a whole tensor may need a larger one */
};

/* Called before each pass, from the thread that compiles. see NULL: not at all. */
struct ku_watch {
    void (*see)(void *ctx, const char *program, const char *pass);
    void *ctx;
};

/* What the passes are told: numerics first, then layout (which may not change a bit). */
struct ku_compile_opts {
    /* numerics */
    enum kumi_dtype compute; /* f32, bf16, f16 (f32 master, gradients, sums), f64 (device ref) */
    enum kumi_dtype grads;   /* of a parameter's gradient, per use, and of its sums; f32 or less */
    enum kumi_dtype reduce;  /* of f32 gradients between shards: each part and sum rounds to it */
    int no_master;           /* what ops read in `compute` is stored in it alone */
    int stochastic_rounding; /* of updates to such parameters */
    const char *const *keep_f32; /* patterns of modules that compute in f32; NULL = none */
    struct ku_mesh mesh;         /* ranks, virtual shards per rank, micro-batches per shard */
    int is_training;             /* 0: forward, loss and metrics only */
    const char *const
        *freeze;   /* patterns of parameters without gradient, NULL-terminated; NULL = none */
    int optimizer; /* KU_OP_adamw, KU_OP_sgd, .. */
    struct ku_attrs rule; /* optimizer's and schedule's attributes (op/attr.h), clip */
    int decay;            /* which parameters decay: enum ku_decay */
    const char *const *decay_patterns;
    int adapt; /* which parameters lars and lamb scale by their norms, as decay */
    const char *const *adapt_patterns;
    const struct ku_update_group *groups; /* [n_groups]: of those that match, the first counts */
    int n_groups;
    double initial_accumulator_value; /* of adagrad's sums */
    /* layout */
    int64_t bucket_bytes, first_bucket_bytes;
    int64_t gather_bucket_bytes; /* of gathers; 0: any */
    int overlap;                 /* collectives start as soon as their operands are complete */
    int share_host_state;        /* state lies once per host; owners update their blocks */
    int zero;                    /* stage, 0 to 3: what private state ranks deal among themselves */
    /* stage 3 */
    const char *const *wrap; /* patterns of modules that are units; NULL: members of lists */
    int prefetch;            /* units whose gathers are under way ahead of the one at hand */
    int keep_gathered;       /* units are gathered once a step, not for forward and backward */
    int reshard_group;     /* ranks that hold a unit together between the two; 0: all of the axis */
    int64_t persist_below; /* parameters of fewer elements stay whole */
    int64_t max_live;      /* elements of gathered parameters alive at once; 0: any */
    int recompute;         /* enum ku_recompute, of all units (recompute.c) */
    int64_t recompute_every; /* full: units that keep only what enters the first; 0 = 1 */
    const char *const *recompute_match;   /* patterns of module paths; NULL = all */
    const unsigned char *recompute_level; /* per unit, in place of `recompute`; NULL = none given */
    struct ku_offload offload;
    struct ku_watch watch;
};
enum ku_recompute { KU_RECOMPUTE_NONE, KU_RECOMPUTE_SELECTIVE, KU_RECOMPUTE_FULL, KU_N_RECOMPUTE };
/* Attributes of the optimizer that parameters of some names have of their own. */
enum { KU_MAX_GROUP_ATTRS = 5 };
struct ku_update_group {
    const char *const *match; /* patterns, NULL-terminated */
    struct {
        size_t offset; /* of a double in struct ku_attrs; weight_decay: whatever `decay` selects */
        double value;
    } set[KU_MAX_GROUP_ATTRS];
    int n_set;
};
enum ku_decay { KU_DECAY_MATRICES, KU_DECAY_ALL, KU_DECAY_PATTERNS };

/* One pass: what must hold before it, what holds after it. `numerics`: it may change bits (named in
 * the run's header). */
struct ku_pass {
    const char *name;
    uint32_t needs, gives;
    int training_only;
    int (*run)(struct ku_graph *g, const struct ku_compile_opts *o, const struct ku_target *t);
};

int ku_pass_inference(struct ku_graph *g, const struct ku_compile_opts *o,
                      const struct ku_target *t);
int ku_pass_precision(struct ku_graph *g, const struct ku_compile_opts *o,
                      const struct ku_target *t);
int ku_pass_placement(struct ku_graph *g, const struct ku_compile_opts *o,
                      const struct ku_target *t);
int ku_pass_autodiff(struct ku_graph *g, const struct ku_compile_opts *o,
                     const struct ku_target *t);
int ku_pass_update(struct ku_graph *g, const struct ku_compile_opts *o, const struct ku_target *t);
/* A part of fuse (fuse_batch_norm.c): batch norm with ReLU and residual sum. */
int ku_fuse_batch_norm(struct ku_graph *g);
/* A part of update (track.c): O moves the running statistics of batch norm. */
int ku_update_track(struct ku_graph *g);
int ku_pass_zero(struct ku_graph *g, const struct ku_compile_opts *o, const struct ku_target *t);
/* Whether ranks keep blocks of private state: a stage above 0, and nothing is shared. */
int ku_zero_is_private(const struct ku_compile_opts *o);
/* Neighbours that hold a unit together between forward and backward, fewer than all; else 0. */
int ku_zero_group(const struct ku_compile_opts *o);
/* What the update leaves in blocks and forward reads whole is gathered: one convert each, in O. */
int ku_zero_gather(struct ku_graph *g);
int ku_pass_recompute(struct ku_graph *g, const struct ku_compile_opts *o,
                      const struct ku_target *t);
int ku_pass_offload(struct ku_graph *g, const struct ku_compile_opts *o, const struct ku_target *t);
int ku_pass_bucket(struct ku_graph *g, const struct ku_compile_opts *o, const struct ku_target *t);
int ku_pass_fuse(struct ku_graph *g, const struct ku_compile_opts *o, const struct ku_target *t);
/* Program passes. lower makes numbered buffers with lifetimes, stream brings what lies in tiers
 * through windows, memory gives offsets. */
int ku_pass_lower(const struct ku_graph *g, const struct ku_compile_opts *o,
                  const struct ku_target *t, struct ku_program *p);
int ku_pass_stream(struct ku_program *p, const struct ku_compile_opts *o);
int ku_pass_memory(struct ku_program *p);

/*
 * The compiler: runs all passes, each followed by the verifier. stop_after names a graph pass ("" =
 * none run, NULL = all); when given, only the graph comes out. The graph is changed in place.
 */
int ku_compile_graph(struct ku_graph *g, const struct ku_compile_opts *o, const struct ku_target *t,
                     const char *stop_after);
int ku_compile_program(const struct ku_graph *g, const char *name, const struct ku_compile_opts *o,
                       const struct ku_target *t, struct ku_program **program);
/* The program that makes the first state (is_load 0: all tensors; 1: only what is derived from
 * loaded ones). */
int ku_compile_init(const struct ku_graph *g, int is_load, const struct ku_compile_opts *o,
                    const struct ku_target *t, struct ku_program **program);
/* Names of the graph passes in order, NULL-terminated: for help texts and --after. */
const char *const *ku_pass_names(void);

#endif
