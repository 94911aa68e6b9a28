/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_REMOTE_DIRECT_H
#define KU_REMOTE_DIRECT_H

#include "base/err.h"
#include "train/remote_update.h"

/*
 * Workers and servers as threads of one process: a push is a copy into the server's slot, a pull
 * waits for the engine's event and copies the parameters.
 */
struct ku_remote_direct;
KU_STATUS ku_remote_direct_create(int n_workers, int n_servers, struct ku_remote_direct **d);
void ku_remote_direct_destroy(struct ku_remote_direct *d); /* NULL is allowed */
/*
 * Publish a server's engine, and withdraw it; the engine's events are the link's meanwhile, and
 * pass on to `events` (NULL: none). numerics: what `connect` hands out, or NULL. out: directory of
 * the run, or NULL. Threads: the server's.
 */
void ku_remote_direct_attach(struct ku_remote_direct *d, struct ku_remote_engine *e,
                             const char *numerics, const char *out,
                             const struct ku_remote_events *events);
/* The link of a worker; its calls wait until all servers are attached. Borrowed. */
const struct ku_remote_link *ku_remote_direct_link(struct ku_remote_direct *d, int worker);
/*
 * A worker has made its last call, also one that failed or was never started. Every worker leaves
 * once: the servers wait for it in detach, before they free their engines.
 */
void ku_remote_direct_leave(struct ku_remote_direct *d);
void ku_remote_direct_detach(struct ku_remote_direct *d, struct ku_remote_engine *e);
/*
 * A worker or server failed with the error record of this thread: all waits end, and all engines
 * stop with it. A worker calls it before it leaves. Threads: any.
 */
void ku_remote_direct_fail(struct ku_remote_direct *d, int status);

#endif
