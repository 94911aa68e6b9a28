/* SPDX-License-Identifier: Apache-2.0 */
/* links: base */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fault.h"
#include "base/json/json.h"
#include "base/mem.h"

static const char text[] = "{\n"
                           "  \"model\": {\"n_embd\": 128,\n"
                           "\t\"deep\": [ [1, 2], {\"x\": \"a\\\"]}\"}, -5e8 ],\n"
                           "    \"gr\xc3\xbc\xc3\x9f\": 1, \"after\": true\n"
                           "  },\n"
                           "  \"data\" :\n"
                           "     { \"train\" : [\"a,b\", \"c:{[\", null] , \"n_embd\": 0.5 },\n"
                           "  \"empty\": {}, \"none\": [], \"last\": \"\"\n"
                           "}\n";

static void test_where(void **state)
{
    static const struct {
        const char *path;
        int line, column, value_line, value_column;
    } row[] = {
        {"", 1, 1, 1, 1},
        {"model", 2, 3, 2, 12},
        {"model.n_embd", 2, 13, 2, 23},
        {"model.deep", 3, 2, 3, 10},
        {"model.deep[0]", 3, 12, 3, 12},
        {"model.deep[0][1]", 3, 16, 3, 16},
        {"model.deep[1].x", 3, 21, 3, 26},
        {"model.deep[2]", 3, 36, 3, 36},
        {"model.gr\xc3\xbc\xc3\x9f", 4, 5, 4, 13},
        {"model.after", 4, 16, 4, 25}, /* characters, not bytes */
        {"data", 6, 3, 7, 6},
        {"data.train", 7, 8, 7, 18},
        {"data.train[1]", 7, 26, 7, 26},
        {"data.train[2]", 7, 34, 7, 34},
        {"data.n_embd", 7, 42, 7, 52},
        {"empty", 8, 3, 8, 12},
        {"last", 8, 28, 8, 36},
        {"absent", 0, 0, 0, 0},
        {"model.absent", 0, 0, 0, 0},
        {"model.n_embd.x", 0, 0, 0, 0},
        {"model.n_emb", 0, 0, 0, 0},
        {"model[0]", 0, 0, 0, 0},
        {"data.train[3]", 0, 0, 0, 0},
        {"data.train.x", 0, 0, 0, 0},
        {"empty.x", 0, 0, 0, 0},
        {"none[0]", 0, 0, 0, 0},
        {"last[0]", 0, 0, 0, 0},
    };
    struct ku_json doc;
    (void)state;
    assert_int_equal(ku_json_parse("t.json", text, sizeof text - 1, &doc), KUMI_OK);
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        int line, column, value_line, value_column;
        ku_json_where(&doc, row[i].path, 0, &line, &column);
        ku_json_where(&doc, row[i].path, 1, &value_line, &value_column);
        if (line != row[i].line || column != row[i].column || value_line != row[i].value_line ||
            value_column != row[i].value_column)
            fail_msg("%s: %d:%d and %d:%d, not %d:%d and %d:%d", row[i].path, line, column,
                     value_line, value_column, row[i].line, row[i].column, row[i].value_line,
                     row[i].value_column);
        /* The text and jansson's tree agree on what there is. */
        assert_int_equal(line != 0, ku_json_at(doc.root, row[i].path) != NULL);
    }
    ku_json_fini(&doc);
    assert_null(doc.root);
    ku_json_fini(&doc);
}

static void test_refused(void **state)
{
    static const struct {
        const char *text;
        size_t bytes;
        const char *message;
    } row[] = {
        {"", 0, "json: t.json:1:1: "},
        {"{", 1, "json: t.json:1:1: "},
        {"{\"a\": 1,\n \"a\": 2}", 17, "json: t.json:2:4: duplicate object key"},
        {"{\"a\": 1} x", 10, "json: t.json:1:10: end of file expected"},
        {"{\"a\": 01}", 9, "json: t.json:1:"},
        {"{\"a\": NaN}", 10, "json: t.json:1:"},
        {"{'a': 1}", 8, "json: t.json:1:"},
        {"{\"a\": 1,}", 9, "json: t.json:1:9: "},
        {"{\"a\": \"\\u0000\"}", 15, "json: t.json:1:"},
        {"{\"a\": \"\0\"}", 10, "json: t.json:1:"},
        {"{\"a\": 1}\0", 9, "json: t.json:1:"},
        {"{\"a\": \"\xff\"}", 10, "json: t.json:1:"},
        {"{\"a\": 1e999}", 12, "json: t.json:1:"},
        {"{\"a\": 99999999999999999999}", 27, "json: t.json:1:"},
        {"\n\n  [1,\n   2 3]", 15, "json: t.json:4:6: "},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct ku_json doc;
        int status = ku_json_parse("t.json", row[i].text, row[i].bytes, &doc);
        const char *said = kumi_last_error()->text;
        if (status != KUMI_EINVAL || strncmp(said, row[i].message, strlen(row[i].message)) != 0)
            fail_msg("row %zu: %d, \"%s\", not \"%s\"", i, status, said, row[i].message);
        assert_null(doc.root);
    }
}

/* What other programs write: integers beyond 64 bits, NUL in a string. */
static void test_flags(void **state)
{
    static const char given[] =
        "{\"a\": [18446744073709551615, -1234567890123456789012, 123456789012345678],\n"
        " \"b\": \"\\\"1234567890123456789\", \"c\": 1e-1234567890123456789, \"d\": \"x\\u0000y\"}";
    struct ku_json doc;
    int line, column;
    (void)state;
    for (unsigned flags = 0; flags < 3; flags++)
        assert_int_equal(ku_json_parse_with("t", given, strlen(given), flags, &doc), KUMI_EINVAL);
    assert_int_equal(
        ku_json_parse_with("t", given, strlen(given), KU_JSON_NUL | KU_JSON_LONG_INTEGERS, &doc),
        KUMI_OK);
    assert_true(json_real_value(ku_json_at(doc.root, "a[0]")) == 1e19);
    assert_true(json_real_value(ku_json_at(doc.root, "a[1]")) == -1e21);
    assert_int_equal(json_integer_value(ku_json_at(doc.root, "a[2]")), 123456789012345678);
    assert_string_equal(json_string_value(ku_json_at(doc.root, "b")), "\"1234567890123456789");
    assert_true(json_real_value(ku_json_at(doc.root, "c")) == 0);
    assert_int_equal(json_string_length(ku_json_at(doc.root, "d")), 3);
    assert_memory_equal(json_string_value(ku_json_at(doc.root, "d")), "x\0y", 3);
    ku_json_where(&doc, "a[2]", 1, &line, &column);
    assert_int_equal(line, 1);
    assert_int_equal(column, 55);
    ku_json_fini(&doc);
    static const char zeros[] = "[0000000000000000000]";
    assert_int_equal(ku_json_parse_with("t", zeros, strlen(zeros), KU_JSON_LONG_INTEGERS, &doc),
                     KUMI_EINVAL);
}

/* As deep as an attacker likes: refused, not a stack overflow. */
static void test_depth(void **state)
{
    enum { DEPTH = 1 << 20 };
    struct ku_json doc;
    char *deep = malloc(DEPTH);
    (void)state;
    assert_non_null(deep);
    memset(deep, '[', DEPTH);
    assert_int_equal(ku_json_parse("t.json", deep, DEPTH, &doc), KUMI_EINVAL);
    free(deep);
}

static void test_set(void **state)
{
    json_t *root = json_pack("{s:{s:i}, s:[i,i]}", "model", "n", 1, "list", 4, 5);
    int64_t x;
    (void)state;
    assert_int_equal(ku_json_set(root, "model.n", json_integer(2)), KUMI_OK);
    assert_int_equal(ku_json_set(root, "train.deep.er", json_string("x")), KUMI_OK);
    assert_int_equal(ku_json_set(root, "top", json_null()), KUMI_OK);
    assert_int_equal(ku_json_int(ku_json_at(root, "model.n"), &x), 0);
    assert_int_equal(x, 2);
    assert_string_equal(json_string_value(ku_json_at(root, "train.deep.er")), "x");
    assert_true(json_is_null(ku_json_at(root, "top")));
    assert_int_equal(ku_json_set(root, "top.in", json_integer(6)), KUMI_OK); /* null: as absent */
    assert_int_equal(ku_json_int(ku_json_at(root, "top.in"), &x), 0);
    assert_int_equal(x, 6);
    assert_ptr_equal(ku_json_at(root, ""), root);
    static const char *const wrong[] = {"model.n.x", "list.x", "list[0]", "", ".x", "model..x"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        if (ku_json_set(root, wrong[i], json_integer(3)) != KUMI_EINVAL)
            fail_msg("%s was set", wrong[i]);
        assert_non_null(strstr(kumi_last_error()->text, wrong[i]));
    }
    assert_int_equal(json_integer_value(ku_json_at(root, "list[1]")), 5);
    assert_null(ku_json_at(root, "list[2]"));
    json_decref(root);
}

static void test_int(void **state)
{
    static const struct {
        const char *text;
        int status;
        int64_t x;
    } row[] = {{"7", 0, 7},
               {"-7", 0, -7},
               {"5e8", 0, 500000000},
               {"5E+2", 0, 500},
               {"2.0", 0, 2},
               {"-0.0", 0, 0},
               {"9223372036854775807", 0, INT64_MAX},
               {"9007199254740992.0", 0, INT64_C(9007199254740992)},
               {"9007199254740994.0", -1, 0},
               {"1e300", -1, 0},
               {"0.5", -1, 0},
               {"true", -1, 0},
               {"null", -1, 0},
               {"\"5\"", -1, 0},
               {"[5]", -1, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        json_t *v = json_loads(row[i].text, JSON_DECODE_ANY, NULL);
        int64_t x = 0;
        assert_non_null(v);
        if (ku_json_int(v, &x) != row[i].status || x != row[i].x)
            fail_msg("%s: %lld", row[i].text, (long long)x);
        json_decref(v);
    }
    int64_t x;
    assert_int_equal(ku_json_int(NULL, &x), -1);
}

static void test_load(void **state)
{
    char path[] = "/tmp/kumi-test-XXXXXX";
    int fd = mkstemp(path), line, column;
    struct ku_json doc;
    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
    close(fd);
    assert_int_equal(ku_json_load(path, 1 << 20, &doc), KUMI_OK);
    assert_string_equal(doc.name, path);
    ku_json_where(&doc, "data", 0, &line, &column);
    assert_int_equal(line, 6);
    ku_json_fini(&doc);
    assert_int_equal(ku_json_load(path, sizeof text - 2, &doc), KUMI_EINVAL);
    assert_non_null(strstr(kumi_last_error()->text, "File too large"));
    for (int n = 1;; n++) { /* every allocation and system call of it in turn */
        char fault[32];
        snprintf(fault, sizeof fault, "%s:%d", n % 2 ? "mem" : "os", (n + 1) / 2);
        ku_fault_set(fault);
        int status = ku_json_load(path, 1 << 20, &doc);
        ku_fault_set(NULL);
        if (status == KUMI_OK) {
            ku_json_fini(&doc);
            if (n > 12)
                break;
        } else {
            assert_true(status == KUMI_ENOMEM || status == KUMI_EINVAL);
            assert_null(doc.root);
            assert_null(doc.text);
        }
    }
    unlink(path);
    assert_int_equal(ku_json_load(path, 1 << 20, &doc), KUMI_EINVAL);
    assert_non_null(strstr(kumi_last_error()->text, "cannot be read: No such file or directory"));
    assert_int_equal(ku_json_load("/tmp", 1 << 20, &doc), KUMI_EINVAL);
    assert_non_null(strstr(kumi_last_error()->text, "Is a directory"));
}

/* Reals are printed as the shortest text of the same double; what only looks like one is not
 * touched. */
static void test_print(void **state)
{
    static const char *const row[][2] = {
        {"[0.1]", "[0.1]"},
        {"[1e-5,-2.5E+300]", "[1e-05,-2.5e+300]"},
        {"[3.0,-0.0,1e3]", "[3.0,-0.0,1000.0]"},
        {"[0.30000000000000004]", "[0.30000000000000004]"},
        {"[12345678901234567]", "[12345678901234567]"},
        {"{\"0.10000000000000001\":\"a\\\"0.10000000000000001\"}",
         "{\"0.10000000000000001\":\"a\\\"0.10000000000000001\"}"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        json_t *v = json_loads(row[i][0], 0, NULL);
        char *printed = ku_json_print(v, JSON_COMPACT);
        json_t *again = json_loads(printed, 0, NULL);
        assert_string_equal(printed, row[i][1]);
        assert_true(json_equal(v, again));
        ku_free(printed);
        json_decref(v);
        json_decref(again);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_where), cmocka_unit_test(test_refused), cmocka_unit_test(test_flags),
        cmocka_unit_test(test_depth), cmocka_unit_test(test_set),     cmocka_unit_test(test_int),
        cmocka_unit_test(test_load),  cmocka_unit_test(test_print),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
