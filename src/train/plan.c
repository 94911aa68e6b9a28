/* SPDX-License-Identifier: Apache-2.0 */
#include "train/plan.h"

#include <string.h>

#include "base/err.h"

void ku_plan_fini(struct ku_plan *p)
{
    for (int i = 0; i < KU_N_PROGS; i++)
        ku_program_destroy(p->program[i]);
    ku_session_fini(&p->s);
    memset(p, 0, sizeof *p);
}

static int compile(struct ku_plan *p)
{
    struct ku_target target = ku_commands_target(&p->s);
    struct ku_compile_opts o;
    struct ku_graph *g = NULL;
    KU_TRY(ku_session_compile_opts(&p->s, &o));
    KU_TRY(ku_session_graph(&p->s, 0, &g));
    int status = ku_trainer_plan(g, &o, &target, p->program, NULL, NULL);
    ku_graph_destroy(g);
    return status;
}

int ku_plan_init(struct ku_plan *p, const struct kumi_settings *settings, int n_ranks,
                 const char *const *more)
{
    memset(p, 0, sizeof *p);
    KU_TRY(ku_commands_configure(&p->s, settings, n_ranks, more));
    int status = compile(p);
    if (status < 0) {
        ku_plan_fini(p);
        return status;
    }
    for (int a = 0; a < KU_N_ARENAS; a++) {
        for (int i = 0; i < KU_N_PROGS; i++)
            if (p->program[i]->arena_bytes[a] > p->arena_bytes[a])
                p->arena_bytes[a] = p->program[i]->arena_bytes[a];
        if (a != KU_AR_HOST)
            p->rank_bytes += p->arena_bytes[a];
    }
    p->rank_bytes += ku_session_staging_bytes(&p->s);
    p->host_bytes = p->arena_bytes[KU_AR_HOST] + p->rank_bytes * (uint64_t)n_ranks;
    p->table_bytes = (p->arena_bytes[KU_AR_HOST] + p->rank_bytes) / 4096 * 8 * (uint64_t)n_ranks;
    return KUMI_OK;
}

void ku_plan_print_instr(const struct ku_program *p, uint32_t at, struct ku_str *out)
{
    static const char *const exchange[] = {"reduce_scatter", "all_reduce", "barrier"};
    if (at >= p->n_instrs)
        return;
    const struct ku_instr *i = &p->instr[at];
    ku_str_add(out, "%d%s", i->stage, ku_phase_name(i->phase));
    if (i->micro >= 0)
        ku_str_add(out, "%d", i->micro);
    ku_str_add(out, " %s %s",
               i->kind == KU_WAIT    ? "wait"
               : i->kind == KU_START ? exchange[i->op]
                                     : ku_ops[i->op].name,
               p->name_of[i->path]);
}
