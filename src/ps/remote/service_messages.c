/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/remote/service_messages.h"

#include <string.h>

#include "base/err.h"

int ku_ps_message_put(const uint64_t *field, uint32_t n, uint32_t data_field, size_t data_bytes,
                      struct ku_rpc_buf *b, void **data)
{
    size_t bytes = data_field ? ku_proto_n_bytes(data_field, data_bytes) : 0;
    for (uint32_t i = 1; i < n; i++)
        if (i != data_field && field[i])
            bytes += ku_proto_n_uint(i, field[i]);
    KU_TRY(ku_rpc_buf_init(b, bytes));
    uint8_t *at = b->data;
    for (uint32_t i = 1; i < n; i++)
        if (i != data_field && field[i])
            at = ku_proto_put_uint(at, i, field[i]);
    if (data_field)
        *data = ku_proto_put_head(at, data_field, data_bytes);
    return KUMI_OK;
}

int ku_ps_message_get(const struct ku_rpc_msg *m, uint64_t *field, uint32_t n, uint32_t data_field,
                      struct ku_proto_in *data)
{
    struct ku_proto_in in = ku_proto_begin(m->piece, m->n_pieces, m->bytes);
    uint32_t number, type;
    int more;
    memset(field, 0, n * sizeof *field);
    if (data_field)
        *data = ku_proto_begin(NULL, 0, 0);
    while ((more = ku_proto_next(&in, &number, &type)) > 0)
        if (data_field && number == data_field)
            KU_TRY(ku_proto_enter(&in, type, data));
        else if (number < n)
            KU_TRY(ku_proto_uint64(&in, type, &field[number]));
        else
            KU_TRY(ku_proto_skip(&in, type));
    return more;
}
