/* SPDX-License-Identifier: Apache-2.0 */
/* links: ckpt tensor base */
/*
 * Whatever fails, and whenever a writer dies, the newest whole snapshot is found and holds what was
 * saved. Faults are read from the environment once a process, so each trial is a child; the parent
 * itself makes no call that counts.
 */
#include "unit/ckpt_util.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "base/hash.h"
#include "memory_folder.h"
#include "sample.h"

enum { WRONG = 100, LEFTOVER = 101 };

struct trial {
    char dir[64];
    int64_t step; /* to save; what is found must be it or the one before */
};

static void state_small(struct state *s, uint32_t seed)
{
    state_init_sized(s, 9, 270000); /* two chunks in one file */
    state_fill(s, seed);
}

/* Exit codes of children: 0, -status, or WRONG. */
static int save_step(struct trial *t)
{
    struct state s;
    state_small(&s, (uint32_t)t->step);
    struct ku_ckpt_desc d = state_desc(&s, t->dir, t->step);
    d.keep = 2;
    int status = ku_ckpt_save(&d);
    state_fini(&s);
    return -status;
}

static int has_leftover(const char *dir)
{
    char **names;
    int n, found = 0;
    if (ku_os_list(dir, &names, &n) < 0)
        return 0;
    for (int i = 0; i < n; i++)
        found |= names[i][0] == '.';
    ku_free(names);
    return found;
}

/* Reads what is newest and holds it against what its step must have. *step: which it was. */
static int resume(struct trial *t)
{
    struct state s, back;
    struct ku_ckpt c;
    state_small(&s, 0);
    state_small(&back, 0);
    int status = ku_ckpt_resume(t->dir, back.tensor, STATE_TENSORS, &c);
    if (status == KUMI_OK) {
        state_fill(&s, (uint32_t)c.step);
        for (int i = 0; i < STATE_TENSORS; i++)
            if (memcmp(s.tensor[i].data, back.tensor[i].data, s.bytes[i]) != 0)
                status = -WRONG;
        if (c.step != t->step && c.step != t->step - 1)
            status = -WRONG;
        ku_ckpt_close(&c);
    }
    state_fini(&s);
    state_fini(&back);
    return -status;
}

/* As resume, and it must be the one just saved. */
static int resume_same(struct trial *t)
{
    struct ku_ckpt c;
    int code = resume(t);
    if (code == 0 && ku_ckpt_find(t->dir, INT64_MAX, &c) == KUMI_OK) {
        code = c.step == t->step ? 0 : WRONG;
        ku_ckpt_close(&c);
    }
    return code;
}

static int resume_after_failure(struct trial *t)
{
    return has_leftover(t->dir) ? LEFTOVER : resume(t);
}

static int remove_all(struct trial *t)
{
    return ku_os_rmtree(t->dir) < 0;
}

static pid_t start(const char *fault, int (*fn)(struct trial *), struct trial *t)
{
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        setenv("KUMI_LOG", "*:error", 1);
        if (fault != NULL)
            setenv("KUMI_FAULT", fault, 1);
        exit(fn(t));
    }
    return pid;
}

static int child(const char *fault, int (*fn)(struct trial *), struct trial *t)
{
    int status;
    pid_t pid = start(fault, fn, t);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* Hundreds of trials wait for no disk; a few do, since memory knows no O_DIRECT. */
static void trial_init(struct trial *t, int on_disk)
{
    snprintf(t->dir, sizeof t->dir, "%s/test-kumi-ckpt-XXXXXX", on_disk ? "/tmp" : memory_folder());
    assert_non_null(mkdtemp(t->dir));
    t->step = 1;
    assert_int_equal(child(NULL, save_step, t), 0);
}

/*
 * Fail the n-th call of a kind while saving, for all n (every second one under a sanitizer), until
 * no call is left to fail.
 *
 *   expected   what a save that failed must return (0: any of storage, memory)
 */
static void fail_each(const char *kind, int on_disk, int max_n, int expected)
{
    struct trial t;
    int n_failed = 0, n_good = 0;
    trial_init(&t, on_disk);
    /* some calls may fail unharmed; twelve in a row: none is left */
    for (int n = 1; n_good < 12; n += sample_count(1, 2)) {
        char fault[32];
        assert_true(n < max_n);
        snprintf(fault, sizeof fault, "%s:%d", kind, n);
        t.step++;
        int code = child(fault, save_step, &t);
        if (code == 0) {
            n_good++;
            assert_int_equal(child(NULL, resume_same, &t), 0);
            continue;
        }
        n_failed++;
        n_good = 0;
        if (expected != 0)
            assert_int_equal(code, expected);
        else if (code != -KUMI_ESTORAGE && code != -KUMI_ENOMEM)
            fail_msg("%s: exit %d", fault, code);
        assert_int_equal(child(NULL, resume_after_failure, &t), 0);
        t.step--; /* unless the failure came after the rename, the newest is still that of before */
        if (child(NULL, resume_same, &t) != 0) {
            t.step++;
            assert_int_equal(child(NULL, resume_same, &t), 0);
        }
    }
    print_message("%s: %d places\n", kind, n_failed);
    assert_true(n_failed > sample_count(10, 5));
    assert_int_equal(child(NULL, remove_all, &t), 0);
}

static void every_call_fails(void **unused)
{
    (void)unused;
    fail_each("os", 0, 400, 0);
}
static void disk_full(void **unused)
{
    (void)unused;
    fail_each("write", 1, 100, -KUMI_ESTORAGE);
}
static void every_allocation_fails(void **unused)
{
    (void)unused;
    fail_each("mem", 0, 400, 0);
}

/* Reading under faults says so, or finds what was saved. */
static void reading(void **unused)
{
    (void)unused;
    static const char *const kind[] = {"os", "mem"};
    struct trial t;
    trial_init(&t, 0);
    t.step++;
    assert_int_equal(child(NULL, save_step, &t), 0);
    for (int k = 0; k < 2; k++) {
        int n_failed = 0;
        for (int n = 1; n <= 60; n++) {
            char fault[32];
            snprintf(fault, sizeof fault, "%s:%d", kind[k], n);
            int code = child(fault, resume, &t);
            n_failed += code != 0;
            assert_true(code == 0 || code == -KUMI_ENOCKPT || code == -KUMI_EINPUT ||
                        code == -KUMI_ENOMEM);
        }
        print_message("%s: %d failures\n", kind[k], n_failed);
    }
    assert_int_equal(child(NULL, remove_all, &t), 0);
}

/* Saves one step after another until it is killed. */
static int save_for_ever(struct trial *t)
{
    for (;; t->step++) {
        int code = save_step(t);
        if (code != 0)
            return code;
    }
}

static int newest_is_whole(struct trial *t)
{
    struct ku_ckpt c;
    if (ku_ckpt_find(t->dir, INT64_MAX, &c) < 0)
        return WRONG;
    t->step = c.step;
    ku_ckpt_close(&c);
    return resume(t);
}

static void killed(void **unused)
{
    (void)unused;
    struct trial t;
    trial_init(&t, 1);
    for (int i = 0; i < 12; i++) {
        t.step = 2; /* step 2 is there from the second trial on: also killed while it is replaced */
        pid_t pid = start(NULL, save_for_ever, &t);
        nanosleep(&(struct timespec){.tv_nsec = (8 + i * 5) * 1000000}, NULL);
        assert_int_equal(kill(pid, SIGKILL), 0);
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        assert_int_equal(child(NULL, newest_is_whole, &t), 0);
    }
    assert_int_equal(child(NULL, remove_all, &t), 0);
}

/* Killed in place of each system call (of every third under a sanitizer) of a save, which removes
 * an old snapshot, too; from its commit on it is one that replaces its own step. */
static void killed_at_each_call(void **unused)
{
    (void)unused;
    struct trial t;
    int status = -1, n_killed = 0;
    trial_init(&t, 0);
    for (int i = 0; i < 3; i++, t.step++)
        assert_int_equal(child(NULL, save_step, &t), 0);
    for (int n = 1; status != 0; n += sample_count(1, 3)) {
        char fault[32];
        assert_true(n < 400);
        snprintf(fault, sizeof fault, "kill:%d", n);
        pid_t pid = start(fault, save_step, &t);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0);
        n_killed += WIFSIGNALED(status);
        assert_int_equal(child(NULL, resume, &t), 0); /* this step, or the one before */
    }
    print_message("killed in %d places\n", n_killed);
    assert_true(n_killed > sample_count(50, 16));
    assert_int_equal(child(NULL, remove_all, &t), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_fails),
        cmocka_unit_test(disk_full),
        cmocka_unit_test(every_allocation_fails),
        cmocka_unit_test(reading),
        cmocka_unit_test(killed),
        cmocka_unit_test(killed_at_each_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
