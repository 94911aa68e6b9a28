/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transports `thread` and `shm`: flags and messages in the segment.
 *
 * A rank that stores a flag wakes the sleeping members if the flag may complete the set they wait
 * for; while no rank sleeps that costs one load. No wake-up is lost:
 *
 *     sleeper                          rank that stores
 *     asleep = 1; n_asleep++           flag = number
 *     tests the flags a last time      if n_asleep > 0 and all flags are set:
 *     sleeps on wakeup                       wakes the members with asleep = 1
 *
 * All accesses are sequentially consistent, so either the sleeper sees the flag, or the other rank
 * sees the sleeper. The futex compares `wakeup`, which the wake-up increments.
 */
#include "base/err.h"
#include "base/os/ipc.h"
#include "comm/private.h"
#include "comm/message_stream.h"

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
        return &f->freed;
    case KU_FLAG_FAR:
        break;
    }
    return &f->far;
}

static void ring(struct ku_segment *seg, int local)
{
    if (atomic_load(&ku_segment_line(seg, local)->asleep))
        ku_segment_wake(seg, local);
}

static int shm_arrived(struct ku_comm *comm, enum ku_flag flag, uint64_t number, int *missing)
{
    struct ku_flags *flags = comm->priv->flags;
    const int n = comm->near.n;
    for (int k = *missing; k < n; k++) {
        if (atomic_load(flag_word(&flags[ku_comm_near(comm, k)], flag, number)) < number) {
            *missing = k;
            return 1;
        }
    }
    *missing = n;
    return 0;
}

/* Wake the members if this rank was the last to store the flag. */
static __attribute__((noinline)) void wake(struct ku_comm *comm, enum ku_flag flag, uint64_t number)
{
    int missing = 0;
    if (!shm_arrived(comm, flag, number, &missing))
        for (int k = 0; k < comm->near.n; k++)
            if (k != comm->near.me)
                ring(comm->job->seg, ku_comm_near(comm, k));
}

static int shm_arrive(struct ku_comm *comm, enum ku_flag flag, uint64_t number)
{
    atomic_store(flag_word(comm->priv->own, flag, number), number);
    if (atomic_load(&comm->job->seg->n_asleep))
        wake(comm, flag, number);
    return 0;
}

/*
 * Take two chunks of this rank's stage. Returns 0 if they are not free.
 */
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

static int raise_message(const struct ku_comm *comm, int from, int64_t sent, uint64_t sent_what,
                         int to, int64_t received, uint64_t received_what)
{
    KU_ERR_SCOPE(KUMI_EMISMATCH, KUMI_SCOPE_JOB,
                 "mismatched messages: comm %s: rank %d sends %lld x %s to rank %d, which receives "
                 "%lld x %s; give both the same count and dtype",
                 comm->name, ku_comm_rank(comm, from), (long long)sent,
                 kumi_dtype_name((enum kumi_dtype)sent_what), ku_comm_rank(comm, to),
                 (long long)received, kumi_dtype_name((enum kumi_dtype)received_what));
    return ku_job_raise(comm->job, comm->job->rank);
}

/*
 * Open a message if it is its turn; one that is not eager also needs the receiver, and two chunks
 * unless it is read in place. Compares the fingerprints of both sides.
 */
static int open_send(struct ku_comm *comm, struct ku_work *w, struct ku_channel *ch, int is_letter)
{
    int to = ku_comm_local(comm, w->coll.root);
    if (comm->job->comm->sequences[comm->slot].send_done[to] + 1 != w->p2p.sequence)
        return 1;
    if (!is_letter) {
        if (atomic_load(&ch->want) < w->p2p.sequence)
            return 1;
        if (ch->what != (uint64_t)w->coll.dtype || ch->count != (uint64_t)w->total)
            return raise_message(comm, comm->me, w->total, w->coll.dtype, w->coll.root,
                                 (int64_t)ch->count, ch->what);
        if (w->p2p.place == KU_PRIVATE && !take_chunks(comm->priv, w->p2p.chunk))
            return 1;
    }
    w->p2p.opened = 1;
    return 0;
}

/* Pieces that this rank has taken from the peer */
static uint32_t acked_back(const struct ku_comm *comm, const struct ku_work *w)
{
    const struct ku_channel *back = ku_area_channel(
        comm->job->seg, comm->slot, ku_comm_local(comm, w->coll.root), comm->job->local_rank);
    return (uint32_t)atomic_load_explicit(&back->acked, memory_order_relaxed);
}

/*
 * Bytes of a piece. Two pieces are in flight, so a staged message of four or more is copied in
 * while it is copied out.
 */
static int64_t piece_bytes(const struct ku_work *w, int64_t bytes)
{
    enum { MIN_BYTES = 8 * 1024 };
    if (w->p2p.place != KU_PRIVATE)
        return KU_PLACE_BYTES;
    int64_t piece = MIN_BYTES;
    while (piece < KU_CHUNK_BYTES && 4 * piece < bytes)
        piece *= 2;
    return piece;
}

/* Write the next piece to the channel. */
static void post(struct ku_comm *comm, struct ku_work *w, struct ku_channel *ch, int64_t bytes)
{
    const uint64_t posted = atomic_load_explicit(&ch->posted, memory_order_relaxed);
    struct ku_post *p = &ch->post[posted % 2];
    const unsigned char *from = (const unsigned char *)w->coll.in + w->p2p.at;
    const int64_t left = bytes - w->p2p.at, most = piece_bytes(w, bytes);
    const uint32_t now = (uint32_t)(left < most ? left : most);
    p->what = (uint32_t)w->coll.dtype;
    p->count = (uint64_t)w->total;
    p->acked = acked_back(comm, w);
    p->bytes = now;
    p->chunk = w->p2p.chunk[posted % 2];
    if (w->p2p.place != KU_PRIVATE) {
        p->chunk = KU_IN_PLACE;
        p->place = w->p2p.place + (uint64_t)w->p2p.at;
    } else if (bytes <= KU_LETTER_BYTES) {
        if (now)
            memcpy(p->letter, from, now);
    } else {
        ku_stream_hand_over(
            ku_area_stage(comm->job->seg, comm->slot, comm->job->local_rank)->chunk[p->chunk], from,
            now);
    }
    w->p2p.at += now;
    atomic_store_explicit(&ch->posted, posted + 1, memory_order_relaxed);
    atomic_store(&p->number, posted + 1);
}

static int shm_send(struct ku_comm *comm, struct ku_work *w)
{
    struct ku_segment *seg = comm->job->seg;
    int me = comm->job->local_rank, to = ku_comm_local(comm, w->coll.root);
    struct ku_channel *ch = ku_area_channel(seg, comm->slot, me, to);
    const int64_t bytes = w->total * (int64_t)kumi_dtype_bytes(w->coll.dtype);
    const int is_letter = bytes <= KU_LETTER_BYTES;
    if (!w->p2p.opened) {
        int status = open_send(comm, w, ch, is_letter);
        if (status)
            return status;
    }
    while (!w->p2p.is_posted) {
        uint64_t posted = atomic_load_explicit(&ch->posted, memory_order_relaxed);
        if (posted - ch->acked_seen >= 2 &&
            posted - (ch->acked_seen = atomic_load(&ch->acked)) >= 2)
            return 1;
        post(comm, w, ch, bytes);
        w->p2p.is_posted = w->p2p.at == bytes;
        comm->job->comm->has_moved = 1;
        ring(seg, to);
    }
    if (!is_letter) {
        ch->acked_seen = atomic_load(&ch->acked);
        if (ch->acked_seen < atomic_load_explicit(&ch->posted, memory_order_relaxed))
            return 1;
        if (w->p2p.place == KU_PRIVATE)
            comm->priv->free_chunks |= 1u << w->p2p.chunk[0] | 1u << w->p2p.chunk[1];
    }
    comm->job->comm->sequences[comm->slot].send_done[to] = w->p2p.sequence;
    return 0;
}

/*
 * Tell the sender what this rank expects, unless a piece is there. An eager message comes without
 * this. It is then done late, so that a sender of a longer message can report the mismatch.
 */
static void open_recv(struct ku_comm *comm, struct ku_work *w, struct ku_channel *ch, int is_there)
{
    enum { N_LOOKS = 16 };
    int64_t bytes = w->total * (int64_t)kumi_dtype_bytes(w->coll.dtype);
    if (w->p2p.opened || is_there)
        return;
    if (bytes <= KU_LETTER_BYTES && ++w->p2p.n_looks < N_LOOKS)
        return;
    ch->what = (uint64_t)w->coll.dtype;
    ch->count = (uint64_t)w->total;
    atomic_store(&ch->want, w->p2p.sequence);
    ring(comm->job->seg, ku_comm_local(comm, w->coll.root));
    w->p2p.opened = 1;
}

/* Take the acknowledgements of the other direction from a post of this one. */
static void note_acks(struct ku_comm *comm, const struct ku_work *w, uint32_t acked)
{
    struct ku_channel *back = ku_area_channel(comm->job->seg, comm->slot, comm->job->local_rank,
                                              ku_comm_local(comm, w->coll.root));
    uint32_t more = acked - (uint32_t)back->acked_seen;
    if (more <= 2) /* else the count is older than acked_seen */
        back->acked_seen += more;
}

/* Copy a piece; at most TAKE_BYTES at a time, as other works go on between. */
static void take(struct ku_comm *comm, struct ku_work *w, const struct ku_post *p, int from)
{
    enum { TAKE_BYTES = 512 * 1024 };
    const int64_t left = p->bytes - w->p2p.taken, now = left < TAKE_BYTES ? left : TAKE_BYTES;
    const unsigned char *piece = p->letter;
    if (p->chunk == KU_IN_PLACE)
        piece = ku_move_place_at(comm->job, p->place, from);
    else if (w->total * (int64_t)kumi_dtype_bytes(w->coll.dtype) > KU_LETTER_BYTES)
        piece = ku_area_stage(comm->job->seg, comm->slot, from)->chunk[p->chunk];
    if (now)
        memcpy((unsigned char *)w->coll.out + w->p2p.at, piece + w->p2p.taken, (size_t)now);
    w->p2p.at += now;
    w->p2p.taken += now;
    comm->job->comm->has_moved = 1;
}

int ku_shm_recv(struct ku_comm *comm, struct ku_work *w, uint64_t last)
{
    struct ku_segment *seg = comm->job->seg;
    int me = comm->job->local_rank, from = ku_comm_local(comm, w->coll.root);
    struct ku_channel *ch = ku_area_channel(seg, comm->slot, from, me);
    struct ku_p2p_sequences *t = &comm->job->comm->sequences[comm->slot];
    const int64_t bytes = w->total * (int64_t)kumi_dtype_bytes(w->coll.dtype);
    uint64_t acked = atomic_load_explicit(&ch->acked, memory_order_relaxed);
    if (t->recv_done[from] + 1 != w->p2p.sequence)
        return 1;
    open_recv(comm, w, ch, atomic_load(&ch->post[acked % 2].number) > acked);
    do {
        const struct ku_post *p = &ch->post[acked % 2];
        if (acked >= last || atomic_load(&p->number) <= acked)
            return 1;
        if (p->what != (uint64_t)w->coll.dtype || p->count != (uint64_t)w->total)
            return raise_message(comm, w->coll.root, (int64_t)p->count, p->what, comm->me, w->total,
                                 w->coll.dtype);
        take(comm, w, p, from);
        if (w->p2p.taken < p->bytes)
            return 1;
        w->p2p.taken = 0;
        note_acks(comm, w, p->acked);
        atomic_store(&ch->acked, ++acked);
        ring(seg, from);
    } while (w->p2p.at < bytes);
    t->recv_done[from] = w->p2p.sequence;
    return 0;
}

static int shm_recv(struct ku_comm *comm, struct ku_work *w)
{
    return ku_shm_recv(comm, w, UINT64_MAX);
}

const struct ku_transport ku_transport_shm = {.name = "shm",
                                              .arrive = shm_arrive,
                                              .arrived = shm_arrived,
                                              .send = shm_send,
                                              .recv = shm_recv,
                                              .sleep_ns = KU_SLEEP_NS};
