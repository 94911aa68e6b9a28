/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The launcher of several hosts. One poll loop over all agents, which it starts side by side:
 *
 *     all agents say hello ─> each gets its part of the job ─> output, failures ─> all end
 *
 * No rank runs before all hosts have answered. The first failure of a host ends the ranks of all
 * others, and only that host's cause is printed. When the launcher dies, the agents read the end of
 * their standard input and kill their ranks.
 *
 * An agent costs three descriptors and a process, which carries KU_LAUNCH_HOSTS_MAX hosts.
 */
#include "job/launch/remote.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/os/process.h"
#include "base/version.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECOND_NS INT64_C(1000000000)
#define HELLO_NS  (60 * SECOND_NS) /* a login over a slow network takes seconds */
#define END_NS    (5 * SECOND_NS)  /* of agents whose ranks are killed after 0.5 s */
enum { TICK_MS = 50 };

static void say(struct ku_remote *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(struct ku_remote *r, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    ku_str_addv(&r->err.buf, format, args);
    va_end(args);
    ku_str_append(&r->err.buf, "\n", 1);
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        ku_os_close(*fd);
    *fd = -1;
}

/* End without a job: agents whose input ends kill what they have started. */
static void give_up(struct ku_remote *r, int status)
{
    if (!r->status) {
        r->status = status;
        r->error = *ku_err_get();
    }
    for (int i = 0; i < r->n_hosts; i++) {
        struct ku_remote_host *h = &r->host[i];
        close_fd(&h->agent.in_fd);
        if (!h->has_hello && h->agent.pid > 0) /* a remote shell that still connects */
            kill(-h->agent.pid, SIGTERM);
    }
    r->end_ns = r->end_ns ? r->end_ns : ku_clock_ns() + END_NS;
}

static void tell(struct ku_remote *r, const struct ku_remote_host *but, enum ku_frame_kind kind,
                 int rank, int value, const void *payload, size_t bytes)
{
    for (int i = 0; i < r->n_hosts; i++)
        if (&r->host[i] != but)
            ku_wire_put(&r->host[i].out, kind, rank, value, payload, bytes);
}

/*
 * The first host to fail ends the others. Later ones fail because of it, and know that its cause
 * has been said. Where the ranks have told each other, a host that was told may come before the one
 * whose rank died; that one asks to be printed, and counts.
 */
static void fail(struct ku_remote *r, struct ku_remote_host *h, const struct kumi_error *error,
                 int culprit, int is_to_be_said)
{
    if (r->is_killed)
        return;
    if (!r->first) {
        r->end_ns = ku_clock_ns() + END_NS;
        tell(r, h, KU_FRAME_END, culprit, 0, error, sizeof *error);
    }
    if (!r->first || (is_to_be_said && !r->has_said)) {
        r->first = h;
        r->culprit = culprit;
        r->code = -error->status;
    }
    if (is_to_be_said && !r->has_said) {
        r->has_said = 1;
        say(r, "kumi: error: %s", error->text);
    }
}

void ku_remote_signal(struct ku_remote *r, int sig)
{
    const int64_t now = ku_clock_ns();
    const enum ku_stop meaning = ku_stops_take(&r->stops, sig, now);
    if (meaning == KU_STOP_ASKS) {
        if (r->is_started)
            tell(r, NULL, KU_FRAME_SIGNAL, 0, sig, NULL, 0);
        else
            give_up(r,
                    KU_ERR(KUMI_ESTOPPED, "stopped: signal %d (%s): before all hosts had answered",
                           sig, strsignal(sig)));
    } else if (meaning == KU_STOP_ENDS && !r->is_killed) {
        r->is_killed = 1;
        r->code = 128 + sig;
        r->end_ns = now + END_NS;
        tell(r, NULL, KU_FRAME_KILL, 0, sig, NULL, 0);
        if (!r->has_said)
            say(r, "kumi: error: stopped: a second signal %d (%s)", sig, strsignal(sig));
        r->has_said = 1;
    }
}

/*
 * Whether a line is an error that need not be printed: what is wrong on all hosts is printed once,
 * and after the first error those of other hosts are its consequences. Hosts that a link divides
 * each have a root cause.
 */
static bool is_said(struct ku_remote *r, const struct ku_remote_host *h, const char *line,
                    size_t bytes)
{
    static const char error[] = "kumi: error: ";
    if (bytes < sizeof error || memcmp(line, error, sizeof error - 1) != 0)
        return false;
    if (r->error_of && r->error_of != h)
        return true;
    if (r->error_of && strlen(r->last_error) == bytes && memcmp(r->last_error, line, bytes) == 0)
        return true;
    r->error_of = h;
    snprintf(r->last_error, sizeof r->last_error, "%.*s", (int)(bytes < 511 ? bytes : 511), line);
    return false;
}

/* Whole lines of a rank. Those of stderr get its number and host. */
static void take_lines(struct ku_remote *r, const struct ku_remote_host *h,
                       const struct ku_frame *f, const char *text)
{
    const char *end = text + f->bytes;
    if (f->value == 1) {
        if (!r->is_out_lost)
            ku_str_append(&r->out.buf, text, f->bytes);
        return;
    }
    while (text < end) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        const char *stop = newline ? newline : end;
        if (!is_said(r, h, text, (size_t)(stop - text))) {
            ku_str_add(&r->err.buf, "[%d %s] ", f->rank, h->slots.name);
            ku_str_append(&r->err.buf, text, (size_t)(stop - text));
            ku_str_append(&r->err.buf, "\n", 1);
        }
        text = newline ? newline + 1 : end;
    }
}

static void take_hello(struct ku_remote *r, struct ku_remote_host *h, const struct ku_frame *f,
                       const char *version)
{
    const size_t bytes = f->bytes < 24 ? f->bytes : 24;
    h->has_hello = 1;
    h->words.bytes = 0;
    if (f->value != KU_WIRE_ABI || bytes != strlen(ku_version()) ||
        memcmp(version, ku_version(), bytes) != 0)
        give_up(r, KU_ERR(KUMI_EINVAL,
                          "launch: host %s: its kumi is %.*s (interface %d), the launcher %s (%d); "
                          "install the same version on every host",
                          h->slots.name, bytes ? (int)bytes : 7, bytes ? version : "unknown",
                          f->value, ku_version(), KU_WIRE_ABI));
}

static void take_frame(struct ku_remote *r, struct ku_remote_host *h, const struct ku_frame *f,
                       const char *payload)
{
    static const char by_agent[] = "launch: "; /* how its messages begin */
    struct kumi_error error = {.status = KUMI_EBUG};
    if (f->bytes == sizeof error)
        memcpy(&error, payload, sizeof error);
    error.text[sizeof error.text - 1] = '\0';
    switch ((enum ku_frame_kind)f->kind) {
    case KU_FRAME_HELLO:
        take_hello(r, h, f, payload);
        break;
    case KU_FRAME_REFUSED:
        h->is_done = 1;
        give_up(r, KU_ERR(error.status < 0 ? error.status : KUMI_EBUG, "launch: host %s: %s",
                          h->slots.name,
                          error.text + (strncmp(error.text, by_agent, sizeof by_agent - 1) == 0
                                            ? sizeof by_agent - 1
                                            : 0)));
        break;
    case KU_FRAME_LINES:
        take_lines(r, h, f, payload);
        break;
    case KU_FRAME_FAILED:
        fail(r, h, &error, f->rank, f->value);
        break;
    case KU_FRAME_STOPPED:
        if (!r->has_said)
            say(r, "kumi: %s", error.text);
        r->has_said = 1;
        break;
    case KU_FRAME_ASKED:
        ku_remote_signal(r, f->value);
        break;
    case KU_FRAME_DONE:
        h->is_done = 1;
        h->code = f->value;
        h->n_failed = f->rank;
        break;
    case KU_FRAME_STARTED:
    case KU_FRAME_JOB:
    case KU_FRAME_SIGNAL:
    case KU_FRAME_END:
    case KU_FRAME_KILL:
        break;
    }
}

/* Read and take what an agent has sent. 1: there may be more. */
static int take_frames(struct ku_remote *r, struct ku_remote_host *h)
{
    struct ku_frame f;
    const char *payload;
    int n = h->agent.out_fd >= 0 ? ku_wire_read(&h->in, h->agent.out_fd) : 0, status;
    while ((status = ku_wire_take(&h->in, &f, &payload)) > 0)
        take_frame(r, h, &f, payload);
    if (status < 0 && !r->status && !r->first)
        give_up(r, KU_ERR(status, "launch: host %s: %s", h->slots.name, ku_err_get()->text));
    if (n == 0 || n < -1 || status < 0) { /* without its input the agent ends, too */
        close_fd(&h->agent.out_fd);
        close_fd(&h->agent.in_fd);
    }
    return n > 0 && status >= 0;
}

/*
 * What the remote shell or the agent itself prints. Until the hello it is kept for the message of a
 * host that cannot be reached; after it, it is shown.
 */
static void take_words(struct ku_remote *r, struct ku_remote_host *h)
{
    char piece[4096];
    ssize_t n = ku_os_read(h->agent.err_fd, piece, sizeof piece);
    if (n <= 0) {
        if (n == 0 || errno != EAGAIN)
            close_fd(&h->agent.err_fd);
        return;
    }
    for (ssize_t i = 0; i < n; i++) {
        if (piece[i] != '\n' && piece[i] != '\r') {
            if (h->words.bytes < sizeof piece)
                ku_str_append(&h->words, piece + i, 1);
        } else if (h->words.bytes) {
            ku_str_append(&h->words, "", 1);
            snprintf(h->last_words, sizeof h->last_words, "%.*s", (int)sizeof h->last_words - 1,
                     h->words.text);
            if (h->has_hello)
                say(r, "[%s] %s", h->slots.name, h->words.text);
            h->words.bytes = 0;
        }
    }
}

/* "ssh ended with exit code 255: ssh: connect to host b port 22: Connection refused" */
static void describe_end(const struct ku_remote *r, const struct ku_remote_host *h, int status,
                         char *text, size_t cap)
{
    const char *what = h->is_here ? "its agent" : r->shell.word[0];
    const char *colon = h->last_words[0] ? ": " : "";
    if (WIFSIGNALED(status))
        snprintf(text, cap, "%s was killed by signal %d (%s)%s%s", what, WTERMSIG(status),
                 strsignal(WTERMSIG(status)), colon, h->last_words);
    else
        snprintf(text, cap, "%s ended with exit code %d%s%s", what, WEXITSTATUS(status), colon,
                 h->last_words);
}

static void lose(struct ku_remote *r, struct ku_remote_host *h, int status)
{
    char text[400];
    describe_end(r, h, status, text, sizeof text);
    if (r->status || r->is_killed || h->is_killed)
        return;
    if (!r->is_started) {
        const char *hint = h->has_hello || h->is_here ? ""
                           : WIFEXITED(status) && WEXITSTATUS(status) == 127
                               ? "; kumi must have the same path on every host"
                               : "; check that this host can be reached without a password";
        give_up(r, KU_ERR(KUMI_EPEER, "launch: host %s: %s%s", h->slots.name, text, hint));
        return;
    }
    KU_ERR_SCOPE(KUMI_EPEER, KUMI_SCOPE_JOB, "host %s lost: ranks %d to %d: %s", h->slots.name,
                 h->first_rank, h->first_rank + h->slots.n - 1, text);
    fail(r, h, ku_err_get(), -1, 1);
}

/* Take note of agents that have ended, with all that they have sent. */
static void reap(struct ku_remote *r)
{
    for (int i = 0; i < r->n_hosts; i++) {
        struct ku_remote_host *h = &r->host[i];
        int status;
        if (h->agent.pid <= 0 || waitpid(h->agent.pid, &status, WNOHANG) != h->agent.pid)
            continue;
        h->agent.pid = 0;
        r->n_open--;
        while (take_frames(r, h))
            continue;
        if (h->agent.err_fd >= 0)
            take_words(r, h);
        close_fd(&h->agent.in_fd);
        close_fd(&h->agent.out_fd);
        close_fd(&h->agent.err_fd);
        if (!h->is_done)
            lose(r, h, status);
    }
}

/* Send the job once every agent has said hello. */
static void start_job(struct ku_remote *r)
{
    struct ku_str payload = {0};
    for (int i = 0; i < r->n_hosts; i++)
        if (!r->host[i].has_hello)
            return;
    r->is_started = 1;
    for (int i = 0; i < r->n_hosts && !r->status; i++) {
        struct ku_host_job job;
        payload.bytes = 0;
        ku_remote_describe(r, i, &job);
        ku_host_job_encode(&job, &payload);
        if (payload.failed)
            give_up(r, KUMI_ENOMEM);
        else if (payload.bytes > KU_WIRE_PAYLOAD_MAX)
            give_up(r, KU_ERR(KUMI_EINVAL,
                              "launch: %zu bytes of arguments and environment; at most %d go to "
                              "a host",
                              payload.bytes, KU_WIRE_PAYLOAD_MAX));
        else
            ku_wire_put(&r->host[i].out, KU_FRAME_JOB, 0, 0, payload.text, payload.bytes);
    }
    ku_str_fini(&payload);
}

static void take_signals(struct ku_remote *r)
{
    struct signalfd_siginfo info;
    while (ku_os_read(r->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGCHLD)
            reap(r);
        if (ku_os_is_stop_signal((int)info.ssi_signo))
            ku_remote_signal(r, (int)info.ssi_signo);
    }
}

/* A queue that found no memory has lost a message; its agent cannot go on. */
static void check_memory(struct ku_remote *r)
{
    for (int i = 0; i < r->n_hosts; i++) {
        struct ku_remote_host *h = &r->host[i];
        if (!h->out.buf.failed && !h->in.buf.failed)
            continue;
        if (!r->is_started)
            give_up(r, KUMI_ENOMEM);
        close_fd(&h->agent.in_fd);
    }
    if (r->err.buf.failed || r->out.buf.failed) {
        ku_wire_fini(&r->err);
        ku_wire_fini(&r->out);
        r->is_out_lost = ENOMEM;
    }
}

/* Deadlines of the start and of the end. */
static void check_time(struct ku_remote *r)
{
    const int64_t now = ku_clock_ns();
    for (int i = 0; i < r->n_hosts && !r->is_started && !r->status && now > r->hello_ns; i++)
        if (!r->host[i].has_hello)
            give_up(r, KU_ERR(KUMI_ETIMEDOUT, "launch: host %s: no answer for %lld s%s%s",
                              r->host[i].slots.name, (long long)(HELLO_NS / SECOND_NS),
                              r->host[i].last_words[0] ? ": " : "", r->host[i].last_words));
    for (int i = 0; i < r->n_hosts && r->end_ns && now > r->end_ns; i++) {
        struct ku_remote_host *h = &r->host[i];
        if (h->agent.pid <= 0 || h->is_killed)
            continue;
        h->is_killed = 1;
        kill(h->agent.pid, SIGKILL);
        if (!h->is_done)
            say(r, "kumi: host %s: its agent did not end in %lld s; processes may be left there",
                h->slots.name, (long long)(END_NS / SECOND_NS));
    }
}

static void serve(struct ku_remote *r)
{
    const int n = ku_remote_set_poll(r);
    const int n_ready = poll(r->poll, (nfds_t)n, TICK_MS);
    for (int i = 0; n_ready > 0 && i < r->n_hosts; i++) {
        const struct pollfd *p = &r->poll[3 * i];
        struct ku_remote_host *h = &r->host[i];
        if (p[0].revents)
            take_frames(r, h);
        if (p[1].revents && h->agent.err_fd >= 0)
            take_words(r, h);
        if (p[2].revents && h->agent.in_fd >= 0 &&
            ku_wire_flush(&h->out, h->agent.in_fd, SIZE_MAX) < 0)
            close_fd(&h->agent.in_fd); /* reap tells why */
    }
    if (n_ready > 0 && r->poll[n - 3].revents)
        take_signals(r);
    if (n_ready == 0)
        reap(r);
    if (!r->is_started && !r->status)
        start_job(r);
    check_memory(r);
    check_time(r);
    ku_remote_put_output(r, r->poll[n - 2].revents, r->poll[n - 1].revents);
}

/* Run until every agent has ended, and the output has gone out. */
static void watch(struct ku_remote *r)
{
    int n_failed = 0, is_counted = 0;
    for (;;) {
        serve(r);
        if (r->n_open == 0 && !is_counted++) {
            for (int i = 0; i < r->n_hosts; i++)
                n_failed += r->host[i].n_failed;
            if (r->first && r->has_said && !r->is_killed && n_failed > 1)
                say(r, "kumi: %d more of the %d ranks failed", n_failed - 1, r->n);
            r->output_ns =
                r->first || r->status || r->stops.first ? ku_clock_ns() + 2 * SECOND_NS : INT64_MAX;
        }
        if (r->n_open == 0 && ((ku_wire_pending(&r->out) == 0 && ku_wire_pending(&r->err) == 0) ||
                               ku_clock_ns() > r->output_ns))
            return;
    }
}

static int exit_code(const struct ku_remote *r)
{
    if (r->is_killed)
        return r->code;
    if (r->first) { /* of the host of the rank that failed first, which knows how it ended */
        const struct ku_remote_host *h = r->first;
        for (int i = 0; i < r->n_hosts && r->culprit >= 0; i++)
            if (r->host[i].first_rank <= r->culprit)
                h = &r->host[i];
        return h->is_done && h->code ? h->code : r->code;
    }
    for (int i = 0; i < r->n_hosts; i++)
        if (r->host[i].code)
            return r->host[i].code;
    return 0;
}

static int start_agents(struct ku_remote *r)
{
    for (int i = 0; i < r->n_hosts; i++) {
        struct ku_remote_host *h = &r->host[i];
        KU_TRY(ku_shell_start(&r->shell, h->slots.name, h->inherits ? r->out_fd : -1, &r->own.old,
                              &h->agent));
        r->n_open++;
    }
    return ku_shell_check(&r->shell);
}

int ku_remote_run(struct ku_remote *r, int *code)
{
    ku_os_raise_files(3 * (uint64_t)r->n_hosts + 64);
    ku_ranks_block(&r->own);
    r->hello_ns = ku_clock_ns() + HELLO_NS;
    r->signal_fd = ku_os_signalfd(-1, &r->own.waited);
    int status = r->signal_fd < 0 ? KU_ERR(KUMI_ENOMEM, "launch: signals: %s", ku_os_why())
                                  : start_agents(r);
    if (status < 0)
        give_up(r, status);
    watch(r);
    close_fd(&r->signal_fd);
    ku_ranks_unblock(&r->own);
    if (r->status)
        return ku_err_put(&r->error);
    *code = exit_code(r);
    if (r->is_out_lost && *code == 0)
        return KU_ERR(KUMI_ESTORAGE, "stdout: %s; the output is incomplete",
                      strerror(r->is_out_lost));
    return 0;
}
