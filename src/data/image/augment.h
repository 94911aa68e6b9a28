/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_IMAGE_AUGMENT_H
#define KU_DATA_IMAGE_AUGMENT_H

#include "data/image/pixels.h"

/*
 * What becomes of a decoded image before a model reads it: geometry in whole pixels of u8, then
 * normalisation. Names and rules are torchvision's (on PIL images), so that a recipe carries over:
 *
 *     training     none      Resize, CenterCrop
 *                  random    Resize, RandomCrop (padding: zeros, before normalisation)
 *                  resized   RandomResizedCrop
 *                  then RandomHorizontalFlip
 *     evaluation   Resize, CenterCrop
 *
 * Resize brings the shorter side to `resize` (the longer one: its length times that, rounded down)
 * and is left out when that is 0. CenterCrop begins at half the difference, rounded to even; an
 * image that is smaller stands amid zeros. Values are (x / 255 - mean) / std, for f32 images
 * (x - mean) / std, computed in f64 and rounded once.
 */
enum ku_crop { KU_CROP_NONE, KU_CROP_RANDOM, KU_CROP_RESIZED };
int ku_crop_parse(const char *name, enum ku_crop *out); /* none random resized; EINVAL */

struct ku_augment_opts {
    int64_t height, width; /* of a sample; 0: the images' own */
    int channels;          /* 1 or 3; 0: the images' own */
    enum ku_crop crop;     /* of the training split */
    int64_t padding;       /* pixels on each side; with random */
    int64_t resize;  /* of the shorter side, before other crops than resized; 0: none for images of
                        one size, else the sample's shorter side times 256/224 */
    double flip;     /* the share of training images that is mirrored */
    double scale[2]; /* of the area that resized keeps; 0: 0.08 to 1 */
    double ratio[2]; /* of its width to its height; 0: 3/4 to 4/3 */
    int n_mean;      /* entries of mean and std: 0 (0 and 1), 1 (all channels) or channels */
    double mean[KU_IMAGE_CHANNELS_MAX], std[KU_IMAGE_CHANNELS_MAX];
    enum kumi_dtype dtype; /* f32, or u8: pixels as they are, for a graph that normalises */
    uint64_t seed;
};
/* Fills n_mean, mean, std: none cifar10 cifar100 mnist imagenet half. Errors: EINVAL. */
int ku_normalize_parse(const char *name, struct ku_augment_opts *o);

struct ku_augment {
    struct ku_augment_opts o; /* with defaults in place of 0 */
    float value[KU_IMAGE_CHANNELS_MAX][256];
    double log_ratio[2];
};
/*
 * Checks options and fills what is derived.
 *
 *   h, w, c, dtype   of all images; h, w = 0: they differ
 *
 * Errors: EINVAL with the key.
 */
int ku_augment_init(struct ku_augment *a, const struct ku_augment_opts *o, int64_t h, int64_t w,
                    int64_t c, enum kumi_dtype dtype);

/* Memory of one thread for it. */
struct ku_augment_work {
    struct ku_scratch coef, temp, resized, gray;
    char why[200];
};
void ku_augment_work_fini(struct ku_augment_work *w);

/*
 * Makes a sample: height width channels elements of o.dtype. Training draws its random numbers from
 * Philox: key seed, stream 0x696d6167, step k of counter block `number`: so they depend on the seed
 * and the number of the draw over all epochs and on nothing else.
 *
 *   number   of the draw; < 0: evaluation
 *
 * Errors: EINPUT with w->why and no record (an image smaller than its crop); ENOMEM.
 */
int ku_augment(const struct ku_augment *a, const struct ku_pixels *image, int64_t number,
               struct ku_augment_work *w, void *out);

#endif
