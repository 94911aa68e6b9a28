/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor data */
#include "base/err.h"
#include "data/image/decode.h"
#include "fuzz.h"

#include <string.h>

/* Any bytes as an image: refused with one line, or pixels within the limits, all of them there. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct ku_decoder d = {0};
    struct ku_pixels p;
    int status = ku_decode(&d, data, bytes, &p);
    KU_ASSERT(status == KUMI_OK || status == KUMI_EINPUT);
    if (status == KUMI_OK) {
        unsigned sum = 0;
        KU_ASSERT(p.h > 0 && p.w > 0 && p.h * p.w <= KU_IMAGE_PIXELS_MAX && p.c == 3);
        for (int64_t i = 0; i < p.h * p.w * 3; i++)
            sum += ((const unsigned char *)p.data)[i];
        KU_ASSERT(sum <= 255u * 3u * (unsigned)(p.h * p.w) || p.h * p.w > 1 << 20);
    } else {
        KU_ASSERT(d.why[0] != '\0' && strchr(d.why, '\n') == NULL);
    }
    ku_decoder_fini(&d);
    return 0;
}
