/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_CKPT_DIFF_H
#define KU_CKPT_DIFF_H

#include "base/str.h"
#include "ckpt/safetensors.h"

/* What is different between the tensors that are wanted and those that files hold: gathered whole,
 * told once. */
struct ku_diff {
    int n_missing, n_extra, n_misshapen;
    struct ku_str text; /* "missing a; shape of b [2,3], wanted [3,2]" */
    struct ku_str lines;
};
void ku_diff_missing(struct ku_diff *d, const char *name);
void ku_diff_extra(struct ku_diff *d, const char *name);
void ku_diff_shape(struct ku_diff *d, const struct ku_st_tensor *is,
                   const struct ku_ckpt_tensor *wanted);
/* 0 without a difference; else KUMI_EINPUT with all of them (those that the record cannot hold are
 * logged, each one line). */
int ku_diff_finish(struct ku_diff *d, const char *what, const char *where); /* also releases */

#endif
