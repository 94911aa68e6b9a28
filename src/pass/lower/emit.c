/* SPDX-License-Identifier: Apache-2.0 */
/* Adds buffers, operands and instructions to the program and updates live ranges. */
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "pass/lower/lower.h"

/* Max bytes of a rank's part. Uneven splits give the first coordinates more, so it is the part of
 * coordinate 0. */
static size_t local_bytes(const struct ku_lower *l, ku_id value)
{
    const struct ku_value *v = &l->g->value[value];
    struct ku_shape local;
    struct ku_coord first = {0};
    ku_local_shape(&l->g->mesh, &l->g->shape[v->shape], &l->g->layout[v->layout], &first, &local);
    return (size_t)ku_shape_count(&local) * kumi_dtype_bytes((enum kumi_dtype)v->dtype);
}

ku_id ku_program_add_buffer(struct ku_program *p, const struct ku_buffer *b)
{
    KU_ASSERT(b->arena < KU_N_ARENAS && b->cls < KU_N_CLASSES);
    if (p->n_buffers == 0) { /* id 0 is none */
        if (KU_GROW(&p->buffer, p->n_buffers, &p->cap[KU_CAP_BUFFER]) < 0)
            return 0;
        p->n_buffers = 1;
    }
    if (KU_GROW(&p->buffer, p->n_buffers, &p->cap[KU_CAP_BUFFER]) < 0)
        return 0;
    p->buffer[p->n_buffers] = *b;
    return p->n_buffers++;
}

ku_id ku_lower_buffer(struct ku_lower *l, ku_id value, int arena, int cls)
{
    const struct ku_value *v = &l->g->value[value];
    return ku_program_add_buffer(l->p,
                                 &(struct ku_buffer){.arena = (uint8_t)arena,
                                                     .cls = (uint8_t)cls,
                                                     .dtype = v->dtype,
                                                     .value = value,
                                                     .micro = l->micro,
                                                     .name = v->def ? l->g->node[v->def].path : 1,
                                                     .first = UINT32_MAX,
                                                     .bytes = local_bytes(l, value)});
}

ku_id ku_lower_local_buffer(struct ku_lower *l, ku_id value, ku_id layout, int arena, int cls)
{
    const struct ku_value *v = &l->g->value[value];
    struct ku_operand o = ku_lower_operand(l, value, 0, layout);
    KU_ASSERT(ku_layout_has(&l->g->layout[layout], KU_Z));
    const int64_t count =
        ku_program_slice_count(&l->g->mesh, &l->g->shape[v->shape], &l->g->layout[layout]);
    const int64_t most =
        ku_program_local_max(&l->g->mesh, &l->g->layout[layout], count, o.first_block);
    ku_id b = ku_lower_buffer(l, value, arena, cls);
    if (b) {
        l->p->buffer[b].is_kept = 1;
        l->p->buffer[b].bytes = (size_t)most * kumi_dtype_bytes((enum kumi_dtype)v->dtype);
    }
    return b;
}

ku_id ku_lower_owner(const struct ku_lower *l, ku_id value)
{
    const struct ku_value *v = &l->g->value[value];
    return v->role == KU_STATE ? v->tensor : l->owner[value];
}

struct ku_operand ku_lower_operand(const struct ku_lower *l, ku_id value, ku_id buffer,
                                   ku_id layout)
{
    const struct ku_value *v = &l->g->value[value];
    ku_id tensor = ku_lower_owner(l, value);
    return (struct ku_operand){.buffer = buffer,
                               .shape = v->shape,
                               .layout = layout,
                               .dtype = v->dtype,
                               .first_block = tensor ? l->g->tensor[tensor].first_block : 0};
}

static void touch(struct ku_program *p, ku_id buffer, uint32_t instr)
{
    struct ku_buffer *b = &p->buffer[buffer];
    KU_ASSERT(buffer > 0 && buffer < p->n_buffers && instr <= p->n_instrs);
    if (instr < b->first)
        b->first = instr;
    if (instr > b->last)
        b->last = instr;
}

static void touch_operand(struct ku_program *p, const struct ku_operand *o, uint32_t instr)
{
    touch(p, o->buffer, instr);
    if (o->addend)
        touch(p, o->addend, instr);
    if (o->out)
        touch(p, o->out, instr);
}

static int add_operand(struct ku_program *p, const struct ku_operand *o, uint32_t instr)
{
    KU_TRY(KU_GROW(&p->operand, p->n_operands, &p->cap[KU_CAP_OPERAND]));
    p->operand[p->n_operands++] = *o;
    touch_operand(p, o, instr);
    return KUMI_OK;
}

static int add_instr(struct ku_program *p, const struct ku_instr *i)
{
    KU_TRY(KU_GROW(&p->instr, p->n_instrs, &p->cap[KU_CAP_INSTR]));
    p->instr[p->n_instrs++] = *i;
    return KUMI_OK;
}

int ku_lower_axes(const struct ku_lower *l, ku_id convert)
{
    const struct ku_graph *g = l->g;
    const struct ku_layout *from = &g->layout[g->value[ku_in(g, &g->node[convert], 0)].layout],
                           *to = &g->layout[g->value[ku_out(g, convert, 0)].layout];
    int axes = 0;
    for (int a = 0; a < KU_AX_FIRST_TIME; a++)
        if (g->mesh.extent[a] > 1 && from->at[a].kind != to->at[a].kind &&
            from->at[a].kind != KU_C && from->at[a].kind != KU_R) /* these hold equal data */
            axes |= 1 << a;
    return axes;
}

/* The group size of an all-gather of Z(g) shards; 0: all ranks of the axis. */
static uint16_t group_of(const struct ku_lower *l, int axes, const struct ku_operand *part)
{
    const struct ku_place *at = l->g->layout[part->layout].at;
    return axes == 1 << KU_AX_SHARD && at[KU_AX_SHARD].kind == KU_Z ? at[KU_AX_SHARD].dim : 0;
}

int ku_lower_start(struct ku_lower *l, int kind, int axes, int reduce,
                   const struct ku_operand *stats, const struct ku_operand *part, uint32_t n_parts,
                   ku_id path, uint32_t *handle)
{
    struct ku_program *p = l->p;
    KU_ASSERT(axes != 0 && axes >> KU_AX_FIRST_TIME == 0);
    KU_ASSERT((n_parts == 0) == (kind == KU_X_BARRIER));
    *handle = ++p->n_handles;
    struct ku_instr i = {.kind = KU_START,
                         .phase = l->phase,
                         .op = (uint16_t)kind,
                         .n_in = stats != NULL,
                         .micro = l->micro,
                         .operand = p->n_operands,
                         .n_parts = n_parts,
                         .attr = 1,
                         .path = path,
                         .axes = (uint8_t)axes,
                         .group = n_parts ? group_of(l, axes, &part[0]) : 0,
                         .reduce = (uint8_t)reduce,
                         .wire = n_parts ? part[0].dtype : 0,
                         .handle = *handle};
    if (stats)
        KU_TRY(add_operand(p, stats, p->n_instrs));
    for (uint32_t k = 0; k < n_parts; k++)
        KU_TRY(add_operand(p, &part[k], p->n_instrs));
    KU_TRY(KU_GROW(&l->start, *handle, &l->cap_start));
    l->start[*handle] = p->n_instrs;
    return add_instr(p, &i);
}

int ku_lower_wait(struct ku_lower *l, uint32_t handle)
{
    struct ku_program *p = l->p;
    KU_ASSERT(handle > 0 && handle <= p->n_handles);
    struct ku_instr wait = p->instr[l->start[handle]];
    KU_ASSERT(wait.kind == KU_START && wait.handle == handle);
    /* the collective uses its buffers until here */
    for (uint32_t k = 0; k < wait.n_in + wait.n_parts; k++)
        touch_operand(p, &p->operand[wait.operand + k], p->n_instrs);
    wait.kind = KU_WAIT;
    wait.micro = l->micro;
    wait.n_in = 0;
    wait.n_parts = 0;
    return add_instr(p, &wait);
}

/* The program's id of `a`, cached in *made. */
static ku_id attr_of(struct ku_program *p, const struct ku_attrs *a, ku_id *made)
{
    if (*made == 0)
        *made = ku_program_attr(p, a);
    return *made;
}

/* The value whose type the buffers of an accumulated value have. */
static ku_id accumulated_as(const struct ku_lower *l, ku_id value)
{
    const struct ku_accumulation *f = &l->accumulate[value];
    return f->is_concat ? ku_out(l->g, f->convert, 0) : value;
}

int ku_lower_accumulate(struct ku_lower *l, ku_id value, ku_id into, ku_id from, int is_tree)
{
    const struct ku_graph *g = l->g;
    struct ku_program *p = l->p;
    const struct ku_node *convert = &g->node[l->accumulate[value].convert];
    struct ku_attrs a = ku_attrs_default;
    KU_ASSERT(l->accumulate[value].convert && into && from && into != from);
    a.reduce = g->attr[convert->attr].reduce;
    a.wire = is_tree ? g->attr[convert->attr].wire : -1;
    struct ku_instr i = {.kind = KU_COMPUTE,
                         .phase = g->node[g->value[value].def].phase,
                         .op = KU_OP_accumulate,
                         .n_in = 2,
                         .n_out = 1,
                         .micro = l->micro,
                         .operand = p->n_operands,
                         .attr = attr_of(p, &a, &l->accumulate_attr[a.reduce][a.wire + 1]),
                         .path = convert->path,
                         .source = g->node[g->value[value].def].source};
    ku_id like = accumulated_as(l, value);
    struct ku_operand x = ku_lower_operand(l, like, into, g->value[value].layout), y = x;
    y.buffer = from;
    if (i.attr == 0)
        return KUMI_ENOMEM;
    KU_TRY(add_operand(p, &x, p->n_instrs));
    KU_TRY(add_operand(p, &y, p->n_instrs));
    KU_TRY(add_operand(p, &x, p->n_instrs));
    return add_instr(p, &i);
}

static int class_of(const struct ku_lower *l, const struct ku_node *n)
{
    (void)l;
    if (n->op == KU_OP_widen)
        return KU_CL_WORKSPACE;
    if (n->phase == KU_PH_F)
        return KU_CL_ACTIVATION;
    return n->phase == KU_PH_O || n->phase == KU_PH_A ? KU_CL_SCALAR : KU_CL_ADJOINT;
}

int ku_lower_part(struct ku_lower *l, ku_id n)
{
    const struct ku_graph *g = l->g;
    const ku_id from = ku_in(g, &g->node[n], 0), to = ku_out(g, n, 0);
    struct ku_instr i = {.kind = KU_COMPUTE,
                         .phase = g->node[n].phase,
                         .op = KU_OP_part,
                         .n_in = 1,
                         .n_out = 1,
                         .stage = g->node[n].stage,
                         .micro = l->micro,
                         .operand = l->p->n_operands,
                         .attr = 1, /* defaults */
                         .path = g->node[n].path,
                         .source = g->node[n].source};
    const struct ku_operand x = ku_lower_operand(l, from, l->buffer[from], g->value[from].layout);
    l->buffer[to] =
        ku_lower_buffer(l, to, l->wire[to] ? KU_AR_WIRE : KU_AR_STEP, class_of(l, &g->node[n]));
    if (l->buffer[to] == 0)
        return KUMI_ENOMEM;
    const struct ku_operand y = ku_lower_operand(l, to, l->buffer[to], g->value[to].layout);
    KU_TRY(add_operand(l->p, &x, l->p->n_instrs));
    KU_TRY(add_operand(l->p, &y, l->p->n_instrs));
    return add_instr(l->p, &i);
}

int ku_lower_slice(struct ku_lower *l, ku_id n)
{
    const struct ku_graph *g = l->g;
    ku_id from = ku_in(g, &g->node[n], 0), to = ku_out(g, n, 0);
    struct ku_attrs a = ku_attrs_default;
    a.dtype = g->value[to].dtype;
    struct ku_instr i = {.kind = KU_COMPUTE,
                         .phase = g->node[n].phase,
                         .op = KU_OP_cast,
                         .n_in = 1,
                         .n_out = 1,
                         .micro = l->micro,
                         .operand = l->p->n_operands,
                         .attr = attr_of(l->p, &a, &l->cast_attr[a.dtype + 1]),
                         .path = g->node[n].path};
    l->buffer[to] = ku_lower_local_buffer(l, to, g->value[to].layout, KU_AR_WIRE, KU_CL_GATHER);
    if (i.attr == 0 || l->buffer[to] == 0)
        return KUMI_ENOMEM;
    struct ku_operand x = ku_lower_operand(l, to, l->buffer[from], g->value[to].layout), y = x;
    y.buffer = l->buffer[to];
    KU_TRY(add_operand(l->p, &x, l->p->n_instrs));
    KU_TRY(add_operand(l->p, &y, l->p->n_instrs));
    return add_instr(l->p, &i);
}

/* The placement Z of an element-wise node with a partitioned operand, and its shape: the node
 * computes the local shard of all operands of that shape. 0: none. */
static ku_id block_layout(const struct ku_lower *l, const struct ku_node *n, ku_id id, ku_id *shape)
{
    const struct ku_graph *g = l->g;
    if (!(ku_ops[n->op].traits & KU_OP_ELEMENT))
        return 0;
    for (int i = 0; i < n->n_in + n->n_out; i++) {
        const struct ku_value *v =
            &g->value[i < n->n_in ? ku_in(g, n, i) : ku_out(g, id, i - n->n_in)];
        if (ku_layout_has(&g->layout[v->layout], KU_Z)) {
            *shape = v->shape;
            return v->layout;
        }
    }
    return 0;
}

/*
 * The buffer of a result. Gradients accumulate in the sum of their virtual shard; the rank's total
 * ends in the sum of the first shard, so that one is in memory that peers can address.
 */
static ku_id result_buffer(struct ku_lower *l, ku_id id, int i, int accumulates)
{
    const struct ku_graph *g = l->g;
    const struct ku_node *n = &g->node[id];
    ku_id v = ku_out(g, id, i);
    int pair = ku_op_pair(ku_ops[n->op].inout, i);
    if (pair >= 0)
        return l->buffer[ku_in(g, n, pair)];
    if (l->buffer[v] && l->p->buffer[l->buffer[v]].arena == KU_AR_INPUT) /* rows of an output */
        return l->buffer[v];
    if (l->state[v]) /* the compute copy that an optimizer writes beside the parameter */
        return l->state[v];
    struct ku_accumulation *f = &l->accumulate[v];
    int is_partitioned = ku_layout_has(&g->layout[g->value[v].layout], KU_Z);
    if (is_partitioned &&
        (ku_layout_axes(&g->layout[g->value[v].layout], KU_Z) >> KU_AX_SHARD & 1 ||
         n->op == KU_OP_widen || (n->n_in && l->p->buffer[l->buffer[ku_in(g, n, 0)]].is_kept)))
        return ku_lower_local_buffer(l, v, g->value[v].layout, KU_AR_STEP, class_of(l, n));
    if (f->convert == 0)
        return ku_lower_buffer(l, v, l->wire[v] ? KU_AR_WIRE : KU_AR_STEP, class_of(l, n));
    ku_id *sum = ku_lower_sum(l, v);
    if (l->mb > 0 && !f->by_micro)
        return f->is_concat || accumulates ? *sum
                                           : ku_lower_buffer(l, v, KU_AR_STEP, KU_CL_PARTIAL);
    int is_wire = l->vs == 0 && (l->dp > 1 || ku_lower_is_summed_over_tp(l, f->convert));
    *sum = ku_lower_buffer(l, accumulated_as(l, v), is_wire ? KU_AR_WIRE : KU_AR_STEP,
                           l->vs == 0 ? KU_CL_GRAD : KU_CL_PARTIAL);
    return *sum;
}

bool ku_lower_is_summed_over_tp(const struct ku_lower *l, ku_id convert)
{
    const ku_id from = ku_in(l->g, &l->g->node[convert], 0);
    const int parts = ku_layout_axes(&l->g->layout[l->g->value[from].layout], KU_P) & KU_TP_AXES;
    return ku_mesh_wide(&l->g->mesh, parts) != 0;
}

/* Whether a node accumulates in place: its op supports it, and all its results are accumulated over
 * mb first. */
static bool is_accumulating(const struct ku_lower *l, ku_id id)
{
    const struct ku_node *n = &l->g->node[id];
    if (!(ku_ops[n->op].traits & KU_OP_ACCUM) || l->micro < 0)
        return 0;
    for (int i = 0; i < n->n_out; i++)
        if (l->accumulate[ku_out(l->g, id, i)].convert == 0 ||
            l->accumulate[ku_out(l->g, id, i)].by_micro)
            return 0;
    return 1;
}

static int add_workspace(struct ku_lower *l, ku_id id, struct ku_instr *instr)
{
    const struct ku_graph *g = l->g;
    const struct ku_node *n = &g->node[id];
    if (l->target == NULL || l->target->query == NULL)
        return KUMI_OK;
    if (l->workspace[id] == 0) {
        struct ku_op_case c = {.op = n->op,
                               .n_in = n->n_in,
                               .n_out = n->n_out,
                               .accumulate = instr->accumulate,
                               .attr = &g->attr[n->attr]};
        struct ku_coord first = {0};
        struct ku_target_op answer = {0};
        for (int i = 0; i < n->n_in + n->n_out; i++) {
            const struct ku_value *v =
                &g->value[i < n->n_in ? ku_in(g, n, i) : ku_out(g, id, i - n->n_in)];
            struct ku_type *t = i < n->n_in ? &c.in[i] : &c.out[i - n->n_in];
            t->dtype = (enum kumi_dtype)v->dtype;
            ku_local_shape(&g->mesh, &g->shape[v->shape], &g->layout[v->layout], &first, &t->shape);
        }
        KU_TRY(l->target->query(l->target->ctx, &c, &answer));
        l->workspace[id] = answer.workspace_bytes + 1;
    }
    if (l->workspace[id] == 1)
        return KUMI_OK;
    instr->workspace =
        ku_program_add_buffer(l->p, &(struct ku_buffer){.arena = KU_AR_STEP,
                                                        .cls = KU_CL_WORKSPACE,
                                                        .dtype = KUMI_U8,
                                                        .micro = l->micro,
                                                        .name = n->path,
                                                        .first = l->p->n_instrs,
                                                        .last = l->p->n_instrs,
                                                        .bytes = l->workspace[id] - 1});
    return instr->workspace ? KUMI_OK : KUMI_ENOMEM;
}

/* Adds the operands of a node, inputs then outputs. */
static int add_operands(struct ku_lower *l, ku_id id, const ku_id *result)
{
    const struct ku_graph *g = l->g;
    const struct ku_node *n = &g->node[id];
    ku_id shape = 0, blocks = block_layout(l, n, id, &shape);
    int32_t first_block = 0;
    for (int i = 0; i < n->n_in; i++) {
        ku_id v = ku_in(g, n, i);
        if (g->value[v].shape == shape && ku_lower_owner(l, v))
            first_block = ku_lower_operand(l, v, 0, 1).first_block;
    }
    for (int i = 0; i < n->n_in + n->n_out; i++) {
        ku_id v = i < n->n_in ? ku_in(g, n, i) : ku_out(g, id, i - n->n_in);
        ku_id buffer = i < n->n_in ? l->buffer[v] : result[i - n->n_in];
        int is_cut = blocks && g->value[v].shape == shape;
        struct ku_operand o = ku_lower_operand(l, v, buffer, is_cut ? blocks : g->value[v].layout);
        if (is_cut)
            o.first_block = first_block;
        if (l->accumulate[v].is_concat && l->micro >= 0)
            o.slot = l->mb;
        KU_ASSERT(buffer != 0);
        KU_TRY(add_operand(l->p, &o, l->p->n_instrs));
    }
    return KUMI_OK;
}

int ku_lower_compute(struct ku_lower *l, ku_id id)
{
    const struct ku_graph *g = l->g;
    const struct ku_node *n = &g->node[id];
    int accumulates = is_accumulating(l, id), is_later = l->micro >= 0 && l->mb > 0;
    ku_id result[KU_MAX_OUT], sum[KU_MAX_OUT];
    KU_ASSERT(n->op != KU_OP_NONE && n->op != KU_OP_convert);
    for (int i = 0; i < n->n_in; i++)
        KU_TRY(ku_lower_settle(l, ku_in(g, n, i)));
    for (int i = 0; i < n->n_out; i++) {
        sum[i] = *ku_lower_sum(l, ku_out(g, id, i));
        result[i] = result_buffer(l, id, i, accumulates);
        if (result[i] == 0)
            return ku_err_get()->status;
        l->buffer[ku_out(g, id, i)] = result[i];
    }
    struct ku_instr instr = {.kind = KU_COMPUTE,
                             .phase = n->phase,
                             .n_in = n->n_in,
                             .n_out = n->n_out,
                             .accumulate = (uint8_t)(accumulates && is_later),
                             .op = n->op,
                             .stage = n->stage,
                             .micro = l->micro,
                             .operand = l->p->n_operands,
                             .attr = n->attr,
                             .path = n->path,
                             .source = n->source,
                             .stream = n->stream};
    KU_TRY(add_workspace(l, id, &instr));
    KU_TRY(add_operands(l, id, result));
    KU_TRY(add_instr(l->p, &instr));
    for (int i = 0; i < n->n_out && is_later && !accumulates; i++) {
        const struct ku_accumulation *f = &l->accumulate[ku_out(g, id, i)];
        if (f->convert && !f->is_concat && !f->by_micro)
            KU_TRY(ku_lower_accumulate(l, ku_out(g, id, i), sum[i], result[i], 0));
    }
    return KUMI_OK;
}
