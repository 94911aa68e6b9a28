/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_OP_ATTENTION_H
#define KU_OP_ATTENTION_H

#include "op/op.h"

/*
 * Geometry shared by attention (one packed qkv operand), attention_kv (separate q, k, v) and their
 * gradients, so that one kernel serves all four. Keys and values have n_heads heads. Each serves
 * `group` consecutive query heads: query head i reads key head i / group.
 */

/*
 * Strides of one operand. Element (sample, token, head, j) is at
 *
 *     first + sample * per_sample + token * ld + head * per_head + j
 */
struct ku_attn_rows {
    int operand; /* index of the input; results use the same strides */
    int64_t first, per_sample, ld, per_head;
};
struct ku_attention {
    int64_t n_samples, n_queries, n_keys, n_heads, group, width;
    struct ku_attn_rows q, k, v, o, d_o;
    int k_heads;                                    /* dim of k that holds the heads */
    int lse, positions, lengths, segments, control; /* input indices; -1: absent */
};
/* Geometry of an op whose operands passed inference. */
struct ku_attention ku_attention_of(int op, const struct ku_attrs *attr, int n_in,
                                    const struct ku_shape *const *in);

static inline int64_t ku_attn_at(const struct ku_attn_rows *rows, int64_t sample, int64_t token,
                                 int64_t head)
{
    return rows->first + sample * rows->per_sample + token * rows->ld + head * rows->per_head;
}
/* Index of the log-sum-exp of a query head's first query. */
static inline int64_t ku_attn_lse_at(const struct ku_attention *a, int64_t sample, int64_t head)
{
    return (sample * a->n_heads * a->group + head) * a->n_queries;
}

/*
 * Key position of a sample's first query, clamped to [0, n_keys]. `position`: the data of operand
 * `positions`; NULL: the queries are the last tokens.
 */
static inline int64_t ku_attn_offset(const struct ku_attention *a, const int32_t *position,
                                     int64_t sample)
{
    if (position == NULL)
        return a->n_keys - a->n_queries;
    int64_t at = position[sample];
    return at < 0 ? 0 : at < a->n_keys ? at : a->n_keys;
}

#endif
