/* SPDX-License-Identifier: Apache-2.0 */
/* links: nn ir op tensor base */
/* A name with any byte is refused by the builder, or the graph's text reads back to the same text.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define KUMI_NO_SOURCE
#include "base/err.h"
#include "base/str.h"
#include "nn/builder.h"

static const char admitted[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./";

enum place { PORT, PARAMETER, LAYER, MODULE, OUTPUT, METRIC, SOURCE, N_PLACES };

/* A small graph with the name in one place; the first failure. */
static int build(struct kumi_graph *g, enum place at, const char *name)
{
    const int64_t count[] = {2, 3};
    kumi_value x = kumi_input(g, at == PORT ? name : "x", KUMI_F32, "nc", count);
    if (at == MODULE)
        kumi_graph_enter(g, "%s", name);
    kumi_param(g, at == PARAMETER ? name : "p", "c", &count[1], NULL);
    x = kumi_linear(g, x, at == LAYER ? name : "fc",
                    &(struct kumi_linear){.out = "f", .out_count = count});
    kumi_graph_built(g, at == SOURCE ? name : "a.c", 1, x);
    kumi_graph_output(g, at == OUTPUT ? name : "o", x);
    return kumi_graph_metric(g, at == METRIC ? name : "m", x, KUMI_METRIC_SUM);
}

/* Reads the graph's text; *out is its text again. */
static void read_back(const struct ku_str *text, struct ku_str *out)
{
    struct ku_graph *again;
    assert_int_equal(ku_graph_parse("text", ku_str_get(text), text->bytes, &again), KUMI_OK);
    assert_int_equal(ku_graph_print(again, out), KUMI_OK);
    ku_graph_destroy(again);
}

/* Reading numbers values anew, once. */
static void check_text(const struct ku_graph *ir)
{
    struct ku_str text = {0}, once = {0}, twice = {0};
    assert_int_equal(ku_graph_print(ir, &text), KUMI_OK);
    read_back(&text, &once);
    read_back(&once, &twice);
    assert_int_equal(text.bytes, once.bytes);
    assert_string_equal(ku_str_get(&once), ku_str_get(&twice));
    ku_str_fini(&twice);
    ku_str_fini(&once);
    ku_str_fini(&text);
}

static void test_every_byte(void **state)
{
    (void)state;
    for (int at = 0; at < N_PLACES; at++)
        for (int byte = 1; byte < 256; byte++) {
            const char name[] = {'a', (char)byte, 'b', '\0'};
            struct kumi_graph *g;
            assert_int_equal(kumi_graph_create(&g), KUMI_OK);
            int status = build(g, (enum place)at, name);
            int is_fine = at == SOURCE || strchr(admitted, byte) != NULL;
            if (status != (is_fine ? KUMI_OK : KUMI_EINVAL))
                fail_msg("place %d, byte 0x%02x: %d", at, (unsigned)byte, status);
            if (is_fine)
                check_text(g->ir);
            else
                assert_non_null(strstr(ku_err_get()->text, "names have letters, digits"));
            kumi_graph_destroy(g);
        }
}

static void test_lengths(void **state)
{
    (void)state;
    for (int at = 0; at < SOURCE; at++)
        for (size_t bytes = 200; bytes < 240; bytes++) {
            char name[256] = "";
            struct kumi_graph *g;
            memset(name, 'a', bytes);
            assert_int_equal(kumi_graph_create(&g), KUMI_OK);
            int status = build(g, (enum place)at, name);
            if (bytes >= KU_MAX_NAME_BYTES)
                assert_int_equal(status, KUMI_EINVAL);
            if (status == KUMI_OK)
                check_text(g->ir);
            kumi_graph_destroy(g);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_byte),
        cmocka_unit_test(test_lengths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
