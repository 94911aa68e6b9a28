/* SPDX-License-Identifier: Apache-2.0 */
/* links: job base */
/* tsan */
/* Hosts that do not fit together, and strangers at the door: what the join says, on all hosts. */
#include "base/clock.h"
#include "base/err.h"
#include "base/os/os.h"
#include "base/os/socket.h"
#include "job/control.h"
#include "job/control/hello.h"
#include "job/control/private.h"
#include "job/segment.h"
#include "job_client.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { MAX_HOSTS = 5 };
static const int64_t LIMIT_NS = INT64_C(40000000000);

/* A host that joins in a thread of its own */
struct host {
    pthread_t thread;
    int first, n_local, n, is_pretended, secret, status;
    int64_t timeout_ns;
    const char *root, *text; /* text: expected, NULL: it joins */
    const char *version, *interface;
    const struct kumi_error *refusal;
    int listener;
    unsigned late_us;
    char said[440], name[16];
    struct ku_segment *seg;
    struct ku_control *control;
};

static void *join(void *arg)
{
    struct host *h = arg;
    struct ku_control_opts o = {.client = &client,
                                .rank = h->first,
                                .n = h->n,
                                .n_local = h->n_local,
                                .host_name = h->name,
                                .root = h->root,
                                .is_pretended = h->is_pretended,
                                .version = h->version,
                                .interface = h->interface,
                                .listener = h->listener,
                                .secret = {(uint8_t)h->secret},
                                .timeout_ns = h->timeout_ns,
                                .refusal = h->refusal};
    usleep(h->late_us);
    h->status = ku_control_join(&o, h->seg, &h->control);
    if (h->status < 0)
        memcpy(h->said, ku_err_get()->text, sizeof h->said);
    return NULL;
}

/* A free port of the loopback interface, listening; "127.0.0.1:port" */
static int listen_here(char root[64])
{
    struct ku_os_address at = {.ip = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1}};
    int fd = ku_os_tcp_listen(&at, 64);
    assert_true(fd >= 0);
    assert_int_equal(ku_os_tcp_address(fd, false, &at), 0);
    snprintf(root, 64, "127.0.0.1:%u", at.port);
    return fd;
}

static void start(struct host *h, int i, uint64_t job_id)
{
    snprintf(h->name, sizeof h->name, "h%d", i);
    assert_int_equal(ku_segment_create_private(&client, h->n_local, &h->seg), 0);
    h->seg->job_id = job_id;
    /* ranks that do not fit the job are the root's to refuse */
    h->seg->first_rank = h->first;
    h->seg->n_ranks = h->n;
    atomic_store(&h->seg->n_hosts, 0);
    assert_int_equal(pthread_create(&h->thread, NULL, join, h), 0);
}

static void end(struct host *h, int n)
{
    for (int i = 0; i < n; i++)
        pthread_join(h[i].thread, NULL);
    for (int i = 0; i < n; i++) {
        ku_control_leave(h[i].control);
        ku_segment_unmap(h[i].seg);
    }
}

struct row {
    const char *what;
    int n_hosts, first[MAX_HOSTS], n_local[MAX_HOSTS], n[MAX_HOSTS];
    int secret[MAX_HOSTS], is_alone; /* is_alone: loopback is no way to the others */
    int status[MAX_HOSTS];
    const char *text[MAX_HOSTS];
    const char *version[MAX_HOSTS];
};

static const struct row rows[] = {
    {"good", 3, {0, 2, 5}, {2, 3, 1}, {6, 6, 6}, {0}, 0, {0}, {0}, {NULL}},
    {"another secret, and so a missing host",
     2,
     {0, 2},
     {2, 2},
     {4, 4},
     {0, 1},
     0,
     {KUMI_ETIMEDOUT, KUMI_EINVAL},
     {"no other host came within", "another secret; set KUMI_SECRET"},
     {NULL}},
    {"another version",
     2,
     {0, 2},
     {2, 2},
     {4, 4},
     {0},
     0,
     {KUMI_EINVAL, KUMI_EINVAL},
     {"join: host h0 runs kumi ", "host h1 kumi 9.8.7 ("},
     {NULL, "9.8.7"}},
    {"doubled ranks",
     3,
     {0, 2, 3},
     {2, 2, 3},
     {6, 6, 6},
     {0},
     0,
     {KUMI_EINVAL, KUMI_EINVAL, KUMI_EINVAL},
     {"both have rank 3", "both have rank 3", "both have rank 3"},
     {NULL}},
    {"missing ranks",
     2,
     {0, 4},
     {2, 2},
     {6, 6},
     {0},
     0,
     {KUMI_ETIMEDOUT, KUMI_ETIMEDOUT},
     {"ranks 2 to 3 did not come within 3 s", "ranks 2 to 3 did not come within 3 s"},
     {NULL}},
    {"other WORLD_SIZE",
     2,
     {0, 2},
     {2, 2},
     {4, 8},
     {0},
     0,
     {KUMI_EINVAL, KUMI_EINVAL},
     {"host h0 was told of 4 ranks in the job, host h1 of 8", "host h1 of 8; set WORLD_SIZE"},
     {NULL}},
    {"beyond the last rank",
     2,
     {0, 3},
     {2, 2},
     {4, 4},
     {0},
     0,
     {KUMI_EINVAL, KUMI_EINVAL},
     {"host h1 has ranks 3 to 4, but the job has 4", "but the job has 4"},
     {NULL}},
    {"loopback between two names",
     2,
     {0, 2},
     {2, 2},
     {4, 4},
     {0},
     1,
     {KUMI_EINVAL, KUMI_EINVAL},
     {"gives the loopback address 127.0.0.1", "gives the loopback address 127.0.0.1"},
     {NULL}},
};

static void test_joins(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct row *r = &rows[i];
        struct host h[MAX_HOSTS] = {0};
        char root[64];
        int fd = listen_here(root);
        for (int k = 0; k < r->n_hosts; k++) {
            /* those that time out do so soon; the root begins last, so its word comes after the
             * others' time is up */
            const bool is_late = r->status[0] == KUMI_ETIMEDOUT;
            const bool is_short = r->status[k] == KUMI_ETIMEDOUT;
            h[k].first = r->first[k], h[k].n_local = r->n_local[k], h[k].n = r->n[k];
            h[k].secret = r->secret[k], h[k].is_pretended = !r->is_alone;
            h[k].version = r->version[k];
            h[k].timeout_ns = is_short ? 3000000000 : LIMIT_NS;
            h[k].late_us = is_late && k == 0 ? 200000 : 0;
            h[k].root = root, h[k].listener = k == 0 ? fd + 1 : 0;
            start(&h[k], k, 0x7e570000 + i * 64 + (uint64_t)getpid() * 65536);
        }
        end(h, r->n_hosts);
        close(fd);
        for (int k = 0; k < r->n_hosts; k++) {
            if (h[k].status != r->status[k] || (r->text[k] && !strstr(h[k].said, r->text[k])))
                fail_msg("%s: host %d: %d, %s", r->what, k, h[k].status, h[k].said);
        }
    }
}

struct refusal_row {
    const char *what;
    int refuses; /* host whose ranks did not find each other; -1: two hosts have the same ranks */
    int late_ms[3]; /* when a host comes */
};

static const struct refusal_row refusals[] = {
    {"the root refuses", 0, {0, 0, 0}},
    {"the root refuses, and the last host comes late", 0, {0, 0, 800}},
    {"the root refuses, and all come late", 0, {0, 800, 800}},
    {"a host refuses", 1, {0, 0, 0}},
    {"a host refuses, and the last comes late", 1, {0, 0, 800}},
    {"a host refuses before the root is there", 1, {800, 0, 0}},
    {"doubled ranks, and the last host comes late", -1, {0, 0, 800}},
};

/* A host that cannot take part: all hosts say why long before their deadline. */
static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const struct refusal_row *r = &refusals[i];
        struct kumi_error why = {
            .status = KUMI_EINVAL, .scope = KUMI_SCOPE_JOB, .text = "a reason"};
        struct host h[3] = {0};
        char root[64];
        int fd = listen_here(root);
        const int64_t from = ku_clock_ns();
        for (int k = 0; k < 3; k++) {
            h[k].first = r->refuses < 0 ? k : 2 * k, h[k].n_local = 2, h[k].n = 6;
            h[k].is_pretended = 1, h[k].timeout_ns = 10 * LIMIT_NS;
            h[k].root = root, h[k].listener = k == 0 ? fd + 1 : 0;
            h[k].refusal = k == r->refuses ? &why : NULL;
            h[k].late_us = 1000 * (unsigned)r->late_ms[k];
            start(&h[k], k, 0x7e580000 + i * 64 + (uint64_t)getpid() * 65536);
        }
        end(h, 3);
        close(fd);
        for (int k = 0; k < 3; k++)
            if (h[k].status != KUMI_EINVAL ||
                !strstr(h[k].said, r->refuses < 0 ? "both have rank" : "a reason"))
                fail_msg("%s: host %d: %d, %s", r->what, k, h[k].status, h[k].said);
        assert_true(ku_clock_ns() - from < LIMIT_NS);
    }
}

static int connect_to(const char *root)
{
    struct ku_os_address at = {.ip = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1}};
    at.port = (uint16_t)strtol(strrchr(root, ':') + 1, NULL, 10);
    int fd = ku_os_tcp_connect(&at);
    assert_true(fd >= 0 && ku_os_await(fd, POLLOUT, 10000) == 1);
    return fd;
}

/* Two hosts of one rank each; the first listens on fd. */
static void set_two(struct host h[2], const char *root, int fd)
{
    for (int k = 0; k < 2; k++)
        h[k] = (struct host){.first = k,
                             .n_local = 1,
                             .n = 2,
                             .is_pretended = 1,
                             .root = root,
                             .timeout_ns = LIMIT_NS,
                             .listener = k == 0 ? fd + 1 : 0};
}

/* More strangers than may be pending, of all kinds, come before the second host. */
static void test_strangers(void **state)
{
    enum { N = KU_PENDING_MAX + 40 };
    struct host h[2] = {0};
    char root[64], junk[300];
    int fd = listen_here(root), stranger[N];
    (void)state;
    memset(junk, 'x', sizeof junk);
    set_two(h, root, fd);
    start(&h[0], 0, 0x7e571111 + (uint64_t)getpid() * 65536);
    for (int i = 0; i < N; i++) {
        stranger[i] = connect_to(root);
        if (i % 3 == 1) /* the others say nothing, or too little */
            assert_int_equal(ku_os_tcp_send(stranger[i], junk, sizeof junk), sizeof junk);
        if (i % 3 == 2)
            assert_int_equal(ku_os_tcp_send(stranger[i], "kumi", 4), 4);
    }
    start(&h[1], 1, 0x7e571112 + (uint64_t)getpid() * 65536);
    end(h, 2);
    assert_int_equal(h[0].status, 0);
    assert_int_equal(h[1].status, 0);
    for (int i = 0; i < N; i++)
        close(stranger[i]);
    close(fd);
}

/* Without a free descriptor the bridge sleeps between its tries to accept a connection. */
static void test_no_descriptor(void **state)
{
    struct host h[2] = {0};
    struct rlimit files, none;
    char root[64];
    int fd = listen_here(root);
    (void)state;
    set_two(h, root, fd);
    for (int k = 0; k < 2; k++)
        start(&h[k], k, 0x7e571113 + (uint64_t)getpid() * 65536);
    for (int k = 0; k < 2; k++) {
        pthread_join(h[k].thread, NULL);
        assert_int_equal(h[k].status, 0);
    }
    struct ku_control *c = h[0].control;
    int stranger = connect_to(root);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    none = (struct rlimit){.rlim_cur = 3, .rlim_max = files.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    ku_control_serve(c);
    const int is_awake = ku_os_await(ku_control_fd(c), POLLIN, 0);
    const int wait_ms = ku_control_timeout_ms(c);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    assert_int_equal(is_awake, 0);
    assert_in_range(wait_ms, 1, 1000);
    for (int i = 0; i < 400 && c->n_pending == 0; i++) {
        usleep(10000);
        ku_control_serve(c);
    }
    assert_int_equal(c->n_pending, 1);
    close(stranger);
    for (int k = 0; k < 2; k++) {
        ku_control_leave(h[k].control);
        ku_segment_unmap(h[k].seg);
    }
    close(fd);
}

/* The root starts last, on the third of its ports; other programs listen on the first two. */
static void test_late_root(void **state)
{
    struct host h[2] = {0};
    char root[64], range[64];
    int taken[2], port;
    (void)state;
    taken[0] = listen_here(root);
    port = (int)strtol(strrchr(root, ':') + 1, NULL, 10);
    struct ku_os_address at = {.ip = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1},
                               .port = (uint16_t)(port + 1)};
    taken[1] = ku_os_tcp_listen(&at, 1);
    snprintf(range, sizeof range, "127.0.0.1:%d+8", port);
    if (port > 65000) /* the ports end */
        snprintf(range, sizeof range, "127.0.0.1:64000+8");
    for (int k = 0; k < 2; k++)
        h[k] = (struct host){.first = k,
                             .n_local = 1,
                             .n = 2,
                             .is_pretended = 1,
                             .root = range,
                             .timeout_ns = LIMIT_NS};
    start(&h[1], 1, 0x7e572222 + (uint64_t)getpid() * 65536);
    usleep(300000);
    start(&h[0], 0, 0x7e572223 + (uint64_t)getpid() * 65536);
    end(h, 2);
    if (h[0].status || h[1].status)
        fail_msg("%d %s, %d %s", h[0].status, h[0].said, h[1].status, h[1].said);
    ku_os_close(taken[0]); /* neither answered */
    if (taken[1] >= 0)
        ku_os_close(taken[1]);
}

/* Two free ports of the loopback interface, one after the other; the first */
static int find_ports(void)
{
    for (int i = 0; i < 100; i++) {
        char root[64];
        const int first = listen_here(root), port = (int)strtol(strrchr(root, ':') + 1, NULL, 10);
        const struct ku_os_address at = {.ip = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1},
                                         .port = (uint16_t)(port + 1)};
        const int second = port < 65000 ? ku_os_tcp_listen(&at, 1) : -1;
        ku_os_close(first);
        if (second >= 0) {
            ku_os_close(second);
            return port;
        }
    }
    fail_msg("no two ports");
    return -1;
}

/*
 * Two jobs with one secret. The second host of job 2 comes first, and meets the root of job 1 on a
 * port of its own range: neither job takes the other's host.
 */
static void test_two_jobs(void **state)
{
    static const int order[] = {0, 3, 2, 1};
    struct host h[4] = {0};
    char root[2][64];
    const int port = find_ports();
    (void)state;
    snprintf(root[0], sizeof root[0], "127.0.0.1:%d", port + 1);
    snprintf(root[1], sizeof root[1], "127.0.0.1:%d+8", port);
    set_two(&h[0], root[0], -1);
    set_two(&h[2], root[1], -1);
    for (int i = 0; i < 4; i++) {
        const int k = order[i];
        h[k].timeout_ns = 10000000000;
        start(&h[k], k, 0x7e575550 + (uint64_t)(k / 2) + (uint64_t)getpid() * 65536);
        usleep(200000);
    }
    for (int k = 0; k < 4; k++)
        pthread_join(h[k].thread, NULL);
    for (int k = 0; k < 4; k++) {
        if (h[k].status)
            fail_msg("host %d: %d, %s", k, h[k].status, h[k].said);
        const struct ku_host_row *row = ku_segment_hosts(h[k].seg);
        for (int i = 0; i < 2; i++)
            assert_string_equal(row[i].name, h[k / 2 * 2 + i].name);
    }
    for (int k = 0; k < 4; k++) {
        ku_control_leave(h[k].control);
        ku_segment_unmap(h[k].seg);
    }
}

/*
 * The hosts meet at another address than that of KUMI_INTERFACE: the address in IPv4 is the first
 * of lo. An interface that does not exist is refused at once.
 */
static void test_interface(void **state)
{
    static const char *const interface[] = {"lo", "no-such-interface"};
    struct ku_os_address at = {.ip = {[15] = 1}};
    char root[64];
    const int taken = ku_os_tcp_listen(&at, 1);
    (void)state;
    if (taken < 0)
        skip(); /* no IPv6 */
    assert_int_equal(ku_os_tcp_address(taken, false, &at), 0);
    snprintf(root, sizeof root, "[::1]:%d+8", at.port < 65000 ? at.port : 64000);
    ku_os_close(taken);
    for (int i = 0; i < 2; i++) {
        struct host h[2] = {0};
        set_two(h, root, -1);
        for (int k = 0; k < 2; k++) {
            h[k].interface = interface[i];
            h[k].timeout_ns = 10000000000;
            start(&h[k], k, 0x7e574444 + (uint64_t)getpid() * 65536);
        }
        end(h, 2);
        for (int k = 0; k < 2; k++)
            if (i == 0
                    ? h[k].status != 0
                    : h[k].status != KUMI_EINVAL || !strstr(h[k].said, "KUMI_INTERFACE: no-such"))
                fail_msg("%s: host %d: %d, %s", interface[i], k, h[k].status, h[k].said);
    }
}

static void test_no_root(void **state)
{
    struct host h = {.first = 1, .n_local = 1, .n = 2, .is_pretended = 1, .timeout_ns = 300000000};
    char root[64];
    (void)state;
    close(listen_here(root));
    h.root = root;
    start(&h, 1, 0x7e573333 + (uint64_t)getpid() * 65536);
    end(&h, 1);
    assert_int_equal(h.status, KUMI_ETIMEDOUT);
    assert_non_null(strstr(h.said, "no kumi answered within 0.3 s"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_joins),     cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_strangers), cmocka_unit_test(test_late_root),
        cmocka_unit_test(test_no_root),   cmocka_unit_test(test_no_descriptor),
        cmocka_unit_test(test_interface), cmocka_unit_test(test_two_jobs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
