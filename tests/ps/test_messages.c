/* SPDX-License-Identifier: Apache-2.0 */
/* links: ps protobuf */
/*
 * Messages of proto/kumi_ps.proto, by the code that protoc-c makes from it: each field has the
 * number of its name in ps/remote/service_messages.h, and what one of the two implementations
 * writes the other reads.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "kumi_ps.pb-c.h"
#include "ps/remote/layout_message.h"
#include "ps/remote/service_messages.h"
#include "ps/util.h"

#define OF(message) &kumi__ps__v1__##message##__descriptor
#define FRAME       KU_PS_N_FRAME, KU_PS_F_DATA, frame
#define STATE       KU_PS_N_STATE, 0, state

static const char *const frame[KU_PS_N_FRAME] = {
    [KU_PS_F_WORKER] = "worker",     [KU_PS_F_INCARNATION] = "incarnation",
    [KU_PS_F_STEP] = "step",         [KU_PS_F_OFFSET] = "offset",
    [KU_PS_F_CHECKSUM] = "checksum", [KU_PS_F_DATA] = "data",
    [KU_PS_F_VERSION] = "version",   [KU_PS_F_SPARSE] = "sparse",
    [KU_PS_F_BYTES] = "bytes",       [KU_PS_F_ROW_BYTES] = "row_bytes",
    [KU_PS_F_ROWS] = "rows"};
static const char *const request[KU_PS_N_REQUEST] = {[KU_PS_Q_WORKER] = "worker",
                                                     [KU_PS_Q_INCARNATION] = "incarnation",
                                                     [KU_PS_Q_LAYOUT] = "layout",
                                                     [KU_PS_Q_BEGIN] = "begin"};
static const char *const answer[KU_PS_N_REPLY] = {[KU_PS_R_LAYOUT] = "layout",
                                                  [KU_PS_R_SERVER] = "server",
                                                  [KU_PS_R_N_SERVERS] = "n_servers",
                                                  [KU_PS_R_N_WORKERS] = "n_workers",
                                                  [KU_PS_R_MODE] = "mode",
                                                  [KU_PS_R_STALENESS] = "staleness",
                                                  [KU_PS_R_BACKUP] = "backup",
                                                  [KU_PS_R_VERSION] = "version",
                                                  [KU_PS_R_BEGIN] = "begin",
                                                  [KU_PS_R_PUSH_BYTES] = "push_bytes",
                                                  [KU_PS_R_PUSH_PAYLOAD] = "push_payload",
                                                  [KU_PS_R_PULL_BYTES] = "pull_bytes",
                                                  [KU_PS_R_INCARNATION] = "incarnation",
                                                  [KU_PS_R_NUMERICS] = "numerics",
                                                  [KU_PS_R_TAKES_SPARSE] = "takes_sparse",
                                                  [KU_PS_R_TAKES_RANGES] = "takes_ranges"};
static const char *const state[KU_PS_N_STATE] = {[KU_PS_S_SERVER] = "server",
                                                 [KU_PS_S_N_SERVERS] = "n_servers",
                                                 [KU_PS_S_N_WORKERS] = "n_workers",
                                                 [KU_PS_S_N_CONNECTED] = "n_connected",
                                                 [KU_PS_S_MODE] = "mode",
                                                 [KU_PS_S_VERSION] = "version",
                                                 [KU_PS_S_SAVED] = "saved",
                                                 [KU_PS_S_PUSHES] = "pushes",
                                                 [KU_PS_S_REPEATED] = "repeated",
                                                 [KU_PS_S_REFUSED] = "refused",
                                                 [KU_PS_S_PUSHED_BYTES] = "pushed_bytes",
                                                 [KU_PS_S_PULLED_BYTES] = "pulled_bytes",
                                                 [KU_PS_S_JOURNAL_RECORDS] = "journal_records",
                                                 [KU_PS_S_DROPPED] = "dropped"};

static const struct row {
    const ProtobufCMessageDescriptor *of;
    uint32_t n, data_field;
    const char *const *name; /* [n], by number */
    bool has_all;            /* the message has every field of the list */
} row[] = {
    {OF(connect_request), KU_PS_N_REQUEST, 0, request, true},
    {OF(connect_reply), KU_PS_N_REPLY, KU_PS_R_NUMERICS, answer, true},
    {OF(push_frame), FRAME, false},
    {OF(push_reply), KU_PS_N_FRAME, 0, frame, false},
    {OF(pull_request), KU_PS_N_FRAME, KU_PS_F_ROWS, frame, false},
    {OF(pull_frame), FRAME, false},
    {OF(status_request), STATE, false},
    {OF(status_reply), STATE, true},
    {OF(snapshot_request), STATE, false},
    {OF(snapshot_reply), STATE, false},
    {OF(drain_request), STATE, false},
    {OF(drain_reply), STATE, false},
};
enum { N_ROWS = sizeof row / sizeof *row };
static char data[] = "some data";

/* A value of its type that differs from those of other fields; int64 is negative. */
static uint64_t value_of(const ProtobufCFieldDescriptor *f)
{
    switch (f->type) {
    case PROTOBUF_C_TYPE_UINT32:
        return UINT32_MAX - f->id;
    case PROTOBUF_C_TYPE_INT64:
        return UINT64_MAX - f->id;
    case PROTOBUF_C_TYPE_UINT64:
        return (UINT64_C(1) << 63) + f->id;
    default:
        fail_msg("%s: a type that the messages do not have", f->name);
        return 0;
    }
}

static void names(void **state_)
{
    (void)state_;
    for (int i = 0; i < N_ROWS; i++) {
        if (row[i].has_all)
            assert_int_equal(row[i].of->n_fields, row[i].n - 1);
        for (unsigned k = 0; k < row[i].of->n_fields; k++) {
            const ProtobufCFieldDescriptor *f = &row[i].of->fields[k];
            assert_true(f->id < row[i].n);
            assert_string_equal(f->name, row[i].name[f->id]);
            assert_int_equal(f->type == PROTOBUF_C_TYPE_BYTES, f->id == row[i].data_field);
        }
    }
    char path[64];
    snprintf(path, sizeof path, "/%s/", kumi__ps__v1__parameter_server__descriptor.name);
    assert_string_equal(path, KU_PS_SERVICE);
}

/* A message of protobuf-c with all fields set. */
static ProtobufCMessage *make(const struct row *r)
{
    char *m = calloc(1, r->of->sizeof_message);
    assert_non_null(m);
    r->of->message_init((ProtobufCMessage *)(void *)m);
    for (unsigned k = 0; k < r->of->n_fields; k++) {
        const ProtobufCFieldDescriptor *f = &r->of->fields[k];
        const ProtobufCBinaryData bytes = {sizeof data, (uint8_t *)data};
        if (f->type == PROTOBUF_C_TYPE_BYTES) {
            memcpy(m + f->offset, &bytes, sizeof bytes);
            continue;
        }
        const uint64_t x = value_of(f); /* little endian: the low bytes of a uint32 */
        memcpy(m + f->offset, &x, f->type == PROTOBUF_C_TYPE_UINT32 ? 4 : 8);
    }
    return (ProtobufCMessage *)(void *)m;
}

static void kumi_reads(void **state_)
{
    (void)state_;
    for (int i = 0; i < N_ROWS; i++) {
        ProtobufCMessage *m = make(&row[i]);
        uint8_t packed[512];
        char got[sizeof data] = "";
        uint64_t field[32];
        struct ku_proto_in in;
        assert_true(protobuf_c_message_get_packed_size(m) <= sizeof packed);
        const struct iovec piece = {packed, protobuf_c_message_pack(m, packed)};
        const struct ku_rpc_msg msg = {&piece, piece.iov_len > 0, piece.iov_len, NULL};
        assert_int_equal(ku_ps_message_get(&msg, field, row[i].n, row[i].data_field, &in), 0);
        for (unsigned k = 0; k < row[i].of->n_fields; k++) {
            const ProtobufCFieldDescriptor *f = &row[i].of->fields[k];
            if (f->id != row[i].data_field) {
                assert_true(field[f->id] == value_of(f));
                continue;
            }
            assert_int_equal(in.left, sizeof data);
            assert_int_equal(ku_proto_take(&in, got, sizeof data), 0);
            assert_string_equal(got, data);
        }
        free(m);
    }
}

static void protobuf_c_reads(void **state_)
{
    (void)state_;
    for (int i = 0; i < N_ROWS; i++) {
        uint64_t field[32] = {0};
        struct ku_rpc_buf b;
        void *at = NULL;
        ProtobufCMessage *want = make(&row[i]);
        for (unsigned k = 0; k < row[i].of->n_fields; k++)
            if (row[i].of->fields[k].id != row[i].data_field)
                field[row[i].of->fields[k].id] = value_of(&row[i].of->fields[k]);
        assert_int_equal(ku_ps_message_put(field, row[i].n, row[i].data_field,
                                           row[i].data_field ? sizeof data : 0, &b, &at),
                         0);
        if (at)
            memcpy(at, data, sizeof data);
        ProtobufCMessage *got = protobuf_c_message_unpack(row[i].of, NULL, b.bytes, b.data);
        assert_non_null(got);
        assert_int_equal(got->n_unknown_fields, 0);
        uint8_t packed[2][512]; /* equal messages have equal bytes, if one implementation packs */
        const size_t bytes = protobuf_c_message_pack(want, packed[0]);
        assert_int_equal(protobuf_c_message_pack(got, packed[1]), bytes);
        assert_memory_equal(packed[0], packed[1], bytes);
        protobuf_c_message_free_unpacked(got, NULL);
        ku_rpc_buf_fini(&b);
        free(want);
    }
}

static void check_tensor(const struct ku_remote_layout *l, bool is_push, uint32_t i,
                         const Kumi__Ps__V1__Tensor *t)
{
    const struct ku_remote_entry *x = is_push ? &l->push[i] : &l->pull[i];
    const struct ku_remote_part p = ku_remote_part_of(l, is_push, i, 1);
    assert_string_equal(t->name, x->name);
    assert_string_equal(t->dtype, kumi_dtype_name(x->wire));
    assert_int_equal(t->form, x->form);
    assert_int_equal(t->count, x->count);
    assert_int_equal(t->begin, p.begin);
    assert_int_equal(t->end, p.end);
    assert_int_equal(t->offset, p.offset);
}

/* Of server 1 of 2, which has no chunk of the second gradient. */
static void layout(void **state_)
{
    struct ku_remote_entry push[] = {
        {.name = "gradient.0.wte",
         .dtype = KUMI_F32,
         .wire = KUMI_BF16,
         .is_split = true,
         .count = 20000},
        {.name = "gradient.0.bias",
         .dtype = KUMI_F32,
         .wire = KUMI_F32,
         .is_split = true,
         .count = 8},
        {.name = "loss", .dtype = KUMI_F32, .wire = KUMI_F32, .count = 1}};
    struct ku_remote_entry pull[] = {
        {.name = "wte", .dtype = KUMI_F32, .wire = KUMI_F32, .is_split = true, .count = 20000}};
    const struct ku_remote_layout l = {.n_workers = 1,
                                       .n_servers = 2,
                                       .n_push = 3,
                                       .n_pull = 1,
                                       .push = push,
                                       .pull = pull,
                                       .checksum = UINT64_MAX};
    struct ku_rpc_buf b;
    (void)state_;
    assert_int_equal(ku_ps_layout_put(&l, 1, &b), 0);
    Kumi__Ps__V1__LayoutReply *r = kumi__ps__v1__layout_reply__unpack(NULL, b.bytes, b.data);
    assert_non_null(r);
    assert_true(r->checksum == UINT64_MAX);
    assert_int_equal(r->server, 1);
    assert_int_equal(r->n_push, 2);
    assert_int_equal(r->n_pull, 1);
    check_tensor(&l, true, 0, r->push[0]);
    check_tensor(&l, true, 2, r->push[1]);
    check_tensor(&l, false, 0, r->pull[0]);
    kumi__ps__v1__layout_reply__free_unpacked(r, NULL);
    ku_rpc_buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(kumi_reads),
        cmocka_unit_test(protobuf_c_reads),
        cmocka_unit_test(layout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
