/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DATA_IMAGE_PIXELS_H
#define KU_DATA_IMAGE_PIXELS_H

#include "kumi/dtype.h"

#include <stddef.h>
#include <stdint.h>

/*
 * Limits of images. A side is what fits a u16 with room for products in i32 and i64; the pixels are
 * 192 MiB of RGB, five times the largest image of ImageNet, so that a small file cannot ask for
 * more memory than a machine has; an encoded image is no larger than what it decodes to.
 */
enum {
    KU_IMAGE_SIDE_MAX = 16384,
    KU_IMAGE_PIXELS_MAX = 1 << 26,
    KU_IMAGE_BYTES_MAX = 3 << 26,
    KU_IMAGE_CHANNELS_MAX = 16
};

/* An image: element (y, x, c) is data[y sy + x sx + c sc]. u8 or f32. */
struct ku_pixels {
    const void *data;
    enum kumi_dtype dtype;
    int64_t h, w, c, sy, sx, sc;
};

/* Memory that grows to the most that was asked of it and is then used again. */
struct ku_scratch {
    unsigned char *data;
    size_t bytes;
};
/* Makes room, without what was there before. 0 or KUMI_ENOMEM. */
int ku_scratch_need(struct ku_scratch *b, size_t bytes);
void ku_scratch_fini(struct ku_scratch *b);

/*
 * Part of an image scaled with a triangle filter: Pillow's BILINEAR, byte for byte. Output pixel x
 * of `out_w` is the weighted mean of the input around (x + 1/2) s, s = in_w / out_w, with weights
 * falling linearly to 0 at distance max(1, s) (so a smaller image is smoothed), normalised and
 * rounded to 22 bits; rows first, rounded to u8, then columns. A pass that changes no length is the
 * identity.
 *
 *   in     u8
 *   y, x, h, w   the part of the out_h x out_w result that is computed
 *   coef   used for the weights; temp: for the scaled rows
 *   out    h w in->c bytes, interleaved
 *
 * Errors: ENOMEM.
 */
struct ku_resize {
    int64_t out_h, out_w, y, x, h, w;
};
int ku_pixels_resize(const struct ku_pixels *in, const struct ku_resize *r, struct ku_scratch *coef,
                     struct ku_scratch *temp, unsigned char *out);

/* u8 RGB, interleaved, to its luma: ITU-R 601 in 16 bits, as Pillow's "L". In place is fine. */
void ku_pixels_gray(const unsigned char *rgb, int64_t n, unsigned char *gray);

#endif
