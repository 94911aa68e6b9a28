/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One pixel of pooling, all channels (isa.h). Included once per instruction set after elem_body.h.
 */

INLINE void store_places(uint16_t *p, int64_t i, int64_t n, vi place)
{
    vh h = __builtin_convertvector((vu)place, vh);
    memcpy(p + i, &h, (size_t)n * sizeof *p);
}
INLINE vi load_places(const uint16_t *p, int64_t i, int64_t n)
{
    vh h = {0};
    memcpy(&h, p + i, (size_t)n * sizeof *p);
    return (vi) __builtin_convertvector(h, vu);
}

INLINE void pool_max_as(const struct ku_pool_pixel *p, enum kumi_dtype t, uint16_t *place)
{
    FOR_VECTORS(p->c, {
        vf most = LOAD_AT(t, p->from, p->at[0] + i);
        vi best = p->number[0] + (vi){0};
        for (int64_t k = 1; k < p->n; k++) {
            vf x = LOAD_AT(t, p->from, p->at[k] + i);
            vi wins = (vi)(x > most) | (vi)(x != x);
            most = select_f(wins, x, most);
            best = (best & ~wins) | ((p->number[k] + (vi){0}) & wins);
        }
        STORE(t, p->to, most);
        store_places(place, i, some, best);
    });
}
KERNEL void pool_max(const struct ku_pool_pixel *p, enum kumi_dtype dtype, uint16_t *place)
{
    BY_DTYPE(dtype, pool_max_as(p, T, place));
}

INLINE void pool_pick_as(const struct ku_pool_pixel *p, enum kumi_dtype t, const uint16_t *place)
{
    FOR_VECTORS(p->c, {
        vf sum = {0};
        for (int64_t k = 0; k < p->n; k++) {
            vi mine = load_places(place + p->at[k], i, some) == p->number[k];
            vf x = LOAD_AT(t, p->from, p->at[k] + i);
            sum += select_f(mine, x, (vf){0});
        }
        STORE(t, p->to, sum);
    });
}
KERNEL void pool_pick(const struct ku_pool_pixel *p, enum kumi_dtype dtype, const uint16_t *place)
{
    BY_DTYPE(dtype, pool_pick_as(p, T, place));
}

INLINE void pool_mean_as(const struct ku_pool_pixel *p, enum kumi_dtype t)
{
    FOR_VECTORS(p->c, {
        vf sum = {0};
        for (int64_t k = 0; k < p->n; k++) {
            vf x = LOAD_AT(t, p->from, p->at[k] + i);
            sum += x / (float)p->number[k];
        }
        STORE(t, p->to, sum);
    });
}
KERNEL void pool_mean(const struct ku_pool_pixel *p, enum kumi_dtype dtype)
{
    BY_DTYPE(dtype, pool_mean_as(p, T));
}
