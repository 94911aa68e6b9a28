/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DEVICE_POOL_H
#define KU_DEVICE_POOL_H

#include <stdint.h>

/*
 * A fork-join pool of own threads. A job is n tiles; whoever is free takes the next one, so nothing
 * may depend on who runs a tile. Thread 0 is the caller: it works too, and a job never waits for a
 * thread that has not begun a tile, so an oversubscribed host costs time slices, not deadlock.
 */
struct ku_pool;

struct ku_pool_opts {
    int n_threads;          /* the caller included; 0 = 1 */
    int n_runnable_threads; /* on this host; threads spin only if these fit n_cpus. 0 = n_threads */
    int n_cpus;             /* that all of those run on; 0 = this thread's own */
    const int *cpu;         /* thread i >= 1 is bound to cpu[i]; NULL = not bound */
    int bind_caller;        /* bind thread 0 (the caller of create) to cpu[0] as well */
};

typedef void ku_tile_fn(void *ctx, int64_t tile, int thread);
typedef void ku_hook_fn(void *ctx);

/* Errors: KUMI_ENOMEM, KUMI_EDEVICE (threads or binding; nothing is left behind). */
int ku_pool_create(const struct ku_pool_opts *opts, struct ku_pool **out);
void ku_pool_destroy(struct ku_pool *pool); /* NULL is fine; no job may run */
int ku_pool_n_threads(const struct ku_pool *pool);

/*
 * Run fn(ctx, tile, thread) for every tile of [0, n_tiles), return when all are done. One caller at
 * a time.
 *
 *   hook   called by thread 0 between tiles, in long tiles by ku_pool_poll, and while it waits, at
 *          most about a millisecond apart; NULL = none
 *
 * Never allocates. With one thread it is a plain loop.
 */
void ku_pool_run(struct ku_pool *pool, int64_t n_tiles, ku_tile_fn *fn, void *ctx, ku_hook_fn *hook,
                 void *hook_ctx);
/* To be called inside tiles that take longer than a fraction of a millisecond; any thread may. */
void ku_pool_poll(struct ku_pool *pool, int thread);

#endif
