/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_IMAGE_IMAGE_H
#define KU_DATA_IMAGE_IMAGE_H

#include "data/image/augment.h"
#include "data/data.h"

/*
 * Images with a class each, for classifiers. Ports: images, f32 or u8 [height, width, channels]
 * (arrays of two dimensions: f32 [length]); targets, i32 [], the class from 0 on.
 *
 *     cifar10     a folder with data_batch_1.bin … data_batch_5.bin (train), test_batch.bin (val),
 *     cifar100    or train.bin and test.bin, itself or in the cifar-*-bin folder within; or files
 *     folder      root/class/image.jpg|jpeg|png: classes in the order of their names' bytes, images
 *                 too, as torchvision's ImageFolder
 *     tar         shards of WebDataset's names: KEY.jpg|jpeg|png and KEY.cls (a number) side by
 * side idx         MNIST's files, images and labels; or the folder of the four npy         images
 * u8 or f32, [n, h, w, c], [n, c, h, w], [n, h, w] or [n, length]; labels of any integer type, [n]
 *
 * Samples are numbered in the order of files and images. Nothing is unpacked: an image is read
 * where it lies when it is needed.
 */
struct ku_image_opts {
    const char *kind;         /* of those above */
    const char *const *train; /* folder: one root; else files, globs, "{000..147}" and "{a,b}" */
    int n_train;
    const char *const *val; /* n_val 0: val_fraction of train */
    int n_val;
    /* idx, npy: files of labels, one for each of images; n 0: idx finds them by MNIST's names */
    const char *const *train_labels;
    int n_train_labels;
    const char *const *val_labels;
    int n_val_labels;
    double val_fraction; /* in [0, 1): a fixed random choice, one for all seeds; rounded to whole
                            images */
    const char *labels;  /* cifar100: "fine" (the default), "coarse" */
    const char *layout;  /* npy: "nhwc", "nchw"; NULL: whichever gives 1 or 3 channels */
    int64_t n_classes;   /* labels from here on are refused; 0: none is */
    const char *cache;   /* of tar indices; as ku_text_opts */
    struct ku_augment_opts augment;
    struct ku_progress progress;
};

/*
 * Opens the files and finds the images. Threads may read at once; each sample takes one of the
 * object's sets of buffers, which grow to the largest image and are made when a thread first needs
 * one more.
 *
 * Owns: *out, until ku_data_destroy. Blocks: while another rank makes the same index.
 * Errors: EINPUT (file and position), EINVAL (an option), ENOMEM.
 */
int ku_image_open(const struct ku_image_opts *opts, struct ku_data **out);
/* Kinds by name: 1 for one of those above. */
int ku_image_is_kind(const char *kind);
/* Classes that the data name or number: folder, cifar; 0: the data do not say. */
int64_t ku_image_n_classes(const struct ku_data *d);

#endif
