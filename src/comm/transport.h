/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_TRANSPORT_H
#define KU_COMM_TRANSPORT_H

#include "comm/coll.h"

/*
 * What a flag says about a work or a staged piece. Each is a monotonic number with one writer.
 */
enum ku_flag {
    KU_FLAG_READY,  /* work: this rank has written its input and its entry */
    KU_FLAG_DONE,   /* work: this rank no longer touches a peer's memory for it */
    KU_FLAG_FILLED, /* piece: this rank's stage holds it */
    KU_FLAG_FREED,  /* piece: this rank no longer reads a peer's stage for it */
    KU_FLAG_FAR     /* work: what this rank receives from other hosts is there */
};

/*
 * How flags and messages travel. The functions never block, allocate or lock. They return 0: done,
 * 1: not yet, < 0: status. `thread` and `shm` are one implementation over two kinds of memory.
 * `chaos` wraps it.
 */
struct ku_transport {
    const char *name;
    /*
     * Store this rank's flag (release): a rank that reads it sees all earlier writes of this rank.
     */
    int (*arrive)(struct ku_comm *comm, enum ku_flag flag, uint64_t number);
    /*
     * Test (acquire) whether the flags of all near members are at `number` or above. `*missing`
     * holds the one to test first; with 1 it becomes the first below `number`.
     */
    int (*arrived)(struct ku_comm *comm, enum ku_flag flag, uint64_t number, int *missing);
    /* Advance one message. 0: the buffer belongs to the caller again. */
    int (*send)(struct ku_comm *comm, struct ku_work *work);
    int (*recv)(struct ku_comm *comm, struct ku_work *work);
    int64_t sleep_ns; /* max sleep: KU_SLEEP_NS, less where a flag appears without a wake-up */
};
extern const struct ku_transport ku_transport_shm, ku_transport_chaos;

/* `recv` of shm; it takes no piece of the channel above number `last`. */
KU_STATUS ku_shm_recv(struct ku_comm *comm, struct ku_work *work, uint64_t last);

#endif
