/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batch norm, down the columns of rows of channels: included once per instruction set behind
 * elem_body.h (isa_*.c). Columns are taken four vectors at a time, so that a row's part is four
 * cache lines and sums stay in registers; rows are few enough for sums in f32, which go into f64.
 */

enum { NORM_COLS = 4 /* vectors */ };
#define EACH_COL(v, n)                                                                             \
    UNROLL                                                                                         \
    for (int v = 0; v < (n); v++)

/* Runs `...` for each group of up to NORM_COLS vectors of columns [j, j + ..): V vectors, the last
 * of `some` lanes. V is a constant in each of the copies, of which the base has one: a vector is
 * four registers there. */
#define FOR_COLUMNS(width, call)                                                                   \
    do {                                                                                           \
        for (int64_t j = 0; j < (width);) {                                                        \
            int64_t left = (width)-j;                                                              \
            int64_t some = LANES;                                                                  \
            if (GEMM_BYTES > 16 && left >= 4 * LANES) {                                            \
                call(4);                                                                           \
                j += 4 * LANES;                                                                    \
            } else if (GEMM_BYTES > 16 && left >= 2 * LANES) {                                     \
                call(2);                                                                           \
                j += 2 * LANES;                                                                    \
            } else if (left >= LANES) {                                                            \
                call(1);                                                                           \
                j += LANES;                                                                        \
            } else {                                                                               \
                some = left;                                                                       \
                call(1);                                                                           \
                j += left;                                                                         \
            }                                                                                      \
        }                                                                                          \
    } while (0)
INLINE vf load_some(enum kumi_dtype t, const void *p, int64_t i, int64_t some)
{
    return some == LANES ? load(t, p, i) : load_n(t, p, i, some);
}
INLINE void store_some(enum kumi_dtype t, void *p, int64_t i, int64_t some, vf x)
{
    if (some == LANES)
        store(t, p, i, x);
    else
        store_n(t, p, i, some, x);
}
/* Of what its dtype holds already: nothing is rounded. */
INLINE void store_exact(enum kumi_dtype t, void *p, int64_t i, int64_t some, vf x)
{
    if (t == KUMI_BF16 && some == LANES)
        *(vh_mem *)((uint16_t *)p + i) = __builtin_convertvector((vu)x >> 16, vh);
    else
        store_some(t, p, i, some, x);
}
typedef float vf8 __attribute__((vector_size(32)));
typedef double vd8_mem __attribute__((vector_size(64), aligned(8), may_alias));
INLINE void add_wide(double *to, vf x, int64_t some)
{
    vf8 half[2];
    memcpy(half, &x, sizeof half);
    for (int64_t l = 0; some < LANES && l < some; l++)
        to[l] += (double)x[l];
    for (int h = 0; some == LANES && h < 2; h++)
        *(vd8_mem *)(to + 8 * h) += __builtin_convertvector(half[h], vd8);
}

/* Sums about one row, a sample of each column: squares of what remains do not cancel as squares of
 * the elements would. */
INLINE void norm_sums_as(int n_cols, double *sum, double *squares, const void *x, const void *about,
                         enum kumi_dtype t, int64_t n_rows, int64_t width, int64_t j, int64_t some)
{
    vf a[NORM_COLS], s[NORM_COLS], q[NORM_COLS];
    EACH_COL(v, n_cols)
    {
        a[v] = load_some(t, about, j + v * LANES, some);
        s[v] = q[v] = (vf){0};
    }
    for (int64_t r = 0; r < n_rows; r++)
        EACH_COL(v, n_cols)
        {
            vf d = load_some(t, x, r * width + j + v * LANES, some) - a[v];
            s[v] += d;
            q[v] += d * d;
        }
    EACH_COL(v, n_cols)
    {
        add_wide(sum + j + v * LANES, s[v], some);
        add_wide(squares + j + v * LANES, q[v], some);
    }
}
static void norm_sums(double *sum, double *squares, const void *x, const void *about,
                      enum kumi_dtype t, int64_t n_rows, int64_t width)
{
#define CALL_F32(n)  norm_sums_as(n, sum, squares, x, about, KUMI_F32, n_rows, width, j, some)
#define CALL_BF16(n) norm_sums_as(n, sum, squares, x, about, KUMI_BF16, n_rows, width, j, some)
    BY_DTYPE(t, FOR_COLUMNS(width, CALL_F32), FOR_COLUMNS(width, CALL_BF16));
#undef CALL_F32
#undef CALL_BF16
}

INLINE void norm_apply_as(int n_cols, const struct ku_norm *o, int64_t n_rows, int64_t j,
                          int64_t some, enum kumi_dtype t, int has_r, int act)
{
    vf mean[NORM_COLS], scale[NORM_COLS], bias[NORM_COLS];
    EACH_COL(v, n_cols)
    {
        mean[v] = load_some(KUMI_F32, o->mean, j + v * LANES, some);
        scale[v] = load_some(KUMI_F32, o->scale, j + v * LANES, some);
        bias[v] = load_some(KUMI_F32, o->bias, j + v * LANES, some);
    }
    const void *x = o->x, *residual = o->r;
    const int64_t width = o->width;
    void *out = o->out;
    for (int64_t r = 0; r < n_rows; r++)
        EACH_COL(v, n_cols)
        {
            int64_t i = r * width + j + v * LANES;
            vf z = (load_some(t, x, i, some) - mean[v]) * scale[v] + bias[v];
            if (has_r) /* rounded before and behind the sum, as two nodes would */
                z = rounded(t, rounded(t, z) + load_some(t, residual, i, some));
            z = act == KU_ACT_RELU ? act_f(KU_ACT_RELU, z) : z;
            if (has_r)
                store_exact(t, out, i, some, z);
            else
                store_some(t, out, i, some, z);
        }
}
INLINE void norm_apply_form(const struct ku_norm *o, int64_t n_rows, enum kumi_dtype t, int has_r,
                            int act)
{
#define CALL(n) norm_apply_as(n, o, n_rows, j, some, t, has_r, act)
    FOR_COLUMNS(o->width, CALL);
#undef CALL
}
INLINE void norm_apply_of(const struct ku_norm *o, int64_t n_rows, enum kumi_dtype t)
{
    if (o->r && o->act)
        norm_apply_form(o, n_rows, t, 1, KU_ACT_RELU);
    else if (o->r)
        norm_apply_form(o, n_rows, t, 1, KU_ACT_NONE);
    else if (o->act)
        norm_apply_form(o, n_rows, t, 0, KU_ACT_RELU);
    else
        norm_apply_form(o, n_rows, t, 0, KU_ACT_NONE);
}
static void norm_apply(const struct ku_norm *o, int64_t n_rows)
{
    BY_DTYPE(o->dtype, norm_apply_of(o, n_rows, KUMI_F32), norm_apply_of(o, n_rows, KUMI_BF16));
}

INLINE void norm_dsums_as(int n_cols, const struct ku_norm *o, double *sum, double *product,
                          int64_t n_rows, int64_t j, int64_t some, enum kumi_dtype t, int has_y)
{
    vf mean[NORM_COLS], rstd[NORM_COLS], s[NORM_COLS], q[NORM_COLS];
    EACH_COL(v, n_cols)
    {
        mean[v] = load_some(KUMI_F32, o->mean, j + v * LANES, some);
        rstd[v] = load_some(KUMI_F32, o->scale, j + v * LANES, some);
    }
    EACH_COL(v, n_cols) s[v] = q[v] = (vf){0};
    const void *x = o->x, *dy = o->dy, *y = o->y;
    const int64_t width = o->width;
    void *out = o->out;
    for (int64_t r = 0; r < n_rows; r++)
        EACH_COL(v, n_cols)
        {
            int64_t i = r * width + j + v * LANES;
            vf d = load_some(t, dy, i, some);
            if (has_y) {
                d *= act_slope(KU_ACT_RELU, load_some(t, y, i, some));
                if (out)
                    store_exact(t, out, i, some, d);
            }
            s[v] += d;
            q[v] += d * (load_some(t, x, i, some) - mean[v]);
        }
    EACH_COL(v, n_cols)
    {
        add_wide(sum + j + v * LANES, s[v], some);
        add_wide(product + j + v * LANES, q[v] * rstd[v], some);
    }
}
INLINE void norm_dsums_of(const struct ku_norm *o, double *sum, double *product, int64_t n_rows,
                          enum kumi_dtype t)
{
#define CALL(n)        norm_dsums_as(n, o, sum, product, n_rows, j, some, t, 0)
#define CALL_MASKED(n) norm_dsums_as(n, o, sum, product, n_rows, j, some, t, 1)
    if (o->y)
        FOR_COLUMNS(o->width, CALL_MASKED);
    else
        FOR_COLUMNS(o->width, CALL);
#undef CALL
#undef CALL_MASKED
}
static void norm_dsums(const struct ku_norm *o, double *sum, double *product, int64_t n_rows)
{
    BY_DTYPE(o->dtype, norm_dsums_of(o, sum, product, n_rows, KUMI_F32),
             norm_dsums_of(o, sum, product, n_rows, KUMI_BF16));
}

/* dx = scale dz - (x - mean) slope - bias */
INLINE void norm_dx_as(int n_cols, const struct ku_norm *o, int64_t n_rows, int64_t j, int64_t some,
                       enum kumi_dtype t)
{
    vf mean[NORM_COLS], scale[NORM_COLS], slope[NORM_COLS], bias[NORM_COLS];
    EACH_COL(v, n_cols)
    {
        mean[v] = load_some(KUMI_F32, o->mean, j + v * LANES, some);
        scale[v] = load_some(KUMI_F32, o->scale, j + v * LANES, some);
        slope[v] = load_some(KUMI_F32, o->slope, j + v * LANES, some);
        bias[v] = load_some(KUMI_F32, o->bias, j + v * LANES, some);
    }
    const void *x = o->x, *dy = o->dy;
    const int64_t width = o->width;
    void *out = o->out;
    for (int64_t r = 0; r < n_rows; r++)
        EACH_COL(v, n_cols)
        {
            int64_t i = r * width + j + v * LANES;
            vf d = load_some(t, x, i, some) - mean[v];
            vf z = load_some(t, dy, i, some) * scale[v] - bias[v];
            store_some(t, out, i, some, z - d * slope[v]);
        }
}
static void norm_dx(const struct ku_norm *o, int64_t n_rows)
{
#define CALL_F32(n)  norm_dx_as(n, o, n_rows, j, some, KUMI_F32)
#define CALL_BF16(n) norm_dx_as(n, o, n_rows, j, some, KUMI_BF16)
    BY_DTYPE(o->dtype, FOR_COLUMNS(o->width, CALL_F32), FOR_COLUMNS(o->width, CALL_BF16));
#undef CALL_F32
#undef CALL_BF16
}
