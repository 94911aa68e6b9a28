/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The service thread of a rank. It holds the life mutex, a robust mutex that the kernel releases
 * within 0.1 ms of the process's end, however it ends. It also receives the stop signals, through a
 * signalfd: a signal handler would need a global variable. It moves no data.
 *
 * That of a host's first rank also serves the bridge to the other hosts (control.h).
 */
#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/os/os.h"
#include "base/os/process.h"
#include "job/control.h"
#include "job/private.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

struct ku_service {
    pthread_t thread;
    struct ku_segment *seg;
    struct ku_rank_line *line;
    struct ku_control *control; /* of a host's first rank; NULL: none */
    int event_fd, signal_fd;
    int is_threads;
    ku_a32 is_up, quits;
};

/* The first signal stops the job at the end of a step, a second one at once (ku_stops_take). */
static void take_signal(struct ku_service *s, struct ku_stops *stops)
{
    struct signalfd_siginfo info;
    if (ku_os_read(s->signal_fd, &info, sizeof info) != (ssize_t)sizeof info)
        return;
    const enum ku_stop meaning = ku_stops_take(stops, (int)info.ssi_signo, ku_clock_ns());
    if (meaning == KU_STOP_ASKS) {
        ku_segment_stop(s->seg, (int)info.ssi_signo);
    } else if (meaning == KU_STOP_ENDS) {
        KU_ERR(KUMI_ESTOPPED, "stopped: a second signal %u (%s)", info.ssi_signo,
               strsignal((int)info.ssi_signo));
        ku_err_print();
        _exit(128 + (int)info.ssi_signo);
    }
}

static void *serve(void *arg)
{
    struct ku_service *s = arg;
    struct ku_stops stops = {0};
    const bool holds_life = !s->is_threads || s->control;
    if (holds_life)
        pthread_mutex_lock(&s->line->life);
    if (s->control) {
        ku_err_rank(s->seg->first_rank);
        atomic_store(&s->seg->is_bridged, KU_BRIDGE_RUNS);
    }
    atomic_store(&s->is_up, 1);
    while (!atomic_load(&s->quits)) {
        struct pollfd p[3] = {
            {.fd = s->event_fd, .events = POLLIN},
            {.fd = s->signal_fd, .events = POLLIN},
            {.fd = s->control ? ku_control_fd(s->control) : -1, .events = POLLIN}};
        if (poll(p, 3, s->control ? ku_control_timeout_ms(s->control) : -1) > 0 &&
            (p[1].revents & POLLIN))
            take_signal(s, &stops);
        if (s->control)
            ku_control_serve(s->control);
    }
    if (s->control)
        atomic_store(&s->seg->is_bridged, KU_BRIDGE_NONE);
    if (holds_life)
        pthread_mutex_unlock(&s->line->life);
    return NULL;
}

static void close_service(struct ku_service *s)
{
    if (s->event_fd >= 0)
        ku_os_close(s->event_fd);
    if (s->signal_fd >= 0)
        ku_os_close(s->signal_fd);
    ku_free(s);
}

int ku_service_start(struct ku_job *job)
{
    struct ku_service *s = ku_calloc(1, sizeof *s);
    sigset_t all, old, none;
    if (!s)
        return KUMI_ENOMEM;
    sigemptyset(&none);
    s->seg = job->seg;
    s->line = job->priv->line;
    s->is_threads = job->priv->host->is_threads;
    s->control = job->local_rank == 0 ? job->priv->host->control : NULL;
    s->event_fd = ku_os_eventfd();
    s->signal_fd = ku_os_signalfd(-1, &none);
    if (s->event_fd < 0 || s->signal_fd < 0) {
        int status = KU_ERR(KUMI_ENOMEM, "service thread: descriptors: %s", strerror(errno));
        close_service(s);
        return status;
    }
    sigfillset(&all); /* this thread takes none of the program's signals */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int failed = pthread_create(&s->thread, NULL, serve, s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (failed) {
        close_service(s);
        return KU_ERR(KUMI_ENOMEM, "service thread: %s", strerror(failed));
    }
    while (!atomic_load(&s->is_up))
        usleep(20);
    job->priv->service = s;
    return 0;
}

void ku_service_stop(struct ku_job *job)
{
    struct ku_service *s = job->priv->service;
    if (!s)
        return;
    atomic_store(&s->quits, 1);
    ku_os_ring(s->event_fd);
    pthread_join(s->thread, NULL);
    close_service(s);
    job->priv->service = NULL;
}

void ku_service_kill(struct ku_job *job)
{
    struct ku_control *control = job->priv->host->control;
    ku_service_stop(job);
    job->priv->host->control = NULL;
    ku_control_break(control);
}

int ku_service_heed(struct ku_job *job)
{
    sigset_t set;
    if (!job->priv->service)
        KU_TRY(ku_service_start(job));
    struct ku_service *s = job->priv->service;
    ku_os_stop_signals(&set);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    if (ku_os_signalfd(s->signal_fd, &set) < 0)
        return KU_ERR(KUMI_ENOMEM, "signals: descriptor: %s", strerror(errno));
    atomic_store(&job->priv->line->heeds_stop, 1);
    return 0;
}
