/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the first parameter and rank with a non-finite gradient:
 *
 *   1. save the buffers that a step changes even without an update (running statistics, loss scale)
 *   2. mark each buffer that is a gradient, or a part of one, with its parameter's index
 *   3. run the step again; after each instruction check the results that are marked
 *   4. restore the saved buffers
 *   5. take the minimum of (parameter, rank) over all ranks
 */
#include "run/nonfinite.h"

#include <math.h>

#include "base/err.h"
#include "base/math/exact.h"
#include "base/mem.h"
#include "comm/consensus.h"

/* Maps each buffer to the gradient that it is, or is a part of: its parameter's index in stats. */
struct search {
    const struct ku_program *program;
    int *param_of;     /* [n_buffers]; -1: no gradient */
    int loss, n_found; /* loss: index after the last parameter; n_found: first non-finite index */
};

/*
 * Goes backwards: the operand of sumsq is a parameter's gradient, and the operands of an add that
 * makes a gradient are parts of it.
 */
static void name_buffers(struct search *s)
{
    const struct ku_program *p = s->program;
    for (uint32_t b = 0; b < p->n_buffers; b++)
        s->param_of[b] = -1;
    for (uint32_t at = p->n_instrs; at-- > 0;) {
        const struct ku_instr *i = &p->instr[at];
        const struct ku_operand *o = &p->operand[i->operand];
        for (uint32_t k = i->n_in; i->kind == KU_START && k < i->n_in + i->n_parts; k++)
            if (o[k].stats_word)
                s->param_of[o[k].buffer] = s->param_of[o[k].addend] =
                    (int)o[k].stats_word - KU_EXACT_WORDS;
            else if (o[k].out)
                s->param_of[o[k].buffer] = s->param_of[o[k].out];
        if (i->kind != KU_COMPUTE || i->phase != KU_PH_O)
            continue;
        if (i->op == KU_OP_sumsq)
            s->param_of[o[0].buffer] = (int)p->attr[i->attr].index;
        else if (i->op == KU_OP_add)
            for (int k = 0; k < i->n_in; k++)
                s->param_of[o[k].buffer] = s->param_of[o[i->n_in].buffer];
    }
}

static bool is_finite(const struct ku_view *v)
{
    int64_t count = ku_shape_count(&v->shape);
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(ku_load_f64(v->data, v->dtype, i)))
            return 0;
    return 1;
}

static void look(void *ctx, const struct ku_instr *i, const struct ku_view *out)
{
    struct search *s = ctx;
    const struct ku_operand *o = &s->program->operand[i->operand + i->n_in];
    if (i->phase == KU_PH_O) /* here the parts of the ranks are already summed */
        return;
    for (int k = 0; k < i->n_out; k++) {
        const bool is_loss = i->op == KU_OP_softmax_xent || i->op == KU_OP_xent_finish;
        int at = is_loss ? s->loss : s->param_of[o[k].buffer];
        if (at >= 0 && at < s->n_found && !is_finite(&out[k]))
            s->n_found = at;
    }
}

/*
 * A step changes buffers (running statistics) and the loss scale even if it applies no update, so
 * these are saved. Buffers that the host's ranks share are saved by local rank 0.
 */
static bool is_kept(const struct ku_trainer *t, const struct ku_program_state *x)
{
    return (x->kind == KU_T_BUFFER || x->kind == KU_T_COUNTER) &&
           (x->arena != KU_AR_HOST || t->job->local_rank == 0);
}

/* Copies the saved buffers out of memory, or back into it. */
static int move_kept(const struct ku_trainer *t, int is_write, unsigned char *at)
{
    const struct ku_program *p = t->program[KU_PROG_TRAIN];
    for (uint32_t s = 0; s < p->n_states; s++)
        if (is_kept(t, &p->state[s])) {
            const struct ku_range r = ku_memory_state(t->memory, &p->state[s]);
            KU_TRY(is_write ? ku_range_write(r, at) : ku_range_read(r, at));
            at += p->state[s].bytes;
        }
    return KUMI_OK;
}

static int keep(const struct ku_trainer *t, unsigned char **kept)
{
    const struct ku_program *p = t->program[KU_PROG_TRAIN];
    size_t bytes = 0;
    for (uint32_t s = 0; s < p->n_states; s++)
        bytes += is_kept(t, &p->state[s]) ? p->state[s].bytes : 0;
    *kept = ku_malloc(bytes + 1);
    return *kept ? move_kept(t, 0, *kept) : KUMI_ENOMEM;
}

int ku_nonfinite_find(struct ku_trainer *t, int64_t step, struct ku_nonfinite *out)
{
    const struct ku_program *p = t->program[KU_PROG_TRAIN];
    struct search s = {.program = p, .loss = t->n_params, .n_found = t->n_params + 1};
    unsigned char *kept = NULL;
    s.param_of = ku_calloc(p->n_buffers, sizeof *s.param_of);
    int status = s.param_of ? keep(t, &kept) : KUMI_ENOMEM;
    KU_TRY_OUT(ku_agree_local(t->job, status));
    name_buffers(&s);
    status = ku_trainer_step_seen(t, step, look, &s);
out:
    if (kept && status == KUMI_OK)
        status = move_kept(t, 1, kept);
    ku_free(kept);
    ku_free(s.param_of);
    KU_TRY(status);
    /* Minimum of (parameter, rank), computed as a maximum. */
    int64_t key = -((int64_t)s.n_found * t->job->n + t->job->rank);
    KU_TRY(ku_agree_max(t->job, &key));
    int64_t found = -key / t->job->n;
    out->rank = found > s.loss ? -1 : (int)(-key % t->job->n);
    if (found >= s.loss)
        return ku_trainer_bad_gradient(t, &out->tensor);
    out->tensor = t->param[found];
    return KUMI_OK;
}
