/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_LOADER_H
#define KU_DATA_LOADER_H

#include "base/err.h"
#include "data/data.h"
#include "data/sampler.h"

/*
 * Reads the rows of coming steps in worker threads, which decode and augment while a step computes.
 * Works with any struct ku_data. The rows depend on data and step only: not on the number of
 * threads, the prefetch depth or the time of a request.
 *
 * A sample that cannot be read is reported when its row is requested, so the error reported is the
 * first one in row order. With KU_ON_ERROR_SKIP its row has no sample instead, and is counted.
 */
enum ku_on_error { KU_ON_ERROR_STOP, KU_ON_ERROR_SKIP };
KU_STATUS ku_on_error_parse(const char *name, enum ku_on_error *out); /* "stop", "skip"; EINVAL */

enum { KU_WORKERS_MAX = 256, KU_PREFETCH_MAX = 1024 };

/* Positions [first, first + n) of a step's global batch. */
struct ku_loader_range {
    int64_t first, n;
};

struct ku_loader_opts {
    const struct ku_data *data; /* borrowed */
    enum ku_data_split split;
    /*
     * Training: maps positions to samples; copied. NULL (evaluation): position p of step s is
     * sample s * global_batch + p, up to n_samples; later positions have no sample.
     */
    const struct ku_sampler *sampler;
    int64_t global_batch, n_samples; /* only if sampler is NULL */
    /* Positions that this rank reads in each step, in the order of its requests; copied. */
    const struct ku_loader_range *range;
    int n_ranges;
    int n_workers; /* 0: rows are read when requested, without read-ahead */
    int prefetch;  /* number of slots, one step each, with workers; 0: 2 */
    enum ku_on_error on_error;
    /*
     * Called at least every 50 ms while a thread waits for rows, with the number of rows that the
     * workers have read so far; a negative status ends the wait. NULL: no call.
     */
    int (*tick)(void *ctx, uint64_t n_read);
    void *tick_ctx;
};

struct ku_loader;
/*
 * Start the threads (signals blocked, on the caller's CPUs). They read ahead from `first_step`.
 *
 * Errors: EINVAL (workers, prefetch), ENOMEM (threads, memory).
 */
KU_STATUS ku_loader_create(const struct ku_loader_opts *o, int64_t first_step,
                           struct ku_loader **out);
/* Stops the threads, each after its current row. */
void ku_loader_destroy(struct ku_loader *l);

/*
 * Copy the rows of one range of a step. Request ranges and steps in ascending order; after the last
 * step of an evaluation comes step 0 again. Any other order gives the same rows, but rows already
 * read ahead are discarded and read again.
 *
 *   range   index of the range
 *   to      [data->n_ports]: address of the range's first row in each port; rows are contiguous
 *
 * Blocks: until the rows are read. Threads: one at a time. Allocates nothing.
 * Errors: EINPUT (the first row that cannot be read), any status of tick, ENOMEM.
 */
KU_STATUS ku_loader_read(struct ku_loader *l, int64_t step, int range, void *const *to);
/* Samples skipped so far, among the requested rows. */
int64_t ku_loader_n_skipped(const struct ku_loader *l);
/*
 * Bytes of the loader's slots, for the memory plan.
 *
 *   row_bytes            [n_ports], of one row of each port
 *   n_rows               rows per step of this rank
 *   n_workers, prefetch  as in the options
 */
size_t ku_loader_bytes(const size_t *row_bytes, int n_ports, int64_t n_rows, int n_workers,
                       int prefetch);

#endif
