/* SPDX-License-Identifier: Apache-2.0 */
#include "device/peak_bench.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/tick.h"
#include "device/cpu/bench.h"
#include "device/cpu/cpu.h"

enum {
    STREAM_BYTES = 128 << 20, /* far more than a core's share of the last-level cache */
    STREAM_TILE_BYTES = 1 << 20,
    PEAK_ROUNDS = 1 << 18,
    QUICK_NS = 25 * 1000 * 1000, /* budget per rate, of four rates */
    PRODUCT_UNITS = 256          /* both operands fit L1 */
};

struct peak_job {
    struct ku_cpu *cpu;
    const struct ku_gemm_micro *gemm;
    float *a, *b; /* streams */
    unsigned char *fresh;
    int kind;
    int64_t budget_ns; /* per rate: no further try begins later; 0: no limit */
};
enum { JOB_REGISTERS, JOB_PRODUCT, JOB_COPY, JOB_IN_PLACE, JOB_TOUCH };

static void peak_tile(void *ctx, int64_t tile, int thread)
{
    const struct peak_job *j = ctx;
    const struct ku_gemm_micro *g = j->gemm;
    float *own = (float *)(void *)(j->cpu->scratch + (size_t)thread * KU_CPU_SCRATCH_BYTES);
    const size_t at = (size_t)tile * (STREAM_TILE_BYTES / sizeof(float));
    const int64_t n = STREAM_TILE_BYTES / (int64_t)sizeof(float);
    if (j->kind == JOB_REGISTERS) {
        for (int i = 0; i < g->nr; i++)
            own[i] = 1e-6f;
        g->peak(PEAK_ROUNDS, own);
    } else if (j->kind == JOB_PRODUCT) {
        memset(own, 0, KU_CPU_SCRATCH_BYTES / 4);
        for (int i = 0; i < PEAK_ROUNDS / PRODUCT_UNITS; i++)
            g->run(g->mr, PRODUCT_UNITS, own, g->step, g->mr, own + g->mr * PRODUCT_UNITS,
                   own + (g->mr + g->nr) * PRODUCT_UNITS, g->nr, 0, NULL, 0);
        if (g->end)
            g->end();
    } else if (j->kind == JOB_COPY) {
        memcpy(j->b + at, j->a + at, STREAM_TILE_BYTES);
    } else if (j->kind == JOB_IN_PLACE) {
        j->cpu->ops->add(j->a + at, j->a + at, j->a + at, KUMI_F32, n);
    } else {
        for (size_t i = 0; i < STREAM_TILE_BYTES; i += 4096)
            j->fresh[(size_t)tile * STREAM_TILE_BYTES + i] = 1;
    }
}
static int64_t run_once(struct peak_job *j, int64_t n_tiles)
{
    int64_t t = ku_clock_ns();
    ku_pool_run(j->cpu->pool, n_tiles, peak_tile, j, NULL, NULL);
    t = ku_clock_ns() - t;
    return t > 0 ? t : 1;
}
static struct ku_spread rate_of(struct peak_job *j, int kind, int64_t n_tiles, double units)
{
    int64_t ns[KU_PEAK_TRIES], begin = ku_clock_ns();
    int n = 0;
    j->kind = kind;
    do {
        ns[n++] = run_once(j, n_tiles);
        ku_tick();
    } while (n < KU_PEAK_TRIES && (!j->budget_ns || ku_clock_ns() - begin < j->budget_ns));
    return ku_spread_of(ns, n, units);
}
static struct ku_spread better(struct ku_spread a, struct ku_spread b)
{
    return a.max > b.max ? a : b;
}
static struct ku_spread matrix_peak(struct peak_job *j, const struct ku_gemm_micro *g, int depth)
{
    const int n = ku_pool_n_threads(j->cpu->pool);
    const double units =
        2.0 * depth * g->mr * g->nr * (PEAK_ROUNDS / PRODUCT_UNITS) * PRODUCT_UNITS;
    j->gemm = g;
    return better(rate_of(j, JOB_REGISTERS, n, g->peak_flops * PEAK_ROUNDS * n),
                  rate_of(j, JOB_PRODUCT, n, units * n));
}
/* First touch: maps fresh memory for every try. */
static int touch_rate(struct peak_job *j, int64_t n_tiles, struct ku_spread *out)
{
    int64_t ns[KU_PEAK_TRIES];
    j->kind = JOB_TOUCH;
    for (int i = 0; i < KU_PEAK_TRIES; i++) {
        j->fresh =
            ku_os_mmap(STREAM_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (j->fresh == NULL)
            return KU_ERR(KUMI_ENOMEM, "bench: map %d bytes: %s", STREAM_BYTES, strerror(errno));
        ns[i] = run_once(j, n_tiles);
        ku_os_munmap(j->fresh, STREAM_BYTES);
    }
    *out = ku_spread_of(ns, KU_PEAK_TRIES, STREAM_BYTES);
    return KUMI_OK;
}

static int memory_peak(struct peak_job *j, struct ku_peak *p)
{
    const int64_t n_tiles = STREAM_BYTES / STREAM_TILE_BYTES;
    int status = KUMI_ENOMEM;
    j->a = ku_malloc_aligned(4096, STREAM_BYTES);
    j->b = ku_malloc_aligned(4096, STREAM_BYTES);
    if (j->a == NULL || j->b == NULL)
        goto out;
    KU_TRY_OUT(touch_rate(j, n_tiles, &p->touch));
    memset(j->a, 0, STREAM_BYTES);
    memset(j->b, 0, STREAM_BYTES);
    p->stream = better(rate_of(j, JOB_COPY, n_tiles, 2.0 * STREAM_BYTES),
                       rate_of(j, JOB_IN_PLACE, n_tiles, 2.0 * STREAM_BYTES));
out:
    ku_free(j->a);
    ku_free(j->b);
    return status;
}

bool ku_peak_is_disturbed(const struct ku_peak *peak)
{
    const struct ku_spread *all[] = {&peak->f32, &peak->bf16, &peak->stream};
    int is_disturbed = 0;
    for (int i = 0; i < 3; i++)
        is_disturbed |= all[i]->median < 0.9 * all[i]->max;
    return is_disturbed;
}

static int peak(const struct ku_device_opts *opts, struct peak_job *j, struct ku_peak *out)
{
    void *dev = NULL;
    KU_TRY(ku_device_cpu.open(opts, &dev));
    struct ku_cpu *cpu = dev;
    j->cpu = cpu;
    struct ku_peak p = {.isa = cpu->isa, .n_threads = ku_pool_n_threads(cpu->pool)};
    int status = KUMI_OK;
    if (!j->budget_ns)
        KU_TRY_OUT(memory_peak(j, &p));
    p.f32 = matrix_peak(j, &cpu->ops->gemm, 1);
    p.bf16 = p.f32; /* of operands that are widened, unless its own instructions are faster */
    if (cpu->gemm_bf16)
        p.bf16 = better(matrix_peak(j, cpu->gemm_bf16, 2), p.f32);
    p.touch_bytes = p.touch.median;
    p.stream_bytes = p.stream.max;
    p.flops_f32 = p.f32.max;
    p.flops_bf16 = p.bf16.max;
    *out = p;
out:
    ku_device_cpu.close(dev);
    return status;
}

int ku_bench_peak(const struct ku_device_opts *opts, struct ku_peak *out)
{
    struct peak_job j = {0};
    return peak(opts, &j, out);
}

int ku_bench_peak_quick(const struct ku_device_opts *opts, struct ku_peak *out)
{
    struct peak_job j = {.budget_ns = QUICK_NS};
    return peak(opts, &j, out);
}
