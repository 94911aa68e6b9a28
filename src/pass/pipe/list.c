/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A schedule from costs: a list scheduler that knows how long each block takes and how many
 * micro-batches, or how many bytes of them, a rank may hold.
 *
 * Blocks begin in the order of time. A rank that is free takes what may begin first: of several I
 * before F, since the stage before waits for it, and F only below the limit. W fills the time until
 * then: always, or only where it ends before I or F may begin. Which of the two is better depends
 * on the costs; the caller tries both.
 *
 * I may leave more bytes than it frees, so F leaves room for one I: a rank that has run W of all
 * its I can always run the next.
 */
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "pass/pipe/block_schedule.h"

/* Rank r runs stage r. */
struct list {
    struct ku_pp_schedule *s;
    const struct ku_block_cost *cost;
    double *end_f, *end_i; /* [stage][micro], of blocks that have begun */
    double *clock;         /* [rank] */
    double *held;          /* [rank] bytes after the blocks that have begun */
    int32_t *n;            /* [rank][kind] blocks that have begun */
    const struct ku_pp_limit *limit;
    bool is_eager; /* W begins whenever nothing else can */
};

struct choice {
    int kind;
    double at; /* HUGE_VAL: nothing may begin */
};

static int32_t *begun(const struct list *l, int rank, int kind)
{
    return &l->n[rank * KU_N_BLOCK_KINDS + kind];
}

static double later(double a, double b)
{
    return a > b ? a : b;
}

/* What a block adds to the bytes that rank r holds. */
static double held_by(const struct list *l, int r, int kind)
{
    if (l->limit->bytes == 0)
        return 0;
    const struct ku_stage_bytes *b = &l->limit->of[r];
    return kind == KU_BL_F   ? b->f_to_i + b->f_to_w
           : kind == KU_BL_I ? b->i_to_w - b->f_to_i
                             : -b->f_to_w - b->i_to_w;
}

static bool has_room(const struct list *l, int r, int kind)
{
    const double i = held_by(l, r, KU_BL_I);
    const double more = kind == KU_BL_I ? i : held_by(l, r, KU_BL_F) + (i > 0 ? i : 0);
    return l->limit->bytes == 0 || l->held[r] + more <= l->limit->bytes;
}

static double f_at(const struct list *l, int r)
{
    const int32_t u = *begun(l, r, KU_BL_F);
    if (u == l->s->n_micro || u - *begun(l, r, KU_BL_W) >= l->limit->in_flight ||
        !has_room(l, r, KU_BL_F))
        return HUGE_VAL;
    if (r == 0)
        return l->clock[r];
    if (*begun(l, r - 1, KU_BL_F) <= u)
        return HUGE_VAL;
    return later(l->clock[r], l->end_f[(r - 1) * l->s->n_micro + u] +
                                  ku_block_transfer(l->cost, r - 1, KU_BL_F));
}

static double i_at(const struct list *l, int r)
{
    const int32_t u = *begun(l, r, KU_BL_I);
    if (u == *begun(l, r, KU_BL_F) || (u > *begun(l, r, KU_BL_W) && !has_room(l, r, KU_BL_I)))
        return HUGE_VAL;
    if (r == l->s->n_ranks - 1)
        return l->clock[r];
    if (*begun(l, r + 1, KU_BL_I) <= u)
        return HUGE_VAL;
    return later(l->clock[r], l->end_i[(r + 1) * l->s->n_micro + u] +
                                  ku_block_transfer(l->cost, r + 1, KU_BL_I));
}

static struct choice choose(const struct list *l, int r)
{
    const double f = f_at(l, r), i = i_at(l, r), clock = l->clock[r];
    struct choice best = i <= f ? (struct choice){KU_BL_I, i} : (struct choice){KU_BL_F, f};
    if (*begun(l, r, KU_BL_W) < *begun(l, r, KU_BL_I) && best.at > clock &&
        (l->is_eager || clock + ku_block_cost(l->cost, r, KU_BL_W) <= best.at))
        best = (struct choice){KU_BL_W, clock};
    return best;
}

static void run(struct list *l)
{
    struct ku_pp_schedule *s = l->s;
    const uint32_t each = 3 * (uint32_t)s->n_micro, total = each * (uint32_t)s->n_ranks;
    for (uint32_t done = 0; done < total; done++) {
        struct choice first = {0, HUGE_VAL};
        int rank = -1;
        for (int r = 0; r < s->n_ranks; r++) {
            const struct choice own = choose(l, r);
            if (own.at < first.at)
                first = own, rank = r;
        }
        KU_ASSERT(rank >= 0); /* the last stage may always run, so no rank waits for ever */
        const int32_t u = (*begun(l, rank, first.kind))++;
        const double end = first.at + ku_block_cost(l->cost, rank, first.kind);
        if (first.kind == KU_BL_F)
            l->end_f[rank * s->n_micro + u] = end;
        else if (first.kind == KU_BL_I)
            l->end_i[rank * s->n_micro + u] = end;
        l->clock[rank] = end;
        l->held[rank] += held_by(l, rank, first.kind);
        KU_ASSERT(l->limit->bytes == 0 || l->held[rank] <= l->limit->bytes);
        uint32_t at = (uint32_t)rank * each;
        for (int k = 0; k < KU_N_BLOCK_KINDS; k++)
            at += (uint32_t)*begun(l, rank, k);
        s->block[at - 1] = (struct ku_block){(uint8_t)first.kind, (int16_t)rank, u};
    }
}

static bool has_fit(const struct ku_pp_limit *limit, int n_ranks)
{
    bool fits = limit->in_flight >= 1;
    for (int r = 0; r < n_ranks && limit->bytes > 0; r++)
        fits = fits && ku_stage_bytes_max(&limit->of[r]) <= limit->bytes;
    return fits;
}

int ku_pp_schedule_list(int n_ranks, int n_micro, const struct ku_block_cost *cost,
                        const struct ku_pp_limit *limit, bool is_eager, struct ku_pp_schedule **out)
{
    const size_t n = (size_t)n_ranks * (size_t)n_micro;
    struct list l = {.cost = cost, .limit = limit, .is_eager = is_eager};
    KU_ASSERT(n_ranks >= 1 && n_ranks <= KU_MAX_PP && n_micro >= 1 && has_fit(limit, n_ranks));
    int status = ku_pp_schedule_empty(n_ranks, n_ranks, n_micro, &l.s);
    l.end_f = ku_calloc(n, sizeof *l.end_f);
    l.end_i = ku_calloc(n, sizeof *l.end_i);
    l.clock = ku_calloc((size_t)n_ranks, sizeof *l.clock);
    l.held = ku_calloc((size_t)n_ranks, sizeof *l.held);
    l.n = ku_calloc((size_t)n_ranks * KU_N_BLOCK_KINDS, sizeof *l.n);
    if (status == KUMI_OK && (!l.end_f || !l.end_i || !l.clock || !l.held || !l.n))
        status = KUMI_ENOMEM;
    if (status == KUMI_OK) {
        for (int r = 0; r < n_ranks; r++) {
            l.s->rank_of[r] = r;
            l.s->first[r + 1] = 3 * (uint32_t)n_micro * (uint32_t)(r + 1);
        }
        run(&l);
        status = ku_pp_schedule_check(l.s, "auto");
    }
    ku_free(l.end_f);
    ku_free(l.end_i);
    ku_free(l.clock);
    ku_free(l.held);
    ku_free(l.n);
    if (status < 0)
        ku_pp_schedule_destroy(l.s);
    else
        *out = l.s;
    return status;
}
