/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPT-2 (Radford et al. 2019) with Hugging Face's tensor names. Pre-norm decoder:
 *
 *     wte[tokens] + wpe[positions]
 *     n_layer x { x += attn(ln_1(x)); x += mlp(ln_2(x)) } -> ln_f -> lm_head (tied to wte)
 *
 * With a cache, positions come from port "position_ids" and attention reads the cached keys.
 */
#include "kumi/model.h"

#include <math.h>

#include "base/arg.h"
#include "base/err.h"
#include "nn/builder.h"

/* Of whole tiles, and equal parts for powers of two; pass vocabulary pads further for others. */
enum { VOCAB_PAD = 128 };

void kumi_gpt2_defaults(struct kumi_gpt2 *c)
{
    if (c == NULL)
        return;
    *c = (struct kumi_gpt2){.n_layer = 12,
                            .n_head = 12,
                            .n_embd = 768,
                            .n_positions = 1024,
                            .vocab_size = 50257,
                            .activation = KUMI_GELU_TANH,
                            .layer_norm_epsilon = 1e-5,
                            .resid_pdrop = 0.1,
                            .embd_pdrop = 0.1,
                            .attn_pdrop = 0.1,
                            .initializer_range = 0.02,
                            .tie_word_embeddings = 1,
                            .scale_attn_weights = 1};
}

static int check(const struct kumi_gpt2 *c, const struct kumi_shape_of_batch *b)
{
    if (c->n_layer < 1 || c->n_head < 1 || c->n_embd < 1 || c->n_positions < 1 ||
        c->vocab_size < 1 || c->n_inner < 0)
        return KU_ERR(
            KUMI_EINVAL,
            "model: gpt2: n_layer %lld, n_head %lld, n_embd %lld, n_positions %lld, vocab_size "
            "%lld; all must be at least 1",
            (long long)c->n_layer, (long long)c->n_head, (long long)c->n_embd,
            (long long)c->n_positions, (long long)c->vocab_size);
    if (c->n_embd % c->n_head)
        return KU_ERR(KUMI_EINVAL, "model: gpt2: n_embd %lld is not divisible by n_head %lld",
                      (long long)c->n_embd, (long long)c->n_head);
    int64_t longest = b->cache > b->t ? b->cache : b->t;
    if (longest > c->n_positions)
        return KU_ERR(KUMI_EINVAL, "model: gpt2: sequences of %lld tokens; n_positions is %lld",
                      (long long)longest, (long long)c->n_positions);
    return KUMI_OK;
}

static kumi_value attention(struct kumi_graph *g, const struct kumi_gpt2 *c, kumi_value x,
                            kumi_value segments, int layer, const struct kumi_shape_of_batch *b)
{
    int64_t width = c->n_embd / c->n_head;
    double scale = c->scale_attn_weights ? 1 / sqrt((double)width) : 1;
    if (c->scale_attn_by_inverse_layer_idx)
        scale /= layer + 1;
    kumi_graph_enter(g, "attn");
    kumi_value qkv =
        kumi_linear(g, x, "c_attn",
                    &(struct kumi_linear){.out = "3hd",
                                          .out_count = (int64_t[]){3, c->n_head, width},
                                          .std = c->initializer_range});
    kumi_value o;
    if (b->cache)
        o = ku_builder_cached_attention(g, ku_builder_pick(g, qkv, 0), ku_builder_pick(g, qkv, 1),
                                        ku_builder_pick(g, qkv, 2), b->cache, scale);
    else
        o = kumi_attention_within(g, qkv, segments, 1, c->attn_pdrop, scale);
    /*
     * std of residual projections is scaled by 1/sqrt(2 layers): Radford et al. 2019, section 2.3
     */
    kumi_value y = kumi_linear(
        g, o, "c_proj",
        &(struct kumi_linear){.out = "c",
                              .out_count = &c->n_embd,
                              .contract = 2,
                              .std = c->initializer_range / sqrt(2.0 * (double)c->n_layer)});
    kumi_graph_leave(g);
    return kumi_dropout(g, y, c->resid_pdrop);
}

static kumi_value mlp(struct kumi_graph *g, const struct kumi_gpt2 *c, kumi_value x)
{
    int64_t inner = c->n_inner ? c->n_inner : 4 * c->n_embd;
    kumi_graph_enter(g, "mlp");
    kumi_value z = kumi_linear(
        g, x, "c_fc",
        &(struct kumi_linear){.out = "f", .out_count = &inner, .std = c->initializer_range});
    kumi_value y = kumi_linear(
        g, kumi_activate(g, z, c->activation), "c_proj",
        &(struct kumi_linear){.out = "c",
                              .out_count = &c->n_embd,
                              .std = c->initializer_range / sqrt(2.0 * (double)c->n_layer)});
    kumi_graph_leave(g);
    return kumi_dropout(g, y, c->resid_pdrop);
}

int kumi_gpt2_build(struct kumi_graph *g, const struct kumi_gpt2 *c,
                    const struct kumi_shape_of_batch *b)
{
    struct kumi_gpt2 defaults;
    KU_GIVEN(g, "graph");
    KU_GIVEN(b, "batch");
    if (c == NULL)
        kumi_gpt2_defaults(&defaults);
    c = c ? c : &defaults;
    KU_TRY(check(c, b));
    double eps = c->layer_norm_epsilon;
    struct kumi_init normal = {.std = c->initializer_range};
    const int64_t batch[] = {b->n, b->t};
    kumi_value tokens = kumi_input(g, "tokens", KUMI_I32, "nt", batch), segments = 0;
    if (b->has_segments && !b->is_inference)
        segments = kumi_input(g, "segments", KUMI_I32, "nt", batch);
    kumi_value wpe =
        kumi_param(g, "wpe.weight", "pc", (int64_t[]){c->n_positions, c->n_embd}, &normal);
    normal.pad_first = VOCAB_PAD;
    kumi_value wte =
        kumi_param(g, "wte.weight", "vc", (int64_t[]){c->vocab_size, c->n_embd}, &normal);
    kumi_value head = wte;
    kumi_value x = kumi_embedding(g, wte, tokens);
    if (b->cache) {
        kumi_value ids = kumi_input(g, "position_ids", KUMI_I32, "nt", (int64_t[]){b->n, b->t});
        x = kumi_add(g, x, kumi_embedding(g, wpe, ids));
    } else {
        x = kumi_positions(g, x, wpe);
    }
    x = kumi_dropout(g, x, c->embd_pdrop);
    for (int i = 0; i < c->n_layer; i++) {
        kumi_graph_enter(g, "h.%d", i);
        x = kumi_add(g, x, attention(g, c, kumi_layer_norm(g, x, "ln_1", eps), segments, i, b));
        x = kumi_add(g, x, mlp(g, c, kumi_layer_norm(g, x, "ln_2", eps)));
        kumi_graph_leave(g);
    }
    x = kumi_layer_norm(g, x, "ln_f", eps);
    if (b->is_inference)
        x = kumi_select(g, x, kumi_input(g, "index", KUMI_I32, "n", &b->n));
    if (!c->tie_word_embeddings)
        head =
            kumi_param(g, "lm_head.weight", "vc", (int64_t[]){c->vocab_size, c->n_embd}, &normal);
    kumi_value logits =
        kumi_linear(g, x, "lm_head", &(struct kumi_linear){.out_in = 1, .weight = head});
    if (b->is_inference)
        return kumi_graph_output(g, "logits", logits);
    kumi_value targets = kumi_input(g, "targets", KUMI_I32, "nt", batch);
    return kumi_loss_cross_entropy(g, logits, targets, -100);
}
