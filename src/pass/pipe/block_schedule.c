/* SPDX-License-Identifier: Apache-2.0 */
/* Checks and costs of schedules: what each block waits for, and when the lists come to an end. */
#include "pass/pipe/block_schedule.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

char ku_block_letter(int kind)
{
    KU_ASSERT(kind >= 0 && kind < KU_N_BLOCK_KINDS);
    return "FBIW"[kind];
}

void ku_pp_schedule_destroy(struct ku_pp_schedule *s)
{
    if (s == NULL)
        return;
    ku_free(s->rank_of);
    ku_free(s->first);
    ku_free(s->block);
    ku_free(s->column);
    ku_free(s);
}

int ku_pp_schedule_empty(int n_ranks, int n_stages, int n_micro, struct ku_pp_schedule **out)
{
    struct ku_pp_schedule *s = ku_calloc(1, sizeof *s);
    if (s == NULL)
        return KUMI_ENOMEM;
    *s = (struct ku_pp_schedule){.n_ranks = n_ranks, .n_stages = n_stages, .n_micro = n_micro};
    s->rank_of = ku_calloc((size_t)n_stages, sizeof *s->rank_of);
    s->first = ku_calloc((size_t)n_ranks + 1, sizeof *s->first);
    s->block = ku_calloc(3 * (size_t)n_stages * (size_t)n_micro, sizeof *s->block);
    if (s->rank_of && s->first && s->block) {
        *out = s;
        return KUMI_OK;
    }
    ku_pp_schedule_destroy(s);
    return KUMI_ENOMEM;
}

int ku_pp_schedule_forward(const struct ku_pp_schedule *s, struct ku_pp_schedule **out)
{
    struct ku_pp_schedule *f;
    KU_TRY(ku_pp_schedule_empty(s->n_ranks, s->n_stages, s->n_micro, &f));
    memcpy(f->rank_of, s->rank_of, (size_t)s->n_stages * sizeof *f->rank_of);
    uint32_t n = 0;
    for (int r = 0; r < s->n_ranks; r++) {
        for (int u = 0; u < s->n_micro; u++)
            for (int stage = 0; stage < s->n_stages; stage++)
                if (s->rank_of[stage] == r)
                    f->block[n++] = (struct ku_block){KU_BL_F, (int16_t)stage, u};
        f->first[r + 1] = n;
    }
    *out = f;
    return KUMI_OK;
}

/* Index of an instance of a kind among those of all stages and micro-batches. */
static size_t index_of(const struct ku_pp_schedule *s, int kind, int stage, int micro)
{
    return ((size_t)kind * (size_t)s->n_stages + (size_t)stage) * (size_t)s->n_micro +
           (size_t)micro;
}

/* The kind and the stage of the block whose result another stage's block reads; W reads none. */
static bool find_input(const struct ku_pp_schedule *s, const struct ku_block *b, int *kind,
                       int *stage)
{
    const bool is_forward = b->kind == KU_BL_F;
    *kind = is_forward ? KU_BL_F : KU_BL_I;
    *stage = is_forward ? b->stage - 1 : b->stage + 1;
    return b->kind != KU_BL_W && *stage >= 0 && *stage < s->n_stages;
}

/*
 * When a block may begin: the end of the blocks that it depends on, and the transfer from other
 * ranks. < 0: one has not run. end: per instance, -1 = not run; B counts as I and as W.
 */
static double ready(const struct ku_pp_schedule *s, const struct ku_block *b,
                    const struct ku_block_cost *cost, const double *end)
{
    int stage, kind;
    if (b->kind == KU_BL_W)
        return end[index_of(s, KU_BL_I, b->stage, b->micro)];
    const double own = b->kind == KU_BL_F ? 0 : end[index_of(s, KU_BL_F, b->stage, b->micro)];
    if (own < 0 || !find_input(s, b, &kind, &stage))
        return own;
    const double other = end[index_of(s, kind, stage, b->micro)];
    if (other < 0)
        return -1;
    const bool is_near = s->rank_of[stage] == s->rank_of[b->stage];
    const double arrived = other + (is_near ? 0 : ku_block_transfer(cost, stage, kind));
    return arrived > own ? arrived : own;
}

double ku_block_cost(const struct ku_block_cost *c, int stage, int kind)
{
    const struct ku_stage_cost all = {.f = c->f, .i = c->i, .w = c->w};
    const struct ku_stage_cost *const x = c->of ? &c->of[stage] : &all;
    return kind == KU_BL_F ? x->f : kind == KU_BL_I ? x->i : kind == KU_BL_W ? x->w : x->i + x->w;
}

double ku_block_transfer(const struct ku_block_cost *c, int stage, int kind)
{
    KU_ASSERT(kind == KU_BL_F || kind == KU_BL_I);
    if (c->of == NULL)
        return c->comm;
    return c->comm + (kind == KU_BL_F ? c->of[stage].sent : c->of[stage].sent_back);
}

int ku_pp_schedule_run(const struct ku_pp_schedule *s, const struct ku_block_cost *cost,
                       double *begin, double *end, double *makespan, uint32_t *stuck)
{
    const size_t n = (size_t)KU_N_BLOCK_KINDS * (size_t)s->n_stages * (size_t)s->n_micro;
    double *done = ku_calloc(n, sizeof *done),
           *clock = ku_calloc((size_t)s->n_ranks, sizeof *clock);
    uint32_t *next = ku_calloc((size_t)s->n_ranks, sizeof *next);
    const int status = done && clock && next ? KUMI_OK : KUMI_ENOMEM;
    double most = 0;
    bool moved = status == KUMI_OK;
    for (size_t i = 0; i < n && moved; i++)
        done[i] = -1;
    while (moved) {
        moved = false;
        for (int r = 0; r < s->n_ranks; r++)
            while (s->first[r] + next[r] < s->first[r + 1]) {
                const uint32_t at = s->first[r] + next[r];
                const struct ku_block *b = &s->block[at];
                const double from = ready(s, b, cost, done);
                if (from < 0)
                    break;
                const double start = from > clock[r] ? from : clock[r];
                clock[r] = start + ku_block_cost(cost, b->stage, b->kind);
                done[index_of(s, b->kind, b->stage, b->micro)] = clock[r];
                if (b->kind == KU_BL_B)
                    done[index_of(s, KU_BL_I, b->stage, b->micro)] = clock[r];
                if (begin)
                    begin[at] = start;
                if (end)
                    end[at] = clock[r];
                most = clock[r] > most ? clock[r] : most;
                next[r]++;
                moved = true;
            }
    }
    for (int r = 0; r < s->n_ranks && most >= 0 && status == KUMI_OK; r++)
        if (s->first[r] + next[r] < s->first[r + 1]) {
            if (stuck)
                *stuck = s->first[r] + next[r];
            most = -1;
        }
    ku_free(done);
    ku_free(clock);
    ku_free(next);
    if (status == KUMI_OK)
        *makespan = most;
    return status;
}

int ku_pp_schedule_readers(const struct ku_pp_schedule *s, int64_t *reader)
{
    const size_t n = (size_t)KU_N_BLOCK_KINDS * (size_t)s->n_stages * (size_t)s->n_micro;
    uint32_t *at = ku_calloc(n, sizeof *at); /* block of each instance */
    if (at == NULL)
        return KUMI_ENOMEM;
    for (uint32_t i = 0; i < s->first[s->n_ranks]; i++) {
        const struct ku_block *b = &s->block[i];
        const int kind = b->kind == KU_BL_B ? KU_BL_I : b->kind;
        at[index_of(s, kind, b->stage, b->micro)] = i;
        reader[i] = KU_NO_BLOCK;
    }
    for (uint32_t i = 0; i < s->first[s->n_ranks]; i++) {
        const struct ku_block *b = &s->block[i];
        int kind, stage;
        if (find_input(s, b, &kind, &stage) && s->rank_of[stage] != s->rank_of[b->stage])
            reader[at[index_of(s, kind, stage, b->micro)]] = i;
    }
    ku_free(at);
    return KUMI_OK;
}

double ku_pp_schedule_span(const struct ku_pp_schedule *s, const double *begin, const double *end)
{
    double most = 0;
    for (int r = 0; r < s->n_ranks; r++) {
        const uint32_t first = s->first[r], last = s->first[r + 1] - 1;
        KU_ASSERT(first <= last);
        most = end[last] - begin[first] > most ? end[last] - begin[first] : most;
    }
    return most;
}

int ku_pp_schedule_bubble(const struct ku_pp_schedule *s, const struct ku_block_cost *cost,
                          bool is_joint, double *bubble)
{
    const uint32_t n = s->first[s->n_ranks];
    double *begin = ku_calloc(n, sizeof *begin), *end = ku_calloc(n, sizeof *end);
    double span = 0, work = 0;
    int status = begin && end ? KUMI_OK : KUMI_ENOMEM;
    if (status == KUMI_OK)
        status = ku_pp_schedule_run(s, cost, begin, end, &span, NULL);
    if (status == KUMI_OK && span > 0 && !is_joint)
        span = ku_pp_schedule_span(s, begin, end);
    for (uint32_t i = 0; i < n; i++)
        work += ku_block_cost(cost, s->block[i].stage, s->block[i].kind);
    ku_free(begin);
    ku_free(end);
    if (status == KUMI_OK)
        *bubble = span < 0 ? -1 : span > 0 ? 1 - work / (span * s->n_ranks) : 0;
    return status;
}

int ku_pp_schedule_peak(const struct ku_pp_schedule *s, int rank)
{
    int now = 0, most = 0;
    for (uint32_t i = s->first[rank]; i < s->first[rank + 1]; i++) {
        now += s->block[i].kind == KU_BL_F;
        most = now > most ? now : most;
        now -= s->block[i].kind == KU_BL_B || s->block[i].kind == KU_BL_W;
    }
    return most;
}

double ku_stage_bytes_max(const struct ku_stage_bytes *b)
{
    return b->f_to_w + (b->f_to_i > b->i_to_w ? b->f_to_i : b->i_to_w);
}

double ku_pp_schedule_peak_bytes(const struct ku_pp_schedule *s, int rank,
                                 const struct ku_stage_bytes *bytes)
{
    double now = 0, most = 0;
    for (uint32_t i = s->first[rank]; i < s->first[rank + 1]; i++) {
        const struct ku_stage_bytes *b = &bytes[s->block[i].stage];
        const int kind = s->block[i].kind;
        now += kind == KU_BL_F   ? b->f_to_i + b->f_to_w
               : kind == KU_BL_I ? b->i_to_w - b->f_to_i
               : kind == KU_BL_W ? -b->i_to_w - b->f_to_w
                                 : -b->f_to_i - b->f_to_w;
        most = now > most ? now : most;
    }
    return most;
}

/* A cell as "pipe.csv: row 1, cell 4: 0F2: ". */
static const char *cell(const struct ku_pp_schedule *s, const char *name, uint32_t at, char *text,
                        size_t bytes)
{
    int r = 0;
    while (s->first[r + 1] <= at)
        r++;
    snprintf(text, bytes, "%s: row %d, cell %u: %d%c%d", name, r + 1,
             s->column ? (uint32_t)s->column[at] : at - s->first[r] + 1, s->block[at].stage,
             ku_block_letter(s->block[at].kind), s->block[at].micro);
    return text;
}

/*
 * Every instance once, in the order of micro-batches, and after what it depends on in its list.
 *
 *   next   [n_stages][kind] out: the micro-batch of the next F, I and W, where a B is an I and a W;
 *          of B the number of blocks
 */
static int check_lists(const struct ku_pp_schedule *s, const char *name, int32_t *next)
{
    char text[160];
    for (uint32_t i = 0; i < s->first[s->n_ranks]; i++) {
        const struct ku_block *b = &s->block[i];
        const bool is_whole = b->kind == KU_BL_B;
        int32_t *own = &next[b->stage * KU_N_BLOCK_KINDS];
        const int32_t wanted = own[is_whole ? KU_BL_I : b->kind];
        if (b->micro != wanted)
            return KU_ERR(KUMI_EINVAL, "%s: the next %c of stage %d is that of micro-batch %d",
                          cell(s, name, i, text, sizeof text), ku_block_letter(b->kind), b->stage,
                          wanted);
        if (is_whole && own[KU_BL_W] < b->micro)
            return KU_ERR(KUMI_EINVAL,
                          "%s: comes before %dW%d; B is I and W, and W of a stage run in the order "
                          "of micro-batches",
                          cell(s, name, i, text, sizeof text), b->stage, own[KU_BL_W]);
        own[b->kind]++;
        own[KU_BL_I] += is_whole;
        own[KU_BL_W] += is_whole;
        if (own[KU_BL_I] > own[KU_BL_F] || own[KU_BL_W] > own[KU_BL_I])
            return KU_ERR(KUMI_EINVAL, "%s: comes before the %c that it needs",
                          cell(s, name, i, text, sizeof text), b->kind == KU_BL_W ? 'I' : 'F');
    }
    return KUMI_OK;
}

/* No block is missing: of a stage that has B and neither I nor W, B. */
static int check_all_are_there(const struct ku_pp_schedule *s, const char *name,
                               const int32_t *next)
{
    for (int stage = 0; stage < s->n_stages; stage++) {
        const int32_t *own = &next[stage * KU_N_BLOCK_KINDS];
        const bool is_whole = own[KU_BL_B] && own[KU_BL_B] == own[KU_BL_I];
        for (int k = 0; k < KU_N_BLOCK_KINDS; k++)
            if (k != KU_BL_B && own[k] < s->n_micro)
                return KU_ERR(KUMI_EINVAL, "%s: row %d: %d%c%d is missing", name,
                              s->rank_of[stage] + 1, stage,
                              ku_block_letter(k == KU_BL_I && is_whole ? KU_BL_B : k), own[k]);
    }
    return KUMI_OK;
}

int ku_pp_schedule_check(const struct ku_pp_schedule *s, const char *name)
{
    const struct ku_block_cost unit = {1, 1, 1, 0, NULL};
    int32_t *next = ku_calloc((size_t)s->n_stages * KU_N_BLOCK_KINDS, sizeof *next);
    uint32_t stuck = 0;
    double makespan = 0;
    char text[160];
    int status = next ? check_lists(s, name, next) : KUMI_ENOMEM;
    if (status == KUMI_OK)
        status = check_all_are_there(s, name, next);
    ku_free(next);
    if (status == KUMI_OK)
        status = ku_pp_schedule_run(s, &unit, NULL, NULL, &makespan, &stuck);
    if (status == KUMI_OK && makespan < 0)
        status = KU_ERR(KUMI_EINVAL, "%s: waits for ever: a block that it depends on comes later",
                        cell(s, name, stuck, text, sizeof text));
    return status;
}
