/* SPDX-License-Identifier: Apache-2.0 */
#include "pass/pipe/choose.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "pass/pipe/between_blocks.h"
#include "pass/pipe/layer_stages.h"

struct best {
    struct ku_pp_schedule *s;
    int *layers;
    const char *name;
    double span;
    /* of all candidates within in_flight, the one with the fewest bytes on its fullest rank */
    struct ku_pp_need {
        const char *name; /* NULL: none yet */
        int rank;
        double bytes;
    } min;
};

/* A candidate: its name, and what its stages cost and hold. */
struct candidate {
    const char *name; /* NULL: of the list scheduler */
    bool is_eager;
    int in_flight, n_stages;
    int *layers;                 /* [n_stages] */
    struct ku_stage_cost *cost;  /* [n_stages] */
    struct ku_stage_bytes *held; /* [n_stages] */
    struct ku_pp_schedule *s;
};

/* Layers, costs and bytes; EINVAL where the model or the list by hand has other stages. */
static int divide(const struct ku_graph *g, const struct ku_pp_request *q, struct candidate *c)
{
    const int n = c->n_stages;
    KU_TRY(q->n_stages ? ku_stages_parse(g, q->stages, q->n_stages, n, c->layers)
                       : ku_stages_balance(g, q->layer, c->s ? c->s->rank_of : NULL, n, c->layers));
    ku_stages_add_up(q->layer, c->layers, n, c->cost);
    if (q->between) {
        ku_between_add_up(q->between, c->layers, n, c->held);
        ku_between_add_transfers(c->held, n, q->per_byte, c->cost);
    }
    return KUMI_OK;
}

static bool does_fit(const struct candidate *c, const struct ku_pp_request *q, struct best *best)
{
    const struct ku_pp_schedule *s = c->s;
    const int per_rank = s->n_stages / s->n_ranks;
    struct ku_pp_need need = {.name = c->name ? c->name : "list"};
    for (int r = 0; r < s->n_ranks; r++) {
        const double bytes = q->bytes > 0 ? ku_pp_schedule_peak_bytes(s, r, c->held) : 0;
        if (ku_pp_schedule_peak(s, r) > c->in_flight * per_rank)
            return 0;
        if (bytes > need.bytes)
            need.bytes = bytes, need.rank = r;
    }
    if (best->min.name == NULL || need.bytes < best->min.bytes)
        best->min = need;
    return need.bytes <= q->bytes || q->bytes == 0;
}

/* Takes the candidate's schedule and layers if it fits and its step is shorter than the best's. */
static int compare(struct candidate *c, const struct ku_pp_request *q, struct best *best)
{
    const struct ku_block_cost cost = {.of = c->cost};
    double span = -1;
    if (does_fit(c, q, best))
        KU_TRY(ku_pp_schedule_run(c->s, &cost, NULL, NULL, &span, NULL));
    if (span < 0 || (best->s && span >= best->span * (1 - 1e-9)))
        return KUMI_OK;
    ku_pp_schedule_destroy(best->s);
    ku_free(best->layers);
    best->s = c->s, best->layers = c->layers, best->span = span;
    best->name = c->name ? c->name : "list";
    c->s = NULL, c->layers = NULL;
    return KUMI_OK;
}

/* By costs, within the limits; where one micro-batch exceeds these, with one, which is refused. */
static int list(const struct ku_pp_request *q, struct candidate *c)
{
    const struct ku_block_cost cost = {.of = c->cost};
    struct ku_pp_limit limit = {c->in_flight, q->bytes, c->held};
    for (int r = 0; r < q->n_ranks && q->bytes > 0; r++)
        if (ku_stage_bytes_max(&c->held[r]) > q->bytes)
            limit.in_flight = 1, limit.bytes = 0;
    return ku_pp_schedule_list(q->n_ranks, q->n_micro, &cost, &limit, c->is_eager, &c->s);
}

/* A generator that does not exist for these numbers is no candidate. */
static int try(const struct ku_graph *g, const struct ku_pp_request *q, struct candidate c,
               struct best *best)
{
    const int n_virtual = c.name ? ku_pp_schedule_n_virtual(c.name) : 1;
    c.n_stages = q->n_ranks * (n_virtual ? n_virtual : q->n_virtual);
    c.layers = ku_calloc((size_t)c.n_stages, sizeof *c.layers);
    c.cost = ku_calloc((size_t)c.n_stages, sizeof *c.cost);
    c.held = ku_calloc((size_t)c.n_stages, sizeof *c.held);
    int status = c.layers && c.cost && c.held ? KUMI_OK : KUMI_ENOMEM;
    if (status == KUMI_OK && c.name)
        status = ku_pp_schedule_create(c.name, q->n_ranks, q->n_virtual, q->n_micro, &c.s);
    if (status == KUMI_OK)
        status = divide(g, q, &c);
    if (status == KUMI_OK && !c.name)
        status = list(q, &c);
    if (status == KUMI_OK)
        status = compare(&c, q, best);
    ku_pp_schedule_destroy(c.s);
    ku_free(c.layers);
    ku_free(c.cost);
    ku_free(c.held);
    return status;
}

static int try_all(const struct ku_graph *g, const struct ku_pp_request *q, struct best *best)
{
    int status = KUMI_OK;
    for (const char *const *known = ku_pp_schedule_names(); *known && status != KUMI_ENOMEM;
         known++)
        status = try(g, q, (struct candidate){.name = *known, .in_flight = q->in_flight}, best);
    /* more micro-batches in flight need not make a list shorter: with as many as 1f1b's too */
    for (int k = 0; k < 4 && status != KUMI_ENOMEM; k++) {
        const int in_flight = k < 2 ? q->in_flight : q->n_ranks;
        if (k < 2 || (q->bytes > 0 && q->n_ranks < q->in_flight))
            status = try(g, q, (struct candidate){.is_eager = k % 2, .in_flight = in_flight}, best);
    }
    return status;
}

static int refuse_bytes(const struct ku_pp_request *q, const struct best *best)
{
    const double gib = ceil(best->min.bytes * 0x1p-30 * 1e6) * 1e-6; /* a limit that suffices */
    return KU_ERR(
        KUMI_EINVAL,
        "parallel.pp_activation_gib: %.6g; no schedule fits: the one that needs fewest bytes, "
        "%s, holds %.6f GiB of activations on coordinate %d of axis pp (%.0f bytes, the "
        "limit is %.0f); raise the limit to that, lower train.micro_batch, or set "
        "memory.recompute or another parallel.stages",
        q->bytes * 0x1p-30, best->min.name, gib, best->min.rank, best->min.bytes, q->bytes);
}

int ku_pp_choose(const struct ku_graph *g, const struct ku_pp_request *q, struct ku_pp_schedule **s,
                 int **layers, const char **name)
{
    struct best best = {0};
    KU_ASSERT(q->in_flight >= 1 && q->layer && (q->between || (q->bytes == 0 && q->per_byte == 0)));
    const int status = try_all(g, q, &best);
    if (best.s && status != KUMI_ENOMEM) {
        *s = best.s, *layers = best.layers, *name = best.name;
        return KUMI_OK;
    }
    ku_pp_schedule_destroy(best.s);
    ku_free(best.layers);
    return status != KUMI_ENOMEM && q->bytes > 0 && best.min.name ? refuse_bytes(q, &best) : status;
}
