/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adafactor: sums of squares by row and column (factor_sums), their means, the norms of parameter
 * and update, and the update. device/adafactor.h describes the integer sums. Gradients of 16 bits
 * are widened to f32 in the thread's scratch, at most a tile at a time.
 */
#include "device/adafactor.h"

#include "base/err.h"
#include "device/cpu/cpu.h"

enum { BLOCKS_PER_TILE = KU_CPU_TILE_COUNT / KU_BLOCK_COUNT };
_Static_assert(sizeof(float) * KU_FACTOR_ROWS * KU_FACTOR_COLS <= KU_CPU_SCRATCH_BYTES &&
                   sizeof(float) * KU_CPU_TILE_COUNT <= KU_CPU_SCRATCH_BYTES,
               "the gradient of a tile fits the thread's scratch");

/*
 * A tile: a part of a matrix. It sums into local arrays and adds them to the shared sums at the
 * end, atomically. The sums are integers, so order and thread change no bit.
 */
struct part {
    int64_t matrix, row, col, n_rows, n_cols;
};
static int64_t n_parts(int64_t n, int64_t most)
{
    return (n + most - 1) / most;
}
static int64_t least_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static struct part part_of(const struct ku_attrs *a, int64_t tile)
{
    const int64_t strips = n_parts(a->cols, KU_FACTOR_COLS),
                  bands = n_parts(a->rows, KU_FACTOR_ROWS), band = tile / strips % bands,
                  strip = tile % strips;
    return (struct part){.matrix = tile / strips / bands,
                         .row = band * KU_FACTOR_ROWS,
                         .col = strip * KU_FACTOR_COLS,
                         .n_rows = least_of(KU_FACTOR_ROWS, a->rows - band * KU_FACTOR_ROWS),
                         .n_cols = least_of(KU_FACTOR_COLS, a->cols - strip * KU_FACTOR_COLS)};
}

static void add_words(int64_t *to, int64_t *const from[2], int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        for (int w = 0; w < 2; w++)
            if (from[w][i] != 0)
                __atomic_fetch_add(&to[2 * i + w], from[w][i], __ATOMIC_RELAXED);
}

/* Elements [from, from + n) of the gradient as f32: in place, or in the thread's scratch. */
static const float *read_gradient(const struct ku_kernel *k, const struct ku_view *g, int64_t from,
                                  int64_t n, int thread)
{
    float *wide = ku_cpu_scratch(k, thread);
    if (g->dtype == KUMI_F32)
        return (const float *)g->data + from;
    k->cpu->ops->cast(wide, KUMI_F32, ku_cpu_at(g, from), g->dtype, n);
    return wide;
}

/* Adds the squares of a part whose first row begins at element `from` of the gradient. */
static void add_part(const struct ku_kernel *k, struct ku_factor_part part, int64_t from,
                     int thread)
{
    const struct ku_view *g = &k->call.in[0];
    float *wide = ku_cpu_scratch(k, thread);
    if (g->dtype == KUMI_F32) {
        part.x = (const float *)g->data + from;
    } else {
        for (int64_t r = 0; r < part.n_rows; r++)
            k->cpu->ops->cast(wide + r * part.n_cols, KUMI_F32, ku_cpu_at(g, from + r * part.step),
                              g->dtype, part.n_cols);
        part.x = wide, part.step = part.n_cols;
    }
    k->cpu->ops->factor_sums(&part);
}

/* Adds the squares of elements [from, last) of the tensor, which are in one row of a tile: of a
 * slice, run by run. */
static void add_row(const struct ku_kernel *k, const struct ku_factor_place *place,
                    struct ku_factor_part part, int64_t from, int64_t last, int thread)
{
    const int64_t begin = place->first, end = begin + k->count, start = from;
    const struct ku_runs of = place->of;
    int64_t *const col[2] = {part.col[0], part.col[1]};
    for (int64_t some; from < last; from += some) {
        const int64_t off = from - of.base, in = off < 0 ? -1 : off % of.pitch;
        const int64_t to_run = in < 0 ? -off : of.pitch - in;
        some = least_of(last - from, in >= 0 && in < of.run ? of.run - in : to_run);
        if (in < 0 || in >= of.run)
            continue;
        const int64_t local = off / of.pitch * of.run + in;
        const int64_t lo = local > begin ? local : begin, hi = least_of(local + some, end);
        if (lo >= hi)
            continue;
        part.n_rows = 1;
        part.n_cols = hi - lo;
        for (int w = 0; w < 2; w++)
            part.col[w] = col[w] + (from - start) + (lo - local);
        add_part(k, part, lo - begin, thread);
    }
}

/* The call may begin and end inside a row; incomplete rows are processed one by one. */
static void tile_factor_sums(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_attrs *a = &k->attr;
    const double *report = k->call.in[1].data;
    const struct part at = part_of(a, tile);
    const struct ku_factor_place place = ku_factor_place_of(&k->call.in[0]);
    const int64_t begin = place.first, end = begin + k->count;
    const int64_t first = (at.matrix * a->rows + at.row) * a->cols + at.col;
    int64_t *rows = (int64_t *)k->call.out[0].data + a->first_word;
    int64_t *cols = rows + 2 * (k->width / a->cols + at.matrix * a->cols + at.col);
    int64_t col[2][KU_FACTOR_COLS + 8] = {{0}}, row[2][KU_FACTOR_ROWS] = {{0}};
    struct ku_factor_part part = {.step = a->cols};
    if (report[KU_REPORT_APPLY] == 0 || (place.of.run == 0 && first >= end))
        return;
    ku_factor_rounds(a, report, part.round);
    for (int64_t r = 0; r < at.n_rows; r += part.n_rows) {
        const int64_t from = first + r * a->cols, last = from + at.n_cols;
        const int64_t lo = from > begin ? from : begin, hi = least_of(last, end);
        part.n_rows = 1;
        if (place.of.run) {
            for (int w = 0; w < 2; w++)
                part.col[w] = col[w], part.row[w] = row[w] + r;
            add_row(k, &place, part, from, last, thread);
            continue;
        }
        if (lo >= hi)
            continue;
        if (lo == from && hi == last) /* together with the complete rows that follow */
            part.n_rows = least_of(at.n_rows - r, (end - last) / a->cols + 1);
        part.n_cols = hi - lo;
        for (int w = 0; w < 2; w++)
            part.col[w] = col[w] + (lo - from), part.row[w] = row[w] + r;
        add_part(k, part, lo - begin, thread);
    }
    add_words(cols, (int64_t *const[]){col[0], col[1]}, at.n_cols);
    add_words(rows + 2 * (at.matrix * a->rows + at.row), (int64_t *const[]){row[0], row[1]},
              at.n_rows);
}
int ku_cpu_bind_factor_sums(struct ku_kernel *k)
{
    const struct ku_call *c = &k->call;
    KU_TRY(ku_cpu_check_float(k, "gradient", &c->in[0]));
    KU_TRY(ku_cpu_check(k, "report", &c->in[1], KUMI_F64));
    KU_TRY(ku_cpu_check(k, "factors", &c->in[2], KUMI_I64));
    if (c->in[2].data != c->out[0].data)
        return KU_ERR(KUMI_EINVAL,
                      "device cpu: factor_sums: factors are updated in place; give one "
                      "buffer");
    k->count = ku_cpu_count(&c->in[0]);
    k->width = ku_factor_place_of(&c->in[0]).total;
    ku_cpu_phase(k, tile_factor_sums,
                 k->width / (k->attr.rows * k->attr.cols) * n_parts(k->attr.cols, KU_FACTOR_COLS) *
                     n_parts(k->attr.rows, KU_FACTOR_ROWS));
    return KUMI_OK;
}

static void tile_factor_means(const struct ku_kernel *k, int64_t tile, int thread)
{
    (void)tile, (void)thread;
    ku_factor_means(&k->call);
}
int ku_cpu_bind_factor_means(struct ku_kernel *k)
{
    KU_TRY(ku_cpu_check(k, "factors", &k->call.in[0], KUMI_I64));
    KU_TRY(ku_cpu_check(k, "row_var", &k->call.in[1], KUMI_F32));
    KU_TRY(ku_cpu_check(k, "col_var", &k->call.in[2], KUMI_F32));
    KU_TRY(ku_cpu_check(k, "report", &k->call.in[3], KUMI_F64));
    ku_cpu_phase(k, tile_factor_means, 1);
    return KUMI_OK;
}

static struct ku_factored factored_of(const struct ku_kernel *k, const double *report,
                                      const double *norms)
{
    const struct ku_adafactor a = ku_adafactor_of(&k->attr, report, norms);
    return (struct ku_factored){.scale = (float)a.scale,
                                .by = 1,
                                .least = (float)a.least,
                                .keep = (float)a.keep,
                                .rate = (float)a.rate};
}

/*
 * Elements [from, from + n) of the call, one run per row: adds their squares to sum, or (sum ==
 * NULL) updates them. g: their gradient.
 */
static void walk_rows(const struct ku_kernel *k, struct ku_factored *f, const float *g,
                      int64_t from, int64_t n, double *sum)
{
    const struct ku_call *c = &k->call;
    const struct ku_attrs *a = &k->attr;
    const struct ku_factor_place place = ku_factor_place_of(&c->in[0]);
    const float *row_var = c->in[2].data, *col_var = c->in[3].data;
    float *p = c->in[0].data;
    const double *inverse = c->in[4].data;
    for (const int64_t end = from + n; from < end;) {
        const int64_t at = ku_factor_at(&place, from), row = at / a->cols, col = at % a->cols;
        const int64_t m = row / a->rows;
        const int64_t some = ku_factor_run(&place, from, least_of(a->cols - col, end - from));
        const float *var = col_var + m * a->cols + col;
        f->by = (float)((double)row_var[row] * inverse[m]);
        if (sum)
            k->cpu->ops->factor_norms(f, p + from, g, var, some, sum);
        else
            k->cpu->ops->factor_apply(f, p + from, g, var, some);
        from += some, g += some;
    }
}

static void tile_norms(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_call *c = &k->call;
    const int is_vector = c->op == KU_OP_variance_norms;
    const double *report = c->in[is_vector ? 3 : 5].data;
    struct ku_cpu_trust *part = (struct ku_cpu_trust *)c->workspace + tile * BLOCKS_PER_TILE;
    struct ku_factored f = factored_of(k, report, NULL);
    const float w = (float)ku_adafactor_of(&k->attr, report, NULL).w;
    int64_t from, n;
    ku_cpu_range(k, tile, &from, &n);
    for (int64_t i = from; i < from + n && report[KU_REPORT_APPLY] != 0;
         i += KU_BLOCK_COUNT, part++) {
        const int64_t some = from + n - i < KU_BLOCK_COUNT ? from + n - i : KU_BLOCK_COUNT;
        const float *g = read_gradient(k, &c->in[is_vector ? 2 : 1], i, some, thread);
        *part = (struct ku_cpu_trust){{0, 0}};
        if (is_vector) {
            float *var = (float *)c->out[0].data + i;
            k->cpu->ops->factor_move(var, g, f.scale, w, some);
            k->cpu->ops->factor_norms(&f, (const float *)c->in[0].data + i, g, var, some,
                                      part->sum);
        } else {
            walk_rows(k, &f, g, i, some, part->sum);
        }
    }
}
static void tile_norms_last(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_call *c = &k->call;
    const int is_vector = c->op == KU_OP_variance_norms;
    const double *report = c->in[is_vector ? 3 : 5].data;
    (void)tile, (void)thread;
    if (report[KU_REPORT_APPLY] != 0)
        ku_cpu_add_trust(k, c->out[is_vector].data);
}

/*
 * A skipped update leaves the state. The compute copy is written in any case: it may be a fresh
 * buffer.
 */
static void tile_apply(const struct ku_kernel *k, int64_t tile, int thread)
{
    const struct ku_call *c = &k->call;
    const int is_vector = c->op == KU_OP_adafactor_vector;
    const double *report = c->in[is_vector ? 3 : 5].data;
    struct ku_factored f = factored_of(k, report, c->in[is_vector ? 4 : 6].data);
    float *p = c->out[0].data;
    int64_t from, n;
    ku_cpu_range(k, tile, &from, &n);
    if (report[KU_REPORT_APPLY] != 0) {
        const float *g = read_gradient(k, &c->in[is_vector ? 2 : 1], from, n, thread);
        if (is_vector)
            k->cpu->ops->factor_apply(&f, p + from, g, (const float *)c->in[1].data + from, n);
        else
            walk_rows(k, &f, g, from, n, NULL);
    }
    if (c->n_out > 1)
        k->cpu->ops->cast(ku_cpu_at(&c->out[1], from), c->out[1].dtype, p + from, KUMI_F32, n);
}

/*
 * forms, per operand: f f32, F f32 updated in place with output 0, g a gradient, d f64 (report,
 * norms), w int64 sums updated in place.
 */
static int bind_all(struct ku_kernel *k, const char *forms)
{
    const struct ku_call *c = &k->call;
    for (int i = 0; forms[i]; i++) {
        const enum kumi_dtype dtype = forms[i] == 'd'   ? KUMI_F64
                                      : forms[i] == 'w' ? KUMI_I64
                                                        : KUMI_F32;
        char what[16] = "operand 0";
        what[8] = (char)('0' + i);
        KU_TRY(forms[i] == 'g' ? ku_cpu_check_float(k, "gradient", &c->in[i])
                               : ku_cpu_check(k, what, &c->in[i], dtype));
        int out = forms[i] == 'F' ? 0 : forms[i] == 'w' ? ku_ops[c->op].min_out - 1 : -1;
        if (out >= 0 && c->in[i].data != c->out[out].data)
            return KU_ERR(KUMI_EINVAL, "device cpu: %s: %s is updated in place; give one buffer",
                          ku_ops[c->op].name, what);
    }
    k->count = ku_cpu_count(&c->in[0]);
    k->per_tile = KU_CPU_TILE_COUNT;
    return KUMI_OK;
}
static int bind_norms(struct ku_kernel *k, const char *forms)
{
    const struct ku_call *c = &k->call;
    KU_TRY(bind_all(k, forms));
    const int64_t first = ku_factor_place_of(&c->in[0]).first;
    if (first % KU_BLOCK_COUNT != 0)
        return KU_ERR(
            KUMI_EINVAL,
            "device cpu: %s: the part begins at element %lld; it must begin at a multiple of %d",
            ku_ops[c->op].name, (long long)first, KU_BLOCK_COUNT);
    ku_cpu_phase(k, tile_norms, ku_cpu_tiles(k->count, k->per_tile));
    ku_cpu_phase(k, tile_norms_last, 1);
    return KUMI_OK;
}
static int bind_apply(struct ku_kernel *k, const char *forms)
{
    KU_TRY(bind_all(k, forms));
    if (k->call.n_out > 1)
        KU_TRY(ku_cpu_check_float(k, "copy", &k->call.out[1]));
    ku_cpu_phase(k, tile_apply, ku_cpu_tiles(k->count, k->per_tile));
    return KUMI_OK;
}
int ku_cpu_bind_factor_norms(struct ku_kernel *k)
{
    return bind_norms(k, "fgffddw");
}
int ku_cpu_bind_variance_norms(struct ku_kernel *k)
{
    return bind_norms(k, "fFgdw");
}
int ku_cpu_bind_adafactor(struct ku_kernel *k)
{
    return bind_apply(k, "Fgffddd");
}
int ku_cpu_bind_adafactor_vector(struct ku_kernel *k)
{
    return bind_apply(k, "Ffgdd");
}
