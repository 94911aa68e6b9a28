/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A training run, from the view of one rank:
 *
 *   prepare   directory, configuration, data, trainer, first state or checkpoint
 *   loop      data -> step -> report -> poll checkpoint -> stop? -> verify, save, evaluate if due
 *   finish    final checkpoint, evaluation, summary.json
 *
 * A checkpoint comes before the evaluation of its step, so that a long evaluation delays none. A
 * stop ends an evaluation without a result, and a resume makes up for it.
 *
 * What it prints and writes about steps is report.c's, how ranks join the job run_ranks.c's.
 *
 * Decisions of a single rank (stop signal, time limit, non-finite value) are combined over all
 * ranks once per step, so that all ranks act on them at the same step.
 */
#include "run/run.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/json/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "ckpt/snapshot/snapshot.h"
#include "comm/consensus.h"
#include "config/deepspeed.h"
#include "model/export.h"
#include "train/ineffective_keys.h"
#include "base/progress_line.h"
#include "base/str.h"
#include "ckpt/snapshot/provenance.h"
#include "run/nonfinite.h"
#include "run/report.h"
#include "ckpt/snapshot/resume.h"
#include "run/rundir.h"
#include "train/seen.h"
#include "run/summary.h"
#include "train/session.h"

enum { MAX_SKIPPED = 100, WORD_TIME = 1, WORD_SIGNAL = 2 };

struct run {
    const struct ku_run_server *server; /* NULL: ranks that train by themselves */
    struct ku_remote_engine *engine;
    const struct kumi_train_options *o;
    struct kumi_train_result *result;
    struct ku_job *job;
    struct ku_session s;
    struct ku_rundir dir;
    char *checkpoints;              /* OUT/checkpoints, on every rank */
    char found[KU_CKPT_PATH_BYTES]; /* checkpoint to resume from; empty: none */
    struct ku_origin was;           /* provenance of that checkpoint */
    char *stored;                   /* its model/ folder */
    struct ku_run_report report;
    int64_t step, last_saved, saving_step, end, begin_ns;
    int64_t gathered; /* step of the checkpoint whose weights this process put into DIR/weights */
    int n_skipped, stop_word; /* stop_word: 0, or why all ranks stop */
    /* A step was done, or none is left to do: files of this run are written into the directory. */
    int has_begun;
    int is_fallback; /* newer checkpoints than the found one are damaged */
    int is_complete; /* resumed, with nothing left to do or to write */
    /* An evaluation of the resumed step that is not yet in the metrics; step 0: none. */
    struct {
        int64_t step;
        double loss;
    } missed;
};

static bool is_first(const struct run *r)
{
    return r->job->rank == 0;
}

/* Directory and checkpoint, broadcast from rank 0. */
struct opening {
    char out[KU_RUN_PATH_BYTES], found[KU_CKPT_PATH_BYTES];
};

static int choose_directory(struct run *r, struct opening *to)
{
    const struct kumi_train_options *o = r->o;
    enum ku_resume resume = (enum ku_resume)o->resume;
    if (o->out)
        snprintf(to->out, sizeof to->out, "%s", o->out);
    else
        KU_TRY(ku_rundir_make(o->settings.config, to->out, sizeof to->out));
    KU_TRY(ku_rundir_open(to->out, o->overwrite, resume, &r->dir));
    r->dir.is_new |= o->out == NULL;
    return resume ? ku_resume_find(to->out, resume, o->resume_step, to->found) : KUMI_OK;
}

static int open_directory(struct run *r)
{
    struct opening opening = {0};
    int status = KUMI_OK;
    if (is_first(r))
        status = choose_directory(r, &opening);
    KU_TRY(ku_agree_local(r->job, status));
    KU_TRY(ku_agree_bytes(r->job, &opening, sizeof opening));
    snprintf(r->result->out, sizeof r->result->out, "%s", opening.out);
    r->checkpoints = ku_asprintf("%s/checkpoints", opening.out);
    memcpy(r->found, opening.found, sizeof r->found);
    if (r->checkpoints == NULL)
        return KUMI_ENOMEM;
    return ku_check_seen(r->job, "run directory", opening.out);
}

static void take_key(json_t *to, const json_t *from, const char *key)
{
    json_object_set(to, key, json_object_get(from, key));
}

/*
 * Number of numerics keys that differ from the checkpoint's, and their names. parallel.isa may name
 * the set that a run without it had chosen. With parallel.order free, batch sizes that are not
 * given follow from the number of ranks.
 */
static int n_changes(const struct run *r, const json_t *was, struct ku_str *names)
{
    const char *isa = r->s.cfg.parallel_isa;
    json_t *old = json_copy((json_t *)(uintptr_t)was);
    if (isa && strcmp(isa, r->was.isa) == 0)
        json_object_set_new(old, "parallel.isa", json_string(isa));
    if (r->s.batch.is_free && r->s.cfg.train_micro_batch == KU_NULL)
        take_key(old, r->s.numerics, "train.micro_batch");
    if (r->s.batch.is_free && r->s.batch.is_in_tokens)
        take_key(old, r->s.numerics, "train.global_batch");
    int n = ku_config_compare(old, r->s.numerics, names);
    json_decref(old);
    return n;
}

/*
 * A resume with different numerics keys is an error that names them, or a message with
 * --allow-change.
 */
static int check_numerics(struct run *r, const json_t *was)
{
    struct ku_str names = {0};
    int n = n_changes(r, was, &names);
    int status = KUMI_OK;
    if (n && !r->o->allow_change)
        status = KU_ERR(KUMI_EINVAL,
                        "resume: %s: %.160s%s differ%s from the checkpoint: its results would not "
                        "continue bit for bit; undo the change%s, or continue with --allow-change",
                        r->found, ku_str_get(&names), names.bytes > 160 ? " …" : "",
                        n == 1 ? "s" : "", n == 1 ? "" : "s");
    else if (n && is_first(r))
        KU_MESSAGE(
            WARN, "kumi: changed since the checkpoint: %s; its results do not continue bit for bit",
            ku_str_get(&names));
    ku_str_fini(&names);
    return status;
}

static int configure_session(struct run *r)
{
    const struct kumi_settings *set = &r->o->settings;
    const int n_ranks = r->server ? r->server->n_workers : r->job->n;
    r->s.host_ranks = r->server ? 1 : ku_job_host_ranks(r->job);
    r->s.has_even_hosts = ku_job_hosts_are_even(r->job);
    if (r->server)
        r->s.remote =
            (struct ku_remote_opts){.update_by = KU_UPDATE_SERVER,
                                    .n_servers = r->job->n,
                                    .is_single = r->server->engine.mode != KU_REMOTE_SYNC};
    struct ku_ckpt c;
    if (r->found[0] == '\0')
        return ku_session_configure(&r->s, set->config, set->set, set->n_sets, NULL, n_ranks);
    KU_TRY(ku_ckpt_open(r->found, &c));
    json_t *was = json_object_get(c.manifest.root, "numerics");
    r->stored = ku_asprintf("%s/model", r->found);
    r->s.stored = r->stored;
    ku_origin_of(&c, &r->was);
    int status = r->stored == NULL ? KUMI_ENOMEM
                                   : ku_session_configure(&r->s, set->config, set->set, set->n_sets,
                                                          was, n_ranks);
    if (status == KUMI_OK)
        status = check_numerics(r, was);
    ku_ckpt_close(&c);
    return status;
}

static int configure(struct run *r)
{
    KU_TRY(configure_session(r));
    if (is_first(r) && !r->is_fallback)
        ku_deepspeed_warn(&r->s.cfg);
    return KUMI_OK;
}

/* Different data are an error; another instruction set or build is a message. */
static int check_origin(struct run *r)
{
    struct ku_origin is;
    char what[400];
    ku_origin_here(r->s.t->isa, r->s.source->data->fingerprint, &is);
    int status = ku_origin_compare(&r->was, &is, r->found, what);
    if (what[0] && is_first(r))
        KU_MESSAGE(
            WARN, "kumi: changed since the checkpoint: %s; its results do not continue bit for bit",
            what);
    return r->o->allow_change ? KUMI_OK : status;
}

static int load_checkpoint(struct run *r)
{
    KU_TRY(check_origin(r));
    KU_TRY(ku_trainer_load(r->s.t, r->found, &r->step));
    if (is_first(r))
        ku_session_add_verified(&r->s, r->found);
    r->last_saved = r->step;
    return KUMI_OK;
}

static int write_first(struct run *r)
{
    KU_TRY(ku_rundir_begin(&r->dir));
    if (r->found[0]) {
        KU_TRY(ku_resume_cut(r->dir.path, r->step));
        KU_TRY(ku_summary_cut(r->dir.path, r->step));
    }
    KU_TRY(r->s.source->ops->save(r->s.source, r->dir.path));
    return ku_run_report_open(&r->report, r->dir.path, r->step);
}

/*
 * Nothing is written into the directory before the first step is done, so a run that fails earlier
 * leaves it unchanged.
 */
static int begin_writing(struct run *r)
{
    if (r->has_begun)
        return KUMI_OK;
    r->has_begun = 1;
    KU_TRY(ku_agree_local(r->job, is_first(r) ? write_first(r) : KUMI_OK));
    if (r->missed.step)
        ku_run_report_eval(&r->report, r->missed.step, r->missed.loss);
    return KUMI_OK;
}

/*
 * Whether a resumed run has nothing left to do. A run that was killed or stopped at its last step
 * may still lack the evaluation or summary.json.
 */
static int check_complete(struct run *r)
{
    int64_t word = 0;
    if (r->found[0] == '\0' || r->step < r->end)
        return KUMI_OK;
    if (is_first(r))
        word = ku_summary_is_of(r->dir.path, r->step,
                                r->s.source->eval_samples > 0 && r->server == NULL,
                                &r->result->val_loss) ||
               r->step > r->end || r->o->resume_step > 0;
    KU_TRY(ku_agree_max(r->job, &word));
    r->is_complete = word > 0;
    return KUMI_OK;
}

/* Rank 0 shows the compiler's progress if compilation takes long. */
static int create_trainer(struct run *r)
{
    struct ku_compile_line line;
    if (!is_first(r))
        return ku_session_create_trainer(&r->s, r->job);
    r->s.watch = ku_compile_line_start(&line);
    int status = ku_session_create_trainer(&r->s, r->job);
    r->s.watch = (struct ku_watch){0};
    ku_compile_line_end(&line);
    return status;
}

/* Workers may begin. */
static int open_engine(struct run *r)
{
    struct ku_remote_engine_opts o = r->server->engine;
    o.version = r->step;
    if (o.mode != KU_REMOTE_SYNC && r->s.cfg.train_epochs != KU_NULL)
        return KU_ERR(KUMI_EINVAL,
                      "train.epochs: with ps.mode async and ssp the length is a number "
                      "of pushes; set train.steps");
    KU_TRY(ku_remote_engine_create(r->s.t, &o, &r->engine));
    char *numerics = ku_json_print(r->s.numerics, JSON_SORT_KEYS | JSON_COMPACT);
    const struct ku_run_served served = {.job = r->job,
                                         .engine = r->engine,
                                         .opts = &o,
                                         .numerics = numerics,
                                         .out = r->result->out,
                                         .timeout_ns =
                                             (int64_t)(r->s.cfg.parallel_timeout_s * 1e9)};
    const int status = numerics ? r->server->attach(r->server->ctx, &served) : KUMI_ENOMEM;
    ku_free(numerics);
    return status;
}

/* Workers end, whatever they wait for, before their engine does. */
static void close_engine(struct run *r, int status)
{
    if (r->engine == NULL)
        return;
    if (status == KUMI_OK)
        status = KU_ERR(KUMI_ESTOPPED, "ps: training is complete");
    ku_remote_stop(r->engine, status);
    r->server->detach(r->server->ctx, r->engine);
    ku_remote_engine_destroy(r->engine);
}

/* A stop signal while the data are read ends the run; of one that comes later, loop takes care. */
static int open_data(struct run *r)
{
    const int status = ku_session_open_data(&r->s, r->job);
    int64_t signal = status == KUMI_ESTOPPED ? ku_job_stop(r->job) : 0;
    KU_TRY(status == KUMI_ESTOPPED ? KUMI_OK : status);
    KU_TRY(ku_agree_max(r->job, &signal));
    if (signal == 0)
        return KUMI_OK;
    return KU_ERR(KUMI_ESTOPPED,
                  "stopped: signal %d: before the first step; nothing was written into %s",
                  (int)signal, r->result->out);
}

/* Everything before the first state or the checkpoint. */
static int create_session(struct run *r)
{
    KU_TRY(configure(r));
    KU_TRY(open_data(r));
    if (is_first(r) && !r->is_fallback)
        ku_effect_warn(&r->s);
    r->end = r->s.n_steps;
    if (r->o->until > 0 && r->o->until < r->end)
        r->end = r->o->until;
    KU_TRY(create_trainer(r));
    KU_TRY(ku_session_open_saving(&r->s));
    return ku_session_take_companions(&r->s, r->job);
}

/*
 * A checkpoint gives values to the configuration, and is compared with it, before its tensors are
 * read. If these are damaged, the session is created again for the checkpoint before.
 */
static int resume(struct run *r)
{
    int status = load_checkpoint(r);
    while (status == KUMI_ENOCKPT && r->o->resume_step == 0) {
        KU_TRY(ku_trainer_previous(r->job, r->checkpoints, r->found));
        r->is_fallback = 1;
        ku_session_fini(&r->s);
        ku_free(r->stored);
        r->stored = NULL;
        KU_TRY(create_session(r));
        status = load_checkpoint(r);
    }
    return status;
}

static int prepare(struct run *r)
{
    KU_TRY(open_directory(r));
    KU_TRY(create_session(r));
    KU_TRY(r->found[0] ? resume(r) : ku_session_first_state(&r->s));
    KU_TRY(check_complete(r));
    KU_TRY(r->server ? open_engine(r) : KUMI_OK);
    const struct ku_run_report_start at = {r->dir.path, r->found, r->step, r->end, r->is_complete};
    KU_TRY(ku_run_report_prepare(&r->report, &at));
    ku_run_report_announce(&r->report, &at);
    return KUMI_OK;
}

/*
 * Replace DIR/weights by the weights of a checkpoint in 16 bit, if the configuration asks for it.
 * Collective.
 */
static int gather_16bit(struct run *r, int64_t step)
{
    if (!r->s.cfg.parallel_gather_16bit_on_save || r->gathered == step)
        return KUMI_OK;
    const int is_f16 = strcmp(r->s.cfg.precision_compute, "f16") == 0;
    const struct kumi_weights_options o = {.dtype = is_f16 ? "f16" : "bf16"};
    int status = KUMI_OK;
    if (is_first(r)) {
        char *from = ku_asprintf("%s/step-%08lld/model", r->checkpoints, (long long)step);
        char *to = ku_asprintf("%s/weights", r->dir.path);
        status = from && to ? ku_export_replacing(from, to, &o) : KUMI_ENOMEM;
        ku_free(from);
        ku_free(to);
    }
    status = ku_agree_worst(r->job, status);
    if (status == KUMI_OK)
        r->gathered = step;
    return status;
}

/*
 * Handle the result of the checkpoint of `step`. A failure is a warning, except for the last
 * checkpoint.
 */
static int note_saved(struct run *r, int64_t step, int status, int is_final)
{
    if (status == KUMI_OK)
        r->last_saved = step;
    if (status == KUMI_OK && r->server && r->server->saved)
        r->server->saved(r->server->ctx, step);
    if (status == KUMI_OK)
        status = gather_16bit(r, step);
    if (status != KUMI_ESTORAGE || is_final || ku_job_has_failed(r->job))
        return status;
    if (is_first(r))
        KU_LOG(CKPT, WARN, "%s; training continues", ku_err_get()->text);
    if (r->server && r->server->not_saved)
        r->server->not_saved(r->server->ctx, step);
    return KUMI_OK;
}

/* Complete the pending checkpoint if it is done. waits: wait until it is. */
static int look_after(struct run *r, int waits)
{
    if (!ku_saving_is_pending(r->s.saving))
        return KUMI_OK;
    int status = waits ? ku_session_save_wait(&r->s) : ku_session_save_poll(&r->s);
    if (status == KUMI_OK && ku_saving_is_pending(r->s.saving))
        return KUMI_OK;
    return note_saved(r, r->saving_step, status, 0);
}

/*
 * A run that ended after its last checkpoint, but before DIR/weights was written, makes up for that
 * after the resume.
 */
static int save(struct run *r, int is_final)
{
    if (r->o->is_trial)
        return KUMI_OK;
    KU_TRY(look_after(r, 1));
    if (r->last_saved == r->step)
        return is_final ? gather_16bit(r, r->step) : KUMI_OK;
    r->saving_step = r->step;
    int64_t begin_ns = ku_clock_ns();
    int status = is_final ? ku_session_save(&r->s, r->checkpoints, r->step)
                          : ku_session_save_start(&r->s, r->checkpoints, r->step);
    ku_run_report_checkpoint(&r->report, r->step - 1, begin_ns);
    if (status == KUMI_OK && ku_saving_is_pending(r->s.saving))
        return KUMI_OK;
    return note_saved(r, r->step, status, is_final);
}

/* Decide whether all ranks stop here, and why. */
static int poll_stop(struct run *r)
{
    const int signal = ku_job_stop(r->job);
    const double seconds = (double)(ku_clock_ns() - r->begin_ns) * 1e-9;
    int64_t word = signal                                                ? WORD_SIGNAL + signal
                   : r->o->max_time_s > 0 && seconds >= r->o->max_time_s ? WORD_TIME
                                                                         : 0;
    KU_TRY(ku_agree_max(r->job, &word));
    r->stop_word = (int)word;
    return KUMI_OK;
}

static int stops_evaluation(void *ctx, bool *is_stopped)
{
    struct run *r = ctx;
    KU_TRY(poll_stop(r));
    *is_stopped = r->stop_word != 0;
    return KUMI_OK;
}

/* After a stop there is no loss, and r->stop_word is set. */
static int find_val_loss(struct run *r, double *loss)
{
    const struct ku_session_stop stop = {stops_evaluation, r};
    return ku_session_evaluate(&r->s, &stop, loss);
}

static int evaluate(struct run *r)
{
    double loss;
    if (r->o->is_trial || r->server) /* kumi eval reads a server's checkpoints */
        return KUMI_OK;
    KU_TRY(find_val_loss(r, &loss));
    if (r->stop_word == 0)
        ku_run_report_eval(&r->report, r->step, loss);
    return KUMI_OK;
}

/* Handle an overflow for which the loss scaler has already changed the scale. */
static int overflow(struct run *r, double scale)
{
    if (is_first(r))
        KU_LOG(TRAIN, WARN, "overflow: step %lld: update skipped; loss scale %.15g, now %.15g",
               (long long)r->step + 1, scale, ku_trainer_loss_scale(r->s.t));
    int status = ku_trainer_check_scale(r->s.t);
    if (status < 0) {
        const struct kumi_error kept = *ku_err_get();
        KU_TRY(look_after(r, 1)); /* the pending checkpoint is the last good state */
        ku_err_put(&kept);
    }
    return status;
}

/*
 * Handle a non-finite loss or gradient. The optimizer has not run.
 */
static int nonfinite(struct run *r, const double *report, double scale)
{
    struct ku_nonfinite first;
    char what[300], whose[32] = "in the sum over ranks", saved[64] = "there is no checkpoint yet";
    int is_skipped =
        ++r->n_skipped <= MAX_SKIPPED && strcmp(r->s.cfg.train_on_nonfinite, "skip") == 0;
    if (r->n_skipped <= MAX_SKIPPED && !isnan(scale))
        return overflow(r, scale);
    if (!is_skipped)
        KU_TRY(look_after(r, 1)); /* the pending checkpoint is the last good state */
    KU_TRY(ku_nonfinite_find(r->s.t, r->step, &first));
    if (first.rank >= 0)
        snprintf(whose, sizeof whose, "on rank %d", first.rank);
    if (r->last_saved >= 0)
        snprintf(saved, sizeof saved, "the last checkpoint is at step %lld",
                 (long long)r->last_saved);
    ku_text_print(what, sizeof what, "step %lld: loss %g, first %s%.180s %s",
                  (long long)r->step + 1, report[KU_REPORT_LOSS],
                  first.tensor ? "in the gradient of " : "in the loss",
                  first.tensor ? first.tensor : "", whose);
    if (!is_skipped)
        return KU_ERR(KUMI_ENUMERIC,
                      "not finite: %s; %s; lower optimizer.lr, or set train.on_nonfinite=skip",
                      what, saved);
    if (is_first(r))
        KU_LOG(TRAIN, WARN, "not finite: %s: update skipped", what);
    return KUMI_OK;
}

static bool is_due(struct ku_span every, int64_t step, const struct run *r)
{
    int64_t n = ku_span_steps(every, ku_session_steps_per_epoch(&r->s));
    return n > 0 && step % n == 0;
}

/* The update of a parameter server; r->step stays if the job was stopped before it. */
static int one_update(struct run *r)
{
    int64_t version;
    const double scale = ku_trainer_loss_scale(r->s.t);
    const int64_t begin_ns = ku_clock_ns();
    KU_TRY(ku_remote_serve(r->engine, r->step + 1));
    r->report.update_ns = ku_clock_ns() - begin_ns;
    const double *report = ku_remote_report(r->engine, &version);
    if (version == r->step)
        return KUMI_OK;
    if (report[KU_REPORT_APPLY] == 0)
        KU_TRY(nonfinite(r, report, scale));
    else
        r->n_skipped = 0;
    KU_TRY(begin_writing(r));
    return ku_run_report_step(&r->report, ++r->step, report, 0);
}

static int one_step(struct run *r)
{
    const double *report;
    if (r->engine)
        return one_update(r);
    int64_t begin = ku_clock_ns();
    KU_TRY(ku_agree_local(r->job, ku_session_fill_train(&r->s, r->step)));
    int64_t data_ns = ku_clock_ns() - begin;
    double scale = ku_trainer_loss_scale(r->s.t);
    ku_run_report_before(&r->report, r->step, begin);
    KU_TRY(ku_trainer_step(r->s.t, r->step, &report));
    ku_run_report_after(&r->report, r->step);
    if (report[KU_REPORT_APPLY] == 0)
        KU_TRY(nonfinite(r, report, scale));
    else
        r->n_skipped = 0;
    KU_TRY(begin_writing(r));
    return ku_run_report_step(&r->report, ++r->step, report, data_ns);
}

/* A checkpoint that server 0 was asked for, now. */
static int save_wanted(struct run *r)
{
    int64_t word = 0;
    if (r->server == NULL || r->server->wants_saving == NULL)
        return KUMI_OK;
    if (is_first(r))
        word = r->server->wants_saving(r->server->ctx) && r->has_begun;
    KU_TRY(ku_agree_max(r->job, &word));
    if (word)
        KU_TRY(save(r, 0));
    return word ? look_after(r, 1) : KUMI_OK;
}

/*
 * A run that was stopped at a step with an evaluation due makes up for it after the resume. Its
 * line is written when the first step is done.
 */
static int evaluate_missed(struct run *r)
{
    int64_t is_missing = 0;
    if (r->found[0] == '\0' || r->step == 0 || r->step >= r->end || r->o->is_trial || r->server ||
        !is_due(r->s.cfg.train_eval_every, r->step, r))
        return KUMI_OK;
    if (is_first(r))
        is_missing = !ku_metrics_file_has_eval(r->dir.path, r->step);
    KU_TRY(ku_agree_max(r->job, &is_missing));
    if (!is_missing)
        return KUMI_OK;
    KU_TRY(find_val_loss(r, &r->missed.loss));
    r->missed.step = r->stop_word ? 0 : r->step;
    return KUMI_OK;
}

/* Whether a run that is stopped before its first step leaves an earlier run as it is. */
static int spares_earlier(struct run *r, int64_t *spares)
{
    *spares = r->found[0] != '\0' || (is_first(r) && ku_rundir_has_run(&r->dir));
    return ku_agree_max(r->job, spares);
}

/* What is due after a step that is not the last. */
static int after_step(struct run *r)
{
    const struct ku_config *c = &r->s.cfg;
    const bool is_saved = is_due(c->checkpoint_every, r->step, r);
    if (c->train_verify_every.n < 0 ? is_saved : is_due(c->train_verify_every, r->step, r))
        KU_TRY(ku_trainer_verify_replicas(r->s.t));
    if (r->step == r->end)
        return KUMI_OK;
    if (is_saved)
        KU_TRY(save(r, 0));
    if (is_due(c->train_eval_every, r->step, r))
        KU_TRY(evaluate(r));
    return r->stop_word ? KUMI_OK : ku_run_report_profile(&r->report, 0);
}

static int loop(struct run *r)
{
    int64_t spares = 0;
    KU_TRY(poll_stop(r)); /* a signal during preparation */
    if (!r->stop_word)
        KU_TRY(evaluate_missed(r));
    while (!r->stop_word && r->step < r->end) {
        KU_TRY(one_step(r));
        KU_TRY(look_after(r, 0));
        KU_TRY(poll_stop(r));
        if (r->stop_word)
            break;
        KU_TRY(save_wanted(r));
        KU_TRY(after_step(r));
    }
    if (r->stop_word && !r->has_begun)
        KU_TRY(spares_earlier(r, &spares));
    if (spares)
        return KUMI_OK;
    KU_TRY(begin_writing(r));
    KU_TRY(save(r, 1));
    if (!r->stop_word)
        KU_TRY(evaluate(r));
    return ku_run_report_profile(&r->report, 1);
}

/* Path of the last checkpoint; "" in a timed run, which has none. */
static void last_checkpoint(const struct run *r, char path[KU_CKPT_PATH_BYTES])
{
    path[0] = '\0';
    if (!r->o->is_trial)
        snprintf(path, KU_CKPT_PATH_BYTES, "%s/step-%08lld", r->checkpoints,
                 (long long)r->last_saved);
}

/* The error of a run that was stopped: why, at which step, and where the state is. */
static int stopped(const struct run *r)
{
    char why[32] = "--max-time reached";
    const bool is_untouched = !r->has_begun && r->found[0] == '\0';
    const char *kept = is_untouched     ? "nothing was written into "
                       : r->o->is_trial ? "a timed run saves no state"
                                        : "the state is in ";
    if (r->stop_word != WORD_TIME)
        snprintf(why, sizeof why, "signal %d", r->stop_word - WORD_SIGNAL);
    return KU_ERR(KUMI_ESTOPPED, "stopped: %s: step %lld; %s%s", why, (long long)r->step, kept,
                  is_untouched ? r->result->out : r->result->checkpoint);
}

static int run_all(struct run *r)
{
    char last[KU_CKPT_PATH_BYTES];
    KU_TRY(prepare(r));
    if (!r->is_complete)
        KU_TRY(loop(r));
    last_checkpoint(r, last);
    if (r->has_begun)
        KU_TRY(ku_run_report_finish(&r->report, r->dir.path, r->step, last));
    else if (r->found[0]) /* complete, or stopped before a step */
        KU_TRY(ku_run_report_complete(&r->report, r->step, last));
    return r->stop_word ? stopped(r) : KUMI_OK;
}

int ku_run_rank(struct ku_job *job, int heeds_signals, const struct kumi_train_options *options,
                const struct ku_run_server *server, struct kumi_train_result *result)
{
    struct run r = {.o = options,
                    .server = server,
                    .result = result,
                    .job = job,
                    .dir = {.lock_fd = -1},
                    .last_saved = -1,
                    .gathered = -1,
                    .begin_ns = ku_clock_ns()};
    ku_run_report_init(&r.report, job, &r.s, options, result);
    int status = heeds_signals ? ku_job_heed_signals(job) : KUMI_OK;
    if (status == KUMI_OK)
        status = run_all(&r);
    struct kumi_error error = *ku_err_get();
    close_engine(&r, status);
    result->is_reported = status < 0;
    if (status == KUMI_ESTOPPED && is_first(&r) && !ku_job_has_failed(job))
        KU_MESSAGE(WARN, "kumi: %s", error.text);
    else if (status < 0 && status != KUMI_ESTOPPED)
        status = ku_job_fail(job);
    ku_run_report_fini(&r.report);
    ku_session_fini(&r.s);
    ku_rundir_close(&r.dir);
    ku_free(r.checkpoints);
    ku_free(r.stored);
    if (status < 0)
        ku_err_put(&error);
    return status;
}
