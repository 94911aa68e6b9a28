/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_OP_OP_H
#define KU_OP_OP_H

#include "op/attr.h"
#include "tensor/placement.h"

/*
 * The table of operations (ops.def). Everything that any part of kumi needs to know of an op stands
 * in its row or in a function named after it, so that a missing facet does not link:
 *
 *   inputs, outputs   how many, least and most
 *   traits            KU_OP_*
 *   map, sum          the placement rule, by dim letters: a split along a letter that outputs have
 * passes to them if it stands in `map`; a split along a letter that no output has makes them
 * partial sums (P) if it stands in `sum`. '*' = every letter. Any other split is refused. inout
 * "o=i" pairs: output o lives in the bytes of input i (state updates) alias             "o=i"
 * pairs: output o may take the bytes of input i when nobody reads them later grad              the
 * gradient, a straight line of ops: "g0=linear_dx(d0,i1); g1=linear_dw(i0,d0)". i0.. inputs, o0..
 * outputs, d0.. adjoints of outputs, g0.. gradients of inputs; "g0=d0" passes on; "i0+" stands for
 * input 0 and all behind it; t0.. are results of the statement before, which may have more of them
 * than targets. An op in it inherits the attributes and the random stream of the forward node. "" =
 * not differentiable. infer result types from operand types and attributes cost
 * FLOPs and the least bytes moved, from local types ku_ref_<op>       the reference kernel
 * (device/ref)
 */
enum ku_op {
    KU_OP_NONE,
#define KU_OP(name, ...) KU_OP_##name,
#include "op/ops.def"
#undef KU_OP
    KU_N_OPS
};

enum ku_op_trait {
    KU_OP_LINEAR = 1,   /* linear in its first input: a partial sum may pass */
    KU_OP_ACCUM = 2,    /* has the accumulate form: output 0 += instead of =, f32 or i64 */
    KU_OP_RANDOM = 4,   /* reads its random stream; the last input is the control port */
    KU_OP_CHEAP = 8,    /* recomputing it costs about one read of its operands */
    KU_OP_UPDATE = 16,  /* writes state: lives in phase O, is never cloned or dropped */
    KU_OP_EFFECT = 32,  /* never dropped as dead */
    KU_OP_ELEMENT = 64, /* element by element: may run on a flat range of blocks (Z) */
    KU_OP_PRODUCT =
        128, /* its forward is what a model's FLOP are counted by: matrices, attention */
    /* reads what one micro-batch knows of itself (batch statistics, partial over micro-batches) as
       it is, not its sum; results without a split dim are again partial */
    KU_OP_MICRO = 256
};

enum { KU_MAX_IN = 10 /* a digit in gradient templates */, KU_MAX_OUT = 5 };

struct ku_type {
    enum kumi_dtype dtype;
    struct ku_shape shape;
};
struct ku_cost {
    double flops, bytes;
};
typedef int ku_infer_fn(const struct ku_attrs *a, int n_in, const struct ku_type *in,
                        struct ku_type *out);
typedef struct ku_cost ku_cost_fn(const struct ku_attrs *a, int n_in, const struct ku_type *in,
                                  int n_out, const struct ku_type *out);

struct ku_op_info {
    const char *name;
    int min_in, max_in, min_out, max_out;
    unsigned traits;
    const char *map, *sum, *inout, *alias, *grad;
    ku_infer_fn *infer;
    ku_cost_fn *cost;
};
extern const struct ku_op_info ku_ops[KU_N_OPS];

int ku_op_find(const char *name); /* 0 = none */
/* Result types of an op; KUMI_EINVAL names the op and the operand that does not fit. n_out from
 * min_out to max_out. */
int ku_op_infer(int op, const struct ku_attrs *a, int n_in, const struct ku_type *in, int n_out,
                struct ku_type *out);
/* Of "o=i" lists: the input that output o pairs with, or -1. */
int ku_op_pair(const char *pairs, int out);

/*
 * Words of the control port, an i64[KU_CONTROL_WORDS] that the trainer writes before each step.
 */
enum { KU_CONTROL_STEP, KU_CONTROL_SEED, KU_CONTROL_FLAGS, KU_CONTROL_WORDS = 4 };
/*
 * Words of stats, the i64 vector that ranks reduce once a step: an exact sum of squares
 * (KU_EXACT_WORDS), then one count of non-finite elements per trainable parameter.
 */
/* Elements of the report, an f64[KU_REPORT_WORDS] that step_scalars makes and the optimizers and
 * the trainer read. */
enum ku_report {
    KU_REPORT_LOSS,   /* mean over valid tokens */
    KU_REPORT_NORM,   /* global gradient norm, before clipping */
    KU_REPORT_LR,     /* of this update */
    KU_REPORT_TOKENS, /* valid tokens of the global batch */
    KU_REPORT_APPLY,  /* 1: the optimizer runs; 0: loss or gradient is not finite */
    KU_REPORT_SCALE,  /* factor from accumulated to clipped mean gradients */
    KU_REPORT_UPDATE, /* number of this update, from 1 (Adam's t) */
    KU_REPORT_LOSS_SUM,
    KU_REPORT_WORDS
};

#endif
