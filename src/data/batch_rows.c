/* SPDX-License-Identifier: Apache-2.0 */
#include "data/batch_rows.h"

#include "base/err.h"

int ku_rows_train(const struct ku_data *d, const struct ku_sampler *s, int64_t step, int64_t first,
                  int64_t n, void *const *to)
{
    for (int64_t r = 0; r < n; r++) {
        int64_t sample = ku_sampler_at(s, step, first + r);
        int64_t number = sample < 0 ? 0 : ku_sampler_number(s, step, first + r);
        KU_TRY(ku_data_read_row(d, KU_SPLIT_TRAIN, sample, number, to, r));
    }
    return KUMI_OK;
}

int ku_rows_val(const struct ku_data *d, int64_t n_samples, int64_t first, int64_t n,
                void *const *to)
{
    for (int64_t r = 0; r < n; r++)
        KU_TRY(ku_data_read_row(d, KU_SPLIT_VAL, first + r < n_samples ? first + r : -1, 0, to, r));
    return KUMI_OK;
}
