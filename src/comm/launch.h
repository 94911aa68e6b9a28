/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_COMM_LAUNCH_H
#define KU_COMM_LAUNCH_H

#include "kumi/launch.h"

/*
 * The launcher: starts n ranks of a program on this host, in a process group of their own, and
 * stays until the last has ended. Ranks see RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR
 * MASTER_PORT, KUMI_RANK KUMI_WORLD_SIZE KUMI_JOB KUMI_CONTROL_FD (the segment) and KUMI_THREADS (a
 * rank's share of the cores).
 *
 * SIGINT, SIGTERM and SIGHUP set the segment's stop word, and are passed on to ranks that do not
 * heed it; a second one at least 1 s later ends the job. A rank that ends by such a signal was
 * stopped, it did not fail. After a rank fails the others get 1 s. If the launcher itself is
 * killed, a guard process and the kernel kill the ranks. On a failure one line with the root cause
 * is printed, by the process that saw it first.
 */
/* argv[0] of a launcher that starts its own executable: the ranks of such a job print the reason of
 * an exit code of docs/reference/exit-codes.md themselves. */
#define KU_LAUNCH_SELF "/proc/self/exe"
struct ku_launch_opts {
    int threads; /* per rank; 0: cores / n, at least 1 */
    int no_pin;  /* do not bind ranks to cores (they are bound where n * threads <= cores) */
};
/* "-n" of a command: a number from 1 to KU_MAX_LOCAL or "auto" (the cores). KUMI_EINVAL with one
 * clear line. */
int ku_launch_parse_n(const char *text, int *n);
/*
 * Run argv (NULL-terminated) n times. *exit_code as docs/reference/exit-codes.md says; 128 + signal
 * after a second signal. Errors: KUMI_EINVAL (n; the program cannot be executed; beside another
 * launcher's variables), ENOMEM.
 */
int ku_launch(char *const *argv, int n, const struct ku_launch_opts *opts, int *exit_code);

#endif
