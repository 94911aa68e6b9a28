/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KUMI_MODEL_H
#define KUMI_MODEL_H

#include "kumi/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Complete models. In every kumi_<model>_build, config NULL means kumi_<model>_defaults; batch is
 * required. kumi_<model>_defaults accepts NULL and then does nothing.
 */

/*
 * GPT-2 with Hugging Face's configuration keys; kumi_gpt2_defaults sets Hugging Face's defaults.
 *
 * Source: Radford et al. 2019.
 */
struct kumi_gpt2 {
    int64_t n_layer, n_head, n_embd, n_positions, vocab_size;
    int64_t n_inner; /* 0: 4 * n_embd */
    enum kumi_activation activation;
    double layer_norm_epsilon, resid_pdrop, embd_pdrop, attn_pdrop, initializer_range;
    int tie_word_embeddings, scale_attn_weights, scale_attn_by_inverse_layer_idx;
};
KUMI_API void kumi_gpt2_defaults(struct kumi_gpt2 *config);

/*
 * The batch that a model is built for: n samples of t tokens. Ports of gpt2, llama and bert:
 *
 *   port        shape        when
 *   tokens      i32 [n, t]   always
 *   targets     i32 [n, t]   training and evaluation: the graph ends in the loss
 *   index       i32 [n]      inference: position whose logits are the output "logits" [n, v]
 *   segments    i32 [n, t]   has_segments: number of each token's document
 *
 * With has_segments attention stays within a document, and positions continue from one document to
 * the next. gpt2 and llama support it for training and evaluation; bert and transformer do not.
 */
struct kumi_shape_of_batch {
    int64_t n, t;
    int64_t s; /* source tokens, of models with an encoder */
    /*
     * Encoder-decoder models, for inference: is_source builds the program that reads the source and
     * stores the keys and values for cross attention, `source_cache` tokens per sample. Otherwise
     * the decoder is built.
     */
    int is_source;
    int64_t source_cache;
    int is_inference;
    int has_segments;
    /*
     * 0, or for inference: tokens per sample whose keys and values are stored from run to run (KV
     * cache). Token i of a sample is then at positions[n] + i (port "positions", i32 [n]), attends
     * to the stored tokens before it, and is stored itself. Learned positions read the port
     * "position_ids" (i32 [n, t]); rotary positions of type dynamic read the port "lengths" (i32
     * [n]), the number of tokens of each sample's text so far, from which their frequencies follow.
     */
    int64_t cache;
};
/*
 * Build GPT-2 with Hugging Face's tensor names (without "transformer."). The vocabulary is padded
 * internally to a multiple of 128.
 *
 * Errors: KUMI_EINVAL (n_embd not divisible by n_head, t > n_positions, ..).
 */
KUMI_API int kumi_gpt2_build(struct kumi_graph *graph, const struct kumi_gpt2 *config,
                             const struct kumi_shape_of_batch *batch);

/*
 * Llama 2, 3, 3.1 and 3.2 with Hugging Face's configuration keys; kumi_llama_defaults sets Hugging
 * Face's defaults.
 *
 * Source: Touvron et al. 2023; Grattafiori et al. 2024.
 */
struct kumi_llama {
    int64_t vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads;
    int64_t num_key_value_heads; /* 0: num_attention_heads */
    int64_t head_dim;            /* 0: hidden_size / num_attention_heads */
    int64_t max_position_embeddings;
    enum kumi_activation hidden_act;
    double rms_norm_eps, attention_dropout, initializer_range;
    int tie_word_embeddings, attention_bias, mlp_bias;
    struct kumi_rope rope; /* its positions and lengths must be 0 */
};
KUMI_API void kumi_llama_defaults(struct kumi_llama *config);
/*
 * Build Llama with the tensor names and shapes of Hugging Face's LlamaForCausalLM. Batch and
 * padding are as for kumi_gpt2_build.
 *
 * Errors: KUMI_EINVAL (heads that do not divide, an odd head_dim, ..).
 */
KUMI_API int kumi_llama_build(struct kumi_graph *graph, const struct kumi_llama *config,
                              const struct kumi_shape_of_batch *batch);

/*
 * BERT with Hugging Face's configuration keys; kumi_bert_defaults sets the base model.
 *
 * Source: Devlin et al. 2019.
 */
struct kumi_bert {
    int64_t vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads;
    int64_t max_position_embeddings, type_vocab_size;
    enum kumi_activation hidden_act;
    double layer_norm_eps, hidden_dropout_prob, attention_probs_dropout_prob, initializer_range;
};
KUMI_API void kumi_bert_defaults(struct kumi_bert *config);
/*
 * Build BERT for masked language modelling with the tensor names and shapes of Hugging Face's
 * BertForMaskedLM (without the pooler).
 *
 *   port             shape        beside those of kumi_gpt2_build
 *   token_type_ids   i32 [n, t]
 *   lengths          i32 [n]      tokens from lengths[n] on are padding, and attention masks them
 *
 * Targets of -100 do not count.
 */
KUMI_API int kumi_bert_build(struct kumi_graph *graph, const struct kumi_bert *config,
                             const struct kumi_shape_of_batch *batch);

/*
 * Residual networks for images.
 *
 *   depth
 *   18, 34, 50, 101, 152    as torchvision: He et al. 2016a, table 1, with the stride in the 3x3
 *                           convolution of a bottleneck ("v1.5")
 *   any other 6 n + 2:      the same paper, section 4.2: three stages of 16, 32 and 64 channels
 *   20, 32, 44, 56, 110
 */
enum kumi_resnet_stem {
    KUMI_STEM_IMAGENET, /* 7x7 convolution of stride 2, 3x3 max pooling of stride 2 */
    KUMI_STEM_CIFAR     /* 3x3 convolution of stride 1, for images of about 32 pixels */
};
/* The shortcut of a residual block whose shape changes. */
enum kumi_resnet_shortcut {
    KUMI_SHORTCUT_AUTO, /* A for depth 6 n + 2, B for torchvision's depths */
    /*
     * Option A: every second pixel, half of the new channels as zeros on either side. No
     * parameters; only for basic blocks.
     */
    KUMI_SHORTCUT_PAD,
    KUMI_SHORTCUT_PROJECTION /* option B: 1x1 convolution and batch norm, "downsample" */
};
struct kumi_resnet {
    int64_t depth, num_classes, num_channels;
    int64_t depths[4];  /* blocks of each stage, which replace depth's; all 0: depth's */
    int bottleneck;     /* with depths: bottleneck blocks (1x1, 3x3, 1x1), four times as wide */
    int64_t width;      /* of the first stage; 0: 64, or 16 for depth 6 n + 2 */
    int64_t image_size; /* height and width; 0: 224, or 32 with the cifar stem */
    enum kumi_resnet_stem stem;
    enum kumi_resnet_shortcut shortcut;
    int zero_init_residual; /* the last batch norm of a block starts with weight 0 */
    int sync_batch_norm;    /* statistics over all ranks */
    double batch_norm_eps, batch_norm_momentum; /* 0: 1e-5, 0.1 */
};
/*
 * Set torchvision's ResNet-50 with 1,000 classes. Depth 6 n + 2 always uses the cifar stem.
 */
KUMI_API void kumi_resnet_defaults(struct kumi_resnet *config);
/*
 * Check a configuration.
 *
 *   image_size   out: height and width with the default applied; NULL: not wanted
 *
 * Errors: KUMI_EINVAL with the key.
 */
KUMI_API int kumi_resnet_check(const struct kumi_resnet *config, int64_t *image_size);
/*
 * Build the network with torchvision's tensor names. First values of convolutions are normal with
 * std sqrt(2 / fan out).
 *
 *   port      shape
 *   images    f32 [n, height, width, channels]
 *   targets   i32 [n], classes; for inference instead the output "logits" [n, classes]
 *
 * Errors: KUMI_EINVAL.
 */
KUMI_API int kumi_resnet_build(struct kumi_graph *graph, const struct kumi_resnet *config,
                               const struct kumi_shape_of_batch *batch);

/* A classifier of linear layers; each hidden layer is followed by an activation and dropout. */
enum { KUMI_MLP_MAX_INPUT = 3, KUMI_MLP_MAX_HIDDEN = 16 };
struct kumi_mlp {
    int n_input;                         /* dims of a sample, 1 to 3: height, width, channels */
    int64_t input[KUMI_MLP_MAX_INPUT];   /* default 28, 28, 1 */
    int n_hidden;                        /* 0: a linear classifier */
    int64_t hidden[KUMI_MLP_MAX_HIDDEN]; /* widths */
    int64_t num_classes;                 /* default 10 */
    enum kumi_activation activation;     /* default KUMI_RELU */
    double dropout;
};
KUMI_API void kumi_mlp_defaults(struct kumi_mlp *config);
/*
 * Build the classifier. Parameters are layers.0.weight, layers.0.bias, ..; in files a weight is the
 * matrix [width, elements of the input] of an nn.Linear after a flatten. batch->t is not used.
 *
 *   port      shape
 *   images    f32 [n, input..]
 *   targets   i32 [n]; the graph ends in the loss, with the metric accuracy, and top5 for more than
 *             five classes; for inference instead the output "logits" [n, num_classes]
 *
 * Errors: KUMI_EINVAL.
 */
KUMI_API int kumi_mlp_build(struct kumi_graph *graph, const struct kumi_mlp *config,
                            const struct kumi_shape_of_batch *batch);

/*
 * The encoder-decoder Transformer, with the tensor names of Hugging Face's BART and Marian.
 *
 * Source: Vaswani et al. 2017.
 */
struct kumi_transformer {
    int64_t d_model, encoder_layers, decoder_layers, num_heads, ffn_dim;
    int64_t src_vocab_size, tgt_vocab_size;
    int64_t max_positions; /* maximum length of source and target, <s> included */
    enum kumi_activation activation;
    double dropout, attention_dropout, activation_dropout, layer_norm_eps;
    /* 1: pre-norm (norms before the layers, and one at the end); 0: post-norm, as in the paper. */
    int norm_first;
    int learned_positions;   /* 1: tables of max_positions; 0: sinusoids */
    int scale_embedding;     /* multiply embeddings by sqrt(d_model) */
    int share_embeddings;    /* one table for source and target; needs equal vocabularies */
    int tie_word_embeddings; /* the output matrix is the target's table */
};
/* Set the paper's base model, without vocabulary sizes. */
KUMI_API void kumi_transformer_defaults(struct kumi_transformer *config);
/*
 * Build the model for n pairs of s source and t target tokens. Vocabularies are padded internally
 * to multiples of 128.
 *
 *   port       shape        meaning
 *   src        i32 [n, s]
 *   src_len    i32 [n]      tokens from src_len[n] on are padding, and attention masks them
 *   tgt_in     i32 [n, t]   <s> first
 *   tgt_len    i32 [n]
 *   targets    i32 [n, t]   negative targets do not count
 *
 * For inference with is_source the ports are src, src_len and "src_positions" (i32 [n], zeros).
 * Without is_source they are src_len, tgt_in, "positions" and "position_ids" (as for
 * kumi_gpt2_build with a cache), and the output is "logits" [n, t, v].
 *
 * Errors: KUMI_EINVAL.
 */
KUMI_API int kumi_transformer_build(struct kumi_graph *graph, const struct kumi_transformer *config,
                                    const struct kumi_shape_of_batch *batch);

#ifdef __cplusplus
}
#endif
#endif
