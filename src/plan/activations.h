/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PLAN_ACTIVATIONS_H
#define KU_PLAN_ACTIVATIONS_H

#include "ir/graph.h"
#include "pass/pipe/block_schedule.h"

/*
 * The bytes of activations that a transformer's layer retains for backward under the storage of
 * Korthikanti et al. 2022 (arXiv 2205.05198, sections 4 and 5): values take 2 bytes and masks of
 * dropout 1, attention retains its probabilities, their mask and what dropout leaves of them. They
 * are counted from the graph: of each layer the values that the gradient templates of its nodes
 * read, each once.
 *
 *     none        s b h (34 + 5 a s / h)                    h, a   width, heads
 *     tp          s b h (10 + 24 / t + 5 a s / (h t))       s, b   tokens, micro-batch
 *     tp, sp      s b h (34 / t + 5 a s / (h t))            t      ranks of axis tp
 *     selective   the same without 5 a s / h: attention is computed again
 *     full        2 s b h: the layer's input
 *
 * kumi's own programs store less, and `kumi plan --memory` plans them to the byte: masks are made
 * again from random streams and attention retains no probabilities.
 */
struct ku_activation_layout {
    int tp;
    int has_sp;    /* what tensor parallelism leaves whole is divided along the tokens */
    int recompute; /* enum ku_recompute */
};

/*
 * Of one layer.
 *
 *   g       as nn built it, for one micro-batch
 *   layer   path of the layer, "h.1"
 */
double ku_activations_of_layer(const struct ku_graph *g, const char *layer,
                               const struct ku_activation_layout *l);
/* Micro-batches that the first coordinate of a pipeline retains at most, in layers of one
 * coordinate: with 1f1b p of them, with interleaving p (1 + (p - 1) / (p v)) (section 4.2.3), and
 * never more than the step has. s: NULL: no pipeline. */
double ku_activations_in_flight(const struct ku_pp_schedule *s);

#endif
