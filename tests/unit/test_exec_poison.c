/* SPDX-License-Identifier: Apache-2.0 */
/* links: base tensor op ir exec */
/* Under AddressSanitizer: from instruction to instruction, bytes of living buffers can be touched
 * and no others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "exec/poison.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>

enum { UNIT = 64, N_UNITS = 6, N_INSTRS = 6 };

/* Which units can be touched, as a picture. */
static void expect(const unsigned char *arena, int at, const char *want)
{
    char is[N_UNITS + 1] = "";
    for (int u = 0; u < N_UNITS; u++) {
        int first = __asan_address_is_poisoned(arena + u * UNIT);
        assert_int_equal(first, __asan_address_is_poisoned(arena + (u + 1) * UNIT - 1));
        is[u] = first ? '.' : 'x';
    }
    if (strcmp(is, want) != 0)
        fail_msg("before instruction %d: %s, not %s", at, is, want);
}

static void test_lives(void **state)
{
    struct ku_buffer buffer[] = {
        {0},
        {.arena = KU_AR_STEP, .first = 0, .last = 2, .offset = 0, .bytes = 2 * UNIT},
        {.arena = KU_AR_STEP, .first = 1, .last = 1, .offset = 3 * UNIT, .bytes = UNIT},
        /* takes half of what the first had; then another begins on the other half */
        {.arena = KU_AR_STEP, .first = 2, .last = 3, .offset = 0, .bytes = UNIT, .home = 1},
        {.arena = KU_AR_STEP, .first = 4, .last = 5, .offset = UNIT, .bytes = 2 * UNIT},
        {.arena = KU_AR_WIRE, .first = 0, .last = 5, .offset = 5 * UNIT, .bytes = UNIT},
        {.arena = KU_AR_STEP, .first = UINT32_MAX, .last = 0, .offset = 4 * UNIT, .bytes = UNIT},
    };
    const struct ku_program p = {
        .n_instrs = N_INSTRS, .n_buffers = sizeof buffer / sizeof buffer[0], .buffer = buffer};
    static const char *const want[N_INSTRS] = {"xx....", "xx.x..", "xx....",
                                               "xx....", ".xx...", ".xx..."};
    unsigned char *arena = aligned_alloc(UNIT, UNIT * N_UNITS);
    struct ku_poison *poison;
    (void)state;
    assert_non_null(arena);
    assert_int_equal(ku_poison_create(&p, arena, &poison), 0);
    for (int run = 0; run < 2; run++) {
        ku_poison_begin(poison, UNIT * N_UNITS);
        for (uint32_t i = 0; i < N_INSTRS; i++) {
            ku_poison_before(poison, i);
            expect(arena, (int)i, want[i]);
        }
    }
    ku_poison_destroy(poison);
    expect(arena, N_INSTRS, "xxxxxx");
    free(arena);
}
#else
static void test_lives(void **state)
{
    struct ku_poison *poison;
    (void)state;
    assert_int_equal(ku_poison_create(NULL, NULL, &poison), 0);
    assert_null(poison);
    skip();
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lives)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
