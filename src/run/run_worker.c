/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Workers of a parameter server, and a whole one in this process:
 *
 *     servers    threads of one job: ku_run_rank, with directory, report and checkpoints
 *     workers    a job of one rank each: pull, read the samples, forward, backward, push
 *
 * A worker ends when its servers say that training is complete. The first failure of any ends all.
 */
#include <pthread.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "comm/world.h"
#include "remote/direct.h"
#include "remote/worker.h"
#include "run/run.h"
#include "train/session.h"

static int work(struct ku_session *s, const struct ku_remote_link *link)
{
    const struct ku_remote_worker_opts o = {
        .save_every = ku_span_steps(s->cfg.checkpoint_every, s->source->steps_per_epoch),
        .keep = s->cfg.checkpoint_keep > 0 ? (int)s->cfg.checkpoint_keep + 1 : 0};
    struct ku_remote_worker *w = NULL;
    int64_t step = 0; /* the first pull says where a resumed run is */
    int status = ku_remote_worker_create(s->t, link, &o, &w);
    for (; status == KUMI_OK; step++) {
        const double *report;
        status = ku_remote_begin(w, &step, &report);
        if (status == KUMI_OK)
            status = ku_session_fill_train(s, step);
        if (status == KUMI_OK)
            status = ku_remote_step(w, step);
    }
    const struct kumi_error error = *ku_err_get();
    ku_remote_worker_destroy(w);
    ku_err_put(&error);
    return status == KUMI_ESTOPPED ? KUMI_OK : status;
}

int ku_run_worker(struct ku_job *job, const struct kumi_train_options *options, int n_workers,
                  const struct ku_remote_opts *remote, const struct ku_remote_link *link)
{
    const struct kumi_settings *set = &options->settings;
    const char *numerics = NULL;
    KU_TRY(link->ops->connect(link->ctx, NULL, &numerics));
    json_t *was = numerics ? json_loads(numerics, 0, NULL) : NULL;
    struct ku_session s = {.remote = *remote, .worker = link->worker, .host_ranks = 1};
    int status = ku_session_configure(&s, set->config, set->set, set->n_sets, was, n_workers);
    if (status == KUMI_OK)
        status = ku_session_open_data(&s, job);
    if (status == KUMI_OK)
        status = ku_session_create_trainer(&s, job);
    if (status == KUMI_OK)
        status = work(&s, link);
    const struct kumi_error error = *ku_err_get();
    ku_session_fini(&s);
    json_decref(was);
    if (status < 0)
        ku_err_put(&error);
    return status;
}

struct process {
    const struct kumi_train_options *options;
    const struct ku_job_opts *opts;
    struct kumi_train_result *result; /* [n_servers] */
    struct ku_run_server server;
    struct ku_remote_opts remote; /* of workers */
    struct ku_remote_direct *link;
    struct kumi_error stopped; /* status 0: not stopped */
};
struct worker_thread {
    struct process *process;
    int worker, status;
    struct kumi_error error;
    pthread_t thread;
};

/* A server that fails before it has an engine ends the workers here. */
static int run_server(struct ku_job *job, void *arg)
{
    struct process *p = arg;
    const int status =
        ku_run_rank(job, job->rank == 0, p->options, &p->server, &p->result[job->rank]);
    if (status < 0 && status != KUMI_ESTOPPED)
        ku_remote_direct_fail(p->link, status);
    if (status != KUMI_ESTOPPED)
        return status;
    if (job->rank == 0)
        p->stopped = *ku_err_get();
    return KUMI_OK; /* a stopped rank leaves the job like a finished one */
}

static int run_worker(struct ku_job *job, void *arg)
{
    const struct worker_thread *t = arg;
    const struct process *p = t->process;
    return ku_run_worker(job, p->options, p->server.n_workers, &p->remote,
                         ku_remote_direct_link(p->link, t->worker));
}

static void *worker_main(void *arg)
{
    struct worker_thread *t = arg;
    t->status = ku_comm_threads(1, t->process->opts, run_worker, t);
    t->error = *ku_err_get();
    if (t->status < 0)
        ku_remote_direct_fail(t->process->link, t->status);
    ku_remote_direct_leave(t->process->link);
    return NULL;
}

static int attach(void *ctx, const struct ku_run_served *served)
{
    ku_remote_direct_attach(ctx, served->engine, served->numerics, served->out, NULL);
    return KUMI_OK;
}

static void detach(void *ctx, struct ku_remote_engine *e)
{
    ku_remote_direct_detach(ctx, e);
}

/* The first failure of a worker, else that of the servers. */
static int join(struct process *p, struct worker_thread *t, int n_started, int status)
{
    struct kumi_error error = *ku_err_get();
    for (int w = 0; w < n_started; w++) {
        pthread_join(t[w].thread, NULL);
        if (t[w].status < 0 && status == KUMI_OK) {
            status = t[w].status;
            error = t[w].error;
        }
    }
    if (status < 0)
        return ku_err_put(&error);
    return p->stopped.status < 0 ? ku_err_put(&p->stopped) : KUMI_OK;
}

int ku_run_in_process(const struct kumi_train_options *options, const struct ku_job_opts *opts,
                      int n_workers, int n_servers, const struct ku_remote_engine_opts *engine,
                      struct kumi_train_result *result)
{
    const int is_single = engine->mode != KU_REMOTE_SYNC;
    struct process p = {
        .options = options,
        .opts = opts,
        .remote = {.update_by = KU_UPDATE_WORKER, .n_servers = n_servers, .is_single = is_single},
        .server = {.n_workers = n_workers, .engine = *engine, .attach = attach, .detach = detach}};
    struct worker_thread *t = ku_calloc((size_t)n_workers, sizeof *t);
    int n_started = 0, status = KUMI_ENOMEM;
    p.result = ku_calloc((size_t)n_servers, sizeof *p.result);
    if (t && p.result)
        status = ku_remote_direct_create(n_workers, n_servers, &p.link);
    p.server.ctx = p.link;
    for (; status == KUMI_OK && n_started < n_workers; n_started++) {
        t[n_started] = (struct worker_thread){.process = &p, .worker = n_started};
        if (pthread_create(&t[n_started].thread, NULL, worker_main, &t[n_started]) != 0) {
            status = KU_ERR(KUMI_ENOMEM, "ps: cannot start a thread for worker %d", n_started);
            ku_remote_direct_fail(p.link, status);
            for (int w = n_started; w < n_workers; w++)
                ku_remote_direct_leave(p.link);
            break;
        }
    }
    if (status == KUMI_OK)
        status = ku_comm_threads(n_servers, opts, run_server, &p);
    status = join(&p, t, n_started, status);
    if (p.result)
        *result = p.result[0];
    ku_remote_direct_destroy(p.link);
    ku_free(p.result);
    ku_free(t);
    return status;
}
