/* SPDX-License-Identifier: Apache-2.0 */
/* A session's state: initial values and checkpoints. */
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "ckpt/digest.h"
#include "ckpt/snapshot/snapshot.h"
#include "data/tokenizer/tokenizer.h"
#include "comm/consensus.h"
#include "batch/text_source.h"
#include "ckpt/snapshot/provenance.h"
#include "train/session.h"
#include "model/pretrained.h"

int ku_session_first_state(struct ku_session *s)
{
    KU_TRY(ku_trainer_init_state(s->t));
    if (s->model.path == NULL)
        return KUMI_OK;
    int n = ku_trainer_n_readers(s->t), rank = n > 1 ? s->t->job->local_rank : 0;
    KU_TRY(ku_agree(s->t->job, KUMI_OK)); /* a rank writes into the memory of all */
    int status =
        ku_pretrained_weights(s->model.path, &s->model, s->t->tensor, s->t->n_tensors, rank, n);
    KU_TRY(ku_agree(s->t->job, status));
    return ku_trainer_derive(s->t);
}

/* Read a tokenizer's files. "byte", "word" and NAME.vocab have none. */
static int read_tokenizer(struct ku_companions *c, const char *where)
{
    const char *end = strrchr(where, '.');
    struct stat info;
    if (strcmp(where, "byte") == 0 || strcmp(where, "word") == 0 ||
        (end && strcmp(end, ".vocab") == 0) || ku_os_stat(where, &info) < 0)
        return KUMI_OK;
    return S_ISDIR(info.st_mode) ? ku_companions_read(c, where, KU_COMPANION_TOKENIZER)
                                 : ku_companions_read_tokenizer(c, where);
}

/*
 * Whether the files beside the model in the resumed checkpoint are intact. Damage is logged.
 */
static bool is_whole(const char *stored)
{
    struct ku_ckpt c;
    char *path = ku_asprintf("%.*s", (int)(strlen(stored) - strlen("/model")), stored);
    int status = path ? ku_ckpt_open(path, &c) : KUMI_ENOMEM;
    if (status == KUMI_OK) {
        status = ku_ckpt_check_companions(&c);
        ku_ckpt_close(&c);
    }
    if (status < 0)
        KU_LOG(CKPT, WARN, "%s; later checkpoints do not contain it", ku_err_get()->text);
    ku_free(path);
    return status == KUMI_OK;
}

static int read_companions(struct ku_session *s)
{
    const struct ku_config *cfg = &s->cfg;
    struct ku_companions *c = &s->companions;
    const char *const from[] = {s->stored && is_whole(s->stored) ? s->stored : NULL, s->model.path};
    const int is_byte = strcmp(cfg->data_tokenizer, "byte") == 0;
    const int is_text = ku_text_is_kind(cfg) && ku_text_is_tokenized(cfg);
    if (s->source->ops->tokenizer(cfg))
        KU_TRY(read_tokenizer(c, s->source->ops->tokenizer(cfg)));
    int has_tokenizer = c->n > 0;
    for (int i = 0; i < 2; i++) {
        if (from[i] == NULL)
            continue;
        if (is_byte && !is_text && !has_tokenizer) { /* tokenizer of the token files */
            KU_TRY(ku_companions_read(c, from[i], KU_COMPANION_TOKENIZER));
            has_tokenizer = ku_companions_has_tokenizer(from[i]);
        }
        KU_TRY(ku_companions_read(c, from[i], KU_COMPANION_MODEL));
    }
    if (is_byte && is_text && from[1] && s->model.properties.vocab_size != 256 &&
        ku_companions_has_tokenizer(from[1]))
        KU_LOG(TRAIN, WARN,
               "data.tokenizer: \"byte\": text is read as bytes, although %s has a tokenizer; set "
               "data.tokenizer to that directory to train on its tokens",
               from[1]);
    return KUMI_OK;
}

/* Id of the end-of-text token; -1: none below the model's vocabulary. */
static int find_end_of_text(const struct ku_session *s, int64_t *end)
{
    const char *where = s->cfg.data_tokenizer;
    struct ku_tokenizer *t;
    uint32_t id;
    *end = -1;
    if (!s->model.properties.is_causal || json_object_get(s->model.rest, "eos_token_id"))
        return KUMI_OK;
    if (strcmp(where, "byte") == 0 && s->companions.n > 0) /* data are token files */
        where = s->stored && ku_companions_has_tokenizer(s->stored) ? s->stored : s->model.path;
    if (where == NULL || strcmp(where, "byte") == 0 ||
        (where == s->model.path && !ku_companions_has_tokenizer(where)))
        return KUMI_OK;
    KU_TRY(ku_tokenizer_open(where, &t));
    if (ku_tokenizer_end_of_text(t, &id) && id < s->model.properties.vocab_size)
        *end = id;
    ku_tokenizer_destroy(t);
    return KUMI_OK;
}

int ku_session_take_companions(struct ku_session *s, struct ku_job *job)
{
    int64_t end = -1;
    int status = KUMI_OK;
    if (job->rank == 0)
        status = read_companions(s);
    if (job->rank == 0 && status == KUMI_OK)
        status = find_end_of_text(s, &end);
    KU_TRY(ku_agree_local(job, status));
    KU_TRY(ku_agree_bytes(job, &end, sizeof end));
    if (end >= 0 && json_object_set_new(s->model.rest, "eos_token_id", json_integer(end)) < 0)
        return KUMI_ENOMEM;
    return KUMI_OK;
}

static void forget(struct ku_session *s)
{
    ku_free(s->saved.model);
    json_decref(s->saved.config);
    json_decref(s->saved.libraries);
    json_decref(s->saved.state);
    memset(&s->saved, 0, sizeof s->saved);
}

/* Describe the state at a step. s->saved owns what d points to. */
static int describe(struct ku_session *s, const char *dir, int64_t step, struct ku_ckpt_desc *d)
{
    s->saved = (struct ku_saved){ku_model_print(&s->model), ku_config_dump(&s->cfg),
                                 ku_origin_libraries(), ku_trainer_scaler_json(s->t)};
    *d = (struct ku_ckpt_desc){.dir = dir,
                               .step = step,
                               .model_config = s->saved.model,
                               .numerics = s->numerics,
                               .config = s->saved.config,
                               .libraries = s->saved.libraries,
                               .state = s->saved.state,
                               .data_fingerprint =
                                   s->source->data ? s->source->data->fingerprint : "",
                               .companions = &s->companions,
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

/* The description stays while a checkpoint is pending. */
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
