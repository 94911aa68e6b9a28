/* SPDX-License-Identifier: Apache-2.0 */
#include "device/adafactor.h"

#include "device/step_scalars.h"
#include "tensor/dtype.h"

struct ku_factor_place ku_factor_place_of(const struct ku_view *x)
{
    struct ku_factor_place p = {.total = 1};
    int64_t count[KU_MAX_DIMS];
    for (int d = 0; d < x->shape.ndim; d++) {
        p.total *= x->logical[d];
        count[d] = x->shape.dim[d].count;
    }
    if (!ku_view_is_flat(x)) {
        p.of = ku_runs_of_slice(x->shape.ndim, x->logical, x->start, count);
        return p;
    }
    p.of = x->of;
    p.first = x->start[0];
    p.total = p.of.run ? p.total / p.of.run * p.of.pitch : p.total;
    return p;
}

int ku_factor_exponent(const struct ku_attrs *a, const double *report)
{
    const double clip = ku_clip_factor(a, report[KU_REPORT_NORM]);
    const double norm = report[KU_REPORT_NORM] / report[KU_REPORT_SCALE] * clip;
    const int exponent = norm > 0 && isfinite(norm) ? ilogb(norm) + 1 : 0;
    return exponent < -480 ? -480 : exponent > 480 ? 480 : exponent;
}

void ku_factor_rounds(const struct ku_attrs *a, const double *report, double round[2])
{
    const int unit = 2 * ku_factor_exponent(a, report) - KU_FACTOR_HI_BITS;
    round[0] = ldexp(1.5, 52 + unit);
    round[1] = ldexp(1.5, 52 + unit - KU_FACTOR_LO_BITS);
}

struct ku_adafactor ku_adafactor_of(const struct ku_attrs *a, const double *report,
                                    const double *norms)
{
    const double t = report[KU_REPORT_UPDATE], lr = report[KU_REPORT_LR] * a->lr_mult;
    struct ku_adafactor f = {.scale = report[KU_REPORT_SCALE],
                             .w = pow(t, a->beta2_decay),
                             .least = a->eps * a->eps,
                             .keep = 1 - lr * a->weight_decay};
    if (norms) {
        const double root = sqrt((double)a->count), slow = 1 / sqrt(t);
        const double p = norms[2 * a->index] / root, u = norms[2 * a->index + 1] / root;
        const double alpha = (p > a->eps2 ? p : a->eps2) * (lr < slow ? lr : slow);
        f.rate = u > a->clip_threshold ? alpha * a->clip_threshold / u : alpha;
    }
    return f;
}

/* out = var + w (mean - var), for n sums of squares over n_elements elements each. */
static void move(const struct ku_view *out, const struct ku_view *var, const int64_t *sum,
                 double unit, double w, int64_t n, int64_t n_elements)
{
    for (int64_t i = 0; i < n; i++) {
        const double old = ku_load_f64(var->data, var->dtype, i);
        const double squares =
            ldexp((double)sum[2 * i + 1], -KU_FACTOR_LO_BITS) + (double)sum[2 * i];
        const double mean = squares * unit / (double)n_elements;
        ku_store_f64(out->data, out->dtype, i, w == 0 ? old : old + w * (mean - old));
    }
}

void ku_factor_means(const struct ku_call *c)
{
    const struct ku_attrs *a = c->attr;
    const double *report = c->in[3].data, scale = report[KU_REPORT_SCALE];
    const int64_t n_rows = ku_shape_count(&c->in[1].shape),
                  n_cols = ku_shape_count(&c->in[2].shape);
    const int64_t *sum = (const int64_t *)c->in[0].data + a->first_word;
    const int is_on = report[KU_REPORT_APPLY] != 0;
    const double w = is_on ? ku_adafactor_of(a, report, NULL).w : 0;
    const double unit =
        is_on ? ldexp(scale * scale, 2 * ku_factor_exponent(a, report) - KU_FACTOR_HI_BITS) : 0;
    double *inverse = c->out[2].data;
    move(&c->out[0], &c->in[1], sum, unit, w, n_rows, a->cols);
    move(&c->out[1], &c->in[2], sum + 2 * n_rows, unit, w, n_cols, a->rows_seen);
    for (int64_t m = 0; m < n_rows / a->rows; m++) {
        double total = 0;
        for (int64_t r = 0; r < a->rows_seen; r++)
            total += ku_load_f64(c->out[0].data, c->out[0].dtype, m * a->rows + r);
        total /= (double)a->rows_seen;
        inverse[m] = 1 / (total > a->eps ? total : a->eps);
    }
}
