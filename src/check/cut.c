/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two sides of a parameter server. What data-parallel ranks would sum has a port in both
 * programs; its name is derived here, from the model, by code that includes no pass:
 *
 *     worker   port "gradient.0.wte.weight" ends with the tree over its shards and micro-batches,
 *              partial over the workers; every sum of the model has exactly one port
 *     server   the port's term is an input; the end of the step is derived from these
 *
 * That the server's input is the sum of the workers' outputs is believed: programs do not say it.
 */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/hash.h"
#include "base/mem.h"
#include "check/proof.h"

bool ku_cut_is(const struct ku_proof *c, enum ku_check_part part)
{
    return c->o->kind == KU_CHECK_TRAIN && c->o->part == part;
}

uint64_t ku_cut_gradient(const struct ku_graph *m, ku_id t, int nth)
{
    char name[KU_NAME_BYTES];
    snprintf(name, sizeof name, "gradient.%d.%s", nth, m->tensor[t].name);
    return ku_hash64(name, strlen(name));
}

uint64_t ku_cut_sum(uint32_t index, const char *path)
{
    char name[KU_NAME_BYTES];
    snprintf(name, sizeof name, "sum.%u.%s", index, path);
    return ku_hash64(name, strlen(name));
}

uint64_t ku_cut_input(uint64_t name)
{
    return ku_term_of(KU_TERM_INPUT, name, 0);
}

int ku_cut_expect(struct ku_proof *c, uint64_t name, uint64_t term, bool is_partial)
{
    if (c->n_cuts == c->p->n_outputs)
        return ku_proof_refuse(c, 0, "a worker does not push every gradient and sum");
    c->cut[c->n_cuts++] = (struct ku_cut){name, term, is_partial};
    return KUMI_OK;
}

int ku_cut_open(struct ku_proof *c)
{
    c->cut = ku_calloc(c->p->n_outputs + 1, sizeof *c->cut);
    return c->cut ? KUMI_OK : KUMI_ENOMEM;
}

/* The state of the tensor that a gradient's port names; NULL: it is no gradient. */
static const struct ku_program_state *state_of_port(const struct ku_program *p, const char *name)
{
    if (strncmp(name, "gradient.", 9) != 0 || strchr(name + 9, '.') == NULL)
        return NULL;
    for (uint32_t s = 0; s < p->n_states; s++)
        if (strcmp(p->name_of[p->state[s].name], strchr(name + 9, '.') + 1) == 0)
            return &p->state[s];
    return NULL;
}

/* Clipping by value overwrites a gradient where it is, so a buffer has its term from the start. */
void ku_cut_hold(struct ku_proof *c)
{
    const struct ku_program *p = c->p;
    for (uint32_t i = 0; i < p->n_inputs && ku_cut_is(c, KU_CHECK_SERVER); i++) {
        const char *name = p->name_of[p->input[i].name];
        const struct ku_program_state *x = state_of_port(p, name);
        struct ku_held *h = &c->held[p->input[i].buffer];
        h->term = ku_cut_input(ku_hash64(name, strlen(name)));
        h->owned = (uint8_t)(ku_layout_axes(&p->layout[p->input[i].layout], KU_Z) &
                             ku_mesh_wide(&p->mesh, KU_DP_AXES));
        h->first_block = x ? x->first_block : 0;
    }
}

int ku_cut_finish(struct ku_proof *c, const struct ku_program_port *port)
{
    const char *name = c->p->name_of[port->name];
    const uint64_t hash = ku_hash64(name, strlen(name));
    const struct ku_held *h = &c->held[port->buffer];
    struct ku_cut *x = c->cut;
    while (x < c->cut + c->n_cuts && x->name != hash)
        x++;
    if (x == c->cut + c->n_cuts)
        return ku_proof_refuse(c, port->buffer,
                               "port %s is no sum of the model, or is pushed twice", name);
    if (!(h->flags & KU_HELD_DEFINED) || h->handle || h->term != x->term)
        return ku_proof_refuse(c, port->buffer,
                               "port %s is not the sum over the worker's shards and micro-batches",
                               name);
    if (h->partial != (x->is_partial ? c->wide : 0))
        return ku_proof_refuse(c, port->buffer, "port %s is not partial over the workers", name);
    x->name = 0; /* found */
    return KUMI_OK;
}
