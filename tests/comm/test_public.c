/* SPDX-License-Identifier: Apache-2.0 */
/* links: comm job tensor base */
/* The public calls, as a program beside other threads uses them, started by each launcher we know,
 * on one host and on several. */
#include "comm/area.h"
#include "job/launch.h"
#include "kumi/launch.h"
#include "kumi/mesh.h"
#include "launched.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition,                     \
                    kumi_last_error()->text);                                                      \
            return 70;                                                                             \
        }                                                                                          \
    } while (0)

enum { COUNT = 1000 };

static int reductions(struct kumi_comm *c, float *x, float *y)
{
    int me = kumi_comm_rank(c), n = kumi_comm_size(c);
    float all = (float)(n * (n + 1)) / 2;
    for (int i = 0; i < COUNT * n; i++)
        x[i] = (float)(me + 1);
    CHECK(kumi_all_reduce(c, x, y, COUNT, KUMI_F32, KUMI_SUM) == 0 && y[COUNT - 1] == all);
    CHECK(kumi_all_reduce(c, y, y, 3, KUMI_F32, KUMI_MAX) == 0 && y[2] == all);
    float product = 1;
    for (int r = 1; r <= n; r++)
        product *= (float)r;
    for (int root = 0; root < n; root++) {
        for (int i = 0; i < COUNT; i++)
            y[i] = -1;
        CHECK(kumi_reduce(c, x, y, COUNT, KUMI_F32, KUMI_PROD, root) == 0);
        for (int i = 0; i < COUNT; i++)
            CHECK(y[i] == (me == root ? product : -1));
    }
    CHECK(kumi_reduce_scatter(c, x, y, COUNT, KUMI_F32, KUMI_SUM) == 0 && y[COUNT - 1] == all);
    CHECK(kumi_reduce_scatter(c, x, x + me * COUNT, COUNT, KUMI_F32, KUMI_MIN) == 0 &&
          x[me * COUNT] == 1);
    CHECK(kumi_reduce_scatter(c, x, x + me * COUNT + 1, COUNT, KUMI_F32, KUMI_SUM) == KUMI_EINVAL);
    return 0;
}

/* Blocks of 1, 2, .. elements of a vector whose element i is i on rank 0, i + 1 on rank 1, .. */
static int uneven_sums(struct kumi_comm *c, float *x, float *y)
{
    const int me = kumi_comm_rank(c), n = kumi_comm_size(c);
    int64_t counts[8];
    for (int r = 0; r < n; r++)
        counts[r] = r + 1;
    for (int i = 0; i < n * (n + 1) / 2; i++)
        x[i] = (float)(i + me);
    y[me + 1] = -1;
    CHECK(kumi_reduce_scatter_v(c, x, y, counts, KUMI_F32, KUMI_SUM) == 0);
    for (int i = 0; i <= me; i++)
        CHECK(y[i] == (float)(n * (me * (me + 1) / 2 + i) + n * (n - 1) / 2));
    CHECK(y[me + 1] == -1);
    return 0;
}

/* A ring of messages, to both sides, and collectives among them, in one batch */
static int batches(struct kumi_comm *c, float *x, float *y)
{
    enum { N = 6 };
    const int me = kumi_comm_rank(c), n = kumi_comm_size(c);
    const int left = (me + n - 1) % n, right = (me + 1) % n;
    float sum = (float)me, first = me ? -1 : 77;
    const struct kumi_collective batch[N] = {
        {.kind = KUMI_RECV, .root = left, .out = y, .count = COUNT / 2},
        {.kind = KUMI_RECV, .root = right, .out = y + COUNT / 2, .count = COUNT / 2},
        {.kind = KUMI_SEND, .root = right, .in = x, .count = COUNT / 2},
        {.kind = KUMI_ALL_REDUCE, .in = &sum, .out = &sum, .count = 1},
        {.kind = KUMI_SEND, .root = left, .in = x, .count = COUNT / 2},
        {.kind = KUMI_BROADCAST, .out = &first, .count = 1}};
    for (int i = 0; i < COUNT; i++)
        x[i] = (float)(me * COUNT + i);
    CHECK(kumi_batch(c, batch, N) == 0);
    CHECK(sum == (float)(n * (n - 1) / 2) && first == 77);
    for (int i = 0; i < COUNT; i++)
        CHECK(y[i] == (float)((i < COUNT / 2 ? left : right) * COUNT + i % (COUNT / 2)));
    return 0;
}

/* x[i] is rank * COUNT + i. Ranks other than the root receive nothing. */
static int gathers(struct kumi_comm *c, const float *x, float *y, int root)
{
    const int me = kumi_comm_rank(c), n = kumi_comm_size(c);
    int64_t counts[8];
    for (int is_v = 0; is_v < 2; is_v++) {
        float *at = y;
        for (int r = 0; r < n; r++)
            counts[r] = is_v ? r + 1 : COUNT;
        for (int i = 0; i < COUNT * n; i++)
            y[i] = -1;
        CHECK((is_v ? kumi_gather_v(c, x, y, counts, KUMI_F32, root)
                    : kumi_gather(c, x, y, COUNT, KUMI_F32, root)) == 0);
        for (int r = 0; me == root && r < n; r++)
            for (int64_t i = 0; i < counts[r]; i++)
                CHECK(*at++ == (float)(r * COUNT + i));
        for (; at < y + COUNT * n; at++)
            CHECK(*at == -1);
    }
    return 0;
}

static int moves(struct kumi_comm *c, float *x, float *y)
{
    int me = kumi_comm_rank(c), n = kumi_comm_size(c);
    int64_t counts[8], back[8];
    for (int r = 0; r < n; r++)
        counts[r] = r + 1, back[r] = me + 1;
    for (int i = 0; i < COUNT * n; i++)
        x[i] = (float)(me * COUNT + i);
    CHECK(kumi_all_gather(c, x, y, COUNT, KUMI_F32) == 0 &&
          y[(n - 1) * COUNT] == (float)((n - 1) * COUNT));
    CHECK(kumi_all_gather_v(c, x, y, counts, KUMI_F32) == 0 && y[0] == 0);
    for (int root = 0; root < n; root++)
        CHECK(gathers(c, x, y, root) == 0);
    CHECK(kumi_scatter(c, x, y, COUNT, KUMI_F32, 0) == 0 && y[1] == (float)(me * COUNT + 1));
    CHECK(kumi_scatter_v(c, x, y, counts, KUMI_F32, 0) == 0 && y[0] == (float)(me * (me + 1) / 2));
    CHECK(kumi_all_to_all(c, x, y, COUNT, KUMI_F32) == 0 && y[0] == (float)(me * COUNT));
    CHECK(kumi_all_to_all_v(c, x, y, counts, back, KUMI_F32) == 0);
    CHECK(kumi_all_to_all_v(c, x, x, counts, back, KUMI_F32) == KUMI_EINVAL);
    for (int root = 0; root < n; root++) {
        memcpy(y, x, COUNT * sizeof *y);
        CHECK(kumi_broadcast(c, y, COUNT, KUMI_F32, root) == 0);
        for (int i = 0; i < COUNT; i++)
            CHECK(y[i] == (float)(root * COUNT + i));
    }
    CHECK(kumi_broadcast(c, y, COUNT, KUMI_F32, n) == KUMI_EINVAL);
    if (n > 1 && me < 2)
        CHECK((me ? kumi_recv(c, y, COUNT, KUMI_F32, 0) : kumi_send(c, x, COUNT, KUMI_F32, 1)) ==
              0);
    CHECK(kumi_barrier(c) == 0);
    return 0;
}

/* A refusal names the missing buffer and what it should hold. */
static int missing_buffers(struct kumi_comm *c, float *x)
{
    const int me = kumi_comm_rank(c), n = kumi_comm_size(c);
    int64_t counts[8];
    char text[64];
    for (int r = 0; r < n; r++)
        counts[r] = r + 1;
    CHECK(kumi_scatter(c, me ? NULL : x, NULL, COUNT, KUMI_F32, 0) == KUMI_EINVAL &&
          strstr(kumi_last_error()->text, "scatter: out: NULL, for 1000 elements"));
    snprintf(text, sizeof text, "all_gather_v: out: NULL, for %d elements", n * (n + 1) / 2);
    CHECK(kumi_all_gather_v(c, x, NULL, counts, KUMI_F32) == KUMI_EINVAL &&
          strstr(kumi_last_error()->text, text));
    CHECK(kumi_recv(c, NULL, 3, KUMI_F32, 0) == KUMI_EINVAL &&
          strstr(kumi_last_error()->text, "recv: data: NULL, for 3 elements"));
    return 0;
}

/* The even ranks send to the odd ones, which send nothing: each has one buffer. */
static int one_way(struct kumi_comm *c, float *x, float *y)
{
    enum { EACH = 300 };
    const int me = kumi_comm_rank(c), n = kumi_comm_size(c), is_sender = me % 2 == 0;
    int64_t send[8], recv[8];
    for (int r = 0; r < n; r++) {
        send[r] = is_sender && r % 2 ? EACH + r : 0;
        recv[r] = !is_sender && r % 2 == 0 ? EACH + me : 0;
    }
    for (int i = 0; i < COUNT * n; i++)
        x[i] = (float)me, y[i] = -1;
    CHECK(kumi_all_to_all_v(c, is_sender ? x : NULL, is_sender ? NULL : y, send, recv, KUMI_F32) ==
          0);
    for (int i = 0; !is_sender && i < (n + 1) / 2 * (EACH + me); i++)
        CHECK(y[i] == (float)(i / (EACH + me) * 2));
    if (n == 1)
        return 0;
    /* what a rank receives needs memory, of its own, whatever it sends */
    send[0] = recv[0] = is_sender ? 0 : 2;
    send[1] = recv[1] = is_sender ? 2 : 0;
    CHECK(kumi_all_to_all_v(c, x, NULL, send, recv, KUMI_F32) == KUMI_EINVAL);
    send[0] = send[1] = 0;
    recv[0] = recv[1] = 2;
    CHECK(kumi_all_to_all_v(c, NULL, NULL, send, recv, KUMI_F32) == KUMI_EINVAL);
    send[0] = 1;
    CHECK(kumi_all_to_all_v(c, y + 3, y, send, recv, KUMI_F32) == KUMI_EINVAL);
    return 0;
}

/* Members that a kind does not use: kinds that move data do not scale it, and have any `reduce`. */
static int unused_members(struct kumi_comm *c, float *x, float *y)
{
    static const int64_t counts[] = {1, COUNT}; /* in the arrival, and through the stages */
    const int me = kumi_comm_rank(c), n = kumi_comm_size(c);
    for (int i = 0; i < COUNT; i++)
        x[i] = (float)(me + 1);
    for (int i = 0; i < 4; i++) {
        struct kumi_collective gather = {.kind = i / 2 ? KUMI_GATHER : KUMI_ALL_GATHER,
                                         .dtype = KUMI_F32,
                                         .reduce = KUMI_PREMUL_SUM,
                                         .scale = 3,
                                         .in = x,
                                         .out = y,
                                         .count = counts[i % 2]};
        CHECK(kumi_batch(c, &gather, 1) == 0);
        for (int64_t k = 0; (i < 2 || me == 0) && k < n * counts[i % 2]; k++)
            CHECK(y[k] == (float)(k / counts[i % 2] + 1));
        gather.reduce = (enum kumi_reduce)77;
        CHECK(kumi_batch(c, &gather, 1) == 0);
    }
    return 0;
}

struct stopper {
    _Atomic int is_set;
};

static void *spin(void *arg)
{
    struct stopper *stop = arg;
    while (!stop->is_set)
        usleep(1000);
    return NULL;
}

/* A job of n ranks as n/2 x 2 and as n: sums along an axis are those of its members alone. */
static int meshes(struct kumi_comm *world)
{
    static const struct kumi_mesh_axis bad[][2] = {{{"dp", 0}, {"tp", 0}},
                                                   {{"dp", 3}, {"tp", 5}},
                                                   {{"dp", 0}, {"dp", 1}},
                                                   {{"", 0}, {"x", 1}}};
    int me = kumi_comm_rank(world), n = kumi_comm_size(world), status;
    struct kumi_mesh *mesh = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        CHECK(kumi_mesh_create(world, bad[i], 2, &mesh) == KUMI_EINVAL && !mesh);
    for (int tp = 1; tp <= 2; tp++) {
        if (n % tp)
            continue;
        struct kumi_mesh_axis axes[] = {{"dp", 0}, {"tp", tp}};
        if ((status = kumi_mesh_create(world, axes, 2, &mesh)))
            return status;
        CHECK(kumi_mesh_coord(mesh, "dp") == me / tp && kumi_mesh_coord(mesh, "tp") == me % tp);
        CHECK(kumi_mesh_coord(mesh, "pp") == -1 && !kumi_mesh_comm(mesh, "pp"));
        int32_t along_dp = me, along_tp = me;
        struct kumi_comm *c = kumi_mesh_comm(mesh, "dp");
        CHECK(kumi_comm_size(c) == n / tp && kumi_comm_rank(c) == me / tp);
        if ((status = kumi_all_reduce(c, &along_dp, &along_dp, 1, KUMI_I32, KUMI_SUM)) ||
            (status = kumi_all_reduce(kumi_mesh_comm(mesh, "tp"), &along_tp, &along_tp, 1, KUMI_I32,
                                      KUMI_SUM)))
            return status;
        int rows = n / tp;
        CHECK(along_dp == tp * rows * (rows - 1) / 2 + rows * (me % tp));
        CHECK(along_tp == tp * (me / tp * tp) + tp * (tp - 1) / 2);
        if ((status = kumi_mesh_destroy(mesh)))
            return status;
        mesh = NULL;
    }
    return kumi_mesh_destroy(NULL);
}

/* What only the world communicator can do. */
static int not_the_world(struct kumi_comm *half)
{
    static const char words[] = "comm split: not the world communicator";
    struct kumi_mesh *mesh = NULL;
    void *memory = NULL;
    CHECK(kumi_comm_leave(half) == KUMI_EINVAL && strstr(kumi_last_error()->text, words));
    CHECK(kumi_comm_alloc(half, 8, &memory) == KUMI_EINVAL && !memory &&
          strstr(kumi_last_error()->text, words));
    CHECK(kumi_comm_dealloc(half, NULL) == KUMI_EINVAL && strstr(kumi_last_error()->text, words));
    CHECK(kumi_mesh_create(half, (struct kumi_mesh_axis[]){{"dp", 0}}, 1, &mesh) == KUMI_EINVAL &&
          !mesh && strstr(kumi_last_error()->text, words));
    return 0;
}

/* A work that is finished keeps its communicator until it is waited for. */
static int unwaited_work(struct kumi_comm *world)
{
    static const char words[] = "operations in flight: 1; wait for them first";
    struct kumi_comm *c;
    struct kumi_work *work;
    int32_t x = 7;
    const struct kumi_collective broadcast = {
        .kind = KUMI_BROADCAST, .dtype = KUMI_I32, .out = &x, .count = 1};
    CHECK(kumi_comm_split(world, 0, 0, &c) == 0);
    CHECK(kumi_work_start(c, &broadcast, &work) == 0 && kumi_barrier(c) == 0);
    CHECK(kumi_comm_free(c) == KUMI_EINVAL && strstr(kumi_last_error()->text, words));
    CHECK(kumi_comm_leave(world) == KUMI_EINVAL && strstr(kumi_last_error()->text, words));
    CHECK(kumi_work_wait(work) == 0);
    CHECK(kumi_comm_free(c) == 0);
    return 0;
}

/* What should be there */
struct world {
    int n;
    bool has_hosts;
};

static int use(void *arg)
{
    const struct world *w = arg;
    struct kumi_comm *world, *half;
    pthread_t other;
    struct stopper stop = {0};
    void *shared;
    CHECK(pthread_create(&other, NULL, spin, &stop) == 0);
    CHECK(kumi_comm_join(NULL, &world) == 0);
    int n = kumi_comm_size(world), me = kumi_comm_rank(world), status;
    CHECK(n == w->n);
    float *x = malloc((size_t)n * COUNT * 4), *y = malloc((size_t)n * COUNT * 4);
    CHECK(x && y);
    if ((status = reductions(world, x, y)) || (status = uneven_sums(world, x, y)) ||
        (status = moves(world, x, y)) || (status = batches(world, x, y)) ||
        (status = missing_buffers(world, x)) || (status = one_way(world, x, y)) ||
        (status = unused_members(world, x, y)))
        return status;
    CHECK((kumi_comm_staged_bytes(world) > 0) == (n > 1));
    CHECK(kumi_comm_alloc(world, (size_t)n * COUNT * 8, &shared) == 0);
    uint64_t before = kumi_comm_staged_bytes(world);
    if ((status = reductions(world, shared, (float *)shared + n * COUNT)))
        return status;
    CHECK(w->has_hosts || kumi_comm_staged_bytes(world) == before);
    CHECK(kumi_comm_dealloc(world, x) == KUMI_EINVAL);
    CHECK(kumi_comm_dealloc(world, shared) == 0);
    CHECK(kumi_comm_split(world, me % 2, me, &half) == 0 &&
          kumi_comm_size(half) == (n + 1 - me % 2) / 2);
    if ((status = reductions(half, x, y)) || (status = uneven_sums(half, x, y)) ||
        (status = moves(half, x, y)) || (status = batches(half, x, y)))
        return status;
    CHECK(kumi_comm_free(world) == KUMI_EINVAL);
    if ((status = not_the_world(half)))
        return status;
    CHECK(kumi_comm_free(half) == 0);
    CHECK(kumi_comm_split(world, -1, 0, &half) == 0 && !half);
    if ((status = meshes(world)) || (status = unwaited_work(world)))
        return status;
    CHECK(kumi_comm_leave(world) == 0);
    stop.is_set = 1;
    pthread_join(other, NULL);
    free(x);
    free(y);
    return 0;
}

static void test_own_launcher(void **state)
{
    (void)state;
    for (struct world w = {.n = 1}; w.n <= 4; w.n++)
        assert_int_equal(kumi_launch(use, &w, w.n), 0);
}

/* By exec: this program again, as a rank. */
static void test_own_launcher_exec(void **state)
{
    char self[] = "/proc/self/exe", word[] = "rank";
    char *const argv[] = {self, word, NULL};
    int code = -1;
    (void)state;
    assert_int_equal(ku_launch(&ku_comm_client, argv, 3, NULL, &code), 0);
    assert_int_equal(code, 0);
}

/* On several hosts, over TCP and MPI */
static void test_hosts(void **state)
{
    struct sample share = {.plain = 24, .address = 60};
    (void)state;
    launched_all(&share, "");
}

/* No time-out: the longest time that a double or the clock can say. The last rank is late. */
static int join_without_limit(void *arg)
{
    const struct kumi_comm_options options = {.timeout_s = *(double *)arg,
                                              .join_timeout_s = *(double *)arg};
    struct kumi_comm *world;
    CHECK(kumi_comm_join(&options, &world) == 0);
    CHECK(kumi_barrier(world) == 0);
    if (kumi_comm_rank(world) == 1)
        usleep(100000);
    CHECK(kumi_barrier(world) == 0);
    CHECK(kumi_comm_leave(world) == 0);
    return 0;
}

static void test_no_limit(void **state)
{
    double limits[] = {(double)INFINITY, 1e300, 9.3e9, 9e9};
    (void)state;
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        assert_int_equal(kumi_launch(join_without_limit, &limits[i], 2), 0);
}

/* The shortest time-out is one, and not 0, which means the default. */
static int wait_briefly(void *arg)
{
    const struct kumi_comm_options options = {.timeout_s = 1e-12};
    struct kumi_comm *world;
    (void)arg;
    int status = kumi_comm_join(&options, &world);
    if (!status && kumi_comm_rank(world) == 1)
        usleep(2000000);
    return status ? status : kumi_barrier(world);
}

static void test_short_limit(void **state)
{
    (void)state;
    assert_int_equal(kumi_launch(wait_briefly, NULL, 2), KUMI_ETIMEDOUT);
}

/* Rank 1 ends inside the job; rank 0 frees what it has. */
struct ended {
    int code, status; /* of rank 1; of the root cause */
    bool has_works;   /* rank 0 starts and calls collectives before it frees */
    _Atomic int is_ready, is_checked;
};

static int free_after_end(void *arg)
{
    struct ended *e = arg;
    struct kumi_comm *world, *pair, *other;
    struct kumi_work *work;
    float x = 1;
    CHECK(kumi_comm_join(NULL, &world) == 0);
    CHECK(kumi_comm_split(world, 0, 0, &pair) == 0);
    if (kumi_comm_rank(world) == 1) {
        while (!e->is_ready)
            usleep(100);
        exit(e->code);
    }
    if (e->has_works)
        CHECK(kumi_work_start(pair, &(struct kumi_collective){.kind = KUMI_BARRIER}, &work) == 0);
    e->is_ready = 1;
    if (e->has_works) {
        CHECK(kumi_all_reduce(pair, &x, &x, 1, KUMI_F32, KUMI_SUM) == e->status);
        CHECK(kumi_comm_split(pair, 0, 0, &other) == e->status);
    }
    CHECK(kumi_comm_free(pair) == e->status);
    CHECK(strstr(kumi_last_error()->text, "rank 1: ended with exit code"));
    if (e->has_works)
        CHECK(kumi_work_wait(work) == e->status);
    CHECK(kumi_comm_leave(world) == e->status);
    e->is_checked = 1;
    return 0;
}

static void test_free_after_failure(void **state)
{
    static const struct ended rows[] = {{57, KUMI_EPEER, true, 0, 0},
                                        {57, KUMI_EPEER, false, 0, 0},
                                        {-KUMI_EINVAL, KUMI_EINVAL, true, 0, 0},
                                        {-KUMI_EINVAL, KUMI_EINVAL, false, 0, 0}};
    struct ended *e =
        mmap(NULL, sizeof *e, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    (void)state;
    assert_true(e != MAP_FAILED);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        /* rank 0 has 0.5 s to end after rank 1, which can be too short on a busy machine */
        for (int k = 0; k < 10 && (k == 0 || !e->is_checked); k++) {
            *e = rows[i];
            assert_int_not_equal(kumi_launch(free_after_end, e, 2), 0);
        }
        assert_true(e->is_checked);
    }
    munmap(e, sizeof *e);
}

static int use_alone(void)
{
    struct world one = {.n = 1};
    pid_t pid = fork();
    int status;
    if (pid == 0)
        exit(use(&one));
    waitpid(pid, &status, 0);
    return status;
}

static void test_alone(void **state)
{
    (void)state;
    assert_int_equal(use_alone(), 0);
}

struct launcher {
    const char *rank, *n, *local_rank, *local_n, *more;
};

static void set(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    if (name)
        setenv(name, text, 1);
}

/* n processes with one launcher's variables; `wrong`: the last rank's number is given twice.
 * Returns the number that failed. */
static int start_as(const struct launcher *l, int n, int wrong)
{
    pid_t pid[8];
    int n_failed = 0, job_id = getpid(); /* that of no other test on this host */
    for (int r = 0; r < n; r++) {
        pid[r] = fork();
        if (pid[r])
            continue;
        int rank = wrong && r == n - 1 ? r - 1 : r;
        set(l->rank, rank);
        set(l->n, n);
        set(l->local_rank, rank);
        set(l->local_n, n);
        set(l->more, job_id);
        exit(use(&(struct world){.n = n}));
    }
    for (int r = 0; r < n; r++) {
        int status;
        waitpid(pid[r], &status, 0);
        n_failed += status != 0;
    }
    return n_failed;
}

static void test_other_launchers(void **state)
{
    static const struct launcher launchers[] = {
        {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"},
        {"RANK", "WORLD_SIZE", NULL, NULL, NULL},
        {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"},
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
         "OMPI_COMM_WORLD_LOCAL_SIZE", NULL},
        {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL},
        {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", NULL, "SLURM_STEP_ID"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++)
        assert_int_equal(start_as(&launchers[i], 3, 0), 0);
}

struct refusal {
    const char *name[4], *value[4], *says;
};

static void test_impossible_environments(void **state)
{
    static const struct refusal rows[] = {
        {{"RANK", "WORLD_SIZE"}, {"4", "4"}, "RANK: 4"},
        {{"RANK", "WORLD_SIZE"}, {"x", "4"}, "RANK: x"},
        {{"RANK", "WORLD_SIZE"}, {"0", "0"}, "WORLD_SIZE: 0"},
        {{"RANK", "WORLD_SIZE"}, {"0", "100000"}, "100000 ranks"},
        {{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
         {"0", "8", "0", "1"},
         "KUMI_RENDEZVOUS"},
        {{"KUMI_JOB", "KUMI_RANK", "KUMI_WORLD_SIZE", "KUMI_CONTROL_FD"},
         {"1", "0", "2", "0"},
         "start with kumi run"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kumi_comm *world;
        for (int k = 0; k < 4 && rows[i].name[k]; k++)
            setenv(rows[i].name[k], rows[i].value[k], 1);
        assert_int_equal(kumi_comm_join(NULL, &world), KUMI_EINVAL);
        if (!strstr(kumi_last_error()->text, rows[i].says))
            fail_msg("\"%s\" lacks \"%s\"", kumi_last_error()->text, rows[i].says);
        for (int k = 0; k < 4 && rows[i].name[k]; k++)
            unsetenv(rows[i].name[k]);
    }
    /* The other rank does not join. */
    struct kumi_comm_options options = {.join_timeout_s = 0.2};
    struct kumi_comm *world;
    setenv("WORLD_SIZE", "2", 1);
    for (int rank = 0; rank < 2; rank++) {
        set("RANK", rank);
        assert_int_equal(kumi_comm_join(&options, &world), KUMI_ETIMEDOUT);
        assert_non_null(strstr(kumi_last_error()->text, rank ? "rank 0 of 2" : "rank 1 of 2"));
    }
    unsetenv("WORLD_SIZE");
    unsetenv("RANK");
}

int main(int argc, char **argv)
{
    if (launched_is_rank(argc, argv)) {
        const int code = use(&(struct world){launched_n_ranks(argv[2]), true});
        if (!code)
            printf("rank: fine\n");
        return code;
    }
    if (argc == 2 && !strcmp(argv[1], "rank"))
        return use(&(struct world){.n = 3});
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_own_launcher),
        cmocka_unit_test(test_own_launcher_exec),
        cmocka_unit_test(test_hosts),
        cmocka_unit_test(test_no_limit),
        cmocka_unit_test(test_short_limit),
        cmocka_unit_test(test_other_launchers),
        cmocka_unit_test(test_impossible_environments),
        cmocka_unit_test(test_free_after_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
