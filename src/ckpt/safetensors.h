/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CKPT_SAFETENSORS_H
#define KU_CKPT_SAFETENSORS_H

#include <stdbool.h>

#include "base/err.h"
#include "base/json/json.h"
#include "base/str.h"
#include "ckpt/saved_tensor.h"

/*
 * safetensors files: a little-endian u64 N, N bytes of JSON (padded with blanks), then data:
 *
 *     | N | {"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},…} | a | b | … |
 *       8                             N
 *
 * Offsets count from the start of the data. A file is refused unless its header has at most 100 MB,
 * keys are unique, sizes match dtype and shape, the tensors cover the data without gap or overlap,
 * and the file ends with the last one. Every number is checked against the file's size before it is
 * used to allocate or read.
 */
enum { KU_ST_MAX_HEADER_BYTES = 100000000 /* limit of the format */ };
enum {
    KU_ST_MAX_FILES =
        10000 /* of a sharded set; file names permit 99999, sets in use have about 200 */
};

struct ku_st_tensor {
    const char *name;
    const char *type;      /* name in the file: "F32", "BOOL", … */
    enum kumi_dtype dtype; /* KUMI_N_DTYPES: a type that kumi does not read */
    int ndim;
    int64_t dim[KU_MAX_DIMS];
    int64_t count;
    uint64_t at, bytes; /* position in the file, size */
};

struct ku_st {
    char *path;
    int fd; /* -1: not open */
    uint64_t file_bytes, data_at;
    int n;
    struct ku_st_tensor *tensor;   /* in data order */
    struct ku_st_tensor **by_name; /* sorted bytewise */
    struct ku_json header;
};

/* Open a file and check its header. Errors: EINPUT. */
KU_STATUS ku_st_open(const char *path, struct ku_st *st);
/* Check a header in memory: bytes [8, 8 + header_bytes) of a file of file_bytes. path: for
 * messages. Errors: EINPUT. */
KU_STATUS ku_st_parse(const char *path, const char *header, uint64_t header_bytes,
                      uint64_t file_bytes, struct ku_st *st);
void ku_st_close(struct ku_st *st);
const struct ku_st_tensor *ku_st_find(const struct ku_st *st, const char *name); /* NULL: none */
/* The tensor that contains this byte of the file; NULL: none (header, or after the end). */
const struct ku_st_tensor *ku_st_at(const struct ku_st *st, uint64_t at);
/* Read a tensor into `to` and convert it; exact: see ku_ckpt_tensor_scatter. Errors: EINPUT, an
 * unsupported dtype, another shape, or an unreadable file. */
KU_STATUS ku_st_read(const struct ku_st *st, const struct ku_st_tensor *from,
                     const struct ku_ckpt_tensor *to, int exact);
/* Read raw bytes [at, at + bytes) of a tensor's data. Errors: EINPUT. */
KU_STATUS ku_st_read_bytes(const struct ku_st *st, const struct ku_st_tensor *t, uint64_t at,
                           void *out, size_t bytes);
bool ku_st_is_same_shape(const struct ku_st_tensor *a, const struct ku_ckpt_tensor *b);

/* A set of files: DIR/model.safetensors, or the shards that DIR/model.safetensors.index.json lists
 * (both must match), or DIR itself if it is a file. */
struct ku_st_set {
    int n;
    struct ku_st *file;
};
KU_STATUS ku_st_set_open(const char *dir, struct ku_st_set *set);
void ku_st_set_close(struct ku_st_set *set);
const struct ku_st_tensor *ku_st_set_find(const struct ku_st_set *set, const char *name,
                                          const struct ku_st **file);

/* The name of a dtype in the format: "F32" for KUMI_F32. */
const char *ku_st_type_name(enum kumi_dtype dtype);
/*
 * Print the header (length, JSON, padding to 8 bytes) of a file with these tensors in this order.
 * Deterministic.
 *
 *   t     [n] in the order of ku_st_sort, which aligns each tensor to its element size
 *   out   the header is appended
 *   at    [n + 1] result: position of each tensor in the file; at[n] is the file's length
 */
KU_STATUS ku_st_header_print(const struct ku_ckpt_tensor *const *t, int n, struct ku_str *out,
                             uint64_t *at);
/* Sort tensors in file order: wider elements first, so that all are aligned, then by name. */
void ku_st_sort(const struct ku_ckpt_tensor **t, int n);

#endif
