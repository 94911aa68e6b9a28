/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PLAN_SVG_H
#define KU_PLAN_SVG_H

#include <stdbool.h>

#include "base/str.h"

/*
 * Text of an SVG of boxes, lines and words. Words are text elements, which viewers draw in their
 * own fonts, so a file is small, and the same bytes on every machine. cairo draws each letter as a
 * path, and its paths depend on its version and on the fonts.
 */
struct ku_svg {
    struct ku_str text;
    unsigned rgb; /* of the path that is open: boxes of one colour in a row are one path */
    bool has_path;
};
void ku_svg_begin(struct ku_svg *s, int width, int height);
void ku_svg_box(struct ku_svg *s, unsigned rgb, double x, double y, double width, double height);
/* from, to: x and y; dash: lengths drawn and left out, or NULL */
void ku_svg_line(struct ku_svg *s, unsigned rgb, double width, const double dash[2],
                 const double from[2], const double to[2]);
/* anchor: 0: left end of the text at x, 0.5: centred, 1: right end of the text at x. */
void ku_svg_words(struct ku_svg *s, double size, unsigned rgb, bool is_bold, double x, double y,
                  double anchor, const char *text);
void ku_svg_end(struct ku_svg *s);
/* The width of text in DejaVu Sans, or Verdana, which are wider than most. */
double ku_svg_width(double size, bool is_bold, const char *text);

#endif
