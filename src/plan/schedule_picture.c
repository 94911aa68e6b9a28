/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pipeline schedule as a picture: coordinates of axis pp over time, a box per block, an arrow per
 * transfer between coordinates, and the optimizer after the last block of all. An arrow goes from
 * the end of a block to the beginning of the block that reads its result; both ends lie a little
 * inside their blocks, so that arrows of transfers in both directions at one time cross.
 *
 *     pp 0  [F0][F1]        [B0    ][  O  ]
 *              \          /
 *     pp 1       [F0][B0    ]       [  O  ]
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/picture.h"
#include "plan/schedule_report.h"

enum { WIDTH = 1200, LEFT = 60, RIGHT = WIDTH - 24, TOP = 84, FOOT = 84 };

/* With the gap that the arrows cross. */
static int row_height(const struct ku_plan_schedule *t)
{
    return t->s->n_ranks <= 16 ? 46 : 20;
}

#ifdef KUMI_CAIRO
static int box_height(const struct ku_plan_schedule *t)
{
    return t->s->n_ranks <= 16 ? 28 : 12;
}

/* The optimizer is as wide as a unit of time, and wide enough for its letter. */
static double optimizer_width(const struct ku_plan_schedule *t)
{
    return t->makespan < 50 ? 1 : t->makespan / 50;
}

/* The x of a time. */
static double x_of(const struct ku_plan_schedule *t, double at)
{
    return LEFT + (RIGHT - LEFT) * at / (t->makespan + optimizer_width(t));
}

/* Of F, B, I and W; stages after a coordinate's first are darker. */
static const unsigned colour[2][KU_N_BLOCK_KINDS] = {{0xa0cbe8, 0x8cc07d, 0xffbe7d, 0xd4a6c8},
                                                     {0x4e79a7, 0x3f7f3a, 0xd97e1f, 0x8e5a86}};
enum { HEAD = 5 /* of an arrow; of narrow blocks less */ };
enum { OPTIMIZER = 0x6b6b6b, ACTIVATIONS = 0x1f4e79, GRADIENTS = 0x9c2f00 };
static const char *const kind_name[KU_N_BLOCK_KINDS] = {
    "F: forward", "B: backward", "I: gradients of activations", "W: gradients of parameters"};

static bool is_later_stage(const struct ku_pp_schedule *s, int stage)
{
    for (int k = 0; k < stage; k++)
        if (s->rank_of[k] == s->rank_of[stage])
            return 1;
    return 0;
}

static void draw_box(cairo_t *cr, const struct ku_plan_schedule *t, unsigned rgb, double x0,
                     double x1, double y, const char *const label[2])
{
    const double width = x1 - x0;
    ku_picture_box(cr, rgb, x0, y, width > 3 ? width - 1 : width, box_height(t));
    ku_picture_fit(cr, (struct ku_font){11, ku_picture_ink(rgb), 0}, (x0 + x1) / 2,
                   y + box_height(t) / 2.0 + 4, width - 3, label, 2);
}

static void draw_boxes(cairo_t *cr, const struct ku_plan_schedule *t, int r)
{
    const struct ku_pp_schedule *s = t->s;
    const double y = TOP + r * row_height(t);
    for (uint32_t i = s->first[r]; i < s->first[r + 1]; i++) {
        const struct ku_block *b = &s->block[i];
        char label[24], micro[12];
        ku_schedule_label(s, b, label);
        snprintf(micro, sizeof micro, "%d", b->micro);
        draw_box(cr, t, colour[is_later_stage(s, b->stage)][b->kind], x_of(t, t->begin[i]),
                 x_of(t, t->end[i]), y, (const char *const[]){label, micro});
    }
    draw_box(cr, t, OPTIMIZER, x_of(t, t->makespan), RIGHT, y, (const char *const[]){"O", ""});
}

/* One path, so that a picture has as many strokes of these colours as arrows. */
static void draw_arrow(cairo_t *cr, int kind, double head, const double from[2], const double to[2])
{
    const double angle = atan2(to[1] - from[1], to[0] - from[0]), spread = 0.45; /* radians */
    ku_picture_colour(cr, kind == KU_BL_F ? ACTIVATIONS : GRADIENTS);
    cairo_set_line_width(cr, head / 4);
    cairo_move_to(cr, from[0], from[1]);
    cairo_line_to(cr, to[0], to[1]);
    cairo_line_to(cr, to[0] - head * cos(angle - spread), to[1] - head * sin(angle - spread));
    cairo_move_to(cr, to[0], to[1]);
    cairo_line_to(cr, to[0] - head * cos(angle + spread), to[1] - head * sin(angle + spread));
    cairo_stroke(cr);
}

static int rank_of(const struct ku_pp_schedule *s, int64_t block)
{
    return s->rank_of[s->block[block].stage];
}

static double clamp(double x, double min, double max)
{
    return x < min ? min : x > max ? max : x;
}

/* The arrow of a block's result, from the facing edge of its box to that of its reader. */
static void draw_transfer(cairo_t *cr, const struct ku_plan_schedule *t, uint32_t from, int64_t to)
{
    const int r0 = rank_of(t->s, from), r1 = rank_of(t->s, to);
    const double width0 = x_of(t, t->end[from]) - x_of(t, t->begin[from]),
                 width1 = x_of(t, t->end[to]) - x_of(t, t->begin[to]);
    const double y0 = TOP + r0 * row_height(t), y1 = TOP + r1 * row_height(t);
    draw_arrow(cr, t->s->block[from].kind, clamp(width1 / 3, 2, HEAD),
               (const double[]){x_of(t, t->end[from]) - clamp(width0 / 4, 0, 5),
                                r1 > r0 ? y0 + box_height(t) : y0},
               (const double[]){x_of(t, t->begin[to]) + clamp(width1 / 4, 0, 5),
                                r1 > r0 ? y1 : y1 + box_height(t)});
}

/* Of those between neighbouring rows, or of those past other rows. */
static void draw_transfers(cairo_t *cr, const struct ku_plan_schedule *t, bool are_neighbours)
{
    for (uint32_t i = 0; i < t->s->first[t->s->n_ranks]; i++)
        if (t->reader[i] != KU_NO_BLOCK &&
            (abs(rank_of(t->s, i) - rank_of(t->s, t->reader[i])) == 1) == are_neighbours)
            draw_transfer(cr, t, i, t->reader[i]);
}

/* Boxes hide the arrows past their rows, so that every label is readable. */
static void draw_rows(cairo_t *cr, const struct ku_plan_schedule *t)
{
    const struct ku_pp_schedule *s = t->s;
    for (int r = 0; r < s->n_ranks; r++) {
        const double y = TOP + r * row_height(t);
        ku_picture_box(cr, 0xf0f0f0, LEFT, y, RIGHT - LEFT, box_height(t));
        ku_picture_text(cr, (struct ku_font){13, 0x222222, 0}, LEFT - 8,
                        y + box_height(t) / 2.0 + 4, 1, "pp %d", r);
    }
    draw_transfers(cr, t, 0);
    for (int r = 0; r < s->n_ranks; r++)
        draw_boxes(cr, t, r);
    draw_transfers(cr, t, 1);
}

static void draw_legend(cairo_t *cr, const struct ku_plan_schedule *t, double y)
{
    static const char *const sent[] = {"activations, to the coordinate of the next stage",
                                       "gradients, to the coordinate of the stage before"};
    bool has[KU_N_BLOCK_KINDS] = {0};
    double x = LEFT;
    for (uint32_t i = 0; i < t->s->first[t->s->n_ranks]; i++)
        has[t->s->block[i].kind] = 1;
    for (int k = 0; k < KU_N_BLOCK_KINDS; k++) {
        if (!has[k])
            continue;
        ku_picture_box(cr, colour[0][k], x, y - 11, 18, 14);
        if (t->s->n_stages > t->s->n_ranks)
            ku_picture_box(cr, colour[1][k], x + 9, y - 11, 9, 14);
        ku_picture_text(cr, (struct ku_font){13, 0x222222, 0}, x + 26, y, 0, "%s", kind_name[k]);
        x += 50 + ku_picture_text_width(cr, (struct ku_font){13, 0x222222, 0}, kind_name[k]);
    }
    ku_picture_box(cr, OPTIMIZER, x, y - 11, 18, 14);
    ku_picture_text(cr, (struct ku_font){13, 0x222222, 0}, x + 26, y, 0,
                    "O: optimizer, whose time is not modelled");
    x = LEFT, y += 24;
    for (int k = KU_BL_F; k <= KU_BL_B; k++) {
        const double high = y - 11, low = y + 3;
        draw_arrow(cr, k, HEAD, (const double[]){x, k == KU_BL_F ? high : low},
                   (const double[]){x + 18, k == KU_BL_F ? low : high});
        ku_picture_text(cr, (struct ku_font){13, 0x222222, 0}, x + 26, y, 0, "%s", sent[k]);
        x += 50 + ku_picture_text_width(cr, (struct ku_font){13, 0x222222, 0}, sent[k]);
    }
}

static void draw(cairo_t *cr, const void *ctx)
{
    const struct ku_plan_schedule *t = ctx;
    const struct ku_pp_schedule *s = t->s;
    int most = 0;
    for (int r = 0; r < s->n_ranks; r++)
        most = ku_pp_schedule_peak(s, r) > most ? ku_pp_schedule_peak(s, r) : most;
    ku_picture_text(cr, (struct ku_font){19, 0x111111, 1}, 20, 34, 0,
                    "Pipeline: %.60s, pp %d, %d stages, %d micro-batches",
                    ku_picture_file_name(t->name), s->n_ranks, s->n_stages, s->n_micro);
    ku_picture_text(cr, (struct ku_font){13, 0x111111, 0}, 20, 56, 0,
                    "bubble %.1f %%, of a step with a common update %.1f %%; at most %d "
                    "micro-batches in flight; %s",
                    100 * t->bubble, 100 * t->joint_bubble, most, ku_schedule_units(t));
    draw_rows(cr, t);
    const double bottom = TOP + s->n_ranks * row_height(t),
                 step = ku_picture_step(t->makespan / 20);
    for (double at = 0; at <= t->makespan; at += step)
        ku_picture_text(cr, (struct ku_font){11, 0x444444, 0}, x_of(t, at), bottom + 6, 0.5, "%.0f",
                        at);
    draw_legend(cr, t, bottom + 40);
}
#else
static void draw(cairo_t *cr, const void *ctx)
{
    (void)cr, (void)ctx;
}
#endif

int ku_plan_schedule_draw(const struct ku_plan_schedule *t, const char *path)
{
    return ku_picture_write(path, WIDTH, TOP + t->s->n_ranks * row_height(t) + FOOT, draw, t);
}
