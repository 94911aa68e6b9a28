/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_MODEL_EXPORT_H
#define KU_MODEL_EXPORT_H

#include "base/err.h"
#include "base/json/json.h"
#include "ckpt/weights.h"
#include "kumi/run.h"

/*
 * Write the weights of a directory to a new directory that transformers loads.
 *
 *   dir        config.json and safetensors
 *   to         the new directory; must not exist
 *   averages   file with averages of the weights (train.ema), which replace them; NULL: none
 *
 * Errors: as ku_weights_write.
 */
KU_STATUS ku_export_directory(const char *dir, const char *to, const struct kumi_weights_options *o,
                              const struct ku_st *averages);
/*
 * The same into `to`.new, which then replaces the directory `to`, if there is one. A folder that an
 * interrupted call left there is removed first.
 */
KU_STATUS ku_export_replacing(const char *dir, const char *to,
                              const struct kumi_weights_options *o);

/* For export and import. The dtype of the options; KUMI_N_DTYPES: none. Errors: KUMI_EINVAL. */
KU_STATUS ku_export_parse_dtype(const struct kumi_weights_options *o, enum kumi_dtype *out);
/* Read a whole config.json, freed by the caller with ku_free; KUMI_EINPUT. And parse it. */
KU_STATUS ku_export_read_text(const char *file, char **out, size_t *bytes);
KU_STATUS ku_export_parse_config(const char *file, const char *text, struct ku_json *doc);
/* Set the dtype key in the text of a config.json. Replaces *text; KUMI_N_DTYPES: unchanged. */
KU_STATUS ku_export_say_dtype(const char *file, enum kumi_dtype dtype, char **text);

#endif
