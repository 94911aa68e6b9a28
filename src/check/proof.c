/* SPDX-License-Identifier: Apache-2.0 */
#include "check/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/mem.h"
#include "check/proof.h"

int ku_proof_refuse(const struct ku_proof *c, ku_id buffer, const char *format, ...)
{
    const struct ku_program *p = c->p;
    char rule[256], what[128] = "";
    const char *tensor = "", *path = "", *op = "end of the step";
    va_list args;
    va_start(args, format);
    vsnprintf(rule, sizeof rule, format, args);
    va_end(args);
    if (buffer && buffer < p->n_buffers && p->buffer[buffer].name < p->n_names) {
        tensor = p->name_of[p->buffer[buffer].name];
        snprintf(what, sizeof what, " buffer b%u of %.96s:", buffer, tensor ? tensor : "?");
    }
    if (c->at < p->n_instrs) {
        const struct ku_instr *i = &p->instr[c->at];
        path = i->path && i->path < p->n_names && p->name_of[i->path] ? p->name_of[i->path] : "";
        op = i->kind == KU_WAIT    ? "wait"
             : i->kind == KU_START ? (i->op < KU_N_EXCHANGES ? ku_exchange_name(i->op) : "?")
             : i->op < KU_N_OPS    ? ku_ops[i->op].name
                                   : "?";
    }
    return KU_ERR(KUMI_EPLAN, "check: program %s, all ranks, instruction %u, %s %s:%s %s", p->name,
                  c->at, op, path, what, rule);
}

/* The state that buffers hold as the step begins. */
static int hold_state(struct ku_proof *c)
{
    const struct ku_program *p = c->p;
    for (uint32_t s = 0; s < p->n_states; s++) {
        const struct ku_program_state *x = &p->state[s];
        ku_id b = s + 1; /* lowering adds the buffers of the state first */
        if (b >= p->n_buffers || p->buffer[b].arena != x->arena ||
            p->buffer[b].offset != x->offset || p->buffer[b].bytes != x->bytes ||
            p->buffer[b].dtype != x->dtype)
            return ku_proof_refuse(c, b, "is not where the state plan has %s", p->name_of[x->name]);
        c->state_of[b] = c->state_by_name[x->name] = s + 1;
        const char *name = p->name_of[x->name];
        int blocks = x->is_kept && x->blocks ? ku_layout_axes(&p->layout[x->blocks], KU_Z) &
                                                   ku_mesh_wide(&p->mesh, KU_DP_AXES)
                                             : 0;
        c->held[b] =
            (struct ku_held){.term = ku_term_of(KU_TERM_STATE, ku_hash64(name, strlen(name)), 0),
                             .shape = c->shape_hash[x->shape],
                             .tensor = x->of ? x->of : s + 1,
                             .dtype = x->dtype,
                             .owned = (uint8_t)blocks,
                             .first_block = x->first_block,
                             .flags = KU_HELD_DEFINED | KU_HELD_STATE};
        if (x->of == 0 && (x->kind == KU_T_COUNTER || x->kind == KU_T_OPTIMIZER))
            c->held[b].tensor = 0;
        for (ku_id t = 1; c->model && t < c->model->n_tensors && c->tensor_of[s] == 0; t++)
            if (strcmp(c->model->tensor[t].name, name) == 0)
                c->tensor_of[s] = t;
    }
    for (uint32_t i = 0; i < p->n_inputs; i++)
        c->held[p->input[i].buffer] = (struct ku_held){.term = 1,
                                                       .shape = c->shape_hash[p->input[i].shape],
                                                       .dtype = p->input[i].dtype,
                                                       .flags = KU_HELD_DEFINED};
    return KUMI_OK;
}

static int prepare(struct ku_proof *c)
{
    const struct ku_program *p = c->p;
    c->attr_hash = ku_calloc(p->n_attrs + 1, sizeof *c->attr_hash);
    c->shape_hash = ku_calloc(p->n_shapes + 1, sizeof *c->shape_hash);
    c->tensor_of = ku_calloc(p->n_states + 1, sizeof *c->tensor_of);
    c->held = ku_calloc(p->n_buffers + 1, sizeof *c->held);
    c->state_of = ku_calloc(p->n_buffers + 1, sizeof *c->state_of);
    c->pieces = ku_calloc(p->n_buffers + 1, sizeof *c->pieces);
    c->state_by_name = ku_calloc(p->n_names + 1, sizeof *c->state_by_name);
    c->totalled = ku_calloc(p->n_states + 1, sizeof *c->totalled);
    c->summed = ku_calloc(p->n_states + 1, sizeof *c->summed);
    c->begun = ku_calloc(p->n_buffers + 1, sizeof *c->begun);
    c->written = ku_calloc(p->n_states + 1, sizeof *c->written);
    c->start = ku_calloc(p->n_handles + 1, sizeof *c->start);
    c->first = ku_calloc(p->n_buffers + 1, sizeof *c->first);
    c->last = ku_calloc(p->n_buffers + 1, sizeof *c->last);
    if (!c->attr_hash || !c->shape_hash || !c->tensor_of || !c->held || !c->state_of ||
        !c->pieces || !c->totalled || !c->summed || !c->state_by_name || !c->begun || !c->written ||
        !c->start || !c->first || !c->last)
        return KUMI_ENOMEM;
    for (uint32_t i = 1; i < p->n_attrs; i++)
        c->attr_hash[i] = ku_attrs_hash(&p->attr[i]);
    for (uint32_t i = 1; i < p->n_shapes; i++)
        c->shape_hash[i] = ku_shape_hash(&p->shape[i]);
    return hold_state(c);
}

int ku_check_program(const struct ku_graph *model, const struct ku_check_opts *o,
                     const struct ku_program *p, struct ku_check_report *report)
{
    struct ku_proof c = {.model = model, .o = o, .p = p};
    int64_t began = ku_clock_ns();
    c.wide = ku_mesh_wide(&p->mesh, KU_DP_AXES);
    c.report_of.n_instrs = p->n_instrs;
    int status = prepare(&c);
    if (status == KUMI_OK && model)
        status = ku_model_derive(&c);
    if (status == KUMI_OK)
        status = ku_proof_live_ranges(&c);
    if (status == KUMI_OK)
        status = ku_proof_execute(&c);
    c.report_of.ns = ku_clock_ns() - began;
    if (status == KUMI_OK)
        *report = c.report_of;
    ku_graph_destroy(c.spec);
    ku_free(c.terms.slot);
    ku_free(c.gradient);
    ku_free(c.output);
    ku_free(c.attr_hash);
    ku_free(c.shape_hash);
    ku_free(c.tensor_of);
    ku_free(c.held);
    ku_free(c.state_of);
    ku_free(c.pieces);
    ku_free(c.begun);
    ku_free(c.totalled);
    ku_free(c.summed);
    ku_free(c.state_by_name);
    ku_free(c.written);
    ku_free(c.start);
    ku_free(c.first);
    ku_free(c.last);
    return status;
}
