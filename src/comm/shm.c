/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transports `thread` and `shm`: flags in the segment. A store of a flag that may complete a
 * set rings the members that sleep; while nobody sleeps that costs one load. Sleepers set `asleep`
 * and count themselves in before they look at the flags a last time, all of it sequentially
 * consistent, so either they see the flag or the storer sees them.
 */
#include "base/err.h"
#include "base/os_ipc.h"
#include "comm/private.h"

#include <string.h>

static ku_a64 *flag_word(struct ku_flags *f, enum ku_flag flag, uint64_t number)
{
    switch (flag) {
    case KU_FLAG_READY:
        return &f->ring[number % KU_RING].seq;
    case KU_FLAG_DONE:
        return &f->done;
    case KU_FLAG_FILLED:
        return &f->filled;
    case KU_FLAG_FREED:
        break;
    }
    return &f->freed;
}

static void ring(struct ku_segment *seg, int local)
{
    struct ku_rank_line *line = ku_segment_line(seg, local);
    if (!atomic_load(&line->asleep))
        return;
    atomic_fetch_add(&line->bell, 1);
    ku_os_futex_wake(&line->bell, 1);
}

static int shm_arrived(struct ku_comm *comm, enum ku_flag flag, uint64_t number, int *missing)
{
    struct ku_flags *flags = comm->priv->flags;
    for (int i = *missing; i < comm->n; i++) {
        if (atomic_load(flag_word(&flags[ku_comm_local(comm, i)], flag, number)) < number) {
            *missing = i;
            return 1;
        }
    }
    *missing = comm->n;
    return 0;
}

static int shm_arrive(struct ku_comm *comm, enum ku_flag flag, uint64_t number)
{
    struct ku_segment *seg = comm->job->seg;
    int missing = 0;
    atomic_store(flag_word(&comm->priv->flags[comm->job->local_rank], flag, number), number);
    if (atomic_load(&seg->n_asleep) && !shm_arrived(comm, flag, number, &missing))
        for (int i = 0; i < comm->n; i++)
            if (i != comm->me)
                ring(seg, ku_comm_local(comm, i));
    return 0;
}

/* Two chunks of this rank's stage, or 0. */
static int take_chunks(struct ku_comm_private *p, uint32_t chunk[2])
{
    uint32_t rest = p->free_chunks & (p->free_chunks - 1);
    if (!rest)
        return 0;
    chunk[0] = (uint32_t)__builtin_ctz(p->free_chunks);
    chunk[1] = (uint32_t)__builtin_ctz(rest);
    p->free_chunks = rest & (rest - 1);
    return 1;
}

/* Is message `ticket` opened by its receiver? Then both sides' fingerprints are compared. */
static int open_send(struct ku_comm *comm, struct ku_work *w, struct ku_channel *ch)
{
    struct ku_job *job = comm->job;
    int to = ku_comm_local(comm, w->coll.root);
    if (job->priv->tickets[comm->slot].send_done[to] + 1 != w->p2p.ticket ||
        atomic_load(&ch->want) < w->p2p.ticket)
        return 1;
    if (ch->what != (uint64_t)w->coll.dtype || ch->count != (uint64_t)w->total) {
        KU_ERR_SCOPE(KUMI_EMISMATCH, KUMI_SCOPE_JOB,
                     "mismatched messages: comm %s: rank %d sends %lld x %s to rank %d, which "
                     "receives %llu x %s; give "
                     "both the same count and dtype",
                     comm->name, comm->me, (long long)w->total, kumi_dtype_name(w->coll.dtype),
                     w->coll.root, (unsigned long long)ch->count,
                     kumi_dtype_name((enum kumi_dtype)ch->what));
        return ku_job_raise(job, job->rank);
    }
    if (!take_chunks(comm->priv, w->p2p.chunk))
        return 1;
    w->p2p.opened = 1;
    return 0;
}

static int shm_send(struct ku_comm *comm, struct ku_work *w)
{
    struct ku_segment *seg = comm->job->seg;
    int me = comm->job->local_rank, to = ku_comm_local(comm, w->coll.root);
    struct ku_channel *ch = ku_segment_channel(seg, comm->slot, me, to);
    struct ku_stage *stage = ku_segment_stage(seg, comm->slot, me);
    int64_t bytes = w->total * (int64_t)kumi_dtype_bytes(w->coll.dtype);
    if (!w->p2p.opened) {
        int status = open_send(comm, w, ch);
        if (status)
            return status;
    }
    uint64_t posted = atomic_load(&ch->posted);
    for (; w->p2p.n_left; w->p2p.n_left--) {
        if (posted - atomic_load(&ch->acked) >= 2)
            return 1;
        int64_t left = bytes - w->p2p.at;
        uint32_t now = (uint32_t)(left < KU_CHUNK_BYTES ? left : KU_CHUNK_BYTES);
        uint32_t chunk = w->p2p.chunk[posted % 2];
        if (now)
            memcpy(stage->chunk[chunk], (const unsigned char *)w->coll.in + w->p2p.at, now);
        w->p2p.at += now;
        ch->chunk[posted % 2] = chunk;
        ch->bytes[posted % 2] = now;
        atomic_store(&ch->posted, ++posted);
        comm->job->priv->has_moved = 1;
        ring(seg, to);
    }
    if (atomic_load(&ch->acked) < posted)
        return 1;
    comm->priv->free_chunks |= 1u << w->p2p.chunk[0] | 1u << w->p2p.chunk[1];
    comm->job->priv->tickets[comm->slot].send_done[to] = w->p2p.ticket;
    return 0;
}

static int shm_recv(struct ku_comm *comm, struct ku_work *w)
{
    struct ku_segment *seg = comm->job->seg;
    int me = comm->job->local_rank, from = ku_comm_local(comm, w->coll.root);
    struct ku_channel *ch = ku_segment_channel(seg, comm->slot, from, me);
    struct ku_tickets *t = &comm->job->priv->tickets[comm->slot];
    if (!w->p2p.opened) {
        if (t->recv_done[from] + 1 != w->p2p.ticket)
            return 1;
        ch->what = (uint64_t)w->coll.dtype;
        ch->count = (uint64_t)w->total;
        atomic_store(&ch->want, w->p2p.ticket);
        w->p2p.opened = 1;
        ring(seg, from);
    }
    uint64_t acked = atomic_load(&ch->acked);
    for (; w->p2p.n_left; w->p2p.n_left--) {
        if (atomic_load(&ch->posted) == acked)
            return 1;
        uint32_t now = ch->bytes[acked % 2], chunk = ch->chunk[acked % 2];
        if (now)
            memcpy((unsigned char *)w->coll.out + w->p2p.at,
                   ku_segment_stage(seg, comm->slot, from)->chunk[chunk], now);
        w->p2p.at += now;
        atomic_store(&ch->acked, ++acked);
        comm->job->priv->has_moved = 1;
        ring(seg, from);
    }
    t->recv_done[from] = w->p2p.ticket;
    return 0;
}

const struct ku_transport ku_transport_shm = {.name = "shm",
                                              .arrive = shm_arrive,
                                              .arrived = shm_arrived,
                                              .send = shm_send,
                                              .recv = shm_recv,
                                              .sleep_ns = KU_SLEEP_NS};
