/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ops on one element at a time, and copies of rows: add, mul, scale, act, glu, cast, dropout, fill,
 * random_normal, embedding, add_rows, sinusoid, select, expand, derive.
 */
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "base/math/random.h"
#include "device/cpu/cpu.h"
#include "tensor/dtype.h"

static int bind_flat(struct ku_kernel *k, ku_cpu_tile_fn *fn)
{
    KU_TRY(ku_cpu_check_all(k));
    k->count = ku_cpu_count(&k->call.out[0]);
    k->per_tile = KU_CPU_TILE_COUNT;
    ku_cpu_phase(k, fn, ku_cpu_tiles(k->count, k->per_tile));
    return KUMI_OK;
}

/*
 * Checks that operands and results have the dtype of the output. Inference ensures it; a hand-made
 * call may not.
 */
static int check_equal(const struct ku_kernel *k, int n_in)
{
    for (int i = 0; i < n_in; i++)
        KU_TRY(ku_cpu_check(k, "operand", &k->call.in[i], k->call.out[0].dtype));
    for (int i = 1; i < k->call.n_out; i++)
        KU_TRY(ku_cpu_check(k, "result", &k->call.out[i], k->call.out[0].dtype));
    return KUMI_OK;
}

/*
 * Tile and bind function of an op whose kernel takes pointers, attributes, dtype and count.
 * X(i), Y(i): input and output i at the first element of the tile.
 */
#define X(i) ku_cpu_at(&k->call.in[i], from)
#define Y(i) ku_cpu_at(&k->call.out[i], from)
#define EACH(name, n_in, ...)                                                                      \
    static void tile_##name(const struct ku_kernel *k, int64_t tile, int thread)                   \
    {                                                                                              \
        int64_t from, n;                                                                           \
        (void)thread;                                                                              \
        ku_cpu_range(k, tile, &from, &n);                                                          \
        k->cpu->ops->name(__VA_ARGS__, k->call.out[0].dtype, n);                                   \
    }                                                                                              \
    int ku_cpu_bind_##name(struct ku_kernel *k)                                                    \
    {                                                                                              \
        KU_TRY(bind_flat(k, tile_##name));                                                         \
        return check_equal(k, n_in);                                                               \
    }
EACH(add, 2, Y(0), X(0), X(1))
EACH(mul, 2, Y(0), X(0), X(1))
EACH(scale, 1, Y(0), X(0), (float)k->attr.value)
EACH(act, 1, Y(0), X(0), (int)k->attr.act)
EACH(act_dx, 2, Y(0), X(0), X(1), (int)k->attr.act)
EACH(glu, 2, Y(0), X(0), X(1), (int)k->attr.act)
EACH(glu_dx, 3, Y(0), Y(1), X(0), X(1), X(2), (int)k->attr.act)
#undef EACH
#undef Y
#undef X

/*
 * cast, rename, derive and widen. Dtypes that this device does not compute with go through
 * ku_convert.
 */
static void tile_cast(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *x = &k->call.in[0], *y = &k->call.out[0];
    int64_t from, n;
    (void)thread;
    ku_cpu_range(k, tile, &from, &n);
    if (ku_cpu_is_float(x) && ku_cpu_is_float(y))
        k->cpu->ops->cast(ku_cpu_at(y, from), y->dtype, ku_cpu_at(x, from), x->dtype, n);
    else
        ku_convert(ku_cpu_at(y, from), y->dtype, ku_cpu_at(x, from), x->dtype, n);
}
int ku_cpu_bind_cast(struct ku_kernel *k)
{
    k->count = ku_cpu_count(&k->call.out[0]);
    k->per_tile = KU_CPU_TILE_COUNT;
    ku_cpu_phase(k, tile_cast, ku_cpu_tiles(k->count, k->per_tile));
    return KUMI_OK;
}
int ku_cpu_bind_rename(struct ku_kernel *k)
{
    return ku_cpu_bind_cast(k);
}
int ku_cpu_bind_derive(struct ku_kernel *k)
{
    return ku_cpu_bind_cast(k);
}

/*
 * A local shard is a sequence of runs: elements that are contiguous in the logical tensor too. A
 * run spans all trailing dims that are whole, and the partitioned dim before them. A flat (Z)
 * operand is one run.
 */
struct runs {
    int64_t length; /* of a run */
    int n_outer;    /* dims before the run */
};
static struct runs runs_of(const struct ku_view *v)
{
    struct runs r = {1, v->shape.ndim};
    while (r.n_outer > 0) {
        int d = --r.n_outer;
        r.length *= v->shape.dim[d].count;
        if (v->shape.dim[d].count != v->logical[d])
            break;
    }
    return r;
}
/* Global flat index of the first element of run `i`, for a tensor of the extents `whole`. */
static int64_t run_start(const struct ku_view *v, const struct runs *r, int64_t i,
                         const int64_t *whole)
{
    int64_t index = 0, at[KU_MAX_DIMS] = {0};
    for (int d = r->n_outer - 1; d >= 0; d--) {
        at[d] = i % v->shape.dim[d].count;
        i /= v->shape.dim[d].count;
    }
    for (int d = 0; d < v->shape.ndim; d++)
        index = index * whole[d] + v->start[d] + at[d];
    return index;
}

int64_t ku_cpu_global(const struct ku_view *v, int64_t at, int64_t *n)
{
    struct runs r = runs_of(v);
    if (v->of.run) {
        *n = v->of.run - (v->start[0] + at) % v->of.run;
        return ku_runs_at(&v->of, v->start[0] + at);
    }
    *n = r.length - at % r.length;
    return run_start(v, &r, at / r.length, v->logical) + at % r.length;
}

static void tile_dropout(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *x = &k->call.in[0], *y = &k->call.out[0];
    struct ku_dropout d = ku_cpu_dropout(k);
    int64_t from, n;
    (void)thread;
    ku_cpu_range(k, tile, &from, &n);
    while (n > 0) {
        int64_t some, first = ku_cpu_global(y, from, &some);
        some = some < n ? some : n;
        k->cpu->ops->dropout(ku_cpu_at(y, from), ku_cpu_at(x, from), y->dtype, some, &d,
                             (uint64_t)first);
        from += some, n -= some;
    }
}
int ku_cpu_bind_dropout(struct ku_kernel *k)
{
    if (!(k->attr.p >= 0 && k->attr.p < 1))
        return KU_ERR(KUMI_EINVAL, "device cpu: dropout: p=%g; give 0 <= p < 1", k->attr.p);
    KU_TRY(bind_flat(k, tile_dropout));
    return check_equal(k, 1);
}

static bool is_padding(const struct ku_view *v, int64_t i)
{
    for (int d = v->shape.ndim - 1; d >= 0; i /= v->shape.dim[d--].count)
        if (i % v->shape.dim[d].count >= v->shape.dim[d].seen)
            return 1;
    return 0;
}
static void tile_fill(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *y = &k->call.out[0];
    const int padded = ku_shape_seen(&y->shape) != ku_shape_count(&y->shape);
    int64_t from, n;
    (void)thread;
    ku_cpu_range(k, tile, &from, &n);
    if (k->attr.value == 0 && !signbit(k->attr.value)) { /* padding is zero too */
        memset(ku_cpu_at(y, from), 0, (size_t)n * kumi_dtype_bytes(y->dtype));
        return;
    }
    for (int64_t i = from; i < from + n; i++)
        ku_store_f64(y->data, y->dtype, i, padded && is_padding(y, i) ? 0 : k->attr.value);
}
int ku_cpu_bind_fill(struct ku_kernel *k)
{
    k->count = ku_cpu_count(&k->call.out[0]);
    k->per_tile = KU_CPU_TILE_COUNT;
    ku_cpu_phase(k, tile_fill, ku_cpu_tiles(k->count, k->per_tile));
    return KUMI_OK;
}

/* mean + std z, z of elements [first, first + n) of the op's stream. */
static void draw(const struct ku_kernel *k, const struct ku_normals *of, int64_t first, int64_t n,
                 float *out)
{
    if (k->call.op == KU_OP_random_normal) {
        ku_random_normals(of, (uint64_t)first, n, out);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        uint32_t word = ku_random_u32(of->seed, of->step, of->stream, (uint64_t)(first + i));
        out[i] = (float)(of->mean + of->std * (double)(ku_random_uniform(word) * 2 - 1));
    }
}

/*
 * Elements of a view up to every multiple of this number have consecutive logical indices: the dims
 * that are whole and without padding, and the one before them.
 */
static int64_t n_consecutive(const struct ku_view *y)
{
    const int last = y->shape.ndim - 1;
    int64_t n = 1;
    for (int d = last; d >= 0; d--) {
        const struct ku_dim *dim = &y->shape.dim[d];
        const int is_padded = dim->seen != dim->count;
        if (is_padded && d < last)
            break;
        n *= dim->count;
        if (is_padded || dim->count != y->logical[d])
            break;
    }
    return n;
}

/*
 * Indices count extents without padding, so padding changes no value; padding itself is zero.
 */
static void tile_random(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *y = &k->call.out[0];
    const int64_t *control = k->call.in[1].data;
    const double unit = k->call.op == KU_OP_random_uniform ? sqrt(3.0) : 1;
    const struct ku_normals of = {.seed = (uint64_t)control[KU_CONTROL_SEED],
                                  .stream = k->call.stream,
                                  .mean = k->attr.value,
                                  .std = k->attr.std * unit};
    const struct ku_normals plain = {.seed = of.seed, .stream = of.stream, .std = 1};
    const int last = y->shape.ndim - 1;
    const int64_t whole = n_consecutive(y), width = last < 0 ? 1 : y->shape.dim[last].count;
    const int64_t seen = last < 0 ? 1 : y->shape.dim[last].seen;
    int64_t from, n;
    (void)thread;
    ku_cpu_range(k, tile, &from, &n);
    for (int64_t i = from; i < from + n;) {
        enum { MOST = 256 };
        float z[MOST];
        int64_t run = whole - i % whole, rest = i, index = 0, extent = 1;
        if (y->of.run)
            run = y->of.run - (y->start[0] + i) % y->of.run;
        run = run < from + n - i ? run : from + n - i;
        for (int d = last; d >= 0; rest /= y->shape.dim[d--].count) {
            const struct ku_dim *dim = &y->shape.dim[d];
            index += (y->start[d] + rest % dim->count) * extent;
            extent *= dim->count == y->logical[d] ? dim->seen : y->logical[d];
        }
        index = ku_runs_at(&y->of, index);
        const int64_t valid = is_padding(y, i) ? 0 : seen < width ? seen - i % width : run;
        if (y->dtype == KUMI_F32 && valid >= run) {
            draw(k, &of, index, run, ku_cpu_at(y, i));
            i += run;
            continue;
        }
        run = run < MOST ? run : MOST;
        draw(k, &plain, index, run, z);
        for (int64_t r = 0; r < run; r++, i++)
            ku_store_f64(y->data, y->dtype, i, r < valid ? of.mean + of.std * (double)z[r] : 0);
    }
}
int ku_cpu_bind_random_normal(struct ku_kernel *k)
{
    k->count = ku_cpu_count(&k->call.out[0]);
    k->per_tile = KU_CPU_TILE_COUNT; /* 2 to 9 ns per element */
    ku_cpu_phase(k, tile_random, ku_cpu_tiles(k->count, k->per_tile));
    return KUMI_OK;
}
int ku_cpu_bind_random_uniform(struct ku_kernel *k)
{
    return ku_cpu_bind_random_normal(k);
}

/* Rows of `width` elements, about KU_CPU_TILE_COUNT elements per tile. */
static int bind_rows(struct ku_kernel *k, ku_cpu_tile_fn *fn, int64_t n_rows, int64_t width)
{
    k->count = n_rows;
    k->width = width;
    k->per_tile = width < KU_CPU_TILE_COUNT ? KU_CPU_TILE_COUNT / (width ? width : 1) : 1;
    ku_cpu_phase(k, fn, width ? ku_cpu_tiles(n_rows, k->per_tile) : 0);
    return KUMI_OK;
}

/*
 * y = 0 + table[id]. A shard of the table without the row gives zeros: its part of the sum over
 * ranks.
 */
static void tile_embedding(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *table = &k->call.in[0], *y = &k->call.out[0];
    const int32_t *ids = k->call.in[1].data;
    int64_t from, n, n_rows = table->shape.dim[0].count;
    (void)thread;
    ku_cpu_range(k, tile, &from, &n);
    for (int64_t i = from; i < from + n; i++) {
        int64_t row = ids[i] - table->start[0];
        void *to = ku_cpu_at(y, i * k->width);
        memset(to, 0, (size_t)k->width * kumi_dtype_bytes(y->dtype));
        if (row >= 0 &&
            row < n_rows) /* adding to zero turns -0.0 into +0.0, as the sum over shards does */
            k->cpu->ops->add(to, to, ku_cpu_at(table, row * k->width), y->dtype, k->width);
    }
}
int ku_cpu_bind_embedding(struct ku_kernel *k)
{
    const struct ku_view *table = &k->call.in[0];
    KU_TRY(ku_cpu_check_all(k));
    KU_TRY(ku_cpu_check(k, "table", table, k->call.out[0].dtype));
    KU_TRY(ku_cpu_check(k, "ids", &k->call.in[1], KUMI_I32));
    return bind_rows(k, tile_embedding, ku_cpu_count(&k->call.in[1]),
                     ku_cpu_extent(&table->shape, 1, table->shape.ndim));
}

/*
 * dw[v] = sum of dy over the tokens with id v, ascending. tile_lists builds one linked list of
 * tokens per row (`first`, then `next`), from the last token to the first, so that it reads in
 * ascending order. Then rows are independent, and each is written once. Rows without a token are
 * zero (unchanged when accumulating).
 */
static void tile_lists(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *dw = &k->call.out[0];
    const int32_t *ids = k->call.in[0].data;
    int64_t n_rows = dw->shape.dim[0].count, n_ids = ku_cpu_count(&k->call.in[0]);
    int32_t *first = k->call.workspace, *next = first + n_rows;
    (void)tile, (void)thread;
    memset(first, 0xff, (size_t)n_rows * sizeof *first);
    for (int64_t i = n_ids - 1; i >= 0; i--) {
        int64_t row = ids[i] - dw->start[0];
        if (row < 0 || row >= n_rows)
            continue;
        next[i] = first[row];
        first[row] = (int32_t)i;
    }
}
/*
 * The rows of a table's gradient that no token has, most of it. In a table larger than the caches,
 * non-temporal stores do not read the lines first.
 */
static void clear_row(const struct ku_kernel *k, void *row, const float *zeros)
{
    const struct ku_view *dw = &k->call.out[0];
    const struct ku_finish f = {
        .out = row, .ld = k->width, .n = k->width, .dtype = dw->dtype, .stream = 1};
    if (zeros)
        k->cpu->ops->finish_rows(&f, 1, zeros, k->width);
    else
        memset(row, 0, (size_t)k->width * kumi_dtype_bytes(dw->dtype));
}
static void tile_embedding_dw(const struct ku_kernel *k, int64_t tile, int thread)
{
    enum { MOST = KU_CPU_SCRATCH_BYTES / 2 / sizeof(float) }; /* columns at a time */
    const struct ku_view *dy = &k->call.in[1], *dw = &k->call.out[0];
    const int32_t *first = k->call.workspace, *next = first + dw->shape.dim[0].count;
    float *sum = ku_cpu_scratch(k, thread), *zeros = NULL;
    const int64_t bytes = ku_cpu_count(dw) * (int64_t)kumi_dtype_bytes(dw->dtype);
    if (k->width <= MOST && bytes > ku_stream_bytes(&k->cpu->caches))
        zeros = memset(sum + MOST, 0, (size_t)k->width * sizeof *sum);
    int64_t from, n;
    ku_cpu_range(k, tile, &from, &n);
    for (int64_t row = from; row < from + n; row++) {
        if (first[row] < 0) {
            if (!k->call.accumulate)
                clear_row(k, ku_cpu_at(dw, row * k->width), zeros);
            continue;
        }
        for (int64_t j = 0; j < k->width; j += MOST) {
            int64_t some = k->width - j < MOST ? k->width - j : MOST;
            memset(sum, 0, (size_t)some * sizeof *sum);
            int n_added = 0;
            for (int32_t i = first[row]; i >= 0; i = next[i]) {
                k->cpu->ops->sum_into(sum, ku_cpu_at(dy, i * k->width + j), dy->dtype, some);
                if (++n_added % 32 == 0)
                    ku_pool_poll(k->cpu->pool, thread);
            }
            k->cpu->ops->finish(ku_cpu_at(dw, row * k->width + j), dw->dtype, sum,
                                k->call.accumulate, some);
        }
    }
    if (zeros)
        ku_cpu_fence();
}
size_t ku_cpu_workspace_lists(const struct ku_op_case *c)
{
    return (size_t)(c->out[0].shape.dim[0].count + ku_shape_count(&c->in[0].shape)) *
           sizeof(int32_t);
}
int ku_cpu_bind_embedding_dw(struct ku_kernel *k)
{
    const struct ku_view *dw = &k->call.out[0];
    KU_TRY(ku_cpu_check_all(k));
    KU_TRY(ku_cpu_check(k, "ids", &k->call.in[0], KUMI_I32));
    if (ku_cpu_count(&k->call.in[0]) > INT32_MAX)
        return KU_ERR(KUMI_EINVAL, "device cpu: embedding_dw: %lld tokens; at most 2^31 - 1",
                      (long long)ku_cpu_count(&k->call.in[0]));
    ku_cpu_phase(k, tile_lists, 1);
    return bind_rows(k, tile_embedding_dw, dw->shape.dim[0].count,
                     ku_cpu_extent(&dw->shape, 1, dw->shape.ndim));
}

/* x[.., t, c..] + table[start + t]: a row is one position of one sample. */
static void tile_add_rows(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *x = &k->call.in[0], *table = &k->call.in[1], *y = &k->call.out[0];
    int lead = x->shape.ndim - table->shape.ndim;
    int64_t from, n, n_t = x->shape.dim[lead].count;
    (void)thread;
    ku_cpu_range(k, tile, &from, &n);
    for (int64_t i = from; i < from + n; i++) {
        int64_t row = x->start[lead] + i % n_t - table->start[0];
        k->cpu->ops->add(ku_cpu_at(y, i * k->width), ku_cpu_at(x, i * k->width),
                         ku_cpu_at(table, row * k->width), y->dtype, k->width);
    }
}
int ku_cpu_bind_add_rows(struct ku_kernel *k)
{
    const struct ku_view *x = &k->call.in[0], *table = &k->call.in[1];
    int lead = x->shape.ndim - table->shape.ndim;
    KU_TRY(ku_cpu_check_all(k));
    KU_TRY(check_equal(k, 2));
    int64_t first = x->start[lead] - table->start[0], n_t = x->shape.dim[lead].count;
    if (first < 0 || first + n_t > table->shape.dim[0].count)
        return KU_ERR(KUMI_EINVAL,
                      "device cpu: add_rows: positions %lld to %lld are not in this part of the "
                      "table; do not split the table",
                      (long long)x->start[lead], (long long)(x->start[lead] + n_t));
    return bind_rows(k, tile_add_rows, ku_cpu_extent(&x->shape, 0, lead + 1),
                     ku_cpu_extent(&x->shape, lead + 1, x->shape.ndim));
}

/*
 * A row is a position. Angles are f64 because they grow with the position.
 */
static void tile_sinusoid(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *y = &k->call.out[0];
    int64_t from, n;
    (void)thread;
    ku_cpu_range(k, tile, &from, &n);
    for (int64_t c = 0; c < k->width; c++) {
        int64_t j = y->start[1] + c;
        double w = pow(10000, -(double)(j / 2 * 2) / (double)k->attr.d_model);
        for (int64_t i = from; i < from + n; i++) {
            double angle = (double)(y->start[0] + i) * w;
            ku_store_f64(y->data, y->dtype, i * k->width + c, j % 2 ? cos(angle) : sin(angle));
        }
    }
}
int ku_cpu_bind_sinusoid(struct ku_kernel *k)
{
    const struct ku_view *y = &k->call.out[0];
    KU_TRY(ku_cpu_check_all(k));
    return bind_rows(k, tile_sinusoid, y->shape.dim[0].count, y->shape.dim[1].count);
}

/* dtable[p] = sum over samples of dy[.., p, ..], ascending; rows without a position are zero. */
static void tile_add_rows_dw(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *dy = &k->call.in[0], *dw = &k->call.out[0];
    int lead = dy->shape.ndim - (int)k->attr.outs - 1;
    int64_t n_samples = ku_cpu_extent(&dy->shape, 0, lead), n_t = dy->shape.dim[lead].count;
    float *sum = ku_cpu_scratch(k, thread);
    const int64_t most = KU_CPU_SCRATCH_BYTES / (int64_t)sizeof *sum;
    int64_t from, n;
    ku_cpu_range(k, tile, &from, &n);
    for (int64_t row = from; row < from + n; row++) {
        int64_t t = row + dw->start[0] - dy->start[lead];
        int hit = t >= 0 && t < n_t;
        if (!hit && k->call.accumulate)
            continue;
        for (int64_t j = 0; j < k->width; j += most) {
            int64_t some = k->width - j < most ? k->width - j : most;
            memset(sum, 0, (size_t)some * sizeof *sum);
            for (int64_t s = 0; hit && s < n_samples; s++) {
                k->cpu->ops->sum_into(sum, ku_cpu_at(dy, (s * n_t + t) * k->width + j), dy->dtype,
                                      some);
                if ((s + 1) % 32 == 0)
                    ku_pool_poll(k->cpu->pool, thread);
            }
            k->cpu->ops->finish(ku_cpu_at(dw, row * k->width + j), dw->dtype, sum,
                                k->call.accumulate, some);
        }
    }
}
int ku_cpu_bind_add_rows_dw(struct ku_kernel *k)
{
    const struct ku_view *dw = &k->call.out[0];
    KU_TRY(ku_cpu_check_all(k));
    return bind_rows(k, tile_add_rows_dw, dw->shape.dim[0].count,
                     ku_cpu_extent(&dw->shape, 1, dw->shape.ndim));
}

/* y[n] = x[n, index[n]] */
static void tile_select(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *x = &k->call.in[0], *y = &k->call.out[0];
    const int32_t *index = k->call.in[1].data;
    int64_t from, n, n_t = x->shape.dim[1].count;
    (void)thread;
    ku_cpu_range(k, tile, &from, &n);
    for (int64_t i = from; i < from + n; i++) {
        int64_t t = index[i] - x->start[1];
        void *to = ku_cpu_at(y, i * k->width);
        size_t bytes = (size_t)k->width * kumi_dtype_bytes(y->dtype);
        if (t >= 0 && t < n_t)
            memcpy(to, ku_cpu_at(x, (i * n_t + t) * k->width), bytes);
        else
            memset(to, 0, bytes);
    }
}
int ku_cpu_bind_select(struct ku_kernel *k)
{
    const struct ku_view *x = &k->call.in[0];
    KU_TRY(ku_cpu_check(k, "x", x, k->call.out[0].dtype));
    KU_TRY(ku_cpu_check(k, "index", &k->call.in[1], KUMI_I32));
    return bind_rows(k, tile_select, x->shape.dim[0].count,
                     ku_cpu_extent(&x->shape, 2, x->shape.ndim));
}

/* y[..] = x, a scalar */
static void tile_expand(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_view *y = &k->call.out[0];
    int64_t from, n;
    (void)thread;
    ku_cpu_range(k, tile, &from, &n);
    double value = ku_load_f64(k->call.in[0].data, k->call.in[0].dtype, 0);
    for (int64_t i = 0; i < n; i++)
        ku_store_f64(y->data, y->dtype, from + i, value);
}
int ku_cpu_bind_expand(struct ku_kernel *k)
{
    k->count = ku_cpu_count(&k->call.out[0]);
    k->per_tile = KU_CPU_TILE_COUNT;
    ku_cpu_phase(k, tile_expand, ku_cpu_tiles(k->count, k->per_tile));
    return KUMI_OK;
}
