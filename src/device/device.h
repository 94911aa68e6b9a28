/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DEVICE_DEVICE_H
#define KU_DEVICE_DEVICE_H

#include "base/cpu_features.h"
#include "op/target.h"

/*
 * A device turns one call (an op, its attributes, where its operands lie) into a kernel at load
 * time, and launches kernels in a queue. All allocation, code generation and choice happen in bind;
 * launch never allocates, never fails for reasons that bind could know, and gives bits that depend
 * on the call's shapes and the instruction set alone, not on the number of threads
 * (docs/internals/numerics.md).
 */

/*
 * An operand. Data are dense and row-major over the local shape's counts. start[d] is where the
 * local part begins in the logical tensor, whose extents are logical[d]: random numbers and sample
 * numbers use global coordinates. An operand cut into canonical blocks (Z) is flat: ndim 1, count
 * elements from element start[0] of the flattened logical tensor, start[0] a multiple of
 * KU_BLOCK_COUNT.
 */
struct ku_view {
    void *data;
    enum kumi_dtype dtype;
    struct ku_shape shape;
    int64_t start[KU_MAX_DIMS], logical[KU_MAX_DIMS];
};

struct ku_call {
    int op, n_in, n_out;
    int accumulate; /* output 0 (of layer_norm_dgb: both) += instead of = */
    const struct ku_attrs *attr;
    uint32_t
        stream; /* of random ops: with the control port's seed and step it keys base/random.h */
    struct ku_view in[KU_MAX_IN], out[KU_MAX_OUT];
    void *workspace; /* ku_target_op.workspace_bytes, 64-byte aligned; garbage at entry */
};

struct ku_device_opts {
    int n_threads;          /* of the queue's pool; 0 = 1 */
    enum ku_isa isa;        /* not above this one */
    int n_runnable_threads; /* on this host by all ranks: the pool spins only if they fit n_cpus;
                               0 = n_threads */
    int n_cpus; /* that all of those run on, wherever this rank is bound; 0 = this thread's own */
    int first_cpu;  /* pool thread i is bound to cpu[i] when cpu is given */
    const int *cpu; /* n_threads ids, or NULL = not bound */
};

struct ku_kernel; /* a device's own */

struct ku_device_ops {
    const char *name;
    /* A rank's device: context, pool, queue in one. Errors: KUMI_EDEVICE, KUMI_ENOMEM. */
    int (*open)(const struct ku_device_opts *opts, void **dev);
    void (*close)(void *dev); /* NULL is fine */
    /* Fills op/target.h's answer; pure. dev may be NULL (planning without a device). */
    int (*query)(void *dev, const struct ku_op_case *c, struct ku_target_op *out);
    /* The call's pointers stay valid as long as the kernel. Errors: KUMI_EINVAL (a dtype or form
     * this device lacks: named), KUMI_ENOMEM, KUMI_EDEVICE. */
    int (*bind)(void *dev, const struct ku_call *call, struct ku_kernel **kernel);
    void (*unbind)(void *dev, struct ku_kernel *kernel);
    /* Runs the kernel; on CPUs it is done on return. hook (may be NULL) is called by the pool's
     * first thread between tiles, at most about 1 ms apart, so that communication progresses. */
    int (*launch)(void *dev, struct ku_kernel *kernel, void (*hook)(void *), void *hook_ctx);
    /* What op sumsq does, but on the caller's thread, be it between tiles of a launch: adds the
     * squares of x, flat canonical blocks, to stats, and its elements that are not finite to a word
     * of it. For collectives, which call it while a sum is in the caches. */
    void (*add_squares)(void *dev, const struct ku_view *x, int64_t *stats, int64_t word);
};

extern const struct ku_device_ops
    ku_device_ref; /* plain loops in f64, one thread: the oracle, for every dtype */
extern const struct ku_device_ops
    ku_device_cpu; /* own kernels on a pool of threads: f32, bf16 and f16 */
const struct ku_device_ops *ku_device_find(const char *name); /* NULL: none */

#endif
