/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layers into stages, by cost. With one stage per coordinate two passes of dynamic programming over
 * (stages, layers) find the best division:
 *
 *     1. the most expensive stage is as cheap as possible: a bound
 *     2. of the divisions within the bound, that with the smallest sum of squares: the other
 *        stages have equal work
 *
 * O(stages x layers^2). With several stages on a coordinate its work is the sum of them; starting
 * from the division above, a layer at a time moves over a border between stages as long as that
 * lowers the work of the coordinate with the most, or the sum of squares.
 */
#include "base/err.h"
#include "base/mem.h"
#include "pass/pipe/layer_stages.h"

struct table {
    const struct ku_balance *b;
    size_t width;
    double *sum;  /* [n_layers + 1] of the first layers */
    double *best; /* [n_stages][n_layers + 1]: of k + 1 stages over the first i layers; < 0: none */
    int *cut;     /* where the last of these stages begins */
};

static double cost_of(const struct table *t, int k, int from, int to)
{
    return t->sum[to] - t->sum[from] + (k == t->b->n_stages - 1 ? t->b->end : 0);
}

/* Fills the table: with a bound sums of squares, without one (< 0) the most expensive stage. */
static void fill(struct table *t, double bound)
{
    const int n = t->b->n_layers, last = t->b->n_stages - 1;
    for (int k = 0; k <= last; k++) {
        const int min = k == last && k > 0 && t->b->end > 0 ? 0 : 1; /* layers of stage k */
        for (int i = 0; i <= n; i++) {
            double *at = &t->best[(size_t)k * t->width + (size_t)i];
            *at = -1;
            for (int j = k ? k : 0; j + min <= i && (k || j == 0); j++) {
                const double own = cost_of(t, k, j, i),
                             before = k ? t->best[(size_t)(k - 1) * t->width + (size_t)j] : 0;
                const double all = bound >= 0 ? before + own * own : before > own ? before : own;
                if (before < 0 || (bound >= 0 && own > bound * (1 + 1e-12)) ||
                    (*at >= 0 && all >= *at))
                    continue;
                *at = all;
                t->cut[(size_t)k * t->width + (size_t)i] = j;
            }
        }
    }
}

/* The work of the coordinate with the most, and the sum of squares. */
struct load {
    double most, squares;
};
static struct load load_of(const struct table *t, const int *count, double *work)
{
    struct load x = {0};
    for (int k = 0; k < t->b->n_stages; k++)
        work[t->b->rank_of[k]] = 0;
    for (int k = 0, at = 0; k < t->b->n_stages; at += count[k++])
        work[t->b->rank_of[k]] += cost_of(t, k, at, at + count[k]);
    for (int k = 0; k < t->b->n_stages; k++) {
        const double own = work[t->b->rank_of[k]];
        x.most = own > x.most ? own : x.most;
        x.squares += own * own; /* once per stage of the coordinate; all have as many */
    }
    return x;
}

static bool is_less(struct load a, struct load b)
{
    const double one = 1 - 1e-9;
    return a.most < b.most * one || (a.most <= b.most && a.squares < b.squares * one);
}

/* Moves layers over the borders while that helps. */
static void improve(const struct table *t, int *count, double *work)
{
    const int n = t->b->n_stages;
    struct load now = load_of(t, count, work);
    for (bool moved = true; moved;) {
        moved = false;
        for (int k = 0; k + 1 < n; k++)
            for (int d = -1; d <= 1; d += 2) {
                const int from = d > 0 ? k : k + 1;
                const int min = from == n - 1 && t->b->end > 0 ? 0 : 1;
                if (count[from] <= min)
                    continue;
                count[k] -= d, count[k + 1] += d;
                const struct load x = load_of(t, count, work);
                if (is_less(x, now)) {
                    now = x;
                    moved = true;
                } else {
                    count[k] += d, count[k + 1] -= d;
                }
            }
    }
}

int ku_balance(const struct ku_balance *b, int *count)
{
    struct table t = {.b = b, .width = (size_t)b->n_layers + 1};
    KU_ASSERT(b->n_stages > 0 && b->n_stages <= b->n_layers);
    t.sum = ku_calloc(t.width, sizeof *t.sum);
    t.best = ku_calloc((size_t)b->n_stages * t.width, sizeof *t.best);
    t.cut = ku_calloc((size_t)b->n_stages * t.width, sizeof *t.cut);
    double *work = ku_calloc((size_t)b->n_stages, sizeof *work);
    const int status = t.sum && t.best && t.cut && work ? KUMI_OK : KUMI_ENOMEM;
    for (int i = 0; i < b->n_layers && status == KUMI_OK; i++)
        t.sum[i + 1] = t.sum[i] + b->layer[i];
    if (status == KUMI_OK) {
        fill(&t, -1);
        fill(&t, t.best[(size_t)b->n_stages * t.width - 1]);
        for (int k = b->n_stages - 1, i = b->n_layers; k >= 0; k--) {
            const int j = t.cut[(size_t)k * t.width + (size_t)i];
            KU_ASSERT(j <= i && (k > 0 || j == 0)); /* the first stage has layer 0 */
            count[k] = i - j;
            i = j;
        }
        improve(&t, count, work);
        int n = 0;
        for (int k = 0; k < b->n_stages; k++)
            n += count[k];
        KU_ASSERT(n == b->n_layers); /* each layer is in one stage */
    }
    ku_free(t.sum);
    ku_free(t.best);
    ku_free(t.cut);
    ku_free(work);
    return status;
}
