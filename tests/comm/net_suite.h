/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_COMM_NET_SUITE_H
#define TESTS_COMM_NET_SUITE_H

/*
 * The conformance suite of networks (comm/net.h). Every rank runs the bodies of net_bodies, over a
 * network that it has opened, s->net. A new engine opens its own and skips those of is_tcp.
 */
#include "net_mesh.h"

static const size_t net_sizes[] = {0,    1,    8,    47,   48,    49,    63,     1000,
                                   1999, 2000, 2001, 2048, 65536, 70001, 262145, (4 << 20) + 3};
enum { N_SIZES = sizeof net_sizes / sizeof *net_sizes };

/* ThreadSanitizer takes 30 times as long for a byte. */
#if defined(__SANITIZE_THREAD__)
enum { NET_IS_SLOW = 1 };
#else
enum { NET_IS_SLOW = 0 };
#endif

/* Of many ranks, the sizes up to 70,001: memory and time grow with their square. */
static inline int net_n_sizes(const struct side *s)
{
    return s->n > 2 || NET_IS_SLOW ? N_SIZES - 2 : N_SIZES;
}

static inline uint64_t net_key_of(int from, int to, int slot, int i)
{
    return (uint64_t)(from * 1000003 + to * 10007 + slot * 101 + i * 7 + 1);
}

/* Both directions of a link at once, one message of every size. */
struct net_exchange {
    struct ku_net_link *link;
    struct ku_net_req out[N_SIZES], in[N_SIZES];
    unsigned char *out_data[N_SIZES], *in_data[N_SIZES];
};

static inline int net_post_exchange(struct side *s, struct net_exchange *e, int peer, int slot)
{
    const struct ku_net_ops *ops = s->net->ops;
    NET_TRY(
        ops->link(s->net, (uint32_t)slot, (uint64_t)slot + 5, peer, KU_NET_BOTH_WAYS, &e->link));
    NET_CHECK(e->link->rank == peer && e->link->slot == (uint32_t)slot && e->link->net == s->net);
    for (int i = 0; i < net_n_sizes(s); i++) {
        uint64_t out = net_key_of(s->rank, peer, slot, i), in = net_key_of(peer, s->rank, slot, i);
        e->out_data[i] = malloc(net_sizes[i] + 1);
        e->in_data[i] = calloc(1, net_sizes[i] + 1);
        fill(e->out_data[i], net_sizes[i], out);
        make_request(&e->out[i], e->out_data[i], net_sizes[i], out);
        make_request(&e->in[i], e->in_data[i], net_sizes[i], in);
        NET_TRY(ops->send(e->link, &e->out[i]));
        NET_TRY(ops->recv(e->link, &e->in[i]));
        NET_CHECK(e->in[i].head.bytes == net_sizes[i] && !e->in[i].is_done && !e->out[i].is_done);
    }
    return 0;
}

static inline int net_check_exchange(struct side *s, struct net_exchange *e, int slot)
{
    for (int i = 0; i < net_n_sizes(s); i++) {
        NET_TRY(net_wait(s, &e->in[i]));
        NET_CHECK(
            is_filled(e->in_data[i], net_sizes[i], net_key_of(e->link->rank, s->rank, slot, i)));
        NET_CHECK(memcmp(&e->in[i].came, &e->in[i].head, sizeof e->in[i].came) == 0);
    }
    for (int i = 0; i < net_n_sizes(s); i++) {
        NET_TRY(net_wait(s, &e->out[i]));
        free(e->out_data[i]);
        free(e->in_data[i]);
    }
    s->net->ops->unlink(e->link, false);
    return 0;
}

/* All ranks to all ranks, on two slots. */
static inline int net_all_to_all(struct side *s)
{
    enum { SLOTS = 2 };
    struct net_exchange *e = calloc(MESH_MAX * SLOTS, sizeof *e);
    struct ku_net_stats stats;
    const uint64_t n_messages = (uint64_t)((s->n - 1) * SLOTS * net_n_sizes(s));
    uint64_t n_bytes = 0;
    for (int i = 0; i < net_n_sizes(s); i++)
        n_bytes += net_sizes[i] * (uint64_t)(s->n - 1) * SLOTS;
    for (int i = 0; i < s->n * SLOTS; i++)
        if (i / SLOTS != s->rank)
            NET_TRY(net_post_exchange(s, &e[i], i / SLOTS, i % SLOTS));
    s->net->ops->stats(s->net, &stats);
    NET_CHECK(stats.n_links == (s->n - 1) * SLOTS);
    for (int i = 0; i < s->n * SLOTS; i++)
        if (i / SLOTS != s->rank)
            NET_TRY(net_check_exchange(s, &e[i], i % SLOTS));
    s->net->ops->stats(s->net, &stats);
    NET_CHECK(stats.n_links == 0);
    NET_CHECK(stats.n_sent == n_messages && stats.n_received == n_messages);
    NET_CHECK(stats.sent_bytes == n_bytes && stats.received_bytes == n_bytes);
    free(e);
    return 0;
}

/* Many requests at once, more than one system call takes; and rounds of a few in order. */
static inline int net_outstanding(struct side *s)
{
    enum { N = 64, ROUNDS = NET_IS_SLOW ? 5 : 20 };
    static const int bytes_of[] = {0, 8, 100, 3000, 20000};
    struct ku_net_req out[N], in[N];
    unsigned char *data = malloc(2 * N * 20000);
    struct ku_net_link *link;
    NET_TRY(s->net->ops->link(s->net, 3, 9, 1 - s->rank, KU_NET_BOTH_WAYS, &link));
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < N; i++) {
            size_t bytes = (size_t)bytes_of[(i + round) % 5];
            unsigned char *at = data + (size_t)i * 40000;
            uint64_t key = (uint64_t)(round * N + i);
            fill(at, bytes, key * 2 + (uint64_t)s->rank);
            make_request(&out[i], at, bytes, key);
            make_request(&in[i], at + 20000, bytes, key);
            NET_TRY(s->net->ops->recv(link, &in[i]));
            NET_TRY(s->net->ops->send(link, &out[i]));
        }
        /* The last one first: all before it have ended. */
        NET_TRY(net_wait(s, &in[N - 1]));
        NET_TRY(net_wait(s, &out[N - 1]));
        for (int i = 0; i < N; i++) {
            NET_CHECK(in[i].is_done && in[i].status == 0 && out[i].is_done && out[i].status == 0);
            NET_CHECK(is_filled(data + (size_t)i * 40000 + 20000, (size_t)in[i].head.bytes,
                                (uint64_t)(round * N + i) * 2 + (uint64_t)(1 - s->rank)));
        }
    }
    free(data);
    s->net->ops->unlink(link, false);
    return 0;
}

/* The receiver posts long after the sender, then the sender long after the receiver. */
static inline int net_late(struct side *s)
{
    enum { BYTES = NET_IS_SLOW ? 100000 : 3 << 20 };
    unsigned char *data = malloc(BYTES);
    struct ku_net_req r[2];
    struct ku_net_link *link;
    NET_TRY(s->net->ops->link(s->net, 0, 1, 1 - s->rank, KU_NET_BOTH_WAYS, &link));
    for (int round = 0; round < 4; round++) {
        const bool sends = (round + s->rank) % 2, is_late = (round / 2 + s->rank) % 2;
        const uint64_t key = (uint64_t)round;
        if (is_late)
            usleep(30000);
        fill(data, BYTES, sends ? key : 77);
        make_request(&r[0], data, BYTES, key);
        make_request(&r[1], NULL, 0, key + 100);
        NET_TRY((sends ? s->net->ops->send : s->net->ops->recv)(link, &r[0]));
        NET_TRY((sends ? s->net->ops->recv : s->net->ops->send)(link, &r[1]));
        NET_TRY(net_wait(s, &r[0]));
        NET_TRY(net_wait(s, &r[1]));
        NET_CHECK(is_filled(data, BYTES, key));
    }
    free(data);
    s->net->ops->unlink(link, false);
    return 0;
}

/*
 * The two streams of a slot: what rank 0 receives first on one comes after what rank 1 sends on the
 * other, as where a receive is pending while a collective runs.
 */
static inline int net_two_streams(struct side *s)
{
    enum { STREAMS = 2, BYTES = 5000 };
    for (int round = 0; round < 4; round++) {
        const size_t bytes = round % 2 ? BYTES : 100;
        const int first = round / 2;
        struct ku_net_link *link[STREAMS];
        struct ku_net_req r[STREAMS];
        unsigned char data[STREAMS][BYTES];
        for (int i = 0; i < STREAMS; i++) {
            const uint64_t key = (uint64_t)(round * STREAMS + i);
            NET_TRY(s->net->ops->link(s->net, 2, key, 1 - s->rank, KU_NET_BOTH_WAYS, &link[i]));
            fill(data[i], bytes, s->rank ? key : 77);
            make_request(&r[i], data[i], bytes, key);
        }
        for (int i = 0; i < STREAMS; i++) {
            const int at = (i + first + s->rank) % STREAMS;
            bool has_moved = false;
            NET_TRY((s->rank ? s->net->ops->send : s->net->ops->recv)(link[at], &r[at]));
            NET_TRY(s->net->ops->progress(s->net, -1, &has_moved));
        }
        for (int i = 0; i < STREAMS; i++)
            NET_TRY(net_wait(s, &r[i]));
        for (int i = 0; i < STREAMS; i++) {
            NET_CHECK(is_filled(data[i], bytes, (uint64_t)(round * STREAMS + i)));
            s->net->ops->unlink(link[i], false);
        }
    }
    return 0;
}

/*
 * A one-way stream in both directions: a small message is sent before the receiver has a use for
 * the stream, as an eager message.
 */
static inline int net_one_way(struct side *s)
{
    const struct ku_net_ops *ops = s->net->ops;
    struct ku_net_link *both, *out, *in;
    NET_TRY(ops->link(s->net, 3, 8, 1 - s->rank, KU_NET_BOTH_WAYS, &both));
    NET_TRY(ops->link(s->net, 3, 9, 1 - s->rank, KU_NET_OUT, &out));
    NET_TRY(ops->link(s->net, 3, 9, 1 - s->rank, KU_NET_IN, &in));
    for (int sender = 1; sender >= 0; sender--) {
        const bool sends = s->rank == sender;
        uint64_t number = sends ? 77 + (uint64_t)sender : 0;
        struct ku_net_req message, after;
        make_request(&message, &number, sizeof number, (uint64_t)sender);
        make_request(&after, NULL, 0, (uint64_t)sender + 2);
        if (sends) {
            NET_TRY(ops->send(out, &message));
            NET_TRY(net_wait(s, &message));
        }
        NET_TRY((sends ? ops->send : ops->recv)(both, &after));
        NET_TRY(net_wait(s, &after));
        if (!sends) {
            NET_TRY(ops->recv(in, &message));
            NET_TRY(net_wait(s, &message));
        }
        NET_CHECK(number == 77 + (uint64_t)sender);
    }
    ops->unlink(both, false);
    ops->unlink(out, false);
    ops->unlink(in, false);
    return 0;
}

/* Ranks asleep in poll are woken by a message, and by the connection that it needs. */
static inline int net_wakes(struct side *s)
{
    uint64_t number = (uint64_t)s->rank;
    struct ku_net_req r;
    struct ku_net_link *link;
    for (int round = 0; round < 4; round++) {
        const bool sends = (round + s->rank) % 2;
        if (round % 2 == 0)
            NET_TRY(s->net->ops->link(s->net, 1, (uint64_t)round, 1 - s->rank, KU_NET_BOTH_WAYS,
                                      &link));
        make_request(&r, &number, sizeof number, (uint64_t)round);
        if (sends)
            usleep(20000);
        NET_TRY((sends ? s->net->ops->send : s->net->ops->recv)(link, &r));
        bool has_moved = true;
        while (!r.is_done) {
            struct pollfd fds[4];
            has_moved = false;
            NET_TRY(s->net->ops->progress(s->net, -1, &has_moved));
            if (has_moved)
                continue;
            int n = s->net->ops->poll(s->net, fds, 4);
            NET_CHECK(n <= 4);
            if (n < 0)
                usleep(200);
            else
                NET_CHECK(poll(fds, (nfds_t)n, (int)(NET_LIMIT_NS / 1000000)) > 0);
        }
        NET_CHECK(number == (uint64_t)(round + 1) % 2 || round > 0);
        if (round % 2)
            s->net->ops->unlink(link, false);
    }
    return 0;
}

/* A message that differs in any field is stored as far as its header; other links go on. */
static inline int net_mismatch(struct side *s)
{
    for (uint32_t field = 0; field < 7; field++) {
        struct ku_net_link *bad, *good;
        struct ku_net_req r, next, fine;
        unsigned char data[5000], more[10] = {0};
        fill(data, sizeof data, 1);
        NET_TRY(s->net->ops->link(s->net, 1, field, 1 - s->rank, KU_NET_BOTH_WAYS, &bad));
        NET_TRY(s->net->ops->link(s->net, 2, field, 1 - s->rank, KU_NET_BOTH_WAYS, &good));
        make_request(&r, data, 4000, 1);
        make_request(&next, more, sizeof more, 2);
        make_request(&fine, more, sizeof more, 3);
        NET_TRY((s->rank ? s->net->ops->send : s->net->ops->recv)(good, &fine));
        if (s->rank == 1) {
            struct ku_net_head *h = &r.head;
            uint64_t *word[] = {&h->seq, &h->what, &h->count, &h->extra};
            uint32_t *half[] = {&h->stage, &h->chunk};
            if (field < 4)
                ++*word[field];
            else if (field < 6)
                half[field - 4][0] ^= 1u << 31;
            else
                make_request(&r, data, 3999, 1);
            r.head.count = field == 2 ? 4001 : 4000;
            NET_TRY(s->net->ops->send(bad, &r));
            NET_TRY(s->net->ops->send(bad, &next));
            NET_TRY(net_wait(s, &r));
            NET_TRY(net_wait(s, &fine));
            NET_TRY(net_wait(s, &next));
        } else {
            memset(data, 1, sizeof data);
            NET_TRY(s->net->ops->recv(bad, &r));
            NET_TRY(s->net->ops->recv(bad, &next));
            NET_CHECK(net_wait(s, &r) == KUMI_EMISMATCH && r.is_done);
            NET_CHECK(memcmp(&r.came, &r.head, sizeof r.came) != 0);
            NET_CHECK(r.head.bytes == 4000 && r.came.bytes == (field == 6 ? 3999 : 4000));
            for (size_t i = 0; i < sizeof data; i++)
                NET_CHECK(data[i] == 1);
            NET_TRY(net_wait(s, &fine));
            NET_CHECK(!next.is_done);
            NET_CHECK(s->net->ops->recv(bad, &r) == KUMI_EMISMATCH);
            NET_CHECK(strstr(ku_err_get()->text, "rank 1 on host h0: an earlier message"));
        }
        s->net->ops->unlink(bad, true);
        s->net->ops->unlink(good, false);
    }
    return 0;
}

/* The peer of rank 0 goes away, in order or not. */
static inline int net_leaves(struct side *s)
{
    struct ku_net_link *link[2];
    struct ku_net_req r, never, out;
    static unsigned char data[1 << 20];
    char text[128] = "";
    bool has_moved = false;
    s->net->ops->describe(s->net, text, sizeof text);
    NET_CHECK(strstr(text, "tcp"));
    NET_TRY(s->net->ops->link(s->net, 1, 1, s->rank ^ 1, KU_NET_BOTH_WAYS, &link[0]));
    NET_TRY(s->net->ops->link(s->net, 2, 1, s->rank ^ 1, KU_NET_BOTH_WAYS, &link[1]));
    make_request(&r, s->rank ? data : data + 100, 100, 4);
    make_request(&never, data + 200, 100, 5);
    make_request(&out, data, sizeof data, 6);
    NET_TRY((s->rank ? s->net->ops->send : s->net->ops->recv)(link[0], &r));
    if (s->rank) {
        NET_TRY(net_wait(s, &r));
        return 0; /* close frees both links */
    }
    NET_TRY(s->net->ops->recv(link[0], &never));
    NET_TRY(net_wait(s, &r));
    NET_CHECK(net_wait(s, &never) == KUMI_EPEER);
    NET_CHECK(!strcmp(ku_err_get()->text, "rank 1 on host h0: connection closed"));
    NET_CHECK(s->net->broken == link[0]);
    KU_IGNORE(KU_ERR(KUMI_EINVAL, "another"), "the record is another one now");
    NET_CHECK(s->net->ops->send(link[0], &out) == KUMI_EPEER);
    NET_CHECK(!strcmp(ku_err_get()->text, "rank 1 on host h0: connection closed"));
    NET_TRY(s->net->ops->progress(s->net, -1, &has_moved));
    NET_CHECK(s->net->ops->poll(s->net, NULL, 0) <= 1);
    s->net->ops->unlink(link[0], false);
    NET_CHECK(!s->net->broken);
    return 0;
}

static const struct {
    const char *name;
    net_body *body;
    int n;
    bool is_tcp; /* expects what tcp alone promises: payloads of a mismatch, ends of connections */
} net_bodies[] = {{"all_to_all", net_all_to_all, 2, false},
                  {"all_to_all", net_all_to_all, 5, false},
                  {"outstanding", net_outstanding, 2, false},
                  {"late", net_late, 2, false},
                  {"two_streams", net_two_streams, 2, false},
                  {"wakes", net_wakes, 2, false},
                  {"one_way", net_one_way, 2, false},
                  {"mismatch", net_mismatch, 2, true},
                  {"leaves", net_leaves, 2, true}};
enum { N_NET_BODIES = sizeof net_bodies / sizeof *net_bodies };

#endif
