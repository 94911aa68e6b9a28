/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_IMAGE_DECODE_H
#define KU_DATA_IMAGE_DECODE_H

#include "data/image/pixels.h"

/* Where an image is decoded. All-zero at first; each thread has its own. */
struct ku_decoder {
    struct ku_scratch image; /* the pixels */
    struct ku_scratch work;  /* libpng's own memory */
    char why[200];           /* what is wrong with the last image */
};
void ku_decoder_fini(struct ku_decoder *d);

/*
 * Decodes a JPEG or PNG, known by its first bytes, to RGB, u8, interleaved, in d->image: grey and
 * palettes become RGB, CMYK by Pillow's rule, 16 bits lose the lower 8, alpha is dropped,
 * orientation tags are ignored: what Pillow's convert("RGB") gives torchvision. A JPEG that ends
 * early or whose data are damaged is an error, however much of it could be decoded.
 *
 * Errors: EINPUT with d->why and no record; ENOMEM. Never more than KU_IMAGE_PIXELS_MAX pixels.
 */
int ku_decode(struct ku_decoder *d, const unsigned char *data, size_t bytes, struct ku_pixels *out);

/* "2.1.5"; NULL: this build has none. */
const char *ku_jpeg_version(void);
const char *ku_png_version(void);

/* Behind ku_decode: one library a file. */
int ku_decode_jpeg(struct ku_decoder *d, const unsigned char *data, size_t bytes, int64_t *h,
                   int64_t *w);
int ku_decode_png(struct ku_decoder *d, const unsigned char *data, size_t bytes, int64_t *h,
                  int64_t *w);
/* Checks sides against the limits and makes room for the pixels. EINPUT (why), ENOMEM. */
int ku_decode_room(struct ku_decoder *d, int64_t h, int64_t w, int64_t bytes_each);

#endif
