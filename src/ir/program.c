/* SPDX-License-Identifier: Apache-2.0 */
#include "ir/program.h"

#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "ir/state.h"
#include "tensor/blocks.h"

void ku_program_destroy(struct ku_program *p)
{
    if (p == NULL)
        return;
    for (uint32_t i = 1; p->name_of && i < p->n_names; i++)
        ku_free(p->name_of[i]);
    ku_free(p->name_of);
    ku_free(p->instr);
    ku_free(p->buffer);
    ku_free(p->operand);
    ku_free(p->state);
    ku_free(p->input);
    ku_free(p->output);
    ku_free(p->shape);
    ku_free(p->layout);
    ku_free(p->attr);
    ku_free(p);
}

ku_id ku_program_attr(struct ku_program *p, const struct ku_attrs *a)
{
    KU_ASSERT(p->n_attrs > 0);                 /* id 0 is none */
    for (ku_id i = p->n_attrs - 1; i > 0; i--) /* recent ones are requested most */
        if (memcmp(&p->attr[i], a, sizeof *a) == 0)
            return i;
    struct ku_attrs *grown = ku_realloc(p->attr, p->n_attrs + 1, sizeof *grown);
    if (grown == NULL)
        return 0;
    p->attr = grown;
    p->attr[p->n_attrs] = *a;
    return p->n_attrs++;
}

const struct ku_program_port *ku_program_find_port(const struct ku_program *p, int is_input,
                                                   const char *name)
{
    const struct ku_program_port *port = is_input ? p->input : p->output;
    uint32_t n = is_input ? p->n_inputs : p->n_outputs;
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(p->name_of[port[i].name], name) == 0)
            return &port[i];
    return NULL;
}

/* Number of ranks over which chunks are partitioned along some axes, and this rank's index among
 * them. */
static int block_members(const struct ku_mesh *m, const struct ku_layout *l, int axes,
                         const struct ku_coord *c, int *me)
{
    int n = 1;
    *me = 0;
    for (int a = 0; a < KU_AX_FIRST_TIME; a++)
        if (l->at[a].kind == KU_Z && axes >> a & 1) {
            int each = l->at[a].dim ? l->at[a].dim : m->extent[a];
            *me = *me * each + c->at[a] % each;
            n *= each;
        }
    KU_ASSERT(*me >= 0 && *me < n);
    return n;
}

/* What the rank owns before the tensor-parallel ranks divide it. */
static void own_range(const struct ku_mesh *mesh, const struct ku_layout *layout, int64_t count,
                      int64_t first_block, const struct ku_coord *coord, int64_t *begin,
                      int64_t *end)
{
    int me, n = block_members(mesh, layout, ~KU_TP_AXES, coord, &me);
    ku_blocks_range(count, KU_BLOCK_COUNT, first_block, n, me, begin, end);
    KU_ASSERT(0 <= *begin && *begin <= *end && *end <= count);
}

void ku_program_local_range(const struct ku_mesh *mesh, const struct ku_layout *layout,
                            int64_t count, int64_t first_block, const struct ku_coord *coord,
                            int64_t *begin, int64_t *end)
{
    int64_t from;
    int me, n = block_members(mesh, layout, KU_TP_AXES, coord, &me);
    own_range(mesh, layout, count, first_block, coord, begin, end);
    if (n == 1)
        return;
    from = *begin;
    ku_blocks_range(*end - from, KU_BLOCK_COUNT, first_block, n, me, begin, end);
    *begin += from, *end += from;
}

int64_t ku_program_slice_count(const struct ku_mesh *mesh, const struct ku_shape *shape,
                               const struct ku_layout *layout)
{
    const struct ku_coord first = {0};
    struct ku_shape local;
    ku_local_shape(mesh, shape, layout, &first, &local);
    return ku_shape_count(&local);
}

int64_t ku_program_local_max(const struct ku_mesh *mesh, const struct ku_layout *layout,
                             int64_t count, int64_t first_block)
{
    const struct ku_coord first = {0};
    int me, n = block_members(mesh, layout, ~KU_TP_AXES, &first, &me);
    return ku_blocks_max(count, KU_BLOCK_COUNT, first_block, n);
}

bool ku_program_split_parts(const struct ku_program *p, const struct ku_operand *o, int axes,
                            const struct ku_coord *coord, struct ku_split_parts *out)
{
    struct ku_layout l = p->layout[o->layout];
    const int split = ku_layout_axes(&l, KU_S) & axes;
    if (split == 0)
        return false;
    int axis = 0;
    while ((split >> axis & 1) == 0)
        axis++;
    const int dim = l.at[axis].dim;
    struct ku_shape local;
    KU_ASSERT(split == axes && (split == 1 << axis || (axes & ~KU_TP_AXES) == 0));
    for (; axis < KU_AX_FIRST_TIME; axis++)
        if (axes >> axis & 1) {
            KU_ASSERT(l.at[axis].dim == dim);
            l.at[axis] = (struct ku_place){.kind = KU_C};
        }
    ku_local_shape(&p->mesh, &p->shape[o->shape], &l, coord, &local);
    *out = (struct ku_split_parts){1, 1, 1};
    for (int d = 0; d < local.ndim; d++) {
        int64_t *count = d < dim ? &out->n : &out->count;
        *count *= local.dim[d].count;
        out->chunk *= d > dim ? local.dim[d].count : 1;
    }
    return true;
}

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

void ku_program_part(const struct ku_program *p, const struct ku_operand *o,
                     const struct ku_coord *coord, int micro, struct ku_part *out)
{
    const struct ku_shape *shape = &p->shape[o->shape];
    const struct ku_layout *layout = &p->layout[o->layout];
    const struct ku_buffer *buffer = &p->buffer[o->buffer];
    struct ku_coord at = *coord;
    struct ku_slice slice;
    memset(out, 0, sizeof *out);
    if (ku_layout_has(layout, KU_Z) || o->piece_count) {
        struct ku_shape local;
        int64_t begin, end, in_buffer, ignored;
        ku_local_shape(&p->mesh, shape, layout, coord, &local);
        const int64_t count = ku_shape_count(&local);
        ku_program_local_range(&p->mesh, layout, count, o->first_block, coord, &begin, &end);
        own_range(&p->mesh, layout, count, o->first_block, coord, &in_buffer, &ignored);
        in_buffer = buffer->is_kept ? in_buffer : 0; /* first element in the buffer */
        if (o->piece_count) {
            begin = min_i64(begin + o->piece * o->piece_count, end);
            end = min_i64(begin + o->piece_count, end);
            in_buffer = buffer->cls == KU_CL_STAGING ? begin : in_buffer;
        }
        int64_t kept = end - begin;
        if (kept == 0)
            begin = in_buffer = 0; /* an empty part has offset 0 */
        KU_ASSERT(kept >= 0 && begin >= in_buffer);
        out->shape = ku_shape_of("z", &kept);
        /* parameters are padded in their first dim only, i.e. at the end of the flattened tensor */
        int64_t seen = ku_shape_seen(&local) - begin;
        out->shape.dim[0].seen = seen < 0 ? 0 : seen < kept ? seen : kept;
        out->start[0] = begin;
        out->logical[0] = count;
        out->of = ku_runs_of(&p->mesh, shape, layout, coord);
        out->offset = (size_t)(begin - in_buffer) * kumi_dtype_bytes((enum kumi_dtype)o->dtype);
        return;
    }
    if (micro >= 0)
        ku_mesh_micro(&p->mesh, micro, &at);
    ku_slice_of(&p->mesh, shape, layout, &at, &slice);
    ku_local_shape(&p->mesh, shape, layout, &at, &out->shape);
    for (int d = 0; d < shape->ndim; d++) {
        out->start[d] = slice.start[d];
        out->logical[d] = shape->dim[d].count;
    }
    out->offset = (size_t)o->slot * (size_t)ku_shape_count(&out->shape) *
                  kumi_dtype_bytes((enum kumi_dtype)o->dtype);
    if (buffer->arena == KU_AR_INPUT && layout->at[KU_AX_MB].kind == KU_S && micro >= 0)
        out->offset = (size_t)micro * (buffer->bytes / (size_t)ku_mesh_n_micro(&p->mesh));
}

void ku_program_types(const struct ku_program *p, uint32_t at, const struct ku_coord *coord,
                      struct ku_op_case *c, struct ku_cost *cost)
{
    KU_ASSERT(at < p->n_instrs);
    const struct ku_instr *i = &p->instr[at];
    *c = (struct ku_op_case){.attr = &p->attr[i->attr]};
    *cost = (struct ku_cost){0, 0};
    if (i->kind != KU_COMPUTE)
        return;
    c->op = i->op;
    c->n_in = i->n_in;
    c->n_out = i->n_out;
    c->accumulate = i->accumulate;
    for (int k = 0; k < i->n_in + i->n_out; k++) {
        const struct ku_operand *o = &p->operand[i->operand + (uint32_t)k];
        struct ku_part part;
        ku_program_part(p, o, coord, i->micro, &part);
        struct ku_type *t = k < i->n_in ? &c->in[k] : &c->out[k - i->n_in];
        *t = (struct ku_type){(enum kumi_dtype)o->dtype, part.shape};
    }
    *cost = ku_ops[i->op].cost(c->attr, c->accumulate, c->n_in, c->in, c->n_out, c->out);
}

static const char *const class_name[KU_N_CLASSES] = {
    "parameters",          "optimizer",       "compute copies", "counters",  "buffers", "gradients",
    "partial gradients",   "activations",     "adjoints",       "workspace", "scalars", "inputs",
    "gathered parameters", "offload staging", "offloaded"};
static const char *const arena_name[KU_N_ARENAS] = {"host", "state", "shard",   "wire", "gather",
                                                    "step", "input", "offload", "file"};
static const char *const exchange_name[KU_N_EXCHANGES] = {
    "reduce_scatter", "all_reduce", "barrier", "all_gather", "send", "recv", "read", "write"};

const char *ku_exchange_name(int exchange)
{
    return exchange >= 0 && exchange < KU_N_EXCHANGES ? exchange_name[exchange] : "?";
}

const char *ku_class_name(int cls)
{
    return cls >= 0 && cls < KU_N_CLASSES ? class_name[cls] : "?";
}
const char *ku_arena_name(int arena)
{
    return arena >= 0 && arena < KU_N_ARENAS ? arena_name[arena] : "?";
}

/* Whether the buffer is live for a part of the step. State and ports are always live. */
static bool is_within_step(const struct ku_buffer *b)
{
    const bool is_offloaded = b->arena == KU_AR_OFFLOAD && b->micro >= 0; /* an activation */
    return ku_arena_is_transient(b->arena) || is_offloaded;
}

/* 1 if the buffer has bytes of its own for a part of the step. */
static bool is_transient(const struct ku_buffer *b)
{
    return is_within_step(b) && b->home == 0 && b->first != UINT32_MAX;
}

bool ku_program_is_here(const struct ku_program *p, ku_id buffer)
{
    return buffer > p->n_states || ku_state_is_here(&p->state[buffer - 1], p->pp);
}

bool ku_program_is_live(const struct ku_program *p, ku_id buffer, uint32_t instr)
{
    const struct ku_buffer *b = &p->buffer[buffer];
    if (b->arena == KU_AR_FILE || !ku_program_is_here(p, buffer))
        return 0;
    return is_within_step(b) ? is_transient(b) && b->first <= instr && instr <= b->last : 1;
}

enum ku_class ku_buffer_class(const struct ku_buffer *b)
{
    return b->arena == KU_AR_OFFLOAD ? KU_CL_OFFLOAD : (enum ku_class)b->cls;
}

static int64_t all_bytes(const struct ku_buffer *b)
{
    return (int64_t)b->bytes;
}
static int64_t gathered_elements(const struct ku_buffer *b)
{
    size_t each = kumi_dtype_bytes((enum kumi_dtype)b->dtype);
    return b->cls == KU_CL_GATHER ? (int64_t)(b->bytes / each) : 0;
}

/* The instruction with the largest total weight of live buffers, and that weight. */
static uint32_t find_peak(const struct ku_program *p, int64_t (*weight)(const struct ku_buffer *),
                          int64_t *most)
{
    int64_t *delta = ku_calloc((size_t)p->n_instrs + 2, sizeof *delta);
    uint32_t at = 0;
    int64_t now = 0;
    *most = -1;
    if (delta == NULL)
        return 0;
    for (ku_id b = 1; b < p->n_buffers; b++)
        if (is_transient(&p->buffer[b])) {
            KU_ASSERT(p->buffer[b].first <= p->buffer[b].last && p->buffer[b].last <= p->n_instrs);
            delta[p->buffer[b].first] += weight(&p->buffer[b]);
            delta[p->buffer[b].last + 1] -= weight(&p->buffer[b]);
        }
    for (uint32_t i = 0; i < p->n_instrs; i++) {
        now += delta[i];
        KU_ASSERT(now >= 0); /* no buffer ends before it begins */
        if (now > *most) {
            *most = now;
            at = i;
        }
    }
    ku_free(delta);
    return at;
}

int64_t ku_program_live_parameters(const struct ku_program *p, uint32_t *instr)
{
    int64_t most;
    *instr = find_peak(p, gathered_elements, &most);
    return most < 0 ? 0 : most;
}

static void add_row(struct ku_memory_report *r, const struct ku_memory_row *row)
{
    enum { MOST = sizeof r->row / sizeof r->row[0] };
    uint32_t at = r->n_rows < MOST ? r->n_rows++ : MOST - 1;
    if (r->n_rows == MOST && at == MOST - 1 && r->row[at].bytes >= row->bytes)
        return;
    for (; at > 0 && r->row[at - 1].bytes < row->bytes; at--)
        r->row[at] = r->row[at - 1];
    r->row[at] = *row;
}

void ku_program_memory(const struct ku_program *p, struct ku_memory_report *out)
{
    memset(out, 0, sizeof *out);
    memcpy(out->arena_bytes, p->arena_bytes, sizeof out->arena_bytes);
    for (int a = 0; a < KU_N_ARENAS; a++)
        out->peak_bytes += a == KU_AR_FILE ? 0 : p->arena_bytes[a];
    int64_t most;
    out->peak_instr = find_peak(p, all_bytes, &most);
    for (ku_id b = 1; b < p->n_buffers; b++) {
        const struct ku_buffer *x = &p->buffer[b];
        const enum ku_class cls = ku_buffer_class(x);
        if (!ku_program_is_live(p, b, out->peak_instr))
            continue;
        out->at_peak[cls] += x->bytes;
        add_row(out,
                &(struct ku_memory_row){p->name_of[x->name], x->micro, (uint8_t)cls, x->bytes});
    }
}
