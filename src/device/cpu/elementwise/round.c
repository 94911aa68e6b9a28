/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters without an f32 master copy: widened to f32 for the update, rounded when stored. */
#include "base/err.h"
#include "device/cpu/cpu.h"

int ku_cpu_bind_widen(struct ku_kernel *k)
{
    return ku_cpu_bind_cast(k);
}

static void tile_stochastic_round(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *x = &k->call.in[0], *y = &k->call.out[0];
    const struct ku_dropout d = ku_cpu_dropout(k);
    int64_t from, n;
    (void)thread;
    ku_cpu_range(k, tile, &from, &n);
    while (n > 0) {
        int64_t some, first = ku_cpu_global(y, from, &some);
        some = some < n ? some : n;
        k->cpu->ops->stochastic_round(ku_cpu_at(y, from), y->dtype, ku_cpu_at(x, from), some, &d,
                                      (uint64_t)first);
        from += some, n -= some;
    }
}
int ku_cpu_bind_stochastic_round(struct ku_kernel *k)
{
    KU_TRY(ku_cpu_check(k, "x", &k->call.in[0], KUMI_F32));
    KU_TRY(ku_cpu_check(k, "control", &k->call.in[1], KUMI_I64));
    if (k->call.out[0].dtype != KUMI_BF16 && k->call.out[0].dtype != KUMI_F16)
        return KU_ERR(KUMI_EINVAL,
                      "device cpu: stochastic_round: result is %s; it takes bf16 or f16",
                      kumi_dtype_name(k->call.out[0].dtype));
    k->count = ku_cpu_count(&k->call.out[0]);
    k->per_tile = KU_CPU_TILE_COUNT;
    ku_cpu_phase(k, tile_stochastic_round, ku_cpu_tiles(k->count, k->per_tile));
    return KUMI_OK;
}
