/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SAMPLE_H
#define TESTS_SAMPLE_H

/*
 * Which rows of a table a test takes. The test states its shares and what a kind of row is (a
 * dtype, an instruction set, an op, a class of layouts):
 *
 *     struct sample s = {.address = 4, .thread = 8};
 *     for (int i = 0; i < N_ROWS; i++)
 *         if (sample_takes(&s, i, row[i].kind, -1))
 *             check(&row[i]);
 *     sample_end(&s, "layouts");
 *
 * The first row of every kind is taken, and of the others the stated share, by a hash of the row's
 * number and the seed: the same rows at every run. Sanitizers find bad accesses and races, for
 * which a few rows of each kind, small tensors and few steps do; numerics are compared in other
 * builds.
 *
 *   KUMI_TEST_ALL=1     every row, every step, in any build
 *   KUMI_TEST_SEED=N    another choice of rows (default 1)
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/math/random.h"

enum sample_build { SAMPLE_PLAIN, SAMPLE_ADDRESS, SAMPLE_THREAD };
#if defined(__SANITIZE_ADDRESS__)
static const enum sample_build sample_build = SAMPLE_ADDRESS;
#elif defined(__SANITIZE_THREAD__)
static const enum sample_build sample_build = SAMPLE_THREAD;
#else
static const enum sample_build sample_build = SAMPLE_PLAIN;
#endif

/* A reference's inner loop, whose accesses are no subject of the test. */
#define SAMPLE_UNCHECKED __attribute__((no_sanitize("address", "undefined", "thread")))

enum { SAMPLE_KINDS = 1024 };
struct sample {
    int plain, address, thread; /* one row in so many of each build; 0 and 1: every row */
    int n_rows, n_taken;
    unsigned char has[SAMPLE_KINDS]; /* a row of this kind has come */
};

static inline int sample_is_all(void)
{
    const char *all = getenv("KUMI_TEST_ALL");
    return all && strcmp(all, "1") == 0;
}

static inline uint64_t sample_seed(void)
{
    const char *seed = getenv("KUMI_TEST_SEED");
    return seed ? strtoull(seed, NULL, 10) : 1;
}

/* A sanitizer's build that is not asked for everything. */
static inline int sample_is_short(void)
{
    return sample_build != SAMPLE_PLAIN && !sample_is_all();
}

/* Of ThreadSanitizer: what adds no thread and no shared memory to what other cases have is left
 * out. */
static inline int sample_races_only(void)
{
    return sample_build == SAMPLE_THREAD && !sample_is_all();
}

/* A count of steps or elements: `less` of them where a sanitizer makes them slow. */
static inline int sample_count(int all, int less)
{
    return sample_is_short() ? less : all;
}

static inline int sample_is_first(struct sample *s, int kind)
{
    assert_in_range(kind + 1, 0, SAMPLE_KINDS);
    int is_first = kind >= 0 && !s->has[kind];
    if (is_first)
        s->has[kind] = 1;
    return is_first;
}

/* kind, other: the kinds that the row is of, below SAMPLE_KINDS; -1: none. */
static inline int sample_takes(struct sample *s, int row, int kind, int other)
{
    const int share[] = {s->plain, s->address, s->thread};
    const uint32_t one_in = share[sample_build] > 1 ? (uint32_t)share[sample_build] : 1;
    const int is_first = sample_is_first(s, kind) | sample_is_first(s, other);
    const int is_taken = is_first || one_in == 1 || sample_is_all() ||
                         ku_random_u32(sample_seed(), 0, 0, (uint64_t)row) % one_in == 0;
    s->n_rows++;
    s->n_taken += is_taken;
    return is_taken;
}

/* Says what was left out since it was last asked. */
static inline void sample_end(struct sample *s, const char *what)
{
    if (s->n_taken < s->n_rows)
        print_message("%d of %d %s, by seed %llu; KUMI_TEST_ALL=1 takes all\n", s->n_taken,
                      s->n_rows, what, (unsigned long long)sample_seed());
    s->n_rows = s->n_taken = 0;
}

#endif
