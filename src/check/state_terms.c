/* SPDX-License-Identifier: Apache-2.0 */
/* The state before and after a program: what it holds, what may and what must be written. */
#include <string.h>

#include "base/err.h"
#include "check/proof.h"
#include "ir/state.h"

/* Axes over which the ranks own chunks of a state tensor, each stored on its owner alone. */
static int stored_shards(const struct ku_program *p, const struct ku_program_state *x)
{
    return x->is_kept && x->blocks
               ? ku_layout_axes(&p->layout[x->blocks], KU_Z) & ku_mesh_wide(&p->mesh, KU_DP_AXES)
               : 0;
}

/* Ports are divided along their dim n. */
static uint8_t samples_of_port(const struct ku_program *p, uint32_t port)
{
    const int wide = ku_mesh_wide(&p->mesh, KU_DP_AXES | 1 << KU_AX_VS | 1 << KU_AX_MB);
    return wide ? (uint8_t)(ku_shape_find(&p->shape[p->input[port].shape], 'n') + 1) : 0;
}

/* A port's own placement. */
static int check_port(struct ku_proof *c, const struct ku_program_port *port)
{
    const struct ku_operand as = {
        .buffer = port->buffer, .shape = port->shape, .layout = port->layout};
    uint8_t samples;
    KU_TRY(ku_proof_samples(c, &as, &samples));
    return samples == c->held[port->buffer].samples
               ? KUMI_OK
               : ku_proof_refuse(c, port->buffer,
                                 "ranks and micro-batches divide port %s otherwise",
                                 c->p->name_of[port->name]);
}

static int check_ports(struct ku_proof *c)
{
    for (uint32_t i = 0; i < c->p->n_inputs; i++)
        KU_TRY(check_port(c, &c->p->input[i]));
    return KUMI_OK;
}

int ku_proof_hold(struct ku_proof *c)
{
    const struct ku_program *p = c->p;
    for (uint32_t s = 0; s < p->n_states; s++) {
        const struct ku_program_state *x = &p->state[s];
        ku_id b = s + 1; /* lowering adds the buffers of the state first */
        if (b >= p->n_buffers || p->buffer[b].arena != x->arena ||
            p->buffer[b].offset != x->offset || p->buffer[b].bytes != x->bytes ||
            p->buffer[b].dtype != x->dtype || p->buffer[b].is_kept != x->is_kept)
            return ku_proof_refuse(c, b, "is not where the state plan has %s", p->name_of[x->name]);
        if (x->pp >= p->mesh.extent[KU_AX_PP])
            return ku_proof_refuse(c, b, "no coordinate of axis pp stores %s", p->name_of[x->name]);
        if (x->pp >= 0 && x->pp != p->pp)
            continue;
        const char split = ku_proof_split_of_state(c, s);
        if (split == KU_SPLIT_BAD || split == KU_SPLIT_SHARED)
            return ku_proof_refuse(c, b, "is divided otherwise over axis tp than over axis tpi");
        c->state_of[b] = c->state_by_name[x->name] = s + 1;
        c->held[b] = (struct ku_held){.term = ku_term_state(p->name_of[x->name], NULL),
                                      .shape = c->shape_hash[x->shape],
                                      .dtype = x->dtype,
                                      .split = split,
                                      .owned = (uint8_t)stored_shards(p, x),
                                      .first_block = x->first_block,
                                      .flags = KU_HELD_DEFINED};
    }
    for (uint32_t i = 0; i < p->n_inputs; i++)
        c->held[p->input[i].buffer] = (struct ku_held){.term = 1,
                                                       .shape = c->shape_hash[p->input[i].shape],
                                                       .dtype = p->input[i].dtype,
                                                       .samples = samples_of_port(p, i),
                                                       .flags = KU_HELD_DEFINED};
    ku_cut_hold(c);
    return check_ports(c);
}

/* Other ranks have read what a state tensor held before this rank overwrites it. */
static int check_edges(struct ku_proof *c, ku_id b, const struct ku_held *value, uint32_t own_read,
                       uint32_t peers_read)
{
    if (c->p->buffer[b].arena == KU_AR_HOST && own_read) {
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
    return KUMI_OK;
}

int ku_proof_write(struct ku_proof *c, ku_id b, const struct ku_held *value)
{
    const struct ku_program *p = c->p;
    struct ku_held *h = &c->held[b];
    const uint32_t s = c->state_of[b], own_read = h->own_read, peers_read = h->peers_read;
    const struct ku_instr *i = &p->instr[c->at];
    if (h->readers)
        return ku_proof_refuse(c, b, "overwrites the operand of a collective in flight");
    if (ku_rows_is_filled(c, b) && !ku_cut_is(c, KU_CHECK_SERVER)) /* that clips gradients there */
        return ku_proof_refuse(c, b, "overwrites an input of the program");
    if (p->buffer[b].arena == KU_AR_GATHER && (i->kind != KU_START || i->op != KU_X_ALL_GATHER))
        return ku_proof_refuse(c, b, "writes what only all-gathers write for all ranks of a host");
    *h = *value;
    h->own_read = own_read;
    h->peers_read = peers_read;
    h->written = c->at + 1;
    h->readers = 0;
    if (s == 0)
        return KUMI_OK;
    KU_TRY(check_edges(c, b, value, own_read, peers_read));
    if (i->kind == KU_COMPUTE || i->op == KU_X_WRITE)
        c->written[s - 1]++;
    if (c->written[s - 1] > 1)
        return ku_proof_refuse(c, b, "writes a tensor twice");
    if (c->next[s - 1] == 0)
        return ku_proof_refuse(c, b, "writes a tensor that does not change");
    if (value->partial)
        return ku_proof_refuse(c, b, "writes a partial sum to the state");
    if (value->term != c->next[s - 1])
        return ku_proof_refuse(c, b, "writes a value that is not the tensor's next one");
    if (value->split != ku_proof_split_of_state(c, s - 1))
        return ku_proof_refuse(c, b, "writes a value that the ranks of axis tp divide otherwise");
    if (value->shape && value->shape != c->shape_hash[p->state[s - 1].shape])
        return ku_proof_refuse(c, b, "writes a value of another shape");
    return KUMI_OK;
}

static int finish_state(struct ku_proof *c, ku_id b, uint32_t s)
{
    const struct ku_held *h = &c->held[b];
    if (!(h->flags & KU_HELD_DEFINED) || h->owned & ~stored_shards(c->p, &c->p->state[s]))
        return ku_proof_refuse(c, b, "the step ends with state that is not complete on all ranks");
    if (h->peers_read && h->peers_read < h->written && c->synced[KU_AX_SHARD] <= h->written)
        return ku_proof_refuse(c, b,
                               "no collective orders the update before the next step's gather");
    if (c->is_gathered && c->is_gathered[s] && h->owned >> KU_AX_SHARD & 1 && h->written &&
        c->synced[KU_AX_SHARD] <= h->written)
        return ku_proof_refuse(c, b, "no collective orders the write before a step's gather");
    const int parts = ku_proof_split_axes(c, c->p->state[s].shape, ku_proof_split_of_state(c, s));
    for (int a = KU_AX_TP; a <= KU_AX_TPI; a++)
        if (parts >> a & 1 && h->written && c->synced[a] <= h->written)
            return ku_proof_refuse(c, b,
                                   "no collective orders the write before other ranks read it");
    if (c->p->state[s].pp >= 0 && h->written && c->synced[KU_AX_PP] <= h->written)
        return ku_proof_refuse(c, b, "no collective orders the write before other ranks read it");
    if (c->next[s] && h->term != c->next[s])
        return ku_proof_refuse(c, b, "the step does not update this tensor");
    return KUMI_OK;
}

/* Once the step is over, ranks read the state in the arenas of other ranks of the host: digests,
 * checkpoints. */
static int check_readers(struct ku_proof *c, ku_id b, int arena)
{
    const struct ku_mesh *m = &c->p->mesh;
    const bool is_read = arena == KU_AR_SHARD || ku_arena_is_offload(arena);
    const int axes = is_read && ku_state_owner_axes(m) ? ku_mesh_wide(m, KU_DP_AXES) : 0;
    for (int a = 0; a < KU_AX_FIRST_TIME; a++)
        if (axes >> a & 1 && c->entered[a] < c->held[b].written)
            return ku_proof_refuse(c, b,
                                   "no collective orders the write before other ranks read it");
    return KUMI_OK;
}

/* The term of a port; of one with rows, of those of a micro-batch. 0: the model does not say it. */
static uint64_t port_of(const struct ku_proof *c, const char *name, int micro)
{
    const uint32_t n_micro = (uint32_t)ku_mesh_n_micro(&c->mesh);
    if (strcmp(name, "report") == 0)
        return c->report;
    if (strcmp(name, "stats") == 0)
        return c->stats;
    for (uint32_t k = 0; c->spec && k < c->spec->n_outputs; k++)
        if (strcmp(c->spec->output[k].name, name) == 0)
            return c->output[k] ? c->output[k] : c->output_row[k * n_micro + (uint32_t)micro];
    return 0;
}

/* A port, or its rows of a micro-batch. */
static int finish_value(struct ku_proof *c, const struct ku_program_port *port, int micro)
{
    const char *name = c->p->name_of[port->name];
    const struct ku_held *h = &c->held[port->buffer];
    const uint64_t term = port_of(c, name, micro);
    if (!(h->flags & KU_HELD_DEFINED) || h->partial || h->handle)
        return ku_proof_refuse(c, port->buffer, "port %s is not complete", name);
    if (term && h->term != term)
        return ku_proof_refuse(c, port->buffer,
                               "port %s is not the value over all micro-batches and ranks", name);
    return check_port(c, port);
}

/* A port without rows has the value of the last micro-batch, if it is no sum of them. */
static int finish_port(struct ku_proof *c, const struct ku_program_port *port)
{
    const int n = ku_rows_count(c, port->buffer);
    if (n == 1)
        return finish_value(c, port, ku_mesh_n_micro(&c->mesh) - 1);
    for (int micro = 0; micro < n; micro++) {
        ku_rows_select(c, micro);
        KU_TRY(finish_value(c, port, micro));
    }
    return KUMI_OK;
}

int ku_proof_finish(struct ku_proof *c)
{
    const struct ku_program *p = c->p;
    for (uint32_t h = 1; h <= p->n_handles; h++)
        if (c->start[h] != 0 && c->start[h] != UINT32_MAX) {
            c->at = c->start[h] - 1;
            return ku_proof_refuse(c, 0, "collective #%u has no wait", h);
        }
    c->at = p->n_instrs;
    for (ku_id b = 1; b < p->n_buffers; b++)
        if (c->state_of[b])
            KU_TRY(finish_state(c, b, c->state_of[b] - 1));
    for (ku_id b = 1; b < p->n_buffers; b++)
        if (c->state_of[b])
            KU_TRY(check_readers(c, b, p->buffer[b].arena));
    for (uint32_t i = 0; i < p->n_outputs; i++)
        KU_TRY(ku_cut_is(c, KU_CHECK_WORKER) ? ku_cut_finish(c, &p->output[i])
                                             : finish_port(c, &p->output[i]));
    return KUMI_OK;
}
