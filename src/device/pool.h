/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DEVICE_POOL_H
#define KU_DEVICE_POOL_H

#include <stdint.h>

#include "base/err.h"

/*
 * A fork-join thread pool. A job is n tiles; every free thread takes the next tile, so results must
 * not depend on which thread runs a tile. Thread 0 is the caller and works too. A job never waits
 * for a thread that has not started a tile: an oversubscribed host loses time, but does not
 * deadlock.
 */
struct ku_pool;

struct ku_pool_opts {
    int n_threads;          /* including the caller; 0 = 1 */
    int n_runnable_threads; /* on this host; threads spin only if they fit n_cpus; 0 = n_threads */
    int n_cpus;             /* CPUs that those threads share; 0 = the CPUs of this thread */
    const int *cpu;         /* thread i >= 1 is bound to cpu[i]; NULL = not bound */
    int bind_caller;        /* also bind thread 0 (the caller of create) to cpu[0] */
};

typedef void ku_tile_fn(void *ctx, int64_t tile, int thread);
typedef void ku_hook_fn(void *ctx);

/*
 * Errors: KUMI_EINVAL, KUMI_ENOMEM, KUMI_EDEVICE (threads or binding); on failure no thread is
 * left.
 */
KU_STATUS ku_pool_create(const struct ku_pool_opts *opts, struct ku_pool **out);
void ku_pool_destroy(struct ku_pool *pool); /* NULL is allowed; no job may run */
int ku_pool_n_threads(const struct ku_pool *pool);

/*
 * Run fn(ctx, tile, thread) for every tile of [0, n_tiles) and return when all are done.
 *
 *   hook   called by thread 0 between tiles, from ku_pool_poll inside long tiles, and while it
 *          waits, at intervals of at most about 1 ms; NULL = none
 *
 * Threads: one caller at a time. Never allocates. With one thread it is a plain loop.
 */
void ku_pool_run(struct ku_pool *pool, int64_t n_tiles, ku_tile_fn *fn, void *ctx, ku_hook_fn *hook,
                 void *hook_ctx);
/*
 * Runs the hook if it is due. Tiles that take longer than a fraction of a millisecond call it;
 * every thread may.
 */
void ku_pool_poll(struct ku_pool *pool, int thread);

#endif
