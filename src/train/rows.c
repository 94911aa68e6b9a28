/* SPDX-License-Identifier: Apache-2.0 */
#include "train/rows.h"

#include <string.h>

#include "base/err.h"

enum { NO_TARGET = -100 }; /* PyTorch's ignore_index */

size_t ku_row_bytes(const struct ku_data_port *port)
{
    size_t bytes = kumi_dtype_bytes(port->dtype);
    for (int i = 0; i < port->ndim; i++)
        bytes *= (size_t)port->dim[i];
    return bytes;
}

static void blank(const struct ku_data_port *port, void *row)
{
    size_t bytes = ku_row_bytes(port);
    int32_t *target = row;
    memset(row, 0, bytes);
    if (port->dtype == KUMI_I32 && strcmp(port->name, "targets") == 0)
        for (size_t i = 0; i < bytes / sizeof *target; i++)
            target[i] = NO_TARGET;
}

static int read_row(const struct ku_data *d, enum ku_data_split split, int64_t sample,
                    int64_t number, int64_t row, void *const *to)
{
    void *at[KU_DATA_PORTS_MAX];
    KU_ASSERT(d->n_ports <= KU_DATA_PORTS_MAX);
    for (int i = 0; i < d->n_ports; i++)
        at[i] = (char *)to[i] + (size_t)row * ku_row_bytes(&d->port[i]);
    if (sample >= 0)
        return ku_data_read(d, split, sample, number, at);
    for (int i = 0; i < d->n_ports; i++)
        blank(&d->port[i], at[i]);
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
