/* SPDX-License-Identifier: Apache-2.0 */
/* Executes the computations over terms. Phase O follows a table of the roles of operands. */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/exact.h"
#include "base/hash.h"
#include "base/mem.h"
#include "check/proof.h"

/*
 * Roles of the operands of ops of phase O:
 *
 *   p    the parameter before its update        P    after it
 *   0 1 2  optimizer state k before its update  A B  state 0, 1 after it
 *   g    the complete gradient                  r    the report
 *   t    totals, added to in place              n    result of complete totals
 *   e    the average of weights                 s    complete totals of squares of the gradient
 *                                               *    any complete value
 */
static const char *const roles_of[KU_N_OPS] = {
    [KU_OP_loss_scaler] = "*r",
    [KU_OP_adamw] = "p01gr",
    [KU_OP_adam] = "p01gr",
    [KU_OP_sgd] = "p0gr",
    [KU_OP_adagrad] = "p0gr",
    [KU_OP_lion] = "p0gr",
    [KU_OP_rmsprop] = "p0gr",
    [KU_OP_rmsprop_momentum] = "p01gr",
    [KU_OP_rmsprop_centered] = "p01gr",
    [KU_OP_rmsprop_both] = "p012gr",
    [KU_OP_ema] = "ePr",
    [KU_OP_clip_value] = "gr",
    [KU_OP_trust_sums] = "pgt",
    [KU_OP_lamb_moments] = "p01grt",
    [KU_OP_lamb] = "pABrn",
    [KU_OP_lars] = "p0grn",
    [KU_OP_factor_sums] = "grt",
    [KU_OP_factor_means] = "s01r",
    [KU_OP_factor_norms] = "pgABnrt",
    [KU_OP_adafactor] = "pgABnrn",
    [KU_OP_variance_norms] = "p0grt",
    [KU_OP_adafactor_vector] = "pAgrn",
};
/* The op whose row of the table names the optimizer state. */
static int rule_of(int op)
{
    return op == KU_OP_lamb_moments     ? KU_OP_lamb
           : op == KU_OP_factor_means   ? KU_OP_adafactor
           : op == KU_OP_factor_norms   ? KU_OP_adafactor
           : op == KU_OP_variance_norms ? KU_OP_adafactor_vector
                                        : op;
}

int ku_proof_blocks(const struct ku_proof *c, const struct ku_operand *o)
{
    return ku_layout_axes(&c->p->layout[o->layout], KU_Z) & ku_mesh_wide(&c->p->mesh, KU_DP_AXES);
}

int ku_proof_buffer(struct ku_proof *c, ku_id b)
{
    if (b == 0 || b >= c->p->n_buffers)
        return ku_proof_refuse(c, 0, "operand names buffer %u of %u", b, c->p->n_buffers);
    return KUMI_OK;
}

const struct ku_held *ku_proof_run(const struct ku_proof *c, const struct ku_operand *o)
{
    int is_begun = o->piece_count && c->p->buffer[o->buffer].cls != KU_CL_WINDOW &&
                   (uint32_t)o->piece < c->pieces[o->buffer];
    return is_begun ? &c->begun[o->buffer] : &c->held[o->buffer];
}

int ku_proof_begin_run(struct ku_proof *c, const struct ku_operand *o, const struct ku_held *value)
{
    const int kind = KU_HELD_GRADIENT | KU_HELD_REPORT;
    if (c->pieces[o->buffer] && c->p->buffer[o->buffer].cls != KU_CL_WINDOW &&
        (c->begun[o->buffer].flags ^ value->flags) & kind)
        return ku_proof_refuse(c, o->buffer, "run %d is not updated as the others are", o->piece);
    c->begun[o->buffer] = *value;
    c->begun[o->buffer].handle = 0;
    return KUMI_OK;
}

bool ku_proof_is_last_run(struct ku_proof *c, const struct ku_operand *o)
{
    int64_t count = ku_shape_count(&c->p->shape[o->shape]);
    int64_t chunks = (count + KU_BLOCK_COUNT - 1) / KU_BLOCK_COUNT, ranks = 1;
    for (int a = 0; a < KU_AX_FIRST_TIME; a++)
        if (ku_proof_blocks(c, o) >> a & 1)
            ranks *= c->p->mesh.extent[a];
    int64_t owned = (chunks + ranks - 1) / ranks * KU_BLOCK_COUNT; /* of the rank with most */
    return (int64_t)++c->pieces[o->buffer] * o->piece_count >= (owned < count ? owned : count);
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

int ku_proof_read(struct ku_proof *c, const struct ku_operand *o, struct ku_held *value)
{
    KU_TRY(ku_proof_buffer(c, o->buffer));
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
    if (h->owned & ~blocks)
        return ku_proof_refuse(c, o->buffer, "reads chunks that only their owner has");
    if (h->owned && h->first_block != o->first_block)
        return ku_proof_refuse(c, o->buffer, "reads chunks of another partition");
    *value = *h;
    if (c->p->buffer[o->buffer].arena == KU_AR_INPUT)
        value->term = term_of_input(c, o, h->term);
    return KUMI_OK;
}

int ku_proof_write(struct ku_proof *c, ku_id b, const struct ku_held *value)
{
    const struct ku_program *p = c->p;
    struct ku_held *h = &c->held[b];
    uint32_t s = c->state_of[b];
    if (h->readers)
        return ku_proof_refuse(c, b, "overwrites the operand of a collective in flight");
    uint32_t own_read = h->own_read, peers_read = h->peers_read;
    *h = *value;
    h->own_read = own_read;
    h->peers_read = peers_read;
    h->written = c->at + 1;
    h->readers = 0;
    if (s == 0)
        return KUMI_OK;
    const struct ku_program_state *x = &p->state[s - 1];
    h->flags |= KU_HELD_STATE;
    if (p->buffer[b].arena == KU_AR_HOST && own_read) {
        c->report_of.n_edges++;
        if (c->synced[KU_AX_LOCAL] <= own_read)
            return ku_proof_refuse(c, b,
                                   "overwrites shared state that other ranks may still read "
                                   "(instruction %u)",
                                   own_read - 1);
    }
    if (peers_read && (value->owned >> KU_AX_SHARD & 1)) {
        c->report_of.n_edges++;
        if (c->synced[KU_AX_SHARD] <= peers_read)
            return ku_proof_refuse(c, b,
                                   "overwrites a shard that other ranks may still gather "
                                   "(instruction %u)",
                                   peers_read - 1);
    }
    if (p->instr[c->at].kind == KU_COMPUTE || p->instr[c->at].op == KU_X_WRITE)
        c->written[s - 1]++;
    if (c->written[s - 1] > 1)
        return ku_proof_refuse(c, b, "updates a tensor twice in a step");
    if (c->model == NULL || !c->o->is_training)
        return KUMI_OK;
    if (value->partial)
        return ku_proof_refuse(c, b, "writes a partial sum to the state");
    if (x->kind == KU_T_PARAM || x->kind == KU_T_DERIVED || (x->kind == KU_T_OPTIMIZER && x->of)) {
        if (value->tensor != (x->of ? x->of : s))
            return ku_proof_refuse(c, b, "writes a value of another tensor to the state");
        if (!(value->flags & KU_HELD_GRADIENT) || !(value->flags & KU_HELD_REPORT))
            return ku_proof_refuse(c, b, "updates a tensor without its gradient or the report");
    }
    return KUMI_OK;
}

/* Whether the state of a buffer is optimizer state `k` of the rule, or the parameter itself
 * (k < 0). A value that is no state is judged by its tensor alone. */
static bool is_state(const struct ku_proof *c, ku_id b, const struct ku_held *h, int op, int k)
{
    const struct ku_program *p = c->p;
    uint32_t s = c->state_of[b];
    if (s == 0)
        return 1;
    const struct ku_program_state *x = &p->state[s - 1];
    if (k < 0)
        return x->kind == KU_T_PARAM;
    const char *name = p->name_of[x->name], *of = ku_ops[rule_of(op)].state[k];
    size_t n = strlen(name), m = of ? strlen(of) : 0;
    return h->tensor && x->kind == KU_T_OPTIMIZER && of && n > m && strcmp(name + n - m, of) == 0;
}

static uint64_t gradient_of(const struct ku_proof *c, uint32_t tensor)
{
    ku_id t = tensor ? c->tensor_of[tensor - 1] : 0;
    return t ? c->gradient[t] : 0;
}

/* The tensor that an op of phase O updates: of its state operands, else of its path. */
static uint32_t subject(const struct ku_proof *c, const struct ku_held *in, const char *roles)
{
    const struct ku_instr *i = &c->p->instr[c->at];
    for (int k = 0; k < i->n_in; k++)
        if (strchr("pP012ABe", roles[k]) && in[k].tensor)
            return in[k].tensor;
    return i->path < c->p->n_names ? c->state_by_name[i->path] : 0;
}

static int check_role(struct ku_proof *c, const struct ku_operand *o, const struct ku_held *h,
                      char role, uint32_t tensor)
{
    const int op = c->p->instr[c->at].op;
    const char *const states = "012AB";
    const char *at = strchr(states, role);
    int k = at == NULL ? -1 : role == 'A' ? 0 : role == 'B' ? 1 : role - '0';
    if (role != 't' && h->partial)
        return ku_proof_refuse(c, o->buffer, "reads a partial sum");
    bool is_late = c->report && c->clips && op != KU_OP_clip_value;
    bool is_clipped = h->flags & KU_HELD_CLIPPED && h->tensor == tensor && op != KU_OP_clip_value;
    if (role == 'g' && (gradient_of(c, tensor) == 0 ||
                        (is_late ? !is_clipped : h->term != gradient_of(c, tensor))))
        return ku_proof_refuse(
            c, o->buffer,
            "reads a value that is not the complete gradient of the tensor: every "
            "use, micro-batch and shard once, in canonical order");
    if (role == 'r' && (c->report == 0 || h->term != c->report))
        return ku_proof_refuse(c, o->buffer, "reads a value that is not the report of the step");
    if ((at || role == 'p' || role == 'P') &&
        (h->tensor != tensor || !is_state(c, o->buffer, h, op, k)))
        return ku_proof_refuse(c, o->buffer, "reads state of another tensor or kind");
    if ((role == 'p' || (k >= 0 && role < 'A')) && h->flags & KU_HELD_GRADIENT)
        return ku_proof_refuse(c, o->buffer, "reads state after its update");
    if ((role == 'P' || role == 'A' || role == 'B') && !(h->flags & KU_HELD_REPORT))
        return ku_proof_refuse(c, o->buffer, "reads state before its update");
    if (role == 't' && !(h->flags & KU_HELD_TOTALS))
        return ku_proof_refuse(c, o->buffer, "adds to a value that holds no totals");
    if (role == 's' && (!(h->flags & KU_HELD_TOTALS) || tensor == 0 || c->summed[tensor - 1] != 1))
        return ku_proof_refuse(c, o->buffer,
                               "reads a value that is not the sums of squares of the gradient");
    return KUMI_OK;
}

/* Adds the share of a tensor to totals: partial over the axes whose ranks own parts of it. */
static int add_totals(struct ku_proof *c, const struct ku_operand *o, const struct ku_held *x,
                      struct ku_held *totals, uint64_t term, int blocks)
{
    if (totals->term != 0 && totals->partial != blocks)
        return ku_proof_refuse(c, o->buffer,
                               "adds a tensor to totals that are partial over other ranks");
    if (c->p->operand[c->p->instr[c->at].operand].piece == 0)
        totals->term += term;
    totals->partial = (uint8_t)blocks;
    totals->flags |= KU_HELD_TOTALS;
    (void)x;
    return KUMI_OK;
}

static int step_scalars(struct ku_proof *c, const struct ku_operand *o, const struct ku_held *in,
                        struct ku_held *out)
{
    const struct ku_instr *i = &c->p->instr[c->at];
    const char *const name[] = {"", "loss_sum", "loss_valid"};
    if (c->report)
        return ku_proof_refuse(c, o->buffer, "makes the report of the step a second time");
    if (in[0].partial || in[0].term != c->stats || !(in[0].flags & KU_HELD_TOTALS))
        return ku_proof_refuse(c, o[0].buffer,
                               "the norm is not the sum of squares of every gradient, once");
    for (int k = 1; k <= 2; k++)
        for (uint32_t n = 0; n < c->spec->n_outputs; n++)
            if (strcmp(c->spec->output[n].name, name[k]) == 0 &&
                (in[k].partial || in[k].term != c->output[n]))
                return ku_proof_refuse(c, o[k].buffer,
                                       "%s is not the sum over all micro-batches "
                                       "and ranks, once",
                                       name[k]);
    if (c->p->attr[i->attr].shift != c->shift)
        return ku_proof_refuse(c, 0, "divides by 2^%lld, backward starts at 2^-%lld",
                               (long long)c->p->attr[i->attr].shift, (long long)c->shift);
    if (!c->state_of[o[3].buffer] || c->p->state[c->state_of[o[3].buffer] - 1].kind != KU_T_COUNTER)
        return ku_proof_refuse(c, o[3].buffer, "the update count is no counter");
    c->clips = c->p->attr[i->attr].clip_value > 0;
    c->report = ku_term_of(KU_OP_step_scalars, in[0].term, in[1].term);
    out[0].term = c->report;
    out[0].flags = out[1].flags = KU_HELD_DEFINED | KU_HELD_REPORT;
    return KUMI_OK;
}

/* Phase O and A. */
static int once(struct ku_proof *c, const struct ku_operand *o, const struct ku_held *in,
                struct ku_held *out)
{
    const struct ku_instr *i = &c->p->instr[c->at];
    const struct ku_attrs *a = &c->p->attr[i->attr];
    const char *roles = roles_of[i->op];
    if (i->op == KU_OP_step_scalars)
        return step_scalars(c, o, in, out);
    if (i->op == KU_OP_sumsq) {
        if (in[0].partial)
            return ku_proof_refuse(c, o[0].buffer, "squares a partial sum");
        out[0] = in[1];
        return add_totals(c, o, &in[0], &out[0],
                          ku_term_of(KU_TERM_SQUARES, in[0].term, (uint64_t)a->index),
                          ku_proof_blocks(c, &o[0]));
    }
    if (i->op == KU_OP_stats_zero) {
        out[0].flags |= KU_HELD_TOTALS;
        out[0].term = 0;
        return KUMI_OK;
    }
    if (i->op == KU_OP_loss_seed) {
        if (a->shift != c->shift)
            return ku_proof_refuse(c, o[0].buffer,
                                   "backward starts at 2^-%lld, the model needs 2^-%lld",
                                   (long long)a->shift, (long long)c->shift);
        out[0].term = ku_term_of(KU_TERM_SEED, 1, 1);
        return KUMI_OK;
    }
    if (i->op == KU_OP_widen) { /* the second operand gives shape and partition only */
        if (in[0].partial)
            return ku_proof_refuse(c, o[0].buffer, "reads a partial sum");
        out[0].flags = in[0].flags & (KU_HELD_DEFINED | KU_HELD_GRADIENT | KU_HELD_REPORT);
        out[0].tensor = in[0].tensor;
        return KUMI_OK;
    }
    uint32_t tensor = roles ? subject(c, in, roles) : 0;
    uint8_t flags = KU_HELD_DEFINED;
    for (int k = 0; k < i->n_in; k++) {
        char role = roles && roles[k] ? roles[k] : '*';
        KU_TRY(check_role(c, &o[k], &in[k], role, tensor));
        if (role == 'g' || role == 's')
            flags |= KU_HELD_GRADIENT;
        if (role == 'r')
            flags |= KU_HELD_REPORT;
        flags |= in[k].flags & (KU_HELD_GRADIENT | KU_HELD_REPORT);
        if (!roles && in[k].tensor)
            tensor = in[k].tensor;
    }
    if (tensor && i->op == KU_OP_factor_sums && o[0].piece == 0)
        c->summed[tensor - 1]++;
    if (tensor && roles && i->op != KU_OP_factor_sums && strchr(roles, 't') && o[0].piece == 0)
        c->totalled[tensor - 1]++;
    if (tensor && roles && strchr(roles, 'n') && !strchr(roles, 't') &&
        c->totalled[tensor - 1] != 1)
        return ku_proof_refuse(c, o[0].buffer,
                               "the tensor is %u times in the totals that it is scaled by",
                               c->totalled[tensor - 1]);
    for (int n = 0; n < i->n_out; n++) {
        out[n].flags = (uint8_t)(flags | (i->op == KU_OP_clip_value ? KU_HELD_CLIPPED : 0));
        out[n].tensor = tensor;
        int pair = ku_op_pair(ku_ops[i->op].inout, n);
        if (pair < 0 || !(in[pair].flags & KU_HELD_TOTALS))
            continue;
        uint64_t term = ku_term_of(i->op, in[0].term, (uint64_t)a->index);
        out[n] = in[pair];
        KU_TRY(add_totals(c, o, &in[0], &out[n], term, ku_proof_blocks(c, &o[0])));
    }
    return KUMI_OK;
}

static int fold(struct ku_proof *c, const struct ku_operand *o, const struct ku_held *in,
                struct ku_held *out)
{
    const struct ku_attrs *a = &c->p->attr[c->p->instr[c->at].attr];
    int kind = a->reduce == KU_FOLD_MAX ? KU_TERM_MAX
               : a->wire >= 0           ? KU_TERM_TREE + 16 * ((int)a->wire + 1)
                                        : KU_TERM_ADD;
    if (o[0].buffer != o[2].buffer)
        return ku_proof_refuse(c, o[2].buffer, "a fold writes another buffer than it adds to");
    if (in[0].partial != in[1].partial || in[0].owned != in[1].owned)
        return ku_proof_refuse(c, o[1].buffer, "adds a partial to a complete sum");
    out[0] = in[0];
    out[0].term = ku_term_of(kind, in[0].term, in[1].term);
    return KUMI_OK;
}

/* Forward and backward: the model defines every result. */
static int of_model(struct ku_proof *c, const struct ku_operand *o, struct ku_held *out)
{
    const struct ku_instr *i = &c->p->instr[c->at];
    for (int n = 0; n < i->n_out; n++) {
        const struct ku_operand *to = &o[i->n_in + n];
        const struct ku_term *t = ku_terms_find(&c->terms, out[n].term);
        if (t == NULL)
            return ku_proof_refuse(c, to->buffer,
                                   "computes a value that the model does not have: operand, "
                                   "attribute, stream or micro-batch differ");
        if (t->dtype != to->dtype)
            return ku_proof_refuse(c, to->buffer, "result has dtype %d, in the model %d", to->dtype,
                                   t->dtype);
        if (t->is_partial)
            out[n].partial = (uint8_t)c->wide;
        if (c->shape_hash[to->shape] != t->shape && to->slot == 0 && !t->is_partial)
            return ku_proof_refuse(c, to->buffer, "result has another shape than in the model");
        const struct ku_held *old = &c->held[to->buffer];
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
        if (to->piece != (int)c->pieces[to->buffer] && c->p->buffer[to->buffer].cls != KU_CL_WINDOW)
            return ku_proof_refuse(c, to->buffer, "writes run %d after %u", to->piece,
                                   c->pieces[to->buffer]);
        KU_TRY(ku_proof_begin_run(c, to, &out[n]));
        bool is_last = ku_proof_is_last_run(c, to);
        if (c->p->buffer[to->buffer].cls == KU_CL_WINDOW || is_last)
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
        if (s && o[k].first_block != c->p->state[s - 1].first_block)
            return ku_proof_refuse(c, o[k].buffer, "owned chunks are not those of the state plan");
        if (own && o[k].first_block != c->p->state[own - 1].first_block)
            return ku_proof_refuse(c, o[k].buffer, "owned chunks are not those of the state plan");
        if (first && first->first_block != o[k].first_block)
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
        if (i->op == KU_OP_derive && k == 1) { /* its bytes are overwritten, not read */
            KU_TRY(ku_proof_buffer(c, o[k].buffer));
            in[k] = (struct ku_held){.flags = KU_HELD_DEFINED, .tensor = in[0].tensor};
            continue;
        }
        KU_TRY(ku_proof_read(c, &o[k], &in[k]));
        if (in[k].handle && !is_own_shard(c, &o[k], in[k].handle))
            return ku_proof_refuse(c, o[k].buffer, "reads a buffer that collective #%u still uses",
                                   in[k].handle);
        if (!overwrites && !(ku_proof_blocks(c, &o[k]) >> KU_AX_LOCAL & 1))
            c->held[o[k].buffer].own_read = c->at + 1;
    }
    return KUMI_OK;
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
    KU_TRY(read_all(c, i, o, in));
    for (int k = 0; k < i->n_in; k++)
        x.in[k] = in[k].term, x.in_dtype[k] = o[k].dtype;
    uint64_t term[KU_MAX_OUT] = {0};
    for (int n = 0; n < i->n_out; n++) {
        const struct ku_operand *to = &o[i->n_in + n];
        KU_TRY(ku_proof_buffer(c, to->buffer));
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
        if (i->op == KU_OP_cast && i->n_in == 1)
            out[n].tensor = in[0].tensor;
    }
    KU_TRY(check_partition(c, o, i->n_in + i->n_out));
    int is_spec = c->model != NULL;
    if (i->op == KU_OP_fold)
        KU_TRY(fold(c, o, in, out));
    else if (is_spec && c->o->is_training &&
             (i->phase == KU_PH_O || i->op == KU_OP_loss_seed || i->op == KU_OP_stats_zero))
        KU_TRY(once(c, o, in, out));
    else if (is_spec && i->phase != KU_PH_O &&
             !(i->op == KU_OP_cast && x.in_dtype[0] == x.out_dtype[0]))
        KU_TRY(of_model(c, o, out));
    for (int n = 0; n < i->n_out; n++) {
        const struct ku_operand *to = &o[i->n_in + n];
        if (to->dtype != p->buffer[to->buffer].dtype)
            return ku_proof_refuse(c, to->buffer, "writes another dtype than the buffer has");
        out[n].dtype = to->dtype;
        /* statistics are written into a slot of a buffer of another shape */
        out[n].shape = i->op == KU_OP_batch_norm_moments ? 0 : c->shape_hash[to->shape];
        out[n].owned = (uint8_t)ku_proof_blocks(c, to);
        out[n].first_block = to->first_block;
        out[n].group = p->layout[to->layout].at[KU_AX_SHARD].kind == KU_Z
                           ? p->layout[to->layout].at[KU_AX_SHARD].dim
                           : 0;
        out[n].handle = 0;
    }
    return store(c, o, out);
}

static int step(struct ku_proof *c)
{
    const struct ku_instr *i = &c->p->instr[c->at];
    uint32_t n = i->kind == KU_WAIT    ? 0
                 : i->kind == KU_START ? i->n_in + i->n_parts
                                       : (uint32_t)i->n_in + i->n_out;
    if (n && (i->operand > c->p->n_operands || n > c->p->n_operands - i->operand))
        return ku_proof_refuse(c, 0, "operands beyond the list");
    switch ((enum ku_instr_kind)i->kind) {
    case KU_COMPUTE:
        return compute(c);
    case KU_START:
        c->report_of.n_collectives += !ku_exchange_is_tier(i->op);
        return ku_proof_start(c);
    case KU_WAIT:
        return ku_proof_wait(c);
    }
    return ku_proof_refuse(c, 0, "no such kind of instruction");
}

/* At the end collectives have ended, the state is whole and written once, ports are complete. */
static int finish(struct ku_proof *c)
{
    const struct ku_program *p = c->p;
    int trains = c->model && c->o->is_training;
    for (uint32_t h = 1; h <= p->n_handles; h++)
        if (c->start[h] != 0 && c->start[h] != UINT32_MAX) {
            c->at = c->start[h] - 1;
            return ku_proof_refuse(c, 0, "collective #%u has no wait", h);
        }
    c->at = p->n_instrs;
    for (ku_id b = 1; b < p->n_buffers; b++) {
        const struct ku_held *h = &c->held[b];
        if (c->state_of[b] == 0)
            continue;
        uint32_t s = c->state_of[b] - 1;
        const struct ku_program_state *x = &p->state[s];
        int whole = x->is_kept && x->blocks ? ku_layout_axes(&p->layout[x->blocks], KU_Z) &
                                                  ku_mesh_wide(&p->mesh, KU_DP_AXES)
                                            : 0;
        if (!(h->flags & KU_HELD_DEFINED) || h->owned & ~whole)
            return ku_proof_refuse(c, b,
                                   "the step ends with state that is not complete on all ranks");
        if (h->peers_read && h->peers_read < h->written && c->synced[KU_AX_SHARD] <= h->written)
            return ku_proof_refuse(c, b,
                                   "no collective orders the update before the next step's gather");
        uint32_t of = x->of ? x->of - 1 : s;
        ku_id t = c->tensor_of ? c->tensor_of[of] : 0;
        int needs = trains && t && c->gradient[t] &&
                    (x->kind == KU_T_PARAM || x->kind == KU_T_OPTIMIZER || x->kind == KU_T_DERIVED);
        needs |= trains && x->of == 0 && (x->kind == KU_T_COUNTER || x->kind == KU_T_OPTIMIZER);
        if (needs && c->written[s] != 1)
            return ku_proof_refuse(c, b, "the step does not update this tensor");
    }
    for (uint32_t i = 0; i < p->n_outputs; i++) {
        const struct ku_held *h = &c->held[p->output[i].buffer];
        if (!(h->flags & KU_HELD_DEFINED) || h->partial || h->handle)
            return ku_proof_refuse(c, p->output[i].buffer, "port %s is not complete",
                                   p->name_of[p->output[i].name]);
        for (uint32_t k = 0; c->spec && k < c->spec->n_outputs; k++)
            if (c->output[k] &&
                strcmp(c->spec->output[k].name, p->name_of[p->output[i].name]) == 0 &&
                h->term != c->output[k])
                return ku_proof_refuse(c, p->output[i].buffer,
                                       "port %s is not the sum over all micro-batches and ranks",
                                       p->name_of[p->output[i].name]);
    }
    return KUMI_OK;
}

int ku_proof_execute(struct ku_proof *c)
{
    for (c->at = 0; c->at < c->p->n_instrs; c->at++)
        KU_TRY(step(c));
    return finish(c);
}
