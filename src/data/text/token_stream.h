/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_TEXT_TOKEN_STREAM_H
#define KU_DATA_TEXT_TOKEN_STREAM_H

#include "base/err.h"
#include "base/hash.h"
#include "data/text/source.h"

/* Token sources, one per file, as one sequence; zero-initialize it. */
struct ku_stream {
    struct ku_source *source;
    int64_t *start; /* source[i] holds tokens [start[i], start[i + 1]) */
    uint32_t n, cap, cap_start;
};
typedef int ku_stream_open_fn(void *ctx, const char *name, struct ku_source *out);
/*
 * Adds a file, opened by `opener`. n_open counts the files of a data set. Errors: EINPUT (more than
 * 2^20 files), ENOMEM, any status of opener.
 */
KU_STATUS ku_stream_add(struct ku_stream *s, const char *name, ku_stream_open_fn *opener, void *ctx,
                        uint32_t *n_open);
/* Adds the files of n patterns, as ku_input_glob. */
KU_STATUS ku_stream_add_globs(struct ku_stream *s, const char *const *pattern, int n,
                              ku_stream_open_fn *opener, void *ctx, uint32_t *n_open);
void ku_stream_fini(struct ku_stream *s);
static inline int64_t ku_stream_count(const struct ku_stream *s)
{
    return s->n ? s->start[s->n] : 0;
}
/* " and others" if there are several files, for messages that name the first. */
static inline const char *ku_stream_others(const struct ku_stream *s)
{
    return s->n > 1 ? " and others" : "";
}

/* ku_source_read across files. */
KU_STATUS ku_stream_read(const struct ku_stream *s, int64_t first, int n, int64_t vocab_count,
                         uint32_t *out);
/* Reads everything once; checks tokens and, of cached files, the checksums. */
KU_STATUS ku_stream_verify(const struct ku_stream *s, int64_t vocab_count,
                           const struct ku_progress *progress);
/* Hashes the number of files and their ids. */
void ku_stream_identify(const struct ku_stream *s, struct ku_sha256 *h);

#endif
