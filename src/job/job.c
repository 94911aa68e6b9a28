/* SPDX-License-Identifier: Apache-2.0 */
#include "job/job.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "job/pin.h"
#include "job/private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * Argument of the exit handler. A process that ends inside a job stores its exit code before its
 * life mutex is released. The cell outlives the job.
 */
struct ku_exit_cell {
    struct ku_job *job;
    pid_t pid;
};

static void at_exit(int status, void *arg)
{
    struct ku_exit_cell *cell = arg;
    if (cell->job && cell->pid == getpid()) {
        struct ku_rank_line *line = cell->job->priv->line;
        atomic_store(&line->exit_status, (uint32_t)status & 0xff);
        atomic_store(&line->state, KU_RANK_EXITED);
        ku_segment_ring_all(cell->job->seg);
    }
    ku_free(cell);
}

static int watch_exit(struct ku_job *job)
{
    struct ku_exit_cell *cell = ku_malloc(sizeof *cell);
    if (!cell)
        return KUMI_ENOMEM;
    *cell = (struct ku_exit_cell){.job = job, .pid = getpid()};
    if (on_exit(at_exit, cell)) {
        ku_free(cell);
        return KU_ERR(KUMI_ENOMEM, "job: exit handler: no memory");
    }
    job->priv->exit_cell = cell;
    return 0;
}

static int new_job(struct ku_host *host, int rank, int n, const struct ku_job_opts *opts,
                   struct ku_job **out)
{
    struct ku_job *job = ku_calloc(1, sizeof *job);
    struct ku_job_private *p = ku_calloc(1, sizeof *p);
    if (!job || !p) {
        ku_free(job);
        ku_free(p);
        return KUMI_ENOMEM;
    }
    job->rank = job->local_rank = rank;
    job->n = job->local_n = n;
    job->launcher = "none";
    job->seg = host->seg;
    job->priv = p;
    p->host = host;
    p->line = ku_segment_line(host->seg, rank);
    p->flight = ku_segment_flight(host->seg, rank);
    p->timeout_ns = opts && opts->timeout_ns > 0 ? opts->timeout_ns : INT64_C(600000000000);
    p->threads = opts && opts->threads > 0 ? opts->threads : 1;
    if (n > 1)
        ku_err_rank(rank);
    atomic_store(&p->line->pid, (uint32_t)getpid());
    uint64_t cpus[KU_OS_CPU_WORDS];
    ku_os_cpus(cpus);
    for (int i = 0; i < KU_OS_CPU_WORDS; i++)
        atomic_store(&p->line->cpus[i], cpus[i]);
    *out = job;
    return 0;
}

static void free_job(struct ku_job *job)
{
    if (!job)
        return;
    struct ku_job_private *p = job->priv;
    ku_service_stop(job);
    if (p->exit_cell)
        p->exit_cell->job = NULL;
    for (int i = 0; i < p->n_sockets; i++)
        if (p->socket[i] >= 0)
            ku_os_close(p->socket[i]);
    ku_free(p->socket);
    ku_free(p);
    ku_free(job);
}

static void host_free(struct ku_host *host)
{
    ku_segment_unmap(host->seg);
    ku_free(host);
}

void ku_job_cpus(const struct ku_job *job, uint64_t mask[KU_OS_CPU_WORDS])
{
    for (int i = 0; i < KU_OS_CPU_WORDS; i++) {
        mask[i] = 0;
        for (int r = 0; r < job->local_n; r++)
            mask[i] |= atomic_load(&ku_segment_line(job->seg, r)->cpus[i]);
    }
}

int ku_job_n_cpus(const struct ku_job *job)
{
    uint64_t mask[KU_OS_CPU_WORDS];
    int n = 0;
    ku_job_cpus(job, mask);
    for (int i = 0; i < KU_OS_CPU_WORDS; i++)
        n += __builtin_popcountll(mask[i]);
    return ku_os_n_cpus_under("", n);
}

/* Get the segment and the sockets to the other ranks. */
static int meet(const struct ku_env_job *env, int64_t timeout_ns, struct ku_host *host,
                int **sockets, int *n_sockets)
{
    struct ku_env_job e = *env;
    if (e.local_n != e.n)
        return KU_ERR(KUMI_EINVAL,
                      "job: %s: %d ranks, %d of them on this host (%s); all ranks of a job that "
                      "communicates through kumi must run on one host",
                      e.launcher, e.n, e.local_n, e.host_name);
    if (e.control_fd >= 0) {
        KU_TRY(ku_segment_map(host->client, e.control_fd, &host->seg));
        ku_os_close(e.control_fd);
        e.job_id = host->seg->job_id;
        if (host->seg->n_local != e.n)
            return KU_ERR(KUMI_EINVAL, "join: KUMI_WORLD_SIZE: %d; the launcher started %d ranks",
                          e.n, host->seg->n_local);
    }
    if (e.n > 1)
        return ku_rendezvous(host->client, &e, timeout_ns, &host->seg, sockets, n_sockets);
    return host->seg ? 0 : ku_segment_create_private(host->client, 1, &host->seg);
}

int ku_job_open(const struct ku_job_client *client, const struct ku_job_opts *opts,
                struct ku_job **out)
{
    struct ku_env_job env;
    struct ku_job *job = NULL;
    int *sockets = NULL, n_sockets = 0, status;
    int64_t timeout =
        opts && opts->join_timeout_ns > 0 ? opts->join_timeout_ns : INT64_C(60000000000);
    KU_TRY(ku_env_job(&env));
    struct ku_host *host = ku_calloc(1, sizeof *host);
    if (!host)
        return KUMI_ENOMEM;
    host->client = client;
    KU_TRY_OUT(meet(&env, timeout, host, &sockets, &n_sockets));
    KU_TRY_OUT(new_job(host, env.rank, env.n, opts, &job));
    job->launcher = env.launcher;
    job->priv->socket = sockets;
    job->priv->n_sockets = n_sockets;
    sockets = NULL;
    KU_TRY_OUT(ku_service_start(job));
    KU_TRY_OUT(watch_exit(job));
    *out = job;
    return 0;
out:
    for (int i = 0; sockets && i < n_sockets; i++)
        if (sockets[i] >= 0)
            ku_os_close(sockets[i]);
    ku_free(sockets);
    free_job(job);
    host_free(host);
    return status;
}

void ku_job_close(struct ku_job *job)
{
    if (!job)
        return;
    struct ku_host *host = job->priv->host;
    free_job(job);
    if (!host->is_threads)
        host_free(host);
}

int ku_job_heed_signals(struct ku_job *job)
{
    return ku_service_heed(job);
}

int ku_job_stop(const struct ku_job *job)
{
    return (int)atomic_load(&job->seg->stop);
}

/* A rank as a thread */
struct rank_thread {
    pthread_t thread;
    struct ku_host *host;
    const struct ku_job_opts *opts;
    const struct ku_pin *pin;
    int (*fn)(struct ku_job *job, void *arg);
    void *arg;
    int rank, n, status;
    struct kumi_error error;
};

static int run_rank(struct rank_thread *t)
{
    struct ku_job *job = NULL;
    int status = new_job(t->host, t->rank, t->n, t->opts, &job);
    if (status < 0) {
        /* This rank will not join; release those that wait for it. */
        ku_segment_abort(t->host->seg, ku_err_get(), t->rank);
        return status;
    }
    job->launcher = "threads";
    struct ku_rank_line *line = job->priv->line;
    status = t->fn(job, t->arg);
    if (status < 0 && atomic_load(&line->state) != KU_RANK_LEFT) {
        atomic_store(&line->exit_status, (uint32_t)-status);
        atomic_store(&line->state, KU_RANK_EXITED);
        ku_segment_ring_all(job->seg);
    }
    free_job(job);
    return status;
}

static void *rank_main(void *arg)
{
    struct rank_thread *t = arg;
    ku_pin_apply(t->pin, t->rank);
    t->status = run_rank(t);
    if (t->status < 0)
        t->error = *ku_err_get();
    return NULL;
}

static int start_ranks(struct rank_thread *t, int n, int *n_started)
{
    for (*n_started = 0; *n_started < n; ++*n_started) {
        int failed = pthread_create(&t[*n_started].thread, NULL, rank_main, &t[*n_started]);
        if (failed) {
            int status = KU_ERR(KUMI_ENOMEM, "ranks as threads: thread %d: %s", *n_started,
                                strerror(failed));
            ku_segment_abort(t->host->seg, ku_err_get(), *n_started);
            return status;
        }
    }
    return 0;
}

int ku_job_threads(const struct ku_job_client *client, int n, const struct ku_job_opts *opts,
                   int (*fn)(struct ku_job *job, void *arg), void *arg)
{
    if (n < 1 || n > KU_MAX_LOCAL)
        return KU_ERR(KUMI_EINVAL, "ranks as threads: %d; give 1 to %d", n, KU_MAX_LOCAL);
    int n_started = 0, status;
    struct ku_pin *pin =
        n > 1 ? ku_pin_create(n, opts && opts->threads > 0 ? opts->threads : 1) : NULL;
    struct ku_host *host = ku_calloc(1, sizeof *host);
    struct rank_thread *t = ku_calloc((size_t)n, sizeof *t);
    if (!host || !t) {
        ku_pin_destroy(pin);
        ku_free(host);
        ku_free(t);
        return KUMI_ENOMEM;
    }
    host->is_threads = 1;
    host->client = client;
    KU_TRY_OUT(ku_segment_create_private(client, n, &host->seg));
    for (int i = 0; i < n; i++)
        t[i] = (struct rank_thread){
            .host = host, .opts = opts, .pin = pin, .fn = fn, .arg = arg, .rank = i, .n = n};
    status = start_ranks(t, n, &n_started);
    for (int i = 0; i < n_started; i++)
        pthread_join(t[i].thread, NULL);
    for (int i = 0; i < n_started && !status; i++)
        if (t[i].status < 0) /* fn may fail without an error record */
            status = t[i].error.status < 0 ? ku_err_put(&t[i].error) : t[i].status;
    struct kumi_error root;
    if (status < 0 && ku_segment_root(host->seg, &root) < 0)
        status = ku_err_put(&root);
out:
    if (host->seg)
        host_free(host);
    else
        ku_free(host);
    ku_pin_destroy(pin);
    ku_free(t);
    return status;
}
