/* SPDX-License-Identifier: Apache-2.0 */
#include "op/rope.h"

#include <math.h>

#include "base/err.h"

static const double TWO_PI = 6.28318530717958647693;

static double llama3(const struct ku_attrs *a, double angle)
{
    const double turns = (double)a->original * angle / TWO_PI; /* original / wavelength */
    if (turns < a->low_freq)
        return angle / a->factor;
    if (turns > a->high_freq)
        return angle;
    double smooth = (turns - a->low_freq) / (a->high_freq - a->low_freq);
    return (1 - smooth) * angle / a->factor + smooth * angle;
}

void ku_rope_frequencies(const struct ku_attrs *a, int64_t length, int64_t width, double *angle)
{
    const double d = (double)width;
    double theta = a->theta;
    if (a->rope_type == KU_ROPE_DYNAMIC && length > a->original && width > 2)
        theta *=
            pow(a->factor * (double)length / (double)a->original - (a->factor - 1), d / (d - 2));
    for (int64_t j = 0; j < width / 2; j++) {
        angle[j] = pow(theta, -2 * (double)j / d);
        if (a->rope_type == KU_ROPE_LINEAR)
            angle[j] /= a->factor;
        else if (a->rope_type == KU_ROPE_LLAMA3)
            angle[j] = llama3(a, angle[j]);
    }
}

static int misfit(const char *what, const struct ku_type *t)
{
    char text[160];
    return KU_ERR(KUMI_EINVAL, "op: rope: %s: got %s %s", what, kumi_dtype_name(t->dtype),
                  ku_shape_print(&t->shape, text, sizeof text));
}
static int check_scaling(const struct ku_attrs *a)
{
    const int is_stretched = a->rope_type == KU_ROPE_DYNAMIC || a->rope_type == KU_ROPE_LLAMA3;
    if (!(a->theta > 0))
        return KU_ERR(KUMI_EINVAL, "op: rope: theta %g; must be positive", a->theta);
    if (!(a->factor > 0))
        return KU_ERR(KUMI_EINVAL, "op: rope: factor %g; must be positive", a->factor);
    if (is_stretched && a->original < 1)
        return KU_ERR(KUMI_EINVAL, "op: rope: %s needs the original number of positions",
                      ku_attr_rope_types[a->rope_type]);
    if (a->rope_type == KU_ROPE_LLAMA3 && !(a->high_freq > a->low_freq))
        return KU_ERR(KUMI_EINVAL, "op: rope: high_freq %g is not above low_freq %g", a->high_freq,
                      a->low_freq);
    return KUMI_OK;
}

/* Whether the dims of an i32 operand are the first dims of x, `most` at most. */
static bool leads(const struct ku_type *p, const struct ku_shape *x, int most)
{
    const int n = p->shape.ndim;
    bool fits = p->dtype == KUMI_I32 && n >= 1 && n <= most;
    for (int d = 0; fits && d < n; d++)
        fits = p->shape.dim[d].count == x->dim[d].count && p->shape.dim[d].name == x->dim[d].name;
    return fits;
}

ku_infer_fn ku_infer_rope;
int ku_infer_rope(const struct ku_attrs *a, int n_in, const struct ku_type *in, struct ku_type *out)
{
    const struct ku_shape *x = &in[0].shape;
    KU_TRY(check_scaling(a));
    if (x->ndim < 3 || x->dim[x->ndim - 1].count % 2)
        return misfit("x needs [samples, tokens, .., an even width]", &in[0]);
    if (n_in > 1 && !leads(&in[1], x, 2))
        return misfit("positions are i32 [samples] or [samples, tokens]", &in[1]);
    if (n_in > 2 && (a->rope_type != KU_ROPE_DYNAMIC || !leads(&in[2], x, 1)))
        return misfit("lengths are i32 [samples], for rope_type dynamic", &in[2]);
    out[0] = in[0];
    return KUMI_OK;
}
