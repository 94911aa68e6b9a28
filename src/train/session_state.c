/* SPDX-License-Identifier: Apache-2.0 */
/* A session's state: first values, checkpoints. */
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "ckpt/digest.h"
#include "ckpt/snapshot.h"
#include "train/agree.h"
#include "train/origin.h"
#include "train/session.h"
#include "train/stored.h"

int ku_session_first_state(struct ku_session *s)
{
    KU_TRY(ku_trainer_init_state(s->t));
    if (s->model.path == NULL)
        return KUMI_OK;
    int status = KUMI_OK;
    if (ku_trainer_n_readers(s->t) == 1 || s->t->job->rank == 0)
        status = ku_stored_weights(s->model.path, &s->model.gpt2, s->t->tensor, s->t->n_tensors);
    KU_TRY(ku_agree(s->t->job, status));
    return ku_trainer_derive(s->t);
}

int ku_session_save(struct ku_session *s, const char *dir, int64_t step)
{
    char *model = ku_model_print(&s->model);
    json_t *config = ku_config_dump(&s->cfg), *libraries = ku_origin_libraries();
    struct ku_ckpt_desc d = {.dir = dir,
                             .step = step,
                             .model_config = model,
                             .numerics = s->numerics,
                             .config = config,
                             .libraries = libraries,
                             .data_fingerprint = s->data ? s->data->fingerprint : "",
                             .keep = (int)s->cfg.checkpoint_keep};
    int status = ku_trainer_save(s->t, &d, model && config && libraries ? KUMI_OK : KUMI_ENOMEM);
    json_decref(config);
    json_decref(libraries);
    ku_free(model);
    return status;
}

int ku_session_load(struct ku_session *s, const char *path, int64_t *step)
{
    return ku_trainer_load(s->t, path, step);
}
