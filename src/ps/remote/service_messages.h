/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PS_REMOTE_SERVICE_MESSAGES_H
#define KU_PS_REMOTE_SERVICE_MESSAGES_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "ps/proto.h"
#include "ps/rpc/rpc.h"

/*
 * The messages of proto/kumi_ps.proto. All are made of numbers and at most one field of bytes, so
 * one pair of functions reads and writes them: field[i] is field number i, signed ones as int64.
 */
#define KU_PS_SERVICE "/kumi.ps.v1.ParameterServer/"
enum { KU_PS_FRAME_BYTES = 1 << 20 /* data of a frame */ };

enum ku_ps_frame_field { /* of PushFrame, PullFrame, PushReply and PullRequest */
                         KU_PS_F_WORKER = 1,
                         KU_PS_F_INCARNATION,
                         KU_PS_F_STEP,
                         KU_PS_F_OFFSET,
                         KU_PS_F_CHECKSUM,
                         KU_PS_F_DATA,
                         KU_PS_F_VERSION,
                         KU_PS_F_SPARSE,
                         KU_PS_F_BYTES,
                         KU_PS_F_ROW_BYTES,
                         KU_PS_F_ROWS,
                         KU_PS_N_FRAME
};
enum ku_ps_request_field { /* of ConnectRequest */
                           KU_PS_Q_WORKER = 1,
                           KU_PS_Q_INCARNATION,
                           KU_PS_Q_LAYOUT,
                           KU_PS_Q_BEGIN,
                           KU_PS_N_REQUEST
};
enum ku_ps_reply_field { /* of ConnectReply */
                         KU_PS_R_LAYOUT = 1,
                         KU_PS_R_SERVER,
                         KU_PS_R_N_SERVERS,
                         KU_PS_R_N_WORKERS,
                         KU_PS_R_MODE,
                         KU_PS_R_STALENESS,
                         KU_PS_R_BACKUP,
                         KU_PS_R_VERSION,
                         KU_PS_R_BEGIN,
                         KU_PS_R_PUSH_BYTES,
                         KU_PS_R_PUSH_PAYLOAD,
                         KU_PS_R_PULL_BYTES,
                         KU_PS_R_INCARNATION,
                         KU_PS_R_NUMERICS,
                         KU_PS_R_TAKES_SPARSE,
                         KU_PS_R_TAKES_RANGES,
                         KU_PS_N_REPLY
};
enum ku_ps_state_field { /* of StatusReply; SnapshotReply and DrainReply have the version */
                         KU_PS_S_SERVER = 1,
                         KU_PS_S_N_SERVERS,
                         KU_PS_S_N_WORKERS,
                         KU_PS_S_N_CONNECTED,
                         KU_PS_S_MODE,
                         KU_PS_S_VERSION,
                         KU_PS_S_SAVED,
                         KU_PS_S_PUSHES,
                         KU_PS_S_REPEATED,
                         KU_PS_S_REFUSED,
                         KU_PS_S_PUSHED_BYTES,
                         KU_PS_S_PULLED_BYTES,
                         KU_PS_S_JOURNAL_RECORDS,
                         KU_PS_S_DROPPED,
                         KU_PS_N_STATE
};
/*
 * Write fields 1 to n - 1; zeros are left out, as proto3 does.
 *
 *   data_field   the field of bytes, written last; 0: none
 *   data         out: where the caller writes its data_bytes; may be NULL without one
 */
KU_STATUS ku_ps_message_put(const uint64_t *field, uint32_t n, uint32_t data_field,
                            size_t data_bytes, struct ku_rpc_buf *b, void **data);
/*
 * Read fields 1 to n - 1; those that are absent are 0. data: of data_field, empty if absent; may be
 * NULL without one. Errors: KUMI_EINVAL.
 */
KU_STATUS ku_ps_message_get(const struct ku_rpc_msg *m, uint64_t *field, uint32_t n,
                            uint32_t data_field, struct ku_proto_in *data);

#endif
