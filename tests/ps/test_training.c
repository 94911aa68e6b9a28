/* SPDX-License-Identifier: Apache-2.0 */
/* links: ps */
/* A server of a training and a client that is no worker: once, and what is refused. */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "ps/remote/service_messages.h"
#include "ps/rpc/private.h"
#include "ps/rpc/rpc_limits.h"
#include "ps/selection.h"
#include "remote/sparse.h"

#define SECOND KU_RPC_SECOND

static char dir[64], address[96];
static pid_t server;
static struct ku_rpc_channel *channel, *second; /* second: of two servers, the other one */
static int n_servers = 1;                       /* that start_of starts */
static size_t push_bytes[2];
static uint64_t welcome[KU_PS_N_REPLY];
static const char config[] =
    "{\"model\": {\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_head\": 2, \"n_embd\": 16, "
    "\"n_positions\": 16, \"vocab_size\": 256, \"tie_word_embeddings\": false}, \"optimizer\": "
    "{\"type\": \"sgd\", \"momentum\": 0, \"weight_decay\": 0}, \"data\": {\"train\": "
    "\"%s/t.txt\", \"seq_len\": "
    "16}, \"train\": {\"steps\": 100, \"global_batch\": 2, \"micro_batch\": 2, \"threads\": 1}, "
    "\"ps\": {\"workers\": 1}}";

/* A server of the folder `name`, with more options. */
static void start_of(const char *name, const char *const *more)
{
    char out[80], file[80];
    char *argv[24] = {(char[]){"kumi"},  (char[]){"run"},
                      (char[]){"-n"},    (char[]){"2"},
                      (char[]){"--"},    (char[]){KUMI_BINARY_DIR "/kumi-ps"},
                      (char[]){"serve"}, file,
                      (char[]){"--out"}, out};
    enum { N_FIXED = 10, LAUNCHER = 5 /* arguments of it */ };
    snprintf(out, sizeof out, "%s/%s", dir, name);
    snprintf(file, sizeof file, "%s/c.json", dir);
    for (int i = 0; more && more[i]; i++) {
        assert_true(N_FIXED + i < 23);
        argv[N_FIXED + i] = strdup(more[i]);
    }
    server = fork();
    if (server == 0) {
        if (n_servers > 1)
            execv(KUMI_BINARY_DIR "/kumi", argv);
        else
            execv(argv[LAUNCHER], argv + LAUNCHER);
        _exit(127);
    }
    for (int i = N_FIXED; argv[i]; i++)
        free(argv[i]);
    assert_int_equal(ku_rpc_channel_wait(channel, 60 * SECOND), 0);
}

static void start_server(void)
{
    start_of("run", NULL);
}

/* The channel leads to a server of a folder. */
static void aim_at_server(const char *name, int number)
{
    ku_rpc_channel_destroy(channel);
    snprintf(address, sizeof address, "unix:%s/%s/server-%d.sock", dir, name, number);
    const struct ku_rpc_channel_opts o = {.address = address, .max_back_off_ns = SECOND / 10};
    assert_int_equal(ku_rpc_channel_create(&o, &channel), 0);
}

static void aim_at(const char *name)
{
    aim_at_server(name, 0);
}

/* Waits for the end of the server; -1: it is not there in time. */
static int exit_code(int64_t timeout_ns)
{
    int status;
    for (int64_t ns = 0; ns < timeout_ns; ns += 10000000, usleep(10000))
        if (waitpid(server, &status, WNOHANG) == server) {
            server = 0;
            return WIFEXITED(status) ? WEXITSTATUS(status) : -2;
        }
    return -1;
}

static int open_all(void **state)
{
    char path[80], text[600], *words;
    (void)state;
    if (access(KUMI_BINARY_DIR "/kumi-ps", X_OK) != 0)
        exit(77);
    snprintf(dir, sizeof dir, "/tmp/kumi-training-%d", (int)getpid());
    assert_int_equal(ku_os_mkdirs(dir), 0);
    words = ku_malloc(20000);
    for (int i = 0; i < 20000; i++)
        words[i] = (char)('a' + i * i % 26);
    snprintf(path, sizeof path, "%s/t.txt", dir);
    assert_int_equal(ku_os_replace(path, words, 20000), 0);
    ku_free(words);
    snprintf(text, sizeof text, config, dir);
    snprintf(path, sizeof path, "%s/c.json", dir);
    assert_int_equal(ku_os_replace(path, text, strlen(text)), 0);
    aim_at("run");
    start_server();
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    ku_rpc_channel_destroy(channel);
    ku_rpc_channel_destroy(second);
    if (server > 0) {
        kill(server, SIGKILL);
        waitpid(server, NULL, 0);
    }
    return ku_os_rmtree(dir);
}

static int call(const char *path, const uint64_t *field, uint32_t n, uint64_t *reply,
                uint32_t n_reply)
{
    struct ku_rpc_buf b;
    struct ku_rpc_msg m = {0};
    struct ku_proto_in text;
    KU_TRY(ku_ps_message_put(field, n, 0, 0, &b, NULL));
    KU_TRY(ku_rpc_unary(channel, path, &b, 30 * SECOND, true, &m));
    const int status = ku_ps_message_get(&m, reply, n_reply,
                                         n_reply == KU_PS_N_REPLY ? KU_PS_R_NUMERICS : 0, &text);
    ku_rpc_msg_fini(&m);
    return status;
}

static int hello_at(uint64_t worker, uint64_t incarnation, uint64_t layout, uint64_t begin)
{
    const uint64_t field[KU_PS_N_REQUEST] = {[KU_PS_Q_WORKER] = worker,
                                             [KU_PS_Q_INCARNATION] = incarnation,
                                             [KU_PS_Q_LAYOUT] = layout,
                                             [KU_PS_Q_BEGIN] = begin};
    return call(KU_PS_SERVICE "Connect", field, KU_PS_N_REQUEST, welcome, KU_PS_N_REPLY);
}

static int hello(uint64_t worker, uint64_t incarnation, uint64_t layout)
{
    return hello_at(worker, incarnation, layout, UINT64_MAX);
}

/* Of a server that was started again: the channel has yet to notice. */
static int await_hello(uint64_t worker, uint64_t incarnation, uint64_t layout)
{
    int status = KUMI_EPEER;
    for (int i = 0; i < 3000 && status == KUMI_EPEER; i++) {
        status = hello(worker, incarnation, layout);
        usleep(status == KUMI_EPEER ? 10000 : 0);
    }
    return status;
}

static uint64_t state_of(enum ku_ps_state_field field)
{
    uint64_t reply[KU_PS_N_STATE];
    const uint64_t none[1] = {0};
    if (call(KU_PS_SERVICE "Status", none, 1, reply, KU_PS_N_STATE) < 0)
        fail_msg("%s", ku_err_get()->text);
    return reply[field];
}

/* A frame, whose numbers a test may spoil. */
struct frame {
    uint64_t worker, incarnation, step, offset;
    size_t bytes;
    float value;
    bool is_damaged, is_sparse;
    uint32_t body[8]; /* is_sparse: the beginning of the data */
};
/* Sends a frame; is_last: awaits the acknowledgement, or the status that ends the stream. */
static int send_frame(struct ku_rpc_stream *s, const struct frame *f, bool is_last)
{
    float *data = ku_malloc(f->bytes + sizeof *data);
    struct ku_rpc_buf b;
    struct ku_rpc_msg m = {0};
    void *at;
    bool is_end;
    for (size_t i = 0; i < f->bytes / sizeof *data; i++)
        data[i] = f->value;
    if (f->is_sparse)
        memcpy(data, f->body, f->bytes < sizeof f->body ? f->bytes : sizeof f->body);
    const uint64_t field[KU_PS_N_FRAME] = {[KU_PS_F_WORKER] = f->worker,
                                           [KU_PS_F_INCARNATION] = f->incarnation,
                                           [KU_PS_F_STEP] = f->step,
                                           [KU_PS_F_OFFSET] = f->offset,
                                           [KU_PS_F_CHECKSUM] =
                                               ku_hash64(data, f->bytes) + f->is_damaged,
                                           [KU_PS_F_SPARSE] = f->is_sparse};
    assert_int_equal(ku_ps_message_put(field, KU_PS_N_FRAME, KU_PS_F_DATA, f->bytes, &b, &at), 0);
    memcpy(at, data, f->bytes);
    ku_free(data);
    int status = ku_rpc_stream_send(s, &b, 30 * SECOND);
    ku_rpc_buf_fini(&b);
    if (status == 0 && is_last) {
        status = ku_rpc_stream_recv(s, &m, &is_end, 30 * SECOND);
        ku_rpc_msg_fini(&m);
    }
    return status;
}

static struct ku_rpc_stream *open_stream(void)
{
    struct ku_rpc_stream *s = NULL;
    assert_int_equal(ku_rpc_stream_open(channel, KU_PS_SERVICE "Push", true, &s), 0);
    return s;
}

static int send_one(const struct frame *f)
{
    struct ku_rpc_stream *s = open_stream();
    const int status = send_frame(s, f, true);
    const struct kumi_error error = *ku_err_get();
    ku_rpc_stream_destroy(s);
    ku_err_put(&error);
    return status;
}

/* A whole step, of the worker of f, with a pause before each frame; gaps are included. */
static int send_slowly(struct ku_rpc_stream *s, struct frame f, useconds_t pause_us)
{
    const size_t all = welcome[KU_PS_R_PUSH_BYTES];
    int status = 0;
    for (f.offset = 0; f.offset < all && status == 0; f.offset += f.bytes) {
        f.bytes = all - f.offset < 4096 ? all - f.offset : 4096;
        usleep(pause_us);
        status = send_frame(s, &f, f.offset + f.bytes == all);
    }
    return status;
}

static int send_all(struct ku_rpc_stream *s, uint64_t incarnation, uint64_t step, float value)
{
    return send_slowly(s, (struct frame){.incarnation = incarnation, .step = step, .value = value},
                       0);
}

static int send_step(uint64_t incarnation, uint64_t step, float value)
{
    struct ku_rpc_stream *s = open_stream();
    const int status = send_all(s, incarnation, step, value);
    const struct kumi_error error = *ku_err_get();
    ku_rpc_stream_destroy(s);
    ku_err_put(&error);
    return status;
}

static void await_version(uint64_t version)
{
    for (int i = 0; i < 3000 && state_of(KU_PS_S_VERSION) < version; i++)
        usleep(10000);
    assert_int_equal(state_of(KU_PS_S_VERSION), version);
}

static void refused(void **state)
{
    static const struct {
        struct frame f;
        int status;
        const char *text;
    } row[] = {
        {{.worker = 1, .incarnation = 5, .bytes = 64}, KUMI_EINVAL, "worker 1 is unknown"},
        {{.worker = 1 << 20, .incarnation = 5, .bytes = 64}, KUMI_EINVAL, "worker 1048576 is"},
        {{.incarnation = 4, .bytes = 64}, KUMI_EINVAL, "incarnation 4 was replaced by 5"},
        {{.incarnation = 6, .bytes = 64}, KUMI_EINVAL, "incarnation 6 has not connected"},
        {{.incarnation = 5, .step = 1, .bytes = 64},
         KUMI_EINVAL,
         "step 1, which is in the future: this server expects step 0"},
        {{.incarnation = 5, .step = 1ull << 63, .bytes = 64}, KUMI_EINVAL, "is negative"},
        {{.incarnation = 5, .offset = 1, .bytes = 64}, KUMI_EINVAL, "multiple of 64"},
        {{.incarnation = 5, .offset = 1ull << 40, .bytes = 64}, KUMI_EINVAL, "a range lies within"},
        {{.incarnation = 5, .bytes = 0}, KUMI_EINVAL, "a range lies within"},
        {{.incarnation = 5, .bytes = (1 << 20) + 4}, KUMI_EINVAL, "a frame of 1048580 bytes"},
        {{.incarnation = 5, .bytes = 64, .is_damaged = true}, KUMI_EINPUT, "is damaged: checksum"},
        {{.incarnation = 5, .bytes = 15, .is_sparse = true}, KUMI_EINVAL, "ps: rows: 15 bytes"},
        {{.incarnation = 5, .bytes = 24, .is_sparse = true, .body = {64, 0, 1, 0, 0, 1}},
         KUMI_EINVAL,
         "ps: rows: 24 bytes, of which the runs need 88"},
        {{.incarnation = 5, .bytes = 88, .is_sparse = true, .body = {64, 0, 1, 0, 1, 1}},
         KUMI_EINVAL,
         "ps: rows: run 0 has cells 1 to 2, after cell 0, of 1"},
        {{.incarnation = 5, .bytes = 16, .is_sparse = true, .body = {16 << 20, 0, 0, 0}},
         KUMI_EINVAL,
         "a range lies within"},
    };
    (void)state;
    assert_int_equal(hello(0, 5, 0), 0);
    const uint64_t layout = welcome[KU_PS_R_LAYOUT];
    assert_int_equal(hello(0, 5, layout + 1), KUMI_EMISMATCH);
    assert_non_null(strstr(ku_err_get()->text, "differ from the servers' (layout "));
    assert_int_equal(hello(9, 5, layout), KUMI_EINVAL);
    assert_int_equal(hello(0, UINT64_MAX, layout), KUMI_EINVAL);
    assert_non_null(strstr(ku_err_get()->text, "give a number below 2^63"));
    assert_int_equal(hello_at(0, 9, layout, 0), KUMI_EINVAL);
    assert_non_null(strstr(ku_err_get()->text, "begins at step 0; server 0 decides the step"));
    assert_int_equal(hello(0, 5, layout), 0);
    assert_int_equal(welcome[KU_PS_R_BEGIN], 0);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const int is = send_one(&row[i].f);
        if (is != row[i].status || strstr(ku_err_get()->text, row[i].text) == NULL)
            fail_msg("row %zu: %d %s", i, is, ku_err_get()->text);
    }
    assert_int_equal(state_of(KU_PS_S_VERSION), 0);
}

/* A step is applied once: sent again, by a later incarnation, and after the server was killed. */
static void once(void **state)
{
    const uint64_t none[1] = {0};
    uint64_t layout[3]; /* checksum, server; then the tensors (test_messages.c) */
    (void)state;
    assert_int_equal(send_step(5, 0, 0), 0);
    await_version(1);
    assert_int_equal(call(KU_PS_SERVICE "Layout", none, 1, layout, 3), 0);
    assert_true(layout[1] == welcome[KU_PS_R_LAYOUT] && layout[2] == 0);
    const uint64_t pushes = state_of(KU_PS_S_PUSHES);
    assert_int_equal(send_step(5, 0, 1), 0); /* acknowledged, other bytes and all */
    assert_int_equal(state_of(KU_PS_S_PUSHES), pushes);
    assert_int_equal(hello(0, 7, welcome[KU_PS_R_LAYOUT]), 0);
    assert_int_equal(welcome[KU_PS_R_BEGIN], 1);
    assert_int_equal(send_step(7, 0, 1), 0);
    assert_int_equal(send_step(5, 1, 1), KUMI_EINVAL);
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    start_server();
    assert_int_equal(await_hello(0, 7, welcome[KU_PS_R_LAYOUT]), 0);
    assert_int_equal(send_step(7, 0, 1), 0);
    assert_true(welcome[KU_PS_R_BEGIN] == 1 && state_of(KU_PS_S_VERSION) == 1);
    assert_int_equal(hello(0, 6, welcome[KU_PS_R_LAYOUT]), KUMI_EINVAL);
    assert_int_equal(send_step(7, 1, 0), 0);
    await_version(2);
}

/* A step in one message of 16 bytes: all zeros. */
static void zeros(void **state)
{
    const uint32_t bytes = (uint32_t)welcome[KU_PS_R_PUSH_BYTES];
    (void)state;
    assert_int_equal(welcome[KU_PS_R_TAKES_SPARSE], 1);
    const struct frame f = {
        .incarnation = 7, .step = 2, .bytes = 16, .is_sparse = true, .body = {bytes, 0, 0, 0}};
    assert_int_equal(send_one(&f), 0);
    await_version(3);
}

static int ask_as(struct ku_rpc_stream *s, uint64_t incarnation, uint64_t step, bool asks_changes)
{
    const uint64_t request[KU_PS_N_FRAME] = {[KU_PS_F_INCARNATION] = incarnation,
                                             [KU_PS_F_STEP] = step,
                                             [KU_PS_F_SPARSE] = asks_changes};
    struct ku_rpc_buf b;
    assert_int_equal(ku_ps_message_put(request, KU_PS_N_FRAME, 0, 0, &b, NULL), 0);
    const int status = ku_rpc_stream_send(s, &b, 30 * SECOND);
    ku_rpc_buf_fini(&b);
    return status;
}

static int ask(struct ku_rpc_stream *s, uint64_t step, bool asks_changes)
{
    return ask_as(s, 7, step, asks_changes);
}

/* Pulls the parameters of `step`; returns the bytes of data, and how many frames were sparse. */
static size_t pull(struct ku_rpc_stream *s, uint64_t step, bool asks_changes, unsigned char *image,
                   int *n_sparse)
{
    size_t sent = 0;
    *n_sparse = 0;
    assert_int_equal(ask(s, step, asks_changes), 0);
    for (size_t at = 0, extent; at < welcome[KU_PS_R_PULL_BYTES]; at += extent) {
        uint64_t field[KU_PS_N_FRAME];
        struct ku_rpc_msg m = {0};
        struct ku_proto_in in;
        bool is_end;
        assert_int_equal(ku_rpc_stream_recv(s, &m, &is_end, 30 * SECOND), 0);
        assert_false(is_end);
        assert_int_equal(ku_ps_message_get(&m, field, KU_PS_N_FRAME, KU_PS_F_DATA, &in), 0);
        assert_true(field[KU_PS_F_OFFSET] == at && field[KU_PS_F_VERSION] == step);
        extent = in.left;
        sent += in.left;
        unsigned char *data = ku_malloc(in.left);
        assert_int_equal(ku_proto_take(&in, data, extent), 0);
        assert_true(ku_hash64(data, extent) == field[KU_PS_F_CHECKSUM]);
        if (field[KU_PS_F_SPARSE]) {
            assert_int_equal(ku_sparse_check(data, extent, &extent), 0);
            ku_sparse_merge(data, image + at);
            ++*n_sparse;
        } else {
            memcpy(image + at, data, extent);
        }
        ku_free(data);
        ku_rpc_msg_fini(&m);
    }
    return sent;
}

static struct ku_rpc_stream *open_pull(void)
{
    struct ku_rpc_stream *s = NULL;
    assert_int_equal(ku_rpc_stream_open(channel, KU_PS_SERVICE "Pull", true, &s), 0);
    return s;
}

/* A second pull of a stream has what has changed, and gives the bytes of a whole one. */
static void changes(void **state)
{
    const size_t all = welcome[KU_PS_R_PULL_BYTES];
    unsigned char *image = ku_calloc(all, 1), *before = ku_calloc(all, 1), *is = ku_calloc(all, 1);
    struct ku_rpc_stream *s = open_pull();
    struct ku_rpc_msg none = {0};
    int n_sparse;
    bool is_end;
    (void)state;
    assert_int_equal(pull(s, 3, true, image, &n_sparse), all);
    assert_int_equal(n_sparse, 0); /* the first one of the stream */
    memcpy(before, image, all);
    const struct frame some = {.incarnation = 7,
                               .step = 3,
                               .bytes = 16 + 8 + 64,
                               .value = 1,
                               .is_sparse = true,
                               .body = {(uint32_t)welcome[KU_PS_R_PUSH_BYTES], 0, 1, 0, 2, 1}};
    assert_int_equal(send_one(&some), 0);
    await_version(4);
    assert_in_range(pull(s, 4, true, image, &n_sparse), 1, 3000);
    assert_int_equal(n_sparse, 1);
    assert_memory_not_equal(image, before, all);
    struct ku_rpc_stream *other = open_pull();
    assert_int_equal(pull(other, 4, false, is, &n_sparse), all);
    assert_int_equal(n_sparse, 0);
    assert_int_equal(ku_rpc_stream_recv(s, &none, &is_end, 30 * SECOND), KUMI_EPEER);
    assert_non_null(strstr(ku_err_get()->text, "worker 0 has opened another stream"));
    assert_memory_equal(image, is, all);
    assert_int_equal(pull(other, 4, false, is, &n_sparse), all);   /* it did not ask for changes */
    assert_in_range(pull(other, 4, true, is, &n_sparse), 1, 2000); /* there are none */
    assert_memory_equal(image, is, all);
    ku_rpc_stream_destroy(s);
    ku_rpc_stream_destroy(other);
    ku_free(image);
    ku_free(before);
    ku_free(is);
}

/* A part of the pull space, asked for as worker 0 of step 4. */
struct asked {
    uint64_t offset, bytes, row_bytes;
    size_t n_rows;
    uint32_t row[4];
};
/* Into data; the status of an answer that is refused. */
static int pull_part(const struct asked *a, unsigned char *data, size_t *bytes)
{
    uint64_t field[KU_PS_N_FRAME] = {
        [KU_PS_F_INCARNATION] = 7, [KU_PS_F_STEP] = 4,         [KU_PS_F_OFFSET] = a->offset,
        [KU_PS_F_SPARSE] = 1,      [KU_PS_F_BYTES] = a->bytes, [KU_PS_F_ROW_BYTES] = a->row_bytes};
    struct ku_rpc_stream *s = open_pull();
    struct ku_proto_in in;
    struct ku_rpc_buf b;
    struct ku_rpc_msg m = {0};
    void *at;
    bool is_end;
    const size_t n = a->n_rows * sizeof *a->row;
    assert_int_equal(ku_ps_message_put(field, KU_PS_N_FRAME, KU_PS_F_ROWS, n, &b, &at), 0);
    memset(at, 0, n);
    memcpy(at, a->row, n < sizeof a->row ? n : sizeof a->row);
    assert_int_equal(ku_rpc_stream_send(s, &b, 30 * SECOND), 0);
    const int status = ku_rpc_stream_recv(s, &m, &is_end, 30 * SECOND);
    if (status == KUMI_OK) {
        assert_int_equal(ku_ps_message_get(&m, field, KU_PS_N_FRAME, KU_PS_F_DATA, &in), 0);
        *bytes = in.left;
        assert_int_equal(ku_proto_take(&in, data, *bytes), 0);
        assert_true(field[KU_PS_F_OFFSET] == (a->n_rows ? 0 : a->offset));
        assert_true(field[KU_PS_F_VERSION] == 4 && field[KU_PS_F_SPARSE] == 0);
        assert_true(ku_hash64(data, *bytes) == field[KU_PS_F_CHECKSUM]);
        ku_rpc_msg_fini(&m);
    }
    const struct kumi_error error = *ku_err_get();
    ku_rpc_buf_fini(&b);
    ku_rpc_stream_destroy(s);
    ku_err_put(&error);
    return status;
}

/* A range and rows have the bytes of a whole pull; what does not lie within is refused. */
static void ranges(void **state)
{
    const size_t all = welcome[KU_PS_R_PULL_BYTES];
    unsigned char *image = ku_calloc(all, 1), *data = ku_calloc(all, 1);
    struct ku_rpc_stream *s = open_pull();
    const struct {
        struct asked a;
        const char *text; /* NULL: it is answered */
    } row[] = {
        {{.offset = 4, .bytes = 4092}, NULL},
        {{.offset = 4097}, NULL}, /* to the end */
        {{.offset = all - 1, .bytes = 1}, NULL},
        {{.offset = 1024, .row_bytes = 64, .n_rows = 4, .row = {0, 1, 7, 255}}, NULL},
        {{.offset = 1024, .bytes = 192, .row_bytes = 64, .n_rows = 1, .row = {2}}, NULL},
        {{.offset = all}, "pulls 0 bytes at"},
        {{.offset = all - 8, .bytes = 9}, "pulls 9 bytes at"},
        {{.offset = 8, .bytes = UINT64_MAX}, "a range lies within"},
        {{.offset = UINT64_MAX, .bytes = 2}, "a range lies within"},
        {{.row_bytes = 64}, "pulls 0 rows of 64 bytes; give both"},
        {{.n_rows = 1}, "pulls 1 rows of 0 bytes; give both"},
        {{.row_bytes = 64, .n_rows = 3, .row = {1, 4, 4}}, "row 4 after row 4; rows ascend"},
        {{.bytes = 192, .row_bytes = 64, .n_rows = 2, .row = {2, 3}},
         "pulls row 3, of a range of 3 rows of 64 bytes"},
        {{.row_bytes = UINT64_MAX, .n_rows = 1, .row = {UINT32_MAX}}, "pulls row 4294967295, of"},
        {{.row_bytes = 1, .n_rows = KU_PS_MAX_ROWS + 1}, "pulls 65537 rows; at most 65536"},
    };
    int n_sparse;
    size_t bytes = 0;
    (void)state;
    assert_int_equal(welcome[KU_PS_R_TAKES_RANGES], 1);
    pull(s, 4, false, image, &n_sparse);
    ku_rpc_stream_destroy(s);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const struct asked *a = &row[i].a;
        const int status = pull_part(a, data, &bytes);
        if (status != (row[i].text ? KUMI_EINVAL : KUMI_OK) ||
            (row[i].text && !strstr(ku_err_get()->text, row[i].text)))
            fail_msg("row %zu: %d %s", i, status, ku_err_get()->text);
        if (row[i].text)
            continue;
        const size_t part = a->bytes ? a->bytes : all - a->offset;
        assert_int_equal(bytes, a->n_rows ? a->n_rows * a->row_bytes : part);
        for (size_t k = 0; k < a->n_rows; k++)
            assert_memory_equal(data + k * a->row_bytes,
                                image + a->offset + a->row[k] * a->row_bytes, a->row_bytes);
        if (a->n_rows == 0)
            assert_memory_equal(data, image + a->offset, bytes);
    }
    ku_free(image);
    ku_free(data);
}

/* Where bytes of an answer are, from any of them on: frames begin within rows. */
static void selections(void **state)
{
    const uint32_t row[] = {1, 2, 5};
    struct ku_ps_selection x = {
        .offset = 100, .bytes = 80, .row_bytes = 10, .row = row, .n_rows = 3};
    (void)state;
    assert_int_equal(ku_ps_selection_check(&x, 0, 180), 0);
    assert_int_equal(ku_ps_selection_bytes(&x), 30);
    for (size_t at = 0, bytes; at < 30; at++) {
        const size_t is = ku_ps_selection_find(&x, at, &bytes);
        assert_int_equal(is, 100 + 10 * row[at / 10] + at % 10);
        assert_int_equal(bytes, at < 20 ? 20 - at : 30 - at);
    }
}

/* A stream of an incarnation that has not connected is refused, and ends none of the worker's. */
static void stranger(void **state)
{
    unsigned char *image = ku_calloc(welcome[KU_PS_R_PULL_BYTES], 1);
    struct ku_rpc_stream *s = open_pull(), *other = open_pull();
    struct ku_rpc_msg none = {0};
    int n_sparse;
    bool is_end;
    (void)state;
    pull(s, 4, false, image, &n_sparse);
    assert_int_equal(ask_as(other, 999, 4, false), 0);
    assert_int_equal(ku_rpc_stream_recv(other, &none, &is_end, 30 * SECOND), KUMI_EINVAL);
    assert_non_null(strstr(ku_err_get()->text, "incarnation 999 has not connected"));
    pull(s, 4, false, image, &n_sparse);
    ku_rpc_stream_destroy(s);
    ku_rpc_stream_destroy(other);
    ku_free(image);
}

/*
 * A stream whose answers are not read ends when the worker opens another one. Its requests fit into
 * the window, so the client learns that from its next one alone.
 */
static void unread(void **state)
{
    enum { N_ASKED = 1000 };
    unsigned char *image = ku_calloc(welcome[KU_PS_R_PULL_BYTES], 1);
    struct ku_rpc_stream *s = open_pull(), *other = open_pull();
    int n_sparse, status = KUMI_OK;
    (void)state;
    pull(s, 4, false, image, &n_sparse);
    for (int i = 0; i < N_ASKED; i++)
        assert_int_equal(ask(s, 4, false), 0);
    pull(other, 4, false, image, &n_sparse);
    for (int i = 0; i < 200 && status == KUMI_OK; i++) {
        status = ask(s, 4, false);
        usleep(10000);
    }
    assert_int_equal(status, KUMI_EPEER);
    ku_rpc_stream_destroy(s);
    ku_rpc_stream_destroy(other);
    ku_free(image);
}

/* In sync, as for any run: a gradient that is not finite ends it, with the first tensor named. */
static void not_finite(void **state)
{
    int status;
    (void)state;
    assert_int_equal(send_step(7, 4, NAN), 0);
    assert_int_equal(waitpid(server, &status, 0), server);
    server = 0;
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == -KUMI_ENUMERIC);
}

/* What a worker that computes while the servers end gets with its next call. */
static int last_call(const char *name)
{
    const struct frame f = {.incarnation = 5, .bytes = 64};
    aim_at(name);
    start_of(name, NULL);
    assert_int_equal(hello(0, 5, 0), 0);
    assert_int_equal(hello(0, 5, welcome[KU_PS_R_LAYOUT]), 0);
    struct ku_rpc_stream *s = open_stream();
    assert_int_equal(send_frame(s, &f, false), 0);
    for (int i = 0; i < 3000 && state_of(KU_PS_S_N_CONNECTED) == 0; i++)
        usleep(10000);
    kill(server, SIGTERM);
    assert_int_equal(exit_code(5 * SECOND), -KUMI_ESTOPPED);
    const int status = send_frame(s, &f, false);
    ku_rpc_stream_destroy(s);
    return status;
}

/* It is the status. On a loaded machine gRPC may drop the connection before that is read. */
static void goodbye(void **state)
{
    static const char *const name[] = {"goodbye", "goodbye-2", "goodbye-3"};
    int status = 0;
    (void)state;
    for (int i = 0; i < 3 && status != KUMI_ESTOPPED; i++)
        status = last_call(name[i]);
    if (status != KUMI_ESTOPPED)
        fail_msg("%s", ku_err_get()->text);
}

static void kill_server(void)
{
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    server = 0;
}

/* A checkpoint that cannot be written: the snapshot says so, and the run goes on. */
static void no_snapshot(void **state)
{
    const uint64_t none[1] = {0};
    uint64_t reply[KU_PS_N_STATE];
    char path[96];
    (void)state;
    aim_at("no-snapshot");
    start_of("no-snapshot", NULL);
    assert_int_equal(hello(0, 5, 0), 0);
    assert_int_equal(hello(0, 5, welcome[KU_PS_R_LAYOUT]), 0);
    assert_int_equal(send_step(5, 0, 0), 0);
    await_version(1);
    snprintf(path, sizeof path, "%s/no-snapshot/checkpoints", dir);
    assert_int_equal(ku_os_rmtree(path), 0);
    assert_int_equal(ku_os_replace(path, "", 0), 0);
    assert_int_equal(call(KU_PS_SERVICE "Snapshot", none, 1, reply, KU_PS_N_STATE), KUMI_ESTORAGE);
    assert_non_null(strstr(ku_err_get()->text, path));
    assert_int_equal(send_step(5, 1, 0), 0);
    await_version(2);
    kill_server();
}

/*
 * A full disk: a push is refused with RESOURCE_EXHAUSTED and a text that names the journal's file;
 * pulls and Status go on.
 */
static void disk_full(void **state)
{
    enum { N_BEFORE = 300 }; /* writes that succeed: more than those of the start */
    struct frame f = {.incarnation = 7, .bytes = 64};
    unsigned char *image;
    int n_sparse, status = KUMI_OK;
    char fault[32];
    (void)state;
    snprintf(fault, sizeof fault, "write:%d", N_BEFORE);
    aim_at("full");
    setenv("KUMI_FAULT", fault, 1);
    start_of("full", NULL);
    unsetenv("KUMI_FAULT");
    assert_int_equal(hello(0, 7, 0), 0);
    assert_int_equal(hello(0, 7, welcome[KU_PS_R_LAYOUT]), 0);
    struct ku_rpc_stream *s = open_stream(), *other = open_pull();
    assert_true(welcome[KU_PS_R_PUSH_BYTES] > 2 * N_BEFORE * f.bytes); /* it is not complete */
    for (int i = 0; i < 2 * N_BEFORE && status == KUMI_OK; i++, f.offset += f.bytes)
        status = send_frame(s, &f, false);
    while (status == KUMI_OK) /* what was sent is on its way */
        status = send_frame(s, &f, true);
    assert_int_equal(status, KUMI_ESTORAGE);
    assert_int_equal(ku_rpc_code(status), GRPC_STATUS_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(ku_err_get()->text, "full/journal/server-0/00000001.journal"));
    image = ku_calloc(welcome[KU_PS_R_PULL_BYTES], 1);
    pull(other, 0, false, image, &n_sparse);
    assert_int_equal(state_of(KU_PS_S_REFUSED), 1);
    ku_free(image);
    ku_rpc_stream_destroy(s);
    ku_rpc_stream_destroy(other);
    kill_server();
}

/* With a backup worker an update is done without a late push, which is counted. */
static void late(void **state)
{
    const char *const more[] = {"--set", "ps.workers=2", "--set", "train.micro_batch=1",
                                "--set", "ps.backup=1",  NULL};
    struct frame f = {.worker = 1, .incarnation = 5};
    (void)state;
    aim_at("late");
    start_of("late", more);
    assert_int_equal(hello(0, 5, 0), 0);
    const uint64_t layout = welcome[KU_PS_R_LAYOUT];
    assert_int_equal(hello(1, 5, layout), 0);
    assert_int_equal(hello(0, 5, layout), 0);
    struct ku_rpc_stream *one = open_stream(), *other = open_stream();
    assert_int_equal(send_all(one, 5, 0, 0), 0);
    await_version(1);
    assert_int_equal(state_of(KU_PS_S_DROPPED), 1);
    assert_int_equal(send_slowly(other, f, 0), 0);
    f.step = 1; /* and now the other one is late */
    assert_int_equal(send_slowly(other, f, 0), 0);
    await_version(2);
    assert_int_equal(state_of(KU_PS_S_DROPPED), 2);
    /* what is not finite is refused alone, also in rows */
    const struct frame rows = {.worker = 1,
                               .incarnation = 5,
                               .step = 2,
                               .bytes = 16 + 8 + 64,
                               .value = INFINITY,
                               .is_sparse = true,
                               .body = {4096, 0, 1, 0, 12, 1}};
    assert_int_equal(send_frame(other, &rows, true), KUMI_ENUMERIC);
    assert_non_null(strstr(ku_err_get()->text, "worker 1 for step 2: element 34 of gradient.0."));
    assert_int_equal(send_all(one, 5, 2, 0), 0);
    await_version(3);
    ku_rpc_stream_destroy(one);
    ku_rpc_stream_destroy(other);
    kill_server();
}

/*
 * Async: a push that is not finite is refused with what it is and where, nothing of its step stays,
 * and its process pushes no more, also after the server was killed. Others go on, and a new process
 * of the worker does.
 */
static void not_finite_async(void **state)
{
    const char *const more[] = {"--set", "ps.workers=2",  "--set", "train.micro_batch=1",
                                "--set", "ps.mode=async", NULL};
    struct frame some = {.worker = 1, .incarnation = 5, .bytes = 640}; /* the loss */
    (void)state;
    aim_at("not-finite");
    start_of("not-finite", more);
    assert_int_equal(hello(0, 5, 0), 0);
    const uint64_t layout = welcome[KU_PS_R_LAYOUT];
    assert_int_equal(hello(1, 5, layout), 0);
    assert_int_equal(hello(0, 5, layout), 0);
    struct ku_rpc_stream *one = open_stream();
    assert_int_equal(send_frame(one, &some, false), 0);
    some.offset = 640, some.value = NAN;
    const int status = send_frame(one, &some, true);
    assert_int_equal(status, KUMI_ENUMERIC);
    assert_int_equal(ku_rpc_code(status), GRPC_STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(ku_err_get()->text, "ps: push of worker 1 for step 0: element 0 of "
                                               "gradient.0.wpe.weight is NaN; nothing of the step "
                                               "is applied"));
    ku_rpc_stream_destroy(one);
    assert_int_equal(send_step(5, 0, 0), 0); /* worker 0 */
    await_version(1);
    kill_server();
    start_of("not-finite", more);
    some.value = 0;
    assert_int_equal(await_hello(1, 5, layout), 0);
    assert_int_equal(send_one(&some), KUMI_ENUMERIC);
    assert_non_null(strstr(ku_err_get()->text, "incarnation 5 has pushed what is not finite"));
    assert_int_equal(hello(1, 6, layout), 0);
    assert_int_equal(welcome[KU_PS_R_BEGIN], 0);
    one = open_stream();
    assert_int_equal(send_slowly(one, (struct frame){.worker = 1, .incarnation = 6}, 0), 0);
    await_version(2);
    ku_rpc_stream_destroy(one);
    kill_server();
}

/* Of two servers: calls go to the other one. */
static void turn(void)
{
    struct ku_rpc_channel *const to = second;
    second = channel;
    channel = to;
}

/* Starts two servers, which workers 0 to n - 1 join; a stream of each to both. */
static void start_two(const char *name, const char *const *more, int n,
                      struct ku_rpc_stream *to[][2])
{
    aim_at(name);
    turn();
    aim_at_server(name, 1);
    turn();
    n_servers = 2;
    start_of(name, more);
    n_servers = 1;
    assert_int_equal(await_hello(0, 5, 0), 0);
    const uint64_t layout = welcome[KU_PS_R_LAYOUT];
    for (int s = 0; s < 2; s++, turn())
        for (int w = 0; w < n; w++) {
            if (s)
                assert_int_equal(ku_rpc_channel_wait(channel, 60 * SECOND), 0);
            assert_int_equal(hello_at((uint64_t)w, 5, layout, s ? 0 : UINT64_MAX), 0);
            push_bytes[s] = welcome[KU_PS_R_PUSH_BYTES];
            to[w][s] = open_stream();
        }
}

/* Part `i` of `n` of the step 0 of worker w to server s. */
static int send_part(struct ku_rpc_stream *to[][2], int w, int s, size_t i, size_t n, bool is_last)
{
    const size_t end = (i + 1) * push_bytes[s] / n;
    struct frame f = {.worker = (uint64_t)w, .incarnation = 5};
    f.offset = i * push_bytes[s] / n / 64 * 64;
    f.bytes = (i + 1 == n ? end : end / 64 * 64) - f.offset;
    return send_frame(to[w][s], &f, is_last);
}

static void end_two(struct ku_rpc_stream *to[][2], int n)
{
    for (int w = 0; w < n; w++)
        for (int s = 0; s < 2; s++)
            ku_rpc_stream_destroy(to[w][s]);
}

/*
 * A worker that is connected and does not push, while another waits, ends the run by its name. In
 * ssp of two servers, the other of which has nothing of it either.
 */
static void hung(void **state)
{
    static const char *const mode[] = {"ps.mode=sync", "ps.mode=ssp"};
    const struct frame f = {.worker = 1, .incarnation = 5, .bytes = 64};
    (void)state;
    for (int i = 0; i < 2; i++) {
        const char *const more[] = {"--set", "ps.workers=2",         "--set", "train.micro_batch=1",
                                    "--set", "parallel.timeout_s=2", "--set", mode[i],
                                    NULL};
        struct ku_rpc_stream *to[2][2] = {{NULL}};
        struct ku_rpc_msg m = {0};
        bool is_end;
        if (i) {
            start_two("hung-ssp", more, 2, to);
        } else {
            aim_at("hung-sync");
            start_of("hung-sync", more);
            assert_int_equal(hello(0, 5, 0), 0);
            const uint64_t layout = welcome[KU_PS_R_LAYOUT];
            assert_int_equal(hello(1, 5, layout), 0);
            assert_int_equal(hello(0, 5, layout), 0);
            push_bytes[0] = welcome[KU_PS_R_PUSH_BYTES];
            to[0][0] = open_stream(), to[1][0] = open_stream();
        }
        assert_int_equal(send_frame(to[1][0], &f, false), 0);
        for (int s = i; s >= 0; s--)
            assert_int_equal(send_part(to, 0, s, 0, 1, true), 0);
        assert_int_equal(ku_rpc_stream_recv(to[0][0], &m, &is_end, 30 * SECOND), KUMI_ETIMEDOUT);
        if (!strstr(ku_err_get()->text, "worker 1 is connected, but its push of step 0"))
            fail_msg("%s: %s", mode[i], ku_err_get()->text);
        assert_int_equal(exit_code(5 * SECOND), -KUMI_ETIMEDOUT);
        end_two(to, 2);
    }
}

/*
 * A push that takes longer than the deadline, but advances, is waited for: that of worker 1 to
 * server 0, and that of worker 2 to server 1, whose end goes to server 0 afterwards.
 */
static void slow(void **state)
{
    enum { N = 12 };
    const char *const more[] = {"--set", "ps.workers=3",         "--set", "train.global_batch=3",
                                "--set", "train.micro_batch=1",  "--set", "train.virtual_shards=3",
                                "--set", "parallel.timeout_s=2", NULL};
    struct ku_rpc_stream *to[3][2];
    (void)state;
    start_two("slow", more, 3, to);
    for (int s = 1; s >= 0; s--)
        assert_int_equal(send_part(to, 0, s, 0, 1, true), 0);
    assert_int_equal(send_part(to, 1, 1, 0, 1, true), 0);
    for (size_t i = 0; i + 1 < N; i++)
        assert_int_equal(send_part(to, 2, 0, i, N, false), 0);
    for (size_t i = 0; i < N; i++) {
        usleep(3000000 / N);
        if (send_part(to, 1, 0, i, N, i + 1 == N) < 0 || send_part(to, 2, 1, i, N, i + 1 == N) < 0)
            fail_msg("part %zu: %s", i, ku_err_get()->text);
    }
    assert_int_equal(send_part(to, 2, 0, N - 1, N, true), 0);
    await_version(1);
    kill_server();
    end_two(to, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refused),     cmocka_unit_test(once),
        cmocka_unit_test(zeros),       cmocka_unit_test(changes),
        cmocka_unit_test(ranges),      cmocka_unit_test(selections),
        cmocka_unit_test(stranger),    cmocka_unit_test(unread),
        cmocka_unit_test(not_finite),  cmocka_unit_test(goodbye),
        cmocka_unit_test(no_snapshot), cmocka_unit_test(disk_full),
        cmocka_unit_test(late),        cmocka_unit_test(not_finite_async),
        cmocka_unit_test(hung),        cmocka_unit_test(slow)};
    return cmocka_run_group_tests(tests, open_all, close_all);
}
