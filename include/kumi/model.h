/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KUMI_MODEL_H
#define KUMI_MODEL_H

#include "kumi/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * In every kumi_<model>_build a NULL config is that of kumi_<model>_defaults; batch must be given.
 * kumi_<model>_defaults does nothing with NULL.
 */

/* GPT-2 (Radford et al. 2019) under Hugging Face's keys; kumi_gpt2_defaults gives Hugging Face's
 * defaults. */
struct kumi_gpt2 {
    int64_t n_layer, n_head, n_embd, n_positions, vocab_size;
    int64_t n_inner; /* 0 = 4 * n_embd */
    enum kumi_activation activation;
    double layer_norm_epsilon, resid_pdrop, embd_pdrop, attn_pdrop, initializer_range;
    int tie_word_embeddings, scale_attn_weights, scale_attn_by_inverse_layer_idx;
};
KUMI_API void kumi_gpt2_defaults(struct kumi_gpt2 *config);

/*
 * What a model is built for: n samples of t tokens; with targets (i32 [n, t], port "targets") it
 * ends in the loss, without in the port "logits" [n, v] of the position that the port "index" (i32
 * [n]) names. Tokens are the port "tokens" (i32 [n, t]). With has_segments a port "segments" (i32
 * [n, t]) numbers the documents of a sample, and attention stays inside them; positions run on from
 * one to the next. For training and evaluation of gpt2 and llama; bert and transformer refuse it.
 */
struct kumi_shape_of_batch {
    int64_t n, t;
    int64_t s; /* of models that read a source: its tokens */
    /* Of these, for inference: the program that reads the source and keeps the keys and values that
     * the target will look at, `source_cache` tokens a sample; else the one that makes targets. */
    int is_source;
    int64_t source_cache;
    int is_inference;
    int has_segments;
    /*
     * 0, or for inference: keys and values of so many tokens a sample are kept from run to run.
     * Token i of a sample then stands at positions[n] + i (port "positions", i32 [n]), sees what
     * was kept before it, and is kept itself; ids of learned positions are the port "position_ids"
     * (i32 [n, t]).
     */
    int64_t cache;
};
/*
 * Builds GPT-2 with Hugging Face's tensor names (without "transformer."). The vocabulary is padded
 * to a multiple of 128 inside. Errors: KUMI_EINVAL (n_embd not divisible by n_head, t >
 * n_positions, ..).
 */
KUMI_API int kumi_gpt2_build(struct kumi_graph *graph, const struct kumi_gpt2 *config,
                             const struct kumi_shape_of_batch *batch);

/* Llama 2, 3, 3.1 and 3.2 (Touvron et al. 2023; Grattafiori et al. 2024) under Hugging Face's keys;
 * kumi_llama_defaults gives Hugging Face's defaults. */
struct kumi_llama {
    int64_t vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads;
    int64_t num_key_value_heads; /* 0 = num_attention_heads */
    int64_t head_dim;            /* 0 = hidden_size / num_attention_heads */
    int64_t max_position_embeddings;
    enum kumi_activation hidden_act;
    double rms_norm_eps, attention_dropout, initializer_range;
    int tie_word_embeddings, attention_bias, mlp_bias;
    struct kumi_rope rope; /* positions: left 0 */
};
KUMI_API void kumi_llama_defaults(struct kumi_llama *config);
/*
 * Builds Llama with the names and shapes of Hugging Face's LlamaForCausalLM. Batch and padding as
 * for kumi_gpt2_build. Errors: KUMI_EINVAL (heads that do not divide, an odd head_dim, ..).
 */
KUMI_API int kumi_llama_build(struct kumi_graph *graph, const struct kumi_llama *config,
                              const struct kumi_shape_of_batch *batch);

/* BERT (Devlin et al. 2019) under Hugging Face's keys; kumi_bert_defaults gives its defaults, which
 * are those of the base model. */
struct kumi_bert {
    int64_t vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads;
    int64_t max_position_embeddings, type_vocab_size;
    enum kumi_activation hidden_act;
    double layer_norm_eps, hidden_dropout_prob, attention_probs_dropout_prob, initializer_range;
};
KUMI_API void kumi_bert_defaults(struct kumi_bert *config);
/*
 * Builds BERT for masked language modelling with the names and shapes of Hugging Face's
 * BertForMaskedLM (no pooler). Ports beside kumi_gpt2_build's: "token_type_ids" (i32 [n, t]) and
 * "lengths" (i32 [n]): tokens at or behind it are padding, and nobody looks at them. Targets of
 * -100 do not count.
 */
KUMI_API int kumi_bert_build(struct kumi_graph *graph, const struct kumi_bert *config,
                             const struct kumi_shape_of_batch *batch);

/*
 * Residual networks for images. depth 18, 34, 50, 101, 152: as torchvision (He et al. 2016a, table
 * 1; stride in the 3x3 convolution of a bottleneck, "v1.5"). Any other 6 n + 2 (20, 32, 44, 56,
 * 110): the same paper's section 4.2, three stages of 16, 32 and 64 channels.
 */
enum kumi_resnet_stem {
    KUMI_STEM_IMAGENET, /* 7x7 convolution of stride 2, 3x3 max pooling of stride 2 */
    KUMI_STEM_CIFAR     /* 3x3 convolution of stride 1: for images of about 32 pixels */
};
/* What joins a block's input where its shape changes. */
enum kumi_resnet_shortcut {
    KUMI_SHORTCUT_AUTO,      /* A for depth 6 n + 2, B for torchvision's */
    KUMI_SHORTCUT_PAD,       /* option A: every second pixel, zeros for half of the new channels on
                                either side; no parameters; basic blocks alone */
    KUMI_SHORTCUT_PROJECTION /* option B: 1x1 convolution and batch norm, "downsample" */
};
struct kumi_resnet {
    int64_t depth, num_classes, num_channels;
    int64_t depths[4];  /* blocks of each stage; all 0: those of depth, which counts no further
                           otherwise */
    int bottleneck;     /* with depths: blocks of 1x1, 3x3, 1x1 convolutions, four times as wide */
    int64_t width;      /* of the first stage; 0 = 64, for depth 6 n + 2 16 */
    int64_t image_size; /* height and width; 0 = 224, with the cifar stem 32 */
    enum kumi_resnet_stem stem;
    enum kumi_resnet_shortcut shortcut;
    int zero_init_residual; /* the last batch norm of a block begins with weight 0 */
    int sync_batch_norm;    /* statistics over all ranks */
    double batch_norm_eps, batch_norm_momentum;
};
/* torchvision's ResNet-50: 1,000 classes. Depth 6 n + 2 takes the cifar stem whatever `stem` says.
 */
KUMI_API void kumi_resnet_defaults(struct kumi_resnet *config);
/* 0, or KUMI_EINVAL with the key that is at fault. image_size: out, with the default; NULL is fine.
 */
KUMI_API int kumi_resnet_check(const struct kumi_resnet *config, int64_t *image_size);
/*
 * Builds it with torchvision's tensor names. Ports: "images" f32 [n, height, width, channels];
 * "targets" i32 [n], classes, or for inference the result "logits" [n, classes]. Convolutions begin
 * normal with std sqrt(2 / fan out). Errors: KUMI_EINVAL.
 */
KUMI_API int kumi_resnet_build(struct kumi_graph *graph, const struct kumi_resnet *config,
                               const struct kumi_shape_of_batch *batch);

/* A classifier of linear layers, with an activation and dropout behind each hidden one. */
enum { KUMI_MLP_MAX_INPUT = 3, KUMI_MLP_MAX_HIDDEN = 16 };
struct kumi_mlp {
    int n_input;                       /* dimensions of a sample, 1 to 3: height, width, channels */
    int64_t input[KUMI_MLP_MAX_INPUT]; /* default 28, 28, 1 */
    int n_hidden;                      /* 0: a linear classifier */
    int64_t hidden[KUMI_MLP_MAX_HIDDEN]; /* widths */
    int64_t num_classes;                 /* default 10 */
    enum kumi_activation activation;     /* default KUMI_RELU */
    double dropout;
};
KUMI_API void kumi_mlp_defaults(struct kumi_mlp *config);
/*
 * Builds it on the port "images" (f32 [n, input..]): parameters layers.0.weight, in files the
 * matrix [width, elements of the input] of an nn.Linear behind a flatten, layers.0.bias, ... With
 * the port "targets" (i32 [n]) it ends in the loss, with the metrics accuracy and, of more than
 * five classes, top5; for inference in the port "logits" [n, num_classes]. batch->t is not read.
 * Errors: KUMI_EINVAL.
 */
KUMI_API int kumi_mlp_build(struct kumi_graph *graph, const struct kumi_mlp *config,
                            const struct kumi_shape_of_batch *batch);

/*
 * The encoder-decoder Transformer (Vaswani et al. 2017), its tensors named as those of Hugging
 * Face's BART and Marian.
 */
struct kumi_transformer {
    int64_t d_model, encoder_layers, decoder_layers, num_heads, ffn_dim;
    int64_t src_vocab_size, tgt_vocab_size;
    int64_t max_positions; /* longest source and target; target's <s> counts */
    enum kumi_activation activation;
    double dropout, attention_dropout, activation_dropout, layer_norm_eps;
    int norm_first;        /* norms before the layers and behind the last (pre-norm), or behind the
                              residual sums as in the paper */
    int learned_positions; /* tables of max_positions, or sinusoids */
    int scale_embedding;   /* embeddings times sqrt(d_model) */
    int share_embeddings;  /* one table for source and target: equal vocabularies */
    int tie_word_embeddings; /* the output's matrix is the target's table */
};
/* The paper's base model, without vocabularies. */
KUMI_API void kumi_transformer_defaults(struct kumi_transformer *config);
/*
 * Builds it for n pairs of s source and t target tokens. Ports: "src" (i32 [n, s]), "src_len" (i32
 * [n]: tokens at or behind it are padding, and nobody looks at them), "tgt_in" (i32 [n, t], <s>
 * first), "tgt_len" (i32 [n]), "targets" (i32 [n, t]; negative ones do not count). Vocabularies are
 * padded to multiples of 128 inside.
 *
 * For inference: with is_source the ports src, src_len and "src_positions" (i32 [n], zeros); else
 * src_len, tgt_in, "positions" and "position_ids" (as for kumi_gpt2_build with a cache) and the
 * result "logits" [n, t, v]. Errors: KUMI_EINVAL.
 */
KUMI_API int kumi_transformer_build(struct kumi_graph *graph, const struct kumi_transformer *config,
                                    const struct kumi_shape_of_batch *batch);

#ifdef __cplusplus
}
#endif
#endif
