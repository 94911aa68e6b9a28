/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_IMAGE_AUGMENT_H
#define KU_DATA_IMAGE_AUGMENT_H

#include "base/err.h"
#include "data/image/pixels.h"

/*
 * Turns a decoded image into a sample: geometry in whole u8 pixels, then normalization. Names and
 * formulas are torchvision's (on PIL images), so recipes carry over:
 *
 *     training     none      Resize, CenterCrop
 *                  random    Resize, RandomCrop (padding: zeros, before normalization)
 *                  resized   RandomResizedCrop
 *                  then RandomHorizontalFlip
 *     evaluation   Resize, CenterCrop
 *
 * Resize scales the shorter side to `resize` and the longer side in proportion, rounded down; it is
 * omitted if `resize` is 0. CenterCrop begins at half the difference, rounded to even; a smaller
 * image is padded with zeros. Values are (x / 255 - mean) / std, for f32 images (x - mean) / std,
 * computed in f64 and rounded once.
 */
enum ku_crop { KU_CROP_NONE, KU_CROP_RANDOM, KU_CROP_RESIZED };
KU_STATUS ku_crop_parse(const char *name,
                        enum ku_crop *out); /* "none", "random", "resized"; EINVAL */

struct ku_augment_opts {
    int64_t height, width; /* of a sample; 0: as the images */
    int channels;          /* 1 or 3; 0: as the images */
    enum ku_crop crop;     /* of the training split */
    int64_t padding;       /* pixels on each side; only with random */
    /*
     * shorter side before none and random crops; 0: no resize if all images have one size, else
     * the sample's shorter side times 256/224
     */
    int64_t resize;
    double flip;     /* fraction of training images that is mirrored */
    double scale[2]; /* range of the box's area, relative to the image; {0, 0}: 0.08 to 1 */
    double ratio[2]; /* range of the box's width / height; {0, 0}: 3/4 to 4/3 */
    int n_mean;      /* entries of mean, std: 0 (0 and 1), 1 (all channels) or channels */
    double mean[KU_IMAGE_CHANNELS_MAX], std[KU_IMAGE_CHANNELS_MAX];
    enum kumi_dtype dtype; /* f32, or u8: raw pixels, for a graph that normalizes */
    uint64_t seed;
};
/* Sets n_mean, mean, std by name: none cifar10 cifar100 mnist imagenet half; errors: EINVAL. */
KU_STATUS ku_normalize_parse(const char *name, struct ku_augment_opts *o);

struct ku_augment {
    struct ku_augment_opts o; /* defaults filled in */
    float value[KU_IMAGE_CHANNELS_MAX][256];
    double log_ratio[2];
};
/*
 * Check the options and compute the derived values.
 *
 *   h, w, c, dtype   of all images; h, w = 0: images differ in size
 *
 * Errors: EINVAL with the key.
 */
KU_STATUS ku_augment_init(struct ku_augment *a, const struct ku_augment_opts *o, int64_t h,
                          int64_t w, int64_t c, enum kumi_dtype dtype);

/* Buffers of one thread for ku_augment. */
struct ku_augment_work {
    struct ku_scratch coef, temp, resized, gray;
    char why[200];
};
void ku_augment_work_fini(struct ku_augment_work *w);

/*
 * Make a sample: height * width * channels elements of o.dtype. Random numbers come from Philox
 * with key `seed`, stream 0x696d6167 and counter (`number`, k): k = 0 for flip and crop, k = 1 … 10
 * for the attempts of a resized crop. They depend on nothing else.
 *
 *   number   of the draw (ku_sampler_number); < 0: evaluation
 *
 * Errors: EINPUT with w->why and no error record (an image smaller than its crop); ENOMEM.
 */
KU_STATUS ku_augment(const struct ku_augment *a, const struct ku_pixels *image, int64_t number,
                     struct ku_augment_work *w, void *out);

#endif
