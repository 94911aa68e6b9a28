/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PASS_PLACE_VOCABULARY_H
#define KU_PASS_PLACE_VOCABULARY_H

#include "ir/graph.h"

/*
 * Padding of vocabularies (dim v of token tables), so that axis tp has equal parts of them.
 *
 * Models pad vocabularies to a multiple of 128 (VOCAB_PAD of nn/). Pass vocabulary pads those that
 * the ranks (with tp_exact its slices) are to divide and do not, to a multiple of both numbers:
 *
 *     parts    vocabulary  padded by the model   by the pass, to a multiple of
 *     2, 4 ..  50257       50304                 50304        128
 *     3        32000       32000                 32256        384
 *     12       61          128                   384          384
 *
 * Padding is zero, follows the last token, and takes no part in losses, digests, files and random
 * numbers, so a state has the same tensors under every number of parts.
 */

/*
 * Whether a dim is the vocabulary of a token table and may get more padding: it is the first dim of
 * all tensors that have it, none of the model's ports and outputs has it, and no op makes another
 * dim of it.
 */
bool ku_vocabulary_can_grow(const struct ku_graph *g, const struct ku_dim *dim);

#endif
