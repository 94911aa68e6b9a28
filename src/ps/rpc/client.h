/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PS_RPC_CLIENT_H
#define KU_PS_RPC_CLIENT_H

#include "ps/rpc/private.h"

/* What channel.c and rpc_stream.c share. */
struct ku_rpc_channel {
    grpc_channel *grpc;
    struct ku_rpc_address address;
    char bearer[KU_RPC_MAX_TOKEN + 8]; /* "": no token */
    grpc_metadata token;
    /* Completion queues that no call uses. A call takes one, since its waits are of its threads. */
    pthread_mutex_t lock;
    grpc_completion_queue **free_cq;
    uint32_t n_free, cap_free;
};

grpc_completion_queue *ku_rpc_cq_take(struct ku_rpc_channel *ch);
void ku_rpc_cq_give(struct ku_rpc_channel *ch, grpc_completion_queue *cq); /* nothing is in it */
/* Starts a call with this deadline. */
grpc_call *ku_rpc_call_create(struct ku_rpc_channel *ch, const char *path,
                              grpc_completion_queue *cq, gpr_timespec deadline);
/* The operation that begins a call: metadata and whether it waits for a connection. */
grpc_op ku_rpc_begin_op(struct ku_rpc_channel *ch, bool wait);
/* What RECV_STATUS_ON_CLIENT fills. */
struct ku_rpc_end {
    grpc_metadata_array trailing;
    grpc_status_code code;
    grpc_slice text;
};
grpc_op ku_rpc_end_op(struct ku_rpc_end *end);
void ku_rpc_end_fini(struct ku_rpc_end *end);

#endif
