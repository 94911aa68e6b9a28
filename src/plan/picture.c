/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/picture.h"

#include <math.h>
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

const char *ku_picture_unit(double bytes, double *unit_bytes)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int u = 0;
    for (*unit_bytes = 1; u < 4 && bytes / *unit_bytes >= 1024; u++)
        *unit_bytes *= 1024;
    return unit[u];
}

const char *ku_picture_time_unit(double ns, double *unit_ns)
{
    *unit_ns = ns < 1e6 ? 1e3 : ns < 1e9 ? 1e6 : 1e9;
    return ns < 1e6 ? "us" : ns < 1e9 ? "ms" : "s";
}

#ifdef KUMI_CAIRO
#include <cairo-pdf.h>
#include <cairo-svg.h>

#include "base/os/os.h"

enum { PNG_PER_UNIT = 2 };

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

void ku_picture_font(cairo_t *cr, double size, int is_bold)
{
    cairo_select_font_face(cr, "sans-serif", CAIRO_FONT_SLANT_NORMAL,
                           is_bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(cr, size);
}

void ku_picture_text(cairo_t *cr, double x, double y, double align, const char *text)
{
    cairo_text_extents_t e;
    cairo_text_extents(cr, text, &e);
    cairo_move_to(cr, x - align * e.x_advance, y);
    cairo_show_text(cr, text);
}

void ku_picture_fit(cairo_t *cr, double x, double y, double width, const char *const *text, int n)
{
    for (int i = 0; i < n; i++) {
        cairo_text_extents_t e;
        cairo_text_extents(cr, text[i], &e);
        if (e.x_advance > width)
            continue;
        ku_picture_text(cr, x, y, 0.5, text[i]);
        return;
    }
}

void ku_picture_upwards(cairo_t *cr, double x, double y, const char *text)
{
    cairo_save(cr);
    cairo_translate(cr, x, y);
    cairo_rotate(cr, -M_PI / 2);
    ku_picture_text(cr, 0, 0, 0.5, text);
    cairo_restore(cr);
}

void ku_picture_line(cairo_t *cr, double x0, double y0, double x1, double y1)
{
    cairo_move_to(cr, x0, y0);
    cairo_line_to(cr, x1, y1);
    cairo_stroke(cr);
}

void ku_picture_box(cairo_t *cr, unsigned rgb, double x, double y, double width, double height)
{
    ku_picture_colour(cr, rgb);
    cairo_rectangle(cr, x, y, width, height);
    cairo_fill(cr);
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
    int status = drawn == CAIRO_STATUS_SUCCESS && !out.failed
                     ? KUMI_OK
                     : KU_ERR(KUMI_ENOMEM, "plan: --picture: %s", cairo_status_to_string(drawn));
    if (status == KUMI_OK && ku_os_replace(path, ku_str_get(&out), out.bytes) < 0)
        status = KU_ERR(ku_os_status(KUMI_ESTORAGE), "plan: %s: %s", path, ku_os_why());
    ku_str_fini(&out);
    return status;
}
#else
int ku_picture_write(const char *path, int width, int height,
                     void (*draw)(cairo_t *cr, const void *ctx), const void *ctx)
{
    (void)width, (void)height, (void)draw, (void)ctx;
    return ku_picture_check(path);
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
