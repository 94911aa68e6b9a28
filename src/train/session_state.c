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
    int n = ku_trainer_n_readers(s->t), rank = n > 1 ? s->t->job->rank : 0;
    int status =
        ku_stored_weights(s->model.path, &s->model, s->t->tensor, s->t->n_tensors, rank, n);
    KU_TRY(ku_agree(s->t->job, status));
    return ku_trainer_derive(s->t);
}

static void forget(struct ku_session *s)
{
    ku_free(s->saved.model);
    json_decref(s->saved.config);
    json_decref(s->saved.libraries);
    json_decref(s->saved.state);
    memset(&s->saved, 0, sizeof s->saved);
}

/* The state at a step, described; `saved` holds what desc points to. */
static int describe(struct ku_session *s, const char *dir, int64_t step, struct ku_ckpt_desc *d)
{
    s->saved = (struct ku_stored){ku_model_print(&s->model), ku_config_dump(&s->cfg),
                                  ku_origin_libraries(), ku_trainer_scaler_json(s->t)};
    *d = (struct ku_ckpt_desc){.dir = dir,
                               .step = step,
                               .model_config = s->saved.model,
                               .numerics = s->numerics,
                               .config = s->saved.config,
                               .libraries = s->saved.libraries,
                               .state = s->saved.state,
                               .data_fingerprint = s->data ? s->data->fingerprint : "",
                               .keep = (int)s->cfg.checkpoint_keep,
                               .verified = &s->verified};
    return s->saved.model && s->saved.config && s->saved.libraries && s->saved.state
               ? KUMI_OK
               : KU_ERR(KUMI_ENOMEM, "checkpoint: no memory");
}

int ku_session_save(struct ku_session *s, const char *dir, int64_t step)
{
    struct ku_ckpt_desc d;
    int status = describe(s, dir, step, &d);
    status = ku_trainer_save(s->t, &d, status);
    forget(s);
    return status;
}

/* As long as a checkpoint is pending, its description stays. */
static int forget_if_over(struct ku_session *s, int status)
{
    if (!ku_saving_is_pending(s->saving))
        forget(s);
    return status;
}

int ku_session_open_saving(struct ku_session *s)
{
    return s->cfg.checkpoint_async ? ku_saving_create(s->t, &s->saving) : KUMI_OK;
}

int ku_session_save_start(struct ku_session *s, const char *dir, int64_t step)
{
    struct ku_ckpt_desc d;
    if (!s->cfg.checkpoint_async)
        return ku_session_save(s, dir, step);
    KU_ASSERT(s->saving != NULL);
    int status = describe(s, dir, step, &d);
    return forget_if_over(s, ku_saving_start(s->saving, &d, status));
}

int ku_session_save_poll(struct ku_session *s)
{
    return s->saving ? forget_if_over(s, ku_saving_poll(s->saving)) : KUMI_OK;
}

int ku_session_save_wait(struct ku_session *s)
{
    return s->saving ? forget_if_over(s, ku_saving_wait(s->saving)) : KUMI_OK;
}

void ku_session_save_end(struct ku_session *s)
{
    ku_saving_destroy(s->saving);
    s->saving = NULL;
    ku_ckpt_verified_fini(&s->verified);
    forget(s);
}

void ku_session_add_verified(struct ku_session *s, const char *path)
{
    struct ku_ckpt c;
    if (ku_ckpt_open(path, &c) < 0)
        return;
    ku_ckpt_verified_add(&s->verified, &c);
    ku_ckpt_close(&c);
}

int ku_session_load(struct ku_session *s, const char *path, int64_t *step)
{
    return ku_trainer_load(s->t, path, step);
}
