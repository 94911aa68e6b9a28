/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CKPT_SNAPSHOT_REGION_READER_H
#define KU_CKPT_SNAPSHOT_REGION_READER_H

#include "ckpt/snapshot/file_layout.h"
#include "ckpt/safetensors.h"
#include "ckpt/snapshot/snapshot.h"

/* A file of a snapshot, open for reading, with the checksums it must have. */
struct ku_scan {
    const char *name; /* "model/model.safetensors" */
    char *path;
    int fd, direct_fd; /* the second with O_DIRECT, or -1 */
    uint64_t bytes;
    struct ku_piece *piece;
    int64_t n_pieces;
    int is_st;  /* safetensors; else text */
    int has_st; /* its header was checked and parsed */
    struct ku_st st;
};

/* Open a file, believe its checksums after they agree with the manifest, and its header after that.
 * KUMI_ENOCKPT. */
int ku_scan_open(const struct ku_ckpt *c, int file, struct ku_scan *s);
void ku_scan_close(struct ku_scan *s);
/*
 * Read chunks [first, end), ahead of `visit` in 8 MiB of memory.
 *
 *   visit   called for each piece in order; `is_good`: its bytes have their checksum. < 0 ends the
 * scan
 */
int ku_scan_run(struct ku_scan *s, uint64_t first, uint64_t end,
                int (*visit)(void *ctx, const struct ku_piece *p, const unsigned char *data,
                             int is_good),
                void *ctx);
/* The piece that begins at this byte; -1: none. */
int64_t ku_scan_piece_at(const struct ku_scan *s, uint64_t at);
/* The tensor at a byte; else "the header", or "its text". */
const char *ku_scan_what(const struct ku_scan *s, uint64_t at);
/* KUMI_ENOCKPT: "checkpoint: PATH: damaged in TENSOR: bytes …". */
int ku_scan_damaged(const struct ku_scan *s, const struct ku_piece *p);

/* Reads TEXT and TEXT.xxh3 (for the manifest and for config.json) and holds one against the other.
 * KUMI_ENOCKPT. */
int ku_scan_small(const char *path, size_t max_bytes, char **text, size_t *bytes);

#endif
