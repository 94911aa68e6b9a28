/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A training run, from the view of one rank:
 *
 *   prepare   directory, configuration, data, trainer, first state or checkpoint
 *   loop      data -> step -> metrics -> poll checkpoint -> stop? -> evaluate, verify, save if due
 *   finish    final checkpoint, evaluation, summary.json
 *
 * Decisions of a single rank (stop signal, time limit, non-finite value) are combined over all
 * ranks once per step, so that all ranks act on them at the same step.
 */
#include "kumi/run.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arg.h"
#include "base/clock.h"
#include "base/env.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/os/process.h"
#include "base/term.h"
#include "ckpt/snapshot/snapshot.h"
#include "config/deepspeed.h"
#include "train/ineffective_keys.h"
#include "comm/consensus.h"
#include "comm/world.h"
#include "train/metrics.h"
#include "model/model.h"
#include "train/nonfinite.h"
#include "train/provenance.h"
#include "sim/machine_limits.h"
#include "config/precision_policy.h"
#include "train/profile.h"
#include "train/progress_line.h"
#include "sim/roofline.h"
#include "train/recompute_budget.h"
#include "train/resume.h"
#include "config/optimizer.h"
#include "train/rundir.h"
#include "train/session.h"
#include "train/summary.h"
#include "train/step_times.h"

enum { MAX_SKIPPED = 100, WORD_TIME = 1, WORD_SIGNAL = 2 };

struct run {
    const struct kumi_train_options *o;
    struct kumi_train_result *result;
    struct ku_job *job;
    struct ku_session s;
    struct ku_rundir dir;
    struct ku_metrics *metrics;     /* rank 0 */
    struct ku_limits limits;        /* rank 0 */
    double peak_flops;              /* peak of limits for the matrix dtype; 0: unknown */
    char *checkpoints;              /* OUT/checkpoints, on every rank */
    char found[KU_CKPT_PATH_BYTES]; /* checkpoint to resume from; empty: none */
    struct ku_origin was;           /* provenance of that checkpoint */
    char *stored;                   /* its model/ folder */
    struct ku_profile *profile;     /* NULL: not requested */
    struct ku_trial *trial;         /* NULL: not a timed run */
    int64_t step, last_saved, saving_step, end, begin_ns;
    int n_skipped, stop_word;
    /* A step was done, or none is left to do: files of this run are written into the directory. */
    int has_begun;
    int is_complete;           /* resumed, with nothing left to do or to write */
    double loss;               /* of the last step, NaN before the first */
    int64_t pss_bytes, pss_ns; /* memory of this rank, and when it was read */
};

static bool is_first(const struct run *r)
{
    return r->job->rank == 0;
}

/* Directory and checkpoint, broadcast from rank 0. */
struct opening {
    char out[512], found[KU_CKPT_PATH_BYTES];
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
    return r->checkpoints ? KUMI_OK : KUMI_ENOMEM;
}

/*
 * A resume with different numerics keys is an error that names them, or a message with
 * --allow-change.
 */
static int check_numerics(struct run *r, const json_t *was)
{
    struct ku_str names = {0};
    int n = ku_config_compare(was, r->s.numerics, &names);
    int status = KUMI_OK;
    if (n && !r->o->allow_change)
        status = KU_ERR(KUMI_EINVAL,
                        "resume: %s: %.160s%s differ%s from the checkpoint: its results would not "
                        "continue bit for bit; undo the change%s, or continue with --allow-change",
                        r->found, ku_str_get(&names), names.bytes > 160 ? " …" : "",
                        n == 1 ? "s" : "", n == 1 ? "" : "s");
    else if (n && is_first(r))
        ku_term_line(
            "kumi: changed since the checkpoint: %s; its results do not continue bit for bit",
            ku_str_get(&names));
    ku_str_fini(&names);
    return status;
}

static int configure_session(struct run *r)
{
    const struct kumi_settings *set = &r->o->settings;
    struct ku_ckpt c;
    if (r->found[0] == '\0')
        return ku_session_configure(&r->s, set->config, set->set, set->n_sets, NULL, r->job->n);
    KU_TRY(ku_ckpt_open(r->found, &c));
    json_t *was = json_object_get(c.manifest.root, "numerics");
    r->stored = ku_asprintf("%s/model", r->found);
    r->s.stored = r->stored;
    int status = r->stored == NULL ? KUMI_ENOMEM
                                   : ku_session_configure(&r->s, set->config, set->set, set->n_sets,
                                                          was, r->job->n);
    if (status == KUMI_OK)
        status = check_numerics(r, was);
    ku_origin_of(&c, &r->was);
    ku_ckpt_close(&c);
    return status;
}

static int configure(struct run *r)
{
    KU_TRY(configure_session(r));
    if (is_first(r))
        ku_deepspeed_warn(&r->s.cfg);
    return KUMI_OK;
}

/* Different data are an error; another instruction set or build is a message. */
static int check_origin(struct run *r)
{
    struct ku_origin is;
    char what[400];
    ku_origin_here(r->s.t->isa, r->s.data->fingerprint, &is);
    int status = ku_origin_compare(&r->was, &is, r->found, what);
    if (what[0] && is_first(r))
        ku_term_line(
            "kumi: changed since the checkpoint: %s; its results do not continue bit for bit",
            what);
    return r->o->allow_change ? KUMI_OK : status;
}

static int load_checkpoint(struct run *r)
{
    KU_TRY(check_origin(r));
    if (r->o->resume_step > 0) /* only that one, no fallback */
        KU_TRY(ku_trainer_load(r->s.t, r->found, &r->step));
    else
        KU_TRY(ku_trainer_resume(r->s.t, r->checkpoints, r->found, &r->step));
    if (is_first(r))
        ku_session_add_verified(&r->s, r->found);
    r->last_saved = r->step;
    return KUMI_OK;
}

/*
 * Machine limits for mfu. Rank 0 measures while the other ranks wait for the first step.
 */
static void know_limits(struct run *r)
{
    const char *compute = r->s.cfg.precision_compute;
    int n_cores = ku_session_cores(&r->s, r->job->local_n);
    if (r->trial)
        ku_limits_read(n_cores, r->job->n, &r->limits);
    else
        ku_limits_measure(r->job, n_cores, &r->limits);
    if (strcmp(compute, "bf16") == 0)
        r->peak_flops = r->limits.flops_bf16;
    else if (strcmp(compute, "f64") != 0) /* f16 products are computed in f32 */
        r->peak_flops = r->limits.flops_f32;
    if (!(r->peak_flops > 0) && r->trial == NULL)
        KU_LOG(TRAIN, WARN, "mfu is null: no matrix peak is known for %s", compute);
}

static int create_profile(struct run *r)
{
    const struct kumi_train_options *o = r->o;
    struct ku_profile_opts opts = {o->profile, o->profile_by, o->profile_sort, o->profile_rows};
    if (o->profile == NULL)
        return KUMI_OK;
    if (is_first(r))
        snprintf(r->result->profile, sizeof r->result->profile, "%s/profile.txt", r->result->out);
    return ku_profile_create(&opts, r->s.t, r->step, r->end, &r->profile);
}

static int write_first(struct run *r)
{
    KU_TRY(ku_rundir_begin(&r->dir));
    if (r->found[0])
        KU_TRY(ku_resume_cut(r->dir.path, r->step));
    if (r->s.pairs.data)
        KU_TRY(ku_pairs_save_vocab(&r->s.pairs, r->dir.path));
    return ku_metrics_open(r->dir.path, r->step, r->s.flops_per_item, r->peak_flops, &r->metrics);
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
    return ku_agree_local(r->job, is_first(r) ? write_first(r) : KUMI_OK);
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
        word =
            ku_summary_is_of(r->dir.path, r->step, r->s.eval_samples > 0, &r->result->val_loss) ||
            r->step > r->end || r->o->resume_step > 0;
    KU_TRY(ku_agree_max(r->job, &word));
    r->is_complete = word > 0;
    return KUMI_OK;
}

static void say_resumed(const struct run *r)
{
    const char *out = r->dir.path;
    long long step = r->step, all = r->s.n_steps;
    if (r->found[0])
        ku_term_line("kumi: resumed %s at step %lld", r->found, step);
    if (r->is_complete && r->end < all)
        ku_term_line(
            "kumi: %s: complete at step %lld, nothing is written; a later --until, or none, "
            "continues it to step %lld, --set train.steps=N beyond",
            out, step, all);
    else if (r->is_complete)
        ku_term_line(
            "kumi: %s: complete at step %lld, nothing is written; --set train.steps=N, N above "
            "%lld, extends it",
            out, step, step);
    else if (step >= r->end)
        ku_term_line("kumi: %s: no step is left to do; evaluation and summary.json complete it",
                     out);
}

/* Print the lines before the first step. */
static void announce(struct run *r)
{
    struct ku_str batch = {0};
    ku_session_print_batch(&r->s, &batch);
    ku_str_add(&batch, ", ");
    ku_precision_print(&r->s.cfg, &batch);
    ku_term_line("kumi: %s: %lld parameters, %d rank%s, %s on %s, %s",
                 r->s.model.path ? r->s.model.path : ku_model_type(&r->s.model),
                 (long long)r->s.n_params, r->job->n, r->job->n == 1 ? "" : "s", ku_str_get(&batch),
                 ku_cpu_isa_name(r->s.t->isa), r->dir.path);
    ku_str_fini(&batch);
    ku_session_print_recompute(&r->s, &batch);
    if (batch.bytes)
        ku_term_line("kumi: %s", ku_str_get(&batch));
    ku_str_fini(&batch);
    const struct ku_lr_scaling *scaling = &r->s.cfg.optimizer_lr_scaling;
    if (scaling->rule != KU_SCALING_NONE)
        ku_term_line("kumi: learning rate %g = %g x %s(%lld / %lld)",
                     r->s.cfg.optimizer_lr * ku_rule_lr_factor(&r->s.cfg, r->s.batch.global_batch),
                     r->s.cfg.optimizer_lr, scaling->rule == KU_SCALING_SQRT ? "sqrt" : "",
                     (long long)r->s.batch.global_batch, (long long)scaling->base_batch);
    say_resumed(r);
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

static int prepare(struct run *r)
{
    KU_TRY(open_directory(r));
    KU_TRY(configure(r));
    KU_TRY(ku_session_open_data(&r->s, r->job));
    if (is_first(r))
        ku_effect_warn(&r->s);
    r->end = r->s.n_steps;
    if (r->o->until > 0 && r->o->until < r->end)
        r->end = r->o->until;
    KU_TRY(create_trainer(r));
    KU_TRY(ku_session_open_saving(&r->s));
    KU_TRY(ku_session_take_companions(&r->s, r->job));
    KU_TRY(r->found[0] ? load_checkpoint(r) : ku_session_first_state(&r->s));
    KU_TRY(check_complete(r));
    if (!r->is_complete && r->step < r->end)
        KU_TRY(create_profile(r));
    if (r->o->is_trial)
        KU_TRY(ku_trial_create(r->end - r->step, &r->trial));
    if (is_first(r) && !r->is_complete)
        know_limits(r);
    if (is_first(r))
        announce(r);
    return KUMI_OK;
}

/*
 * Handle the result of the checkpoint of `step`. A failure is a warning, except for the last
 * checkpoint.
 */
static int note_saved(struct run *r, int64_t step, int status, int is_final)
{
    if (status == KUMI_OK)
        r->last_saved = step;
    if (status == KUMI_OK && r->s.cfg.parallel_gather_16bit_on_save)
        status = ku_session_gather_16bit(&r->s, r->checkpoints, step, r->dir.path);
    if (status != KUMI_ESTORAGE || is_final || ku_job_has_failed(r->job))
        return status;
    if (is_first(r))
        KU_LOG(CKPT, WARN, "%s; training continues", ku_err_get()->text);
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

static int save(struct run *r, int is_final)
{
    if (r->trial)
        return KUMI_OK;
    KU_TRY(look_after(r, 1));
    if (r->last_saved == r->step)
        return KUMI_OK;
    r->saving_step = r->step;
    int64_t begin_ns = ku_clock_ns();
    int status = is_final ? ku_session_save(&r->s, r->checkpoints, r->step)
                          : ku_session_save_start(&r->s, r->checkpoints, r->step);
    ku_profile_note(r->profile, r->step - 1, KU_PROFILE_CHECKPOINT, begin_ns, ku_clock_ns());
    if (status == KUMI_OK && ku_saving_is_pending(r->s.saving))
        return KUMI_OK;
    return note_saved(r, r->step, status, is_final);
}

static double epoch_of(const struct run *r)
{
    return (double)r->step / (double)r->s.sampler.steps_per_epoch;
}

static int evaluate(struct run *r)
{
    double loss;
    if (r->trial)
        return KUMI_OK;
    KU_TRY(ku_session_evaluate(&r->s, &loss));
    r->result->val_loss = loss;
    if (r->s.eval_samples)
        ku_trainer_metrics(r->s.t, 1, &r->result->val_metrics);
    if (is_first(r) && r->s.eval_samples)
        ku_metrics_eval(r->metrics, r->step, epoch_of(r), loss, &r->result->val_metrics);
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
    snprintf(what, sizeof what, "step %lld: loss %g, first %s%.180s %s", (long long)r->step + 1,
             report[KU_REPORT_LOSS], first.tensor ? "in the gradient of " : "in the loss",
             first.tensor ? first.tensor : "", whose);
    if (!is_skipped)
        return KU_ERR(KUMI_ENUMERIC,
                      "not finite: %s; %s; lower optimizer.lr, or set train.on_nonfinite=skip",
                      what, saved);
    if (is_first(r))
        KU_LOG(TRAIN, WARN, "not finite: %s: update skipped", what);
    return KUMI_OK;
}

/* Check that replicas on ranks without shared state are bitwise equal. */
static int verify_replicas(struct run *r)
{
    const struct ku_trainer *t = r->s.t;
    if (r->job->n == 1 || t->program[KU_PROG_TRAIN]->share_host_state)
        return KUMI_OK;
    for (int i = 0; i < t->n_tensors; i++) {
        const struct ku_ckpt_tensor *x = &t->tensor[i];
        size_t bytes = kumi_dtype_bytes(x->dtype);
        if (x->data == NULL) /* partitioned: no other rank has it */
            continue;
        for (int d = 0; d < x->ndim; d++)
            bytes *= (size_t)x->padded[d];
        KU_TRY(ku_agree_equal(r->job, x->name, x->data, bytes));
    }
    return KUMI_OK;
}

static bool is_due(struct ku_span every, int64_t step, const struct run *r)
{
    int64_t n = ku_span_steps(every, r->s.sampler.steps_per_epoch);
    return n > 0 && step % n == 0;
}

/* Values that are summed over ranks in one collective: memory, and times of a step. */
enum sums {
    SUM_HELD_BYTES,
    SUM_CAN_TELL,
    SUM_EXPOSED_NS,
    SUM_WAIT_NS,
    SUM_ONCE_NS,
    SUM_TIER_NS,
    SUM_STEP_BYTES, /* bytes stored for collectives in all steps of this process */
    N_SUMS
};

/*
 * Sums over ranks. The memory of a rank is read again if the last reading is older than max_age_ns
 * (a reading takes about 10 ms per GiB). 0 bytes: some rank cannot read it. Collective.
 */
static int add_up(struct run *r, int64_t max_age_ns, int64_t sum[N_SUMS])
{
    int64_t now = ku_clock_ns();
    if (r->pss_ns == 0 || now - r->pss_ns >= max_age_ns) {
        r->pss_bytes = (int64_t)ku_os_pss();
        r->pss_ns = now;
    }
    struct ku_exec_times times = ku_exec_times(r->s.t->exec[KU_PROG_TRAIN]);
    sum[SUM_HELD_BYTES] = r->pss_bytes;
    sum[SUM_CAN_TELL] = r->pss_bytes > 0;
    sum[SUM_EXPOSED_NS] = times.exposed_ns;
    sum[SUM_WAIT_NS] = times.wait_ns;
    sum[SUM_ONCE_NS] = times.once_ns;
    sum[SUM_TIER_NS] = times.tier_ns;
    sum[SUM_STEP_BYTES] = r->s.t->step_bytes;
    KU_TRY(ku_agree_sum(r->job, sum, N_SUMS));
    if (sum[SUM_CAN_TELL] < r->job->n)
        sum[SUM_HELD_BYTES] = 0;
    return KUMI_OK;
}

static bool is_logged(const struct run *r)
{
    int64_t every = ku_span_steps(r->s.cfg.train_log_every, r->s.sampler.steps_per_epoch);
    return every > 0 && (r->step % every == 0 || r->step == 1 || r->step == r->s.n_steps);
}

/* Collective on logged steps, whose line has sums over all ranks. */
static int note_step(struct run *r, const double *report, int64_t data_ns)
{
    int64_t sum[N_SUMS] = {0};
    if (is_logged(r))
        KU_TRY(add_up(r, 1000000000, sum));
    if (!is_first(r))
        return KUMI_OK;
    struct ku_exec_times times = ku_exec_times(r->s.t->exec[KU_PROG_TRAIN]);
    double mean_ms = 1e-6 / r->job->n;
    struct kumi_result_metrics metrics = {0};
    if (is_logged(r))
        ku_trainer_metrics(r->s.t, 0, &metrics);
    struct ku_metrics_line line = {
        .step = r->step,
        .n_steps = r->s.n_steps,
        .tokens = (int64_t)report[KU_REPORT_TOKENS],
        .epoch = epoch_of(r),
        .loss = report[KU_REPORT_LOSS],
        .grad_norm = report[KU_REPORT_NORM],
        .lr = report[KU_REPORT_LR],
        .step_ms = (double)times.run_ns * 1e-6,
        .data_ms = (double)data_ns * 1e-6,
        .exposed_ms = (double)sum[SUM_EXPOSED_NS] * mean_ms,
        .wait_ms = (double)sum[SUM_WAIT_NS] * mean_ms,
        .optimizer_ms = (double)sum[SUM_ONCE_NS] * mean_ms,
        .offload_ms = (double)sum[SUM_TIER_NS] * mean_ms,
        .held_bytes = sum[SUM_HELD_BYTES],
        .loss_scale = ku_trainer_loss_scale(r->s.t),
        .n_skipped = ku_trainer_n_skipped(r->s.t),
        .samples = ku_session_is_by_samples(&r->s) ? r->s.batch.global_batch : 0,
        .metrics = &metrics};
    ku_metrics_step(r->metrics, &line, is_logged(r));
    return KUMI_OK;
}

static int one_step(struct run *r)
{
    const double *report;
    int64_t begin = ku_clock_ns();
    KU_TRY(ku_agree_local(r->job, ku_session_fill_train(&r->s, r->step)));
    int64_t data_ns = ku_clock_ns() - begin;
    double scale = ku_trainer_loss_scale(r->s.t);
    ku_profile_note(r->profile, r->step, KU_PROFILE_DATA, begin, begin + data_ns);
    ku_profile_before(r->profile, r->step);
    KU_TRY(ku_trainer_step(r->s.t, r->step, &report));
    ku_profile_after(r->profile, r->step);
    if (report[KU_REPORT_APPLY] == 0)
        KU_TRY(nonfinite(r, report, scale));
    else
        r->n_skipped = 0;
    KU_TRY(begin_writing(r));
    r->loss = report[KU_REPORT_LOSS];
    r->step++;
    struct ku_exec_times times = ku_exec_times(r->s.t->exec[KU_PROG_TRAIN]);
    ku_trial_note(r->trial, &times, data_ns, (int64_t)report[KU_REPORT_TOKENS]);
    return note_step(r, report, data_ns);
}

/* 0: continue; else the reason why all ranks stop here. */
static int stop_word(struct run *r, int64_t *word)
{
    int signal = ku_job_stop(r->job);
    double seconds = (double)(ku_clock_ns() - r->begin_ns) * 1e-9;
    *word = signal                                                ? WORD_SIGNAL + signal
            : r->o->max_time_s > 0 && seconds >= r->o->max_time_s ? WORD_TIME
                                                                  : 0;
    return ku_agree_max(r->job, word);
}

/* A run that was stopped at a step with an evaluation due makes up for it after the resume. */
static int evaluate_missed(struct run *r)
{
    int64_t is_missing = 0;
    if (r->found[0] == '\0' || r->step == 0 || r->step >= r->end ||
        !is_due(r->s.cfg.train_eval_every, r->step, r))
        return KUMI_OK;
    KU_TRY(begin_writing(r));
    if (is_first(r))
        is_missing = !ku_metrics_has_eval(r->metrics, r->step);
    KU_TRY(ku_agree_max(r->job, &is_missing));
    return is_missing ? evaluate(r) : KUMI_OK;
}

static int loop(struct run *r)
{
    int64_t word;
    KU_TRY(stop_word(r, &word)); /* a signal during preparation */
    if (!word)
        KU_TRY(evaluate_missed(r));
    while (!word && r->step < r->end) {
        KU_TRY(one_step(r));
        int64_t step = r->step;
        KU_TRY(look_after(r, 0));
        KU_TRY(stop_word(r, &word));
        if (word)
            break;
        if (step < r->end && is_due(r->s.cfg.train_eval_every, step, r))
            KU_TRY(evaluate(r));
        int is_saved = is_due(r->s.cfg.checkpoint_every, step, r);
        if (r->s.cfg.train_verify_every.n < 0 ? is_saved
                                              : is_due(r->s.cfg.train_verify_every, step, r))
            KU_TRY(verify_replicas(r));
        if (step < r->end && is_saved)
            KU_TRY(save(r, 0));
        if (step < r->end)
            KU_TRY(ku_profile_write(r->profile, r->result->out, 0));
    }
    r->stop_word = (int)word;
    KU_TRY(begin_writing(r));
    if (!word)
        KU_TRY(evaluate(r));
    KU_TRY(save(r, 1));
    return ku_profile_write(r->profile, r->result->out, 1);
}

/* At most 16 points of the curve, including the last. */
static void note_curve(struct run *r)
{
    enum { MOST = 16 };
    json_t *curve = ku_metrics_curve(r->metrics);
    size_t n = json_array_size(curve), at = 0, every = (n + MOST - 1) / MOST;
    char *out = r->result->curve;
    for (size_t i = n ? (n - 1) % every : 0; i < n; i += every) {
        json_t *point = json_array_get(curve, i);
        at += (size_t)snprintf(out + at, sizeof r->result->curve - at, "%10lld  %15.4f",
                               (long long)json_integer_value(json_array_get(point, 0)),
                               json_number_value(json_array_get(point, 1)));
        if (json_array_size(point) > 2)
            at += (size_t)snprintf(out + at, sizeof r->result->curve - at, "  %8.4f",
                                   json_number_value(json_array_get(point, 2)));
        at += (size_t)snprintf(out + at, sizeof r->result->curve - at, "\n");
    }
    json_decref(curve);
}

static void note_state(struct run *r)
{
    struct kumi_train_result *result = r->result;
    result->step = r->step;
    result->update = *ku_trainer_update_count(r->s.t);
    result->is_by_samples = ku_session_is_by_samples(&r->s);
    if (r->trial == NULL)
        snprintf(result->checkpoint, sizeof result->checkpoint, "%s/step-%08lld", r->checkpoints,
                 (long long)r->last_saved);
}

/* For a run that was already complete: the contents of its checkpoint. */
static int report_complete(struct run *r)
{
    note_state(r);
    return ku_agree(r->job,
                    is_first(r) ? ku_trainer_digest(r->s.t, 0, r->result->digest) : KUMI_OK);
}

static int finish(struct run *r)
{
    struct kumi_train_result *result = r->result;
    note_state(r);
    if (r->trial)
        KU_TRY(ku_agree_local(r->job, ku_trial_write(r->trial, r->job->rank,
                                                     result->is_by_samples ? "samples" : "tokens",
                                                     result->out)));
    int64_t sum[N_SUMS], n_skipped;
    KU_TRY(add_up(r, 0, sum));
    KU_TRY(ku_session_count_skipped(&r->s, r->job, &n_skipped));
    int status = KUMI_OK;
    if (is_first(r)) {
        result->median_tps = ku_metrics_median_tps(r->metrics);
        note_curve(r);
        if (r->trial == NULL)
            status = ku_trainer_digest(r->s.t, 0, result->digest);
        struct ku_summary summary = {.result = result,
                                     .metrics = r->metrics,
                                     .limits = &r->limits,
                                     .t = r->s.t,
                                     .loss = r->loss,
                                     .held_bytes = sum[SUM_HELD_BYTES],
                                     .step_bytes = sum[SUM_STEP_BYTES],
                                     .n_unread = n_skipped};
        if (status == KUMI_OK)
            status = ku_summary_write(r->dir.path, &summary);
    }
    return ku_agree(r->job, status);
}

static int run_all(struct run *r)
{
    KU_TRY(prepare(r));
    if (r->is_complete)
        return report_complete(r);
    KU_TRY(loop(r));
    KU_TRY(finish(r));
    const char *kept = r->trial ? "a trial saves no state" : "the state is in ";
    if (r->stop_word == WORD_TIME)
        return KU_ERR(KUMI_ESTOPPED, "stopped: --max-time reached: step %lld; %s%s",
                      (long long)r->step, kept, r->result->checkpoint);
    if (r->stop_word)
        return KU_ERR(KUMI_ESTOPPED, "stopped: signal %d: step %lld; %s%s",
                      r->stop_word - WORD_SIGNAL, (long long)r->step, kept, r->result->checkpoint);
    return KUMI_OK;
}

/*
 * Settings that a job needs before its ranks read the configuration. If the configuration cannot be
 * read, the job reports the error once.
 */
struct joining {
    struct ku_job_opts opts;
    int is_threaded;
};

static struct joining joining_of(const struct kumi_settings *set)
{
    struct ku_config cfg;
    struct joining j = {.opts = {.threads = 1, .timeout_ns = INT64_C(60000000000)}};
    int threads = ku_env_threads();
    if (threads)
        j.opts.threads = threads;
    if (ku_config_load(set->config, set->set, set->n_sets, ku_model_hidden_size, &cfg) == KUMI_OK) {
        j.opts.timeout_ns = (int64_t)(cfg.parallel_timeout_s * 1e9);
        j.is_threaded = strcmp(cfg.parallel_transport, "thread") == 0;
        ku_config_fini(&cfg);
    }
    return j;
}

int kumi_train_in_threads(const struct kumi_settings *settings)
{
    KU_GIVEN_OR(0, settings, "settings");
    return joining_of(settings).is_threaded;
}

/* Run one rank, a process or a thread, in a job that the caller joins and leaves. */
static int train_rank(struct ku_job *job, int heeds_signals,
                      const struct kumi_train_options *options, struct kumi_train_result *result)
{
    struct run r = {.o = options,
                    .result = result,
                    .job = job,
                    .dir = {.lock_fd = -1},
                    .last_saved = -1,
                    .loss = (double)NAN,
                    .begin_ns = ku_clock_ns()};
    memset(result, 0, sizeof *result);
    result->val_loss = (double)NAN;
    int status = heeds_signals ? ku_job_heed_signals(job) : KUMI_OK;
    if (status == KUMI_OK)
        status = run_all(&r);
    struct kumi_error error = *ku_err_get();
    result->is_reported = status < 0;
    if (status == KUMI_ESTOPPED && is_first(&r) && !ku_job_has_failed(job))
        ku_term_line("kumi: %s", error.text);
    else if (status < 0 && status != KUMI_ESTOPPED)
        status = ku_job_fail(job);
    ku_metrics_close(r.metrics);
    ku_profile_destroy(r.profile);
    ku_trial_destroy(r.trial);
    ku_session_fini(&r.s);
    ku_rundir_close(&r.dir);
    ku_free(r.checkpoints);
    ku_free(r.stored);
    if (status < 0)
        ku_err_put(&error);
    return status;
}

struct threads {
    const struct kumi_train_options *options;
    struct kumi_train_result *result; /* [ranks] */
    struct kumi_error stopped;        /* status 0: not stopped */
};

static int train_thread(struct ku_job *job, void *arg)
{
    struct threads *t = arg;
    int status = train_rank(job, job->rank == 0, t->options, &t->result[job->rank]);
    if (status != KUMI_ESTOPPED)
        return status;
    if (job->rank == 0)
        t->stopped = *ku_err_get();
    return KUMI_OK; /* a stopped rank leaves the job like a finished one */
}

/* Stop signals are blocked in all threads except rank 0's service thread. */
static int train_threads(const struct kumi_train_options *options, const struct joining *j,
                         struct kumi_train_result *result)
{
    struct ku_job_opts opts = j->opts;
    struct threads t = {.options = options};
    sigset_t stops, old;
    if (ku_env_threads() == 0)
        opts.threads = ku_os_n_cpus() / options->ranks; /* 0 means 1 */
    opts.transport = "thread";
    t.result = ku_calloc((size_t)options->ranks, sizeof *t.result);
    if (t.result == NULL)
        return KUMI_ENOMEM;
    ku_os_stop_signals(&stops);
    pthread_sigmask(SIG_BLOCK, &stops, &old);
    int status = ku_comm_threads(options->ranks, &opts, train_thread, &t);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    *result = t.result[0];
    for (int i = 1; i < options->ranks; i++)
        result->is_reported |= t.result[i].is_reported;
    ku_free(t.result);
    return status == KUMI_OK && t.stopped.status < 0 ? ku_err_put(&t.stopped) : status;
}

static int check_ranks(const struct ku_job *job, int ranks, int is_threaded)
{
    if (is_threaded && job->n > 1)
        return KU_ERR(KUMI_EINVAL,
                      "parallel.transport: thread: %s started %d processes; set auto, or start the "
                      "ranks with -n",
                      job->launcher, job->n);
    if (ranks < 0 || (ranks > 1 && !is_threaded))
        return KU_ERR(KUMI_EINVAL,
                      "rank count: %d in one process; give 1, or set parallel.transport to thread",
                      ranks);
    return KUMI_OK;
}

static int check_options(const struct kumi_train_options *o)
{
    if (o->resume < KU_RESUME_NO || o->resume > KU_RESUME_AUTO)
        return KU_ERR(KUMI_EINVAL, "train: resume: %d; give %d to %d", o->resume, KU_RESUME_NO,
                      KU_RESUME_AUTO);
    if (o->out && o->out[0] == '\0')
        return KU_ERR(KUMI_EINVAL, "train: --out: empty; name a directory");
    if (o->until < 0 || !(o->max_time_s >= 0))
        return KU_ERR(KUMI_EINVAL,
                      "train: --until: %lld, --max-time: %g s; neither may be negative",
                      (long long)o->until, o->max_time_s);
    if (o->overwrite && o->resume)
        return KU_ERR(KUMI_EINVAL, "train: overwrite and resume exclude each other; give one");
    if (o->is_trial && o->resume)
        return KU_ERR(KUMI_EINVAL, "train: a trial saves no state; it cannot resume");
    if (o->resume_step < 0 || (o->resume_step > 0 && o->resume != KU_RESUME_YES))
        return KU_ERR(KUMI_EINVAL, "train: resume_step %lld with resume %d; a step needs resume 1",
                      (long long)o->resume_step, o->resume);
    if (o->out && strlen(o->out) >= sizeof((struct opening *)0)->out)
        return KU_ERR(KUMI_EINVAL, "run directory: a path of %zu bytes; at most %zu are allowed",
                      strlen(o->out), sizeof((struct opening *)0)->out - 1);
    return KUMI_OK;
}

int kumi_train(const struct kumi_train_options *options, struct kumi_train_result *result)
{
    KU_GIVEN(options, "options");
    KU_GIVEN(options->settings.config, "options.settings.config");
    KU_GIVEN(result, "result");
    struct joining j = joining_of(&options->settings);
    struct ku_job *job = NULL;
    memset(result, 0, sizeof *result);
    result->val_loss = (double)NAN;
    int status = ku_comm_join(&j.opts, &job);
    if (status < 0) { /* a rank that has joined may already have printed the error */
        result->is_reported = ku_err_get()->scope == KUMI_SCOPE_JOB;
        return status;
    }
    status = check_options(options);
    if (status == KUMI_OK)
        status = check_ranks(job, options->ranks, j.is_threaded);
    if (status < 0) {
        status = ku_job_fail(job);
        result->is_reported = 1;
    } else if (options->ranks > 1) {
        KU_TRY(ku_comm_leave(job));
        return train_threads(options, &j, result);
    } else {
        status = train_rank(job, 1, options, result);
    }
    struct kumi_error error = *ku_err_get();
    int left = ku_comm_leave(job);
    if (status == KUMI_OK && left < 0) {
        result->is_reported = ku_err_get()->scope == KUMI_SCOPE_JOB;
        return left;
    }
    return status < 0 ? (ku_err_put(&error), status) : KUMI_OK;
}
