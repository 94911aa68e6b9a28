/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_IR_GRAPH_H
#define KU_IR_GRAPH_H

#include "op/op.h"

/*
 * The graph: one flat SSA list for all ranks of a job. Ids index the arrays; 0 is none. Nodes are
 * appended and never moved; a phase's nodes in list order are its block. Shapes, layouts,
 * attributes and names are interned: equal ids mean equal contents.
 */

/*
 * How often a node runs; when follows from dependencies. A: once a step, from state alone. F:
 * forward, per micro-batch. I and W: backward, per micro-batch; W iff the operand it differentiates
 * depends on no input data. O: once a step, at its end.
 */
enum { KU_NAME_BYTES = 320 /* longest name of a tensor or module path, NUL included */ };
enum ku_phase { KU_PH_A, KU_PH_F, KU_PH_I, KU_PH_W, KU_PH_O, KU_N_PHASES };

/* Where a value comes from: a node, a port that the trainer fills before the step, or the state. */
enum ku_role { KU_TEMP, KU_INPUT, KU_STATE };

struct ku_value {
    ku_id def; /* the node, 0 for inputs and state */
    uint8_t result, dtype, role;
    ku_id shape, layout, tensor; /* tensor: of state values, each version */
};

/*
 * A tensor of the state. `value` is what the step reads; `next` the version that O leaves in the
 * same bytes (value itself if nothing writes it). A parameter has a way to make its first value;
 * optimizer tensors belong to a parameter and start at zero. A buffer (running statistics) is part
 * of the model in files and digests as a parameter is, but not trained; it lies with the parameter
 * that it belongs to. A cache holds what an earlier run left for this one (keys and values when
 * decoding): zero at first, in no file and no digest, cut by samples.
 */
enum ku_tensor_kind {
    KU_T_PARAM,
    KU_T_OPTIMIZER,
    KU_T_DERIVED,
    KU_T_COUNTER,
    KU_T_BUFFER,
    KU_T_CACHE
};
/* Where a tensor of the state lies: among the rank's other state, in host memory of its own, or in
 * a file. */
enum ku_tier { KU_TIER_NONE, KU_TIER_HOST, KU_TIER_FILE, KU_N_TIERS };
struct ku_tensor {
    const char *name; /* "h.0.attn.c_attn.weight", "h.0.attn.c_attn.weight.exp_avg" */
    ku_id name_id;    /* interned */
    uint8_t kind, dtype, trainable, used, tier;
    ku_id shape, value, next;
    ku_id of;         /* the parameter that an optimizer tensor, derived one or buffer belongs to */
    ku_id copy;       /* of a parameter: its first derived tensor, 0 = none (ku_graph_belong) */
    ku_id first_use;  /* index into graph->use, 0 = none */
    ku_id init_attr;  /* of the op below */
    uint16_t init_op; /* KU_OP_fill, KU_OP_random_normal or _uniform */
    uint32_t stream;
    uint8_t file_rows;   /* in files the first file_rows dims are one, the others another (Hugging
                            Face's matrices); all = a vector; 0 = as they are */
    int32_t first_block; /* rank (mod N) that keeps the first canonical block: DESIGN "blocks",
                            COMPILER 13 */
};

/* The unit of gradients: (tensor, use), in use order; grad is the adjoint that backward leaves, 0
 * if there is none. */
struct ku_use {
    ku_id tensor, node, grad;
    int operand; /* of the node */
};

struct ku_node {
    uint16_t op;
    uint8_t phase, n_in, n_out;
    int16_t stage;     /* of the pipeline */
    uint32_t in, out;  /* spans of graph->refs */
    ku_id attr, path;  /* path: module path, an interned name */
    ku_id source;      /* "gpt2.c:88", the line that built it, interned; 0: none */
    uint32_t stream;   /* of random ops; clones keep it */
    uint64_t verified; /* ku_graph_verify's business */
};

/* A named result: read by the trainer after the program. */
struct ku_port {
    const char *name;
    ku_id value;
};

/* What passes established: the verifier's rules grow with it. */
enum ku_has {
    KU_HAS_PRECISION = 1,
    KU_HAS_PLACEMENT = 2,
    KU_HAS_GRADIENTS = 4,
    KU_HAS_UPDATE = 8,
    KU_HAS_ZERO = 16,
    KU_HAS_BUCKETS = 32
};

/* Collectives that travel together: converts of one bucket, in the order in which their operands
 * are complete. */
struct ku_bucket {
    uint32_t first, n; /* span of graph->refs: node ids */
};

struct ku_graph {
    struct ku_mesh mesh;
    uint32_t has;
    uint32_t n_values, n_nodes, n_tensors, n_uses, n_shapes, n_layouts, n_attrs, n_names, n_refs,
        n_inputs, n_outputs, n_buckets;
    struct ku_value *value;
    struct ku_node *node;
    struct ku_tensor *tensor;
    struct ku_use *use;
    struct ku_shape *shape;
    struct ku_layout *layout;
    struct ku_attrs *attr;
    char **name;
    ku_id *tensor_of; /* per name: the tensor that has it, 0 = none */
    ku_id *refs;
    struct ku_port *input, *output;
    struct ku_bucket *bucket;
    uint32_t n_streams;
    uint32_t cap[16]; /* of the arrays above, graph.c's business */
    void *index;      /* hash table behind interning */
};

int ku_graph_create(struct ku_graph **g);
void ku_graph_destroy(struct ku_graph *g);
/* A copy with equal ids. */
int ku_graph_copy(const struct ku_graph *g, struct ku_graph **copy);

/* Interning: the id, or 0 with the error record set (no memory). */
ku_id ku_graph_shape(struct ku_graph *g, const struct ku_shape *s);
ku_id ku_graph_layout(struct ku_graph *g, const struct ku_layout *l);
ku_id ku_graph_attr(struct ku_graph *g, const struct ku_attrs *a);
ku_id ku_graph_name(struct ku_graph *g, const char *text);

/* New elements; 0 with the error record set. Layout starts as C everywhere. */
ku_id ku_graph_value(struct ku_graph *g, enum kumi_dtype dtype, ku_id shape, enum ku_role role);
ku_id ku_graph_input(struct ku_graph *g, const char *name, enum kumi_dtype dtype,
                     const struct ku_shape *shape);
ku_id ku_graph_tensor(struct ku_graph *g, const char *name, enum ku_tensor_kind kind,
                      enum kumi_dtype dtype, const struct ku_shape *shape);
int ku_graph_output(struct ku_graph *g, const char *name, ku_id value);
/* `tensor` belongs to parameter `of`. */
void ku_graph_belong(struct ku_graph *g, ku_id tensor, ku_id of);
/* A read of a parameter; nodes of phase F note theirs themselves. */
int ku_graph_use(struct ku_graph *g, const struct ku_use *use);
/* Appends ids to refs: a span for a node that is rewritten. */
int ku_graph_refs(struct ku_graph *g, const ku_id *id, uint32_t n);
int ku_graph_bucket(struct ku_graph *g, const ku_id *node, uint32_t n);

/*
 * Appends a node: infers the types of its results, makes them, and returns the node's id (0: error
 * record says what does not fit, with the path). Attributes NULL = defaults. A random op
 * (KU_OP_RANDOM) with stream 0 gets the next free stream.
 */
struct ku_make {
    int op, phase, n_in, n_out; /* n_out 0 = the op's least */
    ku_id in[KU_MAX_IN];
    const struct ku_attrs *attr;
    const char *path; /* NULL = "" */
    ku_id source;     /* 0: none */
    uint32_t stream;
    int is_silent; /* parameters that it reads get no use: the caller notes what counts */
};
ku_id ku_graph_node(struct ku_graph *g, const struct ku_make *m);

static inline ku_id ku_in(const struct ku_graph *g, const struct ku_node *n, int i)
{
    return g->refs[n->in + (uint32_t)i];
}
static inline ku_id ku_out(const struct ku_graph *g, ku_id node, int i)
{
    return g->refs[g->node[node].out + (uint32_t)i];
}
static inline struct ku_type ku_type_of(const struct ku_graph *g, ku_id value)
{
    return (struct ku_type){(enum kumi_dtype)g->value[value].dtype,
                            g->shape[g->value[value].shape]};
}
/* Whether it belongs to the model itself: what weights in files hold. */
static inline int ku_tensor_is_model(const struct ku_tensor *t)
{
    return t->kind == KU_T_PARAM || t->kind == KU_T_BUFFER;
}
/* The shape in files, of what is seen: file_rows applied. Returns the number of dims. */
int ku_tensor_file_shape(const struct ku_graph *g, ku_id tensor, int64_t dim[KU_MAX_DIMS]);
ku_id ku_graph_find_input(const struct ku_graph *g, const char *name);  /* value, 0 = none */
ku_id ku_graph_find_output(const struct ku_graph *g, const char *name); /* value, 0 = none */
ku_id ku_graph_find_tensor(const struct ku_graph *g, const char *name); /* 0 = none */
ku_id ku_graph_find_name(const struct ku_graph *g, const char *text);   /* 0 = not interned */
/* Puts nodes into an order in which every operand is made before it is read, changing the present
 * one as little as possible. */
int ku_graph_sort(struct ku_graph *g);
/* Marks nodes whose results nobody reads as KU_OP_NONE, backwards; state writes and KU_OP_EFFECT
 * stay. Returns how many went. */
int ku_graph_drop_dead(struct ku_graph *g);

/*
 * The rules that hold between passes (KUMI_EBUG when broken, naming node and rule): operands are
 * made before they are read; types are what inference says; placements follow the ops' rules once
 * placement ran; no P is left where sums must be complete; every trainable use has a gradient once
 * autodiff ran; every state version but the last is read before the next is written. A node whose
 * operation, types and placements are as they were when they held is not inferred again.
 */
int ku_graph_verify(struct ku_graph *g);

/* Text form (src/ir/text.c). Printing appends to out; parsing builds a new graph. */
struct ku_str;
int ku_graph_print(const struct ku_graph *g, struct ku_str *out);
int ku_graph_parse(const char *name, const char *text, size_t bytes,
                   struct ku_graph **g); /* KUMI_EINVAL with name:line */
int ku_graph_print_dot(const struct ku_graph *g, struct ku_str *out); /* Graphviz */

const char *ku_tier_name(int tier);   /* "none" "host" "file": memory.offload's words */
const char *ku_phase_name(int phase); /* "A" "F" "I" "W" "O" */

#endif
