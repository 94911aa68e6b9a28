/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CKPT_SNAPSHOT_FILE_LAYOUT_H
#define KU_CKPT_SNAPSHOT_FILE_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

/*
 * A file of a snapshot is cut at every MiB (a chunk: what ranks share out and disks like) and where
 * a tensor begins, so that the checksum of a piece names the tensor that was damaged:
 *
 *     chunks   |            0            |            1            |     2   |
 *     pieces   | header | a |     b      |       b       |    c    |    c    |
 *
 * FILE.xxh3 lists them, one line of 43 bytes each, so that every rank writes its own lines in
 * place:
 *
 *     <offset: 16 hex digits> <bytes: 8> <XXH3-64 of the bytes: 16>\n
 */
enum { KU_CHUNK_BYTES = 1 << 20, KU_PIECE_LINE_BYTES = 16 + 1 + 8 + 1 + 16 + 1 };

struct ku_piece {
    uint64_t at, sum;
    uint32_t bytes;
    int32_t part; /* which of the parts that were cut; -1 when parsed */
};

/*
 * Cut a file that consists of parts.
 *
 *   end      [n_parts] where each part ends, ascending; empty parts get no piece
 *   pieces   receives ku_malloc memory
 */
int ku_pieces_cut(const uint64_t *end, int n_parts, struct ku_piece **pieces, int64_t *n_pieces);
/* The first piece that begins at or behind byte `at`; n_pieces: none. */
int64_t ku_pieces_first(const struct ku_piece *pieces, int64_t n_pieces, uint64_t at);
/* The chunks [*first, *end) of 0 … n_chunks-1 that are a rank's part. */
void ku_pieces_share(uint64_t n_chunks, int rank, int n_ranks, uint64_t *first, uint64_t *end);
uint64_t ku_pieces_n_chunks(uint64_t bytes);

void ku_pieces_print(const struct ku_piece *p, char line[KU_PIECE_LINE_BYTES]);
/* Lines back to pieces that cover exactly file_bytes. KUMI_EINPUT ("<path>: line 7: …"). */
int ku_pieces_parse(const char *path, const char *text, size_t bytes, uint64_t file_bytes,
                    struct ku_piece **pieces, int64_t *n_pieces);

#endif
