/* SPDX-License-Identifier: Apache-2.0 */
#include "base/os_proc.h"

#include "base/fault.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
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

void ku_os_be_patient(void)
{
    struct sched_param none = {0};
    (void)pthread_setschedparam(pthread_self(), SCHED_BATCH, &none);
}
