/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PLAN_MEMORY_PICTURE_H
#define KU_PLAN_MEMORY_PICTURE_H

#include "base/err.h"
#include "plan/picture.h"
#include "plan/plan.h"

/*
 * Shared by the files that draw the memory plan. Lengths are in canvas units.
 */
enum { KU_PICTURE_WIDTH = 1204, KU_PICTURE_HEIGHT = 870 };
enum { KU_PANEL_LEFT = 76, KU_PANEL_RIGHT = 796, KU_ASIDE_LEFT = 822, KU_ASIDE_RIGHT = 1188 };
enum { KU_PANEL_COLUMNS = KU_PANEL_RIGHT - KU_PANEL_LEFT, KU_MAX_LISTED = 12 };
enum { KU_BAND_BAR = 24 }; /* height of the bar of a constant arena */

/* An arena whose buffers have live ranges within the step. */
struct ku_panel {
    int arena, top, height;
    /*
     * [height][KU_PANEL_COLUMNS], lowest offset last: 1 + class of the thin bars in the cell; 0:
     * none.
     */
    uint8_t *cell;
};
/* Buffers alive at the peak that differ only in layer or micro-batch. */
struct ku_picture_group {
    char path[64]; /* module; "*" replaces each number */
    const char *op;
    ku_id first;       /* first of its buffers */
    int result, cls;   /* result: index among the op's results */
    int count, number; /* number: label of its bars; 0: none is thick enough */
    uint64_t bytes;
};
struct ku_plan_picture {
    cairo_t *cr;
    const char *config; /* path of the configuration */
    const struct ku_plan *plan;
    const struct ku_program *p;
    struct ku_memory_report report;
    int is_time; /* the axis: 1: ns, 0: instructions */
    /* [n_instrs + 1]: position of each instruction on the axis; the last is the end. */
    double *begin;
    struct ku_panel panel[KU_N_ARENAS];
    int n_panels;
    struct ku_picture_group *group; /* largest first */
    int n_groups;
};

extern const unsigned ku_class_colour[KU_N_CLASSES];
extern const struct ku_font ku_number_font; /* of the label of a group */
/* x of the middle of the peak instruction; and x where an instruction begins. */
double ku_peak_x(const struct ku_plan_picture *d);
double ku_panel_x(const struct ku_plan_picture *d, uint32_t instr);
/*
 * Whether a buffer's live range is within the step; and whether this rank has bytes of its own for
 * it. A result that is computed in place is drawn as the buffer that it replaces.
 */
bool ku_picture_is_transient(const struct ku_buffer *b);
bool ku_picture_is_drawn(const struct ku_program *p, ku_id buffer);

/*
 * Merge bars that are too thin to draw one by one into cells; and free the cells. Errors:
 * KUMI_ENOMEM.
 */
KU_STATUS ku_panel_init(const struct ku_plan_picture *d, struct ku_panel *panel);
void ku_panel_fini(struct ku_panel *panel);
void ku_panel_draw(const struct ku_plan_picture *d, const struct ku_panel *panel);
/*
 * The caption above a panel: arena and bytes. Drawn after the line of the peak, so that it covers
 * the line.
 */
void ku_panel_draw_caption(const struct ku_plan_picture *d, const struct ku_panel *panel);

/* Draw a constant arena as a bar: its bytes by class. */
void ku_band_draw(const struct ku_plan_picture *d, int arena, double y, double per_byte);

/*
 * Find the groups and number those that a bar can show; call it after ku_panel_init. Errors:
 * KUMI_ENOMEM.
 */
KU_STATUS ku_picture_find_groups(struct ku_plan_picture *d);
/*
 * Group of a buffer with a live range within the step that is alive at the peak; NULL: none.
 */
const struct ku_picture_group *ku_picture_group_of(const struct ku_plan_picture *d, ku_id buffer);
/* Whether a bar is thick enough to be drawn on its own, or to have a number. */
bool ku_panel_is_thick(const struct ku_plan_picture *d, const struct ku_buffer *b, int for_number);
/* Draw the part right of the panels: colours, the peak, the largest tensors there. */
void ku_picture_draw_aside(const struct ku_plan_picture *d);

#endif
