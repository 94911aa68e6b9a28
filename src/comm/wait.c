/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting for a work.
 *
 * How a rank waits:
 *
 *     the host has a core per thread    spins 2 ms, then sleeps
 *     else                              20 sched_yield, then sleeps
 *
 * It sleeps on its futex `wakeup`, at most 50 ms. Yields end where they lose time slices
 * (base/os/yields.h).
 *
 * After each 25 ms of sleep the rank checks the abort flag, the life mutexes and the states of all
 * other ranks. A deadline counts the time in which the awaited rank makes no progress. If the
 * awaited rank waits itself, the last rank of that chain counts, also where the chain goes on to
 * other hosts:
 *
 *     rank 3  waits for  rank 2  waits for  rank 0  waits for  rank 1, which reads a checkpoint
 *     └───── this host: segment ─────┘        └──── another host: questions (job/control.h) ────┘
 *
 * One sleep counts at most 50 ms, so a rank that was stopped itself does not blame another.
 *
 * A caller that polls does not sleep here. Its polls look every 25 ms, and the time between two
 * looks counts as a sleep.
 */
#include "base/clock.h"
#include "base/err.h"
#include "base/os/ipc.h"
#include "base/os/process.h"
#include "comm/private.h"
#include "job/control.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

enum {
    N_YIELDS = 20,
    SPIN_NS = 2 * 1000 * 1000,
    SPINS_PER_LOOK = 64,
    ASK_NS = 500 * 1000 * 1000, /* wait before another host is asked for a rank's progress */
    MAX_ASKED = 16, /* ranks of a chain that are asked; one that is longer is taken for a cycle */
    POLL_FDS = 64,  /* more connections than that are looked at after each sleep */
    BLIND_NS = 200 * 1000 /* sleep while an engine cannot say when it has something */
};
/*
 * Added to the time-out for ranks of other hosts. Their own hosts see more and report first, within
 * 1 s also where the first rank of all hosts is the one that stands still.
 */
static const int64_t far_grace_ns = INT64_C(3000000000);
/*
 * Wait without an answer after which a host counts as silent. An answer takes milliseconds, and a
 * question that was lost is asked again after 1 s.
 */
static const int64_t silence_ns = INT64_C(2000000000);
/*
 * Wait without a byte after which a rank of another host that leaves has sent nothing more: TCP
 * repeats a lost segment three times in 1.4 s.
 */
static const int64_t leaver_ns = INT64_C(2000000000);

#define STOPPED_HINT "; its process %u is stopped: kill -CONT %u continues it"
#define WAITS_HINT   "; it waits too: check that all ranks call collectives in the same order"

int ku_job_check(struct ku_job *job)
{
    KU_TRY(ku_job_look(job, NULL));
    return ku_job_progress(job);
}

static bool is_message(const struct ku_work *w)
{
    return w->path == KU_PATH_P2P || w->path == KU_PATH_FAR_MESSAGE;
}

/* Whether a work waits for messages of other hosts */
static bool is_far_step(const struct ku_work *w)
{
    const int op = w->step[w->pc];
    return op == KU_STEP_FAR_SMALL || (op >= KU_STEP_FAR_REDUCE && op <= KU_STEP_FAR_MESSAGE);
}

/* The rank that a work waits for; -1: none */
static int awaited_by(const struct ku_work *w)
{
    const struct ku_work *head = is_message(w) ? w : w->comm->priv->head;
    if (head && is_message(head))
        return ku_comm_rank(head->comm, head->coll.root);
    if (head && is_far_step(head)) {
        const int member = ku_far_awaited(head);
        return member < 0 ? -1 : ku_comm_rank(head->comm, member);
    }
    if (!head || head->missing >= head->comm->near.n)
        return -1;
    KU_ASSERT(head->missing >= 0);
    return head->comm->job->first_rank + ku_comm_near(head->comm, head->missing);
}

/* The line of a rank on this host; NULL: it is on another one */
static struct ku_rank_line *line_of(const struct ku_job *job, int rank)
{
    const int local = rank - job->first_rank;
    return local >= 0 && local < job->local_n ? ku_segment_line(job->seg, local) : NULL;
}

/* The end of the chain of waits that begins at `rank`, or its first rank of another host */
static int end_of_chain(const struct ku_job *job, int rank)
{
    int at = rank;
    for (int hops = 0; line_of(job, rank) && hops < job->local_n; hops++) {
        const int next = (int)atomic_load(&line_of(job, at)->awaits) - 1;
        if (next < 0 || !line_of(job, next))
            return next < 0 ? at : next;
        at = next;
    }
    return rank; /* a cycle */
}

/* The first rank with a stopped process on the chain of waits that begins at `rank`; -1: none */
static int stopped_on_chain(const struct ku_job *job, int rank)
{
    for (int hops = 0, at = rank; hops < job->local_n && at >= 0 && line_of(job, at); hops++) {
        if (ku_os_is_stopped((pid_t)atomic_load(&line_of(job, at)->pid)))
            return at;
        at = (int)atomic_load(&line_of(job, at)->awaits) - 1;
    }
    return -1;
}

/*
 * The chain goes on to other hosts, which say what their ranks do. If one does not, the host's
 * first rank, which answers for it, stands still or is out of reach, whatever rank is awaited.
 */
static int raise_far_timeout(struct ku_job *job, struct ku_waiter *w, const struct ku_work *work)
{
    char mine[160], text[160], hint[160] = "";
    const bool is_known = w->far.has_answer && w->stood_ns - w->far.answered_ns < silence_ns;
    const char *last = is_known ? w->far.end_last : "";
    const int host = ku_segment_host_of(job->seg, w->far.asked);
    const int culprit = is_known ? w->awaited : ku_segment_hosts(job->seg)[host].first_rank;
    if (!is_known)
        snprintf(hint, sizeof hint, "; its host does not answer");
    else if (w->far.end_stopped_pid)
        snprintf(hint, sizeof hint, STOPPED_HINT, w->far.end_stopped_pid, w->far.end_stopped_pid);
    else if (w->far.end_awaits >= 0)
        snprintf(hint, sizeof hint, WAITS_HINT);
    ku_work_describe(work, mine, sizeof mine);
    ku_segment_rank_text(job->seg, culprit, text, sizeof text);
    KU_ERR_SCOPE(KUMI_ETIMEDOUT, KUMI_SCOPE_JOB,
                 "time-out: %s: no progress for %.1f s while rank %d waited in %s%s%s%s", text,
                 (double)w->stood_ns * 1e-9, job->rank, mine,
                 last[0] ? "; its last operation: " : "", last, hint);
    return ku_job_raise(job, culprit);
}

static int raise_timeout(struct ku_job *job, struct ku_waiter *w, const struct ku_work *work)
{
    char last[160], mine[160], text[160], hint[160] = "";
    const int stopped = stopped_on_chain(job, awaited_by(work));
    if (stopped < 0 && w->far.first >= 0)
        return raise_far_timeout(job, w, work);
    const int culprit = stopped < 0 ? w->awaited : stopped;
    struct ku_rank_line *line = line_of(job, culprit);
    ku_flight_last(job->seg, job->priv->host->client, culprit - job->first_rank, last, sizeof last);
    ku_work_describe(work, mine, sizeof mine);
    if (stopped >= 0)
        snprintf(hint, sizeof hint, STOPPED_HINT, atomic_load(&line->pid), atomic_load(&line->pid));
    else if (atomic_load(&line->awaits) && atomic_load(&line->looks) != w->looks)
        snprintf(hint, sizeof hint, WAITS_HINT);
    ku_segment_rank_text(job->seg, culprit, text, sizeof text);
    KU_ERR_SCOPE(KUMI_ETIMEDOUT, KUMI_SCOPE_JOB,
                 "time-out: %s: no progress for %.1f s while rank %d waited in %s%s%s%s", text,
                 (double)w->stood_ns * 1e-9, job->rank, mine,
                 last[0] ? "; its last operation: " : "", last, hint);
    return ku_job_raise(job, culprit);
}

/*
 * Follow a chain of waits beyond this host: its ranks are asked one after the other, once the wait
 * is a long one, and again from the first when the end is found. Of a cycle the first rank counts.
 * Returns the end that was found last, with its progress.
 */
static int end_of_far_chain(struct ku_job *job, struct ku_waiter *w, int first, uint64_t *progress)
{
    struct ku_far_chain *f = &w->far;
    struct ku_progress p;
    if (f->first != first) {
        *f = (struct ku_far_chain){.first = first, .asked = first, .end_awaits = -1};
        *progress = 0;
        return first;
    }
    *progress = w->progress;
    if (w->stood_ns < ASK_NS || !ku_control_ask(job, f->asked, &p))
        return w->awaited;
    f->answered_ns = w->stood_ns;
    f->has_answer = true;
    f->is_leaving |= f->asked == first && p.state == KU_RANK_LEAVING;
    if (p.awaits < 0 || p.awaits >= job->n || p.stopped_pid || f->n_asked == MAX_ASKED) {
        const int end = f->asked;
        _Static_assert(sizeof f->end_last == sizeof p.last, "copied as it is");
        f->end_awaits = p.awaits;
        f->end_stopped_pid = p.stopped_pid;
        memcpy(f->end_last, p.last, sizeof f->end_last);
        f->asked = first;
        f->n_asked = 0;
        *progress = p.progress;
        return end;
    }
    const bool is_cycle = p.awaits == first || p.awaits == job->rank || f->n_asked + 1 == MAX_ASKED;
    f->n_asked = is_cycle ? MAX_ASKED : f->n_asked + 1;
    f->asked = is_cycle ? first : p.awaits;
    return w->awaited;
}

/* Count `ns` of waiting against the deadline. */
static int count_time(struct ku_job *job, struct ku_waiter *w, const struct ku_work *work,
                      int64_t ns)
{
    const int first = awaited_by(work);
    atomic_store(&job->priv->line->awaits, (uint32_t)(first + 1));
    atomic_fetch_add(&job->priv->line->looks, 1);
    if (first < 0)
        return 0;
    int awaited = first == job->rank ? first : end_of_chain(job, first);
    const struct ku_rank_line *line = line_of(job, awaited);
    uint64_t progress = 0, looks = 0;
    int64_t timeout_ns = job->priv->timeout_ns;
    if (line) {
        progress = atomic_load_explicit(&line->progress, memory_order_relaxed);
        looks = atomic_load(&line->looks);
        w->far.first = -1;
    } else { /* a rank of this host that waits for another host itself knows more */
        timeout_ns += awaited == first ? far_grace_ns : 2 * far_grace_ns;
        awaited = end_of_far_chain(job, w, awaited, &progress);
    }
    ns = ns < KU_SLEEP_NS ? ns : KU_SLEEP_NS;
    w->far.left_ns += w->far.is_leaving ? ns : 0;
    if (awaited != w->awaited || progress != w->progress) {
        w->awaited = awaited;
        w->progress = progress;
        w->looks = (uint32_t)looks;
        w->stood_ns = w->far.answered_ns = 0;
        return 0;
    }
    w->stood_ns += ns;
    return w->stood_ns >= timeout_ns ? raise_timeout(job, w, work) : 0;
}

/* Whether a rank says that it is in kumi_comm_leave; one of another host, for a while by now */
static bool is_leaver(const struct ku_job *job, const struct ku_waiter *w, int rank)
{
    struct ku_rank_line *line = line_of(job, rank);
    return line ? atomic_load(&line->state) == KU_RANK_LEAVING
                : w->far.first == rank && w->far.left_ns >= leaver_ns;
}

/*
 * A rank that waits for one that is in kumi_comm_leave would wait for ever. On the world the
 * fingerprints report it. Elsewhere it is an error, unless the leaver arrived at the work before it
 * left: its flags are tested once more.
 */
static int look_for_leavers(struct ku_job *job, const struct ku_waiter *w,
                            const struct ku_work *work, const char *text)
{
    const int awaited = awaited_by(work);
    if (awaited < 0 || awaited == job->rank || !is_leaver(job, w, awaited) ||
        (work->comm == job->world && !is_message(work)))
        return 0;
    job->comm->has_moved = 0;
    KU_TRY(ku_job_advance(job));
    return work->state == KU_WORK_FINISHED || awaited_by(work) != awaited || job->comm->has_moved
               ? 0
               : ku_job_raise_left(job, awaited, text);
}

static void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* With connections to other hosts a rank sleeps in poll, where its doorbell is one descriptor. */
static void sleep_once(struct ku_job *job, struct ku_rank_line *line, uint32_t wakeup)
{
    struct ku_net *net = job->comm->net;
    struct pollfd fds[POLL_FDS];
    const int64_t ns = job->comm->transport->sleep_ns;
    const int n = net ? net->ops->poll(net, fds, POLL_FDS) : 0;
    if (n > 0)
        poll(fds, (nfds_t)(n < POLL_FDS ? n : POLL_FDS), n > POLL_FDS ? 1 : (int)(ns / 1000000));
    else
        ku_os_futex_wait(&line->wakeup, wakeup, n < 0 ? BLIND_NS : ns);
}

/*
 * Sleep until a wake-up, unless a last test advances a work. `asleep` is set before the test, so no
 * wake-up is lost. Returns the ns slept, or a status.
 */
static int64_t sleep_until_woken(struct ku_job *job, const struct ku_work *work)
{
    struct ku_rank_line *line = job->priv->line;
    uint32_t wakeup = atomic_load(&line->wakeup);
    struct ku_net *net = job->comm->net;
    const bool has_fds = net && net->ops->poll(net, NULL, 0) >= 0;
    atomic_store(&line->asleep, has_fds ? KU_ASLEEP_IN_POLL : KU_ASLEEP);
    atomic_fetch_add(&job->seg->n_asleep, 1);
    job->comm->has_moved = 0;
    int status = ku_job_advance(job);
    int64_t slept = 0;
    if (!status && !job->comm->has_moved && work->state == KU_WORK_STARTED) {
        int64_t from = ku_clock_ns();
        sleep_once(job, line, wakeup);
        slept = ku_clock_ns() - from;
    }
    atomic_fetch_sub(&job->seg->n_asleep, 1);
    atomic_store(&line->asleep, 0);
    return status < 0 ? status : slept;
}

/* Yield the core, if that is worth it. Returns whether to test again before a sleep. */
static bool yield(struct ku_job *job, struct ku_waiter *w)
{
    if (w->n_yields == 0 && !ku_yields_begin(&job->comm->yields))
        w->n_yields = N_YIELDS;
    if (w->n_yields == N_YIELDS)
        return false;
    w->n_yields++;
    if (!ku_yields_once(&job->comm->yields))
        w->n_yields = N_YIELDS;
    return true;
}

/* Look at the other ranks while this one waits for `work`. */
static int look(struct ku_job *job, const struct ku_waiter *w, const struct ku_work *work)
{
    char text[160];
    ku_work_describe(work, text, sizeof text);
    KU_TRY(ku_job_look(job, text));
    return look_for_leavers(job, w, work, text);
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
    } else if (yield(job, w)) {
        return 0;
    }
    int64_t slept = sleep_until_woken(job, work);
    if (slept < 0)
        return (int)slept;
    w->slept_ns += slept;
    if (w->slept_ns >= KU_SLEEP_NS / 2) {
        w->slept_ns = 0;
        KU_TRY(look(job, w, work));
    }
    return count_time(job, w, work, slept);
}

/* Time since the last look if the next one is due, else 0. The first call is not. */
static int64_t due_ns(int64_t *looked_ns)
{
    const int64_t now = ku_clock_ns(), ns = *looked_ns ? now - *looked_ns : 0;
    if (*looked_ns && ns < KU_SLEEP_NS / 2)
        return 0;
    *looked_ns = now;
    return ns;
}

int ku_work_poll(struct ku_work *work, struct ku_waiter *w)
{
    struct ku_job *job = work->comm->job;
    int status = ku_work_test(work);
    if (status == 0) {
        if (!w->looked_ns)
            *w = (struct ku_waiter){.awaited = -1, .far = {.first = -1}};
        const int64_t ns = due_ns(&w->looked_ns);
        status = ku_job_settle(job);
        if (ns > 0 && !status)
            status = look(job, w, work);
        if (ns > 0 && !status)
            status = count_time(job, w, work, ns);
    }
    if (status && w->looked_ns)
        atomic_store_explicit(&job->priv->line->awaits, 0, memory_order_relaxed);
    return status;
}

int ku_job_poll(struct ku_job *job)
{
    if (job->comm->n_started && due_ns(&job->comm->looked_ns) > 0)
        KU_TRY(ku_job_look(job, NULL));
    KU_TRY(ku_job_settle(job));
    return ku_job_progress(job);
}
