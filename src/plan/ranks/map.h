/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PLAN_RANKS_MAP_H
#define KU_PLAN_RANKS_MAP_H

#include <stdbool.h>

#include "pass/pipe/layer_stages.h"
#include "plan/plan.h"

/*
 * Which rank has what, from the placements of the compiled graph. Nothing here knows a strategy:
 *
 *     samples         slices of the inputs along n
 *     layers          the stages of a coordinate of axis pp
 *     activations     the slice of a value that one layer computes and the next one reads
 *     state           of every tensor the slice (S: tp, tpi), in it the owned chunks (Z), on the
 *                     coordinate of axis pp that has its stage
 *     gradients       the operands of the update
 *     exchanges       the collectives and messages of the programs
 *
 * A column is a rank. Of many ranks only the first ones and the last one of each axis are columns,
 * so the cost is that of compiling, whatever the number of ranks.
 */
enum { KU_MAX_COLUMNS = 16 };
struct ku_rank_column {
    int rank;
    struct ku_coord at;
    bool is_after_gap; /* ranks between the column before and this one are left out */
};

/* Kinds of state, and parts of a model. */
enum ku_state_kind {
    KU_SK_PARAMS, /* that forward reads, and running statistics */
    KU_SK_GRADS,
    KU_SK_MASTER, /* f32 parameters of which forward reads a copy */
    KU_SK_OPTIMIZER,
    KU_N_STATE_KINDS
};
enum ku_model_part {
    KU_MP_TABLES,
    KU_MP_CONVOLUTIONS,
    KU_MP_ATTENTION,
    KU_MP_LAYERS, /* what else layers multiply with */
    KU_MP_NORMS,
    KU_MP_HEAD,
    KU_MP_OTHER,
    KU_N_MODEL_PARTS
};

/* A tensor of the state, or the gradient of one. */
struct ku_rank_item {
    uint8_t kind, part, dtype;
    bool is_kept;      /* a rank stores its owned chunks only */
    bool is_gathered;  /* .. and has the rest for a part of the step */
    bool is_common;    /* the ranks along axis local have one copy */
    int16_t stage, pp; /* of the pipeline; the coordinate that stores it; -1: all */
    uint64_t readers;  /* coordinates of axis pp that have it for a part of the step, a mask */
    int32_t first_block;
    int32_t order; /* tensors of fewer chunks than owners go by owner, after the others: 0 */
    int64_t count; /* elements of the tensor */
    ku_id tensor, shape, split, blocks; /* of the graph; placements, 0: none */
};

/*
 * Where in a tensor a rank's elements lie, as fractions of its length: [slice[0], slice[1]) is what
 * it has in the step, [own[0], own[1]) of that what it stores.
 *
 *     0          slice[0]   own[0]  own[1]      slice[1]       1
 *     |------------|==========|########|===========|-----------|
 */
struct ku_rank_extent {
    double slice[2], own[2];
    int64_t count; /* elements that it stores */
};

struct ku_rank_exchange {
    uint8_t exchange, axes; /* as struct ku_volume */
    uint16_t group;
    int n_ranks;
    unsigned classes;  /* enum ku_class of the operands, a mask */
    uint32_t n_a_step; /* collectives; both max over the coordinates of axis pp */
    double ring_bytes, stored_bytes;
};

struct ku_rank_map {
    struct ku_plan *plan;
    struct ku_graph *g;
    struct ku_mesh mesh;
    int n_columns;
    struct ku_rank_column column[KU_MAX_COLUMNS];
    struct ku_layers layers;
    struct ku_rank_item *item; /* [n_items], by kind, part, stage and distribution */
    uint32_t n_items;
    struct ku_rank_exchange *exchange; /* [n_exchanges] */
    uint32_t n_exchanges;
    double message_bytes; /* that a rank sends to other coordinates of axis pp, max */
    ku_id activation;     /* a value that passes from layer to layer; 0: none */
    bool has_attention;
};

/* plan: opened; borrowed until fini. Nothing needs to be finished on failure. */
KU_STATUS ku_rank_map_init(struct ku_rank_map *m, struct ku_plan *plan);
void ku_rank_map_fini(struct ku_rank_map *m);

/* What a column has of a tensor. False: nothing in this step. */
bool ku_rank_extent_of(const struct ku_rank_map *m, const struct ku_rank_item *x, int column,
                       struct ku_rank_extent *out);
/* The samples of the global batch of *n that a column computes: [*begin, *end). */
void ku_rank_samples(const struct ku_rank_map *m, int column, int64_t *begin, int64_t *end,
                     int64_t *n);
/* The positions of `activation` of a column, of *n; *n 0: the value has no sequence. */
void ku_rank_tokens(const struct ku_rank_map *m, int column, int64_t *begin, int64_t *end,
                    int64_t *n);
/* The first layer of a stage and their number. */
void ku_rank_stage_layers(const struct ku_rank_map *m, int stage, int *first, int *n);
int ku_rank_n_stages(const struct ku_rank_map *m);
/* The coordinate of axis pp of a stage. */
int ku_rank_stage_pp(const struct ku_rank_map *m, int stage);

/*
 * parts.c: the part of the model that each parameter of a graph belongs to, before it is compiled.
 *
 *   part   out [g->n_tensors] of enum ku_model_part
 */
KU_STATUS ku_model_parts(const struct ku_graph *g, uint8_t *part, bool *has_attention);

/* picture.c. path: as ku_picture_write takes it. */
KU_STATUS ku_rank_map_draw(const struct ku_rank_map *m, const char *config, const char *path);

#endif
