/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PASS_LOWER_LOWER_H
#define KU_PASS_LOWER_LOWER_H

#include "pass/pass.h"

enum { KU_CAP_INSTR, KU_CAP_BUFFER, KU_CAP_OPERAND }; /* of ku_program.cap */

/* A value that micro-batches make and that O completes: the fold over mb, then the tree over vs;
 * by_micro the tree over vs and the collective of each micro-batch, then the fold over mb. */
struct ku_fold_state {
    ku_id convert; /* in O; 0 = this value is not folded */
    int is_stack;  /* over mb side by side: buffers have the shape of the convert's result */
    int by_micro;  /* the sum over shards and ranks of each micro-batch is added to `kept` */
    ku_id sum;     /* buffer of the shard at hand; at the end, of the rank's whole part */
    ku_id kept;   /* buffer of the blocks that the rank keeps of the sum over ranks; 0 = in place */
    ku_id piece;  /* by_micro: of the sum over shards of ranks that replicas are to add; 0 = none */
    ku_id *level; /* [ku_lower.n_levels], of values that are folded */
    int32_t bucket; /* -1: none */
};

/* How far a bucket is: its operands are being completed, then summed over the ranks that deal
 * blocks, then over replicas, if there are any. */
enum ku_bucket_phase { KU_BUCKET_OPEN, KU_BUCKET_STARTED, KU_BUCKET_SPREADING, KU_BUCKET_DONE };
struct ku_bucket_state {
    enum ku_bucket_phase phase;
    uint32_t n_open, handle; /* operands not yet complete; of the collective under way */
    int mb;                  /* the micro-batch whose sums it is about */
};

/* A unit's gather: a bucket of converts outside O. */
struct ku_unit_state {
    uint32_t place, handle; /* among all units, in the order of reading */
    uint32_t turn;          /* the block for which it was started last */
    int is_waited;
};

struct ku_lower {
    const struct ku_graph *g;
    const struct ku_compile_opts *o;
    const struct ku_target *target;
    struct ku_program *p;
    ku_id *buffer;       /* per value: of the micro-batch at hand, or of the step */
    ku_id *state;        /* per value: the state buffer that it is the next version of, 0 = none */
    ku_id *owner;        /* per value: the parameter whose gradient it is, 0 = none */
    unsigned char *wire; /* per value: made in memory that peers address */
    struct ku_fold_state *fold;     /* per value */
    struct ku_bucket_state *bucket; /* per bucket */
    uint32_t in_flight[3];      /* those that free their operands, oldest first, + 1; 0 = none */
    struct ku_unit_state *unit; /* per bucket */
    uint32_t *unit_order, n_units;
    uint32_t *unit_of; /* per node: the bucket that it is in, + 1 */
    ku_id *slice;      /* per gather: the convert that keeps a group's blocks of it, 0 = none */
    uint32_t turn;     /* blocks so far */
    ku_id *stats;      /* per value that a convert adds squares to: where its chain begins */
    uint32_t *start;   /* per handle: the instruction that opens it */
    uint32_t cap_start;
    size_t *workspace; /* per node, bytes + 1; 0 = not asked yet */
    /* attributes of folds by reduction and wire + 1, of casts by dtype + 1; 0: not made yet */
    ku_id fold_attr[KU_FOLD_MAX + 1][KUMI_N_DTYPES + 1], cast_attr[KUMI_N_DTYPES + 1];
    int32_t micro; /* at hand, -1 = once a step */
    int vs, mb;    /* where it stands */
    uint8_t phase; /* of collectives that start while it runs */
    int n_micro, n_mb, n_vs, dp;
    int n_levels;     /* of the tree over virtual shards */
    ku_id *level;     /* of all folded values */
    ku_id *shard_sum; /* with mb outer, per value and shard: the sum of the shard so far */
};
/* The buffer of the shard at hand for a folded value. */
static inline ku_id *ku_lower_sum(struct ku_lower *l, ku_id value)
{
    return l->shard_sum && !l->fold[value].by_micro
               ? &l->shard_sum[(size_t)value * (size_t)l->n_vs + (size_t)l->vs]
               : &l->fold[value].sum;
}

/* lower_bucket.c: collectives of buckets. */
int ku_bucket_is_gather(const struct ku_graph *g, ku_id node);
/* A convert that keeps a group's blocks of what forward gathered; lowered with the gather. */
int ku_gather_is_slice(const struct ku_graph *g, ku_id node);
/* An operand is complete, or no bucket's: with overlap a bucket starts with its last one. */
int ku_bucket_ready(struct ku_lower *l, ku_id value);
/* What the bucket's converts make is there from here on. */
int ku_bucket_finish(struct ku_lower *l, uint32_t bucket);
/* Those under way are finished with. */
int ku_bucket_settle(struct ku_lower *l);
/* A convert that gathers blocks, in a bucket or alone. */
int ku_bucket_gather(struct ku_lower *l, ku_id node);

/* lower_gather.c: parameters of stage 3. */
int ku_gather_init(struct ku_lower *l);
void ku_gather_fini(struct ku_lower *l);
/* A block of nodes of this phase (A, F, I) begins. */
int ku_gather_begin(struct ku_lower *l, int phase);
/* What this convert's unit gathers is there from here on. */
int ku_gather_use(struct ku_lower *l, ku_id convert);

/* lower_emit.c: instructions. */
ku_id ku_program_add_buffer(struct ku_program *p, const struct ku_buffer *b); /* 0: no memory */
int ku_lower_compute(struct ku_lower *l, ku_id node);
/* is_tree: of shards, whose sums round to the convert's wire; else of micro-batches. */
int ku_lower_fold(struct ku_lower *l, ku_id value, ku_id into, ku_id from, int is_tree);
/* Copies this rank's blocks of a whole value into memory of their own: a convert C -> Z. */
int ku_lower_slice(struct ku_lower *l, ku_id convert);
int ku_lower_start(struct ku_lower *l, int kind, int axes /* a mask */, int reduce,
                   const struct ku_operand *stats /* NULL: no part adds to it */,
                   const struct ku_operand *part, uint32_t n_parts, ku_id path, uint32_t *handle);
/* The data-parallel axes with more than one rank on which a convert changes the placement, as a
 * mask: those of its collective. */
int ku_lower_axes(const struct ku_lower *l, ku_id convert);
int ku_lower_wait(struct ku_lower *l, uint32_t handle);
ku_id ku_lower_buffer(struct ku_lower *l, ku_id value, int arena, int cls);
/* The same for a rank's blocks of `count` elements that layout deals, as many as the most of any
 * rank. */
ku_id ku_lower_kept_buffer(struct ku_lower *l, ku_id value, ku_id layout, int arena, int cls);
/* The parameter or other tensor whose blocks a value's are; 0 = none. */
ku_id ku_lower_owner(const struct ku_lower *l, ku_id value);
struct ku_operand ku_lower_operand(const struct ku_lower *l, ku_id value, ku_id buffer,
                                   ku_id layout);

#endif
