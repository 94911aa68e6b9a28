/* SPDX-License-Identifier: Apache-2.0 */
/* links: job base */
/* Pretended hosts whose ranks are processes that are killed, or end: every survivor has the same
 * root cause, and one line is printed. */
#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/os/socket.h"
#include "job/control.h"
#include "job/job.h"
#include "job/private.h"
#include "job_client.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Usual: 0.3 s. */
static const int64_t LIMIT_NS = INT64_C(60000000000);
enum { MAX_RANKS = 16 };

struct shared {
    _Atomic int n_here, n_done;
    _Atomic int status[MAX_RANKS];
    char text[MAX_RANKS][440];
};

/* EARLY: killed before the hosts have met; NO_BRIDGE: its join fails after that */
enum form { KILLED, EARLY, NO_BRIDGE, EXITS, EXITS_WITH_CODE, STOPS };
struct row {
    int n_hosts, n_local[5], victim;
    enum form form;
    int status;
    const char *text;
};
static const struct row rows[] = {
    {2, {2, 2}, 3, KILLED, KUMI_EPEER, "rank died: rank 3 on host h1: killed or crashed"},
    {2, {2, 2}, 2, KILLED, KUMI_EPEER, "rank died: rank 2 on host h1: killed or crashed"},
    {2, {2, 2}, 0, KILLED, KUMI_EPEER, "rank died: rank 0 on host h0: killed or crashed"},
    {3, {1, 1, 1}, 1, KILLED, KUMI_EPEER, "rank died: rank 1 on host h1: killed or crashed"},
    {3, {1, 1, 1}, 0, KILLED, KUMI_EPEER, "rank died: rank 0 on host h0: killed or crashed"},
    {5, {1, 3, 2, 1, 2}, 4, KILLED, KUMI_EPEER, "rank died: rank 4 on host h2: killed"},
    {5, {3, 3, 2, 1, 2}, 0, KILLED, KUMI_EPEER, "rank died: rank 0 on host h0: killed"},
    {2, {2, 2}, 3, EARLY, KUMI_EPEER, "rank died: rank 3 on host h1: killed or crashed"},
    {2, {2, 1}, 1, EARLY, KUMI_EPEER, "rank died: rank 1 on host h0: killed or crashed"},
    {2, {1, 1}, 0, NO_BRIDGE, KUMI_EPEER, "rank died: rank 0 on host h0: killed or crashed"},
    {2, {2, 2}, 1, EXITS, KUMI_EMISMATCH, "rank 1 left the job"},
    {2, {1, 2}, 1, EXITS, KUMI_EMISMATCH, "rank 1 left the job"},
    {2, {2, 1}, 2, EXITS_WITH_CODE, KUMI_EPEER, "rank 2 on host h1: ended with exit code 57"},
    {3, {2, 1, 1}, 0, EXITS_WITH_CODE, KUMI_EPEER, "rank 0 on host h0: ended with exit code 57"},
    {3, {1, 2, 2}, 4, STOPS, KUMI_ESTOPPED, "stopped"},
};

/* What ku_job_open does, without an environment. */
static int open_job(const struct ku_env_job *env, const char *root, int listener, bool ends_early,
                    struct ku_job **job)
{
    static const char *const names[] = {"h0", "h1", "h2", "h3", "h4"};
    struct ku_host *host = ku_calloc(1, sizeof *host);
    int *sockets = NULL, n_sockets = 0;
    host->client = &client;
    if (env->local_n > 1) {
        KU_TRY(ku_rendezvous(&client, env, LIMIT_NS, &host->seg, &sockets, &n_sockets));
        if (ends_early)
            raise(SIGKILL);
    } else {
        KU_TRY(ku_segment_create_private(&client, 1, &host->seg));
        host->seg->job_id = env->job_id;
        ku_segment_set_ranks(host->seg, env->rank, env->n);
    }
    KU_TRY(ku_job_new(host, env->local_rank, NULL, job));
    (*job)->priv->socket = sockets;
    (*job)->priv->n_sockets = n_sockets;
    struct ku_control_opts o = {.client = &client,
                                .rank = env->rank,
                                .n = env->n,
                                .n_local = env->local_n,
                                .host_name = names[env->host_index],
                                .root = root,
                                .listener = listener,
                                .is_pretended = true,
                                .secret = {7},
                                .timeout_ns = LIMIT_NS};
    KU_TRY(ku_job_meet_hosts(*job, &o));
    return ku_service_start(*job);
}

static int be_rank(const struct row *row, const struct ku_env_job *env, const char *root,
                   int listener, struct shared *s)
{
    struct ku_job *job;
    struct ku_doorbell *taken; /* the name of the bridge's */
    const int64_t deadline = ku_clock_ns() + LIMIT_NS;
    const bool is_victim = env->rank == row->victim;
    const bool is_early = row->form == EARLY || row->form == NO_BRIDGE;
    int status;
    if (is_victim && row->form == NO_BRIDGE)
        KU_TRY(ku_doorbell_open(env->job_id, env->host_index, KU_DOORBELL_BRIDGE, &taken));
    KU_TRY(open_job(env, root, listener, is_victim && row->form == EARLY, &job));
    job->launcher = "test";
    atomic_store(&job->priv->line->state, KU_RANK_JOINED);
    KU_TRY(meet_at(&s->n_here, job->n - is_early, LIMIT_NS));
    if (is_victim && row->form == KILLED)
        raise(SIGKILL);
    if (is_victim && row->form == STOPS)
        ku_segment_stop(job->seg, SIGTERM);
    if (is_victim && row->form != STOPS) {
        ku_job_tell_end(job, row->form == EXITS ? 0 : 57); /* as the exit handler does */
        _exit(row->form == EXITS ? 0 : 57);
    }
    do {
        status = ku_job_look(job, NULL);
        if (!status && ku_job_stop(job))
            status = KU_ERR(KUMI_ESTOPPED, "stopped");
        usleep(1000);
    } while (!status && ku_clock_ns() < deadline);
    s->status[job->rank] = status;
    memcpy(s->text[job->rank], ku_err_get()->text, sizeof s->text[0]);
    KU_TRY(meet_at(&s->n_done, job->n - (row->form != STOPS), LIMIT_NS));
    atomic_store(&job->priv->line->state, KU_RANK_LEFT);
    ku_job_close(job);
    return 0;
}

/* The lines of the ranks' stderr that report an error */
static int count_lines(int fd, char *text, size_t cap)
{
    int n = 0;
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    ssize_t got = ku_os_read_full(fd, text, cap - 1);
    assert_true(got >= 0);
    text[got] = '\0';
    for (const char *at = text; (at = strstr(at, "kumi: error: ")) != NULL; at++)
        n++;
    return n;
}

static void start_ranks(const struct row *row, uint64_t job_id, const char *root, int listener,
                        int err, struct shared *s, pid_t *pid)
{
    int n = 0, rank = 0;
    for (int h = 0; h < row->n_hosts; h++)
        n += row->n_local[h];
    for (int h = 0; h < row->n_hosts; h++)
        for (int l = 0; l < row->n_local[h]; l++, rank++) {
            pid[rank] = fork();
            assert_true(pid[rank] >= 0);
            if (pid[rank])
                continue;
            struct ku_env_job env = {.launcher = "test",
                                     .rank = rank,
                                     .n = n,
                                     .local_rank = l,
                                     .local_n = row->n_local[h],
                                     .control_fd = -1,
                                     .job_id = job_id * 8 + (uint64_t)h,
                                     .host_index = h};
            snprintf(env.host_name, sizeof env.host_name, "h%d", h);
            dup2(err, 2);
            int status = be_rank(row, &env, root, h == 0 && l == 0 ? listener + 1 : 0, s);
            if (status < 0)
                dprintf(2, "rank %d: %s\n", rank, ku_err_get()->text);
            _exit(status ? 1 : 0);
        }
}

static void run_row(const struct row *row, uint64_t job_id)
{
    struct ku_os_address at = {.ip = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1}};
    struct shared *s =
        mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char root[64], said[4096];
    pid_t pid[MAX_RANKS];
    int n = 0, err = ku_os_memfd("stderr", 0);
    assert_true(s != MAP_FAILED && err >= 0);
    for (int h = 0; h < row->n_hosts; h++)
        n += row->n_local[h];
    int listener = ku_os_tcp_listen(&at, 64);
    assert_true(listener >= 0);
    assert_int_equal(ku_os_tcp_address(listener, false, &at), 0);
    snprintf(root, sizeof root, "127.0.0.1:%u", at.port);
    start_ranks(row, job_id, root, listener, err, s, pid);
    close(listener);
    for (int r = 0; r < n; r++)
        assert_int_equal(waitpid(pid[r], NULL, 0), pid[r]);
    const int n_lines = count_lines(err, said, sizeof said);
    for (int r = 0; r < n; r++)
        if ((r != row->victim || row->form == STOPS) &&
            (s->status[r] != row->status || !strstr(s->text[r], row->text)))
            fail_msg("row %d: rank %d: %d %s\n%s", (int)(row - rows), r, s->status[r], s->text[r],
                     said);
    if (n_lines != (row->form != STOPS))
        fail_msg("row %d: %d lines:\n%s", (int)(row - rows), n_lines, said);
    close(err);
    munmap(s, sizeof *s);
}

static void test_ends(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        run_row(&rows[i], 0x7e5700000000000u + (uint64_t)getpid() * 64 + i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ends)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
