/* SPDX-License-Identifier: Apache-2.0 */
/* Adafactor: included once per instruction set behind update_body.h (isa_*.c). A run of elements of
 * one row, whose variances are by * var[i]. */

INLINE vf factored(const struct ku_factored *f, vf g, vf var)
{
    vf v = f->by * var, least = splat(f->least);
    return g * f->scale / sqrt_f(select_f(v > least, v, least));
}
static void factor_norms(const struct ku_factored *f, const float *p, const float *g,
                         const float *var, int64_t n, double sum[2])
{
    struct squares p2 = {0}, u2 = {0};
    FOR_VECTORS(n, {
        add_squares(&p2, LOAD(KUMI_F32, p));
        add_squares(&u2, factored(f, LOAD(KUMI_F32, g), LOAD(KUMI_F32, var)));
    });
    sum[0] += total_squares(&p2);
    sum[1] += total_squares(&u2);
}
static void factor_apply(const struct ku_factored *f, float *p, const float *g, const float *var,
                         int64_t n)
{
    FOR_VECTORS(n, {
        vf move = f->rate * factored(f, LOAD(KUMI_F32, g), LOAD(KUMI_F32, var));
        STORE(KUMI_F32, p, LOAD(KUMI_F32, p) * f->keep - move);
    });
}
static void factor_move(float *var, const float *g, float scale, float w, int64_t n)
{
    FOR_VECTORS(n, {
        vf v = LOAD(KUMI_F32, var), x = LOAD(KUMI_F32, g) * scale;
        STORE(KUMI_F32, var, v + w * (x * x - v));
    });
}
