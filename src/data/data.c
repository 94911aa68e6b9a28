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

void ku_data_blank(const struct ku_data_port *port, void *row)
{
    size_t bytes = ku_data_row_bytes(port);
    int32_t *target = row;
    memset(row, 0, bytes);
    if (port->dtype == KUMI_I32 && strcmp(port->name, "targets") == 0)
        for (size_t i = 0; i < bytes / sizeof *target; i++)
            target[i] = KU_NO_TARGET;
}
