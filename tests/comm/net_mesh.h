/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_COMM_NET_MESH_H
#define TESTS_COMM_NET_MESH_H

/*
 * Networks between ranks of a test, as threads or forked processes, and what drives requests.
 *
 *     rank 0's network ── dial ──> doorbell of rank 1 (SCM_RIGHTS) ──> take ── rank 1's
 *
 * The sockets are TCP over loopback, or Unix pairs, whose buffers are small.
 */
#include "base/clock.h"
#include "base/err.h"
#include "base/os/ipc.h"
#include "base/math/random.h"
#include "comm/net.h"
#include "comm/private.h"
#include "comm/tcp/tcp.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MESH_MAX = 8 };
static const int64_t NET_LIMIT_NS = INT64_C(120000000000); /* a hang, on any machine */

struct engine {
    const char *name;
    bool is_tcp;       /* else Unix pairs */
    bool is_doubled;   /* every dial makes two connections */
    const char *chaos; /* NULL: none */
};
struct mesh {
    const struct engine *engine;
    int n;
    int doorbell[MESH_MAX][2]; /* connections for a rank: it reads [0], others write [1] */
};
/* One rank's view */
struct side {
    struct mesh *mesh; /* of the engine tcp */
    int rank, n;
    struct ku_net *net;
    void *arg;
};

#define NET_CHECK(condition)                                                                       \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            printf("%s:%d: rank %d: %s (%s)\n", __FILE__, __LINE__, s->rank, #condition,           \
                   ku_err_get()->text);                                                            \
            return -70;                                                                            \
        }                                                                                          \
    } while (0)
#define NET_TRY(call) NET_CHECK((call) == 0)

/* Two ends of a TCP connection over loopback */
static inline int tcp_pair(int fd[2])
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    fd[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int bad = l < 0 || fd[0] < 0 || bind(l, (struct sockaddr *)&a, sizeof a) < 0 ||
              listen(l, 1) < 0 || getsockname(l, (struct sockaddr *)&a, &len) < 0 ||
              connect(fd[0], (struct sockaddr *)&a, sizeof a) < 0 ||
              (fd[1] = accept4(l, NULL, NULL, SOCK_CLOEXEC)) < 0;
    close(l);
    return bad ? -1 : 0;
}

static inline int make_pair(bool is_tcp, int fd[2])
{
    return is_tcp ? tcp_pair(fd) : socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd);
}

static inline int mesh_dial(void *ctx, const struct ku_dial_head *head, int64_t timeout_ns, int *fd)
{
    const struct side *s = ctx;
    KU_ASSERT(timeout_ns > 0 && head->from == s->rank && (head->to > s->rank || head->lane == 1));
    for (int i = 0; i < (s->mesh->engine->is_doubled ? 2 : 1); i++) {
        int pair[2];
        if (make_pair(s->mesh->engine->is_tcp, pair) < 0)
            return KU_ERR(KUMI_EPEER, "test: no pair");
        int failed = ku_os_local_send(s->mesh->doorbell[head->to][1], head, sizeof *head, pair[1]);
        close(pair[1]);
        if (i == 0 && !failed)
            *fd = pair[0];
        else
            close(pair[0]);
        if (failed)
            return KU_ERR(KUMI_EPEER, "test: no doorbell");
    }
    return 0;
}

static inline int mesh_take(void *ctx, struct ku_dial_head *head, int *fd)
{
    const struct side *s = ctx;
    return ku_os_local_recv(s->mesh->doorbell[s->rank][0], head, sizeof *head, fd, 0) == 0;
}

static inline void mesh_name(void *ctx, int rank, char *text, size_t cap)
{
    (void)ctx;
    snprintf(text, cap, "rank %d on host h%d", rank, rank / 2);
}

static inline int mesh_open(struct side *s)
{
    struct ku_tcp_wires wires = {.ctx = s,
                                 .dial = mesh_dial,
                                 .take = mesh_take,
                                 .doorbell = s->mesh->doorbell[s->rank][0],
                                 .name = mesh_name};
    struct ku_chaos chaos;
    struct ku_net *inner;
    KU_TRY(ku_tcp_open(&wires, s->rank, s->mesh->n, &s->net));
    if (!s->mesh->engine->chaos)
        return 0;
    inner = s->net;
    KU_TRY(ku_chaos_parse(s->mesh->engine->chaos, &chaos));
    return ku_net_chaos(inner, &chaos, s->rank, &s->net);
}

static inline void mesh_init(struct mesh *m, const struct engine *engine, int n)
{
    *m = (struct mesh){.engine = engine, .n = n};
    for (int i = 0; i < n; i++)
        KU_ASSERT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, m->doorbell[i]) == 0);
}
static inline void mesh_fini(struct mesh *m)
{
    for (int i = 0; i < m->n; i++)
        close(m->doorbell[i][0]), close(m->doorbell[i][1]);
}

/* Progress until a request ends, asleep in between. Another link may break meanwhile. */
static inline int net_wait(struct side *s, const struct ku_net_req *req)
{
    int64_t until = ku_clock_ns() + NET_LIMIT_NS;
    while (!req->is_done) {
        struct pollfd fds[64];
        bool has_moved = false;
        int status = s->net->ops->progress(s->net, -1, &has_moved);
        if (has_moved)
            continue;
        KU_TRY(status);
        if (ku_clock_ns() > until)
            return KU_ERR(KUMI_ETIMEDOUT, "test: rank %d waits for %p", s->rank, (const void *)req);
        int n = s->net->ops->poll(s->net, fds, 64);
        if (n < 0)
            usleep(200);
        else
            poll(fds, (nfds_t)(n < 64 ? n : 64), 50);
    }
    return req->status;
}

/* Byte i of a payload */
static inline void fill(unsigned char *at, size_t bytes, uint64_t key)
{
    uint32_t x = (uint32_t)(key * 2654435761u) | 1;
    for (size_t i = 0; i < bytes; i++)
        at[i] = (unsigned char)((x += 0x9E3779B9u) >> 24);
}
static inline bool is_filled(const unsigned char *at, size_t bytes, uint64_t key)
{
    uint32_t x = (uint32_t)(key * 2654435761u) | 1;
    for (size_t i = 0; i < bytes; i++)
        if (at[i] != (unsigned char)((x += 0x9E3779B9u) >> 24))
            return false;
    return true;
}

/* A request over `bytes` bytes, in pieces that depend on `key` */
static inline void make_request(struct ku_net_req *r, void *at, size_t bytes, uint64_t key)
{
    *r = (struct ku_net_req){.head = {.seq = key, .what = 7, .count = bytes, .stage = 3}};
    r->n_pieces = bytes ? 1 + (int)(key % KU_NET_PIECES) : (int)(key % 3);
    size_t done = 0;
    for (int i = 0; i < r->n_pieces; i++) {
        size_t part = i == r->n_pieces - 1 ? bytes - done : bytes * (key % 5) / 16;
        r->piece[i].at = (char *)at + done;
        r->piece[i].bytes = part;
        done += part;
    }
}

static inline int n_descriptors(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

typedef int net_body(struct side *s);
struct net_thread {
    struct side side;
    net_body *body;
    int status;
};
static inline int run_side(struct side *s, net_body *body)
{
    int status = mesh_open(s);
    if (status == 0)
        status = body(s);
    if (s->net)
        s->net->ops->close(s->net, status != 0);
    return status;
}
static inline void *run_thread(void *arg)
{
    struct net_thread *t = arg;
    t->status = run_side(&t->side, t->body);
    return NULL;
}

/* Run body on n ranks that are threads; returns the first status that is not 0. */
static inline int run_threads(const struct engine *engine, int n, net_body *body, void *arg)
{
    struct net_thread t[MESH_MAX] = {0};
    pthread_t id[MESH_MAX];
    struct mesh m;
    int status = 0;
    mesh_init(&m, engine, n);
    for (int i = 0; i < n; i++) {
        t[i].side = (struct side){.mesh = &m, .rank = i, .n = n, .arg = arg};
        t[i].body = body;
        KU_ASSERT(pthread_create(&id[i], NULL, run_thread, &t[i]) == 0);
    }
    for (int i = 0; i < n; i++) {
        pthread_join(id[i], NULL);
        status = status ? status : t[i].status;
    }
    mesh_fini(&m);
    return status;
}

/* The same with processes */
static inline int run_processes(const struct engine *engine, int n, net_body *body, void *arg)
{
    pid_t pid[MESH_MAX];
    struct mesh m;
    int failed = 0;
    mesh_init(&m, engine, n);
    fflush(NULL);
    for (int i = 0; i < n; i++) {
        pid[i] = fork();
        KU_ASSERT(pid[i] >= 0);
        if (pid[i] == 0) {
            struct side s = {.mesh = &m, .rank = i, .n = n, .arg = arg};
            int status = run_side(&s, body);
            fflush(NULL);
            _exit(status ? 1 : 0);
        }
    }
    for (int i = 0; i < n; i++) {
        int status;
        KU_ASSERT(waitpid(pid[i], &status, 0) == pid[i]);
        failed |= !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    mesh_fini(&m);
    return failed ? -70 : 0;
}

#endif
