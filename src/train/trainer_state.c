/* SPDX-License-Identifier: Apache-2.0 */
/* A trainer's state in checkpoints: every rank writes and reads its part. */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/tick.h"
#include "comm/consensus.h"
#include "ir/state.h"
#include "model/pretrained.h"
#include "tensor/dtype.h"
#include "train/trainer.h"

int ku_trainer_n_readers(const struct ku_trainer *t)
{
    const struct ku_program *p = t->program[KU_PROG_TRAIN];
    return ku_state_is_addressed(&p->mesh) ? t->job->local_n : 1;
}

static int write_phases(struct ku_job *job, struct ku_ckpt_writer *w)
{
    KU_TRY(ku_agree_worst(job, job->rank == 0 ? ku_ckpt_writer_begin(w) : KUMI_OK));
    KU_TRY(ku_trainer_exchange(job, w));
    KU_TRY(ku_agree_worst(job, ku_ckpt_writer_write(w, job->rank, job->n)));
    KU_TRY(ku_trainer_add_sums(job, w));
    return ku_agree_worst(job, job->rank == 0 ? ku_ckpt_writer_commit(w) : KUMI_OK);
}

struct ku_ckpt_desc ku_trainer_desc(const struct ku_trainer *t, const struct ku_ckpt_desc *desc)
{
    struct ku_ckpt_desc d = *desc;
    d.update = ku_trainer_update_count(t);
    d.isa = ku_cpu_isa_name(t->isa);
    d.tensor = t->tensor;
    d.n_tensors = t->n_tensors;
    return d;
}

int ku_trainer_save(struct ku_trainer *t, const struct ku_ckpt_desc *desc, int status)
{
    struct ku_ckpt_writer *w = NULL;
    struct ku_ckpt_desc d = ku_trainer_desc(t, desc);
    if (status == KUMI_OK)
        status = ku_ckpt_writer_create(&d, &w);
    if (status == KUMI_OK)
        status = ku_trainer_spread_writer(t, w);
    status = ku_agree_worst(t->job, status);
    if (status == KUMI_OK) {
        status = write_phases(t->job, w);
        if (status < 0 && t->job->rank == 0)
            ku_ckpt_writer_abort(w);
    }
    ku_ckpt_writer_destroy(w);
    return status;
}

int ku_trainer_load(struct ku_trainer *t, const char *path, int64_t *step)
{
    struct ku_ckpt c;
    int n = ku_trainer_n_readers(t);
    const int opened = ku_ckpt_open(path, &c);
    int status = ku_agree_worst(t->job, opened);
    if (status < 0) {
        if (opened == KUMI_OK)
            ku_ckpt_close(&c);
        return status;
    }
    status = (t->is_training ? ku_ckpt_read : ku_ckpt_read_only)(
        &c, t->tensor, t->n_tensors, n == 1 ? 0 : t->job->local_rank, n);
    if (t->is_training && status == KUMI_OK)
        status = ku_trainer_write_scalars(t, c.update, json_object_get(c.manifest.root, "state"));
    const int64_t loaded = c.step;
    ku_ckpt_close(&c);
    KU_TRY(ku_agree_worst(t->job, status));
    KU_TRY(ku_trainer_derive(t));
    *step = loaded;
    return KUMI_OK;
}

static const struct ku_ckpt_tensor *average_of(const struct ku_trainer *t, const char *name)
{
    const size_t bytes = strlen(name);
    for (int i = 0; i < t->n_tensors; i++)
        if (strncmp(t->tensor[i].name, name, bytes) == 0 &&
            strcmp(t->tensor[i].name + bytes, ".ema") == 0)
            return &t->tensor[i];
    return NULL;
}

/* The tensors may be partitioned differently; padding is zero in both. */
static int copy_tensor(const struct ku_ckpt_tensor *to, const struct ku_ckpt_tensor *from)
{
    enum { PIECE = 1 << 17 };
    void *piece = ku_malloc(PIECE * kumi_dtype_bytes(from->dtype));
    int64_t count = ku_ckpt_tensor_count(from);
    int status = piece ? KUMI_OK : KUMI_ENOMEM;
    for (int64_t at = 0, n; at < count && status == KUMI_OK; at += n) {
        n = count - at < PIECE ? count - at : PIECE;
        ku_tick();
        status = ku_ckpt_tensor_gather(from, at, n, piece);
        if (status == KUMI_OK)
            status = ku_ckpt_tensor_scatter(to, at, n, piece, from->dtype, 0);
    }
    ku_free(piece);
    return status;
}

/* Only trained parameters have averages; other parameters and running statistics keep their values.
 */
static const struct ku_ckpt_tensor *average_for(const struct ku_trainer *t, int i)
{
    const bool is_model = t->tensor[i].group == KU_CKPT_MODEL;
    return is_model ? average_of(t, t->tensor[i].name) : NULL;
}

static int check_averages(const struct ku_trainer *t)
{
    const bool is_updated = ku_trainer_update_count(t) > 0;
    for (int i = 0; i < t->n_tensors && is_updated; i++)
        if (average_for(t, i))
            return KUMI_OK;
    return KU_ERR(KUMI_EINVAL, "ema: %s; train with train.ema above 0",
                  is_updated ? "this run keeps no averages of its weights"
                             : "no update has been made, so there are no averages yet");
}

static int take_averages(struct ku_trainer *t)
{
    for (int i = 0; i < t->n_tensors; i++) {
        const struct ku_ckpt_tensor *to = &t->tensor[i], *from = average_for(t, i);
        if (from)
            KU_TRY(from->owner.n_owners ? ku_trainer_copy_spread(t, to, from)
                                        : copy_tensor(to, from));
    }
    return KUMI_OK;
}

int ku_trainer_take_ema(struct ku_trainer *t)
{
    const int is_reader = ku_trainer_n_readers(t) == 1 || t->job->local_rank == 0 ||
                          ku_trainer_is_spread(t->program[KU_PROG_TRAIN], t->job);
    KU_TRY(ku_agree_worst(t->job, check_averages(t))); /* other ranks may still read it */
    KU_TRY(ku_agree(t->job, is_reader ? take_averages(t) : KUMI_OK));
    return ku_trainer_derive(t);
}

int ku_trainer_load_ema(struct ku_trainer *t, const char *path)
{
    int n = ku_trainer_n_readers(t);
    int status =
        ku_pretrained_averages(path, t->tensor, t->n_tensors, n == 1 ? 0 : t->job->local_rank, n);
    KU_TRY(ku_agree_worst(t->job, status));
    return ku_trainer_derive(t);
}

int ku_trainer_previous(struct ku_job *job, const char *dir, char path[KU_CKPT_PATH_BYTES])
{
    struct ku_ckpt c;
    int status = KUMI_OK;
    if (job->rank == 0) {
        int64_t before = INT64_MAX;
        KU_LOG(CKPT, WARN, "%s; taking the previous checkpoint", ku_err_get()->text);
        if (ku_ckpt_open(path, &c) == KUMI_OK) {
            before = c.step;
            ku_ckpt_close(&c);
        }
        status = ku_ckpt_find(dir, before, &c);
        if (status == KUMI_OK) {
            snprintf(path, KU_CKPT_PATH_BYTES, "%s", c.path);
            ku_ckpt_close(&c);
        } else if (status == KUMI_ENOCKPT) {
            status =
                KU_ERR(KUMI_ENOCKPT,
                       "resume: %s: no checkpoint is usable (the warnings above say why)", dir);
        }
    }
    KU_TRY(ku_agree_local(job, status));
    return ku_agree_bytes(job, path, KU_CKPT_PATH_BYTES);
}
