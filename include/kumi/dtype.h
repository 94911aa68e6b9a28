/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KUMI_DTYPE_H
#define KUMI_DTYPE_H

#include "kumi/status.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Element types. Data in files and messages is little endian.
 */
enum kumi_dtype {
    KUMI_F32 = 0,
    KUMI_F64 = 1,
    KUMI_BF16 = 2,
    KUMI_F16 = 3,
    KUMI_I64 = 4,
    KUMI_I32 = 5,
    KUMI_U16 = 6,
    KUMI_U8 = 7,
    KUMI_N_DTYPES = 8
};

KUMI_API size_t kumi_dtype_bytes(enum kumi_dtype dtype);     /* 8, 4, 2 or 1; 0: not a dtype */
KUMI_API const char *kumi_dtype_name(enum kumi_dtype dtype); /* "f32"; "?": not a dtype */

#ifdef __cplusplus
}
#endif
#endif
