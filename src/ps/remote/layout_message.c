/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/remote/layout_message.h"

#include <string.h>

#include "ps/proto.h"

enum { CHECKSUM = 1, SERVER, PUSH, PULL };                           /* of LayoutReply */
enum { NAME = 1, DTYPE, FORM, COUNT, BEGIN, END, OFFSET, N_FIELDS }; /* of Tensor */

struct tensor {
    const char *text[COUNT];   /* NAME, DTYPE */
    uint64_t number[N_FIELDS]; /* FORM .. OFFSET */
};

/* Returns whether the server has elements of tensor i. */
static bool find(const struct ku_remote_layout *l, bool is_push, uint32_t i, int server,
                 struct tensor *t)
{
    const struct ku_remote_entry *x = is_push ? &l->push[i] : &l->pull[i];
    const struct ku_remote_part p = ku_remote_part_of(l, is_push, i, server);
    *t = (struct tensor){.text = {[NAME] = x->name, [DTYPE] = kumi_dtype_name(x->wire)},
                         .number = {[FORM] = (uint64_t)x->form,
                                    [COUNT] = (uint64_t)x->count,
                                    [BEGIN] = (uint64_t)p.begin,
                                    [END] = (uint64_t)p.end,
                                    [OFFSET] = p.offset}};
    return p.end > p.begin;
}

static size_t n_tensor(const struct tensor *t)
{
    size_t bytes = 0;
    for (uint32_t f = NAME; f <= DTYPE; f++)
        bytes += ku_proto_n_bytes(f, strlen(t->text[f]));
    for (uint32_t f = FORM; f < N_FIELDS; f++)
        bytes += ku_proto_n_uint(f, t->number[f]);
    return bytes;
}

static uint8_t *put_tensor(uint8_t *at, uint32_t field, const struct tensor *t)
{
    at = ku_proto_put_head(at, field, n_tensor(t));
    for (uint32_t f = NAME; f <= DTYPE; f++)
        at = ku_proto_put_bytes(at, f, t->text[f], strlen(t->text[f]));
    for (uint32_t f = FORM; f < N_FIELDS; f++)
        at = ku_proto_put_uint(at, f, t->number[f]);
    return at;
}

int ku_ps_layout_put(const struct ku_remote_layout *l, int server, struct ku_rpc_buf *b)
{
    const uint32_t n[] = {[PUSH] = l->n_push, [PULL] = l->n_pull};
    size_t bytes =
        ku_proto_n_uint(CHECKSUM, l->checksum) + ku_proto_n_uint(SERVER, (uint64_t)server);
    struct tensor t;
    for (uint32_t f = PUSH; f <= PULL; f++)
        for (uint32_t i = 0; i < n[f]; i++)
            if (find(l, f == PUSH, i, server, &t))
                bytes += ku_proto_n_bytes(f, n_tensor(&t));
    KU_TRY(ku_rpc_buf_init(b, bytes));
    uint8_t *at = ku_proto_put_uint(b->data, CHECKSUM, l->checksum);
    at = ku_proto_put_uint(at, SERVER, (uint64_t)server);
    for (uint32_t f = PUSH; f <= PULL; f++)
        for (uint32_t i = 0; i < n[f]; i++)
            if (find(l, f == PUSH, i, server, &t))
                at = put_tensor(at, f, &t);
    KU_ASSERT(at == (uint8_t *)b->data + bytes);
    return KUMI_OK;
}
