/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PASS_PIPE_CHOOSE_H
#define KU_PASS_PIPE_CHOOSE_H

#include "base/err.h"
#include "ir/graph.h"
#include "pass/pipe/block_schedule.h"

/* What parallel.pp_schedule auto decides from. */
struct ku_between;
struct ku_pp_request {
    int n_ranks, n_virtual, n_micro;   /* n_virtual: stages per rank of interleaved */
    int in_flight;                     /* max micro-batches that a rank holds */
    double bytes;                      /* max bytes that it holds between blocks; 0: any */
    double per_byte;                   /* cost of a byte between stages, in the unit of `layer` */
    const struct ku_between *between;  /* of the layers; NULL if bytes and per_byte are 0 */
    const char *const *stages;         /* [n_stages] by hand, as ku_stages_parse takes it */
    int n_stages;                      /* 0: divided by cost */
    const struct ku_stage_cost *layer; /* [layers + 1] what each costs; last: of the end */
};
/*
 * The schedule with the shortest step for the model's layers, of all generators and of the list
 * scheduler, among those that hold at most in_flight micro-batches and at most `bytes` of their
 * activations. A block costs what its stage's layers do, a transfer what its bytes do. A rank of
 * several stages holds their number of micro-batches divided by the number of stages.
 *
 *   layers   out [s->n_stages] layers of each stage; ku_free
 *   name     out: "zb-h1", or "list" of the list scheduler
 *
 * Errors: EINVAL, fewer layers than ranks, no schedule for the stages by hand, or none within
 * `bytes`, with the coordinate and the bytes of the schedule that needs the fewest.
 */
KU_STATUS ku_pp_choose(const struct ku_graph *g, const struct ku_pp_request *q,
                       struct ku_pp_schedule **s, int **layers, const char **name);

#endif
