/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FUZZ_PS_MODEL_H
#define TESTS_FUZZ_PS_MODEL_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/err.h"
#include "train/remote_update.h"

/*
 * What a server of a parameter server must answer, without journal, threads and copies: which bytes
 * of each worker's open step are there, and the parameters as of every update. For
 * fuzz_ps_service.c, whose model has one parameter, a table:
 *
 *     push space   | loss: 72 i64 | targets: i64 | gap | gradient: ROWS x COLS f32 |
 *     unit         0   1  ..  8     9              10    11 12 ..                  35
 *     pull space   | table: ROWS x COLS f32 | report: 8 f64 |
 *
 * A unit has 64 bytes, but the one with the number of targets 8, and the gap after it 56. Ranges of
 * a push begin and end with one.
 */
enum { ROWS = 24, COLS = 16, COUNT = ROWS * COLS, CELL = 64 };
enum { TARGETS_AT = 576, GAP_AT = 584, GRADIENT_AT = 640, GAP_UNIT = 10, N_UNITS = 35 };
enum { PUSH_BYTES = GRADIENT_AT + 4 * COUNT, PUSH_PAYLOAD = PUSH_BYTES - (GRADIENT_AT - GAP_AT) };
enum { PULL_BYTES = 4 * COUNT + 64, MAX_WORKERS = 3, MAX_VERSIONS = 48 };
#define LEARNING_RATE 0.25F
#define ALL_UNITS     ((UINT64_C(1) << N_UNITS) - 1 - (UINT64_C(1) << GAP_UNIT))

struct model_worker {
    uint64_t incarnation;
    int64_t next;
    uint64_t has; /* units of step `next` */
    unsigned char byte[PUSH_BYTES];
    /*
     * Async, ssp: the update with which it begins `next`, -1: not yet. The next update keeps these
     * parameters for it, or, if its push is complete by then, does not: they are gone, and not
     * needed.
     */
    int64_t begins;
    bool is_kept, is_gone;
};
struct model_state {
    int64_t version;
    uint64_t dropped; /* since the start */
    struct model_worker worker[MAX_WORKERS];
};
struct model {
    int n;
    struct ku_remote_engine_opts o;
    struct model_state is;
    int64_t next[MAX_VERSIONS + 1][MAX_WORKERS]; /* of the workers, as of each update */
    float table[MAX_VERSIONS + 1][COUNT];
};

static inline bool model_is_single(const struct model *m)
{
    return m->o.mode != KU_REMOTE_SYNC;
}

/* The units of a range. */
static inline uint64_t model_units(size_t begin, size_t end)
{
    const int from = (int)(begin / CELL) + (begin >= GAP_AT),
              to = (int)(end / CELL) + (end >= GAP_AT);
    return (UINT64_C(1) << to) - (UINT64_C(1) << from);
}

static inline size_t model_received(const struct model_worker *x)
{
    const uint64_t targets = UINT64_C(1) << (GAP_UNIT - 1);
    return CELL * (size_t)__builtin_popcountll(x->has & ALL_UNITS & ~targets) +
           (x->has & targets ? GAP_AT - TARGETS_AT : 0);
}

static inline bool model_is_complete(const struct model *m, int worker)
{
    return (m->is.worker[worker].has & ALL_UNITS) == ALL_UNITS;
}

/* The step that a worker pushes next. */
static inline int64_t model_begin(const struct model *m, int worker)
{
    return m->is.worker[worker].next + model_is_complete(m, worker);
}

/* -- calls ------------------------------------------------------------------------------------ */

static inline bool model_may_connect(const struct model *m, int worker, uint64_t incarnation)
{
    return worker >= 0 && worker < m->n && incarnation > 0 && incarnation <= INT64_MAX &&
           incarnation >= m->is.worker[worker].incarnation;
}

static inline bool model_knows(const struct model *m, int worker, uint64_t incarnation)
{
    return model_may_connect(m, worker, incarnation) &&
           incarnation == m->is.worker[worker].incarnation;
}

static inline void model_connect(struct model *m, int worker, uint64_t incarnation)
{
    struct model_worker *x = &m->is.worker[worker];
    if (incarnation > x->incarnation && !model_is_complete(m, worker))
        x->has = 0;
    x->incarnation = incarnation;
}

enum model_answer { MODEL_REFUSES, MODEL_REPEATS, MODEL_TAKES };
/* What is said to a range of the push of a worker that is known. */
static inline enum model_answer model_answer_of(const struct model *m, int worker, int64_t step,
                                                size_t offset, size_t bytes)
{
    const struct model_worker *x = &m->is.worker[worker];
    const int64_t last = model_is_single(m) ? x->next : m->is.version;
    if (offset % CELL || bytes == 0 || offset > PUSH_BYTES || bytes > PUSH_BYTES - offset)
        return MODEL_REFUSES;
    if (step < 0 || step > last)
        return MODEL_REFUSES;
    if (step < x->next)
        return MODEL_REPEATS;
    const uint64_t units = model_units(offset, offset + bytes), there = x->has & units;
    return there == 0 ? MODEL_TAKES : there == units ? MODEL_REPEATS : MODEL_REFUSES;
}

static inline void model_take(struct model *m, int worker, size_t offset, const void *data,
                              size_t bytes)
{
    struct model_worker *x = &m->is.worker[worker];
    memcpy(x->byte + offset, data, bytes);
    x->has |= model_units(offset, offset + bytes);
}

/* -- updates ---------------------------------------------------------------------------------- */

/* Whether a worker may begin a step: how far the others are. */
static inline bool model_is_ready(const struct model *m, int worker, int64_t step)
{
    if (m->o.mode == KU_REMOTE_SYNC)
        return m->is.version >= step;
    for (int w = 0; w < m->n && m->o.mode == KU_REMOTE_SSP; w++)
        if (step > m->is.worker[w].next + m->o.staleness)
            return false;
    return m->is.worker[worker].next >= step;
}

/* The update whose parameters a pull gets; -1: they are not there yet. */
static inline int64_t model_seen(const struct model *m, int worker, int64_t step)
{
    if (!model_is_ready(m, worker, step))
        return -1;
    return model_is_single(m) ? m->is.worker[worker].begins : m->is.version;
}

static inline void model_begin_ready(struct model *m)
{
    for (int w = 0; w < m->n; w++)
        if (m->is.worker[w].begins < 0 && model_is_ready(m, w, m->is.worker[w].next))
            m->is.worker[w].begins = m->is.version;
}

/* The workers whose pushes the next update applies; 0: it waits for more. */
static inline int model_choose(const struct model *m, int *worker)
{
    int n = 0;
    for (int k = 0; k < m->n; k++) {
        const int w = model_is_single(m) ? (int)((m->is.version + k) % m->n) : k;
        if (model_is_complete(m, w) && (n == 0 || !model_is_single(m)))
            worker[n++] = w;
    }
    return n >= (model_is_single(m) ? 1 : m->n - m->o.backup) ? n : 0;
}

static inline void model_sum(struct model *m, const int *worker, int n)
{
    const float *before = m->table[m->is.version];
    float *after = m->table[m->is.version + 1];
    for (int i = 0; i < COUNT; i++) {
        float sum = 0;
        for (int k = 0; k < n; k++) {
            float each;
            memcpy(&each, m->is.worker[worker[k]].byte + GRADIENT_AT + 4 * i, sizeof each);
            sum += each;
        }
        after[i] = before[i] - LEARNING_RATE * sum / (float)n;
    }
}

/* A worker's step is over. */
static inline void model_advance(struct model_worker *x, int64_t next)
{
    x->next = next;
    x->has = 0;
    x->begins = -1;
    x->is_kept = x->is_gone = false;
}

static inline void model_update(struct model *m, const int *worker, int n)
{
    struct model_state *is = &m->is;
    model_sum(m, worker, n);
    for (int w = 0; w < m->n; w++) {
        struct model_worker *x = &is->worker[w];
        if (x->begins < 0 || x->is_kept)
            continue;
        x->is_kept = !model_is_complete(m, w);
        x->is_gone = !x->is_kept;
    }
    for (int k = 0; k < n; k++)
        model_advance(&is->worker[worker[k]], is->worker[worker[k]].next + 1);
    is->version++;
    for (int w = 0; w < m->n && !model_is_single(m); w++)
        if (is->worker[w].next < is->version) {
            is->dropped++;
            model_advance(&is->worker[w], is->version);
        }
    for (int w = 0; w < m->n; w++)
        m->next[is->version][w] = is->worker[w].next;
    model_begin_ready(m);
}

/* The server begins again with update `version`, and has repeated those after it. */
static inline void model_restart(struct model *m, int64_t version)
{
    const int64_t last = m->is.version;
    m->is.dropped = 0;
    for (int64_t v = version; v <= last; v++) {
        m->is.version = v;
        for (int w = 0; w < m->n; w++) {
            struct model_worker *x = &m->is.worker[w];
            if (v == version || m->next[v][w] > m->next[v - 1][w])
                x->begins = -1;
            x->next = m->next[v][w];
        }
        model_begin_ready(m);
    }
    for (int w = 0; w < m->n; w++) {
        struct model_worker *x = &m->is.worker[w];
        x->is_kept = x->begins >= 0 && x->begins < last;
        x->is_gone = x->is_kept && model_is_complete(m, w);
    }
}

#endif
