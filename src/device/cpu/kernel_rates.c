/* SPDX-License-Identifier: Apache-2.0 */
#include "device/kernel_rates.h"

#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "device/cpu/cpu.h"

enum {
    UNITS = 128, /* of the contraction: a group and a panel take 23 to 32 KiB, so they fit L1 */
    CALLS = 16,  /* timed as one: 10 to 60 us, so that few are cut by a switch to another thread */
    TURNS = 5,   /* the first lets the core raise its power for wide units */
    TURN_NS = 1000 * 1000
};

/* Raises *rate to the best FLOP/s of one turn of a kernel. */
static void turn(const struct ku_gemm_micro *g, int depth, float *operands, double *rate)
{
    const double flops = 2.0 * depth * g->mr * g->nr * UNITS * CALLS;
    float *a = operands, *b = a + g->mr * UNITS, *c = b + g->nr * UNITS;
    const int64_t begin = ku_clock_ns();
    int64_t now = begin, last;
    do {
        last = now;
        for (int i = 0; i < CALLS; i++)
            g->run(g->mr, UNITS, a, g->step, g->mr, b, c, g->nr, 0, NULL, 0);
        now = ku_clock_ns();
        const double measured = flops * 1e9 / (double)(now > last ? now - last : 1);
        if (measured > *rate)
            *rate = measured;
    } while (now - begin < TURN_NS);
    if (g->end)
        g->end();
}

int ku_kernel_rates_measure(struct ku_kernel_rates *out)
{
    const enum ku_isa top = ku_cpu_isa();
    const int lowest = top > KU_ISA_BASE ? KU_ISA_AVX2 : KU_ISA_BASE;
    float *operands = ku_malloc_aligned(64, KU_CPU_SCRATCH_BYTES);
    if (operands == NULL)
        return KUMI_ENOMEM;
    memset(operands, 0, KU_CPU_SCRATCH_BYTES);
    struct ku_kernel_rates r = {0};
    for (int t = 0; t < TURNS; t++) {
        const struct ku_gemm_micro *last = NULL;
        for (int isa = lowest; isa <= (int)top; isa++) {
            struct ku_cpu cpu = {0};
            ku_cpu_select(&cpu, (enum ku_isa)isa);
            if (&cpu.ops->gemm != last)
                turn(&cpu.ops->gemm, 1, operands, &r.f32[isa]);
            else
                r.f32[isa] = r.f32[isa - 1];
            last = &cpu.ops->gemm;
            if (cpu.gemm_bf16)
                turn(cpu.gemm_bf16, 2, operands, &r.bf16[isa]);
            else
                r.bf16[isa] = r.f32[isa];
        }
    }
    ku_free(operands);
    *out = r;
    return KUMI_OK;
}

double ku_kernel_rate(const struct ku_kernel_rates *rates, enum kumi_dtype compute, enum ku_isa isa)
{
    return compute == KUMI_BF16 ? rates->bf16[isa] : rates->f32[isa];
}

enum ku_isa ku_kernel_choose(const struct ku_kernel_rates *rates, enum kumi_dtype compute)
{
    int best = KU_N_ISAS - 1;
    while (best > 0 && !(ku_kernel_rate(rates, compute, (enum ku_isa)best) > 0))
        best--;
    for (int isa = best - 1; isa >= 0; isa--)
        if (ku_kernel_rate(rates, compute, (enum ku_isa)isa) >
            KU_KERNEL_MARGIN * ku_kernel_rate(rates, compute, (enum ku_isa)best))
            best = isa;
    return (enum ku_isa)best;
}
