/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PS_PROTO_H
#define KU_PS_PROTO_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/*
 * The wire format of protocol buffers (proto3), read and written in place. A message is a list of
 * fields in any order:
 *
 *     key = varint (number << 3 | type), then the value by its type
 *
 *     type 0  varint       7 bits per byte, low ones first, bit 7: more follow; at most 10 bytes
 *          1  fixed64      8 bytes, little endian
 *          2  bytes        varint length, then as many bytes: strings, messages, packed lists
 *          5  fixed32      4 bytes
 *          3, 4            groups, which proto3 does not have: skipped where unknown
 *
 * A reader knows nothing of a schema: the caller loops over fields, takes those it knows and skips
 * the others, so that newer clients may send more. Of a field that is not a list the last value
 * counts. A list of numbers comes packed (one field of type 2) or not (one field per number), also
 * mixed.
 *
 *     struct ku_proto_in in = ku_proto_begin(m.piece, m.n_pieces, m.bytes);
 *     uint32_t field, type;
 *     int more;
 *     while ((more = ku_proto_next(&in, &field, &type)) > 0) {
 *         if (field == 1)
 *             KU_TRY(ku_proto_floats(&in, type, to, cap, &n));
 *         else
 *             KU_TRY(ku_proto_skip(&in, type));
 *     }
 *     KU_TRY(more);
 *
 * Errors of all readers: KUMI_EINVAL "message: byte N: ..." (cut short, a value of another type, a
 * length beyond the end). Nothing is allocated, and nothing is read beyond the message.
 */
struct iovec;
struct ku_proto_in {
    const struct iovec *piece, *end; /* the rest of the message: piece[0] from `at` on */
    size_t at, left;                 /* bytes left, of all pieces */
    size_t read;                     /* bytes before that; for messages */
};
enum { KU_PROTO_VARINT = 0, KU_PROTO_FIXED64 = 1, KU_PROTO_BYTES = 2, KU_PROTO_FIXED32 = 5 };
enum { KU_PROTO_MAX_DEPTH = 32 }; /* of groups in groups that are skipped */

struct ku_proto_in ku_proto_begin(const struct iovec *piece, int n_pieces, size_t bytes);
/* The key of the next field: 1; 0: the message is over; < 0. */
KU_STATUS ku_proto_next(struct ku_proto_in *in, uint32_t *field, uint32_t *type);
KU_STATUS ku_proto_skip(struct ku_proto_in *in, uint32_t type);
/* The value of a field of this type; another type is refused. */
KU_STATUS ku_proto_uint64(struct ku_proto_in *in, uint32_t type, uint64_t *value);
KU_STATUS ku_proto_int64(struct ku_proto_in *in, uint32_t type, int64_t *value);
KU_STATUS ku_proto_int32(struct ku_proto_in *in, uint32_t type, int32_t *value); /* low 32 bits */
KU_STATUS ku_proto_double(struct ku_proto_in *in, uint32_t type, double *value);
/*
 * A field of bytes as a reader of its own (a message, or bytes to be taken by ku_proto_take); `in`
 * goes on after it.
 */
KU_STATUS ku_proto_enter(struct ku_proto_in *in, uint32_t type, struct ku_proto_in *sub);
/* The next `bytes` bytes, which the caller may know to be there from sub->left. */
KU_STATUS ku_proto_take(struct ku_proto_in *in, void *out, size_t bytes);
/* A string as NUL-terminated text; longer than cap - 1 or with a NUL inside: refused. */
KU_STATUS ku_proto_text(struct ku_proto_in *in, uint32_t type, char *out, size_t cap);
/*
 * Numbers of a list of floats, added to those that came before.
 *
 *   out   [cap]
 *   n     of all so far; those from cap on are counted only
 */
KU_STATUS ku_proto_floats(struct ku_proto_in *in, uint32_t type, float *out, int64_t cap,
                          int64_t *n);

/*
 * Writing: the caller sums the bytes with the ku_proto_n_* functions, makes a buffer, and appends.
 * Each returns the place after what it wrote.
 */
size_t ku_proto_n_varint(uint64_t value);
size_t ku_proto_n_uint(uint32_t field, uint64_t value);  /* a whole field */
size_t ku_proto_n_bytes(uint32_t field, uint64_t bytes); /* likewise */
size_t ku_proto_n_double(uint32_t field);
uint8_t *ku_proto_put_varint(uint8_t *at, uint64_t value);
uint8_t *ku_proto_put_uint(uint8_t *at, uint32_t field, uint64_t value);
uint8_t *ku_proto_put_double(uint8_t *at, uint32_t field, double value);
/* Key and length alone: the caller writes the bytes after them. */
uint8_t *ku_proto_put_head(uint8_t *at, uint32_t field, uint64_t bytes);
uint8_t *ku_proto_put_bytes(uint8_t *at, uint32_t field, const void *data, size_t bytes);

#endif
