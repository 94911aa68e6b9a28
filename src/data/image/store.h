/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_IMAGE_STORE_H
#define KU_DATA_IMAGE_STORE_H

#include "base/err.h"
#include "base/hash.h"
#include "data/image/decode.h"
#include "data/image/image.h"
#include "data/input_file.h"

struct ku_image_store;

/* Buffers of one thread for reading images. */
struct ku_image_work {
    struct ku_decoder decoder;
    struct ku_augment_work augment;
    struct ku_scratch file; /* the encoded image */
    struct ku_image_work *next;
    char why[320]; /* fault of the image, when read returns EINPUT without an error record */
};

/*
 * The images of one split in one file format: numbered, each with a label. One file implements one
 * format; its struct begins with struct ku_image_store.
 */
struct ku_image_store_ops {
    /* Also accepts the partial object of a failed open. */
    void (*close)(struct ku_image_store *s);
    /*
     * Reads pixels and label of image i. The pixels stay in *work until its next use. Threads: any
     * number, each with its own work. Errors: EINPUT (work->why), ENOMEM.
     */
    int (*read)(const struct ku_image_store *s, int64_t i, struct ku_image_work *work,
                struct ku_pixels *out, int32_t *label);
    /* Prefix of errors about image i: "train/data_batch_1.bin: record 17". */
    void (*name)(const struct ku_image_store *s, int64_t i, char *text, size_t bytes);
    /* Hashes what identifies the contents; errors: EINPUT, ENOMEM. */
    int (*identify)(const struct ku_image_store *s, struct ku_sha256 *h);
};
/* A file of a store whose files hold consecutive images. */
struct ku_image_part {
    struct ku_file file;
    int64_t first; /* number of its first image */
    uint64_t at;   /* byte offset of its first image */
};
struct ku_image_store {
    const struct ku_image_store_ops *ops;
    struct ku_image_part *part; /* NULL: the format finds its files by itself */
    uint32_t n_parts, cap_parts;
    int64_t n;         /* images, at least 1 */
    int64_t n_classes; /* 0: unknown */
    int64_t h, w, c;   /* of each image; h, w = 0: images differ in size */
    enum kumi_dtype dtype;
    int is_flat; /* vectors, not images: a sample is [w] */
};

/* The files of one split, from ku_image_opts. */
struct ku_image_source {
    const struct ku_image_opts *opts;
    enum ku_data_split split;
    const struct ku_image_store *train; /* for val: the train store, of the same kind */
    const char *const *path, *const *labels;
    int n_paths, n_labels;
};
/* *out is set only on success; errors: EINPUT, EINVAL, ENOMEM. */
KU_STATUS ku_cifar_open(const struct ku_image_source *src, struct ku_image_store **out);
KU_STATUS ku_folder_open(const struct ku_image_source *src, struct ku_image_store **out);
KU_STATUS ku_tar_open(const struct ku_image_source *src, struct ku_image_store **out);
KU_STATUS ku_idx_open(const struct ku_image_source *src, struct ku_image_store **out);
KU_STATUS ku_npy_open(const struct ku_image_source *src, struct ku_image_store **out);

/* The end of each of them: sets *out, or closes the store. Returns status. */
int ku_store_opened(struct ku_image_store *s, int status, struct ku_image_store **out);
/*
 * For stores of parts: opens a file as the part that begins with image n (what: as ku_file_open);
 * finds the part of an image; reads an image of constant size to work->file; close and identify are
 * entries of ku_image_store_ops.
 */
KU_STATUS ku_store_add(struct ku_image_store *s, const char *name, const char *what);
const struct ku_image_part *ku_store_part(const struct ku_image_store *s, int64_t i);
KU_STATUS ku_store_read(const struct ku_image_store *s, int64_t i, size_t bytes,
                        struct ku_image_work *work);
KU_STATUS ku_store_identify(const struct ku_image_store *s, struct ku_sha256 *h);
void ku_store_close(struct ku_image_store *s);

/* File helpers shared by the formats (image_files.c). */

/* An ordered list of file names. */
struct ku_files {
    char **name;
    uint32_t n, cap;
};
/*
 * Adds the files of n patterns: expands "{000..147}" and "{a,b}", then globs; the matches of a
 * pattern are sorted by bytes. Errors: EINPUT (nothing matches), ENOMEM.
 */
KU_STATUS ku_files_add(struct ku_files *f, const char *const *pattern, int n);
KU_STATUS ku_files_add_name(struct ku_files *f, const char *name);
void ku_files_fini(struct ku_files *f);

/* Whether files with this ending, "jpg", are images. */
bool ku_image_is_ending(const char *ending);
/* Decodes the first `bytes` bytes of work->file. */
KU_STATUS ku_image_decode(struct ku_image_work *work, size_t bytes, struct ku_pixels *out);
/* EINPUT unless 0 <= label < n_classes (n_classes 0: any up to INT32_MAX). */
KU_STATUS ku_label_check(const struct ku_image_source *src, const char *name, int64_t i,
                         int64_t label);

#endif
