/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Residual networks: He, Zhang, Ren, Sun, "Deep residual learning for image recognition", 2016.
 * Tensor names are torchvision's:
 *
 *   conv1 bn1 | layer1.0.conv1 .bn1 .conv2 .bn2 (.conv3 .bn3) (.downsample.0 .1) .. | fc
 *
 * Depths 18 to 152 are the ImageNet variants, 6 n + 2 the CIFAR variants (3 stages, width 16).
 */
#include "nn/resnet.h"

#include <math.h>
#include <string.h>

#include "base/arg.h"
#include "base/err.h"
#include "nn/builder.h"

struct plan {
    int n_stages, n_blocks[4];
    int expansion; /* 4: bottleneck blocks; 1: basic blocks */
    int64_t width; /* of the first stage */
    int is_cifar, has_pad;
};

void kumi_resnet_defaults(struct kumi_resnet *c)
{
    if (c == NULL)
        return;
    *c = (struct kumi_resnet){.depth = 50,
                              .num_classes = 1000,
                              .num_channels = 3,
                              .batch_norm_eps = 1e-5,
                              .batch_norm_momentum = 0.1};
}

/* Stages given by `depths` of the configuration. */
static int plan_listed(const struct kumi_resnet *c, struct plan *p)
{
    *p = (struct plan){.expansion = c->bottleneck ? 4 : 1, .width = 64};
    for (; p->n_stages < 4 && c->depths[p->n_stages] > 0; p->n_stages++) {
        if (c->depths[p->n_stages] > 1000)
            break;
        p->n_blocks[p->n_stages] = (int)c->depths[p->n_stages];
    }
    for (int s = p->n_stages; s < 4; s++)
        if (s == 0 || c->depths[s] != 0)
            return KU_ERR(
                KUMI_EINVAL,
                "resnet: depths: stage %d has %lld blocks; give 1 to 1000, and none after a 0",
                p->n_stages + 1, (long long)c->depths[p->n_stages]);
    return KUMI_OK;
}

static int plan_known(const struct kumi_resnet *c, struct plan *p)
{
    static const struct {
        int64_t depth;
        struct plan plan;
    } table[] = {{18, {4, {2, 2, 2, 2}, 1, 64, 0, 0}},
                 {34, {4, {3, 4, 6, 3}, 1, 64, 0, 0}},
                 {50, {4, {3, 4, 6, 3}, 4, 64, 0, 0}},
                 {101, {4, {3, 4, 23, 3}, 4, 64, 0, 0}},
                 {152, {4, {3, 8, 36, 3}, 4, 64, 0, 0}}};
    p->n_stages = 0;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (table[i].depth == c->depth)
            *p = table[i].plan;
    if (p->n_stages == 0) {
        if (c->depth < 8 || c->depth > 1202 || (c->depth - 2) % 6 != 0)
            return KU_ERR(KUMI_EINVAL,
                          "resnet: depth: %lld; 18, 34, 50, 101 or 152, or 6 n + 2 up to 1202 (20, "
                          "32, 44, 56, 110)",
                          (long long)c->depth);
        int n = (int)(c->depth - 2) / 6;
        *p = (struct plan){3, {n, n, n, 0}, 1, 16, 1, 1};
    }
    return KUMI_OK;
}

static int plan_of(const struct kumi_resnet *c, struct plan *p)
{
    int is_listed = c->depths[0] || c->depths[1] || c->depths[2] || c->depths[3];
    KU_TRY(is_listed ? plan_listed(c, p) : plan_known(c, p));
    if (c->width > 0)
        p->width = c->width;
    p->is_cifar |= c->stem == KUMI_STEM_CIFAR;
    if (c->shortcut != KUMI_SHORTCUT_AUTO)
        p->has_pad = c->shortcut == KUMI_SHORTCUT_PAD;
    if (p->has_pad && p->expansion > 1)
        return KU_ERR(KUMI_EINVAL, "resnet: shortcut: A; it needs basic blocks; give B");
    const struct {
        const char *key;
        int64_t value, least, most;
    } range[] = {{"num_classes", c->num_classes, 1, 1 << 30},
                 {"num_channels", c->num_channels, 1, 1 << 20},
                 {"image_size", c->image_size, 0, 1 << 20},
                 {"width", p->width, 1, 1 << 12},
                 {"stem", (int)c->stem, KUMI_STEM_IMAGENET, KUMI_STEM_CIFAR},
                 {"shortcut", (int)c->shortcut, KUMI_SHORTCUT_AUTO, KUMI_SHORTCUT_PROJECTION}};
    for (size_t i = 0; i < sizeof range / sizeof range[0]; i++)
        if (range[i].value < range[i].least || range[i].value > range[i].most)
            return KU_ERR(KUMI_EINVAL, "resnet: %s: %lld; %lld to %lld", range[i].key,
                          (long long)range[i].value, (long long)range[i].least,
                          (long long)range[i].most);
    return KUMI_OK;
}

static kumi_value conv(struct kumi_graph *g, kumi_value x, const char *name, int64_t out,
                       int64_t kernel, int64_t stride)
{
    struct kumi_conv2d o = {.out = out,
                            .kernel = {kernel},
                            .stride = {stride},
                            .padding = {kernel / 2, kernel / 2},
                            .no_bias = 1,
                            .init = KUMI_CONV_KAIMING_FAN_OUT};
    return kumi_conv2d(g, x, name, &o);
}
static kumi_value norm(struct kumi_graph *g, kumi_value x, const char *name,
                       const struct kumi_resnet *c, int zero_gain)
{
    struct kumi_batch_norm o = {.eps = c->batch_norm_eps,
                                .momentum = c->batch_norm_momentum,
                                .sync = c->sync_batch_norm,
                                .zero_gain = zero_gain};
    return kumi_batch_norm(g, x, name, &o);
}

/* The block's input in the shape of its result. */
static kumi_value shortcut(struct kumi_graph *g, kumi_value x, const struct plan *p,
                           const struct kumi_resnet *c, int64_t in, int64_t out, int64_t stride)
{
    if (in == out && stride == 1)
        return x;
    if (p->has_pad) {
        struct kumi_pool every = {.kernel = {1}, .stride = {stride}};
        x = stride > 1 ? kumi_avg_pool(g, x, &every) : x;
        return in == out ? x : kumi_pad_last(g, x, (out - in) / 2, out - in - (out - in) / 2);
    }
    kumi_graph_enter(g, "downsample");
    x = norm(g, conv(g, x, "0", out, 1, stride), "1", c, 0);
    kumi_graph_leave(g);
    return x;
}

static kumi_value block(struct kumi_graph *g, kumi_value x, const struct plan *p,
                        const struct kumi_resnet *c, int64_t in, int64_t width, int64_t stride)
{
    int64_t out = width * p->expansion;
    kumi_value y = x;
    if (p->expansion == 1) {
        y = kumi_activate(g, norm(g, conv(g, y, "conv1", width, 3, stride), "bn1", c, 0),
                          KUMI_RELU);
        y = norm(g, conv(g, y, "conv2", width, 3, 1), "bn2", c, c->zero_init_residual);
    } else {
        y = kumi_activate(g, norm(g, conv(g, y, "conv1", width, 1, 1), "bn1", c, 0), KUMI_RELU);
        y = kumi_activate(g, norm(g, conv(g, y, "conv2", width, 3, stride), "bn2", c, 0),
                          KUMI_RELU);
        y = norm(g, conv(g, y, "conv3", out, 1, 1), "bn3", c, c->zero_init_residual);
    }
    return kumi_activate(g, kumi_add(g, y, shortcut(g, x, p, c, in, out, stride)), KUMI_RELU);
}

static kumi_value body(struct kumi_graph *g, kumi_value x, const struct plan *p,
                       const struct kumi_resnet *c)
{
    int64_t in = p->width;
    x = p->is_cifar ? conv(g, x, "conv1", in, 3, 1) : conv(g, x, "conv1", in, 7, 2);
    x = kumi_activate(g, norm(g, x, "bn1", c, 0), KUMI_RELU);
    if (!p->is_cifar)
        x = kumi_max_pool(g, x,
                          &(struct kumi_pool){.kernel = {3}, .stride = {2}, .padding = {1, 1}});
    for (int s = 0; s < p->n_stages; s++) {
        int64_t width = p->width << s;
        for (int b = 0; b < p->n_blocks[s]; b++) {
            kumi_graph_enter(g, "layer%d", s + 1);
            kumi_graph_enter(g, "%d", b);
            x = block(g, x, p, c, in, width, s > 0 && b == 0 ? 2 : 1);
            kumi_graph_leave(g);
            kumi_graph_leave(g);
            in = width * p->expansion;
        }
    }
    x = kumi_global_avg_pool(g, x);
    struct kumi_linear fc = {.out = "v",
                             .out_count = &c->num_classes,
                             .out_in = 1,
                             .std = sqrt(1 / (3.0 * (double)in))}; /* PyTorch's uniform */
    return kumi_linear(g, x, "fc", &fc);
}

static int64_t size_of(const struct kumi_resnet *c, const struct plan *p)
{
    return c->image_size ? c->image_size : p->is_cifar ? 32 : 224;
}

int kumi_resnet_check(const struct kumi_resnet *c, int64_t *image_size)
{
    struct plan p;
    KU_GIVEN(c, "config");
    KU_TRY(plan_of(c, &p));
    if (image_size)
        *image_size = size_of(c, &p);
    return KUMI_OK;
}

int ku_resnet_widths(const struct kumi_resnet *c, int64_t width[KU_RESNET_STAGES])
{
    struct plan p;
    KU_TRY(plan_of(c, &p));
    for (int s = 0; s < p.n_stages; s++)
        width[s] = (p.width << s) * p.expansion;
    return p.n_stages;
}

int kumi_resnet_build(struct kumi_graph *g, const struct kumi_resnet *c,
                      const struct kumi_shape_of_batch *batch)
{
    struct kumi_resnet defaults;
    struct plan p;
    KU_GIVEN(g, "graph");
    KU_GIVEN(batch, "batch");
    if (c == NULL)
        kumi_resnet_defaults(&defaults);
    c = c ? c : &defaults;
    KU_TRY(plan_of(c, &p));
    int64_t size = size_of(c, &p);
    int64_t count[4] = {batch->n, size, size, c->num_channels};
    kumi_value images = kumi_input(g, "images", KUMI_F32, "nyxc", count);
    kumi_value logits = body(g, images, &p, c);
    if (batch->is_inference)
        return kumi_graph_output(g, "logits", logits);
    kumi_value targets = kumi_input(g, "targets", KUMI_I32, "n", &batch->n);
    kumi_loss_cross_entropy(g, logits, targets, -100);
    kumi_accuracy(g, logits, targets, -100, 1);
    return c->num_classes > 5 ? kumi_accuracy(g, logits, targets, -100, 5) : kumi_graph_error(g);
}
