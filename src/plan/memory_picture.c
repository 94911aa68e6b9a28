/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory plan of the training program as a picture. Arenas whose buffers have live ranges
 * within the step are panels, offset over instruction or time. Arenas that are constant during the
 * step are one bar each, by class.
 *
 *   +-- title ---------------------------+
 *   | host  [parameters|optimizer state] |  classes, bytes at the peak
 *   | phases: forward | backward | update|  the instruction at the peak
 *   | wire   ######|################     |
 *   | step   ##  # | #  ##               |  the largest buffers there, numbered as in the panels
 *   |        instruction, or time        |
 *   +------------------------------------+
 *
 * Each panel has its own scale: its height grows with the square root of its arena's bytes, so that
 * a small one stays readable beside a large one.
 */
#include "plan/memory_picture.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/arg.h"
#include "base/err.h"
#include "base/mem.h"
#include "sim/roofline.h"

#ifdef KUMI_CAIRO
enum { LEFT = KU_PANEL_LEFT, RIGHT = KU_PANEL_RIGHT };
/*
 * Vertical layout in canvas units.
 *
 *   TOP      first bar below the title
 *   BOTTOM   lower edge of the panels
 *   GAP      between panels
 *   BAND     one bar
 *   RIBBON   one ribbon (phases, micro-batches)
 *   MARK     from the mark of the peak to the first panel
 */
enum { TOP = 96, BOTTOM = KU_PICTURE_HEIGHT - 66, GAP = 42, BAND = 50, RIBBON = 20, MARK = 26 };
/* An arena below this share of all bytes is listed in the note, not drawn. */
static const double min_share = 1e-3;

const unsigned ku_class_colour[KU_N_CLASSES] = {
    [KU_CL_PARAM] = 0x4e79a7,      [KU_CL_OPTIMIZER] = 0xa0cbe8, [KU_CL_DERIVED] = 0x86bcb6,
    [KU_CL_COUNTER] = 0x79706e,    [KU_CL_GRAD] = 0xe15759,      [KU_CL_PARTIAL] = 0xffb0a9,
    [KU_CL_ACTIVATION] = 0x6aab5b, [KU_CL_ADJOINT] = 0xf2a23b,   [KU_CL_WORKSPACE] = 0xb6992d,
    [KU_CL_SCALAR] = 0xbab0ac,     [KU_CL_INPUT] = 0xb07aa1,     [KU_CL_BUFFER] = 0x499894,
    [KU_CL_GATHER] = 0xd37295,     [KU_CL_STAGING] = 0x9c755f,   [KU_CL_OFFLOAD] = 0xd7b5a6};

const struct ku_font ku_number_font = {12, 0x111111, 1};

double ku_panel_x(const struct ku_plan_picture *d, uint32_t instr)
{
    uint32_t n = d->p->n_instrs;
    return LEFT + (RIGHT - LEFT) * d->begin[instr < n ? instr : n] / d->begin[n];
}

double ku_peak_x(const struct ku_plan_picture *d)
{
    uint32_t peak = d->report.peak_instr;
    return (ku_panel_x(d, peak) + ku_panel_x(d, peak + 1)) / 2;
}

bool ku_picture_is_transient(const struct ku_buffer *b)
{
    int is_offloaded = ku_arena_is_offload(b->arena) && b->micro >= 0; /* an offloaded activation */
    return ku_arena_is_transient(b->arena) || is_offloaded;
}

bool ku_picture_is_drawn(const struct ku_program *p, ku_id buffer)
{
    const struct ku_buffer *b = &p->buffer[buffer];
    return b->bytes > 0 && b->home == 0 && ku_program_is_here(p, buffer) &&
           (!ku_picture_is_transient(b) || b->first != UINT32_MAX);
}

static bool is_constant(const struct ku_program *p, int arena)
{
    for (ku_id b = 1; b < p->n_buffers; b++)
        if (p->buffer[b].arena == arena && ku_picture_is_transient(&p->buffer[b]))
            return 0;
    return 1;
}

/* Whether the arena is listed in the note. One panel is drawn at least: the largest. */
static bool is_small(const struct ku_program *p, int arena)
{
    const size_t *bytes = p->arena_bytes;
    double all = 0;
    for (int a = 0; a < KU_N_ARENAS; a++)
        all += (double)bytes[a];
    if (bytes[arena] == 0 || (double)bytes[arena] >= min_share * all)
        return bytes[arena] == 0;
    for (int a = 0; a < KU_N_ARENAS; a++)
        if (bytes[a] > bytes[arena] && !is_constant(p, a))
            return 1;
    return is_constant(p, arena);
}

static bool is_many_micro(const struct ku_plan_picture *d)
{
    return ku_mesh_n_micro(&d->p->mesh) > 1;
}

/*
 * Bars come first, then the ribbons, then the panels. Returns the top of the ribbons.
 */
static int ribbon_top(const struct ku_plan_picture *d)
{
    int top = TOP;
    for (int a = 0; a < KU_N_ARENAS; a++)
        top += !is_small(d->p, a) && is_constant(d->p, a) ? BAND : 0;
    return top - 16;
}

static int lay_out(struct ku_plan_picture *d)
{
    double weight[KU_N_ARENAS], sum = 0;
    int top = ribbon_top(d) + RIBBON * (1 + is_many_micro(d)) + MARK + 14;
    for (int a = 0; a < KU_N_ARENAS; a++) {
        if (is_small(d->p, a) || is_constant(d->p, a))
            continue;
        weight[d->n_panels] = sqrt((double)d->p->arena_bytes[a]);
        sum += weight[d->n_panels];
        d->panel[d->n_panels++] = (struct ku_panel){.arena = a};
    }
    KU_ASSERT(d->n_panels > 0); /* a step has results */
    double room = BOTTOM - top - GAP * (d->n_panels - 1);
    for (int i = 0; i < d->n_panels; i++) {
        d->panel[i].top = top;
        d->panel[i].height = (int)(room * weight[i] / sum);
        top += d->panel[i].height + GAP;
    }
    for (int i = 0; i < d->n_panels; i++)
        KU_TRY(ku_panel_init(d, &d->panel[i]));
    return KUMI_OK;
}

/*
 * Position of each instruction on the axis. Time is that of the roofline: the sum of the minimum
 * times of the computations; communication takes none.
 */
static int find_begins(struct ku_plan_picture *d)
{
    const struct ku_coord first = ku_mesh_coord(&d->p->mesh, 0);
    struct ku_limits limits;
    uint32_t n = d->p->n_instrs;
    d->begin = ku_calloc((size_t)n + 1, sizeof *d->begin);
    if (d->begin == NULL)
        return KUMI_ENOMEM;
    if (d->is_time)
        KU_TRY(ku_plan_limits(d->plan, &limits));
    for (uint32_t at = 0; at < n; at++) {
        struct ku_op_case c;
        struct ku_cost cost;
        if (d->is_time)
            ku_program_types(d->p, at, &first, &c, &cost);
        d->begin[at + 1] = d->begin[at] + (d->is_time ? ku_roofline_ns(&limits, &c, &cost) : 1);
    }
    return KUMI_OK;
}

static void draw_bands(const struct ku_plan_picture *d)
{
    double max = 0, y = TOP;
    for (int a = 0; a < KU_N_ARENAS; a++)
        if (is_constant(d->p, a))
            max = fmax(max, (double)d->p->arena_bytes[a]);
    for (int a = 0; a < KU_N_ARENAS; a++) {
        if (is_small(d->p, a) || !is_constant(d->p, a))
            continue;
        ku_band_draw(d, a, y, (RIGHT - LEFT) / max);
        y += BAND;
    }
}

static void label(const struct ku_plan_picture *d, double x, double x1, double y,
                  const char *const *text, int n)
{
    ku_picture_fit(d->cr, (struct ku_font){13, 0x333333, 0}, (x + x1) / 2, y + 14.5, x1 - x - 4,
                   text, n);
}

enum { PREPARE, FORWARD, BACKWARD, UPDATE };
static int phase_at(const struct ku_program *p, uint32_t at)
{
    const struct ku_instr *i = &p->instr[at];
    if (i->micro >= 0)
        return i->phase == KU_PH_I || i->phase == KU_PH_W ? BACKWARD : FORWARD;
    while (at > 0 && p->instr[at - 1].micro < 0)
        at--;
    return at == 0 ? PREPARE : UPDATE;
}

/* The ribbons above the panels show phase and micro-batch of each instruction. */
static void draw_ribbon(const struct ku_plan_picture *d)
{
    static const char *const name[][3] = {[PREPARE] = {"preparation", "prep", "p"},
                                          [FORWARD] = {"forward", "fwd", "F"},
                                          [BACKWARD] = {"backward", "bwd", "B"},
                                          [UPDATE] = {"update", "upd", "U"}};
    static const unsigned shade[] = {0xe8e8e8, 0xcfdff0, 0xf9d9c5, 0xd3e8c8};
    const struct ku_program *p = d->p;
    double y = ribbon_top(d) + (is_many_micro(d) ? RIBBON : 0);
    for (uint32_t from = 0, to; from < p->n_instrs; from = to) {
        int phase = phase_at(p, from);
        for (to = from + 1; to < p->n_instrs && p->instr[to].micro == p->instr[from].micro &&
                            phase_at(p, to) == phase;)
            to++;
        double x = ku_panel_x(d, from), x1 = ku_panel_x(d, to);
        ku_picture_box(d->cr, shade[phase], x, y, x1 - x, RIBBON - 2);
        label(d, x, x1, y - 1, name[phase], 3);
    }
    for (uint32_t from = 0, to; from < p->n_instrs && is_many_micro(d); from = to) {
        int micro = p->instr[from].micro;
        char text[2][32];
        for (to = from + 1; to < p->n_instrs && p->instr[to].micro == micro;)
            to++;
        double x = ku_panel_x(d, from), x1 = ku_panel_x(d, to);
        if (micro < 0)
            continue;
        snprintf(text[0], sizeof text[0], "micro-batch %d", micro);
        snprintf(text[1], sizeof text[1], "%d", micro);
        ku_picture_box(d->cr, micro % 2 ? 0xe4e4e4 : 0xd4d4d4, x, y - RIBBON, x1 - x, RIBBON - 2);
        label(d, x, x1, y - RIBBON - 1, (const char *const[]){text[0], text[1]}, 2);
    }
}

static void draw_x_axis(const struct ku_plan_picture *d)
{
    const struct ku_panel *last = &d->panel[d->n_panels - 1];
    const struct ku_font font = {13, 0x333333, 0};
    double end = d->begin[d->p->n_instrs], y = last->top + last->height;
    double scale = !d->is_time ? 1 : end < 1e6 ? 1e3 : end < 1e9 ? 1e6 : 1e9;
    double step = ku_picture_step(fmax(end / scale / 10, d->is_time ? 0 : 1));
    for (double at = 0; at * scale <= end * 1.000001; at += step) {
        double x = LEFT + (RIGHT - LEFT) * at * scale / end;
        ku_picture_line(d->cr, font.rgb, x, y, x, y + 5);
        ku_picture_text(d->cr, font, x, y + 19, 0.5, "%g", at);
    }
    ku_picture_text(d->cr, font, (LEFT + RIGHT) / 2.0, y + 38, 0.5,
                    d->is_time ? "time at the roofline, %s (communication and waits take none)"
                               : "instruction of the training program",
                    scale == 1e3   ? "us"
                    : scale == 1e6 ? "ms"
                                   : "s");
}

static void draw_note(const struct ku_plan_picture *d)
{
    struct ku_str text = {0};
    char bytes[16];
    ku_str_add(&text, "A bar is a buffer: its offset in the arena, from its first use to its last. "
                      "Thin bars are merged by class in each column.");
    for (int a = 0, n = 0; a < KU_N_ARENAS; a++)
        if (is_small(d->p, a) && d->p->arena_bytes[a] > 0)
            ku_str_add(&text, "%s %s %s", n++ ? "," : " Not drawn:", ku_arena_name(a),
                       ku_picture_bytes(d->p->arena_bytes[a], bytes));
    ku_picture_text(d->cr, (struct ku_font){13, 0x666666, 0}, LEFT - 60, KU_PICTURE_HEIGHT - 10, 0,
                    "%s", ku_str_get(&text));
    ku_str_fini(&text);
}

/* A line at the instruction with the maximum memory of all arenas together. */
static void draw_peak(const struct ku_plan_picture *d)
{
    const struct ku_panel *last = &d->panel[d->n_panels - 1];
    double x = ku_peak_x(d), y = d->panel[0].top - MARK;
    const double dash[] = {5, 3};
    ku_picture_dashes(d->cr, 0x111111, 1.2, dash, x, y, x, last->top + last->height);
    cairo_move_to(d->cr, x, y);
    cairo_line_to(d->cr, x - 5, y - 8);
    cairo_line_to(d->cr, x + 5, y - 8);
    cairo_fill(d->cr);
    int is_right = x > RIGHT - 40;
    ku_picture_text(d->cr, (struct ku_font){13, 0x111111, 1}, is_right ? x - 9 : x + 9, y, is_right,
                    "peak");
}

static void draw_title(const struct ku_plan_picture *d)
{
    const int n_ranks = ku_session_n_ranks(&d->plan->s);
    struct ku_str text = {0};
    char bytes[16];
    ku_picture_text(d->cr, (struct ku_font){20, 0x111111, 1}, LEFT - 60, 34, 0,
                    "Memory of a training step: %.60s", ku_picture_file_name(d->config));
    ku_str_add(&text, "%d rank%s, %s, ", n_ranks, n_ranks == 1 ? "" : "s",
               d->plan->s.cfg.precision_compute);
    d->plan->s.source->ops->print_title(d->plan->s.source, d->plan->shape, &text);
    ku_str_add(&text, "; a rank maps %s", ku_picture_bytes(d->report.peak_bytes, bytes));
    ku_picture_text(d->cr, (struct ku_font){13, 0x111111, 0}, LEFT - 60, 56, 0, "%s",
                    ku_str_get(&text));
    ku_str_fini(&text);
}

static void draw(cairo_t *cr, const void *ctx)
{
    struct ku_plan_picture d = *(const struct ku_plan_picture *)ctx;
    d.cr = cr;
    draw_title(&d);
    draw_bands(&d);
    draw_ribbon(&d);
    draw_x_axis(&d);
    draw_note(&d);
    for (int i = 0; i < d.n_panels; i++)
        ku_panel_draw(&d, &d.panel[i]);
    draw_peak(&d);
    for (int i = 0; i < d.n_panels; i++)
        ku_panel_draw_caption(&d, &d.panel[i]);
    ku_picture_draw_aside(&d);
}

static int prepare(struct ku_plan_picture *d)
{
    d->p = d->plan->program[KU_PROG_TRAIN];
    ku_program_memory(d->p, &d->report);
    KU_TRY(find_begins(d));
    KU_TRY(lay_out(d));
    return ku_picture_find_groups(d);
}

static void finish(struct ku_plan_picture *d)
{
    for (int i = 0; i < d->n_panels; i++)
        ku_panel_fini(&d->panel[i]);
    ku_free(d->begin);
    ku_free(d->group);
}
#endif

int kumi_plan_picture(const struct kumi_settings *settings, int n_ranks, const char *path,
                      enum kumi_plan_axis axis)
{
    KU_GIVEN(settings, "settings");
    KU_GIVEN(path, "path");
    if ((int)axis != KUMI_PLAN_INSTRUCTIONS && (int)axis != KUMI_PLAN_TIME)
        return KU_ERR(KUMI_EINVAL, "plan: axis: %d; give %d (instructions) or %d (time)", (int)axis,
                      KUMI_PLAN_INSTRUCTIONS, KUMI_PLAN_TIME);
    int status = ku_picture_check(path); /* refuses without cairo */
#ifdef KUMI_CAIRO
    KU_TRY(status);
    struct ku_plan plan;
    struct ku_plan_picture d = {
        .config = settings->config, .plan = &plan, .is_time = axis == KUMI_PLAN_TIME};
    KU_TRY(ku_plan_init(&plan, settings, n_ranks, NULL, NULL));
    status = prepare(&d);
    if (status == KUMI_OK)
        status = ku_picture_write(path, KU_PICTURE_WIDTH, KU_PICTURE_HEIGHT, draw, &d);
    finish(&d);
    ku_plan_fini(&plan);
#else
    (void)n_ranks;
#endif
    return status;
}
