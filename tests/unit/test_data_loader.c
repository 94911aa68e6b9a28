/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor data */
/* tsan */

#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fault.h"
#include "base/os/os.h"
#include "base/math/random.h"
#include "data/image/image.h"
#include "data/loader.h"
#include "data/text/token_files.h"
#include "folder.h"

/*
 * Data that counts its reads: x holds sample and number, targets the sample; samples that are bad
 * cannot be read, and each read takes as long as `delay_ns` says, some longer than others.
 */
struct fake {
    struct ku_data data;
    _Atomic int64_t n_reads;
    int64_t bad_every, delay_ns, held_from; /* reads from this one on hang while is_held */
    _Atomic int bad_status, is_held;
};
static const struct ku_data_port fake_ports[] = {
    {.name = "x", .dtype = KUMI_I64, .ndim = 2, .dim = {1, 3}},
    {.name = "targets", .dtype = KUMI_I32, .ndim = 1, .dim = {2}}};

static int fake_read(const struct ku_data *d, enum ku_data_split split, int64_t sample,
                     int64_t number, void *const *port)
{
    struct fake *f = (struct fake *)(uintptr_t)d;
    int64_t n = atomic_fetch_add(&f->n_reads, 1);
    if (f->delay_ns)
        nanosleep(&(struct timespec){.tv_nsec = f->delay_ns * (1 + n % 7 * 3)}, NULL);
    while (atomic_load(&f->is_held) && n >= f->held_from)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    KU_ASSERT(sample >= 0 && sample < d->n_samples[split]);
    memcpy(port[0], (int64_t[]){sample, number, split}, 24);
    memcpy(port[1], (int32_t[]){(int32_t)sample, 7}, 8);
    if (f->bad_every && sample % f->bad_every == 3)
        return KU_ERR(f->bad_status, "fake: sample %lld", (long long)sample);
    return KUMI_OK;
}

static const struct ku_data_ops fake_ops = {.kind = "fake", .read = fake_read};

static void fake_init(struct fake *f)
{
    memset(f, 0, sizeof *f);
    f->data = (struct ku_data){
        .ops = &fake_ops, .n_samples = {101, 37}, .port = fake_ports, .n_ports = 2};
    f->bad_status = KUMI_EINPUT;
}

/* Two of three shards of a batch of 24, in pieces of 4: a rank that is not the first. */
static const struct ku_loader_range ranges[] = {{8, 4}, {12, 4}, {16, 4}, {20, 3}};
enum { N_RANGES = 4, ROWS = 15, BATCH = 24 };

struct row {
    int64_t x[3];
    int32_t targets[2];
};

static void expect_train(const struct ku_sampler *s, int64_t step, struct row *rows)
{
    for (int r = 0, i = 0; r < N_RANGES; r++)
        for (int64_t k = 0; k < ranges[r].n; k++, i++) {
            int64_t sample = ku_sampler_at(s, step, ranges[r].first + k);
            int64_t number = ku_sampler_number(s, step, ranges[r].first + k);
            rows[i] = (struct row){{sample, number, 0}, {(int32_t)sample, 7}};
            if (sample < 0)
                rows[i] = (struct row){{0, 0, 0}, {KU_NO_TARGET, KU_NO_TARGET}};
        }
}

/* All ranges of a step, in order, against what is expected. The first status that is not good. */
static int read_step(struct ku_loader *l, int64_t step, const struct row *expected)
{
    int64_t x[4][3];
    int32_t targets[4][2];
    for (int r = 0, i = 0; r < N_RANGES; r++) {
        memset(x, 0x55, sizeof x);
        int status = ku_loader_read(l, step, r, (void *[]){x, targets});
        if (status < 0)
            return status;
        for (int64_t k = 0; k < ranges[r].n; k++, i++)
            if (memcmp(x[k], expected[i].x, 24) != 0 ||
                memcmp(targets[k], expected[i].targets, 8) != 0)
                fail_msg("step %d, row %d: sample %d, expected %d", (int)step, i, (int)x[k][0],
                         (int)expected[i].x[0]);
    }
    return KUMI_OK;
}

static struct ku_loader *create(const struct ku_loader_opts *o, int64_t first_step)
{
    struct ku_loader *l = NULL;
    if (ku_loader_create(o, first_step, &l) < 0)
        fail_msg("%s", ku_err_get()->text);
    return l;
}

static const struct {
    int workers, prefetch;
} layouts[] = {{0, 0}, {1, 1}, {1, 2}, {2, 0}, {3, 1}, {4, 7}, {8, 3}, {16, 16}};
enum { N_LAYOUTS = sizeof layouts / sizeof layouts[0] };

/* What arrives does not depend on threads, slots, or on how fast either side is. */
static void reads_the_same_rows(void **state)
{
    static const enum ku_last_batch lasts[] = {KU_LAST_DROP, KU_LAST_WRAP, KU_LAST_SHORT};
    (void)state;
    for (int i = 0; i < 3 * N_LAYOUTS; i++) {
        struct fake f;
        struct ku_sampler s;
        fake_init(&f);
        f.delay_ns = i % 2 * 1000;
        assert_int_equal(ku_sampler_init(&s, 101, BATCH, lasts[i % 3], 1, 5), 0);
        struct ku_loader_opts o = {.data = &f.data,
                                   .sampler = &s,
                                   .range = ranges,
                                   .n_ranges = N_RANGES,
                                   .n_workers = layouts[i / 3].workers,
                                   .prefetch = layouts[i / 3].prefetch};
        struct ku_loader *l = create(&o, 2);
        for (int64_t step = 2; step < 22; step++) {
            struct row expected[ROWS];
            expect_train(&s, step, expected);
            assert_int_equal(read_step(l, step, expected), 0);
            if (i % 4 == 3)
                usleep(200);
        }
        ku_loader_destroy(l);
        if (o.n_workers == 0)
            assert_in_range(f.n_reads, 20 * 8, 20 * ROWS);
        else /* nothing beyond the slots is read ahead */
            assert_in_range(f.n_reads, 20 * 8,
                            (20 + (o.prefetch ? o.prefetch : 2)) * ROWS + o.n_workers);
    }
}

/* Backwards, far ahead, the same again, a range out of its turn: right, if slower. */
static void goes_where_it_is_asked(void **state)
{
    static const int64_t steps[] = {0, 1, 1, 2, 9, 3, 100, 101, 99, 0, 0, 4, 6, 7, 9, 13};
    (void)state;
    for (int i = 0; i < N_LAYOUTS; i++) {
        struct fake f;
        struct ku_sampler s;
        fake_init(&f);
        f.delay_ns = 500;
        assert_int_equal(ku_sampler_init(&s, 101, BATCH, KU_LAST_SHORT, 1, 6), 0);
        struct ku_loader_opts o = {.data = &f.data,
                                   .sampler = &s,
                                   .range = ranges,
                                   .n_ranges = N_RANGES,
                                   .n_workers = layouts[i].workers,
                                   .prefetch = layouts[i].prefetch};
        struct ku_loader *l = create(&o, 50);
        for (size_t k = 0; k < sizeof steps / sizeof *steps; k++) {
            struct row expected[ROWS];
            int64_t x[4][3];
            int32_t targets[4][2];
            expect_train(&s, steps[k], expected);
            assert_int_equal(ku_loader_read(l, steps[k], 2, (void *[]){x, targets}), 0);
            assert_memory_equal(x[0], expected[8].x, 24);
            assert_int_equal(read_step(l, steps[k], expected), 0);
        }
        ku_loader_destroy(l);
    }
}

/* Each of the samples once, none behind them; again and again, as evaluations follow each other. */
static void evaluates_each_sample_once(void **state)
{
    static const int64_t counts[] = {37, 24, 25, 1, 16};
    (void)state;
    for (int i = 0; i < 5 * N_LAYOUTS; i++) {
        struct fake f;
        fake_init(&f);
        int64_t n = counts[i % 5], steps = (n + BATCH - 1) / BATCH;
        static const struct ku_loader_range all[] = {{0, 10}, {10, 14}};
        struct ku_loader_opts o = {.data = &f.data,
                                   .split = KU_SPLIT_VAL,
                                   .global_batch = BATCH,
                                   .n_samples = n,
                                   .range = all,
                                   .n_ranges = 2,
                                   .n_workers = layouts[i / 5].workers,
                                   .prefetch = layouts[i / 5].prefetch};
        struct ku_loader *l = create(&o, 0);
        for (int turn = 0; turn < 3; turn++) {
            int seen[37] = {0};
            for (int64_t step = 0; step < steps; step++)
                for (int r = 0; r < 2; r++) {
                    int64_t x[14][3];
                    int32_t targets[14][2];
                    assert_int_equal(ku_loader_read(l, step, r, (void *[]){x, targets}), 0);
                    for (int64_t k = 0; k < all[r].n; k++) {
                        int64_t sample = step * BATCH + all[r].first + k;
                        assert_int_equal(targets[k][0], sample < n ? sample : KU_NO_TARGET);
                        assert_int_equal(x[k][0], sample < n ? sample : 0);
                        assert_int_equal(x[k][2], sample < n);
                        if (sample < n)
                            seen[sample]++;
                    }
                }
            for (int64_t k = 0; k < n; k++)
                assert_int_equal(seen[k], 1);
        }
        ku_loader_destroy(l);
    }
}

/* The first bad row in the order of rows is the one that is named, when it is asked for. */
static void stops_at_the_first_bad_row(void **state)
{
    (void)state;
    for (int i = 0; i < N_LAYOUTS; i++)
        for (int turn = 0; turn < 4; turn++) {
            struct fake f;
            struct ku_sampler s;
            struct row expected[ROWS];
            char text[64];
            int64_t step = 0;
            int row = ROWS;
            fake_init(&f);
            f.bad_every = turn < 2 ? 50 : 2 + turn;
            f.delay_ns = turn % 2 * 2000;
            assert_int_equal(ku_sampler_init(&s, 101, BATCH, KU_LAST_DROP, 1, 7), 0);
            struct ku_loader_opts o = {.data = &f.data,
                                       .sampler = &s,
                                       .range = ranges,
                                       .n_ranges = N_RANGES,
                                       .n_workers = layouts[i].workers,
                                       .prefetch = layouts[i].prefetch};
            struct ku_loader *l = create(&o, 0);
            for (; row == ROWS; step += row == ROWS) {
                expect_train(&s, step, expected);
                for (row = 0; row < ROWS && expected[row].x[0] % f.bad_every != 3; row++)
                    ;
                int status = read_step(l, step, expected);
                assert_int_equal(status, row < ROWS ? KUMI_EINPUT : KUMI_OK);
            }
            snprintf(text, sizeof text, "fake: sample %d", (int)expected[row].x[0]);
            assert_string_equal(ku_err_get()->text, text);
            ku_loader_destroy(l);
        }
}

/* Skipped rows are blank and counted when they are asked for: the count is the same everywhere. */
static void skips_and_counts(void **state)
{
    (void)state;
    for (int i = 0; i < N_LAYOUTS; i++) {
        struct fake f;
        struct ku_sampler s;
        int64_t n_bad = 0;
        fake_init(&f);
        f.bad_every = 4;
        assert_int_equal(ku_sampler_init(&s, 101, BATCH, KU_LAST_WRAP, 1, 8), 0);
        struct ku_loader_opts o = {.data = &f.data,
                                   .sampler = &s,
                                   .range = ranges,
                                   .n_ranges = N_RANGES,
                                   .n_workers = layouts[i].workers,
                                   .prefetch = layouts[i].prefetch,
                                   .on_error = KU_ON_ERROR_SKIP};
        struct ku_loader *l = create(&o, 0);
        for (int64_t step = 0; step < 12; step++) {
            struct row expected[ROWS];
            expect_train(&s, step, expected);
            for (int k = 0; k < ROWS; k++)
                if (expected[k].x[0] % 4 == 3) {
                    expected[k] = (struct row){{0, 0, 0}, {KU_NO_TARGET, KU_NO_TARGET}};
                    n_bad++;
                }
            assert_int_equal(read_step(l, step, expected), 0);
            assert_int_equal(ku_loader_n_skipped(l), n_bad);
        }
        assert_true(n_bad > 20);
        f.bad_status = KUMI_ENOMEM; /* not the sample's fault, so never skipped */
        struct row none[ROWS];
        expect_train(&s, 90, none);
        assert_int_equal(read_step(l, 90, none), KUMI_ENOMEM);
        ku_loader_destroy(l);
    }
}

static int count_ticks(void *ctx, uint64_t n_read)
{
    int *n = ctx;
    (void)n_read;
    return ++*n == 3 ? KU_ERR(KUMI_ESTOPPED, "stopped") : KUMI_OK;
}

/* A wait for a sample that takes long asks every 50 ms, and ends when it is told so. */
static void waits_can_be_stopped(void **state)
{
    struct fake f;
    struct ku_sampler s;
    struct row expected[ROWS];
    int n_ticks = 0;
    (void)state;
    fake_init(&f);
    f.delay_ns = 40000000;
    assert_int_equal(ku_sampler_init(&s, 101, BATCH, KU_LAST_DROP, 1, 9), 0);
    struct ku_loader_opts o = {.data = &f.data,
                               .sampler = &s,
                               .range = ranges,
                               .n_ranges = N_RANGES,
                               .n_workers = 1,
                               .prefetch = 1,
                               .tick = count_ticks,
                               .tick_ctx = &n_ticks};
    struct ku_loader *l = create(&o, 0);
    expect_train(&s, 0, expected);
    assert_int_equal(read_step(l, 0, expected), KUMI_ESTOPPED);
    assert_int_equal(n_ticks, 3);
    ku_loader_destroy(l);
}

struct hang {
    struct fake f;
    int n_calls;
    uint64_t n_read;
};

/* Five waits of 50 ms, in which the reads hang; then they go on. */
static int end_hang(void *ctx, uint64_t n_read)
{
    struct hang *h = ctx;
    assert_true(n_read >= h->n_read && n_read <= ROWS);
    if (h->n_calls++ < 5)
        assert_true(n_read <= 3);
    if (h->n_calls == 5)
        atomic_store(&h->f.is_held, 0);
    h->n_read = n_read;
    return KUMI_OK;
}

/* The rows that the workers have read stand still with them. */
static void a_hung_read_is_no_progress(void **state)
{
    struct hang h = {.n_calls = 0};
    struct ku_sampler s;
    struct row expected[ROWS];
    (void)state;
    fake_init(&h.f);
    h.f.held_from = 3;
    atomic_store(&h.f.is_held, 1);
    assert_int_equal(ku_sampler_init(&s, 101, BATCH, KU_LAST_DROP, 1, 9), 0);
    struct ku_loader_opts o = {.data = &h.f.data,
                               .sampler = &s,
                               .range = ranges,
                               .n_ranges = N_RANGES,
                               .n_workers = 2,
                               .prefetch = 1,
                               .tick = end_hang,
                               .tick_ctx = &h};
    struct ku_loader *l = create(&o, 0);
    expect_train(&s, 0, expected);
    assert_int_equal(read_step(l, 0, expected), 0);
    assert_true(h.n_calls >= 5);
    ku_loader_destroy(l);
}

static void refuses_wrong_options(void **state)
{
    static const struct {
        int workers, prefetch;
        const char *text;
    } rows[] = {{-1, 0, "data: data.workers: -1; give 0 to 256"},
                {257, 0, "data: data.workers: 257; give 0 to 256"},
                {1, -1, "data: data.prefetch: -1; give 1 to 1024"},
                {1, 1025, "data: data.prefetch: 1025; give 1 to 1024"}};
    struct fake f;
    struct ku_loader *l = NULL;
    enum ku_on_error on;
    (void)state;
    fake_init(&f);
    for (int i = 0; i < 4; i++) {
        struct ku_loader_opts o = {.data = &f.data,
                                   .global_batch = BATCH,
                                   .n_samples = 10,
                                   .range = ranges,
                                   .n_ranges = N_RANGES,
                                   .n_workers = rows[i].workers,
                                   .prefetch = rows[i].prefetch};
        assert_int_equal(ku_loader_create(&o, 0, &l), KUMI_EINVAL);
        assert_string_equal(ku_err_get()->text, rows[i].text);
    }
    assert_int_equal(ku_on_error_parse("skip", &on), 0);
    assert_int_equal(on, KU_ON_ERROR_SKIP);
    assert_int_equal(ku_on_error_parse("ignore", &on), KUMI_EINVAL);
    assert_null(l);
}

/* Whichever allocation fails, nothing is left behind. */
static void survives_lack_of_memory(void **state)
{
    struct fake f;
    struct ku_loader *l = NULL;
    int n_failed = 0, status = KUMI_ENOMEM;
    (void)state;
    fake_init(&f);
    for (int n = 1; status != KUMI_OK; n++) {
        char spec[32];
        struct ku_loader_opts o = {.data = &f.data,
                                   .global_batch = BATCH,
                                   .n_samples = 10,
                                   .range = ranges,
                                   .n_ranges = N_RANGES,
                                   .n_workers = 2};
        snprintf(spec, sizeof spec, "mem:%d", n);
        ku_fault_set(spec);
        status = ku_loader_create(&o, 0, &l);
        ku_fault_set(NULL);
        assert_true(status == KUMI_OK || status == KUMI_ENOMEM);
        n_failed += status != KUMI_OK;
    }
    assert_int_equal(n_failed, 6);
    ku_loader_destroy(l);
}

/* ---- what training has behind it */

static const char *put_random(const char *name, size_t bytes, size_t record)
{
    unsigned char *data = malloc(bytes);
    for (size_t i = 0; i < bytes; i++)
        data[i] = i % record ? (unsigned char)ku_random_u32(1, 2, 3, i) : (unsigned char)(i % 10);
    const char *path = put(name, data, bytes);
    free(data);
    return path;
}

/* The same bytes with and without workers, over two epochs and a bit. */
static void assert_equal_rows(const struct ku_data *d, int64_t n_samples)
{
    struct ku_sampler s;
    size_t row[2] = {ku_data_row_bytes(&d->port[0]), ku_data_row_bytes(&d->port[1])};
    unsigned char *out[2][2];
    assert_int_equal(ku_sampler_init(&s, n_samples, BATCH, KU_LAST_WRAP, 1, 11), 0);
    for (int i = 0; i < 4; i++)
        out[i / 2][i % 2] = malloc(row[i % 2] * 4);
    for (int i = 1; i < N_LAYOUTS; i++) {
        struct ku_loader_opts o = {.data = d, .sampler = &s, .range = ranges, .n_ranges = N_RANGES};
        struct ku_loader *inlined = create(&o, 0);
        o.n_workers = layouts[i].workers;
        o.prefetch = layouts[i].prefetch;
        struct ku_loader *l = create(&o, 0);
        for (int64_t step = 0; step < 2 * s.steps_per_epoch + 1; step++)
            for (int r = 0; r < N_RANGES; r++) {
                assert_int_equal(ku_loader_read(l, step, r, (void *const *)out[0]), 0);
                assert_int_equal(ku_loader_read(inlined, step, r, (void *const *)out[1]), 0);
                for (int p = 0; p < 2; p++)
                    assert_memory_equal(out[0][p], out[1][p], row[p] * (size_t)ranges[r].n);
            }
        ku_loader_destroy(l);
        ku_loader_destroy(inlined);
    }
    for (int i = 0; i < 4; i++)
        free(out[i / 2][i % 2]);
}

static void serves_text_and_images(void **state)
{
    struct ku_data *d;
    const char *text[] = {put_random("text.txt", 5000, 1 << 20)};
    struct ku_text_opts t = {.train = text, .n_train = 1, .seq_len = 33, .vocab_count = 256};
    (void)state;
    assert_int_equal(ku_text_open(&t, &d), 0);
    assert_equal_rows(d, d->n_samples[0]);
    ku_data_destroy(d);
    const char *images[] = {put_random("a.bin", 60 * 3073, 3073)};
    struct ku_image_opts o = {.kind = "cifar10",
                              .train = images,
                              .n_train = 1,
                              .augment = {.crop = KU_CROP_RANDOM, .padding = 4, .flip = 0.5}};
    assert_int_equal(ku_image_open(&o, &d), 0);
    assert_equal_rows(d, 60);
    ku_data_destroy(d);
}

static void bytes_of_rows_ahead(void **state)
{
    static const size_t row_bytes[] = {3, 40};
    static const struct {
        int n_ports, n_workers, prefetch;
        int64_t n_rows;
        size_t bytes;
    } row[] = {
        {2, 0, 2, 5, 0}, /* rows are read when they are asked for */
        {2, 1, 1, 5, 384}, {2, 7, 1, 5, 384}, {2, 1, 3, 5, 1152},
        {2, 1, 0, 5, 768}, {1, 1, 1, 1, 128}, {1, 1, 1, 64, 256},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        assert_int_equal(ku_loader_bytes(row_bytes, row[i].n_ports, row[i].n_rows, row[i].n_workers,
                                         row[i].prefetch),
                         row[i].bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_the_same_rows),        cmocka_unit_test(goes_where_it_is_asked),
        cmocka_unit_test(evaluates_each_sample_once), cmocka_unit_test(stops_at_the_first_bad_row),
        cmocka_unit_test(skips_and_counts),           cmocka_unit_test(waits_can_be_stopped),
        cmocka_unit_test(refuses_wrong_options),      cmocka_unit_test(survives_lack_of_memory),
        cmocka_unit_test(serves_text_and_images),     cmocka_unit_test(bytes_of_rows_ahead),
        cmocka_unit_test(a_hung_read_is_no_progress),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
