/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PASS_UNIT_H
#define KU_PASS_UNIT_H

#include <stddef.h>
#include <string.h>

/*
 * The length in bytes of the repeated layer's path ("h.3", "encoder.layers.0", "layer2.1") at the
 * start of `path`: up to the first name that is a number, which is never the first name. 0: `path`
 * is in no repeated layer. Such a layer is the default unit of ZeRO stage 3 gathers and of
 * activation checkpointing.
 */
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
