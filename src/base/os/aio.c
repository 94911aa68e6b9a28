/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Both backends split a request into pieces of 4 MiB, so that several pieces are in flight. The
 * first error ends the request. Worker threads share one list of requests that still have pieces to
 * submit:
 *
 *     first -> op A (asked 8 of 20 MiB) -> op B -> last
 *                |
 *                +-> piece -> thread or io_uring entry -> end_piece: n_busy--, done += bytes
 */
#include "base/os/aio.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>

#include "base/clock.h"
#include "base/cond.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/os/os.h"
#ifdef KUMI_URING
#include <liburing.h>
#endif

enum { PIECE_BYTES = 4 << 20, N_THREADS = 4, DEPTH = 64 };

struct ku_aio {
    struct ku_aio_op *first, *last; /* requests with pieces left to submit */
    int is_ring;
#ifdef KUMI_URING
    struct io_uring ring;
    int n_flying;
    struct piece {
        struct ku_aio_op *op; /* NULL: free */
        size_t at, bytes;
    } piece[DEPTH];
#endif
    /* Protects the list, its requests, requests in flight, stop and moved_bytes. */
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    pthread_t thread[N_THREADS];
    int n_threads, stop;
    uint64_t moved_bytes; /* of all requests */
};

/* A request is over if no piece is in flight and all bytes are done or it failed. */
static bool is_over(const struct ku_aio_op *op)
{
    return op->n_busy == 0 && (op->why || op->done == op->bytes);
}

/*
 * Takes the next piece of the first request. Returns its bytes; 0: the list is empty. A piece that
 * KU_FAULT_HANG takes stays in flight for ever.
 */
static size_t take_piece(struct ku_aio *a, struct ku_aio_op **op, size_t *at)
{
    size_t n;
    do {
        struct ku_aio_op *o = *op = a->first;
        if (o == NULL)
            return 0;
        const size_t left = o->bytes - o->asked;
        n = left < PIECE_BYTES ? left : PIECE_BYTES;
        if (n == left)
            a->first = o->next;
        *at = o->asked;
        o->asked += n;
        o->n_busy++;
    } while (ku_fault_is_due(KU_FAULT_HANG));
    return n;
}

static void add_moved(struct ku_aio *a, struct ku_aio_op *op, size_t bytes)
{
    op->done += bytes;
    a->moved_bytes += bytes;
}

/*
 * Ends a piece. A failed request leaves the list.
 */
static void end_piece(struct ku_aio *a, struct ku_aio_op *op, size_t bytes, int why)
{
    op->n_busy--;
    add_moved(a, op, why ? 0 : bytes);
    op->why = op->why ? op->why : why;
    struct ku_aio_op *before = NULL;
    for (struct ku_aio_op *o = a->first; why && o; before = o, o = o->next)
        if (o == op) {
            *(before ? &before->next : &a->first) = op->next;
            a->last = a->last == op ? before : a->last;
            return;
        }
}

/* Threads. */

static int move_piece(const struct ku_aio_op *op, size_t at, size_t bytes)
{
    off_t from = op->at + (off_t)at;
    if (op->is_write)
        return ku_os_pwrite_full(op->fd, op->data + at, bytes, from) < 0 ? errno : 0;
    ssize_t n = ku_os_pread_full(op->fd, op->data + at, bytes, from);
    return n < 0 ? errno : (size_t)n < bytes ? EIO : 0;
}

static void *thread_main(void *arg)
{
    struct ku_aio *a = arg;
    pthread_mutex_lock(&a->lock);
    for (;;) {
        struct ku_aio_op *op;
        size_t at, n = take_piece(a, &op, &at);
        if (n == 0) {
            if (a->stop)
                break;
            pthread_cond_wait(&a->work, &a->lock);
            continue;
        }
        pthread_mutex_unlock(&a->lock);
        int why = move_piece(op, at, n);
        pthread_mutex_lock(&a->lock);
        end_piece(a, op, n, why);
        if (is_over(op))
            pthread_cond_signal(&a->done);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

static int wait_threads(struct ku_aio *a, const struct ku_aio_op *op, int64_t timeout_ns)
{
    pthread_mutex_lock(&a->lock);
    if (!is_over(op))
        (void)ku_cond_wait(&a->done, &a->lock, ku_clock_ns() + timeout_ns);
    int over = is_over(op);
    pthread_mutex_unlock(&a->lock);
    return over;
}

static int start_threads(struct ku_aio *a)
{
    sigset_t all, old;
    sigfillset(&all); /* the program's signals are handled by other threads */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    while (a->n_threads < N_THREADS &&
           pthread_create(&a->thread[a->n_threads], NULL, thread_main, a) == 0)
        a->n_threads++;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return a->n_threads ? KUMI_OK : KU_ERR(KUMI_ENOMEM, "offload: a thread cannot be started");
}

/* io_uring. */

#ifdef KUMI_URING
static void submit(struct ku_aio *a, struct piece *x)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&a->ring);
    KU_ASSERT(sqe != NULL); /* there are as many entries as pieces */
    off_t at = x->op->at + (off_t)x->at;
    if (x->op->is_write)
        io_uring_prep_write(sqe, x->op->fd, x->op->data + x->at, (unsigned)x->bytes, (uint64_t)at);
    else
        io_uring_prep_read(sqe, x->op->fd, x->op->data + x->at, (unsigned)x->bytes, (uint64_t)at);
    io_uring_sqe_set_data(sqe, x);
    a->n_flying++;
}

/* Submits a piece for every free entry. */
static void fill_ring(struct ku_aio *a)
{
    int n = 0;
    for (int i = 0; i < DEPTH && a->first; i++) {
        struct piece *x = &a->piece[i];
        if (x->op)
            continue;
        size_t bytes = take_piece(a, &x->op, &x->at);
        if (bytes == 0) {
            x->op = NULL;
            break;
        }
        x->bytes = bytes;
        if (ku_fault_is_due(x->op->is_write ? KU_FAULT_WRITE : KU_FAULT_OS)) {
            end_piece(a, x->op, 0, errno);
            x->op = NULL;
            continue;
        }
        submit(a, x);
        n++;
    }
    if (n)
        (void)io_uring_submit(&a->ring); /* entries not accepted now go with the next submit */
}

static void reap(struct ku_aio *a, struct io_uring_cqe *cqe)
{
    struct piece *x = io_uring_cqe_get_data(cqe);
    int n = cqe->res;
    io_uring_cqe_seen(&a->ring, cqe);
    a->n_flying--;
    /* Interrupted or short: submit the remaining bytes again. */
    if (n == -EINTR || n == -EAGAIN || (n > 0 && (size_t)n < x->bytes)) {
        size_t moved = n > 0 ? (size_t)n : 0;
        add_moved(a, x->op, moved);
        x->at += moved;
        x->bytes -= moved;
        submit(a, x);
        (void)io_uring_submit(&a->ring);
        return;
    }
    end_piece(a, x->op, x->bytes, n < 0 ? -n : n == 0 ? EIO : 0);
    x->op = NULL;
}

static int wait_ring(struct ku_aio *a, const struct ku_aio_op *op, int64_t timeout_ns)
{
    struct io_uring_cqe *cqe;
    fill_ring(a);
    if (!is_over(op)) {
        struct __kernel_timespec t = {.tv_sec = timeout_ns / 1000000000,
                                      .tv_nsec = timeout_ns % 1000000000};
        (void)io_uring_submit(&a->ring);
        if (io_uring_wait_cqe_timeout(&a->ring, &cqe, &t) < 0)
            return 0;
    }
    while (a->n_flying && io_uring_peek_cqe(&a->ring, &cqe) == 0)
        reap(a, cqe);
    fill_ring(a);
    return is_over(op);
}

static int open_ring(struct ku_aio *a)
{
    if (ku_fault_is_due(KU_FAULT_OS))
        return -errno;
    int status = io_uring_queue_init(DEPTH, &a->ring, 0);
    a->is_ring = status == 0;
    return status;
}

static void close_ring(struct ku_aio *a)
{
    struct io_uring_cqe *cqe;
    a->first = NULL; /* requests not submitted yet are dropped */
    while (a->n_flying && io_uring_wait_cqe(&a->ring, &cqe) == 0) {
        io_uring_cqe_seen(&a->ring, cqe);
        a->n_flying--;
    }
    io_uring_queue_exit(&a->ring);
}
#else
static void fill_ring(struct ku_aio *a)
{
    (void)a;
}
static int wait_ring(struct ku_aio *a, const struct ku_aio_op *op, int64_t timeout_ns)
{
    (void)a, (void)timeout_ns;
    return is_over(op);
}
static int open_ring(struct ku_aio *a)
{
    (void)a;
    return -ENOSYS;
}
static void close_ring(struct ku_aio *a)
{
    (void)a;
}
#endif

/* Public functions. */

const char *ku_aio_uring_version(void)
{
#ifdef KUMI_URING
    return KUMI_URING;
#else
    return NULL;
#endif
}

int ku_aio_create(enum ku_aio_kind kind, struct ku_aio **out)
{
    struct ku_aio *a = ku_calloc(1, sizeof *a);
    if (a == NULL)
        return KUMI_ENOMEM;
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->work, NULL);
    ku_cond_init(&a->done);
    int why = kind == KU_AIO_THREADS ? -ENOSYS : open_ring(a), status = KUMI_OK;
    if (!a->is_ring && kind == KU_AIO_URING)
        status =
            KU_ERR(KUMI_EINVAL, "offload: io_uring: %s; use \"threads\"", strerrordesc_np(-why));
    else if (!a->is_ring)
        status = start_threads(a);
    if (status < 0) {
        ku_aio_destroy(a);
        return status;
    }
    *out = a;
    return KUMI_OK;
}

void ku_aio_destroy(struct ku_aio *a)
{
    if (a == NULL)
        return;
    if (a->is_ring)
        close_ring(a);
    pthread_mutex_lock(&a->lock);
    a->stop = 1;
    a->first = NULL;
    pthread_cond_broadcast(&a->work);
    pthread_mutex_unlock(&a->lock);
    for (int i = 0; i < a->n_threads; i++)
        pthread_join(a->thread[i], NULL);
    pthread_cond_destroy(&a->done);
    pthread_cond_destroy(&a->work);
    pthread_mutex_destroy(&a->lock);
    ku_free(a);
}

const char *ku_aio_name(const struct ku_aio *a)
{
    return a->is_ring ? "io_uring" : "threads";
}

void ku_aio_start(struct ku_aio *a, struct ku_aio_op *op)
{
    op->asked = op->done = 0;
    op->n_busy = op->why = 0;
    op->next = NULL;
    if (op->bytes == 0)
        return;
    pthread_mutex_lock(&a->lock);
    if (a->first)
        a->last->next = op;
    else
        a->first = op;
    a->last = op;
    if (!a->is_ring)
        pthread_cond_broadcast(&a->work);
    pthread_mutex_unlock(&a->lock);
    if (a->is_ring)
        fill_ring(a);
}

uint64_t ku_aio_moved_bytes(struct ku_aio *a)
{
    pthread_mutex_lock(&a->lock);
    const uint64_t bytes = a->moved_bytes;
    pthread_mutex_unlock(&a->lock);
    return bytes;
}

int ku_aio_wait(struct ku_aio *a, struct ku_aio_op *op, int64_t timeout_ns)
{
    return a->is_ring ? wait_ring(a, op, timeout_ns) : wait_threads(a, op, timeout_ns);
}
