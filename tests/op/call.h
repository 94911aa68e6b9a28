/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_OP_CALL_H
#define TESTS_OP_CALL_H

#include <ctype.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/err.h"
#include "base/math/exact.h"
#include "base/mem.h"
#include "base/math/random.h"
#include "base/str.h"
#include "device/device.h"
#include "op/loss_scaler.h"
#include "op/table.h"
#include "tensor/dtype.h"

/* One op on concrete operands, made from a row of the table. Owns all data. */
struct op_call {
    char text[240]; /* for messages */
    int op, n_in, n_out, accumulate;
    char kind[KU_MAX_IN + 1]; /* of the operands of a row: m and v follow operand 0 */
    struct ku_attrs attr;
    uint32_t stream;
    struct ku_view in[KU_MAX_IN];
    struct ku_view out[KU_MAX_OUT]; /* data: what is there before, in the accumulate form */
};
struct op_result {
    int n;
    struct ku_view out[KU_MAX_OUT];
};
struct op_device {
    const struct ku_device_ops *ops;
    void *dev;
    double eps; /* half the distance of 1 to its neighbour, in the dtype it computes in */
    char name[32];
};

static inline int64_t count_of(const struct ku_view *v)
{
    return ku_shape_count(&v->shape);
}
static inline size_t bytes_of(const struct ku_view *v)
{
    return (size_t)count_of(v) * kumi_dtype_bytes(v->dtype);
}
static inline double at(const struct ku_view *v, int64_t i)
{
    return ku_load_f64(v->data, v->dtype, i);
}
static inline struct ku_view view_make(enum kumi_dtype dtype, const struct ku_shape *s)
{
    struct ku_view v = {.dtype = dtype, .shape = *s};
    for (int d = 0; d < s->ndim; d++)
        v.logical[d] = s->dim[d].count;
    v.data = ku_malloc(bytes_of(&v)); /* no byte more: ASan watches its ends */
    assert_non_null(v.data);
    memset(v.data, 0xff, bytes_of(&v)); /* garbage: NaN */
    return v;
}
static inline struct ku_view view_clone(const struct ku_view *v)
{
    struct ku_view copy = *v;
    copy.data = ku_malloc(bytes_of(v));
    assert_non_null(copy.data);
    memcpy(copy.data, v->data, bytes_of(v));
    return copy;
}
static inline void call_fini(struct op_call *c)
{
    for (int i = 0; i < c->n_in; i++)
        ku_free(c->in[i].data);
    for (int i = 0; i < c->n_out; i++)
        ku_free(c->out[i].data);
    memset(c, 0, sizeof *c);
}
static inline void result_fini(struct op_result *r)
{
    for (int i = 0; i < r->n; i++)
        ku_free(r->out[i].data);
    memset(r, 0, sizeof *r);
}

/* -- data ------------------------------------------------------------------------------------- */

/* Normal, but not so near to zero that a central difference crosses ReLU's kink; values that f32
 * and bf16 hold where those are wanted. */
static inline void fill_normal(struct ku_view *v, uint32_t stream, int is_positive)
{
    for (int64_t i = 0; i < count_of(v); i++) {
        float x = ku_random_normal(1234, 0, stream, (uint64_t)i);
        if (fabsf(x) < 0x1p-6f)
            x = 0x1p-6f;
        ku_store_f64(v->data, v->dtype, i, (double)(is_positive ? x * x : x));
    }
}
static inline void fill_real(struct ku_view *v, char kind, uint32_t stream)
{
    fill_normal(v, stream, kind == 'p' || kind == 'P');
    for (int64_t i = 0; i < count_of(v) && strchr("Py", kind); i++) {
        double x = at(v, i);
        ku_store_f64(v->data, v->dtype, i, kind == 'P' ? 1 + x : x / (2 + 2 * fabs(x)));
    }
}
static inline uint32_t draw(uint32_t stream, int64_t i, uint32_t limit)
{
    return ku_random_u32(99, 0, stream, (uint64_t)i) % limit;
}
static inline void fill_exact(struct ku_view *v, uint32_t stream)
{
    struct ku_exact sum;
    assert_true(count_of(v) >= KU_EXACT_WORDS);
    memset(v->data, 0, bytes_of(v));
    ku_exact_zero(&sum);
    for (uint64_t i = 0; i < 20; i++) /* positive: sums of squares and losses are */
        ku_exact_add(&sum, fabs((double)ku_random_normal(5, 0, stream, i)));
    memcpy(v->data, &sum, sizeof sum);
}
static inline void fill_report(struct ku_view *v, char kind)
{
    static const double scaler[KU_SCALER_WORDS] = {32768, 13, 9, 1, 3, 2}; /* 2 overflows of 13 */
    double *report = v->data;
    if (kind == 'L') {
        memcpy(v->data, scaler, sizeof scaler);
        return;
    }
    assert_int_equal(count_of(v), KU_REPORT_WORDS);
    memset(report, 0, bytes_of(v));
    report[KU_REPORT_LR] = 3e-3;
    report[KU_REPORT_NORM] = 100;
    report[KU_REPORT_APPLY] = kind != 'R';
    report[KU_REPORT_SCALE] = 0.37;
    report[KU_REPORT_UPDATE] = kind == 'u' ? 1 : 4;
}
static inline void fill_f64(struct ku_view *v)
{
    for (int64_t i = 0; i < count_of(v); i++)
        ku_store_f64(v->data, v->dtype, i, 0.25 + 0.5 * (double)i);
}
static inline void fill_bad(struct ku_view *v, char kind, uint32_t stream)
{
    const int64_t n = count_of(v);
    fill_normal(v, stream, 0);
    ku_store_f64(v->data, v->dtype, kind == 'b' ? n - 1 : n / 2, kind == 'h' ? -3e38 : (double)NAN);
    if (kind == 'b')
        ku_store_f64(v->data, v->dtype, 1, (double)INFINITY);
}
static inline void fill_data(struct ku_view *v, char kind, uint32_t limit, uint32_t stream)
{
    int64_t *word = v->data;
    int32_t *id = v->data;
    switch (kind) {
    case 'x':
    case 'f':
    case 'F':
    case 'm':
    case 'v':
    case 'p':
    case 'P':
    case 'y':
        fill_real(v, kind, stream);
        break;
    case 'q':
        for (int64_t i = 0; i < count_of(v); i++)
            ku_store_f64(v->data, v->dtype, i, (double)draw(stream, i, 4) - 1);
        break;
    case 'd':
        fill_f64(v);
        break;
    case 'E':
        for (int64_t i = 0; i < count_of(v); i += KU_EXACT_WORDS) {
            int64_t n = KU_EXACT_WORDS;
            struct ku_view one = {
                .data = word + i, .dtype = KUMI_I64, .shape = ku_shape_of("w", &n)};
            fill_exact(&one, stream + (uint32_t)i);
        }
        break;
    case 'b':
    case 'n':
    case 'h':
        fill_bad(v, kind, stream);
        break;
    case 'i':
    case 't':
        for (int64_t i = 0; i < count_of(v); i++) {
            id[i] = (int32_t)draw(stream, i, limit);
            if (kind == 't' && draw(stream + 1, i, 5) == 0)
                id[i] = draw(stream + 2, i, 2) ? -100 : -1;
        }
        break;
    case 'k':
        word[KU_CONTROL_STEP] = 7, word[KU_CONTROL_SEED] = INT64_C(0x123456789a), word[2] = 0;
        break;
    case 'w':
        for (int64_t i = 0; i < count_of(v); i++)
            word[i] = (int64_t)draw(stream, i, 1000) - 500;
        break;
    case 'e':
        fill_exact(v, stream);
        break;
    case 'c':
        word[0] = 11;
        break;
    case 's': /* [3, c]: 12 elements of mean 2 x and a variance above 3 */
        fill_normal(v, stream, 0);
        for (int64_t j = 0, n = count_of(v) / 3; j < n; j++) {
            double *sum = v->data, mean = 2 * sum[j];
            sum[j] = 12;
            sum[n + j] = 12 * mean;
            sum[2 * n + j] = 12 * (mean * mean + 3 + sum[2 * n + j] * sum[2 * n + j]);
        }
        break;
    default:
        fill_report(v, kind);
    }
}

/* -- rows ---------------------------------------------------------------------------------------
 */

static inline enum kumi_dtype dtype_of(char kind, enum kumi_dtype x)
{
    if (strchr("fpmvPyM", kind))
        return x == KUMI_F64 ? KUMI_F64 : KUMI_F32;
    if (kind == 'F')
        return KUMI_F32;
    if (strchr("it", kind))
        return KUMI_I32;
    return strchr("xbnhq", kind) ? x : strchr("kwecE", kind) ? KUMI_I64 : KUMI_F64;
}

/* "n3t5v70/61": letter, count, seen. A digit is a dim of that name and count (",3"), but 0
 * is a name. */
static inline struct ku_shape parse_shape(const char *p)
{
    struct ku_shape s = {0};
    while (*p && *p != ' ') {
        struct ku_dim *d = &s.dim[s.ndim];
        char *end;
        if (*p == ',') {
            p++;
            continue;
        }
        assert_in_range(s.ndim++, 0, KU_MAX_DIMS - 1);
        d->name = *p++;
        int is_named = !isdigit((unsigned char)d->name) || d->name == '0';
        d->count = is_named ? strtoll(p, &end, 10) : d->name - '0';
        if (is_named)
            p = end;
        d->seen = d->count;
        if (*p == '/') {
            d->seen = strtoll(p + 1, &end, 10);
            p = end;
        }
    }
    return s;
}

static inline void parse_attrs(const char *text, struct ku_attrs *a)
{
    char name[32], value[128];
    int used;
    *a = ku_attrs_default;
    for (; sscanf(text, " %31[^=]=%127s%n", name, value, &used) == 2; text += used)
        if (ku_attrs_set(a, name, value) < 0)
            fail_msg("%s", ku_err_get()->text);
}

/* Result types by inference, as the graph has them. */
static inline void call_infer(struct op_call *c)
{
    struct ku_type in[KU_MAX_IN], out[KU_MAX_OUT];
    for (int i = 0; i < c->n_in; i++)
        in[i] = (struct ku_type){c->in[i].dtype, c->in[i].shape};
    if (ku_op_infer(c->op, &c->attr, c->n_in, in, c->n_out, out) < 0)
        fail_msg("%s: %s", c->text, ku_err_get()->text);
    for (int i = 0; i < c->n_out; i++) {
        c->out[i] = view_make(out[i].dtype, &out[i].shape);
        ku_free(c->out[i].data);
        c->out[i].data = NULL;
    }
}

/* Batch statistics of operand 0, per channel: what kinds m and v hold. */
static inline void follow_rows(struct op_call *c, int i)
{
    const struct ku_view *x = &c->in[0];
    const struct ku_dim *v = &x->shape.dim[x->shape.ndim - 1];
    const int32_t *target = c->in[c->n_in - 1].data;
    for (int64_t r = 0; r < count_of(x) / v->count; r++) {
        double max = -1e300, sum = 0, all = 0;
        for (int64_t j = 0; j < v->seen; j++)
            max = fmax(max, at(x, r * v->count + j));
        for (int64_t j = 0; j < v->seen; j++) {
            sum += exp(at(x, r * v->count + j) - max);
            all += at(x, r * v->count + j);
        }
        if (c->kind[i] == 'M') {
            ku_store_f64(c->in[i].data, c->in[i].dtype, r, max);
            continue;
        }
        double *sums = (double *)c->in[i].data + 3 * r;
        const int has_own = target[r] >= 0 && target[r] < v->seen;
        sums[0] = sum, sums[2] = all;
        sums[1] = has_own ? at(x, r * v->count + target[r]) : 0;
    }
}
static inline void call_follow(struct op_call *c)
{
    for (int i = 1; i < c->n_in; i++)
        if (c->kind[i] == 'M' || c->kind[i] == 'S')
            follow_rows(c, i);
    const struct ku_view *x = &c->in[0];
    int64_t width = x->shape.ndim ? x->shape.dim[x->shape.ndim - 1].count : 1;
    for (int i = 0; i < c->n_in; i++)
        for (int64_t j = 0; (c->kind[i] == 'm' || c->kind[i] == 'v') && j < width; j++) {
            int64_t n = count_of(x) / width;
            double mean = 0, var = 0;
            for (int64_t r = 0; r < n; r++)
                mean += at(x, r * width + j) / (double)n;
            for (int64_t r = 0; r < n; r++)
                var += (at(x, r * width + j) - mean) * (at(x, r * width + j) - mean) / (double)n;
            ku_store_f64(c->in[i].data, c->in[i].dtype, j, c->kind[i] == 'm' ? mean : var);
        }
}

static inline void call_parse(const struct op_row *row, enum kumi_dtype x, struct op_call *c)
{
    memset(c, 0, sizeof *c);
    c->op = ku_op_find(row->op);
    assert_int_not_equal(c->op, KU_OP_NONE);
    c->n_out = row->n_out;
    c->stream = 42;
    snprintf(c->text, sizeof c->text, "%s %s (%s) x=%s", row->op, row->attrs, row->operands,
             kumi_dtype_name(x));
    parse_attrs(row->attrs, &c->attr);
    for (const char *p = row->operands; *p;) {
        char kind = *p++, *end;
        uint32_t limit = (uint32_t)strtoul(p, &end, 10);
        struct ku_shape s = parse_shape(kind == 'k' ? "w4" : end + 1); /* behind "<kind><limit>:" */
        c->kind[c->n_in] = kind;
        struct ku_view *v = &c->in[c->n_in++];
        *v = view_make(dtype_of(kind, x), &s);
        if (strchr("MS", kind) == NULL) /* call_follow */
            fill_data(v, kind, limit, (uint32_t)c->n_in * 16);
        p += strcspn(p, " ");
        p += *p == ' ';
    }
    call_follow(c);
    call_infer(c);
}

/* The same call with all floats f64, exactly widened: its result on ref is the truth. */
static inline struct ku_view widen(const struct ku_view *v)
{
    if (!ku_dtype_is_float(v->dtype))
        return view_clone(v);
    struct ku_view wide = view_make(KUMI_F64, &v->shape);
    memcpy(wide.start, v->start, sizeof wide.start);
    memcpy(wide.logical, v->logical, sizeof wide.logical);
    for (int64_t i = 0; i < count_of(v); i++)
        ((double *)wide.data)[i] = at(v, i);
    return wide;
}
static inline struct op_call call_widen(const struct op_call *c)
{
    struct op_call w = *c;
    w.attr.dtype = KUMI_F64;
    for (int i = 0; i < c->n_in; i++)
        w.in[i] = widen(&c->in[i]);
    for (int i = 0; i < c->n_out; i++)
        if (c->out[i].data)
            w.out[i] = widen(&c->out[i]);
        else if (ku_dtype_is_float(c->out[i].dtype))
            w.out[i].dtype = KUMI_F64;
    return w;
}

/* -- running
 * --------------------------------------------------------------------------------------- */

/* Results in buffers of their own, or in the operands' where the op must (inout) or may (alias). */
static inline struct op_result call_run(const struct op_device *d, const struct op_call *c,
                                        int in_place)
{
    struct ku_call k = {.op = c->op,
                        .n_in = c->n_in,
                        .n_out = c->n_out,
                        .accumulate = c->accumulate,
                        .attr = &c->attr,
                        .stream = c->stream};
    struct ku_op_case query = {c->op, c->n_in, c->n_out, c->accumulate, &c->attr, {{0}}, {{0}}};
    struct op_result r = {.n = c->n_out};
    struct ku_target_op answer;
    struct ku_kernel *kernel;
    for (int i = 0; i < c->n_in; i++) {
        k.in[i] = view_clone(&c->in[i]);
        query.in[i] = (struct ku_type){c->in[i].dtype, c->in[i].shape};
    }
    for (int o = 0; o < c->n_out; o++) {
        int pair = ku_op_pair(ku_ops[c->op].inout, o);
        if (pair < 0 && in_place)
            pair = ku_op_pair(ku_ops[c->op].alias, o);
        r.out[o] = c->out[o];
        if (pair >= 0)
            r.out[o].data = k.in[pair].data;
        else
            r.out[o] = c->out[o].data ? view_clone(&c->out[o])
                                      : view_make(c->out[o].dtype, &c->out[o].shape);
        memcpy(r.out[o].start, c->out[o].start, sizeof r.out[o].start);
        memcpy(r.out[o].logical, c->out[o].logical, sizeof r.out[o].logical);
        k.out[o] = r.out[o];
        query.out[o] = (struct ku_type){c->out[o].dtype, c->out[o].shape};
    }
    assert_int_equal(d->ops->query(d->dev, &query, &answer), KUMI_OK);
    k.workspace = ku_malloc_aligned(64, answer.workspace_bytes);
    assert_non_null(k.workspace);
    memset(k.workspace, 0xff, answer.workspace_bytes);
    if (d->ops->bind(d->dev, &k, &kernel) < 0)
        fail_msg("%s: %s: %s", d->name, c->text, ku_err_get()->text);
    assert_int_equal(d->ops->launch(d->dev, kernel, NULL, NULL), KUMI_OK);
    d->ops->unbind(d->dev, kernel);
    ku_free(k.workspace);
    for (int i = 0; i < c->n_in; i++) {
        int is_result = 0;
        for (int o = 0; o < c->n_out; o++)
            is_result |= r.out[o].data == k.in[i].data;
        if (!is_result && memcmp(k.in[i].data, c->in[i].data, bytes_of(&c->in[i])) != 0)
            fail_msg("%s: %s: wrote to input %d", d->name, c->text, i);
        if (!is_result)
            ku_free(k.in[i].data);
    }
    return r;
}

static inline struct op_device device_open(const struct ku_device_ops *ops, enum ku_isa isa,
                                           int n_threads)
{
    struct op_device d = {.ops = ops, .eps = ops == &ku_device_ref ? 0x1p-53 : 0x1p-24};
    struct ku_device_opts o = {.n_threads = n_threads, .isa = isa};
    snprintf(d.name, sizeof d.name, "%s(%s, %d threads)", ops->name, ku_cpu_isa_name(isa),
             n_threads);
    if (ops->open(&o, &d.dev) < 0)
        fail_msg("%s: %s", d.name, ku_err_get()->text);
    return d;
}
static inline void device_close(struct op_device *d)
{
    d->ops->close(d->dev);
}

/* -- parts
 * ------------------------------------------------------------------------------------------ */

static inline int64_t stride_behind(const struct ku_view *v, int dim)
{
    int64_t n = 1;
    for (int d = dim + 1; d < v->shape.ndim; d++)
        n *= v->shape.dim[d].count;
    return n;
}

/* Copies [from, from + n) of dim `dim` between a whole tensor and its part. */
static inline void copy_part(const struct ku_view *whole, const struct ku_view *part, int dim,
                             int64_t from, int64_t n, int is_paste)
{
    size_t inner = (size_t)stride_behind(whole, dim) * kumi_dtype_bytes(whole->dtype);
    int64_t n_whole = whole->shape.dim[dim].count, outer = 1;
    for (int d = 0; d < dim; d++)
        outer *= whole->shape.dim[d].count;
    for (int64_t i = 0; i < outer; i++) {
        char *a = (char *)whole->data + (size_t)(i * n_whole + from) * inner;
        char *b = (char *)part->data + (size_t)(i * n) * inner;
        if (is_paste)
            memcpy(a, b, (size_t)n * inner);
        else
            memcpy(b, a, (size_t)n * inner);
    }
}

/* The part of a tensor along the dim `letter`; the whole where it has none. */
static inline struct ku_view view_slice(const struct ku_view *v, char letter, int64_t from,
                                        int64_t n)
{
    int dim = ku_shape_find(&v->shape, letter);
    if (dim < 0)
        return v->data ? view_clone(v) : *v;
    struct ku_view part = *v;
    struct ku_dim *d = &part.shape.dim[dim];
    int64_t seen = d->seen - from;
    d->count = n;
    d->seen = seen < 0 ? 0 : seen < n ? seen : n;
    part.start[dim] = from;
    if (v->data) {
        part.data = ku_malloc(bytes_of(&part));
        assert_non_null(part.data);
        copy_part(v, &part, dim, from, n, 0);
    }
    return part;
}
static inline struct op_call call_slice(const struct op_call *c, char letter, int64_t from,
                                        int64_t n)
{
    struct op_call part = *c;
    for (int i = 0; i < c->n_in; i++)
        part.in[i] = view_slice(&c->in[i], letter, from, n);
    for (int o = 0; o < c->n_out; o++)
        part.out[o] = view_slice(&c->out[o], letter, from, n);
    return part;
}

/* A flat range of a tensor, as canonical blocks are kept. */
static inline struct ku_view view_flat(const struct ku_view *v, int64_t from, int64_t n)
{
    struct ku_view part = {.dtype = v->dtype, .shape = ku_shape_of("z", &n)};
    int64_t seen = ku_shape_seen(&v->shape) - from;
    part.shape.dim[0].seen = seen < 0 ? 0 : seen < n ? seen : n;
    part.start[0] = from;
    part.logical[0] = count_of(v);
    if (v->data) {
        part.data = ku_malloc(bytes_of(&part));
        assert_non_null(part.data);
        memcpy(part.data, (char *)v->data + (size_t)from * kumi_dtype_bytes(v->dtype),
               bytes_of(&part));
    }
    return part;
}
static inline struct op_call call_flat(const struct op_call *c, int64_t from, int64_t n)
{
    struct op_call part = *c;
    const struct ku_shape *s = &c->in[0].shape;
    for (int i = 0; i < c->n_in; i++)
        part.in[i] = ku_shape_is_equal(&c->in[i].shape, s) ? view_flat(&c->in[i], from, n)
                                                           : view_clone(&c->in[i]);
    for (int o = 0; o < c->n_out; o++)
        if (ku_shape_is_equal(&c->out[o].shape, s))
            part.out[o] = view_flat(&c->out[o], from, n);
    return part;
}

#endif
