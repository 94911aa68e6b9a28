/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/rpc/private.h"

#include <grpc/byte_buffer.h>
#include <string.h>
#include <sys/uio.h>

#include "base/mem.h"

_Static_assert(sizeof(grpc_slice) == sizeof((struct ku_rpc_buf *)0)->slice, "a slice fits exactly");

int ku_rpc_buf_init(struct ku_rpc_buf *b, size_t bytes)
{
    grpc_slice slice;
    memset(b, 0, sizeof *b);
    void *data = ku_malloc(bytes);
    if (data == NULL)
        return KUMI_ENOMEM;
    slice = grpc_slice_new(data, bytes, ku_free);
    memcpy(b->slice, &slice, sizeof slice);
    b->data = data;
    b->bytes = bytes;
    return KUMI_OK;
}

int ku_rpc_buf_copy(struct ku_rpc_buf *b, const void *data, size_t bytes)
{
    KU_TRY(ku_rpc_buf_init(b, bytes));
    if (bytes > 0)
        memcpy(b->data, data, bytes);
    return KUMI_OK;
}

/* Takes the slice out; an empty one stands for a message of 0 bytes. */
static grpc_slice take(struct ku_rpc_buf *b)
{
    grpc_slice slice = grpc_empty_slice();
    if (b->data)
        memcpy(&slice, b->slice, sizeof slice);
    memset(b, 0, sizeof *b);
    return slice;
}

void ku_rpc_buf_fini(struct ku_rpc_buf *b)
{
    grpc_slice_unref(take(b));
}

grpc_byte_buffer *ku_rpc_buf_take(struct ku_rpc_buf *b)
{
    grpc_slice slice = take(b);
    grpc_byte_buffer *bb = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return bb;
}

struct owner {
    grpc_byte_buffer *bb;
    struct iovec piece[];
};

int ku_rpc_msg_init(struct ku_rpc_msg *m, grpc_byte_buffer *bb)
{
    const grpc_slice_buffer *slices = &bb->data.raw.slice_buffer;
    struct owner *owner = ku_malloc(sizeof *owner + slices->count * sizeof *owner->piece);
    memset(m, 0, sizeof *m);
    if (owner == NULL) {
        grpc_byte_buffer_destroy(bb);
        return KUMI_ENOMEM;
    }
    owner->bb = bb;
    m->owner = owner;
    m->piece = owner->piece;
    for (size_t i = 0; i < slices->count; i++) {
        size_t bytes = GRPC_SLICE_LENGTH(slices->slices[i]);
        if (bytes == 0)
            continue;
        owner->piece[m->n_pieces++] =
            (struct iovec){GRPC_SLICE_START_PTR(slices->slices[i]), bytes};
        m->bytes += bytes;
    }
    return KUMI_OK;
}

void ku_rpc_msg_fini(struct ku_rpc_msg *m)
{
    struct owner *owner = m->owner;
    if (owner) {
        grpc_byte_buffer_destroy(owner->bb);
        ku_free(owner);
    }
    memset(m, 0, sizeof *m);
}

void ku_rpc_msg_read(const struct ku_rpc_msg *m, size_t offset, void *out, size_t bytes)
{
    char *to = out;
    KU_ASSERT(offset <= m->bytes && bytes <= m->bytes - offset);
    for (int i = 0; i < m->n_pieces && bytes > 0; i++) {
        size_t n = m->piece[i].iov_len;
        if (offset >= n) {
            offset -= n;
            continue;
        }
        n = n - offset < bytes ? n - offset : bytes;
        memcpy(to, (const char *)m->piece[i].iov_base + offset, n);
        to += n;
        bytes -= n;
        offset = 0;
    }
}
