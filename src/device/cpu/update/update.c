/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ops that run once per step: optimizers, exact sums and statistics, scalars. Reductions run in two
 * phases: tiles write partial results to the workspace, then one tile adds them in order.
 */
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "base/math/exact.h"
#include "device/cpu/cpu.h"
#include "device/step_scalars.h"
#include "op/schedule.h"
#include "tensor/dtype.h"

/*
 * Computes the factors of one pass from the scalars of the step. n_state: adam 3, sgd 2. Returns 0
 * if the update is skipped.
 */
static int prepare(const struct ku_kernel *k, int n_state, struct ku_update *u)
{
    const struct ku_call *c = &k->call;
    const struct ku_attrs *a = &k->attr;
    const double *report = c->in[n_state + 1].data;
    double lr = report[KU_REPORT_LR] * a->lr_mult, t = report[KU_REPORT_UPDATE];
    const double beta1 = ku_schedule_momentum(a, a->beta1, (int64_t)t - 1);
    const double momentum = ku_schedule_momentum(a, a->momentum, (int64_t)t - 1);
    *u = (struct ku_update){.p = c->out[0].data,
                            .m = c->out[1].data,
                            .v = n_state == 3 ? c->out[2].data : NULL,
                            .g = c->in[n_state].data,
                            .g_dtype = c->in[n_state].dtype,
                            .scale = (float)report[KU_REPORT_SCALE],
                            .lr = (float)lr,
                            .beta1 = (float)beta1,
                            .add1 = (float)(1 - beta1),
                            .beta2 = (float)a->beta2,
                            .add2 = (float)(1 - a->beta2),
                            .eps = (float)a->eps,
                            .weight_decay = (float)a->weight_decay,
                            .keep = 1,
                            .momentum = (float)momentum,
                            .add = momentum != 0 ? (float)(1 - a->dampening) : 1,
                            .ratio = 1,
                            .nesterov = a->nesterov != 0,
                            .first = t == 1};
    if (c->op == KU_OP_adamw)
        u->keep = (float)(1 - lr * a->weight_decay);
    u->l2 = c->op != KU_OP_adamw && a->weight_decay != 0;
    u->step_size = (float)(a->bias_correction ? lr / (1 - pow(beta1, t)) : lr);
    u->rsqrt_bc2 = (float)(a->bias_correction ? 1 / sqrt(1 - pow(a->beta2, t)) : 1);
    if (c->n_out > n_state)
        u->copy = c->out[n_state].data, u->copy_dtype = c->out[n_state].dtype;
    return report[KU_REPORT_APPLY] != 0;
}

/*
 * A skipped update leaves the state. The compute copy is written in any case: it may be a fresh
 * buffer.
 */
static void tile_update(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_call *c = &k->call;
    const int n_state = c->op == KU_OP_sgd ? 2 : 3;
    struct ku_update u;
    int64_t from, n;
    (void)thread;
    ku_cpu_range(k, tile, &from, &n);
    int apply = prepare(k, n_state, &u);
    if (apply && n_state == 3)
        k->cpu->ops->adam(&u, from, n);
    else if (apply)
        k->cpu->ops->sgd(&u, from, n);
    else if (u.copy)
        k->cpu->ops->cast(ku_cpu_at(&c->out[n_state], from), u.copy_dtype, u.p + from, KUMI_F32, n);
}

static int bind_update(struct ku_kernel *k, int n_state)
{
    static const char *const name[] = {"parameter", "first state", "second state"};
    const struct ku_call *c = &k->call;
    for (int i = 0; i < n_state; i++) {
        KU_TRY(ku_cpu_check(k, name[i], &c->in[i], KUMI_F32));
        if (c->in[i].data != c->out[i].data)
            return KU_ERR(KUMI_EINVAL, "device cpu: %s: %s is updated in place; give one buffer",
                          ku_ops[c->op].name, name[i]);
    }
    KU_TRY(ku_cpu_check_float(k, "gradient", &c->in[n_state]));
    KU_TRY(ku_cpu_check(k, "report", &c->in[n_state + 1], KUMI_F64));
    if (c->n_out > n_state)
        KU_TRY(ku_cpu_check_float(k, "copy", &c->out[n_state]));
    k->count = ku_cpu_count(&c->out[0]);
    k->per_tile = KU_CPU_TILE_COUNT;
    ku_cpu_phase(k, tile_update, ku_cpu_tiles(k->count, k->per_tile));
    return KUMI_OK;
}
int ku_cpu_bind_adamw(struct ku_kernel *k)
{
    return bind_update(k, 3);
}
int ku_cpu_bind_adam(struct ku_kernel *k)
{
    return bind_update(k, 3);
}
int ku_cpu_bind_sgd(struct ku_kernel *k)
{
    return bind_update(k, 2);
}

/* Reads an exact sum from int64. */
static void load_exact(struct ku_exact *e, const void *words)
{
    memcpy(e, words, sizeof *e);
}

/*
 * Partial results in the workspace: one exact sum per tile (exact_sum), one f64 and one count per
 * canonical chunk (sumsq), or with attr chunk one exact sum and one count per tile, one f64 per
 * tile (max_all). A last tile adds them up.
 */
struct block_part {
    double sum;
    int64_t n_bad;
};
struct chunks_part {
    struct ku_exact sum;
    int64_t n_bad;
};
enum { BLOCKS_PER_TILE = KU_CPU_TILE_COUNT / KU_BLOCK_COUNT };
_Static_assert(KU_CPU_TILE_COUNT % KU_BLOCK_COUNT == 0, "tiles are whole blocks");

size_t ku_cpu_workspace_chunks(const struct ku_op_case *c)
{
    int64_t count = ku_shape_count(&c->in[0].shape);
    if (c->op == KU_OP_sumsq && c->attr->chunk)
        return (size_t)ku_cpu_tiles(count, KU_CPU_TILE_COUNT) * sizeof(struct chunks_part);
    if (c->op == KU_OP_sumsq)
        return (size_t)ku_cpu_tiles(count, KU_BLOCK_COUNT) * sizeof(struct block_part);
    size_t each = c->op == KU_OP_exact_sum ? sizeof(struct ku_exact) : sizeof(double);
    return (size_t)ku_cpu_tiles(count, KU_CPU_TILE_COUNT) * each;
}

static int bind_reduce(struct ku_kernel *k, ku_cpu_tile_fn *part, ku_cpu_tile_fn *last)
{
    k->count = ku_cpu_count(&k->call.in[0]);
    k->per_tile = KU_CPU_TILE_COUNT;
    k->n_slices = ku_cpu_tiles(k->count, k->per_tile);
    ku_cpu_phase(k, part, k->n_slices);
    ku_cpu_phase(k, last, 1);
    return KUMI_OK;
}

static void tile_exact_sum(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *x = &k->call.in[0];
    struct ku_exact *sum = (struct ku_exact *)k->call.workspace + tile;
    int64_t from, n;
    ku_cpu_range(k, tile, &from, &n);
    ku_exact_zero(sum);
    if (x->dtype == KUMI_F32) {
        ku_exact_add_f32(sum, (const float *)x->data + from, n);
        return;
    }
    float *wide = ku_cpu_scratch(k, thread);
    k->cpu->ops->cast(wide, KUMI_F32, ku_cpu_at(x, from), x->dtype, n);
    ku_exact_add_f32(sum, wide, n);
}
static void tile_exact_last(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_exact *part = k->call.workspace;
    struct ku_exact sum;
    (void)tile, (void)thread;
    ku_exact_zero(&sum);
    if (k->call.accumulate)
        load_exact(&sum, k->call.out[0].data);
    for (int64_t i = 0; i < k->n_slices; i++)
        ku_exact_merge(&sum, &part[i]);
    memcpy(k->call.out[0].data, &sum, sizeof sum);
}
int ku_cpu_bind_exact_sum(struct ku_kernel *k)
{
    KU_TRY(ku_cpu_check_all(k));
    KU_TRY(ku_cpu_check(k, "sum", &k->call.out[0], KUMI_I64));
    return bind_reduce(k, tile_exact_sum, tile_exact_last);
}

/* The sum of the chunk of x that starts at element `from`. */
static struct block_part square_block(const struct ku_cpu *cpu, const struct ku_view *x,
                                      int64_t count, int64_t from)
{
    struct block_part part = {0};
    int64_t n = count - from < KU_BLOCK_COUNT ? count - from : KU_BLOCK_COUNT;
    part.sum = cpu->ops->sumsq(ku_cpu_at(x, from), x->dtype, n, &part.n_bad);
    return part;
}
static void tile_sumsq(const struct ku_kernel *k, int64_t tile, int thread)
{
    struct block_part *part = (struct block_part *)k->call.workspace + tile * BLOCKS_PER_TILE;
    int64_t from, n;
    (void)thread;
    ku_cpu_range(k, tile, &from, &n);
    for (int64_t i = 0; i < n; i += KU_BLOCK_COUNT)
        *part++ = square_block(k->cpu, &k->call.in[0], k->count, from + i);
}
void ku_cpu_add_squares(void *dev, const struct ku_view *x, int64_t *stats, int64_t word)
{
    struct ku_exact *sum = (struct ku_exact *)(void *)stats;
    int64_t count = ku_cpu_count(x);
    for (int64_t at = 0; at < count; at += KU_BLOCK_COUNT) {
        struct block_part part = square_block(dev, x, count, at);
        ku_exact_add_f64(sum, &part.sum, 1);
        stats[word] += part.n_bad;
    }
}
static void tile_sumsq_last(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct block_part *part = k->call.workspace;
    int64_t *stats = k->call.out[0].data, n_blocks = ku_cpu_tiles(k->count, KU_BLOCK_COUNT);
    struct ku_exact sum;
    (void)tile, (void)thread;
    load_exact(&sum, stats);
    for (int64_t b = 0; b < n_blocks; b++) {
        ku_exact_add_f64(&sum, &part[b].sum, 1);
        stats[KU_EXACT_WORDS + k->attr.index] += part[b].n_bad;
    }
    memcpy(stats, &sum, sizeof sum);
}
static void tile_sumsq_chunks(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *x = &k->call.in[0];
    struct chunks_part *part = (struct chunks_part *)k->call.workspace + tile;
    const int64_t chunk = k->attr.chunk;
    int64_t from, n;
    (void)thread;
    ku_cpu_range(k, tile, &from, &n);
    memset(part, 0, sizeof *part);
    for (int64_t i = from; i < from + n; i += chunk) {
        const int64_t left = from + n - i;
        const double sum = k->cpu->ops->sumsq(ku_cpu_at(x, i), x->dtype,
                                              left < chunk ? left : chunk, &part->n_bad);
        ku_exact_add_f64(&part->sum, &sum, 1);
    }
}
static void tile_sumsq_chunks_last(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct chunks_part *part = k->call.workspace;
    int64_t *stats = k->call.out[0].data;
    struct ku_exact sum;
    (void)tile, (void)thread;
    load_exact(&sum, stats);
    for (int64_t i = 0; i < k->n_slices; i++) {
        ku_exact_merge(&sum, &part[i].sum);
        stats[KU_EXACT_WORDS + k->attr.index] += part[i].n_bad;
    }
    memcpy(stats, &sum, sizeof sum);
}
int ku_cpu_bind_sumsq(struct ku_kernel *k)
{
    const struct ku_call *c = &k->call;
    KU_TRY(ku_cpu_check_all(k));
    KU_TRY(ku_cpu_check(k, "stats", &c->out[0], KUMI_I64));
    if (c->in[1].data != c->out[0].data)
        return KU_ERR(KUMI_EINVAL, "device cpu: sumsq: stats is updated in place; give one buffer");
    if (ku_view_is_flat(&c->in[0]) && c->in[0].start[0] % KU_BLOCK_COUNT != 0)
        return KU_ERR(
            KUMI_EINVAL,
            "device cpu: sumsq: the part begins at element %lld; it must begin at a multiple of %d",
            (long long)c->in[0].start[0], KU_BLOCK_COUNT);
    return k->attr.chunk ? bind_reduce(k, tile_sumsq_chunks, tile_sumsq_chunks_last)
                         : bind_reduce(k, tile_sumsq, tile_sumsq_last);
}

static void tile_max(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *x = &k->call.in[0];
    int64_t from, n;
    double m = (double)-INFINITY;
    (void)thread;
    ku_cpu_range(k, tile, &from, &n);
    for (int64_t at = from, run; (run = ku_shape_seen_run(&x->shape, &at, from + n)) > 0;
         at += run) {
        const double part = k->cpu->ops->max(ku_cpu_at(x, at), x->dtype, run);
        m = part > m || part != part ? part : m;
    }
    ((double *)k->call.workspace)[tile] = m;
}
static void tile_max_last(const struct ku_kernel *k, int64_t tile, int thread)
{
    const double *part = k->call.workspace;
    double m = (double)-INFINITY;
    (void)tile, (void)thread;
    for (int64_t i = 0; i < k->n_slices; i++)
        m = part[i] > m || part[i] != part[i] ? part[i] : m;
    *(double *)k->call.out[0].data = m;
}
int ku_cpu_bind_max_all(struct ku_kernel *k)
{
    KU_TRY(ku_cpu_check_float(k, "x", &k->call.in[0]));
    KU_TRY(ku_cpu_check(k, "max", &k->call.out[0], KUMI_F64));
    return bind_reduce(k, tile_max, tile_max_last);
}

/* Op accumulate: a += b, or a = max(a, b) with a NaN kept. */
#define FOLD(type)                                                                                 \
    do {                                                                                           \
        type *a = (type *)c->out[0].data + from;                                                   \
        const type *b = (const type *)c->in[1].data + from;                                        \
        if (k->attr.reduce == KU_REDUCE_MAX)                                                       \
            for (int64_t i = 0; i < n; i++)                                                        \
                a[i] = b[i] > a[i] || b[i] != b[i] ? b[i] : a[i];                                  \
        else                                                                                       \
            for (int64_t i = 0; i < n; i++)                                                        \
                a[i] += b[i];                                                                      \
    } while (0)
static void tile_accumulate(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_call *c = &k->call;
    int64_t from, n;
    (void)thread;
    ku_cpu_range(k, tile, &from, &n);
    if (c->out[0].dtype == KUMI_F32)
        FOLD(float);
    else if (c->out[0].dtype == KUMI_F64)
        FOLD(double);
    else if (c->out[0].dtype == KUMI_I64)
        FOLD(int64_t);
    else
        k->cpu->ops->add(ku_cpu_at(&c->out[0], from), ku_cpu_at(&c->out[0], from),
                         ku_cpu_at(&c->in[1], from), c->out[0].dtype, n);
}
/*
 * A node of the sum tree whose wire dtype is narrower: the same rounding as between two ranks
 * (comm/sum.h).
 */
static void tile_accumulate_wire(const struct ku_kernel *k, int64_t tile, int thread)
{
    const enum kumi_dtype wire = (enum kumi_dtype)k->attr.wire;
    float *a = k->call.out[0].data, *other = ku_cpu_scratch(k, thread);
    const float *b = k->call.in[1].data;
    int64_t from, n;
    ku_cpu_range(k, tile, &from, &n);
    a += from;
    memcpy(other, b + from, (size_t)n * sizeof *b);
    ku_round_through(a, wire, n);
    ku_round_through(other, wire, n);
    for (int64_t i = 0; i < n; i++)
        a[i] += other[i];
    ku_round_through(a, wire, n);
}
int ku_cpu_bind_accumulate(struct ku_kernel *k)
{
    const struct ku_call *c = &k->call;
    const enum kumi_dtype dtype = c->out[0].dtype;
    const int is_narrow = dtype != KUMI_F32 && dtype != KUMI_F64 && dtype != KUMI_I64;
    if (is_narrow)
        KU_TRY(ku_cpu_check_float(k, "sum", &c->out[0]));
    if ((is_narrow || k->attr.wire >= 0) && k->attr.reduce != KU_REDUCE_SUM)
        return KU_ERR(KUMI_EINVAL, "device cpu: accumulate: max of %s; it takes f32, f64, i64",
                      kumi_dtype_name(dtype));
    if (k->attr.wire >= 0)
        KU_TRY(ku_cpu_check(k, "sum", &c->out[0], KUMI_F32));
    KU_TRY(ku_cpu_check(k, "first part", &c->in[0], dtype));
    KU_TRY(ku_cpu_check(k, "second part", &c->in[1], dtype));
    if (c->in[0].data != c->out[0].data)
        return KU_ERR(KUMI_EINVAL,
                      "device cpu: accumulate: the first part is updated in place; give one "
                      "buffer");
    k->count = ku_cpu_count(&c->out[0]);
    k->per_tile = KU_CPU_TILE_COUNT;
    ku_cpu_phase(k, k->attr.wire >= 0 ? tile_accumulate_wire : tile_accumulate,
                 ku_cpu_tiles(k->count, k->per_tile));
    return KUMI_OK;
}

static void tile_count_valid(const struct ku_kernel *k, int64_t tile, int thread)
{
    const int32_t *target = k->call.in[0].data;
    int64_t *out = k->call.out[0].data, count = k->call.accumulate ? *out : 0;
    (void)tile, (void)thread;
    for (int64_t i = 0; i < k->count; i++)
        count += target[i] >= 0 && target[i] != k->attr.ignore;
    *out = count;
}
int ku_cpu_bind_count_valid(struct ku_kernel *k)
{
    KU_TRY(ku_cpu_check(k, "targets", &k->call.in[0], KUMI_I32));
    k->count = ku_cpu_count(&k->call.in[0]);
    ku_cpu_phase(k, tile_count_valid, 1);
    return KUMI_OK;
}

static void tile_loss_seed(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *out = &k->call.out[0];
    (void)tile, (void)thread;
    ku_store_f64(out->data, out->dtype, 0, ku_loss_seed(&k->call));
}
int ku_cpu_bind_loss_seed(struct ku_kernel *k)
{
    ku_cpu_phase(k, tile_loss_seed, 1);
    return KUMI_OK;
}

static void tile_stats_zero(const struct ku_kernel *k, int64_t tile, int thread)
{
    (void)tile, (void)thread;
    memset(k->call.out[0].data, 0, (size_t)ku_cpu_count(&k->call.out[0]) * sizeof(int64_t));
}
int ku_cpu_bind_stats_zero(struct ku_kernel *k)
{
    KU_TRY(ku_cpu_check(k, "stats", &k->call.out[0], KUMI_I64));
    ku_cpu_phase(k, tile_stats_zero, 1);
    return KUMI_OK;
}

static void tile_step_scalars(const struct ku_kernel *k, int64_t tile, int thread)
{
    (void)tile, (void)thread;
    ku_step_scalars(&k->call);
}
int ku_cpu_bind_step_scalars(struct ku_kernel *k)
{
    ku_cpu_phase(k, tile_step_scalars, 1);
    return KUMI_OK;
}

static void tile_loss_scaler(const struct ku_kernel *k, int64_t tile, int thread)
{
    (void)tile, (void)thread;
    ku_loss_scaler(&k->call);
}
int ku_cpu_bind_loss_scaler(struct ku_kernel *k)
{
    ku_cpu_phase(k, tile_loss_scaler, 1);
    return KUMI_OK;
}

static void tile_clip_value(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_call *c = &k->call;
    int64_t from, n;
    (void)thread;
    ku_cpu_range(k, tile, &from, &n);
    k->cpu->ops->clamp(ku_cpu_at(&c->out[0], from), ku_cpu_at(&c->in[0], from),
                       (float)ku_clip_limit(c), c->out[0].dtype, n);
}
int ku_cpu_bind_clip_value(struct ku_kernel *k)
{
    KU_TRY(ku_cpu_check_float(k, "gradient", &k->call.in[0]));
    KU_TRY(ku_cpu_check(k, "result", &k->call.out[0], k->call.in[0].dtype));
    k->count = ku_cpu_count(&k->call.in[0]);
    k->per_tile = KU_CPU_TILE_COUNT;
    ku_cpu_phase(k, tile_clip_value, ku_cpu_tiles(k->count, k->per_tile));
    return KUMI_OK;
}

static void tile_loss_scalars(const struct ku_kernel *k, int64_t tile, int thread)
{
    (void)tile, (void)thread;
    ku_loss_scalars(&k->call);
}
int ku_cpu_bind_loss_scalars(struct ku_kernel *k)
{
    ku_cpu_phase(k, tile_loss_scalars, 1);
    return KUMI_OK;
}

/* The executor changes placements. */
int ku_cpu_bind_convert(struct ku_kernel *k)
{
    (void)k;
    return KU_ERR(KUMI_EBUG, "device cpu: convert: not a computation; lowering turns it into "
                             "accumulations and collectives");
}
