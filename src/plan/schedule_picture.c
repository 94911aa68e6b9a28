/* SPDX-License-Identifier: Apache-2.0 */
/* A pipeline schedule as a picture: coordinates of axis pp over time, a box per block. */
#include <stdio.h>
#include <string.h>

#include "plan/picture.h"
#include "plan/schedule_report.h"

enum { WIDTH = 1200, LEFT = 60, RIGHT = WIDTH - 24, TOP = 84, FOOT = 74 };

static int row_height(const struct ku_plan_schedule *t)
{
    return t->s->n_ranks <= 16 ? 34 : 18;
}

#ifdef KUMI_CAIRO
/* Of F, B, I and W; stages after a coordinate's first are darker. */
static const unsigned colour[2][KU_N_BLOCK_KINDS] = {{0xa0cbe8, 0x8cc07d, 0xffbe7d, 0xd4a6c8},
                                                     {0x4e79a7, 0x3f7f3a, 0xd97e1f, 0x8e5a86}};
static const char *const kind_name[KU_N_BLOCK_KINDS] = {
    "F: forward", "B: backward", "I: gradients of activations", "W: gradients of parameters"};

static bool is_later_stage(const struct ku_pp_schedule *s, int stage)
{
    for (int k = 0; k < stage; k++)
        if (s->rank_of[k] == s->rank_of[stage])
            return 1;
    return 0;
}

static void draw_block(cairo_t *cr, const struct ku_plan_schedule *t, uint32_t i, double y)
{
    const struct ku_block *b = &t->s->block[i];
    const double scale = (RIGHT - LEFT) / t->makespan, height = row_height(t) - 4;
    const double x = LEFT + scale * t->begin[i], width = scale * (t->end[i] - t->begin[i]);
    const unsigned rgb = colour[is_later_stage(t->s, b->stage)][b->kind];
    char label[24], micro[12];
    ku_schedule_label(t->s, b, label);
    snprintf(micro, sizeof micro, "%d", b->micro);
    ku_picture_box(cr, rgb, x, y, width > 3 ? width - 1 : width, height);
    ku_picture_fit(cr, (struct ku_font){11, ku_picture_ink(rgb), 0}, x + width / 2,
                   y + height / 2 + 4, width - 3, (const char *const[]){label, micro}, 2);
}

static void draw_legend(cairo_t *cr, const struct ku_plan_schedule *t, double y)
{
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
        x += 60 + ku_picture_text_width(cr, (struct ku_font){13, 0x222222, 0}, kind_name[k]);
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
    for (int r = 0; r < s->n_ranks; r++) {
        const double y = TOP + r * row_height(t);
        ku_picture_box(cr, 0xf0f0f0, LEFT, y, RIGHT - LEFT, row_height(t) - 4);
        ku_picture_text(cr, (struct ku_font){13, 0x222222, 0}, LEFT - 8,
                        y + (row_height(t) - 4) / 2.0 + 4, 1, "pp %d", r);
        for (uint32_t i = s->first[r]; i < s->first[r + 1]; i++)
            draw_block(cr, t, i, y);
    }
    const double bottom = TOP + s->n_ranks * row_height(t),
                 step = ku_picture_step(t->makespan / 20);
    for (double at = 0; at <= t->makespan; at += step)
        ku_picture_text(cr, (struct ku_font){11, 0x444444, 0},
                        LEFT + (RIGHT - LEFT) * at / t->makespan, bottom + 14, 0.5, "%.0f", at);
    draw_legend(cr, t, bottom + 48);
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
