/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_REMOTE_UPDATE_H
#define KU_TRAIN_REMOTE_UPDATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "kumi/comm.h"
#include "kumi/dtype.h"
#include "pass/pass.h"

/*
 * The parameter server between training and transport. Workers run forward and backward, servers
 * run phase O. The step is cut where phase O sums values of all data-parallel ranks: what a worker
 * would give to that sum it pushes, and the servers sum the pushes of all workers in canonical
 * order (comm/sum.h), so that the bits are those of an all-reduce job with as many ranks.
 *
 *     worker w                          transport              server s
 *     forward, backward
 *       use complete ── push(s, step, offset, bytes) ──> ku_remote_receive
 *                                                        all workers in: sum, program of phase O
 *     next forward <─── pull(s, version) <────────────── ku_remote_read, when the version is there
 *
 * A transport moves bytes only. Every pair of worker and server has two flat spaces of bytes, which
 * follow from the layout: the push space (one step's gradients and sums of a worker, the part of
 * server s) and the pull space (the parameters and scalars that server s holds). Both sides derive
 * the layout from the model and the configuration, and compare its checksum when they connect.
 *
 *     push space of server s     | use 0: its chunks | use 1: its chunks | .. | loss, counts, ..|
 *     pull space of server s     | parameter 0: its chunks | parameter 1 | .. | state scalars   |
 *
 * Gradients and parameters are split by ZeRO's canonical chunks over the servers. Everything else
 * (loss, counts, metrics, batch statistics; loss scale, running statistics) is small and goes to,
 * and comes from, every server whole.
 */

enum { KU_REMOTE_MAX_SERVERS = 64, KU_REMOTE_MAX_WORKERS = 1024 };

/* When the servers apply which push. */
enum ku_remote_mode {
    KU_REMOTE_SYNC,  /* update t: step t of all workers (but `backup` late ones) */
    KU_REMOTE_ASYNC, /* every push by itself, in the order of arrival at server 0 */
    KU_REMOTE_SSP    /* as ASYNC; a worker is at most `staleness` steps ahead of the slowest one */
};

/* How the elements of a gradient travel: as they are, or compressed (remote/compress.h). */
enum ku_remote_form {
    KU_REMOTE_DENSE,
    KU_REMOTE_INT8,            /* a scale for each chunk, rounded to nearest */
    KU_REMOTE_INT8_STOCHASTIC, /* rounded up or down at random */
    KU_REMOTE_TOPK             /* the elements of largest magnitude of each chunk */
};
/* One tensor of a push or pull space. */
struct ku_remote_entry {
    char name[KU_NAME_BYTES]; /* of the port in the programs, or of the state tensor */
    enum kumi_dtype dtype;    /* of its elements in the programs */
    enum kumi_dtype wire;     /* of its elements in the space: dtype or narrower */
    enum kumi_reduce reduce;  /* push: how workers combine */
    enum ku_remote_form form; /* push; compressed tensors have a chunk or more, in f32 */
    double topk;              /* KU_REMOTE_TOPK: as ku_remote_opts has it */
    bool is_split;            /* divided over the servers; else every server has all of it */
    bool may_rest; /* pull, on a server: an update may leave elements as they are (op/op.h) */
    int64_t count; /* elements of the whole tensor */
    /*
     * Push, on a worker: min number of elements that are 0 after a step: of an embedding, the rows
     * beyond as many as the worker has tokens.
     */
    int64_t zero_count;
    int32_t first_block; /* is_split: server that owns the first odd chunk */
};
/* The part of an entry in the space of one server. */
struct ku_remote_part {
    int64_t begin, end; /* elements of the tensor */
    size_t offset;      /* bytes from the start of the space, a multiple of 64 */
};

struct ku_remote_layout {
    int n_workers, n_servers;
    bool is_single; /* an update applies the push of one worker (async, ssp) */
    uint32_t n_push, n_pull;
    struct ku_remote_entry *push, *pull; /* [n_push], [n_pull] */
    size_t push_bytes[KU_REMOTE_MAX_SERVERS], pull_bytes[KU_REMOTE_MAX_SERVERS];
    /* Bytes of a push without the gaps between parts: a step is complete when all are in. */
    size_t push_payload[KU_REMOTE_MAX_SERVERS];
    /*
     * Over everything above and the numerics of the update: equal on both sides, or the two must
     * not talk.
     */
    uint64_t checksum;
};
struct ku_graph;
/*
 * The layout of a compiled worker or server, from its graph.
 *
 *   g        after all passes
 *   o        with o->mesh of the workers; o->remote
 *   layout   out, destroyed by the caller
 *
 * Errors: KUMI_EINVAL, too many workers or servers; KUMI_ENOMEM.
 */
KU_STATUS ku_remote_layout_create(const struct ku_graph *g, const struct ku_compile_opts *o,
                                  struct ku_remote_layout **layout);
void ku_remote_layout_destroy(struct ku_remote_layout *l); /* NULL is allowed */
/*
 * Bytes of `count` elements of an entry in a space. A compressed one has a record for each chunk of
 * 4,096 elements, the last for the rest.
 */
size_t ku_remote_wire_bytes(const struct ku_remote_entry *x, int64_t count);
/* Bytes of the record of a chunk of n elements; how many of its elements topk sends. */
size_t ku_remote_record_bytes(const struct ku_remote_entry *x, int64_t n);
int64_t ku_remote_topk(const struct ku_remote_entry *x, int64_t n);
enum {
    KU_REMOTE_GRAIN_BYTES = 256, /* changes of parameters: 3 % more memory; 64 floats of a row */
    KU_REMOTE_COMPARED_BYTES = 64 << 10, /* at a time: stays in the L2 cache */
    KU_REMOTE_FRAME_BYTES = 1 << 20,     /* a transport may send a push in pieces of that many */
    KU_REMOTE_RECORD_GROUP = 16 /* whole records that together are a multiple of 64 bytes */
};
/* Bytes of memory with which a server tracks what may rest (remote/changes.h). */
size_t ku_remote_tracked_bytes(const struct ku_remote_layout *l, int server);
/* Bytes of a space that belong to parts. Between two of them is a gap of up to 63 bytes. */
struct ku_remote_extent {
    size_t begin, end;
};
/*
 * The extents of a server's push space, in order; neighbours without a gap are one.
 *
 *   extent   out: [*n], freed with ku_free
 *
 * Errors: KUMI_ENOMEM.
 */
KU_STATUS ku_remote_extents(const struct ku_remote_layout *l, int server,
                            struct ku_remote_extent **extent, uint32_t *n);
/* Bytes that [begin, end) and the extents have in common. */
size_t ku_remote_bytes_in(const struct ku_remote_extent *extent, uint32_t n, size_t begin,
                          size_t end);
/* The part of push entry i (is_push) or pull entry i in the space of a server. O(i). */
struct ku_remote_part ku_remote_part_of(const struct ku_remote_layout *l, bool is_push, uint32_t i,
                                        int server);
/* Of the parts of a space, in order: the last one that begins at `offset` or before. O(log n). */
uint32_t ku_remote_part_at(const struct ku_remote_part *part, uint32_t n, size_t offset);

/*
 * What a worker needs of a transport. Calls come from the worker's threads, one at a time.
 *
 *   connect blocks until all servers are there; compares `layout` with that of each, and hands out
 *           the numerics keys of their run, as JSON (ku_session.numerics; borrowed). layout NULL:
 *           it is not known yet
 *   push    starts to send bytes [offset, offset + bytes) of the push space of `server` for `step`.
 *           `data` is unchanged until `flush`. Ranges of a step do not overlap and together cover
 *           the space; a server counts bytes to know that a step is complete.
 *   flush   blocks until all pushes so far have been accepted by their servers
 *   pull    starts to read the whole pull space of `server` into `data`: the parameters with which
 *           this worker begins `step` (ku_remote_read); *seen is the number of updates in them.
 *           Both are valid after `wait`.
 *   wait    blocks until all pulls so far are complete
 *   stop    ends what is under way: no memory of the caller is read or written after it. Nothing
 *           but stop may follow. NULL: nothing is under way between calls
 *   awaits  whether a pull may be started before its step can begin: the link asks at once, and
 *           reads while the worker flushes. Else pull itself blocks.
 *
 * Errors: of any call the first error of the transport: KUMI_EPEER (a server died), ETIMEDOUT,
 * EMISMATCH (layout), or that of the server's engine. After an error the link is dead.
 */
struct ku_remote_link_ops {
    const char *name; /* "direct", "grpc" */
    KU_STATUS(*connect)
    (void *link, const struct ku_remote_layout *layout, const char **numerics);
    KU_STATUS(*push)
    (void *link, int server, int64_t step, size_t offset, const void *data, size_t bytes);
    KU_STATUS (*flush)(void *link);
    KU_STATUS (*pull)(void *link, int server, int64_t step, void *data, int64_t *seen);
    KU_STATUS (*wait)(void *link);
    void (*stop)(void *link);
    bool awaits;
};
struct ku_remote_link {
    const struct ku_remote_link_ops *ops;
    void *ctx;
    int worker; /* 0 .. n_workers - 1 */
    /* After `connect`: directory for what the worker keeps between steps; NULL: none. */
    const char *out;
    /*
     * Async, ssp, after `connect`: the first step of this worker. 0: as many as there were updates
     * when the servers started.
     */
    int64_t first_step;
};

/*
 * What a transport needs of a server. The engine belongs to one server, a rank of the servers'
 * job. The thread of that rank sums and updates in ku_remote_serve; any threads of the transport
 * call receive and read.
 */
struct ku_remote_engine;
struct ku_trainer;
struct ku_remote_engine_opts {
    enum ku_remote_mode mode;
    int staleness;   /* ssp */
    int backup;      /* sync: an update needs the pushes of n_workers - backup workers */
    int64_t version; /* the number of updates in the trainer's state: 0, or of a checkpoint */
    bool skips;      /* train.on_nonfinite: an update that is not finite is skipped */
};
/*
 * An engine on the state of a server's trainer, which is borrowed. Collective over its job.
 * Errors: KUMI_EINVAL (options that this model cannot have); KUMI_ENOMEM.
 */
KU_STATUS ku_remote_engine_create(struct ku_trainer *t, const struct ku_remote_engine_opts *o,
                                  struct ku_remote_engine **e);
void ku_remote_engine_destroy(struct ku_remote_engine *e); /* NULL is allowed */
const struct ku_remote_layout *ku_remote_engine_layout(const struct ku_remote_engine *e);
int ku_remote_engine_server(const struct ku_remote_engine *e);
/*
 * Take bytes of a worker's push into the engine's memory, which holds one push per worker. A worker
 * pulls before it pushes again. A push that comes too late for its step (sync with `backup`) is
 * dropped.
 *
 * Threads: any. Errors: KUMI_EINVAL (unknown worker, a step before the last one was applied, range
 * outside of the space, more bytes than the push has), with nothing changed; the engine's own error
 * once it has failed.
 */
KU_STATUS ku_remote_receive(struct ku_remote_engine *e, int worker, int64_t step, size_t offset,
                            const void *data, size_t bytes);
/*
 * The same of a body that ku_sparse_check accepted (remote/sparse.h), which stands for `extent`
 * bytes.
 */
KU_STATUS ku_remote_receive_sparse(struct ku_remote_engine *e, int worker, int64_t step,
                                   size_t offset, const void *body, size_t extent);
/*
 * Whether bytes of a push can be received: the step is the one that the engine expects. Before a
 * push is logged.
 *
 * Threads: any. Errors: KUMI_EINVAL; the engine's own error once it has failed.
 */
KU_STATUS ku_remote_check(struct ku_remote_engine *e, int worker, int64_t step, size_t offset,
                          size_t bytes);
/*
 * Whether these bytes can be received, likewise: compressed tensors come in whole records, whose
 * indices are within the chunk (EINVAL). Where an update can do without a push (async, ssp, sync
 * with `backup`), every element is finite (ENUMERIC), unless an update that is not finite is
 * skipped: with a loss scaler, and with `skips`.
 *
 *   data   [bytes], or a body of remote/sparse.h that stands for them
 *
 * Threads: any. Errors: KUMI_EINVAL, ENUMERIC, ENOMEM.
 */
KU_STATUS ku_remote_check_contents(const struct ku_remote_engine *e, int worker, int64_t step,
                                   size_t offset, const void *data, size_t bytes, bool is_sparse);
/*
 * Before any push: the workers' first steps, where they differ from the version of the options
 * (async, ssp). A worker beyond the bound waits for an update, as if it had waited before.
 */
void ku_remote_begin_at(struct ku_remote_engine *e, const int64_t *step);
/*
 * Forget what was received of a push of a step from `step` on, since its worker sends it anew.
 * Server 0 may forget only what is not complete, the others what server 0 has not completely.
 * Threads: one at a time with the receives of this worker.
 */
void ku_remote_discard(struct ku_remote_engine *e, int worker, int64_t step);
/*
 * Copy bytes of the pull space: of the parameters with which `worker` begins `step`.
 *
 *     sync    after update `step`, which all workers begin with
 *     async   as of the update that applied the worker's last push
 *     ssp     as of the first update after which also the slowest worker in the bound
 *             (ku_remote_exclude) is at `step` - staleness
 *
 * A transport that reads in pieces starts again if *seen differs between them (sync with `backup`).
 *
 *   seen   out: the number of updates in them; -1: they are not there yet, or an update is under
 *          way, which is not waited for; nothing is copied. Ask again when on_version tells of an
 *          update.
 *
 * Threads: any. Errors: KUMI_EINVAL (range); the engine's own error once it has failed.
 */
KU_STATUS ku_remote_read(struct ku_remote_engine *e, int worker, int64_t step, size_t offset,
                         void *data, size_t bytes, int64_t *seen);
/*
 * The same of what has changed after update `since`, as a body of remote/sparse.h: where it has no
 * cells the bytes are those of update `since`, or of any before.
 *
 *   since        the worker has the whole pull space as of that update
 *   body         out: up to KU_SPARSE_MAX_BYTES
 *   body_bytes   out; 0: use ku_remote_read, most have changed or no changes are tracked
 *   extent       out: bytes of the pull space from `offset` on that it stands for
 *
 * Threads, errors: as ku_remote_read.
 */
struct ku_remote_change_read {
    int worker;
    int64_t step, since;
    size_t offset;
};
KU_STATUS ku_remote_read_changes(struct ku_remote_engine *e, const struct ku_remote_change_read *r,
                                 void *body, size_t *body_bytes, size_t *extent, int64_t *seen);
/*
 * Ssp, on server 0: exclude a worker from the staleness bound, so that the others do not wait for
 * it, or include it again, as all are at the start. An excluded worker lags: it is included only
 * when no worker in the bound is more than `staleness` steps ahead of it. Server 0 decides, and all
 * servers change between the same two updates.
 *
 * Threads: any.
 */
void ku_remote_exclude(struct ku_remote_engine *e, int worker, bool is_excluded);
/*
 * Server 0: which workers others wait for: their pushes are not complete, while a push of the same
 * step is (sync), or while a worker may not begin its step because of the bound (ssp). In async
 * none is.
 *
 *   is_awaited   out: [n_workers]
 *
 * Threads: any.
 */
void ku_remote_awaited(struct ku_remote_engine *e, bool *is_awaited);
/*
 * Server 0: ask the other servers how far the pushes of all workers have come: before the next
 * update their event `count` is called, and then `counted` here. Threads: any.
 */
void ku_remote_ask(struct ku_remote_engine *e);
/* Callbacks of the engine, from ku_remote_serve's thread; all may be NULL. */
struct ku_remote_events {
    void *ctx;
    /* Update `version` may be read, or the engine has failed. Pending reads are tried again. */
    void (*on_version)(void *ctx, int64_t version);
    /*
     * Update `version` will apply the pushes of worker[k] for step[k], k < n, in this order: the
     * log from which a run is repeated. On server 0 before any other server knows.
     */
    KU_STATUS(*on_apply)
    (void *ctx, int64_t version, int n, const int32_t *worker, const int64_t *step);
    /*
     * On server 0: the workers whose pushes update `version` applies, from such a log, and their
     * number; 0: as the mode says. NULL: always that. It takes no lock.
     */
    int (*next)(void *ctx, int64_t version, int32_t *worker);
    /* On server 0: whether ku_remote_serve is to return before the next update. Likewise. */
    bool (*pauses)(void *ctx);
    /*
     * Servers other than 0, for ku_remote_ask: per worker a number that grows as bytes of its
     * pushes come; n: [n_workers] zeros. On server 0: the sums of these.
     */
    void (*count)(void *ctx, int64_t *n);
    void (*counted)(void *ctx, const int64_t *n);
};
void ku_remote_engine_watch(struct ku_remote_engine *e, const struct ku_remote_events *events);
/* The report of the last update, and its number. Threads: that of ku_remote_serve. */
const double *ku_remote_report(const struct ku_remote_engine *e, int64_t *version);
/*
 * Run updates until update `n_updates` is done, or the job is stopped, or the engine fails, or
 * the event `pauses` is true.
 * Collective over the servers' job. Errors: those of the job; what ku_remote_stop was given.
 */
KU_STATUS ku_remote_serve(struct ku_remote_engine *e, int64_t n_updates);
/*
 * End ku_remote_serve, and every later receive and read with this status and the error record of
 * the thread, on this server. Threads: any.
 */
void ku_remote_stop(struct ku_remote_engine *e, int status);

#endif
