/* SPDX-License-Identifier: Apache-2.0 */
#include "train/evaluate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "ckpt/snapshot.h"
#include "train/agree.h"
#include "train/session.h"
#include "train/stored.h"

struct evaluation {
    const char *run;
    struct kumi_eval_result *result;
    struct ku_job *job;
    struct ku_session s;
};

/* What rank 0 found, for all. */
struct found {
    char path[4096];
};

static int find(struct evaluation *e, int64_t before, const struct kumi_error *damage,
                struct found *found)
{
    struct ku_ckpt c;
    int status = KUMI_OK;
    memset(found, 0, sizeof *found);
    if (e->job->rank == 0) {
        status = ku_ckpt_find(e->run, before, &c);
        if (status == KUMI_ENOCKPT && damage->status < 0)
            status = ku_err_put(damage); /* says more than "none before" */
        if (status == KUMI_OK) {
            size_t bytes = strlen(c.path);
            if (bytes < sizeof found->path)
                memcpy(found->path, c.path, bytes + 1);
            else
                status = KU_ERR(KUMI_EINVAL, "eval: %.200s…: %zu bytes; give a shorter path",
                                c.path, bytes);
            ku_ckpt_close(&c);
        }
    }
    KU_TRY(ku_agree_local(e->job, status));
    return ku_agree_bytes(e->job, found, sizeof *found);
}

/*
 * The batch is this evaluation's own: each rank runs one micro-batch at a time, V = the rank count.
 * That moves no bit. A micro-batch holds the same samples whatever V and the global batch are, as
 * the global batch is cut into micro-batches in order; its size, on which kernels may depend, stays
 * that of the run; and the loss is an exact sum over tokens, rounded once. So any rank count will
 * do.
 */
static int configure(struct evaluation *e, const struct ku_ckpt *c)
{
    /* the training split is opened, not read: a batch larger than it is no error here */
    static const char *const set[] = {"data.last_batch=wrap"};
    struct ku_session *s = &e->s;
    json_t *numerics = json_object_get(c->manifest.root, "numerics");
    int64_t micro;
    KU_TRY(ku_stored_config(c, set, 1, &s->cfg));
    KU_TRY(ku_model_read(&s->cfg, &s->model));
    if (ku_json_int(json_object_get(numerics, "train.micro_batch"), &micro) < 0 || micro < 1 ||
        ku_json_int(json_object_get(numerics, "data.seq_len"), &s->seq_len) < 0 || s->seq_len < 1 ||
        (s->model.facts.max_positions && s->seq_len > s->model.facts.max_positions))
        return KU_ERR(
            KUMI_ENOCKPT,
            "checkpoint: %s/manifest.json: no train.micro_batch or data.seq_len among its "
            "numerics keys",
            c->path);
    s->batch = (struct ku_batch){.n_ranks = e->job->n,
                                 .global_batch = micro * e->job->n,
                                 .micro_batch = micro,
                                 .accumulation = 1,
                                 .virtual_shards = e->job->n,
                                 .k = 1};
    s->n_steps = s->decay_steps = 1; /* no step is taken */
    return KUMI_OK;
}

static int evaluate(struct evaluation *e, const struct ku_ckpt *c)
{
    KU_TRY(configure(e, c));
    KU_TRY(ku_session_open_data(&e->s, e->job));
    if (e->s.eval_samples == 0)
        return KU_ERR(KUMI_EINVAL,
                      "eval: %s: the run has no validation split: data.val is null and "
                      "data.val_fraction 0",
                      e->run);
    KU_TRY(ku_session_create_trainer(&e->s, e->job));
    KU_TRY(ku_session_load(&e->s, c->path, &e->result->step));
    int64_t n_skipped;
    KU_TRY(ku_session_evaluate(&e->s, &e->result->loss));
    KU_TRY(ku_session_count_skipped(&e->s, e->job, &n_skipped));
    e->result->tokens = e->s.t->eval_tokens;
    e->result->perplexity = exp(e->result->loss);
    e->result->is_by_samples = ku_session_is_by_samples(&e->s);
    ku_trainer_metrics(e->s.t, 1, &e->result->metrics);
    return KUMI_OK;
}

/* Until a checkpoint's every byte is right. */
static int evaluate_newest(struct evaluation *e)
{
    struct kumi_error damage = {0};
    struct found found;
    for (int64_t before = INT64_MAX;;) {
        struct ku_ckpt c;
        KU_TRY(find(e, before, &damage, &found));
        KU_TRY(ku_agree_local(e->job, ku_ckpt_open(found.path, &c)));
        before = c.step;
        int status = evaluate(e, &c);
        ku_ckpt_close(&c);
        if (status != KUMI_ENOCKPT || e->s.t == NULL)
            return status;
        if (e->job->rank == 0)
            KU_LOG(CKPT, WARN, "%s; taking the one before", ku_err_get()->text);
        if (damage.status == KUMI_OK)
            damage = *ku_err_get();
        ku_session_fini(&e->s);
    }
}

int ku_evaluate_run(struct ku_job *job, const char *run, struct kumi_eval_result *result)
{
    struct evaluation e = {.run = run, .result = result, .job = job};
    memset(result, 0, sizeof *result);
    result->rank = job->rank;
    int status = evaluate_newest(&e);
    if (status < 0) /* before the session goes, which the others would have to join in */
        status = ku_job_fail(job);
    struct kumi_error error = *ku_err_get();
    ku_session_fini(&e.s);
    return status < 0 ? ku_err_put(&error) : KUMI_OK;
}

int kumi_eval(const char *run, struct kumi_eval_result *result)
{
    struct ku_job *job = NULL;
    const char *threads = getenv("KUMI_THREADS");
    struct ku_job_opts o = {.threads = threads ? (int)strtol(threads, NULL, 10) : 1,
                            .timeout_ns = 60LL * 1000000000};
    memset(result, 0, sizeof *result);
    int status = ku_job_join(&o, &job);
    if (status < 0) { /* a rank that joined may have met its error, and printed it, already */
        result->is_reported = ku_err_get()->scope == KUMI_SCOPE_JOB;
        return status;
    }
    status = ku_evaluate_run(job, run, result);
    result->is_reported = status < 0;
    struct kumi_error error = *ku_err_get();
    int left = ku_job_leave(job);
    return status < 0 ? ku_err_put(&error) : left;
}
