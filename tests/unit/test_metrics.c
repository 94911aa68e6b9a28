/* SPDX-License-Identifier: Apache-2.0 */
/* links: app plan infer train remote run model config */
/* Lines of metrics.jsonl: a model's own metrics, and what counts samples; lines of a full disk. */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include <jansson.h>

#include "base/err.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "kumi/messages.h"
#include "run/metrics.h"
#include "run/summary.h"

static json_t *line_of(char **text)
{
    char *end = strchr(*text, '\n');
    assert_non_null(end);
    json_t *row = json_loadb(*text, (size_t)(end - *text), JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(row);
    *text = end + 1;
    return row;
}
static void expect(const json_t *row, const char *key, double want)
{
    const json_t *v = json_object_get(row, key);
    if (!json_is_number(v) || fabs(json_number_value(v) - want) > 1e-12 * fabs(want))
        fail_msg("%s is not %g", key, want);
}

static void test_lines(void **state)
{
    static const struct kumi_result_metrics metrics = {2, {{"accuracy", 0.625}, {"top5", 1}}},
                                            none = {.n = 0};
    char dir[] = "metrics-XXXXXX", path[64];
    struct ku_metrics *m;
    struct ku_metrics_line line = {.step = 1,
                                   .n_steps = 3,
                                   .tokens = 24,
                                   .loss = 2,
                                   .step_ms = 90,
                                   .data_ms = 10,
                                   .is_by_samples = true,
                                   .metrics = &metrics};
    (void)state;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(ku_metrics_open(dir, 0, 0, &m), KUMI_OK);
    ku_metrics_step(m, &line, 1);
    ku_metrics_eval(m, 1, 0.25, 1.5, &metrics);
    line.step = 2, line.is_by_samples = false, line.metrics = &none;
    ku_metrics_step(m, &line, 1);
    ku_metrics_step(m, &line, 0);
    ku_metrics_eval(m, 2, 0.5, (double)NAN, &none);
    assert_true(ku_metrics_has_eval(m, 2));
    ku_metrics_eval(m, 2, 0.5, (double)NAN, &none); /* there already */
    ku_metrics_eval(m, 3, 0.75, 1.25, &none);
    json_t *curve = ku_metrics_curve(m),
           *wanted = json_pack("[[i,f,f],[i,f]]", 1, 1.5, 0.625, 3, 1.25);
    assert_true(json_equal(curve, wanted)); /* none of a loss that is no number */
    json_decref(curve);
    json_decref(wanted);
    ku_metrics_close(m);

    char *text, *at;
    size_t bytes;
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    assert_int_equal(ku_os_slurp(path, 1 << 20, &text, &bytes), 0);
    at = text;
    json_t *row = line_of(&at);
    expect(row, "accuracy", 0.625);
    expect(row, "top5", 1);
    expect(row, "samples_per_s", 240);
    expect(row, "tps", 240);
    json_decref(row);
    row = line_of(&at);
    expect(row, "val_loss", 1.5);
    expect(row, "epoch", 0.25);
    expect(row, "val_accuracy", 0.625);
    expect(row, "val_top5", 1);
    assert_int_equal(json_object_size(row), 5);
    json_decref(row);
    row = line_of(&at);
    assert_null(json_object_get(row, "accuracy"));
    assert_null(json_object_get(row, "samples_per_s"));
    json_decref(row);
    row = line_of(&at);
    assert_true(json_is_null(json_object_get(row, "val_loss")));
    assert_int_equal(json_object_size(row), 3);
    json_decref(row);
    row = line_of(&at);
    expect(row, "step", 3);
    json_decref(row);
    assert_int_equal(*at, '\0');
    ku_free(text);
    remove(path);
    remove(dir);
}

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}
static void assert_text(const char *path, const char *want)
{
    char *text;
    size_t bytes;
    if (ku_os_slurp(path, 1 << 20, &text, &bytes) < 0)
        fail_msg("%s: %s", path, ku_os_why());
    assert_string_equal(text, want);
    ku_free(text);
}
#define ROW(step) "{\"step\":" #step ",\"loss\":1}\n"
#define VAL(step) "{\"step\":" #step ",\"val_loss\":2.5}\n"

/* mfu is that of the program of a step, however few of its targets are valid. */
static void test_mfu(void **state)
{
    static const struct kumi_result_metrics none = {.n = 0};
    static const struct {
        int64_t tokens;
        double flops, peak, mfu, median; /* 0: null */
    } rows[] = {{24, 48, 960, 0.5, 0.5},
                {3, 48, 960, 0.5, 0.5},
                {24, 96, 960, 1, 0.5},
                {24, 0, 960, 0, 0.5},
                {24, 48, 0, 0, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char dir[] = "metrics-XXXXXX", path[64], *text, *at;
        struct ku_metrics *m;
        size_t bytes;
        struct ku_metrics_line line = {.flops = 48, .step_ms = 90, .data_ms = 10, .metrics = &none};
        assert_non_null(mkdtemp(dir));
        snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
        assert_int_equal(ku_metrics_open(dir, 0, rows[i].peak, &m), KUMI_OK);
        assert_true(isnan(ku_metrics_median_mfu(m)));
        for (line.step = 1; line.step < 8; line.step++)
            ku_metrics_step(m, &line, 0);
        line.tokens = rows[i].tokens, line.flops = rows[i].flops;
        ku_metrics_step(m, &line, 1);
        const double median = ku_metrics_median_mfu(m);
        assert_true(rows[i].median > 0 ? fabs(median - rows[i].median) < 1e-12 : isnan(median));
        ku_metrics_close(m);
        assert_int_equal(ku_os_slurp(path, 1 << 20, &text, &bytes), 0);
        at = text;
        json_t *row = line_of(&at);
        expect(row, "tps", (double)rows[i].tokens * 10);
        if (rows[i].mfu > 0)
            expect(row, "mfu", rows[i].mfu);
        else
            assert_true(json_is_null(json_object_get(row, "mfu")));
        json_decref(row);
        ku_free(text);
        assert_int_equal(ku_os_rmtree(dir), 0);
    }
}

/* Counts the warnings. */
static void take_message(void *ctx, const char *line, size_t bytes)
{
    char text[600];
    snprintf(text, sizeof text, "%.*s", (int)bytes, line);
    *(int *)ctx += strstr(text, "cannot be written: File too large; training continues") != NULL;
}
/* What a disk that is full after so many bytes of a file does: writes end early, then fail. */
static void fill_disk(rlim_t bytes)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* Lines that do not fit are left out, without a rest of them, and later ones are written. */
static void test_full_disk(void **state)
{
    static const struct kumi_result_metrics none = {.n = 0};
    char dir[] = "metrics-XXXXXX", path[64], *text, *at;
    int n_warnings = 0;
    const struct kumi_messages messages = {.line = take_message, .ctx = &n_warnings};
    struct ku_metrics_line line = {.tokens = 24, .step_ms = 90, .metrics = &none};
    struct ku_metrics *m;
    struct stat full, after;
    size_t bytes;
    (void)state;
    assert_true(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    kumi_messages_set(&messages);
    assert_int_equal(ku_metrics_open(dir, 0, 0, &m), KUMI_OK);
    for (line.step = 1; line.step <= 8; line.step++) {
        const bool fits = line.step == 1 || line.step == 4 || line.step == 8;
        assert_int_equal(ku_os_stat(path, &full), 0);
        fill_disk(fits ? RLIM_INFINITY : (rlim_t)full.st_size + 10);
        if (line.step == 6)
            ku_metrics_eval(m, line.step, 1, 2.5, &none);
        else
            ku_metrics_step(m, &line, 1);
        fill_disk(RLIM_INFINITY);
        assert_int_equal(ku_os_stat(path, &after), 0);
        assert_true(fits == (after.st_size != full.st_size));
        assert_int_equal(n_warnings, line.step == 1 ? 0 : line.step <= 4 ? 1 : 2);
    }
    ku_metrics_close(m);
    kumi_messages_set(NULL);
    assert_int_equal(ku_os_slurp(path, 1 << 20, &text, &bytes), 0);
    at = text;
    for (int i = 0; i < 3; i++) {
        json_t *row = line_of(&at);
        expect(row, "step", (double[]){1, 4, 8}[i]);
        json_decref(row);
    }
    assert_int_equal(*at, '\0');
    ku_free(text);
    assert_int_equal(ku_os_rmtree(dir), 0);
}

/* A resume moves lines of later steps aside, and loses none, however often it is resumed. */
static void test_cut(void **state)
{
    char dir[] = "metrics-XXXXXX", path[64], aside[64];
    static const struct kumi_result_metrics none = {.n = 0};
    struct ku_metrics *m;
    struct stat before, after;
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    snprintf(aside, sizeof aside, "%s/metrics.cut.jsonl", dir);
    write_text(path, ROW(1) "no line of ours\n" VAL(2) "not ours either\n" ROW(3)
                         VAL(4) "{\"step\":5,\"lo");
    assert_int_equal(ku_metrics_open(dir, 2, 0, &m), KUMI_OK);
    ku_metrics_eval(m, 2, 1, 2.5, &none); /* there already */
    json_t *curve = ku_metrics_curve(m), *wanted = json_pack("[[i,f]]", 2, 2.5);
    assert_true(json_equal(curve, wanted));
    json_decref(curve);
    json_decref(wanted);
    ku_metrics_close(m);
    assert_text(path, ROW(1) "no line of ours\n" VAL(2));
    static const char first[] =
        "{\"cut_at_step\":2}\nnot ours either\n" ROW(3) VAL(4) "{\"step\":5,\"lo\n";
    assert_text(aside, first);

    assert_int_equal(ku_os_stat(path, &before), 0); /* nothing to cut: nothing is written */
    assert_int_equal(ku_metrics_open(dir, 2, 0, &m), KUMI_OK);
    ku_metrics_close(m);
    assert_int_equal(ku_os_stat(path, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    assert_text(aside, first);

    assert_int_equal(ku_metrics_open(dir, 0, 0, &m), KUMI_OK); /* afresh */
    ku_metrics_close(m);
    char all[300];
    snprintf(all, sizeof all, "%s{\"cut_at_step\":0}\n" ROW(1) "no line of ours\n" VAL(2), first);
    assert_text(path, "");
    assert_text(aside, all);
    remove(path);
    remove(aside);
    remove(dir);
}

/* A loss that is not finite is an evaluation too, in the lines and in the summary. */
static void test_evaluated(void **state)
{
    static const struct kumi_result_metrics none = {.n = 0};
    static const struct {
        const char *summary;
        bool without_val, with_val;
        double val_loss;
    } rows[] = {{"{\"step\":2,\"val_loss\":1.5}", true, true, 1.5},
                {"{\"step\":2,\"val_loss\":null}", true, true, (double)NAN},
                {"{\"step\":2}", true, false, (double)NAN},
                {"{\"step\":1,\"val_loss\":1.5}", false, false, 1.5}};
    char dir[] = "metrics-XXXXXX", path[64];
    struct ku_metrics *m;
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    write_text(path, VAL(1) "{\"step\":2,\"val_loss\":null}\n");
    assert_int_equal(ku_metrics_open(dir, 2, 0, &m), KUMI_OK);
    assert_true(ku_metrics_has_eval(m, 2) && !ku_metrics_has_eval(m, 1));
    ku_metrics_eval(m, 2, 1, (double)NAN, &none); /* there already */
    ku_metrics_close(m);
    assert_text(path, VAL(1) "{\"step\":2,\"val_loss\":null}\n");
    assert_int_equal(ku_metrics_open(dir, 1, 0, &m), KUMI_OK);
    assert_true(ku_metrics_has_eval(m, 1) && !ku_metrics_has_eval(m, 2));
    ku_metrics_close(m);
    assert_int_equal(ku_metrics_open(dir, 0, 0, &m), KUMI_OK);
    assert_true(!ku_metrics_has_eval(m, 0) && !ku_metrics_has_eval(m, 1));
    ku_metrics_close(m);
    snprintf(path, sizeof path, "%s/summary.json", dir);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double val_loss;
        write_text(path, rows[i].summary);
        assert_true(ku_summary_is_of(dir, 2, 0, &val_loss) == rows[i].without_val);
        assert_true(ku_summary_is_of(dir, 2, 1, &val_loss) == rows[i].with_val);
        assert_true(isnan(rows[i].val_loss) ? isnan(val_loss)
                                            : fabs(val_loss - rows[i].val_loss) < 1e-12);
    }
    assert_int_equal(ku_os_rmtree(dir), 0);
}

/* A file of any length is cut, with little memory; here a line of 1.1 GiB, which is a hole. */
static void test_cut_long(void **state)
{
    char dir[] = "metrics-XXXXXX", path[64], aside[64], end[64];
    const off_t hole = (off_t)9 << 27;
    static const char head[] = VAL(1), tail[] = "\n{ \"step\": 2, \"val_loss\": 1.5}\n";
    struct ku_metrics *m;
    struct stat info;
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    snprintf(aside, sizeof aside, "%s/metrics.cut.jsonl", dir);
    write_text(path, head);
    const int fd = ku_os_open(path, O_RDWR, 0);
    assert_true(fd >= 0);
    assert_int_equal(ku_os_pwrite_full(fd, tail, strlen(tail), hole), 0);
    const off_t kept = hole + (off_t)strlen(tail);
    assert_int_equal(ku_os_pwrite_full(fd, ROW(3) VAL(3), strlen(ROW(3) VAL(3)), kept), 0);
    assert_int_equal(ku_metrics_open(dir, 2, 0, &m), KUMI_OK);
    json_t *curve = ku_metrics_curve(m), *wanted = json_pack("[[i,f],[i,f]]", 1, 2.5, 2, 1.5);
    assert_true(json_equal(curve, wanted));
    json_decref(curve);
    json_decref(wanted);
    ku_metrics_close(m);
    assert_int_equal(ku_os_stat(path, &info), 0);
    assert_int_equal(info.st_size, kept);
    memset(end, 0, sizeof end);
    assert_int_equal(ku_os_pread_full(fd, end, strlen(tail), hole), strlen(tail));
    assert_string_equal(end, tail);
    ku_os_close(fd);
    assert_text(aside, "{\"cut_at_step\":2}\n" ROW(3) VAL(3));
    assert_int_equal(ku_os_rmtree(dir), 0);
}

/* Killed at any system call: every line is in one of the two files. */
static void test_cut_killed(void **state)
{
    static const char *const line[] = {ROW(1), ROW(2), ROW(3), VAL(3)};
    char dir[] = "metrics-XXXXXX", path[64], aside[64];
    int status = -1;
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    snprintf(aside, sizeof aside, "%s/metrics.cut.jsonl", dir);
    for (int n = 1; status != 0; n++) {
        char fault[32], *kept, *cut = NULL;
        size_t bytes;
        assert_true(n < 60);
        write_text(path, ROW(1) ROW(2) ROW(3) VAL(3));
        remove(aside);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            struct ku_metrics *m;
            snprintf(fault, sizeof fault, "kill:%d", n);
            ku_fault_set(fault);
            _exit(-ku_metrics_open(dir, 1, 0, &m));
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(ku_os_slurp(path, 1 << 20, &kept, &bytes), 0);
        int has_aside = ku_os_slurp(aside, 1 << 20, &cut, &bytes) == 0;
        for (int i = 0; i < 4; i++)
            assert_true(strstr(kept, line[i]) || (has_aside && strstr(cut, line[i])));
        ku_free(kept);
        ku_free(cut);
    }
    assert_text(path, ROW(1));
    assert_int_equal(ku_os_rmtree(dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),     cmocka_unit_test(test_mfu),
        cmocka_unit_test(test_full_disk), cmocka_unit_test(test_cut),
        cmocka_unit_test(test_evaluated), cmocka_unit_test(test_cut_long),
        cmocka_unit_test(test_cut_killed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
