/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dinic's max-flow: repeat a breadth-first search that gives vertices their distance from the
 * source, then push flow along paths of rising distance until none is left. At the end, a search
 * from the sink against the residual edges gives the sink's side of the cut.
 */
#include "pass/remat/mincut.h"

#include <string.h>

#include "base/err.h"
#include "base/mem.h"

/* Edge e and its reverse e ^ 1 are adjacent in the arrays. `next` chains the edges of a vertex. */
struct ku_cut {
    uint32_t n_vertices, n_edges, most;
    uint32_t *to, *next;
    int64_t *left;                                /* residual capacity */
    uint32_t *first, *at, *level, *queue, *trail; /* per vertex */
};
#define NO_EDGE UINT32_MAX

int ku_cut_create(uint32_t n_vertices, uint32_t n_edges, struct ku_cut **cut)
{
    struct ku_cut *c = ku_calloc(1, sizeof *c);
    if (c == NULL)
        return KUMI_ENOMEM;
    c->n_vertices = n_vertices;
    c->most = 2 * n_edges;
    c->to = ku_calloc(2 * (size_t)c->most + 1, sizeof *c->to);
    c->left = ku_calloc((size_t)c->most + 1, sizeof *c->left);
    c->first = ku_calloc(5 * (size_t)n_vertices, sizeof *c->first);
    if (!c->to || !c->left || !c->first) {
        ku_cut_destroy(c);
        return KUMI_ENOMEM;
    }
    c->next = c->to + c->most;
    c->at = c->first + n_vertices;
    c->level = c->at + n_vertices;
    c->queue = c->level + n_vertices;
    c->trail = c->queue + n_vertices;
    memset(c->first, 0xff, n_vertices * sizeof *c->first);
    *cut = c;
    return KUMI_OK;
}

void ku_cut_destroy(struct ku_cut *c)
{
    if (c == NULL)
        return;
    ku_free(c->to);
    ku_free(c->left);
    ku_free(c->first);
    ku_free(c);
}

static void half(struct ku_cut *c, uint32_t from, uint32_t to, int64_t capacity)
{
    KU_ASSERT(c->n_edges < c->most && from < c->n_vertices && to < c->n_vertices);
    c->to[c->n_edges] = to;
    c->left[c->n_edges] = capacity;
    c->next[c->n_edges] = c->first[from];
    c->first[from] = c->n_edges++;
}

void ku_cut_edge(struct ku_cut *c, uint32_t from, uint32_t to, int64_t capacity)
{
    half(c, from, to, capacity);
    half(c, to, from, 0);
}

/* Breadth-first levels along residual edges from the source, or against them from the sink. The
 * root has level 1; 0: not reached. */
static void reach(struct ku_cut *c, uint32_t root, int against)
{
    uint32_t head = 0, tail = 0;
    memset(c->level, 0, c->n_vertices * sizeof *c->level);
    c->level[root] = 1;
    c->queue[tail++] = root;
    while (head < tail) {
        uint32_t v = c->queue[head++];
        for (uint32_t e = c->first[v]; e != NO_EDGE; e = c->next[e])
            if (c->left[against ? e ^ 1 : e] > 0 && c->level[c->to[e]] == 0) {
                c->level[c->to[e]] = c->level[v] + 1;
                c->queue[tail++] = c->to[e];
            }
    }
}

/* Pushes flow along one path of rising levels. Returns the flow; 0: no path is left. */
static int64_t augment(struct ku_cut *c, uint32_t source, uint32_t sink)
{
    uint32_t depth = 0, v = source;
    while (v != sink) {
        uint32_t e = c->at[v];
        if (e == NO_EDGE) { /* a dead end */
            if (depth == 0)
                return 0;
            v = c->to[c->trail[--depth] ^ 1];
            c->at[v] = c->next[c->at[v]];
        } else if (c->left[e] > 0 && c->level[c->to[e]] == c->level[v] + 1) {
            c->trail[depth++] = e;
            v = c->to[e];
        } else {
            c->at[v] = c->next[e];
        }
    }
    int64_t flow = KU_CUT_INFINITE;
    for (uint32_t i = 0; i < depth; i++)
        if (c->left[c->trail[i]] < flow)
            flow = c->left[c->trail[i]];
    for (uint32_t i = 0; i < depth; i++) {
        c->left[c->trail[i]] -= flow;
        c->left[c->trail[i] ^ 1] += flow;
    }
    return flow;
}

int64_t ku_cut_solve(struct ku_cut *c, uint32_t source, uint32_t sink, unsigned char *side)
{
    int64_t total = 0;
    for (reach(c, source, 0); c->level[sink] && total < KU_CUT_INFINITE; reach(c, source, 0)) {
        memcpy(c->at, c->first, c->n_vertices * sizeof *c->at);
        for (int64_t flow; total < KU_CUT_INFINITE && (flow = augment(c, source, sink)) > 0;)
            total += flow;
    }
    reach(c, sink, 1);
    for (uint32_t v = 0; v < c->n_vertices; v++)
        side[v] = c->level[v] != 0;
    return total;
}
