/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rotary position embedding. Included once per instruction set after elem_body.h (isa_*.c).
 */

INLINE vd8 round_d(vd8 x)
{
    const double magic = 0x1.8p52; /* adding it rounds to an integer, |x| < 2^51 */
#if defined(__AVX512F__)
    (void)magic;
    return (vd8)_mm512_roundscale_pd((__m512d)x, 0);
#else
    vd8 shifted = x + magic;
    return shifted - magic;
#endif
}
typedef int64_t vl8 __attribute__((vector_size(64)));

/*
 * Sine and cosine of x = n pi/2 + r with |r| <= pi/4. pi/2 is split into two parts of 33 bits and a
 * rest, so that n times each of the first two is exact for n below 2^20, and r is good to 1e-15 n
 * far beyond. Polynomials of FreeBSD's msun (below 1 ulp). The quadrant swaps the results and sets
 * the signs.
 */
INLINE void sine_cosine(vd8 x, vd8 *sine, vd8 *cosine)
{
    vd8 n = round_d(x * 0.63661977236758134308);
    vd8 r = x - n * 1.57079632673412561417e+00;
    r = r - n * 6.07710050630396597660e-11;
    r = r - n * 2.02226624879595063154e-21;
    vd8 z = r * r;
    vd8 s = z * 1.58969099521155010221e-10 - 2.50507602534068634195e-08;
    s = z * s + 2.75573137070700676789e-06;
    s = z * s - 1.98412698298579493134e-04;
    s = z * s + 8.33333333332248946124e-03;
    s = z * s - 1.66666666666666324348e-01;
    s = r + r * z * s;
    vd8 c = z * -1.13596475577881948265e-11 + 2.08757232129817482790e-09;
    c = z * c - 2.75573143513906633035e-07;
    c = z * c + 2.48015872894767294178e-05;
    c = z * c - 1.38888888888741095749e-03;
    c = z * c + 4.16666666666666019037e-02;
    c = 1.0 - (0.5 * z - z * z * c);
    vl8 quarter = __builtin_convertvector(n, vl8);
    vl8 odd = -(quarter & 1), s_sign = (quarter & 2) << 62, c_sign = ((quarter + 1) & 2) << 62;
    *sine = (vd8)((((vl8)c & odd) | ((vl8)s & ~odd)) ^ s_sign);
    *cosine = (vd8)((((vl8)s & odd) | ((vl8)c & ~odd)) ^ c_sign);
}

static void rope_angles(float *cosine, float *sine, const double *angle, double position, int64_t n)
{
    typedef float v8 __attribute__((vector_size(32)));
    for (int64_t i = 0; i < n; i += 8) {
        const size_t some = (size_t)(n - i < 8 ? n - i : 8);
        vd8 x = {0}, s, c;
        memcpy(&x, angle + i, some * sizeof *angle);
        sine_cosine(x * position, &s, &c);
        v8 to_s = __builtin_convertvector(s, v8), to_c = __builtin_convertvector(c, v8);
        memcpy(sine + i, &to_s, some * sizeof *sine);
        memcpy(cosine + i, &to_c, some * sizeof *cosine);
    }
}

INLINE void rope_as(void *y, const void *x, enum kumi_dtype t, const float *cosine,
                    const float *sine, float sign, int64_t n, int64_t n_rows)
{
    const size_t half = (size_t)(n * bytes_of(t));
    for (int64_t r = 0; r < n_rows; r++) {
        const char *x1 = (const char *)x + (size_t)r * 2 * half, *x2 = x1 + half;
        char *y1 = (char *)y + (size_t)r * 2 * half, *y2 = y1 + half;
        FOR_VECTORS(n, {
            vf a = LOAD(t, x1), b = LOAD(t, x2), c = LOAD(KUMI_F32, cosine);
            vf s = LOAD(KUMI_F32, sine) * sign;
            STORE(t, y1, a * c - b * s);
            STORE(t, y2, b * c + a * s);
        });
    }
}
static void rope(void *y, const void *x, enum kumi_dtype t, const float *cosine, const float *sine,
                 float sign, int64_t n, int64_t n_rows)
{
    BY_DTYPE(t, rope_as(y, x, T, cosine, sine, sign, n, n_rows));
}
