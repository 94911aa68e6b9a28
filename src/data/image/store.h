/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_IMAGE_STORE_H
#define KU_DATA_IMAGE_STORE_H

#include "base/hash.h"
#include "data/image/decode.h"
#include "data/image/image.h"

struct ku_image_store;

/* What one thread needs to read an image. */
struct ku_image_work {
    struct ku_decoder decoder;
    struct ku_augment_work augment;
    struct ku_scratch file; /* the image as it lies in a file */
    struct ku_image_work *next;
    char why[320]; /* what is wrong with the image, when read returns EINPUT without a record */
};

/*
 * The images of one split in one format: numbered, each with a label. One file a format; its struct
 * begins with struct ku_image_store.
 */
struct ku_image_store_ops {
    /* Takes what an open that failed left, too. */
    void (*close)(struct ku_image_store *s);
    /*
     * Pixels and label of image i; the pixels lie in *work until its next use.
     * Threads: any number, each with its own work. Errors: EINPUT (work->why), ENOMEM.
     */
    int (*read)(const struct ku_image_store *s, int64_t i, struct ku_image_work *work,
                struct ku_pixels *out, int32_t *label);
    /* "train/data_batch_1.bin: record 17": what errors about image i begin with. */
    void (*name)(const struct ku_image_store *s, int64_t i, char *text, size_t bytes);
    /* Feeds what identifies the contents. Errors: EINPUT, ENOMEM. */
    int (*identify)(const struct ku_image_store *s, struct ku_sha256 *h);
};
struct ku_image_store {
    const struct ku_image_store_ops *ops;
    int64_t n;         /* images, at least 1 */
    int64_t n_classes; /* 0: unknown */
    int64_t h, w, c;   /* of each image; h, w = 0: they differ */
    enum kumi_dtype dtype;
    int is_flat; /* vectors, not images: the sample is [w] */
};

/* One split's files, as ku_image_opts has them. */
struct ku_image_source {
    const struct ku_image_opts *opts;
    enum ku_data_split split;
    const struct ku_image_store *train; /* for val: of the same kind */
    const char *const *path, *const *labels;
    int n_paths, n_labels;
};
/* *out is set only on success. Errors: EINPUT, EINVAL, ENOMEM. */
int ku_cifar_open(const struct ku_image_source *src, struct ku_image_store **out);
int ku_folder_open(const struct ku_image_source *src, struct ku_image_store **out);
int ku_tar_open(const struct ku_image_source *src, struct ku_image_store **out);
int ku_idx_open(const struct ku_image_source *src, struct ku_image_store **out);
int ku_npy_open(const struct ku_image_source *src, struct ku_image_store **out);

/* ---- files, shared by the formats (files.c) */

/* Names in one order. */
struct ku_files {
    char **name;
    uint32_t n, cap;
};
/* Adds what a pattern means: "{000..147}" and "{a,b}" first, then a glob's matches in the order of
 * their bytes. Errors: EINPUT (nothing matches), ENOMEM. */
int ku_files_add(struct ku_files *f, const char *pattern);
int ku_files_add_name(struct ku_files *f, const char *name);
void ku_files_fini(struct ku_files *f);

/* A file that is open, or opened for each read. */
struct ku_file {
    char *name;
    int fd; /* -1: opened for each read */
    uint64_t bytes;
};
/* what: "CIFAR records", for the hint. Errors: EINPUT with the name. */
int ku_file_open(const char *name, const char *what, int keep_open, struct ku_file *f);
void ku_file_close(struct ku_file *f);
/* Exactly so many bytes. EINPUT with the reason in why. Threads: any number. */
int ku_file_read(const struct ku_file *f, uint64_t at, void *data, size_t bytes, char *why,
                 size_t why_bytes);
/* The same with a record: "data: NAME: why". */
int ku_file_get(const struct ku_file *f, uint64_t at, void *data, size_t bytes);
/* Feeds the length and 64 blocks of 4 KiB, spread evenly. */
int ku_file_identify(const struct ku_file *f, struct ku_sha256 *h);

/* A whole image file into work->file, *bytes of it, decoded. */
int ku_image_decode(struct ku_image_work *work, size_t bytes, struct ku_pixels *out);
/* EINVAL or EINPUT unless label < n_classes (0: any). */
int ku_label_check(const struct ku_image_source *src, const char *name, int64_t i, int64_t label);

#endif
