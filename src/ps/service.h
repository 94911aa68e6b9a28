/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PS_SERVICE_H
#define KU_PS_SERVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "ps/journal.h"
#include "ps/selection.h"
#include "run/run.h"

/*
 * What one server of a parameter server answers, whatever carries the messages:
 *
 *     transport                 service                                 engine, journal
 *     ku_ps_connect  ───>  incarnation, layout, where to begin
 *     ku_ps_push     ───>  ledger: new? ──> journal: append ──────> ku_remote_receive
 *     ku_ps_sync     ───>                   journal: on the disk?
 *     ku_ps_pull     ───>  ──────────────────────────────────────────> ku_remote_read
 *     changed        <───  an update is done, the engine stopped
 *
 * A push is acknowledged after ku_ps_sync: it is in the engine, and in the journal as the policy
 * says. What is acknowledged is applied once, also if server, worker or both are killed:
 *
 *     journal    holds every push before the engine does, and every decision which pushes an update
 *                applies before the update
 *     recovery   takes the newest checkpoint, of update c, and pushes again what the journal holds
 *                after c, in its order (ps/recovery.c)
 *     order      a worker completes its push to server 0 last, when all other servers have
 *                acknowledged its parts. So what server 0 can decide to apply, all servers have.
 *
 * `lock` protects ledger, journal and presence. It is held while a push is copied, and not while
 * anything waits for an acknowledged record, for space on the disk, or for an update. When a
 * segment of the journal is closed, what is not yet synced of it is, under the lock.
 */
struct ku_ps_opts {
    enum ku_ps_sync sync;
    int group_ms;
    bool keeps;             /* the journal's segments that checkpoints cover */
    uint64_t segment_bytes; /* 0: the default */
    /* The journal is read from here, and nothing is written: a replay. NULL: OUT/journal */
    const char *replayed;
    /*
     * Callbacks, from threads of the service and of the run, without its lock; NULL: nothing.
     *
     *   opened    recovery is done: workers may connect
     *   changed   pulls that waited may be tried again
     */
    int (*opened)(void *ctx);
    void (*changed)(void *ctx);
    void *ctx;
};
struct ku_ps_service;
KU_STATUS ku_ps_service_create(const struct ku_ps_opts *o, struct ku_ps_service **s);
void ku_ps_service_destroy(struct ku_ps_service *s); /* NULL is allowed */
/*
 * The functions of a struct ku_run_server, whose ctx is the service.
 *
 *   attach   reads the journal, and starts the recovery; Errors: KUMI_EMISMATCH (a journal of
 *            another layout), EINPUT (damage), ENOCKPT (the journal begins after the checkpoint),
 *            ESTORAGE, ENOMEM
 *   detach   ends the recovery and closes the journal. The transport has ended before.
 */
KU_STATUS ku_ps_attach(void *service, const struct ku_run_served *served);
void ku_ps_detach(void *service, struct ku_remote_engine *e);
/* End the recovery, so that `opened` is not called any more; before detach. */
void ku_ps_quiesce(struct ku_ps_service *s);
void ku_ps_saved(void *service, int64_t version);
bool ku_ps_wants_saving(void *service);

/* What a worker says first, and gets. */
struct ku_ps_hello {
    int worker;
    uint64_t incarnation; /* above that of any process that was this worker before */
    uint64_t layout;      /* checksum; 0: not known yet */
    /*
     * Servers other than 0: begin of server 0's welcome. What this server has of the worker's
     * pushes from there on is discarded, if the incarnation is new. Server 0: -1.
     */
    int64_t begin;
};
struct ku_ps_welcome {
    uint64_t layout;
    int server, n_servers, n_workers;
    struct ku_remote_engine_opts engine; /* mode, staleness, backup; version of the last start */
    int64_t version;                     /* number of updates */
    int64_t begin;                       /* the first step that the server does not have */
    size_t push_bytes, push_payload, pull_bytes;
    uint64_t incarnation; /* the newest one of the worker; 0: none */
    const char *numerics; /* JSON; borrowed until detach */
};
/*
 * Errors: KUMI_EINVAL (ps/ledger.h), EMISMATCH (layout, both values), ESTORAGE, EPEER (not ready).
 */
KU_STATUS ku_ps_connect(struct ku_ps_service *s, const struct ku_ps_hello *in,
                        struct ku_ps_welcome *out);
/* A range of a push. */
struct ku_ps_piece {
    int64_t step;
    size_t offset;
    const void *data;
    size_t bytes;   /* of data */
    bool is_sparse; /* data is a body of remote/sparse.h, and stands for its extent */
};
/*
 * Take a range of a push.
 *
 *   number        out: for ku_ps_sync, before it is acknowledged
 *   is_complete   out: the step is complete with it
 *
 * Errors: KUMI_EINVAL (ps/ledger.h), ENUMERIC (ku_remote_check_contents: nothing of the step is
 * applied, and the worker has to connect with a new incarnation), ESTORAGE (the journal cannot be
 * written; nothing changed), EPEER (not ready), those of the engine.
 */
KU_STATUS ku_ps_push(struct ku_ps_service *s, const struct ku_ps_hello *from,
                     const struct ku_ps_piece *piece, uint64_t *number, bool *is_complete);
KU_STATUS ku_ps_sync(struct ku_ps_service *s, uint64_t number);
/*
 * Check what a worker asks for (ku_ps_selection_check). Errors: KUMI_EINVAL, EPEER (not ready).
 */
KU_STATUS ku_ps_select(struct ku_ps_service *s, const struct ku_ps_hello *from,
                       struct ku_ps_selection *x);
/* What a worker asks for, and a part of the answer. */
struct ku_ps_pulled {
    int64_t step;                       /* that it begins */
    const struct ku_ps_selection *what; /* as ku_ps_select left it */
    /* It has all that it pulled as of this update; -1: nothing. Of the whole pull space */
    int64_t since;
    size_t offset;  /* in the answer */
    size_t extent;  /* out: bytes of the answer that the part stands for */
    size_t bytes;   /* out: of data */
    bool is_sparse; /* out: data is a body of remote/sparse.h, with what changed after `since` */
    int64_t seen;   /* out: as of ku_remote_read; -1: try again when `changed` comes */
};
/*
 * Read a part of the answer.
 *
 *   data   out: up to KU_PS_MAX_BODY_BYTES
 */
KU_STATUS ku_ps_pull(struct ku_ps_service *s, const struct ku_ps_hello *from,
                     struct ku_ps_pulled *x, void *data);
/*
 * A stream of a worker has come, or gone. In mode sync without backup a worker that stays away
 * for the job's deadline ends the run with KUMI_ETIMEDOUT, which names it; so does one that is
 * connected, for which others wait (ku_remote_awaited), and that pushes nothing for that long.
 *
 * Errors: KUMI_EINVAL (ku_ps_ledger_check_known), EPEER (not ready); nothing has come.
 */
KU_STATUS ku_ps_join(struct ku_ps_service *s, const struct ku_ps_hello *from);
void ku_ps_leave(struct ku_ps_service *s, const struct ku_ps_hello *from);

/* Ask for a checkpoint of the next update, or of the last one. Server 0. */
void ku_ps_want_saving(struct ku_ps_service *s);
struct ku_ps_state {
    int server, n_servers, n_workers, n_present;
    enum ku_remote_mode mode;
    int64_t version, saved; /* updates; of the last checkpoint since the start, -1: none */
    uint64_t pushes, repeated, refused; /* ranges taken, acknowledged again, refused */
    uint64_t pushed_bytes, pulled_bytes, journal_records; /* bytes as they came */
    uint64_t dropped; /* whole pushes that updates were done without (ps.backup) */
};
/* Errors: KUMI_EBUSY: not attached. */
KU_STATUS ku_ps_state(struct ku_ps_service *s, struct ku_ps_state *out);

#endif
