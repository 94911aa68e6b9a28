/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BATCH_FIXED_SHAPE_H
#define KU_BATCH_FIXED_SHAPE_H

#include "base/err.h"
#include "batch/text_source.h"

/* Batch sources with one batch shape: text and images, which differ in how they open the data. */
struct ku_fixed_source {
    struct ku_batch_source base;
    struct ku_sampler sampler;
    struct ku_loader *loader[KU_N_SPLITS]; /* created by the first fill */
    struct ku_held_out held;               /* of text */
    bool is_held_out;
};

/* Entries of the ops: text_source.c, image_source.c. */
const char *ku_text_kind(const struct ku_config *c);
KU_STATUS ku_text_open_data(struct ku_batch_source *s);
const char *ku_image_kind(const struct ku_config *c);
KU_STATUS ku_image_open_data(struct ku_batch_source *s);

#endif
