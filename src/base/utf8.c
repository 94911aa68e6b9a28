/* SPDX-License-Identifier: Apache-2.0 */
#include "base/utf8.h"

#include <string.h>

/*
 * Unicode 15, table 3-7 (well-formed byte sequences): the lead byte gives the length and the range
 * of the second byte. The range excludes overlong forms, surrogates and code points above U+10FFFF.
 */
static int lead(unsigned char c, unsigned char *low, unsigned char *high)
{
    *low = 0x80;
    *high = 0xBF;
    if (c < 0x80)
        return 1;
    if (c < 0xC2)
        return 0;
    if (c < 0xE0)
        return 2;
    if (c < 0xF0) {
        *low = c == 0xE0 ? 0xA0 : 0x80;
        *high = c == 0xED ? 0x9F : 0xBF;
        return 3;
    }
    if (c < 0xF5) {
        *low = c == 0xF0 ? 0x90 : 0x80;
        *high = c == 0xF4 ? 0x8F : 0xBF;
        return 4;
    }
    return 0;
}

/*
 * Number of bytes at `at` that match one character. *need is the length that the lead byte states;
 * 0: not a lead byte.
 */
static int agree(const unsigned char *at, const unsigned char *end, int *need)
{
    unsigned char low, high;
    *need = lead(*at, &low, &high);
    if (*need < 2)
        return *need;
    int n = 1;
    while (n < *need && at + n < end && at[n] >= low && at[n] <= high) {
        low = 0x80;
        high = 0xBF;
        n++;
    }
    return n;
}

size_t ku_utf8_valid(const unsigned char *at, const unsigned char *end)
{
    const unsigned char *p = at;
    while (p < end) {
        uint64_t word;
        if (end - p >= 8) {
            memcpy(&word, p, 8);
            if (!(word & 0x8080808080808080u)) {
                p += 8;
                continue;
            }
        }
        int need, n = agree(p, end, &need);
        if (need == 0 || n < need)
            break;
        p += n;
    }
    return (size_t)(p - at);
}

bool ku_utf8_is_partial(const unsigned char *at, const unsigned char *end)
{
    int need, n = at < end ? agree(at, end, &need) : 0;
    return n > 0 && n < need && at + n == end;
}

int ku_utf8_check(const char *what, const char *text)
{
    const unsigned char *at = (const unsigned char *)text, *end = at + strlen(text);
    return ku_utf8_valid(at, end) == (size_t)(end - at)
               ? KUMI_OK
               : KU_ERR(KUMI_EINVAL, "%s: %.300s: not UTF-8; rename it", what, text);
}
