/* SPDX-License-Identifier: Apache-2.0 */
/* tsan */
#include <errno.h>
#include <fcntl.h>

#include "base/fault.h"
#include "ckpt/read_ahead.h"
#include "ckpt_util.h"

enum { MIB = 1 << 20, WINDOW = 2 * MIB };

static unsigned char byte_at(size_t i)
{
    return (unsigned char)((i * 2654435761u) >> 13);
}

struct file {
    char dir[64], path[80];
    unsigned char *data;
    size_t bytes;
    int fd, direct_fd;
};

static void file_make(struct file *f, size_t bytes)
{
    folder_make(f->dir);
    snprintf(f->path, sizeof f->path, "%s/x", f->dir);
    f->bytes = bytes;
    f->data = malloc(bytes + 1);
    assert_non_null(f->data);
    for (size_t i = 0; i < bytes; i++)
        f->data[i] = byte_at(i);
    file_write(f->path, f->data, bytes);
    f->fd = ku_os_open(f->path, O_RDONLY, 0);
    f->direct_fd = ku_os_open(f->path, O_RDONLY | O_DIRECT, 0);
    assert_true(f->fd >= 0);
}

static void file_drop(struct file *f)
{
    ku_os_close(f->fd);
    if (f->direct_fd >= 0)
        ku_os_close(f->direct_fd);
    free(f->data);
    folder_remove(f->dir);
}

/* Bytes read before the end or the first error; each as it stands in the file, zeros behind it. */
static size_t read_all(const struct file *f, int direct_fd, size_t at, size_t end, int *status)
{
    struct ku_ahead *a;
    const unsigned char *data;
    size_t bytes, done = 0;
    *status = ku_ahead_open(f->fd, direct_fd, at, end, &a);
    if (*status < 0)
        return 0;
    while ((*status = ku_ahead_next(a, &data, &bytes)) == 0 && bytes > 0) {
        size_t left = at + done < f->bytes ? f->bytes - at - done : 0;
        size_t inside = bytes < left ? bytes : left;
        assert_memory_equal(data, f->data + at + done, inside);
        for (size_t i = inside; i < bytes; i++)
            if (data[i] != 0)
                fail_msg("byte %zu is behind the end", at + done + i);
        done += bytes;
    }
    int why = errno;
    ku_ahead_close(a);
    errno = why;
    return done;
}

static void every_length(void **unused)
{
    static const size_t lengths[] = {
        0, 1, 4096, WINDOW, WINDOW + 1, 3 * WINDOW + 123, 4 * WINDOW, 11 * WINDOW + 4097};
    int status;
    (void)unused;
    for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++) {
        struct file f;
        file_make(&f, lengths[n]);
        for (int is_direct = 0; is_direct < 2; is_direct++) {
            int fd = is_direct ? f.direct_fd : -1;
            assert_int_equal(read_all(&f, fd, 0, f.bytes, &status), f.bytes);
            assert_int_equal(status, 0);
            if (f.bytes > MIB) { /* a share of it, and a file that lost its end */
                assert_int_equal(read_all(&f, fd, MIB, f.bytes, &status), f.bytes - MIB);
                assert_int_equal(read_all(&f, fd, 0, f.bytes + 5 * MIB, &status),
                                 f.bytes + 5 * MIB);
                assert_int_equal(status, 0);
            }
        }
        file_drop(&f);
    }
}

static void closed_early(void **unused)
{
    struct file f;
    (void)unused;
    file_make(&f, 11 * WINDOW);
    for (int n = 0; n < 7; n++) {
        struct ku_ahead *a;
        const unsigned char *data;
        size_t bytes;
        assert_status(ku_ahead_open(f.fd, f.direct_fd, 0, f.bytes, &a), KUMI_OK);
        for (int i = 0; i < n; i++) {
            assert_int_equal(ku_ahead_next(a, &data, &bytes), 0);
            assert_int_equal(bytes, WINDOW);
        }
        ku_ahead_close(a);
    }
    ku_ahead_close(NULL);
    file_drop(&f);
}

/* The n-th read fails: by then as many windows are good as come before its own. One that fails past
 * the page cache is read through it. */
static void faults(void **unused)
{
    struct file f;
    char spec[32];
    int status, n_failed = 0;
    (void)unused;
    file_make(&f, 6 * WINDOW + 9);
    for (int n = 1; n <= 8; n++) {
        snprintf(spec, sizeof spec, "os:%d", n);
        ku_fault_set(spec);
        size_t done = read_all(&f, -1, 0, f.bytes, &status);
        n_failed += status < 0;
        assert_int_equal(status, n <= 7 ? -1 : 0);
        assert_true(status < 0 ? errno == EIO && done % WINDOW == 0 : done == f.bytes);
        ku_fault_set(spec);
        if (n <= 6 && f.direct_fd >= 0)
            assert_int_equal(read_all(&f, f.direct_fd, 0, 6 * WINDOW, &status), 6 * WINDOW);
        ku_fault_set(NULL);
    }
    assert_int_equal(n_failed, 7);
    for (int n = 1; n <= 2; n++) {
        snprintf(spec, sizeof spec, "mem:%d", n);
        ku_fault_set(spec);
        read_all(&f, -1, 0, f.bytes, &status);
        ku_fault_set(NULL);
        assert_int_equal(status, KUMI_ENOMEM);
    }
    file_drop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_length),
        cmocka_unit_test(closed_early),
        cmocka_unit_test(faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
