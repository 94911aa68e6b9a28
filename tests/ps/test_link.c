/* SPDX-License-Identifier: Apache-2.0 */
/* links: ps */
/* A worker's link and a server that answers in an order that the test sets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/hash.h"
#include "ps/remote/link.h"
#include "ps/remote/service_messages.h"
#include "ps/util.h"

enum { N_BYTES = 64, N_JOINS = 2 /* calls of Connect before a stream is opened */ };

static const struct ku_remote_layout layout = {.n_workers = 1,
                                               .n_servers = 1,
                                               .push_bytes = {N_BYTES},
                                               .push_payload = {N_BYTES},
                                               .pull_bytes = {N_BYTES},
                                               .checksum = 1};

struct fake {
    uint64_t more[KU_PS_N_REPLY]; /* what is added to the fields of its replies to Connect */
    bool holds;                   /* the first call of Connect after the joins */
    bool ends_pushes;             /* a stream of pushes ends after an acknowledgement */
    _Atomic int n_hellos;
    _Atomic uint64_t mode, begin; /* of the replies */
    struct ku_rpc_call *_Atomic held;
};

static int reply_hello(const struct fake *f, struct ku_rpc_call *call)
{
    uint64_t field[KU_PS_N_REPLY] = {[KU_PS_R_LAYOUT] = layout.checksum,
                                     [KU_PS_R_N_SERVERS] = 1,
                                     [KU_PS_R_N_WORKERS] = 1,
                                     [KU_PS_R_MODE] = f->mode,
                                     [KU_PS_R_BEGIN] = f->begin,
                                     [KU_PS_R_PUSH_BYTES] = N_BYTES,
                                     [KU_PS_R_PUSH_PAYLOAD] = N_BYTES,
                                     [KU_PS_R_PULL_BYTES] = N_BYTES};
    struct ku_rpc_buf b;
    for (int i = 0; i < KU_PS_N_REPLY; i++)
        field[i] += f->more[i];
    KU_TRY(ku_ps_message_put(field, KU_PS_N_REPLY, 0, 0, &b, NULL));
    ku_rpc_finish(call, KUMI_OK, &b);
    return KUMI_OK;
}

static int on_hello(void *ctx, struct ku_rpc_call *call, struct ku_rpc_msg *m)
{
    struct fake *f = ctx;
    (void)m;
    if (f->n_hellos++ != N_JOINS || !f->holds)
        return reply_hello(f, call);
    f->held = call;
    return KU_RPC_HOLD;
}

static int send(struct ku_rpc_call *call, struct ku_rpc_buf *b)
{
    const int status = ku_rpc_send(call, b);
    ku_rpc_buf_fini(b);
    return status;
}

static int on_push(void *ctx, struct ku_rpc_call *call, struct ku_rpc_msg *m)
{
    const struct fake *f = ctx;
    const uint64_t field[KU_PS_N_FRAME] = {0}; /* step 0 is acknowledged */
    struct ku_rpc_buf b;
    (void)m;
    KU_TRY(ku_ps_message_put(field, KU_PS_N_FRAME, 0, 0, &b, NULL));
    KU_TRY(send(call, &b));
    return f->ends_pushes ? KU_ERR(KUMI_EPEER, "the server is killed") : KUMI_OK;
}

static int on_pull(void *ctx, struct ku_rpc_call *call, struct ku_rpc_msg *m)
{
    static const unsigned char zeros[N_BYTES];
    const uint64_t field[KU_PS_N_FRAME] = {
        [KU_PS_F_CHECKSUM] = ku_hash64(zeros, N_BYTES), [KU_PS_F_VERSION] = 1};
    struct ku_rpc_buf b;
    void *at;
    (void)ctx, (void)m;
    KU_TRY(ku_ps_message_put(field, KU_PS_N_FRAME, KU_PS_F_DATA, N_BYTES, &b, &at));
    memcpy(at, zeros, N_BYTES);
    return send(call, &b);
}

static const struct ku_rpc_method methods[] = {
    {.path = KU_PS_SERVICE "Connect", .message = on_hello},
    {.path = KU_PS_SERVICE "Push", .is_stream = true, .message = on_push},
    {.path = KU_PS_SERVICE "Pull", .is_stream = true, .message = on_pull},
};

static void open_link(struct fake *fake, struct ku_rpc_server **server, struct ku_ps_link **link)
{
    static char text[64];
    static const char *const address = text;
    snprintf(text, sizeof text, "unix:/tmp/kumi-test-link-%d", (int)getpid());
    const struct ku_rpc_server_opts o = {
        .listen = &address, .n_listen = 1, .method = methods, .n_methods = 3, .ctx = fake};
    assert_int_equal(ku_rpc_server_create(&o, server), 0);
    const struct ku_ps_link_opts lo = {.server = &address, .n_servers = 1, .timeout_ns = LONG};
    assert_int_equal(ku_ps_link_create(&lo, link), 0);
}

/* A server and a link that has joined it. */
static void join(struct fake *fake, struct ku_rpc_server **server, struct ku_ps_link **link)
{
    const char *numerics;
    open_link(fake, server, link);
    const struct ku_remote_link *l = ku_ps_link_of(*link);
    assert_int_equal(l->ops->connect(l->ctx, NULL, &numerics), 0);
    assert_int_equal(l->ops->connect(l->ctx, &layout, &numerics), 0);
    assert_int_equal(fake->n_hellos, N_JOINS);
}

/*
 * The reply to the hello of the pull stream was made before the push was complete, and arrives
 * after its acknowledgement. The server has lost nothing.
 */
static void late_reply(void **state)
{
    struct fake fake = {.holds = true};
    unsigned char pushed[N_BYTES] = {1}, pulled[N_BYTES] = {2};
    struct ku_rpc_server *server;
    struct ku_ps_link *link;
    int64_t seen = -1;
    (void)state;
    join(&fake, &server, &link);
    const struct ku_remote_link *l = ku_ps_link_of(link);
    assert_int_equal(l->ops->pull(l->ctx, 0, 0, pulled, &seen), 0);
    for (int i = 0; i < 3000 && !fake.held; i++)
        usleep(10000);
    assert_non_null(fake.held);
    assert_int_equal(l->ops->push(l->ctx, 0, 0, 0, pushed, N_BYTES), 0);
    assert_int_equal(l->ops->flush(l->ctx), 0);
    assert_int_equal(reply_hello(&fake, fake.held), 0);
    if (l->ops->wait(l->ctx) < 0)
        fail_msg("%s", ku_err_get()->text);
    assert_int_equal(seen, 1);
    assert_int_equal(pulled[0], 0);
    ku_ps_link_destroy(link);
    ku_rpc_server_destroy(server);
}

/* A server that says another size than this worker's layout is refused: buffers have the latter. */
static void other_sizes(void **state)
{
    static const struct {
        enum ku_ps_reply_field field;
        uint64_t more;
        const char *text;
    } row[] = {
        {KU_PS_R_LAYOUT, 1, "layout: 2, of this worker 1"},
        {KU_PS_R_PUSH_BYTES, 64, "bytes of a push: 128, of this worker 64"},
        {KU_PS_R_PUSH_PAYLOAD, -UINT64_C(4), "payload of a push: 60, of this worker 64"},
        {KU_PS_R_PULL_BYTES, 64, "bytes of a pull: 128, of this worker 64"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct fake fake = {.more = {0}};
        struct ku_rpc_server *server;
        struct ku_ps_link *link;
        const char *numerics;
        fake.more[row[i].field] = row[i].more;
        open_link(&fake, &server, &link);
        const struct ku_remote_link *l = ku_ps_link_of(link);
        assert_int_equal(l->ops->connect(l->ctx, NULL, &numerics), 0);
        assert_int_equal(l->ops->connect(l->ctx, &layout, &numerics), KUMI_EMISMATCH);
        if (strstr(ku_err_get()->text, row[i].text) == NULL)
            fail_msg("%s", ku_err_get()->text);
        ku_ps_link_destroy(link);
        ku_rpc_server_destroy(server);
    }
}

/*
 * In async a server that begins without its journal would acknowledge the next pushes without
 * effect. In sync, and with the step under way, the worker goes on.
 */
static void begun_anew(void **state)
{
    static const struct {
        uint64_t mode, begin;
        int status;
    } row[] = {{KU_REMOTE_ASYNC, 50, KUMI_EINPUT},
               {KU_REMOTE_SSP, 3, KUMI_EINPUT},
               {KU_REMOTE_ASYNC, 2, KUMI_OK},
               {KU_REMOTE_SYNC, 50, KUMI_OK}};
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct fake fake = {.ends_pushes = true, .mode = row[i].mode};
        unsigned char pushed[N_BYTES] = {1}, pulled[N_BYTES];
        struct ku_rpc_server *server;
        struct ku_ps_link *link;
        int64_t seen = -1;
        join(&fake, &server, &link);
        const struct ku_remote_link *l = ku_ps_link_of(link);
        assert_int_equal(l->ops->push(l->ctx, 0, 0, 0, pushed, N_BYTES), 0);
        assert_int_equal(l->ops->flush(l->ctx), 0);
        fake.begin = row[i].begin;
        assert_int_equal(l->ops->pull(l->ctx, 0, 1, pulled, &seen), 0);
        const int status = l->ops->wait(l->ctx);
        if (status != row[i].status ||
            (status < 0 && !strstr(ku_err_get()->text, "has begun anew without its journal")))
            fail_msg("row %zu: %d %s", i, status, ku_err_get()->text);
        ku_ps_link_destroy(link);
        ku_rpc_server_destroy(server);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(late_reply), cmocka_unit_test(other_sizes),
                                       cmocka_unit_test(begun_anew)};
    if (cannot_run())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
