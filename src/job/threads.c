/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks as threads of this process, on one host or on pretended ones:
 *
 *     hosts "2,1"     host 0: segment, bridge     rank 0  rank 1
 *                        │ loopback TCP
 *                     host 1: segment, bridge     rank 2
 *
 * The hosts share nothing but the process, so tests and ThreadSanitizer see the code that runs
 * between machines. All bridges run until the last rank has ended.
 */
#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/os/socket.h"
#include "job/control.h"
#include "job/job.h"
#include "job/pin.h"
#include "job/private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A rank as a thread */
struct rank_thread {
    pthread_t thread;
    struct group *group;
    struct ku_host *host;
    struct ku_job *job; /* several hosts: freed when all ranks have ended, for its bridge */
    int local, host_index, status;
    struct kumi_error error;
};

struct group {
    const struct ku_job_opts *opts;
    struct ku_pin *pin;
    int (*fn)(struct ku_job *job, void *arg);
    void *arg;
    int n, n_hosts, n_started;
    struct ku_host *host; /* [n_hosts] */
    struct rank_thread *rank;
    int listener; /* of the root; its bridge closes it */
    char root[64];
};

static int meet(struct rank_thread *t)
{
    const struct group *g = t->group;
    const int64_t timeout_ns = g->opts ? g->opts->join_timeout_ns : 0;
    char name[KU_HOST_NAME_BYTES];
    if (g->n_hosts == 1)
        return 0;
    snprintf(name, sizeof name, "host%d", t->host_index);
    struct ku_control_opts o = {.client = t->host->client,
                                .rank = t->job->rank,
                                .n = t->job->n,
                                .n_local = t->job->local_n,
                                .host_name = name,
                                .root = g->root,
                                .listener = t->host_index == 0 ? g->listener + 1 : 0,
                                .is_pretended = true,
                                .timeout_ns = timeout_ns > 0 ? timeout_ns : INT64_C(60000000000)};
    memcpy(o.secret, t->host->seg->secret, sizeof o.secret);
    KU_TRY(ku_job_meet_hosts(t->job, &o));
    return t->local == 0 ? ku_service_start(t->job) : 0;
}

static int run_fn(struct rank_thread *t)
{
    KU_TRY(meet(t));
    return t->group->fn(t->job, t->group->arg);
}

static int run_rank(struct rank_thread *t)
{
    int status = ku_job_new(t->host, t->local, t->group->opts, &t->job);
    if (status < 0) {
        /* This rank will not join; release those that wait for it. */
        ku_segment_abort(t->host->seg, ku_err_get(), t->host->seg->first_rank + t->local);
        return status;
    }
    t->job->launcher = "threads";
    struct ku_rank_line *line = t->job->priv->line;
    status = run_fn(t);
    if (status < 0 && atomic_load(&line->state) != KU_RANK_LEFT) {
        atomic_store(&line->exit_status, (uint32_t)-status);
        atomic_store(&line->state, KU_RANK_EXITED);
        ku_segment_ring_all(t->job->seg);
        ku_job_tell_end(t->job, -status);
    }
    if (t->group->n_hosts == 1) {
        ku_job_free(t->job);
        t->job = NULL;
    }
    return status;
}

static void *rank_main(void *arg)
{
    struct rank_thread *t = arg;
    ku_pin_apply(t->group->pin, t->host->seg->first_rank + t->local);
    t->status = run_rank(t);
    if (t->status < 0)
        t->error = *ku_err_get();
    return NULL;
}

static int start_ranks(struct group *g)
{
    for (g->n_started = 0; g->n_started < g->n; g->n_started++) {
        struct rank_thread *t = &g->rank[g->n_started];
        int failed = pthread_create(&t->thread, NULL, rank_main, t);
        if (failed) {
            int status = KU_ERR(KUMI_ENOMEM, "ranks as threads: thread %d: %s", g->n_started,
                                strerror(failed));
            for (int h = 0; h < g->n_hosts; h++)
                ku_segment_abort(g->host[h].seg, ku_err_get(), g->n_started);
            return status;
        }
    }
    return 0;
}

/* "2,1": the numbers of local ranks. `size` has room for n. */
static int parse_hosts(const char *text, int n, int *size, int *n_hosts)
{
    int sum = 0, count = 0;
    for (const char *at = text;;) {
        char *end;
        long x = strtol(at, &end, 10);
        if (end == at || x < 1 || x > n - sum || (*end && *end != ','))
            break;
        size[count++] = (int)x;
        sum += (int)x;
        if (!*end && sum == n) {
            *n_hosts = count;
            return 0;
        }
        if (!*end)
            break;
        at = end + 1;
    }
    return KU_ERR(KUMI_EINVAL,
                  "ranks as threads: hosts: %s: give numbers of ranks, as 2,2, whose sum is %d",
                  text, n);
}

/* The segments, and for several hosts what they meet by. */
static int make_hosts(struct group *g, const struct ku_job_client *client, const int *size)
{
    uint8_t secret[KU_SECRET_BYTES];
    uint64_t job_id;
    int first = 0;
    for (int h = 0; h < g->n_hosts; first += size[h++]) {
        g->host[h] = (struct ku_host){.client = client, .is_threads = 1};
        for (int r = 0; r < size[h]; r++)
            g->rank[first + r] =
                (struct rank_thread){.group = g, .host = &g->host[h], .local = r, .host_index = h};
        KU_TRY(ku_segment_create_private(client, size[h], &g->host[h].seg));
    }
    if (g->n_hosts == 1)
        return 0;
    if (ku_os_random(secret, sizeof secret) < 0 || ku_os_random(&job_id, sizeof job_id) < 0)
        return KU_ERR(KUMI_ENOMEM, "ranks as threads: random bytes: %s", ku_os_why());
    struct ku_os_address at = {.ip = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1}};
    g->listener = ku_os_tcp_listen(&at, 1024);
    if (g->listener < 0 || ku_os_tcp_address(g->listener, 0, &at) < 0)
        return KU_ERR(KUMI_ENOMEM, "ranks as threads: loopback socket: %s", ku_os_why());
    snprintf(g->root, sizeof g->root, "127.0.0.1:%u", at.port);
    first = 0;
    for (int h = 0; h < g->n_hosts; first += size[h++]) {
        g->host[h].seg->job_id = job_id;
        ku_segment_set_ranks(g->host[h].seg, first, g->n);
        ku_segment_set_secret(g->host[h].seg, secret);
    }
    return 0;
}

/* The root cause: the error of the rank at fault, else what a peer saw of it. 0: there is none. */
static int put_root(const struct group *g, struct ku_segment *seg)
{
    struct kumi_error root;
    const int culprit = ku_segment_culprit(seg);
    if (ku_segment_root(seg, &root) == 0)
        return 0;
    if (culprit >= 0 && culprit < g->n_started && g->rank[culprit].error.status < 0)
        root = g->rank[culprit].error;
    return ku_err_put(&root);
}

static int run(struct group *g)
{
    int status = start_ranks(g);
    for (int i = 0; i < g->n_started; i++)
        pthread_join(g->rank[i].thread, NULL);
    for (int i = 0; i < g->n_started && !status; i++) {
        const struct rank_thread *t = &g->rank[i];
        if (t->status < 0) /* fn may fail without an error record */
            status = t->error.status < 0 ? ku_err_put(&t->error) : t->status;
    }
    for (int i = 0; i < g->n_started; i++)
        ku_job_free(g->rank[i].job);
    int root = 0;
    for (int h = 0; h < g->n_hosts && status < 0 && !root; h++)
        root = put_root(g, g->host[h].seg);
    return root ? root : status;
}

int ku_job_threads(const struct ku_job_client *client, int n, const struct ku_job_opts *opts,
                   int (*fn)(struct ku_job *job, void *arg), void *arg)
{
    if (n < 1 || n > KU_MAX_LOCAL)
        return KU_ERR(KUMI_EINVAL, "ranks as threads: %d; give 1 to %d", n, KU_MAX_LOCAL);
    enum ku_pinning pinning;
    KU_TRY(ku_pin_setting(&pinning));
    int status, *size = ku_calloc((size_t)n, sizeof *size);
    struct group g = {.opts = opts, .fn = fn, .arg = arg, .n = n, .n_hosts = 1, .listener = -1};
    g.host = ku_calloc((size_t)n, sizeof *g.host);
    g.rank = ku_calloc((size_t)n, sizeof *g.rank);
    if (n > 1)
        g.pin = ku_pin_create(pinning, n, opts && opts->threads > 0 ? opts->threads : 1);
    status = size && g.host && g.rank ? 0 : KUMI_ENOMEM;
    KU_TRY_OUT(status);
    size[0] = n;
    if (opts && opts->hosts)
        KU_TRY_OUT(parse_hosts(opts->hosts, n, size, &g.n_hosts));
    KU_TRY_OUT(make_hosts(&g, client, size));
    status = run(&g);
out:
    for (int h = 0; g.host && h < g.n_hosts; h++)
        ku_segment_unmap(g.host[h].seg);
    if (g.listener >= 0)
        ku_os_close(g.listener);
    ku_pin_destroy(g.pin);
    ku_free(g.rank);
    ku_free(g.host);
    ku_free(size);
    return status;
}
