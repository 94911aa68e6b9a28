/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor op device */
/* Every op of the table on the cpu device: each instruction set, 1, 2 and 3 threads. */
#include "op/check.h"

static void on_isa(enum ku_isa isa)
{
    static const enum kumi_dtype dtype[] = {KUMI_F32, KUMI_BF16, KUMI_F16};
    struct op_device dev[3];
    if (isa > ku_cpu_isa())
        skip();
    for (int i = 0; i < 3; i++)
        dev[i] = device_open(&ku_device_cpu, isa, i + 1);
    check_table(dev, 3, dtype, 3);
    for (int i = 0; i < 3; i++)
        device_close(&dev[i]);
}
static void test_base(void **state)
{
    (void)state;
    on_isa(KU_ISA_BASE);
}
static void test_avx2(void **state)
{
    (void)state;
    on_isa(KU_ISA_AVX2);
}
static void test_avx512(void **state)
{
    (void)state;
    on_isa(KU_ISA_AVX512);
}
static void test_avx512bf16(void **state)
{
    (void)state;
    on_isa(KU_ISA_AVX512BF16);
}
static void test_amx(void **state)
{
    (void)state;
    on_isa(KU_ISA_AMX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base),   cmocka_unit_test(test_avx2),
        cmocka_unit_test(test_avx512), cmocka_unit_test(test_avx512bf16),
        cmocka_unit_test(test_amx),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
