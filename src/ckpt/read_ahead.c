/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segment i is read into slot i % n_slots (a staging buffer). Each slot has a thread that fills it,
 * so one read per free slot is in flight. A single segment is read by the caller.
 *
 *     slots   | 4 | 5 | 2 | 3 |      the caller hashes 2; 3 is read; 4 and 5 are in flight
 *
 * Slots are huge pages where available: then a disk request covers a whole segment (with 4 KiB
 * pages at most 254 pages), and pinning the memory is cheap.
 */
#include "ckpt/read_ahead.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/os/ipc.h"

enum { N_SLOTS = 4, WINDOW_BYTES = 2 << 20, DIRECT_ALIGN = 4096 };

struct slot {
    struct ku_ahead *ahead;
    pthread_t thread;
    int64_t first;    /* first segment; then every n_slots-th */
    int is_full, why; /* why: errno of the read, or 0 */
};

struct ku_ahead {
    int fd, direct_fd;
    uint64_t at, end;
    int64_t n_windows, now; /* now: the next to return */
    int n_slots, n_threads, stop;
    unsigned char *memory;
    /* Protects is_full, why and stop. is_full also gives ownership of the slot's bytes: set, they
     * are the caller's, else the thread's. */
    pthread_mutex_t lock;
    pthread_cond_t filled, taken;
    struct slot slot[N_SLOTS];
};

static size_t window_bytes(const struct ku_ahead *a, int64_t i)
{
    uint64_t left = a->end - a->at - (uint64_t)i * WINDOW_BYTES;
    return left < WINDOW_BYTES ? (size_t)left : WINDOW_BYTES;
}

static unsigned char *window_data(const struct ku_ahead *a, int64_t i)
{
    return a->memory + (size_t)(i % a->n_slots) * WINDOW_BYTES;
}

/* Reads whole pages with O_DIRECT and the rest through the page cache; if O_DIRECT fails, all
 * through the page cache. Returns 0 or errno. */
static int read_window(const struct ku_ahead *a, int64_t i)
{
    unsigned char *data = window_data(a, i);
    size_t bytes = window_bytes(a, i);
    uint64_t at = a->at + (uint64_t)i * WINDOW_BYTES;
    size_t direct = a->direct_fd >= 0 ? bytes & ~(size_t)(DIRECT_ALIGN - 1) : 0;
    if (direct > 0 && ku_os_pread_full(a->direct_fd, data, direct, (off_t)at) != (ssize_t)direct)
        direct = 0;
    if (direct == bytes)
        return 0;
    ssize_t n = ku_os_pread_full(a->fd, data + direct, bytes - direct, (off_t)(at + direct));
    if (n < 0)
        return errno;
    memset(data + direct + n, 0, bytes - direct - (size_t)n);
    return 0;
}

static void *slot_main(void *arg)
{
    struct slot *s = arg;
    struct ku_ahead *a = s->ahead;
    for (int64_t i = s->first; i < a->n_windows; i += a->n_slots) {
        pthread_mutex_lock(&a->lock);
        while (s->is_full && !a->stop)
            pthread_cond_wait(&a->taken, &a->lock);
        int stop = a->stop;
        pthread_mutex_unlock(&a->lock);
        if (stop)
            break;
        int why = read_window(a, i);
        pthread_mutex_lock(&a->lock);
        s->is_full = 1;
        s->why = why;
        pthread_cond_signal(&a->filled);
        pthread_mutex_unlock(&a->lock);
    }
    return NULL;
}

/* If not all threads start, fewer slots are used; without any, ku_ahead_next reads. */
static void start_threads(struct ku_ahead *a)
{
    pthread_mutex_lock(&a->lock); /* threads read n_slots only after it is final */
    int n = a->n_slots;
    for (; a->n_threads < n; a->n_threads++) {
        struct slot *s = &a->slot[a->n_threads];
        *s = (struct slot){.ahead = a, .first = a->n_threads};
        if (pthread_create(&s->thread, NULL, slot_main, s) != 0)
            break;
    }
    a->n_slots = a->n_threads > 0 ? a->n_threads : 1;
    pthread_mutex_unlock(&a->lock);
}

int ku_ahead_open(int fd, int direct_fd, uint64_t at, uint64_t end, struct ku_ahead **out)
{
    struct ku_ahead *a = ku_calloc(1, sizeof *a);
    if (a == NULL)
        return KUMI_ENOMEM;
    *a = (struct ku_ahead){.fd = fd, .direct_fd = direct_fd, .at = at, .end = end};
    a->n_windows = (int64_t)((end - at + WINDOW_BYTES - 1) / WINDOW_BYTES);
    a->n_slots = a->n_windows < N_SLOTS ? (int)a->n_windows : N_SLOTS;
    size_t memory_bytes = (size_t)(a->n_slots > 0 ? a->n_slots : 1) * WINDOW_BYTES;
    a->memory = ku_malloc_aligned(WINDOW_BYTES, memory_bytes);
    if (a->memory == NULL) {
        ku_free(a);
        return KUMI_ENOMEM;
    }
    if (a->n_windows > 1)
        ku_os_populate(a->memory, memory_bytes);
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->filled, NULL);
    pthread_cond_init(&a->taken, NULL);
    if (a->n_windows > 1)
        start_threads(a);
    *out = a;
    return KUMI_OK;
}

int ku_ahead_next(struct ku_ahead *a, const unsigned char **data, size_t *bytes)
{
    int64_t i = a->now++;
    *bytes = 0;
    if (i >= a->n_windows)
        return 0;
    if (a->n_threads == 0) {
        errno = read_window(a, i);
    } else {
        struct slot *s = &a->slot[i % a->n_slots];
        pthread_mutex_lock(&a->lock);
        if (i > 0) {
            a->slot[(i - 1) % a->n_slots].is_full = 0;
            pthread_cond_broadcast(&a->taken);
        }
        while (!s->is_full)
            pthread_cond_wait(&a->filled, &a->lock);
        errno = s->why;
        pthread_mutex_unlock(&a->lock);
    }
    if (errno != 0)
        return -1;
    *data = window_data(a, i);
    *bytes = window_bytes(a, i);
    return 0;
}

void ku_ahead_close(struct ku_ahead *a)
{
    if (a == NULL)
        return;
    pthread_mutex_lock(&a->lock);
    a->stop = 1;
    pthread_cond_broadcast(&a->taken);
    pthread_mutex_unlock(&a->lock);
    for (int i = 0; i < a->n_threads; i++)
        pthread_join(a->slot[i].thread, NULL);
    pthread_cond_destroy(&a->taken);
    pthread_cond_destroy(&a->filled);
    pthread_mutex_destroy(&a->lock);
    ku_free(a->memory);
    ku_free(a);
}
