/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GRADIENTS_H
#define TESTS_GRADIENTS_H

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "ckpt/safetensors.h"
#include "tensor/dtype.h"
#include "train/trainer.h"

/* Gradients of a trainer after its first step against those of a file. */
static inline const struct ku_ckpt_tensor *first_moment(const struct ku_trainer *t,
                                                        const char *param)
{
    char name[256];
    snprintf(name, sizeof name, "%s.exp_avg", param);
    for (int i = 0; i < t->n_tensors; i++)
        if (strcmp(t->tensor[i].name, name) == 0)
            return &t->tensor[i];
    return NULL;
}

/*
 * |got - truth|^2 and |truth|^2 of one gradient. The first moment after one step is (1 - beta1)
 * times the clipped gradient.
 */
static inline int compare_gradient(const struct ku_st *file, const struct ku_st_tensor *truth,
                                   const struct ku_ckpt_tensor *m, double scale, double sum[2])
{
    double *want = ku_malloc(truth->bytes), *got = ku_malloc(truth->bytes);
    int status = want && got ? ku_st_read_bytes(file, truth, 0, want, truth->bytes) : KUMI_ENOMEM;
    sum[0] = sum[1] = 0;
    if (status == KUMI_OK) {
        assert_int_equal(ku_ckpt_tensor_gather(m, 0, truth->count, got), 0);
        for (int64_t i = 0; i < truth->count; i++) {
            double x = ku_load_f64(got, m->dtype, i) * scale - want[i];
            sum[0] += x * x;
            sum[1] += want[i] * want[i];
        }
    }
    ku_free(want);
    ku_free(got);
    return status;
}

#endif
