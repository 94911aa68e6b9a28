/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a step, derived from the model and the optimizer config by code that includes no pass:
 * the term of every result, with all attributes, and of every state tensor after the step.
 *
 *     norm, loss, counts ── step_scalars ── report
 *     gradient [── clip_value ──] optimizer ── p', state', copy' [── cast ──] [── ema]
 *
 * LARS, LAMB and Adafactor scale by norms of tensors: their sums over all tensors are complete
 * before the first parameter changes. So the derivation passes over the tensors in stages.
 *
 * Stochastic rounding takes the random streams after those of the model, one per narrow parameter:
 * first the parameters that are not scaled by their norm, then those that LARS and LAMB scale.
 */
#include <string.h>

#include "base/err.h"
#include "base/hash.h"
#include "base/str.h"
#include "check/proof.h"

/* Passes over the tensors: sums of rows and columns, sums of squares, results. */
enum stage { FACTORS, SUMS, RESULTS };
struct end {
    struct ku_proof *c;
    const struct ku_graph *m;
    int stage;
    uint64_t total, factors, norms; /* total: of this stage */
    int64_t index, words;           /* of the tensor in the totals */
    uint32_t n_narrow;              /* parameters that are rounded and not scaled by their norm */
    uint32_t n_rounded[2];          /* of these, and of those that are scaled, so far */
};
/* One parameter and its update. */
struct item {
    ku_id t;
    uint64_t p, g, state[KU_MAX_STATE];
    enum kumi_dtype wide; /* of p as the optimizer reads it, and of its state */
    struct ku_attrs a;
    int is_scaled, is_factored; /* scaled: by its norm */
};

void ku_update_scaler_of(const struct ku_attrs *rule, struct ku_attrs *a)
{
    a->loss_scale = rule->loss_scale;
    a->scaler = rule->scaler;
    a->scale_window = rule->scale_window;
    a->hysteresis = rule->hysteresis;
    a->consecutive_hysteresis = rule->consecutive_hysteresis;
    a->min_scale = rule->min_scale;
    a->growth_factor = rule->growth_factor;
    a->backoff_factor = rule->backoff_factor;
}

/* The results of an op as terms of the model. in: ends with 0. */
static int apply_random(struct ku_proof *c, int op, const struct ku_attrs *a, uint32_t stream,
                        const uint64_t *in, const int *dtype, int n_out, uint64_t *out)
{
    struct ku_term_op x = {
        .op = op, .n_out = n_out, .attr = ku_attrs_hash(a), .a = a, .stream = stream};
    const bool has_sums = ku_ops[op].traits & KU_OP_CHUNKS;
    KU_ASSERT(n_out <= KU_MAX_OUT);
    for (; in[x.n_in]; x.n_in++)
        x.in[x.n_in] = in[x.n_in];
    x.n_in += has_sums; /* the totals are the last operand and the last result */
    for (int n = 0; n < n_out; n++)
        x.out_dtype[n] = (uint8_t)dtype[n];
    ku_term_results(c, &x, out);
    for (int n = 0; n < n_out - has_sums; n++)
        KU_TRY(ku_terms_add(
            &c->terms, &(struct ku_term){.hash = out[n], .dtype = x.out_dtype[n], .is_end = true}));
    return KUMI_OK;
}

static int apply(struct ku_proof *c, int op, const struct ku_attrs *a, const uint64_t *in,
                 const int *dtype, int n_out, uint64_t *out)
{
    return apply_random(c, op, a, 0, in, dtype, n_out, out);
}

static int set_next(struct ku_proof *c, uint64_t state, uint64_t term)
{
    const uint32_t s = ku_proof_state(c, state);
    if (s == 0)
        return ku_proof_refuse(c, 0, "the state plan has not every tensor of the update");
    c->next[s - 1] = term;
    return KUMI_OK;
}

static uint64_t output_of(const struct ku_proof *c, const char *name)
{
    for (uint32_t i = 0; i < c->model->n_outputs; i++)
        if (strcmp(c->model->output[i].name, name) == 0)
            return c->output[i];
    return 0;
}

int ku_update_statistics(struct ku_proof *c, const struct ku_node *moments, uint64_t seen)
{
    const struct ku_graph *m = c->spec;
    struct ku_attrs a = m->attr[moments->attr], up = ku_attrs_default;
    uint64_t state[3], out[2], count;
    int dtype[3];
    for (int i = 0; i < 3; i++) {
        const struct ku_tensor *x = &m->tensor[m->value[ku_in(m, moments, i + 1)].tensor];
        state[i] = ku_term_state(x->name, NULL);
        dtype[i] = x->dtype;
    }
    a.scale =
        1.0 / (c->mesh.extent[KU_AX_VS] * (a.sync || c->o->is_single ? 1 : ku_mesh_dp(&c->mesh)));
    up.words = c->mesh.extent[KU_AX_MB];
    KU_TRY(apply(c, KU_OP_batch_norm_track, &a, (uint64_t[]){state[0], state[1], seen, 0}, dtype, 2,
                 out));
    KU_TRY(apply(c, KU_OP_count_up, &up, (uint64_t[]){state[2], 0}, &dtype[2], 1, &count));
    KU_TRY(set_next(c, state[0], out[0]));
    KU_TRY(set_next(c, state[1], out[1]));
    return set_next(c, state[2], count);
}

static bool is_selected(const struct ku_graph *m, ku_id t, int how, const char *const *patterns)
{
    int64_t dim[KU_MAX_DIMS];
    if (how == KU_DECAY_MATRICES)
        return ku_tensor_file_shape(m, t, dim) >= 2;
    for (int i = 0; how == KU_DECAY_PATTERNS && patterns[i]; i++)
        if (ku_str_glob(patterns[i], m->tensor[t].name))
            return 1;
    return how == KU_DECAY_ALL;
}

static const struct ku_update_group *group_of(const struct ku_check_opts *o, const char *name)
{
    for (int g = 0; g < o->n_groups; g++)
        for (int i = 0; o->groups[g].match[i]; i++)
            if (ku_str_glob(o->groups[g].match[i], name))
                return &o->groups[g];
    return NULL;
}

/* The attributes of a parameter's optimizer: the common ones, then those of its group. */
static struct ku_attrs attrs_of(const struct end *e, ku_id t)
{
    const struct ku_check_opts *o = e->c->o;
    const struct ku_tensor *x = &e->m->tensor[t];
    const struct ku_update_group *group = group_of(o, x->name);
    struct ku_attrs a = o->rule;
    bool decays = is_selected(e->m, t, o->decay, o->decay_patterns);
    ku_update_scaler_of(&ku_attrs_default, &a);
    a.clip_value = 0;
    a.dtype = x->copy ? e->m->tensor[x->copy].dtype : -1;
    for (int i = 0; group && i < group->n_set; i++) {
        memcpy((char *)&a + group->set[i].offset, &group->set[i].value, sizeof(double));
        decays |= group->set[i].offset == offsetof(struct ku_attrs, weight_decay);
    }
    a.weight_decay = decays ? a.weight_decay : 0;
    return a;
}

/* The parameter as the optimizer reads it: a narrow one without master is widened. */
static int widen(struct end *e, struct item *x, uint64_t p, uint64_t *out)
{
    const int f32 = KUMI_F32;
    *out = p;
    return x->wide == (enum kumi_dtype)e->m->tensor[x->t].dtype
               ? KUMI_OK
               : apply(e->c, KU_OP_widen, &ku_attrs_default, (uint64_t[]){p, 0}, &f32, 1, out);
}

/* Optimizer `op` of a parameter begins: its state, and its share of the totals. */
static void use_state(struct end *e, struct item *x, int op)
{
    for (int k = 0; k < KU_MAX_STATE; k++)
        x->state[k] =
            ku_ops[op].state[k] ? ku_term_state(e->m->tensor[x->t].name, ku_ops[op].state[k]) : 0;
}

/* The places of a matrix in the sums of rows and columns: Adafactor's attributes. */
static void factor(struct end *e, struct item *x)
{
    const struct ku_shape *s = &e->m->shape[e->m->tensor[x->t].shape];
    int64_t dim[KU_MAX_DIMS], n_matrices = 1, seen = s->dim[0].seen;
    int n = ku_tensor_file_shape(e->m, x->t, dim);
    x->a.count = ku_shape_seen(s);
    x->is_factored = n >= 2;
    use_state(e, x, n >= 2 ? KU_OP_adafactor : KU_OP_adafactor_vector);
    if (n < 2)
        return;
    const int64_t unpadded = dim[n - 2];
    if (seen) /* files have no padding, which is in the first dim */
        dim[0] = dim[0] / seen * s->dim[0].count;
    for (int d = 0; d < n - 2; d++)
        n_matrices *= dim[d];
    x->a.rows = dim[n - 2], x->a.cols = dim[n - 1];
    x->a.rows_seen = n == 2 ? unpadded : x->a.rows;
    x->a.first_word = e->words;
    e->words += 2 * n_matrices * (x->a.rows + x->a.cols);
}

/* The random stream that a parameter's rounding takes. */
static uint32_t stream_of(struct end *e, const struct item *x)
{
    const uint32_t nth = ++e->n_rounded[x->is_scaled];
    return e->m->n_streams + (x->is_scaled ? e->n_narrow : 0) + nth;
}

/* The parameter's optimizer results become its next state: p', states first .. n, copy. */
static int leave(struct end *e, struct item *x, const uint64_t *out, int n_states)
{
    struct ku_proof *c = e->c;
    const struct ku_tensor *t = &e->m->tensor[x->t];
    struct ku_attrs a = ku_attrs_default;
    const int narrow = t->dtype, wide = (int)x->wide;
    uint64_t p = out[0], average = ku_term_state(t->name, "ema");
    for (int k = 0; k < n_states; k++)
        KU_TRY(set_next(c, x->state[k], out[k + 1]));
    if (t->copy)
        KU_TRY(set_next(c, ku_term_state(e->m->tensor[t->copy].name, NULL), out[n_states + 1]));
    a.dtype = narrow;
    if (narrow != wide && c->o->stochastic_rounding)
        KU_TRY(
            apply_random(c, KU_OP_stochastic_round, &a, stream_of(e, x),
                         (uint64_t[]){p, ku_term_of(KU_TERM_INPUT, ku_hash64("control", 7), 0), 0},
                         &narrow, 1, &p));
    else if (narrow != wide)
        KU_TRY(apply(c, KU_OP_cast, &a, (uint64_t[]){p, 0}, &narrow, 1, &p));
    KU_TRY(set_next(c, ku_term_state(t->name, NULL), p));
    if (c->o->rule.ema == 0)
        return KUMI_OK;
    a = ku_attrs_default;
    a.ema = c->o->rule.ema, a.ema_warmup = c->o->rule.ema_warmup;
    KU_TRY(widen(e, x, p, &p));
    KU_TRY(apply(c, KU_OP_ema, &a, (uint64_t[]){average, p, c->report, 0}, &wide, 1, &p));
    return set_next(c, average, p);
}

/* Operands "p01gr.." of an op, 0 at their end. */
static const uint64_t *operands(const struct end *e, const struct item *x, const char *roles,
                                const uint64_t *made, uint64_t in[KU_MAX_IN + 1])
{
    int n = 0;
    for (; roles[n]; n++)
        in[n] = roles[n] == 'p'   ? x->p
                : roles[n] == 'g' ? x->g
                : roles[n] == 'r' ? e->c->report
                : roles[n] == 'n' ? e->norms
                : roles[n] == 's' ? e->factors
                : roles[n] >= 'A' ? made[roles[n] - 'A']
                                  : x->state[roles[n] - '0'];
    in[n] = 0;
    return in;
}

/* Element-wise optimizers: p, state .., g, report -> p', state' .. [, copy]. */
static int elementwise(struct end *e, struct item *x, int op)
{
    static const char *const roles[] = {"pgr", "p0gr", "p01gr", "p012gr"};
    const ku_id copy = e->m->tensor[x->t].copy;
    uint64_t in[KU_MAX_IN + 1], out[KU_MAX_OUT];
    int dtype[KU_MAX_OUT], n = 0;
    use_state(e, x, op);
    while (n < KU_MAX_STATE && x->state[n])
        n++;
    for (int k = 0; k <= n; k++)
        dtype[k] = (int)x->wide;
    dtype[n + 1] = copy ? e->m->tensor[copy].dtype : 0;
    KU_TRY(apply(e->c, op, &x->a, operands(e, x, roles[n], NULL, in), dtype, n + 1 + (copy != 0),
                 out));
    return leave(e, x, out, n);
}

/* LARS and LAMB, of a parameter that is scaled by its norm. */
static int layerwise(struct end *e, struct item *x, int op)
{
    const ku_id copy = e->m->tensor[x->t].copy;
    const int w = (int)x->wide, narrow = copy ? e->m->tensor[copy].dtype : 0, i64 = KUMI_I64;
    uint64_t in[KU_MAX_IN + 1], made[KU_MAX_OUT], out[KU_MAX_OUT] = {0}, share;
    use_state(e, x, op);
    x->a.index = e->index++;
    x->a.chunk = e->m->tensor[x->t].chunk;
    if (op == KU_OP_lars) {
        KU_TRY(
            apply(e->c, KU_OP_trust_sums, &x->a, operands(e, x, "pg", NULL, in), &i64, 1, &share));
    } else {
        KU_TRY(apply(e->c, KU_OP_lamb_moments, &x->a, operands(e, x, "p01gr", NULL, in),
                     (int[]){w, w, i64}, 3, made));
        share = made[2];
    }
    e->total += share;
    if (e->stage < RESULTS)
        return KUMI_OK;
    if (op == KU_OP_lars) {
        KU_TRY(apply(e->c, op, &x->a, operands(e, x, "p0grn", NULL, in), (int[]){w, w, narrow},
                     2 + (copy != 0), out));
        return leave(e, x, out, 1);
    }
    KU_TRY(apply(e->c, op, &x->a, operands(e, x, "pABrn", made, in), (int[]){w, narrow},
                 1 + (copy != 0), out));
    return leave(e, x, (uint64_t[]){out[0], made[0], made[1], out[1]}, 2);
}

static int adafactor_vector(struct end *e, struct item *x, const int *result, int n_out)
{
    const int w = (int)x->wide;
    uint64_t in[KU_MAX_IN + 1], made[2], out[KU_MAX_OUT] = {0};
    if (e->stage == FACTORS)
        return KUMI_OK;
    KU_TRY(apply(e->c, KU_OP_variance_norms, &x->a, operands(e, x, "p0gr", NULL, in),
                 (int[]){w, KUMI_I64}, 2, made));
    e->total += made[1];
    if (e->stage == SUMS)
        return KUMI_OK;
    KU_TRY(apply(e->c, KU_OP_adafactor_vector, &x->a, operands(e, x, "pAgrn", made, in), result,
                 n_out, out));
    return leave(e, x, (uint64_t[]){out[0], made[0], out[1]}, 1);
}

static int adafactor_matrix(struct end *e, struct item *x, const int *result, int n_out)
{
    const int w = (int)x->wide, i64 = KUMI_I64;
    uint64_t in[KU_MAX_IN + 1], made[3], out[KU_MAX_OUT] = {0}, share;
    KU_TRY(apply(e->c, KU_OP_factor_sums, &x->a, operands(e, x, "gr", NULL, in), &i64, 1, &share));
    if (e->stage == FACTORS) {
        e->total += share;
        return KUMI_OK;
    }
    KU_TRY(apply(e->c, KU_OP_factor_means, &x->a, operands(e, x, "s01r", NULL, in),
                 (int[]){w, w, KUMI_F64}, 3, made));
    KU_TRY(apply(e->c, KU_OP_factor_norms, &x->a, operands(e, x, "pgABCr", made, in), &i64, 1,
                 &share));
    e->total += share;
    if (e->stage == SUMS)
        return KUMI_OK;
    KU_TRY(apply(e->c, KU_OP_adafactor, &x->a, operands(e, x, "pgABCrn", made, in), result, n_out,
                 out));
    for (int k = 0; k < 2; k++)
        KU_TRY(apply(e->c, KU_OP_derive, &x->a, (uint64_t[]){made[k], 0}, &w, 1, &made[k]));
    return leave(e, x, (uint64_t[]){out[0], made[0], made[1], out[1]}, 2);
}

static int adafactor(struct end *e, struct item *x)
{
    const ku_id copy = e->m->tensor[x->t].copy;
    const int result[] = {(int)x->wide, copy ? e->m->tensor[copy].dtype : 0};
    x->a.index = e->index++;
    factor(e, x);
    return (x->is_factored ? adafactor_matrix : adafactor_vector)(e, x, result, 1 + (copy != 0));
}

/* A parameter's optimizer at a stage. */
static int update(struct end *e, ku_id t)
{
    struct ku_proof *c = e->c;
    const enum kumi_dtype dtype = (enum kumi_dtype)e->m->tensor[t].dtype;
    const int op = c->o->optimizer, grads = c->o->compute == KUMI_F64 ? KUMI_F64 : c->o->grads;
    struct item x = {.t = t, .g = c->gradient[t]};
    x.wide = kumi_dtype_bytes(dtype) < kumi_dtype_bytes(KUMI_F32) ? KUMI_F32 : dtype;
    x.a = attrs_of(e, t);
    KU_TRY(widen(e, &x, ku_term_state(e->m->tensor[t].name, NULL), &x.p));
    if (c->o->rule.clip_value > 0) {
        struct ku_attrs a = ku_attrs_default;
        a.clip_value = c->o->rule.clip_value;
        KU_TRY(apply(c, KU_OP_clip_value, &a, (uint64_t[]){x.g, c->report, 0}, &grads, 1, &x.g));
    }
    if (op == KU_OP_adafactor)
        return adafactor(e, &x);
    const bool is_layerwise = op == KU_OP_lars || op == KU_OP_lamb;
    x.is_scaled = is_layerwise && is_selected(e->m, t, c->o->adapt, c->o->adapt_patterns);
    if (e->stage == FACTORS && !x.is_scaled && x.wide != dtype)
        e->n_narrow++;
    if (x.is_scaled)
        return layerwise(e, &x, op);
    return e->stage < RESULTS ? KUMI_OK
                              : elementwise(e, &x,
                                            op == KU_OP_lars   ? KU_OP_sgd
                                            : op == KU_OP_lamb ? KU_OP_adamw
                                                               : op);
}

static int derive_report(struct ku_proof *c)
{
    const uint64_t count = ku_term_state("update", NULL), scale = ku_term_state("loss_scale", NULL);
    const bool has_scaler = c->o->rule.loss_scale != 0;
    const int f64 = KUMI_F64;
    struct ku_attrs a = c->o->rule;
    uint64_t out[2], scaler;
    a.shift = c->shift;
    KU_TRY(apply(c, KU_OP_step_scalars, &a,
                 (uint64_t[]){c->stats, output_of(c, "loss_sum"), output_of(c, "loss_valid"), count,
                              has_scaler ? scale : 0, 0},
                 (int[]){f64, KUMI_I64}, 2, out));
    c->report = out[0];
    KU_TRY(set_next(c, count, out[1]));
    if (!has_scaler)
        return KUMI_OK;
    a = ku_attrs_default;
    ku_update_scaler_of(&c->o->rule, &a);
    KU_TRY(apply(c, KU_OP_loss_scaler, &a, (uint64_t[]){scale, c->report, 0}, &f64, 1, &scaler));
    return set_next(c, scale, scaler);
}

int ku_update_derive(struct ku_proof *c)
{
    struct end e = {.c = c, .m = c->model};
    const uint64_t loss = output_of(c, "loss_sum"), valid = output_of(c, "loss_valid");
    const int f64 = KUMI_F64;
    if (c->o->kind != KU_CHECK_TRAIN)
        return loss ? apply(c, KU_OP_loss_scalars, &ku_attrs_default, (uint64_t[]){loss, valid, 0},
                            &f64, 1, &c->report)
                    : KUMI_OK;
    KU_TRY(derive_report(c));
    for (e.stage = FACTORS; e.stage <= RESULTS; e.stage++) {
        e.total = KU_TOTALS_ZERO, e.index = e.words = 0;
        for (ku_id t = 1; t < e.m->n_tensors; t++)
            if (c->gradient[t])
                KU_TRY(update(&e, t));
        if (e.stage == FACTORS)
            e.factors = e.total;
        else if (e.stage == SUMS && e.total != KU_TOTALS_ZERO)
            KU_TRY(apply(c, KU_OP_trust_norms, &ku_attrs_default, (uint64_t[]){e.total, 0}, &f64, 1,
                         &e.norms));
    }
    return KUMI_OK;
}
