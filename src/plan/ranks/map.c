/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/ranks/map.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "ir/state.h"
#include "pass/pipe/block_schedule.h"
#include "pass/unit.h"
#include "sim/volume.h"
#include "tensor/blocks.h"
#include "train/configure.h"

void ku_rank_map_fini(struct ku_rank_map *m)
{
    ku_free(m->item);
    ku_free(m->exchange);
    ku_layers_fini(&m->layers);
    ku_graph_destroy(m->g);
    memset(m, 0, sizeof *m);
}

/*
 * How many coordinates of each axis are columns: at first two of each, the first and the last; then
 * as many as there is room for, innermost axis first.
 */
static void choose_shown(const struct ku_mesh *mesh, int shown[KU_AX_FIRST_TIME])
{
    int n = 1;
    for (int a = 0; a < KU_AX_FIRST_TIME; a++)
        n *= shown[a] = mesh->extent[a] > 1 ? 2 : 1;
    for (int a = KU_AX_FIRST_TIME - 1; n > KU_MAX_COLUMNS; a--)
        if (shown[a] > 1)
            n /= 2, shown[a] = 1;
    for (int a = KU_AX_FIRST_TIME - 1; a >= 0; a--) {
        const int room = KU_MAX_COLUMNS / (n / shown[a]), extent = mesh->extent[a];
        n /= shown[a];
        shown[a] = shown[a] == 1 ? 1 : extent < room ? extent : room;
        n *= shown[a];
    }
}

static void make_columns(struct ku_rank_map *m)
{
    int shown[KU_AX_FIRST_TIME], n = 1;
    choose_shown(&m->mesh, shown);
    for (int a = 0; a < KU_AX_FIRST_TIME; a++)
        n *= shown[a];
    m->n_columns = n;
    for (int i = 0; i < n; i++) {
        struct ku_rank_column *c = &m->column[i];
        int rest = i;
        *c = (struct ku_rank_column){0};
        for (int a = KU_AX_FIRST_TIME - 1; a >= 0; a--) {
            const int k = rest % shown[a];
            rest /= shown[a];
            c->at.at[a] = k > 0 && k == shown[a] - 1 ? m->mesh.extent[a] - 1 : k;
        }
        c->rank = ku_mesh_rank(&m->mesh, &c->at);
        c->is_after_gap = i > 0 && c->rank != m->column[i - 1].rank + 1;
    }
}

int ku_rank_n_stages(const struct ku_rank_map *m)
{
    const struct ku_pp_schedule *s = m->plan->s.schedule;
    return s ? s->n_stages : 1;
}

int ku_rank_stage_pp(const struct ku_rank_map *m, int stage)
{
    const struct ku_pp_schedule *s = m->plan->s.schedule;
    return s ? s->rank_of[stage] : 0;
}

void ku_rank_stage_layers(const struct ku_rank_map *m, int stage, int *first, int *n)
{
    *first = 0;
    *n = m->layers.n;
    if (m->plan->s.schedule == NULL)
        return;
    for (int k = 0; k < stage; k++)
        *first += m->plan->s.stage_layers[k];
    *n = m->plan->s.stage_layers[stage];
}

/* What nodes say of the tensors that they read: filled by note_reads. [n_tensors] each. */
struct reads {
    bool *is_gathered;
    uint64_t *coordinates; /* of axis pp, that read the parameter or its copy */
};

static ku_id parameter_of(const struct ku_graph *g, ku_id t)
{
    return g->tensor[t].of ? g->tensor[t].of : t;
}

static void note_reads(const struct ku_rank_map *m, const struct reads *r)
{
    const struct ku_graph *g = m->g;
    for (ku_id n = 1; n < g->n_nodes; n++) {
        const struct ku_node *node = &g->node[n];
        if (node->op == KU_OP_NONE || node->phase == KU_PH_O)
            continue;
        const bool is_gather = node->op == KU_OP_convert &&
                               !ku_layout_has(&g->layout[g->value[ku_out(g, n, 0)].layout], KU_Z);
        for (int i = 0; i < node->n_in; i++) {
            const struct ku_value *v = &g->value[ku_in(g, node, i)];
            if (v->role != KU_STATE)
                continue;
            r->is_gathered[v->tensor] |= is_gather;
            if (node->phase == KU_PH_F || is_gather)
                r->coordinates[parameter_of(g, v->tensor)] |= UINT64_C(1)
                                                              << ku_rank_stage_pp(m, node->stage);
        }
    }
}

static bool is_of_shape(const struct ku_graph *g, ku_id value, int64_t count)
{
    const struct ku_value *v = &g->value[value];
    return v->role == KU_TEMP && ku_dtype_is_float((enum kumi_dtype)v->dtype) &&
           ku_shape_count(&g->shape[v->shape]) == count;
}

/* The gradient that the update of a parameter reads: from the new value upwards, the last operand
 * of its shape, up to the first reduction. 0: it is not trained. */
static ku_id gradient_of(const struct ku_graph *g, ku_id tensor)
{
    const int64_t count = ku_shape_count(&g->shape[g->tensor[tensor].shape]);
    const ku_id written = ku_state_written(g, tensor);
    for (ku_id v = written, next; g->value[v].role == KU_TEMP || v == written; v = next) {
        const struct ku_node *n = &g->node[g->value[v].def];
        if (g->value[v].def == 0)
            return 0;
        if (v != written && (n->op == KU_OP_convert || n->phase != KU_PH_O))
            return v;
        next = 0;
        for (int i = 0; i < n->n_in; i++)
            next = is_of_shape(g, ku_in(g, n, i), count) ? ku_in(g, n, i) : next;
        if (next == 0)
            return 0;
    }
    return 0;
}

static void place_item(const struct ku_rank_map *m, struct ku_rank_item *x)
{
    const int stage = ku_stage_of_tensor(m->g, x->tensor);
    x->stage = (int16_t)stage;
    x->pp = stage < 0 ? -1 : (int16_t)ku_rank_stage_pp(m, stage);
    x->count = ku_shape_count(&m->g->shape[x->shape]);
    x->first_block = m->g->tensor[x->tensor].first_block;
    x->order = x->blocks && x->count < (int64_t)ku_state_n_owners(&m->mesh) * KU_BLOCK_COUNT
                   ? 1 + x->first_block
                   : 0;
    x->readers = x->pp < 0 ? 0 : x->readers & ~(UINT64_C(1) << x->pp);
}

static void add_gradient(struct ku_rank_map *m, const struct ku_rank_item *parameter,
                         uint64_t readers, const unsigned char *kept)
{
    const struct ku_graph *g = m->g;
    const ku_id v = gradient_of(g, parameter->tensor);
    if (v == 0)
        return;
    const ku_id layout = g->value[v].layout;
    struct ku_rank_item x = {.kind = KU_SK_GRADS,
                             .part = parameter->part,
                             .dtype = g->value[v].dtype,
                             .is_kept = kept[v] && ku_layout_has(&g->layout[layout], KU_Z),
                             .tensor = parameter->tensor,
                             .shape = g->value[v].shape,
                             .split = layout,
                             .readers = readers};
    x.is_gathered = x.is_kept;
    x.blocks = x.is_kept ? layout : 0;
    place_item(m, &x);
    m->item[m->n_items++] = x;
}

static const uint8_t kind_of[] = {[KU_T_PARAM] = KU_SK_PARAMS,
                                  [KU_T_OPTIMIZER] = KU_SK_OPTIMIZER,
                                  [KU_T_DERIVED] = KU_SK_PARAMS,
                                  [KU_T_BUFFER] = KU_SK_PARAMS};

/* part: [n_parts] of the graph before it was compiled; kept: per value, whether its buffer has
 * owned chunks alone. */
static void add_items(struct ku_rank_map *m, const uint8_t *part, ku_id n_parts,
                      const struct reads *r, const unsigned char *kept)
{
    const struct ku_graph *g = m->g;
    for (ku_id t = 1; t < g->n_tensors; t++) {
        const struct ku_tensor *x = &g->tensor[t];
        const ku_id of = parameter_of(g, t);
        if (x->kind == KU_T_COUNTER || x->kind == KU_T_CACHE)
            continue;
        const struct ku_state_store s = ku_state_store_of(g, t);
        const bool is_master = x->kind == KU_T_PARAM && x->copy;
        struct ku_rank_item item = {.kind = is_master ? KU_SK_MASTER : kind_of[x->kind],
                                    .part = of < n_parts ? part[of] : KU_MP_OTHER,
                                    .dtype = x->dtype,
                                    .is_kept = s.is_kept,
                                    .is_gathered = r->is_gathered[t],
                                    .is_common = s.arena == KU_AR_HOST,
                                    .tensor = t,
                                    .shape = x->shape,
                                    .split = s.split,
                                    .blocks = s.is_kept ? s.blocks : 0};
        item.readers = item.kind == KU_SK_PARAMS ? r->coordinates[of] : 0;
        place_item(m, &item);
        m->item[m->n_items++] = item;
        if (x->kind == KU_T_PARAM)
            add_gradient(m, &item, r->coordinates[of], kept);
    }
}

static int by_place(const void *a, const void *b)
{
    const struct ku_rank_item *x = a, *y = b;
    const int64_t row[][2] = {{x->kind, y->kind},           {x->part, y->part},
                              {x->stage, y->stage},         {x->order, y->order},
                              {x->split, y->split},         {x->blocks, y->blocks},
                              {x->is_common, y->is_common}, {x->tensor, y->tensor}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        if (row[i][0] != row[i][1])
            return row[i][0] < row[i][1] ? -1 : 1;
    return 0;
}

static int make_items(struct ku_rank_map *m, const uint8_t *part, ku_id n_parts,
                      const unsigned char *kept)
{
    struct reads r = {ku_calloc(m->g->n_tensors, sizeof *r.is_gathered),
                      ku_calloc(m->g->n_tensors, sizeof *r.coordinates)};
    m->item = ku_calloc(2 * (size_t)m->g->n_tensors, sizeof *m->item);
    const int status = m->item && r.is_gathered && r.coordinates ? KUMI_OK : KUMI_ENOMEM;
    if (status == KUMI_OK) {
        note_reads(m, &r);
        add_items(m, part, n_parts, &r, kept);
        qsort(m->item, m->n_items, sizeof *m->item, by_place);
    }
    ku_free(r.is_gathered);
    ku_free(r.coordinates);
    return status;
}

/* The value of the most elements that a layer computes and another layer reads. */
static void find_activation(struct ku_rank_map *m)
{
    const struct ku_graph *g = m->g;
    int64_t most = 0;
    for (ku_id n = 1; n < g->n_nodes; n++) {
        const struct ku_node *node = &g->node[n];
        const char *path = g->name[node->path];
        const size_t bytes = ku_unit_bytes(path);
        for (int i = 0; node->phase == KU_PH_F && bytes && i < node->n_in; i++) {
            const ku_id v = ku_in(g, node, i);
            const struct ku_node *def = &g->node[g->value[v].def];
            const struct ku_shape *shape = &g->shape[g->value[v].shape];
            if (g->value[v].def == 0 || def->phase != KU_PH_F || def->op == KU_OP_convert ||
                ku_unit_bytes(g->name[def->path]) == 0 || ku_shape_find(shape, 'n') < 0 ||
                !is_of_shape(g, v, ku_shape_count(shape)))
                continue;
            const size_t other = ku_unit_bytes(g->name[def->path]);
            const bool is_same = other == bytes && memcmp(path, g->name[def->path], bytes) == 0;
            if (!is_same && ku_shape_count(shape) > most)
                most = ku_shape_count(shape), m->activation = v;
        }
    }
}

/* The classes of an instruction's parts. */
static unsigned classes_of(const struct ku_program *p, const struct ku_instr *i)
{
    unsigned classes = 0;
    for (uint32_t k = 0; k < i->n_parts; k++)
        classes |= 1u << p->buffer[p->operand[i->operand + i->n_in + k].buffer].cls;
    return classes;
}

static struct ku_rank_exchange *exchange_at(struct ku_rank_map *m, const struct ku_volume *row)
{
    for (uint32_t i = 0; i < m->n_exchanges; i++)
        if (m->exchange[i].exchange == row->exchange && m->exchange[i].axes == row->axes &&
            m->exchange[i].group == row->group)
            return &m->exchange[i];
    struct ku_rank_exchange *grown =
        ku_realloc(m->exchange, m->n_exchanges + 1, sizeof *m->exchange);
    if (grown == NULL)
        return NULL;
    m->exchange = grown;
    m->exchange[m->n_exchanges] = (struct ku_rank_exchange){
        .exchange = row->exchange, .axes = row->axes, .group = row->group, .n_ranks = row->n_ranks};
    return &m->exchange[m->n_exchanges++];
}

/* What a coordinate's program sends, and which values are in buffers of owned chunks. */
static int note_program(struct ku_rank_map *m, const struct ku_program *p, unsigned char *kept)
{
    struct ku_volume row[KU_MAX_VOLUMES];
    const int n = ku_plan_volumes(p, row);
    for (ku_id b = 1; b < p->n_buffers; b++)
        if (p->buffer[b].is_kept)
            kept[p->buffer[b].value] = 1;
    for (int k = 0; k < n; k++) {
        struct ku_rank_exchange *x = exchange_at(m, &row[k]);
        uint32_t n_a_step = 0;
        if (x == NULL)
            return KUMI_ENOMEM;
        for (uint32_t at = 0; at < p->n_instrs; at++)
            if (ku_plan_counts(p, &row[k], &p->instr[at])) {
                x->classes |= classes_of(p, &p->instr[at]);
                n_a_step++;
            }
        x->n_a_step = n_a_step > x->n_a_step ? n_a_step : x->n_a_step;
        x->ring_bytes = fmax(x->ring_bytes, row[k].ring_bytes);
        x->stored_bytes = fmax(x->stored_bytes, row[k].stored_bytes);
    }
    m->message_bytes = fmax(m->message_bytes, ku_plan_message_bytes(p));
    return KUMI_OK;
}

static int by_axes(const void *a, const void *b)
{
    const struct ku_rank_exchange *x = a, *y = b;
    return x->axes != y->axes           ? (x->axes > y->axes) - (x->axes < y->axes)
           : x->exchange != y->exchange ? (x->exchange > y->exchange) - (x->exchange < y->exchange)
                                        : (x->group > y->group) - (x->group < y->group);
}

/* Compiles the programs one after the other: one of each coordinate of axis pp. */
static int note_programs(struct ku_rank_map *m, struct ku_compile_opts *o,
                         const struct ku_target *target, unsigned char *kept)
{
    for (o->pp = 0; o->pp < m->mesh.extent[KU_AX_PP]; o->pp++) {
        struct ku_program *p = NULL;
        KU_TRY(ku_compile_program(m->g, "train", o, target, &p));
        const int status = note_program(m, p, kept);
        ku_program_destroy(p);
        KU_TRY(status);
    }
    if (m->n_exchanges)
        qsort(m->exchange, m->n_exchanges, sizeof *m->exchange, by_axes);
    return KUMI_OK;
}

static int compile(struct ku_rank_map *m)
{
    struct ku_session *s = &m->plan->s;
    const struct ku_target target = ku_session_target(s);
    struct ku_compile_opts o;
    unsigned char *kept = NULL;
    uint8_t *part = NULL;
    int status = KUMI_OK;
    KU_TRY(ku_session_compile_opts(s, &o));
    KU_TRY(ku_session_plan_pipeline(s, &o));
    KU_TRY(ku_session_solve_recompute(s, &target, &o));
    KU_TRY(ku_session_graph(s, s->source->ops->largest_shape(s->source), &m->g));
    s->n_params = ku_graph_n_params(m->g);
    const ku_id n_parts = m->g->n_tensors;
    m->mesh = o.mesh;
    part = ku_calloc(n_parts, 1);
    if (part == NULL)
        return KUMI_ENOMEM;
    KU_TRY_OUT(ku_model_parts(m->g, part, &m->has_attention));
    KU_TRY_OUT(ku_layers_find(m->g, &m->layers));
    KU_TRY_OUT(ku_compile_graph(m->g, &o, &target, NULL));
    kept = ku_calloc(m->g->n_values, 1);
    status = kept ? note_programs(m, &o, &target, kept) : KUMI_ENOMEM;
    if (status == KUMI_OK)
        status = make_items(m, part, n_parts, kept);
    find_activation(m);
    make_columns(m);
out:
    ku_free(kept);
    ku_free(part);
    return status;
}

int ku_rank_map_init(struct ku_rank_map *m, struct ku_plan *plan)
{
    *m = (struct ku_rank_map){.plan = plan};
    const int status = compile(m);
    if (status < 0)
        ku_rank_map_fini(m);
    return status;
}

/* Narrows [0, 1) to a slice: the cut dims nest, outermost first. */
static void narrow(const struct ku_rank_map *m, const struct ku_shape *shape, ku_id layout,
                   const struct ku_coord *at, double slice[2])
{
    struct ku_slice s;
    ku_slice_of(&m->mesh, shape, &m->g->layout[layout], at, &s);
    for (int d = 0; d < shape->ndim; d++) {
        const double width = slice[1] - slice[0], whole = (double)shape->dim[d].count;
        if (s.count[d] == shape->dim[d].count)
            continue;
        slice[0] += width * (double)s.start[d] / whole;
        slice[1] = slice[0] + width * (double)s.count[d] / whole;
    }
}

bool ku_rank_extent_of(const struct ku_rank_map *m, const struct ku_rank_item *x, int column,
                       struct ku_rank_extent *out)
{
    const struct ku_coord *at = &m->column[column].at;
    const struct ku_shape *shape = &m->g->shape[x->shape];
    const int pp = at->at[KU_AX_PP];
    const bool is_here = x->pp < 0 || x->pp == pp;
    *out = (struct ku_rank_extent){.slice = {0, 1}};
    if (!is_here && !(x->readers >> pp & 1))
        return false;
    const ku_id cut = x->split ? x->split : x->blocks;
    narrow(m, shape, cut, at, out->slice);
    out->own[0] = out->slice[0];
    out->own[1] = is_here ? out->slice[1] : out->slice[0];
    const int64_t count = ku_program_slice_count(&m->mesh, shape, &m->g->layout[cut]);
    out->count = is_here ? count : 0;
    if (is_here && x->is_kept) {
        int64_t begin, end;
        const double width = (out->slice[1] - out->slice[0]) / (double)count;
        ku_program_local_range(&m->mesh, &m->g->layout[x->blocks], count, x->first_block, at,
                               &begin, &end);
        out->own[1] = out->slice[0] + width * (double)end;
        out->own[0] = out->slice[0] + width * (double)begin;
        out->count = end - begin;
        if (!x->is_gathered)
            out->slice[0] = out->own[0], out->slice[1] = out->own[1];
    }
    return out->slice[1] > out->slice[0];
}

void ku_rank_samples(const struct ku_rank_map *m, int column, int64_t *begin, int64_t *end,
                     int64_t *n)
{
    const struct ku_graph *g = m->g;
    *begin = *end = *n = 0;
    for (uint32_t i = 0; i < g->n_inputs; i++) {
        const struct ku_value *v = &g->value[g->input[i].value];
        const int d = ku_shape_find(&g->shape[v->shape], 'n');
        struct ku_coord at = m->column[column].at;
        struct ku_slice s;
        if (d < 0)
            continue;
        ku_slice_of(&m->mesh, &g->shape[v->shape], &g->layout[v->layout], &at, &s);
        *begin = s.start[d];
        at.at[KU_AX_VS] = m->mesh.extent[KU_AX_VS] - 1;
        at.at[KU_AX_MB] = m->mesh.extent[KU_AX_MB] - 1;
        ku_slice_of(&m->mesh, &g->shape[v->shape], &g->layout[v->layout], &at, &s);
        *end = s.start[d] + s.count[d];
        *n = g->shape[v->shape].dim[d].count;
        return;
    }
}

void ku_rank_tokens(const struct ku_rank_map *m, int column, int64_t *begin, int64_t *end,
                    int64_t *n)
{
    const struct ku_value *v = &m->g->value[m->activation];
    const struct ku_shape *shape = &m->g->shape[v->shape];
    const int d = m->activation ? ku_shape_find(shape, 't') : -1;
    struct ku_slice s;
    *begin = *end = *n = 0;
    if (d < 0)
        return;
    ku_slice_of(&m->mesh, shape, &m->g->layout[v->layout], &m->column[column].at, &s);
    *begin = s.start[d], *end = s.start[d] + s.count[d], *n = shape->dim[d].count;
}
