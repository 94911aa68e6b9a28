/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PASS_PIPE_LAYER_STAGES_H
#define KU_PASS_PIPE_LAYER_STAGES_H

#include <stdbool.h>

#include "base/err.h"
#include "ir/graph.h"

/*
 * Stages of a model: consecutive repeated layers (pass/unit.h), in the order in which forward meets
 * them. What follows the last layer, the end, is always in the last stage, which may have nothing
 * else. What else is in no layer joins a neighbour: a node the last layer that it depends on, one
 * that depends on none (an embedding, the count of tokens) the first one that reads it.
 *
 *     wte wpe | h.0 h.1 | h.2 h.3 | ln_f lm_head        layers of 2 stages: {2, 2}
 *     `----- stage 0 --´ `------ stage 1 -------´       of 3: {2, 2, 0}
 */
struct ku_layers {
    int n;
    bool has_end;  /* nodes of forward follow the last layer; of_node is n */
    ku_id *name;   /* [n] interned path of the layer: its first node's path, .. */
    size_t *bytes; /* [n] .. of which this many bytes are the layer's */
    double *flops; /* [n + 1] of forward, with the nodes that join the layer; last: of the end */
    int *of_node;  /* [n_nodes of the graph]: the layer that each node of forward joins */
};
KU_STATUS ku_layers_find(const struct ku_graph *g, struct ku_layers *l);
void ku_layers_fini(struct ku_layers *l);

/*
 * Divide the layers among n_stages (balance.c): the coordinate with the most work has as little as
 * possible, and the others have equal work, as far as layers divide.
 *
 *   layer     [layers + 1] what F, I and W of each layer cost, last of the end; NULL: forward's
 *             floating-point operations
 *   rank_of   [n_stages] coordinates of axis pp; NULL: one stage on each
 *   count     out [n_stages]: layers of each stage, at least 1; of the last at least 0 where nodes
 *             follow the last layer
 *
 * Errors: EINVAL, fewer layers than stages, with the layers' names.
 */
struct ku_stage_cost;
KU_STATUS ku_stages_balance(const struct ku_graph *g, const struct ku_stage_cost *layer,
                            const int *rank_of, int n_stages, int *count);
struct ku_balance {
    int n_layers, n_stages;
    const double *layer; /* [n_layers] */
    double end;          /* of the end; 0: the last stage has a layer */
    const int *rank_of;  /* [n_stages] */
};
KU_STATUS ku_balance(const struct ku_balance *b, int *count);
/*
 * The same by hand.
 *
 *   text   [n] per stage a number of layers ("5"), a layer ("h.3") or a range ("h.0-5"); "0", only
 *          the last one: what follows the layers
 *
 * Errors: EINVAL, not these layers in order, each once.
 */
KU_STATUS ku_stages_parse(const struct ku_graph *g, const char *const *text, int n, int n_stages,
                          int *count);
/*
 * Set the stage of every node of forward, and of every tensor: that of its first use.
 *
 *   count   [n_stages] layers of each stage; NULL: one stage
 *
 * Errors: EINVAL, other layers than `count` is for, or a layer that reads a later one.
 */
KU_STATUS ku_stages_assign(struct ku_graph *g, const int *count, int n_stages);

/*
 * What the blocks of each stage cost: the floating-point operations of its nodes in F, I and W of a
 * global batch. After pass recompute that includes what backward makes again.
 *
 *   cost   out [n_stages]
 */
void ku_stages_cost(const struct ku_graph *g, int n_stages, struct ku_stage_cost *cost);
/* The same of stages of count[k] layers each, from the costs of the layers and of the end. Neither
 * has transfers. */
void ku_stages_add_up(const struct ku_stage_cost *layer, const int *count, int n_stages,
                      struct ku_stage_cost *cost);

/* The stage that stores a tensor; -1: every stage has it (counters). */
int ku_stage_of_tensor(const struct ku_graph *g, ku_id tensor);

#endif
