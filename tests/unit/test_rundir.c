/* SPDX-License-Identifier: Apache-2.0 */
/* links: app plan infer train remote run model config */
/*
 * A run's directory: an old run is there until the new run's first step is done, whichever system
 * call a kill or a failure meets; names are unique; later checkpoints are set aside.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/err.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "ckpt/snapshot/resume.h"
#include "run/rundir.h"

static const char *const old_run[] = {"checkpoints/step-00000001/manifest.json",
                                      "checkpoints/step-00000002/manifest.json",
                                      "checkpoints.cut/step-00000003/x",
                                      "metrics.jsonl",
                                      "metrics.cut.jsonl",
                                      "summary.json",
                                      "weights/model.safetensors",
                                      "source.vocab"};
enum { N_OLD = sizeof old_run / sizeof old_run[0] };

/* With the folders on the way to it. */
static void put(const char *dir, const char *name, const char *text)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    *strrchr(path, '/') = '\0';
    assert_int_equal(ku_os_mkdirs(path), 0);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}
static int is_there(const char *dir, const char *name)
{
    char path[300];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return ku_os_stat(path, &st) == 0;
}
static void put_old(const char *dir)
{
    for (int i = 0; i < N_OLD; i++)
        put(dir, old_run[i], old_run[i]);
    put(dir, "notes.txt", "notes.txt");
}
/* All of the old run with its contents, or nothing of it. Returns which. */
static int has_old(const char *dir)
{
    int n = 0;
    for (int i = 0; i < N_OLD; i++) {
        char path[300], *text;
        size_t bytes;
        snprintf(path, sizeof path, "%s/%s", dir, old_run[i]);
        if (ku_os_slurp(path, 1 << 20, &text, &bytes) < 0)
            continue;
        assert_string_equal(text, old_run[i]);
        ku_free(text);
        n++;
    }
    if (n != 0 && n != N_OLD)
        fail_msg("%d of %d files are left", n, (int)N_OLD);
    assert_true(is_there(dir, "notes.txt"));
    return n > 0;
}

/* A run that replaces another, up to its first step and a file of its own: 0, or 1 after an error.
 */
static int replace(const char *dir)
{
    struct ku_rundir d;
    if (ku_rundir_open(dir, 1, KU_RESUME_NO, &d) < 0)
        return 1;
    int status = ku_rundir_begin(&d);
    ku_rundir_close(&d);
    return status < 0;
}

/* In a process of its own, with a fault. The status of wait. */
static int replace_with(const char *dir, const char *fault)
{
    int status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        ku_fault_set(fault);
        _exit(replace(dir));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

/* What any later run finds, and leaves. */
static int reopen(const char *dir)
{
    struct ku_rundir d;
    assert_int_equal(ku_rundir_open(dir, 0, KU_RESUME_YES, &d), KUMI_OK);
    ku_rundir_close(&d);
    assert_false(is_there(dir, ".replaced"));
    assert_false(is_there(dir, ".deleted"));
    return has_old(dir);
}

static void replaced(void **state)
{
    static const char *const kind[] = {"kill", "os"};
    char dir[] = "rundir-XXXXXX";
    (void)state;
    assert_non_null(mkdtemp(dir));
    for (int k = 0; k < 2; k++) {
        int n_kept = 0, n_gone = 0, status = -1;
        for (int n = 1; n < 400 && status != 0; n++) {
            char fault[32];
            snprintf(fault, sizeof fault, "%s:%d", kind[k], n);
            put_old(dir);
            status = replace_with(dir, fault);
            int is_error = WIFSIGNALED(status) || WEXITSTATUS(status) != 0;
            int is_old = reopen(dir);
            n_kept += is_old;
            n_gone += !is_old;
            if (k == 1)
                assert_int_equal(is_old, is_error);
        }
        print_message("%s: the old run is kept in %d places, gone in %d\n", kind[k], n_kept,
                      n_gone);
        assert_true(n_kept > 20 && n_gone > (k == 0 ? 5 : 0));
    }
    assert_int_equal(ku_os_rmtree(dir), 0);
}

/* Until the first step nothing moves; without one the old run stays. */
static void untouched(void **state)
{
    char dir[] = "rundir-XXXXXX";
    struct ku_rundir d, other;
    (void)state;
    assert_non_null(mkdtemp(dir));
    put_old(dir);
    assert_int_equal(ku_rundir_open(dir, 1, KU_RESUME_NO, &d), KUMI_OK);
    assert_true(has_old(dir));
    assert_int_equal(ku_rundir_open(dir, 0, KU_RESUME_YES, &other), KUMI_EBUSY);
    ku_rundir_close(&d);
    assert_true(reopen(dir));
    assert_int_equal(ku_rundir_open(dir, 0, KU_RESUME_NO, &d), KUMI_EBUSY);
    assert_non_null(strstr(ku_err_get()->text, "holds a run already"));
    assert_int_equal(replace(dir), 0);
    assert_false(has_old(dir));
    assert_int_equal(ku_rundir_open(dir, 0, KU_RESUME_NO, &d), KUMI_OK);
    ku_rundir_close(&d);

    /* two files of one name: neither is written over */
    put(dir, "metrics.jsonl", "new");
    put(dir, ".replaced/metrics.jsonl", "old");
    assert_int_equal(ku_rundir_open(dir, 0, KU_RESUME_YES, &d), KUMI_ESTORAGE);
    assert_true(is_there(dir, "metrics.jsonl") && is_there(dir, ".replaced/metrics.jsonl"));
    assert_int_equal(ku_os_rmtree(dir), 0);
}

/* A directory that cannot be looked into is not an empty one. */
static void unreadable(void **state)
{
    char dir[] = "rundir-XXXXXX", link[64], found[KU_CKPT_PATH_BYTES];
    struct ku_rundir d;
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(link, sizeof link, "%s/checkpoints", dir);
    assert_int_equal(symlink("checkpoints", link), 0); /* ELOOP, also for root */
    assert_int_equal(ku_rundir_open(dir, 0, KU_RESUME_NO, &d), KUMI_ESTORAGE);
    assert_int_equal(ku_resume_find(dir, KU_RESUME_AUTO, 0, found), KUMI_ENOCKPT);
    assert_int_equal(ku_os_unlink(link), 0);
    assert_int_equal(ku_resume_find(dir, KU_RESUME_AUTO, 0, found), KUMI_OK);
    assert_string_equal(found, "");
    put(dir, "checkpoints", "a file");
    assert_int_equal(ku_resume_find(dir, KU_RESUME_AUTO, 0, found), KUMI_ENOCKPT);
    assert_int_equal(ku_os_unlink(link), 0);

    put(dir, "checkpoints/step-00000003/notes", "and no manifest.json");
    assert_int_equal(ku_resume_find(dir, KU_RESUME_AUTO, 0, found), KUMI_ENOCKPT);
    assert_non_null(strstr(ku_err_get()->text, "none of 1 checkpoint is usable"));
    assert_int_equal(ku_resume_find(dir, KU_RESUME_YES, 7, found), KUMI_ENOCKPT);
    assert_non_null(strstr(ku_err_get()->text, "no checkpoint of step 7; the run has 3"));
    for (int n = 1; n <= 3; n++) { /* whichever call fails: never afresh */
        char fault[32];
        snprintf(fault, sizeof fault, "os:%d", n);
        ku_fault_set(fault);
        assert_int_equal(ku_resume_find(dir, KU_RESUME_AUTO, 0, found), KUMI_ENOCKPT);
    }
    ku_fault_set(NULL);
    assert_int_equal(ku_os_rmtree(dir), 0);
}

/* Checkpoints of later steps are set aside; names that are taken there are not written over. */
static void cut(void **state)
{
    char dir[] = "rundir-XXXXXX";
    (void)state;
    assert_non_null(mkdtemp(dir));
    for (int round = 1; round <= 2; round++) {
        put(dir, "checkpoints/step-00000010/x", "a");
        put(dir, "checkpoints/step-00000020/x", "b");
        put(dir, "checkpoints/step-00000030/x", "c");
        assert_int_equal(ku_resume_cut(dir, 10), KUMI_OK);
        assert_true(is_there(dir, "checkpoints/step-00000010/x"));
        assert_false(is_there(dir, "checkpoints/step-00000020"));
        assert_false(is_there(dir, "checkpoints/step-00000030"));
    }
    assert_int_equal(ku_resume_cut(dir, 10), KUMI_OK); /* nothing left to move */
    assert_true(is_there(dir, "checkpoints.cut/step-00000020/x"));
    assert_true(is_there(dir, "checkpoints.cut/step-00000030/x"));
    assert_true(is_there(dir, "checkpoints.cut/step-00000020-2/x"));
    assert_true(is_there(dir, "checkpoints.cut/step-00000030-2/x"));
    assert_int_equal(ku_os_rmtree(dir), 0);
}

/* Many runs at once: each has a directory of its own. */
static void unique_names(void **state)
{
    enum { N = 24 };
    char dir[] = "rundir-XXXXXX", back[512], **names;
    pid_t pid[N];
    int n;
    (void)state;
    assert_non_null(getcwd(back, sizeof back));
    assert_non_null(mkdtemp(dir));
    assert_int_equal(chdir(dir), 0);
    for (int i = 0; i < N; i++) {
        char out[512];
        pid[i] = fork();
        assert_true(pid[i] >= 0);
        if (pid[i] == 0)
            _exit(-ku_rundir_make("configs/tiny.json", out, sizeof out));
    }
    for (int i = 0; i < N; i++) {
        int status;
        assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
        assert_int_equal(status, 0);
    }
    assert_int_equal(ku_os_list("runs", &names, &n), 0);
    assert_int_equal(n, N);
    for (int i = 0; i < n; i++)
        assert_int_equal(strncmp(names[i], "tiny-2", 6), 0);
    ku_free(names);
    assert_int_equal(chdir(back), 0);
    assert_int_equal(ku_os_rmtree(dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replaced), cmocka_unit_test(untouched),    cmocka_unit_test(unreadable),
        cmocka_unit_test(cut),      cmocka_unit_test(unique_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
