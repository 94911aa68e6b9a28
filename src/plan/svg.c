/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/svg.h"

#include <stdint.h>
#include <string.h>

#include "base/utf8.h"

enum { FONT_SIZE = 12, INK = 0x222222 /* of text elements that name no other */ };

/* "12.5", "-3": a tenth of a unit is enough, and 0.0 is 0. */
static void add_number(struct ku_svg *s, const char *before, double x)
{
    const long long tenths = (long long)(x < 0 ? x * 10 - 0.5 : x * 10 + 0.5);
    const long long rest = tenths < 0 ? -tenths : tenths;
    ku_str_add(&s->text, "%s%s%lld", before, tenths < 0 ? "-" : "", rest / 10);
    if (rest % 10)
        ku_str_add(&s->text, ".%lld", rest % 10);
}

static void end_path(struct ku_svg *s)
{
    if (s->has_path)
        ku_str_add(&s->text, "\"/>\n");
    s->has_path = false;
}

void ku_svg_begin(struct ku_svg *s, int width, int height)
{
    *s = (struct ku_svg){0};
    ku_str_add(&s->text,
               "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
               "viewBox=\"0 0 %d %d\" font-family=\"DejaVu Sans,Verdana,sans-serif\" "
               "font-size=\"%d\" fill=\"#%06x\">\n",
               width, height, width, height, FONT_SIZE, INK);
    ku_svg_box(s, 0xffffff, 0, 0, width, height);
}

void ku_svg_box(struct ku_svg *s, unsigned rgb, double x, double y, double width, double height)
{
    if (!s->has_path || s->rgb != rgb) {
        end_path(s);
        ku_str_add(&s->text, "<path fill=\"#%06x\" d=\"", rgb);
    }
    s->has_path = true, s->rgb = rgb;
    add_number(s, "M", x);
    add_number(s, " ", y);
    add_number(s, "h", width);
    add_number(s, "v", height);
    add_number(s, "h", -width);
    ku_str_add(&s->text, "z");
}

void ku_svg_line(struct ku_svg *s, unsigned rgb, double width, const double dash[2],
                 const double from[2], const double to[2])
{
    end_path(s);
    add_number(s, "<path d=\"M", from[0]);
    add_number(s, " ", from[1]);
    add_number(s, "L", to[0]);
    add_number(s, " ", to[1]);
    ku_str_add(&s->text, "\" stroke=\"#%06x\"", rgb);
    if (width != 1)
        add_number(s, " stroke-width=\"", width), ku_str_add(&s->text, "\"");
    if (dash) {
        add_number(s, " stroke-dasharray=\"", dash[0]);
        add_number(s, " ", dash[1]);
        ku_str_add(&s->text, "\"");
    }
    ku_str_add(&s->text, "/>\n");
}

/* Markup is escaped; what XML does not allow becomes a question mark. */
static void add_escaped(struct ku_svg *s, const char *text)
{
    const unsigned char *at = (const unsigned char *)text, *end = at + strlen(text);
    const unsigned char *valid = at + ku_utf8_valid(at, end);
    for (; at < end; at++) {
        if (*at == '&' || *at == '<')
            ku_str_add(&s->text, "%s", *at == '&' ? "&amp;" : "&lt;");
        else
            ku_str_append(&s->text, at >= valid || *at < ' ' ? "?" : (const char *)at, 1);
        if (at >= valid)
            valid = at + 1 + ku_utf8_valid(at + 1, end);
    }
}

void ku_svg_words(struct ku_svg *s, double size, unsigned rgb, bool is_bold, double x, double y,
                  double anchor, const char *text)
{
    end_path(s);
    add_number(s, "<text x=\"", x);
    add_number(s, "\" y=\"", y);
    ku_str_add(&s->text, "\"");
    if (size != FONT_SIZE)
        add_number(s, " font-size=\"", size), ku_str_add(&s->text, "\"");
    if (rgb != INK)
        ku_str_add(&s->text, " fill=\"#%06x\"", rgb);
    if (is_bold)
        ku_str_add(&s->text, " font-weight=\"bold\"");
    if (anchor > 0)
        ku_str_add(&s->text, " text-anchor=\"%s\"", anchor < 1 ? "middle" : "end");
    ku_str_add(&s->text, ">");
    add_escaped(s, text);
    ku_str_add(&s->text, "</text>\n");
}

void ku_svg_end(struct ku_svg *s)
{
    end_path(s);
    ku_str_add(&s->text, "</svg>\n");
}

/* Of DejaVu Sans from ' ' to '~', in hundredths of the font's size. */
static const uint8_t letter[95] = {
    32, 40, 46, 84, 64, 95, 78, 27, 39,  39, 50, 84, 32, 36, 32, 34, 64, 64, 64, 64, 64, 64, 64, 64,
    64, 64, 34, 34, 84, 84, 84, 53, 100, 68, 69, 70, 77, 63, 58, 77, 75, 29, 29, 66, 56, 86, 75, 79,
    60, 79, 69, 63, 61, 73, 68, 99, 69,  61, 69, 39, 34, 39, 84, 50, 50, 61, 63, 55, 63, 62, 35, 63,
    63, 28, 28, 58, 28, 97, 63, 61, 63,  63, 41, 52, 39, 63, 59, 82, 59, 59, 52, 64, 34, 64, 84};

double ku_svg_width(double size, bool is_bold, const char *text)
{
    double hundredths = 0;
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c >= ' ' && c <= '~')
            hundredths += letter[c - ' '];
        else if ((c & 0xc0) != 0x80) /* the first byte of a character */
            hundredths += 64;
    }
    return hundredths / 100 * size * (is_bold ? 1.11 : 1);
}
