/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_FAR_H
#define KU_COMM_FAR_H

#include "base/err.h"
#include "comm/coll.h"
#include "comm/net.h"

/*
 * The far part of a communicator: what its members on this host exchange with those on others, by
 * messages (comm/net.h) and by the plan of comm/exchange.h. The near part is the shared memory of
 * the host, as in a communicator of one host.
 *
 *     both halves, drawn for 2 hosts x 2 members; member 1 is the helper of members 1 and 3. (An
 *     all_reduce of just two such hosts sends slices 1 and 3 both ways in FAR_REDUCE, and has no
 *     FAR_GATHER, unless ku_far_is_mutual says no.)
 *
 *     host 0                                     host 1
 *     member 0  member 1                         member 2  member 3
 *     [0|2|1|3] [0|2|1|3]                        [0|2|1|3] [0|2|1|3]     slices by destination
 *          └── 3 ──┤ sum of both, chunk by chunk ────────────> │        FAR_REDUCE
 *          └── 1 ──┤ <─────────────────── sum of both ──────────┤
 *                  │ sums: node 01 of its own, node 23 received │
 *          <── 1 ──┤ ─────────────────────> 1 ──> both copies   │        FAR_GATHER
 *
 * A sum goes straight from the members' memory into the chunk that is sent; there is no vector in
 * between. What a member keeps between stages of the exchange overwrites its own input (a program's
 * reduction may do that; public calls use the stages).
 *
 * Only the first work of a communicator's queue exchanges messages, so a communicator needs one set
 * of chunks and one stream per peer. Sends and receives between two ranks have a stream of their
 * own for each direction.
 */
struct ku_far;

/* The plan of a comm with members on several hosts. Sends nothing. Errors: KUMI_ENOMEM. */
KU_STATUS ku_far_create(struct ku_comm *comm, uint64_t stream);
/* Allocate the chunks of large collectives, once. Errors: KUMI_ENOMEM. */
KU_STATUS ku_far_reserve(struct ku_far *far);
/* Takes NULL. has_failed: requests may be pending. */
void ku_far_destroy(struct ku_far *far, bool has_failed);
/* The member whose message the running work waits for; -1: none */
int ku_far_awaited(const struct ku_work *work);
/* Members on the largest host */
int ku_far_max_near(const struct ku_comm *comm);
/* Members on each host; 0: not as many on each */
int ku_far_host_members(const struct ku_comm *comm);
/* Sections of a stage in KU_PATH_FAR_STAGED_GATHER: one for each block that a member brings in */
int ku_far_n_sections(const struct ku_comm *comm);
/*
 * Every message between hosts was received. Collective. Blocks. Errors: KUMI_EMISMATCH, raised by
 * the receiver of one that was not; the job's root cause.
 */
KU_STATUS ku_far_check_messages(struct ku_comm *comm);
/*
 * The ops of KU_STEP_FAR_*. 0: done, 1: not yet, < 0: status.
 */
KU_STATUS ku_far_small(struct ku_work *work);
KU_STATUS ku_far_reduce(struct ku_work *work);
KU_STATUS ku_far_gather(struct ku_work *work);
KU_STATUS ku_far_broadcast(struct ku_work *work);
KU_STATUS ku_far_pairs(struct ku_work *work);
KU_STATUS ku_far_message(struct ku_work *work);
/*
 * KU_PATH_FAR_STAGED_GATHER, and a program's KU_PATH_FAR_STAGED_BROADCAST: elements of the longest
 * block; this member's block to its section of the current piece. Gather: all blocks of the piece
 * from the near members' stages.
 */
int64_t ku_far_max_block(const struct ku_work *work);
void ku_far_fill(struct ku_work *work);
void ku_far_collect(struct ku_work *work);
/*
 * KU_PATH_FAR_STAGED_BROADCAST: bytes of the piece; a program's parts, from the broadcaster's stage
 */
int64_t ku_far_piece_bytes(const struct ku_work *work);
void ku_far_broadcast_parts(struct ku_work *work);
/* KU_PATH_FAR_STAGED_SUM: the sums of the piece, from the near members' stages */
void ku_far_drain(struct ku_work *work);
/* KU_PATH_FAR_INLINE_GATHER: this member's result from the payloads in the first member's stage */
void ku_far_inline_result(struct ku_work *work);
/* The near member that has the piece of a broadcast first: the root, or its helper */
int ku_far_broadcaster(const struct ku_work *work);

#endif
