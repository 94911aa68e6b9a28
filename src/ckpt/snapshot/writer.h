/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CKPT_SNAPSHOT_WRITER_H
#define KU_CKPT_SNAPSHOT_WRITER_H

#include "base/err.h"
#include "base/str.h"
#include "ckpt/snapshot/file_layout.h"
#include "ckpt/snapshot/snapshot.h"
#include "ckpt/snapshot/spread.h"

/* Shared by the phases of writing: write.c plans, begins and commits; write_part.c writes; spread.c
 * divides the writing among hosts. */
struct ku_ckpt_out_file {
    char *path, *sums_path;               /* in the temporary directory */
    struct ku_str head;                   /* safetensors header, or the text of config.json */
    const struct ku_ckpt_tensor **tensor; /* in file order */
    uint64_t *end;                        /* [n_tensors + 1] end of the head, then of each tensor */
    int n_tensors;
    struct ku_piece *piece;
    int64_t n_pieces;
    uint64_t sums_sum; /* checksum of the .xxh3 file; the commit sets it */
};

/* Bytes [at, at + bytes) of a piece that the writer of their chunk gets from another host. */
struct ku_ckpt_run {
    int file, rank, part; /* rank: the owner; part: of struct ku_piece */
    uint32_t bytes;
    uint64_t at;
    unsigned char *data; /* received: in the inbox; NULL: sent */
};
struct ku_ckpt_chunk {
    int file;
    uint64_t at; /* its number in the file */
};
struct ku_ckpt_spread {
    struct ku_ckpt_world world;
    struct ku_ckpt_chunk *chunk; /* [n_chunks] that this rank writes, ascending */
    int64_t n_chunks;
    struct ku_ckpt_message *message; /* [n_messages] of this rank, in the job's order */
    int64_t n_messages;
    struct ku_ckpt_run *run; /* [n_runs] of the messages */
    int64_t n_runs;
    const struct ku_ckpt_run **received; /* [n_received] by (file, at) */
    int64_t n_received;
    unsigned char *inbox; /* [inbox_bytes] */
    size_t inbox_bytes;
};

struct ku_ckpt_writer {
    struct ku_ckpt_desc desc;
    struct ku_ckpt_spread *spread; /* NULL: one host */
    char *temporary, *final;
    struct ku_ckpt_out_file file[KU_CKPT_N_FILES];
};

static inline uint64_t ku_ckpt_out_bytes(const struct ku_ckpt_out_file *f)
{
    return f->end[f->n_tensors];
}

/* Copies a piece of a tensor, from memory and from what other hosts sent. */
KU_STATUS ku_ckpt_spread_fill(const struct ku_ckpt_writer *w, int file, const struct ku_piece *p,
                              unsigned char *out);
void ku_ckpt_spread_destroy(struct ku_ckpt_spread *s);

/* Write checksums of pieces [first, end) to their lines of the .xxh3 file, and sync it. *sum: of
 * these lines; NULL: not wanted. */
KU_STATUS ku_ckpt_write_sums(const struct ku_ckpt_out_file *f, int64_t first, int64_t end,
                             uint64_t *sum);

/* Sets the error for path with errno. Returns KUMI_ESTORAGE. */
KU_STATUS ku_ckpt_storage_error(const char *path);

#endif
