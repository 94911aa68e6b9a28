/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How it works. One 64-bit atomic, `word`, holds the job number and the number of tiles left:
 *
 *     63        32 31         0
 *     | job number | tiles left |
 *
 * A thread takes a tile with one compare-and-swap that decrements "tiles left". It reads the job's
 * description only after that, and the job cannot end before this tile is done. Late threads find
 * no tile left. The caller waits for tiles, not for threads: with more threads than cores it does
 * the work itself.
 *
 * An idle thread spins while the host has free cores, then yields a few times, then sleeps on the
 * futex `wakeup`. A worker increments `asleep` before its last read of `word`; the caller reads
 * `asleep` after writing `word`. So either the worker sees the job or the caller sees the sleeper.
 */
#include "device/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/os/ipc.h"
#include "base/os/yields.h"

enum {
    MAX_THREADS = 1024,
    N_SPINS = 4000,      /* about 50 us: longer than the gap between two kernels of a step */
    N_YIELDS = 20,       /* base/os/yields.h */
    SLEEP_NS = 50000000, /* upper limit of a sleep: a lost wake-up costs time, not the run */
    HOOK_SLEEP_NS = 500000,
    HOOK_EVERY_NS = 200000
};

struct worker {
    struct ku_pool *pool;
    int index, cpu; /* cpu < 0: not bound */
    pthread_t thread;
    struct ku_yields yields;
};

struct ku_pool {
    _Alignas(64) _Atomic uint64_t word; /* job number << 32 | tiles left */
    _Alignas(64) _Atomic uint32_t n_done;
    _Atomic uint32_t caller_asleep;
    _Alignas(64) _Atomic uint32_t wakeup, asleep, stop;
    _Alignas(64) ku_tile_fn *fn; /* the job: written before `word`, read after a tile is taken */
    void *ctx;
    uint32_t n_tiles;
    ku_hook_fn *hook; /* called by thread 0 alone */
    void *hook_ctx;
    int64_t hook_ns;
    int n_threads, n_started, n_spins;
    struct worker worker[];
};

static inline void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static inline void run_hook(struct ku_pool *p)
{
    int64_t now = ku_clock_ns();
    if (now - p->hook_ns < HOOK_EVERY_NS)
        return;
    p->hook(p->hook_ctx);
    p->hook_ns = ku_clock_ns();
}

void ku_pool_poll(struct ku_pool *p, int thread)
{
    if (thread == 0 && p->hook != NULL)
        run_hook(p);
}

/*
 * Takes a tile of the current job. Returns the number of tiles left after it, or -1 if there is
 * none.
 */
static int64_t take(struct ku_pool *p)
{
    uint64_t w = atomic_load_explicit(&p->word, memory_order_acquire);
    while ((uint32_t)w != 0)
        if (atomic_compare_exchange_weak_explicit(&p->word, &w, w - 1, memory_order_acq_rel,
                                                  memory_order_acquire))
            return (int64_t)((uint32_t)w - 1);
    return -1;
}

static void work(struct ku_pool *p, int thread)
{
    for (int64_t left; (left = take(p)) >= 0;) {
        uint32_t n = p->n_tiles;
        p->fn(p->ctx, (int64_t)n - 1 - left, thread);
        uint32_t done = atomic_fetch_add(&p->n_done, 1) + 1;
        if (thread == 0 && p->hook != NULL)
            run_hook(p);
        if (thread != 0 && done == n && atomic_load(&p->caller_asleep))
            ku_os_futex_wake(&p->n_done, 1);
    }
}

/* Waits for a job or the end of the pool: spin, yield, sleep. */
static void wait_for_work(struct worker *w)
{
    struct ku_pool *p = w->pool;
    for (int i = 0; i < p->n_spins; i++) {
        if ((uint32_t)atomic_load_explicit(&p->word, memory_order_relaxed) != 0)
            return;
        pause_cpu();
    }
    const int n_yields = ku_yields_begin(&w->yields) ? N_YIELDS : 0;
    for (int i = 0, is_short = 1; i < n_yields && is_short; i++) {
        if ((uint32_t)atomic_load_explicit(&p->word, memory_order_relaxed) != 0)
            return;
        is_short = ku_yields_once(&w->yields);
    }
    uint32_t wakeup = atomic_load(&p->wakeup);
    atomic_fetch_add(&p->asleep, 1);
    if ((uint32_t)atomic_load(&p->word) == 0 && !atomic_load(&p->stop))
        ku_os_futex_wait(&p->wakeup, wakeup, SLEEP_NS);
    atomic_fetch_sub(&p->asleep, 1);
}

static int bind_self(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (cpu >= CPU_SETSIZE)
        return KU_ERR(KUMI_EDEVICE, "pool: bind to cpu %d: at most %d", cpu, CPU_SETSIZE - 1);
    CPU_SET(cpu, &set);
    if (pthread_setaffinity_np(pthread_self(), sizeof set, &set) != 0)
        return KU_ERR(KUMI_EDEVICE,
                      "pool: bind to cpu %d: not in the process's affinity mask; give cpus of it",
                      cpu);
    return KUMI_OK;
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    while (!atomic_load(&w->pool->stop)) {
        work(w->pool, w->index);
        wait_for_work(w);
    }
    return NULL;
}

static int start_worker(struct worker *w)
{
    pthread_attr_t attr;
    if (pthread_attr_init(&attr) != 0)
        return KU_ERR(KUMI_ENOMEM, "pool: thread %d: no memory", w->index);
    int bad = 0;
    if (w->cpu >= 0) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(w->cpu, &set);
        bad = pthread_attr_setaffinity_np(&attr, sizeof set, &set);
    }
    if (!bad)
        bad = pthread_create(&w->thread, &attr, worker_main, w);
    pthread_attr_destroy(&attr);
    if (bad)
        return KU_ERR(KUMI_EDEVICE, "pool: thread %d (cpu %d): %s; fewer threads, or other cpus",
                      w->index, w->cpu, strerror(bad));
    return KUMI_OK;
}

int ku_pool_create(const struct ku_pool_opts *o, struct ku_pool **out)
{
    int n = o->n_threads ? o->n_threads : 1, status = KUMI_OK;
    if (n < 1 || n > MAX_THREADS)
        return KU_ERR(KUMI_EINVAL, "pool: threads: %d; give a number from 1 to %d", n, MAX_THREADS);
    for (int i = 0; o->cpu && i < n; i++)
        if (o->cpu[i] < 0 || o->cpu[i] >= CPU_SETSIZE)
            return KU_ERR(KUMI_EINVAL, "pool: cpu of thread %d: %d; 0 to %d", i, o->cpu[i],
                          CPU_SETSIZE - 1);
    size_t bytes = sizeof(struct ku_pool) + (size_t)n * sizeof(struct worker);
    struct ku_pool *p = ku_malloc_aligned(64, (bytes + 63) / 64 * 64);
    if (p == NULL)
        return KUMI_ENOMEM;
    memset(p, 0, bytes);
    p->n_threads = n;
    int runnable = o->n_runnable_threads ? o->n_runnable_threads : n;
    int n_cpus = o->n_cpus ? o->n_cpus : ku_os_n_cpus();
    p->n_spins = runnable <= n_cpus ? N_SPINS : 0;
    p->n_started = 1;
    if (o->cpu && o->bind_caller)
        KU_TRY_OUT(bind_self(o->cpu[0]));
    for (; p->n_started < n; p->n_started++) {
        struct worker *w = &p->worker[p->n_started];
        *w = (struct worker){.pool = p, .index = p->n_started, .cpu = -1};
        if (o->cpu)
            w->cpu = o->cpu[p->n_started];
        KU_TRY_OUT(start_worker(w));
    }
    *out = p;
    return KUMI_OK;
out:
    ku_pool_destroy(p);
    return status;
}

void ku_pool_destroy(struct ku_pool *p)
{
    if (p == NULL)
        return;
    atomic_store(&p->stop, 1);
    atomic_fetch_add(&p->wakeup, 1);
    ku_os_futex_wake(&p->wakeup, MAX_THREADS);
    for (int i = 1; i < p->n_started; i++)
        pthread_join(p->worker[i].thread, NULL);
    ku_free(p);
}

int ku_pool_n_threads(const struct ku_pool *p)
{
    return p->n_threads;
}

/* Called by thread 0 when no tile is left: waits for the tiles that other threads still run. */
static void wait_for_done(struct ku_pool *p)
{
    struct ku_yields *yields = &p->worker[0].yields;
    const int spins = p->n_spins;
    int n_yields = N_YIELDS;
    for (int64_t i = 0;; i++) {
        uint32_t done = atomic_load_explicit(&p->n_done, memory_order_acquire);
        if (done == p->n_tiles)
            return;
        if (p->hook != NULL && (i & 63) == 0)
            run_hook(p);
        if (i < spins) {
            pause_cpu();
        } else if (i < spins + n_yields && (i > spins || ku_yields_begin(yields))) {
            n_yields = ku_yields_once(yields) ? n_yields : 0;
        } else {
            n_yields = 0;
            atomic_store(&p->caller_asleep, 1);
            done = atomic_load(&p->n_done);
            if (done != p->n_tiles)
                ku_os_futex_wait(&p->n_done, done, p->hook ? HOOK_SLEEP_NS : SLEEP_NS);
            atomic_store(&p->caller_asleep, 0);
            if (p->hook != NULL)
                run_hook(p);
        }
    }
}

static void run_job(struct ku_pool *p, uint32_t n_tiles)
{
    p->n_tiles = n_tiles;
    atomic_store_explicit(&p->n_done, 0, memory_order_relaxed);
    uint64_t job = (atomic_load_explicit(&p->word, memory_order_relaxed) >> 32) + 1;
    atomic_store(&p->word, job << 32 | n_tiles);
    if (atomic_load(&p->asleep) != 0) {
        atomic_fetch_add(&p->wakeup, 1);
        ku_os_futex_wake(&p->wakeup, p->n_threads);
    }
    work(p, 0);
    wait_for_done(p);
}

void ku_pool_run(struct ku_pool *p, int64_t n_tiles, ku_tile_fn *fn, void *ctx, ku_hook_fn *hook,
                 void *hook_ctx)
{
    p->hook = hook;
    p->hook_ctx = hook_ctx;
    if (p->n_threads == 1 || n_tiles <= 1) {
        for (int64_t tile = 0; tile < n_tiles; tile++) {
            fn(ctx, tile, 0);
            if (hook != NULL)
                run_hook(p);
        }
        return;
    }
    KU_ASSERT(n_tiles < UINT32_MAX);
    p->fn = fn;
    p->ctx = ctx;
    run_job(p, (uint32_t)n_tiles);
}
