/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting for a work.
 *
 * How a rank waits:
 *
 *     the host has a core per thread    spins 2 ms, then sleeps
 *     else                              20 sched_yield, then sleeps
 *
 * It sleeps on its futex `bell`, at most 50 ms. Measured with 8 ranks on 2 cores, a barrier takes
 * 28-40 us with immediate sleep and 6.5 us with the yields.
 *
 * After each 25 ms of sleep the rank checks the abort flag, the life mutexes and the states of all
 * other ranks. A deadline counts the time in which the awaited rank makes no progress. If the
 * awaited rank waits itself, the last rank of that chain counts. One sleep counts at most 50 ms, so
 * a rank that was stopped itself does not blame another.
 */
#include "base/clock.h"
#include "base/err.h"
#include "base/os/ipc.h"
#include "base/os/process.h"
#include "comm/private.h"

#include <sched.h>
#include <stdio.h>

enum { N_YIELDS = 20, SPIN_NS = 2 * 1000 * 1000, SPINS_PER_LOOK = 64 };

int ku_job_check(struct ku_job *job)
{
    KU_TRY(ku_job_look(job, NULL));
    return ku_job_progress(job);
}

/* The local rank that a work waits for; -1: none */
static int awaited_by(const struct ku_work *w)
{
    const struct ku_work *head = w->path == KU_PATH_P2P ? w : w->comm->priv->head;
    if (head && head->path == KU_PATH_P2P)
        return ku_comm_local(head->comm, head->coll.root);
    if (!head || head->missing >= head->comm->n)
        return -1;
    KU_ASSERT(head->missing >= 0);
    return ku_comm_local(head->comm, head->missing);
}

/* The last rank of the chain of waits that begins at `local` */
static int end_of_chain(struct ku_job *job, int local)
{
    int at = local;
    for (int hops = 0; hops < job->local_n; hops++) {
        int next = (int)atomic_load(&ku_segment_line(job->seg, at)->awaits) - 1;
        if (next < 0)
            return at;
        KU_ASSERT(next < job->local_n);
        at = next;
    }
    return local; /* a cycle */
}

/* The first rank with a stopped process on the chain of waits that begins at `local`; -1: none */
static int stopped_on_chain(struct ku_job *job, int local)
{
    for (int hops = 0, at = local; hops < job->local_n && at >= 0; hops++) {
        struct ku_rank_line *line = ku_segment_line(job->seg, at);
        if (ku_os_is_stopped((pid_t)atomic_load(&line->pid)))
            return at;
        at = (int)atomic_load(&line->awaits) - 1;
    }
    return -1;
}

static int raise_timeout(struct ku_job *job, struct ku_waiter *w, const struct ku_work *work)
{
    char last[160], mine[160], hint[160] = "";
    KU_ASSERT(w->awaited >= 0 && w->awaited < job->local_n);
    int stopped = stopped_on_chain(job, w->awaited), culprit = stopped < 0 ? w->awaited : stopped;
    struct ku_rank_line *line = ku_segment_line(job->seg, culprit);
    ku_flight_last(job->seg, job->priv->host->client, culprit, last, sizeof last);
    ku_work_describe(work, mine, sizeof mine);
    if (stopped >= 0)
        snprintf(hint, sizeof hint, "; its process %u is stopped: kill -CONT %u continues it",
                 atomic_load(&line->pid), atomic_load(&line->pid));
    else if (atomic_load(&line->awaits) && atomic_load(&line->looks) != w->looks)
        snprintf(hint, sizeof hint,
                 "; it waits too: check that all ranks call collectives in the same order");
    KU_ERR_SCOPE(KUMI_ETIMEDOUT, KUMI_SCOPE_JOB,
                 "time-out: rank %d: no progress for %.1f s while rank %d waited in %s%s%s%s",
                 culprit, (double)w->stood_ns * 1e-9, job->rank, mine,
                 last[0] ? "; its last operation: " : "", last, hint);
    return ku_job_raise(job, culprit);
}

/* Count `ns` of waiting against the deadline. */
static int count_time(struct ku_job *job, struct ku_waiter *w, const struct ku_work *work,
                      int64_t ns)
{
    int awaited = awaited_by(work);
    atomic_store(&job->priv->line->awaits, (uint32_t)(awaited + 1));
    atomic_fetch_add(&job->priv->line->looks, 1);
    if (awaited < 0)
        return 0;
    if (awaited != job->local_rank)
        awaited = end_of_chain(job, awaited);
    struct ku_rank_line *line = ku_segment_line(job->seg, awaited);
    uint64_t progress = atomic_load_explicit(&line->progress, memory_order_relaxed);
    if (awaited != w->awaited || progress != w->progress) {
        w->awaited = awaited;
        w->progress = progress;
        w->looks = atomic_load(&line->looks);
        w->stood_ns = 0;
        return 0;
    }
    w->stood_ns += ns < KU_SLEEP_NS ? ns : KU_SLEEP_NS;
    return w->stood_ns >= job->priv->timeout_ns ? raise_timeout(job, w, work) : 0;
}

/*
 * A rank that waits for one that is in kumi_comm_leave would wait for ever. On the world the
 * fingerprints report it. Elsewhere it is an error, unless the leaver arrived at the work before it
 * left: its flags are tested once more.
 */
static int look_for_leavers(struct ku_job *job, const struct ku_work *work, const char *text)
{
    int awaited = awaited_by(work);
    if (awaited < 0 || awaited == job->local_rank ||
        (work->comm == job->world && work->path != KU_PATH_P2P))
        return 0;
    if (atomic_load(&ku_segment_line(job->seg, awaited)->state) != KU_RANK_LEAVING)
        return 0;
    KU_TRY(ku_job_advance(job));
    return work->state == KU_WORK_FINISHED || awaited_by(work) != awaited
               ? 0
               : ku_job_raise_left(job, awaited, text);
}

static void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/*
 * Sleep until a wake-up, unless a last test advances a work. `asleep` is set before the test, so no
 * wake-up is lost. Returns the ns slept, or a status.
 */
static int64_t sleep_on_bell(struct ku_job *job, const struct ku_work *work)
{
    struct ku_rank_line *line = job->priv->line;
    uint32_t bell = atomic_load(&line->bell);
    atomic_store(&line->asleep, 1);
    atomic_fetch_add(&job->seg->n_asleep, 1);
    job->comm->has_moved = 0;
    int status = ku_job_advance(job);
    int64_t slept = 0;
    if (!status && !job->comm->has_moved && work->state == KU_WORK_STARTED) {
        int64_t from = ku_clock_ns();
        ku_os_futex_wait(&line->bell, bell, job->comm->transport->sleep_ns);
        slept = ku_clock_ns() - from;
    }
    atomic_fetch_sub(&job->seg->n_asleep, 1);
    atomic_store(&line->asleep, 0);
    return status < 0 ? status : slept;
}

int ku_job_idle(struct ku_job *job, struct ku_waiter *w, const struct ku_work *work)
{
    KU_ASSERT(work->state == KU_WORK_STARTED);
    if (job->comm->may_spin) {
        pause_cpu();
        if (++w->n_spins % SPINS_PER_LOOK)
            return 0;
        int64_t now = ku_clock_ns();
        if (!w->spin_ns)
            w->spin_ns = now;
        if (now - w->spin_ns < SPIN_NS)
            return 0;
        w->n_spins--; /* every further call gets here */
    } else if (w->n_yields < N_YIELDS) {
        w->n_yields++;
        sched_yield();
        return 0;
    }
    int64_t slept = sleep_on_bell(job, work);
    if (slept < 0)
        return (int)slept;
    w->slept_ns += slept;
    if (w->slept_ns >= KU_SLEEP_NS / 2) {
        char text[160];
        w->slept_ns = 0;
        ku_work_describe(work, text, sizeof text);
        KU_TRY(ku_job_look(job, text));
        KU_TRY(look_for_leavers(job, work, text));
    }
    return count_time(job, w, work, slept);
}
