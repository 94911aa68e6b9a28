/* SPDX-License-Identifier: Apache-2.0 */
/* Batches of images and their labels. */
#include <string.h>

#include "base/err.h"
#include "batch/fixed_shape.h"
#include "data/image/image.h"

int ku_image_open_data(struct ku_batch_source *s)
{
    const struct ku_config *c = s->cfg;
    const struct ku_model *m = s->model;
    struct ku_image_opts o = {.kind = c->data_kind,
                              .train = (const char *const *)c->data_train.item,
                              .n_train = c->data_train.n,
                              .val = (const char *const *)c->data_val.item,
                              .n_val = c->data_val.n,
                              .train_labels = (const char *const *)c->data_train_labels.item,
                              .n_train_labels = c->data_train_labels.n,
                              .val_labels = (const char *const *)c->data_val_labels.item,
                              .n_val_labels = c->data_val_labels.n,
                              .val_fraction = c->data_val_fraction,
                              .labels = c->data_labels,
                              .layout = c->data_layout,
                              .n_classes = m->properties.n_classes,
                              .progress = s->progress};
    struct ku_augment_opts *a = &o.augment;
    a->height = m->properties.image[0];
    a->width = m->properties.image[1];
    a->channels = (int)m->properties.image[2];
    a->padding = c->data_padding;
    a->resize = c->data_resize == KU_NULL ? 0 : c->data_resize;
    a->flip = c->data_flip;
    memcpy(a->scale, c->data_scale.v, sizeof a->scale);
    memcpy(a->ratio, c->data_ratio.v, sizeof a->ratio);
    a->seed = (uint64_t)c->train_seed;
    KU_TRY(ku_crop_parse(c->data_crop, &a->crop));
    KU_TRY(ku_normalize_parse(c->data_normalize, a));
    return ku_image_open(&o, &s->data);
}

const char *ku_image_kind(const struct ku_config *c)
{
    return c->data_kind;
}
