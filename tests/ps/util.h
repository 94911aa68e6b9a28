/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_PS_UTIL_H
#define TESTS_PS_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "ps/rpc/limits.h"
#include "ps/rpc/rpc.h"

#define SECOND KU_RPC_SECOND
#define LONG   (30 * SECOND)

/* A unary call with a text; the reply as text. */
static inline int call_text(struct ku_rpc_channel *channel, const char *path, const char *text,
                            char *out, size_t cap)
{
    struct ku_rpc_buf b;
    struct ku_rpc_msg m = {0};
    assert_int_equal(ku_rpc_buf_copy(&b, text, strlen(text)), 0);
    int status = ku_rpc_unary(channel, path, &b, LONG, false, &m);
    if (status == KUMI_OK) {
        assert_true(m.bytes < cap);
        ku_rpc_msg_read(&m, 0, out, m.bytes);
        out[m.bytes] = '\0';
        ku_rpc_msg_fini(&m);
    }
    return status;
}

#endif
