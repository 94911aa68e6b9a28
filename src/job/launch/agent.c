/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent of a host: starts the ranks that the launcher describes, passes their output on in
 * whole lines, and reports how they end. One poll loop:
 *
 *     stdin      frames of the launcher; at its end the launcher is dead, and the ranks are killed
 *     signalfd   SIGCHLD; a stop signal is reported, and the launcher sends it to all hosts
 *     pipes      two per rank; not read while 1 MiB waits to be sent
 *     stdout     frames to the launcher
 */
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/ipc.h"
#include "base/os/os.h"
#include "base/os/process.h"
#include "base/version.h"
#include "job/launch/ranks.h"
#include "job/launch/wire.h"
#include "job/segment.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum { PENDING_MAX = 1 << 20, PIECE_BYTES = 16384, OUT_COPY = 3, JOB_WAIT_MS = 600000 };

struct stream { /* stdout or stderr of a rank */
    int fd;     /* read end; -1: closed */
    struct ku_str line;
};
struct agent {
    struct ku_ranks ranks;
    struct ku_host_job job;
    char *payload; /* of the job */
    char secret[2 * KU_SECRET_BYTES + 1];
    int in_fd, out_fd, signal_fd;
    struct ku_wire in, out;
    struct stream *stream; /* [2 n]; NULL: ranks inherit the files */
    int (*std)[2];         /* [n] */
    struct pollfd *poll;   /* [3 + 2 n] */
    bool is_orphan;        /* the launcher is gone */
    bool has_told;         /* it knows that this host failed, or told so */
};

static void say(struct ku_ranks *ranks, int is_stop)
{
    struct agent *a = ranks->owner;
    ku_wire_put(&a->out, is_stop ? KU_FRAME_STOPPED : KU_FRAME_FAILED,
                ku_segment_culprit(ranks->seg), 1, ku_err_get(), sizeof *ku_err_get());
    a->has_told |= !is_stop;
}

/* Send the lines that are complete; at the end of the stream also what follows the last newline. */
static void pass_lines(struct agent *a, int i, int is_end)
{
    struct ku_str *s = &a->stream[i].line;
    const char *newline = s->bytes ? memrchr(s->text, '\n', s->bytes) : NULL;
    size_t bytes = newline ? (size_t)(newline - s->text) + 1 : 0;
    if (is_end || (bytes == 0 && s->bytes >= KU_WIRE_LINE_MAX))
        bytes = s->bytes;
    if (bytes == 0)
        return;
    ku_wire_put(&a->out, KU_FRAME_LINES, a->ranks.first_rank + i / 2, 1 + i % 2, s->text, bytes);
    memmove(s->text, s->text + bytes, s->bytes - bytes);
    s->bytes -= bytes;
}

/* Read what a rank has written. 1: there may be more. */
static int read_stream(struct agent *a, int i)
{
    struct stream *s = &a->stream[i];
    char piece[PIECE_BYTES];
    ssize_t n = s->fd >= 0 ? ku_os_read(s->fd, piece, sizeof piece) : -1;
    if (n > 0) {
        ku_str_append(&s->line, piece, (size_t)n);
        pass_lines(a, i, 0);
    } else if (s->fd >= 0 && (n == 0 || errno != EAGAIN)) {
        pass_lines(a, i, 1);
        ku_os_close(s->fd);
        s->fd = -1;
    }
    return n > 0;
}

/* A rank has ended: its output comes before the report. */
static void drain(struct ku_ranks *ranks, int rank)
{
    struct agent *a = ranks->owner;
    for (int i = 2 * rank; a->stream && i < 2 * rank + 2; i++) {
        for (int n = 0; n < (1 << 20) / PIECE_BYTES && read_stream(a, i); n++)
            continue;
        pass_lines(a, i, 1);
    }
}

static int make_streams(struct agent *a)
{
    const int n = a->job.n_local;
    a->std = ku_malloc((size_t)n * sizeof *a->std);
    a->poll = ku_calloc(3 + 2 * (size_t)n, sizeof *a->poll);
    if (!a->std || !a->poll)
        return KUMI_ENOMEM;
    for (int r = 0; r < n; r++) {
        a->std[r][0] = a->job.flags & KU_HOST_INHERITS ? OUT_COPY : -1;
        a->std[r][1] = a->job.flags & KU_HOST_INHERITS ? 2 : -1;
    }
    if (a->job.flags & KU_HOST_INHERITS)
        return ku_os_keep_on_exec(OUT_COPY, 0) == 0
                   ? 0
                   : KU_ERR(KUMI_EINVAL, "agent: descriptor %d: %s", OUT_COPY, ku_os_why());
    a->stream = ku_calloc(2 * (size_t)n, sizeof *a->stream);
    if (!a->stream)
        return KUMI_ENOMEM;
    for (int i = 0; i < 2 * n; i++)
        a->stream[i].fd = -1;
    for (int i = 0; i < 2 * n; i++) {
        int fd[2];
        if (ku_os_pipe(fd) < 0)
            return KU_ERR(KUMI_ENOMEM, "launch: pipe: %s; raise the limit (ulimit -n)",
                          ku_os_why());
        a->stream[i].fd = fd[0];
        a->std[i / 2][i % 2] = fd[1];
        if (ku_os_set_nonblocking(fd[0]) < 0)
            return KU_ERR(KUMI_ENOMEM, "launch: pipe: %s", ku_os_why());
    }
    return 0;
}

static void close_ends(struct agent *a)
{
    for (int i = 0; a->stream && i < 2 * a->job.n_local; i++) {
        if (a->std[i / 2][i % 2] >= 0)
            ku_os_close(a->std[i / 2][i % 2]);
        a->std[i / 2][i % 2] = -1;
    }
}

static int start(struct agent *a)
{
    struct ku_ranks *r = &a->ranks;
    const struct ku_host_job *j = &a->job;
    if (chdir(j->folder) < 0)
        return KU_ERR(KUMI_EINVAL,
                      "working folder: %s: %s; a job needs the same folder on every "
                      "host",
                      j->folder, strerror(errno));
    for (int i = 0; i < KU_SECRET_BYTES; i++)
        snprintf(a->secret + 2 * i, 3, "%02x", j->secret[i]);
    r->argv = j->argv;
    r->n = j->n_local;
    r->threads = j->threads;
    r->pinning = j->flags & KU_HOST_NO_PIN ? KU_PIN_NEVER
                 : j->flags & KU_HOST_PIN  ? KU_PIN_ALWAYS
                                           : KU_PIN_AUTO;
    r->is_kumi = (j->flags & KU_HOST_IS_KUMI) != 0;
    r->first_rank = j->first_rank;
    r->n_job = j->n;
    r->host_index = j->host_index;
    r->n_hosts = j->n_hosts;
    r->world_id = j->world_id;
    r->host = j->host;
    r->pretends = (j->flags & KU_HOST_PRETENDS) != 0;
    r->master = j->master;
    r->port = j->port;
    r->root = j->n_hosts > 1 ? j->root : NULL;
    r->secret = j->n_hosts > 1 ? a->secret : NULL;
    r->env = j->env;
    r->say = say;
    r->reaped = drain;
    r->owner = a;
    if (j->flags & KU_HOST_BLOCKS) {
        sigset_t stops;
        ku_os_stop_signals(&stops);
        sigorset(&r->old, &r->old, &stops);
    }
    KU_TRY(make_streams(a));
    r->std = a->std;
    KU_TRY(ku_ranks_prepare(r));
    int status = ku_ranks_start(r);
    close_ends(a);
    return status;
}

static void obey(struct agent *a, const struct ku_frame *f, const char *payload)
{
    struct kumi_error error;
    switch ((enum ku_frame_kind)f->kind) {
    case KU_FRAME_SIGNAL:
        ku_ranks_signal(&a->ranks, f->value);
        break;
    case KU_FRAME_KILL:
        ku_ranks_kill(&a->ranks, f->value);
        break;
    case KU_FRAME_END:
        if (f->bytes != sizeof error)
            break;
        memcpy(&error, payload, sizeof error);
        a->has_told = 1;
        ku_ranks_end(&a->ranks, &error, f->rank);
        break;
    case KU_FRAME_JOB:
    case KU_FRAME_HELLO:
    case KU_FRAME_STARTED:
    case KU_FRAME_REFUSED:
    case KU_FRAME_LINES:
    case KU_FRAME_FAILED:
    case KU_FRAME_STOPPED:
    case KU_FRAME_ASKED:
    case KU_FRAME_DONE:
        break;
    }
}

static void obey_all(struct agent *a)
{
    struct ku_frame f;
    const char *payload;
    int status;
    while ((status = ku_wire_take(&a->in, &f, &payload)) > 0)
        obey(a, &f, payload);
    a->is_orphan |= status < 0;
}

static void take_commands(struct agent *a)
{
    const int n = ku_wire_read(&a->in, a->in_fd);
    obey_all(a);
    a->is_orphan |= n == 0 || n < -1;
}

/* Returns the process of the first SIGCHLD, or 0. */
static pid_t take_signals(struct agent *a)
{
    pid_t first = 0;
    struct signalfd_siginfo info;
    while (ku_os_read(a->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (ku_os_is_stop_signal((int)info.ssi_signo))
            ku_wire_put(&a->out, KU_FRAME_ASKED, 0, (int)info.ssi_signo, NULL, 0);
        else if (info.ssi_signo == SIGCHLD && !first)
            first = (pid_t)info.ssi_pid;
    }
    return first;
}

/* A rank of kumi set the root cause, and prints it itself: only the other hosts need to know. */
static void tell_failure(struct agent *a)
{
    struct kumi_error root;
    if (a->has_told || a->ranks.is_stopped || !atomic_load(&a->ranks.seg->abort_word) ||
        ku_segment_root(a->ranks.seg, &root) >= 0)
        return;
    ku_wire_put(&a->out, KU_FRAME_FAILED, ku_segment_culprit(a->ranks.seg), 0, &root, sizeof root);
    a->has_told = 1;
}

static void send_frames(struct agent *a)
{
    a->is_orphan |= ku_wire_flush(&a->out, a->out_fd, SIZE_MAX) < 0 || a->out.buf.failed;
}

static int set_poll(struct agent *a)
{
    const bool is_full = ku_wire_pending(&a->out) > PENDING_MAX;
    a->poll[0] = (struct pollfd){.fd = a->in_fd, .events = POLLIN};
    a->poll[1] = (struct pollfd){.fd = a->signal_fd, .events = POLLIN};
    a->poll[2] =
        (struct pollfd){.fd = ku_wire_pending(&a->out) ? a->out_fd : -1, .events = POLLOUT};
    for (int i = 0; a->stream && i < 2 * a->job.n_local; i++)
        a->poll[3 + i] = (struct pollfd){.fd = is_full ? -1 : a->stream[i].fd, .events = POLLIN};
    return 3 + (a->stream ? 2 * a->job.n_local : 0);
}

static void watch(struct agent *a)
{
    obey_all(a); /* what was read together with the job */
    while (a->ranks.n_alive && !a->is_orphan) {
        const int n = set_poll(a);
        if (poll(a->poll, (nfds_t)n, KU_SLEEP_NS / 1000000) > 0) {
            if (a->poll[0].revents)
                take_commands(a);
            for (int i = 3; i < n; i++)
                if (a->poll[i].revents)
                    read_stream(a, i - 3);
        }
        ku_ranks_reap(&a->ranks, take_signals(a));
        tell_failure(a);
        ku_ranks_check(&a->ranks);
        send_frames(a);
    }
}

/* Send what waits; the launcher takes it, or is dead. */
static void finish(struct agent *a)
{
    while (ku_wire_pending(&a->out) && !a->is_orphan) {
        struct pollfd p[2] = {{.fd = a->in_fd, .events = POLLIN},
                              {.fd = a->out_fd, .events = POLLOUT}};
        if (poll(p, 2, KU_SLEEP_NS / 1000000) > 0 && p[0].revents)
            take_commands(a);
        send_frames(a);
    }
}

/* Say hello and wait for the job. A launcher waits for other hosts before it sends it. */
static int await_job(struct agent *a)
{
    struct ku_frame f;
    const char *payload;
    int status = 0;
    ku_str_append(&a->out.buf, KU_WIRE_SYNC, sizeof KU_WIRE_SYNC - 1);
    ku_wire_put(&a->out, KU_FRAME_HELLO, 0, KU_WIRE_ABI, ku_version(), strlen(ku_version()));
    finish(a);
    while (!a->is_orphan) {
        struct pollfd p = {.fd = a->in_fd, .events = POLLIN};
        if (poll(&p, 1, JOB_WAIT_MS) <= 0)
            return KU_ERR(KUMI_ETIMEDOUT, "agent: no job in 600 s");
        int n = ku_wire_read(&a->in, a->in_fd);
        if (n == 0 || n < -1)
            break;
        if ((status = ku_wire_take(&a->in, &f, &payload)) < 0)
            return status;
        if (status == 0)
            continue;
        if (f.kind != KU_FRAME_JOB)
            return KU_ERR(KUMI_EINVAL, "agent: message %u instead of a job", f.kind);
        a->payload = ku_malloc(f.bytes);
        if (!a->payload)
            return KUMI_ENOMEM;
        memcpy(a->payload, payload, f.bytes);
        return ku_host_job_decode(a->payload, f.bytes, &a->job);
    }
    a->is_orphan = 1;
    return 0;
}

static int serve(struct agent *a)
{
    KU_TRY(await_job(a));
    if (a->is_orphan)
        return 0;
    a->signal_fd = ku_os_signalfd(-1, &a->ranks.waited);
    if (a->signal_fd < 0)
        return KU_ERR(KUMI_ENOMEM, "launch: signals: %s", ku_os_why());
    KU_TRY(start(a));
    ku_wire_put(&a->out, KU_FRAME_STARTED, 0, 0, NULL, 0);
    watch(a);
    if (!a->is_orphan)
        ku_wire_put(&a->out, KU_FRAME_DONE, a->ranks.n_failed, ku_ranks_code(&a->ranks), NULL, 0);
    return 0;
}

static void destroy(struct agent *a)
{
    close_ends(a);
    for (int i = 0; a->stream && i < 2 * a->job.n_local; i++) {
        if (a->stream[i].fd >= 0)
            ku_os_close(a->stream[i].fd);
        ku_str_fini(&a->stream[i].line);
    }
    if (a->signal_fd >= 0)
        ku_os_close(a->signal_fd);
    ku_wire_fini(&a->in);
    ku_wire_fini(&a->out);
    ku_host_job_fini(&a->job);
    ku_free(a->payload);
    ku_free(a->stream);
    ku_free(a->std);
    ku_free(a->poll);
    ku_free(a);
}

int ku_launch_agent(const struct ku_job_client *client, int in_fd, int out_fd)
{
    struct agent *a = ku_calloc(1, sizeof *a);
    if (!a)
        return KUMI_ENOMEM;
    a->ranks.client = client;
    a->in_fd = in_fd;
    a->out_fd = out_fd;
    a->signal_fd = -1;
    a->in.is_synced = 1;
    ku_ranks_block(&a->ranks);
    int status = ku_os_set_nonblocking(out_fd) < 0
                     ? KU_ERR(KUMI_EINVAL, "agent: standard output: %s", ku_os_why())
                     : serve(a);
    if (status < 0) /* the launcher prints it */
        ku_wire_put(&a->out, KU_FRAME_REFUSED, 0, status, ku_err_get(), sizeof *ku_err_get());
    finish(a);
    if (a->is_orphan && !status)
        status = KU_ERR(KUMI_EPEER, "agent: the launcher has ended");
    ku_ranks_release(&a->ranks, status < 0);
    ku_ranks_unblock(&a->ranks);
    destroy(a);
    return status;
}
