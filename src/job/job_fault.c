/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Detection of failures, and the root cause.
 *
 * The first error that ends the job becomes its root cause: the rank that wins abort_word stores
 * its record in the segment and prints it, and every other rank copies it when it next looks. A
 * rank that waits looks at least every 50 ms at the abort flag and at the other ranks' states and
 * life mutexes. So a rank that died without a message is found by all that wait. One that died
 * before it joined is found by local rank 0, to which each rank has a socket. With several hosts
 * the ranks look at those of their own host; what is found there reaches the others by control.h.
 */
#include "base/clock.h"
#include "base/err.h"
#include "job/private.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* As `what` of an event: no operation of the client. */
enum { WHAT_FAILURE = 0xff };

int ku_job_copy_root(struct ku_job *job)
{
    struct kumi_error root;
    int status = ku_segment_root(job->seg, &root);
    return status < 0 ? ku_err_put(&root) : 0;
}

int ku_job_raise(struct ku_job *job, int culprit)
{
    if (ku_err_get()->status == KUMI_OK) /* without a status the other ranks would wait on */
        KU_ERR_SCOPE(KUMI_EBUG, KUMI_SCOPE_JOB, "rank %d failed without an error", job->rank);
    if (ku_segment_abort(job->seg, ku_err_get(), culprit)) {
        ku_flight_add(job->priv->flight, KU_FLIGHT_FAIL, 0, WHAT_FAILURE, 0, 0);
        if (!atomic_exchange(&job->seg->root_said, 1)) /* the bridge may have said the same */
            ku_err_print();
        ku_flight_dump(job->seg, job->priv->host->client);
    }
    return ku_job_root(job);
}

int ku_job_fail(struct ku_job *job)
{
    return ku_job_raise(job, job->rank);
}

bool ku_job_has_failed(const struct ku_job *job)
{
    return atomic_load(&job->seg->abort_word) != 0;
}

int ku_job_await_cause(struct ku_job *job, int64_t timeout_ns)
{
    const int64_t deadline = ku_clock_ns() + timeout_ns;
    while (!ku_job_has_failed(job) && ku_clock_ns() < deadline)
        usleep(500);
    return ku_job_root(job);
}

bool ku_job_has_hung_up(const struct ku_job *job, int local)
{
    const struct ku_job_private *p = job->priv;
    const int i = job->local_rank == 0 ? local : 0;
    struct pollfd fd = {.fd = -1, .events = POLLRDHUP};
    if (i < p->n_sockets && (job->local_rank == 0 || local == 0))
        fd.fd = p->socket[i];
    return fd.fd >= 0 && poll(&fd, 1, 0) > 0 && fd.revents & (POLLHUP | POLLRDHUP | POLLERR);
}

static bool is_dead(const struct ku_job *job, struct ku_rank_line *line)
{
    return !job->priv->host->is_threads && ku_segment_find_death(line);
}

/* Whether the rank ended before it joined: then it has no life mutex, and its state stays. */
static bool is_lost(struct ku_job *job, int local, struct ku_rank_line *line)
{
    return ku_job_has_hung_up(job, local) && atomic_load(&line->state) == KU_RANK_ABSENT;
}

int ku_err_death(struct ku_segment *seg, const struct ku_job_client *client, int local, int status,
                 const char *how)
{
    char last[160], rank[96];
    ku_flight_last(seg, client, local, last, sizeof last);
    ku_segment_rank_text(seg, seg->first_rank + local, rank, sizeof rank);
    return KU_ERR_SCOPE(status, KUMI_SCOPE_JOB, "rank died: %s: %s%s%s", rank, how,
                        last[0] ? "; its last operation: " : "", last);
}

int ku_job_raise_left(struct ku_job *job, int rank, const char *awaited)
{
    KU_ERR_SCOPE(KUMI_EMISMATCH, KUMI_SCOPE_JOB,
                 "mismatched collectives: rank %d left the job while rank %d waits for it in %s; "
                 "call the same collectives on "
                 "every rank",
                 rank, job->rank, awaited ? awaited : "a collective of all ranks");
    return ku_job_raise(job, rank);
}

/*
 * The launcher has forwarded a stop signal. Only the launcher can tell whether a rank ended by that
 * signal, and it reports it at once.
 */
static bool is_being_stopped(const struct ku_job *job)
{
    return ku_job_stop(job) && strcmp(job->launcher, "kumi") == 0;
}

bool ku_exit_is_ours(int code)
{
    return (code >= 2 && code <= 14) || code == 70;
}

/*
 * A rank of local rank r ended with this exit code inside the job. A rank of kumi has printed the
 * reason before it ended, so nothing is printed here. For the rank of another program the launcher
 * prints the line.
 */
static int raise_exit(struct ku_job *job, int r, int code)
{
    char how[64];
    snprintf(how, sizeof how, "ended with exit code %d", code);
    const bool is_ours = ku_exit_is_ours(code);
    KU_IGNORE(ku_err_death(job->seg, job->priv->host->client, r, is_ours ? -code : KUMI_EPEER, how),
              "it writes the record that is raised next");
    if (!is_ours)
        return ku_job_raise(job, job->first_rank + r);
    ku_segment_abort(job->seg, ku_err_get(), job->first_rank + r);
    return ku_job_root(job);
}

void ku_job_tell_end(struct ku_job *job, int code)
{
    const struct kumi_error own = *ku_err_get();
    if (job->n_hosts < 2 || ku_job_has_failed(job))
        return;
    if (code == 0) {
        KU_ERR_SCOPE(KUMI_EMISMATCH, KUMI_SCOPE_JOB,
                     "mismatched collectives: rank %d left the job; call the same collectives on "
                     "every rank",
                     job->rank);
        KU_IGNORE(ku_job_raise(job, job->rank), "the rank ends");
    } else {
        KU_IGNORE(raise_exit(job, job->local_rank, code), "the rank ends");
    }
    KU_IGNORE(ku_err_put(&own), "the rank's own error stays");
}

int ku_job_look(struct ku_job *job, const char *awaited)
{
    KU_TRY(ku_job_root(job));
    for (int r = 0; r < job->local_n; r++) {
        struct ku_rank_line *line = ku_segment_line(job->seg, r);
        uint32_t state = atomic_load(&line->state);
        if (r == job->local_rank || state == KU_RANK_LEFT)
            continue;
        if (state == KU_RANK_EXITED) {
            uint32_t code = atomic_load(&line->exit_status);
            return code == 0 ? ku_job_raise_left(job, job->first_rank + r, awaited)
                             : raise_exit(job, r, (int)code);
        }
        if (is_being_stopped(job))
            continue;
        if (state == KU_RANK_ABSENT ? is_lost(job, r, line) : is_dead(job, line)) {
            atomic_store(&line->state, KU_RANK_DIED);
            KU_IGNORE(
                ku_err_death(job->seg, job->priv->host->client, r, KUMI_EPEER, "killed or crashed"),
                "it writes the record that is raised next");
            return ku_job_raise(job, job->first_rank + r);
        }
    }
    return 0;
}
