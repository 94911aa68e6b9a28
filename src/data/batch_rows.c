/* SPDX-License-Identifier: Apache-2.0 */
#include "data/batch_rows.h"

#include "base/err.h"

static int read_row(const struct ku_data *d, enum ku_data_split split, int64_t sample,
                    int64_t number, int64_t row, void *const *to)
{
    void *at[KU_DATA_PORTS_MAX];
    KU_ASSERT(d->n_ports <= KU_DATA_PORTS_MAX);
    for (int i = 0; i < d->n_ports; i++)
        at[i] = (char *)to[i] + (size_t)row * ku_data_row_bytes(&d->port[i]);
    if (sample >= 0)
        return ku_data_read(d, split, sample, number, at);
    for (int i = 0; i < d->n_ports; i++)
        ku_data_blank(&d->port[i], at[i]);
    return KUMI_OK;
}

int ku_rows_train(const struct ku_data *d, const struct ku_sampler *s, int64_t step, int64_t first,
                  int64_t n, void *const *to)
{
    for (int64_t r = 0; r < n; r++) {
        int64_t sample = ku_sampler_at(s, step, first + r);
        int64_t number = sample < 0 ? 0 : ku_sampler_number(s, step, first + r);
        KU_TRY(read_row(d, KU_SPLIT_TRAIN, sample, number, r, to));
    }
    return KUMI_OK;
}

int ku_rows_val(const struct ku_data *d, int64_t n_samples, int64_t first, int64_t n,
                void *const *to)
{
    for (int64_t r = 0; r < n; r++)
        KU_TRY(read_row(d, KU_SPLIT_VAL, first + r < n_samples ? first + r : -1, 0, r, to));
    return KUMI_OK;
}
