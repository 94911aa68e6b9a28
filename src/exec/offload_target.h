/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_EXEC_OFFLOAD_TARGET_H
#define KU_EXEC_OFFLOAD_TARGET_H

#include "base/err.h"
#include "base/os/aio.h"
#include "job/job.h"

/*
 * Offload target on disk: one anonymous file per host with one part per rank (memory.offload).
 *
 * The file never has a name. It vanishes when the run ends for any reason, and no other process can
 * remove it. Its space is reserved at creation. Staging buffers bypass the page cache if the file
 * system supports that.
 *
 *     file  | part of rank 0 | part of rank 1 | ..       part_bytes each
 *     rank 1's tensor:  part + at  <- ku_transfer ->  staging buffer in memory
 */
struct ku_offload_file_opts {
    const char *path; /* the folder */
    enum ku_aio_kind io;
};
struct ku_offload_file;
/*
 * Opens the file. Creates the folder if it is missing in an existing one.
 *
 *   part_bytes   bytes per rank, equal on all ranks, a multiple of KU_OFFLOAD_ALIGN_BYTES
 *
 * Collective: over the job.
 * Errors: KUMI_ESTORAGE (no folder to create it in, not writable, too little space), KUMI_EINVAL as
 * ku_aio_create; the job's root cause on all ranks.
 */
KU_STATUS ku_offload_file_open(struct ku_job *job, const struct ku_offload_file_opts *o,
                               size_t part_bytes, struct ku_offload_file **file);
void ku_offload_file_close(struct ku_offload_file *file); /* NULL is allowed */
/*
 * Reads or writes bytes of any rank's part through the page cache, for checkpoints. KUMI_ESTORAGE.
 * Threads: any.
 */
KU_STATUS ku_offload_file_move(const struct ku_offload_file *file, int local_rank, int is_write,
                               uint64_t at, void *data, size_t bytes);

/*
 * A range of this rank's part and its staging buffer. All addresses and sizes are aligned.
 */
struct ku_offload_part {
    unsigned char *host; /* address in host memory; NULL: in the file, at `at` */
    uint64_t at;
    unsigned char *staging;
    size_t bytes;
    struct ku_aio_op op;
};
struct ku_transfer {
    struct ku_job *job;
    struct ku_offload_file *file;
    struct ku_offload_part *part; /* [n] */
    int n, is_write, is_started;
};
/*
 * Starts a transfer. The staging buffers belong to it until the wait returns. Data in host memory
 * is copied synchronously by the calling CPU thread.
 */
void ku_transfer_start(struct ku_transfer *t);
/*
 * Waits for a transfer. The rank's collectives progress meanwhile. Bytes that move are the rank's
 * progress; a file that hangs has no deadline of its own. KUMI_ESTORAGE, and the job's root cause.
 */
KU_STATUS ku_transfer_wait(struct ku_transfer *t);

/* Waits and ignores the result. */
void ku_transfer_end(struct ku_transfer *t);

#endif
