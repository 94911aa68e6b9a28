/* SPDX-License-Identifier: Apache-2.0 */
#include "pass/pipe/between_blocks.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tensor/placement.h"

/* Of values of F in the order of how long they last. */
enum { F_TO_I, F_TO_W, I_TO_W };

static bool is_micro(const struct ku_graph *g, ku_id node)
{
    const struct ku_node *n = &g->node[node];
    return node && n->op != KU_OP_NONE &&
           (n->phase == KU_PH_F || n->phase == KU_PH_I || n->phase == KU_PH_W);
}

/* The rank's part of one micro-batch, of coordinate 0, which has the most. */
static double bytes_of(const struct ku_graph *g, ku_id value)
{
    const struct ku_value *v = &g->value[value];
    const struct ku_coord first = {0};
    struct ku_shape local;
    ku_local_shape(&g->mesh, &g->shape[v->shape], &g->layout[v->layout], &first, &local);
    return (double)ku_shape_count(&local) * (double)kumi_dtype_bytes((enum kumi_dtype)v->dtype);
}

/* Whether a convert gathers or takes a part, and so makes a buffer of its own. */
static bool is_moved(const struct ku_graph *g, ku_id convert)
{
    const struct ku_layout *from = &g->layout[g->value[ku_in(g, &g->node[convert], 0)].layout],
                           *to = &g->layout[g->value[ku_out(g, convert, 0)].layout];
    for (int a = 0; a < KU_AX_FIRST_TIME; a++)
        if (g->mesh.extent[a] > 1 && from->at[a].kind != to->at[a].kind &&
            (from->at[a].kind == KU_S || to->at[a].kind == KU_S))
            return true;
    return false;
}

/* root: per value, the one whose buffer it has. */
static void find_roots(const struct ku_graph *g, ku_id *root)
{
    for (ku_id v = 1; v < g->n_values; v++)
        root[v] = v;
    for (ku_id n = 1; n < g->n_nodes; n++)
        for (int i = 0; is_micro(g, n) && i < g->node[n].n_out; i++) {
            const struct ku_node *node = &g->node[n];
            int pair = ku_op_pair(ku_ops[node->op].inout, i);
            if (node->op == KU_OP_convert && i == 0)
                pair = is_moved(g, n) ? -1 : 0;
            if (pair >= 0)
                root[ku_out(g, n, i)] = root[ku_in(g, node, pair)];
        }
}

/* A reading of a value in a later block than the one that makes it. */
struct note {
    ku_id value;
    int16_t layer;
    uint8_t kind;
};
struct notes {
    struct note *at;
    uint32_t n, cap;
};

/* By value and layer, the longest first. */
static int by_value(const void *a, const void *b)
{
    const struct note *x = a, *y = b;
    if (x->value != y->value)
        return x->value < y->value ? -1 : 1;
    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    return (x->kind < y->kind) - (x->kind > y->kind);
}

static int note(struct notes *notes, const struct ku_graph *g, ku_id value, ku_id reader)
{
    const int made = g->node[g->value[value].def].phase, read = g->node[reader].phase;
    if (made == KU_PH_W || read == KU_PH_F || made == read)
        return KUMI_OK;
    KU_TRY(KU_GROW(&notes->at, notes->n, &notes->cap));
    notes->at[notes->n++] = (struct note){.value = value,
                                          .layer = g->node[reader].stage,
                                          .kind = (uint8_t)(made == KU_PH_I   ? I_TO_W
                                                            : read == KU_PH_W ? F_TO_W
                                                                              : F_TO_I)};
    return KUMI_OK;
}

/* The layers that read a value. */
struct reach {
    int16_t low, high;
};

static int note_all(struct notes *notes, const struct ku_graph *g, const ku_id *root,
                    struct reach *reach)
{
    for (ku_id v = 1; v < g->n_values; v++)
        reach[v].low = reach[v].high = g->node[g->value[v].def].stage;
    for (ku_id n = 1; n < g->n_nodes; n++)
        for (int i = 0; is_micro(g, n) && i < g->node[n].n_in; i++) {
            const ku_id v = root[ku_in(g, &g->node[n], i)];
            const int16_t layer = g->node[n].stage;
            if (!is_micro(g, g->value[v].def))
                continue;
            reach[v].low = layer < reach[v].low ? layer : reach[v].low;
            reach[v].high = layer > reach[v].high ? layer : reach[v].high;
            KU_TRY(note(notes, g, v, n));
        }
    if (notes->n)
        qsort(notes->at, notes->n, sizeof *notes->at, by_value);
    return KUMI_OK;
}

/* What passes from layer to layer. */
static void add_sent(struct ku_between *b, const struct ku_graph *g, const struct reach *reach)
{
    for (ku_id v = 1; v < g->n_values; v++) {
        const ku_id def = g->value[v].def;
        if (!is_micro(g, def))
            continue;
        const int at = g->node[def].stage;
        KU_ASSERT(reach[v].low >= 0 && reach[v].high < b->n_layers);
        for (int l = at; l < reach[v].high; l++)
            b->forward[l] += bytes_of(g, v);
        for (int l = reach[v].low; l < at; l++)
            b->back[l] += bytes_of(g, v);
    }
}

/* The values with their readings, of each layer the longest. */
static void add_values(struct ku_between *b, const struct ku_graph *g, const struct notes *notes,
                       const struct reach *reach)
{
    uint32_t at = 0;
    for (ku_id v = 1; v < g->n_values; v++) {
        struct ku_between_value *x = &b->value[b->n_values];
        *x = (struct ku_between_value){.first = b->n_readings};
        for (; at < notes->n && notes->at[at].value == v; at++) {
            const struct note *r = &notes->at[at];
            if (b->n_readings == x->first || b->reading[b->n_readings - 1].layer != r->layer)
                b->reading[b->n_readings++] = (struct ku_between_reading){r->layer, r->kind};
        }
        x->end = b->n_readings;
        if (!is_micro(g, g->value[v].def))
            continue;
        x->bytes = bytes_of(g, v);
        x->made = x->high = g->node[g->value[v].def].stage;
        if (g->node[g->value[v].def].phase == KU_PH_F)
            x->high = reach[v].high;
        b->n_values += x->first < x->end || x->made < x->high;
    }
}

int ku_between_find(const struct ku_graph *g, int n_layers, struct ku_between *out)
{
    struct ku_between b = {.n_layers = n_layers};
    struct notes notes = {0};
    ku_id *root = ku_calloc(g->n_values, sizeof *root);
    struct reach *reach = ku_calloc(g->n_values, sizeof *reach);
    b.forward = ku_calloc((size_t)n_layers, sizeof *b.forward);
    b.back = ku_calloc((size_t)n_layers, sizeof *b.back);
    b.value = ku_calloc(g->n_values, sizeof *b.value);
    int status = root && reach && b.forward && b.back && b.value ? KUMI_OK : KUMI_ENOMEM;
    if (status == KUMI_OK) {
        find_roots(g, root);
        status = note_all(&notes, g, root, reach);
    }
    if (status == KUMI_OK) {
        b.reading = ku_calloc((size_t)notes.n + 1, sizeof *b.reading);
        status = b.reading ? KUMI_OK : KUMI_ENOMEM;
    }
    if (status == KUMI_OK) {
        add_sent(&b, g, reach);
        add_values(&b, g, &notes, reach);
    }
    ku_free(root);
    ku_free(reach);
    ku_free(notes.at);
    if (status < 0)
        ku_between_fini(&b);
    else
        *out = b;
    return status;
}

void ku_between_fini(struct ku_between *b)
{
    ku_free(b->value);
    ku_free(b->reading);
    ku_free(b->forward);
    ku_free(b->back);
    memset(b, 0, sizeof *b);
}

/* How a stage of layers first to last holds a value: -1: not between blocks. */
static int kind_of(const struct ku_between *b, const struct ku_between_value *v, int first,
                   int last)
{
    int longest = v->made <= last && v->high > last ? F_TO_I : -1; /* sent */
    for (uint32_t i = v->first; i < v->end; i++) {
        const struct ku_between_reading *r = &b->reading[i];
        if (r->layer >= first && r->layer <= last && r->kind > longest)
            longest = r->kind;
    }
    return longest;
}

void ku_between_add_up(const struct ku_between *b, const int *count, int n_stages,
                       struct ku_stage_bytes *bytes)
{
    memset(bytes, 0, (size_t)n_stages * sizeof *bytes);
    for (int k = 0, first = 0; k < n_stages; k++) { /* of layers first to last */
        const int last = k == n_stages - 1 ? b->n_layers - 1 : first + count[k] - 1;
        struct ku_stage_bytes *own = &bytes[k];
        for (uint32_t i = 0; i < b->n_values; i++) {
            const int kind = kind_of(b, &b->value[i], first, last);
            own->f_to_i += kind == F_TO_I ? b->value[i].bytes : 0;
            own->f_to_w += kind == F_TO_W ? b->value[i].bytes : 0;
            own->i_to_w += kind == I_TO_W ? b->value[i].bytes : 0;
        }
        own->sent_back = k > 0 ? b->back[first - 1] : 0;
        own->sent = k < n_stages - 1 ? b->forward[last] : 0;
        first = last + 1;
    }
}

void ku_between_add_transfers(const struct ku_stage_bytes *bytes, int n_stages, double per_byte,
                              struct ku_stage_cost *cost)
{
    for (int k = 0; k < n_stages; k++) {
        cost[k].sent = per_byte * bytes[k].sent;
        cost[k].sent_back = per_byte * bytes[k].sent_back;
    }
}
