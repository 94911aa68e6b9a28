/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PS_RPC_RPC_LIMITS_H
#define KU_PS_RPC_RPC_LIMITS_H

#include <stdint.h>

/* Bounds of the gRPC layer: the defaults of struct ku_rpc_limits, and what no option raises. */
enum {
    KU_RPC_MAX_LISTEN = 8,
    KU_RPC_MAX_THREADS = 16,
    KU_RPC_MAX_METHODS = 32,
    KU_RPC_MAX_ADDRESS = 256, /* bytes of an address as text; a Unix path has at most 107 */
    KU_RPC_MAX_QUEUED = 16,   /* messages of a stream that wait to be sent */
    KU_RPC_MAX_TOKEN = 256,   /* bytes; base64 of 192 bits has 32 */
    KU_RPC_MIN_TOKEN = 16,    /* 16 hexadecimal digits: 64 bits, at 1,000 tries/s 10^8 years */
    KU_RPC_MAX_PEM = 1 << 20, /* bytes of a file of certificates: 200 of them */

    KU_RPC_MESSAGE_BYTES = 4 << 20,  /* gRPC's own default for clients */
    KU_RPC_METADATA_BYTES = 8 << 10, /* gRPC's own default; ours have 300 */
    KU_RPC_CONNECTIONS = 1024,       /* KU_REMOTE_MAX_WORKERS; two descriptors each */
    KU_RPC_CALLS = 4096,             /* push, pull and control of each worker, and retries */
    KU_RPC_CONNECTION_CALLS = 64,
    KU_RPC_CALL_RATE = 50000,        /* one in 20 us: a client that awaits its replies is slower */
    KU_RPC_MEMORY_BYTES = 512 << 20, /* 1,024 windows of 512 KiB */
};
#define KU_RPC_SECOND        INT64_C(1000000000)
#define KU_RPC_IDLE_NS       (60 * KU_RPC_SECOND)
#define KU_RPC_FIRST_CALL_NS (10 * KU_RPC_SECOND)
#define KU_RPC_UNUSED_NS     (600 * KU_RPC_SECOND)
#define KU_RPC_KEEPALIVE_NS  (20 * KU_RPC_SECOND)
#define KU_RPC_BACK_OFF_NS   (5 * KU_RPC_SECOND)
/* How late a deadline may be noticed: the guard thread looks this often while calls exist. */
#define KU_RPC_TICK_NS (KU_RPC_SECOND / 20)

#endif
