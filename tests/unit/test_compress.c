/* SPDX-License-Identifier: Apache-2.0 */
/* Compressed forms of pushes, and the file of their error feedback. */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/hash.h"
#include "base/math/random.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "remote/compress.h"
#include "remote/residual.h"
#include "tensor/blocks.h"

enum { N = KU_BLOCK_COUNT };

static float g[N], before[N], after[N], out[N], record[2 * N];

static struct ku_remote_entry entry(enum ku_remote_form form, double topk)
{
    return (struct ku_remote_entry){.name = "gradient.0.w",
                                    .dtype = KUMI_F32,
                                    .wire = KUMI_F32,
                                    .form = form,
                                    .topk = topk,
                                    .count = N};
}

static void fill(uint32_t seed, float scale)
{
    for (int i = 0; i < N; i++) {
        g[i] = scale * ku_random_normal(seed, 0, 1, (uint64_t)i);
        before[i] = scale * 0.1f * ku_random_normal(seed, 0, 2, (uint64_t)i);
    }
}

static void compress(const struct ku_remote_entry *x, int64_t n, uint32_t step)
{
    const struct ku_compress_draw draw = {.seed = 7, .step = step, .stream = 3, .first = 8};
    ku_compress_chunk(x, &draw, n, g, before, record, after);
    assert_true(ku_compress_is_valid(x, n, record));
    ku_compress_decode(x, n, record, out);
}

/* Record bytes: multiples of 4, and of 64 in groups of 16. */
static void sizes(void **state)
{
    static const struct {
        enum ku_remote_form form;
        double topk;
        int64_t n, k;
        size_t bytes;
    } row[] = {{KU_REMOTE_INT8, 0, N, 0, 4100},    {KU_REMOTE_INT8, 0, 1, 0, 8},
               {KU_REMOTE_TOPK, 0.01, N, 41, 248}, {KU_REMOTE_TOPK, 1e-6, N, 1, 8},
               {KU_REMOTE_TOPK, 5, 3, 3, 20},      {KU_REMOTE_TOPK, 4096, N, N, 24576},
               {KU_REMOTE_TOPK, 0.5, 3, 2, 12}};
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const struct ku_remote_entry x = entry(row[i].form, row[i].topk);
        assert_int_equal(ku_remote_record_bytes(&x, row[i].n), row[i].bytes);
        assert_int_equal(16 * ku_remote_record_bytes(&x, N) % 64, 0);
        if (row[i].k)
            assert_int_equal(ku_remote_topk(&x, row[i].n), row[i].k);
        assert_int_equal(ku_remote_wire_bytes(&x, 2 * N + row[i].n % N),
                         2 * ku_remote_record_bytes(&x, N) +
                             (row[i].n % N ? ku_remote_record_bytes(&x, row[i].n) : 0));
    }
}

/* What is said and what is left add up to gradient and residual; int8 is off by half a step. */
static void feedback(void **state)
{
    static const int64_t count[] = {1, 3, 1000, N};
    static const float scale[] = {1, 1e-30f, 1e-43f, 1e30f, 0};
    (void)state;
    for (int form = KU_REMOTE_INT8; form <= KU_REMOTE_TOPK; form++)
        for (size_t c = 0; c < 4; c++)
            for (size_t s = 0; s < 5; s++) {
                const struct ku_remote_entry x = entry((enum ku_remote_form)form, 0.1);
                float most = 0, step;
                fill(11, scale[s]);
                compress(&x, count[c], 0);
                for (int64_t i = 0; i < count[c]; i++)
                    most = fmaxf(most, fabsf(g[i] + before[i]));
                step = most / 127 * (form == KU_REMOTE_INT8 ? 0.5001f : 1.0001f);
                for (int64_t i = 0; i < count[c]; i++) {
                    const float a = g[i] + before[i];
                    assert_true(after[i] == a - out[i]);
                    if (form != KU_REMOTE_TOPK && scale[s] >= 1e-30f)
                        assert_true(fabsf(after[i]) <= step);
                    if (form == KU_REMOTE_TOPK)
                        assert_true(out[i] == a || out[i] == 0);
                }
            }
}

/* The k of largest magnitude; of equal ones the first. */
static void selects(void **state)
{
    const struct ku_remote_entry x = entry(KU_REMOTE_TOPK, 100);
    (void)state;
    fill(5, 1);
    compress(&x, N, 0);
    float least = INFINITY, left = 0;
    int n = 0;
    for (int i = 0; i < N; i++) {
        n += out[i] != 0;
        if (out[i] != 0)
            least = fminf(least, fabsf(out[i]));
        left = fmaxf(left, fabsf(after[i]));
    }
    assert_int_equal(n, 100);
    assert_true(left <= least);
    for (int i = 0; i < N; i++)
        g[i] = i % 2 ? -2 : 2, before[i] = 0;
    compress(&x, N, 0);
    for (int i = 0; i < N; i++)
        assert_true(out[i] == (i < 100 ? g[i] : 0));
}

/* Random rounding is right on average, a function of its place, and another in another step. */
static void rounds_randomly(void **state)
{
    const struct ku_remote_entry x = entry(KU_REMOTE_INT8_STOCHASTIC, 0);
    static float first[N];
    double sum = 0;
    (void)state;
    for (int i = 0; i < N; i++)
        g[i] = i ? 0.3f : 127, before[i] = 0;
    compress(&x, N, 1);
    memcpy(first, out, sizeof out);
    for (int i = 1; i < N; i++) {
        assert_true(out[i] == 0 || out[i] == 1);
        sum += (double)out[i];
    }
    /* 4,095 draws of 0.3: 5 standard deviations are 5 sqrt(4095 x 0.3 x 0.7) = 147 */
    assert_true(fabs(sum - 4095 * 0.3) < 147);
    compress(&x, N, 1);
    assert_memory_equal(first, out, sizeof out);
    compress(&x, N, 2);
    assert_memory_not_equal(first, out, sizeof out);
}

/* Infinities and NaN arrive as such, and leave the residual. */
static void not_finite(void **state)
{
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    (void)state;
    for (int form = KU_REMOTE_INT8; form <= KU_REMOTE_TOPK; form++)
        for (size_t b = 0; b < 3; b++) {
            const struct ku_remote_entry x = entry((enum ku_remote_form)form, 0.01);
            int n = 0;
            fill(3, 1);
            g[1234] = bad[b];
            compress(&x, N, 0);
            for (int i = 0; i < N; i++)
                n += !isfinite(out[i]);
            assert_true(n > 0);
            assert_memory_equal(after, before, sizeof after);
        }
}

/* -- the file --------------------------------------------------------------------------------- */

static char dir[64];
static struct ku_remote_layout layout;
static struct ku_remote_entry push[3];

static struct ku_remote_residual *open_it(void)
{
    struct ku_remote_residual *r = NULL;
    if (ku_remote_residual_open(&layout, 2, dir, &r) < 0)
        fail_msg("%s", ku_err_get()->text);
    return r;
}

static void run_step(struct ku_remote_residual *r, int64_t step, bool is_complete)
{
    char text[200];
    ku_remote_residual_begin(r, step, text);
    assert_string_equal(text, "");
    for (uint32_t i = 0; i < 3; i++) {
        uint64_t sum = 0;
        if (push[i].form == KU_REMOTE_DENSE || (i == 2 && !is_complete))
            continue;
        float *to = ku_remote_residual_after(r, i);
        const float *from = ku_remote_residual_before(r, i);
        for (int64_t k = 0; k < push[i].count; k++)
            to[k] = from[k] + (float)(step + 1);
        for (int64_t at = 0; at < push[i].count; at += N) {
            const int64_t left = push[i].count - at;
            sum = ku_hash64_mix(sum, ku_hash64(to + at, (size_t)(left < N ? left : N) * 4));
        }
        ku_remote_residual_note(r, i, sum);
    }
}

/* The value that begins a step: 1 + 2 + .. + step, or 0 where a message says so. */
static float begin(struct ku_remote_residual *r, int64_t step, const char *wanted)
{
    char text[200];
    ku_remote_residual_begin(r, step, text);
    if ((wanted[0] == '\0') != (text[0] == '\0') || strstr(text, wanted) == NULL)
        fail_msg("step %d: %s", (int)step, text);
    assert_true(ku_remote_residual_before(r, 0)[1] ==
                ku_remote_residual_before(r, 2)[push[2].count - 1]);
    return ku_remote_residual_before(r, 2)[0];
}

static float reopen(int64_t step, const char *wanted)
{
    struct ku_remote_residual *r = open_it();
    const float x = begin(r, step, wanted);
    ku_remote_residual_close(r);
    return x;
}

static void set_up(void)
{
    push[0] = push[1] = push[2] = entry(KU_REMOTE_INT8, 0);
    push[1].form = KU_REMOTE_DENSE;
    push[2].count = 2 * N + 77;
    layout = (struct ku_remote_layout){.n_push = 3, .push = push, .checksum = 99};
    snprintf(dir, sizeof dir, "/tmp/kumi-compress-%d", (int)getpid());
    assert_int_equal(ku_os_rmtree(dir), 0);
}

static void forget(void)
{
    char path[128];
    snprintf(path, sizeof path, "%s/worker-2.residual", dir);
    assert_int_equal(ku_os_unlink(path), 0);
}

static void damage(const char *name, off_t at)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    const int fd = ku_os_open(path, O_WRONLY, 0);
    assert_true(fd >= 0 && ku_os_pwrite_full(fd, "x", 1, at) == 0);
    ku_os_close(fd);
}

static bool is_there(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return access(path, F_OK) == 0;
}

/* A killed worker continues from the last complete step, or repeats the one under way. */
static void continues(void **state)
{
    (void)state;
    set_up();
    struct ku_remote_residual *r = open_it();
    for (int64_t step = 0; step < 5; step++)
        run_step(r, step, true);
    run_step(r, 5, false);
    ku_remote_residual_close(r);
    assert_true(reopen(5, "") == 15);
    r = open_it();
    run_step(r, 5, true); /* again */
    ku_remote_residual_close(r);
    r = open_it(); /* the server has step 4 alone: 5 is repeated */
    assert_true(begin(r, 5, "") == 15);
    run_step(r, 5, true);
    run_step(r, 6, true);
    ku_remote_residual_close(r);
    assert_true(reopen(7, "") == 28);
    assert_true(reopen(9, "no error feedback of step 8") == 0);
    assert_true(reopen(7, "no error feedback") == 0); /* it was given up */
    layout.checksum++;
    assert_true(reopen(1, "no error feedback of step 0 in the run directory") == 0);
    assert_true(reopen(0, "") == 0);
    ku_os_rmtree(dir);
}

/* What was saved with checkpoints: found, damaged, of another layout, pruned. */
static void saved(void **state)
{
    (void)state;
    set_up();
    struct ku_remote_residual *r = open_it();
    for (int64_t step = 0; step < 9; step++) {
        run_step(r, step, true);
        char text[200];
        if (step % 2)
            continue;
        ku_remote_residual_begin(r, step + 1, text);
        assert_int_equal(ku_remote_residual_save(r, 3), 0);
    }
    ku_remote_residual_close(r);
    assert_true(!is_there("worker-2.residual.3") && is_there("worker-2.residual.5") &&
                is_there("worker-2.residual.9"));
    assert_true(reopen(7, "") == 28);
    assert_true(reopen(5, "") == 15);
    forget();
    damage("worker-2.residual.5", 4096 + 100);
    assert_true(reopen(5, "no error feedback of step 4") == 0);
    forget();
    damage("worker-2.residual.7", 9);
    assert_true(reopen(7, "no error feedback of step 6") == 0);
    assert_true(reopen(9, "") == 45);
    damage("worker-2.residual", 0);
    assert_true(reopen(9, "") == 45);
    ku_os_rmtree(dir);
    r = NULL;
    assert_int_equal(ku_remote_residual_open(&layout, 2, NULL, &r), 0); /* in memory */
    run_step(r, 0, true);
    assert_true(begin(r, 1, "") == 1);
    assert_int_equal(ku_remote_residual_save(r, 1), 0);
    ku_remote_residual_close(r);
    assert_int_equal(ku_remote_residual_open(&layout, 2, "/proc/none", &r), KUMI_ESTORAGE);
    assert_int_equal(ku_remote_residual_bytes(&layout), 2 * 53248);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes),      cmocka_unit_test(feedback),
        cmocka_unit_test(selects),    cmocka_unit_test(rounds_randomly),
        cmocka_unit_test(not_finite), cmocka_unit_test(continues),
        cmocka_unit_test(saved)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
