/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PASS_PIPE_BLOCK_SCHEDULE_H
#define KU_PASS_PIPE_BLOCK_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/*
 * Pipeline schedules, as data: which part of the work each coordinate of axis pp does, in order. A
 * model's layers form stages 0 .. n_stages - 1; each is on one coordinate, which runs one block at
 * a time:
 *
 *     F  forward          B  whole backward: I and W; a stage may have B of some micro-batches
 *     I  gradients of activations, which the stage before waits for
 *     W  gradients of parameters, at any time after I
 *
 * 1f1b, 2 stages, 3 micro-batches; a block is written as stage, kind, micro-batch:
 *
 *     pp 0   0F0 0F1     0B0 0F2     0B1     0B2
 *     pp 1       1F0 1B0 1F1     1B1 1F2 1B2
 *
 * A generator (generate.c), costs (list.c, choose.c) or a text (csv.c) make the lists. Lowering
 * reads them and nothing else of a schedule. F, I and W of a stage, B counted as both, run each in
 * the order of micro-batches, so gradients add up in the order of one process.
 */
enum ku_block_kind { KU_BL_F, KU_BL_B, KU_BL_I, KU_BL_W, KU_N_BLOCK_KINDS };
struct ku_block {
    uint8_t kind;
    int16_t stage;
    int32_t micro;
};

enum { KU_MAX_PP = 64 /* coordinates are bits of a mask */, KU_MAX_STAGES = 1024 };

struct ku_pp_schedule {
    int n_ranks, n_stages, n_micro; /* ranks: coordinates of axis pp */
    int *rank_of;                   /* [n_stages] */
    uint32_t *first;                /* [n_ranks + 1]: blocks of rank r: [first[r], first[r + 1]) */
    struct ku_block *block;
    int32_t *column; /* per block: of the text that it was read from, from 1; NULL: from none */
};

char ku_block_letter(int kind); /* 'F' 'B' 'I' 'W' */

/* The generators' names, NULL-terminated: "gpipe", "1f1b", ... */
const char *const *ku_pp_schedule_names(void);
/* The number of stages per rank of a schedule that has one of the names; 0: `n_virtual` is used. */
int ku_pp_schedule_n_virtual(const char *name);
/*
 * Generate a schedule.
 *
 *   n_virtual   stages per rank, for interleaved; other generators ignore it
 *
 * Errors: EINVAL, no such name, or it does not exist for these numbers.
 */
KU_STATUS ku_pp_schedule_create(const char *name, int n_ranks, int n_virtual, int n_micro,
                                struct ku_pp_schedule **s);
/* The same stages on the same ranks, forward only: evaluation. */
KU_STATUS ku_pp_schedule_forward(const struct ku_pp_schedule *s, struct ku_pp_schedule **forward);
void ku_pp_schedule_destroy(struct ku_pp_schedule *s); /* NULL is allowed */

/*
 * EINVAL unless every stage and micro-batch has F and either B or I and W, each of F, I and W (B is
 * both) in the order of micro-batches, and the lists run to the end when every block waits for
 * those that it depends on.
 *
 *   name   of the text, in messages; the cell is named as row and column
 *
 * Errors: EINVAL; ENOMEM.
 */
KU_STATUS ku_pp_schedule_check(const struct ku_pp_schedule *s, const char *name);

/*
 * The text of PyTorch's pipelines: a row per rank, a cell per block, as "0F0,,1F0,1I0,1W0"; empty
 * cells are idle time. A cell "(0F3;7B1)OVERLAP_F_B" has several blocks, which run in that order.
 */
KU_STATUS ku_pp_schedule_parse(const char *name, const char *text, size_t bytes,
                               struct ku_pp_schedule **s);
KU_STATUS ku_pp_schedule_read(const char *path,
                              struct ku_pp_schedule **s); /* EINPUT: not readable */
struct ku_str;
/* Idle cells are those of unit costs. */
KU_STATUS ku_pp_schedule_print(const struct ku_pp_schedule *s, struct ku_str *out);

/* Time of a block per kind, and of the transfers of its results to another rank: of F to the next
 * stage, of I to the one before. B takes I + W. */
struct ku_stage_cost {
    double f, i, w;
    double sent, sent_back;
};
struct ku_block_cost {
    double f, i, w;
    double comm;                    /* of every transfer, beside those of the stages */
    const struct ku_stage_cost *of; /* [n_stages]; NULL: f, i and w of every stage */
};
double ku_block_cost(const struct ku_block_cost *cost, int stage, int kind);
/* Of the result of F or I of a stage to another rank. */
double ku_block_transfer(const struct ku_block_cost *cost, int stage, int kind);
/*
 * Runs the lists: every block begins when its rank is free and what it depends on has arrived.
 *
 *   begin, end   per block of the schedule, or NULL
 *   makespan     -1: the lists wait for each other
 *   stuck        the block at which a rank then waits for ever, or NULL
 *
 * Errors: ENOMEM.
 */
KU_STATUS ku_pp_schedule_run(const struct ku_pp_schedule *s, const struct ku_block_cost *cost,
                             double *begin, double *end, double *makespan, uint32_t *stuck);
enum { KU_NO_BLOCK = -1 };
/*
 * Find the transfers of a step: the block of another rank that reads the result of each block,
 * activations of F and gradients of I or B.
 *
 *   reader   out, per block: the index of that block; KU_NO_BLOCK: none, or one of the same rank
 *
 * Errors: ENOMEM.
 */
KU_STATUS ku_pp_schedule_readers(const struct ku_pp_schedule *s, int64_t *reader);
/* The longest time from a rank's first block to its last. */
double ku_pp_schedule_span(const struct ku_pp_schedule *s, const double *begin, const double *end);
/*
 * The share of a step that the ranks are idle. Without the optimizer a step takes the span, as the
 * next one begins at once on every rank (Qi et al. 2023, section 2.3).
 *
 *   is_joint   the step takes the makespan: all ranks update together, after the norm of all
 *   bubble     -1: the lists wait for each other
 *
 * Errors: ENOMEM.
 */
KU_STATUS ku_pp_schedule_bubble(const struct ku_pp_schedule *s, const struct ku_block_cost *cost,
                                bool is_joint, double *bubble);
/*
 * What a stage holds of a micro-batch between its blocks, in bytes: from F to I, from F to W, from
 * I to W. And what it sends to the next stage in F and to the one before in I
 * (pass/pipe/between_blocks.h).
 */
struct ku_stage_bytes {
    double f_to_i, f_to_w, i_to_w;
    double sent, sent_back;
};
/* The bytes that one micro-batch holds at most. */
double ku_stage_bytes_max(const struct ku_stage_bytes *b);
/* What a rank may hold. */
struct ku_pp_limit {
    int in_flight;                   /* micro-batches of each stage, in the mean of its stages */
    double bytes;                    /* between blocks; 0: any */
    const struct ku_stage_bytes *of; /* [n_stages]; NULL if bytes is 0 */
};
/*
 * A schedule from costs, one stage per rank: ranks begin blocks as early as they may within the
 * limit, which one micro-batch fits into.
 *
 *   is_eager   W begins whenever nothing else may; else only where it delays nothing
 */
KU_STATUS ku_pp_schedule_list(int n_ranks, int n_micro, const struct ku_block_cost *cost,
                              const struct ku_pp_limit *limit, bool is_eager,
                              struct ku_pp_schedule **s);
/* v_shape.c: fills the lists of v-half or v-min. A rank holds at most ku_pp_v_limit of its stages'
 * micro-batches, of which 1f1b holds 2 p: p + 2 - p % 2, and 2 ((p + 1) / 3 + 1). */
KU_STATUS ku_pp_v_shape(struct ku_pp_schedule *s, bool is_min);
int ku_pp_v_limit(int p, bool is_min);
/* Without blocks; rank_of and first are zero. */
KU_STATUS ku_pp_schedule_empty(int n_ranks, int n_stages, int n_micro, struct ku_pp_schedule **s);

/*
 * The most micro-batches of its stages that a rank holds at once: forward begun, backward (W) not
 * yet ended.
 */
int ku_pp_schedule_peak(const struct ku_pp_schedule *s, int rank);
/* The most bytes that a rank holds between its blocks. bytes: [n_stages] */
double ku_pp_schedule_peak_bytes(const struct ku_pp_schedule *s, int rank,
                                 const struct ku_stage_bytes *bytes);

#endif
