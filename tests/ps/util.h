/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_PS_UTIL_H
#define TESTS_PS_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "ps/rpc/rpc_limits.h"
#include "ps/rpc/rpc.h"

#define SECOND KU_RPC_SECOND
#define LONG   (30 * SECOND)

/*
 * gRPC and Abseil synchronise by futexes that ThreadSanitizer does not see: it reports races in
 * every call.
 */
static inline int cannot_run(void)
{
#if defined(__SANITIZE_THREAD__)
    print_message("not under ThreadSanitizer: the gRPC library is not instrumented\n");
    return 1;
#else
    return 0;
#endif
}

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
