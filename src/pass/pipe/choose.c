/* SPDX-License-Identifier: Apache-2.0 */
#include "pass/pipe/choose.h"

#include <string.h>

#include "base/mem.h"
#include "pass/pipe/layer_stages.h"

struct best {
    struct ku_pp_schedule *s;
    int *layers;
    const char *name;
    double span;
};

/* Layers and costs of n_stages stages; EINVAL where the model or the list by hand has others. */
static int divide(const struct ku_graph *g, const struct ku_pp_request *q, const int *rank_of,
                  int n_stages, int *layers, struct ku_stage_cost *cost)
{
    KU_TRY(q->n_stages ? ku_stages_parse(g, q->stages, q->n_stages, n_stages, layers)
                       : ku_stages_balance(g, q->layer, rank_of, n_stages, layers));
    ku_stages_add_up(q->layer, layers, n_stages, cost);
    return KUMI_OK;
}

static bool does_fit(const struct ku_pp_schedule *s, int in_flight)
{
    const int per_rank = s->n_stages / s->n_ranks;
    for (int r = 0; r < s->n_ranks; r++)
        if (ku_pp_schedule_peak(s, r) > in_flight * per_rank)
            return 0;
    return 1;
}

/* Takes the candidate if it fits and its step is shorter than the best one's; else destroys it. */
static int compare(struct ku_pp_schedule *s, const char *name, const struct ku_pp_request *q,
                   const struct ku_block_cost *cost, int *layers, struct best *best)
{
    double span = -1;
    int status = KUMI_OK;
    if (does_fit(s, q->in_flight))
        status = ku_pp_schedule_run(s, cost, NULL, NULL, &span, NULL);
    if (status < 0 || span < 0 || (best->s && span >= best->span * (1 - 1e-9))) {
        ku_pp_schedule_destroy(s);
        ku_free(layers);
        return status;
    }
    ku_pp_schedule_destroy(best->s);
    ku_free(best->layers);
    *best = (struct best){s, layers, name, span};
    return KUMI_OK;
}

/* One candidate; a generator that does not exist for these numbers is none. name NULL: a list. */
static int try(const struct ku_graph *g, const struct ku_pp_request *q, const char *name,
               bool is_eager, struct best *best)
{
    const int n_virtual = name ? ku_pp_schedule_n_virtual(name) : 1;
    const int n_stages = q->n_ranks * (n_virtual ? n_virtual : q->n_virtual);
    struct ku_pp_schedule *s = NULL;
    int *layers = ku_calloc((size_t)n_stages, sizeof *layers);
    struct ku_stage_cost *of = ku_calloc((size_t)n_stages, sizeof *of);
    const struct ku_block_cost cost = {.of = of};
    int status = layers && of ? KUMI_OK : KUMI_ENOMEM;
    if (status == KUMI_OK && name)
        status = ku_pp_schedule_create(name, q->n_ranks, q->n_virtual, q->n_micro, &s);
    if (status == KUMI_OK)
        status = divide(g, q, s ? s->rank_of : NULL, n_stages, layers, of);
    if (status == KUMI_OK && !name)
        status = ku_pp_schedule_list(q->n_ranks, q->n_micro, &cost, q->in_flight, is_eager, &s);
    if (status == KUMI_OK) {
        status = compare(s, name ? name : "list", q, &cost, layers, best);
    } else {
        ku_pp_schedule_destroy(s);
        ku_free(layers);
    }
    ku_free(of);
    return status;
}

int ku_pp_choose(const struct ku_graph *g, const struct ku_pp_request *q, struct ku_pp_schedule **s,
                 int **layers, const char **name)
{
    struct best best = {0};
    KU_ASSERT(q->in_flight >= 1 && q->layer);
    int status = KUMI_OK;
    for (const char *const *known = ku_pp_schedule_names(); *known && status != KUMI_ENOMEM;
         known++)
        status = try(g, q, *known, 0, &best);
    for (int is_eager = 0; is_eager < 2 && status != KUMI_ENOMEM; is_eager++)
        status = try(g, q, NULL, is_eager, &best);
    if (best.s && status != KUMI_ENOMEM) {
        *s = best.s, *layers = best.layers, *name = best.name;
        return KUMI_OK;
    }
    ku_pp_schedule_destroy(best.s);
    ku_free(best.layers);
    return status;
}
