/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CKPT_SNAPSHOT_REGION_READER_H
#define KU_CKPT_SNAPSHOT_REGION_READER_H

#include "base/err.h"
#include "ckpt/snapshot/file_layout.h"
#include "ckpt/safetensors.h"
#include "ckpt/snapshot/snapshot.h"

/* A file of a snapshot, open for reading, with the expected checksums of its pieces. */
struct ku_scan {
    const char *name; /* "model/model.safetensors" */
    char *path;
    int fd, direct_fd; /* direct_fd: opened with O_DIRECT, or -1 */
    uint64_t bytes;
    struct ku_piece *piece;
    int64_t n_pieces;
    int is_st;  /* safetensors, else text */
    int has_st; /* st is valid: the header is verified and parsed */
    struct ku_st st;
};

/* Open a file: verify its .xxh3 against the manifest, then its header against the .xxh3. file: enum
 * ku_ckpt_file_id. Errors: ENOCKPT. */
KU_STATUS ku_scan_open(const struct ku_ckpt *c, int file, struct ku_scan *s);
void ku_scan_close(struct ku_scan *s);
/*
 * Read chunks [first, end) in order, ahead of the callback (ckpt/read_ahead.h).
 *
 *   visit   called for each piece; is_good: its checksum matches; < 0 ends the scan with this
 *           status
 *
 * Errors: ENOCKPT, unreadable; ENOMEM; those of visit.
 */
KU_STATUS ku_scan_run(struct ku_scan *s, uint64_t first, uint64_t end,
                      int (*visit)(void *ctx, const struct ku_piece *p, const unsigned char *data,
                                   int is_good),
                      void *ctx);
/* The piece that begins at this byte; -1: none. */
int64_t ku_scan_piece_at(const struct ku_scan *s, uint64_t at);
/* The name of the tensor at a byte, for messages; else "the header", or "its text". */
const char *ku_scan_what(const struct ku_scan *s, uint64_t at);
/* Sets the error "checkpoint: damaged: PATH: TENSOR: bytes …". Returns KUMI_ENOCKPT. */
KU_STATUS ku_scan_damaged(const struct ku_scan *s, const struct ku_piece *p);

/* Read a small text file (the manifest) and verify it against PATH.xxh3. The caller frees *text.
 * Errors: ENOCKPT. */
KU_STATUS ku_scan_small(const char *path, size_t max_bytes, char **text, size_t *bytes);

#endif
