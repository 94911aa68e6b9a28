/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/picture.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/str.h"

const char *ku_picture_bytes(uint64_t bytes, char out[16])
{
    char text[16];
    ku_text_bytes(bytes, text);
    snprintf(out, 16, "%s", text + strspn(text, " "));
    return out;
}

double ku_picture_step(double x)
{
    double unit = pow(10, floor(log10(x)));
    return unit * (x <= unit ? 1 : x <= 2 * unit ? 2 : x <= 5 * unit ? 5 : 10);
}

const char *ku_picture_file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

#ifdef KUMI_CAIRO
#include <cairo-pdf.h>
#include <cairo-svg.h>

#include "base/os/os.h"
#include "plan/svg.h"

enum { PNG_PER_UNIT = 2 };

/* Under this key a context of cairo has the struct ku_svg that gets its boxes, lines and words. */
static const cairo_user_data_key_t svg_key = {0};

static struct ku_svg *svg_of(cairo_t *cr)
{
    return cairo_get_user_data(cr, &svg_key);
}

void ku_picture_colour(cairo_t *cr, unsigned rgb)
{
    cairo_set_source_rgb(cr, (rgb >> 16 & 255) / 255.0, (rgb >> 8 & 255) / 255.0,
                         (rgb & 255) / 255.0);
}

unsigned ku_picture_ink(unsigned rgb)
{
    double luma = 0.299 * (rgb >> 16 & 255) + 0.587 * (rgb >> 8 & 255) + 0.114 * (rgb & 255);
    return luma > 140 ? 0x222222 : 0xffffff;
}

double ku_picture_text_width(cairo_t *cr, struct ku_font font, const char *text)
{
    cairo_text_extents_t e;
    if (svg_of(cr))
        return ku_svg_width(font.size, font.is_bold, text);
    cairo_select_font_face(cr, "sans-serif", CAIRO_FONT_SLANT_NORMAL,
                           font.is_bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(cr, font.size);
    cairo_text_extents(cr, text, &e);
    return e.x_advance;
}

void ku_picture_text(cairo_t *cr, struct ku_font font, double x, double y, double align,
                     const char *format, ...)
{
    char text[320];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (svg_of(cr)) {
        ku_svg_words(svg_of(cr), font.size, font.rgb, font.is_bold, x, y, align, text);
        return;
    }
    ku_picture_colour(cr, font.rgb);
    cairo_move_to(cr, x - align * ku_picture_text_width(cr, font, text), y);
    cairo_show_text(cr, text);
}

void ku_picture_fit(cairo_t *cr, struct ku_font font, double x, double y, double width,
                    const char *const *text, int n)
{
    for (int i = 0; i < n; i++)
        if (ku_picture_text_width(cr, font, text[i]) <= width) {
            ku_picture_text(cr, font, x, y, 0.5, "%s", text[i]);
            return;
        }
}

static void draw_line(cairo_t *cr, unsigned rgb, double width, const double *dash, double x0,
                      double y0, double x1, double y1)
{
    if (svg_of(cr)) {
        ku_svg_line(svg_of(cr), rgb, width, dash, (const double[]){x0, y0},
                    (const double[]){x1, y1});
        return;
    }
    cairo_set_dash(cr, dash, dash ? 2 : 0, 0);
    ku_picture_colour(cr, rgb);
    cairo_set_line_width(cr, width);
    cairo_move_to(cr, x0, y0);
    cairo_line_to(cr, x1, y1);
    cairo_stroke(cr);
    cairo_set_dash(cr, NULL, 0, 0);
}

void ku_picture_line(cairo_t *cr, unsigned rgb, double x0, double y0, double x1, double y1)
{
    draw_line(cr, rgb, 1, NULL, x0, y0, x1, y1);
}

void ku_picture_dashes(cairo_t *cr, unsigned rgb, double width, const double dash[2], double x0,
                       double y0, double x1, double y1)
{
    draw_line(cr, rgb, width, dash, x0, y0, x1, y1);
}

void ku_picture_box(cairo_t *cr, unsigned rgb, double x, double y, double width, double height)
{
    if (svg_of(cr)) {
        ku_svg_box(svg_of(cr), rgb, x, y, width, height);
        return;
    }
    ku_picture_colour(cr, rgb);
    cairo_rectangle(cr, x, y, width, height);
    cairo_fill(cr);
}

void ku_picture_frame(cairo_t *cr, double x, double y, double width, double height)
{
    ku_picture_colour(cr, 0x333333);
    cairo_set_line_width(cr, 1);
    cairo_rectangle(cr, x, y, width, height);
    cairo_stroke(cr);
}

void ku_picture_bytes_axis(cairo_t *cr, const struct ku_bytes_axis *a)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    const struct ku_font font = {13, 0x333333, 0};
    double scale = 1;
    int u = 0;
    for (; u < 4 && a->bytes / scale >= 1024; u++)
        scale *= 1024;
    const double step = ku_picture_step(a->bytes / scale / a->n_marks);
    for (double at = 0; at * scale <= a->bytes * 1.000001; at += step) {
        double y = a->top + (a->bottom - a->top) * (1 - at * scale / a->bytes);
        if (a->grid_right > 0)
            ku_picture_line(cr, at > 0 ? 0xdddddd : 0x333333, a->x, y, a->grid_right, y);
        else
            ku_picture_line(cr, 0x333333, a->x - 5, y, a->x, y);
        ku_picture_text(cr, font, a->x - (a->grid_right > 0 ? 8 : 9),
                        y + (a->grid_right > 0 ? 4 : 4.5), 1, "%g", at);
    }
    cairo_save(cr);
    cairo_translate(cr, a->name_x, (a->top + a->bottom) / 2);
    cairo_rotate(cr, -M_PI / 2);
    ku_picture_text(cr, font, 0, 0, 0.5, "%s%s", a->name, unit[u]);
    cairo_restore(cr);
}

static cairo_status_t append(void *to, const unsigned char *data, unsigned bytes)
{
    struct ku_str *out = to;
    ku_str_append(out, (const char *)data, bytes);
    return out->failed ? CAIRO_STATUS_NO_MEMORY : CAIRO_STATUS_SUCCESS;
}

static cairo_surface_t *surface_of(const char *ending, int width, int height, struct ku_str *out)
{
    return strcmp(ending, ".png") == 0
               ? cairo_image_surface_create(CAIRO_FORMAT_RGB24, width * PNG_PER_UNIT,
                                            height * PNG_PER_UNIT)
           : strcmp(ending, ".svg") == 0
               ? cairo_svg_surface_create_for_stream(append, out, width, height)
               : cairo_pdf_surface_create_for_stream(append, out, width, height);
}

static int replace(const char *path, cairo_status_t drawn, struct ku_str *out)
{
    int status = drawn == CAIRO_STATUS_SUCCESS && !out->failed
                     ? KUMI_OK
                     : KU_ERR(KUMI_ENOMEM, "plan: --picture: %s",
                              cairo_status_to_string(drawn ? drawn : CAIRO_STATUS_NO_MEMORY));
    if (status == KUMI_OK && ku_os_replace(path, ku_str_get(out), out->bytes) < 0)
        status = KU_ERR(ku_os_status(KUMI_ESTORAGE), "plan: %s: %s", path, ku_os_why());
    ku_str_fini(out);
    return status;
}

int ku_picture_write(const char *path, int width, int height,
                     void (*draw)(cairo_t *cr, const void *ctx), const void *ctx)
{
    struct ku_str out = {0};
    const char *ending = strrchr(path, '.');
    int is_png = strcmp(ending, ".png") == 0;
    cairo_surface_t *s = surface_of(ending, width, height, &out);
    cairo_t *cr = cairo_create(s);
    if (is_png)
        cairo_scale(cr, PNG_PER_UNIT, PNG_PER_UNIT);
    cairo_set_source_rgb(cr, 1, 1, 1);
    cairo_paint(cr);
    draw(cr, ctx);
    cairo_status_t drawn = cairo_status(cr);
    cairo_destroy(cr);
    if (drawn == CAIRO_STATUS_SUCCESS && is_png)
        drawn = cairo_surface_write_to_png_stream(s, append, &out);
    cairo_surface_finish(s);
    if (drawn == CAIRO_STATUS_SUCCESS)
        drawn = cairo_surface_status(s);
    cairo_surface_destroy(s);
    return replace(path, drawn, &out);
}

/* The context only names the SVG: nothing is drawn on its surface, of one pixel. */
int ku_picture_write_plain(const char *path, int width, int height,
                           void (*draw)(cairo_t *cr, const void *ctx), const void *ctx)
{
    struct ku_svg svg;
    if (strcmp(strrchr(path, '.'), ".svg") != 0)
        return ku_picture_write(path, width, height, draw, ctx);
    cairo_surface_t *s = cairo_image_surface_create(CAIRO_FORMAT_A8, 1, 1);
    cairo_t *cr = cairo_create(s);
    cairo_status_t drawn = cairo_set_user_data(cr, &svg_key, &svg, NULL);
    ku_svg_begin(&svg, width, height);
    if (drawn == CAIRO_STATUS_SUCCESS)
        draw(cr, ctx);
    ku_svg_end(&svg);
    cairo_destroy(cr);
    cairo_surface_destroy(s);
    return replace(path, drawn, &svg.text);
}
#else
int ku_picture_write(const char *path, int width, int height,
                     void (*draw)(cairo_t *cr, const void *ctx), const void *ctx)
{
    (void)width, (void)height, (void)draw, (void)ctx;
    return ku_picture_check(path);
}
int ku_picture_write_plain(const char *path, int width, int height,
                           void (*draw)(cairo_t *cr, const void *ctx), const void *ctx)
{
    return ku_picture_write(path, width, height, draw, ctx);
}
#endif

const char *ku_picture_cairo_version(void)
{
#ifdef KUMI_CAIRO
    return cairo_version_string();
#else
    return NULL;
#endif
}

int ku_picture_check(const char *path)
{
    const char *dot = strrchr(path, '.');
    if (dot == NULL || (strcmp(dot, ".svg") && strcmp(dot, ".png") && strcmp(dot, ".pdf")))
        return KU_ERR(KUMI_EINVAL,
                      "plan: --picture: %.200s: give a name that ends with .svg, .png "
                      "or .pdf",
                      path);
#ifndef KUMI_CAIRO
    return KU_ERR(KUMI_EINVAL,
                  "plan: --picture: this build has no cairo; install libcairo2-dev and "
                  "build again with -DKUMI_CAIRO=ON");
#else
    return KUMI_OK;
#endif
}
