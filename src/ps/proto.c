/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/proto.h"

#include <string.h>
#include <sys/uio.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "fixed values are copied");

enum { START_GROUP = 3, END_GROUP = 4, MAX_VARINT = 10 };

struct ku_proto_in ku_proto_begin(const struct iovec *piece, int n_pieces, size_t bytes)
{
    return (struct ku_proto_in){.piece = piece, .end = piece + n_pieces, .left = bytes};
}

static int cut_short(const struct ku_proto_in *in, size_t wanted)
{
    return KU_ERR(KUMI_EINVAL, "message: byte %zu: %zu bytes follow, %zu are needed", in->read,
                  in->left, wanted);
}

/* Take `bytes` bytes, which are there; out NULL: pass over them. */
static void take(struct ku_proto_in *in, void *out, size_t bytes)
{
    char *to = out;
    in->left -= bytes;
    in->read += bytes;
    while (bytes > 0) {
        KU_ASSERT(in->piece < in->end);
        const size_t here = in->piece->iov_len - in->at, n = here < bytes ? here : bytes;
        if (to) {
            memcpy(to, (const char *)in->piece->iov_base + in->at, n);
            to += n;
        }
        in->at += n;
        bytes -= n;
        if (in->at == in->piece->iov_len) {
            in->piece++;
            in->at = 0;
        }
    }
}

int ku_proto_take(struct ku_proto_in *in, void *out, size_t bytes)
{
    if (bytes > in->left)
        return cut_short(in, bytes);
    take(in, out, bytes);
    return KUMI_OK;
}

static int varint(struct ku_proto_in *in, uint64_t *value)
{
    const size_t begin = in->read;
    uint8_t byte;
    *value = 0;
    for (int i = 0; i < MAX_VARINT; i++) {
        KU_TRY(ku_proto_take(in, &byte, 1));
        *value |= (uint64_t)(byte & 127) << (7 * i); /* of byte 9 one bit counts, as in others */
        if (byte < 128)
            return KUMI_OK;
    }
    return KU_ERR(KUMI_EINVAL, "message: byte %zu: a varint of more than %d bytes", begin,
                  (int)MAX_VARINT);
}

int ku_proto_next(struct ku_proto_in *in, uint32_t *field, uint32_t *type)
{
    const size_t begin = in->read;
    uint64_t key;
    if (in->left == 0)
        return 0;
    KU_TRY(varint(in, &key));
    *field = (uint32_t)(key >> 3);
    *type = key & 7;
    if (key > UINT32_MAX || *field == 0 || *type > KU_PROTO_FIXED32)
        return KU_ERR(KUMI_EINVAL, "message: byte %zu: no key of a field: %llu", begin,
                      (unsigned long long)key);
    return 1;
}

static int pass(struct ku_proto_in *in, uint64_t bytes)
{
    if (bytes > in->left)
        return cut_short(in, (size_t)bytes);
    take(in, NULL, (size_t)bytes);
    return KUMI_OK;
}

/* A value that is neither a group nor its end. */
static int skip_plain(struct ku_proto_in *in, uint32_t type)
{
    uint64_t value;
    if (type == KU_PROTO_FIXED64 || type == KU_PROTO_FIXED32)
        return pass(in, type == KU_PROTO_FIXED64 ? 8 : 4);
    KU_TRY(varint(in, &value));
    return type == KU_PROTO_BYTES ? pass(in, value) : KUMI_OK;
}

int ku_proto_skip(struct ku_proto_in *in, uint32_t type)
{
    uint32_t open[KU_PROTO_MAX_DEPTH], field = 0;
    int depth = 0, more;
    if (type != START_GROUP && type != END_GROUP)
        return skip_plain(in, type);
    if (type == END_GROUP)
        return KU_ERR(KUMI_EINVAL, "message: byte %zu: the end of a group that has not begun",
                      in->read);
    open[depth++] = 0; /* its number is the caller's */
    while (depth > 0) {
        more = ku_proto_next(in, &field, &type);
        if (more < 0)
            return more;
        if (more == 0)
            return KU_ERR(KUMI_EINVAL, "message: byte %zu: a group has no end", in->read);
        if (type == START_GROUP && depth == KU_PROTO_MAX_DEPTH)
            return KU_ERR(KUMI_EINVAL, "message: byte %zu: groups %d deep", in->read, depth + 1);
        if (type == START_GROUP)
            open[depth++] = field;
        else if (type != END_GROUP)
            KU_TRY(skip_plain(in, type));
        else if (open[--depth] != 0 && open[depth] != field)
            return KU_ERR(KUMI_EINVAL, "message: byte %zu: group %u ends as %u", in->read,
                          open[depth], field);
    }
    return KUMI_OK;
}

static int expect(const struct ku_proto_in *in, uint32_t type, uint32_t wanted)
{
    if (type == wanted)
        return KUMI_OK;
    return KU_ERR(KUMI_EINVAL, "message: byte %zu: a value of type %u; type %u is expected",
                  in->read, type, wanted);
}

int ku_proto_uint64(struct ku_proto_in *in, uint32_t type, uint64_t *value)
{
    KU_TRY(expect(in, type, KU_PROTO_VARINT));
    return varint(in, value);
}

int ku_proto_int64(struct ku_proto_in *in, uint32_t type, int64_t *value)
{
    uint64_t bits;
    KU_TRY(ku_proto_uint64(in, type, &bits));
    memcpy(value, &bits, sizeof bits);
    return KUMI_OK;
}

int ku_proto_int32(struct ku_proto_in *in, uint32_t type, int32_t *value)
{
    uint64_t bits;
    KU_TRY(ku_proto_uint64(in, type, &bits));
    const uint32_t low = (uint32_t)bits;
    memcpy(value, &low, sizeof low);
    return KUMI_OK;
}

int ku_proto_double(struct ku_proto_in *in, uint32_t type, double *value)
{
    KU_TRY(expect(in, type, KU_PROTO_FIXED64));
    return ku_proto_take(in, value, sizeof *value);
}

int ku_proto_enter(struct ku_proto_in *in, uint32_t type, struct ku_proto_in *sub)
{
    uint64_t bytes;
    KU_TRY(expect(in, type, KU_PROTO_BYTES));
    KU_TRY(varint(in, &bytes));
    *sub = *in;
    KU_TRY(pass(in, bytes));
    sub->left = (size_t)bytes;
    return KUMI_OK;
}

int ku_proto_text(struct ku_proto_in *in, uint32_t type, char *out, size_t cap)
{
    struct ku_proto_in sub;
    KU_TRY(ku_proto_enter(in, type, &sub));
    const size_t bytes = sub.left;
    if (bytes >= cap)
        return KU_ERR(KUMI_EINVAL,
                      "message: byte %zu: a text of %zu bytes; at most %zu are allowed", sub.read,
                      bytes, cap - 1);
    take(&sub, out, bytes);
    out[bytes] = '\0';
    if (strlen(out) != bytes)
        return KU_ERR(KUMI_EINVAL, "message: byte %zu: a text with a NUL in it", sub.read);
    return KUMI_OK;
}

int ku_proto_floats(struct ku_proto_in *in, uint32_t type, float *out, int64_t cap, int64_t *n)
{
    struct ku_proto_in sub;
    if (type == KU_PROTO_FIXED32) {
        float value;
        KU_TRY(ku_proto_take(in, &value, sizeof value));
        if (*n < cap)
            out[*n] = value;
        ++*n;
        return KUMI_OK;
    }
    KU_TRY(ku_proto_enter(in, type, &sub));
    if (sub.left % sizeof *out != 0)
        return KU_ERR(KUMI_EINVAL, "message: byte %zu: floats in %zu bytes", sub.read, sub.left);
    const int64_t sent = (int64_t)(sub.left / sizeof *out), room = *n < cap ? cap - *n : 0;
    if (sent > 0 && room > 0)
        take(&sub, out + *n, (size_t)(sent < room ? sent : room) * sizeof *out);
    *n += sent;
    return KUMI_OK;
}

size_t ku_proto_n_varint(uint64_t value)
{
    size_t n = 1;
    while (value >>= 7)
        n++;
    return n;
}

size_t ku_proto_n_uint(uint32_t field, uint64_t value)
{
    return ku_proto_n_varint((uint64_t)field << 3) + ku_proto_n_varint(value);
}

size_t ku_proto_n_bytes(uint32_t field, uint64_t bytes)
{
    return ku_proto_n_uint(field, bytes) + bytes;
}

size_t ku_proto_n_double(uint32_t field)
{
    return ku_proto_n_varint((uint64_t)field << 3) + sizeof(double);
}

uint8_t *ku_proto_put_varint(uint8_t *at, uint64_t value)
{
    for (; value >= 128; value >>= 7)
        *at++ = (uint8_t)(value | 128);
    *at++ = (uint8_t)value;
    return at;
}

static uint8_t *put_key(uint8_t *at, uint32_t field, uint32_t type)
{
    return ku_proto_put_varint(at, (uint64_t)field << 3 | type);
}

uint8_t *ku_proto_put_uint(uint8_t *at, uint32_t field, uint64_t value)
{
    return ku_proto_put_varint(put_key(at, field, KU_PROTO_VARINT), value);
}

uint8_t *ku_proto_put_double(uint8_t *at, uint32_t field, double value)
{
    at = put_key(at, field, KU_PROTO_FIXED64);
    memcpy(at, &value, sizeof value);
    return at + sizeof value;
}

uint8_t *ku_proto_put_head(uint8_t *at, uint32_t field, uint64_t bytes)
{
    return ku_proto_put_varint(put_key(at, field, KU_PROTO_BYTES), bytes);
}

uint8_t *ku_proto_put_bytes(uint8_t *at, uint32_t field, const void *data, size_t bytes)
{
    at = ku_proto_put_head(at, field, bytes);
    if (bytes > 0)
        memcpy(at, data, bytes);
    return at + bytes;
}
