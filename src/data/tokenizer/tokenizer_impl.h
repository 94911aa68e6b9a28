/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_TOKENIZER_TOKENIZER_IMPL_H
#define KU_DATA_TOKENIZER_TOKENIZER_IMPL_H

#include "base/json/json.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/words.h"
#include "data/tokenizer/tokenizer.h"

/* What the loader fills and the encoder runs. */

enum { KU_STAGES_MAX = 8 };

/* A token that is found in the text before it is cut into words. */
struct ku_added {
    unsigned char *data;
    size_t bytes;
    uint32_t id;
};
/* Added tokens, the longest first: of those that fit at a place, the first fits best. */
struct ku_added_set {
    struct ku_added *added;
    uint32_t n, cap;
    unsigned char is_first[256]; /* whether one begins with this byte */
};

struct ku_tokenizer {
    struct ku_bpe *bpe;                    /* NULL: a token is a byte */
    struct ku_words *stage[KU_STAGES_MAX]; /* each cuts the words of the one before */
    int n_stages;
    int prefix_stage; /* a blank goes before words that enter this stage without one; -1: nowhere.
                         0: before texts */
    /* Hugging Face searches these first, then, in what lies between, those that its normalizer
     * might change. */
    struct ku_added_set added[2];
    size_t added_bytes_max; /* of the longest, at least 1 */
    int64_t end;            /* the token that ends a text; -1: the files name none */
    struct ku_str special;  /* what the files beside a vocabulary add, for the fingerprint */
    char fingerprint[65];

    /* The window: text that is fed and not yet cut. One byte before it takes the blank of
     * add_prefix_space. */
    unsigned char *window;
    size_t window_bytes, cap_window;
    uint64_t window_at;     /* in the text */
    int is_start;           /* the window begins at the text's start or behind an added token */
    unsigned char *scratch; /* a word with its blank */
    size_t cap_scratch;
};

/* Fill bpe, stages, added tokens and fingerprint from files. dir: whose special tokens are read
 * too; NULL: none. Errors: as ku_tokenizer_open; t is then partly filled. */
int ku_tokenizer_load_pair(struct ku_tokenizer *t, const char *dir, const char *vocab_path,
                           const char *merges_path);
int ku_tokenizer_load_json(struct ku_tokenizer *t, const char *dir, const char *path);
/* The tokens that the files beside a vocabulary name, before the fingerprint is made. is_pair:
 * there is no tokenizer.json. */
int ku_tokenizer_load_special(struct ku_tokenizer *t, const char *dir, int is_pair);

/* Shared by the loaders. */
int ku_tokenizer_read_json(const char *path, struct ku_json *doc);
/* EINPUT "tokenizer: <path>: <part>: <value>; kumi takes <instead>". */
int ku_tokenizer_refuse(const char *path, const char *part, json_t *value, const char *instead);
/* A token that is found in texts as a whole: a string, or an object with content and flags. */
int ku_tokenizer_add(struct ku_tokenizer *t, const char *path, const char *key, json_t *entry,
                     int64_t id);

#endif
