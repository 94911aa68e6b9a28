/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PASS_UNIT_H
#define KU_PASS_UNIT_H

#include <stddef.h>
#include <string.h>

/* Repeated blocks by module path ("h.3", "encoder.layers.0", "layer2.1"): what stage 3 gathers
 * together and what recomputation keeps the input of. The bytes of `path` up to its first number,
 * which is not its first name; 0: it is in no block. */
static inline size_t ku_unit_bytes(const char *path)
{
    for (const char *dot = strchr(path, '.'); dot; dot = strchr(dot + 1, '.')) {
        size_t digits = strspn(dot + 1, "0123456789");
        if (digits > 0 && digits < 10 && (dot[1 + digits] == '.' || dot[1 + digits] == '\0'))
            return (size_t)(dot - path) + 1 + digits;
    }
    return 0;
}

#endif
