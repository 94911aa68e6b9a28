/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_OS_AIO_H
#define KU_BASE_OS_AIO_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

/*
 * Asynchronous file reads and writes that overlap with computation. Uses io_uring if the build and
 * the kernel support it, else threads with pread and pwrite. A queue belongs to one thread.
 *
 *     struct ku_aio_op op = {.fd = fd, .data = p, .bytes = n, .at = offset};
 *     ku_aio_start(aio, &op);
 *     ..                                  compute
 *     while (!ku_aio_wait(aio, &op, timeout_ns)) ..
 *     if (op.why) ..                      errno
 */
enum ku_aio_kind { KU_AIO_AUTO, KU_AIO_URING, KU_AIO_THREADS };
struct ku_aio;

/*
 * A request. The caller owns it and keeps it valid until it is done.
 */
struct ku_aio_op {
    int fd, is_write;
    unsigned char *data;
    size_t bytes;
    off_t at;
    /* Set by the queue: */
    size_t asked, done; /* bytes submitted, bytes transferred */
    int n_busy;         /* parts in flight */
    int why;            /* errno of the first failure; 0: none */
    struct ku_aio_op *next;
};

const char *ku_aio_uring_version(void); /* of liburing; NULL: not built in */
/* Errors: KUMI_EINVAL (io_uring was requested and is not available), KUMI_ENOMEM. */
KU_STATUS ku_aio_create(enum ku_aio_kind kind, struct ku_aio **aio);
void ku_aio_destroy(struct ku_aio *aio);           /* waits for pending requests */
const char *ku_aio_name(const struct ku_aio *aio); /* "io_uring", "threads" */
/*
 * Starts a request. Failures are reported when it is done.
 */
void ku_aio_start(struct ku_aio *aio, struct ku_aio_op *op);
/*
 * Returns 1 when the request is done: completely, or failed with op->why set (a file that ends
 * early is EIO). Returns 0 after timeout_ns, or when another request made progress.
 */
int ku_aio_wait(struct ku_aio *aio, struct ku_aio_op *op, int64_t timeout_ns);
/*
 * Bytes that all requests have moved so far, counted at the end of each piece of at most 4 MiB;
 * with io_uring those that a wait has met. A file that hangs moves none.
 */
uint64_t ku_aio_moved_bytes(struct ku_aio *aio);

#endif
