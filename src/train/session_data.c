/* SPDX-License-Identifier: Apache-2.0 */
/* A session's data: open, sample, and fill the ports of a step. */
#include <math.h>
#include <stdio.h>

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "comm/consensus.h"
#include "train/dataset.h"
#include "train/session.h"

static int tick(void *job, const char *what, uint64_t done, uint64_t total)
{
    (void)what, (void)done, (void)total;
    if (job)
        ku_job_tick(job);
    return KUMI_OK;
}

/*
 * Evaluation uses the first samples of the validation split: eval_tokens, at least one sample, at
 * most all.
 */
static int64_t eval_samples(const struct ku_session *s)
{
    int64_t all = s->data->n_samples[KU_SPLIT_VAL], n = s->cfg.train_eval_tokens / s->seq_len;
    return n > all ? all : n < 1 ? all > 0 : n;
}

static int refuse_vocabularies(const struct ku_session *s)
{
    char key[64];
    snprintf(key, sizeof key, "model.%s", s->model.facts.one_vocab_key);
    return ku_config_refuse(
        &s->cfg, key, json_true(),
        "source and target need one vocabulary: leave data.target_tokenizer out");
}

/*
 * Sentence pairs: the buckets define the batch shapes, and the vocabularies define the model's
 * sizes.
 */
static int open_pairs(struct ku_session *s, const struct ku_progress *progress)
{
    KU_TRY(ku_pairs_open(&s->cfg, &s->batch, progress, &s->pairs));
    s->data = s->pairs.data;
    if (s->model.facts.one_vocab_key && s->pairs.src != s->pairs.tgt)
        return refuse_vocabularies(s);
    s->sampler.steps_per_epoch = ku_buckets_steps_per_epoch(s->pairs.buckets[KU_SPLIT_TRAIN]);
    s->eval_samples = s->data->n_samples[KU_SPLIT_VAL];
    return ku_model_fit(&s->model, ku_vocab_count(s->pairs.src), ku_vocab_count(s->pairs.tgt));
}

static int open_samples(struct ku_session *s, const struct ku_progress *progress,
                        enum ku_last_batch last)
{
    const struct ku_config *c = &s->cfg;
    KU_TRY(ku_dataset_open(c, &s->model, s->seq_len, progress, &s->data));
    s->eval_samples = eval_samples(s);
    return ku_sampler_init(&s->sampler, s->data->n_samples[KU_SPLIT_TRAIN], s->batch.global_batch,
                           last, c->data_shuffle, (uint64_t)c->train_seed);
}

int ku_session_open_data(struct ku_session *s, struct ku_job *job)
{
    const struct ku_config *c = &s->cfg;
    enum ku_last_batch last;
    const struct ku_progress progress = {tick, job};
    KU_TRY(ku_last_batch_parse(c->data_last_batch, &last));
    if (s->model.facts.is_pairs)
        KU_TRY(open_pairs(s, &progress));
    else
        KU_TRY(open_samples(s, &progress, last));
    if (c->train_epochs != KU_NULL)
        KU_TRY(ku_sampler_steps(&s->sampler, c->train_epochs, &s->n_steps));
    if (s->cfg.schedule_decay_steps.n < 0 && s->decay_steps == 0) {
        s->decay_steps = ku_session_schedule_length(s);
        json_object_set_new(s->numerics, "schedule.decay_steps", json_integer(s->decay_steps));
    }
    return KUMI_OK;
}

static int tick_loader(void *job)
{
    return tick(job, NULL, 0, 0);
}

/* The loader reads the rows of this rank's micro-batches in execution order. */
static int create_loader(struct ku_session *s, int is_eval, int64_t first_step)
{
    int n_micro = ku_trainer_n_micro(s->t);
    struct ku_loader_range *range = ku_calloc((size_t)n_micro, sizeof *range);
    if (range == NULL)
        return KUMI_ENOMEM;
    for (int u = 0; u < n_micro; u++)
        range[u].n = ku_trainer_rows(s->t, u, &range[u].first);
    struct ku_loader_opts o = {.data = s->data,
                               .split = is_eval ? KU_SPLIT_VAL : KU_SPLIT_TRAIN,
                               .sampler = is_eval ? NULL : &s->sampler,
                               .global_batch = s->batch.global_batch,
                               .n_samples = s->eval_samples,
                               .range = range,
                               .n_ranges = n_micro,
                               .n_workers = (int)s->cfg.data_workers,
                               .prefetch = (int)s->cfg.data_prefetch,
                               .tick = tick_loader,
                               .tick_ctx = s->t->job};
    int status = ku_on_error_parse(s->cfg.data_on_error, &o.on_error);
    if (status == KUMI_OK)
        status = ku_loader_create(&o, first_step, &s->loader[is_eval]);
    ku_free(range);
    return status;
}

static int fill_pairs(struct ku_session *s, int is_eval, int64_t number)
{
    enum ku_data_split split = is_eval ? KU_SPLIT_VAL : KU_SPLIT_TRAIN;
    ku_trainer_use(s->t, ku_pairs_shape_at(&s->pairs, split, number));
    for (int u = 0; u < ku_trainer_n_micro(s->t); u++) {
        void *to[KU_DATA_PORTS_MAX];
        size_t row_bytes;
        int64_t first, n = ku_trainer_rows(s->t, u, &first);
        for (int i = 0; i < s->data->n_ports; i++)
            to[i] = ku_trainer_port(s->t, is_eval ? KU_PROG_EVAL : KU_PROG_TRAIN,
                                    s->data->port[i].name, u, &row_bytes);
        KU_TRY(ku_pairs_rows(&s->pairs, split, number, first, n, to));
    }
    return KUMI_OK;
}

static int fill(struct ku_session *s, int is_eval, int64_t number)
{
    enum ku_trainer_program p = is_eval ? KU_PROG_EVAL : KU_PROG_TRAIN;
    if (s->pairs.data)
        return fill_pairs(s, is_eval, number);
    if (s->loader[is_eval] == NULL)
        KU_TRY(create_loader(s, is_eval, number));
    for (int u = 0; u < ku_trainer_n_micro(s->t); u++) {
        void *to[KU_DATA_PORTS_MAX];
        size_t row_bytes;
        for (int i = 0; i < s->data->n_ports; i++)
            to[i] = ku_trainer_port(s->t, p, s->data->port[i].name, u, &row_bytes);
        KU_TRY(ku_loader_read(s->loader[is_eval], number, u, to));
    }
    return KUMI_OK;
}

int ku_session_count_skipped(const struct ku_session *s, struct ku_job *job, int64_t *n)
{
    int64_t sum = 0;
    for (int i = 0; i < 2; i++)
        sum += s->loader[i] ? ku_loader_n_skipped(s->loader[i]) : 0;
    KU_TRY(ku_agree_sum(job, &sum, 1));
    if (sum > 0 && job->rank == 0)
        KU_LOG(DATA, WARN, "%lld sample%s could not be read and did not count in the loss",
               (long long)sum, sum == 1 ? "" : "s");
    *n = sum;
    return KUMI_OK;
}

int ku_session_fill_train(struct ku_session *s, int64_t step)
{
    return fill(s, 0, step);
}
int ku_session_fill_eval(struct ku_session *s, int64_t b)
{
    return fill(s, 1, b);
}

bool ku_session_is_by_samples(const struct ku_session *s)
{
    return s->data->item == NULL;
}

int ku_session_evaluate(struct ku_session *s, double *loss)
{
    *loss = (double)NAN;
    if (s->eval_samples == 0)
        return KUMI_OK;
    int64_t n_batches = s->pairs.data
                            ? ku_pairs_n_runs(&s->pairs, KU_SPLIT_VAL)
                            : (s->eval_samples + s->batch.global_batch - 1) / s->batch.global_batch;
    ku_trainer_eval_begin(s->t);
    for (int64_t b = 0; b < n_batches; b++) {
        KU_TRY(ku_agree_local(s->t->job, ku_session_fill_eval(s, b)));
        KU_TRY(ku_trainer_eval_run(s->t));
    }
    *loss = ku_trainer_eval_loss(s->t);
    return KUMI_OK;
}
