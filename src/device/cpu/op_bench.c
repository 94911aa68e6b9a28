/* SPDX-License-Identifier: Apache-2.0 */
#include "device/op_bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/math/exact.h"
#include "base/mem.h"
#include "device/cpu/bench.h"
#include "device/cpu/cpu.h"
#include "op/window.h"
#include "tensor/dtype.h"

enum {
    MAX_RUNS = 200,
    MIN_RUNS = 5,
    MAX_COPIES = 256,
    ROUND_BYTES = 256 << 20 /* of all copies: several times the last-level cache of a few cores */
};

/*
 * One benchmark: an op and the dims of its operands, one letter each (extent_of, image_extent).
 *
 *     prefix   ! f32 whatever the dtype, ^ f64, # i32, ~ u16
 *     alone    @ control input, % report, & statistics, $ norms, = Adafactor's row and column sums
 */
struct bench_case {
    const char *name, *in[KU_MAX_IN];
    int op, n_out;
    struct bench_image {
        int channels, out, side, kernel, stride; /* side 0: no image */
    } image;
    struct ku_attrs attr; /* settle_attrs fills attributes that must not be zero */
};
/* Convolutions of 64 images, padded by half the kernel. */
#define CONV(label, ...)                                                                           \
    ROW(conv2d, "conv2d." label, 1, .in = {"byxc", "kihw"}, .image = {__VA_ARGS__}),               \
        ROW(conv2d_dx, "conv2d_dx." label, 1, .in = {"bpqk", "kihw"}, .image = {__VA_ARGS__}),     \
        ROW(conv2d_dw, "conv2d_dw." label, 1, .in = {"byxc", "bpqk"}, .image = {__VA_ARGS__})
/* Batch norm of such images, as after a convolution. */
#define NORM(label, ...)                                                                           \
    ROW(batch_norm_sums, "batch_norm_sums." label, 1, .in = {"byxc"}, .image = {__VA_ARGS__}),     \
        ROW(batch_norm, "batch_norm.relu." label, 1, .in = {"byxc", "!c", "!c", "!c", "!c"},       \
            .image = {__VA_ARGS__}, .attr = {.act = KU_ACT_RELU}),                                 \
        ROW(batch_norm, "batch_norm.add_relu." label, 1,                                           \
            .in = {"byxc", "!c", "!c", "!c", "!c", "byxc"}, .image = {__VA_ARGS__},                \
            .attr = {.act = KU_ACT_RELU}),                                                         \
        ROW(batch_norm_dsums, "batch_norm_dsums.relu." label, 4,                                   \
            .in = {"byxc", "byxc", "!c", "!c", "byxc"}, .image = {__VA_ARGS__}),                   \
        ROW(batch_norm_dx, "batch_norm_dx." label, 1,                                              \
            .in = {"byxc", "byxc", "!c", "!c", "!c", "^3c"}, .image = {__VA_ARGS__})
#define ROW(o, label, outs, ...)                                                                   \
    {                                                                                              \
        .name = label, .op = KU_OP_##o, .n_out = outs, __VA_ARGS__                                 \
    }
static const struct bench_case rows[] = {
    ROW(embedding, "embedding", 1, .in = {"vc", "#nt"}),
    ROW(embedding_dw, "embedding_dw", 1, .in = {"#nt", "ntc"}),
    ROW(add_rows, "add_rows", 1, .in = {"ntc", "tc"}),
    ROW(layer_norm, "layer_norm", 3, .in = {"ntc", "c", "c"}),
    ROW(layer_norm_dx, "layer_norm_dx", 1, .in = {"ntc", "ntc", "c", "!nt", "!nt"}),
    ROW(layer_norm_dgb, "layer_norm_dgb", 2, .in = {"ntc", "ntc", "!nt", "!nt"}),
    ROW(rms_norm, "rms_norm", 2, .in = {"ntc", "c"}),
    ROW(rms_norm_dx, "rms_norm_dx", 1, .in = {"ntc", "ntc", "c", "!nt"}),
    ROW(rms_norm_dg, "rms_norm_dg", 1, .in = {"ntc", "ntc", "!nt"}),
    ROW(rope, "rope", 1, .in = {"nthd"}),
    ROW(rope_dx, "rope_dx", 1, .in = {"nthd"}),
    ROW(linear, "linear.qkv", 1, .in = {"ntc", "cg", "g"}),
    ROW(linear, "linear.proj", 1, .in = {"ntc", "ce", "e"}),
    ROW(linear, "linear.fc", 2, .in = {"ntc", "cf", "f"}, .attr = {.act = KU_ACT_GELU_TANH}),
    ROW(linear, "linear.out", 1, .in = {"ntf", "fc", "c"}),
    ROW(linear, "linear.head", 1, .in = {"ntc", "vc"}, .attr = {.trans = 1}),
    /* generation of a token for one sample and for eight: bound by reading the weight */
    ROW(linear, "linear.qkv.decode", 1, .in = {"1c", "cg", "g"}),
    ROW(linear, "linear.out.decode", 1, .in = {"1f", "fc", "c"}),
    ROW(linear, "linear.out.decode8", 1, .in = {"8f", "fc", "c"}),
    ROW(linear, "linear.head.decode", 1, .in = {"1c", "vc"}, .attr = {.trans = 1}),
    ROW(linear, "linear.head.decode8", 1, .in = {"8c", "vc"}, .attr = {.trans = 1}),
    ROW(linear_dx, "linear_dx.qkv", 1, .in = {"ntg", "cg"}),
    ROW(linear_dx, "linear_dx.proj", 1, .in = {"nte", "ce"}),
    ROW(linear_dx, "linear_dx.fc", 1, .in = {"ntf", "cf"}),
    ROW(linear_dx, "linear_dx.out", 1, .in = {"ntc", "fc"}),
    ROW(linear_dx, "linear_dx.head", 1, .in = {"ntv", "vc"}, .attr = {.trans = 1}),
    ROW(linear_dw, "linear_dw.qkv", 1, .in = {"ntc", "ntg"}),
    ROW(linear_dw, "linear_dw.proj", 1, .in = {"ntc", "nte"}),
    ROW(linear_dw, "linear_dw.fc", 1, .in = {"ntc", "ntf"}),
    ROW(linear_dw, "linear_dw.out", 1, .in = {"ntf", "ntc"}),
    ROW(linear_dw, "linear_dw.head", 1, .in = {"ntc", "ntv"}, .attr = {.trans = 1}),
    ROW(linear_db, "linear_db.fc", 1, .in = {"ntf"}),
    ROW(act, "act.gelu_tanh", 1, .in = {"ntf"}, .attr = {.act = KU_ACT_GELU_TANH}),
    ROW(act_dx, "act_dx.gelu_tanh", 1, .in = {"ntf", "ntf"}, .attr = {.act = KU_ACT_GELU_TANH}),
    ROW(act_dx, "act_dx.gelu_erf", 1, .in = {"ntf", "ntf"}, .attr = {.act = KU_ACT_GELU_ERF}),
    ROW(glu, "glu.silu", 1, .in = {"ntf", "ntf"}, .attr = {.act = KU_ACT_SILU}),
    ROW(glu_dx, "glu_dx.silu", 2, .in = {"ntf", "ntf", "ntf"}, .attr = {.act = KU_ACT_SILU}),
    ROW(add, "add", 1, .in = {"ntc", "ntc"}),
    ROW(add, "add.tied", 1, .in = {"!z", "!z"}),
    ROW(dropout, "dropout", 1, .in = {"ntc", "@"}, .attr = {.p = 0.1}),
    ROW(attention, "attention", 2, .in = {"nt3hd", "@"}, .attr = {.causal = 1}),
    ROW(attention_dx, "attention_dx", 1, .in = {"nthd", "nt3hd", "nthd", "!nht", "@"},
        .attr = {.causal = 1}),
    ROW(attention, "attention.dropout", 2, .in = {"nt3hd", "@"}, .attr = {.causal = 1, .p = 0.1}),
    ROW(attention_kv, "attention_kv.grouped", 2, .in = {"ntkrd", "ntkd", "ntkd", "@"},
        .attr = {.causal = 1}),
    ROW(attention_kv_dx, "attention_kv_dx.grouped", 3,
        .in = {"ntkrd", "ntkrd", "!nkrt", "ntkrd", "ntkd", "ntkd", "@"}, .attr = {.causal = 1}),
    ROW(attention_kv, "attention_kv.cross", 2, .in = {"nthd", "nshd", "nshd", "@"}),
    ROW(attention_kv_dx, "attention_kv_dx.cross", 3,
        .in = {"nthd", "nthd", "!nht", "nthd", "nshd", "nshd", "@"}),
    ROW(attention_kv, "attention_kv.short", 2, .in = {"n8hd", "n8hd", "n8hd", "@"},
        .attr = {.p = 0.1}),
    ROW(attention_kv_dx, "attention_kv_dx.short", 3,
        .in = {"n8hd", "n8hd", "!nh8", "n8hd", "n8hd", "n8hd", "@"}, .attr = {.p = 0.1}),
    ROW(attention_kv, "attention_kv.decode", 2, .in = {"n1hd", "nhsd", "nhsd", "@"}),
    ROW(batch_norm_sums, "batch_norm_sums", 1, .in = {"ntc"}),
    ROW(batch_norm, "batch_norm", 1, .in = {"ntc", "!c", "!c", "!c", "!c"}),
    ROW(batch_norm, "batch_norm.add_relu", 1, .in = {"ntc", "!c", "!c", "!c", "!c", "ntc"},
        .attr = {.act = KU_ACT_RELU}),
    ROW(batch_norm_dsums, "batch_norm_dsums", 3, .in = {"ntc", "ntc", "!c", "!c"}),
    ROW(batch_norm_dsums, "batch_norm_dsums.relu", 4, .in = {"ntc", "ntc", "!c", "!c", "ntc"}),
    ROW(batch_norm_dx, "batch_norm_dx", 1, .in = {"ntc", "ntc", "!c", "!c", "!c", "^3c"}),
    ROW(softmax_xent, "softmax_xent", 2, .in = {"ntv", "#nt"}, .attr = {.ignore = -100}),
    ROW(softmax_xent_dx, "softmax_xent_dx", 1, .in = {"!nt", "ntv", "#nt", "!nt"},
        .attr = {.ignore = -100}),
    ROW(cast, "cast.master", 1, .in = {"!vc"}),
    ROW(exact_sum, "exact_sum", 1, .in = {"!nt"}),
    ROW(sumsq, "sumsq", 1, .in = {"!z", "&"}),
    ROW(adamw, "adamw", 4, .in = {"!z", "!z", "!z", "!z", "%"},
        .attr = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1}),
    CONV("3x3.c3.f64.s32", 3, 64, 32, 3, 1),
    CONV("3x3.c64.s32", 64, 64, 32, 3, 1),
    CONV("3x3.c64.f128.s32", 64, 128, 32, 3, 2),
    CONV("1x1.c64.f128.s32", 64, 128, 32, 1, 2),
    CONV("3x3.c128.s16", 128, 128, 16, 3, 1),
    CONV("3x3.c128.f256.s16", 128, 256, 16, 3, 2),
    CONV("1x1.c128.f256.s16", 128, 256, 16, 1, 2),
    CONV("3x3.c256.s8", 256, 256, 8, 3, 1),
    CONV("3x3.c256.f512.s8", 256, 512, 8, 3, 2),
    CONV("1x1.c256.f512.s8", 256, 512, 8, 1, 2),
    CONV("3x3.c512.s4", 512, 512, 4, 3, 1),
    CONV("3x3.c3.f16.s32", 3, 16, 32, 3, 1),
    CONV("3x3.c16.s32", 16, 16, 32, 3, 1),
    CONV("3x3.c16.f32.s32", 16, 32, 32, 3, 2),
    CONV("3x3.c32.s16", 32, 32, 16, 3, 1),
    CONV("3x3.c32.f64.s16", 32, 64, 16, 3, 2),
    CONV("3x3.c64.s8", 64, 64, 8, 3, 1),
    NORM("c16.s32", 16, 16, 32, 1, 1),
    NORM("c64.s32", 64, 64, 32, 1, 1),
    NORM("c128.s16", 128, 128, 16, 1, 1),
    NORM("c512.s4", 512, 512, 4, 1, 1),
    ROW(max_pool, "max_pool.s32", 2, .in = {"byxc"}, .image = {64, 64, 32, 3, 2}),
    ROW(max_pool_dx, "max_pool_dx.s32", 1, .in = {"bpqc", "~bpqc"}, .image = {64, 64, 32, 3, 2}),
    ROW(avg_pool, "avg_pool.s32", 1, .in = {"byxc"}, .image = {64, 64, 32, 3, 2}),
    ROW(avg_pool_dx, "avg_pool_dx.s32", 1, .in = {"bpqc"}, .image = {64, 64, 32, 3, 2}),
    ROW(sgd, "sgd", 3, .in = {"!z", "!z", "!z", "%"},
        .attr = {.momentum = 0.9, .nesterov = 1, .weight_decay = 1e-4}),
    ROW(adagrad, "adagrad", 3, .in = {"!z", "!z", "!z", "%"}, .attr = {.eps = 1e-10}),
    ROW(lion, "lion", 3, .in = {"!z", "!z", "!z", "%"},
        .attr = {.beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1}),
    ROW(rmsprop, "rmsprop", 3, .in = {"!z", "!z", "!z", "%"}, .attr = {.alpha = 0.99}),
    ROW(rmsprop_momentum, "rmsprop_momentum", 4, .in = {"!z", "!z", "!z", "!z", "%"},
        .attr = {.alpha = 0.99, .momentum = 0.9}),
    ROW(rmsprop_centered, "rmsprop_centered", 4, .in = {"!z", "!z", "!z", "!z", "%"},
        .attr = {.alpha = 0.99}),
    ROW(rmsprop_both, "rmsprop_both", 5, .in = {"!z", "!z", "!z", "!z", "!z", "%"},
        .attr = {.alpha = 0.99, .momentum = 0.9}),
    ROW(ema, "ema", 1, .in = {"!z", "!z", "%"}, .attr = {.ema = 0.999}),
    ROW(factor_sums, "factor_sums", 1, .in = {"!vc", "%", "="}),
    ROW(factor_norms, "factor_norms", 1, .in = {"!vc", "!vc", "!v", "!c", "^1", "%", "&"}),
    ROW(adafactor, "adafactor", 2, .in = {"!vc", "!vc", "!v", "!c", "^1", "%", "$"}),
    ROW(variance_norms, "variance_norms", 2, .in = {"!z", "!z", "!z", "%", "&"}),
    ROW(adafactor_vector, "adafactor_vector", 2, .in = {"!z", "!z", "!z", "%", "$"}),
    ROW(trust_sums, "trust_sums", 1, .in = {"!z", "!z", "&"}),
    ROW(lars, "lars", 3, .in = {"!z", "!z", "!z", "%", "$"},
        .attr = {.momentum = 0.9, .weight_decay = 1e-4, .trust_coefficient = 1e-3}),
    ROW(lamb_moments, "lamb_moments", 3, .in = {"!z", "!z", "!z", "!z", "%", "&"},
        .attr = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-6, .weight_decay = 0.01}),
    ROW(lamb, "lamb", 2, .in = {"!z", "!z", "!z", "%", "$"},
        .attr = {.eps = 1e-6, .weight_decay = 0.01, .min_coeff = 0.01, .max_coeff = 10}),
    ROW(top_k, "top_k", 1, .in = {"ntv", "#nt"}, .attr = {.top = 5, .ignore = -100}),
    ROW(random_normal, "random_normal", 1, .in = {"!tc", "@"}, .attr = {.std = 0.02}),
};

enum { N_ROWS = sizeof rows / sizeof rows[0] };

static int64_t extent_of(const struct ku_bench_opts *o, char letter)
{
    const int64_t c = o->width;
    switch (letter) {
    case 'n':
        return o->samples;
    case 't':
    case 's':
        return o->tokens;
    case 'h':
        return o->heads;
    case 'k': /* heads of keys; four heads of queries each */
        return o->heads % 4 ? o->heads : o->heads / 4;
    case 'r':
        return o->heads % 4 ? 1 : 4;
    case 'd':
        return c / o->heads;
    case 'f':
        return 4 * c;
    case 'g':
        return 3 * c;
    case 'v':
        return o->vocabulary;
    case 'z': /* the share of one of two ranks of the token embedding */
        return o->vocabulary * c / 2;
    case '1':
    case '3':
    case '8':
        return letter - '0';
    default: /* c, e */
        return c;
    }
}

static int64_t image_extent(const struct bench_image *m, char letter)
{
    switch (letter) {
    case 'b':
        return 64;
    case 'y':
    case 'x':
        return m->side;
    case 'p':
    case 'q':
        return ku_window_extent(m->side, m->kernel, m->stride, m->kernel / 2, 1);
    case 'h':
    case 'w':
        return m->kernel;
    case 'k':
        return m->out;
    default: /* c, i */
        return m->channels;
    }
}

static struct ku_attrs settle_attrs(const struct ku_bench_opts *o, const struct bench_case *row)
{
    struct ku_attrs a = row->attr;
    a.contract = a.outs = a.groups = a.dilation_h = a.dilation_w = 1;
    a.in_h = a.in_w = row->image.side;
    a.kernel_h = a.kernel_w = row->image.kernel;
    a.stride_h = a.stride_w = row->image.stride;
    a.pad_h = a.pad_w = row->image.kernel / 2;
    a.dtype = -1;
    if (row->op == KU_OP_cast)
        a.dtype = KUMI_BF16;
    if ((ku_ops[row->op].traits & KU_OP_UPDATE) && row->n_out > ku_ops[row->op].min_out)
        a.dtype = o->dtype; /* the compute copy */
    a.lr_mult = a.clip_threshold = 1;
    a.cols = o->width, a.count = o->vocabulary * o->width; /* adafactor: of the embedding */
    a.rows = a.rows_seen = o->vocabulary;
    a.row_name = 'v';
    a.theta = 10000;
    a.factor = 1;
    a.eps = a.eps > 0 ? a.eps : 1e-5;
    return a;
}

static struct ku_type type_of(const struct ku_bench_opts *o, const struct bench_case *row,
                              const char *dims)
{
    struct ku_type t = {.dtype = o->dtype};
    int64_t words = *dims == '@'   ? KU_CONTROL_WORDS
                    : *dims == '%' ? KU_REPORT_WORDS
                    : *dims == '$' ? 2
                    : *dims == '=' ? 2 * (o->vocabulary + o->width)
                                   : 2 * KU_EXACT_WORDS;
    if (strchr("@%&$=", *dims)) {
        t.dtype = strchr("%$", *dims) ? KUMI_F64 : KUMI_I64;
        t.shape = ku_shape_of("w", &words);
        return t;
    }
    if (*dims == '!')
        t.dtype = KUMI_F32, dims++;
    else if (*dims == '^')
        t.dtype = KUMI_F64, dims++;
    else if (*dims == '#')
        t.dtype = KUMI_I32, dims++;
    else if (*dims == '~')
        t.dtype = KUMI_U16, dims++;
    int64_t count[KU_MAX_DIMS];
    for (int i = 0; dims[i]; i++)
        count[i] = row->image.side ? image_extent(&row->image, dims[i]) : extent_of(o, dims[i]);
    t.shape = ku_shape_of(dims, count);
    return t;
}

/*
 * Values that are valid for every op: small numbers, token ids inside the vocabulary, a report that
 * applies.
 */
static void fill_operand(const struct ku_bench_opts *o, struct ku_view *v, char kind)
{
    const int64_t n = ku_shape_count(&v->shape);
    if (v->dtype == KUMI_I32)
        for (int64_t i = 0; i < n; i++)
            ((int32_t *)v->data)[i] = (int32_t)(i * 7919 % o->vocabulary);
    else if (v->dtype == KUMI_F32)
        for (int64_t i = 0; i < n; i++)
            ((float *)v->data)[i] = (float)(i * 37 % 101 + 1) * 0x1p-8f;
    else if (v->dtype == KUMI_BF16 || v->dtype == KUMI_F16)
        for (int64_t i = 0; i < n; i++)
            ku_store_f64(v->data, v->dtype, i, (double)(i * 37 % 101 + 1) * 0x1p-8);
    else
        memset(v->data, 0, (size_t)n * kumi_dtype_bytes(v->dtype));
    if (kind == '$')
        ((double *)v->data)[0] = ((double *)v->data)[1] = 1;
    if (kind == '%') {
        double *report = v->data;
        report[KU_REPORT_LR] = 1e-4, report[KU_REPORT_SCALE] = 1;
        report[KU_REPORT_APPLY] = 1, report[KU_REPORT_UPDATE] = 10;
        report[KU_REPORT_NORM] = 1e4;
    }
}

static size_t type_bytes(const struct ku_type *t)
{
    return (size_t)ku_shape_count(&t->shape) * kumi_dtype_bytes(t->dtype);
}

static int view_create(const struct ku_type *t, struct ku_view *v)
{
    *v = (struct ku_view){.dtype = t->dtype, .shape = t->shape};
    for (int d = 0; d < t->shape.ndim; d++)
        v->logical[d] = t->shape.dim[d].count;
    v->data = ku_malloc_aligned(64, type_bytes(t) + 64);
    if (v->data == NULL)
        return KUMI_ENOMEM;
    memset(v->data, 0, type_bytes(t));
    return KUMI_OK;
}

/* Bound calls of one op, each with its own operands. */
struct copies {
    struct ku_call call[MAX_COPIES];
    struct ku_kernel *kernel[MAX_COPIES];
    int n;
    int is_in_cache;
};

/* like: a call whose operands are copied, or NULL. */
static int call_create(const struct ku_bench_opts *o, const struct bench_case *row,
                       const struct ku_op_case *c, size_t workspace_bytes,
                       const struct ku_call *like, struct ku_call *call)
{
    call->op = c->op, call->n_in = c->n_in, call->n_out = c->n_out, call->attr = c->attr;
    for (int i = 0; i < c->n_in; i++) {
        KU_TRY(view_create(&c->in[i], &call->in[i]));
        if (like)
            memcpy(call->in[i].data, like->in[i].data, type_bytes(&c->in[i]));
        else
            fill_operand(o, &call->in[i], *row->in[i]);
    }
    for (int i = 0; i < c->n_out; i++) {
        int pair = ku_op_pair(ku_ops[c->op].inout, i);
        if (pair >= 0)
            call->out[i] = call->in[pair];
        else
            KU_TRY(view_create(&c->out[i], &call->out[i]));
    }
    call->workspace = ku_malloc_aligned(64, workspace_bytes + 64);
    return call->workspace ? KUMI_OK : KUMI_ENOMEM;
}
static void call_destroy(struct ku_call *call)
{
    for (int i = 0; i < call->n_out; i++)
        if (ku_op_pair(ku_ops[call->op].inout, i) < 0)
            ku_free(call->out[i].data);
    for (int i = 0; i < call->n_in; i++)
        ku_free(call->in[i].data);
    ku_free(call->workspace);
}

/* Creates enough copies to exceed the caches, and computes the op's cost. */
static int copies_create(void *dev, const struct ku_bench_opts *o, const struct bench_case *row,
                         const struct ku_attrs *attr, struct copies *all, struct ku_cost *cost)
{
    struct ku_op_case c = {.op = row->op, .n_out = row->n_out, .attr = attr};
    struct ku_target_op target;
    for (; c.n_in < KU_MAX_IN && row->in[c.n_in]; c.n_in++)
        c.in[c.n_in] = type_of(o, row, row->in[c.n_in]);
    KU_TRY(ku_op_infer(c.op, attr, c.n_in, c.in, c.n_out, c.out));
    KU_TRY(ku_device_cpu.query(NULL, &c, &target));
    *cost = ku_ops[c.op].cost(attr, c.accumulate, c.n_in, c.in, c.n_out, c.out);
    size_t bytes = 1;
    for (int i = 0; i < c.n_in; i++)
        bytes += type_bytes(&c.in[i]);
    for (int i = 0; i < c.n_out; i++)
        bytes += type_bytes(&c.out[i]);
    size_t wanted = ROUND_BYTES / bytes + 1;
    wanted = wanted < MAX_COPIES ? wanted : MAX_COPIES;
    all->is_in_cache = cost->bytes * (double)wanted < ROUND_BYTES / 2;
    while (all->n < (int)wanted) {
        int i = all->n++; /* counted first, so that a half-made copy is destroyed too */
        KU_TRY(call_create(o, row, &c, target.workspace_bytes, i ? &all->call[0] : NULL,
                           &all->call[i]));
        KU_TRY(ku_device_cpu.bind(dev, &all->call[i], &all->kernel[i]));
    }
    return KUMI_OK;
}
static void copies_destroy(void *dev, struct copies *all)
{
    for (int i = 0; i < all->n; i++) {
        if (all->kernel[i])
            ku_device_cpu.unbind(dev, all->kernel[i]);
        call_destroy(&all->call[i]);
    }
}

static int time_kernel(void *dev, const struct copies *all, int64_t time_ns, struct ku_bench_row *r)
{
    int64_t ns[MAX_RUNS], begin = ku_clock_ns();
    KU_TRY(ku_device_cpu.launch(dev, all->kernel[0], NULL, NULL)); /* warm-up */
    r->n_runs = 0;
    do {
        struct ku_kernel *kernel = all->kernel[(r->n_runs + 1) % all->n];
        int64_t t = ku_clock_ns();
        KU_TRY(ku_device_cpu.launch(dev, kernel, NULL, NULL));
        ns[r->n_runs++] = ku_clock_ns() - t;
    } while (r->n_runs < MAX_RUNS && (r->n_runs < MIN_RUNS || ku_clock_ns() - begin < time_ns));
    qsort(ns, (size_t)r->n_runs, sizeof ns[0], ku_by_value);
    r->median_ns = ns[r->n_runs / 2];
    r->min_ns = ns[0];
    r->max_ns = ns[r->n_runs - 1];
    return KUMI_OK;
}

static void print_shapes(const struct ku_call *call, char *out, size_t bytes)
{
    char one[160];
    size_t at = 0;
    for (int i = 0; i < call->n_in && i < 2 && at < bytes; i++)
        at += (size_t)snprintf(out + at, bytes - at, "%s%s", i ? " " : "",
                               ku_shape_print(&call->in[i].shape, one, sizeof one));
}

static int bench_row(void *dev, const struct ku_bench_opts *o, const struct ku_peak *peak,
                     const struct bench_case *row, struct ku_bench_row *r)
{
    struct ku_attrs attr = settle_attrs(o, row);
    struct copies *all = ku_calloc(1, sizeof *all);
    struct ku_cost cost;
    int status;
    if (all == NULL)
        return KUMI_ENOMEM;
    KU_TRY_OUT(copies_create(dev, o, row, &attr, all, &cost));
    KU_TRY_OUT(time_kernel(dev, all, o->time_ns, r));
    r->name = row->name, r->dtype = o->dtype, r->is_in_cache = all->is_in_cache;
    r->flops = cost.flops, r->bytes = cost.bytes;
    if (peak) {
        double top = o->dtype == KUMI_BF16 ? peak->flops_bf16 : peak->flops_f32;
        double compute = cost.flops / top, move = cost.bytes / peak->stream_bytes;
        r->limit_ns = 1e9 * (compute > move ? compute : move);
    }
    print_shapes(&all->call[0], r->shape, sizeof r->shape);
    ku_cpu_print_tiling(all->kernel[0], r->tiling, sizeof r->tiling);
out:
    copies_destroy(dev, all);
    ku_free(all);
    return status;
}

bool ku_bench_op_is_known(const char *only)
{
    for (int i = 0; i < N_ROWS; i++)
        if (strncmp(rows[i].name, only, strlen(only)) == 0)
            return 1;
    return 0;
}

int ku_bench_op(const struct ku_bench_opts *opts, const struct ku_peak *peak,
                int (*row)(void *ctx, const struct ku_bench_row *row), void *ctx)
{
    struct ku_bench_opts o = *opts;
    o.samples = o.samples ? o.samples : 2;
    o.tokens = o.tokens ? o.tokens : 256;
    o.width = o.width ? o.width : 768;
    o.heads = o.heads ? o.heads : 12;
    o.vocabulary = o.vocabulary ? o.vocabulary : 50304;
    o.time_ns = o.time_ns ? o.time_ns : 100000000;
    if (o.dtype != KUMI_F32 && o.dtype != KUMI_BF16 && o.dtype != KUMI_F16)
        return KU_ERR(KUMI_EINVAL, "bench: dtype: %s; give f32, bf16 or f16",
                      kumi_dtype_name(o.dtype));
    if (o.width % o.heads != 0)
        return KU_ERR(KUMI_EINVAL, "bench: width %lld is not divisible by %lld heads",
                      (long long)o.width, (long long)o.heads);
    void *dev = NULL;
    KU_TRY(ku_device_cpu.open(&o.device, &dev));
    int status = KUMI_OK;
    for (int i = 0; i < N_ROWS && status == KUMI_OK; i++) {
        struct ku_bench_row r = {0};
        if (o.only && strncmp(rows[i].name, o.only, strlen(o.only)) != 0)
            continue;
        status = bench_row(dev, &o, peak, &rows[i], &r);
        if (status == KUMI_OK)
            status = row(ctx, &r);
    }
    ku_device_cpu.close(dev);
    return status;
}
