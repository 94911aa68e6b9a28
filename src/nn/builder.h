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

/* -- for the layers: after a failure each returns 0 ------------------------------------------- */
int ku_builder_has_failed(const struct kumi_graph *g);
/* Remembers the first failure, the thread's last error. */
kumi_value ku_builder_fail(struct kumi_graph *g);
/* The forward node of an op; its first result. `name` becomes the module path. */
ku_id ku_builder_node(struct kumi_graph *g, struct ku_make *m, const char *name);
/* A layer's parameter, <name>.<part>: in files a matrix whose rows are the first `rows` dims, or a
 * vector when those are all; rows = 0: in files as it is. */
kumi_value ku_builder_param(struct kumi_graph *g, const char *name, const char *part,
                            const struct ku_shape *s, int rows, const struct kumi_init *init);

#endif
