/* SPDX-License-Identifier: Apache-2.0 */
/* links: comm job tensor base */
/* tsan */
/*
 * The engine `mpi` over a table of this test in place of a plug-in's: ranks are threads, messages
 * lie in one list. Requests end late and in any order, and calls fail, as no MPI library would on
 * demand.
 */
#include "net_suite.h"
#include "base/fault.h"
#include "comm/mpi/private.h"

#include <fenv.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

/* ---- An MPI of threads ---- */

enum { EAGER_BYTES = 8192, MAX_TAG = 32767, ERROR = 17 };
struct message {
    int from, to, tag, bytes, is_taken;
    unsigned char *data;
    struct message *next;
};
/* The request of a send is done when its message is eager or taken; of a receive, when one came. */
struct request {
    struct message *message; /* of a send */
    int is_active, is_recv, from, tag, n_pieces, n_tests;
    struct ku_mpi_piece piece[KU_MPI_PIECES];
    uint64_t number; /* receives of a tag are matched in the order of posting */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct message *messages, **messages_end = &messages;
static _Thread_local int my_rank;
static _Thread_local uint64_t n_posted;
static struct {
    int delay;       /* tests that a request takes at least */
    int is_reversed; /* the newest request is reported first */
    int fail_start, fail_send, fail_recv, fail_test, fail_done; /* the n-th call, from 1 */
    int never_joins;
    int broadcasts;
    int wrong_rank;
    char fabric[16];
} how;

static int is_due(int *countdown)
{
    return *countdown > 0 && --*countdown == 0 ? ERROR : 0;
}

static void clear(void)
{
    while (messages) {
        struct message *m = messages;
        messages = m->next;
        free(m->data);
        free(m);
    }
    messages_end = &messages;
    memset(&how, 0, sizeof how);
}

static void fake_library(char *text, size_t cap)
{
    snprintf(text, cap, "MPI of threads 1.0, package: tests");
}

static void fake_fabric(char *text, size_t cap)
{
    snprintf(text, cap, "%s", how.fabric);
}

static void fake_error(int error, char *text, size_t cap)
{
    snprintf(text, cap, "error %d on purpose", error);
}

static void do_nothing(int sig)
{
    (void)sig;
}

/* What libraries do to a process */
static int fake_start(void)
{
    signal(SIGUSR2, do_nothing);
    fesetround(FE_UPWARD);
    return is_due(&how.fail_start);
}

static int fake_join(int *is_done)
{
    *is_done = !how.never_joins;
    return 0;
}

static int fake_broadcast(void *blob, int bytes, int *is_done)
{
    (void)blob, (void)bytes;
    *is_done = how.broadcasts;
    return 0;
}

static int fake_send(const struct ku_mpi_piece *piece, int n_pieces, int rank, int tag,
                     void *requests, int index)
{
    struct message *m = calloc(1, sizeof *m);
    *m = (struct message){.from = my_rank, .to = rank, .tag = tag};
    for (int i = 0; i < n_pieces; i++)
        m->bytes += (int)piece[i].bytes;
    m->data = malloc((size_t)m->bytes + 1);
    for (int i = 0, at = 0; i < n_pieces; at += (int)piece[i++].bytes)
        memcpy(m->data + at, piece[i].at, piece[i].bytes);
    pthread_mutex_lock(&lock);
    *messages_end = m;
    messages_end = &m->next;
    int error = is_due(&how.fail_send);
    pthread_mutex_unlock(&lock);
    ((struct request *)requests)[index] = (struct request){.is_active = 1, .message = m};
    return error;
}

static int fake_recv(const struct ku_mpi_piece *piece, int n_pieces, int rank, int tag,
                     void *requests, int index)
{
    struct request *r = (struct request *)requests + index;
    *r = (struct request){.is_active = 1, .is_recv = 1, .from = rank, .tag = tag};
    r->number = ++n_posted;
    r->n_pieces = n_pieces;
    memcpy(r->piece, piece, (size_t)n_pieces * sizeof *piece);
    return is_due(&how.fail_recv);
}

/* The bytes of the message that a receive gets, copied; -1: none has come. */
static int take_message(const struct request *r)
{
    struct message *m = messages;
    while (m && (m->is_taken || m->to != my_rank || m->from != r->from || m->tag != r->tag))
        m = m->next;
    if (!m)
        return -1;
    int at = 0;
    for (int i = 0; i < r->n_pieces && at < m->bytes; i++) {
        int part = m->bytes - at < (int)r->piece[i].bytes ? m->bytes - at : (int)r->piece[i].bytes;
        memcpy(r->piece[i].at, m->data + at, (size_t)part);
        at += part;
    }
    m->is_taken = 1;
    return m->bytes;
}

static int is_first_posted(const struct request *all, int n, const struct request *r)
{
    for (int i = 0; i < n; i++)
        if (all[i].is_active && all[i].is_recv && all[i].from == r->from && all[i].tag == r->tag &&
            all[i].number < r->number)
            return 0;
    return 1;
}

static int fake_test(void *requests, int n, void *scratch, struct ku_mpi_done *done, int *n_done)
{
    struct request *all = requests;
    *n_done = 0;
    memset(scratch, 0, (size_t)n * 8);
    pthread_mutex_lock(&lock);
    int error = is_due(&how.fail_test);
    for (int k = 0; k < n && !error; k++) {
        int i = how.is_reversed ? n - 1 - k : k, bytes = 0;
        struct request *r = &all[i];
        if (!r->is_active || r->n_tests++ < how.delay)
            continue;
        if (r->is_recv ? !is_first_posted(all, n, r) || (bytes = take_message(r)) < 0
                       : r->message->bytes > EAGER_BYTES && !r->message->is_taken)
            continue;
        r->is_active = 0;
        done[(*n_done)++] = (struct ku_mpi_done){i, is_due(&how.fail_done), (uint64_t)bytes};
    }
    pthread_mutex_unlock(&lock);
    return error;
}

static struct ku_mpi_process processes[MESH_MAX];

static struct ku_mpi_table table_of(int rank, int n)
{
    processes[rank] = (struct ku_mpi_process){
        .rank = how.wrong_rank ? rank + 1 : rank, .n = n, .max_tag = MAX_TAG};
    return (struct ku_mpi_table){.abi = KU_MPI_ABI,
                                 .table_bytes = sizeof(struct ku_mpi_table),
                                 .make = "mpich",
                                 .process = &processes[rank],
                                 .request_bytes = sizeof(struct request),
                                 .scratch_bytes = 8,
                                 .library = fake_library,
                                 .fabric = fake_fabric,
                                 .error_text = fake_error,
                                 .start = fake_start,
                                 .join = fake_join,
                                 .broadcast = fake_broadcast,
                                 .send = fake_send,
                                 .recv = fake_recv,
                                 .test = fake_test};
}

/* ---- The suite ---- */

struct rank {
    struct ku_mpi_table table;
    struct ku_job job;
    net_body *body;
    int status;
};

static void *be_rank(void *arg)
{
    struct rank *r = arg;
    struct side s = {.rank = r->job.rank, .n = r->job.n};
    my_rank = s.rank;
    r->status = ku_mpi_open(&r->table, &r->job, &s.net);
    if (r->status)
        return NULL;
    r->status = r->body(&s);
    s.net->ops->close(s.net, r->status != 0);
    return NULL;
}

static int run(net_body *body, int n)
{
    struct rank r[MESH_MAX] = {0};
    pthread_t id[MESH_MAX];
    int status = 0;
    for (int i = 0; i < n; i++)
        r[i] = (struct rank){
            .table = table_of(i, n), .job = {.rank = i, .n = n, .launcher = "test"}, .body = body};
    for (int i = 0; i < n; i++)
        assert_int_equal(pthread_create(&id[i], NULL, be_rank, &r[i]), 0);
    for (int i = 0; i < n; i++) {
        pthread_join(id[i], NULL);
        status = status ? status : r[i].status;
    }
    return status;
}

static void suite(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++)
        for (int b = 0; b < N_NET_BODIES; b++) {
            if (net_bodies[b].is_tcp)
                continue;
            clear();
            how.delay = kind / 2 * 3;
            how.is_reversed = kind % 2;
            if (run(net_bodies[b].body, net_bodies[b].n))
                fail_msg("kind %d, %s of %d ranks", kind, net_bodies[b].name, net_bodies[b].n);
        }
    clear();
}

/* ---- One rank, whose peer is this test ---- */

struct pair {
    struct ku_mpi_table table;
    struct ku_job job;
    struct ku_net *net;
    struct ku_net_link *link[2];
    struct ku_net_req in, out, other;
    unsigned char data[3][20000];
};

/* Rank 0 of 3: two pending requests on the link to rank 1, one on that to rank 2. */
static struct pair *pair_open(void)
{
    struct pair *p = calloc(1, sizeof *p);
    p->table = table_of(0, 3);
    p->job = (struct ku_job){.rank = 0, .n = 3, .launcher = "test"};
    my_rank = 0;
    assert_int_equal(ku_mpi_open(&p->table, &p->job, &p->net), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(p->net->ops->link(p->net, 1, 9, 1 + i, KU_NET_BOTH_WAYS, &p->link[i]), 0);
    make_request(&p->in, p->data[0], 20000, 1);
    make_request(&p->out, p->data[1], 20000, 1);
    make_request(&p->other, p->data[2], 20000, 1);
    assert_int_equal(p->net->ops->recv(p->link[0], &p->in), 0);
    assert_int_equal(p->net->ops->send(p->link[0], &p->out), 0);
    assert_int_equal(p->net->ops->recv(p->link[1], &p->other), 0);
    return p;
}

static void pair_close(struct pair *p)
{
    p->net->ops->close(p->net, true);
    assert_int_equal(p->table.process->phase, KU_MPI_FAILED);
    assert_int_equal(ku_mpi_open(&p->table, &p->job, &p->net), KUMI_EINVAL);
    assert_non_null(strstr(ku_err_get()->text, "an earlier job of this process failed"));
    free(p);
    clear();
}

/*
 * Progress until it fails: the link to rank 1 is broken. If it had messages under way the rest is
 * given up, since MPI cannot take them back.
 */
static void expect_break(struct pair *p, bool others_go_on, const char *text)
{
    const struct ku_net_ops *ops = p->net->ops;
    int status = 0;
    bool has_moved = false;
    for (int i = 0; i < 100 && !status; i++)
        status = ops->progress(p->net, -1, &has_moved);
    assert_int_equal(status, KUMI_EPEER);
    if (!strstr(ku_err_get()->text, text))
        fail_msg("\"%s\" lacks \"%s\"", ku_err_get()->text, text);
    assert_true(has_moved);
    assert_non_null(p->net->broken);
    assert_int_equal(p->net->broken->rank, text[0] == 'e' ? 2 : 1);
    assert_true(p->in.is_done && p->in.status == KUMI_EPEER);
    assert_true(p->out.is_done && p->out.status == KUMI_EPEER);
    make_request(&p->out, p->data[1], 100, 2);
    KU_IGNORE(KU_ERR(KUMI_EINVAL, "another"), "the record is another one now");
    assert_int_equal(ops->send(p->link[0], &p->out), KUMI_EPEER);
    assert_non_null(strstr(ku_err_get()->text, text));
    if (!p->other.is_done && !others_go_on) {
        assert_int_equal(ops->progress(p->net, -1, &has_moved), KUMI_EPEER);
        assert_non_null(strstr(ku_err_get()->text, "link to rank 2: given up"));
    }
    assert_true(others_go_on ? !p->other.is_done : p->other.status == KUMI_EPEER);
    assert_int_equal(ops->progress(p->net, -1, &has_moved), 0);
    pair_close(p);
}

static void errors(void **state)
{
    (void)state;
    struct pair *p = pair_open();
    how.fail_send = 1;
    expect_break(p, false, "mpi: mpich: send to rank 1: error 17 on purpose");
    p = pair_open();
    how.fail_recv = 1;
    expect_break(p, true, "mpi: mpich: receive from rank 1: error 17 on purpose");
    p = pair_open();
    how.fail_done = 1; /* the header that was sent */
    expect_break(p, false, "mpi: mpich: send to rank 1: error 17 on purpose");
    p = pair_open();
    how.fail_test = 1; /* all links break; that of rank 2 is first in the list */
    expect_break(p, false, "error 17 on purpose");
}

/* Messages of rank 1 that are not of the stream */
static void foreign_messages(void **state)
{
    static const struct {
        int bytes, at; /* changed byte; -1: none */
    } row[] = {{64, 0},  {64, 4}, {64, 8},    {64, 15},  {63, -1},
               {65, -1}, {0, -1}, {4160, -1}, {4159, 56}};
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct pair *p = pair_open();
        unsigned char wire[64 + 4096] = {0x4b + 2, 0x4b, 0x50, 0x49, KU_NET_ABI, 0, 0, 0, 9};
        struct request unused;
        struct ku_mpi_piece piece = {wire, (size_t)row[i].bytes};
        memcpy(wire + 16, &p->in.head, sizeof p->in.head);
        if (row[i].at >= 0)
            wire[row[i].at] ^= 0x40;
        my_rank = 1;
        assert_int_equal(fake_send(&piece, 1, 0, 6, &unused, 0), 0); /* slot 1, odd stream */
        my_rank = 0;
        expect_break(p, false, "bytes is not of stream 9 in slot 1");
    }
}

/*
 * The end of a process waits for the other ranks (KU_MPI_CLOSED) once a job that met by MPI has
 * ended without a failure, whichever network it used.
 */
static void meetings(void **state)
{
    const struct ku_mpi_place place = {"test", 0, 1};
    struct ku_job job = {.rank = 0, .n = 1, .launcher = "test"};
    struct ku_net *net;
    char blob[4];
    (void)state;
    how.broadcasts = 1;
    struct ku_mpi_table t = table_of(0, 1);
    assert_int_equal(ku_mpi_broadcast_by(&t, &place, blob, 4, 3000000), 0);
    assert_int_equal(t.process->phase, KU_MPI_IN_USE);
    ku_mpi_end_broadcast(&t, true);
    assert_int_equal(t.process->phase, KU_MPI_IN_USE);
    ku_mpi_end_broadcast(&t, false);
    assert_int_equal(t.process->phase, KU_MPI_CLOSED);
    for (int has_failed = 0; has_failed < 2; has_failed++) {
        assert_int_equal(ku_mpi_broadcast_by(&t, &place, blob, 4, 3000000), 0);
        assert_int_equal(ku_mpi_open(&t, &job, &net), 0);
        net->ops->close(net, has_failed);
        ku_mpi_end_broadcast(&t, false);
        assert_int_equal(t.process->phase, has_failed ? KU_MPI_FAILED : KU_MPI_CLOSED);
    }
    clear();
}

static void starts(void **state)
{
    struct ku_mpi_place place = {"test", 0, 1};
    struct ku_net *net, *second;
    struct ku_job job = {.rank = 0, .n = 1, .launcher = "torchrun"};
    struct sigaction now;
    sigset_t mask;
    char blob[4];
    (void)state;
    signal(SIGUSR2, SIG_DFL); /* ranks as threads may have restored each other's */
    how.fail_start = 1;
    struct ku_mpi_table t = table_of(0, 1);
    assert_int_equal(ku_mpi_open(&t, &job, &net), KUMI_EPEER);
    assert_string_equal(ku_err_get()->text, "mpi: mpich: MPI_Init_thread: error 17 on purpose");
    how.wrong_rank = 1;
    t = table_of(0, 1);
    assert_int_equal(ku_mpi_open(&t, &job, &net), KUMI_EINVAL);
    assert_non_null(strstr(ku_err_get()->text,
                           "torchrun started rank 0 of 1, which is rank 1 of 1 in MPI_COMM_WORLD "
                           "of the plug-in mpich (MPI of threads 1.0, package: tests)"));
    how.wrong_rank = 0;
    how.never_joins = 1;
    t = table_of(0, 1);
    assert_int_equal(ku_mpi_broadcast_by(&t, &place, blob, 4, 3000000), KUMI_ETIMEDOUT);
    assert_non_null(strstr(ku_err_get()->text, "MPI_Comm_idup: not all of 1 ranks"));
    how.never_joins = 0;
    assert_int_equal(ku_mpi_broadcast_by(&t, &place, blob, 4, 3000000), KUMI_ETIMEDOUT);
    assert_non_null(strstr(ku_err_get()->text, "broadcast at the start"));
    assert_int_equal(ku_mpi_open(&t, &job, &net), 0);
    assert_int_equal(ku_mpi_open(&t, &job, &second), KUMI_EINVAL);
    assert_non_null(strstr(ku_err_get()->text, "another job of this process"));
    net->ops->close(net, false);
    assert_int_equal(t.process->phase, KU_MPI_CLOSED);
    /* The process is as it was. */
    assert_int_equal(fegetround(), FE_TONEAREST);
    sigaction(SIGUSR2, NULL, &now);
    assert_ptr_equal(now.sa_handler, SIG_DFL);
    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    assert_false(sigismember(&mask, SIGTERM));
    ku_net_mpich.close(NULL, false);
    ku_net_mpich.unlink(NULL, false);
}

/* What `kumi info --hosts` says of the transport, without and with a user's choice */
static void descriptions(void **state)
{
    static const char *const choice[] = {"OMPI_MCA_pml", "OMPI_MCA_btl",    "OMPI_MCA_mtl",
                                         "UCX_TLS",      "UCX_NET_DEVICES", "FI_PROVIDER"};
    static const char plain[] = "mpi (mpich): MPI of threads 1.0; RDMA none",
                      chosen[] = "mpi (mpich): MPI of threads 1.0; ch9:t; RDMA none; UCX_TLS tcp";
    struct ku_job job = {.rank = 0, .n = 1, .launcher = "test"};
    struct ku_mpi_table t = table_of(0, 1);
    struct ku_net *net;
    char text[sizeof chosen];
    (void)state;
    for (size_t i = 0; i < sizeof choice / sizeof *choice; i++)
        unsetenv(choice[i]);
    assert_int_equal(ku_mpi_open(&t, &job, &net), 0);
    net->ops->describe(net, text, sizeof text);
    assert_string_equal(text, plain);
    snprintf(how.fabric, sizeof how.fabric, "ch9:t");
    setenv("UCX_TLS", "tcp", 1);
    net->ops->describe(net, text, sizeof text);
    assert_string_equal(text, chosen);
    for (size_t cap = 1; cap < sizeof text; cap++) {
        net->ops->describe(net, text, cap);
        assert_int_equal(strlen(text), cap - 1);
    }
    unsetenv("UCX_TLS");
    net->ops->close(net, false);
    clear();
}

/* Devices among a process's open files, each once */
static void rdma_devices(void **state)
{
    static const char *const target[] = {"socket:[1]",
                                         "/dev/infiniband/uverbs10",
                                         "/dev/null",
                                         "/dev/infiniband/uverbs1",
                                         "/dev/infiniband/rdma_cm",
                                         "/dev/infiniband/uverbs10",
                                         "/dev/infiniband/uverbs1",
                                         "/dev/cxi0"};
    enum { N = sizeof target / sizeof *target };
    char folder[] = "/tmp/kumi-rdma-XXXXXX", link[N][64], text[64];
    (void)state;
    assert_non_null(mkdtemp(folder));
    ku_mpi_rdma(folder, text, sizeof text);
    assert_string_equal(text, "none");
    for (int i = 0; i < N; i++) {
        snprintf(link[i], sizeof link[i], "%s/%d", folder, i);
        assert_int_equal(symlink(target[i], link[i]), 0);
    }
    ku_mpi_rdma(folder, text, sizeof text);
    assert_string_equal(text, "uverbs10, uverbs1, cxi0");
    ku_mpi_rdma(folder, text, 12);
    assert_string_equal(text, "uverbs10, u");
    for (int i = 0; i < N; i++)
        unlink(link[i]);
    rmdir(folder);
    ku_mpi_rdma(folder, text, sizeof text);
    assert_string_equal(text, "none");
}

/* The n-th allocation fails: ENOMEM, and nothing is left over. */
static void memory(void **state)
{
    struct ku_job job = {.rank = 0, .n = 40, .launcher = "test"};
    struct ku_net *net;
    struct ku_net_link *link;
    int n_failed = 0, status = KUMI_ENOMEM;
    (void)state;
    for (int nth = 1; status; nth++) {
        char spec[32];
        struct ku_mpi_table t = table_of(0, 40);
        snprintf(spec, sizeof spec, "mem:%d", nth);
        ku_fault_set(spec);
        status = ku_mpi_open(&t, &job, &net);
        if (!status) {
            for (int r = 1; r < 20 && !status; r++)
                status = net->ops->link(net, 0, 1, r, KU_NET_BOTH_WAYS, &link);
            net->ops->close(net, false);
        }
        assert_true(status == 0 || status == KUMI_ENOMEM);
        n_failed += status != 0;
        assert_true(nth < 1000);
    }
    ku_fault_set(NULL);
    assert_true(n_failed > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(suite),
                                       cmocka_unit_test(errors),
                                       cmocka_unit_test(foreign_messages),
                                       cmocka_unit_test(starts),
                                       cmocka_unit_test(meetings),
                                       cmocka_unit_test(descriptions),
                                       cmocka_unit_test(rdma_devices),
                                       cmocka_unit_test(memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
