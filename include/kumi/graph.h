/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KUMI_GRAPH_H
#define KUMI_GRAPH_H

#include "kumi/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A model, built layer by layer. Values have the logical shape of the whole job: dim n holds all
 * samples of the global batch, and the compiler distributes them over the ranks. Every dim has a
 * one-letter name that is unique in its shape. 'n' (samples) and 't' (tokens) are the batch; all
 * other dims belong to the model.
 *
 * No check is needed after each call: a failed call returns 0, every call with a value of 0 returns
 * 0, and kumi_graph_error returns the first failure (the trainer calls it).
 *
 * Names (of ports, parameters, layers, modules, outputs, metrics) consist of ASCII letters, digits
 * and "_", "-", ".", "/". With the names of the enclosing modules they have at most 223 bytes.
 */
struct kumi_graph;
typedef uint32_t kumi_value; /* 0: none */

KUMI_API int kumi_graph_create(struct kumi_graph **graph);
KUMI_API void kumi_graph_destroy(struct kumi_graph *graph); /* NULL is allowed */
KUMI_API int kumi_graph_error(
    const struct kumi_graph *graph); /* 0 or the first failure, also in kumi_last_error */

/*
 * Enter a module: the names that follow get this prefix. After kumi_graph_enter(g, "h.%d", 3) a
 * layer norm "ln_1" has the parameter "h.3.ln_1.weight". kumi_graph_leave ends it.
 */
KUMI_API void kumi_graph_enter(struct kumi_graph *graph, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;
KUMI_API void kumi_graph_leave(struct kumi_graph *graph);

/*
 * Add an input port, which the trainer fills before each step.
 *
 *   name     any but "control"
 *   dims     dim names, one letter each: "nt"; samples, n, come first
 *   count    elements per dim, of the global batch, at least 1
 */
KUMI_API kumi_value kumi_input(struct kumi_graph *graph, const char *name, enum kumi_dtype dtype,
                               const char *dims, const int64_t *count);

/*
 * Add a trainable f32 tensor.
 *
 *   mean, std    std > 0: first values are normal(mean, std); std 0: mean everywhere
 *   is_uniform   uniform with that mean and standard deviation, instead of normal
 *   pad_first    the first dim is padded to a multiple of it; 0, 1: no padding. Padding stays zero
 *                and is not visible. Tensor parallelism pads a token table further, and one
 *                without padding, where its ranks do not divide dim v
 *   init         NULL: zeros
 */
struct kumi_init {
    double mean, std;
    int64_t pad_first; /* see above; 0, 1: none */
    int is_uniform;
};
KUMI_API kumi_value kumi_param(struct kumi_graph *graph, const char *name, const char *dims,
                               const int64_t *count, const struct kumi_init *init);

enum kumi_activation { KUMI_NO_ACTIVATION, KUMI_RELU, KUMI_GELU_TANH, KUMI_GELU, KUMI_SILU };

/*
 * y = x W + b over the last `contract` dims of x. Creates <name>.bias and <name>.weight, with shape
 * [contracted.., out..] as GPT-2's Conv1D, or [out.., contracted..] with out_in as nn.Linear. The
 * caller sets either `out` and `out_count`, or `weight`.
 */
struct kumi_linear {
    const char *out;          /* dim names of the result: "f" */
    const int64_t *out_count; /* their elements */
    int contract;             /* number of dims; 0: 1 */
    int out_in, no_bias;
    double std;        /* of the weight's first values; 0: 1/sqrt(contracted elements) */
    kumi_value weight; /* an existing parameter (tied weights); creates no bias */
    kumi_value bias;   /* an existing parameter [out..] */
};
KUMI_API kumi_value kumi_linear(struct kumi_graph *graph, kumi_value x, const char *name,
                                const struct kumi_linear *o);
/*
 * Rows ids[..] of a table.
 *
 *   ids   a port, i32, in [0, rows); kumi_trainer_step checks the range
 */
KUMI_API kumi_value kumi_embedding(struct kumi_graph *graph, kumi_value table, kumi_value ids);
/*
 * Learned positions: x + table[t] at position t of the dim that stands in x before the table's own
 * dims.
 */
KUMI_API kumi_value kumi_positions(struct kumi_graph *graph, kumi_value x, kumi_value table);
/*
 * A constant table for kumi_positions: sin(p w), cos(p w) alternating, w = 10000^(-2i/width).
 *
 *   positions, width   rows and columns
 *
 * Source: Vaswani et al. 2017, section 3.5.
 */
KUMI_API kumi_value kumi_sinusoid(struct kumi_graph *graph, int64_t positions, int64_t width);
KUMI_API kumi_value kumi_scale(struct kumi_graph *graph, kumi_value x, double factor);
/*
 * Layer norm over the last dim. Creates <name>.weight (ones) and <name>.bias (zeros). eps 0: 1e-5.
 */
KUMI_API kumi_value kumi_layer_norm(struct kumi_graph *graph, kumi_value x, const char *name,
                                    double eps);
/*
 * x / sqrt(mean x^2 + eps) over the last dim. Creates <name>.weight (ones). eps 0: 1e-6.
 */
KUMI_API kumi_value kumi_rms_norm(struct kumi_graph *graph, kumi_value x, const char *name,
                                  double eps);

/*
 * Rotary positions on x [n, t, .., d], in the rotate-half form of Hugging Face: elements j and j +
 * d/2 are rotated by position / theta^(2j/d). rope_type changes the frequencies as Hugging Face
 * defines it. Zeros mean Hugging Face's defaults.
 */
enum kumi_rope_type { KUMI_ROPE_DEFAULT, KUMI_ROPE_LINEAR, KUMI_ROPE_DYNAMIC, KUMI_ROPE_LLAMA3 };
struct kumi_rope {
    enum kumi_rope_type type;
    double theta;                             /* 0: 10000 */
    double factor;                            /* not for KUMI_ROPE_DEFAULT; 0: 1 */
    double low_freq_factor, high_freq_factor; /* llama3; 0: 1 and 4 */
    int64_t original_max_position_embeddings; /* dynamic, llama3: positions of the pretraining */
    kumi_value positions; /* i32 [n]: of each sample's first token, or [n, t]; 0: from 0 */
    int64_t length;       /* dynamic: positions in use; 0: t */
    kumi_value lengths;   /* dynamic, with positions: i32 [n], those of each sample; 0: length */
};
KUMI_API kumi_value kumi_rope(struct kumi_graph *graph, kumi_value x, const struct kumi_rope *o);

/*
 * Batch norm over all dims but the last (channels): y = (x - mean) / sqrt(var + eps) weight + bias.
 * Creates <name>.weight (ones), <name>.bias (zeros), and the buffers <name>.running_mean,
 * .running_var and .num_batches_tracked, which are saved with the model and not trained.
 *
 * Training uses mean and variance of one micro-batch. The running statistics are updated once per
 * micro-batch number, with the mean over virtual shards, even if the optimizer skips the update:
 * running = (1 - momentum) running + momentum new, with the unbiased variance. Evaluation uses the
 * running statistics. Padding samples would change the statistics, so every batch must be full.
 *
 *   options   NULL: defaults
 */
struct kumi_batch_norm {
    double eps;      /* 0: 1e-5 */
    double momentum; /* 0: 0.1 */
    /*
     * SyncBatchNorm: statistics over the micro-batches of all ranks; needs as many ranks as virtual
     * shards.
     */
    int sync;
    int zero_gain; /* first value of the weight is 0, not 1 */
};
KUMI_API kumi_value kumi_batch_norm(struct kumi_graph *graph, kumi_value x, const char *name,
                                    const struct kumi_batch_norm *options);
/*
 * Multi-head self-attention on qkv [n, t, 3, heads, width] -> [n, t, heads, width].
 *
 *   dropout   of the attention probabilities
 *   scale     0: 1/sqrt(width)
 */
KUMI_API kumi_value kumi_attention(struct kumi_graph *graph, kumi_value qkv, int causal,
                                   double dropout, double scale);
/*
 * The same within documents: a token attends only to tokens with its own segment number.
 *
 *   segments   a port, i32 [n, t]: number of each token's document; 0: no segments
 */
KUMI_API kumi_value kumi_attention_within(struct kumi_graph *graph, kumi_value qkv,
                                          kumi_value segments, int causal, double dropout,
                                          double scale);
/*
 * Attention with separate queries, keys and values: cross attention, grouped-query attention,
 * padded or packed batches. A query that may attend to no key gives 0.
 *
 *   q   [n, t, h, d], or [n, t, h, r, d]: key head i serves the r query heads [i, .]
 *   k   [n, s, h, d]; s may be t
 *   v   [n, s, h, d]
 *
 * k and v may have heads before keys: [n, h, s, d]. Query i is at key position s - t + i, which the
 * causal mask and the segments refer to.
 */
struct kumi_attention_kv {
    kumi_value positions; /* i32 [n], >= 0: query i is at key positions[n] + i; 0: at s - t + i */
    kumi_value lengths;   /* i32 [n]: keys from lengths[n] on are masked; 0: none */
    kumi_value segments;  /* i32 [n, s]: only keys of the query's segment count; 0: all */
    int causal;
    double dropout; /* of the attention probabilities */
    double scale;   /* 0: 1/sqrt(width) */
};
KUMI_API kumi_value kumi_attention_kv(struct kumi_graph *graph, kumi_value q, kumi_value k,
                                      kumi_value v, const struct kumi_attention_kv *o);
KUMI_API kumi_value kumi_activate(struct kumi_graph *graph, kumi_value x, enum kumi_activation act);
/* act(gate) * up in one pass: SwiGLU with KUMI_SILU. */
KUMI_API kumi_value kumi_glu(struct kumi_graph *graph, kumi_value gate, kumi_value up,
                             enum kumi_activation act);
KUMI_API kumi_value kumi_add(struct kumi_graph *graph, kumi_value a, kumi_value b);
KUMI_API kumi_value kumi_mul(struct kumi_graph *graph, kumi_value a, kumi_value b);
/*
 * The same values with another name for the last dim. A residual sum or a tied matrix needs it
 * after a square layer, since both operands must have the same dim names.
 */
KUMI_API kumi_value kumi_rename(struct kumi_graph *graph, kumi_value x, char name);
KUMI_API kumi_value kumi_dropout(struct kumi_graph *graph, kumi_value x,
                                 double p); /* p = 0 returns x */
/*
 * 2-d convolution with `out` channels on images [n, y, x, c]: samples, rows, columns, channels.
 * Creates <name>.weight [out, channels / groups, kernel rows, kernel columns] and <name>.bias
 * [out]. Weights and flattened images have torchvision's names, shapes and element order.
 *
 * Pairs are {rows, columns}. A second member of 0 means the same as the first, except for padding.
 */
enum kumi_conv_init {
    KUMI_CONV_UNIFORM,        /* PyTorch's default: weight and bias uniform within 1/sqrt(fan in) */
    KUMI_CONV_KAIMING_FAN_OUT /* torchvision's ResNets: normal, std sqrt(2 / fan out); bias 0 */
};
struct kumi_conv2d {
    int64_t out;                               /* channels; required */
    int64_t kernel[2], stride[2], dilation[2]; /* 0: 1 */
    int64_t padding[2];
    int64_t groups; /* 0: 1 */
    int no_bias;
    enum kumi_conv_init init;
};
KUMI_API kumi_value kumi_conv2d(struct kumi_graph *graph, kumi_value x, const char *name,
                                const struct kumi_conv2d *o);
/* Pooling windows. kernel 0: 1. stride 0: the kernel's. padding: at most half of the kernel. */
struct kumi_pool {
    int64_t kernel[2], stride[2], padding[2];
    int exclude_pad; /* kumi_avg_pool: mean without the padding */
};
KUMI_API kumi_value kumi_max_pool(struct kumi_graph *graph, kumi_value x,
                                  const struct kumi_pool *o);
KUMI_API kumi_value kumi_avg_pool(struct kumi_graph *graph, kumi_value x,
                                  const struct kumi_pool *o);
/* Mean over rows and columns: [n, y, x, c] -> [n, c]. */
KUMI_API kumi_value kumi_global_avg_pool(struct kumi_graph *graph, kumi_value x);
/*
 * [n, y, x, c] -> [n, c], in the element order of torch.flatten on an NCHW image (channels
 * outermost).
 */
KUMI_API kumi_value kumi_flatten(struct kumi_graph *graph, kumi_value x);
/* Zeros before and after the last dim: [.., c] -> [.., before + c + behind]. */
KUMI_API kumi_value kumi_pad_last(struct kumi_graph *graph, kumi_value x, int64_t before,
                                  int64_t behind);
/*
 * Row index[n] of dim t of x: [n, t, ..] -> [n, ..]. Not differentiable.
 *
 *   index   a port, i32, in [0, t)
 */
KUMI_API kumi_value kumi_select(struct kumi_graph *graph, kumi_value x, kumi_value index);

/*
 * Set the loss that the trainer minimises: softmax cross-entropy of logits [.., v] against targets
 * [..]. It is the sum over the targets that count, divided by their global number. Negative targets
 * and `ignore` do not count.
 *
 *   targets   a port, i32; those that count are below v, which kumi_trainer_step checks
 */
KUMI_API int kumi_loss_cross_entropy(struct kumi_graph *graph, kumi_value logits,
                                     kumi_value targets, int64_t ignore);
/*
 * The same with PyTorch's label_smoothing: the target distribution is 1 - smoothing on the label
 * plus smoothing / v on every class. Evaluation uses the labels alone.
 *
 *   smoothing   in [0, 1)
 */
KUMI_API int kumi_loss_smoothed(struct kumi_graph *graph, kumi_value logits, kumi_value targets,
                                int64_t ignore, double smoothing);

/*
 * Name a result of evaluation with one or more rows per sample, for kumi_trainer_output: for
 * example the logits for sampling.
 */
KUMI_API int kumi_graph_output(struct kumi_graph *graph, const char *name, kumi_value value);

/*
 * Add a metric over all elements of `value` without padding, over all micro-batches and ranks. Sums
 * are exact, so the result does not depend on the parallel layout.
 */
enum kumi_metric {
    KUMI_METRIC_SUM,
    KUMI_METRIC_MEAN, /* over all elements */
    KUMI_METRIC_MAX,
    KUMI_METRIC_PER_TARGET /* the sum divided by the number of targets that count in the loss */
};
KUMI_API int kumi_graph_metric(struct kumi_graph *graph, const char *name, kumi_value value,
                               enum kumi_metric kind);
/*
 * Add top-k accuracy: the share of the counted targets whose logit is among the k largest of its
 * row. Of equal logits the lower index ranks first. The metric is named "accuracy" for k = 1, else
 * "top<k>".
 *
 *   ignore   the same as for the loss
 */
KUMI_API int kumi_accuracy(struct kumi_graph *graph, kumi_value logits, kumi_value targets,
                           int64_t ignore, int k);

/*
 * Record the source line of the nodes added since the last record, for profiles by source. They
 * return the value or status that they are given. The macros below call them around every building
 * call and evaluate its first argument twice; KUMI_NO_SOURCE disables the macros.
 */
KUMI_API kumi_value kumi_graph_built(struct kumi_graph *graph, const char *file, int line,
                                     kumi_value value);
KUMI_API int kumi_graph_closed(struct kumi_graph *graph, const char *file, int line, int status);
#ifndef KUMI_NO_SOURCE
#define KUMI_BUILT(g, call)             kumi_graph_built((g), __FILE__, __LINE__, (call))
#define KUMI_CLOSED(g, call)            kumi_graph_closed((g), __FILE__, __LINE__, (call))
#define kumi_linear(g, ...)             KUMI_BUILT(g, kumi_linear(g, __VA_ARGS__))
#define kumi_embedding(g, ...)          KUMI_BUILT(g, kumi_embedding(g, __VA_ARGS__))
#define kumi_positions(g, ...)          KUMI_BUILT(g, kumi_positions(g, __VA_ARGS__))
#define kumi_sinusoid(g, ...)           KUMI_BUILT(g, kumi_sinusoid(g, __VA_ARGS__))
#define kumi_scale(g, ...)              KUMI_BUILT(g, kumi_scale(g, __VA_ARGS__))
#define kumi_layer_norm(g, ...)         KUMI_BUILT(g, kumi_layer_norm(g, __VA_ARGS__))
#define kumi_rms_norm(g, ...)           KUMI_BUILT(g, kumi_rms_norm(g, __VA_ARGS__))
#define kumi_rope(g, ...)               KUMI_BUILT(g, kumi_rope(g, __VA_ARGS__))
#define kumi_glu(g, ...)                KUMI_BUILT(g, kumi_glu(g, __VA_ARGS__))
#define kumi_batch_norm(g, ...)         KUMI_BUILT(g, kumi_batch_norm(g, __VA_ARGS__))
#define kumi_attention(g, ...)          KUMI_BUILT(g, kumi_attention(g, __VA_ARGS__))
#define kumi_attention_within(g, ...)   KUMI_BUILT(g, kumi_attention_within(g, __VA_ARGS__))
#define kumi_attention_kv(g, ...)       KUMI_BUILT(g, kumi_attention_kv(g, __VA_ARGS__))
#define kumi_activate(g, ...)           KUMI_BUILT(g, kumi_activate(g, __VA_ARGS__))
#define kumi_add(g, ...)                KUMI_BUILT(g, kumi_add(g, __VA_ARGS__))
#define kumi_mul(g, ...)                KUMI_BUILT(g, kumi_mul(g, __VA_ARGS__))
#define kumi_rename(g, ...)             KUMI_BUILT(g, kumi_rename(g, __VA_ARGS__))
#define kumi_dropout(g, ...)            KUMI_BUILT(g, kumi_dropout(g, __VA_ARGS__))
#define kumi_conv2d(g, ...)             KUMI_BUILT(g, kumi_conv2d(g, __VA_ARGS__))
#define kumi_max_pool(g, ...)           KUMI_BUILT(g, kumi_max_pool(g, __VA_ARGS__))
#define kumi_avg_pool(g, ...)           KUMI_BUILT(g, kumi_avg_pool(g, __VA_ARGS__))
#define kumi_global_avg_pool(g, ...)    KUMI_BUILT(g, kumi_global_avg_pool(g, __VA_ARGS__))
#define kumi_flatten(g, ...)            KUMI_BUILT(g, kumi_flatten(g, __VA_ARGS__))
#define kumi_pad_last(g, ...)           KUMI_BUILT(g, kumi_pad_last(g, __VA_ARGS__))
#define kumi_select(g, ...)             KUMI_BUILT(g, kumi_select(g, __VA_ARGS__))
#define kumi_loss_cross_entropy(g, ...) KUMI_CLOSED(g, kumi_loss_cross_entropy(g, __VA_ARGS__))
#define kumi_loss_smoothed(g, ...)      KUMI_CLOSED(g, kumi_loss_smoothed(g, __VA_ARGS__))
#define kumi_graph_metric(g, ...)       KUMI_CLOSED(g, kumi_graph_metric(g, __VA_ARGS__))
#define kumi_accuracy(g, ...)           KUMI_CLOSED(g, kumi_accuracy(g, __VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif
