/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_DATASET_H
#define KU_TRAIN_DATASET_H

#include "data/data.h"
#include "config/config.h"
#include "model/model.h"

/* The data of a configuration, of whichever kind, as its model reads them. */

/* Loss positions of a sample: tokens of a sequence (data.seq_len, or the model's longest), 1 for
 * models that have none. Errors: KUMI_EINVAL. */
int ku_dataset_seq_len(const struct ku_config *c, const struct ku_model *m, int64_t *out);
/* Owns: *out. Blocks: while text is tokenized. Errors: KUMI_EINPUT, EINVAL, ENOMEM. */
int ku_dataset_open(const struct ku_config *c, const struct ku_model *m, int64_t seq_len,
                    const struct ku_progress *progress, struct ku_data **out);
/* Every input of the graph but `control` must be a port of the data of the same type, and the other
 * way round. Errors: KUMI_EINVAL with both sides. */
int ku_dataset_check(const struct ku_data *d, const struct ku_graph *g);

#endif
