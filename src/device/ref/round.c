/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters without an f32 master copy: widened to f32 for the update, rounded when stored. */
#include "base/math/random.h"
#include "device/ref/ref.h"

/* widen: p, with the placement of `like` */
void ku_ref_widen(const struct ku_call *c, struct ku_ref_poll *poll)
{
    for (int64_t i = 0; i < ku_ref_count(&c->out[0]); i++)
        ku_ref_put(&c->out[0], i, ku_ref_get(&c->in[0], i));
    ku_ref_worked(poll, ku_ref_count(&c->out[0]));
}

/*
 * stochastic_round: rounds away from zero where word 2^-32 < the distance to the neighbour nearer
 * to zero, in units of the distance of both neighbours; `word` is the random number of the
 * element's flat index with padding.
 */
void ku_ref_stochastic_round(const struct ku_call *c, struct ku_ref_poll *poll)
{
    const struct ku_view *x = &c->in[0], *y = &c->out[0];
    const int64_t *control = c->in[1].data;
    for (int64_t i = 0; i < ku_ref_count(y); i++) {
        uint64_t index = (uint64_t)ku_ref_global_index(y, i, y->logical);
        uint32_t word = ku_random_u32((uint64_t)control[KU_CONTROL_SEED],
                                      (uint32_t)control[KU_CONTROL_STEP], c->stream, index);
        ku_round_random((uint16_t *)y->data + i, y->dtype, (const float *)x->data + i, &word, 1);
        ku_ref_worked(poll, 1);
    }
}
