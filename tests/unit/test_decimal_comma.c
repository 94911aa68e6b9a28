/* SPDX-License-Identifier: Apache-2.0 */
/* links: app plan infer train remote run model config base */
/*
 * A program that uses kumi may have set a locale with a decimal comma. What is read and written for
 * programs has a point all the same.
 */
#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/err.h"
#include "base/json/json.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/str.h"
#include "config/keys.h"
#include "op/attr.h"
#include "run/metrics.h"

/* The comma is still the program's. */
static void assert_comma(void)
{
    char text[16];
    snprintf(text, sizeof text, "%.1f", 0.5);
    assert_string_equal(text, "0,5");
}

static void test_text(void **state)
{
    struct ku_str s = {0};
    char text[16], *end;
    (void)state;
    assert_int_equal(ku_text_print(text, sizeof text, "%.2f", 1.25), 4);
    assert_string_equal(text, "1.25");
    assert_true(ku_text_number("0.9s", &end) == 0.9 && *end == 's');
    assert_true(ku_text_number("0,9", &end) == 0 && *end == ',');
    assert_string_equal(ku_text_bytes(1536, text), "  1.50 KiB");
    ku_str_add(&s, "%g %s", 0.9, "or");
    ku_str_add(&s, " %.3e", 0.125);
    assert_string_equal(ku_str_get(&s), "0.9 or 1.250e-01");
    ku_str_fini(&s);
    assert_int_equal(KU_ERR(KUMI_EINVAL, "lr: %g", 0.5), KUMI_EINVAL);
    assert_string_equal(ku_err_get()->text, "lr: 0.5");
    assert_comma();
}

static void test_json(void **state)
{
    static const char given[] = "{\"x\":[0.9,3.0,-0.1]}";
    struct ku_json doc;
    (void)state;
    assert_int_equal(ku_json_parse("doc", given, strlen(given), &doc), KUMI_OK);
    assert_true(json_real_value(ku_json_at(doc.root, "x[0]")) == 0.9);
    char *text = ku_json_print(doc.root, JSON_COMPACT);
    assert_non_null(text);
    assert_string_equal(text, "{\"x\":[0.9,3.0,-0.1]}");
    ku_free(text);
    ku_json_fini(&doc);
    assert_comma();
}

static void test_attributes(void **state)
{
    struct ku_attrs a = ku_attrs_default;
    struct ku_str s = {0};
    (void)state;
    assert_int_equal(ku_attrs_set(&a, "eps", "0.25"), KUMI_OK);
    assert_true(a.eps == 0.25);
    ku_attrs_print(&a, &s);
    assert_string_equal(ku_str_get(&s), " eps=0.25");
    ku_str_fini(&s);
    assert_true(ku_key_default_number("data.val_fraction") == 0.1);
}

static void test_metrics(void **state)
{
    static const struct kumi_result_metrics none = {.n = 0};
    struct ku_metrics_line line = {
        .step = 1, .n_steps = 2, .tokens = 24, .loss = 0.9, .step_ms = 90.5, .metrics = &none};
    struct ku_metrics *m;
    struct ku_json row;
    char *text, *end;
    size_t bytes;
    (void)state;
    assert_int_equal(ku_metrics_open(".", 0, 0, &m), KUMI_OK);
    ku_metrics_step(m, &line, 1);
    ku_metrics_close(m);
    assert_int_equal(ku_os_slurp("metrics.jsonl", 1 << 16, &text, &bytes), 0);
    assert_non_null(end = strchr(text, '\n'));
    assert_int_equal(ku_json_parse("row", text, (size_t)(end - text), &row), KUMI_OK);
    assert_true(json_real_value(ku_json_at(row.root, "loss")) == 0.9);
    assert_true(json_real_value(ku_json_at(row.root, "step_ms")) == 90.5);
    ku_json_fini(&row);
    ku_free(text);
}

/* A locale with a comma, in the working directory: systems need not have one installed. */
static bool set_comma(const char *folder)
{
    FILE *f = fopen("comma", "w");
    if (f == NULL ||
        fputs("LC_NUMERIC\ndecimal_point \",\"\nthousands_sep \"\"\ngrouping -1\n"
              "END LC_NUMERIC\n",
              f) < 0 ||
        fclose(f) != 0)
        return false;
    /* it warns of the other categories, and its status is 1 then */
    if (system("localedef -c -i ./comma ./xx_XX >localedef.log 2>&1") < 0)
        return false;
    setenv("LOCPATH", folder, 1);
    return setlocale(LC_NUMERIC, "xx_XX") != NULL && strcmp(localeconv()->decimal_point, ",") == 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_attributes),
        cmocka_unit_test(test_metrics),
    };
    char folder[] = "/tmp/kumi-test-comma-XXXXXX";
    if (mkdtemp(folder) == NULL || chdir(folder) < 0)
        return 1;
    int result = set_comma(folder) ? cmocka_run_group_tests(tests, NULL, NULL) : 77;
    return chdir("/") < 0 || ku_os_rmtree(folder) < 0 ? 1 : result;
}
