/* SPDX-License-Identifier: Apache-2.0 */
/* Executes the computations over terms: the model defines every result. */
#include <string.h>

#include "base/err.h"
#include "base/math/exact.h"
#include "base/hash.h"
#include "base/mem.h"
#include "check/proof.h"

int ku_proof_blocks(const struct ku_proof *c, const struct ku_operand *o)
{
    return c->blocks[o->layout];
}

uint16_t ku_proof_group(const struct ku_proof *c, const struct ku_operand *o)
{
    const struct ku_place at = c->p->layout[o->layout].at[KU_AX_SHARD];
    return at.kind == KU_Z ? at.dim : 0;
}

int ku_proof_buffer(struct ku_proof *c, ku_id b)
{
    if (b == 0 || b >= c->p->n_buffers)
        return ku_proof_refuse(c, 0, "operand names buffer %u of %u", b, c->p->n_buffers);
    return KUMI_OK;
}

const struct ku_held *ku_proof_run(const struct ku_proof *c, const struct ku_operand *o)
{
    int is_begun = o->piece_count && c->p->buffer[o->buffer].cls != KU_CL_STAGING &&
                   (uint32_t)o->piece < c->pieces[o->buffer];
    return is_begun ? &c->begun[o->buffer] : &c->held[o->buffer];
}

int ku_proof_begin_run(struct ku_proof *c, const struct ku_operand *o, const struct ku_held *value)
{
    if (c->pieces[o->buffer] && c->p->buffer[o->buffer].cls != KU_CL_STAGING &&
        c->begun[o->buffer].term != value->term)
        return ku_proof_refuse(c, o->buffer, "run %d is not updated as the others are", o->piece);
    c->begun[o->buffer] = *value;
    c->begun[o->buffer].handle = 0;
    return KUMI_OK;
}

uint32_t ku_proof_n_runs(const struct ku_proof *c, const struct ku_operand *o)
{
    const int64_t count =
        ku_program_slice_count(&c->p->mesh, &c->p->shape[o->shape], &c->p->layout[o->layout]);
    int64_t chunks = (count + KU_BLOCK_COUNT - 1) / KU_BLOCK_COUNT, ranks = 1;
    for (int a = 0; a < KU_AX_FIRST_TIME; a++)
        if (ku_proof_blocks(c, o) >> a & 1)
            ranks *= c->p->mesh.extent[a];
    int64_t owned = (chunks + ranks - 1) / ranks * KU_BLOCK_COUNT; /* of the rank with most */
    owned = owned < count ? owned : count;
    return o->piece_count ? (uint32_t)((owned + o->piece_count - 1) / o->piece_count) : 1;
}

bool ku_proof_is_last_run(struct ku_proof *c, const struct ku_operand *o)
{
    return ++c->pieces[o->buffer] >= ku_proof_n_runs(c, o);
}

/* Whether a port's buffer has the samples of all micro-batches. */
static uint64_t term_of_input(const struct ku_proof *c, const struct ku_operand *o, uint64_t term)
{
    for (uint32_t i = 0; i < c->p->n_inputs; i++)
        if (c->p->input[i].buffer == o->buffer) {
            const struct ku_shape *s = &c->p->shape[c->p->input[i].shape];
            const char *name = c->p->name_of[c->p->input[i].name];
            int is_cut = ku_shape_find(s, 'n') >= 0;
            return ku_term_of(KU_TERM_INPUT, ku_hash64(name, strlen(name)),
                              is_cut ? (uint64_t)c->p->instr[c->at].micro + 1 : 0);
        }
    return term;
}

int ku_proof_fits(struct ku_proof *c, const struct ku_operand *o, ku_id b, bool is_whole)
{
    const struct ku_program *p = c->p;
    const struct ku_buffer *x = &p->buffer[b];
    const struct ku_layout *l = &p->layout[o->layout];
    const size_t each = kumi_dtype_bytes((enum kumi_dtype)o->dtype);
    const bool has_blocks = ku_layout_has(l, KU_Z);
    const bool is_run = x->cls == KU_CL_STAGING && o->piece_count; /* it begins with the run */
    int64_t count = ku_program_slice_count(&p->mesh, &p->shape[o->shape], l);
    if (x->is_kept && (is_whole || !has_blocks))
        return ku_proof_refuse(c, b, "has a rank's owned chunks alone, the operand is whole");
    if (has_blocks || o->piece_count) {
        if (!is_whole && (x->is_kept || is_run) && has_blocks)
            count = ku_program_local_max(&p->mesh, l, count, o->first_block);
        if (is_run) {
            const int64_t rest = count - o->piece * o->piece_count;
            count = rest < o->piece_count ? rest : o->piece_count;
        }
    } else {
        struct ku_part part; /* rank 0 has the largest */
        ku_program_part(p, o, &(struct ku_coord){0}, p->instr[c->at].micro, &part);
        count = ku_shape_count(&part.shape) + (int64_t)(part.offset / each);
    }
    return (size_t)count > x->bytes / each
               ? ku_proof_refuse(c, b, "has %zu bytes, its value needs %zu", x->bytes,
                                 (size_t)count * each)
               : KUMI_OK;
}

/* Only transfers reach an offload target. */
static int refuse_offloaded(struct ku_proof *c, ku_id b)
{
    return ku_arena_is_offload(c->p->buffer[b].arena)
               ? ku_proof_refuse(c, b, "uses a buffer of an offload target in place")
               : KUMI_OK;
}

int ku_proof_read(struct ku_proof *c, const struct ku_operand *o, struct ku_held *value)
{
    KU_TRY(ku_proof_buffer(c, o->buffer));
    KU_TRY(refuse_offloaded(c, o->buffer));
    const struct ku_held *h = ku_proof_run(c, o);
    int blocks = ku_proof_blocks(c, o);
    if (o->shape == 0 || o->shape >= c->p->n_shapes || o->layout >= c->p->n_layouts)
        return ku_proof_refuse(c, o->buffer, "operand names no shape or placement");
    if (!(h->flags & KU_HELD_DEFINED))
        return ku_proof_refuse(c, o->buffer, "reads a buffer before it is written");
    if (o->dtype != h->dtype || o->dtype != c->p->buffer[o->buffer].dtype)
        return ku_proof_refuse(c, o->buffer, "reads dtype %d of a value of dtype %d", o->dtype,
                               h->dtype);
    if (h->shape && h->shape != c->shape_hash[o->shape])
        return ku_proof_refuse(c, o->buffer, "reads a value in another shape");
    const char split = ku_held_split(c, h);
    const bool is_part = h->partial & KU_TP_AXES;
    if (split != ku_proof_split(c, o) &&
        (c->p->instr[c->at].kind == KU_COMPUTE || !is_part)) /* else a start ends it */
        return ku_proof_refuse(c, o->buffer,
                               "reads a value that the ranks of axis tp divide otherwise");
    uint8_t samples;
    KU_TRY(ku_proof_samples(c, o, &samples));
    if (samples != h->samples)
        return ku_proof_refuse(c, o->buffer,
                               "reads a value that data-parallel ranks and micro-batches divide "
                               "otherwise");
    if (h->owned & ~blocks)
        return ku_proof_refuse(c, o->buffer, "reads chunks that only their owner has");
    if (h->owned && (h->first_block != o->first_block ||
                     ((h->owned & blocks) >> KU_AX_SHARD & 1 && h->group != ku_proof_group(c, o))))
        return ku_proof_refuse(c, o->buffer, "reads chunks of another partition");
    KU_TRY(ku_proof_fits(c, o, o->buffer, 0));
    *value = *h;
    if (c->p->buffer[o->buffer].arena == KU_AR_INPUT && !ku_cut_is(c, KU_CHECK_SERVER))
        value->term = term_of_input(c, o, h->term);
    return KUMI_OK;
}

/*
 * Adds the share of a tensor to totals, which are partial over the axes whose ranks own parts of
 * the tensor. Its runs, one after the other, add one share.
 */
static int add_share(struct ku_proof *c, const struct ku_operand *o, const struct ku_operand *to,
                     const struct ku_held *before, struct ku_held *out)
{
    const uint64_t share = out->term;
    const int blocks = ku_proof_blocks(c, o) | ku_proof_split_axes(c, o->shape, out->split);
    uint32_t *left = &c->pieces[to->buffer];
    if (!(before->flags & KU_HELD_TOTALS))
        return ku_proof_refuse(c, to->buffer, "adds to a value that holds no totals");
    if (before->term != KU_TOTALS_ZERO && before->partial != blocks)
        return ku_proof_refuse(c, to->buffer,
                               "adds a tensor to totals that are partial over other ranks");
    *out = *before;
    out->partial = (uint8_t)blocks;
    if (o->piece ? *left == 0 || share != c->begun[to->buffer].term : *left != 0)
        return ku_proof_refuse(c, to->buffer, "the runs of a tensor do not add one share");
    *left = o->piece ? *left - 1 : ku_proof_n_runs(c, o) - 1;
    out->term += o->piece ? 0 : share;
    c->begun[to->buffer].term = share;
    return KUMI_OK;
}

/* A result has its samples where the model has them; a value once per step has none. */
static int check_samples(struct ku_proof *c, const struct ku_operand *to, uint8_t samples,
                         struct ku_held *out)
{
    const int wide = ku_mesh_wide(&c->p->mesh, KU_DP_AXES | 1 << KU_AX_VS | 1 << KU_AX_MB);
    KU_TRY(ku_proof_samples(c, to, &out->samples));
    return out->samples == (wide ? samples : 0)
               ? KUMI_OK
               : ku_proof_refuse(c, to->buffer,
                                 "data-parallel ranks and micro-batches do not divide the result "
                                 "along the dim of its samples");
}

static int accumulate(struct ku_proof *c, const struct ku_operand *o, const struct ku_held *in,
                      struct ku_held *out)
{
    const struct ku_attrs *a = &c->p->attr[c->p->instr[c->at].attr];
    int kind = a->reduce == KU_REDUCE_MAX ? KU_TERM_MAX
               : a->wire >= 0             ? KU_TERM_TREE + 16 * ((int)a->wire + 1)
                                          : KU_TERM_ADD;
    if (o[0].buffer != o[2].buffer)
        return ku_proof_refuse(c, o[2].buffer,
                               "an accumulation writes another buffer than it adds to");
    if (in[0].partial != in[1].partial || in[0].owned != in[1].owned ||
        in[0].split != in[1].split || in[0].samples != in[1].samples)
        return ku_proof_refuse(c, o[1].buffer, "adds values of different placement");
    out[0] = in[0];
    out[0].term = ku_term_of(kind, in[0].term, in[1].term);
    return check_samples(c, &o[2], in[0].samples, &out[0]);
}

/* What differs in a value that the model does not have. */
static int refuse_value(struct ku_proof *c, ku_id b)
{
    const struct ku_instr *i = &c->p->instr[c->at];
    const struct ku_attrs *a = &c->p->attr[i->attr];
    const struct ku_held *first = &c->held[c->p->operand[i->operand].buffer];
    if ((i->op == KU_OP_loss_seed || i->op == KU_OP_step_scalars) && a->shift != c->shift)
        return ku_proof_refuse(c, b, "scales by 2^%lld, the model needs 2^%lld",
                               (long long)a->shift, (long long)c->shift);
    if (i->op == KU_OP_step_scalars && first->term != c->stats)
        return ku_proof_refuse(c, c->p->operand[i->operand].buffer,
                               "the norm is not the sum of squares of every gradient, once");
    return ku_proof_refuse(c, b,
                           c->o->kind >= KU_CHECK_INIT
                               ? "computes a value that is no initial one: initializer, stream or "
                                 "parameter differ"
                           : i->phase == KU_PH_O
                               ? "computes a value that the update does not have: an operand is "
                                 "not the complete gradient, the state or the report, or an "
                                 "attribute differs"
                               : "computes a value that the model does not have: operand, "
                                 "attribute, stream or micro-batch differ");
}

/*
 * Whether a computation is of the end of a step, or of initial values: its terms say it. The phase
 * that an instruction states proves nothing.
 */
static bool is_of_end(const struct ku_proof *c, const struct ku_instr *i, const struct ku_held *out)
{
    if (ku_ops[i->op].traits & KU_OP_CHUNKS)
        return true;
    const struct ku_term *t = ku_terms_find(&c->terms, out[0].term);
    return t ? t->is_end : i->phase == KU_PH_O; /* refused by its value */
}

/*
 * Results are of whole tensors, or of the same shards as the operands. What the end of a step reads
 * is complete, but for totals to which the op adds.
 */
static int check_shards(struct ku_proof *c, const struct ku_operand *o, const struct ku_held *in,
                        bool is_end)
{
    const struct ku_instr *i = &c->p->instr[c->at];
    const bool has_sums = ku_ops[i->op].traits & KU_OP_CHUNKS;
    int blocks = ~0; /* of all results */
    for (int n = 0; n < i->n_out - has_sums; n++)
        blocks &= ku_proof_blocks(c, &o[i->n_in + n]);
    for (int k = 0; k < i->n_in; k++) {
        if (is_end && in[k].partial && !(has_sums && k == i->n_in - 1))
            return ku_proof_refuse(c, o[k].buffer, "reads a partial sum");
        if (in[k].flags & KU_HELD_TOTALS && !has_sums && c->pieces[o[k].buffer])
            return ku_proof_refuse(c, o[k].buffer, "reads totals that lack runs of a tensor");
        if ((in[k].owned | ku_proof_blocks(c, &o[k])) & ~blocks)
            return ku_proof_refuse(c, o[k].buffer, "computes whole tensors from shards");
    }
    return KUMI_OK;
}

/* Whether operand and result have the dimension; a bias may have as many elements as a report. */
static bool are_alike(const struct ku_proof *c, const struct ku_operand *x,
                      const struct ku_operand *y, char dim)
{
    return ku_shape_find(&c->p->shape[x->shape], dim) >= 0 &&
           ku_shape_find(&c->p->shape[y->shape], dim) >= 0;
}

/*
 * How the ranks of axis tp divide a result `t`: in forward and backward as the model says, at the
 * end of a step as the operands of the same shape.
 */
static int check_split(struct ku_proof *c, const struct ku_operand *o, const struct ku_held *in,
                       const struct ku_operand *to, const struct ku_term *t, struct ku_held *out)
{
    const struct ku_instr *i = &c->p->instr[c->at];
    const char own = ku_proof_split(c, to), split = t->is_end ? own : t->split;
    if (t->is_end) {
        for (int k = 0; k < i->n_in; k++)
            if (in[k].shape == c->shape_hash[to->shape] && in[k].split != own &&
                are_alike(c, &o[k], to, own ? own : in[k].split))
                return ku_proof_refuse(
                    c, o[k].buffer, "the ranks of axis tp divide operand and result differently");
    }
    const bool is_part = split == KU_SPLIT_SUM || split == KU_SPLIT_SHARED;
    if (split != own || (t->is_end && is_part) || split == KU_SPLIT_BAD || split == KU_SPLIT_OUTER)
        return ku_proof_refuse(c, to->buffer, "result is not divided over axis tp as in the model");
    if (is_part)
        out->partial |= (uint8_t)(split == KU_SPLIT_SUM ? ku_proof_tp(c) : 1 << KU_AX_TPI);
    out->split = split == KU_SPLIT_SUM ? 0 : split == KU_SPLIT_SHARED ? 'h' : split;
    return KUMI_OK;
}

/* Forward and backward: operands divided over axis tp as they are give results divided so. */
static int check_rule(struct ku_proof *c, const struct ku_operand *o, const struct ku_held *in)
{
    const struct ku_instr *i = &c->p->instr[c->at];
    struct ku_split_op x = {.op = i->op,
                            .n_in = i->n_in,
                            .n_out = i->n_out,
                            .has_inner = c->p->mesh.extent[KU_AX_TPI] > 1,
                            .a = &c->p->attr[i->attr]};
    char split[KU_MAX_OUT] = {0};
    if (ku_proof_tp(c) == 0)
        return KUMI_OK;
    for (int k = 0; k < i->n_in; k++) {
        x.split[k] = ku_held_split(c, &in[k]);
        x.in[k] = &c->p->shape[o[k].shape];
    }
    for (int n = 0; n < i->n_out; n++)
        x.out[n] = &c->p->shape[o[i->n_in + n].shape];
    const char *broken = ku_tensor_rule(&x, split);
    if (broken)
        return ku_proof_refuse(c, o[0].buffer, "%s", broken);
    for (int n = 0; n < i->n_out; n++)
        if (split[n] != ku_proof_split(c, &o[i->n_in + n]))
            return ku_proof_refuse(c, o[i->n_in + n].buffer,
                                   "result is not divided over axis tp as its operands");
    return KUMI_OK;
}

/* The model defines every result. */
static int of_model(struct ku_proof *c, const struct ku_operand *o, const struct ku_held *in,
                    struct ku_held *out)
{
    const struct ku_instr *i = &c->p->instr[c->at];
    const bool is_end = is_of_end(c, i, out);
    KU_TRY(check_shards(c, o, in, is_end));
    if (!is_end)
        KU_TRY(check_rule(c, o, in));
    for (int n = 0; n < i->n_out; n++) {
        const struct ku_operand *to = &o[i->n_in + n];
        if (ku_ops[i->op].traits & KU_OP_CHUNKS && n == i->n_out - 1) {
            out[n].split = in[0].split;
            KU_TRY(add_share(c, &o[0], to, &in[i->n_in - 1], &out[n]));
            continue;
        }
        const struct ku_term *t = ku_terms_find(&c->terms, out[n].term);
        if (t == NULL)
            return refuse_value(c, to->buffer);
        if (t->dtype != to->dtype)
            return ku_proof_refuse(c, to->buffer, "result has dtype %d, in the model %d", to->dtype,
                                   t->dtype);
        if (t->is_partial)
            out[n].partial = (uint8_t)c->wide;
        KU_TRY(check_samples(c, to, t->samples, &out[n]));
        KU_TRY(check_split(c, o, in, to, t, &out[n]));
        if (t->shape && c->shape_hash[to->shape] != t->shape && to->slot == 0 && !t->is_partial)
            return ku_proof_refuse(c, to->buffer, "result has another shape than in the model");
        const struct ku_held *old = &c->held[to->buffer];
        if (i->accumulate && !(ku_ops[i->op].traits & KU_OP_ACCUM))
            return ku_proof_refuse(c, to->buffer, "%s has no accumulate form", ku_ops[i->op].name);
        if (i->accumulate || to->slot) {
            if (!(old->flags & KU_HELD_DEFINED) || old->partial != out[n].partial)
                return ku_proof_refuse(c, to->buffer, "accumulates on a buffer without a sum");
            out[n].term = to->slot
                              ? ku_term_of(KU_TERM_STACK,
                                           ku_term_of(KU_TERM_STACK, old->term, (uint64_t)to->slot),
                                           out[n].term)
                              : ku_term_of(KU_TERM_ADD, old->term, out[n].term);
        }
    }
    return KUMI_OK;
}

static int store(struct ku_proof *c, const struct ku_operand *o, const struct ku_held *out)
{
    const struct ku_instr *i = &c->p->instr[c->at];
    for (int n = 0; n < i->n_out; n++) {
        const struct ku_operand *to = &o[i->n_in + n];
        if (to->piece_count == 0) {
            KU_TRY(ku_proof_write(c, to->buffer, &out[n]));
            continue;
        }
        if (to->piece != (int)c->pieces[to->buffer] &&
            c->p->buffer[to->buffer].cls != KU_CL_STAGING)
            return ku_proof_refuse(c, to->buffer, "writes run %d after %u", to->piece,
                                   c->pieces[to->buffer]);
        KU_TRY(ku_proof_begin_run(c, to, &out[n]));
        bool is_last = ku_proof_is_last_run(c, to);
        if (c->p->buffer[to->buffer].cls == KU_CL_STAGING || is_last)
            KU_TRY(ku_proof_write(c, to->buffer, &out[n]));
    }
    return KUMI_OK;
}

/* Whether an operand is the owned shard of a buffer that an all-gather in flight fills in place. */
static bool is_own_shard(const struct ku_proof *c, const struct ku_operand *o, uint32_t handle)
{
    uint32_t start = c->start[handle];
    if (start == 0 || start == UINT32_MAX)
        return 0;
    const struct ku_instr *i = &c->p->instr[start - 1];
    return i->op == KU_X_ALL_GATHER && (ku_proof_blocks(c, o) & i->axes) == i->axes;
}

/* All owned shards of an instruction belong to one partition, that of the state. */
static int check_partition(struct ku_proof *c, const struct ku_operand *o, int n)
{
    const struct ku_operand *first = NULL;
    ku_id path = c->p->instr[c->at].path;
    uint32_t own = path < c->p->n_names ? c->state_by_name[path] : 0;
    for (int k = 0; k < n; k++) {
        uint32_t s = c->state_of[o[k].buffer];
        if (ku_proof_blocks(c, &o[k]) == 0)
            continue;
        if (!(ku_ops[c->p->instr[c->at].op].traits & KU_OP_ELEMENT))
            return ku_proof_refuse(c, o[k].buffer, "the op cannot run on owned chunks");
        if (s && o[k].first_block != c->p->state[s - 1].first_block)
            return ku_proof_refuse(c, o[k].buffer, "owned chunks are not those of the state plan");
        if (own && o[k].first_block != c->p->state[own - 1].first_block)
            return ku_proof_refuse(c, o[k].buffer, "owned chunks are not those of the state plan");
        if (first && (first->first_block != o[k].first_block ||
                      ku_proof_group(c, first) != ku_proof_group(c, &o[k])))
            return ku_proof_refuse(c, o[k].buffer, "operands are partitioned differently");
        first = &o[k];
    }
    return KUMI_OK;
}

static int read_all(struct ku_proof *c, const struct ku_instr *i, const struct ku_operand *o,
                    struct ku_held *in)
{
    const bool overwrites = ku_ops[i->op].traits & KU_OP_OVERWRITE;
    for (int k = 0; k < i->n_in; k++) {
        if (overwrites && k == ku_op_pair(ku_ops[i->op].inout, 0)) {
            KU_TRY(ku_proof_buffer(c, o[k].buffer));
            in[k] = (struct ku_held){.flags = KU_HELD_DEFINED};
            continue;
        }
        KU_TRY(ku_proof_read(c, &o[k], &in[k]));
        if (in[k].handle && !is_own_shard(c, &o[k], in[k].handle))
            return ku_proof_refuse(c, o[k].buffer, "reads a buffer that collective #%u still uses",
                                   in[k].handle);
        if (!(ku_proof_blocks(c, &o[k]) >> KU_AX_LOCAL & 1))
            c->held[o[k].buffer].own_read = c->at + 1;
    }
    return KUMI_OK;
}

static int zero_totals(struct ku_proof *c, const struct ku_operand *to, struct ku_held *out)
{
    out->term = KU_TOTALS_ZERO;
    out->flags |= KU_HELD_TOTALS;
    if (c->p->attr[c->p->instr[c->at].attr].words != ku_shape_count(&c->p->shape[to->shape]))
        return ku_proof_refuse(c, to->buffer, "zeroes another number of words than it has");
    return KUMI_OK;
}

/* Statistics of all micro-batches of a shard are in one buffer, each in its slot. */
static uint64_t concat_shape(const struct ku_proof *c, const struct ku_shape *each)
{
    struct ku_shape all = {.ndim = each->ndim + 1};
    if (each->ndim == KU_MAX_DIMS)
        return 0;
    all.dim[0].count = c->p->mesh.extent[KU_AX_MB];
    memcpy(all.dim + 1, each->dim, (size_t)each->ndim * sizeof *each->dim);
    return ku_shape_hash(&all);
}

/* The bytes of a workspace are lost, so it is no operand, no state and in no collective. */
static int use_workspace(struct ku_proof *c, const struct ku_instr *i, const struct ku_operand *o)
{
    const ku_id w = i->workspace;
    if (w == 0)
        return KUMI_OK;
    KU_TRY(ku_proof_buffer(c, w));
    for (int k = 0; k < i->n_in + i->n_out; k++)
        if (o[k].buffer == w)
            return ku_proof_refuse(c, w, "the workspace is an operand");
    if (c->state_of[w] || c->p->buffer[w].arena != KU_AR_STEP || c->held[w].handle ||
        c->held[w].readers)
        return ku_proof_refuse(c, w, "the workspace is no memory of the step alone");
    c->held[w].flags = 0;
    return KUMI_OK;
}

/*
 * A cast to the same dtype: the shard that a rank retains of a gathered tensor. A copy moves
 * nothing between ranks, so its result has no chunks but those of the operand.
 */
static int copy_of(struct ku_proof *c, const struct ku_operand *o, const struct ku_held *in,
                   struct ku_held *out)
{
    const struct ku_operand *to = &o[1];
    if (c->p->instr[c->at].accumulate || o->slot || to->slot)
        return ku_proof_refuse(c, to->buffer, "copies a part of a value, or adds to one");
    if (in->shape && in->shape != c->shape_hash[to->shape])
        return ku_proof_refuse(c, to->buffer, "copies a value into another shape");
    if ((in->owned | ku_proof_blocks(c, o)) & ~ku_proof_blocks(c, to))
        return ku_proof_refuse(c, to->buffer, "copies a shard in the place of the whole tensor");
    if (in->partial || in->split != ku_proof_split(c, to))
        return ku_proof_refuse(c, to->buffer, "copies a value that ranks divide otherwise");
    out->split = in->split;
    return check_samples(c, to, in->samples, out);
}

/* A part moves bytes. */
static int part_of(struct ku_proof *c, const struct ku_operand *o, const struct ku_held *in,
                   struct ku_held *out)
{
    return o[0].dtype == o[1].dtype
               ? ku_proof_part(c, &o[1], in, out)
               : ku_proof_refuse(c, o[1].buffer, "takes a part in dtype %d of a value of dtype %d",
                                 o[1].dtype, o[0].dtype);
}

static int compute(struct ku_proof *c)
{
    const struct ku_program *p = c->p;
    const struct ku_instr *i = &p->instr[c->at];
    const struct ku_operand *o = &p->operand[i->operand];
    struct ku_held in[KU_MAX_IN] = {{0}}, out[KU_MAX_OUT] = {{0}};
    struct ku_term_op x = {.op = i->op, .n_in = i->n_in, .n_out = i->n_out, .stream = i->stream};
    if (i->op == KU_OP_NONE || i->op >= KU_N_OPS || i->n_in > KU_MAX_IN || i->n_out > KU_MAX_OUT ||
        i->attr >= p->n_attrs)
        return ku_proof_refuse(c, 0, "no such op");
    x.attr = c->attr_hash[i->attr], x.a = &p->attr[i->attr];
    ku_term_draw(&x, i->micro);
    KU_TRY(read_all(c, i, o, in));
    KU_TRY(use_workspace(c, i, o));
    for (int k = 0; k < i->n_in; k++)
        x.in[k] = in[k].term, x.in_dtype[k] = o[k].dtype;
    uint64_t term[KU_MAX_OUT] = {0};
    for (int n = 0; n < i->n_out; n++) {
        const struct ku_operand *to = &o[i->n_in + n];
        KU_TRY(ku_proof_buffer(c, to->buffer));
        KU_TRY(refuse_offloaded(c, to->buffer));
        KU_TRY(ku_proof_fits(c, to, to->buffer, 0));
        x.out_dtype[n] = to->dtype;
        if (c->held[to->buffer].handle)
            return ku_proof_refuse(c, to->buffer, "writes a buffer that collective #%u still uses",
                                   c->held[to->buffer].handle);
    }
    ku_term_results(c, &x, term);
    for (int n = 0; n < i->n_out; n++) {
        const struct ku_operand *to = &o[i->n_in + n];
        int pair = ku_op_pair(ku_ops[i->op].inout, n);
        if (pair >= 0 && o[pair].buffer != to->buffer)
            return ku_proof_refuse(c, to->buffer, "result %d is not in the bytes of operand %d", n,
                                   pair);
        out[n] = (struct ku_held){.term = term[n], .flags = KU_HELD_DEFINED};
    }
    KU_TRY(check_partition(c, o, i->n_in + i->n_out));
    if (i->op == KU_OP_accumulate)
        KU_TRY(accumulate(c, o, in, out));
    else if (i->op == KU_OP_stats_zero)
        KU_TRY(zero_totals(c, &o[0], out));
    else if (i->op == KU_OP_part)
        KU_TRY(part_of(c, o, &in[0], &out[0]));
    else if (i->op != KU_OP_cast || x.in_dtype[0] != x.out_dtype[0])
        KU_TRY(of_model(c, o, in, out));
    else
        KU_TRY(copy_of(c, o, &in[0], &out[0]));
    for (int n = 0; n < i->n_out; n++) {
        const struct ku_operand *to = &o[i->n_in + n];
        if (to->dtype != p->buffer[to->buffer].dtype)
            return ku_proof_refuse(c, to->buffer, "writes another dtype than the buffer has");
        out[n].dtype = to->dtype;
        out[n].shape = i->op == KU_OP_batch_norm_moments && n == 2
                           ? concat_shape(c, &p->shape[to->shape])
                           : c->shape_hash[to->shape];
        out[n].owned = (uint8_t)ku_proof_blocks(c, to);
        out[n].first_block = to->first_block;
        out[n].group = ku_proof_group(c, to);
        out[n].handle = 0;
    }
    return store(c, o, out);
}

int ku_proof_step(struct ku_proof *c)
{
    const struct ku_instr *i = &c->p->instr[c->at];
    uint32_t n = i->kind == KU_WAIT    ? 0
                 : i->kind == KU_START ? i->n_in + i->n_parts
                                       : (uint32_t)i->n_in + i->n_out;
    if (n && (i->operand > c->p->n_operands || n > c->p->n_operands - i->operand))
        return ku_proof_refuse(c, 0, "operands beyond the list");
    ku_rows_select_at(c);
    switch ((enum ku_instr_kind)i->kind) {
    case KU_COMPUTE:
        return compute(c);
    case KU_START:
        c->report_of.n_collectives += !ku_exchange_is_offload(i->op);
        return ku_proof_start(c);
    case KU_WAIT:
        return ku_proof_wait(c);
    }
    return ku_proof_refuse(c, 0, "no such kind of instruction");
}
