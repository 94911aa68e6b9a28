/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PS_REMOTE_LINK_H
#define KU_PS_REMOTE_LINK_H

#include "base/err.h"
#include "ps/rpc/rpc.h"
#include "train/remote_update.h"

/*
 * A worker's link to servers in other processes (struct ku_remote_link_ops), over
 * proto/kumi_ps.proto.
 *
 *     per server   push thread   ranges in the order of the calls, in frames; then the step's
 *                                acknowledgement
 *                  pull thread   a request, its frames
 *
 * Both threads connect again, with back-off, when a server is started anew, and send what was not
 * acknowledged once more. The last range for server 0 waits until all other servers have
 * acknowledged the step (ps/service.h). A server that is not heard of for `timeout_ns` ends the
 * link.
 */
struct ku_ps_link_opts {
    const char *const *server; /* [n_servers] addresses, in the order of the servers' numbers */
    int n_servers;
    int worker;
    const char *out; /* directory for the worker's error feedback, borrowed; NULL: none */
    struct ku_rpc_security security;
    int64_t timeout_ns;
};
struct ku_ps_link;
/* Errors: KUMI_EINVAL (addresses), ENOMEM. */
KU_STATUS ku_ps_link_create(const struct ku_ps_link_opts *o, struct ku_ps_link **link);
void ku_ps_link_destroy(struct ku_ps_link *l);                          /* NULL is allowed */
const struct ku_remote_link *ku_ps_link_of(const struct ku_ps_link *l); /* borrowed */

#endif
