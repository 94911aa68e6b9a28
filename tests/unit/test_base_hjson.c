/* SPDX-License-Identifier: Apache-2.0 */
/* links: base */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fault.h"
#include "base/json/hjson.h"
#include "base/mem.h"

static const struct {
    const char *text, *json; /* what it means, printed compactly */
} good[] = {
    {"{}", "{}"},
    {" [ ] ", "[]"},
    {"{\"a\": 1, \"b\": [1, 2.5, -3e2, true, false, null]}",
     "{\"a\":1,\"b\":[1,2.5,-300.0,true,false,null]}"},
    {"# first\n// second\n/* third\n */ {a: 1 # x\n, b /* y */ : 2 // z\n}\n# last",
     "{\"a\":1,\"b\":2}"},
    {"{a: [1, 2, ], b: {c: 3,},}", "{\"a\":[1,2],\"b\":{\"c\":3}}"},
    {"{a: [1, # two\n 2, // three\n /* none */ ],\n}", "{\"a\":[1,2]}"},
    {"{stage: 5e8, under_score-dash.dot: 1}", "{\"stage\":500000000.0,\"under_score-dash.dot\":1}"},
    {"{\"#\": \"// no /* comment #\", \"a\\\"b\": \"}\"}",
     "{\"#\":\"// no /* comment #\",\"a\\\"b\":\"}\"}"},
    {"{gr\xc3\xbc\xc3\x9f: \"\\u00fc\"}", "{\"gr\xc3\xbc\xc3\x9f\":\"\xc3\xbc\"}"},
    {"{a:1//x\n,b:2#y\n,c:3/*z*/,d:[4/**/]}", "{\"a\":1,\"b\":2,\"c\":3,\"d\":[4]}"},
    {"\r\n{\t\"a\"\r\n:\t1\r\n}", "{\"a\":1}"},
};

static void test_good(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct ku_json doc;
        int status = ku_hjson_parse("d.json", good[i].text, strlen(good[i].text), &doc);
        if (status < 0)
            print_error("%s\n%s\n", good[i].text, ku_err_get()->text);
        assert_int_equal(status, KUMI_OK);
        char *text = ku_json_print(doc.root, JSON_COMPACT);
        assert_string_equal(text, good[i].json);
        ku_free(text);
        ku_json_fini(&doc);
    }
}

static const struct {
    const char *text, *error;
} bad[] = {
    {"", "1:1: an opening { is missing; hjson's omitted outer braces are not supported"},
    {"a: 1", "1:1: an opening { is missing; hjson's omitted outer braces are not supported"},
    {"# x\n  /* y", "2:3: this comment has no end; close it with */"},
    {"{a: cpu}", "1:5: hjson's unquoted strings are not supported; use \"\""},
    {"{a: 1,\n b: nan}", "2:5: hjson's unquoted strings are not supported; use \"\""},
    {"{a: 'cpu'}", "1:5: hjson's single-quoted strings are not supported; use \"\""},
    {"{'a': 1}", "1:2: hjson's single-quoted strings are not supported; use \"\""},
    {"{a:\n '''x'''}", "2:2: hjson's multi-line strings are not supported; use \"\" and \\n"},
    {"{a: 1\n b: 2}",
     "2:2: a comma is missing before this; hjson's omitted commas are not supported"},
    {"[1 2]", "1:4: a comma is missing before this; hjson's omitted commas are not supported"},
    {"{,}", "1:2: a comma without a value before it"},
    {"{a: 1,, b: 2}", "1:7: a comma without a value before it"},
    {"[,]", "1:2: a comma without a value before it"},
    {"{a 1}", "1:4: a colon is missing after the key"},
    {"{a}", "1:3: a colon is missing after the key"},
    {"{: 1}", "1:2: a key is missing here; write it in quotes"},
    {"{{}: 1}", "1:2: a key is missing here; write it in quotes"},
    {"{a: }", "1:5: unexpected token near '}'"},
    {"{a: :}", "1:5: a value is missing here"},
    {"{a: [1}", "1:7: a closing bracket of the wrong kind"},
    {"{a: 1]", "1:6: a closing bracket of the wrong kind"},
    {"{a: 1", "1:6: the text ends before its last bracket is closed"},
    {"{a: {b: 1}\n", "2:1: the text ends before its last bracket is closed"},
    {"{} x", "1:4: nothing may follow the last bracket"},
    {"{a: 1, # c\n \"a\": 2}", "2:4: duplicate object key near '\"a\"'"},
    {"{a: 01}", "1:5: invalid token near '0'"},
    {"{/* x */ a: -}", "1:13: invalid token near '-'"},
    {"{a: \"x\ny\"}", "1:5: this string has no closing quote on its line"},
    {"{\"a", "1:2: this string has no closing quote on its line"},
    {"{a: \"x\\", "1:5: this string has no closing quote on its line"},
    {"{a: \"\xff\"}", "1:5: unable to decode byte 0xff near '\"'"},
};

static void test_bad(void **state)
{
    struct ku_json doc;
    char wanted[256];
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int status = ku_hjson_parse("d.json", bad[i].text, strlen(bad[i].text), &doc);
        snprintf(wanted, sizeof wanted, "json: d.json:%s", bad[i].error);
        if (status == KUMI_OK)
            print_error("accepted: %s\n", bad[i].text);
        assert_int_equal(status, KUMI_EINVAL);
        assert_string_equal(ku_err_get()->text, wanted);
        assert_null(doc.root);
    }
    assert_int_equal(ku_hjson_parse("d.json", "{a\0: 1}", 7, &doc), KUMI_EINVAL);
    assert_string_equal(ku_err_get()->text, "json: d.json:1:3: a NUL byte");
}

static void test_limits(void **state)
{
    struct ku_json doc;
    char *big = ku_malloc(KU_HJSON_MAX_BYTES + 1);
    (void)state;
    memset(big, ' ', KU_HJSON_MAX_BYTES + 1);
    big[0] = '{';
    big[KU_HJSON_MAX_BYTES - 1] = '}';
    assert_int_equal(ku_hjson_parse("d.json", big, KU_HJSON_MAX_BYTES, &doc), KUMI_OK);
    ku_json_fini(&doc);
    assert_int_equal(ku_hjson_parse("d.json", big, KU_HJSON_MAX_BYTES + 1, &doc), KUMI_EINVAL);
    assert_string_equal(ku_err_get()->text, "json: d.json: 1048577 bytes; at most 1048576");
    for (int depth = KU_HJSON_MAX_DEPTH; depth <= KU_HJSON_MAX_DEPTH + 1; depth++) {
        memset(big, '[', (size_t)depth);
        memset(big + depth, ']', (size_t)depth);
        int status = ku_hjson_parse("d.json", big, 2 * (size_t)depth, &doc);
        assert_int_equal(status, depth == KU_HJSON_MAX_DEPTH ? KUMI_OK : KUMI_EINVAL);
        ku_json_fini(&doc);
    }
    assert_string_equal(ku_err_get()->text, "json: d.json:1:65: nested deeper than 64 levels");
    ku_free(big);
}

/* Places are those of the text as written, whatever stood between. */
static void test_where(void **state)
{
    static const char text[] = "// a file\n"
                               "{\n"
                               "  /* two */ fp16: { enabled: true, }, # three\n"
                               "\tgr\xc3\xbc\xc3\x9f: 1, zero: { \"stage\" /* \xc3\xbc */ : 2 },\n"
                               "  list: [ 1, /**/ {x: 2}, ],\n"
                               "}\n";
    static const struct {
        const char *path;
        int line, column, value_line, value_column;
    } row[] = {{"", 2, 1, 2, 1},
               {"fp16", 3, 13, 3, 19},
               {"fp16.enabled", 3, 21, 3, 30},
               {"gr\xc3\xbc\xc3\x9f", 4, 2, 4, 8},
               {"zero.stage", 4, 19, 4, 37},
               {"list[1].x", 5, 20, 5, 23},
               {"list[2]", 0, 0, 0, 0},
               {"fp16.x", 0, 0, 0, 0}};
    struct ku_json doc;
    (void)state;
    assert_int_equal(ku_hjson_parse("d.json", text, sizeof text - 1, &doc), KUMI_OK);
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        int line, column;
        ku_json_where(&doc, row[i].path, 0, &line, &column);
        assert_int_equal(line * 100 + column, row[i].line * 100 + row[i].column);
        ku_json_where(&doc, row[i].path, 1, &line, &column);
        assert_int_equal(line * 100 + column, row[i].value_line * 100 + row[i].value_column);
    }
    ku_json_fini(&doc);
}

static void test_files(void **state)
{
    struct ku_json doc;
    char path[] = "/tmp/kumi-hjson-XXXXXX";
    int fd = mkstemp(path);
    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "{a: 1,}", 7), 7);
    close(fd);
    assert_int_equal(ku_hjson_load(path, &doc), KUMI_OK);
    assert_string_equal(doc.name, path);
    assert_int_equal(json_integer_value(json_object_get(doc.root, "a")), 1);
    ku_json_fini(&doc);
    unlink(path);
    assert_int_equal(ku_hjson_load(path, &doc), KUMI_EINVAL);
    assert_non_null(strstr(ku_err_get()->text, ": cannot be read: No such file or directory"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),  cmocka_unit_test(test_bad),   cmocka_unit_test(test_limits),
        cmocka_unit_test(test_where), cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
