/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_OP_ATTR_H
#define KU_OP_ATTR_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "kumi/dtype.h"

/*
 * Attributes of nodes. The struct, the text form, comparison and hashing are generated from this
 * one list. An op reads the attributes named for it; all others keep their default and are not
 * printed.
 *
 * X(type, name, default, enum)
 *
 *   type   I  int64
 *          F  double
 *          E  int, printed as a name of `enum`
 *          L  list of doubles, printed without trailing zeros
 */
#define KU_ATTRS(X)                                                                                \
    X(E, dtype, -1, ku_attr_dtypes) /* result dtype if no input decides it */                      \
    X(I, contract, 1, 0)            /* linear: number of contracted dims of x */                   \
    X(I, outs, 1, 0)                /* linear: number of new dims of the result */                 \
    X(I, trans, 0, 0)               /* linear: weight [out.., in..] (nn.Linear) */                 \
    X(I, slices, 0, 0)    /* parts of a sum over a dim that axis tp may cut: op/slices.h */        \
    X(I, slice_dim, 0, 0) /* linear: that dim of the weight */                                     \
    X(E, act, KU_ACT_NONE, ku_attr_acts) /* act; epilogue of linear, batch_norm */                 \
    X(I, rows, 0, 0)                     /* embedding_dw, add_rows_dw: table rows */               \
    X(I, rows_seen, 0, 0)                                                                          \
    X(I, row_name, 0, 0)  /* and the name of that dim */                                           \
    X(F, eps, 1e-5, 0)    /* layer_norm, batch_norm; optimizers */                                 \
    X(F, p, 0, 0)         /* dropout: probability of zero */                                       \
    X(I, causal, 0, 0)    /* attention */                                                          \
    X(F, scale, 0, 0)     /* attention: 0 = 1/sqrt(head width) */                                  \
    X(F, theta, 10000, 0) /* rope */                                                               \
    X(E, rope_type, KU_ROPE_DEFAULT, ku_attr_rope_types)                                           \
    X(F, factor, 1, 0)   /* rope: linear, dynamic, llama3 */                                       \
    X(F, low_freq, 1, 0) /* rope: llama3 */                                                        \
    X(F, high_freq, 4, 0)                                                                          \
    X(I, original, 0, 0)  /* rope: dynamic, llama3: trained positions */                           \
    X(I, length, 0, 0)    /* rope: dynamic: positions in use */                                    \
    X(I, positions, 0, 0) /* attention_kv: has operand positions */                                \
    X(I, ignore, -100, 0) /* softmax_xent, count_valid: ignored target */                          \
    X(F, smoothing, 0, 0) /* softmax_xent: share of all classes */                                 \
    X(I, top, 1, 0)       /* top_k */                                                              \
    X(F, value, 0, 0)     /* fill, scale; random_*: mean */                                        \
    X(F, std, 0, 0)       /* random_normal, random_uniform */                                      \
    X(I, index, 0, 0)     /* sumsq, convert: word; pick: element; trust_*, lars, lamb: tensor */   \
    X(I, words, 0, 0)     /* stats: number of i64 */                                               \
    X(I, chunk, 0, 0)     /* sumsq, trust_sums, lamb_moments: squares per f64 sum; 0: 4096 */      \
    X(F, beta1, 0.9, 0)   /* adam, adamw */                                                        \
    X(F, beta2, 0.999, 0)                                                                          \
    X(I, bias_correction, 1, 0) /* adam, adamw, lamb */                                            \
    X(F, weight_decay, 0, 0)    /* adamw (decoupled), adam and sgd (L2 in the gradient) */         \
    X(F, momentum, 0, 0)        /* sgd, lars; batch_norm_track: new weight */                      \
    X(F, dampening, 0, 0)                                                                          \
    X(I, nesterov, 0, 0)                                                                           \
    X(F, lr_mult, 1, 0)        /* optimizers: of the parameter group */                            \
    X(F, alpha, 0.99, 0)       /* rmsprop; names are PyTorch's */                                  \
    X(F, lr_decay, 0, 0)       /* adagrad */                                                       \
    X(F, beta2_decay, -0.8, 0) /* adafactor; eps is PyTorch's eps[0] */                            \
    X(F, eps2, 1e-3, 0)                                                                            \
    X(F, clip_threshold, 1, 0)        /* adafactor: d */                                           \
    X(I, cols, 0, 0)                  /* columns of a factored matrix, in files */                 \
    X(I, count, 0, 0)                 /* adafactor: elements without padding */                    \
    X(I, first_word, 0, 0)            /* factor_*: first word of the tensor */                     \
    X(F, ema, 0, 0)                   /* ema: decay */                                             \
    X(I, ema_warmup, 0, 0)            /* ema: decay <= (1 + t) / (10 + t) */                       \
    X(F, trust_coefficient, 0.001, 0) /* lars */                                                   \
    X(F, min_coeff, 0.01, 0)          /* lamb: limits of |p| / |update| */                         \
    X(F, max_coeff, 10, 0)                                                                         \
    X(F, clip, 0, 0)                 /* step_scalars: max gradient norm, 0 = none */               \
    X(F, clip_value, 0, 0)           /* clip_value: max |element|, 0 = none */                     \
    X(F, loss_scale, 0, 0)           /* loss_scaler: first scale; 0 = no scaler */                 \
    X(E, scaler, 0, ku_attr_scalers) /* its policy: op/loss_scale.h */                             \
    X(I, scale_window, 1000, 0)                                                                    \
    X(I, hysteresis, 2, 0)                                                                         \
    X(I, consecutive_hysteresis, 0, 0)                                                             \
    X(F, min_scale, 1, 0)                                                                          \
    X(F, growth_factor, 2, 0)                                                                      \
    X(F, backoff_factor, 0.5, 0)                                                                   \
    X(I, shift, 0, 0) /* step_scalars, loss_seed: backward times 2^-shift */                       \
    X(E, schedule, KU_SCHED_CONSTANT, ku_attr_schedules)                                           \
    X(F, lr, 0, 0)     /* step_scalars: schedule, in periods */                                    \
    X(I, period, 1, 0) /* updates per learning rate: 1, or an epoch's */                           \
    X(F, min_lr, 0, 0)                                                                             \
    X(F, warmup_lr, 0, 0)                                                                          \
    X(I, warmup, 0, 0)                                                                             \
    X(I, decay, 0, 0)                                                                              \
    X(I, step_size, 0, 0)                                                                          \
    X(F, gamma, 0, 0)                                                                              \
    X(L, args, {{0}}, 0)    /* list of a schedule: op/schedule.h */                                \
    X(F, power, 1, 0)       /* polynomial */                                                       \
    X(I, d_model, 1, 0)     /* noam; sinusoid: width */                                            \
    X(F, pct_start, 0.3, 0) /* one_cycle, with PyTorch's names */                                  \
    X(F, div_factor, 25, 0)                                                                        \
    X(F, final_div_factor, 1e4, 0)                                                                 \
    X(I, three_phase, 0, 0)                                                                        \
    X(E, anneal, KU_ANNEAL_COS, ku_attr_anneals)                                                   \
    X(I, cycle_momentum, 0, 0) /* momentum or beta1 moves against lr */                            \
    X(F, base_momentum, 0.85, 0)                                                                   \
    X(F, max_momentum, 0.95, 0)                                                                    \
    X(E, reduce, KU_REDUCE_SUM, ku_attr_reductions) /* convert from P: how parts combine */        \
    X(E, wire, -1, ku_attr_dtypes) /* convert, accumulate: parts and sums round to it; -1: no */   \
    X(M, axes, 0, 0)     /* convert: mask of changed axes; embedding_dw: of row splits */          \
    X(I, remat, 0, 0)    /* convert: later phases clone it */                                      \
    X(I, by_micro, 0, 0) /* convert: reduce each micro-batch first */                              \
    X(I, kernel_h, 1, 0) /* conv2d, max_pool, avg_pool: window */                                  \
    X(I, kernel_w, 1, 0)                                                                           \
    X(I, stride_h, 1, 0)                                                                           \
    X(I, stride_w, 1, 0)                                                                           \
    X(I, pad_h, 0, 0) /* on both sides */                                                          \
    X(I, pad_w, 0, 0)                                                                              \
    X(I, dilation_h, 1, 0)                                                                         \
    X(I, dilation_w, 1, 0)                                                                         \
    X(I, groups, 1, 0) /* conv2d */                                                                \
    X(I, in_h, 0, 0)   /* extents of x, for the gradient */                                        \
    X(I, in_w, 0, 0)                                                                               \
    X(I, count_pad, 1, 0) /* avg_pool: padding counts in the mean */                               \
    X(I, before, 0, 0)    /* pad_last, crop_last: number of zeros */                               \
    X(I, behind, 0, 0)                                                                             \
    X(I, concat, 0, 0) /* convert over mb: concatenate that many parts */                          \
    X(I, sync, 0, 0)   /* batch_norm_*: over all data-parallel ranks */

enum ku_act { KU_ACT_NONE, KU_ACT_RELU, KU_ACT_GELU_TANH, KU_ACT_GELU_ERF, KU_ACT_SILU };
enum ku_schedule {
    KU_SCHED_CONSTANT,
    KU_SCHED_LINEAR,
    KU_SCHED_COSINE,
    KU_SCHED_STEP,
    KU_SCHED_INVERSE_SQRT,
    KU_SCHED_WSD,
    KU_SCHED_ONE_CYCLE,
    KU_SCHED_NOAM,
    KU_SCHED_MULTI_STEP,
    KU_SCHED_POLYNOMIAL,
    KU_SCHED_LR_RANGE_TEST, /* DeepSpeed's, from here on */
    KU_SCHED_DS_ONE_CYCLE,
    KU_SCHED_WARMUP_LR,
    KU_SCHED_WARMUP_DECAY_LR,
    KU_SCHED_WARMUP_COSINE_LR
};
enum ku_rope_type { KU_ROPE_DEFAULT, KU_ROPE_LINEAR, KU_ROPE_DYNAMIC, KU_ROPE_LLAMA3 };
enum { KU_MAX_ARGS = 16 };
enum ku_anneal { KU_ANNEAL_COS, KU_ANNEAL_LINEAR };
enum ku_node_reduce { KU_REDUCE_SUM, KU_REDUCE_MAX };
extern const char *const ku_attr_dtypes[],
    *const ku_attr_acts[], *const ku_attr_rope_types[],
                               *const ku_attr_schedules[],
                                   *const ku_attr_anneals[],
                                       *const ku_attr_reductions[],
                                           *const ku_attr_scalers[]; /* NULL-terminated */

#define KU_ATTR_I int64_t
#define KU_ATTR_E int64_t
#define KU_ATTR_F double
#define KU_ATTR_L struct ku_args
#define KU_ATTR_M int64_t /* mask of mesh axes; in text "shard,local" or "all" */
struct ku_args {
    double v[KU_MAX_ARGS];
};
struct ku_attrs {
#define X(type, name, value, names) KU_ATTR_##type name;
    KU_ATTRS(X)
#undef X
};
_Static_assert(sizeof(struct ku_attrs) % 8 == 0,
               "all members are made of 8 bytes, so bytes compare and hash");

extern const struct ku_attrs ku_attrs_default;

/* Which parameters an option of the optimizer is for. */
enum ku_decay { KU_DECAY_MATRICES, KU_DECAY_ALL, KU_DECAY_PATTERNS };
/* A parameter group: optimizer attributes that override the common ones for matching names. */
enum { KU_MAX_GROUP_ATTRS = 5 };
struct ku_update_group {
    const char *const *match; /* patterns, NULL-terminated */
    struct {
        size_t offset; /* of a double in struct ku_attrs; weight_decay here overrides `decay` */
        double value;
    } set[KU_MAX_GROUP_ATTRS];
    int n_set;
};

/*
 * Prints " name=value" for every attribute that differs from its default. Doubles have 17 digits,
 * so they parse back to the same bits.
 */
struct ku_str;
void ku_attrs_print(const struct ku_attrs *a, struct ku_str *out);
/* KUMI_EINVAL: unknown name or value. */
KU_STATUS ku_attrs_set(struct ku_attrs *a, const char *name, const char *value);

#endif
