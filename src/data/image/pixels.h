/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_IMAGE_PIXELS_H
#define KU_DATA_IMAGE_PIXELS_H

#include "base/err.h"
#include "kumi/dtype.h"

#include <stddef.h>
#include <stdint.h>

/*
 * Limits of images. SIDE_MAX: fits u16, and products of sides fit i32 and i64. PIXELS_MAX: 192 MiB
 * of RGB, five times the largest image of ImageNet; bounds the memory that a small file can
 * request. BYTES_MAX: an encoded image is not larger than its decoded form.
 */
enum {
    KU_IMAGE_SIDE_MAX = 16384,
    KU_IMAGE_PIXELS_MAX = 1 << 26,
    KU_IMAGE_BYTES_MAX = 3 << 26,
    KU_IMAGE_CHANNELS_MAX = 16
};

/* An image, u8 or f32: element (y, x, c) is data[y sy + x sx + c sc]. */
struct ku_pixels {
    const void *data;
    enum kumi_dtype dtype;
    int64_t h, w, c, sy, sx, sc;
};

/* A reusable buffer that grows to the largest size requested. */
struct ku_scratch {
    unsigned char *data;
    size_t bytes;
};
/* Makes room for `bytes`; discards the contents if it grows; returns 0 or ENOMEM. */
KU_STATUS ku_scratch_need(struct ku_scratch *b, size_t bytes);
void ku_scratch_fini(struct ku_scratch *b);

/*
 * Scale an image with a triangle filter and compute a part of the result; equal to Pillow's
 * BILINEAR byte for byte. Output pixel x of `out_w` is the weighted mean of the input around (x +
 * 1/2) s, s = in_w / out_w. Weights fall linearly to 0 at distance max(1, s), so reduction smooths;
 * they are normalized and rounded to 22 bits. Rows are scaled first and rounded to u8, then
 * columns. A pass that keeps the length is the identity.
 *
 *   in           u8
 *   y, x, h, w   the part of the out_h x out_w result to compute
 *   coef, temp   buffers for the weights and for the scaled rows
 *   out          h * w * in->c bytes, interleaved
 *
 * Errors: ENOMEM.
 */
struct ku_resize {
    int64_t out_h, out_w, y, x, h, w;
};
KU_STATUS ku_pixels_resize(const struct ku_pixels *in, const struct ku_resize *r,
                           struct ku_scratch *coef, struct ku_scratch *temp, unsigned char *out);

/*
 * Converts interleaved u8 RGB to luma: ITU-R 601 in 16-bit fixed point, as Pillow's "L". May run in
 * place.
 */
void ku_pixels_gray(const unsigned char *rgb, int64_t n, unsigned char *gray);

#endif
