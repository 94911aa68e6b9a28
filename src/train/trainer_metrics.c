/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics that a graph defines (kumi_graph_metric): of a step, and summed over an evaluation. */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "kumi/graph.h"
#include "train/trainer.h"

enum { N_KINDS = KUMI_METRIC_PER_TARGET + 1 };
static const char *const prefix[N_KINDS] = {
    [KUMI_METRIC_SUM] = "metric.sum.",
    [KUMI_METRIC_MEAN] = "metric.mean.",
    [KUMI_METRIC_MAX] = "metric.max.",
    [KUMI_METRIC_PER_TARGET] = "metric.per_target.",
};

/* Elements of the global batch that a metric covers, without padding: those of its sum, of which
 * converts complete the output. */
static double count_of(const struct ku_graph *g, const char *port)
{
    const ku_id output = ku_graph_find_output(g, port);
    const struct ku_node *x = &g->node[g->value[output].def];
    while (x->op == KU_OP_convert)
        x = &g->node[g->value[ku_in(g, x, 0)].def];
    return x->op == KU_OP_exact_sum
               ? (double)ku_shape_seen(&g->shape[g->value[ku_in(g, x, 0)].shape])
               : 1;
}

/* Resolve the names of the metrics' ports in all shapes. */
static int find_ports(struct ku_trainer *t, struct ku_graph *const *graph)
{
    for (int i = 0; i < 2 * t->n_shapes; i++) {
        struct ku_trainer_shape *s = &t->shape[i / 2];
        const struct ku_program_port **port = ku_calloc((size_t)t->n_metrics + 1, sizeof *port);
        if (port == NULL)
            return KUMI_ENOMEM;
        s->metric[i % 2] = port;
        for (int k = 0; k < t->n_metrics; k++)
            port[k] = s->program[i % 2] == NULL
                          ? NULL
                          : ku_program_find_port(s->program[i % 2], 0, t->metric[k].port);
    }
    for (int i = 0; i < t->n_shapes; i++) {
        double *count = ku_calloc((size_t)t->n_metrics + 1, sizeof *count);
        if (count == NULL)
            return KUMI_ENOMEM;
        t->shape[i].metric_count = count;
        for (int k = 0; k < t->n_metrics; k++)
            count[k] = count_of(graph[i], t->metric[k].port);
    }
    return KUMI_OK;
}

int ku_trainer_note_metrics(struct ku_trainer *t, struct ku_graph *const *graph)
{
    const struct ku_program *p =
        t->program[t->program[KU_PROG_EVAL] ? KU_PROG_EVAL : KU_PROG_TRAIN];
    t->metric = ku_calloc(p->n_outputs + 1, sizeof *t->metric);
    if (t->metric == NULL)
        return KUMI_ENOMEM;
    for (uint32_t i = 0; i < p->n_outputs; i++) {
        const char *port = p->name_of[p->output[i].name];
        for (int k = 0; k < N_KINDS; k++) {
            size_t bytes = strlen(prefix[k]);
            if (strncmp(port, prefix[k], bytes) != 0)
                continue;
            struct ku_trainer_metric *m = &t->metric[t->n_metrics];
            m->kind = k;
            m->port = ku_strdup(port);
            if (m->port == NULL)
                return KUMI_ENOMEM;
            m->name = m->port + bytes;
            t->n_metrics++;
        }
    }
    return find_ports(t, graph);
}

void ku_trainer_drop_metrics(struct ku_trainer *t)
{
    for (int i = 0; i < t->n_metrics; i++)
        ku_free(t->metric[i].port);
    for (int i = 0; i < 2 * t->n_shapes; i++)
        ku_free(t->shape[i / 2].metric[i % 2]);
    for (int i = 0; i < t->n_shapes; i++)
        ku_free(t->shape[i].metric_count);
    ku_free(t->metric);
}

/* Add the result of metric i in a program's last run. */
static int add_run(const struct ku_trainer *t, enum ku_trainer_program program, int i,
                   struct ku_trainer_total *m)
{
    const int kind = t->metric[i].kind;
    const struct ku_trainer_shape *s = &t->shape[t->shape_at];
    const struct ku_range port[2] = {ku_exec_port_at(t->exec[program], s->metric[program][i]),
                                     ku_trainer_step_port(t, program, KU_PORT_LOSS_VALID)};
    struct ku_mapping map[2];
    KU_TRY(ku_ranges_map(port, 2, KU_ACCESS_READ, map));
    KU_ASSERT(map[0].data != NULL);
    const int64_t *n_valid = map[1].data; /* NULL: the graph has no loss */
    if (kind == KUMI_METRIC_MAX) {
        double x;
        memcpy(&x, map[0].data, sizeof x);
        m->max = m->n_runs == 0 || x > m->max || x != x ? x : m->max;
    } else {
        ku_exact_merge(&m->sum, map[0].data);
    }
    if (kind == KUMI_METRIC_MEAN)
        m->count += s->metric_count[i];
    else if (kind == KUMI_METRIC_PER_TARGET)
        m->count += n_valid ? (double)*n_valid : 0;
    m->n_runs++;
    return ku_ranges_unmap(map, 2);
}

static void clear(struct ku_trainer_total *m)
{
    ku_exact_zero(&m->sum);
    m->count = m->max = 0;
    m->n_runs = 0;
}

static double value_of(int kind, const struct ku_trainer_total *m)
{
    if (kind == KUMI_METRIC_MAX)
        return m->max;
    double divisor = kind == KUMI_METRIC_SUM ? 1 : m->count;
    return ku_exact_round(&m->sum) / (divisor > 0 ? divisor : 1);
}

/* The ports lie in memory that other programs use too. */
int ku_trainer_take_metrics(struct ku_trainer *t)
{
    for (int i = 0; i < t->n_metrics; i++) {
        clear(&t->metric[i].total[0]);
        if (t->shape[t->shape_at].metric[KU_PROG_TRAIN][i]) /* a worker pushes the parts of it */
            KU_TRY(add_run(t, KU_PROG_TRAIN, i, &t->metric[i].total[0]));
    }
    return KUMI_OK;
}

void ku_trainer_eval_begin(struct ku_trainer *t)
{
    ku_exact_zero(&t->eval_sum);
    t->eval_tokens = 0;
    for (int i = 0; i < t->n_metrics; i++)
        clear(&t->metric[i].total[1]);
}

int ku_trainer_eval_add(struct ku_trainer *t)
{
    const struct ku_range port[2] = {ku_trainer_step_port(t, KU_PROG_EVAL, KU_PORT_LOSS_SUM),
                                     ku_trainer_step_port(t, KU_PROG_EVAL, KU_PORT_LOSS_VALID)};
    struct ku_mapping map[2];
    KU_TRY(ku_ranges_map(port, 2, KU_ACCESS_READ, map));
    ku_exact_merge(&t->eval_sum, map[0].data);
    t->eval_tokens += *(const int64_t *)map[1].data;
    KU_TRY(ku_ranges_unmap(map, 2));
    for (int i = 0; i < t->n_metrics; i++)
        KU_TRY(add_run(t, KU_PROG_EVAL, i, &t->metric[i].total[1]));
    return KUMI_OK;
}

double ku_trainer_eval_loss(const struct ku_trainer *t)
{
    return t->eval_tokens ? ku_exact_round(&t->eval_sum) / (double)t->eval_tokens : 0;
}

int ku_trainer_metric(const struct ku_trainer *t, const char *name, int is_eval, double *value)
{
    for (int i = 0; i < t->n_metrics; i++) {
        const struct ku_trainer_metric *m = &t->metric[i];
        if (strcmp(m->name, name) != 0)
            continue;
        if (!is_eval && m->total[0].n_runs == 0)
            return KU_ERR(KUMI_EINVAL, "trainer: metric %s: no step has been made yet", name);
        *value = value_of(m->kind, &m->total[is_eval != 0]);
        return KUMI_OK;
    }
    return KU_ERR(KUMI_EINVAL, "trainer: metric %s: the graph has no metric of this name", name);
}

void ku_trainer_metrics(const struct ku_trainer *t, int is_eval, struct kumi_result_metrics *out)
{
    memset(out, 0, sizeof *out);
    for (int i = 0; i < t->n_metrics && out->n < KUMI_MAX_RESULT_METRICS; i++) {
        const char *name = t->metric[i].name;
        if (strlen(name) >= sizeof out->item[0].name ||
            ku_trainer_metric(t, name, is_eval, &out->item[out->n].value) < 0)
            continue;
        snprintf(out->item[out->n++].name, sizeof out->item[0].name, "%s", name);
    }
}
