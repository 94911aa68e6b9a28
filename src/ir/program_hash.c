/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hash of a program. Ids of shapes, placements and attributes stand for their contents, so a
 * program that was read from its text has the hash of the one that was printed. Each object is
 * gathered into words and hashed at once; the time is linear in the program.
 */
#include "ir/program.h"

#include <string.h>

#include "base/err.h"
#include "base/hash.h"

/* The fields of one object: an operand has most, of three buffers and a type. */
struct words {
    int n;
    uint64_t at[64];
};

static void put(struct words *w, uint64_t word)
{
    KU_ASSERT(w->n < (int)(sizeof w->at / sizeof w->at[0]));
    w->at[w->n++] = word;
}

static uint64_t mix(uint64_t h, const struct words *w)
{
    return ku_hash64_mix(h, ku_hash64(w->at, (size_t)w->n * sizeof w->at[0]));
}

static void put_text(struct words *w, const struct ku_program *p, ku_id name)
{
    const char *text = name ? p->name_of[name] : "";
    put(w, ku_hash64(text, strlen(text)));
}

static void put_placed(struct words *w, const struct ku_program *p, ku_id shape, ku_id layout)
{
    const struct ku_shape *s = &p->shape[shape];
    const struct ku_layout *l = &p->layout[layout];
    put(w, (uint64_t)s->ndim);
    for (int d = 0; d < s->ndim; d++) {
        put(w, (uint64_t)s->dim[d].count);
        put(w, (uint64_t)s->dim[d].seen ^ (uint64_t)(unsigned char)s->dim[d].name << 56);
    }
    for (int a = 0; a < KU_N_AXES; a++) {
        const uint64_t place = (uint64_t)l->at[a].kind << 16 | l->at[a].dim;
        put(w, place);
    }
}

/* Where a buffer is and how much of its tensor it holds. */
static uint64_t hash_buffer(uint64_t h, const struct ku_buffer *b)
{
    struct words w = {0};
    put(&w,
        (uint64_t)b->arena << 24 | (uint64_t)b->cls << 16 | (uint64_t)b->dtype << 8 | b->is_kept);
    put(&w, (uint64_t)b->micro);
    put(&w, b->home);
    put(&w, b->offset);
    put(&w, b->bytes);
    return mix(h, &w);
}

static uint64_t hash_operand(uint64_t h, const struct ku_program *p, const struct ku_operand *o)
{
    struct words w = {0};
    KU_ASSERT(o->buffer < p->n_buffers && o->addend < p->n_buffers && o->out < p->n_buffers);
    put_placed(&w, p, o->shape, o->layout);
    put(&w, (uint64_t)o->buffer << 8 | o->dtype);
    put(&w, (uint64_t)o->addend << 32 | o->out);
    put(&w, o->stats_word);
    put(&w, (uint64_t)o->first_block);
    put(&w, (uint64_t)o->slot);
    put(&w, (uint64_t)o->piece);
    put(&w, (uint64_t)o->piece_count);
    return mix(h, &w);
}

static uint64_t hash_instr(uint64_t h, const struct ku_program *p, const struct ku_instr *x)
{
    const uint32_t n = (uint32_t)x->n_in + x->n_out + x->n_parts;
    struct words w = {0};
    KU_ASSERT(n == 0 || x->operand + n <= p->n_operands); /* a wait has none */
    put(&w, (uint64_t)x->kind << 56 | (uint64_t)x->phase << 48 | (uint64_t)x->accumulate << 40 |
                (uint64_t)x->n_in << 32 | (uint64_t)x->n_out << 24 | x->op);
    put(&w, (uint64_t)(uint16_t)x->stage << 48 | (uint64_t)(uint16_t)x->peer << 32 |
                (uint32_t)x->micro);
    put(&w, x->n_parts);
    put(&w, (uint64_t)x->stream << 32 | x->workspace);
    put(&w,
        (uint64_t)x->axes << 32 | (uint64_t)x->group << 16 | (uint64_t)x->reduce << 8 | x->wire);
    put(&w, x->handle);
    put(&w, x->attr ? ku_hash64(&p->attr[x->attr], sizeof p->attr[0]) : 0);
    h = mix(h, &w);
    for (uint32_t k = 0; k < n; k++)
        h = hash_operand(h, p, &p->operand[x->operand + k]);
    return h;
}

static uint64_t hash_state(uint64_t h, const struct ku_program *p, const struct ku_program_state *s)
{
    struct words w = {0};
    put_text(&w, p, s->name);
    put_placed(&w, p, s->shape, s->blocks);
    h = mix(h, &w);
    w.n = 0;
    put_placed(&w, p, s->shape, s->split);
    put(&w,
        (uint64_t)s->kind << 24 | (uint64_t)s->dtype << 16 | (uint64_t)s->arena << 8 | s->is_kept);
    put(&w, s->of);
    put(&w, (uint64_t)s->first_block);
    put(&w, (uint64_t)s->pp);
    put(&w, s->offset);
    put(&w, s->bytes);
    return mix(h, &w);
}

static uint64_t hash_ports(uint64_t h, const struct ku_program *p,
                           const struct ku_program_port *port, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct words w = {0};
        put_text(&w, p, port[i].name);
        put_placed(&w, p, port[i].shape, port[i].layout);
        put(&w, port[i].buffer);
        put(&w, port[i].dtype);
        h = mix(h, &w);
    }
    return h;
}

uint64_t ku_program_hash(const struct ku_program *p)
{
    struct words w = {0};
    put(&w, (uint64_t)p->n_states << 32 | p->n_handles);
    put(&w, (uint64_t)p->n_instrs << 32 | p->n_buffers);
    put(&w, (uint64_t)p->n_inputs << 32 | p->n_outputs);
    put(&w, (uint64_t)p->pp << 32 | (uint64_t)(p->mesh.mb_outer != 0));
    for (int a = 0; a < KU_N_AXES; a++)
        put(&w, (uint64_t)p->mesh.extent[a]);
    for (int a = 0; a < KU_N_ARENAS; a++)
        put(&w, p->arena_bytes[a]);
    uint64_t h = mix(0, &w);
    for (uint32_t i = 0; i < p->n_states; i++)
        h = hash_state(h, p, &p->state[i]);
    for (ku_id b = 1; b < p->n_buffers; b++)
        h = hash_buffer(h, &p->buffer[b]);
    h = hash_ports(h, p, p->input, p->n_inputs);
    h = hash_ports(h, p, p->output, p->n_outputs);
    for (uint32_t i = 0; i < p->n_instrs; i++)
        h = hash_instr(h, p, &p->instr[i]);
    return h;
}
