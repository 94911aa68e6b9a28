/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses the text form written by print.c, line by line and word by word. Nodes are made with
 * ku_graph_node, so the types stated in the text must equal the inferred ones. Errors name file and
 * line. Limits: lines of 8 KiB, ids below 2^22.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "ir/graph.h"
#include "tensor/dtype.h"

enum { MAX_LINE_BYTES = 8192, MAX_ID = 1 << 22 };

struct reader {
    const char *name;
    int line;
    char *p; /* position in the current line */
    struct ku_graph *g;
    ku_id *value; /* indexed by the ids of the text */
    uint32_t n_value, cap_value;
};

static int bad(const struct reader *r, const char *what)
{
    return KU_ERR(KUMI_EINVAL, "graph text: %s:%d: %s, at '%.40s'", r->name, r->line, what, r->p);
}

/* Reports an error of a graph function as an error in the text, except KUMI_ENOMEM. */
static int as_bad(const struct reader *r)
{
    const struct kumi_error *e = ku_err_get();
    return e->status == KUMI_ENOMEM ? KUMI_ENOMEM : bad(r, e->text);
}

static void blank(struct reader *r)
{
    while (*r->p == ' ')
        r->p++;
}

static int skip(struct reader *r, const char *text)
{
    blank(r);
    size_t bytes = strlen(text);
    if (strncmp(r->p, text, bytes) != 0)
        return 0;
    r->p += bytes;
    return 1;
}

/* Reads characters up to a blank or one of `ends`. */
static int word(struct reader *r, const char *ends, char *out, size_t bytes)
{
    size_t n = 0;
    blank(r);
    while (*r->p && *r->p != ' ' && !strchr(ends, *r->p)) {
        if (n + 1 >= bytes)
            return bad(r, "a word is too long");
        out[n++] = *r->p++;
    }
    out[n] = '\0';
    return n ? KUMI_OK : bad(r, "a word is missing");
}

static int number(struct reader *r, int64_t *out)
{
    char *end;
    blank(r);
    *out = strtoll(r->p, &end, 10);
    if (end == r->p)
        return bad(r, "a number is missing");
    r->p = end;
    return KUMI_OK;
}

/* Reads the whole of an attribute's value as a number from `min` to `max`. */
static int bounded(struct reader *r, const char *name, const char *value, int64_t min, int64_t max,
                   int64_t *out)
{
    char *end;
    errno = 0;
    *out = strtoll(value, &end, 10);
    if (errno == 0 && end != value && *end == '\0' && *out >= min && *out <= max)
        return KUMI_OK;
    return KU_ERR(KUMI_EINVAL, "graph text: %s:%d: %s=: a number from %lld to %lld, not '%.40s'",
                  r->name, r->line, name, (long long)min, (long long)max, value);
}

static int text_id(struct reader *r, uint32_t *out)
{
    int64_t id;
    if (!skip(r, "%"))
        return bad(r, "a value (%id) is missing");
    KU_TRY(number(r, &id));
    if (id < 0 || id >= MAX_ID)
        return bad(r, "a value's id is out of range");
    *out = (uint32_t)id;
    return KUMI_OK;
}

static int value(struct reader *r, ku_id *out)
{
    uint32_t id = 0;
    KU_TRY(text_id(r, &id));
    if (id >= r->n_value || r->value[id] == 0)
        return bad(r, "this value is not defined above");
    *out = r->value[id];
    return KUMI_OK;
}

static int define(struct reader *r, uint32_t id, ku_id value)
{
    if (id >= r->n_value) {
        KU_TRY(ku_grow((void **)&r->value, sizeof *r->value, r->n_value, id + 1 - r->n_value,
                       &r->cap_value));
        r->n_value = id + 1;
    }
    if (r->value[id])
        return bad(r, "this value is defined twice");
    r->value[id] = value;
    return KUMI_OK;
}

static int shape(struct reader *r, struct ku_shape *s)
{
    memset(s, 0, sizeof *s);
    if (!skip(r, "["))
        return bad(r, "a shape is missing");
    while (!skip(r, "]")) {
        if (s->ndim == KU_MAX_DIMS || r->p[0] == '\0' || r->p[1] != '=')
            return bad(r, "a dimension must be name=count");
        struct ku_dim *d = &s->dim[s->ndim++];
        d->name = *r->p;
        r->p += 2;
        KU_TRY(number(r, &d->count));
        d->seen = d->count;
        if (skip(r, ":"))
            KU_TRY(number(r, &d->seen));
    }
    return ku_shape_check(s, r->name) < 0 ? as_bad(r) : KUMI_OK;
}

static int layout(struct reader *r, const struct ku_shape *s, struct ku_layout *l)
{
    char axis[16];
    *l = ku_layout_all(KU_C);
    if (!skip(r, "{"))
        return bad(r, "a placement is missing");
    while (!skip(r, "}")) {
        KU_TRY(word(r, ":}", axis, sizeof axis));
        int a = ku_axis_parse(axis);
        static const char kinds[] = "CRPSZ";
        const char *kind = a >= 0 && *r->p == ':' && r->p[1] ? strchr(kinds, r->p[1]) : NULL;
        if (kind == NULL)
            return bad(r, "a placement must be axis:C, R, P, Z or S(dim)");
        r->p += 2;
        l->at[a].kind = (uint8_t)(kind - kinds);
        if (l->at[a].kind == KU_Z && skip(r, "(")) {
            int64_t group;
            KU_TRY(number(r, &group));
            if (group < 1 || group > UINT16_MAX || !skip(r, ")"))
                return bad(r, "Z(g) needs a group size g from 1 to 65535");
            l->at[a].dim = (uint16_t)group;
        }
        if (l->at[a].kind != KU_S)
            continue;
        int dim = r->p[0] == '(' && r->p[1] && r->p[2] == ')' ? ku_shape_find(s, r->p[1]) : -1;
        if (dim < 0)
            return bad(r, "S(dim): the shape has no such dimension");
        l->at[a].dim = (uint8_t)dim;
        r->p += 3;
    }
    return KUMI_OK;
}

struct typed {
    uint32_t id;
    enum kumi_dtype dtype;
    struct ku_shape shape;
    struct ku_layout layout;
};

static int typed(struct reader *r, struct typed *t)
{
    char dtype[8];
    KU_TRY(text_id(r, &t->id));
    KU_TRY(word(r, "", dtype, sizeof dtype));
    if (ku_dtype_parse(dtype, &t->dtype) < 0)
        return bad(r, "no such dtype");
    KU_TRY(shape(r, &t->shape));
    return layout(r, &t->shape, &t->layout);
}

static int set_layout(struct reader *r, ku_id v, const struct ku_layout *l)
{
    r->g->value[v].layout = ku_graph_layout(r->g, l);
    return r->g->value[v].layout ? KUMI_OK : KUMI_ENOMEM;
}

/*
 * Reads "name=value" items up to the end or '@'. `other` is called first and takes the items that
 * are not attributes.
 */
static int attributes(struct reader *r, struct ku_attrs *a, uint32_t *stream,
                      int (*other)(struct reader *, const char *, const char *, void *), void *ctx)
{
    char item[KU_NAME_BYTES];
    *a = ku_attrs_default;
    for (blank(r); *r->p && *r->p != '@'; blank(r)) {
        KU_TRY(word(r, "", item, sizeof item));
        char *eq = strchr(item, '=');
        if (eq)
            *eq++ = '\0';
        if (eq && strcmp(item, "stream") == 0) {
            int64_t id;
            KU_TRY(bounded(r, item, eq, 0, UINT32_MAX, &id));
            *stream = (uint32_t)id;
            continue;
        }
        int taken = other(r, item, eq, ctx);
        KU_TRY(taken);
        if (!taken && (eq == NULL || ku_attrs_set(a, item, eq) < 0))
            return bad(r, "no such attribute or value");
    }
    return KUMI_OK;
}

/*
 * Items of a state line other than attributes. Returns 1 if taken, 0 if not, < 0 on error.
 */
static int tensor_word(struct reader *r, const char *name, const char *value, void *ctx)
{
    static const char *const kind[] = {"param",   "optimizer", "derived",
                                       "counter", "buffer",    "cache"};
    enum { N_KINDS = sizeof kind / sizeof kind[0] };
    struct ku_tensor *t = ctx;
    int64_t n;
    for (int k = 0; value == NULL && k < N_KINDS; k++)
        if (strcmp(name, kind[k]) == 0)
            return t->kind = (uint8_t)k, 1;
    if (value == NULL && strcmp(name, "trainable") == 0)
        return t->trainable = 1;
    if (value == NULL && strcmp(name, "used") == 0)
        return t->used = 1;
    for (int k = 0; value && strcmp(name, "offload") == 0 && k < KU_N_OFFLOADS; k++)
        if (strcmp(value, ku_offload_target_name(k)) == 0)
            return t->offload = (uint8_t)k, 1;
    if (value && strcmp(name, "of") == 0)
        return (t->of = ku_graph_find_tensor(r->g, value)) != 0;
    if (value && strcmp(name, "rows") == 0) {
        KU_TRY(bounded(r, name, value, 0, KU_MAX_DIMS, &n));
        return t->file_rows = (uint8_t)n, 1;
    }
    if (value && strcmp(name, "block") == 0) {
        KU_TRY(bounded(r, name, value, 0, INT32_MAX, &n));
        return t->first_block = (int32_t)n, 1;
    }
    if (value && strcmp(name, "init") == 0)
        return (t->init_op = (uint16_t)ku_op_find(value)) != KU_OP_NONE;
    return 0;
}

static int state_line(struct reader *r)
{
    struct typed t;
    struct ku_attrs a;
    char name[KU_NAME_BYTES];
    KU_TRY(typed(r, &t));
    KU_TRY(word(r, "", name, sizeof name));
    ku_id id = ku_graph_tensor(r->g, name, KU_T_PARAM, t.dtype, &t.shape);
    if (id == 0)
        return as_bad(r);
    struct ku_tensor x = r->g->tensor[id];
    x.trainable = 0;
    KU_TRY(attributes(r, &a, &x.stream, tensor_word, &x));
    x.init_attr = ku_graph_attr(r->g, &a);
    r->g->tensor[id] = x;
    if (x.of)
        ku_graph_belong(r->g, id, x.of);
    if (x.stream > r->g->n_streams)
        r->g->n_streams = x.stream;
    KU_TRY(set_layout(r, x.value, &t.layout));
    return define(r, t.id, x.value);
}

static int input_line(struct reader *r)
{
    struct typed t;
    char name[KU_NAME_BYTES];
    KU_TRY(typed(r, &t));
    KU_TRY(word(r, "", name, sizeof name));
    ku_id v = ku_graph_input(r->g, name, t.dtype, &t.shape);
    if (v == 0)
        return as_bad(r);
    KU_TRY(set_layout(r, v, &t.layout));
    return define(r, t.id, v);
}

static int phase_of(const char *name)
{
    for (int p = 0; p < KU_N_PHASES; p++)
        if (strcmp(name, ku_phase_name(p)) == 0)
            return p;
    return -1;
}

static int operands(struct reader *r, struct ku_make *m)
{
    if (!skip(r, "("))
        return bad(r, "operands are missing");
    while (!skip(r, ")")) {
        if (m->n_in == KU_MAX_IN)
            return bad(r, "too many operands");
        KU_TRY(value(r, &m->in[m->n_in++]));
        skip(r, ",");
    }
    return KUMI_OK;
}

static int check_results(struct reader *r, ku_id node, int n, const struct typed *out)
{
    for (int i = 0; i < n; i++) {
        ku_id v = ku_out(r->g, node, i);
        struct ku_type t = ku_type_of(r->g, v);
        if (t.dtype != out[i].dtype || !ku_shape_is_equal(&t.shape, &out[i].shape))
            return bad(r, "a result's type does not follow from its operands");
        KU_TRY(set_layout(r, v, &out[i].layout));
        KU_TRY(define(r, out[i].id, v));
    }
    return KUMI_OK;
}

static int node_word(struct reader *r, const char *name, const char *value, void *ctx)
{
    struct ku_make *m = ctx;
    if (value && strcmp(name, "stage") == 0) {
        int64_t stage;
        KU_TRY(bounded(r, name, value, 1, INT16_MAX, &stage));
        m->stage = (int)stage;
        return 1;
    }
    if (value == NULL || strcmp(name, "source") != 0)
        return 0;
    m->source = ku_graph_name(r->g, value);
    return m->source ? 1 : ku_err_get()->status;
}

/* Uses are read from "use" lines, so the node records none. */
static int node_line(struct reader *r)
{
    struct typed out[KU_MAX_OUT];
    struct ku_attrs a;
    struct ku_make m = {.attr = &a, .is_silent = 1};
    char phase[4], op[32];
    do {
        if (m.n_out == KU_MAX_OUT)
            return bad(r, "too many results");
        KU_TRY(typed(r, &out[m.n_out++]));
    } while (skip(r, ","));
    if (!skip(r, "="))
        return bad(r, "'=' is missing");
    KU_TRY(word(r, "", phase, sizeof phase));
    KU_TRY(word(r, "(", op, sizeof op));
    m.phase = phase_of(phase);
    m.op = ku_op_find(op);
    if (m.phase < 0 || m.op == KU_OP_NONE)
        return bad(r, "no such phase or op");
    KU_TRY(operands(r, &m));
    KU_TRY(attributes(r, &a, &m.stream, node_word, &m));
    if (!skip(r, "@"))
        return bad(r, "the path (@..) is missing");
    m.path = r->p;
    if (strlen(r->p) >= KU_NAME_BYTES)
        return bad(r, "the path is too long");
    ku_id node = ku_graph_node(r->g, &m);
    if (node == 0)
        return as_bad(r);
    if (m.stream > r->g->n_streams)
        r->g->n_streams = m.stream;
    return check_results(r, node, m.n_out, out);
}

static int use_line(struct reader *r)
{
    char name[KU_NAME_BYTES];
    ku_id reader_value, grad = 0;
    int64_t operand;
    KU_TRY(word(r, "", name, sizeof name));
    ku_id tensor = ku_graph_find_tensor(r->g, name);
    KU_TRY(value(r, &reader_value));
    KU_TRY(number(r, &operand));
    if (!skip(r, "%0"))
        KU_TRY(value(r, &grad));
    ku_id node = r->g->value[reader_value].def;
    if (tensor == 0 || node == 0 || operand < 0 || operand >= r->g->node[node].n_in)
        return bad(r, "a use must name a tensor, the reading node and the operand");
    return ku_graph_use(r->g, &(struct ku_use){tensor, node, grad, (int)operand});
}

static int next_line(struct reader *r)
{
    char name[KU_NAME_BYTES];
    KU_TRY(word(r, "", name, sizeof name));
    ku_id tensor = ku_graph_find_tensor(r->g, name);
    if (tensor == 0)
        return bad(r, "no such tensor");
    return value(r, &r->g->tensor[tensor].next);
}

static int output_line(struct reader *r)
{
    char name[KU_NAME_BYTES];
    ku_id v;
    KU_TRY(word(r, "", name, sizeof name));
    KU_TRY(value(r, &v));
    return ku_graph_output(r->g, name, v) < 0 ? as_bad(r) : KUMI_OK;
}

static int bucket_line(struct reader *r)
{
    ku_id node[MAX_LINE_BYTES / 3], v;
    uint32_t n = 0;
    for (blank(r); *r->p; blank(r)) {
        KU_TRY(value(r, &v));
        node[n] = r->g->value[v].def;
        if (node[n++] == 0)
            return bad(r, "a bucket holds results of nodes");
    }
    if (n == 0)
        return bad(r, "a bucket must name a value");
    return ku_graph_bucket(r->g, node, n);
}

static int mesh_line(struct reader *r)
{
    char axis[16];
    for (int i = 0; i < KU_N_AXES; i++) {
        int64_t extent;
        KU_TRY(word(r, "=", axis, sizeof axis));
        int a = ku_axis_parse(axis);
        if (a < 0 || !skip(r, "="))
            return bad(r, "the mesh must be axis=extent ..");
        i += i == KU_AX_TPI && a != KU_AX_TPI; /* not printed where it has one rank */
        KU_TRY(number(r, &extent));
        if (extent < 1 || extent > INT32_MAX)
            return bad(r, "an extent must be 1 or more");
        r->g->mesh.extent[a] = (int)extent;
        r->g->mesh.mb_outer |= a == KU_AX_MB && i == KU_AX_VS;
    }
    return KUMI_OK;
}

static int one_line(struct reader *r)
{
    static const struct {
        const char *word;
        int (*read)(struct reader *);
    } table[] = {{"mesh ", mesh_line},    {"state ", state_line}, {"input ", input_line},
                 {"use ", use_line},      {"next ", next_line},   {"output ", output_line},
                 {"bucket ", bucket_line}};
    if (*r->p == '\0' || *r->p == '#')
        return KUMI_OK;
    if (*r->p == '%')
        return node_line(r);
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (skip(r, table[i].word))
            return table[i].read(r);
    return bad(r, "no such kind of line");
}

static int all_lines(struct reader *r, const char *text, size_t bytes)
{
    char line[MAX_LINE_BYTES];
    const char *end = text + bytes;
    while (text < end) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        size_t n = (size_t)((stop ? stop : end) - text);
        r->line++;
        r->p = line;
        line[0] = '\0';
        if (n >= sizeof line || memchr(text, '\0', n))
            return bad(r, "the line is too long, or holds a NUL byte");
        memcpy(line, text, n);
        line[n] = '\0';
        if (r->line == 1 && strcmp(line, "kumi graph 1") != 0)
            return bad(r, "the text does not begin with 'kumi graph 1'");
        if (r->line > 1)
            KU_TRY(one_line(r));
        text += n + 1;
    }
    return r->line ? KUMI_OK : bad(r, "the text is empty");
}

int ku_graph_parse(const char *name, const char *text, size_t bytes, struct ku_graph **out)
{
    char none[1] = "";
    struct reader r = {.name = name, .p = none};
    KU_TRY(ku_graph_create(&r.g));
    int status = all_lines(&r, text, bytes);
    ku_free(r.value);
    if (status < 0) {
        ku_graph_destroy(r.g);
        return status;
    }
    *out = r.g;
    return KUMI_OK;
}
