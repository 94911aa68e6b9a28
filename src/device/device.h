/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DEVICE_DEVICE_H
#define KU_DEVICE_DEVICE_H

#include "base/cpu/caches.h"
#include "base/cpu/cpu_features.h"
#include "op/target.h"

/* Bytes of workspace of the ops of one family (op/op.h): a pure function of the case. */
typedef size_t ku_workspace_fn(const struct ku_op_case *c);

/*
 * The device interface. A device is opened once per rank; it owns the thread pool and the scratch
 * memory. Every instruction of a program is bound once, at load time, and then launched once per
 * step:
 *
 *     open -> query (workspace) -> bind (call -> kernel) -> launch, launch, .. -> unbind -> close
 *
 * bind chooses the kernel, checks dtypes and allocates. launch never allocates and fails for no
 * reason that bind can check. Its results depend on the call's shapes and the instruction set
 * alone, not on the number of threads (docs/internals/numerics.md).
 *
 *     ref/   plain loops in f64, one thread: the definition of every op
 *     cpu/   tuned kernels in f32, bf16 and f16 on a thread pool
 */

/*
 * An operand: a local shard of a logical tensor. Data is dense and row-major over the counts of
 * `shape`. start[d] is the first index of the shard in the logical tensor, logical[d] the extent of
 * that tensor: random numbers and sample numbers use global indices. A shard in canonical chunks
 * (placement Z) is flat: ndim 1 with the name z, starting at element start[0] of the flattened
 * logical tensor; start[0] is a multiple of KU_BLOCK_COUNT.
 */
struct ku_view {
    void *data;
    enum kumi_dtype dtype;
    struct ku_shape shape;
    int64_t start[KU_MAX_DIMS], logical[KU_MAX_DIMS];
    struct ku_runs of; /* flat: the slice of whose elements it is a shard; start[0] counts these */
};

static inline bool ku_view_is_flat(const struct ku_view *v)
{
    return v->shape.ndim == 1 && v->shape.dim[0].name == 'z';
}

struct ku_call {
    int op, n_in, n_out;
    int accumulate; /* output 0 (layer_norm_dgb: both outputs) is added to, not overwritten */
    const struct ku_attrs *attr;
    /* Stream id of a random op: part of base/math/random.h's key, with the seed and the step. */
    uint32_t stream;
    struct ku_view in[KU_MAX_IN], out[KU_MAX_OUT];
    void *workspace; /* ku_target_op.workspace_bytes, 64-byte aligned; undefined at entry */
};

struct ku_device_opts {
    int n_threads;   /* of the pool; 0 = 1 */
    enum ku_isa isa; /* upper limit; the machine may offer less */
    /* Compute threads of all ranks on this host; they spin if they fit n_cpus. 0 = n_threads */
    int n_runnable_threads;
    int n_cpus;     /* CPUs that those threads share; 0 = the CPUs of this thread */
    const int *cpu; /* n_threads CPU ids: pool thread i is bound to cpu[i]; NULL = not bound */
    const struct ku_caches *caches; /* that shapes of tiles follow from; NULL = this machine's */
};

struct ku_kernel; /* defined by each device */

/*
 * What the host does with mapped memory: WRITE alone overwrites all of it, so its old contents need
 * not be fetched.
 */
enum ku_access { KU_ACCESS_READ = 1, KU_ACCESS_WRITE = 2, KU_ACCESS_UPDATE = 3 };

struct ku_device_ops {
    const char *name;
    /*
     * Opens the device of one rank.
     *
     * Errors: KUMI_EINVAL, KUMI_EDEVICE, KUMI_ENOMEM.
     */
    int (*open)(const struct ku_device_opts *opts, void **dev);
    void (*close)(void *dev); /* NULL is allowed */
    /*
     * Answers as op/target.h describes, without side effects. dev may be NULL (planning without a
     * device).
     */
    int (*query)(void *dev, const struct ku_op_case *c, struct ku_target_op *out);
    /*
     * Creates the kernel of a call. The call's pointers must stay valid until unbind. Errors:
     * KUMI_EINVAL (names the unsupported dtype or form), KUMI_ENOMEM, KUMI_EDEVICE.
     */
    int (*bind)(void *dev, const struct ku_call *call, struct ku_kernel **kernel);
    void (*unbind)(void *dev, struct ku_kernel *kernel);
    /*
     * Runs the kernel; on CPUs it has finished on return. Thread 0 calls `hook` (may be NULL)
     * between tiles, at intervals of at most about 1 ms, so that communication progresses.
     */
    int (*launch)(void *dev, struct ku_kernel *kernel, void (*hook)(void *), void *hook_ctx);
    /*
     * Op sumsq on the caller's thread, also between tiles of a launch: adds the squares of x (flat
     * canonical chunks) to stats and the number of non-finite elements to stats[word]. Collectives
     * call it on each reduced chunk while it is still in cache.
     */
    void (*add_squares)(void *dev, const struct ku_view *x, int64_t *stats, int64_t word);
    /*
     * Memory that kernels address. Its addresses are the device's: only kernels and collectives
     * dereference them. The host reaches a range through map and unmap; between the two no kernel
     * and no collective may use it.
     *
     *     alloc ─── launch … ─── map ── host reads or writes ── unmap ─── launch … ─── free
     *
     *   alloc   bytes of zeros, backed, aligned to a page; `what` names them in messages
     *   map     *host: where the host finds the range: on CPUs at `at`; a device with memory of its
     *           own copies to a staging buffer if access has READ
     *   unmap   ends the use of `host`; copies back if access has WRITE
     *
     * Ranges shared by the ranks of the host (comm/arena.h) are mapped in the same way.
     * Threads: map and unmap from any, for ranges that do not overlap.
     * Errors: KUMI_ENOMEM, KUMI_EDEVICE; on CPUs map and unmap do not fail.
     */
    int (*alloc)(void *dev, const char *what, size_t bytes, void **at);
    void (*free)(void *dev, void *at, size_t bytes);
    int (*map)(void *dev, void *at, size_t bytes, int access, void **host);
    int (*unmap)(void *dev, void *at, size_t bytes, int access, void *host);
};

/* The oracle: plain loops in f64, one thread, every dtype. */
extern const struct ku_device_ops ku_device_ref;
/* Tuned kernels on a thread pool: f32, bf16 and f16. */
extern const struct ku_device_ops ku_device_cpu;
const struct ku_device_ops *ku_device_find(const char *name); /* NULL: no such device */

#endif
