/* SPDX-License-Identifier: Apache-2.0 */
#include "data/image/augment.h"

#include "base/err.h"
#include "base/math/random.h"
#include "base/str.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { STREAM = 0x696d6167, ATTEMPTS = 10, PADDING_MAX = 1024 };

int ku_crop_parse(const char *name, enum ku_crop *out)
{
    int i = ku_str_find_word("none random resized", name);
    if (i < 0)
        return KU_ERR(KUMI_EINVAL, "data: data.crop: '%s'; give none, random or resized", name);
    *out = (enum ku_crop)i;
    return KUMI_OK;
}

int ku_normalize_parse(const char *name, struct ku_augment_opts *o)
{
    /* imagenet: torchvision's values; cifar and mnist: mean and std of the training images. */
    static const struct {
        const char *name;
        int n;
        double mean[3], std[3];
    } rows[] = {{"none", 0, {0}, {0}},
                {"cifar10", 3, {0.4914, 0.4822, 0.4465}, {0.2470, 0.2435, 0.2616}},
                {"cifar100", 3, {0.5071, 0.4865, 0.4409}, {0.2673, 0.2564, 0.2762}},
                {"mnist", 1, {0.1307}, {0.3081}},
                {"imagenet", 3, {0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}},
                {"half", 1, {0.5}, {0.5}}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(name, rows[i].name) == 0) {
            o->n_mean = rows[i].n;
            memcpy(o->mean, rows[i].mean, sizeof rows[i].mean);
            memcpy(o->std, rows[i].std, sizeof rows[i].std);
            return KUMI_OK;
        }
    return KU_ERR(KUMI_EINVAL,
                  "data: data.normalize: '%s'; give none, cifar10, cifar100, mnist, imagenet or "
                  "half",
                  name);
}

void ku_augment_work_fini(struct ku_augment_work *w)
{
    ku_scratch_fini(&w->coef);
    ku_scratch_fini(&w->temp);
    ku_scratch_fini(&w->resized);
    ku_scratch_fini(&w->gray);
}

static int check_size(const struct ku_augment_opts *o, int64_t h, int64_t c, enum kumi_dtype dtype)
{
    if (o->height < 1 || o->width < 1 || o->height > KU_IMAGE_SIDE_MAX ||
        o->width > KU_IMAGE_SIDE_MAX || o->height * o->width > KU_IMAGE_PIXELS_MAX)
        return KU_ERR(KUMI_EINVAL,
                      "data: image_size: %lld x %lld; %s sides of 1 to %d and at most %d pixels",
                      (long long)o->height, (long long)o->width,
                      h ? "give" : "the images differ in size, so set it, with", KU_IMAGE_SIDE_MAX,
                      KU_IMAGE_PIXELS_MAX);
    if (o->channels != c && !((c == 1 || c == 3) && (o->channels == 1 || o->channels == 3)))
        return KU_ERR(KUMI_EINVAL, "data: channels: %d; the images have %lld", o->channels,
                      (long long)c);
    if (dtype == KUMI_F32 && (o->channels != c || o->resize || o->crop == KU_CROP_RESIZED))
        return KU_ERR(KUMI_EINVAL,
                      "data: f32 images cannot be resized or converted to grey; use u8 images, or "
                      "omit data.resize, channels and data.crop \"resized\"");
    if (o->dtype != KUMI_F32 && (o->dtype != KUMI_U8 || dtype != KUMI_U8))
        return KU_ERR(KUMI_EINVAL,
                      "data: samples of %s cannot be made from images of %s; use f32 samples",
                      kumi_dtype_name(o->dtype), kumi_dtype_name(dtype));
    return KUMI_OK;
}

static int check_crop(const struct ku_augment_opts *o, int64_t h, int64_t w)
{
    if (h && !o->resize && o->crop == KU_CROP_RANDOM &&
        (h + 2 * o->padding < o->height || w + 2 * o->padding < o->width))
        return KU_ERR(KUMI_EINVAL,
                      "data: image_size: %lld x %lld cannot be cropped from %lld x %lld with "
                      "data.padding %lld",
                      (long long)o->height, (long long)o->width, (long long)h, (long long)w,
                      (long long)o->padding);
    return KUMI_OK;
}

static int check_range(const char *key, const double range[2], double most)
{
    if (range[0] > 0.0 && range[0] <= range[1] && range[1] <= most)
        return KUMI_OK;
    return KU_ERR(KUMI_EINVAL, "data: %s: %g to %g; give ascending numbers above 0, at most %g",
                  key, range[0], range[1], most);
}

static int check_values(const struct ku_augment_opts *o)
{
    int64_t shorter = o->height < o->width ? o->height : o->width;
    if (!(o->flip >= 0.0 && o->flip <= 1.0))
        return KU_ERR(KUMI_EINVAL, "data: data.flip: %g; give a probability from 0 to 1", o->flip);
    if (o->padding < 0 || o->padding > PADDING_MAX || (o->padding > 0 && o->crop != KU_CROP_RANDOM))
        return KU_ERR(KUMI_EINVAL,
                      "data: data.padding: %lld; give 0 to %d, and only with data.crop \"random\"",
                      (long long)o->padding, PADDING_MAX);
    if (o->resize < 0 || o->resize > KU_IMAGE_SIDE_MAX || (o->resize && o->resize < shorter))
        return KU_ERR(KUMI_EINVAL,
                      "data: data.resize: %lld; give 0, or from %lld (the sample's shorter side) "
                      "to %d",
                      (long long)o->resize, (long long)shorter, KU_IMAGE_SIDE_MAX);
    KU_TRY(check_range("data.scale", o->scale, 1.0));
    KU_TRY(check_range("data.ratio", o->ratio, 100.0));
    if (o->n_mean != 0 && o->n_mean != 1 && o->n_mean != o->channels)
        return KU_ERR(KUMI_EINVAL, "data: data.normalize: %d channels; the samples have %d",
                      o->n_mean, o->channels);
    for (int i = 0; i < o->n_mean; i++)
        if (!isfinite(o->mean[i]) || !isfinite(o->std[i]) || o->std[i] <= 0.0)
            return KU_ERR(KUMI_EINVAL,
                          "data: data.normalize: mean %g, std %g; give finite numbers, std above 0",
                          o->mean[i], o->std[i]);
    return KUMI_OK;
}

int ku_augment_init(struct ku_augment *a, const struct ku_augment_opts *opts, int64_t h, int64_t w,
                    int64_t c, enum kumi_dtype dtype)
{
    struct ku_augment_opts *o = &a->o;
    memset(a, 0, sizeof *a);
    *o = *opts;
    o->height = o->height ? o->height : h;
    o->width = o->width ? o->width : w;
    o->channels = o->channels ? o->channels : (int)c;
    if (o->scale[0] == 0.0 && o->scale[1] == 0.0)
        o->scale[0] = 0.08, o->scale[1] = 1.0;
    if (o->ratio[0] == 0.0 && o->ratio[1] == 0.0)
        o->ratio[0] = 3.0 / 4.0, o->ratio[1] = 4.0 / 3.0;
    KU_TRY(check_size(o, h, c, dtype));
    KU_TRY(check_values(o));
    KU_TRY(check_crop(o, h, w));
    if (!h && !o->resize) {
        o->resize = (o->height < o->width ? o->height : o->width) * 256 / 224;
        o->resize = o->resize > KU_IMAGE_SIDE_MAX ? KU_IMAGE_SIDE_MAX : o->resize;
    }
    for (int i = 0; i < o->channels; i++) {
        int from = o->n_mean > 1 ? i : 0;
        o->mean[i] = o->n_mean ? o->mean[from] : 0.0;
        o->std[i] = o->n_mean ? o->std[from] : 1.0;
        for (int x = 0; x < 256; x++)
            a->value[i][x] = (float)((x / 255.0 - o->mean[i]) / o->std[i]);
    }
    o->n_mean = o->channels;
    for (int i = 0; i < 2; i++)
        a->log_ratio[i] = log(o->ratio[i]);
    return KUMI_OK;
}

/*
 * Geometry of one sample. The image is cut to the box, which is scaled to rows x columns; the
 * sample's top left corner is at (y, x) of the result and may lie outside:
 *
 *     image ── box (box_y, box_x, box_h, box_w) ──> rows x columns ── (y, x) ──> height x width
 */
struct place {
    int64_t box_y, box_x, box_h, box_w, rows, columns, y, x;
    int is_mirrored;
};

/*
 * An integer in [0, n). Each value takes floor or ceil(2^32 / n) of the 2^32 inputs, so
 * probabilities differ by at most n / 2^32, relatively.
 */
static int64_t below(uint32_t word, int64_t n)
{
    return (int64_t)((uint64_t)word * (uint64_t)n >> 32);
}

static double between(uint32_t word, const double range[2])
{
    return range[0] + (range[1] - range[0]) * ((double)word * 0x1p-32);
}

/*
 * e^x for |x| <= log 100, with additions and multiplications only, so that the crop does not depend
 * on the math library. Sums the series at x/64 up to the 12th power (relative error below 2^-60)
 * and squares the sum six times.
 */
static double exponential(double x)
{
    double y = x * 0x1p-6, sum = 1.0;
    for (int i = 12; i > 0; i--)
        sum = 1.0 + sum * y / i;
    for (int i = 0; i < 6; i++)
        sum *= sum;
    return sum;
}

static int64_t round_half_even(double x)
{
    double low = floor(x), rest = x - low;
    return (int64_t)low + (rest > 0.5 || (rest == 0.5 && ((int64_t)low & 1)));
}

/*
 * torchvision's RandomResizedCrop.get_params: ten attempts, then the largest centred box of an
 * admissible ratio.
 */
static void place_resized(const struct ku_augment *a, const struct ku_pixels *p, uint64_t number,
                          struct place *at)
{
    double area = (double)(p->h * p->w);
    for (uint32_t k = 1; k <= ATTEMPTS; k++) {
        struct ku_philox r = ku_philox(a->o.seed, k, STREAM, number);
        double target = area * between(r.word[0], a->o.scale);
        double ratio = exponential(between(r.word[1], a->log_ratio));
        int64_t w = round_half_even(sqrt(target * ratio)),
                h = round_half_even(sqrt(target / ratio));
        if (w < 1 || h < 1 || w > p->w || h > p->h)
            continue;
        at->box_h = h;
        at->box_w = w;
        at->box_y = below(r.word[2], p->h - h + 1);
        at->box_x = below(r.word[3], p->w - w + 1);
        return;
    }
    double ratio = (double)p->w / (double)p->h;
    if (ratio < a->o.ratio[0])
        at->box_h = round_half_even((double)p->w / a->o.ratio[0]);
    else if (ratio > a->o.ratio[1])
        at->box_w = round_half_even((double)p->h * a->o.ratio[1]);
    at->box_h = at->box_h < 1 ? 1 : at->box_h > p->h ? p->h : at->box_h;
    at->box_w = at->box_w < 1 ? 1 : at->box_w > p->w ? p->w : at->box_w;
    at->box_y = (p->h - at->box_h) / 2;
    at->box_x = (p->w - at->box_w) / 2;
}

/*
 * CenterCrop's offset: half the difference, rounded to even. For a smaller image the extra zero of
 * an odd difference is at the end.
 */
static int64_t center(int64_t has, int64_t wants)
{
    return has >= wants ? round_half_even((double)(has - wants) / 2.0) : -((wants - has) / 2);
}

static int place_sample(const struct ku_augment *a, const struct ku_pixels *p, int64_t number,
                        struct place *at, char *why, size_t why_bytes)
{
    const struct ku_augment_opts *o = &a->o;
    *at = (struct place){0, 0, p->h, p->w, p->h, p->w, 0, 0, 0};
    struct ku_philox r = {{0}};
    if (number >= 0) {
        r = ku_philox(o->seed, 0, STREAM, (uint64_t)number);
        at->is_mirrored = (double)r.word[2] * 0x1p-32 < o->flip;
    }
    if (number >= 0 && o->crop == KU_CROP_RESIZED) {
        place_resized(a, p, (uint64_t)number, at);
        at->rows = o->height;
        at->columns = o->width;
        return KUMI_OK;
    }
    if (o->resize) {
        at->rows = p->h <= p->w ? o->resize : o->resize * p->h / p->w;
        at->columns = p->h <= p->w ? o->resize * p->w / p->h : o->resize;
    }
    if (number < 0 || o->crop == KU_CROP_NONE) {
        at->y = center(at->rows, o->height);
        at->x = center(at->columns, o->width);
        return KUMI_OK;
    }
    int64_t room_y = at->rows + 2 * o->padding - o->height,
            room_x = at->columns + 2 * o->padding - o->width;
    if (room_y < 0 || room_x < 0) {
        snprintf(why, why_bytes, "%lld x %lld pixels, too few for a crop of %lld x %lld",
                 (long long)p->w, (long long)p->h, (long long)o->width, (long long)o->height);
        return KUMI_EINPUT;
    }
    at->y = below(r.word[0], room_y + 1) - o->padding;
    at->x = below(r.word[1], room_x + 1) - o->padding;
    return KUMI_OK;
}

/* Columns [from, to) of the sample lie in the image; the others are zero. */
struct span {
    int64_t from, to;
};
static struct span span_of(int64_t at, int64_t has, int64_t wants)
{
    int64_t from = at < 0 ? -at : 0, to = has - at;
    to = to > wants ? wants : to < 0 ? 0 : to;
    return (struct span){from > to ? to : from, to};
}

static void put_f32(const struct ku_augment *a, const struct ku_pixels *p, const void *in,
                    float *to, int64_t step, int64_t n, int is_zero)
{
    const int64_t channels = a->o.channels, sx = p->sx, sc = p->sc;
    const unsigned char *u = in;
    const float *f = in;
    if (!is_zero && p->dtype == KUMI_U8 && channels == 3) { /* the common case, unrolled */
        for (int64_t i = 0; i < n; i++, u += sx, to += step) {
            to[0] = a->value[0][u[0]];
            to[1] = a->value[1][u[sc]];
            to[2] = a->value[2][u[2 * sc]];
        }
        return;
    }
    for (int64_t i = 0; i < n; i++, to += step)
        for (int64_t c = 0; c < channels; c++)
            if (p->dtype == KUMI_U8)
                to[c] = a->value[c][is_zero ? 0 : u[i * sx + c * sc]];
            else
                to[c] = (float)(((is_zero ? 0.0 : (double)f[i * sx + c * sc]) - a->o.mean[c]) /
                                a->o.std[c]);
}

static void put_u8(const struct ku_augment *a, const struct ku_pixels *p, const void *in,
                   unsigned char *to, int64_t step, int64_t n, int is_zero)
{
    const unsigned char *u = in;
    for (int64_t i = 0; i < n; i++, to += step)
        for (int64_t c = 0; c < a->o.channels; c++)
            to[c] = is_zero ? 0 : u[i * p->sx + c * p->sc];
}

/* Writes the sample row by row: zeros, pixels, zeros; from right to left if mirrored. */
static void put(const struct ku_augment *a, const struct ku_pixels *p, const struct place *at,
                void *out)
{
    int64_t h = a->o.height, w = a->o.width, channels = a->o.channels;
    int64_t step = at->is_mirrored ? -channels : channels;
    int64_t each = p->dtype == KUMI_U8 ? 1 : (int64_t)sizeof(float);
    struct span rows = span_of(at->y, p->h, h), columns = span_of(at->x, p->w, w);
    for (int64_t y = 0; y < h; y++) {
        int is_in = y >= rows.from && y < rows.to;
        struct span s = is_in ? columns : (struct span){w, w};
        const int64_t part[4] = {0, s.from, s.to, w};
        const unsigned char *row = p->data;
        if (is_in)
            row += ((at->y + y) * p->sy + (at->x + s.from) * p->sx) * each;
        for (int k = 0; k < 3; k++) {
            int64_t n = part[k + 1] - part[k];
            int64_t to = (y * w + (at->is_mirrored ? w - 1 - part[k] : part[k])) * channels;
            if (n > 0 && a->o.dtype == KUMI_F32)
                put_f32(a, p, row, (float *)out + to, step, n, k != 1);
            else if (n > 0)
                put_u8(a, p, row, (unsigned char *)out + to, step, n, k != 1);
        }
    }
}

/* Scales only the part of the image that the sample shows, and moves the geometry to it. */
static int scale(const struct ku_augment *a, const struct place *at, struct ku_pixels *p,
                 struct place *moved, struct ku_augment_work *w)
{
    struct span rows = span_of(at->y, at->rows, a->o.height),
                columns = span_of(at->x, at->columns, a->o.width);
    struct ku_resize r = {at->rows,
                          at->columns,
                          at->y + rows.from,
                          at->x + columns.from,
                          rows.to - rows.from,
                          columns.to - columns.from};
    if (r.h < 1 || r.w < 1) { /* the sample shows only padding */
        p->h = p->w = 0;
        return KUMI_OK;
    }
    KU_TRY(ku_scratch_need(&w->resized, (size_t)(r.h * r.w * p->c)));
    KU_TRY(ku_pixels_resize(p, &r, &w->coef, &w->temp, w->resized.data));
    *p = (struct ku_pixels){w->resized.data, KUMI_U8, r.h, r.w, p->c, r.w * p->c, p->c, 1};
    moved->y = -rows.from;
    moved->x = -columns.from;
    return KUMI_OK;
}

/* Converts RGB to grey, or grey to RGB by reading the one plane three times (sc = 0). */
static int change_channels(const struct ku_augment *a, struct ku_pixels *p,
                           struct ku_augment_work *w)
{
    if (p->c == a->o.channels)
        return KUMI_OK;
    if (p->c == 1) {
        p->c = 3;
        p->sc = 0;
        return KUMI_OK;
    }
    size_t plane = (size_t)(p->h * p->w);
    KU_TRY(ku_scratch_need(&w->gray, 4 * plane));
    unsigned char *rgb = w->gray.data;
    for (int64_t y = 0; y < p->h; y++)
        for (int64_t x = 0; x < p->w; x++, rgb += 3)
            for (int c = 0; c < 3; c++)
                rgb[c] = ((const unsigned char *)p->data)[y * p->sy + x * p->sx + c * p->sc];
    ku_pixels_gray(w->gray.data, p->h * p->w, w->gray.data + 3 * plane);
    *p = (struct ku_pixels){w->gray.data + 3 * plane, KUMI_U8, p->h, p->w, 1, p->w, 1, 1};
    return KUMI_OK;
}

int ku_augment(const struct ku_augment *a, const struct ku_pixels *image, int64_t number,
               struct ku_augment_work *w, void *out)
{
    struct place at;
    struct ku_pixels p = *image;
    w->why[0] = '\0';
    KU_TRY(place_sample(a, &p, number, &at, w->why, sizeof w->why));
    KU_TRY(change_channels(a, &p, w));
    p.data = (const unsigned char *)p.data +
             (at.box_y * p.sy + at.box_x * p.sx) * (p.dtype == KUMI_U8 ? 1 : 4);
    p.h = at.box_h;
    p.w = at.box_w;
    struct place moved = at;
    if (at.rows != p.h || at.columns != p.w)
        KU_TRY(scale(a, &at, &p, &moved, w));
    put(a, &p, &moved, out);
    return KUMI_OK;
}
