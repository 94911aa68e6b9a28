/* SPDX-License-Identifier: Apache-2.0 */
#define KUMI_NO_SOURCE /* this file defines the functions */
#include "nn/builder.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/arg.h"
#include "base/err.h"
#include "base/limits.h"
#include "base/mem.h"

int kumi_graph_create(struct kumi_graph **out)
{
    KU_GIVEN(out, "graph");
    struct kumi_graph *g = ku_calloc(1, sizeof *g);
    if (g == NULL)
        return KUMI_ENOMEM;
    int status = ku_graph_create(&g->ir);
    if (status < 0) {
        ku_free(g);
        return status;
    }
    *out = g;
    return KUMI_OK;
}

void kumi_graph_destroy(struct kumi_graph *g)
{
    if (g == NULL)
        return;
    ku_graph_destroy(g->ir);
    ku_free(g);
}

int kumi_graph_error(const struct kumi_graph *g)
{
    if (g == NULL)
        return KU_ERR(KUMI_EINVAL, "graph: NULL; make one with kumi_graph_create");
    return g->error.status < 0 ? ku_err_put(&g->error) : KUMI_OK;
}

int ku_builder_take(struct kumi_graph *g, struct ku_graph **ir)
{
    struct ku_graph *empty;
    KU_TRY(kumi_graph_error(g));
    KU_TRY(ku_graph_create(&empty));
    *ir = g->ir;
    g->ir = empty;
    g->n_sourced = 0;
    return KUMI_OK;
}

static kumi_value kept(struct kumi_graph *g, ku_id value)
{
    return value ? value : ku_builder_fail(g);
}

void kumi_graph_enter(struct kumi_graph *g, const char *format, ...)
{
    char name[KU_MAX_SCOPE_BYTES];
    va_list args;
    if (ku_builder_has_failed(g))
        return;
    if (g->n_scopes == KU_MAX_SCOPES) {
        KU_ERR(KUMI_EINVAL, "graph: %s: module names nest deeper than %d", g->scope, KU_MAX_SCOPES);
        ku_builder_fail(g);
        return;
    }
    va_start(args, format);
    if (format)
        vsnprintf(name, sizeof name, format, args);
    va_end(args);
    if (!ku_builder_check_name(g, format ? name : NULL))
        return;
    size_t at = strlen(g->scope);
    g->scope_bytes[g->n_scopes++] = (int)at;
    snprintf(g->scope + at, sizeof g->scope - at, "%s.", name);
}

void kumi_graph_leave(struct kumi_graph *g)
{
    if (ku_builder_has_failed(g))
        return;
    if (g->n_scopes > 0) {
        g->scope[g->scope_bytes[--g->n_scopes]] = '\0';
    } else {
        KU_ERR(KUMI_EINVAL, "graph: kumi_graph_leave: no module was entered");
        ku_builder_fail(g);
    }
}

/* Records the source line in all nodes added since the last call. */
static int note_source(struct kumi_graph *g, const char *file, int line)
{
    char text[KU_MAX_SCOPE_BYTES];
    if (ku_builder_has_failed(g) || file == NULL || g->n_sourced == g->ir->n_nodes)
        return 1;
    const char *slash = strrchr(file, '/');
    snprintf(text, sizeof text, "%.200s:%d", slash ? slash + 1 : file, line);
    for (char *p = text; *p; p++) /* must be one item of the text form and of labels in pictures */
        if (*p <= ' ' || *p > '~' || strchr("@\"\\", *p))
            *p = '_';
    ku_id source = ku_graph_name(g->ir, text);
    if (source == 0) {
        ku_builder_fail(g);
        return 0;
    }
    for (; g->n_sourced < g->ir->n_nodes; g->n_sourced++)
        g->ir->node[g->n_sourced].source = source;
    return 1;
}

kumi_value kumi_graph_built(struct kumi_graph *g, const char *file, int line, kumi_value value)
{
    return note_source(g, file, line) ? value : 0;
}

int kumi_graph_closed(struct kumi_graph *g, const char *file, int line, int status)
{
    return note_source(g, file, line) ? status : kumi_graph_error(g);
}

/* Builds "<scope><name>", followed by ".<part>" unless part is "". */
static const char *full_name(const struct kumi_graph *g, const char *name, const char *part,
                             char out[KU_MAX_SCOPE_BYTES])
{
    snprintf(out, KU_MAX_SCOPE_BYTES, "%s%s%s%s", g->scope, name, *part ? "." : "", part);
    return out;
}

ku_id ku_builder_node(struct kumi_graph *g, struct ku_make *m, const char *name)
{
    char path[KU_MAX_SCOPE_BYTES];
    if (ku_builder_has_failed(g) || (*name && !ku_builder_check_name(g, name)))
        return 0;
    for (int i = 0; i < m->n_in; i++)
        if (!ku_builder_check_value(g, m->in[i], ku_ops[m->op].name))
            return 0;
    full_name(g, name, "", path);
    if (g->ir->n_nodes > KU_MAX_MODEL_OPS) {
        KU_ERR(KUMI_EINVAL, "graph: %s: the model has more than %d operations, the limit", path,
               KU_MAX_MODEL_OPS);
        return ku_builder_fail(g);
    }
    size_t bytes = strlen(path);
    if (bytes && path[bytes - 1] == '.')
        path[bytes - 1] = '\0';
    m->phase = m->n_in ? KU_PH_F : KU_PH_A; /* without inputs: constant during the step */
    m->path = path;
    ku_id node = ku_graph_node(g->ir, m);
    return node ? ku_out(g->ir, node, 0) : ku_builder_fail(g);
}

static const char control_port[] = "control";

kumi_value kumi_input(struct kumi_graph *g, const char *name, enum kumi_dtype dtype,
                      const char *dims, const int64_t *count)
{
    if (!ku_builder_check_counts(g, name, dims, count))
        return 0;
    if ((unsigned)dtype >= KUMI_N_DTYPES || strcmp(name, control_port) == 0) {
        KU_ERR(KUMI_EINVAL, "graph: port %s: %s", name,
               (unsigned)dtype >= KUMI_N_DTYPES
                   ? "no such dtype"
                   : "reserved for the training step; choose another name");
        return ku_builder_fail(g);
    }
    struct ku_shape shape = ku_shape_of(dims, count);
    return kept(g, ku_graph_input(g->ir, name, dtype, &shape));
}

/* The step's control port (op/op.h), created by the first random op. */
static ku_id control(struct kumi_graph *g)
{
    ku_id value = ku_graph_find_input(g->ir, control_port);
    const int64_t words = KU_CONTROL_WORDS;
    const struct ku_shape shape = ku_shape_of("w", &words);
    return value ? value : kept(g, ku_graph_input(g->ir, control_port, KUMI_I64, &shape));
}

kumi_value kumi_param(struct kumi_graph *g, const char *name, const char *dims,
                      const int64_t *count, const struct kumi_init *init)
{
    static const struct kumi_init zeros;
    init = init ? init : &zeros;
    if (!ku_builder_check_counts(g, name, dims, count) ||
        !ku_builder_check_number(g, "mean", init->mean, -KU_MAX_NUMBER, KU_MAX_NUMBER) ||
        !ku_builder_check_number(g, "std", init->std, 0, KU_MAX_NUMBER) ||
        !ku_builder_check_number(g, "pad_first", (double)init->pad_first, 0, 1 << 30))
        return 0;
    if (dims[0] == '\0') {
        KU_ERR(KUMI_EINVAL, "graph: %s%s: a parameter has 1 to %d dimensions", g->scope, name,
               KU_MAX_DIMS);
        return ku_builder_fail(g);
    }
    char full[KU_MAX_SCOPE_BYTES];
    struct ku_shape shape = ku_shape_of(dims, count);
    if (init->pad_first > 1 && count[0] <= INT64_MAX - init->pad_first)
        shape.dim[0].count = (count[0] + init->pad_first - 1) / init->pad_first * init->pad_first;
    ku_id id = ku_graph_tensor(g->ir, full_name(g, name, "", full), KU_T_PARAM, KUMI_F32, &shape);
    if (id == 0)
        return ku_builder_fail(g);
    struct ku_attrs a = ku_attrs_default;
    a.value = init->mean;
    a.std = init->std;
    struct ku_tensor *t = &g->ir->tensor[id];
    t->init_op = init->std <= 0     ? KU_OP_fill
                 : init->is_uniform ? KU_OP_random_uniform
                                    : KU_OP_random_normal;
    t->init_attr = ku_graph_attr(g->ir, &a);
    t->stream = ++g->ir->n_streams;
    return t->init_attr ? t->value : ku_builder_fail(g);
}

/* Shape of a linear layer's weight, and the number of elements summed over (fan-in). */
static struct ku_shape weight_shape(const struct ku_shape *x, const struct kumi_linear *o,
                                    int contract, int64_t *fan_in)
{
    struct ku_shape k = {0}, f = ku_shape_of(o->out, o->out_count), w = {0};
    *fan_in = 1;
    for (int i = x->ndim - contract; i < x->ndim; i++) {
        k.dim[k.ndim++] = x->dim[i];
        *fan_in *= x->dim[i].count;
    }
    const struct ku_shape *part[2] = {o->out_in ? &f : &k, o->out_in ? &k : &f};
    for (int p = 0; p < 2; p++)
        for (int i = 0; i < part[p]->ndim && w.ndim < KU_MAX_DIMS; i++)
            w.dim[w.ndim++] = part[p]->dim[i];
    return w;
}

kumi_value ku_builder_param(struct kumi_graph *g, const char *name, const char *part,
                            const struct ku_shape *s, int rows, const struct kumi_init *init)
{
    char full[KU_MAX_SCOPE_BYTES], dims[KU_MAX_DIMS + 1] = "";
    int64_t count[KU_MAX_DIMS];
    if (!ku_builder_check_name(g, name))
        return 0;
    for (int i = 0; i < s->ndim; i++) {
        dims[i] = s->dim[i].name;
        count[i] = s->dim[i].count;
    }
    snprintf(full, sizeof full, "%s.%s", name, part);
    kumi_value value = kumi_param(g, full, dims, count, init);
    if (value)
        g->ir->tensor[g->ir->value[value].tensor].file_rows = (uint8_t)rows;
    return value;
}

/* A layer with its own weight needs dims for the result. */
static int check_linear(struct kumi_graph *g, kumi_value x, const char *name,
                        const struct kumi_linear *o)
{
    if (!ku_builder_check_name(g, name) || !ku_builder_check_floating(g, x, name) ||
        (o->weight && !ku_builder_check_floating(g, o->weight, name)) ||
        (o->bias && !ku_builder_check_floating(g, o->bias, name)) ||
        !ku_builder_check_number(g, "std", o->std, 0, KU_MAX_NUMBER) ||
        !ku_builder_check_number(g, "contract", o->contract, 0, KU_MAX_DIMS))
        return 0;
    if (o->weight || (o->out && o->out[0] && o->out_count))
        return 1;
    KU_ERR(KUMI_EINVAL, "graph: %s%s: out or out_count is missing: the dims of the result",
           g->scope, name);
    ku_builder_fail(g);
    return 0;
}

kumi_value kumi_linear(struct kumi_graph *g, kumi_value x, const char *name,
                       const struct kumi_linear *o)
{
    static const struct kumi_linear none;
    o = o ? o : &none;
    if (!check_linear(g, x, name, o))
        return 0;
    struct ku_shape xs = g->ir->shape[g->ir->value[x].shape];
    int contract = o->contract ? o->contract : 1;
    size_t outs = o->weight ? 0 : strlen(o->out);
    if (contract > xs.ndim || outs + (size_t)contract > KU_MAX_DIMS) {
        KU_ERR(KUMI_EINVAL, "graph: %s%s: x has %d dimensions, %d are contracted", g->scope, name,
               xs.ndim, contract);
        return ku_builder_fail(g);
    }
    struct ku_make m = {.op = KU_OP_linear, .n_in = 2, .in = {x, o->weight}};
    struct ku_attrs a = ku_attrs_default;
    a.contract = contract;
    a.trans = o->out_in;
    if (o->weight == 0) {
        int64_t fan_in;
        struct ku_shape ws = weight_shape(&xs, o, contract, &fan_in);
        double std = o->std > 0 ? o->std : 1 / sqrt((double)(fan_in > 0 ? fan_in : 1));
        m.in[1] =
            ku_builder_param(g, name, "weight", &ws, o->out_in ? ws.ndim - contract : contract,
                             &(struct kumi_init){.std = std});
    }
    if (ku_builder_has_failed(g))
        return 0;
    a.outs = g->ir->shape[g->ir->value[m.in[1]].shape].ndim - contract;
    if (a.outs < 1) {
        KU_ERR(KUMI_EINVAL, "graph: %s%s: the weight has no dims besides the %d contracted",
               g->scope, name, contract);
        return ku_builder_fail(g);
    }
    if (o->bias) {
        m.in[m.n_in++] = o->bias;
    } else if (!o->no_bias && o->weight == 0) {
        struct ku_shape bs = ku_shape_of(o->out, o->out_count);
        m.in[m.n_in++] = ku_builder_param(g, name, "bias", &bs, bs.ndim, &(struct kumi_init){0});
    }
    m.attr = &a;
    return ku_builder_node(g, &m, name);
}

kumi_value kumi_embedding(struct kumi_graph *g, kumi_value table, kumi_value ids)
{
    if (!ku_builder_check_floating(g, table, "embedding") ||
        !ku_builder_check_port(g, ids, "embedding"))
        return 0;
    struct ku_attrs a = ku_attrs_default;
    const struct ku_dim *row = &g->ir->shape[g->ir->value[table].shape].dim[0];
    a.rows = row->count;
    a.rows_seen = row->seen;
    a.row_name = row->name;
    return ku_builder_node(
        g, &(struct ku_make){.op = KU_OP_embedding, .n_in = 2, .in = {table, ids}, .attr = &a}, "");
}

kumi_value kumi_positions(struct kumi_graph *g, kumi_value x, kumi_value table)
{
    if (!ku_builder_check_floating(g, table, "positions") ||
        !ku_builder_check_floating(g, x, "positions"))
        return 0;
    struct ku_attrs a = ku_attrs_default;
    const struct ku_shape *s = &g->ir->shape[g->ir->value[table].shape];
    a.rows = s->dim[0].count;
    a.rows_seen = s->dim[0].seen;
    a.row_name = s->dim[0].name;
    a.outs = s->ndim - 1;
    return ku_builder_node(
        g, &(struct ku_make){.op = KU_OP_add_rows, .n_in = 2, .in = {x, table}, .attr = &a}, "");
}

kumi_value kumi_sinusoid(struct kumi_graph *g, int64_t positions, int64_t width)
{
    struct ku_attrs a = ku_attrs_default;
    a.rows = positions;
    a.d_model = width;
    return ku_builder_node(g, &(struct ku_make){.op = KU_OP_sinusoid, .attr = &a}, "");
}

kumi_value kumi_scale(struct kumi_graph *g, kumi_value x, double factor)
{
    struct ku_attrs a = ku_attrs_default;
    a.value = factor;
    if (!ku_builder_check_floating(g, x, "scale") ||
        !ku_builder_check_number(g, "scale", factor, -KU_MAX_NUMBER, KU_MAX_NUMBER))
        return 0;
    return ku_builder_node(
        g, &(struct ku_make){.op = KU_OP_scale, .n_in = 1, .in = {x}, .attr = &a}, "");
}

kumi_value kumi_layer_norm(struct kumi_graph *g, kumi_value x, const char *name, double eps)
{
    if (!ku_builder_check_name(g, name) || !ku_builder_check_floating(g, x, name) ||
        !ku_builder_check_number(g, "eps", eps, 0, KU_MAX_NUMBER))
        return 0;
    struct ku_shape s = g->ir->shape[g->ir->value[x].shape];
    if (s.ndim < 1) {
        KU_ERR(KUMI_EINVAL, "graph: %s%s: layer norm of a scalar; give a value with dimensions",
               g->scope, name);
        return ku_builder_fail(g);
    }
    struct ku_shape last = {.ndim = 1, .dim = {s.dim[s.ndim - 1]}};
    struct ku_attrs a = ku_attrs_default;
    if (eps > 0)
        a.eps = eps;
    kumi_value gain = ku_builder_param(g, name, "weight", &last, 1, &(struct kumi_init){.mean = 1});
    kumi_value bias = ku_builder_param(g, name, "bias", &last, 1, &(struct kumi_init){0});
    return ku_builder_node(
        g, &(struct ku_make){.op = KU_OP_layer_norm, .n_in = 3, .in = {x, gain, bias}, .attr = &a},
        name);
}

/* Checks that a dropout probability is in [0, 1). */
static int check_p(struct kumi_graph *g, double p)
{
    if (ku_builder_has_failed(g))
        return 0;
    if (p >= 0 && p < 1)
        return 1;
    KU_ERR(KUMI_EINVAL, "graph: %sdropout: %g; give a probability in [0, 1)", g->scope, p);
    ku_builder_fail(g);
    return 0;
}

kumi_value kumi_attention(struct kumi_graph *g, kumi_value qkv, int causal, double dropout,
                          double scale)
{
    return kumi_attention_within(g, qkv, 0, causal, dropout, scale);
}

kumi_value kumi_attention_within(struct kumi_graph *g, kumi_value qkv, kumi_value segments,
                                 int causal, double dropout, double scale)
{
    if (!ku_builder_check_floating(g, qkv, "attention") || !check_p(g, dropout) ||
        !ku_builder_check_number(g, "attention scale", scale, 0, KU_MAX_NUMBER))
        return 0;
    struct ku_attrs a = ku_attrs_default;
    a.causal = causal != 0;
    a.p = dropout;
    a.scale = scale;
    struct ku_make m = {.op = KU_OP_attention, .n_in = 1, .in = {qkv}, .attr = &a};
    if (segments)
        m.in[m.n_in++] = segments;
    m.in[m.n_in++] = control(g);
    return ku_builder_node(g, &m, "");
}

kumi_value kumi_attention_kv(struct kumi_graph *g, kumi_value q, kumi_value k, kumi_value v,
                             const struct kumi_attention_kv *o)
{
    static const struct kumi_attention_kv none;
    o = o ? o : &none;
    if (!ku_builder_check_floating(g, q, "attention") ||
        !ku_builder_check_floating(g, k, "attention") ||
        !ku_builder_check_floating(g, v, "attention") || !check_p(g, o->dropout) ||
        !ku_builder_check_number(g, "attention scale", o->scale, 0, KU_MAX_NUMBER))
        return 0;
    struct ku_attrs a = ku_attrs_default;
    a.causal = o->causal != 0;
    a.p = o->dropout;
    a.scale = o->scale;
    a.positions = o->positions != 0;
    struct ku_make m = {.op = KU_OP_attention_kv, .n_in = 3, .in = {q, k, v}, .attr = &a};
    if (o->positions)
        m.in[m.n_in++] = o->positions;
    if (o->lengths)
        m.in[m.n_in++] = o->lengths;
    if (o->segments)
        m.in[m.n_in++] = o->segments;
    m.in[m.n_in++] = control(g);
    return ku_builder_node(g, &m, "");
}

kumi_value kumi_activate(struct kumi_graph *g, kumi_value x, enum kumi_activation act)
{
    if (!ku_builder_check_floating(g, x, "activate") ||
        !ku_builder_check_number(g, "activation", act, KUMI_NO_ACTIVATION, KUMI_SILU))
        return 0;
    if (act == KUMI_NO_ACTIVATION)
        return x;
    struct ku_attrs a = ku_attrs_default;
    a.act = act; /* both enums have the same order */
    _Static_assert((int)KUMI_RELU == (int)KU_ACT_RELU &&
                       (int)KUMI_GELU_TANH == (int)KU_ACT_GELU_TANH &&
                       (int)KUMI_GELU == (int)KU_ACT_GELU_ERF && (int)KUMI_SILU == (int)KU_ACT_SILU,
                   "public and internal activations");
    return ku_builder_node(g, &(struct ku_make){.op = KU_OP_act, .n_in = 1, .in = {x}, .attr = &a},
                           "");
}

kumi_value kumi_add(struct kumi_graph *g, kumi_value a, kumi_value b)
{
    if (!ku_builder_check_floating(g, a, "add"))
        return 0;
    return ku_builder_node(g, &(struct ku_make){.op = KU_OP_add, .n_in = 2, .in = {a, b}}, "");
}

kumi_value kumi_mul(struct kumi_graph *g, kumi_value a, kumi_value b)
{
    if (!ku_builder_check_floating(g, a, "mul"))
        return 0;
    return ku_builder_node(g, &(struct ku_make){.op = KU_OP_mul, .n_in = 2, .in = {a, b}}, "");
}

kumi_value kumi_dropout(struct kumi_graph *g, kumi_value x, double p)
{
    if (!ku_builder_check_floating(g, x, "dropout") || !check_p(g, p))
        return 0;
    if (p == 0)
        return x;
    struct ku_attrs a = ku_attrs_default;
    a.p = p;
    ku_id port = control(g);
    return ku_builder_node(
        g, &(struct ku_make){.op = KU_OP_dropout, .n_in = 2, .in = {x, port}, .attr = &a}, "");
}

kumi_value kumi_select(struct kumi_graph *g, kumi_value x, kumi_value index)
{
    if (!ku_builder_check_port(g, index, "select"))
        return 0;
    return ku_builder_node(g, &(struct ku_make){.op = KU_OP_select, .n_in = 2, .in = {x, index}},
                           "");
}

static int add_output(struct kumi_graph *g, const char *name, kumi_value value)
{
    if (ku_builder_check_name(g, name) && ku_builder_check_value(g, value, name) &&
        ku_graph_output(g->ir, name, value) < 0)
        ku_builder_fail(g);
    return kumi_graph_error(g);
}

int kumi_graph_output(struct kumi_graph *g, const char *name, kumi_value value)
{
    if (name && (strcmp(name, "loss_sum") == 0 || strcmp(name, "loss_valid") == 0 ||
                 strncmp(name, "metric.", 7) == 0)) {
        KU_ERR(KUMI_EINVAL,
               "graph: output %.100s: reserved for losses and metrics; choose another name, or use "
               "kumi_loss_cross_entropy or kumi_graph_metric",
               name);
        ku_builder_fail(g);
        return kumi_graph_error(g);
    }
    return add_output(g, name, value);
}

int kumi_loss_smoothed(struct kumi_graph *g, kumi_value logits, kumi_value targets, int64_t ignore,
                       double smoothing)
{
    struct ku_attrs a = ku_attrs_default;
    if (!ku_builder_check_floating(g, logits, "loss") || !ku_builder_check_port(g, targets, "loss"))
        return kumi_graph_error(g);
    if (!(smoothing >= 0 && smoothing < 1)) {
        KU_ERR(KUMI_EINVAL, "graph: %sloss: label smoothing: %g; give a number in [0, 1)", g->scope,
               smoothing);
        ku_builder_fail(g);
        return kumi_graph_error(g);
    }
    a.ignore = ignore;
    a.smoothing = smoothing;
    ku_id loss = ku_builder_node(
        g,
        &(struct ku_make){.op = KU_OP_softmax_xent, .n_in = 2, .in = {logits, targets}, .attr = &a},
        "loss");
    ku_id sum = ku_builder_node(
        g, &(struct ku_make){.op = KU_OP_exact_sum, .n_in = 1, .in = {loss}}, "loss");
    ku_id valid = ku_builder_node(
        g, &(struct ku_make){.op = KU_OP_count_valid, .n_in = 1, .in = {targets}, .attr = &a},
        "loss");
    add_output(g, "loss_sum", sum);
    return add_output(g, "loss_valid", valid);
}

int kumi_loss_cross_entropy(struct kumi_graph *g, kumi_value logits, kumi_value targets,
                            int64_t ignore)
{
    return kumi_loss_smoothed(g, logits, targets, ignore, 0);
}

int kumi_graph_metric(struct kumi_graph *g, const char *name, kumi_value value,
                      enum kumi_metric kind)
{
    static const char *const suffix[] = {"sum", "mean", "max", "per_target"};
    char port[KU_MAX_SCOPE_BYTES];
    if (!ku_builder_check_name(g, name) || !ku_builder_check_floating(g, value, name) ||
        !ku_builder_check_number(g, "metric", kind, KUMI_METRIC_SUM, KUMI_METRIC_PER_TARGET))
        return kumi_graph_error(g);
    int op = kind == KUMI_METRIC_MAX ? KU_OP_max_all : KU_OP_exact_sum;
    ku_id result = ku_builder_node(g, &(struct ku_make){.op = op, .n_in = 1, .in = {value}}, name);
    snprintf(port, sizeof port, "metric.%s.%s", suffix[kind], name);
    return add_output(g, port, result);
}

int kumi_accuracy(struct kumi_graph *g, kumi_value logits, kumi_value targets, int64_t ignore,
                  int k)
{
    struct ku_attrs a = ku_attrs_default;
    char name[32] = "accuracy";
    if (!ku_builder_check_floating(g, logits, "accuracy") ||
        !ku_builder_check_port(g, targets, "accuracy"))
        return kumi_graph_error(g);
    a.ignore = ignore;
    a.top = k;
    if (k != 1)
        snprintf(name, sizeof name, "top%d", k);
    ku_id hits = ku_builder_node(
        g, &(struct ku_make){.op = KU_OP_top_k, .n_in = 2, .in = {logits, targets}, .attr = &a},
        name);
    return kumi_graph_metric(g, name, hits, KUMI_METRIC_PER_TARGET);
}
