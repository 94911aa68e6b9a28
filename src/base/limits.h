/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_LIMITS_H
#define KU_BASE_LIMITS_H

/* What a model may have at most, so that everything admitted compiles within about a minute. */
enum {
    KU_MAX_LAYERS =
        16384, /* the deepest networks that were trained have 10,000 (Xiao et al. 2018) */
    KU_MAX_MODEL_OPS = 1 << 21 /* of its forward pass: 128 for each of so many layers */
};

#endif
