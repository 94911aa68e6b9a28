/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The generators. Rank i of p, m micro-batches:
 *
 *   gpipe        all F, then all B
 *   1f1b         p - 1 - i F ahead, then F and B in turn (Narayanan et al. 2019, PipeDream-Flush)
 *   interleaved  v stages per rank, stage s on rank s mod p, in groups of p micro-batches
 *                (Narayanan et al. 2021, section 2.2)
 *   zb-h1        1f1b with W i blocks after I (Qi et al. 2023, section 2)
 *   zb-h2        2 (p - 1 - i) F ahead, W 2 i blocks after I
 *   zb-v         2 stages per rank, stage s on rank s or 2 p - 1 - s (Qi et al. 2024)
 *   v-half       the same stages within half of 1f1b's memory (v_shape.c)
 *   v-min        and within a third
 */
#include <string.h>

#include "base/err.h"
#include "pass/pipe/block_schedule.h"

static int min(int a, int b)
{
    return a < b ? a : b;
}

static void add(struct ku_pp_schedule *s, int rank, int kind, int stage, int micro)
{
    KU_ASSERT(s->rank_of[stage] == rank && micro >= 0);
    if (micro < s->n_micro)
        s->block[s->first[rank + 1]++] =
            (struct ku_block){(uint8_t)kind, (int16_t)stage, (int32_t)micro};
}

static void gpipe(struct ku_pp_schedule *s, int i)
{
    for (int u = 0; u < s->n_micro; u++)
        add(s, i, KU_BL_F, i, u);
    for (int u = 0; u < s->n_micro; u++)
        add(s, i, KU_BL_B, i, u);
}

static void one_f_one_b(struct ku_pp_schedule *s, int i)
{
    const int m = s->n_micro, ahead = min(s->n_ranks - 1 - i, m);
    for (int u = 0; u < ahead; u++)
        add(s, i, KU_BL_F, i, u);
    for (int u = 0; u < m; u++) {
        add(s, i, KU_BL_F, i, u + ahead);
        add(s, i, KU_BL_B, i, u);
    }
}

/* F `ahead` of I, W `late` blocks after I. */
static void zero_bubble(struct ku_pp_schedule *s, int i, int ahead, int late)
{
    const int m = s->n_micro;
    int w = 0;
    for (int u = 0; u < min(ahead, m); u++)
        add(s, i, KU_BL_F, i, u);
    for (int u = 0; u < m; u++) {
        add(s, i, KU_BL_F, i, u + min(ahead, m));
        add(s, i, KU_BL_I, i, u);
        if (u >= late)
            add(s, i, KU_BL_W, i, w++);
    }
    while (w < m)
        add(s, i, KU_BL_W, i, w++);
}

static void zb_h1(struct ku_pp_schedule *s, int i)
{
    zero_bubble(s, i, s->n_ranks - 1 - i, i);
}

static void zb_h2(struct ku_pp_schedule *s, int i)
{
    zero_bubble(s, i, 2 * (s->n_ranks - 1 - i), 2 * i);
}

/*
 * The k-th F of a rank is of chunk (k / p) mod v; B of the chunks in reverse. A group of p
 * micro-batches passes all chunks of a rank before the next group begins.
 */
static void interleaved(struct ku_pp_schedule *s, int i)
{
    const int p = s->n_ranks, v = s->n_stages / p, total = s->n_micro * v;
    const int ahead = min((p - 1 - i) * 2 + (v - 1) * p, total);
    for (int k = 0; k < total + ahead; k++) {
        if (k < total)
            add(s, i, KU_BL_F, k / p % v * p + i, k / (p * v) * p + k % p);
        if (k >= ahead) {
            const int b = k - ahead;
            add(s, i, KU_BL_B, (v - 1 - b / p % v) * p + i, b / (p * v) * p + b % p);
        }
    }
}

static void i_and_w(struct ku_pp_schedule *s, int rank, int stage, int micro)
{
    add(s, rank, KU_BL_I, stage, micro);
    add(s, rank, KU_BL_W, stage, micro);
}

/* As for at least 2 p - 1 micro-batches; `add` leaves out those beyond the last. */
static void zb_v(struct ku_pp_schedule *s, int i)
{
    const int p = s->n_ranks, one = 2 * p - 1 - i;
    const int m = s->n_micro < 2 * p - 1 ? 2 * p - 1 : s->n_micro;
    int f0 = 0, f1 = 0, b0 = 0, b1 = 0;
    while (f0 < 2 * (p - i) - 1)
        add(s, i, KU_BL_F, i, f0++);
    for (int k = 0; k < i; k++) {
        add(s, i, KU_BL_F, one, f1++);
        add(s, i, KU_BL_F, i, f0++);
    }
    for (int k = 0; k < p - i; k++) {
        add(s, i, KU_BL_F, one, f1++);
        i_and_w(s, i, one, b1++);
    }
    while (f1 < f0 || f0 < m) {
        if (f0 < m)
            add(s, i, KU_BL_F, i, f0++);
        i_and_w(s, i, i, b0++);
        add(s, i, KU_BL_F, one, f1++);
        i_and_w(s, i, one, b1++);
    }
    int w0 = b0, w1 = b1;
    for (int k = 0; k < i; k++) {
        add(s, i, KU_BL_I, i, b0++);
        add(s, i, KU_BL_I, one, b1++);
    }
    for (int k = 0; k < p - i; k++) {
        add(s, i, KU_BL_I, i, b0++);
        add(s, i, KU_BL_W, i, w0++);
    }
    while (w1 < b1)
        add(s, i, KU_BL_W, one, w1++);
    while (w0 < b0)
        add(s, i, KU_BL_W, i, w0++);
}

/* Stages per rank: 0 = as asked for. make: NULL, by ku_pp_v_shape. */
static const struct generator {
    const char *name;
    int n_virtual;
    bool is_v; /* the second half of the stages goes back from the last rank to the first */
    void (*make)(struct ku_pp_schedule *s, int rank);
} generator[] = {{"gpipe", 1, false, gpipe},
                 {"1f1b", 1, false, one_f_one_b},
                 {"interleaved", 0, false, interleaved},
                 {"zb-h1", 1, false, zb_h1},
                 {"zb-h2", 1, false, zb_h2},
                 {"zb-v", 2, true, zb_v},
                 {"v-half", 2, true, NULL},
                 {"v-min", 2, true, NULL}};
enum { N_GENERATORS = sizeof generator / sizeof generator[0] };

const char *const *ku_pp_schedule_names(void)
{
    static const char *const names[] = {"gpipe", "1f1b",   "interleaved", "zb-h1", "zb-h2",
                                        "zb-v",  "v-half", "v-min",       NULL};
    _Static_assert(sizeof names / sizeof names[0] == N_GENERATORS + 1, "one name per generator");
    return names;
}

static const struct generator *find(const char *name)
{
    for (int i = 0; i < N_GENERATORS; i++)
        if (strcmp(generator[i].name, name) == 0)
            return &generator[i];
    return NULL;
}

int ku_pp_schedule_n_virtual(const char *name)
{
    const struct generator *g = find(name);
    return g ? g->n_virtual : 0;
}

int ku_pp_schedule_create(const char *name, int n_ranks, int n_virtual, int n_micro,
                          struct ku_pp_schedule **out)
{
    const struct generator *g = find(name);
    KU_ASSERT(n_ranks >= 1 && n_ranks <= KU_MAX_PP && n_micro >= 1);
    if (g == NULL)
        return KU_ERR(KUMI_EINVAL, "schedule: %s: no such schedule", name);
    const int v = g->n_virtual ? g->n_virtual : n_virtual, n_stages = v * n_ranks;
    if (g->make == interleaved && v < 2)
        return KU_ERR(KUMI_EINVAL, "schedule: interleaved needs at least 2 stages per rank");
    if (g->make == interleaved && n_micro % n_ranks)
        return KU_ERR(KUMI_EINVAL,
                      "schedule: interleaved: the %d micro-batches must be a multiple of the %d "
                      "ranks; give %d, or another schedule",
                      n_micro, n_ranks, (n_micro / n_ranks + 1) * n_ranks);
    if (n_stages > KU_MAX_STAGES)
        return KU_ERR(KUMI_EINVAL, "schedule: %d stages; at most %d", n_stages, KU_MAX_STAGES);
    struct ku_pp_schedule *s;
    KU_TRY(ku_pp_schedule_empty(n_ranks, n_stages, n_micro, &s));
    for (int stage = 0; stage < n_stages; stage++)
        s->rank_of[stage] = g->is_v && stage >= n_ranks ? n_stages - 1 - stage : stage % n_ranks;
    for (int r = 0; r < n_ranks && g->make; r++) {
        s->first[r + 1] = s->first[r];
        g->make(s, r);
    }
    int status = g->make ? KUMI_OK : ku_pp_v_shape(s, strcmp(name, "v-min") == 0);
    if (status == KUMI_OK)
        status = ku_pp_schedule_check(s, name);
    if (status < 0)
        ku_pp_schedule_destroy(s);
    else
        *out = s;
    return status;
}
