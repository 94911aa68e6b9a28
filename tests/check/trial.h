/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CHECK_TRIAL_H
#define TESTS_CHECK_TRIAL_H

/* Runs programs, with ranks as threads: the digest of the state after two steps. */
#include <assert.h>

#include "base/math/random.h"
#include "comm/consensus.h"
#include "comm/world.h"
#include "exec/exec.h"
#include "train/trainer.h"

#include "layouts.h"

struct trial {
    const struct layout *l;
    int which;                         /* KU_PROG_TRAIN or KU_PROG_INIT */
    struct ku_program *const *all, *p; /* in place of the compiled ones; NULL: those */
    char digest[72];
};

/* Samples of a rank's micro-batches: inputs, and targets below 5. */
static inline int fill_inputs(struct ku_trainer *t, uint64_t step)
{
    const struct ku_program *p = t->program[KU_PROG_TRAIN];
    for (uint32_t k = 0; k < p->n_inputs; k++) {
        const char *name = p->name_of[p->input[k].name];
        const uint64_t key = step * 100 + (uint64_t)t->job->rank * 10 + k;
        struct ku_mapping map;
        if (strcmp(name, "control") == 0)
            continue;
        KU_TRY(ku_range_map(ku_exec_port(t->exec[KU_PROG_TRAIN], 1, name), KU_ACCESS_UPDATE, &map));
        for (size_t i = 0; i < map.range.bytes / 4; i++) {
            const uint32_t r = ku_random_u32(7, (uint32_t)key, 1, i);
            if (p->input[k].dtype == KUMI_I32)
                ((int32_t *)map.data)[i] = (int32_t)(r % 5);
            else
                ((float *)map.data)[i] = (float)(r % 1000) / 500 - 1;
        }
        KU_TRY(ku_range_unmap(&map));
    }
    return KUMI_OK;
}

static inline int trial_steps(struct ku_trainer *t, struct trial *x)
{
    struct ku_program **init = &t->program[KU_PROG_INIT], *const own = *init;
    const double *report;
    if (x->p && x->which == KU_PROG_TRAIN) {
        struct ku_exec **exec = &t->shape[0].exec[KU_PROG_TRAIN];
        ku_exec_unload(*exec);
        *exec = NULL;
        KU_TRY(ku_exec_load(t->memory, x->p, t->ops, t->device, t->job->n > 1 ? &t->comms : NULL,
                            exec));
        ku_trainer_use(t, 0);
    }
    if (x->p && x->which == KU_PROG_INIT)
        *init = x->p;
    int status = ku_trainer_init_state(t);
    *init = own;
    KU_TRY(status);
    for (int step = 0; step < 2; step++) {
        KU_TRY(fill_inputs(t, (uint64_t)step));
        KU_TRY(ku_trainer_step(t, step, &report));
    }
    KU_TRY(ku_agree(t->job, KUMI_OK)); /* rank 0 reads the shards of all */
    return ku_trainer_digest_first(t, x->digest);
}

static inline int trial_rank(struct ku_job *job, void *arg)
{
    struct trial *x = arg;
    struct ku_trainer *t = NULL;
    struct ku_graph *g = graph_of(x->l);
    struct ku_pp_schedule *schedule = NULL;
    struct trial own = *x;
    int layers[MAX_LAYERS];
    struct ku_trainer_opts o = {.compile = options(x->l),
                                .device = ku_device_find("cpu"),
                                .device_opts = {.n_threads = 1, .isa = ku_cpu_isa()},
                                .seed = 1337,
                                .target = {.path = "."},
                                .no_eval = 1};
    int status = pipeline_of(x->l, g, &o.compile, &schedule, layers);
    assert(status == KUMI_OK);
    status = ku_trainer_create(job, &g, 1, &o, &t);
    own.p = x->all ? x->all[ku_mesh_coord(&o.compile.mesh, job->rank).at[KU_AX_PP]] : NULL;
    if (status == KUMI_OK)
        status = trial_steps(t, &own);
    if (job->rank == 0)
        memcpy(x->digest, own.digest, sizeof own.digest);
    ku_trainer_destroy(t);
    ku_pp_schedule_destroy(schedule);
    return status;
}

static inline void touch(struct ku_program *p, ku_id b, uint32_t at)
{
    struct ku_buffer *x = &p->buffer[b];
    x->first = b && at < x->first ? at : x->first;
    x->last = b && at > x->last ? at : x->last;
}
/* States the live ranges of an edited program, by which sanitized builds poison memory. */
static inline void state_ranges(struct ku_program *p)
{
    uint32_t *start = ku_calloc(p->n_handles + 1, sizeof *start);
    assert(start != NULL);
    for (ku_id b = 1; b < p->n_buffers; b++)
        if (p->buffer[b].arena == KU_AR_STEP)
            p->buffer[b].first = UINT32_MAX, p->buffer[b].last = 0;
    for (uint32_t i = 0; i < p->n_outputs; i++)
        touch(p, p->output[i].buffer, p->n_instrs);
    for (uint32_t at = 0; at < p->n_instrs; at++) {
        const struct ku_instr *i = &p->instr[at], *of = i;
        if (i->kind == KU_START)
            start[i->handle] = at;
        if (i->kind == KU_WAIT)
            of = &p->instr[start[i->handle]];
        for (uint32_t k = 0; k < of->n_in + of->n_out + of->n_parts; k++) {
            const struct ku_operand *o = &p->operand[of->operand + k];
            touch(p, o->buffer, at);
            touch(p, o->addend, at);
            touch(p, o->out, at);
        }
        touch(p, of->workspace, at);
    }
    ku_free(start);
}

/* Whether programs leave the state that the compiled ones leave. */
static inline bool is_harmless(const struct layout *l, int which, struct ku_program *const *all)
{
    struct trial with = {.l = l, .which = which, .all = all}, without = {.l = l};
    const int n = l->ranks * (l->tp ? l->tp : 1) * (l->pp ? l->pp : 1);
    char hosts[64] = "";
    for (int h = 0; h < l->hosts; h++)
        snprintf(hosts + strlen(hosts), sizeof hosts - strlen(hosts), "%s%d", h ? "," : "",
                 n / l->hosts);
    const struct ku_job_opts opts = {.hosts = l->hosts ? hosts : NULL};
    if (ku_comm_threads(n, &opts, trial_rank, &without) < 0) {
        show(l);
        fail_msg("the programs without the edit: %s", ku_err_get()->text);
    }
    for (int c = 0; c < (l->pp ? l->pp : 1); c++)
        state_ranges(all[c]);
    int status = ku_comm_threads(n, &opts, trial_rank, &with);
    if (status < 0)
        fprintf(stderr, "%s\n", ku_err_get()->text);
    const bool is_equal = status == KUMI_OK && strcmp(with.digest, without.digest) == 0;
    if (status == KUMI_OK && !is_equal)
        fprintf(stderr, "%s with the edit, %s without\n", with.digest, without.digest);
    return is_equal;
}

#endif
