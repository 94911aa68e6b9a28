/* SPDX-License-Identifier: Apache-2.0 */
#include "pass/pipe/layer_stages.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "pass/pipe/block_schedule.h"
#include "pass/unit.h"

enum { NO_LAYER = -1 };

void ku_layers_fini(struct ku_layers *l)
{
    ku_free(l->name);
    ku_free(l->bytes);
    ku_free(l->flops);
    ku_free(l->of_node);
    memset(l, 0, sizeof *l);
}

static bool is_forward(const struct ku_node *n)
{
    return n->op != KU_OP_NONE && n->phase == KU_PH_F;
}

/* The index of the layer with this path, appended if new. */
static int layer_at(const struct ku_graph *g, struct ku_layers *l, ku_id path)
{
    const size_t bytes = ku_unit_bytes(g->name[path]);
    if (bytes == 0)
        return NO_LAYER;
    for (int i = l->n - 1; i >= 0; i--)
        if (l->bytes[i] == bytes && memcmp(g->name[l->name[i]], g->name[path], bytes) == 0)
            return i;
    l->name[l->n] = path;
    l->bytes[l->n] = bytes;
    return l->n++;
}

static double flops_of(const struct ku_graph *g, ku_id n)
{
    struct ku_type in[KU_MAX_IN], out[KU_MAX_OUT];
    const struct ku_node *node = &g->node[n];
    for (int i = 0; i < node->n_in; i++)
        in[i] = ku_type_of(g, ku_in(g, node, i));
    for (int i = 0; i < node->n_out; i++)
        out[i] = ku_type_of(g, ku_out(g, n, i));
    return ku_ops[node->op].cost(&g->attr[node->attr], 0, node->n_in, in, node->n_out, out).flops;
}

/* The last layer that the operands of a node depend on. */
static int after(const struct ku_graph *g, const struct ku_layers *l, ku_id n)
{
    int most = NO_LAYER;
    for (int i = 0; i < g->node[n].n_in; i++) {
        const ku_id def = g->value[ku_in(g, &g->node[n], i)].def;
        if (def && l->of_node[def] > most)
            most = l->of_node[def];
    }
    return most;
}

/*
 * Nodes in no layer that depend on the last layer are the end, unless a layer reads one of them.
 * own: per node, whether it is in a layer.
 */
static void find_end(const struct ku_graph *g, const bool *own, struct ku_layers *l)
{
    for (ku_id n = 1; n < g->n_nodes; n++) {
        const struct ku_node *node = &g->node[n];
        if (!is_forward(node))
            continue;
        if (!own[n] && (l->of_node[n] == l->n - 1 || after(g, l, n) == l->n)) {
            l->of_node[n] = l->n;
            l->has_end = true;
        }
        if (!own[n] || after(g, l, n) < l->n)
            continue;
        for (ku_id k = 1; k < g->n_nodes; k++)
            l->of_node[k] -= l->of_node[k] == l->n;
        l->has_end = false;
        return;
    }
}

/* Nodes that depend on no layer join the first one that reads them, or the last of all. */
static int join_readers(const struct ku_graph *g, struct ku_layers *l)
{
    int *reader = ku_calloc(g->n_nodes, sizeof *reader);
    if (reader == NULL)
        return KUMI_ENOMEM;
    for (ku_id n = 1; n < g->n_nodes; n++)
        reader[n] = l->has_end ? l->n : l->n - 1;
    for (ku_id n = g->n_nodes - 1; n > 0; n--) {
        const struct ku_node *node = &g->node[n];
        if (!is_forward(node))
            continue;
        if (l->of_node[n] == NO_LAYER)
            l->of_node[n] = reader[n];
        for (int i = 0; i < node->n_in; i++) {
            const ku_id def = g->value[ku_in(g, node, i)].def;
            if (def && l->of_node[n] < reader[def])
                reader[def] = l->of_node[n];
        }
    }
    ku_free(reader);
    return KUMI_OK;
}

static int find_layers(const struct ku_graph *g, bool *own, struct ku_layers *l)
{
    for (ku_id n = 1; n < g->n_nodes; n++) {
        l->of_node[n] = NO_LAYER;
        if (!is_forward(&g->node[n]))
            continue;
        l->of_node[n] = layer_at(g, l, g->node[n].path);
        own[n] = l->of_node[n] != NO_LAYER;
        if (!own[n])
            l->of_node[n] = after(g, l, n);
    }
    if (l->n == 0)
        return KUMI_OK;
    find_end(g, own, l);
    KU_TRY(join_readers(g, l));
    for (ku_id n = 1; n < g->n_nodes; n++)
        if (is_forward(&g->node[n]))
            l->flops[l->of_node[n]] += flops_of(g, n);
    return KUMI_OK;
}

int ku_layers_find(const struct ku_graph *g, struct ku_layers *l)
{
    memset(l, 0, sizeof *l);
    l->name = ku_calloc(g->n_nodes, sizeof *l->name);
    l->bytes = ku_calloc(g->n_nodes, sizeof *l->bytes);
    l->flops = ku_calloc(g->n_nodes + 1, sizeof *l->flops);
    l->of_node = ku_calloc(g->n_nodes, sizeof *l->of_node);
    bool *own = ku_calloc(g->n_nodes, sizeof *own);
    const int status =
        l->name && l->bytes && l->flops && l->of_node && own ? find_layers(g, own, l) : KUMI_ENOMEM;
    ku_free(own);
    if (status < 0)
        ku_layers_fini(l);
    return status;
}

/* "h.0 to h.11", for messages */
static const char *names_of(const struct ku_graph *g, const struct ku_layers *l, char *text,
                            size_t bytes)
{
    if (l->n == 0)
        return "none";
    snprintf(text, bytes, "%.*s to %.*s", (int)l->bytes[0], g->name[l->name[0]],
             (int)l->bytes[l->n - 1], g->name[l->name[l->n - 1]]);
    return text;
}

static int check_count(const struct ku_graph *g, const struct ku_layers *l, int n_stages)
{
    char text[160];
    return n_stages <= l->n
               ? KUMI_OK
               : KU_ERR(KUMI_EINVAL,
                        "parallel.pp: %d stages, but the model has %d layers (%s); at most one "
                        "stage per layer",
                        n_stages, l->n, names_of(g, l, text, sizeof text));
}

int ku_stages_balance(const struct ku_graph *g, const struct ku_stage_cost *layer,
                      const int *rank_of, int n_stages, int *count)
{
    struct ku_layers l;
    KU_TRY(ku_layers_find(g, &l));
    double *cost = ku_calloc((size_t)l.n + 1, sizeof *cost);
    int *alone = ku_calloc((size_t)n_stages, sizeof *alone);
    int status = cost && alone ? check_count(g, &l, n_stages) : KUMI_ENOMEM;
    for (int i = 0; i <= l.n && status == KUMI_OK; i++)
        cost[i] = layer ? layer[i].f + layer[i].i + layer[i].w : l.flops[i];
    for (int k = 0; k < n_stages && alone; k++)
        alone[k] = k;
    if (status == KUMI_OK)
        status = ku_balance(&(struct ku_balance){.n_layers = l.n,
                                                 .n_stages = n_stages,
                                                 .layer = cost,
                                                 .end = cost[l.n],
                                                 .rank_of = rank_of ? rank_of : alone},
                            count);
    ku_free(cost);
    ku_free(alone);
    ku_layers_fini(&l);
    return status;
}

static int find_layer(const struct ku_graph *g, const struct ku_layers *l, const char *name)
{
    for (int i = 0; i < l->n; i++)
        if (strlen(name) == l->bytes[i] && memcmp(g->name[l->name[i]], name, l->bytes[i]) == 0)
            return i;
    return NO_LAYER;
}

/* "5", "h.3" or "h.0-5": [*first, *last] after the layers up to `next`. */
static int parse_stage(const struct ku_graph *g, const struct ku_layers *l, const char *text,
                       int next, int *first, int *last)
{
    char name[KU_NAME_BYTES], end[KU_NAME_BYTES], names[160];
    const size_t digits = strspn(text, "0123456789");
    const char *dash = strrchr(text, '-');
    if (digits && digits < 7 && text[digits] == '\0') {
        int n = 0;
        sscanf(text, "%d", &n);
        *first = next, *last = next + n - 1;
        return KUMI_OK;
    }
    snprintf(name, sizeof name, "%s", text);
    *first = *last = find_layer(g, l, name); /* whose name may have a dash */
    if (dash && *first < 0 && dash - text < KU_NAME_BYTES) {
        name[dash - text] = '\0';
        *first = find_layer(g, l, name);
    }
    if (dash && *first >= 0 && *last < 0) {
        const char *dot = strrchr(name, '.');
        snprintf(end, sizeof end, "%.*s%s", (int)(dot - name) + 1, name, dash + 1);
        *last = find_layer(g, l, end);
    }
    if (*first >= 0 && *last >= *first)
        return KUMI_OK;
    return KU_ERR(
        KUMI_EINVAL,
        "parallel.stages: %s: neither a number of layers nor layers of the model (%s), as "
        "\"5\", \"h.3\" or \"h.0-5\"",
        text, names_of(g, l, names, sizeof names));
}

static int parse_all(const struct ku_graph *g, const struct ku_layers *l, const char *const *text,
                     int n, int n_stages, int *count)
{
    int next = 0;
    char names[160];
    if (n != n_stages)
        return KU_ERR(KUMI_EINVAL,
                      "parallel.stages: %d entries, but parallel.pp and its schedule have %d "
                      "stages; give the layers of each",
                      n, n_stages);
    for (int k = 0; k < n; k++) {
        int first, last;
        const bool is_end = l->has_end && k > 0 && k == n - 1 && next == l->n;
        if (is_end && strcmp(text[k], "0") == 0) {
            count[k] = 0;
            break;
        }
        if (next == l->n)
            return KU_ERR(KUMI_EINVAL,
                          "parallel.stages: %s: no layer is left for stage %d of the model's %d "
                          "layers (%s)",
                          text[k], k, l->n, names_of(g, l, names, sizeof names));
        KU_TRY(parse_stage(g, l, text[k], next, &first, &last));
        if (last < first || last >= l->n)
            return KU_ERR(KUMI_EINVAL,
                          "parallel.stages: %s: stage %d may have 1 to %d layers, as %d of the "
                          "model's %d (%s) are in stages before",
                          text[k], k, l->n - next, next, l->n, names_of(g, l, names, sizeof names));
        if (first != next)
            return KU_ERR(KUMI_EINVAL,
                          "parallel.stages: %s: stage %d must begin with %.*s; stages have "
                          "consecutive layers in order, each layer once",
                          text[k], k, (int)l->bytes[next], g->name[l->name[next]]);
        count[k] = last - first + 1;
        next = last + 1;
    }
    if (next < l->n)
        return KU_ERR(KUMI_EINVAL, "parallel.stages: layer %.*s is in no stage",
                      (int)l->bytes[next], g->name[l->name[next]]);
    return KUMI_OK;
}

int ku_stages_parse(const struct ku_graph *g, const char *const *text, int n, int n_stages,
                    int *count)
{
    struct ku_layers l;
    KU_TRY(ku_layers_find(g, &l));
    int status = check_count(g, &l, n_stages);
    if (status == KUMI_OK)
        status = parse_all(g, &l, text, n, n_stages, count);
    ku_layers_fini(&l);
    return status;
}

/* Values go from a stage to itself or to a later one. */
static int check_order(const struct ku_graph *g)
{
    for (ku_id n = 1; n < g->n_nodes; n++)
        for (int i = 0; i < g->node[n].n_in && is_forward(&g->node[n]); i++) {
            const ku_id def = g->value[ku_in(g, &g->node[n], i)].def;
            if (def && is_forward(&g->node[def]) && g->node[def].stage > g->node[n].stage)
                return KU_ERR(KUMI_EINVAL,
                              "parallel.pp: %s of stage %d reads %s of stage %d; the layers of a "
                              "pipeline follow each other",
                              g->name[g->node[n].path], g->node[n].stage,
                              g->name[g->node[def].path], g->node[def].stage);
        }
    return KUMI_OK;
}

void ku_stages_cost(const struct ku_graph *g, int n_stages, struct ku_stage_cost *cost)
{
    memset(cost, 0, (size_t)n_stages * sizeof *cost);
    for (ku_id n = 1; n < g->n_nodes; n++) {
        const struct ku_node *node = &g->node[n];
        struct ku_stage_cost *c = &cost[node->stage];
        double *sum = node->phase == KU_PH_F   ? &c->f
                      : node->phase == KU_PH_I ? &c->i
                      : node->phase == KU_PH_W ? &c->w
                                               : NULL;
        KU_ASSERT(node->stage >= 0 && node->stage < n_stages);
        if (node->op != KU_OP_NONE && sum)
            *sum += flops_of(g, n);
    }
}

void ku_stages_add_up(const struct ku_stage_cost *layer, const int *count, int n_stages,
                      struct ku_stage_cost *cost)
{
    memset(cost, 0, (size_t)n_stages * sizeof *cost);
    for (int k = 0; k < n_stages; k++)
        for (int i = 0; i < count[k]; i++, layer++) {
            cost[k].f += layer->f;
            cost[k].i += layer->i;
            cost[k].w += layer->w;
        }
    cost[n_stages - 1].f += layer->f; /* of the end */
    cost[n_stages - 1].i += layer->i;
    cost[n_stages - 1].w += layer->w;
}

int ku_stage_of_tensor(const struct ku_graph *g, ku_id tensor)
{
    while (g->tensor[tensor].of)
        tensor = g->tensor[tensor].of;
    const struct ku_tensor *x = &g->tensor[tensor];
    return x->kind == KU_T_PARAM || x->kind == KU_T_BUFFER ? x->stage : -1;
}

int ku_stages_assign(struct ku_graph *g, const int *count, int n_stages)
{
    struct ku_layers l;
    if (count == NULL || n_stages < 2)
        return KUMI_OK;
    KU_TRY(ku_layers_find(g, &l));
    int *stage_of = ku_calloc((size_t)l.n + 1, sizeof *stage_of), at = 0, status = KUMI_OK;
    if (stage_of)
        stage_of[l.n] = n_stages - 1;
    for (int k = 0; k < n_stages && stage_of; k++)
        for (int i = 0; i < count[k] && at < l.n; i++)
            stage_of[at++] = k;
    int total = 0;
    for (int k = 0; k < n_stages; k++)
        total += count[k];
    if (stage_of == NULL)
        status = KUMI_ENOMEM;
    else if (total != l.n)
        status = KU_ERR(KUMI_EINVAL, "parallel.stages: %d layers, the model has %d", total, l.n);
    for (ku_id n = 1; n < g->n_nodes && status == KUMI_OK; n++)
        if (is_forward(&g->node[n])) {
            KU_ASSERT(l.of_node[n] >= 0 && l.of_node[n] <= l.n);
            g->node[n].stage = (int16_t)stage_of[l.of_node[n]];
        }
    for (ku_id t = 1; t < g->n_tensors && status == KUMI_OK; t++) {
        const ku_id use = g->tensor[t].first_use;
        if (use)
            g->tensor[t].stage = g->node[g->use[use].node].stage;
    }
    ku_free(stage_of);
    ku_layers_fini(&l);
    return status == KUMI_OK ? check_order(g) : status;
}
