/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_IR_GRAPH_H
#define KU_IR_GRAPH_H

#include <stdbool.h>

#include "base/err.h"
#include "op/op.h"

/*
 * The graph: one flat SSA list of nodes for all ranks of a job. It is built by nn/, rewritten by
 * the passes and lowered to one program per class of ranks (ir/program.h).
 *
 *     node[]    3: F linear  in (v4, v1)  out (v5)  attr 2  path "h.0.mlp.c_fc"
 *                              |                 |
 *     value[]   4: f32, shape 7, placement 3, def = node 2         activation
 *               1: f32, shape 2, placement 1, tensor 1             state
 *               5: f32, shape 8, placement 3, def = node 3
 *     tensor[]  1: "h.0.mlp.c_fc.weight", value 1, next 11        11 = its version after the update
 *
 * Ids index the arrays; 0 is none. Nodes are appended and never moved; a phase is its nodes in list
 * order. Shapes, placements, attributes and names are interned: equal ids mean equal contents.
 */

/* Maximum length of the name of a tensor or module path, NUL included. */
enum { KU_NAME_BYTES = 320 };

/*
 * How often a node runs. The order follows from dependencies.
 *
 *   A  once per step, from state alone
 *   F  forward, per micro-batch
 *   I  backward, per micro-batch: gradients of activations
 *   W  backward, per micro-batch: gradients of operands that depend on no input data
 *   O  once per step, at its end
 */
enum ku_phase { KU_PH_A, KU_PH_F, KU_PH_I, KU_PH_W, KU_PH_O, KU_N_PHASES };

/* Source of a value: a node, an input port that the trainer fills before the step, or the state. */
enum ku_role { KU_TEMP, KU_INPUT, KU_STATE };

struct ku_value {
    ku_id def; /* the node that computes it; 0 for inputs and state */
    uint8_t result, dtype, role;
    ku_id shape, layout, tensor; /* tensor: for state, set in each version */
};

/*
 * A tensor of the state. `value` is what the step reads; `next` is the version that phase O leaves
 * in the same bytes (`value` itself if no node writes it).
 *
 *   PARAM      has an initializer
 *   OPTIMIZER  belongs to a parameter, starts at zero
 *   DERIVED    computed from a parameter (compute copy)
 *   COUNTER    counts updates
 *   BUFFER     running statistics: in files and digests like a parameter, but not trained; placed
 *              with the parameter it belongs to
 *   CACHE      data that an earlier run left for this one (keys and values in decoding): starts at
 *              zero, in no file or digest, split by samples
 */
enum ku_tensor_kind {
    KU_T_PARAM,
    KU_T_OPTIMIZER,
    KU_T_DERIVED,
    KU_T_COUNTER,
    KU_T_BUFFER,
    KU_T_CACHE
};
/* Offload target of a state tensor: none (device memory), host memory, or a file. */
enum ku_offload_target { KU_OFFLOAD_NONE, KU_OFFLOAD_HOST, KU_OFFLOAD_FILE, KU_N_OFFLOADS };
struct ku_tensor {
    const char *name; /* "h.0.attn.c_attn.weight", "h.0.attn.c_attn.weight.exp_avg" */
    ku_id name_id;    /* interned */
    uint8_t kind, dtype, trainable, used, offload;
    ku_id shape, value, next;
    ku_id of;         /* parameter that this tensor belongs to */
    ku_id copy;       /* parameter: its first derived tensor, 0 = none (ku_graph_belong) */
    ku_id first_use;  /* index into graph->use, 0 = none */
    ku_id init_attr;  /* attributes of init_op */
    uint16_t init_op; /* KU_OP_fill, KU_OP_random_normal or _uniform */
    uint32_t stream;
    /*
     * Shape in files: the first file_rows dims are flattened into one dim, the rest into another
     * (Hugging Face's matrices). file_rows = ndim: a vector; 0: unchanged.
     */
    uint8_t file_rows;
    /* Rank (mod N) that owns the first canonical chunk; see tensor/blocks.h. */
    int32_t first_block;
    int32_t
        chunk; /* attr chunk of its sums of squares: a tensor in slices (op/slices.h); 0: none */
    int16_t stage; /* PARAM, BUFFER: the pipeline stage of the first use; others follow `of` */
};

/*
 * A use of a tensor by a node, in use order: the unit of gradients. `grad` is the adjoint that
 * backward computes for this use, 0 if none.
 */
struct ku_use {
    ku_id tensor, node, grad;
    int operand; /* index of the operand of the node */
};

struct ku_node {
    uint16_t op;
    uint8_t phase, n_in, n_out;
    int16_t stage;     /* pipeline stage */
    uint32_t in, out;  /* spans of graph->refs */
    ku_id attr, path;  /* path: module path, an interned name */
    ku_id source;      /* "gpt2.c:88", the line that built it, interned; 0: none */
    uint32_t stream;   /* of random ops; clones share it */
    uint64_t verified; /* fingerprint of the last verification */
};

/* Of a port at which the step is cut for a parameter server (pass/update/split_remote.c). */
struct ku_pushed {
    bool is_pushed;
    uint8_t reduce; /* enum ku_node_reduce: how the servers combine the workers' values */
    uint8_t wire;   /* dtype in messages: the value's or a narrower one */
    ku_id tensor;   /* the parameter whose gradient it is; 0: none */
};

/* A named result that the trainer reads after the program. */
struct ku_port {
    const char *name;
    ku_id value;
    struct ku_pushed pushed;
};

/*
 * What the passes have established so far. The verifier checks more as bits are added.
 */
enum ku_has {
    KU_HAS_PRECISION = 1,
    KU_HAS_PLACEMENT = 2,
    KU_HAS_GRADIENTS = 4,
    KU_HAS_UPDATE = 8,
    KU_HAS_ZERO = 16,
    KU_HAS_BUCKETS = 32
};

/*
 * Collectives that are launched together: convert nodes of one bucket, in the order in which their
 * operands are complete.
 */
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
    ku_id *tensor_of; /* per name id: the tensor with this name, 0 = none */
    ku_id *refs;
    struct ku_port *input, *output;
    struct ku_bucket *bucket;
    uint32_t n_streams;
    uint32_t cap[16]; /* capacities of the arrays above, private to graph.c */
    void *index;      /* hash table of the interned objects */
};

KU_STATUS ku_graph_create(struct ku_graph **g);
void ku_graph_destroy(struct ku_graph *g);
/* Copies the graph; ids are equal. */
KU_STATUS ku_graph_copy(const struct ku_graph *g, struct ku_graph **copy);

/*
 * Interns. Returns the id, or 0 with the error record set (no memory).
 */
ku_id ku_graph_shape(struct ku_graph *g, const struct ku_shape *s);
ku_id ku_graph_layout(struct ku_graph *g, const struct ku_layout *l);
ku_id ku_graph_attr(struct ku_graph *g, const struct ku_attrs *a);
ku_id ku_graph_name(struct ku_graph *g, const char *text);

/*
 * Append elements; 0 with the error record set. A new value has placement C on every axis.
 */
ku_id ku_graph_value(struct ku_graph *g, enum kumi_dtype dtype, ku_id shape, enum ku_role role);
ku_id ku_graph_input(struct ku_graph *g, const char *name, enum kumi_dtype dtype,
                     const struct ku_shape *shape);
ku_id ku_graph_tensor(struct ku_graph *g, const char *name, enum ku_tensor_kind kind,
                      enum kumi_dtype dtype, const struct ku_shape *shape);
KU_STATUS ku_graph_output(struct ku_graph *g, const char *name, ku_id value);
/* Sets that `tensor` belongs to parameter `of`. */
void ku_graph_belong(struct ku_graph *g, ku_id tensor, ku_id of);
/* Records a use of a tensor. ku_graph_node records those of phase F itself. */
KU_STATUS ku_graph_use(struct ku_graph *g, const struct ku_use *use);
/* Appends ids to refs: a span for a rewritten node. */
KU_STATUS ku_graph_refs(struct ku_graph *g, const ku_id *id, uint32_t n);
KU_STATUS ku_graph_bucket(struct ku_graph *g, const ku_id *node, uint32_t n);

/*
 * Appends a node, infers the types of its results, creates them, and returns the node's id. Returns
 * 0 with the error record set if the operands do not fit; the message names the path. A random op
 * (KU_OP_RANDOM) with stream 0 gets the next free stream.
 */
struct ku_make {
    int op, phase, n_in, n_out; /* n_out 0 = the op's minimum */
    ku_id in[KU_MAX_IN];
    const struct ku_attrs *attr;
    const char *path; /* NULL = "" */
    ku_id source;     /* 0: none */
    int stage;        /* pipeline stage */
    uint32_t stream;
    /* Record no uses of parameters; the caller records them. */
    int is_silent;
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
/* 1 if the tensor is part of the model, i.e. stored in weight files. */
static inline bool ku_tensor_is_model(const struct ku_tensor *t)
{
    return t->kind == KU_T_PARAM || t->kind == KU_T_BUFFER;
}
/*
 * The shape in files: without padding, with file_rows applied. Returns the number of dims.
 */
int ku_tensor_file_shape(const struct ku_graph *g, ku_id tensor, int64_t dim[KU_MAX_DIMS]);
ku_id ku_graph_find_input(const struct ku_graph *g, const char *name);  /* value, 0 = none */
ku_id ku_graph_find_output(const struct ku_graph *g, const char *name); /* value, 0 = none */
ku_id ku_graph_find_tensor(const struct ku_graph *g, const char *name); /* 0 = none */
ku_id ku_graph_find_name(const struct ku_graph *g, const char *text);   /* 0 = not interned */
/*
 * Sorts the nodes so that every value is computed before it is read, with few changes to the
 * present order.
 */
KU_STATUS ku_graph_sort(struct ku_graph *g);
/*
 * Marks nodes whose results are never read as KU_OP_NONE, last to first. State writes and
 * KU_OP_EFFECT stay. Returns the number of nodes marked.
 */
KU_STATUS ku_graph_drop_dead(struct ku_graph *g);

/*
 * Checks the invariants that hold between passes. KUMI_EBUG names node and invariant.
 *
 *   - values are computed before they are read
 *   - types are those of inference
 *   - after placement: placements follow the ops' placement rules
 *   - no P remains where a complete sum is required
 *   - after autodiff: every trainable tensor has a gradient, of the uses that reach the loss
 *   - a version of a state tensor is not read after its bytes are overwritten
 *
 * A node is not inferred again if its op, types and placements are unchanged since the last check.
 */
KU_STATUS ku_graph_verify(struct ku_graph *g);

/*
 * Text form (ir/print.c, ir/parse.c). Printing appends to out; parsing builds a new graph.
 */
struct ku_str;
int ku_graph_print(const struct ku_graph *g, struct ku_str *out);
/* Errors: KUMI_EINVAL with name:line. */
KU_STATUS ku_graph_parse(const char *name, const char *text, size_t bytes, struct ku_graph **g);
int ku_graph_print_dot(const struct ku_graph *g, struct ku_str *out); /* Graphviz */

const char *ku_offload_target_name(int offload); /* "none" "host" "file", as in memory.offload */
const char *ku_phase_name(int phase);            /* "A" "F" "I" "W" "O" */

#endif
