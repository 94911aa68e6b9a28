/* SPDX-License-Identifier: Apache-2.0 */
#include "pass/pipe/pipe.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "pass/pipe/layer_stages.h"

/* Channels of a class: those of messages in A and O share the last. */
enum { N_CLASS_CHANNELS = 4 };

static bool is_micro(int phase)
{
    return phase == KU_PH_F || phase == KU_PH_I || phase == KU_PH_W;
}

static uint64_t all_of(const struct ku_pp_schedule *s)
{
    return s->n_ranks == 64 ? UINT64_MAX : (UINT64_C(1) << s->n_ranks) - 1;
}

static uint64_t bit(int rank)
{
    return UINT64_C(1) << rank;
}

int ku_pipe_home(const struct ku_graph *g, const struct ku_pp_schedule *s, ku_id tensor)
{
    const int stage = ku_stage_of_tensor(g, tensor);
    return stage < 0 ? -1 : s->rank_of[stage];
}

/* Whether a node in O serves the whole step, by its op or by the exact sums that it completes: its
 * path may be the name of a parameter nevertheless. */
static bool is_of_step(const struct ku_graph *g, const struct ku_node *n)
{
    return n->n_in == 0 || ku_ops[n->op].traits & KU_OP_TOTALS ||
           (n->op == KU_OP_convert && g->value[ku_in(g, n, 0)].dtype == KUMI_I64);
}

/* The coordinate of a node in O of one tensor; -1: it belongs to none. */
static int home_of_node(const struct ku_pipe *p, ku_id n)
{
    const struct ku_graph *g = p->g;
    const struct ku_node *node = &g->node[n];
    for (int i = 0; i < node->n_in; i++) {
        const struct ku_value *v = &g->value[ku_in(g, node, i)];
        if (node->op == KU_OP_convert && v->def && is_micro(g->node[v->def].phase))
            return p->s->rank_of[g->node[v->def].stage];
        if (v->role == KU_STATE && ku_pipe_home(g, p->s, v->tensor) >= 0)
            return ku_pipe_home(g, p->s, v->tensor);
    }
    const ku_id t = is_of_step(g, node) ? 0 : ku_graph_find_tensor(g, g->name[node->path]);
    return t ? ku_pipe_home(g, p->s, t) : -1;
}

/* Where nodes run: micro-batches by stage, O by tensor, and the rest wherever it is read. */
static void find_runs(struct ku_pipe *p)
{
    const struct ku_graph *g = p->g;
    for (uint32_t i = 0; i < g->n_outputs; i++) {
        const ku_id def = g->value[g->output[i].value].def;
        if (def && !is_micro(g->node[def].phase))
            p->runs[def] = all_of(p->s);
    }
    for (ku_id t = 1; t < g->n_tensors; t++) {
        const ku_id def = g->value[g->tensor[t].next].def;
        if (def && ku_pipe_home(g, p->s, t) < 0)
            p->runs[def] = all_of(p->s);
    }
    for (ku_id n = g->n_nodes - 1; n > 0; n--) {
        const struct ku_node *node = &g->node[n];
        if (node->op == KU_OP_NONE)
            continue;
        if (is_micro(node->phase)) {
            p->runs[n] = bit(p->s->rank_of[node->stage]);
        } else if (node->phase == KU_PH_O) {
            const int home = home_of_node(p, n);
            p->runs[n] = home >= 0 ? bit(home) : p->runs[n];
        }
        for (int i = 0; i < node->n_in; i++) {
            const ku_id def = g->value[ku_in(g, node, i)].def;
            if (def && !is_micro(g->node[def].phase))
                p->runs[def] |= p->runs[n];
        }
    }
}

static int add(struct ku_pipe *p, const struct ku_message *m)
{
    KU_TRY(KU_GROW(&p->message, p->n_messages, &p->cap));
    p->message[p->n_messages++] = *m;
    return KUMI_OK;
}

/* The stages that read a value of a micro-batch: [low, high]. */
struct reach {
    int16_t low, high;
};

static int add_micro(struct ku_pipe *p, ku_id v, const struct reach *r)
{
    const struct ku_graph *g = p->g;
    const struct ku_node *def = &g->node[g->value[v].def];
    const int *rank_of = p->s->rank_of;
    uint64_t has = bit(rank_of[def->stage]);
    struct ku_message m = {.value = v};
    if (def->phase != KU_PH_F && r->high > def->stage)
        return KU_ERR(KUMI_EBUG, "pipeline: %s: a gradient of stage %d is read by stage %d",
                      g->name[def->path], def->stage, r->high);
    for (int down = 0; down < 2; down++) {
        const int step = down ? -1 : 1, end = down ? r->low : r->high;
        m.cls = (uint8_t)(!down ? KU_MSG_F : def->phase == KU_PH_W ? KU_MSG_W : KU_MSG_I);
        for (int s = def->stage; step * (end - s) > 0; s += step) {
            m.from = (int16_t)s, m.to = (int16_t)(s + step);
            m.sender = (int16_t)rank_of[m.from], m.receiver = (int16_t)rank_of[m.to];
            m.is_relay = s != def->stage;
            KU_ASSERT(m.to >= 0 && m.to < p->s->n_stages);
            if (!(has & bit(m.receiver)))
                KU_TRY(add(p, &m));
            has |= bit(m.receiver);
        }
    }
    return KUMI_OK;
}

static void note_reader(const struct ku_pipe *p, struct reach *reach, ku_id n)
{
    const struct ku_graph *g = p->g;
    for (int i = 0; i < g->node[n].n_in; i++) {
        const ku_id v = ku_in(g, &g->node[n], i);
        const int16_t stage = g->node[n].stage;
        if (g->value[v].def == 0 || !is_micro(g->node[g->value[v].def].phase))
            continue;
        reach[v].low = stage < reach[v].low ? stage : reach[v].low;
        reach[v].high = stage > reach[v].high ? stage : reach[v].high;
    }
}

static int add_all_micro(struct ku_pipe *p)
{
    const struct ku_graph *g = p->g;
    struct reach *reach = ku_calloc(g->n_values, sizeof *reach);
    if (reach == NULL)
        return KUMI_ENOMEM;
    for (ku_id v = 1; v < g->n_values; v++)
        reach[v].low = reach[v].high = g->node[g->value[v].def].stage;
    for (ku_id n = 1; n < g->n_nodes; n++)
        if (g->node[n].op != KU_OP_NONE && is_micro(g->node[n].phase))
            note_reader(p, reach, n);
    int status = KUMI_OK;
    for (ku_id v = 1; v < g->n_values && status == KUMI_OK; v++)
        if (g->value[v].def && g->node[g->value[v].def].op != KU_OP_NONE &&
            is_micro(g->node[g->value[v].def].phase))
            status = add_micro(p, v, &reach[v]);
    ku_free(reach);
    return status;
}

/* The coordinates that make a value of A or O, or store it. */
static uint64_t makers(const struct ku_pipe *p, ku_id v)
{
    const struct ku_value *x = &p->g->value[v];
    const int home = x->role == KU_STATE ? ku_pipe_home(p->g, p->s, x->tensor) : -1;
    return x->def ? p->runs[x->def] : home >= 0 ? bit(home) : all_of(p->s);
}

/* Brings a value of A, of O or of the state to all coordinates of `need`, from where it is made:
 * what has been received is not sent on. */
static int bring(struct ku_pipe *p, uint64_t *has, ku_id v, uint64_t need)
{
    const struct ku_value *x = &p->g->value[v];
    if (x->role == KU_INPUT)
        return KUMI_OK;
    has[v] |= makers(p, v);
    if ((need & ~has[v]) == 0)
        return KUMI_OK;
    KU_ASSERT(makers(p, v) != 0);
    const int from = __builtin_ctzll(makers(p, v));
    const bool is_first = x->def == 0 || p->g->node[x->def].phase == KU_PH_A;
    for (int to = 0; to < p->s->n_ranks; to++)
        if (need & ~has[v] & bit(to))
            KU_TRY(add(p, &(struct ku_message){.value = v,
                                               .cls = is_first ? KU_MSG_A : KU_MSG_O,
                                               .from = (int16_t)from,
                                               .to = (int16_t)to,
                                               .sender = (int16_t)from,
                                               .receiver = (int16_t)to}));
    has[v] |= need;
    return KUMI_OK;
}

static int add_all_once(struct ku_pipe *p)
{
    const struct ku_graph *g = p->g;
    uint64_t *has = ku_calloc(g->n_values, sizeof *has);
    int status = has ? KUMI_OK : KUMI_ENOMEM;
    for (ku_id n = 1; n < g->n_nodes && status == KUMI_OK; n++)
        for (int i = 0; i < g->node[n].n_in && status == KUMI_OK; i++) {
            const ku_id v = ku_in(g, &g->node[n], i), def = g->value[v].def;
            if (g->node[n].op != KU_OP_NONE && !(def && is_micro(g->node[def].phase)))
                status = bring(p, has, v, p->runs[n]);
        }
    for (uint32_t i = 0; i < g->n_outputs && status == KUMI_OK; i++) {
        const ku_id v = g->output[i].value, def = g->value[v].def;
        if (!(def && is_micro(g->node[def].phase)))
            status = bring(p, has, v, all_of(p->s));
    }
    ku_free(has);
    return status;
}

/* The order in which both sides begin the messages of a channel. */
static int by_order(const void *a, const void *b)
{
    const struct ku_message *x = a, *y = b;
    if (x->cls != y->cls)
        return x->cls < y->cls ? -1 : 1;
    if (x->from != y->from)
        return x->from < y->from ? -1 : 1;
    if (x->is_relay != y->is_relay)
        return x->is_relay ? 1 : -1;
    if (x->def != y->def)
        return x->def < y->def ? -1 : 1;
    if (x->value != y->value)
        return x->value < y->value ? -1 : 1;
    return (x->to > y->to) - (x->to < y->to);
}

/*
 * Numbers the channels: those of a class by how many earlier pairs of neighbouring stages are on
 * the same two coordinates.
 */
static int number_channels(struct ku_pipe *p)
{
    const int *rank_of = p->s->rank_of;
    for (uint32_t i = 0; i < p->n_messages; i++) {
        struct ku_message *m = &p->message[i];
        const int step = m->to - m->from;
        int earlier = 0;
        m->def = p->g->value[m->value].def;
        if (m->cls >= KU_MSG_A) {
            m->channel = N_CLASS_CHANNELS - 1;
            continue;
        }
        for (int s = step > 0 ? 0 : 1; s < m->from; s++)
            earlier += rank_of[s] == m->sender && rank_of[s + step] == m->receiver;
        if (N_CLASS_CHANNELS * earlier + m->cls >= KU_MAX_CHANNELS)
            return KU_ERR(KUMI_EINVAL,
                          "pipeline: %d pairs of neighbouring stages are on coordinates %d and %d; "
                          "at most %d",
                          earlier + 1, m->sender, m->receiver, KU_MAX_CHANNELS / N_CLASS_CHANNELS);
        m->channel = (uint8_t)(N_CLASS_CHANNELS * earlier + m->cls);
        KU_ASSERT(m->sender != m->receiver);
    }
    return KUMI_OK;
}

int ku_pipe_create(const struct ku_graph *g, const struct ku_pp_schedule *s, struct ku_pipe **out)
{
    struct ku_pipe *p = ku_calloc(1, sizeof *p);
    if (p == NULL)
        return KUMI_ENOMEM;
    *p = (struct ku_pipe){.g = g, .s = s};
    p->runs = ku_calloc(g->n_nodes, sizeof *p->runs);
    int status = p->runs ? KUMI_OK : KUMI_ENOMEM;
    if (status == KUMI_OK) {
        find_runs(p);
        status = add_all_micro(p);
    }
    if (status == KUMI_OK)
        status = add_all_once(p);
    if (status == KUMI_OK)
        status = number_channels(p);
    if (status == KUMI_OK && p->n_messages)
        qsort(p->message, p->n_messages, sizeof *p->message, by_order);
    if (status < 0)
        ku_pipe_destroy(p);
    else
        *out = p;
    return status;
}

void ku_pipe_destroy(struct ku_pipe *p)
{
    if (p == NULL)
        return;
    ku_free(p->runs);
    ku_free(p->message);
    ku_free(p);
}
