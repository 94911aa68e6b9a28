/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Questions about the progress of ranks on other hosts.
 *
 *     rank: question {rank, asked + 1} ─> doorbell ─> bridge ── ASK ──> … ──> bridge there
 *     rank: looks until answered == asked  <── bridge <── ANSWER ── … <── its segment
 *
 * A lost question is asked again: `asked` of an unanswered question goes up after 1 s of looks by
 * the rank's own clock, see ku_control_ask.
 */
#include "base/clock.h"
#include "base/err.h"
#include "base/os/process.h"
#include "job/control/private.h"
#include "job/job.h"
#include "job/private.h"

#include <string.h>

enum { AGAIN_NS = 1000 * 1000 * 1000 };

static void progress_of(struct ku_segment *seg, const struct ku_job_client *client, int local,
                        struct ku_progress *out)
{
    struct ku_rank_line *line = ku_segment_line(seg, local);
    const uint32_t pid = atomic_load(&line->pid);
    *out = (struct ku_progress){
        .progress = atomic_load_explicit(&line->progress, memory_order_relaxed),
        .state = atomic_load(&line->state),
        .looks = atomic_load(&line->looks),
        .awaits = (int32_t)atomic_load(&line->awaits) - 1,
        .stopped_pid = ku_os_is_stopped((pid_t)pid) ? pid : 0,
    };
    if (client)
        ku_flight_last(seg, client, local, out->last, sizeof out->last);
}

void ku_ask_pass_on(struct ku_control *c)
{
    for (int r = 0; r < c->seg->n_local; r++) {
        struct ku_question *q = ku_segment_question(c->seg, r);
        const uint32_t asked = atomic_load(&q->asked);
        if (asked == atomic_load(&q->sent))
            continue;
        atomic_store(&q->sent, asked);
        struct ku_message m = ku_message_of(c, KU_MESSAGE_ASK, 0);
        m.rank = (int32_t)atomic_load(&q->rank);
        m.to = ku_segment_host_of(c->seg, m.rank);
        m.number = asked;
        m.extra = (uint32_t)r;
        ku_bridge_route(c, &m, NULL);
    }
}

static void answer(struct ku_control *c, const struct ku_message *head)
{
    struct ku_progress p;
    const int local = head->rank - c->seg->first_rank;
    struct ku_message m = *head;
    if (local < 0 || local >= c->seg->n_local)
        return;
    progress_of(c->seg, c->opts.client, local, &p);
    m.kind = KU_MESSAGE_ANSWER;
    m.bytes = sizeof p;
    m.from = c->host;
    m.to = head->from;
    ku_bridge_route(c, &m, &p);
}

static void take_answer(struct ku_control *c, const struct ku_message *head, const uint8_t *payload)
{
    struct ku_progress a;
    uint64_t word[KU_ANSWER_WORDS];
    _Static_assert(sizeof word == sizeof a.last, "one text");
    if (head->extra >= (uint32_t)c->seg->n_local)
        return;
    struct ku_question *q = ku_segment_question(c->seg, (int)head->extra);
    if (atomic_load(&q->asked) != head->number) /* of a question that was replaced */
        return;
    memcpy(&a, payload, sizeof a);
    memcpy(word, a.last, sizeof word);
    atomic_store(&q->progress, a.progress);
    atomic_store(&q->state, a.state);
    atomic_store(&q->looks, a.looks);
    atomic_store(&q->awaits, (uint32_t)(a.awaits + 1));
    atomic_store(&q->stopped_pid, a.stopped_pid);
    for (int i = 0; i < KU_ANSWER_WORDS; i++)
        atomic_store_explicit(&q->last[i], word[i], memory_order_relaxed);
    atomic_store(&q->answered, head->number);
}

void ku_ask_take(struct ku_control *c, const struct ku_message *head, const uint8_t *payload)
{
    if (head->kind == KU_MESSAGE_ASK)
        answer(c, head);
    else
        take_answer(c, head, payload);
}

static void ask(struct ku_job *job, struct ku_question *q, int rank)
{
    atomic_store(&q->rank, (uint32_t)rank);
    atomic_store(&q->asked_ns, (uint64_t)ku_clock_ns());
    atomic_fetch_add(&q->asked, 1);
    ku_doorbell_ring(job->seg->job_id, job->host, KU_DOORBELL_BRIDGE);
}

int ku_control_ask(struct ku_job *job, int rank, struct ku_progress *out)
{
    struct ku_question *q = ku_segment_question(job->seg, job->local_rank);
    const int local = rank - job->first_rank;
    uint64_t word[KU_ANSWER_WORDS];
    KU_ASSERT(rank >= 0 && rank < job->n);
    if (local >= 0 && local < job->local_n) {
        progress_of(job->seg, job->priv->host->client, local, out);
        return 1;
    }
    const uint32_t asked = atomic_load(&q->asked);
    if (asked == 0 || (int)atomic_load(&q->rank) != rank) {
        ask(job, q, rank);
        return 0;
    }
    if (atomic_load(&q->answered) != asked) {
        if (ku_clock_ns() - (int64_t)atomic_load(&q->asked_ns) > AGAIN_NS)
            ask(job, q, rank);
        return 0;
    }
    *out = (struct ku_progress){.progress = atomic_load(&q->progress),
                                .state = atomic_load(&q->state),
                                .looks = atomic_load(&q->looks),
                                .awaits = (int32_t)atomic_load(&q->awaits) - 1,
                                .stopped_pid = atomic_load(&q->stopped_pid)};
    for (int i = 0; i < KU_ANSWER_WORDS; i++)
        word[i] = atomic_load_explicit(&q->last[i], memory_order_relaxed);
    memcpy(out->last, word, sizeof out->last);
    out->last[sizeof out->last - 1] = '\0';
    ask(job, q, rank);
    return 1;
}
