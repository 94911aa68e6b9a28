/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_TRAIN_DATASET_H
#define KU_TRAIN_DATASET_H

#include "base/err.h"
#include "data/data.h"
#include "config/config.h"
#include "model/model.h"

/* Opens the data of a configuration, of any kind, in the form that its model reads. */

/*
 * Loss positions of a sample: tokens of a sequence (data.seq_len, or the model's maximum); 1 for
 * models without sequences. Errors: KUMI_EINVAL.
 */
KU_STATUS ku_dataset_seq_len(const struct ku_config *c, const struct ku_model *m, int64_t *out);
/*
 * Open the data. Owns: *out. Blocks: while text is tokenized. Errors: KUMI_EINPUT, EINVAL, ENOMEM.
 */
KU_STATUS ku_dataset_open(const struct ku_config *c, const struct ku_model *m, int64_t seq_len,
                          const struct ku_progress *progress, struct ku_data **out);
/*
 * Check that the inputs of the graph, except `control`, are exactly the ports of the data, with the
 * same types. Errors: KUMI_EINVAL with both types.
 */
KU_STATUS ku_dataset_check(const struct ku_data *d, const struct ku_graph *g);

#endif
