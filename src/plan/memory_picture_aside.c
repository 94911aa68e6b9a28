/* SPDX-License-Identifier: Apache-2.0 */
/* The part right of the panels: colours, the instruction at the peak, the largest tensors there. */
#include "plan/memory_picture.h"

#ifdef KUMI_CAIRO
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

enum { LEFT = KU_ASIDE_LEFT, RIGHT = KU_ASIDE_RIGHT, ROW = 21, TEXT = LEFT + 30 };

/* "h.11.mlp.c_fc" -> "h.*.mlp.c_fc" */
static void pattern_of(const char *path, char out[64])
{
    size_t n = 0;
    for (const char *c = path; *c && n + 1 < 64;) {
        int begins = isdigit((unsigned char)*c) && (c == path || c[-1] == '.');
        size_t digits = begins ? strspn(c, "0123456789") : 0;
        int is_number = digits > 0 && (c[digits] == '.' || c[digits] == '\0');
        out[n++] = is_number ? '*' : *c;
        c += is_number ? digits : 1;
    }
    out[n] = '\0';
}

/*
 * A group has the same instruction (but for layer and micro-batch) and the same index among its
 * results.
 */
static struct ku_picture_group group_of(const struct ku_program *p, ku_id id)
{
    const struct ku_buffer *b = &p->buffer[id];
    const struct ku_instr *maker = &p->instr[b->first];
    struct ku_picture_group g = {.cls = b->cls, .bytes = b->bytes, .count = 1, .first = id};
    g.op = maker->kind == KU_COMPUTE ? ku_ops[maker->op].name
           : maker->kind == KU_START ? ku_exchange_name(maker->op)
                                     : "wait";
    for (int k = 1; k < maker->n_out && maker->kind == KU_COMPUTE; k++)
        if (p->operand[maker->operand + maker->n_in + (uint32_t)k].buffer == id)
            g.result = k;
    pattern_of(p->name_of[b->name], g.path);
    return g;
}

static bool is_same(const struct ku_picture_group *a, const struct ku_picture_group *b)
{
    return a->cls == b->cls && a->result == b->result && a->op == b->op &&
           strcmp(a->path, b->path) == 0;
}

static bool is_at_peak(const struct ku_plan_picture *d, ku_id buffer)
{
    const struct ku_buffer *b = &d->p->buffer[buffer];
    return ku_picture_is_drawn(d->p, buffer) && ku_picture_is_transient(b) &&
           b->first <= d->report.peak_instr && b->last >= d->report.peak_instr;
}

static int largest_first(const void *a, const void *b)
{
    const struct ku_picture_group *x = a, *y = b;
    return x->bytes != y->bytes ? (x->bytes < y->bytes) - (x->bytes > y->bytes)
                                : strcmp(x->path, y->path);
}

/* The group of a buffer that is alive at the peak; d->n_groups: none yet, it would be *g. */
static int index_of(const struct ku_plan_picture *d, ku_id buffer, struct ku_picture_group *g)
{
    int at = 0;
    *g = group_of(d->p, buffer);
    while (at < d->n_groups && !is_same(&d->group[at], g))
        at++;
    return at;
}

int ku_picture_find_groups(struct ku_plan_picture *d)
{
    struct ku_picture_group g;
    uint32_t cap = 0;
    for (ku_id b = 1; b < d->p->n_buffers; b++) {
        if (!is_at_peak(d, b))
            continue;
        int at = index_of(d, b, &g);
        if (at == d->n_groups) {
            KU_TRY(KU_GROW(&d->group, (uint32_t)d->n_groups, &cap));
            d->group[d->n_groups++] = g;
        } else {
            d->group[at].count++;
            d->group[at].bytes += g.bytes;
        }
    }
    if (d->n_groups > 0)
        qsort(d->group, (size_t)d->n_groups, sizeof *d->group, largest_first);
    for (ku_id b = 1; b < d->p->n_buffers; b++)
        if (is_at_peak(d, b) && ku_panel_is_thick(d, &d->p->buffer[b], 1))
            d->group[index_of(d, b, &g)].number = 1;
    for (int i = 0, number = 0; i < d->n_groups; i++)
        d->group[i].number = d->group[i].number && i < KU_MAX_LISTED ? ++number : 0;
    return KUMI_OK;
}

const struct ku_picture_group *ku_picture_group_of(const struct ku_plan_picture *d, ku_id buffer)
{
    struct ku_picture_group g;
    return is_at_peak(d, buffer) ? &d->group[index_of(d, buffer, &g)] : NULL;
}

static void draw_heading(const struct ku_plan_picture *d, double y, const char *text)
{
    ku_picture_text(d->cr, (struct ku_font){14, 0x111111, 1}, LEFT, y, 0, "%s", text);
}

/* A coloured box (colour 0: none), a name whose front is cut off if it is too long, and bytes. */
static void draw_row(const struct ku_plan_picture *d, double y, unsigned colour, const char *name,
                     uint64_t bytes)
{
    const struct ku_font font = {13, 0x222222, 0};
    char text[16];
    int cut = 0; /* width of the dots */
    if (colour)
        ku_picture_box(d->cr, colour, LEFT, y - 12, 20, 14);
    ku_picture_bytes(bytes, text);
    ku_picture_text(d->cr, font, RIGHT, y, 1, "%s", text);
    double room = RIGHT - TEXT - ku_picture_text_width(d->cr, font, text) - 10;
    for (; *name && ku_picture_text_width(d->cr, font, name) > room - cut; name++)
        cut = 14;
    if (cut)
        ku_picture_text(d->cr, font, TEXT, y, 0, "...");
    ku_picture_text(d->cr, font, TEXT + cut, y, 0, "%s", name);
}

static double draw_classes(const struct ku_plan_picture *d, double y)
{
    const struct ku_memory_report *r = &d->report;
    draw_heading(d, y, "Class, bytes at the peak");
    y += 3;
    for (int c = 0; c < KU_N_CLASSES; c++) {
        int is_there = 0;
        for (ku_id b = 1; b < d->p->n_buffers && !is_there; b++)
            is_there = d->p->buffer[b].cls == c && ku_picture_is_drawn(d->p, b);
        if (!is_there && r->at_peak[c] == 0)
            continue;
        draw_row(d, y += ROW, ku_class_colour[c], ku_class_name(c), r->at_peak[c]);
    }
    if (ku_plan_unused_bytes(r) > 0)
        draw_row(d, y += ROW, 0xebebeb, "mapped, unused at the peak", ku_plan_unused_bytes(r));
    draw_row(d, y += ROW, 0, "total per rank", r->peak_bytes);
    return y;
}

/* The label of the peak instruction with an explanation. */
static double draw_peak(const struct ku_plan_picture *d, double y)
{
    static const char *const phase[KU_N_PHASES] = {
        [KU_PH_A] = "once per step",    [KU_PH_F] = "forward", [KU_PH_I] = "input gradients",
        [KU_PH_W] = "weight gradients", [KU_PH_O] = "update",
    };
    const struct ku_instr *i = &d->p->instr[d->report.peak_instr];
    struct ku_str where = {0};
    char text[128], micro[40] = "";
    snprintf(text, sizeof text, "Peak: instruction %u of %u", d->report.peak_instr, d->p->n_instrs);
    draw_heading(d, y, text);
    ku_plan_print_instr(d->p, d->report.peak_instr, &where);
    ku_picture_text(d->cr, (struct ku_font){13, 0x222222, 0}, LEFT, y += ROW, 0, "%s",
                    ku_str_get(&where));
    ku_str_fini(&where);
    if (i->micro >= 0)
        snprintf(micro, sizeof micro, ", micro-batch %d", i->micro);
    ku_picture_text(d->cr, (struct ku_font){13, 0x555555, 0}, LEFT, y += ROW - 3, 0,
                    "stage %d, phase %s (%s)%s", i->stage, ku_phase_name(i->phase), phase[i->phase],
                    micro);
    return y;
}

/* "h.*.mlp.c_fc: linear_dw x 12"; "linear[1]": its second result. */
static void draw_groups(const struct ku_plan_picture *d, double y)
{
    char text[256], result[16], count[16];
    uint64_t rest = 0;
    draw_heading(d, y, "Largest buffers of the step at the peak");
    ku_picture_text(d->cr, (struct ku_font){13, 0x555555, 0}, LEFT, y += ROW - 3, 0,
                    "module (*: layers): op[result] x buffers");
    y += 3;
    for (int i = 0; i < d->n_groups; i++) {
        const struct ku_picture_group *g = &d->group[i];
        if (i >= KU_MAX_LISTED) {
            rest += g->bytes;
            continue;
        }
        const char *path = g->count > 1 ? g->path : d->p->name_of[d->p->buffer[g->first].name];
        result[0] = count[0] = '\0';
        if (g->result > 0)
            snprintf(result, sizeof result, "[%d]", g->result);
        if (g->count > 1)
            snprintf(count, sizeof count, " x %d", g->count);
        snprintf(text, sizeof text, "%.200s%s%s%s%s", path, *path ? ": " : "", g->op, result,
                 count);
        draw_row(d, y += ROW, ku_class_colour[g->cls], text, g->bytes);
        if (g->number)
            ku_picture_text(d->cr, ku_number_font, LEFT + 10, y - 1, 0.5, "%d", g->number);
    }
    snprintf(text, sizeof text, "%d more", d->n_groups - KU_MAX_LISTED);
    if (rest)
        draw_row(d, y += ROW, 0, text, rest);
}

void ku_picture_draw_aside(const struct ku_plan_picture *d)
{
    double y = draw_classes(d, 34);
    y = draw_peak(d, y + 40);
    draw_groups(d, y + 40);
}
#endif
