/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PS_REMOTE_SERVICE_SERVER_H
#define KU_PS_REMOTE_SERVICE_SERVER_H

#include "base/err.h"
#include "ps/rpc/rpc.h"
#include "ps/service.h"

/*
 * One server of a run over gRPC: proto/kumi_ps.proto on ps/service.h.
 *
 *     event threads   frames of pushes; requests
 *     sync thread     waits for the disk, then acknowledges steps
 *     pull thread     frames of pulls whose update is there
 */
struct ku_ps_server_opts {
    struct ku_ps_opts service; /* its callbacks are the server's */
    /* Without methods. n_listen 0: unix:OUT/server-I.sock */
    struct ku_rpc_server_opts rpc;
    /* All servers have the same addresses: server I adds I to a port, and "-I" to a path. */
    bool spreads;
    /* The server listens, from now on workers may connect; NULL: nothing. */
    void (*listening)(void *ctx, struct ku_rpc_server *rpc);
    void *ctx;
};
/*
 * Serve a run: the rank of the servers' job that the environment describes.
 *
 *   options   of the run; a run that was killed continues in `out`
 *
 * Blocks until the training is complete or stopped. Errors: those of a run.
 */
KU_STATUS ku_ps_serve(const struct kumi_train_options *options, const struct ku_ps_server_opts *o,
                      struct kumi_train_result *result);

#endif
