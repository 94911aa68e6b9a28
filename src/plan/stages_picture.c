/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank's memory by stage of ZeRO: one stacked bar per stage. State is at the bottom, then memory
 * that lives within a step; memory that is unused at the peak is on top.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "plan/picture.h"
#include "plan/stages.h"

enum { WIDTH = 960, HEIGHT = 600 };
#ifdef KUMI_CAIRO
enum { LEFT = 84, RIGHT = 720, TOP = 92, BOTTOM = 540, ASIDE = 756, BAR = 92 };

struct drawing {
    cairo_t *cr;
    const struct ku_plan_stages *s;
    double most; /* bytes at the top of the axis */
};

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
    return BOTTOM - (BOTTOM - TOP) * bytes / d->most;
}

static bool is_there(const struct ku_plan_stages *s, enum ku_plan_kind kind)
{
    for (int i = 0; i < KU_N_STAGES; i++)
        if (s->stage[i].bytes[kind])
            return 1;
    return 0;
}

static void draw_axis(const struct drawing *d)
{
    double unit;
    char text[32];
    const char *name = ku_picture_unit(d->most, &unit);
    double step = ku_picture_step(d->most / unit / 8);
    ku_picture_font(d->cr, 13, 0);
    cairo_set_line_width(d->cr, 1);
    for (double at = 0; at * unit <= d->most * 1.000001; at += step) {
        double y = y_of(d, at * unit);
        ku_picture_colour(d->cr, at > 0 ? 0xdddddd : 0x333333);
        ku_picture_line(d->cr, LEFT, y, RIGHT, y);
        ku_picture_colour(d->cr, 0x333333);
        snprintf(text, sizeof text, "%g", at);
        ku_picture_text(d->cr, LEFT - 8, y + 4, 1, text);
    }
    snprintf(text, sizeof text, "memory of a rank, %s", name);
    ku_picture_upwards(d->cr, 26, (TOP + BOTTOM) / 2, text);
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
        ku_picture_font(d->cr, 12, 0);
        ku_picture_colour(d->cr, ku_picture_ink(colour[order[k]]));
        if (y0 - y >= 14)
            ku_picture_text(d->cr, x, (y + y0) / 2 + 4, 0.5,
                            ku_picture_bytes(s->bytes[order[k]], text));
    }
    ku_picture_colour(d->cr, 0x222222);
    ku_picture_font(d->cr, 13, 1);
    ku_picture_text(d->cr, x, y_of(d, at) - 6, 0.5, ku_picture_bytes(s->rank_bytes, text));
    ku_picture_text(d->cr, x, BOTTOM + 20, 0.5, s->name);
}

static void draw_limit(const struct drawing *d)
{
    const double dash[] = {6, 4}, y = y_of(d, (double)d->s->limit_bytes);
    char text[40], bytes[16];
    if (d->s->limit_bytes == 0)
        return;
    ku_picture_colour(d->cr, 0xb2182b);
    cairo_set_line_width(d->cr, 1.6);
    cairo_set_dash(d->cr, dash, 2, 0);
    ku_picture_line(d->cr, LEFT, y, RIGHT, y);
    cairo_set_dash(d->cr, NULL, 0, 0);
    ku_picture_font(d->cr, 12, 1);
    snprintf(text, sizeof text, "limit %s", ku_picture_bytes(d->s->limit_bytes, bytes));
    ku_picture_text(d->cr, RIGHT - 4, y - 5, 1, text);
}

/* In the order of the stacks, with the sums over all ranks below. */
static void draw_legend(const struct drawing *d, double y)
{
    char bytes[16];
    ku_picture_font(d->cr, 13, 1);
    ku_picture_colour(d->cr, 0x222222);
    ku_picture_text(d->cr, ASIDE, y, 0, "Bytes at the peak");
    for (int k = KU_N_KINDS; k-- > 0;) {
        if (!is_there(d->s, order[k]))
            continue;
        y += 24;
        ku_picture_box(d->cr, colour[order[k]], ASIDE, y - 12, 20, 14);
        ku_picture_colour(d->cr, 0x222222);
        ku_picture_font(d->cr, 13, 0);
        ku_picture_text(d->cr, ASIDE + 30, y, 0, ku_plan_kind_name(order[k]));
    }
    ku_picture_font(d->cr, 13, 0);
    for (int i = 0; i < KU_N_STAGES; i++) {
        char text[64];
        snprintf(text, sizeof text, "%s, all ranks: %s", d->s->stage[i].name,
                 ku_picture_bytes(d->s->stage[i].host_bytes, bytes));
        ku_picture_text(d->cr, ASIDE, y + 40 + 18 * i, 0, text);
    }
}

static void draw(cairo_t *cr, const void *ctx)
{
    struct drawing d = {.cr = cr, .s = ctx};
    const char *slash = strrchr(d.s->config, '/');
    char text[320];
    d.most = 1.05 * (double)d.s->limit_bytes;
    for (int i = 0; i < KU_N_STAGES; i++)
        d.most = fmax(d.most, 1.04 * (double)d.s->stage[i].rank_bytes);
    ku_picture_colour(cr, 0x111111);
    ku_picture_font(cr, 19, 1);
    snprintf(text, sizeof text, "Memory per rank by ZeRO stage: %.60s, %d rank%s",
             slash ? slash + 1 : d.s->config, d.s->n_ranks, d.s->n_ranks == 1 ? "" : "s");
    ku_picture_text(cr, LEFT - 58, 34, 0, text);
    ku_picture_font(cr, 13, 0);
    snprintf(text, sizeof text, "%lld parameters, %s; %s", (long long)d.s->n_params, d.s->compute,
             d.s->batch);
    ku_picture_text(cr, LEFT - 58, 56, 0, text);
    draw_axis(&d);
    for (int i = 0; i < KU_N_STAGES; i++)
        draw_bar(&d, i);
    draw_limit(&d);
    draw_legend(&d, TOP + 20);
    ku_picture_font(cr, 12, 0);
    ku_picture_colour(cr, 0x444444);
    ku_picture_text(cr, LEFT - 58, HEIGHT - 16, 0,
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
