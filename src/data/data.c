/* SPDX-License-Identifier: Apache-2.0 */
#include "data/data.h"

#include <string.h>

size_t ku_data_row_bytes(const struct ku_data_port *port)
{
    size_t bytes = kumi_dtype_bytes(port->dtype);
    for (int i = 0; i < port->ndim; i++)
        bytes *= (size_t)port->dim[i];
    return bytes;
}

static void blank(const struct ku_data_port *port, void *row)
{
    size_t bytes = ku_data_row_bytes(port);
    int32_t *target = row;
    memset(row, 0, bytes);
    if (port->dtype == KUMI_I32 && strcmp(port->name, "targets") == 0)
        for (size_t i = 0; i < bytes / sizeof *target; i++)
            target[i] = KU_NO_TARGET;
}

int ku_data_read_row(const struct ku_data *d, enum ku_data_split split, int64_t sample,
                     int64_t number, void *const *to, int64_t row)
{
    void *at[KU_DATA_PORTS_MAX];
    KU_ASSERT(d->n_ports <= KU_DATA_PORTS_MAX);
    for (int i = 0; i < d->n_ports; i++)
        at[i] = (char *)to[i] + (size_t)row * ku_data_row_bytes(&d->port[i]);
    int status = sample < 0 ? KUMI_OK : ku_data_read(d, split, sample, number, at);
    for (int i = 0; i < d->n_ports && (sample < 0 || status < 0); i++)
        blank(&d->port[i], at[i]);
    return status;
}
