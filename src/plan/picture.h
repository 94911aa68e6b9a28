/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PLAN_PICTURE_H
#define KU_PLAN_PICTURE_H

#include <stdint.h>

#include "base/err.h"

/* Common parts of the pictures of `kumi plan`: files, text, lines. */
#ifdef KUMI_CAIRO
#include <cairo.h>

struct ku_font {
    double size;
    unsigned rgb;
    int is_bold;
};

void ku_picture_colour(cairo_t *cr, unsigned rgb);
/* Black or white, whichever is readable on the colour. */
unsigned ku_picture_ink(unsigned rgb);
/*
 * Draw text of at most 319 bytes at baseline y. align: 0: left end of the text at x, 0.5: centred,
 * 1: right end of the text at x.
 */
void ku_picture_text(cairo_t *cr, struct ku_font font, double x, double y, double align,
                     const char *format, ...) __attribute__((format(printf, 6, 7)));
double ku_picture_text_width(cairo_t *cr, struct ku_font font, const char *text);
/* Draw the first of the texts that is at most `width` wide, centred at x; none: nothing. */
void ku_picture_fit(cairo_t *cr, struct ku_font font, double x, double y, double width,
                    const char *const *text, int n);
void ku_picture_line(cairo_t *cr, unsigned rgb, double x0, double y0, double x1, double y1);
void ku_picture_dashes(cairo_t *cr, unsigned rgb, double width, const double dash[2], double x0,
                       double y0, double x1, double y1);
void ku_picture_box(cairo_t *cr, unsigned rgb, double x, double y, double width, double height);
void ku_picture_frame(cairo_t *cr, double x, double y, double width, double height);
/* The vertical axis of a diagram of bytes: 0 at bottom, `bytes` at top. */
struct ku_bytes_axis {
    double x, top, bottom, bytes, n_marks; /* n_marks: at most about so many */
    double grid_right;                     /* each mark is a line to this x; 0: a tick left of x */
    double name_x;                         /* of the name, which is drawn upwards */
    const char *name;                      /* "offset, ", to which the unit is appended */
};
void ku_picture_bytes_axis(cairo_t *cr, const struct ku_bytes_axis *a);
#else
typedef struct ku_no_cairo cairo_t;
#endif
/* "1.16.0", of the library that is loaded; NULL: not in this build. */
const char *ku_picture_cairo_version(void);
/* "9.65 MiB", without the padding of ku_text_bytes. */
const char *ku_picture_bytes(uint64_t bytes, char out[16]);
/* Distance between two marks of an axis: the smallest of 1, 2, 5 x 10^k that is >= x; x > 0. */
double ku_picture_step(double x);
/* The file name of a path. */
const char *ku_picture_file_name(const char *path);

/*
 * Check that the path has the suffix of a picture. Errors: KUMI_EINVAL: another suffix, or a build
 * without cairo.
 */
KU_STATUS ku_picture_check(const char *path);
/*
 * Draw on a white background and replace the file.
 *
 *   path            checked by ku_picture_check: *.svg, *.png (two pixels per unit) or *.pdf
 *   width, height   in units
 *
 * Errors: KUMI_ESTORAGE, ENOMEM.
 */
KU_STATUS ku_picture_write(const char *path, int width, int height,
                           void (*draw)(cairo_t *cr, const void *ctx), const void *ctx);
/*
 * The same of a picture of boxes, lines, dashes and texts alone, drawn by the functions above: an
 * SVG of it has text elements (plan/svg.h).
 */
KU_STATUS ku_picture_write_plain(const char *path, int width, int height,
                                 void (*draw)(cairo_t *cr, const void *ctx), const void *ctx);

#endif
