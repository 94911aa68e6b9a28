/* SPDX-License-Identifier: Apache-2.0 */
#include "job/job.h"

#include "base/clock.h"
#include "base/env.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/tick.h"
#include "job/control.h"
#include "job/private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
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
        ku_job_tell_end(cell->job, status & 0xff);
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

static void tick(void *job)
{
    ku_job_tick(job);
}

int ku_job_new(struct ku_host *host, int local, const struct ku_job_opts *opts, struct ku_job **out)
{
    struct ku_segment *seg = host->seg;
    struct ku_job *job = ku_calloc(1, sizeof *job);
    struct ku_job_private *p = ku_calloc(1, sizeof *p);
    if (!job || !p) {
        ku_free(job);
        ku_free(p);
        return KUMI_ENOMEM;
    }
    job->rank = seg->first_rank + local;
    job->n = seg->n_ranks;
    job->local_rank = local;
    job->local_n = seg->n_local;
    job->first_rank = seg->first_rank;
    job->n_hosts = 1; /* until the hosts have met */
    job->launcher = "none";
    job->seg = seg;
    job->priv = p;
    p->host = host;
    p->line = ku_segment_line(seg, local);
    p->flight = ku_segment_flight(seg, local);
    p->timeout_ns = opts && opts->timeout_ns > 0 ? opts->timeout_ns : INT64_C(600000000000);
    p->threads = opts && opts->threads > 0 ? opts->threads : 1;
    if (job->n > 1)
        ku_err_rank(job->rank);
    ku_ticker = (struct ku_ticker){tick, job};
    atomic_store(&p->line->pid, (uint32_t)getpid());
    uint64_t cpus[KU_OS_CPU_WORDS];
    ku_os_cpus(cpus);
    for (int i = 0; i < KU_OS_CPU_WORDS; i++)
        atomic_store(&p->line->cpus[i], cpus[i]);
    *out = job;
    return 0;
}

void ku_job_free(struct ku_job *job)
{
    if (!job)
        return;
    struct ku_job_private *p = job->priv;
    if (ku_ticker.ctx == job)
        ku_ticker = (struct ku_ticker){NULL, NULL};
    ku_service_stop(job);
    if (job->local_rank == 0) {
        ku_control_leave(p->host->control);
        p->host->control = NULL;
    }
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

/* Local rank 0 joins the hosts; the other ranks of its host wait for the table. */
static int await_hosts(struct ku_job *job, int64_t timeout_ns)
{
    /* the join itself has ended before, and its error is better */
    const int64_t deadline = ku_clock_ns() + timeout_ns + timeout_ns / 4 + KU_VERDICT_NS;
    while (ku_segment_n_hosts(job->seg) == 0) {
        KU_TRY(ku_job_root(job));
        if (ku_job_has_hung_up(job, 0)) {
            KU_TRY(ku_job_await_cause(job, KU_VERDICT_NS));
            return KU_ERR(KUMI_EPEER,
                          "join: rank %d ended before the hosts had met; see the error that it "
                          "printed",
                          job->first_rank);
        }
        if (ku_clock_ns() > deadline)
            return KU_ERR(KUMI_ETIMEDOUT, "join: rank %d did not meet the other hosts in time",
                          job->first_rank);
        usleep(1000);
    }
    return 0;
}

int ku_job_meet_hosts(struct ku_job *job, const struct ku_control_opts *opts)
{
    struct ku_host *host = job->priv->host;
    if (job->n > job->local_n && job->local_rank > 0)
        KU_TRY(await_hosts(job, opts->timeout_ns));
    else if (job->n > job->local_n && ku_control_join(opts, job->seg, &host->control) < 0) {
        const int status = ku_err_get()->status;
        ku_segment_set_root(job->seg, ku_err_get(), job->rank, 0);
        return status;
    }
    job->n_hosts = ku_segment_n_hosts(job->seg);
    job->host = (int)atomic_load(&job->seg->host);
    return 0;
}

/* What rank 0 of an MPI launcher tells the others: where the hosts meet, and the job's secret */
struct meeting {
    char root[KU_ROOT_BYTES];
    uint8_t secret[KU_SECRET_BYTES];
};

/* mpirun tells no host where the others are, but MPI can carry it. */
static int meet_by_mpi(struct ku_job *job, const struct ku_env_job *env, int64_t timeout_ns,
                       struct meeting *m)
{
    enum { FIRST_PORT = 20000, N_PORTS = 12000 }; /* below those that systems give away */
    const struct ku_job_client *client = job->priv->host->client;
    const bool is_mpi = !strcmp(env->launcher, "openmpi") || !strcmp(env->launcher, "mpich");
    memset(m, 0, sizeof *m);
    if (job->n == job->local_n || env->root[0] || !is_mpi || !client->share)
        return 0;
    if (job->rank == 0) {
        char host[KU_HOST_NAME_BYTES] = "127.0.0.1"; /* of one machine that acts as several */
        uint16_t port;
        if (!ku_env("KUMI_HOST") && gethostname(host, sizeof host - 1) < 0)
            return KU_ERR(KUMI_EINVAL, "join: name of this host: %s", strerror(errno));
        if (getrandom(m->secret, sizeof m->secret, 0) != (ssize_t)sizeof m->secret ||
            getrandom(&port, sizeof port, 0) != (ssize_t)sizeof port)
            return KU_ERR(KUMI_ENOMEM, "join: random bytes: %s", strerror(errno));
        snprintf(m->root, sizeof m->root, "%s:%d+16", host, FIRST_PORT + port % N_PORTS);
    }
    KU_TRY(client->share(env->launcher, job->rank, job->n, m, sizeof *m, timeout_ns));
    job->priv->is_shared = true;
    return 0;
}

static struct ku_control_opts control_opts(const struct ku_job_client *client,
                                           const struct ku_env_job *env, int64_t timeout_ns)
{
    return (struct ku_control_opts){.client = client,
                                    .rank = env->rank,
                                    .n = env->n,
                                    .n_local = env->local_n,
                                    .host_name = env->host_name,
                                    .root = env->root[0] ? env->root : NULL,
                                    .interface = ku_env("KUMI_INTERFACE"),
                                    .is_pretended = ku_env("KUMI_HOST") != NULL,
                                    .timeout_ns = timeout_ns};
}

/* The ranks of this host did not find each other; the other hosts need not wait for them. */
static void refuse_hosts(const struct ku_env_job *env, const struct ku_host *host,
                         int64_t timeout_ns)
{
    const struct kumi_error error = *ku_err_get();
    struct ku_control_opts o = control_opts(host->client, env, timeout_ns);
    struct ku_control *control;
    o.refusal = &error;
    if (env->n == env->local_n || env->local_rank > 0 || !o.root || !host->seg ||
        error.status == KUMI_ESTOPPED)
        return;
    if (ku_secret_find(host->seg, o.secret) == 0 &&
        ku_control_port(ku_env("KUMI_PORT"), &o.port) == 0)
        KU_IGNORE(ku_control_join(&o, host->seg, &control), "it fails with the refusal");
    KU_IGNORE(ku_err_put(&error), "the caller's record stays");
}

static int join_hosts(struct ku_job *job, const struct ku_env_job *env, const char *transport,
                      int64_t timeout_ns)
{
    const struct ku_job_client *client = job->priv->host->client;
    struct ku_control_opts o = control_opts(client, env, timeout_ns);
    struct meeting by_mpi;
    struct kumi_error why; /* the join says what is missing */
    if (meet_by_mpi(job, env, timeout_ns, &by_mpi) < 0) {
        why = *ku_err_get();
        o.root_why = why.text;
    } else if (by_mpi.root[0])
        o.root = by_mpi.root;
    if (job->n > job->local_n && job->local_rank == 0) {
        int status = 0;
        if (client->engine)
            snprintf(o.engine, sizeof o.engine, "%s", client->engine(env->launcher, transport));
        if (o.root == by_mpi.root && !ku_env("KUMI_SECRET"))
            memcpy(o.secret, by_mpi.secret, sizeof o.secret);
        else
            status = ku_secret_find(job->seg, o.secret);
        status = status < 0 ? status : ku_control_port(ku_env("KUMI_PORT"), &o.port);
        if (status < 0) { /* the others of this host wait for the table */
            ku_segment_set_root(job->seg, ku_err_get(), job->rank, 0);
            return status;
        }
    }
    return ku_job_meet_hosts(job, &o);
}

void ku_job_cpus(const struct ku_job *job, uint64_t mask[KU_OS_CPU_WORDS])
{
    for (int i = 0; i < KU_OS_CPU_WORDS; i++) {
        mask[i] = 0;
        for (int r = 0; r < job->local_n; r++)
            mask[i] |= atomic_load(&ku_segment_line(job->seg, r)->cpus[i]);
    }
}

int ku_cpus_count(const uint64_t mask[KU_OS_CPU_WORDS])
{
    int n = 0;
    for (int i = 0; i < KU_OS_CPU_WORDS; i++)
        n += __builtin_popcountll(mask[i]);
    return n;
}

int ku_job_n_cpus(const struct ku_job *job)
{
    uint64_t mask[KU_OS_CPU_WORDS];
    ku_job_cpus(job, mask);
    return ku_os_n_cpus_under("", ku_cpus_count(mask));
}

/* Get the segment and the sockets to the other ranks. */
static int meet(const struct ku_env_job *env, int64_t timeout_ns, struct ku_host *host,
                int **sockets, int *n_sockets)
{
    struct ku_env_job e = *env;
    if (e.control_fd >= 0) {
        KU_TRY(ku_segment_map(host->client, e.control_fd, &host->seg));
        ku_os_close(e.control_fd);
        e.job_id = host->seg->job_id;
        if (host->seg->n_ranks != e.n)
            return KU_ERR(KUMI_EINVAL, "join: KUMI_WORLD_SIZE: %d; the launcher started %d ranks",
                          e.n, host->seg->n_ranks);
        if (host->seg->n_local != e.local_n || host->seg->first_rank != e.rank - e.local_rank)
            return KU_ERR(KUMI_EINVAL,
                          "join: rank %d as local rank %d of %d; the launcher started ranks %d to "
                          "%d on this host",
                          e.rank, e.local_rank, e.local_n, host->seg->first_rank,
                          host->seg->first_rank + host->seg->n_local - 1);
    }
    if (e.local_n > 1) {
        const int status =
            ku_rendezvous(host->client, &e, timeout_ns, &host->seg, sockets, n_sockets);
        if (status < 0)
            refuse_hosts(&e, host, timeout_ns);
        return status;
    }
    if (host->seg)
        return 0;
    KU_TRY(ku_segment_create_private(host->client, 1, &host->seg));
    host->seg->job_id = e.job_id;
    ku_segment_set_ranks(host->seg, e.rank, e.n);
    return 0;
}

/*
 * This rank fails after it has met others, which may wait for it already: they get its error. The
 * bridge is served here, as the service thread may not run yet, and ends without BYE.
 */
static void give_up(struct ku_job *job)
{
    const struct kumi_error own = *ku_err_get();
    struct ku_host *host = job->priv->host;
    ku_segment_abort(job->seg, &own, job->rank);
    ku_service_stop(job);
    if (host->control) {
        ku_control_serve(host->control);
        ku_control_break(host->control);
        host->control = NULL;
    }
    KU_IGNORE(ku_err_put(&own), "the caller's record stays");
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
    KU_TRY(ku_env_check_threads());
    struct ku_host *host = ku_calloc(1, sizeof *host);
    if (!host)
        return KUMI_ENOMEM;
    host->client = client;
    KU_TRY_OUT(meet(&env, timeout, host, &sockets, &n_sockets));
    KU_TRY_OUT(ku_job_new(host, env.local_rank, opts, &job));
    job->launcher = env.launcher;
    job->priv->socket = sockets;
    job->priv->n_sockets = n_sockets;
    sockets = NULL;
    KU_TRY_OUT(join_hosts(job, &env, opts ? opts->transport : NULL, timeout));
    KU_TRY_OUT(ku_service_start(job));
    KU_TRY_OUT(watch_exit(job));
    *out = job;
    return 0;
out:
    for (int i = 0; sockets && i < n_sockets; i++)
        if (sockets[i] >= 0)
            ku_os_close(sockets[i]);
    ku_free(sockets);
    if (job && job->n > 1)
        give_up(job);
    ku_job_free(job);
    host_free(host);
    return status;
}

void ku_job_close(struct ku_job *job)
{
    if (!job)
        return;
    struct ku_host *host = job->priv->host;
    const bool is_shared = job->priv->is_shared;
    const bool has_left = atomic_load(&job->priv->line->state) == KU_RANK_LEFT;
    const bool has_failed = !has_left || ku_job_has_failed(job);
    ku_job_free(job);
    if (is_shared)
        host->client->unshare(has_failed);
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
