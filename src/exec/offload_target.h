/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_EXEC_OFFLOAD_TARGET_H
#define KU_EXEC_OFFLOAD_TARGET_H

#include "base/os/aio.h"
#include "job/job.h"

/*
 * A file in which the ranks of a host keep what does not lie in memory (memory.offload), a part
 * each. It never has a name, so nothing is left of it however a run ends, and nobody can take it
 * away; its space is reserved when it is made. Windows go past the page cache where the file system
 * lets them.
 */
struct ku_tier_opts {
    const char *path; /* the folder */
    enum ku_aio_kind io;
};
struct ku_tier_file;
/*
 * Collective. part_bytes: of a rank, equal on all, a multiple of KU_TIER_ALIGN_BYTES.
 * Errors: KUMI_ESTORAGE: no such folder, not writable, not enough space (how much there is), and
 * KUMI_EINVAL as ku_aio_create; the job's root cause on all ranks.
 */
int ku_tier_file_open(struct ku_job *job, const struct ku_tier_opts *o, size_t part_bytes,
                      struct ku_tier_file **file);
void ku_tier_file_close(struct ku_tier_file *file); /* NULL is fine */
/* Bytes of any rank's part, through the page cache: for checkpoints. KUMI_ESTORAGE. Threads: any.
 */
int ku_tier_file_move(const struct ku_tier_file *file, int local_rank, int is_write, uint64_t at,
                      void *data, size_t bytes);

/* A piece of this rank's part and its window in memory; both and bytes aligned. */
struct ku_tier_part {
    unsigned char *host; /* where it lies in host memory; NULL: in the file, at `at` */
    uint64_t at;
    unsigned char *window;
    size_t bytes;
    struct ku_aio_op op;
};
struct ku_transfer {
    struct ku_job *job;
    struct ku_tier_file *file;
    struct ku_tier_part *part; /* [n] */
    int n, is_write, is_started;
};
/* Begins. Until wait returns the windows are the transfer's. What lies in host memory is copied
 * here and now: a CPU has nobody else to do it. */
void ku_transfer_start(struct ku_transfer *t);
/* Meanwhile the rank's collectives get on. KUMI_ESTORAGE, and the job's root cause. */
int ku_transfer_wait(struct ku_transfer *t);

/* The same where nobody wants to know any more. */
void ku_transfer_end(struct ku_transfer *t);

/* Bytes read and written so far, and the time in which this rank waited for them. */
struct ku_tier_stats {
    uint64_t read_bytes, written_bytes;
    int64_t wait_ns;
};
struct ku_tier_stats ku_tier_file_stats(const struct ku_tier_file *file);

#endif
