/* SPDX-License-Identifier: Apache-2.0 */
#include "run/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/os/os.h"
#include "comm/consensus.h"
#include "comm/world.h"
#include "config/optimizer.h"
#include "config/precision_policy.h"
#include "model/model.h"
#include "sim/machine_limits.h"
#include "sim/roofline.h"
#include "run/summary.h"

static bool is_first(const struct ku_run_report *r)
{
    return r->job->rank == 0;
}

void ku_run_report_init(struct ku_run_report *r, struct ku_job *job, struct ku_session *s,
                        const struct kumi_train_options *o, struct kumi_train_result *result)
{
    *r = (struct ku_run_report){.o = o, .result = result, .job = job, .s = s, .loss = (double)NAN};
    memset(result, 0, sizeof *result);
    result->val_loss = (double)NAN;
}

void ku_run_report_fini(struct ku_run_report *r)
{
    ku_metrics_close(r->metrics);
    ku_profile_destroy(r->profile);
    ku_step_times_destroy(r->trial);
}

/*
 * Count the cores of all machines: each rank adds its part of those that it shares, so hosts on one
 * machine count its cores once. Collective.
 */
static int count_cores(struct ku_run_report *r)
{
    enum { CORE = 1000000 }; /* a part may be a fraction of a core */
    int n_ranks, n_cores = ku_trainer_cores(r->s->t, &n_ranks);
    int64_t part = llround((double)CORE * n_cores / n_ranks);
    KU_TRY(ku_agree_sum(r->job, &part, 1));
    r->n_cores = (int)((part + CORE / 2) / CORE);
    return KUMI_OK;
}

/* The peak of the job is that of this machine, for as many cores as the job has on all machines. */
static void find_limits(struct ku_run_report *r)
{
    const char *compute = r->s->cfg.precision_compute;
    int n_ranks, n_cores = ku_trainer_cores(r->s->t, &n_ranks);
    if (r->trial)
        ku_limits_read(n_cores, n_ranks, &r->limits);
    else
        ku_limits_measure(r->job, n_cores, n_ranks, &r->limits);
    if (strcmp(compute, "bf16") == 0)
        r->peak_flops = r->limits.flops_bf16;
    else if (strcmp(compute, "f64") != 0) /* f16 products are computed in f32 */
        r->peak_flops = r->limits.flops_f32;
    r->peak_flops *= (double)r->n_cores / n_cores;
    if (!(r->peak_flops > 0) && r->trial == NULL)
        KU_LOG(TRAIN, WARN, "mfu is null: no matrix peak is known for %s", compute);
}

static int create_profile(struct ku_run_report *r, const struct ku_run_report_start *at)
{
    const struct kumi_train_options *o = r->o;
    struct ku_profile_opts opts = {o->profile, o->profile_by, o->profile_sort, o->profile_rows};
    if (o->profile == NULL)
        return KUMI_OK;
    KU_TRY(ku_profile_create(&opts, r->s->t, at->step, at->end, &r->profile));
    if (is_first(r) && r->profile)
        snprintf(r->result->profile, sizeof r->result->profile, "%s/profile.txt", r->result->out);
    else if (is_first(r))
        KU_MESSAGE(INFO,
                   "kumi: profile: %s: the run has done these steps and continues after step %lld; "
                   "nothing is profiled",
                   o->profile, (long long)at->step);
    return KUMI_OK;
}

int ku_run_report_prepare(struct ku_run_report *r, const struct ku_run_report_start *at)
{
    r->end = at->end;
    if (!at->is_complete && at->step < at->end)
        KU_TRY(create_profile(r, at));
    if (r->o->is_trial)
        KU_TRY(ku_step_times_create(at->end - at->step, &r->trial));
    if (!at->is_complete)
        KU_TRY(count_cores(r));
    if (is_first(r) && !at->is_complete)
        find_limits(r);
    return KUMI_OK;
}

static void say_resumed(const struct ku_run_report_start *at, long long all)
{
    const char *out = at->dir;
    long long step = at->step;
    if (at->found[0])
        KU_MESSAGE(INFO, "kumi: resumed %s at step %lld", at->found, step);
    if (at->is_complete && at->end < all)
        KU_MESSAGE(INFO,
                   "kumi: %s: complete at step %lld, nothing is written; a later --until, or none, "
                   "continues it to step %lld, --set train.steps=N beyond",
                   out, step, all);
    else if (at->is_complete)
        KU_MESSAGE(
            INFO,
            "kumi: %s: complete at step %lld, nothing is written; --set train.steps=N, N above "
            "%lld, extends it",
            out, step, step);
    else if (step >= at->end)
        KU_MESSAGE(INFO,
                   "kumi: %s: no step remains; only the evaluation and summary.json are missing",
                   out);
}

static void say_hosts(const struct ku_job *job)
{
    char net[320];
    if (job->n_hosts == 1)
        return;
    ku_comm_describe(job, net, sizeof net);
    KU_MESSAGE(INFO, "kumi: %d hosts by %s", job->n_hosts, net);
}

void ku_run_report_announce(const struct ku_run_report *r, const struct ku_run_report_start *at)
{
    struct ku_str batch = {0}, ranks = {0};
    if (!is_first(r))
        return;
    if (r->s->sharding.tp > 1)
        ku_str_add(&batch, "%d data-parallel x tp %d, ", r->s->batch.n_ranks, r->s->sharding.tp);
    ku_session_print_pipeline(r->s, &batch);
    r->s->source->ops->print(r->s->source, &batch);
    ku_str_add(&batch, ", ");
    ku_precision_print(&r->s->cfg, &batch);
    if (r->s->t->remote)
        ku_str_add(&ranks, "%d worker%s, ", r->s->batch.n_ranks,
                   r->s->batch.n_ranks == 1 ? "" : "s");
    ku_str_add(&ranks, "%d %s%s", r->job->n, r->s->t->remote ? "server" : "rank",
               r->job->n == 1 ? "" : "s");
    KU_MESSAGE(INFO, "kumi: %s: %lld parameters, %s, %s on %s, %s",
               r->s->model.path ? r->s->model.path : ku_model_type(&r->s->model),
               (long long)r->s->n_params, ku_str_get(&ranks), ku_str_get(&batch),
               ku_cpu_isa_name(r->s->t->isa), at->dir);
    say_hosts(r->job);
    ku_str_fini(&ranks);
    ku_str_fini(&batch);
    ku_session_print_recompute(r->s, &batch);
    if (batch.bytes)
        KU_MESSAGE(INFO, "kumi: %s", ku_str_get(&batch));
    ku_str_fini(&batch);
    const struct ku_lr_scaling *scaling = &r->s->cfg.optimizer_lr_scaling;
    if (scaling->rule != KU_SCALING_NONE && ku_rule_reads_lr(&r->s->cfg))
        KU_MESSAGE(INFO, "kumi: learning rate %g = %g x %s(%lld / %lld)",
                   r->s->cfg.optimizer_lr * ku_rule_lr_factor(&r->s->cfg, r->s->batch.global_batch),
                   r->s->cfg.optimizer_lr, scaling->rule == KU_SCALING_SQRT ? "sqrt" : "",
                   (long long)r->s->batch.global_batch, (long long)scaling->base_batch);
    say_resumed(at, r->s->n_steps);
}

int ku_run_report_open(struct ku_run_report *r, const char *dir, int64_t step)
{
    return ku_metrics_open(dir, step, r->peak_flops, &r->metrics);
}

static double epoch_of(const struct ku_run_report *r, int64_t step)
{
    return (double)step / (double)ku_session_steps_per_epoch(r->s);
}

void ku_run_report_eval(struct ku_run_report *r, int64_t step, double loss)
{
    r->result->val_loss = loss;
    if (r->s->source->eval_samples == 0)
        return;
    ku_trainer_metrics(r->s->t, 1, &r->result->val_metrics);
    if (is_first(r))
        ku_metrics_eval(r->metrics, step, epoch_of(r, step), loss, &r->result->val_metrics);
}

/* Values that are summed over ranks in one collective: memory, and times of a step. */
enum sums {
    SUM_HELD_BYTES,
    SUM_CAN_TELL,
    SUM_EXPOSED_NS,
    SUM_WAIT_NS,
    SUM_ONCE_NS,
    SUM_TIER_NS,
    SUM_STEP_BYTES,   /* bytes stored for collectives in all steps of this process */
    SUM_FAR_BYTES,    /* bytes sent between hosts in them */
    SUM_PLANNED_RING, /* the plan of a step */
    SUM_PLANNED_STORED,
    SUM_PLANNED_FAR,
    N_SUMS
};

/*
 * Sums over ranks. The memory of a rank is read again if the last reading is older than max_age_ns
 * (a reading takes about 10 ms per GiB). 0 bytes: some rank cannot read it. Collective.
 */
static int add_up(struct ku_run_report *r, int64_t max_age_ns, int64_t sum[N_SUMS])
{
    int64_t now = ku_clock_ns();
    if (r->pss_ns == 0 || now - r->pss_ns >= max_age_ns) {
        r->pss_bytes = (int64_t)ku_os_pss();
        r->pss_ns = now;
    }
    struct ku_exec_times times = ku_exec_times(r->s->t->exec[KU_PROG_TRAIN]);
    sum[SUM_HELD_BYTES] = r->pss_bytes;
    sum[SUM_CAN_TELL] = r->pss_bytes > 0;
    sum[SUM_EXPOSED_NS] = times.exposed_ns;
    sum[SUM_WAIT_NS] = times.wait_ns;
    sum[SUM_ONCE_NS] = times.once_ns;
    sum[SUM_TIER_NS] = times.offload_ns;
    sum[SUM_STEP_BYTES] = r->s->t->step_bytes;
    sum[SUM_FAR_BYTES] = r->s->t->far_bytes;
    const struct ku_step_bytes *planned = &r->s->t->planned;
    const bool is_first = r->job->rank % (r->job->n / r->s->sharding.pp) == 0;
    sum[SUM_PLANNED_RING] = is_first ? llround(planned->ring) : 0; /* of its coordinate of pp */
    sum[SUM_PLANNED_STORED] = is_first ? llround(planned->stored) : 0;
    sum[SUM_PLANNED_FAR] = is_first ? llround(planned->far) : 0;
    KU_TRY(ku_agree_sum(r->job, sum, N_SUMS));
    if (sum[SUM_CAN_TELL] < r->job->n)
        sum[SUM_HELD_BYTES] = 0;
    return KUMI_OK;
}

static bool is_logged(const struct ku_run_report *r, int64_t step)
{
    int64_t every = ku_span_steps(r->s->cfg.train_log_every, ku_session_steps_per_epoch(r->s));
    return every > 0 && (step % every == 0 || step == 1 || step == r->end);
}

/* 0: unknown. A server computes no step: its workers do, on cores that it does not know. */
static double flops_of_step(const struct ku_run_report *r)
{
    return r->s->t->remote ? 0 : r->s->shape_flops[r->s->t->shape_at];
}

/* Collective on logged steps, whose line has sums over all ranks. */
static int write_step(struct ku_run_report *r, int64_t step, const double *report,
                      const struct ku_exec_times *times, int64_t data_ns)
{
    int64_t sum[N_SUMS] = {0};
    if (is_logged(r, step))
        KU_TRY(add_up(r, 1000000000, sum));
    if (!is_first(r))
        return KUMI_OK;
    double mean_ms = 1e-6 / r->job->n;
    struct kumi_result_metrics metrics = {0};
    if (is_logged(r, step))
        ku_trainer_metrics(r->s->t, 0, &metrics);
    struct ku_metrics_line line = {.step = step,
                                   .n_steps = r->end,
                                   .tokens = (int64_t)report[KU_REPORT_TOKENS],
                                   .epoch = epoch_of(r, step),
                                   .loss = report[KU_REPORT_LOSS],
                                   .grad_norm = report[KU_REPORT_NORM],
                                   .lr = report[KU_REPORT_LR],
                                   .flops = flops_of_step(r),
                                   .step_ms = (double)times->run_ns * 1e-6,
                                   .data_ms = (double)data_ns * 1e-6,
                                   .exposed_ms = (double)sum[SUM_EXPOSED_NS] * mean_ms,
                                   .wait_ms = (double)sum[SUM_WAIT_NS] * mean_ms,
                                   .optimizer_ms = (double)sum[SUM_ONCE_NS] * mean_ms,
                                   .offload_ms = (double)sum[SUM_TIER_NS] * mean_ms,
                                   .held_bytes = sum[SUM_HELD_BYTES],
                                   .loss_scale = ku_trainer_loss_scale(r->s->t),
                                   .n_skipped = ku_trainer_n_skipped(r->s->t),
                                   .is_by_samples = ku_batch_is_by_samples(r->s->source),
                                   .metrics = &metrics};
    ku_metrics_step(r->metrics, &line, is_logged(r, step));
    return KUMI_OK;
}

void ku_run_report_before(struct ku_run_report *r, int64_t step, int64_t begin_ns)
{
    ku_profile_note(r->profile, step, KU_PROFILE_DATA, begin_ns, ku_clock_ns());
    ku_profile_before(r->profile, step);
}

void ku_run_report_after(struct ku_run_report *r, int64_t step)
{
    ku_profile_after(r->profile, step);
}

int ku_run_report_step(struct ku_run_report *r, int64_t step, const double *numbers,
                       int64_t data_ns)
{
    struct ku_exec_times times = ku_exec_times(r->s->t->exec[KU_PROG_TRAIN]);
    if (r->update_ns)
        times.run_ns = r->update_ns;
    r->loss = numbers[KU_REPORT_LOSS];
    ku_step_times_note(r->trial, &times, data_ns, (int64_t)numbers[KU_REPORT_TOKENS]);
    return write_step(r, step, numbers, &times, data_ns);
}

void ku_run_report_checkpoint(struct ku_run_report *r, int64_t step, int64_t begin_ns)
{
    ku_profile_note(r->profile, step, KU_PROFILE_CHECKPOINT, begin_ns, ku_clock_ns());
}

int ku_run_report_profile(struct ku_run_report *r, int is_over)
{
    return ku_profile_write(r->profile, r->result->out, is_over);
}

/* At most 16 points of the curve, including the last. */
static void note_curve(struct ku_run_report *r)
{
    enum { MAX_POINTS = 16 };
    json_t *curve = ku_metrics_curve(r->metrics);
    size_t n = json_array_size(curve), every = (n + MAX_POINTS - 1) / MAX_POINTS;
    struct ku_str text = {0};
    for (size_t i = n ? (n - 1) % every : 0; i < n; i += every) {
        json_t *point = json_array_get(curve, i);
        ku_str_add(&text, "%10lld  %15.4f", (long long)json_integer_value(json_array_get(point, 0)),
                   json_number_value(json_array_get(point, 1)));
        if (json_array_size(point) > 2)
            ku_str_add(&text, "  %8.4f", json_number_value(json_array_get(point, 2)));
        ku_str_add(&text, "\n");
    }
    snprintf(r->result->curve, sizeof r->result->curve, "%s", ku_str_get(&text));
    ku_str_fini(&text);
    json_decref(curve);
}

static void note_state(struct ku_run_report *r, int64_t step, const char *checkpoint)
{
    struct kumi_train_result *result = r->result;
    result->step = step;
    result->update = ku_trainer_update_count(r->s->t);
    result->is_by_samples = ku_batch_is_by_samples(r->s->source);
    snprintf(result->checkpoint, sizeof result->checkpoint, "%s", checkpoint);
}

int ku_run_report_complete(struct ku_run_report *r, int64_t step, const char *checkpoint)
{
    note_state(r, step, checkpoint);
    r->result->profile[0] = '\0';
    return ku_agree(r->job, ku_trainer_digest_first(r->s->t, r->result->digest));
}

int ku_run_report_finish(struct ku_run_report *r, const char *dir, int64_t step,
                         const char *checkpoint)
{
    struct kumi_train_result *result = r->result;
    note_state(r, step, checkpoint);
    if (r->trial)
        KU_TRY(
            ku_agree_local(r->job, ku_step_times_write(r->trial, r->job->rank,
                                                       result->is_by_samples ? "samples" : "tokens",
                                                       result->out)));
    int64_t sum[N_SUMS], n_skipped;
    KU_TRY(add_up(r, 0, sum));
    KU_TRY(ku_session_count_skipped(r->s, r->job, &n_skipped));
    int status = r->trial == NULL ? ku_trainer_digest_first(r->s->t, result->digest) : KUMI_OK;
    if (is_first(r)) {
        result->median_tps = ku_metrics_median_tps(r->metrics);
        note_curve(r);
        const bool has_val = r->s->source->eval_samples > 0;
        struct ku_summary summary = {.result = result,
                                     .metrics = r->metrics,
                                     .limits = &r->limits,
                                     .t = r->s->t,
                                     .n_cores = r->n_cores,
                                     .lacks_eval =
                                         has_val && !ku_metrics_has_eval(r->metrics, step),
                                     .loss = r->loss,
                                     .held_bytes = sum[SUM_HELD_BYTES],
                                     .step_bytes = sum[SUM_STEP_BYTES],
                                     .far_bytes = sum[SUM_FAR_BYTES],
                                     .planned = {.ring = (double)sum[SUM_PLANNED_RING],
                                                 .stored = (double)sum[SUM_PLANNED_STORED],
                                                 .far = (double)sum[SUM_PLANNED_FAR]},
                                     .n_unread = n_skipped};
        if (status == KUMI_OK)
            status = ku_summary_write(dir, &summary);
    }
    return ku_agree(r->job, status);
}
