/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor op device */
/* Every op of the table on the ref device in all float dtypes. */
#include "op/check.h"

static void test_table(void **state)
{
    static const enum kumi_dtype dtype[] = {KUMI_F64, KUMI_F32, KUMI_BF16, KUMI_F16};
    (void)state;
    struct op_device dev = ref_device();
    check_table(&dev, 1, dtype, 4);
    device_close(&dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
