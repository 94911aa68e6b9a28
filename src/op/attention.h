/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_OP_ATTENTION_H
#define KU_OP_ATTENTION_H

#include "op/op.h"

/*
 * The geometry that attention (one packed operand) and attention_kv (q, k and v apart) share with
 * their gradients, so that one kernel serves all four. Keys and values have n_heads heads; each
 * serves `group` heads of queries in a row: query head i reads key head i / group.
 */

/* Rows of one operand: element (sample, token, head, j) lies at
 * first + sample * per_sample + token * ld + head * per_head + j. */
struct ku_attn_rows {
    int operand; /* which input; results use the same rows */
    int64_t first, per_sample, ld, per_head;
};
struct ku_attention {
    int64_t n_samples, n_queries, n_keys, n_heads, group, width;
    struct ku_attn_rows q, k, v, o, d_o;
    int k_heads;                                    /* the dim of k's heads */
    int lse, positions, lengths, segments, control; /* inputs; -1: it has none */
};
/* Of an op whose operands inference let through. */
struct ku_attention ku_attention_of(int op, const struct ku_attrs *attr, int n_in,
                                    const struct ku_shape *const *in);

static inline int64_t ku_attn_at(const struct ku_attn_rows *rows, int64_t sample, int64_t token,
                                 int64_t head)
{
    return rows->first + sample * rows->per_sample + token * rows->ld + head * rows->per_head;
}
/* Where the log-sum-exp of a head's first query lies; heads of queries. */
static inline int64_t ku_attn_lse_at(const struct ku_attention *a, int64_t sample, int64_t head)
{
    return (sample * a->n_heads * a->group + head) * a->n_queries;
}

/* The key at which a sample's first query stands; `position` is its word of `positions`. Beyond the
 * keys all places are alike. */
static inline int64_t ku_attn_offset(const struct ku_attention *a, const int32_t *position,
                                     int64_t sample)
{
    if (position == NULL)
        return a->n_keys - a->n_queries;
    int64_t at = position[sample];
    return at < 0 ? 0 : at < a->n_keys ? at : a->n_keys;
}

#endif
