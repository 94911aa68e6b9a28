/* SPDX-License-Identifier: Apache-2.0 */
/* links: base */
/* tsan */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/os/aio.h"

enum { PAGE = 4096, MIB = 1 << 20, MANY = 100, PATIENCE_NS = 50000000 };

static const enum ku_aio_kind kinds[] = {KU_AIO_THREADS, KU_AIO_URING, KU_AIO_AUTO};

/* NULL: this build or kernel has no io_uring. */
static struct ku_aio *queue_of(enum ku_aio_kind kind)
{
    struct ku_aio *a = NULL;
    int status = ku_aio_create(kind, &a);
    if (kind != KU_AIO_URING)
        assert_int_equal(status, KUMI_OK);
    else if (status < 0)
        assert_int_equal(status, KUMI_EINVAL);
    return a;
}

static void wait_for(struct ku_aio *a, struct ku_aio_op *op)
{
    while (!ku_aio_wait(a, op, PATIENCE_NS))
        ;
}

static int open_file(int flags)
{
    int fd = ku_os_open_anonymous(".");
    assert_true(fd >= 0);
    if (flags == 0)
        return fd;
    int other = ku_os_reopen(getpid(), fd, O_RDWR | flags);
    ku_os_close(fd);
    return other;
}

static unsigned char byte_at(size_t i)
{
    return (unsigned char)((i * 2654435761u) >> 13);
}

/* What is written is there, whatever its size, and however many are under way. */
static void moves(void **state)
{
    static const struct {
        size_t bytes;
        int n, flags;
    } row[] = {{0, 1, 0},
               {1, 1, 0},
               {5000, 3, 0},
               {9 * MIB + 77, 2, 0},
               {PAGE, 1, O_DIRECT},
               {12 * MIB, 3, O_DIRECT},
               {16 * PAGE, MANY, O_DIRECT}};
    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        for (size_t r = 0; r < sizeof row / sizeof row[0]; r++) {
            struct ku_aio *a = queue_of(kinds[k]);
            struct ku_aio_op op[MANY];
            size_t each = row[r].bytes, all = each * (size_t)row[r].n;
            unsigned char *out = ku_malloc_aligned(PAGE, all + 1);
            unsigned char *in = ku_malloc_aligned(PAGE, all + 1);
            int fd = open_file(row[r].flags);
            for (size_t i = 0; i < all; i++)
                out[i] = byte_at(i);
            memset(in, 0, all + 1);
            for (int is_write = 1; is_write >= 0 && a && fd >= 0; is_write--) {
                for (int i = 0; i < row[r].n; i++) {
                    op[i] = (struct ku_aio_op){.fd = fd,
                                               .is_write = is_write,
                                               .data = (is_write ? out : in) + (size_t)i * each,
                                               .bytes = each,
                                               .at = (off_t)((size_t)i * each)};
                    ku_aio_start(a, &op[i]);
                }
                for (int i = row[r].n; i-- > 0;) {
                    wait_for(a, &op[i]);
                    assert_int_equal(op[i].why, 0);
                }
            }
            if (a && fd >= 0)
                assert_memory_equal(in, out, all);
            ku_aio_destroy(a);
            if (fd >= 0)
                ku_os_close(fd);
            ku_free(in);
            ku_free(out);
        }
}

/* A request that fails says why, and the next is served. */
static void failures(void **state)
{
    static const struct {
        const char *fault;
        int is_write, why;
        off_t at;
    } row[] = {{"os:1", 0, EIO, 0}, {"write:1", 1, ENOSPC, 0}, {NULL, 0, EIO, 64 * MIB}};
    static unsigned char data[9 * MIB];
    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        for (size_t r = 0; r < sizeof row / sizeof row[0]; r++) {
            struct ku_aio *a = queue_of(kinds[k]);
            int fd = open_file(0);
            assert_int_equal(ku_os_ftruncate(fd, sizeof data), 0);
            struct ku_aio_op bad = {.fd = fd,
                                    .is_write = row[r].is_write,
                                    .data = data,
                                    .bytes = sizeof data,
                                    .at = row[r].at},
                             good = {.fd = fd, .data = data, .bytes = sizeof data};
            if (a) {
                ku_fault_set(row[r].fault);
                ku_aio_start(a, &bad);
                wait_for(a, &bad);
                ku_fault_set(NULL);
                assert_int_equal(bad.why, row[r].why);
                ku_aio_start(a, &good);
                wait_for(a, &good);
                assert_int_equal(good.why, 0);
            }
            ku_aio_destroy(a);
            ku_os_close(fd);
        }
}

/* Requests without a wait are complete when the queue is destroyed. */
static void left_alone(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        struct ku_aio *a = queue_of(kinds[k]);
        unsigned char *data = ku_malloc_aligned(PAGE, 32 * MIB);
        int fd = open_file(0);
        struct ku_aio_op op = {.fd = fd, .is_write = 1, .data = data, .bytes = 32 * MIB};
        memset(data, 1, 32 * MIB);
        if (a)
            ku_aio_start(a, &op);
        ku_aio_destroy(a);
        ku_free(data);
        ku_os_close(fd);
    }
}

/* A piece that hangs: the others are counted as they end, the request is not done. */
static void hangs(void **state)
{
    static unsigned char data[9 * MIB];
    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        struct ku_aio *a = queue_of(kinds[k]);
        int fd = open_file(0);
        assert_int_equal(ku_os_ftruncate(fd, sizeof data), 0);
        struct ku_aio_op good = {.fd = fd, .data = data, .bytes = sizeof data}, bad = good;
        if (a) {
            assert_int_equal(ku_aio_moved_bytes(a), 0);
            ku_aio_start(a, &good);
            wait_for(a, &good);
            assert_int_equal(ku_aio_moved_bytes(a), 9 * MIB);
            ku_fault_set("hang:2");
            ku_aio_start(a, &bad);
            while (ku_aio_moved_bytes(a) < (9 + 5) * MIB)
                assert_int_equal(ku_aio_wait(a, &bad, PATIENCE_NS), 0);
            assert_int_equal(ku_aio_wait(a, &bad, PATIENCE_NS), 0);
            assert_int_equal(ku_aio_moved_bytes(a), (9 + 5) * MIB);
            ku_fault_set(NULL);
        }
        ku_aio_destroy(a);
        ku_os_close(fd);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(moves), cmocka_unit_test(failures),
                                       cmocka_unit_test(left_alone), cmocka_unit_test(hangs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
