/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_OS_PROC_H
#define KU_BASE_OS_PROC_H

#include <signal.h>
#include <sys/types.h>

/* Processes and what they wait on. As base/os.h: results are the system's own; descriptors are
 * close-on-exec. */
pid_t ku_os_fork(void);
int ku_os_pipe(int fd[2]);
int ku_os_eventfd(void);
void ku_os_ring(int eventfd); /* wakes who polls it; a count of one cannot fail */
/* fd < 0: a new one, else its set is replaced. */
int ku_os_signalfd(int fd, const sigset_t *set);

/* This thread from now on: its wake-ups do not take the core from another that computes. Never
 * fails: where the system does not like it, nothing changes. */
void ku_os_be_patient(void);

#endif
