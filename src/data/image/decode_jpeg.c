/* SPDX-License-Identifier: Apache-2.0 */
#include "data/image/decode.h"

#include "base/err.h"

#include <stdio.h>

#ifdef KUMI_JPEG
/*
 * libjpeg reports errors through longjmp. All state that must survive the jump is in struct job,
 * because local variables of the function that called setjmp may lose their values.
 */
#include <jpeglib.h>
#include <jerror.h>
#include <setjmp.h>

/*
 * Each scan of a progressive file costs a pass over all its blocks. Encoders write about 10 scans,
 * at most some dozens.
 */
enum { SCANS_MAX = 100, ROWS = 8 };

struct job {
    struct jpeg_error_mgr errors; /* first: the library's pointer to it points to the job */
    struct jpeg_decompress_struct jpeg;
    struct jpeg_progress_mgr progress;
    jmp_buf on_error;
    struct ku_decoder *d;
    const unsigned char *data;
    size_t bytes;
    int64_t h, w;
    int status;
};

static void fail(j_common_ptr c)
{
    struct job *j = (struct job *)(void *)c->err;
    char text[JMSG_LENGTH_MAX];
    if (c->err->msg_code == JERR_OUT_OF_MEMORY) {
        j->status = KU_ERR(KUMI_ENOMEM, "memory: libjpeg could not allocate");
    } else {
        c->err->format_message(c, text);
        j->status = KUMI_EINPUT;
        snprintf(j->d->why, sizeof j->d->why, "JPEG: %.150s", text);
    }
    longjmp(j->on_error, 1);
}

/*
 * Warnings about lost or damaged data are errors. Others (extra bytes between markers, versions)
 * are ignored.
 */
static void emit(j_common_ptr c, int level)
{
    if (level >= 0)
        return;
    switch (c->err->msg_code) {
    case JWRN_JPEG_EOF:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_MUST_RESYNC:
    case JWRN_ARITH_BAD_CODE:
        fail(c);
        break;
    default:
        break;
    }
}

static void print_nothing(j_common_ptr c)
{
    (void)c;
}

static void refuse(struct job *j, const char *why)
{
    j->status = KUMI_EINPUT;
    snprintf(j->d->why, sizeof j->d->why, "JPEG: %s", why);
    longjmp(j->on_error, 1);
}

static void watch(j_common_ptr c)
{
    struct job *j = (struct job *)(void *)c->err;
    if (j->jpeg.input_scan_number > SCANS_MAX)
        refuse(j, "more than 100 scans; encode it again");
}

/* Pillow's formula: values are stored inverted, as Adobe writes them; K is then subtracted. */
static void rgb_of_cmyk(unsigned char *data, int64_t n)
{
    unsigned char *out = data;
    for (int64_t i = 0; i < n; i++, data += 4, out += 3) {
        unsigned white = data[3], part[3] = {data[0], data[1], data[2]};
        for (int c = 0; c < 3; c++) {
            unsigned product = (255 - part[c]) * white + 128;
            out[c] = (unsigned char)(white - (((product >> 8) + product) >> 8));
        }
    }
}

static void decode(struct job *j)
{
    struct jpeg_decompress_struct *c = &j->jpeg;
    jpeg_create_decompress(c);
    j->progress.progress_monitor = watch;
    c->progress = &j->progress;
    jpeg_mem_src(c, j->data, j->bytes);
    jpeg_read_header(c, TRUE);
    int is_cmyk = c->jpeg_color_space == JCS_CMYK || c->jpeg_color_space == JCS_YCCK;
    if (!is_cmyk && c->jpeg_color_space != JCS_RGB && c->jpeg_color_space != JCS_YCbCr &&
        c->jpeg_color_space != JCS_GRAYSCALE)
        refuse(j, "colours are not grey, RGB or CMYK; convert it");
    c->out_color_space = is_cmyk ? JCS_CMYK : JCS_RGB;
    j->h = c->image_height;
    j->w = c->image_width;
    int64_t each = is_cmyk ? 4 : 3;
    j->status = ku_decode_room(j->d, j->h, j->w, each);
    if (j->status < 0)
        longjmp(j->on_error, 1);
    jpeg_start_decompress(c);
    while (c->output_scanline < c->output_height) {
        JSAMPROW row[ROWS];
        for (int i = 0; i < ROWS; i++) /* rows past the end are not written */
            row[i] = j->d->image.data + ((int64_t)c->output_scanline + i) * j->w * each;
        JDIMENSION left = c->output_height - c->output_scanline;
        jpeg_read_scanlines(c, row, left < ROWS ? left : ROWS);
    }
    jpeg_finish_decompress(c);
    if (is_cmyk)
        rgb_of_cmyk(j->d->image.data, j->h * j->w);
}

static int guard(struct job *j)
{
    if (setjmp(j->on_error) != 0)
        return j->status;
    decode(j);
    return KUMI_OK;
}

int ku_decode_jpeg(struct ku_decoder *d, const unsigned char *data, size_t bytes, int64_t *h,
                   int64_t *w)
{
    struct job j = {.d = d, .data = data, .bytes = bytes};
    j.jpeg.err = jpeg_std_error(&j.errors);
    j.errors.error_exit = fail;
    j.errors.emit_message = emit;
    j.errors.output_message = print_nothing;
    int status = guard(&j);
    jpeg_destroy_decompress(&j.jpeg);
    *h = j.h;
    *w = j.w;
    return status;
}

#define TEXT(x)  #x
#define VALUE(x) TEXT(x)
const char *ku_jpeg_version(void)
{
#ifdef LIBJPEG_TURBO_VERSION
    return VALUE(LIBJPEG_TURBO_VERSION);
#else
    return VALUE(JPEG_LIB_VERSION);
#endif
}

#else

int ku_decode_jpeg(struct ku_decoder *d, const unsigned char *data, size_t bytes, int64_t *h,
                   int64_t *w)
{
    (void)data, (void)bytes, (void)h, (void)w;
    snprintf(d->why, sizeof d->why,
             "a JPEG image, and this build has no libjpeg; install libjpeg-dev and build with "
             "-DKUMI_JPEG=ON");
    return KUMI_EINPUT;
}

const char *ku_jpeg_version(void)
{
    return NULL;
}
#endif
