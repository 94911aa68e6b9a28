/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_OP_CHECK_H
#define TESTS_OP_CHECK_H

#include "op/slices.h"
#include "op/bound.h"
#include "op/bound_conv.h"
#include "op/template.h"
#include "sample.h"

/* What a call must give on a device. */
struct expectation {
    struct op_result want; /* the truth in f64 with `e` about it; or, e NULL, the bits */
    double *e[KU_MAX_OUT];
};

static inline struct op_device ref_device(void)
{
    return device_open(&ku_device_ref, KU_ISA_BASE, 1);
}

static inline bound_fn *bound_for(int op)
{
    bound_fn *fn = bound_of_conv(op);
    return fn ? fn : bound_of(op);
}

static inline struct expectation expect_make(const struct op_device *d, const struct op_call *c)
{
    struct op_device ref = ref_device();
    struct expectation x = {.want = {0}};
    bound_fn *fn = bound_for(c->op);
    if (fn == NULL) {
        x.want = call_run(&ref, c, 0);
        return x;
    }
    struct op_call wide = call_widen(c);
    x.want = call_run(&ref, &wide, 0);
    for (int o = 0; o < c->n_out; o++) {
        x.e[o] = ku_calloc((size_t)count_of(&c->out[o]), sizeof *x.e[o]);
        assert_non_null(x.e[o]);
    }
    struct bound b = {c, &wide, &x.want, d->eps, {x.e[0], x.e[1], x.e[2], x.e[3], x.e[4]}};
    fn(&b);
    call_fini(&wide);
    return x;
}
static inline void expect_fini(struct expectation *x)
{
    for (int o = 0; o < KU_MAX_OUT; o++)
        ku_free(x->e[o]);
    result_fini(&x->want);
}

/* Exact sums of a view: as many as it has room for if that is all it has, else one, which plain
 * words follow. */
static inline int64_t n_sums(const struct ku_view *v)
{
    int64_t n = v->dtype == KUMI_I64 ? count_of(v) / KU_EXACT_WORDS : 0;
    return n > 1 && count_of(v) % KU_EXACT_WORDS != 0 ? 1 : n;
}
static inline struct ku_exact sum_at(const struct ku_view *v, int64_t i)
{
    struct ku_exact sum;
    memcpy(&sum, (const int64_t *)v->data + i * KU_EXACT_WORDS, sizeof sum);
    return sum;
}
/* An exact sum has many forms until it is normalised. */
static inline void normalize(struct ku_view *v)
{
    for (int64_t i = 0; i < n_sums(v); i++) {
        struct ku_exact sum = sum_at(v, i);
        ku_exact_normalize(&sum);
        memcpy((int64_t *)v->data + i * KU_EXACT_WORDS, &sum, sizeof sum);
    }
}

static inline void expect_bits(const char *who, const char *what, const struct op_result *got,
                               const struct op_result *want)
{
    for (int o = 0; o < want->n; o++) {
        struct ku_view a = got->out[o], b = want->out[o];
        size_t bytes = kumi_dtype_bytes(a.dtype);
        assert_int_equal(a.dtype, b.dtype);
        assert_int_equal(count_of(&a), count_of(&b));
        normalize(&a);
        normalize(&b);
        for (int64_t i = 0; i < count_of(&a); i++) {
            const char *x = (const char *)a.data + (size_t)i * bytes;
            const char *y = (const char *)b.data + (size_t)i * bytes;
            if (memcmp(x, y, bytes) != 0 && !(isnan(at(&a, i)) && isnan(at(&b, i))))
                fail_msg("%s: %s: output %d, element %lld: %.17g, expected the bits of %.17g", who,
                         what, o, (long long)i, at(&a, i), at(&b, i));
        }
    }
}

/* `more`: what parts and accumulators lose beside the expectation's e. */
static inline void expect_near(const char *who, const char *what, const struct expectation *x,
                               int o, int64_t i, double got, double more, double unit)
{
    double want = at(&x->want.out[o], i), e = x->e[o][i];
    double bound = e + unit * (fabs(want) + e) + more;
    if (isnan(want) ? isnan(got) : got == want || fabs(got - want) <= bound)
        return;
    fail_msg("%s: %s: output %d, element %lld: %.17g, expected %.17g within %.3g", who, what, o,
             (long long)i, got, want, bound);
}

static inline void expect_result(const struct op_device *d, const char *what,
                                 const struct expectation *x, const struct op_call *c,
                                 const struct op_result *got)
{
    if (bound_for(c->op) == NULL) {
        expect_bits(d->name, what, got, &x->want);
        return;
    }
    for (int o = 0; o < got->n; o++) {
        const struct ku_view *v = &got->out[o];
        double unit = unit_of(v->dtype) + (c->accumulate ? d->eps : 0);
        for (int64_t i = 0; i < n_sums(v); i++) {
            struct ku_exact is = sum_at(v, i), want = sum_at(&x->want.out[o], i);
            double off = fabs(ku_exact_round(&is) - ku_exact_round(&want));
            if (!(off <= x->e[o][i]))
                fail_msg("%s: %s: output %d, sum %lld: off by %.3g, not within %.3g", d->name, what,
                         o, (long long)i, off, x->e[o][i]);
        }
        if (v->dtype == KUMI_I64)
            continue;
        for (int64_t i = 0; i < count_of(v); i++) {
            double before = c->accumulate ? fabs(at(&c->out[o], i)) : 0;
            expect_near(d->name, what, x, o, i, at(v, i), 2 * d->eps * before + least_of(v->dtype),
                        unit);
        }
    }
}

/* -- forms of a call ------------------------------------------------------------------------------
 */

/* The call on results that hold something; 0: the op does not accumulate. Free its results. */
static inline int accumulating(const struct op_call *plain, struct op_call *out)
{
    struct op_call c = *plain;
    if (!(ku_ops[c.op].traits & KU_OP_ACCUM))
        return 0;
    c.accumulate = 1;
    for (int o = 0; o < c.n_out; o++) {
        c.out[o] = view_make(plain->out[o].dtype, &plain->out[o].shape);
        char kind = c.out[o].dtype != KUMI_I64 ? 'x' : count_of(&c.out[o]) > 1 ? 'e' : 'c';
        fill_data(&c.out[o], kind, 0, 300);
    }
    *out = c;
    return 1;
}

static inline void check_accumulate(const struct op_device *d, const struct expectation *x,
                                    const struct op_call *c)
{
    char what[320];
    struct op_result r = call_run(d, c, 0);
    snprintf(what, sizeof what, "%s, accumulated", c->text);
    expect_result(d, what, x, c, &r);
    result_fini(&r);
}

static inline void check_in_place(const struct op_device *d, const struct op_call *c,
                                  const struct op_result *plain)
{
    char what[320];
    int pair = ku_op_pair(ku_ops[c->op].alias, 0);
    if (pair < 0 || bytes_of(&c->in[pair]) != bytes_of(&c->out[0]))
        return;
    struct op_result r = call_run(d, c, 1);
    snprintf(what, sizeof what, "%s, in place", c->text);
    expect_bits(d->name, what, &r, plain);
    result_fini(&r);
}

/* The device's entry for collectives: the bits of op sumsq. */
static inline void check_add_squares(const struct op_device *d, const struct op_call *c,
                                     const struct op_result *plain)
{
    char what[320];
    if (c->op != KU_OP_sumsq || c->attr.chunk)
        return;
    struct ku_view x = view_flat(&c->in[0], 0, count_of(&c->in[0]));
    struct op_result r = {1, {view_clone(&c->in[1])}};
    d->ops->add_squares(d->dev, &x, r.out[0].data, KU_EXACT_WORDS + c->attr.index);
    snprintf(what, sizeof what, "%s, by add_squares", c->text);
    expect_bits(d->name, what, &r, plain);
    result_fini(&r);
    ku_free(x.data);
}

/* The dim that ranks may divide without a change of bits (op/slices.h); 0: none. */
static inline char sliced_dim(const struct op_call *c)
{
    const struct ku_shape *s = c->op == KU_OP_linear_dw ? &c->out[0].shape : &c->in[1].shape;
    struct ku_slices rows = {0};
    if (c->op == KU_OP_linear_db || c->op == KU_OP_layer_norm_dgb || c->op == KU_OP_rms_norm_dg)
        assert_int_equal(ku_slices_of_tokens(c->op, &c->attr, &c->in[0].shape, &rows), 0);
    if (rows.n)
        return 't';
    return c->attr.slices == 0 || c->op == KU_OP_linear_db ? 0
           : c->op == KU_OP_xent_sums                      ? 'v'
           : c->op == KU_OP_linear || c->op == KU_OP_linear_dx || c->op == KU_OP_linear_dw
               ? s->dim[c->attr.slice_dim].name
               : 0;
}

/* One result of two parts put together: pasted along the cut, or combined. */
static inline void check_joined(const struct op_device *d, const char *what,
                                const struct expectation *x, const struct op_call *c,
                                const struct op_result part[2], int o, char letter,
                                const struct op_result *plain)
{
    int dim = ku_shape_find(&c->out[o].shape, letter);
    const bool is_exact = letter == sliced_dim(c) && kumi_dtype_bytes(c->out[o].dtype) > 2;
    struct ku_view whole = view_make(c->out[o].dtype, &c->out[o].shape);
    struct op_result joined = {1, {whole}}, expected = {1, {plain->out[o]}};
    if (dim >= 0) {
        int64_t n = part[0].out[o].shape.dim[dim].count;
        copy_part(&whole, &part[0].out[o], dim, 0, n, 1);
        copy_part(&whole, &part[1].out[o], dim, n, part[1].out[o].shape.dim[dim].count, 1);
        /* samples never feel each other, nor do heads, columns and classes that ranks divide; f is
         * the channels of batch norm, which they do not */
        const bool is_norm = strncmp(ku_ops[c->op].name, "batch_norm", 10) == 0;
        if (strchr(is_norm ? "n" : "nhfv", letter) || x->e[o] == NULL)
            expect_bits(d->name, what, &joined, &expected);
    }
    for (int64_t i = 0; i < count_of(&whole) && dim < 0; i++) {
        double a = at(&part[0].out[o], i), b = at(&part[1].out[o], i);
        double sum = c->op == KU_OP_max_all || c->op == KU_OP_xent_max ? (a > b ? a : b) : a + b;
        if (x->e[o])
            expect_near(d->name, what, x, o, i, sum, unit_of(whole.dtype) * (fabs(a) + fabs(b)),
                        unit_of(whole.dtype));
        else if (whole.dtype == KUMI_I64)
            ((int64_t *)whole.data)[i] =
                ((int64_t *)part[0].out[o].data)[i] + ((int64_t *)part[1].out[o].data)[i];
        else
            ku_store_f64(whole.data, whole.dtype, i, sum);
        if (is_exact)
            ku_store_f64(whole.data, whole.dtype, i, sum);
    }
    if (dim < 0 && (x->e[o] == NULL || is_exact))
        expect_bits(d->name, what, &joined, &expected);
    for (int64_t i = 0; i < count_of(&whole) && dim >= 0 && x->e[o]; i++)
        expect_near(d->name, what, x, o, i, at(&whole, i), least_of(whole.dtype),
                    unit_of(whole.dtype));
    ku_free(whole.data);
}

/* Whether the op's rule lets a cut along `letter` through. */
static inline int is_cuttable(const struct op_call *c, char letter)
{
    const struct ku_op_info *info = &ku_ops[c->op];
    int is_contracted = 0;
    for (int o = 0; o < c->n_out; o++) {
        int has = ku_shape_find(&c->out[o].shape, letter) >= 0;
        const char *rule = has ? info->map : info->sum;
        is_contracted |= !has;
        if (strcmp(rule, "*") != 0 && strchr(rule, letter) == NULL)
            return 0;
    }
    /* canonical blocks are of whole tensors; a bias or activation belongs behind the sum */
    if (info->traits & KU_OP_CHUNKS)
        return 0;
    return !(c->op == KU_OP_linear && is_contracted && (c->n_in > 2 || c->attr.act));
}

static inline void check_cuts(const struct op_device *d, const struct op_call *c,
                              const struct expectation *x, const struct op_result *plain)
{
    char letters[128] = "", what[320];
    for (int i = 0; i < c->n_in; i++)
        for (int k = 0; k < c->in[i].shape.ndim; k++)
            if (strchr(letters, c->in[i].shape.dim[k].name) == NULL)
                strncat(letters, &c->in[i].shape.dim[k].name, 1);
    for (const char *l = letters; *l; l++) {
        int64_t count = 0;
        for (int i = 0; i < c->n_in && count == 0; i++) {
            int dim = ku_shape_find(&c->in[i].shape, *l);
            count = dim >= 0 ? c->in[i].shape.dim[dim].count : 0;
        }
        const bool is_sliced = *l == sliced_dim(c);
        if (*l == 'w' || count < 2 || !is_cuttable(c, *l) || (is_sliced && c->attr.slices < 2))
            continue;
        int64_t half = (count + 1) / 2, slices[2] = {1};
        while (is_sliced && 2 * slices[0] < c->attr.slices)
            slices[0] *= 2;
        slices[1] = c->attr.slices - slices[0]; /* the two last nodes of the tree */
        if (is_sliced)
            half = count / c->attr.slices * slices[0];
        struct op_call part[2] = {call_slice(c, *l, 0, half),
                                  call_slice(c, *l, half, count - half)};
        for (int p = 0; p < 2 && is_sliced; p++)
            part[p].attr.slices = slices[p];
        struct op_result r[2] = {call_run(d, &part[0], 0), call_run(d, &part[1], 0)};
        snprintf(what, sizeof what, "%s, cut along %c", c->text, *l);
        for (int o = 0; o < c->n_out; o++)
            check_joined(d, what, x, c, r, o, *l, plain);
        for (int p = 0; p < 2; p++) {
            result_fini(&r[p]);
            call_fini(&part[p]);
        }
    }
}

/* In two runs of canonical blocks: the bits of the whole. */
static inline void check_blocks(const struct op_device *d, const struct op_call *c,
                                const struct op_result *plain)
{
    int64_t count = count_of(&c->in[0]), begin = count / 2 / KU_BLOCK_COUNT * KU_BLOCK_COUNT;
    char what[320];
    if (!(ku_ops[c->op].traits & KU_OP_ELEMENT) || begin == 0)
        return;
    struct op_call part[2] = {call_flat(c, 0, begin), call_flat(c, begin, count - begin)};
    struct op_result r[2] = {call_run(d, &part[0], 0), {0}};
    for (int o = 0; o < c->n_out; o++) {
        int chained = ku_op_pair(ku_ops[c->op].inout, o);
        if (ku_shape_is_equal(&c->out[o].shape, &c->in[0].shape))
            continue;
        ku_free(part[1].in[chained].data); /* sumsq: stats go through */
        part[1].in[chained] = view_clone(&r[0].out[o]);
    }
    r[1] = call_run(d, &part[1], 0);
    snprintf(what, sizeof what, "%s, in blocks", c->text);
    for (int o = 0; o < c->n_out; o++) {
        struct ku_view whole = view_make(c->out[o].dtype, &c->out[o].shape);
        size_t bytes = bytes_of(&r[0].out[o]);
        int is_cut = ku_shape_is_equal(&c->out[o].shape, &c->in[0].shape);
        memcpy(whole.data, is_cut ? r[0].out[o].data : r[1].out[o].data, bytes);
        if (is_cut)
            memcpy((char *)whole.data + bytes, r[1].out[o].data, bytes_of(&r[1].out[o]));
        expect_bits(d->name, what, &(struct op_result){1, {whole}},
                    &(struct op_result){1, {plain->out[o]}});
        ku_free(whole.data);
    }
    for (int p = 0; p < 2; p++) {
        result_fini(&r[p]);
        call_fini(&part[p]);
    }
}

/* One device with 1, 2, ... threads: bits are the same. */
struct op_threads {
    int n;
    struct op_device dev[3];
};
/* What is checked: devices that compute in one precision, so that a truth serves them all. */
struct op_devices {
    int n;
    struct op_threads of[5];
    unsigned char is_covered[KU_N_OPS];
};

/* One call in all its forms on the first device, and plainly with other thread counts. */
static inline void check_forms(const struct op_threads *t, const struct expectation *x,
                               const struct op_call *c)
{
    const struct op_device *d = &t->dev[0];
    struct op_result plain = call_run(d, c, 0);
    expect_result(d, c->text, x, c, &plain);
    for (int i = 1; i < t->n; i++) {
        struct op_result other = call_run(&t->dev[i], c, 0);
        expect_bits(t->dev[i].name, c->text, &other, &plain);
        result_fini(&other);
    }
    check_in_place(d, c, &plain);
    check_add_squares(d, c, &plain);
    check_cuts(d, c, x, &plain);
    check_blocks(d, c, &plain);
    result_fini(&plain);
}

static inline void check_call(struct op_devices *devs, const struct op_call *c)
{
    struct expectation x = expect_make(&devs->of[0].dev[0], c);
    struct op_call more;
    devs->is_covered[c->op] = 1;
    for (int i = 0; i < devs->n; i++)
        check_forms(&devs->of[i], &x, c);
    expect_fini(&x);
    if (!accumulating(c, &more))
        return;
    x = expect_make(&devs->of[0].dev[0], &more);
    for (int i = 0; i < devs->n; i++)
        check_accumulate(&devs->of[i].dev[0], &x, &more);
    expect_fini(&x);
    for (int o = 0; o < more.n_out; o++)
        ku_free(more.out[o].data);
}

/* Gradients of parameters of 16 bits: what adds to them writes them in that dtype. */
static inline void check_narrow(struct op_devices *devs, struct op_call *c, enum kumi_dtype x)
{
    if (!(ku_ops[c->op].traits & KU_OP_ACCUM) || !ku_dtype_is_float(c->out[0].dtype) ||
        kumi_dtype_bytes(x) >= kumi_dtype_bytes(KUMI_F32))
        return;
    c->attr.dtype = x;
    call_infer(c);
    check_call(devs, c);
}

/* A row: its call, and the calls of its gradient, on ref's saved results. */
static inline void check_row(struct op_devices *devs, const struct op_row *row, enum kumi_dtype x)
{
    struct op_device ref = ref_device();
    struct op_call c;
    struct op_statement s;
    struct ku_view adjoint[KU_MAX_OUT];
    call_parse(row, x, &c);
    check_call(devs, &c);
    struct op_result saved = call_run(&ref, &c, 0);
    for (int o = 0; o < c.n_out; o++)
        adjoint[o] = adjoint_make(&c, o);
    struct op_result before = {0};
    for (const char *p = ku_ops[c.op].grad;
         (p = statement_parse(p, &c, &saved, adjoint, &before, &s));) {
        if (s.passed < 0 && statement_is_wanted(&s, &c)) {
            check_call(devs, &s.call);
            check_narrow(devs, &s.call, x);
        }
        call_fini(&s.call);
    }
    for (int o = 0; o < c.n_out; o++)
        ku_free(adjoint[o].data);
    result_fini(&saved);
    call_fini(&c);
}

/*
 * Every row in at least one dtype, and a third of the other pairs; every op must have been run.
 * Of the ref device alone, whose loops have no blocks and no threads, every op in at least one
 * dtype, and a quarter of the pairs.
 */
static inline void check_table(struct op_devices *devs, const enum kumi_dtype *dtype, int n_dtypes)
{
    struct sample s = {.plain = devs->n > 1 ? 3 : 4, .address = 16};
    devs->is_covered[KU_OP_NONE] = devs->is_covered[KU_OP_convert] = 1;
    for (int i = 0; i < N_OP_ROWS; i++)
        for (int k = 0; k < n_dtypes; k++) {
            int t = (i + k) % n_dtypes;
            const int kind = devs->n > 1 ? i : ku_op_find(op_table[i].op);
            if (sample_takes(&s, i * n_dtypes + t, kind, -1))
                check_row(devs, &op_table[i], dtype[t]);
        }
    sample_end(&s, "rows in a dtype");
    for (int op = 0; op < KU_N_OPS; op++)
        if (!devs->is_covered[op])
            fail_msg("op %s has no case: add a row to tests/op/table.h", ku_ops[op].name);
}

#endif
