/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor op device */
/* DeepSpeed's five schedules against an installed DeepSpeed, update by update
 * (tools/fixtures/deepspeed/make.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "device/step_scalars.h"
#include "op/check.h"
#include "../fixtures/deepspeed/checksum.h"

static const struct {
    const char *attrs;
    int n;
    uint64_t sum[CHECKSUM_BLOCKS];
} row[] = {
#include "../fixtures/deepspeed/schedules.h"
#include "op/schedule.h"
};

static void test_schedules(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_attrs a = ku_attrs_default;
        struct checksum c = {.want = row[i].sum, .what = row[i].attrs};
        parse_attrs(row[i].attrs, &a);
        for (int u = 0; u < row[i].n; u++)
            checksum_line(&c, "%.7e %.7e\n", ku_schedule_lr(&a, u),
                          ku_schedule_momentum(&a, 0.9, u));
        checksum_end(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_schedules)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
