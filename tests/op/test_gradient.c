/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor op device */
/*
 * The gradient templates of the op table against central differences, in f64 on ref. With
 * L = sum of adjoint times result over the results that the template names, D(h) = (L(x + h) - L(x
 * - h)) / 2h is off by a h^2 + b h^4; (4 D(h) - D(2h)) / 3 by a term in h^4 alone, of which |D(h) -
 * D(2h)| / 16 is a bound with room, and by what rounding does to L, divided by h.
 */
#include "op/check.h"

static const double STEP = 0x1p-10;

/* L, and how far rounding may have moved it. */
static long double loss_of(const struct op_device *ref, const struct op_call *c,
                           const struct ku_view *adjoint, unsigned named, double *off)
{
    struct expectation x = expect_make(ref, c);
    long double loss = 0;
    *off = 0;
    for (int o = 0; o < c->n_out; o++) {
        const struct ku_view *v = &x.want.out[o];
        if (!(named >> o & 1))
            continue;
        if (v->dtype == KUMI_I64) { /* an exact sum */
            struct ku_exact sum;
            memcpy(&sum, v->data, sizeof sum);
            loss += (long double)at(&adjoint[o], 0) * (long double)ku_exact_round(&sum);
            *off += 0x1p-53 * fabs(at(&adjoint[o], 0) * ku_exact_round(&sum));
            continue;
        }
        for (int64_t i = 0; i < count_of(v); i++) {
            double weight = at(&adjoint[o], i);
            loss += (long double)weight * (long double)at(v, i);
            *off += fabs(weight) * ((x.e[o] ? x.e[o][i] : 0) + 0x1p-53 * fabs(at(v, i)));
        }
    }
    expect_fini(&x);
    return loss;
}

static double difference(const struct op_device *ref, struct op_call *c,
                         const struct ku_view *adjoint, unsigned named, double *x, double h,
                         double *off)
{
    double before = *x, off_up, off_down;
    *x = before + h;
    call_follow(c);
    long double up = loss_of(ref, c, adjoint, named, &off_up);
    *x = before - h;
    call_follow(c);
    long double down = loss_of(ref, c, adjoint, named, &off_down);
    *x = before;
    call_follow(c);
    *off = (off_up + off_down) / (2 * h);
    return (double)((up - down) / (2 * (long double)h));
}

/* Results that the template reads adjoints of. */
static unsigned named_adjoints(const char *grad)
{
    unsigned named = 0;
    for (const char *p = grad; *p; p++)
        if (p[0] == 'd' && isdigit((unsigned char)p[1]) && strchr("=(,", p[-1]))
            named |= 1u << (p[1] - '0');
    return named;
}

/* The gradient of input k as the template gives it, against differences for every element. */
static void check_input(const struct op_device *ref, struct op_call *c,
                        const struct ku_view *adjoint, unsigned named, int k,
                        const struct ku_view *grad)
{
    int64_t n = count_of(&c->in[k]);
    double *x = c->in[k].data, most_off = 0, greatest = 1;
    double *extrapolated = ku_calloc((size_t)n, sizeof *extrapolated);
    assert_non_null(extrapolated);
    assert_int_equal(count_of(grad), n);
    for (int64_t i = 0; i < n; i++) {
        double off1, off2;
        double d1 = difference(ref, c, adjoint, named, &x[i], STEP, &off1);
        double d2 = difference(ref, c, adjoint, named, &x[i], 2 * STEP, &off2);
        extrapolated[i] = (4 * d1 - d2) / 3;
        most_off = fmax(most_off, fabs(d1 - d2) / 16 + 2 * (off1 + off2));
        greatest = fmax(greatest, fabs(at(grad, i)));
    }
    if (!(most_off <= 1e-5 * greatest)) /* data and adjoints are about 1 */
        fail_msg("%s: input %d: differences are good to %.3g only, gradients are up to %.3g",
                 c->text, k, most_off, greatest);
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(extrapolated[i] - at(grad, i)) <= most_off))
            fail_msg("%s: input %d, element %lld: gradient %.12g, difference %.12g within %.3g",
                     c->text, k, (long long)i, at(grad, i), extrapolated[i], most_off);
    ku_free(extrapolated);
}

static void check_gradient(const struct op_device *ref, struct op_call *c)
{
    const char *grad = ku_ops[c->op].grad;
    struct op_result saved = call_run(ref, c, 0);
    struct ku_view adjoint[KU_MAX_OUT];
    struct op_statement s;
    for (int o = 0; o < c->n_out; o++)
        adjoint[o] = adjoint_make(c, o);
    struct op_result before = {0};
    for (const char *p = grad; (p = statement_parse(p, c, &saved, adjoint, &before, &s));) {
        struct op_result r = {0};
        if (s.passed < 0 && statement_is_wanted(&s, c))
            r = call_run(ref, &s.call, 0);
        for (int t = 0; t < s.n_targets && statement_is_wanted(&s, c); t++)
            check_input(ref, c, adjoint, named_adjoints(grad), s.target[t],
                        s.passed < 0 ? &r.out[t] : &adjoint[s.passed]);
        result_fini(&r);
        call_fini(&s.call);
    }
    for (int o = 0; o < c->n_out; o++)
        ku_free(adjoint[o].data);
    result_fini(&saved);
}

/* Differences cost a forward per element: small rows. An epilogue is fused after differentiation.
 */
static int is_for_gradient(const struct op_call *c)
{
    double work = 0;
    for (int i = 0; i < c->n_in; i++) {
        work += (double)count_of(&c->in[i]);
        for (int64_t k = 0; k < count_of(&c->in[i]); k++)
            if (!isfinite(at(&c->in[i], k)))
                return 0;
    }
    int is_fused = c->attr.act != KU_ACT_NONE || (c->op == KU_OP_batch_norm && c->n_in > 5);
    return work < 700 && !(is_fused && c->op != KU_OP_act);
}

static void test_templates(void **state)
{
    unsigned char is_covered[KU_N_OPS] = {0};
    struct op_device ref = ref_device();
    (void)state;
    for (int i = 0; i < N_OP_ROWS; i++) {
        struct op_call c;
        call_parse(&op_table[i], KUMI_F64, &c);
        if (ku_ops[c.op].grad[0] != '\0' && is_for_gradient(&c)) {
            struct ku_attrs attr = c.attr;
            if (c.attr.dtype >= 0) /* a difference needs a result as fine as its step */
                c.attr.dtype = KUMI_F64, c.out[0].dtype = KUMI_F64;
            check_gradient(&ref, &c);
            c.attr = attr;
            is_covered[c.op] = 1;
        }
        call_fini(&c);
    }
    for (int op = 1; op < KU_N_OPS; op++)
        if (ku_ops[op].grad[0] != '\0' && !is_covered[op])
            fail_msg("op %s: its gradient has no case small enough in tests/op/table.h",
                     ku_ops[op].name);
    device_close(&ref);
}

static void test_named_adjoints(void **state)
{
    (void)state;
    assert_int_equal(named_adjoints("g0=layer_norm_dx(d0,i0,i1,o1,o2); g1=x(d1)"), 3);
    assert_int_equal(named_adjoints("g0=d0; g1=d0"), 1);
    assert_int_equal(named_adjoints("g0=embedding_dw(i1,d0)"), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_templates),
        cmocka_unit_test(test_named_adjoints),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
