/* SPDX-License-Identifier: Apache-2.0 */
#include "data/image/decode.h"

#include "kumi/status.h"

#include <stdio.h>
#include <string.h>

void ku_decoder_fini(struct ku_decoder *d)
{
    ku_scratch_fini(&d->image);
    ku_scratch_fini(&d->work);
}

int ku_decode_room(struct ku_decoder *d, int64_t h, int64_t w, int64_t bytes_each)
{
    if (h < 1 || w < 1 || h > KU_IMAGE_SIDE_MAX || w > KU_IMAGE_SIDE_MAX ||
        h * w > KU_IMAGE_PIXELS_MAX) {
        snprintf(d->why, sizeof d->why,
                 "%lld x %lld pixels; an image has sides of 1 to %d and at most %d pixels",
                 (long long)w, (long long)h, KU_IMAGE_SIDE_MAX, KU_IMAGE_PIXELS_MAX);
        return KUMI_EINPUT;
    }
    return ku_scratch_need(&d->image, (size_t)(h * w * bytes_each));
}

int ku_decode(struct ku_decoder *d, const unsigned char *data, size_t bytes, struct ku_pixels *out)
{
    static const unsigned char png[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    int64_t h = 0, w = 0;
    int status = KUMI_EINPUT;
    snprintf(d->why, sizeof d->why, "%s", "not a JPEG or PNG image; convert or remove it");
    if (bytes == 0)
        snprintf(d->why, sizeof d->why, "%s", "an empty file; replace or remove it");
    else if (bytes >= 3 && data[0] == 0xff && data[1] == 0xd8 && data[2] == 0xff)
        status = ku_decode_jpeg(d, data, bytes, &h, &w);
    else if (bytes >= sizeof png && memcmp(data, png, sizeof png) == 0)
        status = ku_decode_png(d, data, bytes, &h, &w);
    if (status < 0)
        return status;
    *out = (struct ku_pixels){d->image.data, KUMI_U8, h, w, 3, 3 * w, 3, 1};
    return KUMI_OK;
}
