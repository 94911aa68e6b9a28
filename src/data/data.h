/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_DATA_H
#define KU_DATA_DATA_H

#include "kumi/dtype.h"

#include <stdint.h>

/*
 * Data of any kind, as the step loop sees them: splits of numbered samples, each a few named arrays
 * (ports) of fixed shape. A kind is one file with a table of this sort; its struct begins with
 * struct ku_data.
 */
enum ku_data_split { KU_SPLIT_TRAIN, KU_SPLIT_VAL, KU_N_SPLITS };

enum { KU_PORT_DIMS_MAX = 4, KU_DATA_PORTS_MAX = 8 };
/* Which length of a batch's shape (buckets.h) is a port's first dimension. */
enum ku_data_length { KU_LENGTH_FIXED, KU_LENGTH_SRC, KU_LENGTH_TGT };
/* One sample's part of a port: the graph's input is [n, dim…]. */
struct ku_data_port {
    const char *name; /* "tokens", "targets" */
    enum kumi_dtype dtype;
    int ndim;
    int64_t dim[KU_PORT_DIMS_MAX]; /* dim[0] is the longest, where it varies */
    enum ku_data_length length;
};
struct ku_bucket_shape;
/* A position without a target: PyTorch's ignore_index. The loss counts no negative target. */
enum { KU_NO_TARGET = -100 };

struct ku_data;
/*
 * Called with progress of long work, at least once per MiB read. A negative status stops the work
 * and is returned by the call.
 *
 *   what   "tokenizing data/a.txt"; total_bytes 0 when it is not known
 */
struct ku_progress {
    int (*call)(void *ctx, const char *what, uint64_t done_bytes,
                uint64_t total_bytes); /* NULL: nobody listens */
    void *ctx;
};

/* The status of the call; 0 without a listener. */
static inline int ku_progress_call(const struct ku_progress *p, const char *what,
                                   uint64_t done_bytes, uint64_t total_bytes)
{
    return p && p->call ? p->call(p->ctx, what, done_bytes, total_bytes) : 0;
}

struct ku_data_ops {
    const char *kind; /* "text" */
    void (*destroy)(struct ku_data *d);
    /*
     * Reads one sample into port[i], for each port in order. Allocates nothing.
     *   number   of the draw over all epochs (ku_sampler_number), for kinds that augment
     * Threads: any number at once. Errors: EINPUT.
     */
    int (*read)(const struct ku_data *d, enum ku_data_split split, int64_t sample, int64_t number,
                void *const *port);
    /*
     * Of data whose samples vary in length (NULL: those that do not): the lengths of all samples,
     * [n_samples] each, for ku_buckets_create; and read, padded to a shape that holds the sample.
     * sample -1 is a position without one: all padding, no target.
     */
    void (*lengths)(const struct ku_data *d, enum ku_data_split split, int32_t *src_len,
                    int32_t *tgt_len);
    int (*read_shape)(const struct ku_data *d, enum ku_data_split split, int64_t sample,
                      int64_t number, const struct ku_bucket_shape *shape, void *const *port);
    /* Reads everything once. Errors: EINPUT for the first thing that is wrong. */
    int (*verify)(const struct ku_data *d, const struct ku_progress *progress);
};

struct ku_data {
    const struct ku_data_ops *ops;
    int64_t n_samples[KU_N_SPLITS]; /* 0: the split is absent */
    const char *item;               /* what samples are cut from: "tokens"; NULL: nothing */
    int64_t n_items[KU_N_SPLITS];
    const struct ku_data_port *port;
    int n_ports;
    char fingerprint[65]; /* of the contents, 64 hex digits: the manifest's */
};

/* Bytes of one row of a port. */
size_t ku_data_row_bytes(const struct ku_data_port *port);
/* Makes a row of a port one without a sample: zero, and targets that no loss counts. */
void ku_data_blank(const struct ku_data_port *port, void *row);

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
static inline int ku_data_verify(const struct ku_data *d, const struct ku_progress *progress)
{
    return d->ops->verify(d, progress);
}

#endif
