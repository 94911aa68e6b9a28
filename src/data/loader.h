/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_LOADER_H
#define KU_DATA_LOADER_H

#include "data/data.h"
#include "data/sampler.h"

/*
 * Reads the rows of steps ahead of the one that asks for them, in threads of its own: they decode
 * and augment into prepared rows while a step computes. What arrives is a function of data and step
 * alone: not of the number of threads, of steps ahead, or of when rows are asked for. Any struct
 * ku_data can be behind it.
 *
 * A sample that cannot be read is an error when its row is asked for, so the first in the order of
 * rows is the one reported. With skip it is instead a row without a sample, and counted.
 */
enum ku_on_error { KU_ON_ERROR_STOP, KU_ON_ERROR_SKIP };
int ku_on_error_parse(const char *name, enum ku_on_error *out); /* stop skip; EINVAL */

enum { KU_WORKERS_MAX = 256, KU_PREFETCH_MAX = 1024 };

/* Positions [first, first + n) of a step's global batch. */
struct ku_loader_range {
    int64_t first, n;
};

struct ku_loader_opts {
    const struct ku_data *data; /* borrowed */
    enum ku_data_split split;
    /* Train: what stands at a position. NULL: sample `position` of step 0, then global_batch on:
     * the first n_samples, once each, and no sample behind them. */
    const struct ku_sampler *sampler; /* copied */
    int64_t global_batch, n_samples;  /* with NULL */
    /* What this rank reads in each step, in the order in which it asks; copied. */
    const struct ku_loader_range *range;
    int n_ranges;
    int n_workers; /* 0: rows are read when they are asked for, and nothing is kept */
    int prefetch;  /* with workers: steps whose rows are kept at once; 0: 2 */
    enum ku_on_error on_error;
    /* Called at least every 50 ms by a thread that waits for rows; a negative status ends the wait.
     * NULL: nobody is asked. */
    int (*tick)(void *ctx);
    void *tick_ctx;
};

struct ku_loader;
/*
 * Starts the threads (their signals blocked, on the CPUs of the caller); they begin with step 0 of
 * `first_step`.
 *
 * Errors: EINVAL (workers, prefetch), ENOMEM (threads, memory).
 */
int ku_loader_create(const struct ku_loader_opts *o, int64_t first_step, struct ku_loader **out);
/* Ends the threads, each after the row it is at. */
void ku_loader_destroy(struct ku_loader *l);

/*
 * Copies the rows of one range of a step. Ranges and steps are asked for in ascending order; behind
 * the last step of evaluation comes the first. Any other step or range is right, too, but what was
 * read ahead is read again.
 *
 *   range   index of the range
 *   to      [data->n_ports], where its first row of each port goes; rows lie side by side
 *
 * Blocks: until they are there. Threads: one at a time. Allocates nothing.
 * Errors: EINPUT (the first row that cannot be read), what tick returns, ENOMEM.
 */
int ku_loader_read(struct ku_loader *l, int64_t step, int range, void *const *to);
/* Samples left out so far, of the rows that were asked for. */
int64_t ku_loader_n_skipped(const struct ku_loader *l);
/*
 * Bytes of prepared rows; what a plan of memory counts.
 *
 *   row_bytes   [n_ports], of a row of each port
 *   n_rows      of a step, this rank's
 *   n_workers, prefetch   as in the options
 */
size_t ku_loader_bytes(const size_t *row_bytes, int n_ports, int64_t n_rows, int n_workers,
                       int prefetch);

#endif
