/* SPDX-License-Identifier: Apache-2.0 */
#include "data/pairs/bucket_shapes.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/math/search.h"

#include <string.h>

/*
 * Shapes (s1, t1) <= (s2, t2) <= … form a chain, and a sample uses the first one that holds it. Let
 * N(s, t) be the number of samples with source length <= s and target length <= t. Then
 *
 *     cost(k, s, t) = min over (s', t') < (s, t) of  cost(k - 1, s', t')
 *                     + (N(s, t) - N(s', t')) (s + t)          tokens of this shape with padding
 *                     + rows(s', t') / 2 (s + t - s' - t')     mean cost of the remainder moved up
 *
 * is the minimum number of tokens that k shapes need for the samples that (s, t) holds. Each side
 * uses at most GRID lengths, spread evenly over the samples, so the search takes at most (GRID^2 /
 * 2)^2 x KU_SHAPES_MAX iterations, about 70 million.
 */
enum { GRID = 64 };

struct side {
    int n;
    int64_t len[GRID]; /* ascending; the last is the maximum */
};
struct grid {
    const struct ku_buckets_opts *opts;
    struct side src, tgt;
    int64_t n_samples[GRID][GRID]; /* N(src.len[i], tgt.len[j]) */
    int64_t cost[KU_SHAPES_MAX][GRID][GRID];
    uint16_t from[KU_SHAPES_MAX][GRID][GRID]; /* i' x GRID + j' */
};
static const int64_t NEVER = INT64_MAX / 4;

static int64_t round_up(int64_t len, int64_t multiple)
{
    multiple = multiple ? multiple : 1;
    return (len + multiple - 1) / multiple * multiple;
}

/*
 * Chooses at most GRID of the occurring lengths; consecutive ones have at least 1/GRID of the
 * samples between them.
 */
static int side_init(struct side *side, const int32_t *len, int64_t n, int64_t multiple)
{
    int64_t longest = 0, taken = 0, seen = 0;
    for (int64_t i = 0; len && i < n; i++)
        longest = len[i] > longest ? len[i] : longest;
    longest = round_up(longest, multiple);
    multiple = multiple ? multiple : 1;
    int64_t *count = ku_calloc((size_t)(longest / multiple) + 1, sizeof *count);
    if (!count)
        return KUMI_ENOMEM;
    for (int64_t i = 0; i < n; i++)
        count[round_up(len ? len[i] : 0, multiple) / multiple]++;
    int64_t distinct = 0;
    for (int64_t i = 0; i <= longest / multiple; i++)
        distinct += count[i] > 0;
    for (int64_t i = 0; i <= longest / multiple; i++) {
        seen += count[i];
        int is_last = i == longest / multiple;
        if (is_last || (count[i] && (distinct <= GRID || seen - taken > n / (GRID - 1)))) {
            side->len[side->n++] = i * multiple;
            taken = seen;
        }
    }
    ku_free(count);
    return KUMI_OK;
}

/* The first of the side's lengths that holds `len`. */
static int index_of(const struct side *side, int64_t len)
{
    int i = (int)ku_search(side->len, sizeof *side->len, (size_t)side->n, len);
    return i + (side->len[i] < len);
}

static void count_samples(struct grid *g, const int32_t *src_len, const int32_t *tgt_len, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        g->n_samples[index_of(&g->src, src_len ? src_len[i] : 0)]
                    [index_of(&g->tgt, tgt_len ? tgt_len[i] : 0)]++;
    for (int i = 0; i < g->src.n; i++)
        for (int j = 1; j < g->tgt.n; j++)
            g->n_samples[i][j] += g->n_samples[i][j - 1];
    for (int i = 1; i < g->src.n; i++)
        for (int j = 0; j < g->tgt.n; j++)
            g->n_samples[i][j] += g->n_samples[i - 1][j];
}

static int64_t rows_of(const struct ku_buckets_opts *o, int64_t src, int64_t tgt)
{
    int64_t longer = src > tgt ? src : tgt;
    if (o->batch_rows)
        return o->batch_rows;
    return o->batch_tokens / (longer ? longer : 1) / o->multiple * o->multiple;
}

/* Computes cost[k][i][j] from cost[k - 1]. */
static void extend(struct grid *g, int k, int i, int j)
{
    int64_t each = g->src.len[i] + g->tgt.len[j], best = NEVER;
    int from = 0;
    for (int x = 0; x <= i; x++)
        for (int y = 0; y <= j; y++) {
            if (g->n_samples[x][y] == 0 || g->n_samples[x][y] == g->n_samples[i][j])
                continue;
            int64_t less = g->src.len[x] + g->tgt.len[y],
                    rows = rows_of(g->opts, g->src.len[x], g->tgt.len[y]),
                    cost = g->cost[k - 1][x][y] + (g->n_samples[i][j] - g->n_samples[x][y]) * each +
                           rows * (each - less) / 2;
            if (cost < best) {
                best = cost;
                from = x * GRID + y;
            }
        }
    g->cost[k][i][j] = best;
    g->from[k][i][j] = (uint16_t)from;
}

/* Finds the cheapest chain up to the maximum lengths; prefers fewer shapes at equal cost. */
static int search(struct grid *g)
{
    int best = 0, si = g->src.n - 1, tj = g->tgt.n - 1;
    for (int k = 0; k < g->opts->n_shapes_max; k++) {
        for (int i = 0; i <= si; i++)
            for (int j = 0; j <= tj; j++)
                if (k == 0)
                    g->cost[k][i][j] = g->n_samples[i][j] * (g->src.len[i] + g->tgt.len[j]);
                else if (g->n_samples[i][j] == 0)
                    g->cost[k][i][j] = NEVER;
                else if (k + 1 < g->opts->n_shapes_max || (i == si && j == tj))
                    extend(g, k, i, j);
        if (g->cost[k][si][tj] < g->cost[best][si][tj])
            best = k;
    }
    return best + 1;
}

int ku_buckets_choose(const struct ku_buckets_opts *opts, const int32_t *src_len,
                      const int32_t *tgt_len, int64_t n_samples,
                      struct ku_bucket_shape shape[KU_SHAPES_MAX], int *n_shapes)
{
    struct grid *g = ku_calloc(1, sizeof *g);
    if (!g)
        return KUMI_ENOMEM;
    int status;
    g->opts = opts;
    KU_TRY_OUT(side_init(&g->src, src_len, n_samples, opts->len_multiple));
    KU_TRY_OUT(side_init(&g->tgt, tgt_len, n_samples, opts->len_multiple));
    int64_t src = g->src.len[g->src.n - 1], tgt = g->tgt.len[g->tgt.n - 1];
    if (rows_of(opts, src, tgt) < 1) {
        status = KU_ERR(KUMI_EINVAL,
                        "batch: %lld tokens cannot hold %lld rows of %lld, the longest sample; "
                        "give at least %lld tokens, or a lower length limit",
                        (long long)opts->batch_tokens, (long long)opts->multiple,
                        (long long)(src > tgt ? src : tgt),
                        (long long)(opts->multiple * (src > tgt ? src : tgt)));
        goto out;
    }
    count_samples(g, src_len, tgt_len, n_samples);
    *n_shapes = search(g);
    for (int k = *n_shapes - 1, i = g->src.n - 1, j = g->tgt.n - 1; k >= 0; k--) {
        shape[k] = (struct ku_bucket_shape){.src_len = g->src.len[i], .tgt_len = g->tgt.len[j]};
        shape[k].rows = rows_of(opts, shape[k].src_len, shape[k].tgt_len);
        int from = g->from[k][i][j];
        i = from / GRID;
        j = from % GRID;
    }
out:
    ku_free(g);
    return status;
}
