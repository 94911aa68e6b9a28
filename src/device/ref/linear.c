/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products: linear, linear_dx, linear_dw, linear_db, bias_add. */
#include "device/ref/ref.h"

/*
 * x is [m][k], the weight [k][f] ([f][k] with trans), the result [m][f]; each may span several
 * dims.
 */
struct matrix {
    int64_t m, k, f;
    int trans;
};
static struct matrix matrix_of(const struct ku_call *c, const struct ku_view *x, int x_dims,
                               const struct ku_view *y)
{
    int lead = x->shape.ndim - x_dims;
    struct matrix s = {.m = ku_ref_extent(x, 0, lead), .trans = c->attr->trans != 0};
    int64_t inner = ku_ref_extent(x, lead, x->shape.ndim);
    int64_t outer = ku_ref_extent(y, lead, y->shape.ndim);
    int is_dx = c->op == KU_OP_linear_dx;
    s.k = is_dx ? outer : inner;
    s.f = is_dx ? inner : outer;
    return s;
}
static int64_t weight_at(const struct matrix *s, int64_t k, int64_t f)
{
    return s->trans ? f * s->k + k : k * s->f + f;
}

static struct ku_slices slices_of(const struct ku_call *c)
{
    struct ku_slices s;
    const int status = ku_slices_of(c->op, c->attr, &c->in[1].shape, &s);
    KU_ASSERT(status == KUMI_OK); /* check() of ref.c */
    return s;
}

/* Operands of one sum: n elements of x and of w from x_at and w_at on, x_step and w_step apart. */
struct factors {
    const struct ku_view *x, *w;
    int64_t x_at, x_step, w_at, w_step, n;
};
/* Adds the products of elements [from, to) to sum, in order. */
static double add_products(double sum, const struct factors *of, int64_t from, int64_t to)
{
    const struct factors f = *of;
    if (f.x->dtype == KUMI_F32 && f.w->dtype == KUMI_F32) { /* no look at dtypes in the loop */
        const float *x = (const float *)f.x->data + f.x_at, *w = (const float *)f.w->data + f.w_at;
        for (int64_t i = from; i < to; i++)
            sum += (double)x[i * f.x_step] * (double)w[i * f.w_step];
        return sum;
    }
    for (int64_t i = from; i < to; i++)
        sum += ku_ref_get(f.x, f.x_at + i * f.x_step) * ku_ref_get(f.w, f.w_at + i * f.w_step);
    return sum;
}
static double contract(const struct factors *f, const struct ku_slices *s, enum kumi_dtype dtype)
{
    struct ku_ref_tree tree = {.dtype = dtype == KUMI_F64 ? KUMI_F64 : KUMI_F32, .n_slices = s->n};
    double sum = 0;
    if (s->n == 0)
        return add_products(0, f, 0, f->n);
    for (int64_t slice = 0; slice < s->n; slice++, sum = 0) {
        for (int64_t o = 0, i; o < s->outer; o++) {
            i = (o * s->n + slice) * s->run;
            sum = add_products(sum, f, i, i + s->run);
        }
        ku_ref_tree_add(&tree, sum);
    }
    return tree.node[0];
}

/*
 * linear: z[m,f] = round(sum_k x[m,k] w[k,f] + bias[f]); y = z, or with act y = round(act(z)). act
 * takes the rounded z, so that fusing the activation changes no bit. The second output is z.
 */
void ku_ref_linear(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_view *x = &c->in[0], *w = &c->in[1], *y = &c->out[0];
    const struct ku_view *z = c->n_out > 1 ? &c->out[1] : y;
    const struct ku_slices slices = slices_of(c);
    struct matrix s = matrix_of(c, x, (int)c->attr->contract, y);
    for (int64_t m = 0; m < s.m; m++)
        for (int64_t f = 0; f < s.f; f++) {
            const struct factors of = {x,  w, m * s.k, 1, weight_at(&s, 0, f), s.trans ? 1 : s.f,
                                       s.k};
            double sum = contract(&of, &slices, y->dtype);
            if (c->n_in > 2)
                sum += ku_ref_get(&c->in[2], f);
            ku_ref_put(z, m * s.f + f, sum);
            if (z != y || c->attr->act != KU_ACT_NONE)
                ku_ref_put(y, m * s.f + f,
                           ku_ref_activate((int)c->attr->act, ku_ref_get(z, m * s.f + f)));
            ku_ref_worked(poll, s.k);
        }
}

/* bias_add: y[m,f] = round(x[m,f] + bias[f]) */
void ku_ref_bias_add(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const int64_t n = ku_ref_count(&c->in[0]);
    const int64_t width = c->n_in > 1 ? ku_ref_count(&c->in[1]) : 1;
    for (int64_t i = 0; i < n; i++)
        ku_ref_put(&c->out[0], i,
                   ku_ref_get(&c->in[0], i) + (c->n_in > 1 ? ku_ref_get(&c->in[1], i % width) : 0));
    ku_ref_worked(poll, n);
}

/* linear_dx: dx[m,k] = sum_f dy[m,f] w[k,f] */
void ku_ref_linear_dx(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_view *dy = &c->in[0], *w = &c->in[1];
    struct matrix s = matrix_of(c, dy, (int)c->attr->outs, &c->out[0]);
    const struct ku_slices slices = slices_of(c);
    for (int64_t m = 0; m < s.m; m++)
        for (int64_t k = 0; k < s.k; k++) {
            const struct factors of = {dy, w, m * s.f, 1, weight_at(&s, k, 0), s.trans ? s.k : 1,
                                       s.f};
            ku_ref_put(&c->out[0], m * s.k + k, contract(&of, &slices, c->out[0].dtype));
            ku_ref_worked(poll, s.f);
        }
}

/* linear_dw: dw[k,f] = sum_m x[m,k] dy[m,f], in the weight's order of dims */
void ku_ref_linear_dw(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_view *x = &c->in[0], *dy = &c->in[1];
    struct matrix s = matrix_of(c, x, (int)c->attr->contract, dy);
    for (int64_t k = 0; k < s.k; k++)
        for (int64_t f = 0; f < s.f; f++) {
            const struct factors of = {x, dy, k, s.k, f, s.f, s.m};
            ku_ref_result(c, 0, weight_at(&s, k, f), add_products(0, &of, 0, s.m));
            ku_ref_worked(poll, s.m);
        }
}

/* linear_db: db[f] = sum_m dy[m,f] */
static double adjoint_at(const struct ku_call *c, int64_t m, int64_t f)
{
    const struct ku_view *dy = &c->in[0];
    const int64_t n_f = ku_ref_extent(dy, dy->shape.ndim - (int)c->attr->outs, dy->shape.ndim);
    return ku_ref_get(dy, m * n_f + f);
}
void ku_ref_linear_db(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_view *dy = &c->in[0];
    int lead = dy->shape.ndim - (int)c->attr->outs;
    int64_t n_m = ku_ref_extent(dy, 0, lead), n_f = ku_ref_extent(dy, lead, dy->shape.ndim);
    for (int64_t f = 0; f < n_f; f++) {
        ku_ref_result(c, 0, f, ku_ref_sum_rows(c, n_m, f, adjoint_at));
        ku_ref_worked(poll, n_m);
    }
}
