/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PASS_LOWER_LOWER_H
#define KU_PASS_LOWER_LOWER_H

#include <stdbool.h>

#include "base/err.h"
#include "pass/pass.h"
#include "pass/pipe/pipe.h"

/*
 * Lowering: graph -> instructions over numbered buffers.
 *
 *     lower.c               walks the phases A, (F, B) per micro-batch, O; tree over virtual shards
 *     bucket_collectives.c  starts and finishes the collectives of buckets
 *     zero_gather.c              all-gathers of ZeRO stage 3, ahead of their use
 *     redistribute.c        collectives on activations and their adjoints
 *     stage_messages.c            sends and receives between the stages of a pipeline
 *     emit.c                adds buffers, operands and instructions
 *     offload_stream.c              a later program pass: transfers of offloaded tensors
 *
 * One micro-batch of forward and backward, with overlap (start s, wait w):
 *
 *     compute   F F F F F I W I W I W I W
 *     bucket 0                  s           w in O
 *     bucket 1                          s   w in O
 */

enum { KU_CAP_INSTR, KU_CAP_BUFFER, KU_CAP_OPERAND }; /* of ku_program.cap */

/*
 * A value that micro-batches produce and O completes: accumulated over mb, then by the tree over
 * vs. by_micro: the tree over vs and the collective for each micro-batch, then accumulated over mb.
 */
struct ku_accumulation {
    ku_id convert;  /* in O; 0 = this value is not accumulated */
    int is_concat;  /* concatenated over mb: buffers have the shape of the convert's result */
    int by_micro;   /* the reduced sum of each micro-batch is added to `kept` */
    ku_id sum;      /* buffer of the current virtual shard; at the end, of the rank's total */
    ku_id kept;     /* buffer of the local shard of the reduced sum; 0 = in place */
    ku_id piece;    /* by_micro: buffer between reduce-scatter and all-reduce; 0 = none */
    ku_id *level;   /* [ku_lower.n_levels] partial sums, of accumulated values */
    int32_t bucket; /* -1: none */
};

/* The state of a bucket: operands incomplete; reduced over the sharding axes; then, with replicas,
 * all-reduced over them (SPREADING); done. */
enum ku_bucket_phase { KU_BUCKET_OPEN, KU_BUCKET_STARTED, KU_BUCKET_SPREADING, KU_BUCKET_DONE };
struct ku_bucket_state {
    enum ku_bucket_phase phase;
    uint32_t n_open, handle; /* incomplete operands; the current collective */
    int mb;                  /* the micro-batch that it reduces */
};

/* The all-gather of a unit: a bucket of converts outside O. */
struct ku_unit_state {
    uint32_t place, handle; /* place: index in reading order */
    uint32_t turn;          /* the phase (ku_lower.turn) for which it last started */
    ku_id last_read;        /* the last node that reads it */
    int is_waited;
    bool is_read_by_w; /* as well, where its weights are computed from parameters */
};

struct ku_lower {
    const struct ku_graph *g;
    const struct ku_compile_opts *o;
    const struct ku_target *target;
    struct ku_program *p;
    ku_id *buffer;       /* per value: for the current micro-batch, or for the step */
    ku_id *state;        /* per value: the state buffer whose next version it is, 0 = none */
    ku_id *owner;        /* per value: the parameter whose gradient it is, 0 = none */
    unsigned char *wire; /* per value: in memory that peers address */
    struct ku_accumulation *accumulate; /* per value */
    struct ku_bucket_state *bucket;     /* per bucket */
    uint32_t in_flight[3];      /* buckets to finish in backward, oldest first, + 1; 0 = none */
    struct ku_unit_state *unit; /* per bucket */
    uint32_t *unit_order, n_units;
    uint32_t *unit_of; /* per node: its bucket, + 1 */
    ku_id *slice;      /* per gather: the convert that retains its Z(g) shard, 0 = none */
    uint32_t turn;     /* phases so far: A, then F and B of each micro-batch */
    struct {
        uint32_t distance; /* phases until the next block that gathers; 0: there is none */
        int phase, stage;  /* of it: KU_PH_F or KU_PH_I */
    } next;
    ku_id *sync;         /* per value of a micro-batch: the convert whose collective it starts */
    uint32_t *sync_turn; /* per convert: the phase (turn) in which that last started */
    ku_id *ahead;        /* per node: the convert that starts before it, 0 = none */
    uint32_t *pending;   /* per value: the collective that completes it, until it is waited for */
    uint8_t *reduced;    /* per convert: axes of the collectives that it got so far, a mask */
    ku_id *stats;        /* per stats value made by a convert: the first value of its chain */
    uint32_t *start;     /* per handle: its start instruction */
    uint32_t cap_start;
    size_t *workspace; /* per node, bytes + 1; 0 = not queried yet */
    /* attribute ids of accumulations by [reduction][wire + 1], of casts by [dtype + 1]; 0: unset */
    ku_id accumulate_attr[KU_REDUCE_MAX + 1][KUMI_N_DTYPES + 1], cast_attr[KUMI_N_DTYPES + 1];
    int32_t micro; /* current micro-batch, -1 = once per step */
    int vs, mb;    /* its coordinates on the time axes */
    uint8_t phase; /* given to collectives that start now */
    int n_micro, n_mb, n_vs, dp;
    int n_levels;               /* of the tree over virtual shards */
    ku_id *level;               /* partial sums of all accumulated values */
    ku_id *shard_sum;           /* mb_outer: [n_values][n_vs] running sums */
    const struct ku_pipe *pipe; /* NULL: one stage */
    struct ku_messages *messages;
};
/* Whether this coordinate of axis pp runs a node. */
static inline bool ku_lower_runs(const struct ku_lower *l, ku_id node)
{
    return l->pipe == NULL || l->pipe->runs[node] >> l->o->pp & 1;
}
/* The sum buffer of an accumulated value for the current virtual shard. */
static inline ku_id *ku_lower_sum(struct ku_lower *l, ku_id value)
{
    return l->shard_sum && !l->accumulate[value].by_micro
               ? &l->shard_sum[(size_t)value * (size_t)l->n_vs + (size_t)l->vs]
               : &l->accumulate[value].sum;
}

/* bucket_collectives.c */
/* Whether a node is a `convert` of a partitioned value: an all-gather. */
bool ku_bucket_is_gather(const struct ku_graph *g, ku_id node);
/* Whether a node is the slice of a gathered parameter (reshard_group); lowered with the gather. */
bool ku_gather_is_slice(const struct ku_graph *g, ku_id node);
/* Notes that `value` is complete: with overlap its bucket, if any, starts with the last operand. */
KU_STATUS ku_bucket_ready(struct ku_lower *l, ku_id value);
/* Starts the bucket if needed and waits: the results of its converts are valid from here on. */
KU_STATUS ku_bucket_finish(struct ku_lower *l, uint32_t bucket);
/* Finishes all buckets in flight. */
KU_STATUS ku_bucket_settle(struct ku_lower *l);
/* Lowers an all-gather in O, in a bucket or alone. */
KU_STATUS ku_bucket_gather(struct ku_lower *l, ku_id node);

/* redistribute.c */
/* Notes which value starts which convert of forward or backward, and what must be on the wire. */
void ku_redistribute_analyse(struct ku_lower *l);
/* Lowers such a convert, once per block. */
KU_STATUS ku_redistribute(struct ku_lower *l, ku_id convert);
/* The end of a block of a pipeline: results may be read in a later block, of which others of their
 * kind come before. */
KU_STATUS ku_redistribute_end(struct ku_lower *l);
/*
 * A convert in O of a gradient of which the ranks of axis tp have parts (parallel.sp), after the
 * sum over data-parallel ranks. All that are alike are summed by one collective, with the first.
 */
bool ku_redistribute_is_gradient(const struct ku_lower *l, ku_id convert);
KU_STATUS ku_redistribute_gradients(struct ku_lower *l, ku_id convert);
/* lower.c: lowers a convert in O. */
KU_STATUS ku_lower_convert(struct ku_lower *l, ku_id convert);
/* Starts what can run while `node` is computed. */
KU_STATUS ku_redistribute_ahead(struct ku_lower *l, ku_id node, int kind);
/* Whether a node of a phase runs in blocks of a kind. */
bool ku_lower_is_of_block(int phase, int kind);

/* Waits for the collective that completes `value`, if it is still on its way. */
KU_STATUS ku_lower_settle(struct ku_lower *l, ku_id value);

/* zero_gather.c */
KU_STATUS ku_gather_init(struct ku_lower *l);
void ku_gather_fini(struct ku_lower *l);
/* Whether forward or backward (KU_PH_I) of a stage gathers parameters. */
bool ku_gather_has_units(const struct ku_lower *l, int phase, int stage);
/* Whether W of a stage reads units that its forward or backward has gathered. */
bool ku_gather_is_read_by_w(const struct ku_lower *l, int stage);
/* Begins phase A, or F, I (or the whole backward) or W of a stage: starts the first gathers. */
KU_STATUS ku_gather_begin(struct ku_lower *l, int phase, int stage);
/* Waits for the unit of this convert: its parameters are valid from here on. */
KU_STATUS ku_gather_use(struct ku_lower *l, ku_id convert);

/* stage_messages.c; all do nothing without a pipeline. */
KU_STATUS ku_messages_create(struct ku_lower *l);
void ku_messages_destroy(struct ku_lower *l);
/* Starts the receives of a block, and switches to the buffers of its micro-batch. */
KU_STATUS ku_messages_begin_block(struct ku_lower *l, const struct ku_block *b);
/* Relays values, completes the receives, and waits for sends that are known to have ended. */
KU_STATUS ku_messages_end_block(struct ku_lower *l, const struct ku_block *b);
/* Starts the receives of phase A or O; A: sends state. */
KU_STATUS ku_messages_begin_once(struct ku_lower *l, int phase);
/* Sends the results of a node that was lowered. */
KU_STATUS ku_messages_send(struct ku_lower *l, ku_id node);
/* Waits for the sends of a value whose buffer is about to be overwritten. */
KU_STATUS ku_messages_release(struct ku_lower *l, ku_id value);
/* Waits for all sends. */
KU_STATUS ku_messages_settle(struct ku_lower *l);

/* emit.c */
ku_id ku_program_add_buffer(struct ku_program *p, const struct ku_buffer *b); /* 0: no memory */
KU_STATUS ku_lower_compute(struct ku_lower *l, ku_id node);
/* Adds buffer `from` into buffer `into`. is_tree: sum over virtual shards, which rounds to the
 * convert's wire dtype; else over micro-batches. */
KU_STATUS ku_lower_accumulate(struct ku_lower *l, ku_id value, ku_id into, ku_id from, int is_tree);
/* Copies the rank's part of a whole value: a convert C -> S. */
KU_STATUS ku_lower_part(struct ku_lower *l, ku_id convert);
/* Copies the local shard of a whole value to a separate buffer: a convert C -> Z. */
KU_STATUS ku_lower_slice(struct ku_lower *l, ku_id convert);
/* Starts a collective. kind: enum ku_exchange; axes: a mask; stats NULL: no operand adds to
 * stats. */
KU_STATUS ku_lower_start(struct ku_lower *l, int kind, int axes, int reduce,
                         const struct ku_operand *stats, const struct ku_operand *part,
                         uint32_t n_parts, ku_id path, uint32_t *handle);
/* The axes of a convert's collective, as a mask: those with several ranks on which it changes P, S
 * or Z. */
int ku_lower_axes(const struct ku_lower *l, ku_id convert);
/* Whether the ranks of axis tp have parts of a value that is accumulated, which they add up. */
bool ku_lower_is_summed_over_tp(const struct ku_lower *l, ku_id convert);
KU_STATUS ku_lower_wait(struct ku_lower *l, uint32_t handle);
ku_id ku_lower_buffer(struct ku_lower *l, ku_id value, int arena, int cls);
/* A buffer for the local shard of a value under placement `layout`: the max size over ranks. */
ku_id ku_lower_local_buffer(struct ku_lower *l, ku_id value, ku_id layout, int arena, int cls);
/* The tensor whose partition a value follows; 0 = none. */
ku_id ku_lower_owner(const struct ku_lower *l, ku_id value);
struct ku_operand ku_lower_operand(const struct ku_lower *l, ku_id value, ku_id buffer,
                                   ku_id layout);

#endif
