/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_IR_PROGRAM_H
#define KU_IR_PROGRAM_H

#include <stdbool.h>

#include "ir/graph.h"
#include "op/target.h"

/*
 * A program: what every rank of a class executes in one step, as a flat list of instructions over
 * numbered buffers.
 *
 *     instruction   op, phase, micro-batch -> operands
 *     operand       buffer + shape + placement (which slice of which logical tensor)
 *     buffer        arena + offset + bytes, live from instruction `first` to `last`
 *     arena         one memory region per kind below
 *
 *      12  0F2 linear h.0.mlp.c_fc   step+4096  <-  step+0, state+81920
 *      40  0O  start reduce_scatter #3           13 gradients
 *      41  0O  wait #3
 *
 * A program contains no rank number: slices, random origins and owned chunks follow from shape,
 * placement and the rank's coordinate when it is loaded. It has its own tables of shapes,
 * placements, attributes and names, so it outlives the graph.
 */

/* Memory regions, by visibility and location. */
enum ku_arena_kind {
    KU_AR_HOST,  /* state, once per host, shared by its ranks, in logical order */
    KU_AR_STATE, /* state of this rank, private */
    /*
     * State of this rank that peers on the host address: ZeRO shards and gathered parameters; with
     * tensor parallelism all state.
     */
    KU_AR_SHARD,
    KU_AR_WIRE, /* operands of collectives: per rank, addressed by peers on the host */
    /*
     * Once per host, shared by its ranks: parameters of ZeRO stage 3 on several hosts, while they
     * are gathered. Only all-gathers over all ranks of the hosts write it.
     */
    KU_AR_GATHER,
    KU_AR_STEP,  /* per rank, private: all buffers that end within the step, and result ports */
    KU_AR_INPUT, /* ports that the trainer fills, and rows that it reads back */
    /* Host memory of this rank with the state and activations offloaded by memory.offload. */
    KU_AR_OFFLOAD,
    KU_AR_FILE, /* the same in a file */
    KU_N_ARENAS
};
/* Whether the ranks of a host have the arena in common. */
static inline bool ku_arena_is_common(int arena)
{
    return arena == KU_AR_HOST || arena == KU_AR_GATHER;
}
/* Whether buffers of the arena live for a part of the step, at offsets that others take after. */
static inline bool ku_arena_is_transient(int arena)
{
    return arena == KU_AR_STEP || arena == KU_AR_WIRE || arena == KU_AR_GATHER;
}
/* Alignment of offloaded tensors and of their staging buffers: direct I/O requires it. */
enum { KU_OFFLOAD_ALIGN_BYTES = 4096 };
/*
 * 1 if the arena is an offload target. It is accessed only through staging buffers, by KU_X_READ
 * and KU_X_WRITE.
 */
static inline bool ku_arena_is_offload(int arena)
{
    return arena == KU_AR_OFFLOAD || arena == KU_AR_FILE;
}
/*
 * Category of a buffer for memory reports. Bytes may be shared by buffers of several categories.
 */
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
    KU_CL_GATHER,  /* gathered parameters (ZeRO stage 3) */
    KU_CL_STAGING, /* staging buffers of offloaded tensors */
    KU_CL_OFFLOAD, /* state and activations in host memory; files are not counted */
    KU_N_CLASSES
};

/* A buffer: one instance of one value, live from instruction `first` to `last`, both included. */
struct ku_buffer {
    uint8_t arena, cls, dtype;
    /* The buffer holds this rank's owned chunks only, not the whole tensor. */
    uint8_t is_kept;
    ku_id value;          /* value of the graph that it holds, for text; 0 = workspace */
    int32_t micro;        /* micro-batch of the instance; -1 = once per step */
    ku_id name;           /* state: the tensor's name; else the module path */
    uint32_t first, last; /* first UINT32_MAX: never accessed */
    ku_id home;           /* the buffer whose bytes it reuses (in-place results), 0 = none */
    size_t offset, bytes;
};

/* An operand of an instruction: a buffer as part of a logical tensor. */
struct ku_operand {
    ku_id buffer, shape, layout;
    uint8_t dtype;
    ku_id addend; /* start: buffer added to the sum, complete by then; 0 = none */
    ku_id out;    /* start: buffer that receives the result; 0 = in place */
    /*
     * Start: element of stats that counts the sum's non-finite elements; the sum's squares are
     * added to stats too. 0 = neither.
     */
    uint32_t stats_word;
    int32_t first_block; /* placement with Z: rank that owns the first chunk */
    int32_t slot;        /* concatenated parts: index of the part in the buffer */
    /*
     * Restricts the operand to a run of the rank's flattened elements: run `piece` of piece_count
     * elements. piece_count 0: all elements. A staging buffer holds one run.
     */
    int32_t piece;
    int64_t piece_count;
};

enum ku_instr_kind { KU_COMPUTE, KU_START, KU_WAIT };
/*
 * What a start instruction begins. Parts are in place: after a reduce-scatter each rank has its
 * owned chunks, before an all-gather it has them. SEND and RECV have one part and move it between
 * two coordinates of axis pp. READ and WRITE are local to the rank: a part's buffer is in an
 * offload target and its `out` is the staging buffer.
 */
enum ku_exchange {
    KU_X_REDUCE_SCATTER,
    KU_X_ALL_REDUCE,
    KU_X_BARRIER,
    KU_X_ALL_GATHER,
    KU_X_SEND,
    KU_X_RECV,
    KU_X_READ,
    KU_X_WRITE,
    KU_N_EXCHANGES
};
const char *ku_exchange_name(int exchange);
static inline bool ku_exchange_is_message(int exchange)
{
    return exchange == KU_X_SEND || exchange == KU_X_RECV;
}
static inline bool ku_exchange_is_offload(int exchange)
{
    return exchange == KU_X_READ || exchange == KU_X_WRITE;
}
struct ku_instr {
    uint8_t kind, phase, n_in, n_out, accumulate;
    uint16_t op; /* compute: enum ku_op; start: enum ku_exchange */
    int16_t stage;
    int32_t micro;            /* -1: once per step */
    uint32_t operand;         /* span: inputs, then outputs; start: stats, then the parts */
    uint32_t n_parts;         /* start; n_out is 0, n_in is 1 if it adds to stats */
    ku_id attr, path, source; /* source: of the node; 0: none */
    uint32_t stream;
    uint32_t workspace; /* buffer, 0 = none */
    uint8_t axes;       /* start: mesh axes of the communicator, a mask */
    /*
     * Start: size of the group of neighbours on the axis; 0: the whole axis. SEND, RECV: number of
     * the channel. Messages between two coordinates on one channel match in start order.
     */
    uint16_t group;
    int16_t peer;   /* SEND, RECV: coordinate of the other side on axis pp */
    uint8_t reduce; /* start: enum ku_node_reduce */
    /*
     * Start: dtype on the wire, the parts' own or a narrower one to which values and sums are
     * rounded.
     */
    uint8_t wire;
    uint32_t handle; /* opened by the start, closed by the wait with the same handle */
};

struct ku_program_port {
    ku_id name, buffer, shape, layout;
    uint8_t dtype;
};

/*
 * A state tensor in the program. Equal for all programs of a job, which share one state plan.
 * ir/state.h tells which ranks hold it.
 */
struct ku_program_state {
    ku_id name, shape;
    uint32_t of; /* 1 + index of the state that this one belongs to; 0: none */
    uint8_t kind, dtype, arena, is_kept;
    int32_t first_block;
    ku_id blocks; /* placement with Z on the axes over which ranks own its chunks; 0: none do */
    ku_id split;  /* placement with S on axis tp: ranks store slices; 0: none do */
    int16_t pp;   /* the coordinate of axis pp that stores it; -1: all */
    size_t offset, bytes;
};

/*
 * Channels between two coordinates of axis pp, of SEND and RECV: 4 classes of messages for each
 * pair of neighbouring stages, of which there are at most 8 (parallel.virtual_stages).
 */
enum { KU_MAX_CHANNELS = 32 };

struct ku_program {
    char name[32];
    struct ku_mesh mesh;
    int pp; /* the coordinate of axis pp that runs it */
    uint32_t n_instrs, n_buffers, n_operands, n_handles, n_states, n_inputs, n_outputs;
    struct ku_instr *instr;
    struct ku_buffer *buffer;
    struct ku_operand *operand;
    struct ku_program_state *state;
    /* An input buffer holds all micro-batches of the rank, in the order in which they run. */
    struct ku_program_port *input, *output;
    uint32_t n_shapes, n_layouts, n_attrs, n_names;
    struct ku_shape *shape;
    struct ku_layout *layout;
    struct ku_attrs *attr;
    char **name_of;
    size_t arena_bytes[KU_N_ARENAS];
    uint32_t cap[4];
};

void ku_program_destroy(struct ku_program *p);
/*
 * The id of an attribute set, appended if new; 0: no memory. O(n_attrs).
 */
ku_id ku_program_attr(struct ku_program *p, const struct ku_attrs *a);
const struct ku_program_port *ku_program_find_port(const struct ku_program *p, int is_input,
                                                   const char *name);
/*
 * Hash of what the ranks of a class must have in common, which is the whole program: the mesh, the
 * arenas, all state, ports and buffers; of every instruction its fields, attributes and operands
 * with their shapes and placements. Module paths and lines of sources are text and are left out. A
 * program that was read from its text has the same hash.
 */
uint64_t ku_program_hash(const struct ku_program *p);

/*
 * A rank's part of an operand, in its buffer. With Z it is flat: elements [start[0], start[0] +
 * count) of the logical tensor, or with `of` of the rank's slice of it (axis tp).
 */
struct ku_part {
    struct ku_shape shape; /* local; with Z: one dim */
    int64_t start[KU_MAX_DIMS], logical[KU_MAX_DIMS];
    struct ku_runs of;
    size_t offset; /* bytes from the start of the buffer */
};
void ku_program_part(const struct ku_program *p, const struct ku_operand *o,
                     const struct ku_coord *coord, int micro, struct ku_part *out);

/*
 * The elements that a rank owns, [*begin, *end), of a flattened tensor, or of its slice if `layout`
 * has S; count: of these. `layout` has Z on some axis. With Z on tp the ranks along it divide what
 * the others leave.
 */
void ku_program_local_range(const struct ku_mesh *mesh, const struct ku_layout *layout,
                            int64_t count, int64_t first_block, const struct ku_coord *coord,
                            int64_t *begin, int64_t *end);

/*
 * A collective along one mesh axis that gathers a value split along a dim, or leaves it so, moves
 * one vector per index of the outer dims, of which each rank has consecutive chunks:
 *
 *     x [n=2 t=4 c] S(t), 2 ranks      vector 0: rows 0 1 | 2 3      vector 1: rows 0 1 | 2 3
 *
 * False: the layout of `o` has S on none of `axes`.
 */
struct ku_split_parts {
    int64_t n, count, chunk; /* vectors; elements of each; of a chunk */
};
bool ku_program_split_parts(const struct ku_program *p, const struct ku_operand *o, int axes,
                            const struct ku_coord *coord, struct ku_split_parts *out);

/* The elements of a rank's slice: what S leaves, before Z divides it. */
int64_t ku_program_slice_count(const struct ku_mesh *mesh, const struct ku_shape *shape,
                               const struct ku_layout *layout);
/* The max number of elements that any rank owns, of those of a slice. O(1). */
int64_t ku_program_local_max(const struct ku_mesh *mesh, const struct ku_layout *layout,
                             int64_t count, int64_t first_block);

/*
 * Types and cost of an instruction as run by the rank at `coord`. Zero unless it is a compute.
 */
void ku_program_types(const struct ku_program *p, uint32_t instr, const struct ku_coord *coord,
                      struct ku_op_case *types, struct ku_cost *cost);

struct ku_str;
/*
 * Text form, version 2 (ir/program_text.h): it has every field, and parsing the print of a program
 * gives an equal one. rank: sizes, first indices and addresses of that rank's parts, for reading
 * only; NULL: the program.
 */
KU_STATUS ku_program_print(const struct ku_program *p, const struct ku_coord *rank,
                           struct ku_str *out);
/*
 * Builds a program from its text. The result is well formed: ids, shapes and counts are in range.
 * Whether it computes anything useful is not checked.
 *
 *   name   of the text, in messages
 *
 * Errors: EINVAL with name:line:column and the offending word; ENOMEM.
 */
KU_STATUS ku_program_parse(const char *name, const char *text, size_t bytes, struct ku_program **p);
/* The same of a file. Errors: EINPUT in place of EINVAL, or the file cannot be read; ENOMEM. */
KU_STATUS ku_program_read(const char *path, struct ku_program **p);

/* Memory report: bytes by category at the instruction where the arenas together are fullest. */
struct ku_memory_row {
    const char *name; /* tensor, or module path and op */
    int32_t micro;
    uint8_t cls;
    size_t bytes;
};
struct ku_memory_report {
    size_t arena_bytes[KU_N_ARENAS];
    /*
     * Bytes of this rank. Shared host state is counted in full, files are not counted.
     */
    size_t peak_bytes, at_peak[KU_N_CLASSES];
    uint32_t peak_instr, n_rows;
    struct ku_memory_row row[16]; /* the largest buffers live at the peak */
};
void ku_program_memory(const struct ku_program *p, struct ku_memory_report *out);
/* Whether the rank stores the buffer: 0 for state of other coordinates of axis pp. */
bool ku_program_is_here(const struct ku_program *p, ku_id buffer);
/*
 * Whether the buffer has bytes of its own in the rank's memory at an instruction. State and ports
 * always do. A result that is computed in place and a buffer in a file never do.
 */
bool ku_program_is_live(const struct ku_program *p, ku_id buffer, uint32_t instr);
/* The category of a buffer's bytes in reports: KU_CL_OFFLOAD for offloaded host memory. */
enum ku_class ku_buffer_class(const struct ku_buffer *b);
/* The maximum number of elements of gathered parameters live at once, and the instruction where. */
int64_t ku_program_live_parameters(const struct ku_program *p, uint32_t *instr);
const char *ku_class_name(int cls);
const char *ku_arena_name(int arena);

#endif
