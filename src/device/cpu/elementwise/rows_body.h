/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows and reductions. Included once per instruction set after elem_body.h (isa_*.c).
 */

INLINE float row_sum(const void *x, enum kumi_dtype t, int64_t n)
{
    vf s = {0};
    FOR_VECTORS(n, s += LOAD(t, x));
    return sum_lanes(s);
}

/* Two passes: the mean, then squares of the differences; squares of x would cancel. */
INLINE void layer_norm_as(void *y, float *mean_out, float *rstd_out, const void *x,
                          enum kumi_dtype t, const void *gain, const void *bias, enum kumi_dtype tg,
                          int64_t n, double eps)
{
    float mean = (float)((double)row_sum(x, t, n) / (double)n);
    vf s = {0}, rest = {0};
    int64_t full = n / LANES * LANES;
    for (int64_t i = 0; i < full; i += LANES) {
        vf d = load(t, x, i) - mean;
        s += d * d;
        rest += d;
    }
    if (full < n) {
        vf d = select_f(first_lanes(n - full), load_n(t, x, full, n - full) - mean, (vf){0});
        s += d * d;
        rest += d;
    }
    /* delta: the rounding error of the mean, corrected in variance and result */
    double delta = (double)sum_lanes(rest) / (double)n;
    double var = (double)sum_lanes(s) / (double)n - delta * delta;
    double exact_mean = (double)mean + delta;
    float rstd = (float)(1.0 / sqrt((var > 0 ? var : 0 * var) + eps)), shift = (float)delta;
    *mean_out = (float)exact_mean;
    *rstd_out = rstd;
    FOR_VECTORS(
        n, STORE(t, y, ((LOAD(t, x) - mean) - shift) * rstd * LOAD(tg, gain) + LOAD(tg, bias)));
}
static void layer_norm(void *y, float *mean, float *rstd, const void *x, enum kumi_dtype t,
                       const void *gain, const void *bias, enum kumi_dtype tg, int64_t n,
                       double eps)
{
    BY_DTYPE_AS(TG, tg, BY_DTYPE(t, layer_norm_as(y, mean, rstd, x, T, gain, bias, TG, n, eps)));
}

/* dx = rstd (g - mean(g) - xhat mean(g xhat)), g = dy gain */
INLINE void layer_norm_dx_as(void *dx, const void *dy, const void *x, enum kumi_dtype t,
                             const void *gain, enum kumi_dtype tg, float mean, float rstd,
                             int64_t n)
{
    vf s = {0}, sx = {0};
    FOR_VECTORS(n, {
        vf g = LOAD(t, dy) * LOAD(tg, gain); /* zero after the end: those lanes add nothing */
        s += g;
        sx += g * ((LOAD(t, x) - mean) * rstd);
    });
    float mean_g = sum_lanes(s) / (float)n, mean_gx = sum_lanes(sx) / (float)n;
    FOR_VECTORS(n, {
        vf xhat = (LOAD(t, x) - mean) * rstd;
        STORE(t, dx, rstd * (LOAD(t, dy) * LOAD(tg, gain) - mean_g - xhat * mean_gx));
    });
}
static void layer_norm_dx(void *dx, const void *dy, const void *x, enum kumi_dtype t,
                          const void *gain, enum kumi_dtype tg, float mean, float rstd, int64_t n)
{
    BY_DTYPE_AS(TG, tg, BY_DTYPE(t, layer_norm_dx_as(dx, dy, x, T, gain, TG, mean, rstd, n)));
}

/* One pass: sums of squares do not cancel. */
INLINE void rms_norm_as(void *y, float *rstd_out, const void *x, enum kumi_dtype t,
                        const void *gain, enum kumi_dtype tg, int64_t n, double eps)
{
    vf s = {0};
    FOR_VECTORS(n, {
        vf v = LOAD(t, x);
        s += v * v;
    });
    float rstd = (float)(1.0 / sqrt((double)sum_lanes(s) / (double)n + eps));
    *rstd_out = rstd;
    FOR_VECTORS(n, STORE(t, y, LOAD(t, x) * rstd * LOAD(tg, gain)));
}
static void rms_norm(void *y, float *rstd, const void *x, enum kumi_dtype t, const void *gain,
                     enum kumi_dtype tg, int64_t n, double eps)
{
    BY_DTYPE_AS(TG, tg, BY_DTYPE(t, rms_norm_as(y, rstd, x, T, gain, TG, n, eps)));
}

/* dx = rstd (g - xhat mean(g xhat)), g = dy gain */
INLINE void rms_norm_dx_as(void *dx, const void *dy, const void *x, enum kumi_dtype t,
                           const void *gain, enum kumi_dtype tg, float rstd, int64_t n)
{
    vf s = {0};
    FOR_VECTORS(n, s += LOAD(t, dy) * LOAD(tg, gain) * (LOAD(t, x) * rstd));
    float mean_gx = sum_lanes(s) / (float)n;
    FOR_VECTORS(n,
                STORE(t, dx, rstd * (LOAD(t, dy) * LOAD(tg, gain) - LOAD(t, x) * rstd * mean_gx)));
}
static void rms_norm_dx(void *dx, const void *dy, const void *x, enum kumi_dtype t,
                        const void *gain, enum kumi_dtype tg, float rstd, int64_t n)
{
    BY_DTYPE_AS(TG, tg, BY_DTYPE(t, rms_norm_dx_as(dx, dy, x, T, gain, TG, rstd, n)));
}

/*
 * x log2 e - (high + low), for e^(x - y) as a power of two; product and difference are rounded
 * once. bf16 needs neither the remainder of log2 e (1.9e-8) nor that of y.
 */
INLINE vf log2_of(enum kumi_dtype t, vf x, float high, float low)
{
    vf d = x * 1.44269504f - high;
    if (t != KUMI_BF16)
        d = (x * 1.92596303e-8f + d) - low;
    return max_f(EXP2_ZERO, d); /* a NaN, the second operand, stays */
}
/*
 * log sum e^x in one read: chunks of 1,024 elements (they stay in L1), each with its own max,
 * combined in f64.
 */
INLINE float log_sum_exp_as(const void *x, enum kumi_dtype t, int64_t n)
{
    double total = 0;
    float top = -INFINITY;
    for (int64_t from = 0; from < n; from += 1024) {
        int64_t len = n - from < 1024 ? n - from : 1024;
        const char *p = (const char *)x + from * bytes_of(t);
        const int64_t full = len / LANES * LANES;
        vf m = splat(-INFINITY), s = {0};
        for (int64_t i = 0; i < full; i += LANES)
            m = max_f(m, load(t, p, i));
        vf rest =
            select_f(first_lanes(len - full), load_n(t, p, full, len - full), splat(-INFINITY));
        float peak = max_lanes(max_f(m, rest));
        float base = peak > -INFINITY && peak < INFINITY ? peak : 0;
        double base2 = (double)base * 1.44269504088896341;
        float high = (float)base2, low = (float)(base2 - (double)high);
        for (int64_t i = 0; i < full; i += LANES)
            s += exp2_f(log2_of(t, load(t, p, i), high, low));
        s += select_f(first_lanes(len - full), exp2_f(log2_of(t, rest, high, low)), (vf){0});
        double piece = (double)sum_lanes(s);
        if (peak > top) {
            total = total * exp((double)top - (double)peak) + piece;
            top = peak;
        } else if (piece != 0) { /* 0 times an overflow is NaN */
            total += top > -INFINITY ? piece * exp((double)base - (double)top) : piece;
        }
    }
    if (!(top > -INFINITY && top < INFINITY))
        return total != total ? NAN : top > 0 ? NAN : top;
    return (float)((double)top + log(total));
}
static float log_sum_exp(const void *x, enum kumi_dtype t, int64_t n)
{
    BY_DTYPE(t, return log_sum_exp_as(x, T, n));
}
INLINE float row_max_as(const void *x, enum kumi_dtype t, int64_t n)
{
    const int64_t full = n / LANES * LANES;
    vf m = splat(-INFINITY);
    for (int64_t i = 0; i < full; i += LANES)
        m = max_f(m, load(t, x, i));
    return max_lanes(
        max_f(m, select_f(first_lanes(n - full), load_n(t, x, full, n - full), splat(-INFINITY))));
}
static float row_max(const void *x, enum kumi_dtype t, int64_t n)
{
    BY_DTYPE(t, return row_max_as(x, T, n));
}
/* In chunks of 1,024 elements, which are added in f64. */
INLINE double exp_sum_as(const void *x, enum kumi_dtype t, float max, int64_t n)
{
    const double base = (double)max * 1.44269504088896341;
    const float high = (float)base, low = (float)(base - (double)high);
    double total = 0;
    for (int64_t from = 0; from < n; from += 1024) {
        const int64_t len = n - from < 1024 ? n - from : 1024, full = len / LANES * LANES;
        const char *p = (const char *)x + from * bytes_of(t);
        vf s = {0};
        for (int64_t i = 0; i < full; i += LANES)
            s += exp2_f(log2_of(t, load(t, p, i), high, low));
        s += select_f(first_lanes(len - full),
                      exp2_f(log2_of(t, load_n(t, p, full, len - full), high, low)), (vf){0});
        total += (double)sum_lanes(s);
    }
    return total;
}
static double exp_sum(const void *x, enum kumi_dtype t, float max, int64_t n)
{
    BY_DTYPE(t, return exp_sum_as(x, T, max, n));
}
INLINE void softmax_scaled_as(void *dst, const void *x, enum kumi_dtype t, float lse, float factor,
                              float minus, int64_t n)
{
    const double lse2 = (double)lse * 1.44269504088896341;
    const float high = (float)lse2, low = (float)(lse2 - (double)high);
    FOR_VECTORS(n, STORE(t, dst, exp2_f(log2_of(t, LOAD(t, x), high, low)) * factor - minus));
}
static void softmax_scaled(void *dst, const void *x, enum kumi_dtype t, float lse, float factor,
                           float minus, int64_t n)
{
    BY_DTYPE(t, softmax_scaled_as(dst, x, T, lse, factor, minus, n));
}
/* The sum in chunks of 1,024 elements, which are added in f64. */
static double sum(const void *x, enum kumi_dtype t, int64_t n)
{
    double total = 0;
    for (int64_t from = 0; from < n; from += 1024) {
        int64_t len = n - from < 1024 ? n - from : 1024;
        BY_DTYPE(t, total += (double)row_sum((const char *)x + from * bytes_of(T), T, len));
    }
    return total;
}
INLINE int64_t n_above_as(const void *x, enum kumi_dtype t, int64_t n, float than, int or_equal)
{
    const vf limit = splat(than);
    vi above = {0};
    FOR_VECTORS(n, {
        vf v = LOAD(t, x);
        vi is_above = or_equal ? v >= limit : v > limit;
        above -= is_above & first_lanes(some);
    });
    int64_t count = 0;
    for (int l = 0; l < LANES; l++)
        count += above[l];
    return count;
}
static int64_t n_above(const void *x, enum kumi_dtype t, int64_t n, float than, int or_equal)
{
    BY_DTYPE(t, return n_above_as(x, T, n, than, or_equal));
}

/* Explicit, because GCC 12 converts quarters of a vector and joins them. */
INLINE vd8 widen8(const float *x)
{
#ifdef __AVX512F__
    return (vd8)_mm512_cvtps_pd(_mm256_loadu_ps(x));
#else
    typedef float v8 __attribute__((vector_size(32)));
    v8 v;
    memcpy(&v, x, sizeof v);
    return __builtin_convertvector(v, vd8);
#endif
}

/*
 * Sums of squares: sixteen f64 lanes, added in a fixed tree. The square of an f32 is exact in f64,
 * so a fused multiply-add changes no bit.
 */
struct squares {
    vd8 low, high;
};
INLINE void add_squares(struct squares *s, vf v)
{
    float lane[LANES];
    memcpy(lane, &v, sizeof lane);
    vd8 da = widen8(lane), db = widen8(lane + 8);
    s->low += da * da;
    s->high += db * db;
}
INLINE double total_squares(const struct squares *sum)
{
    double s[LANES];
    memcpy(s, &sum->low, sizeof sum->low);
    memcpy(s + 8, &sum->high, sizeof sum->high);
    for (int width = 8; width >= 1; width /= 2)
        for (int l = 0; l < width; l++)
            s[l] = s[2 * l] + s[2 * l + 1];
    return s[0];
}
INLINE double sumsq_as(const void *x, enum kumi_dtype t, int64_t n, int64_t *n_bad)
{
    struct squares s = {0};
    vi bad = {0};
    FOR_VECTORS(n, {
        vf v = LOAD(t, x);
        add_squares(&s, v);
        bad -= ((vi)v & 0x7f800000) == 0x7f800000;
    });
    for (int l = 0; l < LANES; l++)
        *n_bad += bad[l];
    return total_squares(&s);
}
static double sumsq(const void *x, enum kumi_dtype t, int64_t n, int64_t *n_bad)
{
    BY_DTYPE(t, return sumsq_as(x, T, n, n_bad));
}
static double max_of(const void *x, enum kumi_dtype t, int64_t n)
{
    double m = (double)-INFINITY;
    for (int64_t i = 0; i < n; i++) {
        double v = 0;
        BY_DTYPE(t, v = (double)load_n(T, x, i, 1)[0]);
        m = v > m || v != v ? v : m;
    }
    return m;
}
