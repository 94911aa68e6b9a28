/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_IMAGE_ARRAY_H
#define KU_DATA_IMAGE_ARRAY_H

#include "base/err.h"
#include "data/image/store.h"

/* Contents of a header: shape, element type, and the byte offset of the first element. */
struct ku_array_header {
    char type[4]; /* as in NumPy: "u1" "i8" "f4", little endian (IDX: "u1") */
    int ndim;
    int64_t dim[4];
    uint64_t at;
};

/*
 * Parse the header of an .npy or IDX file from its first bytes.
 *
 *   file_bytes   length of the file; the elements must fill all of it after the header
 *
 * Errors: EINPUT with name and reason.
 */
enum { KU_NPY_HEADER_MAX = 4096, KU_IDX_HEADER_MAX = 20 };
KU_STATUS ku_npy_parse(const char *name, const unsigned char *data, size_t bytes,
                       uint64_t file_bytes, struct ku_array_header *out);
KU_STATUS ku_idx_parse(const char *name, const unsigned char *data, size_t bytes,
                       uint64_t file_bytes, struct ku_array_header *out);

/* A file format: how to read its headers. */
struct ku_array_format {
    const char *what; /* "a NumPy array" */
    size_t header_max;
    int (*parse)(const char *name, const unsigned char *data, size_t bytes, uint64_t file_bytes,
                 struct ku_array_header *out);
};
/* Opens n image files and their n label files; errors: EINPUT, EINVAL, ENOMEM. */
KU_STATUS ku_array_open(const struct ku_image_source *src, const struct ku_array_format *format,
                        const struct ku_files *images, const struct ku_files *labels,
                        struct ku_image_store **out);

#endif
