/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_BASE_OS_PROCESS_H
#define KU_BASE_OS_PROCESS_H

#include <signal.h>
#include <stdint.h>
#include <stdbool.h>
#include <sys/types.h>

/*
 * Processes, pipes and signals. Results are those of the system calls, as in base/os/os.h.
 * Descriptors are close-on-exec.
 */
pid_t ku_os_fork(void);
int ku_os_pipe(int fd[2]);
int ku_os_eventfd(void);
void ku_os_ring(int eventfd); /* wakes the poller; adding 1 cannot fail */
/* fd < 0 creates a new descriptor; otherwise its signal set is replaced. */
int ku_os_signalfd(int fd, const sigset_t *set);

/*
 * The signals that ask a run to stop: SIGINT, SIGTERM, and SIGHUP and SIGUSR1 unless the process
 * was started with them ignored (nohup).
 */
bool ku_os_is_stop_signal(int sig);
void ku_os_stop_signals(sigset_t *set);
/*
 * What the stop signals of a job mean, in the order of their coming. The first one asks the job to
 * stop. SIGUSR1, an early warning of batch systems, never does more. Of the others the second one,
 * at least 1 s after the first of them, ends the job at once: SIGTERM at a time limit after an
 * early SIGUSR1 does not interrupt the saving.
 */
struct ku_stops {
    int first;        /* 0: none yet */
    uint32_t asked;   /* bit sig: it was passed on */
    int64_t since_ns; /* of the first that is not SIGUSR1; 0: none */
};
enum ku_stop {
    KU_STOP_ASKS,  /* the first signal, or the first one after SIGUSR1: to be passed on */
    KU_STOP_AGAIN, /* it means nothing new */
    KU_STOP_ENDS
};
enum ku_stop ku_stops_take(struct ku_stops *stops, int sig, int64_t now_ns);
/* Number of a blocked stop signal that is pending for this process; 0: none. */
int ku_os_stop_pending(void);
/*
 * 1 if a signal or a debugger has stopped the process; 0 if it runs, sleeps or cannot be inspected.
 */
bool ku_os_is_stopped(pid_t pid);
/*
 * How a process is ending, as waitpid will say when it has ended: that takes 0.05 s for each GiB of
 * its memory. 0: not known, or the process lives.
 */
int ku_os_exit_status(pid_t pid);

/*
 * Sets SCHED_BATCH for this thread: its wake-ups do not preempt a computing thread. Never fails; no
 * effect if the system refuses.
 */
void ku_os_be_patient(void);

#endif
