/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PS_RPC_BENCH_BARE_H
#define KU_PS_RPC_BENCH_BARE_H

#include "ps/rpc/client.h"

/*
 * The minimum that gRPC's C API needs for a unary call and a stream of frames: what the benchmark
 * compares this layer with. It handles one call at a time and no failure: a failed operation is an
 * assertion.
 */
struct ku_bare {
    grpc_server *server;
    grpc_completion_queue *cq, *client_cq;
    grpc_channel *channel;
    pthread_t thread;
    grpc_slice frame;
    int n_frames; /* of each stream */
};
KU_STATUS ku_bare_init(struct ku_bare *b, const char *address, size_t frame_bytes, int n_frames);
void ku_bare_fini(struct ku_bare *b);
void ku_bare_push(struct ku_bare *b, const void *data, size_t bytes);
/* A stream of frames from the server, or an echo of the client's; returns the bytes that came. */
size_t ku_bare_stream(struct ku_bare *b);
size_t ku_bare_echo(struct ku_bare *b);

#endif
