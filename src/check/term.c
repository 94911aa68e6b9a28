/* SPDX-License-Identifier: Apache-2.0 */
/* Terms: hashes of values, and the set of those that the model defines. */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/hash.h"
#include "base/mem.h"
#include "check/proof.h"

struct ku_term *ku_terms_find(const struct ku_terms *t, uint64_t hash)
{
    for (uint32_t i = (uint32_t)hash; t->cap; i++) {
        struct ku_term *x = &t->slot[i & (t->cap - 1)];
        if (x->hash == hash)
            return x;
        if (x->hash == 0)
            return NULL;
    }
    return NULL;
}

static void insert(struct ku_terms *t, const struct ku_term *x)
{
    uint32_t i = (uint32_t)x->hash;
    while (t->slot[i & (t->cap - 1)].hash)
        i++;
    t->slot[i & (t->cap - 1)] = *x;
    t->n++;
}

int ku_terms_add(struct ku_terms *t, const struct ku_term *x)
{
    KU_ASSERT(x->hash != 0);
    struct ku_term *old = ku_terms_find(t, x->hash);
    if (old) {
        old->is_partial |= x->is_partial;
        old->is_end |= x->is_end;
        return KUMI_OK;
    }
    if (2 * (t->n + 1) > t->cap) {
        struct ku_terms more = {.cap = t->cap ? 2 * t->cap : 1024};
        more.slot = ku_calloc(more.cap, sizeof *more.slot);
        if (more.slot == NULL)
            return KUMI_ENOMEM;
        for (uint32_t i = 0; i < t->cap; i++)
            if (t->slot[i].hash)
                insert(&more, &t->slot[i]);
        ku_free(t->slot);
        *t = more;
    }
    insert(t, x);
    return KUMI_OK;
}

uint64_t ku_attrs_hash(const struct ku_attrs *a)
{
    return ku_hash64(a, sizeof *a);
}

uint64_t ku_shape_hash(const struct ku_shape *s)
{
    uint64_t h = (uint64_t)s->ndim + 1;
    for (int d = 0; d < s->ndim; d++)
        h = ku_hash64_mix(h, (uint64_t)s->dim[d].count);
    return h;
}

uint64_t ku_term_of(int kind, uint64_t a, uint64_t b)
{
    int swaps = kind == KU_TERM_ADD || kind == KU_TERM_MAX || kind == KU_TERM_TREE;
    const uint64_t word[3] = {(uint64_t)kind, swaps && b < a ? b : a, swaps && b < a ? a : b};
    return ku_hash64(word, sizeof word) | 1;
}

uint64_t ku_term_squares(uint64_t gradient, int64_t index, int64_t chunk)
{
    return ku_term_of(KU_TERM_SQUARES, gradient, ku_hash64_mix((uint64_t)index, (uint64_t)chunk));
}

uint64_t ku_term_state(const char *param, const char *suffix)
{
    char name[KU_NAME_BYTES];
    int n = snprintf(name, sizeof name, "%s%s%s", param, suffix ? "." : "", suffix ? suffix : "");
    return ku_term_of(KU_TERM_STATE, ku_hash64(name, (size_t)n), 0);
}

void ku_term_draw(struct ku_term_op *x, int micro)
{
    if (ku_ops[x->op].traits & KU_OP_RANDOM && micro >= 0)
        x->attr = ku_hash64_mix(x->attr, (uint64_t)micro + 1);
}

/* act(z), and for ReLU the way back from act(z) to z: its gradient may read either. */
static uint64_t activated(int64_t act, uint64_t z)
{
    return ku_term_of(KU_OP_act, (uint64_t)act, z);
}

static uint64_t plain(const struct ku_term_op *x, int op, uint64_t attr, int n_in, int result,
                      uint8_t dtype)
{
    uint64_t word[KU_MAX_IN + 5] = {(uint64_t)op, attr, x->stream, (uint64_t)result, dtype};
    memcpy(word + 5, x->in, (size_t)n_in * sizeof *word);
    return ku_hash64(word, sizeof *word * (size_t)(5 + n_in)) | 1;
}

static uint64_t without_act(const struct ku_term_op *x)
{
    struct ku_attrs a = *x->a;
    if (a.act == KU_ACT_NONE)
        return x->attr;
    a.act = KU_ACT_NONE;
    return ku_attrs_hash(&a);
}

/* act_dx(dy, z). ReLU's mask is the same from z, from act(z), and from ReLUs of that. */
static uint64_t act_gradient(const struct ku_proof *c, int64_t act, uint64_t dy, uint64_t z)
{
    if (act == KU_ACT_RELU)
        for (uint64_t y; ku_terms_find(&c->terms, y = activated(act, z));)
            z = y;
    return ku_term_of(KU_OP_act_dx, ku_term_of(KU_OP_act, (uint64_t)act, dy), z);
}

static void batch_norm_results(struct ku_proof *c, const struct ku_term_op *x, uint64_t *out)
{
    struct ku_term_op inner = *x;
    if (x->op == KU_OP_batch_norm) {
        out[0] = plain(x, x->op, without_act(x), 5, 0, x->out_dtype[0]);
        if (x->n_in == 6)
            out[0] = ku_term_of(KU_TERM_ADD, out[0], x->in[5]);
        if (x->a->act != KU_ACT_NONE)
            out[0] = activated(x->a->act, out[0]);
        return;
    }
    if (x->n_in == 5) {
        inner.in[0] = act_gradient(c, KU_ACT_RELU, x->in[0], x->in[4]);
        out[3] = inner.in[0];
    }
    for (int i = 0; i < 3; i++)
        out[i] = plain(&inner, x->op, without_act(x), 4, i, x->out_dtype[i]);
}

/* The operands without those that are overwritten, and without totals: they are added to. */
static void what_is_read(const struct ku_term_op *x, struct ku_term_op *y)
{
    const unsigned traits = ku_ops[x->op].traits;
    const int skip = traits & KU_OP_OVERWRITE ? ku_op_pair(ku_ops[x->op].inout, 0)
                     : traits & KU_OP_CHUNKS  ? x->n_in - 1
                                              : -1;
    *y = *x;
    y->n_in = 0;
    for (int k = 0; k < x->n_in; k++)
        if (k != skip)
            y->in[y->n_in++] = x->in[k];
}

void ku_term_results(struct ku_proof *c, const struct ku_term_op *x, uint64_t out[KU_MAX_OUT])
{
    struct ku_term_op inner;
    uint64_t z;
    switch (x->op) {
    case KU_OP_linear:
        z = plain(x, x->op, without_act(x), x->n_in, 0, x->out_dtype[0]);
        out[0] = x->a->act == KU_ACT_NONE ? z : activated(x->a->act, z);
        out[1] = z;
        return;
    case KU_OP_convert: /* of axis tp (tensor_split.c): the value, or the sum over the ranks */
        out[0] = x->a->index ? x->in[0]
                             : ku_term_of(KU_TERM_COMPLETE, x->in[0],
                                          x->a->reduce == KU_REDUCE_MAX ? 64 : 0);
        return;
    case KU_OP_part: /* of a rank, as in->split says */
        out[0] = x->in[0];
        return;
    case KU_OP_act:
        out[0] = activated(x->a->act, x->in[0]);
        return;
    case KU_OP_act_dx:
        out[0] = act_gradient(c, x->a->act, x->in[0], x->in[1]);
        return;
    case KU_OP_add:
        out[0] = ku_term_of(KU_TERM_ADD, x->in[0], x->in[1]);
        return;
    case KU_OP_cast:
        out[0] = x->in_dtype[0] == x->out_dtype[0]
                     ? x->in[0]
                     : ku_term_of(KU_OP_cast, x->out_dtype[0], x->in[0]);
        return;
    case KU_OP_batch_norm_moments: /* running tensors are read in phase O */
        for (int i = 0; i < x->n_out; i++)
            out[i] = plain(x, x->op, x->attr, 1, i, x->out_dtype[i]);
        return;
    case KU_OP_batch_norm:
    case KU_OP_batch_norm_dsums:
        batch_norm_results(c, x, out);
        return;
    case KU_OP_sumsq:
        out[0] = ku_term_squares(x->in[0], x->a->index, x->a->chunk);
        return;
    case KU_OP_widen: /* the second operand gives shape and partition only */
        out[0] = plain(x, x->op, x->attr, 1, 0, x->out_dtype[0]);
        return;
    default:
        what_is_read(x, &inner);
        for (int i = 0; i < x->n_out; i++)
            out[i] = plain(&inner, x->op, x->attr, inner.n_in, i, x->out_dtype[i]);
    }
}
