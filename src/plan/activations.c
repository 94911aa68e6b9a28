/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/activations.h"

#include <string.h>

#include "base/arg.h"
#include "base/err.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "config/deepspeed.h"
#include "pass/unit.h"
#include "plan/plan.h"

enum { VALUE_BYTES = 2, MASK_BYTES = 1 };

/* Whether `tp` ranks divide a value, or what attention makes of it: along heads or the hidden dim
 * of the feed-forward network; with sequence parallelism all else along the tokens. */
static double share_of(const struct ku_graph *g, ku_id value, const struct ku_activation_layout *l)
{
    const struct ku_shape *s = &g->shape[g->value[value].shape];
    const bool is_cut = l->has_sp || ku_shape_find(s, 'h') >= 0 || ku_shape_find(s, 'f') >= 0;
    return is_cut ? 1.0 / l->tp : 1;
}

static double bytes_of(const struct ku_graph *g, ku_id value, const struct ku_activation_layout *l)
{
    const struct ku_value *v = &g->value[value];
    if (v->role == KU_STATE || v->dtype == KUMI_I32 || v->dtype == KUMI_I64)
        return 0;
    return (double)ku_shape_count(&g->shape[v->shape]) * share_of(g, value, l) * VALUE_BYTES;
}

/* Marks the values that the gradient templates of a node read: "i0", "o1", "i0+". */
static void mark(const struct ku_graph *g, ku_id node, unsigned char *is_read)
{
    const struct ku_node *n = &g->node[node];
    for (const char *p = ku_ops[n->op].grad; *p; p++) {
        const bool is_operand = (*p == 'i' || *p == 'o') && p[1] >= '0' && p[1] <= '9' &&
                                p > ku_ops[n->op].grad && strchr("(,=", p[-1]);
        const int end = *p == 'i' ? n->n_in : n->n_out;
        for (int k = is_operand ? p[1] - '0' : end; k < end; k = p[2] == '+' ? k + 1 : end)
            is_read[*p == 'i' ? ku_in(g, n, k) : ku_out(g, node, k)] = 1;
    }
}

static bool is_attention(const struct ku_node *n)
{
    return n->op == KU_OP_attention || n->op == KU_OP_attention_kv;
}

/*
 * The probabilities; with dropout also their mask and what it leaves of them. The queries have
 * [n, t, .., heads, width].
 */
static double attention(const struct ku_graph *g, ku_id node, const struct ku_activation_layout *l)
{
    const struct ku_node *n = &g->node[node];
    const ku_id q = ku_in(g, n, 0);
    const struct ku_shape *s = &g->shape[g->value[q].shape];
    const int keys = n->op == KU_OP_attention_kv ? 1 : 0; /* q, k and v are one value */
    const struct ku_shape *k = &g->shape[g->value[ku_in(g, n, keys)].shape];
    const double scores = (double)s->dim[0].count * (double)s->dim[1].count *
                          (double)k->dim[1].count * (double)s->dim[ku_shape_find(s, 'h')].count *
                          share_of(g, q, l);
    return scores * (g->attr[n->attr].p > 0 ? 2 * VALUE_BYTES + MASK_BYTES : VALUE_BYTES);
}

static bool is_of(const struct ku_graph *g, ku_id node, const char *layer)
{
    const size_t bytes = strlen(layer);
    const char *path = g->name[g->node[node].path];
    return g->node[node].op && strncmp(path, layer, bytes) == 0 &&
           (path[bytes] == '.' || path[bytes] == '\0');
}

double ku_activations_of_layer(const struct ku_graph *g, const char *layer,
                               const struct ku_activation_layout *l)
{
    unsigned char *is_read = ku_calloc(g->n_values, 1);
    double bytes = 0;
    if (is_read == NULL)
        return -1;
    for (ku_id n = 1; n < g->n_nodes; n++) {
        const struct ku_node *node = &g->node[n];
        if (!is_of(g, n, layer))
            continue;
        if (l->recompute == KU_RECOMPUTE_FULL) { /* its first node reads the layer's input */
            bytes = bytes_of(g, ku_in(g, node, 0), l);
            break;
        }
        mark(g, n, is_read);
        if (is_attention(node))
            is_read[ku_out(g, n, 1)] = 0; /* log-sums: the probabilities take their place */
        if (is_attention(node) && l->recompute == KU_RECOMPUTE_NONE)
            bytes += attention(g, n, l);
        if (node->op == KU_OP_dropout)
            bytes += bytes_of(g, ku_out(g, n, 0), l) / VALUE_BYTES * MASK_BYTES;
    }
    for (ku_id v = 1; v < g->n_values; v++)
        bytes += is_read[v] ? bytes_of(g, v, l) : 0;
    ku_free(is_read);
    return bytes;
}

double ku_activations_in_flight(const struct ku_pp_schedule *s)
{
    return s ? (double)ku_pp_schedule_peak(s, 0) * s->n_ranks / s->n_stages : 1;
}

static const struct technique {
    const char *name;
    int uses_tp, has_sp, recompute;
} techniques[] = {{"none", 0, 0, KU_RECOMPUTE_NONE},
                  {"tp", 1, 0, KU_RECOMPUTE_NONE},
                  {"tp, sp", 1, 1, KU_RECOMPUTE_NONE},
                  {"tp, selective", 1, 0, KU_RECOMPUTE_SELECTIVE},
                  {"tp, sp, selective", 1, 1, KU_RECOMPUTE_SELECTIVE},
                  {"full", 0, 0, KU_RECOMPUTE_FULL}};
enum { N_TECHNIQUES = sizeof techniques / sizeof *techniques };

struct report {
    const struct ku_graph *g;
    int n_layers, tp, pp;
    double in_flight;
    double share; /* of the graph's samples: a micro-batch */
};

/*
 * Moves *n to the first node of the next repeated layer.
 *
 *   layer   in: path of the one before, "" at first; out: of this one
 */
static bool next_layer(const struct ku_graph *g, ku_id *n, char layer[KU_NAME_BYTES])
{
    for (; *n < g->n_nodes; ++*n) {
        const char *path = g->name[g->node[*n].path];
        const size_t bytes = g->node[*n].op ? ku_unit_bytes(path) : 0;
        if (bytes == 0 || bytes >= KU_NAME_BYTES ||
            (strncmp(path, layer, bytes) == 0 && layer[bytes] == '\0'))
            continue;
        memcpy(layer, path, bytes);
        layer[bytes] = '\0';
        return true;
    }
    return false;
}

/* The mean over the layers: those of an encoder and a decoder differ. -1: no memory. */
static double bytes_per_layer(const struct report *r, const struct ku_activation_layout *l)
{
    char layer[KU_NAME_BYTES] = "";
    double sum = 0;
    for (ku_id n = 1; next_layer(r->g, &n, layer);) {
        const double bytes = ku_activations_of_layer(r->g, layer, l);
        if (bytes < 0)
            return -1;
        sum += bytes;
    }
    return sum / r->n_layers;
}

static int report(const struct report *r, int as_json, char **text)
{
    const double retained = (double)r->n_layers / r->pp * r->in_flight;
    struct ku_str out = {0};
    json_t *rows = json_array();
    ku_str_add(&out,
               "activations of a micro-batch under the storage of Korthikanti et al. 2022 (2-byte "
               "values, 1-byte masks, attention without fusion),\ntp %d, pp %d, %d layers: %.4g "
               "layers of micro-batches on the first rank\n\n%-20s %16s %16s\n",
               r->tp, r->pp, r->n_layers, retained, "technique", "MiB per layer",
               "GiB, first rank");
    for (int i = 0; i < N_TECHNIQUES; i++) {
        const struct technique *t = &techniques[i];
        const struct ku_activation_layout l = {t->uses_tp ? r->tp : 1, t->has_sp, t->recompute};
        const double bytes = bytes_per_layer(r, &l) * r->share;
        if (bytes < 0) {
            ku_str_fini(&out);
            json_decref(rows);
            return KUMI_ENOMEM;
        }
        ku_str_add(&out, "%-20s %16.2f %16.3f\n", t->name, bytes * 0x1p-20,
                   bytes * retained * 0x1p-30);
        json_array_append_new(rows,
                              json_pack("{s:s, s:f, s:f}", "technique", t->name, "layer_bytes",
                                        bytes, "first_rank_bytes", bytes * retained));
    }
    ku_str_add(&out, "\nkumi's own programs store less: see `kumi plan --memory`\n");
    if (!as_json) {
        json_decref(rows);
        return ku_text_take(&out, text);
    }
    ku_str_fini(&out);
    return ku_text_json(json_pack("{s:i, s:i, s:i, s:o}", "tp", r->tp, "pp", r->pp, "layers",
                                  r->n_layers, "activations", rows),
                        text);
}

int kumi_plan_activations(const struct kumi_settings *settings, int n_ranks, int as_json,
                          char **text)
{
    KU_GIVEN(text, "text");
    struct ku_plan p;
    struct ku_compile_opts o;
    struct ku_graph *g = NULL;
    char layer[KU_NAME_BYTES] = "";
    KU_TRY(ku_plan_open(&p, settings, n_ranks, NULL));
    ku_deepspeed_warn(&p.s.cfg);
    int status = ku_session_compile_opts(&p.s, &o);
    if (status == KUMI_OK)
        status = ku_session_plan_pipeline(&p.s, &o);
    if (status == KUMI_OK)
        status = ku_session_graph(&p.s, 0, &g);
    if (status == KUMI_OK) {
        struct report r = {.g = g,
                           .tp = ku_mesh_tp(&o.mesh),
                           .pp = o.mesh.extent[KU_AX_PP],
                           .in_flight = ku_activations_in_flight(o.schedule),
                           .share = 1.0 / (ku_mesh_dp(&o.mesh) * ku_mesh_n_micro(&o.mesh))};
        for (ku_id n = 1; !p.s.model.properties.image[0] && next_layer(g, &n, layer);)
            r.n_layers++;
        status = r.n_layers ? report(&r, as_json, text)
                            : KU_ERR(KUMI_EINVAL, "plan: --activations: the model has no repeated "
                                                  "layers of a transformer; gpt2, llama, bert and "
                                                  "transformer have");
    }
    ku_graph_destroy(g);
    ku_plan_fini(&p);
    return status;
}
