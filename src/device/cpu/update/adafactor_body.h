/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adafactor. Included once per instruction set after update_body.h (isa_*.c). Works on a run of
 * elements of one row, whose variances are by * var[i].
 */

typedef uint64_t words8 __attribute__((vector_size(64))); /* partial sums wrap modulo 2^64 */
typedef uint64_t words8_mem __attribute__((vector_size(64), aligned(8), may_alias));

/*
 * hi and lo of eight squares, each still containing the bits of its rounding constant; factor_sums
 * subtracts those of all squares at once. The square of an f32 and the remainder of the first
 * rounding are exact in f64, so a fused multiply-add changes no bit.
 */
INLINE void factor_words(vd8 x, const double round[2], words8 word[2])
{
    const vd8 one = x * x + round[0];
    const vd8 rest = x * x - (one - round[0]);
    word[0] = (words8)one;
    word[1] = (words8)(rest + round[1]);
}
INLINE uint64_t total_words(words8 v)
{
    uint64_t sum = 0;
    for (int l = 0; l < 8; l++)
        sum += v[l];
    return sum;
}
/* Eight columns of n rows: the sums of a column are read and written once for all rows. */
INLINE void factor_columns(const struct ku_factor_part *p, const vd8 *x, int n, int64_t i,
                           words8 sum[][2])
{
    words8_mem *col[2] = {(words8_mem *)(p->col[0] + i), (words8_mem *)(p->col[1] + i)};
    words8 all[2] = {*col[0], *col[1]};
    UNROLL
    for (int r = 0; r < n; r++) {
        words8 word[2];
        factor_words(x[r], p->round, word);
        sum[r][0] += word[0], sum[r][1] += word[1];
        all[0] += word[0], all[1] += word[1];
    }
    *col[0] = all[0], *col[1] = all[1];
}
INLINE void factor_rows(const struct ku_factor_part *p, int64_t row, int n)
{
    const float *x = p->x + row * p->step;
    const int64_t full = p->n_cols / 8 * 8, rest = p->n_cols - full;
    words8 sum[4][2] = {{{0}}};
    vd8 at[4];
    for (int64_t i = 0; i < full; i += 8) {
        UNROLL
        for (int r = 0; r < n; r++)
            at[r] = widen8(x + r * p->step + i);
        factor_columns(p, at, n, i, sum);
    }
    if (rest > 0) {
        for (int r = 0; r < n; r++) {
            float some[8] = {0};
            memcpy(some, x + r * p->step + full, (size_t)rest * sizeof *some);
            at[r] = widen8(some);
        }
        factor_columns(p, at, n, full, sum);
    }
    for (int r = 0; r < n; r++)
        for (int w = 0; w < 2; w++)
            p->row[w][row + r] = (int64_t)((uint64_t)p->row[w][row + r] + total_words(sum[r][w]));
}
static void factor_sums(const struct ku_factor_part *p)
{
    const uint64_t padded = (uint64_t)(p->n_cols + 7) / 8 * 8;
    int64_t row = 0;
    for (; row + 4 <= p->n_rows; row += 4)
        factor_rows(p, row, 4);
    for (; row < p->n_rows; row++)
        factor_rows(p, row, 1);
    for (int w = 0; w < 2; w++) {
        uint64_t bits;
        memcpy(&bits, &p->round[w], sizeof bits);
        for (int64_t i = 0; i < (int64_t)padded; i++)
            p->col[w][i] = (int64_t)((uint64_t)p->col[w][i] - bits * (uint64_t)p->n_rows);
        for (int64_t r = 0; r < p->n_rows; r++)
            p->row[w][r] = (int64_t)((uint64_t)p->row[w][r] - bits * padded);
    }
}

INLINE vf factored(const struct ku_factored *f, vf g, vf var)
{
    vf v = f->by * var, least = splat(f->least);
    return g * f->scale / sqrt_f(select_f(v > least, v, least));
}
static void factor_norms(const struct ku_factored *f, const float *p, const float *g,
                         const float *var, int64_t n, double sum[2])
{
    struct squares p2 = {0}, u2 = {0};
    FOR_VECTORS(n, {
        add_squares(&p2, LOAD(KUMI_F32, p));
        /* lanes after the end: 0 / sqrt(0) would be NaN if the square of eps is 0 in f32 */
        vf move = factored(f, LOAD(KUMI_F32, g), LOAD(KUMI_F32, var));
        add_squares(&u2, some == LANES ? move : select_f(first_lanes(some), move, (vf){0}));
    });
    sum[0] += total_squares(&p2);
    sum[1] += total_squares(&u2);
}
static void factor_apply(const struct ku_factored *f, float *p, const float *g, const float *var,
                         int64_t n)
{
    FOR_VECTORS(n, {
        vf move = f->rate * factored(f, LOAD(KUMI_F32, g), LOAD(KUMI_F32, var));
        STORE(KUMI_F32, p, LOAD(KUMI_F32, p) * f->keep - move);
    });
}
static void factor_move(float *var, const float *g, float scale, float w, int64_t n)
{
    FOR_VECTORS(n, {
        vf v = LOAD(KUMI_F32, var), x = LOAD(KUMI_F32, g) * scale;
        STORE(KUMI_F32, var, v + w * (x * x - v));
    });
}
