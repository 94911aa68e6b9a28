/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_INFER_BEAM_H
#define KU_INFER_BEAM_H

#include <stdint.h>

/*
 * Beam search over a model that says, token by token, how likely each next one is; many sentences
 * at a time. beam_size 1 is greedy decoding.
 *
 * A text's score is its log-probability over ((5 + n) / 6)^alpha, n its tokens with the end among
 * them (Wu et al. 2016, section 7, without coverage; Vaswani et al. 2017: beam 4, alpha 0.6). In a
 * step the 2 beam_size likeliest continuations of a sentence's open texts are ranked, of equals
 * those of the lower row and then of the lower token first: ends among the first beam_size become
 * results, and the first beam_size others are the open texts of the next step.
 *
 * A sentence is done with its beam_size results once none of its open texts can still score higher
 * than the least of them, whatever follows: log-probability over ((5 + max_tokens) / 6)^alpha
 * bounds that. So stopping early changes no result. Greedy decoding stops with the first end. Texts
 * that have no end within max_tokens stand behind all that have one.
 */
struct ku_beam_opts {
    int64_t n_sentences, vocab_size;
    int64_t beam_size;         /* at least 1 */
    int64_t n_best;            /* results of a sentence, 1 to beam_size; 0 = 1 */
    double alpha;              /* of the length penalty, at least 0 */
    const int64_t *max_tokens; /* [n_sentences], at least 1: of a text, the end among them */
    uint32_t first, end;       /* what texts begin behind, and end with */
};

/* The model has n_sentences * beam_size rows; those of sentence i begin at i * beam_size. Both
 * functions return a status, which ends the search when it is negative. */
struct ku_beam_model {
    /*
     * Puts token[row] behind each row's text.
     *
     *   is_done   [rows]: nobody reads these rows from now on
     *   log_p     [rows][vocab_size], out: log-probabilities of the next token, -inf: never
     */
    int (*step)(void *ctx, const uint32_t *token, const unsigned char *is_done, double *log_p);
    /* Row i becomes what row parent[i] is, a row of the same sentence. NULL: the model keeps no
     * rows. */
    int (*select)(void *ctx, const int64_t *parent);
    void *ctx;
};

struct ku_beam_text {
    const uint32_t *token; /* [n], with the end if it has one */
    int64_t n;
    double log_p, score;
    int has_end;
};
/* All zero is empty. */
struct ku_beam_results {
    struct ku_beam_text *text; /* [n_sentences][n_best], best first; n = 0: there are not so many */
    uint32_t *token;           /* theirs */
};
/* Owns: *out, until ku_beam_fini. Errors: KUMI_EINVAL (options), ENUMERIC (a log-probability that
 * is NaN or above 0), ENOMEM, those of the model; *out is then empty. */
int ku_beam_search(const struct ku_beam_opts *o, const struct ku_beam_model *m,
                   struct ku_beam_results *out);
void ku_beam_fini(struct ku_beam_results *r);

#endif
