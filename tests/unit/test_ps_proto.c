/* SPDX-License-Identifier: Apache-2.0 */
/* links: ps */
/* The codec of protocol buffers: bytes by hand, every cut and every split into pieces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>

#include <cmocka.h>

#include "ps/proto.h"

/* What a message of this test holds. */
struct content {
    uint64_t number; /* field 1 */
    int32_t small;   /* 2 */
    double real;     /* 3 */
    char text[8];    /* 4 */
    float list[4];   /* 5 */
    int64_t n;
    int n_skipped;
};

static int read_all(struct ku_proto_in *in, struct content *c)
{
    uint32_t field, type;
    int more;
    memset(c, 0, sizeof *c);
    while ((more = ku_proto_next(in, &field, &type)) > 0) {
        if (field == 1)
            KU_TRY(ku_proto_uint64(in, type, &c->number));
        else if (field == 2)
            KU_TRY(ku_proto_int32(in, type, &c->small));
        else if (field == 3)
            KU_TRY(ku_proto_double(in, type, &c->real));
        else if (field == 4)
            KU_TRY(ku_proto_text(in, type, c->text, sizeof c->text));
        else if (field == 5)
            KU_TRY(ku_proto_floats(in, type, c->list, 4, &c->n));
        else if (c->n_skipped++ >= 0)
            KU_TRY(ku_proto_skip(in, type));
    }
    return more;
}

#define BYTES(s) (s), sizeof(s) - 1
static const struct {
    const char *what, *bytes;
    size_t n;
    const char *error; /* NULL: read */
    struct content c;
} rows[] = {
    {"empty", BYTES(""), NULL, {0}},
    {"varint", BYTES("\x08\x96\x01"), NULL, {.number = 150}},
    {"of 10 bytes",
     BYTES("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
     NULL,
     {.number = UINT64_MAX}},
    {"longer than it must be", BYTES("\x08\x80\x00"), NULL, {0}},
    {"the last one counts", BYTES("\x08\x01\x08\x02"), NULL, {.number = 2}},
    {"-1 in 10 bytes", BYTES("\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), NULL, {.small = -1}},
    {"double", BYTES("\x19\0\0\0\0\0\0\xf8\x3f"), NULL, {.real = 1.5}},
    {"text", BYTES("\x22\x03xyz"), NULL, {.text = "xyz"}},
    {"packed", BYTES("\x2a\x08\0\0\x80\x3f\0\0\0\x40"), NULL, {.list = {1, 2}, .n = 2}},
    {"not packed", BYTES("\x2d\0\0\x80\x3f\x2d\0\0\0\x40"), NULL, {.list = {1, 2}, .n = 2}},
    {"mixed, and an empty list",
     BYTES("\x2d\0\0\x80\x3f\x2a\0\x2a\x04\0\0\0\x40"),
     NULL,
     {.list = {1, 2}, .n = 2}},
    {"more than there is room for",
     BYTES("\x2a\x18\0\0\x80\x3f\0\0\x80\x3f\0\0\x80\x3f\0\0\x80\x3f\0\0\x80\x3f\0\0\x80\x3f"),
     NULL,
     {.list = {1, 1, 1, 1}, .n = 6}},
    {"unknown fields",
     BYTES("\x30\x01\x39\0\0\0\0\0\0\0\0\x42\x02xx\x4d\0\0\0\0"),
     NULL,
     {.n_skipped = 4}},
    {"an unknown group",
     BYTES("\x33\x08\x01\x3b\x3c\x34\x08\x05"),
     NULL,
     {.number = 5, .n_skipped = 1}},
    {"varint without an end", BYTES("\x08\x80"), "0 bytes follow, 1 are needed", {0}},
    {"of 11 bytes",
     BYTES("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
     "a varint of more than 10",
     {0}},
    {"field 0", BYTES("\x00\x01"), "no key of a field: 0", {0}},
    {"type 6", BYTES("\x0e"), "no key of a field: 14", {0}},
    {"type 7", BYTES("\x0f"), "no key of a field: 15", {0}},
    {"field 2^29", BYTES("\x80\x80\x80\x80\x10\x00"), "no key of a field", {0}},
    {"another type", BYTES("\x0a\x00"), "type 2; type 0 is expected", {0}},
    {"text as a number", BYTES("\x20\x01"), "type 0; type 2 is expected", {0}},
    {"text too long", BYTES("\x22\x08xxxxxxxx"), "a text of 8 bytes; at most 7", {0}},
    {"text with a NUL", BYTES("\x22\x02x\0"), "a NUL", {0}},
    {"length beyond the end", BYTES("\x22\x04xyz"), "3 bytes follow, 4 are needed", {0}},
    {"length of 2^64 - 1",
     BYTES("\x22\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
     "0 bytes follow, 18446744073709551615",
     {0}},
    {"floats in 5 bytes", BYTES("\x2a\x05xxxxx"), "floats in 5 bytes", {0}},
    {"group without an end", BYTES("\x33\x08\x01"), "a group has no end", {0}},
    {"group that ends as another", BYTES("\x33\x3b\x44\x34"), "group 7 ends as 8", {0}},
    {"end of no group", BYTES("\x34"), "the end of a group that has not begun", {0}},
    {"known field as a group", BYTES("\x0b\x0c"), "type 3; type 0", {0}},
};
enum { N_ROWS = sizeof rows / sizeof *rows };

/* As one piece, and cut into pieces of every length: the same result. */
static void test_rows(void **state)
{
    (void)state;
    for (int i = 0; i < N_ROWS; i++)
        for (size_t each = 1; each <= rows[i].n + 1; each++) {
            struct iovec piece[64];
            union {
                const char *in;
                char *out;
            } data = {.in = rows[i].bytes};
            struct content c;
            int n = 0;
            for (size_t at = 0; at < rows[i].n; at += each)
                piece[n++] =
                    (struct iovec){data.out + at, rows[i].n - at < each ? rows[i].n - at : each};
            struct ku_proto_in in = ku_proto_begin(piece, n, rows[i].n);
            int status = read_all(&in, &c);
            if (status != (rows[i].error ? KUMI_EINVAL : 0) ||
                (status < 0 && strstr(ku_err_get()->text, rows[i].error) == NULL))
                fail_msg("%s: %d %s", rows[i].what, status, ku_err_get()->text);
            if (status == 0 && memcmp(&c, &rows[i].c, sizeof c) != 0)
                fail_msg("%s, in pieces of %zu", rows[i].what, each);
        }
}

static void test_groups(void **state)
{
    uint8_t bytes[2 * KU_PROTO_MAX_DEPTH + 2];
    (void)state;
    for (int depth = KU_PROTO_MAX_DEPTH; depth <= KU_PROTO_MAX_DEPTH + 1; depth++) {
        struct content c;
        memset(bytes, 0x33, (size_t)depth);
        memset(bytes + depth, 0x34, (size_t)depth);
        struct iovec piece = {bytes, 2 * (size_t)depth};
        struct ku_proto_in in = ku_proto_begin(&piece, 1, piece.iov_len);
        assert_int_equal(read_all(&in, &c), depth > KU_PROTO_MAX_DEPTH ? KUMI_EINVAL : 0);
    }
}

/* What is written has the stated number of bytes and is read again. */
static void test_write(void **state)
{
    static const uint64_t value[] = {0,     1,          127,        128,       16383,
                                     16384, UINT32_MAX, 1ULL << 63, UINT64_MAX};
    (void)state;
    for (size_t i = 0; i < sizeof value / sizeof *value; i++) {
        uint8_t bytes[128], *at = bytes;
        const float list[2] = {1, -2};
        struct content c;
        at = ku_proto_put_uint(at, 1, value[i]);
        assert_int_equal(at - bytes, ku_proto_n_uint(1, value[i]));
        at = ku_proto_put_double(at, 3, 0.1);
        at = ku_proto_put_bytes(at, 4, "abc", 3);
        at = ku_proto_put_bytes(at, 5, list, sizeof list);
        at = ku_proto_put_bytes(at, 1000000, "", 0);
        assert_int_equal(at - bytes, ku_proto_n_uint(1, value[i]) + ku_proto_n_double(3) +
                                         ku_proto_n_bytes(4, 3) + ku_proto_n_bytes(5, 8) +
                                         ku_proto_n_bytes(1000000, 0));
        struct iovec piece = {bytes, (size_t)(at - bytes)};
        struct ku_proto_in in = ku_proto_begin(&piece, 1, piece.iov_len);
        assert_int_equal(read_all(&in, &c), 0);
        assert_true(c.number == value[i] && c.real == 0.1 && c.n == 2 && c.list[1] == -2);
        assert_string_equal(c.text, "abc");
        assert_int_equal(c.n_skipped, 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_write),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
