/* SPDX-License-Identifier: Apache-2.0 */
/* links: comm job tensor base */
/*
 * The engine `mpi` with each make of MPI that is installed: this program starts itself on 2 and 4
 * ranks by the make's launcher. A make without plug-in or launcher is skipped.
 */
#include "net_suite.h"
#include "comm/mpi/mpi.h"
#include "comm/world.h"
#include "job/job.h"
#include "mpi_makes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

static char self[4096];

#define NET_FAIL(...)                                                                              \
    do {                                                                                           \
        printf(__VA_ARGS__);                                                                       \
        printf("\n");                                                                              \
        fflush(stdout);                                                                            \
        return -70;                                                                                \
    } while (0)

/* ---- A rank ---- */

static int number_of(const char *openmpi, const char *mpich)
{
    const char *text = getenv(openmpi) ? getenv(openmpi) : getenv(mpich);
    return text ? atoi(text) : -1;
}

static void handler(int sig)
{
    (void)sig;
}

/* What MPI's start may not change. */
static int check_process(void)
{
    static const int signals[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGTERM, SIGINT, SIGUSR1};
    struct sigaction now;
    sigset_t mask;
    sigaction(SIGSEGV, NULL, &now);
    if (now.sa_handler != handler)
        NET_FAIL("MPI took the handler of SIGSEGV");
    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        sigaction(signals[i], NULL, &now);
        if (signals[i] != SIGSEGV && now.sa_handler != SIG_DFL)
            NET_FAIL("MPI set a handler of signal %d", signals[i]);
        if (sigismember(&mask, signals[i]))
            NET_FAIL("signal %d is blocked", signals[i]);
    }
    if (fegetround() != FE_TONEAREST)
        NET_FAIL("MPI changed the rounding mode");
    return 0;
}

/* Threads of the library take no signal: one to the process goes to the thread that waits. */
static int check_threads(void)
{
    sigset_t set;
    int sig = 0;
    struct timespec soon = {.tv_sec = 10};
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    kill(getpid(), SIGTERM);
    sig = sigtimedwait(&set, NULL, &soon);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    if (sig != SIGTERM)
        NET_FAIL("SIGTERM did not come");
    return 0;
}

static int broadcast(const struct ku_mpi_place *place)
{
    enum { BYTES = 5000 };
    unsigned char blob[BYTES];
    for (uint64_t round = 0; round < 2; round++) {
        size_t bytes = round ? 1 : BYTES;
        memset(blob, 0, sizeof blob);
        if (place->rank == 0)
            fill(blob, bytes, round);
        KU_TRY(ku_mpi_broadcast(place, blob, bytes, INT64_C(40000000000)));
        if (!is_filled(blob, bytes, round))
            NET_FAIL("rank %d: the broadcast is not that of rank 0", place->rank);
    }
    return 0;
}

/*
 * Streams of different slots are independent: rank 0 serves slot 5 first, rank 1 slot 6, and each
 * waits for its first before it posts its second.
 */
static int net_slots(struct side *s)
{
    enum { BYTES = 200000 };
    static unsigned char data[4][BYTES];
    struct ku_net_link *link[2];
    struct ku_net_req out[2], in[2];
    for (uint64_t i = 0; i < 2; i++) {
        NET_TRY(
            s->net->ops->link(s->net, 5 + (uint32_t)i, 1, 1 - s->rank, KU_NET_BOTH_WAYS, &link[i]));
        fill(data[i], BYTES, i);
        make_request(&out[i], data[i], BYTES, i);
        make_request(&in[i], data[2 + i], BYTES, i);
        NET_TRY(s->net->ops->send(link[i], &out[i]));
    }
    for (int k = 0; k < 2; k++) {
        int i = s->rank ? 1 - k : k;
        NET_TRY(s->net->ops->recv(link[i], &in[i]));
        NET_TRY(net_wait(s, &in[i]));
        NET_CHECK(is_filled(data[2 + i], BYTES, (uint64_t)i));
    }
    for (int i = 0; i < 2; i++) {
        NET_TRY(net_wait(s, &out[i]));
        s->net->ops->unlink(link[i], false);
    }
    return 0;
}

/*
 * Rank 0 sends three messages; of the second, rank 1 expects another header. The message before it
 * is complete, its payload is not stored, and the one after it never ends. MPI keeps what rank 0
 * sent, so memory stays until the network is closed.
 */
struct mismatch {
    struct ku_net_link *link;
    struct ku_net_req req[3];
    unsigned char *data[3];
};
enum { AROUND = 300000 }; /* bytes of the messages before and after */

static int net_differs(struct side *s, struct mismatch *x, uint32_t slot, const size_t row[3])
{
    const struct ku_net_ops *ops = s->net->ops;
    const size_t bytes[3] = {AROUND, row[s->rank], AROUND};
    NET_TRY(ops->link(s->net, slot, 1, 1 - s->rank, KU_NET_BOTH_WAYS, &x->link));
    for (uint64_t i = 0; i < 3; i++) {
        x->data[i] = calloc(1, bytes[i] + 1);
        if (!s->rank)
            fill(x->data[i], bytes[i], i);
        make_request(&x->req[i], x->data[i], bytes[i], i == 1 && s->rank ? row[2] : i);
        NET_TRY((s->rank ? ops->recv : ops->send)(x->link, &x->req[i]));
    }
    NET_TRY(net_wait(s, &x->req[0]));
    if (!s->rank)
        return 0;
    NET_CHECK(is_filled(x->data[0], AROUND, 0));
    NET_CHECK(net_wait(s, &x->req[1]) == KUMI_EMISMATCH);
    NET_CHECK(x->req[1].came.seq == 1 && x->req[1].came.bytes == row[0]);
    for (size_t i = 0; i < bytes[1]; i++)
        NET_CHECK(x->data[1][i] == 0);
    for (int i = 0; i < 100; i++) {
        bool has_moved = false;
        NET_TRY(ops->progress(s->net, -1, &has_moved));
        usleep(200);
    }
    NET_CHECK(!x->req[2].is_done);
    NET_CHECK(ops->recv(x->link, &x->req[1]) == KUMI_EMISMATCH);
    NET_CHECK(strstr(ku_err_get()->text, "rank 0: an earlier message"));
    return 0;
}

static int net_all_differ(struct side *s)
{
    /* bytes that rank 0 sends and rank 1 expects; number that rank 1 expects in place of 1 */
    static const size_t row[][3] = {{100, 104, 1},   {AROUND, 20, 1},       {20, AROUND, 1},
                                    {4097, 4097, 5}, {5 << 20, 1 << 20, 1}, {0, 1, 1}};
    enum { N = sizeof row / sizeof *row };
    static struct mismatch x[N];
    for (uint32_t i = 0; i < N; i++)
        NET_TRY(net_differs(s, &x[i], 8 + i, row[i]));
    NET_TRY(net_slots(s)); /* other links go on */
    s->net->ops->close(s->net, true);
    for (int i = 0; i < 3 * N; i++)
        free(x[i / 3].data[i % 3]);
    return 0;
}

/* A network of its own for each body: a second job of the process, a third, .. */
static int run_body(const struct ku_net_ops *ops, struct ku_job *job, net_body *body)
{
    struct side side = {.rank = job->rank, .n = job->n}, *s = &side;
    char text[320];
    KU_TRY(ops->open(job, &s->net));
    NET_CHECK(s->net->ops->poll(s->net, NULL, 0) == -1);
    s->net->ops->describe(s->net, text, sizeof text);
    NET_CHECK(strncmp(text, "mpi (", 5) == 0 && strstr(text, s->net->ops->name));
    NET_CHECK(strstr(text, getenv("OMPI_COMM_WORLD_SIZE") ? "; pml ob1; btl " : "; ch"));
    NET_CHECK(strstr(text, "; RDMA none")); /* launch() asks for TCP or shared memory */
    int status = body(s);
    if (body != net_all_differ)
        s->net->ops->close(s->net, status != 0);
    return status;
}

static int use(const char *what, struct ku_job *job)
{
    const struct ku_net_ops *ops;
    struct ku_net *net;
    KU_TRY(ku_net_mpi(&ops));
    if (strcmp(what, "mismatch") == 0) {
        KU_TRY(run_body(ops, job, net_all_differ));
        if (ops->open(job, &net) != KUMI_EINVAL)
            NET_FAIL("a second job after a failure");
        return 0;
    }
    for (int b = 0; b < N_NET_BODIES; b++)
        if (!net_bodies[b].is_tcp && (net_bodies[b].n == 2) == (job->n == 2))
            KU_TRY(run_body(ops, job, net_bodies[b].body));
    if (job->n == 2)
        KU_TRY(run_body(ops, job, net_slots));
    return check_process();
}

static int be_rank(const char *what)
{
    struct ku_job job = {.launcher = "test"};
    job.rank = number_of("OMPI_COMM_WORLD_RANK", "PMI_RANK");
    job.n = number_of("OMPI_COMM_WORLD_SIZE", "PMI_SIZE");
    const struct ku_mpi_place place = {job.launcher, job.rank, job.n};
    alarm(120);
    signal(SIGSEGV, handler);
    if (strcmp(what, "suite") == 0)
        if (broadcast(&place) < 0 || check_threads() < 0)
            return 1;
    int status = use(what, &job);
    if (status < 0 && status != -70)
        printf("rank %d: %s\n", job.rank, ku_err_get()->text);
    if (status == 0)
        printf("rank %d: fine\n", job.rank);
    fflush(stdout);
    if (strcmp(what, "mismatch") == 0)
        sleep(1); /* the launcher kills the others when a rank ends without MPI_Finalize */
    if (status < 0)
        usleep(300000); /* so that the launcher has started all */
    return status ? 1 : 0;
}

/* ---- The program that starts them ---- */

/* Run n ranks; what they print is `said`. Returns the launcher's exit code. */
static int launch(size_t i, int n, const char *ways, const char *env, const char *what, char *said,
                  size_t cap)
{
    char command[9000], options[512];
    mpi_options(i, ways, options, sizeof options);
    snprintf(command, sizeof command,
             MPI_UNSET "%s KUMI_PLUGINS='" KUMI_BINARY_DIR
                       "' timeout -k 5 60 %s %s -np %d '%s' %s 2>&1 </dev/null",
             env, mpi_launcher(i), options, n, self, what);
    return run_shell(command, said, cap);
}

static void run_all(const char *what, int n_counts, int exit_code)
{
    static const int counts[] = {2, 4};
    static const char *const ways[2][2] = {{"tcp,self", "vader,self"}, {"tcp,self", "shm,self"}};
    char said[16384];
    int n_run = 0;
    for (size_t i = 0; i < N_MPI_MAKES; i++) {
        if (!mpi_has_make(i))
            continue;
        for (int k = 0; k < n_counts; k++) {
            int code = launch(i, counts[k], ways[i][k], "", what, said, sizeof said);
            if (n_fine(said) != counts[k] || (exit_code >= 0 && code != exit_code))
                fail_msg("%s on %d ranks: exit code %d\n%s", mpi_makes[i].name, counts[k], code,
                         said);
        }
        n_run++;
    }
    if (n_run == 0)
        skip();
}

static void suite(void **state)
{
    (void)state;
    run_all("suite", 2, 0);
}

/* Ranks end without MPI_Finalize, and launchers differ in what they say to that. */
static void mismatch(void **state)
{
    (void)state;
    run_all("mismatch", 1, -1);
}

/* Hydra can lose the words of ranks that end while it starts others, and end by SIGPIPE. */
static void expect_refusal(size_t i, const char *env, const char *text)
{
    char said[16384];
    int code = 0, is_said = 0;
    for (int attempt = 0; attempt < 4 && !is_said; attempt++) {
        code = launch(i, 2, "tcp,self", env, "refused", said, sizeof said);
        is_said = strstr(said, text) != NULL;
    }
    if (code == 0 || n_fine(said) || !is_said)
        fail_msg("%s with %s: exit code %d, not \"%s\" in\n%s", mpi_makes[i].name, env, code, text,
                 said);
}

static void refusals(void **state)
{
    (void)state;
    int has[2] = {mpi_has_make(0), mpi_has_make(1)};
    if (!has[0] && !has[1])
        skip();
    for (size_t i = 0; i < N_MPI_MAKES; i++) {
        if (!has[i])
            continue;
        expect_refusal(i, "KUMI_MPI=lam", "KUMI_MPI: lam: unknown make");
        expect_refusal(i, i ? "KUMI_MPI=openmpi" : "KUMI_MPI=mpich", "did not start it");
    }
    if (!has[0] || !has[1])
        return;
    /* The wrong make, of whose launcher a variable is there, sees one rank. */
    expect_refusal(0, "KUMI_MPI=mpich PMI_RANK=0", "in MPI_COMM_WORLD of the plug-in mpich (MPICH");
}

static void absent(void **state)
{
    const struct ku_net_ops *ops;
    (void)state;
    unsetenv("OMPI_COMM_WORLD_SIZE");
    unsetenv("PMIX_RANK");
    unsetenv("PMI_RANK");
    unsetenv("PMI_FD");
    unsetenv("PMI_PORT");
    assert_int_equal(ku_net_mpi(&ops), KUMI_EINVAL);
    assert_non_null(strstr(ku_err_get()->text, "no MPI launcher started this rank"));
    setenv("PMI_RANK", "0", 1);
    setenv("KUMI_PLUGINS", "/nowhere", 1);
    assert_int_equal(ku_net_mpi(&ops), KUMI_EINVAL);
    assert_non_null(strstr(ku_err_get()->text, "/nowhere/libkumi-mpi-mpich.so: no such plug-in"));
    unsetenv("PMI_RANK");
    unsetenv("KUMI_PLUGINS");
}

/*
 * A rank of one host of two, as Open MPI's variables have it: `auto` stands for tcp on both if one
 * has no plug-in. 0: it does.
 */
static int join_apart(int rank, const char *plugins, int port, int log_fd)
{
    struct ku_job *job;
    char text[64];
    const char *const set[][2] = {{"OMPI_COMM_WORLD_RANK", rank ? "1" : "0"},
                                  {"OMPI_COMM_WORLD_SIZE", "2"},
                                  {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                                  {"KUMI_HOST", rank ? "b" : "a"},
                                  {"KUMI_PLUGINS", plugins},
                                  {"KUMI_RENDEZVOUS", text},
                                  {"KUMI_SECRET", "0123456789abcdef0123456789abcdef"
                                                  "0123456789abcdef0123456789abcdef"}};
    alarm(60);
    snprintf(text, sizeof text, "127.0.0.1:%d+16", port);
    for (size_t i = 0; i < sizeof set / sizeof *set; i++)
        setenv(set[i][0], set[i][1], 1);
    dup2(log_fd, STDERR_FILENO);
    int status = ku_comm_join(NULL, &job);
    if (status == 0) {
        ku_comm_describe(job, text, sizeof text);
        status = strncmp(text, "tcp over ", 9) == 0 ? 0 : -70;
        status = ku_comm_leave(job) < 0 ? -70 : status;
    }
    return status ? 1 : 0;
}

static void apart(void **state)
{
    static const struct {
        const char *plugins[2], *host;
    } rows[] = {{{KUMI_BINARY_DIR, "/nowhere"}, "b"},
                {{"/nowhere", KUMI_BINARY_DIR}, "a"},
                {{"/nowhere", "/nowhere"}, "a"}};
    (void)state;
    if (!mpi_has_make(0))
        skip();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char said[2048] = "", words[256];
        int status, pipes[2], failed = 0;
        pid_t pid[2];
        assert_int_equal(pipe(pipes), 0);
        for (int r = 0; r < 2; r++)
            if ((pid[r] = fork()) == 0)
                _exit(join_apart(r, rows[i].plugins[r], 20000 + getppid() % 9000, pipes[1]));
        for (int r = 0; r < 2; r++) {
            assert_int_equal(waitpid(pid[r], &status, 0), pid[r]);
            failed |= status;
        }
        close(pipes[1]);
        if (read(pipes[0], said, sizeof said - 1) < 0)
            said[0] = 0;
        close(pipes[0]);
        snprintf(words, sizeof words, "host %s: mpi: /nowhere/libkumi-mpi-openmpi.so: no such",
                 rows[i].host);
        const char *end = strstr(said, "; until then all hosts use tcp\n");
        if (failed || !strstr(said, words) || !end || strchr(end, '\n')[1])
            fail_msg("row %zu: %s", i, said);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(absent),   cmocka_unit_test(apart),    cmocka_unit_test(suite),
        cmocka_unit_test(mismatch), cmocka_unit_test(refusals),
    };
    if (argc == 2)
        return be_rank(argv[1]);
    if (!realpath(argv[0], self))
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return failed ? 1 : mpi_has_make(0) || mpi_has_make(1) ? 0 : 77;
}
