/* SPDX-License-Identifier: Apache-2.0 */
/* A session's memory.recompute {"budget_gib": x}. */
#include "base/err.h"
#include "base/mem.h"
#include "pass/remat/budget_search.h"
#include "train/session.h"

struct planning {
    const struct ku_session *s;
    const struct ku_target *t;
    const struct ku_compile_opts *o;
};

/* Beside arenas: staging buffers, and what several hosts exchange. g: compiled. */
static int bytes_beside(const struct ku_session *s, const struct ku_program *p,
                        const struct ku_graph *g, size_t *bytes)
{
    size_t exchange = 0, inbox = 0;
    if (s->host) {
        KU_TRY(ku_session_exchange_bytes(s, &p->mesh, &exchange));
        KU_TRY(ku_trainer_inbox_bytes(p, g, s->host, s->n_hosts, &inbox));
    }
    *bytes = ku_session_staging_bytes(s) + exchange + inbox;
    return KUMI_OK;
}

/* What the ranks of one coordinate of axis pp hold: the maximum over all shapes and programs */
struct need {
    size_t arena[KU_N_ARENAS], beside;
};

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* program: [n_pp * KU_N_PROGS], NULL before and after; need: [n_pp] */
static int plan_shape(const struct planning *p, int shape, struct ku_program **program,
                      struct need *need, size_t *loader)
{
    const struct ku_session *s = p->s;
    const int n_pp = p->o->mesh.extent[KU_AX_PP];
    struct ku_graph *g = NULL;
    KU_TRY(ku_session_graph(s, shape, &g));
    *loader = larger(*loader, s->source->ops->read_ahead_bytes(s->source, g));
    int status = ku_trainer_plan_at(g, p->o, ku_trainer_all_at(n_pp), p->t, KU_ALL_PROGS, program);
    for (int k = 0; k < n_pp && status == KUMI_OK; k++) {
        size_t beside = 0;
        status = bytes_beside(s, program[k * KU_N_PROGS + KU_PROG_TRAIN], g, &beside);
        need[k].beside = larger(need[k].beside, beside);
    }
    ku_graph_destroy(g);
    for (int i = 0; i < n_pp * KU_N_PROGS; i++) {
        size_t *arena = need[i / KU_N_PROGS].arena;
        for (int a = 0; a < KU_N_ARENAS && program[i]; a++)
            arena[a] = larger(arena[a], program[i]->arena_bytes[a]);
        ku_program_destroy(program[i]);
        program[i] = NULL;
    }
    return status;
}

/*
 * Bytes of a rank's plan with the current levels: the maximum over the coordinates of axis pp.
 * Hosts of unequal numbers of ranks have the levels of the smallest share.
 */
static int planned_bytes(void *ctx, double *bytes)
{
    const struct planning *p = ctx;
    const struct ku_session *s = p->s;
    const int n_local = s->host_ranks ? s->host_ranks : ku_session_n_ranks(s);
    const int n_pp = p->o->mesh.extent[KU_AX_PP];
    struct ku_program **program = ku_calloc((size_t)n_pp * KU_N_PROGS, sizeof(struct ku_program *));
    struct need *need = ku_calloc((size_t)n_pp, sizeof *need);
    size_t loader = 0;
    int status = program && need ? KUMI_OK : KUMI_ENOMEM;
    for (int shape = 0; shape < s->source->ops->n_shapes(s->source) && status == KUMI_OK; shape++)
        status = plan_shape(p, shape, program, need, &loader);
    *bytes = 0;
    for (int k = 0; k < n_pp && status == KUMI_OK; k++) {
        double own = (double)(loader + need[k].beside);
        for (int a = 0; a < KU_N_ARENAS; a++)
            own += a == KU_AR_FILE
                       ? 0
                       : (double)need[k].arena[a] / (ku_arena_is_common(a) ? n_local : 1);
        *bytes = own > *bytes ? own : *bytes;
    }
    ku_free(program);
    ku_free(need);
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

int ku_session_solve_recompute(struct ku_session *s, const struct ku_target *t,
                               struct ku_compile_opts *o)
{
    struct planning planning = {s, t, o};
    struct ku_recompute_unit *unit = NULL;
    int status = KUMI_OK;
    if (s->cfg.memory_recompute.rule != KU_REC_BUDGET)
        return KUMI_OK;
    if (s->recompute_level == NULL) {
        KU_TRY(measure(s, t, o, &unit, &s->n_recompute));
        s->recompute_level = ku_calloc((size_t)s->n_recompute + 1, 1);
        o->recompute_level = s->recompute_level;
        const struct ku_budget_search search = {.unit = unit,
                                                .n = s->n_recompute,
                                                .budget_bytes =
                                                    s->cfg.memory_recompute.budget_gib * 0x1p30,
                                                .planned_bytes = planned_bytes,
                                                .ctx = &planning};
        status = s->recompute_level ? ku_budget_search(&search, s->recompute_level) : KUMI_ENOMEM;
    }
    o->recompute_level = s->recompute_level;
    ku_free(unit);
    return status;
}

void ku_session_print_recompute(const struct ku_session *s, struct ku_str *out)
{
    static const char *const name[KU_N_RECOMPUTE] = {"none", "selective", "full"};
    int n[KU_N_RECOMPUTE] = {0};
    for (int i = 0; s->recompute_level && i < s->n_recompute; i++)
        n[s->recompute_level[i]]++;
    for (int level = 0; level < KU_N_RECOMPUTE; level++)
        if (n[level])
            ku_str_add(out, "%s%d %s", out->bytes ? ", " : "recompute by layer: ", n[level],
                       name[level]);
}
