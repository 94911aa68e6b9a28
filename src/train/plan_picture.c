/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory plan of the training program, drawn: one panel an arena, offset over instruction.
 *
 *   +-- title ------------------------------------------+
 *   | phases: forward | backward | update               |  legend: classes, bytes at the peak
 *   | host   ########################################   |
 *   | wire     ############|################            |  the largest tensors that only the step
 *   | step   ##  ####  ### |  ##                        |  has, numbered as in the panels
 *   |         instruction  ^ fullest                    |
 *   +---------------------------------------------------+
 *
 * Panels have scales of their own: an arena's height grows with the root of its bytes, so that a
 * small one can be read beside a large one; state, which never changes, gets half.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "train/picture.h"
#include "train/plan.h"

enum { WIDTH = 1600, HEIGHT = 1000 };
#ifdef KUMI_CAIRO
enum { N_LISTED = 15 };
enum { LEFT = 92, RIGHT = 1180, TOP = 132, BOTTOM = 940, GAP = 44, ASIDE = 1214 };
/* An arena below this share of all bytes is named, not drawn. */
static const double least_share = 1e-3;

struct panel {
    int arena;
    double top, height;
};
struct picture {
    cairo_t *cr;
    const char *config; /* its path */
    const struct ku_plan *plan;
    const struct ku_program *p;
    struct ku_memory_report report;
    struct panel panel[KU_N_ARENAS];
    int n_panels;
    ku_id listed[N_LISTED]; /* alive at the peak, the largest first */
    int n_listed;
};

static const unsigned colour[KU_N_CLASSES] = {
    [KU_CL_PARAM] = 0x4e79a7,      [KU_CL_OPTIMIZER] = 0xa0cbe8, [KU_CL_DERIVED] = 0x86bcb6,
    [KU_CL_COUNTER] = 0x79706e,    [KU_CL_GRAD] = 0xe15759,      [KU_CL_PARTIAL] = 0xffb0a9,
    [KU_CL_ACTIVATION] = 0x6aab5b, [KU_CL_ADJOINT] = 0xf2a23b,   [KU_CL_WORKSPACE] = 0xb6992d,
    [KU_CL_SCALAR] = 0xbab0ac,     [KU_CL_INPUT] = 0xb07aa1,     [KU_CL_BUFFER] = 0x499894,
    [KU_CL_GATHER] = 0xd37295,     [KU_CL_WINDOW] = 0x9c755f,    [KU_CL_OFFLOAD] = 0xd7b5a6};

static double x_of(const struct picture *d, uint32_t instr)
{
    uint32_t n = d->p->n_instrs;
    return LEFT + (RIGHT - LEFT) * (double)(instr < n ? instr : n) / n;
}

static double y_of(const struct picture *d, const struct panel *panel, double offset)
{
    double bytes = (double)d->p->arena_bytes[panel->arena];
    return panel->top + panel->height * (1 - offset / bytes);
}

static int is_transient(const struct ku_buffer *b)
{
    int is_offloaded = ku_arena_is_tier(b->arena) && b->micro >= 0; /* an activation */
    return b->arena == KU_AR_STEP || b->arena == KU_AR_WIRE || is_offloaded;
}

/* Where a buffer's bytes are its own: what took another's place is drawn as that. */
static int is_drawn(const struct ku_buffer *b)
{
    return b->bytes > 0 && b->home == 0 && (!is_transient(b) || b->first != UINT32_MAX);
}

static void lay_out(struct picture *d)
{
    double sum = 0, all = 0, at = TOP;
    for (int a = 0; a < KU_N_ARENAS; a++)
        all += (double)d->p->arena_bytes[a];
    for (int a = 0; a < KU_N_ARENAS; a++) {
        double bytes = (double)d->p->arena_bytes[a];
        if (bytes < least_share * all || bytes == 0)
            continue;
        double weight = sqrt(bytes) * (a == KU_AR_STEP || a == KU_AR_WIRE ? 1 : 0.5);
        d->panel[d->n_panels++] = (struct panel){.arena = a, .height = weight};
        sum += weight;
    }
    double room = BOTTOM - TOP - GAP * (d->n_panels - 1);
    for (int i = 0; i < d->n_panels; i++) {
        d->panel[i].top = at;
        d->panel[i].height *= room / sum;
        at += d->panel[i].height + GAP;
    }
}

/* Of what only lives within the step, the largest alive at the peak. */
static void find_listed(struct picture *d)
{
    const struct ku_program *p = d->p;
    uint32_t peak = d->report.peak_instr;
    for (ku_id b = 1; b < p->n_buffers; b++) {
        const struct ku_buffer *x = &p->buffer[b];
        if (!is_drawn(x) || !is_transient(x) || x->first > peak || x->last < peak)
            continue;
        int at = d->n_listed < N_LISTED ? d->n_listed++ : N_LISTED;
        for (; at > 0 && p->buffer[d->listed[at - 1]].bytes < x->bytes; at--)
            if (at < N_LISTED)
                d->listed[at] = d->listed[at - 1];
        if (at < N_LISTED)
            d->listed[at] = b;
    }
}

static void draw_buffer(const struct picture *d, const struct panel *panel,
                        const struct ku_buffer *b)
{
    int lives = !is_transient(b);
    double x = lives ? LEFT : x_of(d, b->first), x1 = lives ? RIGHT : x_of(d, b->last + 1);
    double y = y_of(d, panel, (double)(b->offset + b->bytes)),
           y1 = y_of(d, panel, (double)b->offset);
    ku_picture_colour(d->cr, colour[b->cls]);
    cairo_rectangle(d->cr, x, y, x1 - x, y1 - y);
    cairo_fill(d->cr);
    if (y1 - y < 2.5 || x1 - x < 2.5)
        return;
    cairo_set_source_rgba(d->cr, 1, 1, 1, 0.75);
    cairo_set_line_width(d->cr, 0.5);
    cairo_rectangle(d->cr, x, y, x1 - x, y1 - y);
    cairo_stroke(d->cr);
}

static void draw_y_axis(const struct picture *d, const struct panel *panel)
{
    double bytes = (double)d->p->arena_bytes[panel->arena], scale;
    const char *unit = ku_picture_unit(bytes, &scale);
    char text[32];
    double step = ku_picture_step(bytes / scale / fmax(2, floor(panel->height / 36)));
    ku_picture_font(d->cr, 12, 0);
    cairo_set_line_width(d->cr, 1);
    for (double at = 0; at * scale <= bytes * 1.000001; at += step) {
        double y = y_of(d, panel, at * scale);
        snprintf(text, sizeof text, "%g", at);
        ku_picture_colour(d->cr, 0x333333);
        ku_picture_line(d->cr, LEFT - 5, y, LEFT, y);
        ku_picture_text(d->cr, LEFT - 9, y + 4, 1, text);
    }
    cairo_save(d->cr);
    cairo_translate(d->cr, 24, panel->top + panel->height / 2);
    cairo_rotate(d->cr, -M_PI / 2);
    snprintf(text, sizeof text, panel->height < 90 ? "%s" : "offset, %s", unit);
    ku_picture_text(d->cr, 0, 0, 0.5, text);
    cairo_restore(d->cr);
}

static void draw_panel(const struct picture *d, const struct panel *panel)
{
    static const char *const who[KU_N_ARENAS] = {
        [KU_AR_HOST] = "state, once a host",
        [KU_AR_STATE] = "state of this rank",
        [KU_AR_SHARD] = "blocks of this rank, seen by all on the host",
        [KU_AR_WIRE] = "of this rank, seen by all on the host",
        [KU_AR_STEP] = "of this rank, dies within the step",
        [KU_AR_INPUT] = "ports that are filled before the step",
        [KU_AR_OFFLOAD] = "host memory of this rank, reached through windows",
        [KU_AR_FILE] = "on disk, reached through windows"};
    char text[128], bytes[16];
    double x = x_of(d, d->report.peak_instr); /* of the title: beside the peak's own */
    x = panel->top > TOP || x > LEFT + 380 ? LEFT : x + 40;
    cairo_set_source_rgb(d->cr, 0.965, 0.965, 0.965);
    cairo_rectangle(d->cr, LEFT, panel->top, RIGHT - LEFT, panel->height);
    cairo_fill(d->cr);
    for (ku_id b = 1; b < d->p->n_buffers; b++)
        if (d->p->buffer[b].arena == panel->arena && is_drawn(&d->p->buffer[b]))
            draw_buffer(d, panel, &d->p->buffer[b]);
    ku_picture_colour(d->cr, 0x333333);
    cairo_set_line_width(d->cr, 1);
    cairo_rectangle(d->cr, LEFT, panel->top, RIGHT - LEFT, panel->height);
    cairo_stroke(d->cr);
    ku_picture_font(d->cr, 14, 1);
    ku_picture_bytes(d->p->arena_bytes[panel->arena], bytes);
    ku_picture_text(d->cr, x, panel->top - 8, 0, ku_arena_name(panel->arena));
    ku_picture_font(d->cr, 13, 0);
    snprintf(text, sizeof text, "%s: %s", who[panel->arena], bytes);
    ku_picture_text(d->cr, x + 50, panel->top - 8, 0, text);
    draw_y_axis(d, panel);
}

static int block_of(const struct ku_instr *i)
{
    return i->micro < 0 ? 2 : i->phase == KU_PH_I || i->phase == KU_PH_W;
}

/* Above the panels: which part of the step an instruction belongs to. */
static void draw_phases(const struct picture *d)
{
    static const char *const name[] = {"forward", "backward", "update"};
    static const unsigned shade[] = {0xdce6f1, 0xfbe3d6, 0xe2efda};
    const struct ku_program *p = d->p;
    int is_many = ku_mesh_n_micro(&p->mesh) > 1;
    for (uint32_t from = 0, to; from < p->n_instrs; from = to) {
        const struct ku_instr *i = &p->instr[from];
        char text[32];
        for (to = from + 1; to < p->n_instrs && block_of(&p->instr[to]) == block_of(i) &&
                            p->instr[to].micro == i->micro;)
            to++;
        double x = x_of(d, from), x1 = x_of(d, to);
        if (from == 0 && i->micro < 0) /* what is made once, ahead */
            snprintf(text, sizeof text, "once");
        else
            snprintf(text, sizeof text, is_many && i->micro >= 0 ? "%s %d" : "%s",
                     name[block_of(i)], i->micro);
        ku_picture_colour(d->cr, from == 0 && i->micro < 0 ? 0xe8e8e8 : shade[block_of(i)]);
        cairo_rectangle(d->cr, x, TOP - 62, x1 - x, 18);
        cairo_fill(d->cr);
        cairo_text_extents_t e;
        ku_picture_font(d->cr, 12, 0);
        cairo_text_extents(d->cr, text, &e);
        ku_picture_colour(d->cr, 0x333333);
        if (e.x_advance + 6 < x1 - x)
            ku_picture_text(d->cr, (x + x1) / 2, TOP - 48.5, 0.5, text);
    }
}

static void draw_x_axis(const struct picture *d)
{
    const struct panel *last = &d->panel[d->n_panels - 1];
    double y = last->top + last->height, step = ku_picture_step(fmax(1, d->p->n_instrs / 12.0));
    char text[16];
    ku_picture_font(d->cr, 12, 0);
    ku_picture_colour(d->cr, 0x333333);
    cairo_set_line_width(d->cr, 1);
    for (double at = 0; at <= d->p->n_instrs; at += step) {
        double x = x_of(d, (uint32_t)at);
        ku_picture_line(d->cr, x, y, x, y + 5);
        snprintf(text, sizeof text, "%g", at);
        ku_picture_text(d->cr, x, y + 19, 0.5, text);
    }
    ku_picture_text(d->cr, (LEFT + RIGHT) / 2, y + 40, 0.5, "instruction of the training program");
}

/* A line through the fullest instruction, and numbers on the tensors that are listed aside. */
static void draw_peak(const struct picture *d)
{
    double x = (x_of(d, d->report.peak_instr) + x_of(d, d->report.peak_instr + 1)) / 2;
    char text[16];
    const double dash[] = {5, 3};
    ku_picture_colour(d->cr, 0x111111);
    cairo_set_line_width(d->cr, 1.2);
    cairo_set_dash(d->cr, dash, 2, 0);
    for (int k = 0; k < d->n_panels; k++)
        ku_picture_line(d->cr, x, d->panel[k].top, x, d->panel[k].top + d->panel[k].height);
    cairo_set_dash(d->cr, NULL, 0, 0);
    cairo_move_to(d->cr, x, TOP - 1);
    cairo_line_to(d->cr, x - 5, TOP - 10);
    cairo_line_to(d->cr, x + 5, TOP - 10);
    cairo_fill(d->cr);
    ku_picture_font(d->cr, 13, 1);
    ku_picture_text(d->cr, x, TOP - 14, 0.5, "peak");
    for (int i = 0; i < d->n_listed; i++) {
        const struct ku_buffer *b = &d->p->buffer[d->listed[i]];
        for (int k = 0; k < d->n_panels; k++) {
            if (d->panel[k].arena != b->arena)
                continue;
            double y = y_of(d, &d->panel[k], (double)(b->offset + b->bytes));
            double y1 = y_of(d, &d->panel[k], (double)b->offset);
            double x0 = x_of(d, b->first), x1 = x_of(d, b->last + 1);
            cairo_set_line_width(d->cr, 1.2);
            cairo_rectangle(d->cr, x0, y, x1 - x0, y1 - y);
            cairo_stroke(d->cr);
            if (y1 - y < 11 || x1 - x0 < 18)
                continue;
            ku_picture_font(d->cr, 11, 1);
            snprintf(text, sizeof text, "%d", i + 1);
            ku_picture_text(d->cr, fmin(x0 + 10, (x0 + x1) / 2), (y + y1) / 2 + 4, 0.5, text);
        }
    }
}

static double draw_legend(const struct picture *d, double y)
{
    const struct ku_memory_report *r = &d->report;
    char bytes[16];
    size_t alive = 0;
    ku_picture_font(d->cr, 14, 1);
    ku_picture_text(d->cr, ASIDE, y, 0, "What lies there, and bytes at the peak");
    ku_picture_font(d->cr, 13, 0);
    for (int c = 0; c <= KU_N_CLASSES + 1; c++) {
        size_t n = c < KU_N_CLASSES    ? r->at_peak[c]
                   : c == KU_N_CLASSES ? r->peak_bytes - alive
                                       : r->peak_bytes;
        const char *name = c < KU_N_CLASSES    ? ku_class_name(c)
                           : c == KU_N_CLASSES ? "not in use then"
                                               : "in all";
        int is_there = c >= KU_N_CLASSES;
        for (ku_id b = 1; b < d->p->n_buffers && !is_there; b++)
            is_there = d->p->buffer[b].cls == c && is_drawn(&d->p->buffer[b]);
        if (!is_there)
            continue;
        alive += c < KU_N_CLASSES ? n : 0;
        y += 22;
        ku_picture_colour(d->cr, c < KU_N_CLASSES ? colour[c] : 0xf6f6f6);
        cairo_rectangle(d->cr, ASIDE, y - 12, 20, 14);
        if (c <= KU_N_CLASSES)
            cairo_fill(d->cr);
        cairo_new_path(d->cr);
        ku_picture_colour(d->cr, 0x222222);
        ku_picture_text(d->cr, ASIDE + 30, y, 0, name);
        ku_picture_bytes(n, bytes);
        ku_picture_text(d->cr, WIDTH - 30, y, 1, bytes);
    }
    return y;
}

/* "linear_dw, lm_head@0": who makes it, and where; "linear[1]": its second result. */
static void name_of(const struct ku_program *p, ku_id id, char *out, size_t bytes)
{
    const struct ku_buffer *b = &p->buffer[id];
    const struct ku_instr *maker = &p->instr[b->first];
    const char *path = p->name_of[b->name];
    char result[8] = "", micro[16] = "";
    for (int k = 1; k < maker->n_out; k++)
        if (p->operand[maker->operand + maker->n_in + (uint32_t)k].buffer == id)
            snprintf(result, sizeof result, "[%d]", k);
    if (b->micro >= 0)
        snprintf(micro, sizeof micro, "@%d", b->micro);
    snprintf(out, bytes, "%s%s%s%.60s%s",
             maker->kind == KU_COMPUTE ? ku_ops[maker->op].name : "exchange", result,
             *path ? ", " : "", path, micro);
}

static void draw_list(const struct picture *d, double y)
{
    const struct ku_program *p = d->p;
    char text[128], bytes[16];
    struct ku_str where = {0};
    ku_plan_print_instr(p, d->report.peak_instr, &where);
    ku_picture_font(d->cr, 14, 1);
    snprintf(text, sizeof text, "The peak is at instruction %u of %u:", d->report.peak_instr,
             p->n_instrs);
    ku_picture_text(d->cr, ASIDE, y, 0, text);
    ku_picture_font(d->cr, 13, 0);
    ku_picture_text(d->cr, ASIDE, y + 20, 0, ku_str_get(&where));
    ku_str_fini(&where);
    y += 52;
    ku_picture_font(d->cr, 14, 1);
    ku_picture_text(d->cr, ASIDE, y, 0, "The largest there that die within the step");
    for (int i = 0; i < d->n_listed; i++) {
        y += 22;
        ku_picture_colour(d->cr, colour[p->buffer[d->listed[i]].cls]);
        cairo_rectangle(d->cr, ASIDE, y - 12, 20, 14);
        cairo_fill(d->cr);
        ku_picture_colour(d->cr, 0x222222);
        ku_picture_font(d->cr, 11, 1);
        snprintf(text, sizeof text, "%d", i + 1);
        ku_picture_text(d->cr, ASIDE + 10, y - 1, 0.5, text);
        ku_picture_font(d->cr, 13, 0);
        name_of(p, d->listed[i], text, sizeof text);
        ku_picture_text(d->cr, ASIDE + 30, y, 0, text);
        ku_picture_bytes(p->buffer[d->listed[i]].bytes, bytes);
        ku_picture_text(d->cr, WIDTH - 30, y, 1, bytes);
    }
}

static void draw_title(const struct picture *d)
{
    const struct ku_batch *b = &d->plan->s.batch;
    char text[256], bytes[16], each[48] = " images";
    const char *slash = strrchr(d->config, '/');
    int at = 0;
    ku_picture_font(d->cr, 20, 1);
    ku_picture_colour(d->cr, 0x111111);
    ku_picture_bytes(d->report.peak_bytes, bytes);
    snprintf(text, sizeof text, "Memory of a training step: %.60s, %s mapped by a rank",
             slash ? slash + 1 : d->config, bytes);
    ku_picture_text(d->cr, LEFT, 36, 0, text);
    ku_picture_font(d->cr, 13, 0);
    if (d->plan->s.model.facts.image[0] == 0)
        snprintf(each, sizeof each, ", %lld tokens a sample", (long long)d->plan->s.seq_len);
    at = snprintf(text, sizeof text, "%d rank%s, %s, ", b->n_ranks, b->n_ranks == 1 ? "" : "s",
                  d->plan->s.cfg.precision_compute);
    if (d->plan->s.pairs.data)
        at += snprintf(text + at, sizeof text - (size_t)at, "%lld target positions in %lld parts",
                       (long long)ku_plan_tokens(d->plan), (long long)(b->virtual_shards * b->k));
    else
        at += snprintf(text + at, sizeof text - (size_t)at,
                       "global batch %lld in micro-batches of %lld%s", (long long)b->global_batch,
                       (long long)b->micro_batch, each);
    for (int a = 0, n = 0; a < KU_N_ARENAS; a++) {
        int is_drawn_there = d->p->arena_bytes[a] == 0;
        for (int i = 0; i < d->n_panels; i++)
            is_drawn_there |= d->panel[i].arena == a;
        if (is_drawn_there || at >= (int)sizeof text)
            continue;
        ku_picture_bytes(d->p->arena_bytes[a], bytes);
        at += snprintf(text + at, sizeof text - (size_t)at, "%s%s %s",
                       n++ ? ", " : "; too small to draw: ", ku_arena_name(a), bytes);
    }
    ku_picture_text(d->cr, LEFT, 57, 0, text);
}

static void draw(cairo_t *cr, const void *ctx)
{
    struct picture d = *(const struct picture *)ctx;
    d.cr = cr;
    d.p = d.plan->program[KU_PROG_TRAIN];
    ku_program_memory(d.p, &d.report);
    lay_out(&d);
    find_listed(&d);
    draw_title(&d);
    draw_phases(&d);
    for (int i = 0; i < d.n_panels; i++)
        draw_panel(&d, &d.panel[i]);
    draw_x_axis(&d);
    draw_peak(&d);
    ku_picture_colour(d.cr, 0x111111);
    draw_list(&d, draw_legend(&d, TOP - 48) + 48);
}
#else
struct picture {
    const char *config;
    const struct ku_plan *plan;
};
static void draw(cairo_t *cr, const void *ctx)
{
    (void)cr, (void)ctx;
}
#endif

int kumi_plan_picture(const struct kumi_settings *settings, int n_ranks, const char *path)
{
    struct ku_plan plan;
    KU_TRY(ku_picture_check(path));
    KU_TRY(ku_plan_init(&plan, settings, n_ranks, NULL, NULL));
    int status = ku_picture_write(path, WIDTH, HEIGHT, draw,
                                  &(struct picture){.config = settings->config, .plan = &plan});
    ku_plan_fini(&plan);
    return status;
}
