/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rotary position embedding. For each row of width d, with angle = position * frequency of pair j
 * (op/rope.h):
 *
 *     y[j]       = x[j] cos(angle) - x[j + d/2] sin(angle)
 *     y[j + d/2] = x[j + d/2] cos(angle) + x[j] sin(angle)
 *
 * The gradient uses -angle. The position of token t of a sample is t in the logical tensor, or
 * positions[n] + t, or positions[n, t]. With lengths each sample has frequencies of its own.
 */
#include "op/rope.h"

#include <math.h>

#include "device/ref/ref.h"

size_t ku_ref_workspace_rope(const struct ku_op_case *c)
{
    return (size_t)c->in[0].shape.dim[c->in[0].shape.ndim - 1].count / 2 * sizeof(double);
}

static double position_of(const struct ku_call *c, int64_t sample, int64_t token)
{
    const struct ku_view *x = &c->in[0], *p = &c->in[1];
    const int64_t t = x->start[1] + token;
    if (c->n_in < 2)
        return (double)t;
    if (p->shape.ndim == 1)
        return (double)((int64_t)((const int32_t *)p->data)[sample] + t);
    return (double)((const int32_t *)p->data)[sample * x->shape.dim[1].count + token];
}

static void turn(const struct ku_call *c, struct ku_ref_poll *poll, double sign)
{
    const struct ku_view *x = &c->in[0];
    const struct ku_dim *dim = x->shape.dim;
    const int64_t n_heads = ku_ref_extent(x, 2, x->shape.ndim - 1);
    const int64_t d = dim[x->shape.ndim - 1].count;
    const int32_t *lengths = c->n_in > 2 ? c->in[2].data : NULL;
    double *angle = c->workspace;
    ku_rope_frequencies(c->attr, c->attr->length, d, angle);
    for (int64_t row = 0; row < dim[0].count * dim[1].count * n_heads; row++) {
        const int64_t token = row / n_heads;
        if (lengths && row % (dim[1].count * n_heads) == 0)
            ku_rope_frequencies(c->attr, lengths[token / dim[1].count], d, angle);
        double position = position_of(c, token / dim[1].count, token % dim[1].count);
        for (int64_t j = 0; j < d / 2; j++) {
            const int64_t at = row * d + j, to = at + d / 2;
            double co = cos(position * angle[j]), si = sign * sin(position * angle[j]);
            double a = ku_ref_get(x, at), b = ku_ref_get(x, to);
            ku_ref_put(&c->out[0], at, a * co - b * si);
            ku_ref_put(&c->out[0], to, b * co + a * si);
        }
        ku_ref_worked(poll, d);
    }
}

void ku_ref_rope(const struct ku_call *c, struct ku_ref_poll *poll)
{
    turn(c, poll, 1);
}
void ku_ref_rope_dx(const struct ku_call *c, struct ku_ref_poll *poll)
{
    turn(c, poll, -1);
}
