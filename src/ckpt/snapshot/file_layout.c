/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/snapshot/file_layout.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

uint64_t ku_pieces_n_chunks(uint64_t bytes)
{
    return bytes / KU_CHUNK_BYTES + (bytes % KU_CHUNK_BYTES != 0);
}

/* Writes the pieces to `p` unless it is NULL. Returns their number. */
static int64_t cut(const uint64_t *end, int n_parts, struct ku_piece *p)
{
    int64_t n = 0;
    uint64_t at = 0;
    for (int i = 0; i < n_parts; i++)
        while (at < end[i]) {
            uint64_t stop = (at / KU_CHUNK_BYTES + 1) * KU_CHUNK_BYTES;
            if (stop > end[i])
                stop = end[i];
            if (p != NULL)
                p[n] = (struct ku_piece){.at = at, .bytes = (uint32_t)(stop - at), .part = i};
            n++;
            at = stop;
        }
    return n;
}

int ku_pieces_cut(const uint64_t *end, int n_parts, struct ku_piece **pieces, int64_t *n_pieces)
{
    int64_t n = cut(end, n_parts, NULL);
    struct ku_piece *p = ku_calloc((size_t)n + 1, sizeof *p);
    if (p == NULL)
        return KUMI_ENOMEM;
    cut(end, n_parts, p);
    *pieces = p;
    *n_pieces = n;
    return KUMI_OK;
}

int64_t ku_pieces_first(const struct ku_piece *pieces, int64_t n_pieces, uint64_t at)
{
    int64_t low = 0, high = n_pieces;
    while (low < high) {
        int64_t mid = low + (high - low) / 2;
        if (pieces[mid].at < at)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

void ku_pieces_share(uint64_t n_chunks, int rank, int n_ranks, uint64_t *first, uint64_t *end)
{
    uint64_t n = (uint64_t)n_ranks, r = (uint64_t)rank, each = n_chunks / n, more = n_chunks % n;
    *first = r * each + (r < more ? r : more);
    *end = *first + each + (r < more);
}

void ku_pieces_print(const struct ku_piece *p, char line[KU_PIECE_LINE_BYTES])
{
    char text[KU_PIECE_LINE_BYTES + 1];
    snprintf(text, sizeof text, "%016" PRIx64 " %08" PRIx32 " %016" PRIx64 "\n", p->at, p->bytes,
             p->sum);
    memcpy(line, text, KU_PIECE_LINE_BYTES);
}

/* Parses n hex digits, lower case only, so that each number has one spelling. */
static int parse_hex(const char *text, int n, uint64_t *out)
{
    uint64_t v = 0;
    for (int i = 0; i < n; i++) {
        const char *digits = "0123456789abcdef";
        const char *d = text[i] != '\0' ? strchr(digits, text[i]) : NULL;
        if (d == NULL)
            return 0;
        v = v << 4 | (uint64_t)(d - digits);
    }
    *out = v;
    return 1;
}

static int parse_line(const char *line, struct ku_piece *p)
{
    uint64_t bytes;
    if (!parse_hex(line, 16, &p->at) || line[16] != ' ' || !parse_hex(line + 17, 8, &bytes) ||
        line[25] != ' ' || !parse_hex(line + 26, 16, &p->sum) || line[42] != '\n')
        return 0;
    p->bytes = (uint32_t)bytes;
    p->part = -1;
    return 1;
}

int ku_pieces_parse(const char *path, const char *text, size_t bytes, uint64_t file_bytes,
                    struct ku_piece **pieces, int64_t *n_pieces)
{
    if (bytes % KU_PIECE_LINE_BYTES != 0)
        return KU_ERR(KUMI_EINPUT, "checksums: %s: %zu bytes are not a whole number of lines of %d",
                      path, bytes, (int)KU_PIECE_LINE_BYTES);
    size_t n = bytes / KU_PIECE_LINE_BYTES;
    uint64_t at = 0;
    struct ku_piece *p = ku_calloc(n + 1, sizeof *p);
    if (p == NULL)
        return KUMI_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        uint64_t left = KU_CHUNK_BYTES - at % KU_CHUNK_BYTES;
        if (!parse_line(text + i * KU_PIECE_LINE_BYTES, &p[i]) || p[i].at != at ||
            p[i].bytes == 0 || p[i].bytes > left) {
            ku_free(p);
            return KU_ERR(KUMI_EINPUT,
                          "checksums: %s: line %zu is not a piece that begins at byte %llu", path,
                          i + 1, (unsigned long long)at);
        }
        at += p[i].bytes;
    }
    if (at != file_bytes) {
        ku_free(p);
        return KU_ERR(KUMI_EINPUT, "checksums: %s: its pieces cover %llu bytes, the file has %llu",
                      path, (unsigned long long)at, (unsigned long long)file_bytes);
    }
    *pieces = p;
    *n_pieces = (int64_t)n;
    return KUMI_OK;
}
