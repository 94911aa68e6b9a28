/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_LIMITS_H
#define KU_BASE_LIMITS_H

/* Upper bounds on a model, so that every accepted model compiles within about a minute. */
enum {
    /* The deepest trained networks have 10,000 layers (Xiao et al. 2018). */
    KU_MAX_LAYERS = 16384,
    KU_MAX_MODEL_OPS = 1 << 21 /* ops of the forward pass: 128 per layer */
};

#endif
