/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_ERR_H
#define KU_BASE_ERR_H

#include "kumi/status.h"

/*
 * Errors. The first function that decides an error writes the thread's record with KU_ERR and
 * returns the status; callers pass it on with KU_TRY. Text: lower case, "<what>: <where>: <values>;
 * <what to do>", without "kumi: error:" and without a full stop. errno in words: ku_os_why().
 *
 *     if (n < 1)
 *         return KU_ERR(KUMI_EINVAL, "rank count: -n: %d; give a number from 1 to %d", n, most);
 *     KU_TRY(ku_json_load(path, max_bytes, &doc));
 */
#define KU_ERR(status, ...) ku_err_set((status), KUMI_SCOPE_CALL, __FILE__, __LINE__, __VA_ARGS__)
#define KU_ERR_SCOPE(status, scope, ...)                                                           \
    ku_err_set((status), (scope), __FILE__, __LINE__, __VA_ARGS__)

#define KU_TRY(call)                                                                               \
    do {                                                                                           \
        int ku_try_status = (call);                                                                \
        if (ku_try_status < 0)                                                                     \
            return ku_try_status;                                                                  \
    } while (0)

/* As KU_TRY in a function with a variable `status` and one label `out` that releases what it holds.
 */
#define KU_TRY_OUT(call)                                                                           \
    do {                                                                                           \
        status = (call);                                                                           \
        if (status < 0)                                                                            \
            goto out;                                                                              \
    } while (0)

/* Writes the thread's record and returns status. */
int ku_err_set(int status, enum kumi_scope scope, const char *file, int line, const char *format,
               ...) __attribute__((format(printf, 5, 6), cold));
/* Copies a record made elsewhere (another thread's work, the segment's root cause) into this
 * thread's. Returns its status. */
int ku_err_put(const struct kumi_error *error);
/* This thread's record, to copy into an object. */
const struct kumi_error *ku_err_get(void);
/* The rank that records carry from now on, in this thread. -1 = outside a job. */
void ku_err_rank(int rank);
int ku_err_get_rank(void);
/* Prints "kumi: error: <text>" for the thread's record, one line, one write. */
void ku_err_print(void);

/* A broken invariant of ours, also in release: prints the place and aborts (exit 70 from the
 * command). */
#define KU_ASSERT(condition)                                                                       \
    do {                                                                                           \
        if (__builtin_expect(!(condition), 0))                                                     \
            ku_bug(__FILE__, __LINE__, #condition);                                                \
    } while (0)
void ku_bug(const char *file, int line, const char *condition) __attribute__((noreturn, cold));

#endif
