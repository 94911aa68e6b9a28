/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_PROGRESS_H
#define KU_BASE_PROGRESS_H

#include <stdint.h>

/*
 * Progress callback for long work, called at least once per MiB read. A negative status stops the
 * work and becomes the status of the call that does it. Work that waits for another process or
 * thread also calls it, every 50 ms or more often, and repeats `what` and `done_bytes` until the
 * other one has advanced.
 *
 *   what         the current work, such as "tokenizing data/a.txt"; NULL: reading rows of a step
 *   total_bytes  0 if unknown
 */
struct ku_progress {
    int (*call)(void *ctx, const char *what, uint64_t done_bytes,
                uint64_t total_bytes); /* NULL: no callback */
    void *ctx;
};

/* Calls the callback and returns its status; 0 without a callback. */
static inline int ku_progress_call(const struct ku_progress *p, const char *what,
                                   uint64_t done_bytes, uint64_t total_bytes)
{
    return p && p->call ? p->call(p->ctx, what, done_bytes, total_bytes) : 0;
}

/* Callback before each pass of the compiler, on the compiling thread. see NULL: none. */
struct ku_watch {
    void (*see)(void *ctx, const char *program, const char *pass);
    void *ctx;
};

#endif
