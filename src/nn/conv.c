/* SPDX-License-Identifier: Apache-2.0 */
/* Layers on images [n, y, x, c]: convolution, pooling, padding, flattening. */
#define KUMI_NO_SOURCE /* this file defines the functions */
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "nn/builder.h"

/* {rows, columns}. 0 in given[0] means `otherwise`; 0 in given[1] means the same as given[0]. */
struct pair {
    int64_t h, w;
};
static struct pair pair_of(const int64_t given[2], struct pair otherwise)
{
    if (given[0] == 0)
        return otherwise;
    return (struct pair){given[0], given[1] ? given[1] : given[0]};
}

/*
 * Sets window attributes with x's extents. Returns 0 with the builder failed if x is not an image.
 */
static int window_attrs(struct kumi_graph *g, kumi_value x, const char *name, struct ku_attrs *a)
{
    const struct ku_shape *s;
    char text[160];
    if (!ku_builder_check_name(g, name) || !ku_builder_check_floating(g, x, name))
        return 0;
    s = &g->ir->shape[g->ir->value[x].shape];
    if (s->ndim != 4) {
        KU_ERR(KUMI_EINVAL, "graph: %s%s: takes images [n, y, x, c], got %s", g->scope, name,
               ku_shape_print(s, text, sizeof text));
        ku_builder_fail(g);
        return 0;
    }
    *a = ku_attrs_default;
    a->in_h = s->dim[1].count;
    a->in_w = s->dim[2].count;
    return 1;
}

/* Initializers of weight and bias as in PyTorch. */
static void conv_inits(const struct kumi_conv2d *o, const struct ku_shape *w,
                       struct kumi_init *weight, struct kumi_init *bias)
{
    double area = (double)(w->dim[2].count * w->dim[3].count);
    double fan_in = area * (double)w->dim[1].count, fan_out = area * (double)o->out;
    *weight = *bias = (struct kumi_init){0};
    if (o->init == KUMI_CONV_KAIMING_FAN_OUT) {
        weight->std = sqrt(2 / fan_out);
        return;
    }
    weight->std = bias->std = sqrt(1 / (3 * fan_in)); /* uniform in +-sqrt(3) std */
    weight->is_uniform = bias->is_uniform = 1;
}

kumi_value kumi_conv2d(struct kumi_graph *g, kumi_value x, const char *name,
                       const struct kumi_conv2d *o)
{
    static const struct kumi_conv2d none;
    struct ku_attrs a;
    struct kumi_init weight, bias;
    o = o ? o : &none;
    if (!window_attrs(g, x, name, &a))
        return 0;
    const struct pair one = {1, 1};
    if (!ku_builder_check_number(g, "conv init", o->init, KUMI_CONV_UNIFORM,
                                 KUMI_CONV_KAIMING_FAN_OUT))
        return 0;
    struct pair kernel = pair_of(o->kernel, one), stride = pair_of(o->stride, one);
    struct pair dilation = pair_of(o->dilation, one);
    int64_t channels = g->ir->shape[g->ir->value[x].shape].dim[3].count;
    a.kernel_h = kernel.h, a.kernel_w = kernel.w;
    a.stride_h = stride.h, a.stride_w = stride.w;
    a.dilation_h = dilation.h, a.dilation_w = dilation.w;
    a.pad_h = o->padding[0], a.pad_w = o->padding[1];
    a.groups = o->groups ? o->groups : 1;
    if (a.groups < 1 || o->out < 1 || channels % a.groups != 0 || o->out % a.groups != 0) {
        KU_ERR(KUMI_EINVAL,
               "graph: %s%s: %lld to %lld channels in %lld groups; give a divisor of both",
               g->scope, name, (long long)channels, (long long)o->out, (long long)a.groups);
        return ku_builder_fail(g);
    }
    int64_t count[4] = {o->out, channels / a.groups, kernel.h, kernel.w};
    struct ku_shape ws = ku_shape_of("cihw", count), bs = ku_shape_of("c", count);
    conv_inits(o, &ws, &weight, &bias);
    struct ku_make m = {.op = KU_OP_conv2d, .n_in = 2, .attr = &a};
    m.in[0] = x;
    m.in[1] = ku_builder_param(g, name, "weight", &ws, 0, &weight);
    if (!o->no_bias)
        m.in[m.n_in++] = ku_builder_param(g, name, "bias", &bs, 0, &bias);
    return ku_builder_node(g, &m, name);
}

static kumi_value pool(struct kumi_graph *g, kumi_value x, const struct kumi_pool *o, int op)
{
    static const struct kumi_pool none;
    struct ku_attrs a;
    o = o ? o : &none;
    if (!window_attrs(g, x, ku_ops[op].name, &a))
        return 0;
    struct pair kernel = pair_of(o->kernel, (struct pair){1, 1});
    struct pair stride = pair_of(o->stride, kernel);
    a.kernel_h = kernel.h, a.kernel_w = kernel.w;
    a.stride_h = stride.h, a.stride_w = stride.w;
    a.pad_h = o->padding[0], a.pad_w = o->padding[1];
    a.count_pad = !o->exclude_pad;
    return ku_builder_node(g, &(struct ku_make){.op = op, .n_in = 1, .in = {x}, .attr = &a}, "");
}
kumi_value kumi_max_pool(struct kumi_graph *g, kumi_value x, const struct kumi_pool *o)
{
    return pool(g, x, o, KU_OP_max_pool);
}
kumi_value kumi_avg_pool(struct kumi_graph *g, kumi_value x, const struct kumi_pool *o)
{
    return pool(g, x, o, KU_OP_avg_pool);
}

kumi_value kumi_flatten(struct kumi_graph *g, kumi_value x)
{
    struct ku_attrs a;
    if (!window_attrs(g, x, "flatten", &a))
        return 0;
    return ku_builder_node(
        g, &(struct ku_make){.op = KU_OP_flatten, .n_in = 1, .in = {x}, .attr = &a}, "");
}
kumi_value kumi_global_avg_pool(struct kumi_graph *g, kumi_value x)
{
    struct ku_attrs a;
    if (!window_attrs(g, x, "global_avg_pool", &a))
        return 0;
    struct kumi_pool whole = {.kernel = {a.in_h, a.in_w}};
    return kumi_flatten(g, kumi_avg_pool(g, x, &whole));
}

kumi_value kumi_pad_last(struct kumi_graph *g, kumi_value x, int64_t before, int64_t behind)
{
    struct ku_attrs a = ku_attrs_default;
    a.before = before;
    a.behind = behind;
    if (!ku_builder_check_floating(g, x, "pad_last") ||
        !ku_builder_check_number(g, "pad_last before", (double)before, 0, 1 << 30) ||
        !ku_builder_check_number(g, "pad_last behind", (double)behind, 0, 1 << 30))
        return 0;
    return ku_builder_node(
        g, &(struct ku_make){.op = KU_OP_pad_last, .n_in = 1, .in = {x}, .attr = &a}, "");
}
