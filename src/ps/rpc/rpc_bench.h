/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PS_RPC_RPC_BENCH_H
#define KU_PS_RPC_RPC_BENCH_H

#include <stdint.h>

#include "base/err.h"

/*
 * What calls and streams take here, beside gRPC alone: servers and clients of both kinds are
 * threads of this process and take turns over one kind of address, so that a loaded machine is the
 * same for both.
 *
 *     push     a unary call with push_bytes of floats, an empty reply
 *     stream   frames of frame_bytes from the server: this layer copies parameters into each, and
 *              out of it at the client; gRPC alone sends the same memory again and reads nothing
 *     echo     gRPC alone: the client sends the frames, the server sends them back
 */
struct ku_rpc_bench_opts {
    const char *address; /* "unix:PATH", "127.0.0.1:0"; the bare server's adds ".bare" to a path */
    int rounds;          /* of turns; the medians over them are reported */
    int pushes, push_bytes, frames, frame_bytes; /* of a round */
};
enum { KU_RPC_BENCH_OWN, KU_RPC_BENCH_BARE, KU_RPC_BENCH_ECHO, KU_RPC_BENCH_KINDS };
struct ku_rpc_bench {
    double p50_us[KU_RPC_BENCH_KINDS], p99_us[KU_RPC_BENCH_KINDS]; /* of a push; not of echo */
    double bytes_per_s[KU_RPC_BENCH_KINDS];
    double bytes_per_cpu_s[KU_RPC_BENCH_KINDS]; /* of client and server together */
};
KU_STATUS ku_rpc_bench_run(const struct ku_rpc_bench_opts *o, struct ku_rpc_bench *out);

#endif
