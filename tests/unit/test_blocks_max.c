/* SPDX-License-Identifier: Apache-2.0 */
/* links: tensor base */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "tensor/blocks.h"

/* The closed form against the ranges of all ranks. */
static void largest_part(void **state)
{
    (void)state;
    for (int64_t count = 0; count <= 45; count++)
        for (int64_t block = 0; block <= 5; block++)
            for (int n = 1; n <= 7; n++)
                for (int64_t first = 0; first <= n; first++) {
                    int64_t begin, end, most = 0;
                    for (int rank = 0; rank < n; rank++) {
                        ku_blocks_range(count, block, first, n, rank, &begin, &end);
                        most = end - begin > most ? end - begin : most;
                    }
                    assert_int_equal(ku_blocks_max(count, block, first, n), most);
                }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(largest_part)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
