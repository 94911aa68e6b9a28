/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Multilayer perceptron on images. The first layer contracts all dims of the input:
 *
 *     images [n h w c] -> n_hidden x { layers.i -> activation -> dropout } -> layers.n [n v]
 *
 * Hidden dims are named f and g in turn, so that neighbouring layers have different names.
 */
#include "kumi/model.h"

#include <stdio.h>
#include <string.h>

#include "base/arg.h"
#include "base/err.h"

void kumi_mlp_defaults(struct kumi_mlp *c)
{
    if (c == NULL)
        return;
    *c = (struct kumi_mlp){
        .n_input = 3, .input = {28, 28, 1}, .activation = KUMI_RELU, .num_classes = 10};
}

static int check(const struct kumi_mlp *c, const struct kumi_shape_of_batch *b)
{
    if (c->n_input < 1 || c->n_input > KUMI_MLP_MAX_INPUT)
        return KU_ERR(KUMI_EINVAL, "model: mlp: %d input dimensions; give 1 to %d", c->n_input,
                      KUMI_MLP_MAX_INPUT);
    if (c->n_hidden < 0 || c->n_hidden > KUMI_MLP_MAX_HIDDEN)
        return KU_ERR(KUMI_EINVAL, "model: mlp: %d hidden layers; at most %d", c->n_hidden,
                      KUMI_MLP_MAX_HIDDEN);
    for (int i = 0; i < c->n_input; i++)
        if (c->input[i] < 1)
            return KU_ERR(KUMI_EINVAL, "model: mlp: input dimension %d is %lld; at least 1", i,
                          (long long)c->input[i]);
    for (int i = 0; i < c->n_hidden; i++)
        if (c->hidden[i] < 1)
            return KU_ERR(KUMI_EINVAL, "model: mlp: hidden layer %d has width %lld; at least 1", i,
                          (long long)c->hidden[i]);
    if (c->num_classes < 1)
        return KU_ERR(KUMI_EINVAL, "model: mlp: num_classes %lld; at least 1",
                      (long long)c->num_classes);
    return b->n > 0 ? KUMI_OK
                    : KU_ERR(KUMI_EINVAL, "model: mlp: a batch of %lld samples", (long long)b->n);
}

/* Names of the input's dims: the last n_input of h, w, c. */
static const char *input_dims(const struct kumi_mlp *c)
{
    return &"nhwc"[KUMI_MLP_MAX_INPUT - c->n_input + 1];
}

static kumi_value layer(struct kumi_graph *g, kumi_value x, int i, int contract, char dim,
                        int64_t width)
{
    char name[32];
    snprintf(name, sizeof name, "layers.%d", i);
    return kumi_linear(g, x, name,
                       &(struct kumi_linear){.out = (const char[]){dim, '\0'},
                                             .out_count = &width,
                                             .contract = contract,
                                             .out_in = 1});
}

int kumi_mlp_build(struct kumi_graph *g, const struct kumi_mlp *c,
                   const struct kumi_shape_of_batch *b)
{
    struct kumi_mlp defaults;
    char dims[KUMI_MLP_MAX_INPUT + 2] = "n";
    KU_GIVEN(g, "graph");
    KU_GIVEN(b, "batch");
    if (c == NULL)
        kumi_mlp_defaults(&defaults);
    c = c ? c : &defaults;
    int64_t count[KUMI_MLP_MAX_INPUT + 1] = {b->n};
    KU_TRY(check(c, b));
    memcpy(dims + 1, input_dims(c), (size_t)c->n_input + 1);
    memcpy(count + 1, c->input, (size_t)c->n_input * sizeof count[0]);
    kumi_value x = kumi_input(g, "images", KUMI_F32, dims, count);
    int contract = c->n_input;
    for (int i = 0; i < c->n_hidden; i++, contract = 1) {
        x = layer(g, x, i, contract, i % 2 ? 'g' : 'f', c->hidden[i]);
        x = kumi_dropout(g, kumi_activate(g, x, c->activation), c->dropout);
    }
    x = layer(g, x, c->n_hidden, contract, 'v', c->num_classes);
    if (b->is_inference)
        return kumi_graph_output(g, "logits", x);
    kumi_value targets = kumi_input(g, "targets", KUMI_I32, "n", &b->n);
    kumi_loss_cross_entropy(g, x, targets, -100);
    kumi_accuracy(g, x, targets, -100, 1);
    return c->num_classes > 5 ? kumi_accuracy(g, x, targets, -100, 5) : kumi_graph_error(g);
}
