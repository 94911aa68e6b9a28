/* SPDX-License-Identifier: Apache-2.0 */
#include "check/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
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
    char ranks[48] = "all ranks";
    if (p->mesh.extent[KU_AX_PP] > 1)
        snprintf(ranks, sizeof ranks, "ranks of pp %d", p->pp);
    return KU_ERR(KUMI_EPLAN, "check: program %s, %s, instruction %u, %s %s:%s %s", p->name, ranks,
                  c->at, op, path, what, rule);
}

/* Whether tensor-parallel ranks divide a state tensor alike, and those of others own its chunks. */
static bool same_shares(const struct ku_program *p, const struct ku_program_state *x,
                        const struct ku_program *q, const struct ku_program_state *y)
{
    for (int axis = KU_AX_TP; axis <= KU_AX_TPI; axis++) {
        const struct ku_place a = p->layout[x->split].at[axis], b = q->layout[y->split].at[axis];
        const bool is_split = x->split && a.kind == KU_S;
        if (is_split != (y->split && b.kind == KU_S) || (is_split && a.dim != b.dim))
            return false;
    }
    if (x->is_kept != y->is_kept)
        return false;
    return !x->is_kept ||
           (x->first_block == y->first_block && ku_layout_axes(&p->layout[x->blocks], KU_Z) ==
                                                    ku_layout_axes(&q->layout[y->blocks], KU_Z));
}

static int by_term(const void *a, const void *b)
{
    const struct ku_named_state *x = a, *y = b;
    return (x->term > y->term) - (x->term < y->term);
}

uint32_t ku_proof_state(const struct ku_proof *c, uint64_t term)
{
    const struct ku_named_state key = {.term = term};
    const struct ku_named_state *x =
        c->p->n_states ? bsearch(&key, c->named, c->p->n_states, sizeof key, by_term) : NULL;
    return x ? x->state + 1 : 0;
}

static int prepare(struct ku_proof *c)
{
    const struct ku_program *p = c->p;
    c->attr_hash = ku_calloc(p->n_attrs + 1, sizeof *c->attr_hash);
    c->shape_hash = ku_calloc(p->n_shapes + 1, sizeof *c->shape_hash);
    c->blocks = ku_calloc(p->n_layouts + 1, sizeof *c->blocks);
    c->next = ku_calloc(p->n_states + 1, sizeof *c->next);
    c->named = ku_calloc(p->n_states + 1, sizeof *c->named);
    c->held = ku_calloc(p->n_buffers + 1, sizeof *c->held);
    c->state_of = ku_calloc(p->n_buffers + 1, sizeof *c->state_of);
    c->pieces = ku_calloc(p->n_buffers + 1, sizeof *c->pieces);
    c->state_by_name = ku_calloc(p->n_names + 1, sizeof *c->state_by_name);
    c->begun = ku_calloc(p->n_buffers + 1, sizeof *c->begun);
    c->written = ku_calloc(p->n_states + 1, sizeof *c->written);
    c->start = ku_calloc(p->n_handles + 1, sizeof *c->start);
    c->first = ku_calloc(p->n_buffers + 1, sizeof *c->first);
    c->last = ku_calloc(p->n_buffers + 1, sizeof *c->last);
    c->message = ku_calloc(p->n_handles + 1, sizeof *c->message);
    c->barrier = ku_calloc(p->n_handles + 1, sizeof *c->barrier);
    c->in_flight = ku_calloc(p->n_buffers + 1, sizeof *c->in_flight);
    if (!c->blocks || !c->in_flight || !c->message || !c->barrier || !c->attr_hash ||
        !c->shape_hash || !c->next || !c->named || !c->held || !c->state_of || !c->pieces ||
        !c->state_by_name || !c->begun || !c->written || !c->start || !c->first || !c->last)
        return KUMI_ENOMEM;
    for (uint32_t i = 1; i < p->n_attrs; i++)
        c->attr_hash[i] = ku_attrs_hash(&p->attr[i]);
    for (uint32_t i = 1; i < p->n_shapes; i++)
        c->shape_hash[i] = ku_shape_hash(&p->shape[i]);
    for (uint32_t i = 0; i < p->n_layouts; i++)
        c->blocks[i] = (uint8_t)(ku_layout_axes(&p->layout[i], KU_Z) &
                                 ku_mesh_wide(&p->mesh, KU_DP_AXES | KU_TP_AXES));
    for (uint32_t s = 0; s < p->n_states; s++)
        c->named[s] = (struct ku_named_state){ku_term_state(p->name_of[p->state[s].name], NULL), s};
    if (p->n_states)
        qsort(c->named, p->n_states, sizeof *c->named, by_term);
    KU_TRY(ku_rows_open(c));
    return ku_proof_hold(c);
}

static void close_proof(struct ku_proof *c)
{
    if (!c->is_borrower) {
        ku_graph_destroy(c->spec);
        ku_free(c->terms.slot);
        ku_free(c->gradient);
        ku_free(c->output);
        ku_free(c->output_row);
    }
    ku_rows_close(c);
    ku_free(c->streams.slot);
    ku_free(c->cut);
    ku_free(c->attr_hash);
    ku_free(c->shape_hash);
    ku_free(c->blocks);
    ku_free(c->flight);
    ku_free(c->in_flight);
    ku_free(c->next);
    ku_free(c->named);
    ku_free(c->is_gathered);
    ku_free(c->held);
    ku_free(c->state_of);
    ku_free(c->pieces);
    ku_free(c->begun);
    ku_free(c->state_by_name);
    ku_free(c->written);
    ku_free(c->start);
    ku_free(c->first);
    ku_free(c->last);
    ku_free(c->message);
    ku_free(c->barrier);
}

int ku_check_same_state(const struct ku_program *p, const struct ku_program *q)
{
    const size_t rank_axes = KU_AX_FIRST_TIME * sizeof *p->mesh.extent;
    bool same =
        memcmp(p->mesh.extent, q->mesh.extent, rank_axes) == 0 && p->n_states >= q->n_states;
    for (uint32_t s = 0; s < q->n_states && same; s++) {
        const struct ku_program_state *x = &p->state[s], *y = &q->state[s];
        same = strcmp(p->name_of[x->name], q->name_of[y->name]) == 0 && x->arena == y->arena &&
               x->offset == y->offset && x->bytes == y->bytes && x->pp == y->pp &&
               x->dtype == y->dtype && same_shares(p, x, q, y) &&
               ku_shape_hash(&p->shape[x->shape]) == ku_shape_hash(&q->shape[y->shape]);
        if (!same)
            return KU_ERR(KUMI_EPLAN,
                          "check: program %s of coordinate %d of axis pp places %s otherwise than "
                          "program %s of coordinate %d",
                          q->name, q->pp, p->name_of[x->name], p->name, p->pp);
    }
    return same ? KUMI_OK
                : KU_ERR(
                      KUMI_EPLAN,
                      "check: program %s has other rank axes or more state tensors than program %s",
                      q->name, p->name);
}

/* What the model defines does not depend on the coordinate: it is derived once. */
static void borrow(const struct ku_proof *from, struct ku_proof *c)
{
    c->is_borrower = true;
    c->spec = from->spec;
    c->terms = from->terms;
    c->gradient = from->gradient;
    c->output = from->output;
    c->output_row = from->output_row;
    c->stats = from->stats;
    c->report = from->report;
    c->shift = from->shift;
    c->report_of.n_gradients = from->report_of.n_gradients;
    memcpy(c->next, from->next, c->p->n_states * sizeof *c->next);
}

/* Everything up to the first instruction. first: the proof of coordinate 0. */
static int open_proof(struct ku_proof *c, const struct ku_proof *first)
{
    c->wide = ku_mesh_wide(&c->p->mesh, KU_DP_AXES);
    c->mesh = ku_cut_is(c, KU_CHECK_SERVER) ? c->o->mesh : c->p->mesh;
    KU_TRY(ku_cut_open(c));
    c->report_of.n_instrs = c->p->n_instrs;
    KU_TRY(prepare(c));
    c->at = c->p->n_instrs;
    KU_TRY(ku_check_same_state(first->p, c->p));
    if (memcmp(&first->p->mesh, &c->p->mesh, sizeof c->p->mesh) != 0 ||
        first->p->n_states != c->p->n_states)
        return ku_proof_refuse(c, 0, "has another mesh or state plan than coordinate 0 of axis pp");
    if (c->o->kind >= KU_CHECK_INIT)
        KU_TRY(ku_initial_derive(c));
    else if (c == first)
        KU_TRY(ku_model_derive(c));
    else
        borrow(first, c);
    KU_TRY(ku_proof_live_ranges(c));
    c->at = 0;
    return KUMI_OK;
}

static void add_report(const struct ku_proof *c, struct ku_check_report *sum)
{
    sum->n_instrs += c->report_of.n_instrs;
    sum->n_collectives += c->report_of.n_collectives;
    sum->n_edges += c->report_of.n_edges;
    sum->n_buffers += c->report_of.n_buffers;
    sum->n_gradients = c->report_of.n_gradients;
    sum->n_terms = c->terms.n;
}

int ku_check_programs(const struct ku_graph *model, const struct ku_check_opts *o,
                      const struct ku_program *const *p, int n, struct ku_check_report *report)
{
    struct ku_proof *c = ku_calloc((size_t)n, sizeof *c);
    struct ku_check_report sum = {0};
    const int64_t began = ku_clock_ns();
    int status = c ? KUMI_OK : KUMI_ENOMEM;
    for (int i = 0; i < n && status == KUMI_OK; i++) {
        c[i].model = model, c[i].o = o, c[i].p = p[i];
        status =
            p[i]->mesh.extent[KU_AX_PP] == n && p[i]->pp == i
                ? open_proof(&c[i], &c[0])
                : ku_proof_refuse(&c[i], 0, "is of coordinate %d of %d of axis pp, not %d of %d",
                                  p[i]->pp, p[i]->mesh.extent[KU_AX_PP], i, n);
    }
    if (status == KUMI_OK)
        status = ku_proof_execute_all(c, n);
    for (int i = 0; i < n && c; i++) {
        add_report(&c[i], &sum);
        close_proof(&c[i]);
    }
    sum.ns = ku_clock_ns() - began;
    if (status == KUMI_OK)
        *report = sum;
    ku_free(c);
    return status;
}

int ku_check_program(const struct ku_graph *model, const struct ku_check_opts *o,
                     const struct ku_program *p, struct ku_check_report *report)
{
    return ku_check_programs(model, o, &p, 1, report);
}
