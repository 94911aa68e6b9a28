/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport `chaos` wraps `shm` and injects faults.
 *
 * Delay: a flag or message becomes visible only `delay` plus up to `jitter` after it was sent, as
 * on a network. Every store of a flag also stores the time of its arrival, and the reader ignores
 * the flag until then. The sender need not make progress meanwhile, so a test can measure overlap
 * even where ranks share cores. Jitter reorders messages.
 *
 * Faults: the n-th arrival of a rank can be dropped (the others time out), get a wrong fingerprint
 * (they report a mismatch), or kill the rank.
 */
#include "base/clock.h"
#include "base/math/random.h"
#include "comm/private.h"

#include <signal.h>

static ku_a64 *stamp_word(struct ku_flags *f, enum ku_flag flag, uint64_t number)
{
    return flag == KU_FLAG_READY ? &f->ring[number % KU_RING].at_ns
                                 : &f->at_ns[flag - KU_FLAG_DONE];
}

/* Streams of random numbers; 1: messages between hosts */
enum stream { FLAGS = 0, POSTS = 2 };

/* Time at which the n-th flag or post of this rank arrives if it is sent now */
static uint64_t arrival_ns(const struct ku_job *job, enum stream stream, int64_t n)
{
    const struct ku_chaos *c = &job->comm->chaos;
    uint64_t at = (uint64_t)(ku_clock_ns() + c->delay_ns);
    if (c->jitter_ns)
        at += ku_random_u32(c->seed, (uint32_t)job->rank, stream, (uint64_t)n) %
              (uint64_t)c->jitter_ns;
    return at;
}

static int chaos_arrive(struct ku_comm *comm, enum ku_flag flag, uint64_t number)
{
    struct ku_job *job = comm->job;
    struct ku_chaos *c = &job->comm->chaos;
    struct ku_flags *f = &comm->priv->flags[job->local_rank];
    c->n_arrivals++;
    if (c->kill_rank == job->rank && c->kill_at == c->n_arrivals)
        raise(SIGKILL);
    if (c->drop_rank == job->rank && c->drop_at && c->n_arrivals >= c->drop_at)
        return 0;
    if (c->corrupt_rank == job->rank && c->corrupt_at && c->n_arrivals >= c->corrupt_at &&
        flag == KU_FLAG_READY)
        f->ring[number % KU_RING].count ^= 1u << 20;
    atomic_store(stamp_word(f, flag, number), arrival_ns(job, FLAGS, c->n_arrivals));
    return ku_transport_shm.arrive(comm, flag, number);
}

static int chaos_arrived(struct ku_comm *comm, enum ku_flag flag, uint64_t number, int *missing)
{
    int status = ku_transport_shm.arrived(comm, flag, number, missing);
    if (status)
        return status;
    uint64_t now = (uint64_t)ku_clock_ns();
    for (int k = 0; k < comm->near.n; k++) {
        struct ku_flags *f = &comm->priv->flags[ku_comm_near(comm, k)];
        if (k != comm->near.me && atomic_load(stamp_word(f, flag, number)) > now) {
            *missing = k;
            return 1;
        }
    }
    return 0;
}

/* The time is stored before the post. A receiver that reads it in between takes the post later. */
static int chaos_send(struct ku_comm *comm, struct ku_work *w)
{
    struct ku_job *job = comm->job;
    struct ku_channel *ch =
        ku_area_channel(job->seg, comm->slot, job->local_rank, ku_comm_local(comm, w->coll.root));
    if (w->p2p.is_posted)
        return ku_transport_shm.send(comm, w);
    const uint64_t posted = atomic_load(&ch->posted), before_ns = atomic_load(&ch->at_ns);
    atomic_store(&ch->at_ns, arrival_ns(job, POSTS, job->comm->chaos.n_posts));
    const int status = ku_transport_shm.send(comm, w);
    if (atomic_load(&ch->posted) == posted)
        atomic_store(&ch->at_ns, before_ns);
    else
        job->comm->chaos.n_posts++;
    return status;
}

static int chaos_recv(struct ku_comm *comm, struct ku_work *w)
{
    struct ku_job *job = comm->job;
    struct ku_channel *ch =
        ku_area_channel(job->seg, comm->slot, ku_comm_local(comm, w->coll.root), job->local_rank);
    /* the posts whose time is read next: one that comes meanwhile is not taken */
    const uint64_t even = atomic_load(&ch->post[0].number), odd = atomic_load(&ch->post[1].number);
    if (atomic_load(&ch->at_ns) > (uint64_t)ku_clock_ns())
        return 1;
    return ku_shm_recv(comm, w, even > odd ? even : odd);
}

const struct ku_transport ku_transport_chaos = {.name = "chaos",
                                                .arrive = chaos_arrive,
                                                .arrived = chaos_arrived,
                                                .send = chaos_send,
                                                .recv = chaos_recv,
                                                .sleep_ns = 200 * 1000};
