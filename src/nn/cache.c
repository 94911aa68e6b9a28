/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decoding: attention over keys and values cached by earlier runs.
 *
 *     cache [n, h, cache, d]   | rows 0 .. positions[n]-1: earlier tokens | t new rows | unused |
 *
 * cache_write stores the new keys and values from row positions[n] on; attention_kv masks later
 * rows.
 */
#define KUMI_NO_SOURCE
#include "nn/builder.h"

#include <stdio.h>

#include "base/err.h"

kumi_value ku_builder_pick(struct kumi_graph *g, kumi_value x, int index)
{
    struct ku_attrs a = ku_attrs_default;
    a.index = index;
    if (x == 0)
        return 0;
    return ku_builder_node(g, &(struct ku_make){.op = KU_OP_pick, .n_in = 1, .in = {x}, .attr = &a},
                           "");
}

/* A port with a number of each sample, created by its first use. */
static kumi_value per_sample(struct kumi_graph *g, const char *name, int64_t n)
{
    ku_id made = ku_builder_has_failed(g) ? 0 : ku_graph_find_input(g->ir, name);
    return made ? made : kumi_input(g, name, KUMI_I32, "n", &n);
}

kumi_value ku_builder_positions(struct kumi_graph *g, int64_t n)
{
    return per_sample(g, "positions", n);
}

kumi_value ku_builder_lengths(struct kumi_graph *g, int64_t n)
{
    return per_sample(g, "lengths", n);
}

ku_id ku_builder_cache(struct kumi_graph *g, const char *name, kumi_value x, int64_t cache)
{
    char full[KU_MAX_SCOPE_BYTES];
    if (ku_builder_has_failed(g) || x == 0)
        return 0;
    const struct ku_shape *s = &g->ir->shape[g->ir->value[x].shape];
    if (s->ndim != 4 || ku_shape_find(s, 's') >= 0) {
        KU_ERR(KUMI_EINVAL, "graph: %s%s: keys and values have [samples, tokens, heads, width]",
               g->scope, name);
        return ku_builder_fail(g);
    }
    struct ku_shape kept = *s;
    kept.dim[1] = s->dim[2];
    kept.dim[2] = (struct ku_dim){.name = 's', .count = cache, .seen = cache};
    snprintf(full, sizeof full, "%s%s", g->scope, name);
    ku_id id = ku_graph_tensor(g->ir, full, KU_T_CACHE, KUMI_F32, &kept);
    return id ? id : ku_builder_fail(g);
}

kumi_value ku_builder_cache_write(struct kumi_graph *g, ku_id cache, kumi_value x,
                                  kumi_value positions)
{
    if (ku_builder_has_failed(g) || !cache || !x || !positions)
        return 0;
    struct ku_make m = {.op = KU_OP_cache_write, .n_in = 3};
    m.in[0] = g->ir->tensor[cache].value;
    m.in[1] = x;
    m.in[2] = positions;
    kumi_value next = ku_builder_node(g, &m, "");
    if (next)
        g->ir->tensor[cache].next = next;
    return next;
}

/* Appends x to the cache of this name in the current scope. */
static kumi_value append(struct kumi_graph *g, const char *name, kumi_value x, int64_t cache)
{
    const int64_t n = g->ir->shape[g->ir->value[x].shape].dim[0].count;
    ku_id id = ku_builder_cache(g, name, x, cache);
    return id ? ku_builder_cache_write(g, id, x, ku_builder_positions(g, n)) : 0;
}

kumi_value ku_builder_cached_attention(struct kumi_graph *g, kumi_value q, kumi_value k,
                                       kumi_value v, int64_t cache, double scale)
{
    if (ku_builder_has_failed(g) || !q || !k || !v)
        return 0;
    const int64_t n = g->ir->shape[g->ir->value[q].shape].dim[0].count;
    struct kumi_attention_kv o = {.causal = 1, .scale = scale};
    o.positions = ku_builder_positions(g, n);
    kumi_value keys = append(g, "k_cache", k, cache);
    kumi_value values = keys ? append(g, "v_cache", v, cache) : 0;
    return kumi_attention_kv(g, q, keys, values, &o);
}
