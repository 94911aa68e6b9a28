/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_NET_QUEUE_H
#define KU_COMM_NET_QUEUE_H

#include <string.h>

#include "comm/net.h"

/*
 * The pending requests of one direction of a link, in order. What the engines share.
 *
 *     head                              tail
 *     request ──next──> request ──next──> request
 *     moved: 0 … head and payload
 */
struct ku_net_queue {
    struct ku_net_req *head, *tail;
};

/* Bytes of a message on its stream */
static inline size_t ku_net_message_bytes(const struct ku_net_req *req)
{
    return sizeof req->head + (size_t)req->head.bytes;
}

static inline void ku_net_post(struct ku_net_queue *q, struct ku_net_req *req)
{
    KU_ASSERT(req->n_pieces >= 0 && req->n_pieces <= KU_NET_PIECES + 1);
    req->head.bytes = 0;
    for (int i = 0; i < req->n_pieces; i++)
        req->head.bytes += req->piece[i].bytes;
    req->is_done = false;
    req->status = 0;
    req->next = NULL;
    req->moved = 0;
    if (q->head)
        q->tail->next = req;
    else
        q->head = req;
    q->tail = req;
}

/* End the first request. It is the caller's again when this returns. */
static inline void ku_net_end(struct ku_net_queue *q, int status)
{
    struct ku_net_req *req = q->head;
    KU_ASSERT(req);
    q->head = req->next;
    req->status = status;
    req->is_done = true;
}
static inline void ku_net_end_all(struct ku_net_queue *q, int status)
{
    while (q->head)
        ku_net_end(q, status);
}

/* The header that came is not the one that must come. */
static inline bool ku_net_is_mismatch(const struct ku_net_req *req)
{
    return memcmp(&req->head, &req->came, sizeof req->head) != 0;
}

#endif
