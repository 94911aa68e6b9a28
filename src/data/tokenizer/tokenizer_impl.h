/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_TOKENIZER_TOKENIZER_IMPL_H
#define KU_DATA_TOKENIZER_TOKENIZER_IMPL_H

#include "base/err.h"
#include "base/json/json.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/words.h"
#include "data/tokenizer/tokenizer.h"

/* The tokenizer object that tokenizer_load.c and special_tokens.c fill and tokenizer.c runs. */

enum { KU_STAGES_MAX = 8 };

/* A token that is searched in text before the text is split into words. */
struct ku_added {
    unsigned char *data;
    size_t bytes;
    uint32_t id;
};
/* Added tokens; after loading in the order of their bytes, a prefix before what it begins. */
struct ku_added_set {
    struct ku_added *added;
    uint32_t n, cap;
    uint32_t start[257]; /* tokens that begin with byte b: [start[b], start[b + 1]) */
};

struct ku_tokenizer {
    struct ku_bpe *bpe;                    /* NULL: a token is a byte */
    struct ku_words *stage[KU_STAGES_MAX]; /* each splits the words of the previous stage */
    int n_stages;
    /* A blank is added before words that enter this stage without one; 0: a text; -1: never. */
    int prefix_stage;
    /*
     * [0]: searched first; [1]: tokens with normalized = true, searched in the text between those,
     * as in Hugging Face's library.
     */
    struct ku_added_set added[2];
    size_t added_bytes_max; /* length of the longest one, at least 1 */
    int64_t end, mask;      /* end-of-text and mask token; -1: the files name none */
    /* Special tokens around a whole text: post_processor, or add_bos_token and add_eos_token. */
    struct ku_tokens before, after;
    struct ku_str special; /* tokens of the special-token files, input to the fingerprint */
    char fingerprint[65];

    /*
     * The window: text fed but not yet encoded. The byte before it is reserved for the blank of
     * add_prefix_space.
     */
    unsigned char *window;
    size_t window_bytes, cap_window;
    uint64_t window_at;     /* its offset in the text */
    int is_start;           /* the window begins at the start of the text or after an added token */
    unsigned char *scratch; /* a word with the blank added */
    size_t cap_scratch;
};

/*
 * Fill bpe, stages, added tokens and fingerprint from files. Errors: as ku_tokenizer_open; t is
 * then partly filled.
 *
 *   dir   folder of the special-token files; NULL: none
 */
KU_STATUS ku_tokenizer_load_pair(struct ku_tokenizer *t, const char *dir, const char *vocab_path,
                                 const char *merges_path);
KU_STATUS ku_tokenizer_load_json(struct ku_tokenizer *t, const char *dir, const char *path);
/*
 * Adds the tokens of the special-token files, before the fingerprint is computed. is_pair: there is
 * no tokenizer.json.
 */
KU_STATUS ku_tokenizer_load_special(struct ku_tokenizer *t, const char *dir, int is_pair);

/* post_processor.c: sets before and after. rule: post_processor of the file; NULL: it has none. */
KU_STATUS ku_tokenizer_load_post_processor(struct ku_tokenizer *t, const char *path, json_t *rule);

/* The added token with this text, or NULL. */
const struct ku_added *ku_tokenizer_find_added(const struct ku_tokenizer *t, const char *text,
                                               size_t bytes);

/* Helpers of the loaders. */
KU_STATUS ku_tokenizer_read_json(const char *path, struct ku_json *doc);
/* Returns EINPUT "tokenizer: <path>: <part>: <value>; kumi takes <instead>". */
KU_STATUS ku_tokenizer_refuse(const char *path, const char *part, json_t *value,
                              const char *instead);
/*
 * Adds a token that is searched in text as a whole. entry: a string, or an object with content and
 * flags.
 */
KU_STATUS ku_tokenizer_add(struct ku_tokenizer *t, const char *path, const char *key, json_t *entry,
                           int64_t id);

#endif
