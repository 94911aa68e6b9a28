/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Initial values: the term that each state tensor has in the end. Memory is new and zero, so zeros
 * need not be written; an offload target is not.
 *
 *     parameters, buffers     the model's initializer, with a random stream of their own
 *     optimizer, counters     zero; Adagrad's sums: initial_accumulator_value
 *     derived tensors         from their parameter, as initialised or as loaded
 *
 * The next step gathers shards in place, so a collective must come after their last write.
 */
#include <math.h>

#include "base/err.h"
#include "base/hash.h"
#include "base/mem.h"
#include "check/proof.h"

/* Refuses a second tensor with the random stream of another. */
static int take_stream(struct ku_proof *c, uint32_t stream, uint64_t term, const char *name)
{
    const struct ku_term own = {.hash = ku_term_of(KU_TERM_STREAM, stream, 0), .shape = term};
    if (ku_terms_find(&c->streams, own.hash))
        return ku_proof_refuse(c, 0, "%s has the random stream of another tensor", name);
    return ku_terms_add(&c->streams, &own);
}

static int initializer(struct ku_proof *c, const struct ku_program_state *x, ku_id t, uint64_t *out,
                       bool *is_zero)
{
    const struct ku_graph *m = c->model;
    struct ku_attrs a = t ? m->attr[m->tensor[t].init_attr] : ku_attrs_default;
    struct ku_term_op op = {.op = t ? m->tensor[t].init_op : KU_OP_fill, .n_out = 1, .a = &a};
    const bool is_random = ku_ops[op.op].traits & KU_OP_RANDOM;
    if (x->of && x->kind == KU_T_OPTIMIZER && c->o->optimizer == KU_OP_adagrad &&
        ku_term_state(c->p->name_of[x->name], NULL) ==
            ku_term_state(c->p->name_of[c->p->state[x->of - 1].name],
                          ku_ops[KU_OP_adagrad].state[0]))
        a.value = c->o->initial_accumulator_value;
    *is_zero = op.op == KU_OP_fill && a.value == 0 && !signbit(a.value);
    op.attr = ku_attrs_hash(&a);
    op.out_dtype[0] = x->dtype;
    op.n_in = 1 + is_random;
    op.stream = t ? m->tensor[t].stream : 0;
    if (is_random)
        op.in[1] = ku_term_of(KU_TERM_INPUT, ku_hash64("control", 7), 0);
    ku_term_results(c, &op, out);
    return is_random ? take_stream(c, op.stream, *out, m->tensor[t].name) : KUMI_OK;
}

static int derived(struct ku_proof *c, uint32_t s)
{
    const struct ku_program_state *x = &c->p->state[s];
    struct ku_term_op op = {.op = KU_OP_derive,
                            .n_in = 2,
                            .n_out = 1,
                            .attr = ku_attrs_hash(&ku_attrs_default),
                            .a = &ku_attrs_default,
                            .out_dtype = {x->dtype}};
    if (x->of == 0)
        return ku_proof_refuse(c, s + 1, "is derived from no parameter");
    op.in[0] = c->o->kind == KU_CHECK_INIT ? c->next[x->of - 1] : c->held[x->of].term;
    ku_term_results(c, &op, &c->next[s]);
    c->held[s + 1].flags = 0;
    return ku_terms_add(&c->terms,
                        &(struct ku_term){.hash = c->next[s], .dtype = x->dtype, .is_end = true});
}

/* The state that forward reads, as parameters or compute copies. */
static int note_gathered(struct ku_proof *c)
{
    const struct ku_graph *m = c->model;
    c->is_gathered = ku_calloc(c->p->n_states + 1, 1);
    if (c->is_gathered == NULL)
        return KUMI_ENOMEM;
    for (ku_id n = 1; n < m->n_nodes; n++)
        for (int i = 0; m->node[n].op && i < m->node[n].n_in; i++) {
            const struct ku_value *v = &m->value[ku_in(m, &m->node[n], i)];
            const uint32_t s =
                v->role == KU_STATE
                    ? ku_proof_state(c, ku_term_state(m->tensor[v->tensor].name, NULL))
                    : 0;
            c->is_gathered[s ? s - 1 : c->p->n_states] = 1;
        }
    return KUMI_OK;
}

int ku_initial_derive(struct ku_proof *c)
{
    const struct ku_program *p = c->p;
    KU_TRY(note_gathered(c));
    for (uint32_t s = 0; s < p->n_states && c->o->kind == KU_CHECK_INIT; s++) {
        const struct ku_program_state *x = &p->state[s];
        const ku_id t = ku_graph_find_tensor(c->model, p->name_of[x->name]);
        struct ku_held *h = &c->held[s + 1];
        bool is_zero;
        if (x->kind == KU_T_DERIVED)
            continue;
        KU_TRY(initializer(c, x, t, &c->next[s], &is_zero));
        h->term = c->next[s];
        h->flags = is_zero && !ku_arena_is_offload(x->arena) ? KU_HELD_DEFINED : 0;
        KU_TRY(ku_terms_add(&c->terms,
                            &(struct ku_term){.hash = h->term, .dtype = x->dtype, .is_end = true}));
    }
    for (uint32_t s = 0; s < p->n_states; s++)
        if (p->state[s].kind == KU_T_DERIVED)
            KU_TRY(derived(c, s));
    return KUMI_OK;
}
