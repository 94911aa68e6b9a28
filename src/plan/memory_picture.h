/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_PLAN_MEMORY_PICTURE_H
#define KU_PLAN_MEMORY_PICTURE_H

#include "plan/picture.h"
#include "plan/plan.h"

/* What the files that draw the memory plan share. Lengths are in units of the canvas. */
enum { KU_PICTURE_WIDTH = 1204, KU_PICTURE_HEIGHT = 870 };
enum { KU_PANEL_LEFT = 76, KU_PANEL_RIGHT = 796, KU_ASIDE_LEFT = 822, KU_ASIDE_RIGHT = 1188 };
enum { KU_PANEL_COLUMNS = KU_PANEL_RIGHT - KU_PANEL_LEFT, KU_MAX_LISTED = 12 };
enum { KU_BAND_BAR = 24 }; /* height of a bar of constant state */

/* An arena whose buffers come and go within the step. */
struct ku_panel {
    int arena, top, height;
    /* [height][KU_PANEL_COLUMNS], the lowest offset last: 1 + class of the thin bars there; 0: none
     */
    uint8_t *cell;
};
/* Buffers alive at the peak that differ in the layer or the micro-batch alone. */
struct ku_picture_group {
    char path[64]; /* the module, "*" for each number in it */
    const char *op;
    ku_id first;       /* of its buffers */
    int result, cls;   /* of the op's results, from 0 */
    int count, number; /* number: on its bars; 0: none is thick enough for one */
    uint64_t bytes;
};
struct ku_plan_picture {
    cairo_t *cr;
    const char *config; /* its path */
    const struct ku_plan *plan;
    const struct ku_program *p;
    struct ku_memory_report report;
    int is_time;   /* the axis: ns, or else instructions */
    double *begin; /* [n_instrs + 1], where on the axis an instruction begins, the last its end */
    struct ku_panel panel[KU_N_ARENAS];
    int n_panels;
    struct ku_picture_group *group; /* the largest first */
    int n_groups;
};

extern const unsigned ku_class_colour[KU_N_CLASSES];
/* The middle of the instruction at the peak. */
double ku_peak_x(const struct ku_plan_picture *d);
double ku_panel_x(const struct ku_plan_picture *d, uint32_t instr);
/* Whether a buffer comes and goes within the step, and whether its bytes are its own: a result in
 * place of another is drawn as that. */
int ku_picture_is_transient(const struct ku_buffer *b);
int ku_picture_is_drawn(const struct ku_buffer *b);

/* Merges the bars that are too thin to draw one by one into cells, and frees them. KUMI_ENOMEM. */
int ku_panel_init(const struct ku_plan_picture *d, struct ku_panel *panel);
void ku_panel_fini(struct ku_panel *panel);
void ku_panel_draw(const struct ku_plan_picture *d, const struct ku_panel *panel);
/* Above the panel: which arena, and its bytes. After the line of the peak, which it hides. */
void ku_panel_draw_caption(const struct ku_plan_picture *d, const struct ku_panel *panel);

/* An arena that stays as it is for the whole step: its bytes by class along a bar from y down. */
void ku_band_draw(const struct ku_plan_picture *d, int arena, double y, double per_byte);

/* Finds the groups, and numbers those that a bar can show; after the panels. KUMI_ENOMEM. */
int ku_picture_find_groups(struct ku_plan_picture *d);
/* The group of a transient buffer that is alive at the peak. NULL: none. */
const struct ku_picture_group *ku_picture_group_of(const struct ku_plan_picture *d, ku_id buffer);
/* Whether a bar is thick enough to be drawn on its own, and for a number. */
int ku_panel_is_thick(const struct ku_plan_picture *d, const struct ku_buffer *b, int for_number);
/* Right of the panels: colours, the peak, the largest tensors there. */
void ku_picture_draw_aside(const struct ku_plan_picture *d);

#endif
