/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_OP_ATTR_H
#define KU_OP_ATTR_H

#include <stdint.h>

#include "kumi/dtype.h"

/*
 * Attributes of nodes: one list, from which the struct, the text form, comparison and hashing
 * follow. An op reads those that its row in ops.def speaks of; all others keep their default, and
 * text leaves defaults out. X(type, name, default, enum)   type: I int64, F double, E an int
 * printed by the names of `enum`, L a list of doubles, without the zeros at its end
 */
#define KU_ATTRS(X)                                                                                \
    X(E, dtype, -1, ku_attr_dtypes) /* result dtype where no input decides it: enum kumi_dtype */  \
    X(I, contract, 1, 0)            /* linear: how many trailing dims of x are contracted */       \
    X(I, outs, 1, 0) /* linear: how many trailing dims its result has beside x's leading ones */   \
    X(I, trans, 0,                                                                                 \
      0) /* linear: the weight is [out.., in..] (nn.Linear) instead of [in.., out..] */            \
    X(E, act, KU_ACT_NONE, ku_attr_acts) /* act; linear's and batch_norm's epilogue */             \
    X(I, rows, 0, 0)                     /* embedding_dw, add_rows_dw: rows of the table */        \
    X(I, rows_seen, 0, 0)                                                                          \
    X(I, row_name, 0, 0)  /* and the letter of that dim */                                         \
    X(F, eps, 1e-5, 0)    /* layer_norm, batch_norm; optimizers */                                 \
    X(F, p, 0, 0)         /* dropout: probability of zero */                                       \
    X(I, causal, 0, 0)    /* attention */                                                          \
    X(F, scale, 0, 0)     /* attention: factor of q.k, 0 = 1/sqrt(head width); batch_norm_track */ \
    X(F, theta, 10000, 0) /* rope */                                                               \
    X(E, rope_type, KU_ROPE_DEFAULT, ku_attr_rope_types)                                           \
    X(F, factor, 1, 0)   /* rope: of linear, dynamic, llama3 */                                    \
    X(F, low_freq, 1, 0) /* rope: llama3 */                                                        \
    X(F, high_freq, 4, 0)                                                                          \
    X(I, original, 0, 0)  /* rope: dynamic, llama3: positions that the model was trained on */     \
    X(I, length, 0, 0)    /* rope: dynamic: positions that it is used on */                        \
    X(I, positions, 0, 0) /* attention_kv: the operand behind v says where queries stand */        \
    X(I, ignore, -100,                                                                             \
      0) /* softmax_xent, count_valid: targets with this value, or negative, do not count */       \
    X(F, smoothing, 0, 0) /* softmax_xent: share of the target that all classes get */             \
    X(I, top, 1, 0)       /* top_k */                                                              \
    X(F, value, 0, 0)     /* fill, scale; random_*: mean */                                        \
    X(F, std, 0, 0)       /* random_normal, random_uniform */                                      \
    X(I, index, 0, 0)   /* sumsq, convert: which word; pick: which; trust_*, lars, lamb: tensor */ \
    X(I, words, 0, 0)   /* stats: how many i64 */                                                  \
    X(F, beta1, 0.9, 0) /* adam, adamw */                                                          \
    X(F, beta2, 0.999, 0)                                                                          \
    X(I, bias_correction, 1, 0) /* adam, adamw, lamb */                                            \
    X(F, weight_decay, 0, 0)    /* adamw (decoupled), adam and sgd (L2 in the gradient) */         \
    X(F, momentum, 0, 0)        /* sgd, lars; batch_norm_track: weight of the new */               \
    X(F, dampening, 0, 0)                                                                          \
    X(I, nesterov, 0, 0)                                                                           \
    X(F, lr_mult, 1, 0)        /* optimizers: of a parameter group */                              \
    X(F, alpha, 0.99, 0)       /* rmsprop, with PyTorch's names as all here */                     \
    X(F, lr_decay, 0, 0)       /* adagrad */                                                       \
    X(F, beta2_decay, -0.8, 0) /* adafactor; eps is PyTorch's first */                             \
    X(F, eps2, 1e-3, 0)                                                                            \
    X(F, clip_threshold, 1, 0)        /* d */                                                      \
    X(I, cols, 0, 0)                  /* of a factored matrix, in files; `rows` beside them */     \
    X(I, count, 0, 0)                 /* adafactor: elements, padding apart */                     \
    X(I, first_word, 0, 0)            /* factor_*: of the tensor's words */                        \
    X(F, ema, 0, 0)                   /* ema: decay */                                             \
    X(I, ema_warmup, 0, 0)            /* ema: decay of update t at most (1 + t) / (10 + t) */      \
    X(F, trust_coefficient, 0.001, 0) /* lars */                                                   \
    X(F, min_coeff, 0.01, 0)          /* lamb: limits of |p| / |update| */                         \
    X(F, max_coeff, 10, 0)                                                                         \
    X(F, clip, 0, 0)                 /* step_scalars: largest gradient norm, 0 = none */           \
    X(F, clip_value, 0, 0)           /* clip_value: largest element of a gradient, 0 = none */     \
    X(F, loss_scale, 0, 0)           /* loss_scaler: the first scale; 0 = no scaler */             \
    X(E, scaler, 0, ku_attr_scalers) /* and its rule: op/loss_scale.h */                           \
    X(I, scale_window, 1000, 0)                                                                    \
    X(I, hysteresis, 2, 0)                                                                         \
    X(I, consecutive_hysteresis, 0, 0)                                                             \
    X(F, min_scale, 1, 0)                                                                          \
    X(F, growth_factor, 2, 0)                                                                      \
    X(F, backoff_factor, 0.5, 0)                                                                   \
    X(I, shift, 0, 0) /* step_scalars, loss_seed: backward runs at 2^-shift */                     \
    X(E, schedule, KU_SCHED_CONSTANT, ku_attr_schedules)                                           \
    X(F, lr, 0, 0)     /* step_scalars: schedule's parameters, counted in periods */               \
    X(I, period, 1, 0) /* updates after which the learning rate moves on: 1, or an epoch's */      \
    X(F, min_lr, 0, 0)                                                                             \
    X(F, warmup_lr, 0, 0)                                                                          \
    X(I, warmup, 0, 0)                                                                             \
    X(I, decay, 0, 0)                                                                              \
    X(I, step_size, 0, 0)                                                                          \
    X(F, gamma, 0, 0)                                                                              \
    X(L, args, {{0}}, 0)    /* of schedules with a list: op/schedule.h */                          \
    X(F, power, 1, 0)       /* polynomial */                                                       \
    X(I, d_model, 1, 0)     /* noam; sinusoid: width */                                            \
    X(F, pct_start, 0.3, 0) /* one_cycle, with PyTorch's names */                                  \
    X(F, div_factor, 25, 0)                                                                        \
    X(F, final_div_factor, 1e4, 0)                                                                 \
    X(I, three_phase, 0, 0)                                                                        \
    X(E, anneal, KU_ANNEAL_COS, ku_attr_anneals)                                                   \
    X(I, cycle_momentum, 0, 0) /* momentum, and Adam's beta1, move against the learning rate */    \
    X(F, base_momentum, 0.85, 0)                                                                   \
    X(F, max_momentum, 0.95, 0)                                                                    \
    X(E, reduce, KU_FOLD_SUM, ku_attr_folds) /* convert from P: how parts combine */               \
    X(E, wire, -1, ku_attr_dtypes) /* convert, fold: parts and sums round to it; -1: their own */  \
    X(I, axes, 0, 0)               /* convert: bit set of mesh axes whose placement changes */     \
    X(I, remat, 0, 0)              /* convert: later phases clone it */                            \
    X(I, by_micro, 0, 0) /* convert: over vs and ranks for each micro-batch, then over mb */       \
    X(I, kernel_h, 1, 0) /* conv2d, max_pool, avg_pool: the window, rows and columns */            \
    X(I, kernel_w, 1, 0)                                                                           \
    X(I, stride_h, 1, 0)                                                                           \
    X(I, stride_w, 1, 0)                                                                           \
    X(I, pad_h, 0, 0) /* on both sides */                                                          \
    X(I, pad_w, 0, 0)                                                                              \
    X(I, dilation_h, 1, 0)                                                                         \
    X(I, dilation_w, 1, 0)                                                                         \
    X(I, groups, 1, 0) /* conv2d */                                                                \
    X(I, in_h, 0, 0)   /* extents of x; the gradient's result has them */                          \
    X(I, in_w, 0, 0)                                                                               \
    X(I, count_pad, 1, 0) /* avg_pool: padding counts in the mean */                               \
    X(I, before, 0, 0)    /* pad_last, crop_last: elements of zeros */                             \
    X(I, behind, 0, 0)                                                                             \
    X(I, stack, 0, 0) /* convert: over mb, that many parts side by side instead of their sum */    \
    X(I, sync, 0, 0)  /* batch_norm_*: statistics over all data-parallel ranks */

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
enum ku_fold { KU_FOLD_SUM, KU_FOLD_MAX };
extern const char *const ku_attr_dtypes[],
    *const ku_attr_acts[], *const ku_attr_rope_types[],
                               *const ku_attr_schedules[],
                                   *const ku_attr_anneals[],
                                       *const ku_attr_folds[],
                                           *const ku_attr_scalers[]; /* NULL-terminated */

#define KU_ATTR_I int64_t
#define KU_ATTR_E int64_t
#define KU_ATTR_F double
#define KU_ATTR_L struct ku_args
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
/* " name=value" for every attribute that differs from its default (17 digits for doubles: parses
 * back to the same bits). */
struct ku_str;
void ku_attrs_print(const struct ku_attrs *a, struct ku_str *out);
int ku_attrs_set(struct ku_attrs *a, const char *name,
                 const char *value); /* KUMI_EINVAL: unknown name, value */

#endif
