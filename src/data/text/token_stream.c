/* SPDX-License-Identifier: Apache-2.0 */
#include "data/text/token_stream.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/math/search.h"
#include "data/input_file.h"

enum { FILES_MAX = 1 << 20, VERIFY_STEP_BYTES = 1 << 20 };

int ku_stream_add(struct ku_stream *s, const char *name, ku_stream_open_fn *opener, void *ctx,
                  uint32_t *n_open)
{
    if (s->n == FILES_MAX)
        return KU_ERR(KUMI_EINPUT, "data: %s: more than %d files; merge some", name, FILES_MAX);
    KU_TRY(KU_GROW(&s->source, s->n, &s->cap));
    KU_TRY(ku_grow((void **)&s->start, sizeof *s->start, s->n, 2, &s->cap_start));
    struct ku_source *source = &s->source[s->n];
    KU_TRY(opener(ctx, name, source));
    if (++*n_open > KU_OPEN_FILES_MAX)
        ku_file_park(&source->file);
    s->start[s->n + 1] = s->start[s->n] + source->count;
    s->n++;
    return KUMI_OK;
}

struct adding {
    struct ku_stream *stream;
    ku_stream_open_fn *opener;
    void *ctx;
    uint32_t *n_open;
};

static int add_match(void *ctx, const char *name)
{
    const struct adding *a = ctx;
    return ku_stream_add(a->stream, name, a->opener, a->ctx, a->n_open);
}

int ku_stream_add_globs(struct ku_stream *s, const char *const *pattern, int n,
                        ku_stream_open_fn *opener, void *ctx, uint32_t *n_open)
{
    struct adding a = {s, opener, ctx, n_open};
    for (int i = 0; i < n; i++)
        KU_TRY(ku_input_glob(pattern[i], add_match, &a));
    return KUMI_OK;
}

void ku_stream_fini(struct ku_stream *s)
{
    for (uint32_t i = 0; i < s->n; i++)
        ku_source_fini(&s->source[i]);
    ku_free(s->source);
    ku_free(s->start);
    *s = (struct ku_stream){0};
}

int ku_stream_read(const struct ku_stream *s, int64_t first, int n, int64_t vocab_count,
                   uint32_t *out)
{
    size_t low = ku_search(s->start, sizeof *s->start, s->n, first);
    for (; n > 0; low++) {
        int64_t in_file = first - s->start[low], left = s->source[low].count - in_file;
        int part = left < n ? (int)left : n;
        KU_TRY(ku_source_read(&s->source[low], in_file, part, vocab_count, out));
        out += part;
        first += part;
        n -= part;
    }
    return KUMI_OK;
}

static int source_verify(const struct ku_source *s, int64_t vocab_count,
                         const struct ku_progress *progress)
{
    uint32_t chunk[KU_SOURCE_CHUNK];
    uint64_t total = (uint64_t)s->count * (uint64_t)s->token_bytes, told = 0;
    KU_TRY(ku_source_check_cache(s, progress));
    for (int64_t at = 0; at < s->count;) {
        int n = s->count - at < KU_SOURCE_CHUNK ? (int)(s->count - at) : KU_SOURCE_CHUNK;
        KU_TRY(ku_source_read(s, at, n, vocab_count, chunk));
        at += n;
        uint64_t done = (uint64_t)at * (uint64_t)s->token_bytes;
        if (done - told >= VERIFY_STEP_BYTES || done == total) {
            KU_TRY(ku_progress_call(progress, s->name, done, total));
            told = done;
        }
    }
    return KUMI_OK;
}

int ku_stream_verify(const struct ku_stream *s, int64_t vocab_count,
                     const struct ku_progress *progress)
{
    for (uint32_t i = 0; i < s->n; i++)
        KU_TRY(source_verify(&s->source[i], vocab_count, progress));
    return KUMI_OK;
}

void ku_stream_identify(const struct ku_stream *s, struct ku_sha256 *h)
{
    ku_sha256_u64(h, s->n);
    for (uint32_t i = 0; i < s->n; i++)
        ku_sha256_update(h, s->source[i].id, 32);
}
