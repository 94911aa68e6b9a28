/* SPDX-License-Identifier: Apache-2.0 */
#include "data/pairs/sentences.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/reserve.h"
#include "base/math/search.h"
#include "data/tokenizer/bpe.h"
#include "data/text/line_feed.h"
#include "data/lines.h"

#include <stdio.h>
#include <string.h>

/*
 * Each line is tokenized and followed by an end mark: the id after the last of the vocabulary,
 * which no text produces.
 */
static int encode_line(void *ctx, const char *text, size_t bytes, struct ku_tokens *out)
{
    struct ku_vocab *vocab = ctx;
    if (bytes > 0)
        KU_TRY(ku_vocab_encode(vocab, text, bytes, out));
    KU_TRY(ku_tokens_reserve(out, 1));
    out->id[out->count++] = (uint32_t)ku_vocab_count(vocab);
    return KUMI_OK;
}

/* Finds the end marks of the last file, which begins at token `at`. */
static int index_sentences(struct ku_sentences *s, int64_t at)
{
    uint32_t chunk[KU_SOURCE_CHUNK], mark = (uint32_t)ku_vocab_count(s->vocab);
    const struct ku_source *last = &s->tokens.source[s->tokens.n - 1];
    const int64_t end = ku_stream_count(&s->tokens);
    while (at < end) {
        int n = end - at < KU_SOURCE_CHUNK ? (int)(end - at) : KU_SOURCE_CHUNK;
        KU_TRY(ku_stream_read(&s->tokens, at, n, (int64_t)mark + 1, chunk));
        KU_TRY(KU_RESERVE(&s->start, (size_t)s->n, (size_t)n + 1, &s->cap));
        s->start[0] = 0;
        for (int i = 0; i < n; i++)
            if (chunk[i] == mark)
                s->start[++s->n] = at + i + 1;
        at += n;
    }
    if (s->start[s->n] != end)
        return KU_ERR(KUMI_EINPUT, "data: %s: its cached tokens are damaged; remove %s", last->name,
                      last->file.name ? last->file.name : "them");
    return KUMI_OK;
}

struct opening {
    struct ku_vocab *vocab;
    struct ku_cache *cache;
    const struct ku_progress *progress;
};

static int open_source(void *ctx, const char *path, struct ku_source *out)
{
    const struct opening *o = ctx;
    struct ku_line_feed feed = {.path = path, .each = encode_line, .ctx = o->vocab};
    char fingerprint[96];
    snprintf(fingerprint, sizeof fingerprint, "sentences 1 %s", ku_vocab_fingerprint(o->vocab));
    struct ku_encoder encoder = {&feed,        fingerprint,         ku_vocab_count(o->vocab) + 1,
                                 ku_line_feed, ku_line_feed_finish, ku_line_feed_reset};
    int status = ku_source_encode(path, &encoder, o->cache, o->progress, out);
    ku_line_feed_fini(&feed);
    return status;
}

int ku_sentences_add(struct ku_sentences *s, const char *path, struct ku_cache *cache,
                     const struct ku_progress *progress, uint32_t *n_open)
{
    struct opening o = {s->vocab, cache, progress};
    int64_t first = ku_stream_count(&s->tokens);
    KU_TRY(ku_stream_add(&s->tokens, path, open_source, &o, n_open));
    return index_sentences(s, first);
}

void ku_sentences_fini(struct ku_sentences *s)
{
    ku_stream_fini(&s->tokens);
    ku_free(s->start);
    *s = (struct ku_sentences){0};
}

int ku_sentence_read(const struct ku_sentences *s, int64_t i, int32_t *out)
{
    uint32_t chunk[KU_SOURCE_CHUNK];
    int64_t at = s->start[i], left = ku_sentence_count(s, i);
    for (int n; left > 0; left -= n, at += n) {
        n = left < KU_SOURCE_CHUNK ? (int)left : KU_SOURCE_CHUNK;
        KU_TRY(ku_stream_read(&s->tokens, at, n, ku_vocab_count(s->vocab), chunk));
        for (int k = 0; k < n; k++)
            *out++ = (int32_t)chunk[k];
    }
    return KUMI_OK;
}

const char *ku_sentence_file(const struct ku_sentences *s, int64_t i, int64_t *line)
{
    const struct ku_stream *t = &s->tokens;
    size_t file = ku_search(t->start, sizeof *t->start, t->n, s->start[i]);
    size_t first = ku_search(s->start, sizeof *s->start, (size_t)s->n, t->start[file]);
    *line = i - (int64_t)first + 1;
    return t->source[file].name;
}
