/* SPDX-License-Identifier: Apache-2.0 */
#include "data/image/decode.h"

#include "base/err.h"

#include <stdio.h>

#ifdef KUMI_PNG
/* As in decode_jpeg.c: errors use longjmp, and state that must survive is in struct job. */
#include <png.h>
#include <setjmp.h>
#include <string.h>

#include "base/mem.h"

/*
 * libpng and zlib need 50 to 100 KB per image. They get it from a reused block of 256 KiB, and
 * larger pieces (rows of a very wide image) from the heap. An ancillary chunk has at most 8 MiB.
 */
enum { WORK_BYTES = 1 << 18, CHUNK_BYTES_MAX = 1 << 23, CHUNKS_MAX = 1000 };

struct job {
    jmp_buf on_error;
    struct ku_decoder *d;
    const unsigned char *data;
    size_t bytes, at, used;
    png_structp png;
    png_infop info;
    int64_t h, w;
    int status;
};

static void fail(png_structp png, png_const_charp text)
{
    struct job *j = png_get_error_ptr(png);
    if (j->status == KUMI_OK) {
        j->status = KUMI_EINPUT;
        snprintf(j->d->why, sizeof j->d->why, "PNG: %.150s", text);
    }
    longjmp(j->on_error, 1);
}

static void warn(png_structp png, png_const_charp text)
{
    (void)png, (void)text;
}

static void *take(png_structp png, png_alloc_size_t bytes)
{
    struct job *j = png_get_mem_ptr(png);
    size_t need = (bytes + 63) / 64 * 64;
    if (need < bytes || need > WORK_BYTES - j->used) {
        void *at = ku_malloc(bytes);
        if (!at)
            j->status = KUMI_ENOMEM;
        return at;
    }
    j->used += need;
    return j->d->work.data + j->used - need;
}

static void give(png_structp png, void *at)
{
    struct job *j = png_get_mem_ptr(png);
    const unsigned char *p = at, *block = j->d->work.data;
    if (p < block || p >= block + WORK_BYTES)
        ku_free(at);
}

static void feed(png_structp png, png_bytep out, size_t bytes)
{
    struct job *j = png_get_io_ptr(png);
    if (bytes > j->bytes - j->at)
        png_error(png, "the file is truncated");
    memcpy(out, j->data + j->at, bytes);
    j->at += bytes;
}

/* Converts everything to RGB with 8 bits; drops transparency, as Pillow's convert("RGB"). */
static void set_transforms(png_structp png, png_infop info)
{
    int colour = png_get_color_type(png, info);
    png_set_strip_16(png);
    if (colour == PNG_COLOR_TYPE_PALETTE)
        png_set_palette_to_rgb(png);
    else if (!(colour & PNG_COLOR_MASK_COLOR)) {
        png_set_expand_gray_1_2_4_to_8(png);
        png_set_gray_to_rgb(png);
    }
    png_set_strip_alpha(png);
}

static void decode(struct job *j)
{
    png_structp png = j->png;
    png_set_user_limits(png, KU_IMAGE_SIDE_MAX, KU_IMAGE_SIDE_MAX);
    png_set_chunk_malloc_max(png, CHUNK_BYTES_MAX);
    png_set_chunk_cache_max(png, CHUNKS_MAX);
    png_set_read_fn(png, j, feed);
    png_read_info(png, j->info);
    j->h = png_get_image_height(png, j->info);
    j->w = png_get_image_width(png, j->info);
    set_transforms(png, j->info);
    int n_passes = png_set_interlace_handling(png);
    png_read_update_info(png, j->info);
    j->status = ku_decode_room(j->d, j->h, j->w, 3);
    if (j->status < 0)
        longjmp(j->on_error, 1);
    if (png_get_rowbytes(png, j->info) != (size_t)j->w * 3)
        png_error(png, "unsupported pixel format");
    for (int pass = 0; pass < n_passes; pass++)
        for (int64_t y = 0; y < j->h; y++)
            png_read_row(png, j->d->image.data + y * j->w * 3, NULL);
    png_read_end(png, NULL);
}

static int guard(struct job *j)
{
    if (setjmp(j->on_error) != 0)
        return j->status;
    j->png = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, j, fail, warn, j, take, give);
    j->info = j->png ? png_create_info_struct(j->png) : NULL;
    if (!j->info)
        return j->status < 0 ? j->status : KU_ERR(KUMI_ENOMEM, "memory: libpng could not start");
    decode(j);
    return KUMI_OK;
}

int ku_decode_png(struct ku_decoder *d, const unsigned char *data, size_t bytes, int64_t *h,
                  int64_t *w)
{
    struct job j = {.d = d, .data = data, .bytes = bytes};
    KU_TRY(ku_scratch_need(&d->work, WORK_BYTES));
    int status = guard(&j);
    png_destroy_read_struct(&j.png, &j.info, NULL);
    *h = j.h;
    *w = j.w;
    return status;
}

const char *ku_png_version(void)
{
    return png_get_libpng_ver(NULL);
}

#else

int ku_decode_png(struct ku_decoder *d, const unsigned char *data, size_t bytes, int64_t *h,
                  int64_t *w)
{
    (void)data, (void)bytes, (void)h, (void)w;
    snprintf(d->why, sizeof d->why,
             "a PNG image, and this build has no libpng; install libpng-dev and build with "
             "-DKUMI_PNG=ON");
    return KUMI_EINPUT;
}

const char *ku_png_version(void)
{
    return NULL;
}
#endif
