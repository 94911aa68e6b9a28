/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kumi_train: joins the job and runs its ranks, one per process or all as threads of this one.
 */
#include <math.h>
#include <signal.h>
#include <string.h>

#include "base/arg.h"
#include "base/env.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/os/process.h"
#include "comm/world.h"
#include "config/keys.h"
#include "model/model.h"
#include "ckpt/snapshot/resume.h"
#include "run/run.h"

/*
 * Settings that a job needs before its ranks read the configuration. If the configuration cannot be
 * read, the job reports the error once.
 */
struct joining {
    struct ku_job_opts opts;
    int is_threaded;
    int n_workers, n_servers; /* of a parameter server; 0: none */
    struct ku_remote_engine_opts engine;
};

static struct ku_remote_engine_opts engine_of(const struct ku_config *cfg)
{
    return (struct ku_remote_engine_opts){.mode = (enum ku_remote_mode)cfg->ps_mode,
                                          .staleness = (int)cfg->ps_staleness,
                                          .backup = (int)cfg->ps_backup,
                                          .skips = strcmp(cfg->train_on_nonfinite, "skip") == 0};
}

static struct joining joining_of(const struct kumi_settings *set)
{
    static const char *const given[] = {"shm", "tcp", "mpi"}; /* to ranks that are processes */
    struct ku_config cfg;
    struct joining j = {.opts = {.threads = ku_env_threads()}};
    double timeout_s = ku_key_default_number("parallel.timeout_s");
    if (ku_config_load(set->config, set->set, set->n_sets, ku_model_hidden_size, &cfg) == KUMI_OK) {
        timeout_s = cfg.parallel_timeout_s;
        if (cfg.train_threads != KU_NULL)
            j.opts.threads = (int)cfg.train_threads;
        j.is_threaded = strcmp(cfg.parallel_transport, "thread") == 0;
        if (cfg.ps_workers != KU_NULL)
            j.n_workers = (int)cfg.ps_workers, j.n_servers = (int)cfg.ps_servers;
        j.engine = engine_of(&cfg);
        for (size_t i = 0; i < sizeof given / sizeof *given; i++)
            if (strcmp(cfg.parallel_transport, given[i]) == 0)
                j.opts.transport = given[i];
        ku_config_fini(&cfg);
    }
    j.opts.timeout_ns = j.opts.join_timeout_ns = (int64_t)(timeout_s * 1e9);
    return j;
}

int kumi_train_in_threads(const struct kumi_settings *settings)
{
    KU_GIVEN_OR(0, settings, "settings");
    return joining_of(settings).is_threaded;
}

struct threads {
    const struct kumi_train_options *options;
    struct kumi_train_result *result; /* [ranks] */
    struct kumi_error stopped;        /* status 0: not stopped */
};

static int train_thread(struct ku_job *job, void *arg)
{
    struct threads *t = arg;
    int status = ku_run_rank(job, job->rank == 0, t->options, NULL, &t->result[job->rank]);
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
    if (opts.threads == 0)
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

/* Workers and servers of a parameter server, as threads. */
static int train_remote(const struct kumi_train_options *options, const struct joining *j,
                        struct kumi_train_result *result)
{
    struct ku_job_opts opts = j->opts;
    sigset_t stops, old;
    if (opts.threads == 0)
        opts.threads = ku_os_n_cpus() / j->n_workers; /* 0 means 1 */
    opts.transport = "thread";
    ku_os_stop_signals(&stops);
    pthread_sigmask(SIG_BLOCK, &stops, &old);
    const int status =
        ku_run_in_process(options, &opts, j->n_workers, j->n_servers, &j->engine, result);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return status;
}

static int check_remote(const struct ku_job *job, const struct kumi_train_options *o)
{
    if (job->n == 1 && o->ranks <= 1)
        return KUMI_OK;
    return KU_ERR(KUMI_EINVAL,
                  "ps.workers: %d ranks; kumi train runs workers and servers as threads of one "
                  "process: start it without -n, or set ps.workers to null",
                  job->n > 1 ? job->n : o->ranks);
}

int ku_run_remote_of(const struct kumi_settings *set, struct ku_remote_engine_opts *engine)
{
    struct ku_config cfg;
    KU_TRY(ku_config_load(set->config, set->set, set->n_sets, ku_model_hidden_size, &cfg));
    *engine = engine_of(&cfg);
    ku_config_fini(&cfg);
    return KUMI_OK;
}

int ku_run_timeout_ns(const struct kumi_settings *set, int64_t *timeout_ns)
{
    struct ku_config cfg;
    KU_TRY(ku_config_load(set->config, set->set, set->n_sets, ku_model_hidden_size, &cfg));
    *timeout_ns = (int64_t)(cfg.parallel_timeout_s * 1e9);
    ku_config_fini(&cfg);
    return KUMI_OK;
}

static int check_server(const struct ku_job *job, const struct joining *j,
                        const struct kumi_settings *set)
{
    struct ku_remote_engine_opts engine;
    if (j->n_workers == 0) {
        KU_TRY(ku_run_remote_of(set, &engine)); /* joining_of reports no error */
        return KU_ERR(KUMI_EINVAL, "ps.workers: null; set the number of workers");
    }
    if (job->n > KU_REMOTE_MAX_SERVERS)
        return KU_ERR(KUMI_EINVAL, "ps: %d servers; at most %d", job->n, KU_REMOTE_MAX_SERVERS);
    return KUMI_OK;
}

int ku_run_server_rank(const struct kumi_train_options *options, struct ku_run_server *server,
                       struct kumi_train_result *result)
{
    const struct joining j = joining_of(&options->settings);
    struct ku_job *job = NULL;
    KU_TRY(ku_comm_join(&j.opts, &job));
    server->n_workers = j.n_workers;
    server->engine = j.engine;
    int status = check_server(job, &j, &options->settings);
    if (status < 0) {
        status = ku_job_fail(job);
        result->is_reported = 1;
    } else {
        status = ku_run_rank(job, 1, options, server, result);
    }
    const struct kumi_error error = *ku_err_get();
    const int left = ku_comm_leave(job);
    return status < 0 ? ku_err_put(&error) : left;
}

struct alone {
    const struct kumi_train_options *options;
    const struct ku_remote_link *link;
    struct ku_remote_opts remote;
    int n_workers;
};

static int run_alone(struct ku_job *job, void *arg)
{
    const struct alone *a = arg;
    return ku_run_worker(job, a->options, a->n_workers, &a->remote, a->link);
}

int ku_run_worker_alone(const struct kumi_train_options *options, const struct ku_remote_link *link,
                        int n_servers)
{
    struct joining j = joining_of(&options->settings);
    struct alone a = {.options = options,
                      .link = link,
                      .remote = {.update_by = KU_UPDATE_WORKER,
                                 .n_servers = n_servers,
                                 .is_single = j.engine.mode != KU_REMOTE_SYNC},
                      .n_workers = j.n_workers};
    if (j.n_workers == 0)
        return KU_ERR(KUMI_EINVAL, "ps.workers: null; set the number of workers");
    if (link->worker < 0 || link->worker >= j.n_workers)
        return KU_ERR(KUMI_EINVAL, "worker %d: ps.workers is %d; give 0 to %d", link->worker,
                      j.n_workers, j.n_workers - 1);
    j.opts.transport = "thread";
    return ku_comm_threads(1, &j.opts, run_alone, &a);
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
    if (o->resume && o->out == NULL)
        return KU_ERR(KUMI_EINVAL, "train: --resume needs --out, the directory of the run");
    if (o->is_trial && o->resume)
        return KU_ERR(KUMI_EINVAL, "train: a timed run saves no state, so it cannot resume");
    if (o->resume_step < 0 || (o->resume_step > 0 && o->resume != KU_RESUME_YES))
        return KU_ERR(KUMI_EINVAL, "train: resume_step %lld with resume %d; a step needs resume 1",
                      (long long)o->resume_step, o->resume);
    if (o->out && strlen(o->out) >= KU_RUN_PATH_BYTES)
        return KU_ERR(KUMI_EINVAL, "run directory: a path of %zu bytes; at most %zu are allowed",
                      strlen(o->out), (size_t)KU_RUN_PATH_BYTES - 1);
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
    if (status == KUMI_OK && j.n_workers)
        status = check_remote(job, options);
    else if (status == KUMI_OK)
        status = check_ranks(job, options->ranks, j.is_threaded);
    if (status < 0) {
        status = ku_job_fail(job);
        result->is_reported = 1;
    } else if (j.n_workers) {
        KU_TRY(ku_comm_leave(job));
        return train_remote(options, &j, result);
    } else if (options->ranks > 1) {
        KU_TRY(ku_comm_leave(job));
        return train_threads(options, &j, result);
    } else {
        status = ku_run_rank(job, 1, options, NULL, result);
    }
    struct kumi_error error = *ku_err_get();
    int left = ku_comm_leave(job);
    if (status == KUMI_OK && left < 0) {
        result->is_reported = ku_err_get()->scope == KUMI_SCOPE_JOB;
        return left;
    }
    return status < 0 ? (ku_err_put(&error), status) : KUMI_OK;
}
