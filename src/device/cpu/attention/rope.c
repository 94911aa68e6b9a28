/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rotary position embedding (definition: device/ref/rope.c). A tile is some tokens with all their
 * heads, so that cosines and sines are computed once per token. Frequencies are computed once, with
 * operand lengths once per sample of a tile. Scratch of a thread:
 *
 *     | frequencies of a sample, f64 [d/2] | cosines [d/2] | sines [d/2] |
 */
#include "op/rope.h"

#include "base/err.h"
#include "base/mem.h"
#include "device/cpu/cpu.h"

static double position_of(const struct ku_kernel *k, int64_t token)
{
    const struct ku_view *x = &k->call.in[0], *p = &k->call.in[1];
    const int64_t sample = token / x->shape.dim[1].count;
    const int64_t t = x->start[1] + token % x->shape.dim[1].count;
    if (k->call.n_in < 2)
        return (double)t;
    if (p->shape.ndim == 1)
        return (double)((int64_t)((const int32_t *)p->data)[sample] + t);
    return (double)((const int32_t *)p->data)[token];
}

static void tile_rope(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *x = &k->call.in[0], *y = &k->call.out[0];
    const int64_t d = k->width, n_heads = k->n_slices;
    const float sign = k->call.op == KU_OP_rope ? 1 : -1;
    const int32_t *lengths = k->call.n_in > 2 ? k->call.in[2].data : NULL;
    double *own = (double *)(void *)ku_cpu_scratch(k, thread);
    const double *frequency = lengths ? own : k->table;
    float *cosine = (float *)(void *)(own + d / 2), *sine = cosine + d / 2;
    int64_t from, n, sample = -1;
    ku_cpu_range(k, tile, &from, &n);
    for (int64_t token = from; token < from + n; token++) {
        if (lengths && token / x->shape.dim[1].count != sample) {
            sample = token / x->shape.dim[1].count;
            ku_rope_frequencies(&k->attr, lengths[sample], d, own);
        }
        k->cpu->ops->rope_angles(cosine, sine, frequency, position_of(k, token), d / 2);
        const int64_t at = token * n_heads * d;
        k->cpu->ops->rope(ku_cpu_at(y, at), ku_cpu_at(x, at), x->dtype, cosine, sine, sign, d / 2,
                          n_heads);
    }
}

int ku_cpu_bind_rope(struct ku_kernel *k)
{
    const struct ku_view *x = &k->call.in[0];
    const struct ku_shape *s = &x->shape;
    KU_TRY(ku_cpu_check_all(k));
    KU_TRY(ku_cpu_check(k, "y", &k->call.out[0], x->dtype));
    k->width = s->dim[s->ndim - 1].count;
    k->n_slices = ku_cpu_extent(s, 2, s->ndim - 1); /* heads */
    k->count = s->dim[0].count * s->dim[1].count;
    if ((size_t)k->width * 2 * sizeof(float) > KU_CPU_SCRATCH_BYTES)
        return KU_ERR(KUMI_EINVAL, "device cpu: rope: head width %lld; at most %d",
                      (long long)k->width, (int)(KU_CPU_SCRATCH_BYTES / 2 / sizeof(float)));
    k->table = ku_malloc((size_t)(k->width / 2 + 1) * sizeof *k->table);
    if (k->table == NULL)
        return KUMI_ENOMEM;
    ku_rope_frequencies(&k->attr, k->attr.length, k->width, k->table);
    const int64_t each = k->width * k->n_slices;
    k->per_tile = each < KU_CPU_TILE_COUNT ? KU_CPU_TILE_COUNT / (each ? each : 1) : 1;
    ku_cpu_phase(k, tile_rope, ku_cpu_tiles(k->count, k->per_tile));
    return KUMI_OK;
}
int ku_cpu_bind_rope_dx(struct ku_kernel *k)
{
    return ku_cpu_bind_rope(k);
}
