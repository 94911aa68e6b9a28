/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PASS_PIPE_PIPE_H
#define KU_PASS_PIPE_PIPE_H

#include <stdbool.h>

#include "base/err.h"
#include "ir/graph.h"
#include "ir/program.h"
#include "pass/pipe/block_schedule.h"

/*
 * What a pipeline moves between the coordinates of axis pp, and which coordinate runs which node.
 * The graph is that of one process; only the stages of its nodes say where they run.
 *
 *     F, I, W    at the coordinate of the node's stage
 *     O          of a tensor: at the coordinate that stores it; the sum of a gradient or of the
 *                loss over micro-batches: where micro-batches make it
 *     A, O       of no tensor: wherever the result is read; counters everywhere
 *
 * A value that is read elsewhere becomes messages. Those of micro-batches pass from stage to stage,
 * so an encoder's output reaches every stage of the decoder; those of A and O go directly:
 *
 *     class   value                                     from -> to
 *     F       activations                               stage s -> s + 1, in block F
 *     I       adjoints                                  s -> s - 1, in block I or B
 *     W       adjoints of what depends on no input      s -> s - 1, in block W or B
 *     A       parameters of several stages              the first stage -> others
 *     O       gradients of such a parameter, the norm,  where it is made -> where it is read
 *             loss and metrics
 *
 * Messages of one class between the same two coordinates are ordered alike on both: by the node
 * that makes the value, relayed ones last. Where a pair of coordinates has several pairs of
 * neighbouring stages, each has a channel of its own.
 */
enum ku_message_class { KU_MSG_F, KU_MSG_I, KU_MSG_W, KU_MSG_A, KU_MSG_O };
struct ku_message {
    ku_id value, def; /* def: the node that makes it; 0: state */
    uint8_t cls, is_relay, channel;
    int16_t from, to;         /* stages; of A and O coordinates */
    int16_t sender, receiver; /* coordinates */
};

struct ku_pipe {
    const struct ku_graph *g;
    const struct ku_pp_schedule *s;
    uint64_t *runs; /* per node: the coordinates that run it, a mask */
    struct ku_message *message;
    uint32_t n_messages, cap;
};
/* Errors: EBUG, a value would go against the order of stages; EINVAL, too many stages. */
KU_STATUS ku_pipe_create(const struct ku_graph *g, const struct ku_pp_schedule *s,
                         struct ku_pipe **pipe);
void ku_pipe_destroy(struct ku_pipe *p); /* NULL is allowed */
/* The coordinate that stores a tensor; -1: all. */
int ku_pipe_home(const struct ku_graph *g, const struct ku_pp_schedule *s, ku_id tensor);

#endif
