/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TESTS_PROGRAM_EQUAL_H
#define KU_TESTS_PROGRAM_EQUAL_H

#include <string.h>

#include "base/err.h"
#include "base/str.h"
#include "ir/program.h"

/*
 * Whether two programs are equal field by field. Ids of shapes, placements, attributes and names
 * may differ; what they stand for is compared. NULL, or the first field that differs.
 */
#define SAME(field)                                                                                \
    if ((a->field) != (b->field))                                                                  \
    return #field

static inline int program_shape(const struct ku_program *p, ku_id a, const struct ku_program *q,
                                ku_id b)
{
    return ku_shape_is_equal(&p->shape[a], &q->shape[b]);
}
static inline int program_layout(const struct ku_program *p, ku_id a, const struct ku_program *q,
                                 ku_id b)
{
    return ku_layout_is_equal(&p->layout[a], &q->layout[b]);
}
static inline int program_name(const struct ku_program *p, ku_id a, const struct ku_program *q,
                               ku_id b)
{
    return (a == 0) == (b == 0) && (a == 0 || strcmp(p->name_of[a], q->name_of[b]) == 0);
}

static inline const char *program_buffer(const struct ku_program *p, const struct ku_program *q,
                                         ku_id id)
{
    const struct ku_buffer *a = &p->buffer[id], *b = &q->buffer[id];
    SAME(arena);
    SAME(cls);
    SAME(dtype);
    SAME(is_kept);
    SAME(value);
    SAME(micro);
    SAME(first);
    SAME(last);
    SAME(home);
    SAME(offset);
    SAME(bytes);
    return program_name(p, a->name, q, b->name) ? NULL : "buffer name";
}

static inline const char *program_operand(const struct ku_program *p, const struct ku_operand *a,
                                          const struct ku_program *q, const struct ku_operand *b)
{
    SAME(buffer);
    SAME(dtype);
    SAME(addend);
    SAME(out);
    SAME(stats_word);
    SAME(first_block);
    SAME(slot);
    SAME(piece);
    SAME(piece_count);
    if (!program_shape(p, a->shape, q, b->shape))
        return "operand shape";
    return program_layout(p, a->layout, q, b->layout) ? NULL : "operand placement";
}

static inline const char *program_instr(const struct ku_program *p, const struct ku_program *q,
                                        uint32_t at)
{
    const struct ku_instr *a = &p->instr[at], *b = &q->instr[at];
    SAME(kind);
    SAME(phase);
    SAME(n_in);
    SAME(n_out);
    SAME(accumulate);
    SAME(op);
    SAME(stage);
    SAME(micro);
    SAME(n_parts);
    SAME(stream);
    SAME(workspace);
    SAME(axes);
    SAME(group);
    SAME(reduce);
    SAME(wire);
    SAME(handle);
    if (memcmp(&p->attr[a->attr], &q->attr[b->attr], sizeof *p->attr) != 0)
        return "attributes";
    if (!program_name(p, a->path, q, b->path) || !program_name(p, a->source, q, b->source))
        return "path or source";
    uint32_t n = a->kind == KU_WAIT ? 0 : a->n_in + (a->kind == KU_START ? a->n_parts : a->n_out);
    for (uint32_t k = 0; k < n; k++) {
        const char *what =
            program_operand(p, &p->operand[a->operand + k], q, &q->operand[b->operand + k]);
        if (what)
            return what;
    }
    return NULL;
}

static inline const char *program_state(const struct ku_program *p, const struct ku_program *q,
                                        uint32_t at)
{
    const struct ku_program_state *a = &p->state[at], *b = &q->state[at];
    SAME(of);
    SAME(kind);
    SAME(dtype);
    SAME(arena);
    SAME(is_kept);
    SAME(first_block);
    SAME(offset);
    SAME(bytes);
    SAME(blocks == 0);
    if (!program_name(p, a->name, q, b->name) || !program_shape(p, a->shape, q, b->shape))
        return "state name or shape";
    return a->blocks == 0 || program_layout(p, a->blocks, q, b->blocks) ? NULL : "state blocks";
}

static inline const char *program_port(const struct ku_program *p, const struct ku_program_port *a,
                                       const struct ku_program *q, const struct ku_program_port *b)
{
    SAME(buffer);
    SAME(dtype);
    if (!program_name(p, a->name, q, b->name) || !program_shape(p, a->shape, q, b->shape))
        return "port name or shape";
    return program_layout(p, a->layout, q, b->layout) ? NULL : "port placement";
}

static inline const char *program_differs(const struct ku_program *a, const struct ku_program *b)
{
    const char *what = NULL;
    SAME(n_instrs);
    SAME(n_buffers);
    SAME(n_handles);
    SAME(n_states);
    SAME(n_inputs);
    SAME(n_outputs);
    SAME(mesh.mb_outer);
    if (strcmp(a->name, b->name) != 0)
        return "name";
    for (int x = 0; x < KU_N_AXES; x++)
        SAME(mesh.extent[x]);
    for (int x = 0; x < KU_N_ARENAS; x++)
        SAME(arena_bytes[x]);
    for (uint32_t i = 0; what == NULL && i < a->n_states; i++)
        what = program_state(a, b, i);
    for (uint32_t i = 0; what == NULL && i < a->n_inputs; i++)
        what = program_port(a, &a->input[i], b, &b->input[i]);
    for (uint32_t i = 0; what == NULL && i < a->n_outputs; i++)
        what = program_port(a, &a->output[i], b, &b->output[i]);
    for (ku_id i = 1; what == NULL && i < a->n_buffers; i++)
        what = program_buffer(a, b, i);
    for (uint32_t i = 0; what == NULL && i < a->n_instrs; i++)
        what = program_instr(a, b, i);
    return what;
}
#undef SAME

/* Prints, parses, prints again. NULL, or what is wrong. *again: the parsed program, or NULL. */
static inline const char *program_round_trip(const struct ku_program *p, struct ku_program **again)
{
    struct ku_str one = {0}, two = {0};
    const char *what = NULL;
    *again = NULL;
    if (ku_program_print(p, NULL, &one) < 0 ||
        ku_program_parse("text", ku_str_get(&one), one.bytes, again) < 0 ||
        ku_program_print(*again, NULL, &two) < 0)
        what = ku_err_get()->text;
    else if (one.bytes != two.bytes || memcmp(one.text, two.text, one.bytes) != 0)
        what = "the texts differ";
    else
        what = program_differs(p, *again);
    ku_str_fini(&one);
    ku_str_fini(&two);
    return what;
}

#endif
