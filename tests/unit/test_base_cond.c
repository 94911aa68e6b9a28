/* SPDX-License-Identifier: Apache-2.0 */
/* links: base */
/* Waits of base/cond.h do not follow the wall clock, which is an hour ahead here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/cond.h"

enum { SHORT_NS = 20 * 1000 * 1000 };

/* In place of the C library's: a deadline of the wall clock, as if that was then set back. */
int clock_gettime(clockid_t clock, struct timespec *t)
{
    const int failed = (int)syscall(SYS_clock_gettime, clock, t);
    if (clock == CLOCK_REALTIME)
        t->tv_sec += 3600;
    return failed;
}

static void test_deadline(void **state)
{
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t cond;
    (void)state;
    alarm(30);
    ku_cond_init(&cond);
    pthread_mutex_lock(&lock);
    const int64_t begin_ns = ku_clock_ns();
    while (ku_cond_wait(&cond, &lock, begin_ns + SHORT_NS)) /* without a signal: spurious */
        ;
    assert_true(ku_clock_ns() - begin_ns >= SHORT_NS);
    assert_false(ku_cond_wait(&cond, &lock, begin_ns)); /* in the past */
    pthread_mutex_unlock(&lock);
    pthread_cond_destroy(&cond);
    alarm(0);
}

struct pair {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool is_set;
};

static void *set(void *arg)
{
    struct pair *p = arg;
    pthread_mutex_lock(&p->lock);
    p->is_set = true;
    pthread_cond_signal(&p->cond);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void test_signal(void **state)
{
    struct pair p = {.lock = PTHREAD_MUTEX_INITIALIZER};
    pthread_t thread;
    (void)state;
    alarm(30);
    ku_cond_init(&p.cond);
    pthread_mutex_lock(&p.lock);
    assert_int_equal(pthread_create(&thread, NULL, set, &p), 0);
    while (!p.is_set)
        assert_true(ku_cond_wait(&p.cond, &p.lock, ku_clock_ns() + INT64_C(3600000000000)));
    pthread_mutex_unlock(&p.lock);
    pthread_join(thread, NULL);
    pthread_cond_destroy(&p.cond);
    alarm(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_deadline),
                                       cmocka_unit_test(test_signal)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
