/* SPDX-License-Identifier: Apache-2.0 */
/* Scalars of a trainer's state: the update count and the loss scaler; read and saved. */
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "train/trainer.h"

void ku_trainer_note_scalars(struct ku_trainer *t)
{
    const struct ku_program *p = t->program[KU_PROG_TRAIN];
    const struct ku_instr *scaler = NULL;
    for (uint32_t at = 0; at < p->n_instrs && scaler == NULL; at++)
        if (p->instr[at].kind == KU_COMPUTE && p->instr[at].op == KU_OP_loss_scaler)
            scaler = &p->instr[at];
    if (scaler)
        t->scaler.rule = p->attr[scaler->attr];
    for (uint32_t s = 0; s < p->n_states; s++) {
        const struct ku_program_state *x = &p->state[s];
        if (x->kind == KU_T_COUNTER && x->dtype == KUMI_I64) {
            t->update_count = ku_memory_state(t->memory, x);
            t->update_count.bytes = sizeof t->n_updates;
        } else if (x->kind == KU_T_COUNTER && x->dtype == KUMI_F64 && scaler) {
            t->scaler.state = ku_memory_state(t->memory, x);
            t->scaler.state.bytes = sizeof t->scaler.words;
        }
    }
}

int ku_trainer_read_scalars(struct ku_trainer *t)
{
    KU_TRY(t->update_count.bytes ? ku_range_read(t->update_count, &t->n_updates) : KUMI_OK);
    return t->scaler.state.bytes ? ku_range_read(t->scaler.state, t->scaler.words) : KUMI_OK;
}

int64_t ku_trainer_update_count(const struct ku_trainer *t)
{
    return t->n_updates;
}

static bool has_scaler(const struct ku_trainer *t)
{
    return t->scaler.state.bytes > 0;
}

double ku_trainer_loss_scale(const struct ku_trainer *t)
{
    const struct ku_trainer_scaler *s = &t->scaler;
    return has_scaler(t) ? ku_scaler_state(&s->rule, s->words).scale : (double)NAN;
}

int64_t ku_trainer_n_skipped(const struct ku_trainer *t)
{
    return (int64_t)t->scaler.words[KU_SCALER_SKIPPED];
}

int ku_trainer_check_scale(const struct ku_trainer *t)
{
    const struct ku_trainer_scaler *s = &t->scaler;
    if (s->words[KU_SCALER_IS_SPENT] == 0)
        return KUMI_OK;
    const struct ku_loss_scale_rule rule = ku_scaler_rule(&s->rule);
    struct ku_loss_scale now = ku_scaler_state(&s->rule, s->words);
    int status = ku_loss_scale_next(&rule, &now, 1, &now);
    KU_ASSERT(status < 0);
    return status;
}

/* Names of the members in a manifest. */
static const char *const names[] = {[KU_SCALER_SCALE] = "loss_scale",
                                    [KU_SCALER_STEP] = "scaler_steps",
                                    [KU_SCALER_LAST_OVERFLOW] = "last_overflow",
                                    [KU_SCALER_LEFT] = "hysteresis_left",
                                    [KU_SCALER_GOOD] = "good_steps",
                                    [KU_SCALER_SKIPPED] = "skipped_steps",
                                    [KU_SCALER_IS_SPENT] = "is_spent"};
enum { N_NAMES = sizeof names / sizeof names[0] };

json_t *ku_trainer_scaler_json(const struct ku_trainer *t)
{
    json_t *o = json_object();
    for (int i = 0; i < N_NAMES && has_scaler(t); i++)
        json_object_set_new(o, names[i], json_real(t->scaler.words[i]));
    return o;
}

int ku_trainer_write_scalars(struct ku_trainer *t, int64_t n_updates, const json_t *scaler)
{
    t->n_updates = n_updates;
    KU_TRY(ku_range_write(t->update_count, &t->n_updates));
    if (!has_scaler(t))
        return KUMI_OK;
    memset(t->scaler.words, 0, sizeof t->scaler.words);
    for (int i = 0; i < N_NAMES; i++)
        t->scaler.words[i] = json_number_value(json_object_get(scaler, names[i]));
    return ku_range_write(t->scaler.state, t->scaler.words);
}
