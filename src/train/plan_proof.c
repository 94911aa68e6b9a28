/* SPDX-License-Identifier: Apache-2.0 */
#include "train/plan_proof.h"

#include "base/err.h"
#include "base/mem.h"
#include "pass/pipe/block_schedule.h"
#include "pass/precision_rules.h"

int ku_trainer_check_opts(const struct ku_compile_opts *o, enum ku_check_kind kind,
                          const struct ku_graph *model, struct ku_check_opts *check,
                          signed char **wire)
{
    *wire = ku_calloc((size_t)model->n_tensors + 1, 1);
    if (*wire == NULL)
        return KUMI_ENOMEM;
    for (ku_id t = 1; t < model->n_tensors; t++)
        (*wire)[t] = (signed char)ku_precision_wire(model, o, t);
    *check =
        (struct ku_check_opts){.kind = kind,
                               .part = o->remote.update_by == KU_UPDATE_WORKER   ? KU_CHECK_WORKER
                                       : o->remote.update_by == KU_UPDATE_SERVER ? KU_CHECK_SERVER
                                                                                 : KU_CHECK_WHOLE,
                               .mesh = o->mesh,
                               .is_single = o->remote.is_single,
                               .compute = o->compute,
                               .grads = o->grads,
                               .freeze = o->freeze,
                               .wire = *wire,
                               .optimizer = o->optimizer,
                               .rule = o->rule,
                               .decay = o->decay,
                               .adapt = o->adapt,
                               .decay_patterns = o->decay_patterns,
                               .adapt_patterns = o->adapt_patterns,
                               .groups = o->groups,
                               .n_groups = o->n_groups,
                               .stochastic_rounding = o->stochastic_rounding,
                               .initial_accumulator_value = o->initial_accumulator_value,
                               .tp_reduce = o->tp_reduce,
                               .plan = o->plan,
                               .sequence = o->sequence && ku_mesh_tp(&o->mesh) > 1};
    return KUMI_OK;
}

static enum ku_check_kind kind_of(const struct ku_compile_opts *o, int program)
{
    return program == KU_PROG_INIT                      ? KU_CHECK_INIT
           : program == KU_PROG_DERIVE                  ? KU_CHECK_DERIVE
           : program == KU_PROG_TRAIN && o->is_training ? KU_CHECK_TRAIN
                                                        : KU_CHECK_EVAL;
}

/* The programs of one model: a model for evaluation has no dropout. */
static int prove_of(const struct ku_graph *graph, const struct ku_compile_opts *o,
                    const struct ku_target *target, unsigned which,
                    const struct ku_program *const *program, struct ku_check_report *report)
{
    const int n = o->mesh.extent[KU_AX_PP];
    const struct ku_program *all[KU_MAX_PP];
    KU_ASSERT(n <= KU_MAX_PP);
    struct ku_graph *model = NULL;
    int status;
    KU_TRY(ku_graph_copy(graph, &model));
    KU_TRY_OUT(ku_compile_graph(model, o, target, "slices"));
    for (int i = 0; i < KU_N_PROGS; i++) {
        struct ku_check_opts check;
        signed char *wire;
        if (!(which >> i & 1) || program[i] == NULL)
            continue;
        KU_TRY_OUT(ku_trainer_check_opts(o, kind_of(o, i), model, &check, &wire));
        for (int k = 0; k < n; k++)
            all[k] = program[k * KU_N_PROGS + i];
        status = ku_check_programs(model, &check, all, n, &report[i]);
        ku_free(wire);
        KU_TRY_OUT(status);
    }
out:
    ku_graph_destroy(model);
    return status;
}

/* One of the programs of coordinate 0 that have all state, if there is one: all but evaluation. */
static const struct ku_program *with_all_state(const struct ku_program *const *program)
{
    static const int order[KU_N_PROGS] = {KU_PROG_TRAIN, KU_PROG_INIT, KU_PROG_DERIVE,
                                          KU_PROG_EVAL};
    for (int i = 0; i < KU_N_PROGS; i++)
        if (program[order[i]])
            return program[order[i]];
    return NULL;
}

int ku_trainer_prove(const struct ku_graph *graph, const struct ku_compile_opts *o,
                     const struct ku_target *target, const struct ku_program *const *program,
                     struct ku_check_report report[KU_N_PROGS])
{
    const unsigned eval = 1u << KU_PROG_EVAL;
    struct ku_compile_opts for_eval = *o;
    for_eval.is_training = 0;
    const struct ku_program *first = with_all_state(program);
    for (int i = 0; i < o->mesh.extent[KU_AX_PP] * KU_N_PROGS; i++)
        if (program[i])
            KU_TRY(ku_check_same_state(first, program[i]));
    KU_TRY(prove_of(graph, o, target, KU_ALL_PROGS & ~eval, program, report));
    return program[KU_PROG_EVAL] ? prove_of(graph, &for_eval, target, eval, program, report)
                                 : KUMI_OK;
}

/* The programs of the other coordinates of axis pp, from a copy of the graph. */
static int plan_others(const struct ku_graph *graph, const struct ku_compile_opts *o,
                       const struct ku_target *target, unsigned which, struct ku_program **program)
{
    const int n = o->mesh.extent[KU_AX_PP];
    const uint64_t all = ku_trainer_all_at(n);
    struct ku_graph *copy;
    if (n == 1)
        return KUMI_OK;
    KU_TRY(ku_graph_copy(graph, &copy));
    const int status =
        ku_trainer_plan_at(copy, o, all & ~(UINT64_C(1) << o->pp), target, which, program);
    ku_graph_destroy(copy);
    return status;
}

int ku_trainer_prove_job(const struct ku_graph *graph, const struct ku_compile_opts *o,
                         const struct ku_target *target, unsigned which,
                         const struct ku_program *const own[KU_N_PROGS], uint64_t *hash,
                         struct ku_check_report report[KU_N_PROGS])
{
    const int n = o->mesh.extent[KU_AX_PP];
    struct ku_program **made = ku_calloc((size_t)n * KU_N_PROGS, sizeof *made);
    const struct ku_program **all = ku_calloc((size_t)n * KU_N_PROGS, sizeof *all);
    int status = made && all ? plan_others(graph, o, target, which, made) : KUMI_ENOMEM;
    for (int k = 0, at = 0; k < n && status == KUMI_OK; k++)
        for (int i = 0; i < KU_N_PROGS; i++, at++) {
            all[at] = k == o->pp ? own[i] : made[at - (k > o->pp ? KU_N_PROGS : 0)];
            hash[at] = all[at] ? ku_program_hash(all[at]) : 0;
        }
    if (status == KUMI_OK)
        status = ku_trainer_prove(graph, o, target, all, report);
    for (int i = 0; i < n * KU_N_PROGS && made; i++)
        ku_program_destroy(made[i]);
    ku_free(made);
    ku_free(all);
    return status;
}
