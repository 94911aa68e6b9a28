/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_OP_OP_H
#define KU_OP_OP_H

#include "base/err.h"
#include "op/attr.h"
#include "tensor/placement.h"

/*
 * The table of operations (ops.def). Everything about an op is in its row or in functions named
 * after it, so a missing part is a link error:
 *
 *   inputs, outputs  minimum and maximum number
 *   traits           KU_OP_* below
 *   map, sum         placement rule by the one-letter names of dims. A split along a dim that the
 *                    outputs have passes to them if its name is in `map`. A split along a dim that
 *                    no output has makes them partial sums (P) if its name is in `sum`. "*" =
 *                    every name. Any other split is refused.
 *   inout            "o=i" pairs: output o uses the bytes of input i (state updates)
 *   alias            "o=i" pairs: output o may use the bytes of input i if i is not read later
 *   grad             the gradient as a sequence of ops (below); "" = not differentiable
 *   infer            result types from operand types and attributes
 *   cost             FLOPs and minimum bytes moved, from local types; accumulate: the result is
 *                    added to, not overwritten
 *   operands         dtypes of inputs > outputs, one letter each, optional operands last on their
 *                    side: f any float, i i32, u u16, w i64, d f64, s a sum (float or i64), * any.
 *                    "" = not a computation: lowering turns it into other instructions
 *   workspace        family of the ops whose memory during a launch is computed alike: each device
 *                    defines ku_<device>_workspace_<family>; none = no memory
 *   state, update    optimizers: names of their state tensors, which are PyTorch's, in the order of
 *                    the operands; ku_update_<update> builds them (pass/update.h)
 *   ku_ref_<op>      the reference kernel (device/ref)
 *
 * Gradients, e.g. of linear: "g0=linear_dx(d0,i1); g1=linear_dw(i0,d0)".
 *
 *   i0.. inputs   o0.. outputs   d0.. adjoints of outputs   g0.. gradients of inputs
 *   "g0=d0"  passes the adjoint on
 *   "i0+"    input 0 and all inputs after it
 *   "t0.."   results of the previous statement, which may have more results than targets
 *
 * An op in a gradient inherits the attributes and the random stream of the forward node.
 */
enum ku_op {
    KU_OP_NONE,
#define KU_OP(name, ...) KU_OP_##name,
#include "op/ops.def"
#undef KU_OP
    KU_N_OPS
};

enum ku_op_trait {
    KU_OP_LINEAR = 1,   /* linear in its first input: partial sums pass through */
    KU_OP_ACCUM = 2,    /* has an accumulate form: output 0 += instead of =, f32 or i64 */
    KU_OP_RANDOM = 4,   /* uses its random stream; the last input is the control port */
    KU_OP_CHEAP = 8,    /* recomputation costs about one read of its operands */
    KU_OP_UPDATE = 16,  /* writes state: runs in phase O, is never cloned or removed */
    KU_OP_EFFECT = 32,  /* never removed as dead code */
    KU_OP_ELEMENT = 64, /* element by element: may run on a range of canonical chunks (Z) */
    /* Counts toward the model's FLOPs: matrix products, convolution, attention. */
    KU_OP_PRODUCT = 128,
    /*
     * reads the statistics of one micro-batch (partial over micro-batches) as they are, without
     * summing them; results without a split dim are partial again
     */
    KU_OP_MICRO = 256,
    KU_OP_OVERWRITE = 512, /* output 0 has an input's bytes, writes all of them and reads none */
    /* Selective recomputation runs it again whatever it costs (Korthikanti et al. 2022). */
    KU_OP_SELECTIVE = 1024,
    KU_OP_CHUNKS = 2048, /* sums inside canonical chunks: a flat input 0 begins with a chunk */
    /* Input 0 has sums over whole tensors: summed over ranks first if they partition the update. */
    KU_OP_TOTALS = 4096,
    KU_OP_ADDS = 8192, /* adds its inputs: partial sums pass through if all inputs are partial */
    KU_OP_MAX = 16384, /* its partial results are maxima, not sums */
    KU_OP_NO_ADJOINT = 32768, /* reads operands in C beside R or S: no adjoint passes through it */
    KU_OP_DY = 65536, /* linear in its last input, an adjoint: partial sums of it pass through */
    /* Optimizer: at momentum and weight decay 0, a gradient of 0 leaves a parameter unchanged. */
    KU_OP_RESTS = 131072
};

enum { KU_MAX_IN = 10 /* one digit in gradient templates */, KU_MAX_OUT = 5 };
enum { KU_MAX_STATE = 3 }; /* of an optimizer, per parameter */

struct ku_type {
    enum kumi_dtype dtype;
    struct ku_shape shape;
};
struct ku_cost {
    double flops, bytes;
};
typedef int ku_infer_fn(const struct ku_attrs *a, int n_in, const struct ku_type *in,
                        struct ku_type *out);
typedef struct ku_cost ku_cost_fn(const struct ku_attrs *a, int accumulate, int n_in,
                                  const struct ku_type *in, int n_out, const struct ku_type *out);

struct ku_op_info {
    const char *name;
    int min_in, max_in, min_out, max_out;
    unsigned traits;
    const char *map, *sum, *inout, *alias, *grad;
    ku_infer_fn *infer;
    ku_cost_fn *cost;
    const char *operands;
    const char *state[KU_MAX_STATE]; /* NULL after the last */
};
extern const struct ku_op_info ku_ops[KU_N_OPS];

int ku_op_find(const char *name); /* 0 = no such op */
/*
 * Infers the result types. n_out from min_out to max_out. KUMI_EINVAL names the op and the operand
 * that does not fit.
 */
KU_STATUS ku_op_infer(int op, const struct ku_attrs *a, int n_in, const struct ku_type *in,
                      int n_out, struct ku_type *out);
/* Looks up output `out` in an "o=i" list: the index of the input, or -1. */
int ku_op_pair(const char *pairs, int out);

/*
 * Elements of the control port, an i64[KU_CONTROL_WORDS] that the trainer writes before each step.
 */
enum { KU_CONTROL_STEP, KU_CONTROL_SEED, KU_CONTROL_FLAGS, KU_CONTROL_WORDS = 4 };
/*
 * `stats` is the i64 vector that ranks reduce once per step: an exact sum of squares
 * (KU_EXACT_WORDS elements), then the number of non-finite gradient elements per trainable
 * parameter.
 */
/*
 * Elements of the report, an f64[KU_REPORT_WORDS] made by step_scalars and read by the optimizers
 * and the trainer.
 */
enum ku_report {
    KU_REPORT_LOSS,   /* mean over valid tokens */
    KU_REPORT_NORM,   /* global gradient norm, before clipping */
    KU_REPORT_LR,     /* of this update */
    KU_REPORT_TOKENS, /* valid tokens of the global batch */
    KU_REPORT_APPLY,  /* 1: the optimizer runs; 0: the loss or a gradient is not finite */
    KU_REPORT_SCALE,  /* factor from accumulated gradients to clipped mean gradients */
    KU_REPORT_UPDATE, /* number of this update, from 1 (Adam's t) */
    KU_REPORT_LOSS_SUM,
    KU_REPORT_WORDS
};

#endif
