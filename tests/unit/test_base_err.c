/* SPDX-License-Identifier: Apache-2.0 */
/* links: base */
/* The error record, what is printed, log levels; hashes and CPU names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cpu/cpu_features.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/log.h"
#include "kumi/messages.h"

static int fails(int n)
{
    if (n < 1)
        return KU_ERR(KUMI_EINVAL, "rank count: -n: %d; give a number from 1", n);
    return n;
}
static int passes_on(int n, int *after)
{
    KU_TRY(fails(n));
    *after = 1;
    return KUMI_OK;
}
static int releases(int n, int *released)
{
    int status;
    KU_TRY_OUT(fails(n));
out:
    *released = 1;
    return status;
}

static void test_record(void **state)
{
    int after = 0, released = 0;
    (void)state;
    ku_err_rank(3);
    errno = EACCES;
    assert_int_equal(passes_on(-4, &after), KUMI_EINVAL);
    assert_int_equal(after, 0);
    const struct kumi_error *e = kumi_last_error();
    assert_int_equal(e->status, KUMI_EINVAL);
    assert_int_equal(e->scope, KUMI_SCOPE_CALL);
    assert_int_equal(e->rank, 3);
    assert_int_equal(e->sys_errno, EACCES);
    assert_string_equal(e->text, "rank count: -n: -4; give a number from 1");
    assert_memory_equal(e->src, "test_base_err.c:", 16);
    assert_int_equal(releases(0, &released), KUMI_EINVAL);
    assert_int_equal(released, 1);
    assert_int_equal(passes_on(1, &after), KUMI_OK);
    assert_int_equal(after, 1);
    assert_int_equal(e->status, KUMI_EINVAL); /* success leaves the record */
    /* The record may be an argument of the next one, and is cut, not overrun. */
    KU_ERR_SCOPE(KUMI_EPEER, KUMI_SCOPE_JOB, "again: %s", e->text);
    assert_string_equal(e->text, "again: rank count: -n: 0; give a number from 1");
    assert_int_equal(e->scope, KUMI_SCOPE_JOB);
    KU_ERR(KUMI_EBUG, "%0*d", 2000, 7);
    assert_int_equal(strlen(e->text), sizeof e->text - 1);
    ku_err_rank(-1);
    struct kumi_error other = {.status = KUMI_ENUMERIC, .rank = 5, .text = "elsewhere"};
    assert_int_equal(ku_err_put(&other), KUMI_ENUMERIC);
    assert_int_equal(ku_err_get()->rank, 5);
    assert_int_equal(ku_err_put(ku_err_get()), KUMI_ENUMERIC);
    assert_string_equal(kumi_last_error()->text, "elsewhere");
}

static void *own_record(void *arg)
{
    int *rank = arg;
    *rank = ku_err_get_rank();
    KU_ERR(KUMI_EINPUT, "of the other thread");
    return NULL;
}

static void test_threads(void **state)
{
    pthread_t other;
    int rank = 0;
    (void)state;
    KU_ERR(KUMI_EBUSY, "mine");
    ku_err_rank(2);
    assert_int_equal(pthread_create(&other, NULL, own_record, &rank), 0);
    pthread_join(other, NULL);
    ku_err_rank(-1);
    assert_int_equal(rank, -1);
    assert_string_equal(kumi_last_error()->text, "mine");
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(kumi_status_name(KUMI_OK), "KUMI_OK");
    assert_string_equal(kumi_status_name(KUMI_EBUG), "KUMI_EBUG");
    for (int s = KUMI_EDEVICE; s <= KUMI_EINVAL; s++)
        assert_memory_equal(kumi_status_name(s), "KUMI_E", 6);
    assert_string_equal(kumi_status_name(-1), "unknown status");
    assert_string_equal(kumi_status_name(1), "unknown status");
}

/* What fn writes on stderr in a child under KUMI_LOG=log; *status is its wait status. */
static const char *stderr_of(void (*fn)(void), const char *log, int *status)
{
    static char said[4096];
    int end[2];
    size_t bytes = 0;
    assert_int_equal(pipe(end), 0);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        dup2(end[1], 2);
        signal(SIGABRT, SIG_DFL);
        if (log)
            setenv("KUMI_LOG", log, 1);
        else
            unsetenv("KUMI_LOG");
        fn();
        _exit(0);
    }
    close(end[1]);
    for (ssize_t n; (n = read(end[0], said + bytes, sizeof said - 1 - bytes)) > 0;)
        bytes += (size_t)n;
    said[bytes] = '\0';
    close(end[0]);
    assert_int_equal(waitpid(pid, status, 0), pid);
    return said;
}

static void say_error(void)
{
    KU_ERR(KUMI_EINVAL, "what: where: 1; do");
    ku_err_print();
}
static void say_long_error(void)
{
    KU_ERR(KUMI_EINVAL, "%0*d", 2000, 7);
    ku_err_print();
}
static void break_invariant(void)
{
    int one = 1;
    KU_ASSERT(one == 1);
    KU_ASSERT(one == 2);
}
static void log_all(void)
{
    KU_LOG(COMM, ERROR, "a %d", 1);
    KU_LOG(COMM, WARN, "b");
    KU_LOG(COMM, DEBUG, "c");
    ku_err_rank(3);
    KU_LOG(CKPT, INFO, "d");
    KU_LOG(TRAIN, INFO, "e");
}
static void log_long(void)
{
    KU_LOG(BASE, ERROR, "%0*d", 5000, 7);
}

static void take_line(void *ctx, const char *line, size_t bytes)
{
    fprintf(stderr, "<%s%.*s>", (const char *)ctx, (int)bytes - 1, line);
}
static void take_progress(void *ctx, const char *text)
{
    (void)ctx;
    fprintf(stderr, "[%s]", text ? text : "");
}
static void say_all(void)
{
    KU_MESSAGE(INFO, "step %d", 1);
    KU_MESSAGE(WARN, "changed");
    ku_progress_show("50 %%");
    ku_progress_show(NULL);
    KU_LOG(TRAIN, WARN, "f");
    say_error();
}
static void say_to_callbacks(void)
{
    static const struct kumi_messages taken = {take_line, take_progress,
                                               (void *)(uintptr_t) "in: "};
    kumi_messages_set(&taken);
    say_all();
    kumi_messages_set(NULL);
    KU_MESSAGE(INFO, "step 2");
}
/* Without a place for progress, lines alone. */
static void say_to_line(void)
{
    static const struct kumi_messages taken = {take_line, NULL, (void *)(uintptr_t) ""};
    kumi_messages_set(&taken);
    say_all();
}

static void test_printed(void **state)
{
    static const struct {
        void (*fn)(void);
        const char *log, *said;
    } row[] = {
        {say_error, NULL, "kumi: error: what: where: 1; do\n"},
        {say_all, NULL, "changed\nkumi train warn: f\nkumi: error: what: where: 1; do\n"},
        {say_all, "error", "kumi: error: what: where: 1; do\n"},
        {say_all, "train:info",
         "step 1\nchanged\nkumi train warn: f\nkumi: error: what: where: 1; do\n"},
        {say_to_callbacks, NULL,
         "<in: step 1><in: changed>[50 %%][]<in: kumi train warn: f>"
         "<in: kumi: error: what: where: 1; do>"},
        {say_to_line, NULL,
         "<step 1><changed><kumi train warn: f><kumi: error: what: where: 1; do>"},
        {log_all, NULL, "kumi comm error: a 1\nkumi comm warn: b\n"},
        {log_all, "error", "kumi comm error: a 1\n"},
        {log_all, "info",
         "kumi comm error: a 1\nkumi comm warn: b\nkumi[3] ckpt info: d\nkumi[3] train info: e\n"},
        {log_all, "comm:debug,ckpt:info",
         "kumi comm error: a 1\nkumi comm warn: b\nkumi comm debug: c\nkumi[3] ckpt info: d\n"},
        {log_all, "*:error,ckpt:info", "kumi comm error: a 1\nkumi[3] ckpt info: d\n"},
        {log_all, ",error,,", "kumi comm error: a 1\n"},
        {log_all, "error,coms:debug",
         "kumi: KUMI_LOG: coms:debug: unknown subsystem; one of base comm launch pass exec ckpt "
         "data "
         "train and *; write \"info\" or \"comm:debug,ckpt:info\"\n"
         "kumi comm error: a 1\n"},
        {log_all, "error,comm:loud",
         "kumi: KUMI_LOG: comm:loud: unknown level; one of error warn info debug; write "
         "\"info\" or "
         "\"comm:debug,ckpt:info\"\n"
         "kumi comm error: a 1\n"},
    };
    int status;
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        assert_string_equal(stderr_of(row[i].fn, row[i].log, &status), row[i].said);
        assert_int_equal(status, 0);
    }
    /* Cut, but one whole line. */
    void (*const too_long[])(void) = {say_long_error, log_long};
    for (int i = 0; i < 2; i++) {
        const char *said = stderr_of(too_long[i], NULL, &status);
        assert_ptr_equal(strchr(said, '\n'), said + strlen(said) - 1);
        assert_true(strlen(said) > 400 && strlen(said) <= 1024);
    }
    const char *said = stderr_of(break_invariant, NULL, &status);
    assert_memory_equal(said, "kumi: bug: test_base_err.c:", 27);
    assert_non_null(strstr(said, ": one == 2\n"));
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

/* FIPS 180-4's examples; XXH3's own values for the empty text and "abc". */
static void test_hash(void **state)
{
    static const struct {
        const char *text, *hex;
    } row[] = {{"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
               {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
               {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"}};
    (void)state;
    for (int i = 0; i < 3; i++)
        for (size_t cut = 0; cut <= strlen(row[i].text); cut += 7) {
            struct ku_sha256 h;
            unsigned char digest[32];
            char hex[65];
            assert_int_equal(ku_sha256_init(&h), KUMI_OK);
            ku_sha256_update(&h, row[i].text, cut);
            ku_sha256_update(&h, row[i].text + cut, strlen(row[i].text) - cut);
            ku_sha256_final(&h, digest);
            ku_sha256_hex(digest, hex);
            assert_string_equal(hex, row[i].hex);
        }
    assert_true(ku_hash64("", 0) == UINT64_C(0x2d06800538d394c2));
    assert_true(ku_hash64("abc", 3) == UINT64_C(0x78af5f94892f3950));
    assert_true(ku_hash64_mix(1, 2) != ku_hash64_mix(2, 1));
    assert_true(ku_hash64_mix(1, 2) == ku_hash64_mix(1, 2));
}

static void test_isa(void **state)
{
    (void)state;
    for (int i = 0; i < KU_N_ISAS; i++) {
        enum ku_isa isa = KU_N_ISAS;
        assert_int_equal(ku_cpu_isa_parse(ku_cpu_isa_name((enum ku_isa)i), &isa), KUMI_OK);
        assert_int_equal(isa, i);
    }
    enum ku_isa isa = KU_ISA_AVX2;
    assert_int_equal(ku_cpu_isa_at_most(NULL, &isa), KUMI_OK);
    assert_int_equal(isa, ku_cpu_isa());
    for (int i = 0; i < KU_N_ISAS; i++) {
        assert_int_equal(ku_cpu_isa_at_most(ku_cpu_isa_name((enum ku_isa)i), &isa), KUMI_OK);
        assert_int_equal(isa, i < (int)ku_cpu_isa() ? i : (int)ku_cpu_isa());
    }
    isa = KU_ISA_AVX2;
    assert_int_equal(ku_cpu_isa_at_most("avx", &isa), KUMI_EINVAL);
    assert_int_equal(ku_cpu_isa_parse("avx", &isa), KUMI_EINVAL);
    assert_string_equal(kumi_last_error()->text,
                        "parallel.isa: avx: unknown; one of base avx2 avx512 avx512bf16 amx");
    assert_int_equal(isa, KU_ISA_AVX2);
    assert_string_equal(ku_cpu_isa_name(KU_N_ISAS), "?");
    assert_true(ku_cpu_isa() < KU_N_ISAS);
    assert_true(ku_cpu_isa() == ku_cpu_isa());
    assert_true(strlen(ku_cpu_model()) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_record), cmocka_unit_test(test_threads),
        cmocka_unit_test(test_names),  cmocka_unit_test(test_printed),
        cmocka_unit_test(test_hash),   cmocka_unit_test(test_isa),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
