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
    KU_TERM_STREAM
};

enum { KU_TOTALS_ZERO = 1 }; /* the term of totals to which nothing has been added */

/* What is known of a term of the model: found by its hash. */
struct ku_term {
    uint64_t hash, shape;      /* shape: its hash; 0: that of the state that it is written to */
    uint8_t dtype, is_partial; /* is_partial: each rank has the part of its samples */
    char split;                /* over tensor-parallel ranks: a code of tensor_split.c */
    uint8_t samples;           /* 1 + index of the dim of its samples; 0: it has none */
    bool is_end;               /* of the end of a step or of initial values: may be of shards */
};
/* How tensor-parallel ranks divide a value: 0 whole, the letter of a dim, or one of these. */
enum {
    KU_SPLIT_SUM = '+',    /* a partial sum */
    KU_SPLIT_SHARED = '*', /* by key heads; along tpi, whose ranks share them, a partial sum */
    KU_SPLIT_OUTER = '-',  /* a partial sum along tp, the same along tpi: totals of a step's end */
    KU_SPLIT_BAD = '?'     /* what no rule gives */
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
    uint32_t handle;               /* the collective in flight that writes it, 0: none */
    uint32_t readers;              /* collectives in flight that read it */
    uint32_t peers_read, own_read; /* instruction + 1 at which other ranks, or this rank, read it
                                    * whole last */
    uint32_t written;              /* instruction + 1 of the last write; 0: as the step began */
    int32_t first_block;           /* of owned chunks */
    uint16_t group;
    uint8_t wire; /* of the first of several sums over ranks, + 1 */
    uint8_t partial, owned, dtype, flags;
    char split; /* the letter of the dim along which tensor-parallel ranks divide it; 0: none */
    /* 1 + index of the dim along which ranks and micro-batches divide it (samples.c); 0: none */
    uint8_t samples;
};
/* ku_held.flags */
enum {
    KU_HELD_DEFINED = 1,
    KU_HELD_TOTALS = 2 /* a sum over tensors, in any order */
};

/* The values of an output's rows, per micro-batch, but for those that `held` has. */
struct ku_rows {
    ku_id buffer;
    struct ku_held *row; /* [micro-batches] */
};

/* A port that a worker's program must have. */
struct ku_cut {
    uint64_t name, term; /* name: its hash; 0: found */
    bool is_partial;
};

/* A transfer of an offloaded buffer that no wait has ended yet (offload_transfers.c). */
struct ku_flight {
    uint32_t handle, next; /* next: of the same buffer, + 1; 0: none */
    int32_t piece;
    int64_t piece_count;
    bool is_write;
};

struct ku_proof {
    struct ku_mesh mesh; /* of forward and backward: a server's program has another */
    struct ku_cut *cut;  /* [n_cuts] of a worker */
    uint32_t n_cuts;
    const struct ku_graph *model;
    const struct ku_check_opts *o;
    const struct ku_program *p;
    struct ku_graph *spec;      /* the model with backward (model_terms.c) */
    struct ku_terms terms;      /* that the model defines, all micro-batches */
    struct ku_terms streams;    /* of initial values: `shape` is the term of its one user */
    bool is_borrower;           /* what the model defines belongs to the proof of coordinate 0 */
    uint64_t *gradient;         /* per tensor of the model: the complete sum, 0: none */
    uint64_t *output;           /* per output of the model: its complete value, 0: not summed */
    uint64_t *output_row;       /* the same of each micro-batch, of those that are not summed */
    uint64_t stats;             /* the sum of squares over all gradients */
    uint64_t report;            /* the term of the report, 0: none */
    uint64_t *next;             /* per state: its term in the end; 0: it is not written */
    unsigned char *is_gathered; /* per state, of initial values: forward reads it whole */
    int64_t shift;              /* of loss_seed and step_scalars */
    uint64_t *attr_hash, *shape_hash; /* per id of the program */
    uint8_t *blocks;                  /* per placement of the program: the axes with Z */
    uint32_t *state_by_name;          /* per name of the program: state + 1 */
    struct ku_named_state *named;     /* [n_states] sorted */
    struct ku_held *held;             /* per buffer */
    struct ku_rows *rows;             /* [n_rows] (output_rows.c) */
    uint32_t n_rows;
    int micro;                /* whose rows `held` has */
    uint32_t *state_of;       /* per buffer: state + 1 */
    uint32_t *pieces;         /* per buffer: runs written so far; totals: runs to come */
    struct ku_held *begun;    /* per buffer: the value of these runs */
    uint32_t *written;        /* per state: writes in this step */
    uint32_t *start;          /* per handle: its start instruction + 1; UINT32_MAX: waited */
    struct ku_flight *flight; /* [n_flights] transfers in flight, and free elements */
    uint32_t n_flights, cap_flights;
    uint32_t free_flight;        /* the first free element, + 1; 0: none */
    uint32_t *in_flight;         /* per buffer of an offload target: the last one in flight, + 1 */
    uint32_t synced[KU_N_AXES];  /* start + 1 of the last complete collective over an axis that
                                       * no rank leaves before all have entered */
    uint32_t entered[KU_N_AXES]; /* among the ranks of a host: of all-gathers too */
    uint32_t *first, *last;      /* per buffer: live range from the instructions */
    uint32_t at;                 /* current instruction */
    int wide;                    /* rank axes of several ranks over which samples are split */
    /* Axis pp (transfers.c) */
    struct ku_wires *wires; /* between the coordinates; NULL: there is one */
    bool is_blocked;        /* the current wait needs an instruction of another coordinate */
    uint32_t *message;      /* per handle of a send or receive: its number on its wire */
    uint32_t n_barriers;    /* barriers over axis pp that have started */
    uint32_t *barrier;      /* per handle of such a barrier: its number, from 1 */
    struct ku_check_report report_of;
};
/* A state by the term that it has as the step begins. */
struct ku_named_state {
    uint64_t term;
    uint32_t state;
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
/* A random op draws by global element index: its values depend on the micro-batch. */
void ku_term_draw(struct ku_term_op *x, int micro);
/* The terms of the results of a computation, in normal form. */
void ku_term_results(struct ku_proof *c, const struct ku_term_op *x, uint64_t out[KU_MAX_OUT]);
uint64_t ku_attrs_hash(const struct ku_attrs *a);
uint64_t ku_shape_hash(const struct ku_shape *s);
/* The squares of a gradient in the norm, in sums of `chunk` elements. index: of its tensor. */
uint64_t ku_term_squares(uint64_t gradient, int64_t index, int64_t chunk);
/* The term of state tensor "param.suffix", or "param" if suffix is NULL, as the step begins. */
uint64_t ku_term_state(const char *param, const char *suffix);

/* proof.c: the state with this term, + 1; 0: the program has none. */
uint32_t ku_proof_state(const struct ku_proof *c, uint64_t term);

/* cut.c. Whether the program is this part of a step of training. */
bool ku_cut_is(const struct ku_proof *c, enum ku_check_part part);
/* Hashes of the names of ports: the gradient of the nth use of a tensor; another sum. */
uint64_t ku_cut_gradient(const struct ku_graph *m, ku_id t, int nth);
uint64_t ku_cut_sum(uint32_t index, const char *path);
/* The term of a server's input. */
uint64_t ku_cut_input(uint64_t name);
KU_STATUS ku_cut_open(struct ku_proof *c);
/* A worker must push this. */
KU_STATUS ku_cut_expect(struct ku_proof *c, uint64_t name, uint64_t term, bool is_partial);
/* A server's inputs, as the step begins; a worker's output, as it ends. */
void ku_cut_hold(struct ku_proof *c);
KU_STATUS ku_cut_finish(struct ku_proof *c, const struct ku_program_port *port);

KU_STATUS ku_model_derive(struct ku_proof *c); /* model_terms.c */
/* update_terms.c: the end of a step of training, or of evaluation. */
KU_STATUS ku_update_derive(struct ku_proof *c);
/* Batch norm's running statistics, from the statistics of all micro-batches. */
KU_STATUS ku_update_statistics(struct ku_proof *c, const struct ku_node *moments, uint64_t seen);
/* The attributes of a loss scaler, of an optimizer config. */
void ku_update_scaler_of(const struct ku_attrs *rule, struct ku_attrs *a);
KU_STATUS ku_initial_derive(struct ku_proof *c); /* initial.c */

/* Attribute index of a convert of axis tp (tensor_split.c). */
enum ku_tensor_convert { KU_TENSOR_SUM, KU_TENSOR_GATHER, KU_TENSOR_PART, KU_TENSOR_JOIN };
/* tensor_split.c: rewrites the model as the state plan divides it over axis tp. */
KU_STATUS ku_tensor_divide(struct ku_proof *c, struct ku_graph *g);
/* An op whose operands tensor-parallel ranks divide as `split` says. */
struct ku_split_op {
    int op, n_in, n_out;
    bool has_inner; /* axis tpi has several ranks */
    const struct ku_attrs *a;
    char split[KU_MAX_IN];
    const struct ku_shape *in[KU_MAX_IN], *out[KU_MAX_OUT]; /* logical */
};
/* How its results are divided. Returns NULL, or the rule that the operands break. */
const char *ku_tensor_rule(const struct ku_split_op *x, char split[KU_MAX_OUT]);
/*
 * samples.c: the dim along which an operand divides its value over the data-parallel and the time
 * axes, + 1; 0: none.
 */
KU_STATUS ku_proof_samples(struct ku_proof *c, const struct ku_operand *o, uint8_t *samples);
/* The same that a value of the model has: 1 + the index of its dim of samples. */
uint8_t ku_model_samples(const struct ku_graph *g, ku_id value, const uint8_t *samples);
/* split_collectives.c: parts along a dim, taken, made or joined. */
KU_STATUS ku_proof_part(struct ku_proof *c, const struct ku_operand *to, const struct ku_held *in,
                        struct ku_held *out);
KU_STATUS ku_proof_scatter(struct ku_proof *c, const struct ku_instr *i,
                           const struct ku_operand *o);
KU_STATUS ku_proof_join(struct ku_proof *c, const struct ku_instr *i, const struct ku_operand *o);
/* collectives.c: takes a buffer for a collective. */
KU_STATUS ku_proof_take(struct ku_proof *c, ku_id buffer, uint32_t handle);
/* offload_transfers.c: a part of a read or write of an offload target starts, and ends. */
KU_STATUS ku_proof_offload_start(struct ku_proof *c, const struct ku_instr *i,
                                 const struct ku_operand *o);
void ku_proof_offload_end(struct ku_proof *c, const struct ku_instr *i, const struct ku_operand *o);
/* How the results of a node are divided, per value. */
KU_STATUS ku_tensor_split(struct ku_proof *c, const struct ku_graph *g, ku_id node, char *split);
/* The same of a state tensor, and of an operand by its placement. */
char ku_proof_split_of_state(const struct ku_proof *c, uint32_t state);
char ku_proof_split(const struct ku_proof *c, const struct ku_operand *o);
/* The same of a value, which may be a partial sum. */
char ku_held_split(const struct ku_proof *c, const struct ku_held *h);
/* The axes along which its ranks have different parts of a tensor of that shape. */
int ku_proof_split_axes(const struct ku_proof *c, ku_id shape, char split);
/* The axes of several ranks among tp and tpi. */
int ku_proof_tp(const struct ku_proof *c);

/*
 * transfers.c: executes the programs of all coordinates of axis pp together. c: [n]; each has the
 * same wires.
 */
KU_STATUS ku_proof_execute_all(struct ku_proof *c, int n);
KU_STATUS ku_message_start(struct ku_proof *c);
/* Sets is_blocked if the other side has not come that far. */
KU_STATUS ku_message_wait(struct ku_proof *c);
/* The same of a wait for a barrier over axis pp. */
void ku_barrier_wait(struct ku_proof *c, uint32_t handle);

KU_STATUS ku_rows_open(struct ku_proof *c); /* output_rows.c */
void ku_rows_close(struct ku_proof *c);
/* The number of micro-batches that have rows of their own in a buffer; 1: it has one value. */
int ku_rows_count(const struct ku_proof *c, ku_id buffer);
/* Makes `held` have the rows of a micro-batch. */
void ku_rows_select(struct ku_proof *c, int micro);
/* The same of those that the instruction at c->at names: of a wait, as its start. */
void ku_rows_select_at(struct ku_proof *c);
/* Whether a buffer is that of a port which is filled before the program runs. */
bool ku_rows_is_filled(const struct ku_proof *c, ku_id buffer);

KU_STATUS ku_proof_hold(struct ku_proof *c);        /* state_terms.c: as the step begins */
KU_STATUS ku_proof_finish(struct ku_proof *c);      /* as it ends */
KU_STATUS ku_proof_step(struct ku_proof *c);        /* execute.c: the instruction at c->at */
KU_STATUS ku_proof_start(struct ku_proof *c);       /* collectives.c: a start instruction */
KU_STATUS ku_proof_wait(struct ku_proof *c);        /* a wait */
KU_STATUS ku_proof_live_ranges(struct ku_proof *c); /* live_range.c */

KU_STATUS ku_proof_buffer(struct ku_proof *c, ku_id buffer); /* a valid id */
/* KUMI_EPLAN unless the operand's value may be read as the operand says. */
KU_STATUS ku_proof_read(struct ku_proof *c, const struct ku_operand *o, struct ku_held *value);
/*
 * KUMI_EPLAN unless buffer `b` has the bytes of the operand's value.
 *
 *   is_whole   1: of all chunks, though the operand is a shard
 */
KU_STATUS ku_proof_fits(struct ku_proof *c, const struct ku_operand *o, ku_id b, bool is_whole);
/* The value of the run of a buffer that an operand names. */
const struct ku_held *ku_proof_run(const struct ku_proof *c, const struct ku_operand *o);
/* Notes the value of a run that is written: all runs of a buffer are updated alike. */
KU_STATUS ku_proof_begin_run(struct ku_proof *c, const struct ku_operand *o,
                             const struct ku_held *value);
/* Counts a written run of a buffer; 1: it was the last. */
bool ku_proof_is_last_run(struct ku_proof *c, const struct ku_operand *o);
/* The number of runs of the operand's buffer; 1: it is whole. */
uint32_t ku_proof_n_runs(const struct ku_proof *c, const struct ku_operand *o);
/* Axes of an operand's placement with Z. */
int ku_proof_blocks(const struct ku_proof *c, const struct ku_operand *o);
/* How many neighbours on axis shard own all chunks of an operand; 0: all ranks, or none do. */
uint16_t ku_proof_group(const struct ku_proof *c, const struct ku_operand *o);
/* Note a write of a buffer: versions and ordering edges of state. */
KU_STATUS ku_proof_write(struct ku_proof *c, ku_id buffer, const struct ku_held *value);

#endif
