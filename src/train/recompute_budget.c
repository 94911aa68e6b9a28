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
#include "train/recompute_budget.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "pass/remat/recompute.h"

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

/* Bytes of a rank's plan with the current levels: the maximum over all shapes and programs. */
static int planned_bytes(const struct ku_session *s, const struct ku_target *t,
                         const struct ku_compile_opts *o, double *bytes)
{
    size_t most[KU_N_ARENAS] = {0};
    int status = KUMI_OK;
    for (int shape = 0; shape < s->source->ops->n_shapes(s->source) && status == KUMI_OK; shape++) {
        struct ku_program *program[KU_N_PROGS] = {0};
        struct ku_graph *g = NULL;
        status = ku_session_graph(s, shape, &g);
        if (status == KUMI_OK)
            status = ku_trainer_plan(g, o, t, program, NULL, NULL);
        ku_graph_destroy(g);
        for (int p = 0; p < KU_N_PROGS; p++) {
            for (int a = 0; a < KU_N_ARENAS && program[p] && status == KUMI_OK; a++)
                if (program[p]->arena_bytes[a] > most[a])
                    most[a] = program[p]->arena_bytes[a];
            ku_program_destroy(program[p]);
        }
    }
    *bytes = (double)ku_session_staging_bytes(s);
    for (int a = 0; a < KU_N_ARENAS; a++)
        *bytes += a == KU_AR_FILE ? 0 : (double)most[a] / (a == KU_AR_HOST ? s->batch.n_ranks : 1);
    return status;
}

static int measure(const struct ku_session *s, const struct ku_target *t,
                   const struct ku_compile_opts *o, struct ku_recompute_unit **unit, int *n)
{
    struct ku_graph *g = NULL;
    KU_TRY(ku_session_graph(s, s->source->ops->largest_shape(s->source), &g));
    int status = ku_compile_graph(g, o, t, "zero");
    if (status == KUMI_OK)
        status = ku_recompute_measure(g, o, unit, n);
    for (int i = 0; i < *n && status == KUMI_OK; i++)
        (*unit)[i].name = NULL; /* owned by the graph, which is freed */
    ku_graph_destroy(g);
    return status;
}

/*
 * Find the point with the maximum bytes, and so the minimum work, whose plan fits into the budget.
 */
static int search(struct ku_session *s, const struct ku_target *t, struct ku_compile_opts *o,
                  const struct frontier *f)
{
    double budget = s->cfg.memory_recompute.budget_gib * 0x1p30, bytes = 0;
    /*
     * Invariant: the plan of `low` fits, or low is the smallest point; the plan of `high` does not
     * fit.
     */
    uint32_t low = f->first, high = f->n;
    levels_of(f, low, s->n_recompute, s->recompute_level);
    KU_TRY(planned_bytes(s, t, o, &bytes));
    if (bytes > budget)
        return KU_ERR(
            KUMI_ENOMEM,
            "memory.recompute: budget_gib %g: with all blocks recomputed a rank holds %.3f "
            "GiB; allow that, or lower train.micro_batch",
            s->cfg.memory_recompute.budget_gib, bytes * 0x1p-30);
    while (high - low > 1) {
        uint32_t mid = high == f->n ? f->n - 1 : low + (high - low) / 2;
        levels_of(f, mid, s->n_recompute, s->recompute_level);
        KU_TRY(planned_bytes(s, t, o, &bytes));
        if (bytes <= budget)
            low = mid;
        else
            high = mid;
    }
    levels_of(f, low, s->n_recompute, s->recompute_level);
    return KUMI_OK;
}

int ku_session_solve_recompute(struct ku_session *s, const struct ku_target *t,
                               struct ku_compile_opts *o)
{
    struct ku_recompute_unit *unit = NULL;
    struct frontier f = {0};
    int status = KUMI_OK;
    if (s->cfg.memory_recompute.rule != KU_REC_BUDGET)
        return KUMI_OK;
    if (s->recompute_level == NULL) {
        KU_TRY(measure(s, t, o, &unit, &s->n_recompute));
        s->recompute_level = ku_calloc((size_t)s->n_recompute + 1, 1);
        status = s->recompute_level ? KU_GROW(&f.point, f.n, &f.cap) : KUMI_ENOMEM;
        if (status == KUMI_OK)
            f.point[f.n++] = (struct point){0};
        for (int i = 0; i < s->n_recompute && status == KUMI_OK; i++)
            status = add_block(&f, &unit[i]);
        o->recompute_level = s->recompute_level;
        if (status == KUMI_OK)
            status = search(s, t, o, &f);
    }
    o->recompute_level = s->recompute_level;
    ku_free(f.point);
    ku_free(unit);
    return status;
}

void ku_session_print_recompute(const struct ku_session *s, struct ku_str *out)
{
    static const char *const name[KU_N_RECOMPUTE] = {"nothing", "selective", "full"};
    int n[KU_N_RECOMPUTE] = {0};
    for (int i = 0; s->recompute_level && i < s->n_recompute; i++)
        n[s->recompute_level[i]]++;
    for (int level = 0; level < KU_N_RECOMPUTE; level++)
        if (n[level])
            ku_str_add(out, "%s%s by %d", out->bytes ? ", " : "recomputed in blocks: ", name[level],
                       n[level]);
}
