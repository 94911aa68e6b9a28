/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank's memory by stage of ZeRO: one stacked bar per stage. State is at the bottom, then memory
 * that lives within a step; memory that is unused at the peak is on top.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "plan/picture.h"
#include "plan/zero_stages.h"

enum { WIDTH = 960, HEIGHT = 600 };
#ifdef KUMI_CAIRO
enum { LEFT = 84, RIGHT = 720, TOP = 92, BOTTOM = 540, ASIDE = 756, BAR = 92 };

struct drawing {
    cairo_t *cr;
    const struct ku_plan_stages *s;
    double top_bytes; /* at the top of the axis */
};

static const struct ku_font heading = {13, 0x222222, 1}, plain = {13, 0x222222, 0};
/* The colours of the memory picture. */
static const unsigned colour[KU_N_KINDS] = {
    [KU_KIND_PARAMS] = 0x4e79a7,      [KU_KIND_GRADS] = 0xe15759, [KU_KIND_MASTER] = 0x499894,
    [KU_KIND_OPTIMIZER] = 0xa0cbe8,   [KU_KIND_COMM] = 0xd37295,  [KU_KIND_WORKSPACE] = 0xb6992d,
    [KU_KIND_ACTIVATIONS] = 0x6aab5b, [KU_KIND_OTHER] = 0xbab0ac, [KU_KIND_OFFLOADED] = 0xb07aa1,
    [KU_KIND_IDLE] = 0xe4e4e4};
/* From bottom to top. */
static const enum ku_plan_kind order[KU_N_KINDS] = {
    KU_KIND_PARAMS,      KU_KIND_MASTER,    KU_KIND_OPTIMIZER, KU_KIND_GRADS,     KU_KIND_COMM,
    KU_KIND_ACTIVATIONS, KU_KIND_WORKSPACE, KU_KIND_OTHER,     KU_KIND_OFFLOADED, KU_KIND_IDLE};

static double y_of(const struct drawing *d, double bytes)
{
    return BOTTOM - (BOTTOM - TOP) * bytes / d->top_bytes;
}

static bool is_there(const struct ku_plan_stages *s, enum ku_plan_kind kind)
{
    for (int i = 0; i < KU_N_STAGES; i++)
        if (s->stage[i].bytes[kind])
            return 1;
    return 0;
}

static void draw_bar(const struct drawing *d, int i)
{
    const struct ku_plan_stage *s = &d->s->stage[i];
    double room = (double)(RIGHT - LEFT) / KU_N_STAGES, x = LEFT + room * (i + 0.5), at = 0;
    char text[16];
    for (int k = 0; k < KU_N_KINDS; k++) {
        double bytes = (double)s->bytes[order[k]], y = y_of(d, at + bytes), y0 = y_of(d, at);
        at += bytes;
        if (bytes == 0)
            continue;
        ku_picture_box(d->cr, colour[order[k]], x - BAR / 2.0, y, BAR, y0 - y);
        if (y0 - y >= 14)
            ku_picture_text(d->cr, (struct ku_font){12, ku_picture_ink(colour[order[k]]), 0}, x,
                            (y + y0) / 2 + 4, 0.5, "%s",
                            ku_picture_bytes(s->bytes[order[k]], text));
    }
    ku_picture_text(d->cr, heading, x, y_of(d, at) - 6, 0.5, "%s",
                    s->refusal ? "refused" : ku_picture_bytes(s->rank_bytes, text));
    ku_picture_text(d->cr, heading, x, BOTTOM + 20, 0.5, "%s", s->name);
}

static void draw_limit(const struct drawing *d)
{
    const double dash[] = {6, 4}, y = y_of(d, (double)d->s->limit_bytes);
    char bytes[16];
    if (d->s->limit_bytes == 0)
        return;
    ku_picture_dashes(d->cr, 0xb2182b, 1.6, dash, LEFT, y, RIGHT, y);
    ku_picture_text(d->cr, (struct ku_font){12, 0xb2182b, 1}, RIGHT - 4, y - 5, 1, "limit %s",
                    ku_picture_bytes(d->s->limit_bytes, bytes));
}

/* In the order of the stacks, with the sums over all ranks below. */
static void draw_legend(const struct drawing *d, double y)
{
    char bytes[16];
    ku_picture_text(d->cr, heading, ASIDE, y, 0, "Bytes at the peak");
    for (int k = KU_N_KINDS; k-- > 0;) {
        if (!is_there(d->s, order[k]))
            continue;
        y += 24;
        ku_picture_box(d->cr, colour[order[k]], ASIDE, y - 12, 20, 14);
        ku_picture_text(d->cr, plain, ASIDE + 30, y, 0, "%s", ku_plan_kind_name(order[k]));
    }
    for (int i = 0; i < KU_N_STAGES; i++)
        ku_picture_text(
            d->cr, plain, ASIDE, y + 40 + 18 * i, 0, "%s, all ranks: %s", d->s->stage[i].name,
            d->s->stage[i].refusal ? "refused"
                                   : ku_picture_bytes(d->s->stage[i].host_bytes, bytes));
}

static void draw(cairo_t *cr, const void *ctx)
{
    struct drawing d = {.cr = cr, .s = ctx};
    d.top_bytes = 1.05 * (double)d.s->limit_bytes;
    for (int i = 0; i < KU_N_STAGES; i++)
        d.top_bytes = fmax(d.top_bytes, 1.04 * (double)d.s->stage[i].rank_bytes);
    ku_picture_text(cr, (struct ku_font){19, 0x111111, 1}, LEFT - 58, 34, 0,
                    "Memory per rank by ZeRO stage: %.60s, %d rank%s",
                    ku_picture_file_name(d.s->config), d.s->n_ranks, d.s->n_ranks == 1 ? "" : "s");
    ku_picture_text(cr, (struct ku_font){13, 0x111111, 0}, LEFT - 58, 56, 0,
                    "%lld parameters, %s; %s", (long long)d.s->n_params, d.s->compute, d.s->batch);
    ku_picture_bytes_axis(cr, &(struct ku_bytes_axis){.x = LEFT,
                                                      .top = TOP,
                                                      .bottom = BOTTOM,
                                                      .bytes = d.top_bytes,
                                                      .n_marks = 8,
                                                      .grid_right = RIGHT,
                                                      .name_x = 26,
                                                      .name = "memory of a rank, "});
    for (int i = 0; i < KU_N_STAGES; i++)
        draw_bar(&d, i);
    draw_limit(&d);
    draw_legend(&d, TOP + 20);
    ku_picture_text(cr, (struct ku_font){12, 0x444444, 0}, LEFT - 58, HEIGHT - 16, 0,
                    "zero 0 to 3: private state per rank; shared: one copy on the host, of which "
                    "each of n ranks counts 1 / n");
}
#else
static void draw(cairo_t *cr, const void *ctx)
{
    (void)cr, (void)ctx;
}
#endif

int ku_plan_stages_draw(const struct ku_plan_stages *s, const char *path)
{
    return ku_picture_write(path, WIDTH, HEIGHT, draw, s);
}
