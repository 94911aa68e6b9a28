/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CHECK_PROOF_H
#define KU_CHECK_PROOF_H

#include <stdbool.h>

#include "check/check.h"

/* Kinds of terms that are no op. */
enum ku_term_kind {
    KU_TERM_INPUT = 1000,
    KU_TERM_STATE,
    KU_TERM_ADD,
    KU_TERM_TREE, /* a + b, both and the sum rounded to a wire dtype */
    KU_TERM_MAX,
    KU_TERM_STACK,
    KU_TERM_COMPLETE, /* the sum over ranks */
    KU_TERM_SQUARES,
    KU_TERM_ZERO,
    KU_TERM_SEED
};

/* What is known of a term of the model: found by its hash. */
struct ku_term {
    uint64_t hash, shape;
    uint8_t dtype, is_partial; /* is_partial: each rank has the part of its samples */
};

/* A set of terms: open addressing over hashes. */
struct ku_terms {
    struct ku_term *slot;
    uint32_t n, cap; /* cap: a power of two */
};
KU_STATUS ku_terms_add(struct ku_terms *t, const struct ku_term *x);
/* NULL: not in the set. */
struct ku_term *ku_terms_find(const struct ku_terms *t, uint64_t hash);

/* The value that a buffer holds. */
struct ku_held {
    uint64_t term, shape;
    uint32_t handle;  /* the collective in flight that writes it, 0: none */
    uint32_t readers; /* collectives in flight that read it */
    uint32_t tensor;  /* state tensor + 1 that it is or belongs to; 0: none, or several */
    uint32_t peers_read, own_read; /* instruction + 1 at which other ranks, or this rank, read it
                                    * whole last */
    uint32_t written;              /* instruction + 1 of the last write; 0: as the step began */
    int32_t first_block;           /* of owned chunks */
    uint16_t group;
    uint8_t wire; /* of the first of several sums over ranks, + 1 */
    uint8_t partial, owned, dtype, flags;
};
/* ku_held.flags */
enum {
    KU_HELD_DEFINED = 1,
    KU_HELD_GRADIENT = 2, /* depends on the complete gradient of `tensor` */
    KU_HELD_REPORT = 4,   /* depends on step_scalars */
    KU_HELD_TOTALS = 8,   /* an additive sum over tensors */
    KU_HELD_STATE = 16,   /* the bytes of a state tensor */
    KU_HELD_CLIPPED = 32  /* the gradient of `tensor`, scaled and clipped */
};

struct ku_proof {
    const struct ku_graph *model; /* NULL: terms are not compared */
    const struct ku_check_opts *o;
    const struct ku_program *p;
    struct ku_graph *spec;   /* the model with backward (model.c) */
    struct ku_terms terms;   /* of forward and backward, all micro-batches */
    uint64_t *gradient;      /* per tensor of the model: the complete sum, 0: none */
    uint64_t *output;        /* per output of the model: its complete value, 0: not summed */
    uint64_t stats;          /* the expected sum of squares over all gradients */
    uint64_t report;         /* the term of the report; 0: not made yet */
    uint32_t *state_by_name; /* per name: state + 1 */
    uint32_t *totalled;      /* per state: additions to totals */
    uint32_t *summed;        /* per state: additions to the sums of rows and columns */
    int clips;               /* the report's config clips elements of gradients */
    int64_t shift;           /* of loss_seed and step_scalars */
    uint64_t *attr_hash, *shape_hash; /* per id of the program */
    ku_id *tensor_of;                 /* per state of the program: tensor of the model, 0: none */
    struct ku_held *held;             /* per buffer */
    uint32_t *state_of;               /* per buffer: state + 1 */
    uint32_t *pieces;                 /* per buffer: runs written so far */
    struct ku_held *begun;            /* per buffer: the value of these runs */
    uint32_t *written;                /* per state: writes in this step */
    uint32_t *start;            /* per handle: its start instruction + 1; UINT32_MAX: waited */
    uint32_t synced[KU_N_AXES]; /* start + 1 of the last complete collective over an axis that
                                       * no rank leaves before all have entered */
    uint32_t *first, *last;     /* per buffer: live range from the instructions */
    uint32_t at;                /* current instruction */
    int wide;                   /* rank axes of several ranks over which samples are split */
    struct ku_check_report report_of;
};

/*
 * KUMI_EPLAN: one line with the rank class, the current instruction, a tensor and a rule.
 *
 *   buffer   that the rule is about, 0: none
 */
KU_STATUS ku_proof_refuse(const struct ku_proof *c, ku_id buffer, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Hashes of terms. ADD and MAX are commutative. */
uint64_t ku_term_of(int kind, uint64_t a, uint64_t b);
struct ku_term_op {
    int op, n_in, n_out;
    uint64_t attr; /* hash of the attributes */
    const struct ku_attrs *a;
    uint32_t stream;
    uint64_t in[KU_MAX_IN];
    uint8_t in_dtype[KU_MAX_IN], out_dtype[KU_MAX_OUT];
};
/* The terms of the results of a computation, in normal form. */
void ku_term_results(struct ku_proof *c, const struct ku_term_op *x, uint64_t out[KU_MAX_OUT]);
uint64_t ku_attrs_hash(const struct ku_attrs *a);
uint64_t ku_shape_hash(const struct ku_shape *s);

KU_STATUS ku_model_derive(struct ku_proof *c);      /* model.c */
KU_STATUS ku_proof_execute(struct ku_proof *c);     /* execute.c */
KU_STATUS ku_proof_start(struct ku_proof *c);       /* exchange.c: a start instruction */
KU_STATUS ku_proof_wait(struct ku_proof *c);        /* a wait */
KU_STATUS ku_proof_live_ranges(struct ku_proof *c); /* live_range.c */

KU_STATUS ku_proof_buffer(struct ku_proof *c, ku_id buffer); /* a valid id */
/* KUMI_EPLAN unless the operand's value may be read as the operand says. */
KU_STATUS ku_proof_read(struct ku_proof *c, const struct ku_operand *o, struct ku_held *value);
/* The value of the run of a buffer that an operand names. */
const struct ku_held *ku_proof_run(const struct ku_proof *c, const struct ku_operand *o);
/* Notes the value of a run that is written: all runs of a buffer are updated alike. */
KU_STATUS ku_proof_begin_run(struct ku_proof *c, const struct ku_operand *o,
                             const struct ku_held *value);
/* Counts a written run of a buffer; 1: it was the last. */
bool ku_proof_is_last_run(struct ku_proof *c, const struct ku_operand *o);
/* Axes of an operand's placement with Z. */
int ku_proof_blocks(const struct ku_proof *c, const struct ku_operand *o);
/* Note a write of a buffer: versions and ordering edges of state. */
KU_STATUS ku_proof_write(struct ku_proof *c, ku_id buffer, const struct ku_held *value);

#endif
