/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/world.h"

#include "base/clock.h"
#include "base/env.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/guard.h"
#include "base/os/os.h"
#include "comm/private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int set_options(struct ku_job *job, const struct ku_job_opts *opts)
{
    struct ku_comm_rank *p = job->comm;
    const char *chaos = opts->chaos ? opts->chaos : ku_env("KUMI_CHAOS");
    const char *transport = opts->transport ? opts->transport : "auto";
    if (strcmp(transport, "auto") && strcmp(transport, "tcp") && strcmp(transport, "mpi") &&
        strcmp(transport, job->priv->host->is_threads ? "thread" : "shm"))
        return KU_ERR(KUMI_EINVAL,
                      "transport: %s: unknown, or not for these ranks; give auto, shm (processes), "
                      "thread (threads), or between hosts tcp or mpi",
                      transport);
    KU_TRY(ku_chaos_parse(chaos, &p->chaos));
    p->transport = p->chaos.is_on ? &ku_transport_chaos : &ku_transport_shm;
    p->budget_bytes = -1;
    p->kernels = ku_sum_choose();
    return 0;
}

static void close_rank(struct ku_job *job)
{
    struct ku_comm_rank *p = job->comm;
    if (!p)
        return;
    while (p->comms)
        ku_comm_free(p->comms);
    if (p->net)
        p->net->ops->close(p->net, ku_job_has_failed(job));
    for (int i = 0; i < KU_SLOTS; i++)
        ku_free(p->sequences[i].sent);
    ku_free(p);
    job->comm = NULL;
    job->world = job->local = NULL;
}

static bool is_auto(const char *transport)
{
    return !transport || strcmp(transport, "auto") == 0;
}

/* Whether `auto` stands for mpi where all hosts have it: its launcher started the ranks. */
static bool prefers_mpi(const char *launcher, const char *transport)
{
    return is_auto(transport) && (!strcmp(launcher, "openmpi") || !strcmp(launcher, "mpich"));
}

const char *ku_comm_engine(const char *launcher, const char *transport)
{
    const struct kumi_error own = *ku_err_get();
    const struct ku_net_ops *ops;
    if (!prefers_mpi(launcher, transport))
        return "";
    if (ku_net_mpi(&ops) == 0)
        return ops->name;
    KU_IGNORE(ku_err_put(&own), "say_apart says why, once the hosts have met");
    return "";
}

/* For want of this host's engine there is none that all hosts can use. */
static void say_apart(const struct ku_job *job)
{
    const struct ku_host_row *row = ku_job_hosts(job);
    const struct ku_net_ops *ops;
    if (ku_net_mpi(&ops) == 0)
        KU_IGNORE(KU_ERR(KUMI_EINVAL, "mpi: %s here, %s on host %s; use one make on all hosts",
                         ops->name, row->engine, row->name),
                  "it is logged");
    KU_LOG(COMM, WARN, "host %s: %s; until then all hosts use tcp", row[job->host].name,
           ku_err_get()->text);
}

/* What `auto` stands for: one decision of all ranks, by the table of hosts. */
static int choose_net(const struct ku_job *job, const char *transport,
                      const struct ku_net_ops **ops)
{
    int apart;
    if (*ku_hosts_engine(ku_job_hosts(job), job->n_hosts, &apart))
        return ku_net_mpi(ops);
    if (job->host == apart && job->local_rank == 0 && prefers_mpi(job->launcher, transport))
        say_apart(job);
    return 0;
}

/* The network to other hosts, with the faults that chaos asks for */
static int open_net(struct ku_job *job, const char *transport)
{
    struct ku_comm_rank *p = job->comm;
    const struct ku_net_ops *ops = &ku_net_tcp;
    struct ku_net *net;
    if (transport && strcmp(transport, "shm") == 0)
        return KU_ERR(KUMI_EINVAL,
                      "transport: shm: for the ranks of one host, but these are on %d; give auto, "
                      "tcp or mpi",
                      job->n_hosts);
    if (transport && strcmp(transport, "mpi") == 0)
        KU_TRY(ku_net_mpi(&ops));
    else if (is_auto(transport))
        KU_TRY(choose_net(job, transport, &ops));
    KU_TRY(ops->open(job, &net));
    p->net = net;
    if (!p->chaos.is_on)
        return 0;
    KU_TRY(ku_net_chaos(net, &p->chaos, job->rank, &p->net));
    return 0;
}

/* The rank's communicators: no other rank takes part. */
static int open_rank(struct ku_job *job, const struct ku_job_opts *opts, struct ku_arenas *arenas)
{
    static const struct ku_job_opts defaults;
    job->comm = ku_calloc(1, sizeof *job->comm);
    if (!job->comm)
        return KUMI_ENOMEM;
    job->comm->arenas = arenas;
    int status = set_options(job, opts ? opts : &defaults);
    if (!status && job->n_hosts > 1)
        status = open_net(job, opts ? opts->transport : NULL);
    if (!status)
        status = ku_comm_world(job);
    if (status < 0)
        close_rank(job);
    return status;
}

static void unmap_arenas(struct ku_arenas *arenas)
{
    for (int i = 0; i < KU_MAX_ARENAS; i++)
        if (arenas->arena[i].base) {
            ku_guard_destroy(arenas->arena[i].guard);
            ku_os_munmap(arenas->arena[i].base, arenas->arena[i].bytes);
        }
}

static void free_arenas(struct ku_arenas *arenas)
{
    if (arenas)
        unmap_arenas(arenas);
    ku_free(arenas);
}

static int by_value(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* 1 on all ranks if two hosts have one kernel, else 0 on all. */
static int has_common_kernel(const struct ku_job *job)
{
    uint64_t *kernel = ku_malloc((size_t)job->n_hosts * sizeof *kernel);
    int is_common = 0;
    if (!kernel)
        return KUMI_ENOMEM;
    for (int h = 0; h < job->n_hosts; h++)
        kernel[h] = ku_job_hosts(job)[h].kernel;
    qsort(kernel, (size_t)job->n_hosts, sizeof *kernel, by_value);
    for (int h = 1; h < job->n_hosts; h++)
        is_common |= kernel[h] && kernel[h] == kernel[h - 1];
    ku_free(kernel);
    return is_common;
}

/* Gather the CPUs of every rank's host, and count those that share this one's. */
static int count_sharing(struct ku_job *job, int *n_ranks, int *n_cpus)
{
    uint64_t own[KU_OS_CPU_WORDS], all[KU_OS_CPU_WORDS];
    uint64_t *cpus = ku_malloc((size_t)job->n * sizeof own);
    if (!cpus)
        return KUMI_ENOMEM;
    ku_job_cpus(job, own);
    const struct ku_coll gather = {.kind = KU_COLL_ALL_GATHER,
                                   .dtype = KUMI_U8,
                                   .wire = KUMI_U8,
                                   .name = "join",
                                   .in = own,
                                   .out = cpus,
                                   .count = sizeof own};
    int status = ku_comm_run_own(job->world, &gather);
    for (int h = 0; h < job->n_hosts && !status; h++) /* a host's at its first rank: h <= rank */
        memmove(cpus + (size_t)h * KU_OS_CPU_WORDS,
                cpus + (size_t)ku_job_hosts(job)[h].first_rank * KU_OS_CPU_WORDS, sizeof own);
    if (!status) {
        *n_ranks = ku_hosts_sharing(ku_job_hosts(job), job->n_hosts, job->host, cpus, all);
        *n_cpus = ku_cpus_count(all);
    }
    ku_free(cpus);
    return status;
}

/*
 * The cores of this rank: those of its host, within the quota of its control group; or, where they
 * are scarcer, those of all hosts on its kernel.
 */
static int find_cores(struct ku_job *job)
{
    struct ku_comm_rank *p = job->comm;
    const bool is_pretended = job->priv->host->is_threads || ku_env("KUMI_HOST");
    int n_ranks = 0, n_cpus = 0, is_common = job->n_hosts > 1 ? has_common_kernel(job) : 0;
    KU_TRY(is_common);
    p->n_sharing = is_pretended && !ku_os_kernel() ? job->n : job->local_n;
    p->n_cpus = ku_job_n_cpus(job);
    if (is_common) {
        KU_TRY(count_sharing(job, &n_ranks, &n_cpus));
        if (is_pretended) /* in one control group, whose quota counts */
            p->n_sharing = n_ranks;
        if ((int64_t)n_ranks * p->n_cpus > (int64_t)p->n_sharing * n_cpus) {
            p->n_sharing = n_ranks;
            p->n_cpus = n_cpus;
        }
    }
    p->may_spin = p->n_sharing * job->priv->threads <= p->n_cpus;
    return 0;
}

void ku_comm_cores(const struct ku_job *job, int *n_ranks, int *n_cpus)
{
    *n_ranks = job->comm->n_sharing;
    *n_cpus = job->comm->n_cpus;
}

static int enter(struct ku_job *job)
{
    struct ku_coll barrier = {.kind = KU_COLL_BARRIER, .name = "join"};
    atomic_store(&job->priv->line->state, KU_RANK_JOINED);
    KU_TRY(ku_comm_run_own(job->world, &barrier));
    return find_cores(job);
}

/*
 * Collective. Afterwards the state tells the others not to check this rank's life mutex.
 */
static int part(struct ku_job *job)
{
    struct ku_coll leave = {.kind = KU_COLL_LEAVE};
    atomic_store(&job->priv->line->state, KU_RANK_LEAVING);
    ku_segment_ring_all(job->seg);
    int status = ku_comm_run_own(job->world, &leave);
    atomic_store(&job->priv->line->state, KU_RANK_LEFT);
    return status;
}

/*
 * This rank cannot open its communicators, and often none can: the job has one root cause, which
 * one rank prints. The first rank of the host may not have started its bridge yet.
 */
static int refuse(struct ku_job *job)
{
    const int64_t deadline = ku_clock_ns() + KU_VERDICT_NS;
    while (job->n_hosts > 1 && !atomic_load(&job->seg->is_bridged) && !ku_job_has_failed(job) &&
           ku_clock_ns() < deadline)
        usleep(500);
    return ku_job_fail(job);
}

static void log_joined(const struct ku_job *job)
{
    const struct ku_comm_rank *p = job->comm;
    char net[320];
    ku_comm_describe(job, net, sizeof net);
    if (job->n > 1)
        KU_LOG(COMM, INFO,
               "rank %d of %d joined (started by %s, transport %s%s%s; waits %s: %d rank%s x %d "
               "thread%s on %d core%s)",
               job->rank, job->n, job->launcher, p->transport->name, p->net ? ", " : "",
               p->net ? net : "", p->may_spin ? "spin" : "sleep", p->n_sharing,
               p->n_sharing == 1 ? "" : "s", job->priv->threads, job->priv->threads == 1 ? "" : "s",
               p->n_cpus, p->n_cpus == 1 ? "" : "s");
}

int ku_comm_join(const struct ku_job_opts *opts, struct ku_job **out)
{
    struct ku_job *job;
    KU_TRY(ku_job_open(&ku_comm_client, opts, &job));
    struct ku_arenas *arenas = ku_calloc(1, sizeof *arenas);
    int status = arenas ? 0 : KUMI_ENOMEM;
    KU_TRY_OUT(status);
    status = open_rank(job, opts, arenas);
    if (status < 0 && job->n > 1)
        status = refuse(job);
    KU_TRY_OUT(status);
    KU_TRY_OUT(enter(job));
    log_joined(job);
    *out = job;
    return 0;
out:
    close_rank(job);
    free_arenas(arenas);
    ku_job_close(job);
    return status;
}

int ku_comm_leave(struct ku_job *job)
{
    if (!job)
        return 0;
    struct ku_arenas *arenas = job->comm->arenas;
    int status = part(job);
    close_rank(job);
    free_arenas(arenas);
    ku_job_close(job);
    return status;
}

/* Arguments of the ranks that are threads */
struct threads {
    struct ku_arenas *arenas; /* [n_hosts] */
    const struct ku_job_opts *opts;
    int (*fn)(struct ku_job *job, void *arg);
    void *arg;
};

static int run_rank(struct ku_job *job, void *arg)
{
    const struct threads *t = arg;
    int status = open_rank(job, t->opts, &t->arenas[job->host]);
    if (status < 0) {
        /* This rank will not join; release those that wait for it. */
        ku_segment_abort(job->seg, ku_err_get(), job->rank);
        return status;
    }
    status = enter(job);
    if (!status)
        status = t->fn(job, t->arg);
    if (status >= 0)
        status = part(job);
    close_rank(job);
    return status;
}

int ku_comm_threads(int n, const struct ku_job_opts *opts, int (*fn)(struct ku_job *job, void *arg),
                    void *arg)
{
    struct threads t = {.opts = opts, .fn = fn, .arg = arg};
    size_t n_hosts = 1;
    for (const char *p = opts && opts->hosts ? opts->hosts : ""; *p; p++)
        n_hosts += *p == ',';
    t.arenas = ku_calloc(n_hosts, sizeof *t.arenas);
    if (!t.arenas)
        return KUMI_ENOMEM;
    int status = ku_job_threads(&ku_comm_client, n, opts, run_rank, &t);
    for (size_t h = 0; h < n_hosts; h++)
        unmap_arenas(&t.arenas[h]);
    ku_free(t.arenas);
    return status;
}

void ku_comm_describe(const struct ku_job *job, char *text, size_t cap)
{
    const struct ku_net *net = job->comm->net;
    if (net)
        net->ops->describe(net, text, cap);
    else
        snprintf(text, cap, "%s", job->comm->transport->name);
}
