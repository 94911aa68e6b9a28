/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PS_JOURNAL_H
#define KU_PS_JOURNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "ps/ledger.h"

/*
 * The journal of one server: which pushes it accepted, and which of them each update applied. With
 * a checkpoint it gives the state again, bit for bit.
 *
 *     DIR/00000001.journal    | segment | push | push | update | worker | push | ..
 *     DIR/00000002.journal    | segment | ..
 *
 * A record is a head of 64 bytes and a body, padded with zeros to a multiple of 64. All numbers are
 * little endian. Checksums are XXH3-64, mixed with the salt of the segment, so that bytes of
 * another file, or within a push, are never taken for a record.
 *
 *     byte    head
 *        0    u32   magic "KPJ1"
 *        4    u16   kind                             segment      push     update    worker
 *        6    u16   worker                           version 1    worker   0         worker
 *        8    u64   number of the record: the first of the journal has 1, the next one 2, ..
 *       16    u64   salt of the segment
 *       24    u64   a                                server       incarn.  version   incarn.
 *       32    i64   b                                workers      step     pushes    first step
 *       40    u64   c                                updates      offset   0         0
 *       48    u32   bytes of the body
 *       52    u32   records not yet synced, this one included; 0: syncing is left to the system
 *       56    u64   checksum of bytes 0 to 55 and of the body
 *
 *     body of a segment   u64 checksum of the layout, u64 servers, u64 1 in mode sync;
 *                         per worker u64 incarnation, i64 first step not applied
 *     of a push           its bytes
 *     of rows (kind 5)    as a push, but remote/sparse.h says which bytes are not zero
 *     of an update        per push that it applies i64 worker, i64 step
 *     of a worker         none: pushes of this worker from the first step on are discarded if
 *                         incomplete, and in any case if that step is not -1. With an incarnation
 *                         that is known: its push of that step was refused for good
 *
 * The body is written before the head. What a killed process leaves is torn at the end of the last
 * segment alone. A host that loses power may also lose records before others that it keeps, since
 * between two syncs the system writes in any order; none of these was acknowledged. So recovery
 * cuts the last segment at the first record that does not fit, unless a later one states that it
 * was synced:
 *
 *     record      7    8    9   10   11
 *     unsynced    1    2    3    1    2      10 states that records up to 9 were synced
 *
 * Without 10, the journal ends at 9. Without 9, it is damaged: an error with file and offset, as is
 * anything else that does not fit.
 */
enum ku_ps_kind { KU_PS_SEGMENT = 1, KU_PS_PUSH, KU_PS_UPDATE, KU_PS_WORKER, KU_PS_ROWS };
enum {
    KU_PS_HEAD_BYTES = 64,
    KU_PS_MAX_BODY_BYTES = 1 << 20, /* a frame of a push; an update of 1,024 workers takes 16 KiB */
    KU_PS_SEGMENT_BYTES =
        256 << 20 /* the default: a segment that is larger is followed by another */
};

/* When an acknowledged push is on the disk. */
enum ku_ps_sync {
    KU_PS_SYNC_EVERY, /* before the acknowledgement */
    KU_PS_SYNC_GROUP, /* likewise; acknowledgements wait up to group_ms for a common fsync */
    KU_PS_SYNC_NONE   /* when the system writes it: it survives the process, not the host */
};
/* Parses "every", "group:MS" or "none". Errors: KUMI_EINVAL. */
KU_STATUS ku_ps_sync_parse(const char *text, enum ku_ps_sync *sync, int *group_ms);

/* What a journal belongs to. */
struct ku_ps_identity {
    uint64_t layout; /* checksum */
    int server, n_servers, n_workers;
    bool is_sync;
};

/* A record that was read. */
struct ku_ps_record {
    enum ku_ps_kind kind;
    int worker;
    uint64_t number, incarnation;
    int64_t step;    /* of a push; of a worker: first step, -1 */
    int64_t version; /* of an update; of a segment: updates before it */
    size_t offset, bytes;
    size_t extent;                  /* of a push: its bytes; of rows: bytes that they stand for */
    const unsigned char *body;      /* [bytes] borrowed until the callback returns */
    struct ku_ps_identity identity; /* of a segment */
    const char *file;
    uint64_t at; /* offset in the file */
};
int64_t ku_ps_record_word(const struct ku_ps_record *r, size_t i); /* i-th 8 bytes of the body */

/* Where the journal ends. */
struct ku_ps_end {
    uint32_t first, last; /* numbers of the files; 0: there is none */
    uint64_t next_number; /* of the next record */
    uint64_t bytes;       /* of the last file up to its last whole record */
    uint64_t torn_bytes;  /* after that */
};
/*
 * Read all records in order.
 *
 *   visit   a status < 0 ends the reading
 *   end     out; may be NULL
 *
 * Errors: KUMI_EINPUT (damage, a file missing between two others), ESTORAGE (cannot be read),
 * ENOMEM; those of visit. A directory that does not exist has no records.
 */
KU_STATUS ku_ps_journal_read(const char *dir, int (*visit)(void *ctx, const struct ku_ps_record *),
                             void *ctx, struct ku_ps_end *end);

struct ku_ps_journal_opts {
    const char *dir;
    struct ku_ps_identity identity;
    const struct ku_ps_ledger *ledger; /* of the segments' heads; borrowed */
    enum ku_ps_sync sync;
    int group_ms;
    uint64_t segment_bytes; /* 0: the default */
    bool keeps;             /* segments that a checkpoint covers, for a replay from the start */
};
struct ku_ps_journal;
/*
 * Continue a journal that was read up to `end`, with a new segment: what was torn is cut off.
 *
 * Errors: KUMI_ESTORAGE, ENOMEM.
 */
KU_STATUS ku_ps_journal_open(const struct ku_ps_journal_opts *o, const struct ku_ps_end *end,
                             struct ku_ps_journal **j);
void ku_ps_journal_close(struct ku_ps_journal *j); /* NULL is allowed */
/*
 * Append a record. A failure leaves the journal as it was, and the call may be repeated.
 *
 * Threads: one at a time, which is the lock of the ledger. Errors: KUMI_ESTORAGE.
 */
KU_STATUS ku_ps_journal_push(struct ku_ps_journal *j, int worker, uint64_t incarnation,
                             int64_t step, size_t offset, const void *data, size_t bytes,
                             bool is_sparse);
KU_STATUS ku_ps_journal_update(struct ku_ps_journal *j, int64_t version, int n,
                               const int32_t *worker, const int64_t *step);
KU_STATUS ku_ps_journal_worker(struct ku_ps_journal *j, int worker, uint64_t incarnation,
                               int64_t begin);
/* The number of the last record. Threads: as append. */
uint64_t ku_ps_journal_last(const struct ku_ps_journal *j);
/*
 * Block until records up to `number` are on the disk, as the policy says. Threads: any. Errors:
 * KUMI_ESTORAGE; the journal has failed then, and appends nothing more.
 *
 *   is_urgent   do not wait for more records (policy `group`)
 */
KU_STATUS ku_ps_journal_sync(struct ku_ps_journal *j, uint64_t number, bool is_urgent);
/*
 * A checkpoint of update `version` is complete: recoveries do not read the segments any more that
 * it covers. Threads: as append.
 */
void ku_ps_journal_cover(struct ku_ps_journal *j, int64_t version);
/*
 * Remove the files of covered segments, in order. One that cannot be removed stays, with those
 * after it, until the next call. Threads: any.
 */
void ku_ps_journal_remove_covered(struct ku_ps_journal *j);

#endif
