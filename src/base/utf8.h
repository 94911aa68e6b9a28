/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_UTF8_H
#define KU_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Length of the longest prefix of [at, end) that is valid UTF-8. */
size_t ku_utf8_valid(const unsigned char *at, const unsigned char *end);
/* EINVAL "what: text: not UTF-8", for names that JSON files will contain. */
KU_STATUS ku_utf8_check(const char *what, const char *text);
/* 1 if [at, end) is a proper prefix (1 to 3 bytes) of some valid character. */
bool ku_utf8_is_partial(const unsigned char *at, const unsigned char *end);

/* Decodes one character of valid UTF-8. */
static inline uint32_t ku_utf8_get(const unsigned char *at, size_t *bytes)
{
    uint32_t c = at[0];
    if (c < 0x80) {
        *bytes = 1;
        return c;
    }
    if (c < 0xE0) {
        *bytes = 2;
        return (c & 31) << 6 | (at[1] & 63u);
    }
    if (c < 0xF0) {
        *bytes = 3;
        return (c & 15) << 12 | (at[1] & 63u) << 6 | (at[2] & 63u);
    }
    *bytes = 4;
    return (c & 7) << 18 | (at[1] & 63u) << 12 | (at[2] & 63u) << 6 | (at[3] & 63u);
}

#endif
