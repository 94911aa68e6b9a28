/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_JOB_LAUNCH_WIRE_H
#define KU_JOB_LAUNCH_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"
#include "job/control.h"

/*
 * What a launcher and the agent of a host say to each other, over the agent's standard input and
 * output:
 *
 *     launcher                              agent
 *                        <── sync, HELLO    a shell's greeting before it is skipped
 *     JOB                ──>                once every agent has said hello
 *                        <── STARTED        or REFUSED
 *                        <── LINES, FAILED, STOPPED, ASKED in any number
 *     SIGNAL, END, KILL  ──>
 *                        <── DONE           the last rank has ended; then both close
 *
 * A frame is a head and a payload. The connection is as private as the remote shell's.
 */
#define KU_WIRE_SYNC "\1kumi agent\n"
enum {
    KU_WIRE_ABI = 3,
    KU_WIRE_PAYLOAD_MAX = 4 << 20, /* Linux takes 2 MiB of arguments and environment */
    KU_WIRE_LINE_MAX = 65536,      /* a longer line of output is cut in several */
};
enum ku_frame_kind {
    KU_FRAME_JOB = 1, /* payload: struct ku_host_job */
    KU_FRAME_SIGNAL,  /* value: a stop signal that asks the job to stop */
    KU_FRAME_END,     /* rank: that failed, or -1; payload: the root cause, a struct kumi_error */
    KU_FRAME_KILL,    /* value: the second stop signal */
    KU_FRAME_HELLO,   /* value: KU_WIRE_ABI; payload: the version of kumi */
    KU_FRAME_STARTED,
    KU_FRAME_REFUSED, /* payload: struct kumi_error; no rank runs */
    KU_FRAME_LINES,   /* rank; value: 1 or 2, of its stdout or stderr; payload: whole lines */
    KU_FRAME_FAILED,  /* rank: that failed, or -1; value: 1: to be printed; payload: root cause */
    KU_FRAME_STOPPED, /* payload: as FAILED; a rank ended by a stop signal */
    KU_FRAME_ASKED,   /* value: a stop signal that the agent got */
    KU_FRAME_DONE,    /* rank: number of ranks that failed; value: exit code */
};
struct ku_frame {
    uint32_t kind; /* enum ku_frame_kind */
    int32_t rank, value;
    uint32_t bytes; /* of the payload */
};
_Static_assert(sizeof(struct ku_frame) == 16, "sent as it is");

/* Bytes that came, or that wait to be sent: [at, buf.bytes) of buf. Descriptors do not block. */
struct ku_wire {
    struct ku_str buf;
    size_t at;
    bool is_synced; /* of what comes: the sync has been read */
};
/* Read what is there. > 0: bytes; 0: end of file; -1: nothing yet. Errors: KUMI_ENOMEM. */
int ku_wire_read(struct ku_wire *in, int fd);
/*
 * Take the next frame: 1: *head and *payload are set, until the next call; 0: none yet. Errors:
 * KUMI_EINVAL (no frame; more than 64 KiB before the sync).
 */
KU_STATUS ku_wire_take(struct ku_wire *in, struct ku_frame *head, const char **payload);
/* Queue a frame. Memory that is short shows in out->buf.failed. */
void ku_wire_put(struct ku_wire *out, enum ku_frame_kind kind, int rank, int value,
                 const void *payload, size_t bytes);
static inline size_t ku_wire_pending(const struct ku_wire *w)
{
    return w->buf.bytes - w->at;
}
/* Drop what has been taken or sent, if it is the larger part. */
void ku_wire_compact(struct ku_wire *w);
/* Send what the descriptor takes, at most max_bytes. 0; -1: the other end is closed. */
int ku_wire_flush(struct ku_wire *out, int fd, size_t max_bytes);
void ku_wire_fini(struct ku_wire *w);

/* A host's part of a job. Pointers of a decoded one point into the payload, but argv and env. */
struct ku_host_job {
    int32_t first_rank, n_local, n; /* ranks from first_rank, n_local of n */
    int32_t host_index, n_hosts;
    int32_t threads; /* of a rank; 0: its share of the cores */
    int32_t port;    /* MASTER_PORT */
    uint32_t flags;  /* KU_HOST_* */
    uint64_t world_id;
    uint8_t secret[KU_SECRET_BYTES];
    const char *host, *master, *root, *folder; /* KUMI_HOST, MASTER_ADDR, KUMI_RENDEZVOUS, cwd */
    char **argv, **env;                        /* NULL-terminated; env: "NAME=value" */
};
enum {
    KU_HOST_NO_PIN = 1,   /* KU_PIN_NEVER */
    KU_HOST_INHERITS = 2, /* ranks write to the agent's descriptors 3 and 2, not through frames */
    KU_HOST_BLOCKS = 4,   /* ranks start with stop signals blocked, as `kumi train` wants them */
    KU_HOST_PRETENDS = 8, /* ranks get KUMI_HOST */
    KU_HOST_IS_KUMI = 16, /* argv is kumi itself */
    KU_HOST_PIN = 32,     /* KU_PIN_ALWAYS */
    KU_HOST_FLAGS = 63
};
void ku_host_job_encode(const struct ku_host_job *job, struct ku_str *payload);
/* Errors: KUMI_EINVAL (the payload is damaged), ENOMEM. */
KU_STATUS ku_host_job_decode(const char *payload, size_t bytes, struct ku_host_job *job);
void ku_host_job_fini(struct ku_host_job *job); /* of a decoded one */

#endif
