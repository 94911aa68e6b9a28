/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cpu/cpu.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "device/host_memory.h"
#include "tensor/dtype.h"

typedef int bind_fn(struct ku_kernel *k);
static bind_fn *const bind_of[KU_N_OPS] = {
#define KU_OP(name, ...) [KU_OP_##name] = ku_cpu_bind_##name,
#include "op/ops.def"
#undef KU_OP
};
static ku_workspace_fn *const workspace_of[KU_N_OPS] = {
#define KU_OP(name, min_in, max_in, min_out, max_out, traits, map, sum, inout, alias, grad, infer, \
              cost, operands, workspace)                                                           \
    [KU_OP_##name] = ku_cpu_workspace_##workspace,
#include "op/ops.def"
#undef KU_OP
};

size_t ku_cpu_workspace_none(const struct ku_op_case *c)
{
    (void)c;
    return 0;
}
size_t ku_cpu_workspace_rope(const struct ku_op_case *c)
{
    (void)c;
    return 0;
}

int64_t ku_cpu_extent(const struct ku_shape *s, int from, int to)
{
    int64_t n = 1;
    for (int d = from; d < to; d++)
        n *= s->dim[d].count;
    return n;
}

void ku_cpu_phase(struct ku_kernel *k, ku_cpu_tile_fn *fn, int64_t n_tiles)
{
    KU_ASSERT(k->n_phases < KU_CPU_MAX_PHASES);
    k->phase[k->n_phases].fn = fn;
    k->phase[k->n_phases++].n_tiles = n_tiles;
}

void ku_cpu_range(const struct ku_kernel *k, int64_t tile, int64_t *from, int64_t *n)
{
    *from = tile * k->per_tile;
    *n = k->count - *from < k->per_tile ? k->count - *from : k->per_tile;
}

int ku_cpu_check(const struct ku_kernel *k, const char *what, const struct ku_view *v,
                 enum kumi_dtype dtype)
{
    if (v->dtype == dtype)
        return KUMI_OK;
    return KU_ERR(KUMI_EINVAL, "device cpu: %s: %s is %s; it takes %s", ku_ops[k->call.op].name,
                  what, kumi_dtype_name(v->dtype), kumi_dtype_name(dtype));
}

int ku_cpu_check_float(const struct ku_kernel *k, const char *what, const struct ku_view *v)
{
    if (ku_cpu_is_float(v))
        return KUMI_OK;
    return KU_ERR(KUMI_EINVAL,
                  "device cpu: %s: %s is %s; it computes f32, bf16 and f16; use device ref",
                  ku_ops[k->call.op].name, what, kumi_dtype_name(v->dtype));
}

int ku_cpu_check_all(const struct ku_kernel *k)
{
    static const char *const in[] = {"input 0", "input 1", "input 2", "input 3", "input 4",
                                     "input 5", "input 6", "input 7", "input 8", "input 9"};
    static const char *const out[] = {"output 0", "output 1", "output 2", "output 3"};
    for (int i = 0; i < k->call.n_in; i++)
        if (ku_dtype_is_float(k->call.in[i].dtype))
            KU_TRY(ku_cpu_check_float(k, in[i], &k->call.in[i]));
    for (int i = 0; i < k->call.n_out; i++)
        if (ku_dtype_is_float(k->call.out[i].dtype))
            KU_TRY(ku_cpu_check_float(k, out[i], &k->call.out[i]));
    return KUMI_OK;
}

struct ku_dropout ku_cpu_dropout(const struct ku_kernel *k)
{
    const int64_t *control = k->call.in[k->call.n_in - 1].data;
    struct ku_dropout d = {.seed = (uint64_t)control[KU_CONTROL_SEED],
                           .step = (uint32_t)control[KU_CONTROL_STEP],
                           .stream = k->call.stream,
                           .least = (uint32_t)ceil(k->attr.p * 0x1p24),
                           .scale = (float)(1.0 / (1.0 - k->attr.p))};
    for (uint32_t i = 0; i < 10; i++) { /* key schedule of base/math/random.c */
        d.key[i][0] = (uint32_t)d.seed + i * 0x9E3779B9u;
        d.key[i][1] = (uint32_t)(d.seed >> 32) + i * 0xBB67AE85u;
    }
    return d;
}

void ku_cpu_print_tiling(const struct ku_kernel *k, char *out, size_t bytes)
{
    const struct ku_product_tiling *t = &k->product.tiling;
    const struct ku_cpu_conv *v = &k->conv;
    out[0] = '\0';
    if (t->rows)
        snprintf(out, bytes, "%dx%dx%d", (int)t->rows, (int)t->cols, (int)t->chunk_units);
    else if (v->chunk_units)
        snprintf(out, bytes, "%dx%dx%d", (int)(v->rows * v->tile_h * v->tile_w), KU_TILE_COLS,
                 (int)v->chunk_units);
}

static const struct ku_isa_ops *ops_of(enum ku_isa isa)
{
#if defined(__x86_64__)
    if (isa >= KU_ISA_AVX512)
        return &ku_isa_avx512;
    if (isa >= KU_ISA_AVX2)
        return &ku_isa_avx2;
#endif
    (void)isa;
    return &ku_isa_base;
}

void ku_cpu_select(struct ku_cpu *cpu, enum ku_isa isa)
{
    cpu->isa = isa;
    cpu->ops = ops_of(isa);
#if defined(__x86_64__)
    if (isa >= KU_ISA_AVX512)
        cpu->slim_f32 = &ku_slim_avx512;
    if (isa == KU_ISA_AVX512BF16)
        cpu->slim_bf16 = &ku_slim_avx512bf16;
    if (isa >= KU_ISA_AVX512BF16) {
        cpu->pairs = &ku_pairs_avx512bf16;
        cpu->gemm_bf16 = isa == KU_ISA_AMX ? &ku_gemm_amx : &cpu->pairs->gemm;
        cpu->attn_bf16 = isa == KU_ISA_AMX ? &ku_attn_amx : &cpu->pairs->attn;
    }
#endif
}

static int cpu_open(const struct ku_device_opts *o, void **dev)
{
    int n = o->n_threads ? o->n_threads : 1, status = KUMI_OK;
    struct ku_cpu *cpu = ku_calloc(1, sizeof *cpu);
    if (cpu == NULL)
        return KUMI_ENOMEM;
    ku_cpu_select(cpu, ku_cpu_isa() < o->isa ? ku_cpu_isa() : o->isa);
    cpu->caches = o->caches ? *o->caches : *ku_caches_here();
    struct ku_pool_opts pool = {.n_threads = n,
                                .n_runnable_threads = o->n_runnable_threads,
                                .n_cpus = o->n_cpus,
                                .cpu = o->cpu,
                                .bind_caller = o->cpu != NULL};
    KU_TRY_OUT(ku_pool_create(&pool, &cpu->pool));
    cpu->scratch = ku_malloc_aligned(4096, (size_t)n * KU_CPU_SCRATCH_BYTES);
    status = cpu->scratch ? KUMI_OK : KUMI_ENOMEM;
    if (status == KUMI_OK) {
        *dev = cpu;
        return KUMI_OK;
    }
out:
    ku_pool_destroy(cpu->pool);
    ku_free(cpu);
    return status;
}

static void cpu_close(void *dev)
{
    struct ku_cpu *cpu = dev;
    if (cpu == NULL)
        return;
    ku_pool_destroy(cpu->pool);
    ku_free(cpu->scratch);
    ku_free(cpu);
}

static int cpu_query(void *dev, const struct ku_op_case *c, struct ku_target_op *out)
{
    (void)dev;
    size_t bytes = workspace_of[c->op](c);
    *out = (struct ku_target_op){.workspace_bytes = (bytes + 63) / 64 * 64};
    return KUMI_OK;
}

static void cpu_unbind(void *dev, struct ku_kernel *kernel)
{
    (void)dev;
    ku_free(kernel->table);
    ku_free(kernel);
}

static int cpu_bind(void *dev, const struct ku_call *call, struct ku_kernel **kernel)
{
    KU_ASSERT(call->op > KU_OP_NONE && call->op < KU_N_OPS);
    struct ku_kernel *k = ku_calloc(1, sizeof *k);
    if (k == NULL)
        return KUMI_ENOMEM;
    k->cpu = dev;
    k->call = *call;
    k->attr = call->attr ? *call->attr : ku_attrs_default;
    k->call.attr = &k->attr;
    int status = bind_of[call->op](k);
    if (status < 0) {
        cpu_unbind(dev, k);
        return status;
    }
    *kernel = k;
    return KUMI_OK;
}

struct job {
    const struct ku_kernel *k;
    ku_cpu_tile_fn *fn;
};
static void run_tile(void *ctx, int64_t tile, int thread)
{
    const struct job *j = ctx;
    const struct ku_gemm_micro *matrix = j->k->cpu->gemm_bf16;
    j->fn(j->k, tile, thread);
    if (matrix && matrix->end)
        matrix->end();
}

static int cpu_launch(void *dev, struct ku_kernel *k, void (*hook)(void *), void *hook_ctx)
{
    struct ku_cpu *cpu = dev;
    for (int p = 0; p < k->n_phases; p++) {
        struct job job = {k, k->phase[p].fn};
        ku_pool_run(cpu->pool, k->phase[p].n_tiles, run_tile, &job, hook, hook_ctx);
    }
    return KUMI_OK;
}

const struct ku_device_ops ku_device_cpu = {.name = "cpu",
                                            .open = cpu_open,
                                            .close = cpu_close,
                                            .query = cpu_query,
                                            .bind = cpu_bind,
                                            .unbind = cpu_unbind,
                                            .launch = cpu_launch,
                                            .add_squares = ku_cpu_add_squares,
                                            .alloc = ku_host_alloc,
                                            .free = ku_host_free,
                                            .map = ku_host_map,
                                            .unmap = ku_host_unmap};
