/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor data */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "data/image/augment.h"

#define FIXTURES KUMI_SOURCE_DIR "/tests/fixtures/images/"
enum { W = 19, H = 13 };

static unsigned char *slurp(const char *name, size_t expected)
{
    char path[512], *data;
    size_t bytes;
    snprintf(path, sizeof path, FIXTURES "%s", name);
    if (ku_os_slurp(path, 1 << 20, &data, &bytes) < 0)
        fail_msg("%s: %s", path, ku_os_why());
    assert_int_equal(bytes, expected);
    return (unsigned char *)data;
}

static struct ku_pixels interleaved(const void *data, int64_t h, int64_t w, int64_t c)
{
    return (struct ku_pixels){data, KUMI_U8, h, w, c, w * c, c, 1};
}

/* The same image as planes. */
static struct ku_pixels planes(const unsigned char *from, unsigned char *to, int64_t h, int64_t w)
{
    for (int64_t i = 0; i < h * w; i++)
        for (int64_t c = 0; c < 3; c++)
            to[c * h * w + i] = from[3 * i + c];
    return (struct ku_pixels){to, KUMI_U8, h, w, 3, w, 1, h * w};
}

/* Whole and in parts, from pixels side by side and from planes: Pillow's bytes. */
static void resizes_as_pillow(void **state)
{
    static const int64_t sizes[][2] = {{7, 5},  {19, 13}, {38, 26}, {5, 40},
                                       {64, 3}, {1, 1},   {20, 13}, {100, 70}};
    unsigned char *source = slurp("source.rgb", 3 * H * W), plane[3 * H * W], out[3 * 100 * 70];
    struct ku_scratch coef = {0}, temp = {0};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int64_t w = sizes[i][0], h = sizes[i][1];
        char name[64];
        snprintf(name, sizeof name, "resize_%dx%d.rgb", (int)w, (int)h);
        unsigned char *expected = slurp(name, (size_t)(3 * w * h));
        for (int form = 0; form < 2; form++) {
            struct ku_pixels p = form ? planes(source, plane, H, W) : interleaved(source, H, W, 3);
            struct ku_resize all = {h, w, 0, 0, h, w};
            struct ku_resize part = {h, w, h / 3, w / 4, h - h / 3, w - w / 4 - w / 5};
            assert_int_equal(ku_pixels_resize(&p, &all, &coef, &temp, out), 0);
            assert_memory_equal(out, expected, (size_t)(3 * w * h));
            assert_int_equal(ku_pixels_resize(&p, &part, &coef, &temp, out), 0);
            for (int64_t y = 0; y < part.h; y++)
                assert_memory_equal(out + y * part.w * 3,
                                    expected + ((part.y + y) * w + part.x) * 3,
                                    (size_t)(part.w * 3));
        }
        ku_free(expected);
    }
    unsigned char gray[H * W], *luma = slurp("source.gray", H * W);
    ku_pixels_gray(source, H * W, gray);
    assert_memory_equal(gray, luma, H * W);
    ku_free(luma);
    ku_free(source);
    ku_scratch_fini(&coef);
    ku_scratch_fini(&temp);
}

/* A gradient over the longest input there is stays within u8 at both ends. */
static void resizes_the_extremes(void **state)
{
    enum { LONG = KU_IMAGE_SIDE_MAX };
    unsigned char *in = malloc(LONG), out[1024];
    struct ku_scratch coef = {0}, temp = {0};
    (void)state;
    for (int fill = 0; fill < 256; fill += 255)
        for (int64_t w = 1; w <= 1000; w = w * 3 + 1) {
            memset(in, fill, LONG);
            struct ku_pixels p = interleaved(in, 1, LONG, 1);
            struct ku_resize r = {1, w, 0, 0, 1, w};
            assert_int_equal(ku_pixels_resize(&p, &r, &coef, &temp, out), 0);
            for (int64_t x = 0; x < w; x++)
                assert_int_equal(out[x], fill);
        }
    free(in);
    ku_scratch_fini(&coef);
    ku_scratch_fini(&temp);
}

/* A 6 x 5 image whose pixels say where they are: y, x + 100, y + x. */
enum { SMALL_H = 5, SMALL_W = 6 };
static void make_small(unsigned char image[SMALL_H * SMALL_W * 3])
{
    for (int i = 0; i < SMALL_H * SMALL_W; i++) {
        image[3 * i] = (unsigned char)(i / SMALL_W + 1);
        image[3 * i + 1] = (unsigned char)(i % SMALL_W + 100);
        image[3 * i + 2] = (unsigned char)(i / SMALL_W + i % SMALL_W);
    }
}

/* Where the sample was cut and whether it is mirrored, from its pixels; each is held against the
 * definition, zeros around included. */
static void find_crop(const unsigned char *out, const unsigned char *image, int64_t h, int64_t w,
                      int64_t padding, int found[3])
{
    for (int flip = 0; flip < 2; flip++)
        for (int64_t y = -padding; y <= SMALL_H + padding - h; y++)
            for (int64_t x = -padding; x <= SMALL_W + padding - w; x++) {
                int same = 1;
                for (int64_t i = 0; i < h * w * 3 && same; i++) {
                    int64_t row = y + i / 3 / w, column = i / 3 % w, c = i % 3;
                    column = x + (flip ? w - 1 - column : column);
                    int in = row >= 0 && row < SMALL_H && column >= 0 && column < SMALL_W;
                    same = out[i] == (in ? image[(row * SMALL_W + column) * 3 + c] : 0);
                }
                if (same) {
                    found[0] = (int)(y + padding), found[1] = (int)(x + padding), found[2] = flip;
                    return;
                }
            }
    fail_msg("not a crop of the image");
}

/* Every offset and both directions occur, about as often as each other, by number alone. */
static void crops_at_random(void **state)
{
    enum { N = 20000 };
    struct ku_augment_opts o = {.height = 5,
                                .width = 4,
                                .crop = KU_CROP_RANDOM,
                                .padding = 1,
                                .flip = 0.25,
                                .dtype = KUMI_U8,
                                .seed = 3};
    unsigned char image[SMALL_H * SMALL_W * 3], out[5 * 4 * 3], again[5 * 4 * 3];
    int count[3][5] = {{0}}, n_flipped = 0, n_moved = 0;
    struct ku_augment a, other;
    struct ku_augment_work w = {0};
    (void)state;
    make_small(image);
    struct ku_pixels p = interleaved(image, SMALL_H, SMALL_W, 3);
    assert_int_equal(ku_augment_init(&a, &o, SMALL_H, SMALL_W, 3, KUMI_U8), 0);
    o.seed = 4;
    assert_int_equal(ku_augment_init(&other, &o, SMALL_H, SMALL_W, 3, KUMI_U8), 0);
    for (int64_t i = 0; i < N; i++) {
        int found[3] = {0};
        assert_int_equal(ku_augment(&a, &p, i, &w, out), 0);
        assert_int_equal(ku_augment(&a, &p, i, &w, again), 0);
        assert_memory_equal(out, again, sizeof out);
        assert_int_equal(ku_augment(&other, &p, i, &w, again), 0);
        n_moved += memcmp(out, again, sizeof out) != 0;
        find_crop(out, image, 5, 4, 1, found);
        count[0][found[0]]++;
        count[1][found[1]]++;
        n_flipped += found[2];
    }
    for (int k = 0; k < 3; k++) /* 5 + 2 - 5: three offsets down, five across; 5 sigma */
        assert_in_range(count[0][k], N / 3 - 350, N / 3 + 350);
    for (int k = 0; k < 5; k++)
        assert_in_range(count[1][k], N / 5 - 300, N / 5 + 300);
    assert_in_range(n_flipped, N / 4 - 320, N / 4 + 320);
    assert_true(n_moved > N * 3 / 4);
    ku_augment_work_fini(&w);
}

/* torchvision's CenterCrop: half the difference, halves to even; small images amid zeros. */
static void evaluates_the_centre(void **state)
{
    static const struct {
        int64_t h, w, y, x; /* sample; where it begins in the image */
    } rows[] = {{5, 6, 0, 0}, {4, 5, 0, 0},  {2, 3, 2, 2},   {3, 2, 1, 2}, {1, 1, 2, 2},
                {2, 1, 2, 2}, {7, 6, -1, 0}, {8, 9, -1, -1}, {6, 4, 0, 1}, {5, 3, 0, 2}};
    unsigned char image[SMALL_H * SMALL_W * 3], out[9 * 9 * 3];
    struct ku_augment_work w = {0};
    (void)state;
    make_small(image);
    struct ku_pixels p = interleaved(image, SMALL_H, SMALL_W, 3);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct ku_augment_opts o = {
            .height = rows[i].h, .width = rows[i].w, .flip = 1.0, .dtype = KUMI_U8};
        struct ku_augment a;
        assert_int_equal(ku_augment_init(&a, &o, SMALL_H, SMALL_W, 3, KUMI_U8), 0);
        assert_int_equal(ku_augment(&a, &p, -1, &w, out), 0);
        for (int64_t k = 0; k < o.height * o.width; k++) {
            int64_t y = rows[i].y + k / o.width, x = rows[i].x + k % o.width;
            int in = y >= 0 && y < SMALL_H && x >= 0 && x < SMALL_W;
            for (int c = 0; c < 3; c++)
                if (out[3 * k + c] != (in ? image[(y * SMALL_W + x) * 3 + c] : 0))
                    fail_msg("row %zu: pixel %d", i, (int)k);
        }
    }
    ku_augment_work_fini(&w);
}

/* Resize to 26 (38 x 26), then the middle 20 x 24 of it. */
static void evaluates_resized(void **state)
{
    unsigned char *source = slurp("source.rgb", 3 * H * W),
                  *big = slurp("resize_38x26.rgb", 3 * 38 * 26), out[20 * 24 * 3];
    struct ku_augment_opts o = {.height = 20, .width = 24, .resize = 26, .dtype = KUMI_U8};
    struct ku_augment a;
    struct ku_augment_work w = {0};
    (void)state;
    struct ku_pixels p = interleaved(source, H, W, 3);
    assert_int_equal(ku_augment_init(&a, &o, 0, 0, 3, KUMI_U8), 0);
    assert_int_equal(ku_augment(&a, &p, -1, &w, out), 0);
    for (int y = 0; y < 20; y++)
        assert_memory_equal(out + y * 24 * 3, big + ((y + 3) * 38 + 7) * 3, 24 * 3);
    o = (struct ku_augment_opts){.height = 224, .width = 224};
    assert_int_equal(ku_augment_init(&a, &o, 0, 0, 3, KUMI_U8), 0);
    assert_int_equal(a.o.resize, 256);
    ku_free(source);
    ku_free(big);
    ku_augment_work_fini(&w);
}

/* RandomResizedCrop of an image whose red is its row, green its column (times 2): the sample's
 * means say which box it was. Area and ratio lie where they may, and all over it. */
static void crops_resized(void **state)
{
    enum { SIDE = 100, OUT = 10, N = 3000 };
    unsigned char *image = malloc(SIDE * SIDE * 3), out[OUT * OUT * 3];
    struct ku_augment_opts o = {
        .height = OUT, .width = OUT, .crop = KU_CROP_RESIZED, .dtype = KUMI_U8, .seed = 9};
    struct ku_augment a;
    struct ku_augment_work w = {0};
    double least = 1.0, most = 0.0, low = 10.0, high = 0.0, sum = 0.0;
    (void)state;
    for (int i = 0; i < SIDE * SIDE; i++) {
        image[3 * i] = (unsigned char)(2 * (i / SIDE));
        image[3 * i + 1] = (unsigned char)(2 * (i % SIDE));
        image[3 * i + 2] = 77;
    }
    struct ku_pixels p = interleaved(image, SIDE, SIDE, 3);
    assert_int_equal(ku_augment_init(&a, &o, 0, 0, 3, KUMI_U8), 0);
    for (int64_t i = 0; i < N; i++) {
        assert_int_equal(ku_augment(&a, &p, i, &w, out), 0);
        /* Neighbours differ by twice the box's side over OUT; the ends are a bit closer. */
        double h = (out[3 * OUT * 8] - out[3 * OUT]) / 2.0 * OUT / 7,
               wide = (out[3 * 8 + 1] - out[3 + 1]) / 2.0 * OUT / 7;
        double area = h * wide / (SIDE * SIDE), ratio = wide / h;
        assert_int_equal(out[2], 77);
        least = area < least ? area : least;
        most = area > most ? area : most;
        low = ratio < low ? ratio : low;
        high = ratio > high ? ratio : high;
        sum += area;
    }
    assert_true(least > 0.06 && least < 0.1 && most > 0.85 && most < 1.05);
    assert_true(low > 0.7 && low < 0.78 && high < 1.43 && high > 1.28);
    /* 0.4775, not 0.54: what does not fit is drawn again. */
    assert_true(fabs(sum / N - 0.4775) < 0.02);
    /* No box of that ratio fits a thin image: the middle, as wide as the ratio lets it be. */
    struct ku_pixels thin = interleaved(image, 3, SIDE, 3);
    o.ratio[0] = 0.9, o.ratio[1] = 1.0, o.scale[0] = 0.9, o.scale[1] = 1.0;
    assert_int_equal(ku_augment_init(&a, &o, 0, 0, 3, KUMI_U8), 0);
    assert_int_equal(ku_augment(&a, &thin, 1, &w, out), 0);
    assert_in_range(out[1], 2 * 48, 2 * 49);
    assert_in_range(out[3 * (OUT - 1) + 1], 2 * 49, 2 * 50);
    free(image);
    ku_augment_work_fini(&w);
}

static void normalises(void **state)
{
    static const char *const names[] = {"none", "cifar10", "cifar100", "mnist", "imagenet", "half"};
    unsigned char image[SMALL_H * SMALL_W * 3];
    float out[SMALL_H * SMALL_W * 3];
    struct ku_augment_work w = {0};
    (void)state;
    make_small(image);
    struct ku_pixels p = interleaved(image, SMALL_H, SMALL_W, 3);
    for (int i = 0; i < 6; i++) {
        struct ku_augment_opts o = {0};
        struct ku_augment a;
        assert_int_equal(ku_normalize_parse(names[i], &o), 0);
        assert_int_equal(ku_augment_init(&a, &o, SMALL_H, SMALL_W, 3, KUMI_U8), 0);
        assert_int_equal(ku_augment(&a, &p, 5, &w, out), 0);
        for (int k = 0; k < SMALL_H * SMALL_W * 3; k++) {
            int c = o.n_mean > 1 ? k % 3 : 0;
            double mean = o.n_mean ? o.mean[c] : 0.0, std = o.n_mean ? o.std[c] : 1.0;
            assert_true(out[k] == (float)((image[k] / 255.0 - mean) / std));
        }
    }
    ku_augment_work_fini(&w);
}

/* f32 images are cropped and normalised without a division by 255; grey ones become RGB; RGB grey.
 */
static void takes_other_forms(void **state)
{
    float image[6] = {0.5f, -1.0f, 2.0f, 3.5f, 0.0f, 1.0f}, out[18];
    unsigned char rgb[6] = {10, 200, 30, 255, 0, 7};
    struct ku_augment_opts o = {.n_mean = 1, .mean = {0.25}, .std = {2.0}};
    struct ku_augment a;
    struct ku_augment_work w = {0};
    struct ku_pixels p = {image, KUMI_F32, 2, 3, 1, 3, 1, 1};
    (void)state;
    assert_int_equal(ku_augment_init(&a, &o, 2, 3, 1, KUMI_F32), 0);
    assert_int_equal(ku_augment(&a, &p, -1, &w, out), 0);
    for (int i = 0; i < 6; i++)
        assert_true(out[i] == (float)(((double)image[i] - 0.25) / 2.0));
    o = (struct ku_augment_opts){.channels = 3};
    p = interleaved(rgb, 2, 3, 1);
    assert_int_equal(ku_augment_init(&a, &o, 2, 3, 1, KUMI_U8), 0);
    assert_int_equal(ku_augment(&a, &p, -1, &w, out), 0);
    for (int i = 0; i < 18; i++)
        assert_true(out[i] == (float)(rgb[i / 3] / 255.0));
    o = (struct ku_augment_opts){.channels = 1};
    p = interleaved(rgb, 1, 2, 3);
    assert_int_equal(ku_augment_init(&a, &o, 1, 2, 3, KUMI_U8), 0);
    assert_int_equal(ku_augment(&a, &p, -1, &w, out), 0);
    assert_true(out[0] == (float)(124 / 255.0) && out[1] == (float)(77 / 255.0));
    ku_augment_work_fini(&w);
}

static void refuses_wrong_options(void **state)
{
    static const struct {
        struct ku_augment_opts o;
        int64_t side; /* of the images; 0: they differ */
        enum kumi_dtype dtype;
        const char *text;
    } rows[] = {
        {{.height = 0}, 0, KUMI_U8, "data: image_size: 0 x 0; the images differ in size"},
        {{.height = 20000, .width = 3}, 32, KUMI_U8, "data: image_size: 20000 x 3; give"},
        {{.channels = 2}, 32, KUMI_U8, "data: channels: 2; the images have 3"},
        {{.resize = 40}, 32, KUMI_F32, "data: f32 images cannot be resized"},
        {{.crop = KU_CROP_RESIZED}, 32, KUMI_F32, "data: f32 images cannot be resized"},
        {{.dtype = KUMI_U8}, 32, KUMI_F32, "data: samples of u8 cannot be made from images of f32"},
        {{.dtype = KUMI_BF16},
         32,
         KUMI_U8,
         "data: samples of bf16 cannot be made from images of u8"},
        {{.height = 41, .width = 32, .crop = KU_CROP_RANDOM, .padding = 4},
         32,
         KUMI_U8,
         "data: image_size: 41 x 32 cannot be cropped from 32 x 32 with data.padding 4"},
        {{.flip = 1.5}, 32, KUMI_U8, "data: data.flip: 1.5; give a probability from 0 to 1"},
        {{.padding = 4}, 32, KUMI_U8, "data: data.padding: 4; give 0 to 1024, and only with"},
        {{.crop = KU_CROP_RANDOM, .padding = -1}, 32, KUMI_U8, "data: data.padding: -1;"},
        {{.resize = 31}, 32, KUMI_U8, "data: data.resize: 31; give 0, or from 32"},
        {{.scale = {0.5, 1.5}}, 32, KUMI_U8, "data: data.scale: 0.5 to 1.5; give ascending"},
        {{.ratio = {2.0, 1.0}}, 32, KUMI_U8, "data: data.ratio: 2 to 1; give ascending"},
        {{.n_mean = 2, .std = {1, 1}}, 32, KUMI_U8, "data: data.normalize: 2 channels; the"},
        {{.n_mean = 1}, 32, KUMI_U8, "data: data.normalize: mean 0, std 0; give finite"},
    };
    struct ku_augment a;
    enum ku_crop crop;
    struct ku_augment_opts o;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int64_t side = rows[i].side;
        assert_int_equal(ku_augment_init(&a, &rows[i].o, side, side, 3, rows[i].dtype),
                         KUMI_EINVAL);
        if (strncmp(ku_err_get()->text, rows[i].text, strlen(rows[i].text)) != 0)
            fail_msg("row %zu: %s", i, ku_err_get()->text);
    }
    assert_int_equal(ku_crop_parse("resized", &crop), 0);
    assert_int_equal(crop, KU_CROP_RESIZED);
    assert_int_equal(ku_crop_parse("centre", &crop), KUMI_EINVAL);
    assert_int_equal(ku_normalize_parse("svhn", &o), KUMI_EINVAL);
}

/* An image too small for its crop is the image's fault, with a reason. */
static void names_images_that_are_too_small(void **state)
{
    struct ku_augment_opts o = {
        .height = 8, .width = 8, .crop = KU_CROP_RANDOM, .resize = 8, .dtype = KUMI_U8};
    unsigned char image[SMALL_H * SMALL_W * 3], out[8 * 8 * 3];
    struct ku_augment a;
    struct ku_augment_work w = {0};
    (void)state;
    make_small(image);
    struct ku_pixels p = interleaved(image, SMALL_H, SMALL_W, 3);
    assert_int_equal(ku_augment_init(&a, &o, 0, 0, 3, KUMI_U8), 0);
    assert_int_equal(ku_augment(&a, &p, 0, &w, out), 0);
    a.o.resize = 0;
    assert_int_equal(ku_augment(&a, &p, 0, &w, out), KUMI_EINPUT);
    assert_string_equal(w.why, "6 x 5 pixels, too few for a crop of 8 x 8");
    ku_augment_work_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resizes_as_pillow),
        cmocka_unit_test(resizes_the_extremes),
        cmocka_unit_test(crops_at_random),
        cmocka_unit_test(evaluates_the_centre),
        cmocka_unit_test(evaluates_resized),
        cmocka_unit_test(crops_resized),
        cmocka_unit_test(normalises),
        cmocka_unit_test(takes_other_forms),
        cmocka_unit_test(refuses_wrong_options),
        cmocka_unit_test(names_images_that_are_too_small),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
