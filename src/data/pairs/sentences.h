/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_PAIRS_SENTENCES_H
#define KU_DATA_PAIRS_SENTENCES_H

#include "base/err.h"
#include "data/text/source.h"
#include "data/tokenizer/vocab.h"

/*
 * A tokenized file with one sentence per line. Sentence i is tokens [start[i], start[i + 1] - 1) of
 * `source`; an end mark follows each sentence:
 *
 *     source   a b c | d e | f g h i |        start   0 4 7 12
 */
struct ku_sentences {
    struct ku_source source;
    struct ku_vocab *vocab;
    int64_t *start; /* [n + 1] */
    int64_t n;
};

/*
 * Open and tokenize a file. A blank line is a sentence of no tokens. Errors: EINPUT with file:line,
 * ENOMEM.
 */
KU_STATUS ku_sentences_open(const char *path, struct ku_vocab *vocab, const char *cache,
                            const struct ku_progress *progress, struct ku_sentences *out);
void ku_sentences_fini(struct ku_sentences *s);
static inline int64_t ku_sentence_count(const struct ku_sentences *s, int64_t i)
{
    return s->start[i + 1] - s->start[i] - 1;
}
/* Reads the tokens of one sentence. Threads: any number at once. */
KU_STATUS ku_sentence_read(const struct ku_sentences *s, int64_t i, int32_t *out);

#endif
