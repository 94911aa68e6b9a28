/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_DATA_H
#define KU_DATA_DATA_H

#include "base/err.h"
#include "base/progress.h"
#include "kumi/dtype.h"

#include <stdint.h>

/*
 * The interface of every data set. A data set has a training and a validation split; a split is a
 * sequence of numbered samples; a sample is one row in each of a few named arrays (ports) of fixed
 * shape. Example, text with sequence length 1024:
 *
 *     port       dtype  dim      one batch of n samples
 *     "tokens"   i32    [1024]   [n, 1024]
 *     "targets"  i32    [1024]   [n, 1024]
 *
 * From sample numbers to a batch:
 *
 *     sampler.h          (step, position)  ->  sample number
 *     ku_data_ops.read   sample number     ->  one row per port       text/ image/ pairs/
 *     loader.h           worker threads read the rows of coming steps
 *     batch_rows.h       the same without threads
 *
 * A kind of data (text, images, parallel corpus) implements struct ku_data_ops; its own struct
 * begins with struct ku_data. Opening a data set computes a fingerprint of it, which the manifest
 * of a run stores; of large files it samples the contents (ku_file_identify).
 */
enum ku_data_split { KU_SPLIT_TRAIN, KU_SPLIT_VAL, KU_N_SPLITS };

enum { KU_PORT_DIMS_MAX = 4, KU_DATA_PORTS_MAX = 8 };
/* Which length of a batch's shape (pairs/buckets.h) gives a port's first dimension. */
enum ku_data_length { KU_LENGTH_FIXED, KU_LENGTH_SRC, KU_LENGTH_TGT };
/* One named array of a sample; the graph's input is [n, dim…]. */
struct ku_data_port {
    const char *name; /* "tokens", "targets" */
    enum kumi_dtype dtype;
    int ndim;
    int64_t dim[KU_PORT_DIMS_MAX]; /* dim[0]: the maximum where the length varies */
    enum ku_data_length length;
};
struct ku_bucket_shape;
/* A position without a target, as PyTorch's ignore_index; the loss ignores negative targets. */
enum { KU_NO_TARGET = -100 };

struct ku_data;
struct ku_data_ops {
    const char *kind; /* "text" */
    void (*destroy)(struct ku_data *d);
    /*
     * Reads one sample into port[i], for each port in order. Allocates nothing.
     *
     *   number   number of the draw over all epochs (ku_sampler_number), for kinds that augment
     *
     * Threads: any number at once. Errors: EINPUT.
     */
    int (*read)(const struct ku_data *d, enum ku_data_split split, int64_t sample, int64_t number,
                void *const *port);
    /*
     * Only for data whose samples vary in length, else NULL. `lengths` gives the lengths of all
     * samples, [n_samples] each, for ku_buckets_create. `read_shape` reads one sample padded to a
     * shape that holds it; sample -1 gives a row of padding without targets.
     */
    void (*lengths)(const struct ku_data *d, enum ku_data_split split, int32_t *src_len,
                    int32_t *tgt_len);
    int (*read_shape)(const struct ku_data *d, enum ku_data_split split, int64_t sample,
                      int64_t number, const struct ku_bucket_shape *shape, void *const *port);
    /* Reads everything once; errors: EINPUT for the first fault found. */
    int (*verify)(const struct ku_data *d, const struct ku_progress *progress);
};

struct ku_data {
    const struct ku_data_ops *ops;
    int64_t n_samples[KU_N_SPLITS]; /* 0: the split is absent */
    const char *item;               /* unit that samples are cut from: "tokens"; NULL: none */
    int64_t n_items[KU_N_SPLITS];
    const struct ku_data_port *port;
    int n_ports;
    char fingerprint[65]; /* 64 hex digits, stored in the manifest */
};

/* Bytes of one row of a port. */
size_t ku_data_row_bytes(const struct ku_data_port *port);
static inline void ku_data_destroy(struct ku_data *d)
{
    if (d)
        d->ops->destroy(d);
}
static inline int ku_data_read(const struct ku_data *d, enum ku_data_split split, int64_t sample,
                               int64_t number, void *const *port)
{
    return d->ops->read(d, split, sample, number, port);
}
/*
 * Reads a sample into row `row` of each port. A row without a sample (-1), or whose sample cannot
 * be read, is zero, and its targets are KU_NO_TARGET, so the loss ignores them.
 */
KU_STATUS ku_data_read_row(const struct ku_data *d, enum ku_data_split split, int64_t sample,
                           int64_t number, void *const *to, int64_t row);
static inline int ku_data_verify(const struct ku_data *d, const struct ku_progress *progress)
{
    return d->ops->verify(d, progress);
}

#endif
