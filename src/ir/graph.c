/* SPDX-License-Identifier: Apache-2.0 */
#include "ir/graph.h"

#include <string.h>

#include "base/err.h"
#include "base/hash.h"
#include "base/mem.h"

/* Indices into cap[]. */
enum {
    CAP_VALUE,
    CAP_NODE,
    CAP_TENSOR,
    CAP_USE,
    CAP_SHAPE,
    CAP_LAYOUT,
    CAP_ATTR,
    CAP_NAME,
    CAP_REFS,
    CAP_INPUT,
    CAP_OUTPUT,
    CAP_BUCKET,
    CAP_TENSOR_OF
};

/*
 * Interning: open addressing over (kind, id). Contents are hashed, compared and stored once. Ports
 * are found by name in the same table, with id = index + 1; tensors through the id of their name.
 */
enum intern_kind {
    INTERN_SHAPE,
    INTERN_LAYOUT,
    INTERN_ATTR,
    INTERN_NAME,
    INTERN_INPUT,
    INTERN_OUTPUT
};
struct slot {
    uint64_t hash;
    ku_id id; /* 0 = free */
    uint8_t kind;
};
struct index {
    struct slot *slot;
    uint32_t n, mask;              /* mask + 1 slots, at most half of them used */
    ku_id last[INTERN_OUTPUT + 1]; /* found or added; neighbouring nodes have much in common */
};

static int index_grow(struct index *x)
{
    uint32_t mask = x->mask ? 2 * x->mask + 1 : 255;
    struct slot *slot = ku_calloc((size_t)mask + 1, sizeof *slot);
    if (slot == NULL)
        return KUMI_ENOMEM;
    for (uint32_t i = 0; x->slot && i <= x->mask; i++) {
        if (x->slot[i].id == 0)
            continue;
        uint32_t at = (uint32_t)x->slot[i].hash & mask;
        while (slot[at].id)
            at = (at + 1) & mask;
        slot[at] = x->slot[i];
    }
    ku_free(x->slot);
    x->slot = slot;
    x->mask = mask;
    return KUMI_OK;
}

static bool is_same(const struct ku_graph *g, enum intern_kind kind, ku_id id, const void *data)
{
    switch (kind) {
    case INTERN_SHAPE:
        return ku_shape_is_equal(&g->shape[id], data);
    case INTERN_LAYOUT:
        return ku_layout_is_equal(&g->layout[id], data);
    case INTERN_ATTR:
        return memcmp(&g->attr[id], data, sizeof(struct ku_attrs)) == 0;
    case INTERN_NAME:
        return strcmp(g->name[id], data) == 0;
    case INTERN_INPUT:
        return strcmp(g->input[id - 1].name, data) == 0;
    case INTERN_OUTPUT:
        return strcmp(g->output[id - 1].name, data) == 0;
    }
    return 0;
}

/*
 * The slot of equal contents, or the free slot for them. NULL: the table has no slots yet.
 */
static struct slot *find_slot(const struct ku_graph *g, enum intern_kind kind, uint64_t hash,
                              const void *data)
{
    const struct index *x = g->index;
    if (x->slot == NULL)
        return NULL;
    uint32_t at = (uint32_t)hash & x->mask;
    while (x->slot[at].id && !(x->slot[at].hash == hash && x->slot[at].kind == kind &&
                               is_same(g, kind, x->slot[at].id, data)))
        at = (at + 1) & x->mask;
    return &x->slot[at];
}

/* The id of equal contents, or 0 and the slot for a new entry. */
static ku_id intern_find(struct ku_graph *g, enum intern_kind kind, uint64_t hash, const void *data,
                         struct slot **free)
{
    struct index *x = g->index;
    if (x->slot == NULL || x->n * 2 > x->mask)
        if (index_grow(x) < 0)
            return 0;
    struct slot *s = find_slot(g, kind, hash, data);
    if (s->id == 0)
        *free = s;
    else
        x->last[kind] = s->id;
    return s->id;
}

/* The id that was found or added last, if its contents are equal, or 0. */
static ku_id intern_last(const struct ku_graph *g, enum intern_kind kind, const void *data)
{
    const ku_id id = ((const struct index *)g->index)->last[kind];
    return id && is_same(g, kind, id, data) ? id : 0;
}

static void intern_put(struct ku_graph *g, struct slot *s, enum intern_kind kind, uint64_t hash,
                       ku_id id)
{
    *s = (struct slot){hash, id, (uint8_t)kind};
    struct index *x = g->index;
    x->last[kind] = id;
    x->n++;
}

static uint64_t hash_text(const char *text)
{
    return ku_hash64(text, strlen(text));
}

ku_id ku_graph_shape(struct ku_graph *g, const struct ku_shape *s)
{
    ku_id id = intern_last(g, INTERN_SHAPE, s);
    if (id)
        return id;
    uint64_t hash = (uint64_t)s->ndim;
    for (int i = 0; i < s->ndim; i++) {
        const struct ku_dim *d = &s->dim[i];
        hash = ku_hash64_mix(hash, (uint64_t)d->count * 1315423911u + (uint64_t)d->seen * 31u +
                                       (uint64_t)d->name);
    }
    struct slot *free = NULL;
    id = intern_find(g, INTERN_SHAPE, hash, s, &free);
    if (id || free == NULL)
        return id;
    if (KU_GROW(&g->shape, g->n_shapes, &g->cap[CAP_SHAPE]) < 0)
        return 0;
    g->shape[g->n_shapes] = *s;
    intern_put(g, free, INTERN_SHAPE, hash, g->n_shapes);
    return g->n_shapes++;
}

ku_id ku_graph_layout(struct ku_graph *g, const struct ku_layout *l)
{
    ku_id id = intern_last(g, INTERN_LAYOUT, l);
    if (id)
        return id;
    uint64_t hash = ku_hash64(l, sizeof *l);
    struct slot *free = NULL;
    id = intern_find(g, INTERN_LAYOUT, hash, l, &free);
    if (id || free == NULL)
        return id;
    if (KU_GROW(&g->layout, g->n_layouts, &g->cap[CAP_LAYOUT]) < 0)
        return 0;
    g->layout[g->n_layouts] = *l;
    intern_put(g, free, INTERN_LAYOUT, hash, g->n_layouts);
    return g->n_layouts++;
}

ku_id ku_graph_attr(struct ku_graph *g, const struct ku_attrs *a)
{
    ku_id id = intern_last(g, INTERN_ATTR, a);
    if (id)
        return id;
    uint64_t hash = ku_hash64(a, sizeof *a);
    struct slot *free = NULL;
    id = intern_find(g, INTERN_ATTR, hash, a, &free);
    if (id || free == NULL)
        return id;
    if (KU_GROW(&g->attr, g->n_attrs, &g->cap[CAP_ATTR]) < 0)
        return 0;
    g->attr[g->n_attrs] = *a;
    intern_put(g, free, INTERN_ATTR, hash, g->n_attrs);
    return g->n_attrs++;
}

ku_id ku_graph_name(struct ku_graph *g, const char *text)
{
    ku_id id = intern_last(g, INTERN_NAME, text);
    if (id)
        return id;
    uint64_t hash = hash_text(text);
    struct slot *free = NULL;
    id = intern_find(g, INTERN_NAME, hash, text, &free);
    if (id || free == NULL)
        return id;
    if (KU_GROW(&g->name, g->n_names, &g->cap[CAP_NAME]) < 0 ||
        KU_GROW(&g->tensor_of, g->n_names, &g->cap[CAP_TENSOR_OF]) < 0)
        return 0;
    g->name[g->n_names] = ku_strdup(text);
    if (g->name[g->n_names] == NULL)
        return 0;
    intern_put(g, free, INTERN_NAME, hash, g->n_names);
    return g->n_names++;
}

/* The id of the object with this name; 0: none. */
static ku_id find_named(const struct ku_graph *g, enum intern_kind kind, const char *name)
{
    const struct slot *s = find_slot(g, kind, hash_text(name), name);
    return s ? s->id : 0;
}

static int note_named(struct ku_graph *g, enum intern_kind kind, const char *name, ku_id id)
{
    uint64_t hash = hash_text(name);
    struct slot *free = NULL;
    if (intern_find(g, kind, hash, name, &free) || free == NULL)
        return KUMI_ENOMEM;
    intern_put(g, free, kind, hash, id);
    return KUMI_OK;
}

/* Ids start at 1: element 0 of every array is unused. */
static int add_blanks(struct ku_graph *g)
{
    KU_TRY(KU_GROW(&g->value, g->n_values, &g->cap[CAP_VALUE]));
    KU_TRY(KU_GROW(&g->node, g->n_nodes, &g->cap[CAP_NODE]));
    KU_TRY(KU_GROW(&g->tensor, g->n_tensors, &g->cap[CAP_TENSOR]));
    KU_TRY(KU_GROW(&g->use, g->n_uses, &g->cap[CAP_USE]));
    KU_TRY(KU_GROW(&g->shape, g->n_shapes, &g->cap[CAP_SHAPE]));
    KU_TRY(KU_GROW(&g->layout, g->n_layouts, &g->cap[CAP_LAYOUT]));
    KU_TRY(KU_GROW(&g->attr, g->n_attrs, &g->cap[CAP_ATTR]));
    KU_TRY(KU_GROW(&g->name, g->n_names, &g->cap[CAP_NAME]));
    KU_TRY(KU_GROW(&g->tensor_of, g->n_names, &g->cap[CAP_TENSOR_OF]));
    g->n_values = g->n_nodes = g->n_tensors = g->n_uses = 1;
    g->n_shapes = g->n_layouts = g->n_attrs = g->n_names = 1;
    struct ku_layout common = ku_layout_all(KU_C);
    return ku_graph_layout(g, &common) == 1 && ku_graph_attr(g, &ku_attrs_default) == 1 &&
                   ku_graph_name(g, "") == 1
               ? KUMI_OK
               : KUMI_ENOMEM;
}

int ku_graph_create(struct ku_graph **out)
{
    struct ku_graph *g = ku_calloc(1, sizeof *g);
    if (g == NULL)
        return KUMI_ENOMEM;
    g->index = ku_calloc(1, sizeof(struct index));
    for (int a = 0; a < KU_N_AXES; a++)
        g->mesh.extent[a] = 1;
    if (g->index == NULL || add_blanks(g) < 0) {
        ku_graph_destroy(g);
        return KUMI_ENOMEM;
    }
    *out = g;
    return KUMI_OK;
}

void ku_graph_destroy(struct ku_graph *g)
{
    if (g == NULL)
        return;
    for (uint32_t i = 1; g->name && i < g->n_names; i++)
        ku_free(g->name[i]);
    if (g->index)
        ku_free(((struct index *)g->index)->slot);
    ku_free(g->index);
    ku_free(g->value);
    ku_free(g->node);
    ku_free(g->tensor);
    ku_free(g->use);
    ku_free(g->shape);
    ku_free(g->layout);
    ku_free(g->attr);
    ku_free(g->name);
    ku_free(g->tensor_of);
    ku_free(g->refs);
    ku_free(g->input);
    ku_free(g->output);
    ku_free(g->bucket);
    ku_free(g);
}

ku_id ku_graph_value(struct ku_graph *g, enum kumi_dtype dtype, ku_id shape, enum ku_role role)
{
    if (shape == 0 || KU_GROW(&g->value, g->n_values, &g->cap[CAP_VALUE]) < 0)
        return 0;
    g->value[g->n_values] = (struct ku_value){
        .dtype = (uint8_t)dtype, .role = (uint8_t)role, .shape = shape, .layout = 1};
    return g->n_values++;
}

static int add_port(struct ku_graph *g, enum intern_kind kind, const char *name, ku_id value)
{
    struct ku_port **list = kind == INTERN_INPUT ? &g->input : &g->output;
    uint32_t *n = kind == INTERN_INPUT ? &g->n_inputs : &g->n_outputs;
    if (find_named(g, kind, name))
        return KU_ERR(KUMI_EINVAL, "graph: port %s: another port has this name", name);
    ku_id text = ku_graph_name(g, name);
    if (value == 0 || text == 0)
        return KUMI_ENOMEM;
    KU_TRY(KU_GROW(list, *n, &g->cap[kind == INTERN_INPUT ? CAP_INPUT : CAP_OUTPUT]));
    KU_TRY(note_named(g, kind, name, *n + 1));
    (*list)[(*n)++] = (struct ku_port){.name = g->name[text], .value = value};
    return KUMI_OK;
}

ku_id ku_graph_input(struct ku_graph *g, const char *name, enum kumi_dtype dtype,
                     const struct ku_shape *shape)
{
    if (ku_shape_check(shape, name) < 0)
        return 0;
    ku_id value = ku_graph_value(g, dtype, ku_graph_shape(g, shape), KU_INPUT);
    if (add_port(g, INTERN_INPUT, name, value) < 0)
        return 0;
    return value;
}

int ku_graph_output(struct ku_graph *g, const char *name, ku_id value)
{
    return add_port(g, INTERN_OUTPUT, name, value);
}

ku_id ku_graph_tensor(struct ku_graph *g, const char *name, enum ku_tensor_kind kind,
                      enum kumi_dtype dtype, const struct ku_shape *shape)
{
    if (ku_shape_check(shape, name) < 0)
        return 0;
    ku_id text = ku_graph_name(g, name), id = ku_graph_shape(g, shape);
    if (text && g->tensor_of[text]) {
        KU_ERR(KUMI_EINVAL, "graph: %s: another tensor has this name", name);
        return 0;
    }
    ku_id value = ku_graph_value(g, dtype, id, KU_STATE);
    if (!text || !value || KU_GROW(&g->tensor, g->n_tensors, &g->cap[CAP_TENSOR]) < 0)
        return 0;
    g->tensor_of[text] = g->n_tensors;
    g->value[value].tensor = g->n_tensors;
    g->tensor[g->n_tensors] = (struct ku_tensor){.name = g->name[text],
                                                 .name_id = text,
                                                 .kind = (uint8_t)kind,
                                                 .dtype = (uint8_t)dtype,
                                                 .trainable = kind == KU_T_PARAM,
                                                 .shape = id,
                                                 .value = value,
                                                 .next = value,
                                                 .init_op = KU_OP_fill,
                                                 .init_attr = 1};
    return g->n_tensors++;
}

static int add_ref(struct ku_graph *g, ku_id id)
{
    KU_TRY(KU_GROW(&g->refs, g->n_refs, &g->cap[CAP_REFS]));
    g->refs[g->n_refs++] = id;
    return KUMI_OK;
}

int ku_graph_refs(struct ku_graph *g, const ku_id *id, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        KU_TRY(add_ref(g, id[i]));
    return KUMI_OK;
}

int ku_graph_bucket(struct ku_graph *g, const ku_id *node, uint32_t n)
{
    KU_TRY(KU_GROW(&g->bucket, g->n_buckets, &g->cap[CAP_BUCKET]));
    struct ku_bucket b = {g->n_refs, n};
    KU_TRY(ku_graph_refs(g, node, n));
    g->bucket[g->n_buckets++] = b;
    return KUMI_OK;
}

int ku_graph_use(struct ku_graph *g, const struct ku_use *use)
{
    struct ku_tensor *t = &g->tensor[use->tensor];
    KU_ASSERT(use->tensor > 0 && use->tensor < g->n_tensors);
    KU_ASSERT(use->node > 0 && use->node < g->n_nodes && use->grad < g->n_values);
    KU_ASSERT(use->operand >= 0 && use->operand < g->node[use->node].n_in);
    KU_TRY(KU_GROW(&g->use, g->n_uses, &g->cap[CAP_USE]));
    if (t->first_use == 0)
        t->first_use = g->n_uses;
    g->use[g->n_uses++] = *use;
    t->used = 1;
    return KUMI_OK;
}

static int infer(struct ku_graph *g, const struct ku_make *m, const struct ku_attrs *attr,
                 struct ku_type *out)
{
    struct ku_type in[KU_MAX_IN];
    for (int i = 0; i < m->n_in; i++) {
        if (m->in[i] == 0 || m->in[i] >= g->n_values)
            return KU_ERR(KUMI_EINVAL, "graph: %s: operand %d of %s is not a value",
                          m->path ? m->path : "", i, ku_ops[m->op].name);
        in[i] = ku_type_of(g, m->in[i]);
    }
    int status = ku_op_infer(m->op, attr, m->n_in, in, m->n_out, out);
    if (status < 0 && m->path && *m->path) { /* add the module path */
        struct kumi_error e = *ku_err_get();
        return KU_ERR(status, "graph: %s: %.380s", m->path, e.text);
    }
    return status;
}

ku_id ku_graph_node(struct ku_graph *g, const struct ku_make *make)
{
    struct ku_make m = *make;
    const struct ku_attrs *attr = m.attr ? m.attr : &ku_attrs_default;
    struct ku_type out[KU_MAX_OUT];
    KU_ASSERT(m.op > KU_OP_NONE && m.op < KU_N_OPS && m.phase >= 0 && m.phase < KU_N_PHASES);
    KU_ASSERT(m.stage >= 0 && m.stage <= INT16_MAX);
    if (m.n_out == 0)
        m.n_out = ku_ops[m.op].min_out;
    KU_ASSERT(m.n_in <= KU_MAX_IN && m.n_out <= KU_MAX_OUT);
    if (infer(g, &m, attr, out) < 0)
        return 0;
    struct ku_node node = {.op = (uint16_t)m.op,
                           .phase = (uint8_t)m.phase,
                           .n_in = (uint8_t)m.n_in,
                           .n_out = (uint8_t)m.n_out,
                           .in = g->n_refs,
                           .attr = m.attr ? ku_graph_attr(g, attr) : 1, /* default attributes */
                           .path = ku_graph_name(g, m.path ? m.path : ""),
                           .source = m.source,
                           .stage = (int16_t)m.stage,
                           .stream = m.stream};
    if ((ku_ops[m.op].traits & KU_OP_RANDOM) && m.stream == 0)
        node.stream = ++g->n_streams;
    if (!node.attr || !node.path || KU_GROW(&g->node, g->n_nodes, &g->cap[CAP_NODE]) < 0)
        return 0;
    ku_id id = g->n_nodes;
    for (int i = 0; i < m.n_in; i++)
        if (add_ref(g, m.in[i]) < 0)
            return 0;
    node.out = g->n_refs;
    for (int i = 0; i < m.n_out; i++) {
        ku_id value = ku_graph_value(g, out[i].dtype, ku_graph_shape(g, &out[i].shape), KU_TEMP);
        if (value == 0 || add_ref(g, value) < 0)
            return 0;
        g->value[value].def = id;
        g->value[value].result = (uint8_t)i;
    }
    g->node[g->n_nodes++] = node;
    for (int i = 0; i < m.n_in && !m.is_silent; i++) {
        const struct ku_value *v = &g->value[m.in[i]];
        if (m.phase == KU_PH_F && v->role == KU_STATE && g->tensor[v->tensor].kind == KU_T_PARAM)
            if (ku_graph_use(g, &(struct ku_use){v->tensor, id, 0, i}) < 0)
                return 0;
    }
    return id;
}

int ku_tensor_file_shape(const struct ku_graph *g, ku_id tensor, int64_t dim[KU_MAX_DIMS])
{
    const struct ku_shape *s = &g->shape[g->tensor[tensor].shape];
    int rows = g->tensor[tensor].file_rows, ndim = 0;
    if (rows == 0) {
        for (; ndim < s->ndim; ndim++)
            dim[ndim] = s->dim[ndim].seen;
        return ndim;
    }
    for (int i = 0; i < s->ndim; i++) {
        if (i == 0 || i == rows)
            dim[ndim++] = 1;
        dim[ndim - 1] *= s->dim[i].seen;
    }
    return ndim;
}

ku_id ku_graph_find_input(const struct ku_graph *g, const char *name)
{
    ku_id at = find_named(g, INTERN_INPUT, name);
    return at ? g->input[at - 1].value : 0;
}

ku_id ku_graph_find_output(const struct ku_graph *g, const char *name)
{
    ku_id at = find_named(g, INTERN_OUTPUT, name);
    return at ? g->output[at - 1].value : 0;
}

ku_id ku_graph_find_tensor(const struct ku_graph *g, const char *name)
{
    return g->tensor_of[find_named(g, INTERN_NAME, name)]; /* tensor_of[0] is 0 */
}

ku_id ku_graph_find_name(const struct ku_graph *g, const char *text)
{
    return find_named(g, INTERN_NAME, text);
}

void ku_graph_belong(struct ku_graph *g, ku_id tensor, ku_id of)
{
    KU_ASSERT(tensor > 0 && tensor < g->n_tensors && of > 0 && of < g->n_tensors);
    g->tensor[tensor].of = of;
    if (g->tensor[tensor].kind == KU_T_DERIVED && g->tensor[of].copy == 0)
        g->tensor[of].copy = tensor;
}

static int copy_array(void *to, const void *from, size_t bytes_each, uint32_t n, uint32_t *cap)
{
    if (n == 0)
        return KUMI_OK;
    void *copy = ku_calloc(n, bytes_each);
    if (copy == NULL)
        return KUMI_ENOMEM;
    memcpy(copy, from, n * bytes_each);
    memcpy(to, &copy, sizeof copy);
    *cap = n;
    return KUMI_OK;
}
#define COPY(c, g, array, n, at)                                                                   \
    copy_array(&(c)->array, (g)->array, sizeof *(g)->array, (g)->n, &(c)->cap[at])

static int copy_all(const struct ku_graph *g, struct ku_graph *c)
{
    const struct index *x = g->index;
    struct index *y = c->index;
    uint32_t n_slots = 0;
    KU_TRY(COPY(c, g, value, n_values, CAP_VALUE));
    KU_TRY(COPY(c, g, node, n_nodes, CAP_NODE));
    KU_TRY(COPY(c, g, tensor, n_tensors, CAP_TENSOR));
    KU_TRY(COPY(c, g, use, n_uses, CAP_USE));
    KU_TRY(COPY(c, g, shape, n_shapes, CAP_SHAPE));
    KU_TRY(COPY(c, g, layout, n_layouts, CAP_LAYOUT));
    KU_TRY(COPY(c, g, attr, n_attrs, CAP_ATTR));
    KU_TRY(COPY(c, g, tensor_of, n_names, CAP_TENSOR_OF));
    KU_TRY(COPY(c, g, refs, n_refs, CAP_REFS));
    KU_TRY(COPY(c, g, input, n_inputs, CAP_INPUT));
    KU_TRY(COPY(c, g, output, n_outputs, CAP_OUTPUT));
    KU_TRY(COPY(c, g, bucket, n_buckets, CAP_BUCKET));
    KU_TRY(copy_array(&y->slot, x->slot, sizeof *x->slot, x->slot ? x->mask + 1 : 0, &n_slots));
    y->n = x->n, y->mask = x->mask;
    c->name = ku_calloc(g->n_names, sizeof *c->name);
    c->cap[CAP_NAME] = g->n_names;
    for (ku_id i = 1; c->name && i < g->n_names; i++) {
        c->name[i] = ku_strdup(g->name[i]);
        c->n_names = i + 1;
        if (c->name[i] == NULL)
            return KUMI_ENOMEM;
    }
    return c->name ? KUMI_OK : KUMI_ENOMEM;
}

int ku_graph_copy(const struct ku_graph *g, struct ku_graph **out)
{
    struct ku_graph *c = ku_calloc(1, sizeof *c);
    if (c == NULL)
        return KUMI_ENOMEM;
    c->index = ku_calloc(1, sizeof(struct index));
    int status = c->index ? copy_all(g, c) : KUMI_ENOMEM;
    if (status < 0) {
        ku_graph_destroy(c);
        return status;
    }
    KU_ASSERT(c->n_names == g->n_names);
    c->mesh = g->mesh, c->has = g->has, c->n_streams = g->n_streams;
    c->n_values = g->n_values, c->n_nodes = g->n_nodes, c->n_tensors = g->n_tensors;
    c->n_uses = g->n_uses, c->n_shapes = g->n_shapes, c->n_layouts = g->n_layouts;
    c->n_attrs = g->n_attrs, c->n_refs = g->n_refs, c->n_inputs = g->n_inputs;
    c->n_outputs = g->n_outputs, c->n_buckets = g->n_buckets;
    for (ku_id t = 1; t < c->n_tensors; t++)
        c->tensor[t].name = c->name[g->tensor[t].name_id];
    for (uint32_t i = 0; i < c->n_inputs; i++)
        c->input[i].name = c->name[ku_graph_find_name(c, g->input[i].name)];
    for (uint32_t i = 0; i < c->n_outputs; i++)
        c->output[i].name = c->name[ku_graph_find_name(c, g->output[i].name)];
    *out = c;
    return KUMI_OK;
}

int ku_graph_drop_dead(struct ku_graph *g)
{
    unsigned char *live = ku_calloc(g->n_values, 1);
    if (live == NULL)
        return KUMI_ENOMEM;
    for (uint32_t i = 0; i < g->n_outputs; i++)
        live[g->output[i].value] = 1;
    for (ku_id u = 1; u < g->n_uses; u++)
        live[g->use[u].grad] = 1;
    for (ku_id t = 1; t < g->n_tensors; t++)
        live[g->tensor[t].next] = 1;
    int dropped = 0;
    for (ku_id n = g->n_nodes - 1; n > 0; n--) {
        struct ku_node *node = &g->node[n];
        int keep = (ku_ops[node->op].traits & (KU_OP_UPDATE | KU_OP_EFFECT)) != 0;
        for (int i = 0; i < node->n_out && !keep; i++)
            keep = live[ku_out(g, n, i)];
        if (node->op != KU_OP_NONE && !keep) {
            node->op = KU_OP_NONE;
            dropped++;
        }
        for (int i = 0; node->op != KU_OP_NONE && i < node->n_in; i++)
            live[ku_in(g, node, i)] = 1;
    }
    ku_free(live);
    return dropped;
}

const char *ku_offload_target_name(int offload)
{
    static const char *const names[KU_N_OFFLOADS] = {"none", "host", "file"};
    return offload >= 0 && offload < KU_N_OFFLOADS ? names[offload] : "?";
}

const char *ku_phase_name(int phase)
{
    static const char *const name[KU_N_PHASES] = {"A", "F", "I", "W", "O"};
    return phase >= 0 && phase < KU_N_PHASES ? name[phase] : "?";
}
