/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_PAIRS_SENTENCES_H
#define KU_DATA_PAIRS_SENTENCES_H

#include "base/err.h"
#include "data/text/token_stream.h"
#include "data/tokenizer/vocab.h"

/*
 * Tokenized files with one sentence per line. Sentence i of all files is tokens [start[i],
 * start[i + 1] - 1); an end mark follows each sentence:
 *
 *     tokens   a b c | d e | f g h i |        start   0 4 7 12
 */
struct ku_sentences {
    struct ku_stream tokens;
    struct ku_vocab *vocab;
    int64_t *start; /* [n + 1] */
    int64_t n;
    size_t cap;
};

/*
 * Tokenize a file and add its sentences. A blank line is a sentence of no tokens. n_open: as
 * ku_stream_add. Errors: EINPUT with file:line, ENOMEM.
 */
KU_STATUS ku_sentences_add(struct ku_sentences *s, const char *path, struct ku_cache *cache,
                           const struct ku_progress *progress, uint32_t *n_open);
void ku_sentences_fini(struct ku_sentences *s);
static inline int64_t ku_sentence_count(const struct ku_sentences *s, int64_t i)
{
    return s->start[i + 1] - s->start[i] - 1;
}
/* Reads the tokens of one sentence. Threads: any number at once. */
KU_STATUS ku_sentence_read(const struct ku_sentences *s, int64_t i, int32_t *out);
/* The file of a sentence, and its line there, from 1. */
const char *ku_sentence_file(const struct ku_sentences *s, int64_t i, int64_t *line);

#endif
