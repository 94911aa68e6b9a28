/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_OP_ROPE_H
#define KU_OP_ROPE_H

#include "op/op.h"

/*
 * Angle per position of each of the width / 2 pairs, f64: theta^(-2 j / width), changed as Hugging
 * Face's rope_type says:
 *
 *   linear    over factor (position interpolation: Chen et al. 2023)
 *   dynamic   theta grows with what length has beyond original (NTK-aware; the same up to original)
 *   llama3    wave lengths above original / low_freq over factor, those below original / high_freq
 *             as they are, a smooth way between (Llama 3.1)
 */
void ku_rope_frequencies(const struct ku_attrs *a, int64_t width, double *angle);

#endif
