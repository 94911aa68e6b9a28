/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_NN_BUILDER_H
#define KU_NN_BUILDER_H

#include "ir/graph.h"
#include "kumi/graph.h"

enum { KU_MAX_SCOPE_BYTES = 256, KU_MAX_SCOPES = 16 };

/* What the public builder holds: the graph, where names begin, and the first failure. */
struct kumi_graph {
    struct ku_graph *ir;
    char scope[KU_MAX_SCOPE_BYTES];
    int scope_bytes[KU_MAX_SCOPES], n_scopes;
    ku_id n_sourced; /* nodes whose source line is noted */
    struct kumi_error error;
};

/* Hands the IR over to the compiler; the builder keeps nothing. KUMI_EINVAL: the first failure of
 * building. */
int ku_builder_take(struct kumi_graph *graph, struct ku_graph **ir);

#endif
