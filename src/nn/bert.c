/* SPDX-License-Identifier: Apache-2.0 */
/*
 * BERT (Devlin et al. 2019) with the tensor names of Hugging Face's BertForMaskedLM. Post-norm:
 *
 *     embeddings: words + positions + token types -> LayerNorm
 *     num_hidden_layers x { attention -> add -> LayerNorm -> MLP -> add -> LayerNorm }
 *     cls.predictions: dense -> activation -> LayerNorm -> decoder tied to the word embeddings
 */
#include "kumi/model.h"

#include "base/arg.h"
#include "base/err.h"

/* Of whole tiles, and equal parts for powers of two; pass vocabulary pads further for others. */
enum { VOCAB_PAD = 128 };

void kumi_bert_defaults(struct kumi_bert *c)
{
    if (c == NULL)
        return;
    *c = (struct kumi_bert){.vocab_size = 30522,
                            .hidden_size = 768,
                            .intermediate_size = 3072,
                            .num_hidden_layers = 12,
                            .num_attention_heads = 12,
                            .max_position_embeddings = 512,
                            .type_vocab_size = 2,
                            .hidden_act = KUMI_GELU,
                            .layer_norm_eps = 1e-12,
                            .hidden_dropout_prob = 0.1,
                            .attention_probs_dropout_prob = 0.1,
                            .initializer_range = 0.02};
}

static int check(const struct kumi_bert *c, const struct kumi_shape_of_batch *b)
{
    if (c->vocab_size < 1 || c->hidden_size < 1 || c->intermediate_size < 1 ||
        c->num_hidden_layers < 1 || c->num_attention_heads < 1 || c->type_vocab_size < 1)
        return KU_ERR(KUMI_EINVAL,
                      "model: bert: vocab_size %lld, hidden_size %lld, intermediate_size %lld, "
                      "num_hidden_layers %lld, num_attention_heads %lld, type_vocab_size %lld; all "
                      "must be at least 1",
                      (long long)c->vocab_size, (long long)c->hidden_size,
                      (long long)c->intermediate_size, (long long)c->num_hidden_layers,
                      (long long)c->num_attention_heads, (long long)c->type_vocab_size);
    if (c->hidden_size % c->num_attention_heads)
        return KU_ERR(KUMI_EINVAL,
                      "model: bert: hidden_size %lld is not divisible by num_attention_heads %lld",
                      (long long)c->hidden_size, (long long)c->num_attention_heads);
    if (b->has_segments)
        return KU_ERR(KUMI_EINVAL,
                      "model: bert: attention covers the whole sample; set has_segments to 0");
    if (b->t > c->max_position_embeddings)
        return KU_ERR(KUMI_EINVAL,
                      "model: bert: sequences of %lld tokens; max_position_embeddings is %lld",
                      (long long)b->t, (long long)c->max_position_embeddings);
    return KUMI_OK;
}

/* Linear layer (nn.Linear) to `width` outputs. */
static kumi_value dense(struct kumi_graph *g, const struct kumi_bert *c, kumi_value x,
                        const char *name, const char *out, int64_t width, int contract)
{
    return kumi_linear(g, x, name,
                       &(struct kumi_linear){.out = out,
                                             .out_count = &width,
                                             .contract = contract,
                                             .out_in = 1,
                                             .std = c->initializer_range});
}

/* Dense, dropout, add the residual, then the norm of the sum (post-norm). */
static kumi_value output(struct kumi_graph *g, const struct kumi_bert *c, kumi_value x,
                         kumi_value residual, int contract)
{
    kumi_graph_enter(g, "output");
    kumi_value y = dense(g, c, x, "dense", "c", c->hidden_size, contract);
    y = kumi_add(g, kumi_dropout(g, y, c->hidden_dropout_prob), residual);
    y = kumi_layer_norm(g, y, "LayerNorm", c->layer_norm_eps);
    kumi_graph_leave(g);
    return y;
}

static kumi_value attention(struct kumi_graph *g, const struct kumi_bert *c, kumi_value x,
                            kumi_value lengths)
{
    const int64_t heads[] = {c->num_attention_heads, c->hidden_size / c->num_attention_heads};
    const struct kumi_linear each = {
        .out = "hd", .out_count = heads, .out_in = 1, .std = c->initializer_range};
    kumi_graph_enter(g, "attention");
    kumi_graph_enter(g, "self");
    kumi_value q = kumi_linear(g, x, "query", &each);
    kumi_value k = kumi_linear(g, x, "key", &each);
    kumi_value v = kumi_linear(g, x, "value", &each);
    kumi_value o =
        kumi_attention_kv(g, q, k, v,
                          &(struct kumi_attention_kv){.lengths = lengths,
                                                      .dropout = c->attention_probs_dropout_prob});
    kumi_graph_leave(g);
    kumi_value y = output(g, c, o, x, 2);
    kumi_graph_leave(g);
    return y;
}

static kumi_value encoder(struct kumi_graph *g, const struct kumi_bert *c, kumi_value x,
                          kumi_value lengths)
{
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        kumi_graph_enter(g, "encoder.layer.%lld", (long long)i);
        x = attention(g, c, x, lengths);
        kumi_graph_enter(g, "intermediate");
        kumi_value inner = dense(g, c, x, "dense", "f", c->intermediate_size, 1);
        inner = kumi_activate(g, inner, c->hidden_act);
        kumi_graph_leave(g);
        x = output(g, c, inner, x, 1);
        kumi_graph_leave(g);
    }
    return x;
}

static kumi_value embed(struct kumi_graph *g, const struct kumi_bert *c,
                        const struct kumi_shape_of_batch *b, kumi_value *words)
{
    struct kumi_init normal = {.std = c->initializer_range};
    const int64_t batch[] = {b->n, b->t}, width = c->hidden_size;
    kumi_value tokens = kumi_input(g, "tokens", KUMI_I32, "nt", batch);
    kumi_value type_ids = kumi_input(g, "token_type_ids", KUMI_I32, "nt", batch);
    kumi_graph_enter(g, "embeddings");
    kumi_value positions = kumi_param(g, "position_embeddings.weight", "pc",
                                      (int64_t[]){c->max_position_embeddings, width}, &normal);
    kumi_value types = kumi_param(g, "token_type_embeddings.weight", "pc",
                                  (int64_t[]){c->type_vocab_size, width}, &normal);
    normal.pad_first = VOCAB_PAD;
    *words =
        kumi_param(g, "word_embeddings.weight", "vc", (int64_t[]){c->vocab_size, width}, &normal);
    kumi_value x =
        kumi_add(g, kumi_embedding(g, *words, tokens), kumi_embedding(g, types, type_ids));
    x = kumi_layer_norm(g, kumi_positions(g, x, positions), "LayerNorm", c->layer_norm_eps);
    kumi_graph_leave(g);
    return kumi_dropout(g, x, c->hidden_dropout_prob);
}

/*
 * The prediction head. Its decoder is tied to the word embeddings.
 */
static kumi_value predict(struct kumi_graph *g, const struct kumi_bert *c, kumi_value x,
                          kumi_value words)
{
    kumi_graph_enter(g, "cls.predictions");
    kumi_value bias =
        kumi_param(g, "bias", "v", &c->vocab_size, &(struct kumi_init){.pad_first = VOCAB_PAD});
    kumi_graph_enter(g, "transform");
    x = kumi_activate(g, dense(g, c, x, "dense", "e", c->hidden_size, 1), c->hidden_act);
    x = kumi_layer_norm(g, kumi_rename(g, x, 'c'), "LayerNorm", c->layer_norm_eps);
    kumi_graph_leave(g);
    kumi_value logits = kumi_linear(
        g, x, "decoder", &(struct kumi_linear){.out_in = 1, .weight = words, .bias = bias});
    kumi_graph_leave(g);
    return logits;
}

int kumi_bert_build(struct kumi_graph *g, const struct kumi_bert *c,
                    const struct kumi_shape_of_batch *b)
{
    struct kumi_bert defaults;
    KU_GIVEN(g, "graph");
    KU_GIVEN(b, "batch");
    if (c == NULL)
        kumi_bert_defaults(&defaults);
    c = c ? c : &defaults;
    KU_TRY(check(c, b));
    kumi_value words, lengths = kumi_input(g, "lengths", KUMI_I32, "n", &b->n);
    kumi_graph_enter(g, "bert");
    kumi_value x = encoder(g, c, embed(g, c, b, &words), lengths);
    kumi_graph_leave(g);
    if (b->is_inference)
        x = kumi_select(g, x, kumi_input(g, "index", KUMI_I32, "n", &b->n));
    kumi_value logits = predict(g, c, x, words);
    if (b->is_inference)
        return kumi_graph_output(g, "logits", logits);
    kumi_value targets = kumi_input(g, "targets", KUMI_I32, "nt", (int64_t[]){b->n, b->t});
    return kumi_loss_cross_entropy(g, logits, targets, -100);
}
