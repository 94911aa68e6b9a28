/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor op device */
/*
 * Every op of the table on the cpu device: each instruction set, 1, 2 and 3 threads (1 and 2 under
 * a sanitizer).
 */
#include "device/cpu/cpu.h"
#include "op/check.h"

static void test_table(void **state)
{
    static const enum kumi_dtype dtype[] = {KUMI_F32, KUMI_BF16, KUMI_F16};
    struct op_devices devs = {0};
    (void)state;
    for (int isa = KU_ISA_BASE; isa <= (int)ku_cpu_isa(); isa++) {
        if (isa == KU_ISA_AVX2 && sample_is_short()) /* not instrumented: cmake/KumiModules.cmake */
            continue;
        struct op_threads *t = &devs.of[devs.n++];
        for (t->n = 0; t->n < sample_count(3, 2); t->n++)
            t->dev[t->n] = device_open(&ku_device_cpu, (enum ku_isa)isa, t->n + 1);
        print_message("%s\n", t->dev[0].name);
    }
    check_table(&devs, dtype, 3);
    for (int i = 0; i < devs.n; i++)
        for (int k = 0; k < devs.of[i].n; k++)
            device_close(&devs.of[i].dev[k]);
}

/* With caches of 64 bytes every table is larger: zeros past the caches. */
static void test_streamed_tables(void **state)
{
    struct op_devices devs = {.n = 1};
    struct op_threads *t = &devs.of[0];
    int n = 0;
    (void)state;
    for (t->n = 0; t->n < 2; t->n++) {
        t->dev[t->n] = device_open(&ku_device_cpu, ku_cpu_isa(), t->n + 1);
        struct ku_cpu *cpu = t->dev[t->n].dev;
        cpu->caches.l2_bytes = cpu->caches.l3_bytes = 64;
    }
    for (int i = 0; i < N_OP_ROWS; i++)
        for (int d = 0; d < 2 && strcmp(op_table[i].op, "embedding") == 0; d++, n++)
            check_row(&devs, &op_table[i], d ? KUMI_BF16 : KUMI_F32);
    assert_true(n > 0);
    for (int k = 0; k < t->n; k++)
        device_close(&t->dev[k]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_table),
                                       cmocka_unit_test(test_streamed_tables)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
