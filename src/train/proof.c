/* SPDX-License-Identifier: Apache-2.0 */
#include "train/proof.h"

#include "base/err.h"
#include "base/mem.h"
#include "pass/precision_rules.h"

int ku_trainer_prove(struct ku_graph *model, const struct ku_compile_opts *o,
                     const struct ku_target *target, const struct ku_program *program,
                     struct ku_check_report *report)
{
    KU_TRY(ku_compile_graph(model, o, target, "precision"));
    signed char *wire = ku_calloc((size_t)model->n_tensors + 1, 1);
    if (wire == NULL)
        return KUMI_ENOMEM;
    for (ku_id t = 1; t < model->n_tensors; t++)
        wire[t] = (signed char)ku_precision_wire(model, o, t);
    const struct ku_check_opts check = {.is_training = o->is_training,
                                        .compute = o->compute,
                                        .grads = o->grads,
                                        .freeze = o->freeze,
                                        .wire = wire};
    const int status = ku_check_program(model, &check, program, report);
    ku_free(wire);
    return status;
}
