/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CKPT_SAVED_TENSOR_H
#define KU_CKPT_SAVED_TENSOR_H

#include <stdbool.h>

#include "base/err.h"
#include "tensor/dtype.h"
#include "tensor/shape.h"

/* The file of a snapshot that a tensor belongs to. */
enum ku_ckpt_group { KU_CKPT_MODEL, KU_CKPT_OPTIMIZER, KU_CKPT_N_GROUPS };

/*
 * Storage that is not plain host memory: memory of a device, or a file. Results: 0, or < 0 with the
 * error set. Threads: any.
 *
 *   move         copies bytes [at, at + bytes) from it, or to it if is_write
 *   map, unmap   host address at which to write all of these bytes before unmap, so that a
 *                conversion needs no buffer; NULL: the storage has none
 */
struct ku_ckpt_store {
    int (*move)(const struct ku_ckpt_store *store, int is_write, uint64_t at, void *data,
                size_t bytes);
    int (*map)(const struct ku_ckpt_store *store, uint64_t at, size_t bytes, void **data);
    int (*unmap)(const struct ku_ckpt_store *store, uint64_t at, size_t bytes, void *data);
    const void *ctx;
    int arena, rank; /* for ctx */
};
/*
 * Elements [begin, end), in memory order, of a tensor that is not in plain host memory. With run:
 * of these only the first `run` of every `pitch` elements, which are dense in the store (the slice
 * of a tensor that is split along one dim).
 *
 *     begin 2, end 12, run 2, pitch 4     tensor   . . a b . . c d . . e f     store   a b c d e f
 */
struct ku_ckpt_part {
    int64_t begin, end;
    const struct ku_ckpt_store *store;
    uint64_t at;        /* byte of element `begin` in store */
    int64_t run, pitch; /* run 0: all elements */
};

/*
 * A state tensor: its name and shape in files, and its location: data or part. Padding (padded >
 * dim) exists only in memory: it is not written or hashed, and loading leaves it unchanged.
 *
 *     dim [2, 3], padded [2, 4]       memory   a b c . d e f .       file   a b c d e f
 *
 *   dim      [ndim] shape in files
 *   padded   [ndim] shape in memory, padded[i] >= dim[i]; row-major
 *   data     the whole tensor in plain host memory, aligned for dtype; ignored if there are parts
 *   part     [n_parts] parts that cover every element at least once: an element is read from the
 *            first part that contains it and written to all of them. n_parts 0: use data
 *   owner    the elements are divided among ranks on several hosts: the parts cover those of this
 *            host alone, which may be none. Copies from memory are of elements of this host; copies
 *            to memory skip the others
 */

/*
 * The ranks that have the elements of a tensor. The job has `n_copies` of it; a copy consists of
 * n_slices slices along one dim (tensor parallelism), and each slice of the chunks of n_owners
 * ranks (ZeRO):
 *
 *     rank of element    first + copy * copy_stride + owner * n_slice_ranks + slice * slice_stride
 *                        (first: a multiple of n_copies * copy_stride)
 *     its slice          place % pitch / run, its place there: place / pitch * run + place % run
 *
 *     ranks 4 5 6 7, 2 slices, 2 owners:  first 4; rank 4 is owner 0 of slice 0, 5 that of slice 1
 */
struct ku_ckpt_owners {
    int n_owners;                     /* 0: this host has all elements */
    int64_t block_count, first_block; /* of the partition of a slice (tensor/blocks.h) */
    int first, n_copies, copy_stride;
    int n_slice_ranks;  /* ranks between one owner and the next */
    int slice_stride;   /* ranks that have the same slice (mesh axis tpi); 0: 1 */
    int64_t run, pitch; /* elements of a slice in a row; pitch 0: one slice */
};
struct ku_ckpt_tensor {
    const char *name;
    enum kumi_dtype dtype;
    int ndim;
    int64_t dim[KU_MAX_DIMS];
    int64_t padded[KU_MAX_DIMS];
    void *data;
    const struct ku_ckpt_part *part;
    int n_parts;
    struct ku_ckpt_owners owner;
    enum ku_ckpt_group group;
    uint32_t turn; /* order in which the update changes tensors, ascending; 0: never, or unused */
};

/* Check that names are unique and not empty and shapes valid (at most 2^48 elements). Errors:
 * EINVAL.
 */
KU_STATUS ku_ckpt_tensors_check(const struct ku_ckpt_tensor *t, int n);
int64_t ku_ckpt_tensor_count(const struct ku_ckpt_tensor *t); /* elements in files */

/*
 * Map file order to memory order: element `at` of the file is element *memory_at of data. Returns
 * the number of elements from there on that are contiguous in both.
 *
 *   at   0 <= at < count
 */
int64_t ku_ckpt_tensor_run(const struct ku_ckpt_tensor *t, int64_t at, int64_t *memory_at);

/*
 * The rank that has element `at` of the file in the copy of rank `near` (of a rank that has none of
 * the tensor: in any copy), of a tensor with owners. *end: the same rank has the elements
 * [at, *end), contiguous in memory.
 */
int ku_ckpt_tensor_owner(const struct ku_ckpt_tensor *t, int64_t at, int near, int64_t *end);
/* The first rank of a copy, for `near`; copies are counted modulo their number. */
int ku_ckpt_tensor_copy(const struct ku_ckpt_tensor *t, int64_t copy);
/* Whether memory of this host may contain one of the elements [at, at + count), count > 0. */
bool ku_ckpt_tensor_is_here(const struct ku_ckpt_tensor *t, int64_t at, int64_t count);

/* Copy elements [at, at + count) from memory to `out`, in file order. Errors: those of a store. */
KU_STATUS ku_ckpt_tensor_gather(const struct ku_ckpt_tensor *t, int64_t at, int64_t count,
                                void *out);

/*
 * Copy elements [at, at + count) from `in`, in file order, to memory, with conversion.
 *
 *   in       [count], aligned for in_dtype
 *   exact    1: refuse values that t->dtype cannot represent; 0: round them to nearest even, and
 *            refuse finite values that exceed its range
 *
 * Errors: EINPUT, with the element (memory is then partly written); those of a store.
 */
KU_STATUS ku_ckpt_tensor_scatter(const struct ku_ckpt_tensor *t, int64_t at, int64_t count,
                                 const void *in, enum kumi_dtype in_dtype, int exact);

#endif
