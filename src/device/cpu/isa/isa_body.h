/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All inner loops of one instruction set and their table. The includer defines ISA_OPS, GEMM_BYTES
 * and GEMM_MR; the unit of matrix products is one f32.
 */
#define GEMM_UNIT               float
#define GEMM_DEPTH              1
#define GEMM_MADD(acc, unit, b) ((acc) + (unit) * (b))
#define GEMM_PEAK_MADD(acc, b)  ((acc) * (b) + (b))
#include "device/cpu/isa.h"
#include "device/cpu/simd.h"
#include "op/attr.h"

#include "device/cpu/elementwise/elem_body.h"
#include "device/cpu/elementwise/dropout_body.h"
#include "device/cpu/elementwise/round_body.h"
#include "device/cpu/elementwise/rows_body.h"
#include "device/cpu/attention/rope_body.h"
#include "device/cpu/norm/norm_body.h"
#include "device/cpu/update/update_body.h"
#include "device/cpu/update/rules_body.h"
#include "device/cpu/update/adafactor_body.h"
#include "device/cpu/gemm/pack_body.h"
#include "device/cpu/conv/conv_body.h"
#include "device/cpu/conv/pool_body.h"
#include "device/cpu/gemm/gemm_body.h"
#include "device/cpu/gemm/thin_body.h"
#include "device/cpu/attention/attn_body.h"
#include "device/cpu/attention/decode_body.h"

const struct ku_isa_ops ISA_OPS = {
    .cast = cast,
    .add = add,
    .mul = mul,
    .scale = scale,
    .clamp = clamp,
    .act = act_all,
    .act_dx = act_dx,
    .glu = glu,
    .glu_dx = glu_dx,
    .rope_angles = rope_angles,
    .rope = rope,
    .dropout = dropout,
    .stochastic_round = stochastic_round,
    .sum_into = sum_into,
    .prod_into = prod_into,
    .finish = finish,
    .finish_rows = finish_rows,
    .finish_cols = finish_cols,
    .layer_norm = layer_norm,
    .layer_norm_dx = layer_norm_dx,
    .rms_norm = rms_norm,
    .rms_norm_dx = rms_norm_dx,
    .norm_sums = norm_sums,
    .norm_apply = norm_apply,
    .norm_dsums = norm_dsums,
    .norm_dx = norm_dx,
    .norm_widen = norm_widen,
    .log_sum_exp = log_sum_exp,
    .row_max = row_max,
    .exp_sum = exp_sum,
    .softmax_scaled = softmax_scaled,
    .sum = sum,
    .n_above = n_above,
    .sumsq = sumsq,
    .max = max_of,
    .adam = adam,
    .sgd = sgd,
    .lamb_moments = lamb_moments,
    .lamb = lamb,
    .update_rule = update_rule,
    .ema = ema,
    .factor_sums = factor_sums,
    .factor_norms = factor_norms,
    .factor_apply = factor_apply,
    .factor_move = factor_move,
    .pack_rows = pack_rows,
    .pack_cols = pack_cols,
    .conv_pack = conv_pack,
    .conv_unpack = conv_unpack,
    .pack_split = pack_split,
    .pool_max = pool_max,
    .pool_pick = pool_pick,
    .pool_mean = pool_mean,
    .gemm = {GEMM_MICRO, .thin = thin, .thin_rows = THIN_ROWS_MAX},
    .attn_forward = attn_forward,
    .attn_backward = attn_backward,
    .attn_decode = attn_decode,
};
