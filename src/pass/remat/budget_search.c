/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chooses a recompute level per layer. A point is a choice for the first layers: bytes of saved
 * activations and recomputed work.
 *
 *   1. layer by layer: every point x every level, then drop the points that another one beats in
 *      both bytes and work; what remains is the Pareto frontier:
 *
 *        work |*
 *             | *             each * : one choice of levels for all layers so far
 *             |   *  *        `before` links it to its choice for the previous layers
 *             |          *
 *             +------------- bytes
 *
 *   2. binary search over the last layer's frontier: compile the full plan for a point, and take
 *      the point with the most bytes (the minimum work) whose plan fits into the budget
 */
#include "pass/remat/budget_search.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

/*
 * A choice of levels for the layers so far: bytes of saved activations, recomputed work, and the
 * point it extends.
 */
struct point {
    double bytes, work;
    uint32_t before;
    unsigned char level;
};
struct frontier {
    struct point *point;    /* of all layers, one layer after the other */
    uint32_t n, cap, first; /* first: start of the last layer's points */
};

static int by_bytes(const void *a, const void *b)
{
    const struct point *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    return (x->work > y->work) - (x->work < y->work);
}

/*
 * Drop points that another point beats, in a sorted list. Past the limit, drop every second point.
 */
static uint32_t prune(struct point *p, uint32_t n)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++)
        if (kept == 0 || p[i].work < p[kept - 1].work)
            p[kept++] = p[i];
    while (kept > KU_MAX_FRONTIER) {
        for (uint32_t i = 0; 2 * i < kept; i++)
            p[i] = p[2 * i];
        kept = (kept + 1) / 2;
    }
    return kept;
}

static int add_block(struct frontier *f, const struct ku_recompute_unit *unit)
{
    uint32_t n = f->n - f->first, n_made = 0;
    struct point *made = ku_calloc((size_t)n * KU_N_RECOMPUTE, sizeof *made);
    if (made == NULL)
        return KUMI_ENOMEM;
    for (uint32_t i = 0; i < n; i++)
        for (int level = 0; level < KU_N_RECOMPUTE; level++)
            made[n_made++] = (struct point){f->point[f->first + i].bytes + unit->bytes[level],
                                            f->point[f->first + i].work + unit->work[level],
                                            f->first + i, (unsigned char)level};
    qsort(made, n_made, sizeof *made, by_bytes);
    n_made = prune(made, n_made);
    f->first = f->n;
    int status = KUMI_OK;
    for (uint32_t i = 0; i < n_made && status == KUMI_OK; i++) {
        status = KU_GROW(&f->point, f->n, &f->cap);
        if (status == KUMI_OK)
            f->point[f->n++] = made[i];
    }
    ku_free(made);
    return status;
}

static void levels_of(const struct frontier *f, uint32_t at, int n_units, unsigned char *level)
{
    for (int u = n_units; u-- > 0; at = f->point[at].before)
        level[u] = f->point[at].level;
}

/*
 * Find the point with the maximum bytes, and so the minimum work, whose plan fits into the budget.
 */
static int search(const struct ku_budget_search *s, const struct frontier *f, unsigned char *level)
{
    double bytes = 0;
    uint32_t low = f->first, high = f->n;
    levels_of(f, low, s->n, level);
    KU_TRY(s->planned_bytes(s->ctx, &bytes));
    if (bytes > s->budget_bytes)
        return KU_ERR(
            KUMI_ENOMEM,
            "memory.recompute: budget_gib %g: with all layers recomputed a rank needs %.3f GiB; "
            "raise the budget to that, or lower train.micro_batch",
            s->budget_bytes * 0x1p-30, bytes * 0x1p-30);
    while (high - low > 1) { /* the plan of `low` fits, that of `high` does not; the end does not */
        uint32_t mid = high == f->n ? f->n - 1 : low + (high - low) / 2;
        levels_of(f, mid, s->n, level);
        KU_TRY(s->planned_bytes(s->ctx, &bytes));
        if (bytes <= s->budget_bytes)
            low = mid;
        else
            high = mid;
    }
    levels_of(f, low, s->n, level);
    return KUMI_OK;
}

int ku_budget_search(const struct ku_budget_search *s, unsigned char *level)
{
    struct frontier f = {0};
    int status = KU_GROW(&f.point, f.n, &f.cap);
    if (status == KUMI_OK)
        f.point[f.n++] = (struct point){0};
    for (int i = 0; i < s->n && status == KUMI_OK; i++)
        status = add_block(&f, &s->unit[i]);
    if (status == KUMI_OK)
        status = search(s, &f, level);
    ku_free(f.point);
    return status;
}
