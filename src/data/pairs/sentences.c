/* SPDX-License-Identifier: Apache-2.0 */
#include "data/pairs/sentences.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/reserve.h"
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

/* Finds the end marks. */
static int index_sentences(struct ku_sentences *s)
{
    uint32_t chunk[KU_SOURCE_CHUNK], mark = (uint32_t)ku_vocab_count(s->vocab);
    size_t cap = 0;
    for (int64_t at = 0; at < s->source.count;) {
        int64_t left = s->source.count - at;
        int n = left < KU_SOURCE_CHUNK ? (int)left : KU_SOURCE_CHUNK;
        KU_TRY(ku_source_read(&s->source, at, n, (int64_t)mark + 1, chunk));
        KU_TRY(KU_RESERVE(&s->start, (size_t)s->n, (size_t)n + 1, &cap));
        s->start[0] = 0;
        for (int i = 0; i < n; i++)
            if (chunk[i] == mark)
                s->start[++s->n] = at + i + 1;
        at += n;
    }
    if (s->start[s->n] != s->source.count)
        return KU_ERR(KUMI_EINPUT, "data: %s: its cached tokens are damaged; remove %s",
                      s->source.name, s->source.file.name ? s->source.file.name : "them");
    return KUMI_OK;
}

int ku_sentences_open(const char *path, struct ku_vocab *vocab, const char *cache,
                      const struct ku_progress *progress, struct ku_sentences *out)
{
    struct ku_line_feed feed = {.path = path, .each = encode_line, .ctx = vocab};
    struct ku_sentences s = {.vocab = vocab};
    char fingerprint[96];
    snprintf(fingerprint, sizeof fingerprint, "sentences 1 %s", ku_vocab_fingerprint(vocab));
    struct ku_encoder encoder = {&feed,        fingerprint,         ku_vocab_count(vocab) + 1,
                                 ku_line_feed, ku_line_feed_finish, ku_line_feed_reset};
    int status = ku_source_encode(path, &encoder, cache, progress, &s.source);
    if (status == KUMI_OK)
        status = index_sentences(&s);
    ku_line_feed_fini(&feed);
    if (status < 0) {
        ku_sentences_fini(&s);
        return status;
    }
    *out = s;
    return KUMI_OK;
}

void ku_sentences_fini(struct ku_sentences *s)
{
    ku_source_fini(&s->source);
    ku_free(s->start);
    *s = (struct ku_sentences){0};
}

int ku_sentence_read(const struct ku_sentences *s, int64_t i, int32_t *out)
{
    uint32_t chunk[KU_SOURCE_CHUNK];
    int64_t at = s->start[i], left = ku_sentence_count(s, i);
    for (int n; left > 0; left -= n, at += n) {
        n = left < KU_SOURCE_CHUNK ? (int)left : KU_SOURCE_CHUNK;
        KU_TRY(ku_source_read(&s->source, at, n, ku_vocab_count(s->vocab), chunk));
        for (int k = 0; k < n; k++)
            *out++ = (int32_t)chunk[k];
    }
    return KUMI_OK;
}
