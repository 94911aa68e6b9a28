/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CKPT_DIFF_H
#define KU_CKPT_DIFF_H

#include "base/err.h"
#include "base/str.h"
#include "ckpt/safetensors.h"

/* Collects the differences between the requested tensors and those in files, for one message. */
struct ku_diff {
    int n_missing, n_extra, n_misshapen;
    struct ku_str lines; /* "missing a", "b is [2,3] instead of [3,2]", …, each NUL-terminated */
};
void ku_diff_missing(struct ku_diff *d, const char *name);
void ku_diff_extra(struct ku_diff *d, const char *name);
void ku_diff_shape(struct ku_diff *d, const struct ku_st_tensor *is,
                   const struct ku_ckpt_tensor *wanted);
/* Frees d. Returns 0 without differences, else EINPUT with the counts and the first ten. */
KU_STATUS ku_diff_finish(struct ku_diff *d, const char *what, const char *where);

#endif
