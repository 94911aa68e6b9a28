/* SPDX-License-Identifier: Apache-2.0 */
#include "base/os/process.h"

#include "base/fault.h"
#include "base/os/os.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

pid_t ku_os_fork(void)
{
    return ku_fault_is_due(KU_FAULT_OS) ? -1 : fork();
}

int ku_os_pipe(int fd[2])
{
    return ku_fault_is_due(KU_FAULT_OS) ? -1 : pipe2(fd, O_CLOEXEC);
}

int ku_os_eventfd(void)
{
    return ku_fault_is_due(KU_FAULT_OS) ? -1 : eventfd(0, EFD_CLOEXEC);
}
void ku_os_ring(int eventfd)
{
    (void)eventfd_write(eventfd, 1);
}

int ku_os_signalfd(int fd, const sigset_t *set)
{
    return ku_fault_is_due(KU_FAULT_OS) ? -1 : signalfd(fd, set, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* SIGUSR1: what batch systems are asked to send ahead of the end of a job's time */
static const int stops[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
enum { N_STOPS = sizeof stops / sizeof stops[0] };
/* Launchers and terminals send a signal to several processes of a job, which pass it on. */
static const int64_t SECOND_ENDS_NS = 1000000000;

bool ku_os_is_stop_signal(int sig)
{
    for (size_t i = 0; i < N_STOPS; i++)
        if (sig == stops[i])
            return true;
    return false;
}

void ku_os_stop_signals(sigset_t *set)
{
    struct sigaction now;
    sigemptyset(set);
    for (size_t i = 0; i < N_STOPS; i++)
        if ((stops[i] != SIGHUP && stops[i] != SIGUSR1) || sigaction(stops[i], NULL, &now) < 0 ||
            now.sa_handler != SIG_IGN)
            sigaddset(set, stops[i]);
}

enum ku_stop ku_stops_take(struct ku_stops *s, int sig, int64_t now_ns)
{
    const bool is_early = sig == SIGUSR1, is_first = is_early ? !s->first : !s->since_ns;
    if (!is_first)
        return !is_early && now_ns - s->since_ns >= SECOND_ENDS_NS ? KU_STOP_ENDS : KU_STOP_AGAIN;
    s->first = s->first ? s->first : sig;
    s->since_ns = is_early ? 0 : now_ns;
    s->asked |= UINT32_C(1) << sig;
    return KU_STOP_ASKS;
}

int ku_os_stop_pending(void)
{
    sigset_t pending;
    if (sigpending(&pending) == 0)
        for (size_t i = 0; i < N_STOPS; i++)
            if (sigismember(&pending, stops[i]) == 1)
                return stops[i];
    return 0;
}

/*
 * /proc/PID/stat, "pid (name) state ..": the last ')' ends the name, which may contain others. ""
 * if it cannot be read. text: room for all its numbers.
 */
static void read_stat(pid_t pid, char text[1024])
{
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = ku_os_open(path, O_RDONLY, 0);
    ssize_t bytes = fd < 0 ? -1 : ku_os_read(fd, text, 1023);
    if (fd >= 0)
        ku_os_close(fd);
    text[bytes > 0 ? bytes : 0] = '\0';
}

bool ku_os_is_stopped(pid_t pid)
{
    char text[1024];
    read_stat(pid, text);
    const char *end = strrchr(text, ')');
    return end && end[1] == ' ' && (end[2] == 'T' || end[2] == 't');
}

/* The 52nd and last number, which the kernel sets before it frees the memory of the process. */
int ku_os_exit_status(pid_t pid)
{
    char text[1024];
    read_stat(pid, text);
    const char *last = strrchr(text, ' ');
    return last ? (int)strtol(last, NULL, 10) : 0;
}

void ku_os_be_patient(void)
{
    struct sched_param none = {0};
    (void)pthread_setschedparam(pthread_self(), SCHED_BATCH, &none);
}
