/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_INFER_BEAM_H
#define KU_INFER_BEAM_H

#include <stdint.h>

#include "base/err.h"

/*
 * Beam search for many sentences at a time, over a model that gives the log-probabilities of the
 * next token. beam_size 1 is greedy decoding.
 *
 * The score of a hypothesis is its log-probability divided by ((5 + n) / 6)^alpha, where n counts
 * its tokens including the end (Wu et al. 2016, section 7, without coverage; Vaswani et al. 2017:
 * beam 4, alpha 0.6). One step, for each sentence:
 *
 *     open hypotheses x vocabulary  ->  best 2 beam_size continuations, ranked
 *                                         ends among the first beam_size    -> results
 *                                         first beam_size that are not ends -> open hypotheses
 *
 * Ties are ranked by lower row, then lower token. A sentence is done when it has beam_size results
 * and no open hypothesis can exceed the lowest score among them: its log-probability over ((5 +
 * max_tokens) / 6)^alpha is an upper bound. So early stopping does not change results. Greedy
 * decoding stops at the first end. Hypotheses without an end within max_tokens rank after all
 * others.
 */
struct ku_beam_opts {
    int64_t n_sentences, vocab_size;
    int64_t beam_size;         /* at least 1 */
    int64_t n_best;            /* results per sentence, 1 to beam_size; 0 means 1 */
    double alpha;              /* length penalty, at least 0 */
    const int64_t *max_tokens; /* [n_sentences], at least 1: limit per hypothesis, with the end */
    uint32_t first, end;       /* tokens before each hypothesis, and at its end */
};

/*
 * The model has n_sentences * beam_size rows; those of sentence i begin at i * beam_size. Both
 * functions return a status; a negative one ends the search.
 */
struct ku_beam_model {
    /*
     * Appends token[row] to each row's hypothesis.
     *
     *   is_done   [rows]; 1: the row's output is not used from now on
     *   log_p     [rows][vocab_size], out: log-probabilities of the next token; -inf: impossible
     */
    int (*step)(void *ctx, const uint32_t *token, const unsigned char *is_done, double *log_p);
    /*
     * Row i becomes a copy of row parent[i], which belongs to the same sentence. NULL: the model
     * has no state per row.
     */
    int (*select)(void *ctx, const int64_t *parent);
    void *ctx;
};

struct ku_beam_text {
    const uint32_t *token; /* [n], including the end token if has_end */
    int64_t n;
    double log_p, score;
    int has_end;
};
/* Zero-initialized: empty. */
struct ku_beam_results {
    struct ku_beam_text *text; /* [n_sentences][n_best], best first; n = 0: no such result */
    uint32_t *token;           /* storage of the tokens */
};
/*
 * Search. Owns: *out, until ku_beam_fini. Errors: EINVAL (options), ENUMERIC (a log-probability
 * that is NaN or above 0), ENOMEM, errors of the model; *out is then empty.
 */
KU_STATUS ku_beam_search(const struct ku_beam_opts *o, const struct ku_beam_model *m,
                         struct ku_beam_results *out);
void ku_beam_fini(struct ku_beam_results *r);

#endif
