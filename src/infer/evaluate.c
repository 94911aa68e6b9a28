/* SPDX-License-Identifier: Apache-2.0 */
#include "infer/evaluate.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arg.h"
#include "base/env.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "ckpt/snapshot/directory.h"
#include "ckpt/snapshot/provenance.h"
#include "ckpt/snapshot/snapshot.h"
#include "comm/consensus.h"
#include "comm/world.h"
#include "batch/text_source.h"
#include "config/keys.h"
#include "data/image/image.h"
#include "job/hosts.h"
#include "model/model.h"
#include "train/session.h"
#include "model/pretrained.h"

enum { N_SETS = 6, DIRECTORY_SEQ_LEN = 1024 };
struct evaluation {
    const struct kumi_eval_options *o;
    struct kumi_eval_result *result;
    struct ku_job *job;
    struct ku_session s;
    char *set[N_SETS]; /* overrides of the configuration; data.train, if there, is the last */
    int n_sets;
    int is_directory;     /* a directory of weights, not a run */
    bool is_open;         /* configuration and data are, on all ranks */
    int32_t *token_bytes; /* [vocab_size] bytes per token; NULL: unknown */
};

/* The checkpoint that rank 0 found, broadcast to all ranks. */
struct found {
    int64_t step;
    char path[4096];
};

/*
 * Opens the newest checkpoint before a step whose companions are intact; the other files are
 * checked while they are read. damage: that of the newest, which is more informative than "no
 * checkpoint before".
 */
static int find_intact(const char *run, int64_t before, struct kumi_error *damage,
                       struct ku_ckpt *c)
{
    for (;;) {
        int status = ku_ckpt_find(run, before, c);
        if (status == KUMI_ENOCKPT && damage->status < 0)
            return ku_err_put(damage);
        KU_TRY(status);
        status = ku_ckpt_check_companions(c);
        if (status == KUMI_OK || (status == KUMI_ENOCKPT && ku_os_is_missing(c->path)))
            return KUMI_OK; /* evaluate_newest handles one that was removed */
        before = c->step;
        ku_ckpt_close(c);
        if (status != KUMI_ENOCKPT)
            return status;
        KU_LOG(CKPT, WARN, "%s; taking the previous checkpoint", ku_err_get()->text);
        if (damage->status == KUMI_OK)
            *damage = *ku_err_get();
    }
}

static int find(struct evaluation *e, int64_t before, struct kumi_error *damage,
                struct found *found)
{
    struct ku_ckpt c;
    int status = KUMI_OK;
    memset(found, 0, sizeof *found);
    if (e->job->rank == 0) {
        status = find_intact(e->o->run, before, damage, &c);
        if (status == KUMI_OK) {
            size_t bytes = strlen(c.path);
            found->step = c.step;
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
 * Parameters are stored once per host, whatever the training's stage and host_state; once per rank
 * if the hosts have different numbers of ranks.
 */
static void share_state(struct evaluation *e)
{
    const int local = ku_job_hosts_are_even(e->job) ? e->job->local_n : 1;
    e->s.host_ranks = ku_job_host_ranks(e->job);
    e->s.sharding = (struct ku_sharding){
        .replicate = e->job->n / local, .shard = 1, .local = local, .tp = 1, .pp = 1};
}

/*
 * The number of overrides for a run. Image data keep their data.train, which other files do not
 * replace: classes of a folder are numbered by it, and it gives the images' form.
 */
static int n_sets_of(const struct evaluation *e, const struct ku_ckpt *c)
{
    const json_t *kind = ku_json_at(c->manifest.root, "config.data.kind");
    return e->n_sets - (e->o->n_data > 0 && ku_image_is_kind(json_string_value(kind)));
}

/*
 * The batch of an evaluation: each rank runs one micro-batch at a time, and V is the number of
 * ranks. The result has the same bits for any number of ranks: the global batch is cut into
 * micro-batches in order, so a micro-batch holds the same samples for any V; its size, on which
 * kernels may depend, is the run's; and the loss is an exact sum over tokens, rounded once. A
 * parallel corpus also keeps the run's batch shapes (n_parts).
 *
 * Memory: the parameters (share_state), for any ZeRO stage of the run; no gradients, no optimizer
 * state.
 */
static int configure(struct evaluation *e, const struct ku_ckpt *c)
{
    struct ku_session *s = &e->s;
    json_t *numerics = json_object_get(c->manifest.root, "numerics");
    int64_t micro, global;
    KU_TRY(ku_pretrained_config(c, (const char *const *)e->set, n_sets_of(e, c), &s->cfg));
    KU_TRY(ku_model_read(&s->cfg, &s->model));
    if (ku_json_int(json_object_get(numerics, "train.micro_batch"), &micro) < 0 || micro < 1 ||
        ku_json_int(json_object_get(numerics, "train.global_batch"), &global) < 0 ||
        global < micro || ku_json_int(json_object_get(numerics, "data.seq_len"), &s->seq_len) < 0 ||
        s->seq_len < 1 ||
        (s->model.properties.max_positions && s->seq_len > s->model.properties.max_positions))
        return KU_ERR(KUMI_ENOCKPT,
                      "checkpoint: %s/manifest.json: no train.micro_batch, train.global_batch "
                      "or data.seq_len among its numerics keys",
                      c->path);
    ku_text_keep_mask_token(&s->cfg, &s->model, numerics);
    share_state(e);
    s->batch = (struct ku_batch){.n_ranks = e->job->n,
                                 .global_batch = micro * e->job->n,
                                 .micro_batch = micro,
                                 .accumulation = 1,
                                 .virtual_shards = e->job->n,
                                 .k = 1,
                                 .n_parts = global / micro};
    s->n_steps = s->decay_steps = 1; /* not used: no step is run */
    s->is_eval_only = 1;
    return KUMI_OK;
}

/*
 * The configuration for a directory of weights: its model, data and tokenizer of the options,
 * micro-batches of one sample.
 */
static int configure_directory(struct evaluation *e)
{
    struct ku_session *s = &e->s;
    const struct kumi_eval_options *o = e->o;
    const char *where;
    KU_TRY(ku_config_start("eval", &s->cfg));
    KU_TRY(ku_config_set_text(&s->cfg, "model.path", o->run));
    KU_TRY(ku_config_set_text(&s->cfg, "data.train", ""));
    KU_TRY(ku_config_override(&s->cfg, (const char *const *)e->set, e->n_sets));
    KU_TRY(ku_config_finish(&s->cfg));
    KU_TRY(ku_model_read(&s->cfg, &s->model));
    const int64_t most = s->model.properties.max_positions;
    if (!s->model.properties.is_causal)
        return KU_ERR(KUMI_EINVAL,
                      "eval: %s: a directory of weights of type %s cannot be evaluated; only gpt2 "
                      "and llama can; evaluate a run instead",
                      o->run, ku_model_type(&s->model));
    s->seq_len = o->seq_len ? o->seq_len : most < DIRECTORY_SEQ_LEN ? most : DIRECTORY_SEQ_LEN;
    if (s->seq_len < 1 || s->seq_len > most)
        return KU_ERR(KUMI_EINVAL, "eval: --seq-len: %lld; the model has %lld positions",
                      (long long)o->seq_len, (long long)most);
    KU_TRY(ku_pretrained_tokenizer(o->run, o->tokenizer, s->model.properties.vocab_size, &where));
    char *own = ku_strdup(where);
    if (own == NULL)
        return KUMI_ENOMEM;
    ku_free(s->cfg.data_tokenizer);
    s->cfg.data_tokenizer = own;
    share_state(e);
    s->batch = (struct ku_batch){.n_ranks = e->job->n,
                                 .global_batch = e->job->n,
                                 .micro_batch = 1,
                                 .accumulation = 1,
                                 .virtual_shards = e->job->n,
                                 .k = 1,
                                 .n_parts = 1};
    s->n_steps = s->decay_steps = 1; /* not used: no step is run */
    s->is_eval_only = 1;
    return KUMI_OK;
}

static bool is_held_out(const struct evaluation *e)
{
    return e->o->n_data > 0 || e->o->stride > 0;
}

/* Rejects files that the run's kind of data cannot take in place of its own. */
static int check_data(const struct evaluation *e)
{
    const struct ku_session *s = &e->s;
    const char *kind = s->cfg.data_kind;
    if (e->o->n_data > 0 && s->model.properties.is_pairs)
        return KU_ERR(KUMI_EINVAL,
                      "eval: data: %s: a run of sentence pairs is evaluated on its "
                      "own data.val",
                      e->o->data[0]);
    if (e->o->n_data > 0 && kind && strcmp(kind, "npy") == 0)
        return KU_ERR(KUMI_EINVAL,
                      "eval: data: %s: a run of npy images is evaluated on its own data.val: "
                      "other images would need files of labels, and there is no option for them",
                      e->o->data[0]);
    if (e->o->stride > s->seq_len)
        return KU_ERR(
            KUMI_EINVAL,
            "eval: stride %lld: a window has %lld tokens (data.seq_len); give at most as many",
            (long long)e->o->stride, (long long)s->seq_len);
    return KUMI_OK;
}

/* Opens the data: the run's own samples, or a whole held-out stream. */
static int open_data(struct evaluation *e)
{
    struct ku_session *s = &e->s;
    const struct ku_held_out held = {e->o->stride, e->o->n_data > 0};
    const struct ku_progress progress = ku_session_progress(s, e->job);
    KU_TRY(ku_batch_source_create(&s->cfg, &s->model, &s->batch, s->seq_len, &s->source));
    const int is_text = s->model.properties.max_positions > 0 && s->source->ops == &ku_text_batches;
    if (e->o->stride > 0 && (!is_text || !s->model.properties.is_causal))
        return KU_ERR(KUMI_EINVAL,
                      "eval: stride %lld: only gpt2 and llama on text have windows, and this is a "
                      "%s; omit it",
                      (long long)e->o->stride, ku_model_type(&s->model));
    KU_TRY(check_data(e));
    if (is_held_out(e) && is_text)
        ku_text_hold_out(s->source, &held);
    KU_TRY(ku_batch_source_open(s->source, &progress));
    if (is_held_out(e))
        s->source->eval_samples = s->source->data->n_samples[KU_SPLIT_VAL];
    if (s->source->eval_samples == 0)
        return KU_ERR(KUMI_EINVAL,
                      "eval: %s: the run has no validation split: data.val is null and "
                      "data.val_fraction 0",
                      e->o->run);
    if (is_text && s->model.properties.is_causal)
        KU_TRY(ku_text_token_bytes(&s->cfg, s->model.properties.vocab_size, &e->token_bytes));
    return KUMI_OK;
}

/*
 * Counts the bytes of the targets' tokens; each rank counts a part of the samples. sum: bytes, and
 * targets whose bytes are unknown.
 */
static int count_bytes(const struct evaluation *e, int64_t sum[2])
{
    const struct ku_data *d = e->s.source->data;
    const size_t row = ku_data_row_bytes(&d->port[0]); /* all ports have the same row size */
    int32_t *rows = ku_malloc(row * (size_t)d->n_ports), *target = NULL;
    void *port[KU_DATA_PORTS_MAX];
    int status = rows ? KUMI_OK : KUMI_ENOMEM;
    for (int i = 0; i < d->n_ports; i++) {
        port[i] = (char *)rows + (size_t)i * row;
        if (strcmp(d->port[i].name, "targets") == 0)
            target = port[i];
    }
    KU_ASSERT(target != NULL);
    for (int64_t at = e->job->rank; at < e->s.source->eval_samples && status == KUMI_OK;
         at += e->job->n) {
        status = ku_data_read(d, KU_SPLIT_VAL, at, at, port);
        for (int64_t i = 0; i < e->s.seq_len && status == KUMI_OK; i++) {
            int32_t bytes = target[i] < 0 ? 0 : e->token_bytes[target[i]];
            sum[0] += bytes > 0 ? bytes : 0;
            sum[1] += bytes < 0;
        }
        ku_job_tick(e->job);
    }
    ku_free(rows);
    return status;
}

static int evaluate_text(struct evaluation *e)
{
    struct kumi_eval_result *r = e->result;
    int64_t sum[2] = {0, 0};
    KU_TRY(ku_agree_local(e->job, count_bytes(e, sum)));
    KU_TRY(ku_agree_sum(e->job, sum, 2));
    if (sum[0] == 0 || sum[1] > 0)
        return KUMI_OK;
    const double each = r->loss * ((double)r->tokens / (double)sum[0]);
    r->bytes = sum[0];
    r->bits_per_byte = each / log(2);
    r->byte_perplexity = exp(each);
    return KUMI_OK;
}

/* Evaluates; parameters are loaded. */
static int evaluate(struct evaluation *e)
{
    int64_t n_skipped;
    KU_TRY(ku_session_evaluate(&e->s, NULL, &e->result->loss));
    KU_TRY(ku_session_count_skipped(&e->s, e->job, &n_skipped));
    e->result->tokens = e->s.t->eval_tokens;
    e->result->perplexity = exp(e->result->loss);
    if (e->token_bytes)
        KU_TRY(evaluate_text(e));
    e->result->is_by_samples = ku_batch_is_by_samples(e->s.source);
    ku_trainer_metrics(e->s.t, 1, &e->result->metrics);
    return KUMI_OK;
}

/*
 * Warns if the run's own files are not those of the training. The loss is then another one; of
 * vocabularies that are counted from the files, the tokens have other ids, and it has no meaning.
 */
static void warn_of_changes(const struct evaluation *e, const struct ku_ckpt *c)
{
    struct ku_origin was;
    const char *is = e->s.source->data->fingerprint;
    ku_origin_of(c, &was);
    if (is_held_out(e) || e->job->rank != 0 || was.data[0] == '\0' || strcmp(was.data, is) == 0)
        return;
    KU_MESSAGE(WARN,
               "kumi: eval: %s: the data differ from the training's (fingerprint was %.12s.., is "
               "%.12s..); the loss is not the training's val_loss",
               c->path, was.data, is);
}

/*
 * Opens the data on all ranks. The job goes on where the run has removed the checkpoint, whose
 * tokenizer a rank opens after it has read the data; any other error ends it at once.
 */
static int open_data_of(struct evaluation *e, const struct ku_ckpt *c)
{
    const int status = open_data(e);
    if (status < 0 && !ku_os_is_missing(c->path))
        return ku_agree_local(e->job, status);
    KU_TRY(ku_agree_worst(e->job, status));
    e->is_open = true;
    return KUMI_OK;
}

static int evaluate_checkpoint(struct evaluation *e, const struct ku_ckpt *c)
{
    KU_TRY(ku_agree_worst(e->job, configure(e, c)));
    KU_TRY(open_data_of(e, c));
    warn_of_changes(e, c);
    KU_TRY(ku_session_create_trainer(&e->s, e->job));
    KU_TRY(ku_session_load(&e->s, c->path, &e->result->step));
    if (e->o->ema)
        KU_TRY(ku_trainer_load_ema(e->s.t, c->path));
    return evaluate(e);
}

static int evaluate_directory(struct evaluation *e)
{
    KU_TRY(configure_directory(e));
    KU_TRY(open_data(e));
    KU_TRY(ku_session_create_trainer(&e->s, e->job));
    e->result->step = -1;
    struct ku_trainer *t = e->s.t;
    int n = ku_trainer_n_readers(t), rank = n > 1 ? e->job->local_rank : 0;
    int status = ku_pretrained_weights(e->o->run, &e->s.model, t->tensor, t->n_tensors, rank, n);
    KU_TRY(ku_agree_worst(e->job, status));
    KU_TRY(ku_trainer_derive(t));
    return evaluate(e);
}

static int evaluate_path(struct evaluation *e, const char *path)
{
    struct ku_ckpt c;
    const int opened = ku_ckpt_open(path, &c);
    int status = ku_agree_worst(e->job, opened);
    if (status == KUMI_OK)
        status = evaluate_checkpoint(e, &c);
    if (opened == KUMI_OK)
        ku_ckpt_close(&c);
    return status;
}

/* Whether the checkpoint has been removed, as rank 0 sees it */
static int look_removed(const struct evaluation *e, const char *path, int *is_removed)
{
    *is_removed = e->job->rank == 0 && ku_os_is_missing(path);
    return ku_agree_bytes(e->job, is_removed, sizeof *is_removed);
}

/* For the next attempt of evaluate_newest */
static void forget_attempt(struct evaluation *e)
{
    ku_free(e->token_bytes);
    e->token_bytes = NULL;
    e->is_open = false;
    ku_session_fini(&e->s);
}

/*
 * Evaluates the newest checkpoint. If it is damaged, the one before it is next. A run in training
 * may have removed it meanwhile (checkpoint.keep), and with it those before; then there is a newer
 * one. Until data and tokenizer are open, that is EINPUT too.
 */
static int evaluate_newest(struct evaluation *e)
{
    struct kumi_error damage = {0};
    struct found found;
    int n_removed = 0, is_removed;
    for (int64_t before = INT64_MAX;;) {
        KU_TRY(find(e, before, &damage, &found));
        const int status = evaluate_path(e, found.path);
        const bool is_input = status == KUMI_EINPUT && !e->is_open;
        if (status != KUMI_ENOCKPT && !is_input)
            return status;
        const struct kumi_error error = *ku_err_get();
        KU_TRY(look_removed(e, found.path, &is_removed));
        if (!is_removed && (is_input || e->s.t == NULL))
            return ku_err_put(&error);
        if (is_removed && ++n_removed == KU_CKPT_MAX_REMOVED)
            return KU_ERR(KUMI_ENOCKPT,
                          "eval: %s: the run removed %d checkpoints before they were read; raise "
                          "its checkpoint.keep, or evaluate a copy of one",
                          e->o->run, n_removed);
        if (e->job->rank == 0 && is_removed)
            KU_LOG(CKPT, INFO, "%s: removed meanwhile; taking the newest checkpoint", found.path);
        else if (e->job->rank == 0)
            KU_LOG(CKPT, WARN, "%s; taking the previous checkpoint", error.text);
        if (!is_removed && damage.status == KUMI_OK)
            damage = error;
        before = is_removed ? INT64_MAX : found.step;
        forget_attempt(e);
    }
}

static int add_set(struct evaluation *e, const char *key, json_t *value)
{
    char *text = value ? ku_json_print(value, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    json_decref(value);
    KU_ASSERT(e->n_sets < N_SETS);
    e->set[e->n_sets] = text ? ku_asprintf("%s=%s", key, text) : NULL;
    ku_free(text);
    return e->set[e->n_sets++] ? KUMI_OK : KUMI_ENOMEM;
}

static int check_options(const struct evaluation *e)
{
    const struct kumi_eval_options *o = e->o;
    if (o->stride < 0)
        return KU_ERR(KUMI_EINVAL, "eval: stride: %lld; give 1 or more, or 0 for adjacent windows",
                      (long long)o->stride);
    if (o->n_data < 0)
        return KU_ERR(KUMI_EINVAL, "eval: %d files; give 0 or more", o->n_data);
    if (!e->is_directory && (o->tokenizer || o->seq_len))
        return KU_ERR(KUMI_EINVAL,
                      "eval: %s: --tokenizer and --seq-len are for directories of weights; a run "
                      "has its own",
                      o->run);
    if (e->is_directory && o->ema)
        return KU_ERR(
            KUMI_EINVAL,
            "ema: %s: a directory of weights has no averages; give a run, or leave out --ema",
            o->run);
    if (e->is_directory && o->n_data == 0)
        return KU_ERR(
            KUMI_EINVAL,
            "eval: %s: a directory of weights has no data of its own; give files with --data",
            o->run);
    return KUMI_OK;
}

/*
 * Overrides of the configuration. data.last_batch wrap: the training split is not read, so a batch
 * larger than it must not be an error.
 */
static int make_sets(struct evaluation *e)
{
    const struct kumi_eval_options *o = e->o;
    int status;
    KU_TRY(check_options(e));
    KU_TRY(add_set(e, "data.last_batch", json_string("wrap")));
    KU_TRY(add_set(e, "memory", json_object()));
    if (o->n_data == 0)
        return KUMI_OK;
    json_t *files = json_array();
    for (int i = 0; i < o->n_data; i++)
        json_array_append_new(files, json_string(o->data[i]));
    if (json_array_size(files) != (size_t)o->n_data) {
        json_decref(files);
        return KU_ERR(KUMI_EINVAL, "eval: a file name is not valid UTF-8");
    }
    KU_TRY_OUT(add_set(e, "data.weights", json_null()));
    KU_TRY_OUT(add_set(e, "data.val_labels", json_null())); /* those are of the run's own images */
    KU_TRY_OUT(add_set(e, "data.val", json_incref(files)));
    status = add_set(e, "data.train", json_incref(files));
out:
    json_decref(files);
    return status;
}

int ku_evaluate_run(struct ku_job *job, const struct kumi_eval_options *options,
                    struct kumi_eval_result *result)
{
    struct evaluation e = {.o = options,
                           .result = result,
                           .job = job,
                           .is_directory = ku_pretrained_is_weights(options->run)};
    memset(result, 0, sizeof *result);
    result->rank = job->rank;
    int status = make_sets(&e);
    if (status == KUMI_OK)
        status = e.is_directory ? evaluate_directory(&e) : evaluate_newest(&e);
    if (status < 0) /* before the session is destroyed, which is collective */
        status = ku_job_fail(job);
    struct kumi_error error = *ku_err_get();
    ku_session_fini(&e.s);
    ku_free(e.token_bytes);
    for (int i = 0; i < N_SETS; i++)
        ku_free(e.set[i]);
    return status < 0 ? ku_err_put(&error) : KUMI_OK;
}

/* Opens the newest checkpoint of a run, a directory of checkpoints, or a checkpoint. */
static int open_newest(const char *run, struct ku_ckpt *c)
{
    static const char *const folders[] = {"/checkpoints", ""};
    for (int i = 0; i < 2; i++) {
        char *folder = ku_asprintf("%s%s", run, folders[i]);
        int64_t *steps = NULL;
        int n = 0, status = folder ? ku_ckpt_place_list(folder, &steps, &n) : KUMI_ENOMEM;
        if (status == KUMI_OK && n > 0)
            status = ku_ckpt_open_step(folder, steps[0], c);
        ku_free(steps);
        ku_free(folder);
        if (status < 0 || n > 0)
            return status;
    }
    return ku_ckpt_open(run, c);
}

/*
 * What the ranks need of the run's configuration before they join the job. The defaults, if there
 * is none or the checkpoint is damaged: the job reports that. Of parallel.transport only tcp
 * counts: with mpi another launcher may start this job.
 */
static struct ku_job_opts joining_of(const char *run)
{
    struct ku_job_opts o = {.threads = ku_env_threads()};
    double seconds = ku_key_default_number("parallel.timeout_s");
    struct ku_ckpt c;
    if (!ku_pretrained_is_weights(run) && open_newest(run, &c) == KUMI_OK) {
        const json_t *v = ku_json_at(c.manifest.root, "config.parallel.timeout_s");
        if (json_is_number(v) && json_number_value(v) > 0 && json_number_value(v) <= 1e9)
            seconds = json_number_value(v);
        v = ku_json_at(c.manifest.root, "config.parallel.transport");
        if (json_is_string(v) && strcmp(json_string_value(v), "tcp") == 0)
            o.transport = "tcp";
        v = ku_json_at(c.manifest.root, "config.train.threads");
        if (json_is_integer(v) && json_integer_value(v) >= 1 && json_integer_value(v) <= 4096)
            o.threads = (int)json_integer_value(v);
        ku_ckpt_close(&c);
    }
    o.timeout_ns = o.join_timeout_ns = (int64_t)(seconds * 1e9);
    return o;
}

int kumi_eval(const char *run, struct kumi_eval_result *result)
{
    return kumi_evaluate(&(struct kumi_eval_options){.run = run}, result);
}

int kumi_evaluate(const struct kumi_eval_options *options, struct kumi_eval_result *result)
{
    KU_GIVEN(options, "options");
    KU_GIVEN(options->run, "options.run");
    KU_GIVEN_LIST(options->data, options->n_data, "options.data");
    KU_GIVEN(result, "result");
    struct ku_job *job = NULL;
    const struct ku_job_opts o = joining_of(options->run);
    memset(result, 0, sizeof *result);
    int status = ku_comm_join(&o, &job);
    if (status < 0) { /* the job may have printed the error already */
        result->is_reported = ku_err_get()->scope == KUMI_SCOPE_JOB;
        return status;
    }
    status = ku_evaluate_run(job, options, result);
    result->is_reported = status < 0;
    struct kumi_error error = *ku_err_get();
    int left = ku_comm_leave(job);
    if (status == KUMI_OK && left < 0)
        result->is_reported = ku_err_get()->scope == KUMI_SCOPE_JOB;
    return status < 0 ? ku_err_put(&error) : left;
}
