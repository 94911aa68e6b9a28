/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters without a master: read in f32, rounded when they are stored. */
#include <string.h>

#include "base/err.h"
#include "base/random.h"
#include "device/cpu/cpu.h"
#include "tensor/dtype.h"

int ku_cpu_bind_widen(struct ku_kernel *k)
{
    return ku_cpu_bind_cast(k);
}

/* Words of `n` elements from `first` on, begun in word[first % 4]: a counter makes four. */
enum { SOME = 256 };
static void draw(const struct ku_kernel *k, uint64_t first, int64_t n, uint32_t word[SOME + 8])
{
    const int64_t *control = k->call.in[1].data;
    const uint64_t seed = (uint64_t)control[KU_CONTROL_SEED], block = first / 4;
    const uint32_t step = (uint32_t)control[KU_CONTROL_STEP], stream = k->call.stream;
    const int64_t n_blocks = ((int64_t)(first % 4) + n + 3) / 4;
    for (int64_t b = 0; b < n_blocks; b++) {
        const struct ku_philox made = ku_philox(seed, step, stream, block + (uint64_t)b);
        memcpy(word + 4 * b, made.word, sizeof made.word);
    }
}

static void tile_stochastic_round(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *x = &k->call.in[0], *y = &k->call.out[0];
    uint32_t word[SOME + 8];
    int64_t from, n;
    (void)thread;
    ku_cpu_range(k, tile, &from, &n);
    while (n > 0) {
        int64_t some, first = ku_cpu_global(y, from, &some);
        some = some < n ? some : n;
        some = some < SOME ? some : SOME;
        draw(k, (uint64_t)first, some, word);
        ku_round_random(ku_cpu_at(y, from), y->dtype, ku_cpu_at(x, from), word + first % 4, some);
        from += some, n -= some;
    }
}
int ku_cpu_bind_stochastic_round(struct ku_kernel *k)
{
    KU_TRY(ku_cpu_check(k, "x", &k->call.in[0], KUMI_F32));
    KU_TRY(ku_cpu_check(k, "control", &k->call.in[1], KUMI_I64));
    if (k->call.out[0].dtype != KUMI_BF16 && k->call.out[0].dtype != KUMI_F16)
        return KU_ERR(KUMI_EINVAL, "device cpu: stochastic_round: result is %s; bf16 or f16",
                      kumi_dtype_name(k->call.out[0].dtype));
    k->count = ku_cpu_count(&k->call.out[0]);
    k->per_tile = KU_CPU_TILE_COUNT;
    ku_cpu_phase(k, tile_stochastic_round, ku_cpu_tiles(k->count, k->per_tile));
    return KUMI_OK;
}
