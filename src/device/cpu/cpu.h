/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_DEVICE_CPU_CPU_H
#define KU_DEVICE_CPU_CPU_H

#include "base/err.h"
#include "device/cpu/isa.h"
#include "device/cpu/tiling.h"
#include "device/device.h"
#include "device/pool.h"
#include "op/attention.h"
#include "op/slices.h"
#include "op/window.h"

/*
 * The cpu device. A kernel has up to KU_CPU_MAX_PHASES phases; a phase is a set of independent
 * tiles, and a phase starts when the previous one has finished:
 *
 *     bind    one function per op checks dtypes, computes sizes and lists the phases
 *     launch  for each phase: the thread pool runs tile 0 .. n_tiles - 1
 *     tile    calls the inner loops of the instruction set (isa.h) on one row or run of elements
 *
 * The shapes of the op alone decide how an element is computed, and each tile writes its own bytes
 * (or adds integers atomically), so results do not depend on the number of threads.
 *
 *     cpu/<family>/NAME.c    bind functions and tiles
 *     cpu/<family>/NAME_body.h inner loops, compiled once per instruction set by isa/isa_NAME.c
 */
enum {
    KU_CPU_MAX_PHASES = 3,
    /*
     * Scratch of one thread, reused by all kernels: tiles of matrix products (256 + 840 + 130 KiB)
     * and of attention (1.4 MiB at a head width of 512; on matrix tiles, backward fills the rest
     * with packed queries).
     */
    KU_CPU_SCRATCH_BYTES = 2 << 20,
    /*
     * Elements of an elementwise tile: 64 KiB of f32, about 10 us. A multiple of KU_BLOCK_COUNT.
     * No function of the caches: an element is touched once, and workspaces have a part per tile.
     */
    KU_CPU_TILE_COUNT = 16384
};

struct ku_cpu {
    struct ku_pool *pool;
    enum ku_isa isa;
    struct ku_caches caches; /* that tiles fit */
    const struct ku_isa_ops *ops;
    const struct ku_isa_pairs *pairs;      /* bf16 dot products; NULL: bf16 is widened to f32 */
    const struct ku_gemm_micro *gemm_bf16; /* of pairs, or AMX */
    const struct ku_attn_bf16 *attn_bf16;  /* likewise; NULL: by ops */
    const struct ku_gemm_micro *slim_f32, *slim_bf16; /* half as wide; NULL: none */
    unsigned char *scratch;                           /* n_threads * KU_CPU_SCRATCH_BYTES */
};

/* Sets the instruction set and its tables of loops; the CPU must have the set. */
void ku_cpu_select(struct ku_cpu *cpu, enum ku_isa isa);

struct ku_kernel;
typedef void ku_cpu_tile_fn(const struct ku_kernel *k, int64_t tile, int thread);

/*
 * out[m, n] = a b, read without copying: element (i, k) of a at i a_row + k a_col, of b likewise.
 * One of the two strides is 1.
 */
struct ku_cpu_product {
    int64_t m, n, k;
    const void *a, *b;
    int64_t a_row, a_col, b_row, b_col;
    enum kumi_dtype dtype, bias_dtype;
    const void *bias;
    int64_t n_row_tiles, n_units;
    struct ku_product_tiling tiling;
    struct ku_slices slices;          /* of the contraction; n 0: one chain */
    const struct ku_gemm_micro *slim; /* takes the place of the dtype's kernel; or NULL */
    int is_transposed;                /* out is [n, m]; weight gradients only */
};

/*
 * One spatial axis of a convolution. Destination d reads source position d stride - pad + tap
 * dilation. With is_back (from results to inputs) it reads (d + pad - tap dilation) / stride where
 * that is an integer.
 */
struct ku_cpu_axis {
    int64_t src, dst, taps, stride, pad, dilation;
    int is_back;
};
struct ku_cpu_conv {
    struct ku_cpu_axis h, w;
    int64_t n, src_c, dst_c, groups; /* channels of all groups */
    int64_t k, cols;                 /* per group: channels contracted, channels of the result */
    int is_patched;                  /* a pixel of scratch holds its whole window (im2col) */
    int is_lined;                    /* weight gradients: rows of a product are runs along a line */
    int64_t tap_units, units;        /* of one tap; of one pixel in scratch */
    int64_t total_units, n_panels;   /* of the contraction; panels per group */
    int64_t rows, tile_h, tile_w;    /* images, lines and columns of a tile */
    int64_t n_row_tiles, n_h_tiles, n_w_tiles, n_col_parts;
    int64_t chunk_units;                /* slide.c: units of the contraction at a time */
    int64_t n_slices, slice_n, chunk_n; /* weight gradients: images per slice, per pass */
    /* weight gradients: input channels per tile, tiles per group, output channels per tile */
    int64_t block_c, n_blocks, tile_f;
};

struct ku_kernel {
    struct ku_cpu *cpu;
    struct ku_call call;
    struct ku_attrs attr;
    int n_phases;
    struct {
        ku_cpu_tile_fn *fn;
        int64_t n_tiles;
    } phase[KU_CPU_MAX_PHASES];
    int64_t count;                 /* elements, or rows */
    int64_t width;                 /* of a row */
    int64_t per_tile;              /* elements or rows */
    int64_t n_slices;              /* fixed slices of a reduction */
    struct ku_cpu_product product; /* linear */
    struct ku_attention attention;
    double *table;           /* rope: frequencies; owned, or NULL */
    struct ku_window window; /* convolution, pooling */
    struct ku_cpu_conv conv;
};

/*
 * Sums of one canonical chunk in the workspace of layer-wise optimizers: squares of the parameter,
 * and of its gradient or update.
 */
struct ku_cpu_trust {
    double sum[2];
};
/* Adds the sums of all chunks to the tensor's two exact sums. */
void ku_cpu_add_trust(const struct ku_kernel *k, int64_t *trust);

/*
 * One bind function per op (KU_OP in ops.def); a missing kernel is a link error. It checks dtypes
 * and fills sizes and phases. Errors: KUMI_EINVAL.
 */
#define KU_OP(name, ...) int ku_cpu_bind_##name(struct ku_kernel *k);
#include "op/ops.def"
#undef KU_OP

/* linear and linear_dx of few rows, with k->product filled in: linear_thin.c. */
bool ku_cpu_is_thin(const struct ku_kernel *k);
void ku_cpu_bind_thin(struct ku_kernel *k);

/* One workspace function per family, and the two kinds of conv. */
#define KU_OP(name, min_in, max_in, min_out, max_out, traits, map, sum, inout, alias, grad, infer, \
              cost, operands, workspace)                                                           \
    ku_workspace_fn ku_cpu_workspace_##workspace;
#include "op/ops.def"
#undef KU_OP
ku_workspace_fn ku_cpu_workspace_conv_panels; /* slide.c and line.c */
ku_workspace_fn ku_cpu_workspace_conv_slices; /* weight_gradient.c */

/* ku_device_ops.add_squares */
void ku_cpu_add_squares(void *dev, const struct ku_view *x, int64_t *stats, int64_t word);

void ku_cpu_phase(struct ku_kernel *k, ku_cpu_tile_fn *fn, int64_t n_tiles);
/* Elements [*from, *from + *n) of tile `tile`, with per_tile elements of `count` in each tile. */
void ku_cpu_range(const struct ku_kernel *k, int64_t tile, int64_t *from, int64_t *n);
static inline float *ku_cpu_scratch(const struct ku_kernel *k, int thread)
{
    return (float *)(void *)(k->cpu->scratch + (size_t)thread * KU_CPU_SCRATCH_BYTES);
}
static inline int64_t ku_cpu_tiles(int64_t count, int64_t per_tile)
{
    return (count + per_tile - 1) / per_tile;
}
static inline int64_t ku_cpu_count(const struct ku_view *v)
{
    return ku_shape_count(&v->shape);
}
/*
 * The flat index in the logical tensor of local element `at`. *n: the number of elements from there
 * on that are contiguous in both.
 */
int64_t ku_cpu_global(const struct ku_view *v, int64_t at, int64_t *n);
/* Product of dims [from, to). */
int64_t ku_cpu_extent(const struct ku_shape *s, int from, int to);
static inline void *ku_cpu_at(const struct ku_view *v, int64_t i)
{
    size_t bytes = v->dtype == KUMI_F32                            ? 4
                   : v->dtype == KUMI_BF16 || v->dtype == KUMI_F16 ? 2
                                                                   : kumi_dtype_bytes(v->dtype);
    return (char *)v->data + (size_t)i * bytes;
}
static inline bool ku_cpu_is_float(const struct ku_view *v)
{
    return v->dtype == KUMI_F32 || v->dtype == KUMI_BF16 || v->dtype == KUMI_F16;
}
/* The tile of a product, or of a convolution by conv/slide.c: "rows x columns x units"; else "". */
void ku_cpu_print_tiling(const struct ku_kernel *k, char *out, size_t bytes);
/* Orders non-temporal stores before the stores that publish them. */
static inline void ku_cpu_fence(void)
{
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#endif
}
/*
 * Kernel and units of a matrix product. n_k elements of the contraction become units (f32, f16
 * widened to f32, or two bf16), rounded up to the kernel's step; the rest is zero.
 */
static inline bool ku_cpu_has_pairs(const struct ku_kernel *k)
{
    return k->product.dtype == KUMI_BF16 && k->cpu->gemm_bf16 != NULL;
}
static inline const struct ku_gemm_micro *ku_cpu_micro(const struct ku_kernel *k)
{
    if (k->product.slim)
        return k->product.slim;
    return ku_cpu_has_pairs(k) ? k->cpu->gemm_bf16 : &k->cpu->ops->gemm;
}
static inline int64_t ku_cpu_units(const struct ku_kernel *k, int64_t n_k)
{
    const int step = ku_cpu_micro(k)->step;
    int64_t n = ku_cpu_has_pairs(k) ? (n_k + 1) / 2 : n_k;
    return (n + step - 1) / step * step;
}
KU_STATUS ku_cpu_bind_product(struct ku_kernel *k); /* fills the phases from k->product */
/*
 * n_x pixels of line y of the zero-padded source, from column x on (x may be negative): the
 * channels of a group from c on.
 */
struct ku_cpu_line {
    int64_t n, y, x, n_x, c;
};
void ku_cpu_pad_line(const struct ku_kernel *k, struct ku_cpu_line line, char *to);
/* Up to this many channels do not fill the rows of a product; a window's run along a line does. */
enum { KU_CPU_FEW_CHANNELS = 8 };
/*
 * Algorithms of convolution; k->conv is filled in part. They return 0 if they cannot run this
 * kernel.
 */
int ku_cpu_bind_line(struct ku_kernel *k);
int ku_cpu_bind_slide(struct ku_kernel *k);
int ku_cpu_bind_conv_dw(struct ku_kernel *k);
/* f32, bf16 or f16, else KUMI_EINVAL with op, operand and remedy. */
KU_STATUS ku_cpu_check_float(const struct ku_kernel *k, const char *what, const struct ku_view *v);
KU_STATUS ku_cpu_check(const struct ku_kernel *k, const char *what, const struct ku_view *v,
                       enum kumi_dtype dtype);
/* The same for all float operands of the call. */
KU_STATUS ku_cpu_check_all(const struct ku_kernel *k);
/* The op's dropout, from the control input (last input); read at launch. */
struct ku_dropout ku_cpu_dropout(const struct ku_kernel *k);

#endif
