/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_IMAGE_IMAGE_H
#define KU_DATA_IMAGE_IMAGE_H

#include <stdbool.h>

#include "base/err.h"
#include "data/image/augment.h"
#include "data/data.h"

/*
 * Image classification data. Ports: "images", f32 or u8 [height, width, channels] (2-dimensional
 * arrays: f32 [length]); "targets", i32 [], the class from 0.
 *
 *     kind       input
 *     cifar10    data_batch_1.bin … data_batch_5.bin (train) and test_batch.bin (val): files, their
 *                folder, or a folder that holds cifar-10-batches-bin
 *     cifar100   the same with train.bin and test.bin, cifar-100-binary
 *     folder     root/class/image.jpg|jpeg|png; classes and images sorted by the bytes of their
 *                names, as torchvision's ImageFolder
 *     tar        WebDataset shards: KEY.jpg|jpeg|png and KEY.cls (a number) next to each other
 *     idx        MNIST's files, images and labels; or the folder of the four
 *     npy        images u8 or f32, [n, h, w, c], [n, c, h, w], [n, h, w] or [n, length]; labels of
 *                any integer type, [n]
 *
 * How a sample is read:
 *
 *     store.h: files of a format ─> decode.h: JPEG, PNG ─> augment.h: crop, resize, normalize
 *
 * Samples are numbered in the order of files and images. Images stay in their files; each is read
 * when it is needed.
 */
struct ku_image_opts {
    const char *kind;         /* one of the kinds above */
    const char *const *train; /* folder: one root; else files, globs, "{000..147}" and "{a,b}" */
    int n_train;
    const char *const *val; /* n_val 0: val_fraction of train */
    int n_val;
    /* idx, npy: one label file per image file; n 0: idx derives the names as in MNIST */
    const char *const *train_labels;
    int n_train_labels;
    const char *const *val_labels;
    int n_val_labels;
    double val_fraction; /* in [0, 1): a random choice, fixed for all seeds, of whole images */
    const char *labels;  /* cifar100: "fine" (default), "coarse" */
    const char *layout;  /* npy: "nhwc", "nchw"; NULL: the one that gives 1 or 3 channels */
    int64_t n_classes;   /* valid labels are below it; 0: any label is valid */
    const char *cache;   /* folder for tar indices; as in ku_text_opts */
    struct ku_augment_opts augment;
    struct ku_progress progress;
};

/*
 * Open the files and index the images. Any number of threads may read; each read takes one of the
 * object's buffer sets, which are created on demand and grow to the largest image.
 *
 * Owns: *out, until ku_data_destroy. Blocks: while another rank builds the same index.
 * Errors: EINPUT (file and position), EINVAL (an option), ENOMEM.
 */
KU_STATUS ku_image_open(const struct ku_image_opts *opts, struct ku_data **out);
/* 1 if `kind` is one of the kinds above. */
bool ku_image_is_kind(const char *kind);

#endif
