/* SPDX-License-Identifier: Apache-2.0 */
/* links: ps */
#include "base/err.h"
#include "fuzz.h"
#include "ps/proto.h"

#include <string.h>
#include <sys/uio.h>

/*
 * A message of protocol buffers. Byte 0: the bytes of a piece; the rest is the message. It is read
 * field by field, each as its number says, first as one piece and then in pieces: both give the
 * same fields, the same status and the same place.
 */
enum { MAX_BYTES = 4096, CAP = 16 };

struct result {
    int status, n_fields;
    size_t read;
    uint64_t sum;
    float list[CAP];
    int64_t n;
    char text[32];
};

static int read_field(struct ku_proto_in *in, uint32_t field, uint32_t type, struct result *r)
{
    struct ku_proto_in sub;
    uint64_t u = 0;
    int64_t i = 0;
    int32_t small = 0;
    double d = 0;
    uint8_t first[4] = {0};
    int status = KUMI_OK;
    switch (field % 8) {
    case 0:
        status = ku_proto_uint64(in, type, &u);
        break;
    case 1:
        status = ku_proto_floats(in, type, r->list, CAP, &r->n);
        break;
    case 2:
        status = ku_proto_int32(in, type, &small);
        break;
    case 3:
        status = ku_proto_int64(in, type, &i);
        break;
    case 4:
        status = ku_proto_double(in, type, &d);
        break;
    case 5:
        status = ku_proto_text(in, type, r->text, sizeof r->text);
        break;
    case 6:
        status = ku_proto_enter(in, type, &sub);
        if (status == KUMI_OK && sub.left >= sizeof first)
            status = ku_proto_take(&sub, first, sizeof first);
        break;
    default:
        status = ku_proto_skip(in, type);
        break;
    }
    memcpy(&i, &d, 4);
    r->sum = r->sum * 31 + u + (uint64_t)i + (uint64_t)small + first[0] + first[3];
    return status;
}

static void read_message(const struct iovec *piece, int n, size_t bytes, struct result *r)
{
    struct ku_proto_in in = ku_proto_begin(piece, n, bytes);
    uint32_t field, type;
    memset(r, 0, sizeof *r);
    while ((r->status = ku_proto_next(&in, &field, &type)) > 0) {
        r->n_fields++;
        r->status = read_field(&in, field, type, r);
        if (r->status < 0)
            break;
    }
    r->read = in.read;
    KU_ASSERT(in.read + in.left == bytes);
    KU_ASSERT(r->status == KUMI_OK || r->status == KUMI_EINVAL);
    KU_ASSERT(r->status != KUMI_OK || in.left == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static uint8_t copy[MAX_BYTES];
    static struct iovec piece[MAX_BYTES];
    struct result one, many;
    int n = 0;
    if (bytes < 1 || bytes > MAX_BYTES)
        return 0;
    const size_t each = data[0] ? data[0] : 1;
    bytes--;
    memcpy(copy, data + 1, bytes);
    for (size_t at = 0; at < bytes; at += each)
        piece[n++] = (struct iovec){copy + at, bytes - at < each ? bytes - at : each};
    read_message(piece, n, bytes, &many);
    piece[0] = (struct iovec){copy, bytes};
    read_message(piece, bytes > 0, bytes, &one);
    KU_ASSERT(memcmp(&one, &many, sizeof one) == 0);
    return 0;
}
