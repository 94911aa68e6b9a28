/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PS_REMOTE_LAYOUT_MESSAGE_H
#define KU_PS_REMOTE_LAYOUT_MESSAGE_H

#include "base/err.h"
#include "ps/rpc/rpc.h"
#include "train/remote_update.h"

/* LayoutReply of a server: the tensors that it has elements of. Errors: KUMI_ENOMEM. */
KU_STATUS ku_ps_layout_put(const struct ku_remote_layout *l, int server, struct ku_rpc_buf *b);

#endif
