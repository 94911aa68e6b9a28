/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine `mpi`: streams of messages over an MPI library.
 *
 * A stream has two tags, so that its headers and payloads are two orders of MPI messages:
 *
 *     sender                                          receiver
 *     message of at most 4 KiB                        receives for headers are posted ahead, HEADS
 *       tag 2s     ┌ wire ┬ payload ┐       ──>       at a time, into bounce buffers; the header is
 *                  └──────┴─────────┘                 compared, then the payload copied
 *     a longer one
 *       tag 2s     ┌ wire ┐                 ──>       compared; only then the receives for the
 *                  └──────┘                           payload are posted, into the request's pieces
 *       tag 2s+1   ┌ 64 MiB ┬ 64 MiB ┬ rest ┐ ──>
 *                  └────────┴────────┴──────┘
 *
 * s is twice the slot of the communicator, plus one for a stream of odd number: a slot has two
 * streams to a rank at a time, one of even and one of odd number. The links of a one-way stream
 * share its tags, since one sends and the other receives. MPI delivers messages of one tag
 * in order, and the receives of a stream are posted in order, so a message needs no number. A
 * receive is posted only for a pending request: none is left when the next stream takes the tags.
 * The wire header names the stream, in case a sender got ahead of itself.
 *
 * The requests of MPI lie in one array of the network, which one MPI_Testsome tests. Its size and
 * the bounce buffers are reserved when a link is made: posting, moving and ending allocate nothing.
 */
#include "base/env.h"
#include "base/err.h"
#include "base/mem.h"
#include "comm/mpi/private.h"
#include "comm/net/queue.h"
#include "job/job.h"

#include <stdio.h>
#include <string.h>

enum {
    /* A copy of 4 KiB costs less than a second message. */
    INLINE_BYTES = 4096,
    /* MPI counts in int. Each segment costs a handshake, so none is shorter than it must be. */
    SEGMENT_BYTES = 64 << 20,
    /*
     * Headers of a side that are under way, and as many segments. With 4 of each, 256 messages of
     * 256 KiB took 2 to 4 times as long as bare MPI on busy cores, with 16 as long. The bounce
     * buffer with the lowest number is used first, so most of their memory is never touched.
     */
    HEADS = 16,
    OPS = 2 * HEADS
};
#define MAGIC           0x49504d4bu /* "KMPI" */
#define OPEN_TIMEOUT_NS INT64_C(60000000000)

struct wire {
    uint32_t magic, abi;
    uint64_t stream;
    struct ku_net_head head;
};
_Static_assert(sizeof(struct wire) == 64, "sent as it is");
struct bounce {
    struct wire wire;
    unsigned char payload[INLINE_BYTES];
};
_Static_assert((int)KU_MPI_PIECES > (int)KU_NET_PIECES, "and one of a wrapper");
_Static_assert(sizeof(struct bounce) == sizeof(struct wire) + INLINE_BYTES, "sent as it is");

/* One direction of a link. The queue holds the pending requests:
 *
 *     pending.head ──> … ──> at ──> … ──> head_at ──> … ──> pending.tail
 *     payload posted         │      header posted     nothing posted
 *                            payload posted up to at_bytes
 *
 * A send posts header and payload together, so its head_at equals at.
 */
struct side {
    struct mpi_link *link;
    struct ku_net_queue pending;
    struct ku_net_req *head_at, *at;
    size_t at_bytes;
    int n_ops;
    unsigned used; /* bounce buffers, one bit each */
    bool is_recv, is_listed;
    struct side *next;     /* in the network's list of sides that have something to post */
    struct bounce *bounce; /* [HEADS] */
};

struct mpi_link {
    struct ku_net_link base;
    struct side send, recv;
    bool is_mismatched;    /* receives no more */
    struct kumi_error why; /* with a status: the link is broken */
    struct mpi_link *next, *prev;
    struct bounce bounce[2 * HEADS];
};

/* What an MPI request does; the same index in both arrays */
struct op {
    struct side *side; /* NULL: done */
    struct ku_net_req *req;
    size_t bytes; /* of the segment */
    int bounce;   /* of the header; -1: a segment */
};

struct mpi_net {
    struct ku_net base;
    const struct ku_mpi_table *table;
    int rank, n;
    struct mpi_link *links;
    struct side *listed, **listed_end;
    /* [cap]: 2 * OPS for each link */
    int n_ops, cap;
    struct op *op;
    void *requests, *scratch;
    struct ku_mpi_done *done;
    bool has_sent, is_dead;
    int status; /* of the first link that broke in this call of progress */
    struct kumi_error why;
    bool has_moved;
    int64_t moved_bytes;
    struct ku_net_stats stats;
};

static struct mpi_net *net_of(const struct side *side)
{
    return (struct mpi_net *)(void *)side->link->base.net;
}

/* ---- The end of requests and links ---- */

/* A direction that has met a mismatch: it posts, takes and ends nothing more. */
static bool is_closed(const struct side *side)
{
    return side->is_recv && side->link->is_mismatched;
}

/* End the requests at the front of the queue that are complete, up to the first that is not. */
static void finish(struct side *side)
{
    struct mpi_net *net = net_of(side);
    for (struct ku_net_req *req; (req = side->pending.head) && !is_closed(side);) {
        if (!req->status && req->moved < sizeof(struct wire) + req->head.bytes)
            return;
        if (req->status) { /* later requests stay pending until the link is closed */
            side->link->is_mismatched = true;
            side->at = side->head_at = NULL;
        }
        KU_ASSERT(req->status || req->moved == sizeof(struct wire) + req->head.bytes);
        KU_ASSERT(req != side->head_at && req != side->at);
        if (!req->status) {
            *(side->is_recv ? &net->stats.n_received : &net->stats.n_sent) += 1;
            *(side->is_recv ? &net->stats.received_bytes : &net->stats.sent_bytes) +=
                req->head.bytes;
        }
        ku_net_end(&side->pending, req->status);
        net->has_moved = true;
    }
}

/*
 * Forget the MPI requests of a link. MPI cannot take back a send, nor a receive that has begun, and
 * their memory may be freed from now on. So MPI is not called any more: nothing moves on any link.
 */
static void drop_ops(struct mpi_link *link)
{
    struct mpi_net *net = net_of(&link->send);
    for (int i = 0; i < net->n_ops; i++) {
        struct op *op = &net->op[i];
        if (!op->side || op->side->link != link)
            continue;
        op->side->n_ops--;
        op->side = NULL;
        net->is_dead = true;
    }
    KU_ASSERT(link->send.n_ops == 0 && link->recv.n_ops == 0);
}

/* Break a link with this thread's error record. */
static void break_link(struct mpi_link *link)
{
    struct mpi_net *net = net_of(&link->send);
    const struct kumi_error *why = ku_err_get();
    KU_ASSERT(why->status < 0);
    if (link->why.status)
        return;
    link->why = *why;
    if (!net->status) {
        net->status = why->status;
        net->why = *why;
        net->base.broken = &link->base;
    }
    drop_ops(link);
    for (int i = 0; i < 2; i++) {
        struct side *side = i ? &link->recv : &link->send;
        ku_net_end_all(&side->pending, link->why.status);
        side->head_at = side->at = NULL;
    }
    net->has_moved = true;
}

static void mpi_failed(struct mpi_link *link, const char *what, int error)
{
    char text[64];
    snprintf(text, sizeof text, "%s rank %d", what, link->base.rank);
    KU_IGNORE(ku_mpi_failed(net_of(&link->send)->table, text, error), "the link keeps the record");
    break_link(link);
}

/* ---- Posting ---- */

static int tag_of(const struct mpi_link *link, bool is_payload)
{
    return ((int)link->base.slot * 2 + (int)(link->base.stream & 1)) * 2 + is_payload;
}

static int take_bounce(struct side *side)
{
    for (int i = 0; i < HEADS; i++)
        if (!(side->used & 1u << i)) {
            side->used |= 1u << i;
            return i;
        }
    return -1;
}

/* Give MPI one message. false: it refused, and the link is broken. */
static bool post(struct side *side, struct ku_net_req *req, int bounce, size_t bytes,
                 const struct ku_mpi_piece *piece, int n_pieces)
{
    struct mpi_net *net = net_of(side);
    struct mpi_link *link = side->link;
    KU_ASSERT(net->n_ops < net->cap && side->n_ops < OPS);
    int error = (side->is_recv ? net->table->recv : net->table->send)(
        piece, n_pieces, link->base.rank, tag_of(link, bounce < 0), net->requests, net->n_ops);
    if (error) {
        mpi_failed(link, side->is_recv ? "receive from" : "send to", error);
        return false;
    }
    net->op[net->n_ops++] = (struct op){side, req, bytes, bounce};
    side->n_ops++;
    net->has_sent |= !side->is_recv;
    return true;
}

/* The next segment of the payload of `at` */
static bool post_segment(struct side *side)
{
    struct ku_mpi_piece piece[KU_MPI_PIECES];
    struct ku_net_req *req = side->at;
    size_t left = req->head.bytes - side->at_bytes, skip = side->at_bytes, bytes;
    int n = 0;
    if (left > SEGMENT_BYTES)
        left = SEGMENT_BYTES;
    bytes = left;
    KU_ASSERT(left > 0);
    for (int i = 0; i < req->n_pieces && left > 0; i++) {
        size_t here = req->piece[i].bytes;
        if (skip >= here) {
            skip -= here;
            continue;
        }
        here -= skip;
        if (here > left)
            here = left;
        piece[n++] = (struct ku_mpi_piece){(char *)req->piece[i].at + skip, here};
        left -= here;
        skip = 0;
    }
    KU_ASSERT(left == 0);
    side->at_bytes += bytes;
    return post(side, req, -1, bytes, piece, n);
}

/* The header of `head_at`. A send fills the bounce buffer, with a short payload. */
static bool post_head(struct side *side)
{
    struct ku_net_req *req = side->head_at;
    int i = take_bounce(side);
    struct bounce *b = &side->bounce[i];
    struct ku_mpi_piece piece = {b, sizeof *b};
    KU_ASSERT(i >= 0 && req);
    if (!side->is_recv) {
        b->wire = (struct wire){MAGIC, KU_NET_ABI, side->link->base.stream, req->head};
        piece.bytes = sizeof b->wire;
        if (req->head.bytes <= INLINE_BYTES)
            for (int p = 0; p < req->n_pieces; p++) {
                if (req->piece[p].bytes == 0)
                    continue;
                memcpy((char *)b + piece.bytes, req->piece[p].at, req->piece[p].bytes);
                piece.bytes += req->piece[p].bytes;
            }
    }
    side->head_at = req->next;
    return post(side, req, i, 0, &piece, 1);
}

static bool can_post_head(const struct side *side)
{
    return side->head_at && side->used != (1u << HEADS) - 1 && side->n_ops < OPS;
}

/* The rest of the payload of `at`. false: there is no room, or the link broke. */
static bool post_payload(struct side *side)
{
    struct ku_net_req *req = side->at;
    while (req->head.bytes > INLINE_BYTES && side->at_bytes < req->head.bytes)
        if (side->n_ops == OPS || !post_segment(side))
            return false;
    side->at = req->next;
    side->at_bytes = 0;
    return true;
}

/* Post what there is room for. A link that breaks meanwhile has nothing more to post. */
static void post_sends(struct side *side)
{
    while (side->at && side->n_ops < OPS) {
        if (side->at == side->head_at && (!can_post_head(side) || !post_head(side)))
            return;
        if (!post_payload(side))
            return;
    }
}

static void post_recvs(struct side *side)
{
    while (side->at && side->at->moved > 0) /* its header has come */
        if (!post_payload(side))
            return;
    while (can_post_head(side))
        if (!post_head(side))
            return;
}

static void list(struct side *side)
{
    struct mpi_net *net = net_of(side);
    if (side->is_listed)
        return;
    side->is_listed = true;
    side->next = NULL;
    *net->listed_end = side;
    net->listed_end = &side->next;
}

static void post_listed(struct mpi_net *net)
{
    for (struct side *side; !net->is_dead && (side = net->listed);) {
        net->listed = side->next;
        if (!net->listed)
            net->listed_end = &net->listed;
        side->is_listed = false;
        (side->is_recv ? post_recvs : post_sends)(side);
        finish(side);
    }
}

/* ---- What MPI has done ---- */

static void copy_inline(struct ku_net_req *req, const unsigned char *payload)
{
    for (int i = 0; i < req->n_pieces; i++) {
        if (req->piece[i].bytes == 0)
            continue;
        memcpy(req->piece[i].at, payload, req->piece[i].bytes);
        payload += req->piece[i].bytes;
    }
}

/* A header has come; `bytes` of wire header and payload. */
static void take_head(struct side *side, struct ku_net_req *req, const struct bounce *b,
                      uint64_t bytes)
{
    struct mpi_link *link = side->link;
    const struct wire *w = &b->wire;
    size_t short_bytes = bytes < sizeof *w || w->head.bytes > INLINE_BYTES ? 0 : w->head.bytes;
    if (bytes != sizeof *w + short_bytes || w->magic != MAGIC || w->abi != KU_NET_ABI ||
        w->stream != link->base.stream) {
        KU_IGNORE(KU_ERR(KUMI_EPEER,
                         "mpi: rank %d: a message of %llu bytes is not of stream %llu in slot %u; "
                         "do all ranks run the same version of kumi?",
                         link->base.rank, (unsigned long long)bytes,
                         (unsigned long long)link->base.stream, link->base.slot),
                  "the link keeps the record");
        break_link(link);
        return;
    }
    req->came = w->head;
    if (ku_net_is_mismatch(req)) {
        req->status = KUMI_EMISMATCH; /* ends after the requests before it */
        return;
    }
    req->moved = sizeof *w + short_bytes;
    if (short_bytes)
        copy_inline(req, b->payload);
}

static void take(struct mpi_net *net, const struct ku_mpi_done *done)
{
    KU_ASSERT(done->index >= 0 && done->index < net->n_ops);
    struct op *op = &net->op[done->index], was = *op;
    struct side *side = was.side;
    if (!side) /* its link broke since the test */
        return;
    op->side = NULL;
    side->n_ops--;
    net->has_moved = true;
    if (done->error) {
        mpi_failed(side->link, side->is_recv ? "receive from" : "send to", done->error);
        return;
    }
    if (was.bounce >= 0) {
        side->used &= ~(1u << was.bounce);
        net->moved_bytes += (int64_t)sizeof(struct wire);
        if (!side->is_recv)
            was.req->moved += sizeof(struct wire) +
                              (was.req->head.bytes <= INLINE_BYTES ? was.req->head.bytes : 0);
        else if (!is_closed(side))
            take_head(side, was.req, &side->bounce[was.bounce], done->bytes);
    } else if (side->is_recv && done->bytes != was.bytes) {
        KU_IGNORE(KU_ERR(KUMI_EPEER, "mpi: rank %d: a segment of %llu bytes in place of %zu",
                         side->link->base.rank, (unsigned long long)done->bytes, was.bytes),
                  "the link keeps the record");
        break_link(side->link);
        return;
    } else {
        was.req->moved += was.bytes;
        net->moved_bytes += (int64_t)was.bytes;
    }
    list(side);
}

/* Close the gaps in both arrays. */
static void compact(struct mpi_net *net)
{
    const size_t each = net->table->request_bytes;
    int n = 0;
    for (int i = 0; i < net->n_ops; i++) {
        if (!net->op[i].side)
            continue;
        if (n < i) {
            net->op[n] = net->op[i];
            memcpy((char *)net->requests + (size_t)n * each,
                   (char *)net->requests + (size_t)i * each, each);
        }
        n++;
    }
    net->n_ops = n;
}

/* Pending requests of all links end: MPI is not called again. */
static int end_network(struct mpi_net *net)
{
    for (struct mpi_link *link = net->links; link; link = link->next) {
        if (link->why.status)
            continue;
        KU_IGNORE(KU_ERR(KUMI_EPEER,
                         "mpi: %s: link to rank %d: given up, because messages of another link "
                         "were under way when it failed",
                         net->table->make, link->base.rank),
                  "the link keeps the record");
        break_link(link);
    }
    return net->status ? ku_err_put(&net->why) : 0;
}

static int progress(struct ku_net *base, int64_t budget_bytes, bool *has_moved)
{
    struct mpi_net *net = (struct mpi_net *)(void *)base;
    int n_done;
    net->status = 0;
    net->has_moved = false;
    net->moved_bytes = 0;
    if (net->is_dead) {
        int status = end_network(net);
        *has_moved |= net->has_moved;
        return status;
    }
    do {
        n_done = 0;
        post_listed(net);
        if (net->is_dead || (net->n_ops == 0 && !net->has_sent))
            break;
        int error = net->table->test(net->requests, net->n_ops, net->scratch, net->done, &n_done);
        if (error) {
            for (struct mpi_link *link = net->links; link; link = link->next)
                mpi_failed(link, "MPI_Testsome, link to", error);
            n_done = 0;
        }
        for (int i = 0; i < n_done; i++)
            take(net, &net->done[i]);
        compact(net);
    } while (n_done > 0 && (budget_bytes < 0 || net->moved_bytes < budget_bytes));
    post_listed(net);
    compact(net);
    *has_moved |= net->has_moved;
    return net->status ? ku_err_put(&net->why) : 0;
}

/* ---- Links and requests ---- */

/* Room for the MPI requests of one more link */
static int reserve(struct mpi_net *net, int n_links)
{
    const int cap = n_links * 2 * OPS;
    if (cap <= net->cap)
        return 0;
    void *requests = ku_realloc(net->requests, (size_t)cap, net->table->request_bytes);
    if (!requests)
        return KUMI_ENOMEM;
    net->requests = requests;
    struct op *op = ku_realloc(net->op, (size_t)cap, sizeof *op);
    if (!op)
        return KUMI_ENOMEM;
    net->op = op;
    struct ku_mpi_done *done = ku_realloc(net->done, (size_t)cap, sizeof *done);
    if (!done)
        return KUMI_ENOMEM;
    net->done = done;
    void *scratch = ku_realloc(net->scratch, (size_t)cap, net->table->scratch_bytes);
    if (!scratch)
        return KUMI_ENOMEM;
    net->scratch = scratch;
    net->cap = cap;
    return 0;
}

static int make_link(struct ku_net *base, uint32_t slot, uint64_t stream, int rank,
                     enum ku_net_way way, struct ku_net_link **out)
{
    struct mpi_net *net = (struct mpi_net *)(void *)base;
    KU_ASSERT(rank >= 0 && rank < net->n && rank != net->rank);
    /* The largest tag is left to MPI_Iprobe, which shall find nothing. */
    KU_ASSERT((int64_t)slot * 4 + 3 < net->table->process->max_tag);
    KU_TRY(reserve(net, net->stats.n_links + 1));
    struct mpi_link *link = ku_malloc(sizeof *link);
    if (!link)
        return KUMI_ENOMEM;
    memset(link, 0, offsetof(struct mpi_link, bounce));
    link->base =
        (struct ku_net_link){.net = base, .stream = stream, .slot = slot, .rank = rank, .way = way};
    link->send = (struct side){.link = link, .bounce = link->bounce};
    link->recv = (struct side){.link = link, .bounce = link->bounce + HEADS, .is_recv = true};
    link->next = net->links;
    if (link->next)
        link->next->prev = link;
    net->links = link;
    net->stats.n_links++;
    *out = &link->base;
    return 0;
}

static void unlist(struct mpi_net *net, struct side *side)
{
    struct side **p = &net->listed;
    while (*p && *p != side)
        p = &(*p)->next;
    if (*p)
        *p = side->next;
    for (net->listed_end = &net->listed; *net->listed_end;)
        net->listed_end = &(*net->listed_end)->next;
}

static void unlink_it(struct ku_net_link *base, bool has_failed)
{
    struct mpi_link *link = (struct mpi_link *)(void *)base;
    if (!link)
        return;
    struct mpi_net *net = net_of(&link->send);
    KU_ASSERT(has_failed || (!link->send.pending.head && !link->recv.pending.head));
    KU_ASSERT(has_failed || (link->send.n_ops == 0 && link->recv.n_ops == 0));
    drop_ops(link);
    compact(net);
    unlist(net, &link->send);
    unlist(net, &link->recv);
    if (link->prev)
        link->prev->next = link->next;
    else
        net->links = link->next;
    if (link->next)
        link->next->prev = link->prev;
    net->stats.n_links--;
    if (net->base.broken == &link->base)
        net->base.broken = NULL;
    ku_free(link);
}

static int enqueue(struct side *side, struct ku_net_req *req)
{
    if (side->link->why.status)
        return ku_err_put(&side->link->why);
    if (is_closed(side))
        return KU_ERR(KUMI_EMISMATCH,
                      "mpi: rank %d: an earlier message on this link was not the expected one",
                      side->link->base.rank);
    ku_net_post(&side->pending, req);
    if (!side->head_at)
        side->head_at = req;
    if (!side->at)
        side->at = req;
    list(side);
    return 0;
}

static int send_it(struct ku_net_link *link, struct ku_net_req *req)
{
    KU_ASSERT(link->way != KU_NET_IN);
    return enqueue(&((struct mpi_link *)(void *)link)->send, req);
}

static int recv_it(struct ku_net_link *link, struct ku_net_req *req)
{
    KU_ASSERT(link->way != KU_NET_OUT);
    return enqueue(&((struct mpi_link *)(void *)link)->recv, req);
}

/* ---- The network ---- */

static void free_net(struct mpi_net *net)
{
    ku_free(net->requests);
    ku_free(net->op);
    ku_free(net->done);
    ku_free(net->scratch);
    ku_free(net);
}

int ku_mpi_open(const struct ku_mpi_table *table, struct ku_job *job, struct ku_net **out)
{
    const struct ku_mpi_place place = {job->launcher, job->rank, job->n};
    KU_ASSERT(table->request_bytes > 0 && table->scratch_bytes > 0);
    struct mpi_net *net = ku_calloc(1, sizeof *net);
    if (!net)
        return KUMI_ENOMEM;
    int status = ku_mpi_start(table, &place, OPEN_TIMEOUT_NS);
    if (status < 0) {
        free_net(net);
        return status;
    }
    table->process->phase = KU_MPI_OPEN;
    net->base.ops = strcmp(table->make, "mpich") == 0 ? &ku_net_mpich : &ku_net_openmpi;
    net->base.full_rate_bytes = KU_NET_MPI_FULL_RATE_BYTES;
    net->table = table;
    net->rank = job->rank;
    net->n = job->n;
    net->listed_end = &net->listed;
    *out = &net->base;
    return 0;
}

/*
 * MPI may still hold small messages whose requests are done. MPI_Finalize at the end of the process
 * delivers them; these calls do so earlier, since a process may go on for long.
 */
static void flush(struct mpi_net *net)
{
    int n_done;
    for (int i = 0; i < 64 && net->has_sent && !net->is_dead; i++)
        if (net->table->test(net->requests, 0, net->scratch, net->done, &n_done))
            return;
}

static void close_it(struct ku_net *base, bool has_failed)
{
    struct mpi_net *net = (struct mpi_net *)(void *)base;
    if (!net)
        return;
    for (struct mpi_link *link = net->links; link; link = link->next)
        has_failed |= link->why.status < 0 || link->is_mismatched;
    while (net->links)
        unlink_it(&net->links->base, has_failed);
    if (!has_failed)
        flush(net);
    net->table->process->phase = has_failed ? KU_MPI_FAILED : KU_MPI_CLOSED;
    free_net(net);
}

static int no_descriptors(struct ku_net *net, struct pollfd *fds, int cap)
{
    (void)net, (void)fds, (void)cap;
    return -1;
}

static void stats(const struct ku_net *base, struct ku_net_stats *out)
{
    *out = ((const struct mpi_net *)(const void *)base)->stats;
}

static void describe(const struct ku_net *base, char *text, size_t cap)
{
    const struct mpi_net *net = (const struct mpi_net *)(const void *)base;
    /* Variables by which the user chose among the library's transports */
    static const char *const choice[] = {"OMPI_MCA_pml", "OMPI_MCA_btl",    "OMPI_MCA_mtl",
                                         "UCX_TLS",      "UCX_NET_DEVICES", "FI_PROVIDER"};
    char version[96], fabric[96], rdma[64];
    net->table->library(version, sizeof version);
    version[strcspn(version, ",")] = '\0'; /* what follows is its package, ident and revision */
    net->table->fabric(fabric, sizeof fabric);
    ku_mpi_rdma("/proc/self/fd", rdma, sizeof rdma);
    size_t len = (size_t)snprintf(text, cap, "mpi (%s): %s%s%s; RDMA %s", net->table->make, version,
                                  fabric[0] ? "; " : "", fabric, rdma);
    for (size_t i = 0; i < sizeof choice / sizeof *choice && len < cap; i++)
        if (ku_env(choice[i]))
            len += (size_t)snprintf(text + len, cap - len, "; %s %s", choice[i], ku_env(choice[i]));
}

static int open_openmpi(struct ku_job *job, struct ku_net **net)
{
    const struct ku_mpi_table *table;
    KU_TRY(ku_mpi_load(KU_MPI_OPENMPI, &table));
    return ku_mpi_open(table, job, net);
}

static int open_mpich(struct ku_job *job, struct ku_net **net)
{
    const struct ku_mpi_table *table;
    KU_TRY(ku_mpi_load(KU_MPI_MPICH, &table));
    return ku_mpi_open(table, job, net);
}

#define OPS_OF(name_, open_)                                                                       \
    {                                                                                              \
        .name = name_, .ops_bytes = sizeof(struct ku_net_ops), .abi = KU_NET_ABI, .open = open_,   \
        .close = close_it, .link = make_link, .unlink = unlink_it, .send = send_it,                \
        .recv = recv_it, .progress = progress, .poll = no_descriptors, .stats = stats,             \
        .describe = describe                                                                       \
    }
const struct ku_net_ops ku_net_openmpi = OPS_OF("openmpi", open_openmpi);
const struct ku_net_ops ku_net_mpich = OPS_OF("mpich", open_mpich);
