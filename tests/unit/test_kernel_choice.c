/* SPDX-License-Identifier: Apache-2.0 */
/* links: sim device comm ir op tensor job base */
/* The choice of the instruction set from the kernels' rates: injected tables, the stored file. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/json/json.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "sim/kernel_choice.h"

/* Rates in GFLOP/s: base, avx2, avx512, avx512bf16, amx. */
static void test_choice(void **state)
{
    static const struct {
        const char *cpu;
        double f32[KU_N_ISAS], bf16[KU_N_ISAS];
        enum ku_isa for_f32, for_bf16;
    } row[] = {
        {"Zen 4", {0, 60, 118, 118}, {0, 60, 118, 236}, KU_ISA_AVX512BF16, KU_ISA_AVX512BF16},
        {"AMX", {0, 70, 137, 137, 137}, {0, 70, 137, 70, 1317}, KU_ISA_AMX, KU_ISA_AMX},
        {"AMX masked", {0, 70, 137, 137}, {0, 70, 137, 70}, KU_ISA_AVX512BF16, KU_ISA_AVX512},
        {"AVX-512 without dot products", {0, 55, 90}, {0, 55, 90}, KU_ISA_AVX512, KU_ISA_AVX512},
        {"slow AVX-512", {0, 80, 60}, {0, 80, 60}, KU_ISA_AVX2, KU_ISA_AVX2},
        {"AVX2", {0, 50}, {0, 50}, KU_ISA_AVX2, KU_ISA_AVX2},
        {"neither", {4}, {4}, KU_ISA_BASE, KU_ISA_BASE},
        /* within the margin the higher set wins, beyond it the lower */
        {"margin", {0, 109, 100}, {0, 10, 109, 100}, KU_ISA_AVX512, KU_ISA_AVX512BF16},
        {"beyond", {0, 111, 100}, {0, 10, 111, 100}, KU_ISA_AVX2, KU_ISA_AVX512},
        /* each set is compared with the best above it, not with its neighbour */
        {"steps", {0, 118, 109, 100}, {0, 118, 109, 100}, KU_ISA_AVX2, KU_ISA_AVX2},
        {"nothing measured", {0}, {0}, KU_ISA_BASE, KU_ISA_BASE},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_kernel_rates r = {0};
        memcpy(r.f32, row[i].f32, sizeof r.f32);
        memcpy(r.bf16, row[i].bf16, sizeof r.bf16);
        if (ku_kernel_choose(&r, KUMI_F32) != row[i].for_f32 ||
            ku_kernel_choose(&r, KUMI_F16) != row[i].for_f32 ||
            ku_kernel_choose(&r, KUMI_BF16) != row[i].for_bf16)
            fail_msg("%s: f32 %s, bf16 %s", row[i].cpu,
                     ku_cpu_isa_name(ku_kernel_choose(&r, KUMI_F32)),
                     ku_cpu_isa_name(ku_kernel_choose(&r, KUMI_BF16)));
    }
}

static void test_measured(void **state)
{
    struct ku_kernel_rates r;
    const enum ku_isa top = ku_cpu_isa();
    (void)state;
    assert_int_equal(ku_kernel_rates_measure(&r), KUMI_OK);
    for (int isa = 0; isa < KU_N_ISAS; isa++) {
        bool is_timed = isa == (int)top || (isa > KU_ISA_BASE && isa < (int)top);
        assert_int_equal(r.f32[isa] > 0, is_timed);
        assert_int_equal(r.bf16[isa] > 0, is_timed);
    }
    /* the sets above avx512 have its f32 kernel: equal rates, not nearly equal ones */
    for (int isa = KU_ISA_AVX512BF16; isa <= (int)top; isa++)
        assert_true(r.f32[isa] == r.f32[KU_ISA_AVX512]);
}

/* Multiplies all rates of the stored row but the lowest set's, whose rate wins then. */
static void edit(const char *path, const char *identity)
{
    struct ku_json doc;
    const char *key;
    json_t *rate;
    assert_int_equal(ku_json_load(path, 1 << 20, &doc), KUMI_OK);
    json_t *row = json_array_get(doc.root, 0);
    json_object_foreach(json_object_get(row, "bf16"), key, rate)
        json_real_set(rate, strcmp(key, "avx2") == 0 ? 3e9 : 1e9);
    if (identity)
        json_object_set_new(row, "identity", json_string(identity));
    char *text = ku_json_print(doc.root, JSON_COMPACT);
    assert_int_equal(ku_os_replace(path, text, strlen(text)), 0);
    ku_free(text);
    ku_json_fini(&doc);
}

/* A stored choice stands as long as the machine's identity; a broken file is begun anew. */
static void test_stored(void **state)
{
    char folder[] = "/tmp/kumi-choice-XXXXXX", path[64], day[KU_KERNEL_DAY_BYTES];
    struct ku_kernel_rates r, again;
    enum ku_isa isa;
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/kernels.json", folder);
    assert_int_equal(setenv("KUMI_CACHE", folder, 1), 0);
    assert_int_equal(ku_kernel_rates_get(&r, day), KUMI_OK);
    assert_int_equal(strlen(day), 10);
    assert_int_equal(ku_kernel_rates_get(&again, NULL), KUMI_OK);
    for (int i = 0; i < KU_N_ISAS; i++)
        assert_true(again.bf16[i] >= 0.99999 * r.bf16[i] && again.bf16[i] <= 1.00001 * r.bf16[i]);
    if (ku_cpu_isa() > KU_ISA_AVX2) {
        edit(path, NULL);
        assert_int_equal(ku_isa_resolve(NULL, KUMI_BF16, &isa), KUMI_OK);
        assert_int_equal(isa, KU_ISA_AVX2);
        assert_int_equal(ku_isa_resolve("avx512", KUMI_BF16, &isa), KUMI_OK);
        assert_int_equal(isa, KU_ISA_AVX512);
        edit(path, "another CPU");
        assert_int_equal(ku_kernel_rates_get(&again, NULL), KUMI_OK);
        assert_true(again.bf16[ku_cpu_isa()] > 1e9);
        struct ku_json doc;
        assert_int_equal(ku_json_load(path, 1 << 20, &doc), KUMI_OK);
        assert_int_equal(json_array_size(doc.root), 2);
        ku_json_fini(&doc);
    }
    assert_int_equal(ku_os_replace(path, "[{", 2), 0);
    assert_int_equal(ku_kernel_rates_get(&again, NULL), KUMI_OK);
    assert_true(again.f32[ku_cpu_isa()] > 0);
    assert_int_equal(setenv("KUMI_CACHE", "/proc/nowhere", 1), 0); /* measured, not stored */
    assert_int_equal(ku_kernel_rates_get(&again, NULL), KUMI_OK);
    assert_true(again.f32[ku_cpu_isa()] > 0);
    assert_int_equal(ku_os_rmtree(folder), 0);
}

/* Processes that begin at once, without a stored row, have the rates that one of them stored. */
static void test_begin_at_once(void **state)
{
    enum { N = 4 };
    char folder[] = "/tmp/kumi-choice-XXXXXX";
    struct ku_kernel_rates stored, r;
    int pipes[2], status;
    (void)state;
    assert_non_null(mkdtemp(folder));
    assert_int_equal(setenv("KUMI_CACHE", folder, 1), 0);
    assert_int_equal(pipe(pipes), 0);
    for (int i = 0; i < N; i++) {
        const pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0)
            _exit(ku_kernel_rates_get(&r, NULL) < 0 ||
                  write(pipes[1], &r, sizeof r) != (ssize_t)sizeof r);
    }
    for (int i = 0; i < N; i++) {
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
    }
    assert_int_equal(ku_kernel_rates_get(&stored, NULL), KUMI_OK);
    for (int i = 0; i < N; i++) {
        assert_int_equal(read(pipes[0], &r, sizeof r), sizeof r);
        for (int isa = 0; isa < KU_N_ISAS; isa++)
            assert_true(r.bf16[isa] >= 0.99999 * stored.bf16[isa] &&
                        r.bf16[isa] <= 1.00001 * stored.bf16[isa]);
    }
    close(pipes[0]);
    close(pipes[1]);
    assert_int_equal(ku_os_rmtree(folder), 0);
}

static void test_pinned(void **state)
{
    enum ku_isa isa;
    (void)state;
    assert_int_equal(ku_isa_resolve("base", KUMI_BF16, &isa), KUMI_OK);
    assert_int_equal(isa, KU_ISA_BASE);
    assert_int_equal(ku_isa_resolve("amx", KUMI_F32, &isa), KUMI_OK); /* or what the CPU has */
    assert_int_equal(isa, ku_cpu_isa());
    assert_int_equal(ku_isa_resolve("sse9", KUMI_F32, &isa), KUMI_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choice), cmocka_unit_test(test_measured),
        cmocka_unit_test(test_stored), cmocka_unit_test(test_begin_at_once),
        cmocka_unit_test(test_pinned)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
