/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_TRANSPORT_H
#define KU_COMM_TRANSPORT_H

#include "comm/coll.h"

/* What a flag says about a work, or a staged piece. Monotonic numbers with one writer each. */
enum ku_flag {
    KU_FLAG_READY,  /* number = the work's seq: my part is written, my entry is valid */
    KU_FLAG_DONE,   /* seq: I read and write nobody's memory for it any more */
    KU_FLAG_FILLED, /* pieces: my stage holds this one */
    KU_FLAG_FREED   /* pieces: I no longer use anybody's stage for it */
};

/*
 * How flags and messages travel. The verbs never block, allocate or lock: 0 = done, 1 = not yet, <
 * 0 = status. `thread` and `shm` are one implementation over two ways to get memory; `chaos` wraps
 * it.
 */
struct ku_transport {
    const char *name;
    /* Release: what this rank wrote before is seen by whoever finds the flag. */
    int (*arrive)(struct ku_comm *comm, enum ku_flag flag, uint64_t number);
    /* Acquire: all members' flags are at `number` or beyond. *missing: from where to look; the
     * first member lacking. */
    int (*arrived)(struct ku_comm *comm, enum ku_flag flag, uint64_t number, int *missing);
    /* Advance one message. 0: the buffer is the caller's again. */
    int (*send)(struct ku_comm *comm, struct ku_work *work);
    int (*recv)(struct ku_comm *comm, struct ku_work *work);
    int64_t sleep_ns; /* longest sleep: KU_SLEEP_NS, less where flags appear without a bell */
};
extern const struct ku_transport ku_transport_shm, ku_transport_chaos;

#endif
