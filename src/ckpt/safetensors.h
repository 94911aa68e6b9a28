/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CKPT_SAFETENSORS_H
#define KU_CKPT_SAFETENSORS_H

#include "base/json/json.h"
#include "base/str.h"
#include "ckpt/tensor.h"

/*
 * safetensors files: a little-endian u64 N, N bytes of JSON (padded with blanks), then the tensors'
 * bytes:
 *
 *     | N | {"wte.weight":{"dtype":"F32","shape":[50257,768],"data_offsets":[0,154389504]},…} |
 * data … |
 *
 * Offsets count from the start of the data. A file is refused unless its header is at most 100 MB,
 * keys differ, sizes agree with dtype and shape, tensors cover the data without hole or overlap,
 * and the file ends where they end. Nothing is allocated or read from a number before it is held
 * against the file's size.
 */
enum { KU_ST_MAX_HEADER_BYTES = 100000000 /* the format's own limit */ };
enum {
    KU_ST_MAX_FILES =
        10000 /* of a sharded set; Hugging Face's names count to 99999, in practice 200 */
};

struct ku_st_tensor {
    const char *name;
    const char *type;      /* the file's word: "F32", "BOOL", … */
    enum kumi_dtype dtype; /* KUMI_N_DTYPES: a type of the format that kumi does not read */
    int ndim;
    int64_t dim[KU_MAX_DIMS];
    int64_t count;
    uint64_t at, bytes; /* in the file */
};

struct ku_st {
    char *path;
    int fd; /* -1: only parsed */
    uint64_t file_bytes, data_at;
    int n;
    struct ku_st_tensor *tensor;   /* in the order of the data */
    struct ku_st_tensor **by_name; /* sorted bytewise */
    struct ku_json header;
};

/* Reads and checks the header; the file stays open for ku_st_read. KUMI_EINPUT. */
int ku_st_open(const char *path, struct ku_st *st);
/* As ku_st_open on a header alone: bytes [8, 8 + header_bytes) of a file of file_bytes. For the
 * fuzzer. */
int ku_st_parse(const char *path, const char *header, uint64_t header_bytes, uint64_t file_bytes,
                struct ku_st *st);
void ku_st_close(struct ku_st *st);
const struct ku_st_tensor *ku_st_find(const struct ku_st *st, const char *name); /* or NULL */
/* The tensor that holds this byte of the file; NULL: the header, or behind the end. */
const struct ku_st_tensor *ku_st_at(const struct ku_st *st, uint64_t at);
/* KUMI_EINPUT unless dtype (when exact is meant: see scatter) can be read and shapes are equal. */
int ku_st_read(const struct ku_st *st, const struct ku_st_tensor *from,
               const struct ku_ckpt_tensor *to, int exact);
/* Raw bytes [at, at + bytes) of the tensor's data. KUMI_EINPUT. */
int ku_st_read_bytes(const struct ku_st *st, const struct ku_st_tensor *t, uint64_t at, void *out,
                     size_t bytes);
int ku_st_is_same_shape(const struct ku_st_tensor *a, const struct ku_ckpt_tensor *b);

/* DIR/model.safetensors, or the files that DIR/model.safetensors.index.json names (index and files
 * must agree); or DIR itself, where it is a file. */
struct ku_st_set {
    int n;
    struct ku_st *file;
};
int ku_st_set_open(const char *dir, struct ku_st_set *set);
void ku_st_set_close(struct ku_st_set *set);
const struct ku_st_tensor *ku_st_set_find(const struct ku_st_set *set, const char *name,
                                          const struct ku_st **file);

/* "F32" for KUMI_F32. */
const char *ku_st_type_name(enum kumi_dtype dtype);
/*
 * Write the header (length word, JSON, padding to 8) of a file that holds the n tensors t in this
 * order, each aligned to its element: see ku_st_sort. Equal tensors give equal bytes.
 *
 *   at   [n + 1] receives the place of each tensor in the file; at[n] is the file's length
 */
int ku_st_header_print(const struct ku_ckpt_tensor *const *t, int n, struct ku_str *out,
                       uint64_t *at);
/* The order of writing: wider elements first (so that all are aligned), then by name. */
void ku_st_sort(const struct ku_ckpt_tensor **t, int n);

#endif
