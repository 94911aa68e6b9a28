/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DEVICE_CPU_ISA_H
#define KU_DEVICE_CPU_ISA_H

#include <stdint.h>

#include "device/pool.h"
#include "kumi/dtype.h"

/*
 * The table of inner loops, one instance per instruction set: loops over contiguous elements or
 * over one row. dtypes are f32, bf16 or f16. Arithmetic is f32, and a result is rounded once.
 * Operands may be the same memory (in place) where a function reads and writes element by element;
 * otherwise they do not overlap.
 *
 *     ku_isa_base     SSE2 or any machine        4 rows x  8 columns of sums in registers
 *     ku_isa_avx2     AVX2 + FMA                 6 x 16
 *     ku_isa_avx512   AVX-512                   14 x 32
 *     ku_pairs_*      bf16 dot products         14 x 32
 *     ku_*_amx        Intel AMX                 32 x 32
 */
struct ku_dropout {
    uint64_t seed;
    uint32_t step, stream;
    uint32_t least;      /* p 2^24: an element is kept if its 24 random bits are at least this */
    float scale;         /* 1 / (1 - p) */
    uint64_t key[10][2]; /* round keys of Philox, derived from the seed */
};

/*
 * Optimizers over a range: PyTorch's formulas with the scalars of the step precomputed.
 */
struct ku_update {
    float *p, *m, *v;
    const void *g;
    enum kumi_dtype g_dtype, copy_dtype;
    void *copy;                         /* rounded new p, or NULL */
    float scale;                        /* of the gradient */
    float lr, beta1, add1, beta2, add2; /* add = 1 - beta, rounded from f64 */
    float eps, weight_decay, keep;      /* keep: factor of p: 1 - lr wd if decoupled, else 1 */
    float step_size;                    /* lr / (1 - beta1^t); lamb: 1 / (1 - beta1^t) */
    float rsqrt_bc2;                    /* 1 / sqrt(1 - beta2^t) */
    int l2;                             /* the gradient is g + wd p */
    int nesterov, first;
    float momentum, add, ratio; /* sgd: add = 1 - dampening, ratio = 1; lars: the trust ratio */
};

/* Adagrad, Lion and RMSProp: state in the order of the op, factors of one step. */
enum ku_rule_kind {
    KU_RULE_ADAGRAD,
    KU_RULE_LION,
    KU_RULE_RMSPROP,
    KU_RULE_RMSPROP_MOMENTUM,
    KU_RULE_RMSPROP_CENTERED,
    KU_RULE_RMSPROP_BOTH
};
struct ku_rule {
    enum ku_rule_kind kind;
    float *p, *s[3];
    const void *g;
    enum kumi_dtype g_dtype, copy_dtype;
    void *copy;                               /* rounded new p, or NULL */
    float scale, lr, weight_decay, keep, eps; /* keep: lion's factor of p, 1 - lr wd */
    float beta1, add1, beta2, add2;           /* beta2: rmsprop's alpha; add = 1 - beta, from f64 */
    float momentum;
};

/*
 * Squares of a part of a matrix (n_rows rows of n_cols elements, row stride `step`), added to the
 * two int64 of each column and each row (device/adafactor.h); hi and lo are separate arrays.
 * Columns have room up to a multiple of eight; n_cols <= KU_FACTOR_COLS, n_rows <= KU_FACTOR_ROWS.
 */
enum { KU_FACTOR_COLS = 1024, KU_FACTOR_ROWS = 128 };
struct ku_factor_part {
    const float *x;
    int64_t step, n_rows, n_cols;
    double round[2]; /* from ku_factor_rounds */
    int64_t *col[2], *row[2];
};
/* Adafactor on a run of one row: the variances are max(by * var[i], least). */
struct ku_factored {
    float scale, by, least; /* scale: of the gradient */
    float keep, rate;       /* p = keep p - rate update */
};

/* Destination of rows of finished sums; out and raw point to the first row. */
struct ku_finish {
    void *out, *raw;   /* raw: the rounded value before the activation; NULL = not needed */
    int64_t ld, n;     /* row stride of out and raw; elements of a row */
    const float *bias; /* [n], or NULL */
    enum kumi_dtype dtype;
    int act, accumulate;
    /* non-temporal stores, see ku_cpu_fence; only without bias, activation and accumulation */
    int stream;
};

/*
 * A product of matrices: C has up to mr rows of one group of a and nr columns of one panel of b.
 * Each element is one chain of fused multiply-adds over the contraction in ascending order, so its
 * bits depend on the length of the contraction alone. A unit is one f32, or two bf16 that are
 * adjacent in the contraction.
 *
 *   a     unit (i, k) of the group at a + i rs + k / step * step * cs + k % step. cs == 1: rows in
 *         place; rs == step, cs == mr: a packed group [n_units / step][mr][step]
 *   b     a packed panel: n_units rows of nr units; n_units is a multiple of step
 *   c     [rows][nr] f32, row stride ldc; the start value of the chain if `load`
 *   next  prefetched during the call: rows of n_units, next_bytes apart (a packed group counts as
 *         mr such rows in sequence); NULL: nothing
 */
struct ku_gemm_part {
    const void *a, *b;
    int64_t n_units;
};
struct ku_gemm_thin;
struct ku_gemm_micro {
    int mr, nr, step;
    /* The same over a contraction in several parts; one chain over all parts. */
    void (*run_parts)(int rows, const struct ku_gemm_part *part, int64_t n_parts, int64_t rs,
                      int64_t cs, float *c, int64_t ldc, int load, const void *next,
                      int64_t next_bytes);
    void (*run)(int rows, int64_t n_units, const void *a, int64_t rs, int64_t cs, const void *b,
                float *c, int64_t ldc, int load, const void *next, int64_t next_bytes);
    /* Ends a series of calls of the thread: matrix tiles are released. NULL: nothing to do. */
    void (*end)(void);
    void (*peak)(int64_t n_rounds, float *sink); /* register-only loop; sink: one vector */
    double peak_flops;                           /* of one round */
    /* [n_units][mr] -> [n_units / step][mr][step], in place; NULL where step is 1. */
    void (*regroup)(void *group, int64_t n_units);
    /* The same bits for few rows, faster up to thin_rows rows; NULL: not implemented. */
    void (*thin)(const struct ku_gemm_thin *t);
    int thin_rows;
    int is_thin_turned; /* thin turns a product of a weight by columns */
};
/*
 * sum[r][j] = x w for few rows; the weight is read once, in place: element (k, j) at k ld_w + j
 * (by_rows) or at j ld_w + k. Rows of x are zero from n_k to a multiple of the kernel's step; sum
 * has room up to a multiple of 64 columns, and ld_sum is such a multiple.
 *
 * In a turned product, x is [units][n_rows] and sum [columns][n_rows], with row strides ld_x and
 * ld_sum.
 */
struct ku_gemm_thin {
    const void *x, *w;
    int64_t ld_x;              /* row stride of x in units */
    int64_t ld_w, n_k, n_cols; /* elements */
    enum kumi_dtype dtype;
    int n_rows, by_rows;
    float *sum;
    int64_t ld_sum;
};

/*
 * One pixel of pooling, all c channels: `to` is computed from n pixels that start at elements at[k]
 * of `from`.
 */
struct ku_pool_pixel {
    void *to;
    const void *from;
    int64_t c, n;
    const int64_t *at;
    const int32_t *number; /* index in the window; means: the divisor of the pixel */
};

/*
 * A panel of convolution weights: unit row slot[tap] row_units + k, `width` columns. Element
 * (column, k, tap) is at column col_ld + k k_ld + tap; the rest of the panel is zero.
 */
struct ku_conv_panel {
    void *panel;
    const void *weight;
    int64_t width, n_cols, k, taps, row_units, col_ld, k_ld;
    const int32_t *slot;
};
/* Sums [taps][k_all][ld], whose first k rows and n_cols columns are written as [column][k][tap]. */
struct ku_conv_sums {
    void *out;
    const float *sum;
    int64_t out_ld, n_cols, k, k_all, taps, ld;
    int accumulate;
};
/*
 * Packs pixels of a or, for pairs, of a and b (NULL: zeros) interleaved: n_cols elements each, in
 * parts of `part` columns, to rows of `width` units of panels `stride` apart. A width that is a
 * multiple of 16 is written whole; its content after the part is unspecified.
 */
struct ku_conv_row {
    void *to;
    const void *a, *b;
    int64_t width, part, stride, n_cols;
    int64_t n, from_step, to_step; /* pixels; source elements and destination units per pixel */
};

/*
 * One tile of attention (attn_body.h). Forward: a tile of queries of one head of one sample.
 * Backward: one head of keys and the n_heads query heads that read it (GQA); consecutive query
 * heads are d elements apart in q, o, d_out and dq.
 */
struct ku_attn_tile {
    /*
     * Element (token, j): q, dq at token ld_q + j; k, v, dk, dv at token ld_k + j; o, d_out, out at
     * token ld_o + j.
     */
    const void *q, *k, *v, *o, *d_out;
    void *out, *dq, *dk, *dv;
    float *lse; /* [n_heads][t] */
    /* Backward workspace: per query head the transposed dq and the row sums delta. */
    float *sum;
    float *scratch; /* KU_CPU_SCRATCH_BYTES of this thread */
    enum kumi_dtype dtype;
    int64_t t, s, d, ld_q, ld_k, ld_o, q0; /* t queries, s keys in memory */
    int64_t n_seen;                        /* keys that count: min(s, length) */
    int64_t offset, n_heads;               /* query i has the position of key offset + i */
    const int32_t *segment; /* [s]: a query sees keys of its own segment number; or NULL */
    int causal;
    float scale;
    const struct ku_dropout *drop; /* NULL: none */
    uint64_t drop_first;           /* random index of (first head, query 0, key 0) */
    struct ku_pool *pool;
    int thread;
};
enum { KU_ATTN_MAX_WIDTH = 512 /* of a head: the tiles fit the thread's scratch */ };
/* Max queries and keys of one segment for attn_short_* (dot-product pairs only). */
enum { KU_ATTN_SHORT = 32 };
/* Floats of `sum` for one head. 32: the widest tile of queries of any instruction set. */
static inline int64_t ku_attn_sum_count(int64_t t, int64_t d)
{
    return (t + 31) / 32 * 32 * (d + 1);
}

/*
 * Batch norm over rows of columns: channels, or the channels of several rows side by side if there
 * are few. Per-column vectors (mean to slope, sum and product) are f32 in the order of
 * ku_norm_place, zero from width up to a multiple of KU_NORM_PAIR, and their NaNs have no payload.
 */
enum { KU_NORM_PAIR = 32 /* columns that a kernel takes at once */ };
struct ku_norm {
    enum kumi_dtype dtype;      /* of rows */
    int64_t n_rows, width;      /* width > 0 */
    const void *x, *dy, *y, *r; /* the first row; y and r may be NULL */
    void *out;
    const float *mean, *scale, *bias, *slope;
    float *sum, *product; /* added to */
    int act;              /* KU_ACT_NONE or KU_ACT_RELU */
    int is_streamed;      /* out is cache-line aligned and written with non-temporal stores */
};
/*
 * Index of column j in the per-column vectors. bf16: the even columns of a pair of vectors come
 * before the odd ones.
 */
static inline int64_t ku_norm_place(enum kumi_dtype dtype, int64_t j)
{
    const int64_t l = j % KU_NORM_PAIR;
    return dtype == KUMI_BF16 ? j - l + l % 2 * (KU_NORM_PAIR / 2) + l / 2 : j;
}

struct ku_isa_ops {
    void (*cast)(void *dst, enum kumi_dtype to, const void *src, enum kumi_dtype from, int64_t n);
    void (*add)(void *dst, const void *a, const void *b, enum kumi_dtype dtype, int64_t n);
    void (*mul)(void *dst, const void *a, const void *b, enum kumi_dtype dtype, int64_t n);
    void (*scale)(void *dst, const void *x, float by, enum kumi_dtype dtype, int64_t n);
    /* limited to [-limit, limit]; a NaN stays */
    void (*clamp)(void *dst, const void *x, float limit, enum kumi_dtype dtype, int64_t n);
    void (*act)(void *dst, const void *x, int act, enum kumi_dtype dtype, int64_t n);
    void (*act_dx)(void *dx, const void *dy, const void *x, int act, enum kumi_dtype dtype,
                   int64_t n);
    /* dst = act(gate) up, and its gradients */
    void (*glu)(void *dst, const void *gate, const void *up, int act, enum kumi_dtype dtype,
                int64_t n);
    void (*glu_dx)(void *dgate, void *dup, const void *dy, const void *gate, const void *up,
                   int act, enum kumi_dtype dtype, int64_t n);
    /* cosine and sine of position angle[i], reduced and evaluated in f64 */
    void (*rope_angles)(float *cosine, float *sine, const double *angle, double position,
                        int64_t n);
    /* rotates rows of two halves of n elements; sign -1: the inverse */
    void (*rope)(void *y, const void *x, enum kumi_dtype dtype, const float *cosine,
                 const float *sine, float sign, int64_t n, int64_t n_rows);
    /* dst = x scale where kept, else 0; first = global index of element 0 */
    void (*dropout)(void *dst, const void *x, enum kumi_dtype dtype, int64_t n,
                    const struct ku_dropout *d, uint64_t first);
    /* dst = x in a 16-bit dtype, with the random bits of elements `first` .. (tensor/dtype.h) */
    void (*stochastic_round)(void *dst, enum kumi_dtype dtype, const float *x, int64_t n,
                             const struct ku_dropout *d, uint64_t first);
    void (*sum_into)(float *sum, const void *x, enum kumi_dtype dtype, int64_t n); /* sum += x */
    void (*prod_into)(float *sum, const void *a, const void *b, enum kumi_dtype dtype, float shift,
                      float factor, int64_t n); /* sum += a (b - shift) factor */
    /* dst = round(sum), or round(dst + sum) */
    void (*finish)(void *dst, enum kumi_dtype dtype, const float *sum, int accumulate, int64_t n);
    /* rows of a matrix product: out = act(round(sum + bias)), or round(out + sum) */
    void (*finish_rows)(const struct ku_finish *f, int64_t n_rows, const float *sum,
                        int64_t ld_sum);
    /*
     * The transpose, without bias and activation: the f->n columns of the sums (readable up to a
     * multiple of 16) become rows.
     */
    void (*finish_cols)(const struct ku_finish *f, int64_t n_rows, const float *sum,
                        int64_t ld_sum);
    void (*layer_norm)(void *y, float *mean, float *rstd, const void *x, enum kumi_dtype dtype,
                       const void *gain, const void *bias, enum kumi_dtype gain_dtype, int64_t n,
                       double eps);
    void (*layer_norm_dx)(void *dx, const void *dy, const void *x, enum kumi_dtype dtype,
                          const void *gain, enum kumi_dtype gain_dtype, float mean, float rstd,
                          int64_t n);
    void (*rms_norm)(void *y, float *rstd, const void *x, enum kumi_dtype dtype, const void *gain,
                     enum kumi_dtype gain_dtype, int64_t n, double eps);
    void (*rms_norm_dx)(void *dx, const void *dy, const void *x, enum kumi_dtype dtype,
                        const void *gain, enum kumi_dtype gain_dtype, float rstd, int64_t n);
    /* sum += x - mean, product += (x - mean)^2 */
    void (*norm_sums)(const struct ku_norm *o);
    /* out = act(z), z = (x - mean) scale + bias, or act(round(round(z) + r)) */
    void (*norm_apply)(const struct ku_norm *o);
    /* sum += dz, product += dz (x - mean); with y: dz = dy where y > 0, also written to out */
    void (*norm_dsums)(const struct ku_norm *o);
    /* out = scale dy - bias - (x - mean) slope */
    void (*norm_dx)(const struct ku_norm *o);
    /* to += from, from = 0; n is a multiple of 8 */
    void (*norm_widen)(double *to, float *from, int64_t n);
    float (*log_sum_exp)(const void *x, enum kumi_dtype dtype, int64_t n);
    float (*row_max)(const void *x, enum kumi_dtype dtype, int64_t n); /* n = 0: -inf */
    /* sum of e^(x - max) */
    double (*exp_sum)(const void *x, enum kumi_dtype dtype, float max, int64_t n);
    /* dst = factor e^(x - lse) - minus, n elements */
    void (*softmax_scaled)(void *dst, const void *x, enum kumi_dtype dtype, float lse, float factor,
                           float minus, int64_t n);
    double (*sum)(const void *x, enum kumi_dtype dtype, int64_t n);
    /* number of elements greater than (or_equal: not less than) `than`; a NaN never counts */
    int64_t (*n_above)(const void *x, enum kumi_dtype dtype, int64_t n, float than, int or_equal);
    /* sixteen interleaved f64 sums of squares, added in a fixed tree; counts non-finite elements */
    double (*sumsq)(const void *x, enum kumi_dtype dtype, int64_t n, int64_t *n_bad);
    double (*max)(const void *x, enum kumi_dtype dtype, int64_t n);
    void (*adam)(const struct ku_update *u, int64_t from, int64_t n);
    void (*sgd)(const struct ku_update *u, int64_t from, int64_t n); /* and lars */
    /* New m and v; sum: squares of p and of the update, of at most one canonical chunk. */
    void (*lamb_moments)(const struct ku_update *u, int64_t from, int64_t n, double sum[2]);
    void (*lamb)(const struct ku_update *u, int64_t from, int64_t n); /* p -= lr update */
    void (*update_rule)(const struct ku_rule *u, int64_t from, int64_t n);
    void (*ema)(float *average, const float *p, float add, int64_t n); /* += add (p - average) */
    /* sum += squares of p and of the update */
    void (*factor_sums)(const struct ku_factor_part *part);
    void (*factor_norms)(const struct ku_factored *f, const float *p, const float *g,
                         const float *var, int64_t n, double sum[2]);
    void (*factor_apply)(const struct ku_factored *f, float *p, const float *g, const float *var,
                         int64_t n);
    /* var += w ((g scale)^2 - var) */
    void (*factor_move)(float *var, const float *g, float scale, float w, int64_t n);
    /*
     * Packs one panel [units][width] of a product's operand: element (k, j) of the source is at k
     * ld + j (rows) or at j ld + k (cols). Columns from n_cols to width and the second half of an
     * odd last pair become zero. pairs: a unit is two bf16; else one f32.
     */
    void (*pack_rows)(void *panel, int64_t width, const void *src, enum kumi_dtype dtype,
                      int64_t ld, int64_t n_k, int64_t n_cols, int pairs);
    void (*pack_cols)(void *panel, int64_t width, const void *src, enum kumi_dtype dtype,
                      int64_t ld, int64_t n_k, int64_t n_cols, int pairs);
    void (*pool_max)(const struct ku_pool_pixel *p, enum kumi_dtype dtype, uint16_t *place);
    /* pool_pick adds the pixels whose index `place` names; pool_mean adds from / number. */
    void (*pool_pick)(const struct ku_pool_pixel *p, enum kumi_dtype dtype, const uint16_t *place);
    void (*pool_mean)(const struct ku_pool_pixel *p, enum kumi_dtype dtype);
    void (*conv_pack)(const struct ku_conv_panel *p, enum kumi_dtype dtype, int pairs);
    void (*conv_unpack)(const struct ku_conv_sums *p, enum kumi_dtype dtype);
    void (*pack_split)(const struct ku_conv_row *r, enum kumi_dtype dtype, int pairs);
    struct ku_gemm_micro gemm; /* of f32 units */
    void (*attn_forward)(const struct ku_attn_tile *t);
    void (*attn_backward)(const struct ku_attn_tile *t);
    /* one query, n_heads heads, keys [0, n_seen) of one head; no dropout, no segments */
    void (*attn_decode)(const struct ku_attn_tile *t);
};
/* Attention of bf16, d even. */
struct ku_attn_bf16 {
    int64_t queries; /* of a forward call, from t->q0 on */
    void (*forward)(const struct ku_attn_tile *t);
    void (*backward)(const struct ku_attn_tile *t);
};
/* Additional loops for dot-product pairs of bf16. */
struct ku_isa_pairs {
    struct ku_gemm_micro gemm;
    struct ku_attn_bf16 attn;
    void (*attn_short_forward)(
        const struct ku_attn_tile *t); /* t, s <= KU_ATTN_SHORT, no segments */
    void (*attn_short_backward)(const struct ku_attn_tile *t);
};
extern const struct ku_isa_ops ku_isa_base, ku_isa_avx2, ku_isa_avx512;
#if defined(__x86_64__)
extern const struct ku_isa_pairs ku_pairs_avx512bf16;
extern const struct ku_gemm_micro ku_gemm_amx;
extern const struct ku_attn_bf16 ku_attn_amx;
extern const struct ku_gemm_micro ku_slim_avx512, ku_slim_avx512bf16; /* one vector wide */
#endif

#endif
