/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_NN_BUILDER_H
#define KU_NN_BUILDER_H

#include "base/err.h"
#include "ir/graph.h"
#include "kumi/graph.h"

/*
 * The model builder: it implements the public functions of kumi/graph.h.
 *
 * A public function checks its arguments (check.c), creates parameters, and appends forward nodes
 * to the IR. It infers all shapes at once, so an error names the layer that caused it:
 *
 *     kumi_graph_enter(g, "h.0");          scope "h.0."
 *     y = kumi_linear(g, x, "c_fc", &o);   parameters h.0.c_fc.weight and .bias, node linear
 *     kumi_graph_leave(g);                 scope ""
 *     kumi_graph_error(g);                 the first failure; later calls return 0 and do nothing
 *     ku_builder_take(g, &ir);             the graph goes to the compiler
 *
 *   builder.c    names, ports, parameters, general layers, losses, metrics
 *   conv.c norm.c decoder.c cache.c    other layers
 *   gpt2.c llama.c bert.c transformer.c resnet.c mlp.c    models, built with the layers above
 */
#define KU_MAX_NUMBER 0x1p127 /* limit of attribute values: finite in f32 */
/*
 * Limits of names with their scope, NUL included. A part (".num_batches_tracked") still fits after
 * the longest name.
 */
enum { KU_MAX_NAME_BYTES = 224, KU_MAX_SCOPE_BYTES = 256, KU_MAX_SCOPES = 16 };

/* State of the public builder: the graph, the current scope, and the first failure. */
struct kumi_graph {
    struct ku_graph *ir;
    char scope[KU_MAX_SCOPE_BYTES];
    int scope_bytes[KU_MAX_SCOPES], n_scopes;
    ku_id n_sourced; /* nodes whose source line is recorded */
    struct kumi_error error;
};

/*
 * Moves the IR to *ir and leaves the builder empty. KUMI_EINVAL: the first failure of building.
 */
KU_STATUS ku_builder_take(struct kumi_graph *graph, struct ku_graph **ir);

/*
 * For layers. After a failure each function returns 0.
 */
/* 1 after a failure, or if g is NULL (the thread's error record is then set). */
bool ku_builder_has_failed(const struct kumi_graph *g);
/*
 * Records the thread's last error as the graph's error, if it is the first. Returns 0.
 */
kumi_value ku_builder_fail(struct kumi_graph *g);
/* Appends a forward node and returns its first result. `name` becomes the module path. */
ku_id ku_builder_node(struct kumi_graph *g, struct ku_make *m, const char *name);
/*
 * Creates the parameter <name>.<part> of a layer. In files it is a matrix whose rows are the first
 * `rows` dims, a vector if these are all dims, or unchanged if rows = 0.
 */
kumi_value ku_builder_param(struct kumi_graph *g, const char *name, const char *part,
                            const struct ku_shape *s, int rows, const struct kumi_init *init);

/*
 * Checks (check.c). Each returns 1, or 0 with the builder failed.
 */
/* A name consists of letters, digits and _ - . / (kumi/graph.h), and fits with its scope. */
KU_STATUS ku_builder_check_name(struct kumi_graph *g, const char *name);
/* x is a value of this graph; 0 is none. `what` is the layer or operand, for the message. */
KU_STATUS ku_builder_check_value(struct kumi_graph *g, kumi_value x, const char *what);
KU_STATUS ku_builder_check_floating(struct kumi_graph *g, kumi_value x, const char *what);
/* x is an input port, whose values are checked when it is filled. */
KU_STATUS ku_builder_check_port(struct kumi_graph *g, kumi_value x, const char *what);
KU_STATUS ku_builder_check_number(struct kumi_graph *g, const char *what, double x, double least,
                                  double most);
/* A name with dims of at least 1 element each. */
KU_STATUS ku_builder_check_counts(struct kumi_graph *g, const char *name, const char *dims,
                                  const int64_t *count);

/* Decoding: for models built with a cache (kumi_shape_of_batch). */
/* Selects element `index` of dim 2: x [n, t, parts, ..] -> [n, t, ..]. */
kumi_value ku_builder_pick(struct kumi_graph *g, kumi_value x, int index);
/* The port "positions", i32 [n]: the position of each sample's first new token. */
kumi_value ku_builder_positions(struct kumi_graph *g, int64_t n);
/* The port "lengths", i32 [n]: tokens of each sample's text, of which a run may process a part. */
kumi_value ku_builder_lengths(struct kumi_graph *g, int64_t n);
/* Creates a cache <scope><name> [n, h, cache, d] for x [n, t, h, d]. */
ku_id ku_builder_cache(struct kumi_graph *g, const char *name, kumi_value x, int64_t cache);
/*
 * Writes x into the cache at `positions`, i32 [n]. Returns the updated cache.
 */
kumi_value ku_builder_cache_write(struct kumi_graph *g, ku_id cache, kumi_value x,
                                  kumi_value positions);
/*
 * Causal attention of the new tokens over the cached tokens and themselves. Creates the caches
 * <scope>k_cache and <scope>v_cache, [n, h, cache, d].
 *
 *   q      [n, t, h, d] or [n, t, h, r, d], after rotary encoding if the model uses it
 *   k, v   [n, t, h, d], likewise
 *   scale  0 = 1/sqrt(width)
 */
kumi_value ku_builder_cached_attention(struct kumi_graph *g, kumi_value q, kumi_value k,
                                       kumi_value v, int64_t cache, double scale);

#endif
