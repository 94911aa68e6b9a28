/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_OP_TABLE_H
#define TESTS_OP_TABLE_H

/*
 * The table of cases: add a row, and it is run on every device, dtype, instruction set and thread
 * count, in the accumulate form and in place where the op has them, cut along every dim that its
 * placement rule allows and into canonical blocks; and its gradient template is run on the same
 * devices and held against central differences. Ops of gradients (linear_dx, ...) get their cases
 * from the forward op's rows. An op without any case fails.
 *
 *   op, attributes   as in op/attr.h: "contract=2 act=gelu_tanh"
 *   operands         "<kind>[limit]:<dim><count>[/<seen>]...", one word each
 *   n_out            results asked for
 *
 * Kinds: x float of the dtype at hand (b: with an infinity and a NaN; q: few values, many equal) ·
 * f float, f32 beside any x · p as f, not negative · i<limit> ids below it · t<limit> targets below
 * it, some ignored · k control port · w words · e exact sum, with counts behind it · E exact sums,
 * one after the other · c a count · r report (R: of a skipped update, u: of the first one) · d f64,
 * not negative.
 */
struct op_row {
    const char *op, *attrs, *operands;
    int n_out;
};

static const struct op_row op_table[] = {
    /* row_name: 118 = 'v', 112 = 'p' */
    {"embedding", "rows=70 rows_seen=61 row_name=118", "x:v70/61c13 i61:n3t5", 1},
    {"embedding", "rows=7 rows_seen=7 row_name=118", "x:v7h3d1 i7:n5t9", 1},
    {"embedding", "rows=1 rows_seen=1 row_name=118", "x:v1c1 i1:n2", 1},
    {"embedding", "rows=5 rows_seen=5 row_name=118", "x:v5c3 i5:n0t2", 1},
    {"embedding", "rows=300 rows_seen=300 row_name=118", "x:v300c96 i300:n4t33", 1},
    {"add_rows", "rows=9 rows_seen=9 row_name=112", "x:n3t5c7 x:p9c7", 1},
    {"add_rows", "rows=6 rows_seen=5 row_name=112 outs=2", "x:n2t5c3h2 x:p6/5c3h2", 1},
    {"add_rows", "rows=4 rows_seen=4 row_name=112", "x:n0t4c3 x:p4c3", 1},

    {"linear", "", "x:n3t5c7 x:c7f11 f:f11", 1},
    {"linear", "trans=1", "x:n3t5c7 x:f11c7", 1},
    {"linear", "outs=3", "x:n2t3c5 x:c5,3h2d7 f:,3h2d7", 1},
    {"linear", "contract=2", "x:n2t3h3d5 x:h3d5c9 f:c9", 1},
    {"linear", "contract=2 outs=2 trans=1", "x:n3h2d3 x:f5g2h2d3 f:f5g2", 1},
    {"linear", "", "x:c5 x:c5f3", 1},
    {"linear", "", "x:n1c1 x:c1f1 f:f1", 1},
    {"linear", "", "x:n0c5 x:c5f3 f:f3", 1},
    {"linear", "", "x:n4c0 x:c0f3 f:f3", 1},
    {"linear", "trans=1", "x:n4c3 x:f0c3 f:f0", 1},
    {"linear", "trans=1", "x:n17c33 x:v70/61c33", 1},
    {"linear", "", "x:n67c130 x:c130f97 f:f97", 1},
    {"linear", "", "x:n3c1100 x:c1100f37 f:f37", 1},
    {"linear", "", "x:n600c48 x:c48f40 f:f40", 1},
    {"linear", "act=relu", "x:n9c17 x:c17f33 f:f33", 1},
    {"linear", "act=gelu_tanh", "x:n9t3c17 x:c17f33 f:f33", 2},
    {"linear", "act=gelu_erf trans=1", "x:n9c17 x:f33c17", 2},

    {"act", "act=relu", "x:n3c37", 1},
    {"act", "act=gelu_tanh", "x:n5c129", 1},
    {"act", "act=gelu_erf", "x:n5c129", 1},
    {"act", "act=gelu_tanh", "x:n131c257", 1},
    {"act", "act=gelu_tanh", "x:n0c3", 1},
    {"add", "", "x:n3t5c7 x:n3t5c7", 1},
    {"add", "", "x:n131c129 x:n131c129", 1},
    {"mul", "", "x:n3t5c7 x:n3t5c7", 1},
    {"mul", "", "x:n1 x:n1", 1},
    {"mul", "", "x:n131c129 x:n131c129", 1},
    {"dropout", "p=0.1", "x:n3t5c7 k", 1},
    {"dropout", "p=0", "x:n3t5 k", 1},
    {"dropout", "p=0.9999999", "x:n33t65 k", 1},
    {"dropout", "p=0.5", "x:n5t67c129 k", 1},
    {"dropout", "p=0.3", "x:n0c3 k", 1},
    {"cast", "dtype=f32", "x:n3c37", 1},
    {"cast", "dtype=bf16", "x:n131c129", 1},
#include "op/table_conv.h"
#include "op/table_cache.h"
    {"select", "", "x:n3t5c7 i5:n3", 1},
    {"select", "", "x:n1t1h2d3 i1:n1", 1},

    {"layer_norm", "", "x:n3t5c7 f:c7 f:c7", 3},
    {"layer_norm", "eps=0.001", "x:n2c129 f:c129 f:c129", 3},
    {"layer_norm", "", "x:n70c48 f:c48 f:c48", 3},
    {"layer_norm", "", "x:c16 f:c16 f:c16", 3},
    {"layer_norm", "", "x:n3c1 f:c1 f:c1", 3},
    {"layer_norm", "", "x:n0c5 f:c5 f:c5", 3},
    {"attention", "causal=1", "x:n2t7,3h3d5 k", 2},
    {"attention", "", "x:n2t5,3h2d3 k", 2},
    {"attention", "causal=1 p=0.3", "x:n3t9,3h3d4 k", 2},
    {"attention", "p=0.5 scale=0.7", "x:n2t6,3h2d8 k", 2},
    {"attention", "causal=1", "x:n1t1,3h1d1 k", 2},
    {"attention", "causal=1 p=0.1", "x:n0t4,3h2d3 k", 2},
    {"attention", "causal=1 p=0.1", "x:n1t131,3h2d17 k", 2},
    {"attention", "", "x:n1t67,3h1d33 k", 2},
    /* q, k, v apart: other and more keys than queries, grouped queries, lengths (0 and all among
     * them), segments in any order; h are the heads of keys, r those of queries on each */
    {"attention_kv", "", "x:n2t4h2d3 x:n2s5h2d3 x:n2s5h2d3 k", 2},
    {"attention_kv", "causal=1", "x:n2t3h2r3d5 x:n2t3h2d5 x:n2t3h2d5 k", 2},
    {"attention_kv", "causal=1 p=0.3", "x:n1t3h2r3d4 x:n1s6h2d4 x:n1s6h2d4 k", 2},
    {"attention_kv", "", "x:n3t4h1r2d3 x:n3s5h1d3 x:n3s5h1d3 i6:n3 k", 2},
    {"attention_kv", "p=0.5 scale=0.7", "x:n3t4h2d2 x:n3t4h2d2 x:n3t4h2d2 i3:n3t4 k", 2},
    {"attention_kv", "causal=1", "x:n3t3h2r2d2 x:n3s5h2d2 x:n3s5h2d2 i6:n3 i2:n3s5 k", 2},
    {"attention_kv", "", "x:n4t2h1d7 x:n4s1h1d7 x:n4s1h1d7 i2:n4 k", 2},
    {"attention_kv", "", "x:n2t3h2d3 x:n2s0h2d3 x:n2s0h2d3 k", 2},
    {"attention_kv", "causal=1", "x:n2t0h2d3 x:n2s4h2d3 x:n2s4h2d3 i3:n2 k", 2},
    {"attention_kv", "", "x:n0t4h2d3 x:n0s4h2d3 x:n0s4h2d3 i3:n0 k", 2},
    {"attention_kv", "causal=1 p=0.1", "x:n2t70h2r3d17 x:n2s261h2d17 x:n2s261h2d17 i262:n2 k", 2},
    {"attention_kv", "", "x:n1t67h1d256 x:n1s40h1d256 x:n1s40h1d256 k", 2},
    {"attention_kv", "causal=1", "x:n2t131h1r2d48 x:n2t131h1d48 x:n2t131h1d48 i2:n2t131 k", 2},
    {"attention_kv", "p=0.2", "x:n2t231h2d18 x:n2t231h2d18 x:n2t231h2d18 i232:n2 i5:n2t231 k", 2},
    {"softmax_xent", "", "x:n3t5v11 t11:n3t5", 2},
    {"softmax_xent", "", "x:n2t3v128/101 t101:n2t3", 2},
    {"softmax_xent", "ignore=3", "x:n7v5 t5:n7", 2},
    {"softmax_xent", "", "x:n3v1 t1:n3", 2},
    {"softmax_xent", "", "x:n0v5 t5:n0", 2},
    {"softmax_xent", "", "x:n2v2500 t2500:n2", 2},

    {"softmax_xent", "smoothing=0.1", "x:n3t5v11 t11:n3t5", 2},
    {"softmax_xent", "smoothing=0.3 ignore=3", "x:n5v128/101 t101:n5", 2},
    {"softmax_xent", "smoothing=0.1", "x:n2v2500 t2500:n2", 2},
    {"softmax_xent", "smoothing=0.1", "x:n3v1 t1:n3", 2},
    {"softmax_xent", "smoothing=0.1", "x:n0v5 t5:n0", 2},
    {"top_k", "", "x:n37v7 t7:n37", 1},
    {"top_k", "top=5", "x:n9t5v128/101 t101:n9t5", 1},
    {"top_k", "top=3 ignore=2", "q:n67v7 t7:n67", 1},
    {"top_k", "top=9", "x:n3v5 t5:n3", 1},
    {"top_k", "top=2", "b:n4v5 t5:n4", 1},
    {"top_k", "", "x:n0v5 t5:n0", 1},

    {"exact_sum", "", "x:n3t5", 1},
    {"exact_sum", "", "x:n5c7001", 1},
    {"exact_sum", "", "x:n0", 1},
    {"exact_sum", "", "b:n3c5", 1},
    {"count_valid", "", "t9:n3t5", 1},
    {"count_valid", "ignore=2", "t9:n51", 1},
    {"count_valid", "", "t9:n0t5", 1},
    {"max_all", "", "x:n3t5", 1},
    {"max_all", "", "x:n5c7001", 1},
    {"max_all", "", "x:n0", 1},
    {"max_all", "", "b:n3c5", 1},
    {"loss_seed", "shift=9", "", 1},
    {"fold", "", "f:n3c5 f:n3c5", 1},
    {"fold", "reduce=max", "f:n131c129 f:n131c129", 1},
    {"fold", "", "e:w75 e:w75", 1},
    {"fold", "reduce=max", "w:w5 w:w5", 1},
    {"fold", "", "f:n0c5 f:n0c5", 1},
    {"stats_zero", "words=75", "", 1},
    {"sumsq", "index=2", "x:n3c5 e:w75", 1},
    {"sumsq", "", "x:n131c129 e:w73", 1},
    {"sumsq", "", "x:n0c5 e:w73", 1},
    {"sumsq", "index=1", "b:n3c5 e:w75", 1},
    {"step_scalars", "clip=1 shift=3 lr=0.001 warmup=100", "e:w75 e:w72 c:w1 c:w1", 2},
    {"step_scalars", "shift=6 lr=0.001 min_lr=1e-4 decay=50 schedule=cosine",
     "e:w73 e:w72 c:w1 c:w1", 2},
    {"step_scalars", "lr=0.001 schedule=step gamma=0.5 step_size=1 period=3",
     "e:w73 e:w72 c:w1 c:w1", 2},
    {"loss_scalars", "", "e:w72 c:w1", 1},

    {"adamw", "weight_decay=0.1 eps=1e-8", "f:n3c5 f:n3c5 p:n3c5 x:n3c5 r:w8", 3},
    {"adamw", "weight_decay=0.1 eps=1e-8 dtype=bf16",
     "f:n131c129 f:n131c129 p:n131c129 x:n131c129 r:w8", 4},
    {"adamw", "eps=1e-8 dtype=bf16", "f:n3c5 f:n3c5 p:n3c5 f:n3c5 R:w8", 4},
    {"adamw", "eps=1e-8", "f:n0 f:n0 p:n0 f:n0 r:w8", 3},
    {"adam", "weight_decay=0.01 eps=1e-8 beta2=0.99", "f:n3c5 f:n3c5 p:n3c5 x:n3c5 u:w8", 3},
    {"adam", "eps=1e-8 dtype=f32", "f:n131c129 f:n131c129 p:n131c129 f:n131c129 r:w8", 4},
    {"sgd", "momentum=0.9 weight_decay=0.01", "f:n3c5 f:n3c5 x:n3c5 r:w8", 2},
    {"sgd", "momentum=0.9 nesterov=1 dtype=bf16", "f:n131c129 f:n131c129 f:n131c129 u:w8", 3},
    {"sgd", "", "f:n3c5 f:n3c5 f:n3c5 R:w8", 2},

    {"sgd", "momentum=0.9 dampening=0.3", "f:n3c5 f:n3c5 x:n3c5 r:w8", 2},
    {"sgd", "schedule=one_cycle cycle_momentum=1 decay=20", "f:n3c5 f:n3c5 f:n3c5 r:w8", 2},
    {"adamw", "schedule=one_cycle cycle_momentum=1 decay=20 eps=1e-8",
     "f:n3c5 f:n3c5 p:n3c5 f:n3c5 r:w8", 3},
    {"adam", "bias_correction=0 eps=1e-8", "f:n3c5 f:n3c5 p:n3c5 f:n3c5 r:w8", 3},
    {"trust_sums", "", "x:n3c5 x:n3c5 E:w144", 1},
    {"trust_sums", "index=1", "f:n131c129 x:n131c129 E:w432", 1},
    {"trust_sums", "", "f:n0c5 f:n0c5 E:w144", 1},
    {"trust_sums", "", "x:n3c5 b:n3c5 E:w144", 1},
    {"trust_norms", "", "E:w432", 1},
    {"lamb_moments", "weight_decay=0.1 eps=1e-6", "f:n3c5 f:n3c5 p:n3c5 x:n3c5 r:w8 E:w144", 3},
    {"lamb_moments", "weight_decay=0.1 eps=1e-6 index=2 bias_correction=0",
     "f:n131c129 f:n131c129 p:n131c129 x:n131c129 r:w8 E:w432", 3},
    {"lamb_moments", "eps=1e-6 schedule=one_cycle cycle_momentum=1 decay=9",
     "f:n1 f:n1 p:n1 f:n1 u:w8 E:w144", 3},
    {"lamb_moments", "eps=1e-6", "f:n3c5 f:n3c5 p:n3c5 f:n3c5 R:w8 E:w144", 3},
    {"lamb_moments", "eps=1e-6", "f:n0 f:n0 p:n0 f:n0 r:w8 E:w144", 3},
    {"lamb", "weight_decay=0.1 eps=1e-6", "f:n3c5 f:n3c5 p:n3c5 r:w8 d:w2", 1},
    {"lamb", "weight_decay=0.1 eps=1e-6 index=1 dtype=bf16",
     "f:n131c129 f:n131c129 p:n131c129 r:w8 d:w6", 2},
    {"lamb", "eps=1e-6 max_coeff=0.5 dtype=f32", "f:n3c5 f:n3c5 p:n3c5 u:w8 d:w2", 2},
    {"lamb", "eps=1e-6 dtype=bf16", "f:n3c5 f:n3c5 p:n3c5 R:w8 d:w2", 2},
    {"lamb", "eps=1e-6", "f:n0 f:n0 p:n0 r:w8 d:w2", 1},
    {"lars", "momentum=0.9 weight_decay=0.01 eps=1e-8", "f:n3c5 f:n3c5 x:n3c5 r:w8 d:w2", 2},
    {"lars", "momentum=0.9 nesterov=1 trust_coefficient=0.02 index=1 dtype=bf16",
     "f:n131c129 f:n131c129 f:n131c129 u:w8 d:w4", 3},
    {"lars", "momentum=0.9 dampening=0.5 dtype=f32", "f:n3c5 f:n3c5 f:n3c5 r:w8 d:w2", 3},
    {"lars", "dtype=bf16", "f:n3c5 f:n3c5 f:n3c5 R:w8 d:w2", 3},
    {"lars", "", "f:n0 f:n0 f:n0 r:w8 d:w2", 2},

    {"fill", "value=0.75", "f:n131c129", 1},
    {"fill", "value=3", "w:w1", 1},
    {"fill", "value=1", "x:v70/61c131", 1},
    {"random_normal", "std=0.02", "f:n3c5 k", 1},
    {"random_normal", "std=0.02 value=1", "f:v70/61c131 k", 1},
    {"random_normal", "std=1", "f:n0 k", 1},
    {"random_uniform", "std=0.02", "f:n3c5 k", 1},
    {"random_uniform", "std=0.02 value=1", "f:v70/61c131 k", 1},
    {"derive", "", "f:n3c5 x:n3c5", 1},
    {"derive", "", "f:n131c129 x:n131c129", 1},
};
enum { N_OP_ROWS = sizeof op_table / sizeof op_table[0] };

#endif
