/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the loader works. This rank reads R rows per step, numbered 0 … R - 1 through its ranges. A
 * ring of `prefetch` slots holds R rows per slot; step k uses slot k % prefetch.
 *
 *     prefetch 3:   slot 0 [step 6: ready]  slot 1 [step 7: 5 rows left]  slot 2 [step 8: empty]
 *                        ^ base                   ^ next_step, next_row
 *
 * A worker takes the next row of the earliest step that has a slot, reads it into the slot and
 * decrements the slot's n_left; a slot with n_left = 0 is ready. ku_loader_read copies rows out of
 * a slot; a request for a later step releases the slots before it.
 *
 * One lock protects all of this. It is taken twice per row for about 0.1 us, which is small against
 * the microseconds that reading a row takes.
 */
#include "data/loader.h"

#include "base/clock.h"
#include "base/cond.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/math/search.h"
#include "base/str.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>

enum { PREFETCH = 2, WAIT_NS = 50000000, LOGGED = 10 };

struct slot {
    int64_t n_left; /* rows not yet read */
    void *port[KU_DATA_PORTS_MAX];
    unsigned char *is_bad; /* [R]: 1 if the row could not be read */
};

struct ku_loader {
    struct ku_loader_opts o;
    struct ku_sampler sampler;
    struct ku_loader_range *range;
    int64_t *range_row; /* number of each range's first row */
    int64_t n_rows, n_eval_steps;
    size_t row_bytes[KU_DATA_PORTS_MAX];
    int64_t n_skipped;
    int rank, n_ports;

    /* Protects all below, except rows: a worker owns a row until it decrements n_left. */
    pthread_mutex_t lock;
    pthread_cond_t work, ready;
    int64_t base;      /* step of the earliest slot in use */
    int64_t next_step; /* step and row that the next free worker takes */
    int64_t next_row;
    uint64_t n_read; /* rows, by all workers */
    int n_busy, is_paused, is_stopped;
    struct slot *slot;
    unsigned char *memory;
    pthread_t *thread;
    int n_threads;
};

int ku_on_error_parse(const char *name, enum ku_on_error *out)
{
    int i = ku_str_find_word("stop skip", name);
    if (i < 0)
        return KU_ERR(KUMI_EINVAL, "data: data.on_error: '%s'; give stop or skip", name);
    *out = (enum ku_on_error)i;
    return KUMI_OK;
}

/* The sample at a position of a step, or -1, and the number of its draw. */
static int64_t sample_of(const struct ku_loader *l, int64_t step, int64_t position, int64_t *number)
{
    if (l->o.sampler) {
        *number = ku_sampler_number(&l->sampler, step, position);
        return ku_sampler_at(&l->sampler, step, position);
    }
    int64_t sample = step * l->o.global_batch + position;
    *number = sample;
    return sample < l->o.n_samples ? sample : -1;
}

/* Reads the row of a position of a step to row `row` of `to`. */
static int fill_row(const struct ku_loader *l, int64_t step, int64_t position, void *const *to,
                    int64_t row)
{
    int64_t number, sample = sample_of(l, step, position, &number);
    return ku_data_read_row(l->o.data, l->o.split, sample, number, to, row);
}

/* The same for a row that the caller requested: applies on_error, which may skip the sample. */
static int fill_asked(struct ku_loader *l, int64_t step, int range, int64_t i, void *const *to)
{
    int status = fill_row(l, step, l->range[range].first + i, to, i);
    if (status != KUMI_EINPUT || l->o.on_error != KU_ON_ERROR_SKIP)
        return status;
    if (l->n_skipped++ < LOGGED)
        KU_LOG(DATA, WARN, "skipped: %s", ku_err_get()->text);
    return KUMI_OK;
}

static int64_t position_of(const struct ku_loader *l, int64_t row)
{
    size_t low = ku_search(l->range_row, sizeof *l->range_row, (size_t)l->o.n_ranges, row);
    return l->range[low].first + row - l->range_row[low];
}

static int64_t order_step(const struct ku_loader *l, int64_t step)
{
    return l->n_eval_steps ? step % l->n_eval_steps : step;
}

static void *work(void *arg)
{
    struct ku_loader *l = arg;
    ku_err_rank(l->rank);
    pthread_mutex_lock(&l->lock);
    while (!l->is_stopped) {
        if (l->is_paused || l->next_step >= l->base + l->o.prefetch) {
            pthread_cond_wait(&l->work, &l->lock);
            continue;
        }
        int64_t step = l->next_step, row = l->next_row;
        if (++l->next_row == l->n_rows) {
            l->next_row = 0;
            l->next_step++;
        }
        l->n_busy++;
        pthread_mutex_unlock(&l->lock);
        struct slot *s = &l->slot[step % l->o.prefetch];
        s->is_bad[row] = fill_row(l, order_step(l, step), position_of(l, row), s->port, row) < 0;
        pthread_mutex_lock(&l->lock);
        l->n_busy--;
        l->n_read++;
        if (--s->n_left == 0 || (l->is_paused && l->n_busy == 0))
            pthread_cond_signal(&l->ready);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* Waits at most 50 ms for a signal on `ready`, then calls tick; the caller holds the lock. */
static int wait_ready(struct ku_loader *l)
{
    (void)ku_cond_wait(&l->ready, &l->lock, ku_clock_ns() + WAIT_NS);
    return l->o.tick ? l->o.tick(l->o.tick_ctx, l->n_read) : KUMI_OK;
}

/*
 * Makes `step` the first step of the ring. A step inside the ring only releases the slots before
 * it; any other step discards the ring's contents. The caller holds the lock.
 */
static int aim(struct ku_loader *l, int64_t step)
{
    int status = KUMI_OK;
    if (step >= l->base && step < l->base + l->o.prefetch) {
        for (; l->base < step; l->base++) { /* a step is released only when all its rows are read */
            struct slot *s = &l->slot[l->base % l->o.prefetch];
            while (l->next_step > l->base && s->n_left > 0 && status == KUMI_OK)
                status = wait_ready(l);
            if (status < 0 || l->next_step <= l->base)
                break;
            s->n_left = l->n_rows;
        }
        if (status < 0 || l->base == step) {
            pthread_cond_broadcast(&l->work);
            return status;
        }
    }
    l->is_paused = 1;
    while (l->n_busy > 0 && status == KUMI_OK)
        status = wait_ready(l);
    if (status == KUMI_OK) {
        l->base = l->next_step = step;
        l->next_row = 0;
        for (int i = 0; i < l->o.prefetch; i++)
            l->slot[i].n_left = l->n_rows;
    }
    l->is_paused = 0;
    pthread_cond_broadcast(&l->work);
    return status;
}

/* The step's number in the order of work, where evaluations repeat without end. */
static int64_t work_step(const struct ku_loader *l, int64_t step)
{
    if (!l->n_eval_steps)
        return step;
    int64_t now = l->base - l->base % l->n_eval_steps + step;
    return now < l->base ? now + l->n_eval_steps : now;
}

/*
 * Copies one range out of a slot. A row that a worker could not read is read again in this thread,
 * so that the error record belongs to this thread and a transient fault has a second chance.
 */
static int copy_rows(struct ku_loader *l, const struct slot *s, int64_t step, int range,
                     void *const *to)
{
    int64_t first = l->range_row[range], n = l->range[range].n;
    for (int p = 0; p < l->n_ports; p++)
        memcpy(to[p], (const char *)s->port[p] + (size_t)first * l->row_bytes[p],
               (size_t)n * l->row_bytes[p]);
    for (int64_t i = 0; i < n; i++)
        if (s->is_bad[first + i])
            KU_TRY(fill_asked(l, step, range, i, to));
    return KUMI_OK;
}

int ku_loader_read(struct ku_loader *l, int64_t step, int range, void *const *to)
{
    KU_ASSERT(range >= 0 && range < l->o.n_ranges && step >= 0);
    KU_ASSERT(!l->n_eval_steps || step < l->n_eval_steps);
    if (l->n_threads == 0) {
        for (int64_t i = 0; i < l->range[range].n; i++)
            KU_TRY(fill_asked(l, step, range, i, to));
        return KUMI_OK;
    }
    pthread_mutex_lock(&l->lock);
    int64_t at = work_step(l, step);
    int status = at == l->base ? KUMI_OK : aim(l, at);
    struct slot *s = &l->slot[at % l->o.prefetch];
    while (status == KUMI_OK && s->n_left > 0)
        status = wait_ready(l);
    pthread_mutex_unlock(&l->lock);
    return status < 0 ? status : copy_rows(l, s, step, range, to);
}

int64_t ku_loader_n_skipped(const struct ku_loader *l)
{
    return l->n_skipped;
}

static int64_t rows_of(const struct ku_loader_opts *o)
{
    int64_t n = 0;
    for (int i = 0; i < o->n_ranges; i++)
        n += o->range[i].n;
    return n;
}

/* Bytes of one port's rows in a slot, rounded up to a multiple of 64. */
static size_t port_bytes(size_t row_bytes, int64_t n_rows)
{
    return ((size_t)n_rows * row_bytes + 63) / 64 * 64;
}

size_t ku_loader_bytes(const size_t *row_bytes, int n_ports, int64_t n_rows, int n_workers,
                       int prefetch)
{
    size_t slot = (size_t)n_rows, n = (size_t)(prefetch ? prefetch : PREFETCH);
    for (int i = 0; i < n_ports; i++)
        slot += port_bytes(row_bytes[i], n_rows);
    return n_workers ? n * ((slot + 63) / 64 * 64) : 0;
}

static int make_slots(struct ku_loader *l)
{
    size_t bytes =
        ku_loader_bytes(l->row_bytes, l->n_ports, l->n_rows, l->o.n_workers, l->o.prefetch);
    size_t each = bytes / (size_t)l->o.prefetch;
    l->slot = ku_calloc((size_t)l->o.prefetch, sizeof *l->slot);
    l->memory = ku_malloc_aligned(64, bytes);
    if (!l->slot || !l->memory)
        return KUMI_ENOMEM;
    for (int i = 0; i < l->o.prefetch; i++) {
        unsigned char *at = l->memory + (size_t)i * each;
        for (int p = 0; p < l->n_ports; p++) {
            l->slot[i].port[p] = at;
            at += port_bytes(l->row_bytes[p], l->n_rows);
        }
        l->slot[i].is_bad = at;
        l->slot[i].n_left = l->n_rows;
    }
    return KUMI_OK;
}

static int start_threads(struct ku_loader *l)
{
    sigset_t all, was;
    int failed = 0;
    l->thread = ku_calloc((size_t)l->o.n_workers, sizeof *l->thread);
    if (!l->thread)
        return KUMI_ENOMEM;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &was);
    while (l->n_threads < l->o.n_workers && !failed) {
        failed = pthread_create(&l->thread[l->n_threads], NULL, work, l);
        l->n_threads += !failed;
    }
    pthread_sigmask(SIG_SETMASK, &was, NULL);
    if (failed)
        return KU_ERR(KUMI_ENOMEM, "data: data.workers: thread %d of %d: %s; give fewer",
                      l->n_threads + 1, l->o.n_workers, strerror(failed));
    return KUMI_OK;
}

static int fill_loader(struct ku_loader *l, const struct ku_loader_opts *o)
{
    l->n_ports = o->data->n_ports;
    l->rank = ku_err_get_rank();
    for (int p = 0; p < l->n_ports; p++)
        l->row_bytes[p] = ku_data_row_bytes(&o->data->port[p]);
    l->range = ku_calloc((size_t)o->n_ranges, sizeof *l->range);
    l->range_row = ku_calloc((size_t)o->n_ranges, sizeof *l->range_row);
    if (!l->range || !l->range_row)
        return KUMI_ENOMEM;
    for (int i = 0; i < o->n_ranges; i++) {
        l->range[i] = o->range[i];
        l->range_row[i] = l->n_rows;
        l->n_rows += o->range[i].n;
    }
    l->o.range = l->range;
    if (o->sampler)
        l->sampler = *o->sampler;
    else
        l->n_eval_steps = (o->n_samples + o->global_batch - 1) / o->global_batch;
    if (o->n_workers == 0)
        return KUMI_OK;
    KU_TRY(make_slots(l));
    return start_threads(l);
}

static int check_opts(const struct ku_loader_opts *o)
{
    if (o->n_workers < 0 || o->n_workers > KU_WORKERS_MAX)
        return KU_ERR(KUMI_EINVAL, "data: data.workers: %d; give 0 to %d", o->n_workers,
                      KU_WORKERS_MAX);
    if (o->prefetch < 0 || o->prefetch > KU_PREFETCH_MAX)
        return KU_ERR(KUMI_EINVAL, "data: data.prefetch: %d; give 1 to %d", o->prefetch,
                      KU_PREFETCH_MAX);
    KU_ASSERT(o->n_ranges > 0 && rows_of(o) > 0 && o->data->n_ports <= KU_DATA_PORTS_MAX);
    KU_ASSERT(o->sampler || (o->global_batch > 0 && o->n_samples > 0));
    return KUMI_OK;
}

int ku_loader_create(const struct ku_loader_opts *o, int64_t first_step, struct ku_loader **out)
{
    KU_TRY(check_opts(o));
    struct ku_loader *l = ku_calloc(1, sizeof *l);
    if (!l)
        return KUMI_ENOMEM;
    l->o = *o;
    l->o.prefetch = o->prefetch ? o->prefetch : PREFETCH;
    l->base = l->next_step = first_step;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->work, NULL);
    ku_cond_init(&l->ready);
    int status = fill_loader(l, o);
    if (status < 0) {
        ku_loader_destroy(l);
        return status;
    }
    *out = l;
    return KUMI_OK;
}

void ku_loader_destroy(struct ku_loader *l)
{
    if (!l)
        return;
    pthread_mutex_lock(&l->lock);
    l->is_stopped = 1;
    pthread_cond_broadcast(&l->work);
    pthread_mutex_unlock(&l->lock);
    for (int i = 0; i < l->n_threads; i++)
        pthread_join(l->thread[i], NULL);
    pthread_cond_destroy(&l->ready);
    pthread_cond_destroy(&l->work);
    pthread_mutex_destroy(&l->lock);
    ku_free(l->thread);
    ku_free(l->slot);
    ku_free(l->memory);
    ku_free(l->range);
    ku_free(l->range_row);
    ku_free(l);
}
