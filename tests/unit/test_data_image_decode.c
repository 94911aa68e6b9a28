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

#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "data/image/decode.h"

#define FIXTURES KUMI_SOURCE_DIR "/tests/fixtures/images/"
enum { W = 19, H = 13, MOST = 1 << 20 };

static char *slurp(const char *name, size_t *bytes)
{
    char path[512], *data;
    snprintf(path, sizeof path, FIXTURES "%s", name);
    if (ku_os_slurp(path, MOST, &data, bytes) < 0)
        fail_msg("%s: %s", path, ku_os_why());
    return data;
}

/* Of this build: 0 when the library for a fixture is missing. */
static int is_built(const char *name)
{
    return strncmp(name, "jpeg", 4) == 0 ? ku_jpeg_version() != NULL : ku_png_version() != NULL;
}

static const char *const images[] = {
    "jpeg_420.jpg",       "jpeg_444.jpg",    "jpeg_progressive.jpg", "jpeg_gray.jpg",
    "jpeg_cmyk.jpg",      "png_rgb.png",     "png_rgba.png",         "png_gray.png",
    "png_gray_alpha.png", "png_palette.png", "png_rgb16.png",        "png_palette_transparent.png",
    "png_1bit.png",       "png_gray16.png",  "png_interlaced.png"};
enum { N_IMAGES = sizeof images / sizeof images[0] };

/* Every form becomes the RGB that Pillow makes of it, byte for byte; one decoder serves all. */
static void decodes_as_pillow(void **state)
{
    struct ku_decoder d = {0};
    (void)state;
    for (int i = 0; i < 2 * N_IMAGES; i++) {
        char expected[64];
        const char *name = images[i % N_IMAGES];
        struct ku_pixels p;
        size_t bytes, expected_bytes;
        if (!is_built(name))
            continue;
        char *data = slurp(name, &bytes);
        snprintf(expected, sizeof expected, "%.*s.rgb", (int)(strchr(name, '.') - name), name);
        char *rgb = slurp(expected, &expected_bytes);
        if (ku_decode(&d, (unsigned char *)data, bytes, &p) < 0)
            fail_msg("%s: %s", name, d.why);
        assert_int_equal(p.h, H);
        assert_int_equal(p.w, W);
        assert_int_equal(expected_bytes, 3 * H * W);
        if (memcmp(p.data, rgb, expected_bytes) != 0)
            fail_msg("%s: not Pillow's pixels", name);
        ku_free(data);
        ku_free(rgb);
    }
    ku_decoder_fini(&d);
}

/* An image cut anywhere but behind its pixels is refused, with a reason of one line. */
static void refuses_what_is_cut_short(void **state)
{
    struct ku_decoder d = {0};
    (void)state;
    for (int i = 0; i < N_IMAGES; i++) {
        struct ku_pixels p;
        size_t bytes;
        if (!is_built(images[i]))
            continue;
        char *data = slurp(images[i], &bytes);
        for (size_t n = 0; n + 1 < bytes; n++) {
            int status = ku_decode(&d, (unsigned char *)data, n, &p);
            if (status != KUMI_EINPUT || d.why[0] == '\0' || strchr(d.why, '\n'))
                fail_msg("%s: %zu of %zu bytes: status %d '%s'", images[i], n, bytes, status,
                         d.why);
        }
        ku_free(data);
    }
    ku_decoder_fini(&d);
}

/* A PNG's IHDR with these sides; the checksum is right. */
static void put_ihdr(unsigned char *png, uint32_t w, uint32_t h)
{
    unsigned char *at = png + 16;
    for (int k = 0; k < 4; k++) {
        at[k] = (unsigned char)(w >> (24 - 8 * k));
        at[4 + k] = (unsigned char)(h >> (24 - 8 * k));
    }
    uint32_t crc = 0xffffffff;
    for (int i = 12; i < 29; i++) {
        crc ^= png[i];
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (0xedb88320 & -(crc & 1));
    }
    for (int k = 0; k < 4; k++)
        png[29 + k] = (unsigned char)(~crc >> (24 - 8 * k));
}

/* A few bytes that claim much are refused before memory is asked for. */
static void refuses_bombs(void **state)
{
    static const struct {
        uint32_t w, h;
        int is_jpeg;
        const char *why;
    } rows[] = {
        {60000, 60000, 0, "PNG:"},
        {16384, 16384, 0, "16384 x 16384 pixels; an image has sides of 1 to 16384"},
        {0x7fffffff, 1, 0, "PNG:"},
        {0, 5, 0, "PNG:"},
        {65500, 65500, 1, "65500 x 65500 pixels; an image has sides of 1 to 16384"},
        {16384, 8192, 1, "16384 x 8192 pixels; an image has sides of 1 to 16384"},
        {0, 1, 1, "JPEG:"},
    };
    struct ku_decoder d = {0};
    struct ku_pixels p;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *name = rows[i].is_jpeg ? "jpeg_444.jpg" : "png_rgb.png";
        size_t bytes;
        if (!is_built(name))
            continue;
        unsigned char *data = (unsigned char *)slurp(name, &bytes);
        if (rows[i].is_jpeg) { /* SOF0: marker, length, precision, height, width */
            unsigned char *sof = data;
            while (sof[0] != 0xff || sof[1] != 0xc0)
                sof++;
            sof[5] = (unsigned char)(rows[i].h >> 8), sof[6] = (unsigned char)rows[i].h;
            sof[7] = (unsigned char)(rows[i].w >> 8), sof[8] = (unsigned char)rows[i].w;
        } else {
            put_ihdr(data, rows[i].w, rows[i].h);
        }
        assert_int_equal(ku_decode(&d, data, bytes, &p), KUMI_EINPUT);
        if (strncmp(d.why, rows[i].why, strlen(rows[i].why)) != 0)
            fail_msg("row %zu: '%s', expected '%s…'", i, d.why, rows[i].why);
        assert_true(d.image.bytes < 1 << 20);
        ku_free(data);
    }
    ku_decoder_fini(&d);
}

/* The error names the format once. */
static void refuses_colours(void **state)
{
    static const unsigned char two[] = {0xff, 0xd8, 0xff, 0xc0, 0, 14, 8,    0, 8,    0,
                                        8,    2,    1,    0x11, 0, 2,  0x11, 0, 0xff, 0xda,
                                        0,    8,    1,    1,    0, 0,  63,   0, 0xff, 0xd9};
    struct ku_decoder d = {0};
    struct ku_pixels p;
    (void)state;
    if (!is_built("jpeg_444.jpg"))
        skip();
    assert_int_equal(ku_decode(&d, two, sizeof two, &p), KUMI_EINPUT);
    assert_string_equal(d.why, "JPEG: colours are not grey, RGB or CMYK; convert it");
    ku_decoder_fini(&d);
}

static void refuses_what_is_no_image(void **state)
{
    static const struct {
        const char *data;
        size_t bytes;
        const char *why;
    } rows[] = {{"", 0, "an empty file; replace or remove it"},
                {"GIF89a", 6, "not a JPEG or PNG image; convert or remove it"},
                {"\xff\xd8", 2, "not a JPEG or PNG image; convert or remove it"},
                {"\x89PNG\r\n\x1a", 7, "not a JPEG or PNG image; convert or remove it"}};
    struct ku_decoder d = {0};
    struct ku_pixels p;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int status = ku_decode(&d, (const unsigned char *)rows[i].data, rows[i].bytes, &p);
        assert_int_equal(status, KUMI_EINPUT);
        assert_string_equal(d.why, rows[i].why);
    }
    ku_decoder_fini(&d);
}

/* A bit that flips anywhere: refused or decoded, never more; the decoder goes on to work. */
static void survives_flipped_bits(void **state)
{
    struct ku_decoder d = {0};
    int n_refused = 0;
    (void)state;
    for (int i = 0; i < N_IMAGES; i++) {
        struct ku_pixels p;
        size_t bytes;
        if (!is_built(images[i]))
            continue;
        unsigned char *data = (unsigned char *)slurp(images[i], &bytes);
        for (size_t at = 0; at < bytes; at++) {
            data[at] ^= (unsigned char)(1u << at % 8);
            int status = ku_decode(&d, data, bytes, &p);
            assert_true(status == KUMI_OK || status == KUMI_EINPUT);
            n_refused += status < 0;
            data[at] ^= (unsigned char)(1u << at % 8);
        }
        assert_int_equal(ku_decode(&d, data, bytes, &p), KUMI_OK);
        ku_free(data);
    }
    assert_true(n_refused > 100 || !(ku_jpeg_version() || ku_png_version()));
    ku_decoder_fini(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decodes_as_pillow),
        cmocka_unit_test(refuses_what_is_cut_short),
        cmocka_unit_test(refuses_bombs),
        cmocka_unit_test(refuses_colours),
        cmocka_unit_test(refuses_what_is_no_image),
        cmocka_unit_test(survives_flipped_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
