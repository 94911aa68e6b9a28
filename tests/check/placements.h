/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CHECK_PLACEMENTS_H
#define TESTS_CHECK_PLACEMENTS_H

/* Mutations of placements over the data-parallel and the time axes. */
#include "edits.h"

static inline ku_id layout_of(struct ku_program *p, const struct ku_layout *l)
{
    for (ku_id k = 0; k < p->n_layouts; k++)
        if (ku_layout_is_equal(&p->layout[k], l))
            return k;
    struct ku_layout *more = ku_realloc(p->layout, p->n_layouts + 1, sizeof *more);
    assert_non_null(more);
    p->layout = more;
    p->layout[p->n_layouts] = *l;
    return p->n_layouts++;
}

static inline int sample_axes(const struct ku_program *p, const struct ku_operand *o)
{
    return ku_layout_axes(&p->layout[o->layout], KU_S) &
           ku_mesh_wide(&p->mesh, KU_DP_AXES | 1 << KU_AX_VS | 1 << KU_AX_MB);
}
static inline bool has_samples(const struct ku_program *p, const struct ku_instr *i)
{
    for (uint32_t k = 0; i->kind == KU_COMPUTE && k < (uint32_t)i->n_in + i->n_out; k++)
        if (sample_axes(p, &p->operand[i->operand + k]) &&
            p->shape[p->operand[i->operand + k].shape].ndim > 1)
            return true;
    return false;
}
/* An operand or result that is divided by samples and has other dims; NULL: there is none. */
static inline struct ku_operand *any_samples(struct ku_program *p, uint64_t *seed)
{
    const uint32_t at = any_that(p, has_samples, seed);
    if (at == UINT32_MAX)
        return NULL;
    const uint32_t n = (uint32_t)p->instr[at].n_in + p->instr[at].n_out, from = draw(seed, n);
    for (uint32_t k = 0; k < n; k++) {
        struct ku_operand *o = operand(p, at, (from + k) % n);
        if (sample_axes(p, o) && p->shape[o->shape].ndim > 1)
            return o;
    }
    return NULL;
}

/* A placement along another dim: one that divides evenly, with the same bytes, or any. */
static inline ku_id along_other(struct ku_program *p, const struct ku_operand *o, uint64_t *seed)
{
    const int axes = sample_axes(p, o);
    const struct ku_shape *s = &p->shape[o->shape];
    struct ku_layout l = p->layout[o->layout];
    int64_t parts = 1;
    int dim = 0, to;
    for (int a = 0; a < KU_N_AXES; a++)
        if (axes >> a & 1)
            parts *= p->mesh.extent[a], dim = l.at[a].dim;
    to = (dim + 1 + (int)draw(seed, (uint32_t)s->ndim - 1)) % s->ndim;
    for (int d = 0; d < s->ndim; d++)
        to = d != dim && s->dim[d].count % parts == 0 ? d : to;
    for (int a = 0; a < KU_N_AXES; a++)
        if (axes >> a & 1)
            l.at[a].dim = (uint16_t)to;
    return layout_of(p, &l);
}
static int read_along_other(struct ku_program *p, uint64_t *seed)
{
    struct ku_operand *o = any_samples(p, seed);
    if (o == NULL)
        return 0;
    o->layout = along_other(p, o, seed);
    return 1;
}
/* Everything that names the buffer with this placement: writers and readers agree. */
static int all_along_other(struct ku_program *p, uint64_t *seed)
{
    const struct ku_operand *o = any_samples(p, seed);
    if (o == NULL || p->buffer[o->buffer].arena == KU_AR_INPUT)
        return 0;
    const struct ku_operand was = *o;
    const ku_id to = along_other(p, o, seed);
    for (uint32_t at = 0; at < p->n_instrs; at++)
        for (uint32_t k = 0;
             k < (uint32_t)p->instr[at].n_in + p->instr[at].n_out + p->instr[at].n_parts; k++) {
            struct ku_operand *x = operand(p, at, k);
            if (x->buffer == was.buffer && x->layout == was.layout && x->shape == was.shape)
                x->layout = to;
        }
    return 1;
}
/* One axis of several less. */
static int over_fewer_axes(struct ku_program *p, uint64_t *seed)
{
    struct ku_operand *o = any_samples(p, seed);
    if (o == NULL)
        return 0;
    struct ku_layout l = p->layout[o->layout];
    int axis = 0;
    while (!(sample_axes(p, o) >> axis & 1))
        axis++;
    l.at[axis] = (struct ku_place){.kind = KU_R};
    o->layout = layout_of(p, &l);
    return 1;
}
/* Samples of a value that every rank and micro-batch has whole. */
static bool is_whole(const struct ku_program *p, const struct ku_instr *i)
{
    const struct ku_operand *o = &p->operand[i->operand];
    return i->kind == KU_COMPUTE && i->micro >= 0 && i->n_in && p->shape[o->shape].ndim &&
           !sample_axes(p, o) && !ku_layout_has(&p->layout[o->layout], KU_Z);
}
static int part_of_whole(struct ku_program *p, uint64_t *seed)
{
    const int wide = ku_mesh_wide(&p->mesh, KU_DP_AXES | 1 << KU_AX_VS | 1 << KU_AX_MB);
    const uint32_t at = any_that(p, is_whole, seed);
    if (at == UINT32_MAX || wide == 0)
        return 0;
    struct ku_operand *o = operand(p, at, 0);
    struct ku_layout l = p->layout[o->layout];
    for (int a = 0; a < KU_N_AXES; a++)
        if (wide >> a & 1)
            l.at[a] = (struct ku_place){.kind = KU_S};
    o->layout = layout_of(p, &l);
    return 1;
}

#endif
