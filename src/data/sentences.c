/* SPDX-License-Identifier: Apache-2.0 */
#include "data/sentences.h"

#include "base/err.h"
#include "base/mem.h"
#include "data/bpe.h"
#include "data/lines.h"

#include <stdio.h>
#include <string.h>

/*
 * Sentences become tokens a line at a time, each followed by a mark: the token behind the
 * vocabulary's last, which no text can mean.
 */
struct splitter {
    const char *path;
    struct ku_vocab *vocab;
    struct ku_str rest; /* of a line whose end has not come */
    int64_t line;
};

static int encode_line(struct splitter *p, const char *text, size_t bytes, struct ku_tokens *out)
{
    p->line++;
    if (bytes > KU_LINE_BYTES_MAX)
        return KU_ERR(KUMI_EINPUT, "data: %s:%lld: a line of more than %d bytes; break it", p->path,
                      (long long)p->line, KU_LINE_BYTES_MAX);
    KU_TRY(ku_line_check(p->path, p->line, text, bytes));
    while (bytes > 0 &&
           (text[bytes - 1] == ' ' || (text[bytes - 1] >= '\t' && text[bytes - 1] <= '\r')))
        bytes--;
    if (bytes > 0)
        KU_TRY(ku_vocab_encode(p->vocab, text, bytes, out));
    KU_TRY(ku_tokens_reserve(out, 1));
    out->id[out->count++] = (uint32_t)ku_vocab_count(p->vocab);
    return KUMI_OK;
}

static int feed(void *ctx, const void *text, size_t bytes, struct ku_tokens *out)
{
    struct splitter *p = ctx;
    for (const char *at = text, *end = at + bytes, *stop; at < end; at = stop + 1) {
        stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop || p->rest.bytes > 0)
            ku_str_append(&p->rest, at, (size_t)((stop ? stop : end) - at));
        if (p->rest.failed)
            return KUMI_ENOMEM;
        if (!stop)
            return p->rest.bytes <= KU_LINE_BYTES_MAX
                       ? KUMI_OK
                       : encode_line(p, p->rest.text, p->rest.bytes, out);
        if (p->rest.bytes > 0)
            KU_TRY(encode_line(p, p->rest.text, p->rest.bytes, out));
        else
            KU_TRY(encode_line(p, at, (size_t)(stop - at), out));
        p->rest.bytes = 0;
    }
    return KUMI_OK;
}

static int finish(void *ctx, struct ku_tokens *out)
{
    struct splitter *p = ctx;
    if (p->rest.bytes > 0)
        KU_TRY(encode_line(p, p->rest.text, p->rest.bytes, out));
    p->rest.bytes = 0;
    return KUMI_OK;
}

static void reset(void *ctx)
{
    struct splitter *p = ctx;
    p->rest.bytes = 0;
    p->line = 0;
}

/* Finds the marks. */
static int index_sentences(struct ku_sentences *s)
{
    uint32_t chunk[KU_SOURCE_CHUNK], mark = (uint32_t)ku_vocab_count(s->vocab);
    int64_t cap = 0;
    for (int64_t at = 0; at < s->source.count;) {
        int64_t left = s->source.count - at;
        int n = left < KU_SOURCE_CHUNK ? (int)left : KU_SOURCE_CHUNK;
        KU_TRY(ku_source_read(&s->source, at, n, (int64_t)mark + 1, chunk));
        if (s->n + n + 1 > cap) {
            cap = s->n + s->n / 2 + n + 1;
            int64_t *start = ku_realloc(s->start, (size_t)cap, sizeof *start);
            if (!start)
                return KUMI_ENOMEM;
            s->start = start;
            s->start[0] = 0;
        }
        for (int i = 0; i < n; i++)
            if (chunk[i] == mark)
                s->start[++s->n] = at + i + 1;
        at += n;
    }
    if (s->start[s->n] != s->source.count)
        return KU_ERR(KUMI_EINPUT, "data: %s: its cached tokens are damaged; remove %s",
                      s->source.name, s->source.path ? s->source.path : "them");
    return KUMI_OK;
}

int ku_sentences_open(const char *path, struct ku_vocab *vocab, const char *cache,
                      const struct ku_progress *progress, struct ku_sentences *out)
{
    struct splitter p = {.path = path, .vocab = vocab};
    struct ku_sentences s = {.source = {.fd = -1}, .vocab = vocab};
    char fingerprint[96];
    snprintf(fingerprint, sizeof fingerprint, "sentences 1 %s", ku_vocab_fingerprint(vocab));
    struct ku_encoder encoder = {&p, fingerprint, ku_vocab_count(vocab) + 1, feed, finish, reset};
    int status = ku_source_encode(path, &encoder, cache, progress, &s.source);
    if (status == KUMI_OK)
        status = index_sentences(&s);
    ku_str_fini(&p.rest);
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
    *s = (struct ku_sentences){.source = {.fd = -1}};
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
