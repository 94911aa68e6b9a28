/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_PAIRS_BLEU_H
#define KU_DATA_PAIRS_BLEU_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/*
 * Corpus BLEU and chrF as sacreBLEU defines them, with one reference per sentence. The scores are
 * functions of n-gram counts summed over sentences, so the order of sentences and their
 * distribution over ranks do not matter.
 *
 *   BLEU   up to 4-grams of words (split at Unicode white space: tok=none), brevity penalty,
 *          exponential smoothing. Source: Papineni et al., ACL 2002; Post, WMT 2018; Chen and
 *          Cherry, WMT 2014, method 3. Signature: nrefs:1|case:mixed|eff:no|tok:none|smooth:exp
 *   chrF   up to 6-grams of characters without white space, beta 2. Source: Popovic, WMT 2015.
 *          Signature: nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no
 */
enum { KU_BLEU_ORDER = 4, KU_CHRF_ORDER = 6 };

/* Counts of a corpus; all zero for an empty one; counts of two corpora add up field by field. */
struct ku_bleu {
    int64_t n_sentences;
    int64_t hyp_len, ref_len; /* words */
    int64_t correct[KU_BLEU_ORDER], total[KU_BLEU_ORDER];
    int64_t chr_hyp[KU_CHRF_ORDER], chr_ref[KU_CHRF_ORDER], chr_match[KU_CHRF_ORDER];
};

/*
 * Counts a sentence. An invalid UTF-8 byte is a character that matches no reference. Errors:
 * ENOMEM.
 */
KU_STATUS ku_bleu_add(struct ku_bleu *b, const char *hypothesis, size_t hypothesis_bytes,
                      const char *reference, size_t reference_bytes);

struct ku_bleu_score {
    double bleu;                     /* 0 to 100 */
    double precision[KU_BLEU_ORDER]; /* 0 to 100, smoothed */
    double brevity_penalty;          /* 0 to 1 */
    double chrf;                     /* 0 to 100 */
};
/*
 * Compute the scores.
 *
 *   effective_order   1: use only orders for which the hypotheses have n-grams, as sacreBLEU does
 *                     for single sentences; 0: all four, as for a corpus
 */
struct ku_bleu_score ku_bleu_score(const struct ku_bleu *b, int effective_order);

#endif
