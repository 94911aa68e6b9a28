/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_NN_BUILDER_H
#define KU_NN_BUILDER_H

#include "ir/graph.h"
#include "kumi/graph.h"

#define KU_MAX_NUMBER 0x1p127 /* of attributes: finite in f32 */
/* Of a name with its scope, NUL included; a part (".num_batches_tracked") still fits behind it. */
enum { KU_MAX_NAME_BYTES = 224, KU_MAX_SCOPE_BYTES = 256, KU_MAX_SCOPES = 16 };

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
/* Also where g is NULL, with the thread's record set. */
int ku_builder_has_failed(const struct kumi_graph *g);
/* Remembers the first failure, the thread's last error. */
kumi_value ku_builder_fail(struct kumi_graph *g);
/* The forward node of an op; its first result. `name` becomes the module path. */
ku_id ku_builder_node(struct kumi_graph *g, struct ku_make *m, const char *name);
/* A layer's parameter, <name>.<part>: in files a matrix whose rows are the first `rows` dims, or a
 * vector when those are all; rows = 0: in files as it is. */
kumi_value ku_builder_param(struct kumi_graph *g, const char *name, const char *part,
                            const struct ku_shape *s, int rows, const struct kumi_init *init);

/* -- check.c: 1, or 0 and the builder failed (before, or by this) ------------------------------ */
/* Of letters, digits and _ - . / (kumi/graph.h), with the scope short enough. */
int ku_builder_check_name(struct kumi_graph *g, const char *name);
/* A value of this graph; 0 is none. what: the layer or operand, for the message. */
int ku_builder_check_value(struct kumi_graph *g, kumi_value x, const char *what);
int ku_builder_check_floating(struct kumi_graph *g, kumi_value x, const char *what);
/* A port: what numbers it may hold is known, and checked when it is filled. */
int ku_builder_check_port(struct kumi_graph *g, kumi_value x, const char *what);
int ku_builder_check_number(struct kumi_graph *g, const char *what, double x, double least,
                            double most);
/* A name with dims, of at least 1 element each. */
int ku_builder_check_counts(struct kumi_graph *g, const char *name, const char *dims,
                            const int64_t *count);

/* -- decoding: what a model calls where the batch has a cache (kumi_shape_of_batch) ------------ */
/* Part `index` of x [n, t, parts, ..] -> [n, t, ..]. */
kumi_value ku_builder_pick(struct kumi_graph *g, kumi_value x, int index);
/* The port "positions", i32 [n]: where the first new token of each sample stands. */
kumi_value ku_builder_positions(struct kumi_graph *g, int64_t n);
/* A cache <scope><name> [n, h, cache, d] for x [n, t, h, d], as it was left. */
ku_id ku_builder_cache(struct kumi_graph *g, const char *name, kumi_value x, int64_t cache);
/* x goes where positions say, i32 [n]; the cache behind that. */
kumi_value ku_builder_cache_write(struct kumi_graph *g, ku_id cache, kumi_value x,
                                  kumi_value positions);
/*
 * Causal attention of new tokens over those that this scope's cache keeps and themselves; scale 0 =
 * 1/sqrt(width). Makes the caches <scope>k_cache and <scope>v_cache, [n, h, cache, d].
 *
 *   q      [n, t, h, d] or [n, t, h, r, d], with positions encoded already if that is by rotation
 *   k, v   [n, t, h, d], likewise
 */
kumi_value ku_builder_cached_attention(struct kumi_graph *g, kumi_value q, kumi_value k,
                                       kumi_value v, int64_t cache, double scale);

#endif
