/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_IMAGE_DECODE_H
#define KU_DATA_IMAGE_DECODE_H

#include "base/err.h"
#include "data/image/pixels.h"

/* Decoder of one thread; zero-initialize it. */
struct ku_decoder {
    struct ku_scratch image; /* the pixels */
    struct ku_scratch work;  /* libpng's work memory */
    char why[200];           /* what is wrong with the last image */
};
void ku_decoder_fini(struct ku_decoder *d);

/*
 * Decode a JPEG or PNG, detected by its first bytes, to RGB u8, interleaved, in d->image. The
 * result is Pillow's convert("RGB"), which torchvision uses: grey and palette images become RGB,
 * CMYK is converted by Pillow's formula, 16-bit channels lose the lower 8 bits, alpha is dropped,
 * orientation tags are ignored. A truncated or damaged JPEG is an error even if some rows could be
 * decoded.
 *
 * Errors: EINPUT with d->why and no error record (also above KU_IMAGE_PIXELS_MAX pixels); ENOMEM.
 */
KU_STATUS ku_decode(struct ku_decoder *d, const unsigned char *data, size_t bytes,
                    struct ku_pixels *out);

/* "2.1.5"; NULL: not in this build. */
const char *ku_jpeg_version(void);
const char *ku_png_version(void);

/* Called by ku_decode; one file per library. */
KU_STATUS ku_decode_jpeg(struct ku_decoder *d, const unsigned char *data, size_t bytes, int64_t *h,
                         int64_t *w);
KU_STATUS ku_decode_png(struct ku_decoder *d, const unsigned char *data, size_t bytes, int64_t *h,
                        int64_t *w);
/* Checks the sides against the limits and allocates d->image; errors: EINPUT (why), ENOMEM. */
KU_STATUS ku_decode_room(struct ku_decoder *d, int64_t h, int64_t w, int64_t bytes_each);

#endif
