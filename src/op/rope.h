/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_OP_ROPE_H
#define KU_OP_ROPE_H

#include "op/op.h"

/*
 * Rotation angle per position of each of the width / 2 pairs, in f64: theta^(-2 j / width),
 * modified by Hugging Face's rope_type:
 *
 *   linear    divided by factor (position interpolation: Chen et al. 2023)
 *   dynamic   theta grows with length / original (NTK-aware); unchanged for length <= original,
 *             where length is the number of positions in use
 *   llama3    wavelengths above original / low_freq are divided by factor, those below
 *             original / high_freq are unchanged, with linear interpolation between (Llama 3.1)
 */
void ku_rope_frequencies(const struct ku_attrs *a, int64_t length, int64_t width, double *angle);

#endif
