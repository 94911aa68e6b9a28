/* SPDX-License-Identifier: Apache-2.0 */
/* links: ps */
/*
 * The gRPC layer: calls, streams, back-pressure, limits, statuses. Client and server are threads of
 * one process. */
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include <poll.h>
#include <stdlib.h>

#include "base/os/os.h"
#include "base/os/socket.h"
#include "ps/util.h"
#include "sample.h"

#define SECOND KU_RPC_SECOND
#define LONG   (30 * SECOND)

/* A service that answers with what it got; a message that begins with '!' is an error. */
struct service {
    _Atomic int n_closed, last_status, n_open;
    bool is_holding;                  /* streams: messages are not consumed */
    struct ku_rpc_call *_Atomic call; /* the last stream */
};

enum { HALF = KU_RPC_MAX_QUEUED / 2 }; /* replies that wait: no more messages are read */

static int on_unary(void *ctx, struct ku_rpc_call *call, struct ku_rpc_msg *m)
{
    struct ku_rpc_buf b;
    (void)ctx;
    KU_TRY(ku_rpc_buf_init(&b, m->bytes));
    ku_rpc_msg_read(m, 0, b.data, m->bytes);
    if (m->bytes > 0 && *(char *)b.data == '!') {
        ku_rpc_buf_fini(&b);
        return KU_ERR(KUMI_EMISMATCH, "test: %zu bytes: an exclamation", m->bytes);
    }
    ku_rpc_finish(call, KUMI_OK, &b);
    return KUMI_OK;
}
static int on_open(void *ctx, struct ku_rpc_call *call)
{
    struct service *s = ctx;
    s->call = call;
    s->n_open++;
    return KUMI_OK;
}
static int on_message(void *ctx, struct ku_rpc_call *call, struct ku_rpc_msg *m)
{
    struct service *s = ctx;
    struct ku_rpc_buf b;
    if (s->is_holding)
        return KU_RPC_HOLD;
    KU_TRY(ku_rpc_buf_init(&b, m->bytes));
    ku_rpc_msg_read(m, 0, b.data, m->bytes);
    int status = ku_rpc_send(call, &b);
    ku_rpc_buf_fini(&b);
    return status < 0 ? status : ku_rpc_n_queued(call) >= HALF ? KU_RPC_HOLD : KUMI_OK;
}
static void on_sent(void *ctx, struct ku_rpc_call *call, int n_queued)
{
    (void)ctx;
    if (n_queued == HALF - 1)
        ku_rpc_next(call);
}
static void on_close(void *ctx, struct ku_rpc_call *call, int status)
{
    struct service *s = ctx;
    (void)call;
    s->n_closed++;
    s->last_status = status;
}
static const struct ku_rpc_method methods[] = {
    {.path = "/t.Test/Unary", .message = on_unary, .close = on_close},
    {.path = "/t.Test/Stream",
     .is_stream = true,
     .open = on_open,
     .message = on_message,
     .sent = on_sent,
     .close = on_close},
    {.path = "/t.Test/Rest", /* a client may rest between messages */
     .is_stream = true,
     .first_ns = SECOND / 2,
     .idle_ns = INT64_MAX,
     .send_ns = SECOND / 2,
     .open = on_open,
     .message = on_message,
     .sent = on_sent,
     .close = on_close},
    {.path = "/t.Test/Idle", /* likewise, not for ever */
     .is_stream = true,
     .idle_ns = SECOND / 2,
     .open = on_open,
     .message = on_message,
     .sent = on_sent,
     .close = on_close},
};

struct pair {
    struct service service;
    struct ku_rpc_server *server;
    struct ku_rpc_channel *channel;
};
static void pair_open(struct pair *p, const char *address, struct ku_rpc_limits limits,
                      struct ku_rpc_security security)
{
    memset(p, 0, sizeof *p);
    struct ku_rpc_server_opts o = {.listen = &address,
                                   .n_listen = 1,
                                   .limits = limits,
                                   .security = security,
                                   .method = methods,
                                   .n_methods = sizeof methods / sizeof *methods,
                                   .ctx = &p->service};
    int status = ku_rpc_server_create(&o, &p->server);
    if (status < 0)
        fail_msg("%s", ku_err_get()->text);
    struct ku_rpc_channel_opts c = {.address = ku_rpc_server_address(p->server, 0),
                                    .security = security,
                                    .message_bytes = 64 << 20};
    assert_int_equal(ku_rpc_channel_create(&c, &p->channel), 0);
}
static void pair_close(struct pair *p)
{
    ku_rpc_channel_destroy(p->channel);
    ku_rpc_server_stop(p->server, LONG);
    ku_rpc_server_destroy(p->server);
}
static const char *unix_address(void)
{
    static char text[64];
    snprintf(text, sizeof text, "unix:/tmp/kumi-test-rpc-%d", (int)getpid());
    return text;
}

static int call(struct pair *p, const char *path, const char *text, char *out, size_t cap)
{
    return call_text(p->channel, path, text, out, cap);
}

/* A machine without IPv6 has no ::1 to bind to. */
static bool has_ipv6(void)
{
    const struct sockaddr_in6 loopback = {.sin6_family = AF_INET6,
                                          .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool is_bound =
        fd >= 0 && bind(fd, (const struct sockaddr *)&loopback, sizeof loopback) == 0;
    const bool is_absent = errno == EADDRNOTAVAIL || errno == EAFNOSUPPORT;
    if (fd >= 0)
        close(fd);
    return is_bound || !is_absent;
}

static void test_unary(void **state)
{
    static const char *const addresses[] = {"127.0.0.1:0", NULL, "[::1]:0", "localhost:0"};
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct pair p;
        char out[64];
        if (i == 2 && !has_ipv6()) {
            print_message("no IPv6: %s is left out\n", addresses[i]);
            continue;
        }
        pair_open(&p, addresses[i] ? addresses[i] : unix_address(), (struct ku_rpc_limits){0},
                  (struct ku_rpc_security){0});
        assert_int_equal(call(&p, "/t.Test/Unary", "hello", out, sizeof out), 0);
        assert_string_equal(out, "hello");
        assert_int_equal(call(&p, "/t.Test/Unary", "", out, sizeof out), 0);
        assert_string_equal(out, "");
        assert_int_equal(call(&p, "/t.Test/Unary", "!x", out, sizeof out), KUMI_EMISMATCH);
        assert_non_null(strstr(ku_err_get()->text, "test: 2 bytes: an exclamation"));
        assert_int_equal(call(&p, "/t.Test/Unari", "x", out, sizeof out), KUMI_EINVAL);
        assert_non_null(strstr(ku_err_get()->text, "unknown method"));
        pair_close(&p);
        assert_int_equal(p.service.n_closed, 3);
    }
    assert_int_equal(access(unix_address() + 5, F_OK), -1);
}

static void test_stream(void **state)
{
    struct pair p;
    struct ku_rpc_stream *s;
    bool is_end;
    (void)state;
    pair_open(&p, unix_address(), (struct ku_rpc_limits){0}, (struct ku_rpc_security){0});
    assert_int_equal(ku_rpc_stream_open(p.channel, "/t.Test/Stream", true, &s), 0);
    for (int i = 0; i < 40; i++) {
        const size_t bytes = i % 4 == 3 ? 1 << 20 : (size_t)i;
        struct ku_rpc_buf b;
        struct ku_rpc_msg m;
        assert_int_equal(ku_rpc_buf_init(&b, bytes), 0);
        memset(b.data, i, bytes);
        assert_int_equal(ku_rpc_stream_send(s, &b, LONG), 0);
        assert_int_equal(ku_rpc_stream_recv(s, &m, &is_end, LONG), 0);
        assert_false(is_end);
        assert_int_equal(m.bytes, bytes);
        unsigned char last = (unsigned char)i;
        if (bytes > 0)
            ku_rpc_msg_read(&m, bytes - 1, &last, 1);
        assert_int_equal(last, i);
        ku_rpc_msg_fini(&m);
    }
    struct ku_rpc_msg m;
    assert_int_equal(ku_rpc_stream_recv(s, &m, &is_end, SECOND / 100), KUMI_ETIMEDOUT);
    assert_int_equal(ku_rpc_stream_close_send(s, LONG), 0);
    assert_int_equal(ku_rpc_stream_recv(s, &m, &is_end, LONG), 0);
    assert_true(is_end);
    ku_rpc_stream_destroy(s);
    pair_close(&p);
    assert_int_equal(p.service.n_open, 1);
    assert_int_equal(p.service.n_closed, 1);
    assert_int_equal(p.service.last_status, 0);
}

static void await_counts(struct ku_rpc_server *s, int conns, int calls)
{
    struct ku_rpc_stats stats = {-1, -1, 0, 0, 0};
    for (int i = 0; i < 3000; i++) {
        ku_rpc_server_stats(s, &stats);
        if ((conns < 0 || stats.connections == conns) && (calls < 0 || stats.calls == calls))
            return;
        usleep(10000);
    }
    fail_msg("%d connections and %d calls are left", stats.connections, stats.calls);
}

/* A plain socket on the server's address: 127.0.0.1:PORT */
static int dial(struct ku_rpc_server *s)
{
    struct ku_os_address to = {.ip = {[10] = 0xff, 0xff, 127, 0, 0, 1}};
    const char *text = ku_rpc_server_address(s, 0);
    to.port = (uint16_t)strtol(strrchr(text, ':') + 1, NULL, 10);
    int fd = ku_os_tcp_connect(&to);
    assert_true(fd >= 0);
    assert_int_equal(ku_os_await(fd, POLLOUT, 10000), 1);
    assert_int_equal(ku_os_tcp_connected(fd), 0);
    return fd;
}
/* Reads until the server closes the connection. */
static void await_close(int fd)
{
    char rest[4096];
    ssize_t n;
    do {
        assert_int_equal(ku_os_await(fd, POLLIN, 30000), 1);
        n = ku_os_tcp_recv(fd, rest, sizeof rest);
    } while (n > 0);
    close(fd);
}

static void test_half_open(void **state)
{
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0";
    /* HEADERS of 16 bytes, of which one follows */
    static const char headers[] = "\0\0\x10\1\4\0\0\0\1\0";
    struct pair p;
    (void)state;
    pair_open(&p, "127.0.0.1:0", (struct ku_rpc_limits){.first_call_ns = SECOND / 5},
              (struct ku_rpc_security){0});
    for (int i = 0; i < 3; i++) {
        int fd = dial(p.server);
        if (i > 0)
            assert_int_equal(ku_os_tcp_send(fd, preface, sizeof preface), sizeof preface);
        if (i > 1)
            assert_int_equal(ku_os_tcp_send(fd, headers, sizeof headers - 1), sizeof headers - 1);
        await_close(fd);
    }
    await_counts(p.server, 0, 0);
    pair_close(&p);
}

/* Sends messages that are answered, and reads no answer: gRPC's windows hold them back. */
static int send_without_reading(struct ku_rpc_stream *s)
{
    int status = KUMI_OK;
    for (int i = 0; i < 1000 && status == KUMI_OK; i++) {
        struct ku_rpc_buf b;
        assert_int_equal(ku_rpc_buf_init(&b, 1 << 20), 0);
        memset(b.data, 0, 1 << 20);
        status = ku_rpc_stream_send(s, &b, SECOND);
    }
    return status;
}

static void test_slow_stream(void **state)
{
    struct pair p;
    struct ku_rpc_stream *s;
    struct ku_rpc_msg m;
    bool is_end;
    char out[8];
    (void)state;
    pair_open(&p, "127.0.0.1:0", (struct ku_rpc_limits){.idle_ns = SECOND / 5},
              (struct ku_rpc_security){0});
    /* no message; then a stream whose replies are not read */
    assert_int_equal(ku_rpc_stream_open(p.channel, "/t.Test/Stream", true, &s), 0);
    assert_int_equal(ku_rpc_stream_recv(s, &m, &is_end, LONG), KUMI_ETIMEDOUT);
    assert_non_null(strstr(ku_err_get()->text, "no complete message before the deadline"));
    ku_rpc_stream_destroy(s);
    await_counts(p.server, -1, 0);
    assert_int_equal(p.service.last_status, KUMI_ETIMEDOUT);
    assert_int_equal(ku_rpc_stream_open(p.channel, "/t.Test/Stream", true, &s), 0);
    const int status = send_without_reading(s);
    /* the reason may stay behind the messages that are not read */
    assert_true(status == KUMI_ETIMEDOUT || status == KUMI_EPEER);
    ku_rpc_stream_destroy(s);
    await_counts(p.server, -1, 0);
    assert_int_equal(p.service.n_closed, 2);
    assert_true(p.service.last_status < 0); /* the deadline, or a reply after it */
    /* the connection and other calls live on */
    assert_int_equal(call(&p, "/t.Test/Unary", "hello", out, sizeof out), 0);
    pair_close(&p);
}

/* A stream that may rest has deadlines all the same: for its first message, and for replies. */
static void test_resting_stream(void **state)
{
    struct ku_rpc_stats stats;
    struct ku_rpc_stream *s;
    struct ku_rpc_msg m;
    struct ku_rpc_buf b;
    struct pair p;
    bool is_end;
    (void)state;
    pair_open(&p, unix_address(), (struct ku_rpc_limits){0}, (struct ku_rpc_security){0});
    assert_int_equal(ku_rpc_stream_open(p.channel, "/t.Test/Rest", true, &s), 0);
    assert_int_equal(ku_rpc_stream_recv(s, &m, &is_end, LONG), KUMI_ETIMEDOUT);
    assert_non_null(strstr(ku_err_get()->text, "no complete message before the deadline"));
    ku_rpc_stream_destroy(s);
    await_counts(p.server, -1, 0);
    assert_int_equal(p.service.last_status, KUMI_ETIMEDOUT);
    assert_int_equal(ku_rpc_stream_open(p.channel, "/t.Test/Rest", true, &s), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ku_rpc_buf_copy(&b, "x", 1), 0);
        assert_int_equal(ku_rpc_stream_send(s, &b, LONG), 0);
        assert_int_equal(ku_rpc_stream_recv(s, &m, &is_end, LONG), 0);
        assert_int_equal(m.bytes, 1);
        ku_rpc_msg_fini(&m);
        usleep(i == 0 ? 700000 : 0); /* more than the other deadlines */
    }
    assert_true(send_without_reading(s) < 0);
    await_counts(p.server, -1, 0); /* the client has not ended it */
    ku_rpc_stream_destroy(s);
    ku_rpc_server_stats(p.server, &stats);
    assert_int_equal(stats.timed_out, 2);
    pair_close(&p);
    assert_int_equal(p.service.n_closed, 2);
}

/* A call that is finished waits for its peer to read; one that is aborted does not. */
static void test_abort(void **state)
{
    struct ku_rpc_stream *s;
    struct ku_rpc_stats stats;
    struct pair p;
    (void)state;
    pair_open(&p, unix_address(), (struct ku_rpc_limits){0}, (struct ku_rpc_security){0});
    assert_int_equal(ku_rpc_stream_open(p.channel, "/t.Test/Stream", true, &s), 0);
    assert_int_equal(send_without_reading(s), KUMI_ETIMEDOUT);
    ku_rpc_finish(p.service.call, KU_ERR(KUMI_EPEER, "test: finished"), NULL);
    usleep(200000);
    ku_rpc_server_stats(p.server, &stats);
    assert_int_equal(stats.calls, 1);
    ku_rpc_abort(p.service.call, KU_ERR(KUMI_EPEER, "test: aborted"));
    await_counts(p.server, -1, 0);
    assert_int_equal(p.service.last_status, KUMI_EPEER);
    ku_rpc_stream_destroy(s);
    pair_close(&p);
}

/* Opens a stream of raw frames: n_whole messages, and `part` bytes of one of 4 bytes. */
static int send_half(struct ku_rpc_server *server, const char *path, int n_whole, size_t part)
{
    /* the preface, SETTINGS, and HEADERS with literal fields (RFC 7541, 6.2.2) */
    static const char begin[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0";
    const char *const field[][2] = {{":method", "POST"}, {":scheme", "http"},
                                    {":path", path},     {":authority", "test"},
                                    {"te", "trailers"},  {"content-type", "application/grpc"}};
    char frame[512];
    size_t n = 9;
    for (size_t k = 0; k < sizeof field / sizeof *field; k++)
        n +=
            (size_t)snprintf(frame + n, sizeof frame - n, "%c%c%s%c%s", 0, (int)strlen(field[k][0]),
                             field[k][0], (int)strlen(field[k][1]), field[k][1]);
    memcpy(frame, "\0\0\0\1\4\0\0\0\1", 9); /* END_HEADERS, stream 1 */
    frame[2] = (char)(n - 9);
    memcpy(frame + n, "\0\0\0\0\0\0\0\0\1", 9); /* DATA */
    frame[n + 2] = (char)(9 * n_whole + (int)part);
    n += 9;
    for (int i = 0; i <= n_whole; i++)
        memcpy(frame + n + 9 * i, "\0\0\0\0\4xxxx", 9); /* the prefix announces 4 bytes */
    n += 9 * (size_t)n_whole + part;
    const int fd = dial(server);
    assert_int_equal(ku_os_tcp_send(fd, begin, sizeof begin), sizeof begin);
    assert_int_equal(ku_os_tcp_send(fd, frame, n), n);
    return fd;
}

/* A message of which a part has come ends on the deadline of a whole one. */
static void test_half_message(void **state)
{
    static const struct {
        const char *path;
        int n_whole;
        size_t part;
    } row[] = {{"/t.Test/Rest", 0, 0}, {"/t.Test/Rest", 0, 3}, {"/t.Test/Rest", 0, 5},
               {"/t.Test/Rest", 0, 7}, {"/t.Test/Idle", 1, 0}, {"/t.Test/Idle", 1, 7}};
    enum { N = sizeof row / sizeof *row };
    struct ku_rpc_stats stats;
    struct pair p;
    int fd[N];
    (void)state;
    pair_open(&p, "127.0.0.1:0", (struct ku_rpc_limits){0}, (struct ku_rpc_security){0});
    for (int i = 0; i < N; i++) {
        fd[i] = send_half(p.server, row[i].path, row[i].n_whole, row[i].part);
        for (int k = 0; k < 3000 && p.service.n_open <= i; k++)
            usleep(10000);
    }
    await_counts(p.server, -1, 0);
    ku_rpc_server_stats(p.server, &stats);
    assert_int_equal(stats.timed_out, N);
    assert_int_equal(p.service.n_closed, N);
    for (int i = 0; i < N; i++)
        close(fd[i]);
    pair_close(&p);
}

/* The client of a stream that has rested for too long may open another one. */
static void test_idle_stream(void **state)
{
    struct ku_rpc_stream *s;
    struct ku_rpc_msg m;
    struct ku_rpc_buf b;
    struct pair p;
    bool is_end;
    (void)state;
    pair_open(&p, unix_address(), (struct ku_rpc_limits){0}, (struct ku_rpc_security){0});
    assert_int_equal(ku_rpc_stream_open(p.channel, "/t.Test/Idle", true, &s), 0);
    assert_int_equal(ku_rpc_buf_copy(&b, "x", 1), 0);
    assert_int_equal(ku_rpc_stream_send(s, &b, LONG), 0);
    assert_int_equal(ku_rpc_stream_recv(s, &m, &is_end, LONG), 0);
    ku_rpc_msg_fini(&m);
    assert_int_equal(ku_rpc_stream_recv(s, &m, &is_end, LONG), KUMI_EPEER);
    assert_non_null(strstr(ku_err_get()->text, "before the deadline; open the stream again"));
    ku_rpc_stream_destroy(s);
    pair_close(&p);
    assert_int_equal(p.service.last_status, KUMI_EPEER);
}

/* A service that does not consume stops the sender; nothing is stored beyond the windows. */
static void test_back_pressure(void **state)
{
    enum { MIB = 1 << 20, MOST = 32 };
    struct pair p;
    struct ku_rpc_stream *s;
    struct ku_rpc_buf b;
    int n = 0, status = KUMI_OK;
    (void)state;
    pair_open(&p, unix_address(), (struct ku_rpc_limits){0}, (struct ku_rpc_security){0});
    p.service.is_holding = true;
    assert_int_equal(ku_rpc_stream_open(p.channel, "/t.Test/Stream", true, &s), 0);
    for (; n < 200 && status == KUMI_OK; n++) {
        assert_int_equal(ku_rpc_buf_init(&b, MIB), 0);
        memset(b.data, 0, MIB);
        status = ku_rpc_stream_send(s, &b, SECOND / 2);
    }
    assert_int_equal(status, KUMI_ETIMEDOUT);
    assert_true(n <= MOST);
    ku_rpc_stream_cancel(s);
    assert_int_equal(ku_rpc_buf_init(&b, 1), 0);
    assert_int_equal(ku_rpc_stream_send(s, &b, LONG), KUMI_EPEER);
    ku_rpc_buf_fini(&b);
    ku_rpc_stream_destroy(s);
    pair_close(&p);
    assert_int_equal(p.service.n_closed, 1);
}

static void test_limits(void **state)
{
    enum { BIG = 200 << 10 };
    static char text[BIG + 1];
    struct pair p;
    char out[8];
    (void)state;
    memset(text, 'x', BIG);
    pair_open(&p, "127.0.0.1:0",
              (struct ku_rpc_limits){.message_bytes = 100 << 10, .connections = 4},
              (struct ku_rpc_security){0});
    assert_int_equal(call(&p, "/t.Test/Unary", text, out, sizeof out), KUMI_ENOMEM);
    assert_non_null(strstr(ku_err_get()->text, "larger than max (204800 vs. 102400)"));
    int fd[3], more;
    for (int i = 0; i < 3; i++)
        fd[i] = dial(p.server);
    await_counts(p.server, 4, 0);
    more = dial(p.server);
    await_close(more);
    assert_int_equal(call(&p, "/t.Test/Unary", "hello", out, sizeof out), 0);
    for (int i = 0; i < 3; i++)
        close(fd[i]);
    await_counts(p.server, 1, 0);
    pair_close(&p);
    pair_open(&p, "127.0.0.1:0", (struct ku_rpc_limits){.calls = 1}, (struct ku_rpc_security){0});
    struct ku_rpc_stream *s;
    assert_int_equal(ku_rpc_stream_open(p.channel, "/t.Test/Stream", true, &s), 0);
    await_counts(p.server, 1, 1);
    assert_int_equal(call(&p, "/t.Test/Unary", "hello", out, sizeof out), KUMI_EBUSY);
    ku_rpc_stream_destroy(s);
    await_counts(p.server, 1, 0);
    assert_int_equal(call(&p, "/t.Test/Unary", "hello", out, sizeof out), 0);
    pair_close(&p);
}

/* More calls in a second than a connection may make are refused; later ones are not. */
static void test_rate(void **state)
{
    enum { RATE = 5 };
    struct pair p;
    char out[8];
    int n = 0, status = KUMI_OK;
    (void)state;
    pair_open(&p, unix_address(), (struct ku_rpc_limits){.call_rate = RATE},
              (struct ku_rpc_security){0});
    for (; n < 100 && status == KUMI_OK; n++)
        status = call(&p, "/t.Test/Unary", "hello", out, sizeof out);
    assert_int_equal(status, KUMI_EBUSY);
    assert_non_null(strstr(ku_err_get()->text, "5 calls in a second of this connection"));
    assert_true(n > RATE);
    usleep(1000000 / RATE);
    assert_int_equal(call(&p, "/t.Test/Unary", "hello", out, sizeof out), 0);
    pair_close(&p);
}

static size_t resident(void)
{
    unsigned long all = 0, here = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%lu %lu", &all, &here), 2);
    fclose(f);
    return here * 4096;
}

/* Connections that are dropped leave nothing behind, whatever they had said. */
static void test_dropped(void **state)
{
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0";
    const int rounds = sample_is_all() ? 20 : 4, each = 50;
    struct pair p;
    size_t begin = 0;
    (void)state;
    pair_open(&p, "127.0.0.1:0", (struct ku_rpc_limits){0}, (struct ku_rpc_security){0});
    for (int round = 0; round < rounds; round++) {
        int fd[50];
        for (int i = 0; i < each; i++) {
            fd[i] = dial(p.server);
            if (i % 2)
                (void)ku_os_tcp_send(fd[i], preface, sizeof preface);
        }
        for (int i = 0; i < each; i++)
            close(fd[i]);
        await_counts(p.server, 0, 0);
        if (round == 1)
            begin = resident(); /* the allocator has its pages */
    }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(resident() < begin + (8 << 20));
#endif
    (void)begin;
    pair_close(&p);
}

/* A server that goes away and comes back: the channel connects again. */
static void test_reconnect(void **state)
{
    struct pair p, q;
    char out[8];
    (void)state;
    pair_open(&p, unix_address(), (struct ku_rpc_limits){0}, (struct ku_rpc_security){0});
    assert_int_equal(call(&p, "/t.Test/Unary", "one", out, sizeof out), 0);
    ku_rpc_server_destroy(p.server);
    assert_int_equal(call(&p, "/t.Test/Unary", "two", out, sizeof out), KUMI_EPEER);
    pair_open(&q, unix_address(), (struct ku_rpc_limits){0}, (struct ku_rpc_security){0});
    assert_int_equal(ku_rpc_channel_wait(p.channel, LONG), 0);
    assert_int_equal(call(&p, "/t.Test/Unary", "three", out, sizeof out), 0);
    ku_rpc_channel_destroy(p.channel);
    pair_close(&q);
}

static void test_addresses(void **state)
{
    static const struct {
        const char *address, *text;
        int status;
    } row[] = {
        {"127.0.0.1", "no port", KUMI_EINVAL},
        {"127.0.0.1:", "no port", KUMI_EINVAL},
        {"127.0.0.1:65536", "no port", KUMI_EINVAL},
        {"127.0.0.1:1x", "no port", KUMI_EINVAL},
        {":80", "no port", KUMI_EINVAL},
        {"::1:80", "a second colon", KUMI_EINVAL},
        {"unix:", "a path of 0 bytes", KUMI_EINVAL},
        {"unix:/nonexistent/a", "No such file", KUMI_EINVAL},
        {"unix:/etc/passwd", "is no socket", KUMI_EINVAL},
        {"0.0.0.0:0", "neither TLS", KUMI_EINVAL},
        {"[::]:0", "neither TLS", KUMI_EINVAL},
        {"192.0.2.1:0", "neither TLS", KUMI_EINVAL},
        {NULL, "in use by pid", KUMI_EBUSY},
    };
    struct pair p, q;
    (void)state;
    pair_open(&p, "127.0.0.1:0", (struct ku_rpc_limits){0}, (struct ku_rpc_security){0});
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const char *address = row[i].address ? row[i].address : ku_rpc_server_address(p.server, 0);
        struct ku_rpc_server_opts o = {
            .listen = &address, .n_listen = 1, .method = methods, .n_methods = 2};
        assert_int_equal(ku_rpc_server_create(&o, &q.server), row[i].status);
        if (strstr(ku_err_get()->text, row[i].text) == NULL)
            fail_msg("%s", ku_err_get()->text);
    }
    pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unary),          cmocka_unit_test(test_stream),
        cmocka_unit_test(test_half_open),      cmocka_unit_test(test_slow_stream),
        cmocka_unit_test(test_resting_stream), cmocka_unit_test(test_half_message),
        cmocka_unit_test(test_idle_stream),    cmocka_unit_test(test_abort),
        cmocka_unit_test(test_back_pressure),  cmocka_unit_test(test_limits),
        cmocka_unit_test(test_rate),           cmocka_unit_test(test_dropped),
        cmocka_unit_test(test_reconnect),      cmocka_unit_test(test_addresses),
    };
    if (cannot_run())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
