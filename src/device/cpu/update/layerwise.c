/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LARS and LAMB: sums of squares per canonical chunk, and the updates scaled by the resulting
 * norms.
 */
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "base/math/exact.h"
#include "device/cpu/cpu.h"
#include "device/step_scalars.h"
#include "op/schedule.h"

/* With attr chunk the workspace has two exact sums per tile instead of two f64 per chunk. */
static struct ku_exact *exact_of(const struct ku_kernel *k, int64_t tile)
{
    return (struct ku_exact *)k->call.workspace + 2 * tile;
}
/* Where the sums of a chunk go: the workspace, or `own` until add_part. */
static double *part_of(const struct ku_kernel *k, int64_t at, double own[2])
{
    struct ku_cpu_trust *part = k->call.workspace;
    return k->attr.chunk ? own : part[at / KU_BLOCK_COUNT].sum;
}
static void add_part(const struct ku_kernel *k, int64_t tile, const double own[2])
{
    for (int x = 0; x < 2 && k->attr.chunk; x++)
        ku_exact_add_f64(&exact_of(k, tile)[x], &own[x], 1);
}

size_t ku_cpu_workspace_trust(const struct ku_op_case *c)
{
    if (c->attr->chunk)
        return (size_t)ku_cpu_tiles(ku_shape_count(&c->in[0].shape), KU_CPU_TILE_COUNT) * 2 *
               sizeof(struct ku_exact);
    return (size_t)ku_cpu_tiles(ku_shape_count(&c->in[0].shape), KU_BLOCK_COUNT) *
           sizeof(struct ku_cpu_trust);
}

/*
 * The scalars of this step. The caller sets LAMB's operands.
 */
static struct ku_update lamb_of(const struct ku_kernel *k, const double *report)
{
    const struct ku_attrs *a = &k->attr;
    const double t = report[KU_REPORT_UPDATE];
    const double beta1 = ku_schedule_momentum(a, a->beta1, (int64_t)t - 1);
    return (struct ku_update){
        .scale = (float)report[KU_REPORT_SCALE],
        .beta1 = (float)beta1,
        .add1 = (float)(1 - beta1),
        .beta2 = (float)a->beta2,
        .add2 = (float)(1 - a->beta2),
        .eps = (float)a->eps,
        .weight_decay = (float)a->weight_decay,
        .step_size = (float)(a->bias_correction ? 1 / (1 - pow(beta1, t)) : 1),
        .rsqrt_bc2 = (float)(a->bias_correction ? 1 / sqrt(1 - pow(a->beta2, t)) : 1)};
}

static int check_state(struct ku_kernel *k, const char *what, int in, int out)
{
    const struct ku_call *c = &k->call;
    KU_TRY(ku_cpu_check(k, what, &c->in[in], KUMI_F32));
    if (out >= 0 && c->in[in].data != c->out[out].data)
        return KU_ERR(KUMI_EINVAL, "device cpu: %s: %s is updated in place; give one buffer",
                      ku_ops[c->op].name, what);
    return KUMI_OK;
}
static void set_tiles(struct ku_kernel *k, ku_cpu_tile_fn *fn)
{
    k->count = ku_cpu_count(&k->call.in[0]);
    k->per_tile = KU_CPU_TILE_COUNT;
    ku_cpu_phase(k, fn, ku_cpu_tiles(k->count, k->per_tile));
}

static void tile_trust_sums(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_call *c = &k->call;
    const int64_t chunk = ku_op_chunk(&k->attr);
    double own[2];
    int64_t from, n, n_bad = 0;
    (void)thread;
    ku_cpu_range(k, tile, &from, &n);
    if (k->attr.chunk)
        memset(exact_of(k, tile), 0, 2 * sizeof(struct ku_exact));
    for (int64_t i = 0; i < n; i += chunk) {
        double *sum = part_of(k, from + i, own);
        for (int x = 0; x < 2; x++)
            sum[x] = k->cpu->ops->sumsq(ku_cpu_at(&c->in[x], from + i), c->in[x].dtype,
                                        n - i < chunk ? n - i : chunk, &n_bad);
        add_part(k, tile, sum);
    }
}

/* A skipped update leaves moments and sums. */
static void tile_lamb_moments(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_call *c = &k->call;
    const double *report = c->in[4].data;
    const int64_t chunk = ku_op_chunk(&k->attr);
    struct ku_update u = lamb_of(k, report);
    double own[2];
    int64_t from, n;
    (void)thread;
    u.p = c->in[0].data, u.m = c->out[0].data, u.v = c->out[1].data;
    u.g = c->in[3].data, u.g_dtype = c->in[3].dtype;
    ku_cpu_range(k, tile, &from, &n);
    if (k->attr.chunk)
        memset(exact_of(k, tile), 0, 2 * sizeof(struct ku_exact));
    for (int64_t i = 0; i < n && report[KU_REPORT_APPLY] != 0; i += chunk) {
        double *sum = part_of(k, from + i, own);
        k->cpu->ops->lamb_moments(&u, from + i, n - i < chunk ? n - i : chunk, sum);
        add_part(k, tile, sum);
    }
}

void ku_cpu_add_trust(const struct ku_kernel *k, int64_t *trust)
{
    const struct ku_cpu_trust *part = k->call.workspace;
    const int64_t n_blocks = ku_cpu_tiles(k->count, KU_BLOCK_COUNT);
    for (int x = 0; x < 2; x++) {
        int64_t *words = &trust[(2 * k->attr.index + x) * KU_EXACT_WORDS];
        struct ku_exact sum;
        memcpy(&sum, words, sizeof sum);
        for (int64_t b = 0; b < n_blocks && k->attr.chunk == 0; b++)
            ku_exact_add_f64(&sum, &part[b].sum[x], 1);
        for (int64_t t = 0; t < ku_cpu_tiles(k->count, k->per_tile) && k->attr.chunk; t++)
            ku_exact_merge(&sum, &exact_of(k, t)[x]);
        memcpy(words, &sum, sizeof sum);
    }
}
static void tile_trust_last(const struct ku_kernel *k, int64_t tile, int thread)
{
    (void)tile, (void)thread;
    ku_cpu_add_trust(k, k->call.out[0].data);
}
static void tile_lamb_last(const struct ku_kernel *k, int64_t tile, int thread)
{
    const double *report = k->call.in[4].data;
    (void)tile, (void)thread;
    if (report[KU_REPORT_APPLY] != 0)
        ku_cpu_add_trust(k, k->call.out[2].data);
}

static int check_trust(struct ku_kernel *k, int in, int out)
{
    const struct ku_call *c = &k->call;
    KU_TRY(ku_cpu_check(k, "trust", &c->in[in], KUMI_I64));
    if (c->in[in].data != c->out[out].data)
        return KU_ERR(KUMI_EINVAL, "device cpu: %s: trust is updated in place; give one buffer",
                      ku_ops[c->op].name);
    if (ku_view_is_flat(&c->in[0]) && c->in[0].start[0] % KU_BLOCK_COUNT != 0)
        return KU_ERR(
            KUMI_EINVAL,
            "device cpu: %s: the part begins at element %lld; it must begin at a multiple of %d",
            ku_ops[c->op].name, (long long)c->in[0].start[0], KU_BLOCK_COUNT);
    return KUMI_OK;
}
int ku_cpu_bind_trust_sums(struct ku_kernel *k)
{
    KU_TRY(ku_cpu_check_float(k, "parameter", &k->call.in[0]));
    KU_TRY(ku_cpu_check_float(k, "gradient", &k->call.in[1]));
    KU_TRY(check_trust(k, 2, 0));
    set_tiles(k, tile_trust_sums);
    ku_cpu_phase(k, tile_trust_last, 1);
    return KUMI_OK;
}
int ku_cpu_bind_lamb_moments(struct ku_kernel *k)
{
    KU_TRY(check_state(k, "parameter", 0, -1));
    KU_TRY(check_state(k, "first moment", 1, 0));
    KU_TRY(check_state(k, "second moment", 2, 1));
    KU_TRY(ku_cpu_check_float(k, "gradient", &k->call.in[3]));
    KU_TRY(ku_cpu_check(k, "report", &k->call.in[4], KUMI_F64));
    KU_TRY(check_trust(k, 5, 2));
    set_tiles(k, tile_lamb_moments);
    ku_cpu_phase(k, tile_lamb_last, 1);
    return KUMI_OK;
}

static void tile_trust_norms(const struct ku_kernel *k, int64_t tile, int thread)
{
    (void)tile, (void)thread;
    ku_trust_norms(&k->call);
}
int ku_cpu_bind_trust_norms(struct ku_kernel *k)
{
    ku_cpu_phase(k, tile_trust_norms, 1);
    return KUMI_OK;
}

/*
 * A skipped update leaves the state. The compute copy is written in any case: it may be a fresh
 * buffer.
 */
static void write_copy(const struct ku_kernel *k, int out, int64_t from, int64_t n)
{
    const struct ku_call *c = &k->call;
    if (c->n_out > out)
        k->cpu->ops->cast(ku_cpu_at(&c->out[out], from), c->out[out].dtype,
                          ku_cpu_at(&c->out[0], from), KUMI_F32, n);
}
static void set_copy(const struct ku_kernel *k, int out, struct ku_update *u)
{
    if (k->call.n_out > out)
        u->copy = k->call.out[out].data, u->copy_dtype = k->call.out[out].dtype;
}

static void tile_lamb(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_call *c = &k->call;
    const double *report = c->in[3].data;
    struct ku_update u = lamb_of(k, report);
    int64_t from, n;
    (void)thread;
    u.p = c->out[0].data, u.m = c->in[1].data, u.v = c->in[2].data;
    u.lr = (float)(report[KU_REPORT_LR] * k->attr.lr_mult * ku_trust_lamb(&k->attr, c->in[4].data));
    set_copy(k, 1, &u);
    ku_cpu_range(k, tile, &from, &n);
    if (report[KU_REPORT_APPLY] != 0)
        k->cpu->ops->lamb(&u, from, n);
    else
        write_copy(k, 1, from, n);
}
int ku_cpu_bind_lamb(struct ku_kernel *k)
{
    KU_TRY(check_state(k, "parameter", 0, 0));
    KU_TRY(check_state(k, "first moment", 1, -1));
    KU_TRY(check_state(k, "second moment", 2, -1));
    KU_TRY(ku_cpu_check(k, "report", &k->call.in[3], KUMI_F64));
    KU_TRY(ku_cpu_check(k, "norms", &k->call.in[4], KUMI_F64));
    if (k->call.n_out > 1)
        KU_TRY(ku_cpu_check_float(k, "copy", &k->call.out[1]));
    set_tiles(k, tile_lamb);
    return KUMI_OK;
}

static void tile_lars(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_call *c = &k->call;
    const struct ku_attrs *a = &k->attr;
    const double *report = c->in[3].data, t = report[KU_REPORT_UPDATE];
    const double momentum = ku_schedule_momentum(a, a->momentum, (int64_t)t - 1);
    struct ku_update u = {.p = c->out[0].data,
                          .m = c->out[1].data,
                          .g = c->in[2].data,
                          .g_dtype = c->in[2].dtype,
                          .scale = (float)report[KU_REPORT_SCALE],
                          .lr = (float)(report[KU_REPORT_LR] * a->lr_mult),
                          .weight_decay = (float)a->weight_decay,
                          .momentum = (float)momentum,
                          .add = momentum != 0 ? (float)(1 - a->dampening) : 1,
                          .ratio = (float)ku_trust_lars(a, c->in[4].data, report[KU_REPORT_SCALE]),
                          .nesterov = a->nesterov != 0,
                          .first = t == 1};
    int64_t from, n;
    (void)thread;
    set_copy(k, 2, &u);
    ku_cpu_range(k, tile, &from, &n);
    if (report[KU_REPORT_APPLY] != 0)
        k->cpu->ops->sgd(&u, from, n);
    else
        write_copy(k, 2, from, n);
}
int ku_cpu_bind_lars(struct ku_kernel *k)
{
    KU_TRY(check_state(k, "parameter", 0, 0));
    KU_TRY(check_state(k, "momentum", 1, 1));
    KU_TRY(ku_cpu_check_float(k, "gradient", &k->call.in[2]));
    KU_TRY(ku_cpu_check(k, "report", &k->call.in[3], KUMI_F64));
    KU_TRY(ku_cpu_check(k, "norms", &k->call.in[4], KUMI_F64));
    if (k->call.n_out > 2)
        KU_TRY(ku_cpu_check_float(k, "copy", &k->call.out[2]));
    set_tiles(k, tile_lars);
    return KUMI_OK;
}
