/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicators. A comm owns a slot: a row of flags, channels and stages in the segment, one column
 * per rank. Comms without a common member may share a slot. A split exchanges each rank's bit mask
 * of used slots over the parent and takes the lowest slot that is free on all ranks.
 *
 * A slot is free on this rank when no former member reads its flags any more: the free of a comm
 * waits for the `done` of the near members. A later split, whose parent may lack some of them, can
 * then reuse the slot.
 *
 * Flags are never reset. The numbers of a new comm begin above all numbers in the flags of any
 * member, so a flag of the slot's previous comm is never taken for a new one.
 */
#include "base/err.h"
#include "base/mem.h"
#include "comm/far.h"
#include "comm/private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int comm_new(struct ku_job *job, const char *name, uint32_t slot, uint64_t base,
                    struct ku_comm **out)
{
    struct ku_comm *c = ku_calloc(1, sizeof *c);
    struct ku_comm_private *p = ku_calloc(1, sizeof *p);
    if (!c || !p) {
        ku_free(c);
        ku_free(p);
        return KUMI_ENOMEM;
    }
    KU_ASSERT(slot < KU_SLOTS && !(job->comm->used_slots >> slot & 1));
    c->job = job;
    c->slot = slot;
    c->priv = p;
    snprintf(c->name, sizeof c->name, "%s", name);
    p->flags = ku_area_flags(job->seg, slot);
    p->own = &p->flags[job->local_rank];
    p->free_chunks = (1u << KU_N_CHUNKS) - 1;
    p->p2p_end = &p->p2p;
    p->seq = p->n_hidden = p->n_pieces = p->done_seen = p->checked = base;
    p->next = job->comm->comms;
    job->comm->comms = c;
    job->comm->used_slots |= UINT64_C(1) << slot;
    struct ku_flags *mine = &p->flags[job->local_rank];
    atomic_store(&mine->done, base);
    atomic_store(&mine->filled, base);
    atomic_store(&mine->freed, base);
    atomic_store(&mine->far, base);
    *out = c;
    return 0;
}

void ku_comm_free(struct ku_comm *c)
{
    if (!c)
        return;
    struct ku_comm_rank *p = c->job->comm;
    for (struct ku_comm **link = &p->comms; *link; link = &(*link)->priv->next) {
        if (*link == c) {
            *link = c->priv->next;
            break;
        }
    }
    uint64_t high = c->priv->seq > c->priv->n_pieces ? c->priv->seq : c->priv->n_pieces;
    p->slot_high = high > p->slot_high ? high : p->slot_high;
    p->used_slots &= ~(UINT64_C(1) << c->slot);
    ku_far_destroy(c->priv->far, ku_job_has_failed(c->job));
    ku_free(c->list);
    ku_free(c->near.list);
    ku_free(c->near.member);
    ku_free(c->priv);
    ku_free(c);
}

/* a, b, c, … with equal differences: sets the first and the difference, and frees the list. */
static void drop_regular(int **list, int n, int *first, int *stride)
{
    const int step = n > 1 ? (*list)[1] - (*list)[0] : 1;
    for (int i = 1; i < n; i++)
        if ((*list)[i] - (*list)[i - 1] != step)
            return;
    *first = (*list)[0];
    *stride = step;
    ku_free(*list);
    *list = NULL;
}

/* The members on this host, of all members. */
static int find_near(struct ku_comm *c)
{
    c->near.list = ku_malloc((size_t)c->job->local_n * sizeof *c->near.list);
    c->near.member = ku_malloc((size_t)c->job->local_n * sizeof *c->near.member);
    if (!c->near.list || !c->near.member)
        return KUMI_ENOMEM;
    for (int i = 0; i < c->n; i++) {
        if (!ku_comm_is_near(c, i))
            continue;
        if (i == c->me)
            c->near.me = c->near.n;
        c->near.list[c->near.n] = ku_comm_local(c, i);
        c->near.member[c->near.n++] = i;
    }
    KU_ASSERT(c->near.n > 0 && c->near.list[c->near.me] == c->job->local_rank);
    drop_regular(&c->near.list, c->near.n, &c->near.first, &c->near.stride);
    if (c->near.member[c->near.n - 1] - c->near.member[0] == c->near.n - 1) {
        c->near.begin = c->near.member[0];
        ku_free(c->near.member);
        c->near.member = NULL;
    }
    /* the numbers of a comm begin above those of the comms before it in the slot */
    return c->near.n < c->n ? ku_far_create(c, c->priv->seq) : 0;
}

int ku_comm_world(struct ku_job *job)
{
    KU_TRY(comm_new(job, "world", 0, 0, &job->world));
    job->world->me = job->rank;
    job->world->n = job->n;
    job->world->first = 0;
    job->world->stride = 1;
    KU_TRY(find_near(job->world));
    job->local = job->world;
    if (job->n_hosts == 1)
        return 0;
    KU_TRY(comm_new(job, "host", 1, 0, &job->local));
    job->local->me = job->local_rank;
    job->local->n = job->local_n;
    job->local->first = job->first_rank;
    job->local->stride = 1;
    return find_near(job->local);
}

/* Contribution of each rank to a split */
struct split_request {
    int32_t color, key;
    uint64_t used_slots, high;
};
struct member {
    int32_t key;
    int rank; /* rank in parent */
};

static int by_key(const void *a, const void *b)
{
    const struct member *x = a, *y = b;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return x->rank - y->rank;
}

/* Upper bound of all numbers in this rank's flags, in any slot */
static uint64_t high_of(const struct ku_job *job)
{
    uint64_t high = job->comm->slot_high;
    for (const struct ku_comm *c = job->comm->comms; c; c = c->priv->next) {
        high = c->priv->seq > high ? c->priv->seq : high;
        high = c->priv->n_pieces > high ? c->priv->n_pieces : high;
    }
    return high;
}

/*
 * Set me, n and the members. A regular comm stores {first, stride} in place of a list.
 */
static int set_members(struct ku_comm *c, const struct ku_comm *parent,
                       const struct split_request *all, int color)
{
    struct member *m = ku_malloc((size_t)parent->n * sizeof *m);
    if (!m)
        return KUMI_ENOMEM;
    for (int i = 0; i < parent->n; i++)
        if (all[i].color == color)
            m[c->n++] = (struct member){.key = all[i].key, .rank = i};
    qsort(m, (size_t)c->n, sizeof *m, by_key);
    c->list = ku_malloc((size_t)c->n * sizeof *c->list);
    for (int i = 0; c->list && i < c->n; i++) {
        c->list[i] = ku_comm_rank(parent, m[i].rank);
        if (m[i].rank == parent->me)
            c->me = i;
    }
    ku_free(m);
    if (!c->list)
        return KUMI_ENOMEM;
    drop_regular(&c->list, c->n, &c->first, &c->stride);
    KU_ASSERT(c->n > 0 && c->n <= parent->n && c->me < c->n);
    KU_ASSERT(ku_comm_rank(c, c->me) == c->job->rank);
    return find_near(c);
}

int ku_comm_run_own(struct ku_comm *comm, const struct ku_coll *coll)
{
    KU_TRY(ku_coll_run(comm, coll));
    comm->priv->n_hidden++;
    return 0;
}

static int run_simple(struct ku_comm *comm, enum ku_coll_kind kind, const void *in, void *out,
                      int64_t bytes)
{
    struct ku_coll coll = {.kind = kind, .dtype = KUMI_U8, .in = in, .out = out, .count = bytes};
    if (!ku_coll_has_elements(kind))
        coll.dtype = KUMI_F32;
    return ku_comm_run_own(comm, &coll);
}

int ku_comm_split(struct ku_comm *parent, int color, int key, const char *name,
                  struct ku_comm **out)
{
    struct ku_job *job = parent->job;
    struct split_request mine = {
        .color = color, .key = key, .used_slots = job->comm->used_slots, .high = high_of(job)};
    struct ku_comm *c = NULL;
    uint64_t used = 0, high = 0;
    /* after a failure the queues hold works whose callers have returned */
    KU_TRY(ku_job_root(job));
    if (parent->priv->head || parent->priv->p2p)
        return KU_ERR(KUMI_EINVAL, "split: comm %s: operations are in flight; wait for them first",
                      parent->name);
    struct split_request *all = ku_malloc((size_t)parent->n * sizeof *all);
    if (!all)
        return KUMI_ENOMEM;
    int status = 0;
    KU_TRY_OUT(run_simple(parent, KU_COLL_SPLIT, &mine, all, sizeof mine));
    for (int i = 0; i < parent->n; i++) {
        used |= all[i].used_slots;
        high = all[i].high > high ? all[i].high : high;
    }
    if (used == UINT64_MAX) {
        status =
            KU_ERR(KUMI_EINVAL,
                   "split: comm %s: all %d slots are in use; free communicators that are no longer "
                   "needed",
                   parent->name, KU_SLOTS);
        goto out;
    }
    if (color >= 0) {
        KU_TRY_OUT(comm_new(job, name, (uint32_t)__builtin_ctzll(~used), high + KU_RING, &c));
        KU_TRY_OUT(set_members(c, parent, all, color));
    }
    /* All members' flags must hold the new base before any member uses the slot. */
    KU_TRY_OUT(run_simple(parent, KU_COLL_BARRIER, NULL, NULL, 0));
    *out = c;
    c = NULL;
out:
    ku_comm_free(c);
    ku_free(all);
    return status;
}

int ku_comm_mesh(struct ku_job *job, const char *name, int first, int stride, int n,
                 struct ku_comm **out)
{
    int last = first + (n - 1) * stride;
    if (n < 1 || stride < 1 || first < 0 || last >= job->n || job->rank < first ||
        (job->rank - first) % stride)
        return KU_ERR(KUMI_EINVAL,
                      "mesh: comm %s: first %d, stride %d, %d ranks: not in the %d of the job, or "
                      "without rank %d",
                      name, first, stride, n, job->n, job->rank);
    struct ku_comm *c = NULL;
    KU_TRY(ku_comm_split(job->world, first, job->rank, name, &c));
    if (c->n != n || c->list || c->first != first || (n > 1 && c->stride != stride)) {
        KU_ERR_SCOPE(KUMI_EMISMATCH, KUMI_SCOPE_JOB,
                     "mesh: comm %s: rank %d has ranks %d, %d, … (%d in all), other ranks differ; "
                     "give the same mesh on all ranks",
                     name, job->rank, first, first + stride, n);
        ku_comm_free(c);
        return ku_job_raise(job, job->rank);
    }
    *out = c;
    return 0;
}

int ku_comm_raise_unreceived(const struct ku_comm *c, int member)
{
    KU_ERR_SCOPE(KUMI_EMISMATCH, KUMI_SCOPE_JOB,
                 "mismatched messages: comm %s: rank %d sent one that rank %d has not received; "
                 "receive it before the communicator is freed",
                 c->name, ku_comm_rank(c, member), c->job->rank);
    return ku_job_raise(c->job, c->job->rank);
}

/*
 * Eager messages are sent without waiting for the receiver. One that was never received would reach
 * the next comm of the slot, so it is an error here.
 */
static int check_channels(struct ku_comm *c)
{
    for (int k = 0; k < c->near.n; k++) {
        struct ku_channel *ch =
            ku_area_channel(c->job->seg, c->slot, ku_comm_near(c, k), c->job->local_rank);
        if (atomic_load(&ch->posted) != atomic_load(&ch->acked))
            return ku_comm_raise_unreceived(c, ku_comm_member(c, k));
    }
    return 0;
}

int ku_comm_destroy(struct ku_comm *c)
{
    if (!c)
        return 0;
    int status = ku_job_root(c->job);
    if (!status && (c->priv->head || c->priv->p2p))
        return KU_ERR(KUMI_EINVAL,
                      "communicator: %s: operations are in flight; wait for them first", c->name);
    if (!status)
        status = run_simple(c, KU_COLL_FREE, NULL, NULL, 0);
    if (!status)
        status = check_channels(c);
    if (!status && c->priv->far)
        status = ku_far_check_messages(c);
    if (!status && c->priv->far) /* the last work waits until no member reads the slot any more */
        status = run_simple(c, KU_COLL_FREE, NULL, NULL, 0);
    ku_comm_free(c);
    return status;
}

int ku_comm_host_members(const struct ku_comm *c)
{
    return c->priv->far ? ku_far_host_members(c) : 0;
}

int ku_comm_check_hash(struct ku_comm *c, const char *name, uint64_t hash)
{
    char rank[2][96];
    uint64_t *all = ku_malloc((size_t)c->n * sizeof *all);
    if (!all)
        return KUMI_ENOMEM;
    int status = 0;
    KU_TRY_OUT(run_simple(c, KU_COLL_HASH, &hash, all, sizeof hash));
    for (int i = 1; i < c->n && !status; i++) {
        if (all[i] == all[0])
            continue;
        ku_segment_rank_text(c->job->seg, ku_comm_rank(c, 0), rank[0], sizeof rank[0]);
        ku_segment_rank_text(c->job->seg, ku_comm_rank(c, i), rank[1], sizeof rank[1]);
        KU_ERR_SCOPE(KUMI_EMISMATCH, KUMI_SCOPE_JOB,
                     "ranks differ: comm %s: program %s: %s has %016llx, %s has %016llx; start "
                     "all ranks with the same configuration, data and build of kumi",
                     c->name, name, rank[0], (unsigned long long)all[0], rank[1],
                     (unsigned long long)all[i]);
        status = ku_job_raise(c->job, c->job->rank);
    }
out:
    ku_free(all);
    return status;
}
