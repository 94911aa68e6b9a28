/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packs and unpacks weights of convolutions (isa.h). Included once per instruction set after
 * pack_body.h.
 */

/* Up to sixteen elements of a row as 32-bit lanes: f32, or (pairs) the bits of bf16. */
INLINE vu load_lanes(const void *p, enum kumi_dtype t, int64_t at, int64_t n, int pairs)
{
    if (pairs)
        return n == LANES ? __builtin_convertvector(*(const vh_mem *)((const uint16_t *)p + at), vu)
                          : load_halves((const uint16_t *)p + at, n);
    return (vu)(n == LANES ? load(t, p, at) : load_n(t, p, at, n));
}
INLINE void store_lanes(uint32_t *to, int64_t n, vu v, int is_upper)
{
    if (n >= LANES) {
        if (is_upper)
            v = *(vu_mem *)to | v << 16;
        *(vu_mem *)to = v;
        return;
    }
    for (int64_t j = 0; j < n; j++)
        to[j] = is_upper ? to[j] | v[j] << 16 : v[j];
}

/* Columns are the outermost dim of the weight: transposes 16 columns of 16 elements at a time. */
INLINE void conv_pack_cols(const struct ku_conv_panel *p, enum kumi_dtype t, int pairs)
{
    const int64_t n_e = p->k * p->taps;
    for (int64_t j0 = 0; j0 < p->width; j0 += LANES)
        for (int64_t e = 0, k = 0, tap = 0; e < n_e; e += LANES) {
            const int64_t some = n_e - e < LANES ? n_e - e : LANES;
            vu v[LANES];
            for (int j = 0; j < LANES; j++)
                v[j] = j0 + j < p->n_cols
                           ? load_lanes(p->weight, t, (j0 + j) * p->col_ld + e, some, pairs)
                           : (vu){0};
            transpose_16(v);
            for (int u = 0; u < LANES && u < some; u++) {
                int64_t row = p->slot[tap] * p->row_units + (pairs ? k / 2 : k);
                store_lanes((uint32_t *)p->panel + row * p->width + j0, p->width - j0, v[u],
                            pairs && k % 2);
                if (++tap == p->taps)
                    tap = 0, k++;
            }
        }
}

/* Columns are adjacent to the taps in the weight: element by element. */
INLINE uint32_t lane_of(const void *w, enum kumi_dtype t, int64_t at, int pairs)
{
    uint32_t bits;
    if (pairs)
        return ((const uint16_t *)w)[at];
    if (t == KUMI_F16)
        return ((vu)load_n(t, w, at, 1))[0];
    if (t == KUMI_BF16)
        return (uint32_t)((const uint16_t *)w)[at] << 16;
    memcpy(&bits, (const float *)w + at, 4);
    return bits;
}
INLINE void conv_pack_rows(const struct ku_conv_panel *p, enum kumi_dtype t, int pairs)
{
    for (int64_t k = 0; k < p->k; k += pairs ? 2 : 1)
        for (int64_t tap = 0; tap < p->taps; tap++) {
            const int64_t row = p->slot[tap] * p->row_units + (pairs ? k / 2 : k);
            const int64_t at = k * p->k_ld + tap;
            uint32_t *to = (uint32_t *)p->panel + row * p->width;
            for (int64_t j = 0; j < p->n_cols; j++) {
                to[j] = lane_of(p->weight, t, at + j * p->col_ld, pairs);
                if (pairs && k + 1 < p->k)
                    to[j] |= lane_of(p->weight, t, at + p->k_ld + j * p->col_ld, 1) << 16;
            }
            for (int64_t j = p->n_cols; j < p->width; j++)
                to[j] = 0;
        }
}
KERNEL void conv_pack(const struct ku_conv_panel *p, enum kumi_dtype dtype, int pairs)
{
    const int64_t used = pairs ? (p->k + 1) / 2 : p->k;
    for (int64_t tap = 0; tap < p->taps && used < p->row_units; tap++)
        memset((uint32_t *)p->panel + (tap * p->row_units + used) * p->width, 0,
               (size_t)((p->row_units - used) * p->width) * 4);
    if (p->k_ld < p->col_ld) {
        if (pairs)
            conv_pack_cols(p, KUMI_BF16, 1);
        else
            BY_DTYPE(dtype, conv_pack_cols(p, T, 0));
    } else {
        if (pairs)
            conv_pack_rows(p, KUMI_BF16, 1);
        else
            BY_DTYPE(dtype, conv_pack_rows(p, T, 0));
    }
}

/* Sums [taps][k][ld], 16 columns at a time, to rows [column][k][tap] of the gradient. */
INLINE void conv_unpack_as(const struct ku_conv_sums *p, enum kumi_dtype t)
{
    const int64_t n_e = p->k * p->taps;
    for (int64_t j0 = 0; j0 < p->n_cols; j0 += LANES)
        for (int64_t e = 0, k = 0, tap = 0; e < n_e; e += LANES) {
            const int64_t i = e, some = n_e - e < LANES ? n_e - e : LANES;
            vu v[LANES];
            for (int u = 0; u < LANES; u++) {
                v[u] = (vu){0};
                if (u >= some)
                    continue;
                v[u] = (vu)load(KUMI_F32, p->sum, (tap * p->k_all + k) * p->ld + j0);
                if (++tap == p->taps)
                    tap = 0, k++;
            }
            transpose_16(v);
            for (int64_t j = 0; j < LANES && j0 + j < p->n_cols; j++) {
                char *out = (char *)p->out + (j0 + j) * p->out_ld * bytes_of(t);
                vf x = (vf)v[j];
                if (p->accumulate)
                    x += LOAD(t, out);
                STORE(t, out, x);
            }
        }
}
KERNEL void conv_unpack(const struct ku_conv_sums *p, enum kumi_dtype dtype)
{
    BY_DTYPE(dtype, conv_unpack_as(p, T));
}

/* Packs one pixel into one panel of its columns. */
INLINE void pack_part(uint32_t *to, const struct ku_conv_row *r, enum kumi_dtype t, int64_t at,
                      int64_t n_left, int pairs)
{
    if (r->width % LANES == 0) {
        for (int64_t j = 0; j < r->width; j += LANES) {
            const int64_t n = n_left - j < 0 ? 0 : n_left - j < LANES ? n_left - j : LANES;
            vu v = load_lanes(r->a, t, at + (n ? j : 0), n, pairs);
            if (pairs && r->b)
                v |= load_lanes(r->b, t, at + (n ? j : 0), n, 1) << 16;
            *(vu_mem *)(to + j) = v;
        }
        return;
    }
    const int64_t n = n_left < r->part ? n_left : r->part;
    if (pairs)
        pack_row_pairs(to, r->width, (const uint16_t *)r->a + at,
                       r->b ? (const uint16_t *)r->b + at : NULL, n);
    else
        pack_row_f32((float *)to, r->width, r->a, t, at, n);
}
INLINE void pack_split_as(const struct ku_conv_row *r, enum kumi_dtype t, int pairs)
{
    uint32_t *to = r->to;
    for (int64_t i = 0; i < r->n; i++, to += r->to_step)
        for (int64_t j = 0, p = 0; j < r->n_cols; j += r->part, p += r->stride)
            pack_part(to + p, r, t, i * r->from_step + j, r->n_cols - j, pairs);
}
KERNEL void pack_split(const struct ku_conv_row *r, enum kumi_dtype dtype, int pairs)
{
    if (pairs)
        pack_split_as(r, KUMI_BF16, 1);
    else
        BY_DTYPE(dtype, pack_split_as(r, T, 0));
}
