/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CKPT_TENSOR_H
#define KU_CKPT_TENSOR_H

#include "tensor/dtype.h"
#include "tensor/shape.h"

/* Which file of a snapshot a tensor belongs to. */
enum ku_ckpt_group { KU_CKPT_MODEL, KU_CKPT_OPTIMIZER, KU_CKPT_N_GROUPS };

/* A place that is no memory: bytes [at, at + bytes) of it come and go. Returns 0, or < 0 with the
 * error set. Threads: any. */
struct ku_ckpt_store {
    int (*move)(const struct ku_ckpt_store *store, int is_write, uint64_t at, void *data,
                size_t bytes);
    const void *ctx;
    int index; /* ctx's business */
};
/* Elements [begin, end), in memory order, of a tensor that lies in several places. */
struct ku_ckpt_part {
    int64_t begin, end;
    void *data;                        /* element begin, aligned for dtype; NULL: in a store, */
    const struct ku_ckpt_store *store; /* from byte `at` on */
    uint64_t at;
};

/*
 * A tensor of the job's state: how it is called and shaped in files, and where it lies in memory.
 * Padding (padded > dim) is in memory alone; it is neither written nor hashed, and loads leave it
 * untouched.
 *
 *   dim      [ndim] as in files
 *   padded   [ndim] as in memory, padded[i] >= dim[i]; row-major
 *   data     the whole logical tensor, aligned for dtype; with parts not looked at: NULL, or
 *            this rank's copy
 *   part     [n_parts] where it lies instead, every element at least once: the first that holds an
 *            element is read, all that hold it are written. n_parts 0: data
 */
struct ku_ckpt_tensor {
    const char *name;
    enum kumi_dtype dtype;
    int ndim;
    int64_t dim[KU_MAX_DIMS];
    int64_t padded[KU_MAX_DIMS];
    void *data;
    const struct ku_ckpt_part *part;
    int n_parts;
    enum ku_ckpt_group group;
    uint32_t turn; /* when training changes it: lower ones first. 0: never, or nobody asks */
};

/* Names present and different, dims sane (at most 2^48 elements). KUMI_EINVAL. */
int ku_ckpt_tensors_check(const struct ku_ckpt_tensor *t, int n);
int64_t ku_ckpt_tensor_count(const struct ku_ckpt_tensor *t); /* elements in files */

/*
 * The one place that knows how file order maps to memory: element `at` of the file lies at element
 * *memory_at of data. Returns how many elements from there on follow each other in both.
 *
 *   at   0 <= at < count
 */
int64_t ku_ckpt_tensor_run(const struct ku_ckpt_tensor *t, int64_t at, int64_t *memory_at);

/* Copy elements [at, at + count) from memory to `out` in file order. Errors: a store's. */
int ku_ckpt_tensor_gather(const struct ku_ckpt_tensor *t, int64_t at, int64_t count, void *out);

/*
 * Copy elements [at, at + count) from `in`, in file order, to memory, converting.
 *
 *   in       aligned for in_dtype
 *   exact    refuse values that t->dtype cannot hold, instead of rounding them once
 *
 * Errors: KUMI_EINPUT with the element (memory is then partly written); a store's.
 */
int ku_ckpt_tensor_scatter(const struct ku_ckpt_tensor *t, int64_t at, int64_t count,
                           const void *in, enum kumi_dtype in_dtype, int exact);

#endif
