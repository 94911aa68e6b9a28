/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_IR_PROGRAM_H
#define KU_IR_PROGRAM_H

#include "ir/graph.h"
#include "op/target.h"

/*
 * A program: what every rank of a class does in one step, as a flat list of instructions over
 * numbered buffers. It holds no rank: slices, random origins and kept blocks follow from shape,
 * placement and the rank's coordinate when it is loaded. Its tables of shapes, layouts, attributes
 * and names are its own, so that it outlives the graph.
 */

/* Who sees the bytes, and where they lie. */
enum ku_arena_kind {
    KU_AR_HOST,    /* state, once per host, in logical order */
    KU_AR_STATE,   /* state of this rank alone */
    KU_AR_SHARD,   /* state of this rank that peers on the host address: ZeRO's blocks, and what is
                      gathered */
    KU_AR_WIRE,    /* per rank, but peers on the host address it: operands of collectives */
    KU_AR_STEP,    /* per rank, private: everything that dies within the step, and result ports */
    KU_AR_INPUT,   /* ports that the trainer fills, and rows that it reads back */
    KU_AR_OFFLOAD, /* host memory of this rank, copied to and from: what memory.offload keeps there
                    */
    KU_AR_FILE,    /* the same in a file */
    KU_N_ARENAS
};
/* What lies there begins at multiples of it, and so do windows: past the page cache nothing else
 * goes. */
enum { KU_TIER_ALIGN_BYTES = 4096 };
/* Bytes there are reached through windows alone: starts of KU_X_READ and KU_X_WRITE. */
static inline int ku_arena_is_tier(int arena)
{
    return arena == KU_AR_OFFLOAD || arena == KU_AR_FILE;
}
/* A label for reports; bytes are shared across classes. */
enum ku_class {
    KU_CL_PARAM,
    KU_CL_OPTIMIZER,
    KU_CL_DERIVED,
    KU_CL_COUNTER,
    KU_CL_BUFFER, /* running statistics */
    KU_CL_GRAD,
    KU_CL_PARTIAL,
    KU_CL_ACTIVATION,
    KU_CL_ADJOINT,
    KU_CL_WORKSPACE,
    KU_CL_SCALAR,
    KU_CL_INPUT,
    KU_CL_GATHER,  /* parameters of stage 3 while they are whole */
    KU_CL_WINDOW,  /* parts of tiers while they are computed with */
    KU_CL_OFFLOAD, /* state and activations in host memory; those in files are no memory */
    KU_N_CLASSES
};

/* One instance of one value, live from instruction `first` to `last`, both included. */
struct ku_buffer {
    uint8_t arena, cls, dtype;
    uint8_t
        is_kept;   /* holds a rank's blocks alone, not the whole tensor with them in their places */
    ku_id value;   /* of the graph: what it holds, for text; 0 = workspace */
    int32_t micro; /* the instance; -1 = once a step */
    ku_id name;    /* state: the tensor's; else the module path */
    uint32_t first, last; /* first UINT32_MAX: nobody touches it */
    ku_id home;           /* the buffer whose bytes it takes (in-place results), 0 = its own */
    size_t offset, bytes;
};

/* What an instruction reads or writes: a buffer seen as part of a logical tensor. */
struct ku_operand {
    ku_id buffer, shape, layout;
    uint8_t dtype;
    ku_id addend;        /* start: buffer that is added to the sum, complete by then; 0 = none */
    ku_id out;           /* start: buffer that the result goes to; 0 = in place */
    uint32_t stats_word; /* start: of stats, that counts the sum's non-finite elements; its squares
                            are added too. 0 = neither */
    int32_t first_block; /* layout with Z: who keeps block 0 */
    int32_t slot;        /* of a stack: which of the parts that lie side by side in the buffer */
    /* Of what the rank keeps, flattened, the piece-th run of piece_count elements; 0: all of it. A
     * window holds its piece alone. */
    int32_t piece;
    int64_t piece_count;
};

enum ku_instr_kind { KU_COMPUTE, KU_START, KU_WAIT };
/* What a start begins. Parts are in place; of a reduce-scatter each rank keeps its blocks, for an
 * all-gather it has them. Reads and writes are the rank's own: a part's buffer lies in a tier, its
 * `out` is the window. */
enum ku_exchange {
    KU_X_REDUCE_SCATTER,
    KU_X_ALL_REDUCE,
    KU_X_BARRIER,
    KU_X_ALL_GATHER,
    KU_X_READ,
    KU_X_WRITE,
    KU_N_EXCHANGES
};
const char *ku_exchange_name(int exchange);
static inline int ku_exchange_is_tier(int exchange)
{
    return exchange == KU_X_READ || exchange == KU_X_WRITE;
}
struct ku_instr {
    uint8_t kind, phase, n_in, n_out, accumulate;
    uint16_t op; /* compute: enum ku_op; start: enum ku_exchange */
    int16_t stage;
    int32_t micro;            /* -1: once a step */
    uint32_t operand;         /* span: inputs, then outputs; start: the parts, in place */
    uint32_t n_parts;         /* start: how many parts (n_out is 0; n_in 1 if it adds to stats) */
    ku_id attr, path, source; /* source: the node's; 0: none */
    uint32_t stream;
    uint32_t workspace; /* buffer, 0 = none */
    uint8_t axes;       /* start: the communicator's mesh axes, a mask */
    uint16_t group;     /* start: of so many neighbours on the one axis; 0: all */
    uint8_t reduce;     /* start: enum ku_fold */
    uint8_t wire;    /* start: the parts' dtype, or a narrower one that leaves and sums round to */
    uint32_t handle; /* start opens it, the wait that names it closes it */
};

struct ku_program_port {
    ku_id name, buffer, shape, layout;
    uint8_t dtype;
};

/* A state tensor as the program knows it; equal for all programs of a job (one state plan). */
struct ku_program_state {
    ku_id name, shape;
    uint32_t of; /* the state that this one belongs to, + 1; 0: none */
    uint8_t kind, dtype, arena, is_kept;
    int32_t first_block;
    ku_id blocks; /* layout with Z on the axes over which this tensor's blocks are dealt; 0: none */
    size_t offset, bytes;
};

struct ku_program {
    char name[32];
    struct ku_mesh mesh;
    int share_host_state;
    int zero; /* stage of private state; 0: ranks keep all of it, or share it */
    uint32_t n_instrs, n_buffers, n_operands, n_handles, n_states, n_inputs, n_outputs;
    struct ku_instr *instr;
    struct ku_buffer *buffer;
    struct ku_operand *operand;
    struct ku_program_state *state;
    struct ku_program_port *input, *output; /* input buffers hold all micro-batches of the rank, in
                                               the order in which they run */
    uint32_t n_shapes, n_layouts, n_attrs, n_names;
    struct ku_shape *shape;
    struct ku_layout *layout;
    struct ku_attrs *attr;
    char **name_of;
    size_t arena_bytes[KU_N_ARENAS];
    uint32_t cap[4];
};

void ku_program_destroy(struct ku_program *p);
/* The id of an attribute set, added if it is new; 0: no memory. A walk over all of them. */
ku_id ku_program_attr(struct ku_program *p, const struct ku_attrs *a);
const struct ku_program_port *ku_program_find_port(const struct ku_program *p, int is_input,
                                                   const char *name);
/* The communication that ranks must agree on: a hash of all start and wait instructions with their
 * operands' types and placements. */
uint64_t ku_program_hash(const struct ku_program *p);

/* A rank's part of an operand, in its buffer. Z: flat, element range [start[0], start[0] + count)
 * of the logical tensor. */
struct ku_part {
    struct ku_shape shape; /* local; Z: one dim */
    int64_t start[KU_MAX_DIMS], logical[KU_MAX_DIMS];
    size_t offset; /* bytes from the buffer's begin */
};
void ku_program_part(const struct ku_program *p, const struct ku_operand *o,
                     const struct ku_coord *coord, int micro, struct ku_part *out);

/* The elements of a flattened tensor that a rank keeps: [*begin, *end). layout: with Z. */
void ku_program_kept(const struct ku_mesh *mesh, const struct ku_layout *layout, int64_t count,
                     int64_t first_block, const struct ku_coord *coord, int64_t *begin,
                     int64_t *end);

/* The types and cost of an instruction as the rank at `coord` runs it. All zero but for compute. */
void ku_program_types(const struct ku_program *p, uint32_t instr, const struct ku_coord *coord,
                      struct ku_op_case *types, struct ku_cost *cost);

struct ku_str;
int ku_program_print(const struct ku_program *p, int with_offsets, struct ku_str *out);

/* The memory plan as people read it: bytes by class at the instruction where the arenas together
 * are fullest. */
struct ku_memory_row {
    const char *name; /* tensor, or module path and op */
    int32_t micro;
    uint8_t cls;
    size_t bytes;
};
struct ku_memory_report {
    size_t arena_bytes[KU_N_ARENAS];
    size_t peak_bytes, at_peak[KU_N_CLASSES]; /* of this rank, state on the host counted whole,
                                                 files not at all */
    uint32_t peak_instr, n_rows;
    struct ku_memory_row row[16]; /* the largest alive there */
};
void ku_program_memory(const struct ku_program *p, struct ku_memory_report *out);
/* The most elements of gathered parameters that are alive at once, and where. */
int64_t ku_program_live_parameters(const struct ku_program *p, uint32_t *instr);
const char *ku_class_name(int cls);
const char *ku_arena_name(int arena);

#endif
