/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KU_JOB_LAUNCH_H
#define KU_JOB_LAUNCH_H

#include "base/err.h"
#include "job/segment.h"

/*
 * The launcher: starts n ranks of a program on this host, in their own process group, and runs
 * until the last one has ended.
 *
 *     launcher ──┬── guard             kills the group if the launcher dies
 *                ├── rank 0   ┐
 *                ├── …        ├ one process group, the control segment inherited
 *                └── rank n-1 ┘
 *
 * Environment of a rank: RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT,
 * KUMI_RANK KUMI_WORLD_SIZE KUMI_JOB, KUMI_CONTROL_FD (the segment) and KUMI_THREADS (a rank's
 * share of the cores).
 *
 * SIGINT, SIGTERM and SIGHUP set the segment's stop flag, and are forwarded to ranks that do not
 * read it. A second one at least 1 s later ends the job. A rank that ends by such a signal has not
 * failed. After a failure the other ranks end within 1 s. The process that sees a failure first
 * prints one line with the root cause.
 */
/*
 * argv[0] of a launcher that starts its own executable. The ranks of such a job print the reason
 * for an exit code of docs/reference/exit-codes.md themselves.
 */
#define KU_LAUNCH_SELF "/proc/self/exe"
struct ku_launch_opts {
    int threads; /* per rank; 0: cores / n, at least 1 */
    int no_pin;  /* 1: do not bind ranks; 0: bind them where n * threads <= cores */
};
/*
 * Parse "-n" of a command: a number from 1 to KU_MAX_LOCAL, or "auto" (the number of cores).
 * Errors: KUMI_EINVAL.
 */
KU_STATUS ku_launch_parse_n(const char *text, int *n);
/*
 * Run argv (NULL-terminated) on n ranks.
 *
 *   exit_code   as in docs/reference/exit-codes.md; 128 + signal after a second signal
 *
 * Errors: KUMI_EINVAL (n; the program cannot be executed; another launcher's variables are set),
 * ENOMEM.
 */
KU_STATUS ku_launch(const struct ku_job_client *client, char *const *argv, int n,
                    const struct ku_launch_opts *opts, int *exit_code);
/*
 * Run fn(arg) in n forked processes. Returns 0, or the status of the first failed rank. The calling
 * process must have one thread. Errors as ku_launch.
 */
KU_STATUS ku_launch_function(const struct ku_job_client *client, int (*fn)(void *arg), void *arg,
                             int n);

#endif
