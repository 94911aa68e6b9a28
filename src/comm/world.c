/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/world.h"

#include "base/env.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/guard.h"
#include "base/os/os.h"
#include "comm/private.h"

#include <stdlib.h>
#include <string.h>

static int set_options(struct ku_job *job, const struct ku_job_opts *opts)
{
    struct ku_comm_rank *p = job->comm;
    const char *chaos = opts->chaos ? opts->chaos : ku_env("KUMI_CHAOS");
    const char *transport = opts->transport ? opts->transport : "auto";
    if (strcmp(transport, "auto") &&
        strcmp(transport, job->priv->host->is_threads ? "thread" : "shm"))
        return KU_ERR(KUMI_EINVAL,
                      "transport: %s: unknown, or not for these ranks; give auto, shm (processes) "
                      "or thread (threads)",
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
    for (int i = 0; i < KU_SLOTS; i++)
        ku_free(p->tickets[i].sent);
    ku_free(p);
    job->comm = NULL;
    job->world = NULL;
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
    if (!status)
        status = ku_comm_world(job);
    if (status < 0)
        close_rank(job);
    return status;
}

static void free_arenas(struct ku_arenas *arenas)
{
    for (int i = 0; arenas && i < KU_MAX_ARENAS; i++)
        if (arenas->arena[i].base) {
            ku_guard_destroy(arenas->arena[i].guard);
            ku_os_munmap(arenas->arena[i].base, arenas->arena[i].bytes);
        }
    ku_free(arenas);
}

static int enter(struct ku_job *job)
{
    struct ku_coll barrier = {.kind = KU_COLL_BARRIER, .name = "join"};
    atomic_store(&job->priv->line->state, KU_RANK_JOINED);
    KU_TRY(ku_comm_run_own(job->world, &barrier));
    job->comm->may_spin = job->local_n * job->priv->threads <= ku_job_n_cpus(job);
    return 0;
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

int ku_comm_join(const struct ku_job_opts *opts, struct ku_job **out)
{
    struct ku_job *job;
    KU_TRY(ku_job_open(&ku_comm_client, opts, &job));
    struct ku_arenas *arenas = ku_calloc(1, sizeof *arenas);
    int status = arenas ? 0 : KUMI_ENOMEM;
    KU_TRY_OUT(status);
    KU_TRY_OUT(open_rank(job, opts, arenas));
    KU_TRY_OUT(enter(job));
    if (job->n > 1)
        KU_LOG(COMM, INFO, "rank %d of %d joined (started by %s, transport %s)", job->rank, job->n,
               job->launcher, job->comm->transport->name);
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
    struct ku_arenas *arenas;
    const struct ku_job_opts *opts;
    int (*fn)(struct ku_job *job, void *arg);
    void *arg;
};

static int run_rank(struct ku_job *job, void *arg)
{
    const struct threads *t = arg;
    int status = open_rank(job, t->opts, t->arenas);
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
    t.arenas = ku_calloc(1, sizeof *t.arenas);
    if (!t.arenas)
        return KUMI_ENOMEM;
    int status = ku_job_threads(&ku_comm_client, n, opts, run_rank, &t);
    free_arenas(t.arenas);
    return status;
}
