/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PS_SERVICE_PRIVATE_H
#define KU_PS_SERVICE_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "ps/recovery.h"
#include "ps/service.h"

/* The connection of one worker. */
struct ku_ps_presence {
    int count;       /* of its streams */
    int64_t gone_ns; /* since then there is none */
    bool was_here, is_told;
    /* New ranges of its pushes, and such as wait for the disk; on the other servers, as known. */
    int64_t n_ranges, n_elsewhere;
    /*
     * Server 0: since then it is connected, others wait for its push of `awaited`, and no new range
     * of it has come to any server
     */
    int64_t awaited_ns, awaited;
};

struct ku_ps_service {
    struct ku_ps_opts o;
    struct ku_ps_state state;
    struct ku_remote_engine *engine; /* NULL: not attached */
    struct ku_remote_engine_opts engine_opts;
    const struct ku_remote_layout *layout;
    char *numerics, *dir; /* dir: of the journal */
    int server;
    int64_t timeout_ns;
    pthread_mutex_t lock;
    pthread_cond_t changed;          /* an update, stop */
    struct ku_remote_extent *extent; /* [space.n_parts] of the push space */
    struct ku_ps_space space;
    struct ku_ps_ledger ledger;
    struct ku_ps_journal *journal;  /* NULL: a replay */
    struct ku_ps_presence *present; /* [n_workers] */
    int64_t asked_ns, counted_ns;   /* server 0: when the others were asked for n_ranges; when the
                                       answer came */
    bool is_stopping;
    atomic_bool wants_saving;
    /* recovery */
    struct ku_ps_plan plan;
    pthread_t feeder;
    bool has_feeder, is_open;
    int64_t done, target; /* updates that the engine has done; of the journal, on server 0 */
    int64_t *applied;     /* [n_workers] first step that these do not apply */
    struct {
        int64_t version;
        int n;
        int32_t worker[KU_REMOTE_MAX_WORKERS];
        int64_t step[KU_REMOTE_MAX_WORKERS];
    } applying; /* the update that is under way */
};

#endif
