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
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/env.h"
#include "base/fault.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/os/ipc.h"
#include "base/os/plugin.h"
#include "base/os/process.h"
#include "base/tick.h"
#include "memory_folder.h"

#define BOOT_ID "/proc/sys/kernel/random/boot_id" /* a UUID and a newline: 37 bytes */

/* Each test works in a folder of its own, which is also the working directory; in memory where
 * that is to be had, since hundreds of trials sync. */
static int enter(void **state)
{
    char *folder = malloc(64);
    assert_non_null(folder);
    snprintf(folder, 64, "%s/test-kumi-test-XXXXXX", memory_folder());
    *state = folder;
    return mkdtemp(folder) == NULL || chdir(folder) < 0;
}
static int leave(void **state)
{
    ku_fault_set(NULL);
    int failed = chdir("/") < 0 || ku_os_rmtree(*state) < 0;
    free(*state);
    return failed;
}

static void put(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int n_open_files(void)
{
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    assert_non_null(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static void expect_text(const char *path, const char *text)
{
    char *data;
    size_t bytes;
    assert_int_equal(ku_os_slurp(path, 1 << 20, &data, &bytes), 0);
    assert_int_equal(bytes, strlen(text));
    assert_string_equal(data, text);
    ku_free(data);
}

static void test_files(void **state)
{
    char room[16];
    struct stat st;
    (void)state;
    int fd = ku_os_open("a", O_RDWR | O_CREAT | O_EXCL, 0600);
    assert_true(fd >= 0);
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    assert_int_equal(ku_os_write_full(fd, "0123456789", 10), 0);
    assert_int_equal(ku_os_pwrite_full(fd, "xy", 2, 4), 0);
    assert_int_equal(ku_os_pread_full(fd, room, 16, 3), 7);
    assert_memory_equal(room, "3xy6789", 7);
    assert_int_equal(ku_os_pread_full(fd, room, 16, 99), 0);
    assert_int_equal(lseek(fd, 8, SEEK_SET), 8);
    assert_int_equal(ku_os_read_full(fd, room, 16), 2);
    assert_int_equal(ku_os_ftruncate(fd, 3), 0);
    assert_int_equal(ku_os_fsync(fd), 0);
    assert_int_equal(ku_os_fstat(fd, &st), 0);
    assert_int_equal(st.st_size, 3);
    assert_int_equal(ku_os_allocate(fd, 5000), 0);
    assert_int_equal(ku_os_stat("a", &st), 0);
    assert_int_equal(st.st_size, 5000);
    assert_int_equal(ku_os_close(fd), 0);
    assert_int_equal(ku_os_close(fd), -1);
    assert_int_equal(errno, EBADF);
    assert_int_equal(ku_os_open("a", O_WRONLY | O_CREAT | O_EXCL, 0600), -1);
    assert_string_equal(ku_os_why(), "File exists");
    assert_int_equal(ku_os_rename("a", "b"), 0);
    assert_int_equal(ku_os_unlink("a"), -1);
    assert_int_equal(ku_os_unlink("b"), 0);
    int end[2]; /* a pipe gives and takes less than asked for */
    assert_int_equal(pipe(end), 0);
    assert_int_equal(write(end[1], "abc", 3), 3);
    close(end[1]);
    assert_int_equal(ku_os_read_full(end[0], room, 16), 3);
    close(end[0]);
}

/* Files of /proc report 0 bytes: a sysctl file gives its text to one read, smaps is long. */
static void test_slurp_proc(void **state)
{
    char *data;
    size_t bytes;
    (void)state;
    assert_int_equal(ku_os_slurp(BOOT_ID, 37, &data, &bytes), 0);
    assert_int_equal(bytes, 37);
    assert_int_equal(strlen(data), 37);
    assert_true(ku_os_kernel() == ku_hash64(data, bytes));
    ku_free(data);
    assert_int_equal(ku_os_slurp("/proc/self/smaps", 1 << 24, &data, &bytes), 0);
    assert_true(bytes > 5000 && strlen(data) == bytes);
    ku_free(data);
}

static void test_slurp(void **state)
{
    char *data = NULL;
    size_t bytes = 7;
    (void)state;
    put("text", "words");
    put("empty", "");
    expect_text("text", "words");
    expect_text("empty", "");
    assert_int_equal(ku_os_slurp("text", 5, &data, &bytes), 0);
    ku_free(data);
    assert_int_equal(mkfifo("fifo", 0600), 0);
    static const struct {
        const char *path;
        size_t max_bytes;
        int error;
    } row[] = {{"text", 4, EFBIG},   {"absent", 99, ENOENT}, {".", 99, EISDIR},
               {"fifo", 99, EINVAL}, {BOOT_ID, 36, EFBIG},   {"/proc/self/smaps", 5000, EFBIG}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        data = NULL, bytes = 7;
        assert_int_equal(ku_os_slurp(row[i].path, row[i].max_bytes, &data, &bytes), -1);
        assert_int_equal(errno, row[i].error);
        assert_null(data);
        assert_int_equal(bytes, 7);
    }
}

static void count_tick(void *n)
{
    ++*(int *)n;
}

static void test_folders(void **state)
{
    struct stat st;
    char **names;
    int n, n_ticks = 0;
    (void)state;
    assert_int_equal(ku_os_mkdirs("x/y//z/"), 0);
    assert_int_equal(ku_os_mkdirs("x/y/z"), 0);
    assert_int_equal(ku_os_mkdirs("/"), 0);
    assert_int_equal(ku_os_mkdirs(""), -1);
    assert_int_equal(errno, ENOENT);
    put("x/file", "1");
    assert_int_equal(ku_os_mkdirs("x/file"), -1);
    assert_int_equal(errno, ENOTDIR);
    assert_int_equal(ku_os_mkdirs("x/file/z"), -1);
    assert_int_equal(errno, ENOTDIR);
    assert_int_equal(ku_os_mkdir("x", 0777), -1);
    assert_int_equal(errno, EEXIST);

    put("x/.hidden", ""), put("x/B", ""), put("x/a10", ""), put("x/a9", "");
    static const char *const expected[] = {".hidden", "B", "a10", "a9", "file", "y"};
    assert_int_equal(ku_os_list("x", &names, &n), 0);
    assert_int_equal(n, 6);
    for (int i = 0; i < 6; i++)
        assert_string_equal(names[i], expected[i]);
    assert_null(names[6]);
    ku_free(names);
    assert_int_equal(ku_os_list("x/y/z", &names, &n), 0);
    assert_int_equal(n, 0);
    ku_free(names);
    assert_int_equal(ku_os_list("x/file", &names, &n), -1);
    assert_int_equal(errno, ENOTDIR);
    assert_int_equal(ku_os_list("absent", &names, &n), -1);

    assert_int_equal(ku_os_mkdir("kept", 0777), 0);
    put("kept/file", "2");
    assert_int_equal(symlink("../../kept", "x/y/link"), 0);
    assert_int_equal(symlink("kept", "link"), 0);
    assert_int_equal(ku_os_fsync_dir("x"), 0);
    ku_ticker = (struct ku_ticker){count_tick, &n_ticks};
    assert_int_equal(ku_os_rmtree("x"), 0);
    ku_ticker = (struct ku_ticker){NULL, NULL};
    assert_int_equal(n_ticks, 8); /* the entries of x and of x/y */
    assert_int_equal(ku_os_stat("x", &st), -1);
    assert_int_equal(ku_os_rmtree("link"), 0); /* the link, not what it points to */
    expect_text("kept/file", "2");
    assert_int_equal(ku_os_rmtree("kept/file"), 0);
    assert_int_equal(ku_os_rmtree("absent"), 0);
    assert_int_equal(symlink("absent", "link"), 0);
    assert_false(ku_os_is_missing("link")); /* broken, but there */
    assert_false(ku_os_is_missing("kept"));
    assert_true(ku_os_is_missing("absent"));
    assert_int_equal(ku_os_unlink("link"), 0);
    assert_int_equal(ku_os_rmtree("kept/absent/x"), 0);
}

static void test_replace(void **state)
{
    char **names, *folder = *state, path[64];
    int n;
    assert_int_equal(ku_os_replace("f", "one", 3), 0);
    expect_text("f", "one");
    snprintf(path, sizeof path, "%s/f", folder);
    assert_int_equal(ku_os_replace(path, "second", 6), 0);
    expect_text("f", "second");
    assert_int_equal(ku_os_replace("absent/f", "x", 1), -1);
    assert_int_equal(errno, ENOENT);
    put("g", "other");
    assert_int_equal(ku_os_exchange("f", "g"), 0);
    expect_text("f", "other");
    expect_text("g", "second");
    assert_int_equal(ku_os_exchange("f", "absent"), -1);
    assert_int_equal(ku_os_list(".", &names, &n), 0);
    assert_int_equal(n, 2);
    ku_free(names);
}

static void test_lock(void **state)
{
    (void)state;
    int one = ku_os_open("lock", O_RDWR | O_CREAT, 0600), two = ku_os_open("lock", O_RDWR, 0);
    assert_int_equal(ku_os_lock(one), 0);
    assert_int_equal(ku_os_lock(one), 0);
    assert_int_equal(ku_os_lock(two), -1);
    assert_int_equal(errno, EWOULDBLOCK);
    assert_int_equal(ku_os_close(one), 0);
    assert_int_equal(ku_os_lock(two), 0);
    assert_int_equal(ku_os_close(two), 0);
}

static void test_memory(void **state)
{
    size_t bytes;
    (void)state;
    int fd = ku_os_memfd_sealed("kumi-test", 8192), open_fd = ku_os_memfd("kumi-test", 0);
    assert_true(fd >= 0 && open_fd >= 0);
    assert_int_equal(ku_os_memfd_check(fd, &bytes), 0);
    assert_int_equal(bytes, 8192);
    assert_int_equal(ftruncate(fd, 1), -1);
    assert_int_equal(errno, EPERM);
    assert_int_equal(ku_os_memfd_check(open_fd, &bytes), -1);
    int file = ku_os_open("plain", O_RDWR | O_CREAT, 0600);
    assert_int_equal(ku_os_memfd_check(file, &bytes), -1);
    char *one = ku_os_mmap(8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    char *two = ku_os_mmap(4096, PROT_READ, MAP_SHARED, fd, 4096);
    assert_true(one && two);
    ku_os_populate(one, 8192);
    ku_os_populate(one, 0);
    one[4096] = 9;
    assert_int_equal(two[0], 9);
    assert_int_equal(ku_os_munmap(one, 8192), 0);
    assert_int_equal(ku_os_munmap(two, 4096), 0);
    assert_null(ku_os_mmap(0, PROT_READ, MAP_SHARED, fd, 0));
    assert_int_equal(ku_os_keep_on_exec(fd, 1), 0);
    assert_int_equal(fcntl(fd, F_GETFD), 0);
    assert_int_equal(ku_os_keep_on_exec(fd, 0), 0);
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    close(fd), close(open_fd), close(file);
}

/* Two mappings of one memfd, one of them populated in part, agree on every byte. */
static void test_map_memfd(void **state)
{
    enum { HUGE = 2 << 20, PAGE = 4096 };
    static const size_t sizes[] = {PAGE, HUGE - PAGE, HUGE, 3 * HUGE + PAGE};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const size_t bytes = sizes[i];
        int fd = ku_os_memfd_sealed("kumi-test", bytes);
        unsigned char *one = ku_os_map_memfd(fd, bytes), *two = ku_os_map_memfd(fd, bytes);
        assert_true(one && two);
        assert_int_equal((uintptr_t)one % (bytes < HUGE ? PAGE : HUGE), 0);
        one[0] = 1, one[bytes - 1] = 2; /* populating changes nothing */
        ku_os_populate_memfd(one, 0);
        ku_os_populate_memfd(one, PAGE);
        ku_os_populate_memfd(one + bytes / 2 / PAGE * PAGE, bytes - bytes / 2 / PAGE * PAGE);
        ku_os_populate_memfd(one, bytes);
        size_t sum = 0;
        for (size_t b = 0; b < bytes; b++)
            sum += one[b];
        assert_int_equal(sum, 3);
        two[bytes / 2] = 7;
        assert_int_equal(one[bytes / 2], 7);
        assert_int_equal(two[bytes - 1], 2);
        assert_int_equal(ku_os_munmap(one, bytes), 0);
        assert_int_equal(ku_os_munmap(two, bytes), 0);
        close(fd);
    }
    assert_null(ku_os_map_memfd(-1, HUGE));
    assert_int_equal(errno, EBADF);
    assert_null(ku_os_map_memfd(-1, PAGE));
    assert_int_equal(errno, EBADF);
}

static void test_futex(void **state)
{
    _Atomic uint32_t word = 5;
    int64_t before = ku_clock_ns();
    (void)state;
    ku_os_futex_wait(&word, 4, INT64_C(10000000000)); /* has changed: returns at once */
    assert_true(ku_clock_ns() - before < 5000000000);
    before = ku_clock_ns();
    ku_os_futex_wait(&word, 5, 20000000);
    assert_true(ku_clock_ns() - before < 5000000000);
    ku_os_futex_wake(&word, 1);
}

static void test_sockets(void **state)
{
    char name[64], got[5] = "";
    uid_t uid;
    pid_t pid;
    int fd_in;
    const char *folder = *state;
    snprintf(name, sizeof name, "kumi-test%s", strrchr(folder, '-'));
    int listener = ku_os_local_listen(name, 4);
    assert_true(listener >= 0);
    assert_int_equal(ku_os_local_listen(name, 4), -1);
    assert_int_equal(errno, EADDRINUSE);
    assert_int_equal(ku_os_local_accept(listener, 1000000), -1);
    assert_int_equal(errno, EAGAIN);
    int one = ku_os_local_connect(name), two = ku_os_local_accept(listener, 1000000000);
    assert_true(one >= 0 && two >= 0);
    assert_int_equal(ku_os_local_peer(two, &uid, &pid), 0);
    assert_int_equal(uid, getuid());
    assert_int_equal(pid, getpid());
    assert_int_equal(ku_os_local_recv(two, got, 5, &fd_in, 1000000), -1);
    assert_int_equal(errno, EAGAIN);
    assert_int_equal(ku_os_local_send(one, "hello", 5, listener), 0);
    assert_int_equal(ku_os_local_send(one, "world", 5, -1), 0);
    assert_int_equal(ku_os_local_recv(two, got, 5, &fd_in, 1000000000), 0);
    assert_memory_equal(got, "hello", 5);
    assert_true(fd_in >= 0);
    assert_int_equal(fcntl(fd_in, F_GETFD), FD_CLOEXEC);
    close(fd_in);
    assert_int_equal(ku_os_local_recv(two, got, 5, &fd_in, 1000000000), 0);
    assert_memory_equal(got, "world", 5);
    assert_int_equal(fd_in, -1);
    static const char *const wrong[] = {"four", "six..."}; /* of another length: refused */
    for (int i = 0; i < 2; i++) {
        int n_before = n_open_files();
        assert_int_equal(ku_os_local_send(one, wrong[i], strlen(wrong[i]), listener), 0);
        assert_int_equal(ku_os_local_recv(two, got, 5, &fd_in, 1000000000), -1);
        assert_int_equal(errno, EBADMSG);
        assert_int_equal(fd_in, -1);
        assert_int_equal(n_open_files(), n_before);
    }
    close(one);
    assert_int_equal(ku_os_local_recv(two, got, 5, &fd_in, 1000000000), -1);
    assert_int_equal(errno, ECONNRESET);
    assert_int_equal(ku_os_local_send(two, "hello", 5, -1), -1); /* EPIPE, no signal */
    close(two), close(listener);
    assert_int_equal(ku_os_local_connect(name), -1);
    char long_name[200];
    memset(long_name, 'x', 199);
    long_name[199] = '\0';
    assert_int_equal(ku_os_local_listen(long_name, 1), -1);
    assert_int_equal(errno, ENAMETOOLONG);
}

/* Functions of several calls; each returns 0, or -1 with errno. */
static int do_slurp(void)
{
    char *data = NULL;
    size_t bytes;
    int result = ku_os_slurp("old", 99, &data, &bytes);
    ku_free(data);
    return result;
}
static int do_replace(void)
{
    return ku_os_replace("old", "new", 3);
}
static int do_mkdirs(void)
{
    return ku_os_mkdirs("p/q/r");
}
static int do_list(void)
{
    char **names = NULL;
    int n, result = ku_os_list(".", &names, &n);
    ku_free(names);
    return result;
}
static int do_rmtree(void)
{
    return ku_os_rmtree("tree");
}
static int do_memfd(void)
{
    size_t bytes;
    int fd = ku_os_memfd_sealed("kumi-test", 4096);
    int result = fd < 0 ? -1 : ku_os_memfd_check(fd, &bytes);
    int saved = errno;
    if (fd >= 0)
        close(fd);
    errno = saved;
    return result;
}
static int do_socket(void)
{
    char name[64], got[2];
    uid_t uid;
    pid_t pid;
    int fd_in = -1, result = -1;
    snprintf(name, sizeof name, "kumi-test-fault-%d", (int)getpid());
    int listener = ku_os_local_listen(name, 1);
    int one = listener < 0 ? -1 : ku_os_local_connect(name);
    int two = one < 0 ? -1 : ku_os_local_accept(listener, 1000000000);
    if (two >= 0 && ku_os_local_peer(two, &uid, &pid) == 0 &&
        ku_os_local_send(one, "hi", 2, -1) == 0)
        result = ku_os_local_recv(two, got, 2, &fd_in, 1000000000);
    int saved = errno;
    close(listener), close(one), close(two);
    errno = saved;
    return result;
}

static int is_there(const char *path)
{
    struct stat st;
    return ku_os_stat(path, &st) == 0;
}

/* Temporary names: unique, locked while their process works; those without a lock are removed. */
static void test_temporaries(void **state)
{
    static const char *const others[] = {"t/out.tmp", "t/out.kumi-tmp-1234567",
                                         "t/outer.kumi-tmp-12345678", "t/out.kumi-tmp-1234567g"};
    char *folder, *file, *again;
    (void)state;
    assert_int_equal(ku_os_mkdirs("t/out.kumi-tmp-00000001/sub"), 0);
    put("t/out.kumi-tmp-00000001/sub/file", "of a process that is gone");
    put("t/out.kumi-tmp-00000002", "likewise");
    assert_int_equal(symlink("/", "t/out.kumi-tmp-00000003"), 0);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        put(others[i], "of another program");
    int a = ku_os_temporary("t/out", 1, &folder), b = ku_os_temporary("t/out", 0, &file);
    int c = ku_os_temporary("t/out", 1, &again);
    assert_true(a >= 0 && b >= 0 && c >= 0);
    assert_string_not_equal(folder, again);
    assert_int_equal(ku_os_close(c), 0); /* as if its process had ended */
    ku_os_temporary_clean("t/out");
    assert_true(is_there(folder) && is_there(file) && !is_there(again));
    assert_false(is_there("t/out.kumi-tmp-00000001"));
    assert_false(is_there("t/out.kumi-tmp-00000002"));
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        assert_true(is_there(others[i]));
    assert_true(is_there("t/out.kumi-tmp-00000003")); /* a link is no folder */
    assert_int_equal(ku_os_rename(folder, "t/out"), 0);
    ku_os_close(a);
    ku_os_close(b);
    put("t/file.kumi-tmp-abcdef01", "half");
    assert_int_equal(ku_os_replace("t/file", "new", 3), 0);
    expect_text("t/file", "new");
    assert_false(is_there("t/file.kumi-tmp-abcdef01"));
    ku_os_temporary_clean("nowhere/out");
    ku_free(folder);
    ku_free(file);
    ku_free(again);
    assert_int_equal(ku_os_rmtree("t"), 0);
}

/* The n-th allocation, system call, write of each fails, for all n: said, nothing leaked, and files
 * are the old or the new whole. */
static void test_every_fault(void **state)
{
    static const struct {
        const char *name;
        int (*run)(void);
        int n_os, n_mem; /* at least so many calls can fail */
    } row[] = {{"slurp", do_slurp, 3, 1},   {"replace", do_replace, 5, 2},
               {"mkdirs", do_mkdirs, 3, 1}, {"list", do_list, 1, 2},
               {"rmtree", do_rmtree, 5, 4}, {"memfd", do_memfd, 4, 0},
               {"socket", do_socket, 7, 0}};
    static const struct {
        const char *kind;
        int error;
    } fault[] = {{"os", EIO}, {"mem", ENOMEM}, {"write", ENOSPC}};
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        for (int f = 0; f < 3; f++) {
            int n_failed = 0, n_good = 0;
            for (int n = 1; n_good < 4; n++) { /* close may fail unharmed */
                char spec[32], text[8] = "";
                assert_int_equal(ku_os_rmtree("tree") | ku_os_rmtree("p"), 0);
                assert_int_equal(ku_os_mkdirs("tree/sub"), 0);
                put("tree/file", "x"), put("tree/sub/file", "y"), put("old", "old");
                int n_before = n_open_files();
                snprintf(spec, sizeof spec, "%s:%d", fault[f].kind, n);
                ku_fault_set(spec);
                errno = 0;
                int result = row[i].run(), error = errno;
                ku_fault_set(NULL);
                assert_int_equal(n_open_files(), n_before);
                FILE *file = fopen("old", "r");
                assert_non_null(file);
                assert_non_null(fgets(text, sizeof text, file));
                fclose(file);
                assert_true(strcmp(text, "old") == 0 || strcmp(text, "new") == 0);
                char **names;
                int n_names;
                assert_int_equal(ku_os_list(".", &names, &n_names), 0);
                for (int k = 0; k < n_names; k++)
                    assert_null(strstr(names[k], "tmp"));
                ku_free(names);
                if (result == 0) {
                    n_good++;
                    continue;
                }
                n_failed++;
                if (error != fault[f].error)
                    fail_msg("%s: %s: %s", row[i].name, spec, strerror(error));
            }
            int least = f == 0 ? row[i].n_os : f == 1 ? row[i].n_mem : 0;
            if (n_failed < least)
                fail_msg("%s: %d faults of %s", row[i].name, n_failed, fault[f].kind);
        }
}

/* Systems as files: /proc and /sys under a folder. */
static void test_limits(void **state)
{
    static const struct {
        const char *path, *text;
        uint64_t available; /* after this file, too, exists */
        int cpus;
    } row[] = {
        {"/proc/x", "", UINT64_MAX, 64},
        {"/proc/meminfo", "MemTotal: 900 kB\nMemAvailable:     800 kB\nX: 1 kB\n", 819200, 64},
        {"/proc/self/cgroup", "0::/a/b\n", 819200, 64},
        {"/sys/fs/cgroup/a/b/memory.max", "max\n", 819200, 64},
        {"/sys/fs/cgroup/a/memory.max", "700000\n", 700000, 64},
        {"/sys/fs/cgroup/a/memory.current", "300000\n", 400000, 64},
        {"/sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 100000\nfile 6\n", 500000, 64},
        {"/sys/fs/cgroup/memory.max", "450000\n", 450000, 64},
        {"/sys/fs/cgroup/a/b/memory.max", "1000\n", 1000, 64},
        {"/sys/fs/cgroup/a/b/memory.current", "1001\n", 0, 64},
        {"/sys/fs/cgroup/a/b/memory.max", "max\n", 450000, 64},
        {"/sys/fs/cgroup/a/b/cpu.max", "max 100000\n", 450000, 64},
        {"/sys/fs/cgroup/a/cpu.max", "350000 100000\n", 450000, 3},
        {"/sys/fs/cgroup/a/b/cpu.max", "50000 100000\n", 450000, 1},
        /* Version 1, beside it: a controller among others, the host's path not to be seen here. */
        {"/proc/self/cgroup", "3:cpu,cpuacct:/h/c\n2:memory:/h/m\n1:name=memory:/\n", 450000, 64},
        {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n", 450000, 64},
        {"/sys/fs/cgroup/memory/memory.usage_in_bytes", "5000\n", 450000, 64},
        {"/sys/fs/cgroup/memory/h/m/memory.limit_in_bytes", "99999\n", 99999, 64},
        {"/sys/fs/cgroup/memory/h/memory.limit_in_bytes", "88888\n", 88888, 64},
        {"/sys/fs/cgroup/memory/h/memory.usage_in_bytes", "80000\n", 8888, 64},
        {"/sys/fs/cgroup/memory/h/memory.stat", "inactive_file 1\ntotal_inactive_file 70000\n",
         78888, 64},
        {"/sys/fs/cgroup/cpu/h/c/cpu.cfs_quota_us", "-1\n", 78888, 64},
        {"/sys/fs/cgroup/cpu/h/c/cpu.cfs_period_us", "100000\n", 78888, 64},
        {"/sys/fs/cgroup/cpu/h/c/cpu.cfs_quota_us", "200000\n", 78888, 2},
        {"/proc/self/cgroup", "garbage\n:\n\n7\n", 450000, 64},
    };
    char path[256];
    const char *root = *state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        snprintf(path, sizeof path, "%s%s", root, row[i].path);
        *strrchr(path, '/') = '\0';
        assert_int_equal(ku_os_mkdirs(path), 0);
        snprintf(path, sizeof path, "%s%s", root, row[i].path);
        put(path, row[i].text);
        uint64_t available = ku_os_mem_available_under(root);
        int cpus = ku_os_n_cpus_under(root, 64);
        if (available != row[i].available || cpus != row[i].cpus)
            fail_msg("%s: %llu bytes and %d cpus, not %llu and %d", row[i].path,
                     (unsigned long long)available, cpus, (unsigned long long)row[i].available,
                     row[i].cpus);
    }
    assert_int_equal(ku_os_n_cpus_under(root, 0), 1);
    assert_int_equal(ku_os_pss_under(root), 0);
    snprintf(path, sizeof path, "%s/proc/self/smaps_rollup", root);
    put(path, "5590-7ffe ---p 00000000 00:00 0 [rollup]\nRss:   80 kB\nPss_Dirty: 9 kB\n"
              "Pss:    77 kB\nPss_Anon: 8 kB\n");
    assert_int_equal(ku_os_pss_under(root), 77 * 1024);
    assert_true(ku_os_pss() > 1 << 16);
    assert_true(ku_os_n_cpus() >= 1 && ku_os_n_cpus() <= sysconf(_SC_NPROCESSORS_CONF));
    assert_true(ku_os_n_cpus_host() >= ku_os_n_cpus());
    assert_true(ku_os_mem_available() > 1 << 20 && ku_os_mem_available() != UINT64_MAX);
}

/* The kernel's call, or that of a machine with 2,048 possible CPUs, of which it gives four. */
static int has_many_cpus;
int sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *set)
{
    static const int given[] = {3, 1000, 1024, 2047};
    if (!has_many_cpus) {
        long n = syscall(SYS_sched_getaffinity, pid, bytes, set);
        if (n >= 0)
            memset((char *)set + n, 0, bytes - (size_t)n);
        return n < 0 ? -1 : 0;
    }
    if (bytes < 2048 / 8) {
        errno = EINVAL;
        return -1;
    }
    memset(set, 0, bytes);
    for (size_t i = 0; i < sizeof given / sizeof *given; i++)
        CPU_SET_S((size_t)given[i], bytes, set);
    return 0;
}

static void test_many_cpus(void **state)
{
    uint64_t mask[KU_OS_CPU_WORDS];
    (void)state;
    has_many_cpus = 1;
    ku_os_cpus(mask);
    int n = ku_os_n_cpus();
    has_many_cpus = 0;
    for (int i = 0; i < KU_OS_CPU_WORDS; i++)
        assert_true(mask[i] == (i == 0 ? 8 : i == 15 ? UINT64_C(1) << (1000 - 15 * 64) : 0));
    assert_int_equal(n, ku_os_n_cpus_under("", 4));
}

static void test_plugins(void **state)
{
    char why[256] = "", path[4096], self[4096];
    (void)state;
    assert_null(ku_os_plugin_load("./none.so", why, sizeof why));
    assert_non_null(strstr(why, "none.so"));
    put("text.so", "no object\n");
    assert_null(ku_os_plugin_load("./text.so", why, sizeof why));
    assert_non_null(strstr(why, "text.so"));
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(len > 0);
    self[len] = 0;
    *strrchr(self, '/') = 0; /* base is linked statically */
    assert_int_equal(ku_os_own_folder(path, sizeof path), 0);
    assert_string_equal(path, self);
    assert_int_equal(ku_os_own_folder(path, 2), -1);
    assert_int_equal(errno, ENAMETOOLONG);
    ku_fault_set("os:1");
    assert_null(ku_os_plugin_load("./text.so", why, sizeof why));
    assert_non_null(strstr(why, "Input/output error"));
    ku_fault_set("os:1");
    assert_int_equal(ku_os_own_folder(path, sizeof path), -1);
    unsetenv("KUMI_TEST_DEFAULT");
    assert_int_equal(ku_env_default("KUMI_TEST_DEFAULT", "1"), 0);
    assert_int_equal(ku_env_default("KUMI_TEST_DEFAULT", "2"), 0);
    assert_string_equal(ku_env("KUMI_TEST_DEFAULT"), "1");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, enter, leave)
static void test_exit_status(void **state)
{
    siginfo_t info;
    const pid_t child = fork();
    (void)state;
    if (child == 0) {
        alarm(20);
        pause();
        _exit(1);
    }
    assert_true(child > 0);
    assert_int_equal(ku_os_exit_status(child), 0);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
    assert_int_equal(ku_os_exit_status(child), SIGKILL); /* it can still be reaped */
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(ku_os_exit_status(child), 0);
}

/* What each of several stop signals means, 0.6 s apart: asks, again, ends */
static void test_stops(void **state)
{
    static const struct {
        int sig[6];
        const char *meaning;
        int first;
    } rows[] = {
        {{SIGTERM}, "a", SIGTERM},
        {{SIGTERM, SIGTERM, SIGTERM}, "a.e", SIGTERM},
        {{SIGINT, SIGTERM, SIGHUP}, "a.e", SIGINT},
        {{SIGUSR1, SIGUSR1, SIGUSR1, SIGUSR1}, "a...", SIGUSR1},
        {{SIGUSR1, SIGUSR1, SIGUSR1, SIGTERM, SIGUSR1, SIGTERM}, "a..a.e", SIGUSR1},
        {{SIGUSR1, SIGTERM, SIGINT, SIGTERM}, "aa.e", SIGUSR1},
        {{SIGTERM, SIGUSR1, SIGUSR1, SIGUSR1}, "a...", SIGTERM},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct ku_stops stops = {0};
        uint32_t asked = 0;
        for (int k = 0; rows[i].meaning[k]; k++) {
            enum ku_stop is = ku_stops_take(&stops, rows[i].sig[k], 1 + k * INT64_C(600000000));
            if ("a.e"[is] != rows[i].meaning[k])
                fail_msg("row %zu, signal %d: %c", i, k, "a.e"[is]);
            asked |= (uint32_t)(is == KU_STOP_ASKS) << rows[i].sig[k];
        }
        assert_int_equal(stops.first, rows[i].first);
        assert_int_equal(stops.asked, asked);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_files),   TEST(test_slurp),     TEST(test_slurp_proc),  TEST(test_folders),
        TEST(test_replace), TEST(test_lock),      TEST(test_memory),      TEST(test_map_memfd),
        TEST(test_futex),   TEST(test_sockets),   TEST(test_temporaries), TEST(test_every_fault),
        TEST(test_limits),  TEST(test_many_cpus), TEST(test_plugins),     TEST(test_exit_status),
        TEST(test_stops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
