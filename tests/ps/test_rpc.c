/* SPDX-License-Identifier: Apache-2.0 */
/* links: ps */
/* The gRPC layer: calls, streams, back-pressure, limits, statuses. Client and server in one process; tsan */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "ps/rpc/limits.h"
#include "ps/rpc/rpc.h"

#define SECOND KU_RPC_SECOND
#define LONG   (30 * SECOND)

/* A service that answers with what it got; a message that begins with '!' is an error. */
struct service {
    _Atomic int n_closed, last_status, n_open;
    bool is_holding; /* streams: messages are not consumed */
};

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
    (void)call;
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
    return status;
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
                                   .n_methods = 2,
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
    struct ku_rpc_buf b;
    struct ku_rpc_msg m = {0};
    assert_int_equal(ku_rpc_buf_copy(&b, text, strlen(text)), 0);
    int status = ku_rpc_unary(p->channel, path, &b, LONG, false, &m);
    if (status == KUMI_OK) {
        assert_true(m.bytes < cap);
        ku_rpc_msg_read(&m, 0, out, m.bytes);
        out[m.bytes] = '\0';
        ku_rpc_msg_fini(&m);
    }
    return status;
}

static void test_unary(void **state)
{
    static const char *const addresses[] = {"127.0.0.1:0", NULL, "[::1]:0", "localhost:0"};
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct pair p;
        char out[64];
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unary),
        cmocka_unit_test(test_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
