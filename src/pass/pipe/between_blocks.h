/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PASS_PIPE_BETWEEN_BLOCKS_H
#define KU_PASS_PIPE_BETWEEN_BLOCKS_H

#include "base/err.h"
#include "ir/graph.h"
#include "pass/pipe/block_schedule.h"

/*
 * What lies between the blocks of a pipeline, in bytes of one rank and one micro-batch: activations
 * and adjoints that a stage holds from one block to a later one, and what it sends to its
 * neighbours. They follow from a compiled graph that has a stage for each layer, for every division
 * of the layers. A stage holds what it made or received in a block and reads in a later one, and
 * what it sent in F until the next stage has answered, at the latest in I:
 *
 *     F ---- f_to_i ---> I           operands of act_dx, norm_dx, ..; what was sent
 *     F -------- f_to_w -------> W   operands of linear_dw
 *                        I - i_to_w > W   adjoints that linear_dw reads
 *
 * Values that share a buffer (in-place results, converts that move nothing) count once. What lives
 * within a block alone, workspaces, ports and sums over micro-batches do not count.
 */
struct ku_between_value {
    double bytes;
    int16_t made, high;  /* layer that makes it; of F: last layer that reads it, else `made` */
    uint32_t first, end; /* readings in later blocks */
};
struct ku_between_reading {
    int16_t layer;
    uint8_t kind; /* F_TO_I, F_TO_W or I_TO_W of between_blocks.c */
};
struct ku_between {
    int n_layers;                   /* stages of the graph: the layers, and the end */
    struct ku_between_value *value; /* those that are read in a later block or by a later layer */
    uint32_t n_values;
    struct ku_between_reading *reading; /* of a value by layer, the longest of each */
    uint32_t n_readings;
    double *forward, *back; /* [n_layers] bytes between layer l and l + 1 */
};

/*
 *   g   compiled for training with the ranks of axes tp and tpi, without a parameter server, ZeRO
 *       and stages on other ranks; node->stage is the layer
 */
KU_STATUS ku_between_find(const struct ku_graph *g, int n_layers, struct ku_between *b);
void ku_between_fini(struct ku_between *b);
/*
 * Of stages of count[k] layers each; the last also has the end.
 *
 *   bytes   out [n_stages]
 */
void ku_between_add_up(const struct ku_between *b, const int *count, int n_stages,
                       struct ku_stage_bytes *bytes);
/* Sets the costs of transfers, `per_byte` times what each stage sends. */
void ku_between_add_transfers(const struct ku_stage_bytes *bytes, int n_stages, double per_byte,
                              struct ku_stage_cost *cost);

#endif
