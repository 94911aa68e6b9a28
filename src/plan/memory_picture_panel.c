/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One panel of the memory plan: the buffers of an arena as bars, offset over the axis.
 *
 *   thick bar    at least 6 units high and 3 wide: its own rectangle
 *   thin bar     merged into a grid of 1 x 1 cells. A cell is filled if the buffers that are alive
 *                at any time within its column cover half of it; its colour is that of the class
 *                that covers most
 *
 * All cells of a class form one path, so that cell edges cause no seams or moire. The size of the
 * picture does not depend on the size of the model.
 */
#include "plan/memory_picture.h"

#ifdef KUMI_CAIRO
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

enum { COLUMNS = KU_PANEL_COLUMNS };
static const double thick_height = 6, thick_width = 3, number_height = 13, number_width = 22;

struct span {
    double x0, x1, y0, y1; /* y0: top, the higher offset */
};

static const struct ku_panel *panel_of(const struct ku_plan_picture *d, int arena)
{
    for (int i = 0; i < d->n_panels; i++)
        if (d->panel[i].arena == arena)
            return &d->panel[i];
    return NULL;
}

static double y_of(const struct ku_plan_picture *d, const struct ku_panel *panel, double offset)
{
    return panel->top + panel->height * (1 - offset / (double)d->p->arena_bytes[panel->arena]);
}

/* A constant buffer is drawn from edge to edge. */
static struct span span_of(const struct ku_plan_picture *d, const struct ku_panel *panel,
                           const struct ku_buffer *b)
{
    int comes_and_goes = ku_picture_is_transient(b);
    return (struct span){.x0 = comes_and_goes ? ku_panel_x(d, b->first) : KU_PANEL_LEFT,
                         .x1 = comes_and_goes ? ku_panel_x(d, b->last + 1) : KU_PANEL_RIGHT,
                         .y0 = y_of(d, panel, (double)(b->offset + b->bytes)),
                         .y1 = y_of(d, panel, (double)b->offset)};
}

bool ku_panel_is_thick(const struct ku_plan_picture *d, const struct ku_buffer *b, int for_number)
{
    const struct ku_panel *panel = panel_of(d, b->arena);
    if (panel == NULL)
        return 0;
    struct span s = span_of(d, panel, b);
    return s.y1 - s.y0 >= (for_number ? number_height : thick_height) &&
           s.x1 - s.x0 >= (for_number ? number_width : thick_width);
}

/* Add a thin bar to the covered area of each cell. */
static void cover(const struct ku_plan_picture *d, const struct ku_panel *panel,
                  const struct ku_buffer *b, float *covered)
{
    struct span s = span_of(d, panel, b);
    int x0 = (int)floor(s.x0) - KU_PANEL_LEFT, x1 = (int)ceil(s.x1) - KU_PANEL_LEFT;
    x1 = x1 <= x0 ? x0 + 1 : x1;
    for (int y = (int)s.y0 - panel->top; y < panel->height && y + panel->top < s.y1; y++) {
        double top = fmax(s.y0, y + panel->top), bottom = fmin(s.y1, y + panel->top + 1);
        for (int x = x0; x < x1 && x < COLUMNS && bottom > top; x++)
            covered[y * COLUMNS + x] += (float)(bottom - top);
    }
}

int ku_panel_init(const struct ku_plan_picture *d, struct ku_panel *panel)
{
    size_t n = (size_t)panel->height * COLUMNS;
    panel->cell = ku_calloc(n, 1);
    float *plane = ku_calloc(3 * n, sizeof *plane);
    if (panel->cell == NULL || plane == NULL) {
        ku_free(plane);
        return KUMI_ENOMEM;
    }
    float *covered = plane, *best = plane + n, *all = plane + 2 * n;
    for (int c = 0; c < KU_N_CLASSES; c++) {
        int is_there = 0;
        for (ku_id b = 1; b < d->p->n_buffers; b++) {
            const struct ku_buffer *x = &d->p->buffer[b];
            if (x->arena != panel->arena || x->cls != c || !ku_picture_is_drawn(d->p, b) ||
                ku_panel_is_thick(d, x, 0))
                continue;
            cover(d, panel, x, covered);
            is_there = 1;
        }
        for (size_t i = 0; i < n && is_there; i++) {
            if (covered[i] > best[i])
                panel->cell[i] = (uint8_t)(1 + c);
            best[i] = fmaxf(best[i], covered[i]);
            all[i] += covered[i];
            covered[i] = 0;
        }
    }
    for (size_t i = 0; i < n; i++)
        if (all[i] < 0.5f)
            panel->cell[i] = 0;
    ku_free(plane);
    return KUMI_OK;
}

void ku_panel_fini(struct ku_panel *panel)
{
    ku_free(panel->cell);
    panel->cell = NULL;
}

static bool is_run(const uint8_t *cell, int n, int value)
{
    for (int i = 0; i < n; i++)
        if (cell[i] != value)
            return 0;
    return 1;
}

/*
 * Draw the cells of a class as a few rectangles of one path: extended to the right first, then
 * down.
 */
static void draw_cells(const struct ku_plan_picture *d, const struct ku_panel *panel, int value)
{
    uint8_t *cell = panel->cell;
    for (int y = 0; y < panel->height; y++) {
        for (int x = 0, n, rows; x < COLUMNS; x += n) {
            for (n = 0; x + n < COLUMNS && cell[y * COLUMNS + x + n] == value;)
                n++;
            for (rows = n > 0; n > 0 && y + rows < panel->height &&
                               is_run(&cell[(y + rows) * COLUMNS + x], n, value);)
                rows++;
            for (int r = 0; r < rows; r++)
                memset(&cell[(y + r) * COLUMNS + x], 0, (size_t)n);
            if (n > 0)
                cairo_rectangle(d->cr, KU_PANEL_LEFT + x, panel->top + y, n, rows);
            n += n == 0;
        }
    }
    ku_picture_colour(d->cr, ku_class_colour[value - 1]);
    cairo_fill(d->cr);
}

static void draw_number(const struct ku_plan_picture *d, ku_id buffer, double x, double y)
{
    const struct ku_picture_group *g = ku_picture_group_of(d, buffer);
    const double peak = ku_peak_x(d);
    if (g && g->number)
        ku_picture_text(d->cr, ku_number_font, fabs(x - peak) < 9 ? peak + 11 : x, y, 0.5, "%d",
                        g->number);
}

/* Draw the thick bars: one path per class, then all outlines, then the numbers. */
static void draw_thick(const struct ku_plan_picture *d, const struct ku_panel *panel)
{
    enum { OUTLINE = KU_N_CLASSES, NUMBER, N_PASSES };
    for (int pass = 0; pass < N_PASSES; pass++) {
        for (ku_id id = 1; id < d->p->n_buffers; id++) {
            const struct ku_buffer *b = &d->p->buffer[id];
            if (b->arena != panel->arena || (pass < OUTLINE && b->cls != pass) ||
                !ku_picture_is_drawn(d->p, id) || !ku_panel_is_thick(d, b, pass == NUMBER))
                continue;
            struct span s = span_of(d, panel, b);
            if (pass < NUMBER)
                cairo_rectangle(d->cr, s.x0, s.y0, s.x1 - s.x0, s.y1 - s.y0);
            else
                draw_number(d, id, s.x0 + 11, (s.y0 + s.y1) / 2 + 4);
        }
        if (pass < OUTLINE) {
            ku_picture_colour(d->cr, ku_class_colour[pass]);
            cairo_fill(d->cr);
        } else if (pass == OUTLINE) {
            cairo_set_source_rgba(d->cr, 1, 1, 1, 0.8);
            cairo_set_line_width(d->cr, 0.6);
            cairo_stroke(d->cr);
        }
    }
}

static const char *const what[KU_N_ARENAS] = {
    [KU_AR_HOST] = "state shared by the host's ranks",
    [KU_AR_STATE] = "private state of this rank",
    [KU_AR_SHARD] = "shards of this rank, read by the host's ranks",
    [KU_AR_WIRE] = "operands of collectives, read by the host's ranks",
    [KU_AR_GATHER] = "parameters gathered for the host's ranks",
    [KU_AR_STEP] = "private to this rank, within the step",
    [KU_AR_INPUT] = "inputs, filled before the step",
    [KU_AR_OFFLOAD] = "host memory of this rank, through staging buffers",
    [KU_AR_FILE] = "on disk, through staging buffers"};

void ku_panel_draw(const struct ku_plan_picture *d, const struct ku_panel *panel)
{
    ku_picture_box(d->cr, 0xf5f5f5, KU_PANEL_LEFT, panel->top, KU_PANEL_COLUMNS, panel->height);
    for (int c = 0; c < KU_N_CLASSES; c++)
        draw_cells(d, panel, 1 + c);
    draw_thick(d, panel);
    ku_picture_frame(d->cr, KU_PANEL_LEFT, panel->top, KU_PANEL_COLUMNS, panel->height);
    ku_picture_bytes_axis(d->cr,
                          &(struct ku_bytes_axis){.x = KU_PANEL_LEFT,
                                                  .top = panel->top,
                                                  .bottom = panel->top + panel->height,
                                                  .bytes = (double)d->p->arena_bytes[panel->arena],
                                                  .n_marks = fmax(2, floor(panel->height / 34.0)),
                                                  .name_x = 20,
                                                  .name = panel->height < 100 ? "" : "offset, "});
}

/*
 * Black text on a white box, which covers lines below it. Returns the width.
 */
static double draw_on_white(const struct ku_plan_picture *d, struct ku_font font, double x,
                            double y, const char *text)
{
    const double width = ku_picture_text_width(d->cr, font, text);
    ku_picture_box(d->cr, 0xffffff, x - 2, y - 12, width + 4, 16);
    ku_picture_text(d->cr, font, x, y, 0, "%s", text);
    return width;
}

/* The name of the arena in bold, then its description. */
static void draw_arena(const struct ku_plan_picture *d, int arena, double y, const char *more)
{
    char text[128], bytes[16];
    const struct ku_font name = {14, 0x333333, 1}, font = {13, 0x333333, 0};
    double x = KU_PANEL_LEFT + draw_on_white(d, name, KU_PANEL_LEFT, y, ku_arena_name(arena));
    snprintf(text, sizeof text, "%s%s: %s", what[arena], more,
             ku_picture_bytes(d->p->arena_bytes[arena], bytes));
    draw_on_white(d, font, x + 12, y, text);
}

void ku_panel_draw_caption(const struct ku_plan_picture *d, const struct ku_panel *panel)
{
    draw_arena(d, panel->arena, panel->top - 8, "");
}

/*
 * Draw one class of a constant arena, with its name if there is room. Returns the width.
 */
static double draw_class(const struct ku_plan_picture *d, int arena, int cls, double x, double y,
                         double per_byte)
{
    size_t sum = 0;
    char text[2][64], bytes[16];
    for (ku_id b = 1; b < d->p->n_buffers; b++)
        if (d->p->buffer[b].arena == arena && d->p->buffer[b].cls == cls &&
            ku_picture_is_drawn(d->p, b))
            sum += d->p->buffer[b].bytes;
    double width = per_byte * (double)sum;
    if (width < 0.5)
        return width;
    ku_picture_box(d->cr, ku_class_colour[cls], x, y, width, KU_BAND_BAR);
    snprintf(text[0], sizeof text[0], "%s %s", ku_class_name(cls), ku_picture_bytes(sum, bytes));
    snprintf(text[1], sizeof text[1], "%s", ku_class_name(cls));
    ku_picture_fit(d->cr, (struct ku_font){13, ku_picture_ink(ku_class_colour[cls]), 0},
                   x + width / 2, y + KU_BAND_BAR / 2.0 + 4.5, width - 8,
                   (const char *const[]){text[0], text[1]}, 2);
    return width;
}

void ku_band_draw(const struct ku_plan_picture *d, int arena, double y, double per_byte)
{
    double x = KU_PANEL_LEFT;
    draw_arena(d, arena, y - 7, ", constant");
    for (int c = 0; c < KU_N_CLASSES; c++)
        x += draw_class(d, arena, c, x, y, per_byte);
    ku_picture_frame(d->cr, KU_PANEL_LEFT, y, per_byte * (double)d->p->arena_bytes[arena],
                     KU_BAND_BAR);
}
#endif
