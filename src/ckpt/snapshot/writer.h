/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CKPT_SNAPSHOT_WRITER_H
#define KU_CKPT_SNAPSHOT_WRITER_H

#include "base/err.h"
#include "base/str.h"
#include "ckpt/snapshot/file_layout.h"
#include "ckpt/snapshot/snapshot.h"

/* Shared by the phases of writing: write.c plans, begins and commits; write_part.c writes. */
struct ku_ckpt_out_file {
    char *path, *sums_path;               /* in the temporary directory */
    struct ku_str head;                   /* safetensors header, or the text of config.json */
    const struct ku_ckpt_tensor **tensor; /* in file order */
    uint64_t *end;                        /* [n_tensors + 1] end of the head, then of each tensor */
    int n_tensors;
    struct ku_piece *piece;
    int64_t n_pieces;
};

struct ku_ckpt_writer {
    struct ku_ckpt_desc desc;
    char *temporary, *final;
    struct ku_ckpt_out_file file[KU_CKPT_N_FILES];
};

static inline uint64_t ku_ckpt_out_bytes(const struct ku_ckpt_out_file *f)
{
    return f->end[f->n_tensors];
}

/* Sets the error for path with errno. Returns KUMI_ESTORAGE. */
KU_STATUS ku_ckpt_storage_error(const char *path);

#endif
