/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints a program as text; the form is described in ir/program_text.h. For one rank the operands
 * have its local shapes, the first index of each dim where it is not 0, and addresses:
 * [n=8 t=64](n=8)step+512 holds samples 8 to 15. That form does not parse.
 */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "ir/program_text.h"

static const char *const class_word[KU_N_CLASSES] = {
    "param",   "optimizer", "derived", "counter", "buffer", "grad",    "partial", "activation",
    "adjoint", "workspace", "scalar",  "input",   "gather", "staging", "offload"};

static const char *const kind_word[] = {
    [KU_T_PARAM] = "param",     [KU_T_OPTIMIZER] = "optimizer", [KU_T_DERIVED] = "derived",
    [KU_T_COUNTER] = "counter", [KU_T_BUFFER] = "buffer",       [KU_T_CACHE] = "cache"};

const char *ku_class_word(int cls)
{
    return cls >= 0 && cls < KU_N_CLASSES ? class_word[cls] : "?";
}

const char *ku_state_kind_word(int kind)
{
    return kind >= 0 && kind <= KU_T_CACHE ? kind_word[kind] : "?";
}

/* The type that a buffer's line states. */
struct type {
    ku_id shape, layout; /* shape 0: nothing names the buffer */
    int32_t first_block;
    int is_given;
};

struct printer {
    const struct ku_program *p;
    const struct ku_coord *rank; /* NULL: of all ranks */
    struct type *type;           /* per buffer */
    struct ku_str *out;
};

static void print_name(struct printer *w, ku_id name)
{
    KU_ASSERT(name > 0 && name < w->p->n_names);
    for (const char *c = w->p->name_of[name]; *c; c++)
        if (*c <= ' ' || *c > '~' || strchr(KU_NAME_ENDS, *c))
            ku_str_add(w->out, "\\x%02x", (unsigned char)*c);
        else
            ku_str_append(w->out, c, 1);
}

static void print_shape(struct printer *w, const struct ku_shape *s)
{
    char text[512];
    ku_str_add(w->out, "%s", ku_shape_print(s, text, sizeof text));
}

static void print_layout(struct printer *w, ku_id layout, ku_id shape)
{
    char text[256];
    ku_str_add(w->out, "%s",
               ku_layout_print(&w->p->layout[layout], &w->p->shape[shape], text, sizeof text));
}

static void note_type(struct printer *w, ku_id buffer, const struct type *t)
{
    KU_ASSERT(buffer < w->p->n_buffers);
    if (!w->type[buffer].is_given) {
        w->type[buffer] = *t;
        w->type[buffer].is_given = 1;
    }
}

/* The number of operands of an instruction. */
static uint32_t n_operands(const struct ku_instr *i)
{
    return i->kind == KU_WAIT ? 0 : i->n_in + (i->kind == KU_START ? i->n_parts : i->n_out);
}

static void note_types(struct printer *w)
{
    const struct ku_program *p = w->p;
    for (uint32_t i = 0; i < p->n_inputs + p->n_outputs; i++) {
        const struct ku_program_port *x =
            i < p->n_inputs ? &p->input[i] : &p->output[i - p->n_inputs];
        note_type(w, x->buffer, &(struct type){x->shape, x->layout, 0, 0});
    }
    for (uint32_t at = 0; at < p->n_instrs; at++) {
        const struct ku_instr *x = &p->instr[at];
        const uint32_t n = n_operands(x);
        for (uint32_t k = 0; k < n; k++) { /* results come first */
            const struct ku_operand *o = &p->operand[x->operand + (k + x->n_in) % n];
            note_type(w, o->buffer, &(struct type){o->shape, o->layout, o->first_block, 0});
        }
    }
}

/* What differs from the type of the buffer. */
static void print_type(struct printer *w, ku_id buffer, int dtype, ku_id shape, ku_id layout)
{
    const struct ku_program *p = w->p;
    const struct type *t = &w->type[buffer];
    KU_ASSERT(t->is_given && shape < p->n_shapes && layout < p->n_layouts);
    if (dtype != p->buffer[buffer].dtype)
        ku_str_add(w->out, "(%s)", kumi_dtype_name((enum kumi_dtype)dtype));
    if (shape != t->shape && !ku_shape_is_equal(&p->shape[shape], &p->shape[t->shape]))
        print_shape(w, &p->shape[shape]);
    if (layout != t->layout && !ku_layout_is_equal(&p->layout[layout], &p->layout[t->layout]))
        print_layout(w, layout, shape);
}

/* The part of one rank, whole. */
static void print_part(struct printer *w, const struct ku_operand *o, int micro)
{
    const struct ku_buffer *b = &w->p->buffer[o->buffer];
    const char *before = "(";
    struct ku_part part;
    ku_program_part(w->p, o, w->rank, micro, &part);
    ku_str_add(w->out, " %s", kumi_dtype_name((enum kumi_dtype)o->dtype));
    print_shape(w, &part.shape);
    for (int d = 0; d < part.shape.ndim; d++)
        if (part.start[d]) {
            ku_str_add(w->out, "%s%c=%lld", before, part.shape.dim[d].name,
                       (long long)part.start[d]);
            before = " ";
        }
    ku_str_add(w->out, "%s", before[0] == ' ' ? ")" : "");
    print_layout(w, o->layout, o->shape);
    ku_str_add(w->out, "%s+%zu", ku_arena_name(b->arena), b->offset + part.offset);
}

static void print_extra(struct printer *w, const struct ku_operand *o)
{
    const size_t before = w->out->bytes;
    if (o->first_block != w->type[o->buffer].first_block)
        ku_str_add(w->out, " block=%d", o->first_block);
    if (o->slot)
        ku_str_add(w->out, " slot=%d", o->slot);
    if (o->piece_count)
        ku_str_add(w->out, " piece=%d/%lld", o->piece, (long long)o->piece_count);
    if (o->addend)
        ku_str_add(w->out, " add=b%u", o->addend);
    if (o->out)
        ku_str_add(w->out, " out=b%u", o->out);
    if (o->stats_word)
        ku_str_add(w->out, " word=%u", o->stats_word);
    if (w->out->bytes == before || w->out->failed)
        return;
    w->out->text[before] = '<';
    ku_str_add(w->out, ">");
}

static void print_buffer_name(struct printer *w, ku_id buffer)
{
    const struct ku_buffer *b = &w->p->buffer[buffer];
    ku_str_add(w->out, "b%u", buffer);
    if (w->p->name_of[b->name][0]) {
        ku_str_add(w->out, ":");
        print_name(w, b->name);
    }
    if (b->micro >= 0)
        ku_str_add(w->out, "@%d", b->micro);
}

static void print_operand(struct printer *w, const struct ku_operand *o, int is_result, int micro)
{
    ku_str_add(w->out, " ");
    if (is_result || w->rank)
        print_buffer_name(w, o->buffer);
    else
        ku_str_add(w->out, "b%u", o->buffer);
    if (w->rank)
        print_part(w, o, micro);
    else
        print_type(w, o->buffer, o->dtype, o->shape, o->layout);
    print_extra(w, o);
}

static void print_start(struct printer *w, const struct ku_instr *i)
{
    const int dtype = i->n_parts ? w->p->operand[i->operand + i->n_in].dtype : 0;
    ku_str_add(w->out, "start %s #%u", ku_exchange_name(i->op), i->handle);
    for (int a = 0; a < KU_N_AXES; a++)
        if (i->axes >> a & 1)
            ku_str_add(w->out, " %s", ku_axis_name(a));
    if (ku_exchange_is_message(i->op))
        ku_str_add(w->out, " peer=%d", i->peer);
    if (i->group)
        ku_str_add(w->out, " group=%d", i->group);
    if (i->reduce)
        ku_str_add(w->out, " reduce=%s",
                   i->reduce <= KU_REDUCE_MAX ? ku_attr_reductions[i->reduce] : "?");
    if (i->wire != dtype)
        ku_str_add(w->out, " wire=%s", kumi_dtype_name((enum kumi_dtype)i->wire));
}

static void print_instr(struct printer *w, uint32_t at)
{
    const struct ku_program *p = w->p;
    const struct ku_instr *i = &p->instr[at];
    KU_ASSERT(i->operand + n_operands(i) <= p->n_operands && i->workspace < p->n_buffers);
    ku_str_add(w->out, "%6u %d%s", at, i->stage, ku_phase_name(i->phase));
    if (i->micro >= 0)
        ku_str_add(w->out, "%d", i->micro);
    ku_str_add(w->out, " ");
    if (i->kind == KU_WAIT) {
        ku_str_add(w->out, "wait #%u @", i->handle);
        print_name(w, i->path);
        ku_str_add(w->out, "\n");
        return;
    }
    if (i->kind == KU_START)
        print_start(w, i);
    else
        ku_str_add(w->out, "%s%s", ku_ops[i->op].name, i->accumulate ? "+" : "");
    for (uint32_t k = i->n_in; k < n_operands(i); k++)
        print_operand(w, &p->operand[i->operand + k], 1, i->micro);
    if (i->n_in)
        ku_str_add(w->out, " <-");
    for (uint32_t k = 0; k < i->n_in; k++)
        print_operand(w, &p->operand[i->operand + k], 0, i->micro);
    ku_attrs_print(&p->attr[i->attr], w->out);
    if (i->stream)
        ku_str_add(w->out, " stream=%u", i->stream);
    if (i->workspace)
        ku_str_add(w->out, " workspace=b%u", i->workspace);
    if (i->source) {
        ku_str_add(w->out, " source=");
        print_name(w, i->source);
    }
    ku_str_add(w->out, " @");
    print_name(w, i->path);
    ku_str_add(w->out, "\n");
}

static void print_state(struct printer *w, const struct ku_program_state *s)
{
    ku_str_add(w->out, "state ");
    print_name(w, s->name);
    ku_str_add(w->out, " %s %s", ku_state_kind_word(s->kind),
               kumi_dtype_name((enum kumi_dtype)s->dtype));
    print_shape(w, &w->p->shape[s->shape]);
    ku_str_add(w->out, " %s+%zu bytes=%zu", ku_arena_name(s->arena), s->offset, s->bytes);
    if (s->first_block)
        ku_str_add(w->out, " block=%d", s->first_block);
    if (s->blocks) {
        ku_str_add(w->out, " blocks=");
        print_layout(w, s->blocks, s->shape);
    }
    if (s->split) {
        ku_str_add(w->out, " split=");
        print_layout(w, s->split, s->shape);
    }
    if (s->pp >= 0)
        ku_str_add(w->out, " pp=%d", s->pp);
    ku_str_add(w->out, "%s", s->is_kept ? " kept" : "");
    KU_ASSERT(s->of <= w->p->n_states);
    if (s->of) {
        ku_str_add(w->out, " of=");
        print_name(w, w->p->state[s->of - 1].name);
    }
    ku_str_add(w->out, "\n");
}

static void print_buffer(struct printer *w, ku_id id)
{
    const struct ku_buffer *b = &w->p->buffer[id];
    const struct type *t = &w->type[id];
    ku_str_add(w->out, "buffer ");
    print_buffer_name(w, id);
    ku_str_add(w->out, " %s %s", ku_class_word(b->cls), kumi_dtype_name((enum kumi_dtype)b->dtype));
    if (t->is_given) {
        print_shape(w, &w->p->shape[t->shape]);
        print_layout(w, t->layout, t->shape);
    }
    if (t->first_block)
        ku_str_add(w->out, " block=%d", t->first_block);
    ku_str_add(w->out, " %s+%zu bytes=%zu", ku_arena_name(b->arena), b->offset, b->bytes);
    if (b->first != UINT32_MAX)
        ku_str_add(w->out, " live=%u..%u", b->first, b->last);
    else if (b->last)
        ku_str_add(w->out, " live=never..%u", b->last);
    ku_str_add(w->out, "%s", b->is_kept ? " kept" : "");
    if (b->home)
        ku_str_add(w->out, " in=b%u", b->home);
    if (b->value)
        ku_str_add(w->out, " %%%u", b->value);
    ku_str_add(w->out, "\n");
}

static void print_port(struct printer *w, const char *word, const struct ku_program_port *x)
{
    ku_str_add(w->out, "%s ", word);
    print_name(w, x->name);
    ku_str_add(w->out, " b%u", x->buffer);
    print_type(w, x->buffer, x->dtype, x->shape, x->layout);
    ku_str_add(w->out, "\n");
}

static void print_header(struct printer *w)
{
    const struct ku_program *p = w->p;
    ku_str_add(w->out, "kumi program 2 %s", p->name);
    if (w->rank)
        ku_str_add(w->out, " rank=%d", ku_mesh_rank(&p->mesh, w->rank));
    ku_str_add(w->out, "\nmesh");
    for (int a = 0; a < KU_N_AXES; a++)
        if (p->mesh.extent[a] > 1)
            ku_str_add(w->out, " %s=%d", ku_axis_name(a), p->mesh.extent[a]);
    ku_str_add(w->out, "%s", p->mesh.mb_outer ? " mb_outer" : "");
    if (p->pp)
        ku_str_add(w->out, " at_pp=%d", p->pp);
    ku_str_add(w->out, "\narenas");
    for (int a = 0; a < KU_N_ARENAS; a++)
        if (p->arena_bytes[a])
            ku_str_add(w->out, " %s=%zu", ku_arena_name(a), p->arena_bytes[a]);
    ku_str_add(w->out, "\n");
}

int ku_program_print(const struct ku_program *p, const struct ku_coord *rank, struct ku_str *out)
{
    struct printer w = {.p = p, .rank = rank, .out = out};
    w.type = ku_calloc(p->n_buffers + 1, sizeof *w.type);
    if (w.type == NULL)
        return KUMI_ENOMEM;
    note_types(&w);
    print_header(&w);
    for (uint32_t s = 0; s < p->n_states; s++)
        print_state(&w, &p->state[s]);
    for (ku_id b = 1; b < p->n_buffers; b++)
        print_buffer(&w, b);
    for (uint32_t i = 0; i < p->n_inputs; i++)
        print_port(&w, "input", &p->input[i]);
    for (uint32_t i = 0; i < p->n_outputs; i++)
        print_port(&w, "output", &p->output[i]);
    for (uint32_t at = 0; at < p->n_instrs; at++)
        print_instr(&w, at);
    ku_free(w.type);
    return out->failed ? KUMI_ENOMEM : KUMI_OK;
}

void ku_program_instr_text(const struct ku_program *p, uint32_t at, char *text, size_t cap)
{
    const struct ku_instr *i = &p->instr[at];
    char micro[16] = "";
    if (i->micro >= 0)
        snprintf(micro, sizeof micro, "%d", i->micro);
    const char *path = p->name_of[i->path];
    snprintf(text, cap, "%d%s%s %s%s%s%s", i->stage, ku_phase_name(i->phase), micro,
             i->kind == KU_WAIT ? "wait " : "",
             i->kind == KU_COMPUTE ? ku_ops[i->op].name : ku_exchange_name(i->op), *path ? " " : "",
             path);
}
