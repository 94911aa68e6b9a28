/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KUMI_GRAPH_H
#define KUMI_GRAPH_H

#include "kumi/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A model, written layer by layer. Values have the logical shape of the whole job: dim n holds all
 * samples of the global batch; how ranks share them is the compiler's business. Every dim has a
 * one-letter name, unique in its shape; 'n' (samples) and 't' (tokens) are the batch, all others
 * belong to the model.
 *
 * Building never needs a check after each call: a failed call returns 0, everything built on 0 is
 * 0, and kumi_graph_error (which the trainer calls) returns the first failure.
 *
 * Names (of ports, parameters, layers, modules, outputs, metrics) consist of ASCII letters, digits
 * and "_", "-", ".", "/"; with the modules around them they have at most 223 bytes.
 */
struct kumi_graph;
typedef uint32_t kumi_value; /* 0 = none */

KUMI_API int kumi_graph_create(struct kumi_graph **graph);
KUMI_API void kumi_graph_destroy(struct kumi_graph *graph); /* NULL is fine */
KUMI_API int kumi_graph_error(
    const struct kumi_graph *graph); /* 0, or the first failure, again in kumi_last_error */

/* Names of what follows begin with this: kumi_graph_enter(g, "h.%d", 3) makes "h.3.ln_1.weight". */
KUMI_API void kumi_graph_enter(struct kumi_graph *graph, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;
KUMI_API void kumi_graph_leave(struct kumi_graph *graph);

/*
 * A port that the trainer fills before each step.
 *
 *   name     any but "control"
 *   dims     names, one letter each: "nt"; samples, n, come first
 *   count    elements per dim, of the global batch, at least 1
 */
KUMI_API kumi_value kumi_input(struct kumi_graph *graph, const char *name, enum kumi_dtype dtype,
                               const char *dims, const int64_t *count);

/*
 * A trainable tensor, f32, with its first value: normal(mean, std) if std > 0 (or uniform
 * of that mean and deviation), else mean everywhere. Dims that are not a multiple of `pad` are
 * padded (padding stays zero and is never seen); 0 or 1 = no padding. init NULL: zeros.
 */
struct kumi_init {
    double mean, std;
    int64_t pad_first; /* pads the first dim to a multiple */
    int is_uniform;
};
KUMI_API kumi_value kumi_param(struct kumi_graph *graph, const char *name, const char *dims,
                               const int64_t *count, const struct kumi_init *init);

enum kumi_activation { KUMI_NO_ACTIVATION, KUMI_RELU, KUMI_GELU_TANH, KUMI_GELU, KUMI_SILU };

/*
 * y = x W + b over the last `contract` dims of x. Makes <name>.weight (shape [contracted.., out..],
 * as GPT-2's Conv1D, or [out.., contracted..] with out_in, as nn.Linear) and <name>.bias. Either
 * `out` and `out_count` or `weight` must be given.
 */
struct kumi_linear {
    const char *out;          /* names of the result's own dims: "f" */
    const int64_t *out_count; /* and their counts */
    int contract;             /* 0 = 1 */
    int out_in, no_bias;
    double std;        /* of the weight's first value; 0 = 1/sqrt(contracted count) */
    kumi_value weight; /* an existing parameter, which makes the two tied; makes no bias */
    kumi_value bias;   /* an existing parameter [out..] to add */
};
KUMI_API kumi_value kumi_linear(struct kumi_graph *graph, kumi_value x, const char *name,
                                const struct kumi_linear *o);
/* Row ids[..] of a table. ids: a port, i32, in [0, rows), as kumi_trainer_step checks. */
KUMI_API kumi_value kumi_embedding(struct kumi_graph *graph, kumi_value table, kumi_value ids);
/* x + table[t] at position t of x's dim before the table's own: learned positions. */
KUMI_API kumi_value kumi_positions(struct kumi_graph *graph, kumi_value x, kumi_value table);
/* A table of so many positions for kumi_positions that is not learned: sin(p w), cos(p w) in turn,
 * w = 10000^(-2i/width) (Vaswani et al. 2017, section 3.5). */
KUMI_API kumi_value kumi_sinusoid(struct kumi_graph *graph, int64_t positions, int64_t width);
KUMI_API kumi_value kumi_scale(struct kumi_graph *graph, kumi_value x, double factor);
/* Over the last dim; makes <name>.weight (ones) and <name>.bias (zeros). eps 0 = 1e-5. */
KUMI_API kumi_value kumi_layer_norm(struct kumi_graph *graph, kumi_value x, const char *name,
                                    double eps);
/* x / sqrt(mean x^2 + eps) over the last dim; makes <name>.weight (ones). eps 0 = 1e-6. */
KUMI_API kumi_value kumi_rms_norm(struct kumi_graph *graph, kumi_value x, const char *name,
                                  double eps);

/*
 * Rotary positions on x [n, t, .., d], in Hugging Face's rotate-half layout: elements j and j + d/2
 * turn by position / theta^(2j/d), with the frequencies changed as its rope_type says. Zeros mean
 * Hugging Face's defaults.
 */
enum kumi_rope_type { KUMI_ROPE_DEFAULT, KUMI_ROPE_LINEAR, KUMI_ROPE_DYNAMIC, KUMI_ROPE_LLAMA3 };
struct kumi_rope {
    enum kumi_rope_type type;
    double theta;                             /* 0 = 10000 */
    double factor;                            /* of all but the default; 0 = 1 */
    double low_freq_factor, high_freq_factor; /* llama3; 0 = 1 and 4 */
    int64_t original_max_position_embeddings; /* dynamic, llama3: trained on so many positions */
    kumi_value positions; /* i32 [n]: of each sample's first token; [n, t]; 0 = from 0 on */
    int64_t length;       /* dynamic: positions that it is used on; 0 = t */
};
KUMI_API kumi_value kumi_rope(struct kumi_graph *graph, kumi_value x, const struct kumi_rope *o);

/*
 * Batch norm over all dims but the last (channels): y = (x - mean) / sqrt(var + eps) weight + bias.
 * Makes <name>.weight (ones), <name>.bias (zeros), and the buffers <name>.running_mean,
 * .running_var and .num_batches_tracked, which are saved with the model and not trained.
 *
 * Training takes mean and variance of one micro-batch; running statistics follow once per
 * micro-batch number, by the mean over virtual shards, whether the optimizer runs or not:
 * running = (1 - momentum) running + momentum new, with the unbiased variance. Evaluation reads the
 * running ones. Ignored samples would count: a batch must be full.
 */
struct kumi_batch_norm {
    double eps;      /* 0 = 1e-5 */
    double momentum; /* 0 = 0.1 */
    int sync; /* statistics over the micro-batches of all ranks (SyncBatchNorm): as many ranks as
                 virtual shards */
    int zero_gain; /* the weight starts at 0 instead of 1 */
};
/* options NULL = defaults */
KUMI_API kumi_value kumi_batch_norm(struct kumi_graph *graph, kumi_value x, const char *name,
                                    const struct kumi_batch_norm *options);
/* Multi-head self-attention on qkv [n, t, 3, heads, width] -> [n, t, heads, width]. scale 0 =
 * 1/sqrt(width). */
KUMI_API kumi_value kumi_attention(struct kumi_graph *graph, kumi_value qkv, int causal,
                                   double dropout, double scale);
/* The same inside documents: a token looks at those of its own number in segments, i32 [n, t],
 * alone. segments 0 = at all. */
KUMI_API kumi_value kumi_attention_within(struct kumi_graph *graph, kumi_value qkv,
                                          kumi_value segments, int causal, double dropout,
                                          double scale);
/*
 * Attention of queries over keys and values of their own: cross attention, grouped-query attention,
 * padded or packed batches. A query without a key to look at gives 0.
 *
 *   q   [n, t, h, d], or [n, t, h, r, d]: head i of keys serves the r heads of queries [i, .]
 *   k   [n, s, h, d]; s may be t
 *   v   [n, s, h, d]
 *
 * k and v may have heads before keys, [n, h, s, d]. Query i stands at key s - t + i: that is where
 * causal ends, and whose segment it belongs to.
 */
struct kumi_attention_kv {
    kumi_value positions; /* i32 [n], >= 0: query i stands at key positions[n] + i; 0 = as above */
    kumi_value lengths;   /* i32 [n]: keys at or behind it do not count; 0 = all count */
    kumi_value
        segments; /* i32 [n, s]: keys of another number than the query's own do not; 0 = none */
    int causal;
    double dropout; /* of probabilities */
    double scale;   /* 0 = 1/sqrt(width) */
};
KUMI_API kumi_value kumi_attention_kv(struct kumi_graph *graph, kumi_value q, kumi_value k,
                                      kumi_value v, const struct kumi_attention_kv *o);
KUMI_API kumi_value kumi_activate(struct kumi_graph *graph, kumi_value x, enum kumi_activation act);
/* act(gate) * up, in one pass: SwiGLU with KUMI_SILU. */
KUMI_API kumi_value kumi_glu(struct kumi_graph *graph, kumi_value gate, kumi_value up,
                             enum kumi_activation act);
KUMI_API kumi_value kumi_add(struct kumi_graph *graph, kumi_value a, kumi_value b);
KUMI_API kumi_value kumi_mul(struct kumi_graph *graph, kumi_value a, kumi_value b);
/* The same values, the last dim under another name: what a square layer makes of it, a residual or
 * a tied matrix may ask for by its own. */
KUMI_API kumi_value kumi_rename(struct kumi_graph *graph, kumi_value x, char name);
KUMI_API kumi_value kumi_dropout(struct kumi_graph *graph, kumi_value x,
                                 double p); /* p = 0 returns x */
/*
 * Images are values [n, y, x, c]: samples, rows, columns, channels. Weights and flattened images
 * have torchvision's names, shapes and order of elements.
 *
 * 2-d convolution of `out` channels. Makes <name>.weight [out, channels / groups, kernel rows,
 * kernel columns] and <name>.bias [out]. In every pair {rows, columns} a second 0 means the first
 * one again (padding: give both).
 */
enum kumi_conv_init {
    KUMI_CONV_UNIFORM,        /* PyTorch's default: weight and bias uniform within 1/sqrt(fan in) */
    KUMI_CONV_KAIMING_FAN_OUT /* normal, std sqrt(2 / fan out), as torchvision's ResNets; bias 0 */
};
struct kumi_conv2d {
    int64_t out;                               /* channels; must be given */
    int64_t kernel[2], stride[2], dilation[2]; /* 0 = 1 */
    int64_t padding[2];
    int64_t groups; /* 0 = 1 */
    int no_bias;
    enum kumi_conv_init init;
};
KUMI_API kumi_value kumi_conv2d(struct kumi_graph *graph, kumi_value x, const char *name,
                                const struct kumi_conv2d *o);
/* kernel 0 = 1, stride 0 = the kernel's; padding at most half of the kernel. */
struct kumi_pool {
    int64_t kernel[2], stride[2], padding[2];
    int exclude_pad; /* kumi_avg_pool: the mean of what lies inside alone */
};
KUMI_API kumi_value kumi_max_pool(struct kumi_graph *graph, kumi_value x,
                                  const struct kumi_pool *o);
KUMI_API kumi_value kumi_avg_pool(struct kumi_graph *graph, kumi_value x,
                                  const struct kumi_pool *o);
/* The mean over rows and columns: [n, y, x, c] -> [n, c]. */
KUMI_API kumi_value kumi_global_avg_pool(struct kumi_graph *graph, kumi_value x);
/* [n, y, x, c] -> [n, c], channels outermost, as torch.flatten of an NCHW image. */
KUMI_API kumi_value kumi_flatten(struct kumi_graph *graph, kumi_value x);
/* Zeros before and behind the last dim: [.., c] -> [.., before + c + behind]. */
KUMI_API kumi_value kumi_pad_last(struct kumi_graph *graph, kumi_value x, int64_t before,
                                  int64_t behind);
/* Row index[n] of dim t of x [n, t, ..] -> [n, ..]; not differentiable. index: a port, i32. */
KUMI_API kumi_value kumi_select(struct kumi_graph *graph, kumi_value x, kumi_value index);

/*
 * Makes the softmax cross-entropy of logits [.., v] against i32 targets [..] what the trainer
 * minimises: the sum over targets that are neither negative nor `ignore`, divided by their global
 * count. Targets are a port; those that count lie below v, as kumi_trainer_step checks.
 */
KUMI_API int kumi_loss_cross_entropy(struct kumi_graph *graph, kumi_value logits,
                                     kumi_value targets, int64_t ignore);
/*
 * The same with PyTorch's label_smoothing in [0, 1): a target is 1 - smoothing of its label and
 * smoothing / v of every class. Evaluation is by the labels alone.
 */
KUMI_API int kumi_loss_smoothed(struct kumi_graph *graph, kumi_value logits, kumi_value targets,
                                int64_t ignore, double smoothing);

/* A named result of evaluation, one row or more a sample, for kumi_trainer_output: logits for
 * sampling. */
KUMI_API int kumi_graph_output(struct kumi_graph *graph, const char *name, kumi_value value);

/* A metric of the user's own over all elements of `value`, all micro-batches and ranks; sums are
 * exact, so no layout can show. */
enum kumi_metric {
    KUMI_METRIC_SUM,
    KUMI_METRIC_MEAN, /* over all elements */
    KUMI_METRIC_MAX,
    KUMI_METRIC_PER_TARGET /* the sum over the number of targets that count in the loss */
};
KUMI_API int kumi_graph_metric(struct kumi_graph *graph, const char *name, kumi_value value,
                               enum kumi_metric kind);
/*
 * The share of targets whose logit is among the k greatest of its row (of equal ones the lower
 * index is greater), of the targets that count in the loss: metric "accuracy" for k = 1, else
 * "top<k>". Call it beside the loss, with the loss's own `ignore`.
 */
KUMI_API int kumi_accuracy(struct kumi_graph *graph, kumi_value logits, kumi_value targets,
                           int64_t ignore, int k);

/*
 * Note the source line of what was built since the last note, for profiles by source, and return
 * the value or status handed in. C and C++ need not call them: the macros below put them around
 * every call that builds (and evaluate its first argument twice); KUMI_NO_SOURCE leaves them out.
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
