/* SPDX-License-Identifier: Apache-2.0 */
/* links: ps protobuf */
/*
 * The textbook's service: messages are packed and unpacked by the code that protoc-c makes from
 * proto/parameter_server.proto, an implementation of the wire format that is not ours. And
 * optimizers, bad input, and other clients meanwhile. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/uio.h>

#include "base/mem.h"
#include "parameter_server.pb-c.h"
#include "ps/serve/vector_service.h"
#include "ps/util.h"
#include "sample.h"

enum { COUNT = 10000 };
#define PUSH "/ParameterServer/PushGradients"
#define PULL "/ParameterServer/PullParameters"

struct pair {
    struct ku_ps_vector_service *service;
    struct ku_rpc_channel *channel;
};
static void pair_open(struct pair *p, struct ku_ps_vector_service_opts o)
{
    static const char *const any[] = {"127.0.0.1:0"};
    o.rpc.listen = any;
    o.rpc.n_listen = 1;
    if (ku_ps_vector_serve(&o, &p->service) < 0)
        fail_msg("%s", ku_err_get()->text);
    struct ku_rpc_channel_opts c = {.address =
                                        ku_rpc_server_address(ku_ps_vector_server(p->service), 0)};
    assert_int_equal(ku_rpc_channel_create(&c, &p->channel), 0);
}
static void pair_close(struct pair *p)
{
    ku_rpc_channel_destroy(p->channel);
    ku_ps_vector_end(p->service);
}

static int push(struct ku_rpc_channel *channel, const char *path, float *g, size_t n, int worker)
{
    GradientRequest request = GRADIENT_REQUEST__INIT;
    struct ku_rpc_buf b;
    struct ku_rpc_msg m = {0};
    request.n_gradients = n;
    request.gradients = g;
    request.worker_id = worker;
    assert_int_equal(ku_rpc_buf_init(&b, gradient_request__get_packed_size(&request)), 0);
    assert_int_equal(gradient_request__pack(&request, b.data), b.bytes);
    int status = ku_rpc_unary(channel, path, &b, LONG, false, &m);
    if (status == KUMI_OK)
        assert_int_equal(m.bytes, 0);
    ku_rpc_msg_fini(&m);
    return status;
}
static ParameterResponse *pull(struct ku_rpc_channel *channel, const char *path)
{
    EmptyRequest request = EMPTY_REQUEST__INIT;
    struct ku_rpc_buf b;
    struct ku_rpc_msg m = {0};
    assert_int_equal(empty_request__get_packed_size(&request), 0);
    assert_int_equal(ku_rpc_buf_init(&b, 0), 0);
    if (ku_rpc_unary(channel, path, &b, LONG, false, &m) < 0)
        fail_msg("%s", ku_err_get()->text);
    uint8_t *bytes = ku_malloc(m.bytes);
    assert_non_null(bytes);
    ku_rpc_msg_read(&m, 0, bytes, m.bytes);
    ParameterResponse *r = parameter_response__unpack(NULL, m.bytes, bytes);
    assert_non_null(r);
    ku_free(bytes);
    ku_rpc_msg_fini(&m);
    return r;
}
static void expect_all(struct pair *p, const char *path, size_t count, float value)
{
    ParameterResponse *r = pull(p->channel, path);
    assert_int_equal(r->n_parameters, count);
    for (size_t i = 0; i < count; i++)
        assert_memory_equal(&r->parameters[i], &value, sizeof value);
    parameter_response__free_unpacked(r, NULL);
}
static float *filled(size_t n, float value)
{
    float *g = ku_malloc((n + 1) * sizeof *g);
    assert_non_null(g);
    for (size_t i = 0; i < n; i++)
        g[i] = value;
    return g;
}

static void test_textbook(void **state)
{
    struct pair p;
    float *g = filled(COUNT, 0.1f);
    (void)state;
    pair_open(&p, (struct ku_ps_vector_service_opts){.vector = {.count = COUNT, .lr = 0.01}});
    expect_all(&p, PULL, COUNT, 0);
    assert_int_equal(push(p.channel, PUSH, g, COUNT, 0), 0);
    expect_all(&p, PULL, COUNT, -(0.01f * 0.1f));
    pair_close(&p);
    pair_open(&p, (struct ku_ps_vector_service_opts){.vector = {.count = 3, .lr = 0.01},
                                                     .package = "a.b_1"});
    assert_int_equal(push(p.channel, PUSH, g, 3, 0), KUMI_EINVAL);
    assert_non_null(strstr(ku_err_get()->text, "this server has /a.b_1.ParameterServer/"));
    assert_int_equal(push(p.channel, "/a.b_1.ParameterServer/PushGradients", g, 3, 0), 0);
    expect_all(&p, "/a.b_1.ParameterServer/PullParameters", 3, -(0.01f * 0.1f));
    pair_close(&p);
    ku_free(g);
}

/* The first update of each optimizer, for g = 2 and lr = 0.5, by its formula. */
static void test_optimizers(void **state)
{
    static const struct {
        const char *name, *set[2];
        int n_set;
        double first, tolerance; /* tolerance: roundings of f32, in units of 2^-24 of the value */
    } row[] = {
        {"sgd", {NULL}, 0, -1, 0},
        {"sgd", {"optimizer.momentum=0.9"}, 1, -1, 0},
        {"lion", {NULL}, 0, -0.5, 0},
        {"adam", {"optimizer.eps=0"}, 1, -0.5, 8},
        {"adamw", {"optimizer.eps=0"}, 1, -0.5, 8},
        {"adagrad", {"optimizer.eps=0"}, 1, -0.5, 8},
        {"rmsprop", {"optimizer.eps=0", "optimizer.alpha=0.75"}, 2, -1, 8},
    };
    float g[5] = {2, 2, 2, 2, 2};
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct pair p;
        pair_open(&p, (struct ku_ps_vector_service_opts){.vector = {.count = 5,
                                                                    .optimizer = row[i].name,
                                                                    .lr = 0.5,
                                                                    .set = row[i].set,
                                                                    .n_set = row[i].n_set}});
        assert_int_equal(push(p.channel, PUSH, g, 5, 0), 0);
        ParameterResponse *r = pull(p.channel, PULL);
        assert_int_equal(r->n_parameters, 5);
        for (int k = 0; k < 5; k++)
            if (!(fabs((double)r->parameters[k] - row[i].first) <=
                  row[i].tolerance * 0x1p-24 * fabs(row[i].first)))
                fail_msg("%s: %.9g, not %.9g", row[i].name, (double)r->parameters[k], row[i].first);
        parameter_response__free_unpacked(r, NULL);
        pair_close(&p);
    }
}

static void test_options(void **state)
{
    static const char *const wrong[] = {"train.steps=3"};
    static const struct {
        struct ku_ps_vector_service_opts o;
        const char *text;
    } row[] = {
        {{.vector = {.count = 0, .lr = 1}}, "--vector: 0"},
        {{.vector = {.count = -1, .lr = 1}}, "--vector: -1"},
        {{.vector = {.count = KU_PS_MAX_VECTOR + 1LL, .lr = 1}}, "--vector: 268435457"},
        {{.vector = {.count = 3, .optimizer = "lamb", .lr = 1}}, "lamb: it needs the tensors"},
        {{.vector = {.count = 3, .optimizer = "lars", .lr = 1}}, "lars: it needs the tensors"},
        {{.vector = {.count = 3, .optimizer = "adafactor", .lr = 1}}, "adafactor: it needs"},
        {{.vector = {.count = 3, .optimizer = "sdg", .lr = 1}}, "\"sdg\"; one of"},
        {{.vector = {.count = 3, .lr = -1}}, "optimizer.lr"},
        {{.vector = {.count = 3, .lr = (double)NAN}}, "optimizer.lr"},
        {{.vector = {.count = 3, .lr = 1, .set = wrong, .n_set = 1}}, "only optimizer keys"},
        {{.vector = {.count = 3, .lr = 1}, .package = "a..b"}, "--package"},
        {{.vector = {.count = 3, .lr = 1}, .package = ""}, "--package"},
        {{.vector = {.count = 3, .lr = 1}, .package = "1a"}, "--package"},
        {{.vector = {.count = 3, .lr = 1}, .package = "a/b"}, "--package"},
    };
    struct ku_ps_vector_service *s;
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        assert_int_equal(ku_ps_vector_serve(&row[i].o, &s), KUMI_EINVAL);
        if (strstr(ku_err_get()->text, row[i].text) == NULL)
            fail_msg("%s", ku_err_get()->text);
    }
}

/* A client that pushes while others send bad input: each of its pushes is applied, once. */
struct other {
    struct ku_rpc_channel *channel;
    float *g;
    int n_pushes, n_failed;
};
static void *push_on(void *ctx)
{
    struct other *o = ctx;
    for (int i = 0; i < o->n_pushes; i++)
        o->n_failed += push(o->channel, PUSH, o->g, 100, 1) != 0;
    return NULL;
}

static void test_bad_input(void **state)
{
    static const float wrong[] = {NAN, INFINITY, -INFINITY};
    static const char *const name[] = {"element 99 is NaN", "element 99 is infinite",
                                       "element 99 is infinite"};
    enum { PUSHES = 32 }; /* a power of two: the sum is exact */
    struct pair p;
    pthread_t thread;
    struct ku_rpc_buf b;
    struct ku_rpc_msg m;
    float *g = filled(100, 1), *bad = filled(30000, 1);
    (void)state;
    pair_open(&p, (struct ku_ps_vector_service_opts){.vector = {.count = 100, .lr = 0.125}});
    struct other other = {p.channel, g, PUSHES, 0};
    assert_int_equal(pthread_create(&thread, NULL, push_on, &other), 0);
    for (size_t i = 0; i < 3; i++) {
        bad[99] = wrong[i];
        assert_int_equal(push(p.channel, PUSH, bad, 100, 7), KUMI_EINVAL);
        assert_non_null(strstr(ku_err_get()->text, "worker 7"));
        assert_non_null(strstr(ku_err_get()->text, name[i]));
    }
    for (size_t n = 0; n < 300; n += 99 + (n == 0)) {
        if (n == 100)
            continue;
        assert_int_equal(push(p.channel, PUSH, bad, n, 7), KUMI_EINVAL);
        assert_non_null(strstr(ku_err_get()->text, "numbers; the vector has 100"));
    }
    assert_int_equal(push(p.channel, PUSH, g, 100, -1), KUMI_EINVAL);
    assert_non_null(strstr(ku_err_get()->text, "worker_id: -1"));
    assert_int_equal(push(p.channel, PUSH, bad, 30000, 0), KUMI_ENOMEM);
    assert_non_null(strstr(ku_err_get()->text, "larger than max"));
    assert_int_equal(push(p.channel, "/ParameterServer/Push", g, 100, 0), KUMI_EINVAL);
    assert_non_null(strstr(ku_err_get()->text, "unknown method"));
    assert_int_equal(ku_rpc_buf_copy(&b, "\x0a\xff", 2), 0);
    assert_int_equal(ku_rpc_unary(p.channel, PUSH, &b, LONG, false, &m), KUMI_EINVAL);
    assert_non_null(strstr(ku_err_get()->text, "message: byte "));
    pthread_join(thread, NULL);
    assert_int_equal(other.n_failed, 0);
    expect_all(&p, PULL, 100, -0.125f * PUSHES);
    pair_close(&p);
    ku_free(g);
    ku_free(bad);
}

/* A push that is larger than the default memory of gRPC's buffers. */
static void test_large(void **state)
{
    const size_t count = 140 << 20, bytes = count * sizeof(float);
    struct ku_rpc_buf b;
    struct ku_rpc_msg m = {0};
    struct pair p;
    (void)state;
    if (!sample_is_all()) {
        print_message("2 GiB of memory: with KUMI_TEST_ALL=1\n");
        return;
    }
    assert_true(bytes > KU_RPC_MEMORY_BYTES);
    pair_open(&p, (struct ku_ps_vector_service_opts){.vector = {.count = (int64_t)count, .lr = 1}});
    assert_int_equal(ku_rpc_buf_init(&b, ku_proto_n_bytes(1, bytes)), 0);
    memset(ku_proto_put_head(b.data, 1, bytes), 0, bytes);
    if (ku_rpc_unary(p.channel, PUSH, &b, LONG, false, &m) < 0)
        fail_msg("%s", ku_err_get()->text);
    ku_rpc_msg_fini(&m);
    pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_textbook), cmocka_unit_test(test_optimizers),
        cmocka_unit_test(test_options),  cmocka_unit_test(test_bad_input),
        cmocka_unit_test(test_large),
    };
    if (cannot_run())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
