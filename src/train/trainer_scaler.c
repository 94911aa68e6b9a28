/* SPDX-License-Identifier: Apache-2.0 */
/* A trainer's loss scaler: read from the state, and saved in checkpoints. */
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "train/trainer.h"

void ku_trainer_note_scaler(struct ku_trainer *t)
{
    const struct ku_program *p = t->program[KU_PROG_TRAIN];
    for (uint32_t at = 0; at < p->n_instrs; at++) {
        const struct ku_instr *i = &p->instr[at];
        if (i->kind != KU_COMPUTE || i->op != KU_OP_loss_scaler)
            continue;
        t->scaler.rule = p->attr[i->attr];
        for (uint32_t s = 0; s < p->n_states; s++)
            if (p->state[s].kind == KU_T_COUNTER && p->state[s].dtype == KUMI_F64)
                t->scaler.words = ku_memory_state(t->memory, &p->state[s]);
    }
}

double ku_trainer_loss_scale(const struct ku_trainer *t)
{
    const struct ku_trainer_scaler *s = &t->scaler;
    return s->words ? ku_scaler_state(&s->rule, s->words).scale : (double)NAN;
}

int64_t ku_trainer_n_skipped(const struct ku_trainer *t)
{
    return t->scaler.words ? (int64_t)t->scaler.words[KU_SCALER_SKIPPED] : 0;
}

int ku_trainer_check_scale(const struct ku_trainer *t)
{
    const struct ku_trainer_scaler *s = &t->scaler;
    if (s->words == NULL || s->words[KU_SCALER_IS_SPENT] == 0)
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
    for (int i = 0; i < N_NAMES && t->scaler.words; i++)
        json_object_set_new(o, names[i], json_real(t->scaler.words[i]));
    return o;
}

void ku_trainer_scaler_load(struct ku_trainer *t, const json_t *state)
{
    if (t->scaler.words == NULL)
        return;
    memset(t->scaler.words, 0, KU_SCALER_WORDS * sizeof *t->scaler.words);
    for (int i = 0; i < N_NAMES; i++)
        t->scaler.words[i] = json_number_value(json_object_get(state, names[i]));
}
