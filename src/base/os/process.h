/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_OS_PROCESS_H
#define KU_BASE_OS_PROCESS_H

#include <signal.h>
#include <sys/types.h>

/* Processes and what they wait on. As base/os/os.h: results are the system's own; descriptors are
 * close-on-exec. */
pid_t ku_os_fork(void);
int ku_os_pipe(int fd[2]);
int ku_os_eventfd(void);
void ku_os_ring(int eventfd); /* wakes who polls it; a count of one cannot fail */
/* fd < 0: a new one, else its set is replaced. */
int ku_os_signalfd(int fd, const sigset_t *set);

/* SIGINT, SIGTERM and SIGHUP, which ask a run to stop. SIGHUP is left out where the process began
 * with it ignored (nohup). */
void ku_os_stop_signals(sigset_t *set);
/* A stop signal that is blocked and waits for this process: its number, 0: none. */
int ku_os_stop_pending(void);
/* 1: a signal or a debugger has stopped the process. 0: it runs or sleeps, or cannot be seen. */
int ku_os_is_stopped(pid_t pid);

/* This thread from now on: its wake-ups do not take the core from another that computes. Never
 * fails: where the system does not like it, nothing changes. */
void ku_os_be_patient(void);

#endif
