/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_OS_AIO_H
#define KU_BASE_OS_AIO_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * Reads and writes of files that go on while the caller computes: by io_uring where this build and
 * the kernel have it, else by threads with pread and pwrite. A queue belongs to one thread.
 */
enum ku_aio_kind { KU_AIO_AUTO, KU_AIO_URING, KU_AIO_THREADS };
struct ku_aio;

/* A request, the caller's until it is done; it allocates nothing. */
struct ku_aio_op {
    int fd, is_write;
    unsigned char *data;
    size_t bytes;
    off_t at;
    /* Of the queue: */
    size_t asked, done; /* bytes handed out, bytes moved */
    int n_busy;         /* parts under way */
    int why;            /* errno of what failed, 0 */
    struct ku_aio_op *next;
};

const char *ku_aio_uring_version(void); /* of liburing; NULL: this build has none */
/* Errors: KUMI_EINVAL: io_uring is asked for and not to be had; KUMI_ENOMEM. */
int ku_aio_create(enum ku_aio_kind kind, struct ku_aio **aio);
void ku_aio_destroy(struct ku_aio *aio);           /* waits for what is under way; NULL is fine */
const char *ku_aio_name(const struct ku_aio *aio); /* "io_uring", "threads" */
/* Begin. What fails is known when it is done. */
void ku_aio_start(struct ku_aio *aio, struct ku_aio_op *op);
/* 1: done, all of it, or not (why; a file that ends early is EIO). 0: timeout_ns have passed, or
 * something else is done. */
int ku_aio_wait(struct ku_aio *aio, struct ku_aio_op *op, int64_t timeout_ns);

#endif
