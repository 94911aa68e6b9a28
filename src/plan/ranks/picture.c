/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which rank has what, as a picture: a column per rank, a row per kind of thing.
 *
 *                    |   tp 0   |   tp 1   |      axes of the mesh, outermost first
 *                    |  rank 0  |  rank 1  |
 *     samples        [####      ][    ####]       of the global batch
 *     layers         [##########][##########]
 *     parameters     [#####     ][     #####]     a bar per part of the model
 *     ..
 *     tp             o----------o                 groups that exchange, and what
 *
 * A bar is all tensors of a part of the model. Its width is the length of each tensor, its height
 * the tensors, one below the other by their sizes and in the order of the layers: so slices and
 * owned chunks take a part of the width, the layers of a pipeline's stage a part of the height.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "ir/state.h"
#include "plan/picture.h"
#include "plan/ranks/map.h"
#include "plan/svg.h"

enum { WIDTH = 960 };
#ifdef KUMI_CAIRO
enum { MARGIN = 16, LEFT = 200, RIGHT = WIDTH - MARGIN, BAR = 13, PITCH = 15 };

/* A picture in the making: cr NULL: nothing is drawn, only y moves. */
struct figure {
    cairo_t *cr;
    const struct ku_rank_map *m;
    const char *config, *batch;
    double x[KU_MAX_COLUMNS], width; /* of the columns */
    double bar;                      /* height of a part's: stages divide it */
    double y;
};

/* Text of at most so many bytes: longer text ends there. */
struct line {
    char text[256];
    size_t bytes;
};

static void add(struct line *l, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(struct line *l, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const int n = ku_text_printv(l->text + l->bytes, sizeof l->text - l->bytes, format, args);
    va_end(args);
    l->bytes += n > 0 ? (size_t)n : 0;
    l->bytes = l->bytes < sizeof l->text ? l->bytes : sizeof l->text - 1;
}

static const unsigned kind_colour[KU_N_STATE_KINDS] = {0x4e79a7, 0xe15759, 0x499894, 0xa0cbe8};
static const char *const kind_name[KU_N_STATE_KINDS] = {"parameters", "gradients", "master weights",
                                                        "optimizer state"};
static const unsigned axis_colour[KU_AX_FIRST_TIME] = {0xd97e1f, 0x4e79a7, 0x499894,
                                                       0x8e5a86, 0x3f7f3a, 0x9c755f};
enum { EMPTY = 0xefefef, SAMPLES = 0xbab0ac, LAYERS = 0xe0b070, ACTIVATIONS = 0x6aab5b };
enum { INK = 0x222222, GREY = 0x555555 };

/* A colour between white, 0, and itself, 1. */
static unsigned mix(unsigned rgb, double share)
{
    unsigned out = 0;
    for (int shift = 16; shift >= 0; shift -= 8)
        out = out << 8 | (unsigned)(255 - share * (255 - (double)(rgb >> shift & 255)) + 0.5);
    return out;
}

static unsigned lighter(unsigned rgb)
{
    return mix(rgb, 0.38);
}

static void box(const struct figure *f, unsigned rgb, double x, double y, double width,
                double height)
{
    if (f->cr)
        ku_picture_box(f->cr, rgb, x, y, width, height);
}

static void words(const struct figure *f, double size, unsigned rgb, bool is_bold, double x,
                  double align, const char *text)
{
    if (f->cr && text[0])
        ku_picture_text(f->cr, (struct ku_font){size, rgb, is_bold}, x, f->y, align, "%s", text);
}

/* The first text that fits into [from, to], in the middle of it, else the first that fits beside it
 * in [x, x + width]; else the same in smaller letters. rgb: of what is below it. */
static void label(const struct figure *f, unsigned rgb, double from, double to, double x,
                  double width, double y, const char *const text[2])
{
    for (int i = 0; i < 8 && f->cr; i++) {
        const bool is_inside = i % 4 < 2;
        const struct ku_font font = {i < 4 ? 10 : 8, is_inside ? ku_picture_ink(rgb) : INK, 0};
        const double need = ku_picture_text_width(f->cr, font, text[i % 2]) + 4;
        if (is_inside ? need > to - from : need > x + width - to && need > from - x)
            continue;
        if (is_inside)
            ku_picture_text(f->cr, font, (from + to) / 2, y, 0.5, "%s", text[i % 2]);
        else if (need <= x + width - to)
            ku_picture_text(f->cr, font, to + 3, y, 0, "%s", text[i % 2]);
        else
            ku_picture_text(f->cr, font, from - 3, y, 1, "%s", text[i % 2]);
        return;
    }
}

static void place_columns(struct figure *f)
{
    enum { GAP = 8, MORE = 16 /* where ranks are left out */ };
    const int n = f->m->n_columns;
    double room = RIGHT - LEFT - GAP * (n - 1), x = LEFT;
    for (int i = 0; i < n; i++)
        room -= f->m->column[i].is_after_gap ? MORE : 0;
    f->width = room / n;
    f->bar = f->m->mesh.extent[KU_AX_PP] > 1 ? 18 : BAR;
    for (int i = 0; i < n; i++) {
        x += f->m->column[i].is_after_gap ? MORE : 0;
        f->x[i] = x;
        x += f->width + GAP;
    }
}

static double right_of(const struct figure *f, int column)
{
    return f->x[column] + f->width;
}

/* The last column after `first` with equal coordinates on the axes, a mask. */
static int last_equal(const struct figure *f, int first, int axes)
{
    int last = first;
    for (int i = first + 1; i < f->m->n_columns; last = i++)
        for (int a = 0; a < KU_AX_FIRST_TIME; a++)
            if (axes >> a & 1 && f->m->column[i].at.at[a] != f->m->column[first].at.at[a])
                return last;
    return last;
}

/* The bytes of a text's first line: as many words as fit into the picture's width. */
static size_t first_line(const char *text)
{
    size_t n = strcspn(text, " ");
    for (;;) {
        struct line l = {.bytes = 0};
        const size_t blanks = strspn(text + n, " "),
                     more = n + blanks + strcspn(text + n + blanks, " ");
        add(&l, "%.*s", (int)more, text);
        if (more == n || more >= sizeof l.text || ku_svg_width(12, 0, l.text) > RIGHT - MARGIN)
            return n;
        n = more;
    }
}

static void wrap(struct figure *f, const char *text)
{
    while (*text) {
        struct line l = {.bytes = 0};
        const size_t n = first_line(text);
        add(&l, "%.*s", (int)n, text);
        f->y += 17;
        words(f, 12, INK, 0, MARGIN, 0, l.text);
        text += n + (text[n] == ' ');
    }
}

static void draw_title(struct figure *f)
{
    const struct ku_rank_map *m = f->m;
    const int n = ku_mesh_n_ranks(&m->mesh);
    struct line title = {.bytes = 0}, model = {.bytes = 0}, more = {.bytes = 0};
    const double n_params = (double)m->plan->s.n_params;
    const char *between = "; mesh: ";
    add(&title, "Which rank has what: %.60s, %d rank%s", ku_picture_file_name(f->config), n,
        n == 1 ? "" : "s");
    add(&model, n_params < 1e9 ? "%.2f million parameters, %s" : "%.2f billion parameters, %s",
        n_params < 1e9 ? n_params * 1e-6 : n_params * 1e-9, m->plan->s.cfg.precision_compute);
    for (int a = 0; a < KU_AX_FIRST_TIME; a++)
        if (m->mesh.extent[a] > 1) {
            add(&model, "%s%s %d", between, ku_axis_name(a), m->mesh.extent[a]);
            between = " x ";
        }
    if (m->plan->s.sharding.zero > 0)
        add(&model, "; zero %d", m->plan->s.sharding.zero);
    add(&more, "%d of %d ranks are drawn: the first ones and the last one of each axis",
        m->n_columns, n);
    f->y = 30;
    words(f, 17, 0x111111, 1, MARGIN, 0, title.text);
    f->y += 20;
    words(f, 12, INK, 0, MARGIN, 0, model.text);
    wrap(f, f->batch);
    if (m->n_columns == n)
        return;
    f->y += 17;
    words(f, 12, INK, 0, MARGIN, 0, more.text);
}

static int host_of(const struct ku_plan *p, int rank)
{
    int h = 0;
    while (h + 1 < p->n_hosts && p->host[h + 1].first <= rank)
        h++;
    return h;
}

static void draw_hosts(struct figure *f)
{
    const struct ku_plan *p = f->m->plan;
    if (p->host == NULL)
        return;
    words(f, 12, INK, 0, MARGIN, 0, "host");
    for (int i = 0, last; i < f->m->n_columns; i = last + 1) {
        const int host = host_of(p, f->m->column[i].rank);
        char text[24];
        last = i;
        while (last + 1 < f->m->n_columns && host_of(p, f->m->column[last + 1].rank) == host)
            last++;
        snprintf(text, sizeof text, "host %d", host);
        box(f, 0xdddddd, f->x[i], f->y - 12, right_of(f, last) - f->x[i], 16);
        words(f, 11, INK, 0, (f->x[i] + right_of(f, last)) / 2, 0.5, text);
    }
    f->y += 19;
}

/* A row for each axis of several ranks; its boxes are the ranks that have equal coordinates on it
 * and on the axes outside. */
static void draw_axes(struct figure *f)
{
    f->y += 28;
    draw_hosts(f);
    for (int a = 0; a < KU_AX_FIRST_TIME; a++) {
        if (f->m->mesh.extent[a] == 1)
            continue;
        words(f, 12, axis_colour[a], 1, MARGIN, 0, ku_axis_name(a));
        for (int i = 0, last; i < f->m->n_columns; i = last + 1) {
            char text[24];
            last = last_equal(f, i, (2 << a) - 1);
            snprintf(text, sizeof text, "%s %d", ku_axis_name(a), f->m->column[i].at.at[a]);
            box(f, mix(axis_colour[a], 0.3), f->x[i], f->y - 12, right_of(f, last) - f->x[i], 16);
            words(f, 11, INK, 0, (f->x[i] + right_of(f, last)) / 2, 0.5,
                  f->width < 40 && last == i ? strrchr(text, ' ') + 1 : text);
        }
        f->y += 19;
    }
    f->y += 2;
    words(f, 12, INK, 1, MARGIN, 0, f->width < 50 ? "rank" : "");
    for (int i = 0; i < f->m->n_columns; i++) {
        char text[24];
        snprintf(text, sizeof text, f->width < 50 ? "%d" : "rank %d", f->m->column[i].rank);
        const double need = ku_svg_width(12, 1, text), room = f->width + 2;
        words(f, need > room ? 12 * room / need : 12, INK, 1, f->x[i] + f->width / 2, 0.5, text);
        if (f->m->column[i].is_after_gap)
            words(f, 12, INK, 1, f->x[i] - 12, 0.5, "..");
    }
    f->y += 8;
}

/* "heads 0-5" or "head 3" for "heads ". */
static void print_range(char *out, size_t bytes, const char *word, int64_t begin, int64_t end)
{
    if (end == begin + 1) {
        const size_t n = strlen(word), plural = n > 1 && strcmp(word + n - 2, "s ") == 0;
        ku_text_print(out, bytes, "%.*s%s%lld", (int)(n - 2 * plural), word, plural ? " " : "",
                      (long long)begin);
    } else {
        ku_text_print(out, bytes, "%s%lld-%lld", word, (long long)begin, (long long)end - 1);
    }
}

/* A bar in column i of which [begin, end) of n is the rank's, alone or beside others. */
static void draw_range(const struct figure *f, int i, unsigned rgb, const char *word, int64_t begin,
                       int64_t end, int64_t n, bool is_alone)
{
    const double from = f->x[i] + f->width * (double)begin / (double)n;
    const double to = f->x[i] + f->width * (double)end / (double)n;
    char text[2][48];
    box(f, rgb, from, f->y, to - from < 1 ? 1 : to - from, BAR);
    print_range(text[0], sizeof text[0], word, begin, end);
    print_range(text[1], sizeof text[1], "", begin, end);
    if (word[0] == '\0' && end > begin + 1) /* the short form of a range alone is its beginning */
        snprintf(text[1], sizeof text[1], "%lld..", (long long)begin);
    label(f, rgb, from, to, is_alone ? f->x[i] : from, is_alone ? f->width : to - from, f->y + 10,
          (const char *const[]){text[0], text[1]});
}

static void begin_row(struct figure *f, const char *name, const char *more, double height)
{
    f->y += 10;
    words(f, 12, INK, 1, MARGIN, 0, name);
    words(f, 10, GREY, 0, LEFT - 8, 1, more);
    f->y -= 10;
    for (int i = 0; i < f->m->n_columns; i++)
        box(f, EMPTY, f->x[i], f->y, f->width, height);
}

static void draw_samples(struct figure *f)
{
    int64_t begin, end, n;
    char more[32];
    ku_rank_samples(f->m, 0, &begin, &end, &n);
    if (n == 0)
        return;
    snprintf(more, sizeof more, "of %lld", (long long)n);
    begin_row(f, "samples", more, BAR);
    for (int i = 0; i < f->m->n_columns; i++) {
        ku_rank_samples(f->m, i, &begin, &end, &n);
        draw_range(f, i, SAMPLES, "", begin, end, n, true);
    }
    f->y += PITCH + 4;
}

/* The layers of the stages of column i, of n. */
static void draw_stages(struct figure *f, int i, int n)
{
    const bool is_alone = ku_rank_n_stages(f->m) == f->m->mesh.extent[KU_AX_PP];
    bool is_empty = true;
    for (int stage = 0; stage < ku_rank_n_stages(f->m); stage++) {
        int first, count;
        ku_rank_stage_layers(f->m, stage, &first, &count);
        if (ku_rank_stage_pp(f->m, stage) != f->m->column[i].at.at[KU_AX_PP] || count == 0)
            continue;
        draw_range(f, i, LAYERS, "layers ", first, first + count, n, is_alone);
        is_empty = false;
    }
    if (is_empty)
        label(f, EMPTY, f->x[i], right_of(f, i), f->x[i], f->width, f->y + 10,
              (const char *const[]){"what follows the layers", "the rest"});
}

static void draw_layers(struct figure *f)
{
    const int n = f->m->layers.n;
    char more[32];
    if (n == 0)
        return;
    snprintf(more, sizeof more, "of %d", n);
    begin_row(f, "layers", more, BAR);
    for (int i = 0; i < f->m->n_columns; i++)
        draw_stages(f, i, n);
    f->y += PITCH + 4;
}

static void draw_activations(struct figure *f)
{
    int64_t begin, end, n;
    if (f->m->activation == 0)
        return;
    begin_row(f, "activations", "between layers", BAR);
    ku_rank_tokens(f->m, 0, &begin, &end, &n);
    for (int i = 0; i < f->m->n_columns; i++) {
        if (n) {
            ku_rank_tokens(f->m, i, &begin, &end, &n);
            draw_range(f, i, ACTIVATIONS, "tokens ", begin, end, n, true);
        } else {
            box(f, ACTIVATIONS, f->x[i], f->y, f->width, BAR);
            label(f, ACTIVATIONS, f->x[i], right_of(f, i), f->x[i], f->width, f->y + 10,
                  (const char *const[]){"whole", "all"});
        }
    }
    f->y += PITCH + 4;
}

/* The items of a kind and part: [first, last). */
static void items_of(const struct ku_rank_map *m, int kind, int part, uint32_t *first,
                     uint32_t *last)
{
    *first = 0;
    while (*first < m->n_items && (m->item[*first].kind != kind || m->item[*first].part != part))
        ++*first;
    *last = *first;
    while (*last < m->n_items && m->item[*last].kind == kind && m->item[*last].part == part)
        ++*last;
}

/* Tensors one below the other of equal extents. */
struct band {
    const struct ku_rank_item *item; /* the largest of them */
    struct ku_rank_extent e;
    double top, bottom; /* in elements */
    int last;           /* column: of several that have one copy */
    bool has;
};

static void draw_band(const struct figure *f, const struct band *b, int i, double total,
                      unsigned rgb, bool is_light)
{
    const double *range = is_light ? b->e.slice : b->e.own;
    const double width = right_of(f, b->last) - f->x[i];
    const double x = f->x[i] + width * range[0], wide = width * (range[1] - range[0]);
    const double y = f->y + f->bar * b->top / total, high = f->bar * (b->bottom - b->top) / total;
    const bool is_whole = b->e.slice[0] == b->e.own[0] && b->e.slice[1] == b->e.own[1];
    if (!b->has || high < 0.1 || range[1] == range[0] || (is_light && is_whole))
        return;
    box(f, is_light ? lighter(rgb) : rgb, x, y, wide < 1 ? 1 : wide, high);
}

static bool is_near(const double a[2], const double b[2])
{
    const double tolerance = 0.012; /* owners differ by a chunk */
    return a[0] - b[0] < tolerance && b[0] - a[0] < tolerance && a[1] - b[1] < tolerance &&
           b[1] - a[1] < tolerance;
}

/* The columns from i on that have one copy of a tensor together, if i is the first of them. */
static bool shares(const struct figure *f, const struct ku_rank_item *x, int i, int *last)
{
    const int axes = ~(1 << KU_AX_LOCAL);
    *last = i;
    if (!x->is_common)
        return true;
    *last = last_equal(f, i, axes);
    return i == 0 || last_equal(f, i - 1, axes) < i;
}

/* The band of item k in column i; at: elements before it. */
static struct band band_of(const struct figure *f, uint32_t k, int i, double at)
{
    const struct ku_rank_item *x = &f->m->item[k];
    struct band b = {.item = x, .top = at, .bottom = at + (double)x->count};
    b.has = shares(f, x, i, &b.last) && ku_rank_extent_of(f->m, x, i, &b.e);
    return b;
}

/* The band that begins with item *k, which moves to the item after it. */
static struct band next_band(const struct figure *f, uint32_t *k, uint32_t end, int i, double at)
{
    struct band b = band_of(f, *k, i, at);
    for (++*k; *k < end; ++*k) {
        const struct band more = band_of(f, *k, i, b.bottom);
        if (more.has != b.has || more.last != b.last ||
            (b.has && !(is_near(more.e.slice, b.e.slice) && is_near(more.e.own, b.e.own))))
            break;
        b.bottom = more.bottom;
        b.item = more.item->count > b.item->count ? more.item : b.item;
    }
    return b;
}

static double total_of(const struct figure *f, uint32_t first, uint32_t end)
{
    double total = 0;
    for (uint32_t k = first; k < end; k++)
        total += (double)f->m->item[k].count;
    return total;
}

static void draw_part(const struct figure *f, uint32_t first, uint32_t end, int i, bool is_light)
{
    const double total = total_of(f, first, end);
    struct band b = {.bottom = 0};
    for (uint32_t k = first; k < end;) {
        b = next_band(f, &k, end, i, b.bottom);
        draw_band(f, &b, i, total, kind_colour[f->m->item[first].kind], is_light);
    }
}

static const char *dim_name(char letter)
{
    switch (letter) {
    case 'h':
        return "heads ";
    case 'r':
        return "query heads ";
    case 'v':
        return "vocabulary ";
    default:
        return "columns ";
    }
}

/* The part of the largest tensor that a column has of a part of the model: "heads 0-5", "1/4". */
static void name_part(const struct figure *f, const struct ku_rank_item *x, int i, char text[2][64])
{
    const struct ku_shape *shape = &f->m->g->shape[x->shape];
    struct ku_slice s;
    int n = 1;
    text[0][0] = text[1][0] = '\0';
    for (int a = 0; a < KU_AX_FIRST_TIME && x->blocks; a++)
        if (f->m->g->layout[x->blocks].at[a].kind == KU_Z)
            n *= f->m->mesh.extent[a];
    if (n > 1)
        snprintf(text[1], sizeof text[1], "1/%d", n);
    if (x->kind != KU_SK_PARAMS || x->split == 0) {
        memcpy(text[0], text[1], sizeof text[0]);
        return;
    }
    ku_slice_of(&f->m->mesh, shape, &f->m->g->layout[x->split], &f->m->column[i].at, &s);
    for (int d = 0; d < shape->ndim; d++)
        if (s.count[d] < shape->dim[d].count)
            print_range(text[0], 32, dim_name(shape->dim[d].name), s.start[d],
                        s.start[d] + s.count[d]);
    if (text[1][0])
        snprintf(text[0] + strlen(text[0]), 16, ", %s", text[1]);
    else
        snprintf(text[1], sizeof text[1], "%.40s",
                 strchr(text[0], ' ') ? strchr(text[0], ' ') + 1 : "");
}

/* Names the highest band of a column, if there is room in it. */
static void name_parts(const struct figure *f, uint32_t first, uint32_t end, int i)
{
    const double total = total_of(f, first, end);
    struct band b = {.bottom = 0}, most = {.top = 0, .bottom = 0};
    char text[2][64];
    for (uint32_t k = first; k < end;) {
        b = next_band(f, &k, end, i, b.bottom);
        if (b.has && b.e.count > 0 && b.bottom - b.top > most.bottom - most.top)
            most = b;
    }
    if (f->cr == NULL || most.item == NULL || most.item->order ||
        f->bar * (most.bottom - most.top) / total < 11)
        return;
    name_part(f, most.item, i, text);
    const double left = f->x[i] + f->width * most.e.own[0],
                 right = f->x[i] + f->width * most.e.own[1];
    const struct ku_font font = {10, ku_picture_ink(kind_colour[most.item->kind]), 0};
    if (text[0][0])
        ku_picture_fit(f->cr, font, (left + right) / 2,
                       f->y + f->bar * (most.top + most.bottom) / 2 / total + 3.6, right - left - 4,
                       (const char *const[]){text[0], text[1]}, 2);
}

/* Bytes that a column stores of a kind; common: in the copy that it shares. */
static void bytes_of(const struct figure *f, int kind, int i, double *own, double *common)
{
    *own = *common = 0;
    for (uint32_t k = 0; k < f->m->n_items; k++) {
        const struct ku_rank_item *x = &f->m->item[k];
        struct ku_rank_extent e;
        if (x->kind == kind && ku_rank_extent_of(f->m, x, i, &e))
            *(x->is_common ? common : own) +=
                (double)e.count * (double)kumi_dtype_bytes((enum kumi_dtype)x->dtype);
    }
}

/* "118.65 MiB", or where a column is narrow "119 MiB" or "119 M". */
static void draw_size(const struct figure *f, double bytes, double x, double width)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    char text[3][16];
    int u = 0;
    double rest = bytes;
    for (; u < 4 && rest >= 1024; u++)
        rest /= 1024;
    ku_picture_bytes((uint64_t)bytes, text[0]);
    const int digits = rest >= 100 || u == 0 ? 0 : rest >= 10 ? 1 : 2;
    ku_text_print(text[1], sizeof text[1], "%.*f %s", digits, rest, unit[u]);
    ku_text_print(text[2], sizeof text[2], "%.*f %c", digits, rest, unit[u][0]);
    if (f->cr)
        ku_picture_fit(f->cr, (struct ku_font){10, GREY, 0}, x + width / 2, f->y, width + 2,
                       (const char *const[]){text[0], text[1], text[2]}, 3);
}

static void draw_bytes(struct figure *f, int kind)
{
    const int n = f->m->n_columns;
    double own[KU_MAX_COLUMNS], common[KU_MAX_COLUMNS], any_own = 0, any_common = 0;
    char bytes[16], text[48];
    for (int i = 0; i < n; i++) {
        bytes_of(f, kind, i, &own[i], &common[i]);
        any_own += own[i], any_common += common[i];
    }
    f->y += any_own > 0 ? 10 : 0;
    for (int i = 0; i < n && any_own > 0; i++)
        draw_size(f, own[i], f->x[i], f->width);
    f->y += any_common > 0 ? 10 : 0;
    for (int i = 0, last; i < n && any_common > 0; i = last + 1) {
        last = last_equal(f, i, ~(1 << KU_AX_LOCAL));
        snprintf(text, sizeof text, "%s, one copy", ku_picture_bytes((uint64_t)common[i], bytes));
        words(f, 10, GREY, 0, (f->x[i] + right_of(f, last)) / 2, 0.5, text);
    }
    f->y += 10;
}

static const char *part_name(const struct ku_rank_map *m, int part)
{
    static const char *const name[KU_N_MODEL_PARTS] = {"tables", "convolutions", "attention", "MLP",
                                                       "norms",  "output layer", "other"};
    return part == KU_MP_LAYERS && !m->has_attention ? "linear layers" : name[part];
}

/* "f32", below the name of a kind; of state that memory.offload moves also where it is. */
static void draw_storage(struct figure *f, const struct ku_rank_item *x)
{
    struct line l = {.bytes = 0};
    add(&l, "%s%s", kumi_dtype_name((enum kumi_dtype)x->dtype),
        x->kind == KU_SK_GRADS                                  ? ""
        : f->m->g->tensor[x->tensor].offload == KU_OFFLOAD_HOST ? ", host memory"
        : f->m->g->tensor[x->tensor].offload == KU_OFFLOAD_FILE ? ", in a file"
                                                                : "");
    f->y += 24;
    words(f, 10, GREY, 0, MARGIN, 0, l.text);
    f->y -= 24;
}

static void draw_kind(struct figure *f, int kind)
{
    uint32_t first, end;
    bool is_first = true;
    for (int part = 0; part < KU_N_MODEL_PARTS; part++) {
        items_of(f->m, kind, part, &first, &end);
        if (first == end)
            continue;
        begin_row(f, is_first ? kind_name[kind] : "", part_name(f->m, part), f->bar);
        if (is_first)
            draw_storage(f, &f->m->item[first]);
        is_first = false;
        for (int light = 1; light >= 0; light--)
            for (int i = 0; i < f->m->n_columns; i++)
                draw_part(f, first, end, i, light);
        for (int i = 0; i < f->m->n_columns; i++)
            name_parts(f, first, end, i);
        f->y += f->bar + 2;
    }
    if (!is_first)
        draw_bytes(f, kind);
}

/* "gradients, parameters" of the classes of an exchange. */
static void add_classes(struct line *out, unsigned classes)
{
    static const struct {
        unsigned classes;
        const char *name;
    } row[] = {{1u << KU_CL_GRAD | 1u << KU_CL_PARTIAL, "gradients"},
               {1u << KU_CL_PARAM | 1u << KU_CL_DERIVED | 1u << KU_CL_GATHER | 1u << KU_CL_STAGING,
                "parameters"},
               {1u << KU_CL_ACTIVATION, "activations"},
               {1u << KU_CL_ADJOINT, "gradients of activations"}};
    const size_t before = out->bytes;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        if (classes & row[i].classes)
            add(out, "%s%s", out->bytes > before ? ", " : "", row[i].name);
    if (out->bytes == before)
        add(out, "sums");
}

static void describe(const struct ku_rank_exchange *x, struct line *out)
{
    const char *name = ku_exchange_name(x->exchange), *under = strchr(name, '_');
    const bool is_in_memory = x->axes == 1 << KU_AX_LOCAL;
    char bytes[16];
    add(out, "%.*s%s%s of ", under ? (int)(under - name) : (int)strlen(name), name,
        under ? "-" : "", under ? under + 1 : "");
    add_classes(out, x->classes);
    ku_picture_bytes((uint64_t)(is_in_memory ? x->stored_bytes : x->ring_bytes), bytes);
    add(out, is_in_memory ? ": a rank writes %s to shared memory" : ": a rank sends %s", bytes);
    add(out, ", in %u collective%s", x->n_a_step, x->n_a_step == 1 ? "" : "s");
    if (x->group)
        add(out, ", within groups of %d neighbours", x->n_ranks);
}

/* Whether two columns are in one group along the axes, of `group` neighbours if not 0. */
static bool are_peers(const struct figure *f, int axes, int group, int i, int k)
{
    const int *a = f->m->column[i].at.at, *b = f->m->column[k].at.at;
    for (int axis = 0; axis < KU_AX_FIRST_TIME; axis++)
        if (axes >> axis & 1 ? group && a[axis] / group != b[axis] / group : a[axis] != b[axis])
            return false;
    return true;
}

/* A line through the members of each group, groups that overlap one below the other. */
static void draw_groups(struct figure *f, int axes, int group, unsigned rgb)
{
    enum { STEP = 9, DOT = 7 };
    const int n = f->m->n_columns;
    int level_end[KU_MAX_COLUMNS], n_levels = 0;
    for (int i = 0; i < n; i++) {
        int last = i, level = 0;
        bool is_first = true;
        for (int k = 0; k < i; k++)
            is_first = is_first && !are_peers(f, axes, group, i, k);
        for (int k = i; k < n; k++)
            last = are_peers(f, axes, group, i, k) ? k : last;
        if (!is_first)
            continue;
        while (level < n_levels && level_end[level] >= i)
            level++;
        n_levels = level == n_levels ? n_levels + 1 : n_levels;
        level_end[level] = last;
        const double y = f->y + level * STEP;
        box(f, rgb, f->x[i] + f->width / 2, y - 1, f->x[last] - f->x[i], 2);
        for (int k = i; k <= last; k++)
            if (are_peers(f, axes, group, i, k))
                box(f, rgb, f->x[k] + (f->width - DOT) / 2, y - DOT / 2.0, DOT, DOT);
    }
    f->y += n_levels * STEP;
}

static void draw_exchange(struct figure *f, int axes, int group, const char *text)
{
    struct line name = {.bytes = 0};
    int outer = 0;
    while ((axes >> outer & 1) == 0)
        outer++;
    for (int a = 0; a < KU_AX_FIRST_TIME; a++)
        if (axes >> a & 1 && f->m->mesh.extent[a] > 1)
            add(&name, "%s%s", name.bytes ? " x " : "", ku_axis_name(a));
    f->y += 14;
    words(f, 12, axis_colour[outer], 1, MARGIN, 0, name.text);
    words(f, ku_svg_width(11, 0, text) <= RIGHT - LEFT ? 11 : 8.5, INK, 0, LEFT, 0, text);
    f->y += 10;
    draw_groups(f, axes, group, axis_colour[outer]);
}

static void draw_exchanges(struct figure *f)
{
    struct line messages = {.bytes = 0};
    char bytes[16];
    if (f->m->n_exchanges == 0 && f->m->message_bytes == 0)
        return;
    f->y += 14;
    words(f, 12, INK, 1, MARGIN, 0, "in a step");
    words(f, 10, GREY, 0, LEFT, 0, "groups that exchange, and the most that a rank of them sends");
    f->y += 6;
    add(&messages, "activations to the next stage, gradients to the stage before: a rank sends %s",
        ku_picture_bytes((uint64_t)f->m->message_bytes, bytes));
    if (f->m->message_bytes > 0)
        draw_exchange(f, 1 << KU_AX_PP, 0, messages.text);
    for (uint32_t i = 0; i < f->m->n_exchanges; i++) {
        const struct ku_rank_exchange *x = &f->m->exchange[i];
        struct line text = {.bytes = 0};
        describe(x, &text);
        draw_exchange(f, x->axes, x->group, text.text);
    }
}

/* What light and shared bars are, where there are some. */
static void draw_legend(struct figure *f)
{
    bool is_light = false, is_common = false;
    struct ku_rank_extent e;
    for (uint32_t k = 0; k < f->m->n_items; k++) {
        is_common |= f->m->item[k].is_common;
        for (int i = 0; i < f->m->n_columns; i++)
            is_light |= ku_rank_extent_of(f->m, &f->m->item[k], i, &e) &&
                        (e.own[0] > e.slice[0] || e.own[1] < e.slice[1]);
    }
    f->y += 16;
    box(f, kind_colour[0], MARGIN, f->y - 10, 18, 12);
    words(f, 11, INK, 0, MARGIN + 24, 0,
          "stored. A bar stands for all tensors of a part of the model: across it are the elements "
          "of each, down it the tensors");
    if (is_light) {
        f->y += 17;
        box(f, lighter(kind_colour[0]), MARGIN, f->y - 10, 18, 12);
        words(f, 11, INK, 0, MARGIN + 24, 0,
              "in memory for a part of the step: gathered or received for layers that read it, or "
              "not yet reduced");
    }
    if (is_common) {
        f->y += 17;
        words(f, 11, INK, 0, MARGIN + 24, 0,
              "A bar over several ranks is one copy in memory that they share; each updates the "
              "part in its column.");
    }
    f->y += 14;
}

struct drawing {
    const struct ku_rank_map *m;
    const char *config, *batch;
};

/* Returns the height. */
static double draw_all(cairo_t *cr, const struct drawing *d)
{
    struct figure f = {.cr = cr, .m = d->m, .config = d->config, .batch = d->batch};
    place_columns(&f);
    draw_title(&f);
    draw_axes(&f);
    draw_samples(&f);
    draw_layers(&f);
    draw_activations(&f);
    f.y += 6;
    for (int kind = 0; kind < KU_N_STATE_KINDS; kind++)
        draw_kind(&f, kind);
    draw_exchanges(&f);
    draw_legend(&f);
    return f.y;
}

static void draw(cairo_t *cr, const void *ctx)
{
    (void)draw_all(cr, ctx);
}

int ku_rank_map_draw(const struct ku_rank_map *m, const char *config, const char *path)
{
    const struct ku_batch_source *source = m->plan->s.source;
    struct ku_str batch = {0};
    source->ops->print_plan(source, source->ops->largest_shape(source), &batch);
    const struct drawing d = {m, config, ku_str_get(&batch)};
    const int status = batch.failed
                           ? KUMI_ENOMEM
                           : ku_picture_write_plain(path, WIDTH, (int)draw_all(NULL, &d), draw, &d);
    ku_str_fini(&batch);
    return status;
}
#else
int ku_rank_map_draw(const struct ku_rank_map *m, const char *config, const char *path)
{
    (void)m, (void)config;
    return ku_picture_check(path);
}
#endif
