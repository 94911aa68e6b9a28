/* SPDX-License-Identifier: Apache-2.0 */
/*
 * V-Half and V-Min: schedules of two stages per rank, placed as a V, within a part of 1F1B's memory
 * (Qi et al. 2024, Pipeline Parallelism with Controllable Memory, section 3).
 *
 * Rank i of p has stages i, on the way down, and 2 p - 1 - i, on the way up. A building block says
 * at which time a rank runs the four blocks of micro-batch 0; those of micro-batch u follow 6 u
 * later, and W has the two slots that remain. The nearer F and I of a stage are, the less is held:
 *
 *              F down   F up          I up              I down
 *     v-half   2 i      3 p - i - 2   3 p + c + 2 i - 1   6 p + c - i - 2     c = 3 if 2 divides p
 *     v-min    i        2 p - i - 1   2 p + c + i         4 p + c - i - 1     c = 2 if 3 divides p
 *
 * That is the order in which ranks prefer blocks here. A rank that would wait for its next block
 * takes a later one that may begin, else W, as long as the memory of the building block suffices.
 */
#include "base/err.h"
#include "base/mem.h"
#include "pass/pipe/block_schedule.h"

enum { F_DOWN, F_UP, I_UP, I_DOWN, N_WAYS, PERIOD = 6 };

struct v_rank {
    int slot[N_WAYS];      /* of micro-batch 0 */
    int32_t begun[N_WAYS]; /* micro-batches */
    int32_t ended[N_WAYS]; /* before the time of now */
    int32_t w[2];          /* of the stage up, down */
    int held;              /* F begun, W not */
};

int ku_pp_v_limit(int p, bool is_min)
{
    return is_min ? 2 * ((p + 1) / 3 + 1) : p + 2 - p % 2;
}

static void set_slots(struct v_rank *r, int p, int i, bool is_min)
{
    const int c = is_min ? p % 3 == 0 ? 2 : 0 : p % 2 == 0 ? 3 : 0;
    const int half[] = {2 * i, 3 * p - i - 2, 3 * p + c + 2 * i - 1, 6 * p + c - i - 2};
    const int third[] = {i, 2 * p - i - 1, 2 * p + c + i, 4 * p + c - i - 1};
    for (int k = 0; k < N_WAYS; k++)
        r->slot[k] = is_min ? third[k] : half[k];
}

/* Whether what the next block of this kind depends on has ended. */
static bool is_ready(const struct v_rank *rank, int p, int i, int way)
{
    const int32_t u = rank[i].begun[way];
    const bool is_down = way == F_DOWN || way == I_UP; /* from rank i - 1 */
    const int from = is_down ? i - 1 : i + 1;
    if (from >= 0 && from < p)
        return rank[from].ended[way] > u;
    return way == F_DOWN || rank[i].ended[way - 1] > u; /* the turn of the V */
}

/* The time of the next block of this kind in the building block. */
static int time_of(const struct v_rank *r, int way)
{
    return r->slot[way] + PERIOD * r->begun[way];
}

/* Whether memory suffices for the next F and every F of the other stage that comes before it. */
static bool has_room(const struct v_rank *r, int way, int n_micro, int limit)
{
    const int other = F_UP - way, until = time_of(r, way);
    int earlier = until > time_of(r, other) ? (until - time_of(r, other) - 1) / PERIOD + 1 : 0;
    if (earlier > n_micro - r->begun[other])
        earlier = n_micro - r->begun[other];
    return r->held + earlier < limit;
}

/* The first block in the order of the building block that may begin; -1: none. */
static int choose(const struct v_rank *rank, int p, int i, int n_micro, int limit)
{
    int best = -1;
    for (int k = 0; k < N_WAYS; k++)
        if (rank[i].begun[k] < n_micro && is_ready(rank, p, i, k) &&
            (k >= I_UP || has_room(&rank[i], k, n_micro, limit)) &&
            (best < 0 || time_of(&rank[i], k) < time_of(&rank[i], best)))
            best = k;
    return best;
}

/* Of the stages with I done and W not, the one whose I came first in the building block. */
static int choose_w(const struct v_rank *r)
{
    int best = -1, best_at = 0;
    for (int k = 0; k < 2; k++) {
        const int at = r->slot[I_UP + k] + PERIOD * r->w[k];
        if (r->w[k] < r->begun[I_UP + k] && (best < 0 || at < best_at))
            best = k, best_at = at;
    }
    return best;
}

/* Appends what rank i begins now, if anything; it takes 1. */
static bool advance(struct ku_pp_schedule *s, struct v_rank *rank, int i, int limit)
{
    const int p = s->n_ranks, way = choose(rank, p, i, s->n_micro, limit);
    struct v_rank *r = &rank[i];
    struct ku_block *b = &s->block[s->first[i + 1]];
    if (way >= 0) {
        const bool is_up = way == F_UP || way == I_UP;
        *b = (struct ku_block){way < I_UP ? KU_BL_F : KU_BL_I, (int16_t)(is_up ? 2 * p - 1 - i : i),
                               r->begun[way]++};
        r->held += way < I_UP;
    } else {
        const int k = choose_w(r);
        if (k < 0)
            return false;
        *b = (struct ku_block){KU_BL_W, (int16_t)(k == 0 ? 2 * p - 1 - i : i), r->w[k]++};
        r->held--;
    }
    s->first[i + 1]++;
    KU_ASSERT(r->held >= 0 && r->held <= limit);
    return true;
}

int ku_pp_v_shape(struct ku_pp_schedule *s, bool is_min)
{
    const int p = s->n_ranks, limit = ku_pp_v_limit(p, is_min);
    const uint32_t each = PERIOD * (uint32_t)s->n_micro;
    struct v_rank *rank = ku_calloc((size_t)p, sizeof *rank);
    KU_ASSERT(s->n_stages == 2 * p);
    if (rank == NULL)
        return KUMI_ENOMEM;
    for (int i = 0; i < p; i++) {
        set_slots(&rank[i], p, i, is_min);
        s->first[i + 1] = each * (uint32_t)i;
    }
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < p; i++)
            for (int k = 0; k < N_WAYS; k++)
                rank[i].ended[k] = rank[i].begun[k];
        for (int i = 0; i < p; i++)
            moved |= advance(s, rank, i, limit);
    }
    for (int i = 0; i < p; i++)
        KU_ASSERT(s->first[i + 1] == each * (uint32_t)(i + 1)); /* the earliest may always run */
    ku_free(rank);
    return KUMI_OK;
}
