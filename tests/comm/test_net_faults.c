/* SPDX-License-Identifier: Apache-2.0 */
/* links: comm job tensor base */
/* tsan */
/* The engine tcp against a peer whose bytes the test writes itself, and its failures: connections
 * that end, that cannot be made or that belong to no link; the n-th call or allocation; chaos. */
#include "net_mesh.h"

#include "base/fault.h"
#include "base/os/stream.h"

#include <errno.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "sample.h"

/* A network of a rank whose connections the test makes: dial[i] is what the i-th dial returns,
 * came[i] the i-th connection that has arrived. */
struct raw {
    struct ku_net *net;
    int dial[4], n_dialled;
    struct ku_dial_head head[8];
    int came[8], n_came, n_taken;
};

static int raw_dial(void *ctx, const struct ku_dial_head *head, int64_t timeout_ns, int *fd)
{
    struct raw *raw = ctx;
    int given = raw->dial[raw->n_dialled++];
    if (given < 0)
        return KU_ERR(given, "test: rank %d is not reachable within %d s", head->to,
                      (int)(timeout_ns / 1000000000));
    *fd = given;
    return 0;
}

static int raw_take(void *ctx, struct ku_dial_head *head, int *fd)
{
    struct raw *raw = ctx;
    if (raw->n_taken == raw->n_came)
        return 0;
    *head = raw->head[raw->n_taken];
    *fd = raw->came[raw->n_taken++];
    return 1;
}

static void raw_open(struct raw *raw, int rank)
{
    struct ku_tcp_wires wires = {.ctx = raw, .dial = raw_dial, .take = raw_take, .doorbell = -1};
    *raw = (struct raw){0};
    assert_int_equal(ku_tcp_open(&wires, rank, 4, &raw->net), 0);
}

/* n connections come, with these heads; peer: their other ends. */
static void bring(struct raw *raw, const struct ku_dial_head *heads, int n, int *peer)
{
    for (int i = 0; i < n; i++) {
        int pair[2];
        assert_int_equal(make_pair(true, pair), 0);
        raw->came[i] = pair[0];
        peer[i] = pair[1];
        raw->head[i] = heads[i];
    }
    raw->n_came = n;
}

/* Progress until the request ends or a link breaks. */
static int raw_run(struct raw *raw, const struct ku_net_req *r)
{
    int64_t until = ku_clock_ns() + NET_LIMIT_NS;
    while (!r->is_done) {
        bool has_moved = false;
        int status = raw->net->ops->progress(raw->net, -1, &has_moved);
        if (status < 0)
            return status;
        assert_true(ku_clock_ns() < until);
        if (!has_moved && !r->is_done)
            usleep(100);
    }
    return r->status;
}

/* A link from rank 0 to rank 1 whose other end is *peer */
static struct ku_net_link *raw_link(struct raw *raw, bool is_tcp, int *peer)
{
    struct ku_net_link *link;
    int pair[2];
    assert_int_equal(make_pair(is_tcp, pair), 0);
    raw_open(raw, 0);
    raw->dial[0] = pair[0];
    *peer = pair[1];
    assert_int_equal(raw->net->ops->link(raw->net, 0, 0, 1, KU_NET_BOTH_WAYS, &link), 0);
    return link;
}

static void write_all(int fd, const void *at, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = write(fd, (const char *)at + done, bytes - done);
        assert_true(n > 0);
        done += (size_t)n;
    }
}

static void test_wire(void **state)
{
    enum { BYTES = 2000000 };
    unsigned char *data = malloc(BYTES), *got = malloc(BYTES + 96);
    struct ku_net_req r[2];
    struct raw raw;
    int peer, n_before = n_descriptors();
    size_t done = 0;
    (void)state;
    struct ku_net_link *link = raw_link(&raw, true, &peer);
    fill(data, BYTES, 9);
    make_request(&r[0], data, BYTES, 11);
    make_request(&r[1], NULL, 0, 12);
    assert_int_equal(raw.net->ops->send(link, &r[0]), 0);
    assert_int_equal(raw.net->ops->send(link, &r[1]), 0);
    assert_int_equal(raw.n_dialled, 0); /* sends only post */
    /* The peer reads slowly, and no call of progress moves more than its budget. */
    for (int64_t budget = 1; done < BYTES + 96; budget = budget * 5 / 4 + 1) {
        bool has_moved = false;
        assert_int_equal(raw.net->ops->progress(raw.net, budget, &has_moved), 0);
        for (ssize_t n; (n = recv(peer, got + done, BYTES + 96 - done, MSG_DONTWAIT)) > 0;) {
            done += (size_t)n;
            budget -= n;
        }
        assert_true(has_moved || done > 0);
        budget = budget < 1 ? 1 : budget;
    }
    assert_true(r[0].is_done && r[1].is_done);
    assert_memory_equal(got, &r[0].head, 48);
    assert_int_equal(((struct ku_net_head *)(void *)got)->bytes, BYTES);
    assert_memory_equal(got + 48, data, BYTES);
    assert_memory_equal(got + 48 + BYTES, &r[1].head, 48);
    raw.net->ops->close(raw.net, false);
    assert_int_equal(recv(peer, got, 1, 0), 0);
    close(peer);
    free(data);
    free(got);
    assert_int_equal(n_descriptors(), n_before);
}

/* A call of progress moves at most its budget. */
static void test_budget(void **state)
{
    static unsigned char data[300000];
    struct ku_net_req r;
    struct raw raw;
    int peer;
    (void)state;
    struct ku_net_link *link = raw_link(&raw, true, &peer);
    make_request(&r, data, sizeof data, 11);
    assert_int_equal(raw.net->ops->send(link, &r), 0);
    size_t before = 0;
    for (int i = 0; !r.is_done; i++) {
        const int64_t budget[] = {0, 1, 47, 2, 5000, 290000};
        bool has_moved = false;
        assert_int_equal(raw.net->ops->progress(raw.net, budget[i % 6], &has_moved), 0);
        assert_true((int64_t)(r.moved - before) <= budget[i % 6]);
        assert_int_equal(has_moved, r.moved > before);
        before = r.moved;
        for (ssize_t n = 1; n > 0;)
            n = recv(peer, data, sizeof data, MSG_DONTWAIT);
    }
    raw.net->ops->close(raw.net, false);
    close(peer);
}

/* Requests end exactly when their last byte is there, and nothing is read without a request. */
static void test_byte_by_byte(void **state)
{
    enum { N = 4 };
    static const size_t bytes_of[N] = {0, 10, 0, 3};
    unsigned char data[N][10] = {{0}}, stream[N * 48 + 13];
    struct ku_net_req r[N];
    size_t end[N], n_bytes = 0, at = 0;
    struct raw raw;
    int peer;
    (void)state;
    struct ku_net_link *link = raw_link(&raw, true, &peer);
    for (int i = 0; i < N; i++) {
        make_request(&r[i], data[i], bytes_of[i], (uint64_t)i);
        assert_int_equal(raw.net->ops->recv(link, &r[i]), 0);
        memcpy(stream + n_bytes, &r[i].head, 48);
        fill(stream + n_bytes + 48, bytes_of[i], (uint64_t)i);
        n_bytes += 48 + bytes_of[i];
        end[i] = n_bytes;
    }
    for (; at < n_bytes; at++) {
        for (int i = 0; i < N; i++)
            assert_int_equal(r[i].is_done, at >= end[i]);
        write_all(peer, stream + at, 1);
        bool has_moved = false;
        for (int64_t from = ku_clock_ns(); !has_moved && ku_clock_ns() - from < NET_LIMIT_NS;)
            assert_int_equal(raw.net->ops->progress(raw.net, -1, &has_moved), 0);
    }
    for (int i = 0; i < N; i++) {
        assert_true(r[i].is_done && r[i].status == 0);
        assert_true(is_filled(data[i], bytes_of[i], (uint64_t)i));
    }
    write_all(peer, stream, n_bytes);
    bool has_moved = false;
    assert_int_equal(raw.net->ops->progress(raw.net, -1, &has_moved), 0);
    assert_false(has_moved);
    assert_int_equal(recv(raw.dial[0], stream, sizeof stream, MSG_PEEK), n_bytes);
    raw.net->ops->close(raw.net, false);
    close(peer);
}

/* The peer ends in the middle of a header or a payload, in order or by a reset. */
static void test_broken(void **state)
{
    static const size_t cuts[] = {0, 1, 47, 48, 49, 147};
    static unsigned char data[4 << 20];
    (void)state;
    for (int form = 0; form < 6; form++) /* Unix pair, TCP, reset; each also with a send pending */
        for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
            struct ku_net_req in[2], out;
            struct raw raw;
            unsigned char stream[148];
            int peer, n_before = n_descriptors();
            struct ku_net_link *link = raw_link(&raw, form % 3 > 0, &peer);
            make_request(&in[0], data, 100, 1);
            make_request(&in[1], data, 100, 2);
            make_request(&out, data, sizeof data, 3);
            assert_int_equal(raw.net->ops->recv(link, &in[0]), 0);
            assert_int_equal(raw.net->ops->recv(link, &in[1]), 0);
            if (form >= 3)
                assert_int_equal(raw.net->ops->send(link, &out), 0);
            memcpy(stream, &in[0].head, 48);
            write_all(peer, stream, cuts[c]);
            if (form % 3 == 2) {
                struct linger hard = {.l_onoff = 1};
                assert_int_equal(setsockopt(peer, SOL_SOCKET, SO_LINGER, &hard, sizeof hard), 0);
            }
            close(peer);
            assert_int_equal(raw_run(&raw, &in[1]), KUMI_EPEER);
            assert_string_equal(ku_err_get()->text, "rank 1: connection closed");
            assert_true(in[0].is_done && in[1].is_done && in[0].status == KUMI_EPEER);
            assert_int_equal(in[1].status, KUMI_EPEER);
            assert_true(form < 3 || (out.is_done && out.status == KUMI_EPEER));
            assert_int_equal(raw.net->ops->recv(link, &in[0]), KUMI_EPEER);
            raw.net->ops->unlink(link, false);
            raw.net->ops->unlink(NULL, false);
            raw.net->ops->close(raw.net, false);
            assert_int_equal(n_descriptors(), n_before);
        }
    ku_net_tcp.close(NULL, false);
}

/* One link cannot be made; its error is repeated, and the other link works. */
static void test_dial_fails(void **state)
{
    struct ku_net_link *bad, *good;
    struct ku_net_req r[2], more;
    struct raw raw;
    int pair[2];
    bool has_moved = false;
    (void)state;
    raw_open(&raw, 0);
    assert_int_equal(make_pair(true, pair), 0);
    raw.dial[0] = KUMI_ETIMEDOUT;
    raw.dial[1] = pair[0];
    assert_int_equal(raw.net->ops->link(raw.net, 0, 0, 2, KU_NET_BOTH_WAYS, &bad), 0);
    assert_int_equal(raw.net->ops->link(raw.net, 0, 0, 3, KU_NET_BOTH_WAYS, &good), 0);
    make_request(&r[0], NULL, 0, 1);
    make_request(&r[1], NULL, 0, 1);
    assert_int_equal(raw.net->ops->recv(bad, &r[0]), 0);
    assert_int_equal(raw.net->ops->send(good, &r[1]), 0);
    assert_int_equal(raw.net->ops->progress(raw.net, -1, &has_moved), KUMI_ETIMEDOUT);
    assert_true(has_moved && r[0].is_done && r[0].status == KUMI_ETIMEDOUT);
    assert_string_equal(ku_err_get()->text, "test: rank 2 is not reachable within 10 s");
    assert_int_equal(raw_run(&raw, &r[1]), 0);
    KU_IGNORE(KU_ERR(KUMI_EINVAL, "another"), "the record is another one now");
    assert_int_equal(raw.net->ops->send(bad, &more), KUMI_ETIMEDOUT);
    assert_string_equal(ku_err_get()->text, "test: rank 2 is not reachable within 10 s");
    assert_int_equal(raw.n_dialled, 2);
    raw.net->ops->close(raw.net, false);
    close(pair[1]);
}

/* What arrives: for a link, for a stream that is linked later, twice, and for no link at all. */
static void test_arrivals(void **state)
{
    static const struct ku_dial_head heads[] = {
        {.from = 0, .to = 2, .slot = 1, .stream = 5}, /* linked */
        {.from = 0, .to = 2, .slot = 1, .stream = 5}, /* twice */
        {.from = 0, .to = 2, .slot = 1, .stream = 6}, /* linked later */
        {.from = 0, .to = 2, .slot = 1, .stream = 6}, /* twice */
        {.from = 0, .to = 1, .slot = 1, .stream = 6}, /* another rank */
        {.from = 3, .to = 2, .slot = 1, .stream = 6}, /* a rank that does not dial */
        {.from = -1, .to = 2, .slot = 1, .stream = 6},
        {.from = 0, .to = 2, .slot = 1, .stream = 6, .lane = 2},
    };
    enum { N = sizeof heads / sizeof *heads };
    static const bool is_used[N] = {true, false, true};
    struct ku_net_link *now, *later;
    struct ku_net_req r[2];
    struct raw raw;
    int peer[N], n_before = n_descriptors();
    bool has_moved = false;
    struct pollfd fds[4];
    (void)state;
    raw_open(&raw, 2);
    assert_int_equal(raw.net->ops->link(raw.net, 1, 5, 0, KU_NET_BOTH_WAYS, &now), 0);
    make_request(&r[0], NULL, 0, 1);
    make_request(&r[1], NULL, 0, 2);
    assert_int_equal(raw.net->ops->send(now, &r[0]), 0);
    assert_int_equal(raw.net->ops->progress(raw.net, -1, &has_moved), 0);
    assert_false(has_moved);
    assert_int_equal(raw.net->ops->poll(raw.net, fds, 4),
                     0); /* neither a connection nor a doorbell */
    bring(&raw, heads, N, peer);
    assert_int_equal(raw_run(&raw, &r[0]), 0);
    assert_int_equal(raw.net->ops->link(raw.net, 1, 6, 0, KU_NET_BOTH_WAYS, &later), 0);
    assert_int_equal(raw.net->ops->send(later, &r[1]), 0);
    assert_int_equal(raw_run(&raw, &r[1]), 0);
    for (int i = 0; i < N; i++) {
        char got[100];
        assert_int_equal(recv(peer[i], got, sizeof got, 0), is_used[i] ? 48 : 0);
    }
    raw.net->ops->close(raw.net, false);
    for (int i = 0; i < N; i++)
        close(peer[i]);
    assert_int_equal(n_descriptors(), n_before);
}

/* Of a one-way stream the sender dials, whichever rank is lower; each direction has its own. */
static void test_one_way(void **state)
{
    static const struct ku_dial_head heads[] = {
        {.from = 3, .to = 2, .slot = 1, .stream = 5}, /* the lower rank dials for both ways */
        {.from = 2, .to = 2, .slot = 1, .stream = 5, .lane = 1}, /* itself */
        {.from = 3, .to = 2, .slot = 1, .stream = 5, .lane = 1},
    };
    enum { N = sizeof heads / sizeof *heads };
    struct ku_net_link *out, *in;
    struct ku_net_req r[2];
    struct raw raw;
    int peer[N], dialled[2], n_before = n_descriptors();
    unsigned char got[48];
    (void)state;
    raw_open(&raw, 2);
    assert_int_equal(make_pair(true, dialled), 0);
    raw.dial[0] = dialled[0];
    assert_int_equal(raw.net->ops->link(raw.net, 1, 5, 3, KU_NET_IN, &in), 0);
    assert_int_equal(raw.net->ops->link(raw.net, 1, 5, 0, KU_NET_OUT, &out), 0);
    make_request(&r[0], NULL, 0, 1);
    make_request(&r[1], NULL, 0, 2);
    assert_int_equal(raw.net->ops->recv(in, &r[1]), 0);
    assert_int_equal(raw.net->ops->send(out, &r[0]), 0);
    assert_int_equal(raw_run(&raw, &r[0]), 0);
    assert_int_equal(raw.n_dialled, 1);
    assert_int_equal(recv(dialled[1], got, sizeof got, MSG_WAITALL), sizeof got);
    bring(&raw, heads, N, peer);
    write_all(peer[N - 1], &r[1].head, sizeof r[1].head);
    assert_int_equal(raw_run(&raw, &r[1]), 0);
    for (int i = 0; i < N - 1; i++)
        assert_int_equal(recv(peer[i], got, sizeof got, 0), 0);
    raw.net->ops->close(raw.net, false);
    for (int i = 0; i < N; i++)
        close(peer[i]);
    close(dialled[1]);
    assert_int_equal(n_descriptors(), n_before);
}

/* A rank without a link or a sleep still takes what arrives. */
static void test_early(void **state)
{
    struct raw raw;
    int pair[2];
    bool has_moved = false;
    (void)state;
    raw_open(&raw, 2);
    assert_int_equal(make_pair(true, pair), 0);
    raw.came[0] = pair[0];
    raw.head[0] = (struct ku_dial_head){.from = 1, .to = 2, .slot = 4, .stream = 4};
    raw.n_came = 1;
    for (int i = 0; i < 1000; i++)
        assert_int_equal(raw.net->ops->progress(raw.net, 0, &has_moved), 0);
    assert_int_equal(raw.n_taken, 1);
    raw.net->ops->close(raw.net, false);
    assert_int_equal(recv(pair[1], pair, 1, 0), 0);
    close(pair[1]);
}

static void test_options(void **state)
{
    static const struct {
        int level, option, value;
    } rows[] = {{IPPROTO_TCP, TCP_NODELAY, 1},  {SOL_SOCKET, SO_KEEPALIVE, 1},
                {IPPROTO_TCP, TCP_KEEPIDLE, 1}, {IPPROTO_TCP, TCP_KEEPINTVL, 1},
                {IPPROTO_TCP, TCP_KEEPCNT, 8},  {IPPROTO_TCP, TCP_USER_TIMEOUT, 0}};
    struct ku_net_req r;
    struct raw raw;
    int peer;
    (void)state;
    struct ku_net_link *link = raw_link(&raw, true, &peer);
    make_request(&r, NULL, 0, 1);
    assert_int_equal(raw.net->ops->send(link, &r), 0);
    assert_int_equal(raw_run(&raw, &r), 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int value = -1;
        socklen_t len = sizeof value;
        assert_int_equal(getsockopt(raw.dial[0], rows[i].level, rows[i].option, &value, &len), 0);
        assert_int_equal(value, rows[i].value);
    }
    raw.net->ops->close(raw.net, false);
    close(peer);
}

static bool has_congestion_control(int fd, const char *wanted)
{
    char name[17] = "";
    socklen_t bytes = sizeof name - 1;
    assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &bytes), 0);
    return strcmp(name, wanted) == 0;
}

/* Data connections leave BBR, and no other congestion control; control connections keep BBR too. */
static void test_bursts(void **state)
{
    int pair[2];
    (void)state;
    assert_int_equal(make_pair(true, pair), 0);
    if (setsockopt(pair[0], IPPROTO_TCP, TCP_CONGESTION, "bbr", 3) == 0) {
        assert_int_equal(ku_os_stream_tune(pair[0], 1, 10000, true), 0);
        assert_true(has_congestion_control(pair[0], "bbr"));
        assert_int_equal(ku_os_stream_tune(pair[0], 1, 10000, false), 0);
        assert_true(has_congestion_control(pair[0], "reno"));
    }
    if (setsockopt(pair[1], IPPROTO_TCP, TCP_CONGESTION, "cubic", 5) == 0) {
        assert_int_equal(ku_os_stream_tune(pair[1], 1, 10000, false), 0);
        assert_true(has_congestion_control(pair[1], "cubic"));
    }
    close(pair[0]);
    close(pair[1]);
}

/* A peer that is busy for longer than a dead one is given leaves data unread, and reads it then. */
static void test_unread(void **state)
{
    enum { BYTES = 32 << 20 };
    struct ku_net_req r;
    struct raw raw;
    int peer;
    size_t n_read = 0;
    bool has_moved = false;
    (void)state;
    if (sample_build != SAMPLE_PLAIN) { /* 12 s of waiting */
        skip();
    }
    unsigned char *data = calloc(BYTES, 1);
    struct ku_net_link *link = raw_link(&raw, true, &peer);
    make_request(&r, data, BYTES, 1);
    assert_int_equal(raw.net->ops->send(link, &r), 0);
    for (const int64_t start = ku_clock_ns(); ku_clock_ns() - start < INT64_C(12000000000);) {
        assert_int_equal(raw.net->ops->progress(raw.net, -1, &has_moved), 0);
        usleep(5000);
    }
    assert_false(r.is_done);
    while (n_read < BYTES + 48) {
        const ssize_t n = recv(peer, data, BYTES, MSG_DONTWAIT);
        n_read += n > 0 ? (size_t)n : 0;
        assert_int_equal(raw.net->ops->progress(raw.net, -1, &has_moved), 0);
    }
    assert_int_equal(raw_run(&raw, &r), 0);
    raw.net->ops->close(raw.net, false);
    close(peer);
    free(data);
}

static int set_loopback(bool is_up)
{
    struct ifreq r = {.ifr_name = "lo"};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int status = fd < 0 ? -1 : ioctl(fd, SIOCGIFFLAGS, &r);
    r.ifr_flags = (short)(is_up ? r.ifr_flags | IFF_UP : r.ifr_flags & ~IFF_UP);
    status = status < 0 ? -1 : ioctl(fd, SIOCSIFFLAGS, &r);
    close(fd);
    return status;
}

/* In a network namespace whose only interface goes down: 0; 77: namespaces are not permitted. */
static int lose_network(void)
{
    enum { LINKS = 3, BYTES = 32 << 20 };
    struct ku_net_req r[LINKS + 1];
    struct ku_net_link *link[LINKS];
    struct raw raw;
    int64_t ns[LINKS];
    unsigned char *data = calloc(BYTES, 1);
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET) < 0 || set_loopback(true) < 0)
        return 77;
    raw_open(&raw, 0);
    for (int i = 0; i < LINKS; i++) {
        int pair[2];
        if (tcp_pair(pair) < 0)
            return 77;
        raw.dial[i] = pair[0];
        KU_ASSERT(raw.net->ops->link(raw.net, 0, 0, i + 1, KU_NET_BOTH_WAYS, &link[i]) == 0);
        make_request(&r[i], data, i == 2 ? BYTES : 0, 1);
    }
    bool has_moved = false;
    KU_ASSERT(raw.net->ops->recv(link[0], &r[0]) == 0);
    KU_ASSERT(raw.net->ops->send(link[2], &r[2]) == 0);
    for (int64_t start = ku_clock_ns(); ku_clock_ns() - start < INT64_C(1000000000);) {
        KU_ASSERT(raw.net->ops->progress(raw.net, -1, &has_moved) == 0);
        usleep(1000);
    }
    if (set_loopback(false) < 0)
        return 77;
    make_request(&r[3], NULL, 0, 1);
    KU_ASSERT(raw.net->ops->send(link[1], &r[1]) == 0);
    KU_ASSERT(raw.net->ops->recv(link[1], &r[3]) == 0);
    /* one fails by probes, one by retransmissions, one by probes of its peer's closed window */
    for (int i = 0; i < LINKS; i++) {
        int64_t start = ku_clock_ns();
        int status = 0;
        while (!status && ku_clock_ns() - start < NET_LIMIT_NS) {
            status = raw.net->ops->progress(raw.net, -1, &has_moved);
            usleep(1000);
        }
        ns[i] = ku_clock_ns() - start;
        if (status != KUMI_ETIMEDOUT || !strstr(ku_err_get()->text, "no acknowledgement for 9 s"))
            return printf("status %d: %s\n", status, ku_err_get()->text), 1;
    }
    raw.net->ops->close(raw.net, false);
    free(data);
    return ns[0] < INT64_C(5000000000) ? 2 : 0;
}

static void test_network_lost(void **state)
{
    int status;
    (void)state;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        status = lose_network();
        fflush(NULL);
        _exit(status);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* Both sides in one thread: everything that allocates or calls the system. 0, or a status. */
static int talk(struct mesh *m)
{
    static unsigned char data[2][3000];
    struct side side[2] = {{.mesh = m, .n = 2}, {.mesh = m, .rank = 1, .n = 2}};
    struct ku_net_link *link[2][2] = {{NULL}};
    struct ku_net_req in[2][2], out[2][2];
    int status = 0;
    for (int r = 0; r < 2 && !status; r++)
        status = mesh_open(&side[r]);
    for (int i = 0; i < 4 && !status; i++) {
        const struct side *s = &side[i % 2];
        const struct ku_net_ops *ops = s->net->ops;
        struct ku_net_link **l = &link[i % 2][i / 2];
        make_request(&in[i % 2][i / 2], data[0], sizeof data[0], 1);
        make_request(&out[i % 2][i / 2], data[1], sizeof data[1], 1);
        status = ops->link(s->net, (uint32_t)(i / 2), 0, 1 - i % 2, KU_NET_BOTH_WAYS, l);
        status = status ? status : ops->recv(*l, &in[i % 2][i / 2]);
        status = status ? status : ops->send(*l, &out[i % 2][i / 2]);
    }
    for (int64_t until = ku_clock_ns() + NET_LIMIT_NS; !status;) {
        bool is_done = true, has_moved = false;
        for (int i = 0; i < 4; i++)
            is_done &= in[i % 2][i / 2].is_done && out[i % 2][i / 2].is_done;
        if (is_done)
            break;
        KU_ASSERT(ku_clock_ns() < until);
        for (int r = 0; r < 2 && !status; r++)
            status = side[r].net->ops->progress(side[r].net, -1, &has_moved);
        /* With a fault in the doorbell's call the connection is lost, and its link waits. */
        if (!status && ku_clock_ns() > until - NET_LIMIT_NS + INT64_C(1000000000))
            status = KUMI_ETIMEDOUT;
    }
    for (int r = 0; r < 2; r++)
        if (side[r].net)
            side[r].net->ops->close(side[r].net, status != 0);
    return status;
}

static void test_nth(void **state)
{
    static const struct engine forms[] = {
        {.name = "tcp", .is_tcp = true},
        {.name = "chaos", .is_tcp = true, .chaos = "jitter=1us"},
    };
    static const char *const kinds[] = {"os", "mem"};
    (void)state;
    for (int e = 0; e < 2; e++)
        for (int kind = 0; kind < 2; kind++) {
            int n_ok = 0;
            for (int n = 1; n < 200 && n_ok < 3; n++) {
                int n_before = n_descriptors();
                struct mesh m;
                char spec[32];
                mesh_init(&m, &forms[e], 2);
                snprintf(spec, sizeof spec, "%s:%d", kinds[kind], n);
                ku_fault_set(spec);
                KU_IGNORE(KU_ERR(KUMI_EINVAL, "none"), "a record of before");
                int status = talk(&m);
                ku_fault_set(NULL);
                n_ok = status ? 0 : n_ok + 1;
                if (kind && status)
                    assert_int_equal(status, KUMI_ENOMEM);
                if (status && status != KUMI_ETIMEDOUT)
                    assert_string_not_equal(ku_err_get()->text, "none");
                mesh_fini(&m);
                assert_int_equal(n_descriptors(), n_before);
            }
            assert_int_equal(n_ok, 3);
        }
}

/* Pending requests, of a link with and without a connection, are dropped after a failure. */
static void test_dropped(void **state)
{
    struct ku_net_req r[4];
    struct ku_net_link *link, *other;
    static unsigned char data[8 << 20];
    struct raw raw;
    int peer, n_before = n_descriptors();
    bool has_moved = false;
    (void)state;
    link = raw_link(&raw, true, &peer);
    for (int i = 0; i < 4; i++)
        make_request(&r[i], data, sizeof data, 1);
    assert_int_equal(raw.net->ops->send(link, &r[0]), 0);
    assert_int_equal(raw.net->ops->recv(link, &r[1]), 0);
    assert_int_equal(raw.net->ops->progress(raw.net, -1, &has_moved), 0);
    assert_true(has_moved && !r[0].is_done && r[0].moved > 0);
    assert_int_equal(raw.net->ops->link(raw.net, 0, 0, 3, KU_NET_BOTH_WAYS, &other), 0);
    assert_int_equal(raw.net->ops->recv(other, &r[2]), 0);
    assert_int_equal(raw.net->ops->recv(link, &r[3]), 0);
    raw.net->ops->unlink(link, true);
    raw.net->ops->close(raw.net, true);
    close(peer);
    assert_int_equal(n_descriptors(), n_before);
}

/* Rank 0 sends three messages, rank 1 receives what comes within 30 ms: a mask of them. */
struct outcome {
    const char *chaos;
    int got, status;
};

static int run_chaos(struct side *s)
{
    struct outcome *o = s->arg;
    struct ku_net_req r[3];
    struct ku_net_link *link;
    uint64_t data[3] = {0};
    NET_TRY(s->net->ops->link(s->net, 0, 0, 1 - s->rank, KU_NET_BOTH_WAYS, &link));
    for (int i = 0; i < 3; i++) {
        make_request(&r[i], &data[i], sizeof data[i], (uint64_t)i);
        NET_TRY((s->rank ? s->net->ops->recv : s->net->ops->send)(link, &r[i]));
    }
    if (s->rank == 0)
        NET_TRY(net_wait(s, &r[2]));
    for (int64_t until = ku_clock_ns() + 30000000; ku_clock_ns() < until && !r[2].is_done;) {
        bool has_moved = false;
        NET_TRY(s->net->ops->progress(s->net, -1, &has_moved));
        if (!has_moved)
            usleep(200);
    }
    if (s->rank == 0) {
        usleep(50000); /* the receiver must not see an end */
    } else {
        for (int i = 0; i < 3; i++)
            o->got |= r[i].is_done && r[i].status == 0 ? 1 << i : 0;
        for (int i = 0; i < 3; i++)
            o->status = r[i].is_done && r[i].status ? r[i].status : o->status;
        if (o->status == KUMI_EMISMATCH)
            NET_CHECK((r[1].came.count ^ r[1].head.count) == 1u << 20);
    }
    s->net->ops->unlink(link, true);
    return 0;
}

static void test_chaos(void **state)
{
    static const struct outcome rows[] = {
        {"short=1", 7, 0},   {"drop=0@2", 1, 0},
        {"drop=1@2", 7, 0},  {"corrupt=0@2", 1, KUMI_EMISMATCH},
        {"delay=10s", 0, 0}, {"delay=1us,jitter=1us,seed=8", 7, 0},
        {"kill=0@4", 7, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct engine engine = {.name = "chaos", .is_tcp = true, .chaos = rows[i].chaos};
        struct outcome got = {0};
        for (int times = 0; times < 100; times++) { /* a busy machine is late */
            got = (struct outcome){0};
            assert_int_equal(run_threads(&engine, 2, run_chaos, &got), 0);
            if (got.got == rows[i].got)
                break;
        }
        if (got.got != rows[i].got || got.status != rows[i].status)
            fail_msg("%s: messages %d, status %d", rows[i].chaos, got.got, got.status);
    }
}

static void test_chaos_kills(void **state)
{
    const struct engine engine = {.name = "chaos", .chaos = "kill=0@2"};
    struct mesh m;
    int status;
    (void)state;
    mesh_init(&m, &engine, 2);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        struct side s = {.mesh = &m, .n = 2};
        struct ku_net_link *link;
        struct ku_net_req r[2];
        if (mesh_open(&s) || s.net->ops->link(s.net, 0, 0, 1, KU_NET_BOTH_WAYS, &link))
            _exit(1);
        for (int i = 0; i < 2; i++) {
            make_request(&r[i], NULL, 0, 0);
            if (s.net->ops->send(link, &r[i]))
                _exit(2);
        }
        _exit(3);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    mesh_fini(&m);
}

/* The limit of open files grows with the links. */
static void test_limit_of_files(void **state)
{
    struct rlimit files, few, now;
    struct raw raw;
    struct ku_net_link *link;
    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    if (files.rlim_max <= 256)
        skip();
    few = files;
    few.rlim_cur = 256;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    raw_open(&raw, 0);
    assert_int_equal(raw.net->ops->link(raw.net, 0, 0, 1, KU_NET_BOTH_WAYS, &link), 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &now), 0);
    raw.net->ops->close(raw.net, false);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    assert_true(now.rlim_cur == files.rlim_max);
}

static void test_chaos_options(void **state)
{
    static const char *const bad[] = {"short=0", "short=x",  "short=-1", "short",
                                      "long=1",  "seed=",    "seed=8x",  "seed=-1",
                                      ",",       "double=0", "double=x", "double"};
    struct ku_chaos c;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(ku_chaos_parse(bad[i], &c), KUMI_EINVAL);
    assert_int_equal(ku_chaos_parse("short=17,kill=3@9", &c), 0);
    assert_true(c.is_on && c.short_bytes == 17 && c.kill_rank == 3 && c.kill_at == 9);
    assert_int_equal(ku_chaos_parse("double=2", &c), 0);
    assert_true(c.is_on && c.double_every == 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wire),           cmocka_unit_test(test_budget),
        cmocka_unit_test(test_byte_by_byte),   cmocka_unit_test(test_broken),
        cmocka_unit_test(test_dial_fails),     cmocka_unit_test(test_arrivals),
        cmocka_unit_test(test_network_lost),   cmocka_unit_test(test_options),
        cmocka_unit_test(test_bursts),         cmocka_unit_test(test_unread),
        cmocka_unit_test(test_early),          cmocka_unit_test(test_nth),
        cmocka_unit_test(test_dropped),        cmocka_unit_test(test_chaos),
        cmocka_unit_test(test_chaos_kills),    cmocka_unit_test(test_chaos_options),
        cmocka_unit_test(test_limit_of_files), cmocka_unit_test(test_one_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
