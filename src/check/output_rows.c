/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Outputs with rows for every micro-batch. One buffer has the rows of all of them, and an
 * instruction names those of its micro-batch (ku_program_part), so they are that many values:
 *
 *     logits [n=8 v=5] {mb:S(n)}, 2 micro-batches     | rows of 0 | rows of 1 |
 *
 * `held` has the value of the rows that the current instruction names, `row` the other ones.
 */
#include "base/mem.h"
#include "check/proof.h"

static bool is_input(const struct ku_program *p, ku_id buffer)
{
    for (uint32_t i = 0; i < p->n_inputs; i++)
        if (p->input[i].buffer == buffer)
            return true;
    return false;
}

static bool has_rows(const struct ku_program *p, const struct ku_program_port *port)
{
    return p->buffer[port->buffer].arena == KU_AR_INPUT &&
           p->layout[port->layout].at[KU_AX_MB].kind == KU_S && !is_input(p, port->buffer);
}

bool ku_rows_is_filled(const struct ku_proof *c, ku_id buffer)
{
    return c->p->buffer[buffer].arena == KU_AR_INPUT && is_input(c->p, buffer);
}

int ku_rows_open(struct ku_proof *c)
{
    const struct ku_program *p = c->p;
    const int n_micro = ku_mesh_n_micro(&p->mesh);
    c->rows = ku_calloc(p->n_outputs + 1, sizeof *c->rows);
    if (c->rows == NULL)
        return KUMI_ENOMEM;
    for (uint32_t i = 0; i < p->n_outputs && n_micro > 1; i++) {
        if (!has_rows(p, &p->output[i]) || ku_rows_count(c, p->output[i].buffer) > 1)
            continue;
        struct ku_rows *r = &c->rows[c->n_rows++];
        r->buffer = p->output[i].buffer;
        r->row = ku_calloc((size_t)n_micro, sizeof *r->row);
        if (r->row == NULL)
            return KUMI_ENOMEM;
    }
    return KUMI_OK;
}

void ku_rows_close(struct ku_proof *c)
{
    for (uint32_t i = 0; i < c->n_rows; i++)
        ku_free(c->rows[i].row);
    ku_free(c->rows);
}

int ku_rows_count(const struct ku_proof *c, ku_id buffer)
{
    for (uint32_t i = 0; i < c->n_rows; i++)
        if (c->rows[i].buffer == buffer)
            return ku_mesh_n_micro(&c->p->mesh);
    return 1;
}

void ku_rows_select(struct ku_proof *c, int micro)
{
    KU_ASSERT(micro >= 0 && micro < ku_mesh_n_micro(&c->p->mesh));
    for (uint32_t i = 0; i < c->n_rows && micro != c->micro; i++) {
        struct ku_rows *r = &c->rows[i];
        r->row[c->micro] = c->held[r->buffer];
        c->held[r->buffer] = r->row[micro];
    }
    c->micro = micro;
}

void ku_rows_select_at(struct ku_proof *c)
{
    const struct ku_instr *i = &c->p->instr[c->at];
    const bool is_wait = i->kind == KU_WAIT && i->handle && i->handle <= c->p->n_handles;
    const uint32_t start = is_wait ? c->start[i->handle] : 0;
    if (start && start != UINT32_MAX)
        i = &c->p->instr[start - 1];
    ku_rows_select(c, i->micro > 0 && i->micro < ku_mesh_n_micro(&c->p->mesh) ? i->micro : 0);
}
