/* SPDX-License-Identifier: Apache-2.0 */
/* links: base */
/* Memory, texts, and the fault injector itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/str.h"

/* AddressSanitizer asks for this: too much memory is NULL, not the end. */
const char *__asan_default_options(void) __attribute__((visibility("default")));
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

/* Every way to get memory, as one table: each must give memory, and NULL with the record on a
 * fault. */
static void *by_malloc(void)
{
    return ku_malloc(100);
}
static void *by_calloc(void)
{
    return ku_calloc(10, 10);
}
static void *by_realloc(void)
{
    return ku_realloc(NULL, 10, 10);
}
static void *by_aligned(void)
{
    return ku_malloc_aligned(4096, 100);
}
static void *by_strdup(void)
{
    return ku_strdup("text");
}
static void *by_asprintf(void)
{
    return ku_asprintf("%d ranks", 5);
}
static void *by_nothing(void)
{
    return ku_malloc(0);
}
static const struct {
    const char *name;
    void *(*get)(void);
} way[] = {{"malloc", by_malloc},     {"calloc", by_calloc}, {"realloc", by_realloc},
           {"aligned", by_aligned},   {"strdup", by_strdup}, {"asprintf", by_asprintf},
           {"zero bytes", by_nothing}};
enum { N_WAYS = sizeof way / sizeof way[0] };

static void test_fault_mem(void **state)
{
    (void)state;
    for (int w = 0; w < N_WAYS; w++)
        for (int n = 1; n <= 3; n++) {
            char spec[16];
            snprintf(spec, sizeof spec, "mem:%d", n);
            ku_fault_set(spec);
            for (int call = 1; call <= 12; call++) { /* the n-th alone, never again */
                void *at = way[w].get();
                if ((at == NULL) != (call == n))
                    fail_msg("%s: call %d of mem:%d", way[w].name, call, n);
                if (at == NULL) {
                    assert_int_equal(kumi_last_error()->status, KUMI_ENOMEM);
                    assert_int_equal(kumi_last_error()->sys_errno, ENOMEM);
                }
                ku_free(at);
            }
        }
    ku_fault_set(NULL);
}

static void test_fault_kinds(void **state)
{
    static const struct {
        const char *spec;
        enum ku_fault kind;
        int due[4], error;
    } row[] = {
        {"os:2", KU_FAULT_OS, {0, 1, 0, 0}, EIO},
        {"os:2", KU_FAULT_WRITE, {0, 1, 0, 0}, EIO},
        {"os:2", KU_FAULT_MEM, {0, 0, 0, 0}, 0},
        {"write:2", KU_FAULT_WRITE, {0, 1, 1, 1}, ENOSPC},
        {"write:2", KU_FAULT_OS, {0, 0, 0, 0}, 0},
        {"write:1", KU_FAULT_WRITE, {1, 1, 1, 1}, ENOSPC},
        {"mem:1", KU_FAULT_OS, {0, 0, 0, 0}, 0},
        {"mem:1", KU_FAULT_MEM, {1, 0, 0, 0}, ENOMEM},
        {"", KU_FAULT_MEM, {0, 0, 0, 0}, 0},
        {NULL, KU_FAULT_OS, {0, 0, 0, 0}, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        ku_fault_set(row[i].spec);
        for (int call = 0; call < 4; call++) {
            errno = 0;
            assert_int_equal(ku_fault_is_due(row[i].kind), row[i].due[call]);
            assert_int_equal(errno, row[i].due[call] ? row[i].error : 0);
        }
    }
    ku_fault_set(NULL);
}

/* Runs ku_fault_set(spec) in a child and returns what it said on stderr. */
static const char *said_about(const char *spec)
{
    static char said[256];
    int end[2], status;
    assert_int_equal(pipe(end), 0);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(end[1], 2);
        ku_fault_set(spec);
        _exit(ku_fault_is_due(KU_FAULT_MEM) || ku_fault_is_due(KU_FAULT_OS));
    }
    close(end[1]);
    ssize_t n = read(end[0], said, sizeof said - 1);
    said[n > 0 ? n : 0] = '\0';
    close(end[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    return said;
}

static void test_fault_words(void **state)
{
    static const char *const wrong[] = {"mem",  "mem:",  "mem:0", "mem:-1",
                                        "os:x", "os:3x", "disk:1"};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char expected[64];
        snprintf(expected, sizeof expected, "kumi: KUMI_FAULT: %s: unknown; ", wrong[i]);
        assert_memory_equal(said_about(wrong[i]), expected, strlen(expected));
    }
    assert_string_equal(said_about("mem:99"), "");
    assert_string_equal(said_about(""), "");
}

static void test_mem(void **state)
{
    (void)state;
    char *zeros = ku_calloc(3, 1000);
    for (int i = 0; i < 3000; i++)
        assert_int_equal(zeros[i], 0);
    zeros[2999] = 7;
    zeros = ku_realloc(zeros, 10000, 3);
    assert_int_equal(zeros[2999], 7);
    ku_free(zeros);
    for (size_t align = 16; align <= 1 << 21; align *= 2) {
        void *at = ku_malloc_aligned(align, 1);
        assert_int_equal((uintptr_t)at % align, 0);
        ku_free(at);
    }
    assert_null(ku_calloc(SIZE_MAX / 2, 3));
    assert_non_null(strstr(kumi_last_error()->text, "size overflow"));
    assert_null(ku_realloc(NULL, SIZE_MAX, 2));
    assert_null(ku_malloc(SIZE_MAX / 2 - 4096));
    assert_int_equal(kumi_last_error()->status, KUMI_ENOMEM);
    ku_free(NULL);
    size_t out = 5;
    assert_int_equal(ku_mul_size(1u << 31, 2, &out), KUMI_OK);
    assert_true(out == (size_t)1 << 32);
    assert_int_equal(ku_mul_size(SIZE_MAX, 2, &out), KUMI_ENOMEM);
    assert_int_equal(ku_add_size(SIZE_MAX, 1, &out), KUMI_ENOMEM);
    assert_true(out == (size_t)1 << 32);
    assert_int_equal(ku_add_size(SIZE_MAX, 0, &out), KUMI_OK);
    assert_true(out == SIZE_MAX);
}

static void test_grow(void **state)
{
    (void)state;
    struct pair {
        int64_t a, b;
    } *list = NULL;
    uint32_t cap = 0;
    for (uint32_t n = 0; n < 1000; n++) {
        assert_int_equal(KU_GROW(&list, n, &cap), KUMI_OK);
        assert_true(cap > n);
        assert_int_equal(list[n].a, 0);
        assert_int_equal(list[n].b, 0);
        list[n].a = n + 1;
    }
    for (uint32_t n = 0; n < 1000; n++)
        assert_int_equal(list[n].a, n + 1);
    struct pair *before = list;
    uint32_t cap_before = cap;
    ku_fault_set("mem:1");
    assert_int_equal(ku_grow((void **)&list, sizeof *list, 1000, cap, &cap), KUMI_ENOMEM);
    ku_fault_set(NULL);
    assert_ptr_equal(list, before);
    assert_int_equal(cap, cap_before);
    assert_int_equal(ku_grow((void **)&list, sizeof *list, 7, UINT32_MAX, &cap), KUMI_ENOMEM);
    assert_int_equal(ku_grow((void **)&list, SIZE_MAX / 2, 5, cap, &cap), KUMI_ENOMEM);
    assert_int_equal(cap, cap_before);
    ku_free(list);
}

static void test_str(void **state)
{
    struct ku_str s = {0};
    (void)state;
    assert_string_equal(ku_str_get(&s), "");
    ku_str_add(&s, "%s", "");
    assert_string_equal(ku_str_get(&s), "");
    for (int i = 0; i < 500; i++)
        ku_str_add(&s, "%d,", i % 10);
    ku_str_append(&s, "a\0b", 3);
    assert_int_equal(s.bytes, 1003);
    assert_memory_equal(s.text + 994, "7,8,9,a\0b", 10);
    ku_str_add(&s, "%0*d", 5000, 1); /* more than a doubling */
    assert_int_equal(s.bytes, 6003);
    assert_int_equal(s.failed, 0);
    ku_fault_set("mem:1");
    ku_str_add(&s, "%0*d", 9000, 1);
    ku_fault_set(NULL);
    assert_int_equal(s.failed, 1);
    ku_str_add(&s, "more");
    assert_int_equal(s.bytes, 6003);
    assert_int_equal(s.text[6003], 0);
    ku_str_fini(&s);
    assert_int_equal(s.failed, 0);
    ku_str_append(&s, "x", 1);
    ku_str_append(&s, "", SIZE_MAX);
    assert_int_equal(s.failed, 1);
    assert_string_equal(ku_str_get(&s), "x");
    ku_str_fini(&s);
}

static void test_distance(void **state)
{
    static const struct {
        const char *a, *b;
        int edits;
    } row[] = {
        {"", "", 0},       {"", "abc", 3},         {"abc", "", 3},     {"abc", "abc", 0},
        {"abc", "acb", 1}, {"abc", "axc", 1},      {"abc", "abxc", 1}, {"kitten", "sitting", 3},
        {"ca", "abc", 3},  {"n_embd", "n_emdb", 1}};
    static const char *const key[] = {"n_layer", "n_head", "n_embd", "lr", "betas", "seed"};
    static const struct {
        const char *word, *nearest;
    } near[] = {{"n_layers", "n_layer"},
                {"nlayer", "n_layer"},
                {"n_haed", "n_head"},
                {"Lr", "lr"},
                {"beta", "betas"},
                {"sed", "seed"},
                {"n_embed", "n_embd"},
                {"virtual_shards", NULL},
                {"xy", NULL},
                {"", NULL},
                {"momentum", NULL}};
    char long_word[300];
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        assert_int_equal(ku_str_distance(row[i].a, row[i].b), row[i].edits);
        assert_int_equal(ku_str_distance(row[i].b, row[i].a), row[i].edits);
    }
    for (size_t i = 0; i < sizeof near / sizeof near[0]; i++) {
        const char *got = ku_str_nearest(near[i].word, key, 6);
        if ((got == NULL) != (near[i].nearest == NULL) || (got && strcmp(got, near[i].nearest)))
            fail_msg("%s: %s, not %s", near[i].word, got ? got : "nothing",
                     near[i].nearest ? near[i].nearest : "nothing");
    }
    memset(long_word, 'n', sizeof long_word - 1);
    long_word[sizeof long_word - 1] = '\0';
    assert_null(ku_str_nearest(long_word, key, 6));
    assert_null(ku_str_nearest("lr", key, 0));
}

static void test_glob(void **state)
{
    static const struct {
        const char *pattern, *text;
        int is_match;
    } row[] = {{"", "", 1},
               {"", "a", 0},
               {"*", "", 1},
               {"*", "h.0.attn", 1},
               {"h.*", "h.0.attn.weight", 1},
               {"h.*.weight", "h.0.attn.weight", 1},
               {"h.*.weight", "h.0.attn.bias", 0},
               {"h.?.attn", "h.1.attn", 1},
               {"h.?.attn", "h.11.attn", 0},
               {"?", "", 0},
               {"*a*b", "xaybzb", 1},
               {"*a*b", "xaybz", 0},
               {"**", "x", 1},
               {"wte", "wte.weight", 0},
               {"a*a*a*a*a*a*a*a*c", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", 0},
               {"x*", "y", 0}};
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        if (ku_str_glob(row[i].pattern, row[i].text) != row[i].is_match)
            fail_msg("%s against %s", row[i].pattern, row[i].text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fault_mem),   cmocka_unit_test(test_fault_kinds),
        cmocka_unit_test(test_fault_words), cmocka_unit_test(test_mem),
        cmocka_unit_test(test_grow),        cmocka_unit_test(test_str),
        cmocka_unit_test(test_distance),    cmocka_unit_test(test_glob),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
