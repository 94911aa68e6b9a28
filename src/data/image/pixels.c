/* SPDX-License-Identifier: Apache-2.0 */
#include "data/image/pixels.h"

#include "base/err.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

/* Weights have 22 fractional bits: 255 times their sum plus the rounding half stays below 2^31. */
enum { WEIGHT_BITS = 22 };

int ku_scratch_need(struct ku_scratch *b, size_t bytes)
{
    if (b->bytes >= bytes)
        return KUMI_OK;
    unsigned char *data = ku_malloc_aligned(64, (bytes + 63) / 64 * 64);
    if (!data)
        return KUMI_ENOMEM;
    ku_free(b->data);
    *b = (struct ku_scratch){data, bytes};
    return KUMI_OK;
}

void ku_scratch_fini(struct ku_scratch *b)
{
    ku_free(b->data);
    *b = (struct ku_scratch){0};
}

void ku_pixels_gray(const unsigned char *rgb, int64_t n, unsigned char *gray)
{
    for (int64_t i = 0; i < n; i++)
        gray[i] = (unsigned char)((rgb[3 * i] * 19595u + rgb[3 * i + 1] * 38470u +
                                   rgb[3 * i + 2] * 7471u + 0x8000u) >>
                                  16);
}

/*
 * Weights of one dimension. Output i is the sum over k < n[i] of weight[i n_max + k] times input
 * first[i] + k.
 */
struct weights {
    int32_t *first, *n, *weight;
    int64_t n_max;
};

static int64_t most_weights(int64_t in, int64_t out)
{
    double scale = (double)in / (double)out;
    return 2 * (int64_t)ceil(scale < 1.0 ? 1.0 : scale) + 1;
}

static void make_weights(int64_t in, int64_t out, int64_t from, int64_t count, struct weights *w)
{
    double scale = (double)in / (double)out, support = scale < 1.0 ? 1.0 : scale;
    for (int64_t i = 0; i < count; i++) {
        double center = ((double)(from + i) + 0.5) * scale, sum = 0.0;
        int64_t first = (int64_t)(center - support + 0.5), end = (int64_t)(center + support + 0.5);
        first = center - support + 0.5 < 0.0 ? 0 : first;
        end = end > in ? in : end;
        for (int64_t k = first; k < end; k++) {
            double d = fabs(((double)k - center + 0.5) * (1.0 / support));
            sum += d < 1.0 ? 1.0 - d : 0.0;
        }
        for (int64_t k = first; k < end; k++) {
            double d = fabs(((double)k - center + 0.5) * (1.0 / support));
            double part = (d < 1.0 ? 1.0 - d : 0.0) / sum;
            w->weight[i * w->n_max + k - first] =
                (int32_t)(0.5 + part * (double)(1 << WEIGHT_BITS));
        }
        w->first[i] = (int32_t)first;
        w->n[i] = (int32_t)(end - first);
    }
}

/* Computes the weights of both dimensions, stored in `coef`. */
static int both_weights(const struct ku_pixels *in, const struct ku_resize *r,
                        struct ku_scratch *coef, struct weights *across, struct weights *down)
{
    across->n_max = most_weights(in->w, r->out_w);
    down->n_max = most_weights(in->h, r->out_h);
    size_t a = (size_t)(r->w * (across->n_max + 2)), d = (size_t)(r->h * (down->n_max + 2));
    KU_TRY(ku_scratch_need(coef, (a + d) * sizeof(int32_t)));
    int32_t *at = (int32_t *)(void *)coef->data;
    *across = (struct weights){at, at + r->w, at + 2 * r->w, across->n_max};
    at += a;
    *down = (struct weights){at, at + r->h, at + 2 * r->h, down->n_max};
    make_weights(in->w, r->out_w, r->x, r->w, across);
    make_weights(in->h, r->out_h, r->y, r->h, down);
    return KUMI_OK;
}

/* Scales one input row to `count` output pixels. */
static void scale_row(const unsigned char *row, const struct ku_pixels *in, const struct weights *w,
                      int64_t count, unsigned char *out)
{
    const int32_t half = 1 << (WEIGHT_BITS - 1);
    for (int64_t i = 0; i < count; i++) {
        const unsigned char *from = row + w->first[i] * in->sx;
        const int32_t *weight = w->weight + i * w->n_max;
        if (in->c == 3) {
            int32_t r = half, g = half, b = half;
            for (int32_t k = 0; k < w->n[i]; k++, from += in->sx) {
                r += weight[k] * from[0];
                g += weight[k] * from[in->sc];
                b += weight[k] * from[2 * in->sc];
            }
            out[3 * i] = (unsigned char)(r >> WEIGHT_BITS);
            out[3 * i + 1] = (unsigned char)(g >> WEIGHT_BITS);
            out[3 * i + 2] = (unsigned char)(b >> WEIGHT_BITS);
            continue;
        }
        for (int64_t c = 0; c < in->c; c++) {
            int32_t sum = half;
            for (int32_t k = 0; k < w->n[i]; k++)
                sum += weight[k] * from[k * in->sx + c * in->sc];
            out[i * in->c + c] = (unsigned char)(sum >> WEIGHT_BITS);
        }
    }
}

/*
 * No clipping is needed. Each weight is off by at most half a unit of 2^-22, and at most `side`
 * weights are nonzero, so a sum is at most 255 * 2^22 + 255 * side / 2, and with the rounding half
 * it stays below 256 * 2^22 = 2^30.
 */
_Static_assert(255 * (KU_IMAGE_SIDE_MAX / 2) < (1 << (WEIGHT_BITS - 1)), "a sum fits u8");

int ku_pixels_resize(const struct ku_pixels *in, const struct ku_resize *r, struct ku_scratch *coef,
                     struct ku_scratch *temp, unsigned char *out)
{
    struct weights across, down;
    KU_ASSERT(in->dtype == KUMI_U8 && r->h > 0 && r->w > 0);
    KU_TRY(both_weights(in, r, coef, &across, &down));
    int64_t row = r->w * in->c, top = down.first[0];
    int64_t rows = down.first[r->h - 1] + down.n[r->h - 1] - top;
    size_t sums = (size_t)row * sizeof(int32_t);
    KU_TRY(ku_scratch_need(temp, sums + (size_t)(rows * row)));
    int32_t *sum = (int32_t *)(void *)temp->data;
    unsigned char *scaled = temp->data + sums;
    for (int64_t y = 0; y < rows; y++)
        scale_row((const unsigned char *)in->data + (top + y) * in->sy, in, &across, r->w,
                  scaled + y * row);
    for (int64_t y = 0; y < r->h; y++) {
        for (int64_t x = 0; x < row; x++)
            sum[x] = 1 << (WEIGHT_BITS - 1);
        for (int32_t k = 0; k < down.n[y]; k++) {
            const unsigned char *from = scaled + (down.first[y] + k - top) * row;
            int32_t weight = down.weight[y * down.n_max + k];
            for (int64_t x = 0; x < row; x++)
                sum[x] += weight * from[x];
        }
        for (int64_t x = 0; x < row; x++)
            out[y * row + x] = (unsigned char)(sum[x] >> WEIGHT_BITS);
    }
    return KUMI_OK;
}
