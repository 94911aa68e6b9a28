/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encoder-decoder transformer (Vaswani et al. 2017) with the module names of Hugging Face's BART.
 *
 *     src -> embed -> encoder layers: self_attn, fc1, fc2          -> memory
 *     tgt -> embed -> decoder layers: self_attn, encoder_attn, fc1, fc2 -> lm_head
 *                                                   ^ memory
 *
 * Inference uses two programs with the same caches. The source program (is_source) runs the encoder
 * and caches keys and values of `memory`; the target program reads them and appends its own.
 */
#include "kumi/model.h"

#include <math.h>

#include "base/arg.h"
#include "base/err.h"
#include "nn/builder.h"

/* Of whole tiles, and equal parts for powers of two; pass vocabulary pads further for others. */
enum { VOCAB_PAD = 128 };

void kumi_transformer_defaults(struct kumi_transformer *c)
{
    if (c == NULL)
        return;
    *c = (struct kumi_transformer){.d_model = 512,
                                   .encoder_layers = 6,
                                   .decoder_layers = 6,
                                   .num_heads = 8,
                                   .ffn_dim = 2048,
                                   .max_positions = 512,
                                   .activation = KUMI_RELU,
                                   .dropout = 0.1,
                                   .layer_norm_eps = 1e-5,
                                   .scale_embedding = 1,
                                   .tie_word_embeddings = 1};
}

static int check(const struct kumi_transformer *c, const struct kumi_shape_of_batch *b)
{
    if (c->d_model < 1 || c->encoder_layers < 1 || c->decoder_layers < 1 || c->num_heads < 1 ||
        c->ffn_dim < 1 || c->src_vocab_size < 1 || c->tgt_vocab_size < 1)
        return KU_ERR(KUMI_EINVAL,
                      "model: transformer: d_model %lld, encoder_layers %lld, decoder_layers %lld, "
                      "num_heads %lld, ffn_dim %lld, vocabularies %lld and %lld; all must be at "
                      "least 1",
                      (long long)c->d_model, (long long)c->encoder_layers,
                      (long long)c->decoder_layers, (long long)c->num_heads, (long long)c->ffn_dim,
                      (long long)c->src_vocab_size, (long long)c->tgt_vocab_size);
    if (b->has_segments)
        return KU_ERR(
            KUMI_EINVAL,
            "model: transformer: attention covers the whole sample; set has_segments to 0");
    if (c->d_model % c->num_heads)
        return KU_ERR(KUMI_EINVAL,
                      "model: transformer: d_model %lld is not divisible by num_heads %lld",
                      (long long)c->d_model, (long long)c->num_heads);
    if (c->share_embeddings && c->src_vocab_size != c->tgt_vocab_size)
        return KU_ERR(KUMI_EINVAL,
                      "model: transformer: share_embeddings needs one vocabulary; the sides have "
                      "%lld and %lld tokens",
                      (long long)c->src_vocab_size, (long long)c->tgt_vocab_size);
    if (b->t > c->max_positions || b->s > c->max_positions || b->cache > c->max_positions)
        return KU_ERR(KUMI_EINVAL,
                      "model: transformer: sequences of %lld and %lld tokens; max_positions is "
                      "%lld",
                      (long long)b->s, (long long)b->t, (long long)c->max_positions);
    return KUMI_OK;
}

struct side {
    struct kumi_graph *g;
    const struct kumi_transformer *c;
    const struct kumi_shape_of_batch *b;
    kumi_value lengths;  /* of the keys; 0: no masking */
    kumi_value sinusoid; /* fixed positions; 0: learned */
};

/* Linear layer over the last `contract` dims, initialized as in Glorot & Bengio 2010. */
static kumi_value project(const struct side *s, kumi_value x, const char *name, const char *out,
                          const int64_t *out_count, int contract, int64_t wide)
{
    return kumi_linear(s->g, x, name,
                       &(struct kumi_linear){.out = out,
                                             .out_count = out_count,
                                             .contract = contract,
                                             .out_in = 1,
                                             .std = sqrt(2 / (double)(s->c->d_model + wide))});
}

static kumi_value source_positions(const struct side *s)
{
    ku_id made = ku_builder_has_failed(s->g) ? 0 : ku_graph_find_input(s->g->ir, "src_positions");
    return made ? made : kumi_input(s->g, "src_positions", KUMI_I32, "n", &s->b->n);
}

/*
 * Replaces k and v by their caches. Target keys are appended to the target caches. Source keys are
 * written by the source program and only read by the target program. Both programs declare all
 * caches, in the same order.
 */
static void keep(const struct side *s, int is_cross, kumi_value *k, kumi_value *v)
{
    const struct kumi_shape_of_batch *b = s->b;
    const int64_t count = is_cross ? b->source_cache : b->cache;
    const char *const name[] = {"k_cache", "v_cache"};
    kumi_value *const x[] = {k, v};
    for (int i = 0; i < 2; i++) {
        ku_id cache = ku_builder_cache(s->g, name[i], *x[i], count);
        if (cache == 0)
            return;
        if (is_cross == b->is_source)
            *x[i] = ku_builder_cache_write(s->g, cache, *x[i],
                                           is_cross ? source_positions(s)
                                                    : ku_builder_positions(s->g, b->n));
        else
            *x[i] = s->g->ir->tensor[cache].value;
    }
}

static kumi_value attention(const struct side *s, const char *name, kumi_value x, kumi_value keys,
                            int is_own_target)
{
    const struct kumi_transformer *c = s->c;
    const int64_t heads[] = {c->num_heads, c->d_model / c->num_heads};
    struct kumi_attention_kv how = {
        .lengths = s->lengths, .causal = is_own_target, .dropout = c->attention_dropout};
    kumi_graph_enter(s->g, "%s", name);
    kumi_value q = project(s, x, "q_proj", "hd", heads, 1, c->d_model);
    kumi_value k = project(s, keys, "k_proj", "hd", heads, 1, c->d_model);
    kumi_value v = project(s, keys, "v_proj", "hd", heads, 1, c->d_model);
    if (s->b->is_inference && (is_own_target || keys != x))
        keep(s, !is_own_target, &k, &v);
    if (s->b->is_inference && is_own_target)
        how.positions = ku_builder_positions(s->g, s->b->n);
    kumi_value o = kumi_attention_kv(s->g, q, k, v, &how);
    kumi_value y = project(s, o, "out_proj", "c", &c->d_model, 2, c->d_model);
    kumi_graph_leave(s->g);
    return y;
}

static kumi_value norm(const struct side *s, kumi_value x, const char *name)
{
    return kumi_layer_norm(s->g, x, name, s->c->layer_norm_eps);
}

/* x + dropout(y), followed by the norm unless norm_first. */
static kumi_value residual(const struct side *s, kumi_value x, kumi_value y, const char *norm_name)
{
    kumi_value sum = kumi_add(s->g, x, kumi_dropout(s->g, y, s->c->dropout));
    return s->c->norm_first ? sum : norm(s, sum, norm_name);
}

static kumi_value attend(const struct side *s, const char *name, const char *norm_name,
                         kumi_value x, kumi_value keys, int causal)
{
    kumi_value in = s->c->norm_first ? norm(s, x, norm_name) : x;
    return residual(s, x, attention(s, name, in, keys ? keys : in, causal), norm_name);
}

static kumi_value feed_forward(const struct side *s, kumi_value x)
{
    const struct kumi_transformer *c = s->c;
    kumi_value in = c->norm_first ? norm(s, x, "final_layer_norm") : x;
    kumi_value z = project(s, in, "fc1", "f", &c->ffn_dim, 1, c->ffn_dim);
    z = kumi_dropout(s->g, kumi_activate(s->g, z, c->activation), c->activation_dropout);
    return residual(s, x, project(s, z, "fc2", "c", &c->d_model, 1, c->ffn_dim),
                    "final_layer_norm");
}

/* at: i32 [n, t], token positions; 0: positions from 0. */
static kumi_value embed(const struct side *s, kumi_value table, kumi_value ids, kumi_value at)
{
    const struct kumi_transformer *c = s->c;
    const int64_t rows[] = {c->max_positions, c->d_model};
    const struct kumi_init small = {.std = 0.02};
    kumi_value x = kumi_embedding(s->g, table, ids);
    if (c->scale_embedding)
        x = kumi_scale(s->g, x, sqrt((double)c->d_model));
    kumi_value positions = c->learned_positions
                               ? kumi_param(s->g, "embed_positions.weight", "pc", rows, &small)
                               : s->sinusoid;
    x = at ? kumi_add(s->g, x, kumi_embedding(s->g, positions, at))
           : kumi_positions(s->g, x, positions);
    return kumi_dropout(s->g, x, c->dropout);
}

static kumi_value table(const struct side *s, const char *name, int64_t words)
{
    const struct kumi_init init = {.std = 1 / sqrt((double)s->c->d_model), .pad_first = VOCAB_PAD};
    return kumi_param(s->g, name, "vc", (int64_t[]){words, s->c->d_model}, &init);
}

static kumi_value encode(const struct side *s, kumi_value x)
{
    for (int i = 0; i < s->c->encoder_layers; i++) {
        kumi_graph_enter(s->g, "layers.%d", i);
        x = attend(s, "self_attn", "self_attn_layer_norm", x, 0, 0);
        x = feed_forward(s, x);
        kumi_graph_leave(s->g);
    }
    return s->c->norm_first ? norm(s, x, "layer_norm") : x;
}

static kumi_value decode(const struct side *own, const struct side *cross, kumi_value x,
                         kumi_value memory)
{
    for (int i = 0; i < own->c->decoder_layers; i++) {
        kumi_graph_enter(own->g, "layers.%d", i);
        x = attend(own, "self_attn", "self_attn_layer_norm", x, 0, 1);
        x = attend(cross, "encoder_attn", "encoder_attn_layer_norm", x, memory, 0);
        x = feed_forward(own, x);
        kumi_graph_leave(own->g);
    }
    return own->c->norm_first ? norm(own, x, "layer_norm") : x;
}

int kumi_transformer_build(struct kumi_graph *g, const struct kumi_transformer *c,
                           const struct kumi_shape_of_batch *b)
{
    struct kumi_transformer defaults;
    KU_GIVEN(g, "graph");
    KU_GIVEN(b, "batch");
    if (c == NULL)
        kumi_transformer_defaults(&defaults);
    c = c ? c : &defaults;
    KU_TRY(check(c, b));
    const int64_t src_dims[] = {b->n, b->s}, tgt_dims[] = {b->n, b->t};
    kumi_value waves = c->learned_positions ? 0 : kumi_sinusoid(g, c->max_positions, c->d_model);
    struct side src = {g, c, b, kumi_input(g, "src_len", KUMI_I32, "n", &b->n), waves};
    struct side tgt = {g, c, b, 0, waves};
    if (!b->is_inference)
        tgt.lengths = kumi_input(g, "tgt_len", KUMI_I32, "n", &b->n);
    kumi_value words = kumi_input(g, "src", KUMI_I32, "nt", src_dims);
    kumi_value shared = c->share_embeddings ? table(&src, "shared.weight", c->src_vocab_size) : 0;

    kumi_graph_enter(g, "encoder");
    kumi_value from = shared ? shared : table(&src, "embed_tokens.weight", c->src_vocab_size);
    kumi_value memory = encode(&src, embed(&src, from, words, 0));
    kumi_graph_leave(g);

    kumi_graph_enter(g, "decoder");
    kumi_value to = shared ? shared : table(&tgt, "embed_tokens.weight", c->tgt_vocab_size);
    kumi_value at = b->is_inference ? kumi_input(g, "position_ids", KUMI_I32, "nt", tgt_dims) : 0;
    kumi_value x = embed(&tgt, to, kumi_input(g, "tgt_in", KUMI_I32, "nt", tgt_dims), at);
    x = decode(&tgt, &src, x, memory);
    kumi_graph_leave(g);

    kumi_value head =
        c->tie_word_embeddings ? to : table(&tgt, "lm_head.weight", c->tgt_vocab_size);
    kumi_value logits =
        kumi_linear(g, x, "lm_head", &(struct kumi_linear){.out_in = 1, .weight = head});
    if (b->is_inference)
        return b->is_source ? kumi_graph_error(g) : kumi_graph_output(g, "logits", logits);
    kumi_value targets = kumi_input(g, "targets", KUMI_I32, "nt", tgt_dims);
    return kumi_loss_cross_entropy(g, logits, targets, -100);
}
