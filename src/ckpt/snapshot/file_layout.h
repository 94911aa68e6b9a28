/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CKPT_SNAPSHOT_FILE_LAYOUT_H
#define KU_CKPT_SNAPSHOT_FILE_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/*
 * A file of a snapshot is divided into chunks of 1 MiB, the unit of distribution over ranks, and
 * into pieces, which end at chunk and tensor boundaries, so that a wrong checksum identifies the
 * damaged tensor:
 *
 *     chunks   |            0            |            1            |     2   |
 *     pieces   | header | a |     b      |       b       |    c    |    c    |
 *
 * FILE.xxh3 has one line of 43 bytes per piece, so that every rank can write its lines in place:
 *
 *     <offset: 16 hex digits> <bytes: 8> <XXH3-64 of the bytes: 16>\n
 */
enum { KU_CHUNK_BYTES = 1 << 20, KU_PIECE_LINE_BYTES = 16 + 1 + 8 + 1 + 16 + 1 };

struct ku_piece {
    uint64_t at, sum;
    uint32_t bytes;
    int32_t part; /* index of the part (ku_pieces_cut); -1 when parsed */
};

/*
 * Divide a file into pieces.
 *
 *   end      [n_parts] end of each part (header, tensors), ascending; empty parts get no piece
 *   pieces   result [*n_pieces]; the caller frees it
 *
 * Errors: ENOMEM.
 */
KU_STATUS ku_pieces_cut(const uint64_t *end, int n_parts, struct ku_piece **pieces,
                        int64_t *n_pieces);
/* The first piece that begins at byte `at` or later; n_pieces: none. */
int64_t ku_pieces_first(const struct ku_piece *pieces, int64_t n_pieces, uint64_t at);
/* The chunks [*first, *end) of 0 … n_chunks-1 that a rank reads or writes. */
void ku_pieces_share(uint64_t n_chunks, int rank, int n_ranks, uint64_t *first, uint64_t *end);
uint64_t ku_pieces_n_chunks(uint64_t bytes);

void ku_pieces_print(const struct ku_piece *p, char line[KU_PIECE_LINE_BYTES]);
/* Parse the lines of a .xxh3 file. The pieces must cover file_bytes exactly. The caller frees
 * *pieces. Errors: EINPUT, with path and line. */
KU_STATUS ku_pieces_parse(const char *path, const char *text, size_t bytes, uint64_t file_bytes,
                          struct ku_piece **pieces, int64_t *n_pieces);

#endif
