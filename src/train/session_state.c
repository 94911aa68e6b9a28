/* SPDX-License-Identifier: Apache-2.0 */
/* A session's state: first values, checkpoints. */
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "ckpt/digest.h"
#include "ckpt/snapshot.h"
#include "train/agree.h"
#include "train/session.h"
#include "train/stored.h"

/* Replicas hold everything themselves; ranks that share state read a part each. */
static int n_readers(const struct ku_session *s)
{
    return s->t->program[KU_PROG_TRAIN]->share_host_state ? s->t->job->n : 1;
}

int ku_session_first_state(struct ku_session *s)
{
    KU_TRY(ku_trainer_init_state(s->t));
    if (s->model.path == NULL)
        return KUMI_OK;
    int status = KUMI_OK;
    if (n_readers(s) == 1 || s->t->job->rank == 0)
        status = ku_stored_weights(s->model.path, &s->model.gpt2, s->t->tensor, s->t->n_tensors);
    KU_TRY(ku_agree(s->t->job, status));
    return ku_trainer_derive(s->t);
}

/* The worst of everybody's status, on everybody, without ending the job: a full disk is no reason
 * to stop. */
static int worst(struct ku_session *s, int status)
{
    struct kumi_error mine = *ku_err_get();
    int64_t word = -(int64_t)status;
    KU_TRY(ku_agree_max(s->t->job, &word));
    if (word == 0)
        return KUMI_OK;
    if (status < 0)
        return ku_err_put(&mine);
    return KU_ERR((int)-word, "checkpoint: another rank could not write its part; see its message");
}

static int write_phases(struct ku_session *s, struct ku_ckpt_writer *w)
{
    struct ku_job *job = s->t->job;
    KU_TRY(worst(s, job->rank == 0 ? ku_ckpt_writer_begin(w) : KUMI_OK));
    KU_TRY(worst(s, ku_ckpt_writer_write(w, job->rank, job->n)));
    return worst(s, job->rank == 0 ? ku_ckpt_writer_commit(w) : KUMI_OK);
}

int ku_session_save(struct ku_session *s, const char *dir, int64_t step)
{
    struct ku_ckpt_writer *w = NULL;
    char *model = ku_model_print(&s->model);
    json_t *config = ku_config_dump(&s->cfg);
    struct ku_ckpt_desc d = {.dir = dir,
                             .step = step,
                             .update = *ku_trainer_update_count(s->t),
                             .tensor = s->t->tensor,
                             .n_tensors = s->t->n_tensors,
                             .model_config = model,
                             .numerics = s->numerics,
                             .config = config,
                             .isa = ku_cpu_isa_name(ku_cpu_isa()),
                             .data_fingerprint = s->data ? s->data->fingerprint : "",
                             .keep = (int)s->cfg.checkpoint_keep};
    int status = model && config ? ku_ckpt_writer_create(&d, &w) : KUMI_ENOMEM;
    status = worst(s, status);
    if (status == KUMI_OK) {
        status = write_phases(s, w);
        if (status < 0 && s->t->job->rank == 0)
            ku_ckpt_writer_abort(w);
    }
    ku_ckpt_writer_destroy(w);
    json_decref(config);
    ku_free(model);
    return status;
}

int ku_session_load(struct ku_session *s, const char *path, int64_t *step)
{
    struct ku_ckpt c;
    struct ku_job *job = s->t->job;
    int n = n_readers(s);
    int status = ku_ckpt_open(path, &c);
    KU_TRY(worst(s, status));
    status = ku_ckpt_read(&c, s->t->tensor, s->t->n_tensors, n == 1 ? 0 : job->rank, n);
    *step = c.step;
    *ku_trainer_update_count(s->t) = c.update;
    ku_ckpt_close(&c);
    KU_TRY(worst(s, status));
    return ku_trainer_derive(s->t);
}
