/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interpreter of works. A work is a cursor over the ops of its path; `run` executes ops until
 * one returns "not yet".
 *
 * Works of a comm run and arrive in start order, but each arrives as early as the ring of arrivals
 * allows. So a fast rank can be KU_RING works ahead of a slow one. An arrival at a work says that
 * the entries of all works before it are written. Sends and receives have a queue of their own. On
 * one host those of one peer and direction run in order, so only the first of them is in the queue.
 *
 *     comm->priv->head ─> work 7 ─> work 8 ─> work 9          run: 7; arrived: 7, 8, 9
 *     comm->priv->p2p  ─> send   ─> recv                      each runs on its own
 *                         │ after
 *                         send ─> send                        the same peer
 *
 * The root of an inline broadcast posts (KU_PATH_POSTED): its payload is in its arrival, and it
 * goes on at once. The receivers compare all fingerprints before they write. The root compares them
 * later: when it next waits for all members, when the ring is full, or when all have arrived while
 * it waits for something else, and in any case before a later work writes. Until then its `done`
 * does not cover the posted work, so no member overwrites the fingerprints.
 */
#include "base/clock.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/mem.h"
#include "comm/private.h"

#include <stdio.h>
#include <string.h>

static int64_t sum_counts(const int64_t *counts, int n)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += counts[i];
    return sum;
}

/* Fingerprint: the number of elements, and a hash of the counts and parts */
static void fingerprint(struct ku_work *w)
{
    const struct ku_coll *c = &w->coll;
    w->what = ku_coll_what(c);
    w->total = c->count;
    w->extra = 0;
    if (c->n_parts) {
        w->total = 0;
        w->extra = (uint64_t)c->n_owners;
        for (int i = 0; i < c->n_parts; i++) {
            const struct ku_coll_part *p = &c->part[i];
            const int64_t row[] = {p->count,
                                   p->first_block,
                                   p->block_count,
                                   (int64_t)p->in.off,
                                   (int64_t)p->out.off,
                                   (int64_t)p->in.arena,
                                   (int64_t)p->out.arena};
            w->total += p->count;
            if (!((p->in.flags | p->out.flags) & KU_ARENA_PRIVATE))
                w->extra = ku_hash64_mix(w->extra, ku_hash64(row, sizeof row));
        }
    } else if (c->kind == KU_COLL_ALL_TO_ALL && c->counts) {
        w->total = 0; /* differs between ranks; compared in KU_STEP_COUNTS */
    } else if (c->counts) {
        w->total = sum_counts(c->counts, w->comm->n);
        w->extra = ku_hash64(c->counts, (size_t)w->comm->n * sizeof *c->counts);
    }
    KU_ASSERT(w->total >= 0);
}

static struct ku_p2p_sequences *sequences_of(struct ku_comm *comm)
{
    return &comm->job->comm->sequences[comm->slot];
}

static int make_sequences(struct ku_comm *comm)
{
    struct ku_p2p_sequences *t = sequences_of(comm);
    size_t n = (size_t)comm->job->local_n;
    if (t->sent)
        return 0;
    uint64_t *all = ku_calloc(4 * n, sizeof *all);
    if (!all)
        return KUMI_ENOMEM;
    *t = (struct ku_p2p_sequences){
        .sent = all, .send_done = all + n, .received = all + 2 * n, .recv_done = all + 3 * n};
    return 0;
}

/* Sections of a stage on a path: blocks of different members in one piece */
static int n_sections(const struct ku_work *w, enum ku_coll_path path)
{
    switch (w->coll.kind) {
    case KU_COLL_REDUCE_SCATTER:
        return w->comm->n;
    case KU_COLL_SCATTER:
    case KU_COLL_ALL_TO_ALL:
        return w->comm->near.n;
    default:
        return path == KU_PATH_FAR_STAGED_GATHER ? ku_far_n_sections(w->comm) : 1;
    }
}

/* Elements of the longest block of a staged call */
static int64_t max_block(const struct ku_work *w)
{
    const struct ku_coll *c = &w->coll;
    int64_t max = 0;
    if (w->path == KU_PATH_FAR_STAGED_GATHER || w->path == KU_PATH_FAR_STAGED_BROADCAST)
        return ku_far_max_block(w);
    if ((c->kind == KU_COLL_GATHER || c->kind == KU_COLL_SCATTER) &&
        !ku_comm_is_near(w->comm, c->root))
        return 0;
    if (!c->counts || c->kind == KU_COLL_ALL_TO_ALL)
        return c->count;
    for (int i = 0; i < w->comm->n; i++)
        max = c->counts[i] > max ? c->counts[i] : max;
    return max;
}

/* Elements per block and piece, and the number of pieces, of a staged call */
static void cut_pieces(struct ku_work *w)
{
    const int64_t each = (int64_t)kumi_dtype_bytes(w->coll.dtype);
    const int n = n_sections(w, (enum ku_coll_path)w->path);
    w->piece_count = ku_coll_piece_count(n, (int)each);
    KU_ASSERT(w->piece_count > 0 && w->piece_count * each * n <= KU_STAGE_BYTES);
    w->n_pieces = (max_block(w) + w->piece_count - 1) / w->piece_count;
}

/* A section holds one element or more. Only members of several hosts can be too many. */
static int check_sections(const struct ku_work *w)
{
    if (!w->comm->priv->far || w->path != KU_PATH_PUBLIC)
        return 0;
    const int n = n_sections(w, ku_coll_far_choice(&w->coll, ku_far_max_near(w->comm)));
    const int each = (int)kumi_dtype_bytes(w->coll.dtype);
    if (ku_coll_piece_count(n, each) > 0)
        return 0;
    const char *kind = ku_coll_kind_name(w->coll.kind), *dtype = kumi_dtype_name(w->coll.dtype);
    if (w->coll.kind == KU_COLL_REDUCE_SCATTER)
        return KU_ERR(KUMI_EINVAL,
                      "collective: %s: comm %s has %d ranks; at most %d are supported for %s: use "
                      "all_reduce, or communicators of fewer ranks",
                      kind, w->comm->name, n, KU_STAGE_BYTES / each, dtype);
    return KU_ERR(KUMI_EINVAL,
                  "collective: %s: the hosts of comm %s have %d blocks; at most %d are supported "
                  "for %s: give hosts of equal numbers of ranks, or communicators of fewer hosts",
                  kind, w->comm->name, n, KU_STAGE_BYTES / each, dtype);
}

static enum ku_coll_path first_path_of(const struct ku_comm *comm, const struct ku_coll *coll)
{
    const int is_message = coll->kind == KU_COLL_SEND || coll->kind == KU_COLL_RECV;
    if (comm->priv->far && !(is_message && ku_comm_is_near(comm, coll->root)))
        return ku_coll_far_path(coll, comm->n, ku_far_max_near(comm));
    return ku_coll_path(coll, comm->n, comm->me);
}

/* Whether a call between hosts may sum or copy through chunks, and not payloads alone */
static bool needs_chunks(const struct ku_work *w)
{
    return w->comm->priv->far && w->path != KU_PATH_FAR_BARRIER && w->path != KU_PATH_FAR_FREE &&
           w->path != KU_PATH_FAR_INLINE && w->path != KU_PATH_FAR_INLINE_GATHER &&
           w->path != KU_PATH_FAR_MESSAGE;
}

int ku_work_init(struct ku_work *w, struct ku_comm *comm, const struct ku_coll *coll)
{
    memset(w, 0, sizeof *w);
    w->comm = comm;
    w->coll = *coll;
    if (coll->wire == KUMI_F32) /* zero: same as the data */
        w->coll.wire = coll->dtype;
    KU_TRY(ku_coll_check(comm, &w->coll));
    w->path = w->first_path = (uint8_t)first_path_of(comm, coll);
    KU_TRY(check_sections(w));
    if (needs_chunks(w))
        KU_TRY(ku_far_reserve(comm->priv->far));
    w->first_step = ku_coll_steps((enum ku_coll_path)w->path);
    if (w->path == KU_PATH_P2P)
        KU_TRY(make_sequences(comm));
    fingerprint(w);
    return 0;
}

void ku_work_describe(const struct ku_work *w, char *text, size_t cap)
{
    static const char *const reduce[] = {"sum", "avg", "min", "max", "prod", "premul_sum"};
    const struct ku_coll *c = &w->coll;
    int is_sum = c->kind == KU_COLL_ALL_REDUCE || c->kind == KU_COLL_REDUCE ||
                 c->kind == KU_COLL_REDUCE_SCATTER;
    int has_name = c->name && c->name[0]; /* an op of the whole model has an empty path */
    char count[64] = "";
    if (ku_coll_has_elements(c->kind))
        snprintf(count, sizeof count, " %s x %lld%s%s", kumi_dtype_name(c->dtype),
                 (long long)w->total, is_sum ? " " : "", is_sum ? reduce[c->reduce] : "");
    snprintf(text, cap, "%s%s%s%s (work %llu of comm %s)", has_name ? c->name : "",
             has_name ? ": " : "", ku_coll_kind_name(c->kind), count, (unsigned long long)w->seq,
             w->comm->name);
}

/* One side of a mismatch, as "all_reduce(f32 x 10, sum)" */
static void side_text(uint64_t what, uint64_t count, char *text, size_t cap)
{
    static const char *const reduce[] = {"sum", "avg", "min", "max", "prod", "premul_sum"};
    enum ku_coll_kind kind = (enum ku_coll_kind)(what & 0xff);
    char rest[32] = "";
    if (kind == KU_COLL_ALL_REDUCE || kind == KU_COLL_REDUCE || kind == KU_COLL_REDUCE_SCATTER)
        snprintf(rest, sizeof rest, ", %s", reduce[(what >> 16 & 0x7f) % KUMI_N_REDUCES]);
    size_t len = strlen(rest);
    if (kind == KU_COLL_BROADCAST || kind == KU_COLL_REDUCE || kind == KU_COLL_GATHER ||
        kind == KU_COLL_SCATTER)
        snprintf(rest + len, sizeof rest - len, ", root %d", (int)(what >> 24 & 0xffffff));
    if (!ku_coll_has_elements(kind)) {
        snprintf(text, cap, "%s", ku_coll_kind_name(kind));
        return;
    }
    snprintf(text, cap, "%s%s(%s x %llu%s)", ku_coll_kind_name(kind), what >> 23 & 1 ? "_v" : "",
             kumi_dtype_name((enum kumi_dtype)(what >> 8 & 0xf)), (unsigned long long)count, rest);
}

/* The entry of near member k */
static struct ku_entry *entry_at(const struct ku_comm *c, uint64_t seq, int k)
{
    KU_ASSERT(k >= 0 && k < c->near.n);
    return &c->priv->flags[ku_comm_near(c, k)].ring[seq % KU_RING];
}

static struct ku_entry *own_entry(const struct ku_comm *c, uint64_t seq)
{
    return &c->priv->own->ring[seq % KU_RING];
}

/*
 * Call `seq` of the comm: this rank's differs from that of member `other`. Messages name ranks of
 * the job, which logs and other messages name too.
 */
static __attribute__((cold, noinline)) int raise_mismatch(const struct ku_comm *c, uint64_t seq,
                                                          const struct ku_net_head *ours, int other,
                                                          const struct ku_net_head *theirs)
{
    char mine[96], yours[96];
    side_text(ours->what, ours->count, mine, sizeof mine);
    side_text(theirs->what, theirs->count, yours, sizeof yours);
    if (theirs->what == KU_COLL_LEAVE || ours->what == KU_COLL_LEAVE) {
        /* One side called no collective at all: report that. */
        int am_leaver = ours->what == KU_COLL_LEAVE;
        int leaver = ku_comm_rank(c, am_leaver ? c->me : other),
            waiter = ku_comm_rank(c, am_leaver ? other : c->me);
        KU_ERR_SCOPE(KUMI_EMISMATCH, KUMI_SCOPE_JOB,
                     "mismatched collectives: rank %d left the job while rank %d waits for it in "
                     "%s; call the same "
                     "collectives on every rank",
                     leaver, waiter, am_leaver ? yours : mine);
        return ku_job_raise(c->job, leaver);
    }
    const char *why = "";
    if (strcmp(mine, yours) == 0)
        why = ours->what % 256 == KU_COLL_ARENA ? " or dealloc with another size or of other memory"
                                                : " with different counts per rank or parts";
    KU_ERR_SCOPE(KUMI_EMISMATCH, KUMI_SCOPE_JOB,
                 "mismatched collectives: comm %s, call %llu: rank %d calls %s, rank %d %s%s; call "
                 "the same collective with "
                 "equal arguments on every rank",
                 c->name, (unsigned long long)(seq - c->priv->n_hidden), c->job->rank, mine,
                 ku_comm_rank(c, other), yours, why);
    return ku_job_raise(c->job, c->job->rank);
}

int ku_work_raise_far(const struct ku_work *w, int member, const struct ku_net_head *came)
{
    const struct ku_net_head ours = {.what = w->what, .count = (uint64_t)w->total};
    return raise_mismatch(w->comm, w->seq, &ours, member, came);
}

int ku_work_raise_message(const struct ku_work *w, const struct ku_net_head *came)
{
    KU_ERR_SCOPE(KUMI_EMISMATCH, KUMI_SCOPE_JOB,
                 "mismatched messages: comm %s: rank %d sends %lld x %s to rank %d, which receives "
                 "%lld x %s; give both the same count and dtype",
                 w->comm->name, ku_comm_rank(w->comm, w->coll.root), (long long)came->count,
                 kumi_dtype_name((enum kumi_dtype)came->what), w->comm->job->rank,
                 (long long)w->total, kumi_dtype_name(w->coll.dtype));
    return ku_job_raise(w->comm->job, w->comm->job->rank);
}

/* This rank's arrival differs from that of near member k. */
static __attribute__((cold, noinline)) int raise_entries(const struct ku_comm *c, uint64_t seq,
                                                         int k)
{
    const struct ku_entry *mine = own_entry(c, seq), *yours = entry_at(c, seq, k);
    const struct ku_net_head ours = {.what = mine->what, .count = mine->count},
                             theirs = {.what = yours->what, .count = yours->count};
    return raise_mismatch(c, seq, &ours, ku_comm_member(c, k), &theirs);
}

/* Posted works: a member whose `done` covers one has compared the fingerprints of all members. */
static void learn_checked(struct ku_comm *c)
{
    struct ku_comm_private *p = c->priv;
    for (int k = 0; k < c->near.n; k++) {
        uint64_t done = atomic_load(&p->flags[ku_comm_near(c, k)].done);
        done = done < p->posted ? done : p->posted;
        p->checked = done > p->checked ? done : p->checked;
    }
}

/*
 * All members have arrived at work `seq`. Compare its fingerprints, and those of the posted works
 * before it.
 */
static int check_fingerprints(struct ku_comm *c, uint64_t seq)
{
    KU_ASSERT(seq > 0 && seq <= c->priv->seq && c->priv->posted <= c->priv->seq);
    if (c->priv->checked < c->priv->posted)
        learn_checked(c);
    for (; c->priv->checked < seq; c->priv->checked++) {
        const uint64_t at = c->priv->checked + 1;
        const struct ku_entry *mine = own_entry(c, at);
        for (int k = 0; k < c->near.n; k++) {
            const struct ku_entry *e = k == c->near.me ? mine : entry_at(c, at, k);
            if (e->what != mine->what || e->count != mine->count || e->extra != mine->extra)
                return raise_entries(c, at, k);
        }
    }
    return 0;
}

/* Publish the locations of the buffers that peers access in the direct form; 0 for unused ones. */
static void publish_places(struct ku_work *w, struct ku_entry *e)
{
    const struct ku_coll *c = &w->coll;
    int am_root = w->comm->me == c->root;
    int uses_in = c->kind != KU_COLL_BROADCAST && (c->kind != KU_COLL_SCATTER || am_root);
    int uses_out = (c->kind != KU_COLL_REDUCE && c->kind != KU_COLL_GATHER) || am_root;
    e->place.in = uses_in ? ku_move_place(w, c->in) : 0;
    e->place.out = uses_out ? ku_move_place(w, c->out) : 0;
    /* Scaling, unequal counts and an exchange in place need the stages. */
    if (c->reduce == KUMI_PREMUL_SUM ||
        (c->kind == KU_COLL_ALL_TO_ALL && (c->counts || c->in == c->out)))
        e->place.in = KU_PRIVATE;
}

/*
 * Minimum of `done` over the near members. Read once in KU_RING works.
 */
static uint64_t min_done(const struct ku_comm *c)
{
    uint64_t min = UINT64_MAX;
    for (int k = 0; k < c->near.n; k++) {
        uint64_t done = atomic_load(&c->priv->flags[ku_comm_near(c, k)].done);
        min = done < min ? done : min;
    }
    return min;
}

/*
 * Finish posted works up to `seq`: compare their fingerprints once all members have arrived.
 * Returns 1 while a member is missing.
 */
static int settle(struct ku_comm *c, uint64_t seq, int *missing)
{
    const struct ku_transport *t = c->job->comm->transport;
    struct ku_comm_private *p = c->priv;
    if (p->checked >= seq || p->posted < seq)
        return 0;
    learn_checked(c);
    if (p->checked < seq) {
        int status = t->arrived(c, KU_FLAG_READY, seq, missing);
        if (status)
            return status;
        KU_TRY(check_fingerprints(c, seq));
        *missing = 0;
    }
    return t->arrive(c, KU_FLAG_DONE, p->checked);
}

/*
 * Arrive at a work, the first op of every path with an arrival. Returns 1 while the last use of its
 * ring entry is not over on all members.
 */
static int arrive(struct ku_work *w)
{
    struct ku_comm *c = w->comm;
    struct ku_comm_rank *p = c->job->comm;
    KU_ASSERT(w->state == KU_WORK_STARTED && !w->arrived);
    if (w->seq > c->priv->done_seen + KU_RING) {
        uint64_t over = w->seq - KU_RING;
        int missing = 0, status = settle(c, over, &missing);
        if (!status)
            status = p->transport->arrived(c, KU_FLAG_DONE, over, &missing);
        w->missing = missing;
        if (status)
            return status;
        c->priv->done_seen = min_done(c);
    }
    KU_ASSERT(w->seq <= c->priv->done_seen + KU_RING); /* no member reads the entry any more */
    struct ku_entry *e = own_entry(c, w->seq);
    if (w->path == KU_PATH_INLINE && w->coll.kind == KU_COLL_BROADCAST && !ku_comm_has_far(c))
        /* fetch it while this rank stores its own */
        __builtin_prefetch(entry_at(c, w->seq, w->coll.root));
    e->what = w->what;
    e->count = (uint64_t)w->total;
    e->extra = w->extra;
    if (w->path == KU_PATH_INLINE || w->path == KU_PATH_POSTED || w->path == KU_PATH_FAR_INLINE ||
        w->path == KU_PATH_FAR_INLINE_GATHER)
        ku_move_payload(w, e);
    else if (w->path == KU_PATH_PUBLIC && !c->priv->far)
        publish_places(w, e);
    w->arrived = 1;
    w->pc++; /* past KU_STEP_ARRIVE */
    w->missing = 0;
    p->has_moved = 1;
    return p->transport->arrive(c, KU_FLAG_READY, w->seq);
}

static int await(struct ku_work *w, enum ku_flag flag, uint64_t number)
{
    int status = w->comm->job->comm->transport->arrived(w->comm, flag, number, &w->missing);
    if (status)
        return status;
    w->missing = 0;
    return 0;
}

static void take_path(struct ku_work *w, enum ku_coll_path path)
{
    w->path = (uint8_t)path;
    w->step = ku_coll_steps(path);
    w->pc = 0;
    w->piece = w->part = w->at = 0;
}

/* All members choose the same path, because they read the same entries. */
static void choose(struct ku_work *w)
{
    struct ku_comm_private *p = w->comm->priv;
    KU_ASSERT(w->path == KU_PATH_PUBLIC || w->path == KU_PATH_STAGED_V ||
              w->path == KU_PATH_FAR_PAIRS);
    if (w->path == KU_PATH_STAGED_V) {
        take_path(w, KU_PATH_STAGED);
    } else if (w->path == KU_PATH_PUBLIC && w->comm->priv->far) {
        take_path(w, ku_coll_far_choice(&w->coll, ku_far_max_near(w->comm)));
        if (w->path == KU_PATH_FAR_PAIRS || w->path == KU_PATH_FAR_LONE_SUM)
            return;
        cut_pieces(w);
    } else {
        int is_owned = w->path == KU_PATH_PUBLIC;
        for (int i = 0; i < w->comm->near.n && is_owned; i++)
            is_owned = entry_at(w->comm, w->seq, i)->place.in != KU_PRIVATE &&
                       entry_at(w->comm, w->seq, i)->place.out != KU_PRIVATE;
        cut_pieces(w);
        if (w->coll.kind == KU_COLL_ALL_TO_ALL && w->coll.counts) {
            take_path(w, KU_PATH_STAGED_V);
            w->stage = w->last_stage = ++p->n_pieces;
            return;
        }
        int sums = w->coll.kind == KU_COLL_ALL_REDUCE || w->coll.kind == KU_COLL_REDUCE;
        take_path(w, is_owned ? KU_PATH_DIRECT : sums ? KU_PATH_STAGED_SUM : KU_PATH_STAGED);
    }
    if (w->path == KU_PATH_DIRECT)
        return;
    w->stage = p->n_pieces + 1;
    const int is_sum = w->path == KU_PATH_STAGED_SUM || w->path == KU_PATH_FAR_STAGED_SUM;
    p->n_pieces += (uint64_t)w->n_pieces * (is_sum ? 2 : 1);
    w->last_stage = p->n_pieces;
    KU_ASSERT(w->n_pieces == 0 || w->stage <= w->last_stage);
    if (w->n_pieces == 0)
        while (w->step[w->pc] != KU_STEP_DONE)
            w->pc++;
}

static int finish(struct ku_work *w)
{
    struct ku_comm *c = w->comm;
    KU_ASSERT(w->state == KU_WORK_STARTED && c->job->comm->n_started > 0);
    w->state = KU_WORK_FINISHED;
    if (w->path == KU_PATH_POSTED)
        c->priv->posted = w->seq;
    ku_flight_add(c->job->priv->flight, KU_FLIGHT_DONE, c->slot, w->what, w->seq,
                  (uint64_t)w->total);
    ku_job_tick(c->job);
    c->job->comm->n_started--;
    c->job->comm->has_moved = 1;
    return 0;
}

/* Whether this rank writes pieces to its stage, and whether it reads pieces of other stages */
static bool fills(const struct ku_work *w)
{
    int am_root = w->comm->me == w->coll.root;
    if (w->path == KU_PATH_FAR_INLINE_GATHER)
        return w->comm->near.me == 0;
    if (w->path == KU_PATH_FAR_STAGED_BROADCAST)
        return w->comm->near.me == ku_far_broadcaster(w);
    if (w->coll.kind == KU_COLL_BROADCAST || w->coll.kind == KU_COLL_SCATTER)
        return am_root;
    return w->coll.kind != KU_COLL_GATHER || !am_root;
}

static bool reads(const struct ku_work *w)
{
    int am_root = w->comm->me == w->coll.root;
    if (w->path == KU_PATH_FAR_INLINE_GATHER || w->path == KU_PATH_FAR_STAGED_BROADCAST)
        return !fills(w);
    if (w->coll.kind == KU_COLL_BROADCAST || w->coll.kind == KU_COLL_SCATTER)
        return !am_root;
    return w->coll.kind != KU_COLL_GATHER || am_root;
}

/*
 * Set the flag of a piece. A rank that does not take part in the pieces sets it for all of them at
 * the first: one store for the number that sleepers wait for, and one for the last number.
 */
static int announce(struct ku_work *w, enum ku_flag flag, int each)
{
    const struct ku_transport *t = w->comm->job->comm->transport;
    if (!each && w->piece > 0)
        return 0;
    KU_TRY(t->arrive(w->comm, flag, w->stage));
    return each || w->stage == w->last_stage ? 0 : t->arrive(w->comm, flag, w->last_stage);
}

/*
 * Moving the bytes of programs is timed. The rest of a wait is waiting for other ranks.
 */
static int move(struct ku_work *w)
{
    if (w->path != KU_PATH_PROGRAM && w->path != KU_PATH_FAR_ALL_GATHER &&
        w->path != KU_PATH_FAR_HOST_GATHER)
        return ku_move_step(w);
    int64_t begin = ku_clock_ns();
    int status = ku_move_step(w);
    w->comm->job->comm->moved_ns += ku_clock_ns() - begin;
    return status;
}

static int far_step(struct ku_work *w)
{
    struct ku_comm *c = w->comm;
    switch ((enum ku_step_op)w->step[w->pc]) {
    case KU_STEP_FAR_SMALL:
        return ku_far_small(w);
    case KU_STEP_FAR_READY:
        return c->job->comm->transport->arrive(c, KU_FLAG_FAR, w->seq);
    case KU_STEP_AWAIT_FAR:
        return await(w, KU_FLAG_FAR, w->seq);
    case KU_STEP_TAKE_PIECE:
        w->stage = w->last_stage = ++c->priv->n_pieces;
        return 0;
    case KU_STEP_FAR_REDUCE:
        return ku_far_reduce(w);
    case KU_STEP_FAR_GATHER:
        return ku_far_gather(w);
    case KU_STEP_FAR_BROADCAST:
        return ku_far_broadcast(w);
    case KU_STEP_FAR_PAIRS:
        return ku_far_pairs(w);
    default:
        break;
    }
    KU_ASSERT(w->step[w->pc] == KU_STEP_FAR_MESSAGE);
    return ku_far_message(w);
}

/*
 * Execute one op. Returns 0: go on, 1: not yet, 2: the op has set the cursor itself, < 0: status.
 */
static int take_step(struct ku_work *w)
{
    struct ku_comm *c = w->comm;
    const struct ku_transport *t = c->job->comm->transport;
    int status;
    switch ((enum ku_step_op)w->step[w->pc]) {
    case KU_STEP_ARRIVE:
        status = arrive(w);
        return status ? status : 2;
    case KU_STEP_AWAIT:
        status = await(w, KU_FLAG_READY, w->seq);
        return status ? status : check_fingerprints(c, w->seq);
    case KU_STEP_CHOOSE:
        choose(w);
        return 2;
    case KU_STEP_INLINE:
        ku_move_inline(w);
        return 0;
    case KU_STEP_PUBLISH:
        ku_move_publish(w);
        return 0;
    case KU_STEP_COUNTS:
        return ku_move_counts(w);
    case KU_STEP_AWAIT_FREE:
        return fills(w) && w->stage > 2 ? await(w, KU_FLAG_FREED, w->stage - 2) : 0;
    case KU_STEP_FILL: /* a rank that fills nothing has not awaited that its stage is free */
        if (fills(w))
            ku_move_fill(w);
        return 0;
    case KU_STEP_FILLED:
        return announce(w, KU_FLAG_FILLED, fills(w));
    case KU_STEP_AWAIT_FILLED:
        return reads(w) ? await(w, KU_FLAG_FILLED, w->stage) : 0;
    case KU_STEP_MOVE:
        return move(w);
    case KU_STEP_FREED:
        return announce(w, KU_FLAG_FREED, reads(w));
    case KU_STEP_RESULT:
        w->stage++;
        return 0;
    case KU_STEP_DRAIN:
        ku_move_drain(w);
        return 0;
    case KU_STEP_NEXT:
        if (++w->piece >= w->n_pieces)
            return 0;
        w->stage++;
        KU_ASSERT(w->stage <= w->last_stage);
        w->pc = 0;
        return 2;
    case KU_STEP_DONE:
        if (w->path == KU_PATH_STAGED || w->path == KU_PATH_STAGED_SUM)
            KU_ASSERT(w->n_pieces == 0 || w->stage == w->last_stage);
        return t->arrive(c, KU_FLAG_DONE, w->seq);
    case KU_STEP_AWAIT_DONE:
        return await(w, KU_FLAG_DONE, w->seq);
    case KU_STEP_P2P:
        if (w->coll.kind == KU_COLL_SEND)
            return t->send(c, w);
        status = t->recv(c, w);
        if (status == 0)
            ku_move_count_bytes(w, w->total, 1);
        return status;
    case KU_STEP_FAR:
        return far_step(w);
    case KU_STEP_END:
        break;
    }
    return 0;
}

/* Returns 0: finished, 1: not yet, < 0: status. */
static int run(struct ku_work *w)
{
    struct ku_comm_rank *p = w->comm->job->comm;
    while (w->step[w->pc] != KU_STEP_END) {
        int status = take_step(w);
        if (status < 0 || status == 1)
            return status;
        if (status == 0)
            w->pc++;
        p->has_moved = 1;
    }
    return finish(w);
}

/* Run the messages. One that has finished is replaced by the one after it, which runs next. */
static int advance_messages(struct ku_comm_private *p)
{
    for (struct ku_work **link = &p->p2p; *link;) {
        struct ku_work *w = *link, *after = w->p2p.after;
        const int status = run(w);
        if (status < 0)
            return status;
        if (status) {
            link = &w->next;
            continue;
        }
        if (after) {
            after->p2p.last = w->p2p.last;
            after->next = w->next;
        }
        *link = after ? after : w->next;
        if (!w->next)
            p->p2p_end = after ? &after->next : link;
    }
    return 0;
}

static int advance_comm(struct ku_comm *c)
{
    struct ku_comm_private *p = c->priv;
    while (p->head) {
        int status = run(p->head);
        if (status < 0)
            return status;
        if (status)
            break;
        p->head = p->head->next;
    }
    if (!p->head)
        p->tail = NULL;
    else /* a flag may have come since the head found it missing: no work arrives before it */
        for (struct ku_work *w = p->head; w && (w->arrived || arrive(w) == 0); w = w->next)
            continue;
    return advance_messages(p);
}

/*
 * Finish the posted works at which all members have arrived. A work in the queue finishes them
 * itself.
 */
static int settle_posted(struct ku_comm *c)
{
    const struct ku_comm_private *p = c->priv;
    int status = 0;
    while (!status && !p->head && p->checked < p->posted) {
        int missing = 0;
        status = settle(c, p->checked + 1, &missing);
    }
    return status < 0 ? status : 0;
}

/*
 * Move the bytes of messages. A broken link usually has a cause that its host reports a moment
 * later; without one the peer itself is to blame.
 */
static int move_messages(struct ku_job *job)
{
    struct ku_comm_rank *p = job->comm;
    bool has_moved = false;
    const int status = p->net->ops->progress(p->net, p->budget_bytes, &has_moved);
    p->has_moved |= has_moved;
    if (has_moved) /* a large work takes longer than a time-out */
        ku_job_tick(job);
    if (status >= 0)
        return 0;
    const struct kumi_error error = *ku_err_get();
    KU_TRY(ku_job_await_cause(job, KU_CAUSE_NS));
    KU_IGNORE(ku_err_put(&error), "it is raised");
    return ku_job_raise(job, p->net->broken ? p->net->broken->rank : job->rank);
}

/*
 * A work that fails half-way stays in its queue, although its caller gives its memory back, and the
 * other ranks wait for it. So its failure is always the job's.
 */
int ku_job_advance(struct ku_job *job)
{
    struct ku_comm_rank *p = job->comm;
    if (atomic_load_explicit(&job->seg->abort_word, memory_order_acquire))
        return ku_job_root(job);
    if (!p->n_started)
        return 0;
    if (p->net)
        KU_TRY(move_messages(job));
    for (struct ku_comm *c = p->comms; c; c = c->priv->next) {
        const int status = c->priv->head || c->priv->p2p ? advance_comm(c) : 0;
        if (status < 0)
            return ku_job_has_failed(job) ? status : ku_job_raise(job, job->rank);
    }
    return 0;
}

int ku_job_settle(struct ku_job *job)
{
    for (struct ku_comm *c = job->comm->comms; c; c = c->priv->next) {
        const int status = settle_posted(c);
        if (status < 0)
            return ku_job_has_failed(job) ? status : ku_job_raise(job, job->rank);
    }
    return 0;
}

int ku_job_progress(struct ku_job *job)
{
    enum { HOOK_BYTES = 512 * 1024 }; /* about 0.1 ms, between two tiles of the caller */
    if (!job->comm->n_started)
        return 0;
    job->comm->budget_bytes = HOOK_BYTES;
    int status = ku_job_advance(job);
    job->comm->budget_bytes = -1;
    return status;
}

/* The message in the queue after which `w` runs; NULL: none */
static struct ku_work *before_message(const struct ku_work *w)
{
    struct ku_work *at = w->path == KU_PATH_P2P ? w->comm->priv->p2p : NULL;
    while (at && (at->path != KU_PATH_P2P || at->coll.kind != w->coll.kind ||
                  at->coll.root != w->coll.root))
        at = at->next;
    return at;
}

static void start_p2p(struct ku_work *w)
{
    struct ku_comm_private *p = w->comm->priv;
    struct ku_p2p_sequences *t = sequences_of(w->comm);
    const int64_t bytes = w->total * (int64_t)kumi_dtype_bytes(w->coll.dtype);
    memset(&w->p2p, 0, sizeof w->p2p);
    w->seq = 0;
    if (w->path == KU_PATH_P2P) {
        const int peer = ku_comm_local(w->comm, w->coll.root);
        KU_ASSERT(t->sent != NULL && bytes >= 0);
        w->p2p.sequence = w->coll.kind == KU_COLL_SEND ? ++t->sent[peer] : ++t->received[peer];
        w->p2p.place = w->coll.kind == KU_COLL_SEND && bytes > KU_LETTER_BYTES
                           ? ku_move_place(w, w->coll.in)
                           : KU_PRIVATE;
        w->seq = w->p2p.sequence;
    }
    struct ku_work *first = before_message(w);
    w->p2p.last = w;
    if (first) {
        first->p2p.last->p2p.after = w;
        first->p2p.last = w;
    } else {
        *p->p2p_end = w;
        p->p2p_end = &w->next;
    }
}

int ku_work_start(struct ku_work *w)
{
    struct ku_comm *c = w->comm;
    struct ku_comm_private *p = c->priv;
    /* after a failure the queue holds works whose callers have returned, and may hold this one */
    KU_TRY(ku_job_root(c->job));
    KU_ASSERT(w->state != KU_WORK_STARTED);
    w->path = w->first_path;
    w->step = w->first_step;
    w->pc = w->arrived = 0;
    w->piece = w->part = w->at = 0;
    w->missing = 0;
    w->next = NULL;
    w->state = KU_WORK_STARTED;
    c->job->comm->n_started++;
    if (w->path == KU_PATH_P2P || w->path == KU_PATH_FAR_MESSAGE) {
        start_p2p(w);
    } else {
        w->seq = ++p->seq;
        KU_ASSERT(p->posted < w->seq && p->done_seen < w->seq);
        KU_ASSERT(!p->tail || p->tail->seq + 1 == w->seq); /* works run in start order */
        if (p->tail)
            p->tail->next = w;
        else
            p->head = w;
        int is_next = p->head == w || w->seq <= p->done_seen + KU_RING;
        struct ku_work *before = p->tail;
        p->tail = w;
        if (is_next && (!before || before->arrived)) {
            int status = arrive(w);
            if (status < 0)
                return status;
        }
    }
    ku_flight_add(c->job->priv->flight, KU_FLIGHT_START, c->slot, w->what, w->seq,
                  (uint64_t)w->total);
    ku_job_tick(c->job);
    return ku_job_root(c->job);
}

int ku_work_test(struct ku_work *w)
{
    if (w->state != KU_WORK_STARTED)
        return w->state == KU_WORK_FINISHED;
    KU_TRY(ku_job_progress(w->comm->job));
    return w->state == KU_WORK_FINISHED;
}

static int wait_for(struct ku_work *w)
{
    struct ku_job *job = w->comm->job;
    struct ku_waiter waiter = {.awaited = -1, .far = {.first = -1}};
    int status;
    for (;;) {
        job->comm->has_moved = 0;
        status = ku_job_advance(job);
        if (status < 0 || w->state == KU_WORK_FINISHED)
            break;
        if (job->comm->has_moved) {
            waiter.spin_ns = waiter.n_spins = 0; /* moving data is not waiting */
            waiter.n_yields = 0;
            waiter.far.left_ns = 0;
            continue;
        }
        status = ku_job_settle(job);
        if (!status)
            status = ku_job_idle(job, &waiter, w);
        if (status < 0 || w->state == KU_WORK_FINISHED)
            break;
    }
    KU_ASSERT(status < 0 || w->state == KU_WORK_FINISHED);
    atomic_store_explicit(&job->priv->line->awaits, 0, memory_order_relaxed);
    return status;
}

int ku_work_wait(struct ku_work *w)
{
    if (w->state == KU_WORK_STARTED)
        KU_TRY(ku_job_advance(w->comm->job));
    return w->state == KU_WORK_STARTED ? wait_for(w) : 0;
}

int ku_coll_run(struct ku_comm *comm, const struct ku_coll *coll)
{
    struct ku_work w;
    KU_TRY(ku_work_init(&w, comm, coll));
    KU_TRY(ku_work_start(&w));
    return ku_work_wait(&w);
}

uint64_t ku_job_staged_bytes(const struct ku_job *job)
{
    return job->comm->staged_bytes;
}

int64_t ku_job_moved_ns(const struct ku_job *job)
{
    return job->comm->moved_ns;
}

uint64_t ku_job_moved_bytes(const struct ku_job *job)
{
    return job->comm->moved_bytes;
}

uint64_t ku_job_far_bytes(const struct ku_job *job)
{
    return job->comm->far_bytes;
}
