/* SPDX-License-Identifier: Apache-2.0 */
/* A session's data: open, and fill the ports of a step. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "batch/text_source.h"
#include "comm/consensus.h"
#include "train/session.h"

enum { MAX_SLEEP_NS = 50 * 1000 * 1000 }; /* one that is longer was a stop of this process */
#define TOLD_NS INT64_C(5000000000)

/* Nothing has advanced for `ns` more: a warning, and after the deadline an error. */
static int stand(struct ku_session *s, const char *what, int64_t ns)
{
    struct ku_session_reading *r = &s->reading;
    const double timeout_s = s->cfg.parallel_timeout_s;
    r->stood_ns += ns < MAX_SLEEP_NS ? ns : MAX_SLEEP_NS;
    if ((double)r->stood_ns >= timeout_s * 1e9)
        return KU_ERR(KUMI_ETIMEDOUT,
                      "data: %s: no progress for %.1f s (parallel.timeout_s); continue or end that "
                      "process",
                      what, timeout_s);
    /* Rank 0 may itself hold the lock that the others wait for. */
    if (r->stood_ns >= TOLD_NS && !r->is_told && (r->job == NULL || r->job->rank <= 1)) {
        r->is_told = true;
        KU_LOG(DATA, WARN, "%s: no progress for 5 s; the run ends after %g s (parallel.timeout_s)",
               what, timeout_s);
    }
    return KUMI_OK;
}

/*
 * While a step waits for rows, stop signals are left to the end of the step, and the deadline to
 * the ranks that wait for this one.
 */
static int report(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    struct ku_session *s = ctx;
    struct ku_session_reading *r = &s->reading;
    const uint64_t now = ku_hash64_mix(what ? ku_hash64(what, strlen(what)) : 0, done);
    const int64_t now_ns = ku_clock_ns(), ns = now_ns - r->called_ns;
    const bool has_advanced = now != r->last;
    (void)total;
    r->last = now;
    r->called_ns = now_ns;
    if (has_advanced) {
        r->stood_ns = 0;
        r->is_told = false;
        if (r->job)
            ku_job_tick(r->job);
    }
    if (what == NULL)
        return KUMI_OK;
    if (r->heeds_stop && ku_job_stop(r->job))
        return KU_ERR(KUMI_ESTOPPED, "stopped: signal %d: %s", ku_job_stop(r->job), what);
    return has_advanced ? KUMI_OK : stand(s, what, ns);
}

struct ku_progress ku_session_progress(struct ku_session *s, struct ku_job *job)
{
    s->reading = (struct ku_session_reading){.job = job};
    return (struct ku_progress){report, s};
}

int ku_session_open_data(struct ku_session *s, struct ku_job *job)
{
    const struct ku_progress progress = ku_session_progress(s, job);
    s->reading.heeds_stop = job != NULL && s->remote.n_servers == 0; /* workers wait for servers */
    KU_TRY(ku_batch_source_open(s->source, &progress));
    const int64_t mask_token = ku_text_mask_token(s->source);
    if (mask_token >= 0)
        json_object_set_new(s->numerics, "data.mask_token", json_integer(mask_token));
    const struct ku_sampler epoch = {.steps_per_epoch = s->source->steps_per_epoch};
    if (s->cfg.train_epochs != KU_NULL)
        KU_TRY(ku_sampler_steps(&epoch, s->cfg.train_epochs, &s->n_steps));
    if (s->cfg.schedule_decay_steps.n < 0 && s->decay_steps == 0) {
        s->decay_steps = ku_session_schedule_length(s);
        json_object_set_new(s->numerics, "schedule.decay_steps", json_integer(s->decay_steps));
    }
    return KUMI_OK;
}

/* Where the rows of a micro-batch go. Names are resolved once, when the trainer exists. */
struct ku_session_feed {
    int n_micro;
    struct ku_loader_range *range;       /* [n_shapes][n_micro] rows of this rank */
    const struct ku_program_port **port; /* [n_shapes][training, evaluation][n_ports] */
};

static int resolve(const struct ku_session *s, struct ku_session_feed *f)
{
    const struct ku_data *d = s->source->data;
    const int n_shapes = s->t->n_shapes;
    f->n_micro = ku_trainer_n_micro(s->t);
    f->range = ku_calloc((size_t)n_shapes * (size_t)f->n_micro, sizeof *f->range);
    f->port = ku_calloc((size_t)(n_shapes * KU_N_SPLITS * d->n_ports), sizeof *f->port);
    if (f->range == NULL || f->port == NULL)
        return KUMI_ENOMEM;
    for (int i = 0; i < n_shapes; i++) {
        struct ku_loader_range *range = f->range + i * f->n_micro;
        const struct ku_program_port **port = f->port + i * KU_N_SPLITS * d->n_ports;
        ku_trainer_use(s->t, i);
        for (int u = 0; u < f->n_micro; u++)
            range[u].n = ku_trainer_rows(s->t, u, &range[u].first);
        for (int k = 0; k < KU_N_SPLITS * d->n_ports; k++)
            port[k] = ku_trainer_find_port(s->t, k < d->n_ports ? KU_PROG_TRAIN : KU_PROG_EVAL,
                                           d->port[k % d->n_ports].name);
    }
    ku_trainer_use(s->t, 0);
    return KUMI_OK;
}

int ku_session_resolve_feed(struct ku_session *s)
{
    if (s->source->data == NULL) /* a program fills the ports */
        return KUMI_OK;
    s->feed = ku_calloc(1, sizeof *s->feed);
    return s->feed ? resolve(s, s->feed) : KUMI_ENOMEM;
}

void ku_session_drop_feed(struct ku_session *s)
{
    if (s->feed == NULL)
        return;
    ku_free(s->feed->range);
    ku_free(s->feed->port);
    ku_free(s->feed);
    s->feed = NULL;
}

static int fill(struct ku_session *s, enum ku_data_split split, int64_t run)
{
    struct ku_batch_source *source = s->source;
    const struct ku_session_feed *f = s->feed;
    const enum ku_trainer_program p = split == KU_SPLIT_TRAIN ? KU_PROG_TRAIN : KU_PROG_EVAL;
    const int n_ports = source->data->n_ports, shape = source->ops->shape_at(source, split, run);
    const struct ku_program_port *const *port =
        f->port + (shape * KU_N_SPLITS + (int)split) * n_ports;
    const struct ku_loader_range *range = f->range + shape * f->n_micro;
    ku_trainer_use(s->t, shape);
    for (int u = 0; u < f->n_micro; u++) {
        struct ku_range rows[KU_DATA_PORTS_MAX] = {{0}};
        struct ku_mapping map[KU_DATA_PORTS_MAX];
        void *to[KU_DATA_PORTS_MAX];
        size_t row_bytes;
        for (int i = 0; i < n_ports; i++)
            rows[i] = ku_trainer_port_rows(s->t, p, port[i], u, &row_bytes);
        KU_TRY(ku_ranges_map(rows, n_ports, KU_ACCESS_WRITE, map));
        for (int i = 0; i < n_ports; i++)
            to[i] = map[i].data;
        const int status = source->ops->fill(source, split, run, range, f->n_micro, u, to);
        const int unmapped = ku_ranges_unmap(map, n_ports);
        KU_TRY(status);
        KU_TRY(unmapped);
    }
    return KUMI_OK;
}

int ku_session_count_skipped(const struct ku_session *s, struct ku_job *job, int64_t *n)
{
    int64_t sum = s->source->ops->n_unread(s->source);
    KU_TRY(ku_agree_sum(job, &sum, 1));
    sum /= s->sharding.tp * s->sharding.pp; /* the ranks of axes tp and pp read the same samples */
    if (sum > 0 && job->rank == 0)
        KU_LOG(DATA, WARN, "%lld sample%s could not be read and did not count in the loss",
               (long long)sum, sum == 1 ? "" : "s");
    *n = sum;
    return KUMI_OK;
}

int ku_session_fill_train(struct ku_session *s, int64_t step)
{
    return fill(s, KU_SPLIT_TRAIN, step);
}

int ku_session_evaluate(struct ku_session *s, const struct ku_session_stop *stop, double *loss)
{
    bool is_stopped = false;
    *loss = (double)NAN;
    if (s->source->eval_samples == 0)
        return KUMI_OK;
    const int64_t n = s->source->ops->n_runs(s->source, KU_SPLIT_VAL);
    ku_trainer_eval_begin(s->t);
    for (int64_t b = 0; b < n; b++) {
        KU_TRY(stop ? stop->call(stop->ctx, &is_stopped) : KUMI_OK);
        if (is_stopped)
            return KUMI_OK;
        KU_TRY(ku_agree_local(s->t->job, fill(s, KU_SPLIT_VAL, b)));
        KU_TRY(ku_trainer_eval_run(s->t));
    }
    *loss = ku_trainer_eval_loss(s->t);
    return KUMI_OK;
}
