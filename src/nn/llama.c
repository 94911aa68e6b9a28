/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Llama (Touvron et al. 2023) with Hugging Face's tensor names. Pre-norm decoder with RMS norm,
 * rotary positions, grouped-query attention and SwiGLU:
 *
 *     num_hidden_layers x { x += self_attn(input_layernorm(x));
 *                           x += mlp(post_attention_layernorm(x)) } -> norm -> lm_head
 */
#include "kumi/model.h"

#include "base/arg.h"
#include "base/err.h"
#include "nn/builder.h"

/* Of whole tiles, and equal parts for powers of two; pass vocabulary pads further for others. */
enum { VOCAB_PAD = 128 };

void kumi_llama_defaults(struct kumi_llama *c)
{
    if (c == NULL)
        return;
    *c = (struct kumi_llama){.vocab_size = 32000,
                             .hidden_size = 4096,
                             .intermediate_size = 11008,
                             .num_hidden_layers = 32,
                             .num_attention_heads = 32,
                             .max_position_embeddings = 2048,
                             .hidden_act = KUMI_SILU,
                             .rms_norm_eps = 1e-6,
                             .initializer_range = 0.02,
                             .rope = {.theta = 10000, .factor = 1}};
}

struct sizes {
    int64_t keys, group, width; /* key heads, query heads per key head, head width */
};
static struct sizes sizes_of(const struct kumi_llama *c)
{
    struct sizes s = {c->num_key_value_heads, 0, c->head_dim};
    s.keys = s.keys ? s.keys : c->num_attention_heads;
    s.group = s.keys ? c->num_attention_heads / s.keys : 0;
    if (s.width == 0 && c->num_attention_heads)
        s.width = c->hidden_size / c->num_attention_heads;
    return s;
}

static int check(const struct kumi_llama *c)
{
    const struct sizes s = sizes_of(c);
    if (c->vocab_size < 1 || c->hidden_size < 1 || c->intermediate_size < 1 ||
        c->num_hidden_layers < 1 || c->num_attention_heads < 1)
        return KU_ERR(KUMI_EINVAL,
                      "model: llama: vocab_size %lld, hidden_size %lld, intermediate_size %lld, "
                      "num_hidden_layers %lld, num_attention_heads %lld; all must be at least 1",
                      (long long)c->vocab_size, (long long)c->hidden_size,
                      (long long)c->intermediate_size, (long long)c->num_hidden_layers,
                      (long long)c->num_attention_heads);
    if (s.keys < 1 || s.keys * s.group != c->num_attention_heads)
        return KU_ERR(KUMI_EINVAL,
                      "model: llama: num_attention_heads %lld is not divisible by "
                      "num_key_value_heads %lld",
                      (long long)c->num_attention_heads, (long long)s.keys);
    if (c->head_dim == 0 && c->hidden_size % c->num_attention_heads)
        return KU_ERR(KUMI_EINVAL,
                      "model: llama: hidden_size %lld is not divisible by num_attention_heads "
                      "%lld; give head_dim",
                      (long long)c->hidden_size, (long long)c->num_attention_heads);
    if (s.width < 2 || s.width % 2)
        return KU_ERR(KUMI_EINVAL,
                      "model: llama: head_dim %lld; rotary positions need an even number",
                      (long long)s.width);
    return KUMI_OK;
}

/* Projects to key or value heads [n,t,h,d], or to grouped query heads [n,t,h,r,d]. */
static kumi_value project(struct kumi_graph *g, const struct kumi_llama *c, kumi_value x,
                          const char *name, int is_query)
{
    const struct sizes s = sizes_of(c);
    const int is_grouped = is_query && s.group > 1;
    return kumi_linear(
        g, x, name,
        &(struct kumi_linear){.out = is_grouped ? "hrd" : "hd",
                              .out_count = is_grouped ? (int64_t[]){s.keys, s.group, s.width}
                                                      : (int64_t[]){s.keys, s.width},
                              .out_in = 1,
                              .no_bias = !c->attention_bias,
                              .std = c->initializer_range});
}

static kumi_value attention(struct kumi_graph *g, const struct kumi_llama *c, kumi_value x,
                            kumi_value segments, const struct kumi_shape_of_batch *b)
{
    const struct kumi_attention_kv whole = {
        .segments = segments, .causal = 1, .dropout = c->attention_dropout};
    struct kumi_rope rope = c->rope;
    if (b->cache) {
        rope.positions = ku_builder_positions(g, b->n);
        if (rope.type == KUMI_ROPE_DYNAMIC)
            rope.lengths = ku_builder_lengths(g, b->n);
    }
    kumi_graph_enter(g, "self_attn");
    kumi_value q = kumi_rope(g, project(g, c, x, "q_proj", 1), &rope);
    kumi_value k = kumi_rope(g, project(g, c, x, "k_proj", 0), &rope);
    kumi_value v = project(g, c, x, "v_proj", 0);
    kumi_value o = b->cache ? ku_builder_cached_attention(g, q, k, v, b->cache, 0)
                            : kumi_attention_kv(g, q, k, v, &whole);
    kumi_value y = kumi_linear(g, o, "o_proj",
                               &(struct kumi_linear){.out = "c",
                                                     .out_count = &c->hidden_size,
                                                     .contract = sizes_of(c).group > 1 ? 3 : 2,
                                                     .out_in = 1,
                                                     .no_bias = !c->attention_bias,
                                                     .std = c->initializer_range});
    kumi_graph_leave(g);
    return y;
}

static kumi_value mlp(struct kumi_graph *g, const struct kumi_llama *c, kumi_value x)
{
    struct kumi_linear up = {.out = "f",
                             .out_count = &c->intermediate_size,
                             .out_in = 1,
                             .no_bias = !c->mlp_bias,
                             .std = c->initializer_range};
    struct kumi_linear down = up;
    down.out = "c";
    down.out_count = &c->hidden_size;
    kumi_graph_enter(g, "mlp");
    kumi_value gate = kumi_linear(g, x, "gate_proj", &up);
    kumi_value both = kumi_glu(g, gate, kumi_linear(g, x, "up_proj", &up), c->hidden_act);
    kumi_value y = kumi_linear(g, both, "down_proj", &down);
    kumi_graph_leave(g);
    return y;
}

static kumi_value decoder(struct kumi_graph *g, const struct kumi_llama *c, kumi_value x,
                          kumi_value segments, const struct kumi_shape_of_batch *b)
{
    const double eps = c->rms_norm_eps;
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        kumi_graph_enter(g, "layers.%lld", (long long)i);
        kumi_value y = kumi_rms_norm(g, x, "input_layernorm", eps);
        x = kumi_add(g, x, attention(g, c, y, segments, b));
        x = kumi_add(g, x, mlp(g, c, kumi_rms_norm(g, x, "post_attention_layernorm", eps)));
        kumi_graph_leave(g);
    }
    return kumi_rms_norm(g, x, "norm", eps);
}

int kumi_llama_build(struct kumi_graph *g, const struct kumi_llama *c,
                     const struct kumi_shape_of_batch *b)
{
    struct kumi_llama defaults;
    KU_GIVEN(g, "graph");
    KU_GIVEN(b, "batch");
    if (c == NULL)
        kumi_llama_defaults(&defaults);
    c = c ? c : &defaults;
    KU_TRY(check(c));
    const int64_t table[] = {c->vocab_size, c->hidden_size}, batch[] = {b->n, b->t};
    const struct kumi_init normal = {.std = c->initializer_range, .pad_first = VOCAB_PAD};
    kumi_value tokens = kumi_input(g, "tokens", KUMI_I32, "nt", batch), segments = 0;
    if (b->has_segments && !b->is_inference)
        segments = kumi_input(g, "segments", KUMI_I32, "nt", batch);
    kumi_value embedding = kumi_param(g, "model.embed_tokens.weight", "vc", table, &normal);
    kumi_value head = embedding;
    kumi_graph_enter(g, "model");
    kumi_value x = decoder(g, c, kumi_embedding(g, embedding, tokens), segments, b);
    kumi_graph_leave(g);
    if (b->is_inference)
        x = kumi_select(g, x, kumi_input(g, "index", KUMI_I32, "n", &b->n));
    if (!c->tie_word_embeddings)
        head = kumi_param(g, "lm_head.weight", "vc", table, &normal);
    kumi_value logits =
        kumi_linear(g, x, "lm_head", &(struct kumi_linear){.out_in = 1, .weight = head});
    if (b->is_inference)
        return kumi_graph_output(g, "logits", logits);
    kumi_value targets = kumi_input(g, "targets", KUMI_I32, "nt", batch);
    return kumi_loss_cross_entropy(g, logits, targets, -100);
}
