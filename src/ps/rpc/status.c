/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/rpc/private.h"

#include <stdlib.h>
#include <string.h>

/*
 * Statuses on the wire. Several kumi statuses share a gRPC status; the trailing metadata
 * KU_RPC_STATUS_KEY tells them apart. The first row of a gRPC status is what it means when that is
 * missing: it came from gRPC itself or from another program.
 */
static const struct row {
    int status;
    grpc_status_code code;
} rows[] = {
    {KUMI_OK, GRPC_STATUS_OK},
    {KUMI_EINVAL, GRPC_STATUS_INVALID_ARGUMENT},
    {KUMI_EINVAL, GRPC_STATUS_UNIMPLEMENTED},
    {KUMI_EINVAL, GRPC_STATUS_UNAUTHENTICATED},
    {KUMI_EINVAL, GRPC_STATUS_PERMISSION_DENIED},
    {KUMI_EINVAL, GRPC_STATUS_OUT_OF_RANGE},
    {KUMI_EINPUT, GRPC_STATUS_DATA_LOSS},
    {KUMI_ENOCKPT, GRPC_STATUS_NOT_FOUND},
    {KUMI_ENOMEM, GRPC_STATUS_RESOURCE_EXHAUSTED},
    {KUMI_ESTORAGE, GRPC_STATUS_RESOURCE_EXHAUSTED},
    {KUMI_EPEER, GRPC_STATUS_UNAVAILABLE},
    {KUMI_EPEER, GRPC_STATUS_CANCELLED},
    {KUMI_EPEER, GRPC_STATUS_UNKNOWN},
    {KUMI_ESTOPPED, GRPC_STATUS_UNAVAILABLE},
    {KUMI_ETIMEDOUT, GRPC_STATUS_DEADLINE_EXCEEDED},
    {KUMI_EMISMATCH, GRPC_STATUS_FAILED_PRECONDITION},
    {KUMI_EPLAN, GRPC_STATUS_FAILED_PRECONDITION},
    {KUMI_ENUMERIC, GRPC_STATUS_INVALID_ARGUMENT},
    {KUMI_EBUSY, GRPC_STATUS_ALREADY_EXISTS},
    {KUMI_EBUSY, GRPC_STATUS_RESOURCE_EXHAUSTED},
    {KUMI_EBUG, GRPC_STATUS_INTERNAL},
    {KUMI_EDEVICE, GRPC_STATUS_INTERNAL},
};
enum { N_ROWS = sizeof rows / sizeof *rows };

grpc_status_code ku_rpc_code(int status)
{
    for (int i = 0; i < N_ROWS; i++)
        if (rows[i].status == status)
            return rows[i].code;
    return GRPC_STATUS_INTERNAL;
}

/* The number in the metadata if it is one of ours for this code; else the first row of the code. */
static int status_of(grpc_status_code code, const grpc_metadata_array *trailing)
{
    int number = 0, status = KUMI_EBUG;
    for (size_t i = 0; i < trailing->count; i++) {
        char text[8] = "";
        const grpc_slice *value = &trailing->metadata[i].value;
        if (grpc_slice_str_cmp(trailing->metadata[i].key, KU_RPC_STATUS_KEY) != 0)
            continue;
        if (GRPC_SLICE_LENGTH(*value) < sizeof text)
            memcpy(text, GRPC_SLICE_START_PTR(*value), GRPC_SLICE_LENGTH(*value));
        number = (int)strtol(text, NULL, 10);
    }
    for (int i = N_ROWS - 1; i >= 0; i--)
        if (rows[i].code == code) {
            status = rows[i].status;
            if (status == number)
                break;
        }
    return status;
}

int ku_rpc_from_code(grpc_status_code code, const grpc_metadata_array *trailing,
                     const char *address, const char *path, const grpc_slice *text)
{
    if (code == GRPC_STATUS_OK)
        return KUMI_OK;
    int bytes = (int)GRPC_SLICE_LENGTH(*text);
    const char *why = (const char *)GRPC_SLICE_START_PTR(*text);
    return KU_ERR(status_of(code, trailing), "rpc: %s%s: %.*s", address, path,
                  bytes < 360 ? bytes : 360, bytes ? why : "no reason was given");
}
