/* SPDX-License-Identifier: Apache-2.0 */
/* links: base */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/os/yields.h"

enum { SHORT_NS = 3000, LONG_NS = 3000000 };

/* Waits without yields, until one may yield again */
static int n_skipped(struct ku_yields *y)
{
    int n = 0;
    while (!ku_yields_begin(y))
        n++;
    return n;
}

/* Long yields in a row are paid for by ever more waits, up to a limit. */
static void long_ones(void **state)
{
    static const int skipped[] = {8, 16, 32, 64, 128, 256, 512, 512, 512};
    struct ku_yields y = {0};
    (void)state;
    assert_int_equal(n_skipped(&y), 0);
    for (size_t i = 0; i < sizeof skipped / sizeof *skipped; i++) {
        assert_false(ku_yields_note(&y, LONG_NS));
        assert_int_equal(n_skipped(&y), skipped[i]);
    }
}

/* Short ones bring it back. */
static void short_ones(void **state)
{
    struct ku_yields y = {0};
    (void)state;
    for (int i = 0; i < 100; i++)
        assert_true(ku_yields_note(&y, SHORT_NS));
    for (int i = 0; i < 4; i++)
        assert_false(ku_yields_note(&y, LONG_NS));
    assert_int_equal(n_skipped(&y), 64);
    for (int i = 0; i < 100; i++)
        assert_true(ku_yields_note(&y, SHORT_NS));
    assert_false(ku_yields_note(&y, LONG_NS));
    assert_int_equal(n_skipped(&y), 28); /* 128 - 100 */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(long_ones), cmocka_unit_test(short_ones)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
