/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_REMOTE_CONTENTS_H
#define KU_REMOTE_CONTENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "train/remote_update.h"

/*
 * What the bytes of a push may say. A server looks at each range before it takes it:
 *
 *     topk    whole records, whose indices ascend and are below their chunk's count
 *     all     where is_finite: no element is NaN or infinite, also after it is decoded
 */
struct ku_contents {
    const struct ku_remote_layout *layout;
    const struct ku_remote_part *part; /* [n_push] of the server's push space */
    bool has_topk;                     /* a tensor has this form */
    bool is_finite;                    /* another element is refused */
};
struct ku_contents_range {
    int worker;
    int64_t step;
    size_t offset, extent; /* in the push space */
    const void *data;      /* [extent]; is_sparse: a checked body of remote/sparse.h */
    bool is_sparse;
};
/*
 * Errors: KUMI_EINVAL (records), ENUMERIC (an element is not finite; worker, step, tensor and
 * element are named), ENOMEM.
 */
KU_STATUS ku_contents_check(const struct ku_contents *c, const struct ku_contents_range *r);

#endif
